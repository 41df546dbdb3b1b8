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
        // Two batches of 12 vectors in passes of eight, of five steps of 128 16-bit elements.
        let least = 2 * 8 * 5 * 256;
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

/// With a workspace that is too small for all vectors at once, the default takes fewer in a pass.
fn small_workspaces() {
    let mut asked = valid();
    asked.shape(130, 100, 576, 2);
    let default = |asked: &Asked| {
        let default = asked.job(|job| asked.config.kernel().default_config(job));
        let config = default.expect("a default");
        (config, asked.job(|job| config.workspace_bytes(job)))
    };
    let (most, mut needed) = default(&asked);
    assert_eq!(most.pass_vectors(), 128);
    for vectors in [64, 32, 16, 8] {
        asked.operands.workspace = needed - 1;
        assert_eq!(
            asked.job(|job| most.check(job)),
            Err(Refusal::Workspace {
                needed: 2 * 128 * 5 * 256,
                given: needed - 1
            })
        );
        let (fewer, bytes) = default(&asked);
        assert_eq!(fewer.pass_vectors(), vectors);
        assert_eq!(bytes, 2 * u64::from(vectors) * 5 * 256);
        needed = bytes;
    }
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs, small_workspaces,
        shared_memory = || valid().needs_its_shared_memory();
}
