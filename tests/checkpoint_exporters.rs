//! Checkpoints that exporters' own packages made, against the packages' own dequantisation. `tests/data/exporters` says
//! which, and has the scripts.

use std::path::PathBuf;
use std::sync::Arc;

use nvfp4_gemv::checkpoint::{
    Checkpoint, CheckpointError, Dialect, Exporter, Joined, Layer, Module, ModuleKind, Note,
    RowOrder,
};
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::file::{Tensor, TensorFile};
use nvfp4_gemv::format::{e2m1, e4m3};
use nvfp4_gemv::reference::{Reference, error_bound};
use nvfp4_gemv::{
    Activation, BLOCK, FloatType, GlobalScale, Linear, Output, ScaleLayout, Vectors,
    convert_scales, reference,
};

/// Directories, and those whose `.expected.safetensors` has the weights.
const ALL: [(&str, &str); 13] = [
    ("modelopt-nvfp4", "modelopt-nvfp4"),
    ("modelopt-w4a16", "modelopt-nvfp4"),
    ("modelopt-awq", "modelopt-awq"),
    ("modelopt-mixed", "modelopt-mixed"),
    ("modelopt-experts", "modelopt-experts"),
    ("compressed-tensors-nvfp4", "compressed-tensors-nvfp4"),
    ("compressed-tensors-nvfp4a16", "compressed-tensors-nvfp4a16"),
    ("compressed-tensors-mixed", "compressed-tensors-mixed"),
    ("compressed-tensors-experts", "compressed-tensors-experts"),
    ("comfyui-tensors", "comfyui-tensors"),
    ("comfyui-metadata", "comfyui-metadata"),
    ("torchao", "torchao"),
    ("mlx", "mlx"),
];

/// Matrices of what a package dequantised; the others are experts that are stacked in one tensor.
fn matrices(expected: &TensorFile) -> Vec<Tensor<'_>> {
    let all = expected.tensors();
    all.filter(|tensor| tensor.shape().len() == 2).collect()
}

fn at(name: &str) -> PathBuf {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/exporters");
    PathBuf::from(data).join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(at(name)).unwrap()
}

fn expected(name: &str) -> TensorFile {
    TensorFile::open(at(&format!("{name}.expected.safetensors"))).unwrap()
}

/// A layer's weights as the exporters dequantise them, in f32: a block's scale is multiplied by the global scale, or
/// divided by it, and rounded; a code times that is rounded again.
fn dequantised(layer: &Layer<'_>) -> Vec<f32> {
    let (rows, k) = (layer.rows(), layer.k());
    let scales = convert_scales(
        layer.scales(),
        layer.layout(),
        ScaleLayout::Linear,
        rows,
        k,
        1,
    )
    .unwrap();
    let element = |at: usize| {
        let scale = e4m3::decode(scales[at / BLOCK]);
        let scale = match layer.global() {
            GlobalScale::Multiplier(global) => scale * global,
            GlobalScale::Divisor(global) => scale / global,
        };
        e2m1::decode(e2m1::unpack(layer.codes(), at)) * scale
    };
    (0..rows * k).map(element).collect()
}

#[test]
fn every_layer_is_what_its_exporter_dequantises() {
    for (name, of) in ALL {
        let (checkpoint, expected) = (open(name), expected(of));
        let names: Vec<&str> = checkpoint.layers().collect();
        let all: Vec<&str> = matrices(&expected).iter().map(Tensor::name).collect();
        assert_eq!(names, all, "{name}");
        for layer in names {
            let expected = expected.get(layer).unwrap();
            let layer = checkpoint.layer(layer).unwrap();
            assert_eq!(expected.shape(), [layer.rows(), layer.k()], "{name}");
            let expected = expected.to_f32().unwrap();
            assert!(expected.iter().any(|weight| *weight != 0.0));
            // Every bit, but for the sign of zeros.
            assert_eq!(dequantised(&layer), expected, "{name}: {}", layer.name());
        }
    }
}

/// Numbers between -1 and 1.
fn vectors(n: usize, k: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(k as u64);
    (0..n * k).map(|_| rng.f32() * 2.0 - 1.0).collect()
}

/// `x` times dequantised weights [rows][k] in f64, with the factors of columns that `x` is multiplied by first.
fn product(weights: &[f32], x: &[f32], k: usize, column_alpha: Option<&[f32]>) -> Reference {
    let factor = |at: usize| column_alpha.map_or(1.0, |alpha| f64::from(alpha[at]));
    let (mut y, mut magnitude) = (Vec::new(), Vec::new());
    for x in x.chunks_exact(k) {
        for row in weights.chunks_exact(k) {
            let terms = row.iter().zip(x).enumerate();
            let terms = terms.map(|(at, (w, x))| f64::from(*w) * f64::from(*x) * factor(at));
            y.push(terms.clone().sum());
            magnitude.push(terms.map(f64::abs).sum());
        }
    }
    Reference { y, magnitude }
}

/// Roundings of a dequantised weight: the block's scale times the global one, the code times that; and a divisor that
/// became a multiplier.
const OF_A_WEIGHT: u32 = 3;

#[track_caller]
fn near(y: impl IntoIterator<Item = f64>, expected: &Reference, roundings: u32, what: &str) {
    let pairs = expected.y.iter().zip(&expected.magnitude);
    let mut count = 0;
    for (y, (expected, magnitude)) in y.into_iter().zip(pairs) {
        let bound = error_bound(
            *expected,
            *magnitude,
            roundings + OF_A_WEIGHT,
            FloatType::F32,
        );
        assert!(
            (y - expected).abs() <= bound,
            "{what}: {y} {expected} {bound}"
        );
        count += 1;
    }
    assert_eq!(count, expected.y.len(), "{what}");
}

/// Through the layer type, with every kind of vectors that needs no scale: bias, layouts and factors included.
#[test]
fn every_layer_computes_its_exporters_product() {
    for (name, of) in ALL {
        let (checkpoint, expected) = (Arc::new(open(name)), expected(of));
        for layer in matrices(&expected) {
            let weights = layer.to_f32().unwrap();
            let linear = Linear::from_checkpoint(&checkpoint, layer.name()).unwrap();
            let (k, n) = (linear.k(), 3);
            let x = vectors(n, k);
            let bias = linear.bias().map(<[f32]>::to_vec);
            let added = |at: usize| {
                bias.as_ref()
                    .map_or(0.0, |bias| f64::from(bias[at % bias.len()]))
            };
            let factors = linear.column_alpha().map(<[f32]>::to_vec);
            let truth = product(&weights, &x, k, factors.as_deref());
            let truth = truth.plus((0..n * linear.rows()).map(added));
            let mut y = vec![0.0f32; n * linear.rows()];
            linear
                .forward(&Vectors::of(&x), n, Output::of(&mut y))
                .unwrap();
            let shape = linear.shape(n).unwrap();
            // A vector's element times its factor is one more rounding, and the sum with the bias another.
            let roundings = Implementation::best().roundings(&shape, Activation::F32) + 2;
            let what = format!("{name}: {}", layer.name());
            near(y.iter().map(|y| f64::from(*y)), &truth, roundings, &what);
        }
    }
}

/// Layers of a joined matrix, one after the other.
#[track_caller]
fn is_joined(joined: Joined<'_>, expected: &TensorFile, layers: &[String]) {
    let weights = layers
        .iter()
        .flat_map(|layer| expected.get(layer).unwrap().to_f32().unwrap());
    let weights: Vec<f32> = weights.collect();
    let gathered = joined.gather();
    let shape = gathered.shape();
    assert_eq!(weights.len(), shape.l() * shape.m() * shape.k());
    let x = vectors(shape.l(), shape.k());
    let y = reference::gemv(&shape, &gathered.weights().unwrap(), &Vectors::of(&x)).unwrap();
    let matrices = weights.chunks_exact(shape.m() * shape.k());
    let truths = matrices.zip(x.chunks_exact(shape.k()));
    let truths: Vec<_> = truths
        .map(|(w, x)| product(w, x, shape.k(), gathered.column_alpha()))
        .collect();
    let truth = Reference {
        y: truths.iter().flat_map(|truth| truth.y.clone()).collect(),
        magnitude: truths
            .iter()
            .flat_map(|truth| truth.magnitude.clone())
            .collect(),
    };
    near(y.y, &truth, 1, &layers[0]);
}

/// MLX stacks experts, and gives them no global scale: a code times its block's scale is the weight.
#[test]
fn experts_of_mlx_are_what_it_dequantises() {
    let (checkpoint, expected) = (open("mlx"), expected("mlx"));
    let (experts, part) = ("layers.0.mlp.switch_mlp", "up_proj");
    let expected = expected.get(&format!("{experts}.{part}")).unwrap();
    let joined = checkpoint.experts(experts, &[part], RowOrder::Stacked);
    let joined = joined.unwrap().gather();
    let shape = joined.shape();
    assert_eq!([shape.l(), shape.m(), shape.k()], expected.shape());
    assert_eq!(joined.global(), GlobalScale::ONE);
    let element = |at: usize| {
        let scale = e4m3::decode(joined.scales()[at / BLOCK]);
        e2m1::decode(e2m1::unpack(joined.codes(), at)) * scale
    };
    let weights: Vec<f32> = (0..expected.elements()).map(element).collect();
    assert_eq!(weights, expected.to_f32().unwrap());
    // One of them alone is no layer.
    let error = checkpoint.layer(&format!("{experts}.{part}")).unwrap_err();
    assert!(
        matches!(error, CheckpointError::StackedExperts { .. }),
        "{error}"
    );
}

#[test]
fn fused_layers_and_experts_are_joined() {
    for (name, of) in ALL {
        let (checkpoint, expected) = (open(name), expected(of));
        let has = |layer: &str| expected.get(layer).is_some();
        for (parent, parts) in [
            (
                "model.layers.0.self_attn",
                &["q_proj", "k_proj", "v_proj"][..],
            ),
            ("model.layers.0.mlp", &["gate_proj", "up_proj"]),
        ] {
            let layers: Vec<String> = parts
                .iter()
                .map(|part| format!("{parent}.{part}"))
                .collect();
            if has(&layers[0]) {
                is_joined(
                    checkpoint.joined(&layers, RowOrder::Stacked).unwrap(),
                    &expected,
                    &layers,
                );
            }
        }
        let experts = "model.layers.0.mlp.experts";
        if !has(&format!("{experts}.0.gate_proj")) {
            continue;
        }
        for parts in [&["gate_proj", "up_proj"][..], &["down_proj"]] {
            let joined = checkpoint
                .experts(experts, parts, RowOrder::Stacked)
                .unwrap();
            assert_eq!(joined.shape().l(), 4);
            let layers = (0..4).flat_map(|e| {
                parts
                    .iter()
                    .map(move |part| format!("{experts}.{e}.{part}"))
            });
            is_joined(joined, &expected, &layers.collect::<Vec<_>>());
        }
    }
}

/// Exporters' configs agree with their tensors.
#[test]
fn what_is_listed_is_what_configs_say() {
    for (name, _) in ALL {
        let checkpoint = open(name);
        // MLX's experts are stacked, which is said of all.
        let stacked = usize::from(name == "mlx");
        assert_eq!(
            checkpoint.notes().len(),
            stacked,
            "{name}: {:?}",
            checkpoint.notes()
        );
        let modules = checkpoint.modules();
        for module in &modules {
            // MLX's other modes, which its file has beside.
            let is_other = name == "mlx" && ["affine", "eight"].contains(&module.name());
            let is_refused = matches!(module.kind(), ModuleKind::Refused(_));
            assert_eq!(is_refused, is_other, "{name}: {module:?}");
            // AWQ's factors of most layers are in the norms before them, which a config does not say.
            let is_folded =
                |note: &Note| name == "modelopt-awq" && note.to_string().contains("folded");
            let is_bias = |note: &Note| matches!(note, Note::NotAdded { .. }) || is_folded(note);
            assert!(
                module.notes().iter().all(is_bias),
                "{name}: {:?}",
                module.notes()
            );
        }
        let kinds = |of: &str| {
            let has = |module: &&Module<'_>| module.name().contains(of);
            let kinds = modules
                .iter()
                .filter(has)
                .map(|module| module.kind().name());
            kinds.collect::<Vec<_>>()
        };
        match name {
            "modelopt-mixed" | "compressed-tensors-mixed" => {
                assert_eq!(kinds("self_attn"), ["FP8"; 4]);
                assert_eq!(kinds("mlp"), ["NVFP4"; 3]);
            }
            "modelopt-w4a16" | "compressed-tensors-nvfp4a16" => {
                assert_eq!(kinds("_proj"), ["NVFP4 W4A16"; 7]);
            }
            "modelopt-experts" | "compressed-tensors-experts" => {
                assert_eq!(kinds("mlp.gate"), ["BF16"]);
                assert_eq!(kinds("experts"), ["NVFP4"; 12]);
            }
            "torchao" => assert_eq!(kinds("blocks"), ["NVFP4", "NVFP4 W4A16", "NVFP4 W4A16"]),
            _ => {}
        }
        let exporter = match name.split('-').next() {
            Some("compressed") => Dialect::CompressedTensors.into(),
            Some("torchao") => Exporter::TorchAo,
            Some("mlx") => Exporter::Mlx,
            _ => Dialect::ModelOpt.into(),
        };
        for layer in checkpoint.layers() {
            assert_eq!(checkpoint.layer(layer).unwrap().exporter(), exporter);
        }
    }
}
