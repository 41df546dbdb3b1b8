//! What each path needs of a device and of a problem.

use std::fmt;

use super::Path;
#[cfg(feature = "cuda")]
use crate::config::{RING_STEP, STREAM_STEP, StreamConfig, StreamTarget};
use crate::shape::Shape;
use crate::types::Activation;
use crate::types::ScaleLayout;

/// Where the operands lie, and what the machine there can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Host memory.
    Host,
    /// A CUDA device's memory.
    Cuda {
        /// Its compute capability, major and minor.
        compute_capability: (i32, i32),
        /// The architectures this build carries, as in `NVFP4_GEMV_ARCHS`: `"80;90a;100a"`.
        archs: &'static str,
        /// The GPU's product name, where this crate comes with measurements of it.
        model: Option<&'static str>,
    },
}

/// What dispatch asks about operands besides their shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operands {
    /// The vectors' element type.
    pub activation: Activation,
    /// How the weights' block scales lie.
    pub weight_layout: ScaleLayout,
    /// How NVFP4 vectors' block scales lie; of no meaning for others.
    pub vector_layout: ScaleLayout,
    /// Addresses and strides of codes, and addresses of scales, are multiples of 16 bytes.
    pub aligned: bool,
}

impl Operands {
    /// Aligned operands whose scales all lie in `layout`. Vectors without scales count as linear.
    pub fn new(activation: Activation, layout: ScaleLayout) -> Self {
        Self {
            activation,
            weight_layout: layout,
            vector_layout: match activation {
                Activation::Nvfp4 => layout,
                _ => ScaleLayout::Linear,
            },
            aligned: true,
        }
    }
}

/// Why a path cannot run a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// A GPU path, and operands in host memory.
    OperandsOnHost,
    /// The CPU path, and operands in device memory.
    OperandsOnDevice,
    /// Built without the `cuda` feature.
    BuiltWithoutCuda,
    /// The device lacks what the path is made of.
    ComputeCapability {
        /// The device's.
        found: (i32, i32),
        /// What the path needs.
        needed: &'static str,
    },
    /// No machine code for this device in this build.
    NoKernelImage {
        /// The device's compute capability.
        compute_capability: (i32, i32),
        /// What this build carries.
        archs: &'static str,
    },
    /// A build without kernels, for documentation, editors and `cargo check`: `NVFP4_GEMV_NO_KERNELS`.
    BuiltWithoutKernels,
    /// The path does not multiply such vectors.
    Activation {
        /// The vectors' element type.
        found: Activation,
        /// Those that it multiplies.
        takes: &'static str,
    },
    /// The path reads scales in the 128x4 layout only.
    ScaleLayout {
        /// Whose scales are linear.
        operand: &'static str,
    },
    /// The path copies whole 16-byte pieces of rows.
    RowLength {
        /// Elements of a row.
        k: usize,
        /// What K must be.
        needed: &'static str,
    },
    /// The path keeps the vectors of a pass in shared memory, beside a stage of weights.
    VectorMemory,
    /// More rows than the path counts.
    Rows,
    /// The device has too little shared memory for the path's smallest configuration.
    SharedMemory,
    /// Addresses or strides are no multiples of 16 bytes.
    Alignment,
    /// A batch's codes are more than a tensor map can step over.
    Size,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OperandsOnHost => {
                f.write_str("the operands are in host memory; copy them to a device first")
            }
            Self::OperandsOnDevice => {
                f.write_str("the operands are in device memory; copy them to the host first")
            }
            Self::BuiltWithoutCuda => f.write_str("built without the `cuda` feature"),
            Self::ComputeCapability {
                found: (major, minor),
                needed,
            } => write!(
                f,
                "the device has compute capability {major}.{minor}, the path needs {needed}"
            ),
            Self::NoKernelImage {
                compute_capability: (major, minor),
                archs,
            } => write!(
                f,
                "this build carries machine code for {archs}, none of which runs this path on \
                 compute capability {major}.{minor}; rebuild with NVFP4_GEMV_ARCHS naming it"
            ),
            Self::BuiltWithoutKernels => f.write_str(
                "this build carries no kernels: NVFP4_GEMV_NO_KERNELS (or DOCS_RS) was set when it was \
                 built; unset it and build again",
            ),
            Self::Activation { found, takes } => write!(
                f,
                "the vectors are {found}, the path multiplies {takes} vectors; QuantizedVectors \
                 makes NVFP4 ones on the device"
            ),
            Self::ScaleLayout { operand } => write!(
                f,
                "the {operand} are linear, the path reads the 128x4 layout; PreparedWeights and \
                 QuantizedVectors, or convert_scales on the host, make it"
            ),
            Self::RowLength { k, needed } => write!(f, "K is {k}, the path needs {needed}"),
            Self::VectorMemory => f.write_str(
                "the vectors do not fit the device's shared memory beside a stage of weights; fewer \
                 vectors a call, or NVFP4 instead of 16-bit ones, take less",
            ),
            Self::Rows => f.write_str("the batches have 2^31 rows or more in all"),
            Self::SharedMemory => {
                f.write_str("the device has too little shared memory for two stages of the path")
            }
            Self::Alignment => f.write_str(
                "codes, their strides and scales must be aligned to 16 bytes for the path's bulk \
                 copies",
            ),
            Self::Size => {
                f.write_str("a batch of codes has 2^40 bytes or more, too many for a tensor map")
            }
        }
    }
}

/// Whether `path` can compute the problem on `target`.
pub fn available(
    path: Path,
    shape: &Shape,
    operands: &Operands,
    target: &Target,
) -> Result<(), Unavailable> {
    let &Target::Cuda {
        compute_capability,
        archs,
        ..
    } = target
    else {
        return match path {
            Path::Cpu => Ok(()),
            _ if cfg!(not(feature = "cuda")) => Err(Unavailable::BuiltWithoutCuda),
            _ => Err(Unavailable::OperandsOnHost),
        };
    };
    match path {
        Path::Cpu => Err(Unavailable::OperandsOnDevice),
        Path::CudaCore => {
            needs(compute_capability, (8, 0), "8.0 or newer")?;
            image(compute_capability, archs, |_| true)
        }
        Path::CudaCoreTma => {
            needs(compute_capability, (9, 0), "9.0 or newer")?;
            image(compute_capability, archs, |arch| arch.number >= 90)?;
            tiled(shape, operands)
        }
        Path::TensorCore => {
            if compute_capability.0 != 10 {
                return Err(Unavailable::ComputeCapability {
                    found: compute_capability,
                    needed: "10.x",
                });
            }
            image(compute_capability, archs, |arch| !arch.suffix.is_empty())?;
            tiled(shape, operands)
        }
    }
}

/// Whether the ring kernel of the path [`Path::CudaCore`] can run on `target` with such operands. Which shapes it
/// takes is its configuration's matter.
#[cfg(feature = "cuda")]
pub(crate) fn ring_available(
    shape: &Shape,
    operands: &Operands,
    target: &Target,
) -> Result<(), Unavailable> {
    available(Path::CudaCore, shape, operands, target)?;
    let &Target::Cuda {
        compute_capability,
        archs,
        ..
    } = target
    else {
        return Err(Unavailable::OperandsOnHost);
    };
    needs(compute_capability, (9, 0), "9.0 or newer")?;
    image(compute_capability, archs, |arch| arch.number >= 90)?;
    if operands.activation != Activation::Nvfp4 {
        return Err(Unavailable::Activation {
            found: operands.activation,
            takes: "NVFP4",
        });
    }
    row_length(shape, RING_STEP, "a multiple of 256")?;
    match operands.aligned {
        true => Ok(()),
        false => Err(Unavailable::Alignment),
    }
}

/// Whether the stream kernel of the path [`Path::CudaCore`] can compute the problem on `target`.
#[cfg(feature = "cuda")]
pub(crate) fn stream_available(
    shape: &Shape,
    operands: &Operands,
    target: &Target,
) -> Result<(), Unavailable> {
    available(Path::CudaCore, shape, operands, target)?;
    let &Target::Cuda {
        compute_capability, ..
    } = target
    else {
        return Err(Unavailable::OperandsOnHost);
    };
    stream(shape, operands, compute_capability)
}

/// Whether the build carries kernels with 32-byte loads for a device: architecture-specific code of
/// Blackwell.
#[cfg(feature = "cuda")]
pub(crate) fn has_wide_loads(compute_capability: (i32, i32), archs: &'static str) -> bool {
    let has_them = |arch: &Arch<'_>| arch.number >= 100 && !arch.suffix.is_empty();
    image(compute_capability, archs, has_them).is_ok()
}

fn needs(found: (i32, i32), least: (i32, i32), needed: &'static str) -> Result<(), Unavailable> {
    match found >= least {
        true => Ok(()),
        false => Err(Unavailable::ComputeCapability { found, needed }),
    }
}

/// What the stream kernel needs.
#[cfg(feature = "cuda")]
fn stream(
    shape: &Shape,
    operands: &Operands,
    compute_capability: (i32, i32),
) -> Result<(), Unavailable> {
    if operands.activation == Activation::F32 {
        return Err(Unavailable::Activation {
            found: operands.activation,
            takes: "NVFP4, f16 and bf16",
        });
    }
    row_length(shape, STREAM_STEP, "a multiple of 256")?;
    if !operands.aligned {
        return Err(Unavailable::Alignment);
    }
    if (shape.m() + 127) * shape.l() >= 1 << 31 {
        return Err(Unavailable::Rows);
    }
    let target = StreamTarget {
        activation: operands.activation,
        tiled: operands.weight_layout == ScaleLayout::Tiled128x4,
        multiprocessors: 1,
        shared_bytes: shared_bytes(compute_capability),
    };
    match shape.is_empty() || StreamConfig::any_is_legal(shape, &target) {
        true => Ok(()),
        false => Err(Unavailable::VectorMemory),
    }
}

#[cfg(feature = "cuda")]
fn row_length(shape: &Shape, of: usize, needed: &'static str) -> Result<(), Unavailable> {
    match shape.k().is_multiple_of(of) {
        true => Ok(()),
        false => Err(Unavailable::RowLength {
            k: shape.k(),
            needed,
        }),
    }
}

/// Bytes of shared memory that a CTA can have.
///
/// Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
#[cfg(feature = "cuda")]
fn shared_bytes(compute_capability: (i32, i32)) -> u32 {
    match compute_capability {
        (8, 0 | 7) => 163 << 10,
        (9..12, _) => 227 << 10,
        _ => 99 << 10,
    }
}

/// What the kernels that stream tiles through shared memory need.
fn tiled(shape: &Shape, operands: &Operands) -> Result<(), Unavailable> {
    if operands.activation != Activation::Nvfp4 {
        return Err(Unavailable::Activation {
            found: operands.activation,
            takes: "NVFP4",
        });
    }
    for (layout, operand) in [
        (operands.weight_layout, "weights' scales"),
        (operands.vector_layout, "vectors' scales"),
    ] {
        if layout != ScaleLayout::Tiled128x4 {
            return Err(Unavailable::ScaleLayout { operand });
        }
    }
    if !shape.k().is_multiple_of(32) {
        return Err(Unavailable::RowLength {
            k: shape.k(),
            needed: "a multiple of 32",
        });
    }
    if !operands.aligned {
        return Err(Unavailable::Alignment);
    }
    // cuTensorMapEncodeTiled: strides are below 2^40.
    if shape.m() * shape.row_code_bytes() >= 1 << 40 {
        return Err(Unavailable::Size);
    }
    Ok(())
}

/// Whether the build carries machine code for the device, of the architectures that have the path.
fn image(
    compute_capability: (i32, i32),
    archs: &'static str,
    has_path: impl Fn(&Arch<'_>) -> bool,
) -> Result<(), Unavailable> {
    if archs.is_empty() {
        return Err(Unavailable::BuiltWithoutKernels);
    }
    let runs = |arch: &str| {
        Arch::parse(arch).is_some_and(|arch| has_path(&arch) && arch.runs_on(compute_capability))
    };
    if archs.split(';').any(runs) {
        return Ok(());
    }
    Err(Unavailable::NoKernelImage {
        compute_capability,
        archs,
    })
}

/// An architecture as nvcc names it, without `sm_`.
struct Arch<'a> {
    number: i32,
    suffix: &'a str,
}

impl<'a> Arch<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let digits = name.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        Some(Self {
            number: digits.parse().ok()?,
            suffix: &name[digits.len()..],
        })
    }

    /// Plain numbers run on the same major and an equal or higher minor, `f` on the same family, `a`
    /// on exactly that device.
    ///
    /// Source: CUDA C++ Programming Guide, "Compute capability" and "Family- and
    /// architecture-specific features".
    fn runs_on(&self, (major, minor): (i32, i32)) -> bool {
        let (arch_major, arch_minor) = (self.number / 10, self.number % 10);
        match self.suffix {
            "a" => (arch_major, arch_minor) == (major, minor),
            "" | "f" => arch_major == major && arch_minor <= minor,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuda(major: i32, minor: i32, archs: &'static str) -> Target {
        Target::Cuda {
            compute_capability: (major, minor),
            archs,
            model: None,
        }
    }

    #[test]
    fn which_architecture_runs_where() {
        for (arch, cc, runs) in [
            ("80", (8, 0), true),
            ("80", (8, 9), true),
            ("89", (8, 6), false),
            ("80", (9, 0), false),
            ("90a", (9, 0), true),
            ("100a", (10, 0), true),
            ("100a", (10, 3), false),
            ("100f", (10, 3), true),
            ("120a", (12, 1), false),
            ("121a", (12, 1), true),
            ("", (8, 0), false),
            ("80x", (8, 0), false),
        ] {
            let arch_runs = Arch::parse(arch).is_some_and(|arch| arch.runs_on(cc));
            assert_eq!(arch_runs, runs, "{arch} on {cc:?}");
        }
    }

    const TILED: ScaleLayout = ScaleLayout::Tiled128x4;

    fn says(why: Result<(), Unavailable>, text: &str) {
        let why = why.unwrap_err().to_string();
        assert!(why.contains(text), "{text}: {why}");
    }

    #[test]
    fn what_the_tiled_kernels_need() {
        let operands = Operands::new(Activation::Nvfp4, TILED);
        let shape = Shape::gemv(128, 96, 1).unwrap();
        for (operands, text) in [
            (
                Operands {
                    activation: Activation::F16,
                    ..operands
                },
                "multiplies NVFP4 vectors",
            ),
            (
                Operands {
                    weight_layout: ScaleLayout::Linear,
                    ..operands
                },
                "weights' scales are linear",
            ),
            (
                Operands {
                    vector_layout: ScaleLayout::Linear,
                    ..operands
                },
                "vectors' scales are linear",
            ),
            (
                Operands {
                    aligned: false,
                    ..operands
                },
                "16 bytes",
            ),
        ] {
            says(tiled(&shape, &operands), text);
            let tensor_core = available(Path::TensorCore, &shape, &operands, &cuda(10, 0, "100a"));
            says(tensor_core, text);
        }
        let short = Shape::gemv(128, 48, 1).unwrap();
        says(
            tiled(&short, &operands),
            "K is 48, the path needs a multiple of 32",
        );
        assert_eq!(tiled(&shape, &operands), Ok(()));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn what_the_stream_kernel_needs() {
        let can = |shape: &Shape, operands: &Operands| stream(shape, operands, (9, 0));
        let shape = Shape::new(130, 3, 512, 2).unwrap();
        for activation in [Activation::Nvfp4, Activation::F16, Activation::Bf16] {
            for layout in ScaleLayout::ALL {
                let operands = Operands::new(activation, layout);
                assert_eq!(can(&shape, &operands), Ok(()));
                let odd = Shape::gemv(130, 384, 1).unwrap();
                says(
                    can(&odd, &operands),
                    "K is 384, the path needs a multiple of 256",
                );
                let unaligned = Operands {
                    aligned: false,
                    ..operands
                };
                assert_eq!(can(&shape, &unaligned), Err(Unavailable::Alignment));
                let long = Shape::new(130, 8, 131_072, 1).unwrap();
                assert_eq!(can(&long, &operands), Err(Unavailable::VectorMemory));
                let many = Shape::gemv(1 << 20, 256, 1 << 12).unwrap();
                assert_eq!(can(&many, &operands), Err(Unavailable::Rows));
            }
        }
        let f32 = Operands::new(Activation::F32, TILED);
        says(can(&shape, &f32), "NVFP4, f16 and bf16");
        // Vectors that fit a data centre's GPU, and no workstation's.
        let shape = Shape::gemv(130, 65536, 1).unwrap();
        let f16 = Operands::new(Activation::F16, TILED);
        assert_eq!(stream(&shape, &f16, (10, 3)), Ok(()));
        assert_eq!(
            stream(&shape, &f16, (12, 0)),
            Err(Unavailable::VectorMemory)
        );
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn wide_loads_are_of_blackwells_own_code() {
        for (compute_capability, archs, has) in [
            ((10, 0), "80;90a;100a;103a;120a", true),
            ((10, 3), "100f", true),
            ((12, 0), "80;120a", true),
            ((10, 0), "80;100", false),
            ((9, 0), "80;90a;100a", false),
            ((10, 0), "", false),
        ] {
            assert_eq!(
                has_wide_loads(compute_capability, archs),
                has,
                "{archs} on {compute_capability:?}"
            );
        }
    }

    #[test]
    fn architectures_with_the_instructions() {
        let tiled = Operands::new(Activation::Nvfp4, TILED);
        let shape = Shape::gemv(128, 256, 1).unwrap();
        // Machine code for the device, but not of the kind that has the instructions.
        let plain = available(Path::TensorCore, &shape, &tiled, &cuda(10, 0, "100"));
        assert!(matches!(plain, Err(Unavailable::NoKernelImage { .. })));
        let newer = available(Path::TensorCore, &shape, &tiled, &cuda(10, 3, "100f"));
        assert_eq!(newer, Ok(()));
        let older = available(Path::CudaCoreTma, &shape, &tiled, &cuda(8, 9, "80"));
        assert!(matches!(older, Err(Unavailable::ComputeCapability { .. })));
    }
}
