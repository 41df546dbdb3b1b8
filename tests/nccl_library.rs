//! What needs libnccl, and no GPU. Where there is none, it is ignored, with the reason.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};
use nvfp4_gemv::nccl::{self, NcclError, UniqueId};

fn main() -> ExitCode {
    let trial = Trial::ignorable_test("ids_are_new_each_time", || {
        Ok(match nccl::library() {
            Ok(_) => {
                ids_are_new_each_time()?;
                Completion::Completed
            }
            Err(why) => Completion::ignored_with(why.to_string()),
        })
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn ids_are_new_each_time() -> Result<(), NcclError> {
    let (version, place) = nccl::library()?;
    println!("NCCL {version}, {place}");
    assert!(version >= nccl::LEAST);
    let ids = [UniqueId::new()?, UniqueId::new()?];
    assert_ne!(ids[0], ids[1]);
    assert_eq!(UniqueId::from_bytes(*ids[0].bytes()), ids[0]);
    Ok(())
}
