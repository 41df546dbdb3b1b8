//! Models of random weights, made on a GPU: what a configuration costs, without its checkpoint.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nvfp4_gemv::cudarc::driver::{CudaSlice, DeviceRepr};
use nvfp4_gemv::half::bf16;
use nvfp4_gemv::{
    ExpertsOnDevice, Gate, GlobalScale, LinearOnDevice, MatricesOnDevice, RowOrder, Shape,
};

use super::decoder::{DeviceModel, mixture};
use super::gpu::Place;
use super::kernels::{self, Heads, Words};
use super::pass::{FeedForward, Layer, Parts};
use super::product::{Dense, Kind, Product};
use crate::config::Config;
use crate::layers::Maker;
use crate::model::Head;
use crate::weights::Arithmetic;

const LLAMA_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072, "rope_scaling": {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}}"#;
const LLAMA_70B: &str = r#"{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072, "rope_scaling": {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}}"#;
const QWEN_30B: &str = r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 40960,
    "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true}"#;

/// Configurations that are known by name. Source: the models' `config.json`.
pub const NAMES: [&str; 3] = ["Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-30B-A3B"];

/// A configuration by its name, or of a file.
///
/// # Errors
/// A file that cannot be read, or that is no config of a known model.
pub fn config(name: &str) -> Result<Config> {
    let texts = [LLAMA_8B, LLAMA_70B, QWEN_30B];
    let known = NAMES.iter().position(|of| of.eq_ignore_ascii_case(name));
    if let Some(known) = known {
        return Config::of_text(texts[known]);
    }
    let text = fs::read_to_string(Path::new(name))
        .with_context(|| format!("{name} is no file, and none of {}", NAMES.join(", ")))?;
    Config::of_text(&text).with_context(|| name.to_owned())
}

/// Makes weights on the device.
struct Inventor<'a> {
    config: &'a Config,
    kind: Kind,
    place: &'a Place,
    seed: u32,
}

impl Inventor<'_> {
    /// Fills memory. Each buffer has numbers of its own.
    fn fill<T: DeviceRepr>(&mut self, count: usize, words: Words) -> Result<CudaSlice<T>> {
        let bytes = count * size_of::<T>();
        ensure!(bytes.is_multiple_of(4), "{bytes} bytes are no whole words");
        // SAFETY: all of it is written below, on the same stream.
        let buffer = unsafe { self.place.stream.alloc::<T>(count) }?;
        self.seed = self.seed.wrapping_add(0x9e37_79b9);
        let to = self.place.address(&buffer);
        let launch = kernels::random(to, bytes / 4, self.seed, words);
        // SAFETY: the buffer has so many words.
        unsafe { self.place.enqueue(&launch, true) }?;
        Ok(buffer)
    }

    /// Codes, scales and global scale of matrices that keep a vector's size.
    fn parts(
        &mut self,
        count: usize,
        rows: usize,
        k: usize,
    ) -> Result<(CudaSlice<u8>, CudaSlice<u8>, GlobalScale)> {
        let shape = Shape::matrix(rows, k)?;
        let codes = self.fill(count * shape.weight_code_bytes(), Words::Codes)?;
        let bytes = count * shape.weight_scale_bytes(self.place.layout());
        let scales = self.fill(bytes, Words::Scales)?;
        // The root of the mean square of an element is 2.93, that of a scale 1.2.
        let global = GlobalScale::Multiplier(1.0 / (3.5 * (k as f32).sqrt()));
        Ok((codes, scales, global))
    }

    fn matrices(&mut self, count: usize, rows: usize, k: usize) -> Result<MatricesOnDevice> {
        let (codes, scales, global) = self.parts(count, rows, k)?;
        let layout = self.place.layout();
        Ok(MatricesOnDevice::new(
            count, rows, k, codes, scales, layout, global,
        )?)
    }

    fn dense(&mut self, rows: usize, k: usize) -> Result<Dense> {
        let weights = self.fill::<bf16>(rows * k, Words::Halves)?;
        Ok(Dense::of_bf16(weights, rows, k))
    }
}

impl Maker for Inventor<'_> {
    type Norm = CudaSlice<f32>;
    type Linear = Product;
    type FeedForward = FeedForward;

    fn norm(&mut self, _: &str, elements: usize) -> Result<CudaSlice<f32>> {
        Ok(self.place.stream.clone_htod(&vec![1.0f32; elements])?)
    }

    fn linear(&mut self, _: &[String], rows: usize, k: usize) -> Result<Product> {
        let (codes, scales, global) = self.parts(1, rows, k)?;
        let layer = LinearOnDevice::new(rows, k, codes, scales, self.place.layout(), global)?;
        // SAFETY: whoever makes a model waits for the stream before the first call. Nobody writes weights afterwards.
        Ok(Product::Nvfp4(unsafe { layer.chained() }))
    }

    fn mlp(&mut self, _: &str) -> Result<FeedForward> {
        let (hidden, between) = (self.config.hidden_size, self.config.intermediate_size);
        let between = between.context("no intermediate_size")?;
        Ok(FeedForward::Mlp {
            gate_up: self.linear(&[], 2 * between, hidden)?,
            down: self.linear(&[], hidden, between)?,
        })
    }

    fn experts(&mut self, _: &str, count: usize) -> Result<FeedForward> {
        let (hidden, between) = (self.config.hidden_size, self.config.moe_intermediate_size);
        let between = between.context("no moe_intermediate_size")?;
        let experts = ExpertsOnDevice::new(
            self.matrices(count, 2 * between, hidden)?,
            RowOrder::Stacked,
            self.matrices(count, hidden, between)?,
            Gate::Silu,
        )?;
        let (router, bytes) = (self.dense(count, hidden)?, 3 * between * hidden / 16 * 9);
        mixture(self.config, self.kind, router, experts, bytes)
    }
}

impl DeviceModel {
    /// A model of random weights of a configuration, made on the first GPU.
    ///
    /// # Errors
    /// As [`load`](Self::load)'s; a config that does not say the size of MLPs and of the vocabulary.
    pub fn random(
        config: &Config,
        arithmetic: Arithmetic,
        most: usize,
        head: Head,
        mut progress: impl FnMut(usize),
    ) -> Result<Self> {
        config.allows(most)?;
        let kind = Kind::of(arithmetic)?;
        let place = Place::new(|sms| Heads::new(config, most, sms))?;
        let maker = &mut Inventor {
            config,
            kind,
            place: &place,
            seed: 1,
        };
        let hidden = config.hidden_size;
        let vocabulary = config.vocab_size.context("no vocab_size")?;
        let mut layers = Vec::new();
        for number in 0..config.num_hidden_layers {
            layers.push(Layer::new(config, number, maker, &place)?);
            progress(number);
        }
        let copies = 1 + usize::from(head == Head::Nvfp4Twice);
        let parts = Parts {
            layers,
            norm: maker.norm("", hidden)?,
            head: match head {
                Head::Dense => Product::Dense(maker.dense(vocabulary, hidden)?),
                _ => maker.linear(&[], vocabulary, copies * hidden)?,
            },
            copies,
            hidden,
            table: maker.fill(vocabulary * hidden, Words::Floats(1.0))?,
            kind,
        };
        Self::new(place, parts, config, most)
    }
}
