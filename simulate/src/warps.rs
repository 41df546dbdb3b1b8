//! Small problems on which the warps of each kernel show what they do, and pictures of it: [`picture::warps`].

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nvfp4_gemv::kernel::{Config, DirectConfig, DotConfig, RingConfig, StreamConfig, TmaConfig};
use nvfp4_gemv::{Activation, Dims, FloatType, GlobalScale, ScaleLayout, Shape, Strides};
use ptx_sim::{Options, Policy, Timing, Trace};

use crate::launch::{self, Loaded, launches};
use crate::operands::Operands;
use crate::ptx;

/// Code for which the kernels are compiled: compute capability 9.0.
const ARCH: &str = "90a";

/// A kernel whose warps are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Drawn {
    /// Producer warps fill a ring, groups of warps multiply.
    Ring,
    /// Each warp has a queue of its own.
    Stream,
    /// Weights go from memory into registers, vectors wait in shared memory.
    Dot,
    /// All goes from memory into registers.
    Direct,
    /// The tensor cores' pipeline with CUDA cores behind it.
    Tma,
}

/// What is run for a picture.
#[derive(Clone, Copy, Debug)]
struct Scene {
    config: Config,
    m: usize,
    k: usize,
    layout: ScaleLayout,
    /// Steps that a copy takes.
    latency: u64,
}

impl Drawn {
    fn scene(self) -> Scene {
        let scene = |config, m, k, latency| Scene {
            config,
            m,
            k,
            layout: ScaleLayout::Linear,
            latency,
        };
        match self {
            Drawn::Ring => {
                let config = RingConfig {
                    chunks: 1,
                    groups: 2,
                    rows: 4,
                    depth: 2,
                    granule: 1,
                    cached: false,
                    ctas: 1,
                };
                scene(config.into(), 40, 1024, 500)
            }
            Drawn::Stream => {
                let config = StreamConfig {
                    warps: 3,
                    stages: 3,
                    vectors: 1,
                    fetch: 128,
                    ctas: 1,
                };
                scene(config.into(), 48, 2048, 500)
            }
            Drawn::Dot => {
                let config = DotConfig {
                    blocks_per_load: 2,
                    warps: 4,
                    k_split: 2,
                    ctas: 1,
                };
                scene(config.into(), 24, 2048, 500)
            }
            Drawn::Direct => {
                let config = DirectConfig {
                    blocks_per_load: 2,
                    warps: 4,
                    k_split: 2,
                };
                scene(config.into(), 8, 4096, 500)
            }
            Drawn::Tma => {
                let config = TmaConfig {
                    stages: 4,
                    cluster: 1,
                };
                Scene {
                    layout: ScaleLayout::Tiled128x4,
                    ..scene(config.into(), 128, 2048, 1000)
                }
            }
        }
    }

    /// What the only CTA's warps do.
    ///
    /// # Errors
    /// A config that does not fit its problem; a run that breaks a rule.
    pub fn trace(self) -> Result<Trace> {
        let scene = self.scene();
        let mut loaded = Loaded::new(&operands(&scene)?, ARCH);
        let plan = scene
            .config
            .plan(&loaded.call, &launch::gpu(ARCH), false)?;
        let [planned] = plan.launches() else {
            bail!("several launches");
        };
        let launch = launches(planned)?.into_iter().next();
        let launch = launch.context("a launch without parts")?;
        let program = &ptx::entry(&launch.kernel, ARCH).program;
        let options = Options {
            policy: Policy::Fair,
            timing: Timing::After(scene.latency),
            ..Options::default()
        };
        let trace = loaded.traced(program, &launch, &options)?;
        if !loaded.fully_written() {
            bail!("an element of the result was not written");
        }
        Ok(trace)
    }
}

/// Any numbers: what warps do does not depend on them.
fn operands(scene: &Scene) -> Result<Operands> {
    let shape = Shape::new(Dims {
        m: scene.m,
        n: 1,
        k: scene.k,
        l: 1,
    })?;
    // 1.0 in E4M3.
    let ones = |bytes| vec![0x38; bytes];
    let vector_scales = ones(scene.layout.bytes(1, shape.blocks()));
    Ok(Operands {
        codes: vec![0x21; shape.weight_code_bytes()],
        scales: ones(shape.weight_scale_bytes(scene.layout)),
        layout: scene.layout,
        global: GlobalScale::Multiplier(1.0),
        row_alpha: Vec::new(),
        activation: Activation::Nvfp4,
        vectors: vec![0x21; shape.row_code_bytes()],
        vector_strides: packed(shape.row_code_bytes()),
        vector_scale_strides: Strides {
            row: shape.blocks(),
            batch: vector_scales.len(),
        },
        vector_scales,
        vector_layout: scene.layout,
        vector_global: GlobalScale::Multiplier(1.0),
        vector_alpha: Vec::new(),
        output: FloatType::F32,
        shape,
    })
}

fn packed(row: usize) -> Strides {
    Strides { row, batch: row }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn dump() {
        for d in Drawn::value_variants() {
            let t = match d.trace() { Ok(t) => t, Err(e) => { println!("{d:?}: {e:#}"); continue } };
            let mut out = Vec::new();
            t.write_chrome(&mut out).unwrap();
            std::fs::write(format!("/tmp/tr-{d:?}.json"), out).unwrap();
        }
    }
}
