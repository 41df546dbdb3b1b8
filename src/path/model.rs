//! The share of the read-only ceiling that a path is expected to reach where nobody measured: a count of
//! instructions and bytes (docs/notes/estimates.md), and how times on an H200 grow with the vectors.

use super::{Operands, Path};
use crate::shape::Shape;
use crate::types::Activation;

/// Vectors of a pass over the weights on CUDA cores.
const PASS: usize = 8;
/// What each further vector of a pass costs on CUDA cores: four cost 30% more than one.
const FURTHER_VECTOR: f64 = 0.1;

/// The expected share; nothing for the CPU path, whose ceiling is another.
///
/// Tensor cores read weights at the same rate for 1 to 16 vectors. For one and two, CUDA cores keep up
/// with memory and start sooner; from three on they run out of issue slots first.
pub(super) fn share(path: Path, shape: &Shape, operands: &Operands) -> Option<f64> {
    let vectors = shape.n().min(PASS) as f64;
    let passes = shape.n().div_ceil(PASS) as f64;
    let cuda_cores = |one: f64| one / (1.0 + FURTHER_VECTOR * (vectors - 1.0)) / passes;
    let direct = match operands.activation {
        Activation::Nvfp4 => 0.85,
        Activation::F16 | Activation::Bf16 => 0.75,
        Activation::F32 => 0.35,
    };
    match path {
        Path::Cpu => None,
        Path::CudaCore => Some(cuda_cores(direct)),
        // Starts later: a pipeline through shared memory must fill first.
        Path::CudaCoreTma => Some(cuda_cores(0.95 * direct)),
        Path::TensorCore => Some(0.76),
    }
}

/// Why the model ranks a path first, as part of a sentence.
pub(super) fn why(path: Path) -> &'static str {
    match path {
        Path::TensorCore => {
            "with 3 vectors and more, CUDA cores run out of issue slots before memory does; a \
             matrix instruction costs the same for 1 to 16"
        }
        Path::CudaCore => {
            "direct loads keep up with memory and start sooner than tiles shared by a CTA"
        }
        Path::CudaCoreTma => "a pipeline through shared memory keeps more loads in flight",
        Path::Cpu => "nothing else computes there",
    }
}
