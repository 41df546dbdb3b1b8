//! The decoder in f64, from the same weights as dense matrices, with how far an implementation's numbers may lie from
//! its own: what roundings of f32 cost at most, derived operation by operation.
//!
//! A number of an implementation is `x` plus or minus `off`. Each operation has two parts of `off`: what the operation
//! makes of its operands' (a matrix has `Σ |w| off`, whatever their signs are), and what it rounds by itself. A product's
//! own part is the library's: `reference::error_bound`, with the roundings that its implementation states.
//!
//! From layer to layer the first part grows: signs are not known, so that what a matrix of K columns makes of errors is
//! about √K times what it makes of numbers. Behind two layers of 64 elements that says something. Behind thirty it says
//! nothing. So a reference may also [follow](Decoder::read) an implementation: what the implementation gave its linear
//! layers is compared with what the reference would have given, element by element within `off`, and the reference goes
//! on with the implementation's. Then errors last from one linear layer to the next, and in the sums between layers, the
//! keys and the values.

use std::collections::VecDeque;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::Device;
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::format::{e2m1, e4m3};
use nvfp4_gemv::reference::error_bound;
use nvfp4_gemv::{Activation, BLOCK, Dims, FloatType, Shape};

use crate::config::Config;
use crate::layers::{self, Maker};
use crate::model::{Reader, likeliest, rotations};
use crate::weights::{Arithmetic, Product, Weights};

/// How far f32 rounds at most, relatively.
const U: f64 = 1.0 / (1 << 24) as f64;

/// Numbers, and how far an implementation's may be from each.
#[derive(Clone, Debug, Default)]
pub struct Near {
    pub x: Vec<f64>,
    pub off: Vec<f64>,
}

impl Near {
    fn exact(x: Vec<f64>) -> Self {
        let off = vec![0.0; x.len()];
        Self { x, off }
    }

    fn map(mut self, mut of: impl FnMut(usize, f64, f64) -> (f64, f64)) -> Self {
        for (i, (x, off)) in self.x.iter_mut().zip(&mut self.off).enumerate() {
            (*x, *off) = of(i, *x, *off);
        }
        self
    }

    fn part(&self, at: std::ops::Range<usize>) -> Self {
        Self {
            x: self.x[at.clone()].to_vec(),
            off: self.off[at].to_vec(),
        }
    }

    fn append(&mut self, mut other: Self) {
        self.x.append(&mut other.x);
        self.off.append(&mut other.off);
    }

    /// The largest distance of some numbers from these, in what they may be off by; infinite where one is NaN.
    pub fn distance(&self, found: impl IntoIterator<Item = f64>) -> f64 {
        let all = self.x.iter().zip(&self.off).zip(found);
        let each = all.map(|((x, off), found)| match (found - x).abs() {
            0.0 => 0.0,
            apart => apart / off,
        });
        each.fold(0.0, |most: f64, of| {
            if of.is_nan() {
                f64::INFINITY
            } else {
                most.max(of)
            }
        })
    }
}

/// What an implementation rounds by.
#[derive(Clone, Copy)]
pub struct Rule<'a> {
    pub arithmetic: Arithmetic,
    pub on_gpu: bool,
    /// The most roundings of a term of an NVFP4 layer of so many rows and columns, for so many vectors.
    pub roundings: &'a dyn Fn(usize, usize, usize) -> u32,
}

impl Rule<'_> {
    /// That of a model on the CPU.
    pub fn on_cpu(arithmetic: Arithmetic) -> Self {
        fn most(m: usize, k: usize, n: usize, activation: Activation) -> u32 {
            // Of a pass, or of a part of it.
            let of = (1..=n).map(|n| {
                let shape = Shape::new(Dims { m, n, k, l: 1 }).expect("sizes of a layer");
                Implementation::best().roundings(&shape, activation)
            });
            of.max().unwrap_or(0)
        }
        Self {
            arithmetic,
            on_gpu: false,
            roundings: match arithmetic {
                Arithmetic::Nvfp4Vectors => &|m, k, n| most(m, k, n, Activation::Nvfp4),
                // candle's product, whose order of sums nobody promises.
                Arithmetic::Reference => &|_, k, _| k as u32,
                _ => &|m, k, n| most(m, k, n, Activation::F32),
            },
        }
    }
}

/// What a model's logits are, beside a reference's.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The largest distance of a logit, in what roundings explain.
    pub distance: f64,
    /// Of each token: what roundings explain of a logit at most, in the largest logit of all.
    pub explained: Vec<f64>,
    /// Tokens behind which roundings leave one likeliest token. The model has chosen it.
    pub certain: usize,
}

impl Found {
    /// Tokens whose logits are known to a hundredth of the largest.
    pub fn known(&self) -> usize {
        self.explained.iter().filter(|of| **of < 0.01).count()
    }
}

/// Reads a text by a model, and by the reference of its weights, which follows it: in passes of these lengths, then of
/// single tokens.
///
/// # Errors
/// As [`Decoder::read`]'s, and a likeliest token that is another, though roundings do not explain it.
pub fn compare(
    path: &Path,
    model: &mut dyn Reader,
    rule: Rule<'_>,
    text: &[u32],
    passes: &[usize],
) -> Result<Found> {
    let arithmetic = rule.arithmetic;
    ensure!(
        !matches!(arithmetic, Arithmetic::Nvfp4Bytes | Arithmetic::Original),
        "what roundings of {arithmetic:?} explain is not derived"
    );
    let (weights, config) = Weights::open(path, Arithmetic::Reference, &Device::Cpu)?;
    let reference = Decoder::load(&weights, &config, rule, text.len())?;
    drop(weights);
    model.reset();
    model.met().keep();
    let found = beside(reference, model, text, passes);
    model.met().stop();
    found
}

/// What a distance is measured in.
const EXPLAINED: &str = "roundings explain";

/// Whether a comparison has found numbers that roundings do not explain. One that could not be made has found nothing.
pub fn is_outside(found: &Result<Found>) -> bool {
    match found {
        Ok(found) => found.distance > 1.0,
        Err(error) => error.root_cause().to_string().ends_with(EXPLAINED),
    }
}

/// A model that keeps its vectors, beside a reference.
fn beside(
    mut reference: Decoder<'_>,
    model: &mut dyn Reader,
    text: &[u32],
    passes: &[usize],
) -> Result<Found> {
    let mut found = Found::default();
    let (mut at, mut largest) = (0, 0.0f64);
    for pass in passes.iter().copied().chain(std::iter::repeat(1)) {
        let tokens = &text[at..(at + pass).min(text.len())];
        if tokens.is_empty() {
            break;
        }
        let logits = model.read_all(tokens)?.to_vec();
        let met = model.met().take();
        let near = reference.read(tokens, Some(met))?;
        found.distance = found
            .distance
            .max(near.distance(logits.iter().map(|&x| f64::from(x))));
        largest = near.x.iter().fold(largest, |most, x| most.max(x.abs()));
        let each = logits.len() / tokens.len();
        for (i, logits) in logits.chunks_exact(each).enumerate() {
            let near = near.part(i * each..(i + 1) * each);
            found
                .explained
                .push(near.off.iter().copied().fold(0.0, f64::max));
            let best = (0..each)
                .max_by(|&a, &b| near.x[a].total_cmp(&near.x[b]))
                .context("no logits")?;
            let least = near.x[best] - near.off[best];
            if (0..each).all(|i| i == best || near.x[i] + near.off[i] < least) {
                found.certain += 1;
                if likeliest(logits)? as usize != best {
                    bail!(
                        "behind token {} another one than {best} is likeliest",
                        at + i
                    );
                }
            }
        }
        at += tokens.len();
    }
    ensure!(at > 0, "a text of no token");
    found.explained.iter_mut().for_each(|of| *of /= largest);
    Ok(found)
}

/// What a linear layer is given, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
enum As {
    /// f32.
    Plain,
    /// As NVFP4 layers take it.
    Rounded,
}

struct Matrix {
    rows: usize,
    k: usize,
    /// In f32, which NVFP4 numbers were rounded to.
    w: Vec<f32>,
    of: Of,
}

/// What a matrix is in the implementation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    Dense,
    Nvfp4,
    /// NVFP4, of an expert.
    Expert,
}

enum FeedForward {
    Mlp([Matrix; 2]),
    Experts {
        router: Matrix,
        all: Vec<[Matrix; 2]>,
        top: usize,
    },
}

type Layer = layers::Layer<Vec<f32>, Matrix, FeedForward>;

/// Loads dense matrices.
struct Loader<'a> {
    weights: &'a Weights,
    config: &'a Config,
}

impl Loader<'_> {
    fn pair(&mut self, module: &str) -> Result<[Matrix; 2]> {
        let of = |part: &str| format!("{module}.{part}_proj");
        Ok([
            self.linear(&[of("gate"), of("up")], 0, 0)?,
            self.linear(&[of("down")], 0, 0)?,
        ])
    }
}

fn dense(layer: &candle_nn::Linear, of: Of) -> Result<Matrix> {
    let (rows, k) = layer.weight().dims2()?;
    let w = layer.weight().flatten_all()?.to_vec1()?;
    Ok(Matrix { rows, k, w, of })
}

impl Maker for Loader<'_> {
    type Norm = Vec<f32>;
    type Linear = Matrix;
    type FeedForward = FeedForward;

    fn norm(&mut self, module: &str, _: usize) -> Result<Vec<f32>> {
        Ok(self.weights.norm(module)?.to_vec1()?)
    }

    fn linear(&mut self, modules: &[String], _: usize, _: usize) -> Result<Matrix> {
        ensure!(
            self.weights.are_nvfp4(modules),
            "{} is not NVFP4; bounds are derived where all linear layers are",
            modules.join(", ")
        );
        match self.weights.linear(modules)? {
            Product::Dense(layer) => dense(&layer, Of::Nvfp4),
            other => bail!("{other:?} is not the reference's"),
        }
    }

    fn mlp(&mut self, module: &str) -> Result<FeedForward> {
        Ok(FeedForward::Mlp(self.pair(module)?))
    }

    fn experts(&mut self, module: &str, count: usize) -> Result<FeedForward> {
        let all = (0..count).map(|expert| -> Result<_> {
            let pair = self.pair(&format!("{module}.experts.{expert}"))?;
            let of = Of::Expert;
            Ok(pair.map(|matrix| Matrix { of, ..matrix }))
        });
        Ok(FeedForward::Experts {
            all: all.collect::<Result<_>>()?,
            router: dense(&self.weights.router(module)?, Of::Dense)?,
            top: self.config.top_k(count)?,
        })
    }
}

/// The decoder, with the keys and values of what it has read.
pub struct Decoder<'a> {
    rule: Rule<'a>,
    config: Config,
    layers: Vec<Layer>,
    /// Of each layer `[positions][kv · size]`.
    caches: Vec<[Near; 2]>,
    norm: Vec<f32>,
    head: Matrix,
    table: Vec<f32>,
    rotations: [Vec<f32>; 2],
    position: usize,
    /// The largest of `off` behind each layer, in the largest number there.
    pub growth: Vec<f64>,
}

impl<'a> Decoder<'a> {
    /// Of weights that were opened as [`Arithmetic::Reference`], with a head as it is.
    pub fn load(weights: &Weights, config: &Config, rule: Rule<'a>, most: usize) -> Result<Self> {
        let mut loader = Loader { weights, config };
        let layers = 0..config.num_hidden_layers;
        let layers = layers.map(|number| Layer::new(config, number, &mut loader));
        let table = weights.matrix("model.embed_tokens")?;
        let head = match config.tie_word_embeddings {
            true => table.clone(),
            false => weights.matrix("lm_head")?,
        };
        Ok(Self {
            rule,
            layers: layers.collect::<Result<_>>()?,
            caches: vec![Default::default(); config.num_hidden_layers],
            norm: loader.norm("model.norm", config.hidden_size)?,
            head: dense(&candle_nn::Linear::new(head, None), Of::Dense)?,
            table: table.flatten_all()?.to_vec1()?,
            rotations: rotations(config, most),
            position: 0,
            growth: vec![0.0; config.num_hidden_layers],
            config: config.clone(),
        })
    }

    /// The logits behind each token of a pass. With `met`, what an implementation gave its layers in the same pass, the
    /// reference follows it.
    ///
    /// # Errors
    /// A vector of `met` that lies further from the reference's than roundings explain. A choice of experts that
    /// roundings decide.
    pub fn read(&mut self, tokens: &[u32], met: Option<Vec<Vec<f64>>>) -> Result<Near> {
        let (n, hidden) = (tokens.len(), self.config.hidden_size);
        let mut met = met.map(VecDeque::from);
        let rows = tokens
            .iter()
            .flat_map(|&token| &self.table[token as usize * hidden..][..hidden]);
        let mut xs = Near::exact(rows.map(|&x| f64::from(x)).collect());
        for number in 0..self.layers.len() {
            let mut caches = std::mem::take(&mut self.caches[number]);
            let layer = &self.layers[number];
            let position = self.position;
            let named = |what: &str| format!("position {position}, layer {number}, {what}");
            let normed = self.norm(&xs, &layer.attention_norm);
            let (normed, kind) = self
                .follow(&mut met, n, normed, As::Rounded)
                .with_context(|| named("q, k, v"))?;
            let qkv = self.times(&layer.qkv, normed, kind, None);
            let attended = self.attend(layer, &qkv, n, &mut caches);
            self.caches[number] = caches;
            let layer = &self.layers[number];
            let (attended, kind) = self
                .follow(&mut met, n, attended, As::Rounded)
                .with_context(|| named("o"))?;
            xs = self.times(&layer.output, attended, kind, Some(&xs));
            let normed = self.norm(&xs, &layer.mlp_norm);
            xs = match &layer.feed_forward {
                FeedForward::Mlp(pair) => {
                    let (normed, kind) = self
                        .follow(&mut met, n, normed, As::Rounded)
                        .with_context(|| named("MLP"))?;
                    let between = gated(&self.times(&pair[0], normed, kind, None), n);
                    // The CPU's MLP is one module, within which nothing is seen.
                    let (between, kind) = match self.rule.on_gpu {
                        true => self
                            .follow(&mut met, n, between, As::Rounded)
                            .with_context(|| named("down"))?,
                        false => (between, As::Plain),
                    };
                    self.times(&pair[1], between, kind, Some(&xs))
                }
                FeedForward::Experts { router, all, top } => {
                    let (normed, _) = self
                        .follow(&mut met, n, normed, As::Plain)
                        .with_context(|| named("experts"))?;
                    let normed = (normed, &xs);
                    self.mixture(router, all, *top, normed, n)
                        .with_context(|| named("the router"))?
                }
            };
            let largest = |of: &[f64]| of.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            let growth = largest(&xs.off) / largest(&xs.x);
            self.growth[number] = self.growth[number].max(growth);
        }
        self.position += n;
        let last = self.norm(&xs, &self.norm);
        Ok(self.times(&self.head, last, As::Plain, None))
    }

    /// What an implementation has in the place of some numbers, if it is followed, which is then exact. `given` says how
    /// it was kept on a GPU; on the CPU it is always plain.
    fn follow(
        &self,
        met: &mut Option<VecDeque<Vec<f64>>>,
        n: usize,
        near: Near,
        given: As,
    ) -> Result<(Near, As)> {
        let Some(met) = met else {
            return Ok((near, As::Plain));
        };
        let given = if self.rule.on_gpu { given } else { As::Plain };
        let found = met.pop_front().context("nothing was kept")?;
        let expected = match given {
            As::Plain => near,
            As::Rounded => {
                let k = near.x.len() / n;
                self.rounded(near, k)
            }
        };
        if found.len() != expected.x.len() {
            bail!(
                "{} elements were kept, not {}",
                found.len(),
                expected.x.len()
            );
        }
        let distance = expected.distance(found.iter().copied());
        match distance <= 1.0 {
            true => Ok((Near::exact(found), given)),
            false => {
                bail!("a vector's element is {distance:.3} times as far off as {EXPLAINED}")
            }
        }
    }

    /// RMSNorm of vectors, or heads: x r g, with r = 1 / √(mean + ε).
    fn norm(&self, xs: &Near, factors: &[f32]) -> Near {
        let size = factors.len();
        let epsilon = f64::from(self.config.rms_norm_eps as f32);
        let mut all = Near::default();
        for start in (0..xs.x.len()).step_by(size) {
            let xs = xs.part(start..start + size);
            let mean = xs.x.iter().map(|x| x * x).sum::<f64>() / size as f64 + epsilon;
            let pairs = || xs.x.iter().zip(&xs.off);
            let largest = pairs().map(|(x, off)| (x.abs() + off).powi(2)).sum::<f64>()
                / size as f64
                + epsilon;
            // The operands', then a sum of squares in any order, a division, and ε.
            let off = pairs()
                .map(|(x, off)| 2.0 * x.abs() * off + off * off)
                .sum::<f64>()
                / size as f64
                + growth(size + 3) * largest;
            let r = 1.0 / mean.sqrt();
            // Where roundings might make it all of the mean, ε is left.
            let most = 1.0 / (mean - off).max(epsilon / 2.0).sqrt();
            all.append(xs.map(|i, x, off| {
                let factor = f64::from(factors[i]).abs();
                // A root, a division and two products.
                let own = 5.0 * U * (x.abs() + off) * most;
                let y = x * r * f64::from(factors[i]);
                (y, factor * (off * most + x.abs() * (most - r) + own))
            }));
        }
        all
    }

    /// Vectors of K elements as an NVFP4 layer multiplies them.
    fn rounded(&self, near: Near, k: usize) -> Near {
        let to = |unit: f64, tiny: f64| {
            move |_, x: f64, off: f64| (x, off + (x.abs() + off) * unit + tiny)
        };
        match self.rule.arithmetic {
            Arithmetic::Nvfp4Bf16 => near.map(to(2f64.powi(-8), 2f64.powi(-134))),
            Arithmetic::Nvfp4F16 => near.map(to(2f64.powi(-11), 2f64.powi(-25))),
            Arithmetic::Nvfp4Vectors => {
                // A GPU has a global scale for each vector, the example on the CPU one for a pass.
                let each = if self.rule.on_gpu { k } else { near.x.len() };
                let mut all = Near::default();
                for start in (0..near.x.len()).step_by(each) {
                    all.append(nvfp4(near.part(start..start + each)));
                }
                all
            }
            _ => near,
        }
    }

    /// W x of vectors, plus what is added to it.
    fn times(&self, matrix: &Matrix, xs: Near, given: As, added: Option<&Near>) -> Near {
        let (rows, k) = (matrix.rows, matrix.k);
        let xs = match (matrix.of, given) {
            (Of::Nvfp4 | Of::Expert, As::Plain) => self.rounded(xs, k),
            _ => xs,
        };
        let n = xs.x.len() / k;
        let roundings = self.roundings(matrix, n);
        // `[k][n]`: loops over n are what a compiler makes wide.
        let by_column = |of: &dyn Fn(usize) -> f64| -> Vec<f64> {
            (0..n * k).map(|i| of(i % n * k + i / n)).collect()
        };
        let x = by_column(&|i| xs.x[i]);
        let off = by_column(&|i| xs.off[i]);
        let of_row = |row: &[f32]| {
            let mut sums = vec![[0.0; 3]; n];
            for (w, (x, off)) in row.iter().zip(x.chunks_exact(n).zip(off.chunks_exact(n))) {
                let w = f64::from(*w);
                for (sum, (x, off)) in sums.iter_mut().zip(x.iter().zip(off)) {
                    sum[0] += w * x;
                    sum[1] += w.abs() * x.abs();
                    sum[2] += w.abs() * off;
                }
            }
            sums
        };
        let rows_of_threads = rows.div_ceil(2).max(1) * k;
        let of_rows = |some: &[f32]| some.chunks_exact(k).map(of_row).collect::<Vec<_>>();
        let of_rows = &of_rows;
        let sums: Vec<Vec<[f64; 3]>> = std::thread::scope(|scope| {
            let parts = matrix.w.chunks(rows_of_threads);
            let parts: Vec<_> = parts
                .map(|some| scope.spawn(move || of_rows(some)))
                .collect();
            parts
                .into_iter()
                .flat_map(|part| part.join().unwrap())
                .collect()
        });
        let mut out = Near::exact(vec![0.0; n * rows]);
        for (row, sums) in sums.into_iter().enumerate() {
            for (i, [y, magnitude, off]) in sums.into_iter().enumerate() {
                let at = i * rows + row;
                let (old, old_off) = added.map_or((0.0, 0.0), |of| (of.x[at], of.off[at]));
                let (y, off) = (y + old, off + old_off);
                let magnitude = magnitude + off + old.abs();
                out.x[at] = y;
                out.off[at] =
                    off + error_bound(y.abs() + off, magnitude, roundings, FloatType::F32);
            }
        }
        out
    }

    /// Roundings of a term, the weight's own to f32 and that of a sum with what is added among them.
    fn roundings(&self, Matrix { rows, k, of, .. }: &Matrix, n: usize) -> u32 {
        let own = match of {
            // In any order; the first is of a product.
            Of::Dense => *k as u32,
            // The most of any kernel: docs/architecture.md.
            Of::Expert if self.rule.on_gpu => (2080 * k.div_ceil(256) + k / BLOCK + 64) as u32,
            Of::Nvfp4 | Of::Expert => (self.rule.roundings)(*rows, *k, n),
        };
        own.saturating_add(2)
    }

    /// Attention of `n` new tokens, by q, k and v.
    fn attend(&self, layer: &Layer, qkv: &Near, n: usize, [keys, values]: &mut [Near; 2]) -> Near {
        let (heads, kv, size) = (
            self.config.num_attention_heads,
            self.config.kv_heads(),
            self.config.head_size(),
        );
        let width = (heads + 2 * kv) * size;
        let mut queries = Vec::new();
        for i in 0..n {
            let part = |first: usize, count: usize| {
                let start = i * width + first * size;
                qkv.part(start..start + count * size)
            };
            let (mut q, mut k) = (part(0, heads), part(heads, kv));
            if let Some([q_norm, k_norm]) = &layer.head_norms {
                (q, k) = (self.norm(&q, q_norm), self.norm(&k, k_norm));
            }
            let factor = 1.0 / (size as f64).sqrt();
            // A factor, its own rounding, and with a power of two for e to it another and another's.
            let q = self.turned(q, i).map(|_, x, off| {
                let (x, off) = (x * factor, off * factor);
                (x, off + 4.0 * U * (x.abs() + off))
            });
            queries.push(q);
            keys.append(self.turned(k, i));
            values.append(part(heads + kv, kv));
        }
        let mut all = Near::default();
        for (i, q) in queries.iter().enumerate() {
            let seen = self.position + i + 1;
            for head in 0..heads {
                let q = q.part(head * size..(head + 1) * size);
                let of = head / (heads / kv);
                let row = |cache: &Near, at: usize| {
                    let start = (at * kv + of) * size;
                    cache.part(start..start + size)
                };
                let scores: Vec<(f64, f64)> = (0..seen).map(|at| dot(&q, &row(keys, at))).collect();
                let largest = scores
                    .iter()
                    .fold(f64::NEG_INFINITY, |most, of| most.max(of.0));
                // Of the largest magnitude of a score less another: differences round by that.
                let span = 2.0
                    * scores
                        .iter()
                        .fold(0.0, |most: f64, of| most.max(of.0.abs() + of.1));
                // The power of each score and those that bring sums down, once for each block of positions at most; two
                // sums of as many terms as positions.
                let steps = (seen + 64) as f64;
                let own = U * steps * 8.0 + 2.0 * U * span * (1.0 + steps / 8.0);
                let weights: Vec<f64> = scores.iter().map(|of| (of.0 - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                // Relative, of a weight.
                let errors: Vec<f64> = scores.iter().map(|of| (of.1 + own).exp_m1()).collect();
                let most = errors.iter().copied().fold(0.0, f64::max);
                let rows: Vec<Near> = (0..seen).map(|at| row(values, at)).collect();
                for e in 0..size {
                    let terms = || {
                        weights
                            .iter()
                            .zip(&rows)
                            .map(|(w, row)| (w / sum, row.x[e], row.off[e]))
                    };
                    let y: f64 = terms().map(|(w, v, _)| w * v).sum();
                    // Σ w (1 + a) v / Σ w (1 + a) - Σ w v = Σ w a (v - y) / (1 + Σ w a).
                    let of_weights = terms()
                        .zip(&errors)
                        .map(|((w, v, _), a)| w * a * (v - y).abs());
                    let of_weights = of_weights.sum::<f64>() / (1.0 - most.min(0.5));
                    let of_values =
                        terms().map(|(w, _, off)| w * off).sum::<f64>() * (1.0 + 4.0 * most);
                    let magnitude = terms().map(|(w, v, off)| w * (v.abs() + off)).sum::<f64>();
                    let off = of_weights + of_values + growth(seen + 8) * magnitude;
                    all.x.push(y);
                    // Weights of which nothing is known are still a mean's.
                    let range = rows
                        .iter()
                        .map(|row| (row.x[e] - y).abs() + row.off[e])
                        .fold(0.0, f64::max);
                    all.off.push(if most > 0.5 {
                        range * (1.0 + growth(seen + 8))
                    } else {
                        off
                    });
                }
            }
        }
        all
    }

    /// Heads, turned as the position of token `i` says.
    fn turned(&self, heads: Near, i: usize) -> Near {
        let (size, at) = (self.config.head_size(), self.position + i);
        let pairs = size / 2;
        let of = heads.clone();
        heads.map(|j, _, _| {
            let (first, pair) = (j / size * size + j % pairs, j % pairs);
            let [cos, sin] =
                [0, 1].map(|which| f64::from(self.rotations[which][at * pairs + pair]));
            let [a, b] = [first, first + pairs];
            let y = match j % size < pairs {
                true => of.x[a] * cos - of.x[b] * sin,
                false => of.x[a] * sin + of.x[b] * cos,
            };
            let [a_by, b_by] = if j % size < pairs {
                [cos, sin]
            } else {
                [sin, cos]
            };
            let off = of.off[a] * a_by.abs() + of.off[b] * b_by.abs();
            let magnitude = (of.x[a] * a_by).abs() + (of.x[b] * b_by).abs() + off;
            (y, off + growth(2) * magnitude)
        })
    }

    /// The experts of each token, added to what there is.
    fn mixture(
        &self,
        router: &Matrix,
        experts: &[[Matrix; 2]],
        top: usize,
        (normed, xs): (Near, &Near),
        n: usize,
    ) -> Result<Near> {
        let (hidden, count) = (router.k, experts.len());
        let logits = self.times(router, normed.clone(), As::Plain, None);
        let mut out = xs.clone();
        for i in 0..n {
            let logits = logits.part(i * count..(i + 1) * count);
            let mut ranked: Vec<usize> = (0..count).collect();
            ranked.sort_by(|&a, &b| logits.x[b].total_cmp(&logits.x[a]));
            let (chosen, others) = ranked.split_at(top);
            let least = chosen
                .iter()
                .map(|&e| logits.x[e] - logits.off[e])
                .fold(f64::INFINITY, f64::min);
            if others.iter().any(|&e| logits.x[e] + logits.off[e] >= least) {
                bail!("roundings may choose other experts of token {i}");
            }
            let shares: Vec<f64> = chosen
                .iter()
                .map(|&e| (logits.x[e] - logits.x[ranked[0]]).exp())
                .collect();
            let sum: f64 = match self.config.norm_topk_prob {
                true => shares.iter().sum(),
                false => {
                    let all = logits.x.iter();
                    all.map(|x| (x - logits.x[ranked[0]]).exp()).sum()
                }
            };
            let span = logits
                .x
                .iter()
                .map(|x| (x - logits.x[ranked[0]]).abs())
                .fold(0.0, f64::max);
            let off = logits.off.iter().copied().fold(0.0, f64::max);
            // Both a share's own logit and the others'. Powers, and sums of all experts, which are divided by.
            let relative = (2.0 * off + U * (2.0 * span + 2.0 * count as f64 + 32.0)).exp_m1();
            let x = normed.part(i * hidden..(i + 1) * hidden);
            let results = chosen.iter().map(|&e| {
                let both = self.times(&experts[e][0], x.clone(), As::Plain, None);
                self.times(&experts[e][1], gated(&both, 1), As::Plain, None)
            });
            let results: Vec<Near> = results.collect();
            for at in 0..hidden {
                let to = i * hidden + at;
                let mut magnitude = xs.x[to].abs() + xs.off[to];
                for (share, of) in shares.iter().zip(&results) {
                    let share = share / sum;
                    out.x[to] += share * of.x[at];
                    let (size, own) = (of.x[at].abs() + of.off[at], of.off[at]);
                    out.off[to] += share * (own + relative * size);
                    magnitude += share * (1.0 + relative) * size;
                }
                out.off[to] += growth(top + 3) * magnitude;
            }
        }
        Ok(out)
    }
}

/// How much `d` roundings change a number at most, relatively.
fn growth(d: usize) -> f64 {
    (d as f64 * U.ln_1p()).exp_m1()
}

/// A product of vectors, which any order sums.
fn dot(a: &Near, b: &Near) -> (f64, f64) {
    let pairs = a.x.iter().zip(&a.off).zip(b.x.iter().zip(&b.off));
    let (mut y, mut off, mut magnitude) = (0.0, 0.0, 0.0);
    for ((a, a_off), (b, b_off)) in pairs {
        y += a * b;
        off += a.abs() * b_off + b.abs() * a_off + a_off * b_off;
        magnitude += (a.abs() + a_off) * (b.abs() + b_off);
    }
    (y, off + growth(a.x.len() + 1) * magnitude)
}

/// gate σ(gate) up, of the results `[n][2 size]` of both.
fn gated(both: &Near, n: usize) -> Near {
    let size = both.x.len() / n / 2;
    let out = Near::exact(vec![0.0; n * size]);
    out.map(|i, _, _| {
        let at = i / size * 2 * size + i % size;
        let [gate, up] = [at, at + size].map(|at| (both.x[at], both.off[at]));
        let silu = gate.0 / (1.0 + (-gate.0).exp());
        // No slope of it exceeds 1.1. Where -87 is left, `Gate::of` may have 2^-125 in place of less.
        let off = 1.1 * gate.1 + 2f64.powi(-100);
        let most = (silu.abs() + off) * (up.0.abs() + up.1);
        (
            silu * up.0,
            off * (up.0.abs() + up.1) + silu.abs() * up.1 + 2f64.powi(-20) * most,
        )
    })
}

/// Vectors with one global scale, as NVFP4: all that an implementation's numbers may become.
fn nvfp4(near: Near) -> Near {
    const RANGE: f64 = 6.0 * 448.0;
    // Of products and quotients of f32.
    let (less, more) = (1.0 - 8.0 * U, 1.0 + 8.0 * U);
    let bounds = |at: std::ops::Range<usize>| {
        let pairs = near.x[at.clone()].iter().zip(&near.off[at]);
        pairs.fold([0.0, 0.0], |[least, most]: [f64; 2], (x, off)| {
            [least.max(x.abs() - off), most.max(x.abs() + off)]
        })
    };
    let [least, most] = bounds(0..near.x.len());
    if most == 0.0 {
        return near;
    }
    let globals =
        [least / RANGE * less, most / RANGE * more].map(|of| of.max(f64::from(f32::MIN_POSITIVE)));
    let mut out = near.clone();
    for start in (0..near.x.len()).step_by(BLOCK) {
        let [least, most] = bounds(start..start + BLOCK);
        let scale = |of: f64| {
            let of = if of == 0.0 { 1.0 } else { of };
            e4m3::encode((of as f32).clamp(e4m3::MIN_POSITIVE, e4m3::MAX))
        };
        // E4M3's codes are in the order of their numbers.
        let scales =
            scale(least / (6.0 * globals[1]) * less)..=scale(most / (6.0 * globals[0]) * more);
        for at in start..start + BLOCK {
            let (x, off) = (near.x[at], near.off[at]);
            let mut range = [f64::INFINITY, f64::NEG_INFINITY];
            for scale in scales.clone() {
                for global in globals {
                    let step = f64::from(e4m3::decode(scale)) * global;
                    for (end, slack) in [(x - off, -8.0 * U), (x + off, 8.0 * U)] {
                        let quotient = end / step;
                        let code = e2m1::encode((quotient + slack * quotient.abs()) as f32);
                        let value = f64::from(e2m1::decode(code)) * step;
                        range = [range[0].min(value), range[1].max(value)];
                    }
                }
            }
            out.x[at] = (range[0] + range[1]) / 2.0;
            // The global scale and its product round.
            out.off[at] =
                (range[1] - range[0]) / 2.0 + 4.0 * U * range[0].abs().max(range[1].abs());
        }
    }
    out
}
