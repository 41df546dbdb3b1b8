//! Every matrix instruction of NVIDIA GPUs, compiled at run time, simulated and measured.
//!
//! [`variants`] is the table of instructions. [`source`] makes CUDA sources of one of them, which [`nvrtc`] compiles
//! and [`cache`] keeps. [`machine_code`] reads what an instruction really became, and [`simulate`] runs the compiled
//! kernels in ptx-sim on data whose result is exact ([`exact`]); [`device`] runs them on a GPU. [`matmul`] has the
//! matmul kernels' tiles and launches, [`measure`] the launches of kernels of nothing but an instruction, [`blackwell`]
//! what those with tensor memory need beside. A GPU's rates are held against its [`data_sheet`] and [`cublaslt`], and
//! kept as [`results`], of which [`report`] makes pages.

pub mod arch;
pub mod blackwell;
pub mod cublaslt;
pub mod data_sheet;
pub mod device;
// The library opens files and loads libraries by the same code as well.
pub mod exact;
#[path = "../../../src/input.rs"]
#[allow(dead_code, reason = "the library uses the rest of it")]
mod input;
#[path = "../../../src/loader.rs"]
mod loader;
pub mod machine_code;
pub mod matmul;
pub mod measure;
// The library compiles by the same code: its module says why it is shared so.
#[path = "../../../src/nvrtc/mod.rs"]
pub mod nvrtc;
mod nvrtc_names {
    //! Names of this program's own, for [`nvrtc`](crate::nvrtc).

    /// The environment variable that names NVRTC's folder. It comes before all other places.
    pub(crate) const PLACE: &str = "MMA_EXPLORER_NVRTC";
    /// The environment variable that names the cache's folder.
    pub(crate) const CACHE: &str = "MMA_EXPLORER_CACHE";
    /// The cache's folder in that of the user's caches.
    pub(crate) const CACHE_FOLDER: &str = "mma-explorer";
    /// The target directory of the repository that this was built in, to look for NVRTC in.
    pub(crate) const TARGET: Option<&str> = Some(match option_env!("CARGO_TARGET_DIR") {
        Some(folder) => folder,
        None => concat!(env!("CARGO_MANIFEST_DIR"), "/../../target"),
    });
    /// The command that says which NVRTC is used.
    pub(crate) const INFO: &str = "`mma-explorer info`";
    /// Advice on how to install NVRTC.
    pub(crate) const INSTALL: &str =
        "`cargo xtask toolchain --nvrtc` installs it where this program looks, without root.";
}
pub mod plot;
#[path = "../../../src/printable.rs"]
pub mod printable;
pub mod report;
pub mod results;
pub mod simulate;
pub mod source;
pub mod types;
pub mod variants;

pub use nvrtc::cache;
