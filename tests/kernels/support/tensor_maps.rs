//! Tensor maps: the maps that are simulated are the maps that are launched.

use std::sync::Arc;

use nvfp4_gemv::raw::PreparedRawGemv;
use nvfp4_gemv::{Dims, Options, ScaleLayout, Shape};
use nvfp4_gemv_simulate::launch;
use nvfp4_gemv_trials::Trial;
use ptx_sim::models::tensor_map::TensorMap;

use super::battery::Subject;
use super::gpu::{Gpu, OnDevice, kernel_trial};
use super::operands::{Case, Data, Operands};

/// The trial for a kernel that takes tensor maps.
pub(crate) fn trial(subject: &'static Subject) -> Trial {
    let name = "tensor_maps_are_those_of_the_simulator";
    kernel_trial(subject.kernel, name, |gpu| compare(gpu, subject))
}

/// Demands that the driver's encoder and the simulator's encoder give the same bytes of every tensor map.
fn compare(gpu: &Gpu, subject: &Subject) {
    let mut compared = 0;
    let sizes = (subject.odd)()
        .into_iter()
        .chain(subject.every.iter().copied());
    for (i, (m, n, k, l)) in sizes.enumerate() {
        let shape = Shape::new(Dims { m, n, k, l }).unwrap();
        let case = Case {
            padded: i % 3 > 0,
            ..Case::new(shape, Data::Integers, ScaleLayout::Tiled128x4, i as u64)
        };
        let operands = Operands::new(&case);
        let on = OnDevice::behind(gpu, Arc::new(operands), [0, 32, 96][i / 3 % 3]);
        let options = Options::new().kernel(subject.kernel);
        let prepared = PreparedRawGemv::new(&on.call, &gpu.info, &options).unwrap();
        for (map, driver) in prepared.encoded_maps() {
            compared += 1;
            let simulator = TensorMap::encode(launch::arguments(map)).unwrap();
            assert_eq!(&simulator.to_bytes(), driver, "{map:?}");
        }
    }
    assert!(compared > 50, "only {compared}");
}
