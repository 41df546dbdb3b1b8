//! What the kernels refuse that stream tiles: tma, and tcgen05 beside it.

use nvfp4_gemv::kernel::TmaConfig;
use nvfp4_gemv::{Activation, Refusal, ScaleLayout};

use crate::support::refuse::{Asked, Problem, UNALIGNED, activation, gpu, images, problem, shape};

fn valid() -> Asked {
    let config = TmaConfig {
        stages: 2,
        cluster: 2,
    };
    Asked::new((130, 3, 512, 2), ScaleLayout::Tiled128x4, (9, 0), config)
}

/// Problems that neither kernel takes.
pub(crate) fn of_both() -> Vec<Problem> {
    let linear = |operand| Refusal::ScaleLayout { operand };
    let (weights, vectors) = (linear("weights' scales"), linear("vectors' scales"));
    let (k, needed) = (496, "a multiple of 32");
    vec![
        activation(Activation::Bf16, "NVFP4"),
        problem(|a| a.operands.weight_layout = ScaleLayout::Linear, weights),
        problem(|a| a.operands.vector_layout = ScaleLayout::Linear, vectors),
        shape((130, 3, k, 2), Refusal::RowLength { k, needed }),
        problem(|a| a.operands.alignment.codes = 8, UNALIGNED),
        problem(|a| a.operands.alignment.scales = 4, UNALIGNED),
        problem(|a| a.operands.alignment.vectors = 8, UNALIGNED),
        shape((1 << 30, 1, 2048, 1), Refusal::BatchSize),
    ]
}

fn problems_that_it_does_not_take() {
    let mut table = of_both();
    table.extend([
        gpu((8, 9), "9.x or 10.x"),
        gpu((12, 1), "9.x or 10.x"),
        images((9, 0), "80"),
    ]);
    valid().refuses_problems(&table);
}

fn configs() {
    valid().refuses_fields(&[
        ("stages", &[0, 3, 14]), // groups take stages in turn
        ("cluster", &[0, 3]),    // of two K steps
    ]);
    valid().refuses_field("cluster", 9, |a| a.shape(130, 3, 4096, 2));
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs,
        shared_memory = || valid().needs_its_shared_memory();
}
