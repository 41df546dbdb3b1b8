//! Figures about the speed of one kernel, from its compiled code.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sass::catalogue::Facts;
use crate::sass::dump::Kernel;
use crate::sass::flow;
use crate::sass::gpu::{Gpu, Need, RESERVED_SHARED, ctas_per_sm};
use sass::Instruction;

/// Figures of a kernel on its architecture's GPU.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) gpu: &'static str,
    pub(crate) facts: Facts,
    /// CTAs of an SM, and what would have to be more for another one.
    pub(crate) ctas_per_sm: u32,
    pub(crate) ctas_limited_by: &'static str,
    /// Weights that an SM has asked for at once; 0 for kernels that are not about it.
    pub(crate) bytes_in_flight: u32,
    /// Bits of the widest load from global and from shared memory in the whole kernel.
    pub(crate) widest_global_load: u32,
    pub(crate) widest_shared_load: u32,
    pub(crate) main: Option<MainLoop>,
    /// Why there is no main loop although the kernel multiplies.
    pub(crate) problem: Option<String>,
}

/// Instructions of one iteration of the main loop. All of them, also those that a branch may skip.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct MainLoop {
    pub(crate) instructions: u32,
    /// Logic, shifts, byte permutes, comparisons, integer additions.
    pub(crate) alu: u32,
    /// Integer multiply-adds (with the moves that are made of them) and dp4a.
    pub(crate) integer_multiply: u32,
    pub(crate) special: u32,
    /// Bytes a lane loads from shared memory.
    pub(crate) shared_bytes: u32,
    /// Weights a lane multiplies.
    pub(crate) weights: u32,
    pub(crate) vectors: u32,
    /// Instructions of a lane for one weight and one vector.
    pub(crate) instructions_per_mac: f64,
    /// How often each opcode stands in it.
    pub(crate) opcodes: BTreeMap<String, u32>,
}

impl Figures {
    /// The kernel's figures; none where nothing is known about the architecture.
    pub(crate) fn of(kernel: &Kernel, facts: &Facts) -> Option<Self> {
        let gpu = Gpu::of_arch(&kernel.arch)?;
        let need = Need {
            threads: facts.threads,
            registers: kernel.registers,
            shared_bytes: kernel.static_shared() + facts.dynamic_shared + RESERVED_SHARED,
            tensor_columns: facts.tensor_columns,
        };
        let (fit, limited_by) = ctas_per_sm(&need, &gpu.sm);
        let (ctas, limited_by) = match facts.launched < fit {
            true => (facts.launched, "launched"),
            false => (fit, limited_by),
        };
        let widest = |name: &str| {
            let loads = kernel.code.iter().filter(|i| i.name() == name);
            loads.map(Instruction::width).max().unwrap_or(0)
        };
        let (main, problem) = match main_loop(kernel, facts) {
            Ok(main) => (main, None),
            Err(problem) => (None, Some(problem)),
        };
        Some(Self {
            gpu: gpu.name,
            bytes_in_flight: facts.cta_bytes_in_flight * ctas,
            facts: facts.clone(),
            ctas_per_sm: ctas,
            ctas_limited_by: limited_by,
            widest_global_load: widest("LDG"),
            widest_shared_load: widest("LDS"),
            main,
            problem,
        })
    }
}

fn main_loop(kernel: &Kernel, facts: &Facts) -> Result<Option<MainLoop>, String> {
    let Some(step) = facts.step else {
        return Ok(None);
    };
    let is_dot = |instruction: &Instruction| step.products.is(instruction);
    let body = flow::main_loop(&kernel.code, is_dot)
        .ok_or_else(|| format!("no loop with {:?} products", step.products))?;
    let dots = body.iter().filter(|i| is_dot(i)).count() as u32;
    let unrolled = step.unrolled(dots).ok_or_else(|| {
        format!("{dots} dot products in the main loop are no whole number of steps")
    })?;
    let count = |of: fn(&str) -> bool| body.iter().filter(|i| of(i.name())).count() as u32;
    let weights = step.weights * unrolled;
    let instructions = body.len() as u32;
    Ok(Some(MainLoop {
        instructions,
        alu: count(is_alu),
        integer_multiply: count(is_integer_multiply),
        special: count(is_special),
        shared_bytes: body
            .iter()
            .filter(|i| matches!(i.name(), "LDS" | "LDSM"))
            .map(|i| i.width() / 8)
            .sum(),
        weights,
        vectors: step.vectors,
        instructions_per_mac: f64::from(instructions) / f64::from(weights * step.vectors),
        opcodes: body.iter().fold(BTreeMap::new(), |mut opcodes, i| {
            *opcodes.entry(i.opcode.clone()).or_default() += 1;
            opcodes
        }),
    }))
}

fn is_alu(name: &str) -> bool {
    const NAMES: &str = "PRMT LOP3 LOP PLOP3 SHF SHL SHR IADD3 IADD VIADD VIADDMNMX VIMNMX VIMNMX3 IMNMX \
        ISETP FSETP FMNMX FSEL SEL LEA IABS SGXT BMSK MOV F2FP I2FP";
    NAMES.split_whitespace().any(|alu| alu == name)
}

fn is_integer_multiply(name: &str) -> bool {
    matches!(name, "IMAD" | "IDP")
}

fn is_special(name: &str) -> bool {
    matches!(
        name,
        "MUFU" | "F2F" | "F2I" | "I2F" | "POPC" | "FLO" | "BREV"
    )
}

/// The system's part of what cuobjdump calls shared memory: since 9.0 it is counted in.
pub(crate) fn reserved_in_usage(arch: &str) -> u32 {
    let number: String = arch.chars().take_while(char::is_ascii_digit).collect();
    match number.parse::<u32>() {
        Ok(arch) if arch >= 90 => RESERVED_SHARED,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use sass::Function;

    use super::*;
    use crate::sass::catalogue::example;

    /// A step of four rows of one block, as the example has: 32 dp4a for 64 products.
    fn kernel(dots: usize) -> Kernel {
        let mut code: Vec<String> = vec!["MOV R1, R2".into()];
        code.push("LDS.128 R4, [R2]".into());
        code.push("LDSM.16.M88.2 R4, [R2]".into());
        code.push("@P1 LDG.E.64.CONSTANT R8, [R4.64]".into());
        code.extend(["PRMT R1, R2, R3, R4", "SHF.R.U32.HI R1, RZ, 0x10, R2"].map(String::from));
        code.extend((0..dots).map(|_| "IDP.4A.S8.S8 R1, R2, R3, R1".to_owned()));
        code.push("MUFU.RCP R1, R2".into());
        code.push("@!P0 BRA 0x10".into());
        code.push("EXIT".into());
        let lines = code.iter().enumerate();
        Kernel::from(Function {
            symbol: "gemv_example".into(),
            arch: "90a".into(),
            registers: 128,
            shared: 1024,
            code: lines
                .filter_map(|(i, text)| Instruction::parse(&format!("/*{:04x}*/ {text} ;", 16 * i)))
                .collect(),
            ..Function::default()
        })
    }

    #[test]
    fn counts_the_main_loop() {
        let figures = Figures::of(&kernel(32), &example()).unwrap();
        let main = figures.main.unwrap();
        assert_eq!((main.instructions, main.weights), (39, 64));
        assert_eq!(main.opcodes["LDG.E.64.CONSTANT"], 1);
        assert_eq!(main.opcodes.values().sum::<u32>(), 39);
        assert_eq!((main.alu, main.integer_multiply, main.special), (2, 32, 1));
        assert_eq!(main.shared_bytes, 24);
        assert!((main.instructions_per_mac - 39.0 / 64.0).abs() < 1e-9);
        assert_eq!(
            (figures.widest_global_load, figures.widest_shared_load),
            (64, 128)
        );
        // 512 threads of 128 registers are the whole SM.
        assert_eq!(figures.ctas_per_sm, 1);
        assert_eq!(figures.bytes_in_flight, 16 * 32 * 4 * 9);
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let figures = Figures::of(&kernel(31), &example()).unwrap();
        assert!(figures.main.is_none());
        assert!(figures.problem.unwrap().contains("31 dot products"));
        let figures = Figures::of(&kernel(0), &example()).unwrap();
        assert!(figures.problem.unwrap().contains("no loop"));
    }

    #[test]
    fn reserved_shared_memory_is_counted_once() {
        assert_eq!(reserved_in_usage("80"), 0);
        assert_eq!(reserved_in_usage("90a"), 1024);
        assert_eq!(reserved_in_usage("100a"), 1024);
    }
}
