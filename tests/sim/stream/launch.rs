//! One problem on `gemv_stream` in the simulator: what `csrc/launch/gemv_stream.cu` does, in Rust.

use std::fmt::Debug;

use nvfp4_gemv::{Activation, ScaleLayout};
use ptx_sim::{Launch, Module};

use super::super::kernels::Launched;
use super::super::loaded::{Extras, Loaded};
use super::super::operands::Operands;
use super::super::params::{Params, magic};

/// How the kernel cuts a problem: `nvfp4_stream_config`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) warps: usize,
    pub(crate) stages: usize,
    pub(crate) ctas: usize,
    /// Vectors are loaded behind `griddepcontrol.wait`.
    pub(crate) dependent: bool,
    /// L2 fetches 256 bytes at once, not 128.
    pub(crate) far_ahead: bool,
}

const TILE_ROWS: usize = 16;
const STAGE_BYTES: usize = 2048 + 256;
const MAX_VECTORS: usize = 8;

/// Offsets in dynamic shared memory, and its size.
struct Shared {
    x_batches: usize,
    x: usize,
    zero: usize,
    x_scale: usize,
    sums: usize,
    parts: usize,
    size: usize,
}

/// A cut of a problem.
pub(crate) struct Run<'a> {
    loaded: Loaded<'a>,
    cut: Cut,
}

impl<'a> Run<'a> {
    pub(crate) fn new(module: &Module, operands: &'a Operands, cut: Cut, extras: Extras) -> Self {
        Self {
            loaded: Loaded::new(module, operands, extras),
            cut,
        }
    }

    fn activation(&self) -> Activation {
        self.loaded.operands.activation
    }

    /// Whether a kernel for so many vectors multiplies weights by their scales before it sums.
    fn is_scaled(&self, vectors: usize) -> bool {
        vectors >= 4 || self.activation() == Activation::Bf16 && vectors >= 2
    }

    /// Places of a batch.
    fn places(&self) -> usize {
        let shape = self.loaded.shape();
        shape
            .m()
            .next_multiple_of(match self.loaded.extras.weight_layout {
                ScaleLayout::Tiled128x4 => 128,
                ScaleLayout::Linear if shape.l() > 1 => TILE_ROWS,
                ScaleLayout::Linear => 1,
            })
    }

    /// Units of all batches, and places of one.
    fn units(&self) -> (usize, usize) {
        let unit = if self.loaded.tiled() { 4 } else { 1 };
        (self.places() * self.loaded.shape().l() / unit, unit)
    }

    fn lay_out(&self, vectors: usize) -> Shared {
        let shape = self.loaded.shape();
        let (columns, block_bytes, scale_bytes, zero_blocks) = match self.activation() {
            _ if self.is_scaled(vectors) => (vectors, 32, 0, 0),
            Activation::Nvfp4 => (vectors, 16, 8 * vectors, 10),
            // Two parts.
            Activation::Bf16 => (2, 32, 0, 10),
            _ => (vectors, 32, 0, 10),
        };
        let (units, unit) = self.units();
        let most = units.div_ceil(self.cut.ctas) * unit;
        let tiles = most.div_ceil(TILE_ROWS) + usize::from(shape.l() > 1);
        let x_batches = shape
            .l()
            .min((most + self.places() - 2) / self.places() + 1);
        let kept = x_batches * columns;
        let x = self.cut.warps * self.cut.stages * STAGE_BYTES;
        let zero = x + kept * (shape.blocks() + 1) * block_bytes;
        let x_scale = zero + zero_blocks * block_bytes;
        let sums = x_scale + x_batches * shape.blocks() * scale_bytes;
        let parts = sums + (self.cut.warps + tiles) * TILE_ROWS * columns * 4;
        Shared {
            x_batches,
            x,
            zero,
            x_scale,
            sums,
            parts,
            size: parts + tiles * 4,
        }
    }

    /// `stream::Params`, for `n` vectors from `first` on.
    fn params(&self, first: usize, n: usize, shared: &Shared) -> Vec<u8> {
        let Self { loaded, cut } = self;
        let (shape, extras) = (loaded.shape(), &loaded.extras);
        let (m, k, l, blocks) = (shape.m(), shape.k(), shape.l(), shape.blocks());
        let (units, unit) = self.units();
        let mut p = Params::new(248);
        let words = [
            m,
            n,
            l,
            k / 256,
            cut.warps,
            cut.stages,
            magic(k / 256),
            magic(cut.warps),
            self.places(),
            unit.ilog2() as usize,
            units / cut.ctas,
            units % cut.ctas,
            shared.x_batches,
            usize::from(cut.dependent),
            usize::from(cut.far_ahead),
            shared.x,
            shared.zero,
            shared.x_scale,
            shared.sums,
            shared.parts,
        ];
        p.words(0, &words);
        let vector_row = match self.activation() {
            Activation::Nvfp4 => k / 2,
            _ => 2 * k,
        };
        let scale_row = match extras.vector_layout {
            ScaleLayout::Linear => blocks,
            ScaleLayout::Tiled128x4 => 16,
        };
        p.long(80, loaded.codes.address);
        p.long(88, loaded.scales.address);
        p.layout(96, extras.weight_layout, blocks);
        p.long(112, (k / 2) as u64);
        p.long(120, extras.weight_layout.bytes(m, blocks) as u64);
        p.long(128, loaded.vectors.address + (first * vector_row) as u64);
        p.long(136, vector_row as u64);
        p.long(144, (shape.n() * vector_row) as u64);
        if let Some(scales) = loaded.vector_scales {
            p.long(152, scales.address + (first * scale_row) as u64);
            p.layout(160, extras.vector_layout, blocks);
            p.long(176, extras.vector_layout.bytes(shape.n(), blocks) as u64);
        }
        loaded.epilogue(&mut p, 184, first);
        p.into_bytes()
    }
}

impl Launched for Run<'_> {
    fn loaded(&self) -> &Loaded<'_> {
        &self.loaded
    }

    fn cut(&self) -> &dyn Debug {
        &self.cut
    }

    fn launches(&self) -> Vec<(Launch, String)> {
        let n = self.loaded.shape().n();
        let one = |first: usize| {
            let count = (n - first).min(MAX_VECTORS);
            let vectors = count.next_power_of_two();
            let entry = format!(
                "_ZN5nvfp46stream11gemv_streamILi{}ELi{vectors}EEEvNS0_6ParamsE",
                activation(self.activation())
            );
            let shared = self.lay_out(vectors);
            let threads = self.cut.warps as u32 * 32;
            let mut launch = Launch::new(&entry, [self.cut.ctas as u32, 1, 1], [threads, 1, 1]);
            launch.shared = shared.size as u32;
            launch.dependent = self.cut.dependent;
            launch.params = vec![self.params(first, count, &shared)];
            (launch, entry)
        };
        (0..n).step_by(MAX_VECTORS).map(one).collect()
    }

    /// The most f32 roundings that a term passes through.
    ///
    /// With one or two vectors, a lane adds a block with one FMA, four of them a step, all of which one warp may
    /// have: its factor is exact, the product of two E4M3 numbers. Then
    /// two additions over lanes, one for each warp, three factors. The block itself is exact for NVFP4
    /// vectors. Dense ones take four matrix instructions of four products and the sum so far, and by the
    /// simulator's model (docs/semantics.md) each cuts those five terms at 2^-25 of the largest
    /// exponent. With normal vectors that power of two is at most twice the largest term (the weight
    /// 0.5 may be a subnormal f16): together no more than 5 times 2^-24 of the sum of magnitudes.
    /// Its result is cut to f32, by less than 2 times 2^-24: 7 roundings each.
    ///
    /// With more, eight instructions of sixteen products, of which all of the 17 terms but the largest lose less
    /// than 2^-25 of the largest exponent's power. That is at most the largest term, or eight times it in f16,
    /// where weights times 2^-7 may be as small as 2^-17: 8 or 64 times 2^-24, and 2 for the cut. Then two
    /// additions a step.
    fn roundings(&self) -> u32 {
        let steps = self.loaded.shape().k() / 256;
        let bf16 = self.activation() == Activation::Bf16;
        let of_pass = |n: usize| match self.activation() {
            _ if self.is_scaled(n.next_power_of_two()) => {
                8 * (if bf16 { 8 } else { 64 } + 2) + 2 * steps
            }
            Activation::Nvfp4 => steps * 4 + 2,
            // A bf16 vector is summed in two parts.
            _ => 4 * 7 + steps * 4 + 2 + usize::from(bf16),
        };
        let n = self.loaded.shape().n();
        let passes = (0..n)
            .step_by(MAX_VECTORS)
            .map(|first| of_pass((n - first).min(MAX_VECTORS)));
        (passes.max().unwrap() + self.cut.warps + 3) as u32
    }
}

fn activation(activation: Activation) -> u32 {
    match activation {
        Activation::Nvfp4 => 0,
        Activation::F16 => 1,
        _ => 2,
    }
}
