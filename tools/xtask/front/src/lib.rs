//! How `cargo xtask run` builds and starts the program `nvfp4-gemv`.
//!
//! It builds what this machine can run. With a GPU that is machine code for that GPU, which takes a CUDA compiler;
//! without one it is the CPU path, which takes only Rust.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvfp4_gemv_targets::arch;

/// The layer that `cargo xtask run` computes when it is told of none, one of MiniLM. The path is relative to the
/// repository.
const LAYER: [&str; 4] = [
    "--checkpoint",
    "tests/data/minilm-l0-compressed-tensors.safetensors",
    "--layer",
    "encoder.layer.0.output.dense",
];

/// Arguments that name the program to cargo.
pub const PROGRAM: [&str; 4] = ["--package", "nvfp4-gemv-cli", "--bin", "nvfp4-gemv"];

/// Which GPU kernels the program is built with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Kernels for the architectures that the user named.
    AsAsked,
    /// Kernels for the GPUs of this machine.
    Native,
    /// No kernels, and why.
    None(String),
}

impl Kernels {
    /// The kernels that this machine can run, unless the user asks for others.
    pub fn here() -> Self {
        let asked = env::var_os(arch::VARIABLE).is_some_and(|list| !list.is_empty());
        Self::with(asked, arch::gpus_here)
    }

    fn with(asked: bool, gpus: impl Fn() -> Result<String, String>) -> Self {
        if asked {
            return Self::AsAsked;
        }
        let list = match gpus() {
            Ok(list) => list,
            Err(why) => return Self::None(format!("nvidia-smi: {why}")),
        };
        match arch::parse(arch::NATIVE, || Ok(list.clone())) {
            Ok(_) => Self::Native,
            Err(_) => Self::None(format!("nvidia-smi lists {:?}", list.trim())),
        }
    }

    /// The notice for a user without a GPU.
    pub fn notice(&self) -> Option<String> {
        let Self::None(why) = self else { return None };
        Some(format!(
            "Building for the CPU alone: no GPU here runs the kernels. {why}.\n\
             To build them all the same: {}=\"{}\" cargo xtask run. To see one run on the CPU: cargo xtask run --simulate",
            arch::VARIABLE,
            arch::DEFAULT,
        ))
    }
}

/// The command that builds the program and starts it with `arguments`, or on a layer where there are none. Builds with
/// kernels need a CUDA compiler in their environment.
pub fn program(root: &Path, kernels: &Kernels, arguments: &[OsString]) -> Command {
    let mut command = cargo(root);
    command.arg("--release").args(PROGRAM);
    match kernels {
        Kernels::AsAsked => {}
        Kernels::Native => {
            command.env(arch::VARIABLE, arch::NATIVE);
        }
        Kernels::None(_) => {
            command.arg("--no-default-features");
        }
    }
    command.arg("--");
    match arguments {
        [] => with_layer(command.arg("run"), root, arguments),
        given => command.args(given),
    };
    command
}

/// Adds `arguments` to a command that computes a layer, and where they name none, the one of `cargo xtask run`.
pub fn with_layer<'a>(
    command: &'a mut Command,
    root: &Path,
    arguments: &[OsString],
) -> &'a mut Command {
    if !arguments.iter().any(|argument| argument == LAYER[0]) {
        command.current_dir(root).args(LAYER);
    }
    command.args(arguments)
}

/// `cargo run` in the repository, wherever the user is.
pub fn cargo(root: &Path) -> Command {
    // Inside `cargo xtask`, CARGO is the cargo that built this.
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .arg("run")
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"));
    // These variables describe this package, not the one that is built next; build scripts of dependencies read some of
    // them.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"] {
        command.env_remove(name);
    }
    command
}

/// The repository's root.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(3).unwrap_or(here).to_path_buf()
}

/// The program's arguments, where `arguments` of `cargo xtask` are `run` and nothing for xtask itself.
pub fn only_run(arguments: &[OsString]) -> Option<&[OsString]> {
    let (task, rest) = arguments.split_first()?;
    if task != "run" {
        return None;
    }
    match rest.split_first() {
        Some((first, rest)) if first == "--" => Some(rest),
        Some((first, _)) if first == "--simulate" || first == "--help" || first == "-h" => None,
        _ => Some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_built_for_gpus_that_run_them() {
        let with = |gpus: Result<&str, &str>| {
            let gpus = gpus.map(str::to_owned).map_err(str::to_owned);
            Kernels::with(false, || gpus.clone())
        };
        assert_eq!(with(Ok("9.0\n")), Kernels::Native);
        let older = with(Ok("7.5\n"));
        let none = with(Err("it does not run"));
        for (kernels, says) in [(older, "\"7.5\""), (none, "does not run")] {
            let notice = kernels.notice().expect("no kernels");
            assert!(notice.contains(says), "{notice}");
            assert!(notice.contains("NVFP4_GEMV_ARCHS=\"80;90a"), "{notice}");
        }
        assert_eq!(Kernels::Native.notice(), None);
        let unasked = || panic!("asked for this machine's GPUs");
        assert_eq!(Kernels::with(true, unasked), Kernels::AsAsked);
    }

    #[test]
    fn without_kernels_nothing_needs_a_compiler() {
        let root = Path::new("/somewhere");
        let line = |kernels: Kernels, arguments: &[&str]| {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            format!("{:?}", program(root, &kernels, &arguments))
        };
        let cpu = line(Kernels::None(String::new()), &[]);
        assert!(cpu.contains("--no-default-features"), "{cpu}");
        assert!(cpu.contains(LAYER[3]), "{cpu}");
        let gpu = line(Kernels::Native, &["info"]);
        assert!(gpu.contains("NVFP4_GEMV_ARCHS=\"native\""), "{gpu}");
        assert!(!gpu.contains("--no-default-features"), "{gpu}");
        assert!(gpu.ends_with("\"--\" \"info\""), "{gpu}");
    }

    #[test]
    fn arguments_of_the_program_are_passed_on_untouched() {
        let of = |arguments: &[&str]| {
            let all: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            only_run(&all).map(<[OsString]>::to_vec)
        };
        assert_eq!(of(&["run"]).unwrap(), [""; 0]);
        assert_eq!(of(&["run", "--", "--help"]).unwrap(), ["--help"]);
        assert_eq!(of(&["run", "plan", "64"]).unwrap(), ["plan", "64"]);
        assert_eq!(of(&["run", "--json"]).unwrap(), ["--json"]);
        for xtasks_own in [
            &["run", "--simulate"][..],
            &["run", "--help"],
            &["test", "run"],
            &[],
        ] {
            assert_eq!(of(xtasks_own), None, "{xtasks_own:?}");
        }
    }
}
