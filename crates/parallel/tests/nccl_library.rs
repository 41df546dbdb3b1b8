//! A real libnccl on a machine without a GPU: it does everything except compute. Without libnccl, these tests are
//! ignored, with the reason.

use std::process::ExitCode;
use std::time::Duration;

use nvfp4_gemv_parallel::nccl::{self, NcclError, UniqueId};
use nvfp4_gemv_trials::trials;

fn main() -> ExitCode {
    // On a machine with GPUs there is none for this program.
    // SAFETY: no other thread has begun.
    unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", "") };
    let no_nccl = || Some(nccl::library().err()?.to_string());
    nvfp4_gemv_trials::run(trials![
        no_nccl;
        it_has_what_its_version_says,
        ids_are_new_each_time,
        joining_without_a_gpu_says_what_is_missing,
    ])
}

fn it_has_what_its_version_says() -> Result<(), NcclError> {
    let (version, place) = nccl::library()?;
    println!("NCCL {version}, {place}");
    assert!(version >= nccl::LEAST);
    assert_eq!(nccl::has_windows()?, version >= nccl::WINDOWS);
    Ok(())
}

fn ids_are_new_each_time() -> Result<(), NcclError> {
    let ids = [UniqueId::new()?, UniqueId::new()?];
    assert_ne!(ids[0], ids[1]);
    assert_eq!(UniqueId::from_bytes(*ids[0].bytes()), ids[0]);
    Ok(())
}

/// Joining fails at once, twice: nothing waits, and nothing is left behind that a second try would find.
fn joining_without_a_gpu_says_what_is_missing() -> Result<(), NcclError> {
    for _ in 0..2 {
        let error = nccl::join_alone(Duration::from_secs(600)).unwrap_err();
        let NcclError::Call {
            call: "ncclCommInitRankConfig",
            rank: 0,
            ranks: 1,
            result,
            said,
            ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert!(result.contains("cuda error"), "{result}");
        assert!(said.contains("CUDA"), "{said}");
        let text = error.to_string();
        assert!(text.contains(result) && text.contains(said), "{text}");
        let hint = error.hint().unwrap();
        for part in ["a GPU, and a driver", "NCCL_DEBUG=INFO"] {
            assert!(hint.contains(part), "{part}: {hint}");
        }
    }
    Ok(())
}
