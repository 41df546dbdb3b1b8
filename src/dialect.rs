//! The tools that make NVFP4 checkpoints, and the differences between them.

use crate::tensor::GlobalScale;
use crate::types::named;

named! {
    /// The tool whose tensor names, and whose idea of a global scale, a layer follows.
    Dialect {
        /// NVIDIA ModelOpt: global scales are multipliers.
        ModelOpt = "modelopt",
        /// compressed-tensors (llm-compressor, vLLM): global scales are divisors.
        CompressedTensors = "compressed-tensors",
    }
}

impl Dialect {
    /// Name of the tensor of the codes, after the layer's name and a dot.
    pub const fn codes(self) -> &'static str {
        match self {
            Self::ModelOpt => "weight",
            Self::CompressedTensors => "weight_packed",
        }
    }

    /// Name of the tensor of the block scales.
    pub const fn scales(self) -> &'static str {
        "weight_scale"
    }

    /// Name of the tensor of the global scale.
    pub const fn global(self) -> &'static str {
        match self {
            Self::ModelOpt => "weight_scale_2",
            Self::CompressedTensors => "weight_global_scale",
        }
    }

    /// Name of the tensor of the activations' global scale.
    pub const fn input_global(self) -> &'static str {
        match self {
            Self::ModelOpt => "input_scale",
            Self::CompressedTensors => "input_global_scale",
        }
    }

    /// A global scale as this dialect means it.
    pub const fn global_scale(self, value: f32) -> GlobalScale {
        match self {
            Self::ModelOpt => GlobalScale::Multiplier(value),
            Self::CompressedTensors => GlobalScale::Divisor(value),
        }
    }
}
