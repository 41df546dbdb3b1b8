//! Changes the layout of block scales on the host.

use crate::shape::BLOCK;
use crate::shape::Dims;
use crate::types::ScaleLayout;

/// Copies scales from one layout into the other (or the same), batch by batch.
/// The padding of a 128x4 result is zero.
///
/// `k` is the operand's K, `source` holds `batches · from.bytes(rows, k/16)` bytes.
///
/// # Errors
/// [`Error::KZero`](crate::Error::KZero) or [`Error::KNotMultipleOfBlock`](crate::Error::KNotMultipleOfBlock) for a bad
/// K, [`Error::BufferTooShort`](crate::Error::BufferTooShort) or [`Error::BufferTooLong`](crate::Error::BufferTooLong)
/// for a source of another length, [`Error::SizeOverflow`](crate::Error::SizeOverflow) for sizes past the address
/// range.
///
/// ```
/// use nvfp4_gemv::{convert_scales, ScaleLayout::{Linear, Tiled128x4}};
/// let linear = [1, 2, 3, 4, 5, 6]; // 2 rows, K = 48
/// let tiled = convert_scales(&linear, Linear, Tiled128x4, 2, 48, 1)?;
/// assert_eq!(tiled.len(), 512);
/// assert_eq!(convert_scales(&tiled, Tiled128x4, Linear, 2, 48, 1)?, linear);
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn convert_scales(
    source: &[u8],
    from: ScaleLayout,
    to: ScaleLayout,
    rows: usize,
    k: usize,
    batches: usize,
) -> crate::Result<Vec<u8>> {
    let shape = crate::Shape::new(Dims {
        m: rows,
        n: 1,
        k,
        l: batches,
    })?;
    let blocks = k / BLOCK;
    let from_bytes = from.bytes(rows, blocks);
    let operand = "scales to convert";
    crate::check::scales_len(operand, source.len(), from, &shape, rows, from_bytes)?;
    let to_bytes = to.bytes(rows, blocks);
    let mut out = vec![0; to_bytes * batches];
    if out.is_empty() {
        return Ok(out);
    }
    for (src, dst) in source
        .chunks_exact(from_bytes)
        .zip(out.chunks_exact_mut(to_bytes))
    {
        for row in 0..rows {
            for block in 0..blocks {
                dst[to.offset(row, block, blocks)] = src[from.offset(row, block, blocks)];
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScaleLayout::{Linear, Tiled128x4};
    use proptest::prelude::*;

    #[test]
    fn offsets_by_the_published_formula() {
        // Written as the format's definition gives it, with the batch term, in other variables.
        let (rows, blocks) = (300, 7);
        let (rest_m, rest_k) = (3, 2);
        for b in 0..2 {
            for i in 0..rows {
                for j in 0..blocks {
                    let published = ((b * rest_m + i / 128) * rest_k + j / 4) * 512
                        + (i % 32) * 16
                        + ((i % 128) / 32) * 4
                        + j % 4;
                    let ours = b * Tiled128x4.bytes(rows, blocks) + Tiled128x4.offset(i, j, blocks);
                    assert_eq!(ours, published);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn offsets_are_distinct_and_inside(rows in 1usize..400, blocks in 1usize..40) {
            for layout in ScaleLayout::ALL {
                let mut seen = vec![false; layout.bytes(rows, blocks)];
                for row in 0..rows {
                    for block in 0..blocks {
                        let at = layout.offset(row, block, blocks);
                        prop_assert!(!std::mem::replace(&mut seen[at], true));
                    }
                }
            }
        }

        #[test]
        fn there_and_back(rows in 0usize..300, blocks in 1usize..20, batches in 0usize..4, seed: u8) {
            let k = blocks * BLOCK;
            let linear: Vec<u8> =
                (0..rows * blocks * batches).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
            let tiled = convert_scales(&linear, Linear, Tiled128x4, rows, k, batches).unwrap();
            prop_assert_eq!(tiled.len(), Tiled128x4.bytes(rows, blocks) * batches);
            let back = convert_scales(&tiled, Tiled128x4, Linear, rows, k, batches).unwrap();
            prop_assert_eq!(back, linear);
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_the_largest() {
        for layout in ScaleLayout::ALL {
            for (rows, blocks) in [(usize::MAX, 1), (1 << 40, 1 << 40), (2, usize::MAX)] {
                assert_eq!(layout.bytes(rows, blocks), usize::MAX);
            }
            assert_eq!(layout.bytes(0, 7), 0);
        }
        let tiled = Tiled128x4;
        let error = convert_scales(&[], Linear, tiled, usize::MAX, 16, 1).unwrap_err();
        assert!(matches!(error, crate::Error::SizeOverflow { .. }));
    }

    #[test]
    fn padding_is_zero_and_short_sources_are_refused() {
        let tiled = convert_scales(&[7; 129 * 5], Linear, Tiled128x4, 129, 80, 1).unwrap();
        assert_eq!(tiled.iter().filter(|&&b| b == 7).count(), 129 * 5);
        assert!(convert_scales(&[7; 129 * 5], Tiled128x4, Linear, 129, 80, 1).is_err());
        assert!(convert_scales(&[7; 129 * 5 - 1], Linear, Linear, 129, 80, 1).is_err());
        assert!(convert_scales(&[], Linear, Linear, 1, 24, 1).is_err());
    }
}
