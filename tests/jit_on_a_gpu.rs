//! Time of compilation of kernels at run time, on a GPU for which this program has no machine code.
//!
//! One trial, alone in its process: it asks which kernels the process has compiled.

use std::process::ExitCode;

use cudarc::driver::{CudaContext, sys};
use nvfp4_gemv::{
    Error, GlobalScale, Options, Output, PreparedGemvOnDevice, ScaleLayout, Shape, Vectors,
    Weights, gemv_on_device, jit, raw,
};

fn main() -> ExitCode {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // SAFETY: this process has no other thread yet.
    unsafe { std::env::set_var(jit::CACHE_VARIABLE, folder.path()) };
    let kept = folder.path().to_path_buf();
    let files = move || std::fs::read_dir(&kept).expect("a folder").count();
    let run = move || a_captured_call_compiles_nothing(files);
    let trial = nvfp4_gemv_trials::trial("a_captured_call_compiles_nothing", missing, run);
    nvfp4_gemv_trials::run(vec![trial])
}

/// Reason why the test cannot run.
fn missing() -> Option<String> {
    let gpu = match raw::device_count().and_then(|_| raw::gpu(0)) {
        Ok(gpu) => gpu,
        Err(error) => return Some(format!("no GPU: {error}")),
    };
    if gpu.images == raw::COMPILED_ARCHS {
        return Some(format!("machine code for {} runs on it", gpu.images));
    }
    Some(jit::library().err()?.to_string())
}

fn a_captured_call_compiles_nothing(files: impl Fn() -> usize) {
    let context = CudaContext::new(0).unwrap();
    // SAFETY: all work goes to one stream, which is waited for.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    let shape = Shape::matrix(128, 256).unwrap();
    let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()]);
    let scales = vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)];
    let (codes, scales) = (codes.unwrap(), stream.clone_htod(&scales).unwrap());
    let weights = Weights::on_device(
        &shape,
        codes.as_view(),
        scales.as_view(),
        ScaleLayout::Linear,
        GlobalScale::ONE,
    )
    .unwrap();
    let x = stream.clone_htod(&vec![1.0f32; shape.k()]).unwrap();
    let vectors = Vectors::on_device(x.as_view());
    let mut y = stream.alloc_zeros::<f32>(shape.m()).unwrap();
    let options = Options::new();

    let mut captured = || {
        stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        let output = Output::on_device(y.as_view_mut());
        let result = gemv_on_device(&stream, &shape, &weights, &vectors, output, &options);
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        (result, stream.end_capture(flags).unwrap())
    };
    let (result, _) = captured();
    assert!(
        matches!(result, Err(Error::NotCompiled { .. })),
        "{result:?}"
    );
    assert_eq!(files(), 0, "nothing was compiled");

    // Preparing compiles, and enqueues nothing.
    let mut prepared_y = stream.alloc_zeros::<f32>(shape.m()).unwrap();
    let output = Output::on_device(prepared_y.as_view_mut());
    let prepared =
        PreparedGemvOnDevice::new(&stream, &shape, &weights, &vectors, output, &options).unwrap();
    let compiled = files();
    assert!(compiled > 0, "{:?}", prepared.choice());

    // Now the process has the kernel.
    let (result, graph) = captured();
    assert_eq!(result.unwrap().config, prepared.choice().config);
    graph.expect("the capture holds a launch").launch().unwrap();
    let output = Output::on_device(prepared_y.as_view_mut());
    prepared.run(&stream, &weights, &vectors, output).unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), [256.0; 128]);
    assert_eq!(stream.clone_dtoh(&prepared_y).unwrap(), [256.0; 128]);
    assert_eq!(files(), compiled, "launches compile nothing");
}
