//! Refusals of the direct kernel: it takes every problem that a GPU of its architectures has.

use nvfp4_gemv::kernel::{DirectConfig, Kernel};
use nvfp4_gemv::{Activation, Operands, ScaleLayout};

use crate::support::refuse::{Asked, gpu, images};

fn valid() -> Asked {
    let config = DirectConfig {
        blocks_per_load: 2,
        warps: 4,
        k_split: 2,
        ..DirectConfig::DEFAULT
    };
    Asked::new((130, 2, 64, 3), ScaleLayout::Linear, (9, 0), config)
}

fn gpus() {
    valid().refuses_problems(&[gpu((7, 5), "8.0 or newer"), images((9, 0), "120f")]);
}

fn configs() {
    valid().refuses_fields(&[
        ("blocks_per_load", &[0, 3, 4]),
        ("warps", &[0, 9, u32::MAX]),
        ("k_split", &[0, 3, 8]), // of four warps
    ]);
    // Loads of two blocks, which rows or addresses do not allow.
    let changes: [fn(&mut Asked); 3] = [
        |a| a.shape(130, 2, 48, 3),
        |a| a.operands.alignment.codes = 8,
        |a| a.operands.alignment.scales = 1,
    ];
    for change in changes {
        valid().refuses_field("blocks_per_load", 2, change);
    }
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
