//! What is said of a library that is too old or does not work: of functions that stand for NVRTC's.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::path::PathBuf;

use super::api::{Api, Handle, INVALID_OPTION, Status};
use super::find::{Place, first};
use super::{Nvrtc, NvrtcError, Source, Stage};
use crate::nvrtc_names;

thread_local! {
    static VERSION: Cell<(c_int, c_int)> = const { Cell::new((13, 0)) };
    /// What `nvrtcCompileProgram` returns where it is told an architecture, and where not; and the log, which ends with zero.
    static RESULT: Cell<[Status; 2]> = const { Cell::new([0; 2]) };
    static LOG: Cell<&'static str> = const { Cell::new("\0") };
}

const PTX: &str = "// Compiler Build ID: CL-1\n// V13.0.88\n\0";

unsafe extern "C" fn version(major: *mut c_int, minor: *mut c_int) -> Status {
    // SAFETY: here and below, places that the caller has.
    unsafe { (*major, *minor) = VERSION.get() };
    0
}

unsafe extern "C" fn one(count: *mut c_int) -> Status {
    // SAFETY: as above.
    unsafe { *count = 1 };
    0
}

unsafe extern "C" fn archs(known: *mut c_int) -> Status {
    // SAFETY: as above.
    unsafe { *known = 90 };
    0
}

unsafe extern "C" fn error_string(_: Status) -> *const c_char {
    c"NVRTC_ERROR".as_ptr()
}

unsafe extern "C" fn create(
    _: *mut Handle,
    _: *const c_char,
    _: *const c_char,
    _: c_int,
    _: *const *const c_char,
    _: *const *const c_char,
) -> Status {
    0
}

unsafe extern "C" fn compile(_: Handle, options: c_int, _: *const *const c_char) -> Status {
    let [with, without] = RESULT.get();
    if options > 0 { with } else { without }
}

unsafe extern "C" fn destroy(_: *mut Handle) -> Status {
    0
}

unsafe extern "C" fn log_size(_: Handle, size: *mut usize) -> Status {
    // SAFETY: as above.
    unsafe { *size = LOG.get().len() };
    0
}

unsafe extern "C" fn log(_: Handle, to: *mut c_char) -> Status {
    let log = LOG.get();
    // SAFETY: as many bytes as `log_size` has said.
    unsafe { to.copy_from(log.as_ptr().cast(), log.len()) };
    0
}

unsafe extern "C" fn ptx_size(_: Handle, size: *mut usize) -> Status {
    // SAFETY: as above.
    unsafe { *size = PTX.len() };
    0
}

unsafe extern "C" fn ptx(_: Handle, to: *mut c_char) -> Status {
    // SAFETY: as many bytes as `ptx_size` has said.
    unsafe { to.copy_from(PTX.as_ptr().cast(), PTX.len()) };
    0
}

fn api() -> Api {
    Api {
        version,
        count_of_archs: one,
        archs,
        error_string,
        create,
        compile,
        destroy,
        ptx_size,
        ptx,
        cubin_size: ptx_size,
        cubin: ptx,
        log_size,
        log,
    }
}

fn place(folder: &str) -> Place {
    let (named_by, folder) = ("CUDA_HOME".into(), PathBuf::from(folder));
    Place::Folder { named_by, folder }
}

fn compiled() -> Result<(), NvrtcError> {
    let source = Source {
        name: "a.cu".into(),
        text: String::new(),
        headers: [].into(),
    };
    let arch = "90a".parse().expect("an architecture");
    let nvrtc = Nvrtc::new(place("/n"), api())?;
    assert_eq!(nvrtc.build(), "CL-1");
    nvrtc.compile(&source, arch, &[], Stage::Ptx).map(drop)
}

#[test]
fn a_library_that_is_too_old_is_passed_over() {
    let old = |folder| {
        VERSION.set((12, 8));
        Ok((place(folder), api()))
    };
    let missing = || Err("X: no libnvrtc.so".to_string());
    let error = first([missing(), old("/old"), missing()].into_iter()).unwrap_err();
    let NvrtcError::TooOld {
        version, needed, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((version.as_str(), needed.as_str()), ("12.8", "12.9"));
    let says = error.to_string();
    assert!(says.contains("/old (CUDA_HOME)"), "{says}");
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains(nvrtc_names::PLACE), "{hint}");

    let new = || {
        VERSION.set((12, 9));
        Ok((place("/new"), api()))
    };
    let candidates = [0, 1, 2].into_iter().map(|i| match i {
        0 => old("/old"),
        1 => missing(),
        _ => new(),
    });
    let (found, _) = first(candidates).expect("the last one will do");
    assert_eq!(found, place("/new"));
    let error = first([missing()].into_iter()).unwrap_err();
    assert!(matches!(error, NvrtcError::Missing { .. }), "{error:?}");
}

#[test]
fn what_the_library_says_of_a_failure_is_kept() {
    VERSION.set((13, 0));
    assert_eq!(compiled(), Ok(()));

    // It lacks its builtins, at the first source.
    RESULT.set([7, 7]);
    LOG.set("nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n\0");
    let error = compiled().unwrap_err();
    assert!(
        error.to_string().contains("failed to open libnvrtc"),
        "{error}"
    );
    let hint = error.hint().unwrap_or_default();
    assert!(
        hint.contains("libnvrtc-builtins.so belongs beside"),
        "{hint}"
    );

    // An option that is not the architecture.
    RESULT.set([INVALID_OPTION, 0]);
    LOG.set("nvrtc: error: unrecognized option --spam found\n\0");
    let error = compiled().unwrap_err();
    assert!(matches!(error, NvrtcError::Call { .. }), "{error:?}");
    assert!(error.to_string().contains("--spam"), "{error}");
    LOG.set("nvrtc: error: invalid value for --gpu-architecture (-arch)\n\0");
    let error = compiled().unwrap_err();
    assert!(
        matches!(error, NvrtcError::Architecture { .. }),
        "{error:?}"
    );
}
