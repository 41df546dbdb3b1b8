//! `bench --suite moe`: whole layers of mixtures of experts, as a decode step computes them for few tokens.
//!
//! A figure is the time of a layer: vectors are quantised, gate and up, the gate and quantised again, down, the weighted
//! sum. Calls are chained, in one CUDA graph. Each call has ids of its own. Calls take turns over layers: as many that what
//! calls read of them, a few experts each, makes up `--cold` together. The share is of the long read's rate, for the bytes of the experts that a call has, each counted once.

use anyhow::Result;
use nvfp4_gemv_documents::document::{BoardReadings, Failed, Head, LongRead, rounded, samples};
use nvfp4_gemv_documents::statistics::{median, quantile};
use serde::{Deserialize, Serialize};

use super::failures::{self, Failures};
use super::reads;
use crate::engine::{Engine, Mixture, NotEnoughMemory, Plan};
use crate::report::{Report, Table, bytes, count, figure, progress, time};

/// Changes whenever a reader of older documents would misread newer ones.
const SCHEMA: &str = "nvfp4-gemv/moe/2";

/// A model: its name, where its sizes stand, and `num_experts`, `num_experts_per_tok`, `hidden_size`,
/// `moe_intermediate_size` of its config.json, whatever their names are there.
const MODELS: [(&str, &str, [usize; 4]); 4] = [
    (
        "Qwen3-30B-A3B",
        "config.json of Qwen/Qwen3-30B-A3B",
        [128, 8, 2048, 768],
    ),
    (
        "DeepSeek-V3",
        "config.json of deepseek-ai/DeepSeek-V3",
        [256, 8, 7168, 2048],
    ),
    (
        "gpt-oss-20b",
        "config.json of openai/gpt-oss-20b",
        [32, 4, 2880, 2880],
    ),
    (
        "Mixtral-8x7B",
        "config.json of mistralai/Mixtral-8x7B-v0.1",
        [8, 2, 4096, 14336],
    ),
];

/// Tokens of a call, where none are asked for.
pub(super) const TOKENS: [usize; 4] = [1, 2, 4, 8];

/// The document of `bench --suite moe --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Moe {
    #[serde(flatten)]
    head: Head,
    /// One launch of about 1 GiB, measured before.
    long_read: Option<LongRead>,
    notes: Vec<String>,
    items: Vec<Item>,
    /// Layers that could not be measured, for another reason than memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
}

/// A layer of one model, for so many tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Item {
    model: String,
    source: String,
    experts: usize,
    experts_per_token: usize,
    hidden: usize,
    intermediate: usize,
    tokens: usize,
    /// `uniform` or `skewed`.
    routing: String,
    activation: String,
    launches: usize,
    /// Layers that the calls take turns over.
    layers: usize,
    /// Experts of a call, each counted once, on average; and their bytes.
    distinct_experts: f64,
    distinct_bytes: f64,
    /// Bytes that calls read between two visits of a layer, on average.
    rotated_bytes: f64,
    median_us: f64,
    gb_per_s: f64,
    share_of_long_read: Option<f64>,
    samples_us: Vec<f64>,
    #[serde(flatten)]
    board: BoardReadings,
}

/// The layers that are measured, and how.
pub(super) struct Request<'a> {
    pub(super) tokens: &'a [usize],
    pub(super) plan: Plan,
    pub(super) commit: Option<String>,
}

pub(super) fn run(engine: &dyn Engine, request: &Request<'_>) -> Result<Report> {
    let long_read = reads::long_read(engine, &request.plan)?.map(|(_, long_read)| long_read);
    let rate = long_read.as_ref().map(|read| read.times.gb_per_s);
    let mut asked = Vec::new();
    for (model, source, [experts, slots, hidden, intermediate]) in MODELS {
        for &tokens in request.tokens {
            for skewed in [false, true] {
                let mixture = Mixture {
                    experts,
                    slots,
                    hidden,
                    intermediate,
                    tokens,
                    skewed,
                };
                asked.push((model, source, mixture));
            }
        }
    }
    let bar = progress(asked.len() as u64, "measuring");
    let (mut items, mut notes) = (Vec::new(), Vec::new());
    let mut failures = Failures::default();
    for (model, source, mixture) in asked {
        let routing = if mixture.skewed { "skewed" } else { "uniform" };
        let title = format!("{model}, {}, {routing}", count(mixture.tokens, "token"));
        bar.set_message(title.clone());
        match engine.mixture(&mixture, &request.plan) {
            Ok(times) => {
                let samples_us = samples(&times.turns);
                let mut board = BoardReadings::default();
                board.read(&times.turns);
                let distinct_bytes = times.distinct * mixture.expert_bytes() as f64;
                let median_us = median(&samples_us);
                let gb_per_s = distinct_bytes / median_us * 1e-3;
                items.push(Item {
                    model: model.into(),
                    source: source.into(),
                    experts: mixture.experts,
                    experts_per_token: mixture.slots,
                    hidden: mixture.hidden,
                    intermediate: mixture.intermediate,
                    tokens: mixture.tokens,
                    routing: routing.into(),
                    activation: "nvfp4".into(),
                    launches: times.launches,
                    layers: times.layers,
                    distinct_experts: times.distinct,
                    distinct_bytes,
                    rotated_bytes: distinct_bytes * times.layers as f64,
                    median_us,
                    gb_per_s,
                    share_of_long_read: rate.map(|rate| rounded(gb_per_s / rate)),
                    samples_us,
                    board,
                });
            }
            // The models of the suite differ in size, and few GPUs hold all of them.
            Err(error) if error.is::<NotEnoughMemory>() => {
                notes.push(format!("{title}: {error}"));
                failures.skip(error);
            }
            Err(error) => failures.push(title, error),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let failed = failures.beside(items.len())?;
    let moe = Moe {
        head: super::head(SCHEMA, engine, request.commit.clone(), &request.plan),
        long_read,
        notes,
        items,
        failed,
    };
    Ok(Report {
        text: text(engine, &moe),
        json: serde_json::to_value(&moe)?,
        passed: moe.failed.is_empty(),
    })
}

/// The report for people.
fn text(engine: &dyn Engine, moe: &Moe) -> String {
    let mut text = format!(
        "{}, {}\n{}",
        engine.device(),
        super::conditions(&moe.head.method),
        moe.long_read
            .as_ref()
            .map_or(String::new(), super::long_read),
    );
    let mut sizes = Table::new("model|experts|of a token|hidden|intermediate|from".split('|'));
    for (model, source, [experts, slots, hidden, intermediate]) in MODELS {
        let numbers = [experts, slots, hidden, intermediate].map(|number| number.to_string());
        sizes.row(
            [
                vec![model.to_owned()],
                numbers.to_vec(),
                vec![source.to_owned()],
            ]
            .concat(),
        );
    }
    text.push_str(&format!("{sizes}\n"));
    let head = "model|tokens|routing|launches|layers|experts read|bytes|over|a layer|5..95%|GB/s|share|MHz";
    let mut table = Table::new(head.split('|'));
    for item in &moe.items {
        let at = |q| quantile(&item.samples_us, q);
        table.row(vec![
            item.model.clone(),
            item.tokens.to_string(),
            item.routing.clone(),
            item.launches.to_string(),
            item.layers.to_string(),
            format!("{:.1}", item.distinct_experts),
            bytes(item.distinct_bytes as usize),
            bytes(item.rotated_bytes as usize),
            time(item.median_us * 1e-6),
            format!("{:.1}..{:.1}", at(0.05), at(0.95)),
            format!("{:.1}", item.gb_per_s),
            item.share_of_long_read
                .map_or("-".into(), |share| format!("{:.1}%", 100.0 * share)),
            figure(item.board.sm_mhz, 0),
        ]);
    }
    text.push_str(&table.to_string());
    for note in &moe.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&failures::text(&moe.failed));
    text
}
