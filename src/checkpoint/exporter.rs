//! The tools whose names of tensors are read, and what those names are.

use std::fmt;

use super::Dialect;
use crate::GlobalScale;

/// The tool whose tensor names a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Exporter {
    /// A tool whose dialect this crate writes, too.
    Of(Dialect),
    /// torchao: its metadata say whether the block scales are in the 128x4 layout.
    TorchAo,
    /// MLX, in its mode `nvfp4`: codes in words of 32 bits, and no global scale.
    Mlx,
}

impl From<Dialect> for Exporter {
    fn from(dialect: Dialect) -> Self {
        Self::Of(dialect)
    }
}

impl fmt::Display for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Exporter {
    pub(super) const ALL: [Self; 4] = [
        Self::Of(Dialect::ModelOpt),
        Self::Of(Dialect::CompressedTensors),
        Self::TorchAo,
        Self::Mlx,
    ];

    /// The name in messages, tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Of(dialect) => dialect.name(),
            Self::TorchAo => "torchao",
            Self::Mlx => "mlx",
        }
    }

    /// Name of the tensor of the codes, after the layer's name and a dot.
    pub(super) const fn codes(self) -> &'static str {
        match self {
            Self::Of(dialect) => dialect.codes(),
            Self::TorchAo => "_weight_qdata",
            Self::Mlx => "weight",
        }
    }

    /// Name of the tensor of the block scales.
    pub(super) const fn scales(self) -> &'static str {
        match self {
            Self::Of(dialect) => dialect.scales(),
            Self::TorchAo => "_weight_scale",
            Self::Mlx => "scales",
        }
    }

    /// Name of the tensor of the global scale, if there is one.
    pub(super) const fn global(self) -> Option<&'static str> {
        match self {
            Self::Of(dialect) => Some(dialect.global()),
            Self::TorchAo => Some("_weight_per_tensor_scale"),
            Self::Mlx => None,
        }
    }

    /// Whether every layer has a global scale.
    pub(super) const fn needs_global(self) -> bool {
        matches!(self, Self::Of(_))
    }

    /// Name of the tensor of the activations' global scale, if there is one.
    pub(super) const fn input_global(self) -> Option<&'static str> {
        match self {
            Self::Of(dialect) => Some(dialect.input_global()),
            Self::TorchAo => Some("_weight_act_per_tensor_scale"),
            Self::Mlx => None,
        }
    }

    /// The names of a layer's own tensors.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        let optional = [self.global(), self.input_global()];
        let needed = [self.codes(), self.scales()].into_iter();
        needed.chain(optional.into_iter().flatten())
    }

    /// A global scale as the tool means it.
    pub(super) const fn global_scale(self, value: f32) -> GlobalScale {
        match self {
            Self::Of(dialect) => dialect.global_scale(value),
            Self::TorchAo | Self::Mlx => GlobalScale::Multiplier(value),
        }
    }
}
