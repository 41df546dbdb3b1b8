//! The last good program: what tonight's is compared with. A copy of the program of the last night that
//! succeeded, kept beside the history.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nvfp4_gemv_documents::document::Document;
use serde::{Deserialize, Serialize};

use crate::bench::program::Program;

const SCHEMA: &str = "nvfp4-gemv/last-good/1";

/// Origin of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Origin {
    schema: String,
    /// The program's name in the folder.
    file: String,
    pub(super) git_commit: Option<String>,
    pub(super) crate_version: String,
    /// The hash of the kernels' sources.
    pub(super) kernels: Option<String>,
    /// When it was measured.
    pub(super) date_utc: String,
}

impl Origin {
    /// The origin of a program that introduced itself, or was measured.
    pub(super) fn of(document: &Document) -> Self {
        Self {
            schema: SCHEMA.into(),
            file: String::new(),
            git_commit: document.git_commit.clone(),
            crate_version: document.crate_version.clone(),
            kernels: document.kernels.clone(),
            date_utc: document.date_utc.clone(),
        }
    }
}

/// Commit, day and kernels, for people.
impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |text: &str| text.chars().take(12).collect::<String>();
        let commit = self
            .git_commit
            .as_deref()
            .map_or("an unknown commit".into(), |commit| {
                format!("commit {}", short(commit))
            });
        let kernels = self.kernels.as_deref().map_or("none".into(), short);
        write!(
            f,
            "{commit} of {} (kernels {kernels})",
            short(&self.date_utc[..10.min(self.date_utc.len())])
        )
    }
}

/// The folder with the program and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct LastGood {
    folder: PathBuf,
}

impl LastGood {
    pub(super) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn origin(&self) -> PathBuf {
        self.folder.join("program.json")
    }

    /// The program, or nothing before the first night.
    pub(super) fn find(&self) -> Result<Option<(Program, Origin)>> {
        let file = self.origin();
        let Some(text) = crate::write::read_if_there(&file)? else {
            return Ok(None);
        };
        let origin: Origin = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged; {}", file.display(), self.advice()))?;
        if origin.schema != SCHEMA {
            bail!(
                "{} is {}, not {SCHEMA}; {}",
                file.display(),
                origin.schema,
                self.advice()
            );
        }
        let program = self.folder.join(&origin.file);
        if !program.is_file() {
            bail!("{} is not there; {}", program.display(), self.advice());
        }
        let commit = origin.git_commit.clone();
        Ok(Some((Program::given(&program, commit)?, origin)))
    }

    /// Advice for a last good program that is of no use.
    pub(super) fn advice(&self) -> String {
        format!("remove {} to begin anew", self.folder.display())
    }

    /// Keeps a program that was measured. The old one stays the last good one until the new one is whole. The new one
    /// gets a name of its own, and the file that says which one is the last good is replaced in one step.
    pub(super) fn keep(&self, program: &Program, document: &Document) -> Result<()> {
        /// Programs take turns with these names.
        const NAMES: [&str; 2] = ["nvfp4-gemv-a", "nvfp4-gemv-b"];
        let writing = || format!("keeping the program in {}", self.folder.display());
        fs::create_dir_all(&self.folder).with_context(writing)?;
        // A folder that is damaged begins anew.
        let old = self.find().ok().flatten().map(|(_, origin)| origin.file);
        let [first, second] = NAMES;
        let is_second = old.as_deref() == Some(first);
        let new = if is_second { second } else { first };
        fs::copy(program.file(), self.folder.join(new)).with_context(writing)?;
        let mut origin = Origin::of(document);
        origin.file = new.into();
        let origin = serde_json::to_string(&origin)? + "\n";
        crate::write::whole(&self.origin(), &origin)?;
        match old.map(|old| fs::remove_file(self.folder.join(old))) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(writing)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::{document, script};
    use crate::testing::contains;

    #[test]
    fn a_program_is_kept_and_found_with_its_origin() {
        let folder = tempfile::tempdir().unwrap();
        let kept = LastGood::at(folder.path().join("deep/last-good"));
        assert!(kept.find().unwrap().is_none());
        let program = Program::given(&script(folder.path(), "echo one"), None).unwrap();
        kept.keep(&program, &document()).unwrap();
        let (found, origin) = kept.find().unwrap().unwrap();
        let [found, given] = [&found, &program].map(|of| fs::read(of.file()).unwrap());
        assert_eq!(found, given);
        assert_eq!(origin.git_commit, document().git_commit);
        let is_from = "commit 0123456789ab of 2026-11-21 (kernels feedc0de)";
        assert_eq!(origin.to_string(), is_from);
        // Kept programs are replaced, and can be run.
        let other = Program::given(&script(folder.path(), "echo two"), None).unwrap();
        kept.keep(&other, &document()).unwrap();
        let (found, _) = kept.find().unwrap().unwrap();
        let output = found.command().output().unwrap();
        assert_eq!(output.stdout, b"two\n");
        assert_eq!(fs::read_dir(kept.folder()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_damaged_is_an_error_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let kept = LastGood::at(folder.path().to_owned());
        for text in ["{", "{\"schema\": 1}"] {
            fs::write(kept.origin(), text).unwrap();
            let error = format!("{:#}", kept.find().unwrap_err());
            contains(&error, &["damaged", "begin anew"]);
        }
        let mut origin = Origin::of(&document());
        origin.file = "gone".into();
        let other = serde_json::to_string(&origin).unwrap();
        fs::write(kept.origin(), &other).unwrap();
        let error = format!("{:#}", kept.find().unwrap_err());
        assert!(error.contains("gone is not there"), "{error}");
        fs::write(kept.origin(), other.replace("last-good/1", "last-good/2")).unwrap();
        let error = format!("{:#}", kept.find().unwrap_err());
        assert!(error.contains("last-good/2"), "{error}");
    }
}
