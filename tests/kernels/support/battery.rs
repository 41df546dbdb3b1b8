//! What every GEMV kernel must do on a GPU, whatever it is: one list of trials, for each kernel with its own shapes
//! and configs. Calls go by address, at once and prepared.

use std::collections::BTreeSet;

use cudarc::driver::CudaSlice;
use half::bf16;
use libtest_mimic::Trial;
use nvfp4_gemv::kernel::{Config, Job, Kernel};
use nvfp4_gemv::problem::{CONTEST_BENCHMARKS, CONTEST_TESTS, EdgeCase, contest_tolerance};
use nvfp4_gemv::quantize::quantize_vectors;
use nvfp4_gemv::raw::{self, Call, Global, Quantize, RawVectors};
use nvfp4_gemv::reference::{error_bound, gemv};
use nvfp4_gemv::{Activation, FloatType, GlobalScale, ScaleLayout, Shape, Strides};

use super::data::Data;
use super::gpu::{CASE, Case, Gpu, OnDevice, kernel_trial, options};

/// M, N, K, L.
pub(crate) type Sizes = (usize, usize, usize, usize);

/// A kernel, and what it is tried with. Shapes that it refuses in some layout or type are tried in the others.
pub(crate) struct Subject {
    pub(crate) kernel: Kernel,
    /// Shapes at the edges of what it counts in, for its default.
    pub(crate) odd: fn() -> Vec<Sizes>,
    /// Shapes for configs of all kinds.
    pub(crate) every: &'static [Sizes],
    /// Shapes of many rows, for few CTAs.
    pub(crate) tall: &'static [Sizes],
    /// Configs of all kinds, legal or not. Where CTAs are a field, they are of these numbers.
    pub(crate) configs: fn(&Job<'_>, ctas: &[u32]) -> Vec<Config>,
    /// What makes the kind of a config.
    pub(crate) kind: fn(&Config) -> Vec<u32>,
    /// Kinds that must have been tried.
    pub(crate) kinds: &'static [&'static [u32]],
}

/// A trial.
type Run = fn(&Gpu, &Subject);

pub(crate) fn trials(subject: &'static Subject) -> Vec<Trial> {
    let runs: [(&str, Run); 14] = [
        ("contest_and_layer_shapes", contest_and_layer_shapes),
        ("odd_shapes", odd_shapes),
        ("every_kind_of_config", every_kind_of_config),
        ("every_candidate", every_candidate),
        ("few_ctas_and_many_rows", few_ctas_and_many_rows),
        ("more_batches_than_a_grid_has", more_batches_than_a_grid_has),
        ("more_than_four_gigabytes_of_weights", more_than_four_gigabytes),
        ("edge_cases", edge_cases),
        ("factors_of_rows_and_vectors", factors_of_rows_and_vectors),
        ("addresses_that_are_less_aligned", less_aligned),
        ("a_hundred_repeats_give_the_same_bits", a_hundred_repeats),
        ("in_another_context", in_another_context),
        ("chained_in_a_graph", chained_in_a_graph),
        ("vectors_of_the_kernel_before", vectors_of_the_kernel_before),
    ];
    runs.into_iter()
        .map(|(name, run)| kernel_trial(subject.kernel, name, move |gpu| run(gpu, subject)))
        .collect()
}

impl Subject {
    /// The data in every type and layout that the kernel takes; it takes one at least.
    fn cases<'a>(
        &self,
        gpu: &'a Gpu,
        data: &'a Data,
        with: impl Fn(Case) -> Case,
    ) -> impl Iterator<Item = OnDevice<'a>> {
        let kernel = self.kernel;
        let taken: Vec<_> = Case::all()
            .map(with)
            // Factors of vectors are those of NVFP4 ones.
            .filter(|case| data.vector_alpha.is_empty() || case.activation == Activation::Nvfp4)
            .map(|case| OnDevice::new(gpu, data, case))
            .filter(|on| on.job(false, |job| kernel.available(job)).is_ok())
            .collect();
        assert!(!taken.is_empty(), "{} is for no case", data.problem.shape);
        taken.into_iter()
    }

    /// The defaults alone and in chains.
    fn defaults(&self, on: &OnDevice<'_>) -> [(Config, bool); 2] {
        [false, true].map(|chained| {
            let default = on.job(chained, |job| self.kernel.default_config(job));
            (default.unwrap(), chained)
        })
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

fn shapes(sizes: &[Sizes]) -> impl Iterator<Item = Shape> {
    sizes.iter().map(|&(m, n, k, l)| Shape::new(m, n, k, l).unwrap())
}

/// Integers, and numbers of the whole range.
fn both(shape: Shape, seed: u64) -> [Data; 2] {
    [Data::exact(shape, seed), Data::random(shape, seed)]
}

const LAYERS: [(usize, usize, usize); 3] = [(4096, 4096, 1), (4096, 14336, 1), (1024, 28672, 1)];

fn contest_and_layer_shapes(gpu: &Gpu, subject: &Subject) {
    let f16 = |case| Case {
        output: FloatType::F16,
        padded: true,
        ..case
    };
    let all = CONTEST_TESTS.iter().chain(&CONTEST_BENCHMARKS).chain(&LAYERS);
    let mut taken = 0;
    for shape in all.map(|&(m, k, l)| Shape::gemv(m, k, l).unwrap()) {
        let data = Data::shared(shape);
        let tiled = Case {
            weight_layout: ScaleLayout::Tiled128x4,
            vector_layout: ScaleLayout::Tiled128x4,
            ..CASE
        };
        let on = OnDevice::new(gpu, &data[0], tiled);
        if on.job(false, |job| subject.kernel.available(job)).is_err() {
            continue;
        }
        taken += 1;
        for data in &data[..] {
            for mut on in subject.cases(gpu, data, f16) {
                for (config, chained) in subject.defaults(&on) {
                    on.assert_right(config, chained);
                }
            }
        }
    }
    assert!(taken > 10, "only {taken} shapes");
    // The contest's own data and tolerance.
    for &(m, k, l) in &CONTEST_TESTS {
        let shape = Shape::gemv(m, k, l).unwrap();
        let data = Data::contest(shape);
        let on = OnDevice::new(gpu, &data, CASE);
        if on.job(false, |job| subject.kernel.available(job)).is_err() {
            continue;
        }
        for mut on in subject.cases(gpu, &data, f16) {
            let (config, _) = subject.defaults(&on)[0];
            let y = on.numbers(config, false);
            for (y, &c) in y.iter().zip(&data.truth.y) {
                assert!((y - c).abs() <= contest_tolerance(c), "{shape} {y} {c}");
            }
        }
    }
}

fn odd_shapes(gpu: &Gpu, subject: &Subject) {
    for (i, shape) in shapes(&(subject.odd)()).enumerate() {
        for data in both(shape, i as u64) {
            for output in FloatType::ALL {
                let with = |case| Case {
                    output,
                    padded: i % 2 == 0,
                    ..case
                };
                for mut on in subject.cases(gpu, &data, with) {
                    let (config, chained) = subject.defaults(&on)[i / 2 % 2];
                    on.assert_right(config, chained);
                }
            }
        }
    }
}

fn every_kind_of_config(gpu: &Gpu, subject: &Subject) {
    let mut kinds = BTreeSet::new();
    let ctas = [1, 3, 7, gpu.info.multiprocessors, u32::MAX];
    for (i, shape) in shapes(subject.every).enumerate() {
        for data in both(shape, i as u64) {
            for mut on in subject.cases(gpu, &data, |case| case) {
                for config in subject.legal(&on, &ctas) {
                    kinds.insert((subject.kind)(&config));
                    on.assert_right(config, false);
                }
            }
        }
    }
    for &kind in subject.kinds {
        assert!(kinds.contains(kind), "{kind:?} was not tried: {kinds:?}");
    }
}

/// Configs that are worth measuring, alone and in chains: of exact data all give the same.
fn every_candidate(gpu: &Gpu, subject: &Subject) {
    for shape in shapes(&[(4096, 1, 4096, 1), (384, 1, 7168, 2), (300, 3, 1056, 1), (256, 11, 2048, 2)]) {
        let data = both(shape, 4);
        let probe = OnDevice::new(gpu, &data[0], Case {
            weight_layout: ScaleLayout::Tiled128x4,
            vector_layout: ScaleLayout::Tiled128x4,
            ..CASE
        });
        if probe.job(false, |job| subject.kernel.available(job)).is_err() {
            continue;
        }
        for data in &data {
            for mut on in subject.cases(gpu, data, |case| case) {
                for chained in [false, true] {
                    for config in on.job(chained, |job| subject.kernel.candidates(job)) {
                        on.assert_right(config, chained);
                    }
                }
            }
        }
    }
}

/// Groups and warps that have many tiles or units, and queues that go round many times.
fn few_ctas_and_many_rows(gpu: &Gpu, subject: &Subject) {
    for (i, shape) in shapes(subject.tall).enumerate() {
        for data in both(shape, 5 + i as u64) {
            for mut on in subject.cases(gpu, &data, |case| case) {
                for config in subject.legal(&on, &[2, 3, 5, 9]).into_iter().step_by(5) {
                    on.assert_right(config, false);
                }
            }
        }
    }
}

fn more_batches_than_a_grid_has(gpu: &Gpu, subject: &Subject) {
    for (m, k) in [(2, 32), (4, 256)] {
        let data = Data::exact(Shape::gemv(m, k, 70_000).unwrap(), 12);
        // Where whole atoms of rows are asked for, these shapes have none.
        for layout in ScaleLayout::ALL {
            let case = Case {
                weight_layout: layout,
                vector_layout: layout,
                ..CASE
            };
            let mut on = OnDevice::new(gpu, &data, case);
            if on.job(false, |job| subject.kernel.available(job)).is_ok() {
                for (config, chained) in subject.defaults(&on) {
                    on.assert_right(config, chained);
                }
            }
        }
    }
}

/// Byte offsets past 2^32. The batches are zero but for the last.
fn more_than_four_gigabytes(gpu: &Gpu, subject: &Subject) {
    let (m, k, l) = (4096, 16384, 130);
    let shape = Shape::gemv(m, k, l).unwrap();
    assert!(shape.weight_code_bytes() > 1 << 32);
    let one = Data::exact(Shape::gemv(m, k, 1).unwrap(), 13);
    let layout = ScaleLayout::Tiled128x4;
    let w = one.problem.weights(layout).unwrap();
    let x = one.problem.vectors(layout).unwrap();
    // The last of many batches, the others zero.
    let last = |bytes: &[u8]| -> CudaSlice<u8> {
        let mut all = gpu.stream.alloc_zeros(l * bytes.len()).unwrap();
        let at = (l - 1) * bytes.len();
        gpu.stream.memcpy_htod(bytes, &mut all.slice_mut(at..)).unwrap();
        all
    };
    let (codes, scales) = (last(w.codes), last(&w.scales));
    let (x_codes, x_scales) = (gpu.upload(&x.codes.repeat(l)), gpu.upload(&x.scales.repeat(l)));
    let y = gpu.upload(&vec![f32::NAN; shape.outputs()]);
    let weights = raw::RawWeights {
        codes: gpu.address(&codes),
        scales: gpu.address(&scales),
        layout,
        global: w.global(),
        row_alpha: 0,
        row_alpha_batch_stride: 0,
    };
    let strides = |row, batch| Strides { row, batch };
    let vectors = RawVectors::Nvfp4 {
        codes: gpu.address(&x_codes),
        code_strides: strides(k / 2, x.codes.len()),
        scales: gpu.address(&x_scales),
        layout,
        scale_strides: strides(k / 16, x.scales.len()),
        global: GlobalScale::ONE,
        vector_alpha: 0,
    };
    let output = raw::RawOutput {
        address: gpu.address(&y),
        element: FloatType::F32,
    };
    let call = Call::new(&shape, &weights, &vectors, &output).unwrap();
    let options = nvfp4_gemv::Options::new().kernel(subject.kernel);
    // SAFETY: all buffers live until the copy below has waited for the kernel.
    unsafe { raw::gemv(&call, &gpu.info, &options, gpu.handle()) }.unwrap();
    let y = gpu.stream.clone_dtoh(&y).unwrap();
    let (zeros, last) = y.split_at((l - 1) * m);
    assert!(zeros.iter().all(|&y| y == 0.0));
    assert!(last.iter().map(|&y| f64::from(y)).eq(one.truth.y.iter().copied()));
}

fn edge_cases(gpu: &Gpu, subject: &Subject) {
    for edge in EdgeCase::ALL {
        for shape in shapes(&[(130, 1, 4096, 1), (128, 1, 256, 2), (33, 3, 288, 2)]) {
            let data = Data::edge(shape, edge, 7);
            for case in Case::all() {
                let mut on = OnDevice::new(gpu, &data, case);
                if on.job(false, |job| subject.kernel.available(job)).is_ok() {
                    let (config, _) = subject.defaults(&on)[0];
                    on.assert_right(config, false);
                }
            }
        }
    }
}

/// Factors of each batch's rows and of each vector, in all kinds of configs.
fn factors_of_rows_and_vectors(gpu: &Gpu, subject: &Subject) {
    for shape in shapes(&[(37, 11, 512, 3), (128, 1, 512, 3)]) {
        let data = Data::alphas(shape);
        for case in Case::all().filter(|case| case.activation == Activation::Nvfp4) {
            let mut on = OnDevice::new(gpu, &data, case);
            if on.job(false, |job| subject.kernel.available(job)).is_ok() {
                for config in subject.legal(&on, &[1, 3, 7]) {
                    on.assert_right(config, false);
                }
            }
        }
    }
}

/// Codes 8 and 16 bytes behind a boundary: right, or refused.
fn less_aligned(gpu: &Gpu, subject: &Subject) {
    for offset in [8, 16, 32] {
        for shape in shapes(&[(300, 1, 4096, 1), (129, 3, 1056, 2)]) {
            for data in both(shape, 9) {
                for case in Case::all().map(|case| Case { offset, ..case }) {
                    let mut on = OnDevice::new(gpu, &data, case);
                    match on.job(false, |job| subject.kernel.default_config(job)) {
                        Ok(config) => on.assert_right(config, false),
                        // Only the smallest alignment has kernels that do not take it.
                        Err(nvfp4_gemv::Refusal::Alignment { .. }) => assert!(offset < 32),
                        Err(_) => {}
                    }
                }
            }
        }
    }
}

fn a_hundred_repeats(gpu: &Gpu, subject: &Subject) {
    for shape in shapes(&[(2432, 1, 4608, 2), (130, 7, 4352, 3), (4096, 1, 4096, 1), (384, 1, 7168, 2)]) {
        let data = Data::random(shape, 11);
        for case in Case::all() {
            let mut on = OnDevice::new(gpu, &data, case);
            if on.job(false, |job| subject.kernel.available(job)).is_err() {
                continue;
            }
            let some = subject.legal(&on, &[3, gpu.info.multiprocessors]);
            let some = some.into_iter().step_by(11).map(|config| (config, false));
            for (config, chained) in subject.defaults(&on).into_iter().chain(some) {
                let first = on.run(config, chained);
                for _ in 1..34 {
                    // Three launches each.
                    assert!(on.run(config, chained) == first, "{shape} {case:?} {config:?}");
                }
            }
        }
    }
}

/// Each context loads its kernels: the same bits in the primary one, in another, and in the first again.
fn in_another_context(gpu: &Gpu, subject: &Subject) {
    // More shared memory than a kernel has unasked.
    let shape = Shape::gemv(256, 8192, 1).unwrap();
    let data = Data::random(shape, 15);
    let tiled = Case {
        weight_layout: ScaleLayout::Tiled128x4,
        vector_layout: ScaleLayout::Tiled128x4,
        ..CASE
    };
    let run = |gpu: &Gpu| {
        let mut on = OnDevice::new(gpu, &data, tiled);
        let bits = subject.defaults(&on).map(|(config, chained)| on.run(config, chained));
        gpu.stream.synchronize().unwrap();
        bits
    };
    let first = run(gpu);
    for _ in 0..2 {
        assert!(run(&Gpu::in_another_context()) == first);
        assert!(run(gpu) == first);
    }
}

/// Launches back to back, each reading weights before the one before has ended, captured into a graph that is
/// replayed a thousand times. They give the bits of launches that wait. Every output is written in each of four
/// rounds: a store that does not wait for the previous grid is found out.
fn chained_in_a_graph(gpu: &Gpu, subject: &Subject) {
    let sizes = [(300, 2, 1056, 2), (4096, 1, 4096, 1), (129, 11, 96, 3), (300, 1, 1024, 1), (128, 1, 256, 3)];
    let data: Vec<Data> = shapes(&sizes).map(|shape| Data::random(shape, 14)).collect();
    let mut works = Vec::new();
    for data in &data {
        for case in Case::all() {
            let mut on = OnDevice::new(gpu, data, case);
            if on.job(false, |job| subject.kernel.available(job)).is_ok() {
                let (config, _) = subject.defaults(&on)[1];
                let isolated = on.run(config, false);
                on.poison();
                works.push((on, options(config, true), isolated));
            }
        }
    }
    assert!(!works.is_empty());
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
                let what = || format!("{} {options:?}", on.call.shape());
                assert!(&on.download() == isolated, "{}", what());
                on.poison();
            }
        }
    }
}

/// bf16 vectors quantised by the kernel right before, which the chained launch overlaps with. What it writes is
/// poisoned first: scales that are read too early are NaN. Every round has other vectors.
fn vectors_of_the_kernel_before(gpu: &Gpu, subject: &Subject) {
    for shape in shapes(&[(1000, 3, 1056, 2), (1024, 1, 1024, 2)]) {
        for layout in ScaleLayout::ALL {
            follows(gpu, subject, shape, layout);
        }
    }
}

fn follows(gpu: &Gpu, subject: &Subject, shape: Shape, layout: ScaleLayout) {
    let data = Data::random(shape, 31);
    let case = Case {
        weight_layout: layout,
        vector_layout: layout,
        ..CASE
    };
    let mut on = OnDevice::new(gpu, &data, case);
    if on.job(false, |job| subject.kernel.available(job)).is_err() {
        return;
    }
    let (count, k) = (shape.l() * shape.n(), shape.k());
    let strides = |row: usize| Strides {
        row,
        batch: shape.n() * row,
    };
    let scale_bytes = layout.bytes(shape.n(), shape.blocks());
    let mut x = gpu.upload(&vec![bf16::ZERO; count * k]);
    let poison = |bytes: usize| vec![0x7f_u8; bytes];
    let mut codes = gpu.upload(&poison(count * k / 2));
    let mut scales = gpu.upload(&poison(shape.l() * scale_bytes));
    let alpha = gpu.upload(&vec![f32::NAN; count]);
    let quantize = Quantize {
        element: FloatType::Bf16,
        values: gpu.address(&x),
        strides: strides(2 * k),
        global: Global::Computed,
        codes: gpu.address(&codes),
        scales: gpu.address(&scales),
        layout,
        vector_alpha: gpu.address(&alpha),
    };
    on.replace_vectors(RawVectors::Nvfp4 {
        codes: quantize.codes,
        code_strides: strides(k / 2),
        scales: quantize.scales,
        layout,
        scale_strides: Strides {
            row: shape.blocks(),
            batch: scale_bytes,
        },
        global: GlobalScale::ONE,
        vector_alpha: quantize.vector_alpha,
    });
    let (config, _) = subject.defaults(&on)[1];
    for round in 0..50 {
        let mut rng = fastrand::Rng::with_seed(round);
        let values: Vec<bf16> = (0..count * k)
            .map(|_| bf16::from_f32(rng.f32() * 2.0 - 1.0))
            .collect();
        gpu.stream.memcpy_htod(&values, &mut x).unwrap();
        gpu.stream.memcpy_htod(&poison(count * k / 2), &mut codes).unwrap();
        gpu.stream.memcpy_htod(&poison(shape.l() * scale_bytes), &mut scales).unwrap();
        on.poison();
        // SAFETY: the buffers have the sizes that the shape asks for, and outlive the work.
        unsafe { raw::quantize(&shape, &quantize, gpu.handle()) }.unwrap();
        on.enqueue(&options(config, true)).unwrap();
        let y = on.download();
        if round % 10 != 0 {
            continue;
        }
        let host = quantize_vectors(&values, count, k).unwrap();
        let w = data.problem.weights(ScaleLayout::Linear).unwrap();
        let truth = gemv(&shape, &w.view().unwrap(), &host.vectors()).unwrap();
        let roundings = config.roundings(&shape, Activation::Nvfp4);
        let numbers = y.as_chunks::<4>().0.iter().map(|y| f64::from(f32::from_le_bytes(*y)));
        for (i, y) in numbers.enumerate() {
            let (true_y, magnitude) = (truth.y[i], truth.magnitude[i]);
            let bound = error_bound(true_y, magnitude, roundings, FloatType::F32);
            assert!(
                (y - true_y).abs() <= bound,
                "{config:?} round {round} element {i}: {y}, true {true_y}"
            );
        }
    }
}
