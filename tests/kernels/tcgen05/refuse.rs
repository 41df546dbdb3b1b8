//! What the tcgen05 kernel refuses.

use nvfp4_gemv::ScaleLayout;
use nvfp4_gemv::kernel::{Config, Tcgen05Config};

use crate::support::refuse::{Asked, fields, no_image, problems, too_old};
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
    table.push((
        |a| a.gpu.compute_capability = (9, 0),
        too_old((9, 0), "10.x"),
    ));
    table.push((
        |a| a.gpu.compute_capability = (12, 0),
        too_old((12, 0), "10.x"),
    ));
    // Code for all of an architecture's successors has no tensor memory.
    table.push((|a| a.gpu.images = "90a;100", no_image((10, 0), "90a;100")));
    table.push((
        |a| {
            a.gpu.compute_capability = (10, 3);
            a.gpu.images = "100a";
        },
        no_image((10, 3), "100a"),
    ));
    problems(&valid(), &table);
    let mut family = valid();
    family.gpu.compute_capability = (10, 3);
    family.gpu.images = "100f";
    assert_eq!(family.check(), Ok(()));
}

fn config(asked: &mut Asked) -> &mut Tcgen05Config {
    match &mut asked.config {
        Config::Tcgen05(config) => config,
        other => panic!("{other:?}"),
    }
}

fn configs() {
    fields(
        &valid(),
        &[
            (|a| config(a).stages = 0, "stages", 0),
            (|a| config(a).stages = 1, "stages", 1),
            (|a| config(a).stages = 13, "stages", 13),
            (|a| config(a).cluster = 0, "cluster", 0),
            (|a| config(a).cluster = 3, "cluster", 3), // of two K steps
        ],
    );
}

fn shared_memory() {
    crate::support::refuse::shared_memory(&valid());
}

crate::trials! {
    host: problems_that_it_does_not_take, configs, shared_memory;
}
