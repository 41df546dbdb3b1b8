//! Cargo as a child process, with the toolchain in its environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xtask_front::PROGRAM;

use crate::process;
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;

#[derive(Clone, Debug)]
pub(crate) struct Cargo {
    manifest: PathBuf,
    environment: Vec<(OsString, Option<OsString>)>,
}

impl Cargo {
    pub(crate) fn new(workspace: &Workspace) -> Self {
        Self {
            manifest: workspace.root().join("Cargo.toml"),
            environment: Vec::new(),
        }
    }

    /// Works on another package than this repository's own.
    pub(crate) fn at(mut self, manifest: PathBuf) -> Self {
        self.manifest = manifest;
        self
    }

    pub(crate) fn with_toolchain(mut self, toolchain: &Toolchain) -> Self {
        for (name, value) in toolchain.environment() {
            self = self.env(name, value);
        }
        self
    }

    pub(crate) fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), Some(value.into())));
        self
    }

    pub(crate) fn without_env(mut self, name: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), None));
        self
    }

    pub(crate) fn target_dir(self, directory: &Path) -> Self {
        self.env("CARGO_TARGET_DIR", directory)
    }

    /// `cargo <subcommand> --manifest-path ... <arguments>`, in the user's current directory.
    pub(crate) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut arguments = arguments.into_iter();
        // Inside `cargo xtask`, CARGO is the cargo of the toolchain that built xtask.
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        if let Some(subcommand) = arguments.next() {
            command.arg(subcommand);
        }
        command.arg("--manifest-path").arg(&self.manifest);
        command.args(arguments);
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // These variables describe xtask, not the package that is built next; build scripts of dependencies read some
        // of them.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        process::run(&mut self.command(arguments))
    }

    /// Builds the `nvfp4-gemv` program, and returns its file and the OUT_DIR of the library's build script, as cargo
    /// reports them.
    pub(crate) fn program_and_out_dir(
        &self,
        build_arguments: &[&str],
    ) -> Result<(PathBuf, PathBuf)> {
        let (messages, line) = self.build(&[&PROGRAM[..], build_arguments].concat())?;
        let manifest = self.manifest.parent().unwrap_or(Path::new(""));
        let program = find_executable(&messages)
            .with_context(|| format!("cargo reported no program (`{line}`)"))?;
        match find_out_dir(&messages, manifest) {
            Some(out_dir) => Ok((program, out_dir)),
            None => bail!(
                "cargo reported no build script output for {}; is its build.rs gone? (`{line}`)",
                manifest.display()
            ),
        }
    }

    /// Builds a program and returns its file, as cargo reports it.
    pub(crate) fn executable(&self, build_arguments: &[&str]) -> Result<PathBuf> {
        let (messages, line) = self.build(build_arguments)?;
        find_executable(&messages).with_context(|| format!("cargo reported no program (`{line}`)"))
    }

    /// Builds the `nvfp4-gemv` program and returns its file.
    pub(crate) fn program(&self, build_arguments: &[&str]) -> Result<PathBuf> {
        self.executable(&[&PROGRAM[..], build_arguments].concat())
    }

    /// Builds, and returns cargo's messages and what was called.
    fn build(&self, arguments: &[&str]) -> Result<(String, String)> {
        let mut command = self.command(["build", "--message-format", "json-render-diagnostics"]);
        command
            .args(arguments)
            .stderr(std::process::Stdio::inherit());
        let messages = process::stdout(&mut command)?;
        Ok((messages, process::line(&command)))
    }
}

/// Finds the program among cargo's messages.
fn find_executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Finds the package's own build script among cargo's messages.
fn find_out_dir(messages: &str, package_dir: &Path) -> Option<PathBuf> {
    // A package identifier is path+file:///where/it/is#name@1.0.0 or ...#1.0.0.
    let place = format!("{}#", package_dir.display());
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "build-script-executed")
        .find(|message| {
            message["package_id"]
                .as_str()
                .is_some_and(|id| id.starts_with("path+") && id.contains(&place))
        })
        .and_then(|message| message["out_dir"].as_str().map(PathBuf::from))
}

/// This process's PATH with a directory first. Unchanged where the directory is first already:
/// to cargo another PATH is a reason to run build scripts again.
pub(crate) fn path_with(first: &Path) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path)
        .next()
        .is_some_and(|now| now == first)
    {
        return Ok(path);
    }
    env::join_paths(std::iter::once(first.to_path_buf()).chain(env::split_paths(&path)))
        .with_context(|| format!("{} cannot stand in PATH", first.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_dir_is_the_packages_own() {
        let messages = r#"
{"reason":"build-script-executed","package_id":"registry+x#serde@1.0.0","out_dir":"/t/serde/out"}
{"reason":"build-script-executed","package_id":"path+file:///w/gemv/ptx-sim#0.1.0","out_dir":"/t/sim/out"}
{"reason":"build-script-executed","package_id":"path+file:///w/gemv#nvfp4-gemv@0.1.0","out_dir":"/t/gemv/out"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            find_out_dir(messages, Path::new("/w/gemv")),
            Some(PathBuf::from("/t/gemv/out"))
        );
        assert_eq!(find_out_dir(messages, Path::new("/w/other")), None);
    }

    #[test]
    fn the_program_is_found_among_libraries() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"nvfp4_gemv"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"nvfp4-gemv"},"executable":"/t/release/nvfp4-gemv"}"#;
        assert_eq!(
            find_executable(messages),
            Some("/t/release/nvfp4-gemv".into())
        );
        assert_eq!(find_executable("{}"), None);
    }
}
