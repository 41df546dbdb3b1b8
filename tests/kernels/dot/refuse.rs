//! Refusals of the dot kernel.

use std::collections::BTreeSet;

use nvfp4_gemv::kernel::{Config, DotConfig, Kernel};
use nvfp4_gemv::{Activation, Refusal, ScaleLayout};

use crate::support::fields;
use crate::support::refuse::{Asked, activation, gpu, images, problem, shape};

fn valid() -> Asked {
    let config = DotConfig {
        blocks_per_load: 2,
        warps: 4,
        k_split: 2,
        ctas: 7,
        ..DotConfig::DEFAULT
    };
    Asked::new((256, 2, 512, 3), ScaleLayout::Linear, (9, 0), config)
}

fn gpus_types_and_sizes() {
    valid().refuses_problems(&[
        gpu((7, 5), "8.0 or newer"),
        images((9, 0), "120f"),
        activation(Activation::F16, "NVFP4"),
        activation(Activation::F32, "NVFP4"),
        shape((256, 8, 131_072, 1), Refusal::VectorMemory),
        shape((256, 1, 1 << 20, 1), Refusal::VectorMemory),
        problem(|a| a.gpu.shared_bytes = 1 << 10, Refusal::VectorMemory),
    ]);
}

fn configs() {
    valid().refuses_fields(&[
        ("blocks_per_load", &[0, 3, 8]),
        ("warps", &[0, 17]),
        ("k_split", &[0, 3, 32]),
        ("ctas", &[0, u32::MAX]),
    ]);
    let changes: [fn(&mut Asked); 3] = [
        |a| a.shape(256, 2, 528, 3),
        |a| a.operands.alignment.codes = 8,
        |a| a.operands.alignment.scales = 1,
    ];
    for change in changes {
        valid().refuses_field("blocks_per_load", 2, change);
    }
    valid().refuses_field("warps", 9, |a| a.shape(256, 3, 512, 3));
    // Loads of one block are for such weights.
    let mut narrow = valid();
    narrow.operands.alignment.scales = 1;
    fields::set(&mut narrow.config, "blocks_per_load", 1);
    assert_eq!(narrow.check(), Ok(()));
    // Loads of four blocks are Blackwell's.
    let mut wide = valid();
    fields::set(&mut wide.config, "blocks_per_load", 4);
    let (found, needed) = ((9, 0), "10.0 or newer");
    let why = Refusal::ComputeCapability { found, needed };
    assert_eq!(wide.check(), Err(why));
}

/// Loads of four blocks, on a GPU that has them, of weights that allow them.
fn four_blocks_a_load() {
    let blackwell = |k: usize, codes: u32, scales: u32, images: &'static str| {
        let mut asked = Asked::new((256, 1, k, 1), ScaleLayout::Linear, (10, 0), valid().config);
        asked.operands.alignment.codes = codes;
        asked.operands.alignment.scales = scales;
        asked.gpu.images = images;
        asked
    };
    let default = |asked: &Asked| match asked.job(|job| Kernel::Dot.default_config(job)) {
        Ok(Config::Dot(config)) => config.blocks_per_load,
        other => panic!("{other:?}"),
    };
    for (blocks, k, codes, scales, images) in [
        (4, 512, 32, 4, "80;100f"),
        (4, 512, 32, 4, "80;100a"),
        (2, 512, 32, 4, "80;100"),
        (2, 96, 32, 4, "80;100f"),
        (1, 80, 32, 4, "80;100f"),
        (2, 512, 16, 4, "80;100f"),
        (1, 512, 8, 4, "80;100f"),
        (2, 512, 32, 2, "80;100f"),
        (1, 512, 32, 1, "80;100f"),
    ] {
        let mut asked = blackwell(k, codes, scales, images);
        assert_eq!(default(&asked), blocks, "{k} {codes} {scales} {images}");
        let candidates = asked.job(|job| Kernel::Dot.candidates(job));
        let widths: BTreeSet<u32> = candidates
            .iter()
            .map(|candidate| match candidate {
                Config::Dot(config) => config.blocks_per_load,
                other => panic!("{other:?}"),
            })
            .collect();
        let expected: &[u32] = match blocks {
            4 => &[2, 4],
            2 => &[2],
            _ => &[1],
        };
        assert!(widths.iter().eq(expected), "{widths:?}");
        fields::set(&mut asked.config, "blocks_per_load", 4);
        assert_eq!(asked.check().is_ok(), blocks == 4);
    }
}

crate::trials! {
    host:
        gpus_types_and_sizes, configs, four_blocks_a_load,
        shared_memory = || valid().needs_its_shared_memory();
}
