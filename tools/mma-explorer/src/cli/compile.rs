use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mma_explorer::arch::Arch;
use mma_explorer::cache::Cache;
use mma_explorer::machine_code;
use mma_explorer::matmul::Tiles;
use mma_explorer::nvrtc::{self, Nvrtc, Stage};
use mma_explorer::source;
use mma_explorer::variants::Variant;
use serde_json::{Value, json};

use super::{Filter, Report, table, took, took_json, variant_json};

/// Compile kernels, and write their PTX, machine code and disassembly to files
///
/// No GPU is needed. Without the disassembler there is no .sass file, and a note says so.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// The architecture, such as 80, 90a, 100f
    #[arg(long)]
    arch: Arch,
    /// Which kernels
    #[arg(long, value_enum, default_value_t = Kernels::Matmul)]
    kernels: Kernels,
    /// The matmul kernel's tiles: BLOCK_MxBLOCK_NxBLOCK_K/WARP_MxWARP_N/STAGES/GROUP, BLOCK_K in bytes; for clusters of
    /// two with /2, and for bulk copies of `mma.sync` with /bulk [default: usual ones of each variant]
    #[arg(long)]
    tiles: Option<Tiles>,
    /// Where the files go
    #[arg(long, value_name = "FOLDER", default_value = "mma-explorer-kernels")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kernels {
    /// The tiled matrix product
    Matmul,
    /// Nothing but the instruction: latency and throughput
    Measure,
}

pub(crate) fn run(args: &Args, cache: &Cache) -> Result<Report> {
    let selected = args.filter.select()?;
    let (variants, missing): (Vec<Variant>, Vec<Variant>) = selected
        .into_iter()
        .partition(|variant| variant.missing(args.arch).is_none());
    if let (true, Some(first)) = (variants.is_empty(), missing.first()) {
        bail!(
            "nothing to compile for sm_{}: {} {}",
            args.arch,
            first.name(),
            first.missing(args.arch).unwrap_or_default()
        );
    }
    let nvrtc = nvrtc::get()?;
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))?;
    let disassembler = machine_code::disassembler();
    if let Err(missing) = &disassembler {
        eprintln!(
            "note: no .sass files: {missing}. {}",
            missing.hint().unwrap_or_default()
        );
    }
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for variant in &variants {
        let (row, json) = one(args, cache, nvrtc, variant, disassembler.is_ok())
            .with_context(|| variant.name())?;
        rows.push(row);
        all.push(json);
    }
    let mut text = table(
        "variant|NVRTC|registers|stack|matrix instructions in all kernels".split('|'),
        &rows,
    );
    text += &format!(
        "\n{} for sm_{} in {}\n",
        count(variants.len()),
        args.arch,
        args.out.display()
    );
    if !missing.is_empty() {
        text += &format!("{} not there for the architecture\n", count(missing.len()));
    }
    Ok(Report::new(
        text,
        json!({ "folder": args.out, "compiled": all }),
    ))
}

fn count(variants: usize) -> String {
    format!("{variants} variant{}", if variants == 1 { "" } else { "s" })
}

fn one(
    args: &Args,
    cache: &Cache,
    nvrtc: &Nvrtc,
    variant: &Variant,
    disassemble: bool,
) -> Result<(Vec<String>, Value)> {
    let (kernels, source) = match args.kernels {
        Kernels::Matmul => {
            let tiles = args.tiles.unwrap_or(Tiles::usual(variant));
            tiles.check(variant, args.arch)?;
            ("matmul", source::matmul(variant, &tiles))
        }
        Kernels::Measure => ("measure", source::measure(variant, args.arch)),
    };
    let (compiled, origin) =
        cache.compile(nvrtc, &source, args.arch, &source::options(), Stage::Cubin)?;
    let stem = format!("{}-sm_{}-{kernels}", variant.name(), args.arch);
    write(&args.out, &format!("{stem}.ptx"), compiled.ptx.as_bytes())?;
    write(&args.out, &format!("{stem}.cubin"), &compiled.cubin)?;
    let mut json = variant_json(variant, Some(args.arch));
    json["nvrtc"] = took_json(origin);
    json["files"] = json!(stem);
    let mut row = vec![
        variant.name(),
        took(origin),
        String::new(),
        String::new(),
        String::new(),
    ];
    if disassemble {
        let text = machine_code::text(&compiled)?;
        write(&args.out, &format!("{stem}.sass"), text.as_bytes())?;
        let functions = machine_code::functions(&compiled)?;
        let each = |of: fn(&sass::Function) -> u32| {
            let all = functions.iter().map(|function| of(function).to_string());
            let all: Vec<String> = all.collect();
            all.join(" ")
        };
        row[2] = each(|function| function.registers);
        row[3] = each(|function| function.stack.max(function.local));
        let mut instructions: Vec<String> = Vec::new();
        for function in &functions {
            let found = machine_code::matrix_instructions(function);
            instructions.extend(
                found
                    .iter()
                    .map(|(opcode, count)| format!("{count} {opcode}")),
            );
        }
        if let Some(machine) = variant.machine(args.arch) {
            instructions.push(format!("({})", machine.emission.name()));
        }
        row[4] = instructions.join(" ");
        json["functions"] = json!(functions);
    }
    Ok((row, json))
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
