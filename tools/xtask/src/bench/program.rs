//! The `nvfp4-gemv` program: built here, or given.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nvfp4_gemv_documents::document::Document;
use serde_json::Value;

use crate::cargo::Cargo;
use crate::workspace::Workspace;
use crate::{process, toolchain};

/// Which program measures.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// Run this program instead of building one
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    program: Option<PathBuf>,
    /// The commit that the program was built from [default: that of the working tree, where it is built here]
    #[arg(long, value_name = "SHA", conflicts_with = "from")]
    commit: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Program {
    file: PathBuf,
    /// The commit that it was built from, where that is known.
    commit: Option<String>,
}

impl Program {
    /// The given program, or the one of this working tree, in release mode.
    pub(crate) fn find(workspace: &Workspace, args: &ProgramArgs) -> Result<Self> {
        if let Some(file) = &args.program {
            return Self::given(file, args.commit.clone());
        }
        let toolchain = toolchain::ensure(workspace)?;
        let cargo = Cargo::new(workspace).with_toolchain(&toolchain);
        Ok(Self {
            file: cargo.program(&["--release"])?,
            commit: args.commit.clone().or_else(|| commit(workspace.root())),
        })
    }

    /// A program that is there already.
    pub(crate) fn given(file: &Path, commit: Option<String>) -> Result<Self> {
        Ok(Self {
            // A bare name would be looked for in PATH.
            file: std::path::absolute(file)?,
            commit,
        })
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The program, without arguments, and without the variables that change what it takes.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command
            .env_remove("NVFP4_GEMV_PATH")
            .env_remove("NVFP4_GEMV_TUNED");
        command
    }

    /// The arguments that measure what `args` say.
    pub(crate) fn bench_arguments(&self, args: &[OsString]) -> Vec<OsString> {
        let mut all = vec![OsString::from("bench")];
        if let Some(commit) = &self.commit {
            all.extend(["--commit".into(), commit.into()]);
        }
        all.extend_from_slice(args);
        all
    }

    /// Runs a suite, or what the arguments say.
    pub(crate) fn bench(&self, args: &[OsString]) -> Result<Document> {
        super::parse(&self.json(&self.bench_arguments(args))?.1)
    }

    /// Runs every verification on a path: how many results were compared.
    pub(crate) fn verify(&self, path: &str) -> Result<u64> {
        let (passed, report) = self.json(&["verify", "--path", path].map(OsString::from))?;
        let report: Value = serde_json::from_str(&report)?;
        if passed {
            return Ok(report["computed"].as_u64().unwrap_or(0));
        }
        let cases = report["cases"].as_array().map_or(&[][..], Vec::as_slice);
        let failed = cases.iter().filter(|case| case["passed"] == false);
        let failed: Vec<String> = failed.map(|case| format!("  {case}")).take(10).collect();
        bail!(
            "{path} computes wrong results: {} of {}; the first are\n{}",
            report["failed"],
            report["computed"],
            failed.join("\n")
        )
    }

    /// The paths that can run here.
    pub(crate) fn paths(&self) -> Result<Vec<String>> {
        let info: Value = serde_json::from_str(&self.json(&["info".into()])?.1)?;
        let paths = info["paths"].as_array().context("`info` lists no paths")?;
        let available = paths.iter().filter(|path| path["available"] == true);
        Ok(available
            .filter_map(|path| path["name"].as_str().map(str::to_owned))
            .collect())
    }

    /// Why the program finds no GPU, if it finds none.
    pub(crate) fn why_no_gpu(&self) -> Result<Option<String>> {
        let info: Value = serde_json::from_str(&self.json(&["info".into()])?.1)?;
        Ok(info["cuda"]["why_none"].as_str().map(str::to_owned))
    }

    /// Whether it succeeded, and the JSON it printed; an error that it printed is one here.
    fn json(&self, args: &[OsString]) -> Result<(bool, String)> {
        let mut command = self.command();
        // The program's progress is for the user.
        command.args(args).arg("--json").stderr(Stdio::inherit());
        let output = process::output(&mut command)?;
        let text = String::from_utf8(output.stdout)
            .with_context(|| format!("`{}` did not print UTF-8", process::line(&command)))?;
        let printed: Result<Value, _> = serde_json::from_str(&text);
        match printed.as_ref().map(|value| value["error"].as_str()) {
            Ok(None) => Ok((output.status.success(), text)),
            Ok(Some(error)) => bail!("`{}`: {error}", process::line(&command)),
            Err(_) => bail!(
                "{} from `{}`, which printed no JSON",
                output.status,
                process::line(&command)
            ),
        }
    }
}

/// HEAD, with `-dirty` where the working tree differs.
pub(crate) fn commit(root: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root);
    git.args("describe --always --dirty --abbrev=40 --exclude *".split(' '));
    let commit = process::stdout(&mut git).ok()?;
    Some(commit.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::testing::script;
    use super::*;
    use crate::testing::contains;

    fn program(dir: &Path, text: &str) -> Program {
        let file = script(dir, text);
        Program { file, commit: None }
    }

    #[test]
    fn what_a_program_prints_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let says = |text: &str| program(dir.path(), text);
        let gpu = says(r#"echo '{"cuda": {"why_none": null}}'"#);
        assert_eq!(gpu.why_no_gpu().unwrap(), None);
        let none = says(r#"echo '{"cuda": {"why_none": "no driver"}}'"#);
        assert_eq!(none.why_no_gpu().unwrap().as_deref(), Some("no driver"));
        let paths = says(
            r#"echo '{"paths": [{"name": "cpu", "available": true}, {"name": "x", "available": false}]}'"#,
        );
        assert_eq!(paths.paths().unwrap(), ["cpu"]);
        let passed = says(r#"echo '{"passed": true, "computed": 7}'"#);
        assert_eq!(passed.verify("cpu").unwrap(), 7);
        let failed = says(
            r#"echo '{"failed": 1, "computed": 7, "cases": [{"case": "zeros", "passed": false}]}'; exit 1"#,
        );
        let failed = failed.verify("cpu").unwrap_err().to_string();
        contains(&failed, &["1 of 7", "zeros"]);
        let error = says(r#"echo '{"error": "out of memory", "hint": null}'; exit 1"#);
        let error = error.verify("cpu").unwrap_err().to_string();
        assert!(error.contains("out of memory"), "{error}");
        let crash = says("exit 139").bench(&[]).unwrap_err().to_string();
        contains(&crash, &["139", "no JSON"]);
    }
}
