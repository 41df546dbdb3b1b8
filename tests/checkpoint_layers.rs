//! Layers whose product is more than codes, block scales and global scale say, or seems to be: refused by name, or
//! computed with a note.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use nvfp4_gemv::checkpoint::{
    Checkpoint, CheckpointError, Dialect, INDEX_FILE, ModuleKind, Note, RowOrder,
};
use nvfp4_gemv::file::FileError;
use nvfp4_gemv::{GlobalScale, Linear, Options, Output, ScaleLayout, Vectors, gemv, half};
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Pairs of a label and what is said of it.
macro_rules! pairs {
    ($($label:expr => $says:expr,)*) => { [$(($label, $says)),*] };
}

/// Demands that the layer is refused as [`Files::refused`] does, with an error of this kind.
macro_rules! refused {
    ($files:expr, $parts:expr => $kind:ident) => {
        let error = $files.refused($parts);
        assert!(matches!(error, CheckpointError::$kind { .. }), "{error}");
    };
}

/// A tensor of one number.
fn one(value: f32) -> NewTensor<'static> {
    NewTensor::f32(&[1], &[value])
}

fn zeros(dtype: Dtype, shape: &[usize]) -> NewTensor<'static> {
    NewTensor::zeros(dtype, shape)
}

/// A checkpoint that is changed before it is opened.
struct Files {
    directory: TempDir,
    tensors: Vec<(String, NewTensor<'static>)>,
    metadata: HashMap<String, String>,
}

impl Files {
    /// A layer `a.l` [128, 128] of a dialect, with all its tensors and no label.
    fn new(dialect: Dialect) -> Self {
        Self::of_rows(dialect, 128)
    }

    /// The same of so many rows.
    fn of_rows(dialect: Dialect, rows: usize) -> Self {
        let mut files = Self {
            directory: tempfile::tempdir().unwrap(),
            tensors: Vec::new(),
            metadata: HashMap::new(),
        };
        files.layer("a.l", dialect, rows);
        files
    }

    fn layer(&mut self, name: &str, dialect: Dialect, rows: usize) {
        let mut add =
            |suffix: &str, tensor| self.tensors.push((format!("{name}.{suffix}"), tensor));
        add(
            dialect.codes(),
            NewTensor::new(Dtype::U8, &[rows, 64], vec![0x12; rows * 64]),
        );
        add(
            dialect.scales(),
            NewTensor::new(Dtype::F8_E4M3, &[rows, 8], vec![0x38; rows * 8]),
        );
        add(dialect.global(), one(0.5));
        add(dialect.input_global(), one(0.25));
    }

    fn with(mut self, name: &str, tensor: NewTensor<'static>) -> Self {
        self.tensors.retain(|(other, _)| other != name);
        self.tensors.push((name.into(), tensor));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|(other, _)| other != name);
        self
    }

    fn metadata(mut self, entry: &str, text: impl ToString) -> Self {
        self.metadata.insert(entry.into(), text.to_string());
        self
    }

    /// A file beside the tensors.
    fn beside(self, name: &str, text: impl ToString) -> Self {
        std::fs::write(self.directory.path().join(name), text.to_string()).unwrap();
        self
    }

    fn write(&self) -> PathBuf {
        let path = self.directory.path().join("model.safetensors");
        let tensors = self.tensors.clone();
        file::write(&path, tensors, Some(self.metadata.clone())).unwrap();
        path
    }

    /// The notes of the layer that is computed.
    #[track_caller]
    fn notes(&self) -> Vec<String> {
        let checkpoint = Checkpoint::open(self.write()).unwrap();
        let layer = checkpoint.layer("a.l").unwrap();
        assert!(layer.codes().iter().all(|pair| *pair == 0x12));
        let notes = checkpoint.notes().iter().chain(layer.notes());
        notes.map(Note::to_string).collect()
    }

    /// Demands that the layer is computed, with one note that says all `parts`.
    #[track_caller]
    fn notes_that(&self, parts: &[&str]) {
        let notes = self.notes();
        assert_eq!(notes.len(), 1, "{notes:?}");
        for part in parts {
            assert!(notes[0].contains(part), "{part:?} is not in {notes:?}");
        }
    }

    #[track_caller]
    /// Demands that its configs are beyond a limit, and that the error has these parts.
    fn not_opened(&self, parts: &[&str]) {
        let error = Checkpoint::open(self.write()).unwrap_err();
        let limit = matches!(error, CheckpointError::ConfigLimit { .. });
        let error = error.to_string();
        assert!(
            limit && parts.iter().all(|part| error.contains(part)),
            "{error}"
        );
    }

    fn error_of(&self, layer: &str) -> CheckpointError {
        let checkpoint = Checkpoint::open(self.write()).unwrap();
        checkpoint.layer(layer).unwrap_err()
    }

    /// Demands that the layer is refused, with words that name the file and the layer and say all `parts`.
    #[track_caller]
    fn refused(&self, parts: &[&str]) -> CheckpointError {
        let error = self.error_of("a.l");
        let message = error.to_string();
        for part in [&["a.l"], parts].concat() {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        error
    }
}

#[test]
fn tensors_that_change_the_product_are_refused_by_name() {
    for dialect in Dialect::ALL {
        #[rustfmt::skip]
        let changing = [
            "input_quantizer._pre_quant_scale", "smooth_factor", "svdquant_lora_a",
            "svdquant_lora_b", "lora_A.weight", "lora_B.default.weight", "lora_magnitude_vector.default.weight",
            "weight_g_idx", "g_idx", "weight_zero_point", "input_zero_point", "hadamard_matrix",
            "rotation.weight", "layer_norm_weight", "parametrizations.weight.original0",
        ];
        for rest in changing {
            let name = format!("a.l.{rest}");
            let files = Files::new(dialect).with(&name, zeros(Dtype::BF16, &[128]));
            refused!(files, &[&format!("{name:?}"), "model.safetensors"] => ChangesProduct);
        }
    }
    // ModelOpt's tensor, which compressed-tensors does not have.
    let files = Files::new(Dialect::CompressedTensors);
    let files = files.with("a.l.pre_quant_scale", zeros(Dtype::BF16, &[128]));
    refused!(files, &["\"a.l.pre_quant_scale\""] => ChangesProduct);
}

/// Weights 0.5 and 1, in turns, times 0.5; factors of columns 1 to 128 and vectors of ones.
#[test]
fn factors_of_columns_are_multiplied_into_vectors() {
    let factors: Vec<f32> = (1..=128).map(|k| k as f32).collect();
    let bytes = factors
        .iter()
        .map(|x| half::bf16::from_f32(*x).to_le_bytes());
    let bytes = bytes.collect::<Vec<_>>().concat();
    for alpha in [
        NewTensor::f32(&[128], &factors),
        NewTensor::new(Dtype::BF16, &[128], bytes),
    ] {
        let files = Files::new(Dialect::ModelOpt).with("a.l.pre_quant_scale", alpha);
        let files = files.beside("hf_quant_config.json", json!({ "quant_algo": "NVFP4_AWQ" }));
        assert_eq!(files.notes(), [""; 0]);
        let checkpoint = Arc::new(Checkpoint::open(files.write()).unwrap());
        let layer = checkpoint.layer("a.l").unwrap();
        assert_eq!(layer.column_alpha(), Some(&factors[..]));
        let expected: f32 = (0..128).map(|k| [0.5, 0.25][k % 2] * factors[k]).sum();
        let shape = layer.shape(1).unwrap();
        let weights = layer.weights().unwrap();
        let mut y = vec![0.0f32; 128];
        let x = vec![half::f16::ONE; 128];
        gemv(
            &shape,
            &weights,
            &Vectors::of(&x),
            Output::of(&mut y),
            &Options::new(),
        )
        .unwrap();
        assert_eq!(y, [expected; 128]);
        let linear = Linear::from_checkpoint(&checkpoint, "a.l").unwrap();
        let mut y = vec![0.0f32; 128];
        linear
            .forward(&Vectors::of(&x), 1, Output::of(&mut y))
            .unwrap();
        assert_eq!(y, [expected; 128]);
        // A joined matrix has the factors, if all of its layers have them.
        let joined = checkpoint
            .joined(&["a.l", "a.l"], RowOrder::Stacked)
            .unwrap()
            .gather();
        assert_eq!(joined.weights().unwrap().column_alpha(), Some(&factors[..]));
        let mut others = factors.clone();
        others[3] = 0.0;
        let mut files = files;
        files.layer("a.b", Dialect::ModelOpt, 128);
        for other in [None, Some(NewTensor::f32(&[128], &others))] {
            if let Some(other) = other {
                files = files.with("a.b.pre_quant_scale", other.clone());
            }
            let checkpoint = Checkpoint::open(files.write()).unwrap();
            let error = checkpoint
                .joined(&["a.l", "a.b"], RowOrder::Stacked)
                .unwrap_err();
            assert!(error.to_string().contains("pre_quant_scale"), "{error}");
        }
    }
    let with = |alpha| Files::new(Dialect::ModelOpt).with("a.l.pre_quant_scale", alpha);
    for (wrong, says) in [
        (NewTensor::f32(&[64], &[1.0; 64]), "[128]"),
        (
            NewTensor::f32(&[128], &[f32::NAN; 128]),
            "column alpha: element 0",
        ),
        (zeros(Dtype::I32, &[128]), "F32, F16 or BF16"),
    ] {
        with(wrong).refused(&["\"a.l.pre_quant_scale\"", says]);
    }
}

/// A global scale for each part of a fused layer.
#[test]
fn rows_of_fused_layers_have_their_parts_global_scales() {
    let of = |name: &str, globals: &[f32]| {
        let dialect = Dialect::CompressedTensors;
        let mut files = Files::new(dialect);
        files.layer(name, dialect, 128);
        let global = NewTensor::f32(&[globals.len()], globals);
        files.with(&format!("{name}.weight_global_scale"), global)
    };
    let row_alpha = |files: &Files, name: &str| {
        let checkpoint = Arc::new(Checkpoint::open(files.directory.path()).unwrap());
        let linear = Linear::from_checkpoint(&checkpoint, name).unwrap();
        assert_eq!(linear.weights().global(), GlobalScale::ONE);
        let layer = checkpoint.layer(name).unwrap();
        assert_eq!(layer.weights().unwrap().row_alpha(), layer.row_alpha());
        let error = checkpoint
            .joined(&[name, name], RowOrder::Stacked)
            .unwrap_err();
        assert!(error.to_string().contains("global scale each"), "{error}");
        linear.weights().row_alpha().unwrap().to_vec()
    };
    let files = of("m.gate_up_proj", &[2.0, 4.0]);
    files.write();
    let halves = [[0.5; 64], [0.25; 64]].concat();
    assert_eq!(row_alpha(&files, "m.gate_up_proj"), halves);
    // 4 heads of queries, 2 of keys, 2 of values: of 16 rows each.
    let files = of("m.qkv_proj", &[2.0, 4.0, 8.0]);
    files.write();
    let qkv = || files.error_of("m.qkv_proj").to_string();
    assert!(qkv().contains("cannot be told"), "{}", qkv());
    let text = json!({ "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64 });
    let heads = json!({ "text_config": text });
    std::fs::write(
        files.directory.path().join("config.json"),
        heads.to_string(),
    )
    .unwrap();
    let parts = [&[0.5; 64][..], &[0.25; 32], &[0.125; 32]].concat();
    assert_eq!(row_alpha(&files, "m.qkv_proj"), parts);
    // Not those of another tower's layers that have as many rows.
    let (several, one) = (
        json!({ "text_config": text, "vision_config": { "num_heads": 8 } }),
        heads,
    );
    for (name, config, is_told) in [
        ("visual.blocks.0.attn.qkv_proj", &one, false),
        ("tower.0.attn.qkv_proj", &one, true),
        ("tower.0.attn.qkv_proj", &several, false),
        ("model.layers.0.self_attn.qkv_proj", &several, true),
    ] {
        let files = of(name, &[2.0, 4.0, 8.0]);
        let checkpoint = files.write();
        std::fs::write(
            files.directory.path().join("config.json"),
            config.to_string(),
        )
        .unwrap();
        let layer = Checkpoint::open(checkpoint).unwrap();
        assert_eq!(layer.layer(name).is_ok(), is_told, "{name} {config}");
    }
    // Equal ones are one.
    let files = of("m.any", &[2.0, 2.0, 2.0]);
    let checkpoint = Checkpoint::open(files.write()).unwrap();
    let layer = checkpoint.layer("m.any").unwrap();
    assert_eq!(
        (layer.global(), layer.row_alpha()),
        (GlobalScale::Divisor(2.0), None)
    );
}

/// E4M3's bytes without their type, and codes with a type of their own.
#[test]
fn other_types_of_codes_and_scales_are_read() {
    for dialect in Dialect::ALL {
        let codes = NewTensor::new(Dtype::F4, &[128, 128], vec![0x12; 128 * 64]);
        let scales = NewTensor::new(Dtype::U8, &[128, 8], vec![0x38; 128 * 8]);
        let files = Files::new(dialect)
            .with(&format!("a.l.{}", dialect.codes()), codes)
            .with("a.l.weight_scale", scales);
        assert_eq!(files.notes(), [""; 0]);
        let checkpoint = Checkpoint::open(files.write()).unwrap();
        assert_eq!(checkpoint.layer("a.l").unwrap().k(), 128);
        assert_eq!(checkpoint.modules()[0].kind().name(), "NVFP4");
    }
}

#[test]
fn unknown_tensors_are_refused_by_name_and_harmless_ones_are_not() {
    for dialect in Dialect::ALL {
        let mut files = Files::new(dialect);
        for rest in ["weight_scale_3", "_extra_state", "some.module.weight"] {
            files = files.with(&format!("a.l.{rest}"), one(1.0));
        }
        // Tensors of other layers, whatever their names begin with.
        files = files.with("a.l2.pre_quant_scale", one(1.0));
        files = files.with("a.pre_quant_scale", one(1.0));
        let named = [
            "\"a.l._extra_state\"",
            "\"a.l.some.module.weight\"",
            "\"a.l.weight_scale_3\"",
        ];
        let error = files.refused(&named);
        let CheckpointError::UnknownTensors { tensors, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(tensors.len(), 3);

        let mut files = Files::new(dialect);
        for rest in [
            "k_scale",
            "v_scale",
            "test_input",
            "test_output_f64",
            "original_rows",
        ] {
            files = files.with(&format!("a.l.{rest}"), one(1.0));
        }
        assert_eq!(files.notes(), [""; 0]);
        let files = files.with("a.l.bias", NewTensor::f32(&[128], &[0.0; 128]));
        files.notes_that(&["\"a.l.bias\"", "not added"]);
    }
}

#[test]
fn a_tensor_of_the_weights_shape_has_to_say_the_shape() {
    let shape = |rows: i64, k: i64| {
        let bytes = [rows, k].map(i64::to_le_bytes).concat();
        NewTensor::new(Dtype::I64, &[2], bytes)
    };
    let with = |tensor| Files::new(Dialect::CompressedTensors).with("a.l.weight_shape", tensor);
    assert_eq!(with(shape(128, 128)).notes(), [""; 0]);
    for wrong in [shape(120, 128), shape(128, -128), zeros(Dtype::F32, &[2])] {
        with(wrong).refused(&["\"a.l.weight_shape\""]);
    }
}

#[test]
fn layers_with_tensors_of_both_dialects_are_refused() {
    for (dialect, other) in [
        (Dialect::ModelOpt, Dialect::CompressedTensors),
        (Dialect::CompressedTensors, Dialect::ModelOpt),
    ] {
        for suffix in [other.codes(), other.global(), other.input_global()] {
            let name = format!("a.l.{suffix}");
            let files = Files::new(dialect).with(&name, one(0.5));
            refused!(files, &[&format!("{name:?}"), "modelopt", "compressed-tensors"] => BothDialects);
        }
        // The codes of one dialect with the global scale of the other.
        let files = Files::new(dialect).without(&format!("a.l.{}", dialect.global()));
        let files = files.with(&format!("a.l.{}", other.global()), one(0.5));
        refused!(files, &[other.global()] => BothDialects);
    }
}

const COMFY_ENTRY: &str = "_quantization_metadata";

/// ComfyUI's entry of a file's metadata.
fn comfy_layers(name: &str, mark: Value) -> String {
    json!({ "format_version": "1.0", "layers": { name: mark } }).to_string()
}

/// The layer's codes, all 0x12, have the other element first.
fn is_comfys(files: &Files) {
    let checkpoint = Checkpoint::open(files.write()).unwrap();
    let layer = checkpoint.layer("a.l").unwrap();
    assert_eq!(layer.codes(), [0x21; 128 * 64]);
    assert_eq!(layer.layout(), ScaleLayout::Tiled128x4);
}

#[test]
fn layers_with_comfy_uis_mark_are_in_its_layout() {
    let mark = || json!({ "format": "nvfp4" });
    let marked = |mark: &Value| {
        let bytes = mark.to_string().into_bytes();
        Files::new(Dialect::ModelOpt).with(
            "a.l.comfy_quant",
            NewTensor::new(Dtype::U8, &[bytes.len()], bytes),
        )
    };
    let with = |text: &str| Files::new(Dialect::ModelOpt).metadata(COMFY_ENTRY, text);
    is_comfys(&marked(&mark()));
    // The entry names the layer, or the end of the layer's name.
    for name in ["a.l", "model.diffusion_model.a.l", "l"] {
        is_comfys(&with(&comfy_layers(name, mark())));
    }
    // Marks that mean another product, or may.
    for (entry, value) in [
        ("format", json!("float8_e4m3fn")),
        ("convrot", json!(true)),
        ("new", json!(1)),
        ("orig_shape", json!([128, 120])),
        ("orig_shape", json!([129, 128])),
    ] {
        let mut mark = mark();
        mark[entry] = value;
        marked(&mark).refused(&[]);
        with(&comfy_layers("a.l", mark)).refused(&[]);
    }
    let rubbish = zeros(Dtype::U8, &[19]);
    refused!(Files::new(Dialect::ModelOpt).with("a.l.comfy_quant", rubbish), &["\"a.l.comfy_quant\""] => Config);
    // compressed-tensors' names are not ComfyUI's.
    let bytes = mark().to_string().into_bytes();
    let files = Files::new(Dialect::CompressedTensors);
    let files = files.with(
        "a.l.comfy_quant",
        NewTensor::new(Dtype::U8, &[bytes.len()], bytes),
    );
    refused!(files, &["mark", "compressed-tensors"] => OtherLayout);
    // Two marks of one layer, which agree or do not.
    let both = |of_file: Value| marked(&mark()).metadata(COMFY_ENTRY, comfy_layers("a.l", of_file));
    is_comfys(&both(mark()));
    is_comfys(&marked(&mark()).metadata(COMFY_ENTRY, "{}"));
    let other_shape = json!({ "format": "nvfp4", "orig_shape": [120, 128] });
    refused!(both(other_shape), &["comfy_quant", "metadata"] => Config);
    refused!(both(json!({ "format": "mxfp8" })), &["metadata", "mxfp8"] => Config);
    // The entry is about other layers of the file only: how this one lies is not said.
    for other in ["b.l", "a.l2", "a.l.proj", "al"] {
        let files = with(&comfy_layers(other, mark()));
        refused!(files, &[COMFY_ENTRY, "does not name it"] => OtherLayout);
    }
    // Joined layers are in one layout.
    let files = marked(&mark());
    let checkpoint = Checkpoint::open(files.write()).unwrap();
    let gathered = checkpoint
        .joined(&["a.l"], RowOrder::Stacked)
        .unwrap()
        .gather();
    assert_eq!(gathered.codes(), [0x21; 128 * 64]);
}

/// Where nothing tells, or not enough.
#[test]
fn layers_that_may_be_in_comfy_uis_layout_are_refused() {
    let says = ["128x4", "high nibble"];
    let with = |text: &str| Files::new(Dialect::ModelOpt).metadata(COMFY_ENTRY, text);
    for text in [
        r#"{"layers": {}}"#,
        r#"{"layers": ["a.l"]}"#,
        "{}",
        "rubbish",
        "",
    ] {
        refused!(with(text), &[&says[..], &[COMFY_ENTRY]].concat() => OtherLayout);
    }
    // Other layers of the file are marked as ComfyUI's, in its metadata or in tensors.
    let mark = json!({ "format": "nvfp4" });
    let others = ["b.l", "a.l2", "a.l.proj", "al"];
    for other in others {
        let files = with(&comfy_layers(other, mark.clone()));
        refused!(files, &says => OtherLayout);
    }
    let bytes = mark.to_string().into_bytes();
    let tensor = NewTensor::new(Dtype::U8, &[bytes.len()], bytes);
    let files = || Files::new(Dialect::ModelOpt).with("b.l.comfy_quant", tensor.clone());
    refused!(files(), &[&says[..], &["other layers"]].concat() => OtherLayout);
    // ModelOpt's own config says that this one is its own.
    let files = files().beside("hf_quant_config.json", json!({ "quant_algo": "NVFP4" }));
    let checkpoint = Checkpoint::open(files.write()).unwrap();
    checkpoint.layer("a.l").unwrap();
    // ModelOpt writes that entry, too, and beside it its own.
    let both = with(&comfy_layers("a.l", json!({ "format": "nvfp4" })));
    let both = both.metadata("quantization_config", json!({ "quant_algo": "NVFP4" }));
    refused!(both, &[&says[..], &["ModelOpt"]].concat() => OtherLayout);
    // Rows that are padded to 128, as that layout has them.
    let padded = Files::new(Dialect::ModelOpt)
        .with("a.l.weight", zeros(Dtype::U8, &[100, 64]))
        .with("a.l.weight_scale", zeros(Dtype::F8_E4M3, &[128, 8]));
    padded.refused(&[&says[..], &["F8_E4M3 [128, 8]"]].concat());
    // ModelOpt's config in the file itself, which is there when the scales have been put into that layout. Rows that are
    // not padded show that they have not.
    let config = json!({ "quant_algo": "NVFP4" });
    let swizzled = Files::new(Dialect::ModelOpt).metadata("quantization_config", &config);
    refused!(swizzled.beside("config.json", json!({ "quantization_config": config })), &says => OtherLayout);
    let linear = Files::of_rows(Dialect::ModelOpt, 120).metadata("quantization_config", &config);
    assert_eq!(linear.notes(), [""; 0]);
    // Names of diffusion models.
    let names = [
        "double_blocks.0.img_attn.qkv",
        "model.diffusion_model.blocks.0.l",
        "transformer_blocks.0.attn.to_q",
        "blocks.0.self_attn.q",
        "layers.0.attention.qkv",
        "noise_refiner.0.feed_forward.w1",
    ];
    let mut files = Files::new(Dialect::ModelOpt);
    for name in names {
        files.layer(name, Dialect::ModelOpt, 128);
        let error = files.error_of(name);
        assert!(
            matches!(error, CheckpointError::OtherLayout { .. }),
            "{error}"
        );
    }
    // ModelOpt's own config beside the file says that they are its own.
    let files = files.beside("hf_quant_config.json", json!({ "quant_algo": "NVFP4" }));
    let checkpoint = Checkpoint::open(files.write()).unwrap();
    for name in names {
        checkpoint.layer(name).unwrap();
    }
}

#[test]
fn an_input_scale_is_looked_at_when_it_is_asked_for() {
    for dialect in Dialect::ALL {
        let name = format!("a.l.{}", dialect.input_global());
        let bad = [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let bad = bad.map(one);
        let others = [
            NewTensor::f32(&[2], &[1.0, 1.0]),
            NewTensor::f32(&[0], &[]),
            zeros(Dtype::I32, &[1]),
        ];
        for tensor in bad.into_iter().chain(others) {
            let files = Files::new(dialect).with(&name, tensor);
            files.notes_that(&[&format!("{name:?}"), "cannot be quantised"]);
            let checkpoint = Checkpoint::open(files.write()).unwrap();
            let layer = checkpoint.layer("a.l").unwrap();
            assert!(layer.weights().is_ok());
            let error = layer.input_global().unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }
}

#[test]
fn stacked_experts_are_named() {
    for (codes, scales, asked) in [
        (
            "experts.gate_up_proj",
            "experts.gate_up_proj_weight_scale",
            "experts.gate_up_proj",
        ),
        ("experts.w2_weight", "experts.w2_weight_scale", "experts.w2"),
        (
            "experts.w2_weight",
            "experts.w2_weight_scale",
            "experts.w2_weight",
        ),
        ("experts.up.weight", "experts.up.weight_scale", "experts.up"),
        (
            "experts.up.weight_packed",
            "experts.up.weight_scale",
            "experts.up",
        ),
    ] {
        let mut files = Files::new(Dialect::ModelOpt);
        files.tensors.clear();
        let files = files
            .with(codes, zeros(Dtype::U8, &[4, 32, 64]))
            .with(scales, zeros(Dtype::F8_E4M3, &[4, 32, 8]));
        let error = files.error_of(asked);
        assert!(
            matches!(error, CheckpointError::StackedExperts { .. }),
            "{asked}: {error}"
        );
        let message = error.to_string();
        let says = [
            &format!("{codes:?}")[..],
            "stacked experts",
            "U8 [4, 32, 64]",
        ];
        assert!(says.iter().all(|part| message.contains(part)), "{message}");
        // Whoever asks for another layer is told what there is.
        let message = files.error_of("something.else").to_string();
        assert!(
            message.contains(&format!("stacked experts are no single layers: {codes:?}")),
            "{message}"
        );
        let checkpoint = Checkpoint::open(files.write()).unwrap();
        assert!(matches!(
            checkpoint.notes(),
            [Note::Unsupported { total: 1, .. }]
        ));
    }
    // Experts that are not quantised.
    let files = Files::new(Dialect::ModelOpt).with("a.experts", zeros(Dtype::BF16, &[2, 16, 16]));
    let error = files.error_of("a.experts");
    assert!(matches!(error, CheckpointError::NotNvfp4 { .. }), "{error}");
    // Stacked experts with global scales for all of them look like a layer.
    let files = Files::new(Dialect::ModelOpt)
        .with("a.l.weight", zeros(Dtype::U8, &[4, 32, 64]))
        .with("a.l.weight_scale", zeros(Dtype::F8_E4M3, &[4, 32, 8]))
        .with("a.l.weight_scale_2", NewTensor::f32(&[4], &[1.0; 4]));
    refused!(files, &["stacked experts", "U8 [4, 32, 64]"] => StackedExperts);
}

#[test]
fn mxfp4_is_named() {
    let scales = |dtype| zeros(dtype, &[128, 4]);
    for dialect in Dialect::ALL {
        for dtype in [Dtype::U8, Dtype::F8_E8M0] {
            let files = Files::new(dialect).with("a.l.weight_scale", scales(dtype));
            let without = Files::new(dialect)
                .with("a.l.weight_scale", scales(dtype))
                .without(&format!("a.l.{}", dialect.global()));
            for files in [files, without] {
                refused!(files, &["MXFP4", "\"a.l.weight_scale\""] => Mxfp4);
            }
        }
    }
    let mut gpt_oss = Files::new(Dialect::ModelOpt);
    gpt_oss.tensors.clear();
    let gpt_oss = gpt_oss
        .with("a.l_blocks", zeros(Dtype::U8, &[2, 32, 4, 16]))
        .with("a.l_scales", zeros(Dtype::U8, &[2, 32, 4]));
    gpt_oss.refused(&["MXFP4", "\"a.l_scales\""]);
    let other = gpt_oss.error_of("b").to_string();
    assert!(
        other.contains("MXFP4 layers are not NVFP4 layers: \"a.l_scales\""),
        "{other}"
    );
}

/// A checkpoint of these tensors alone.
fn only(tensors: &[(&str, NewTensor<'static>)]) -> Files {
    let mut files = Files::new(Dialect::ModelOpt);
    files.tensors.clear();
    for (name, tensor) in tensors {
        files = files.with(name, tensor.clone());
    }
    files
}

/// Tools whose NVFP4 is computed have other formats with the same names.
#[test]
fn other_formats_of_tools_are_named() {
    let torchao = |codes: &[usize], scales| {
        only(&[
            ("a.l._weight_qdata", zeros(Dtype::U8, codes)),
            ("a.l._weight_scale", scales),
        ])
    };
    // FP8's scale has a name that FP8 of others has not; without it the matrix would be another one.
    let fp8 = only(&[
        ("a.l._weight_qdata", zeros(Dtype::F8_E4M3, &[128, 64])),
        ("a.l._weight_scale", zeros(Dtype::F32, &[128, 1])),
    ]);
    let parameter = only(&[
        ("a._l_qdata", zeros(Dtype::U8, &[2, 128, 64])),
        ("a._l_scale", zeros(Dtype::F8_E4M3, &[2, 128, 8])),
        ("a._l_per_tensor_scale", zeros(Dtype::F32, &[2, 1, 1])),
    ]);
    for (files, codes) in [(&fp8, "a.l._weight_qdata"), (&parameter, "a._l_qdata")] {
        let checkpoint = Checkpoint::open(files.write()).unwrap();
        let refused = [
            checkpoint.layer("a.l").unwrap_err(),
            checkpoint.dense(codes).unwrap_err(),
            checkpoint.layer(codes).unwrap_err(),
        ];
        for error in refused {
            assert!(error.to_string().contains("torchao"), "{error}");
        }
        let [module] = &checkpoint.modules()[..] else {
            panic!("{:?}", checkpoint.modules());
        };
        assert_eq!(
            (module.kind().name(), module.tensors().len()),
            ("refused".into(), files.tensors.len())
        );
    }
    let mlx = |scales| {
        only(&[
            ("a.l.weight", zeros(Dtype::U32, &[128, 16])),
            ("a.l.scales", scales),
        ])
    };
    let pair = |codes: &str, dtype, beside: &str| {
        let [codes, beside] = [codes, beside].map(|suffix| format!("a.l{suffix}"));
        only(&[
            (&codes, zeros(dtype, &[128, 64])),
            (&beside, zeros(Dtype::F32, &[128])),
        ])
    };
    for (files, tool) in pairs! {
        torchao(&[128, 64], zeros(Dtype::F8_E8M0, &[128, 4])) => "torchao",
        torchao(&[128, 64], zeros(Dtype::BF16, &[8, 128])) => "torchao",
        // Experts that are stacked.
        torchao(&[2, 128, 64], zeros(Dtype::F8_E4M3, &[2, 128, 8])) => "torchao",
        // The modes mxfp4, mxfp8 and affine.
        mlx(zeros(Dtype::U8, &[128, 4])) => "MLX",
        mlx(zeros(Dtype::U8, &[128, 2])) => "MLX",
        mlx(zeros(Dtype::F32, &[128, 8])) => "MLX",
        mlx(zeros(Dtype::U8, &[64, 8])) => "MLX",
        // Names that none of the dialects has.
        pair(".qweight", Dtype::I8, ".wscales") => "Nunchaku (SVDQuant)",
        pair(".qweight", Dtype::U8, ".scales") => "FP-Quant",
        pair(".qweight", Dtype::I32, ".scales") => "GPTQ or AWQ",
        pair(".weight", Dtype::U8, ".weight.absmax") => "bitsandbytes",
        pair(".weight", Dtype::U8, ".weights_block_scaling_factor") => "TensorRT-LLM",
    } {
        refused!(files, &[tool] => OtherTool);
        let checkpoint = Checkpoint::open(files.write()).unwrap();
        let [module] = &checkpoint.modules()[..] else {
            panic!("{:?}", checkpoint.modules());
        };
        assert_eq!(module.kind().name(), "refused");
        assert_eq!(module.tensors().len(), files.tensors.len());
    }
    let codes = ".quantized_weight_values";
    let files = pair(codes, Dtype::U8, ".quantized_weight_scale_factors");
    refused!(files, &["Four Over Six"] => OtherTool);
}

/// torchao's metadata say how the scales lie; without them, or where tensors contradict them, nobody knows.
#[test]
fn torchaos_metadata_are_needed_and_must_fit() {
    let files = || {
        let codes = NewTensor::new(Dtype::U8, &[128, 64], vec![0x12; 128 * 64]);
        only(&[
            ("a.l._weight_qdata", codes),
            ("a.l._weight_scale", zeros(Dtype::F8_E4M3, &[128, 8])),
            ("a.l._weight_per_tensor_scale", NewTensor::f32(&[], &[0.5])),
        ])
    };
    let said = |swizzled: bool, tensors: &[&str]| {
        json!({
            "_type": "NVFP4Tensor", "_tensor_data_names": tensors,
            "_data": { "block_size": 16, "is_swizzled_scales": swizzled, "orig_dtype": "bfloat16" },
        })
    };
    let all = ["qdata", "scale", "per_tensor_scale"];
    let entry = "a.l.weight";
    let read = files().metadata(entry, said(false, &all));
    assert_eq!(read.notes(), [""; 0]);
    let checkpoint = Checkpoint::open(read.write()).unwrap();
    let layer = checkpoint.layer("a.l").unwrap();
    assert_eq!(layer.global(), GlobalScale::Multiplier(0.5));
    assert_eq!(layer.layout(), ScaleLayout::Linear);

    refused!(files(), &["no metadata entry", entry] => Config);
    for text in ["", "[1", "{}", "\"NVFP4Tensor\""] {
        refused!(files().metadata(entry, text), &[entry] => Config);
    }
    let of_mx = said(false, &all).to_string().replace("NVFP4", "MX");
    refused!(files().metadata(entry, of_mx), &["MXTensor"] => Config);
    for tensors in [
        &all[..2],
        &["qdata", "scale", "per_tensor_scale", "act_per_tensor_scale"],
    ] {
        refused!(files().metadata(entry, said(false, tensors)), &["per_tensor_scale"] => Config);
    }
    // In the 128x4 layout the scales have other dimensions.
    refused!(files().metadata(entry, said(true, &all)), &["[32, 32]", "F8_E4M3 [128, 8]"] => File);
    let tiled = files()
        .metadata(entry, said(true, &all))
        .with("a.l._weight_scale", zeros(Dtype::F8_E4M3, &[32, 32]));
    let checkpoint = Checkpoint::open(tiled.write()).unwrap();
    let layout = checkpoint.layer("a.l").unwrap().layout();
    assert_eq!(layout, ScaleLayout::Tiled128x4);
    // Tensors of no NVFP4 layer of torchao's.
    for other in [
        "a.l._weight_zero_point",
        "a.l.weight",
        "a.l.pre_quant_scale",
    ] {
        let files = files()
            .metadata(entry, said(false, &all))
            .with(other, one(1.0));
        files.refused(&[other]);
    }
    // A config that says so agrees; another is a note.
    let labelled = |method: &str| {
        let config = json!({ "quantization_config": { "quant_method": method } });
        files()
            .metadata(entry, said(false, &all))
            .beside("config.json", config)
    };
    assert_eq!(labelled("torchao").notes(), [""; 0]);
    labelled("compressed-tensors").notes_that(&["compressed-tensors", "torchao"]);
}

#[test]
fn mlxs_config_agrees_or_is_a_note() {
    let files = || {
        only(&[
            (
                "a.l.weight",
                NewTensor::new(Dtype::U32, &[128, 16], vec![0x12; 128 * 64]),
            ),
            (
                "a.l.scales",
                NewTensor::new(Dtype::U8, &[128, 8], vec![0x38; 128 * 8]),
            ),
        ])
    };
    let with = |config: Value| {
        let config = json!({ "quantization": config, "quantization_config": config });
        files().beside("config.json", config)
    };
    let nvfp4 = json!({ "group_size": 16, "bits": 4, "mode": "nvfp4" });
    let mut of_layer = json!({ "group_size": 64, "bits": 4 });
    let affine = with(of_layer.clone());
    of_layer["a.l"] = nvfp4.clone();
    for files in [files(), with(nvfp4.clone()), with(of_layer)] {
        assert_eq!(files.notes(), [""; 0]);
        let checkpoint = Checkpoint::open(files.write()).unwrap();
        let layer = checkpoint.layer("a.l").unwrap();
        assert_eq!((layer.global(), layer.k()), (GlobalScale::ONE, 128));
    }
    affine.notes_that(&["affine"]);
    let mut not = nvfp4;
    not["a.l"] = false.into();
    with(not).notes_that(&["not quantised"]);
    for other in ["a.l.biases", "a.l.weight_scale_2", "a.l.pre_quant_scale"] {
        files().with(other, one(1.0)).refused(&[other]);
    }
    // Scales that are negative, or NaN.
    for scale in [0x80u8, 0x7f] {
        let scales = NewTensor::new(Dtype::U8, &[128, 8], vec![scale; 128 * 8]);
        refused!(files().with("a.l.scales", scales), &["a.l.scales"] => File);
    }
}

#[test]
fn files_of_other_formats_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    for (bytes, says) in [
        (&b"GGUF\x03\0\0\0\x7b\0\0\0\0\0\0\0"[..], "a GGUF file"),
        (lfs, "a git-lfs pointer"),
        (b"PK\x03\x04\x14\0\0\0\0\0\0\0", "a ZIP archive"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"\x80\x02}q\0X\x06\0\0\0", "a pickle"),
        (b"\xfd7zXZ\0\0\x04", "xz"),
        (b"\x28\xb5\x2f\xfd\x04\0", "zstd"),
        (b"{\"error\":{\"message\":\"no\"}}", "text"),
        (b"<?xml version=\"1.0\"?><Error>", "text"),
        (b"\n <html>", "text"),
        (b"Error: {}", "text"),
        (b"no", "text"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&path).unwrap_err();
        let is = matches!(error, CheckpointError::File(FileError::OtherFormat { .. }));
        assert!(is && error.to_string().contains(says), "{error}");
    }
    // Damaged safetensors files are still that, whatever the length of their header.
    for bytes in [
        &b"PK\x03\x04\0\0\0\0{\"a\""[..],
        b"<!\0\0\0\0\0\0{\"a\"",
        b"\x80\x02\0\0\0\0\0\0{\"a\"",
        b"ab\0\0\0\0\0\0{\"a\"",
        b"",
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        assert!(error.contains("not a valid safetensors file"), "{error}");
    }
    let index = directory.path().join(INDEX_FILE);
    std::fs::write(&index, lfs).unwrap();
    let error = Checkpoint::open(&index).unwrap_err().to_string();
    assert!(error.contains("git-lfs pointer"), "{error}");
}

#[test]
fn missing_files_of_several_are_named() {
    let files = Files::new(Dialect::ModelOpt);
    let at = |name: &str| files.directory.path().join(name);
    let shard = |number: usize| format!("model-{number:05}-of-00003.safetensors");
    std::fs::copy(files.write(), at(&shard(2))).unwrap();
    std::fs::remove_file(at("model.safetensors")).unwrap();
    let missing = |path: &std::path::Path| match Checkpoint::open(path).unwrap_err() {
        CheckpointError::MissingFiles { files, total, .. } => (files, total),
        other => panic!("{other}"),
    };
    let directory = files.directory.path();
    assert_eq!(missing(directory), (vec![shard(1), shard(3)], 2));
    // One file of several, opened by name, gives a note.
    let shard_alone = Checkpoint::open(at(&shard(2))).unwrap();
    assert!(matches!(shard_alone.notes(), [Note::OneOfSeveral { .. }]));
    shard_alone.layer("a.l").unwrap();
    let error = shard_alone.layer("b").unwrap_err().to_string();
    assert!(error.contains("one file of several"), "{error}");

    // An index tells which tensor is in which file.
    let index =
        |map: Value| std::fs::write(at(INDEX_FILE), json!({ "weight_map": map }).to_string());
    index(json!({ "a.l.weight": shard(2), "a.l.pre_quant_scale": shard(3) })).unwrap();
    assert_eq!(missing(directory), (vec![shard(3)], 1));
    let elsewhere = |path: &std::path::Path, layer: &str| {
        let error = Checkpoint::open(path).unwrap().layer(layer).unwrap_err();
        let CheckpointError::Elsewhere { tensor, .. } = &error else {
            panic!("{error}");
        };
        assert!(error.to_string().contains(&shard(3)), "{error}");
        tensor.clone()
    };
    assert_eq!(elsewhere(&at(&shard(2)), "a.l"), "a.l.pre_quant_scale");
    // A file that is there and does not have what the index says.
    file::write(&at(&shard(3)), [("x".to_owned(), one(1.0))], None).unwrap();
    assert_eq!(elsewhere(directory, "a.l"), "a.l.pre_quant_scale");
    index(json!({ "a.l.weight": shard(2), "b.weight": shard(3) })).unwrap();
    assert_eq!(elsewhere(&at(&shard(2)), "b"), "b.weight");
    Checkpoint::open(directory).unwrap().layer("a.l").unwrap();
    // An index of another checkpoint says nothing.
    index(json!({ "a.l.pre_quant_scale": "other.safetensors" })).unwrap();
    Checkpoint::open(at(&shard(2)))
        .unwrap()
        .layer("a.l")
        .unwrap();
}

/// The index is as large as the index of a published model with 370,000 tensors.
#[test]
fn an_index_of_a_large_model_is_read() {
    let files = Files::new(Dialect::ModelOpt);
    files.write();
    let mut text = String::from("{\"weight_map\": {");
    for i in 0..370_000 {
        let long =
            "model.layers.60.mlp.experts.255.down_proj.with_a_long_name_for_the_scale_of_its_input";
        text.push_str(&format!(
            "\"{long}.{i}.weight_scale\": \"model.safetensors\","
        ));
    }
    text.push_str("\"a.l.weight\": \"model.safetensors\"}}");
    assert!(text.len() > 47_000_000);
    let files = files.beside(INDEX_FILE, &text);
    let checkpoint = Checkpoint::open(files.directory.path()).unwrap();
    checkpoint.layer("a.l").unwrap();
}

/// Files that say `quantization` of a layer, in each place where that can be said.
fn in_each_place(dialect: Dialect, quantization: &Value) -> [Files; 4] {
    let new = || Files::new(dialect);
    let inside = json!({ "quantization": quantization });
    [
        new().beside("hf_quant_config.json", &inside),
        new().beside(
            "config.json",
            json!({ "quantization_config": quantization }),
        ),
        new().metadata("hf_quant_config", &inside),
        // With rows that show that the scales are linear.
        Files::of_rows(dialect, 120).metadata("quantization_config", quantization),
    ]
}

#[test]
fn labels_that_change_the_product_are_errors() {
    let group = |weights: Value| json!({ "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } } });
    let transform = json!({ "u": { "type": "hadamard", "apply": [{ "location": "input" }] } });
    for (says, why) in pairs![
        json!({ "quant_algo": "NVFP4_SVDQUANT" }) => "low-rank",
        json!({ "quant_algo": "NVFP4_SVDQuant", "group_size": 16 }) => "low-rank",
        json!({ "quant_algo": "NVFP4", "group_size": 32 }) => "`group_size` 32",
        json!({ "quant_algo": "NVFP4", "has_zero_point": true }) => "has_zero_point",
        json!({ "quant_algo": "MIXED_PRECISION", "quantized_layers": { "a": { "quant_algo": "NVFP4_SVDQUANT" } } })
            => "low-rank",
        json!({ "transform_config": { "config_groups": &transform } }) => "transform_config",
        json!({ "transform_config": &transform }) => "transform_config",
        // A Hadamard matrix that is computed shows in no tensor.
        json!({ "quant_method": "auto-round", "rotation_config": { "hadamard_type": "hadamard", "block_size": 16 } })
            => "`rotation_config`",
        json!({ "quant_method": "auto-round", "extra_config": { "a.l": { "spinquant_config": { "r1": true } } } })
            => "`spinquant_config`",
        json!({ "quant_method": "fp_quant", "hadamard_group_size": 16 }) => "`hadamard_group_size`",
        group(json!({ "num_bits": 4, "type": "float", "group_size": 32 })) => "`group_size` 32",
        group(json!({ "num_bits": 4, "type": "float", "symmetric": false })) => "zero points",
        group(json!({ "num_bits": 4, "type": "float", "actorder": "group" })) => "order",
    ] {
        for files in in_each_place(Dialect::ModelOpt, &says) {
            refused!(files, &[why] => Config);
        }
    }
    // The entry is in the config of a model of several parts.
    let inside =
        json!({ "text_config": { "quantization_config": { "quant_algo": "NVFP4_SVDQUANT" } } });
    Files::new(Dialect::ModelOpt)
        .beside("config.json", inside)
        .refused(&["config.json", "SVDQUANT"]);
}

#[test]
fn labels_that_do_not_are_notes() {
    let mixed =
        |layers: Value| json!({ "quant_algo": "MIXED_PRECISION", "quantized_layers": layers });
    let linear = |weights: Value, inputs: Value| {
        json!({ "quant_method": "modelopt", "config_groups": {
            "group_0": { "targets": ["Linear"], "weights": weights, "input_activations": inputs }
        } })
    };
    let nvfp4 = || json!({ "num_bits": 4, "type": "float", "group_size": 16 });
    for (says, note) in pairs![
        json!({ "quant_algo": "W4A16_NVFP4" }) => "W4A16_NVFP4, and it has an input scale",
        json!({ "quant_algo": "NVFP4_AWQ", "group_size": 16 }) => "no `pre_quant_scale`",
        json!({ "quant_algo": "W4A8_NVFP4_FP8" }) => "FP8",
        json!({ "quant_algo": "FP8", "group_size": 128 }) => "FP8, and its tensors are NVFP4",
        json!({ "quant_algo": "W4A16_AWQ", "group_size": 128 }) => "W4A16_AWQ",
        json!({ "quant_algo": "NVFP4_OTHER" }) => "not known",
        json!({ "quant_algo": "NVFP4", "exclude_modules": ["a*"] }) => "\"a*\" is not quantised",
        json!({ "quant_algo": "NVFP4", "exclude_modules": ["a"] }) => "\"a\" is not quantised",
        json!({ "quant_algo": "NVFP4", "ignore": ["re:.*l$"] }) => "\"re:.*l$\" is not quantised",
        mixed(json!({ "a.l": { "quant_algo": "FP8" } })) => "FP8",
        mixed(json!({ "b.l": { "quant_algo": "NVFP4" } })) => "quantized_layers",
        json!({ "quant_method": "compressed-tensors" }) => "compressed-tensors",
        json!({ "quant_method": "fp8" }) => "\"fp8\"",
        linear(nvfp4(), Value::Null) => "weights only, and it has an input scale",
        linear(json!({ "num_bits": 8, "type": "float" }), Value::Null) => "8 bits",
        json!({ "quant_method": "modelopt", "config_groups": { "group_0": { "targets": ["re:b.*"] } } })
            => "nothing of it in `config_groups`",
        json!({ "quant_method": "modelopt", "format": "mxfp4-pack-quantized" }) => "mxfp4-pack-quantized",
    ] {
        for files in in_each_place(Dialect::ModelOpt, &says) {
            files.notes_that(&["\"a.l\"", note, "the tensors are believed"]);
        }
    }
    let group = |weights: Value, format: &str| {
        json!({ "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights, "format": format,
            "input_activations": { "dynamic": "local" } } } })
    };
    let with = |key: &str, value: &str| {
        let mut weights = nvfp4();
        weights[key] = value.into();
        group(weights, "nvfp4-pack-quantized")
    };
    for (says, note) in pairs![
        group(nvfp4(), "mxfp4-pack-quantized") => "mxfp4-pack-quantized",
        with("strategy", "channel") => "\"channel\"",
        with("scale_dtype", "torch.float8_e8m0fnu") => "e8m0",
        json!({ "sparsity_config": { "format": "sparse-24-bitmask" } }) => "sparse-24-bitmask",
    ] {
        for files in in_each_place(Dialect::ModelOpt, &says) {
            files.notes_that(&["\"a.l\"", note, "the tensors are believed"]);
        }
    }
    for said in [
        json!("nvfp4"),
        json!([{ "transform_config": 1 }]),
        json!(true),
    ] {
        let files = Files::new(Dialect::ModelOpt);
        let files = files.beside("config.json", json!({ "quantization_config": said }));
        files.notes_that(&["config.json", "`quantization_config` is no object"]);
    }
    for files in in_each_place(Dialect::ModelOpt, &json!({ "quant_algo": "NVFP4" })) {
        files
            .without("a.l.input_scale")
            .notes_that(&["NVFP4, and it has no input scale"]);
    }
}

#[test]
fn labels_that_agree_say_nothing() {
    let group = |targets: Value, bits: u32, inputs: Value| {
        let weights =
            json!({ "num_bits": bits, "type": "float", "group_size": 16, "symmetric": true });
        json!({ "targets": targets, "weights": weights, "input_activations": inputs })
    };
    let local = || json!({ "num_bits": 4, "dynamic": "local" });
    for says in [
        json!({}),
        json!({ "quant_algo": null }),
        json!({ "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "b*"] }),
        json!({ "quant_algo": "NVFP4", "group_size": null, "kv_cache_quant_algo": "FP8" }),
        json!({ "quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "a": { "quant_algo": "NVFP4", "group_size": 16 }, "b": { "quant_algo": "FP8" }
        } }),
        json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "transform_config": null,
            "config_groups": { "group_0": group(json!(["Linear"]), 4, local()) } }),
        json!({ "transform_config": { "config_groups": {} } }),
        json!({ "hadamard_group_size": null, "transform_init": "identity", "rotate": false, "sparsity_config": {} }),
        // As compressed-tensors writes it.
        json!({ "format": "mixed-precision", "transformers_version": "5.0", "sparsity_config": { "format": "dense" },
            "config_groups": { "group_0": { "targets": ["Linear"], "format": "nvfp4-pack-quantized",
                "input_activations": local(), "weights": { "num_bits": 4, "type": "float", "group_size": 16,
                    "strategy": "tensor_group", "scale_dtype": "torch.float8_e4m3fn" } } } }),
        json!({ "transform_config": { "config_groups": {} }, "rotation_config": null, "hadamard": false }),
        // The group that names the layer counts.
        json!({ "config_groups": {
            "group_0": group(json!(["Linear"]), 8, Value::Null), "group_1": group(json!(["re:a[.]l"]), 4, local()),
            "group_2": group(json!(["re:^a\\.l"]), 4, local()), "group_3": group(json!(["b"]), 8, Value::Null)
        } }),
    ] {
        for files in in_each_place(Dialect::ModelOpt, &says) {
            assert_eq!(files.notes(), [""; 0], "{says}");
        }
    }
    // Metadata of one file says nothing of layers in another file.
    let files = Files::new(Dialect::ModelOpt);
    let path = files.write();
    let other = path.with_file_name("other.safetensors");
    let metadata = json!({ "quantization": { "quant_algo": "NVFP4_SVDQUANT" } }).to_string();
    let metadata = [("hf_quant_config".to_owned(), metadata)].into();
    file::write(&other, [("x".to_owned(), one(1.0))], Some(metadata)).unwrap();
    let checkpoint = Checkpoint::open(files.directory.path()).unwrap();
    assert_eq!(checkpoint.layer("a.l").unwrap().notes(), []);
}

#[test]
fn configs_that_cannot_be_read_are_notes() {
    for name in ["config.json", "hf_quant_config.json"] {
        for text in [
            "{",
            "",
            "version https://git-lfs.github.com/spec/v1\n",
            &"[".repeat(100_000),
        ] {
            let files = Files::new(Dialect::ModelOpt).beside(name, text);
            files.notes_that(&[name, "not read"]);
        }
        let files = Files::new(Dialect::ModelOpt);
        std::fs::create_dir(files.directory.path().join(name)).unwrap();
        files.notes_that(&[name, "a directory"]);
        // JSON of other shapes says nothing.
        for text in [
            "[]",
            "null",
            "1",
            r#"{"quantization_config": null, "quantization": "x"}"#,
        ] {
            let files = Files::new(Dialect::ModelOpt).beside(name, text);
            assert_eq!(files.notes(), [""; 0], "{text}");
        }
    }
    let files = Files::new(Dialect::ModelOpt).metadata("hf_quant_config", "{");
    files.notes_that(&["hf_quant_config", "not read"]);
    let wrong = json!({ "quant_algo": 5, "exclude_modules": 5, "quantized_layers": [], "config_groups": [1],
        "format": {}, "group_size": {} });
    for files in in_each_place(Dialect::ModelOpt, &wrong) {
        assert!(!files.notes().is_empty());
    }
}

/// A model of several parts has the label in one part, in several, or beside them, too.
#[test]
fn what_changes_the_product_is_found_wherever_a_config_has_it() {
    let rotated =
        || json!({ "transform_config": { "config_groups": { "u": { "type": "hadamard" } } } });
    let plain = || json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" });
    for config in [
        json!({ "llm_config": { "quantization_config": rotated() } }),
        json!({ "thinker_config": { "text_config": { "quantization_config": rotated() } } }),
        json!({ "quantization_config": plain(), "text_config": { "quantization_config": rotated() } }),
        json!({ "quantization_config": rotated(), "text_config": { "quantization_config": plain() } }),
        json!({ "quantization_config": plain(), "quantization": rotated() }),
        json!({ "quant_algo": "NVFP4", "quantization": rotated() }),
        json!({ "compression_config": rotated() }),
        json!({ "compression_config": { "quantization_config": rotated() } }),
        json!({ "parts": [plain(), { "language_config": { "quantization": rotated() } }] }),
    ] {
        for name in ["config.json", "hf_quant_config.json"] {
            let files = Files::new(Dialect::ModelOpt).beside(name, &config);
            files.refused(&[name, "transform_config"]);
        }
        for entry in ["hf_quant_config", "quantization_config"] {
            // With rows that show that the scales are linear.
            let files = Files::of_rows(Dialect::ModelOpt, 120).metadata(entry, &config);
            files.refused(&[entry, "transform_config"]);
        }
    }
    // Rotations by other names than compressed-tensors'.
    for (says, key) in [
        (
            json!({ "quant_method": "fp_quant", "hadamard_group_size": 16 }),
            "hadamard_group_size",
        ),
        (json!({ "transform_init": "hadamard" }), "transform_init"),
        (
            json!({ "quant_algo": "NVFP4", "Rotation": { "R1": true } }),
            "Rotation",
        ),
        (
            json!({ "config_groups": { "g": { "input_activations": { "rotate": true } } } }),
            "rotate",
        ),
    ] {
        let files = Files::new(Dialect::ModelOpt);
        let files = files.beside("config.json", json!({ "quantization_config": says }));
        refused!(files, &["config.json", &format!("`{key}`"), "rotated"] => Config);
    }
    // Two equal labels in a file give one note.
    let label = || json!({ "quant_method": "fp8" });
    let twice = json!({ "quantization_config": label(), "text_config": { "quantization_config": label() } });
    let files = Files::new(Dialect::ModelOpt).beside("config.json", twice);
    files.notes_that(&["\"fp8\""]);
    // More labels than a file can have.
    let many = json!(vec![json!({ "quantization_config": {} }); 17]);
    let files = Files::new(Dialect::ModelOpt).beside("config.json", &many);
    files.not_opened(&["config.json", "more than 16 configs"]);
    let files = Files::new(Dialect::ModelOpt).metadata("quantization_config", many);
    files.not_opened(&["model.safetensors", "more than 16 configs"]);
}

/// The first of them has all others' tensors below its name. Looking each up, and naming all in each error, would take
/// hours and gigabytes for a file that is not yet a large one.
#[test]
fn modules_in_each_other_are_listed_in_bounded_time_and_memory() {
    const DEEP: usize = 600;
    let mut files = Files::new(Dialect::ModelOpt);
    for depth in 1..=DEEP {
        files.layer(&"m.".repeat(depth)[..2 * depth - 1], Dialect::ModelOpt, 128);
    }
    let checkpoint = Checkpoint::open(files.write()).unwrap();
    let modules = checkpoint.modules();
    let refused = modules.iter().filter_map(|module| match module.kind() {
        ModuleKind::Refused(error) => Some(&**error),
        _ => None,
    });
    let mut most = 0;
    for error in refused {
        let CheckpointError::UnknownTensors { tensors, total, .. } = error else {
            panic!("{error}");
        };
        assert!(tensors.len() <= 6, "{error}");
        most = most.max(*total);
    }
    assert_eq!(most % (DEEP - 1), 0);
    assert!(most > 3 * DEEP, "{most}");
}

/// Asking a config's patterns for each name takes as long as their number times the names' lengths. Without a limit each
/// of these would take minutes or hours when its modules are listed.
#[test]
fn configs_that_would_be_compared_with_names_for_ever_are_refused() {
    let with_names = |names: &mut dyn Iterator<Item = String>| {
        names.fold(Files::new(Dialect::ModelOpt), |files, name| {
            files.with(&name, one(1.0))
        })
    };
    let patterns = |how: &str| -> Vec<String> {
        let of = |i: usize| how.replace('#', &i.to_string());
        (0..50_000).map(of).collect()
    };
    let ignored = |how: &str| json!({ "ignore": patterns(how) });
    let groups = |how: &str| {
        let group = |target: String| (target.clone(), json!({ "targets": [target] }));
        let groups: serde_json::Map<_, _> = patterns(how).into_iter().map(group).collect();
        json!({ "config_groups": groups })
    };
    for said in [ignored("*#*"), groups("Linear#"), ignored("re:.*#.*")] {
        let long = || (0..1000).map(|i| format!("{}{i}", "module".repeat(300)));
        for place in ["config.json", "hf_quant_config.json"] {
            let files = with_names(&mut long()).beside(place, json!({ "quantization": said }));
            files.not_opened(&[place, "its patterns and groups"]);
        }
        let files = with_names(&mut long()).metadata("quantization_config", &said);
        files.not_opened(&["model.safetensors", "its patterns and groups"]);
        // The same beside few names.
        let files = Files::new(Dialect::ModelOpt).metadata("quantization_config", &said);
        Checkpoint::open(files.write()).unwrap();
    }
    // A name of many modules, each of which a config may name.
    let deep = || with_names(&mut std::iter::once("m.".repeat(200_000)));
    deep()
        .metadata("quantization_config", json!({ "ignore": ["x"] }))
        .not_opened(&["its patterns and groups"]);
    Checkpoint::open(deep().write()).unwrap();
}

/// Python writes numbers that JSON does not have, as configs of hybrid models do.
#[test]
fn configs_with_pythons_numbers_are_read() {
    for limit in ["Infinity", "-Infinity", "NaN"] {
        let text = |config: &str| {
            format!(r#"{{"time_step_limit": [0.0, {limit}], "x": "{limit}", {config}}}"#)
        };
        let rotated = text(r#""quantization_config": {"transform_config": {"u": {}}}"#);
        for name in ["config.json", "hf_quant_config.json"] {
            let files = Files::new(Dialect::ModelOpt).beside(name, &rotated);
            files.refused(&[name, "transform_config"]);
        }
        let files = Files::new(Dialect::ModelOpt).metadata("hf_quant_config", &rotated);
        files.refused(&["hf_quant_config", "transform_config"]);
        let files = Files::new(Dialect::ModelOpt).beside("config.json", text(r#""a": 1"#));
        assert_eq!(files.notes(), [""; 0], "{limit}");
    }
}

#[test]
fn configs_larger_than_any_are_notes_that_name_the_limit() {
    let zeros = |length: usize| format!("{{\"a\":[0{}]}}", ",0".repeat(length));
    for (text, limit) in [
        (zeros(5_000_000), "4194304 values"),
        (zeros(17_000_000), "33554432 bytes"),
    ] {
        for files in [
            Files::new(Dialect::ModelOpt).beside("config.json", &text),
            Files::new(Dialect::ModelOpt).metadata("quantization_config", &text),
        ] {
            files.notes_that(&["not read", limit]);
        }
        // ComfyUI's entry says that layers lie otherwise, whatever else.
        let files = Files::new(Dialect::ModelOpt).metadata(COMFY_ENTRY, &text);
        files.refused(&[COMFY_ENTRY]);
    }
    // One that names each module of a large model.
    let modules: serde_json::Map<String, Value> = (0..70_000)
        .map(|i| format!("model.layers.60.mlp.experts.{i}.down_proj"))
        .chain(["a.l".into()])
        .map(|name| (name, json!({ "quant_algo": "NVFP4", "group_size": 16 })))
        .collect();
    let config =
        json!({ "quantization": { "quant_algo": "MIXED_PRECISION", "quantized_layers": modules } });
    let config = serde_json::to_string_pretty(&config).unwrap();
    let files = Files::new(Dialect::ModelOpt).beside("hf_quant_config.json", &config);
    assert_eq!(files.notes(), [""; 0]);
}

/// Only the map of an index is kept, and the rest only skipped, however deep it is.
#[test]
fn what_else_an_index_has_is_skipped() {
    let files = Files::new(Dialect::ModelOpt);
    files.write();
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let index =
        format!(r#"{{"metadata": {deep}, "weight_map": {{"a.l.weight": "model.safetensors"}}}}"#);
    let files = files.beside(INDEX_FILE, index);
    let checkpoint = Checkpoint::open(files.directory.path()).unwrap();
    checkpoint.layer("a.l").unwrap();
}
