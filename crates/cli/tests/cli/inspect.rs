//! `inspect`: the table for people, and the JSON for scripts.

use std::path::Path;

use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use serde_json::{Value, json as value};

use crate::{COMPRESSED, Folder, MODELOPT, contains, fails, json, prints, words};

fn zeros(dtype: Dtype, shape: &[usize]) -> NewTensor<'static> {
    NewTensor::zeros(dtype, shape)
}

/// A model of two layers, of which one's label is wrong and one has a tensor that is not known.
fn model(dir: &Folder) -> String {
    let mut tensors = Vec::new();
    for layer in 0..2 {
        let mut add = |name: &str, tensor| tensors.push((format!("layers.{layer}.{name}"), tensor));
        add("up.weight", zeros(Dtype::U8, &[32, 32]));
        add("up.weight_scale", zeros(Dtype::F8_E4M3, &[32, 4]));
        add("up.weight_scale_2", NewTensor::f32(&[], &[1.0]));
        add("gate.weight", zeros(Dtype::F8_E4M3, &[32, 64]));
        add("gate.weight_scale", NewTensor::f32(&[], &[1.0]));
        add("norm.weight", zeros(Dtype::BF16, &[64]));
    }
    tensors.push(("odd.weight".into(), zeros(Dtype::I32, &[4, 64])));
    file::write(Path::new(&dir.at("model.safetensors")), tensors, None).unwrap();
    let config = value!({ "quantization": {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": { "layers.0": { "quant_algo": "NVFP4" }, "layers.1.up": { "quant_algo": "W4A16_NVFP4" } },
    } });
    std::fs::write(dir.at("hf_quant_config.json"), config.to_string()).unwrap();
    dir.path().to_owned()
}

/// The cells of the line that begins with a name.
fn line<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let mut lines = text.lines().map(words);
    let line = lines.find(|line| line.first() == Some(&name));
    line.unwrap_or_else(|| panic!("no line {name} in {text}"))
}

#[test]
fn a_line_is_of_modules_that_are_alike() {
    let dir = Folder::new();
    let model = model(&dir);
    let text = prints(&["inspect", &model]);
    contains(&text, &["1 file, 13 tensors, ", "hf_quant_config.json\n"]);
    // Modules of one name in two lines, since something differs.
    let up = "layers.*.up 1 NVFP4 W4A16 32x64 1.2 kB modelopt NVFP4";
    assert_eq!(line(&text, "layers.*.up"), words(up));
    let gate = "layers.*.gate 1 FP8 32x64 2.1 kB a scale a tensor NVFP4";
    assert_eq!(line(&text, "layers.*.gate"), words(gate));
    let norm = "layers.*.norm 2 other 64 256 B - -";
    assert_eq!(line(&text, "layers.*.norm"), words(norm));
    let odd = "odd 1 refused 4x64 1.0 kB - not quantised";
    assert_eq!(line(&text, "odd"), words(odd));
    contains(
        &text,
        &[
            "\nrefused:\n",
            "layer \"odd\" is not NVFP4: its weight is I32 [4, 64]",
            "\nnotes:\n",
            "layer \"layers.0.up\": says NVFP4, and it has no input scale",
            "layer \"layers.0.gate\": says NVFP4, and its tensors are FP8",
            "layer \"layers.1.gate\": says it is not quantised, and it is FP8",
            "\nNVFP4 W4A16: 2 modules, 2.3 kB\n",
        ],
    );
    let each = prints(&["inspect", &model, "--each"]);
    for name in ["layers.0.up", "layers.1.up", "layers.1.norm", "odd"] {
        assert_eq!(line(&each, name)[1], "1");
    }
}

#[test]
fn the_json_has_every_module() {
    let dir = Folder::new();
    let all = json(&["inspect", &model(&dir)]);
    assert_eq!(all["tensors"], 13);
    assert_eq!(all["kinds"]["FP8"], value!({ "modules": 2, "bytes": 4104 }));
    let modules = all["modules"].as_array().unwrap();
    let named = |name: &str| -> &Value {
        let found = modules.iter().find(|module| module["name"] == name);
        found.unwrap()
    };
    assert_eq!(modules.len(), 7);
    let up = named("layers.1.up");
    assert_eq!(up["shape"], value!([32, 64]));
    assert_eq!(
        (&up["kind"], &up["dialect"]),
        (&"NVFP4 W4A16".into(), &"modelopt".into())
    );
    assert_eq!(
        (&up["config"], &up["notes"]),
        (&"W4A16_NVFP4".into(), &value!([]))
    );
    assert_eq!(up["tensors"].as_array().unwrap().len(), 3);
    assert!(named("odd")["error"].as_str().unwrap().contains("I32"));
    assert!(named("layers.0.norm")["config"].is_null());
    for (file, dialect) in [(MODELOPT, "modelopt"), (COMPRESSED, "compressed-tensors")] {
        let all = json(&["inspect", file]);
        let kinds = all["modules"].as_array().unwrap().iter();
        let layers = kinds.filter(|module| module["dialect"] == dialect);
        assert!(layers.count() >= 1, "{all}");
    }
}

#[test]
fn what_is_no_checkpoint_is_an_error() {
    let dir = Folder::new();
    contains(&fails(&["inspect", &dir.at("no")]), &["cannot be read"]);
    contains(&fails(&["inspect", dir.path()]), &["no *.safetensors file"]);
    std::fs::write(dir.at("m.gguf"), b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0").unwrap();
    contains(&fails(&["inspect", &dir.at("m.gguf")]), &["a GGUF file"]);
}
