//! The project's CUDA-core kernels against an H200: the same inputs, the same bits. The recording
//! is made by the crate's `tests/record`.
//!
//! Needs nvcc (`NVCC`, or on the `PATH`); without it the tests say so and pass.

mod common;
#[path = "../../tests/record/inputs.rs"]
mod inputs;

use std::collections::BTreeMap;
use std::path::Path;

use common::gemv::{self, Params};
use common::nvcc::compile;
use inputs::{Case, Inputs, cases};
use nvfp4_gemv::{Activation, FloatType, ScaleLayout};
use ptx_sim::{Buffer, Launch, Module, Options, Policy, Sim};
use safetensors::SafeTensors;

const ARCH: &str = "compute_90a";

/// Vectors a pass: `kMaxVectors`.
const MAX_VECTORS: usize = 8;

/// The translation unit with a case's kernel, and the kernel.
fn kernel(case: &Case, vectors: usize) -> (&'static str, String) {
    let (unit, number) = match case.activation {
        Activation::Nvfp4 => ("gemv_cuda_core_nvfp4", 0),
        Activation::F16 => ("gemv_cuda_core_f16", 1),
        Activation::Bf16 => ("gemv_cuda_core_bf16", 2),
        Activation::F32 => ("gemv_cuda_core_f32", 3),
    };
    let blocks = case.cut.blocks_per_load as usize;
    match case.cut.ctas {
        None => (unit, gemv::kernel(Some(number), vectors, blocks)),
        Some(_) => ("gemv_nvfp4", gemv::kernel(None, vectors, blocks)),
    }
}

/// What `for_each_pass` and the launchers do: see `csrc/launch`.
fn run(module: &Module, case: &Case, inputs: &Inputs, policy: Policy) -> Result<Vec<u8>, String> {
    let fail = |e: ptx_sim::SimError| e.to_string();
    let mut sim = Sim::new(module.clone());
    let mut upload = |name: &str, bytes: &[u8]| -> Result<u64, String> {
        if bytes.is_empty() {
            return Ok(0);
        }
        Ok(sim.upload(name, bytes).map_err(fail)?.address)
    };
    let shape = &case.shape;
    let tiled = |layout| layout == ScaleLayout::Tiled128x4;
    let mut p = Params {
        m: shape.m(),
        batches: shape.l(),
        blocks: shape.blocks(),
        k_split: case.cut.k_split as usize,
        row_step: if tiled(case.weight_layout) { 32 } else { 1 },
        codes: upload("codes", &inputs.codes)?,
        scales: upload("scales", &inputs.scales)?,
        scale_layout: gemv::layout(shape.blocks(), shape.blocks(), tiled(case.weight_layout)),
        code_row: shape.row_code_bytes(),
        vector_row: inputs.vector_strides.row,
        vector_batch: inputs.vector_strides.batch,
        vector_scale_layout: gemv::layout(
            shape.blocks(),
            inputs.vector_scale_strides.row,
            tiled(case.vector_layout) && case.activation == Activation::Nvfp4,
        ),
        vector_scale_batch: inputs.vector_scale_strides.batch,
        alpha: inputs.alpha,
        row_alpha: upload("row alpha", &inputs.row_alpha)?,
        vector_alpha_batch: shape.n(),
        output_batch: shape.n() * shape.m(),
        output_type: match case.output {
            FloatType::F16 => 0,
            FloatType::Bf16 => 1,
            FloatType::F32 => 2,
        },
        ..Params::default()
    };
    let vectors = upload("vectors", &inputs.vectors)?;
    let vector_scales = upload("vector scales", &inputs.vector_scales)?;
    let vector_alpha = upload("vector alpha", &inputs.vector_alpha)?;
    let output: Buffer = sim
        .alloc("output", shape.outputs() * case.output.bytes())
        .map_err(fail)?;
    let scale_row = match case.vector_layout {
        ScaleLayout::Tiled128x4 => 16,
        ScaleLayout::Linear => inputs.vector_scale_strides.row,
    };
    let tiles = |rows| gemv::row_tiles(shape.m(), tiled(case.weight_layout), rows);
    for first in (0..shape.n()).step_by(MAX_VECTORS) {
        p.n = (shape.n() - first).min(MAX_VECTORS);
        let at = |base: u64, step: usize| match base {
            0 => 0,
            base => base + (first * step) as u64,
        };
        p.vectors = at(vectors, p.vector_row);
        p.vector_scales = at(vector_scales, scale_row);
        p.vector_alpha = at(vector_alpha, 4);
        p.output = at(output.address, shape.m() * case.output.bytes());
        let (_, name) = kernel(case, p.n);
        let warps = case.cut.warps as usize;
        let (ctas, shared) = match case.cut.ctas {
            None => {
                let tiles = tiles(if p.n <= 2 { 4 } else { 2 });
                (tiles.div_ceil(warps / p.k_split), 0)
            }
            Some(ctas) => {
                let (ctas, tiles) = (ctas as usize, tiles(4));
                p.tiles_per_cta = tiles / ctas;
                p.tiles_left = tiles % ctas;
                let most = tiles.div_ceil(ctas);
                let blocks_per_load = case.cut.blocks_per_load as usize;
                (
                    ctas,
                    gemv::shared_bytes(p.n, p.blocks, most, p.k_split, blocks_per_load),
                )
            }
        };
        let grid = [ctas as u32, shape.l() as u32, 1];
        let mut launch = Launch::new(&name, grid, [warps as u32 * 32, 1, 1]).bytes(&p.bytes());
        launch.shared = shared;
        let options = Options {
            policy,
            ..Options::default()
        };
        sim.run(&launch, &options).map_err(fail)?;
    }
    if !sim.fully_written(output) {
        return Err("the output is not fully written".into());
    }
    Ok(sim.download(output).to_vec())
}

fn recording() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("probes/recorded")
        .join("gemv_cuda_core.safetensors");
    std::fs::read(path).expect("recording")
}

/// Replays the cases whose kernel is in `unit`.
fn replay(unit: &str) {
    let bytes = recording();
    let data = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("header");
    let metadata = header.metadata().as_ref().expect("metadata");
    let hashes: BTreeMap<String, String> =
        serde_json::from_str(&metadata["inputs_fnv1a64"]).expect("hashes");
    let Some(ptx) = compile(unit, ARCH) else {
        return;
    };
    let module = Module::parse(&ptx).expect("PTX parses");
    let cases: Vec<Case> = cases()
        .into_iter()
        .filter(|case| kernel(case, 1).0 == unit)
        .collect();
    let mut wrong = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        let name = case.name();
        let inputs = Inputs::new(case);
        if hashes.get(&name) != Some(&inputs.hash()) {
            wrong.push(format!("{name}: not recorded with these inputs"));
            continue;
        }
        let want = data.tensor(&name).expect("output");
        // The bits depend on no schedule.
        let policy = match i % 2 {
            0 => Policy::Fair,
            _ => Policy::Random(i as u64),
        };
        let end = run(&module, case, &inputs, policy);
        let end = end.and_then(|got| same(&got, want.data(), case.output.bytes()));
        if let Err(e) = end {
            wrong.push(format!("{name}: {e}"));
        }
    }
    println!(
        "{unit}: {} of {} cases the same bits",
        cases.len() - wrong.len(),
        cases.len()
    );
    assert!(
        wrong.is_empty(),
        "{unit}: {} of {} cases. Where the kernels' arithmetic or the inputs were changed on \
         purpose, record again:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

#[test]
fn every_recorded_case_is_listed() {
    let bytes = recording();
    let data = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut recorded: Vec<String> = data.names().iter().map(|name| name.to_string()).collect();
    let mut listed: Vec<String> = cases().iter().map(Case::name).collect();
    recorded.sort();
    listed.sort();
    assert_eq!(recorded, listed);
}

#[test]
fn nvfp4_vectors() {
    replay("gemv_cuda_core_nvfp4");
}

#[test]
fn f16_vectors() {
    replay("gemv_cuda_core_f16");
}

#[test]
fn bf16_vectors() {
    replay("gemv_cuda_core_bf16");
}

#[test]
fn f32_vectors() {
    replay("gemv_cuda_core_f32");
}

#[test]
fn integer_dot_products() {
    replay("gemv_nvfp4");
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
