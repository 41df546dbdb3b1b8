//! MLPs of three layers, and experts of a mixture, in host memory.

use std::ffi::c_char;
use std::slice::from_raw_parts;

use nvfp4_gemv::{Experts, Gate, Mlp};

use crate::checkpoint::nvfp4_checkpoint;
use crate::failure::{Failure, guarded, nvfp4_status};
use crate::linear::{computed, nvfp4_linear, nvfp4_output, nvfp4_vectors, parts};
use crate::memory;

/// The MLP of a decoder layer in host memory: down * (silu(gate * x) * (up * x)), or with another gate in silu's place:
/// nvfp4_mlp_with_gate.
#[derive(Debug)]
pub struct nvfp4_mlp(Mlp);

/// The experts of a mixture in host memory: MLPs of one size, of which each vector has a few.
#[derive(Debug)]
pub struct nvfp4_experts(pub(crate) Experts);

/// An MLP of three layers, with NVFP4_SILU between. It shares their memory; they may be freed.
///
/// # Safety
/// Layers are NULL or there, and `mlp` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_mlp_new(
    gate: *const nvfp4_linear,
    up: *const nvfp4_linear,
    down: *const nvfp4_linear,
    mlp: *mut *mut nvfp4_mlp,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        let [gate, up, down] = unsafe {
            [
                memory::read("gate", gate)?,
                memory::read("up", up)?,
                memory::read("down", down)?,
            ]
        }
        .map(|layer| layer.0.clone());
        Ok(nvfp4_mlp(Mlp::new(gate, up, down)?))
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(mlp, make) }
}

/// An MLP whose gate and up are one layer, with the rows of both in an order: NVFP4_STACKED or NVFP4_INTERLEAVED. As
/// nvfp4_mlp_new in all else.
///
/// # Safety
/// As nvfp4_mlp_new.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_mlp_joined(
    gate_up: *const nvfp4_linear,
    order: u32,
    down: *const nvfp4_linear,
    mlp: *mut *mut nvfp4_mlp,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        let [gate_up, down] = unsafe {
            [
                memory::read("gate_up", gate_up)?,
                memory::read("down", down)?,
            ]
        };
        let order = memory::order(order)?;
        let made = Mlp::joined(gate_up.0.clone(), order, down.0.clone())?;
        Ok(nvfp4_mlp(made))
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(mlp, make) }
}

/// An MLP of another one's layers, with another gate: NVFP4_SILU, NVFP4_GELU_TANH or NVFP4_CLAMPED, for which alone alpha
/// and limit are looked at. It shares their memory; `mlp` stays as it was, and may be freed.
///
/// # Safety
/// `mlp` is NULL or an MLP, and `other` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_mlp_with_gate(
    mlp: *const nvfp4_mlp,
    gate: u32,
    alpha: f32,
    limit: f32,
    other: *mut *mut nvfp4_mlp,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        let mlp = unsafe { memory::read("mlp", mlp) }?.0.clone();
        Ok(nvfp4_mlp(mlp.with_gate(gate_of(gate, alpha, limit)?)?))
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(other, make) }
}

fn gate_of(kind: u32, alpha: f32, limit: f32) -> Result<Gate, Failure> {
    let gate = memory::gate(kind, alpha, limit);
    gate.ok_or_else(|| Failure::argument(format!("{kind} is no gate")))
}

/// Frees an MLP.
///
/// # Safety
/// `mlp` is NULL or an MLP, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_mlp_free(mlp: *mut nvfp4_mlp) {
    // SAFETY: this function's own contract.
    unsafe { memory::free(mlp) }
}

/// Computes n vectors on the CPU, as nvfp4_linear_forward.
///
/// # Safety
/// `mlp` is NULL or an MLP; `x` and `y` are NULL or there, with memory as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_mlp_forward(
    mlp: *const nvfp4_mlp,
    x: *const nvfp4_vectors,
    n: usize,
    y: *const nvfp4_output,
) -> nvfp4_status {
    guarded(|| {
        // SAFETY: this function's own contract.
        unsafe {
            let mlp = &memory::read("mlp", mlp)?.0;
            let others = mlp.layers().flat_map(parts);
            computed(x, y, others, |x, y| mlp.forward(x, n, y))
        }
    })
}

/// Experts of one size. They share the memory of `count` MLPs, which may be freed.
///
/// # Safety
/// `mlps` is NULL or has so many pointers, each NULL or an MLP; `experts` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_experts_new(
    mlps: *const *const nvfp4_mlp,
    count: usize,
    experts: *mut *mut nvfp4_experts,
) -> nvfp4_status {
    let make = || {
        if count > 0 {
            memory::check("mlps", mlps)?;
        }
        if isize::try_from(count.saturating_mul(size_of::<*const nvfp4_mlp>())).is_err() {
            return Err(Failure::argument(format!(
                "{count} MLPs are more than memory has"
            )));
        }
        let mlps = match count {
            0 => &[],
            // SAFETY: not null, aligned, and of a size that memory has; the rest is this function's own contract.
            count => unsafe { from_raw_parts(mlps, count) },
        };
        // SAFETY: this function's own contract.
        let mlp = |mlp: &*const nvfp4_mlp| unsafe { memory::read("an MLP", *mlp) };
        let mlps = mlps.iter().map(|of| mlp(of).map(|mlp| mlp.0.clone()));
        let mlps = mlps.collect::<Result<Vec<Mlp>, Failure>>()?;
        Ok(nvfp4_experts(Experts::new(mlps)?))
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(experts, make) }
}

/// All experts of a layer of a checkpoint. `name` is their common name, such as "model.layers.0.mlp.experts"; `gate`, `up`
/// and `down` name their layers, such as "gate_proj". Where one layer has the rows of gate and up in an order, `gate`
/// names it and `up` is NULL; otherwise the order is not looked at. Codes and scales stay in the files, but for experts
/// that are stacked in transposed tensors. The gate is the one that config.json names, and NVFP4_SILU where it names
/// none; one that is not computed is NVFP4_BAD_FILE. nvfp4_experts_with_gate takes another one.
///
/// # Safety
/// `checkpoint` is NULL or open, names are NULL or text, and `experts` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_experts_from_checkpoint(
    checkpoint: *const nvfp4_checkpoint,
    name: *const c_char,
    gate: *const c_char,
    up: *const c_char,
    order: u32,
    down: *const c_char,
    experts: *mut *mut nvfp4_experts,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        let (checkpoint, [name, gate, down]) = unsafe {
            (
                &memory::read("checkpoint", checkpoint)?.checkpoint,
                [
                    memory::text("name", name)?,
                    memory::text("gate", gate)?,
                    memory::text("down", down)?,
                ],
            )
        };
        let made = match up.is_null() {
            true => {
                let order = memory::order(order)?;
                Experts::from_checkpoint(checkpoint, name, &[gate], order, down)
            }
            false => {
                // SAFETY: this function's own contract.
                let up = unsafe { memory::text("up", up) }?;
                let order = nvfp4_gemv::RowOrder::Stacked;
                Experts::from_checkpoint(checkpoint, name, &[gate, up], order, down)
            }
        };
        Ok(nvfp4_experts(made?))
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(experts, make) }
}

/// Experts of others' layers, all with another gate than theirs: as nvfp4_mlp_with_gate.
///
/// # Safety
/// `experts` is NULL or experts, and `others` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_experts_with_gate(
    experts: *const nvfp4_experts,
    gate: u32,
    alpha: f32,
    limit: f32,
    others: *mut *mut nvfp4_experts,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        let experts = unsafe { memory::read("experts", experts) }?.0.clone();
        let gate = gate_of(gate, alpha, limit)?;
        Ok(nvfp4_experts(experts.with_gate(gate)?))
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(others, make) }
}

/// Frees experts.
///
/// # Safety
/// `experts` is NULL or experts, and nobody uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_experts_free(experts: *mut nvfp4_experts) {
    // SAFETY: this function's own contract.
    unsafe { memory::free(experts) }
}

/// Computes n vectors on the CPU, each by so many experts: `ids[n][choices]`, of which -1 is none, with their results
/// multiplied by `weights[n][choices]` and summed.
///
/// # Safety
/// `experts` is NULL or experts; `ids` and `weights` are NULL or have so many numbers; `x` and `y` are NULL or there,
/// with memory as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_experts_forward(
    experts: *const nvfp4_experts,
    x: *const nvfp4_vectors,
    n: usize,
    ids: *const i32,
    weights: *const f32,
    choices: usize,
    y: *const nvfp4_output,
) -> nvfp4_status {
    guarded(|| {
        let bytes = n.checked_mul(choices).and_then(|all| all.checked_mul(4));
        let bytes = bytes.ok_or_else(|| {
            Failure::argument(format!("{n} * {choices} choices are more than memory has"))
        })?;
        // SAFETY: this function's own contract.
        unsafe {
            let experts = &memory::read("experts", experts)?.0;
            let others = [
                ("ids", (ids.addr(), bytes)),
                ("weights", (weights.addr(), bytes)),
            ];
            let ids = memory::slice("ids", ids.cast(), bytes)?;
            let weights = memory::slice("weights", weights.cast(), bytes)?;
            let layers = experts.all().iter().flat_map(Mlp::layers);
            let others = others.into_iter().chain(layers.flat_map(parts));
            computed(x, y, others, |x, y| experts.forward(x, n, ids, weights, y))
        }
    })
}
