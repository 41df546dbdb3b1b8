//! The bits that an H200 gave for 144 calls of the kernel direct: the simulator gives the same.
//!
//! Where arithmetic or inputs were changed on purpose, record again, on a GPU of that kind:
//! `NVFP4_GEMV_RECORD=tests/recorded cargo test --release --test kernels -- --ignored recorded::gpu::record`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nvfp4_gemv::kernel::DirectConfig;
use nvfp4_gemv::{Activation, Dims, FloatType, ScaleLayout, Shape};
use ptx_sim::{Policy, Timing};
use safetensors::SafeTensors;

use crate::support::operands::{Case, Data, Operands};
use crate::support::schedules::options;
use crate::support::sim::Simulator;

crate::trials! {
    host: every_recorded_call_is_listed;
    simulator:
        direct_nvfp4 = || replay(Activation::Nvfp4),
        direct_f16 = || replay(Activation::F16),
        direct_bf16 = || replay(Activation::Bf16),
        direct_f32 = || replay(Activation::F32);
}

#[cfg(feature = "device")]
pub(crate) mod gpu;

/// One call.
struct Call {
    case: Case,
    config: DirectConfig,
}

/// M, N, K, L: odd ones, row tiles that are not full, one and two passes, with and without a
/// second step of K.
const SHAPES: [(usize, usize, usize, usize); 11] = [
    (13, 1, 1056, 2),
    (129, 1, 80, 1),
    (33, 2, 288, 1),
    (7, 3, 528, 3),
    (5, 4, 96, 2),
    (18, 5, 1088, 1),
    (6, 7, 48, 2),
    (9, 8, 2080, 1),
    (3, 11, 160, 2),
    (4, 16, 544, 1),
    (1, 1, 16, 1),
];

/// Warps and K split.
const DIVISIONS: [(u32, u32); 6] = [(4, 1), (4, 2), (8, 8), (6, 3), (1, 1), (8, 4)];

/// Every call. The attributes that select no kernel are dealt out in turn.
fn calls() -> Vec<Call> {
    let mut calls = Vec::new();
    // Of each shape, the first calls that were recorded were of a kernel that is gone. The others keep their numbers.
    let mut next = 0;
    for (m, n, k, l) in SHAPES {
        let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
        let loads = if k % 32 == 0 { 2 } else { 1 };
        next += ScaleLayout::ALL.len() * loads as usize;
        for activation in Activation::ALL {
            for (j, weight_layout) in ScaleLayout::ALL.into_iter().enumerate() {
                for blocks_per_load in 1..=loads {
                    let i = next;
                    next += 1;
                    let nvfp4 = activation == Activation::Nvfp4;
                    let (warps, k_split) = DIVISIONS[i / 3 % DIVISIONS.len()];
                    calls.push(Call {
                        case: Case {
                            activation,
                            vector_layout: ScaleLayout::ALL[(i / 2 + j) % 2],
                            output: FloatType::ALL[i % 3],
                            row_alpha: i % 5 == 1,
                            vector_alpha: nvfp4 && i % 4 == 2,
                            padded: nvfp4 && i % 3 == 1,
                            ..Case::new(shape, Data::Recorded, weight_layout, 1000 + i as u64)
                        },
                        config: DirectConfig {
                            blocks_per_load,
                            warps,
                            k_split,
                            ..DirectConfig::DEFAULT
                        },
                    });
                }
            }
        }
    }
    calls
}

impl Call {
    /// A name that contains all of the call.
    fn name(&self) -> String {
        let (case, s) = (&self.case, &self.case.shape);
        let flag = |on: bool, name: &'static str| if on { name } else { "" };
        format!(
            "direct_{}_{}_m{}n{}k{}l{}_{}_{}_b{}w{}s{}{}{}{}_{}",
            case.activation.name(),
            case.output.name(),
            s.m(),
            s.n(),
            s.k(),
            s.l(),
            case.weight_layout.name(),
            case.vector_layout.name(),
            self.config.blocks_per_load,
            self.config.warps,
            self.config.k_split,
            flag(case.row_alpha, "_row"),
            flag(case.vector_alpha, "_vector"),
            flag(case.padded, "_padded"),
            case.seed,
        )
    }
}

fn recording() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/gemv_direct.safetensors");
    std::fs::read(path).expect("the recording")
}

/// Gives the same bits for the calls with vectors of a type.
fn replay(activation: Activation) {
    let bytes = recording();
    let data = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
    let metadata = header.metadata().as_ref().expect("metadata");
    let hashes: BTreeMap<String, String> =
        serde_json::from_str(&metadata["inputs_fnv1a64"]).expect("hashes");
    let simulator = Simulator::new("90a");
    let mut replayed = 0;
    for (i, call) in calls().iter().enumerate() {
        if call.case.activation != activation {
            continue;
        }
        replayed += 1;
        let name = call.name();
        let operands = Arc::new(Operands::new(&call.case));
        assert_eq!(
            hashes.get(&name),
            Some(&operands.hash()),
            "{name} was not recorded with these inputs"
        );
        // The bits depend on no schedule.
        let policy = match i % 2 {
            0 => Policy::Fair,
            _ => Policy::Random(i as u64),
        };
        let options = options(policy, Timing::Eager);
        let got = simulator.run(&operands, call.config, false, &options);
        let want = data.tensor(&name).expect("an output");
        if let Err(difference) = same(&got, want.data(), call.case.output.bytes()) {
            panic!("{name}: {difference}");
        }
    }
    assert!(replayed > 0);
}

/// Whether outputs of elements of `size` bytes agree, or what differs.
fn same(got: &[u8], want: &[u8], size: usize) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} bytes, were {}", got.len(), want.len()));
    }
    let pairs = || got.chunks(size).zip(want.chunks(size));
    let Some(first) = pairs().position(|(g, w)| g != w) else {
        return Ok(());
    };
    Err(format!(
        "{} of {} elements differ, first {first}: {:02x?}, was {:02x?}",
        pairs().filter(|(g, w)| g != w).count(),
        got.len() / size,
        &got[first * size..][..size],
        &want[first * size..][..size],
    ))
}

fn every_recorded_call_is_listed() {
    let bytes = recording();
    let data = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut recorded: Vec<String> = data.names().iter().map(|name| name.to_string()).collect();
    let mut listed: Vec<String> = calls().iter().map(Call::name).collect();
    recorded.sort();
    listed.sort();
    assert_eq!(recorded, listed);
}
