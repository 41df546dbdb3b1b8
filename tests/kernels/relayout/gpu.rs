//! The change of scale layouts on a GPU, against the host's.

use nvfp4_gemv::{Dims, ScaleLayout, Shape, convert_scales, raw};

use crate::support::gpu::Gpu;

crate::trials! {
    gpu: scales_change_layout_both_ways;
}

const POISON: u8 = 0xa5;
/// Bytes past the end of the output that must keep their poison.
const CANARY: usize = 64;

/// Shapes of scales at the edges of the tiles that a CTA takes.
const SCALES: [(usize, usize, usize); 10] = [
    (1, 16, 1),
    (3, 48, 3),
    (127, 64, 2),
    (128, 512, 1),
    (129, 528, 2),
    (33, 2064, 3),
    (257, 4112, 1),
    (384, 1024, 2),
    (1000, 80, 1),
    (5, 16, 70_000),
];

fn scales_change_layout_both_ways() {
    let gpu = Gpu::first();
    let (linear, tiled) = (ScaleLayout::Linear, ScaleLayout::Tiled128x4);
    for (m, k, l) in SCALES {
        let shape = Shape::new(Dims { m, n: 1, k, l }).unwrap();
        let mut source = vec![0; shape.weight_scale_bytes(linear)];
        fastrand::Rng::with_seed(m as u64).fill(&mut source);
        let in_tiles = convert_scales(&source, linear, tiled, m, k, l).unwrap();
        for (from, to, expected) in [(&source, tiled, &in_tiles), (&in_tiles, linear, &source)] {
            let from = gpu.upload(from);
            let out = gpu.upload(&vec![POISON; expected.len() + CANARY]);
            let addresses = (gpu.address(&from), gpu.address(&out));
            // SAFETY: the buffers have the sizes of their layouts and outlive the work.
            unsafe { raw::relayout(&shape, to, addresses.0, addresses.1, gpu.handle()) }.unwrap();
            let mut got = gpu.stream.clone_dtoh(&out).unwrap();
            let canary = got.split_off(expected.len());
            assert!(canary.iter().all(|&b| b == POISON), "wrote past the end");
            assert!(&got == expected, "{shape} to {to}");
        }
    }
}
