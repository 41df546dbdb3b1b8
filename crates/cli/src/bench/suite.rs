//! The problems that `bench` measures when it is not told shape by shape.

use nvfp4_gemv::{Activation, ScaleLayout};
use nvfp4_gemv_cli::problem::CONTEST_BENCHMARKS;

use crate::engine::Case;

/// M, K and L of the shapes of decoder layers, which stand beside the contest's.
pub(crate) const LAYERS: [(usize, usize, usize); 5] = [
    (4096, 4096, 1),
    (14336, 4096, 1),
    (4096, 14336, 1),
    (28672, 8192, 1),
    (8192, 28672, 1),
];

/// The shape whose results are worth sustaining: long enough for the power limit to matter, M, K, L.
const SUSTAINED: (usize, usize, usize) = (28672, 8192, 1);

/// The shapes that are measured with up to 128 vectors.
const MANY_VECTORS: [(usize, usize, usize); 4] = [
    (14336, 4096, 1),
    (28672, 8192, 1),
    (4096, 14336, 1),
    (4096, 4096, 1),
];

/// First the one that every path takes: pages begin with it.
const BOTH_LAYOUTS: &[ScaleLayout] = &[ScaleLayout::Tiled128x4, ScaleLayout::Linear];

/// What `--suite` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SuiteArg {
    /// 8 shapes, n = 1, 2, 4 and 8, NVFP4, f16 and bf16, both layouts; and 2 of them with n = 16, 32, 64 and 128, NVFP4
    /// and f16, linear scales: minutes on a GPU
    All,
    /// 4 shapes, n = 1 and 4, NVFP4 and bf16, the 128x4 layout: seconds on a GPU
    Quick,
    /// 4 shapes, n = 1, 2, 4, ... 128, NVFP4, f16 and bf16, linear scales: minutes on a GPU. With --cublas it shows
    /// from which n on cuBLAS with f16 weights is faster
    Vectors,
    /// Decode steps: the linear layers of Llama-3.1-8B, Llama-3.3-70B and Qwen3-32B, fused and not, n = 1, 4 and 16,
    /// NVFP4 and f16, as many decoder layers as --cold holds in one CUDA graph, isolated and chained
    Decode,
    /// Layers of mixtures of experts: Qwen3-30B-A3B, DeepSeek-V3, gpt-oss-20b and Mixtral-8x7B, 1, 2, 4 and 8 tokens,
    /// uniform and skewed routing, NVFP4 vectors, chained. On a GPU
    Moe,
}

/// Every combination of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suite {
    /// The name in the document.
    pub(crate) name: &'static str,
    /// M, K, L.
    pub(crate) shapes: Vec<(usize, usize, usize)>,
    pub(crate) vectors: &'static [usize],
    pub(crate) activations: &'static [Activation],
    pub(crate) layouts: &'static [ScaleLayout],
    /// Problems besides.
    pub(crate) also: Option<Box<Suite>>,
}

impl Suite {
    /// The suite on a GPU, or what the CPU does in the same time.
    pub(crate) fn new(suite: Option<SuiteArg>, on_cpu: bool) -> Self {
        let contest = CONTEST_BENCHMARKS.to_vec();
        match suite {
            None => Self {
                name: "custom",
                shapes: contest,
                vectors: &[1],
                activations: &[Activation::Nvfp4],
                layouts: &[ScaleLayout::Linear],
                also: None,
            },
            Some(SuiteArg::Moe) => Self {
                name: "moe",
                shapes: Vec::new(), // what the models have
                vectors: &[],
                activations: &[],
                layouts: &[],
                also: None,
            },
            Some(suite) if on_cpu && suite != SuiteArg::Decode => Self {
                name: "cpu",
                shapes: LAYERS[..2].to_vec(),
                vectors: &[1, 4],
                activations: &[Activation::Nvfp4, Activation::Bf16],
                layouts: &[ScaleLayout::Tiled128x4],
                also: None,
            },
            Some(SuiteArg::All) => Self {
                name: "all",
                shapes: [contest, LAYERS.to_vec()].concat(),
                vectors: &[1, 2, 4, 8],
                activations: &[Activation::Nvfp4, Activation::F16, Activation::Bf16],
                layouts: BOTH_LAYOUTS,
                also: Some(Box::new(Self {
                    name: "all",
                    shapes: MANY_VECTORS[..2].to_vec(),
                    vectors: &[16, 32, 64, 128],
                    activations: &[Activation::Nvfp4, Activation::F16],
                    layouts: &[ScaleLayout::Linear],
                    also: None,
                })),
            },
            Some(SuiteArg::Vectors) => Self {
                name: "vectors",
                shapes: MANY_VECTORS.to_vec(),
                vectors: &[1, 2, 4, 8, 16, 32, 64, 128],
                activations: &[Activation::Nvfp4, Activation::F16, Activation::Bf16],
                layouts: &[ScaleLayout::Linear],
                also: None,
            },
            Some(SuiteArg::Decode) => Self {
                name: "decode",
                shapes: Vec::new(), // what the models have
                vectors: &[1, 4, 16],
                activations: &[Activation::Nvfp4, Activation::F16],
                layouts: &[ScaleLayout::Linear],
                also: None,
            },
            Some(SuiteArg::Quick) => Self {
                name: "quick",
                shapes: [contest, LAYERS[..1].to_vec()].concat(),
                vectors: &[1, 4],
                activations: &[Activation::Nvfp4, Activation::Bf16],
                layouts: &[ScaleLayout::Tiled128x4],
                also: None,
            },
        }
    }
}

impl Suite {
    /// The cases whose results are worth seconds each: one vector, the largest shape, linear scales.
    pub(crate) fn worth_sustaining(&self, cases: &[Case]) -> Vec<Case> {
        let worth = |case: &&Case| {
            let shape = &case.shape;
            shape.n() == 1
                && (shape.m(), shape.k(), shape.l()) == SUSTAINED
                && case.layout == ScaleLayout::Linear
        };
        cases.iter().filter(worth).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_what_the_documentation_says() {
        let count = |suite: &Suite| {
            suite.shapes.len() * suite.vectors.len() * suite.activations.len() * suite.layouts.len()
        };
        let all = Suite::new(Some(SuiteArg::All), false);
        assert_eq!(count(&all), 8 * 4 * 3 * 2);
        assert_eq!(all.shapes[..3], CONTEST_BENCHMARKS);
        assert_eq!(all.also.as_deref().map(count), Some(2 * 4 * 2));
        let vectors = Suite::new(Some(SuiteArg::Vectors), false);
        assert_eq!(count(&vectors), 4 * 8 * 3);
        assert_eq!(vectors.vectors.last(), Some(&128));
        let quick = Suite::new(Some(SuiteArg::Quick), false);
        assert_eq!(count(&quick) * 12, count(&all));
        assert_eq!(Suite::new(Some(SuiteArg::All), true).name, "cpu");
        assert_eq!(Suite::new(Some(SuiteArg::Vectors), true).name, "cpu");
        let decode = |on_cpu| Suite::new(Some(SuiteArg::Decode), on_cpu);
        assert_eq!(decode(true), decode(false));
        assert_eq!(Suite::new(None, true), Suite::new(None, false));
    }
}
