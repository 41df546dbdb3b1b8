//! `info`: what this machine can run, and why.

use anyhow::Result;
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::path::{Operands, PATH_VARIABLE, available, forced_by_environment};
use nvfp4_gemv::{Activation, Path, ScaleLayout, Shape, Target};
use serde_json::{Value, json};

use crate::engine::{compiled_archs, devices};
use crate::report::{Report, Table, count};

/// Shows devices, driver, compiled architectures, CPU features, and each path with why it is or
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
    let mut table = Table::new(&["  implementation", "available", "needs"]);
    let mut implementations = Vec::new();
    for one in Implementation::ALL {
        let yes = one.available();
        table.row(vec![format!("  {one}"), yes_no(yes), one.needs().into()]);
        implementations.push(json!({
            "name": one.name(), "available": yes, "needs": one.needs(),
        }));
    }
    text.push_str(&table.to_string());

    let archs = compiled_archs();
    text.push_str(&format!(
        "\nCUDA: {}, machine code for {}\n",
        if cfg!(feature = "cuda") {
            "built in"
        } else {
            "not built in"
        },
        if archs.is_empty() { "nothing" } else { archs }
    ));
    if let Some(versions) = &devices.versions {
        text.push_str(&format!("  {versions}\n"));
    }
    let mut device_json = Vec::new();
    let mut target = Target::Host;
    match &devices.found {
        Ok(found) => {
            for (i, device) in found.iter().enumerate() {
                text.push_str(&format!("  device {i}: {}\n", device.text));
                device_json.push(device.json.clone());
            }
            if let Some(first) = found.first() {
                target = Target::Cuda {
                    compute_capability: first.compute_capability,
                    archs,
                    model: None,
                };
            }
        }
        Err(why) => text.push_str(&format!("  {why}\n")),
    }

    text.push_str("\nPaths (for one vector, NVFP4 activations, scales in the 128x4 layout):\n");
    let mut paths = Vec::new();
    for path in Path::ALL {
        let why_not = why_not(path, &target, devices.found.as_ref().err())?;
        let state = match &why_not {
            None => "available".to_owned(),
            Some(why) => format!("not available: {why}"),
        };
        text.push_str(&format!("  {:<13} {state}\n", path.name()));
        paths.push(json!({
            "name": path.name(), "available": why_not.is_none(), "why_not": why_not,
        }));
    }
    if let Some(path) = forced {
        text.push_str(&format!("{PATH_VARIABLE} forces {path}.\n"));
    }

    Ok(Report {
        text,
        json: json!({
            "version": env!("CARGO_PKG_VERSION"),
            "cpu": {
                "threads": rayon::current_num_threads(),
                "implementation": Implementation::best().name(),
                "implementations": implementations,
            },
            "cuda": {
                "built_in": cfg!(feature = "cuda"),
                "archs": archs.split(';').filter(|a| !a.is_empty()).collect::<Vec<_>>(),
                "versions": devices.versions,
                "devices": device_json,
                "why_none": devices.found.as_ref().err().map(ToString::to_string),
            },
            "paths": paths,
            "forced": forced.map_or(Value::Null, |path| json!(path.name())),
        }),
        passed: true,
    })
}

/// Why a path cannot run here, if it cannot.
fn why_not(
    path: Path,
    target: &Target,
    no_device: Option<&nvfp4_gemv::Error>,
) -> Result<Option<String>> {
    if path == Path::Cpu {
        return Ok(None);
    }
    let shape = Shape::gemv(128, 256, 1)?;
    let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
    Ok(match no_device {
        Some(nvfp4_gemv::Error::PathUnavailable { reason, .. }) => Some(reason.to_string()),
        Some(why) => Some(why.to_string()),
        None => available(path, &shape, &operands, target)
            .err()
            .map(|why| why.to_string()),
    })
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}
