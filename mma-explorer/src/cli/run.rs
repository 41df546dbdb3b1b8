use anyhow::Result;
use mma_explorer::cache::Cache;
use mma_explorer::device::Device;
use mma_explorer::exact::Exact;
use mma_explorer::machine_code;
use mma_explorer::matmul::{Plan, Problem, Tiles};
use mma_explorer::nvrtc::{Nvrtc, Stage};
use mma_explorer::source;
use mma_explorer::types::Type;
use mma_explorer::variants::Variant;
use serde_json::{Value, json};

use super::{Filter, Report, progress, table, variant_json};

/// Measure variants on this machine's GPU: latency, throughput, and a matrix product
///
/// For each variant: cycles from one instruction to the next that needs its result; operations a second of nothing but the
/// instruction, and a cycle and multiprocessor; and a matrix product, which is first checked on exact data, with its share
/// of that rate.
///
/// It has not run on a GPU yet.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Rows and columns of D, and the sum's length; of a row of A at least 16 bytes
    #[arg(long, default_value_t = 4096)]
    size: u32,
    /// The matmul kernel's tiles, of which the fastest counts; without any, a list of usual ones
    #[arg(long)]
    tiles: Vec<Tiles>,
}

/// Tiles that are tried where none are asked for.
const USUAL: [&str; 6] = [
    "128x128x64/64x32/3/8",
    "128x128x64/64x64/4/8",
    "128x256x64/64x64/3/8",
    "256x128x64/64x64/3/8",
    "128x128x128/64x32/3/8",
    "64x128x64/32x64/4/8",
];

pub(crate) fn run(args: &Args, cache: &Cache) -> Result<Report> {
    let selected = args.filter.select()?;
    let device = Device::open(args.device)?;
    let nvrtc = Nvrtc::get()?;
    let arch = device.arch;
    let variants: Vec<Variant> = selected
        .into_iter()
        .filter(|variant| variant.has_kernels() && variant.missing(arch).is_none())
        .collect();
    let emitted = match machine_code::disassembler() {
        Ok(_) => Some(machine_code::survey(cache, nvrtc, arch, &variants)?),
        Err(_) => None,
    };
    let tiles: Vec<Tiles> = match args.tiles.is_empty() {
        true => USUAL
            .iter()
            .filter_map(|tiles| tiles.parse().ok())
            .collect(),
        false => args.tiles.clone(),
    };
    let mut passed = true;
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for (i, variant) in variants.iter().enumerate() {
        progress(i, variants.len(), &variant.name());
        let options = source::options();
        let (measure, _) = cache.compile(
            nvrtc,
            &source::measure(variant, arch),
            arch,
            &options,
            Stage::Cubin,
        )?;
        let peak = device.peak(variant, &measure)?;
        let product = product(args, cache, nvrtc, &device, variant, &tiles)?;
        passed &= product.wrong.is_none();
        let machine = match emitted.as_ref().map(|emitted| &emitted[i]) {
            Some(emitted) => {
                let opcodes: Vec<&str> = emitted.instructions.keys().map(String::as_str).collect();
                format!("{} ({})", opcodes.join(" "), emitted.emission.name())
            }
            None => variant
                .machine(arch)
                .map(|machine| machine.opcode.to_string())
                .unwrap_or_default(),
        };
        let best = product.best.map(|(rate, tiles)| {
            let share = rate / peak.operations;
            (
                format!("{:.1}", rate / 1e12),
                format!("{share:.2}"),
                tiles.to_string(),
            )
        });
        let (rate, share, tiles) = best.unwrap_or_else(|| ("-".into(), "-".into(), "-".into()));
        rows.push(vec![
            variant.name(),
            machine,
            format!("{:.1}", peak.latency),
            format!("{:.0}", peak.operations_per_cycle),
            format!("{:.1}", peak.operations / 1e12),
            rate,
            share,
            tiles,
            product.wrong.clone().unwrap_or_else(|| "exact".into()),
        ]);
        let mut json = variant_json(variant, Some(arch));
        json["emitted"] = json!(emitted.as_ref().map(|emitted| &emitted[i]));
        json["peak"] = json!(peak);
        json["matmul"] = product.json();
        all.push(json);
    }
    progress(variants.len(), variants.len(), "");
    let head = [
        "variant",
        "machine code",
        "latency",
        "ops/cycle/SM",
        "peak T/s",
        "matmul T/s",
        "share",
        "tiles",
        "result",
    ];
    let text = format!(
        "{} (sm_{arch}, {} multiprocessors), {size} x {size} x {size}; latency in cycles, T/s: 10^12 operations a second\n\n{}",
        device.name,
        device.multiprocessors,
        table(&head, &rows),
        size = args.size,
    );
    let json = json!({
        "device": device.name,
        "arch": arch.to_string(),
        "multiprocessors": device.multiprocessors,
        "nvrtc": nvrtc.version(),
        "size": args.size,
        "variants": all,
    });
    Ok(Report { text, json, passed })
}

/// What matrix products with a variant showed.
#[derive(Debug, Default)]
struct Product {
    best: Option<(f64, Tiles)>,
    wrong: Option<String>,
    tried: Vec<(Tiles, f64)>,
}

impl Product {
    fn json(&self) -> Value {
        let one = |(tiles, rate): &(Tiles, f64)| json!({ "tiles": tiles.to_string(), "operations": rate });
        json!({
            "best": self.best.map(|(rate, tiles)| one(&(tiles, rate))),
            "wrong": self.wrong,
            "tried": self.tried.iter().map(one).collect::<Vec<_>>(),
        })
    }
}

fn product(
    args: &Args,
    cache: &Cache,
    nvrtc: &Nvrtc,
    device: &Device,
    variant: &Variant,
    tiles: &[Tiles],
) -> Result<Product> {
    let size = args.size;
    let problem = Problem {
        m: size,
        n: size,
        k: size,
    };
    // As long a sum as is exact.
    let bits = variant.container_bits(variant.a);
    let k = if variant.accumulator == Type::F16 {
        512
    } else {
        1024.max(8192 / bits)
    };
    let small = Problem { m: 300, n: 203, k };
    let exact = Exact::new(variant, small, 1);
    let mut product = Product::default();
    for tiles in tiles {
        if tiles.check(variant, device.arch).is_err() {
            continue;
        }
        let source = source::matmul(variant, tiles);
        let (compiled, _) = cache.compile(
            nvrtc,
            &source,
            device.arch,
            &source::options(),
            Stage::Cubin,
        )?;
        let plan = Plan::new(variant, tiles, small, device.multiprocessors)?;
        if let Err(error) = device.check(variant, &compiled, &plan, small, &exact) {
            product.wrong = Some(format!("{tiles}: {error}"));
            return Ok(product);
        }
        let rate = device.matmul(
            variant,
            &compiled,
            &Plan::new(variant, tiles, problem, device.multiprocessors)?,
            problem,
        )?;
        product.tried.push((*tiles, rate));
        if product.best.is_none_or(|(best, _)| rate > best) {
            product.best = Some((rate, *tiles));
        }
    }
    Ok(product)
}
