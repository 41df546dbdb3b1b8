//! What the packed kernel refuses.

use nvfp4_gemv::Refusal;

use crate::many_vectors::refuse::{self, refuses_fields, refuses_problems};
use crate::support::refuse::{Asked, gpu, problem, shape};

use super::sim::KERNEL;

fn valid() -> Asked {
    refuse::valid((KERNEL.config)([1, 2, 4, 2, 16]))
}

fn problems_that_it_does_not_take() {
    refuses_problems(&valid(), || {
        // Two batches of 12 vectors, in the place of 16, of five steps of 128 16-bit elements.
        let least = 2 * 16 * 5 * 256;
        let workspace = |given| {
            let why = Refusal::Workspace {
                needed: least,
                given,
            };
            problem(move |asked| asked.operands.workspace = given, why)
        };
        vec![
            gpu((8, 9), "9.0"),
            gpu((10, 0), "9.0"),
            workspace(0),
            workspace(least - 1),
            shape((16, 1, 1 << 15, 1 << 20), Refusal::Vectors),
        ]
    });
}

fn configs() {
    let valid = valid();
    refuses_fields(&valid);
    valid.refuses_fields(&[
        ("tiles", &[0, 3, 5, u32::MAX]),
        ("vectors", &[0, 4, 12, 256]),
    ]);
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs,
        shared_memory = || valid().needs_its_shared_memory();
}
