//! GGUF's names of tensors, and transformers' names of the same.
//!
//! Source: llama.cpp's `gguf-py/gguf/tensor_mapping.py` and `convert_hf_to_gguf.py`.

use super::StoredRows;

/// Facts of a model's architecture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Architecture {
    name: &'static str,
    /// Whether the rows of q and k are stored for rotary positions of neighbours: each head's halves in turns.
    is_permuted: bool,
    /// Whether its experts have the names below.
    has_experts: bool,
}

/// Architectures whose names and rows are known. Tensors of others keep GGUF's names, and their rows stay where they
/// are.
const ARCHITECTURES: [Architecture; 5] = [
    Architecture {
        name: "llama",
        is_permuted: true,
        // Mixtral's are `block_sparse_moe.experts.E.w1`, an expert a tensor.
        has_experts: false,
    },
    Architecture {
        name: "qwen2",
        is_permuted: false,
        has_experts: false,
    },
    Architecture {
        name: "qwen3",
        is_permuted: false,
        has_experts: false,
    },
    Architecture {
        name: "qwen2moe",
        is_permuted: false,
        has_experts: true,
    },
    Architecture {
        name: "qwen3moe",
        is_permuted: false,
        has_experts: true,
    },
];

/// Modules beside the layers.
const TOP: [(&str, &str); 3] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

/// Modules of a layer: `blk.N.` before GGUF's name, `model.layers.N.` before the other.
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Those of layers of experts.
const EXPERTS: [(&str, &str); 8] = [
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

fn of<'a>(table: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    let (_, theirs) = table.iter().find(|(own, _)| *own == name)?;
    Some(theirs)
}

impl Architecture {
    pub(super) fn of(name: &str) -> Option<Self> {
        ARCHITECTURES.into_iter().find(|known| known.name == name)
    }

    /// transformers' name of a tensor, or none for one that it has no name for.
    pub(super) fn published(self, stored: &str) -> Option<String> {
        match layer(stored) {
            None => {
                let (module, rest) = stored.split_once('.')?;
                Some(format!("{}.{rest}", of(&TOP, module)?))
            }
            Some((number, module, rest)) => {
                let experts = || of(&EXPERTS, module).filter(|_| self.has_experts);
                let module = of(&LAYER, module).or_else(experts)?;
                Some(format!("model.layers.{number}.{module}.{rest}"))
            }
        }
    }

    /// Which heads the rows of a tensor belong to, where these are stored in another order.
    pub(super) fn permuted(self, stored: &str) -> Option<Heads> {
        let (_, module, _) = layer(stored).filter(|_| self.is_permuted)?;
        match module {
            "attn_q" => Some(Heads::Queries),
            "attn_k" => Some(Heads::Keys),
            _ => None,
        }
    }
}

/// The heads of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heads {
    Queries,
    Keys,
}

/// The order of `rows` rows of so many heads.
pub(super) fn order(rows: usize, heads: u64) -> Option<StoredRows> {
    let heads = usize::try_from(heads).ok().filter(|heads| *heads > 0)?;
    let head = rows / heads;
    let are_whole = rows.is_multiple_of(heads) && head.is_multiple_of(2) && head > 0;
    are_whole.then_some(StoredRows::HalvesInTurns(head))
}

/// The number of a layer, the module's name in it, and what follows that.
fn layer(stored: &str) -> Option<(&str, &str, &str)> {
    let (number, rest) = stored.strip_prefix("blk.")?.split_once('.')?;
    let (module, rest) = rest.split_once('.')?;
    Some((number, module, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_transformers() {
        let llama = Architecture::of("llama").unwrap();
        let qwen = Architecture::of("qwen3moe").unwrap();
        for (of, stored, published) in [
            (
                llama,
                "token_embd.weight",
                Some("model.embed_tokens.weight"),
            ),
            (llama, "output.weight", Some("lm_head.weight")),
            (
                llama,
                "blk.12.attn_q.weight",
                Some("model.layers.12.self_attn.q_proj.weight"),
            ),
            (
                llama,
                "blk.0.ffn_down.weight.scale",
                Some("model.layers.0.mlp.down_proj.weight.scale"),
            ),
            (llama, "blk.0.ffn_down_exps.weight", None),
            (
                qwen,
                "blk.0.ffn_down_exps.weight",
                Some("model.layers.0.mlp.experts.down_proj.weight"),
            ),
            (llama, "rope_freqs.weight", None),
            (llama, "weight", None),
            (llama, "blk.0", None),
        ] {
            assert_eq!(of.published(stored).as_deref(), published, "{stored}");
        }
        assert!(Architecture::of("gemma3").is_none());
        let permuted = |of: Architecture, name| of.permuted(&format!("blk.0.{name}.weight"));
        assert_eq!(permuted(llama, "attn_q"), Some(Heads::Queries));
        assert_eq!(permuted(llama, "attn_k"), Some(Heads::Keys));
        assert_eq!(permuted(llama, "attn_v"), None);
        assert_eq!(permuted(qwen, "attn_q"), None);
    }
}
