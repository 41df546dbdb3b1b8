//! `info`: what this machine can run, and why.

use anyhow::Result;
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::dispatch::{PATH_VARIABLE, forced_by_environment};
use nvfp4_gemv::{Error, GemvPath, Gpu, Kernel};
use serde_json::{Value, json};

use crate::engine::{compiled_archs, devices, reason_of, runs_on};
use crate::report::{Report, Table, count};

/// Shows devices, driver, compiled architectures, CPU features, and each path and kernel with why it is or
/// is not available
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nvfp4-gemv info\n  nvfp4-gemv info --json | jq .paths")]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<Report> {
    let forced = forced_by_environment()?;
    let devices = devices();
    let mut text = format!("nvfp4-gemv {}\n\n", env!("CARGO_PKG_VERSION"));

    text.push_str(&format!(
        "CPU: {}, implementation {}\n",
        count(rayon::current_num_threads(), "thread"),
        Implementation::best()
    ));
    let mut table = Table::new(["  implementation", "available", "needs"]);
    let mut implementations = Vec::new();
    for one in Implementation::ALL {
        let yes = one.available();
        table.row(vec![format!("  {one}"), yes_no(yes), one.needs().into()]);
        implementations.push(json!({
            "name": one.name(), "available": yes, "needs": one.needs(),
        }));
    }
    text.push_str(&table.to_string());

    let (archs, built_in) = (compiled_archs(), cfg!(feature = "device"));
    text.push_str(&format!(
        "\nCUDA: {}, machine code for {}\n",
        if built_in { "built in" } else { "not built in" },
        if archs.is_empty() { "nothing" } else { archs }
    ));
    if let Some(versions) = &devices.versions {
        text.push_str(&format!("  {versions}\n"));
    }
    #[cfg(feature = "jit")]
    let jit = {
        let (lines, json) = crate::jit::describe();
        text.push_str(&lines);
        json
    };
    #[cfg(not(feature = "jit"))]
    let jit = Value::Null;
    let gpus = devices.found.as_ref();
    for (i, gpu) in gpus.into_iter().flatten().enumerate() {
        text.push_str(&format!("  device {i}: {}\n", describe(gpu)));
    }
    if let Err(why) = gpus {
        text.push_str(&format!("  {why}\n"));
    }

    text.push_str("\nPaths and their kernels (for one vector, NVFP4 activations, scales in the 128x4 layout):\n");
    let (mut paths, mut kernels) = (Vec::new(), Vec::new());
    for path in GemvPath::ALL {
        let of_path = Kernel::ALL.iter().filter(|kernel| kernel.path() == path);
        let mut lines = String::new();
        // A path is as available as its most available kernel.
        let mut why_not_path = (path != GemvPath::Cpu).then(String::new);
        for &kernel in of_path {
            let why_not = why_not(kernel, gpus.map(|gpus| gpus.first()))?;
            lines.push_str(&format!("    {:<11} {}\n", kernel.name(), state(&why_not)));
            match (&why_not, &why_not_path) {
                (None, _) => why_not_path = None,
                (Some(why), Some(text)) if text.is_empty() => why_not_path = Some(why.clone()),
                _ => {}
            }
            kernels.push(json!({
                "name": kernel.name(), "path": path.name(),
                "available": why_not.is_none(), "why_not": why_not,
            }));
        }
        text.push_str(&format!("  {:<13} {}\n", path.name(), state(&why_not_path)));
        // A reason that holds for all kernels of the path is printed once.
        if why_not_path.is_none() {
            text.push_str(&lines);
        }
        paths.push(json!({
            "name": path.name(), "available": why_not_path.is_none(), "why_not": why_not_path,
        }));
    }
    if let Some(path) = forced {
        text.push_str(&format!("{PATH_VARIABLE} forces {path}.\n"));
    }

    Ok(Report::new(
        text,
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "cpu": {
                "threads": rayon::current_num_threads(),
                "implementation": Implementation::best().name(),
                "implementations": implementations,
            },
            "cuda": {
                "built_in": built_in,
                "archs": archs.split(';').filter(|a| !a.is_empty()).collect::<Vec<_>>(),
                "jit": jit,
                "versions": devices.versions,
                "devices": gpus.into_iter().flatten().map(to_json).collect::<Vec<_>>(),
                "why_none": devices.found.as_ref().err().map(ToString::to_string),
            },
            "paths": paths,
            "kernels": kernels,
            "forced": forced.map_or(Value::Null, |path| json!(path.name())),
        }),
    ))
}

fn describe(gpu: &Gpu) -> String {
    let (major, minor) = gpu.compute_capability;
    format!(
        "{}, compute capability {major}.{minor}, {} SMs, {} MB of L2, {} GB of memory",
        gpu.name,
        gpu.multiprocessors,
        gpu.l2_bytes >> 20,
        gpu.memory_bytes >> 30,
    )
}

fn to_json(gpu: &Gpu) -> Value {
    let (major, minor) = gpu.compute_capability;
    json!({
        "name": gpu.name,
        "compute_capability": format!("{major}.{minor}"),
        "multiprocessors": gpu.multiprocessors,
        "l2_bytes": gpu.l2_bytes,
        "memory_bytes": gpu.memory_bytes,
    })
}

/// Why a kernel cannot run here, if it cannot.
fn why_not(kernel: Kernel, first: Result<Option<&Gpu>, &Error>) -> Result<Option<String>> {
    let gpu = match first {
        Ok(Some(gpu)) => gpu,
        Ok(None) => return Ok(Some("no device".into())),
        Err(why) => return Ok(Some(reason_of(why))),
    };
    Ok(runs_on(kernel, gpu)?.err().map(|why| why.to_string()))
}

fn state(why_not: &Option<String>) -> String {
    match why_not {
        None => "available".into(),
        Some(why) => format!("not available: {why}"),
    }
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}
