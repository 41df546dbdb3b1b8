//! Small random models, in files.

use std::fs;
use std::path::Path;

use nvfp4_gemv::Dialect;
use nvfp4_gemv::quantize::quantize;
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use serde_json::{Value, json};

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv: usize,
    /// Elements of a head.
    pub(crate) head: usize,
    pub(crate) between: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    pub(crate) experts: usize,
}

type Tensors = Vec<(String, NewTensor<'static>)>;

/// Random numbers.
pub(crate) struct Random(pub(crate) fastrand::Rng);

impl Random {
    pub(crate) fn numbers(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| size * (self.0.f32() - 0.5)).collect()
    }

    fn dense(&mut self, tensors: &mut Tensors, name: &str, shape: &[usize], size: f32, plus: f32) {
        let values = self.numbers(shape.iter().product(), size);
        let values: Vec<f32> = values.iter().map(|value| value + plus).collect();
        tensors.push((format!("{name}.weight"), NewTensor::f32(shape, &values)));
    }

    fn nvfp4(
        &mut self,
        tensors: &mut Tensors,
        name: &str,
        [rows, k]: [usize; 2],
        dialect: Dialect,
    ) {
        let values = self.numbers(rows * k, 0.4);
        let q = quantize(&values, rows, k, dialect, None).unwrap();
        let tensor = |dtype, columns, bytes: Vec<u8>| NewTensor {
            dtype,
            shape: vec![rows, columns],
            bytes: bytes.into(),
        };
        let global = NewTensor::f32(&[1], &[q.global.stored()]);
        for (suffix, tensor) in [
            (dialect.codes(), tensor(Dtype::U8, k / 2, q.codes)),
            (dialect.scales(), tensor(Dtype::F8_E4M3, k / 16, q.scales)),
            (dialect.global(), global),
        ] {
            tensors.push((format!("{name}.{suffix}"), tensor));
        }
    }
}

pub(crate) fn config(model: &str, sizes: &Sizes) -> Value {
    json!({
        "model_type": model,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv,
        "head_dim": sizes.head,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "num_experts": if model == "qwen3_moe" { sizes.experts } else { 0 },
        "num_experts_per_tok": 2,
        "norm_topk_prob": true,
        "mlp_only_layers": [1],
    })
}

/// Writes a model to a directory.
pub(crate) fn write(directory: &Path, model: &str, dialect: Dialect, sizes: &Sizes) {
    let mut random = Random(fastrand::Rng::with_seed(11));
    let mut tensors = Vec::new();
    random.dense(
        &mut tensors,
        "model.embed_tokens",
        &[sizes.vocabulary, sizes.hidden],
        2.0,
        0.0,
    );
    random.dense(
        &mut tensors,
        "lm_head",
        &[sizes.vocabulary, sizes.hidden],
        1.0,
        0.0,
    );
    random.dense(&mut tensors, "model.norm", &[sizes.hidden], 0.2, 1.0);
    for layer in 0..sizes.layers {
        let path = |part: &str| format!("model.layers.{layer}.{part}");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            random.dense(&mut tensors, &path(norm), &[sizes.hidden], 0.2, 1.0);
        }
        for (part, rows) in [("q", sizes.heads), ("k", sizes.kv), ("v", sizes.kv)] {
            let name = path(&format!("self_attn.{part}_proj"));
            random.nvfp4(
                &mut tensors,
                &name,
                [rows * sizes.head, sizes.hidden],
                dialect,
            );
        }
        random.nvfp4(
            &mut tensors,
            &path("self_attn.o_proj"),
            [sizes.hidden, sizes.heads * sizes.head],
            dialect,
        );
        if model.starts_with("qwen3") {
            for norm in ["self_attn.q_norm", "self_attn.k_norm"] {
                random.dense(&mut tensors, &path(norm), &[sizes.head], 0.2, 1.0);
            }
        }
        let mut mlp = |name: &str| {
            for part in ["gate_proj", "up_proj"] {
                let name = format!("{name}.{part}");
                random.nvfp4(&mut tensors, &name, [sizes.between, sizes.hidden], dialect);
            }
            random.nvfp4(
                &mut tensors,
                &format!("{name}.down_proj"),
                [sizes.hidden, sizes.between],
                dialect,
            );
        };
        if model == "qwen3_moe" && layer != 1 {
            (0..sizes.experts).for_each(|expert| mlp(&path(&format!("mlp.experts.{expert}"))));
            random.dense(
                &mut tensors,
                &path("mlp.gate"),
                &[sizes.experts, sizes.hidden],
                1.0,
                0.0,
            );
        } else {
            mlp(&path("mlp"));
        }
    }
    file::write(&directory.join("model.safetensors"), tensors, None).unwrap();
    fs::write(
        directory.join("config.json"),
        config(model, sizes).to_string(),
    )
    .unwrap();
}
