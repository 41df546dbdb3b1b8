//! Refusals of the kernels for many vectors.

use nvfp4_gemv::{Activation, Operands, Refusal, ScaleLayout};

use crate::support::refuse::{Asked, Problem, UNALIGNED, activation, images, problem, shape};

/// A config on Hopper, for a problem that the kernels take.
pub(crate) fn valid(config: impl Into<nvfp4_gemv::kernel::Config>) -> Asked {
    Asked::new((130, 12, 576, 2), ScaleLayout::Linear, (9, 0), config)
}

/// Problems that no kernel for many vectors takes, and problems that this kernel refuses: GPUs, rows, addresses. For
/// every type and layout of operands.
pub(crate) fn refuses_problems(valid: &Asked, own: fn() -> Vec<Problem>) {
    for activation in [Activation::Nvfp4, Activation::F16, Activation::Bf16] {
        for layout in ScaleLayout::ALL {
            let mut valid = valid.clone();
            valid.operands = Operands::new(activation, layout).with_workspace(u64::MAX);
            let mut table = own();
            table.extend(of_all());
            valid.refuses_problems(&table);
        }
    }
}

/// Problems that kernels without a unit for ragged rows refuse.
pub(crate) fn ragged() -> Vec<Problem> {
    let row_length = |k| {
        let needed = "a multiple of 64";
        shape((130, 3, k, 2), Refusal::RowLength { k, needed })
    };
    vec![
        row_length(16),
        row_length(96),
        row_length(544),
        problem(|a| a.operands.alignment.codes = 8, UNALIGNED),
    ]
}

fn of_all() -> Vec<Problem> {
    vec![
        images((9, 0), "120f"),
        activation(Activation::F32, "NVFP4, f16 and bf16"),
        problem(
            |a| a.operands.alignment.scales = 2,
            Refusal::Alignment { needed: 4 },
        ),
        shape((1 << 30, 1, 64, 4), Refusal::Rows),
    ]
}

/// Fields that are the same in both kernels.
pub(crate) fn refuses_fields(valid: &Asked) {
    valid.refuses_fields(&[
        ("parts", &[0, 3, 16, u32::MAX]),
        ("chunk", &[0, 3, 5]),
        ("cluster", &[0, 3, 16]),
    ]);
}
