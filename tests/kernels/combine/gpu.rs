//! The sum of a token's experts on a GPU, against the host's, bit for bit.

use half::{bf16, f16};
use nvfp4_gemv::kernel::combine::Combine;
use nvfp4_gemv::raw;
use nvfp4_gemv::{FloatType, RawOutput};

use crate::combine::sums;
use crate::support::gpu::Gpu;
use crate::support::sized;

crate::trials! {
    gpu: sums_of_slots;
}

fn sums_of_slots() {
    let gpu = Gpu::first();
    let bf16s = |values: &[f32]| {
        values
            .iter()
            .map(|x| bf16::from_f32(*x))
            .collect::<Vec<_>>()
    };
    let f16s = |values: &[f32]| values.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
    let sizes = [(2048, 1, 8), (7168, 3, 8), (257, 70_000, 2), (33, 5, 17)];
    for (seed, (m, n, slots)) in sizes.into_iter().enumerate() {
        let (element, output) = (FloatType::Bf16, FloatType::F16);
        let data = sums::Data::new((m, n, slots), element, output, seed as u64);
        let inputs = gpu.upload(&bf16s(&data.inputs));
        let weights = gpu.upload(&data.weights);
        let ids = gpu.upload(&data.ids);
        // In place: the residual is the output.
        let y = gpu.upload(&f16s(&data.residual));
        let bias = (!data.bias.is_empty()).then(|| gpu.upload(&data.bias));
        let address = gpu.address(&y);
        let call = Combine {
            slots,
            element,
            inputs: gpu.address(&inputs),
            weights: gpu.address(&weights),
            ids: gpu.address(&ids),
            output: RawOutput {
                bias: bias.as_ref().map_or(0, |bias| gpu.address(bias)),
                residual: address,
                ..RawOutput::packed(address, output)
            },
            chained: seed % 2 == 1,
        };
        // SAFETY: the buffers have the sizes that the shape asks for and outlive the work.
        unsafe { raw::combine(&sized(m, n, 16, 1), &call, gpu.handle()) }.unwrap();
        let found = gpu.stream.clone_dtoh(&y).unwrap();
        assert!(found == f16s(&data.sums()), "{m} x {n}, {slots} slots");
    }
}
