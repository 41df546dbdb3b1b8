//! What needs libnccl, and no GPU. Where there is none, these tests are ignored and say why.

use libtest_mimic::{Arguments, Failed, Trial};
use nvfp4_gemv::nccl::{self, UniqueId};

fn main() {
    let arguments = Arguments::from_args();
    let missing = nccl::library().err();
    if let Some(why) = &missing {
        eprintln!("ignored: {why}");
    }
    let trial = Trial::test("ids_are_new_each_time", ids_are_new_each_time);
    let trials = vec![trial.with_ignored_flag(missing.is_some())];
    libtest_mimic::run(&arguments, trials).exit();
}

fn ids_are_new_each_time() -> Result<(), Failed> {
    let (version, place) = nccl::library()?;
    println!("NCCL {version}, {place}");
    let ids = [UniqueId::new()?, UniqueId::new()?];
    assert_ne!(ids[0], ids[1]);
    assert_eq!(UniqueId::from_bytes(*ids[0].bytes()), ids[0]);
    assert!(version >= nccl::LEAST);
    Ok(())
}
