//! Trials that every GEMV kernel must pass on a GPU: one list of trials, with shapes and configs of each kernel. Calls
//! go by address, at once and prepared.

use std::collections::BTreeSet;
use std::sync::Arc;

use half::bf16;
use nvfp4_gemv::kernel::quantize::{Global, Input, Quantize};
use nvfp4_gemv::kernel::{Config, Job, Kernel};
use nvfp4_gemv::quantize::quantize_vectors;
use nvfp4_gemv::raw;
use nvfp4_gemv::reference::{error_bound, gemv};
use nvfp4_gemv::{
    Activation, FloatType, Options, RawWorkspace, Refusal, ScaleLayout, Shape, Strides,
};
use nvfp4_gemv_cli::problem::{
    CONTEST_BENCHMARKS, CONTEST_TESTS, EdgeCase, Problem, contest_tolerance,
};
use nvfp4_gemv_trials::Trial;

use super::device::Uploaded;
use super::fields;
use super::gpu::{Gpu, OnDevice, alone, kernel_trial, options, unused_workspace};
use super::operands::{Case, Data, Operands, numbers};
use super::sized;

/// Sizes of a problem: M, N, K, L.
pub(crate) type Sizes = (usize, usize, usize, usize);

/// Numbers of vectors: past one pass of any kernel, past a quarter of a 128-row atom of scales, a whole atom, and more.
pub(crate) const MANY_VECTORS: [usize; 4] = [17, 33, 128, 130];

/// A kernel, and its shapes and configs for the trials. A shape that the kernel refuses in some layout or type is tried
/// in the others.
pub(crate) struct Subject {
    pub(crate) kernel: Kernel,
    /// Shapes at the edges of the units that the kernel counts in, for its default config.
    pub(crate) odd: fn() -> Vec<Sizes>,
    /// Shapes for configs of all kinds.
    pub(crate) every: &'static [Sizes],
    /// Shapes of many rows, for few CTAs.
    pub(crate) tall: &'static [Sizes],
    /// Configs of all kinds, legal or not. If configs have a field for CTAs, its values are `ctas`.
    pub(crate) configs: fn(&Job<'_>, ctas: &[u32]) -> Vec<Config>,
    /// Names of the fields whose values make the kind of a config.
    pub(crate) kind: &'static [&'static str],
    /// Kinds that must have been tried, each as values of the fields `kind`.
    pub(crate) kinds: &'static [&'static [u32]],
}

/// A trial.
type Run = fn(&Gpu, &Subject);

pub(crate) fn trials(subject: &'static Subject) -> Vec<Trial> {
    let runs: [(&str, Run); 16] = [
        ("contest_and_layer_shapes", contest_and_layer_shapes),
        ("odd_shapes", odd_shapes),
        ("every_kind_of_config", every_kind_of_config),
        ("every_candidate", every_candidate),
        ("few_ctas_and_many_rows", few_ctas_and_many_rows),
        ("more_batches_than_a_grid_has", more_batches_than_a_grid_has),
        (
            "more_than_four_gigabytes_of_weights",
            more_than_four_gigabytes,
        ),
        ("edge_cases", edge_cases),
        ("factors_of_rows_and_vectors", factors_of_rows_and_vectors),
        ("addresses_that_are_less_aligned", less_aligned),
        ("a_hundred_repeats_give_the_same_bits", a_hundred_repeats),
        ("in_another_context", in_another_context),
        ("chained_in_a_graph", chained_in_a_graph),
        ("vectors_of_the_kernel_before", vectors_of_the_kernel_before),
        ("ids_change_between_replays", ids_change_between_replays),
        ("a_thread_without_a_context", a_thread_without_a_context),
    ];
    let trial =
        |(name, run): (&str, Run)| kernel_trial(subject.kernel, name, move |gpu| run(gpu, subject));
    runs.into_iter().map(trial).collect()
}

impl Subject {
    /// Runs a case for each type of vectors, in every layout that the kernel takes, on the same numbers. The kernel
    /// must take at least one layout.
    fn each(&self, gpu: &Gpu, case: Case, run: impl FnMut(&mut OnDevice<'_>)) {
        let taken = self.some(gpu, case, 0, run);
        assert!(taken > 0, "{} is for no case", case.shape);
    }

    /// Runs a case like `each`, with addresses so many bytes behind a boundary. Returns the number of runs.
    fn some(
        &self,
        gpu: &Gpu,
        case: Case,
        offset: usize,
        mut run: impl FnMut(&mut OnDevice<'_>),
    ) -> usize {
        let mut taken = 0;
        for activation in Activation::ALL {
            let nvfp4 = activation == Activation::Nvfp4;
            let vector_alpha = case.vector_alpha && nvfp4;
            let case = Case {
                activation,
                vector_alpha,
                ..case
            };
            let mut first: Option<Arc<Operands>> = None;
            for case in self.in_layouts(gpu, case) {
                // Vectors without scales have one layout.
                if !nvfp4 && case.vector_layout != ScaleLayout::Linear {
                    continue;
                }
                let operands = match &first {
                    Some(first) => first.again(&case),
                    None => Operands::new(&case),
                };
                let operands = Arc::new(operands);
                first.get_or_insert_with(|| operands.clone());
                let mut on = OnDevice::behind(gpu, operands, offset);
                if offset > 0 || on.job(false, |job| self.kernel.available(job)).is_ok() {
                    taken += 1;
                    run(&mut on);
                }
            }
        }
        taken
    }

    /// The case in every layout that the kernel takes.
    fn in_layouts(&self, gpu: &Gpu, case: Case) -> impl Iterator<Item = Case> {
        let in_layouts = move |(weight_layout, vector_layout)| Case {
            weight_layout,
            vector_layout,
            ..case
        };
        let all = layouts().map(in_layouts);
        all.filter(|case| self.takes(gpu, case))
    }

    /// Whether the kernel takes the case with well aligned operands.
    fn takes(&self, gpu: &Gpu, case: &Case) -> bool {
        let asked = case.asked();
        let job = Job::new(&case.shape, &asked, &gpu.info);
        self.kernel.available(&job).is_ok()
    }

    /// The default config, alone or in chains.
    fn default(&self, on: &OnDevice<'_>, chained: bool) -> Config {
        on.job(chained, |job| self.kernel.default_config(job))
            .unwrap()
    }

    /// Legal configs of all kinds.
    fn legal(&self, on: &OnDevice<'_>, ctas: &[u32]) -> Vec<Config> {
        on.job(false, |job| {
            let mut configs = (self.configs)(job, ctas);
            configs.retain(|config| config.check(job).is_ok());
            configs
        })
    }
}

fn layouts() -> impl Iterator<Item = (ScaleLayout, ScaleLayout)> {
    ScaleLayout::ALL
        .into_iter()
        .flat_map(|w| ScaleLayout::ALL.into_iter().map(move |v| (w, v)))
}

fn shapes(sizes: &[Sizes]) -> impl Iterator<Item = Shape> {
    sizes.iter().map(|&(m, n, k, l)| sized(m, n, k, l))
}

/// Cases with both kinds of numbers for each shape. The seed is the index of the shape.
fn cases(sizes: &[Sizes]) -> impl Iterator<Item = Case> {
    let shapes = shapes(sizes).enumerate();
    shapes.flat_map(|(seed, shape)| both(shape, seed))
}

/// Cases with integers, and with numbers of the whole range and factors.
fn both(shape: Shape, seed: usize) -> [Case; 2] {
    [Data::Integers, Data::FullRange].map(|data| Case {
        row_alpha: data == Data::FullRange || seed % 3 == 1,
        vector_alpha: seed % 2 == 1,
        ..Case::new(shape, data, ScaleLayout::Linear, seed as u64)
    })
}

const LAYERS: [(usize, usize, usize); 3] = [(4096, 4096, 1), (4096, 14336, 1), (1024, 28672, 1)];

/// The default configs; also with the contest's own data and tolerance.
fn contest_and_layer_shapes(gpu: &Gpu, subject: &Subject) {
    let mut taken = 0;
    let f16 = |case| Case {
        output: FloatType::F16,
        padded: true,
        ..case
    };
    let contest = CONTEST_TESTS.iter().chain(&CONTEST_BENCHMARKS);
    for &(m, k, l) in contest.clone().chain(&LAYERS) {
        for case in both(sized(m, 1, k, l), 1) {
            taken += subject.some(gpu, f16(case), 0, |on| {
                for chained in [false, true] {
                    on.assert_right(subject.default(on, chained), chained);
                }
            });
        }
    }
    for &(m, k, l) in contest {
        let shape = sized(m, 1, k, l);
        let problem = Problem::contest(shape, 1);
        let truth = problem.reference().unwrap();
        let case = Case::new(shape, Data::FullRange, ScaleLayout::Linear, 1);
        for case in subject.in_layouts(gpu, f16(case)) {
            let mut on = OnDevice::new(gpu, Arc::new(Operands::of(&case, &problem)));
            let y = on.run(subject.default(&on, false), false);
            for (y, &c) in numbers(&y, FloatType::F16).zip(&truth.y) {
                assert!((y - c).abs() <= contest_tolerance(c), "{shape} {y} {c}");
            }
        }
    }
    assert!(taken > 10, "only {taken} cases");
}

fn odd_shapes(gpu: &Gpu, subject: &Subject) {
    for (i, shape) in shapes(&(subject.odd)()).enumerate() {
        for case in both(shape, i) {
            for output in FloatType::ALL {
                let padded = i % 2 == 0;
                let case = Case {
                    output,
                    padded,
                    ..case.with_additions(i * 3 + output as usize)
                };
                subject.each(gpu, case, |on| {
                    let chained = i / 2 % 2 == 1;
                    on.assert_right(subject.default(on, chained), chained);
                });
            }
        }
    }
}

fn every_kind_of_config(gpu: &Gpu, subject: &Subject) {
    let mut kinds = BTreeSet::new();
    let ctas = [1, 3, 7, gpu.info.multiprocessors, u32::MAX];
    for case in cases(subject.every) {
        subject.each(gpu, case, |on| {
            for config in subject.legal(on, &ctas) {
                let kind = subject.kind.iter().map(|name| fields::get(&config, name));
                kinds.insert(kind.collect::<Vec<_>>());
                on.assert_right(config, false);
            }
        });
    }
    for &kind in subject.kinds {
        assert!(kinds.contains(kind), "{kind:?} was not tried: {kinds:?}");
    }
}

/// Configs that are worth measuring, alone and in chains. With integers all of them give the same result.
fn every_candidate(gpu: &Gpu, subject: &Subject) {
    let mut tried = 0;
    let sizes = [
        (4096, 1, 4096, 1),
        (384, 1, 7168, 2),
        (300, 3, 1024, 1),
        (256, 11, 2048, 2),
    ];
    for shape in shapes(&sizes) {
        for case in both(shape, 4) {
            subject.some(gpu, case, 0, |on| {
                for chained in [false, true] {
                    let candidates = on.job(chained, |job| subject.kernel.candidates(job));
                    tried += candidates.len();
                    for config in candidates {
                        on.assert_right(config, chained);
                    }
                }
            });
        }
    }
    assert!(tried > 20, "only {tried} candidates");
}

/// Groups and warps that have many tiles or units, and queues that go round many times.
fn few_ctas_and_many_rows(gpu: &Gpu, subject: &Subject) {
    for case in cases(subject.tall) {
        subject.each(gpu, case, |on| {
            for config in subject.legal(on, &[2, 3, 5, 9]).into_iter().step_by(5) {
                on.assert_right(config, false);
            }
        });
    }
}

fn more_batches_than_a_grid_has(gpu: &Gpu, subject: &Subject) {
    let mut taken = 0;
    for shape in shapes(&[(2, 1, 32, 70_000), (4, 1, 256, 70_000)]) {
        let [case, _] = both(shape, 12);
        subject.some(gpu, case, 0, |on| {
            let case = on.operands.case;
            if case.activation == Activation::Nvfp4 && case.weight_layout != case.vector_layout {
                return;
            }
            taken += 1;
            for chained in [false, true] {
                on.assert_right(subject.default(on, chained), chained);
            }
        });
    }
    assert!(taken > 0);
}

/// Byte offsets past 2^32. The weights of all batches but the last are zero.
fn more_than_four_gigabytes(gpu: &Gpu, subject: &Subject) {
    let (m, k, l) = (4096, 16384, 130);
    let shape = sized(m, 1, k, l);
    assert!(shape.weight_code_bytes() > 1 << 32);
    let one = Problem::integers(Shape::matrix(m, k).unwrap(), 13);
    let uploaded = Uploaded::last_of(gpu, &one, l, ScaleLayout::Tiled128x4);
    let y = gpu.upload(&vec![f32::NAN; shape.outputs()]);
    let options = Options::new().kernel(subject.kernel);
    let call = uploaded.call(gpu, &y);
    let asked = call.operands();
    let bytes = Kernel::most_workspace_bytes(&Job::new(call.shape(), &asked, &gpu.info));
    let workspace = gpu.upload(&unused_workspace(bytes as usize));
    let address = gpu.address(&workspace);
    let call = call
        .with_workspace(RawWorkspace { address, bytes })
        .unwrap();
    // SAFETY: all buffers live until the copy below has waited for the kernel.
    unsafe { raw::gemv(&call, &gpu.info, &options, gpu.handle()) }.unwrap();
    let y = gpu.stream.clone_dtoh(&y).unwrap();
    let (zeros, last) = y.split_at((l - 1) * m);
    assert!(zeros.iter().all(|&y| y == 0.0));
    let truth = one.reference().unwrap().y;
    assert!(last.iter().map(|&y| f64::from(y)).eq(truth));
}

fn edge_cases(gpu: &Gpu, subject: &Subject) {
    for &edge in EdgeCase::all() {
        for shape in shapes(&[(130, 1, 4096, 1), (128, 1, 256, 2), (33, 3, 288, 2)]) {
            let problem = Problem::edge_case(shape, edge, 7);
            let case = Case::new(shape, Data::FullRange, ScaleLayout::Linear, 7);
            for case in subject.in_layouts(gpu, case) {
                let mut on = OnDevice::new(gpu, Arc::new(Operands::of(&case, &problem)));
                if on.job(false, |job| subject.kernel.available(job)).is_ok() {
                    on.assert_right(subject.default(&on, false), false);
                }
            }
        }
    }
}

/// Factors of each batch's rows and of each vector, with all kinds of configs.
fn factors_of_rows_and_vectors(gpu: &Gpu, subject: &Subject) {
    let mut tried = 0;
    for shape in shapes(&[(37, 11, 512, 3), (128, 1, 512, 3)]) {
        let case = Case {
            vector_alpha: true,
            ..Case::new(shape, Data::Integers, ScaleLayout::Linear, 8)
        };
        for case in subject.in_layouts(gpu, case) {
            let operands = Operands::new(&case).with_factors_of_batches();
            let mut on = OnDevice::new(gpu, Arc::new(operands));
            for config in subject.legal(&on, &[1, 3, 7]) {
                tried += 1;
                on.assert_right(config, false);
            }
        }
    }
    assert!(tried > 3, "only {tried} configs");
}

/// Addresses that are multiples of 8, 16 and 32: the result is right, or the kernel refuses the alignment.
fn less_aligned(gpu: &Gpu, subject: &Subject) {
    for offset in [8, 16, 32] {
        for shape in shapes(&[(300, 1, 4096, 1), (129, 3, 1056, 2)]) {
            for case in both(shape, 9) {
                subject.some(gpu, case, offset, |on| {
                    match on.job(false, |job| subject.kernel.default_config(job)) {
                        Ok(config) => on.assert_right(config, false),
                        // Scales are half as far from a boundary.
                        Err(Refusal::Alignment { .. }) => assert!(offset < 32),
                        Err(other) => panic!("{other}"),
                    }
                });
            }
        }
    }
}

fn a_hundred_repeats(gpu: &Gpu, subject: &Subject) {
    let sizes = [
        (2432, 1, 4608, 1),
        (130, 7, 4352, 3),
        (4096, 1, 4096, 1),
        (384, 1, 7168, 2),
    ];
    for shape in shapes(&sizes) {
        let [_, case] = both(shape, 11);
        subject.some(gpu, case, 0, |on| {
            let some = subject.legal(on, &[3, gpu.info.multiprocessors]);
            let some = some.into_iter().step_by(11).map(|config| (config, false));
            let defaults = [false, true].map(|chained| (subject.default(on, chained), chained));
            for (config, chained) in defaults.into_iter().chain(some) {
                let first = on.run(config, chained);
                // Three launches each.
                for _ in 1..34 {
                    assert!(
                        on.run(config, chained) == first,
                        "{:?} {config:?}",
                        on.operands.case
                    );
                }
            }
        });
    }
}

/// Each context loads its own kernels: the same bits in the primary context, in another, and in the first again.
fn in_another_context(gpu: &Gpu, subject: &Subject) {
    // Kernels take more shared memory for this K than they get without asking.
    let shape = Shape::matrix(256, 8192).unwrap();
    let case = Case::new(shape, Data::FullRange, ScaleLayout::Tiled128x4, 15);
    let operands = Arc::new(Operands::new(&case));
    let run = |gpu: &Gpu| {
        let mut on = OnDevice::new(gpu, operands.clone());
        [false, true].map(|chained| on.run(subject.default(&on, chained), chained))
    };
    let first = run(gpu);
    for _ in 0..2 {
        assert!(run(&Gpu::in_another_context()) == first);
        assert!(run(gpu) == first);
    }
}

/// A thread without a current context launches by address, in the context of the runtime's device.
fn a_thread_without_a_context(gpu: &Gpu, subject: &Subject) {
    let case = Case::new(
        sized(128, 1, 512, 1),
        Data::FullRange,
        ScaleLayout::Tiled128x4,
        3,
    );
    subject.each(gpu, case, |on| {
        let config = subject.default(on, false);
        let first = on.run(config, false);
        on.poison();
        // The default stream, and waiting for the context, end other threads' captures.
        let _alone = alone();
        gpu.stream.context().synchronize().unwrap();
        let (call, options) = (on.call, options(config, false));
        std::thread::scope(|scope| {
            let launch = || {
                assert!(
                    cudarc::driver::result::ctx::get_current()
                        .unwrap()
                        .is_none()
                );
                // SAFETY: the operands live until the context is waited for below; null is the default stream.
                unsafe { raw::gemv(&call, &gpu.info, &options, std::ptr::null_mut()) }.unwrap();
            };
            scope.spawn(launch);
        });
        gpu.stream.context().synchronize().unwrap();
        assert!(on.download() == first, "{config:?}");
    });
}

/// Chained launches back to back, captured into a graph that is replayed a thousand times. Each launch reads weights
/// before the launch before it has ended. The launches give the bits of launches that wait. Every output is written in
/// each of four rounds: a store that does not wait for the previous grid is found out.
fn chained_in_a_graph(gpu: &Gpu, subject: &Subject) {
    let sizes = [
        (300, 2, 1056, 2),
        (4096, 1, 4096, 1),
        (129, 11, 96, 3),
        (300, 1, 1024, 1),
        (128, 1, 256, 3),
    ];
    let mut works = Vec::new();
    for shape in shapes(&sizes) {
        for activation in Activation::ALL {
            let case = Case {
                activation,
                ..Case::new(shape, Data::FullRange, ScaleLayout::Linear, 14)
            };
            for case in subject.in_layouts(gpu, case) {
                let mut on = OnDevice::new(gpu, Arc::new(Operands::new(&case)));
                if on.job(true, |job| subject.kernel.available(job)).is_ok() {
                    let config = subject.default(&on, true);
                    let isolated = on.run(config, false);
                    on.poison();
                    works.push((on, options(config, true), isolated));
                }
            }
        }
    }
    assert!(works.len() > 3, "only {}", works.len());
    let graph = gpu.capture(|| {
        for _ in 0..4 {
            for (on, options, _) in &works {
                on.enqueue(options).unwrap();
            }
        }
    });
    for replay in 0..1000 {
        graph.launch().unwrap();
        if replay % 100 == 99 {
            for (on, options, isolated) in &mut works {
                assert!(
                    &on.download() == isolated,
                    "{:?} {options:?}",
                    on.operands.case
                );
                on.poison();
            }
        }
    }
}

/// A graph of three chained calls whose batches select their matrix, captured once, and replayed with other ids each
/// time: random ones, one for all, ids that skip a batch, and ids of no matrix.
fn ids_change_between_replays(gpu: &Gpu, subject: &Subject) {
    for (i, activation) in Activation::ALL.into_iter().enumerate() {
        let case = Case {
            activation,
            select: true,
            late: i % 2 == 1,
            ..Case::new(
                sized(128, 1 + i, 512, 6),
                Data::Integers,
                ScaleLayout::Linear,
                5,
            )
        };
        for case in subject.in_layouts(gpu, case) {
            let matrices = case.matrices();
            // The results of each batch, by matrix.
            let mut results = vec![vec![Vec::new(); matrices]; case.shape.l()];
            for turned in 0..matrices {
                let case = Case { turned, ..case };
                let truth = &Operands::new(&case).truth;
                let of_batches = truth.y.chunks(case.shape.m() * case.shape.n());
                for (batch, (y, id)) in of_batches.zip(case.ids()).enumerate() {
                    results[batch][id as usize] = y.to_vec();
                }
            }
            let operands = Arc::new(Operands::new(&case));
            let mut ids_there = gpu.upload(&operands.bytes.select);
            let address = gpu.address(&ids_there);
            let mut on = OnDevice::with(gpu, operands, 0, |name| {
                (name == "select").then_some(address)
            });
            let options = options(subject.default(&on, true), true);
            let graph = gpu.capture(|| {
                for _ in 0..3 {
                    on.enqueue(&options).unwrap();
                }
            });
            let mut rng = fastrand::Rng::with_seed(i as u64);
            for replay in 0..100 {
                let mut ids: Vec<i32> = vec![rng.i32(..matrices as i32); case.shape.l()];
                match replay % 4 {
                    0 => {}
                    1 => ids.fill_with(|| rng.i32(-1..matrices as i32)),
                    2 => ids.fill_with(|| rng.i32(..matrices as i32)),
                    _ => ids.fill_with(|| [-1, 0, matrices as i32, i32::MIN][rng.usize(..4)]),
                }
                gpu.stream.memcpy_htod(&ids, &mut ids_there).unwrap();
                on.poison();
                graph.launch().unwrap();
                let y: Vec<f64> = numbers(&on.download(), case.output).collect();
                let of_batches = y.chunks(case.shape.m() * case.shape.n());
                for ((y, &id), known) in of_batches.zip(&ids).zip(&results) {
                    let right = match usize::try_from(id).ok().and_then(|id| known.get(id)) {
                        Some(known) => y == known,
                        None if id == -1 => y.iter().all(|&y| y == 0.0),
                        None => y.iter().all(|y| y.is_nan()),
                    };
                    assert!(right, "{case:?} replay {replay} {ids:?} id {id}: {y:?}");
                }
            }
        }
    }
}

/// Vectors of a type, with the least stored exponent of their elements, the one behind the greatest, and so many
/// elements for each that is not zero.
pub(crate) type Magnitudes = (Activation, (u16, u16, u32));

/// Dense vectors of these magnitudes, each as so many vectors: the sums of matrix instructions are as promised,
/// subnormal elements included. Zeros around an element keep a large one from hiding what becomes of a small one.
pub(crate) fn vectors_of_magnitudes(
    gpu: &Gpu,
    kernel: Kernel,
    all: &[Magnitudes],
    vectors: &[usize],
) {
    for (seed, &(activation, (least, end, one_of))) in (0..).zip(all) {
        for &n in vectors {
            let data = Data::Exponents(least, end, one_of);
            let case = Case {
                activation,
                ..Case::new(sized(130, n, 2048, 1), data, ScaleLayout::Linear, seed)
            };
            let mut on = OnDevice::new(gpu, Arc::new(Operands::new(&case)));
            let config = on.job(false, |job| kernel.default_config(job));
            on.assert_right(config.unwrap(), false);
        }
    }
}

/// bf16 vectors that the kernel right before quantises. The chained launch overlaps with that kernel. Codes, scales and
/// factors are poisoned first: scales that are read too early are NaN. Every round has other vectors.
fn vectors_of_the_kernel_before(gpu: &Gpu, subject: &Subject) {
    let mut taken = 0;
    for shape in shapes(&[(1000, 3, 1056, 2), (1000, 3, 1024, 2), (1024, 1, 1024, 2)]) {
        for layout in ScaleLayout::ALL {
            let case = Case {
                vector_alpha: true,
                ..Case::new(shape, Data::FullRange, layout, 31)
            };
            if subject.takes(gpu, &case) {
                taken += 1;
                follows(gpu, subject, case);
            }
        }
    }
    assert!(taken > 0);
}

fn follows(gpu: &Gpu, subject: &Subject, case: Case) {
    let (shape, layout) = (case.shape, case.weight_layout);
    let problem = Problem::full_range(shape, case.seed);
    let (count, k) = (shape.l() * shape.n(), shape.k());
    let strides = |row: usize| Strides {
        row,
        batch: shape.n() * row,
    };
    let scale_bytes = layout.bytes(shape.n(), shape.blocks());
    let poison = [count * k / 2, shape.l() * scale_bytes].map(|bytes| vec![0x7f_u8; bytes]);
    let mut x = gpu.upload(&vec![bf16::ZERO; count * k]);
    let [mut codes, mut scales] = [0, 1].map(|i| gpu.upload(&poison[i]));
    let alpha = gpu.upload(&vec![f32::NAN; count]);
    let quantize = Quantize {
        element: FloatType::Bf16,
        input: Input::Plain,
        chained: false,
        early: false,
        copies: 1,
        digits: 1,
        values: gpu.address(&x),
        strides: strides(2 * k),
        global: Global::Computed,
        codes: gpu.address(&codes),
        scales: gpu.address(&scales),
        layout,
        vector_alpha: gpu.address(&alpha),
    };
    let operands = Arc::new(Operands::of(&case, &problem));
    let mut on = OnDevice::with(gpu, operands, 0, |name| match name {
        "vectors" => Some(quantize.codes),
        "vector scales" => Some(quantize.scales),
        "vector alpha" => Some(quantize.vector_alpha),
        _ => None,
    });
    let config = subject.default(&on, true);
    let w = problem.weights(ScaleLayout::Linear).unwrap();
    for round in 0..50 {
        let mut rng = fastrand::Rng::with_seed(round);
        let values: Vec<bf16> = (0..count * k)
            .map(|_| bf16::from_f32(rng.f32() * 2.0 - 1.0))
            .collect();
        gpu.stream.memcpy_htod(&values, &mut x).unwrap();
        gpu.stream.memcpy_htod(&poison[0], &mut codes).unwrap();
        gpu.stream.memcpy_htod(&poison[1], &mut scales).unwrap();
        on.poison();
        // SAFETY: the buffers have the sizes that the shape asks for, and outlive the work.
        unsafe { raw::quantize(&shape, &quantize, gpu.handle()) }.unwrap();
        on.enqueue(&options(config, true)).unwrap();
        let y = on.download();
        let host = quantize_vectors(&values, count, k).unwrap();
        let truth = gemv(&shape, &w.view().unwrap(), &host.vectors()).unwrap();
        let roundings = config.roundings(&shape, Activation::Nvfp4);
        for (i, y) in numbers(&y, FloatType::F32).enumerate() {
            let (true_y, magnitude) = (truth.y[i], truth.magnitude[i]);
            let bound = error_bound(true_y, magnitude, roundings, FloatType::F32);
            assert!(
                (y - true_y).abs() <= bound,
                "{config:?} round {round} element {i}: {y}, true {true_y}"
            );
        }
    }
}
