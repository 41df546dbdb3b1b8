//! Refusals of a change of scale layouts: before CUDA is called, so no GPU is needed.

use nvfp4_gemv::{Error, ScaleLayout, raw};

use crate::support::sized;

crate::trials! {
    host: addresses_and_overlaps, nothing_to_do_is_no_error;
}

fn addresses_and_overlaps() {
    let shape = sized(130, 1, 80, 2);
    let (linear, tiled) = (ScaleLayout::Linear, ScaleLayout::Tiled128x4);
    let refusal = |to, source, destination| {
        // SAFETY: not upheld on purpose; every call here must be refused before the addresses are used.
        unsafe { raw::relayout(&shape, to, source, destination, std::ptr::null_mut()) }.unwrap_err()
    };
    let null = |operand| Error::NullPointer { operand };
    assert_eq!(refusal(tiled, 0, 0x2000_0000), null("source scales"));
    assert_eq!(refusal(tiled, 0x1000_0000, 0), null("destination scales"));
    let bad = |operand, value| Error::Misaligned {
        operand,
        value,
        align: 16,
    };
    // The linear side may have any alignment.
    assert_eq!(
        refusal(tiled, 0x1000_0001, 0x2000_0004),
        bad("destination scales", 0x2000_0004)
    );
    assert_eq!(
        refusal(linear, 0x1000_0004, 0x2000_0001),
        bad("source scales", 0x1000_0004)
    );
    let bytes = |layout| shape.weight_scale_bytes(layout) as u64;
    for (to, source, destination) in [
        (tiled, 0x1000_0000 + bytes(tiled) - 1, 0x1000_0000),
        (tiled, 0x1000_0000, 0x1000_0000 + bytes(linear) / 16 * 16),
        (linear, 0x1000_0000, 0x1000_0000 + bytes(tiled) - 1),
        (linear, 0x1000_0000, 0x1000_0000),
    ] {
        assert_eq!(
            refusal(to, source, destination),
            Error::Overlap {
                operand: "destination scales",
                other: "source scales"
            }
        );
    }
}

fn nothing_to_do_is_no_error() {
    for (m, l) in [(0, 1), (1, 0)] {
        let shape = sized(m, 1, 64, l);
        // SAFETY: an empty shape touches no address.
        unsafe { raw::relayout(&shape, ScaleLayout::Linear, 0, 0, std::ptr::null_mut()) }.unwrap();
    }
}
