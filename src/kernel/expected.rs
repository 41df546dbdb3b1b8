//! Estimates of kernels' times for jobs that nobody measured: by counts of instructions and bytes
//! (docs/notes/estimates.md), and by how times on an H200 grow with the number of vectors.

use super::Job;
use crate::types::Activation;

/// The cost of a pass. The unit is a pass of one vector of a kernel that loses no time on its products.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    /// One cost, whatever the number of vectors.
    Whole,
    /// A cost for the first vector, and one for each further vector. Vectors are counted up to a multiple of `columns`.
    Linear {
        first_vector: f64,
        further_vector: f64,
        columns: u32,
    },
    /// Costs of a kernel that is compiled for 1, 2, 4, 8 and 16 vectors, and computes as many as it is compiled for.
    Compiled([f64; 5]),
}

impl Cost {
    /// Four vectors cost 30% more than one, and eight 70% more. This cost is for f32 vectors in the stream kernel, and
    /// for what nobody measured.
    pub(super) const FAST: Self = Self::Linear {
        first_vector: 1.0,
        further_vector: 0.1,
        columns: 1,
    };

    /// The cost of a pass of `vectors` vectors.
    pub(crate) fn pass(&self, vectors: usize) -> f64 {
        match (self, vectors) {
            (_, 0) => 0.0,
            (Self::Whole, _) => 1.0,
            (
                Self::Linear {
                    first_vector,
                    further_vector,
                    columns,
                },
                _,
            ) => {
                let further = vectors.next_multiple_of(*columns as usize) - 1;
                first_vector + further_vector * further as f64
            }
            (Self::Compiled(costs), _) => {
                let compiled = vectors.next_power_of_two().ilog2() as usize;
                costs[compiled.min(costs.len() - 1)]
            }
        }
    }
}

/// The share of the read-only ceiling with one vector on CUDA cores, of a kernel that loses no time on its products.
pub(super) fn share_of_one(activation: Activation) -> f64 {
    match activation {
        Activation::Nvfp4 => 0.85,
        Activation::F16 | Activation::Bf16 => 0.75,
        // The direct kernel reaches half of this share.
        Activation::F32 => 0.7,
    }
}

/// Whether kernels are compared by the [microseconds](super::Config::microseconds) that they take, where nobody measured:
/// on a Hopper, with 9 to 32 vectors. Launches, ends of tiles and vectors count there beside the weights, and the nearest
/// problem does not say how much (docs/notes/tuning.md, "Times of 9 to 32 vectors").
pub(crate) fn compared_by_time(job: &Job<'_>) -> bool {
    job.gpu.compute_capability.0 == 9
        && (9..=32).contains(&job.shape.n())
        && job.operands.activation != Activation::F32
        && job.operands.digits == 1
        && !job.operands.select
}
