//! Faults planted in `gemv_ring`, like those of the tiled kernels in planted_faults.rs.

use nvfp4_gemv::{Activation, FloatType, ScaleLayout};
use ptx_sim::mutate::{Check, Kernel, Planted, Ran, Subject, schedules};
use ptx_sim::{Options, SimError};

use super::super::planted_faults::{demand, no_arithmetic};
use super::launch::Run;
use super::{Cutting, cutting};
use crate::kernels::Launched;
use crate::loaded::Extras;
use crate::operands::Operands;
use crate::ptx;
use crate::tiled::launch::Comparison;

/// Rings that go round several times, with one stage and with several of a group, groups that share a
/// producer, warps that share a row, CTAs that begin and end within units and have several batches, both
/// layouts, more rows than threads.
fn cases(chunks: u32) -> [Cutting; 5] {
    use ScaleLayout::{Linear, Tiled128x4};
    [
        cutting((56, 1280 * chunks as usize, 1), Linear, (2, 2, 4, 1)),
        cutting((20, 256, 3), Linear, (2, 1, 1, 3)),
        cutting((130, 256, 1), Tiled128x4, (1, 3, 1, 6)),
        cutting((164, 256, 1), Linear, (5, 1, 4, 1)),
        cutting((40, 256, 1), Linear, (1, 2, 4, 1)),
    ]
}

/// Of the kernel with `chunks` and `rows`.
fn subject(chunks: u32, rows: u32) -> Option<Subject> {
    let module = ptx::compile("gemv_ring", "compute_90a")?;
    let mut kernel = None;
    let mut host = None;
    let mut launches = Vec::new();
    for (i, case) in cases(chunks).into_iter().enumerate() {
        let case = case.on((chunks, rows, true)).expect("a legal cut");
        let (shape, cut) = (case.shape, case.cut);
        let operands = Operands::integers(shape, Activation::Nvfp4, 7).with_row_alpha();
        // Kept until the test ends: the checks may run on any thread at any time.
        let operands: &'static Operands = Box::leak(Box::new(operands));
        let extras = Extras {
            weight_layout: case.layout,
            vector_layout: ScaleLayout::ALL[i % 2],
            element: FloatType::ALL[i % 3],
            vector_alpha: i == 1,
        };
        let run = Run::new(&module, operands, cut, extras);
        let (launch, entry) = run.launched();
        let kernel = kernel.get_or_insert_with(|| Kernel::new(&module, &entry).expect(&entry));
        host = Some(launch);
        let module = kernel.module().clone();
        let check = move |planted: &Planted, options: &Options| -> Result<Ran, SimError> {
            let run = Run::new(&module, operands, cut, extras);
            let launch = planted.launch(run.launched().0)?;
            let options = Options {
                uninitialised: case.uninitialised(7),
                ..options.clone()
            };
            let report = run.launch(planted.program(), &launch, &options)?;
            let wrong = run.difference(Comparison::Exact);
            Ok(Ran { report, wrong })
        };
        launches.push((format!("{shape}"), Box::new(check) as Box<Check<'static>>));
    }
    Some(Subject {
        name: "gemv_ring".into(),
        kernel: kernel.expect("there are cases"),
        host,
        launches,
        schedules: schedules(3),
        pick: no_arithmetic,
    })
}

const LIST: &str = include_str!("equivalent_faults.txt");

#[test]
fn two_stages_a_unit() {
    demand(subject(1, 2), LIST);
}

#[test]
fn one_stage_a_unit() {
    demand(subject(2, 4), LIST);
}
