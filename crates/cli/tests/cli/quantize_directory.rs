//! `quantize --to`: directories in, directories out, and nothing half-written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::bf16;
use nvfp4_gemv::checkpoint::{Checkpoint, Dialect, Gguf, ModuleKind, Note, RowOrder};
use nvfp4_gemv::quantize::{Calibration, Quantized, quantize, quantize_calibrated};
use nvfp4_gemv::{GlobalScale, reference};
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::{Folder, contains, fails, json, prints};

const HIDDEN: usize = 64;

/// Tensors of one file: numbers by name, as BF16 but for norms.
type Numbers = Vec<(String, Vec<usize>, Vec<f32>)>;

fn numbers(seed: u64, all: &[(&str, &[usize])]) -> Numbers {
    let mut rng = fastrand::Rng::with_seed(seed);
    let each = |(name, shape): &(&str, &[usize])| {
        // Layers of different sizes, so that their global scales differ.
        let size = 0.1 + rng.f32();
        let count = shape.iter().product();
        let values = (0..count).map(|_| bf16::from_f32(size * (rng.f32() - 0.5)).to_f32());
        ((*name).to_owned(), shape.to_vec(), values.collect())
    };
    all.iter().map(each).collect()
}

fn write_file(path: &Path, numbers: &Numbers) {
    let tensors = numbers.iter().map(|(name, shape, values)| {
        let tensor = match shape.len() {
            1 => NewTensor::f32(shape, values),
            _ => {
                let bytes = values.iter().map(|x| bf16::from_f32(*x).to_le_bytes());
                NewTensor::new(Dtype::BF16, shape, bytes.collect::<Vec<_>>().concat())
            }
        };
        (name.clone(), tensor)
    });
    file::write(path, tensors, None).unwrap();
}

/// A model of two files, with a config and a tokenizer.
fn write_model(folder: &Path, files: &[Numbers; 2], config: &Value) {
    fs::create_dir_all(folder).unwrap();
    let mut map = BTreeMap::new();
    for (at, numbers) in files.iter().enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", at + 1);
        write_file(&folder.join(&name), numbers);
        map.extend(
            numbers
                .iter()
                .map(|(tensor, ..)| (tensor.clone(), name.clone())),
        );
    }
    let index = json!({ "metadata": {}, "weight_map": map });
    for (name, value) in [
        ("model.safetensors.index.json", &index),
        ("config.json", config),
        ("tokenizer.json", &json!({ "model": "none" })),
    ] {
        fs::write(folder.join(name), value.to_string()).unwrap();
    }
}

fn config() -> Value {
    json!({ "model_type": "llama", "hidden_size": HIDDEN, "architectures": ["LlamaForCausalLM"] })
}

const Q: &str = "model.layers.0.self_attn.q_proj";
const K: &str = "model.layers.0.self_attn.k_proj";
const UP: &str = "model.layers.0.mlp.up_proj";

fn dense() -> [Numbers; 2] {
    let weight = |name: &str| format!("{name}.weight");
    let (q, k, up) = (weight(Q), weight(K), weight(UP));
    [
        numbers(
            1,
            &[
                ("model.embed_tokens.weight", &[32, HIDDEN]),
                (&q, &[HIDDEN, HIDDEN]),
                ("model.layers.0.input_layernorm.weight", &[HIDDEN]),
            ],
        ),
        numbers(
            2,
            &[
                (&k, &[32, HIDDEN]),
                (&up, &[48, HIDDEN]),
                ("model.layers.0.mlp.gate.weight", &[4, HIDDEN]),
                ("lm_head.weight", &[32, HIDDEN]),
            ],
        ),
    ]
}

fn values<'a>(files: &'a [Numbers; 2], name: &str) -> (&'a [usize], &'a [f32]) {
    let found = files.iter().flatten().find(|(of, ..)| of == name).unwrap();
    (&found.1, &found.2)
}

/// A layer is what the quantiser makes of these numbers.
#[track_caller]
fn is_quantised(checkpoint: &Checkpoint, name: &str, expected: &Quantized, dialect: Dialect) {
    let layer = checkpoint.layer(name).unwrap();
    assert_eq!(
        (layer.rows(), layer.k()),
        (expected.rows, expected.k),
        "{name}"
    );
    assert_eq!(layer.exporter(), dialect.into());
    assert_eq!(layer.codes(), expected.codes, "{name}");
    assert_eq!(layer.scales(), expected.scales, "{name}");
    assert_eq!(layer.global(), expected.global, "{name}");
    // The labels agree with the tensors.
    let is_label = |note: &Note| !matches!(note, Note::NotAdded { .. });
    assert!(!layer.notes().iter().any(is_label), "{:?}", layer.notes());
}

fn of(values: &[f32], rows: usize, dialect: Dialect, global: Option<GlobalScale>) -> Quantized {
    quantize(values, rows, values.len() / rows, dialect, global).unwrap()
}

#[test]
fn a_directory_becomes_a_directory_that_opens() {
    let (dir, model) = (Folder::new(), dense());
    let source = dir.at("model");
    write_model(Path::new(&source), &model, &config());
    for dialect in Dialect::ALL {
        let out = dir.at(dialect.name());
        let report = json(&[
            "quantize",
            &source,
            "--to",
            &out,
            "--dialect",
            dialect.name(),
        ]);
        let checkpoint = Checkpoint::open(&out).unwrap();
        assert_eq!(checkpoint.files().len(), 2);
        assert!(checkpoint.notes().is_empty(), "{:?}", checkpoint.notes());
        let layers: Vec<&str> = checkpoint.layers().collect();
        assert_eq!(layers, [UP, K, Q]);
        for (at, name) in layers.into_iter().enumerate() {
            let (shape, numbers) = values(&model, &format!("{name}.weight"));
            let expected = of(numbers, shape[0], dialect, None);
            is_quantised(&checkpoint, name, &expected, dialect);
            // How far it moved, from the file itself.
            let weights = expected.weights().unwrap();
            let decoded = (0..shape[0]).flat_map(|row| reference::decode_row(&weights, 0, row));
            let off: f64 = numbers
                .iter()
                .zip(decoded)
                .map(|(x, y)| (f64::from(*x) - y).powi(2))
                .sum();
            let all: f64 = numbers.iter().map(|x| f64::from(*x).powi(2)).sum();
            let said = &report["layers"][at];
            assert_eq!(said["name"], name);
            let error = said["relative_error"].as_f64().unwrap();
            assert!((error - (off / all).sqrt()).abs() < 1e-12, "{said}");
            assert!((0.02..0.2).contains(&error), "{said}");
        }
        let kept = [
            "lm_head.weight",
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.mlp.gate.weight",
        ];
        let before = Checkpoint::open(&source).unwrap();
        for name in kept {
            let [was, is] = [&before, &checkpoint].map(|of| of.tensor(name).unwrap());
            assert_eq!(
                (was.dtype(), was.shape(), was.bytes()),
                (is.dtype(), is.shape(), is.bytes())
            );
        }
        assert_eq!(report["copied"], kept.len());
        // The rest is excluded by name, which the reader knows from the configs.
        for module in checkpoint.modules() {
            let is_left = matches!(module.kind(), ModuleKind::Dense(_));
            assert!(module.notes().is_empty(), "{:?}", module.notes());
            assert!(
                !is_left || module.config() == Some("not quantised"),
                "{module:?}"
            );
        }
        let written: Value =
            serde_json::from_slice(&fs::read(format!("{out}/config.json")).unwrap()).unwrap();
        assert_eq!(written["hidden_size"], HIDDEN);
        let label = &written["quantization_config"];
        let (method, ignored) = match dialect {
            Dialect::ModelOpt => ("modelopt", &label["ignore"]),
            Dialect::CompressedTensors => ("compressed-tensors", &label["ignore"]),
        };
        assert_eq!(label["quant_method"], method);
        let left = ["lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"];
        assert_eq!(*ignored, json!(left));
        let has = |name: &str| Path::new(&out).join(name).exists();
        assert_eq!(has("hf_quant_config.json"), dialect == Dialect::ModelOpt);
        assert!(has("tokenizer.json") && !has("lock"));
        assert_eq!(
            fs::read_dir(&out).unwrap().count(),
            5 + usize::from(dialect == Dialect::ModelOpt)
        );
    }
    // Nothing is beside them.
    assert_eq!(dir.names(), ["compressed-tensors", "model", "modelopt"]);
    let again = fails(&["quantize", &source, "--to", &dir.at("modelopt")]);
    contains(&again, &["is there already"]);
    let quantised = fails(&["quantize", &dir.at("modelopt"), "--to", &dir.at("twice")]);
    contains(&quantised, &["is NVFP4 already"]);
    let none = fails(&[
        "quantize",
        &source,
        "--to",
        &dir.at("none"),
        "--exclude",
        "*",
    ]);
    contains(&none, &["nothing to quantise", "lm_head.weight"]);
    assert_eq!(dir.names().len(), 3);
}

/// q is in one file, k in the other; up has no gate to share with.
#[test]
fn parts_of_fused_layers_share_the_widest_scale() {
    let (dir, model) = (Folder::new(), dense());
    let (source, out) = (dir.at("model"), dir.at("out"));
    write_model(Path::new(&source), &model, &config());
    json(&["quantize", &source, "--to", &out, "--share-scales"]);
    let checkpoint = Checkpoint::open(&out).unwrap();
    let dialect = Dialect::ModelOpt;
    let [q, k] = [Q, K].map(|name| values(&model, &format!("{name}.weight")).1);
    let [q_own, k_own] =
        [(q, HIDDEN), (k, 32)].map(|(numbers, rows)| of(numbers, rows, dialect, None).global);
    assert_ne!(q_own, k_own);
    let widest = if q_own.stored() > k_own.stored() {
        q_own
    } else {
        k_own
    };
    for (name, numbers, rows) in [(Q, q, HIDDEN), (K, k, 32)] {
        let expected = of(numbers, rows, dialect, Some(widest));
        is_quantised(&checkpoint, name, &expected, dialect);
    }
    let joined = checkpoint.joined(&[Q, K], RowOrder::Stacked).unwrap();
    assert!(joined.row_alpha().is_none());
    let (shape, up) = values(&model, &format!("{UP}.weight"));
    is_quantised(&checkpoint, UP, &of(up, shape[0], dialect, None), dialect);
}

/// Stacked experts become a layer each, whichever way their matrices lie.
#[test]
fn stacked_experts_become_layers() {
    const M: usize = 16;
    const UP: &str = "model.layers.0.mlp.experts.gate_up_proj";
    const DOWN: &str = "model.layers.0.mlp.experts.down_proj";
    const ROUTER: &str = "model.layers.0.mlp.router.weight";
    let experts = "model.layers.0.mlp.experts";
    for is_transposed in [false, true] {
        let dir = Folder::new();
        let shapes: [&[usize]; 2] = match is_transposed {
            false => [&[3, 2 * M, HIDDEN], &[3, HIDDEN, M]],
            true => [&[3, HIDDEN, 2 * M], &[3, M, HIDDEN]],
        };
        let model = [
            numbers(1, &[(UP, shapes[0]), (ROUTER, &[3, HIDDEN])]),
            numbers(2, &[(DOWN, shapes[1])]),
        ];
        let source = dir.at("model");
        write_model(Path::new(&source), &model, &config());
        for dialect in Dialect::ALL {
            let out = dir.at(dialect.name());
            let report = json(&[
                "quantize",
                &source,
                "--to",
                &out,
                "--dialect",
                dialect.name(),
            ]);
            assert_eq!(report["quantised"], 6);
            let checkpoint = Checkpoint::open(&out).unwrap();
            for (name, rows, k) in [(UP, 2 * M, HIDDEN), (DOWN, HIDDEN, M)] {
                let part = name.rsplit_once('.').unwrap().1;
                let (_, all) = values(&model, name);
                for (expert, stored) in all.chunks(rows * k).enumerate() {
                    let mut numbers = stored.to_vec();
                    if is_transposed {
                        for (at, x) in numbers.iter_mut().enumerate() {
                            *x = stored[at % k * rows + at / k];
                        }
                    }
                    let expected = of(&numbers, rows, dialect, None);
                    let name = format!("{experts}.{expert}.{part}");
                    is_quantised(&checkpoint, &name, &expected, dialect);
                }
                let all = checkpoint
                    .experts(experts, &[part], RowOrder::Stacked)
                    .unwrap();
                assert_eq!((all.shape().l(), all.shape().m()), (3, rows));
            }
            assert!(checkpoint.tensor(ROUTER).is_some());
        }
        // Without the hidden size nobody knows which dimension is K.
        fs::write(format!("{source}/config.json"), "{}").unwrap();
        let none = fails(&["quantize", &source, "--to", &dir.at("none")]);
        contains(&none, &["no config says which dimension is K"]);
    }
}

/// Under the stack's old name nobody would find it: a model without biases, and no error.
#[test]
fn the_bias_of_stacked_experts_goes_with_them() {
    const EXPERTS: &str = "model.layers.0.mlp.experts";
    const M: usize = 16;
    let [up, down] = ["gate_up_proj", "down_proj"].map(|part| format!("{EXPERTS}.{part}"));
    let bias = format!("{up}_bias");
    let model = |bias_of: &[usize]| {
        // In another file than the experts, and before it.
        [
            numbers(1, &[(&bias, bias_of)]),
            numbers(2, &[(&up, &[3, 2 * M, HIDDEN]), (&down, &[3, HIDDEN, M])]),
        ]
    };
    let dir = Folder::new();
    let (source, out) = (dir.at("model"), dir.at("out"));
    let of_rows = model(&[3, 2 * M]);
    write_model(Path::new(&source), &of_rows, &config());
    let report = json(&["quantize", &source, "--to", &out]);
    assert_eq!(
        (&report["quantised"], &report["copied"]),
        (&json!(6), &json!(1))
    );
    let checkpoint = Checkpoint::open(&out).unwrap();
    assert!(checkpoint.tensor(&bias).is_none());
    let (_, expected) = values(&of_rows, &bias);
    for (expert, row) in expected.chunks(2 * M).enumerate() {
        let name = format!("{EXPERTS}.{expert}.gate_up_proj");
        let found = checkpoint.tensor(&format!("{name}.bias")).unwrap();
        assert_eq!((found.dtype(), found.shape()), (Dtype::BF16, &[2 * M][..]));
        assert_eq!(found.to_f32_widened().unwrap(), row);
        let notes = checkpoint.layer(&name).unwrap().notes().to_vec();
        assert!(matches!(&notes[..], [Note::NotAdded { .. }]), "{notes:?}");
    }

    // One that cannot be divided: the experts stay, with it.
    let out = dir.at("kept");
    write_model(Path::new(&source), &model(&[3, M]), &config());
    let report = json(&["quantize", &source, "--to", &out]);
    assert_eq!(report["quantised"], 3);
    contains(
        &report["copied_tensors"].to_string(),
        &["stacked experts with", "gate_up_proj_bias"],
    );
    let checkpoint = Checkpoint::open(&out).unwrap();
    assert!(
        [&up, &bias]
            .iter()
            .all(|name| checkpoint.tensor(name).is_some())
    );
}

/// The second file fails: the first is kept for the next run, and nothing is at the directory's place until then.
#[test]
fn a_failure_leaves_nothing_and_the_next_run_goes_on() {
    let (dir, model) = (Folder::new(), dense());
    let (source, out, whole) = (dir.at("model"), dir.at("out"), dir.at("whole"));
    let mut spoilt = model.clone();
    spoilt[1][0].2[5] = f32::NAN;
    write_model(Path::new(&source), &spoilt, &config());
    let run = ["quantize", &source, "--to", &out];
    let partial = dir.at(".out.partial");
    for _ in 0..2 {
        let error = fails(&run);
        contains(
            &error,
            &["row 0, column 5 is NaN", "goes on from", ".out.partial"],
        );
        assert!(!Path::new(&out).exists());
        let mut left: Vec<String> = fs::read_dir(&partial)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let first = "model-00001-of-00002.safetensors";
        assert_eq!(left, ["lock", first, &format!("{first}.done")]);
    }

    write_file(
        &Path::new(&source).join("model-00002-of-00002.safetensors"),
        &model[1],
    );
    let report = json(&run);
    assert_eq!(report["resumed"], 1);
    assert_eq!(report["quantised"], 3);
    assert_eq!(report["layers"].as_array().unwrap().len(), 3);
    assert!(!Path::new(&partial).exists());
    assert_eq!(json(&["quantize", &source, "--to", &whole])["resumed"], 0);
    for entry in fs::read_dir(&whole).unwrap() {
        let name = entry.unwrap().file_name();
        let [a, b] = [&whole, &out].map(|at| fs::read(Path::new(at).join(&name)).unwrap());
        assert!(a == b, "{name:?}");
    }
}

/// Each of these makes other bytes, or may.
#[test]
fn a_part_of_other_arguments_does_not_count() {
    let (dir, model) = (Folder::new(), dense());
    let (source, out, whole) = (dir.at("model"), dir.at("out"), dir.at("whole"));
    let mut spoilt = model.clone();
    spoilt[1][0].2[5] = f32::NAN;
    write_model(Path::new(&source), &spoilt, &config());
    let second = Path::new(&source).join("model-00002-of-00002.safetensors");
    let run = ["quantize", &source, "--to", &out];
    for other in [
        &["--dialect", "compressed-tensors"][..],
        &["--exclude", "*lm_head*"],
        &["--include", "*_proj*"],
        &["--share-scales"],
        &[],
    ] {
        write_file(&second, &spoilt[1]);
        contains(&fails(&run), &["is NaN"]);
        assert_eq!(notes(&dir.at(".out.partial")), 1);
        write_file(&second, &model[1]);
        if other.is_empty() {
            fs::write(
                format!("{source}/config.json"),
                r#"{"model_type": "other"}"#,
            )
            .unwrap();
        }
        assert_eq!(json(&[&run[..], other].concat())["resumed"], 0, "{other:?}");
        json(&[&["quantize", &source, "--to", &whole], other].concat());
        for entry in fs::read_dir(&whole).unwrap() {
            let name = entry.unwrap().file_name();
            let [a, b] = [&whole, &out].map(|at| fs::read(Path::new(at).join(&name)).unwrap());
            assert!(a == b, "{name:?} {other:?}");
        }
        for made in [&whole, &out] {
            fs::remove_dir_all(made).unwrap();
        }
    }
}

/// The treatment of experts may hang on a tensor in another file: a part that was made of them in another way is made
/// anew.
#[test]
fn a_part_of_another_plan_does_not_count() {
    const UP: &str = "model.layers.0.mlp.experts.gate_up_proj";
    let (dir, weird) = (Folder::new(), format!("{UP}_weird"));
    let (source, out, whole) = (dir.at("model"), dir.at("out"), dir.at("whole"));
    let first = numbers(1, &[(UP, &[3, 32, HIDDEN]), ("a.weight", &[16, HIDDEN])]);
    let mut second = numbers(2, &[("b.weight", &[16, HIDDEN]), (&weird, &[2, 2])]);
    second[0].2[0] = f32::NAN;
    write_model(Path::new(&source), &[first.clone(), second], &config());
    let run = ["quantize", &source, "--to", &out];
    contains(&fails(&run), &["is NaN"]);
    let second = numbers(2, &[("b.weight", &[16, HIDDEN])]);
    // The first file keeps its time.
    let kept = "model-00001-of-00002.safetensors";
    let [at, aside] = [
        Path::new(&source).join(kept),
        Path::new(&dir.at("aside")).to_owned(),
    ];
    fs::rename(&at, &aside).unwrap();
    write_model(Path::new(&source), &[first, second], &config());
    fs::rename(&aside, &at).unwrap();
    let report = json(&run);
    assert_eq!(
        (&report["resumed"], &report["quantised"]),
        (&json!(0), &json!(5))
    );
    json(&["quantize", &source, "--to", &whole]);
    let [a, b] = [&whole, &out].map(|at| fs::read(Path::new(at).join(kept)).unwrap());
    assert!(a == b);
}

/// The product of a square one would be the transposed matrix's.
#[test]
fn weights_of_conv1d_stay() {
    let dir = Folder::new();
    let (source, file) = (dir.at("model"), dir.at("file.safetensors"));
    let names = ["h.0.attn.c_proj.weight", "h.0.mlp.other.weight"];
    let all = names.map(|name| numbers(1, &[(name, &[HIDDEN, HIDDEN])]));
    for (kind, stays) in [("gpt2", 1), ("gpt_bigcode", 0)] {
        write_model(Path::new(&source), &all, &json!({ "model_type": kind }));
        for run in [["--to", &dir.at(kind)], [&file, "--force"]] {
            let report = json(&[&["quantize", &source], &run[..]].concat());
            assert_eq!(report["copied"], stays, "{kind} {run:?}");
            let said = report["copied_tensors"].to_string();
            assert_eq!(said.contains("Conv1D"), stays == 1, "{said}");
        }
    }
}

/// One label cannot speak of two kinds of layers, wherever the input says what it is.
#[test]
fn models_that_are_quantised_are_refused_wherever_they_say_so() {
    let (dir, plain) = (Folder::new(), config());
    let (source, out) = (dir.at("model"), dir.at("out"));
    let with = |key: &str, value: Value| {
        let mut config = config();
        config[key] = value;
        config
    };
    let bytes = |name: &str, dtype| (name.to_owned(), NewTensor::zeros(dtype, &[16, 64]));
    let cases = [
        (
            "quantization_config",
            with("text_config", json!({ "quantization_config": {} })),
            vec![],
        ),
        (
            "quantization",
            with("quantization", json!({ "bits": 4 })),
            vec![],
        ),
        (
            "b.weight",
            plain.clone(),
            vec![bytes("b.weight", Dtype::F8_E4M3)],
        ),
        (
            "b.qweight",
            plain.clone(),
            vec![bytes("b.qweight", Dtype::I32)],
        ),
        (
            "b.comfy_quant",
            plain.clone(),
            vec![bytes("b.comfy_quant", Dtype::U8)],
        ),
        (
            "experts.gate_up_proj",
            plain.clone(),
            vec![
                (
                    "experts.gate_up_proj".into(),
                    NewTensor::zeros(Dtype::U8, &[2, 16, 32]),
                ),
                (
                    "experts.gate_up_proj_weight_scale".into(),
                    NewTensor::zeros(Dtype::F8_E4M3, &[2, 16, 4]),
                ),
            ],
        ),
    ];
    fs::create_dir(&source).unwrap();
    let run = ["quantize", &source, "--to", &out];
    let write = |config: &Value, others: Vec<(String, NewTensor<'static>)>| {
        // A mask is no weight.
        let more = [
            (
                "a.weight".to_owned(),
                NewTensor::f32(&[16, 64], &[1.0; 1024]),
            ),
            bytes("a.mask", Dtype::U8),
        ];
        let all = others.into_iter().chain(more);
        file::write(Path::new(&format!("{source}/model.safetensors")), all, None).unwrap();
        fs::write(format!("{source}/config.json"), config.to_string()).unwrap();
    };
    for (named, config, tensors) in cases {
        write(&config, tensors);
        contains(&fails(&run), &[named, "quantised already"]);
    }
    // A file beside FP8 says that FP8 is left out.
    write(&plain, vec![bytes("b.weight", Dtype::F8_E4M3)]);
    let file = dir.at("file.safetensors");
    json(&["quantize", &source, &file]);
    let opened = Checkpoint::open(&file).unwrap();
    // transformers refuses a file without it.
    assert_eq!(opened.files()[0].metadata()["format"], "pt");
    let modules = opened.modules();
    let left = modules.iter().find(|module| module.name() == "b").unwrap();
    assert_eq!(left.config(), Some("not quantised"));
    // Nothing is known of a config that cannot be read.
    #[cfg(unix)]
    for name in ["config.json", "hf_quant_config.json"] {
        write(&plain, vec![]);
        let at = format!("{source}/{name}");
        let _ = fs::remove_file(&at);
        std::os::unix::fs::symlink("nowhere", &at).unwrap();
        contains(&fails(&run), &[name]);
        fs::remove_file(&at).unwrap();
    }
    write(&plain, vec![]);
    assert_eq!(json(&run)["quantised"], 1);
}

/// A part of the output would be of the old content, and a part of the new.
#[test]
fn an_input_that_changes_while_it_is_read_is_an_error() {
    use std::io::{Seek, SeekFrom, Write};
    let (dir, big) = (Folder::new(), numbers(2, &[("b.weight", &[1024, 1024])]));
    let (source, out) = (dir.at("model"), dir.at("out"));
    let first = numbers(1, &[("a.weight", &[1, 1024])]);
    write_model(Path::new(&source), &[first, big], &config());
    let run = ["quantize", &source, "--to", &out];
    let partial = dir.at(".out.partial");
    let done = Path::new(&partial).join("model-00001-of-00002.safetensors.done");
    // It may be quicker than this test.
    let is_noticed = (0..20u8).any(|attempt| {
        let mut command = crate::command();
        let command = command.args(run).stdout(std::process::Stdio::null());
        let child = command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        while !done.exists() && !Path::new(&out).exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let input = Path::new(&source).join("model-00002-of-00002.safetensors");
        let mut input = fs::OpenOptions::new().write(true).open(input).unwrap();
        input.seek(SeekFrom::End(-2)).unwrap();
        input.write_all(&[attempt, 0]).unwrap();
        let ended = child.wait_with_output().unwrap();
        match ended.status.success() {
            true => fs::remove_dir_all(&out).unwrap(),
            false => contains(
                &crate::text(&ended.stderr),
                &[
                    "model-00002-of-00002.safetensors",
                    "has changed while it was read",
                    "goes on from",
                ],
            ),
        }
        !ended.status.success()
    });
    assert!(is_noticed);
    assert_eq!(json(&run)["resumed"], 1);
}

/// How many files are noted as complete.
fn notes(partial: &str) -> usize {
    let all = fs::read_dir(partial).unwrap();
    let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".done")).count()
}

/// Something takes the place while it writes: it is not replaced, and all that was made counts in the next run.
#[test]
fn a_place_that_is_taken_meanwhile_costs_no_work() {
    use std::time::{Duration, Instant};
    let dir = Folder::new();
    let (source, out) = (dir.at("model"), dir.at("out"));
    let file = |name: &str, rows| numbers(1, &[(name, &[rows, 1024])]);
    write_model(
        Path::new(&source),
        &[file("a.weight", 1), file("b.weight", 1024)],
        &config(),
    );
    let run = ["quantize", &source, "--to", &out];
    let child = crate::command()
        .args(run)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let partial = dir.at(".out.partial");
    let first = Path::new(&partial).join("model-00001-of-00002.safetensors.done");
    let started = Instant::now();
    while !first.exists()
        && !Path::new(&out).exists()
        && started.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let theirs = Path::new(&out).join("theirs");
    let is_taken = fs::create_dir(&out).is_ok() && fs::write(&theirs, "").is_ok();
    let ended = child.wait_with_output().unwrap();
    // It may have been quicker than this test.
    if is_taken && !ended.status.success() {
        let said = crate::text(&ended.stderr);
        contains(&said, &["is there already", "goes on from", ".out.partial"]);
        assert!(theirs.exists());
        fs::remove_dir_all(&out).unwrap();
        assert_eq!(notes(&partial), 2);
        assert_eq!(json(&run)["resumed"], 2);
    }
    assert_eq!(Checkpoint::open(&out).unwrap().layers().len(), 2);
    assert_eq!(notes(&out), 0);
    assert_eq!(dir.names(), ["model", "out"]);
}

/// One of them writes the directory; those that come late neither write it again nor leave anything.
#[test]
fn of_several_at_once_one_writes() {
    let dir = Folder::new();
    let (source, out) = (dir.at("model"), dir.at("out"));
    write_model(Path::new(&source), &dense(), &config());
    let run = ["quantize", &source, "--to", &out];
    let start = |_| {
        let mut command = crate::command();
        let command = command.args(run).stderr(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let children: Vec<_> = (0..6).map(start).collect();
    let ended = children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap());
    let (wrote, refused): (Vec<_>, Vec<_>) = ended.partition(|ended| ended.status.success());
    assert_eq!(wrote.len(), 1);
    for ended in refused {
        let said = crate::text(&ended.stderr);
        let is_late = said.contains("is there already");
        assert!(is_late || said.contains("another program writes"), "{said}");
    }
    assert_eq!(Checkpoint::open(&out).unwrap().layers().len(), 3);
    assert_eq!(dir.names(), ["model", "out"]);
    assert!(!Path::new(&out).join("lock").exists());
}

/// An error of the end comes before anything is quantised, and files that no run made stay.
#[test]
fn what_no_run_made_is_refused_first_and_stays() {
    let dir = Folder::new();
    let (source, out) = (dir.at("model"), dir.at("out"));
    let partial = dir.at(".out.partial");
    write_model(Path::new(&source), &dense(), &config());
    let run = ["quantize", &source, "--to", &out];
    let precious = partial.clone() + "/precious.txt";
    fs::create_dir(&partial).unwrap();
    fs::write(&precious, "mine").unwrap();
    contains(&fails(&run), &[".out.partial", "no run of this program"]);
    // A lock of somebody else's, too.
    let lock = partial.clone() + "/lock";
    for content in ["", "1234"] {
        fs::write(&lock, content).unwrap();
        contains(&fails(&run), &[".out.partial", "no run of this program"]);
        assert_eq!(fs::read(&lock).unwrap(), content.as_bytes());
    }
    // In a folder that a run has made.
    fs::remove_dir_all(&partial).unwrap();
    let mut spoilt = dense();
    spoilt[1][0].2[5] = f32::NAN;
    write_model(Path::new(&source), &spoilt, &config());
    contains(&fails(&run), &["is NaN"]);
    fs::write(&precious, "mine").unwrap();
    contains(&fails(&run), &["precious.txt", "no run makes"]);
    assert_eq!(fs::read(&precious).unwrap(), b"mine");
    fs::remove_file(&precious).unwrap();
    fs::create_dir(partial.clone() + "/somebody's").unwrap();
    contains(&fails(&run), &["somebody's", "a folder"]);
    assert_eq!(notes(&partial), 1);
    fs::remove_dir(partial + "/somebody's").unwrap();
    write_model(Path::new(&source), &dense(), &config());
    assert_eq!(json(&run)["quantised"], 3);
    assert_eq!(dir.names(), ["model", "out"]);
}

/// Nothing is written or emptied through a link, and nothing waits for a pipe.
#[cfg(unix)]
#[test]
fn links_and_pipes_at_the_place_of_the_folder_are_refused() {
    use std::os::unix::fs::symlink;
    let dir = Folder::new();
    let (source, out) = (dir.at("model"), dir.at("out"));
    let [partial, theirs, lock] =
        [".out.partial", "theirs", ".out.partial/lock"].map(|at| dir.at(at));
    let file = theirs.clone() + "/file";
    write_model(Path::new(&source), &dense(), &config());
    fs::create_dir(&theirs).unwrap();
    fs::write(&file, "mine").unwrap();
    let refused = |what: &str| {
        let error = fails(&["quantize", &source, "--to", &out]);
        contains(&error, &[what]);
        assert_eq!(fs::read(&file).unwrap(), b"mine");
        assert!(!Path::new(&out).exists());
    };
    symlink(&theirs, &partial).unwrap();
    refused(".out.partial: no run");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
    fs::remove_file(&partial).unwrap();
    fs::create_dir(&partial).unwrap();
    symlink(&file, &lock).unwrap();
    refused("lock: no run");
    fs::remove_file(&lock).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&lock).status();
    assert!(made.unwrap().success());
    refused("lock: no run");
    fs::remove_file(&lock).unwrap();
    // A run's folder, with a link under the name of a file.
    fs::write(&lock, "nvfp4-gemv quantize --to\n").unwrap();
    symlink(&file, partial + "/model-00001-of-00002.safetensors").unwrap();
    refused("no regular file");
}

/// As in a cache of downloads that lacks a file.
#[cfg(unix)]
#[test]
fn a_tokenizer_that_cannot_be_read_is_an_error() {
    let dir = Folder::new();
    let source = dir.at("model");
    write_model(Path::new(&source), &dense(), &config());
    let tokenizer = format!("{source}/tokenizer.json");
    fs::remove_file(&tokenizer).unwrap();
    std::os::unix::fs::symlink("nowhere", &tokenizer).unwrap();
    let error = fails(&["quantize", &source, "--to", &dir.at("out")]);
    contains(&error, &["tokenizer.json"]);
    assert_eq!(dir.names(), ["model"]);
}

/// A model folder could have anything that the user can read copied into the output.
#[cfg(unix)]
#[test]
fn links_that_lead_out_of_the_directory_are_not_copied() {
    let dir = Folder::new();
    let (cache, secret) = (dir.at("models--a"), dir.at("secret.txt"));
    let source = cache.clone() + "/snapshots/1";
    write_model(Path::new(&source), &dense(), &config());
    fs::create_dir(cache + "/blobs").unwrap();
    fs::write(dir.at("models--a/blobs/2"), "of the hub").unwrap();
    fs::write(&secret, "secret").unwrap();
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, format!("{source}/{name}")).unwrap();
    };
    link("../../blobs/2", "merges.txt");
    link("tokenizer.json", "other.json");
    let out = dir.at("out");
    link(&secret, "notes.md");
    let error = fails(&["quantize", &source, "--to", &out]);
    contains(&error, &["notes.md", "out of the directory"]);
    fs::remove_file(source.clone() + "/notes.md").unwrap();
    // The config is copied, too.
    let (inside, outside) = (source.clone() + "/config.json", dir.at("secret.json"));
    fs::rename(&inside, &outside).unwrap();
    link(&outside, "config.json");
    let error = fails(&["quantize", &source, "--to", &out]);
    contains(&error, &["config.json", "out of the directory"]);
    fs::remove_file(&inside).unwrap();
    fs::rename(&outside, &inside).unwrap();
    json(&["quantize", &source, "--to", &out]);
    assert_eq!(
        fs::read(out.clone() + "/merges.txt").unwrap(),
        b"of the hub"
    );
    assert!(Path::new(&(out + "/other.json")).exists());
}

/// Two tensors of one name in two files are an error before anything is quantised.
#[test]
fn names_that_meet_in_the_output_are_refused_first() {
    let dir = Folder::new();
    let source = dir.at("model");
    let model = [
        numbers(1, &[("a.weight", &[16, HIDDEN])]),
        numbers(2, &[("b.weight", &[16, HIDDEN]), ("a.weight_scale", &[16])]),
    ];
    write_model(Path::new(&source), &model, &config());
    let error = fails(&["quantize", &source, "--to", &dir.at("out")]);
    contains(&error, &["two tensors \"a.weight_scale\""]);
    assert_eq!(dir.names(), ["model"]);
}

/// q and k meet the same vectors, whose products are known; of up's, the squares.
#[test]
fn statistics_decide_how_layers_are_rounded() {
    let (dir, model) = (Folder::new(), dense());
    let (source, statistics) = (dir.at("model"), dir.at("statistics"));
    write_model(Path::new(&source), &model, &config());
    let mut rng = fastrand::Rng::with_seed(3);
    let x: Vec<f32> = (0..9 * HIDDEN)
        .map(|i| rng.f32() + (i % 5) as f32)
        .collect();
    let product = |at: usize| -> f32 {
        let of_one = |x: &[f32]| x[at / HIDDEN] * x[at % HIDDEN];
        x.chunks(HIDDEN).map(of_one).sum::<f32>() / 9.0
    };
    let products: Vec<f32> = (0..HIDDEN * HIDDEN).map(product).collect();
    let squares: Vec<f32> = (0..HIDDEN).map(|i| products[i * HIDDEN + i]).collect();
    let qk = (
        format!("{Q}+{K}"),
        NewTensor::f32(&[HIDDEN, HIDDEN], &products),
    );
    let up = (UP.to_owned(), NewTensor::f32(&[HIDDEN], &squares));
    let write = |tensors: &[(String, NewTensor<'static>)]| {
        file::write(Path::new(&statistics), tensors.to_vec(), None).unwrap();
    };
    write(&[qk.clone(), up.clone()]);
    let of_products = Calibration::of_products(&products, HIDDEN).unwrap();
    let of_squares = Calibration::of_squares(&squares).unwrap();
    for dialect in Dialect::ALL {
        let out = dir.at(dialect.name());
        let run = [
            "quantize",
            &source,
            "--to",
            &out,
            "--dialect",
            dialect.name(),
        ];
        json(&[&run[..], &["--calibration", &statistics]].concat());
        let checkpoint = Checkpoint::open(&out).unwrap();
        for (name, calibration) in [(Q, &of_products), (K, &of_products), (UP, &of_squares)] {
            let (shape, numbers) = values(&model, &format!("{name}.weight"));
            let made =
                quantize_calibrated(numbers, shape[0], HIDDEN, dialect, None, calibration).unwrap();
            is_quantised(&checkpoint, name, &made, dialect);
            assert_ne!(made, of(numbers, shape[0], dialect, None), "{name}");
        }
    }
    let out = dir.at("out");
    let refused = || {
        let run = [
            "quantize",
            &source,
            "--to",
            &out,
            "--calibration",
            &statistics,
        ];
        let error = fails(&run);
        assert!(!Path::new(&out).exists());
        error
    };
    write(std::slice::from_ref(&qk));
    contains(&refused(), &["no statistics of layer", UP]);
    write(&[
        qk.clone(),
        (UP.to_owned(), NewTensor::f32(&[32], &[1.0; 32])),
    ]);
    contains(&refused(), &[UP, "[32]", "64 columns"]);
    write(&[
        qk.clone(),
        up.clone(),
        (K.to_owned(), NewTensor::f32(&[HIDDEN], &squares)),
    ]);
    contains(&refused(), &["are both of layer", K]);
    let with_last = |last: f32| {
        let wrong = [&squares[1..], &[last]].concat();
        write(&[
            qk.clone(),
            (UP.to_owned(), NewTensor::f32(&[HIDDEN], &wrong)),
        ]);
    };
    with_last(f32::NAN);
    contains(&refused(), &[UP, "element 63 is NaN"]);
    // No note of a complete file was left by what was refused before anything was read.
    assert!(!Path::new(&dir.at(".out.partial")).exists());
    with_last(-1.0);
    contains(&refused(), &[UP, "columns 63 and 63: -1"]);
    // Files that are complete are made anew with other statistics.
    write(&[(format!("{Q}+{K}+{UP}"), up.1)]);
    let again = json(&[
        "quantize",
        &source,
        "--to",
        &out,
        "--calibration",
        &statistics,
    ]);
    assert_eq!(again["resumed"], 0);
}

/// With and without others' scales: the global scale is computed of the largest element alone.
#[test]
fn an_infinite_element_is_named_by_its_place() {
    let (dir, mut model) = (Folder::new(), dense());
    let (source, out) = (dir.at("model"), dir.at("out"));
    model[0][1].2[HIDDEN + 6] = f32::NEG_INFINITY;
    write_model(Path::new(&source), &model, &config());
    for more in [&[][..], &["--share-scales"]] {
        let run = [&["quantize", &source, "--to", &out], more].concat();
        contains(&fails(&run), &[Q, "row 1, column 6 is -inf"]);
    }
}

/// Killed at any moment, it leaves nothing at the place either, and the next run ends the work.
#[cfg(unix)]
#[test]
fn a_kill_leaves_nothing_and_the_next_run_goes_on() {
    use std::time::{Duration, Instant};
    let dir = Folder::new();
    let (source, out) = (dir.at("model"), dir.at("out"));
    let big = |name: &str, seed| numbers(seed, &[(name, &[512, 1024])]);
    write_model(
        Path::new(&source),
        &[big("a.weight", 1), big("b.weight", 2)],
        &config(),
    );
    let run = ["quantize", &source, "--to", &out];
    let mut child = crate::command().args(run).spawn().unwrap();
    let partial = dir.at(".out.partial");
    let first = Path::new(&partial).join("model-00001-of-00002.safetensors.done");
    let started = Instant::now();
    while !first.exists()
        && !Path::new(&out).exists()
        && started.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // It may have been quicker than this test, on one file or on both.
    if !Path::new(&out).exists() {
        let done = notes(&partial);
        assert!(done > 0);
        assert_eq!(json(&run)["resumed"], done);
    }
    assert_eq!(Checkpoint::open(&out).unwrap().layers().len(), 2);
    assert_eq!(dir.names(), ["model", "out"]);
}

#[test]
fn a_gguf_file_becomes_a_directory() {
    let data = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/gguf/llama.gguf"
    );
    let file = Gguf::open(data).unwrap();
    let dir = Folder::new();
    for dialect in Dialect::ALL {
        let out = dir.at(dialect.name());
        let report = json(&["quantize", data, "--to", &out, "--dialect", dialect.name()]);
        let checkpoint = Checkpoint::open(&out).unwrap();
        assert_eq!(checkpoint.layers().len(), 7);
        let repacked = ["mlp.gate_proj", "mlp.up_proj", "self_attn.k_proj"];
        let repacked = repacked.map(|name| format!("model.layers.0.{name}"));
        assert_eq!(report["repacked"], json!(repacked));
        for name in repacked {
            let (layer, was) = (
                checkpoint.layer(&name).unwrap(),
                file.weights(&name).unwrap(),
            );
            assert_eq!(
                (layer.codes(), layer.scales()),
                (was.codes(), was.scales()),
                "{name}"
            );
            assert_eq!(layer.global().multiplier(), was.global().multiplier());
        }
        for name in [
            "self_attn.q_proj",
            "self_attn.o_proj",
            "self_attn.v_proj",
            "mlp.down_proj",
        ] {
            let name = format!("model.layers.0.{name}");
            let dense = file.dense(&name).unwrap();
            let mut numbers = vec![0.0; dense.rows() * dense.k()];
            for (row, out) in numbers.chunks_mut(dense.k()).enumerate() {
                dense.row(row, out).unwrap();
            }
            is_quantised(
                &checkpoint,
                &name,
                &of(&numbers, dense.rows(), dialect, None),
                dialect,
            );
        }
        let embeddings = checkpoint.dense("model.embed_tokens").unwrap();
        let (mut is, mut was) = (vec![0.0; HIDDEN], vec![0.0; HIDDEN]);
        for row in 0..embeddings.rows() {
            embeddings.row(row, &mut is).unwrap();
            file.dense("model.embed_tokens")
                .unwrap()
                .row(row, &mut was)
                .unwrap();
            assert_eq!(is, was);
        }
        for name in ["model.norm.weight", "model.layers.0.self_attn.q_proj.bias"] {
            let found = checkpoint.tensor(name).unwrap().to_f32().unwrap();
            assert_eq!(found, file.vector(name).unwrap());
        }
        let config: Value =
            serde_json::from_slice(&fs::read(format!("{out}/config.json")).unwrap()).unwrap();
        assert_eq!(config["model_type"], "llama");
        // Without it transformers reads no bias.
        assert_eq!(config["attention_bias"], true);
        assert_eq!(config["num_key_value_heads"], 2);
        assert_eq!(config["rms_norm_eps"], 1e-5);
        // Tied to the embeddings, it has no tensors, and is no quantised layer.
        let left = json!(["lm_head", "model.embed_tokens"]);
        assert_eq!(config["quantization_config"]["ignore"], left);
        assert_eq!(config["tie_word_embeddings"], true);
    }
    let shown = prints(&["inspect", data]);
    contains(
        &shown,
        &[
            "architecture llama",
            "model.layers.*.self_attn.q_proj.weight",
            "blk.*.attn_q.weight",
        ],
    );
    let listed = json(&["inspect", data]);
    assert_eq!(
        listed["tensors"].as_array().unwrap().len(),
        file.tensors().len()
    );
    assert_eq!(listed["kinds"]["NVFP4"]["tensors"], 2);
}

/// A GGUF file of entries (key, type, bytes) and F32 tensors.
fn write_gguf(path: &str, entries: &[(&str, u32, Vec<u8>)], tensors: &Numbers) {
    let of = |(name, shape, values): &(String, Vec<usize>, Vec<f32>)| {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes());
        (name.clone(), shape.clone(), 0, bytes.collect())
    };
    let tensors: Vec<_> = tensors.iter().map(of).collect();
    write_gguf_of(path, entries, &tensors);
}

/// A tensor of GGUF: name, shape that begins with the outermost dimension, type, bytes.
type Stored = (String, Vec<usize>, u32, Vec<u8>);

/// A GGUF file, version 3.
fn write_gguf_of(path: &str, entries: &[(&str, u32, Vec<u8>)], tensors: &[Stored]) {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((entries.len() as u64).to_le_bytes());
    for (key, kind, value) in entries {
        header.extend([&text(key), &kind.to_le_bytes()[..], value].concat());
    }
    let mut data = Vec::new();
    for (name, shape, kind, bytes) in tensors {
        header.extend(text(name));
        header.extend((shape.len() as u32).to_le_bytes());
        let innermost_first = shape.iter().rev();
        header.extend(innermost_first.flat_map(|size| (*size as u64).to_le_bytes()));
        header.extend(kind.to_le_bytes());
        header.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    header.resize(header.len().next_multiple_of(32), 0);
    fs::write(path, [header, data].concat()).unwrap();
}

const U32: u32 = 4;
const F32: u32 = 6;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

fn entry_of_text<'a>(key: &'a str, value: &str) -> (&'a str, u32, Vec<u8>) {
    let length = (value.len() as u64).to_le_bytes();
    (key, TEXT, [&length, value.as_bytes()].concat())
}

#[test]
fn the_bias_of_stacked_experts_of_a_gguf_file_goes_with_them() {
    let dir = Folder::new();
    let (source, out) = (dir.at("m.gguf"), dir.at("out"));
    let experts = "blk.0.ffn_up_exps";
    let [weight, bias] = ["weight", "bias"].map(|part| format!("{experts}.{part}"));
    let tensors = numbers(1, &[(&weight, &[2, 3, 32]), (&bias, &[2, 3])]);
    let architecture = entry_of_text("general.architecture", "qwen3moe");
    write_gguf(&source, std::slice::from_ref(&architecture), &tensors);
    assert_eq!(json(&["quantize", &source, "--to", &out])["quantised"], 2);
    let checkpoint = Checkpoint::open(&out).unwrap();
    let rows = tensors[1].2.chunks(3).enumerate();
    for (expert, row) in rows {
        let name = format!("model.layers.0.mlp.experts.{expert}.up_proj.bias");
        assert_eq!(checkpoint.tensor(&name).unwrap().to_f32().unwrap(), row);
    }
    let stacked = "model.layers.0.mlp.experts.up_proj.bias";
    assert!(checkpoint.tensor(stacked).is_none());

    let tensors = numbers(1, &[(&weight, &[2, 3, 32]), (&bias, &[3, 2])]);
    write_gguf(&source, &[architecture], &tensors);
    let error = fails(&["quantize", &source, "--to", &dir.at("none")]);
    contains(&error, &[stacked, "[3, 2]", "not the bias [2, 3]"]);
}

/// It was found when the layer was written, after those before it had been quantised.
#[test]
fn a_global_scale_that_the_dialect_does_not_hold_is_refused_first() {
    const NVFP4: u32 = 40;
    let dir = Folder::new();
    let source = dir.at("m.gguf");
    // 64 elements: four scales of 1, 32 bytes of codes.
    let row = [&[0x38; 4][..], &[0x21; 32]].concat();
    let write = |globals: &[f32]| {
        let shape = match globals.len() {
            1 => vec![2, 64],
            experts => vec![experts, 2, 64],
        };
        let rows = row.repeat(2 * globals.len());
        let scale = globals.iter().flat_map(|x| x.to_le_bytes()).collect();
        let dense = vec![0; 4 * 2 * 64];
        write_gguf_of(
            &source,
            &[entry_of_text("general.architecture", "none")],
            &[
                ("a.0.dense.weight".into(), vec![2, 64], 0, dense),
                ("a.1.up.weight".into(), shape, NVFP4, rows),
                ("a.1.up.scale".into(), vec![globals.len()], 0, scale),
            ],
        );
    };
    let run = |out: &str, dialect: Dialect| {
        crate::program(&[
            "quantize",
            &source,
            "--to",
            out,
            "--dialect",
            dialect.name(),
        ])
    };
    for globals in [&[0.3][..], &[0.25, 0.3]] {
        write(globals);
        let ended = run(&dir.at("out"), Dialect::CompressedTensors);
        assert!(!ended.status.success());
        let why = [
            "m.gguf",
            "a.1.up",
            "0.3",
            "no exact reciprocal",
            "--dialect modelopt",
        ];
        contains(&crate::text(&ended.stderr), &why);
        // Nothing was begun.
        assert_eq!(dir.names(), ["m.gguf"]);
    }
    for (dialect, globals) in [
        (Dialect::ModelOpt, &[0.3][..]),
        (Dialect::CompressedTensors, &[0.25]),
        (Dialect::CompressedTensors, &[0.25, 4.0]),
    ] {
        write(globals);
        let out = dir.at("out");
        let ended = run(&out, dialect);
        assert!(ended.status.success(), "{}", crate::text(&ended.stderr));
        let checkpoint = Checkpoint::open(&out).unwrap();
        for (expert, global) in globals.iter().enumerate() {
            let name = match globals.len() {
                1 => "a.1.up".into(),
                _ => format!("a.1.{expert}.up"),
            };
            let found = checkpoint.layer(&name).unwrap().global();
            assert_eq!(found.multiplier(), f64::from(*global));
        }
        fs::remove_dir_all(out).unwrap();
    }
}

/// Llama 3.1's factors of rotary positions become the config's `rope_scaling`, from which transformers makes them again;
/// a tensor of them would be one that it does not know. Other factors are refused.
#[test]
fn rotary_factors_of_a_gguf_file_become_the_configs_scaling() {
    let dir = Folder::new();
    let (source, out) = (dir.at("m.gguf"), dir.at("out"));
    // Made by llama.cpp's converter of `head_dim` 16, `rope_theta` 500000, factor 32, 1, 4, 8192.
    let made = [1.0f32, 1.0, 1.0, 1.0, 3.292_262_8, 32.0, 32.0, 32.0];
    let run = |factors: &[f32], base: f32| {
        let entries = [
            entry_of_text("general.architecture", "llama"),
            ("llama.rope.freq_base", F32, base.to_le_bytes().to_vec()),
            (
                "llama.rope.dimension_count",
                U32,
                16u32.to_le_bytes().to_vec(),
            ),
        ];
        let mut tensors = numbers(1, &[("blk.0.ffn_up.weight", &[16, 32])]);
        tensors.push((
            "rope_freqs.weight".into(),
            vec![factors.len()],
            factors.to_vec(),
        ));
        write_gguf(&source, &entries, &tensors);
        crate::program(&["quantize", &source, "--to", &out])
    };
    let ended = run(&made, 500_000.0);
    assert!(ended.status.success(), "{}", crate::text(&ended.stderr));
    contains(
        &crate::text(&ended.stdout),
        &["rope_freqs.weight", "config.json"],
    );
    let config = fs::read(format!("{out}/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let expected = json!({
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    assert_eq!(config["rope_scaling"], expected);
    assert!(
        Checkpoint::open(&out)
            .unwrap()
            .tensor("rope_freqs.weight")
            .is_none()
    );
    fs::remove_dir_all(&out).unwrap();
    let mut other = made;
    other[4] *= 1.001;
    for (factors, base) in [
        (&other[..], 500_000.0),
        (&made[..7], 500_000.0),
        (&made, 10_000.0),
    ] {
        let ended = run(factors, base);
        assert!(!ended.status.success());
        contains(
            &crate::text(&ended.stderr),
            &["m.gguf", "rope_freqs.weight"],
        );
        assert_eq!(dir.names(), ["m.gguf"]);
    }
}

/// The config that is made would be another model's, without a word.
#[test]
fn what_a_config_of_a_gguf_file_does_not_say_is_refused() {
    let dir = Folder::new();
    let (source, out) = (dir.at("m.gguf"), dir.at("out"));
    let weight = ("blk.0.ffn_up.weight", &[16, 32][..]);
    let f32_of = |key, value: f32| (key, F32, value.to_le_bytes().to_vec());
    let u32_of = |key, value: u32| (key, U32, value.to_le_bytes().to_vec());
    let per_layer = [
        &U32.to_le_bytes()[..],
        &1u64.to_le_bytes(),
        &2u32.to_le_bytes(),
    ]
    .concat();
    let run = |entry: (&str, u32, Vec<u8>), tensors: &[(&str, &[usize])]| {
        let architecture = entry_of_text("general.architecture", "llama");
        let tensors = numbers(1, &[&[weight], tensors].concat());
        write_gguf(&source, &[architecture, entry], &tensors);
        crate::program(&["quantize", &source, "--to", &out])
    };
    let (kind, factor) = ("llama.rope.scaling.type", "llama.rope.scaling.factor");
    let heads = "llama.attention.head_count_kv";
    for (entry, tensors, named) in [
        (entry_of_text(kind, "yarn"), &[][..], "\"yarn\""),
        (u32_of(kind, 1), &[], kind),
        (f32_of(factor, 4.0), &[], factor),
        (f32_of("llama.rope.scale_linear", 2.0), &[], "scale_linear"),
        (
            entry_of_text(kind, "none"),
            &[("rope_freqs.weight", &[16][..])],
            "rope_freqs.weight",
        ),
        ((heads, ARRAY, per_layer), &[], heads),
        (f32_of("llama.block_count", 1.0), &[], "llama.block_count"),
        (u32_of("llama.expert_count", 8), &[], "llama.expert_count"),
        (f32_of("llama.attention.scale", 0.5), &[], "attention.scale"),
        (
            entry_of_text(kind, "none"),
            &[("blk.0.ffn_up_exps.weight", &[2, 16, 32][..])],
            "blk.0.ffn_up_exps.weight",
        ),
    ] {
        let ended = run(entry, tensors);
        assert!(!ended.status.success(), "{named}");
        contains(&crate::text(&ended.stderr), &["m.gguf", named]);
        assert_eq!(dir.names(), ["m.gguf"]);
    }
    for (entry, tensors, has_bias) in [
        (entry_of_text(kind, "none"), &[][..], Value::Null),
        (f32_of(factor, 1.0), &[], Value::Null),
        (u32_of("llama.expert_count", 0), &[], Value::Null),
        (
            u32_of(heads, 2),
            &[("blk.0.attn_v.bias", &[16][..])],
            json!(true),
        ),
    ] {
        let ended = run(entry, tensors);
        assert!(ended.status.success(), "{}", crate::text(&ended.stderr));
        let config = fs::read(format!("{out}/config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(config["attention_bias"], has_bias);
        assert_eq!(config["mlp_bias"], Value::Null);
        fs::remove_dir_all(&out).unwrap();
    }
}
