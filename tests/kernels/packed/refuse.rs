//! Refusals of the packed kernel.

use nvfp4_gemv::Refusal;

use crate::many_vectors::refuse::{self, refuses_problems};
use crate::support::refuse::{Asked, gpu, problem, shape};

use super::sim::KERNEL;

fn valid() -> Asked {
    refuse::valid((KERNEL.config)([4, 1, 4, 2, 16]))
}

fn problems_that_it_does_not_take() {
    refuses_problems(&valid(), || {
        // Two batches of 12 vectors, which take the place of 16, of three spans of 256 16-bit elements. Two sums of 256
        // rows with 16 vectors for each of 132 multiprocessors.
        let least = 8192 + 2 * 16 * 3 * 512 + 132 * 2 * 256 * 16 * 4;
        let workspace = |given| {
            let why = Refusal::Workspace {
                needed: least,
                given,
            };
            problem(move |asked| asked.operands.workspace = given, why)
        };
        let mut own = refuse::ragged();
        own.extend([
            gpu((8, 9), "9.0"),
            gpu((10, 0), "9.0"),
            workspace(0),
            workspace(least - 1),
            shape((16, 1, 1 << 15, 1 << 20), Refusal::Vectors),
        ]);
        own
    });
}

fn configs() {
    let valid = valid();
    valid.refuses_fields(&[
        ("warps", &[0, 17, u32::MAX]),
        ("chunk", &[0]),
        ("ctas", &[0, 133, u32::MAX]),
        ("vectors", &[0, 4, 12, 256]),
    ]);
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs,
        shared_memory = || valid().needs_its_shared_memory();
}
