//! The GEMV kernels, and the read-only kernel they are measured against.

use std::ffi::c_void;

use super::call::Call;
use super::device::{COMPILED_ARCHS, DeviceInfo, status};
use super::operand::{Regions, layout_code, pointer, reach, strided};
use crate::check;
use crate::config::{Config, CudaCoreConfig, CudaCoreKernel, CudaCoreTarget};
use crate::error::{Error, Result};
use crate::ffi;
use crate::path::has_wide_loads;
use crate::shape::Shape;
use crate::tensor::{GlobalScale, Strides};
use crate::types::ScaleLayout;
use crate::types::{Activation, FloatType};

/// NVFP4 weights by address; see [`crate::Weights`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Packed E2M1 codes `[L][M][K/2]`, 8-byte aligned; 16-byte alignment is faster, and 32-byte
    /// alignment on Blackwell.
    pub codes: u64,
    /// E4M3 block scales, densely packed batches; 4-byte aligned in the 128x4 layout.
    pub scales: u64,
    /// How the scales lie.
    pub layout: ScaleLayout,
    /// The global scale.
    pub global: GlobalScale,
    /// f32 factors of the rows, 4-byte aligned, or 0.
    pub row_alpha: u64,
    /// Elements from one batch's row factors to the next's: 0 (shared) or M.
    pub row_alpha_batch_stride: usize,
}

/// Vectors by address; see [`crate::Vectors`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Vectors {
    /// 4-bit activations.
    Nvfp4 {
        /// Packed E2M1 codes, 8-byte aligned.
        codes: u64,
        /// Their strides in bytes, multiples of 8.
        code_strides: Strides,
        /// E4M3 block scales; any alignment.
        scales: u64,
        /// How the scales lie.
        layout: ScaleLayout,
        /// Their strides in bytes; the 128x4 layout uses the batch stride only.
        scale_strides: Strides,
        /// The global scale of all vectors.
        global: GlobalScale,
        /// f32 factors `[L][N]`, 4-byte aligned, or 0.
        vector_alpha: u64,
    },
    /// 16- or 32-bit activations.
    Dense {
        /// Their element type.
        element: FloatType,
        /// The elements, 16-byte aligned.
        values: u64,
        /// Strides in bytes, multiples of 16.
        strides: Strides,
    },
}

/// The output by address: `[L][N][M]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Output {
    /// Aligned to its elements.
    pub address: u64,
    /// The element type.
    pub element: FloatType,
}

/// The most blocks of a row that one load can have, of weights at these addresses on a device: 4 (32 bytes)
/// where this build has kernels for it, else 2 (16 bytes), or 1 (8 bytes) where that is all that K and the
/// addresses allow. Loads of `b` blocks need K to be a multiple of `16 * b`, codes aligned to `8 * b` bytes and
/// scales to `b`.
pub fn most_blocks_per_load(shape: &Shape, codes: u64, scales: u64, device: &DeviceInfo) -> u32 {
    let aligned = |blocks: u32| {
        let bytes = u64::from(blocks);
        shape.blocks().is_multiple_of(blocks as usize)
            && codes.is_multiple_of(8 * bytes)
            && scales.is_multiple_of(bytes)
    };
    match () {
        () if aligned(4) && has_wide_loads(device.compute_capability, COMPILED_ARCHS) => 4,
        () if aligned(2) => 2,
        () => 1,
    }
}

/// What [`CudaCoreConfig::for_problem`] asks about operands on a device.
pub fn cuda_core_target(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> CudaCoreTarget {
    CudaCoreTarget {
        activation: vectors.activation(),
        most_blocks_per_load: most_blocks_per_load(shape, weights.codes, weights.scales, device),
        tiled: weights.layout == ScaleLayout::Tiled128x4,
        multiprocessors: device.multiprocessors,
        shared_bytes: device.shared_bytes,
    }
}

impl Vectors {
    pub(super) fn activation(&self) -> Activation {
        match self {
            Self::Nvfp4 { .. } => Activation::Nvfp4,
            Self::Dense { element, .. } => match element {
                FloatType::F16 => Activation::F16,
                FloatType::Bf16 => Activation::Bf16,
                FloatType::F32 => Activation::F32,
            },
        }
    }
}

/// Enqueues one problem's kernels, as `config` cuts them, on `stream`, a `CUstream` or `cudaStream_t`. Each
/// kind of [`Config`] has a function of its own, which this one stands for: [`cuda_core`],
/// [`tiled`](super::tiled()), [`stream`](super::stream()) or [`ring`](super::ring()). Can be
/// [captured into a CUDA graph](crate#cuda-graphs).
///
/// # Errors
/// As theirs.
///
/// # Safety
/// The context of `stream` is current, and every address is valid in it, for the bytes that the
/// shape and strides reach, until the work that this call enqueues has run. Nothing else writes
/// them, or reads the output, meanwhile. Where `config` [is chained](Config::is_dependent), no kernel that may
/// still be running when this one starts writes the weights or their scales:
/// [`Config`](Config#programmatic-dependent-launch) says which those are.
///
/// What is captured into a graph runs at each replay: all of this holds until the last one has run.
pub unsafe fn gemv(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    output: &Output,
    config: &Config,
    device: &DeviceInfo,
    stream: *mut c_void,
) -> Result<()> {
    match Call::new(shape, weights, vectors, output, config, device)? {
        // SAFETY: this function's own contract.
        Some(call) => unsafe { call.launch(stream) },
        None => Ok(()),
    }
}

/// Enqueues the CUDA-core kernels for one problem on `stream`, a `CUstream` or `cudaStream_t`.
/// M = 0 or L = 0 enqueues nothing.
///
/// # Errors
/// Null or misaligned pointers, strides that are too small or misaligned, a global scale that is
/// [not usable](Error::GlobalScale), an output that overlaps an input, a configuration that cannot run on
/// `device`; and what CUDA reports of the launch. Content in device memory is not looked at.
///
/// # Safety
/// As [`gemv`]'s.
pub unsafe fn cuda_core(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    output: &Output,
    config: &CudaCoreConfig,
    device: &DeviceInfo,
    stream: *mut c_void,
) -> Result<()> {
    let config = Config::from(*config);
    // SAFETY: this function's own contract.
    unsafe { gemv(shape, weights, vectors, output, &config, device, stream) }
}

/// Checks a configuration and translates it for the C ABI.
pub(super) fn cuda_core_config(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    config: &CudaCoreConfig,
    device: &DeviceInfo,
) -> Result<ffi::nvfp4_cuda_core_config> {
    let target = cuda_core_target(shape, weights, vectors, device);
    if !config.is_legal(shape, &target) {
        return Err(Error::Config {
            config: *config,
            target,
        });
    }
    Ok(ffi::nvfp4_cuda_core_config {
        kernel: match config.kernel {
            CudaCoreKernel::Direct => ffi::NVFP4_KERNEL_DIRECT,
            CudaCoreKernel::IntegerDot => ffi::NVFP4_KERNEL_INTEGER_DOT,
        } as i32,
        blocks_per_load: config.blocks_per_load as i32,
        warps: config.warps as i32,
        k_split: config.k_split as i32,
        ctas: config.ctas as i32,
        // Older devices have no such launch; the kernel is right without it.
        dependent: (config.dependent && device.compute_capability >= (9, 0)).into(),
    })
}

/// Enqueues a kernel that only reads `bytes` (rounded down to a multiple of 16) at `data`: the
/// ceiling for any kernel that must read as much. `sink` is 4 bytes that are practically never
/// written.
///
/// # Errors
/// Null or misaligned pointers, and what CUDA reports of the launch.
///
/// # Safety
/// The context of `stream` is current, `data` and `sink` are valid in it until the enqueued work has run,
/// and nothing else writes them meanwhile.
pub unsafe fn read_only(
    data: u64,
    bytes: usize,
    sink: u64,
    multiprocessors: u32,
    stream: *mut c_void,
) -> Result<()> {
    pointer("data", data, 16)?;
    pointer("sink", sink, 4)?;
    // The launcher makes several CTAs of each.
    let multiprocessors = multiprocessors.min(1 << 20) as i32;
    // SAFETY: this function's own contract.
    let code =
        unsafe { ffi::nvfp4_gemv_read_only(data, bytes as i64, sink, multiprocessors, stream) };
    status("launching read_only", code)
}

/// Checks everything and translates it for the C ABI.
pub(super) fn arguments(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    output: &Output,
) -> Result<ffi::nvfp4_gemv_args> {
    let mut regions = Regions::default();
    pointer("weight codes", weights.codes, 8)?;
    regions.push("weight codes", weights.codes, shape.weight_code_bytes());
    let scale_align = match weights.layout {
        ScaleLayout::Linear => 1,
        ScaleLayout::Tiled128x4 => 4,
    };
    pointer("weight scales", weights.scales, scale_align)?;
    regions.push(
        "weight scales",
        weights.scales,
        shape.weight_scale_bytes(weights.layout),
    );
    if weights.row_alpha != 0 {
        pointer("row alpha", weights.row_alpha, 4)?;
        let rows = reach(shape, weights.row_alpha_batch_stride, shape.m())?;
        regions.push("row alpha", weights.row_alpha, rows.saturating_mul(4));
    }
    weights.global.check("weight global scale")?;

    let mut args = ffi::nvfp4_gemv_args {
        m: shape.m() as i32,
        n: shape.n() as i32,
        k: shape.k() as i32,
        l: shape.l() as i32,
        weight_codes: weights.codes,
        weight_scales: weights.scales,
        weight_scale_layout: layout_code(weights.layout),
        alpha: 0.0,
        row_alpha: weights.row_alpha,
        row_alpha_batch_stride: weights.row_alpha_batch_stride as i64,
        activation: 0,
        vector_scale_layout: ffi::NVFP4_SCALES_LINEAR as i32,
        vectors: 0,
        vector_row_stride: 0,
        vector_batch_stride: 0,
        vector_scales: 0,
        vector_scale_row_stride: 0,
        vector_scale_batch_stride: 0,
        vector_alpha: 0,
        output: output.address,
        output_type: match output.element {
            FloatType::F16 => ffi::NVFP4_OUTPUT_F16,
            FloatType::Bf16 => ffi::NVFP4_OUTPUT_BF16,
            FloatType::F32 => ffi::NVFP4_OUTPUT_F32,
        } as i32,
    };
    match *vectors {
        Vectors::Nvfp4 {
            codes,
            code_strides,
            scales,
            layout,
            scale_strides,
            global,
            vector_alpha,
        } => {
            pointer("vector codes", codes, 8)?;
            let bytes = strided(
                "vector codes",
                shape,
                code_strides,
                shape.row_code_bytes(),
                8,
            )?;
            regions.push("vector codes", codes, bytes);
            pointer("vector scales", scales, 1)?;
            let bytes = match layout {
                ScaleLayout::Linear => {
                    strided("vector scales", shape, scale_strides, shape.blocks(), 1)?
                }
                ScaleLayout::Tiled128x4 => {
                    let bytes = layout.bytes(shape.n(), shape.blocks());
                    if shape.l() > 1 {
                        check::stride("vector scales", "bytes", scale_strides.batch, bytes)?;
                    }
                    reach(shape, scale_strides.batch, bytes)?
                }
            };
            regions.push("vector scales", scales, bytes);
            if vector_alpha != 0 {
                pointer("vector global scales", vector_alpha, 4)?;
                regions.push(
                    "vector global scales",
                    vector_alpha,
                    shape.l() * shape.n() * 4,
                );
            }
            global.check("vector global scale")?;
            args.activation = ffi::NVFP4_ACTIVATION_NVFP4 as i32;
            args.vectors = codes;
            args.vector_row_stride = code_strides.row as i64;
            args.vector_batch_stride = code_strides.batch as i64;
            args.vector_scales = scales;
            args.vector_scale_layout = layout_code(layout);
            args.vector_scale_row_stride = scale_strides.row as i64;
            args.vector_scale_batch_stride = scale_strides.batch as i64;
            args.vector_alpha = vector_alpha;
            args.alpha = crate::tensor::combine(weights.global, global)?;
        }
        Vectors::Dense {
            element,
            values,
            strides,
        } => {
            let code = match element {
                FloatType::F16 => ffi::NVFP4_ACTIVATION_F16,
                FloatType::Bf16 => ffi::NVFP4_ACTIVATION_BF16,
                FloatType::F32 => ffi::NVFP4_ACTIVATION_F32,
            };
            pointer("vectors", values, 16)?;
            let bytes = strided("vectors", shape, strides, shape.k() * element.bytes(), 16)?;
            regions.push("vectors", values, bytes);
            args.activation = code as i32;
            args.vectors = values;
            args.vector_row_stride = strides.row as i64;
            args.vector_batch_stride = strides.batch as i64;
            args.alpha = crate::tensor::combine(weights.global, GlobalScale::ONE)?;
        }
    }
    let element = output.element.bytes();
    pointer("output", output.address, element as u64)?;
    regions.check_disjoint(output.address, shape.outputs() * element)?;
    Ok(args)
}
