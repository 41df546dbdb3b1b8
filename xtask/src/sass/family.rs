//! What the source says about each kernel family and the machine code does not: how a configuration cuts
//! a representative problem, and how much of it one iteration of the main loop computes.

mod stream;

use serde::Serialize;

use crate::sass::gpu::{Gpu, RESERVED_SHARED};
use crate::sass::instruction::Instruction;

/// The problem that configurations stand for, one of the benchmark shapes: 4096x7168, eight batches. It
/// has work for every SM, and its vectors fit shared memory everywhere.
pub(crate) const REPRESENTATIVE: &str = "4096x7168x8";
const M: u32 = 4096;
const K: u32 = 7168;
const L: u32 = 8;

/// Bytes of a weight: half a byte of codes, and a scale for sixteen.
pub(crate) const WEIGHT_BYTES: f64 = 9.0 / 16.0;

/// A kernel's configuration for the representative problem.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Facts {
    pub(crate) threads: u32,
    pub(crate) dynamic_shared: u32,
    pub(crate) tensor_columns: u32,
    /// The most CTAs an SM gets, where there is room for them; without it, as many as there is room for.
    pub(crate) launched: Option<u32>,
    /// Bytes of weights that a CTA has asked for at once.
    pub(crate) cta_bytes_in_flight: u32,
    /// None for kernels that multiply nothing.
    pub(crate) step: Option<Step>,
}

/// What one pass over the main loop's source does, before the compiler unrolls it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) vectors: u32,
    /// Weights a lane multiplies.
    pub(crate) weights: u32,
    pub(crate) dot: Dot,
}

/// What the main loop is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Dot {
    /// dp4a, twice for four products: positive and negative magnitudes apart (`Magnitudes::dot`).
    Integer,
    /// Packed f16 products (`half_dot.cuh`). Some HFMA2 are moves of constants, so that what counts is the
    /// FHADD that ends a block of 16.
    PackedHalf,
    /// FMAs on f16 pairs or f32. Others decode and scale, so that they do not tell how often the
    /// compiler unrolled; `#pragma unroll 1` in the source says once.
    Float,
    /// One matrix instruction a step.
    Matrix,
    /// `mma.sync`, one for eight of a lane's weights and so many vectors: two where lanes keep their blocks apart
    /// (`block_products.cuh`), else eight.
    WarpMatrix { vectors: u32 },
}

impl Dot {
    pub(crate) fn is(self, instruction: &Instruction) -> bool {
        let name = instruction.name();
        match self {
            Self::Integer => name == "IDP",
            Self::PackedHalf => name == "FHADD",
            Self::Float => matches!(name, "HFMA2" | "FFMA" | "FFMA2"),
            Self::Matrix => name == "UTCOMMA",
            Self::WarpMatrix { .. } => matches!(name, "IMMA" | "HMMA"),
        }
    }
}

impl Step {
    /// Steps in one iteration of the compiled loop, which has so many dot instructions.
    pub(crate) fn unrolled(&self, dots: u32) -> Option<u32> {
        let each = match self.dot {
            Dot::Integer => self.weights * self.vectors / 2,
            Dot::PackedHalf => self.weights * self.vectors / 16,
            Dot::Float => return (dots > 0).then_some(1),
            Dot::Matrix => 1,
            Dot::WarpMatrix { vectors } => self.weights / 8 * self.vectors.div_ceil(vectors),
        };
        (dots > 0 && dots.is_multiple_of(each)).then(|| dots / each)
    }
}

impl Facts {
    /// By the kernel's symbol, such as `gemv_dot_n1_b2`.
    pub(crate) fn of(symbol: &str, gpu: &Gpu) -> Option<Self> {
        let family = |name: &str| symbol.strip_prefix(name).map(numbers);
        if symbol == "gemv_tcgen05" {
            Some(tcgen05(16, gpu))
        } else if let Some(of) = family("gemv_tma") {
            Some(tma(*of.first()?))
        } else if let Some(of) = family("gemv_stream_nvfp4") {
            Some(stream::facts(0, *of.first()?, gpu))
        } else if let Some(of) = family("gemv_stream_f16") {
            Some(stream::facts(1, *of.first()?, gpu))
        } else if let Some(of) = family("gemv_stream_bf16") {
            Some(stream::facts(2, *of.first()?, gpu))
        } else if let Some(of) = family("gemv_ring") {
            Some(ring(*of.first()?, *of.get(1)?))
        } else if let Some(of) = family("gemv_dot") {
            match *of.get(1)? {
                4 => Some(wide(*of.first()?, gpu)),
                blocks => Some(integer_dot(*of.first()?, blocks, gpu)),
            }
        } else if let Some((_, of)) = symbol
            .strip_prefix("gemv_direct")
            .and_then(|of| of.split_once("_n"))
        {
            let of = numbers(of);
            Some(direct(*of.first()?, *of.get(1)?))
        } else if symbol == "read_only" {
            // Four loads of 16 bytes a thread; eight CTAs an SM are launched.
            Some(plain(Some(8), 256 * 4 * 16))
        } else if symbol.starts_with("quantize") || symbol.starts_with("relayout") {
            Some(plain(None, 0))
        } else {
            None
        }
    }
}

/// Kernels of 256 threads that multiply nothing.
fn plain(launched: Option<u32>, cta_bytes_in_flight: u32) -> Facts {
    Facts {
        threads: 256,
        dynamic_shared: 0,
        tensor_columns: 0,
        launched,
        cta_bytes_in_flight,
        step: None,
    }
}

/// `gemv_ring.cuh`: 16 warps, or nearly, multiply, and one for each group of them copies into a ring of 56 KiB.
/// The rule of `src/config/ring.rs`, with `rows` of a stage for its own.
fn ring(chunks: u32, rows: u32) -> Facts {
    let row_warps = K.div_ceil(1024 * chunks);
    let groups = (16 / row_warps).min(4);
    let warps = groups * row_warps;
    let unit = 4 * K / 2;
    let depth = ((64 << 10) / (groups * unit)).max(1);
    let places = (M * L).div_ceil(132);
    let scales = warps * chunks * 3 * 256;
    let bars = groups * depth * (4 / rows) * 16;
    let sums = row_warps * (places.div_ceil(4) + 1) * 4 * 4;
    Facts {
        threads: (warps + groups.min(4)) * 32,
        dynamic_shared: groups * depth * unit + scales + bars + sums,
        launched: Some(1),
        cta_bytes_in_flight: groups * depth * unit / 8 * 9,
        step: Some(Step {
            vectors: 1,
            weights: 4 * 32 * chunks,
            dot: Dot::Integer,
        }),
        ..plain(None, 0)
    }
}

/// `gemv_direct.cuh`: CTAs of 4 warps, as many as fit (the problem has thousands). A lane has the
/// next step's codes and scales of 4 rows (2 for more than two vectors) in flight.
fn direct(vectors: u32, blocks: u32) -> Facts {
    let rows = if vectors <= 2 { 4 } else { 2 };
    Facts {
        threads: 4 * 32,
        launched: None,
        cta_bytes_in_flight: 4 * 32 * rows * blocks * 9,
        step: Some(Step {
            vectors,
            weights: rows * blocks * 16,
            dot: Dot::Float,
        }),
        ..plain(None, 0)
    }
}

/// `gemv_dot.cuh` with integers: one CTA an SM, of 16 warps (8 for more than two vectors); K not
/// split. A lane has the next step of 4 rows in flight.
fn integer_dot(vectors: u32, blocks: u32, gpu: &Gpu) -> Facts {
    let warps = if vectors <= 2 { 16 } else { 8 };
    let rows = 4;
    let tiles = (M / rows).div_ceil(gpu.multiprocessors / L);
    Facts {
        threads: warps * 32,
        dynamic_shared: vectors * (K / 16) * 20 + tiles * rows * vectors * 4,
        launched: Some(1),
        cta_bytes_in_flight: warps * 32 * rows * blocks * 9,
        step: Some(Step {
            vectors,
            weights: rows * blocks * 16,
            dot: Dot::Integer,
        }),
        ..plain(None, 0)
    }
}

/// `gemv_dot.cuh` with four blocks: as `integer_dot`, but for vectors in shared memory as f16. Rows
/// are loaded again as soon as they are used, so that a little less is in flight than a whole step.
fn wide(vectors: u32, gpu: &Gpu) -> Facts {
    let narrow = integer_dot(vectors, 4, gpu);
    let blocks = K / 16;
    let in_f16 = vectors * blocks.next_multiple_of(128) * (32 + 2);
    Facts {
        dynamic_shared: narrow.dynamic_shared - vectors * blocks * 20 + in_f16,
        step: narrow.step.map(|step| Step {
            dot: Dot::PackedHalf,
            ..step
        }),
        ..narrow
    }
}

/// Weights of a stage of the tiled kernels: 128 rows, 256 elements.
const STAGE_WEIGHT_BYTES: u32 = 128 * 256 / 16 * 9;
/// `BYTES_IN_FLIGHT` in `src/config/tile.rs`.
const WANTED_IN_FLIGHT: u32 = 64 << 10;

/// Dynamic shared memory of a tiled kernel: `tile::Stage` and `dynamic_bytes`.
fn stages_bytes(stages: u32, vector_rows: u32, scale_rows: u32) -> u32 {
    let stage = (128 + vector_rows) * 128 + 4 * 512 + 4 * scale_rows * 16;
    stages * stage.next_multiple_of(1024) + 1024 - 16
}

/// `gemv_tma.cuh`: 8 warps consume and one loads. The default (`src/config/tile.rs`) is the
/// smallest even number of stages that gives an SM enough in flight, with two CTAs up to two vectors. A
/// lane multiplies 64 elements of four rows a step.
fn tma(vectors: u32) -> Facts {
    let ctas = if vectors <= 2 { 2 } else { 1 };
    let mut stages = 2;
    while stages * STAGE_WEIGHT_BYTES * ctas < WANTED_IN_FLIGHT {
        stages += 2;
    }
    Facts {
        threads: 9 * 32,
        dynamic_shared: stages_bytes(stages, 8, 8),
        launched: Some(ctas),
        cta_bytes_in_flight: stages * STAGE_WEIGHT_BYTES,
        step: Some(Step {
            vectors,
            weights: 4 * 64,
            dot: Dot::Integer,
        }),
        ..plain(None, 0)
    }
}

/// `gemv_tcgen05.cuh`: the default is as many stages as two CTAs an SM have room for. An instruction
/// multiplies 128 rows of 64 elements: 256 a lane of the warp that issues it. It computes N columns;
/// n of them are asked for, at most 16.
fn tcgen05(mma_n: u32, gpu: &Gpu) -> Facts {
    // `Shared` in the kernel: barriers, and the sums of 16 vectors.
    let fixed = 2 * 12 * 8 + 16 + 16 * 128 * 4 + RESERVED_SHARED;
    let columns = |stages: u32| (mma_n.max(32) + stages * 32).next_power_of_two();
    let fits = |stages: &u32| {
        (stages_bytes(*stages, mma_n, 32) + fixed) * 2 <= gpu.sm.shared_bytes
            && columns(*stages) * 2 <= gpu.sm.tensor_columns
    };
    let stages = (2..=12).rev().find(fits).unwrap_or(2);
    Facts {
        threads: 6 * 32,
        dynamic_shared: stages_bytes(stages, mma_n, 32),
        tensor_columns: columns(stages),
        launched: Some(2),
        cta_bytes_in_flight: stages * STAGE_WEIGHT_BYTES,
        step: Some(Step {
            vectors: mma_n.min(16),
            weights: 128 * 64 / 32,
            dot: Dot::Matrix,
        }),
    }
}

/// 1 and 2 of `_n1_b2`.
fn numbers(text: &str) -> Vec<u32> {
    let digits = text.split(|c: char| !c.is_ascii_digit());
    digits.filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(symbol: &str) -> Facts {
        Facts::of(symbol, Gpu::of_arch("100f").unwrap()).unwrap()
    }

    #[test]
    fn numbers_of_symbols() {
        assert_eq!(numbers("_n8_b2"), [8, 2]);
        assert_eq!(
            of("gemv_direct_bf16_n8_b2").cta_bytes_in_flight,
            4 * 32 * 2 * 2 * 9
        );
    }

    #[test]
    fn configurations_are_the_defaults() {
        let dot = of("gemv_dot_n1_b2");
        assert_eq!(dot.cta_bytes_in_flight, 16 * 32 * 4 * 18);
        assert_eq!(dot.dynamic_shared, 448 * 20 + 57 * 16);
        let wide = of("gemv_dot_n1_b4");
        assert_eq!(wide.cta_bytes_in_flight, 16 * 32 * 4 * 36);
        assert_eq!(wide.dynamic_shared, 512 * 34 + 57 * 16);
        assert_eq!(wide.step.unwrap().unrolled(16), Some(1));
        let tma = of("gemv_tma_n1");
        assert_eq!(
            (tma.cta_bytes_in_flight, tma.dynamic_shared),
            (2 * 18432, 2 * 20480 + 1008)
        );
        // Two CTAs' stages and columns fit an SM.
        let facts = of("gemv_tcgen05");
        assert_eq!(facts.cta_bytes_in_flight, 4 * 18432);
        assert_eq!(facts.tensor_columns, 256);
        assert!(Facts::of("other", Gpu::of_arch("80").unwrap()).is_none());
    }

    #[test]
    fn unrolling_shows_in_the_dot_products() {
        let step = of("gemv_dot_n1_b2").step.unwrap();
        assert_eq!(step.weights, 128);
        assert_eq!(step.unrolled(64), Some(1));
        assert_eq!(step.unrolled(128), Some(2));
        assert_eq!(step.unrolled(65), None);
        assert_eq!(step.unrolled(0), None);
    }
}
