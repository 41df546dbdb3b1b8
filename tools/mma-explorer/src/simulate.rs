//! Compiled kernels in ptx-sim, on exact data.

use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Launch, Module, Options, Profile, Program, Sim, SimError};

use crate::exact::Exact;
use crate::matmul::{Map, Operands, Plan, Problem};
use crate::measure::Measure;
use crate::variants::{Family, Variant};

/// Why a simulated kernel is not right.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The kernel did something that the ISA does not allow, or that the simulator does not know.
    #[error(transparent)]
    Simulator(#[from] SimError),
    /// The kernel reads block scales, and the matrices have none.
    #[error("the kernel reads block scales, and the matrices have none")]
    NoScales,
    /// The result is not exact.
    #[error("{0}")]
    Wrong(String),
}

impl SimulationError {
    /// The part that the simulator does not execute; `None` where it is another error.
    pub fn unmodelled(&self) -> Option<String> {
        match self {
            Self::Simulator(SimError::Unmodelled { reason, .. }) => Some(reason.clone()),
            _ => None,
        }
    }
}

/// Counts of a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Instructions of warps.
    pub warp_instructions: u64,
}

/// Runs the kernel `matmul` of a PTX text once, and compares D with the exact result, bit by bit. Clusters of `wgmma`
/// run in the profile `hardware`, as `csrc/hopper.cuh` says at `barrier_arrive`, everything else by the letter of the
/// ISA.
///
/// # Errors
/// Errors that the simulator finds, and a wrong D.
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
    .buffer(d);
    let launch = match &plan.operands {
        Operands::Addresses => launch
            .buffer(a)
            .buffer(b)
            .u32(problem.m)
            .u32(problem.n)
            .bytes(&plan.row_bytes.to_le_bytes()),
        Operands::Maps {
            a: map_a,
            b: map_b,
            steps,
            instruction,
            scales,
        } => {
            let launch = launch
                .tensor_map(encoded(map_a, a.address)?)
                .tensor_map(encoded(map_b, b.address)?)
                .u32(problem.m)
                .u32(problem.n)
                .u32(*steps);
            let scales = match (scales, &exact.scales) {
                (Some([map_a, map_b]), Some([of_a, of_b])) => [
                    encoded(map_a, sim.upload("scales of a", of_a)?.address)?,
                    encoded(map_b, sim.upload("scales of b", of_b)?.address)?,
                ],
                // Maps that the kernel does not look at.
                (None, _) => [encoded(map_a, a.address)?, encoded(map_b, b.address)?],
                (Some(_), None) => return Err(SimulationError::NoScales),
            };
            match instruction {
                None => launch,
                Some(instruction) => {
                    let [of_a, of_b] = scales;
                    launch.u32(*instruction).tensor_map(of_a).tensor_map(of_b)
                }
            }
        }
    };
    let options = Options {
        profile: match (variant.family(), plan.cluster) {
            (Family::Wgmma, 2..) => Profile::Hardware,
            _ => options.profile,
        },
        ..options.clone()
    };
    let report = sim.run_program(&program, &launch, &options, None)?;
    match exact.compare(variant, problem, sim.download(d)) {
        Some(wrong) => Err(SimulationError::Wrong(wrong)),
        None => Ok(Simulated {
            warp_instructions: report.warp_instructions,
        }),
    }
}

/// The map, as the driver makes it.
fn encoded(map: &Map, global_address: u64) -> Result<TensorMap, SimError> {
    let map = TensorMap::encode(TensorMapArgs {
        data_type: DataType::Uint8,
        global_address,
        global_dim: vec![map.row_bytes, map.rows.into()],
        global_strides: vec![map.row_bytes],
        box_dim: vec![map.box_bytes, map.box_rows],
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle: match (map.swizzled, map.box_bytes) {
            (false, _) => Swizzle::None,
            (true, 64) => Swizzle::B64,
            (true, _) => Swizzle::B128,
        },
        l2_promotion: L2Promotion::B256,
        oob_fill: OobFill::Zero,
    });
    map.map_err(|error| SimError::Launch(error.to_string()))
}

/// Runs the kernels `latency` and `throughput` of a PTX text on ones: every element of D is then K times the number of
/// instructions.
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
    for kernel in ["latency", "throughput"] {
        let is_throughput = kernel == "throughput";
        let measure = Measure::new(variant, is_throughput);
        let groups = match is_throughput {
            true => 2.min(measure.most_groups),
            false => 1,
        };
        let threads = measure.threads * groups;
        let program = Program::new(&module, kernel)?;
        let mut sim = Sim::new(module.clone());
        let cycles = sim.alloc("cycles", 16 * threads as usize / 32)?;
        let out = sim.alloc("out", (measure.words * threads * 4) as usize)?;
        let input = sim.upload("in", &measure.input)?;
        let launch = Launch {
            shared: measure.shared,
            ..Launch::new(kernel, [1; 3], [threads, 1, 1])
        };
        let launch = launch
            .buffer(cycles)
            .buffer(out)
            .buffer(input)
            .u32(TURNS)
            .u32(0);
        let report = sim.run_program(&program, &launch, options, None)?;
        instructions += report.warp_instructions;
        let expected = measure.expected(variant, is_throughput, TURNS);
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
