//! What the dot kernel refuses.

use std::collections::BTreeSet;

use nvfp4_gemv::kernel::{Config, DotConfig, Kernel};
use nvfp4_gemv::{Activation, Operands, Refusal, ScaleLayout};

use crate::support::refuse::{Asked, fields, no_image, problems, takes, too_old};

fn valid() -> Asked {
    let config = DotConfig {
        blocks_per_load: 2,
        warps: 4,
        k_split: 2,
        ctas: 7,
    };
    Asked::new((256, 2, 512, 3), ScaleLayout::Linear, (9, 0), config)
}

fn config(asked: &mut Asked) -> &mut DotConfig {
    match &mut asked.config {
        Config::Dot(config) => config,
        other => panic!("{other:?}"),
    }
}

fn gpus_types_and_sizes() {
    problems(
        &valid(),
        &[
            (
                |a| a.gpu.compute_capability = (7, 5),
                too_old((7, 5), "8.0 or newer"),
            ),
            (|a| a.gpu.images = "120f", no_image((9, 0), "120f")),
            (
                |a| a.operands = Operands::new(Activation::F16, ScaleLayout::Linear),
                takes(Activation::F16, "NVFP4"),
            ),
            (
                |a| a.operands = Operands::new(Activation::F32, ScaleLayout::Linear),
                takes(Activation::F32, "NVFP4"),
            ),
            (|a| a.shape(256, 8, 131_072, 1), Refusal::VectorMemory),
            (|a| a.shape(256, 1, 1 << 20, 1), Refusal::VectorMemory),
            (|a| a.gpu.shared_bytes = 1 << 10, Refusal::VectorMemory),
        ],
    );
}

fn configs() {
    fields(
        &valid(),
        &[
            (|a| config(a).blocks_per_load = 0, "blocks_per_load", 0),
            (|a| config(a).blocks_per_load = 3, "blocks_per_load", 3),
            (|a| config(a).blocks_per_load = 8, "blocks_per_load", 8),
            (|a| config(a).warps = 0, "warps", 0),
            (|a| config(a).warps = 17, "warps", 17),
            (|a| config(a).k_split = 0, "k_split", 0),
            (|a| config(a).k_split = 3, "k_split", 3),
            (|a| config(a).k_split = 32, "k_split", 32),
            (|a| config(a).ctas = 0, "ctas", 0),
            (|a| config(a).ctas = u32::MAX, "ctas", u32::MAX),
            (|a| a.shape(256, 2, 528, 3), "blocks_per_load", 2),
            (|a| a.operands.alignment.codes = 8, "blocks_per_load", 2),
            (|a| a.operands.alignment.scales = 1, "blocks_per_load", 2),
            (
                |a| {
                    a.shape(256, 3, 512, 3);
                    config(a).warps = 9;
                },
                "warps",
                9,
            ),
        ],
    );
    // Loads of one block are for such weights.
    let mut narrow = valid();
    narrow.operands.alignment.scales = 1;
    config(&mut narrow).blocks_per_load = 1;
    assert_eq!(narrow.check(), Ok(()));
    // Loads of four blocks are Blackwell's.
    let mut wide = valid();
    config(&mut wide).blocks_per_load = 4;
    assert_eq!(wide.check(), Err(too_old((9, 0), "10.0 or newer")));
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
        config(&mut asked).blocks_per_load = 4;
        assert_eq!(asked.check().is_ok(), blocks == 4);
    }
}

fn shared_memory() {
    crate::support::refuse::shared_memory(&valid());
}

crate::trials! {
    host: gpus_types_and_sizes, configs, four_blocks_a_load, shared_memory;
}
