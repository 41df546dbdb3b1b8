//! The file that `tune` stores in, if there is one.

use std::path::PathBuf;

use anyhow::Result;
use nvfp4_gemv::dispatch::measured::Entry;
use nvfp4_gemv::tune::{Tuned, Tuner};
use nvfp4_gemv_files::printable;

use super::Args;
use crate::report::count;

/// The tuned configs so far, and the file that keeps them.
pub(super) struct Store {
    tuned: Tuned,
    file: Option<PathBuf>,
    /// The file is begun anew once; then others may add to it too.
    anew: bool,
}

impl Store {
    /// `from` says for people who measured, and how. A file that is refused is refused now, not after minutes.
    pub(super) fn open(args: &Args, tuner: &Tuner, from: String) -> Result<Self> {
        let file = args.out();
        if let Some(file) = &file {
            Tuned::check_writable(file)?;
        }
        let tuned = match &file {
            Some(file) if !args.replace => Tuned::load_or_new(file, tuner.machine(), from)?,
            _ => Tuned::new(tuner.machine(), from),
        };
        let anew = args.replace;
        Ok(Self { tuned, file, anew })
    }

    pub(super) fn add(&mut self, entries: impl IntoIterator<Item = Entry>) -> Result<()> {
        for entry in entries {
            self.tuned.insert(entry);
        }
        if let Some(file) = &self.file {
            match std::mem::take(&mut self.anew) {
                true => self.tuned.replace(file)?,
                false => self.tuned.save(file)?,
            }
        }
        Ok(())
    }

    /// The file, for JSON.
    pub(super) fn name(&self) -> Option<String> {
        let file = self.file.as_ref();
        file.map(|file| file.display().to_string())
    }

    /// The line that tells people where the tuned configs are.
    pub(super) fn line(&self) -> String {
        match &self.file {
            Some(file) => format!(
                "\nstored in {}, which has {}\n",
                printable::path(file),
                count(self.tuned.measurements().entries().len(), "problem")
            ),
            None => "\nnot stored: --out FILE stores the best of each problem\n".into(),
        }
    }
}
