//! Stacked experts: one tensor of codes and one of block scales have the matrices of all.

use safetensors::Dtype;

use super::{Beside, Checkpoint, CheckpointError, Dialect, Exporter, Note, config, other, usable};
use crate::file::{FileError, Tensor};
use crate::tensor::check_column_alpha;
use crate::{Dims, GlobalScale, Shape};

/// Endings of the name of the codes, behind the name of the experts. Llama-4 has none.
pub(super) const CODES: [&str; 6] = [
    ".weight_packed",
    "_weight_packed",
    ".weight",
    "_weight",
    "_packed",
    "",
];

/// The headers of stacked experts' tensors, checked with what else is known of them; their content was not.
#[derive(Debug)]
pub(super) struct Stacked<'a> {
    /// The experts' name, without the ending of the codes.
    pub(super) name: &'a str,
    pub(super) exporter: Exporter,
    codes: Tensor<'a>,
    scales: Tensor<'a>,
    /// MLX's have none.
    global: Option<Tensor<'a>>,
    column_alpha: Option<Tensor<'a>>,
    pub(super) has_input_scale: bool,
    /// L experts.
    pub(super) shape: Shape,
    /// Whether the tensors are `[E][K/2][M]` and `[E][K/16][M]`, as ModelOpt writes experts of Llama-4 and gpt-oss.
    pub(super) is_transposed: bool,
    pub(super) notes: Vec<Note>,
}

/// The experts' name, of the name of their codes.
pub(super) fn stem(codes: &str) -> &str {
    let stems = CODES.iter().filter_map(|ending| codes.strip_suffix(ending));
    stems.min_by_key(|stem| stem.len()).unwrap_or(codes)
}

impl<'a> Stacked<'a> {
    /// The experts with these codes, which are [stacked](other::is_stacked).
    pub(super) fn of(
        checkpoint: &'a Checkpoint,
        codes: Tensor<'a>,
    ) -> Result<Self, CheckpointError> {
        let name = stem(codes.name());
        checkpoint.nothing_elsewhere_of_stack(name)?;
        if codes.dtype() == Dtype::U32
            && let Some(scales) = other::mlx_scales(checkpoint, &codes)
        {
            let shape = mlx_shape(&codes)?;
            return Self::with(
                checkpoint,
                name,
                Exporter::Mlx,
                [codes, scales],
                None,
                (shape, false),
            );
        }
        let own = |between: char, suffix: &str| {
            let name = format!("{name}{between}{suffix}");
            checkpoint.tensor(&name).ok_or(name)
        };
        let missing = |tensor: String, expected: &str| FileError::MissingTensor {
            file: codes.file().path().into(),
            tensor,
            expected: expected.into(),
        };
        let suffix = Dialect::ModelOpt.scales();
        let has_scales = |between: &char| own(*between, suffix).is_ok();
        let Some(between) = ['_', '.'].into_iter().find(has_scales) else {
            return Err(missing(format!("{name}_{suffix}"), "F8_E4M3 [E, N, K/16]").into());
        };
        let scales = own(between, suffix).map_err(|tensor| missing(tensor, "F8_E4M3"))?;
        let (shape, is_transposed) = shape(&codes, &scales)?;
        let has_global = |dialect: &Dialect| own(between, dialect.global()).is_ok();
        let dialect = Dialect::ALL.into_iter().find(has_global);
        let dialect = dialect.unwrap_or(Dialect::ModelOpt);
        let global = own(between, dialect.global()).map_err(|tensor| missing(tensor, GLOBALS))?;
        let counts = [1, shape.l()];
        if global.dtype() != Dtype::F32 || !counts.contains(&global.elements()) {
            return Err(global.wrong(GLOBALS).into());
        }
        let of = (shape, is_transposed);
        Self::with(
            checkpoint,
            name,
            dialect.into(),
            [codes, scales],
            Some(global),
            of,
        )
    }

    fn with(
        checkpoint: &'a Checkpoint,
        name: &'a str,
        exporter: Exporter,
        [codes, scales]: [Tensor<'a>; 2],
        global: Option<Tensor<'a>>,
        (shape, is_transposed): (Shape, bool),
    ) -> Result<Self, CheckpointError> {
        let ending = codes.name()[name.len()..].trim_start_matches(['.', '_']);
        let mut own: Vec<&str> = exporter.names().collect();
        own.push(ending);
        let others = || {
            let between = ['.', '_'].into_iter();
            between.flat_map(|between| checkpoint.behind(format!("{name}{between}")))
        };
        let has_input_scale = others().any(|(rest, _)| exporter.input_global() == Some(rest));
        let beside = Beside::of(others(), name, codes, exporter, &own)?;
        beside.refuse_for_stacked(name)?;
        if let Some(alpha) = &beside.column_alpha {
            expect_columns(alpha, &shape)?;
        }
        let facts = config::Facts {
            name,
            exporter,
            has_input_scale,
            has_column_alpha: beside.column_alpha.is_some(),
            files: [codes.file().path(), scales.file().path()],
        };
        super::refuse_comfy(checkpoint, (name, exporter), facts.files)?;
        let mut notes = checkpoint.configs().check(&facts)?;
        notes.extend(beside.notes);
        Ok(Self {
            name,
            exporter,
            codes,
            scales,
            global,
            column_alpha: beside.column_alpha,
            has_input_scale,
            shape,
            is_transposed,
            notes,
        })
    }

    /// The tensors of codes and of block scales.
    pub(super) fn tensors(&self) -> [Tensor<'a>; 2] {
        [self.codes, self.scales]
    }

    /// Codes and block scales of all experts.
    pub(super) fn whole(&self) -> [&'a [u8]; 2] {
        [self.codes.bytes(), self.scales.bytes()]
    }

    /// Codes and block scales of each.
    pub(super) fn experts(&self) -> impl Iterator<Item = [&'a [u8]; 2]> {
        let (experts, whole) = (self.shape.l(), self.whole());
        (0..experts).map(move |expert| {
            whole.map(|bytes| {
                let each = bytes.len() / experts;
                &bytes[expert * each..(expert + 1) * each]
            })
        })
    }

    /// The global scale of each.
    pub(super) fn globals(&self) -> Result<Vec<GlobalScale>, FileError> {
        let Some(global) = &self.global else {
            return Ok(vec![GlobalScale::ONE; self.shape.l()]);
        };
        let values = global.to_f32()?;
        let usable = |value: &f32| usable(global, self.exporter, *value);
        let globals: Vec<GlobalScale> = values.iter().map(usable).collect::<Result<_, _>>()?;
        Ok(match globals[..] {
            [one] => vec![one; self.shape.l()],
            _ => globals,
        })
    }
}

impl Stacked<'_> {
    /// The factors of columns of each expert, or of all.
    pub(super) fn column_alpha(&self) -> Result<Option<Vec<f32>>, FileError> {
        let Some(tensor) = &self.column_alpha else {
            return Ok(None);
        };
        let alpha = tensor.to_f32_widened()?;
        check_column_alpha(&alpha, &self.shape).map_err(|e| tensor.refused(e))?;
        Ok(Some(alpha))
    }
}

/// Refuses factors of columns of another shape than those of all experts, or of each.
fn expect_columns(alpha: &Tensor<'_>, shape: &Shape) -> Result<(), FileError> {
    let (experts, k) = (shape.l(), shape.k());
    let fits = match *alpha.shape() {
        [of] | [1, of] | [1, 1, of] if of == k => true,
        [of_experts, of] | [of_experts, 1, of] => of_experts == experts && of == k,
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(alpha.wrong(format!("F32, F16 or BF16 [{k}] or [{experts}, {k}]"))),
    }
}

/// The shape of MLX's experts, whose words have eight elements.
fn mlx_shape(codes: &Tensor<'_>) -> Result<Shape, CheckpointError> {
    let &[l, m, words] = codes.shape() else {
        return Err(codes.wrong("U32 [E, N, K/8]").into());
    };
    let k = words.saturating_mul(8);
    Ok(Shape::new(Dims { m, n: 1, k, l }).map_err(|e| codes.refused(e))?)
}

const GLOBALS: &str = "F32 [], [1] or [E]";

/// The matrices' shape, and whether they are transposed. No shape is both: 8 bytes of codes have one scale.
fn shape(codes: &Tensor<'_>, scales: &Tensor<'_>) -> Result<(Shape, bool), CheckpointError> {
    let &[experts, a, b] = codes.shape() else {
        return Err(codes.wrong("U8 [E, N, K/2]").into());
    };
    let as_they_are = [experts, a, b / 8];
    let transposed = [experts, a / 8, b];
    let is_e4m3 = scales.dtype() == Dtype::F8_E4M3;
    let (m, k_half, is_transposed) = match scales.shape() {
        shape if is_e4m3 && shape == as_they_are && b % 8 == 0 => (a, b, false),
        shape if is_e4m3 && shape == transposed && a % 8 == 0 => (b, a, true),
        _ if other::is_mxfp4(codes, scales) => {
            return Err(other::mxfp4(stem(codes.name()), scales));
        }
        _ => {
            let expected = format!("F8_E4M3 {as_they_are:?} or, transposed, {transposed:?}");
            return Err(scales.wrong(expected).into());
        }
    };
    let dims = Dims {
        m,
        n: 1,
        k: k_half.saturating_mul(2),
        l: experts,
    };
    let shape = Shape::new(dims).map_err(|e| codes.refused(e))?;
    Ok((shape, is_transposed))
}
