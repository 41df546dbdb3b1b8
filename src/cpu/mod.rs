//! The CPU path.
//!
//! There are seven implementations, one for each set of vector instructions worth telling apart. All have the same
//! members, `Kernels`: the order in which they want the elements of vectors, and for NVFP4 vectors as for the others a
//! `Family` of kernels. Those with vector instructions are the same `loops`, over the operations of their instructions
//! (`vector`). The safe call comes down to `gemv`. `gemv` takes [`Implementation::best`], the fastest one that this CPU
//! can run: the CPU is asked on the first call, the answer is kept in a static. [`gemv_with`] takes the implementation
//! that it is given, or says what the CPU lacks; nothing is replaced silently.
//!
//! A call multiplies vectors by factors of columns, where weights have them (`columns`). It brings the vectors once
//! into what the kernels load (`prepare`), and spreads the rows (`parallel`) over rayon's threads or a program's own
//! (`threads`). Prepared calls use
//! each other's memory again (`buffers`). The weights are read in place, once from memory; 128x4 scales are brought
//! into rows on the way, 16 rows at a time (`scales`). How weights meet vectors depends on N:
//!
//! | N | K | weights |
//! |---|---|---|
//! | 1, 2 | whole rows | decoded into registers, four rows at once; each row is one long stream for the memory |
//! | few more | in tiles | decoded into registers, one or two rows and four vectors at once |
//! | more | in shorter tiles | decoded once for all vectors, then multiplied with four vectors at a time |
//!
//! "Few more" is 3 to `direct_up_to`, which is 4 to 8. The vectors of a tile stay in the first-level cache, and the
//! sums fit the registers. With more vectors, some rows at a time are decoded into a buffer, which stays in the
//! first-level cache.
//!
//! With NVFP4 vectors the 16 products of a block are summed as integers and multiplied by the product of two scales
//! without rounding; only the f32 sum over blocks rounds. Wider vectors become f32 values. For the kernels that use
//! BF16 instructions they become bf16 parts whose sum is the value. The products of a block are summed in f32, then
//! multiplied by the block's scale. Where weights are decoded once for all such vectors, the weights are multiplied by
//! their scales at that point, which is exact. Where [`Accuracy::Bytes`] allows it, wider vectors become bytes with a scale
//! for each block instead, and meet the kernels of NVFP4 vectors.
//!
//! The sums of K tiles are added in the order of the tiles. So the order of a sum depends on K, N and the
//! implementation. For f16 and bf16 vectors it also depends on whether all values of all vectors of the call suit BF16
//! instructions. It does not depend on the threads, on M or L, or on the layout of the
//! scales.
//!
//! Where results shall not depend on other vectors ([`Options::batch_invariant`](crate::Options::batch_invariant)),
//! lanes are added up after the same blocks for all N, a *cut*, also within tiles and whole rows. NVFP4 vectors, and
//! bytes, keep both ways to meet weights, which add up a cut alike; others meet weights in registers, and f16 ones
//! become f32 values. Each vector by itself decides whether its values suit BF16 instructions or bytes: those that do
//! and those that do not are two sets, whose results are computed one after the other.

// Elsewhere there is `portable` alone, and the loops over vector instructions are not used.
#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, unused_imports)
)]

mod ahead;
#[cfg(feature = "unstable")]
mod bandwidth;
mod buffers;
mod columns;
mod digits;
mod parallel;
mod portable;
mod prepare;
mod rows;
mod scales;
mod threads;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod loops;
#[cfg(target_arch = "aarch64")]
mod neon;
mod vector;

use std::sync::OnceLock;

#[cfg(feature = "unstable")]
pub use bandwidth::{StreamingRead, streaming_read_bandwidth};
pub(crate) use buffers::{Pool, reserve, resize, shared, with};
pub(crate) use parallel::write;
pub(crate) use threads::Threads;
pub use threads::Workers;

use crate::error::{Error, Result};
use crate::output::Output;
use crate::shape::Shape;
use crate::tensor::{self, Vectors, Weights};
use crate::types::{Activation, named};
use buffers::Buffers;
use prepare::{Form, Forms, Line, Prepared};
use rows::{Family, Kernels};

named! {
    /// A way to compute on the CPU, from the slowest to the fastest. Which are available depends on the CPU.
    #[non_exhaustive]
    Implementation {
        /// Plain Rust, on any CPU.
        Portable = "portable",
        /// AVX2, FMA and F16C.
        Avx2 = "avx2",
        /// AVX-512 F, BW, VL and DQ.
        Avx512 = "avx512",
        /// As `Avx512`, and VNNI, which speeds up NVFP4 vectors.
        Avx512Vnni = "avx512-vnni",
        /// As `Avx512Vnni`, and BF16, which speeds up f16 and bf16 vectors.
        Avx512Bf16 = "avx512-bf16",
        /// NEON.
        Neon = "neon",
        /// As `Neon`, and dot products of bytes, which speed up NVFP4 vectors.
        NeonDot = "neon-dot",
    }
}

/// How exactly f32, f16 and bf16 vectors are multiplied on the CPU. NVFP4 ones are exact either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accuracy {
    /// Every value as it is: only sums round, and products of f32.
    #[default]
    Exact,
    /// Values may be rounded to signed bytes first, with a scale for each block of 16, so that products are integers:
    /// 1.5 to 4 times as fast. The scale is the largest magnitude of the block by 127, so a value is off by a 254th of
    /// that at most. A result is off by what [`reference::bytes_error`](crate::reference::bytes_error) says: usually
    /// half a percent of the size of results, and less than what NVFP4 vectors are off by. ggml's products are of this
    /// kind, with a scale for each 32.
    ///
    /// This is a permission. Vectors with a NaN, an infinity or a magnitude above 2^90 are multiplied exactly, all of a
    /// call. So are vectors on devices.
    Bytes,
}

/// How vectors are multiplied, beside the implementation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    pub(crate) accuracy: Accuracy,
    /// Whether a vector's results have the bits that they have beside any other vectors.
    pub(crate) batch_invariant: bool,
}

impl Manner {
    const fn new(accuracy: Accuracy, batch_invariant: bool) -> Self {
        Self {
            accuracy,
            batch_invariant,
        }
    }
}

impl Implementation {
    /// Instructions that a CPU must have for it, as text.
    pub const fn needs(self) -> &'static str {
        match self {
            Self::Portable => "nothing",
            Self::Avx2 => "x86-64 with AVX2, FMA and F16C",
            Self::Avx512 => "x86-64 with AVX-512 F, BW, VL and DQ",
            Self::Avx512Vnni => "x86-64 with AVX-512 F, BW, VL, DQ and VNNI",
            Self::Avx512Bf16 => "x86-64 with AVX-512 F, BW, VL, DQ, VNNI and BF16",
            Self::Neon => "aarch64 with NEON",
            Self::NeonDot => "aarch64 with NEON and dot products of bytes (FEAT_DotProd)",
        }
    }

    /// Whether this CPU can run it.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let available = match self {
            Self::Portable => true,
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            Self::Avx512Vnni => Self::Avx512.available() && is_x86_feature_detected!("avx512vnni"),
            Self::Avx512Bf16 => {
                Self::Avx512Vnni.available() && is_x86_feature_detected!("avx512bf16")
            }
            Self::Neon | Self::NeonDot => false,
        };
        #[cfg(target_arch = "aarch64")]
        let available = match self {
            Self::Portable => true,
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::NeonDot => {
                Self::Neon.available() && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            _ => false,
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let available = self == Self::Portable;
        available
    }

    /// The fastest that this CPU can run. Looked up once a process.
    ///
    /// ```
    /// use nvfp4_gemv::cpu::Implementation;
    /// assert!(Implementation::best().available());
    /// println!("CPU path: {}", Implementation::best());
    /// ```
    pub fn best() -> Self {
        static BEST: OnceLock<Implementation> = OnceLock::new();
        *BEST.get_or_init(|| {
            let mut fastest_first = Self::ALL.into_iter().rev();
            fastest_first
                .find(|implementation| implementation.available())
                .unwrap_or(Self::Portable)
        })
    }

    /// The most successive f32 roundings that any term of a result passes through.
    /// [`reference::error_bound`](crate::reference::error_bound) takes this number, and it is this implementation's
    /// entry in the table of error bounds.
    ///
    /// The sum of `K / 16` blocks is cut into K tiles, and the sum of a tile is spread over lanes and steps. The lanes
    /// are added in pairs, then the tiles one after the other. The length of a tile depends on N.
    pub const fn roundings(self, shape: &Shape, activation: Activation) -> u32 {
        self.roundings_in(shape, activation, Accuracy::Exact)
    }

    /// As [`roundings`](Self::roundings), with an accuracy: what is rounded beside vectors that become bytes, which
    /// [`reference::bytes_error`](crate::reference::bytes_error) counts.
    pub const fn roundings_in(
        self,
        shape: &Shape,
        activation: Activation,
        accuracy: Accuracy,
    ) -> u32 {
        self.roundings_of(shape, activation, Manner::new(accuracy, false))
    }

    /// As [`roundings_in`](Self::roundings_in), where results do not depend on other vectors:
    /// [`Options::batch_invariant`](crate::Options::batch_invariant).
    pub const fn roundings_batch_invariant(
        self,
        shape: &Shape,
        activation: Activation,
        accuracy: Accuracy,
    ) -> u32 {
        self.roundings_of(shape, activation, Manner::new(accuracy, true))
    }

    const fn roundings_of(self, shape: &Shape, activation: Activation, manner: Manner) -> u32 {
        let invariant = manner.batch_invariant;
        let sum = match activation {
            Activation::Nvfp4 => self.sum_roundings(shape, Form::Nvfp4, invariant),
            _ if matches!(manner.accuracy, Accuracy::Bytes) => {
                // The values decide which of the two forms is used. A sum of integers times its scales has more bits than
                // f32: where that is no part of an addition it rounds, too.
                let bytes = 1 + self.sum_roundings(shape, Form::Bytes, invariant);
                let exact = 1 + self.sum_roundings(shape, Form::F32, invariant);
                if bytes > exact { bytes } else { exact }
            }
            // The products round; those with 16-bit values are exact.
            Activation::F32 => 1 + self.sum_roundings(shape, Form::F32, invariant),
            Activation::F16 | Activation::Bf16 => {
                let parts = matches!(activation, Activation::F16) as usize + 1;
                let as_f32 = self.sum_roundings(shape, Form::F32, invariant);
                let in_parts = match self.kernels().parts {
                    Some(_) => self.sum_roundings(shape, Form::Parts(parts), invariant),
                    None => 0,
                };
                // The values decide which of the two forms is used.
                if as_f32 > in_parts { as_f32 } else { in_parts }
            }
        };
        // Three more roundings. The first is alpha itself. The second is the result of the products with alpha, a row's
        // alpha and a vector's scale. The third stands for all roundings in f64: of these products, of alpha, and of
        // the reference.
        sum as u32 + 3
    }

    /// Roundings in the sum of a row, after the products.
    const fn sum_roundings(self, shape: &Shape, form: Form, batch_invariant: bool) -> usize {
        let (family, n) = (self.kernels().family_in(form, batch_invariant), shape.n());
        let (tile, cut) = (family.tile(n, shape.blocks()), family.cut(shape.blocks()));
        let tile = if cut < tile { cut } else { tile };
        let of_tile = match form {
            Form::Nvfp4 | Form::Bytes => self.nvfp4_roundings(tile),
            Form::F32 => self.dense_roundings(tile, family.decoding(n).is_none()),
            Form::Parts(parts) => {
                // A lane sums 8 products of each part, with up to one rounding each, ...
                let (products, sums) = (8 * parts, tile.div_ceil(8));
                let in_lane = match family.decoding(n) {
                    // ... then adds the sum times its scale.
                    None => products - 1 + sums,
                    // ... and goes on: weights are multiplied by their scales beforehand.
                    Some(_) => products * sums - 1,
                };
                in_lane + pairs_of_lanes(tile)
            }
        };
        // The first tile is added to 0.
        of_tile + shape.blocks().div_ceil(tile) - 1
    }

    /// Roundings in the sum of so many blocks with an NVFP4 vector. Each step adds one exact term to each lane, and the
    /// first of these additions does not round.
    const fn nvfp4_roundings(self, blocks: usize) -> usize {
        let lanes = self.kernels().lanes.len();
        let used = if blocks < lanes { blocks } else { lanes };
        blocks.div_ceil(lanes) - 1 + used.next_power_of_two().ilog2() as usize
    }

    /// Roundings in the sum of so many blocks with a vector in f32.
    const fn dense_roundings(self, blocks: usize, direct: bool) -> usize {
        // Products that a lane sums, such sums that it adds up, roundings when lanes are added.
        let (products, sums, lanes) = match self {
            Self::Portable => (2, blocks, 3),
            Self::Avx2 | Self::Neon | Self::NeonDot => {
                let rest = if blocks % 4 < 2 { blocks % 4 } else { 2 };
                (4, blocks / 4 * 2 + rest, if blocks <= 2 { 2 } else { 3 })
            }
            Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 => {
                (8, blocks.div_ceil(8), pairs_of_lanes(blocks))
            }
        };
        let in_lane = if direct {
            // Each sum of products is multiplied by its scale, then added. With FMA each addition
            // rounds, with its scale; without, each scale does, and each addition but the first.
            products - 1 + sums
        } else {
            // Weights are multiplied by their scales beforehand, which is exact.
            products * sums - 1
        };
        in_lane + lanes
    }

    const fn kernels(self) -> &'static Kernels {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => &avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => &avx512::BW,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => &avx512::VNNI,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => &avx512::BF16,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => &neon::KERNELS,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => &neon::DOT,
            _ => &portable::KERNELS,
        }
    }
}

/// Roundings when the 16 lanes of a sum are added, each of which holds half a block of eight.
const fn pairs_of_lanes(blocks: usize) -> usize {
    let used = (2 * blocks).next_power_of_two();
    if used < 16 { used.ilog2() as usize } else { 4 }
}

/// Computes operands that were checked against the shape, with buffers of the pool.
pub(crate) fn gemv(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
    (pool, manner): (&Pool, Manner),
) -> Result<()> {
    let how = (Implementation::best(), manner);
    pool.with(|buffers| compute(how, shape, weights, vectors, output, buffers))
}

/// [`gemv`](crate::gemv) with an implementation of the caller's choice, for tests and comparisons.
///
/// # Errors
/// [`Error::ImplementationUnavailable`] where this CPU cannot run it; otherwise as
/// [`gemv`](crate::gemv).
pub fn gemv_with(
    implementation: Implementation,
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
) -> Result<()> {
    let how = (implementation, Accuracy::Exact);
    gemv_in(how, shape, weights, vectors, output)
}

/// As [`gemv_in`], with results that do not depend on other vectors:
/// [`Options::batch_invariant`](crate::Options::batch_invariant).
///
/// # Errors
/// As [`gemv_with`]'s.
pub fn gemv_batch_invariant(
    (implementation, accuracy): (Implementation, Accuracy),
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
) -> Result<()> {
    let how = (implementation, Manner::new(accuracy, true));
    gemv_of(how, shape, weights, vectors, output)
}

/// As [`gemv_with`], with an [`Accuracy`], too.
///
/// # Errors
/// As [`gemv_with`]'s.
pub fn gemv_in(
    (implementation, accuracy): (Implementation, Accuracy),
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
) -> Result<()> {
    let how = (implementation, Manner::new(accuracy, false));
    gemv_of(how, shape, weights, vectors, output)
}

fn gemv_of(
    how: (Implementation, Manner),
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
) -> Result<()> {
    let implementation = how.0;
    if !implementation.available() {
        return Err(Error::ImplementationUnavailable {
            implementation: implementation.name(),
            needs: implementation.needs(),
        });
    }
    weights.check(shape)?;
    let buffers = &mut Buffers::default();
    compute(how, shape, weights, vectors, output, buffers)
}

/// `implementation` is available.
fn compute(
    how: (Implementation, Manner),
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
    buffers: &mut Buffers,
) -> Result<()> {
    if let Vectors::Nvfp4(v) = vectors
        && v.digits != 1
    {
        return digits::product(how, shape, weights, v, output, buffers);
    }
    if weights.column_alpha.is_none() {
        return product(how, shape, weights, vectors, output, buffers);
    }
    let mut scaled = std::mem::take(&mut buffers.scaled);
    let result = columns::scaled(shape, weights, vectors, &mut scaled)
        .and_then(|x| product(how, shape, weights, &x, output, buffers));
    buffers.scaled = scaled;
    result
}

/// As [`compute`], of vectors that were multiplied by factors of columns.
fn product(
    (implementation, manner): (Implementation, Manner),
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
    buffers: &mut Buffers,
) -> Result<()> {
    let kernels = implementation.kernels();
    let alpha = tensor::alpha(weights.global, vectors)?;
    let layout = output.resolve(shape, weights.shape().l())?;
    let Buffers { lines, scratch, .. } = buffers;
    let with = (kernels, manner.batch_invariant);
    let run = |sets: &[_]| {
        if !shape.is_empty() {
            let to = (output, layout);
            // SAFETY: every caller has seen that the CPU runs this implementation.
            unsafe { parallel::run(sets, shape, weights, vectors, scratch, alpha, to) };
        }
    };
    match Forms::of(shape, vectors, kernels, manner)? {
        Forms::One(form) => run(&[set(shape, vectors, (form, None), with, lines)?]),
        Forms::OfEach { form, fit } => {
            let others: Vec<bool> = fit.iter().map(|fits| !fits).collect();
            let mut more = Vec::new();
            let fit = set(shape, vectors, (form, Some(&fit)), with, lines)?;
            let others = (Form::F32, Some(&others[..]));
            run(&[fit, set(shape, vectors, others, with, &mut more)?]);
        }
    }
    Ok(())
}

/// Vectors in a form, and the kernels for them.
fn set<'b>(
    shape: &Shape,
    vectors: &Vectors<'_>,
    of: (Form, Option<&'b [bool]>),
    with: (&Kernels, bool),
    lines: &'b mut Vec<Line>,
) -> Result<(Family, Prepared<'b>)> {
    let family = with.0.family_in(of.0, with.1);
    Ok((family, Prepared::new(shape, vectors, of, with, lines)?))
}

const _: () = {
    #[cfg(target_arch = "x86_64")]
    {
        use vector::Vector;
        assert!(avx2::Avx2::LANES == 8 && avx512::Avx512::<false>::LANES == 16);
    }
    assert!(portable::LANES == 8);
};
