//! Tuning on a real device: what is found can be run, kept, and used by calls that are given it.
//! Without a device, every test says why it is skipped.
#![cfg(feature = "cuda")]

mod device;

use std::sync::Mutex;
use std::time::Duration;

use device::{Uploaded, alone, gpu_or_skip, upload};
use nvfp4_gemv::path::Operands;
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::tune::{Limits, TuneError, Tuned, Tuner};
use nvfp4_gemv::{
    Activation, Error, Output, Path, PreparedGemv, ScaleLayout, Shape, gemv_on_device_tuned,
};

const TILED: ScaleLayout = ScaleLayout::Tiled128x4;

/// Captures of tests that tune would meet those of others.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn limits() -> Limits {
    Limits {
        time: Duration::from_millis(300),
        rounds: 5,
    }
}

#[test]
fn what_is_found_is_used_and_right() {
    let gpu = gpu_or_skip!();
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let _alone = alone();
    let mut tuner = Tuner::new(0).unwrap();
    let mut tuned = Tuned::new(tuner.machine(), "a test");
    let stream = &gpu.stream;
    for (m, n, k, l) in [(1024, 1, 4096, 1), (300, 3, 1056, 2), (256, 16, 512, 1)] {
        let shape = Shape::new(m, n, k, l).unwrap();
        let operands = Operands::new(Activation::Nvfp4, TILED);
        let mut share = 0.0;
        let outcome = tuner
            .tune_with_chains(&shape, &operands, &limits(), |progress| {
                assert!(progress.alive > 0 && progress.share >= share);
                share = progress.share;
            })
            .unwrap();
        assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
        let best = outcome.entry.paths[0];
        assert_eq!(best.config, Some(outcome.ranking[0].0));
        let chained = best.chained.unwrap().config;
        assert!(outcome.chained.iter().any(|(one, _)| *one == chained));
        assert!(chained.is_dependent() && chained.path() == best.path);
        let found = outcome.entry.share(&best);
        assert!(found > 0.0 && found.is_finite(), "{shape}: {found}");
        tuned.insert(outcome.entry);

        let problem = Problem::integers(shape, 3);
        let truth = problem.reference().unwrap();
        let uploaded = Uploaded::new(stream, &problem, TILED, TILED, false);
        let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
        let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
        let output = Output::F32(y.as_view_mut());
        let launched =
            gemv_on_device_tuned(&tuned, stream, &shape, &weights, &vectors, output).unwrap();
        let used = tuned.find(&shape, &operands).map(|entry| entry.paths[0]);
        // Unless a stride of this problem is not as aligned as the tuner's.
        if let Some(used) = used {
            assert_eq!(launched.choice.path, used.path, "{shape}");
            assert_eq!(Some(launched.config), used.config);
        }
        let result = stream.clone_dtoh(&y).unwrap();
        let result: Vec<f64> = result.into_iter().map(f64::from).collect();
        assert_eq!(result, truth.y, "{shape}");

        let output = Output::F32(y.as_view_mut());
        let prepared =
            PreparedGemv::tuned(&tuned, stream, &shape, &weights, &vectors, output).unwrap();
        assert_eq!(prepared.launched(), launched);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuned.json");
    tuned.save(&file).unwrap();
    assert_eq!(Tuned::load(&file, tuner.machine()).unwrap(), tuned);
}

/// Every activation and layout has candidates, and all of them run.
#[test]
fn every_kind_of_operands() {
    let _gpu = gpu_or_skip!();
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let _alone = alone();
    let mut tuner = Tuner::new(0).unwrap();
    let limits = Limits {
        time: Duration::ZERO,
        rounds: 1,
    };
    for activation in Activation::ALL {
        for layout in ScaleLayout::ALL {
            for (m, n, k, l) in [(130, 1, 48, 1), (512, 5, 2048, 2), (64, 16, 8192, 1)] {
                let shape = Shape::new(m, n, k, l).unwrap();
                let operands = Operands::new(activation, layout);
                let outcome = tuner.tune(&shape, &operands, &limits, |_| ()).unwrap();
                assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
                let paths = &outcome.entry.paths;
                assert!(paths.iter().any(|timed| timed.path == Path::CudaCore));
            }
        }
    }
}

#[test]
fn what_was_tuned_elsewhere_is_refused() {
    let gpu = gpu_or_skip!();
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let mut tuner = {
        let _alone = alone();
        Tuner::new(0).unwrap()
    };
    let mut machine = tuner.machine().clone();
    machine.gpu.name = "NVIDIA Other".into();
    let tuned = Tuned::new(&machine, "a test");
    let stream = &gpu.stream;
    let shape = Shape::gemv(64, 256, 1).unwrap();
    let problem = Problem::integers(shape, 1);
    let uploaded = Uploaded::new(stream, &problem, TILED, TILED, false);
    let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
    let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
    let output = Output::F32(y.as_view_mut());
    let result = gemv_on_device_tuned(&tuned, stream, &shape, &weights, &vectors, output);
    assert!(matches!(result, Err(Error::TunedElsewhere { .. })));

    let empty = Shape::gemv(0, 256, 1).unwrap();
    let operands = Operands::new(Activation::Nvfp4, TILED);
    let nothing = tuner.tune(&empty, &operands, &limits(), |_| ());
    assert!(matches!(nothing, Err(TuneError::NoCandidates { .. })));
}
