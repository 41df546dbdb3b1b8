//! What is expected of a kernel where nobody measured: a count of instructions and bytes (docs/notes/estimates.md), and
//! how times on an H200 grow with the vectors.

use crate::kernel::{Config, Job, Kernel};
use crate::shape::Shape;
use crate::types::{Activation, GemvPath};

/// What each further vector of a pass costs on CUDA cores: four cost 30% more than one. In the table of the H200 the
/// median of 16 NVFP4 problems is 29%; the least is 15%, the most 106%.
const FURTHER_VECTOR: f64 = 0.1;

/// The share of the read-only ceiling that a kernel is expected to reach, in passes of at most `pass` vectors: each
/// pass reads all weights.
///
/// Tensor cores read weights at the same rate for 1 to 16 vectors. For one and two, CUDA cores keep up
/// with memory and start sooner; from three on they run out of issue slots first. That it is three follows from these
/// constants (0.85 / 1.2 < 0.76 < 0.85 / 1.1), not from a measurement: no tensor core has run this.
pub(super) fn share(kernel: Kernel, pass: u32, shape: &Shape, activation: Activation) -> f64 {
    let (n, pass) = (shape.n(), pass as usize);
    if kernel.path() == GemvPath::TensorCore {
        return 0.76 / n.div_ceil(pass) as f64;
    }
    let one = match activation {
        Activation::Nvfp4 => 0.85,
        Activation::F16 | Activation::Bf16 => 0.75,
        Activation::F32 => 0.35,
    };
    // The tma kernel starts later: a pipeline that a CTA's warps share must fill first.
    let one = if kernel == Kernel::Tma {
        0.95 * one
    } else {
        one
    };
    // What passes cost, where a pass of one vector costs one.
    let cost = |vectors: usize| match vectors {
        0 => 0.0,
        _ => 1.0 + FURTHER_VECTOR * (vectors - 1) as f64,
    };
    one / ((n / pass) as f64 * cost(pass) + cost(n % pass))
}

/// The place of a kernel among those with the same share, the first one being 0: its place in [`Kernel::ALL`], after
/// the dot kernel with four blocks a load, for up to four vectors on Blackwells of data centres. Their memory is too
/// fast for the instructions of the stream kernel. By the estimates of docs/notes/estimates.md, not by measurement, the
/// stream kernel is ahead with eight.
pub(super) fn place(kernel: Kernel, job: &Job<'_>) -> usize {
    if kernel == Kernel::Dot
        && job.gpu.compute_capability.0 == 10
        && job.shape.n() <= 4
        && let Ok(Config::Dot(config)) = kernel.default_config(job)
        && config.blocks_per_load == 4
    {
        return 0;
    }
    1 + Kernel::ALL
        .iter()
        .take_while(|&&other| other != kernel)
        .count()
}

/// Why the model ranks a kernel first, as part of a sentence.
pub(super) fn why(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Tcgen05 => {
            "with 3 vectors and more, CUDA cores run out of issue slots before memory does; a \
             matrix instruction costs the same for 1 to 16"
        }
        Kernel::Ring => "bulk copies ask for whole rows long before they are multiplied",
        Kernel::Stream => {
            "each warp's own queue keeps up with memory, and starts sooner than tiles shared by a CTA"
        }
        Kernel::Dot => "decoded once, the vectors leave the fewest instructions for each weight",
        Kernel::Tma => "a pipeline through shared memory keeps more loads in flight",
        Kernel::Direct => "it takes every problem",
    }
}
