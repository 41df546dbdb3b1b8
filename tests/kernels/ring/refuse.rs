//! What the ring kernel refuses.

use nvfp4_gemv::kernel::{Config, RingConfig};
use nvfp4_gemv::{Activation, Operands, Refusal, ScaleLayout};

use crate::support::refuse::{Asked, UNALIGNED, fields, no_image, problems, takes, too_old};

/// Two batches of 132 rows.
fn valid() -> Asked {
    let config = RingConfig {
        chunks: 1,
        groups: 4,
        rows: 4,
        depth: 3,
        granule: 1,
        cached: true,
        ctas: 66,
    };
    Asked::new((132, 1, 512, 2), ScaleLayout::Linear, (9, 0), config)
}

fn config(asked: &mut Asked) -> &mut RingConfig {
    match &mut asked.config {
        Config::Ring(config) => config,
        other => panic!("{other:?}"),
    }
}

fn row_length(k: usize, needed: &'static str) -> Refusal {
    Refusal::RowLength { k, needed }
}

fn problems_that_it_does_not_take() {
    problems(
        &valid(),
        &[
            (
                |a| a.gpu.compute_capability = (8, 9),
                too_old((8, 9), "9.0 or newer"),
            ),
            (|a| a.gpu.images = "80", no_image((9, 0), "80")),
            (
                |a| a.operands = Operands::new(Activation::F16, ScaleLayout::Linear),
                takes(Activation::F16, "NVFP4"),
            ),
            (
                |a| a.shape(132, 1, 384, 2),
                row_length(384, "a multiple of 256"),
            ),
            (
                |a| a.shape(132, 1, 33_024, 2),
                row_length(33_024, "32768 at most"),
            ),
            (|a| a.operands.alignment.codes = 8, UNALIGNED),
            (|a| a.operands.alignment.scales = 8, UNALIGNED),
            (|a| a.operands.alignment.vectors = 8, UNALIGNED),
            (
                |a| a.shape(132, 2, 512, 2),
                Refusal::Vectors { n: 2, most: 1 },
            ),
            (
                |a| a.shape(133, 1, 512, 2),
                Refusal::RowsOfBatch { m: 133, of: 4 },
            ),
            (
                |a| a.operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4),
                Refusal::RowsOfBatch { m: 132, of: 128 },
            ),
            (|a| a.shape(1 << 30, 1, 256, 2), Refusal::Rows),
            // Places of batches are found by multiplying, exactly only up to here.
            (|a| a.shape(12, 1, 256, 1 << 27), Refusal::Rows),
        ],
    );
}

fn configs() {
    fields(
        &valid(),
        &[
            (|a| config(a).chunks = 0, "chunks", 0),
            (|a| config(a).chunks = 3, "chunks", 3),
            (|a| config(a).groups = 0, "groups", 0),
            (|a| config(a).groups = 17, "groups", 17),
            (|a| config(a).rows = 3, "rows", 3),
            (|a| config(a).depth = 0, "depth", 0),
            (|a| config(a).depth = 9, "depth", 9),
            (|a| config(a).granule = 2, "granule", 2),
            (|a| config(a).ctas = 0, "ctas", 0),
            (|a| config(a).ctas = 265, "ctas", 265), // of 264 rows
            (
                |a| {
                    config(a).granule = 4;
                    config(a).ctas = 67; // of 66 granules
                },
                "ctas",
                67,
            ),
            (
                |a| {
                    a.shape(132, 1, 4096, 2);
                    config(a).groups = 5; // of four warps each
                },
                "groups",
                5,
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
