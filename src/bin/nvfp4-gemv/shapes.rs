//! Arguments that several commands share.

use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape};

/// What `--activation` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ActivationArg {
    /// 4-bit, quantised here
    Nvfp4,
    /// IEEE half precision
    F16,
    /// bfloat16
    Bf16,
    /// IEEE single precision
    F32,
}

impl From<ActivationArg> for Activation {
    fn from(arg: ActivationArg) -> Self {
        match arg {
            ActivationArg::Nvfp4 => Self::Nvfp4,
            ActivationArg::F16 => Self::F16,
            ActivationArg::Bf16 => Self::Bf16,
            ActivationArg::F32 => Self::F32,
        }
    }
}

/// What `--output-type` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OutputArg {
    /// IEEE half precision
    F16,
    /// bfloat16
    Bf16,
    /// IEEE single precision
    F32,
}

impl From<OutputArg> for FloatType {
    fn from(arg: OutputArg) -> Self {
        match arg {
            OutputArg::F16 => Self::F16,
            OutputArg::Bf16 => Self::Bf16,
            OutputArg::F32 => Self::F32,
        }
    }
}

/// What `--layout` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LayoutArg {
    /// Row-major, as in checkpoints
    Linear,
    /// Tiles of 128 rows x 4 scales, as tensor cores read them
    #[value(name = "128x4")]
    Tiled128x4,
}

impl From<LayoutArg> for ScaleLayout {
    fn from(arg: LayoutArg) -> Self {
        match arg {
            LayoutArg::Linear => Self::Linear,
            LayoutArg::Tiled128x4 => Self::Tiled128x4,
        }
    }
}

/// `M,K[,L[,N]]`, or with `x` between the numbers.
pub(crate) fn parse_shape(text: &str) -> Result<Shape, String> {
    let numbers: Vec<usize> = text
        .split([',', 'x'])
        .map(|n| n.trim().parse())
        .collect::<Result<_, _>>()
        .map_err(|_| "expected M,K or M,K,L or M,K,L,N, for example 4096,7168".to_owned())?;
    let (m, k, l, n) = match numbers[..] {
        [m, k] => (m, k, 1, 1),
        [m, k, l] => (m, k, l, 1),
        [m, k, l, n] => (m, k, l, n),
        _ => return Err("expected 2 to 4 numbers: M,K[,L[,N]]".into()),
    };
    Shape::new(m, n, k, l).map_err(|e| e.to_string())
}
