//! Finding the files of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{CheckpointError, Note};
use crate::file::{FileError, not_safetensors};
use crate::input;

/// The index in a directory of several files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// More than any index has: the largest known, of some 370,000 tensors, has 43 MB.
const MOST_INDEX_BYTES: u64 = 256 << 20;

/// What a path means.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Where configs lie.
    pub(super) directory: PathBuf,
    /// The safetensors files.
    pub(super) files: Vec<PathBuf>,
    pub(super) elsewhere: Elsewhere,
    pub(super) notes: Vec<Note>,
}

/// Tensors, each with the file that an index has it in.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    pub(super) index: PathBuf,
    /// Whether these files were opened.
    pub(super) opened: bool,
    pub(super) tensors: BTreeMap<String, String>,
}

impl Found {
    pub(super) fn at(path: &Path) -> Result<Self, CheckpointError> {
        let parent = || path.parent().unwrap_or(Path::new(".")).to_owned();
        if path.extension().is_some_and(|e| e == "json") {
            return Self::indexed(path, parent());
        }
        if !path.is_dir() {
            return Ok(Self::one(path, parent()));
        }
        let index = path.join(INDEX_FILE);
        if index.exists() {
            return Self::indexed(&index, path.into());
        }
        let files = all_in(path)?;
        let names = files.iter().filter_map(|file| file.file_name()?.to_str());
        nothing_missing(path, &missing_of(names))?;
        Ok(Self {
            directory: path.into(),
            files,
            ..Self::default()
        })
    }

    /// The files that an index names, and what it says is in them.
    fn indexed(index: &Path, directory: PathBuf) -> Result<Self, CheckpointError> {
        let tensors = read_index(index)?;
        let names: BTreeSet<&String> = tensors.values().collect();
        let is_missing = |name: &&&String| !directory.join(name).exists();
        let missing: Vec<String> = names
            .iter()
            .filter(is_missing)
            .map(|n| (*n).clone())
            .collect();
        nothing_missing(&directory, &missing)?;
        Ok(Self {
            files: names.iter().map(|name| directory.join(name)).collect(),
            elsewhere: Elsewhere {
                index: index.into(),
                opened: true,
                tensors,
            },
            directory,
            notes: Vec::new(),
        })
    }

    /// One file. It may be one of several, as an index beside it or its own name says.
    fn one(path: &Path, directory: PathBuf) -> Self {
        let mut found = Self {
            files: vec![path.into()],
            ..Self::default()
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let index = directory.join(INDEX_FILE);
        let mut is_one_of_several = numbered(&name).is_some_and(|(_, _, total)| total > 1);
        if index.exists() {
            match read_index(&index) {
                Ok(mut tensors) if tensors.values().any(|file| *file == *name) => {
                    tensors.retain(|_, file| *file != *name);
                    is_one_of_several |= !tensors.is_empty();
                    found.elsewhere = Elsewhere {
                        index,
                        opened: false,
                        tensors,
                    };
                }
                // Of another checkpoint.
                Ok(_) => {}
                Err(error) => found.notes.push(Note::Unread {
                    file: index,
                    reason: error.to_string(),
                }),
            }
        }
        if is_one_of_several {
            let file = path.into();
            found.notes.push(Note::OneOfSeveral { file });
        }
        found.directory = directory;
        found
    }
}

/// The safetensors files in a directory.
fn all_in(directory: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let read = |source| FileError::Read {
        file: directory.into(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(read)? {
        let file = entry.map_err(read)?.path();
        if file.extension().is_some_and(|e| e == "safetensors") {
            files.push(file);
        }
    }
    files.sort();
    match files.is_empty() {
        false => Ok(files),
        true => Err(CheckpointError::Empty {
            directory: directory.into(),
        }),
    }
}

/// What the name of one file of several says: `model`, 2 and 5 of `model-00002-of-00005.safetensors`.
fn numbered(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    Some((stem, number.parse().ok()?, total.parse().ok()?))
}

/// The names that are missing beside these, as far as numbered names tell.
fn missing_of<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut series: BTreeMap<(&str, u32), BTreeSet<u32>> = BTreeMap::new();
    for (stem, number, total) in names.filter_map(numbered) {
        series.entry((stem, total)).or_default().insert(number);
    }
    let mut missing = Vec::new();
    for ((stem, total), numbers) in series {
        // Some count from 0.
        let first = u32::from(!numbers.contains(&0));
        let all = first..total.saturating_add(first);
        let absent = all.filter(|number| !numbers.contains(number));
        let name = |number| format!("{stem}-{number:05}-of-{total:05}.safetensors");
        // No checkpoint has more files.
        missing.extend(absent.take(100_000).map(name));
    }
    missing
}

fn nothing_missing(directory: &Path, missing: &[String]) -> Result<(), CheckpointError> {
    match missing {
        [] => Ok(()),
        missing => Err(CheckpointError::MissingFiles {
            directory: match directory.as_os_str().is_empty() {
                true => ".".into(),
                false => directory.into(),
            },
            files: missing.iter().take(3).cloned().collect(),
            total: missing.len(),
        }),
    }
}

/// The tensors that an index names, each with its file. These must lie beside it: an index is data from
/// elsewhere, and must not make us open files anywhere else.
fn read_index(index: &Path) -> Result<BTreeMap<String, String>, CheckpointError> {
    let wrong = |reason: String| CheckpointError::Index {
        file: index.into(),
        reason,
    };
    let text =
        input::read(index, MOST_INDEX_BYTES).map_err(|error| FileError::of_input(index, error))?;
    let json: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| match not_safetensors(&text) {
            Some(found) => wrong(format!("it is {found}")),
            None => wrong(error.to_string()),
        })?;
    let map = match json {
        serde_json::Value::Object(mut json) => json.remove("weight_map"),
        _ => None,
    };
    let Some(serde_json::Value::Object(map)) = map else {
        return Err(wrong("no object \"weight_map\"".into()));
    };
    let mut tensors = BTreeMap::new();
    for (tensor, file) in map {
        match file {
            serde_json::Value::String(name)
                if Path::new(&name).file_name() == Some(name.as_ref()) =>
            {
                tensors.insert(tensor, name);
            }
            file => {
                return Err(wrong(format!(
                    "tensor {tensor:?} is said to be in {file}, which is not the name of a file \
                     beside the index"
                )));
            }
        }
    }
    match tensors.is_empty() {
        false => Ok(tensors),
        true => Err(wrong("\"weight_map\" is empty".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_names_tell_what_is_missing() {
        for (names, missing) in [
            (&["model.safetensors", "a-b-of-c.safetensors"][..], &[][..]),
            (
                &[
                    "m-00001-of-00002.safetensors",
                    "m-00002-of-00002.safetensors",
                ],
                &[],
            ),
            (
                &[
                    "m-00000-of-00002.safetensors",
                    "m-00001-of-00002.safetensors",
                ],
                &[],
            ),
            (
                &[
                    "m-00002-of-00003.safetensors",
                    "x-00001-of-00001.safetensors",
                ],
                &[
                    "m-00001-of-00003.safetensors",
                    "m-00003-of-00003.safetensors",
                ],
            ),
        ] {
            assert_eq!(missing_of(names.iter().copied()), missing, "{names:?}");
        }
        let huge = missing_of(["m-1-of-4294967295.safetensors"].into_iter());
        assert_eq!(huge.len(), 100_000);
    }
}
