//! Refusals of the stream kernel.

use nvfp4_gemv::kernel::{Kernel, StreamConfig};
use nvfp4_gemv::{Activation, Gpu, Operands, Refusal, ScaleLayout};

use crate::support::fields;
use crate::support::refuse::{Asked, IMAGES, gpu, images, problem, shape};

fn valid() -> Asked {
    let config = StreamConfig {
        warps: 12,
        stages: 4,
        vectors: 8,
        fetch: 128,
        ctas: 128,
        ..StreamConfig::DEFAULT
    };
    Asked::new((130, 3, 512, 2), ScaleLayout::Linear, (9, 0), config)
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
    let long_bf16 = |a: &mut Asked| {
        a.operands = Operands::new(Activation::Bf16, ScaleLayout::Linear);
        a.shape(130, 3, 131_072, 2);
    };
    valid.refuses_problems(&[
        gpu((7, 5), "8.0 or newer"),
        images((9, 0), "120f"),
        problem(
            |a| a.operands.alignment.scales = 2,
            Refusal::Alignment { needed: 4 },
        ),
        shape((1 << 30, 1, 256, 2), Refusal::Rows),
        shape((130, 8, 262_144, 1), Refusal::VectorMemory),
        problem(long_bf16, Refusal::VectorMemory),
    ]);
}

/// Any K, f32 vectors, and operands that copies of 16 bytes do not take.
fn what_the_ragged_unit_takes() {
    let valid = valid();
    let changes: [fn(&mut Asked); 7] = [
        |a| a.shape(130, 3, 16, 2),
        |a| a.shape(130, 3, 496, 2),
        |a| a.shape(130, 3, 544, 2),
        |a| a.operands.alignment.codes = 8,
        |a| a.operands.alignment.scales = 4,
        |a| a.operands.alignment.vectors = 1,
        |a| {
            a.operands = Operands::new(Activation::F32, ScaleLayout::Linear);
            fields::set(&mut a.config, "vectors", 4);
        },
    ];
    for change in changes {
        let mut asked = valid.clone();
        change(&mut asked);
        assert_eq!(
            asked.check(),
            Ok(()),
            "{} {:?}",
            asked.shape,
            asked.operands
        );
    }
}

fn configs() {
    let valid = valid();
    // Eight columns of three parts each.
    let f32 = Operands::new(Activation::F32, ScaleLayout::Linear);
    valid.refuses_field("vectors", 8, move |a| a.operands = f32);
    valid.refuses_fields(&[
        ("warps", &[0, 13, u32::MAX]), // of 12 for three vectors
        ("stages", &[0, u32::MAX, 2, 5, 34]),
        ("vectors", &[0, 3, 32]),
        ("fetch", &[64, 512]),
        ("behind", &[4, u32::MAX]), // of four stages
        ("ctas", &[0, 289]),        // of 288 rows in tiles of 16
    ]);
    // A pass of ragged rows has eight vectors at most.
    valid.refuses_field("vectors", 16, |a| a.shape(130, 3, 528, 2));
    valid.refuses_field("warps", 17, |a| a.shape(130, 1, 512, 2));
    // There are 128 fours of rows, the last ones of each batch empty.
    let tiled = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
    valid.refuses_field("ctas", 129, move |a| a.operands = tiled);
    // Sixteen warps, but in passes of two vectors.
    let mut pairs = valid.clone();
    fields::set(&mut pairs.config, "warps", 16);
    fields::set(&mut pairs.config, "vectors", 2);
    assert_eq!(pairs.check(), Ok(()));
    // A call may take as many passes as it needs.
    let mut one = valid.clone();
    fields::set(&mut one.config, "vectors", 1);
    one.shape(130, 1000, 512, 2);
    assert_eq!(one.check(), Ok(()));
}

/// Warps side by side take up to two vectors and whole steps. Steps of a row and warps must be as many as make groups:
/// here two steps of a row, and twelve warps.
fn warps_side_by_side() {
    let mut valid = valid();
    valid.shape(130, 2, 512, 2);
    let mut pairs = valid.clone();
    fields::set(&mut pairs.config, "beside", 2);
    assert_eq!(pairs.check(), Ok(()));
    valid.refuses_fields(&[("beside", &[0, 3, 4, 16])]);
    valid.refuses_field("beside", 2, |a| fields::set(&mut a.config, "warps", 11));
    for (n, k) in [(3, 512), (2, 768), (2, 528), (2, 1040)] {
        valid.refuses_field("beside", 2, |a| a.shape(130, n, k, 2));
    }
}

/// Sums in parts take whole steps, up to eight vectors a pass, and 16 warps; on Hopper alone.
fn sums_in_parts() {
    let mut valid = valid();
    fields::set(&mut valid.config, "part", 2);
    fields::set(&mut valid.config, "warps", 16);
    assert_eq!(valid.check(), Ok(()));
    let f32 = Operands::new(Activation::F32, ScaleLayout::Linear);
    valid.refuses_field("part", 2, move |a| a.operands = f32);
    valid.refuses_field("part", 2, |a| a.shape(130, 3, 528, 2));
    valid.refuses_field("part", 2, |a| fields::set(&mut a.config, "vectors", 16));
    valid.refuses_field("part", 2, |a| {
        a.shape(130, 2, 512, 2);
        fields::set(&mut a.config, "beside", 2);
    });
    valid.refuses_field("part", 2, |a| a.operands.select = true);
    valid.refuses_fields(&[("warps", &[0, 17])]);
    let mut longer = valid.clone();
    fields::set(&mut longer.config, "part", u32::MAX);
    assert_eq!(longer.check(), Ok(()));
    for capability in [(8, 0), (10, 0), (12, 0)] {
        let mut other = valid.clone();
        other.gpu = Gpu::of_compute_capability(capability, IMAGES);
        let refused = other.check().unwrap_err();
        assert!(
            matches!(refused, Refusal::ComputeCapability { .. }),
            "{refused}"
        );
    }
}

crate::trials! {
    host:
        problems_that_it_does_not_take, what_the_ragged_unit_takes, configs, warps_side_by_side,
        sums_in_parts,
        shared_memory = || valid().needs_its_shared_memory();
}
