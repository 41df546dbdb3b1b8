//! Running other programs, with errors that name the command.

use std::io::ErrorKind;
use std::process::{Command, Output};

use anyhow::{Context, Error, Result, bail};

/// Runs a command that talks to the user itself.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .map_err(|error| cannot_start(command, error))?;
    if !status.success() {
        bail!("{status} from `{}`", line(command));
    }
    Ok(())
}

/// Runs a command and keeps its output; only a command that cannot be started is an error.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    command
        .output()
        .map_err(|error| cannot_start(command, error))
}

/// Runs a command and returns what it wrote to standard output.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        bail!(
            "{} from `{}`:\n{}",
            output.status,
            line(command),
            tail(&String::from_utf8_lossy(&output.stderr), 40)
        );
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` did not print UTF-8", line(command)))
}

/// The target triple of this machine, as rustc names it.
pub(crate) fn host_triple() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let text = stdout(Command::new(rustc).arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// The command as a user would type it.
pub(crate) fn line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// The last lines of a long text: the error is usually there.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn cannot_start(command: &Command, error: std::io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    let what = if error.kind() == ErrorKind::NotFound {
        format!("`{program}` was not found")
    } else {
        format!("`{program}` could not be started")
    };
    Error::new(error)
        .context(what)
        .context(format!("running `{}`", line(command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let error = run(Command::new("no-such-program-anywhere").arg("--flag")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("`no-such-program-anywhere --flag`"), "{text}");
        assert!(text.contains("was not found"), "{text}");
    }

    #[test]
    fn tail_keeps_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
