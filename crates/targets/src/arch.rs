//! GPU architectures, as nvcc names them without `sm_`, and the list of those to compile machine code for.

use std::process::Command;

/// The first architecture, as ten times the compute capability, of which there is code for one very architecture:
/// `90a`.
pub const SPECIFIC_SINCE: u32 = 90;

/// The architecture of code for the very GPUs of a number: 80 gives `80`, 90 gives `90a`. Some kernels need
/// architecture-specific code.
pub fn own(number: u32) -> String {
    match number {
        SPECIFIC_SINCE.. => format!("{number}a"),
        _ => number.to_string(),
    }
}

/// Whether code for an architecture runs on a compute capability. Plain numbers run on the same major and an equal
/// or higher minor, `f` on the same family, `a` on exactly that device.
///
/// Source: CUDA C++ Programming Guide, "Compute capability" and "Family- and architecture-specific features".
pub fn runs_on(arch: &str, (major, minor): (i32, i32)) -> bool {
    let digits = arch.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let Ok(number) = digits.parse::<i32>() else {
        return false;
    };
    match &arch[digits.len()..] {
        "a" => (number / 10, number % 10) == (major, minor),
        "" | "f" => number / 10 == major && number % 10 <= minor,
        _ => false,
    }
}

/// Ampere, Hopper, and the families of Blackwells: data centre (10.0, 10.3) and consumer (12.0, 12.1).
pub const DEFAULT: &str = "80;90a;100f;120f";

/// Overrides [`DEFAULT`]: architectures as nvcc names them, without `sm_`, separated by `;` or `,`;
/// [`NATIVE`] among them stands for the GPUs of this machine.
pub const VARIABLE: &str = "NVFP4_GEMV_ARCHS";

/// An entry of the list: the architectures of the GPUs that are in the machine that builds.
pub const NATIVE: &str = "native";

/// Reads the list. `gpus` asks for the compute capabilities of this machine's GPUs, one a line, such as
/// `9.0`; it is called only where the list has [`NATIVE`].
pub fn parse(list: &str, gpus: impl Fn() -> Result<String, String>) -> Result<Vec<String>, String> {
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
            archs.push(own(number));
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
pub fn gpus_here() -> Result<String, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// No query is expected.
    fn unasked() -> Result<String, String> {
        panic!("asked for this machine's GPUs")
    }

    #[test]
    fn lists_of_architectures_are_read_without_asking_for_gpus() {
        assert_eq!(
            parse("80; 90a,100f;80", unasked).unwrap(),
            ["80", "90a", "100f"]
        );
        assert_eq!(parse(DEFAULT, unasked).unwrap().len(), 4);
        for (list, says) in [
            ("", "names no architecture"),
            ("hopper", "\"hopper\" is not an architecture"),
            ("75", "sm_80 or newer"),
            ("90aa", "not supported"),
        ] {
            let error = parse(list, unasked).unwrap_err();
            assert!(error.contains(says), "{list}: {error}");
        }
    }

    #[test]
    fn native_is_what_the_machine_has() {
        let with = |list: &str, gpus: &str| parse(list, || Ok(gpus.to_owned()));
        assert_eq!(with("native", "9.0\n9.0\n").unwrap(), ["90a"]);
        assert_eq!(with("native", "8.6\r\n12.0\r\n").unwrap(), ["86", "120a"]);
        assert_eq!(with("80;native", "10.3\n").unwrap(), ["80", "103a"]);
        // A display's old GPU beside the one that computes.
        assert_eq!(with("native", "6.1\n8.9\n").unwrap(), ["89"]);
    }

    #[test]
    fn native_without_a_gpu_says_what_to_write_instead() {
        for gpus in [
            Err("it does not run (No such file)".to_owned()),
            Ok(String::new()),
            Ok("No devices were found\n".to_owned()),
            Ok("7.5\n".to_owned()),
        ] {
            let error = parse("native", || gpus.clone()).unwrap_err();
            for part in ["nvidia-smi", "NVFP4_GEMV_ARCHS=90a", DEFAULT] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }
}
