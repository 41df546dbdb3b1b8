//! Plants faults in kernels and demands that the simulator notices each, or that
//! `data/equivalent_mutants.txt` has an argument why there is nothing to notice.
//!
//! A kernel is a [`Subject`]: its PTX, and some launches with a check of their results.
//! `docs/planted-faults.md` says how to read what this prints.

mod common;

use std::sync::OnceLock;

use common::conformance::{Loaded, module};
use common::cuda_core::{self, Activation, Problem};
use common::data::{self, Case};
use common::nvcc::compile;
use ptx_sim::Policy::{Fair, Random, Starve};
use ptx_sim::mutate::{
    Check, Finding, Kernel, Kind, Known, Mutant, Planted, Ran, Score, Subject, schedules,
};
use ptx_sim::{Launch, Module, Options, Sim, SimError, Timing};

fn known() -> &'static Known {
    static LIST: OnceLock<Known> = OnceLock::new();
    LIST.get_or_init(|| {
        Known::parse(include_str!("data/equivalent_mutants.txt")).unwrap_or_else(|e| panic!("{e}"))
    })
}

fn ran((report, wrong): (ptx_sim::Report, Option<String>)) -> Ran {
    Ran { report, wrong }
}

/// Runs the mutants and prints the score.
fn findings(s: &Subject) -> (Vec<Finding>, Score) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let long = std::env::var_os("PLANTED_FAULTS_LONG").is_some();
    let findings = s
        .run(known(), if long { usize::MAX } else { 3 }, threads)
        .unwrap_or_else(|e| panic!("{}: {e}", s.name));
    let score = Score::new(&s.name, &findings, known());
    println!("{score}");
    if std::env::var_os("PLANTED_FAULTS_ALL").is_some() {
        for f in &findings {
            println!(
                "  {} -> {:?} :: {:?}",
                f.mutant.id(),
                f.mutant.replacement(),
                f.outcome
            );
        }
    }
    (findings, score)
}

fn demand(s: &Subject) {
    let p = s.disagreements(&findings(s).0, known());
    assert!(p.is_empty(), "{} problems:\n{}", p.len(), p.join("\n"));
}

fn conformance(entry: &str, cases: Vec<Case>, seeds: u64) -> Subject {
    let module = module(entry);
    let kernel = Kernel::new(&module, entry).expect(entry);
    let mut host = None;
    let launches = cases
        .into_iter()
        .map(|case| {
            let loaded = Loaded::new(kernel.module(), &case);
            host = Some(loaded.launch.clone());
            let check = move |p: &Planted, o: &Options| -> Result<Ran, SimError> {
                let launch = p.launch(loaded.launch.clone())?;
                loaded.run(p.program(), &launch, o).map(ran)
            };
            (case.name, Box::new(check) as Box<Check<'static>>)
        })
        .collect();
    Subject {
        name: entry.into(),
        kernel,
        host,
        launches,
        schedules: schedules(seeds),
        pick: |_| true,
    }
}

#[test]
fn mma_bf16() {
    demand(&conformance("mma_bf16", vec![data::mma_bf16(1)], 12));
}

#[test]
fn mma_mxf4nvf4() {
    demand(&conformance(
        "mma_mxf4nvf4",
        vec![data::mma_mxf4nvf4(1)],
        12,
    ));
}

#[test]
fn mma_mxf8f6f4() {
    demand(&conformance(
        "mma_mxf8f6f4",
        vec![data::mma_mxf8f6f4(1)],
        12,
    ));
}

#[test]
fn mma_two_cta() {
    demand(&conformance("mma_two_cta", vec![data::mma_two_cta(1)], 12));
}

#[test]
fn mma_pipelined() {
    let cases = vec![
        data::mma_pipelined(1, 2, 5, 1280),
        data::mma_pipelined(3, 1, 16, 256),
        data::mma_pipelined(2, 1, 11, 2304),
    ];
    demand(&conformance("mma_pipelined", cases, 3));
}

/// What `data/reduce.ptx` computes: each CTA's row, chunk by chunk.
fn reduced(matrix: &[u8], vector: &[u8], rows: usize) -> Vec<u8> {
    let columns = vector.len();
    let mut out = Vec::new();
    for row in matrix.chunks(columns).take(rows) {
        for (w, x) in row.chunks(1024).zip(vector.chunks(1024)) {
            let products = (0..1024).map(|i| i32::from(w[i ^ 3] as i8) * i32::from(x[i] as i8));
            let sum: i32 = products.sum();
            let stored = if sum < 0 { sum * 3 } else { sum };
            out.extend(stored.to_le_bytes());
        }
    }
    out
}

/// Loads, shuffles, barriers and integer arithmetic, as in kernels without tensor cores.
#[test]
fn reduce() {
    let module = Module::parse(include_str!("data/reduce.ptx")).expect("reduce");
    let kernel = Kernel::new(&module, "reduce").expect("reduce");
    let mut launches = Vec::new();
    let mut host = None;
    for (rows, chunks) in [(3, 2), (1, 3)] {
        let mut random = fastrand::Rng::with_seed(chunks as u64);
        let mut draw = |n| (0..n).map(|_| random.u8(..)).collect::<Vec<u8>>();
        let (matrix, vector) = (draw(rows * chunks * 1024), draw(chunks * 1024));
        let mut sim = Sim::new(kernel.module().clone());
        let a = sim.upload("matrix", &matrix).expect("matrix");
        let b = sim.upload("vector", &vector).expect("vector");
        let out = sim.alloc("out", rows * chunks * 4).expect("out");
        let launch = Launch::new("reduce", [rows as u32, 1, 1], [64, 1, 1])
            .buffer(a)
            .buffer(b)
            .buffer(out)
            .u32(chunks as u32);
        host = Some(launch.clone());
        let want = reduced(&matrix, &vector, rows);
        let check = move |p: &Planted, o: &Options| -> Result<Ran, SimError> {
            let mut sim = sim.clone();
            let launch = p.launch(launch.clone())?;
            let report = sim.run_program(p.program(), &launch, o, None)?;
            let wrong = if !sim.fully_written(out) {
                Some("an output byte is not written".into())
            } else {
                (sim.download(out) != want).then(|| "other sums".into())
            };
            Ok(Ran { report, wrong })
        };
        let name = format!("{rows} rows, {chunks} chunks");
        launches.push((name, Box::new(check) as Box<Check<'static>>));
    }
    demand(&Subject {
        name: "reduce".into(),
        kernel,
        host,
        launches,
        schedules: schedules(6),
        pick: |_| true,
    });
}

/// A CUDA-core kernel for `n` vectors; `None` without nvcc.
fn cuda_core(
    name: &str,
    unit: &str,
    activation: Activation,
    n: usize,
    blocks_per_load: usize,
    ctas: Option<usize>,
    pick: fn(&Mutant) -> bool,
) -> Option<Subject> {
    let wide = blocks_per_load == 4;
    let arch = if wide { "compute_100a" } else { "compute_90a" };
    let module = Module::parse(&compile(unit, arch)?).expect(unit);
    let mut launches = Vec::new();
    let mut taken = None;
    // As many vectors as the kernel has, and one less, where that is not another kernel's number.
    let fewer = if n > 2 { n - 1 } else { n };
    // Rows in two 128-row tiles of scales; warps that take two steps, and come second to a last tile
    // of one row; other results.
    let lengths = if wide {
        [4224, 2176, 320]
    } else {
        [544, 1088, 288]
    };
    for (tiled, m, k, k_split, n, half) in [
        (true, 226, lengths[0], 2, fewer, false),
        (false, 57, lengths[1], 1, n, false),
        (false, 13, lengths[2], 1, n, true),
    ] {
        let case = cuda_core::Case {
            activation,
            m,
            n,
            k,
            batches: 2,
            blocks_per_load,
            warps: 4,
            k_split,
            tiled,
            ctas,
            exact: true,
            half,
        };
        let kernel = taken.get_or_insert_with(|| Kernel::new(&module, &case.kernel()).expect(name));
        let mut problem = Problem::new(kernel.module(), &case);
        // A CTA that works on all batches meets its own shared memory again.
        problem.launch.grid[1] = 1;
        let check = move |p: &Planted, o: &Options| -> Result<Ran, SimError> {
            let launch = p.launch(problem.launch.clone())?;
            problem.run(p.program(), &launch, o).map(ran)
        };
        let layout = if tiled { "tiled" } else { "rows" };
        let output = if half { "f16" } else { "f32" };
        let name = format!("{layout} n={n} k={k} {output}");
        launches.push((name, Box::new(check) as Box<Check<'static>>));
    }
    Some(Subject {
        name: name.into(),
        kernel: taken?,
        host: None,
        launches,
        // Nothing is asynchronous there, so that timing does not matter.
        schedules: [Fair, Starve(0), Random(1), Starve(1), Random(2)]
            .map(|p| (p, Timing::Eager))
            .to_vec(),
        pick,
    })
}

fn direct_nvfp4(pick: fn(&Mutant) -> bool) -> Option<Subject> {
    let unit = "gemv_cuda_core_nvfp4";
    cuda_core(
        "gemv_cuda_core<nvfp4,4,2>",
        unit,
        Activation::Nvfp4,
        4,
        2,
        None,
        pick,
    )
}

fn direct_f16(pick: fn(&Mutant) -> bool) -> Option<Subject> {
    let unit = "gemv_cuda_core_f16";
    cuda_core(
        "gemv_cuda_core<f16,1,1>",
        unit,
        Activation::F16,
        1,
        1,
        None,
        pick,
    )
}

fn integer_dot(pick: fn(&Mutant) -> bool) -> Option<Subject> {
    cuda_core(
        "gemv_nvfp4<2,2>",
        "gemv_nvfp4",
        Activation::Nvfp4,
        2,
        2,
        Some(3),
        pick,
    )
}

fn four_blocks_a_load(pick: fn(&Mutant) -> bool) -> Option<Subject> {
    cuda_core(
        "gemv_nvfp4_wide<2>",
        "gemv_nvfp4_wide",
        Activation::Nvfp4,
        2,
        4,
        Some(3),
        pick,
    )
}

/// Kinds of which every fault in these kernels shows. Which others are equivalent depends on the
/// compiler that wrote the PTX, so that no list is kept.
fn shared_memory(m: &Mutant) -> bool {
    use Kind::*;
    matches!(
        m.kind,
        DropBarrier | LateWait | DropStore | DropShuffle | ShuffleLane
    )
}

#[test]
fn cuda_core_kernels() {
    for s in [direct_nvfp4, direct_f16, integer_dot, four_blocks_a_load] {
        if let Some(s) = s(shared_memory) {
            demand(&s);
        }
    }
}

/// About one in ten of the others, chosen by name.
fn sample(m: &Mutant) -> bool {
    let hash = m.id().bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    !shared_memory(m) && (hash >> 32) % 16 == 0
}

/// What survives must be of a kind that the list explains, and few may: its patterns are broader than
/// for PTX that does not change.
#[test]
fn cuda_core_kernels_sampled() {
    for s in [direct_nvfp4, direct_f16, integer_dot, four_blocks_a_load] {
        if let Some(s) = s(sample) {
            let (findings, score) = findings(&s);
            let p = s.disagreements(&findings, known());
            assert!(p.is_empty(), "{} problems:\n{}", p.len(), p.join("\n"));
            // The wide kernel's sample is small, and has the same equivalent fault in unrolled copies.
            let least = if s.name.contains("wide") { 80 } else { 90 };
            let caught = score.total_caught() * 100;
            assert!(caught >= score.mutants * least, "{score}");
        }
    }
}

#[test]
#[ignore = "takes many minutes, and survivors have no list"]
fn cuda_core_kernels_with_all_arithmetic() {
    for s in [direct_nvfp4, direct_f16, integer_dot, four_blocks_a_load] {
        if let Some(s) = s(|_| true) {
            let all = findings(&s).0;
            println!("{}", s.disagreements(&all, known()).join("\n"));
        }
    }
}
