//! `bench --suite decode --tensor-parallel R`: pairs of linear layers over several GPUs of this machine, with the sum
//! that they need, in one CUDA graph.
//!
//! Each rank is a thread of this process. A turn is one graph of so many pairs that no cache holds their weights. All
//! ranks begin the graph together, and the turn is over when the slowest rank is. Work between the layers of a pair is
//! left out: the activation of an MLP, and the attention.

use anyhow::{Result, bail};
use nvfp4_gemv::{Activation, ScaleLayout};
use nvfp4_gemv_documents::document::{Failed, Head, rounded};
use nvfp4_gemv_documents::statistics::median;
use serde::{Deserialize, Serialize};

use super::decode::{MODELS, Model};
use super::failures::{self, Failures};
use crate::engine::{self, Engine, Plan, check_memory_of};
use crate::report::{Report, Table, time};
use crate::shapes;

/// Changes whenever a reader of older documents would misread newer ones.
const SCHEMA: &str = "nvfp4-gemv/tensor-parallel/2";

/// A model that outgrows one GPU, beside the larger ones of the suite.
const LARGEST: Model = Model {
    name: "Llama-3.1-405B",
    source: "config.json of meta-llama/Llama-3.1-405B",
    sizes: [16384, 128, 8, 128, 53248],
};

/// Vectors a call, if nothing else is asked for.
const VECTORS: [usize; 3] = [1, 8, 64];

/// Layers that need one sum: the matrices that read the vector, and the one behind them, rows x elements of a row.
#[cfg_attr(
    not(feature = "nccl"),
    allow(dead_code, reason = "only what measures reads all of it")
)]
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) name: &'static str,
    pub(super) columns: Vec<(usize, usize)>,
    pub(super) row: (usize, usize),
    /// Rows of a head, where ranks have whole heads.
    pub(super) head: Option<usize>,
}

impl Pair {
    fn of(model: &Model) -> [Self; 2] {
        let [hidden, heads, kv_heads, head_dim, wide] = model.sizes;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        [
            Self {
                name: "attention projections",
                columns: vec![(q, hidden), (kv, hidden), (kv, hidden)],
                row: (hidden, q),
                head: Some(head_dim),
            },
            Self {
                name: "MLP",
                columns: vec![(wide, hidden), (wide, hidden)],
                row: (hidden, wide),
                head: None,
            },
        ]
    }
}

/// Which sums are made in memory that NCCL has registered as windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Windows {
    /// Those that were measured to take less time there, by their bytes and the number of ranks
    #[default]
    BySize,
    /// All
    All,
    /// None
    None,
}

/// The problems to measure, and how.
pub(super) struct Request<'a> {
    pub(super) ranks: usize,
    pub(super) vectors: &'a [usize],
    pub(super) activations: &'a [Activation],
    pub(super) layouts: &'a [ScaleLayout],
    pub(super) windows: Windows,
    pub(super) plan: Plan,
    pub(super) commit: Option<String>,
}

/// A pair to measure.
#[cfg_attr(
    not(feature = "nccl"),
    allow(dead_code, reason = "only what measures reads all of it")
)]
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) pair: Pair,
    pub(super) ranks: usize,
    pub(super) n: usize,
    pub(super) activation: Activation,
    pub(super) layout: ScaleLayout,
    /// Where sums are made.
    pub(super) windows: Windows,
    pub(super) plan: Plan,
}

/// Seconds of one pair, a sample a round; and what was seen of its results.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) nccl: String,
    /// Pairs in a graph: of one GPU, and of each rank.
    pub(super) pairs: [usize; 2],
    pub(super) kernels: Vec<String>,
    /// The sum was made in a window.
    pub(super) in_window: bool,
    pub(super) one: Vec<f64>,
    pub(super) whole: Vec<f64>,
    /// Without the sum, and the sum alone.
    pub(super) own: Vec<f64>,
    pub(super) sum: Vec<f64>,
    /// The largest difference from one GPU's result, as a share of the largest element.
    pub(super) difference: f64,
    /// All ranks had the same bits, in every replay.
    pub(super) same_bits: bool,
}

/// The document of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Several {
    #[serde(flatten)]
    head: Head,
    ranks: usize,
    nccl: String,
    /// Which sums were made in memory that NCCL had registered as windows.
    windows: Windows,
    items: Vec<Item>,
    /// Pairs that could not be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
}

/// One pair of layers. Times are of one pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Item {
    model: String,
    source: String,
    pair: String,
    n: usize,
    activation: String,
    layout: String,
    /// Pairs in a graph, of one GPU and of each rank.
    pairs: [usize; 2],
    /// The kernel of each layer of a rank.
    kernels: Vec<String>,
    /// The sum was made in a window.
    in_window: bool,
    one_gpu_us: f64,
    us: f64,
    speedup: f64,
    without_sum_us: f64,
    sum_us: f64,
    /// The part of the time that is not the kernels'.
    share_of_sum: f64,
    one_gpu_samples_us: Vec<f64>,
    samples_us: Vec<f64>,
    without_sum_samples_us: Vec<f64>,
    sum_samples_us: Vec<f64>,
    difference_from_one_gpu: f64,
    same_bits: bool,
}

impl Item {
    fn new(model: &Model, job: &Job, measured: &Measured) -> Self {
        let us = |seconds: &[f64]| -> Vec<f64> {
            let us = seconds.iter().map(|seconds| rounded(seconds * 1e6));
            us.collect()
        };
        let middle = |seconds: &[f64]| rounded(median(seconds) * 1e6);
        let [one, whole, own] =
            [&measured.one, &measured.whole, &measured.own].map(|of| median(of));
        Self {
            model: model.name.into(),
            source: model.source.into(),
            pair: job.pair.name.into(),
            n: job.n,
            activation: job.activation.name().into(),
            layout: job.layout.name().into(),
            pairs: measured.pairs,
            kernels: measured.kernels.clone(),
            in_window: measured.in_window,
            one_gpu_us: middle(&measured.one),
            us: middle(&measured.whole),
            speedup: rounded(one / whole),
            without_sum_us: middle(&measured.own),
            sum_us: middle(&measured.sum),
            share_of_sum: rounded(1.0 - own / whole),
            one_gpu_samples_us: us(&measured.one),
            samples_us: us(&measured.whole),
            without_sum_samples_us: us(&measured.own),
            sum_samples_us: us(&measured.sum),
            difference_from_one_gpu: measured.difference,
            same_bits: measured.same_bits,
        }
    }
}

impl Item {
    /// Whether the result is one GPU's, up to rounding, on all ranks and in all replays. A NaN is not.
    fn is_right(&self) -> bool {
        let activation = Activation::from_name(&self.activation).unwrap_or(Activation::F32);
        self.same_bits && self.difference_from_one_gpu <= tolerance(activation)
    }
}

/// The largest allowed difference from one GPU's result, as a share of the largest element: both results are rounded to
/// the vectors' type, a few times.
fn tolerance(activation: Activation) -> f64 {
    match activation {
        // Results of layers with NVFP4 vectors are bf16.
        Activation::Bf16 | Activation::Nvfp4 => 2.0_f64.powi(-6),
        Activation::F16 => 2.0_f64.powi(-9),
        Activation::F32 => 2.0_f64.powi(-18),
    }
}

pub(super) fn run(engine: &dyn Engine, request: &Request<'_>) -> Result<Report> {
    let devices = engine::devices().found.map_err(|error| {
        anyhow::Error::new(error).context("--tensor-parallel measures GPUs of this machine")
    })?;
    if devices.len() < request.ranks {
        bail!(
            "--tensor-parallel {} needs so many GPUs, and there {} {}",
            request.ranks,
            if devices.len() == 1 { "is" } else { "are" },
            devices.len()
        );
    }
    let mut items = Vec::new();
    let mut failures = Failures::default();
    let mut nccl = String::new();
    for model in [&MODELS[1], &LARGEST] {
        for pair in Pair::of(model) {
            for &activation in request.activations {
                for &layout in request.layouts {
                    for &n in request.vectors {
                        let job = Job {
                            pair: pair.clone(),
                            ranks: request.ranks,
                            n,
                            activation,
                            layout,
                            windows: request.windows,
                            plan: request.plan,
                        };
                        let (activation, layout) = (activation.name(), layout.name());
                        let title =
                            format!("{} {} n={n} {activation} {layout}", model.name, pair.name);
                        let measured = check(&job).and_then(|()| measure(&job));
                        if let Some(measured) = failures.keep(title, measured) {
                            nccl.clone_from(&measured.nccl);
                            items.push(Item::new(model, &job, &measured));
                        }
                    }
                }
            }
        }
    }
    let failed = failures.beside(items.len())?;
    report(engine, request, nccl, items, failed)
}

/// Refuses vectors that host memory does not hold, before any are made.
fn check(job: &Job) -> Result<()> {
    for &(m, k) in job.pair.columns.iter().chain([&job.pair.row]) {
        check_memory_of(&shapes::of(m, job.n, k, 1)?)?;
    }
    Ok(())
}

fn report(
    engine: &dyn Engine,
    request: &Request<'_>,
    nccl: String,
    items: Vec<Item>,
    failed: Vec<Failed>,
) -> Result<Report> {
    let is_right = items.iter().all(Item::is_right);
    let passed = is_right && failed.is_empty();
    let document = Several {
        head: super::head(SCHEMA, engine, request.commit.clone(), &request.plan),
        ranks: request.ranks,
        nccl,
        windows: request.windows,
        items,
        failed,
    };
    Ok(Report {
        text: text(engine, &document, is_right),
        json: serde_json::to_value(&document)?,
        passed,
    })
}

fn text(engine: &dyn Engine, document: &Several, is_right: bool) -> String {
    let head = "model|layers|vectors|scales|n|one GPU|all|speed-up|kernels|sum|window|share|bits";
    let mut table = Table::new(head.split('|'));
    for item in &document.items {
        table.row(vec![
            item.model.clone(),
            item.pair.clone(),
            item.activation.clone(),
            item.layout.clone(),
            item.n.to_string(),
            time(item.one_gpu_us * 1e-6),
            time(item.us * 1e-6),
            format!("{:.2}", item.speedup),
            time(item.without_sum_us * 1e-6),
            time(item.sum_us * 1e-6),
            if item.in_window { "yes" } else { "no" }.into(),
            format!("{:.1}%", 100.0 * item.share_of_sum),
            if item.same_bits { "same" } else { "DIFFER" }.into(),
        ]);
    }
    // Of the pairs in a graph, the first one's result is looked at (`ranks/rank.rs`).
    let result = match is_right {
        true => "the result of each graph's first pair is one GPU's, up to rounding",
        false => {
            "FAILED: the result of a graph's first pair is not one GPU's, or not the same on all ranks and in all replays"
        }
    };
    format!(
        "{}, {} ranks, NCCL {}{}, {}\n\n{table}\n{result}\n{}",
        engine.device(),
        document.ranks,
        document.nccl,
        match document.windows {
            Windows::BySize => ", windows by size",
            Windows::All => ", all sums in windows",
            Windows::None => ", no windows",
        },
        super::conditions(&document.head.method),
        failures::text(&document.failed),
    )
}

#[cfg(not(feature = "nccl"))]
fn measure(_: &Job) -> Result<Measured> {
    bail!("this program was built without feature `nccl`")
}

#[cfg(feature = "nccl")]
use super::ranks::measure;

/// The vectors that are measured if none are asked for.
pub(super) fn vectors(asked: &[usize]) -> &[usize] {
    if asked.is_empty() { &VECTORS } else { asked }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_the_layers_of_the_models() {
        let linears = |pair: &Pair| -> usize {
            let all = pair.columns.iter().chain([&pair.row]);
            all.map(|(m, k)| m * k).sum()
        };
        for model in [&MODELS[1], &LARGEST] {
            let pairs: usize = Pair::of(model).iter().map(linears).sum();
            assert_eq!(pairs, model.weights());
            for pair in Pair::of(model) {
                let [hidden, ..] = model.sizes;
                assert_eq!(pair.row.0, hidden);
                assert!(pair.columns.iter().all(|column| column.1 == hidden));
            }
        }
    }

    #[test]
    fn times_become_shares_and_speed_ups() {
        let item = item();
        assert_eq!((item.speedup, item.share_of_sum), (1.6, 0.1));
        assert_eq!((item.one_gpu_us, item.sum_us), (320.0, 15.0));
    }

    #[test]
    fn a_result_that_differs_or_is_no_number_fails() {
        let with = |difference_from_one_gpu, same_bits| {
            let item = Item {
                difference_from_one_gpu,
                same_bits,
                ..item()
            };
            item.is_right()
        };
        assert!(with(0.0, true) && with(0.01, true));
        assert!(!with(0.1, true) && !with(f64::NAN, true) && !with(0.0, false));
        // NVFP4 vectors are quantised from bf16, and what is added up is bf16.
        let nvfp4 = Item {
            activation: Activation::Nvfp4.name().into(),
            difference_from_one_gpu: 0.01,
            ..item()
        };
        assert!(nvfp4.is_right());
    }

    #[test]
    fn a_report_says_what_was_looked_at_and_what_failed() {
        let (engine, _) = engine::open(Some(nvfp4_gemv::GemvPath::Cpu)).unwrap();
        let request = Request {
            ranks: 2,
            vectors: &[1],
            activations: &[Activation::Bf16],
            layouts: &[ScaleLayout::Linear],
            windows: Windows::None,
            plan: Plan {
                rounds: 3,
                cold_bytes: 0,
            },
            commit: None,
        };
        let report = |failed| {
            let items = vec![item()];
            report(engine.as_ref(), &request, "2.28".into(), items, failed).unwrap()
        };
        let fine = report(Vec::new());
        assert!(
            fine.passed && fine.text.contains(" linear "),
            "{}",
            fine.text
        );
        // No more than what was compared.
        let claim = "the result of each graph's first pair is one GPU's, up to rounding";
        assert!(fine.text.contains(claim), "{}", fine.text);
        let one_failed = report(vec![Failed {
            problem: "a pair".into(),
            why: "no reason".into(),
        }]);
        assert!(!one_failed.passed, "{}", one_failed.text);
        let line = "FAILED: a pair: no reason";
        assert!(one_failed.text.contains(line) && one_failed.text.contains(claim));
        assert_eq!(one_failed.json["failed"][0]["problem"], "a pair");
    }

    /// 10^14 bytes of vectors, before any are made.
    #[test]
    fn vectors_that_memory_does_not_hold_are_refused() {
        let mut job = job();
        check(&job).unwrap();
        job.n = 1 << 30;
        let error = check(&job).unwrap_err().to_string();
        assert!(error.contains("of host memory"), "{error}");
    }

    fn job() -> Job {
        Job {
            pair: Pair::of(&LARGEST)[1].clone(),
            ranks: 2,
            n: 1,
            activation: Activation::Bf16,
            layout: ScaleLayout::Linear,
            windows: Windows::BySize,
            plan: Plan {
                rounds: 3,
                cold_bytes: 0,
            },
        }
    }

    fn item() -> Item {
        let measured = Measured {
            one: vec![300e-6, 340e-6, 320e-6],
            whole: vec![200e-6; 3],
            own: vec![180e-6; 3],
            sum: vec![15e-6; 3],
            same_bits: true,
            ..Measured::default()
        };
        Item::new(&LARGEST, &job(), &measured)
    }
}
