//! What the direct kernel refuses: it takes every problem that a GPU of its architectures has.

use nvfp4_gemv::kernel::{Config, DirectConfig, Kernel};
use nvfp4_gemv::{Activation, Operands, ScaleLayout};

use crate::support::refuse::{Asked, fields, no_image, problems, too_old};

fn valid() -> Asked {
    let config = DirectConfig {
        blocks_per_load: 2,
        warps: 4,
        k_split: 2,
    };
    Asked::new((130, 2, 64, 3), ScaleLayout::Linear, (9, 0), config)
}

fn config(asked: &mut Asked) -> &mut DirectConfig {
    match &mut asked.config {
        Config::Direct(config) => config,
        other => panic!("{other:?}"),
    }
}

fn gpus() {
    problems(
        &valid(),
        &[
            (
                |a| a.gpu.compute_capability = (7, 5),
                too_old((7, 5), "8.0 or newer"),
            ),
            (|a| a.gpu.images = "120f", no_image((9, 0), "120f")),
        ],
    );
}

fn configs() {
    fields(
        &valid(),
        &[
            (|a| config(a).blocks_per_load = 0, "blocks_per_load", 0),
            (|a| config(a).blocks_per_load = 3, "blocks_per_load", 3),
            (|a| config(a).blocks_per_load = 4, "blocks_per_load", 4),
            (|a| config(a).warps = 0, "warps", 0),
            (|a| config(a).warps = 9, "warps", 9),
            (|a| config(a).warps = u32::MAX, "warps", u32::MAX),
            (|a| config(a).k_split = 0, "k_split", 0),
            (|a| config(a).k_split = 3, "k_split", 3),
            (|a| config(a).k_split = 8, "k_split", 8), // of four warps
            // Loads of two blocks, which rows or addresses do not allow.
            (|a| a.shape(130, 2, 48, 3), "blocks_per_load", 2),
            (|a| a.operands.alignment.codes = 8, "blocks_per_load", 2),
            (|a| a.operands.alignment.scales = 1, "blocks_per_load", 2),
        ],
    );
}

/// Any type, layout, alignment and shape.
fn takes_everything() {
    for activation in Activation::ALL {
        for layout in ScaleLayout::ALL {
            for sizes in [(1, 1, 16, 1), (130, 16, 131_072, 2), (5, 3, 48, 70_000)] {
                for alignment in [8, 16, 32] {
                    let mut asked = valid();
                    let (m, n, k, l) = sizes;
                    asked.shape(m, n, k, l);
                    asked.operands = Operands::new(activation, layout);
                    asked.operands.alignment.codes = alignment;
                    asked.operands.alignment.scales = alignment / 8;
                    asked.job(|job| {
                        let default = Kernel::Direct.default_config(job).unwrap();
                        assert_eq!(default.check(job), Ok(()));
                    });
                }
            }
        }
    }
}

crate::trials! {
    host: gpus, configs, takes_everything;
}
