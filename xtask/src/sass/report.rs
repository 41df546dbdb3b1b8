//! Shows the kernels and the findings.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::sass::budget::{Finding, is_form_of};
use crate::sass::dump::Kernel;

/// Instructions that tell what kind of kernel it is, each a column.
const COLUMNS: [&str; 6] = ["LDG.128", "LDG.256", "LDL", "UTMALDG", "UBLKCP", "UTCOMMA"];

pub(crate) fn print(files: &[PathBuf], kernels: &[Kernel], findings: &[Finding]) {
    let archs: BTreeSet<&str> = kernels.iter().map(|kernel| kernel.arch.as_str()).collect();
    println!(
        "{} kernels in {} files, for {}\n",
        kernels.len(),
        files.len(),
        archs.into_iter().collect::<Vec<_>>().join(", ")
    );
    print!(
        "{:>5} {:>4} {:>6} {:>6} {:>6}",
        "arch", "regs", "stack", "shared", "instrs"
    );
    for column in COLUMNS {
        print!(" {column:>7}");
    }
    println!("  kernel");
    for kernel in kernels {
        print!(
            "{:>5} {:>4} {:>6} {:>6} {:>6}",
            kernel.arch,
            kernel.registers,
            kernel.stack.max(kernel.local),
            kernel.shared,
            kernel.instructions()
        );
        for column in COLUMNS {
            print!(" {:>7}", count(kernel, column));
        }
        println!("  {}", kernel.name);
    }
    println!();
    for Finding {
        arch,
        kernel,
        problem,
    } in findings
    {
        let arch = arch
            .as_ref()
            .map_or_else(String::new, |arch| format!("sm_{arch}: "));
        let kernel = kernel
            .as_ref()
            .map_or_else(String::new, |kernel| format!("{kernel}: "));
        println!("FOUND {arch}{kernel}{problem}");
    }
    if findings.is_empty() {
        println!("everything is within the budget");
    }
}

pub(crate) fn json(files: &[PathBuf], kernels: &[Kernel], findings: &[Finding]) -> Value {
    json!({ "files": files, "kernels": kernels, "findings": findings })
}

fn count(kernel: &Kernel, pattern: &str) -> u32 {
    let matching = kernel
        .opcodes
        .iter()
        .filter(|(opcode, _)| is_form_of(opcode, pattern));
    matching.map(|(_, count)| count).sum()
}
