//! Layers that own or share their weights: the bits of borrowed calls, and what they refuse.

use std::sync::Arc;

use half::{bf16, f16};
use nvfp4_gemv::cpu::{Implementation, gemv_with};
use nvfp4_gemv::quantize::{QuantizeError, quantize};
use nvfp4_gemv::reference::{self, error_bound};
use nvfp4_gemv::{
    Activation, Bytes, Dialect, Dims, Element, Error, FloatType, Gate, GlobalScale, Linear, Mlp,
    Options, Output, ScaleLayout, Shape, Strides, Vectors, Weights, gemv,
};

/// The parts of a layer, of full range.
struct Case {
    shape: Shape,
    codes: Vec<u8>,
    scales: Vec<u8>,
    layout: ScaleLayout,
    row_alpha: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    /// f32 vectors of many magnitudes, as many as the shape has.
    x: Vec<f32>,
}

const GLOBAL: GlobalScale = GlobalScale::Divisor(37.5);

fn shape(m: usize, n: usize, k: usize) -> Shape {
    Shape::new(Dims { m, n, k, l: 1 }).unwrap()
}

impl Case {
    fn new(shape: Shape, layout: ScaleLayout, seed: u64) -> Self {
        let mut r = fastrand::Rng::with_seed(seed);
        let (m, n, k) = (shape.m(), shape.n(), shape.k());
        // Padding is NaN.
        let mut scales = vec![0xff; shape.weight_scale_bytes(layout)];
        for row in 0..m {
            for block in 0..shape.blocks() {
                scales[layout.offset(row, block, shape.blocks())] = r.u8(0..=0x7e);
            }
        }
        let mut numbers = |count: usize| -> Vec<f32> {
            let number = |_| (r.f32() - 0.5) * 2f32.powi(r.i32(-6..6));
            (0..count).map(number).collect()
        };
        Self {
            shape,
            scales,
            layout,
            row_alpha: (!seed.is_multiple_of(3)).then(|| numbers(m)),
            bias: (!seed.is_multiple_of(2)).then(|| numbers(m)),
            x: numbers(n * k),
            codes: (0..shape.weight_code_bytes()).map(|_| r.u8(..)).collect(),
        }
    }

    fn weights(&self) -> Weights<'_> {
        let (codes, scales) = (&self.codes, &self.scales);
        let weights = Weights::new(&self.shape, codes, scales, self.layout, GLOBAL).unwrap();
        match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha(alpha).unwrap(),
            None => weights,
        }
    }

    fn linear(&self) -> Linear {
        let (m, k) = (self.shape.m(), self.shape.k());
        // One owned, one shared.
        let scales: Arc<[u8]> = self.scales.clone().into();
        let mut layer = Linear::new(m, k, self.codes.clone(), scales, self.layout, GLOBAL).unwrap();
        if let Some(alpha) = &self.row_alpha {
            layer = layer.with_row_alpha(alpha.clone()).unwrap();
        }
        if let Some(bias) = &self.bias {
            layer = layer.with_bias(bias.clone()).unwrap();
        }
        layer
    }

    fn biased<'a, T: Element>(&'a self, y: &'a mut [T]) -> Output<'a> {
        match &self.bias {
            Some(bias) => Output::of(y).with_bias(bias),
            None => Output::of(y),
        }
    }

    /// Results of the borrowed call and of the layer, for one type.
    fn compare<T: Element + PartialEq>(&self, x: &Vectors<'_>, layer: &Linear) {
        let [mut expected, mut y] =
            [(); 2].map(|()| vec![T::round(f32::NAN); self.shape.outputs()]);
        let (weights, options) = (self.weights(), Options::new());
        gemv(
            &self.shape,
            &weights,
            x,
            self.biased(&mut expected),
            &options,
        )
        .unwrap();
        let n = self.shape.n();
        layer.forward(x, n, Output::of(&mut y)).unwrap();
        assert!(
            y == expected,
            "{} {:?} {}",
            self.shape,
            x.activation(),
            self.layout
        );
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let sizes = [
        (1, 1, 16),
        (5, 2, 48),
        (130, 3, 272),
        (96, 9, 1024),
        (300, 17, 640),
        (40, 70, 4096),
    ];
    let layouts = ScaleLayout::ALL.into_iter();
    let all = layouts.flat_map(move |layout| sizes.map(|(m, n, k)| (shape(m, n, k), layout)));
    all.zip(0..)
        .map(|((shape, layout), seed)| Case::new(shape, layout, seed))
}

#[test]
fn a_layer_gives_the_bits_of_borrowed_calls() {
    for case in cases() {
        let layer = case.linear();
        assert_eq!((layer.rows(), layer.k()), (case.shape.m(), case.shape.k()));
        let (n, k) = (case.shape.n(), case.shape.k());
        let halves: Vec<f16> = case.x.iter().map(|&x| f16::from_f32(x)).collect();
        let brains: Vec<bf16> = case.x.iter().map(|&x| bf16::from_f32(x)).collect();
        let nvfp4 = quantize(&case.x, n, k, Dialect::ModelOpt, None).unwrap();
        for x in [
            Vectors::of(&case.x),
            Vectors::of(&halves),
            Vectors::of(&brains),
            nvfp4.vectors(),
        ] {
            case.compare::<f32>(&x, &layer);
            case.compare::<f16>(&x, &layer);
            case.compare::<bf16>(&x, &layer);
        }
    }
}

#[test]
fn a_layer_stays_within_the_bound() {
    for case in cases().filter(|case| case.bias.is_none()) {
        let (layer, x) = (case.linear(), Vectors::of(&case.x));
        let truth = reference::gemv(&case.shape, &layer.weights(), &x).unwrap();
        let mut y = vec![0.0f32; case.shape.outputs()];
        layer
            .forward(&x, case.shape.n(), Output::of(&mut y))
            .unwrap();
        let roundings = Implementation::best().roundings(&case.shape, Activation::F32);
        for ((y, truth), magnitude) in y.into_iter().zip(truth.y).zip(truth.magnitude) {
            let bound = error_bound(truth, magnitude, roundings, FloatType::F32);
            assert!((f64::from(y) - truth).abs() <= bound, "{}", case.shape);
        }
    }
}

/// One layer, any number of vectors one after the other, and more than one kind of output.
#[test]
fn any_number_of_vectors_and_any_output() {
    let case = Case::new(shape(70, 40, 512), ScaleLayout::Tiled128x4, 5);
    let (layer, weights) = (case.linear(), case.weights());
    for n in [40, 1, 0, 3, 17, 2, 40] {
        let shape = layer.shape(n).unwrap();
        let x = Vectors::of(&case.x[..n * 512]);
        let strides = Strides { row: 80, batch: 0 };
        let residual = vec![0.25f32; n * 80];
        let into = |y| Output::of(y).with_strides(strides).adding(&residual);
        let [mut expected, mut y] = [(); 2].map(|()| vec![7.0f32; n * 80]);
        let output = into(&mut expected).with_bias(case.bias.as_ref().unwrap());
        gemv(&shape, &weights, &x, output, &Options::new()).unwrap();
        layer.forward(&x, n, into(&mut y)).unwrap();
        assert_eq!(y, expected);
    }
}

#[test]
fn dense_matrices_are_quantised() {
    fn same<T: Element>(dense: &[T]) {
        let layer = Linear::from_dense(dense, 3, 64).unwrap();
        let matrix = quantize(dense, 3, 64, Dialect::ModelOpt, None).unwrap();
        let weights = layer.weights();
        assert_eq!(weights.codes(), matrix.codes);
        assert_eq!(weights.scales(), matrix.scales);
        assert_eq!(weights.global(), matrix.global);
    }
    let dense: Vec<f32> = (0..3 * 64).map(|i| (i as f32).sin()).collect();
    same(&dense);
    same(&dense.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>());
    same(&dense.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());

    let refused = |dense: &[f32], rows, k| Linear::from_dense(dense, rows, k).unwrap_err();
    let error = refused(&[f32::NAN; 16], 1, 16);
    assert!(matches!(error, QuantizeError::NotFinite { row: 0, .. }));
    let error = refused(&dense, 3, 60);
    assert!(matches!(
        error,
        QuantizeError::Operand(Error::KNotMultipleOfBlock { k: 60 })
    ));
    let error = refused(&dense, 4, 64);
    assert!(matches!(
        error,
        QuantizeError::Operand(Error::BufferTooShort { .. })
    ));
}

#[test]
fn refusals() {
    let layer = |codes, scales: Vec<u8>, global| {
        Linear::new(
            2,
            32,
            vec![0x22; codes],
            scales,
            ScaleLayout::Linear,
            global,
        )
    };
    let (good, one) = (vec![0x38; 4], GlobalScale::ONE);
    let short = layer(31, good.clone(), one).unwrap_err();
    assert!(
        matches!(
            short,
            Error::BufferTooShort {
                operand: "weight codes",
                ..
            }
        ),
        "{short}"
    );
    let long = layer(32, vec![0x38; 5], one).unwrap_err();
    assert!(
        matches!(
            long,
            Error::BufferTooLong {
                operand: "weight scales",
                ..
            }
        ),
        "{long}"
    );
    let tiled = layer(32, vec![0x38; 512], one).unwrap_err();
    assert!(
        matches!(tiled, Error::LayoutContradiction { .. }),
        "{tiled}"
    );
    let nan = layer(32, vec![0x38, 0x38, 0x7f, 0x38], one).unwrap_err();
    assert!(
        matches!(
            nan,
            Error::ScaleNan {
                row: 1,
                block: 0,
                ..
            }
        ),
        "{nan}"
    );
    let zero = layer(32, good.clone(), GlobalScale::Multiplier(0.0)).unwrap_err();
    assert!(matches!(zero, Error::GlobalScale { .. }), "{zero}");
    let no_k = Linear::new(2, 0, vec![], vec![], ScaleLayout::Linear, one).unwrap_err();
    assert_eq!(no_k, Error::KZero);

    let layer = layer(32, good, one).unwrap();
    let alpha = layer.clone().with_row_alpha(vec![1.0; 3]).unwrap_err();
    assert!(
        matches!(
            alpha,
            Error::BufferTooLong {
                operand: "row alpha",
                ..
            }
        ),
        "{alpha}"
    );
    let alpha = layer
        .clone()
        .with_row_alpha(vec![1.0, f32::NAN])
        .unwrap_err();
    assert!(matches!(alpha, Error::RowAlpha { index: 1, .. }), "{alpha}");
    let bias = layer.clone().with_bias(vec![1.0]).unwrap_err();
    assert!(
        matches!(
            bias,
            Error::BufferTooShort {
                operand: "bias",
                ..
            }
        ),
        "{bias}"
    );

    let layer = layer.with_bias(vec![1.0; 2]).unwrap();
    let x = [1.0f32; 64];
    let mut y = [7.0f32; 4];
    let refused = |result| -> Error { Result::unwrap_err(result) };
    let twice = Output::of(&mut y).with_bias(&[1.0; 2]);
    assert_eq!(
        refused(layer.forward(&Vectors::of(&x), 2, twice)),
        Error::BiasTwice
    );
    let few = refused(layer.forward(&Vectors::of(&x), 3, Output::of(&mut y)));
    assert!(matches!(few, Error::BufferTooShort { .. }), "{few}");
    let many = refused(layer.forward(&Vectors::of(&x), 1, Output::of(&mut y)));
    assert!(matches!(many, Error::BufferTooLong { .. }), "{many}");
    let all = refused(layer.forward(&Vectors::of(&x), usize::MAX / 4, Output::of(&mut y)));
    assert!(matches!(all, Error::SizeOverflow { .. }), "{all}");
    assert!(layer.prepare(usize::MAX / 4, Activation::F32).is_err());
    // 32 million vectors a GB: more memory than there is.
    let most = layer.prepare(Shape::MAX_DIM, Activation::F32);
    assert!(
        most.is_ok() || matches!(most, Err(Error::NoMemory { .. })),
        "{most:?}"
    );
    assert_eq!(y, [7.0; 4], "nothing was written");
    // Nothing to compute.
    layer.prepare(0, Activation::F32).unwrap();
    layer
        .forward(&Vectors::of(&x[..0]), 0, Output::of(&mut y[..0]))
        .unwrap();
}

/// Clones share, and give the same bits from several threads at once.
#[test]
fn clones_and_threads() {
    let case = Case::new(shape(512, 12, 2048), ScaleLayout::Linear, 3);
    let owner = Arc::new(case.codes.clone());
    let codes = Bytes::sharing(owner.clone());
    let layer = Linear::new(
        512,
        2048,
        codes.clone(),
        case.scales.clone(),
        case.layout,
        GLOBAL,
    );
    let layer = layer.unwrap();
    let clone = layer.clone();
    assert!(std::ptr::eq(
        layer.weights().codes(),
        clone.weights().codes()
    ));
    assert!(std::ptr::eq(layer.weights().codes(), codes.get()));
    let run = |layer: &Linear, n: usize| {
        let mut y = vec![0.0f32; n * 512];
        layer
            .forward(&Vectors::of(&case.x[..n * 2048]), n, Output::of(&mut y))
            .unwrap();
        y
    };
    let expected: Vec<_> = (1..=12).map(|n| run(&layer, n)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (layer, expected, run) = (clone.clone(), &expected, &run);
            scope.spawn(move || {
                for turn in 0..24 {
                    let n = (turn * 5 + thread) % 12 + 1;
                    assert_eq!(run(&layer, n), expected[n - 1]);
                }
            });
        }
    });
    // The bias of one clone is not the other's.
    let biased = clone.with_bias(vec![1.0; 512]).unwrap();
    assert!(layer.bias().is_none() && biased.bias().is_some());
}

#[test]
fn an_mlp_is_its_layers() {
    let layer = |m, k, seed| Case::new(shape(m, 1, k), ScaleLayout::Linear, seed).linear();
    let (gate, up, down) = (layer(160, 96, 1), layer(160, 96, 2), layer(96, 160, 4));
    let mlp = Mlp::new(gate.clone(), up.clone(), down.clone()).unwrap();
    assert_eq!((mlp.k(), mlp.rows()), (96, 96));
    for n in [0, 1, 5, 40] {
        let mut r = fastrand::Rng::with_seed(n as u64);
        let x: Vec<bf16> = (0..n * 96).map(|_| bf16::from_f32(r.f32() - 0.5)).collect();
        let x = Vectors::of(&x);
        let of = |layer: &Linear, x: &Vectors<'_>| {
            let mut y = vec![0.0f32; n * layer.rows()];
            layer.forward(x, n, Output::of(&mut y)).unwrap();
            y
        };
        let (g, u) = (of(&gate, &x), of(&up, &x));
        let between: Vec<f32> = g
            .iter()
            .zip(&u)
            .map(|(&g, &u)| Gate::Silu.of(g, u))
            .collect();
        let expected = of(&down, &Vectors::of(&between));
        let mut y = vec![0.0f32; n * 96];
        mlp.prepare(n, Activation::Bf16).unwrap();
        mlp.forward(&x, n, Output::of(&mut y)).unwrap();
        assert_eq!(y, expected);
    }
    let error = Mlp::new(gate.clone(), layer(144, 96, 1), down.clone()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "up's M is 144, and gate's M is 160; they must be equal"
    );
    assert!(Mlp::new(gate.clone(), layer(160, 80, 1), down).is_err());
    assert!(Mlp::new(gate, up, layer(96, 176, 1)).is_err());
    let mut y = [7.0f32; 95];
    let x = [1.0f32; 96];
    assert!(
        mlp.forward(&Vectors::of(&x), 1, Output::of(&mut y))
            .is_err()
    );
    assert!(
        mlp.forward(&Vectors::of(&x[..95]), 1, Output::of(&mut y))
            .is_err()
    );
    assert_eq!(y, [7.0; 95]);
}

#[cfg(feature = "checkpoint")]
mod of_checkpoints {
    use std::collections::HashMap;
    use std::path::Path;

    use nvfp4_gemv::checkpoint::{Checkpoint, CheckpointError};
    use nvfp4_gemv_cli::file::{self, NewTensor};
    use safetensors::Dtype;

    use super::*;

    /// Real layers of both dialects: the layer is all that is kept.
    #[test]
    fn layers_of_files() {
        for dialect in Dialect::ALL {
            let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
            let file = data.join(format!("minilm-l0-{}.safetensors", dialect.name()));
            let names: Vec<String> = {
                let checkpoint = Checkpoint::open(&file).unwrap();
                checkpoint.layers().map(str::to_owned).collect()
            };
            for name in names {
                let layer = {
                    let checkpoint = Arc::new(Checkpoint::open(&file).unwrap());
                    Linear::from_checkpoint(&checkpoint, &name).unwrap()
                };
                let checkpoint = Checkpoint::open(&file).unwrap();
                let expected = checkpoint.layer(&name).unwrap();
                let x: Vec<f32> = (0..3 * layer.k()).map(|i| (i as f32).sin()).collect();
                let [mut y, mut of_expected] = [(); 2].map(|()| vec![0.0f32; 3 * layer.rows()]);
                layer
                    .forward(&Vectors::of(&x), 3, Output::of(&mut y))
                    .unwrap();
                gemv(
                    &expected.shape(3).unwrap(),
                    &expected.weights().unwrap(),
                    &Vectors::of(&x),
                    Output::of(&mut of_expected),
                    &Options::new(),
                )
                .unwrap();
                let bias = checkpoint.tensor(&format!("{name}.bias"));
                assert_eq!(layer.bias().is_some(), bias.is_some());
                if bias.is_none() {
                    assert_eq!(y, of_expected);
                }
            }
        }
    }

    /// A file of a layer `a.l` [2, 32] of ones, and a bias.
    fn with_bias(folder: &Path, bias: NewTensor<'static>) -> Arc<Checkpoint> {
        let tensors = [
            (
                "a.l.weight",
                NewTensor::new(Dtype::U8, &[2, 16], vec![0x22; 32]),
            ),
            (
                "a.l.weight_scale",
                NewTensor::new(Dtype::F8_E4M3, &[2, 2], vec![0x38; 4]),
            ),
            ("a.l.weight_scale_2", NewTensor::f32(&[], &[0.5])),
            ("a.l.bias", bias),
        ];
        let path = folder.join("model.safetensors");
        let tensors = tensors
            .map(|(name, tensor)| (name.to_owned(), tensor))
            .to_vec();
        file::write(&path, tensors, Some(HashMap::new())).unwrap();
        Arc::new(Checkpoint::open(path).unwrap())
    }

    #[test]
    fn a_bias_is_added() {
        let folder = tempfile::tempdir().unwrap();
        let bias = [1.5f32, -2.0]
            .map(|b| bf16::from_f32(b).to_le_bytes())
            .concat();
        let checkpoint = with_bias(folder.path(), NewTensor::new(Dtype::BF16, &[2], bias));
        let layer = Linear::from_checkpoint(&checkpoint, "a.l").unwrap();
        assert_eq!(layer.bias(), Some(&[1.5, -2.0][..]));
        let mut y = [0.0f32; 2];
        layer
            .forward(&Vectors::of(&[1.0f32; 32]), 1, Output::of(&mut y))
            .unwrap();
        assert_eq!(y, [17.5, 14.0]);
    }

    #[test]
    fn what_is_no_layer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = with_bias(folder.path(), NewTensor::f32(&[3], &[0.0; 3]));
        let error = Linear::from_checkpoint(&checkpoint, "a.l").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("\"a.l.bias\" is F32 [3]; expected [2]"),
            "{error}"
        );
        let error = Linear::from_checkpoint(&checkpoint, "a.m").unwrap_err();
        assert!(matches!(error, CheckpointError::NoLayer { .. }), "{error}");
    }
}

/// Vectors of a type, in two batches of weights that share them, or with vectors of each batch's own.
fn within_the_bound_of_factors<T: Element>(case: &Case, alpha: &[f32], what: Activation) {
    let (m, n, k) = (case.shape.m(), case.shape.n(), case.shape.k());
    let twice = Shape::new(Dims { m, n, k, l: 2 }).unwrap();
    let (codes, scales) = (case.codes.repeat(2), case.scales.repeat(2));
    let weights = Weights::new(&twice, &codes, &scales, case.layout, GLOBAL).unwrap();
    let weights = weights.with_column_alpha(alpha).unwrap();
    let x: Vec<T> = case.x.iter().map(|x| T::round(*x)).collect();
    let own = x.repeat(2);
    let shared = Strides { row: k, batch: 0 };
    let all: [(Vectors<'_>, &str); 2] = [
        (Vectors::of(&own), "own"),
        (shared_vectors(&x, shared), "shared"),
    ];
    for (vectors, how) in &all {
        let truth = reference::gemv(&twice, &weights, vectors).unwrap();
        let available = Implementation::ALL
            .into_iter()
            .filter(|one| one.available());
        for implementation in available {
            let mut y = vec![0.0f32; twice.outputs()];
            gemv_with(
                implementation,
                &twice,
                &weights,
                vectors,
                Output::of(&mut y),
            )
            .unwrap();
            // Vectors count as f32; a factor is one more rounding.
            let roundings = implementation.roundings(&twice, Activation::F32) + 1;
            for ((y, truth), magnitude) in y.iter().zip(&truth.y).zip(&truth.magnitude) {
                let bound = error_bound(*truth, *magnitude, roundings, FloatType::F32);
                let off = (f64::from(*y) - truth).abs();
                assert!(
                    off <= bound,
                    "{implementation} {what} {how}: {y} {truth} {bound}"
                );
            }
        }
    }
}

fn shared_vectors<T: Element>(x: &[T], strides: Strides) -> Vectors<'_> {
    match Vectors::of(x) {
        Vectors::F32(v) => Vectors::F32(v.with_strides(strides)),
        Vectors::F16(v) => Vectors::F16(v.with_strides(strides)),
        Vectors::Bf16(v) => Vectors::Bf16(v.with_strides(strides)),
        _ => unreachable!("{:?}", T::TYPE),
    }
}

#[test]
fn factors_of_columns_are_within_the_bound() {
    for (seed, (m, n, k)) in [(5, 1, 48), (9, 3, 272), (3, 17, 512)]
        .into_iter()
        .enumerate()
    {
        let case = Case::new(shape(m, n, k), ScaleLayout::Linear, seed as u64);
        let mut r = fastrand::Rng::with_seed(7);
        let alpha: Vec<f32> = (0..k)
            .map(|_| (r.f32() - 0.4) * 2f32.powi(r.i32(-5..6)))
            .collect();
        within_the_bound_of_factors::<f32>(&case, &alpha, Activation::F32);
        within_the_bound_of_factors::<f16>(&case, &alpha, Activation::F16);
        within_the_bound_of_factors::<bf16>(&case, &alpha, Activation::Bf16);

        // A layer has the bits of its weights without factors, and of vectors that were multiplied before.
        let layer = case.linear().with_column_alpha(alpha.clone()).unwrap();
        layer.prepare(n, Activation::F16).unwrap();
        assert_eq!(layer.column_alpha(), Some(&alpha[..]));
        let products: Vec<f32> = case
            .x
            .iter()
            .zip(alpha.iter().cycle())
            .map(|(x, alpha)| x * alpha)
            .collect();
        let results = [
            (&layer, &case.x),
            (&layer.clone().without_column_alpha(), &products),
        ]
        .map(|(layer, x)| {
            let mut y = vec![0.0f32; m * n];
            layer
                .forward(&Vectors::of(x), n, Output::of(&mut y))
                .unwrap();
            y
        });
        assert_eq!(results[0], results[1]);
    }
}

#[test]
fn factors_of_columns_that_do_not_fit_are_refused() {
    let case = Case::new(shape(4, 1, 32), ScaleLayout::Linear, 0);
    let layer = case.linear();
    let short = layer.clone().with_column_alpha(vec![1.0; 16]).unwrap_err();
    assert!(
        matches!(
            short,
            Error::BufferTooShort {
                operand: "column alpha",
                ..
            }
        ),
        "{short}"
    );
    let infinite = layer
        .clone()
        .with_column_alpha(vec![f32::INFINITY; 32])
        .unwrap_err();
    assert!(
        matches!(infinite, Error::ColumnAlpha { index: 0, .. }),
        "{infinite}"
    );
    // Vectors that are quantised already.
    let layer = layer.with_column_alpha(vec![1.0; 32]).unwrap();
    let x = quantize(&case.x, 1, 32, Dialect::ModelOpt, None).unwrap();
    let mut y = [7.0f32; 4];
    let refused = layer
        .forward(&x.vectors(), 1, Output::of(&mut y))
        .unwrap_err();
    assert!(matches!(refused, Error::HasColumnAlpha { .. }), "{refused}");
    assert_eq!(y, [7.0; 4]);
    let refused = reference::gemv(&case.shape, &layer.weights(), &x.vectors()).unwrap_err();
    assert!(matches!(refused, Error::HasColumnAlpha { .. }), "{refused}");
}
