//! The change of scale layouts, as nvcc compiles it, against the host's.

use nvfp4_gemv::kernel::relayout;
use nvfp4_gemv::{Dims, ScaleLayout, Shape, convert_scales};
use ptx_sim::Policy;

use crate::support::ptx::ALL;
use crate::support::sim;

crate::trials! {
    simulator: both_ways;
}

fn both_ways() {
    let (linear, tiled) = (ScaleLayout::Linear, ScaleLayout::Tiled128x4);
    for arch in ALL {
        for (m, k, l) in [
            (1, 16, 2),
            (131, 80, 1),
            (129, 528, 2),
            (128, 1024, 1),
            (37, 576, 1),
        ] {
            let shape = Shape::new(Dims { m, n: 1, k, l }).expect("a shape");
            let mut rows = vec![0; linear.bytes(m, k / 16) * l];
            fastrand::Rng::with_seed(m as u64).fill(&mut rows);
            let atoms = convert_scales(&rows, linear, tiled, m, k, l).expect("scales");
            for (to, from, want) in [(tiled, &rows, &atoms), (linear, &atoms, &rows)] {
                // As planned; one CTA that strides over all tiles; several; more than tiles.
                for ctas in [None, Some(1), Some(3), Some(9)] {
                    let mut sim = sim::empty(arch);
                    let from = sim.upload("source", from).expect("memory");
                    let out = sim.alloc("destination", want.len()).expect("memory");
                    let mut planned = relayout::launch(&shape, to, from.address, out.address);
                    planned.grid[0] = ctas.unwrap_or(planned.grid[0]);
                    let context = format!("{} for {arch}: {shape}, {ctas:?}", planned.entry);
                    let policy = Policy::Random(7);
                    sim::run_helper(&mut sim, arch, &planned, policy, &[out], &context);
                    assert!(sim.download(out) == want, "{context}");
                }
            }
        }
    }
}
