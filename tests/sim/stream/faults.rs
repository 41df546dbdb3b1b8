//! Faults planted in `gemv_stream`, like those of the tiled kernels in planted_faults.rs.

use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape};
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

/// Queues that are used several times, warps that share tiles and that have several, one without work, CTAs
/// within tiles and batches and with three batches, both layouts; loops that go round more than once.
fn cases() -> [Cutting; 4] {
    use ScaleLayout::{Linear, Tiled128x4};
    [
        cutting((37, 1792, 1), Linear, (2, 3, 1)),
        cutting((21, 256, 3), Linear, (3, 4, 2)),
        cutting((9, 1024, 2), Tiled128x4, (1, 6, 5)),
        cutting((5, 2560, 1), Linear, (12, 3, 1)),
    ]
}

/// Of the kernel for `n` NVFP4 vectors.
fn subject(n: usize) -> Option<Subject> {
    let module = ptx::compile("gemv_stream", "compute_90a")?;
    let mut kernel = None;
    let mut host = None;
    let mut launches = Vec::new();
    for (
        i,
        Cutting {
            m,
            k,
            l,
            layout,
            cut,
            ..
        },
    ) in cases().into_iter().enumerate()
    {
        let shape = Shape::new(m, n, k, l).unwrap();
        let operands = Operands::integers(shape, Activation::Nvfp4, 7).with_row_alpha();
        // Kept until the test ends: the checks may run on any thread at any time.
        let operands: &'static Operands = Box::leak(Box::new(operands));
        let extras = Extras {
            weight_layout: layout,
            vector_layout: ScaleLayout::ALL[i % 2],
            element: FloatType::ALL[i % 3],
            vector_alpha: i == 1,
        };
        let run = Run::new(&module, operands, cut, extras);
        let (launch, entry) = run.launches().remove(0);
        let kernel = kernel.get_or_insert_with(|| Kernel::new(&module, &entry).expect(&entry));
        host = Some(launch);
        let module = kernel.module().clone();
        let check = move |planted: &Planted, options: &Options| -> Result<Ran, SimError> {
            let run = Run::new(&module, operands, cut, extras);
            let (launch, _) = run.launches().remove(0);
            let launch = planted.launch(launch)?;
            let report = run.launch(planted.program(), &launch, options)?;
            let wrong = run.difference(Comparison::Exact);
            Ok(Ran { report, wrong })
        };
        launches.push((format!("{shape}"), Box::new(check) as Box<Check<'static>>));
    }
    Some(Subject {
        name: "gemv_stream".into(),
        kernel: kernel.expect("there are cases"),
        host,
        launches,
        schedules: schedules(3),
        pick: no_arithmetic,
    })
}

#[test]
fn lanes_that_keep_to_their_blocks() {
    demand(subject(1), include_str!("equivalent_faults.txt"));
}

#[test]
fn weights_that_carry_their_scales() {
    demand(subject(3), include_str!("equivalent_faults.txt"));
}
