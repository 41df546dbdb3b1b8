//! Errors of a program that would communicate, without NCCL.

use nvfp4_gemv_parallel::nccl::{self, NcclError, UniqueId};

/// One test, alone in its process: it changes the environment, and what was found stays for as long as the process
/// lives.
#[test]
fn a_missing_library_is_a_typed_error_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: no other thread of this process reads the environment.
    unsafe { std::env::set_var(nccl::LIBRARY_VARIABLE, folder.path()) };

    let missing = UniqueId::new().unwrap_err();
    let NcclError::Missing { looked_at } = &missing else {
        panic!("{missing:?}");
    };
    // No other place is tried where one was named.
    assert_eq!(looked_at.len(), 1, "{looked_at:?}");
    let named = folder.path().display().to_string();
    assert!(
        looked_at[0].contains(&named) && looked_at[0].contains("no libnccl.so.2"),
        "{looked_at:?}"
    );
    assert_eq!(nccl::library().unwrap_err(), missing);
    let hint = missing.hint().unwrap();
    for part in ["nvidia-nccl", nccl::LIBRARY_VARIABLE, "LD_LIBRARY_PATH"] {
        assert!(hint.contains(part), "{part}: {hint}");
    }
}
