//! What the tcgen05 kernel refuses.

use nvfp4_gemv::ScaleLayout;
use nvfp4_gemv::kernel::Tcgen05Config;

use crate::support::refuse::{Asked, gpu, images};
use crate::tma::refuse::of_both;

fn valid() -> Asked {
    let config = Tcgen05Config {
        stages: 3,
        cluster: 2,
    };
    Asked::new((130, 3, 512, 2), ScaleLayout::Tiled128x4, (10, 0), config)
}

fn problems_that_it_does_not_take() {
    let mut table = of_both();
    table.extend([
        gpu((9, 0), "10.x"),
        gpu((12, 0), "10.x"),
        // Code for all of an architecture's successors has no tensor memory.
        images((10, 0), "90a;100"),
        images((10, 3), "100a"),
    ]);
    valid().refuses_problems(&table);
    let mut family = valid();
    family.gpu.compute_capability = (10, 3);
    family.gpu.images = "100f";
    assert_eq!(family.check(), Ok(()));
}

fn configs() {
    valid().refuses_fields(&[
        ("stages", &[0, 1, 13]),
        ("cluster", &[0, 3]), // of two K steps
    ]);
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs,
        shared_memory = || valid().needs_its_shared_memory();
}
