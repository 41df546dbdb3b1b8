//! Releases of CUDA, and the oldest whose compilers the kernels' sources are written for. Shared by the build script
//! and `cargo xtask`, which look for nvcc, and by what loads NVRTC.

use std::fmt;

/// The oldest that knows every architecture of the default list, and the PTX that the sources have.
pub(crate) const OLDEST: Version = Version(12, 9);

/// A CUDA release, such as 13.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}
