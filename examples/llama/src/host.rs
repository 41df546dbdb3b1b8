//! The layers of a decoder on the CPU: products are the library's, and what stands between them are loops over slices.
//! candle computes the same from tensors (`model`), and is what this is compared with.

use anyhow::{Result, ensure};
use nvfp4_gemv::cpu::Workers;
use nvfp4_gemv::{Linear, Mlp, Output, Vectors};

use crate::config::Config;
use crate::layers;
use crate::met::Met;

/// Factors of a norm, and what is added to a mean of squares.
#[derive(Clone, Debug)]
pub struct Norm {
    pub factors: Vec<f32>,
    pub epsilon: f32,
}

impl Norm {
    /// Normalises a vector, or the heads that it consists of.
    fn apply(&self, xs: &mut [f32]) {
        for xs in xs.chunks_exact_mut(self.factors.len()) {
            let mean = dot(xs, xs) / xs.len() as f32;
            let factor = 1.0 / (mean + self.epsilon).sqrt();
            for (x, of) in xs.iter_mut().zip(&self.factors) {
                *x = *x * factor * of;
            }
        }
    }
}

/// A layer, with the keys and values of what was read, `[head][position][element]`.
#[derive(Debug)]
pub struct Layer {
    pub of: layers::Layer<Norm, Linear, Mlp>,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

/// The layers of a decoder, and memory for vectors between them.
#[derive(Debug)]
pub struct Decoder {
    layers: Vec<Layer>,
    norm: Norm,
    heads: usize,
    kv: usize,
    /// Elements of a head.
    size: usize,
    /// Positions at most.
    most: usize,
    /// Of each position: cosines and sines, as many as pairs of elements.
    rotations: [Vec<f32>; 2],
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
}

impl Decoder {
    /// `norm` is the last one.
    pub fn new(layers: Vec<Layer>, norm: Norm, config: &Config, rotations: [Vec<f32>; 2]) -> Self {
        let size = config.head_size();
        Self {
            heads: config.num_attention_heads,
            kv: config.kv_heads(),
            size,
            most: rotations[0].len() / (size / 2),
            layers,
            norm,
            rotations,
            normed: Vec::new(),
            qkv: Vec::new(),
            attended: Vec::new(),
        }
    }

    /// Elements of the keys of a layer, and of its values.
    pub fn cache_elements(config: &Config, most: usize) -> usize {
        config.kv_heads() * most * config.head_size()
    }

    /// Bytes of weights that a token reads.
    pub fn bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|Layer { of, .. }| {
            let parts = [&of.qkv, &of.output].into_iter();
            parts.chain(of.feed_forward.layers())
        });
        layers.map(|layer| layer.rows() * layer.k() / 16 * 9).sum()
    }

    /// Multiplies one vector, of any numbers, by each layer's products, and does nothing else: what they cost.
    pub fn multiply(&mut self) -> Result<()> {
        let mut xs = vec![0.5; self.norm.factors.len()];
        self.qkv.resize((self.heads + 2 * self.kv) * self.size, 0.0);
        self.attended.resize(self.heads * self.size, 0.0);
        let (normed, qkv, attended) = (&xs.clone(), &mut self.qkv, &self.attended);
        for Layer { of, .. } in &self.layers {
            of.qkv.forward(&Vectors::of(normed), 1, Output::of(qkv))?;
            of.output
                .forward(&Vectors::of(attended), 1, Output::of(&mut xs))?;
            of.feed_forward
                .forward(&Vectors::of(normed), 1, Output::of(&mut xs))?;
        }
        Ok(())
    }

    /// The results of the layers and the last norm for `n` vectors `[n][hidden]`, the first of which stands at a
    /// position.
    pub fn pass(
        &mut self,
        xs: &mut [f32],
        n: usize,
        position: usize,
        workers: &Workers,
        met: &mut Met,
    ) -> Result<()> {
        ensure!(
            position + n <= self.most,
            "the text has more than {} tokens",
            self.most
        );
        let (heads, kv, size, most) = (self.heads, self.kv, self.size, self.most);
        let width = (heads + 2 * kv) * size;
        self.normed.resize(xs.len(), 0.0);
        self.qkv.resize(n * width, 0.0);
        self.attended.resize(n * heads * size, 0.0);
        let (normed, qkv, attended) = (&mut self.normed, &mut self.qkv, &mut self.attended);
        let rotations = &self.rotations;
        for Layer { of, keys, values } in &mut self.layers {
            normed.copy_from_slice(xs);
            of.attention_norm.apply(normed);
            met.add(normed.iter().map(|&x| f64::from(x)));
            of.qkv.forward(&Vectors::of(normed), n, Output::of(qkv))?;
            for (i, qkv) in qkv.chunks_exact_mut(width).enumerate() {
                let (q, rest) = qkv.split_at_mut(heads * size);
                let (k, v) = rest.split_at_mut(kv * size);
                if let Some([q_norm, k_norm]) = &of.head_norms {
                    q_norm.apply(q);
                    k_norm.apply(k);
                }
                let at = position + i;
                let turn = |part: &mut [f32]| {
                    let [cos, sin] = [0, 1].map(|of| &rotations[of][at * size / 2..][..size / 2]);
                    part.chunks_exact_mut(size)
                        .for_each(|head| rotate(head, cos, sin));
                };
                turn(q);
                turn(k);
                let factor = 1.0 / (size as f32).sqrt();
                q.iter_mut().for_each(|q| *q *= factor);
                for (cache, new) in [(&mut *keys, k), (&mut *values, v)] {
                    for (head, new) in new.chunks_exact(size).enumerate() {
                        cache[(head * most + at) * size..][..size].copy_from_slice(new);
                    }
                }
            }
            let (keys, values, qkv) = (&*keys, &*values, &*qkv);
            workers.for_each_chunk(attended, size, |start, result| {
                let (i, head) = (start / size / heads, start / size % heads);
                let q = &qkv[i * width + head * size..][..size];
                let of_head = head / (heads / kv) * most * size;
                let seen = (position + i + 1) * size;
                attend(
                    q,
                    &keys[of_head..][..seen],
                    &values[of_head..][..seen],
                    result,
                );
            });
            met.add(attended.iter().map(|&x| f64::from(x)));
            let to = Output::of(xs).accumulating();
            of.output.forward(&Vectors::of(attended), n, to)?;
            normed.copy_from_slice(xs);
            of.mlp_norm.apply(normed);
            met.add(normed.iter().map(|&x| f64::from(x)));
            let to = Output::of(xs).accumulating();
            of.feed_forward.forward(&Vectors::of(normed), n, to)?;
        }
        self.norm.apply(xs);
        Ok(())
    }
}

/// Rotates the pairs of elements of a head, which lie half a head apart.
fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

/// Positions whose scores are computed before their values are added.
const AT_ONCE: usize = 32;

/// The mean of values, weighed by the exponentials of their keys' products with `q`. Exponents are less the largest one
/// so far: what was added before is brought down when a larger one comes.
fn attend(q: &[f32], keys: &[f32], values: &[f32], result: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has the instructions.
        return unsafe { attend_avx2(q, keys, values, result) };
    }
    attend_plainly(q, keys, values, result);
}

/// The same loops, for which the compiler may use wider registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn attend_avx2(q: &[f32], keys: &[f32], values: &[f32], result: &mut [f32]) {
    attend_plainly(q, keys, values, result);
}

#[inline(always)]
fn attend_plainly(q: &[f32], keys: &[f32], values: &[f32], result: &mut [f32]) {
    let size = q.len();
    let (mut largest, mut sum) = (f32::NEG_INFINITY, 0.0);
    result.fill(0.0);
    let blocks = keys
        .chunks(AT_ONCE * size)
        .zip(values.chunks(AT_ONCE * size));
    for (keys, values) in blocks {
        let mut scores = [f32::NEG_INFINITY; AT_ONCE];
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(size)) {
            *score = dot(q, key);
        }
        let before = largest;
        largest = scores.iter().copied().fold(largest, f32::max);
        if before < largest {
            let less = (before - largest).exp();
            sum *= less;
            result.iter_mut().for_each(|of| *of *= less);
        }
        for (score, value) in scores.iter().zip(values.chunks_exact(size)) {
            let weight = (score - largest).exp();
            sum += weight;
            for (of, value) in result.iter_mut().zip(value) {
                *of += weight * value;
            }
        }
    }
    result.iter_mut().for_each(|of| *of /= sum);
}

/// In 16 sums, which the compiler keeps in vector registers.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut sums = [0.0f32; 16];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let mut half = sums.len() / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums[0] + rest
}
