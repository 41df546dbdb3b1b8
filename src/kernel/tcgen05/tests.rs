//! Tests of defaults, shares and plans, by hand. `extremes.rs` tests that defaults and candidates are legal.

use std::mem::offset_of;

use proptest::prelude::*;

use super::super::Config;
use super::*;
use crate::gpu::Gpu;
use crate::operands::Operands;
use crate::shape::Dims;

type Mnkl = (usize, usize, usize, usize);

/// The answer of `ask` for a problem on a B200, with `workspace` bytes of workspace.
fn of<T>((m, n, k, l): Mnkl, workspace: u64, ask: impl FnOnce(&Job<'_>) -> T) -> T {
    let shape = Shape::new(Dims { m, n, k, l }).unwrap();
    let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
    let gpu = Gpu::of_compute_capability((10, 0), "100f");
    assert_eq!(gpu.multiprocessors, 148);
    let operands = operands.with_workspace(workspace);
    ask(&Job::new(&shape, &operands, &gpu))
}

const fn config(step: u32, stages: u32, ctas: u32, divided: bool) -> Tcgen05Config {
    Tcgen05Config {
        step,
        stages,
        ctas,
        divided,
        ..Tcgen05Config::DEFAULT
    }
}

const fn deal(steps: u64, unit: u64, ctas: u64, each: u64, more: u64) -> Deal {
    Deal {
        steps,
        unit,
        ctas,
        each,
        more,
    }
}

/// The contest's shapes, without N.
const CONTEST: [(usize, usize, usize); 3] = [(7168, 16384, 1), (4096, 7168, 8), (7168, 2048, 4)];

/// The shapes have 56 tiles of 64 steps, 256 of 28 and 224 of 8. All multiprocessors have work from the beginning to
/// the end, in one wave, and none has more than one step more than another.
#[test]
fn contest_shapes_are_one_balanced_wave() {
    let deals = [
        deal(64, 1, 148, 24, 32),
        deal(28, 1, 148, 48, 64),
        deal(8, 1, 148, 12, 16),
    ];
    for ((m, k, l), expected) in CONTEST.into_iter().zip(deals) {
        // Five stages of 22.5 KB are half of what an SM has. With more rows of the N operand, half of an SM holds too
        // little.
        for (n, stages) in [(1, 5), (3, 5), (8, 5), (16, 5), (17, 4), (64, 8), (128, 6)] {
            of((m, n, k, l), u64::MAX, |job| {
                let default = Tcgen05Config::default_for(job).unwrap();
                assert_eq!(default, config(256, stages, 148, true), "{}", job.shape);
                assert_eq!(default.deal(job.shape), expected);
                // A step has 128 rows of 128 bytes of codes and 16 of scales.
                let in_flight = u64::from(stages) * 128 * (128 + 16);
                assert_eq!(default.bytes_in_flight(job), in_flight);
                assert!(in_flight >= 48 << 10);
                // The next launch's CTA has room beside this launch's if stages are so small.
                assert_eq!(default.fit(job), if n < 64 { 2 } else { 1 });
            });
        }
    }
}

/// Each of 148 CTAs but the last has two parts of 128 rows. A part has sums of 4 to 128 vectors, a multiple of four.
#[test]
fn workspaces_by_hand() {
    for (n, floats) in [(1, 4), (3, 4), (8, 8), (17, 20), (128, 128), (129, 128)] {
        of((7168, n, 16384, 1), u64::MAX, |job| {
            let needed = config(256, 2, 148, true).workspace_bytes(job);
            assert_eq!(needed, 8192 + (2 * 148 - 1) * 128 * floats * 4, "{n}");
            // 56 CTAs have a tile each, 28 have two, and of 148 the others have none.
            for (ctas, divided) in [(56, true), (28, true), (148, false)] {
                assert_eq!(config(256, 2, ctas, divided).workspace_bytes(job), 0);
            }
        });
    }
}

/// The default without a workspace. Of 56 tiles, 56 CTAs would have 64 steps each instead of 25. Of 256 tiles, a CTA
/// has 56 steps instead of 49 and the three that sharing counts as. Of 224 tiles, a CTA has 16 steps either way.
#[test]
fn without_a_workspace_tiles_are_whole_unless_that_costs_a_quarter() {
    let [long, wide, short] = CONTEST.map(|(m, k, l)| {
        of((m, 1, k, l), 0, |job| {
            Tcgen05Config::default_for(job).map(|config| (config, config.deal(job.shape)))
        })
    });
    let needed = RawWorkspace::COUNTER_BYTES + 295 * 128 * 4 * 4;
    assert_eq!(long, Err(Refusal::Workspace { needed, given: 0 }));
    let whole = config(256, 5, 148, false);
    assert_eq!(wide, Ok((whole, deal(28, 28, 148, 1, 108))));
    assert_eq!(short, Ok((whole, deal(8, 8, 148, 1, 76))));
}

#[test]
fn odd_shapes_by_hand() {
    for (shape, expected, dealt) in [
        // Half an atom of one row.
        ((1, 1, 32, 1), config(256, 2, 1, true), deal(1, 1, 1, 1, 0)),
        // Ten steps of two tiles, two for each CTA.
        (
            (129, 3, 1248, 1),
            config(256, 2, 5, true),
            deal(5, 1, 5, 2, 0),
        ),
        // A tile of one step for each batch.
        (
            (7, 2, 256, 300),
            config(256, 3, 148, true),
            deal(1, 1, 148, 2, 4),
        ),
        // 512 steps: 68 CTAs have four, the others three.
        (
            (4096, 1, 4096, 1),
            config(256, 4, 148, true),
            deal(16, 1, 148, 3, 68),
        ),
    ] {
        of(shape, u64::MAX, |job| {
            let default = Tcgen05Config::default_for(job).unwrap();
            assert_eq!(default, expected, "{}", job.shape);
            assert_eq!(default.deal(job.shape), dealt);
        });
    }
}

/// 150 vectors are a pass of 128 and one of 22. Rows of 800 elements have four steps, or two of twice the length, and
/// their last atom has two scales.
#[test]
fn plans_by_hand() {
    let (m, n, k, l) = (300, 150, 800, 2);
    let shape = Shape::new(Dims { m, n, k, l }).unwrap();
    let call = Call::nowhere(&shape, Activation::Nvfp4, ScaleLayout::Tiled128x4, 0x1_0000);
    let gpu = Gpu::of_compute_capability((10, 0), "100f");
    let workspace = call.workspace.address;
    for (of, whole, pieces, deal, columns) in [
        // 24 steps: four CTAs have five, and the last one four.
        (config(256, 2, 5, true), false, 1, [4, 1, 4, 4], [512, 128]),
        // Six tiles of two steps: two CTAs have two of them, and two have one.
        (config(512, 2, 4, false), true, 2, [2, 2, 1, 2], [512, 256]),
    ] {
        let plan = Config::from(of).plan(&call, &gpu, true).unwrap();
        let [first, second] = plan.launches() else {
            panic!("{plan:?}");
        };
        let entries = ["gemv_tcgen05_n128", "gemv_tcgen05_n32"];
        assert_eq!([first.entry, second.entry], entries);
        for (launch, vectors, columns) in [(first, 128, columns[0]), (second, 22, columns[1])] {
            assert_eq!((launch.grid, launch.threads), ([of.ctas, 1, 1], 192));
            assert!(launch.dependent);
            let [weights, of_vectors] = launch.maps.as_slice() else {
                panic!("{launch:?}");
            };
            assert_eq!(weights.address, call.weights.codes);
            assert_eq!(weights.size, [400, 300, 2, 0]);
            assert_eq!(weights.box_size, [128, 128, 1, 0]);
            // The box and the tensor have as many rows as there are vectors, not as the instruction takes.
            assert_eq!(of_vectors.size, [400, vectors, 2, 0]);
            assert_eq!(of_vectors.box_size, [128, vectors as u32, 1, 0]);

            let bytes = launch.parameters.bytes();
            let words = bytes.chunks_exact(4);
            let words: Vec<u32> = words
                .map(|b| u32::from_ne_bytes(b.try_into().unwrap()))
                .collect();
            let [steps, unit, each, more] = deal;
            // m, n, tiles, atoms, last_scales, steps, pieces, stages, unit, each, more, dependent, tmem_columns
            let expected = [
                300,
                vectors as u32,
                3,
                13,
                2,
                steps,
                pieces,
                2,
                unit,
                each,
                more,
                1,
            ];
            assert_eq!(words[..12], expected);
            assert_eq!(words[12], columns);
            let address = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
            let places = [
                address(offset_of!(nvfp4_tcgen05_params, arrivals)),
                address(offset_of!(nvfp4_tcgen05_params, partial)),
            ];
            let expected = match whole {
                true => [0, 0],
                false => [workspace, workspace + 8192],
            };
            assert_eq!(places, expected);
        }
        // 1008 bytes align the stages, each of 20480 bytes a piece and 128 for each row of the N operand.
        let bytes = [128, 32].map(|rows| 1008 + 2 * pieces * (20480 + 128 * rows));
        assert_eq!([first.dynamic_shared, second.dynamic_shared], bytes);
    }
}

proptest! {
    /// Every unit is dealt to one CTA. No CTA has two units more than another, and each CTA has one.
    #[test]
    fn shares_are_equal(
        m in 1usize..40_000,
        k in 1usize..1000,
        l in 1usize..9,
        step in prop::sample::select(&STEPS),
        ctas in 1u32..=512,
        divided: bool,
    ) {
        of((m, 1, 32 * k, l), u64::MAX, |job| {
            let config = config(step, 2, ctas, divided);
            let deal = config.deal(job.shape);
            let steps = (32 * k).div_ceil(step as usize) as u64;
            let tiles = (m.div_ceil(128) * l) as u64;
            prop_assert_eq!(deal.steps, steps);
            prop_assert_eq!((deal.each * deal.ctas + deal.more) * deal.unit, tiles * steps);
            prop_assert!(deal.more < deal.ctas && deal.each > 0 && deal.ctas <= ctas.into());
            // A tile is shared if some CTA does not begin with a tile.
            let first = |cta: u64| (cta * deal.each + cta.min(deal.more)) * deal.unit;
            let shared = (0..deal.ctas).any(|cta| first(cta) % steps != 0);
            prop_assert_eq!(deal.shares(), shared);
            Ok(())
        })?;
    }
}
