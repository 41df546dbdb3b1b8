//! Calls whose launches make digits of f16, bf16 and f32 vectors, and multiply these
//! ([`Options::vector_accuracy`]): plans of dispatch, in a workspace of the bytes that dispatch asks for.

use std::sync::Arc;

use half::{bf16, f16};
use nvfp4_gemv::dispatch::{plan, workspace_bytes};
use nvfp4_gemv::kernel::plan::Plan;
use nvfp4_gemv::quantize::{QuantizedRows, quantize_digits};
use nvfp4_gemv::reference::{self, digits_error, error_bound};
use nvfp4_gemv::{
    Activation, Choice, FloatType, Kernel, Options, ScaleLayout, VectorAccuracy, Vectors, Weights,
};
use ptx_sim::Multiprocessors;

use crate::support::operands::{Case, Data, Operands, numbers};
use crate::support::ptx;
use crate::support::schedules::few;
use crate::support::sim::{Loaded, Simulator, launches};
use crate::support::sized;

crate::trials! {
    simulator:
        tcgen05 = || all(ptx::BLACKWELL, Kernel::Tcgen05),
        mma_fp4 = || all(ptx::CONSUMER, Kernel::MmaFp4);
}

/// Accuracy, vectors and shape. On two multiprocessors tiles are shared, so that the kernel has parts in the workspace
/// beside the digits.
const CALLS: &[(VectorAccuracy, Activation, [usize; 4])] = &[
    (VectorAccuracy::Bf16, Activation::Bf16, [131, 3, 832, 2]),
    (VectorAccuracy::F16, Activation::F16, [40, 1, 1344, 1]),
    (VectorAccuracy::Finest, Activation::F32, [19, 7, 640, 1]),
    // Several passes of 32 vectors.
    (VectorAccuracy::F16, Activation::Bf16, [17, 33, 320, 1]),
];

fn all(arch: &'static str, kernel: Kernel) {
    let simulator = Simulator::with_multiprocessors(arch, 2);
    for (turn, &(accuracy, activation, sizes)) in CALLS.iter().enumerate() {
        let [m, n, k, l] = sizes;
        let case = Case {
            activation,
            vector_layout: ScaleLayout::Linear,
            shared: turn == 0,
            ..Case::new(
                sized(m, n, k, l),
                Data::FullRange,
                ScaleLayout::Tiled128x4,
                5,
            )
        };
        let operands = Arc::new(Operands::new(&case));
        let bits = [false, true].map(|chained| {
            let run = Run::new(&simulator, kernel, &operands, accuracy, chained);
            run.results(turn as u64)
        });
        assert_eq!(bits[0], bits[1], "{sizes:?}");
        demand(&operands, accuracy, kernel, &simulator, &bits[0]);
    }
}

/// A call that makes digits, planned.
struct Run {
    loaded: Loaded,
    plan: Plan,
    arch: &'static str,
    chained: bool,
}

fn options(accuracy: VectorAccuracy, kernel: Kernel) -> Options<'static> {
    let options = Options::new().without_environment().kernel(kernel);
    options.vector_accuracy(accuracy)
}

/// The workspace that a call asks for.
fn bytes(case: &Case, accuracy: VectorAccuracy, kernel: Kernel, simulator: &Simulator) -> u64 {
    let options = options(accuracy, kernel);
    workspace_bytes(&case.shape, &case.asked(), &simulator.gpu, &options).expect("a kernel")
}

impl Run {
    fn new(
        simulator: &Simulator,
        kernel: Kernel,
        operands: &Arc<Operands>,
        accuracy: VectorAccuracy,
        chained: bool,
    ) -> Self {
        let mut loaded = Loaded::new(operands, simulator.arch);
        let needed = bytes(&operands.case, accuracy, kernel, simulator);
        loaded.memory.give_workspace(needed);
        let mut options = options(accuracy, kernel);
        if chained {
            // SAFETY: nobody writes the weights.
            options = unsafe { options.chained() };
        }
        let planned = plan(&loaded.memory.call, &simulator.gpu, &options);
        let (choice, plan): (Choice, Plan) = planned.expect("a plan");
        assert_eq!(choice.digits, accuracy.digits());
        let [first, others @ ..] = plan.launches() else {
            panic!("{plan:?}");
        };
        assert!(
            first.auxiliary && first.entry.starts_with("quantize_digits_"),
            "{first:?}"
        );
        assert!(!others.is_empty() && plan.launches().iter().all(|of| of.dependent == chained));
        Self {
            loaded,
            plan,
            arch: simulator.arch,
            chained,
        }
    }

    /// The bytes of the result. Chained launches overlap as far as the kernels let them.
    fn results(mut self, seed: u64) -> Vec<u8> {
        let options = &few(seed)[seed as usize % 3];
        let planned = self.plan.launches().iter();
        let planned: Vec<_> = planned
            .map(|of| {
                (
                    ptx::entry(of.entry, self.arch),
                    launches(of).expect("a launch").remove(0),
                )
            })
            .collect();
        let memory = &mut self.loaded.memory;
        match self.chained {
            true => {
                let all: Vec<_> = planned
                    .iter()
                    .map(|(entry, launch)| (&entry.program, launch))
                    .collect();
                memory
                    .overlapped(&all, options, Multiprocessors::default())
                    .expect("they run");
            }
            false => {
                for (entry, launch) in &planned {
                    memory
                        .launch(&entry.program, launch, options)
                        .expect("it runs");
                }
            }
        }
        assert!(memory.fully_written() && memory.counters_are_zeros());
        memory.output().to_vec()
    }
}

/// The host's digits of a call's vectors.
fn digits_of(operands: &Operands, accuracy: VectorAccuracy) -> (QuantizedRows, Vec<f32>) {
    let Case {
        shape, activation, ..
    } = operands.case;
    let x: Vec<f32> = match activation {
        Activation::F32 => {
            let words = operands.bytes.vectors.as_chunks().0.iter();
            words.map(|word| f32::from_le_bytes(*word)).collect()
        }
        of => {
            let words = operands.bytes.vectors.as_chunks().0.iter();
            let value = |word: &[u8; 2]| match of {
                Activation::F16 => f16::from_le_bytes(*word).to_f32(),
                _ => bf16::from_le_bytes(*word).to_f32(),
            };
            words.map(value).collect()
        }
    };
    // Batches that share vectors have them once in memory.
    let rows = shape.n() * shape.l();
    let x = x.repeat(rows * shape.k() / x.len());
    let digits = accuracy.digits().expect("digits");
    let made = quantize_digits(&x, rows, shape.k(), digits).expect("digits");
    (made, x)
}

/// Demands results within the bound of roundings of the sum of digits that the host makes, and within that and
/// `digits_error` of the products of the vectors themselves.
fn demand(
    operands: &Operands,
    accuracy: VectorAccuracy,
    kernel: Kernel,
    simulator: &Simulator,
    output: &[u8],
) {
    let case = &operands.case;
    let shape = &case.shape;
    let (made, x) = digits_of(operands, accuracy);
    let bytes = &operands.bytes;
    let weights = Weights::new(
        shape,
        &bytes.codes,
        &bytes.scales,
        bytes.layout,
        bytes.global,
    );
    let weights = weights.expect("weights");
    let truth = reference::gemv(shape, &weights, &made.vectors()).expect("the truth");
    let vectors = Vectors::of(&x);
    let off = digits_error(shape, &weights, &vectors, made.digits).expect("an error");
    let exact = reference::gemv(shape, &weights, &vectors).expect("the truth");
    let asked = case.asked().with_workspace(u64::MAX);
    let choice = nvfp4_gemv::select(
        shape,
        &asked,
        nvfp4_gemv::Target::Gpu(&simulator.gpu),
        &options(accuracy, kernel),
    );
    let config = choice.expect("a kernel").config.expect("a config");
    let roundings = config.roundings(shape, Activation::Nvfp4) + made.digits as u32 - 1;
    for (i, y) in numbers(output, FloatType::F32).enumerate() {
        let bound = error_bound(truth.y[i], truth.magnitude[i], roundings, FloatType::F32);
        assert!(
            (y - truth.y[i]).abs() <= bound,
            "{i}: {y} for {}, {case:?}",
            truth.y[i]
        );
        assert!(
            (y - exact.y[i]).abs() <= bound + off[i],
            "{i}: {y}, {case:?}"
        );
        // So that other digits would be noticed: what they leave is more than what is rounded.
        assert!(
            off[i] > bound || made.digits == 5,
            "{i}: {} and {bound}",
            off[i]
        );
    }
}
