//! Layers of files, beside candle's `VarBuilder`.

use std::sync::Arc;

use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use nvfp4_gemv::checkpoint::{Checkpoint, CheckpointError};
use nvfp4_gemv::{Activation, Experts, FloatType, Gate, Linear, Output, RowOrder, Vectors};
use nvfp4_gemv_candle::{Error, Nvfp4Builder, Nvfp4Linear, Nvfp4Mlp};
use tempfile::TempDir;

use crate::bound::{self, Whose, exactly, numbers, share_outside};
use crate::files::{File, layer, matrix, tensor, values};

const K: usize = 64;
const BETWEEN: usize = 96;

/// A layer of a model: attention with a bias for q and v, norms, an MLP, and a mixture of four experts, twice.
fn model() -> (TempDir, Nvfp4Builder) {
    let mut file = File::default();
    let of = |name: &str| format!("model.layers.0.{name}");
    for (seed, name, rows) in [(1, "q_proj", 48), (2, "k_proj", 16), (3, "v_proj", 16)] {
        file.add_layer(&of(&format!("self_attn.{name}")), matrix(seed, rows, K));
    }
    file.add_floats(&of("self_attn.q_proj.bias"), &[48], &values(4, 48));
    file.add_floats(&of("self_attn.v_proj.bias"), &[16], &values(5, 16));
    file.add_floats(&of("self_attn.o_proj.weight"), &[K, 48], &values(6, K * 48));
    file.add_floats(&of("input_layernorm.weight"), &[K], &values(7, K));
    for (seed, name, rows, k) in parts() {
        file.add_layer(&of(&format!("mlp.{name}")), matrix(seed, rows, k));
        for expert in 0..4 {
            let name = of(&format!("own.{expert}.{name}"));
            file.add_layer(&name, matrix(seed + expert, rows, k));
        }
        let stack = (0..4)
            .map(|expert| matrix(seed + expert, rows, k))
            .collect();
        file.add_stack(&of(&format!("experts.{name}")), stack);
    }
    let directory = tempfile::tempdir().unwrap();
    file.write(&directory.path().join("model.safetensors"));
    let builder = Nvfp4Builder::open(directory.path(), &Device::Cpu).unwrap();
    (directory, builder)
}

fn parts() -> [(u64, &'static str, usize, usize); 3] {
    [
        (10, "gate_proj", BETWEEN, K),
        (20, "up_proj", BETWEEN, K),
        (30, "down_proj", K, BETWEEN),
    ]
}

fn xs() -> Tensor {
    tensor(99, &[3, K], DType::F32)
}

fn of_library(layer: Linear, xs: &Tensor) -> Vec<f64> {
    let module = Nvfp4Linear::new(layer, &Device::Cpu).unwrap();
    numbers(&module.forward(xs).unwrap())
}

#[test]
fn one_directory_gives_nvfp4_layers_and_dense_tensors() {
    let (_directory, builder) = model();
    // SAFETY: nobody writes the file.
    let dense =
        unsafe { VarBuilder::from_mmaped_safetensors(&builder.files(), DType::F32, &Device::Cpu) };
    let dense = dense.unwrap().pp("model.layers.0");
    let nvfp4 = builder.pp("model").pp("layers.0");
    assert!(nvfp4.has("mlp.gate_proj") && nvfp4.pp("self_attn").has("q_proj"));
    assert!(!nvfp4.has("self_attn.o_proj") && !nvfp4.has("mlp"));

    let norm = candle_nn::rms_norm(K, 1e-6, dense.pp("input_layernorm")).unwrap();
    assert_eq!(norm.forward(&xs()).unwrap().dims(), [3, K]);
    let o = candle_nn::linear_no_bias(48, K, dense.pp("self_attn.o_proj")).unwrap();
    assert_eq!(o.weight().dims(), [K, 48]);
    // The same layer by the library alone, with its bias.
    let checkpoint: &Arc<Checkpoint> = builder.checkpoint();
    let q = Linear::from_checkpoint(checkpoint, "model.layers.0.self_attn.q_proj").unwrap();
    assert!(q.bias().is_some());
    let module = nvfp4.linear("self_attn.q_proj").unwrap();
    assert_eq!(
        numbers(&module.forward(&xs()).unwrap()),
        of_library(q, &xs())
    );
    // `pp` of a layer's own name does too.
    let module = nvfp4.pp("self_attn.q_proj").linear("").unwrap();
    assert_eq!((module.rows(), module.k()), (48, K));
}

#[test]
fn joined_layers_give_what_each_gives_with_its_bias() {
    let (_directory, builder) = model();
    let attention = builder.pp("model.layers.0.self_attn");
    let qkv = attention.joined(&["q_proj", "k_proj", "v_proj"]).unwrap();
    assert_eq!((qkv.rows(), qkv.k()), (80, K));
    let ys = qkv.forward(&xs()).unwrap();
    let mut before = 0;
    for (seed, rows, bias) in [(1, 48, Some(4)), (2, 16, None), (3, 16, Some(5))] {
        let mut layer = layer(seed, rows, K);
        if let Some(seed) = bias {
            layer = layer.with_bias(values(seed, rows)).unwrap();
        }
        let ours = Whose::Ours(Activation::F32, FloatType::F32);
        let near = bound::forward(&layer, &exactly(&xs()), ours);
        let part = ys.narrow(1, before, rows).unwrap().contiguous().unwrap();
        assert_eq!(share_outside(&part, &near), 0.0, "rows from {before}");
        before += rows;
    }
}

#[test]
fn an_mlp_is_loaded_by_its_modules_name() {
    let (_directory, builder) = model();
    let module = builder.pp("model.layers.0.mlp").mlp().unwrap();
    let [gate, up, down] = parts().map(|(seed, _, rows, k)| layer(seed, rows, k));
    let expected = Nvfp4Mlp::from(nvfp4_gemv::Mlp::new(gate, up, down).unwrap());
    let [found, expected] = [module, expected].map(|of| numbers(&of.forward(&xs()).unwrap()));
    assert_eq!(found, expected);
}

/// Gemma's MLP with SiLU would be another model's.
#[test]
fn mlps_and_experts_have_the_gate_that_the_config_names() {
    let (directory, silu) = model();
    let config = directory.path().join("config.json");
    let of = |builder: &Nvfp4Builder, gate: Option<Gate>| {
        let layer_0 = builder.pp("model.layers.0");
        let mut mlp = layer_0.pp("mlp").mlp().unwrap();
        let own = layer_0.pp("own");
        let mut experts = own.experts("gate_proj", "up_proj", "down_proj").unwrap();
        if let Some(gate) = gate {
            mlp = mlp.with_gate(gate).unwrap();
            experts = experts.with_gate(gate).unwrap();
        }
        let ids = Tensor::full(2u32, (3, 1), &Device::Cpu).unwrap();
        let weights = Tensor::full(1f32, (3, 1), &Device::Cpu).unwrap();
        let of_experts = experts.forward(&xs(), &ids, &weights).unwrap();
        [mlp.forward(&xs()).unwrap(), of_experts].map(|ys| numbers(&ys))
    };
    std::fs::write(&config, r#"{"hidden_act": "gelu_pytorch_tanh"}"#).unwrap();
    let gelu = Nvfp4Builder::open(directory.path(), &Device::Cpu).unwrap();
    let found = of(&gelu, None);
    assert_eq!(found, of(&silu, Some(Gate::GeluTanh)));
    assert_ne!(found, of(&silu, None));
    assert_eq!(of(&silu, None), of(&gelu, Some(Gate::Silu)));

    std::fs::write(&config, r#"{"hidden_act": "relu2"}"#).unwrap();
    let relu = Nvfp4Builder::open(directory.path(), &Device::Cpu).unwrap();
    let layer_0 = relu.pp("model.layers.0");
    let errors = [
        layer_0.pp("mlp").mlp().unwrap_err(),
        layer_0
            .pp("own")
            .experts("gate_proj", "up_proj", "down_proj")
            .unwrap_err(),
    ];
    for error in errors {
        let expected = matches!(
            &error,
            Error::Checkpoint(CheckpointError::Config { says, .. }) if says.contains("relu2")
        );
        assert!(expected, "{error}");
    }
}

#[test]
fn experts_are_loaded_whether_they_are_stacked_or_not() {
    let (_directory, builder) = model();
    let layer_0 = builder.pp("model.layers.0");
    let ids = Tensor::new(&[[3u32, 1], [0, 2], [1, 3]], &Device::Cpu).unwrap();
    let weights = tensor(3, &[3, 2], DType::F32);
    let [own, stacked] = ["own", "experts"].map(|name| {
        let experts = layer_0
            .pp(name)
            .experts("gate_proj", "up_proj", "down_proj")
            .unwrap();
        assert_eq!((experts.number(), experts.k(), experts.rows()), (4, K, K));
        numbers(&experts.forward(&xs(), &ids, &weights).unwrap())
    });
    // A factor of each row stands for an expert's global scale where experts are stacked: one rounding more.
    let largest = own.iter().fold(0f64, |most, y| most.max(y.abs()));
    assert!(largest > 0.01);
    for (a, b) in own.iter().zip(&stacked) {
        assert!((a - b).abs() <= 1e-5 * largest, "{a} {b}");
    }
}

#[test]
fn what_is_not_there_and_what_would_be_left_out_are_errors() {
    let (directory, builder) = model();
    let layer_0 = builder.pp("model.layers.0");
    let no_layer = |result: Result<(), Error>| match result.unwrap_err() {
        Error::Checkpoint(CheckpointError::NoLayer { .. }) => {}
        other => panic!("{other}"),
    };
    no_layer(layer_0.linear("self_attn.qkv_proj").map(drop));
    no_layer(layer_0.joined(&["mlp.gate_proj", "mlp.gate"]).map(drop));
    no_layer(layer_0.pp("self_attn").mlp().map(drop));
    // A layer that is not quantised has words of its own.
    assert!(layer_0.linear("self_attn.o_proj").is_err());
    assert!(layer_0.joined(&["mlp.gate_proj", "mlp.down_proj"]).is_err());
    assert!(
        layer_0
            .pp("own")
            .experts("gate_proj", "up_proj", "gate_proj")
            .is_err()
    );
    assert!(Nvfp4Builder::open(directory.path().join("other"), &Device::Cpu).is_err());

    let mut file = File::default();
    for (seed, name, rows, k) in parts() {
        file.add_stack(
            &format!("experts.{name}"),
            vec![matrix(seed, rows, k), matrix(seed + 1, rows, k)],
        );
    }
    file.add_floats("experts.down_proj_bias", &[2, K], &values(1, 2 * K));
    let path = directory.path().join("biased.safetensors");
    file.write(&path);
    let biased = Nvfp4Builder::open(&path, &Device::Cpu)
        .unwrap()
        .pp("experts");
    // Biases are added, as the library does.
    let experts = biased.experts("gate_proj", "up_proj", "down_proj").unwrap();
    let (xs, ids) = (
        vec![0.5f32; K],
        Tensor::new(&[[1u32]], &Device::Cpu).unwrap(),
    );
    let weights = Tensor::new(&[[2.0f32]], &Device::Cpu).unwrap();
    let x = Tensor::from_slice(&xs, (1, K), &Device::Cpu).unwrap();
    let found = experts.forward(&x, &ids, &weights).unwrap();
    let parts = ["gate_proj", "up_proj"];
    let (checkpoint, order) = (biased.checkpoint(), RowOrder::Stacked);
    let library = Experts::from_checkpoint(checkpoint, "experts", &parts, order, "down_proj");
    let mut y = vec![0.0f32; K];
    let (x, output) = (Vectors::of(&xs), Output::of(&mut y));
    library
        .unwrap()
        .forward(&x, 1, &[1], &[2.0], output)
        .unwrap();
    assert_eq!(found.to_vec2::<f32>().unwrap()[0], y);
}

/// AWQ's factors of columns, which vectors are multiplied by: in a layer alone and in joined ones.
#[test]
fn factors_of_columns_are_multiplied() {
    let directory = tempfile::tempdir().unwrap();
    let factors: Vec<f32> = values(9, K).iter().map(|v| 1.0 + v).collect();
    let mut file = File::default();
    for (seed, name) in [(1, "q_proj"), (2, "k_proj")] {
        file.add_layer(name, matrix(seed, 32, K));
        file.add_floats(&format!("{name}.pre_quant_scale"), &[K], &factors);
    }
    let path = directory.path().join("awq.safetensors");
    file.write(&path);
    let builder = Nvfp4Builder::open(&path, &Device::Cpu).unwrap();
    let scaled = (xs().broadcast_mul(&Tensor::new(&factors[..], &Device::Cpu).unwrap())).unwrap();
    let both = builder.joined(&["q_proj", "k_proj"]).unwrap();
    let both = both.forward(&xs()).unwrap();
    for (seed, name, from) in [(1, "q_proj", 0), (2, "k_proj", 32)] {
        let expected = of_library(layer(seed, 32, K), &scaled);
        let alone = numbers(&builder.linear(name).unwrap().forward(&xs()).unwrap());
        let joined = numbers(&both.narrow(1, from, 32).unwrap());
        for (expected, (alone, joined)) in expected.iter().zip(alone.iter().zip(&joined)) {
            assert!((expected - alone).abs() < 1e-5 && (expected - joined).abs() < 1e-5);
        }
    }
}
