//! The program, started the same way whoever runs the tests.

use std::process::{Command, Stdio};

/// Variables that the program gets from the environment of the tests: where to count coverage. Everything else could
/// change what it prints.
const KEPT: [&str; 2] = ["LLVM_PROFILE_FILE", "SystemRoot"];

/// Every test that starts the program begins with this.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ptx-sim"));
    command
        .env_clear()
        .envs(
            KEPT.iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .stdin(Stdio::null());
    command
}
