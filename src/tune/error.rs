//! Why a file of tuned configs was refused, or tuning failed.

use std::path::PathBuf;

use nvfp4_gemv_files::printable;

/// Errors of tuning and of its files, with what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// The file cannot be read or written.
    #[error("{}: {source}", printable::path(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },

    /// The path leads to something else than a file: a pipe, a device, a directory.
    #[error("{}: not a regular file but {found}", printable::path(path))]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// The kind of thing that the path leads to.
        found: &'static str,
    },

    /// The file has more bytes than any table of tuned configs. Nothing of it was used.
    #[error(
        "{}: larger than {most} bytes, the most that are read of such a file",
        printable::path(path)
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most bytes.
        most: u64,
    },

    /// The file is no table of tuned configs, or one of another format.
    #[error(
        "{}: not a file of tuned configs: {}; delete it, and tune again",
        printable::path(path),
        printable::text(reason)
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },

    /// The data to be saved could not be read again; nothing was written.
    #[error("not saved: {}", printable::text(reason))]
    Invalid {
        /// The fault.
        reason: String,
    },

    /// The file was made on this GPU, with another driver or another version of the kernels.
    #[error(
        "{}: stale: tuned with {what} {}, this is {expected}; tune again into another file, or delete \
         this one",
        printable::path(path),
        printable::text(found)
    )]
    Stale {
        /// The file.
        path: PathBuf,
        /// The thing that has changed.
        what: &'static str,
        /// Its value in the file.
        found: String,
        /// Its value here.
        expected: String,
    },

    /// The file was made on another GPU.
    #[error(
        "{}: tuned on {}, this is {expected}; each GPU needs a file of its own",
        printable::path(path),
        printable::text(found)
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The GPU of the file.
        found: String,
        /// The name of this GPU.
        expected: String,
    },

    /// No kernel of the GPU can compute the problem.
    #[error("nothing to tune: no kernel of this GPU computes {shape:#}: {}", reasons.join("; "))]
    NoCandidates {
        /// The problem.
        shape: crate::Shape,
        /// Why each kernel cannot.
        reasons: Vec<String>,
    },

    /// There is no chain to tune.
    #[error("no chain to tune: {}", match layers {
        0 => "it has no layers".into(),
        _ => format!("launches overlap from compute capability 9.0 on, and this GPU has {}.{}",
            compute_capability.0, compute_capability.1),
    })]
    NoChains {
        /// Layers of the chain.
        layers: usize,
        /// The GPU's compute capability.
        compute_capability: (i32, i32),
    },

    /// An error that a call or CUDA reported.
    #[error(transparent)]
    Gemv(#[from] crate::Error),
}
