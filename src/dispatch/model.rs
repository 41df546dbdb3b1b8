//! What is expected of a kernel where nobody measured: a count of instructions and bytes (docs/notes/estimates.md), and
//! how times on an H200 grow with the vectors.

use crate::kernel::params::NVFP4_MANY_COLUMNS;
use crate::kernel::{Config, Job, Kernel, has_ragged_rows, is_ragged};
use crate::operands::Operands;
use crate::shape::Shape;
use crate::types::{Activation, GemvPath};

/// How a kernel takes vectors: what its time depends on, beside the type of the vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    kernel: Kernel,
    /// Vectors of a pass over the weights, at most.
    pass: u32,
    /// What the vectors of a pass cost.
    cost: Cost,
    /// What is left of the share where a multiprocessor has few warps.
    of_warps: f64,
}

/// What a pass costs, in passes of one vector of a kernel that loses no time on its products.
#[derive(Clone, Copy, Debug)]
enum Cost {
    /// As much for each vector, or for each of as many more as make a multiple of `columns`.
    Linear {
        first_vector: f64,
        further_vector: f64,
        columns: u32,
    },
    /// Of a kernel that is compiled for 1, 2, 4, 8 and 16 vectors, and computes as many.
    Compiled([f64; 5]),
}

impl Way {
    /// With a config, for a job.
    pub(super) fn of(config: &Config, job: &Job<'_>) -> Self {
        Self {
            kernel: config.kernel(),
            pass: config.pass_vectors(),
            cost: match config {
                Config::Dot(config) if config.blocks_per_load == 4 => Cost::FAST,
                _ => Cost::of(config.kernel(), job),
            },
            of_warps: match config {
                Config::Stream(config) => {
                    let ctas = config.ctas / job.gpu.multiprocessors.max(1);
                    of_warps(config.warps.saturating_mul(ctas.max(1)))
                }
                _ => 1.0,
            },
        }
    }

    /// With its default for a job, or, where it cannot compute the job, with as many vectors a pass as it knows.
    pub(super) fn usual(kernel: Kernel, job: &Job<'_>) -> Self {
        let some = Self {
            kernel,
            pass: kernel.most_vectors(),
            cost: Cost::of(kernel, job),
            of_warps: 1.0,
        };
        // A single vector takes one pass with every config, but a long one may leave the stream kernel few warps.
        match job.shape.n() {
            1 if kernel != Kernel::Stream => some,
            _ => kernel
                .default_config(job)
                .map_or(some, |config| Self::of(&config, job)),
        }
    }
}

/// What is left of the stream kernel's share where its vectors leave shared memory for so few warps: on an H200, one bf16
/// vector of 36864 to 53248 elements (docs/notes/stream.md, "Long vectors"); one warp was not measured.
fn of_warps(warps: u32) -> f64 {
    match warps {
        ..=1 => 0.2,
        2 => 0.41,
        3 => 0.59,
        4 => 0.74,
        5 | 6 => 0.78,
        7 => 0.89,
        _ => 1.0,
    }
}

/// What is left of the share where rows start anywhere, or vectors are f32: on an H200 0.69 to 0.86, and 0.86 to 0.94
/// with f32 vectors (docs/notes/tuning.md).
const RAGGED: f64 = 0.8;
/// The same of mma with 16 to 128 vectors: 0.87 to 0.95 (docs/notes/many-vectors.md).
const RAGGED_MMA: f64 = 0.92;

impl Cost {
    /// Four vectors cost 30% more than one, and eight 70%: of f32 vectors in the stream kernel, of the dot kernel with four
    /// blocks a load, and where nothing was measured.
    const FAST: Self = Self::Linear {
        first_vector: 1.0,
        further_vector: 0.1,
        columns: 1,
    };
    /// Of the stream kernel, on an H200 (docs/notes/stream.md, "More vectors and the model"). Ragged rows know no sixteen,
    /// which are two passes of eight.
    const STREAM_F16: Self = Self::Compiled([1.0, 1.02, 1.07, 1.14, 1.6]);
    const STREAM_BF16: Self = Self::Compiled([1.0, 1.07, 1.1, 1.2, 1.65]);
    const STREAM_NVFP4: Self = Self::Compiled([1.0, 1.04, 1.1, 1.3, 1.8]);
    const STREAM_RAGGED: Self = Self::Compiled([1.0, 1.04, 1.08, 1.45, 2.9]);

    /// Other kernels make their products for each vector anew. Fitted to shares of the ceiling on an H200:
    ///
    /// | kernel, vectors | where 1 is counted as | 1 | 4 | 8 |
    /// |---|---|---|---|---|
    /// | direct, f16 | 0.75 | 0.36 to 0.41 | | 0.11 |
    /// | dot, NVFP4 | 0.85 | | 0.48 | 0.30 |
    fn of(kernel: Kernel, job: &Job<'_>) -> Self {
        let (first_vector, further_vector, columns) = match kernel {
            Kernel::Direct => (2.0, 0.7, 1),
            Kernel::Dot => (1.0, 0.26, 1),
            // Fitted to times of 16 to 128 vectors there: docs/notes/many-vectors.md. Their matrix instructions have eight
            // columns, whether there are vectors for all or not.
            Kernel::Packed => (1.58, 0.0114, NVFP4_MANY_COLUMNS),
            Kernel::Wgmma => (1.4, 0.03, NVFP4_MANY_COLUMNS),
            // 1.7 to 1.9 times what `stream` takes with one f16 vector for 16 of them, 2.5 to 2.8 for 32, 4.5 to 5.3 for 64 and
            // 7.9 to 9.3 for 128 (docs/notes/many-vectors.md, "mma: 128 vectors").
            Kernel::Mma => (1.32, 0.056, NVFP4_MANY_COLUMNS),
            Kernel::Stream => return Self::of_stream(job),
            Kernel::Ring | Kernel::Tcgen05 | Kernel::MmaFp4 => return Self::FAST,
        };
        Self::Linear {
            first_vector,
            further_vector,
            columns,
        }
    }

    fn of_stream(job: &Job<'_>) -> Self {
        // The memory of Blackwells of data centres is too fast for its instructions to be hidden as on an H200.
        if job.gpu.compute_capability.0 == 10 {
            return Self::FAST;
        }
        match job.operands.activation {
            Activation::F32 => Self::FAST,
            _ if is_ragged(job.shape, job.operands) => Self::STREAM_RAGGED,
            Activation::Nvfp4 => Self::STREAM_NVFP4,
            Activation::F16 => Self::STREAM_F16,
            Activation::Bf16 => Self::STREAM_BF16,
        }
    }

    /// Of a pass of so many vectors.
    fn pass(&self, vectors: usize) -> f64 {
        match (self, vectors) {
            (_, 0) => 0.0,
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

/// The share of mma-fp4, for any number of vectors of a pass: between what the stream kernel is given for eight of them and
/// for sixteen. So it is taken from nine vectors on, whether that kernel would read all weights twice or not; for fewer where they
/// do not fit its shared memory; and for five to eight where rows are ragged for it. On an RTX 5090 both have instructions and bytes in flight
/// enough for memory's rate with up to eight vectors, and the stream kernel has run on hardware. The mma kernel, too, takes
/// more vectors in a pass, with more than three times the instructions, and from 33 on the rate of f16 matrix instructions
/// is below memory's (docs/notes/mma-fp4.md).
const MMA_FP4: f64 = 0.5;

/// The share of the read-only ceiling that a kernel is expected to reach. Each pass reads all weights.
///
/// Tensor cores read weights at the same rate for 1 to 128 vectors. For one and two, CUDA cores keep up
/// with memory and start sooner; from three on they run out of issue slots first. That it is three follows from these
/// constants (0.85 / 1.2 < 0.76 < 0.85 / 1.1), not from a measurement: no tensor core has run this.
pub(super) fn share(way: &Way, shape: &Shape, operands: &Operands) -> f64 {
    // Of a call without vectors as of one.
    let (n, pass) = (shape.n().max(1), way.pass as usize);
    if way.kernel.path() == GemvPath::TensorCore {
        let of_pass = match way.kernel {
            Kernel::MmaFp4 => MMA_FP4,
            _ => 0.76,
        };
        return of_pass / n.div_ceil(pass) as f64;
    }
    let whole_passes = (n / pass) as f64 * way.cost.pass(pass);
    let one = of_one(way.kernel, shape, operands) * way.of_warps;
    one / (whole_passes + way.cost.pass(n % pass))
}

/// What the ring kernel reaches of the stream kernel's share with one 16-bit vector where it is behind: on an H100 0.95 to 0.99
/// (docs/notes/ring.md, "16-bit vectors").
const RING_16_BIT: f64 = 0.97;

/// Whether the ring kernel is ahead of the stream kernel with one 16-bit vector, on an H100: where rows are short, and
/// where there are many weights.
fn is_for_ring(shape: &Shape) -> bool {
    shape.k() < 4096 || shape.weight_bytes() >= 100_000_000
}

/// The share with one vector on CUDA cores, of a kernel that loses no time on its products.
pub(super) fn of_one(kernel: Kernel, shape: &Shape, operands: &Operands) -> f64 {
    let one = match operands.activation {
        Activation::Nvfp4 => 0.85,
        Activation::F16 | Activation::Bf16 => 0.75,
        // The direct kernel reaches half of it.
        Activation::F32 => 0.7,
    };
    match kernel {
        Kernel::Stream | Kernel::Dot if is_ragged(shape, operands) => RAGGED * one,
        Kernel::Mma if has_ragged_rows(shape, operands) => RAGGED_MMA * one,
        Kernel::Ring if operands.activation != Activation::Nvfp4 && !is_for_ring(shape) => {
            RING_16_BIT * one
        }
        _ => one,
    }
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
            "with 3 vectors and more, CUDA cores run out of issue slots before memory does; matrix \
             instructions read weights once for up to 128"
        }
        Kernel::MmaFp4 => {
            "it multiplies codes and scales as they lie in memory, and reads them once for up to 128 vectors"
        }
        Kernel::Ring => "bulk copies ask for whole rows long before they are multiplied",
        Kernel::Stream => {
            "each warp's own queue keeps up with memory, and starts sooner than tiles shared by a CTA"
        }
        Kernel::Mma | Kernel::Wgmma | Kernel::Packed => {
            "it decodes each weight once for all vectors"
        }
        Kernel::Dot => "decoded once, the vectors leave the fewest instructions for each weight",
        Kernel::Direct => "it takes every problem",
    }
}
