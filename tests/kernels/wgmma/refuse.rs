//! Refusals of the wgmma kernel.

use crate::many_vectors::refuse::{self, refuses_fields, refuses_problems};
use crate::support::fields;
use crate::support::refuse::{Asked, gpu};

use super::sim::KERNEL;

fn valid() -> Asked {
    refuse::valid((KERNEL.config)([1, 2, 4, 2, 16]))
}

fn problems_that_it_does_not_take() {
    refuses_problems(&valid(), || {
        let mut own = refuse::ragged();
        own.extend([gpu((8, 9), "9.0"), gpu((10, 0), "9.0")]);
        own
    });
}

fn configs() {
    let valid = valid();
    refuses_fields(&valid);
    // More of the vectors than eight warps hold.
    valid.refuses_field("chunk", 6, |_| ());
    valid.refuses_fields(&[("tiles", &[0, 5, u32::MAX]), ("vectors", &[0, 4, 12, 256])]);
    // Six warpgroups; and four with many vectors.
    valid.refuses_field("tiles", 3, |_| ());
    valid.refuses_field("tiles", 2, |a| {
        a.shape(130, 100, 576, 2);
        fields::set(&mut a.config, "vectors", 128);
    });
}

crate::trials! {
    host:
        problems_that_it_does_not_take, configs,
        shared_memory = || valid().needs_its_shared_memory();
}
