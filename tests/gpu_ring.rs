//! The kernel whose rows come in bulk copies, on a real device. Without one, every test says why it is skipped.
#![cfg(feature = "cuda")]

mod device;

use cudarc::driver::CudaSlice;
use device::{
    Case, Data, Gpu, OnDevice, Uploaded, assert_alphas, assert_dependent_in_a_graph,
    assert_follows_the_quantiser, gpu_or_skip, layouts, upload,
};
use nvfp4_gemv::problem::{CONTEST_BENCHMARKS, CONTEST_TESTS, EdgeCase, Problem};
use nvfp4_gemv::{
    Config, Error, FloatType, Output, Path, PreparedGemv, RingConfig, RingTarget, ScaleLayout,
    Shape, gemv_on_device_chained, gemv_on_device_with,
};

/// The path that these tests are about.
const CASE: Case = Case {
    path: Some(Path::CudaCore),
    ..device::CASE
};

macro_rules! hopper_or_skip {
    () => {{
        let gpu = gpu_or_skip!();
        if gpu.info.compute_capability < (9, 0) {
            eprintln!("skipped: bulk copies need compute capability 9.0");
            return;
        }
        gpu
    }};
}

fn target(gpu: &Gpu, case: Case) -> RingTarget {
    RingTarget {
        tiled: case.weight_layout == ScaleLayout::Tiled128x4,
        multiprocessors: gpu.info.multiprocessors,
        shared_bytes: gpu.info.shared_bytes,
    }
}

fn cases() -> impl Iterator<Item = Case> {
    layouts().map(|(weight_layout, vector_layout)| Case {
        weight_layout,
        vector_layout,
        ..CASE
    })
}

/// Legal cuts of every kind, the default first: all kernels, groups, depths and granules; CTAs that have many
/// units and parts of several batches, and as many CTAs as there are granules.
fn cuts(shape: &Shape, target: &RingTarget) -> Vec<RingConfig> {
    let mut cuts: Vec<RingConfig> = RingConfig::for_problem(shape, target).into_iter().collect();
    let rows = (shape.m() * shape.l()) as u32;
    let mut turn = 0;
    for chunks in [1, 2] {
        for groups in [1, 2, 3, 4, 7, 8, 16] {
            for rows_of_stage in [1, 2, 4] {
                for depth in [1, 2, 3, 5, 8] {
                    turn += 1;
                    let granule = if turn % 2 == 0 { 4 } else { 1 };
                    let ctas = [1, 3, 7, target.multiprocessors, rows / granule][turn % 5];
                    cuts.push(RingConfig {
                        chunks,
                        groups,
                        rows: rows_of_stage,
                        depth,
                        granule,
                        cached: turn % 3 == 0,
                        ctas,
                        dependent: false,
                    });
                }
            }
        }
    }
    cuts.retain(|cut| cut.is_legal(shape, target));
    cuts
}

#[test]
fn contest_and_layer_shapes() {
    let gpu = hopper_or_skip!();
    let layers = [(4096, 4096, 1), (4096, 14336, 1), (1024, 28672, 1)];
    for &(m, k, l) in CONTEST_TESTS
        .iter()
        .chain(&CONTEST_BENCHMARKS)
        .chain(&layers)
    {
        let shape = Shape::gemv(m, k, l).unwrap();
        for case in cases() {
            let case = Case {
                output: FloatType::F16,
                padded: true,
                ..case
            };
            if let Some(default) = RingConfig::for_problem(&shape, &target(&gpu, case)) {
                Data::new(shape, 1).assert_right(&gpu, case, &[default]);
            }
        }
    }
}

#[test]
fn every_kind_of_cut() {
    let gpu = hopper_or_skip!();
    let mut kinds = std::collections::BTreeSet::new();
    for (m, k, l) in [
        (301, 28672, 1), // 14 warps a row with two chunks
        (384, 3584, 3),  // 3.5 and 1.75 warps
        (77, 4096, 1),
        (1024, 2048, 2),
        (130, 256, 1), // a quarter of a warp
        (128, 1280, 4),
        (1000, 7168, 1),
    ] {
        let shape = Shape::gemv(m, k, l).unwrap();
        let data = Data::new(shape, 3);
        for case in cases() {
            let cuts = cuts(&shape, &target(&gpu, case));
            kinds.extend(cuts.iter().map(|cut| (cut.chunks, cut.rows, cut.groups)));
            data.assert_right(&gpu, case, &cuts);
        }
    }
    for kind in [(1, 1, 1), (1, 4, 16), (2, 2, 8), (2, 1, 2), (1, 2, 3)] {
        assert!(kinds.contains(&kind), "{kind:?} was not tried: {kinds:?}");
    }
}

/// Groups that have many units, rings that go round many times, more rows than threads.
#[test]
fn few_ctas_and_many_rows() {
    let gpu = hopper_or_skip!();
    for (m, k, l) in [(20_001, 256, 1), (4992, 1024, 3), (4999, 512, 1)] {
        let shape = Shape::gemv(m, k, l).unwrap();
        let data = Data::new(shape, 5);
        for case in cases() {
            let mut cuts = cuts(&shape, &target(&gpu, case));
            for cut in &mut cuts {
                cut.ctas = 2 + cut.ctas % 9;
            }
            cuts.retain(|cut| cut.is_legal(&shape, &target(&gpu, case)));
            let some: Vec<_> = cuts.into_iter().step_by(5).collect();
            data.assert_right(&gpu, case, &some);
        }
    }
}

#[test]
fn many_batches() {
    let gpu = hopper_or_skip!();
    let shape = Shape::gemv(4, 256, 70_000).unwrap();
    let problem = Problem::integers(shape, 12);
    let truth = problem.reference().unwrap();
    let target = target(&gpu, CASE);
    let mut on_device = OnDevice::new(&gpu, &problem, CASE);
    for config in [1, 4].map(|granule| RingConfig {
        granule,
        ..RingConfig::for_problem(&shape, &target).unwrap()
    }) {
        on_device = on_device.cut(config);
        on_device.assert_exact(&truth);
    }
}

#[test]
fn edge_cases() {
    let gpu = hopper_or_skip!();
    for edge in EdgeCase::ALL {
        for (m, k, l) in [(130, 4096, 1), (128, 256, 2)] {
            let shape = Shape::gemv(m, k, l).unwrap();
            let problem = Problem::edge_case(shape, edge, 7);
            let truth = problem.reference().unwrap();
            for case in cases() {
                let default = RingConfig::for_problem(&shape, &target(&gpu, case)).unwrap();
                OnDevice::new(&gpu, &problem, case)
                    .cut(default)
                    .assert_in_bound(&truth);
            }
        }
    }
}

#[test]
fn a_hundred_repeats_give_the_same_bits() {
    let gpu = hopper_or_skip!();
    for (m, k, l) in [(2432, 4608, 1), (4096, 4096, 1), (1024, 2048, 3)] {
        let shape = Shape::gemv(m, k, l).unwrap();
        let problem = Problem::full_range(shape, 11);
        for case in cases() {
            for config in cuts(&shape, &target(&gpu, case)).into_iter().step_by(11) {
                OnDevice::new(&gpu, &problem, case)
                    .cut(config)
                    .assert_repeats();
            }
        }
    }
}

#[test]
fn row_alpha_of_each_batch_and_alpha_of_each_vector() {
    let gpu = hopper_or_skip!();
    let shape = Shape::gemv(36, 512, 3).unwrap();
    for config in cuts(&shape, &target(&gpu, CASE)) {
        let case = Case {
            config: Some(config.into()),
            ..CASE
        };
        assert_alphas(&gpu, shape, case);
    }
}

#[test]
fn dependent_launches_replayed_from_a_graph() {
    let gpu = hopper_or_skip!().without_events();
    let mut works = Vec::new();
    for (m, k, l) in [(300, 1024, 1), (4096, 4096, 1), (128, 256, 3)] {
        let shape = Shape::gemv(m, k, l).unwrap();
        let problem = Problem::full_range(shape, 14);
        for case in cases() {
            let default = cuts(&shape, &target(&gpu, case))[0];
            works.push(OnDevice::new(&gpu, &problem, case).cut(default));
        }
    }
    assert_dependent_in_a_graph(&gpu, &works);
}

#[test]
fn vectors_of_the_kernel_before() {
    let gpu = hopper_or_skip!();
    let shape = Shape::gemv(1024, 1024, 2).unwrap();
    for layout in ScaleLayout::ALL {
        let case = Case {
            weight_layout: layout,
            vector_layout: layout,
            ..CASE
        };
        let default = cuts(&shape, &target(&gpu, case))[0].into();
        assert_follows_the_quantiser(&gpu, shape, layout, default);
    }
}

/// Calls for chains, at once and prepared: the same dependent cut, and the exact answer.
#[test]
fn chained_calls_have_a_cut_of_their_own() {
    let gpu = hopper_or_skip!();
    let stream = &gpu.stream;
    for (m, k, l) in [(4096, 4096, 1), (300, 1024, 1), (128, 512, 3)] {
        let shape = Shape::gemv(m, k, l).unwrap();
        let problem = Problem::integers(shape, 15);
        let truth = problem.reference().unwrap();
        let poison = vec![f32::NAN; shape.outputs()];
        for layout in ScaleLayout::ALL {
            let uploaded = Uploaded::new(stream, &problem, layout, layout, false);
            let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
            let mut y = upload(stream, &poison);
            let exact = |y: &CudaSlice<f32>| {
                let y = stream.clone_dtoh(y).unwrap();
                assert!(y.into_iter().map(f64::from).eq(truth.y.iter().copied()));
            };
            let output = Output::F32(y.as_view_mut());
            // SAFETY: copies brought the weights to the device, and no kernel writes them.
            let launched = unsafe {
                gemv_on_device_chained(CASE.path, None, stream, &shape, &weights, &vectors, output)
            }
            .unwrap();
            assert!(matches!(launched.config, Config::Ring(cut) if cut.dependent));
            exact(&y);

            y = upload(stream, &poison);
            let output = Output::F32(y.as_view_mut());
            // SAFETY: as above.
            let prepared = unsafe {
                PreparedGemv::chained(CASE.path, None, stream, &shape, &weights, &vectors, output)
            }
            .unwrap();
            assert_eq!(prepared.launched().config, launched.config);
            let output = Output::F32(y.as_view_mut());
            prepared.launch(stream, &weights, &vectors, output).unwrap();
            exact(&y);

            // Where nothing is promised, a chained configuration is refused before anything is enqueued.
            let chained = Some(launched.config);
            let output = Output::F32(y.as_view_mut());
            let refused =
                gemv_on_device_with(None, chained, stream, &shape, &weights, &vectors, output);
            assert!(matches!(refused, Err(Error::ChainedConfig { .. })));
            let output = Output::F32(y.as_view_mut());
            let refused =
                PreparedGemv::with(None, chained, stream, &shape, &weights, &vectors, output);
            assert!(matches!(refused, Err(Error::ChainedConfig { .. })));
            exact(&y);
        }
    }
}
