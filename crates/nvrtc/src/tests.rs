//! Tests of what is said of a library that is too old or does not work. Functions here stand for NVRTC's.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::path::PathBuf;

#[cfg(unix)]
use nvfp4_gemv_files::store::Store;

use super::api::{Api, Handle, INVALID_OPTION, Status};
#[cfg(unix)]
use super::cache::{Cache, Origin};
use super::find::{Place, first};
use super::{Nvrtc, NvrtcError, Source, Stage};
use crate::Names;

pub(crate) static NAMES: Names = Names {
    place: "SOME_NVRTC",
    cache: "SOME_CACHE",
    cache_folder: "some",
    target: None,
    info: "`some info`",
    install: "Install it.",
};

thread_local! {
    static VERSION: Cell<(c_int, c_int)> = const { Cell::new((13, 0)) };
    /// The results of `nvrtcCompileProgram` where it is told an architecture, and where not. Below is the log, which
    /// ends with zero.
    static RESULT: Cell<[Status; 2]> = const { Cell::new([0; 2]) };
    static LOG: Cell<&'static str> = const { Cell::new("\0") };
    /// How many architectures there are, and how many bytes of PTX, where that is not as it is.
    static ARCHS: Cell<c_int> = const { Cell::new(1) };
    static SIZE: Cell<Option<usize>> = const { Cell::new(None) };
}

const PTX: &str = "// Compiler Build ID: CL-1\n// V13.0.88\n\0";

unsafe extern "C" fn version(major: *mut c_int, minor: *mut c_int) -> Status {
    // SAFETY: here and below, places that the caller has.
    unsafe { (*major, *minor) = VERSION.get() };
    0
}

unsafe extern "C" fn count(count: *mut c_int) -> Status {
    // SAFETY: as above.
    unsafe { *count = ARCHS.get() };
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
    unsafe { *size = SIZE.get().unwrap_or(PTX.len()) };
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
        count_of_archs: count,
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
    let hint = error.hint(&NAMES).unwrap_or_default();
    assert!(hint.contains(NAMES.place), "{hint}");

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

/// The library is broken, or not NVRTC: it is believed neither what it has nor how much that is.
#[test]
fn a_library_that_says_too_much_is_an_error() {
    let fails = || {
        let error = compiled().unwrap_err();
        let NvrtcError::Call { call, result, .. } = error else {
            panic!("{error:?}");
        };
        assert!(result.contains("more"), "{result}");
        call
    };
    for size in [usize::MAX, isize::MAX as usize, 1 << 40] {
        SIZE.set(Some(size));
        assert_eq!(fails(), "nvrtcGetPTX");
    }
    SIZE.set(None);
    for archs in [-1, c_int::MAX] {
        ARCHS.set(archs);
        assert_eq!(fails(), "nvrtcGetNumSupportedArchs");
    }
    ARCHS.set(1);
    assert_eq!(compiled(), Ok(()));
}

/// Whatever has the name of what is kept: it is compiled again, and kept again.
#[cfg(unix)]
#[test]
fn what_cannot_be_a_kernel_is_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let nvrtc = Nvrtc::new(place("/n"), api()).unwrap();
    let source = Source {
        name: "a.cu".into(),
        text: String::new(),
        headers: [].into(),
    };
    let arch = "90a".parse().expect("an architecture");
    let compile = |stage| {
        let (compiled, origin) = cache.compile(&nvrtc, &source, arch, &[], stage).unwrap();
        assert_eq!(compiled.ptx, PTX.trim_end_matches('\0'));
        assert_eq!(compiled.cubin.is_empty(), stage == Stage::Ptx);
        matches!(origin, Origin::Cached(_))
    };
    let name = |before: &[String]| {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.find(|name| !before.contains(name)).unwrap()
    };
    assert!(!compile(Stage::Ptx) && compile(Stage::Ptx));
    let ptx = name(&[]);
    assert!(!compile(Stage::Cubin) && compile(Stage::Cubin));
    let cubin = name(std::slice::from_ref(&ptx));
    let store = Store::at(folder.path());
    for (stage, name, kernel) in [
        (Stage::Ptx, &ptx, ("", &b""[..])),
        (Stage::Cubin, &cubin, ("", b"")),
        (Stage::Cubin, &cubin, ("// ptx", b"")),
    ] {
        store.write(name, kernel.0, kernel.1).unwrap();
        assert!(!compile(stage) && compile(stage));
    }
    std::fs::remove_file(folder.path().join(&ptx)).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(folder.path().join(&ptx))
        .status();
    assert!(made.unwrap().success());
    assert!(!compile(Stage::Ptx) && compile(Stage::Ptx));
}

#[test]
fn what_the_library_says_of_a_failure_is_kept() {
    VERSION.set((13, 0));
    assert_eq!(compiled(), Ok(()));

    // NVRTC lacks its builtins, at the first source.
    RESULT.set([7, 7]);
    LOG.set("nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n\0");
    let error = compiled().unwrap_err();
    assert!(
        error.to_string().contains("failed to open libnvrtc"),
        "{error}"
    );
    let hint = error.hint(&NAMES).unwrap_or_default();
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
