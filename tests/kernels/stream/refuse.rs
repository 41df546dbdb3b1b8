//! What the stream kernel refuses.

use nvfp4_gemv::kernel::{Config, Kernel, StreamConfig};
use nvfp4_gemv::{Activation, Gpu, Operands, Refusal, ScaleLayout};

use crate::support::refuse::{
    Asked, IMAGES, UNALIGNED, fields, no_image, problems, takes, too_old,
};

fn valid() -> Asked {
    let config = StreamConfig {
        warps: 12,
        stages: 4,
        vectors: 8,
        fetch: 128,
        ctas: 128,
    };
    Asked::new((130, 3, 512, 2), ScaleLayout::Linear, (9, 0), config)
}

fn config(asked: &mut Asked) -> &mut StreamConfig {
    match &mut asked.config {
        Config::Stream(config) => config,
        other => panic!("{other:?}"),
    }
}

fn row_length(k: usize) -> Refusal {
    let needed = "a multiple of 256";
    Refusal::RowLength { k, needed }
}

fn problems_that_it_does_not_take() {
    for activation in [Activation::Nvfp4, Activation::F16, Activation::Bf16] {
        for layout in ScaleLayout::ALL {
            let mut valid = valid();
            valid.operands = Operands::new(activation, layout);
            problems_of(&valid);
        }
    }
    // Vectors that fit a data centre's GPU, and no workstation's.
    let mut long = Asked::new(
        (130, 1, 65_536, 1),
        ScaleLayout::Tiled128x4,
        (10, 3),
        valid().config,
    );
    long.operands = Operands::new(Activation::F16, ScaleLayout::Tiled128x4);
    let available = |asked: &Asked| asked.job(|job| Kernel::Stream.available(job));
    assert_eq!(available(&long), Ok(()));
    long.gpu = Gpu::of_compute_capability((12, 0), IMAGES);
    assert_eq!(available(&long), Err(Refusal::VectorMemory));
}

fn problems_of(valid: &Asked) {
    problems(
        valid,
        &[
            (
                |a| a.gpu.compute_capability = (7, 5),
                too_old((7, 5), "8.0 or newer"),
            ),
            (|a| a.gpu.images = "120f", no_image((9, 0), "120f")),
            (
                |a| a.operands = Operands::new(Activation::F32, ScaleLayout::Linear),
                takes(Activation::F32, "NVFP4, f16 and bf16"),
            ),
            (|a| a.shape(130, 3, 16, 2), row_length(16)),
            (|a| a.shape(130, 3, 128, 2), row_length(128)),
            (|a| a.shape(130, 3, 496, 2), row_length(496)),
            (|a| a.shape(130, 3, 544, 2), row_length(544)),
            (|a| a.operands.alignment.codes = 8, UNALIGNED),
            (|a| a.operands.alignment.scales = 8, UNALIGNED),
            (|a| a.operands.alignment.vectors = 8, UNALIGNED),
            (|a| a.shape(1 << 30, 1, 256, 2), Refusal::Rows),
            (|a| a.shape(130, 8, 131_072, 1), Refusal::VectorMemory),
            (
                |a| {
                    a.operands = Operands::new(Activation::Bf16, ScaleLayout::Linear);
                    a.shape(130, 3, 131_072, 2);
                },
                Refusal::VectorMemory,
            ),
        ],
    );
}

fn configs() {
    fields(
        &valid(),
        &[
            (|a| config(a).warps = 0, "warps", 0),
            (|a| config(a).warps = 13, "warps", 13), // of 12 for three vectors
            (|a| config(a).warps = u32::MAX, "warps", u32::MAX),
            (
                |a| {
                    a.shape(130, 1, 512, 2);
                    config(a).warps = 17;
                },
                "warps",
                17,
            ),
            (|a| config(a).stages = 0, "stages", 0),
            (|a| config(a).stages = u32::MAX, "stages", u32::MAX),
            (|a| config(a).stages = 2, "stages", 2),
            (|a| config(a).stages = 5, "stages", 5),
            (|a| config(a).stages = 34, "stages", 34),
            (|a| config(a).vectors = 0, "vectors", 0),
            (|a| config(a).vectors = 3, "vectors", 3),
            (|a| config(a).vectors = 16, "vectors", 16),
            (|a| config(a).fetch = 64, "fetch", 64),
            (|a| config(a).fetch = 512, "fetch", 512),
            (|a| config(a).ctas = 0, "ctas", 0),
            (|a| config(a).ctas = 289, "ctas", 289), // of 288 rows in tiles of 16
            (
                |a| {
                    a.operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
                    config(a).ctas = 129; // of 128 fours of rows, the last ones of each batch empty
                },
                "ctas",
                129,
            ),
            (
                |a| {
                    a.shape(130, 5, 512, 2);
                    config(a).vectors = 1; // five passes
                },
                "vectors",
                1,
            ),
        ],
    );
    // Sixteen warps, but in passes of two vectors.
    let mut pairs = valid();
    config(&mut pairs).warps = 16;
    config(&mut pairs).vectors = 2;
    assert_eq!(pairs.check(), Ok(()));
}

fn shared_memory() {
    crate::support::refuse::shared_memory(&valid());
}

crate::trials! {
    host: problems_that_it_does_not_take, configs, shared_memory;
}
