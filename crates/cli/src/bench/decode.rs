//! `bench --suite decode`: the linear layers of decoders, layer after layer, as a decode step reads them.
//!
//! A decode step is one long read of all weights. So its figures are times of a decoder layer, and shares of the rate
//! that a long read reaches, which takes turns with them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use nvfp4_gemv::{Activation, FloatType, ScaleLayout};
use nvfp4_gemv_documents::alternate::{WARM_UP, alternate};
use nvfp4_gemv_documents::document::{
    self, BoardReadings, Failed, Head, LongRead, ReadTimes, Turn, rounded, shares,
};
use nvfp4_gemv_documents::statistics::{median, quantile};
use serde::{Deserialize, Serialize};

use super::failures::{self, Failures};
use super::reads::{self, Read};
use crate::configs::one_line;
use crate::engine::{Ask, Chain, Engine, Plan, Ways, Work};
use crate::report::{Report, Table, bytes, figure, progress, time};

/// Changes whenever a reader of older documents would misread newer ones.
const SCHEMA: &str = "nvfp4-gemv/decode/1";

/// Sizes of a model's decoder layers, from its public config.json.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) name: &'static str,
    /// The config.json that has the sizes.
    pub(super) source: &'static str,
    /// The sizes that [`SIZES`] names.
    pub(super) sizes: [usize; 5],
}

/// Keys of config.json without the underscores: `hidden_size`, `num_attention_heads`, `num_key_value_heads`, `head_dim`
/// (for Llama `hidden_size / num_attention_heads`), `intermediate_size`.
const SIZES: [&str; 5] = ["hidden", "heads", "kv heads", "head dim", "intermediate"];

pub(super) const MODELS: [Model; 3] = [
    Model {
        name: "Llama-3.1-8B",
        source: "config.json of meta-llama/Llama-3.1-8B",
        sizes: [4096, 32, 8, 128, 14336],
    },
    Model {
        name: "Llama-3.3-70B",
        source: "config.json of meta-llama/Llama-3.3-70B-Instruct",
        sizes: [8192, 64, 8, 128, 28672],
    },
    Model {
        name: "Qwen3-32B",
        source: "config.json of Qwen/Qwen3-32B",
        sizes: [5120, 64, 8, 128, 25600],
    },
];

impl Model {
    /// Elements of the weights of a decoder layer's linear layers.
    pub(super) fn weights(&self) -> usize {
        let linears = self.linears(false);
        linears.iter().map(|linear| linear.m * linear.k).sum()
    }

    /// The linear layers of a decoder layer in the order of their computation. Fused, those that take the same vectors
    /// are one: q, k and v, and gate and up.
    fn linears(&self, fused: bool) -> Vec<Linear> {
        let linear = |name: &str, m, k| Linear {
            name: name.into(),
            m,
            k,
        };
        let [hidden, heads, kv_heads, head_dim, intermediate] = self.sizes;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        match fused {
            false => vec![
                linear("q", q, hidden),
                linear("k", kv, hidden),
                linear("v", kv, hidden),
                linear("o", hidden, q),
                linear("gate", intermediate, hidden),
                linear("up", intermediate, hidden),
                linear("down", hidden, intermediate),
            ],
            true => vec![
                linear("qkv", q + 2 * kv, hidden),
                linear("o", hidden, q),
                linear("gate_up", 2 * intermediate, hidden),
                linear("down", hidden, intermediate),
            ],
        }
    }
}

/// The document of `bench --suite decode --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Decode {
    #[serde(flatten)]
    head: Head,
    /// One launch of about 1 GiB, measured before.
    long_read: Option<LongRead>,
    /// Why figures are missing that were asked for, a sentence each.
    notes: Vec<String>,
    items: Vec<Item>,
    /// Items that could not be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
}

/// The decoder layers of one model, computed in one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Item {
    model: String,
    /// The place where the model's sizes stand.
    source: String,
    fused: bool,
    linears: Vec<Linear>,
    n: usize,
    activation: String,
    layout: String,
    output_type: String,
    /// Codes and unpadded scales of one decoder layer: what GB/s count.
    layer_bytes: usize,
    /// Decoder layers of a turn, each with weights of its own.
    layers: usize,
    /// A read of as many bytes as all of these weights have, in launches of about 1 GiB: times of one layer's part.
    long_read: ReadTimes,
    ways: Vec<Step>,
}

/// A linear layer: its name, rows and elements of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Linear {
    name: String,
    m: usize,
    k: usize,
}

/// One way to launch the decoder layers. Times are of one decoder layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Step {
    /// `isolated` or `chained`.
    mode: String,
    /// Kernel and config of each linear layer, for people.
    configs: Vec<String>,
    median_us: f64,
    gb_per_s: f64,
    /// The median of the rounds' long read's time / time.
    share_of_long_read: f64,
    samples_us: Vec<f64>,
    #[serde(flatten)]
    board: BoardReadings,
}

impl Item {
    /// Fills in what was measured, one turn a round: of the long read, then of each way.
    fn complete(&mut self, turns: &[Vec<Turn>]) {
        let [read, ways @ ..] = turns else {
            return;
        };
        self.long_read.complete(self.layer_bytes, read);
        for (way, turns) in self.ways.iter_mut().zip(ways) {
            way.samples_us = document::samples(turns);
            way.median_us = median(&way.samples_us);
            way.gb_per_s = document::gb_per_s(self.layer_bytes, way.median_us);
            let shares = shares(&self.long_read.samples_us, &way.samples_us);
            way.share_of_long_read = rounded(median(&shares));
            way.board.read(turns);
        }
    }

    /// Repeats the long read and then each way.
    fn sustain(&mut self, ways: &mut dyn Ways, time: Duration) -> Result<()> {
        let read = ways.sustain(0, time)?;
        for (i, way) in self.ways.iter_mut().enumerate() {
            let mut sustained = ways.sustain(i + 1, time)?;
            sustained.compare_energy(&read);
            way.board.sustained = Some(sustained);
        }
        self.long_read.board.sustained = Some(read);
        Ok(())
    }

    fn title(&self) -> String {
        let fused = if self.fused { "fused" } else { "unfused" };
        let (model, n, activation, layout) = (&self.model, self.n, &self.activation, &self.layout);
        format!("{model} {fused} n={n} {activation} {layout}")
    }
}

/// The problems to measure, and how.
pub(super) struct Request<'a> {
    pub(super) vectors: &'a [usize],
    pub(super) activations: &'a [Activation],
    pub(super) layouts: &'a [ScaleLayout],
    pub(super) output: FloatType,
    pub(super) ask: Ask,
    pub(super) plan: Plan,
    /// Zero: not at all.
    pub(super) sustain: Duration,
    pub(super) commit: Option<String>,
    /// Facts that a reader of the figures should know.
    pub(super) notes: Vec<String>,
}

pub(super) fn run(engine: &dyn Engine, request: &Request<'_>) -> Result<Report> {
    measure(engine, request, &MODELS)
}

fn measure(engine: &dyn Engine, request: &Request<'_>, models: &[Model]) -> Result<Report> {
    let mut items = Vec::new();
    for model in models {
        for fused in [false, true] {
            for &activation in request.activations {
                for &layout in request.layouts {
                    for &n in request.vectors {
                        let linears = model.linears(fused);
                        let chain = chain(model, &linears, n, activation, layout, request.output)?;
                        items.push((item(model, fused, linears, &chain), chain));
                    }
                }
            }
        }
    }
    let long_read = reads::long_read(engine, &request.plan)?;
    let (read, long_read) = long_read.unzip();
    let bar = progress(items.len() as u64, "measuring");
    let is_sustained = !request.sustain.is_zero();
    let mut notes = request.notes.clone();
    if is_sustained {
        notes.extend(engine.energy_notes());
    }
    let mut measured = Vec::with_capacity(items.len());
    let mut failures = Failures::default();
    for (item, chain) in items {
        bar.set_message(item.title());
        // The kernel or path that was asked for; without one, the library's pick for each linear layer.
        let mut asks = vec![request.ask];
        let chained = request.ask.chained();
        let refused = |case| engine.choose(case, chained).err();
        match chain.linears.iter().find_map(refused) {
            None => asks.push(chained),
            Some(why) => notes.push(format!("{}: not chained: {why}", item.title())),
        }
        let title = item.title();
        let item = one(engine, request, read.flatten(), &asks, item, &chain);
        measured.extend(failures.keep(title, item));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut head = super::head(SCHEMA, engine, request.commit.clone(), &request.plan);
    head.method.sustained_seconds = is_sustained.then_some(request.sustain.as_secs_f64());
    let decode = Decode {
        head,
        long_read,
        notes,
        failed: failures.beside(measured.len())?,
        items: measured,
    };
    Ok(Report {
        text: text(engine, &decode, models),
        json: serde_json::to_value(&decode)?,
        passed: decode.failed.is_empty(),
    })
}

fn chain(
    model: &Model,
    linears: &[Linear],
    n: usize,
    activation: Activation,
    layout: ScaleLayout,
    output: FloatType,
) -> Result<Chain> {
    let sizes = linears.iter().map(|linear| (linear.m, linear.k));
    let name = format!("a layer of {}", model.name);
    Ok(Chain::new(name, sizes, n, activation, layout, output)?)
}

/// An item without measurements.
fn item(model: &Model, fused: bool, linears: Vec<Linear>, chain: &Chain) -> Item {
    let case = &chain.linears[0];
    Item {
        model: model.name.into(),
        source: model.source.into(),
        fused,
        linears,
        n: case.shape.n(),
        activation: case.activation.name().into(),
        layout: case.layout.name().into(),
        output_type: case.output.name().into(),
        layer_bytes: chain.layer_bytes(),
        layers: 0,
        long_read: ReadTimes::default(),
        ways: Vec::new(),
    }
}

/// Lets the long read and launches as asked, isolated and chained, take turns.
fn one(
    engine: &dyn Engine,
    request: &Request<'_>,
    read: Read,
    asks: &[Ask],
    mut item: Item,
    chain: &Chain,
) -> Result<Item> {
    let gemv = |&ask: &Ask| Work::Gemv {
        ask,
        slow_percent: 0,
    };
    let works: Vec<Work> = std::iter::once(Work::Read(read))
        .chain(asks.iter().map(gemv))
        .collect();
    let mut done = false;
    engine.with_chain(chain, &works, &request.plan, &mut |ways| {
        let [Work::Read(read), ..] = ways.ways().iter().map(|way| way.work).collect::<Vec<_>>()[..]
        else {
            bail!("there is no long read of {}", chain.name);
        };
        item.layers = ways.rotated_bytes() / item.layer_bytes.max(1);
        item.long_read = ReadTimes::of(read.map(|read| read.to_string()));
        for way in &ways.ways()[1..] {
            let Work::Gemv { ask, .. } = way.work else {
                bail!("a way that was not asked for");
            };
            item.ways.push(Step {
                mode: ask.mode().into(),
                configs: configs(engine, chain, ask)?,
                ..Step::default()
            });
        }
        let count = ways.ways().len();
        let rounds = request.plan.rounds;
        item.complete(&alternate(count, WARM_UP, rounds, |way| ways.turn(way))?);
        if !request.sustain.is_zero() {
            item.sustain(ways, request.sustain)?;
        }
        done = true;
        Ok(())
    })?;
    done.then_some(item).context("the engine measured nothing")
}

/// The config of each linear layer, or its path where the kernel has no config.
fn configs(engine: &dyn Engine, chain: &Chain, ask: Ask) -> Result<Vec<String>> {
    let configs = chain.linears.iter().map(|case| {
        let choice = engine.choose(case, ask)?;
        let path = choice.path.to_string();
        Ok(choice.config.map_or(path, |config| one_line(&config)))
    });
    configs.collect()
}

/// The report for people.
fn text(engine: &dyn Engine, decode: &Decode, models: &[Model]) -> String {
    let mut text = format!(
        "{}, {}{}\n{}\n{}\n{}",
        engine.device(),
        super::conditions(&decode.head.method),
        // One command has one type of results.
        decode.items.first().map_or(String::new(), |item| format!(
            ", {} results",
            item.output_type
        )),
        decode
            .long_read
            .as_ref()
            .map_or(String::new(), super::long_read),
        sizes(models),
        linears(models),
    );
    let mut table = Table::new(
        "model|linears|vectors|scales|n|mode|layers|a layer|GB/s|long read|share|5..95%|MHz"
            .split('|'),
    );
    for item in &decode.items {
        for way in &item.ways {
            let shares = shares(&item.long_read.samples_us, &way.samples_us);
            let at = |q| 100.0 * quantile(&shares, q);
            table.row(vec![
                item.model.clone(),
                fused(item.fused).into(),
                item.activation.clone(),
                item.layout.clone(),
                item.n.to_string(),
                way.mode.clone(),
                item.layers.to_string(),
                time(way.median_us * 1e-6),
                format!("{:.1}", way.gb_per_s),
                format!("{:.1}", item.long_read.gb_per_s),
                format!("{:.1}%", 100.0 * way.share_of_long_read),
                format!("{:.1}..{:.1}", at(0.05), at(0.95)),
                figure(way.board.sm_mhz, 0),
            ]);
        }
    }
    text.push_str(&format!("\n{table}"));
    if let Some(seconds) = decode.head.method.sustained_seconds {
        text.push_str(&format!(
            "\nsustained for {seconds} s each, the last half of it:\n{}",
            sustained(decode)
        ));
    }
    for note in &decode.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&failures::text(&decode.failed));
    text
}

fn fused(fused: bool) -> &'static str {
    if fused { "fused" } else { "unfused" }
}

/// The models' sizes, and where each size is from.
fn sizes(models: &[Model]) -> Table {
    let mut table = Table::new([&["model"][..], &SIZES, &["from"]].concat());
    for model in models {
        let mut row = vec![model.name.to_owned()];
        row.extend(model.sizes.map(|size| size.to_string()));
        row.push(model.source.to_owned());
        table.row(row);
    }
    table
}

/// The shapes that follow from that, rows x elements of a row.
fn linears(models: &[Model]) -> String {
    let mut table = Table::new(["model", "linears", "a layer"]);
    let mut notes = vec!["shapes".to_owned()];
    for model in models {
        for is_fused in [false, true] {
            notes.push(shapes(&model.linears(is_fused)));
            table.row(vec![
                model.name.into(),
                fused(is_fused).into(),
                bytes(model.weights() / 16 * 9),
            ]);
        }
    }
    table.with_notes(&notes)
}

fn shapes(linears: &[Linear]) -> String {
    let shapes = linears.iter();
    let shapes = shapes.map(|linear| format!("{} {}x{}", linear.name, linear.m, linear.k));
    shapes.collect::<Vec<_>>().join(", ")
}

/// Sustained times, beside the cold time of the same work.
fn sustained(decode: &Decode) -> Table {
    let mut table = super::sustained_table("decoder layer");
    for item in &decode.items {
        let read = &item.long_read;
        let mut row = |mode: &str, cold: f64, board: &BoardReadings| {
            let label = format!("{} {mode}", item.title());
            table.row(super::sustained_row(vec![label], cold, board));
        };
        row("(read-only)", read.median_us, &read.board);
        for way in &item.ways {
            row(&way.mode, way.median_us, &way.board);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use nvfp4_gemv::GemvPath;

    use super::*;
    use crate::engine;
    use crate::engine::Case;

    /// The suite exists for these shapes: figures of other projects count on them.
    #[test]
    fn the_shapes_are_those_of_the_models() {
        let [llama8, llama70, qwen] = &MODELS;
        for (model, fused, expected) in [
            (
                llama8,
                false,
                "q 4096x4096, k 1024x4096, v 1024x4096, o 4096x4096, gate 14336x4096, up 14336x4096, down 4096x14336",
            ),
            (
                llama70,
                true,
                "qkv 10240x8192, o 8192x8192, gate_up 57344x8192, down 8192x28672",
            ),
            // The heads of Qwen3-32B together are wider than its hidden state.
            (
                qwen,
                true,
                "qkv 10240x5120, o 5120x8192, gate_up 51200x5120, down 5120x25600",
            ),
        ] {
            assert_eq!(shapes(&model.linears(fused)), expected);
        }
        for model in &MODELS {
            let weights = |fused| -> usize {
                let linears = model.linears(fused);
                linears.iter().map(|linear| linear.m * linear.k).sum()
            };
            assert_eq!(weights(false), weights(true));
        }
    }

    #[test]
    fn four_gib_hold_as_many_layers_as_the_documentation_says() {
        let layers = MODELS.map(|model| {
            let linears = model.linears(false);
            let (x, y) = (Activation::Nvfp4, FloatType::F16);
            let chain = chain(&model, &linears, 1, x, ScaleLayout::Linear, y);
            chain.unwrap().layers(4 << 30)
        });
        assert_eq!(layers, [35, 8, 15]);
    }

    const TINY: Model = Model {
        name: "Tiny",
        source: "nowhere",
        sizes: [64, 4, 2, 16, 96],
    };

    /// The whole way on the CPU, which has no chained launches.
    #[test]
    fn every_item_is_measured_in_rounds_with_the_read() {
        let (engine, _) = engine::open(Some(GemvPath::Cpu)).unwrap();
        let request = Request {
            vectors: &[1, 4],
            activations: &[Activation::Nvfp4, Activation::F16],
            layouts: &[ScaleLayout::Linear],
            output: FloatType::F16,
            ask: Ask::of_path(GemvPath::Cpu),
            plan: Plan {
                rounds: 3,
                cold_bytes: 100_000,
            },
            sustain: Duration::from_millis(1),
            commit: None,
            notes: Vec::new(),
        };
        let report = measure(engine.as_ref(), &request, &[TINY]).unwrap();
        let decode: Decode = serde_json::from_value(report.json).unwrap();
        assert_eq!(decode.head.schema, SCHEMA);
        assert_eq!(decode.items.len(), 2 * 2 * 2);
        for item in &decode.items {
            // 64x64 + 2 of 32x64 + 64x64 + 2 of 96x64 + 64x96, 9 bytes for 16 elements.
            assert_eq!(item.layer_bytes, (3 * 4096 + 3 * 6144) * 9 / 16);
            assert_eq!(item.layers, 100_000 / item.layer_bytes);
            let [way] = &item.ways[..] else {
                panic!("{item:?}");
            };
            assert_eq!(way.mode, "isolated");
            assert_eq!(way.configs, vec!["cpu"; item.linears.len()]);
            assert_eq!(way.samples_us.len(), 3);
            assert_eq!(item.long_read.samples_us.len(), 3);
            let shares = shares(&item.long_read.samples_us, &way.samples_us);
            assert_eq!(way.share_of_long_read, rounded(median(&shares)));
            let rate = item.layer_bytes as f64 / way.median_us / 1e3;
            assert_eq!(way.gb_per_s, rounded(rate));
            assert!(way.board.sustained.is_some() && item.long_read.board.sustained.is_some());
        }
        assert_eq!(decode.notes, engine.energy_notes());
        for part in [
            "nowhere",
            "q 64x64, k 32x64, v 32x64, o 64x64, gate 96x64, up 96x64, down 64x96",
            "qkv 128x64, o 64x64, gate_up 192x64, down 64x96",
            "Tiny fused n=4 f16 linear isolated",
            ", weights to rotate over: 100.0 kB, f16 results\n",
            "note: no watts",
        ] {
            assert!(report.text.contains(part), "{part}: {}", report.text);
        }
    }

    /// Vectors of terabytes fail, and what was measured beside them stays.
    #[test]
    fn one_item_that_fails_does_not_lose_the_others() {
        let (engine, _) = engine::open(Some(GemvPath::Cpu)).unwrap();
        let request = Request {
            vectors: &[1, 2_000_000_000],
            activations: &[Activation::F32],
            layouts: &[ScaleLayout::Linear],
            output: FloatType::F32,
            ask: Ask::of_path(GemvPath::Cpu),
            plan: Plan {
                rounds: 1,
                cold_bytes: 0,
            },
            sustain: Duration::ZERO,
            commit: None,
            notes: Vec::new(),
        };
        let report = measure(engine.as_ref(), &request, &[TINY]).unwrap();
        assert!(!report.passed);
        let decode: Decode = serde_json::from_value(report.json).unwrap();
        assert_eq!((decode.items.len(), decode.failed.len()), (2, 2));
        assert!(
            report.text.contains("FAILED: Tiny unfused n=2000000000"),
            "{}",
            report.text
        );
        let request = Request {
            vectors: &[2_000_000_000],
            ..request
        };
        let error = measure(engine.as_ref(), &request, &[TINY]).unwrap_err();
        assert!(error.is::<engine::NotEnoughMemory>(), "{error:#}");
    }

    #[test]
    fn a_chain_has_the_operands_that_were_asked_for() {
        let linears = TINY.linears(true);
        let (x, y) = (Activation::F32, FloatType::F32);
        let chain = chain(&TINY, &linears, 2, x, ScaleLayout::Tiled128x4, y).unwrap();
        assert_eq!(chain.linears.len(), 4);
        let Case { shape, .. } = chain.linears[3];
        assert_eq!((shape.m(), shape.n(), shape.k()), (64, 2, 96));
    }
}
