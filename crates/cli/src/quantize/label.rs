//! The labels of the output, and inputs that would make a file of two dialects.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Result, bail};
use nvfp4_gemv::BLOCK;
use nvfp4_gemv::checkpoint::{CONFIG_FILE, Checkpoint, Dialect, Exporter, QUANT_CONFIG_FILE};
use nvfp4_gemv::file::Tensor;
use nvfp4_gemv_files::printable;
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::choice::is_stacked;

/// Refuses an input with layers, or labels, of another dialect or tool than the one that is written: the output would
/// have both, and readers believe one label.
pub(super) fn refuse_another_dialect(checkpoint: &Checkpoint, dialect: Dialect) -> Result<()> {
    let path = printable::path(checkpoint.path());
    // A tool whose names are not written cannot be asked for.
    let instead = |other: Exporter| match other {
        Exporter::Of(other) => format!("; --dialect {other} adds layers to it"),
        _ => String::new(),
    };
    for name in checkpoint.layers() {
        let has = |other: Dialect| {
            let global = format!("{name}.{}", other.global());
            checkpoint.tensor(&global).is_some()
        };
        let another = Dialect::ALL
            .into_iter()
            .find(|other| *other != dialect && has(*other));
        let own = checkpoint.exporter_of(name);
        let another = another
            .map(Exporter::Of)
            .or(own.filter(|own| *own != dialect.into()));
        if let Some(other) = another {
            bail!(
                "{path}: layer {name:?} is NVFP4 already, in the dialect {other}; with {dialect} the output would \
                 have two{}",
                instead(other)
            );
        }
    }
    let another = |(of, _): &(Exporter, _)| *of != dialect.into();
    if let Some((other, file)) = checkpoint.declared_exporters().find(another) {
        bail!(
            "{}: says that the input is quantised in the dialect {other}; with {dialect} the output would have two{}",
            printable::path(file),
            instead(other)
        );
    }
    let tensors = || checkpoint.files().iter().flat_map(|file| file.tensors());
    let marked = tensors().find(|tensor| tensor.name().ends_with(".comfy_quant"));
    let file = marked.map(|tensor| tensor.file().path());
    if let Some(file) = file.or_else(|| checkpoint.comfy_files().next()) {
        bail!(
            "{}: has layers that ComfyUI has quantised, in another layout than {dialect} has; the output would have both",
            printable::path(file)
        );
    }
    Ok(())
}

/// The module of a matrix, of whatever type, that stays as it is: what a label lists as left out. NVFP4 layers that were
/// there are none.
pub(super) fn module_left(checkpoint: &Checkpoint, tensor: &Tensor<'_>) -> Option<String> {
    let name = tensor.name();
    let mut modules = [".weight", ".qweight"].into_iter();
    let module = match modules.find_map(|ending| name.strip_suffix(ending)) {
        Some(module) => module,
        None if is_stacked(tensor) => name.rsplit_once('.').map_or(name, |(module, _)| module),
        None => return None,
    };
    let is_left = tensor.shape().len() == 2 || is_stacked(tensor);
    (is_left && checkpoint.exporter_of(module).is_none()).then(|| module.to_owned())
}

/// Whether a tensor is codes of a matrix that is quantised, as its type and its name tell. Integers may be masks.
pub(super) fn is_code(tensor: &Tensor<'_>) -> bool {
    const CODES: [&str; 5] = [
        ".weight",
        ".weight_packed",
        ".qweight",
        "_qdata",
        ".comfy_quant",
    ];
    match tensor.dtype() {
        Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E8M0 | Dtype::F4 => true,
        Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 => false,
        _ => CODES.iter().any(|ending| tensor.name().ends_with(ending)),
    }
}

/// The entry of a config, at any depth, that says how a model is quantised.
pub(super) fn entry_of_quantised(config: &Map<String, Value>) -> Option<&str> {
    // The third is MLX's.
    const KEYS: [&str; 3] = [CONFIG_ENTRY, "compression_config", "quantization"];
    config.iter().find_map(|(key, value)| match value {
        Value::Null => None,
        _ if KEYS.contains(&&**key) => Some(&**key),
        Value::Object(inner) => entry_of_quantised(inner),
        _ => None,
    })
}

/// The input's own entries, and what readers of the dialect look for. Layers that were NVFP4 before may have input
/// scales; the new ones have none.
pub(super) fn metadata(
    checkpoint: &Checkpoint,
    dialect: Dialect,
    taken: &[String],
    left: Vec<String>,
) -> HashMap<String, String> {
    let of_input = checkpoint.files().iter();
    let mut metadata: HashMap<_, _> = of_input.flat_map(|file| file.metadata().clone()).collect();
    let has_input_scale = |layer: &&str| {
        let name = format!("{layer}.{}", dialect.input_global());
        checkpoint.tensor(&name).is_some()
    };
    let layers = taken.iter().map(String::as_str).chain(checkpoint.layers());
    let (scaled, weights_only): (Vec<&str>, Vec<&str>) = layers.partition(has_input_scale);
    let (key, value) = label(dialect, &weights_only, &scaled, left);
    metadata.insert(key.into(), value.to_string());
    // transformers refuses a file without it.
    metadata.entry("format".into()).or_insert("pt".into());
    metadata
}

/// What a dialect's readers look for, and the entry of a file's metadata that has it.
fn label(
    dialect: Dialect,
    weights_only: &[&str],
    scaled: &[&str],
    left: Vec<String>,
) -> (&'static str, Value) {
    let left: BTreeSet<String> = left.into_iter().collect();
    let weights_only = weights_only.iter().copied();
    match dialect {
        Dialect::ModelOpt => ("hf_quant_config", modelopt(weights_only, scaled, &left)),
        Dialect::CompressedTensors => (
            CONFIG_ENTRY,
            compressed_tensors(weights_only, scaled, &left),
        ),
    }
}

/// The key in `config.json` of what quantisation there is.
pub(super) const CONFIG_ENTRY: &str = "quantization_config";

/// The config files of a directory of weights-only layers, by name: the input's own `config.json`, which says what was
/// quantised, and ModelOpt's.
pub(super) fn files(
    dialect: Dialect,
    mut config: Map<String, Value>,
    left: Vec<String>,
) -> Vec<(&'static str, Value)> {
    let (_, label) = label(dialect, &[], &[], left);
    let own = match dialect {
        Dialect::CompressedTensors => label.clone(),
        // As ModelOpt's exporter says the same in this file.
        Dialect::ModelOpt => json!({
            "quant_method": "modelopt",
            "quant_algo": label["quantization"]["quant_algo"],
            "config_groups": { "group_0": {
                "targets": ["Linear"],
                "weights": { "num_bits": 4, "type": "float", "group_size": BLOCK, "dynamic": false },
            } },
            "ignore": label["quantization"]["exclude_modules"],
            "producer": label["producer"],
        }),
    };
    config.insert(CONFIG_ENTRY.into(), own);
    let mut files = vec![(CONFIG_FILE, Value::Object(config))];
    if dialect == Dialect::ModelOpt {
        files.push((QUANT_CONFIG_FILE, label));
    }
    files
}

fn modelopt<'a>(
    weights_only: impl Iterator<Item = &'a str>,
    scaled: &[&'a str],
    left: &BTreeSet<String>,
) -> Value {
    const WEIGHTS_ONLY: &str = "W4A16_NVFP4";
    let quantization = match scaled {
        [] => json!({
            "quant_algo": WEIGHTS_ONLY, "group_size": BLOCK, "exclude_modules": left,
        }),
        scaled => {
            let of = |name| json!({ "quant_algo": name, "group_size": BLOCK });
            let both = weights_only.map(|layer| (layer, of(WEIGHTS_ONLY)));
            let both = both.chain(scaled.iter().map(|layer| (*layer, of("NVFP4"))));
            json!({
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": both.collect::<BTreeMap<_, _>>(),
                "exclude_modules": left,
            })
        }
    };
    json!({ "producer": producer(), "quantization": quantization })
}

fn compressed_tensors<'a>(
    weights_only: impl Iterator<Item = &'a str>,
    scaled: &[&'a str],
    left: &BTreeSet<String>,
) -> Value {
    const FORMAT: &str = "nvfp4-pack-quantized";
    let tensors = |dynamic: Value| {
        json!({
            "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": BLOCK, "symmetric": true,
            "dynamic": dynamic,
        })
    };
    let group = |targets: Value, vectors: Value| {
        json!({
            "format": FORMAT, "targets": targets, "weights": tensors(false.into()), "input_activations": vectors,
            "output_activations": null,
        })
    };
    let groups = match scaled {
        [] => json!({ "group_0": group(json!(["Linear"]), Value::Null) }),
        scaled => json!({
            "group_0": group(json!(weights_only.collect::<Vec<_>>()), Value::Null),
            "group_1": group(json!(scaled), tensors("local".into())),
        }),
    };
    json!({
        "quant_method": "compressed-tensors", "format": FORMAT, "quantization_status": "compressed",
        "config_groups": groups, "ignore": left,
    })
}

fn producer() -> Value {
    json!({ "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION") })
}
