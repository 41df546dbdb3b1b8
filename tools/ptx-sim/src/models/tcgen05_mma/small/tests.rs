use super::super::inner::Transposed;
use super::*;

fn draw(state: &mut u64, most: u64) -> f32 {
    *state = state
        .wrapping_mul(0x5851_f42d_4c95_7f2d)
        .wrapping_add(0x1405_7b7e_f767_814f);
    (((*state >> 33) % (2 * most + 1)) as f32 - most as f32) * 0.25
}

/// The largest value or its negative.
fn extreme(state: &mut u64, most: u64) -> f32 {
    most as f32 * if draw(state, 1) < 0.0 { -0.25 } else { 0.25 }
}

/// Chains of such products by bytes and by f32: `accumulates` says which are added onto what is there.
fn compare(
    level: Level,
    (k, most): (usize, u64),
    value: fn(&mut u64, u64) -> f32,
    accumulates: &[bool],
    state: &mut u64,
) {
    let (n, pitch) = (24, 40);
    let mut cells: Vec<u32> = (0..ROWS * pitch)
        .map(|_| (draw(state, 1 << 20) / 3.0 + 1e-7).to_bits())
        .collect();
    let mut want = cells.clone();
    let operands: Vec<(Vec<f32>, Vec<f32>)> = accumulates
        .iter()
        .map(|_| {
            let a = (0..ROWS * k).map(|_| value(state, most)).collect();
            (a, (0..n * k).map(|_| value(state, most)).collect())
        })
        .collect();
    let small: Vec<_> = operands
        .iter()
        .filter_map(|(a, b)| Small::at(level, a, b, k))
        .collect();
    assert_eq!(small.len(), accumulates.len(), "{level:?}: {most}, {k}");
    let links: Vec<_> = small
        .iter()
        .zip(accumulates)
        .filter_map(|(s, accumulate)| s.link(0, *accumulate))
        .collect();
    chain(&links, n, &mut cells, pitch);
    let b: Vec<_> = operands
        .iter()
        .map(|(_, b)| Transposed::new(b, k, |v| v))
        .collect();
    let links: Vec<_> = operands
        .iter()
        .zip(&b)
        .zip(accumulates)
        .map(|(((a, _), b), accumulate)| inner::Link {
            a,
            k,
            b,
            accumulate: *accumulate,
        })
        .collect();
    inner::chain_f32(&links, n, &mut want, pitch);
    assert_eq!(cells, want, "{level:?}: {most}, {k}, {accumulates:?}");
}

#[test]
fn integers_give_the_bits_of_f32() {
    let mut state = 3;
    let four = [(8, 127), (16, 127), (32, 90), (64, 6)];
    // The last one of each length is the largest that 16 bits hold.
    let two = [
        (8, 3),
        (8, 63),
        (16, 1),
        (16, 45),
        (32, 31),
        (64, 4),
        (64, 22),
    ];
    for (level, sizes) in [(Level::Four, &four[..]), (Level::Two, &two[..])] {
        if !level.available() {
            continue;
        }
        for &(k, most) in sizes {
            for accumulates in [
                &[true, false, true][..],
                &[false; 3],
                &[true; 4],
                // Long enough to leave 16 bits, where values are large, and 24 where they would.
                &[&[false][..], &[true; 60]].concat(),
            ] {
                for value in [draw, extreme] {
                    compare(level, (k, most), value, accumulates, &mut state);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn sums_are_rounded_one_by_one_where_they_may_not_be_exact() {
    let of = |unit: f32| {
        let a: Vec<f32> = [3.0, 1.0, 0.0, -2.0].map(|v| v * unit).repeat(ROWS);
        Small::at(Level::Two, &a, &[1.0; 4], 4).unwrap()
    };
    let (small, halves) = (of(1.0), of(0.5));
    assert_eq!((small.most, small.unit, halves.unit), (12, 1.0, 0.5));
    let new = || small.link(0, false).unwrap();
    let onto = || small.link(0, true).unwrap();
    let half = || halves.link(0, true).unwrap();
    assert_eq!(run(&[new(), onto(), onto()], None), (3, Some((1.0, 36))));
    assert_eq!(run(&[onto(), onto()], None), (1, None));
    assert_eq!(run(&[onto(), onto()], Some((1.0, 5))), (2, Some((1.0, 29))));
    assert_eq!(run(&[new(), new()], Some((1.0, 5))), (1, Some((1.0, 12))));
    assert_eq!(run(&[new(), half()], None), (1, Some((1.0, 12))));
    assert_eq!(run(&[half()], Some((1.0, 12))), (1, None));
    // Limits of f32, and of 16 bits.
    assert_eq!(run(&[onto()], Some((1.0, EXACT - 11))), (1, None));
    let last = (1, Some((1.0, EXACT)));
    assert_eq!(run(&[onto(), onto()], Some((1.0, EXACT - 12))), last);
    let many: Vec<_> = (0..3000).map(|_| onto()).collect();
    assert_eq!(run(&many, Some((1.0, 0))).0, 32767 / 12);
}

#[test]
fn what_does_not_fit_a_byte_is_refused() {
    let of = |a: &[f32], b: &[f32], k| Small::at(Level::Four, a, b, k);
    assert!(of(&[127.0, 1.0, 0.0, -127.0], &[0.5, 0.0, 63.5, -1.0], 4).is_some());
    assert!(of(&[128.0, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
    assert!(of(&[1.0; 4], &[128.0, 1.0, 0.0, 0.0], 4).is_none());
    assert!(of(&[f32::NAN, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
    assert!(of(&[f32::INFINITY, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
    assert!(of(&[0.0; 4], &[0.0; 4], 4).is_some());
    // Four products of 8190 or 8128 are fewer than 2^15, four of 8255 are not.
    let of = |a: &[f32], b: &[f32], k| Small::at(Level::Two, a, b, k);
    assert!(of(&[90.0, 1.0, 0.0, 0.0], &[91.0, 1.0, 0.0, 0.0], 4).is_some());
    assert!(of(&[64.0, 1.0, 0.0, 0.0], &[127.0, 1.0, 0.0, 0.0], 4).is_some());
    assert!(of(&[127.0, 1.0, 0.0, 0.0], &[65.0, 1.0, 0.0, 0.0], 4).is_none());
}
