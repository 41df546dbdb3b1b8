//! The file that `tune` stores in, if there is one.

use std::path::PathBuf;

use anyhow::Result;
use nvfp4_gemv::dispatch::measured::{Entry, Machine};
use nvfp4_gemv::tune::Tuned;
use nvfp4_gemv_files::printable;

use super::Args;
use crate::report::count;

/// The tuned configs so far, and the file that keeps them.
pub(super) struct Store {
    tuned: Tuned,
    file: Option<PathBuf>,
    /// The file is begun anew once; then others may add to it too.
    anew: bool,
    /// Whether anything was stored.
    stored: bool,
}

impl Store {
    /// `from` says for people who measured, and how. A file that is refused is refused now, not after minutes.
    pub(super) fn open(args: &Args, machine: &Machine, from: String) -> Result<Self> {
        let file = args.out();
        if let Some(file) = &file {
            Tuned::check_writable(file)?;
        }
        let tuned = match &file {
            Some(file) if !args.replace => Tuned::load_or_new(file, machine, from)?,
            _ => Tuned::new(machine, from),
        };
        Ok(Self {
            tuned,
            file,
            anew: args.replace,
            stored: false,
        })
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
            self.stored = true;
        }
        Ok(())
    }

    /// The file that has what was found, for JSON.
    pub(super) fn name(&self) -> Option<String> {
        let file = self.file.as_ref().filter(|_| self.stored);
        file.map(|file| file.display().to_string())
    }

    /// The line that tells people where the tuned configs are.
    pub(super) fn line(&self) -> String {
        match &self.file {
            Some(file) if !self.stored => format!(
                "\nnothing to store: {} is as it was\n",
                printable::path(file)
            ),
            Some(file) => format!(
                "\nstored in {}, which has {}\n",
                printable::path(file),
                count(self.tuned.measurements().entries().len(), "problem")
            ),
            None => "\nnot stored: --out FILE stores the best of each problem\n".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nvfp4_gemv::dispatch::measured::builtin;

    use super::*;

    /// All problems may be skipped: then the file is not made, or has what it had.
    #[test]
    fn only_what_was_stored_is_said_to_be() {
        let table = &builtin()[0];
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuned.jsonl");
        let name = file.display().to_string();
        let store = |options: &str| {
            let args = crate::parsed::<Args>(&format!("--shape 64,64 {options}"));
            Store::open(&args, &table.machine, "a test".into()).unwrap()
        };
        let to_file = format!("--out {name}");
        let mut begun = store(&to_file);
        assert_eq!(begun.name(), None);
        assert!(
            begun.line().contains("nothing to store: "),
            "{}",
            begun.line()
        );
        assert!(!file.exists());
        begun.add(table.entries()[..1].to_vec()).unwrap();
        assert_eq!(begun.name().as_ref(), Some(&name));
        let line = format!("\nstored in {name}, which has 1 problem\n");
        assert_eq!(begun.line(), line);
        // Of a file that is there, too, and one that would be begun anew.
        for options in [to_file.clone(), format!("{to_file} --replace")] {
            let again = store(&options);
            assert_eq!(again.name(), None);
            assert!(again.line().contains("is as it was"), "{}", again.line());
        }
        let mut nowhere = store("");
        nowhere.add(table.entries()[..1].to_vec()).unwrap();
        assert_eq!(nowhere.name(), None);
        assert!(nowhere.line().contains("not stored"), "{}", nowhere.line());
    }
}
