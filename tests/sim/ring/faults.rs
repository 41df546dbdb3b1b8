//! Faults planted in `gemv_ring`, like those of the tiled kernels in planted_faults.rs.

use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape};
use ptx_sim::mutate::{Check, Kernel, Planted, Ran, Subject, schedules};
use ptx_sim::{Module, Options, Program, SimError};

use super::super::planted_faults::{demand, no_arithmetic};
use super::launch::{Extras, Run};
use super::operands::Operands;
use super::{Cutting, cutting};
use crate::ptx;
use crate::schedules::few;
use crate::tiled::launch::Comparison;

/// Rings that are used several times, with one stage a group and with more, a group without part of a
/// tile, CTAs within tiles and batches and with three batches, both layouts, windows of one tile and more;
/// loops that go round more than once.
fn cases() -> [Cutting; 5] {
    use ScaleLayout::{Linear, Tiled128x4};
    [
        cutting((37, 1024, 1), Linear, (2, 2, 2, 1), 1),
        cutting((21, 256, 3), Linear, (1, 2, 4, 2), 2),
        cutting((9, 1024, 2), Tiled128x4, (1, 1, 3, 5), 2),
        cutting((21, 256, 3), Linear, (1, 1, 2, 1), 3),
        cutting((8, 2304, 1), Linear, (9, 1, 1, 1), 1),
    ]
}

#[test]
fn planted() {
    let Some(module) = ptx::compile("gemv_ring", "compute_90a") else {
        return;
    };
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
        let shape = Shape::new(m, 1, k, l).unwrap();
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
    let subject = Subject {
        name: "gemv_ring".into(),
        kernel: kernel.expect("there are cases"),
        host,
        launches,
        schedules: schedules(3),
        pick: no_arithmetic,
    };
    demand(Some(subject), include_str!("equivalent_faults.txt"));
}

/// An arrival at once, before this thread's copies of scales have landed: no kind of planted fault.
#[test]
fn scales_need_an_arrival_that_waits_for_them() {
    let Some(text) = ptx::source("csrc/launch/gemv_ring.cu", "compute_90a") else {
        return;
    };
    let wrong = text.replace(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [",
        "mbarrier.arrive.release.cta.shared::cta.b64 _, [",
    );
    assert_ne!(wrong, text);
    let module = Module::parse(&wrong).unwrap();
    let [
        Cutting {
            m,
            k,
            l,
            layout,
            cut,
            ..
        },
        ..,
    ] = cases();
    let shape = Shape::new(m, 1, k, l).unwrap();
    let operands = Operands::integers(shape, Activation::Nvfp4, 7);
    let extras = Extras {
        weight_layout: layout,
        vector_layout: layout,
        element: FloatType::F32,
        vector_alpha: false,
    };
    for options in few(1) {
        let run = Run::new(&module, &operands, cut, extras);
        let (launch, entry) = run.launches().remove(0);
        let program = Program::new(&module, &entry).unwrap();
        let error = run
            .launch(&program, &launch, &options)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("was not waited for") || error.contains("nothing wrote"),
            "{error}"
        );
    }
}
