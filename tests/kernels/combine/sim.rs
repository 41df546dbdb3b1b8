//! The sum of a token's experts, as nvcc compiles it, against the host's, bit for bit.

use half::{bf16, f16};
use nvfp4_gemv::kernel::combine::{self, Combine};
use nvfp4_gemv::{Dims, FloatType, RawOutput, Shape};
use ptx_sim::Policy;

use crate::combine::sums;
use crate::support::ptx::ALL;
use crate::support::sim;

crate::trials! {
    simulator: sums_of_slots, late_grids_are_waited_for;
}

/// Bytes of numbers in a type.
fn memory(values: &[f32], element: FloatType) -> Vec<u8> {
    let bytes = |value: &f32| match element {
        FloatType::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        FloatType::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
        FloatType::F32 => value.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn sums_of_slots() {
    let all = [FloatType::F32, FloatType::F16, FloatType::Bf16];
    for arch in ALL {
        for (i, (m, n, slots)) in [(1, 1, 1), (257, 2, 8), (40, 3, 9), (512, 1, 17), (16, 2, 0)]
            .into_iter()
            .enumerate()
        {
            for (j, element) in all.into_iter().enumerate() {
                let output = all[(i + j) % 3];
                let data = sums::Data::new((m, n, slots), element, output, (3 * i + j) as u64);
                let mut sim = sim::empty(arch);
                // A device has no buffers of nothing.
                let mut upload = |name, bytes: &[u8]| match bytes.is_empty() {
                    true => 0,
                    false => sim.upload(name, bytes).expect("memory").address,
                };
                let f32s = |values: &[f32]| memory(values, FloatType::F32);
                let ids: Vec<u8> = data.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                let inputs = upload("results", &memory(&data.inputs, element));
                let weights = upload("weights", &f32s(&data.weights));
                let ids = upload("ids", &ids);
                let residual = upload("residual", &memory(&data.residual, output));
                let bias = upload("bias", &f32s(&data.bias));
                let y = sim.alloc("output", n * m * output.bytes()).expect("memory");
                let call = Combine {
                    slots,
                    element,
                    inputs,
                    weights,
                    // Where each slot has an expert, ids need not be there.
                    ids: if data.ids.contains(&-1) { ids } else { 0 },
                    output: RawOutput {
                        bias,
                        residual,
                        ..RawOutput::packed(y.address, output)
                    },
                    chained: false,
                };
                let shape = Shape::new(Dims { m, n, k: 16, l: 1 }).expect("a shape");
                let mut planned = combine::launch(&shape, &call);
                if j == 1 {
                    planned.grid[1] = 1; // as if there were more tokens than a grid has rows
                }
                let context = format!("{arch}: {m} x {n}, {slots} slots, {element} to {output}");
                sim::run_helper(&mut sim, arch, &planned, Policy::Random(5), &[y], &context);
                assert!(sim.download(y) == memory(&data.sums(), output), "{context}");
            }
        }
    }
}

/// All that is read is behind the wait: what comes before it in the PTX loads no global memory.
fn late_grids_are_waited_for() {
    for arch in ALL.into_iter().filter(|arch| *arch != "80") {
        let ptx = &crate::support::ptx::unit("helpers", arch);
        let entry = ptx.split(".entry combine(").nth(1).expect("the kernel");
        let before = entry.split("griddepcontrol.wait").next().expect("a wait");
        assert!(
            before.len() < entry.len() && !before.contains("ld.global"),
            "{arch}"
        );
    }
}
