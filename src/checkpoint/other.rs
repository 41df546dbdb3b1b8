//! Quantised layers that are near to this crate's, and not read: their kinds.

use safetensors::Dtype;

use super::stacked::CODES;
use super::{Checkpoint, CheckpointError, Dialect, Exporter, Note};
use crate::BLOCK;
use crate::file::{FileError, Tensor};

/// Whether scales are those of MXFP4 for these codes: powers of two, half as many as NVFP4 has.
pub(super) fn is_mxfp4(codes: &Tensor<'_>, scales: &Tensor<'_>) -> bool {
    let (Some((k_half, rows)), Some((blocks, of_rows))) =
        (codes.shape().split_last(), scales.shape().split_last())
    else {
        return false;
    };
    let halves = |per_block| *k_half == blocks.saturating_mul(per_block / 2);
    let of_codes = codes.dtype() == Dtype::U8 && rows == of_rows;
    let of_f4 = codes.dtype() == Dtype::F4 && rows == of_rows;
    match scales.dtype() {
        Dtype::F8_E8M0 => of_codes || of_f4,
        Dtype::U8 => of_codes && halves(super::mx::BLOCK) && !halves(BLOCK),
        _ => false,
    }
}

/// Whether words of 32 bits are MLX's codes in its mode `nvfp4`: two words have a scale of a byte. In its other modes
/// four words, or eight, have one, or scales are floating-point numbers.
pub(super) fn is_mlx_nvfp4(codes: &Tensor<'_>, scales: &Tensor<'_>) -> bool {
    let (Some((words, rows)), Some((blocks, of_rows))) =
        (codes.shape().split_last(), scales.shape().split_last())
    else {
        return false;
    };
    codes.dtype() == Dtype::U32
        && matches!(scales.dtype(), Dtype::U8 | Dtype::F8_E4M3)
        && rows == of_rows
        && *words == blocks.saturating_mul(2)
}

/// gpt-oss has blocks in a dimension of their own: [.., K/32, 16], with scales [.., K/32].
pub(super) const MX_NAMES: [(&str, &str); 4] = [
    ("_blocks", "_scales"),
    (".blocks", ".scales"),
    (".weight_blocks", ".weight_scales"),
    (".weight.blocks", ".weight.scales"),
];

/// Tools with other formats than NVFP4, or with other names for it: the type of their codes, and the names of codes and
/// of a tensor beside them, by what follows the name of a layer.
const TOOLS: [(&str, Option<Dtype>, &str, &str); 9] = [
    // Integers, MXFP4, FP8.
    ("torchao", None, TORCHAO_CODES, "._weight_scale"),
    // Experts that are stacked in a parameter of another name.
    ("torchao", None, TORCHAO_PARAMETER, "_scale"),
    // Several formats of 4 and 8 bits, in words of 32.
    ("MLX", Some(Dtype::U32), ".weight", ".scales"),
    // NVFP4 and integers, with a low-rank product (SVDQuant).
    ("Nunchaku (SVDQuant)", None, ".qweight", ".wscales"),
    // NVFP4 and MXFP4 of vectors that a Hadamard matrix rotates.
    ("FP-Quant", Some(Dtype::U8), ".qweight", ".scales"),
    ("GPTQ or AWQ", Some(Dtype::I32), ".qweight", ".scales"),
    ("bitsandbytes", None, ".weight", ".weight.absmax"),
    // NVFP4 of its own checkpoints, some with scales for kernels.
    (
        "TensorRT-LLM",
        None,
        ".weight",
        ".weights_block_scaling_factor",
    ),
    // NVFP4, whose scales are in the 128x4 layout.
    (
        "Four Over Six",
        None,
        ".quantized_weight_values",
        ".quantized_weight_scale_factors",
    ),
];

pub(super) const TORCHAO_CODES: &str = "._weight_qdata";
const TORCHAO_PARAMETER: &str = "_qdata";

/// The name below which torchao's tensors of a weight are, of the name of its codes.
pub(super) fn torchao_weight<'a>(codes: &Tensor<'a>) -> Option<&'a str> {
    let name = codes.name();
    let of_parameter = || {
        let stem = name.strip_suffix(TORCHAO_PARAMETER)?;
        let last = stem.rsplit('.').next()?;
        last.starts_with('_').then_some(stem)
    };
    name.strip_suffix(TORCHAO_CODES).or_else(of_parameter)
}

/// Refuses a tensor that has torchao's codes: its scales have names of their own.
pub(super) fn refuse_torchao(
    checkpoint: &Checkpoint,
    codes: &Tensor<'_>,
) -> Result<(), CheckpointError> {
    let weight = torchao_weight(codes);
    match weight.and_then(|weight| why_not(checkpoint, weight)) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Names that block scales of stacked experts have, by what follows the name of the codes, which may have `_weight`
/// or `.weight` itself.
const STACKED_SCALES: [&str; 3] = ["_weight_scale", "_scale", ".weight_scale"];

/// Whether a tensor is the codes of stacked experts: U8 of three dimensions with block scales of as many, or MLX's.
pub(super) fn is_stacked(checkpoint: &Checkpoint, codes: &Tensor<'_>) -> bool {
    let name = codes.name();
    if codes.shape().len() != 3 {
        return false;
    }
    if codes.dtype() == Dtype::U32 {
        let scales = mlx_scales(checkpoint, codes);
        return scales.is_some_and(|scales| is_mlx_nvfp4(codes, &scales));
    }
    if codes.dtype() != Dtype::U8 {
        return false;
    }
    let stems = [Some(name), name.strip_suffix("_packed")];
    let scales = stems.into_iter().flatten().flat_map(|stem| {
        STACKED_SCALES.map(|suffix| checkpoint.tensor(&format!("{stem}{suffix}")))
    });
    let mut scales = scales.flatten();
    scales.any(|scales| {
        scales.dtype() == Dtype::F8_E4M3 && scales.shape().len() == 3 && scales.name() != name
    })
}

/// MLX's scales of these codes.
pub(super) fn mlx_scales<'a>(checkpoint: &'a Checkpoint, codes: &Tensor<'_>) -> Option<Tensor<'a>> {
    let module = codes.name().strip_suffix(Exporter::Mlx.codes())?;
    checkpoint.tensor(&format!("{module}{}", Exporter::Mlx.scales()))
}

pub(super) fn stacked(layer: &str, codes: &Tensor<'_>) -> CheckpointError {
    CheckpointError::StackedExperts {
        file: codes.file().path().into(),
        layer: layer.into(),
        tensor: codes.name().into(),
        found: codes.to_string(),
    }
}

pub(super) fn mxfp4(layer: &str, scales: &Tensor<'_>) -> CheckpointError {
    CheckpointError::Mxfp4 {
        file: scales.file().path().into(),
        layer: layer.into(),
        tensor: scales.name().into(),
        found: scales.to_string(),
    }
}

pub(super) fn not_nvfp4(layer: &str, weight: &Tensor<'_>) -> CheckpointError {
    CheckpointError::NotNvfp4 {
        file: weight.file().path().into(),
        layer: layer.into(),
        found: weight.to_string(),
    }
}

/// The name of the MXFP4 weights whose codes these are.
pub(super) fn mx_blocks<'a>(checkpoint: &Checkpoint, codes: &Tensor<'a>) -> Option<&'a str> {
    MX_NAMES.iter().find_map(|(blocks, scales)| {
        let stem = codes.name().strip_suffix(blocks)?;
        checkpoint.tensor(&format!("{stem}{scales}")).map(|_| stem)
    })
}

pub(super) fn both_dialects(
    layer: &str,
    modelopt: &Tensor<'_>,
    compressed: &Tensor<'_>,
) -> CheckpointError {
    CheckpointError::BothDialects {
        file: modelopt.file().path().into(),
        layer: layer.into(),
        tensors: [modelopt.name().into(), compressed.name().into()],
    }
}

/// Why a name that is no complete NVFP4 layer is none, where its tensors tell.
pub(super) fn why_not(checkpoint: &Checkpoint, name: &str) -> Option<CheckpointError> {
    let of = |suffix: &str| checkpoint.tensor(&format!("{name}{suffix}"));
    for (blocks, scales) in MX_NAMES {
        if let (Some(_), Some(scales)) = (of(blocks), of(scales)) {
            return Some(mxfp4(name, &scales));
        }
    }
    for suffix in CODES {
        if let Some(codes) = of(suffix)
            && is_stacked(checkpoint, &codes)
        {
            return Some(stacked(name, &codes));
        }
    }
    for (tool, dtype, codes, scales) in TOOLS {
        if let (Some(codes), Some(_)) = (of(codes), of(scales))
            && dtype.is_none_or(|dtype| codes.dtype() == dtype)
        {
            return Some(CheckpointError::OtherTool {
                file: codes.file().path().into(),
                layer: name.into(),
                tool,
                tensor: codes.name().into(),
                found: codes.to_string(),
            });
        }
    }
    let scales = of(&format!(".{}", Dialect::ModelOpt.scales()))?;
    let has = |suffix: &str| of(&format!(".{suffix}"));
    let codes_of = |dialect: Dialect| has(dialect.codes());
    for codes in Dialect::ALL.iter().filter_map(|dialect| codes_of(*dialect)) {
        if is_mxfp4(&codes, &scales) {
            return Some(mxfp4(name, &scales));
        }
    }
    if scales.dtype() != Dtype::F8_E4M3 {
        return None;
    }
    let missing = |suffix: &str, expected: &str| {
        let missing = FileError::MissingTensor {
            file: scales.file().path().into(),
            tensor: format!("{name}.{suffix}"),
            expected: expected.into(),
        };
        Some(CheckpointError::File(missing))
    };
    let [own, other] = [Dialect::ModelOpt, Dialect::CompressedTensors];
    for (dialect, other) in [(own, other), (other, own)] {
        let codes = codes_of(dialect).filter(|codes| codes.dtype() == Dtype::U8);
        match (codes, has(dialect.global()), has(other.global())) {
            (Some(codes), None, Some(global)) => {
                let (modelopt, compressed) = match dialect {
                    Dialect::ModelOpt => (codes, global),
                    Dialect::CompressedTensors => (global, codes),
                };
                return Some(both_dialects(name, &modelopt, &compressed));
            }
            (Some(_), None, None) => return missing(dialect.global(), "F32 [] or [1]"),
            // Codes of the other dialect are told above or below.
            (None, Some(_), _) if has(dialect.codes()).is_none() && codes_of(other).is_none() => {
                return missing(dialect.codes(), "U8 [N, K/2]");
            }
            _ => {}
        }
    }
    None
}

/// Notes on the layers that are not read.
pub(super) fn unsupported(checkpoint: &Checkpoint) -> Vec<Note> {
    let of = |what: &'static str, is: &dyn Fn(&Tensor<'_>) -> bool| {
        let mut found = checkpoint.tensors().filter(is);
        let first = found.next()?;
        Some(Note::Unsupported {
            what,
            tensor: first.name().into(),
            total: 1 + found.count(),
        })
    };
    let is_stacked = |tensor: &Tensor<'_>| is_stacked(checkpoint, tensor);
    let is_mx = |scales: &Tensor<'_>| {
        if !matches!(scales.dtype(), Dtype::U8 | Dtype::F8_E8M0) {
            return false;
        }
        let name = scales.name();
        let blocks = MX_NAMES.iter().any(|(blocks, suffix)| {
            let stem = name.strip_suffix(suffix);
            stem.is_some_and(|stem| checkpoint.tensor(&format!("{stem}{blocks}")).is_some())
        });
        let stem = name.strip_suffix(Dialect::ModelOpt.scales());
        let codes = stem.into_iter().flat_map(|stem| {
            Dialect::ALL
                .iter()
                .filter_map(move |dialect| checkpoint.tensor(&format!("{stem}{}", dialect.codes())))
        });
        blocks || { codes }.any(|codes| is_mxfp4(&codes, scales))
    };
    let all = [
        of("stacked experts are no single layers", &is_stacked),
        of("MXFP4 layers are not NVFP4 layers", &is_mx),
    ];
    all.into_iter().flatten().collect()
}
