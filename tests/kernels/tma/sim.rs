//! `gemv_tma`: the tiles of `tile`, on CUDA cores.

use nvfp4_gemv::kernel::params::nvfp4_tile_params;
use nvfp4_gemv::kernel::{Config, TmaConfig};

use crate::support::faults::{no_arithmetic, share};
use crate::tile::Kernel;

crate::trials! {
    simulator: odd_shapes, contest_shapes, schedules, sums_in_rank_order, faults, wrong_plans, loads_before_the_wait;
    long: all_odd_shapes, all_contest_shapes, all_schedules, all_faults;
}

const KERNEL: Kernel = Kernel {
    name: "gemv_tma",
    arch: "90a",
    three_stages: 4, // an even number
    vectors: 2,
    config: |stages, cluster| Config::from(TmaConfig { stages, cluster }),
};

fn odd_shapes() {
    KERNEL.odd_shapes(11);
}

fn all_odd_shapes() {
    KERNEL.odd_shapes(1);
}

fn contest_shapes() {
    KERNEL.contest_shapes(false, 1);
}

fn all_contest_shapes() {
    KERNEL.contest_shapes(true, 1);
    Kernel {
        arch: "100a",
        ..KERNEL
    }
    .contest_shapes(true, 1);
}

fn schedules() {
    KERNEL.schedules(4);
}

fn all_schedules() {
    KERNEL.schedules(50);
}

fn sums_in_rank_order() {
    KERNEL.sums_in_rank_order();
}

fn loads_before_the_wait() {
    KERNEL.loads_before_the_wait();
}

fn faults() {
    KERNEL.faults(|mutant| no_arithmetic(mutant) && share(mutant, 6));
}

fn all_faults() {
    KERNEL.faults(no_arithmetic);
}

fn wrong_plans() {
    let words = crate::words![nvfp4_tile_params: tmem_columns = "tcgen05's"];
    KERNEL.wrong_plans(&words);
}
