//! Problem files: there and back, and every way in which one can be wrong.

use nvfp4_gemv::file::FileError;
use nvfp4_gemv::{Dims, Error, Options, Output, ScaleLayout, Shape, Vectors, gemv};
use nvfp4_gemv_cli::file::{self, NewTensor, WriteError};
use nvfp4_gemv_cli::problem::Problem;
use safetensors::Dtype;

fn shape(m: usize, n: usize, k: usize, l: usize) -> Shape {
    Shape::new(Dims { m, n, k, l }).unwrap()
}

fn sample() -> Problem {
    let mut p = Problem::full_range(shape(3, 2, 48, 2), 1).with_row_alpha(2);
    p.c = Some(p.reference().unwrap().y);
    p
}

#[test]
fn there_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("problem.safetensors");
    let full = sample();
    let plain = Problem::contest(Shape::matrix(1, 16).unwrap(), 1);
    let one_alpha = Problem::full_range(Shape::matrix(4, 32).unwrap(), 1);
    let empty = Problem::contest(shape(0, 1, 16, 2), 1);
    for problem in [full, plain, one_alpha, empty] {
        problem.write(&path).unwrap();
        assert_eq!(Problem::read(&path).unwrap(), problem);
    }
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

/// The tensors of a good file, to be spoilt one at a time.
fn tensors() -> Tensors {
    let p = sample();
    [
        ("a", NewTensor::new(Dtype::U8, &[2, 3, 24], p.a)),
        ("sfa", NewTensor::new(Dtype::F8_E4M3, &[2, 3, 3], p.sfa)),
        ("b", NewTensor::new(Dtype::U8, &[2, 2, 24], p.b)),
        ("sfb", NewTensor::new(Dtype::F8_E4M3, &[2, 2, 3], p.sfb)),
        ("alpha", NewTensor::f32(&[3], &p.alpha.unwrap())),
        ("c", NewTensor::f64(&[2, 2, 3], &p.c.unwrap())),
    ]
    .into_iter()
    .map(|(name, t)| (name.to_owned(), t))
    .collect()
}

type Tensors = Vec<(String, NewTensor<'static>)>;

/// Reading says all of this after `spoil`, and the file's name.
fn says(expected: &[&str], spoil: impl FnOnce(&mut Tensors)) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spoilt.safetensors");
    let mut tensors = tensors();
    spoil(&mut tensors);
    file::write(&path, tensors, None).unwrap();
    let message = Problem::read(&path).unwrap_err().to_string();
    for part in expected.iter().chain(&["spoilt.safetensors"]) {
        assert!(message.contains(part), "{message}");
    }
}

fn tensor<'a>(tensors: &'a mut Tensors, name: &str) -> &'a mut NewTensor<'static> {
    &mut tensors.iter_mut().find(|(n, _)| n == name).unwrap().1
}

#[test]
fn wrong_tensors_are_named_with_what_was_expected() {
    for name in ["a", "sfa", "b", "sfb"] {
        let missing = format!("no tensor {name:?}");
        says(&[&missing], |t| t.retain(|(n, _)| n != name));
        let other_type = format!("tensor {name:?} is I8");
        says(&[&other_type], |t| tensor(t, name).dtype = Dtype::I8);
    }
    for (name, shape, expected) in [
        ("a", &[6, 24][..], "is U8 [6, 24]; expected U8 [L, M, K/2]"),
        ("sfa", &[2, 9, 1], "expected F8_E4M3 [2, 3, 3]"),
        ("b", &[2, 4, 12], "expected U8 [2, 4, 24]"),
        ("c", &[2, 3, 2], "expected F64 [2, 2, 3]"),
        ("a", &[2, 12, 6], "K = 12 is not a multiple of 16"),
    ] {
        says(&[expected], |t| tensor(t, name).shape = shape.to_vec());
    }
    says(&["expected F32 [1] or [3]"], |t| {
        *tensor(t, "alpha") = NewTensor::f32(&[2], &[1.0, 1.0]);
    });
}

#[test]
fn bad_content_is_named() {
    let nan = "batch 1, row 0, block 1 is NaN";
    says(&["\"sfa\"", nan], |t| {
        tensor(t, "sfa").bytes.to_mut()[10] = 0x7f;
    });
    let negative = "row 1, block 1 is negative";
    says(&["\"sfb\"", negative], |t| {
        tensor(t, "sfb").bytes.to_mut()[4] = 0x80;
    });
    says(&["\"alpha\"", "element 1"], |t| {
        *tensor(t, "alpha") = NewTensor::f32(&[3], &[1.0, f32::NAN, 1.0]);
    });
    for alpha in [-1.0, 0.0, 1e-40, f32::INFINITY] {
        says(&["\"alpha\"", "not usable as a scale"], |t| {
            *tensor(t, "alpha") = NewTensor::f32(&[1], &[alpha]);
        });
    }
}

/// One number for all rows, or one for each: nothing else is taken for a number.
#[test]
fn an_alpha_of_another_length_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("problem.safetensors");
    for got in [0, 2, 4, 6] {
        let mut problem = sample();
        problem.alpha = Some(vec![1.0; got]);
        let says = problem.reference().unwrap_err();
        assert_eq!(says, Error::AlphaLength { got, rows: 3 });
        let says = problem.write(&path).unwrap_err().to_string();
        assert!(says.contains(&format!("alpha: {got} elements")), "{says}");
        assert!(!path.exists());
    }
}

/// A problem that can be read can be computed, and a problem whose computation is refused is refused when it is read.
#[test]
fn reading_and_computing_refuse_the_same_alphas() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("problem.safetensors");
    let least = f32::MIN_POSITIVE;
    for rows in [1, 3] {
        for alpha in [f32::from_bits(1), 1e-40, least, 1.0, f32::MAX] {
            let mut problem = Problem::contest(Shape::matrix(rows, 16).unwrap(), 1);
            problem.alpha = Some(vec![alpha]);
            problem.write(&path).unwrap();
            let compute = || {
                let (x, mut y) = ([1.0; 16], [0.0; 3]);
                let weights = problem.weights(ScaleLayout::Linear)?;
                let output = Output::of(&mut y[..rows]);
                let (x, options) = (Vectors::of(&x), Options::new());
                gemv(&problem.shape, &weights.view()?, &x, output, &options)
            };
            let computed = compute();
            let read = Problem::read(&path);
            assert_eq!(read.is_ok(), computed.is_ok(), "{rows} rows, {alpha:e}");
            // A single row's alpha is a row's: any finite number.
            assert_eq!(read.is_ok(), alpha >= least || rows == 1, "{alpha:e}");
        }
    }
}

#[test]
fn padded_vectors_of_wrong_fields_are_errors() {
    let good = sample();
    for layout in ScaleLayout::ALL {
        good.padded_vectors(layout, 1).unwrap();
        let (mut codes, mut scales) = (good.clone(), good.clone());
        codes.b.pop();
        scales.sfb.clear();
        for (bad, of) in [(codes, "vector codes"), (scales, "vector scales")] {
            let error = bad.padded_vectors(layout, 1).unwrap_err();
            assert!(
                matches!(error, Error::BufferTooShort { operand, .. } if operand == of),
                "{error}"
            );
        }
        // 128 rows of each of these batches are beyond counting, one is not.
        let mut large = good.clone();
        large.shape = shape(0, 1, 1 << 28, 1 << 30);
        let error = large.padded_vectors(layout, 1).unwrap_err();
        assert!(matches!(error, Error::SizeOverflow { .. }), "{error}");
    }
}

#[test]
fn missing_truncated_and_hostile_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.safetensors");
    assert!(matches!(Problem::read(&path), Err(FileError::Read { .. })));
    assert!(matches!(
        Problem::read(dir.path()),
        Err(FileError::NotRegular {
            found: "a directory",
            ..
        })
    ));

    sample().write(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    for length in 0..good.len() {
        std::fs::write(&path, &good[..length]).unwrap();
        assert!(
            Problem::read(&path).is_err(),
            "{length} of {} bytes",
            good.len()
        );
    }
    // Any header byte changed: an error or, rarely, a file that means something; never a panic.
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for at in 0..header {
        for bit in [0x01, 0x02, 0x10, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= bit;
            std::fs::write(&path, &bad).unwrap();
            let _ = Problem::read(&path);
        }
    }
}

#[test]
fn writing_leaves_what_was_there_when_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept");
    std::fs::write(&path, "before").unwrap();
    let mut problem = sample();
    problem.sfa.pop();
    assert!(matches!(
        problem.write(&path),
        Err(WriteError::Write { .. })
    ));
    assert_eq!(std::fs::read(&path).unwrap(), b"before");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);

    let error = sample().write(dir.path().join("no/p")).unwrap_err();
    assert!(
        error.to_string().contains("there is no directory"),
        "{error}"
    );
}
