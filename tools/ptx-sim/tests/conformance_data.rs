//! The inputs and expectations of the conformance kernels are what they should be, and
//! `conformance/cases.json` says the same: run this with `CONFORMANCE_WRITE=1` after changing a case.

mod common;

use std::fmt::Write as _;

use common::data::*;

fn json(cases: &[Case]) -> String {
    let mut out = String::from("{\n  \"cases\": [");
    for (i, case) in cases.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let Case {
            name,
            entry,
            grid,
            block,
            cluster,
            dynamic_shared,
            formula,
            ..
        } = case;
        write!(
            out,
            "{comma}\n    {{\n      \"name\": \"{name}\",\n      \"ptx\": \"ptx/{entry}.ptx\",\n      \
             \"entry\": \"{entry}\",\n      \"grid\": {grid:?},\n      \"block\": {block:?},\n      \
             \"cluster\": {cluster:?},\n      \"dynamic_shared\": {dynamic_shared},\n      \
             \"expect\": \"{formula}\",\n      \"params\": ["
        )
        .expect("a string");
        for (
            j,
            Param {
                name,
                layout,
                value,
            },
        ) in case.params.iter().enumerate()
        {
            let comma = if j == 0 { "" } else { "," };
            let value = match value {
                Value::U32(v) => format!("\"type\": \"u32\", \"value\": {v}"),
                Value::Input(bytes) => format!("\"type\": \"input\", \"bytes\": {}", bytes.len()),
                Value::Output(bytes) => format!("\"type\": \"output\", \"bytes\": {bytes}"),
                Value::Map(
                    TensorMap {
                        dims,
                        stride,
                        box_dims,
                    },
                    bytes,
                ) => format!(
                    "\"type\": \"tensor_map\", \"bytes\": {}, \"dtype\": \"UINT8\", \"rank\": 2, \
                     \"dims\": {dims:?}, \"strides\": [{stride}], \"box\": {box_dims:?}, \
                     \"element_strides\": [1, 1], \"interleave\": \"NONE\", \"swizzle\": \"128B\", \
                     \"l2_promotion\": \"NONE\", \"oob_fill\": \"NONE\"",
                    bytes.len()
                ),
            };
            write!(
                out,
                "{comma}\n        {{ \"name\": \"{name}\", \"layout\": \"{layout}\", {value} }}"
            )
            .expect("a string");
        }
        out.push_str("\n      ]\n    }");
    }
    out.push_str("\n  ]\n}\n");
    out
}

#[test]
fn cases_json_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/cases.json");
    let now = json(&all_cases(0));
    if std::env::var_os("CONFORMANCE_WRITE").is_some() {
        std::fs::write(path, &now).expect("cases.json is writable");
    }
    let stored = std::fs::read_to_string(path).expect("cases.json is there");
    assert_eq!(stored, now, "run with CONFORMANCE_WRITE=1");
}

#[test]
fn every_case_names_a_kernel_with_that_entry_and_its_parameters() {
    for case in all_cases(0) {
        let path = format!(
            "{}/conformance/ptx/{}.ptx",
            env!("CARGO_MANIFEST_DIR"),
            case.entry
        );
        let ptx = std::fs::read_to_string(&path).expect(&path);
        assert!(
            ptx.contains(&format!(".visible .entry {}(", case.entry)),
            "{path}"
        );
        assert!(
            ptx.contains(&format!(".maxntid {}\n", case.block[0])),
            "{path}"
        );
        assert_eq!(
            ptx.contains(".reqnctapercluster 2, 1, 1"),
            case.cluster[0] == 2,
            "{path}"
        );
        for (i, param) in case.params.iter().enumerate() {
            let kind = match param.value {
                Value::U32(_) => ".u32",
                Value::Input(_) | Value::Output(_) => ".u64 .ptr .align 1",
                Value::Map(..) => ".align 128 .b8",
            };
            assert!(
                ptx.contains(&format!("{kind} {}_param_{i}", case.entry)),
                "{path}: {i}"
            );
        }
        assert!(
            !ptx.contains(&format!("{}_param_{}", case.entry, case.params.len())),
            "{path}"
        );
    }
}

#[test]
fn number_formats() {
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (code, &magnitude) in (0u8..).zip(&magnitudes) {
        assert_eq!(e2m1(code), magnitude);
        assert_eq!(e2m1(code | 8), -magnitude);
    }
    assert!(e2m1(8).is_sign_negative());
    for (code, value) in [
        (0x38, 1.0),
        (0x7e, 448.0),
        (0x01, 2f64.powi(-9)),
        (0xc1, -2.25),
    ] {
        assert_eq!(e4m3(code), value);
    }
    for (code, value) in [
        (0x3c, 1.0),
        (0x7b, 57344.0),
        (0x01, 2f64.powi(-16)),
        (0xc1, -2.5),
    ] {
        assert_eq!(e5m2(code), value);
    }
    assert_eq!(ue8m0(127), 1.0);
    assert_eq!(ue8m0(120), 1.0 / 128.0);
    assert_eq!(bf16(0x3f80), 1.0);
    assert_eq!(bf16(0xc040), -3.0);
    assert_eq!(encode(-6.0, 0x7e, e4m3), 0xcc);
}

#[test]
fn the_128x4_layout_is_a_permutation_with_rows_32_apart_side_by_side() {
    assert_eq!(offset_128x4(0, 0, 4), 0);
    assert_eq!(offset_128x4(1, 0, 4), 16);
    assert_eq!(offset_128x4(33, 1, 4), 16 + 4 + 1);
    assert_eq!(offset_128x4(127, 3, 4), 511);
    assert_eq!(offset_128x4(0, 4, 16), 512);
    assert_eq!(offset_128x4(128, 0, 16), 4 * 512);
    let (rows, blocks) = (384, 12);
    let mut seen = vec![false; rows * blocks];
    for row in 0..rows {
        for block in 0..blocks {
            assert!(!std::mem::replace(
                &mut seen[offset_128x4(row, block, blocks)],
                true
            ));
        }
    }
}

#[test]
fn nibbles_pack_low_first() {
    let mut codes = [1, 2, 3, 4].into_iter();
    let matrix = Matrix::draw(1, 4, e2m1, || codes.next().expect("four"));
    assert_eq!(matrix.packed_nibbles(), [0x21, 0x43]);
}

fn bytes_of<'a>(case: &'a Case, name: &str) -> &'a [u8] {
    let param = case
        .params
        .iter()
        .find(|p| p.name == name)
        .expect("a parameter");
    match &param.value {
        Value::Input(bytes) | Value::Map(_, bytes) => bytes,
        other => panic!("{name} is {other:?}"),
    }
}

/// The result once more, from the bytes in memory as the interface describes them.
#[test]
fn expectations_follow_from_the_bytes() {
    let case = mma_two_cta(7);
    let (a, b) = (bytes_of(&case, "a"), bytes_of(&case, "b"));
    let element = |m: &[u8], i: usize| bf16(u16::from_le_bytes([m[2 * i], m[2 * i + 1]]));
    for (row, column) in [(0, 0), (1, 63), (127, 31), (128, 32), (255, 5)] {
        let sum: f64 = (0..64)
            .map(|k| element(a, row * 64 + k) * element(b, column * 64 + k))
            .sum();
        assert_eq!(sum, f64::from(case.expected[row * 64 + column]));
    }

    let (n, k) = (5, 768);
    let case = mma_pipelined(7, 2, n, k);
    let (w, x) = (bytes_of(&case, "w"), bytes_of(&case, "x"));
    let (sfw, sfx) = (bytes_of(&case, "sfw"), bytes_of(&case, "sfx"));
    let code = |m: &[u8], row: usize, i: usize| e2m1(m[(row * k + i) / 2] >> (i % 2 * 4) & 15);
    let scale = |m: &[u8], row: usize, i: usize| {
        let (block, atoms) = (i / 16, k / 64);
        let at = (row / 128 * atoms + block / 4) * 512;
        e4m3(m[at + row % 32 * 16 + row % 128 / 32 * 4 + block % 4])
    };
    for (row, column) in [(0, 0), (33, 4), (127, 1), (128, 3), (255, 2), (200, 9)] {
        let terms = (0..k).map(|i| {
            let vector = if column < n {
                code(x, column, i) * scale(sfx, column, i)
            } else {
                0.0
            };
            code(w, row, i) * scale(sfw, row, i) * vector
        });
        assert_eq!(
            terms.sum::<f64>(),
            f64::from(case.expected[row * 16 + column])
        );
    }
}

#[test]
fn buffers_have_the_sizes_of_their_layouts() {
    for case in all_cases(3) {
        let outputs: Vec<usize> = case
            .params
            .iter()
            .filter_map(|p| {
                if let Value::Output(bytes) = p.value {
                    Some(bytes)
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(outputs, [case.expected.len() * 4], "{}", case.name);
        for param in &case.params {
            if let Value::Map(map, bytes) = &param.value {
                assert_eq!(map.dims[0] * map.dims[1], bytes.len() as u64);
                assert_eq!(map.stride % 16, 0);
            }
        }
    }
    let case = mma_pipelined(3, 2, 5, 768);
    for (name, bytes) in [
        ("w", 256 * 384),
        ("x", 5 * 384),
        ("sfw", 256 * 48),
        ("sfx", 128 * 48),
    ] {
        assert_eq!(bytes_of(&case, name).len(), bytes, "{name}");
    }
}

/// `product` itself checks that the terms are integers and their magnitudes sum below 2^24.
#[test]
fn results_are_exact_replayable_and_varied_for_any_seed() {
    for seed in 0..4 {
        for case in all_cases(seed) {
            assert!(
                case.expected
                    .iter()
                    .all(|v| v.is_sign_positive() || *v != 0.0)
            );
            let distinct: std::collections::HashSet<u32> =
                case.expected.iter().map(|v| v.to_bits()).collect();
            // A wrong row, column, scale or stage must not go unnoticed.
            assert!(distinct.len() > 50, "{}: {}", case.name, distinct.len());
        }
    }
    assert_eq!(mma_mxf4nvf4(1).expected, mma_mxf4nvf4(1).expected);
    assert_ne!(mma_mxf4nvf4(1).expected, mma_mxf4nvf4(2).expected);
}

#[test]
fn all_codes_and_many_scales_occur() {
    let case = mma_mxf4nvf4(1);
    for name in ["a", "b"] {
        let mut seen = [false; 16];
        for byte in bytes_of(&case, name) {
            seen[usize::from(byte & 15)] = true;
            seen[usize::from(byte >> 4)] = true;
        }
        assert!(seen.iter().all(|&s| s), "{name}");
    }
    for name in ["sfa", "sfb"] {
        let scales = bytes_of(&case, name);
        let distinct: std::collections::HashSet<_> = scales.iter().collect();
        assert!(distinct.len() > 20, "{name}: {}", distinct.len());
        // UE4M3: no sign, no NaN, and unused rows hold scales too, so that reading one shows.
        assert!(scales.iter().all(|&s| (1..0x7f).contains(&s)), "{name}");
    }
}

/// A zero result is +0 only if some term is: a row of weights must not be negative throughout.
#[test]
fn zero_columns_have_a_positive_zero_term_in_every_row() {
    let k = 256;
    for seed in 0..8 {
        let case = mma_pipelined(seed, 1, 1, k);
        for row in bytes_of(&case, "w").chunks(k / 2) {
            assert!(row.iter().any(|byte| byte & 0x88 != 0x88));
        }
    }
}
