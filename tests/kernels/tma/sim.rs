//! `gemv_tma`: the tiles of `tile`, on CUDA cores.

use nvfp4_gemv::kernel::params::nvfp4_tile_params;
use nvfp4_gemv::kernel::{Config, TmaConfig};

use crate::support::faults::{PADDING, no_arithmetic, share};
use crate::tile::Kernel;

crate::trials! {
    simulator:
        odd_shapes = || KERNEL.odd_shapes(11),
        contest_shapes = || KERNEL.contest_shapes(false, 1),
        schedules = || KERNEL.schedules(4),
        sums_in_rank_order = || KERNEL.sums_in_rank_order(),
        many_vectors = || KERNEL.many_vectors(),
        faults = || KERNEL.faults(|mutant| no_arithmetic(mutant) && share(mutant, 6)),
        loads_before_the_wait = || KERNEL.loads_before_the_wait(),
        wrong_plans;
    long:
        all_odd_shapes = || KERNEL.odd_shapes(1),
        all_contest_shapes,
        all_schedules = || KERNEL.schedules(50),
        all_faults = || KERNEL.faults(no_arithmetic);
}

const KERNEL: Kernel = Kernel {
    name: "gemv_tma",
    arch: "90a",
    three_stages: 4, // an even number
    vectors: 2,
    config: |stages, cluster| Config::from(TmaConfig { stages, cluster }),
};

fn all_contest_shapes() {
    KERNEL.contest_shapes(true, 1);
    Kernel {
        arch: "100a",
        ..KERNEL
    }
    .contest_shapes(true, 1);
}

fn wrong_plans() {
    let words = crate::words![nvfp4_tile_params: unused = PADDING];
    KERNEL.wrong_plans(&words);
}
