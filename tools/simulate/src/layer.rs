//! The first rows of a checkpoint's layer, by the CPU path and by the tensor cores' kernel in the simulator.

use anyhow::{Context, Result, bail};
use nvfp4_gemv::checkpoint::{Checkpoint, Dialect, Layer};
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::kernel::{Config, Job, Kernel, Tcgen05Config};
use nvfp4_gemv::quantize::quantize;
use nvfp4_gemv::reference::{self, Reference, error_bound};
use nvfp4_gemv::{
    Activation, Dims, FloatType, GemvPath, GlobalScale, Options, Output, ScaleLayout, Shape,
    Strides, Weights, convert_scales, gemv,
};
use ptx_sim::Report;

use crate::launch::{self, Loaded, launches};
use crate::operands::Operands;
use crate::{picture, ptx};

/// Rows that are simulated: what a CTA of the kernel computes.
pub const ROWS: usize = 128;

/// Code for which the kernel is compiled: compute capability 10.0.
const ARCH: &str = ptx::BLACKWELL;

/// The rows, vectors for them, and the results that are right.
#[derive(Debug)]
pub struct Problem {
    /// The operands as the kernel takes them.
    operands: Operands,
    /// Results of the CPU path.
    cpu: Vec<f32>,
    truth: Reference,
}

/// The difference of two results.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// The largest one of any element.
    pub largest: f64,
    /// The element whose difference is the largest share of its bound.
    pub element: usize,
    /// The share of its bound that this difference is. 1 is the bound.
    pub share: f64,
    /// Difference of this element.
    pub there: f64,
    /// Bound of this element.
    pub bound: f64,
}

/// Vectors that the kernel takes in one launch.
const MOST_VECTORS: usize = 128;

/// A run that ended as it should.
#[derive(Debug)]
pub struct Run {
    /// Counts of what the simulator executed.
    pub report: Report,
    /// The result, `[n][rows]`.
    pub y: Vec<f32>,
    /// The difference from the CPU path's result.
    pub difference: Difference,
}

impl Problem {
    /// Takes the layer's own test input as vectors, as many as the kernel takes in one launch, or else one vector of
    /// numbers between -1 and 1.
    ///
    /// # Errors
    /// Vectors that are not as long as the layer's rows, or not finite.
    pub fn new(checkpoint: &Checkpoint, layer: &Layer<'_>) -> Result<Self> {
        let k = layer.k();
        let has_factors = layer.row_alpha().is_some() || layer.column_alpha().is_some();
        if has_factors || layer.layout() != ScaleLayout::Linear {
            bail!(
                "layer {:?} has factors of rows or columns, or scales that are not linear: it is not simulated",
                layer.name()
            );
        }
        let values = match checkpoint.tensor(&format!("{}.test_input", layer.name())) {
            Some(tensor) => tensor.to_f32_widened()?,
            // Any numbers between -1 and 1.
            None => (0..k).map(|i| (i as f32 * 0.7).sin()).collect(),
        };
        let n = (values.len() / k).min(MOST_VECTORS);
        let input_global = layer.input_global()?;
        let dialect = match input_global {
            Some(GlobalScale::Divisor(_)) => Dialect::CompressedTensors,
            _ => Dialect::ModelOpt,
        };
        let x = quantize(&values, n, k, dialect, input_global)?;
        let shape = Shape::new(Dims {
            m: layer.rows().min(ROWS),
            n,
            k,
            l: 1,
        })?;
        let codes = &layer.codes()[..shape.weight_code_bytes()];
        let scales = &layer.scales()[..shape.weight_scale_bytes(ScaleLayout::Linear)];

        let weights = Weights::new(&shape, codes, scales, ScaleLayout::Linear, layer.global())?;
        let vectors = x.vectors();
        let mut cpu = vec![0.0; shape.outputs()];
        let options = Options::new().path(GemvPath::Cpu);
        gemv(&shape, &weights, &vectors, Output::of(&mut cpu), &options)?;

        let tiled = |scales: &[u8], rows: usize| {
            let (linear, tiled) = (ScaleLayout::Linear, ScaleLayout::Tiled128x4);
            convert_scales(scales, linear, tiled, rows, k, 1)
        };
        let vector_scales = tiled(&x.scales, n)?;
        Ok(Self {
            truth: reference::gemv(&shape, &weights, &vectors)?,
            cpu,
            operands: Operands {
                shape,
                codes: codes.to_vec(),
                scales: tiled(scales, shape.m())?,
                layout: ScaleLayout::Tiled128x4,
                global: layer.global(),
                row_alpha: Vec::new(),
                activation: Activation::Nvfp4,
                vector_strides: Strides::packed(n, shape.row_code_bytes()),
                vectors: x.codes,
                vector_scale_strides: Strides {
                    row: shape.blocks(),
                    batch: vector_scales.len(),
                },
                vector_scales,
                vector_layout: ScaleLayout::Tiled128x4,
                vector_global: x.global,
                vector_alpha: Vec::new(),
                on_read: None,
                digits: 1,
                output: FloatType::F32,
                select: Vec::new(),
                late: false,
                output_strides: None,
                bias: Vec::new(),
                residual: Vec::new(),
                in_place: false,
            },
        })
    }

    /// The dimensions of what is computed.
    pub fn shape(&self) -> &Shape {
        &self.operands.shape
    }

    /// The kernel's default for these rows, and the smallest ring of stages, which are used again most often, as last.
    ///
    /// # Errors
    /// Why the kernel cannot compute them.
    pub fn configs(&self) -> Result<Vec<Tcgen05Config>> {
        let gpu = launch::gpu(ARCH);
        let operands = nvfp4_gemv::Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4)
            .with_workspace(u64::MAX);
        let job = Job::new(self.shape(), &operands, &gpu);
        let Config::Tcgen05(default) = Kernel::Tcgen05.default_config(&job)? else {
            bail!("the default of a kernel is of another one");
        };
        // Two CTAs share a tile where K is long enough.
        let smallest = [true, false].map(|divided| Tcgen05Config {
            step: 256,
            stages: 2,
            ctas: 2,
            divided,
            ..Tcgen05Config::DEFAULT
        });
        let can_run = |config: &Tcgen05Config| Config::from(*config).check(&job).is_ok();
        let others = smallest.into_iter().filter(can_run);
        Ok(std::iter::once(default)
            .chain(others.filter(|config| *config != default))
            .collect())
    }

    /// Runs the kernel once.
    ///
    /// # Errors
    /// Actions of the kernel that the ISA does not allow, and a deadlock: `ptx_sim::SimError`. A result that was not
    /// written.
    pub fn run(&self, config: Tcgen05Config, options: &ptx_sim::Options) -> Result<Run> {
        let (mut loaded, launch) = self.loaded(config)?;
        let program = &ptx::entry(&launch.kernel, ARCH).program;
        let report = loaded.launch(program, &launch, options)?;
        if !loaded.fully_written() {
            bail!("an element of the result was not written");
        }
        let words = loaded.output().chunks_exact(4);
        let y: Vec<f32> = words
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let roundings = Config::from(config).roundings(self.shape(), Activation::Nvfp4);
        let difference = self.difference(&y, roundings);
        Ok(Run {
            report,
            y,
            difference,
        })
    }

    /// A picture of what the warps of the first CTA do, as SVG.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn picture(&self, config: Tcgen05Config, options: &ptx_sim::Options) -> Result<String> {
        let (mut loaded, launch) = self.loaded(config)?;
        let program = &ptx::entry(&launch.kernel, ARCH).program;
        let trace = loaded.traced(program, &launch, options)?;
        let Tcgen05Config { stages, ctas, .. } = config;
        let title = format!("gemv_tcgen05: one of {ctas} CTAs, {stages} stages");
        Ok(picture::tcgen05(&trace, stages, &title)?)
    }

    fn loaded(&self, config: Tcgen05Config) -> Result<(Loaded, ptx_sim::Launch)> {
        let mut loaded = Loaded::new(&self.operands, ARCH);
        let (config, gpu) = (Config::from(config), launch::gpu(ARCH));
        let operands = loaded.call.operands();
        loaded.give_workspace(config.workspace_bytes(&Job::new(self.shape(), &operands, &gpu)));
        let plan = config.plan(&loaded.call, &gpu, false)?;
        let [planned] = plan.launches() else {
            bail!("the kernel computes {} in several launches", self.shape());
        };
        let launch = launches(planned)?.into_iter().next();
        Ok((loaded, launch.context("a launch without parts")?))
    }

    /// The largest difference from the CPU path's result, and the largest share of a bound. Both results lie within
    /// their own bound of the truth, so they differ by no more than the sum of the two bounds.
    fn difference(&self, y: &[f32], roundings: u32) -> Difference {
        let on_cpu = Implementation::best().roundings(self.shape(), Activation::Nvfp4);
        let mut all = Difference::default();
        for (element, (&y, &cpu)) in y.iter().zip(&self.cpu).enumerate() {
            let (truth, magnitude) = (self.truth.y[element], self.truth.magnitude[element]);
            let bound_of = |roundings| error_bound(truth, magnitude, roundings, FloatType::F32);
            let bound = bound_of(roundings) + bound_of(on_cpu);
            let there = (f64::from(y) - f64::from(cpu)).abs();
            // NaN is no small difference.
            let there = if there.is_nan() { f64::INFINITY } else { there };
            all.largest = all.largest.max(there);
            if there / bound >= all.share {
                (all.element, all.share, all.there, all.bound) =
                    (element, there / bound, there, bound);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(layer: &str) -> Problem {
        let file = "tests/data/minilm-l0-compressed-tensors.safetensors";
        let checkpoint = Checkpoint::open(crate::repository().join(file)).unwrap();
        let layer = checkpoint.layer(layer).unwrap();
        Problem::new(&checkpoint, &layer).unwrap()
    }

    #[test]
    fn a_result_past_the_bound_is_noticed() {
        let problem = problem("encoder.layer.0.output.dense");
        assert_eq!(problem.shape().to_string(), "128x1536 n=8");
        let mut y = problem.cpu.clone();
        let same = problem.difference(&y, 1);
        assert_eq!((same.largest, same.share), (0.0, 0.0));
        for far in [1.0, f32::NAN] {
            y[7] = problem.cpu[7] + far;
            let difference = problem.difference(&y, 1);
            assert_eq!(difference.element, 7);
            assert!(difference.share > 1.0, "{difference:?}");
        }
    }

    #[test]
    fn the_last_config_has_the_smallest_ring() {
        for (layer, count) in [
            ("encoder.layer.0.output.dense", 3),
            ("encoder.layer.0.intermediate.dense", 3),
        ] {
            let configs = problem(layer).configs().unwrap();
            assert_eq!(configs.len(), count, "{configs:?}");
            let last = configs.last().unwrap();
            assert_eq!((last.step, last.stages), (256, 2));
        }
    }
}
