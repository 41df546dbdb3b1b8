//! The decoder: embeddings, layers, head.

use anyhow::{Context, Result, ensure};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::kv_cache::KvCache;
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;
use nvfp4_gemv::cpu::Workers;
use nvfp4_gemv::{Output, Vectors};

use crate::config::Config;
use crate::host;
use crate::weights::{Arithmetic, Mlp, Moe, Product, Weights};

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

impl Norm {
    fn on_host(&self) -> Result<host::Norm> {
        Ok(host::Norm {
            factors: self.factors.to_vec1()?,
            epsilon: self.epsilon,
        })
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

/// How the head is multiplied, where the checkpoint has it as it is. A head that is NVFP4 there stays so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Head {
    /// As it is, in f32
    Dense,
    /// The sum of two matrices in NVFP4: 9 bits an element
    #[default]
    Nvfp4Twice,
    /// NVFP4: 4.5 bits an element
    Nvfp4,
}

/// Reads tokens, and says what follows them: a model, with the text that it has read.
pub trait Reader {
    /// Tokens that were read.
    fn position(&self) -> usize;

    /// Tokens of a text at most.
    fn capacity(&self) -> usize;

    /// Forgets what was read from a position on.
    fn truncate(&mut self, position: usize) -> Result<()>;

    /// Reads tokens. Returns the logits `[vocabulary]` of what follows the last one.
    fn read(&mut self, tokens: &[u32]) -> Result<&[f32]>;

    /// Reads up to [`PASS`] tokens. Returns the logits `[tokens][vocabulary]` behind each of them.
    fn read_all(&mut self, tokens: &[u32]) -> Result<&[f32]>;

    /// Reads up to [`PASS`] tokens. Returns the likeliest token behind each of them, the first of equals.
    fn likeliest(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        let logits = self.read_all(tokens)?;
        let each = logits.len() / tokens.len().max(1);
        logits.chunks_exact(each.max(1)).map(likeliest).collect()
    }

    /// Tokens that can still be read.
    fn room(&self) -> usize {
        self.capacity() - self.position()
    }

    /// Forgets what was read.
    fn reset(&mut self);
}

/// The first of the largest logits.
pub fn likeliest(logits: &[f32]) -> Result<u32> {
    ensure!(
        !logits.iter().any(|logit| logit.is_nan()),
        "the model's logits have a NaN"
    );
    // Without a branch for each.
    let most = logits
        .iter()
        .fold(f32::NEG_INFINITY, |most, &logit| most.max(logit));
    let best = logits.iter().position(|&logit| logit == most);
    Ok(best.context("there is no token")? as u32)
}

/// The layer that says logits, and whether vectors are given to it twice.
pub(crate) fn of_head(
    weights: &Weights,
    config: &Config,
    head: Head,
    embeddings: &Tensor,
) -> Result<(Product, bool)> {
    let tied = config.tie_word_embeddings;
    // A layer as it is loaded: the original's matrix, which may be watched, and a directory's own.
    let as_layer = head == Head::Dense
        && (weights.gguf().is_none() || weights.arithmetic() == Arithmetic::Original);
    let matrix = match tied {
        true => Some(embeddings.clone()),
        false if as_layer => None,
        // Without its error: a head that is NVFP4 has no dense matrix.
        false => weights.matrix("lm_head").ok(),
    };
    let is_twice = matrix.is_some() && head == Head::Nvfp4Twice;
    let head = match (matrix, head) {
        (Some(matrix), Head::Nvfp4Twice) => weights.quantised_twice(&matrix)?,
        (Some(matrix), Head::Nvfp4) => weights.quantised(&matrix)?,
        (Some(matrix), Head::Dense) => Product::Dense(candle_nn::Linear::new(matrix, None)),
        (None, _) => weights.linear(&["lm_head".into()])?,
    };
    Ok((head, is_twice))
}

/// Of each position `[most][head / 2]`: cosines and sines.
pub(crate) fn rotations(config: &Config, most: usize) -> [Vec<f32>; 2] {
    let frequencies = config.frequencies();
    let angles: Vec<f64> = (0..most)
        .flat_map(|position| frequencies.iter().map(move |of| of * position as f64))
        .collect();
    [f64::cos, f64::sin].map(|of: fn(f64) -> f64| -> Vec<f32> {
        angles.iter().map(|&angle| of(angle) as f32).collect()
    })
}

/// The layers, and what computes between them.
enum Layers {
    Tensors(Vec<Layer>),
    /// On the CPU, where all products are the library's.
    Host(host::Decoder),
}

/// A model, with the keys and values of the text that it has read.
pub struct Model {
    config: Config,
    embeddings: Tensor,
    layers: Layers,
    norm: Norm,
    head: Product,
    /// Vectors are given to the head twice.
    head_is_twice: bool,
    /// The threads of the library's products.
    workers: Workers,
    /// The latest logits.
    logits: Vec<f32>,
    /// Of each position: cosines and sines `[positions, head / 2]`.
    rotations: [Tensor; 2],
    position: usize,
}

impl Model {
    /// Loads a model for texts of up to `most` tokens, to be computed by so many threads on the CPU. `progress` is called
    /// behind each layer.
    pub fn load(
        weights: &Weights,
        config: Config,
        most: usize,
        head: Head,
        threads: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<Self> {
        config.allows(most)?;
        let arithmetic = weights.arithmetic();
        ensure!(
            !matches!(arithmetic, Arithmetic::Nvfp4Bf16 | Arithmetic::Nvfp4F16),
            "{arithmetic:?} is computed on a GPU alone"
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
        let (head, head_is_twice) = of_head(weights, &config, head, &embeddings)?;
        let rotations = rotations(&config, most);
        let pairs = config.head_size() / 2;
        let of_positions = |of: &Vec<f32>| Tensor::from_slice(of, (most, pairs), weights.device());
        let tensors = [of_positions(&rotations[0])?, of_positions(&rotations[1])?];
        let on_host: Option<Vec<_>> = match weights.device().is_cpu() {
            true => layers
                .iter()
                .map(|layer| layer.on_host(&config, most))
                .collect(),
            false => None,
        };
        let is_product = matches!(&head, Product::Nvfp4(head) if head.on_host().is_some());
        ensure!(
            !weights.is_batch_invariant() || (on_host.is_some() && is_product),
            "logits depend on the other tokens of a pass where layers have experts, or where they or the head are not \
             NVFP4 with vectors as they are or in bytes"
        );
        let layers = match on_host {
            Some(layers) => Layers::Host(host::Decoder::new(
                layers.into_iter().collect::<Result<_>>()?,
                norm("model.norm")?.on_host()?,
                &config,
                rotations,
            )),
            None => Layers::Tensors(layers),
        };
        Ok(Self {
            norm: norm("model.norm")?,
            rotations: tensors,
            config,
            embeddings,
            layers,
            head,
            head_is_twice,
            workers: Workers::new(threads)?,
            logits: Vec::new(),
            position: 0,
        })
    }

    /// Of vectors `[n][hidden]`.
    fn logits_of(&mut self, xs: Vec<f32>) -> Result<&[f32]> {
        let hidden = self.config.hidden_size;
        let n = xs.len() / hidden;
        let xs = match self.head_is_twice {
            true => xs
                .chunks_exact(hidden)
                .flat_map(|x| [x, x].concat())
                .collect(),
            false => xs,
        };
        let on_host = match &self.head {
            Product::Nvfp4(head) => head.on_host(),
            _ => None,
        };
        match on_host {
            Some(head) => {
                self.logits.resize(n * head.rows(), 0.0);
                let to = Output::of(&mut self.logits);
                let forward = || head.forward(&Vectors::of(&xs), n, to);
                self.workers.install(forward)?;
            }
            None => {
                let xs = Tensor::from_vec(xs, (n, ()), self.embeddings.device())?;
                self.logits = self.head.forward(&xs)?.flatten_all()?.to_vec1()?;
            }
        }
        Ok(&self.logits)
    }

    /// The normalised vectors `[tokens][hidden]` that the head multiplies.
    fn pass(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let n = tokens.len();
        let ([cos, sin], device) = (&self.rotations, self.embeddings.device());
        ensure!(
            n <= self.room(),
            "the text has more than {} tokens",
            self.capacity()
        );
        let rows = |ids: &Tensor| -> Result<Tensor> {
            Ok(self.embeddings.index_select(ids, 0)?.to_dtype(DType::F32)?)
        };
        let layers = match &mut self.layers {
            Layers::Tensors(layers) => layers,
            Layers::Host(decoder) => {
                let mut xs = rows(&Tensor::new(tokens, device)?)?
                    .flatten_all()?
                    .to_vec1()?;
                let (workers, position) = (&self.workers, self.position);
                workers.install(|| decoder.pass(&mut xs, n, position, workers))?;
                self.position += n;
                return Ok(xs);
            }
        };
        let turn = [cos, sin].map(|of| of.narrow(0, self.position, n));
        let [cos, sin] = [turn[0].as_ref(), turn[1].as_ref()].map(|of| of.expect("checked"));
        let mask = mask(n, self.position, device)?;
        let mut xs = rows(&Tensor::new(tokens, device)?)?;
        for layer in layers {
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
        Ok(self.norm.forward(&xs)?.flatten_all()?.to_vec1()?)
    }
}

impl Reader for Model {
    fn position(&self) -> usize {
        self.position
    }

    fn capacity(&self) -> usize {
        self.rotations[0].dims()[0]
    }

    fn reset(&mut self) {
        self.position = 0;
        if let Layers::Tensors(layers) = &mut self.layers {
            layers.iter_mut().for_each(|layer| layer.cache.reset());
        }
    }

    fn truncate(&mut self, position: usize) -> Result<()> {
        ensure!(
            position <= self.position,
            "nothing was read from {position} on"
        );
        // On the CPU what is read next is written over the rest.
        let layers = match &mut self.layers {
            Layers::Tensors(layers) => &mut layers[..],
            Layers::Host(_) => &mut [],
        };
        for layer in layers {
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

    fn read(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        ensure!(!tokens.is_empty(), "no token to read");
        ensure!(
            tokens.len() <= self.room(),
            "the text has more than {} tokens",
            self.capacity()
        );
        let mut xs = Vec::new();
        for some in tokens.chunks(PASS) {
            xs = self.pass(some)?;
        }
        xs.drain(..xs.len() - self.config.hidden_size);
        self.logits_of(xs)
    }

    fn read_all(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        let xs = self.pass(tokens)?;
        self.logits_of(xs)
    }
}

/// The mask of what each of `n` new tokens may not see, as 0 and minus infinity `[n, position + n]`; `None` for one
/// token.
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
    /// This layer on the CPU, if all of its products are the library's.
    fn on_host(&self, config: &Config, most: usize) -> Option<Result<host::Layer>> {
        let (Product::Nvfp4(qkv), Product::Nvfp4(output)) = (&self.qkv, &self.output) else {
            return None;
        };
        let FeedForward::Mlp(Mlp::Nvfp4(mlp)) = &self.feed_forward else {
            return None;
        };
        let (qkv, output) = (qkv.on_host()?.clone(), output.on_host()?.clone());
        let mlp = mlp.on_host()?.clone();
        let layer = || -> Result<host::Layer> {
            // Each from the system, which makes zeros where they are first touched.
            let cache = || vec![0.0; host::Decoder::cache_elements(config, most)];
            Ok(host::Layer {
                attention_norm: self.attention_norm.on_host()?,
                qkv,
                head_norms: match &self.head_norms {
                    Some([q, k]) => Some([q.on_host()?, k.on_host()?]),
                    None => None,
                },
                output,
                mlp_norm: self.mlp_norm.on_host()?,
                mlp,
                keys: cache(),
                values: cache(),
            })
        };
        Some(layer())
    }

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
