//! Directories of checkpoints: what each module is, what configs say of it, and what hostile ones hold.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nvfp4_gemv::checkpoint::{
    CONFIG_FILE, Checkpoint, CheckpointError, Dialect, INDEX_FILE, Note, QUANT_CONFIG_FILE,
};
use nvfp4_gemv::file::FileError;
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

type Tensors = Vec<(String, NewTensor<'static>)>;

fn zeros(dtype: Dtype, shape: &[usize]) -> NewTensor<'static> {
    NewTensor::zeros(dtype, shape)
}

fn scalar() -> NewTensor<'static> {
    NewTensor::f32(&[], &[1.0])
}

/// The tensors of a layer [32, 64].
fn layer(name: &str, dialect: Dialect) -> Tensors {
    [
        (dialect.codes(), zeros(Dtype::U8, &[32, 32])),
        (dialect.scales(), zeros(Dtype::F8_E4M3, &[32, 4])),
        (dialect.global(), scalar()),
        (dialect.input_global(), scalar()),
    ]
    .map(|(suffix, tensor)| (format!("{name}.{suffix}"), tensor))
    .into()
}

struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn shard(&self, name: &str, tensors: Tensors) -> &Self {
        file::write(&self.at(name), tensors, None).unwrap();
        self
    }

    fn text(&self, name: &str, text: impl ToString) -> &Self {
        fs::write(self.at(name), text.to_string()).unwrap();
        self
    }

    fn index(&self, name: &str, map: &[(&str, &str)]) -> &Self {
        let map: BTreeMap<_, _> = map.iter().copied().collect();
        self.text(name, json!({ "metadata": {}, "weight_map": map }))
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(self.0.path()).unwrap()
    }

    #[track_caller]
    fn error(&self) -> CheckpointError {
        Checkpoint::open(self.0.path()).unwrap_err()
    }
}

/// Name, kind, shape and config's words of each module. Every tensor is in one of them.
fn listed(checkpoint: &Checkpoint) -> Vec<(String, String, Vec<usize>, String)> {
    let modules = checkpoint.modules();
    let mut tensors: Vec<&str> = modules
        .iter()
        .flat_map(|m| m.tensors())
        .map(|t| t.name())
        .collect();
    tensors.sort_unstable();
    let files = checkpoint.files().iter();
    let mut all: Vec<&str> = files.flat_map(|f| f.tensors()).map(|t| t.name()).collect();
    all.sort_unstable();
    assert_eq!(tensors, all);
    let names: Vec<&str> = modules.iter().map(|module| module.name()).collect();
    assert!(names.is_sorted());
    let list = modules.iter().map(|module| {
        let config = module.config().unwrap_or("-").to_owned();
        let shape = module.shape().to_vec();
        (
            module.name().to_owned(),
            module.kind().name(),
            shape,
            config,
        )
    });
    list.collect()
}

/// All notes on modules.
fn notes(checkpoint: &Checkpoint) -> Vec<String> {
    let modules = checkpoint.modules();
    let notes = modules.iter().flat_map(|module| module.notes());
    notes.map(Note::to_string).collect()
}

/// The modules of a model with everything that is published.
#[test]
fn every_module_has_its_kind() {
    let mut tensors = layer("l.0.up", Dialect::ModelOpt);
    tensors.extend(layer("l.0.down", Dialect::CompressedTensors));
    let mut add = |name: &str, tensor| tensors.push((name.into(), tensor));
    add("l.0.up.bias", NewTensor::f32(&[32], &[0.0; 32]));
    add("l.0.k.k_scale", scalar());
    for name in ["l.0.k", "l.0.awq"] {
        for (suffix, tensor) in layer(name, Dialect::ModelOpt) {
            if !suffix.ends_with("input_scale") {
                add(&suffix, tensor);
            }
        }
    }
    add("l.0.awq.pre_quant_scale", zeros(Dtype::BF16, &[64]));
    for (name, scale, shape) in [
        ("a", "weight_scale", &[][..]),
        ("b", "weight_scale", &[32, 1]),
        ("c", "weight_scale_inv", &[1, 1]),
        ("d", "weight_scale_inv", &[2, 3]),
    ] {
        add(
            &format!("fp8.{name}.weight"),
            zeros(Dtype::F8_E4M3, &[256, 384]),
        );
        let shape = match name {
            "b" => &[256, 1],
            _ => shape,
        };
        add(&format!("fp8.{name}.{scale}"), zeros(Dtype::F32, shape));
    }
    add("lm_head.weight", zeros(Dtype::BF16, &[128, 64]));
    add("model.embed_tokens.weight", zeros(Dtype::F16, &[128, 64]));
    add("norm.weight", zeros(Dtype::F32, &[64]));
    add("mlp.gate.weight", zeros(Dtype::BF16, &[4, 64]));
    add("mlp.gate.e_score_correction_bias", zeros(Dtype::F32, &[4]));
    add("rotary.inv_freq", zeros(Dtype::F32, &[8]));
    add("gptq.qweight", zeros(Dtype::I32, &[8, 32]));
    add("gptq.qzeros", zeros(Dtype::I32, &[1, 4]));
    add("mx.up_blocks", zeros(Dtype::U8, &[2, 32, 4, 16]));
    add("mx.up_scales", zeros(Dtype::U8, &[2, 32, 4]));
    add("plain.experts.up", zeros(Dtype::BF16, &[2, 64, 32]));
    for (name, codes, scales) in [
        ("e.gate_up_proj", &[2, 32, 64][..], &[2, 32, 8][..]),
        ("t.gate_up_proj", &[2, 64, 32], &[2, 8, 32]),
    ] {
        add(name, zeros(Dtype::U8, codes));
        add(
            &format!("{name}_weight_scale"),
            zeros(Dtype::F8_E4M3, scales),
        );
        add(
            &format!("{name}_weight_scale_2"),
            NewTensor::f32(&[2], &[1.0; 2]),
        );
        add(&format!("{name}_bias"), zeros(Dtype::BF16, &[2, 32]));
    }
    add("u.w2_weight", zeros(Dtype::U8, &[2, 32, 64]));
    add("u.w2_weight_scale", zeros(Dtype::F8_E4M3, &[2, 32, 8]));
    add("codes", zeros(Dtype::U8, &[8, 8]));
    let directory = Directory::new();
    directory.shard("model.safetensors", tensors).text(
        "hf_quant_config.json",
        json!({ "quantization": { "quant_algo": "NVFP4", "exclude_modules": ["lm_head", "mlp.*", "fp8*"] } }),
    );
    let checkpoint = directory.open();
    let expected: Vec<(&str, &str, &[usize], &str)> = vec![
        ("codes", "refused", &[8, 8], "-"),
        ("e.gate_up_proj", "NVFP4 W4A16", &[2, 32, 128], "NVFP4"),
        ("fp8.a", "FP8", &[256, 384], "not quantised"),
        ("fp8.b", "FP8", &[256, 384], "not quantised"),
        ("fp8.c", "FP8", &[256, 384], "not quantised"),
        ("fp8.d", "FP8", &[256, 384], "not quantised"),
        ("gptq", "refused", &[8, 32], "NVFP4"),
        ("l.0.awq", "NVFP4 W4A16", &[32, 64], "NVFP4"),
        ("l.0.down", "NVFP4", &[32, 64], "NVFP4"),
        ("l.0.k", "NVFP4 W4A16", &[32, 64], "NVFP4"),
        ("l.0.up", "NVFP4", &[32, 64], "NVFP4"),
        ("lm_head", "BF16", &[128, 64], "not quantised"),
        ("mlp.gate", "BF16", &[4, 64], "not quantised"),
        ("model.embed_tokens", "F16", &[128, 64], "NVFP4"),
        ("mx.up", "MXFP4", &[2, 32, 128], "NVFP4"),
        ("norm", "other", &[64], "-"),
        ("plain.experts.up", "BF16", &[2, 64, 32], "NVFP4"),
        ("rotary.inv_freq", "other", &[8], "-"),
        ("t.gate_up_proj", "NVFP4 W4A16", &[2, 32, 128], "NVFP4"),
        ("u.w2", "refused", &[2, 32, 64], "NVFP4"),
    ];
    let listed = listed(&checkpoint);
    let listed: Vec<(&str, &str, &[usize], &str)> = listed
        .iter()
        .map(|(a, b, c, d)| (&**a, &**b, &**c, &**d))
        .collect();
    assert_eq!(listed, expected);
    let modules = checkpoint.modules();
    let shown = |name: &str| {
        let module = modules.iter().find(|module| module.name() == name).unwrap();
        format!("{:?}", module.kind())
    };
    for (name, part) in [
        ("fp8.a", "scales: Tensor"),
        ("fp8.b", "scales: Rows"),
        ("fp8.c", "scales: Tensor"),
        ("fp8.d", "scales: Blocks(128, 128)"),
        ("e.gate_up_proj", "transposed: false"),
        ("t.gate_up_proj", "transposed: true"),
        ("mx.up", "Mxfp4"),
        ("u.w2", "w2_weight_scale_2"),
    ] {
        assert!(shown(name).contains(part), "{name}: {}", shown(name));
    }
    let notes = notes(&checkpoint);
    let says = |part: &str| notes.iter().filter(|note| note.contains(part)).count();
    assert_eq!(says("it is not quantised, and it is FP8"), 4, "{notes:?}");
    assert_eq!(says("NVFP4, and it has no input scale"), 4, "{notes:?}");
    assert_eq!(says("\"l.0.up.bias\" is not added"), 1, "{notes:?}");
    assert_eq!(says("_bias\" is not added"), 2, "{notes:?}");
    // Not of the embedding, which no default is for.
    let default = "NVFP4 of all that is not excluded, and its tensors are BF16";
    assert_eq!(says(default), 1, "{notes:?}");
    assert_eq!(says("dialect"), 0, "{notes:?}");
}

/// One model in each config: which notes it gets. `w` is NVFP4 with an input scale, `d` is BF16, `f` FP8.
#[test]
fn configs_that_disagree_are_said() {
    let directory = Directory::new();
    let mut tensors = layer("m.0.w", Dialect::CompressedTensors);
    tensors.push(("m.0.d.weight".into(), zeros(Dtype::BF16, &[32, 64])));
    tensors.push(("m.0.f.weight".into(), zeros(Dtype::F8_E4M3, &[32, 64])));
    directory.shard("model.safetensors", tensors);
    let nvfp4 =
        || json!({ "num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group" });
    let fp8 = || json!({ "num_bits": 8, "type": "float", "strategy": "channel" });
    let group = |targets: Value, weights: Value| {
        let inputs = json!({ "num_bits": 4, "dynamic": "local" });
        json!({ "targets": targets, "weights": weights, "input_activations": inputs })
    };
    let groups = |all: &[Value], ignore: Value| {
        let all: BTreeMap<String, &Value> = (0..).map(|i| format!("group_{i}")).zip(all).collect();
        json!({ "quant_method": "compressed-tensors", "config_groups": all, "ignore": ignore })
    };
    let both = |ignore: Value| {
        let all = [
            group(json!([r"re:m\.[0-9]+\.(w|v)$"]), nvfp4()),
            group(json!(["re:.*f$"]), fp8()),
        ];
        groups(&all, ignore)
    };
    let mixed =
        |layers: Value| json!({ "quant_algo": "MIXED_PRECISION", "quantized_layers": layers });
    let of = |algorithm: &str| json!({ "quant_algo": algorithm });
    for (says, words, expected) in [
        (
            both(json!([r"re:.*d$"])),
            ["not quantised", "FP8", "NVFP4"],
            &[][..],
        ),
        (both(json!([])), ["not quantised", "FP8", "NVFP4"], &[]),
        // The wrong regular expression, and a class for all.
        (
            groups(&[group(json!(["Linear"]), nvfp4())], json!([r"re:n\..*"])),
            ["NVFP4", "NVFP4", "NVFP4"],
            &[
                "\"m.0.d\": says NVFP4 of all that is not",
                "\"m.0.f\": says NVFP4, and its tensors are FP8",
            ],
        ),
        (
            groups(
                &[
                    group(json!(["re:m.0.d"]), fp8()),
                    group(json!(["Linear"]), nvfp4()),
                ],
                json!(["m.0.f"]),
            ),
            ["FP8", "not quantised", "NVFP4"],
            &[
                "\"m.0.d\": says FP8, and its tensors are BF16",
                "\"m.0.f\": says it is not quantised",
            ],
        ),
        (
            mixed(
                json!({ "m.0.w": of("NVFP4"), "m.*.f": of("FP8_PB_WO"), "m.0.d": of("W4A16_NVFP4") }),
            ),
            ["W4A16_NVFP4", "FP8_PB_WO", "NVFP4"],
            &[
                "\"m.0.d\": says W4A16_NVFP4, and its tensors are BF16",
                "modelopt, and its tensors",
            ],
        ),
        (
            json!({ "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["m.0.d"] }),
            ["not quantised", "fp8", "fp8"],
            &["\"m.0.w\": says `quant_method` \"fp8\""],
        ),
        (json!({}), ["-", "-", "-"], &[]),
    ] {
        directory.text("config.json", json!({ "quantization_config": says }));
        let checkpoint = directory.open();
        let listed = listed(&checkpoint);
        let said: Vec<&str> = listed.iter().map(|(.., config)| &**config).collect();
        assert_eq!(said, words, "{says}");
        let notes = notes(&checkpoint);
        assert_eq!(notes.len(), expected.len(), "{says}: {notes:?}");
        for part in expected {
            assert!(
                notes.iter().any(|note| note.contains(part)),
                "{part} is not in {notes:?}"
            );
        }
    }
}

/// The files of a hub's cache are links from `snapshots/HASH` to `blobs`.
#[cfg(unix)]
#[test]
fn links_of_a_hubs_cache_are_followed() {
    use std::os::unix::fs::symlink;

    let directory = Directory::new();
    let (blobs, snapshot) = (directory.at("m/blobs"), directory.at("m/snapshots/0a"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    let link = |name: &str, blob: &str| {
        symlink(Path::new("../../blobs").join(blob), snapshot.join(name)).unwrap();
    };
    file::write(&blobs.join("1"), layer("a", Dialect::ModelOpt), None).unwrap();
    file::write(&blobs.join("2"), layer("b", Dialect::ModelOpt), None).unwrap();
    let (first, second) = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    );
    link(first, "1");
    link(second, "2");
    let config = json!({ "quantization": { "quant_algo": "W4A16_NVFP4" } }).to_string();
    fs::write(blobs.join("3"), config).unwrap();
    link("hf_quant_config.json", "3");
    let check = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.layers().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(checkpoint.layer("b").unwrap().notes().len(), 1);
    };
    check(&snapshot);
    let map = json!({ "weight_map": { "a.weight": first, "b.weight": second } });
    fs::write(blobs.join("4"), map.to_string()).unwrap();
    link(INDEX_FILE, "4");
    check(&snapshot);
    check(&snapshot.join(INDEX_FILE));
    symlink("0a", directory.at("m/snapshots/main")).unwrap();
    check(&directory.at("m/snapshots/main"));
    // One that was not downloaded, with an index and without.
    fs::remove_file(blobs.join("2")).unwrap();
    for _ in 0..2 {
        let error = Checkpoint::open(&snapshot).unwrap_err();
        assert!(
            matches!(error, CheckpointError::MissingFiles { total: 1, .. }),
            "{error}"
        );
        assert!(error.to_string().contains(second), "{error}");
        let _ = fs::remove_file(snapshot.join(INDEX_FILE));
    }
    // Links in a circle, and to what is no file.
    for (to, says) in [
        (second, "missing"),
        ("/dev/zero", "a device"),
        (".", "a directory"),
    ] {
        fs::remove_file(snapshot.join(second)).unwrap();
        symlink(to, snapshot.join(second)).unwrap();
        let error = Checkpoint::open(&snapshot).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(second), "{error}");
    }
    fs::remove_file(snapshot.join(second)).unwrap();
    symlink("loop", snapshot.join("loop")).unwrap();
    let error = Checkpoint::open(snapshot.join("loop")).unwrap_err();
    assert!(
        matches!(error, CheckpointError::File(FileError::Read { .. })),
        "{error}"
    );
}

#[test]
fn folders_of_diffusers_are_opened_one_by_one() {
    let directory = Directory::new();
    directory.text("model_index.json", json!({ "_class_name": "FluxPipeline" }));
    for folder in ["scheduler", "transformer", "vae"] {
        fs::create_dir(directory.at(folder)).unwrap();
    }
    let stem = "transformer/diffusion_pytorch_model";
    directory
        .shard(
            &format!("{stem}-00001-of-00002.safetensors"),
            layer("a", Dialect::ModelOpt),
        )
        .shard(
            &format!("{stem}-00002-of-00002.safetensors"),
            layer("b", Dialect::ModelOpt),
        )
        .shard(
            "vae/diffusion_pytorch_model.safetensors",
            layer("c", Dialect::ModelOpt),
        );
    let config = json!({ "quantization_config": { "quant_algo": "NVFP4" } });
    directory.text("transformer/config.json", config);
    let error = directory.error();
    let CheckpointError::Empty { folders, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(folders, &["transformer", "vae"]);
    assert!(
        error.to_string().contains("\"transformer\", \"vae\""),
        "{error}"
    );
    let map = [(
        "a.weight",
        "diffusion_pytorch_model-00001-of-00002.safetensors",
    )];
    for _ in 0..2 {
        let checkpoint = Checkpoint::open(directory.at("transformer")).unwrap();
        assert_eq!(checkpoint.config_files().len(), 1);
        assert!(checkpoint.layer("a").unwrap().notes().is_empty());
        let last = checkpoint.layers().last().unwrap();
        // The index names one file only.
        let expected = if checkpoint.files().len() == 1 {
            "a"
        } else {
            "b"
        };
        assert_eq!(last, expected);
        directory.index(&format!("{stem}.safetensors.index.json"), &map);
    }
    // A second index, of a variant, does not count beside that one. Two of unusual names do not tell which.
    directory.index(
        &format!("{stem}.safetensors.index.fp16.json"),
        &[("x", "no.safetensors")],
    );
    Checkpoint::open(directory.at("transformer")).unwrap();
    directory.index("vae/a.safetensors.index.json", &[("x", "no.safetensors")]);
    directory.index("vae/b.safetensors.index.json", &[("x", "no.safetensors")]);
    let error = Checkpoint::open(directory.at("vae"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\"a.safetensors.index.json\", \"b.safetensors.index.json\""),
        "{error}"
    );
}

#[test]
fn an_index_that_its_files_contradict_is_noted() {
    let directory = Directory::new();
    directory.shard("a.safetensors", layer("a", Dialect::ModelOpt));
    directory.shard("b.safetensors", layer("b", Dialect::ModelOpt));
    let right: Vec<(String, &str)> = ["a", "b"]
        .into_iter()
        .flat_map(|name| {
            layer(name, Dialect::ModelOpt)
                .into_iter()
                .map(move |(t, _)| (t, name))
        })
        .map(|(tensor, name)| {
            (
                tensor,
                if name == "a" {
                    "a.safetensors"
                } else {
                    "b.safetensors"
                },
            )
        })
        .collect();
    let right: Vec<(&str, &str)> = right.iter().map(|(t, f)| (&**t, *f)).collect();
    let notes = |map: &[(&str, &str)]| -> Vec<String> {
        directory.index(INDEX_FILE, map);
        directory
            .open()
            .notes()
            .iter()
            .map(Note::to_string)
            .collect()
    };
    assert_eq!(notes(&right), [""; 0]);
    let mut map = right.clone();
    map[0].1 = "b.safetensors";
    map[1].1 = "b.safetensors";
    map.remove(3);
    map.push(("c.weight", "a.safetensors"));
    let notes = notes(&map);
    let parts = [
        "another file than the one that has tensor \"a.weight\" and 1 more",
        "does not name, and its files have, tensor \"a.input_scale\"",
        "names, and none of its files has, tensor \"c.weight\"",
    ];
    for (note, part) in notes.iter().zip(parts) {
        assert!(note.contains(part) && note.contains(INDEX_FILE), "{note}");
    }
    assert_eq!(notes.len(), parts.len());
    // A layer of which the index has a tensor that is nowhere.
    let error = directory.open().layer("c").unwrap_err();
    assert!(
        matches!(error, CheckpointError::Elsewhere { opened: true, .. }),
        "{error}"
    );
    // A tensor of two files.
    directory.text(
        INDEX_FILE,
        r#"{"weight_map": {"a.weight": "a.safetensors", "a.weight": "b.safetensors"}}"#,
    );
    assert!(
        directory
            .error()
            .to_string()
            .contains("\"a.weight\" is said to be in two files")
    );
    directory.shard("b.safetensors", layer("a", Dialect::ModelOpt));
    directory.index(INDEX_FILE, &right);
    let error = directory.error();
    assert!(
        matches!(error, CheckpointError::Duplicate { .. }),
        "{error}"
    );
}

/// Names that are no text, tensors' and files'; a shard that ends too early.
#[test]
fn hostile_directories_are_errors() {
    let directory = Directory::new();
    directory.shard("a.safetensors", layer("a", Dialect::ModelOpt));
    let whole = fs::read(directory.at("a.safetensors")).unwrap();
    for length in [0, 7, 8, 100, whole.len() - 1] {
        fs::write(directory.at("b.safetensors"), &whole[..length]).unwrap();
        let error = directory.error();
        let is = matches!(error, CheckpointError::File(FileError::Format { .. }));
        assert!(is && error.to_string().contains("b.safetensors"), "{error}");
    }
    let mut wrong = whole.clone();
    let name = wrong
        .windows(8)
        .position(|bytes| bytes == b"a.weight")
        .unwrap();
    wrong[name] = 0xff;
    fs::write(directory.at("b.safetensors"), wrong).unwrap();
    let error = directory.error();
    assert!(
        matches!(error, CheckpointError::File(FileError::Format { .. })),
        "{error}"
    );
    fs::write(
        directory.at(INDEX_FILE),
        b"{\"weight_map\": {\"\xff\": \"a.safetensors\"}}",
    )
    .unwrap();
    let error = directory.error();
    assert!(matches!(error, CheckpointError::Index { .. }), "{error}");
    for outside in [
        "../a.safetensors",
        "./a.safetensors",
        "a.safetensors/",
        "/a.safetensors",
        "..",
        ".",
    ] {
        directory.index(INDEX_FILE, &[("x", outside)]);
        let error = directory.error();
        assert!(
            matches!(error, CheckpointError::Index { .. }),
            "{outside}: {error}"
        );
    }
    // The index names itself, and a folder.
    fs::create_dir(directory.at("folder")).unwrap();
    for (file, says) in [
        (INDEX_FILE, "not a safetensors file but text"),
        ("folder", "a directory"),
    ] {
        directory.index(INDEX_FILE, &[("x", file)]);
        let error = directory.error().to_string();
        assert!(error.contains(says), "{error}");
    }
    #[cfg(target_os = "linux")]
    {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        fs::remove_file(directory.at(INDEX_FILE)).unwrap();
        fs::remove_file(directory.at("b.safetensors")).unwrap();
        let name = OsStr::from_bytes(b"\xff-00001-of-00001.safetensors");
        fs::rename(directory.at("a.safetensors"), directory.0.path().join(name)).unwrap();
        assert_eq!(directory.open().layers().collect::<Vec<_>>(), ["a"]);
    }
}

/// As in a hub's cache in which a config was not downloaded: what it says would go unseen without a word.
#[cfg(unix)]
#[test]
fn a_config_that_leads_nowhere_is_a_note() {
    for name in [CONFIG_FILE, QUANT_CONFIG_FILE, INDEX_FILE] {
        let directory = Directory::new();
        directory.shard("model.safetensors", layer("a", Dialect::ModelOpt));
        std::os::unix::fs::symlink("nowhere", directory.at(name)).unwrap();
        let opened = Checkpoint::open(directory.at("model.safetensors")).unwrap();
        let notes = opened.notes();
        assert!(
            matches!(notes, [Note::Unread { file, .. }] if file.ends_with(name)),
            "{notes:?}"
        );
    }
}

/// Each prefix of a name was looked up, which took time in the square of its length: minutes here.
#[test]
fn a_name_of_many_dots_takes_no_longer_than_another() {
    let (directory, dots) = (Directory::new(), ".".repeat(200_000));
    let mut tensors = layer("a", Dialect::ModelOpt);
    tensors.push((format!("{dots}x"), zeros(Dtype::F32, &[2, 2])));
    tensors.push((format!("{dots}.weight"), zeros(Dtype::F32, &[2, 2])));
    directory.shard("model.safetensors", tensors);
    let checkpoint = directory.open();
    let started = std::time::Instant::now();
    assert_eq!(checkpoint.modules().len(), 3);
    assert!(started.elapsed() < std::time::Duration::from_secs(10));
}
