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
pub mod exact;
pub mod machine_code;
pub mod matmul;
pub mod measure;
pub mod nvrtc;
pub mod plot;
pub mod report;
pub mod results;
pub mod simulate;
pub mod source;
pub mod types;
pub mod variants;

pub use nvfp4_gemv_nvrtc::cache;
