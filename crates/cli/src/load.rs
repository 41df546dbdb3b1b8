//! `load`: brings a checkpoint's NVFP4 weights to a GPU by pieces, and says how fast.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use nvfp4_gemv::ScaleLayout;
use nvfp4_gemv::checkpoint::{Checkpoint, CheckpointError, Joined, ModuleKind, RowOrder};
use nvfp4_gemv_documents::statistics::median;
use nvfp4_gemv_files::printable;
use serde_json::{Value, json};

use crate::engine::{self, LoadPlan, LoadTimes};
use crate::notes;
use crate::report::{Report, bytes, count, progress, time};
use crate::shapes;

/// Loads a checkpoint's NVFP4 weights to the GPU by pieces; shows rate, host memory, and the rate of a plain copy
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Codes and block scales are read into pinned buffers by as many threads as half of the buffers, and copied to the device from \
the other half. The first load makes everything: buffers and the device's memory. Then, in each round, the same \
weights are sent again, and as many bytes are copied from pinned memory in one go, into the same memory of the \
device: no program can load faster than that. The share is the median of the rounds' copy time / time by pieces. At the \
end every byte on the device is compared with the file's.

The page cache should be warm, or it is the disk that is measured: the first load warms it. Memory of the host is what \
the process had more at its peak, during the first load, than before it.

Examples:
  nvfp4-gemv load model/
  nvfp4-gemv load model.safetensors --layer model.layers.0.mlp.experts.gate_up_proj --rounds 0
  nvfp4-gemv load model/ --buffers 32 --piece 512 --rounds 11 --json")]
pub(crate) struct Args {
    /// A .safetensors file, an index, or a directory
    path: PathBuf,
    /// Only this layer, or these stacked experts
    #[arg(long, value_name = "NAME")]
    layer: Option<String>,
    /// Layout of the block scales on the device after the first load
    #[arg(long, value_parser = shapes::layout(), default_value = "linear")]
    layout: ScaleLayout,
    /// Pinned buffers [default: what the library takes, two a core but two]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    buffers: Option<u16>,
    /// KiB of a buffer, where their number is given
    #[arg(long, value_name = "KIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1048576))]
    piece: u32,
    /// Rounds of both ways; 0 only loads
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u16,
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let begin = Instant::now();
    let checkpoint = Checkpoint::open(&args.path)?;
    let (mut all, mut left) = (Vec::new(), Vec::new());
    match &args.layer {
        Some(name) => all.push(joined(&checkpoint, name)?),
        None => {
            for module in checkpoint.modules() {
                match module.kind() {
                    ModuleKind::Nvfp4 { .. } => all.push(joined(&checkpoint, module.name())?),
                    other => left.push((other.name(), module.bytes())),
                }
            }
            let columns = all.extract_if(.., |joined| joined.column_alpha().is_some());
            left.extend(columns.map(|joined| ("with factors of columns".into(), of(&joined))));
        }
    }
    if all.is_empty() {
        bail!(
            "{}: no NVFP4 weights that a device takes; `nvfp4-gemv inspect` says what is there",
            printable::path(&args.path)
        );
    }
    let opened = begin.elapsed().as_secs_f64();
    let total: usize = all.iter().map(of).sum();
    let plan = LoadPlan {
        layout: args.layout,
        buffers: args.buffers.map(usize::from),
        piece_bytes: (args.piece as usize) << 10,
        rounds: args.rounds.into(),
    };
    const UNIT: usize = 1 << 20;
    let bar = progress((total / UNIT) as u64, "loading, MiB").clone();
    let times = engine::load(&all, &plan, &mut |arrived| {
        bar.set_position((arrived / UNIT) as u64)
    })?;
    bar.finish_and_clear();
    let of_modules = all.iter().flat_map(Joined::notes);
    let notes = notes::show(checkpoint.notes().iter().chain(of_modules));
    Ok(report(
        args,
        &times,
        (all.len(), total),
        &left,
        opened,
        notes,
    ))
}

/// A layer, or stacked experts.
fn joined<'a>(checkpoint: &'a Checkpoint, name: &str) -> Result<Joined<'a>, CheckpointError> {
    match checkpoint.joined(&[name], RowOrder::Stacked) {
        Err(CheckpointError::StackedExperts { layer, .. }) => {
            let (experts, part) = layer.rsplit_once('.').unwrap_or(("", &layer));
            checkpoint.experts(experts, &[part], RowOrder::Stacked)
        }
        other => other,
    }
}

/// Bytes of codes and block scales.
fn of(joined: &Joined<'_>) -> usize {
    joined.shape().weight_bytes()
}

fn report(
    args: &Args,
    times: &LoadTimes,
    (matrices, total): (usize, usize),
    left: &[(String, usize)],
    opened: f64,
    notes: Value,
) -> Report {
    let rate = |seconds: f64| total as f64 / seconds / 1e9;
    let pinned = times.buffers * times.buffer_bytes;
    let mut text = format!(
        "checkpoint  {}: {}, {}; opened in {}\n",
        printable::path(&args.path),
        count(matrices, "NVFP4 weight"),
        bytes(total),
        time(opened),
    );
    let left_bytes: usize = left.iter().map(|(_, bytes)| bytes).sum();
    if !left.is_empty() {
        let modules = count(left.len(), "module");
        text.push_str(&format!(
            "left        {modules}, {}: nothing of them is sent\n",
            bytes(left_bytes)
        ));
    }
    text.push_str(&format!(
        "device      {}\n\
         buffers     {} of {}; {} to read\n\
         first load  {} with buffers and the device's memory ({} and {}), {:.1} GB/s\n",
        times.device,
        times.buffers,
        bytes(times.buffer_bytes),
        count(times.buffers - times.buffers / 2, "thread"),
        time(times.first),
        time(times.pinning),
        time(times.allocating),
        rate(times.first),
    ));
    if let Some(grown) = times.grown {
        let (grown, pinned) = (bytes(grown), bytes(pinned));
        text.push_str(&format!(
            "host        the process grew by {grown} at its peak; {pinned} are pinned\n"
        ));
    }
    let of_rounds =
        |way: fn(&(f64, f64)) -> f64| times.rounds.iter().map(way).collect::<Vec<f64>>();
    let (pieces, plain) = (of_rounds(|round| round.0), of_rounds(|round| round.1));
    let shares = of_rounds(|(pieces, plain)| plain / pieces);
    if !shares.is_empty() {
        let (pieces, plain) = (median(&pieces), median(&plain));
        text.push_str(&format!(
            "by pieces   {}, {:.1} GB/s (median of {})\n\
             plain copy  {}, {:.1} GB/s\n\
             share       {:.3}\n",
            time(pieces),
            rate(pieces),
            count(shares.len(), "round"),
            time(plain),
            rate(plain),
            median(&shares),
        ));
    }
    text.push_str(match times.same {
        true => "checked     every byte on the device is the file's\n",
        false => "checked     FAILED: bytes on the device are not the file's\n",
    });
    let figures = |seconds: &[f64]| match seconds.is_empty() {
        true => Value::Null,
        false => {
            json!({ "median_s": median(seconds), "gb_per_s": rate(median(seconds)), "rounds_s": seconds })
        }
    };
    let json = json!({
        "path": args.path.display().to_string(),
        "layer": args.layer,
        "weights": matrices,
        "bytes": total,
        "left": { "modules": left.len(), "bytes": left_bytes },
        "device": times.device,
        "layout": args.layout.name(),
        "buffers": times.buffers,
        "buffer_bytes": times.buffer_bytes,
        "opened_s": opened,
        "first_load_s": times.first,
        "pinning_s": times.pinning,
        "allocating_s": times.allocating,
        "host_grown_bytes": times.grown,
        "pinned_bytes": pinned,
        "by_pieces": figures(&pieces),
        "plain_copy": figures(&plain),
        "share": match shares.is_empty() { true => Value::Null, false => json!(median(&shares)) },
        "passed": times.same,
        "notes": notes,
    });
    Report {
        text,
        json,
        passed: times.same,
    }
}
