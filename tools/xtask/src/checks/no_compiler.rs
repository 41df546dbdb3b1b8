//! `cargo build --no-default-features` needs neither nvcc nor a C or C++ compiler, and a build that needs nvcc says so.
//! Whoever would compile is a build script, and those run for `cargo check`, too.
//!
//! Rust itself links through `cc`, so a machine with no `cc` at all builds no Rust program. Everything else is taken
//! away: PATH leads to an empty directory, and CC, CXX and NVCC name a program that does not exist. rustc links through
//! a script that passes linking on to the real `cc` and refuses whatever would compile. A build script that asks for a
//! compiler, by any of these ways, fails the check. (An absolute path written into a build script would not be
//! noticed.)

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo::Cargo;
use crate::checks::Context;
use crate::checks::docs::cuda_variables;
use crate::process;

const NO_SUCH_PROGRAM: &str = "no-compiler-in-this-check";

pub(super) fn check(context: &Context<'_>) -> Result<()> {
    if !cfg!(unix) {
        eprintln!("skipped: this check knows only Unix");
        return Ok(());
    }
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).context("cannot create a temporary directory")?;
    // At a fixed path: another path would be another linker to cargo, and build everything anew.
    let target = context.workspace.check_dir("no-compiler");
    fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    let linker = target.join("link-only-cc");
    write_linker(&linker)?;
    refuses_to_compile(&linker, directory.path())?;

    let host = process::host_triple()?;
    let mut cargo = Cargo::new(context.workspace)
        .target_dir(&target)
        .env("PATH", &empty)
        .env("RUSTC", rustc()?)
        .env(linker_variable(&host), &linker);
    for name in cuda_variables() {
        cargo = cargo.without_env(name);
    }
    for name in "CC CXX NVCC HOST_CC HOST_CXX TARGET_CC TARGET_CXX".split(' ') {
        cargo = cargo.env(name, NO_SUCH_PROGRAM);
    }
    for name in ["CC", "CXX"] {
        for host in [host.clone(), host.replace('-', "_")] {
            cargo = cargo.without_env(format!("{name}_{host}"));
        }
    }
    for more in [
        &["--package", "nvfp4-gemv"][..],
        // The features that the build with CUDA advises, and the program with them.
        &["--package", "nvfp4-gemv", "--features", "checkpoint,tune"],
        &["--package", "nvfp4-gemv-cli"],
        // The program with kernels that are compiled at run time.
        &["--package", "nvfp4-gemv-cli", "--features", "jit"],
    ] {
        cargo.run([&["check", "--no-default-features"], more].concat())?;
    }
    // A build beside an old nvcc: cudarc then has the functions of that nvcc's version.
    let jit = ["--package", "nvfp4-gemv", "--features", "jit"];
    let old = cargo.clone().env("CUDARC_CUDA_VERSION", "11040");
    old.run([&["check", "--no-default-features"], &jit[..]].concat())?;
    if Path::new("/usr/local/cuda/bin/nvcc").exists() {
        eprintln!("note: /usr/local/cuda/bin/nvcc cannot be hidden; its absence is not tried here");
        return Ok(());
    }
    let cargo = ["DOCS_RS", "NVFP4_GEMV_NO_KERNELS"]
        .into_iter()
        .fold(cargo, Cargo::without_env);
    advises(
        &mut cargo.command(["check", "--package", "nvfp4-gemv"]),
        [
            "CPU only: cargo build --no-default-features",
            "compiler: cargo xtask toolchain",
        ],
    )?;
    let app = directory.path().join("app");
    write_dependent(&app, context.workspace.root())?;
    let cargo = cargo
        .at(app.join("Cargo.toml"))
        .without_env("NVFP4_GEMV_CHECKOUT");
    advises(
        cargo.command(["check", "--offline"]).current_dir(&app),
        [
            "CPU only: in every Cargo.toml that names nvfp4-gemv",
            "compiler: python3 -m pip install",
        ],
    )
}

/// A program that names the library by its path, as the README tells.
fn write_dependent(app: &Path, library: &Path) -> Result<()> {
    let source = app.join("src");
    fs::create_dir_all(&source).with_context(|| format!("cannot create {}", source.display()))?;
    let manifest = format!(
        "[package]\nname = \"app\"\nedition = \"2024\"\n\n[dependencies]\nnvfp4-gemv = {{ path = {:?} }}\n",
        library.display().to_string()
    );
    let lock = library.join("Cargo.lock");
    let lock = fs::read(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    for (file, text) in [
        (app.join("Cargo.toml"), manifest.as_bytes()),
        // The versions that are here.
        (app.join("Cargo.lock"), &lock),
        (source.join("main.rs"), b"fn main() {}\n"),
    ] {
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// A build with CUDA fails, and says first what to do for the CPU alone, then what to do for a compiler.
fn advises(command: &mut Command, expected: [&str; 2]) -> Result<()> {
    let output = process::output(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let advice: Vec<&str> = said
        .lines()
        .map(str::trim)
        .skip_while(|line| !line.contains("there is no compiler for it"))
        .skip(1)
        .take(2)
        .collect();
    let advised = advice.len() == 2
        && advice
            .iter()
            .zip(expected)
            .all(|(line, start)| line.starts_with(start));
    if output.status.success() || !advised {
        bail!("a build with CUDA and without nvcc says:\n{said}");
    }
    Ok(())
}

fn write_linker(linker: &Path) -> Result<()> {
    let real = on_path("cc").context("rustc links through `cc`, and there is none in PATH")?;
    let path = env::var("PATH").unwrap_or_default();
    let text = format!(
        "#!/bin/sh\n\
         for argument in \"$@\"; do\n\
         \x20 case $argument in\n\
         \x20   -c|-S|-E|-x|*.c|*.cc|*.cpp|*.cxx|*.cu|*.s|*.asm)\n\
         \x20     echo \"link-only cc: refuses $argument: no compiler in this check\" >&2; exit 1;;\n\
         \x20 esac\n\
         done\n\
         PATH={} exec {} \"$@\"\n",
        quote(&path),
        quote(&real.to_string_lossy()),
    );
    fs::write(linker, text).with_context(|| format!("cannot write {}", linker.display()))?;
    fs::set_permissions(linker, Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", linker.display()))
}

/// The check is worth nothing if its linker compiles.
fn refuses_to_compile(linker: &Path, scratch: &Path) -> Result<()> {
    let source = scratch.join("probe.c");
    fs::write(&source, "int main(void) { return 0; }\n").context("cannot write a probe")?;
    let mut command = Command::new(linker);
    command.arg(&source).arg("-o").arg(scratch.join("probe"));
    if process::output(&mut command)?.status.success() {
        bail!("the link-only cc compiled a C file");
    }
    Ok(())
}

/// The compiler itself, not rustup's stand-in, which would search PATH.
fn rustc() -> Result<PathBuf> {
    let named = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = process::stdout(Command::new(&named).args(["--print", "sysroot"]))?;
    let inside = Path::new(sysroot.trim()).join("bin").join("rustc");
    if inside.is_file() {
        return Ok(inside);
    }
    on_path("rustc").context("there is no rustc in PATH")
}

fn linker_variable(host: &str) -> String {
    format!(
        "CARGO_TARGET_{}_LINKER",
        host.replace('-', "_").to_uppercase()
    )
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
