//! Where weights come from, and how they are multiplied.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Linear as DenseLinear, VarBuilder};
use nvfp4_gemv::checkpoint::{Checkpoint, Dense, Gguf, Note};
use nvfp4_gemv::cpu::Accuracy;
use nvfp4_gemv::quantize::{Quantized, quantize};
use nvfp4_gemv::{Dialect, Dims, Experts, Linear, Output, RowOrder, Shape, format};
use nvfp4_gemv_candle::{Nvfp4Builder, Nvfp4Linear, Nvfp4Mlp, Nvfp4Moe};

use crate::config::Config;

/// How linear layers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arithmetic {
    /// NVFP4 weights with vectors as they are (W4A16)
    Nvfp4,
    /// NVFP4 weights with vectors that are rounded to bytes, with a scale for each 16; on the CPU
    Nvfp4Bytes,
    /// NVFP4 weights with vectors that are rounded to bf16; on a GPU
    Nvfp4Bf16,
    /// NVFP4 weights with vectors that are rounded to f16, where numbers past 65504 are an error; on a GPU
    Nvfp4F16,
    /// NVFP4 weights with vectors that are quantised to NVFP4 (W4A4)
    Nvfp4Vectors,
    /// The same NVFP4 weights as dense f32 matrices, multiplied by candle: the reference
    Reference,
    /// The weights before they were quantised, as dense f32 matrices; of a GGUF file
    Original,
}

/// A linear layer.
#[derive(Clone, Debug)]
pub enum Product {
    Nvfp4(Nvfp4Linear),
    Nvfp4Vectors(Linear),
    Dense(DenseLinear),
    /// That its vectors are collected of.
    Watched(DenseLinear, Arc<Moments>),
}

impl Product {
    /// The library's layer on the CPU, if it is one.
    pub fn on_host(&self) -> Option<&Linear> {
        match self {
            Self::Nvfp4(layer) => layer.on_host(),
            Self::Nvfp4Vectors(layer) => Some(layer),
            Self::Dense(_) | Self::Watched(..) => None,
        }
    }
}

/// Statistics of the vectors that some modules meet.
#[derive(Debug)]
pub struct Moments {
    /// The modules, joined by `+`.
    modules: String,
    /// The sum of `x[i] · x[j]` for each pair of columns, `[K, K]`, and the number of vectors.
    sums: Mutex<Option<(Tensor, usize)>>,
}

impl Moments {
    fn add(&self, xs: &Tensor) -> candle_core::Result<()> {
        let xs = xs.reshape(((), xs.dim(candle_core::D::Minus1)?))?;
        let products = xs.t()?.matmul(&xs)?;
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        *sums = Some(match sums.take() {
            Some((sum, count)) => ((sum + products)?, count + xs.dim(0)?),
            None => (products, xs.dim(0)?),
        });
        Ok(())
    }
}

impl Module for Product {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Nvfp4(layer) => layer.forward(xs),
            Self::Dense(layer) => layer.forward(xs),
            Self::Watched(layer, moments) => {
                moments.add(xs)?;
                layer.forward(xs)
            }
            Self::Nvfp4Vectors(layer) => {
                let mut dims = xs.dims().to_vec();
                let n = xs.elem_count() / layer.k();
                let values = xs.flatten_all()?.to_vec1::<f32>()?;
                let mut y = vec![0.0f32; n * layer.rows()];
                // A global scale for all: the largest of a text's vectors decides.
                let x = quantize(&values, n, layer.k(), Dialect::ModelOpt, None);
                let x = x.map_err(candle_core::Error::wrap)?;
                let forward = layer.forward(&x.vectors(), n, Output::of(&mut y));
                forward.map_err(candle_core::Error::wrap)?;
                *dims.last_mut().expect("vectors") = layer.rows();
                Tensor::from_vec(y, dims, xs.device())
            }
        }
    }
}

enum Source {
    Directory {
        nvfp4: Nvfp4Builder,
        dense: VarBuilder<'static>,
    },
    Gguf(Gguf),
}

/// The weights of a model.
pub struct Weights {
    source: Source,
    arithmetic: Arithmetic,
    batch_invariant: bool,
    device: Device,
    watched: Option<Mutex<Vec<Arc<Moments>>>>,
}

impl Weights {
    /// Of a directory with NVFP4 layers in safetensors files, or of a GGUF file, whose matrices are quantised as they are
    /// loaded. With the model's config.
    pub fn open(path: &Path, arithmetic: Arithmetic, device: &Device) -> Result<(Self, Config)> {
        let is_gguf = path
            .extension()
            .is_some_and(|of| of.eq_ignore_ascii_case("gguf"));
        let (source, config) = if is_gguf {
            let gguf = Gguf::open(path)?;
            let config = Config::of_gguf(&gguf)?;
            (Source::Gguf(gguf), config)
        } else {
            ensure!(
                arithmetic != Arithmetic::Original,
                "{}: the weights before quantisation are not there; a GGUF file has them",
                path.display()
            );
            let checkpoint = Arc::new(Checkpoint::open(path)?);
            let nvfp4 = Nvfp4Builder::new(checkpoint, device)?;
            // SAFETY: the checkpoint has the same files open, with the same promise: nobody writes them.
            let dense =
                unsafe { VarBuilder::from_mmaped_safetensors(&nvfp4.files(), DType::F32, device)? };
            (
                Source::Directory { nvfp4, dense },
                Config::of_directory(path)?,
            )
        };
        let weights = Self {
            source,
            arithmetic,
            batch_invariant: false,
            device: device.clone(),
            watched: None,
        };
        Ok((weights, config))
    }

    /// The original weights of a GGUF file, in layers that the mean products of their vectors are collected of.
    pub fn watched(path: &Path, device: &Device) -> Result<(Self, Config)> {
        let (weights, config) = Self::open(path, Arithmetic::Original, device)?;
        let watched = Some(Mutex::default());
        Ok((Self { watched, ..weights }, config))
    }

    /// The mean products `[K, K]` of what was read since [`watched`](Self::watched), by the names of the modules that
    /// met these vectors, as `nvfp4-gemv quantize --calibration` takes them.
    pub fn statistics(&self) -> Result<HashMap<String, Tensor>> {
        let watched = self.watched.as_ref().context("nothing was collected")?;
        let watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
        let means = watched.iter().map(|moments| {
            let sums = moments.sums.lock().unwrap_or_else(PoisonError::into_inner);
            let (sum, count) = sums.as_ref().context("no text was read")?;
            Ok((moments.modules.clone(), (sum / *count as f64)?))
        });
        means.collect()
    }

    /// A GGUF file, if the weights are one's.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(gguf) => Some(gguf),
            Source::Directory { .. } => None,
        }
    }

    /// Whether modules are NVFP4 where an arithmetic asks for it: not those that a directory has as dense ones.
    pub fn are_nvfp4(&self, modules: &[String]) -> bool {
        match &self.source {
            Source::Directory { nvfp4, .. } => modules.iter().all(|module| nvfp4.has(module)),
            Source::Gguf(_) => true,
        }
    }

    /// Modules as one linear layer, with their rows one behind the other.
    pub fn linear(&self, modules: &[String]) -> Result<Product> {
        match &self.source {
            Source::Directory { nvfp4, .. } => {
                if !self.are_nvfp4(modules) {
                    return self.dense_of(nvfp4.checkpoint(), modules);
                }
                let checkpoint = nvfp4.checkpoint();
                let layer = Linear::joined_from_checkpoint(checkpoint, modules, RowOrder::Stacked)?;
                self.of(layer)
            }
            Source::Gguf(gguf) => {
                let mut values = Vec::new();
                let mut k = 0;
                for module in modules {
                    let matrix = gguf.dense(module)?;
                    nothing_beside(module, matrix.notes())?;
                    k = matrix.k();
                    values.extend(values_of(&matrix)?);
                }
                let rows = values.len() / k.max(1);
                if self.arithmetic == Arithmetic::Original {
                    let weight = Tensor::from_vec(values, (rows, k), &self.device)?;
                    let layer = DenseLinear::new(weight, None);
                    let Some(watched) = &self.watched else {
                        return Ok(Product::Dense(layer));
                    };
                    let moments = Arc::new(Moments {
                        modules: modules.join("+"),
                        sums: Mutex::default(),
                    });
                    let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
                    watched.push(Arc::clone(&moments));
                    return Ok(Product::Watched(layer, moments));
                }
                let layer = Linear::from_dense(&values, rows, k);
                self.of(layer.with_context(|| modules.join(", "))?)
            }
        }
    }

    /// These weights in layers whose results do not depend on the other vectors of a call, or may. The bits of a
    /// token's logits are then the same in a pass by itself and beside others.
    #[must_use]
    pub fn with_batch_invariance(self, batch_invariant: bool) -> Self {
        Self {
            batch_invariant,
            ..self
        }
    }

    pub fn is_batch_invariant(&self) -> bool {
        self.batch_invariant
    }

    /// A layer in the arithmetic that was asked for.
    fn of(&self, layer: Linear) -> Result<Product> {
        let layer = layer.with_batch_invariance(self.batch_invariant);
        Ok(match self.arithmetic {
            Arithmetic::Nvfp4 => Product::Nvfp4(Nvfp4Linear::new(layer, &self.device)?),
            // Whoever computes rounds the vectors.
            Arithmetic::Nvfp4Bf16 | Arithmetic::Nvfp4F16 => {
                Product::Nvfp4(Nvfp4Linear::new(layer, &self.device)?)
            }
            Arithmetic::Nvfp4Bytes => {
                ensure!(self.device.is_cpu(), "vectors are bytes on the CPU alone");
                let layer = layer.with_accuracy(Accuracy::Bytes);
                Product::Nvfp4(Nvfp4Linear::new(layer, &self.device)?)
            }
            Arithmetic::Nvfp4Vectors => Product::Nvfp4Vectors(layer),
            Arithmetic::Reference | Arithmetic::Original => {
                let values = dequantised(&layer)?;
                let weight = Tensor::from_vec(values, (layer.rows(), layer.k()), &self.device)?;
                let bias = layer
                    .bias()
                    .map(|bias| Tensor::new(bias, &self.device))
                    .transpose()?;
                Product::Dense(DenseLinear::new(weight, bias))
            }
        })
    }

    /// Modules that are not NVFP4, with the scales that they have, as a dense layer.
    fn dense_of(&self, checkpoint: &Checkpoint, modules: &[String]) -> Result<Product> {
        let mut matrices = Vec::new();
        for module in modules {
            let matrix = checkpoint.dense(module)?;
            nothing_beside(module, matrix.notes())?;
            matrices.push(self.tensor_of(&matrix)?);
        }
        let weight = Tensor::cat(&matrices, 0)?;
        Ok(Product::Dense(DenseLinear::new(weight, None)))
    }

    /// A matrix in f32.
    fn tensor_of(&self, matrix: &Dense<'_>) -> Result<Tensor> {
        let shape = (matrix.rows(), matrix.k());
        Ok(Tensor::from_vec(values_of(matrix)?, shape, &self.device)?)
    }

    /// The MLP of a module: gate, up and down.
    pub fn mlp(&self, module: &str) -> Result<Mlp> {
        let path = |part: &str| format!("{module}.{part}");
        let gate_up = self.linear(&[path("gate_proj"), path("up_proj")])?;
        let down = self.linear(&[path("down_proj")])?;
        Ok(match (gate_up, down) {
            (Product::Nvfp4(gate_up), Product::Nvfp4(down)) => {
                Mlp::Nvfp4(match (gate_up.on_host(), down.on_host()) {
                    (Some(gate_up), Some(down)) => {
                        let (gate_up, down) = (gate_up.clone(), down.clone());
                        nvfp4_gemv::Mlp::joined(gate_up, RowOrder::Stacked, down)?.into()
                    }
                    _ => Nvfp4Mlp::joined(gate_up, down)?,
                })
            }
            (gate_up, down) => Mlp::Apart { gate_up, down },
        })
    }

    /// The experts of a module, behind their router.
    pub fn experts(&self, module: &str, config: &Config, experts: usize) -> Result<Moe> {
        let (router, top_k) = (self.router(module)?, config.top_k(experts)?);
        let normalised = config.norm_topk_prob;
        if let (Source::Directory { nvfp4, .. }, Arithmetic::Nvfp4) =
            (&self.source, self.arithmetic)
        {
            let parts = nvfp4.pp(module).pp("experts");
            let experts = parts.experts("gate_proj", "up_proj", "down_proj")?;
            return Ok(Moe::Nvfp4(Nvfp4Moe::new(
                router, experts, top_k, normalised,
            )?));
        }
        ensure!(
            self.gguf().is_none(),
            "experts of GGUF files are not loaded yet"
        );
        let experts = (0..experts).map(|expert| self.mlp(&format!("{module}.experts.{expert}")));
        Ok(Moe::Apart {
            router,
            experts: experts.collect::<Result<_>>()?,
            top_k,
            normalised,
        })
    }

    /// Says which experts of a module a token has.
    pub fn router(&self, module: &str) -> Result<DenseLinear> {
        Ok(DenseLinear::new(
            self.matrix(&format!("{module}.gate"))?,
            None,
        ))
    }

    /// The experts of a module, as the library has them.
    pub fn experts_on_host(&self, module: &str) -> Result<Experts> {
        let Source::Directory { nvfp4, .. } = &self.source else {
            bail!("experts of GGUF files are not loaded yet");
        };
        let (name, parts) = (format!("{module}.experts"), ["gate_proj", "up_proj"]);
        let (all, order) = (nvfp4.checkpoint(), RowOrder::Stacked);
        Ok(Experts::from_checkpoint(
            all,
            &name,
            &parts,
            order,
            "down_proj",
        )?)
    }

    /// A matrix that is no layer of its own: a table of embeddings, a router.
    pub fn matrix(&self, module: &str) -> Result<Tensor> {
        match &self.source {
            Source::Directory { nvfp4, .. } => self.tensor_of(&nvfp4.checkpoint().dense(module)?),
            Source::Gguf(gguf) => self.tensor_of(&gguf.dense(module)?),
        }
    }

    /// The factors of a norm.
    pub fn norm(&self, module: &str) -> Result<Tensor> {
        match &self.source {
            Source::Directory { dense, .. } => Ok(dense.pp(module).get_unchecked("weight")?),
            Source::Gguf(gguf) => {
                let values = gguf.vector(&format!("{module}.weight"))?;
                Ok(Tensor::new(values, &self.device)?)
            }
        }
    }

    /// A matrix that stands in the checkpoint as it is, quantised to an NVFP4 layer: the head.
    pub fn quantised(&self, matrix: &Tensor) -> Result<Product> {
        let (rows, k) = matrix.dims2()?;
        let values = matrix.flatten_all()?.to_vec1::<f32>()?;
        self.of(Linear::from_dense(&values, rows, k)?)
    }

    /// A matrix as the sum of two in NVFP4, the second being what the first lacks: a layer `[rows][2 K]` of both, for
    /// vectors that are given twice. It has 9 bits an element, and the accuracy of about 8.
    pub fn quantised_twice(&self, matrix: &Tensor) -> Result<Product> {
        let (rows, k) = matrix.dims2()?;
        let mut values = matrix.flatten_all()?.to_vec1::<f32>()?;
        let first = quantize(&values, rows, k, Dialect::ModelOpt, None)?;
        let of_first = dequantised(&Linear::from_quantized(first.clone())?)?;
        for (value, first) in values.iter_mut().zip(of_first) {
            *value -= first;
        }
        // The missing rest is smaller by a factor of 10 to 100, which its block scales have room for.
        let second = quantize(&values, rows, k, Dialect::ModelOpt, Some(first.global))?;
        let beside = |parts: [&[u8]; 2], each: usize| -> Vec<u8> {
            let [first, second] = parts.map(|part| part.chunks_exact(each));
            first
                .zip(second)
                .flat_map(|(a, b)| [a, b].concat())
                .collect()
        };
        self.of(Linear::from_quantized(Quantized {
            rows,
            k: 2 * k,
            codes: beside([&first.codes, &second.codes], k / 2),
            scales: beside([&first.scales, &second.scales], k / 16),
            global: first.global,
        })?)
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }
}

/// The elements of a matrix, row by row.
fn values_of(matrix: &Dense<'_>) -> Result<Vec<f32>> {
    let mut values = vec![0.0; matrix.rows() * matrix.k()];
    for (number, row) in values.chunks_mut(matrix.k().max(1)).enumerate() {
        matrix.row(number, row)?;
    }
    Ok(values)
}

/// Refuses what a dense layer would leave out.
fn nothing_beside(module: &str, notes: &[Note]) -> Result<()> {
    match notes {
        [] => Ok(()),
        [first, ..] => bail!("{module}, which is not NVFP4: {first}"),
    }
}

/// An MLP: as one module of NVFP4 layers, or of layers of any kind.
#[derive(Clone, Debug)]
pub enum Mlp {
    Nvfp4(Nvfp4Mlp),
    Apart { gate_up: Product, down: Product },
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Nvfp4(mlp) => mlp.forward(xs),
            Self::Apart { gate_up, down } => {
                let both = gate_up.forward(xs)?;
                let halves = both.chunk(2, candle_core::D::Minus1)?;
                down.forward(&(halves[0].silu()? * &halves[1])?)
            }
        }
    }
}

/// A mixture of experts: as one module of NVFP4 layers, or of MLPs of any kind.
#[derive(Clone, Debug)]
pub enum Moe {
    Nvfp4(Nvfp4Moe),
    Apart {
        router: DenseLinear,
        experts: Vec<Mlp>,
        top_k: usize,
        normalised: bool,
    },
}

impl Module for Moe {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let (router, experts, top_k, normalised) = match self {
            Self::Nvfp4(moe) => return moe.forward(xs),
            Self::Apart {
                router,
                experts,
                top_k,
                normalised,
            } => (router, experts, *top_k, *normalised),
        };
        let vectors = xs.reshape(((), xs.dim(candle_core::D::Minus1)?))?;
        let shares = candle_nn::ops::softmax_last_dim(&router.forward(&vectors)?)?;
        let mut results = Vec::new();
        for (number, shares) in shares.to_vec2::<f32>()?.into_iter().enumerate() {
            let mut ranked: Vec<usize> = (0..experts.len()).collect();
            ranked.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
            let chosen = &ranked[..top_k];
            let all: f32 = chosen.iter().map(|&expert| shares[expert]).sum();
            let x = vectors.narrow(0, number, 1)?;
            let mut sum: Option<Tensor> = None;
            for &expert in chosen {
                let share = shares[expert] / if normalised { all } else { 1.0 };
                let result = (experts[expert].forward(&x)? * f64::from(share))?;
                sum = Some(match sum {
                    Some(sum) => (sum + result)?,
                    None => result,
                });
            }
            results.push(sum.expect("at least one expert"));
        }
        Tensor::cat(&results, 0)?.reshape(xs.shape())
    }
}

/// A layer's weights in f32: exact but for the rounding of the last product.
fn dequantised(layer: &Linear) -> Result<Vec<f32>> {
    let weights = layer.weights();
    let shape = Shape::new(Dims {
        m: layer.rows(),
        n: 1,
        k: layer.k(),
        l: 1,
    })?;
    let (blocks, global) = (shape.blocks(), weights.global().multiplier());
    let layout = weights.layout();
    let mut values = Vec::with_capacity(layer.rows() * layer.k());
    for row in 0..layer.rows() {
        let factor = weights
            .row_alpha()
            .map_or(1.0, |alpha| f64::from(alpha[row]));
        for i in 0..layer.k() {
            let byte = weights.codes()[(row * layer.k() + i) / 2];
            let code = if i % 2 == 0 { byte & 15 } else { byte >> 4 };
            let scale = weights.scales()[layout.offset(row, i / 16, blocks)];
            let value =
                f64::from(format::e2m1::decode(code)) * f64::from(format::e4m3::decode(scale));
            let column = weights
                .column_alpha()
                .map_or(1.0, |alpha| f64::from(alpha[i]));
            values.push((value * global * factor * column) as f32);
        }
    }
    Ok(values)
}
