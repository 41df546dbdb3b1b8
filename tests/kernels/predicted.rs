//! The bits that a published model of tensor cores predicts for whole problems: the contest's three, one vector, and one
//! of them with data that tell how many places an instruction keeps.
//!
//! `ptx_sim::models::sums` says how one instruction adds, this file in which order a kernel's instructions follow each
//! other. On small problems the simulator executes the kernel, and gives the same bits. The bits of the contest's
//! problems are kept as hashes of 128 rows each (`predicted/*.jsonl`). A GPU that has the instruction is held against
//! them: `predicted/gpu.rs`. **No such GPU has been asked.**
//!
//! Where arithmetic or inputs were changed on purpose, write the hashes again:
//! `NVFP4_GEMV_PREDICT=tests/kernels/predicted cargo test --test kernels -- predicted::committed`.

use std::mem::offset_of;
use std::sync::Arc;

use nvfp4_gemv::kernel::params::{nvfp4_epilogue, nvfp4_mma_fp4_params, nvfp4_tcgen05_params};
use nvfp4_gemv::kernel::plan::Launch;
use nvfp4_gemv::kernel::{Config, Job, Kernel, MmaFp4Config, Tcgen05Config};
use nvfp4_gemv::reference::{self, error_bound};
use nvfp4_gemv::{Activation, FloatType, Gpu, RawWorkspace, ScaleLayout, Shape};
use nvfp4_gemv_cli::problem::{CONTEST_BENCHMARKS, Problem};
use ptx_sim::models::sums::{Nvfp4, Rule, nvfp4};
use ptx_sim::{Options, Silicon, SumRule};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::support::operands::{Case, Data, Operands, fnv1a};
use crate::support::ptx;
use crate::support::sim::{Loaded, Simulator};
use crate::support::sized;

#[cfg(feature = "device")]
pub(crate) mod gpu;

crate::trials! {
    host: committed_hashes_are_the_models, bounds_hold_by_the_published_rule;
    simulator: tcgen05_as_executed, mma_fp4_as_executed;
}

/// Rows of a hash: a tile of `tcgen05`.
const ROWS: usize = 128;
const SEED: u64 = 1;
/// Code and scales of 64 elements.
const CODES: usize = 32;
const SCALES: usize = 4;
/// Multiprocessors of an RTX 5090.
const RTX_5090: u32 = 170;

/// A problem and its predicted bits.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prediction {
    m: usize,
    k: usize,
    l: usize,
    data: Numbers,
    /// The kernel and how it divides the problem: the order of sums follows from it.
    config: Config,
    /// FNV-1a hash of the operands, to notice another problem.
    operands: String,
    /// FNV-1a hashes of the f32 results of each 128 rows, batch after batch.
    rows: Vec<String>,
}

/// The numbers of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Numbers {
    /// All codes and all scales.
    FullRange,
    /// Those of [`large_scales_over_zeros`]: they tell how many places stay, which others seldom do.
    LargeScalesOverZeros,
}

/// The predicted problems.
fn predicted() -> Vec<((usize, usize, usize), Numbers)> {
    let [.., last] = CONTEST_BENCHMARKS;
    let contest = CONTEST_BENCHMARKS.map(|shape| (shape, Numbers::FullRange));
    let adversarial = (last, Numbers::LargeScalesOverZeros);
    contest.into_iter().chain([adversarial]).collect()
}

/// The operands of a prediction, without the right result.
fn operands(shape: (usize, usize, usize), numbers: Numbers) -> Operands {
    let case = case(shape);
    match numbers {
        Numbers::FullRange => Operands::without_truth(&case, None),
        Numbers::LargeScalesOverZeros => {
            let problem = large_scales_over_zeros(case.shape, SEED);
            Operands::without_truth(&case, Some(problem))
        }
    }
}

/// The problem of a contest's shape: all codes and all scales.
fn case((m, k, l): (usize, usize, usize)) -> Case {
    Case::new(
        sized(m, 1, k, l),
        Data::FullRange,
        ScaleLayout::Tiled128x4,
        SEED,
    )
}

/// The GPU that a kernel's instruction is predicted for, and the folder's file of it.
fn silicon(kernel: Kernel) -> (Silicon, &'static str, Gpu) {
    match kernel {
        Kernel::Tcgen05 => {
            let b200 = Gpu::of_compute_capability((10, 0), ptx::BLACKWELL);
            (Silicon::Blackwell, "tcgen05.jsonl", b200)
        }
        Kernel::MmaFp4 => {
            let rtx_5090 = Gpu {
                multiprocessors: RTX_5090,
                ..Gpu::of_compute_capability((12, 0), ptx::CONSUMER)
            };
            (Silicon::RtxBlackwell, "mma_fp4.jsonl", rtx_5090)
        }
        other => panic!("{other} has no instruction of FP4"),
    }
}

/// 64 elements each of a row: missing ones are zeros, as the kernels see them.
fn atoms(codes: &[u8], blocks: usize, scale: impl Fn(usize) -> u8) -> Vec<Nvfp4> {
    let atom = |(i, codes): (usize, &[u8])| {
        let mut atom = ([0; CODES], [0; SCALES]);
        atom.0[..codes.len()].copy_from_slice(codes);
        for (j, to) in atom.1.iter_mut().enumerate() {
            let block = SCALES * i + j;
            *to = if block < blocks { scale(block) } else { 0 };
        }
        atom
    };
    codes.chunks(CODES).enumerate().map(atom).collect()
}

/// A launch's parameters.
struct Words<'a>(&'a Launch);

impl Words<'_> {
    fn get(&self, offset: usize) -> usize {
        let bytes = &self.0.parameters.bytes()[offset..][..4];
        u32::from_ne_bytes(bytes.try_into().expect("four bytes")) as usize
    }
}

macro_rules! number {
    ($launch:expr, $structure:ty, $field:ident) => {
        Words($launch).get(offset_of!($structure, $field))
    };
}

/// The order of the sums of a row: parts, each of instructions in a row, whose sums are added in f32 one after another.
struct Order {
    /// Instructions of each part of a tile, and their steps: an f32 sum is added after each.
    parts: Vec<Vec<std::ops::Range<usize>>>,
    alpha: f32,
}

/// `gemv_tcgen05`: a CTA's share of a tile is one chain of instructions; shares are added in the order of K.
fn tcgen05(launch: &Launch, tile: usize) -> Order {
    type P = nvfp4_tcgen05_params;
    let (each, more, unit) = (
        number!(launch, P, each),
        number!(launch, P, more),
        number!(launch, P, unit),
    );
    let (steps, pieces, atoms) = (
        number!(launch, P, steps),
        number!(launch, P, pieces),
        number!(launch, P, atoms),
    );
    let first = |cta: usize| (cta * each + cta.min(more)) * unit;
    let (begin, end) = (tile * steps, (tile + 1) * steps);
    let shares = (0..launch.grid[0] as usize).filter_map(|cta| {
        let (from, to) = (first(cta).max(begin), first(cta + 1).min(end));
        let of_step = 4 * pieces;
        let atom = |step: usize| ((step - begin) * of_step).min(atoms);
        (from < to).then(|| std::iter::once(atom(from)..atom(to)).collect())
    });
    Order {
        parts: shares.collect(),
        alpha: alpha(launch, offset_of!(P, epilogue)),
    }
}

/// `gemv_mma_fp4`: a step of four instructions is one chain from zero; a CTA adds its steps in f32, a cluster its CTAs.
fn mma_fp4(launch: &Launch) -> Order {
    type P = nvfp4_mma_fp4_params;
    let slices = number!(launch, P, slices);
    let (steps, ctas) = (slices.div_ceil(4), launch.cluster.max(1) as usize);
    let part = |rank: usize| {
        let steps = steps * rank / ctas..steps * (rank + 1) / ctas;
        steps
            .map(|step| 4 * step..(4 * step + 4).min(slices))
            .collect()
    };
    Order {
        parts: (0..ctas).map(part).collect(),
        alpha: alpha(launch, offset_of!(P, epilogue)),
    }
}

fn alpha(launch: &Launch, epilogue: usize) -> f32 {
    let bits = Words(launch).get(epilogue + offset_of!(nvfp4_epilogue, alpha));
    f32::from_bits(bits as u32)
}

impl Order {
    fn sum(&self, rule: &Rule, w: &[Nvfp4], x: &[Nvfp4]) -> f32 {
        let add = |c, i: usize| rule.nvfp4(c, &w[i], &x[i]);
        let chain = |atoms: &std::ops::Range<usize>| atoms.clone().fold(0.0, add);
        let part = |chains: &Vec<_>| chains.iter().map(chain).fold(0.0, |sum, d| sum + d);
        // Sums are never -0, so that a sum from zero on is also that of one part alone.
        self.parts
            .iter()
            .map(part)
            .fold(0.0, |sum, part| sum + part)
            * self.alpha
    }
}

/// The results of a launch of one vector, `[l][m]`, in f32 and without factors of rows.
fn predict(silicon: Silicon, operands: &Operands, launch: &Launch) -> Vec<f32> {
    predict_by(
        nvfp4(silicon).expect("its instruction"),
        silicon,
        operands,
        launch,
    )
}

/// The same by another rule.
fn predict_by(rule: Rule, silicon: Silicon, operands: &Operands, launch: &Launch) -> Vec<f32> {
    let (shape, bytes) = (&operands.case.shape, &operands.bytes);
    let (m, row_bytes, blocks) = (shape.m(), shape.row_code_bytes(), shape.blocks());
    let tiles = m.div_ceil(ROWS);
    let orders: Vec<Order> = match silicon {
        Silicon::Blackwell => (0..shape.l() * tiles)
            .map(|tile| tcgen05(launch, tile))
            .collect(),
        _ => vec![mma_fp4(launch)],
    };
    let vector = |batch: usize| {
        let codes = &bytes.vectors[batch * bytes.vector_strides.batch..][..row_bytes];
        let scales = &bytes.vector_scales[batch * bytes.vector_scale_strides.batch..];
        atoms(codes, blocks, |block| {
            scales[bytes.vector_layout.offset(0, block, blocks)]
        })
    };
    let vectors: Vec<_> = (0..shape.l()).map(vector).collect();
    let rows = (0..shape.l() * m).into_par_iter().map(|at| {
        let (batch, row) = (at / m, at % m);
        let scales = &bytes.scales[batch * bytes.layout.bytes(m, blocks)..];
        let codes = &bytes.codes[at * row_bytes..][..row_bytes];
        let w = atoms(codes, blocks, |block| {
            scales[bytes.layout.offset(row, block, blocks)]
        });
        let order = &orders[(batch * tiles + row / ROWS) % orders.len()];
        order.sum(&rule, &w, &vectors[batch])
    });
    rows.collect()
}

/// A hash of each 128 rows of a batch.
fn hashes(y: &[f32], m: usize) -> Vec<String> {
    let groups = y.chunks(m).flat_map(|batch| batch.chunks(ROWS));
    let hash = |rows: &[f32]| fnv1a(rows.iter().flat_map(|y| y.to_le_bytes()));
    groups.map(hash).collect()
}

/// The one launch of a problem of one vector with a config, or with the kernel's default.
fn planned(kernel: Kernel, operands: &Operands, config: Option<Config>) -> (Config, Launch) {
    let (_, _, gpu) = silicon(kernel);
    // Nobody follows the addresses: the plan is read for its numbers.
    let mut next = 1 << 20;
    let mut place = |_: &str, bytes: &[u8]| {
        let at = next;
        next += (bytes.len() as u64).next_multiple_of(1 << 12);
        at
    };
    let call = operands.bytes.call(1 << 40, &mut place);
    let workspace = RawWorkspace {
        address: 1 << 44,
        bytes: 1 << 30,
    };
    let call = call.with_workspace(workspace).expect("aligned, and apart");
    let asked = call.operands();
    let job = Job::new(call.shape(), &asked, &gpu);
    let config = config.unwrap_or_else(|| kernel.default_config(&job).expect("a config"));
    let plan = config.plan(&call, &gpu, false).expect("a plan");
    match plan.launches() {
        [launch] => (config, launch.clone()),
        _ => panic!("one launch for one vector: {plan:?}"),
    }
}

/// The prediction of a problem with a config, or with the kernel's default.
fn prediction(
    kernel: Kernel,
    (shape, data): ((usize, usize, usize), Numbers),
    config: Option<Config>,
) -> Prediction {
    let (silicon, ..) = silicon(kernel);
    let operands = operands(shape, data);
    let (config, launch) = planned(kernel, &operands, config);
    let y = predict(silicon, &operands, &launch);
    let (m, k, l) = shape;
    Prediction {
        m,
        k,
        l,
        data,
        config,
        operands: operands.hash(),
        rows: hashes(&y, m),
    }
}

/// Divisions of K: one CTA has all, or several have parts.
fn divisions(kernel: Kernel) -> Vec<Config> {
    match kernel {
        Kernel::Tcgen05 => {
            let config = |step, ctas| Tcgen05Config {
                step,
                ctas,
                divided: true,
                ..Tcgen05Config::DEFAULT
            };
            let all = [(256, 1), (512, 2), (256, 5), (256, 9)];
            all.map(|(step, ctas)| config(step, ctas).into()).into()
        }
        _ => {
            let config = |cluster| MmaFp4Config {
                cluster,
                ..MmaFp4Config::DEFAULT
            };
            [1, 3, 7].map(|cluster| config(cluster).into()).into()
        }
    }
}

/// The sums of which the published rule loses most: sums of tiny products, behind block scales of 448 that multiply
/// zeros. The zeros are the weights' or the vector's, by batch. Of odd seeds some of the scales are tiny, and some
/// zero.
fn large_scales_over_zeros(shape: Shape, seed: u64) -> Problem {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut problem = Problem::full_range(shape, seed);
    problem.alpha = None;
    let (blocks, odd) = (shape.blocks(), seed % 2 == 1);
    let idle: Vec<bool> = (0..blocks).map(|_| random.bool()).collect();
    let mut fill = |codes: &mut [u8], scales: &mut [u8], zeros: bool| {
        for (i, (codes, scale)) in codes.chunks_exact_mut(8).zip(scales).enumerate() {
            *scale = match (idle[i % blocks], odd && random.u8(..3) == 0) {
                (true, false) => 0x7e,
                (true, true) => [0x00, 0x01][random.usize(..2)],
                (false, _) => random.u8(0x01..0x0a),
            };
            if idle[i % blocks] && zeros {
                codes.fill(0);
            }
        }
    };
    let (code_bytes, m) = (shape.row_code_bytes(), shape.m());
    for batch in 0..shape.l() {
        let of_weights = batch % 2 == 0;
        let rows = batch * m..(batch + 1) * m;
        fill(
            &mut problem.a[rows.start * code_bytes..rows.end * code_bytes],
            &mut problem.sfa[rows.start * blocks..rows.end * blocks],
            of_weights,
        );
        fill(
            &mut problem.b[batch * code_bytes..][..code_bytes],
            &mut problem.sfb[batch * blocks..][..blocks],
            !of_weights,
        );
    }
    problem
}

/// The bounds of both kernels, by the published rule, in every division of K. Integers are exact.
fn bounds_hold_by_the_published_rule() {
    for kernel in [Kernel::Tcgen05, Kernel::MmaFp4] {
        let (silicon, ..) = silicon(kernel);
        let (mut beyond, mut worst) = (0, 0f64);
        for seed in 0..6 {
            let shape = sized(70, 1, 64 * (33 + seed as usize), 2);
            let case = |data| Case::new(shape, data, ScaleLayout::Tiled128x4, seed);
            let adversarial = large_scales_over_zeros(shape, seed);
            let of_products = products_of(&adversarial);
            let adversarial = Operands::of(&case(Data::FullRange), &adversarial);
            let integers = Operands::new(&case(Data::Integers));
            let full_range = Operands::new(&case(Data::FullRange));
            for config in divisions(kernel) {
                let roundings = config.roundings(&shape, Activation::Nvfp4);
                for operands in [&integers, &full_range, &adversarial] {
                    let (_, launch) = planned(kernel, operands, Some(config));
                    let y = predict(silicon, operands, &launch);
                    let bytes: Vec<u8> = y.iter().flat_map(|y| y.to_le_bytes()).collect();
                    let wrong = operands.difference(&bytes, roundings);
                    assert_eq!(wrong, None, "{config:?}, seed {seed}");
                    if std::ptr::eq(operands, &adversarial) {
                        for ((y, truth), products) in
                            y.iter().zip(&operands.truth.y).zip(&of_products)
                        {
                            let off = (f64::from(*y) - truth).abs();
                            let bound = error_bound(*truth, *products, roundings, FloatType::F32);
                            beyond += usize::from(off > bound);
                            worst = worst.max(off / bound);
                        }
                    }
                }
            }
        }
        // The exception of blocks of zeros is needed: by their products alone many results are out of bounds.
        assert!(beyond > 20, "{kernel}: {beyond} results");
        assert!(worst > 2.0, "{kernel}: {worst} times the bound at most");
    }
}

/// Sums of the products' magnitudes, without anything for blocks of zeros.
fn products_of(problem: &Problem) -> Vec<f64> {
    let linear = ScaleLayout::Linear;
    let (w, x) = (
        problem.weights(linear).unwrap(),
        problem.vectors(linear).unwrap(),
    );
    let (w, x) = (w.view().unwrap(), x.view());
    let decoded = reference::decode_vectors(&problem.shape, &x).unwrap();
    let (m, k) = (problem.shape.m(), problem.shape.k());
    let of_products = (0..problem.shape.outputs()).map(|i| {
        let row = reference::decode_row(&w, i / m, i % m);
        let products = row
            .iter()
            .zip(&decoded[i / m * k..])
            .map(|(w, x)| (w * x).abs());
        products.sum()
    });
    of_products.collect()
}

fn committed(kernel: Kernel) -> Vec<Prediction> {
    let text = match kernel {
        Kernel::Tcgen05 => include_str!("predicted/tcgen05.jsonl"),
        _ => include_str!("predicted/mma_fp4.jsonl"),
    };
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("a prediction"))
        .collect()
}

/// The model gives the kept hashes, and a neighbour of it others. The configs are the defaults of the
/// day on which the hashes were written: defaults may move on.
fn committed_hashes_are_the_models() {
    let folder = std::env::var_os("NVFP4_GEMV_PREDICT");
    for kernel in [Kernel::Tcgen05, Kernel::MmaFp4] {
        if let Some(folder) = &folder {
            let (_, name, _) = silicon(kernel);
            let now = predicted().into_iter();
            let now: Vec<_> = now.map(|of| prediction(kernel, of, None)).collect();
            let line = |of: &Prediction| serde_json::to_string(of).expect("JSON") + "\n";
            let text: String = now.iter().map(line).collect();
            let file = std::path::Path::new(folder).join(name);
            std::fs::write(&file, text).expect("a file that can be written");
            continue;
        }
        let kept = committed(kernel);
        let problem = |of: &Prediction| ((of.m, of.k, of.l), of.data);
        assert_eq!(
            kept.iter().map(problem).collect::<Vec<_>>(),
            predicted(),
            "{kernel}"
        );
        for kept in &kept {
            let now = prediction(kernel, problem(kept), Some(kept.config));
            assert_eq!(kept.operands, now.operands, "{kernel}: another problem");
            assert!(*kept == now, "{kernel} {}x{}", now.m, now.k);
        }
        // A rule that is off by a bit gives other bits: by a place, where scales are large; by a bit of the result.
        let (silicon, ..) = silicon(kernel);
        let rule = nvfp4(silicon).expect("its instruction");
        let [.., full_range, large_scales] = &kept[..] else {
            panic!("two predictions or more");
        };
        let place = |more| Rule {
            fraction: rule.fraction + more,
            ..rule
        };
        let shorter = Rule {
            mantissa: rule.mantissa - 1,
            ..rule
        };
        for (of, other) in [
            (large_scales, place(-1)),
            (large_scales, place(1)),
            (full_range, shorter),
        ] {
            let operands = operands((of.m, of.k, of.l), of.data);
            let (_, launch) = planned(kernel, &operands, Some(of.config));
            let y = predict_by(other, silicon, &operands, &launch);
            let given = hashes(&y, of.m);
            let differ = given.iter().zip(&of.rows).filter(|(a, b)| a != b).count();
            assert!(
                2 * differ > given.len(),
                "{kernel}: {other:?}: {differ} groups of rows"
            );
        }
    }
}

/// Executes small problems by the published rule and in the simulator's own way. The first gives the predicted bits.
fn as_executed(kernel: Kernel, arch: &'static str, problems: &[((usize, usize, usize), Config)]) {
    let simulator = Simulator::new(arch);
    let (silicon, ..) = silicon(kernel);
    let mut other = 0;
    for &(shape, config) in problems {
        let operands = Arc::new(Operands::new(&case(shape)));
        let mut loaded = Loaded::new(&operands, arch);
        let plan = loaded.plan(config, &simulator.gpu, false);
        let predicted = predict(silicon, &operands, &plan.launches()[0]);
        let predicted: Vec<u8> = predicted.iter().flat_map(|y| y.to_le_bytes()).collect();
        let by = |sums| {
            let options = Options {
                sums,
                ..Options::default()
            };
            simulator.run(&operands, config, false, &options)
        };
        let executed = by(SumRule::Published(silicon));
        let differ =
            |a: &[u8], b: &[u8]| a.chunks(4).zip(b.chunks(4)).filter(|(a, b)| a != b).count();
        assert_eq!(differ(&predicted, &executed), 0, "{shape:?} {config:?}");
        other += differ(&by(SumRule::Own), &executed);
    }
    // Else data that every rule explains would pass for evidence.
    assert!(other > 100, "{other} results tell the rules apart");
}

fn tcgen05_as_executed() {
    let config = |step, ctas, divided| {
        Config::from(Tcgen05Config {
            step,
            ctas,
            divided,
            ..Tcgen05Config::DEFAULT
        })
    };
    let problems = [
        // Tiles that are shared by three CTAs, and that begin and end in one; a last step that is short.
        ((200, 1056, 2), config(256, 7, true)),
        ((130, 4096, 1), config(512, 5, true)),
        ((140, 1088, 1), config(256, 2, false)),
    ];
    as_executed(Kernel::Tcgen05, ptx::BLACKWELL, &problems);
}

fn mma_fp4_as_executed() {
    let config = |warps, cluster| {
        Config::from(MmaFp4Config {
            warps,
            cluster,
            ..MmaFp4Config::DEFAULT
        })
    };
    let problems = [
        ((40, 1088, 2), config(2, 3)),
        ((130, 2048, 1), config(4, 1)),
        ((70, 4160, 1), config(1, 8)),
    ];
    as_executed(Kernel::MmaFp4, ptx::CONSUMER, &problems);
}
