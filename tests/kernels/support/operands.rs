//! Test problems: operands byte by byte, as a GPU's memory holds them, and the right results.

use std::sync::Arc;

use half::{bf16, f16};
use nvfp4_gemv::quantize::{QuantizedRows, quantize_vectors_or_nan};
use nvfp4_gemv::reference::{self, Reference, error_bound};
use nvfp4_gemv::{
    Activation, DenseVectors, FloatType, GlobalScale, Nvfp4Vectors, RawOnRead, ScaleLayout, Shape,
    Strides, VectorScale, Vectors,
};
use nvfp4_gemv_cli::problem::Problem;
use nvfp4_gemv_simulate::operands;

use super::sized;

/// Kind of numbers in a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Integers, and powers of two as factors: every product and every sum is exact, in any order.
    Integers,
    /// All codes and scales; dense vectors have normal numbers of magnitudes from 2^-14 to 2^7, and zeros.
    FullRange,
    /// All codes and scales; dense vectors with stored exponents from the first of these numbers to before the second.
    /// All elements are zero but one of so many.
    Exponents(u16, u16, u32),
    /// All codes and scales; the data with which the recording of an H200 was made: tests/kernels/recorded.rs.
    Recorded,
}

impl Data {
    /// Integers show that every product is there. Numbers of the full range show how sums round.
    pub(crate) const BOTH: [Self; 2] = [Self::Integers, Self::FullRange];
}

/// Numbers that are added to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    None,
    /// One bias for all batches.
    Shared,
    OfBatches,
}

/// Numbers that are added to results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residual {
    None,
    Apart,
    /// The residual lies at the results' place.
    InPlace,
}

/// Recipe of a test problem. It makes the same bytes on every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) data: Data,
    pub(crate) seed: u64,
    /// Element type of the vectors.
    pub(crate) activation: Activation,
    /// Layout of the weights' scales.
    pub(crate) weight_layout: ScaleLayout,
    /// Layout of the vectors' scales.
    pub(crate) vector_layout: ScaleLayout,
    /// Element type of the output.
    pub(crate) output: FloatType,
    /// Whether each row has a factor.
    pub(crate) row_alpha: bool,
    /// Whether each vector has a factor; NVFP4 vectors only.
    pub(crate) vector_alpha: bool,
    /// Digits of a vector; NVFP4 vectors only.
    pub(crate) digits: usize,
    /// Whether vectors are padded: NVFP4 vectors to a multiple of 128 rows with garbage, other vectors with 16 bytes of
    /// NaN between them.
    pub(crate) padded: bool,
    pub(crate) bias: Bias,
    pub(crate) residual: Residual,
    /// Whether there are bytes between vectors' results, and between batches.
    pub(crate) strided: bool,
    /// Whether all batches have the first batch's vectors.
    pub(crate) shared: bool,
    /// Whether each batch selects one of fewer matrices than there are batches. Each matrix has its own factors.
    pub(crate) select: bool,
    /// Whether the launch before a chained one may write which it selects.
    pub(crate) late: bool,
    /// The id of its second batch, where that is none of a matrix.
    pub(crate) unknown: Option<i32>,
    /// How far on the matrices are that it selects: each batch has all of them in turn.
    pub(crate) turned: usize,
    /// Batches in front that all select the first matrix.
    pub(crate) hot: usize,
    /// The type of the elements that the kernel quantises when it reads them; `activation` is NVFP4 then.
    pub(crate) on_read: Option<FloatType>,
}

impl Case {
    /// Packed operands, all scales in one layout, f32 results, no factors.
    pub(crate) fn new(shape: Shape, data: Data, layout: ScaleLayout, seed: u64) -> Self {
        Self {
            shape,
            data,
            seed,
            activation: Activation::Nvfp4,
            weight_layout: layout,
            vector_layout: layout,
            output: FloatType::F32,
            row_alpha: false,
            vector_alpha: false,
            digits: 1,
            padded: false,
            bias: Bias::None,
            residual: Residual::None,
            strided: false,
            shared: false,
            select: false,
            late: false,
            unknown: None,
            turned: 0,
            hot: 0,
            on_read: None,
        }
    }

    /// The case with the attributes that seldom decide which kernel runs, dealt out by the number `turn`.
    pub(crate) fn dealt(self, turn: usize) -> Self {
        Self {
            seed: turn as u64,
            vector_layout: ScaleLayout::ALL[turn / 2 % 2],
            output: FloatType::ALL[turn % 3],
            row_alpha: turn % 7 < 2,
            vector_alpha: turn % 5 == 1,
            ..self.with_additions(turn)
        }
    }

    /// The case for planted faults in the launch of a number, which deals out layouts, outputs and factors.
    pub(crate) fn for_faults(self, launch: usize) -> Self {
        Self {
            vector_layout: ScaleLayout::ALL[launch % 2],
            output: FloatType::ALL[launch % 3],
            row_alpha: true,
            vector_alpha: launch == 1 && self.nvfp4(),
            ..self
        }
    }

    /// The case with bias, residual, strides and shared vectors, chosen at random with `turn` as the seed. Half of all
    /// seeds add none of them. At random, everything else that `turn` counts out meets each of them.
    pub(crate) fn with_additions(self, turn: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(turn as u64);
        if rng.bool() {
            return self;
        }
        Self {
            bias: [Bias::None, Bias::Shared, Bias::OfBatches][rng.usize(..3)],
            residual: [Residual::None, Residual::Apart, Residual::InPlace][rng.usize(..3)],
            strided: rng.bool(),
            shared: rng.bool() && self.shape.l() > 1,
            ..self
        }
    }

    /// The case with a bias of each batch, if there are several batches.
    pub(crate) fn with_bias_of_batches(self) -> Self {
        let bias = match self.shape.l() {
            1 => self.bias,
            _ => Bias::OfBatches,
        };
        Self { bias, ..self }
    }

    /// The call's operands as dispatch sees them, with every alignment and workspace that helps.
    pub(crate) fn asked(&self) -> nvfp4_gemv::Operands {
        nvfp4_gemv::Operands {
            vector_layout: match self.on_read {
                Some(_) => ScaleLayout::Linear,
                None => self.vector_layout,
            },
            on_read: self.on_read.is_some(),
            digits: self.digits,
            select: self.select,
            matrices: match self.select {
                true => self.matrices(),
                false => 0,
            },
            ..nvfp4_gemv::Operands::new(self.activation, self.weight_layout)
                .with_workspace(u64::MAX)
        }
    }

    /// Number of matrices that the weights have.
    pub(crate) fn matrices(&self) -> usize {
        match self.select {
            true => self.shape.l().div_ceil(2),
            false => self.shape.l(),
        }
    }

    /// Index of the matrix of each batch.
    pub(crate) fn ids(&self) -> Vec<i32> {
        (0..self.shape.l())
            .map(|batch| match batch < self.hot {
                true => 0,
                false => ((batch / 2 * 2 + 1 + self.turned) % self.matrices()) as i32,
            })
            .collect()
    }

    /// The case with ids of no matrix: the first one past the last, one that skips its batch, and others.
    pub(crate) fn with_unknown_ids(self) -> [Self; 4] {
        [self.matrices() as i32, -1, i32::MAX, -2].map(|id| Self {
            unknown: Some(id),
            ..self
        })
    }

    /// Factors of the rows of each matrix that may be selected.
    fn factors_of_matrices(&self) -> Vec<f32> {
        let m = self.shape.m();
        (0..self.shape.l() * m)
            .map(|i| [1.0, -2.0, 0.5][(i / m + i % m) % 3])
            .collect()
    }

    /// The shape with a vector for each digit.
    fn shape_of_digits(&self) -> Shape {
        let shape = &self.shape;
        sized(shape.m(), shape.n() * self.digits, shape.k(), shape.l())
    }

    fn nvfp4(&self) -> bool {
        self.activation == Activation::Nvfp4
    }

    /// The problem, without the case's attributes that [`Problem`] does not have.
    fn problem(&self) -> Problem {
        let Self { seed, .. } = *self;
        let shape = self.shape_of_digits();
        let mut problem = match self.data {
            Data::Integers => Problem::integers(shape, seed),
            _ => Problem::full_range(shape, seed),
        };
        if matches!(self.data, Data::Exponents(..)) {
            // Results of small vectors stay small, in f32 far from its limits.
            problem.alpha = None;
        }
        if self.row_alpha && self.data == Data::Integers {
            let shared = problem.alpha.take().map_or(1.0, |alpha| alpha[0]);
            let rows = (0..shape.m()).map(|row| [1.0, -2.0, 0.5][row % 3] * shared);
            problem.alpha = Some(rows.collect());
        } else if self.row_alpha {
            problem = problem.with_row_alpha(seed + 1);
        }
        problem
    }

    /// Dense vectors, element by element.
    fn dense(&self, problem: &Problem) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let mut recorded = SplitMix(self.seed);
        let elements = self.shape.vector_elements();
        let of = |x: f32| match self.activation {
            Activation::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
            Activation::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
            _ => x.to_le_bytes().to_vec(),
        };
        match self.data {
            Data::Integers => {
                let x = problem.decoded_vectors().expect("vectors");
                x.into_iter().flat_map(of).collect()
            }
            Data::FullRange => (0..elements).flat_map(|_| of(normal(&mut rng))).collect(),
            Data::Exponents(least, end, one_of) => self.exponents(least, end, one_of),
            Data::Recorded => (0..elements)
                .flat_map(|_| recorded.element(self.activation))
                .collect(),
        }
    }

    fn exponents(&self, least: u16, end: u16, one_of: u32) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        if self.activation == Activation::F32 {
            let of = |rng: &mut fastrand::Rng| {
                let exponent = u32::from(rng.u16(least..end));
                let bits = rng.u32(..2) << 31 | exponent << 23 | rng.u32(..1 << 23);
                let kept = if rng.u32(..one_of) == 0 { bits } else { 0 };
                kept.to_le_bytes()
            };
            let elements = 0..self.shape.vector_elements();
            return elements.flat_map(|_| of(&mut rng)).collect();
        }
        let mantissa = match self.activation {
            Activation::F16 => 10,
            _ => 7,
        };
        (0..self.shape.vector_elements())
            .flat_map(|_| {
                let sign_and_mantissa = rng.u16(..2) << 15 | rng.u16(..1 << mantissa);
                let bits = sign_and_mantissa | rng.u16(least..end) << mantissa;
                let kept = if rng.u32(..one_of) == 0 { bits } else { 0 };
                kept.to_le_bytes()
            })
            .collect()
    }
}

fn normal(rng: &mut fastrand::Rng) -> f32 {
    let magnitude = (1.0 + rng.f32()) * (rng.i32(-14..7) as f32).exp2();
    let sign = if rng.bool() { 1.0 } else { -1.0 };
    if rng.u8(..32) == 0 {
        0.0
    } else {
        sign * magnitude
    }
}

/// A case's operands.
#[derive(Clone, Debug)]
pub(crate) struct Operands {
    pub(crate) case: Case,
    pub(crate) bytes: operands::Operands,
    /// The right result without bias and residual.
    pub(crate) truth: Arc<Reference>,
    /// Sum of bias and residual of each result, and sum of their magnitudes.
    added: Vec<(f64, f64)>,
}

impl Operands {
    pub(crate) fn new(case: &Case) -> Self {
        Self::of(case, &case.problem())
    }

    /// Operands of the case's own problem or of another, without the right result: for problems that are too large for
    /// it.
    pub(crate) fn without_truth(case: &Case, problem: Option<Problem>) -> Self {
        let nothing = Reference {
            y: Vec::new(),
            magnitude: Vec::new(),
        };
        let problem = problem.unwrap_or_else(|| case.problem());
        Self::with(case, &problem, Some(&Arc::new(nothing)))
    }

    /// The problem with these of its vectors, in this order: the same ones of each batch. For NVFP4 vectors whose
    /// scales are linear, without padding, and for results without strides.
    pub(crate) fn picked(&self, picks: &[usize]) -> Self {
        let (n, l) = (self.case.shape.n(), self.case.shape.l());
        let shape = sized(self.case.shape.m(), picks.len(), self.case.shape.k(), l);
        fn of<T: Copy>(all: &[T], (n, l): (usize, usize), picks: &[usize]) -> Vec<T> {
            let each = all.len() / (n * l);
            let batches = (0..l).flat_map(|batch| picks.iter().map(move |pick| batch * n + pick));
            let vectors = batches.flat_map(|vector| &all[vector * each..][..each]);
            vectors.copied().collect()
        }
        let mut picked = self.clone();
        picked.case.shape = shape;
        let (to, from) = (&mut picked.bytes, &self.bytes);
        to.shape = shape;
        to.vectors = of(&from.vectors, (n, l), picks);
        to.vector_scales = of(&from.vector_scales, (n, l), picks);
        to.vector_alpha = of(&from.vector_alpha, (n, l), picks);
        for strides in [&mut to.vector_strides, &mut to.vector_scale_strides] {
            *strides = Strides::packed(picks.len(), strides.row);
        }
        picked.added = of(&self.added, (n, l), picks);
        picked.truth = Arc::new(Reference {
            y: of(&self.truth.y, (n, l), picks),
            magnitude: of(&self.truth.magnitude, (n, l), picks),
        });
        picked
    }

    /// Operands with the same numbers in other layouts, with or without padding, for another type of output.
    #[cfg(feature = "device")]
    pub(crate) fn again(&self, case: &Case) -> Self {
        let numbers = |case: &Case| {
            let factors = (case.row_alpha, case.vector_alpha);
            let operands = (case.activation, factors, case.shared, case.select);
            (case.shape, case.data, case.seed, operands)
        };
        assert_eq!(numbers(case), numbers(&self.case));
        Self::with(case, &case.problem(), Some(&self.truth))
    }

    /// Operands of a given problem. The case has the attributes that [`Problem`] does not have.
    pub(crate) fn of(case: &Case, problem: &Problem) -> Self {
        Self::with(case, problem, None)
    }

    fn with(case: &Case, problem: &Problem, known: Option<&Arc<Reference>>) -> Self {
        let shape = &case.shape;
        let blocks = shape.blocks();
        let w = problem.weights(case.weight_layout).expect("weights");
        let truth_of = |vectors: &Vectors<'_>| {
            if let Some(truth) = known {
                return truth.clone();
            }
            let w = problem.weights(ScaleLayout::Linear).expect("weights");
            let w = w.view().expect("weights");
            let (ids, factors) = (case.ids(), case.factors_of_matrices());
            let w = match case.select {
                true if case.row_alpha => w.with_row_alpha(&factors).expect("factors"),
                _ => w,
            };
            let w = if case.select {
                w.select(&ids).expect("ids")
            } else {
                w
            };
            Arc::new(reference::gemv(shape, &w, vectors).expect("the truth"))
        };
        let mut operands = Self {
            case: *case,
            bytes: operands::Operands {
                shape: *shape,
                codes: w.codes.to_vec(),
                scales: w.scales.to_vec(),
                layout: case.weight_layout,
                global: w.global(),
                row_alpha: w.row_alpha().unwrap_or_default().to_vec(),
                select: if case.select { case.ids() } else { Vec::new() },
                late: case.late,
                activation: case.activation,
                vectors: Vec::new(),
                vector_strides: Strides { row: 0, batch: 0 },
                vector_scales: Vec::new(),
                vector_layout: case.vector_layout,
                vector_scale_strides: Strides { row: 0, batch: 0 },
                vector_global: GlobalScale::ONE,
                vector_alpha: Vec::new(),
                on_read: None,
                digits: case.digits,
                output: case.output,
                output_strides: None,
                bias: Vec::new(),
                residual: Vec::new(),
                in_place: case.residual == Residual::InPlace,
            },
            added: Vec::new(),
            truth: Arc::new(Reference {
                y: Vec::new(),
                magnitude: Vec::new(),
            }),
        };
        if let Some(element) = case.on_read {
            let quantized = operands.quantize_on_read(problem, element);
            operands.truth = truth_of(&quantized.vectors());
        } else if !case.nvfp4() {
            operands.bytes.vectors = case.dense(problem);
            let row = operands.bytes.vectors.len() / (shape.n() * shape.l());
            operands.bytes.vector_strides = Strides::packed(shape.n(), row);
            if case.shared {
                operands.bytes.vectors.truncate(shape.n() * row);
                operands.bytes.vector_strides.batch = 0;
            }
            let strides = Strides {
                row: shape.k(),
                batch: if case.shared {
                    0
                } else {
                    shape.n() * shape.k()
                },
            };
            let pairs = || operands.bytes.vectors.chunks_exact(2).map(|b| [b[0], b[1]]);
            operands.truth = match case.activation {
                Activation::F16 => {
                    let x: Vec<f16> = pairs().map(f16::from_le_bytes).collect();
                    truth_of(&Vectors::F16(
                        DenseVectors::new(&x[..]).with_strides(strides),
                    ))
                }
                Activation::Bf16 => {
                    let x: Vec<bf16> = pairs().map(bf16::from_le_bytes).collect();
                    truth_of(&Vectors::Bf16(
                        DenseVectors::new(&x[..]).with_strides(strides),
                    ))
                }
                _ => {
                    let words = operands.bytes.vectors.chunks_exact(4);
                    let x: Vec<f32> = words
                        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                        .collect();
                    truth_of(&Vectors::F32(
                        DenseVectors::new(&x[..]).with_strides(strides),
                    ))
                }
            };
        } else {
            let x = if case.padded {
                problem.padded_vectors(case.vector_layout, case.seed + 2)
            } else {
                problem.vectors(case.vector_layout)
            }
            .expect("vectors");
            let shape = &case.shape_of_digits();
            operands.bytes.vector_strides = x
                .code_strides
                .unwrap_or(Strides::packed(shape.n(), shape.row_code_bytes()));
            operands.bytes.vector_scale_strides = x.scale_strides.unwrap_or(Strides {
                row: blocks,
                batch: case.vector_layout.bytes(shape.n(), blocks),
            });
            operands.bytes.vectors = x.codes.into_owned();
            operands.bytes.vector_scales = x.scales.into_owned();
            if case.shared {
                let bytes = &mut operands.bytes;
                bytes.vectors.truncate(bytes.vector_strides.batch);
                bytes
                    .vector_scales
                    .truncate(bytes.vector_scale_strides.batch);
                bytes.vector_strides.batch = 0;
                bytes.vector_scale_strides.batch = 0;
            }
            if case.vector_alpha {
                operands.bytes.vector_alpha = match case.data {
                    Data::Recorded => SplitMix(case.seed).alphas(&case.shape),
                    // Powers of two: no rounding.
                    _ => (0..case.shape.l() * case.shape.n())
                        .map(|vector| [1.0, 0.5, 0.25, 2.0, 4.0][vector % 5])
                        .collect(),
                };
            }
            let x = problem.vectors(ScaleLayout::Linear).expect("vectors");
            let (row, batches) = (
                shape.row_code_bytes(),
                if case.shared { 1 } else { shape.l() },
            );
            let strides = |row: usize| Strides {
                row,
                batch: if case.shared { 0 } else { shape.n() * row },
            };
            let (codes, scales) = (batches * shape.n() * row, batches * shape.n() * blocks);
            let x = Nvfp4Vectors::new(
                &x.codes[..codes],
                &x.scales[..scales],
                ScaleLayout::Linear,
                VectorScale::Shared(GlobalScale::ONE),
            );
            let x = x
                .with_code_strides(strides(row))
                .with_scale_strides(strides(blocks))
                .with_digits(case.digits);
            operands.truth = truth_of(&Vectors::Nvfp4(x));
        }
        if case.padded && !case.nvfp4() {
            operands.pad_dense_vectors();
        }
        operands.keep_matrices();
        if case.data != Data::Recorded {
            operands.nan_where_no_scale_is();
        }
        operands.add();
        match case.unknown {
            Some(id) => operands.with_unknown(1, id),
            None => operands,
        }
    }

    /// Makes elements that the kernel quantises, each vector with its own global scale, and what becomes of them.
    fn quantize_on_read(&mut self, problem: &Problem, element: FloatType) -> QuantizedRows {
        let activation = match element {
            FloatType::F16 => Activation::F16,
            FloatType::Bf16 => Activation::Bf16,
            FloatType::F32 => Activation::F32,
        };
        let dense = Case {
            activation,
            ..self.case
        };
        let (shape, bytes) = (&self.case.shape, &mut self.bytes);
        bytes.vectors = dense.dense(problem);
        bytes.vector_strides = Strides::packed(shape.n(), shape.k() * element.bytes());
        bytes.on_read = Some(RawOnRead {
            element,
            values: 0,
            strides: bytes.vector_strides,
            copies: 1,
            gate: None,
            global: None,
        });
        let elements: Vec<f32> = numbers(&bytes.vectors, element).map(|x| x as f32).collect();
        let rows = shape.n() * shape.l();
        quantize_vectors_or_nan(&elements, rows, shape.k(), None).expect("elements")
    }

    /// Shortens the weights to the matrices that batches select from, which are fewer than the batches.
    fn keep_matrices(&mut self) {
        if !self.case.select {
            return;
        }
        let (bytes, matrices) = (&mut self.bytes, self.case.matrices());
        let l = bytes.shape.l();
        for operand in [&mut bytes.codes, &mut bytes.scales] {
            operand.truncate(operand.len() / l * matrices);
        }
        if self.case.row_alpha {
            bytes.row_alpha = self.case.factors_of_matrices();
            bytes.row_alpha.truncate(bytes.shape.m() * matrices);
        }
    }

    /// Makes the numbers that the case adds to results, and the strides of the results.
    fn add(&mut self) {
        let Case { shape, output, .. } = self.case;
        let (m, n) = (shape.m(), shape.n());
        let mut rng = fastrand::Rng::with_seed(self.case.seed + 9);
        let exact = self.case.data == Data::Integers;
        let mut number = || match exact {
            true => rng.i32(-7..8) as f32,
            false => normal(&mut rng),
        };
        let bias = match self.case.bias {
            Bias::None => 0,
            Bias::Shared => m,
            Bias::OfBatches => self.case.matrices() * m,
        };
        self.bytes.bias = (0..bias).map(|_| number()).collect();
        if self.case.residual != Residual::None {
            let of = |x: f32| match output {
                FloatType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
                FloatType::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
                FloatType::F32 => x.to_le_bytes().to_vec(),
            };
            self.bytes.residual = (0..shape.outputs()).flat_map(|_| of(number())).collect();
        }
        if self.case.strided {
            let row = (m + 3) * output.bytes();
            let batch = n * row + 5 * output.bytes();
            self.bytes.output_strides = Some(Strides { row, batch });
        }
        let residual: Vec<f64> = numbers(&self.bytes.residual, output).collect();
        let added = |i: usize| {
            let (batch, row) = (i / (n * m), i % m);
            let batch = self
                .bytes
                .select
                .get(batch)
                .map_or(batch, |&id| id as usize);
            let bias = self
                .bytes
                .bias
                .get(if bias > m { batch * m + row } else { row });
            let bias = bias.map_or(0.0, |&b| f64::from(b));
            let r = residual.get(i).copied().unwrap_or(0.0);
            (bias + r, bias.abs() + r.abs())
        };
        self.added = (0..shape.outputs()).map(added).collect();
    }

    /// The operands with a batch that selects a matrix that does not exist. The results of the batch are NaN, or with
    /// the id -1 the residual.
    fn with_unknown(mut self, batch: usize, id: i32) -> Self {
        let of_batch = self.case.shape.n() * self.case.shape.m();
        let of_batch = batch * of_batch..(batch + 1) * of_batch;
        self.bytes.select[batch] = id;
        let truth = Arc::make_mut(&mut self.truth);
        if id != -1 {
            truth.y[of_batch].fill(f64::NAN);
            return self;
        }
        truth.y[of_batch.clone()].fill(0.0);
        truth.magnitude[of_batch.clone()].fill(0.0);
        let residual: Vec<f64> = numbers(&self.bytes.residual, self.case.output).collect();
        for i in of_batch {
            let r = residual.get(i).copied().unwrap_or(0.0);
            self.added[i] = (r, r.abs());
        }
        self
    }

    /// The operands with some of the vectors of each batch, packed.
    pub(crate) fn of_vectors(&self, some: std::ops::Range<usize>) -> Self {
        let shape = &self.case.shape;
        let (m, n, k, l) = (shape.m(), shape.n(), shape.k(), shape.l());
        let case = Case {
            shape: sized(m, some.len(), k, l),
            padded: false,
            strided: false,
            shared: false,
            ..self.case
        };
        let (from, blocks) = (&self.bytes, shape.blocks());
        let row = match self.case.activation {
            Activation::Nvfp4 => shape.row_code_bytes(),
            Activation::F16 | Activation::Bf16 => 2 * k,
            Activation::F32 => 4 * k,
        };
        let vectors = || (0..l).flat_map(|batch| some.clone().map(move |vector| (batch, vector)));
        // `of` elements of `all` for each vector.
        fn some_of<T: Copy>(
            all: &[T],
            of: usize,
            n: usize,
            vectors: impl Iterator<Item = (usize, usize)>,
        ) -> Vec<T> {
            let of_vector = |(batch, vector)| &all[(batch * n + vector) * of..][..of];
            vectors.flat_map(of_vector).copied().collect()
        }
        let residual = match &from.residual[..] {
            [] => Vec::new(),
            all => some_of(all, m * from.output.bytes(), n, vectors()),
        };
        let codes = |(batch, vector)| {
            let Strides {
                row: step,
                batch: batch_step,
            } = from.vector_strides;
            &from.vectors[batch * batch_step + vector * step..][..row]
        };
        let (layout, scales) = (from.vector_layout, &from.vector_scales);
        let batch_bytes = layout.bytes(some.len(), blocks);
        // NaN where there is no scale.
        let mut some_scales = vec![
            0x7f;
            if scales.is_empty() {
                0
            } else {
                l * batch_bytes
            }
        ];
        for (batch, vector) in vectors().filter(|_| !scales.is_empty()) {
            for block in 0..blocks {
                let to = batch * batch_bytes + layout.offset(vector - some.start, block, blocks);
                let in_batch = match layout {
                    ScaleLayout::Linear => vector * from.vector_scale_strides.row + block,
                    ScaleLayout::Tiled128x4 => layout.offset(vector, block, blocks),
                };
                some_scales[to] = scales[batch * from.vector_scale_strides.batch + in_batch];
            }
        }
        let factors = vectors().map(|(batch, vector)| from.vector_alpha.get(batch * n + vector));
        Self {
            case,
            bytes: operands::Operands {
                shape: case.shape,
                vectors: vectors().flat_map(codes).copied().collect(),
                vector_strides: Strides::packed(some.len(), row),
                vector_scales: some_scales,
                vector_scale_strides: Strides {
                    row: blocks,
                    batch: batch_bytes,
                },
                vector_alpha: factors.flatten().copied().collect(),
                output_strides: None,
                residual,
                ..from.clone()
            },
            truth: Arc::new(Reference {
                y: some_of(&self.truth.y, m, n, vectors()),
                magnitude: some_of(&self.truth.magnitude, m, n, vectors()),
            }),
            added: some_of(&self.added, m, n, vectors()),
        }
    }

    /// Puts NaN between vectors, and between batches.
    fn pad_dense_vectors(&mut self) {
        const PAD: usize = 16;
        let n = self.case.shape.n();
        let l = if self.case.shared {
            1
        } else {
            self.case.shape.l()
        };
        let packed = self.bytes.vector_strides.row;
        let row = packed + PAD;
        let batch = n * row + PAD;
        let mut vectors = vec![0xff; l * batch];
        for (i, vector) in self.bytes.vectors.chunks_exact(packed).enumerate() {
            vectors[i / n * batch + i % n * row..][..packed].copy_from_slice(vector);
        }
        self.bytes.vectors = vectors;
        let batch = if self.case.shared { 0 } else { batch };
        self.bytes.vector_strides = Strides { row, batch };
    }

    /// The operands with factors for the rows of each batch. The factors are small integers: exact if all else is.
    #[cfg(feature = "device")]
    pub(crate) fn with_factors_of_batches(mut self) -> Self {
        let (m, n, l) = (
            self.case.shape.m(),
            self.case.shape.n(),
            self.case.shape.l(),
        );
        let factors: Vec<f32> = (0..l * m).map(|i| (i % 13) as f32 - 6.0).collect();
        let truth = Arc::make_mut(&mut self.truth);
        for i in 0..l * n * m {
            let factor = f64::from(factors[i / (n * m) * m + i % m]);
            truth.y[i] *= factor;
            truth.magnitude[i] *= factor.abs();
        }
        self.bytes.row_alpha = factors;
        self
    }

    /// Puts NaN into the padding of scales in the 128x4 layout.
    fn nan_where_no_scale_is(&mut self) {
        let Case {
            shape,
            weight_layout,
            vector_layout,
            padded,
            digits,
            ..
        } = self.case;
        let blocks = shape.blocks();
        let n = match padded {
            true => (shape.n() * digits).next_multiple_of(128),
            false => shape.n() * digits,
        };
        for (layout, scales, rows) in [
            (weight_layout, &mut self.bytes.scales, shape.m()),
            (vector_layout, &mut self.bytes.vector_scales, n),
        ] {
            if layout == ScaleLayout::Linear || scales.is_empty() {
                continue;
            }
            let atoms = blocks.div_ceil(4);
            let batch = layout.bytes(rows, blocks);
            for (at, scale) in scales.iter_mut().enumerate() {
                let (atom, inside) = (at % batch / 512, at % 512);
                let row = atom / atoms * 128 + inside % 16 / 4 * 32 + inside / 16;
                let block = atom % atoms * 4 + inside % 4;
                if row >= rows || block >= blocks {
                    *scale = 0x7f;
                }
            }
        }
    }

    /// The first element of a result that differs from the right result. A term of a sum passes through so many f32
    /// roundings. Integers are exact.
    pub(crate) fn difference(&self, output: &[u8], roundings: u32) -> Option<String> {
        let element = self.case.output;
        let m = self.case.shape.m();
        // Each digit but the last is added to those before it.
        let roundings = roundings + self.case.digits as u32 - 1;
        let Some(results) = self.bytes.results(output) else {
            return Some("bytes between results were written".into());
        };
        numbers(&results, element).enumerate().find_map(|(i, got)| {
            let alpha = self
                .bytes
                .vector_alpha
                .get(i / m)
                .map_or(1.0, |&a| a.into());
            let (added, of_added) = self.added[i];
            let y = self.truth.y[i] * alpha + added;
            let magnitude = self.truth.magnitude[i] * alpha + of_added;
            let (y, bound) = match self.case.data {
                // Exact, except for the one rounding to the type.
                Data::Integers => (rounded(y, element), 0.0),
                _ => (y, error_bound(y, magnitude, roundings, element)),
            };
            // Infinities have no difference. A NaN is wrong, too, unless the right result is NaN.
            let right = got == y || (got - y).abs() <= bound || got.is_nan() && y.is_nan();
            (!right).then(|| format!("element {i}: {got} instead of {y}, bound {bound:e}"))
        })
    }

    /// FNV-1a hash of weights, vectors and their factors, to notice a generator that changed.
    pub(crate) fn hash(&self) -> String {
        let parts = [
            &self.bytes.codes[..],
            &self.bytes.scales,
            &self.bytes.global.stored().to_le_bytes(),
            &operands::bytes(&self.bytes.row_alpha),
            &self.bytes.vectors,
            &self.bytes.vector_scales,
            &operands::bytes(&self.bytes.vector_alpha),
        ];
        fnv1a(parts.concat())
    }
}

/// FNV-1a, 64 bits, as hexadecimal digits.
pub(crate) fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// The nearest number of a type.
fn rounded(y: f64, element: FloatType) -> f64 {
    match element {
        FloatType::F16 => f16::from_f64(y).to_f64(),
        FloatType::Bf16 => bf16::from_f64(y).to_f64(),
        FloatType::F32 => f64::from(y as f32),
    }
}

/// A result as numbers.
pub(crate) fn numbers(output: &[u8], element: FloatType) -> impl Iterator<Item = f64> {
    output
        .chunks_exact(element.bytes())
        .map(move |b| match element {
            FloatType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
            FloatType::Bf16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
            FloatType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
        })
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        ptx_sim::sched::split_mix(&mut self.0)
    }

    /// A number of either sign, of a magnitude from 2^-15 to 2^6; few are subnormal or zero.
    fn element(&mut self, activation: Activation) -> Vec<u8> {
        let bits = self.next();
        let (sign, mantissa) = ((bits >> 63) as u32, bits as u32);
        let tiny = bits >> 58 & 31 == 0;
        let exponent = (bits >> 40) as u32 % 22;
        let of = |bias: u32| if tiny { 0 } else { bias - 15 + exponent };
        let half = |x: u32| (x as u16).to_le_bytes().to_vec();
        match activation {
            Activation::F16 => half(sign << 15 | of(16) << 10 | mantissa >> 22),
            Activation::Bf16 => half(sign << 15 | of(127) << 7 | mantissa >> 25),
            _ => (sign << 31 | of(127) << 23 | mantissa >> 9)
                .to_le_bytes()
                .to_vec(),
        }
    }

    fn alphas(&mut self, shape: &Shape) -> Vec<f32> {
        (0..shape.l() * shape.n())
            .map(|_| 0.5 + (self.next() >> 40) as f32 / (1 << 24) as f32)
            .collect()
    }
}
