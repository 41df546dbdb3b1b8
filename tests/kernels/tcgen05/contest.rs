//! `gemv_tcgen05` with the contest's shapes and default configs.

use nvfp4_gemv::kernel::{Config, Kernel, Tcgen05Config};
use nvfp4_gemv::{ScaleLayout, Shape};
use nvfp4_gemv_cli::problem::{CONTEST_BENCHMARKS, CONTEST_TESTS};

use super::sim::ARCH;
use crate::support::operands::{Case, Data};
use crate::support::schedules::few;
use crate::support::sim::Simulator;
use crate::support::sized;

crate::trials! {
    simulator:
        small_shapes = || shapes(1 << 20),
        a_benchmark_shape = || benchmarks(&BENCHMARKS[2..], &[1, 17]);
    long:
        all_shapes = || shapes(usize::MAX),
        benchmark_shapes = || benchmarks(&BENCHMARKS, &VECTORS);
}

/// Numbers of vectors: every entry point has some of them.
const VECTORS: [usize; 7] = [1, 3, 8, 16, 17, 64, 128];

/// The contest's test shapes, up to so many weights, with the default config.
fn shapes(most: usize) {
    let simulator = Simulator::new(ARCH);
    let all = CONTEST_TESTS.iter().copied();
    let few_weights = |&(m, k, l): &(usize, usize, usize)| m * k * l <= most;
    for (i, (m, k, l)) in all.filter(few_weights).enumerate() {
        // Many vectors take long, so they have fewer rows.
        let n = VECTORS[i % VECTORS.len()];
        let m = if n > 8 { m.min(130) } else { m };
        let shape = sized(m, n, k, l);
        for data in [Data::Integers, Data::FullRange] {
            let case = Case {
                padded: i % 2 == 0,
                ..Case::new(shape, data, ScaleLayout::Tiled128x4, i as u64)
            };
            let (_, config) = default(&simulator, shape);
            simulator.check(&case, config, i % 2 == 1, &few(i as u64)[i % 3]);
        }
    }
}

/// A case of a shape, and the config that it has by default.
fn default(simulator: &Simulator, shape: Shape) -> (Case, Tcgen05Config) {
    let case = Case::new(shape, Data::Integers, ScaleLayout::Tiled128x4, 7);
    let config = simulator.job(&case, false, |job| Kernel::Tcgen05.default_config(job));
    let Ok(Config::Tcgen05(config)) = config else {
        panic!("{config:?}");
    };
    (case, config)
}

/// The contest's benchmarks by index, and for each so many rows, batches and multiprocessors, with all of K. Each CTA
/// has as many steps as on a B200, within one step. On a B200 a CTA has 24 or 25 steps of a tile's 64, 48 or 49 of 28,
/// and 12 or 13 of 8. So CTAs have ends of tiles, whole tiles and begins as on a B200.
const BENCHMARKS: [(usize, (usize, usize, u32)); 3] =
    [(0, (256, 1, 5)), (1, (128, 7, 4)), (2, (512, 2, 5))];

fn benchmarks(of: &[(usize, (usize, usize, u32))], vectors: &[usize]) {
    let b200 = Simulator::new(ARCH);
    for &(of, (some_m, some_l, multiprocessors)) in of {
        let (m, k, l) = CONTEST_BENCHMARKS[of];
        let part = Simulator::with_multiprocessors(ARCH, multiprocessors);
        for (i, &n) in vectors.iter().enumerate() {
            let shape = |m, l| sized(m, n, k, l);
            let (_, of_b200) = default(&b200, shape(m, l));
            let (case, config) = default(&part, shape(some_m, some_l));
            let as_there = Tcgen05Config {
                ctas: multiprocessors,
                ..of_b200
            };
            assert_eq!((of_b200.ctas, config), (b200.gpu.multiprocessors, as_there));
            // Both kinds of data if they take least, else in turn.
            for (j, data) in [Data::Integers, Data::FullRange].into_iter().enumerate() {
                if k < 4096 || (i + j + of).is_multiple_of(2) {
                    let case = Case { data, ..case };
                    part.check(&case, config, i % 2 == 1, &few(i as u64)[i % 3]);
                }
            }
        }
    }
}
