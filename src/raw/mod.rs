//! The unsafe pointer API: device addresses and a stream, no cudarc type. For engines that keep
//! their own buffers.
//!
//! A [`Call`] is a problem by address; making one checks everything that can be checked without reading device memory.
//! A function that enqueues kernels allocates nothing on the device, synchronises nothing and copies nothing: it can be
//! [captured into a CUDA graph](crate#cuda-graphs). [`PreparedRawGemv`] does once the work that every [`gemv()`] would
//! do again, and leaves the launches.
//!
//! # Kernels that are compiled
//!
//! With feature `jit`, on a device that this build has no machine code for, [`gemv()`], [`quantize()`], [`combine()`] and
//! [`relayout()`] compile kernels: those that this process has not asked for before. That takes seconds, reads and
//! writes files, and is not done while the stream is being captured. [`PreparedRawGemv::new`] compiles beforehand;
//! launches of a prepared call never compile. The documentation of module `jit` has the rest.
//!
//! # Examples
//!
//! A call on addresses and a stream of an engine:
//!
//! ```no_run
//! use std::ffi::c_void;
//! use nvfp4_gemv::raw::{self, Call, RawOutput, RawVectors, RawWeights};
//! use nvfp4_gemv::{Choice, FloatType, Gpu, Options, Shape, Strides};
//!
//! /// Enqueues y = alpha * W x of one f16 vector `x` and an f32 `y`, both packed, and says with which kernel.
//! ///
//! /// # Safety
//! /// The context of `stream` is current. All addresses are of its device's memory, and stay valid, for as many bytes
//! /// as the shape says, until the enqueued work has run. Nothing else writes them, or reads `y`, meanwhile.
//! unsafe fn layer(
//!     shape: &Shape,
//!     weights: &RawWeights,
//!     (x, y): (u64, u64),
//!     gpu: &Gpu,
//!     stream: *mut c_void,
//! ) -> nvfp4_gemv::Result<Choice> {
//!     let [row, batch] = [shape.k() * FloatType::F16.bytes(); 2];
//!     let strides = Strides { row, batch };
//!     let vectors = RawVectors::Dense { element: FloatType::F16, values: x, strides };
//!     let output = RawOutput::packed(y, FloatType::F32);
//!     let call = Call::new(shape, weights, &vectors, &output)?; // checks addresses and sizes, reads no memory
//!     // SAFETY: this function's own contract.
//!     unsafe { raw::gemv(&call, gpu, &Options::new(), stream) }
//! }
//!
//! raw::device_count()?; // an error that says what is missing, where there is no driver or no device
//! let gpu = raw::gpu(0)?; // asked once, and kept
//! # Ok::<(), nvfp4_gemv::Error>(())
//! ```
//!
//! The layer of the example above for every token of a model: prepared when the engine has placed its buffers, launched
//! from then on.
//!
//! ```no_run
//! use std::ffi::c_void;
//! use nvfp4_gemv::raw::{Call, PreparedRawGemv};
//! use nvfp4_gemv::{Gpu, Options};
//!
//! struct Layer {
//!     gemv: PreparedRawGemv, // owns no memory: the engine keeps the buffers
//! }
//!
//! impl Layer {
//!     /// The context that the layer will run in is current.
//!     fn new(call: &Call, gpu: &Gpu) -> nvfp4_gemv::Result<Self> {
//!         let gemv = PreparedRawGemv::new(call, gpu, &Options::new())?;
//!         Ok(Self { gemv })
//!     }
//!
//!     /// # Safety
//!     /// The context that this was made in is current, `stream` is one of it, and the call's addresses are valid as
//!     /// [`PreparedRawGemv::run`] says.
//!     unsafe fn run(&self, stream: *mut c_void) -> nvfp4_gemv::Result<()> {
//!         // SAFETY: this function's own contract.
//!         unsafe { self.gemv.run(stream) }
//!     }
//! }
//! ```

mod combine;
mod device;
mod driver;
mod gemv;
mod launch;
mod quantize;
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unreachable_pub))]
mod read_only;
mod relayout;
#[cfg_attr(all(feature = "jit", nvfp4_gemv_no_kernels), allow(dead_code))]
mod runtime;

pub use crate::kernel::Call;
pub use crate::operands::{RawOnRead, RawOutput, RawSelect, RawVectors, RawWeights, RawWorkspace};
pub(crate) use combine::check_combine;
pub use combine::combine;
pub use device::{COMPILED_ARCHS, KERNELS, Versions, device_count, gpu, versions};
#[cfg(all(feature = "jit", feature = "tune"))]
pub(crate) use driver::compile_ahead;
pub use gemv::{PreparedRawGemv, gemv};
pub use quantize::quantize;
#[cfg(feature = "unstable")]
pub use read_only::{prepare_read_only, read_only};
#[cfg(not(feature = "unstable"))]
pub(crate) use read_only::{prepare_read_only, read_only};
pub use relayout::relayout;
