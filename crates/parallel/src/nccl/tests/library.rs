//! Tests of which libraries are taken.

use std::path::Path;
use std::process::Command;

use super::super::find::load;
use super::super::{LEAST, LIBRARY_VARIABLE, NcclError, Version};

#[test]
fn versions_are_read_as_nccl_writes_them() {
    let of = |code| Version::of_code(code).to_string();
    assert_eq!(of(2804), "2.8.4");
    assert_eq!(of(20906), "2.9.6");
    assert_eq!(of(22809), "2.28.9");
    assert_eq!(of(-1), "0.0.0");
    assert!(Version::of_code(2999) < LEAST && Version::of_code(21400) == LEAST);
}

#[test]
fn a_folder_without_it_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let missing = refused(folder.path()).to_string();
    assert!(
        missing.contains("NVFP4_GEMV_NCCL") && missing.ends_with("no libnccl.so.2"),
        "{missing}"
    );
}

#[test]
fn a_file_that_is_no_library_is_reported_as_the_loader_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnccl.so.2");
    std::fs::write(file, "not a library").unwrap();
    let error = refused(folder.path());
    assert!(matches!(error, NcclError::Missing { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("cannot be loaded: "), "{text}");
    #[cfg(target_os = "linux")]
    assert!(text.contains("libnccl.so.2: "), "{text}");
}

/// The system's loader would wait until somebody writes to it.
#[cfg(unix)]
#[test]
fn a_pipe_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("libnccl.so.2");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let text = refused(folder.path()).to_string();
    assert!(
        text.contains("cannot be loaded: it is not a regular file"),
        "{text}"
    );
}

/// None is called `libnccl.so.2` where tests run by themselves; and one that is found is not too old for them.
#[cfg(target_os = "linux")]
#[test]
fn what_the_systems_loader_says_is_kept() {
    if let Err(error) = load(None) {
        let text = error.to_string();
        assert!(text.contains("libnccl.so.2: "), "{text}");
    }
}

/// Old ones lack what newer ones have, and still say which one they are.
#[cfg(unix)]
#[test]
fn a_library_that_is_too_old_is_named() {
    let error = of_source("int ncclGetVersion(int *version) { *version = 21304; return 0; }");
    let NcclError::TooOld { version, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(version, "2.13.4");
    let text = error.to_string();
    let expected = "NCCL 2.13.4 is too old, and 2.14.0 or newer is needed, the first whose communicators need not block: ";
    assert!(text.starts_with(expected), "{text}");
    assert!(error.hint().unwrap().contains(LIBRARY_VARIABLE));
}

#[cfg(unix)]
#[test]
fn a_library_that_is_not_nccl_says_what_it_lacks() {
    let says = |source| match of_source(source) {
        NcclError::Missing { looked_at } => looked_at.join(""),
        error => panic!("{error:?}"),
    };
    let another = says("int another(void) { return 0; }");
    assert!(
        another.ends_with("it has no ncclGetVersion: it is not NCCL"),
        "{another}"
    );
    let lacks = says("int ncclGetVersion(int *version) { *version = 22809; return 0; }");
    let expected = "it says that it is NCCL 2.28.9, and it has no ncclGetUniqueId";
    assert!(lacks.ends_with(expected), "{lacks}");
    let fails = says("int ncclGetVersion(int *version) { (void)version; return 3; }");
    assert!(
        fails.ends_with("it does not say its version (result 3)"),
        "{fails}"
    );
}

fn refused(folder: &Path) -> NcclError {
    load(Some(folder.into())).unwrap_err()
}

/// The reason why a library of this C is not taken. The program `cc`, which links Rust, compiles C too.
#[cfg(unix)]
fn of_source(source: &str) -> NcclError {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("nccl.c"), source).unwrap();
    let mut compile = Command::new("cc");
    compile
        .args(["-shared", "-fPIC", "-o"])
        .args([at("libnccl.so.2"), at("nccl.c")]);
    assert!(compile.status().unwrap().success());
    refused(folder.path())
}

/// A feature that NCCL's environment turns off is not asked for.
#[test]
fn windows_are_on_unless_the_environment_says_0() {
    let on = |set: Option<(&str, &str)>| {
        super::super::are_on(|name| {
            let value = set.filter(|(of, _)| *of == name).map(|(_, value)| value);
            value.map(Into::into)
        })
    };
    assert!(on(None));
    for name in ["NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE"] {
        assert!(on(Some((name, "1"))), "{name}");
        assert!(!on(Some((name, "0"))), "{name}");
    }
}
