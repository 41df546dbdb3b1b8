//! Where NCCL is: in the order that the documentation of [`nccl`](super) has.
//!
//! By its name the system's loader looks for a library in LD_LIBRARY_PATH, as it was when the process started, and where the
//! system keeps libraries. A CUDA installation has no NCCL, so there is no other place to look.

use std::ffi::c_int;
use std::path::{Path, PathBuf};

use libloading::Library;

use super::api::{Api, SUCCESS};
use super::error::NcclError;
use super::{LEAST, PLACE, Version};
use crate::printable;

/// As it is named in every installation; without the number in those for developers.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// What the least version has first.
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
    let library = unsafe { Library::new(file) };
    let library = library.map_err(|error| {
        let error = error.to_string();
        missing(format!("it cannot be loaded: {}", printable::text(&error)))
    })?;
    checked(Api::of(library).map_err(missing)?, place)
}

fn by_name() -> Result<Found, NcclError> {
    let place = "found by the system's loader (LD_LIBRARY_PATH, system libraries)";
    // SAFETY: as for `from`.
    let load = |name: &&str| unsafe { Library::new(*name) }.ok();
    let library = NAMES
        .iter()
        .find_map(load)
        .ok_or_else(|| NcclError::Missing {
            looked_at: vec![format!("the system's loader finds no {}", NAMES[0])],
        })?;
    let api = Api::of(library).map_err(|why| NcclError::Missing {
        looked_at: vec![format!("{place}: {why}")],
    })?;
    checked(api, place.into())
}

/// One that is new enough.
pub(super) fn checked(api: Api, place: String) -> Result<Found, NcclError> {
    let mut code: c_int = 0;
    // SAFETY: a place for a number.
    let status = unsafe { (api.version)(&mut code) };
    if status != SUCCESS {
        let (result, _) = api.text(status);
        return Err(NcclError::Missing {
            looked_at: vec![format!("{place}: it does not say its version ({result})")],
        });
    }
    let version = Version::of_code(code);
    match version >= LEAST {
        true => Ok(Found {
            api,
            version,
            place,
        }),
        false => Err(NcclError::TooOld {
            version: version.to_string(),
            needed: LEAST.to_string(),
            why: WHY,
            place,
        }),
    }
}
