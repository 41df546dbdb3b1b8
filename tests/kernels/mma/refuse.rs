//! What the mma kernel refuses.

use nvfp4_gemv::kernel::MmaConfig;
use nvfp4_gemv::{Activation, Operands, Refusal, ScaleLayout};

use crate::support::fields;
use crate::support::refuse::{Asked, UNALIGNED, activation, gpu, images, problem, shape};

fn valid() -> Asked {
    let config = MmaConfig {
        tiles: 4,
        parts: 2,
        chunk: 4,
        cluster: 2,
        vectors: 16,
    };
    Asked::new((130, 12, 576, 2), ScaleLayout::Linear, (9, 0), config)
}

fn problems_that_it_does_not_take() {
    for activation in [Activation::Nvfp4, Activation::F16, Activation::Bf16] {
        for layout in ScaleLayout::ALL {
            let mut valid = valid();
            valid.operands = Operands::new(activation, layout);
            problems_of(&valid);
        }
    }
}

fn problems_of(valid: &Asked) {
    let row_length = |k| {
        let needed = "a multiple of 64";
        shape((130, 3, k, 2), Refusal::RowLength { k, needed })
    };
    valid.refuses_problems(&[
        gpu((7, 5), "8.0 or newer"),
        images((9, 0), "120f"),
        activation(Activation::F32, "NVFP4, f16 and bf16"),
        row_length(16),
        row_length(96),
        row_length(544),
        problem(|a| a.operands.alignment.codes = 8, UNALIGNED),
        problem(|a| a.operands.alignment.scales = 2, UNALIGNED),
        shape((1 << 30, 1, 64, 4), Refusal::Rows),
    ]);
}

fn configs() {
    let valid = valid();
    valid.refuses_fields(&[
        ("tiles", &[0, 17, u32::MAX]),
        ("parts", &[0, 3, 16, u32::MAX]),
        ("chunk", &[0, 3, 5]),
        ("cluster", &[0, 3, 16]),
        ("vectors", &[0, 4, 12, 128]),
    ]);
    // 18 warps; and 10 with many vectors.
    valid.refuses_field("tiles", 9, |_| ());
    valid.refuses_field("tiles", 5, |a| {
        a.shape(130, 100, 576, 2);
        fields::set(&mut a.config, "vectors", 64);
    });
    // More of the vectors than eight warps hold.
    valid.refuses_field("chunk", 6, |a| a.shape(130, 12, 576, 2));
    // No clusters before Hopper.
    valid.refuses_field("cluster", 2, |a| a.gpu.compute_capability = (8, 9));
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs,
        shared_memory = || valid().needs_its_shared_memory();
}
