//! A model's shape, from its config.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nvfp4_gemv::checkpoint::Gguf;
use serde::Deserialize;

/// A decoder's shape, by the names of transformers' `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub model_type: String,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    #[serde(default)]
    num_key_value_heads: Option<usize>,
    #[serde(default)]
    head_dim: Option<usize>,
    pub rms_norm_eps: f64,
    #[serde(default)]
    rope_theta: Option<f64>,
    #[serde(default)]
    rope_scaling: Option<RopeScaling>,
    /// Where transformers has both since version 5.
    #[serde(default)]
    rope_parameters: Option<RopeScaling>,
    pub max_position_embeddings: usize,
    #[serde(default)]
    pub tie_word_embeddings: bool,
    #[serde(default)]
    pub num_experts: Option<usize>,
    #[serde(default)]
    pub num_experts_per_tok: Option<usize>,
    #[serde(default)]
    pub norm_topk_prob: bool,
    #[serde(default)]
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
    /// Of MLPs, of experts, and of the vocabulary: weights say these, if there are some.
    #[serde(default)]
    pub intermediate_size: Option<usize>,
    #[serde(default)]
    pub moe_intermediate_size: Option<usize>,
    #[serde(default)]
    pub vocab_size: Option<usize>,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default)]
    hidden_act: Option<String>,
}

/// Where a config says nothing.
const THETA: f64 = 10_000.0;

/// How rotary frequencies are stretched for longer texts.
#[derive(Clone, Debug, Deserialize)]
pub struct RopeScaling {
    #[serde(alias = "type", default)]
    rope_type: Option<String>,
    #[serde(default)]
    rope_theta: Option<f64>,
    #[serde(default)]
    factor: f64,
    #[serde(default)]
    low_freq_factor: f64,
    #[serde(default)]
    high_freq_factor: f64,
    #[serde(default)]
    original_max_position_embeddings: f64,
}

impl Config {
    /// Of a model's directory.
    pub fn of_directory(directory: &Path) -> Result<Self> {
        let path = directory.join("config.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Self::of_text(&text).with_context(|| path.display().to_string())
    }

    /// Of the text of a `config.json`.
    pub fn of_text(text: &str) -> Result<Self> {
        serde_json::from_str::<Self>(text)?.checked()
    }

    /// Of a GGUF file's metadata.
    pub fn of_gguf(gguf: &Gguf) -> Result<Self> {
        let architecture = gguf
            .architecture()
            .context("a GGUF file without an architecture")?;
        let key = |key: &str| format!("{architecture}.{key}");
        let integer = |name: &str| gguf.integer(&key(name)).map(|value| value as usize);
        let must = |name: &str| integer(name).with_context(|| format!("no {}", key(name)));
        let float = |name: &str| gguf.float(&key(name));
        ensure!(
            gguf.tensor("rope_freqs.weight").is_none(),
            "rope_freqs.weight, the rotary frequencies of a GGUF file, is not computed"
        );
        if let Some(scaling) = gguf
            .text(&key("rope.scaling.type"))
            .filter(|of| *of != "none")
        {
            bail!("rope.scaling.type {scaling:?} of GGUF files is not computed");
        }
        let config = Self {
            model_type: match architecture {
                "qwen3moe" => "qwen3_moe".into(),
                other => other.into(),
            },
            hidden_size: must("embedding_length")?,
            num_hidden_layers: must("block_count")?,
            num_attention_heads: must("attention.head_count")?,
            num_key_value_heads: Some(must("attention.head_count_kv")?),
            head_dim: integer("attention.key_length"),
            rms_norm_eps: float("attention.layer_norm_rms_epsilon").context("no epsilon")?,
            rope_theta: float("rope.freq_base"),
            rope_scaling: None,
            rope_parameters: None,
            max_position_embeddings: must("context_length")?,
            tie_word_embeddings: gguf.tensor("lm_head.weight").is_none(),
            num_experts: integer("expert_count"),
            num_experts_per_tok: integer("expert_used_count"),
            norm_topk_prob: true, // llama.cpp normalises Qwen3's
            decoder_sparse_step: None,
            mlp_only_layers: Vec::new(),
            intermediate_size: None,
            moe_intermediate_size: None,
            vocab_size: None,
            use_sliding_window: false,
            hidden_act: None,
        };
        config.checked()
    }

    fn checked(self) -> Result<Self> {
        let known = ["llama", "qwen3", "qwen3_moe"];
        ensure!(
            known.contains(&&*self.model_type),
            "model_type {:?} is not computed; {} are",
            self.model_type,
            known.join(", ")
        );
        let activation = self.hidden_act.as_deref().unwrap_or("silu");
        ensure!(
            activation == "silu",
            "hidden_act {activation:?} is not computed"
        );
        ensure!(!self.use_sliding_window, "a sliding window is not computed");
        let (heads, kv) = (self.num_attention_heads, self.kv_heads());
        ensure!(heads > 0, "no head");
        ensure!(
            kv > 0
                && heads.is_multiple_of(kv)
                && self.head_size() > 0
                && self.head_size().is_multiple_of(2),
            "{heads} heads of {} elements, and {kv} of keys and values",
            self.head_size()
        );
        for scaling in [&self.rope_scaling, &self.rope_parameters]
            .into_iter()
            .flatten()
        {
            let stretches = match scaling.rope_type.as_deref() {
                None | Some("default") => continue,
                Some("llama3") => [scaling.factor, scaling.low_freq_factor],
                Some(kind) => bail!("rope scaling {kind:?} is not computed"),
            };
            let widths = [
                scaling.high_freq_factor - scaling.low_freq_factor,
                scaling.original_max_position_embeddings,
            ];
            let are_usable = |of: [f64; 2]| of.into_iter().all(|x| x > 0.0 && x.is_finite());
            ensure!(
                are_usable(stretches) && are_usable(widths),
                "rope scaling {scaling:?} says no frequencies"
            );
        }
        Ok(self)
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Elements of a head.
    pub fn head_size(&self) -> usize {
        self.head_dim
            .unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Whether heads of queries and keys are normalised.
    pub fn has_head_norms(&self) -> bool {
        self.model_type.starts_with("qwen3")
    }

    /// How many experts a layer has, if it has some.
    pub fn experts(&self, layer: usize) -> Option<usize> {
        let step = self.decoder_sparse_step.unwrap_or(1);
        let is_sparse = step > 0 && (layer + 1).is_multiple_of(step);
        let is_dense = self.mlp_only_layers.contains(&layer) || !is_sparse;
        self.num_experts.filter(|&experts| experts > 0 && !is_dense)
    }

    /// How many experts a token has, of so many.
    pub fn top_k(&self, experts: usize) -> Result<usize> {
        let top_k = self.num_experts_per_tok.context("no num_experts_per_tok")?;
        ensure!(
            (1..=experts).contains(&top_k),
            "{top_k} of {experts} experts a token"
        );
        Ok(top_k)
    }

    /// Refuses texts that are longer than those that the model was made for.
    pub fn allows(&self, most: usize) -> Result<()> {
        ensure!(
            most <= self.max_position_embeddings,
            "the model was made for texts of {} tokens, not {most}",
            self.max_position_embeddings
        );
        Ok(())
    }

    /// The rotary frequencies of a head's pairs of elements. Source: transformers' `modeling_rope_utils.py`.
    pub fn frequencies(&self) -> Vec<f64> {
        let size = self.head_size();
        let parameters = self.rope_parameters.as_ref();
        let theta = parameters.and_then(|of| of.rope_theta).or(self.rope_theta);
        let theta = theta.unwrap_or(THETA);
        let plain = (0..size / 2).map(|i| theta.powf(-2.0 * i as f64 / size as f64));
        let scaling = parameters.or(self.rope_scaling.as_ref());
        let is_llama3 = |of: &&RopeScaling| of.rope_type.as_deref() == Some("llama3");
        let Some(scaling) = scaling.filter(is_llama3) else {
            return plain.collect();
        };
        let RopeScaling {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
            ..
        } = *scaling;
        let stretched = |frequency: f64| {
            let turns = original * frequency / std::f64::consts::TAU; // in the original's longest text
            let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (smooth + (1.0 - smooth) / factor)
        };
        plain.map(stretched).collect()
    }
}
