//! Refusals of the tcgen05 kernel.

use nvfp4_gemv::kernel::Tcgen05Config;
use nvfp4_gemv::{Activation, RawWorkspace, Refusal, ScaleLayout};

use crate::support::refuse::{Asked, UNALIGNED, activation, gpu, images, problem, shape};

fn valid() -> Asked {
    let config = Tcgen05Config {
        step: 256,
        stages: 3,
        ctas: 3,
        divided: true,
        ..Tcgen05Config::DEFAULT
    };
    Asked::new((130, 3, 512, 2), ScaleLayout::Tiled128x4, (10, 0), config)
}

fn problems_that_it_does_not_take() {
    let linear = |operand| Refusal::ScaleLayout { operand };
    let (weights, vectors) = (linear("weights' scales"), linear("vectors' scales"));
    let (k, needed) = (496, "a multiple of 32");
    valid().refuses_problems(&[
        activation(Activation::Bf16, "NVFP4"),
        problem(|a| a.operands.weight_layout = ScaleLayout::Linear, weights),
        problem(|a| a.operands.vector_layout = ScaleLayout::Linear, vectors),
        shape((130, 3, k, 2), Refusal::RowLength { k, needed }),
        problem(|a| a.operands.alignment.codes = 8, UNALIGNED),
        problem(|a| a.operands.alignment.scales = 4, UNALIGNED),
        problem(|a| a.operands.alignment.vectors = 8, UNALIGNED),
        shape((1 << 30, 1, 2048, 1), Refusal::BatchSize),
        gpu((9, 0), "10.x"),
        gpu((12, 0), "10.x"),
        // Code for all of an architecture's successors has no tensor memory.
        images((10, 0), "90a;100"),
        images((10, 3), "100a"),
    ]);
    // Vectors of three digits are one pass of 128, or too many; those of four are divided among passes.
    let takes = "vectors of 3 or 5 digits only while a pass has room for all of them: 128 digits, or fewer where a config \
                 says so";
    for (n, digits, taken) in [
        (42, 3, true),
        (43, 3, false),
        (25, 5, true),
        (26, 5, false),
        (999, 4, true),
    ] {
        let mut asked = valid();
        asked.shape(130, n, 512, 2);
        asked.operands.digits = digits;
        let why = asked.job(|job| asked.config.kernel().available(job));
        assert_eq!(
            why,
            if taken {
                Ok(())
            } else {
                Err(Refusal::Digits { digits, takes })
            }
        );
    }
    let mut family = valid();
    family.gpu.compute_capability = (10, 3);
    family.gpu.images = "100f";
    assert_eq!(family.check(), Ok(()));
}

fn configs() {
    valid().refuses_fields(&[
        ("step", &[0, 128, 384, 1024, u32::MAX]),
        ("stages", &[0, 1, 13, u32::MAX]),
        ("ctas", &[0, 513, u32::MAX]),
    ]);
    // Two CTAs an SM have room at most.
    valid().refuses_field("ctas", 3, |a| {
        a.gpu.multiprocessors = 1;
        a.shape(130, 64, 512, 2);
    });
    // Nine stages are too many even with more shared memory than any GPU has.
    valid().refuses_field("stages", 9, |a| {
        a.gpu.shared_bytes = 1 << 20;
        a.shape(130, 128, 512, 2);
    });
}

fn a_workspace_where_tiles_are_divided() {
    let mut asked = valid();
    let needed = asked.job(|job| asked.config.workspace_bytes(job));
    // Counters, and two parts for each of three CTAs but the last: 128 rows of four vectors.
    assert_eq!(needed, RawWorkspace::COUNTER_BYTES + 5 * 128 * 4 * 4);
    asked.operands.workspace = needed;
    assert_eq!(asked.check(), Ok(()));
    asked.operands.workspace = needed - 1;
    let given = needed - 1;
    assert_eq!(asked.check(), Err(Refusal::Workspace { needed, given }));
    // Tiles that nobody shares need no workspace.
    asked.operands.workspace = 0;
    for (ctas, divided) in [(4, true), (2, true), (1, true), (3, false)] {
        asked.config = Tcgen05Config {
            step: 256,
            stages: 3,
            ctas,
            divided,
            ..Tcgen05Config::DEFAULT
        }
        .into();
        assert_eq!(asked.job(|job| asked.config.workspace_bytes(job)), 0);
        assert_eq!(asked.check(), Ok(()), "{ctas} {divided}");
    }
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs, a_workspace_where_tiles_are_divided,
        shared_memory = || valid().needs_its_shared_memory();
}
