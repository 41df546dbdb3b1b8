use anyhow::Result;
use mma_explorer::arch::Arch;
use mma_explorer::cache::Cache;
use mma_explorer::exact::Exact;
use mma_explorer::machine_code::{self, Emitted};
use mma_explorer::matmul::{Plan, Problem, Tiles};
use mma_explorer::nvrtc::{self, Stage};
use mma_explorer::simulate;
use mma_explorer::source;
use mma_explorer::variants::Variant;
use ptx_sim::schedules;
use serde_json::json;

use super::{Filter, Report, progress, table, took, took_json, variant_json};

/// Compile a matrix product with every variant, read what it became, and execute it in the simulator on exact data
///
/// No GPU is needed. The simulator, ptx-sim, executes the kernel's PTX under several orders of its warps and copies;
/// the result must be the exact one, bit by bit. Small tiles and a small problem, whose sides are multiples of no tile.
/// Fails where a result is wrong, or where the machine code is not what `list` says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// The architecture, such as 80, 90a, 100f
    #[arg(long)]
    arch: Arch,
}

pub(crate) fn run(args: &Args, cache: &Cache) -> Result<Report> {
    let selected = args.filter.select()?;
    let variants: Vec<Variant> = selected
        .iter()
        .copied()
        .filter(|variant| variant.missing(args.arch).is_none())
        .collect();
    let nvrtc = nvrtc::get()?;
    // Without the disassembler the rest is still worth knowing.
    let emitted = match machine_code::disassembler() {
        Ok(_) => Some(machine_code::survey(cache, nvrtc, args.arch, &variants)?),
        Err(missing) => {
            let hint = missing.hint().unwrap_or_default();
            eprintln!("note: machine code is not read: {missing}. {hint}");
            None
        }
    };
    let mut passed = true;
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for (i, variant) in variants.iter().enumerate() {
        progress(i, variants.len(), &variant.name());
        let emitted = emitted.as_ref().map(|emitted| &emitted[i]);
        let machine = machine(variant, args.arch, emitted);
        let tiles = Tiles::smallest(variant);
        tiles.check(variant, args.arch)?;
        let source = source::matmul(variant, &tiles);
        let (compiled, origin) =
            cache.compile(nvrtc, &source, args.arch, &source::options(), Stage::Ptx)?;
        let outcome = simulated(variant, &tiles, &compiled.ptx)?;
        passed &= outcome != Outcome::Wrong && machine.is_ok();
        let word = match outcome {
            Outcome::Exact => "exact".to_string(),
            Outcome::Wrong => "WRONG".to_string(),
            Outcome::Unmodelled(ref why) => why.clone(),
        };
        let mut json = variant_json(variant, Some(args.arch));
        json["emitted"] = json!(emitted);
        json["nvrtc"] = took_json(origin);
        json["simulated"] = json!(word);
        rows.push(vec![
            variant.name(),
            machine.unwrap_or_else(|wrong| wrong),
            took(origin),
            word,
        ]);
        all.push(json);
    }
    progress(variants.len(), variants.len(), "");
    let mut text = table(["variant", "machine code", "PTX", "simulated"], &rows);
    text += &format!(
        "\nsm_{}, NVRTC {}: {} variants checked, {} not there for the architecture (`list --arch {}` says why)\n",
        args.arch,
        nvrtc.version(),
        variants.len(),
        selected.len() - variants.len(),
        args.arch,
    );
    Ok(Report {
        text,
        json: json!({ "nvrtc": nvrtc.version(), "variants": all }),
        passed,
    })
}

/// The machine code of a variant, in words; an error where the table says something else.
fn machine(variant: &Variant, arch: Arch, emitted: Option<&Emitted>) -> Result<String, String> {
    let table = variant.machine(arch);
    let Some(emitted) = emitted else {
        return Ok(table.map_or(String::new(), |machine| machine.opcode.to_string()));
    };
    let list = emitted
        .instructions
        .iter()
        .map(|(opcode, count)| match count {
            1 => opcode.clone(),
            _ => format!("{count} {opcode}"),
        });
    let list: Vec<String> = list.collect();
    let words = format!("{} ({})", list.join(" + "), emitted.emission.name());
    match table {
        Some(machine) if machine.emission == emitted.emission => Ok(words),
        _ => Err(format!("{words}, which is not what the table says")),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Exact,
    Wrong,
    Unmodelled(String),
}

fn simulated(variant: &Variant, tiles: &Tiles, ptx: &str) -> Result<Outcome> {
    let problem = Problem {
        m: tiles.block_m + 3,
        n: tiles.block_n + 5,
        k: 8 * (2 * tiles.block_k + 16) / variant.container_bits(variant.a),
    };
    let exact = Exact::new(variant, problem, 1);
    let plan = Plan::new(variant, tiles, problem, 2)?;
    for options in schedules::few(1) {
        if let Err(error) = simulate::matmul(variant, ptx, &plan, problem, &exact, &options) {
            if let Some(why) = error.unmodelled() {
                return Ok(Outcome::Unmodelled(why));
            }
            eprintln!("{}: {error}", variant.name());
            return Ok(Outcome::Wrong);
        }
    }
    Ok(Outcome::Exact)
}
