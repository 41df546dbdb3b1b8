//! The cases of `verify`: which data on which shapes, in which variants.

use half::{bf16, f16};
use nvfp4_gemv::{Activation, FloatType, Result, ScaleLayout, Shape};
use nvfp4_gemv_cli::problem::{CONTEST_BENCHMARKS, CONTEST_TESTS, EdgeCase, Problem, Rule};

use crate::engine::{InputScale, Inputs, Operands};
use crate::shapes;

/// The vectors and results of the contest.
const CONTEST: (Activation, FloatType) = (Activation::Nvfp4, FloatType::F16);

/// Kinds of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// The contest's rule and tolerance.
    Contest,
    /// All codes, all scales.
    FullRange,
    /// Full-range data with an alpha for each row.
    RowAlpha,
    /// Exact answers.
    Integers,
    /// Data at the edges of the formats.
    Edge(EdgeCase),
    /// Read from a file, with the rule that it has.
    File(Rule),
}

impl Data {
    pub(crate) fn name(self) -> String {
        let name = match self {
            Self::Contest => "contest",
            Self::FullRange => "full-range",
            Self::RowAlpha => "row-alpha",
            Self::Integers => "integers",
            Self::Edge(case) => return case.to_string(),
            Self::File(_) => "file",
        };
        name.to_owned()
    }

    /// How far results may lie from the expected ones.
    pub(crate) fn rule(self) -> Rule {
        match self {
            Self::Contest => Rule::Contest,
            Self::Integers => Rule::Exact,
            Self::File(rule) => rule,
            Self::FullRange | Self::RowAlpha | Self::Edge(_) => Rule::Derived,
        }
    }

    /// The rule in one variant: the contest's tolerance is for the contest's own, and no bf16 result would meet it.
    pub(crate) fn rule_of(self, variant: Variant) -> Rule {
        let is_contest = (variant.activation, variant.output) == CONTEST;
        match self.rule() {
            Rule::Contest if !is_contest => Rule::Derived,
            rule => rule,
        }
    }
}

/// One set of data, computed in several variants.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) data: Data,
    pub(crate) shape: Shape,
    pub(crate) variants: Vec<Variant>,
}

/// How the data are put to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) layout: ScaleLayout,
    pub(crate) activation: Activation,
    pub(crate) output: FloatType,
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            layout,
            activation,
            output,
        } = self;
        write!(f, "{layout} {activation} -> {}", output.name())
    }
}

impl Group {
    /// The name that `--case` looks in.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.data.name(), self.shape)
    }

    /// The data; the same for the same group on every machine.
    pub(crate) fn problem(&self) -> Problem {
        const SEED: u64 = 1111;
        match self.data {
            Data::Contest => Problem::contest(self.shape, SEED),
            Data::FullRange | Data::File(_) => Problem::full_range(self.shape, SEED),
            Data::RowAlpha => Problem::full_range(self.shape, SEED).with_row_alpha(SEED),
            Data::Integers => Problem::integers(self.shape, SEED),
            Data::Edge(case) => Problem::edge_case(self.shape, case, SEED),
        }
    }
}

/// Every combination.
pub(crate) fn variants(
    layouts: &[ScaleLayout],
    activations: &[Activation],
    outputs: &[FloatType],
) -> Vec<Variant> {
    let mut all = Vec::new();
    for &layout in layouts {
        for &activation in activations {
            for &output in outputs {
                all.push(Variant {
                    layout,
                    activation,
                    output,
                });
            }
        }
    }
    all
}

/// The contest's test and benchmark shapes, in both layouts.
pub(crate) fn contest() -> Result<Vec<Group>> {
    let shapes = CONTEST_TESTS.iter().chain(&CONTEST_BENCHMARKS);
    shapes
        .map(|&(m, k, l)| {
            Ok(Group {
                data: Data::Contest,
                shape: shapes::of(m, 1, k, l)?,
                variants: variants(&ScaleLayout::ALL, &[CONTEST.0], &[CONTEST.1]),
            })
        })
        .collect()
}

/// M, N, K, L: one block, odd rows and blocks, several batches, long rows, many vectors, nothing.
const SHAPES: [(usize, usize, usize, usize); 9] = [
    (1, 1, 16, 1),
    (77, 2, 48, 1),
    (130, 3, 80, 3),
    (257, 1, 4112, 1),
    (128, 8, 512, 2),
    (33, 16, 1024, 1),
    (16, 1, 16384, 1),
    (0, 1, 64, 1),
    (64, 4, 64, 0),
];

/// This project's own data: full range, exact, and at the edges.
pub(crate) fn adversarial() -> Result<Vec<Group>> {
    let all = variants(&ScaleLayout::ALL, &Activation::ALL, &FloatType::ALL);
    let mut groups = Vec::new();
    for (m, n, k, l) in SHAPES {
        let shape = shapes::of(m, n, k, l)?;
        for data in [Data::FullRange, Data::RowAlpha, Data::Integers] {
            groups.push(Group {
                data,
                shape,
                variants: all.clone(),
            });
        }
    }
    for &case in EdgeCase::all() {
        for (m, n, k, l) in [(5, 1, 16, 1), (130, 3, 80, 2), (129, 1, 4112, 1)] {
            groups.push(Group {
                data: Data::Edge(case),
                shape: shapes::of(m, n, k, l)?,
                variants: variants(
                    &ScaleLayout::ALL,
                    &[Activation::Nvfp4, Activation::F16],
                    &[FloatType::F16, FloatType::F32],
                ),
            });
        }
    }
    Ok(groups)
}

/// A problem as an engine takes it. Vectors of other types hold the same numbers, exactly.
pub(crate) fn operands(
    problem: &Problem,
    layout: ScaleLayout,
    activation: Activation,
    output: FloatType,
) -> Result<Operands<'_>> {
    let weights = problem.weights(layout)?;
    let x = match activation {
        Activation::Nvfp4 => {
            let vectors = problem.vectors(layout)?;
            Inputs::Nvfp4 {
                codes: vectors.codes.into_owned(),
                scales: vectors.scales.into_owned(),
                layout,
                global: InputScale::Shared(nvfp4_gemv::GlobalScale::ONE),
            }
        }
        Activation::F16 => {
            let x = problem.decoded_vectors()?;
            Inputs::F16(x.into_iter().map(f16::from_f32).collect())
        }
        Activation::Bf16 => {
            let x = problem.decoded_vectors()?;
            Inputs::Bf16(x.into_iter().map(bf16::from_f32).collect())
        }
        Activation::F32 => Inputs::F32(problem.decoded_vectors()?),
    };
    Ok(Operands {
        shape: problem.shape,
        global: weights.global(),
        row_alpha: weights.row_alpha().map(|alpha| alpha.to_vec().into()),
        codes: weights.codes.into(),
        scales: weights.scales,
        layout,
        x,
        output,
    })
}
