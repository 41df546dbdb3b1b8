//! Plants faults in kernels and demands that the simulator notices each, or that
//! `data/equivalent_mutants.txt` has an argument why there is nothing to notice.
//!
//! A kernel is a [`Subject`]: its PTX, and some launches with a check of their results.
//! `docs/planted-faults.md` says how to read what this prints.

mod common;

use std::sync::OnceLock;

use common::conformance::{self as cases, Case, Loaded, module};
use ptx_sim::mutate::{
    Check, Finding, Kernel, Known, Mutant, Planted, Ran, Score, Subject, schedules,
};
use ptx_sim::{Launch, Module, Options, Sim, SimError};

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
        pick: Box::new(|_| true),
    }
}

#[test]
fn mma_bf16() {
    demand(&conformance("mma_bf16", vec![cases::mma_bf16(1)], 12));
}

#[test]
fn mma_mxf4nvf4() {
    demand(&conformance(
        "mma_mxf4nvf4",
        vec![cases::mma_mxf4nvf4(1)],
        12,
    ));
}

#[test]
fn mma_mxf8f6f4() {
    demand(&conformance(
        "mma_mxf8f6f4",
        vec![cases::mma_mxf8f6f4(1)],
        12,
    ));
}

fn two_cta() -> Subject {
    conformance("mma_two_cta", vec![cases::mma_two_cta(1)], 12)
}

fn pipelined() -> Subject {
    let cases = vec![
        cases::mma_pipelined(1, 2, 5, 1280),
        cases::mma_pipelined(3, 1, 16, 256),
        cases::mma_pipelined(2, 1, 11, 2304),
    ];
    conformance("mma_pipelined", cases, 3)
}

fn sample() -> Box<dyn Fn(&Mutant) -> bool + Sync> {
    Box::new(|mutant| mutant.is_in_share(8))
}

#[test]
fn mma_two_cta_sampled() {
    demand(&Subject {
        pick: sample(),
        ..two_cta()
    });
}

#[test]
fn mma_pipelined_sampled() {
    demand(&Subject {
        pick: sample(),
        ..pipelined()
    });
}

#[test]
#[ignore = "half a minute of processor time: `cargo xtask check simulator`"]
fn mma_two_cta_and_pipelined() {
    demand(&two_cta());
    demand(&pipelined());
}

/// Result of `data/reduce.ptx`: each CTA's row, chunk by chunk.
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
        pick: Box::new(|_| true),
    });
}

/// Elements of the matrices of `data/wgmma.ptx`: small integers.
fn element(seed: usize, row: usize, k: usize) -> i32 {
    let mixed = (seed * 977 + row * 131 + k * 71 + row * k * 29 + 5).wrapping_mul(2_654_435_761);
    (mixed >> 16) as i32 % 7 - 3
}

/// Operands and result of `data/wgmma.ptx`: A, B and D as it wants them.
fn multiplied(k: usize) -> [Vec<u8>; 3] {
    let half = |v: i32| half::f16::from_f32(v as f32).to_le_bytes();
    let a = (0..64).flat_map(|row| (0..k).flat_map(move |i| half(element(1, row, i))));
    let mut b = vec![0; 32 * k * 2];
    for column in 0..32 {
        for i in 0..k {
            // Sixteen bytes of a row of 128 change places by the row.
            let at = i / 64 * 4096 + column * 128 + ((i % 64 * 2) ^ ((column % 8) << 4));
            b[at..at + 2].copy_from_slice(&half(element(2, column, i)));
        }
    }
    let sum = |row, column| -> i32 {
        let products = (0..k).map(|i| element(1, row, i) * element(2, column, i));
        products.sum()
    };
    let d = (0..64).flat_map(|row| (0..32).map(move |column| (row, column)));
    let d = d.flat_map(|(row, column)| (sum(row, column) as f32).to_le_bytes());
    [a.collect(), b, d.collect()]
}

/// A ring of bulk copies, and two groups of `wgmma` in flight on one accumulator.
fn wgmma() -> Subject {
    let module = Module::parse(include_str!("data/wgmma.ptx")).expect("wgmma");
    let kernel = Kernel::new(&module, "matmul").expect("matmul");
    let mut launches = Vec::new();
    let mut host = None;
    for pairs in [3, 1] {
        let [a, b, want] = multiplied(128 * pairs);
        let mut sim = Sim::new(kernel.module().clone());
        let a = sim.upload("a", &a).expect("a");
        let b = sim.upload("b", &b).expect("b");
        let d = sim.alloc("d", want.len()).expect("d");
        let launch = Launch::new("matmul", [1; 3], [128, 1, 1])
            .buffer(a)
            .buffer(b)
            .buffer(d)
            .u32(pairs as u32);
        host = Some(launch.clone());
        let check = move |p: &Planted, o: &Options| -> Result<Ran, SimError> {
            let mut sim = sim.clone();
            let launch = p.launch(launch.clone())?;
            let report = sim.run_program(p.program(), &launch, o, None)?;
            let wrong = if !sim.fully_written(d) {
                Some("an output byte is not written".into())
            } else {
                (sim.download(d) != want).then(|| "other sums".into())
            };
            Ok(Ran { report, wrong })
        };
        let name = format!("{pairs} pairs");
        launches.push((name, Box::new(check) as Box<Check<'static>>));
    }
    Subject {
        name: "wgmma".into(),
        kernel,
        host,
        launches,
        schedules: schedules(4),
        pick: Box::new(|_| true),
    }
}

#[test]
fn wgmma_matmul() {
    demand(&wgmma());
}
