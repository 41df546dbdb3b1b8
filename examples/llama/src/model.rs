//! The decoder: embeddings, layers, head.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::kv_cache::KvCache;
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;
use nvfp4_gemv::cpu::{Workers, streaming_read_bandwidth};
use nvfp4_gemv::{Output, Vectors};

use crate::config::Config;
use crate::host;
use crate::layers::{self, Maker};
use crate::met::Met;
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

type Layer = layers::Layer<Norm, Product, FeedForward>;

/// Loads the parts of layers.
struct Loader<'a> {
    weights: &'a Weights,
    config: &'a Config,
}

impl Maker for Loader<'_> {
    type Norm = Norm;
    type Linear = Product;
    type FeedForward = FeedForward;

    fn norm(&mut self, module: &str, _: usize) -> Result<Norm> {
        Ok(Norm {
            factors: self.weights.norm(module)?,
            epsilon: self.config.rms_norm_eps as f32,
        })
    }

    fn linear(&mut self, modules: &[String], _: usize, _: usize) -> Result<Product> {
        self.weights.linear(modules)
    }

    fn mlp(&mut self, module: &str) -> Result<FeedForward> {
        Ok(FeedForward::Mlp(self.weights.mlp(module)?))
    }

    fn experts(&mut self, module: &str, count: usize) -> Result<FeedForward> {
        let experts = self.weights.experts(module, self.config, count)?;
        Ok(FeedForward::Moe(experts))
    }
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

    /// The vectors that its layers were given.
    fn met(&mut self) -> &mut Met;
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
pub fn rotations(config: &Config, most: usize) -> [Vec<f32>; 2] {
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
    Tensors(Vec<(Layer, KvCache)>),
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
    met: Met,
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
        let mut loader = Loader {
            weights,
            config: &config,
        };
        let mut layers = Vec::new();
        for number in 0..config.num_hidden_layers {
            layers.push(Layer::new(&config, number, &mut loader)?);
            progress(number);
        }
        let norm = loader.norm("model.norm", config.hidden_size)?;
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
                norm.on_host()?,
                &config,
                rotations,
            )),
            None => {
                let with_cache = |layer| (layer, KvCache::new(1, most));
                Layers::Tensors(layers.into_iter().map(with_cache).collect())
            }
        };
        Ok(Self {
            norm,
            rotations: tensors,
            config,
            embeddings,
            layers,
            head,
            head_is_twice,
            workers: Workers::new(threads)?,
            logits: Vec::new(),
            position: 0,
            met: Met::default(),
        })
    }

    /// Prints what a step behind what was read is made of, and its share of the rate at which so many threads read memory.
    /// What takes the model's layers apart is the library's products: of others nothing is printed.
    ///
    /// # Errors
    /// No room for a step.
    pub fn bench(&mut self, threads: usize) -> Result<()> {
        const REPLAYS: usize = 48;
        /// Several times as much as caches hold.
        const LONG_READ: usize = 1 << 29;
        let median = |run: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            let mut seconds = Vec::new();
            for _ in 0..REPLAYS {
                let start = Instant::now();
                run()?;
                seconds.push(start.elapsed().as_secs_f64());
            }
            seconds.sort_by(f64::total_cmp);
            Ok(seconds[REPLAYS / 2])
        };
        let position = self.position;
        let (Layers::Host(decoder), Some(head)) = (&self.layers, self.head.on_host()) else {
            return Ok(());
        };
        let bytes = [decoder.bytes(), head.rows() * head.k() / 16 * 9];
        let whole = median(&mut || {
            self.likeliest(&[0])?;
            self.truncate(position)
        })?;
        let xs = vec![0.5; self.config.hidden_size];
        let of_head = median(&mut || self.logits_of(xs.clone()).map(drop))?;
        let Layers::Host(decoder) = &mut self.layers else {
            return Ok(());
        };
        let workers = &self.workers;
        let of_layers = median(&mut || workers.install(|| decoder.multiply()))?;
        let rate = streaming_read_bandwidth(LONG_READ, threads);
        println!(
            "behind {position} tokens, {threads} threads, which read {:.1} GB/s; median of {REPLAYS}:",
            rate / 1e9
        );
        println!("| what is computed | MB of weights | ms | of that rate |\n|---|---|---|---|");
        for (name, bytes, seconds) in [
            ("the whole step", bytes[0] + bytes[1], whole),
            ("linear layers alone", bytes[0], of_layers),
            ("the head alone", bytes[1], of_head),
        ] {
            let megabytes = bytes as f64 / 1e6;
            let share = bytes as f64 / seconds / rate;
            println!(
                "| {name} | {megabytes:.1} | {:.3} | {share:.3} |",
                1e3 * seconds
            );
        }
        let rest = whole - of_layers - of_head;
        println!(
            "| the rest: attention, norms, the choice | | {:.3} | |",
            1e3 * rest
        );
        Ok(())
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
                let (workers, position, met) = (&self.workers, self.position, &mut self.met);
                workers.install(|| decoder.pass(&mut xs, n, position, workers, met))?;
                self.position += n;
                return Ok(xs);
            }
        };
        let turn = [cos, sin].map(|of| of.narrow(0, self.position, n));
        let [cos, sin] = [turn[0].as_ref(), turn[1].as_ref()].map(|of| of.expect("checked"));
        let mask = mask(n, self.position, device)?;
        let mut xs = rows(&Tensor::new(tokens, device)?)?;
        for (layer, cache) in layers {
            let normed = layer.attention_norm.forward(&xs)?;
            keep(&mut self.met, &normed)?;
            let attended = layer.attend(cache, &normed, [cos, sin], mask.as_ref(), &self.config)?;
            keep(&mut self.met, &attended)?;
            xs = (xs + layer.output.forward(&attended)?)?;
            let normed = layer.mlp_norm.forward(&xs)?;
            keep(&mut self.met, &normed)?;
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
            layers.iter_mut().for_each(|(_, cache)| cache.reset());
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
        for (_, cache) in layers {
            let kept = [cache.k()?, cache.v()?];
            cache.reset();
            if let ([Some(k), Some(v)], true) = (kept, position > 0) {
                let keep = |of: Tensor| of.narrow(1, 0, position)?.contiguous();
                cache.append(&keep(k)?, &keep(v)?)?;
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

    fn met(&mut self) -> &mut Met {
        &mut self.met
    }
}

/// Keeps vectors, if that was asked for.
fn keep(met: &mut Met, xs: &Tensor) -> Result<()> {
    if met.is_kept() {
        let values = xs.flatten_all()?.to_vec1::<f32>()?;
        met.add(values.into_iter().map(f64::from));
    }
    Ok(())
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
                of: layers::Layer {
                    attention_norm: self.attention_norm.on_host()?,
                    qkv,
                    head_norms: match &self.head_norms {
                        Some([q, k]) => Some([q.on_host()?, k.on_host()?]),
                        None => None,
                    },
                    output,
                    mlp_norm: self.mlp_norm.on_host()?,
                    feed_forward: mlp,
                },
                keys: cache(),
                values: cache(),
            })
        };
        Some(layer())
    }

    /// The attention of new tokens, by normalised vectors `[n, hidden]`. Heads that share keys and values are rows of one product.
    fn attend(
        &self,
        cache: &mut KvCache,
        normed: &Tensor,
        [cos, sin]: [&Tensor; 2],
        mask: Option<&Tensor>,
        config: &Config,
    ) -> Result<Tensor> {
        let (n, size) = (normed.dim(0)?, config.head_size());
        let (heads, kv) = (config.num_attention_heads, config.kv_heads());
        let qkv = self.qkv.forward(normed)?;
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
        let (k, v) = cache.append(&k, &v)?;
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
        Ok(values.contiguous()?.reshape((n, heads * size))?)
    }
}
