//! Problems in the simulator's memory, for the kernels that take tensors by their addresses.

use std::cell::RefCell;

use half::{bf16, f16};
use nvfp4_gemv::reference::error_bound;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape};
use ptx_sim::{Buffer, Launch, Module, Options, Program, Report, Sim, SimError};

use super::operands::Operands;
use super::params::Params;
use super::tiled::launch::{Comparison, vector_alpha, with_nan_padding};

/// What the problem does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras {
    pub(crate) weight_layout: ScaleLayout,
    pub(crate) vector_layout: ScaleLayout,
    pub(crate) element: FloatType,
    pub(crate) vector_alpha: bool,
}

/// A problem's tensors.
pub(crate) struct Loaded<'a> {
    pub(crate) operands: &'a Operands,
    pub(crate) extras: Extras,
    sim: RefCell<Sim>,
    pub(crate) codes: Buffer,
    pub(crate) scales: Buffer,
    pub(crate) vectors: Buffer,
    pub(crate) vector_scales: Option<Buffer>,
    row_alpha: Option<Buffer>,
    vector_alpha: Option<Buffer>,
    output: Buffer,
}

impl<'a> Loaded<'a> {
    pub(crate) fn new(module: &Module, operands: &'a Operands, extras: Extras) -> Self {
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

    pub(crate) fn shape(&self) -> &Shape {
        &self.operands.problem.shape
    }

    /// Weights have their scales in the 128x4 layout.
    pub(crate) fn tiled(&self) -> bool {
        self.extras.weight_layout == ScaleLayout::Tiled128x4
    }

    /// `Epilogue`, 64 bytes from `at` on, of the vectors from `first` on: `csrc/launch/arguments.cuh`.
    pub(crate) fn epilogue(&self, p: &mut Params, at: usize, first: usize) {
        let shape = self.shape();
        let problem = &self.operands.problem;
        let global = problem.weights(ScaleLayout::Linear).unwrap().global();
        p.put(at, &(global.multiplier() as f32).to_le_bytes());
        p.long(at + 8, self.row_alpha.map_or(0, |b| b.address));
        let alpha = self.vector_alpha.map(|b| b.address + 4 * first as u64);
        p.long(at + 24, alpha.unwrap_or(0));
        p.long(at + 32, shape.n() as u64);
        let skipped = first * shape.m() * self.extras.element.bytes();
        p.long(at + 40, self.output.address + skipped as u64);
        p.long(at + 48, (shape.n() * shape.m()) as u64);
        p.word(
            at + 56,
            match self.extras.element {
                FloatType::F16 => 0,
                FloatType::Bf16 => 1,
                FloatType::F32 => 2,
            },
        );
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

    /// The first element that is not what the problem asks for, where a term passes through so many
    /// f32 roundings.
    pub(crate) fn difference(&self, comparison: Comparison, roundings: u32) -> Option<String> {
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
                Some(_) => f64::from(vector_alpha(i / self.shape().m())),
                None => 1.0,
            };
            let (y, magnitude) = (truth.y[i] * alpha, truth.magnitude[i] * alpha);
            let bound = match comparison {
                Comparison::Exact => 0.0,
                Comparison::Bound => error_bound(y, magnitude, roundings, element),
            };
            // A NaN is wrong too.
            let right = (got - y).abs() <= bound;
            (!right).then(|| format!("element {i}: {got} instead of {y}, bound {bound:e}"))
        })
    }
}
