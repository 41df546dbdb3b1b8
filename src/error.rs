//! Everything that can go wrong, each error with what a user needs to mend it.

use std::str::FromStr;

#[cfg(feature = "jit")]
use nvfp4_gemv_nvrtc::NvrtcError;

#[cfg(feature = "jit")]
use crate::nvrtc::{self, NAMES};
use crate::refusal::Refusal;
use crate::types::{Activation, FloatType, GemvPath, ScaleLayout};

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused or failed. Bad input is found before anything is launched or written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// K is 0.
    #[error("K is 0: a row needs at least one block of 16 elements")]
    KZero,

    /// K does not divide into blocks.
    #[error("K = {k} is not a multiple of 16, the NVFP4 block")]
    KNotMultipleOfBlock {
        /// The K that was given.
        k: usize,
    },

    /// A size derived from the shape does not fit.
    #[error("the sizes of M = {m}, N = {n}, K = {k}, L = {l} overflow")]
    #[allow(missing_docs)]
    SizeOverflow {
        m: usize,
        n: usize,
        k: usize,
        l: usize,
    },

    /// Weights were made for other dimensions than the call's.
    #[error("{}", mismatch(weights, call))]
    ShapeMismatch {
        /// M, K and L that the weights were checked against.
        weights: [usize; 3],
        /// M, K and L that the call asks for.
        call: [usize; 3],
    },

    /// A buffer ends before the shape does.
    #[error("{operand}: {got} {unit} are too short, the shape needs {needed}{hint}")]
    BufferTooShort {
        /// The operand's name.
        operand: &'static str,
        /// The unit of the counts: bytes or elements.
        unit: &'static str,
        /// The count that the shape, layout and strides need.
        needed: usize,
        /// The count that is there.
        got: usize,
        /// The probable fault, or empty.
        hint: String,
    },

    /// A buffer goes on behind what the shape needs: what lies there would be left out, or keep its old content.
    #[error(
        "{operand}: {got} {unit} are too long, the shape needs {needed}: pass a slice of so many"
    )]
    BufferTooLong {
        /// The operand's name.
        operand: &'static str,
        /// The unit of the counts: bytes or elements.
        unit: &'static str,
        /// The count that the shape and layout need; with strides, the most that they span.
        needed: usize,
        /// The count that is there.
        got: usize,
    },

    /// Scales are tagged with one layout and have the length of the other.
    #[error(
        "{operand}: tagged {tagged}, which takes {needed} bytes, but the {got} bytes are exactly \
         what the {fits} layout takes"
    )]
    LayoutContradiction {
        /// The operand's name.
        operand: &'static str,
        /// The layout it is tagged with.
        tagged: ScaleLayout,
        /// Bytes of that layout.
        needed: usize,
        /// Bytes that are there.
        got: usize,
        /// The layout that those bytes fit.
        fits: ScaleLayout,
    },

    /// A stride would make rows or batches overlap.
    #[error("{operand}: a stride of {stride} {unit} is smaller than the {needed} it steps over")]
    StrideTooSmall {
        /// The stride's name.
        operand: &'static str,
        /// The unit of the strides: bytes or elements.
        unit: &'static str,
        /// The stride that was given.
        stride: usize,
        /// The smallest stride possible.
        needed: usize,
    },

    /// A stride is larger than kernels can count.
    #[error("{operand}: a stride of {stride} elements; {most} at most")]
    StrideTooLarge {
        /// The stride's name.
        operand: &'static str,
        /// The stride that was given, in elements.
        stride: usize,
        /// The largest stride possible.
        most: usize,
    },

    /// A stride or an offset breaks the alignment kernels need.
    #[error("{operand}: {value:#x} is not a multiple of {align} bytes")]
    Misaligned {
        /// The name of the pointer or stride.
        operand: &'static str,
        /// Its value, in bytes.
        value: u64,
        /// The alignment: the number of bytes that the value must be a multiple of.
        align: u64,
    },

    /// A null pointer where data must be.
    #[error("{operand}: null pointer")]
    NullPointer {
        /// The operand's name.
        operand: &'static str,
    },

    /// A block scale is NaN (0x7F or 0xFF).
    #[error("{operand}: the scale of batch {batch}, row {row}, block {block} is NaN")]
    ScaleNan {
        /// The operand's name.
        operand: &'static str,
        /// Batch of the scale.
        batch: usize,
        /// Row of the scale.
        row: usize,
        /// Block of the scale in its row.
        block: usize,
    },

    /// A block scale has its sign bit set; tensor cores read scales as unsigned.
    #[error(
        "{operand}: the scale of batch {batch}, row {row}, block {block} is negative ({code:#04x})"
    )]
    ScaleNegative {
        /// The operand's name.
        operand: &'static str,
        /// Batch of the scale.
        batch: usize,
        /// Row of the scale.
        row: usize,
        /// Block of the scale in its row.
        block: usize,
        /// The E4M3 code.
        code: u8,
    },

    /// A global scale is zero, negative, NaN, infinite or subnormal. Or a value that is made of it is so: the
    /// reciprocal of a divisor, or the product of the global scales of weights and vectors. Kernels multiply by the
    /// scale in f32, where a subnormal number has lost bits.
    #[error(
        "{operand}: {value:?} is not usable as a scale; it must be positive and finite, and not below {:?}, the \
         least normal f32; a divisor's reciprocal must be so too",
        f32::MIN_POSITIVE
    )]
    GlobalScale {
        /// The scale's name.
        operand: &'static str,
        /// Its value.
        value: f32,
    },

    /// A number of a gate or of an RMSNorm is not positive, or not finite.
    #[error("{operand} is {value}; it must be positive and finite")]
    Factor {
        /// The number's name.
        operand: &'static str,
        /// Its value.
        value: f32,
    },

    /// The weights of an RMSNorm are of another type than the vectors.
    #[error("the RMSNorm's weights are {weight}, its vectors {vectors}; they must be of one type")]
    NormType {
        /// The vectors' type.
        vectors: Activation,
        /// The weights' type.
        weight: Activation,
    },

    /// Experts of one mixture have different gates, or orders of the rows of gate and up.
    #[error(
        "experts have different gates, or orders of the rows of gate and up; on a device all have one"
    )]
    ExpertsDiffer,

    /// Buffers for what lies between layers were made for layers of other sizes.
    #[error(
        "the buffers are for vectors of {found:?} elements before, between and behind two products, and these layers \
         have {needed:?}"
    )]
    BuffersMismatch {
        /// Elements of the vectors before, between and behind the two products.
        found: [usize; 3],
        /// Those that the layers have.
        needed: [usize; 3],
    },

    /// Buffers for what lies between layers were made for chained launches, and the layers are not chained.
    #[error("the buffers were made by chained layers, and these layers are not chained")]
    BuffersChained,

    /// Vectors are to be written several times, as batches that follow each other, and the batches are no multiple of
    /// the times.
    #[error("{batches} batches of vectors are not {copies} of each")]
    Copies {
        /// Times that each batch is written.
        copies: usize,
        /// All batches.
        batches: usize,
    },

    /// A row's alpha is NaN or infinite.
    #[error(
        "row alpha: element {index} is {value}; it must be finite, and 0 or normal where it is a product"
    )]
    RowAlpha {
        /// The element's index.
        index: usize,
        /// Its value.
        value: f32,
    },

    /// A column's alpha is NaN or infinite.
    #[error("column alpha: element {index} is {value}; it must be finite")]
    ColumnAlpha {
        /// The element's index.
        index: usize,
        /// Its value.
        value: f32,
    },

    /// Weights have factors of columns (AWQ's `pre_quant_scale`), and something does not multiply vectors by them.
    #[error(
        "the weights have factors of columns, which vectors are multiplied by first: {why}; multiply the vectors, and \
         take the weights without these factors"
    )]
    HasColumnAlpha {
        /// A layer that does not multiply, and why not.
        why: &'static str,
    },

    /// A batch has a matrix that does not exist.
    #[error("select: batch {batch} has matrix {id}, and there are {matrices}")]
    Select {
        /// The batch.
        batch: usize,
        /// The number of its matrix.
        id: i32,
        /// Matrices that there are.
        matrices: usize,
    },

    /// A vector has an expert that does not exist.
    #[error("slot {slot} of vector {vector} has expert {id}, and there are {experts}")]
    Expert {
        /// The vector.
        vector: usize,
        /// Which of the vector's ids.
        slot: usize,
        /// The expert's number.
        id: i32,
        /// Experts that there are.
        experts: usize,
    },

    /// Weights with a selection of matrices, where all of them are meant.
    #[error(
        "the weights are a selection of matrices; {wants} all of them: take the weights that were selected from"
    )]
    Selected {
        /// The user of all matrices, and how, as part of a sentence.
        wants: &'static str,
    },

    /// A problem's alpha is neither one number nor one for each row.
    #[error("alpha: {got} elements; it has 1, for all rows, or one for each of the {rows} rows")]
    AlphaLength {
        /// The number of its elements.
        got: usize,
        /// M.
        rows: usize,
    },

    /// The output's memory is also an input's.
    #[error("the output overlaps {operand}")]
    OutputOverlaps {
        /// The input's name.
        operand: &'static str,
    },

    /// A residual, which is added to a result, is of another type than the output.
    #[error("the residual is {residual}, the output {output}; they have one type")]
    ResidualType {
        /// The output's element type.
        output: FloatType,
        /// The residual's.
        residual: FloatType,
    },

    /// Threads for calls on the CPU that cannot be.
    #[error("no {threads} threads: {why}")]
    Threads {
        /// Those that were asked for, the caller's own among them.
        threads: usize,
        /// The system's error.
        why: String,
    },

    /// Memory for intermediate data of a call on the CPU that the system does not give.
    #[error("no memory for {bytes} bytes of intermediate data")]
    NoMemory {
        /// The size of the piece that was asked for.
        bytes: usize,
    },

    /// A layer has a bias, and the output that it is given has another.
    #[error("the output has a bias, and so has the layer; one of them can be added")]
    BiasTwice,

    /// Layers that follow each other do not fit.
    #[error("{dimension} is {found}, and {of} is {expected}; they must be equal")]
    LayersMismatch {
        /// The dimension that does not fit.
        dimension: &'static str,
        /// Its size.
        found: usize,
        /// The dimension that it must be equal to.
        of: &'static str,
        /// That one's size.
        expected: usize,
    },

    /// Two buffers of one call share memory, and the call writes one of them.
    #[error("{operand} and {other} overlap")]
    Overlap {
        /// The name of one buffer.
        operand: &'static str,
        /// The name of the other buffer.
        other: &'static str,
    },

    /// Vectors of so many digits, where there can be others only.
    #[error("vectors have {digits} digits, and {takes}")]
    Digits {
        /// Digits of a vector.
        digits: usize,
        /// A clause about the digits that there can be.
        takes: &'static str,
    },

    /// NVFP4 vectors were given to be quantised.
    #[error("the vectors are NVFP4 already; f16, bf16 and f32 can be quantised")]
    AlreadyNvfp4,

    /// The path that was asked for cannot run here.
    #[error("the {path} path is not available: {reason}")]
    PathUnavailable {
        /// The path.
        path: GemvPath,
        /// Why not.
        reason: Refusal,
    },

    /// The kernel that was asked for cannot compute this here.
    #[error("the {kernel} kernel is not available: {reason}")]
    KernelUnavailable {
        /// The kernel's name.
        kernel: &'static str,
        /// Why not.
        reason: Refusal,
    },

    /// The config that was asked for cannot compute this here.
    #[error("{config} cannot run: {reason}")]
    Config {
        /// The config, as text.
        config: String,
        /// Why not.
        reason: Refusal,
    },

    /// Two of a call's options contradict each other: a kernel of one path with another path, or a config of one
    /// kernel with another kernel.
    #[error("the options contradict each other: {given} is of {owner}, and {asked} was asked for")]
    Contradiction {
        /// The kernel's name, or that it is the config, which was given.
        given: &'static str,
        /// The path or kernel that it belongs to.
        owner: &'static str,
        /// The path or kernel that was asked for beside it.
        asked: &'static str,
    },

    /// Operands lie on another device than the stream.
    #[error("{operand}: on device {found}, the stream is on device {stream}")]
    WrongDevice {
        /// The operand's name.
        operand: &'static str,
        /// The device it is on.
        found: usize,
        /// The device of the stream.
        stream: usize,
    },

    /// Operands lie on the stream's device, but in another CUDA context than the stream's.
    #[error(
        "{operand}: in another CUDA context than the stream's; memory of one context cannot be used in another"
    )]
    WrongContext {
        /// The operand's name.
        operand: &'static str,
    },

    /// A prepared call with other operands than it was prepared for.
    #[error(
        "the {operand} are not those that the call was prepared for: addresses, strides, types and \
         global scales are bound when it is prepared; prepare it again"
    )]
    NotAsPrepared {
        /// The operand's name.
        operand: &'static str,
    },

    /// A call that is to be [measured](crate::Options) when it is prepared, while its stream is being captured: measuring
    /// waits for the stream.
    #[error(
        "the call is to be measured when it is prepared, which a stream that is being captured does not allow: prepare it \
         before the capture, or without `Options::measure`"
    )]
    MeasuredInCapture,

    /// A workspace belongs to one stream, and the call is on another: both could use it at the same time.
    #[error(
        "the workspace is another stream's; calls that may run at the same time need one each, and the per-thread \
         default stream, which is another one in each thread, can have none"
    )]
    WorkspaceOfAnotherStream,

    /// Tuned configs of one GPU, and a stream of another.
    #[error(
        "the configs were tuned on {}, the stream is on {device}",
        nvfp4_gemv_files::printable::text(tuned)
    )]
    TunedElsewhere {
        /// The GPU they were tuned on.
        tuned: String,
        /// The GPU of the stream.
        device: String,
    },

    /// The CPU implementation that was asked for cannot run on this CPU.
    #[error("the {implementation} implementation needs {needs}")]
    ImplementationUnavailable {
        /// Its name.
        implementation: &'static str,
        /// The instructions that it needs of a CPU.
        needs: &'static str,
    },

    /// `NVFP4_GEMV_PATH` or a flag names no path.
    #[error("{name:?} is not a path; use auto, {}", listed(&GemvPath::ALL.map(GemvPath::name)))]
    UnknownPath {
        /// The name that was given.
        name: String,
    },

    /// A flag names no kernel.
    #[error("{name:?} is not a kernel; use {}", listed(known))]
    UnknownKernel {
        /// The name that was given.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },

    /// No NVIDIA driver, or one that is too old.
    #[error("no usable NVIDIA driver: {reason}")]
    NoDriver {
        /// Text that says what was looked for and what was found.
        reason: String,
    },

    /// The driver sees no device.
    #[error(
        "the NVIDIA driver sees no device{}",
        if visible.is_empty() { String::new() } else { format!(" (CUDA_VISIBLE_DEVICES={})", nvfp4_gemv_files::printable::text(visible)) }
    )]
    NoDevice {
        /// `CUDA_VISIBLE_DEVICES`, which may hide devices, or empty.
        visible: String,
    },

    /// This build carries no machine code for the device.
    #[error(
        "no kernel image for compute capability {major}.{minor}: this build carries {archs}; {}",
        crate::refusal::other_build(archs, (*major, *minor))
    )]
    NoKernelImage {
        /// Major compute capability of the device.
        major: i32,
        /// Minor compute capability of the device.
        minor: i32,
        /// The architectures compiled in.
        archs: String,
    },

    /// This build carries no machine code, and cannot ask for devices.
    #[error("{}", Refusal::BuiltWithoutKernels)]
    NoKernels,

    /// A kernel is to be compiled at run time, and cannot be.
    #[cfg(feature = "jit")]
    #[error("{kernel} is to be compiled for this device: {error}{}", hint(error))]
    Jit {
        /// The kernel.
        kernel: &'static str,
        /// Why not.
        error: Box<NvrtcError>,
    },

    /// A launch that is to be compiled names a kernel that its unit does not have, or no unit. Launches of plans do
    /// not.
    #[cfg(feature = "jit")]
    #[error(
        "there is no kernel {kernel:?} in a unit {unit:?}; a launch of a plan names one that is there"
    )]
    NoEntry {
        /// The kernel that was asked for.
        kernel: &'static str,
        /// The unit that was asked for.
        unit: &'static str,
    },

    /// The driver does not take a kernel that was compiled at run time: it is older than NVRTC.
    #[cfg(feature = "jit")]
    #[error(
        "{kernel} was compiled for this device by NVRTC {}.{}, and the driver, which supports CUDA {}.{}, does not take it \
         ({message}): a driver takes code of the NVRTC of its own major release, and of older ones. Update the driver, or \
         set {} to the folder of libnvrtc.so of such a release",
        nvrtc.0,
        nvrtc.1,
        driver.0,
        driver.1,
        NAMES.place
    )]
    NotLoaded {
        /// The kernel.
        kernel: &'static str,
        /// Major and minor of NVRTC's release.
        nvrtc: (u32, u32),
        /// Major and minor of the newest CUDA that the driver supports.
        driver: (i32, i32),
        /// The driver's text.
        message: String,
    },

    /// A call that is being captured into a graph takes a kernel that is still to be compiled: a call compiles nothing
    /// then.
    #[cfg(feature = "jit")]
    #[error(
        "{kernel} is still to be compiled for this device, and the stream is being captured; prepare the call, or call it \
         once, before the capture"
    )]
    NotCompiled {
        /// The kernel.
        kernel: &'static str,
    },

    /// CUDA reported an error.
    #[error("{during}: CUDA error {code} ({message})")]
    Cuda {
        /// The operation during which CUDA reported the error.
        during: &'static str,
        /// The `cudaError_t` or `CUresult`.
        code: i32,
        /// CUDA's own text.
        message: String,
    },
}

impl FromStr for GemvPath {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::from_name(name).ok_or_else(|| Error::UnknownPath { name: name.into() })
    }
}

/// Advice that helps, as a sentence behind the error.
#[cfg(feature = "jit")]
fn hint(error: &NvrtcError) -> String {
    let hint = nvrtc::hint(error);
    hint.map_or(String::new(), |hint| format!(". {hint}"))
}

/// Names as a list: `cpu, cuda-core or tensor-core`.
fn listed(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// The dimensions in which a call differs from the weights, by name.
fn mismatch(weights: &[usize; 3], call: &[usize; 3]) -> String {
    let list = |of: &[usize; 3]| {
        let differ = (0..3).filter(|&i| weights[i] != call[i]);
        let named: Vec<String> = differ
            .map(|i| format!("{} = {}", ["M", "K", "L"][i], of[i]))
            .collect();
        named.join(", ")
    };
    let (weights, call) = (list(weights), list(call));
    format!("the weights have {weights}, the call has {call}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_names_the_dimensions_that_differ() {
        let says = |weights, call| Error::ShapeMismatch { weights, call }.to_string();
        assert_eq!(
            says([2, 16, 1], [2, 16, 4]),
            "the weights have L = 1, the call has L = 4"
        );
        assert_eq!(
            says([2, 16, 1], [3, 32, 1]),
            "the weights have M = 2, K = 16, the call has M = 3, K = 32"
        );
    }

    #[cfg(feature = "jit")]
    #[test]
    fn a_driver_that_is_older_than_nvrtc_is_named_with_what_helps() {
        let error = Error::NotLoaded {
            kernel: "gemv_mine_f16",
            nvrtc: (13, 0),
            driver: (12, 4),
            message: "device kernel image is invalid".into(),
        };
        let says = error.to_string();
        for part in [
            "gemv_mine_f16",
            "NVRTC 13.0",
            "supports CUDA 12.4",
            "device kernel image is invalid",
            "Update the driver",
            NAMES.place,
        ] {
            assert!(says.contains(part), "{part}: {says}");
        }
    }

    #[test]
    fn names_of_paths_round_trip_and_unknown_ones_are_told_which_there_are() {
        for path in GemvPath::ALL {
            assert_eq!(path.name().parse(), Ok(path));
        }
        assert_eq!(
            "gpu".parse::<GemvPath>().unwrap_err().to_string(),
            "\"gpu\" is not a path; use auto, cpu, cuda-core or tensor-core"
        );
    }
}
