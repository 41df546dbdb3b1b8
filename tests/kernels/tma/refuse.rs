//! What the kernels refuse that stream tiles: tma, and tcgen05 beside it.

use nvfp4_gemv::kernel::{Config, TmaConfig};
use nvfp4_gemv::{Activation, Operands, Refusal, ScaleLayout};

use crate::support::refuse::{
    Asked, Change, UNALIGNED, fields, no_image, problems, takes, too_old,
};

fn valid() -> Asked {
    let config = TmaConfig {
        stages: 2,
        cluster: 2,
    };
    Asked::new((130, 3, 512, 2), ScaleLayout::Tiled128x4, (9, 0), config)
}

fn linear(operand: &'static str) -> Refusal {
    Refusal::ScaleLayout { operand }
}

/// Problems that neither kernel takes.
pub(crate) fn of_both() -> Vec<(Change, Refusal)> {
    let needed = "a multiple of 32";
    vec![
        (
            |a| a.operands = Operands::new(Activation::Bf16, ScaleLayout::Tiled128x4),
            takes(Activation::Bf16, "NVFP4"),
        ),
        (
            |a| a.operands.weight_layout = ScaleLayout::Linear,
            linear("weights' scales"),
        ),
        (
            |a| a.operands.vector_layout = ScaleLayout::Linear,
            linear("vectors' scales"),
        ),
        (
            |a| a.shape(130, 3, 496, 2),
            Refusal::RowLength { k: 496, needed },
        ),
        (|a| a.operands.alignment.codes = 8, UNALIGNED),
        (|a| a.operands.alignment.scales = 4, UNALIGNED),
        (|a| a.operands.alignment.vectors = 8, UNALIGNED),
        (|a| a.shape(1 << 30, 1, 2048, 1), Refusal::BatchSize),
    ]
}

fn problems_that_it_does_not_take() {
    let mut table = of_both();
    table.push((
        |a| a.gpu.compute_capability = (8, 9),
        too_old((8, 9), "9.x or 10.x"),
    ));
    table.push((
        |a| a.gpu.compute_capability = (12, 1),
        too_old((12, 1), "9.x or 10.x"),
    ));
    table.push((|a| a.gpu.images = "80", no_image((9, 0), "80")));
    problems(&valid(), &table);
}

fn config(asked: &mut Asked) -> &mut TmaConfig {
    match &mut asked.config {
        Config::Tma(config) => config,
        other => panic!("{other:?}"),
    }
}

fn configs() {
    fields(
        &valid(),
        &[
            (|a| config(a).stages = 0, "stages", 0),
            (|a| config(a).stages = 3, "stages", 3), // groups take stages in turn
            (|a| config(a).stages = 14, "stages", 14),
            (|a| config(a).cluster = 0, "cluster", 0),
            (|a| config(a).cluster = 3, "cluster", 3), // of two K steps
            (
                |a| {
                    a.shape(130, 3, 4096, 2);
                    config(a).cluster = 9;
                },
                "cluster",
                9,
            ),
        ],
    );
}

fn shared_memory() {
    crate::support::refuse::shared_memory(&valid());
}

crate::trials! {
    host: problems_that_it_does_not_take, configs, shared_memory;
}
