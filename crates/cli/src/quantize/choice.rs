//! Which tensors are quantised, and why the others are copied.

use anyhow::{Result, bail};
use nvfp4_gemv::BLOCK;
use nvfp4_gemv::checkpoint::name_matches;
use nvfp4_gemv::file::Tensor;
use nvfp4_gemv_files::printable;
use safetensors::Dtype;
use serde_json::{Value, json};

use super::Args;
use crate::report::count;

/// Tensors that are copied without `--exclude`: their kind, and patterns of their names. Models are known to need these
/// as they are, and the exporters leave them out too.
pub(super) const BY_DEFAULT: [(&str, &str); 5] = [
    (
        "embeddings",
        "*embed* *.wte.weight *.wpe.weight *.emb.weight *.shared.weight *position_embeddings* \
         *token_embd* *_embd.weight *codebook*",
    ),
    (
        "output heads",
        "*lm_head* output.weight *model.output.weight *output_layer* proj_out.weight head.weight *model.head.weight \
         score.weight classifier.weight cls.output.weight cls.predictions.* *shared_head.head.weight qa_outputs.weight \
         *.output_projection.weight *.to_logits.weight *medusa_head*",
    ),
    (
        "routers",
        "*.gate.* *router* *.gating.* *moe_gate* *expert_gate* *experts_gate* *gate_network* \
         *ffn_gate_inp*",
    ),
    (
        "positions of attention",
        "*relative_attention_bias* *relative_position* *rel_pos* *attn_rel_b*",
    ),
    ("adapters", "*lora_* *.lora.* *adapter*"),
];

/// Why a tensor is copied and not quantised, or nothing where it is a layer's weight that NVFP4 can hold
/// and that is wanted.
pub(super) fn why_copied(tensor: &Tensor<'_>, has_conv1d: bool, args: &Args) -> Option<String> {
    let name = tensor.name();
    let part = name
        .strip_suffix(".weight")
        .and_then(|of| of.rsplit('.').next());
    if has_conv1d && part.is_some_and(|part| CONV1D.contains(&part)) {
        return Some(
            "named as GPT-2's Conv1D, whose weight is [K, M], and no config says another model"
                .into(),
        );
    }
    let is_float = is_float(tensor);
    if is_stacked(tensor) {
        return Some("experts stacked in one tensor, which only --to quantises".into());
    }
    if !name.ends_with(".weight") {
        return Some("not named `*.weight`".into());
    }
    if !is_float {
        return Some(format!("type {:?}, not F32, F16 or BF16", tensor.dtype()));
    }
    why_not_matrix(
        &Named {
            name,
            shape: tensor.shape(),
        },
        args,
    )
}

/// Modules that are transformers' `Conv1D` in models that have it, and linear layers in others.
const CONV1D: [&str; 4] = ["c_attn", "c_proj", "c_fc", "q_attn"];

/// Whether a model may have `Conv1D`: a config says that it does, or does not say which model it is.
pub(super) fn has_conv1d(config: &Value) -> bool {
    const MODELS: [&str; 5] = [
        "gpt2",
        "openai-gpt",
        "imagegpt",
        "decision_transformer",
        "clvp",
    ];
    fn kinds<'c>(config: &'c Value, out: &mut Vec<&'c str>) {
        let Some(entries) = config.as_object() else {
            return;
        };
        out.extend(entries.get("model_type").and_then(Value::as_str));
        entries.values().for_each(|value| kinds(value, out));
    }
    let mut all = Vec::new();
    kinds(config, &mut all);
    all.is_empty()
        || all
            .iter()
            .any(|kind| MODELS.iter().any(|of| kind.starts_with(of)))
}

/// A tensor of floating-point numbers: its name, and its shape.
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) shape: &'a [usize],
}

/// Why such a tensor is copied, as far as name and shape tell.
pub(super) fn why_not_matrix(tensor: &Named<'_>, args: &Args) -> Option<String> {
    let name = tensor.name;
    match *tensor.shape {
        [rows, k] if rows > 0 && k > 0 && k % BLOCK == 0 => {}
        [rows, k] if rows > 0 && k > 0 => {
            return Some(format!("K = {k}, not a multiple of {BLOCK}"));
        }
        [_, _] => return Some("empty".into()),
        ref shape => return Some(format!("{}, not 2", count(shape.len(), "dimension"))),
    }
    if let Some(why) = excluded(name, &args.exclude) {
        return Some(why);
    }
    let included = |pattern: &String| name_matches(pattern, name);
    if !args.include.is_empty() && !args.include.iter().any(included) {
        return Some("not included by --include".into());
    }
    None
}

/// The value of `--exclude` that excludes nothing.
const NONE: &str = "none";

/// Refuses patterns that match no tensor: a typing error would take heads and routers along.
pub(super) fn check_patterns<'n>(args: &Args, names: impl Iterator<Item = &'n str>) -> Result<()> {
    let names: Vec<&str> = names.collect();
    let unmatched = |pattern: &&String| !names.iter().any(|name| name_matches(pattern, name));
    let mut exclude = args.exclude.iter().filter(|pattern| *pattern != NONE);
    let input = printable::path(&args.input);
    if let Some(pattern) = exclude.find(unmatched) {
        bail!("{input}: --exclude {pattern:?} matches no tensor; {NONE:?} excludes nothing");
    }
    if let Some(pattern) = args.include.iter().find(unmatched) {
        bail!("{input}: --include {pattern:?} matches no tensor");
    }
    Ok(())
}

pub(super) fn is_float(tensor: &Tensor<'_>) -> bool {
    matches!(tensor.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Whether a tensor is the matrices of several experts.
pub(super) fn is_stacked(tensor: &Tensor<'_>) -> bool {
    is_float(tensor) && tensor.shape().len() == 3 && tensor.name().contains("expert")
}

/// The pattern that excludes a tensor: one of the command line's, or else one of those of each kind.
fn excluded(name: &str, patterns: &[String]) -> Option<String> {
    if !patterns.is_empty() {
        let pattern = patterns
            .iter()
            .find(|pattern| name_matches(pattern, name))?;
        return Some(format!("excluded by {pattern:?}"));
    }
    let lower = name.to_lowercase();
    BY_DEFAULT.iter().find_map(|(what, patterns)| {
        let mut patterns = patterns.split(' ');
        let pattern = patterns.find(|pattern| name_matches(pattern, &lower))?;
        Some(format!("excluded by {pattern:?} ({what})"))
    })
}

/// Copied tensors, by reason, both in the order of the input.
#[derive(Debug, Default)]
pub(super) struct Copied {
    reasons: Vec<(String, Vec<String>)>,
}

/// Names that the text lists; a model has hundreds. `--json` has all.
const NAMES: usize = 6;

/// The first of these names.
pub(super) fn listed(names: &[String]) -> String {
    let first = names.iter().take(NAMES);
    let mut listed: Vec<String> = first.map(|name| format!("{name:?}")).collect();
    match names.len().saturating_sub(NAMES) {
        0 => {}
        more => listed.push(format!("and {more} more (--json lists them)")),
    }
    listed.join(", ")
}

impl Copied {
    pub(super) fn add(&mut self, name: &str, why: String) {
        match self.reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, names)) => names.push(name.into()),
            None => self.reasons.push((why, vec![name.into()])),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.reasons.iter().map(|(_, names)| names.len()).sum()
    }

    /// A line for each reason; `what` became of the tensors.
    pub(super) fn text(&self, what: &str) -> String {
        let line =
            |(why, names): &(String, Vec<String>)| format!("  {what}, {why}: {}\n", listed(names));
        self.reasons.iter().map(line).collect()
    }

    pub(super) fn json(&self) -> Vec<serde_json::Value> {
        let each = |(why, names): &(String, Vec<String>)| {
            let one = |name: &String| json!({ "tensor": name, "why": why });
            names.iter().map(one).collect::<Vec<_>>()
        };
        self.reasons.iter().flat_map(each).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_models_need_as_it_is_is_known_by_its_name() {
        for name in "model.embed_tokens.weight transformer.wte.weight wte.weight wpe.weight \
            embeddings.word_embeddings.weight tok_embeddings.weight emb.weight shared.weight model.shared.weight \
            lm_head.weight output.weight language_model.output.weight language_model.lm_head.weight \
            transformer.output_layer.weight embed_out.weight head.weight score.weight \
            model.layers.0.mlp.gate.weight model.layers.0.block_sparse_moe.gate.weight \
            model.layers.0.mlp.shared_expert_gate.weight model.layers.0.mlp.router.weight \
            model.layers.0.feed_forward.router.weight encoder.block.1.layer.1.mlp.router.classifier.weight \
            layers.0.ffn.gate.weight model.layers.0.mlp.gate.wg.weight \
            encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight \
            model.layers.0.self_attn.q_proj.lora_A.weight model.layers.0.self_attn.q_proj.lora_B.default.weight \
            lora_unet_down_blocks_0.lora_down.weight \
            token_embd.weight position_embd.weight per_layer_token_embd.weight cls.output.weight \
            cls.predictions.decoder.weight model.layers.61.shared_head.head.weight qa_outputs.weight \
            decoder.output_projection.weight to_logits.weight medusa_head.0.0.linear.weight quantizer.codebook.weight \
            model.layers.0.mlp.expert_gate.weight model.layers.0.mlp.gate_network.weight \
            Model.Layers.0.Mlp.Gate.weight LM_HEAD.weight transformer.WTE.weight \
            blk.0.ffn_gate_inp.weight blk.0.ffn_gate_inp_shexp.weight enc.blk.0.attn_rel_b.weight"
            .split(' ')
        {
            assert!(excluded(name, &[]).is_some(), "{name}");
        }
        for name in "model.layers.0.self_attn.q_proj.weight model.layers.0.mlp.gate_proj.weight \
            model.layers.0.mlp.experts.3.gate_proj.weight model.layers.0.mlp.shared_expert.gate_proj.weight \
            model.layers.0.mlp.shared_experts.down_proj.weight layers.0.ffn.experts.5.w1.weight \
            encoder.layer.0.attention.output.dense.weight encoder.layer.0.output.dense.weight \
            transformer_blocks.0.attn.to_out.0.weight blk.0.attn_q.weight blk.0.attn_output.weight \
            blk.0.ffn_gate.weight blk.0.ffn_gate_exps.weight"
            .split(' ')
        {
            assert_eq!(excluded(name, &[]), None, "{name}");
        }
    }
}
