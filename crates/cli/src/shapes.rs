//! Arguments that several commands share.

use std::num::{IntErrorKind, ParseIntError};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use nvfp4_gemv::checkpoint::Dialect;
use nvfp4_gemv::{Activation, BLOCK, Dims, FloatType, ScaleLayout, Shape, VectorAccuracy};

use crate::report::count;

/// The parser of `--activation`.
pub(crate) fn activation() -> impl TypedValueParser<Value = Activation> {
    one_of(Activation::ALL.map(|value| match value {
        Activation::Nvfp4 => (value, value.name(), "4-bit, quantised here"),
        Activation::F16 => (value, value.name(), "IEEE half precision"),
        Activation::Bf16 => (value, value.name(), "bfloat16"),
        Activation::F32 => (value, value.name(), "IEEE single precision"),
    }))
}

/// The parser of `--output-type`.
pub(crate) fn output_type() -> impl TypedValueParser<Value = FloatType> {
    one_of(FloatType::ALL.map(|value| match value {
        FloatType::F16 => (value, value.name(), "IEEE half precision"),
        FloatType::Bf16 => (value, value.name(), "bfloat16"),
        FloatType::F32 => (value, value.name(), "IEEE single precision"),
    }))
}

/// The parser of `--dialect`.
pub(crate) fn dialect() -> impl TypedValueParser<Value = Dialect> {
    one_of(Dialect::ALL.map(|value| match value {
        Dialect::ModelOpt => (value, value.name(), "NVIDIA ModelOpt"),
        Dialect::CompressedTensors => (
            value,
            value.name(),
            "compressed-tensors (llm-compressor, vLLM)",
        ),
    }))
}

/// The parser of `--layout`.
pub(crate) fn layout() -> impl TypedValueParser<Value = ScaleLayout> {
    const TILED: &str = "Atoms of 128 rows x 4 scales; what tensor cores of 10.x read";
    one_of(ScaleLayout::ALL.map(|value| match value {
        ScaleLayout::Linear => (value, value.name(), "Row-major, as in checkpoints"),
        ScaleLayout::Tiled128x4 => (value, value.name(), TILED),
    }))
}

/// How close digits have to come to vectors.
pub(crate) fn accuracy() -> impl TypedValueParser<Value = VectorAccuracy> {
    one_of(VectorAccuracy::ALL.map(|value| match value {
        VectorAccuracy::Exact => (value, value.name(), "No digits: the vectors themselves"),
        VectorAccuracy::Bf16 => (value, value.name(), "3 digits: 2^-9 of a block's largest"),
        VectorAccuracy::F16 => (value, value.name(), "4 digits: 2^-12"),
        VectorAccuracy::Finest => (value, value.name(), "5 digits: 2^-15"),
    }))
}

/// An option's values by their names, each with its help.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(T, &'static str, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let known = values.map(|(_, name, help)| PossibleValue::new(name).help(help));
    let value = move |name: String| values.into_iter().find(|value| value.1 == name);
    PossibleValuesParser::new(known).map(move |name| value(name).expect("clap knows the names").0)
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
    some_vectors(n)?;
    of(m, n, k, l).map_err(|e| e.to_string())
}

/// The library computes nothing of no vectors; who types so many has mistyped.
fn some_vectors(n: usize) -> Result<(), String> {
    match n {
        0 => Err("N = 0: a call of no vectors computes nothing".into()),
        _ => Ok(()),
    }
}

/// A shape of M rows, N vectors, K elements of a row, and L batches.
pub(crate) fn of(m: usize, n: usize, k: usize, l: usize) -> nvfp4_gemv::Result<Shape> {
    Shape::new(Dims { m, n, k, l })
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

/// The parser of `--n`: the vectors of a call.
pub(crate) fn parse_n(text: &str) -> Result<usize, String> {
    let n = text
        .trim()
        .parse()
        .map_err(|_| format!("N = {text:?} is not a whole number"))?;
    some_vectors(n)?;
    // The shape owns the limits of N; the other dimensions do not matter here.
    of(1, n, BLOCK, 1).map_err(|e| e.to_string())?;
    Ok(n)
}

/// A shape as positional arguments, `4096,7168,8` or `4096 7168 8`, or as `--shape`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShapeArgs(pub(crate) Shape);

/// [`ShapeArgs`] as clap reads them, before the numbers are put together.
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
        // Several arguments are the numbers of one shape, and not several shapes.
        let is_shape = |text: &String| parse_shape(text).is_ok();
        let several = raw.numbers.iter().filter(|text| is_shape(text)).count() > 1;
        let text = raw.shape.unwrap_or_else(|| raw.numbers.join(" "));
        let wrong = |why: String| {
            let message = format!("invalid shape {text:?}: {why}\n");
            // The usage of the one command that takes these: without a command, clap prints that of the program.
            let usage = format!("nvfp4-gemv plan [OPTIONS] <{SYNTAX}>");
            let mut command = clap::Command::new("nvfp4-gemv").override_usage(usage);
            clap::Error::raw(ErrorKind::ValueValidation, message).format(&mut command)
        };
        match several {
            false => parse_shape(&text).map(Self).map_err(wrong),
            true => Err(wrong("one shape is planned at a time".into())),
        }
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
        let whole = of(4096, 4, 7168, 8).unwrap();
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
        assert_eq!(parse_shape("2x16"), Ok(Shape::matrix(2, 16).unwrap()));
        assert_eq!(parse_shape("2,16,4"), Ok(of(2, 1, 16, 4).unwrap()));
        // A printed shape is read as the same shape.
        let printed = of(4096, 1, 7168, 8).unwrap();
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
            ("16,16,1,0", "N = 0"),
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
        assert_eq!(parse_n("1000"), Ok(1000));
        for (text, says) in [
            ("4294967296", "N = 4294967296"),
            ("0", "N = 0"),
            ("x", "N = \"x\""),
        ] {
            let error = parse_n(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
