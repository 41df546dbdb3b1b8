//! The decoder: embeddings, layers, head.

use anyhow::{Context, Result, ensure};
use candle_core::{D, DType, Device, IndexOp, Module, Tensor};
use candle_nn::kv_cache::KvCache;
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;

use crate::config::Config;
use crate::weights::{Mlp, Moe, Product, Weights};

/// Vectors of a pass over the weights at most: as many as the library's kernels take at once.
pub const PASS: usize = 128;

#[derive(Clone, Debug)]
struct Norm {
    factors: Tensor,
    epsilon: f32,
}

impl Norm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        rms_norm(xs, &self.factors, self.epsilon)
    }
}

enum FeedForward {
    Mlp(Mlp),
    Moe(Moe),
}

struct Layer {
    attention_norm: Norm,
    qkv: Product,
    head_norms: Option<[Norm; 2]>,
    output: Product,
    mlp_norm: Norm,
    feed_forward: FeedForward,
    cache: KvCache,
}

/// A model, with the keys and values of the text that it has read.
pub struct Model {
    config: Config,
    embeddings: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    head: Product,
    /// Of each position: cosines and sines `[positions, head / 2]`.
    rotations: [Tensor; 2],
    position: usize,
}

impl Model {
    /// Loads a model for texts of up to `most` tokens. With `nvfp4_head` the head is quantised too, where the checkpoint
    /// has it as it is. `progress` is called behind each layer.
    pub fn load(
        weights: &Weights,
        config: Config,
        most: usize,
        nvfp4_head: bool,
        mut progress: impl FnMut(usize),
    ) -> Result<Self> {
        ensure!(
            most <= config.max_position_embeddings,
            "the model was made for texts of {} tokens, not {most}",
            config.max_position_embeddings
        );
        let norm = |module: &str| -> Result<Norm> {
            Ok(Norm {
                factors: weights.norm(module)?,
                epsilon: config.rms_norm_eps as f32,
            })
        };
        let mut layers = Vec::new();
        for number in 0..config.num_hidden_layers {
            let path = |part: &str| format!("model.layers.{number}.{part}");
            let qkv = ["q", "k", "v"].map(|part| path(&format!("self_attn.{part}_proj")));
            let head_norms = match config.has_head_norms() {
                true => Some([
                    norm(&path("self_attn.q_norm"))?,
                    norm(&path("self_attn.k_norm"))?,
                ]),
                false => None,
            };
            let feed_forward = match config.experts(number) {
                None => FeedForward::Mlp(weights.mlp(&path("mlp"))?),
                Some(experts) => {
                    FeedForward::Moe(weights.experts(&path("mlp"), &config, experts)?)
                }
            };
            layers.push(Layer {
                attention_norm: norm(&path("input_layernorm"))?,
                qkv: weights.linear(&qkv)?,
                head_norms,
                output: weights.linear(&[path("self_attn.o_proj")])?,
                mlp_norm: norm(&path("post_attention_layernorm"))?,
                feed_forward,
                cache: KvCache::new(1, most),
            });
            progress(number);
        }
        let embeddings = weights.matrix("model.embed_tokens")?;
        let head = match (config.tie_word_embeddings, nvfp4_head) {
            (true, true) => weights.quantised(&embeddings)?,
            (true, false) => Product::Dense(candle_nn::Linear::new(embeddings.clone(), None)),
            (false, true) => match weights.matrix("lm_head") {
                Ok(matrix) => weights.quantised(&matrix)?,
                Err(_) => weights.linear(&["lm_head".into()])?,
            },
            (false, false) => weights.linear(&["lm_head".into()])?,
        };
        let frequencies = config.frequencies();
        let angles: Vec<f64> = (0..most)
            .flat_map(|position| frequencies.iter().map(move |of| of * position as f64))
            .collect();
        let rotation = |of: fn(f64) -> f64| -> Result<Tensor> {
            let values: Vec<f32> = angles.iter().map(|&angle| of(angle) as f32).collect();
            Ok(Tensor::from_vec(
                values,
                (most, frequencies.len()),
                weights.device(),
            )?)
        };
        Ok(Self {
            norm: norm("model.norm")?,
            rotations: [rotation(f64::cos)?, rotation(f64::sin)?],
            config,
            embeddings,
            layers,
            head,
            position: 0,
        })
    }

    /// Tokens that were read.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Tokens of a text at most.
    pub fn capacity(&self) -> usize {
        self.rotations[0].dims()[0]
    }

    /// Tokens that can still be read.
    pub fn room(&self) -> usize {
        self.capacity() - self.position
    }

    /// Forgets what was read.
    pub fn reset(&mut self) {
        self.position = 0;
        for layer in &mut self.layers {
            layer.cache.reset();
        }
    }

    /// Forgets what was read from a position on.
    pub fn truncate(&mut self, position: usize) -> Result<()> {
        ensure!(
            position <= self.position,
            "nothing was read from {position} on"
        );
        for layer in &mut self.layers {
            let kept = [layer.cache.k()?, layer.cache.v()?];
            layer.cache.reset();
            if let ([Some(k), Some(v)], true) = (kept, position > 0) {
                let keep = |of: Tensor| of.narrow(1, 0, position)?.contiguous();
                layer.cache.append(&keep(k)?, &keep(v)?)?;
            }
        }
        self.position = position;
        Ok(())
    }

    /// Reads tokens. Returns the logits `[vocabulary]` of what follows the last one.
    pub fn read(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let mut xs = None;
        for some in tokens.chunks(PASS) {
            xs = Some(self.pass(some)?);
        }
        let xs = xs.context("no token to read")?;
        let last = xs.narrow(0, xs.dim(0)? - 1, 1)?;
        Ok(self.head.forward(&last.contiguous()?)?.i(0)?)
    }

    /// Reads up to [`PASS`] tokens. Returns the logits `[tokens, vocabulary]` behind each of them.
    pub fn read_all(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let xs = self.pass(tokens)?;
        Ok(self.head.forward(&xs)?)
    }

    /// The normalised vectors `[tokens, hidden]` that the head multiplies.
    fn pass(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let n = tokens.len();
        let ([cos, sin], device) = (&self.rotations, self.embeddings.device());
        ensure!(
            self.position + n <= cos.dim(0)?,
            "the text has more than {} tokens",
            cos.dim(0)?
        );
        let turn = [cos, sin].map(|of| of.narrow(0, self.position, n));
        let [cos, sin] = [turn[0].as_ref(), turn[1].as_ref()].map(|of| of.expect("checked"));
        let mask = mask(n, self.position, device)?;
        let ids = Tensor::new(tokens, device)?;
        let mut xs = self
            .embeddings
            .index_select(&ids, 0)?
            .to_dtype(DType::F32)?;
        for layer in &mut self.layers {
            let attended = layer.attend(&xs, [cos, sin], mask.as_ref(), &self.config)?;
            xs = (xs + attended)?;
            let normed = layer.mlp_norm.forward(&xs)?;
            let result = match &layer.feed_forward {
                FeedForward::Mlp(mlp) => mlp.forward(&normed)?,
                FeedForward::Moe(moe) => moe.forward(&normed)?,
            };
            xs = (xs + result)?;
        }
        self.position += n;
        Ok(self.norm.forward(&xs)?)
    }
}

/// What each of `n` new tokens may not see, as 0 and minus infinity `[n, position + n]`; `None` for one token.
fn mask(n: usize, position: usize, device: &Device) -> Result<Option<Tensor>> {
    if n == 1 {
        return Ok(None);
    }
    let all = position + n;
    let sees = |i: usize| {
        if i % all <= position + i / all {
            0.0
        } else {
            f32::NEG_INFINITY
        }
    };
    let values: Vec<f32> = (0..n * all).map(sees).collect();
    Ok(Some(Tensor::from_vec(values, (n, all), device)?))
}

impl Layer {
    /// The attention of new tokens `[n, hidden]`. Heads that share keys and values are rows of one product.
    fn attend(
        &mut self,
        xs: &Tensor,
        [cos, sin]: [&Tensor; 2],
        mask: Option<&Tensor>,
        config: &Config,
    ) -> Result<Tensor> {
        let (n, size) = (xs.dim(0)?, config.head_size());
        let (heads, kv) = (config.num_attention_heads, config.kv_heads());
        let qkv = self.qkv.forward(&self.attention_norm.forward(xs)?)?;
        // [heads, n, size]
        let part = |first: usize, heads: usize| -> candle_core::Result<Tensor> {
            let part = qkv.narrow(D::Minus1, first * size, heads * size)?;
            part.reshape((n, heads, size))?
                .transpose(0, 1)?
                .contiguous()
        };
        let (mut q, mut k, v) = (part(0, heads)?, part(heads, kv)?, part(heads + kv, kv)?);
        if let Some([q_norm, k_norm]) = &self.head_norms {
            (q, k) = (q_norm.forward(&q)?, k_norm.forward(&k)?);
        }
        let turned = |of: &Tensor| rope(&of.unsqueeze(0)?, cos, sin)?.squeeze(0);
        let (q, k) = (turned(&q)?, turned(&k)?);
        let (k, v) = self.cache.append(&k, &v)?;
        let all = k.dim(1)?;
        let q = (q * (1.0 / (size as f64).sqrt()))?;
        let scores = q
            .reshape((kv, heads / kv * n, size))?
            .matmul(&k.transpose(1, 2)?)?;
        let scores = match mask {
            Some(mask) => {
                let of_heads = scores.reshape((heads, n, all))?;
                of_heads
                    .broadcast_add(mask)?
                    .reshape((kv, heads / kv * n, all))?
            }
            None => scores,
        };
        let values = softmax_last_dim(&scores)?.matmul(&v.contiguous()?)?;
        let values = values.reshape((heads, n, size))?.transpose(0, 1)?;
        let values = values.contiguous()?.reshape((n, heads * size))?;
        Ok(self.output.forward(&values)?)
    }
}
