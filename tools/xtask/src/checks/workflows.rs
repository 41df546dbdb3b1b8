//! Rules for the workflows of `.github`, and for the scripts of `.ci` which they start, checked by reading them.
//!
//! They are read line by line, not as YAML: one known way of writing each thing is all that the rules allow.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let directory = workspace.root().join(".github/workflows");
    let mut findings = Vec::new();
    let mut files: Vec<_> = fs::read_dir(&directory)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    files.sort_by_key(fs::DirEntry::file_name);
    for file in &files {
        let path = file.path();
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = file.file_name().to_string_lossy().into_owned();
        findings.extend(
            examine(&text)
                .into_iter()
                .map(|what| format!("{name}: {what}")),
        );
    }
    for name in [".ci/run", ".ci/full"] {
        let text = fs::read_to_string(workspace.root().join(name))
            .with_context(|| format!("cannot read {name}"))?;
        if !locks_first(&text) {
            findings.push(format!(
                "{name}: its first use of cargo is not `cargo fetch --locked`"
            ));
        }
    }
    if files.is_empty() {
        bail!("{}: no workflow", directory.display());
    }
    if !findings.is_empty() {
        bail!("{}", findings.join("\n"));
    }
    Ok(())
}

/// Forbidden parts of a workflow.
fn examine(text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    // The permissions are set once, for all jobs: reading the repository.
    if !text.contains("\npermissions:\n  contents: read\n") {
        findings.push("no `permissions:` with `contents: read` alone, for all jobs".into());
    }
    for (at, line) in lines.iter().enumerate() {
        let number = at + 1;
        let mut find = |what: &str| findings.push(format!("line {number}: {what}"));
        let code = line.split(" #").next().unwrap_or_default();
        let code = match code.trim_start().starts_with('#') {
            true => "",
            false => code,
        };
        if code.contains("pull_request_target") {
            find("pull_request_target gives a stranger's code this repository's rights");
        }
        if code.trim_end().ends_with(": write") || code.contains("write-all") {
            find("a permission to write");
        }
        if code.contains("persist-credentials") && !code.contains("persist-credentials: false") {
            find("credentials that stay in the checkout");
        }
        if let Some((_, action)) = code.split_once("uses:") {
            let (name, version) = action.trim().split_once('@').unwrap_or((action, ""));
            let is_commit = version.len() == 40 && version.bytes().all(|b| b.is_ascii_hexdigit());
            // A comment says which release that is, for people and for update bots.
            if !is_commit || !line.contains(" # v") {
                find("an action that is not given as `NAME@COMMIT # vRELEASE`: tags move");
            }
            if name.ends_with("actions/checkout")
                && !step(&lines, at).contains("persist-credentials: false")
            {
                find("a checkout without `persist-credentials: false`");
            }
        }
        if code.contains("cargo ") && !code.contains("--locked") {
            find("cargo without --locked takes versions that nobody has looked at");
        }
        if code.contains("${{") && code.contains("run:") {
            find("an expression inside a script: pass it in a variable of `env:`");
        }
    }
    findings
}

/// Whether a script begins with a check of Cargo.lock: later commands then have nothing to change in it.
fn locks_first(script: &str) -> bool {
    let uses_cargo = |line: &&str| line.starts_with("cargo ") || line.starts_with("step cargo ");
    let mut first = script.lines().filter(uses_cargo);
    let first = first.find(|line| !line.contains("--version"));
    first.is_some_and(|line| line.contains("cargo fetch --locked"))
}

/// The lines of the step that has line `at`: until the next step or a line less deep.
fn step(lines: &[&str], at: usize) -> String {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let of_step = match lines[at].trim_start().starts_with("- ") {
        true => depth(lines[at]),
        false => depth(lines[at]).saturating_sub(2),
    };
    let rest = lines[at + 1..]
        .iter()
        .take_while(|line| line.trim().is_empty() || depth(line) > of_step);
    rest.copied().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
name: good
permissions:
  contents: read
jobs:
  one:
    steps:
      - uses: actions/checkout@0123456789012345678901234567890123456789 # v1.2.3
        with:
          persist-credentials: false
      # cargo test would not do
      - run: cargo test --locked
      - run: echo \"$HOME\"
";

    #[test]
    fn rules_are_held() {
        assert_eq!(examine(GOOD), [""; 0]);
        const COMMIT: &str = "@0123456789012345678901234567890123456789 # v1.2.3";
        const KEPT: &str = "persist-credentials: false";
        for (from, to, says) in [
            (COMMIT, "@v4", "tags move"),
            (" # v1.2.3", "", "tags move"),
            (KEPT, "fetch-depth: 1", "persist-credentials"),
            (KEPT, "persist-credentials: true", "credentials that stay"),
            (" --locked", "", "--locked"),
            ("cargo test --locked", "cargo xtask nightly", "--locked"),
            ("contents: read", "contents: write", "permission to write"),
            ("permissions:\n  contents: read\n", "", "no `permissions:`"),
            ("\"$HOME\"", "${{ github.head_ref }}", "inside a script"),
        ] {
            let bad = GOOD.replace(from, to);
            assert_ne!(bad, GOOD, "{from}");
            let findings = examine(&bad);
            let found = findings.iter().any(|what| what.contains(says));
            assert!(found, "{to}: {findings:?}");
        }
        // The next step's credentials are not this one's.
        let two = GOOD.replace("      - run: cargo", "      - uses: actions/checkout@0123456789012345678901234567890123456789 # v1\n      - run: cargo");
        assert_eq!(examine(&two).len(), 1, "{:?}", examine(&two));
    }

    #[test]
    fn a_script_checks_the_lock_file_first() {
        let (fetch, test) = ("step cargo fetch --locked\n", "step cargo xtask test\n");
        assert!(locks_first(&format!("cargo --version\n{fetch}{test}")));
        assert!(!locks_first(&format!("{test}{fetch}")));
        assert!(!locks_first(""));
    }

    #[test]
    fn this_repositorys_workflows_hold_the_rules() {
        check(&Workspace::locate().unwrap()).unwrap();
    }
}
