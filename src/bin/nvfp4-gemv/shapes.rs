//! Arguments that several commands share.

use std::num::{IntErrorKind, ParseIntError};

use clap::error::ErrorKind;
use nvfp4_gemv::{Activation, BLOCK, FloatType, ScaleLayout, Shape};

use crate::report::count;

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

/// How a shape is written, everywhere.
pub(crate) const SYNTAX: &str = "M,K[,L[,N]]";

/// The dimensions in the order in which a shape names them, and what they are.
const DIMENSIONS: [&str; 4] = ["M", "K", "L", "N"];

/// A shape as every command takes it: `M,K[,L[,N]]`, or with `x` or spaces between the numbers; spaces around
/// a comma or an `x` mean nothing. L and N are 1 where they are not given.
pub(crate) fn parse_shape(text: &str) -> Result<Shape, String> {
    let mut parts = Vec::new();
    for part in text.split([',', 'x']) {
        let before = parts.len();
        parts.extend(part.split_whitespace());
        if parts.len() == before {
            parts.push(""); // nothing between two commas
        }
    }
    if !(2..=DIMENSIONS.len()).contains(&parts.len()) {
        let count = match parts[..] {
            [""] => "no number".into(),
            _ => count(parts.len(), "number"),
        };
        return Err(format!("{count} given; {}", expected()));
    }
    let mut numbers = [0, 0, 1, 1];
    for ((number, name), part) in numbers.iter_mut().zip(DIMENSIONS).zip(parts) {
        *number = dimension(name, part)?;
    }
    let [m, k, l, n] = numbers;
    Shape::new(m, n, k, l).map_err(|e| e.to_string())
}

/// One number of a shape.
fn dimension(name: &str, text: &str) -> Result<usize, String> {
    text.parse().map_err(|error: ParseIntError| {
        let wrong = match error.kind() {
            IntErrorKind::Empty => format!("{name} is missing"),
            IntErrorKind::PosOverflow => format!("{name} = {text} is too large"),
            _ => format!("{name} = {text:?} is not a whole number"),
        };
        format!("{wrong}; {}", expected())
    })
}

fn expected() -> String {
    format!("expected {SYNTAX} or MxK[xL[xN]], for example 4096,7168 or 4096x7168x8")
}

/// What `--n` takes: the vectors of a call.
pub(crate) fn parse_n(text: &str) -> Result<usize, String> {
    let n = text
        .trim()
        .parse()
        .map_err(|_| format!("N = {text:?} is not a whole number"))?;
    // The shape owns the limits of N; the other dimensions do not matter here.
    Shape::new(1, n, BLOCK, 1).map_err(|e| e.to_string())?;
    Ok(n)
}

/// A shape as positional arguments, `4096,7168,8` or `4096 7168 8`, or as `--shape`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShapeArgs(pub(crate) Shape);

/// What clap knows of [`ShapeArgs`] before the numbers are put together.
#[derive(Debug, clap::Args)]
struct RawShapeArgs {
    /// M,K or M,K,L or M,K,L,N, also with `x` or spaces between: rows of the weights, elements of a row (a
    /// multiple of 16), batches, each with weights of its own, and vectors a batch
    #[arg(value_name = SYNTAX, required_unless_present = "shape", num_args = 1..,
        allow_negative_numbers = true)]
    numbers: Vec<String>,
    /// The same, as an option
    #[arg(long, value_name = SYNTAX, conflicts_with = "numbers")]
    shape: Option<String>,
}

impl clap::Args for ShapeArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        RawShapeArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        RawShapeArgs::augment_args_for_update(command)
    }
}

impl clap::FromArgMatches for ShapeArgs {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let raw = RawShapeArgs::from_arg_matches(matches)?;
        let text = raw.shape.unwrap_or_else(|| raw.numbers.join(" "));
        let wrong = |why| {
            clap::Error::raw(
                ErrorKind::ValueValidation,
                format!("invalid shape {text:?}: {why}\n"),
            )
        };
        parse_shape(&text).map(Self).map_err(wrong)
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_separator_gives_the_same_shape() {
        let whole = Shape::new(4096, 4, 7168, 8).unwrap();
        for text in [
            "4096,7168,8,4",
            "4096x7168x8x4",
            "4096 7168 8 4",
            "4096, 7168, 8, 4",
            "4096 x 7168 x 8 x 4",
            " 4096 ,7168 8x 4 ",
        ] {
            assert_eq!(parse_shape(text), Ok(whole), "{text}");
        }
        assert_eq!(parse_shape("2x16"), Ok(Shape::gemv(2, 16, 1).unwrap()));
        assert_eq!(parse_shape("2,16,4"), Ok(Shape::gemv(2, 16, 4).unwrap()));
        // What a shape prints is what it is read from.
        let printed = Shape::gemv(4096, 7168, 8).unwrap();
        assert_eq!(parse_shape(&printed.to_string()), Ok(printed));
    }

    #[test]
    fn errors_name_the_part_that_is_wrong() {
        for (text, says) in [
            ("", "no number given"),
            ("4096", "1 number given"),
            ("1,2,3,4,5", "5 numbers given"),
            ("a,16", "M = \"a\" is not a whole number"),
            ("16,1e3", "K = \"1e3\" is not a whole number"),
            ("16,16,-1", "L = \"-1\" is not a whole number"),
            ("16,16,1,two", "N = \"two\" is not a whole number"),
            (",16", "M is missing"),
            ("16, ,16", "K is missing"),
            ("16x", "K is missing"),
            (
                "16,99999999999999999999999",
                "K = 99999999999999999999999 is too large",
            ),
            ("16,24", "K = 24"),
            ("16,16,1,17", "N = 17"),
        ] {
            let error = parse_shape(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert!(
            parse_shape("16,b")
                .unwrap_err()
                .contains("M,K[,L[,N]] or MxK")
        );
        assert_eq!(parse_n("16"), Ok(16));
        for (text, says) in [("17", "at most 16"), ("0", "N = 0"), ("x", "N = \"x\"")] {
            let error = parse_n(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
