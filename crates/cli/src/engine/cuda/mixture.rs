//! Mixtures of experts on a device: calls in one CUDA graph, which takes turns with rest as all others do.

use std::sync::Arc;

use anyhow::{Context, Result};
use cudarc::driver::{CudaSlice, DriverError};
use half::bf16;
use nvfp4_gemv::measure::{Replay, copies_for_cold_l2};
use nvfp4_gemv::{
    ExpertsOnDevice, Gate, GlobalScale, MatricesOnDevice, Output, RowOrder, ScaleLayout, Shape,
    Vectors,
};
use nvfp4_gemv_documents::alternate::{WARM_UP, alternate};

use super::Cuda;
use super::rounds::CudaWays;
use crate::engine::memory::{self, check};
use crate::engine::mixture::distinct;
use crate::engine::{Ask, Extent, Mixture, MixtureTimes, Plan, Ready, Way, Ways, Work};

/// Calls of a replay, at least.
const CALLS: usize = 48;
/// Bytes that fill codes and scales, over and over.
const PATTERN: usize = 16 << 20;

/// Times calls of a mixture: each with ids of its own, on layers that take turns.
pub(super) fn times(cuda: &Cuda, mixture: &Mixture, plan: &Plan) -> Result<MixtureTimes> {
    let stream = &cuda.stream;
    // The weights of other suites, and of the long read: layers may need the memory.
    *cuda.pool.borrow_mut() = None;
    let of_layer = mixture.experts * mixture.expert_bytes();
    let touched = mixture.touched_bytes();
    let of_cache = |bytes| copies_for_cold_l2(bytes, cuda.gpu.l2_bytes);
    let layers = |cold: usize| mixture.layers(cold, of_cache);
    let calls = |layers: usize| CALLS.next_multiple_of(layers);
    let available = usize::try_from(cuda.gpu.memory_bytes).ok();
    let what = format!("layers of {} experts", mixture.experts);
    check(&what, plan.cold_bytes, "device", available, |cold| {
        let layers = layers(cold);
        let operands = mixture.operand_bytes(calls(layers))?;
        memory::sum(&[(of_layer, layers), (operands, 1), (2, PATTERN)])
    })?;
    check(
        &what,
        plan.cold_bytes,
        "host",
        memory::available(),
        |cold| {
            let operands = mixture.operand_bytes(calls(layers(cold)))?;
            memory::sum(&[(operands, 1), (2, PATTERN)])
        },
    )?;
    let layers = layers(plan.cold_bytes);
    let calls = calls(layers);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut pattern = vec![0u8; PATTERN];
    rng.fill(&mut pattern);
    let pattern = stream.clone_htod(&pattern)?;
    let ones = stream.clone_htod(&vec![0x20u8; PATTERN])?;
    let matrices = |rows, k| -> Result<MatricesOnDevice> {
        let shape = Shape::matrix(rows, k)?;
        let codes = filled(&pattern, mixture.experts * shape.weight_code_bytes())?;
        let (layout, global) = (ScaleLayout::Linear, GlobalScale::ONE);
        let scales = filled(&ones, mixture.experts * shape.weight_scale_bytes(layout))?;
        Ok(MatricesOnDevice::new(
            mixture.experts,
            rows,
            k,
            codes,
            scales,
            layout,
            global,
        )?)
    };
    let mut all = Vec::with_capacity(layers);
    for _ in 0..layers {
        let gate_up = matrices(2 * mixture.intermediate, mixture.hidden)?;
        let down = matrices(mixture.hidden, mixture.intermediate)?;
        let experts = ExpertsOnDevice::new(gate_up, RowOrder::Stacked, down, Gate::Silu)?;
        // SAFETY: the weights are copied once, here, and the calls begin after a synchronisation.
        all.push(unsafe { experts.chained() });
    }
    let each = mixture.tokens * mixture.slots;
    let ids: Vec<i32> = (0..calls).flat_map(|_| mixture.choose(&mut rng)).collect();
    let found: usize = ids.chunks(each.max(1)).map(distinct).sum();
    let (ids, weights) = (
        stream.clone_htod(&ids)?,
        vec![1.0 / mixture.slots as f32; each],
    );
    let weights = stream.clone_htod(&weights)?;
    let x: Vec<bf16> = (0..mixture.tokens * mixture.hidden)
        .map(|_| bf16::from_f32(rng.f32() - 0.5))
        .collect();
    let x = stream.clone_htod(&x)?;
    let mut y = stream.alloc_zeros::<bf16>(mixture.tokens * mixture.hidden)?;
    let mut buffers = all[0].buffers(stream, mixture.tokens, mixture.slots)?;
    let mut call = |i: usize| {
        let ids = ids.slice(i * each..(i + 1) * each);
        let (x, y) = (
            Vectors::on_device(x.as_view()),
            Output::on_device(y.as_view_mut()),
        );
        all[i % layers].forward(stream, &mut buffers, &x, &ids, &weights.as_view(), y)
    };
    stream.synchronize()?;
    // Prepared, and compiled where that is needed.
    (0..calls).try_for_each(&mut call)?;
    stream.synchronize()?;
    // SAFETY: all memory that the calls use lives until the replays have been waited for, and nobody else uses it.
    let replay = unsafe { Replay::capture(stream, calls, &mut call) }?;
    let launches = replay.nodes()? / calls;
    let extent = Extent {
        bytes: touched,
        rotated_bytes: touched * layers,
        launches: calls,
    };
    let way = Way {
        work: Work::Gemv {
            ask: Ask::ANY.chained(),
            slow_percent: 0,
        },
        kernel: None,
        config: String::new(),
        extent,
    };
    let mut ways = CudaWays {
        ready: Ready {
            ways: vec![way],
            extent,
        },
        graphs: vec![replay],
        board: &cuda.board,
    };
    let turns = alternate(1, WARM_UP, plan.rounds, |way| ways.turn(way))?;
    Ok(MixtureTimes {
        turns: turns.into_iter().flatten().collect(),
        layers,
        distinct: found as f64 / calls as f64,
        launches,
    })
}

/// A buffer of so many bytes of the pattern.
fn filled(pattern: &CudaSlice<u8>, bytes: usize) -> Result<Arc<CudaSlice<u8>>> {
    let stream = pattern.stream();
    let fill = || -> Result<CudaSlice<u8>, DriverError> {
        let mut buffer = stream.alloc_zeros::<u8>(bytes)?;
        for at in (0..bytes).step_by(pattern.len()) {
            let count = pattern.len().min(bytes - at);
            stream.memcpy_dtod(
                &pattern.slice(..count),
                &mut buffer.slice_mut(at..at + count),
            )?;
        }
        Ok(buffer)
    };
    Ok(Arc::new(fill().context("filling weights of experts")?))
}
