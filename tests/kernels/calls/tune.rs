//! Tuning on a GPU: what is found can be run, kept, and used by calls that are given it.

use std::time::Duration;

use cudarc::driver::{CudaSlice, sys};
use nvfp4_gemv::kernel::Job;
use nvfp4_gemv::tune::{Limits, TuneError, Tuned, Tuner, launches_at_prepare};
use nvfp4_gemv::{
    Activation, Device, Dims, Error, GemvPath, Operands, Options, Output, PreparedGemvOnDevice,
    ScaleLayout, Shape, Target, Workspace, gemv_on_device, select,
};
use nvfp4_gemv_cli::problem::Problem;

use crate::support::device::{Uploaded, into};
use crate::support::gpu::{Gpu, alone};

crate::trials! {
    gpu: what_is_found_is_used_and_right, every_kind_of_operands, what_was_tuned_elsewhere_is_refused,
        a_chain_is_tuned_as_a_whole, measured_when_prepared, nothing_is_measured_in_a_capture;
}

const TILED: ScaleLayout = ScaleLayout::Tiled128x4;

fn limits() -> Limits {
    Limits {
        time: Duration::from_millis(300),
        rounds: 5,
    }
}

fn what_is_found_is_used_and_right() {
    let gpu = Gpu::first();
    let _alone = alone();
    let mut tuner = Tuner::new(0).unwrap();
    let mut tuned = Tuned::new(tuner.machine(), "a test");
    let stream = &gpu.stream;
    // The tuner has a workspace, too.
    let workspace = Workspace::new(stream, 64 << 20).unwrap();
    for (m, n, k, l) in [(1024, 1, 4096, 1), (300, 3, 1056, 2), (256, 16, 512, 1)] {
        let shape = Shape::new(Dims { m, n, k, l }).unwrap();
        let operands = Operands::new(Activation::Nvfp4, TILED);
        let mut share = 0.0;
        let outcome = tuner
            .tune_with_chains(&shape, &operands, &limits(), |progress| {
                assert!(progress.alive > 0 && progress.share >= share);
                share = progress.share;
            })
            .unwrap();
        assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
        let best = outcome.entry.kernels[0];
        assert_eq!(best.config, outcome.ranking[0].0);
        let chained = best.chained.unwrap().config;
        assert!(outcome.chained.iter().any(|(one, _)| *one == chained));
        assert_eq!(chained.kernel(), best.kernel());
        // Another kernel may be the fastest in chains.
        let in_chains = outcome.entry.kernels.iter().filter_map(|of| of.chained);
        let fastest = in_chains.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let chained = fastest.unwrap().config;
        let found = outcome.entry.share(&best);
        assert!(found > 0.0 && found.is_finite(), "{shape}: {found}");
        tuned.insert(outcome.entry);

        let problem = Problem::integers(shape, 3);
        let truth = problem.reference().unwrap();
        let uploaded = Uploaded::new(&gpu, &problem, TILED, TILED, false);
        let (w, x) = (uploaded.weights(), uploaded.vectors());
        let mut y = gpu.upload(&vec![f32::NAN; shape.outputs()]);
        let options = Options::new().tuned(&tuned).without_environment();
        let options = options.workspace(Some(&workspace));
        // SAFETY: the weights were copied to the device, and no kernel writes them.
        let in_chains = unsafe { options.chained() };
        for (options, expected) in [(options, best.config), (in_chains, chained)] {
            let choice = gemv_on_device(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
            // The call finds the tuned entry unless a stride of this problem is not as aligned as the tuner's.
            let operands = uploaded.call(&gpu, &y).operands();
            if tuned.find(&shape, &operands).is_some() {
                assert_eq!(choice.config, Some(expected), "{shape}");
            }
            let result = stream.clone_dtoh(&y).unwrap().into_iter();
            let result: Vec<f64> = result.map(f64::from).collect();
            assert_eq!(result, truth.y, "{shape}");

            let prepared =
                PreparedGemvOnDevice::new(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
            assert_eq!(*prepared.choice(), choice);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuned.jsonl");
    tuned.save(&file).unwrap();
    assert_eq!(Tuned::load(&file, tuner.machine()).unwrap(), tuned);
}

/// Every activation and layout has candidates, and all of them run.
fn every_kind_of_operands() {
    let _alone = alone();
    let mut tuner = Tuner::new(0).unwrap();
    let limits = Limits {
        time: Duration::ZERO,
        rounds: 1,
    };
    for activation in Activation::ALL {
        for layout in ScaleLayout::ALL {
            for (m, n, k, l) in [(130, 1, 48, 1), (512, 5, 2048, 2), (64, 16, 8192, 1)] {
                let shape = Shape::new(Dims { m, n, k, l }).unwrap();
                let operands = Operands::new(activation, layout);
                let outcome = tuner.tune(&shape, &operands, &limits, |_| ()).unwrap();
                assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
                let mut best = outcome.entry.kernels.iter();
                assert!(best.any(|timed| timed.kernel().path() == GemvPath::CudaCore));
            }
        }
    }
}

fn a_chain_is_tuned_as_a_whole() {
    let gpu = Gpu::first();
    let _alone = alone();
    let mut tuner = Tuner::new(0).unwrap();
    let layer = |m, k, activation| {
        let shape = Shape::matrix(m, k).unwrap();
        (shape, Operands::new(activation, ScaleLayout::Linear))
    };
    let (wide, tall) = (
        layer(256, 1024, Activation::Nvfp4),
        layer(1024, 256, Activation::F16),
    );
    let layers = [wide, tall, tall, wide];
    if gpu.info.compute_capability < (9, 0) {
        let refused = tuner.tune_chain(&layers, &limits(), |_| ());
        assert!(matches!(
            refused,
            Err(TuneError::NoChains { layers: 4, .. })
        ));
        return;
    }
    let mut share = 0.0;
    let found = tuner
        .tune_chain(&layers, &limits(), |progress| {
            assert!(progress.alive > 0 && progress.share >= share && progress.share <= 1.0);
            share = progress.share;
        })
        .unwrap();
    assert_eq!(found.layers, [0, 1, 1, 0]);
    for seconds in [found.seconds, found.apart_seconds, found.chosen_seconds] {
        assert!(seconds > 0.0 && seconds.is_finite());
    }
    // Whoever is given the entries chains with what was found.
    let mut tuned = Tuned::new(tuner.machine(), "a test");
    for outcome in &found.problems {
        tuned.insert(outcome.entry.clone());
    }
    // SAFETY: nothing is launched with these options.
    let options = unsafe { Options::new().tuned(&tuned).without_environment().chained() };
    for (i, (shape, _)) in [wide, tall].into_iter().enumerate() {
        let operands = &found.problems[i].entry.operands;
        let choice = select(&shape, operands, Target::Gpu(&gpu.info), &options).unwrap();
        assert_eq!(choice.config, Some(found.configs[i]), "{shape}");
    }
    let none = tuner.tune_chain(&[], &limits(), |_| ());
    assert!(matches!(none, Err(TuneError::NoChains { layers: 0, .. })));
}

fn what_was_tuned_elsewhere_is_refused() {
    let gpu = Gpu::first();
    let mut tuner = {
        let _alone = alone();
        Tuner::new(0).unwrap()
    };
    let mut machine = tuner.machine().clone();
    machine.gpu.name = "NVIDIA Other".into();
    let tuned = Tuned::new(&machine, "a test");
    let stream = &gpu.stream;
    let shape = Shape::matrix(64, 256).unwrap();
    let problem = Problem::integers(shape, 1);
    let uploaded = Uploaded::new(&gpu, &problem, TILED, TILED, false);
    let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
    let mut y = gpu.upload(&vec![f32::NAN; shape.outputs()]);
    let options = Options::new().tuned(&tuned);
    let result = gemv_on_device(stream, &shape, &weights, &vectors, into(&mut y), &options);
    assert!(matches!(result, Err(Error::TunedElsewhere { .. })));

    let empty = Shape::matrix(0, 256).unwrap();
    let operands = Operands::new(Activation::Nvfp4, TILED);
    let nothing = tuner.tune(&empty, &operands, &limits(), |_| ());
    assert!(matches!(nothing, Err(TuneError::NoCandidates { .. })));
}

/// A config that can run wins, and is taken from then on. The caller's output is as it was, also where results are added to
/// it, and results are right.
fn measured_when_prepared() {
    fn to(y: &mut CudaSlice<f32>) -> Output<'_, Device> {
        Output::on_device(y.as_view_mut()).accumulating()
    }
    let gpu = Gpu::first();
    let _alone = alone();
    let stream = &gpu.stream;
    let workspace = Workspace::new(stream, 64 << 20).unwrap();
    let machine = nvfp4_gemv::tune::machine(&gpu.info).unwrap();
    for (m, n, k, l) in [(1040, 1, 4096, 1), (300, 3, 1024, 2), (80, 16, 512, 1)] {
        let shape = Shape::new(Dims { m, n, k, l }).unwrap();
        let problem = Problem::integers(shape, 3);
        let truth = problem.reference().unwrap();
        let uploaded = Uploaded::new(&gpu, &problem, TILED, TILED, false);
        let (w, x) = (uploaded.weights(), uploaded.vectors());
        let before: Vec<f32> = (0..shape.outputs()).map(|i| (i % 7) as f32).collect();
        let asks = Options::new().without_environment().workspace(&workspace);
        // Nothing but what is always measured: two configs, a turn to begin with and another one, and the kernel that
        // only reads, four turns. Weights are small: a turn has 16 launches, or reads their 15 copies.
        let asks = asks.measure(Duration::ZERO);
        // SAFETY: the weights were copied to the device, and no kernel writes them.
        let in_chains = unsafe { asks.measure(Duration::from_millis(5)).chained() };
        let mut winners = Vec::new();
        for options in [asks, in_chains] {
            let mut y = gpu.upload(&before);
            let first = launches_at_prepare();
            let gemv = {
                let output = to(&mut y);
                PreparedGemvOnDevice::new(stream, &shape, &w, &x, output, &options).unwrap()
            };
            let launches = launches_at_prepare() - first;
            let overlap = options.is_chained() && gpu.info.compute_capability >= (9, 0);
            match (options.is_chained(), overlap) {
                (false, _) => assert_eq!(launches, 2 * 2 * 16 + 4 * 15, "{shape}"),
                // Launches that wait were measured, and a chain's are the same.
                (true, false) => assert_eq!(launches, 0, "{shape}"),
                // Two races of 16 configs and 16 turns at most.
                (true, true) => assert!(
                    (124..2 * 16 * 16 * 16 + 60).contains(&launches),
                    "{launches}"
                ),
            }
            stream.synchronize().unwrap();
            assert_eq!(stream.clone_dtoh(&y).unwrap(), before, "{shape}");
            let choice = *gemv.choice();
            assert!(
                choice
                    .reason
                    .to_string()
                    .contains("when a call was prepared"),
                "{choice:?}"
            );
            let operands = uploaded.call(&gpu, &y).operands();
            let operands = operands.with_workspace(workspace.bytes());
            let job = Job::new(&shape, &operands, &gpu.info).chained(options.is_chained());
            assert_eq!(choice.config.unwrap().check(&job), Ok(()));
            winners.push((options, choice));

            gemv.run(stream, &w, &x, to(&mut y)).unwrap();
            let expected: Vec<f32> = truth
                .y
                .iter()
                .zip(&before)
                .map(|(y, r)| *y as f32 + r)
                .collect();
            assert_eq!(
                stream.clone_dtoh(&y).unwrap(),
                expected,
                "{shape} {choice:?}"
            );

            // Known from now on: to who prepares, and to who does not.
            let first = launches_at_prepare();
            let mut y = gpu.upload(&before);
            let again =
                PreparedGemvOnDevice::new(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
            assert_eq!(*again.choice(), choice);
            let unprepared =
                gemv_on_device(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
            assert_eq!(unprepared, choice);
            assert_eq!(launches_at_prepare(), first);
        }
        // A file of it gives the same choices, and nothing is measured.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuned.jsonl");
        Tuned::remembered(&machine).save(&file).unwrap();
        let tuned = Tuned::load(&file, &machine).unwrap();
        let entry = tuned
            .find(&shape, &Operands::new(Activation::Nvfp4, TILED))
            .unwrap();
        assert!(entry.ceiling_seconds > 0.0 && entry.ceiling_seconds.is_finite());
        let (options, choice) = *winners.last().unwrap();
        let options = options.measure(None).tuned(&tuned);
        let mut y = gpu.upload(&before);
        let with_file = gemv_on_device(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
        assert_eq!(with_file.config, choice.config, "{shape}");
    }
}

/// A capture goes on, whether it is of the stream or of another one. Batches that select their matrix are refused, too.
fn nothing_is_measured_in_a_capture() {
    let gpu = Gpu::first();
    let _alone = alone();
    let stream = &gpu.stream;
    let shape = Shape::matrix(528, 1024).unwrap();
    let problem = Problem::integers(shape, 5);
    let truth = problem.reference().unwrap();
    let uploaded = Uploaded::new(&gpu, &problem, TILED, TILED, false);
    let (w, x) = (uploaded.weights(), uploaded.vectors());
    let mut y = gpu.upload(&vec![f32::NAN; shape.outputs()]);
    let asks = Options::new().measure(Duration::from_millis(1));
    let prepare = |y: &mut CudaSlice<f32>, options: &Options<'_>| {
        PreparedGemvOnDevice::new(stream, &shape, &w, &x, into(y), options)
    };
    let first = launches_at_prepare();
    let ids = gpu.upload(&[0]);
    let selecting = w.select_on_device(ids.as_view());
    let of_ids = PreparedGemvOnDevice::new(stream, &shape, &selecting, &x, into(&mut y), &asks);
    assert!(matches!(of_ids, Err(Error::Selected { .. })), "{of_ids:?}");

    let unmeasured = prepare(&mut y, &Options::new()).unwrap();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.synchronize().unwrap();
    stream.begin_capture(mode).unwrap();
    let refused = prepare(&mut y, &asks);
    let ran = unmeasured.run(stream, &w, &x, into(&mut y));
    let graph = stream.end_capture(flags).unwrap().unwrap();
    assert!(
        matches!(refused, Err(Error::MeasuredInCapture)),
        "{refused:?}"
    );
    ran.unwrap();
    assert_eq!(launches_at_prepare(), first);
    graph.launch().unwrap();
    let numbers = |y: &CudaSlice<f32>| -> Vec<f64> {
        let y = stream.clone_dtoh(y).unwrap();
        y.into_iter().map(f64::from).collect()
    };
    assert_eq!(numbers(&y), truth.y);

    // Meanwhile this thread captures another stream.
    let other = stream.context().new_stream().unwrap();
    other.begin_capture(mode).unwrap();
    let measured = prepare(&mut y, &asks);
    let ran = unmeasured.run(&other, &w, &x, into(&mut y));
    let graph = other.end_capture(flags).unwrap().unwrap();
    measured.unwrap();
    ran.unwrap();
    graph.launch().unwrap();
    other.synchronize().unwrap();
    assert_eq!(numbers(&y), truth.y);
    assert!(launches_at_prepare() > first);
}
