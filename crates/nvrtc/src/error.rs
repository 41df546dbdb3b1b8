//! Errors of NVRTC, and advice that helps.

use crate::Names;
use crate::arch::{Arch, ArchError};

/// Why nothing was compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// No library was found, or none that can be loaded.
    #[error("NVRTC is not there: {}", .looked_at.join("; "))]
    Missing {
        /// The places that were looked at, and what was there.
        looked_at: Vec<String>,
    },
    /// The library is older than what is compiled with it. Where several are, this is the first that was looked at.
    #[error("NVRTC {version} is too old, and {needed} or newer is needed: {place}")]
    TooOld {
        /// The library's release.
        version: String,
        /// The oldest that will do.
        needed: String,
        /// The library's place.
        place: String,
    },
    /// The library does not compile for the architecture.
    #[error("NVRTC {version} does not compile for sm_{arch}, only for {}", supported(.known))]
    Architecture {
        /// The architecture that was asked for.
        arch: Arch,
        /// The library's version.
        version: String,
        /// The numbers of the architectures that it compiles for.
        known: Vec<u32>,
    },
    /// The name that was asked for is no architecture's.
    #[error(transparent)]
    NoArchitecture(#[from] ArchError),
    /// The source does not compile.
    #[error("NVRTC cannot compile {name} for sm_{arch}:\n{log}")]
    Source {
        /// The source's name.
        name: String,
        /// The architecture that it was compiled for.
        arch: Arch,
        /// NVRTC's log.
        log: String,
    },
    /// A call failed.
    #[error(
        "NVRTC fails in {call}: {result}{}{log}",
        if log.is_empty() { "" } else { "\n" }
    )]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        result: String,
        /// NVRTC's log of it, or empty.
        log: String,
    },
}

impl NvrtcError {
    /// Advice that helps, for users of the package with these names.
    pub fn hint(&self, names: &Names) -> Option<String> {
        match self {
            Self::Missing { .. } | Self::TooOld { .. } => Some(format!(
                "{} Or set {} to the folder of libnvrtc.so of a CUDA installation, or add that folder to \
                 LD_LIBRARY_PATH.",
                names.install, names.place,
            )),
            Self::Call { .. } => Some(format!(
                "An installation that lacks a part fails so: libnvrtc-builtins.so belongs beside libnvrtc.so. {} names the \
                 folder of another one.",
                names.place,
            )),
            Self::Architecture { arch, known, .. } => {
                let newest = known.iter().max().copied().unwrap_or(0);
                Some(if arch.number > newest {
                    format!(
                        "A newer CUDA's NVRTC may know it: {} says which one is used, and where it is.",
                        names.info
                    )
                } else {
                    "This NVRTC is too new for it, or it has no such variant of the architecture."
                        .into()
                })
            }
            Self::NoArchitecture(_) | Self::Source { .. } => None,
        }
    }
}

fn supported(known: &[u32]) -> String {
    let names: Vec<_> = known.iter().map(u32::to_string).collect();
    names.join(", ")
}
