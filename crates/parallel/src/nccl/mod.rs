//! Several GPUs, through NCCL.
//!
//! A [`Communicator`] belongs to one rank, and so to one GPU. It adds up ([`all_reduce`](Communicator::all_reduce)) or
//! collects ([`all_gather`](Communicator::all_gather)) what all ranks have, on the rank's stream, also while a CUDA
//! graph is captured. Ranks are processes, or threads of one process. All of them need the same [`UniqueId`]: rank 0
//! makes it. Where a launcher started the processes, [`ranks`](crate::ranks) brings it to the other ranks.
//!
//! # No hang
//!
//! NCCL's calls wait for other ranks, and a GPU does inside a collective. So no communicator here blocks: each call
//! that waits has a timeout, of [`Timeouts`]. After the timeout the communicator is aborted, which also ends the
//! collectives that the GPU waits for. Wait for a stream with [`Communicator::synchronize`], not with cudarc's: the
//! communicator looks after the other ranks meanwhile.
//!
//! NCCL's abort itself waits while there are graphs with the communicator's collectives. So it runs on a thread of its
//! own, and who waited gets the error at once, and can destroy the graphs.
//!
//! # The library
//!
//! The library is loaded when it is first asked for. Where the environment's [`LIBRARY_VARIABLE`] is set, the library
//! is the one in the folder that the variable names, and no other. Otherwise the library is the one that the system's
//! loader finds by the name `libnccl.so.2`. [`LEAST`] is the oldest version that will do: the first whose communicators
//! need not block. A missing or older library is an error, with advice in [`NcclError::hint`].
//!
//! # Windows
//!
//! From NCCL 2.27 on, sums of memory that all ranks have registered, a [`Window`], may take less time where GPUs reach
//! each other's memory: NCCL chooses. Such sums may have other bits than those of other memory.
//!
//! # The same bits
//!
//! NCCL adds in an order that depends on the ranks, on how they are connected, on the number of elements, and on its
//! settings and version; not on the time. So with all of these the same, sums have the same bits from run to run.

mod api;
mod communicator;
mod ending;
mod error;
mod find;
mod session;
#[cfg(test)]
mod tests;
mod timeouts;
mod window;

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use api::{Api, Id, SUCCESS};

pub use communicator::Communicator;
pub use error::NcclError;
pub use timeouts::Timeouts;
pub use window::Window;

/// The environment variable that names the folder of `libnccl.so.2`. It comes before all other places.
pub const LIBRARY_VARIABLE: &str = PLACE;
const PLACE: &str = "NVFP4_GEMV_NCCL";

/// The oldest NCCL that will do.
pub const LEAST: Version = Version {
    major: 2,
    minor: 14,
    patch: 0,
};

/// The oldest NCCL that has symmetric windows: [`Window`].
pub const WINDOWS: Version = Version {
    major: 2,
    minor: 27,
    patch: 0,
};

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2, so far.
    pub major: u32,
    /// The release.
    pub minor: u32,
    /// Its correction.
    pub patch: u32,
}

impl Version {
    /// As NCCL says it, in one number: with two digits for the release from 2.9 on, with one before.
    fn of_code(code: i32) -> Self {
        let code = u32::try_from(code).unwrap_or(0);
        let step = if code < 10_000 { 1000 } else { 10_000 };
        Self {
            major: code / step,
            minor: code % step / 100,
            patch: code % 100,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The library of this process, for those who want to know: its version, and where it was found. Loads it.
///
/// # Errors
/// [`NcclError::Missing`] and [`NcclError::TooOld`]; later calls then say the same.
pub fn library() -> Result<(Version, &'static str), NcclError> {
    let found = found()?;
    Ok((found.version, &found.place))
}

/// Whether the library of this process has symmetric windows, so that a [`Window`] can be made. Loads it.
///
/// # Errors
/// As [`library`]'s.
pub fn has_windows() -> Result<bool, NcclError> {
    Ok(api()?.windows.is_some())
}

/// Whether NCCL has windows, and its environment does not turn them off: `NCCL_CUMEM_ENABLE` and `NCCL_WIN_ENABLE`.
///
/// # Errors
/// As [`library`]'s.
pub(crate) fn windows_are_on() -> Result<bool, NcclError> {
    let says = |name: &str| std::env::var_os(name);
    Ok(has_windows()? && are_on(says))
}

/// Whether none of the variables turns windows off.
fn are_on(says: impl Fn(&str) -> Option<std::ffi::OsString>) -> bool {
    let off = |name: &&str| says(name).is_some_and(|value| value == "0");
    !["NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE"].iter().any(off)
}

/// Makes a communicator of one rank, on the device that is current or would be, and ends it. This is for the test that
/// has a library and no driver, and so no stream for [`Communicator::new`].
#[doc(hidden)]
pub fn join_alone(timeout: Duration) -> Result<(), NcclError> {
    let id = UniqueId::new()?;
    session::Session::start(*api()?, 1, 0, id.0, timeout.into()).map(drop)
}

fn found() -> Result<&'static find::Found, NcclError> {
    static FOUND: OnceLock<Result<find::Found, NcclError>> = OnceLock::new();
    let load = || find::load(std::env::var_os(PLACE).map(PathBuf::from));
    FOUND.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn api() -> Result<&'static Api, NcclError> {
    Ok(&found()?.api)
}

/// An identifier that ranks have in common: rank 0 makes it, and all ranks give it to the same [`Communicator::new`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; Id::BYTES]);

impl UniqueId {
    /// A new one, of no other communicator. The process that makes it also listens for the others: NCCL opens a port,
    /// on the interface that `NCCL_SOCKET_IFNAME` names or that it finds.
    ///
    /// # Errors
    /// As [`library`]'s, and [`NcclError::Call`].
    pub fn new() -> Result<Self, NcclError> {
        let api = api()?;
        let mut id = Id {
            bytes: [0; Id::BYTES],
        };
        // SAFETY: a place for an id.
        match unsafe { (api.unique_id)(&mut id) } {
            SUCCESS => Ok(Self(id.bytes)),
            status => {
                let (result, said) = api.text(status);
                let (rank, ranks) = (0, 1);
                Err(NcclError::Call {
                    call: "ncclGetUniqueId",
                    rank,
                    ranks,
                    status,
                    result,
                    said,
                })
            }
        }
    }

    /// The id's bytes, as it travels to other ranks.
    pub fn bytes(&self) -> &[u8; 128] {
        &self.0
    }

    /// The id with these bytes, as they came from rank 0.
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(bytes)
    }
}

/// An id lets whoever has it into the communicator, so it is not printed.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").finish_non_exhaustive()
    }
}
