//! `cargo xtask`: runs the program itself where that takes no CUDA compiler, and hands all else to the package xtask,
//! which takes a minute to compile.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use xtask_front::{Kernels, cargo, only_run, program, root};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let root = root();
    let of_program = only_run(&arguments).map(|of_program| (of_program, Kernels::here()));
    let mut command = match of_program {
        Some((of_program, kernels @ Kernels::None(_))) => {
            eprintln!("{}", kernels.notice().unwrap_or_default());
            program(&root, &kernels, of_program)
        }
        _ => tasks(&root, &arguments),
    };
    let error = command.exec();
    eprintln!("error: {command:?}: {error}");
    ExitCode::FAILURE
}

/// The package xtask with these arguments.
fn tasks(root: &Path, arguments: &[OsString]) -> Command {
    let mut command = cargo(root);
    // The first compilation of xtask is long enough to be watched.
    if env::current_exe().is_ok_and(|front| front.with_file_name("xtask").exists()) {
        command.arg("--quiet");
    }
    command.args(["--package", "xtask", "--"]).args(arguments);
    command
}
