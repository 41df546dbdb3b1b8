//! Meaning of the tensors below a layer's name for its product: this is the only place that says so.
//!
//! A layer's own tensors are its dialect's ([`Dialect`](super::Dialect)). Everything else below its name, such as
//! `layer.bias` or `layer.lora_a.weight`, is looked up here. A tensor that is not in the table is refused by name,
//! since the product might depend on it.

use super::pattern::name_matches;

/// Effect of a tensor below a layer's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing: it is data beside the layer, or belongs to what comes after it.
    Nothing,
    /// The tensor is added to the product, which the caller does.
    Added,
    /// The tensor says the weight's shape.
    WeightShape,
    /// The tensor has factors of columns, which vectors are multiplied by first. ModelOpt's layers alone have it.
    ColumnAlpha,
    /// ComfyUI's mark: codes and block scales lie in its way, and the tensor may say more.
    Comfy,
    /// The tensor changes the product; the text says how.
    Changes(&'static str),
}

use Meaning::{Added, Changes, ColumnAlpha, Comfy, Nothing, WeightShape};

/// Effect of factors of columns, where they are not computed.
pub(super) const SCALES_VECTORS: &str = "scales each element of the vectors first";

const LOW_RANK: Meaning = Changes("is part of a low-rank product that is added to the layer's");
const SMOOTHING: Meaning = Changes(SCALES_VECTORS);
const ORDER: Meaning = Changes("changes the order of the columns");
const ZERO_POINT: Meaning = Changes("is subtracted from the codes");
const ROTATION: Meaning = Changes("rotates the vectors first");
const NORM: Meaning = Changes("normalises the vectors first");
const REPARAMETRISED: Meaning = Changes("makes the weight from other tensors");

/// Patterns of what follows a layer's name and a dot, in lower case; the first that fits counts.
const TABLE: &[(&str, Meaning)] = &[
    ("comfy_quant", Comfy),
    // AWQ, SmoothQuant and Nunchaku.
    ("pre_quant_scale", ColumnAlpha),
    ("*pre_quant_scale", SMOOTHING),
    ("*smooth_scale", SMOOTHING),
    ("*smooth_factor*", SMOOTHING),
    ("*smoothquant*", SMOOTHING),
    // SVDQuant, adapters.
    ("*lora*", LOW_RANK),
    ("*dora_scale*", LOW_RANK),
    ("proj_down*", LOW_RANK),
    ("proj_up*", LOW_RANK),
    // GPTQ's order of activations.
    ("*g_idx", ORDER),
    ("*perm", ORDER),
    // Asymmetric quantisation.
    ("zero_point", ZERO_POINT),
    ("weight_zero*", ZERO_POINT),
    ("qzeros", ZERO_POINT),
    (
        "input_zero_point",
        Changes("is subtracted from the quantised vectors"),
    ),
    // QuaRot, SpinQuant, QuIP.
    ("*hadamard*", ROTATION),
    ("had_*", ROTATION),
    ("*rotation*", ROTATION),
    ("*transform*", ROTATION),
    // Layers fused with their norm, as Transformer Engine has them.
    ("layer_norm_*", NORM),
    ("parametrizations.*", REPARAMETRISED),
    // Weight normalisation.
    ("weight_g", REPARAMETRISED),
    ("weight_v", REPARAMETRISED),
    // Sparse weights.
    ("*bitmask", REPARAMETRISED),
    ("bias", Added),
    // A router's tensor: it serves what is chosen by the product.
    ("e_score_correction_bias", Added),
    ("weight_shape", WeightShape),
    // Tensors of the cache of keys and values, and of what takes the result.
    ("q_scale", Nothing),
    ("k_scale", Nothing),
    ("v_scale", Nothing),
    ("kv_scale", Nothing),
    ("k_zero_point", Nothing),
    ("v_zero_point", Nothing),
    ("kv_cache_scaling_factor", Nothing),
    ("output_scale", Nothing),
    // Tensors that test files have beside a layer.
    ("test_*", Nothing),
    ("original_*", Nothing),
];

/// Limit: bytes of a name behind a layer's that is looked up. Longer ones are those of modules far inside of it.
const LONGEST: usize = 128;

/// Effect of a tensor, by the part of its name behind the layer's name and a dot; `None` for an unknown tensor.
pub(super) fn meaning(rest: &str) -> Option<Meaning> {
    if rest.len() > LONGEST {
        return None;
    }
    let rest = rest.to_lowercase();
    // A module of its own below the layer: only what changes the product is known of those.
    let is_nested = rest.contains('.');
    TABLE
        .iter()
        .filter(|(_, meaning)| !is_nested || matches!(meaning, Changes(_)))
        .find(|(pattern, _)| name_matches(pattern, &rest))
        .map(|(_, meaning)| *meaning)
}

/// Whether a tensor's name is that of ComfyUI's mark of a layer.
pub(super) fn is_comfy_mark(name: &str) -> bool {
    let last = name.rsplit_once('.').map(|(_, last)| last);
    last.is_some_and(|last| last.eq_ignore_ascii_case("comfy_quant"))
}

/// Whether a layer's name is one of a diffusion model, as ComfyUI, the models' makers and diffusers name them. ComfyUI
/// uses ModelOpt's names for another layout, and some files do not say so. ModelOpt's own files of such models have a
/// config beside them.
pub(super) fn is_of_diffusion(name: &str) -> bool {
    const PARTS: [&str; 7] = [
        "double_blocks",
        "single_blocks",
        "diffusion_model",
        // LTX, Qwen-Image, UNets; diffusers' names of FLUX.
        "transformer_blocks",
        "single_transformer_blocks",
        // Z-Image.
        "noise_refiner",
        "context_refiner",
    ];
    // Z-Image's other layers. Language models that have these names are Mistral's own files.
    let is_z_image = |rest: &str| rest.contains(".attention.") || rest.contains(".feed_forward.");
    // Wan, and others that begin so.
    let begins =
        name.starts_with("blocks.") || name.strip_prefix("layers.").is_some_and(is_z_image);
    begins || name.split('.').any(|part| PARTS.contains(&part))
}

/// Whether a module's name is an embedding's, as far as names tell.
pub(super) fn is_embedding(name: &str) -> bool {
    const PARTS: [&str; 5] = ["emb", "wte", "wpe", "shared", "embeddings"];
    let mut parts = name.rsplit('.');
    parts
        .next()
        .is_some_and(|last| last.contains("embed") || PARTS.contains(&last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_by_name() {
        for (rest, expected) in [
            ("bias", Some(Added)),
            ("pre_quant_scale", Some(ColumnAlpha)),
            ("input_quantizer._pre_quant_scale", Some(SMOOTHING)),
            ("svdquant_lora_a", Some(LOW_RANK)),
            ("lora_A.default.weight", Some(LOW_RANK)),
            ("weight_g_idx", Some(ORDER)),
            ("weight_zero_point", Some(ZERO_POINT)),
            ("comfy_quant", Some(Comfy)),
            ("k_scale", Some(Nothing)),
            ("test_output_w4a16_f64", Some(Nothing)),
            ("parametrizations.weight.original0", Some(REPARAMETRISED)),
            ("rotation.weight", Some(ROTATION)),
            // Nothing is said of other modules' parts.
            ("up.bias", None),
            ("up.test_input", None),
            ("weight_scale_inv", None),
            ("", None),
        ] {
            assert_eq!(meaning(rest), expected, "{rest}");
        }
    }
}
