//! Finding the files of a checkpoint.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use nvfp4_gemv_files::input;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::{CheckpointError, Note};
use crate::file::{FileError, not_safetensors};

/// The index in a directory of several files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// The names of indices that count where there are several: those of transformers and of diffusers.
const KNOWN_INDICES: [&str; 2] = [INDEX_FILE, "diffusion_pytorch_model.safetensors.index.json"];

/// Limit: more than any index has. The largest known, of some 370,000 tensors, has 43 MB.
const MOST_INDEX_BYTES: u64 = 256 << 20;

/// Files that a path stands for.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The directory of the configs.
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
    pub(super) tensors: WeightMap,
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
        let entries = Entries::of(path)?;
        match &entries.indices[..] {
            [] => {}
            [index] => return Self::indexed(index, path.into()),
            several => {
                return Err(CheckpointError::SeveralIndices {
                    directory: path.into(),
                    files: several.iter().map(|file| name_of(file)).collect(),
                });
            }
        }
        if entries.files.is_empty() {
            return Err(entries.nothing(path));
        }
        let names = entries.files.iter().filter_map(|f| f.file_name()?.to_str());
        let mut missing = missing_of(names);
        // Links of a hub's cache to what was not downloaded.
        for dangling in entries.files.iter().filter(|file| !file.exists()) {
            missing.add(name_of(dangling));
        }
        nothing_missing(path, missing)?;
        Ok(Self {
            directory: path.into(),
            files: entries.files,
            ..Self::default()
        })
    }

    /// The files that an index names, and what it says is in them.
    fn indexed(index: &Path, directory: PathBuf) -> Result<Self, CheckpointError> {
        let tensors = read_index(index)?;
        Ok(Self {
            files: all_there(&directory, tensors.files.iter().cloned())?,
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
        let mut is_one_of_several = numbered(&name).is_some_and(|(_, _, total)| total > 1);
        for index in KNOWN_INDICES.map(|index| directory.join(index)) {
            // A link that leads nowhere is an index that is not read.
            if index.symlink_metadata().is_err() {
                continue;
            }
            match read_index(&index) {
                Ok(mut tensors) => {
                    // Otherwise the index is another checkpoint's.
                    if let Some(this) = tensors.files.iter().position(|file| *file == *name) {
                        tensors.entries.retain(|(_, file)| *file as usize != this);
                        is_one_of_several |= !tensors.entries.is_empty();
                        found.elsewhere = Elsewhere {
                            index,
                            opened: false,
                            tensors,
                        };
                    }
                }
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

/// The paths of these files of a directory, which must all be there.
pub(super) fn all_there(
    directory: &Path,
    names: impl Iterator<Item = String>,
) -> Result<Vec<PathBuf>, CheckpointError> {
    let (mut files, mut missing) = (Vec::new(), Missing::default());
    for name in names {
        let file = directory.join(&name);
        if !file.exists() {
            missing.add(name);
        }
        files.push(file);
    }
    nothing_missing(directory, missing)?;
    Ok(files)
}

fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The files of a checkpoint that a directory has.
#[derive(Debug, Default)]
struct Entries {
    /// The safetensors files.
    files: Vec<PathBuf>,
    /// The index that counts: one of the usual name, or else all that there are.
    indices: Vec<PathBuf>,
    /// The folders.
    folders: Vec<PathBuf>,
}

impl Entries {
    /// Links are followed, as a hub's cache needs it: there, files are links to `../../blobs`. Whatever a link leads to
    /// is opened only if it is a regular file.
    fn of(directory: &Path) -> Result<Self, CheckpointError> {
        let read = |source| FileError::Read {
            file: directory.into(),
            source,
        };
        let mut found = Self::default();
        for entry in std::fs::read_dir(directory).map_err(read)? {
            let entry = entry.map_err(read)?;
            let (file, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.ends_with(".safetensors") {
                found.files.push(file);
            } else if name.ends_with(".json") && name.contains(".safetensors.index.") {
                found.indices.push(file);
            } else if entry.file_type().is_ok_and(|of| of.is_dir()) {
                found.folders.push(file);
            }
        }
        found.files.sort();
        found.indices.sort();
        found.folders.sort();
        let known = KNOWN_INDICES.map(|index| directory.join(index));
        if let Some(known) = known
            .into_iter()
            .find(|known| found.indices.contains(known))
        {
            found.indices = vec![known];
        }
        Ok(found)
    }

    /// Why there is nothing to open in this directory.
    fn nothing(&self, directory: &Path) -> CheckpointError {
        let holds_files = |folder: &&PathBuf| Self::of(folder).is_ok_and(|of| !of.files.is_empty());
        let folders = self.folders.iter().take(MOST_FOLDERS).filter(holds_files);
        CheckpointError::Empty {
            directory: directory.into(),
            folders: folders.map(|folder| name_of(folder)).collect(),
        }
    }
}

/// Limit: folders of a directory that are looked into. A pipeline of models has a few.
const MOST_FOLDERS: usize = 64;

/// The parts of the name of one file of several: `model`, 2 and 5 of `model-00002-of-00005.safetensors`.
fn numbered(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    Some((stem, number.parse().ok()?, total.parse().ok()?))
}

/// The most missing files that are named.
const NAMED: usize = 3;

/// Files that are missing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Missing {
    /// The first [`NAMED`] of them.
    first: Vec<String>,
    total: usize,
}

impl Missing {
    fn add(&mut self, name: String) {
        if self.first.len() < NAMED {
            self.first.push(name);
        }
        self.total += 1;
    }
}

/// Files that are missing beside these, as far as numbered names tell.
fn missing_of<'a>(names: impl Iterator<Item = &'a str>) -> Missing {
    let mut series: BTreeMap<(&str, u32), BTreeSet<u64>> = BTreeMap::new();
    for (stem, number, total) in names.filter_map(numbered) {
        let numbers = series.entry((stem, total)).or_default();
        numbers.insert(number.into());
    }
    let mut missing = Missing::default();
    for ((stem, total), numbers) in series {
        // Some series count from 0.
        let first = u64::from(!numbers.contains(&0));
        let all = first..first + u64::from(total);
        // A name may claim any total: what is absent is counted without going through it.
        let absent = u64::from(total) - numbers.range(all.clone()).count() as u64;
        let absent = usize::try_from(absent).unwrap_or(usize::MAX);
        missing.total = missing.total.saturating_add(absent);
        let unnamed = NAMED - missing.first.len();
        let absent = all
            .filter(|number| !numbers.contains(number))
            .take(unnamed.min(absent));
        let name = |number| format!("{stem}-{number:05}-of-{total:05}.safetensors");
        missing.first.extend(absent.map(name));
    }
    missing
}

fn nothing_missing(directory: &Path, missing: Missing) -> Result<(), CheckpointError> {
    match missing.total {
        0 => Ok(()),
        total => Err(CheckpointError::MissingFiles {
            directory: match directory.as_os_str().is_empty() {
                true => ".".into(),
                false => directory.into(),
            },
            files: missing.first,
            total,
        }),
    }
}

/// The tensors that an index names, each with its file. The files must lie beside the index: an index is data from
/// elsewhere, and must not make us open files anywhere else.
fn read_index(index: &Path) -> Result<WeightMap, CheckpointError> {
    let wrong = |reason: String| CheckpointError::Index {
        file: index.into(),
        reason,
    };
    let text =
        input::read(index, MOST_INDEX_BYTES).map_err(|error| FileError::of_input(index, error))?;
    let read = serde_json::from_slice(&text);
    let Index { tensors } = read.map_err(|error| match not_safetensors(&text) {
        Some(found) => wrong(format!("it is {found}")),
        None => wrong(error.to_string()),
    })?;
    match tensors.entries.is_empty() {
        false => Ok(tensors),
        true => Err(wrong("\"weight_map\" is empty".into())),
    }
}

/// The tensors that are read of an index; the rest of it is not kept.
struct Index {
    tensors: WeightMap,
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Whole;
        impl<'de> Visitor<'de> for Whole {
            type Value = Index;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an object \"weight_map\"")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Index, A::Error> {
                let mut tensors = None;
                while let Some(key) = from.next_key::<String>()? {
                    match &*key {
                        "weight_map" => tensors = Some(from.next_value::<WeightMap>()?),
                        _ => drop(from.next_value::<IgnoredAny>()?),
                    }
                }
                let tensors =
                    tensors.ok_or_else(|| A::Error::custom("no object \"weight_map\""))?;
                Ok(Index { tensors })
            }
        }
        from.deserialize_map(Whole)
    }
}

/// Names of tensors, each with its file. A model may have 370,000 tensors, and some hundred files.
#[derive(Debug, Default)]
pub(super) struct WeightMap {
    /// The files' names.
    pub(super) files: Vec<String>,
    /// Names in alphabetical order, each with the number of its file.
    pub(super) entries: Vec<(Box<str>, u32)>,
}

impl WeightMap {
    /// The first tensor whose name begins so, and the name of its file.
    pub(super) fn beginning(&self, begin: &str) -> Option<(&str, &str)> {
        let first = self.entries.partition_point(|(name, _)| **name < *begin);
        let (name, file) = self.entries.get(first)?;
        name.starts_with(begin)
            .then(|| (&**name, &*self.files[*file as usize]))
    }
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Files;
        impl<'de> Visitor<'de> for Files {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object \"weight_map\"")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<WeightMap, A::Error> {
                let mut map = WeightMap::default();
                let mut numbers: HashMap<String, u32> = HashMap::new();
                while let Some(tensor) = from.next_key::<String>()? {
                    let file: String = from.next_value().map_err(|error| {
                        A::Error::custom(format_args!("the file of tensor {tensor:?}: {error}"))
                    })?;
                    let number = match numbers.get(&file) {
                        Some(number) => *number,
                        None if Path::new(&file).file_name() == Some(file.as_ref()) => {
                            let number = map.files.len() as u32;
                            map.files.push(file.clone());
                            numbers.insert(file, number);
                            number
                        }
                        None => {
                            return Err(A::Error::custom(format_args!(
                                "tensor {tensor:?} is said to be in {file:?}, which is not the name of a file beside \
                                 the index"
                            )));
                        }
                    };
                    map.entries.push((tensor.into(), number));
                }
                map.entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                let mut pairs = map.entries.windows(2);
                match pairs.find(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1) {
                    None => Ok(map),
                    Some(pair) => Err(A::Error::custom(format_args!(
                        "tensor {:?} is said to be in two files",
                        pair[0].0
                    ))),
                }
            }
        }
        from.deserialize_map(Files)
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
            let found = missing_of(names.iter().copied());
            assert_eq!(found.first, missing, "{names:?}");
            assert_eq!(found.total, missing.len(), "{names:?}");
        }
    }

    /// Each would be a second's work, and gigabytes, if what is missing were listed.
    #[test]
    fn totals_of_hostile_names_are_only_counted() {
        const TOTAL: usize = u32::MAX as usize;
        let names: Vec<String> = (0..2000)
            .map(|i| format!("m{i:04}-1-of-{TOTAL}.safetensors"))
            .chain(["z-7-of-0.safetensors".into(), "z-9-of-3.safetensors".into()])
            .collect();
        let missing = missing_of(names.iter().map(String::as_str));
        assert_eq!(missing.total, 2000 * (TOTAL - 1) + 3);
        let first = [2, 3, 4].map(|n| format!("m0000-{n:05}-of-{TOTAL}.safetensors"));
        assert_eq!(missing.first, first);
        // Names that count from 0, to the last number that there is.
        let all = [0, 1, TOTAL - 1, TOTAL].map(|n| format!("m-{n}-of-{TOTAL}.safetensors"));
        assert_eq!(missing_of(all.iter().map(String::as_str)).total, TOTAL - 3);
    }
}
