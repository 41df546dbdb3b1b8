//! Errors of a program that would compile kernels, without NVRTC.

use nvfp4_gemv::jit::{self, Cache, NvrtcError};
use nvfp4_gemv::kernel::relayout;
use nvfp4_gemv::{Error, ScaleLayout, Shape};

/// One test, alone in its process: it changes the environment, and what was found stays for as long as the process
/// lives.
#[test]
fn a_missing_library_is_a_typed_error_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: no other thread of this process reads the environment.
    unsafe { std::env::set_var(jit::LIBRARY_VARIABLE, folder.path()) };

    let missing = jit::library().unwrap_err();
    let NvrtcError::Missing { looked_at } = &missing else {
        panic!("{missing:?}");
    };
    // No other place is tried where one was named.
    assert_eq!(looked_at.len(), 1, "{looked_at:?}");
    let named = folder.path().display().to_string();
    assert!(
        looked_at[0].contains(&named) && looked_at[0].contains("no libnvrtc.so"),
        "{looked_at:?}"
    );

    let shape = Shape::matrix(128, 256).unwrap();
    let launch = relayout::launch(&shape, ScaleLayout::Tiled128x4, 1 << 40, 2 << 40);
    let error = jit::compile(&launch, "90a", &Cache::none()).unwrap_err();
    assert_eq!(
        error,
        Error::Jit {
            kernel: "relayout_to_128x4",
            error: Box::new(missing)
        }
    );
    let text = error.to_string();
    for part in [
        "relayout_to_128x4",
        "NVRTC is not there",
        "nvidia-cuda-nvrtc",
        jit::LIBRARY_VARIABLE,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
