//! The gate of a model's MLPs, from its config: the function between gate and up, and down.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Checkpoint, CheckpointError};
use crate::gate::Gate;

/// A config's words on the gate.
#[derive(Debug)]
pub(super) struct SaidOfGate {
    file: PathBuf,
    /// The gate, or why it is not known. `None`: nothing is said.
    said: Result<Option<Gate>, String>,
}

impl SaidOfGate {
    /// Of a config that was parsed, or was not, which has its reason.
    pub(super) fn of(config: &Result<Value, String>, file: &Path) -> Self {
        let said = match config {
            Ok(config) => match gate(config) {
                // A model of several parts has its language model's config in its own.
                Ok(None) => config.get("text_config").map_or(Ok(None), gate),
                said => said,
            },
            Err(reason) => Err(format!("may name another gate, and is not read: {reason}")),
        };
        let file = file.to_owned();
        Self { file, said }
    }
}

impl Checkpoint {
    /// The [`Gate`] that `config.json` says the model's MLPs and experts have: `silu`, `gelu_pytorch_tanh`, or gpt-oss's.
    /// [`Gate::Silu`] where it names none, or is not there. `mlp` is the name that an error has.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] for an activation that is no [`Gate`], for limits that other models than gpt-oss have
    /// (`swiglu_limit`), and for a `config.json` that cannot be read.
    pub fn gate(&self, mlp: &str) -> Result<Gate, CheckpointError> {
        let Some(SaidOfGate { file, said }) = &self.configs().gate else {
            return Ok(Gate::Silu);
        };
        match said {
            Ok(gate) => Ok(gate.unwrap_or(Gate::Silu)),
            Err(says) => Err(CheckpointError::Config {
                file: file.clone(),
                layer: mlp.into(),
                says: says.clone(),
            }),
        }
    }
}

/// The gate that this object names, or why what it names is none.
fn gate(config: &Value) -> Result<Option<Gate>, String> {
    let Value::Object(config) = config else {
        return Ok(None);
    };
    let said = |key: &str| config.get(key).filter(|value| !value.is_null());
    if said("model_type").is_some_and(|of| of == "gpt_oss") {
        let Some(limit) = said("swiglu_limit") else {
            return Ok(Some(Gate::GPT_OSS));
        };
        let gate = limit.as_f64().map(|limit| Gate::gpt_oss(limit as f32));
        let gate = gate.filter(|gate| gate.check().is_ok());
        return gate.map(Some).ok_or_else(|| no_gate("swiglu_limit", limit));
    }
    // Models clamp gate and up in several ways.
    let mut all = config.iter().filter(|(_, value)| !value.is_null());
    if let Some((key, value)) = all.find(|(key, _)| key.starts_with("swiglu_")) {
        return Err(no_gate(key, value));
    }
    // Gemma's configs have both: the second was wrong, and the first was added.
    let named = ["hidden_activation", "hidden_act"].map(|key| Some((key, said(key)?)));
    match named.into_iter().flatten().next() {
        None => Ok(None),
        Some((key, value)) => match value.as_str() {
            Some("silu" | "swish") => Ok(Some(Gate::Silu)),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Some(Gate::GeluTanh)),
            _ => Err(no_gate(key, value)),
        },
    }
}

fn no_gate(key: &str, value: &Value) -> String {
    // Enough of whatever stands there.
    let [key, value] =
        [key.to_owned(), value.to_string()].map(|text| text.chars().take(64).collect::<String>());
    format!("says {key:?}: {value}, which is no gate that is computed")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gates_that_configs_name() {
        let of = |config: Value| SaidOfGate::of(&Ok(config), Path::new("config.json")).said;
        for (config, gate) in [
            (json!({}), None),
            (json!([1]), None),
            (json!({ "hidden_act": null, "swiglu_limit": null }), None),
            (json!({ "hidden_act": "silu" }), Some(Gate::Silu)),
            (
                json!({ "model_type": "gemma", "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh" }),
                Some(Gate::GeluTanh),
            ),
            (
                json!({ "text_config": { "hidden_activation": "gelu_pytorch_tanh" },
                        "vision_config": { "hidden_act": "gelu" } }),
                Some(Gate::GeluTanh),
            ),
            (
                json!({ "model_type": "gpt_oss", "hidden_act": "silu", "swiglu_limit": 7.0 }),
                Some(Gate::GPT_OSS),
            ),
            (json!({ "model_type": "gpt_oss" }), Some(Gate::GPT_OSS)),
            (
                json!({ "model_type": "gpt_oss", "swiglu_limit": 5 }),
                Some(Gate::gpt_oss(5.0)),
            ),
        ] {
            assert_eq!(of(config.clone()), Ok(gate), "{config}");
        }
        for (config, says) in [
            (json!({ "hidden_act": "gelu" }), "\"hidden_act\": \"gelu\""),
            (json!({ "hidden_act": 3 }), "\"hidden_act\": 3"),
            (json!({ "text_config": { "hidden_act": "relu2" } }), "relu2"),
            (
                json!({ "hidden_act": "silu", "swiglu_limit": 10.0 }),
                "\"swiglu_limit\": 10.0",
            ),
            (
                json!({ "model_type": "gpt_oss", "swiglu_limit": -1 }),
                "\"swiglu_limit\": -1",
            ),
            (
                json!({ "model_type": "gpt_oss", "swiglu_limit": [7] }),
                "\"swiglu_limit\": [7]",
            ),
        ] {
            let error = of(config.clone()).unwrap_err();
            assert!(error.contains(says), "{config}: {error}");
        }
    }
}
