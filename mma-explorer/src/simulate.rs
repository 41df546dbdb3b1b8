//! Compiled kernels in ptx-sim, on exact data.

use ptx_sim::{Launch, Module, Options, Program, Sim, SimError};

use crate::exact::Exact;
use crate::matmul::{Plan, Problem};
use crate::types::Type;
use crate::variants::Variant;

/// Why a simulated kernel is not right.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The kernel did something that the ISA does not allow, or that the simulator does not know.
    #[error(transparent)]
    Simulator(#[from] SimError),
    /// The result is not exact.
    #[error("{0}")]
    Wrong(String),
}

impl SimulationError {
    /// What the simulator does not execute; `None` where it is another error.
    pub fn unmodelled(&self) -> Option<String> {
        match self {
            Self::Simulator(SimError::Unmodelled { reason, .. }) => Some(reason.clone()),
            _ => None,
        }
    }
}

/// What a simulation did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Instructions of warps.
    pub warp_instructions: u64,
}

/// Runs the kernel `matmul` of a PTX text once, and compares D with the exact result, bit by bit.
///
/// # Errors
/// What the simulator finds, and a wrong D.
pub fn matmul(
    variant: &Variant,
    ptx: &str,
    plan: &Plan,
    problem: Problem,
    exact: &Exact,
    options: &Options,
) -> Result<Simulated, SimulationError> {
    let module = Module::parse(ptx).map_err(SimError::from)?;
    let program = Program::new(&module, "matmul")?;
    let mut sim = Sim::new(module);
    let a = sim.upload("a", &exact.a)?;
    let b = sim.upload("b", &exact.b)?;
    let d = sim.alloc("d", exact.d.len())?;
    let launch = Launch {
        shared: plan.shared,
        ..Launch::new("matmul", [plan.grid, 1, 1], [plan.threads, 1, 1])
    }
    .buffer(d)
    .buffer(a)
    .buffer(b)
    .u32(problem.m)
    .u32(problem.n)
    .bytes(&plan.row_bytes.to_le_bytes());
    let report = sim.run_program(&program, &launch, options, None)?;
    match exact.compare(variant, problem, sim.download(d)) {
        Some(wrong) => Err(SimulationError::Wrong(wrong)),
        None => Ok(Simulated {
            warp_instructions: report.warp_instructions,
        }),
    }
}

/// Runs the kernels `latency` and `throughput` of a PTX text on fragments of ones: every element of D is then K times
/// the number of instructions.
///
/// # Errors
/// As [`matmul`].
pub fn measure(
    variant: &Variant,
    ptx: &str,
    options: &Options,
) -> Result<Simulated, SimulationError> {
    const TURNS: u32 = 2;
    let module = Module::parse(ptx).map_err(SimError::from)?;
    let mut instructions = 0;
    for (kernel, links, chains, warps) in [("latency", 16, 1, 1), ("throughput", 1, 8, 2)] {
        let program = Program::new(&module, kernel)?;
        let mut sim = Sim::new(module.clone());
        let [_, _, c] = variant.registers();
        let fragments = fragments_of_ones(variant, chains);
        let cycles = sim.alloc("cycles", 16 * warps as usize)?;
        let out = sim.alloc("out", (c * 32 * warps * 4) as usize)?;
        let input = sim.upload("in", &fragments)?;
        let launch = Launch::new(kernel, [1; 3], [32 * warps, 1, 1])
            .buffer(cycles)
            .buffer(out)
            .buffer(input)
            .u32(TURNS)
            .u32(0);
        let report = sim.run_program(&program, &launch, options, None)?;
        instructions += report.warp_instructions;
        let product = if variant.bits() == Some("xor") {
            0
        } else {
            i64::from(variant.shape.k)
        };
        let expected = code_of_sum(variant, product * i64::from(TURNS * links));
        // `throughput` makes one number of its chains.
        let expected = (1..chains).fold(expected, |all, _| {
            all.wrapping_mul(31).wrapping_add(expected)
        });
        let words = sim.download(out).chunks_exact(4);
        let wrong = words.filter(|word| *word != expected.to_le_bytes()).count();
        if wrong != 0 {
            let text = format!("{kernel}: {wrong} words of D are wrong: not {expected:#x}");
            return Err(SimulationError::Wrong(text));
        }
    }
    Ok(Simulated {
        warp_instructions: instructions,
    })
}

/// What the kernels that measure read: registers of A and B full of ones, and accumulators of zeros.
pub(crate) fn fragments_of_ones(variant: &Variant, accumulators: u32) -> Vec<u8> {
    let [a, b, c] = variant.registers();
    let ones = [(variant.a, a), (variant.b, b)];
    let ones = ones
        .iter()
        .flat_map(|(ty, registers)| fragment_of_ones(variant, *ty).repeat(*registers as usize));
    let zeros = std::iter::repeat_n(0, (accumulators * c * 32 * 4) as usize);
    ones.chain(zeros).collect()
}

/// A register of every lane, full of ones.
fn fragment_of_ones(variant: &Variant, ty: Type) -> Vec<u8> {
    let bits = variant.container_bits(ty);
    let one = ty.encode(1).unwrap_or(0) << variant.container_shift(ty);
    let word = (0..32 / bits).fold(0u32, |word, i| word | one << (i * bits));
    word.to_le_bytes().repeat(32)
}

/// The word of D's registers that have this number in every element. Sums of so few ones are exact.
fn code_of_sum(variant: &Variant, sum: i64) -> u32 {
    match variant.accumulator {
        Type::F16 => {
            let code = Type::F16.encode(sum).unwrap_or(0);
            code << 16 | code
        }
        other => other.encode(sum).unwrap_or(0),
    }
}
