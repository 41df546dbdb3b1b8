//! Refusals of the ring kernel.

use nvfp4_gemv::kernel::{Call, Config, Kernel, RingConfig};
use nvfp4_gemv::{Activation, Operands, RawWorkspace, Refusal, ScaleLayout, Shape};

use crate::support::fields;
use crate::support::refuse::{Asked, UNALIGNED, activation, gpu, images, problem, shape};

/// A config that counts half of the units.
pub(crate) const COUNTING: RingConfig = RingConfig {
    chunks: 2,
    groups: 2,
    rows: 2,
    depth: 1,
    cached: true,
    ctas: 4,
    counted: 4,
    ..RingConfig::DEFAULT
};

/// Two batches of 132 rows.
fn valid() -> Asked {
    let config = RingConfig {
        chunks: 1,
        groups: 4,
        rows: 4,
        depth: 3,
        cached: true,
        ctas: 66,
        ..RingConfig::DEFAULT
    };
    Asked::new((132, 1, 512, 2), ScaleLayout::Linear, (9, 0), config)
}

fn problems_that_it_does_not_take() {
    let row_length = |k, needed| shape((132, 1, k, 2), Refusal::RowLength { k, needed });
    let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
    let tiled = move |a: &mut Asked| a.operands = operands;
    valid().refuses_problems(&[
        gpu((8, 9), "9.0 or newer"),
        images((9, 0), "80"),
        activation(Activation::F32, "NVFP4, f16 and bf16"),
        row_length(384, "a multiple of 256"),
        row_length(33_024, "32768 at most"),
        problem(|a| a.operands.alignment.codes = 8, UNALIGNED),
        problem(|a| a.operands.alignment.scales = 8, UNALIGNED),
        problem(|a| a.operands.alignment.vectors = 8, UNALIGNED),
        shape((133, 1, 512, 2), Refusal::RowsOfBatch { m: 133, of: 4 }),
        problem(tiled, Refusal::RowsOfBatch { m: 132, of: 128 }),
        shape((1 << 30, 1, 256, 2), Refusal::Rows),
        // Places of batches are found by multiplying, exactly only up to here.
        shape((12, 1, 256, 1 << 27), Refusal::Rows),
    ]);
}

fn configs() {
    valid().refuses_fields(&[
        ("chunks", &[0, 3]),
        ("groups", &[0, 17]),
        ("rows", &[3]),
        ("depth", &[0, 9]),
        ("granule", &[2]),
        ("ctas", &[0, 265]), // of 264 rows
    ]);
    // Each group keeps depth + 2 units of its own. There are 66 units, and 33 of them are not counted: eight for each
    // of four CTAs.
    let counted = |a: &mut Asked| a.config = COUNTING.into();
    let mut asked = valid();
    counted(&mut asked);
    assert_eq!(asked.check(), Ok(()));
    valid().refuses_field("counted", 8, counted);
    valid().refuses_field("counted", 7, counted);
    for (name, value) in [("chunks", 1), ("rows", 4), ("depth", 3), ("ctas", 7)] {
        valid().refuses_field("counted", 4, |a| {
            counted(a);
            fields::set(&mut a.config, name, value);
        });
    }
    // A matrix instruction for 16-bit vectors has two rows, and registers have room for two rows of two chunks.
    for activation in [Activation::F16, Activation::Bf16] {
        for rows in [1, 4] {
            valid().refuses_field("rows", rows, |a| {
                a.operands = Operands::new(activation, ScaleLayout::Linear);
                fields::set(&mut a.config, "chunks", 2);
            });
        }
    }
    // There are 66 granules.
    valid().refuses_field("ctas", 67, |a| fields::set(&mut a.config, "granule", 4));
    // Groups of four warps each.
    valid().refuses_field("groups", 5, |a| a.shape(132, 1, 4096, 2));
}

/// Without room for the counters, launches are the same as if nothing is counted.
fn without_a_workspace_all_is_dealt() {
    let shape = Shape::matrix(512, 512).expect("a shape");
    let call = Call::nowhere(&shape, Activation::Nvfp4, ScaleLayout::Linear, 32);
    let gpu = valid().gpu;
    let of = |counted, bytes| {
        let workspace = RawWorkspace {
            address: 1 << 50,
            bytes,
        };
        let call = call.with_workspace(workspace).expect("a workspace");
        let config = RingConfig {
            counted,
            ..COUNTING
        };
        let plan = Config::from(config)
            .plan(&call, &gpu, false)
            .expect("a plan");
        format!("{:?}", plan.launches())
    };
    let enough = RawWorkspace::COUNTER_BYTES;
    for bytes in [0, 4096, enough - 1] {
        assert_eq!(of(4, bytes), of(0, bytes));
    }
    assert!(of(4, enough).contains("gemv_ring_nvfp4_c2_r2_l1_counted"));
    assert!(!of(0, enough).contains("counted"));
}

/// If counting may gain, the candidates deal and count. Some of the candidates cannot count.
fn candidates_deal_and_count() {
    let mut asked = valid();
    asked.shape(28672, 1, 8192, 1);
    let candidates = asked.job(|job| Kernel::Ring.candidates(job));
    let with = |name, value| candidates.iter().any(|c| fields::get(c, name) == value);
    for counted in [0, 4, 6] {
        assert!(with("counted", counted), "{counted} eighths");
    }
    assert!(with("chunks", 1) && with("rows", 4));
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs, without_a_workspace_all_is_dealt, candidates_deal_and_count,
        shared_memory = || valid().needs_its_shared_memory();
}
