//! Problems drawn at random, to judge a choice by.

use nvfp4_gemv::{Activation, Operands, ScaleLayout, Shape};

use crate::shapes;

/// A problem, and whether its calls are chained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drawn {
    pub(super) shape: Shape,
    pub(super) operands: Operands,
    pub(super) chained: bool,
}

/// M and K of linear layers, from models' public config.json: q, k and v joined, o, gate and up joined, down; then what
/// a model has besides.
const LAYERS: [(usize, usize); 66] = [
    // Llama-3.2-1B
    (3072, 2048),
    (2048, 2048),
    (16384, 2048),
    (2048, 8192),
    // Llama-3.2-3B
    (5120, 3072),
    (3072, 3072),
    (16384, 3072),
    (3072, 8192),
    // Llama-3.1-8B
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (128256, 4096),
    // Llama-3.3-70B
    (10240, 8192),
    (8192, 8192),
    (57344, 8192),
    (8192, 28672),
    // Qwen3-0.6B
    (4096, 1024),
    (1024, 2048),
    (6144, 1024),
    (1024, 3072),
    // Qwen3-4B
    (6144, 2560),
    (2560, 4096),
    (19456, 2560),
    (2560, 9728),
    // Qwen3-8B
    (24576, 4096),
    (4096, 12288),
    // Qwen3-14B
    (7168, 5120),
    (5120, 5120),
    (34816, 5120),
    (5120, 17408),
    // Qwen3-32B
    (10240, 5120),
    (5120, 8192),
    (51200, 5120),
    (5120, 25600),
    // Mistral-Small-24B
    (6144, 5120),
    (5120, 4096),
    (65536, 5120),
    (5120, 32768),
    // Gemma-3-27B
    (8192, 5376),
    (5376, 4096),
    (43008, 5376),
    (5376, 21504),
    // Phi-4
    (7680, 5120),
    (35840, 5120),
    (5120, 17920),
    // DeepSeek-V3: q's two matrices, k and v's two, o, an expert's two, and the dense layers' two
    (1536, 7168),
    (24576, 1536),
    (576, 7168),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
    (36864, 7168),
    (7168, 18432),
    (2048, 7168),
    // gpt-oss-20b
    (5120, 2880),
    (2880, 4096),
    (5760, 2880),
    (2880, 2880),
    // Qwen3-30B-A3B, with an expert's two
    (5120, 2048),
    (2048, 4096),
    (1536, 2048),
    (2048, 768),
    // Heads of vocabularies
    (151936, 2048),
    (32768, 4096),
];

/// Elements of all matrices of a problem, at most and at least: nothing that takes a machine's memory, and nothing that
/// takes no time.
const ELEMENTS: std::ops::RangeInclusive<usize> = 1 << 20..=1 << 29;

/// So many problems, each once, the same for the same seed. Shapes are layers of models, shards of them, and shapes
/// around them.
pub(super) fn draw(problems: usize, seed: u64) -> Vec<Drawn> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut all: Vec<Drawn> = Vec::with_capacity(problems);
    while all.len() < problems {
        let Some(drawn) = one(&mut rng) else {
            continue;
        };
        if !all.contains(&drawn) {
            all.push(drawn);
        }
    }
    all
}

/// One problem, or none where what was drawn is too large or too small.
fn one(rng: &mut fastrand::Rng) -> Option<Drawn> {
    let layer = LAYERS[rng.usize(..LAYERS.len())];
    let (m, k) = near(rng, layer);
    let l = match rng.u32(..10) {
        0 => 1 << rng.u32(1..=3),
        1 => rng.usize(2..=16),
        _ => 1,
    };
    let n = vectors(rng);
    let activation = match rng.u32(..4) {
        0 => Activation::F16,
        1 => Activation::Bf16,
        _ => Activation::Nvfp4,
    };
    let layout = match rng.bool() {
        true => ScaleLayout::Linear,
        false => ScaleLayout::Tiled128x4,
    };
    let chained = rng.bool();
    ELEMENTS.contains(&(m * k * l)).then_some(())?;
    Some(Drawn {
        shape: shapes::of(m, n, k, l).ok()?,
        operands: Operands::new(activation, layout),
        chained,
    })
}

/// A layer as it is, a shard of it, or a shape around it.
fn near(rng: &mut fastrand::Rng, (m, k): (usize, usize)) -> (usize, usize) {
    let part = 1 << rng.usize(1..=3);
    match rng.u32(..8) {
        0..4 => (m, k),
        4 => (m / part, k),
        5 if (k / part).is_multiple_of(64) => (m, k / part),
        5 => (m, k),
        _ => {
            let around = |rng: &mut fastrand::Rng, of: usize, step: usize| {
                let factor = (1.4 * (rng.f64() - 0.5)).exp2();
                ((of as f64 * factor / step as f64) as usize).max(1) * step
            };
            let (rows, columns) = ([1, 8, 32, 128], [64, 128, 256, 1024]);
            let (rows, columns) = (rows[rng.usize(..4)], columns[rng.usize(..4)]);
            (around(rng, m, rows), around(rng, k, columns))
        }
    }
}

/// A number of vectors: one is the most frequent, and few go beyond 32.
fn vectors(rng: &mut fastrand::Rng) -> usize {
    match rng.u32(..100) {
        0..28 => 1,
        28..40 => 2,
        40..52 => 4,
        52..64 => 8,
        64..74 => 16,
        74..81 => 32,
        81..93 => rng.usize(3..=31),
        93..97 => 64,
        _ => rng.usize(33..=128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One seed is measured to fit a rule, and another one to judge it: that takes the same problems on every machine.
    #[test]
    fn the_same_seed_draws_the_same_problems() {
        let some = draw(300, 7);
        assert_eq!(some, draw(300, 7));
        assert_eq!(some[..100], draw(100, 7));
        assert_ne!(some, draw(300, 8));
        for (i, drawn) in some.iter().enumerate() {
            assert!(!some[..i].contains(drawn), "{drawn:?} twice");
        }
        // It changes only on purpose: measurements of a seed would be of other problems.
        let first = &some[0];
        let words = format!(
            "{} {} {}",
            first.shape, first.operands.activation, first.chained
        );
        assert_eq!(words, "4096x7168 n=48 f16 false");
    }

    #[test]
    fn everything_that_a_choice_depends_on_is_drawn() {
        let all = draw(400, 1);
        let share = |is: &dyn Fn(&Drawn) -> bool| {
            all.iter().filter(|drawn| is(drawn)).count() as f64 / all.len() as f64
        };
        for activation in [Activation::Nvfp4, Activation::F16, Activation::Bf16] {
            assert!(share(&|drawn| drawn.operands.activation == activation) > 0.15);
        }
        for layout in ScaleLayout::ALL {
            assert!(share(&|drawn| drawn.operands.weight_layout == layout) > 0.4);
        }
        assert!((0.4..0.6).contains(&share(&|drawn| drawn.chained)));
        assert!((0.2..0.4).contains(&share(&|drawn| drawn.shape.n() == 1)));
        assert!(share(&|drawn| drawn.shape.n() > 32) > 0.03);
        assert!((0.1..0.3).contains(&share(&|drawn| drawn.shape.l() > 1)));
        let as_it_is = |drawn: &Drawn| LAYERS.contains(&(drawn.shape.m(), drawn.shape.k()));
        assert!((0.4..0.8).contains(&share(&as_it_is)));
        for (i, layer) in LAYERS.iter().enumerate() {
            assert!(!LAYERS[..i].contains(layer), "{layer:?} twice");
        }
    }
}
