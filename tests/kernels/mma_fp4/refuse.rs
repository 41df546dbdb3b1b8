//! Refusals of the mma-fp4 kernel.

use nvfp4_gemv::kernel::MmaFp4Config;
use nvfp4_gemv::{Activation, Refusal, ScaleLayout};

use crate::support::refuse::{Asked, UNALIGNED, activation, gpu, images, problem, shape};

fn valid(layout: ScaleLayout) -> Asked {
    let config = MmaFp4Config {
        warps: 4,
        stages: 3,
        cluster: 2,
        vectors: 16,
        ..MmaFp4Config::DEFAULT
    };
    Asked::new((130, 12, 512, 2), layout, (12, 0), config)
}

fn problems_that_it_does_not_take() {
    let row_length = |k| {
        let needed = "a multiple of 64";
        shape((130, 3, k, 2), Refusal::RowLength { k, needed })
    };
    let scales = Refusal::Alignment { needed: 4 };
    for layout in ScaleLayout::ALL {
        valid(layout).refuses_problems(&[
            gpu((9, 0), "12.x"),
            gpu((10, 0), "12.x"),
            // Code for all of an architecture's successors has no such instruction, and code for one GPU runs on no
            // other.
            images((12, 0), "90a;100f;120"),
            images((12, 0), "121a"),
            images((12, 1), "120a"),
            activation(Activation::F16, "NVFP4"),
            activation(Activation::Bf16, "NVFP4"),
            activation(Activation::F32, "NVFP4"),
            row_length(32),
            row_length(544),
            problem(|a| a.operands.alignment.codes = 8, UNALIGNED),
            problem(|a| a.operands.alignment.vector_codes = 8, UNALIGNED),
            problem(|a| a.operands.alignment.scales = 2, scales),
            problem(|a| a.operands.alignment.vector_scales = 2, scales),
            shape((1 << 30, 1, 2048, 1), Refusal::BatchSize),
        ]);
        for (compute_capability, images) in
            [((12, 1), "120f"), ((12, 0), "120a"), ((12, 1), "121a")]
        {
            let mut of_family = valid(layout);
            of_family.gpu.compute_capability = compute_capability;
            of_family.gpu.images = images;
            assert_eq!(of_family.check(), Ok(()));
        }
    }
}

fn configs() {
    let valid = valid(ScaleLayout::Linear);
    valid.refuses_fields(&[
        ("warps", &[0, 9, u32::MAX]),
        ("stages", &[0, 1, 9, u32::MAX]),
        ("cluster", &[0, 3, u32::MAX]), // of two steps
        ("vectors", &[0, 4, 12, 256]),
    ]);
    valid.refuses_field("cluster", 9, |a| a.shape(130, 3, 4096, 2));
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs,
        shared_memory = || valid(ScaleLayout::Tiled128x4).needs_its_shared_memory();
}
