//! The GPU architectures to compile machine code for. Shared by the build script and by `cargo xtask`.

use std::process::Command;

use crate::units;

/// Ampere, Hopper, and the families of Blackwells: data centre (10.0, 10.3) and consumer (12.0, 12.1).
pub(crate) const DEFAULT: &str = "80;90a;100f;120f";

/// Overrides [`DEFAULT`]: architectures as nvcc names them, without `sm_`, separated by `;` or `,`;
/// [`NATIVE`] among them stands for the GPUs of this machine.
pub(crate) const VARIABLE: &str = "NVFP4_GEMV_ARCHS";

/// An entry of the list: the architectures of the GPUs that are in the machine that builds.
pub(crate) const NATIVE: &str = "native";

/// Reads the list. `gpus` asks for the compute capabilities of this machine's GPUs, one a line, such as
/// `9.0`; it is called only where the list has [`NATIVE`].
pub(crate) fn parse(
    list: &str,
    gpus: impl Fn() -> Result<String, String>,
) -> Result<Vec<String>, String> {
    let mut archs: Vec<String> = Vec::new();
    let mut add = |name: &str| {
        if !archs.iter().any(|arch| arch == name) {
            archs.push(name.into());
        }
    };
    for name in list.split([';', ',', ' ']).filter(|name| !name.is_empty()) {
        if name == NATIVE {
            native(&gpus)?.iter().for_each(|arch| add(arch));
            continue;
        }
        let digits = name.trim_end_matches(['a', 'f']);
        let number: u32 = digits.parse().map_err(|_| {
            format!(
                "{VARIABLE}: {name:?} is not an architecture; write 80, 90a, 100f, ..., or {NATIVE}"
            )
        })?;
        if number < 80 || name.len() > digits.len() + 1 {
            return Err(format!(
                "{VARIABLE}: {name:?} is not supported; the kernels need sm_80 or newer"
            ));
        }
        add(name);
    }
    if archs.is_empty() {
        return Err(format!("{VARIABLE} names no architecture"));
    }
    Ok(archs)
}

/// The architectures of the GPUs that `gpus` lists, those that the kernels do not run on left out.
fn native(gpus: impl Fn() -> Result<String, String>) -> Result<Vec<String>, String> {
    let advice = format!(
        "Name the architectures instead, such as {VARIABLE}=90a, or leave the variable unset for {DEFAULT}"
    );
    let asked = format!("{VARIABLE}={NATIVE} asks nvidia-smi for this machine's GPUs");
    let list = gpus().map_err(|why| format!("{asked}: {why}. {advice}."))?;
    let mut archs = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let number = line
            .split_once('.')
            .and_then(|(major, minor)| {
                let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
                (minor < 10).then_some(10 * major + minor)
            })
            .ok_or_else(|| format!("{asked}: {line:?} is not a compute capability. {advice}."))?;
        if number >= 80 {
            archs.push(units::own(number));
        }
    }
    if archs.is_empty() {
        return Err(format!(
            "{asked}: none has compute capability 8.0 or newer (it says {:?}). {advice}.",
            list.trim()
        ));
    }
    Ok(archs)
}

/// The compute capabilities of this machine's GPUs, one a line, as the driver's nvidia-smi lists them.
pub(crate) fn gpus_here() -> Result<String, String> {
    let output = Command::new("nvidia-smi")
        .args(["--query-gpu=compute_cap", "--format=csv,noheader"])
        .output()
        .map_err(|error| format!("it does not run ({error})"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("it fails ({}: {})", output.status, text.trim())),
    }
}
