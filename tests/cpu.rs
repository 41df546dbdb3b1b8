//! The CPU path: every implementation that this machine has, against the f64 reference.

use half::{bf16, f16};
use nvfp4_gemv::cpu::{
    Accuracy, Implementation, Workers, gemv_batch_invariant, gemv_in, gemv_with,
};
use nvfp4_gemv::reference::{self, Reference, error_bound};
use nvfp4_gemv::{
    Activation, DenseVectors, Dims, Element, Error, FloatType, GlobalScale, Linear, Nvfp4Vectors,
    Options, Output, ScaleLayout, Shape, Strides, VectorScale, Vectors, Weights, convert_scales,
    gemv,
};

fn implementations() -> impl Iterator<Item = Implementation> {
    Implementation::ALL.into_iter().filter(|i| i.available())
}

fn sized(m: usize, n: usize, k: usize, l: usize) -> Shape {
    Shape::new(Dims { m, n, k, l }).unwrap()
}

/// Rows of a batch of padded vectors: whole row blocks of 128.
fn padded_rows(n: usize) -> usize {
    n.next_multiple_of(128)
}

/// Owns the operands of one problem.
struct Case {
    shape: Shape,
    activation: Activation,
    layout: ScaleLayout,
    x_layout: ScaleLayout,
    /// Vectors in an array of 128 rows a batch, or a multiple of it, and one block more a row than
    /// K, with garbage around them; otherwise dense.
    padded: bool,
    codes: Vec<u8>,
    scales: Vec<u8>,
    global: GlobalScale,
    row_alpha: Option<Vec<f32>>,
    x_codes: Vec<u8>,
    x_scales: Vec<u8>,
    x_global: GlobalScale,
    per_vector: Option<Vec<f32>>,
    x16: Vec<f16>,
    xb16: Vec<bf16>,
    x32: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    /// Small integers and powers of two: nothing rounds before the output does.
    Exact,
    /// All codes, all finite scales.
    FullRange,
}

impl Case {
    fn new(shape: Shape, activation: Activation, data: Data, seed: u64) -> Self {
        let mut r = fastrand::Rng::with_seed(seed);
        let (m, n, k, l, blocks) = (shape.m(), shape.n(), shape.k(), shape.l(), shape.blocks());
        let pick = |r: &mut fastrand::Rng| ScaleLayout::ALL[r.usize(0..2)];
        let (layout, x_layout) = (pick(&mut r), pick(&mut r));
        let padded = r.bool();
        let x_rows = if padded { padded_rows(n) } else { n };
        let scale = |r: &mut fastrand::Rng| match data {
            Data::Exact => [0x38, 0x40][r.usize(0..2)],
            Data::FullRange => r.u8(0..=0x7e),
        };
        // Pitch of the padded array; the 128x4 layout has no room for other columns.
        let pitch = if padded { k + 16 } else { k };
        // NaN wherever nothing may be read.
        let scales =
            |r: &mut fastrand::Rng, layout: ScaleLayout, rows: usize, used: usize, pitch| {
                let pitch = match layout {
                    ScaleLayout::Linear => pitch / 16,
                    ScaleLayout::Tiled128x4 => blocks,
                };
                let bytes = layout.bytes(rows, pitch);
                let mut scales = vec![0xff; bytes * l];
                for batch in scales.chunks_exact_mut(bytes.max(1)) {
                    for row in 0..used {
                        for block in 0..blocks {
                            batch[layout.offset(row, block, pitch)] = scale(r);
                        }
                    }
                }
                scales
            };
        let codes = (0..shape.weight_code_bytes()).map(|_| r.u8(..)).collect();
        let w_scales = scales(&mut r, layout, m, m, k);
        let x_codes = (0..l * x_rows * pitch / 2).map(|_| r.u8(..)).collect();
        let x_scales = scales(&mut r, x_layout, x_rows, n, pitch);
        let number = |r: &mut fastrand::Rng| match data {
            Data::Exact => r.i32(-8..=8) as f32,
            // Twelve binary orders of magnitude, more digits than f16 holds.
            Data::FullRange => (r.f32() - 0.5) * 2f32.powi(r.i32(-6..6)),
        };
        let x32: Vec<f32> = (0..l * x_rows * pitch)
            .map(|i| {
                if i / pitch % x_rows < n && i % pitch < k {
                    number(&mut r)
                } else {
                    f32::NAN
                }
            })
            .collect();
        let mut factor = |exact: f32| match data {
            Data::Exact => exact,
            Data::FullRange => 2f32.powi(r.i32(-8..2)) * (1.0 + r.f32()),
        };
        let global = match seed % 2 {
            0 => GlobalScale::Multiplier(factor(0.5)),
            _ => GlobalScale::Divisor(factor(2.0)),
        };
        let x_global = GlobalScale::Divisor(factor(0.5));
        let row_alpha = match seed % 3 {
            0 => None,
            1 => Some((0..m).map(|i| factor((i % 3) as f32 - 1.0)).collect()),
            _ => Some((0..m * l).map(|i| factor((i % 2) as f32 + 1.0)).collect()),
        };
        let per_vector =
            (seed % 5 < 2).then(|| (0..n * l).map(|i| factor([0.5, 1.0, 2.0][i % 3])).collect());
        Self {
            shape,
            activation,
            layout,
            x_layout,
            padded,
            codes,
            scales: w_scales,
            global,
            row_alpha,
            x_codes,
            x_scales,
            x_global,
            per_vector,
            x16: x32.iter().map(|&x| f16::from_f32(x)).collect(),
            xb16: x32.iter().map(|&x| bf16::from_f32(x)).collect(),
            x32,
        }
    }

    /// The case with the weights' scales in this layout, and with the same values.
    fn with_weight_scales_in(mut self, layout: ScaleLayout) -> Self {
        let (m, k, l) = (self.shape.m(), self.shape.k(), self.shape.l());
        self.scales = convert_scales(&self.scales, self.layout, layout, m, k, l).unwrap();
        self.layout = layout;
        self
    }

    fn weights(&self) -> Weights<'_> {
        let (codes, scales) = (&self.codes, &self.scales);
        let w = Weights::new(&self.shape, codes, scales, self.layout, self.global);
        match &self.row_alpha {
            Some(alpha) => w.unwrap().with_row_alpha(alpha).unwrap(),
            None => w.unwrap(),
        }
    }

    fn vectors(&self) -> Vectors<'_> {
        fn dense<'a, T: std::fmt::Debug>(case: &Case, x: &'a [T]) -> DenseVectors<'a, T> {
            let x = DenseVectors::new(x);
            match case.padded {
                true => x.with_strides(case.padded_strides(case.shape.k() + 16)),
                false => x,
            }
        }
        match self.activation {
            Activation::F16 => Vectors::F16(dense(self, &self.x16)),
            Activation::Bf16 => Vectors::Bf16(dense(self, &self.xb16)),
            Activation::F32 => Vectors::F32(dense(self, &self.x32)),
            Activation::Nvfp4 => Vectors::Nvfp4(self.nvfp4_vectors()),
        }
    }

    /// Strides of padded vectors whose rows are so long.
    fn padded_strides(&self, row: usize) -> Strides {
        Strides::packed(padded_rows(self.shape.n()), row)
    }

    fn nvfp4_vectors(&self) -> Nvfp4Vectors<'_> {
        let global = match &self.per_vector {
            Some(globals) => VectorScale::PerVector(&globals[..]),
            None => VectorScale::Shared(self.x_global),
        };
        let (codes, scales) = (&self.x_codes[..], &self.x_scales[..]);
        let x = Nvfp4Vectors::new(codes, scales, self.x_layout, global);
        if !self.padded {
            return x;
        }
        let (k, blocks) = (self.shape.k(), self.shape.blocks());
        let mut scale_strides = self.padded_strides(blocks + 1);
        if self.x_layout == ScaleLayout::Tiled128x4 {
            scale_strides.batch = self.x_layout.bytes(padded_rows(self.shape.n()), blocks);
        }
        x.with_code_strides(self.padded_strides(k / 2 + 8))
            .with_scale_strides(scale_strides)
    }

    fn describe(&self) -> String {
        format!(
            "{} {} weights {} vectors {} padded {}",
            self.shape, self.activation, self.layout, self.x_layout, self.padded
        )
    }

    /// The result as f64, which holds all output types; with its bits, for comparing NaNs.
    fn run(&self, implementation: Implementation, output: FloatType) -> Vec<f64> {
        self.run_in((implementation, Accuracy::Exact), output)
    }

    fn run_in(&self, how: (Implementation, Accuracy), output: FloatType) -> Vec<f64> {
        // Canaries: every element must be written.
        let (w, x) = (self.weights(), self.vectors());
        let gemv = |y: Output<'_>| gemv_in(how, &self.shape, &w, &x, y).unwrap();
        let count = self.shape.outputs();
        match output {
            FloatType::F16 => {
                let mut y = vec![f16::NAN; count];
                gemv(Output::of(&mut y));
                y.into_iter().map(f64::from).collect()
            }
            FloatType::Bf16 => {
                let mut y = vec![bf16::NAN; count];
                gemv(Output::of(&mut y));
                y.into_iter().map(f64::from).collect()
            }
            FloatType::F32 => {
                let mut y = vec![f32::NAN; count];
                gemv(Output::of(&mut y));
                y.into_iter().map(f64::from).collect()
            }
        }
    }

    fn reference(&self) -> Reference {
        reference::gemv(&self.shape, &self.weights(), &self.vectors()).unwrap()
    }
}

/// f32 results.
fn run(i: Implementation, shape: &Shape, w: &Weights<'_>, x: &Vectors<'_>) -> Vec<f32> {
    let mut y = vec![f32::NAN; shape.outputs()];
    gemv_with(i, shape, w, x, Output::of(&mut y)).unwrap();
    y
}

/// Odd shapes: each M, K, L and n with several of the others, small enough for the f64 reference
/// in a debug build.
fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    let mut i = 0;
    for m in [1, 3, 127, 128, 129, 300] {
        for k in [16, 32, 48, 80, 256, 272, 4112] {
            for l in [1, 3] {
                let n = match (k, m) {
                    (4112, 100..) if l == 3 => continue,
                    (4112, 100..) => [1, 2, 3][i % 3],
                    _ => [1, 2, 3, 4, 5, 7, 8, 15, 16][i % 9],
                };
                shapes.push(sized(m, n, k, l));
                i += 1;
            }
        }
    }
    shapes
}

#[test]
fn exact_data_gives_exact_answers() {
    let mut seed = 0;
    for shape in shapes() {
        for activation in Activation::ALL {
            seed += 1;
            let case = Case::new(shape, activation, Data::Exact, seed);
            let truth = case.reference().y;
            for implementation in implementations() {
                for output in FloatType::ALL {
                    let got = case.run(implementation, output);
                    for (i, (&got, &y)) in got.iter().zip(&truth).enumerate() {
                        let expected = match output {
                            FloatType::F16 => f64::from(f16::from_f64(y)),
                            FloatType::Bf16 => f64::from(bf16::from_f64(y)),
                            FloatType::F32 => f64::from(y as f32),
                        };
                        assert_eq!(
                            got,
                            expected,
                            "{implementation} {output:?} element {i} of {}",
                            case.describe()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn full_range_data_is_inside_the_bound() {
    let mut seed = 1000;
    let mut closest = 0f64;
    for shape in shapes() {
        for activation in Activation::ALL {
            seed += 1;
            let case = Case::new(shape, activation, Data::FullRange, seed);
            let truth = case.reference();
            for implementation in implementations() {
                let roundings = implementation.roundings(&shape, activation);
                for output in FloatType::ALL {
                    let got = case.run(implementation, output);
                    for (i, got) in got.into_iter().enumerate() {
                        let (y, magnitude) = (truth.y[i], truth.magnitude[i]);
                        let bound = error_bound(y, magnitude, roundings, output);
                        // If the output type may overflow, only the result's sign is known.
                        let error = match bound.is_infinite() {
                            true => 0.0,
                            false => (got - y).abs(),
                        };
                        assert!(
                            error <= bound && !got.is_nan(),
                            "{implementation} {output:?} element {i} of {}: {got} for {y}, off by \
                             {error:e}, allowed {bound:e}",
                            case.describe()
                        );
                        if output == FloatType::F32 && bound.is_finite() {
                            closest = closest.max(error / bound);
                        }
                    }
                }
            }
        }
    }
    // A bound that nothing comes near would not show a mistake.
    assert!(closest > 0.2, "the worst error is {closest} of its bound");
}

/// Each value may be off by a half of its block's scale: a bound that says less would not hold, and exact products would
/// be far within it.
#[test]
fn vectors_in_bytes_are_inside_their_bound() {
    let (mut seed, mut closest, mut off) = (2000, 0f64, 0f64);
    for shape in shapes() {
        for activation in [Activation::F32, Activation::F16, Activation::Bf16] {
            seed += 1;
            let case = Case::new(shape, activation, Data::FullRange, seed);
            let truth = case.reference();
            let bytes = reference::bytes_error(&shape, &case.weights(), &case.vectors()).unwrap();
            for implementation in implementations() {
                let roundings = implementation.roundings_in(&shape, activation, Accuracy::Bytes);
                let output = FloatType::ALL[seed as usize % FloatType::ALL.len()];
                let got = case.run_in((implementation, Accuracy::Bytes), output);
                for (i, got) in got.into_iter().enumerate() {
                    let (y, bytes) = (truth.y[i], bytes[i]);
                    let magnitude = truth.magnitude[i] + bytes;
                    let rounded = error_bound(y.abs() + bytes, magnitude, roundings, output);
                    if rounded.is_infinite() {
                        continue;
                    }
                    let error = (got - y).abs();
                    assert!(
                        error <= bytes + rounded,
                        "{implementation} element {i} of {}: {got} for {y}, off by {error:e}, \
                         allowed {bytes:e} and {rounded:e}",
                        case.describe()
                    );
                    closest = closest.max(error / (bytes + rounded));
                    off = off.max(error / rounded);
                }
            }
        }
    }
    assert!(closest > 0.5, "the worst error is {closest} of its bound");
    assert!(off > 100.0, "products that are exact: {off}");
}

/// Each matrix has factors of columns of its own, and operands are checked as they are for products.
#[test]
fn the_bound_of_bytes_knows_the_matrix() {
    let (one, two) = (sized(1, 1, 16, 1), sized(1, 1, 16, 2));
    let (codes, scales) = ([0x22; 16], [0x38; 2]);
    let linear = ScaleLayout::Linear;
    let w = Weights::new(&two, &codes, &scales, linear, GlobalScale::ONE).unwrap();
    let alpha = [[1.0; 16], [1000.0; 16]].concat();
    let w = w.with_column_alpha(&alpha).unwrap();
    let x = [0.5f32; 32];
    let errors = reference::bytes_error(&two, &w, &Vectors::of(&x)).unwrap();
    assert!(errors[0] > 0.0);
    assert_eq!(errors[1], 1000.0 * errors[0]);
    let error = reference::bytes_error(&one, &w, &Vectors::of(&x[..16])).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
}

/// One element that bytes cannot be made of, and blocks of zeros and of tiny numbers, which can.
#[test]
fn what_is_no_byte_is_multiplied_exactly() {
    for n in [1, 3, 16] {
        let shape = sized(40, n, 160, 1);
        let case = Case::new(shape, Activation::F32, Data::FullRange, 7);
        let w = case.weights();
        let in_bytes = |implementation, x: &[f32]| {
            let mut y = vec![0.0f32; shape.outputs()];
            let how = (implementation, Accuracy::Bytes);
            gemv_in(how, &shape, &w, &Vectors::of(x), Output::of(&mut y)).unwrap();
            y
        };
        let mut random = fastrand::Rng::with_seed(n as u64);
        let values: Vec<f32> = (0..n * 160).map(|_| random.f32() - 0.5).collect();
        for odd in [f32::INFINITY, f32::NAN, 2f32.powi(91)] {
            let mut x = values.clone();
            x[n * 160 - 3] = odd;
            for implementation in implementations() {
                let exact = run(implementation, &shape, &w, &Vectors::of(&x));
                let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&in_bytes(implementation, &x)), bits(&exact), "{odd}");
            }
        }
        for tiny in [0.0, 1e-40, 1e-30, 2f32.powi(90)] {
            let mut x = values.clone();
            x[..16].fill(tiny);
            let vectors = Vectors::of(&x);
            let truth = reference::gemv(&shape, &w, &vectors).unwrap();
            let bytes = reference::bytes_error(&shape, &w, &vectors).unwrap();
            for implementation in implementations() {
                let roundings =
                    implementation.roundings_in(&shape, Activation::F32, Accuracy::Bytes);
                for (i, got) in in_bytes(implementation, &x).into_iter().enumerate() {
                    let magnitude = truth.magnitude[i] + bytes[i];
                    let y = truth.y[i].abs() + bytes[i];
                    let rounded = error_bound(y, magnitude, roundings, FloatType::F32);
                    let error = (f64::from(got) - truth.y[i]).abs();
                    assert!(
                        error <= bytes[i] + rounded,
                        "{implementation}, {tiny}, {i}: {error}"
                    );
                }
            }
        }
    }
}

/// Numbers of vectors that a call takes: all small ones, and some that end in groups of 1, 2 and 3.
fn numbers_of_vectors() -> impl Iterator<Item = usize> {
    let many = [31, 33, 64, 100, 128, 130];
    (1..=20).chain(many)
}

#[test]
fn every_number_of_vectors() {
    // 130 rows are a row block and two rows; 17 blocks are a step and a block.
    for n in numbers_of_vectors() {
        let (m, l) = if n <= 20 { (130, 2) } else { (35, 1) };
        let shape = sized(m, n, 272, l);
        for activation in Activation::ALL {
            for layout in ScaleLayout::ALL {
                let case = Case::new(shape, activation, Data::Exact, n as u64);
                let case = case.with_weight_scales_in(layout);
                let truth = case.reference().y.into_iter();
                let truth: Vec<f64> = truth.map(|y| f64::from(y as f32)).collect();
                for implementation in implementations() {
                    let got = case.run(implementation, FloatType::F32);
                    assert_eq!(got, truth, "{implementation} {}", case.describe());
                }
            }
        }
    }
}

#[test]
fn many_vectors_on_full_range_data() {
    // K tiles that end with a step, inside one and after one block; vectors with garbage between
    // them where the seed says so.
    let mut seed = 2000;
    for (n, m, k) in [
        (3, 6, 16 * 257),
        (4, 33, 16 * 513),
        (5, 3, 16 * 129),
        (8, 6, 16 * 255),
        (17, 5, 16 * 131),
        (33, 3, 16 * 97),
        (64, 2, 16 * 65),
        (100, 1, 16 * 33),
        (128, 2, 16 * 49),
        (130, 1, 16 * 257),
    ] {
        let shape = sized(m, n, k, 1);
        for activation in Activation::ALL {
            for layout in ScaleLayout::ALL {
                seed += 1;
                let case = Case::new(shape, activation, Data::FullRange, seed);
                let case = case.with_weight_scales_in(layout);
                let (w, x) = (case.weights(), case.vectors());
                assert_inside_the_bound(&shape, &w, &x, activation);
            }
        }
    }
}

#[test]
fn neither_layout_nor_rows_change_a_bit() {
    for n in [1, 2, 3, 4, 5, 7, 12, 33] {
        let dims = |m: usize| Dims {
            m,
            n,
            k: 2064,
            l: 1,
        };
        let shape = Shape::new(dims(129)).unwrap();
        for activation in Activation::ALL {
            let mut case = Case::new(shape, activation, Data::FullRange, 5 + n as u64);
            case.row_alpha = None;
            case = case.with_weight_scales_in(ScaleLayout::Linear);
            // The first 40 rows alone, which the CPU path groups otherwise.
            let few = Shape::new(dims(40)).unwrap();
            let codes = &case.codes[..few.weight_code_bytes()];
            let scales = &case.scales[..few.weight_scale_bytes(case.layout)];
            let w = Weights::new(&few, codes, scales, case.layout, case.global);
            for implementation in implementations() {
                let linear = case.run(implementation, FloatType::F32);
                let y = run(implementation, &few, w.as_ref().unwrap(), &case.vectors());
                for (v, y) in y.chunks_exact(40).enumerate() {
                    let y = y.iter().map(|&y| f64::from(y));
                    assert!(
                        y.eq(linear[v * 129..][..40].iter().copied()),
                        "{implementation}"
                    );
                }
            }
            let linear: Vec<_> = implementations()
                .map(|i| case.run(i, FloatType::F32))
                .collect();
            let case = case.with_weight_scales_in(ScaleLayout::Tiled128x4);
            let tiled: Vec<_> = implementations()
                .map(|i| case.run(i, FloatType::F32))
                .collect();
            assert!(linear == tiled, "{}", case.describe());
        }
    }
}

#[test]
fn every_code_and_every_scale() {
    // Row i has scale i in all blocks and codes i, so that each meets each of the vector's.
    let shape = Shape::matrix(127, 256).unwrap();
    let mut codes = Vec::new();
    for row in 0..127u8 {
        codes.extend([row % 16 * 0x11; 128]);
    }
    let scales: Vec<u8> = (0..127).flat_map(|row| [row; 16]).collect();
    let x_codes: Vec<u8> = (0..16).flat_map(|block| [block * 0x11; 8]).collect();
    let x_scales: Vec<u8> = (0..16).map(|block| block * 8 + 3).collect();
    let (linear, one) = (ScaleLayout::Linear, GlobalScale::ONE);
    let w = Weights::new(&shape, &codes, &scales, linear, one).unwrap();
    let x = Vectors::nvfp4(&x_codes, &x_scales, linear, one);
    assert_inside_the_bound(&shape, &w, &x, Activation::Nvfp4);
}

/// f32 results of every implementation.
fn assert_inside_the_bound(
    shape: &Shape,
    w: &Weights<'_>,
    x: &Vectors<'_>,
    activation: Activation,
) {
    let truth = reference::gemv(shape, w, x).unwrap();
    for implementation in implementations() {
        let roundings = implementation.roundings(shape, activation);
        for (i, got) in run(implementation, shape, w, x).into_iter().enumerate() {
            let y = truth.y[i];
            let bound = error_bound(y, truth.magnitude[i], roundings, FloatType::F32);
            let error = (f64::from(got) - y).abs();
            assert!(error <= bound, "{implementation}, row {i}: {got} for {y}");
        }
    }
}

/// The additions are in f64: nothing is lost between large numbers that cancel.
#[test]
fn bias_and_residual_are_added_in_more_bits_than_f32_has() {
    let shape = Shape::matrix(1, 16).unwrap();
    let w = Weights::new(
        &shape,
        &[0x22; 8],
        &[0x38],
        ScaleLayout::Linear,
        GlobalScale::ONE,
    );
    let w = w.unwrap();
    let x = [(1 << 20) as f32; 16]; // 2^24 in all
    for implementation in implementations() {
        let mut y = [-(1 << 24) as f32];
        let output = Output::of(&mut y).with_bias(&[1.0]).accumulating();
        gemv_with(implementation, &shape, &w, &Vectors::of(&x), output).unwrap();
        assert_eq!(y, [1.0], "{implementation}");
    }
}

/// Bias and residual, and results where strides say; bytes between results stay as they are.
#[test]
fn bias_and_residual_are_added_and_strides_kept() {
    fn of<T: Element + Into<f64> + PartialEq>(nearest: fn(f64) -> T) {
        let shape = sized(131, 3, 272, 2);
        let (m, n, l) = (shape.m(), shape.n(), shape.l());
        let mut r = fastrand::Rng::with_seed(11);
        let mut some = |count: usize| -> Vec<f32> {
            (0..count)
                .map(|_| r.i32(-4096..4096) as f32 / 64.0)
                .collect()
        };
        let case = Case::new(shape, Activation::F16, Data::Exact, 5);
        let truth = case.reference().y;
        let strides = Strides {
            row: m + 5,
            batch: n * (m + 5) + 7,
        };
        for (biases, strides) in [(m, None), (l * m, Some(strides)), (0, Some(strides))] {
            let at = |i: usize| {
                let lie = strides.unwrap_or(Strides::packed(n, m));
                i / (n * m) * lie.batch + i / m % n * lie.row + i % m
            };
            let count = at(l * n * m - 1) + 1;
            let bias = some(biases);
            let residual: Vec<T> = some(count).into_iter().map(|x| nearest(x.into())).collect();
            let bias_of = |i: usize| match biases {
                0 => 0.0,
                _ => f64::from(bias[if biases > m { i / (n * m) * m } else { 0 } + i % m]),
            };
            for implementation in implementations() {
                for in_place in [false, true] {
                    let before = match in_place {
                        true => residual.clone(),
                        false => vec![nearest(77.0); count],
                    };
                    let mut y = before.clone();
                    let mut output = Output::of(&mut y);
                    if biases > 0 {
                        output = output.with_bias(&bias);
                    }
                    if let Some(strides) = strides {
                        output = output.with_strides(strides);
                    }
                    output = match in_place {
                        true => output.accumulating(),
                        false => output.adding(&residual),
                    };
                    let (w, x) = (case.weights(), case.vectors());
                    gemv_with(implementation, &shape, &w, &x, output).unwrap();
                    let mut expected = before;
                    for (i, &y) in truth.iter().enumerate() {
                        let r: f64 = residual[at(i)].into();
                        expected[at(i)] = nearest(y + bias_of(i) + r);
                    }
                    assert!(y == expected, "{implementation} {} {in_place}", T::TYPE);
                }
            }
        }
    }
    of::<f32>(|x| x as f32);
    of::<f16>(f16::from_f64);
    of::<bf16>(bf16::from_f64);
}

/// A batch stride of 0: the same bits as of vectors that are there once for each batch.
#[test]
fn batches_share_vectors() {
    let shape = sized(20, 2, 80, 3);
    let (n, k, l, blocks) = (shape.n(), shape.k(), shape.l(), shape.blocks());
    let case = Case::new(shape, Activation::F32, Data::FullRange, 4);
    let w = case.weights();
    let mut r = fastrand::Rng::with_seed(6);
    let x: Vec<f32> = (0..n * k).map(|_| r.f32() - 0.5).collect();
    let codes: Vec<u8> = (0..n * k / 2).map(|_| r.u8(..)).collect();
    let scales: Vec<u8> = (0..1024).map(|_| r.u8(..0x7f)).collect();
    let strides = |row| Strides { row, batch: 0 };
    for implementation in implementations() {
        let run = |x: &Vectors<'_>| run(implementation, &shape, &w, x);
        let shared = Vectors::F32(DenseVectors::new(&x[..]).with_strides(strides(k)));
        assert!(
            run(&shared) == run(&Vectors::of(&x.repeat(l))),
            "{implementation}"
        );
        for layout in ScaleLayout::ALL {
            let scales = &scales[..layout.bytes(n, blocks)];
            let nvfp4 = Nvfp4Vectors::new(
                &codes[..],
                scales,
                layout,
                VectorScale::Shared(GlobalScale::ONE),
            );
            let nvfp4 = nvfp4
                .with_code_strides(strides(k / 2))
                .with_scale_strides(strides(blocks));
            let (codes, scales) = (codes.repeat(l), scales.repeat(l));
            let all = Vectors::nvfp4(&codes, &scales, layout, GlobalScale::ONE);
            assert!(
                run(&Vectors::Nvfp4(nvfp4)) == run(&all),
                "{implementation} {layout}"
            );
        }
    }
}

/// Batches that have others' matrices have their bits, with their factors and bias.
#[test]
fn batches_select_matrices() {
    for (m, n, k) in [(131, 1, 272), (20, 5, 80)] {
        let matrices = sized(m, n, k, 3);
        let case = Case::new(matrices, Activation::Bf16, Data::FullRange, 7);
        let mut r = fastrand::Rng::with_seed(8);
        let alpha: Vec<f32> = (0..3 * m).map(|_| r.f32() + 0.5).collect();
        let bias: Vec<f32> = (0..3 * m).map(|_| r.f32() * 100.0).collect();
        let ids = [2, 0, 2, 2, 1];
        let shape = sized(m, n, k, ids.len());
        let x: Vec<bf16> = (0..shape.vector_elements())
            .map(|_| bf16::from_f32(r.f32() - 0.5))
            .collect();
        let w = case.weights().with_row_alpha(&alpha).unwrap();
        let selected = w.select(&ids).unwrap();
        let truth = reference::gemv(&shape, &selected, &Vectors::of(&x)).unwrap();
        for implementation in implementations() {
            let run = |shape: &Shape, w: &Weights<'_>, x: &[bf16], bias: &[f32]| {
                let mut y = vec![f32::NAN; shape.outputs()];
                let output = Output::of(&mut y).with_bias(bias);
                gemv_with(implementation, shape, w, &Vectors::of(x), output).unwrap();
                y
            };
            let y = run(&shape, &selected, &x, &bias);
            let one = sized(m, n, k, 1);
            for (batch, &id) in ids.iter().enumerate() {
                let x = &x[batch * n * k..][..n * k];
                let only = [id];
                let w = w.select(&only).unwrap();
                // A call of one batch has the bias of all matrices, too.
                let expected = run(&one, &w, x, &bias);
                assert!(
                    y[batch * n * m..][..n * m] == expected,
                    "{implementation} {batch}"
                );
                for (i, y) in expected.iter().enumerate() {
                    let at = batch * n * m + i;
                    let b = f64::from(bias[id as usize * m + i % m]);
                    let bound = error_bound(
                        truth.y[at] + b,
                        truth.magnitude[at] + b.abs(),
                        implementation.roundings(&shape, Activation::Bf16),
                        FloatType::F32,
                    );
                    assert!((f64::from(*y) - truth.y[at] - b).abs() <= bound, "{at}");
                }
            }
        }
        // Without a matrix: the residual, and neither bias nor factor, whatever the vectors are.
        let ids = [2, -1, 0];
        let shape = sized(m, n, k, ids.len());
        let mut x = x[..shape.vector_elements()].to_vec();
        x[n * k..2 * n * k].fill(bf16::NAN);
        let skipping = w.select(&ids).unwrap();
        for implementation in implementations() {
            let run = |added: f32| {
                let mut y = vec![added; shape.outputs()];
                let output = Output::of(&mut y).with_bias(&bias).accumulating();
                gemv_with(implementation, &shape, &skipping, &Vectors::of(&x), output).unwrap();
                y
            };
            let y = run(3.5);
            let skipped = n * m..2 * n * m;
            assert!(
                y[skipped.clone()].iter().all(|&y| y == 3.5),
                "{implementation}"
            );
            assert!(y[..skipped.start].iter().all(|y| y.is_finite()));
            assert!(y[skipped.end..].iter().all(|y| y.is_finite()));
        }
        let truth = reference::gemv(&shape, &skipping, &Vectors::of(&x));
        assert!(truth.is_ok_and(|truth| truth.y[..n * m].iter().all(|y| y.is_finite())));
        let twice = selected.select(&[0]).unwrap_err();
        assert!(matches!(twice, Error::Selected { .. }), "{twice}");
        assert!(matches!(
            w.select(&[0, -2]),
            Err(Error::Select { id: -2, .. })
        ));
        let (batch, id, matrices) = (1, 3, 3);
        assert_eq!(
            w.select(&[0, 3]).unwrap_err(),
            Error::Select {
                batch,
                id,
                matrices
            }
        );
        let mut y = [0.0f32; 2];
        let error = gemv_with(
            Implementation::Portable,
            &shape,
            &w.select(&[0]).unwrap(),
            &Vectors::of(&x),
            Output::of(&mut y),
        );
        assert!(matches!(error, Err(Error::ShapeMismatch { .. })));
    }
}

/// A bias or residual that does not fit is refused, and nothing is written.
#[test]
fn bias_and_residual_that_do_not_fit_are_refused() {
    let shape = Shape::matrix(8, 16).unwrap();
    let case = Case::new(shape, Activation::F32, Data::Exact, 1);
    let refused = |change: fn(Output<'_>) -> Output<'_>| {
        let mut y = [7.0f32; 8];
        let output = change(Output::of(&mut y));
        let (w, x) = (case.weights(), case.vectors());
        let error = gemv_with(Implementation::Portable, &shape, &w, &x, output).unwrap_err();
        assert_eq!(y, [7.0; 8]);
        error
    };
    static FLOATS: [f32; 9] = [1.0; 9];
    static HALVES: [f16; 8] = [f16::ONE; 8];
    let error = refused(|y| y.with_bias(&FLOATS[..7]));
    assert_eq!(too_short(&error), "bias");
    let error = refused(|y| y.with_bias(&FLOATS));
    assert!(matches!(
        error,
        Error::BufferTooLong {
            operand: "bias",
            ..
        }
    ));
    let error = refused(|y| y.adding(&FLOATS[..7]));
    assert_eq!(too_short(&error), "residual");
    let error = refused(|y| y.adding(&HALVES));
    let (output, residual) = (FloatType::F32, FloatType::F16);
    assert_eq!(error, Error::ResidualType { output, residual });
}

#[test]
fn threads_do_not_change_a_bit() {
    for (n, activation) in [
        (1, Activation::Nvfp4),
        (3, Activation::Nvfp4),
        (1, Activation::F32),
        (5, Activation::Bf16),
        (13, Activation::Nvfp4),
        (16, Activation::F16),
    ] {
        // Large enough to be spread over threads, with a partial row block.
        let shape = sized(1000, n, 1104, 2);
        let case = Case::new(shape, activation, Data::FullRange, n as u64);
        for implementation in implementations() {
            let mut results = [1, 2, 5].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
                let run = || case.run(implementation, FloatType::F32);
                pool.build().unwrap().install(run)
            });
            for y in &mut results {
                assert!(!y.iter().any(|y| y.is_nan()));
            }
            assert!(
                results[0] == results[1] && results[0] == results[2],
                "{implementation}"
            );
            for threads in [1, 2, 5] {
                let workers = Workers::new(threads).unwrap();
                let y = workers.install(|| case.run(implementation, FloatType::F32));
                assert!(y == results[0], "{implementation}, {threads} workers");
            }
        }
    }
}

#[test]
fn tiny_and_huge_values_do_not_vanish_on_the_way() {
    // Sums near f32's smallest normal number, and vectors near its largest.
    let codes = vec![0x72; 4 * 128];
    let scales = vec![0x01; 4 * 16];
    let (linear, one) = (ScaleLayout::Linear, GlobalScale::ONE);
    for n in [1, 4, 6] {
        let shape = sized(4, n, 256, 1);
        let w = Weights::new(&shape, &codes, &scales, linear, one).unwrap();
        for x in [1e-37f32, 1e37] {
            let x = vec![x; n * 256];
            let x = Vectors::of(&x);
            assert_inside_the_bound(&shape, &w, &x, Activation::F32);
        }
    }
}

#[test]
fn factors_that_leave_f32_on_the_way_come_back() {
    // One row of ones. The product with the global scale is below f32's normal range, or above all of it.
    let shape = Shape::matrix(1, 16).unwrap();
    let (linear, two) = (ScaleLayout::Linear, |power: i32| 2f32.powi(power));
    for (x, global, row, y) in [
        (two(-10) * (1.0 + two(-20)), two(-126), two(120), two(-12)),
        (two(100), two(100), two(-120), two(84)),
    ] {
        let y = y * if x < 1.0 { 1.0 + two(-20) } else { 1.0 };
        let global = GlobalScale::Multiplier(global);
        let weights = Weights::new(&shape, &[0x22; 8], &[0x38], linear, global).unwrap();
        let row = [row];
        let weights = weights.with_row_alpha(&row).unwrap();
        let x = [x; 16];
        for implementation in implementations() {
            let got = run(implementation, &shape, &weights, &Vectors::of(&x));
            assert_eq!(got, [y], "{implementation:?}");
        }
    }
}

#[test]
fn each_batch_has_its_own_row_alphas_where_there_are_as_many() {
    // Two batches of two rows of ones: 16 times the alpha. The results are written down here, since the reference asks
    // the same function where a batch's alphas are.
    let shape = sized(2, 1, 16, 2);
    let (codes, scales, x) = ([0x22; 4 * 8], [0x38; 4], [1f32; 2 * 16]);
    let (linear, one) = (ScaleLayout::Linear, GlobalScale::ONE);
    for (alphas, want) in [
        (&[1.0, 2.0, 3.0, 4.0][..], [16.0, 32.0, 48.0, 64.0]),
        (&[1.0, 2.0], [16.0, 32.0, 16.0, 32.0]),
    ] {
        let weights = Weights::new(&shape, &codes, &scales, linear, one).unwrap();
        let weights = weights.with_row_alpha(alphas).unwrap();
        let exact = reference::gemv(&shape, &weights, &Vectors::of(&x)).unwrap();
        assert_eq!(exact.y, want.map(f64::from));
        for implementation in implementations() {
            let y = run(implementation, &shape, &weights, &Vectors::of(&x));
            assert_eq!(y, want, "{implementation:?}");
        }
    }
}

#[test]
fn values_that_bf16_instructions_flush_do_not_vanish() {
    // bf16 products take subnormal numbers as zero. f16 has subnormal numbers too, which are not
    // subnormal in bf16.
    let codes = vec![0x72; 4 * 128];
    let (linear, one) = (ScaleLayout::Linear, GlobalScale::ONE);
    for (n, scale) in [1, 2, 4, 9]
        .into_iter()
        .flat_map(|n| [(n, 0x7e), (n, 0x01)])
    {
        let scales = vec![scale; 4 * 16];
        let shape = sized(4, n, 256, 1);
        let w = Weights::new(&shape, &codes, &scales, linear, one).unwrap();
        for bits in [
            0x0001, 0x007f, 0x0080, 0x8001, 0x0d80, 0x0d7f, 0x767f, 0x7680, 0x7b00,
        ] {
            // Among ordinary values, and alone.
            for others in [bf16::ONE, bf16::ZERO] {
                let mut x = vec![others; n * 256];
                x[n * 256 - 7] = bf16::from_bits(bits);
                if others == bf16::ZERO {
                    x.fill(bf16::from_bits(bits));
                }
                assert_inside_the_bound(&shape, &w, &Vectors::of(&x), Activation::Bf16);
            }
        }
        for bits in [0x0001, 0x03ff, 0x8001, 0x7bff] {
            let x = vec![f16::from_bits(bits); n * 256];
            assert_inside_the_bound(&shape, &w, &Vectors::of(&x), Activation::F16);
        }
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    let codes = vec![0x22; 2 * 64];
    let scales = vec![0x38; 2 * 8];
    let (linear, one) = (ScaleLayout::Linear, GlobalScale::ONE);
    for n in [1, 2, 3, 9] {
        let shape = sized(2, n, 128, 1);
        let w = Weights::new(&shape, &codes, &scales, linear, one).unwrap();
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut x = vec![1.0; n * 128];
            x[77] = value;
            let x16: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
            let xb16: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
            for x in [Vectors::of(&x16), Vectors::of(&xb16), Vectors::of(&x)] {
                for implementation in implementations() {
                    let y = run(implementation, &shape, &w, &x);
                    let expected = |y: f32| y == value || y.is_nan() && value.is_nan();
                    let right = y[..2].iter().all(|&y| expected(y));
                    assert!(right, "{implementation} {}: {y:?}", x.activation());
                    assert!(y[2..].iter().all(|&y| y == 128.0), "{implementation}");
                }
            }
        }
    }
}

#[test]
fn nothing_to_compute_succeeds() {
    for (m, n, l) in [(0, 2, 1), (1, 0, 1), (1, 2, 0), (0, 0, 0)] {
        let shape = sized(m, n, 48, l);
        for activation in Activation::ALL {
            let case = Case::new(shape, activation, Data::Exact, 4);
            for implementation in implementations() {
                assert!(case.run(implementation, FloatType::F32).is_empty());
            }
        }
    }
}

/// The operand that the error says is too short.
fn too_short(error: &Error) -> &str {
    match error {
        Error::BufferTooShort { operand, .. } => operand,
        other => panic!("{other}"),
    }
}

#[test]
fn bad_input_is_refused_and_nothing_written() {
    let shape = sized(129, 2, 48, 2);
    let good = Case::new(shape, Activation::Nvfp4, Data::Exact, 6);
    let refuse = |w: &Weights<'_>, x: &Vectors<'_>, len: usize, shape: &Shape| {
        let refused = |i: Implementation| {
            let mut y = vec![7.0f32; len];
            let error = gemv_with(i, shape, w, x, Output::of(&mut y)).unwrap_err();
            assert!(y.iter().all(|&y| y == 7.0), "{i} wrote before {error}");
            error
        };
        let first = refused(Implementation::Portable);
        for implementation in implementations() {
            // The errors are compared as text, because a NaN in an error is not equal to itself.
            let error = refused(implementation).to_string();
            assert_eq!(error, first.to_string(), "{implementation}");
        }
        first
    };
    let len = shape.outputs();
    let (w, x) = (good.weights(), good.vectors());

    let error = refuse(&w, &x, len - 1, &shape);
    assert_eq!(too_short(&error), "output");

    let other = sized(129, 2, 64, 2);
    let error = refuse(&w, &x, len, &other);
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");

    fn dense<'a>(codes: &'a [u8], scales: &'a [u8], global: GlobalScale) -> Vectors<'a> {
        Vectors::nvfp4(codes, scales, ScaleLayout::Linear, global)
    }
    let one = GlobalScale::ONE;
    let codes = [0x22; 96];
    let mut scales = [0x38; 12];
    let error = refuse(&w, &dense(&codes[1..], &scales, one), len, &shape);
    assert_eq!(too_short(&error), "vector codes");
    let error = refuse(&w, &dense(&codes, &scales[1..], one), len, &shape);
    assert_eq!(too_short(&error), "vector scales");
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let x = dense(&codes, &scales, GlobalScale::Multiplier(value));
        let error = refuse(&w, &x, len, &shape);
        assert!(matches!(error, Error::GlobalScale { .. }), "{error}");
    }
    let tiny = Weights::new(
        &shape,
        &good.codes,
        &good.scales,
        good.layout,
        GlobalScale::Multiplier(1e-30),
    );
    let x = dense(&codes, &scales, GlobalScale::Multiplier(1e-30));
    let error = refuse(&tiny.unwrap(), &x, len, &shape);
    assert!(matches!(error, Error::GlobalScale { .. }), "{error}");
    scales[7] = 0x7f;
    let error = refuse(&w, &dense(&codes, &scales, one), len, &shape);
    let nan = Error::ScaleNan {
        operand: "vector scales",
        batch: 1,
        row: 0,
        block: 1,
    };
    assert_eq!(error, nan);
    scales[7] = 0xb8;
    let error = refuse(&w, &dense(&codes, &scales, one), len, &shape);
    assert!(
        matches!(error, Error::ScaleNegative { code: 0xb8, .. }),
        "{error}"
    );

    let short = [1.0f32; 2 * 2 * 48 - 1];
    let error = refuse(&w, &Vectors::of(&short), len, &shape);
    assert_eq!(too_short(&error), "vectors");
}

#[test]
fn implementations_are_named_and_what_is_absent_says_so() {
    assert!(Implementation::Portable.available());
    assert!(Implementation::best().available());
    let shape = Shape::matrix(1, 16).unwrap();
    let case = Case::new(shape, Activation::F32, Data::Exact, 1);
    for implementation in Implementation::ALL {
        let mut y = [7.0];
        let (w, x) = (case.weights(), case.vectors());
        let result = gemv_with(implementation, &case.shape, &w, &x, Output::of(&mut y));
        let error = Error::ImplementationUnavailable {
            implementation: implementation.name(),
            needs: implementation.needs(),
        };
        assert!(error.to_string().contains(implementation.name()));
        if !implementation.available() {
            assert_eq!((result, y[0]), (Err(error), 7.0));
        }
    }
}

/// Vectors of which some suit no bytes or no BF16 instructions, packed, with linear scales.
const MIXED: usize = 24;

fn mixed(m: usize, k: usize, l: usize, activation: Activation, seed: u64) -> Case {
    let shape = sized(m, MIXED, k, l);
    let mut cases = (seed..).map(|seed| Case::new(shape, activation, Data::FullRange, seed));
    let is_plain = |case: &Case| !case.padded && case.x_layout == ScaleLayout::Linear;
    let mut case = cases.find(is_plain).unwrap();
    // A bf16 number that instructions flush; one that is no byte; none of the two, and no f16 number.
    let odd = [1e-33, 2f32.powi(91), 2f32.powi(112), f32::INFINITY];
    for (i, odd) in odd.into_iter().enumerate() {
        let at = (i * 5 + 1) * k + i;
        case.x32[at] = odd;
        case.xb16[at] = bf16::from_f32(odd);
        case.x16[at] = f16::from_f32(odd);
    }
    case
}

impl Case {
    /// These of its vectors of each batch, in this order.
    fn picked(&self, picks: &[usize]) -> Self {
        let (n, l) = (self.shape.n(), self.shape.l());
        fn of<T: Copy>(all: &[T], (n, l): (usize, usize), picks: &[usize]) -> Vec<T> {
            let each = all.len() / (n * l);
            let batches = (0..l).flat_map(|batch| picks.iter().map(move |pick| batch * n + pick));
            let vectors = batches.flat_map(|vector| &all[vector * each..][..each]);
            vectors.copied().collect()
        }
        Self {
            shape: sized(self.shape.m(), picks.len(), self.shape.k(), l),
            codes: self.codes.clone(),
            scales: self.scales.clone(),
            row_alpha: self.row_alpha.clone(),
            x_codes: of(&self.x_codes, (n, l), picks),
            x_scales: of(&self.x_scales, (n, l), picks),
            per_vector: (self.per_vector.as_ref()).map(|alpha| of(alpha, (n, l), picks)),
            x16: of(&self.x16, (n, l), picks),
            xb16: of(&self.xb16, (n, l), picks),
            x32: of(&self.x32, (n, l), picks),
            ..*self
        }
    }

    /// The bits of f32 results, with an order of sums that does not depend on the vectors or with the fastest one.
    fn bits(&self, how: (Implementation, Accuracy), invariant: bool) -> Vec<u32> {
        let mut y = vec![f32::NAN; self.shape.outputs()];
        let (w, x) = (self.weights(), self.vectors());
        let gemv = if invariant {
            gemv_batch_invariant
        } else {
            gemv_in
        };
        gemv(how, &self.shape, &w, &x, Output::of(&mut y)).unwrap();
        y.into_iter().map(f32::to_bits).collect()
    }
}

/// Results of vectors of calls of 1 to 24 that differ in a bit from what they are beside all others: of vectors that
/// are picked at random, so that they stand at any place among any others.
fn differing(case: &Case, how: (Implementation, Accuracy), invariant: bool) -> usize {
    let rng = &mut fastrand::Rng::with_seed(5);
    let (m, l) = (case.shape.m(), case.shape.l());
    let all = case.bits(how, invariant);
    let mut differ = 0;
    for size in [1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17] {
        let picks: Vec<usize> = (0..size).map(|_| rng.usize(..MIXED)).collect();
        let some = case.picked(&picks).bits(how, invariant);
        for (i, pick) in (0..l).flat_map(|batch| {
            let picks = picks.iter().enumerate();
            picks.map(move |(i, pick)| (batch * size + i, batch * MIXED + pick))
        }) {
            differ += usize::from(some[i * m..][..m] != all[pick * m..][..m]);
        }
    }
    differ
}

/// Options::batch_invariant: neither the number of vectors, nor a vector's place, nor the others change a bit.
#[test]
fn other_vectors_do_not_change_a_bit_where_that_is_asked_for() {
    let mut free = 0;
    let sizes = [
        (130, 16, 1),
        (20, 272, 1),
        (35, 1040, 1),
        (33, 4112, 2),
        (129, 2048, 1),
    ];
    for (i, (m, k, l)) in sizes.into_iter().enumerate() {
        for activation in Activation::ALL {
            let case = mixed(m, k, l, activation, 3000 + i as u64);
            for implementation in implementations() {
                for accuracy in [Accuracy::Exact, Accuracy::Bytes] {
                    let how = (implementation, accuracy);
                    let what = format!("{implementation} {accuracy:?} {}", case.describe());
                    assert_eq!(differing(&case, how, true), 0, "{what}");
                    free += usize::from(differing(&case, how, false) != 0);
                }
            }
        }
    }
    // The fastest orders depend on the vectors: otherwise this test tests nothing.
    assert!(free > 8, "{free}");
}

/// The order that does not depend on the vectors has a bound of its own.
#[test]
fn batch_invariant_results_are_inside_their_bound() {
    let mut closest = 0f64;
    for (i, (m, k)) in [(35, 1040), (33, 4112), (40, 272)].into_iter().enumerate() {
        for activation in Activation::ALL {
            for n in [1, 3, 9] {
                let seed = 4000 + (i * 10 + n) as u64;
                let case = Case::new(sized(m, n, k, 1), activation, Data::FullRange, seed);
                let truth = case.reference();
                for implementation in implementations() {
                    let roundings = implementation.roundings_batch_invariant(
                        &case.shape,
                        activation,
                        Accuracy::Exact,
                    );
                    let got = case.bits((implementation, Accuracy::Exact), true);
                    for (i, got) in got.into_iter().enumerate() {
                        let (y, magnitude) = (truth.y[i], truth.magnitude[i]);
                        let bound = error_bound(y, magnitude, roundings, FloatType::F32);
                        let error = (f64::from(f32::from_bits(got)) - y).abs();
                        assert!(error <= bound, "{implementation} {}", case.describe());
                        closest = closest.max(error / bound);
                    }
                }
            }
        }
    }
    assert!(closest > 0.1, "the worst error is {closest} of its bound");
}

/// A call, a prepared call and a layer that are asked for it have the same bits.
#[test]
fn options_and_layers_ask_for_batch_invariance() {
    let case = mixed(70, 1040, 1, Activation::F32, 5000);
    let one = case.picked(&[3]);
    let (w, shape) = (one.weights(), one.shape);
    let expected = one.bits((Implementation::best(), Accuracy::Exact), true);
    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    let mut y = [0.0f32; 70];
    let options = Options::new().batch_invariant(true);
    gemv(&shape, &w, &one.vectors(), Output::of(&mut y), &options).unwrap();
    assert_eq!(bits(&y), expected);
    let (codes, scales) = (one.codes.clone(), one.scales.clone());
    let layer = Linear::new(70, 1040, codes, scales, one.layout, one.global).unwrap();
    let layer = layer.with_batch_invariance(true);
    let layer = match one.row_alpha.clone() {
        Some(alpha) => layer.with_row_alpha(alpha).unwrap(),
        None => layer,
    };
    assert!(layer.is_batch_invariant());
    let mut y = [0.0f32; MIXED * 70];
    layer
        .forward(&case.vectors(), MIXED, Output::of(&mut y))
        .unwrap();
    assert_eq!(bits(&y[3 * 70..][..70]), expected);
}
