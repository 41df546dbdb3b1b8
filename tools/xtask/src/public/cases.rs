//! The list of kernels: tools/ptx-recorder/public/kernels.toml.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use toml::{Table, Value};

use super::run::Mode;

/// All of it.
#[derive(Debug)]
pub(super) struct Cases {
    pub(super) repositories: Vec<Repository>,
    pub(super) kernels: Vec<Kernel>,
    /// Kernels that are not run, and why.
    pub(super) untried: Vec<Untried>,
}

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    repository: Vec<Repository>,
    group: Vec<Group>,
    /// Arguments, by the words that kernels name them with.
    mistakes: BTreeMap<String, String>,
    /// By kernel.
    faults: BTreeMap<String, Vec<Fault>>,
    untried: Vec<Untried>,
}

/// Kernels, and what they have in common: fields of [`Kernel`] too.
#[derive(Debug, Deserialize)]
struct Group {
    kernel: Vec<Table>,
    #[serde(flatten)]
    common: Table,
}

impl Group {
    /// A kernel's own fields and the group's.
    fn fill(&self, mut kernel: Table) -> Result<Kernel> {
        for (name, value) in &self.common {
            let own = kernel.entry(name.clone()).or_insert_with(|| value.clone());
            if let (Value::Table(own), Value::Table(common)) = (own, value) {
                let more = common.iter().filter(|(name, _)| !own.contains_key(*name));
                let more: Vec<_> = more.map(|(name, of)| (name.clone(), of.clone())).collect();
                own.extend(more);
            }
        }
        let named = format!("kernels.toml: {:?}", kernel.get("name"));
        kernel.try_into().context(named)
    }
}

/// A public repository.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Repository {
    /// Folder of the repository.
    pub(super) name: String,
    pub(super) url: String,
    /// The commit that the expectations were made with.
    pub(super) commit: String,
    /// Folders of headers, from the folder of all repositories.
    #[serde(default)]
    pub(super) include: Vec<String>,
    /// Further arguments of nvcc.
    #[serde(default)]
    pub(super) flags: Vec<String>,
    /// Text to replace in its kernels' files before they are compiled.
    #[serde(default)]
    pub(super) edits: Vec<Edit>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Edit {
    pub(super) find: String,
    pub(super) with: String,
}

/// A kernel and a program around it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) repository: String,
    /// The program in the folder of the list. Without one, `source` is a program itself.
    pub(super) program: Option<String>,
    /// The kernel's file in its repository, which the program includes as `SOURCE`.
    pub(super) source: String,
    #[serde(default)]
    pub(super) define: BTreeMap<String, String>,
    pub(super) arguments: String,
    /// The architecture that it is compiled for, if that is not 100a.
    pub(super) arch: Option<String>,
    /// Multiprocessors of the GPU that the program sees: with few, CTAs of a persistent kernel have several tiles.
    pub(super) sms: Option<u32>,
    /// The program's output where its check finds nothing wrong.
    #[serde(default = "right")]
    pub(super) says: String,
    /// Errors under each profile; a kernel without any is right under every schedule.
    #[serde(default)]
    pub(super) hardware: Vec<String>,
    #[serde(default)]
    pub(super) strict: Vec<String>,
    /// Errors under the hardware profile without hazard checks.
    #[serde(default)]
    pub(super) unchecked: Vec<String>,
    /// The argument why an error of the hardware profile is the kernel's mistake.
    pub(super) mistake: Option<String>,
    #[serde(skip)]
    pub(super) faults: Vec<Fault>,
}

fn right() -> String {
    "right".into()
}

/// A fault to plant, and who notices it: `check` (of the simulator), `output` (the program's comparison), `nobody`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    pub(super) name: String,
    pub(super) noticed: String,
    /// Why nobody notices.
    pub(super) why: Option<String>,
}

/// A kernel that was not run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Untried {
    pub(super) name: String,
    pub(super) why: String,
}

impl Cases {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut file: File = toml::from_str(text).context("kernels.toml")?;
        let mut kernels = Vec::new();
        for mut group in file.group {
            for kernel in std::mem::take(&mut group.kernel) {
                let mut kernel = group.fill(kernel)?;
                if let Some(mistake) = &mut kernel.mistake {
                    let said = file.mistakes.get(mistake);
                    *mistake = said
                        .with_context(|| format!("no mistake {mistake}"))?
                        .clone();
                }
                kernel.faults = file.faults.remove(&kernel.name).unwrap_or_default();
                kernels.push(kernel);
            }
        }
        if let Some(name) = file.faults.keys().next() {
            bail!("faults of {name}, which is no kernel");
        }
        let cases = Self {
            repositories: file.repository,
            kernels,
            untried: file.untried,
        };
        for k in &cases.kernels {
            cases.repository(k)?;
        }
        Ok(cases)
    }

    pub(super) fn repository(&self, kernel: &Kernel) -> Result<&Repository> {
        let mut found = self.repositories.iter();
        let found = found.find(|r| r.name == kernel.repository);
        found.with_context(|| format!("{}: no repository {}", kernel.name, kernel.repository))
    }
}

impl Kernel {
    /// The errors that are expected; none for a kernel that is right.
    pub(super) fn expected(&self, mode: Mode) -> &[String] {
        match mode {
            Mode::Hardware => &self.hardware,
            Mode::Strict => &self.strict,
            Mode::Unchecked => &self.unchecked,
        }
    }

    /// A name for files.
    pub(super) fn file(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        self.name.chars().map(plain).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read() {
        let text = include_str!("../../../ptx-recorder/public/kernels.toml");
        let cases = Cases::parse(text).unwrap();
        let mut names: Vec<_> = cases.kernels.iter().map(Kernel::file).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cases.kernels.len(), "a name for each");
        for k in &cases.kernels {
            // An error under the hardware profile needs an argument, and so does a fault that nobody notices.
            assert_eq!(k.hardware.is_empty(), k.mistake.is_none(), "{}", k.name);
            for f in &k.faults {
                let nobody = f.noticed == "nobody";
                assert_eq!(nobody, f.why.is_some(), "{}: {}", k.name, f.name);
            }
        }
    }
}
