//! Operands that the safe API refuses, one by one. Nothing that a caller can pass panics.

use half::f16;
use nvfp4_gemv::{
    Choice, DenseVectors, Error, GlobalScale, Nvfp4Vectors, Options, Output, ScaleLayout, Shape,
    Strides, VectorScale, Vectors, Weights,
};
use proptest::prelude::*;

use crate::support::sized;

crate::trials! {
    host:
        short_codes,
        short_scales_name_the_padding_of_the_layout,
        a_layout_that_contradicts_the_length,
        bad_scales_are_named_by_batch_row_and_block,
        padding_of_the_scales_may_hold_anything,
        global_scales,
        row_alphas,
        short_outputs_and_vectors,
        buffers_that_go_on_behind_the_shape,
        padding_behind_the_last_vector_may_be_there_or_not,
        padding_behind_the_last_scales_may_be_there_or_not,
        nothing_to_compute,
        nvfp4_vectors,
        small_strides_of_dense_vectors,
        weights_of_another_shape,
        nothing_panics;
}

/// `nvfp4_gemv::gemv`, whatever the environment of the tests asks for.
fn gemv(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
) -> nvfp4_gemv::Result<Choice> {
    let options = Options::new().without_environment();
    nvfp4_gemv::gemv(shape, weights, vectors, output, &options)
}

const LINEAR: ScaleLayout = ScaleLayout::Linear;
const TILED: ScaleLayout = ScaleLayout::Tiled128x4;
const M: usize = 130;
const K: usize = 80;
const L: usize = 2;
const BLOCKS: usize = K / 16;

fn shape() -> Shape {
    sized(M, 2, K, L)
}

fn codes() -> Vec<u8> {
    vec![0x22; shape().weight_code_bytes()]
}

fn scales(layout: ScaleLayout) -> Vec<u8> {
    vec![0x38; shape().weight_scale_bytes(layout)]
}

fn weights_error(codes: &[u8], scales: &[u8], layout: ScaleLayout, global: GlobalScale) -> Error {
    Weights::new(&shape(), codes, scales, layout, global).unwrap_err()
}

fn short_codes() {
    let (codes, scales) = (codes(), scales(LINEAR));
    let error = weights_error(&codes[1..], &scales, LINEAR, GlobalScale::ONE);
    assert_eq!(
        error.to_string(),
        "weight codes: 10399 bytes are too short, the shape needs 10400"
    );
}

fn short_scales_name_the_padding_of_the_layout() {
    for layout in ScaleLayout::ALL {
        let scales = scales(layout);
        let short = &scales[..scales.len() - 1];
        let error = weights_error(&codes(), short, layout, GlobalScale::ONE);
        assert!(
            matches!(error, Error::BufferTooShort { operand: "weight scales", needed, got, .. }
                if needed == scales.len() && got == short.len()),
            "{error}"
        );
        let says_padding = error
            .to_string()
            .contains("130 rows to 256, 5 scales a row to 8");
        assert_eq!(says_padding, layout == TILED, "{error}");
    }
}

fn a_layout_that_contradicts_the_length() {
    for (tagged, fits) in [(LINEAR, TILED), (TILED, LINEAR)] {
        let error = weights_error(&codes(), &scales(fits), tagged, GlobalScale::ONE);
        let contradiction = Error::LayoutContradiction {
            operand: "weight scales",
            tagged,
            needed: scales(tagged).len(),
            got: scales(fits).len(),
            fits,
        };
        assert_eq!(error, contradiction);
    }
}

fn bad_scales_are_named_by_batch_row_and_block() {
    for layout in ScaleLayout::ALL {
        for (batch, row, block) in [(0, 0, 0), (0, 127, 4), (1, 129, 3)] {
            let at = batch * layout.bytes(M, BLOCKS) + layout.offset(row, block, BLOCKS);
            let error = |code| {
                let mut scales = scales(layout);
                scales[at] = code;
                weights_error(&codes(), &scales, layout, GlobalScale::ONE)
            };
            let operand = "weight scales";
            for code in [0x7f, 0xff] {
                let nan = Error::ScaleNan {
                    operand,
                    batch,
                    row,
                    block,
                };
                assert_eq!(error(code), nan);
            }
            for code in [0x80, 0xb8, 0xfe] {
                let negative = Error::ScaleNegative {
                    operand,
                    batch,
                    row,
                    block,
                    code,
                };
                assert_eq!(error(code), negative);
            }
        }
    }
}

fn padding_of_the_scales_may_hold_anything() {
    let layout = TILED;
    let mut scales = vec![0xff; shape().weight_scale_bytes(layout)];
    for batch in 0..L {
        for row in 0..M {
            for block in 0..BLOCKS {
                let at = batch * layout.bytes(M, BLOCKS) + layout.offset(row, block, BLOCKS);
                scales[at] = 0x38;
            }
        }
    }
    Weights::new(&shape(), &codes(), &scales, layout, GlobalScale::ONE).unwrap();
}

fn global_scales() {
    let (codes, scales) = (codes(), scales(LINEAR));
    for value in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for global in [GlobalScale::Multiplier(value), GlobalScale::Divisor(value)] {
            match weights_error(&codes, &scales, LINEAR, global) {
                Error::GlobalScale { operand, .. } => assert_eq!(operand, "weight global scale"),
                other => panic!("{other}"),
            }
        }
    }
}

fn row_alphas() {
    let (codes, scales) = (codes(), scales(LINEAR));
    let with = |alpha: &[f32]| {
        Weights::new(&shape(), &codes, &scales, LINEAR, GlobalScale::ONE)
            .unwrap()
            .with_row_alpha(alpha)
            .map(drop)
    };
    for count in [0, M - 1, M + 1, L * M - 1] {
        let error = with(&vec![1.0; count]).unwrap_err();
        assert!(
            matches!(error, Error::BufferTooShort { got, .. } if got == count),
            "{error}"
        );
    }
    let error = with(&vec![1.0; L * M + 1]).unwrap_err();
    assert_eq!(too_long(&error), "row alpha");
    for count in [M, L * M] {
        with(&vec![-1.0; count]).unwrap();
    }
    for value in [f32::NAN, f32::INFINITY] {
        let mut alpha = vec![1.0; M];
        alpha[7] = value;
        let error = with(&alpha).unwrap_err();
        assert!(matches!(error, Error::RowAlpha { index: 7, .. }), "{error}");
    }
}

/// The operand that the error says is too short.
fn too_short(error: &Error) -> &str {
    match error {
        Error::BufferTooShort { operand, .. } => operand,
        other => panic!("{other}"),
    }
}

/// The operand that the error says is too long.
fn too_long(error: &Error) -> &str {
    match error {
        Error::BufferTooLong { operand, .. } => operand,
        other => panic!("{other}"),
    }
}

/// Calls with valid weights and poisoned output; a refused call must not have written.
fn refusal(x: &Vectors<'_>, outputs: usize) -> Error {
    let (codes, scales) = (codes(), scales(LINEAR));
    let weights = Weights::new(&shape(), &codes, &scales, LINEAR, GlobalScale::ONE).unwrap();
    let mut y = vec![f32::NAN; outputs];
    let error = gemv(&shape(), &weights, x, Output::of(&mut y)).unwrap_err();
    assert!(y.iter().all(|y| y.is_nan()), "refused and written: {error}");
    error
}

fn short_outputs_and_vectors() {
    let outputs = shape().outputs();
    let x = vec![1.0; shape().vector_elements()];
    let error = refusal(&Vectors::of(&x), outputs - 1);
    assert_eq!(too_short(&error), "output");
    let error = refusal(&Vectors::of(&x[1..]), outputs);
    assert_eq!(too_short(&error), "vectors");
}

fn buffers_that_go_on_behind_the_shape() {
    let more = |bytes: &[u8]| [bytes, &[0x38; 1]].concat();
    for layout in ScaleLayout::ALL {
        let error = weights_error(&more(&codes()), &scales(layout), layout, GlobalScale::ONE);
        assert_eq!(
            error.to_string(),
            "weight codes: 10401 bytes are too long, the shape needs 10400: pass a slice of so many"
        );
        let error = weights_error(&codes(), &more(&scales(layout)), layout, GlobalScale::ONE);
        assert_eq!(too_long(&error), "weight scales");
    }

    let (outputs, elements) = (shape().outputs(), shape().vector_elements());
    let x = vec![1.0; elements + 3];
    let error = refusal(&Vectors::of(&x), outputs);
    assert_eq!(too_long(&error), "vectors");
    let error = refusal(&Vectors::of(&x[..elements]), outputs + 8);
    assert_eq!(too_long(&error), "output");

    let rows = L * 2;
    let (codes, linear) = (vec![0x22; rows * K / 2], vec![0x38; rows * BLOCKS]);
    let tiled = vec![0x38; L * TILED.bytes(2, BLOCKS)];
    let refused = |x: Nvfp4Vectors<'_>| refusal(&Vectors::Nvfp4(x), outputs);
    let error = refused(nvfp4(&more(&codes), &linear, LINEAR));
    assert_eq!(too_long(&error), "vector codes");
    for (scales, layout) in [(linear.clone(), LINEAR), (tiled, TILED)] {
        let error = refused(nvfp4(&codes, &more(&scales), layout));
        assert_eq!(too_long(&error), "vector scales");
    }
    let five = VectorScale::PerVector(&[1.0; 5][..]);
    let error = refused(Nvfp4Vectors::new(&codes[..], &linear[..], LINEAR, five));
    assert_eq!(too_long(&error), "vector global scales");

    let convert = nvfp4_gemv::convert_scales(&[0; 4], LINEAR, TILED, 3, 16, 1);
    assert_eq!(too_long(&convert.unwrap_err()), "scales to convert");
}

fn padding_behind_the_last_vector_may_be_there_or_not() {
    let (codes, scales) = (codes(), scales(LINEAR));
    let weights = Weights::new(&shape(), &codes, &scales, LINEAR, GlobalScale::ONE).unwrap();
    let (row, batch) = (K + 8, 2 * (K + 8) + 40);
    let call = |len: usize| {
        let x = vec![1.0; len];
        let vectors = DenseVectors::new(&x[..]).with_strides(Strides { row, batch });
        let mut y = vec![0.0; shape().outputs()];
        let y = Output::of(&mut y);
        gemv(&shape(), &weights, &Vectors::F32(vectors), y).map(drop)
    };
    let needed = batch + row + K;
    for len in [needed, batch + 2 * row, 2 * batch] {
        call(len).unwrap();
    }
    assert_eq!(too_short(&call(needed - 1).unwrap_err()), "vectors");
    let error = call(2 * batch + 1).unwrap_err();
    assert!(
        matches!(error, Error::BufferTooLong { needed, .. } if needed == 2 * batch),
        "{error}"
    );
}

fn padding_behind_the_last_scales_may_be_there_or_not() {
    let (m, n, k, batch) = (1, 1, 64, 1024);
    for l in 1..=2 {
        let shape = sized(m, n, k, l);
        let (codes, scales) = (vec![0x22; l * k / 2], vec![0x38; l * k / 16]);
        let weights = Weights::new(&shape, &codes, &scales, LINEAR, GlobalScale::ONE).unwrap();
        for layout in ScaleLayout::ALL {
            let call = |bytes: usize| {
                let scales = vec![0x38; bytes];
                let strides = Strides { row: k / 16, batch };
                let x = nvfp4(&codes, &scales, layout).with_scale_strides(strides);
                let mut y = vec![0.0; shape.outputs()];
                let y = Output::of(&mut y);
                gemv(&shape, &weights, &Vectors::Nvfp4(x), y).map(drop)
            };
            let needed = (l - 1) * batch + layout.bytes(n, k / 16);
            call(needed).unwrap();
            call(l * batch).unwrap();
            assert_eq!(too_short(&call(needed - 1).unwrap_err()), "vector scales");
            let error = call(l * batch + 1).unwrap_err();
            assert_eq!(too_long(&error), "vector scales");
        }
    }
}

fn nothing_to_compute() {
    for (m, n, l) in [(0, 2, 1), (3, 0, 1), (3, 2, 0), (3, 0, 2)] {
        let shape = sized(m, n, K, l);
        assert!(shape.is_empty());
        for layout in ScaleLayout::ALL {
            let codes = vec![0x22; shape.weight_code_bytes()];
            let scales = vec![0x38; shape.weight_scale_bytes(layout)];
            let w = Weights::new(&shape, &codes, &scales, layout, GlobalScale::ONE).unwrap();
            let x = vec![1.0; shape.vector_elements()];
            let (x_codes, blocks) = (vec![0x22; x.len() / 2], shape.blocks());
            let x_scales = vec![0x38; l * layout.bytes(n, blocks)];
            let packed = || nvfp4(&x_codes, &x_scales, layout);
            let mut all = vec![Vectors::of(&x), Vectors::Nvfp4(packed())];
            if n == 0 {
                // Between no vectors, strides mean nothing.
                let (row, batch) = (48, 96);
                let strided = packed().with_code_strides(Strides { row, batch });
                let strided = strided.with_scale_strides(Strides { row, batch });
                all.push(Vectors::Nvfp4(strided));
            }
            for x in all {
                gemv(&shape, &w, &x, Output::of::<f32>(&mut [])).unwrap();
            }
        }
    }
}

fn nvfp4<'a>(codes: &'a [u8], scales: &'a [u8], layout: ScaleLayout) -> Nvfp4Vectors<'a> {
    Nvfp4Vectors::new(codes, scales, layout, VectorScale::Shared(GlobalScale::ONE))
}

fn nvfp4_vectors() {
    let outputs = shape().outputs();
    let rows = L * 2;
    let (codes, linear) = (vec![0x22; rows * K / 2], vec![0x38; rows * BLOCKS]);
    let tiled = vec![0x38; L * TILED.bytes(2, BLOCKS)];
    let refused = |x: Nvfp4Vectors<'_>| refusal(&Vectors::Nvfp4(x), outputs);

    let error = refused(nvfp4(&codes[1..], &linear, LINEAR));
    assert_eq!(too_short(&error), "vector codes");
    let error = refused(nvfp4(&codes, &linear[1..], LINEAR));
    assert_eq!(too_short(&error), "vector scales");
    let error = refused(nvfp4(&codes, &tiled[1..], TILED));
    assert!(error.to_string().contains("padded"), "{error}");
    let error = refused(nvfp4(&codes, &tiled, LINEAR));
    let contradiction = matches!(error, Error::LayoutContradiction { .. });
    assert!(contradiction, "{error}");

    let strides = |row, batch| Strides { row, batch };
    let x = || nvfp4(&codes, &linear, LINEAR);
    let of_atoms = nvfp4(&codes, &tiled, TILED);
    let small_codes = strides(K / 2 - 8, K);
    let small_batches = strides(K / 2, K - 8);
    let small_scales = strides(BLOCKS - 1, 2 * BLOCKS);
    let small_atoms = strides(0, 128 * 8 - 1);
    for (vectors, operand) in [
        (x().with_code_strides(small_codes), "vector codes"),
        (x().with_code_strides(small_batches), "vector codes"),
        (x().with_scale_strides(small_scales), "vector scales"),
        (of_atoms.with_scale_strides(small_atoms), "vector scales"),
    ] {
        let error = refused(vectors);
        assert!(
            matches!(error, Error::StrideTooSmall { operand: o, .. } if o == operand),
            "{error}"
        );
    }

    let mut bad = linear.clone();
    bad[3 * BLOCKS + 2] = 0x7f;
    let nan = Error::ScaleNan {
        operand: "vector scales",
        batch: 1,
        row: 1,
        block: 2,
    };
    assert_eq!(refused(nvfp4(&codes, &bad, LINEAR)), nan);

    let three = VectorScale::PerVector(&[1.0; 3][..]);
    let error = refused(Nvfp4Vectors::new(&codes[..], &linear[..], LINEAR, three));
    assert!(
        matches!(error, Error::BufferTooShort { got, needed, .. } if (got, needed) == (3, 4)),
        "{error}"
    );
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let globals = [1.0, 1.0, value, 1.0];
        for global in [
            VectorScale::Shared(GlobalScale::Divisor(value)),
            VectorScale::PerVector(&globals[..]),
        ] {
            let error = refused(Nvfp4Vectors::new(&codes[..], &linear[..], LINEAR, global));
            assert!(matches!(error, Error::GlobalScale { .. }), "{error}");
        }
    }
}

fn small_strides_of_dense_vectors() {
    let x = vec![f16::ONE; 4096];
    for (row, batch) in [(K - 1, 4 * K), (K, 2 * K - 1)] {
        let vectors = Vectors::F16(DenseVectors::new(&x[..]).with_strides(Strides { row, batch }));
        let error = refusal(&vectors, shape().outputs());
        assert!(matches!(error, Error::StrideTooSmall { .. }), "{error}");
    }
}

fn weights_of_another_shape() {
    let (codes, scales) = (codes(), scales(LINEAR));
    let weights = Weights::new(&shape(), &codes, &scales, LINEAR, GlobalScale::ONE).unwrap();
    let other = sized(M + 1, 2, K, L);
    let x = vec![1.0; other.vector_elements()];
    let mut y = vec![0.0; other.outputs()];
    let error = gemv(&other, &weights, &Vectors::of(&x), Output::of(&mut y)).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    // N may differ from the shape that the weights were made with.
    let more = sized(M, 3, K, L);
    let x = vec![1.0; more.vector_elements()];
    let mut y = vec![0.0; more.outputs()];
    gemv(&more, &weights, &Vectors::of(&x), Output::of(&mut y)).unwrap();
}

proptest! {
    /// Any lengths and strides: a result or an error.
    fn nothing_panics(
        (m, n, blocks, l) in (0usize..9, 0usize..4, 1usize..6, 0usize..3),
        more in prop::array::uniform5(prop_oneof![8 => Just(0), 1 => -1isize..=1, 1 => -300isize..300]),
        strides in prop::array::uniform4(prop_oneof![0usize..300, Just(usize::MAX), Just(usize::MAX / 2), Just(1 << 40)]),
        layout in prop::sample::select(&ScaleLayout::ALL[..]),
        dense: bool,
        with_strides: bool,
    ) {
        let shape = sized(m, n, blocks * 16, l);
        let about = |needed: usize, i: usize| needed.saturating_add_signed(more[i]);
        let codes = vec![0x2a; about(shape.weight_code_bytes(), 0)];
        let scales = vec![0x38; about(shape.weight_scale_bytes(layout), 1)];
        let Ok(weights) = Weights::new(&shape, &codes, &scales, layout, GlobalScale::ONE) else {
            return Ok(());
        };
        let x_codes = vec![0x17; about(shape.vector_elements() / 2, 2)];
        let x_scales = vec![0x30; about(layout.bytes(n, blocks) * l, 3)];
        let x_dense = vec![f16::ONE; about(shape.vector_elements(), 2)];
        let [row, batch, scale_row, scale_batch] = strides;
        let vectors = if dense {
            let mut x = DenseVectors::new(&x_dense[..]);
            if with_strides {
                x = x.with_strides(Strides { row, batch });
            }
            Vectors::F16(x)
        } else {
            let mut x = nvfp4(&x_codes, &x_scales, layout);
            if with_strides {
                x = x
                    .with_code_strides(Strides { row, batch })
                    .with_scale_strides(Strides { row: scale_row, batch: scale_batch });
            }
            Vectors::Nvfp4(x)
        };
        let mut y = vec![f32::NAN; about(shape.outputs(), 4)];
        let result = gemv(&shape, &weights, &vectors, Output::of(&mut y));
        let written = y.iter().filter(|y| !y.is_nan()).count();
        prop_assert_eq!(written, if result.is_ok() { shape.outputs() } else { 0 });
    }
}
