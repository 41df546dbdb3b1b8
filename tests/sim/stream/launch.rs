//! One problem on `gemv_stream` in the simulator: what `csrc/launch/gemv_stream.cu` does, in Rust.

use std::cell::RefCell;

use half::{bf16, f16};
use nvfp4_gemv::reference::error_bound;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout};
use ptx_sim::{Buffer, Launch, Module, Options, Program, Report, Sim, SimError};

use super::super::tiled::launch::{Comparison, vector_alpha, with_nan_padding};
use super::operands::Operands;

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

/// What the problem and the cut do not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras {
    pub(crate) weight_layout: ScaleLayout,
    pub(crate) vector_layout: ScaleLayout,
    pub(crate) element: FloatType,
    pub(crate) vector_alpha: bool,
}

const TILE_ROWS: usize = 16;
const STAGE_BYTES: usize = 2048 + 256;
const ZERO_BLOCKS: usize = 10;
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

/// A problem in the simulator's memory.
pub(crate) struct Run<'a> {
    operands: &'a Operands,
    cut: Cut,
    extras: Extras,
    sim: RefCell<Sim>,
    codes: Buffer,
    scales: Buffer,
    vectors: Buffer,
    vector_scales: Option<Buffer>,
    row_alpha: Option<Buffer>,
    vector_alpha: Option<Buffer>,
    output: Buffer,
}

impl<'a> Run<'a> {
    pub(crate) fn new(module: &Module, operands: &'a Operands, cut: Cut, extras: Extras) -> Self {
        let problem = &operands.problem;
        let shape = &problem.shape;
        let weights = problem.weights(extras.weight_layout).unwrap();
        let x = problem.vectors(extras.vector_layout).unwrap();
        let dense = operands.activation != Activation::Nvfp4;
        let mut sim = Sim::new(module.clone());
        let mut upload = |name, bytes: &[u8]| sim.upload(name, bytes).unwrap();
        let floats = |values: &mut dyn Iterator<Item = f32>| -> Vec<u8> {
            values.flat_map(f32::to_le_bytes).collect()
        };
        let codes = upload("weight codes", weights.codes);
        let scales = match extras.weight_layout {
            ScaleLayout::Linear => upload("weight scales", &weights.scales),
            ScaleLayout::Tiled128x4 => {
                upload("weight scales", &with_nan_padding(problem, &weights.scales))
            }
        };
        let vectors = upload("vectors", if dense { &operands.dense } else { &x.codes });
        let vector_scales = (!dense).then(|| upload("vector scales", &x.scales));
        let row_alpha = weights
            .row_alpha()
            .map(|alpha| upload("row alpha", &floats(&mut alpha.iter().copied())));
        let vector_alpha = extras.vector_alpha.then(|| {
            let mut alpha = (0..shape.l() * shape.n()).map(vector_alpha);
            upload("vector alpha", &floats(&mut alpha))
        });
        let bytes = shape.outputs() * extras.element.bytes();
        let output = sim.alloc("output", bytes).unwrap();
        Self {
            operands,
            cut,
            extras,
            sim: RefCell::new(sim),
            codes,
            scales,
            vectors,
            vector_scales,
            row_alpha,
            vector_alpha,
            output,
        }
    }

    /// The launches of one call, with their entries.
    pub(crate) fn launches(&self) -> Vec<(Launch, String)> {
        let n = self.operands.problem.shape.n();
        let one = |first: usize| {
            let count = (n - first).min(MAX_VECTORS);
            let vectors = count.next_power_of_two();
            let entry = format!(
                "_ZN5nvfp46stream11gemv_streamILi{}ELi{vectors}EEEvNS0_6ParamsE",
                activation(self.operands.activation)
            );
            let shared = self.lay_out(vectors);
            let threads = self.cut.warps as u32 * 32;
            let mut launch = Launch::new(&entry, [self.cut.ctas as u32, 1, 1], [threads, 1, 1]);
            launch.shared = shared.size as u32;
            launch.params = vec![self.params(first, count, &shared)];
            (launch, entry)
        };
        (0..n).step_by(MAX_VECTORS).map(one).collect()
    }

    fn tiled(&self) -> bool {
        self.extras.weight_layout == ScaleLayout::Tiled128x4
    }

    /// Places of a batch.
    fn places(&self) -> usize {
        let shape = &self.operands.problem.shape;
        shape.m().next_multiple_of(match self.extras.weight_layout {
            ScaleLayout::Tiled128x4 => 128,
            ScaleLayout::Linear if shape.l() > 1 => TILE_ROWS,
            ScaleLayout::Linear => 1,
        })
    }

    /// Units of all batches, and places of one.
    fn units(&self) -> (usize, usize) {
        let unit = if self.tiled() { 4 } else { 1 };
        (self.places() * self.operands.problem.shape.l() / unit, unit)
    }

    fn lay_out(&self, vectors: usize) -> Shared {
        let shape = &self.operands.problem.shape;
        let scaled = self.operands.activation == Activation::Nvfp4;
        let block_bytes = if scaled { 16 } else { 32 };
        let (units, unit) = self.units();
        let most = units.div_ceil(self.cut.ctas) * unit;
        let tiles = most.div_ceil(TILE_ROWS) + usize::from(shape.l() > 1);
        let x_batches = shape
            .l()
            .min((most + self.places() - 2) / self.places() + 1);
        let kept = x_batches * vectors;
        let x = self.cut.warps * self.cut.stages * STAGE_BYTES;
        let zero = x + kept * (shape.blocks() + 1) * block_bytes;
        let x_scale = zero + ZERO_BLOCKS * block_bytes;
        let sums = x_scale + if scaled { kept * shape.blocks() * 8 } else { 0 };
        let parts = sums + (self.cut.warps + tiles) * TILE_ROWS * vectors * 4;
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
        let Self { cut, extras, .. } = self;
        let problem = &self.operands.problem;
        let shape = &problem.shape;
        let (m, k, l, blocks) = (shape.m(), shape.k(), shape.l(), shape.blocks());
        let (units, unit) = self.units();
        let mut p = Bytes(vec![0; 248]);
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
        for (i, v) in words.into_iter().enumerate() {
            p.word(4 * i, v);
        }
        let vector_row = match self.operands.activation {
            Activation::Nvfp4 => k / 2,
            _ => 2 * k,
        };
        let scale_row = match extras.vector_layout {
            ScaleLayout::Linear => blocks,
            ScaleLayout::Tiled128x4 => 16,
        };
        p.long(80, self.codes.address);
        p.long(88, self.scales.address);
        p.layout(96, extras.weight_layout, blocks);
        p.long(112, (k / 2) as u64);
        p.long(120, extras.weight_layout.bytes(m, blocks) as u64);
        p.long(128, self.vectors.address + (first * vector_row) as u64);
        p.long(136, vector_row as u64);
        p.long(144, (shape.n() * vector_row) as u64);
        if let Some(scales) = self.vector_scales {
            p.long(152, scales.address + (first * scale_row) as u64);
            p.layout(160, extras.vector_layout, blocks);
            p.long(176, extras.vector_layout.bytes(shape.n(), blocks) as u64);
        }
        let global = problem.weights(ScaleLayout::Linear).unwrap().global();
        p.put(184, &(global.multiplier() as f32).to_le_bytes());
        p.long(192, self.row_alpha.map_or(0, |b| b.address));
        let alpha = self.vector_alpha.map(|b| b.address + 4 * first as u64);
        p.long(208, alpha.unwrap_or(0));
        p.long(216, shape.n() as u64);
        let skipped = first * m * extras.element.bytes();
        p.long(224, self.output.address + skipped as u64);
        p.long(232, (shape.n() * m) as u64);
        p.word(
            240,
            match extras.element {
                FloatType::F16 => 0,
                FloatType::Bf16 => 1,
                FloatType::F32 => 2,
            },
        );
        p.0
    }

    /// Runs one launch.
    pub(crate) fn launch(
        &self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, SimError> {
        self.sim
            .borrow_mut()
            .run_program(program, launch, options, None)
    }

    /// The most f32 roundings that a term passes through.
    ///
    /// A lane adds a block with one FMA, four of them a step, all of which one warp may have: its
    /// factor is exact, the product of two E4M3 numbers. Then
    /// two additions over lanes, one for each warp, three factors. The block itself is exact for NVFP4
    /// vectors. Dense ones take four matrix instructions of four products and the sum so far, and by the
    /// simulator's model (docs/semantics.md) each cuts those five terms at 2^-25 of the largest
    /// exponent. With normal vectors that power of two is at most twice the largest term (the weight
    /// 0.5 may be a subnormal f16): together no more than 5 times 2^-24 of the sum of magnitudes.
    /// Its result is cut to f32, by less than 2 times 2^-24: 7 roundings each.
    fn roundings(&self) -> u32 {
        let steps = self.operands.problem.shape.k() / 256;
        let block = match self.operands.activation {
            Activation::Nvfp4 => 0,
            _ => 4 * 7,
        };
        (block + steps * 4 + 2 + self.cut.warps + 3) as u32
    }

    /// The first element that is not what the problem asks for.
    pub(crate) fn difference(&self, comparison: Comparison) -> Option<String> {
        let sim = self.sim.borrow();
        if !sim.fully_written(self.output) {
            return Some("an output was not written".into());
        }
        let element = self.extras.element;
        let number = |b: &[u8]| match element {
            FloatType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
            FloatType::Bf16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
            FloatType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
        };
        let truth = &self.operands.truth;
        let all = sim.download(self.output).chunks_exact(element.bytes());
        all.map(number).enumerate().find_map(|(i, got)| {
            let alpha = match self.vector_alpha {
                Some(_) => f64::from(vector_alpha(i / self.operands.problem.shape.m())),
                None => 1.0,
            };
            let (y, magnitude) = (truth.y[i] * alpha, truth.magnitude[i] * alpha);
            let bound = match comparison {
                Comparison::Exact => 0.0,
                Comparison::Bound => error_bound(y, magnitude, self.roundings(), element),
            };
            // A NaN is wrong too.
            let right = (got - y).abs() <= bound;
            (!right).then(|| format!("element {i}: {got} instead of {y}, bound {bound:e}"))
        })
    }
}

/// 2^32 / y rounded up, for the kernel's `divide`.
fn magic(y: usize) -> usize {
    if y == 1 {
        0
    } else {
        (1usize << 32).div_ceil(y)
    }
}

fn activation(activation: Activation) -> u32 {
    match activation {
        Activation::Nvfp4 => 0,
        Activation::F16 => 1,
        _ => 2,
    }
}

/// A C struct in the making.
struct Bytes(Vec<u8>);

impl Bytes {
    fn put(&mut self, at: usize, v: &[u8]) {
        self.0[at..at + v.len()].copy_from_slice(v);
    }

    fn word(&mut self, at: usize, v: usize) {
        self.put(at, &(v as u32).to_le_bytes());
    }

    fn long(&mut self, at: usize, v: u64) {
        self.put(at, &v.to_le_bytes());
    }

    /// `ScaleLayout`, of dense rows.
    fn layout(&mut self, at: usize, layout: ScaleLayout, blocks: usize) {
        let (row, group, tiled) = match layout {
            ScaleLayout::Linear => (blocks, 4, 0),
            ScaleLayout::Tiled128x4 => (blocks.div_ceil(4) * 512, 512, 1),
        };
        self.long(at, row as u64);
        self.word(at + 8, group);
        self.put(at + 12, &[tiled]);
    }
}
