//! Results that do not depend on other vectors ([`Options::batch_invariant`]), bit for bit: calls of one vector to more
//! than a pass has, with a vector among different others, at different places.

use std::sync::Arc;

use nvfp4_gemv::dispatch::{Target, select};
use nvfp4_gemv::kernel::{PackedConfig, StreamConfig};
use nvfp4_gemv::{Activation, Config, Gpu, Kernel, Options, ScaleLayout};

use crate::support::operands::{Case, Data, Operands};
use crate::support::schedules::few;
use crate::support::sim::Simulator;
use crate::support::sized;

crate::trials! {
    simulator:
        packed = || invariant(Kernel::Packed, CASES),
        mma = || invariant(Kernel::Mma, CASES),
        wgmma = || invariant(Kernel::Wgmma, &CASES[1..2]),
        few_vectors_in_stream_and_more_in_packed = together,
        stream_with_other_parts_differs = || differs(&TOGETHER[0], |case, gpu| {
            match batch_invariant(None, case, gpu) {
                Config::Stream(config) => StreamConfig { part: config.part + 1, ..config }.into(),
                other => other,
            }
        }),
        stream_that_is_free_differs = || differs(&TOGETHER[0], |case, gpu| match case.shape.n() {
            ..=8 => config(Kernel::Stream.into(), case, gpu, false),
            _ => batch_invariant(None, case, gpu),
        }),
        packed_with_short_sums_differs = || differs(&CASES[1], |case, gpu| {
            match batch_invariant(Kernel::Packed.into(), case, gpu) {
                Config::Packed(config) => PackedConfig { chunk: 1, long_sums: false, ..config }.into(),
                other => other,
            }
        }),
        mma_that_is_free_differs = || differs(&CASES[1], |case, gpu| config(Kernel::Mma.into(), case, gpu, false));
}

/// Vectors that calls pick theirs from.
const ALL: usize = 128;

/// Multiprocessors, M, K and L, layout, type of the vectors, and numbers of vectors of calls. On few multiprocessors
/// CTAs begin and end within groups, and have several chunks of one.
const CASES: &[Sizes] = &[
    (
        3,
        (140, 576, 1),
        ScaleLayout::Linear,
        Activation::Nvfp4,
        Data::FullRange,
        &[1, 9, 64],
    ),
    (
        3,
        (40, 1600, 1),
        ScaleLayout::Linear,
        Activation::F16,
        Data::FullRange,
        &[1, 17, 130],
    ),
    (
        132,
        (20, 832, 2),
        ScaleLayout::Tiled128x4,
        Activation::Bf16,
        EXPONENTS_OF_BF16,
        &[2, 33],
    ),
];

/// As [`CASES`], of whole steps of 256 elements: `stream` takes few vectors, `packed` the others. Rows in parts that
/// CTAs share, and whole ones; parts of several steps, of which the last one is shorter; batches.
const TOGETHER: &[Sizes] = &[
    (
        3,
        (140, 1280, 1),
        ScaleLayout::Linear,
        Activation::Nvfp4,
        Data::FullRange,
        &[1, 2, 3, 4, 5, 6, 7, 8, 9],
    ),
    (
        4,
        (150, 1024, 1),
        ScaleLayout::Tiled128x4,
        Activation::F16,
        Data::FullRange,
        &[1, 4, 8, 17],
    ),
    (
        132,
        (20, 768, 2),
        ScaleLayout::Linear,
        Activation::Bf16,
        EXPONENTS_OF_BF16,
        &[1, 2, 5, 33],
    ),
    (
        2,
        (40, 512, 3),
        ScaleLayout::Tiled128x4,
        Activation::Nvfp4,
        Data::FullRange,
        &[1, 3, 8],
    ),
    (
        5,
        (70, 1792, 1),
        ScaleLayout::Linear,
        Activation::Bf16,
        Data::FullRange,
        &[1, 8],
    ),
    // One CTA: its warps have several parts one after the other.
    (
        1,
        (33, 1536, 2),
        ScaleLayout::Linear,
        Activation::F16,
        Data::FullRange,
        &[2, 7],
    ),
];

/// Also the smallest ones, beside which a sum of nothing may count.
const EXPONENTS_OF_BF16: Data = Data::Exponents(0, 230, 1);

type Sizes = (
    u32,
    (usize, usize, usize),
    ScaleLayout,
    Activation,
    Data,
    &'static [usize],
);

/// The config of a kernel for a case, or of any kernel: a batch invariant one, or the free choice.
fn config(kernel: Option<Kernel>, case: &Case, gpu: &Gpu, invariant: bool) -> Config {
    let options = Options::new().without_environment().kernel(kernel);
    let options = options.batch_invariant(invariant);
    let choice = select(&case.shape, &case.asked(), Target::Gpu(gpu), &options);
    choice.expect("a kernel").config.expect("a config")
}

fn batch_invariant(kernel: Option<Kernel>, case: &Case, gpu: &Gpu) -> Config {
    config(kernel, case, gpu, true)
}

/// Runs a call of all vectors, and calls of so many of them, picked at random. Returns how many results of a vector
/// differ in a bit from that of the first call.
fn differing(
    operands: &Operands,
    sizes: impl IntoIterator<Item = usize>,
    mut run: impl FnMut(Operands) -> Vec<u8>,
) -> usize {
    let rng = &mut fastrand::Rng::with_seed(3);
    let (l, n) = (operands.case.shape.l(), operands.case.shape.n());
    let all = run(operands.clone());
    let each = all.len() / (l * n);
    let mut differ = 0;
    for size in sizes {
        let picks: Vec<usize> = (0..size).map(|_| rng.usize(..n)).collect();
        let some = run(operands.picked(&picks));
        for batch in 0..l {
            for (i, pick) in picks.iter().enumerate() {
                let here = &some[(batch * size + i) * each..][..each];
                differ += usize::from(here != &all[(batch * n + pick) * each..][..each]);
            }
        }
    }
    differ
}

fn case(
    (m, k, l): (usize, usize, usize),
    layout: ScaleLayout,
    activation: Activation,
    data: Data,
) -> Case {
    Case {
        activation,
        vector_layout: ScaleLayout::Linear,
        ..Case::new(sized(m, ALL, k, l), data, layout, 11)
    }
}

/// As [`differing`], in the simulator, with the configs that `config` picks.
fn simulated(sizes: &Sizes, config: impl Fn(&Case, &Gpu) -> Config) -> usize {
    let &(multiprocessors, shape, layout, activation, data, numbers) = sizes;
    let mut simulator = Simulator::new("90a");
    simulator.gpu.multiprocessors = multiprocessors;
    let operands = Operands::new(&case(shape, layout, activation, data));
    differing(&operands, numbers.iter().copied(), |operands| {
        let config = config(&operands.case, &simulator.gpu);
        let schedule = &few(operands.case.shape.n() as u64)[0];
        simulator.run(&Arc::new(operands), config, false, schedule)
    })
}

fn invariant(kernel: Kernel, cases: &[Sizes]) {
    for sizes in cases {
        let config = |case: &Case, gpu: &Gpu| batch_invariant(kernel.into(), case, gpu);
        assert_eq!(simulated(sizes, config), 0, "{sizes:?}");
    }
}

/// Calls of any kernel: of few vectors in `stream`, of all in `packed`.
fn together() {
    for sizes in TOGETHER {
        let config = |case: &Case, gpu: &Gpu| {
            let config = batch_invariant(None, case, gpu);
            match case.shape.n() {
                ..=8 => assert_eq!(config.kernel(), Kernel::Stream, "{case:?}"),
                _ => assert_eq!(config.kernel(), Kernel::Packed, "{case:?}"),
            }
            config
        };
        assert_eq!(simulated(sizes, config), 0, "{sizes:?}");
    }
}

/// With other configs bits differ: so the trials above can fail.
fn differs(sizes: &Sizes, config: impl Fn(&Case, &Gpu) -> Config) {
    let &(multiprocessors, shape, layout, activation, data, _) = sizes;
    let few: Sizes = (multiprocessors, shape, layout, activation, data, &[1, 16]);
    assert_ne!(simulated(&few, config), 0);
}

#[cfg(feature = "device")]
pub(crate) mod gpu {
    use nvfp4_gemv_trials::Trial;

    use super::*;
    use crate::support::gpu::{self, OnDevice, kernel_trial};

    /// On layers of models and odd shapes; every number of vectors of a pass on one of them.
    fn invariant(gpu: &gpu::Gpu, kernel: Option<Kernel>) {
        let some = (1..=17).chain([24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 131, 200]);
        let some: Vec<usize> = some.collect();
        let all: Vec<usize> = (1..=ALL).collect();
        for (sizes, layout, numbers) in [
            ((4096, 4096, 1), ScaleLayout::Linear, &all),
            ((6144, 4096, 1), ScaleLayout::Tiled128x4, &some),
            ((1024, 14336, 1), ScaleLayout::Linear, &some),
            ((300, 1088, 3), ScaleLayout::Linear, &some),
        ] {
            // For other rows `stream` has no such order.
            if kernel == Some(Kernel::Stream) && sizes.1 % 256 != 0 {
                continue;
            }
            for (activation, data) in [
                (Activation::Nvfp4, Data::FullRange),
                (Activation::F16, Data::FullRange),
                (Activation::Bf16, Data::FullRange),
                (Activation::Bf16, EXPONENTS_OF_BF16),
            ] {
                let case = case(sizes, layout, activation, data);
                let operands = Operands::without_truth(&case, None);
                let differ = differing(&operands, numbers.iter().copied(), |operands| {
                    let config = batch_invariant(kernel, &operands.case, &gpu.info);
                    OnDevice::new(gpu, Arc::new(operands)).run(config, false)
                });
                assert_eq!(differ, 0, "{kernel:?} {case:?}");
            }
        }
    }

    pub(crate) fn trials() -> Vec<Trial> {
        let trial = |kernel: Kernel| {
            kernel_trial(kernel, "batch_invariant", move |gpu| {
                invariant(gpu, Some(kernel));
            })
        };
        let mut trials =
            Vec::from([Kernel::Packed, Kernel::Mma, Kernel::Wgmma, Kernel::Stream].map(trial));
        trials.push(kernel_trial(
            Kernel::Mma,
            "batch_invariant_of_any_kernel",
            |gpu| {
                invariant(gpu, None);
            },
        ));
        trials
    }
}
