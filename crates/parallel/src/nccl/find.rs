//! Search for NCCL, in the order that the documentation of [`nccl`](super) has.
//!
//! By its name the system's loader looks for a library in LD_LIBRARY_PATH, as it was when the process started, and
//! where the system keeps libraries. A CUDA installation has no NCCL, so there is no other place to look.

use std::ffi::c_int;
use std::path::{Path, PathBuf};

use nvfp4_gemv_files::loader::Library;
use nvfp4_gemv_files::{loader, printable};

use super::api::{Api, GET_VERSION, GetVersion, SUCCESS};
use super::error::NcclError;
use super::{LEAST, PLACE, Version};

/// Names of the library, as in every installation; without the number in those for developers.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The feature that the least version has first.
const WHY: &str = "the first whose communicators need not block";

/// A library with its version, and where it is.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) api: Api,
    pub(super) version: Version,
    pub(super) place: String,
}

/// Loads the library: the one of the folder that was asked for, or the one that the system's loader finds.
pub(super) fn load(asked: Option<PathBuf>) -> Result<Found, NcclError> {
    match asked.filter(|folder| !folder.as_os_str().is_empty()) {
        // No silent fallback: this one, or none.
        Some(folder) => from(&folder),
        None => by_name(),
    }
}

fn from(folder: &Path) -> Result<Found, NcclError> {
    let place = format!("{PLACE}: {}", printable::path(folder));
    let missing = |why: String| NcclError::Missing {
        looked_at: vec![format!("{place}: {why}")],
    };
    let file = NAMES.map(|name| folder.join(name));
    let file = file.iter().find(|file| file.exists());
    let file = file.ok_or_else(|| missing(format!("no {}", NAMES[0])))?;
    // SAFETY: this is NCCL, by its file's name; loading runs its initialisers, which only set it up.
    let library = unsafe { loader::at(file) };
    let library = library.map_err(|why| missing(format!("it cannot be loaded: {why}")))?;
    checked(library, place)
}

fn by_name() -> Result<Found, NcclError> {
    let place = "found by the system's loader (LD_LIBRARY_PATH, system libraries)";
    let mut looked_at = Vec::new();
    for name in NAMES {
        // SAFETY: as in `from`.
        match unsafe { loader::by_name(name) } {
            Ok(library) => return checked(library, place.into()),
            Err(error) => looked_at.push(format!("the system's loader: {}", error.why())),
        }
    }
    Err(NcclError::Missing { looked_at })
}

/// One that is new enough. An old one lacks functions, so its version is asked for before they are.
fn checked(library: Library, place: String) -> Result<Found, NcclError> {
    let missing = |why: String| NcclError::Missing {
        looked_at: vec![format!("{place}: {why}")],
    };
    let version = version_of(&library).map_err(missing)?;
    if version < LEAST {
        return Err(NcclError::TooOld {
            version: version.to_string(),
            needed: LEAST.to_string(),
            why: WHY,
            place,
        });
    }
    let api = Api::kept(library)
        .map_err(|lacks| missing(format!("it says that it is NCCL {version}, and {lacks}")))?;
    Ok(Found {
        api,
        version,
        place,
    })
}

fn version_of(library: &Library) -> Result<Version, String> {
    // SAFETY: this is NCCL, by its file's name; nccl.h declares the function so.
    let get = unsafe { library.get::<GetVersion>(GET_VERSION.as_bytes()) };
    let get = get.map_err(|_| format!("it has no {GET_VERSION}: it is not NCCL"))?;
    let mut code: c_int = 0;
    // SAFETY: a place for a number.
    match unsafe { get(&mut code) } {
        SUCCESS => Ok(Version::of_code(code)),
        status => Err(format!("it does not say its version (result {status})")),
    }
}
