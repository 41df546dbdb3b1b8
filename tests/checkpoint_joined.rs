//! Layers that are joined to one matrix or one array of matrices, against the same layers one by one.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nvfp4_gemv::checkpoint::{
    Checkpoint, CheckpointError, Dialect, Joined, ModuleKind, Piece, Pieces, RowOrder, SendError,
};
use nvfp4_gemv::quantize::{Quantized, quantize};
use nvfp4_gemv::{
    DenseVectors, Dims, Experts, GemvPath, Options, Output, ScaleLayout, Shape, Strides, Vectors,
    gemv, reference,
};
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use tempfile::TempDir;

const K: usize = 64;

type Tensors = Vec<(String, NewTensor<'static>)>;

/// A layer of random weights. Layers of different seeds have different global scales.
fn random(seed: u64, rows: usize, dialect: Dialect) -> Quantized {
    let mut rng = fastrand::Rng::with_seed(seed);
    let size = (1 + seed) as f32;
    let values: Vec<f32> = (0..rows * K).map(|_| size * (rng.f32() - 0.5)).collect();
    quantize(&values, rows, K, dialect, None).unwrap()
}

fn layer(seed: u64, rows: usize, name: &str, dialect: Dialect) -> Tensors {
    NewTensor::layer(name, dialect, random(seed, rows, dialect)).into()
}

fn open(tensors: Tensors) -> (TempDir, Checkpoint) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    file::write(&path, tensors, None).unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    (directory, checkpoint)
}

fn x() -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(7);
    (0..K).map(|_| rng.f32() - 0.5).collect()
}

/// The true products of joined weights with one vector, of each batch.
fn products(joined: &Joined<'_>) -> Vec<Vec<f64>> {
    let gathered = joined.gather();
    let shape = joined.shape();
    assert_eq!(gathered.shape(), shape);
    let x = x().repeat(shape.l());
    let y = reference::gemv(&shape, &gathered.weights().unwrap(), &Vectors::of(&x)).unwrap();
    // The caller's memory gets the same.
    let mut codes = vec![0xff; shape.weight_code_bytes()];
    joined.write_codes(&mut codes).unwrap();
    assert_eq!(codes, gathered.codes());
    let mut scales = vec![0xff; gathered.scales().len()];
    joined.write_scales(&mut scales).unwrap();
    assert_eq!(scales, gathered.scales());
    assert!(joined.write_codes(&mut codes[1..]).is_err());
    assert!(
        joined
            .write_scales(&mut [&scales[..], &[0]].concat())
            .is_err()
    );
    y.y.chunks(shape.m()).map(<[f64]>::to_vec).collect()
}

fn product(checkpoint: &Checkpoint, layer: &str) -> Vec<f64> {
    let layer = checkpoint.layer(layer).unwrap();
    let weights = layer.weights().unwrap();
    reference::gemv(&layer.shape(1).unwrap(), &weights, &Vectors::of(&x()))
        .unwrap()
        .y
}

/// Equal but for the rounding of a divisor's reciprocal to f32.
#[track_caller]
fn same(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() <= expected.abs() * 2f64.powi(-23),
            "{found} {expected}"
        );
    }
}

#[test]
fn parts_of_a_fused_layer_are_rows_with_factors() {
    for dialect in Dialect::ALL {
        let (names, rows) = (["q", "k", "v"], [24, 8, 8]);
        let each = names.iter().zip(rows).zip(1..);
        let tensors = each.flat_map(|((name, rows), seed)| layer(seed, rows, name, dialect));
        let (_directory, checkpoint) = open(tensors.collect());
        let joined = checkpoint.joined(&names, RowOrder::Stacked).unwrap();
        assert_eq!(joined.shape(), Shape::matrix(40, K).unwrap());
        let apart = names.map(|name| product(&checkpoint, name));
        same(&products(&joined)[0], &apart.concat());
        assert_eq!(joined.row_alpha().unwrap().len(), 40);

        // Rows in turns: of layers of one size only.
        let joined = checkpoint
            .joined(&["v", "k"], RowOrder::Interleaved)
            .unwrap();
        let turns = apart[2].iter().zip(&apart[1]).flat_map(|(v, k)| [*v, *k]);
        same(&products(&joined)[0], &turns.collect::<Vec<_>>());
        let error = checkpoint
            .joined(&["q", "k"], RowOrder::Interleaved)
            .unwrap_err();
        let CheckpointError::Join { layers, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(layers, &["q", "k"]);
        assert!(error.to_string().contains("24 and 8 rows"), "{error}");

        // One global scale stays what it is, and the only layer is not copied.
        let joined = checkpoint.joined(&["q"], RowOrder::Stacked).unwrap();
        let layer = checkpoint.layer("q").unwrap();
        assert_eq!(
            (joined.row_alpha(), joined.global()),
            (None, layer.global())
        );
        let gathered = joined.gather();
        assert_eq!(gathered.codes().as_ptr(), layer.codes().as_ptr());
        let twice = checkpoint.joined(&["q", "q"], RowOrder::Stacked).unwrap();
        assert_eq!((twice.row_alpha(), twice.global()), (None, layer.global()));

        let none: [&str; 0] = [];
        let error = checkpoint.joined(&none, RowOrder::Stacked).unwrap_err();
        assert!(matches!(error, CheckpointError::Join { .. }), "{error}");
        let error = checkpoint
            .joined(&["q", "x"], RowOrder::Stacked)
            .unwrap_err();
        assert!(matches!(error, CheckpointError::NoLayer { .. }), "{error}");
    }
}

#[test]
fn rows_of_other_lengths_are_not_joined() {
    let dialect = Dialect::ModelOpt;
    let mut tensors = layer(1, 16, "a", dialect);
    let values = [1.0; 16 * 32];
    let q = quantize(&values, 16, 32, dialect, None).unwrap();
    tensors.extend(NewTensor::layer("b", dialect, q));
    let (_directory, checkpoint) = open(tensors);
    let error = checkpoint
        .joined(&["a", "b"], RowOrder::Stacked)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("layers \"a\" and \"b\"") && error.contains("K = 64 and 32"),
        "{error}"
    );
}

const EXPERTS: usize = 3;
const ROWS: usize = 16;

/// Experts with tensors of their own, `m.experts.0.gate`.
fn apart(dialect: Dialect) -> Tensors {
    let parts = |expert: usize| {
        ["gate", "up"].into_iter().zip(0..).map(move |(part, at)| {
            let name = format!("m.experts.{expert}.{part}");
            layer(1 + 2 * expert as u64 + at, ROWS, &name, dialect)
        })
    };
    (0..EXPERTS).flat_map(parts).flatten().collect()
}

/// The same experts, stacked in one tensor of each part.
fn stacked(name: &str, parts: &[u64], between: char, transpose: bool) -> Tensors {
    let dialect = Dialect::ModelOpt;
    let (mut codes, mut scales, mut globals) = (Vec::new(), Vec::new(), Vec::new());
    let rows = ROWS * parts.len();
    for expert in 0..EXPERTS as u64 {
        let layers = parts
            .iter()
            .map(|at| random(1 + 2 * expert + at, ROWS, dialect));
        let layers: Vec<Quantized> = layers.collect();
        let add = |all: &mut Vec<u8>, bytes: Vec<u8>| {
            let columns = bytes.len() / rows;
            match transpose {
                true => all.extend((0..bytes.len()).map(|i| bytes[i % rows * columns + i / rows])),
                false => all.extend(bytes),
            }
        };
        globals.push(layers[0].global.stored());
        let of =
            |bytes: fn(&Quantized) -> &[u8]| layers.iter().map(bytes).collect::<Vec<_>>().concat();
        add(&mut codes, of(|layer| &layer.codes));
        add(&mut scales, of(|layer| &layer.scales));
    }
    let shape = |columns: usize| match transpose {
        true => [EXPERTS, columns, rows],
        false => [EXPERTS, rows, columns],
    };
    let of = |suffix: &str| format!("{name}{between}{suffix}");
    let codes_name = if between == '.' {
        of("weight")
    } else {
        name.to_owned()
    };
    vec![
        (codes_name, NewTensor::new(Dtype::U8, &shape(K / 2), codes)),
        (
            of("weight_scale"),
            NewTensor::new(Dtype::F8_E4M3, &shape(K / 16), scales),
        ),
        (
            of("weight_scale_2"),
            NewTensor::f32(&[EXPERTS, 1], &globals),
        ),
        (of("input_scale"), NewTensor::f32(&[], &[1.0])),
    ]
}

#[test]
fn experts_are_matrices_however_they_are_stored() {
    for dialect in Dialect::ALL {
        let (_directory, checkpoint) = open(apart(dialect));
        let both = checkpoint
            .experts("m.experts", &["gate", "up"], RowOrder::Stacked)
            .unwrap();
        let dims = Dims {
            m: 2 * ROWS,
            n: 1,
            k: K,
            l: EXPERTS,
        };
        assert_eq!(both.shape(), Shape::new(dims).unwrap());
        assert_eq!(both.row_alpha().unwrap().len(), EXPERTS * 2 * ROWS);
        let layer =
            |expert: usize, part: &str| product(&checkpoint, &format!("m.experts.{expert}.{part}"));
        for (expert, y) in products(&both).iter().enumerate() {
            same(y, &[layer(expert, "gate"), layer(expert, "up")].concat());
        }
        let turns = checkpoint
            .experts("m.experts.", &["gate", "up"], RowOrder::Interleaved)
            .unwrap();
        for (expert, y) in products(&turns).iter().enumerate() {
            let pairs = layer(expert, "gate").into_iter().zip(layer(expert, "up"));
            same(
                y,
                &pairs.flat_map(|(gate, up)| [gate, up]).collect::<Vec<_>>(),
            );
        }
    }
    // As Llama-4's are named, and with dots; rows of matrices as rows or as columns of the tensor.
    let dialect = Dialect::ModelOpt;
    let (_directory, checkpoint) = open(apart(dialect));
    let gate = checkpoint
        .experts("m.experts", &["gate"], RowOrder::Stacked)
        .unwrap();
    let both = checkpoint
        .experts("m.experts", &["gate", "up"], RowOrder::Interleaved)
        .unwrap();
    for (between, transpose) in [('_', false), ('_', true), ('.', false), ('.', true)] {
        let mut tensors = stacked("m.experts.gate", &[0], between, transpose);
        tensors.extend(stacked("m.experts.up", &[1], between, transpose));
        let (_directory, checkpoint) = open(tensors);
        let found = checkpoint
            .experts("m.experts", &["gate"], RowOrder::Stacked)
            .unwrap();
        let (is, expected) = (found.gather(), gate.gather());
        assert_eq!(
            (is.codes(), is.scales()),
            (expected.codes(), expected.scales())
        );
        assert_eq!(
            (is.global(), is.row_alpha()),
            (expected.global(), expected.row_alpha())
        );
        assert_eq!(products(&found), products(&gate));
        // Nothing is copied where the tensor is the array.
        let files = checkpoint.files();
        let name = if between == '.' {
            "m.experts.gate.weight"
        } else {
            "m.experts.gate"
        };
        let in_file = files[0].get(name).unwrap().bytes().as_ptr();
        assert_eq!(is.codes().as_ptr() == in_file, !transpose);
        let found = checkpoint
            .experts("m.experts", &["gate", "up"], RowOrder::Interleaved)
            .unwrap();
        assert_eq!(products(&found), products(&both));
    }
}

#[test]
fn experts_that_are_missing_or_differ_are_errors() {
    let dialect = Dialect::ModelOpt;
    let error = |tensors: Tensors, parts: &[&str]| {
        let (_directory, checkpoint) = open(tensors);
        checkpoint
            .experts("m.experts", parts, RowOrder::Stacked)
            .unwrap_err()
    };
    let without = |name: &str| {
        let mut tensors = apart(dialect);
        tensors.retain(|(tensor, _)| !tensor.starts_with(name));
        tensors
    };
    for missing in ["m.experts.1.", "m.experts.0.", "m.experts.2.up"] {
        let error = error(without(missing), &["gate", "up"]);
        let is =
            matches!(&error, CheckpointError::NoLayer { layer, .. } if layer.starts_with(missing));
        assert!(is, "{error}");
    }
    // A number of no expert that there is.
    let mut tensors = apart(dialect);
    tensors.extend(layer(
        1,
        ROWS,
        "m.experts.18446744073709551615.gate",
        dialect,
    ));
    let error_of = error(tensors, &["gate"]);
    assert!(
        error_of.to_string().contains("m.experts.3.gate"),
        "{error_of}"
    );
    let none: [&str; 0] = [];
    let mut last = apart(dialect);
    last.push((
        "m.experts.18446744073709551615.x".into(),
        NewTensor::f32(&[1], &[0.0]),
    ));
    for tensors in [
        last,
        apart(dialect),
        stacked("m.experts.gate", &[0], '_', false),
    ] {
        assert!(matches!(
            error(tensors, &none),
            CheckpointError::Join { .. }
        ));
    }
    // One layer is no experts, and neither are those that are not quantised.
    let one = layer(1, ROWS, "m.experts.one", dialect);
    let one = error(one, &["one"]);
    assert!(matches!(one, CheckpointError::Join { .. }), "{one}");
    let plain = NewTensor::new(Dtype::BF16, &[2, 16, 16], vec![0; 1024]);
    let plain = error(vec![("m.experts.up".into(), plain)], &["up"]);
    assert!(matches!(plain, CheckpointError::NotNvfp4 { .. }), "{plain}");
    let nothing = error(apart(dialect), &["down"]);
    assert!(
        matches!(nothing, CheckpointError::NoLayer { .. }),
        "{nothing}"
    );

    let change = |name: &str, new: Option<NewTensor<'static>>| {
        let mut tensors = stacked("m.experts.gate", &[0], '_', false);
        tensors.retain(|(tensor, _)| tensor != name);
        tensors.extend(new.map(|tensor| (name.to_owned(), tensor)));
        error(tensors, &["gate"])
    };
    let of = |suffix: &str| format!("m.experts.gate_{suffix}");
    for (name, new) in [
        (
            of("weight_scale"),
            Some(NewTensor::new(
                Dtype::F8_E4M3,
                &[EXPERTS, ROWS, 2],
                vec![0; EXPERTS * ROWS * 2],
            )),
        ),
        (of("weight_scale_2"), Some(NewTensor::f32(&[2], &[1.0; 2]))),
        (of("weight_scale_2"), Some(NewTensor::f32(&[], &[0.0]))),
        (of("weight_scale_2"), None),
    ] {
        let error = change(&name, new);
        assert!(
            matches!(error, CheckpointError::File(_)) && error.to_string().contains(&name),
            "{error}"
        );
    }
    for (suffix, kind) in [
        ("pre_quant_scale", "[64] or [3, 64]"),
        ("other", "not known here"),
    ] {
        let error = change(&of(suffix), Some(NewTensor::f32(&[1], &[1.0]))).to_string();
        assert!(error.contains(kind) && error.contains(suffix), "{error}");
    }
    // A scale that is NaN is found when all are read.
    let mut tensors = stacked("m.experts.gate", &[0], '_', false);
    tensors[1].1.bytes.to_mut()[5] = 0x7f;
    let (_directory, checkpoint) = open(tensors);
    let joined = checkpoint
        .experts("m.experts", &["gate"], RowOrder::Stacked)
        .unwrap();
    assert!(joined.gather().weights().is_err());
    // Two parts, of which one has fewer experts.
    let mut tensors = stacked("m.experts.gate", &[0], '_', false);
    tensors.push((
        "m.experts.up".into(),
        NewTensor::new(Dtype::U8, &[2, ROWS, K / 2], vec![0; ROWS * K]),
    ));
    let scales = NewTensor::new(
        Dtype::F8_E4M3,
        &[2, ROWS, K / 16],
        vec![0; 2 * ROWS * K / 16],
    );
    tensors.push(("m.experts.up_weight_scale".into(), scales));
    tensors.push((
        "m.experts.up_weight_scale_2".into(),
        NewTensor::f32(&[], &[1.0]),
    ));
    let error = error(tensors, &["gate", "up"]).to_string();
    assert!(
        error.contains("3 and 2 experts") && error.contains("m.experts.up"),
        "{error}"
    );
}

/// Factors of columns that experts have each, or all of them: the product is that of the vectors times those of its
/// expert. Factors of another expert would give another product, as they differ.
#[test]
fn experts_have_factors_of_columns() {
    let dialect = Dialect::ModelOpt;
    let factors = |expert: usize| (0..K).map(move |k| 0.5 + (expert * K + k) as f32 / 64.0);
    let each: Vec<f32> = (0..EXPERTS).flat_map(factors).collect();
    let listed = |of: &dyn Fn(usize) -> Option<usize>| {
        let mut tensors = apart(dialect);
        for expert in 0..EXPERTS {
            let alpha: Option<Vec<f32>> = of(expert).map(|of| factors(of).collect());
            for part in ["gate", "up"] {
                let name = format!("m.experts.{expert}.{part}.pre_quant_scale");
                tensors.extend(
                    alpha
                        .iter()
                        .map(|alpha| (name.clone(), NewTensor::f32(&[K], alpha))),
                );
            }
        }
        tensors
    };
    let in_one = |shape: &[usize], alpha: &[f32]| {
        let mut tensors = stacked("m.experts.gate", &[0], '_', false);
        let alpha = NewTensor::f32(shape, alpha);
        tensors.push(("m.experts.gate_pre_quant_scale".into(), alpha));
        tensors
    };
    let shared: Vec<f32> = factors(1).collect();
    // An expert without factors has ones.
    let some = [vec![1.0; K], shared.clone(), vec![1.0; K]].concat();
    for (tensors, parts, expected) in [
        (listed(&Some), &["gate", "up"][..], &each),
        (listed(&|_| Some(1)), &["gate", "up"], &shared),
        (
            listed(&|expert| (expert == 1).then_some(1)),
            &["gate"],
            &some,
        ),
        (in_one(&[EXPERTS, K], &each), &["gate"], &each),
        (in_one(&[EXPERTS, 1, K], &each), &["gate"], &each),
        (in_one(&[K], &shared), &["gate"], &shared),
    ] {
        let (_directory, checkpoint) = open(tensors);
        let joined = checkpoint.experts("m.experts", parts, RowOrder::Stacked);
        let joined = joined.unwrap().gather();
        assert_eq!(joined.column_alpha(), Some(&expected[..]));
        let (of, weights) = (joined.shape(), joined.weights().unwrap());
        let ids = [2, 0, -1, 1];
        let shape = Shape::new(Dims {
            m: of.m(),
            n: 2,
            k: K,
            l: ids.len(),
        })
        .unwrap();
        let selected = weights.select(&ids).unwrap();
        let mut rng = fastrand::Rng::with_seed(5);
        let all: Vec<f32> = (0..ids.len() * 2 * K).map(|_| rng.f32() - 0.5).collect();
        // A vector for each batch, and the same for all.
        for is_shared in [false, true] {
            let step = if is_shared { 0 } else { 2 * K };
            let strides = Strides {
                row: K,
                batch: step,
            };
            let x = &all[..if is_shared { 2 * K } else { all.len() }];
            let vectors = Vectors::F32(DenseVectors::new(x).with_strides(strides));
            let reference = reference::gemv(&shape, &selected, &vectors).unwrap();
            let mut y = vec![0.0f32; ids.len() * 2 * of.m()];
            gemv(
                &shape,
                &selected,
                &vectors,
                Output::of(&mut y),
                &Options::new().path(GemvPath::Cpu),
            )
            .unwrap();
            // The result where the factors are multiplied first, of weights without them.
            let plain = joined.weights().unwrap().without_column_alpha();
            for (batch, id) in ids.into_iter().enumerate() {
                let Ok(matrix) = usize::try_from(id) else {
                    assert!(
                        y[batch * 2 * of.m()..][..2 * of.m()]
                            .iter()
                            .all(|y| *y == 0.0)
                    );
                    continue;
                };
                let alpha = if expected.len() == K {
                    &expected[..]
                } else {
                    &expected[matrix * K..][..K]
                };
                let x = &x[batch * step..][..2 * K];
                let scaled: Vec<f32> = x
                    .iter()
                    .enumerate()
                    .map(|(at, x)| x * alpha[at % K])
                    .collect();
                let one = Shape::new(Dims {
                    m: of.m(),
                    n: 2,
                    k: K,
                    l: 1,
                })
                .unwrap();
                let ids = [id];
                let of_one = plain.select(&ids).unwrap();
                let mut expected = vec![0.0f32; 2 * of.m()];
                let output = Output::of(&mut expected);
                gemv(
                    &one,
                    &of_one,
                    &Vectors::of(&scaled),
                    output,
                    &Options::new().path(GemvPath::Cpu),
                )
                .unwrap();
                let got = &y[batch * 2 * of.m()..][..2 * of.m()];
                assert_eq!(got, expected, "expert {id}, shared {is_shared}");
                let truth = &reference.y[batch * 2 * of.m()..][..2 * of.m()];
                for (got, truth) in got.iter().zip(truth) {
                    assert!(
                        (f64::from(*got) - truth).abs() < 1e-3 * (1.0 + truth.abs()),
                        "{got} {truth}"
                    );
                }
            }
        }
    }
    // Parts of one matrix have one vector.
    let mut differ = listed(&|_| Some(0));
    let other: Vec<f32> = factors(2).collect();
    differ.retain(|(name, _)| name != "m.experts.1.up.pre_quant_scale");
    differ.push((
        "m.experts.1.up.pre_quant_scale".into(),
        NewTensor::f32(&[K], &other),
    ));
    let (_directory, checkpoint) = open(differ);
    let error = checkpoint.experts("m.experts", &["gate", "up"], RowOrder::Stacked);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("experts.1.up") && error.contains("one vector is for all"),
        "{error}"
    );
    checkpoint
        .experts("m.experts", &["up"], RowOrder::Stacked)
        .unwrap();
}

/// A destination in host memory whose copies happen when their end is waited for, as a device's may: a buffer that is
/// written before would show.
struct Late {
    /// Of each joined weights.
    arrays: Vec<[Vec<u8>; 2]>,
    under_way: VecDeque<(Piece, Box<[u8]>)>,
    /// The pieces that began.
    begun: Vec<Piece>,
    most_under_way: usize,
    /// The number of the piece whose copy does not begin, or does not end.
    fails: [Option<usize>; 2],
    ended: usize,
    /// Where read-ahead is looked at, the bytes asked for a buffer must reach before the first end.
    wants_reads: usize,
}

/// How often a buffer's bytes were asked for.
static READS: AtomicUsize = AtomicUsize::new(0);

impl Late {
    fn new(all: &[Joined<'_>]) -> Self {
        let arrays = all.iter().map(|joined| {
            let shape = joined.shape();
            let scales = shape.weight_scale_bytes(ScaleLayout::Linear);
            [vec![0xee; shape.weight_code_bytes()], vec![0xee; scales]]
        });
        Self {
            arrays: arrays.collect(),
            under_way: VecDeque::new(),
            begun: Vec::new(),
            most_under_way: 0,
            fails: [None; 2],
            ended: 0,
            wants_reads: 0,
        }
    }
}

impl Pieces for Late {
    type Buffer = Box<[u8]>;
    type Error = &'static str;

    fn bytes(buffer: &mut Self::Buffer) -> Result<&mut [u8], Self::Error> {
        READS.fetch_add(1, Ordering::SeqCst);
        match buffer.first() {
            Some(0xbd) => Err("a buffer is broken"),
            _ => Ok(buffer),
        }
    }

    fn begin(&mut self, piece: Piece, buffer: Self::Buffer) -> Result<(), Self::Error> {
        if self.fails[0] == Some(self.begun.len()) {
            return Err("a copy does not begin");
        }
        self.begun.push(piece);
        self.under_way.push_back((piece, buffer));
        self.most_under_way = self.most_under_way.max(self.under_way.len());
        Ok(())
    }

    fn end(&mut self) -> Option<Result<Self::Buffer, Self::Error>> {
        let (piece, mut buffer) = self.under_way.pop_front()?;
        let start = Instant::now();
        while READS.load(Ordering::SeqCst) < self.wants_reads {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "nothing is read ahead"
            );
            std::thread::yield_now();
        }
        let array = &mut self.arrays[piece.of][usize::from(piece.of_scales)];
        array[piece.at..piece.at + piece.bytes].copy_from_slice(&buffer[..piece.bytes]);
        buffer.fill(0x55);
        self.ended += 1;
        Some(match self.fails[1] == Some(self.ended - 1) {
            true => Err("a copy does not end"),
            false => Ok(buffer),
        })
    }
}

#[test]
fn every_piece_arrives_in_bounded_memory_and_all_copies_end_after_an_error() {
    let buffers = |count: usize, bytes: usize| vec![vec![0u8; bytes].into_boxed_slice(); count];
    let dialect = Dialect::ModelOpt;
    let (_directory, listed) = open(apart(dialect));
    let (_other, transposed) = open(stacked("m.experts.gate_up", &[0, 1], '_', true));
    let all = [
        listed
            .experts("m.experts", &["gate", "up"], RowOrder::Stacked)
            .unwrap(),
        listed
            .experts("m.experts", &["gate", "up"], RowOrder::Interleaved)
            .unwrap(),
        transposed
            .experts("m.experts", &["gate_up"], RowOrder::Stacked)
            .unwrap(),
    ];
    let gathered: Vec<_> = all.iter().map(Joined::gather).collect();
    // A row of codes has 32 bytes. 50 are one row of codes, and 12 of scales.
    for (count, bytes) in [(1, 50), (2, 32), (3, 200), (4, 33), (16, 64), (5, 1 << 20)] {
        for sent in [&all[..], &all[1..2], &[]] {
            let first = sent.first().map_or(0, |first| {
                all.iter().position(|of| std::ptr::eq(of, first)).unwrap()
            });
            let gathered = &gathered[first..first + sent.len()];
            let total: usize = (gathered.iter())
                .map(|of| of.codes().len() + of.scales().len())
                .sum();
            let mut to = Late::new(sent);
            let mut progress = Vec::new();
            let mut buffers = buffers(count, bytes);
            Joined::send(sent, &mut buffers, &mut to, |arrived, all| {
                progress.push((arrived, all));
            })
            .unwrap();
            assert_eq!(buffers.len(), count, "they are there again");
            for (found, gathered) in to.arrays.iter().zip(gathered) {
                assert_eq!(found[0], gathered.codes());
                assert_eq!(found[1], gathered.scales());
            }
            assert!(to.most_under_way <= (count / 2).max(1));
            // Each byte once: threads may read them in another order.
            let sum: usize = to.begun.iter().map(|piece| piece.bytes).sum();
            assert_eq!(sum, total);
            assert!(to.begun.iter().all(|piece| piece.bytes <= bytes));
            if count <= 2 {
                let place = |piece: &Piece| (piece.of, piece.of_scales, piece.at);
                assert!(to.begun.is_sorted_by_key(place), "one thread reads");
            }
            assert_eq!(progress.len(), to.begun.len());
            assert!(
                progress.is_sorted() && progress.last().is_none_or(|last| *last == (total, total)),
                "{progress:?}"
            );
        }
    }
    let one = &all[..1];
    // Before the first copy ends, the other buffers have been read into: four were asked for their length, and four more
    // times for bytes to read into.
    READS.store(0, Ordering::SeqCst);
    let mut to = Late::new(one);
    to.wants_reads = 8;
    Joined::send(one, &mut buffers(4, 32), &mut to, |_, _| {}).unwrap();
    // Errors at any piece, of either side.
    for at in [0, 1, 5] {
        for side in [0, 1] {
            let mut to = Late::new(one);
            to.fails[side] = Some(at);
            let error = Joined::send(one, &mut buffers(4, 32), &mut to, |_, _| {}).unwrap_err();
            let SendError::Destination(error) = error else {
                panic!("{error}");
            };
            assert_eq!(
                error,
                ["a copy does not begin", "a copy does not end"][side]
            );
            assert!(to.under_way.is_empty() && to.ended == to.begun.len());
        }
    }
    // Buffers that cannot be read into, that hold no row, and none: nothing is sent.
    let mut broken = buffers(2, 32);
    broken[1][0] = 0xbd;
    for (mut buffers, says) in [
        (broken, "broken"),
        (buffers(2, 31), "needs 32"),
        (buffers(0, 0), "needs 32"),
    ] {
        let mut to = Late::new(one);
        let error = Joined::send(one, &mut buffers, &mut to, |_, _| {}).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert!(to.begun.is_empty());
    }
}

/// Scales are looked at where they are read, since a device does not look: the error names the tensor.
#[test]
fn scales_that_are_nan_or_negative_are_not_sent() {
    let mut tensors = apart(Dialect::ModelOpt);
    let name = "m.experts.1.up.weight_scale";
    let bad = tensors.iter_mut().find(|(of, _)| of == name).unwrap();
    bad.1.bytes.to_mut()[K / 16 + 1] = 0x80;
    let (_directory, checkpoint) = open(tensors);
    for order in [RowOrder::Stacked, RowOrder::Interleaved] {
        let joined = checkpoint.experts("m.experts", &["gate", "up"], order);
        let joined = [joined.unwrap()];
        let mut to = Late::new(&joined);
        let mut buffers = vec![vec![0u8; 64].into_boxed_slice(); 4];
        let error = Joined::send(&joined, &mut buffers, &mut to, |_, _| {}).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, SendError::File(_)), "{text}");
        assert!(
            text.contains(name) && text.contains("row 1, block 1"),
            "{text}"
        );
        assert!(to.under_way.is_empty() && to.ended == to.begun.len());
        assert!(joined[0].gather().weights().is_err());
    }
}

/// Large files are mapped. What is sent of them is read, and not touched: a file that has become shorter is an error, and
/// does not end the process.
#[cfg(unix)]
#[test]
fn mapped_files_are_read_and_one_that_became_shorter_is_an_error() {
    let (rows, k) = (4096, 8704);
    let mut codes = vec![0u8; rows * k / 2];
    fastrand::Rng::with_seed(3).fill(&mut codes);
    assert!(codes.len() as u64 > nvfp4_gemv::file::READ_UP_TO);
    let scales = vec![0x38u8; rows * k / 16];
    let (directory, checkpoint) = open(vec![
        (
            "m.weight".into(),
            NewTensor::new(Dtype::U8, &[rows, k / 2], codes.clone()),
        ),
        (
            "m.weight_scale".into(),
            NewTensor::new(Dtype::F8_E4M3, &[rows, k / 16], scales.clone()),
        ),
        ("m.weight_scale_2".into(), NewTensor::f32(&[], &[1.0])),
    ]);
    let joined = [checkpoint.joined(&["m"], RowOrder::Stacked).unwrap()];
    let buffers = || vec![vec![0u8; 1 << 20].into_boxed_slice(); 8];
    let mut to = Late::new(&joined);
    Joined::send(&joined, &mut buffers(), &mut to, |_, _| {}).unwrap();
    assert!(to.arrays[0] == [codes, scales]);
    let file = std::fs::OpenOptions::new();
    let file = { file }
        .write(true)
        .open(directory.path().join("model.safetensors"))
        .unwrap();
    file.set_len(8 << 20).unwrap();
    let error = Joined::send(&joined, &mut buffers(), &mut to, |_, _| {}).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, SendError::File(_)) && text.contains("model.safetensors"),
        "{text}"
    );
    assert!(to.under_way.is_empty());
}

/// One shard of several does not have all experts.
#[test]
fn experts_in_another_file_are_not_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (here, there): (Tensors, Tensors) = apart(Dialect::ModelOpt)
        .into_iter()
        .partition(|(name, _)| !name.starts_with("m.experts.2."));
    let map = here
        .iter()
        .map(|(name, _)| (name, "a"))
        .chain(there.iter().map(|(name, _)| (name, "b")));
    let map = map.map(|(name, file)| (name.clone(), format!("{file}.safetensors").into()));
    let map: serde_json::Map<String, serde_json::Value> = map.collect();
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(at("model.safetensors.index.json"), index).unwrap();
    file::write(&at("a.safetensors"), here, None).unwrap();
    file::write(&at("b.safetensors"), there, None).unwrap();
    let experts = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        checkpoint
            .experts("m.experts", &["gate"], RowOrder::Stacked)
            .map(|of| of.shape().l())
    };
    assert_eq!(experts(directory.path()).unwrap(), EXPERTS);
    let error = experts(&at("a.safetensors")).unwrap_err();
    let elsewhere = |error| matches!(error, CheckpointError::Elsewhere { opened: false, .. });
    assert!(elsewhere(error));
    let checkpoint = Arc::new(Checkpoint::open(at("a.safetensors")).unwrap());
    let (order, parts) = (RowOrder::Stacked, &["gate", "up"]);
    let error = Experts::from_checkpoint(&checkpoint, "m.experts", parts, order, "down");
    assert!(elsewhere(error.unwrap_err()));
}

/// Tensors of stacks are named with `_`, too: one in a file that is not open may change every product.
#[test]
fn tensors_of_stacks_in_another_file_are_not_forgotten() {
    let mx = || {
        let codes = NewTensor::new(Dtype::U8, &[EXPERTS, 2, 1, 16], vec![0; EXPERTS * 32]);
        let scales = NewTensor::new(Dtype::U8, &[EXPERTS, 2, 1], vec![127; EXPERTS * 2]);
        vec![
            ("m.experts.up_blocks".to_owned(), codes),
            ("m.experts.up_scales".to_owned(), scales),
        ]
    };
    let dense = || {
        let all = NewTensor::f32(&[EXPERTS, 2, 16], &[0.0; EXPERTS * 32]);
        vec![("m.experts.up".to_owned(), all)]
    };
    for (kind, here) in [
        ("NVFP4", stacked("m.experts.up", &[1], '_', false)),
        ("MXFP4", mx()),
        ("dense", dense()),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        file::write(&at("a.safetensors"), here, None).unwrap();
        let error = |other: &str| {
            let index = serde_json::json!({ "weight_map": { "x": "a.safetensors", other: "b.safetensors" } });
            std::fs::write(at("model.safetensors.index.json"), index.to_string()).unwrap();
            let checkpoint = Checkpoint::open(at("a.safetensors")).unwrap();
            let name = "m.experts.up";
            let opened = match kind {
                "NVFP4" => checkpoint
                    .experts("m.experts", &["up"], RowOrder::Stacked)
                    .map(|_| ()),
                "MXFP4" => checkpoint.mxfp4(name).map(|_| ()),
                _ => checkpoint.dense_experts(name).map(|_| ()),
            };
            let modules = checkpoint.modules();
            let module = modules.iter().find(|module| module.name() == name).unwrap();
            let is_refused = matches!(module.kind(), ModuleKind::Refused(_));
            assert_eq!(is_refused, opened.is_err(), "{kind} {other}");
            opened.err()
        };
        assert!(error("m.down").is_none(), "{kind}");
        for other in ["up_pre_quant_scale", "up_lora_a", "up_bias"] {
            let error = error(&format!("m.experts.{other}"));
            assert!(
                matches!(error, Some(CheckpointError::Elsewhere { .. })),
                "{kind} {other}: {error:?}"
            );
        }
    }
}
