//! NVFP4 block-scaled GEMV: `y[l][n][m] = alpha · Σ_k w[l][m][k] · x[l][n][k]`. The weights W are NVFP4: 4-bit E2M1
//! values, an FP8 scale for each 16, an FP32 global scale. The product runs on Blackwell tensor cores (verified in
//! simulation, not yet on hardware), CUDA cores and CPUs.
//!
//! # A tour
//!
//! - [`Linear`]: a layer that owns its weights or shares them, from a checkpoint, a dense matrix or parts; [`Mlp`]: three
//!   of them; [`Experts`]: a mixture's. `LinearOnDevice`, `MlpOnDevice` and `ExpertsOnDevice` are the same in a device's
//!   memory. What an engine keeps.
//! - [`Shape`]: M rows, N vectors, K elements, L batches ([`Dims`]), checked once.
//! - Below that, [`Weights`], [`Vectors`], [`Output`]: borrowed operands, in host memory or (feature `cuda` or `jit`) in
//!   a device's, with their [`ScaleLayout`], [`GlobalScale`] and [`Strides`].
//! - [`gemv`](fn@gemv) computes host operands, [`gemv_on_device`] a device's, [`raw::gemv`] operands by address. Each
//!   takes [`Options`]: which path, [`Kernel`] or [`Config`], or none of these. Each returns a [`Choice`]: the path and
//!   config that computed it, and the reason. [`dispatch`] makes the choice, from the kernels of [`kernel`].
//! - [`PreparedGemv`], [`PreparedGemvOnDevice`] and [`raw::PreparedRawGemv`] are the same calls, checked and dispatched
//!   once. [`tune`][mod@tune] measures which kernel and config is fastest on a device for a problem, and keeps the
//!   results in files. Only calls that are given such results use them.
//! - With feature `cuda` or `jit`, [`TiledWeights`] owns scales in the tensor cores' layout, and
//!   [`QuantizedVectors`] owns vectors that are quantised on the device.
//! - [`checkpoint`] opens files of ModelOpt, compressed-tensors and ComfyUI, gpt-oss's experts, and GGUF,
//!   [`mod@quantize`] makes NVFP4 of f32, f16 and bf16, [`format`](mod@format) has the codecs.
//! - [`mod@reference`] is the truth that everything is held to, with the error each kernel may make.
//!
//! # An example
//!
//! ```
//! use nvfp4_gemv::{gemv, GlobalScale, Options, Output, ScaleLayout, Shape, Vectors, Weights};
//!
//! let shape = Shape::matrix(2, 16)?; // M rows, K columns; one vector
//! let codes = [0x22; 16]; // two elements a byte, every one 1.0
//! let scales = [0x38, 0x40]; // E4M3: 1.0 for the first row's block, 2.0 for the second's
//! let w = Weights::new(
//!     &shape, &codes, &scales, ScaleLayout::Linear, GlobalScale::Multiplier(0.5),
//! )?;
//!
//! let x = [1.0f32; 16];
//! let mut y = [0.0f32; 2];
//! let choice = gemv(&shape, &w, &Vectors::of(&x), Output::of(&mut y), &Options::new())?;
//! assert_eq!(y, [8.0, 16.0]);
//! println!("{}: {}", choice.path, choice.reason); // cpu: the operands are in host memory
//! # Ok::<(), nvfp4_gemv::Error>(())
//! ```
//!
//! The [examples](https://github.com/nvfp4-gemv/nvfp4-gemv/tree/main/examples) go on from here: a device's call, layers
//! chained in a CUDA graph, a checkpoint's layer, tuning, calls by address.
//!
//! # CUDA graphs
//!
//! A device call enqueues kernels on the stream that it is given: it allocates nothing, synchronises nothing and copies
//! nothing. So a device call can be captured into a CUDA graph and replayed: [`gemv_on_device`],
//! [`PreparedGemvOnDevice::run`], `forward` of `LinearOnDevice`, `MlpOnDevice` and `ExpertsOnDevice`, what
//! [`QuantizedVectors`] enqueues, and the calls of [`raw`]. A call that makes buffers, such as [`TiledWeights::new`], comes
//! before the capture, and so does `prepare` of layers. The rest is up to the caller:
//!
//! - **A stream that can be captured.** CUDA's legacy default stream cannot be, and cudarc's
//!   `CudaContext::default_stream` returns that stream. `CudaContext::new_stream` makes another one.
//! - **No event tracking.** Once a context has a stream beside the default one, cudarc lets every call with its views
//!   wait for the events that earlier uses of the buffers have left. Inside a capture CUDA allows no wait for events
//!   from before the capture. `CudaContext::disable_event_tracking` turns the tracking off, best as soon as the context
//!   is there. That function is `unsafe`: from then on the program itself orders its streams, and frees no buffer that
//!   another stream still uses. Calls of `raw` take addresses, and know no events.
//! - **Kernels that are loaded.** The first call that takes a kernel in a context has CUDA load its machine code, for
//!   which CUDA may allocate and wait. Inside a capture that works too, and becomes no part of the graph. Preparing a
//!   call loads its kernels beforehand; so does a call before the capture. A kernel that is [compiled at run
//!   time](#features) must be prepared or called before.
//! - **Memory that stays.** A graph keeps addresses. All buffers live until the last replay has run, a `Workspace` too,
//!   which a replay writes. A replay reads the content that the buffers hold by then. Shape, strides, global scales,
//!   kernel and config stay as captured.
//!
//! ```no_run
//! # #[cfg(feature = "device")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cudarc::driver::{CudaContext, sys};
//! use nvfp4_gemv::{
//!     DenseVectors, GlobalScale, Options, Output, ScaleLayout, Shape, Vectors, Weights, gemv_on_device,
//! };
//!
//! let context = CudaContext::new(0)?;
//! // SAFETY: all work goes to the one stream below, whose order is the order in which buffers are used and freed.
//! unsafe { context.disable_event_tracking() };
//! let stream = context.new_stream()?;
//!
//! let shape = Shape::matrix(128, 256)?;
//! let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
//! let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
//! let weights = Weights::on_device(
//!     &shape, codes.as_view(), scales.as_view(), ScaleLayout::Linear, GlobalScale::ONE,
//! )?;
//! let mut x = stream.alloc_zeros::<f32>(shape.k())?;
//! let mut y = stream.alloc_zeros::<f32>(shape.m())?;
//!
//! stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
//! let vectors = Vectors::on_device(x.as_view());
//! let output = Output::on_device(y.as_view_mut());
//! let captured = gemv_on_device(&stream, &shape, &weights, &vectors, output, &Options::new());
//! // A capture is ended also where a call in it has failed. cudarc asks for a flag; with nothing allocated in the
//! // graph, this one does nothing.
//! let graph = stream.end_capture(
//!     sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
//! )?;
//! captured?;
//! let graph = graph.ok_or("nothing was captured")?;
//!
//! for step in 0..3 {
//!     stream.memcpy_htod(&vec![step as f32; shape.k()], &mut x)?;
//!     graph.launch()?;
//!     println!("{}", stream.clone_dtoh(&y)?[0]);
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "device"))]
//! # fn main() {}
//! ```
//!
//! # Features
//!
//! - `cuda` (default): the CUDA paths, with machine code for the usual GPUs. Needs nvcc 12.9 or newer when building, no
//!   GPU and no driver.
//! - `jit`: the CUDA paths, with kernels that are compiled at run time where there is no machine code for the GPU:
//!   module [`jit`]. Needs nothing when building, and NVRTC at run time.
//! - `device`: what these two share. Alone it computes nothing on a GPU.
//! - `checkpoint` (default): modules [`checkpoint`] and [`file`][mod@file], which read NVFP4 layers of safetensors
//!   files.
//! - `tune` (default): module [`tune`][mod@tune], which keeps what was measured in files and, with `cuda` or `jit`,
//!   measures.
//! - none: the CPU path, without nvcc or a C++ compiler.
//!
//! The `nvfp4-gemv` program is a package of its own, `nvfp4-gemv-cli`. So are layers over several GPUs,
//! `nvfp4-gemv-parallel`.
//!
// Links to items that only a build with the feature documents. Without the feature, these links lead to the section on
// features.
#![cfg_attr(
    not(feature = "device"),
    doc = "
[`gemv_on_device`]: #features
[`raw`]: #features
[`raw::gemv`]: #features
[`PreparedGemvOnDevice`]: #features
[`PreparedGemvOnDevice::run`]: #features
[`raw::PreparedRawGemv`]: #features
[`QuantizedVectors`]: #features
[`QuantizedVectors::quantize`]: #features
[`TiledWeights`]: #features
[`TiledWeights::new`]: #features
"
)]
#![cfg_attr(
    not(feature = "checkpoint"),
    doc = "
[`checkpoint`]: #features
[mod@file]: #features
"
)]
#![cfg_attr(not(feature = "jit"), doc = "\n[`jit`]: #features\n")]
#![cfg_attr(not(feature = "tune"), doc = "\n[mod@tune]: #features\n")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod check;
#[cfg(feature = "checkpoint")]
pub mod checkpoint;
#[cfg(all(feature = "device", feature = "unstable"))]
pub mod context;
#[cfg(all(feature = "device", not(feature = "unstable")))]
#[allow(unreachable_pub, reason = "public with feature `unstable`")]
mod context;
pub mod cpu;
#[cfg(feature = "device")]
mod device;
mod dialect;
// Docs of its options name functions that these features have.
#[cfg_attr(
    not(all(feature = "device", feature = "tune")),
    allow(rustdoc::broken_intra_doc_links)
)]
pub mod dispatch;
mod element;
mod error;
mod experts;
#[cfg(feature = "device")]
#[allow(
    non_camel_case_types,
    missing_debug_implementations,
    unreachable_pub,
    dead_code
)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod ffi;
#[cfg(feature = "checkpoint")]
pub mod file;
pub mod format;
mod gate;
mod gemv;
mod gpu;
#[cfg(feature = "jit")]
pub mod jit;
pub mod kernel;
mod linear;
#[cfg(all(feature = "device", feature = "unstable"))]
pub mod measure;
#[cfg(all(feature = "device", not(feature = "unstable")))]
#[allow(dead_code, unreachable_pub, reason = "public with feature `unstable`")]
mod measure;
mod memory;
mod mlp;
#[cfg(feature = "jit")]
mod nvrtc;
mod operands;
mod output;
#[cfg(nvfp4_gemv_no_kernels)]
#[allow(unused_variables)]
mod no_kernels {
    //! Functions that stand for the C functions in a build without kernels: `build.rs` makes them.
    use crate::ffi::*;
    include!(concat!(env!("OUT_DIR"), "/no_kernels.rs"));
}
pub mod quantize;
#[cfg(feature = "device")]
mod quantized;
#[cfg(feature = "device")]
pub mod raw;
pub mod reference;
mod refusal;
mod scales;
mod shape;
mod tensor;
#[cfg(feature = "device")]
mod tiled_weights;
#[cfg(feature = "tune")]
pub mod tune;
mod types;
#[cfg(feature = "device")]
mod workspace;

#[cfg(feature = "device")]
pub use device::{PreparedGemvOnDevice, gemv_on_device};
pub use dialect::Dialect;
pub use dispatch::{Asker, Choice, Evidence, Options, Reason, Target, select};
pub use element::Element;
pub use error::{Error, Result};
pub use experts::Experts;
#[cfg(feature = "device")]
pub use experts::{ExpertsBuffers, ExpertsOnDevice};
pub use gate::{Gate, rms_norm};
pub use gemv::{PreparedGemv, gemv};
pub use gpu::Gpu;
pub use kernel::{Config, Kernel};
pub use linear::{Bytes, Linear};
#[cfg(all(feature = "device", feature = "checkpoint"))]
pub use linear::{DevicePieces, PinnedBuffer};
#[cfg(feature = "device")]
pub use linear::{LinearOnDevice, MatricesOnDevice};
#[cfg(feature = "device")]
pub use memory::Device;
pub use memory::{Buffer, Host, Memory};
pub use mlp::Mlp;
#[cfg(feature = "device")]
pub use mlp::{MlpBuffers, MlpOnDevice};
#[doc(inline)]
pub use nvfp4_gemv_targets::products::{Link, LinkKind, Product};
pub use operands::{
    Alignment, Operands, RawOnRead, RawOutput, RawSelect, RawVectors, RawWeights, RawWorkspace,
};
pub use output::Output;
#[cfg(feature = "device")]
pub use quantized::QuantizedVectors;
pub use refusal::Refusal;
pub use scales::convert_scales;
pub use shape::{BLOCK, Dims, Shape, Strides};
pub use tensor::{DenseVectors, GlobalScale, Nvfp4Vectors, VectorScale, Vectors, Weights};
#[cfg(feature = "device")]
pub use tiled_weights::TiledWeights;
pub use types::{Activation, FloatType, GemvPath, RowOrder, ScaleLayout, VectorAccuracy};
#[cfg(feature = "device")]
pub use workspace::Workspace;

/// The sources that decide what runs on a GPU, as this build has them: `folder=hash`, with blanks between.
#[cfg(all(feature = "device", feature = "unstable"))]
pub const TESTED: &str = env!("NVFP4_GEMV_TESTED");

/// cudarc, whose buffers and streams device calls take, in the version that they take.
#[cfg(feature = "device")]
pub use cudarc;
/// f16 and bf16, in the version that calls take.
pub use half;

/// The README's examples are tests; one is of a device.
#[cfg(all(doctest, feature = "device", feature = "checkpoint"))]
#[doc = include_str!("../README.md")]
struct Readme;
