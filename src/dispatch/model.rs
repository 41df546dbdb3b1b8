//! Model of a kernel where nobody measured, from what the kernel's module says. It states which share of the read-only
//! ceiling the kernel reaches.

use crate::kernel::{Config, Cost, Job, Kernel};
use crate::operands::Operands;
use crate::shape::Shape;

/// How a kernel takes vectors: what its time depends on, beside the type of the vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    kernel: Kernel,
    /// Vectors of a pass over the weights, at most.
    pass: u32,
    /// Cost of the vectors of a pass.
    cost: Cost,
    /// Fraction of the share that the config leaves.
    left: f64,
    /// Microseconds of a call, which count instead of all others, where they are [known](Way::timed).
    microseconds: Option<f64>,
}

/// Microseconds of a launch that only reads, beside those for its bytes.
const LAUNCH: f64 = 2.0;
/// Bytes that an H100 reads in a microsecond.
const BYTES: f64 = 2.9e6;

impl Way {
    /// With a config, for a job.
    pub(super) fn of(config: &Config, job: &Job<'_>) -> Self {
        Self {
            kernel: config.kernel(),
            pass: config.pass_vectors(),
            cost: config.cost(job),
            left: config.share_left(job),
            microseconds: None,
        }
    }

    /// With a config, for a job whose kernels are compared by their times.
    pub(super) fn timed(config: &Config, job: &Job<'_>) -> Self {
        Self {
            microseconds: config.microseconds(job),
            ..Self::of(config, job)
        }
    }

    /// With its default for a job, or, where it cannot compute the job, with as many vectors a pass as it knows.
    pub(super) fn usual(kernel: Kernel, job: &Job<'_>) -> Self {
        let some = Self {
            microseconds: None,
            kernel,
            pass: kernel.most_vectors(),
            cost: kernel.cost(job),
            left: 1.0,
        };
        // A single vector takes one pass with every config.
        match job.shape.n() {
            1 if !kernel.one_vector_varies() => some,
            _ => kernel
                .default_config(job)
                .map_or(some, |config| Self::of(&config, job)),
        }
    }
}

/// The share of the read-only ceiling that a kernel is expected to reach. Each pass reads all weights.
///
/// Tensor cores read weights at the same rate for 1 to 128 vectors. For one and two, CUDA cores keep up
/// with memory and start sooner; from three on they run out of issue slots first. That it is three follows from the
/// modules' constants (0.85 / 1.2 < 0.76 < 0.85 / 1.1), not from a measurement: no tensor core has run this.
pub(super) fn share(way: &Way, shape: &Shape, operands: &Operands) -> f64 {
    if let Some(microseconds) = way.microseconds {
        return (LAUNCH + shape.weight_bytes() as f64 / BYTES) / microseconds;
    }
    // A call without vectors counts as one with one vector, and digits count as vectors.
    let n = shape.n().max(1).saturating_mul(operands.digits.max(1));
    let pass = way.pass as usize;
    let whole_passes = (n / pass) as f64 * way.cost.pass(pass);
    let one = way.kernel.share_of_one(shape, operands) * way.left;
    one / (whole_passes + way.cost.pass(n % pass))
}
