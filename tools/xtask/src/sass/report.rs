//! Shows the kernels, the estimates and the findings.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::sass::budget::{Finding, is_form_of};
use crate::sass::dump::Kernel;
use crate::sass::estimate::Estimate;
use crate::sass::figures::Figures;
use crate::sass::gpu::{Gpu, LATENCY};
use crate::sass::measured::{Measured, MeasuredKernel, Time};

/// Instructions that tell what kind of kernel it is, each a column.
const COLUMNS: [&str; 6] = ["LDG.128", "LDG.256", "LDL", "UTMALDG", "UBLKCP", "UTCOMMA"];
/// Resources of an estimate, each a column.
const RESOURCES: [&str; 6] = ["issue", "ALU", "IMAD", "special", "shared", "latency"];

/// All that is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    pub(crate) files: &'a [PathBuf],
    pub(crate) kernels: &'a [Kernel],
    pub(crate) measured: &'a Measured,
    /// The problem that kernels are launched for.
    pub(crate) problem: &'a str,
    pub(crate) findings: &'a [Finding],
}

impl Report<'_> {
    pub(crate) fn json(&self) -> Value {
        json!({
            "files": self.files,
            "kernels": self.kernels,
            "gpus": Gpu::all(),
            "measured": self.measured,
            "findings": self.findings,
        })
    }

    pub(crate) fn print(&self) {
        let archs = self.archs();
        println!(
            "{} kernels in {} files, for {}\n",
            self.kernels.len(),
            self.files.len(),
            archs.into_iter().collect::<Vec<_>>().join(", ")
        );
        self.print_code();
        self.print_estimates();
        self.print_measured();
        self.print_findings();
    }

    fn archs(&self) -> BTreeSet<&str> {
        let archs = self.kernels.iter().map(|kernel| kernel.arch.as_str());
        archs.collect()
    }

    fn print_code(&self) {
        println!("CODE (shared: static, bytes)");
        print!(
            "{:>5} {:>4} {:>6} {:>6} {:>6}",
            "arch", "regs", "stack", "shared", "instrs"
        );
        for column in COLUMNS {
            print!(" {column:>7}");
        }
        println!("  kernel");
        for kernel in self.kernels {
            print!(
                "{:>5} {:>4} {:>6} {:>6} {:>6}",
                kernel.arch,
                kernel.registers,
                kernel.stack.max(kernel.local),
                kernel.static_shared(),
                kernel.instructions()
            );
            for column in COLUMNS {
                print!(" {:>7}", count(kernel, column));
            }
            println!("  {}", kernel.symbol);
        }
        println!();
    }

    fn print_estimates(&self) {
        println!(
            "ESTIMATES from the compiled code, not measured; configurations for {}",
            self.problem
        );
        let archs = self.archs();
        for gpu in Gpu::all().iter().filter(|gpu| archs.contains(gpu.arch)) {
            println!("  {}", describe(gpu));
        }
        println!(
            "\n  dyn: dynamic shared memory; tmem: columns; CTA/SM and what limits them; in flight: \
             KiB of weights an SM\n  has asked for; loads: bits of the widest from global/shared \
             memory; in/MAC: lane-instructions a\n  multiply-accumulate in the main loop (all its \
             paths); then how many times the memory's rate each resource\n  could keep up with, \
             latency being that of {:.1} us; limit: the least of them, memory where all are above 1",
            LATENCY * 1e6
        );
        print!(
            "{:>5} {:>7} {:>5} {:>6} {:<10} {:>9} {:>7} {:>6}",
            "arch", "dyn", "tmem", "CTA/SM", "by", "in flight", "loads", "in/MAC"
        );
        for resource in RESOURCES {
            print!(" {resource:>7}");
        }
        println!("  {:<13} kernel", "limit");
        for kernel in self.kernels {
            if let Some(figures) = &kernel.figures {
                println!("{}", estimate_line(kernel, figures));
            }
        }
        println!();
    }

    fn print_measured(&self) {
        let run = &self.measured.run;
        println!(
            "MEASURED beside ESTIMATED, as shares of the read ceiling\n  {}, {}, driver {}, CUDA {}: \
             {}\n  {}\n",
            run.gpu, run.date, run.driver, run.cuda, run.how, run.command
        );
        for measured in &self.measured.kernels {
            match measured.find(self.kernels) {
                Some(kernel) => print_times(measured, kernel),
                None => println!("  {}: not among these kernels\n", measured.path),
            }
        }
    }

    fn print_findings(&self) {
        for Finding {
            arch,
            kernel,
            problem,
        } in self.findings
        {
            let arch = arch
                .as_ref()
                .map_or_else(String::new, |arch| format!("sm_{arch}: "));
            let kernel = kernel
                .as_ref()
                .map_or_else(String::new, |kernel| format!("{kernel}: "));
            println!("FOUND {arch}{kernel}{problem}");
        }
        if self.findings.is_empty() {
            println!("everything is within the budget");
        }
    }
}

fn describe(gpu: &Gpu) -> String {
    format!(
        "sm_{}: {}, {} SMs, {} MHz, {:.2} TB/s ({})",
        gpu.arch,
        gpu.name,
        gpu.multiprocessors,
        gpu.megahertz,
        f64::from(gpu.gigabytes) / 1000.0,
        gpu.source
    )
}

fn estimate_line(kernel: &Kernel, figures: &Figures) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
    let in_flight = f64::from(figures.bytes_in_flight) / 1024.0;
    let main = figures.main.as_ref();
    let loads = format!(
        "{}/{}",
        figures.widest_global_load, figures.widest_shared_load
    );
    let mut line = format!(
        "{:>5} {:>7} {:>5} {:>6} {:<10} {:>9} {:>7} {:>6}",
        kernel.arch,
        figures.facts.dynamic_shared,
        figures.facts.tensor_columns,
        figures.ctas_per_sm,
        figures.ctas_limited_by,
        number((in_flight > 0.0).then_some(in_flight)),
        loads,
        main.map_or_else(
            || "-".into(),
            |main| format!("{:.3}", main.instructions_per_mac)
        ),
    );
    let estimate = kernel.estimate.as_ref();
    for resource in RESOURCES {
        let value = estimate.and_then(|estimate| estimate.of_memory(resource));
        line += &format!(" {:>7}", number(value));
    }
    line + &format!("  {:<13} {}", limit(estimate), kernel.symbol)
}

fn limit(estimate: Option<&Estimate>) -> String {
    estimate.map_or_else(
        || "-".into(),
        |estimate| format!("{} {:.2}", estimate.limit, estimate.share),
    )
}

fn print_times(measured: &MeasuredKernel, kernel: &Kernel) {
    let shares = measured.times.iter().map(Time::share);
    println!(
        "  {} (sm_{}): estimated limit {}; measured {:.2} to {:.2}",
        kernel.symbol,
        kernel.arch,
        limit(kernel.estimate.as_ref()),
        shares.clone().fold(f64::INFINITY, f64::min),
        shares.fold(0.0, f64::max)
    );
    for time in &measured.times {
        println!(
            "    {:<13} {:>6.2} us  measured {:.2}  {}",
            time.shape,
            time.us(),
            time.share(),
            time.config
        );
    }
    println!();
}

/// Without namespaces, parameters and return type.
fn count(kernel: &Kernel, pattern: &str) -> u32 {
    let matching = kernel.opcodes.iter();
    let matching = matching.filter(|(opcode, _)| is_form_of(opcode, pattern));
    matching.map(|(_, count)| count).sum()
}
