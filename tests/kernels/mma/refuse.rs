//! Refusals of the mma kernel.

use crate::many_vectors::refuse::{self, refuses_fields, refuses_problems};
use crate::support::fields;
use crate::support::refuse::{Asked, gpu};

use super::sim::KERNEL;

fn valid() -> Asked {
    refuse::valid((KERNEL.config)([4, 2, 4, 2, 16]))
}

fn problems_that_it_does_not_take() {
    refuses_problems(&valid(), || vec![gpu((7, 5), "8.0 or newer")]);
}

fn configs() {
    let valid = valid();
    refuses_fields(&valid);
    // More of the vectors than eight warps hold.
    valid.refuses_field("chunk", 6, |_| ());
    valid.refuses_fields(&[("tiles", &[0, 17, u32::MAX]), ("vectors", &[0, 4, 12, 256])]);
    // 18 warps; and 14 with many vectors.
    valid.refuses_field("tiles", 9, |_| ());
    valid.refuses_field("tiles", 7, |a| {
        a.shape(130, 100, 576, 2);
        fields::set(&mut a.config, "vectors", 64);
    });
    // Five warps do not hold a step of 128 vectors.
    valid.refuses_field("chunk", 1, |a| {
        a.shape(130, 100, 576, 2);
        for (name, value) in [("vectors", 128), ("tiles", 5), ("parts", 1)] {
            fields::set(&mut a.config, name, value);
        }
    });
    // No clusters before Hopper.
    valid.refuses_field("cluster", 2, |a| a.gpu.compute_capability = (8, 9));
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs,
        shared_memory = || valid().needs_its_shared_memory();
}
