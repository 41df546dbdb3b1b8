//! Search for NVRTC, in the order that the documentation of the library's module `jit` has.
//!
//! By its name the system's loader looks for a library in LD_LIBRARY_PATH, as it was when the process started, and
//! where the system keeps libraries. A library of another place is loaded by its path. NVRTC itself asks for
//! `libnvrtc-builtins` by name in the same way: so that one is loaded before it, and the loader takes it then.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use nvfp4_gemv_files::loader::{self, NotLoaded};
use nvfp4_gemv_files::printable;
use nvfp4_gemv_targets::nvcc::MINIMUM;
use nvfp4_gemv_targets::places::{HOME, NVRTC, TOOLCHAIN};

use crate::api::Api;
use crate::{Names, NvrtcError};

/// Place where the library was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The system's loader found it by its name: LD_LIBRARY_PATH, or where the system keeps libraries.
    Loader,
    /// In a folder.
    Folder {
        /// The variable, for example, that named the folder.
        named_by: String,
        /// The folder.
        folder: PathBuf,
    },
}

impl Place {
    /// Its folder, where this is known.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Loader => None,
            Self::Folder { folder, .. } => Some(folder),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loader => write!(
                f,
                "found by the system's loader (LD_LIBRARY_PATH, system libraries)"
            ),
            Self::Folder { named_by, folder } => {
                write!(f, "{} ({named_by})", printable::path(folder))
            }
        }
    }
}

/// The major releases that are asked for by name: up to one that is not there yet, from that of [`MINIMUM`] on.
const NEWEST_BY_NAME: u32 = 20;

/// The name without a release, which installations for developers have.
const NAME: &str = "libnvrtc.so";

/// A library that was loaded; or what was looked at, and why it is none.
pub(super) type Candidate = Result<(Place, Api), String>;

/// Loads the library.
pub(super) fn load(names: &Names) -> Result<(Place, Api), NvrtcError> {
    let asked = env::var_os(names.place).filter(|folder| !folder.is_empty());
    if let Some(folder) = &asked {
        // No silent fallback: this one, or none.
        return first(std::iter::once(from(names.place, Path::new(folder))));
    }
    let folders = folders(|name| env::var_os(name).map(PathBuf::from), names.target);
    let in_folders = folders
        .into_iter()
        .map(|(named_by, folder)| from(named_by, &folder));
    first(by_name().chain(in_folders))
}

/// The first one that is new enough. Later ones are not loaded.
pub(super) fn first(
    candidates: impl Iterator<Item = Candidate>,
) -> Result<(Place, Api), NvrtcError> {
    let (mut looked_at, mut too_old) = (Vec::new(), None);
    for candidate in candidates {
        match candidate {
            Ok((place, api)) => match api.version() {
                Ok(version) if version >= MINIMUM => return Ok((place, api)),
                Ok(version) => {
                    too_old.get_or_insert(NvrtcError::TooOld {
                        version: version.to_string(),
                        needed: MINIMUM.to_string(),
                        place: place.to_string(),
                    });
                }
                Err(why) => looked_at.push(format!("{place}: {why}")),
            },
            Err(why) => looked_at.push(why),
        }
    }
    Err(too_old.unwrap_or(NvrtcError::Missing { looked_at }))
}

/// Libraries that the loader finds by a name, the newest release first.
fn by_name() -> impl Iterator<Item = Candidate> {
    let releases = (MINIMUM.0..=NEWEST_BY_NAME).rev();
    let names = releases
        .map(|release| format!("libnvrtc.so.{release}"))
        .chain([NAME.to_string()]);
    names.filter_map(|name| {
        let by_loader = |why: String| format!("the system's loader: {why}");
        // SAFETY: this is NVRTC, by its name, whose initialisers do nothing but set it up.
        match unsafe { loader::by_name(&name) } {
            Ok(library) => Some(match Api::kept(library) {
                Ok(api) => Ok((Place::Loader, api)),
                Err(why) => Err(by_loader(format!("{name}: {why}"))),
            }),
            // One name is enough for the message about names that nobody has.
            Err(NotLoaded::NotFound(_)) if name != NAME => None,
            // A library that is there may lack another one that it needs.
            Err(error) => Some(Err(by_loader(error.why()))),
        }
    })
}

/// The folders that may have it, of CUDA installations; and of `cargo xtask toolchain --nvrtc`, in the target directory
/// of the repository that a program of it was built in. No folder depends on where the program lies: around a program
/// in a folder that others may write to, they could put a library of theirs.
fn folders(
    variable: impl Fn(&str) -> Option<PathBuf>,
    target: Option<&str>,
) -> Vec<(&'static str, PathBuf)> {
    let mut folders = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = variable(name).filter(|home| !home.as_os_str().is_empty()) {
            for inside in ["lib64", "lib"] {
                folders.push((name, home.join(inside)));
            }
        }
    }
    if let Some(target) = target.map(Path::new).filter(|target| target.is_absolute()) {
        let installed = target.join(TOOLCHAIN).join(NVRTC).join(HOME).join("lib");
        folders.push(("cargo xtask toolchain --nvrtc", installed));
    }
    folders.push(("the usual place", PathBuf::from("/usr/local/cuda/lib64")));
    folders
}

/// Loads from a folder, or says why not.
fn from(named_by: &str, folder: &Path) -> Candidate {
    let fail = |why: String| Err(format!("{named_by}: {}: {why}", printable::path(folder)));
    let names = match libraries(folder) {
        Ok(names) if !names.is_empty() => names,
        Ok(_) => return fail("no libnvrtc.so".into()),
        Err(why) => return fail(why),
    };
    let mut last = None;
    for name in names {
        // SAFETY: as for `by_name`; this is NVRTC or its builtins, by their names.
        match unsafe { loader::at(&folder.join(&name)) } {
            // The builtins stay for as long as the process lives, as NVRTC does.
            Ok(library) => std::mem::forget(last.replace(library)),
            Err(why) => {
                let name = printable::text(&name);
                return fail(format!("{name} cannot be loaded: {why}"));
            }
        }
    }
    let Some(library) = last else {
        return fail("no libnvrtc.so".into());
    };
    match Api::kept(library) {
        Ok(api) => {
            let (named_by, folder) = (named_by.to_string(), folder.to_path_buf());
            Ok((Place::Folder { named_by, folder }, api))
        }
        Err(why) => fail(why),
    }
}

/// The library's files, in the order in which they are to be loaded: builtins first, then the newest NVRTC.
fn libraries(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().map(str::to_string))
        .collect();
    Ok(in_order(&names))
}

fn in_order(names: &[String]) -> Vec<String> {
    // `libnvrtc.alt.so.13` compiles the same with less memory, and is not the one that is asked for by name.
    let newest = |start: &str| {
        let mut found: Vec<(Vec<u32>, &String)> = names
            .iter()
            .filter_map(|name| {
                let version = name.strip_prefix(start)?;
                let numbers = version.split('.').skip(1).map(|number| number.parse().ok());
                Some((numbers.collect::<Option<Vec<u32>>>()?, name))
            })
            .collect();
        found.sort();
        found.pop().map(|(_, name)| name.clone())
    };
    match newest("libnvrtc.so") {
        Some(library) => newest("libnvrtc-builtins.so")
            .into_iter()
            .chain([library])
            .collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_loaded_builtins_first_and_the_newest() {
        let names =
            |names: &[&str]| -> Vec<String> { names.iter().map(|name| name.to_string()).collect() };
        let wheel = names(&[
            "libnvrtc-builtins.alt.so.13.0",
            "libnvrtc-builtins.so.13.0",
            "libnvrtc.alt.so.13",
            "libnvrtc.so.13",
        ]);
        assert_eq!(
            in_order(&wheel),
            ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]
        );
        let installation = names(&[
            "libnvrtc.so",
            "libnvrtc.so.9",
            "libnvrtc.so.12.9.86",
            "libnvrtc.so.12",
        ]);
        assert_eq!(in_order(&installation), ["libnvrtc.so.12.9.86"]);
        assert!(in_order(&names(&["libnvrtc-builtins.so.13.0", "libcudart.so.13"])).is_empty());
    }

    #[test]
    fn installations_come_before_the_target_directory() {
        let home = |name: &str| (name == "CUDA_PATH").then(|| PathBuf::from("/opt/cuda"));
        let folders = |target| -> Vec<PathBuf> {
            let all = folders(home, target).into_iter();
            all.map(|(_, folder)| folder).collect()
        };
        let installed = PathBuf::from("/r/target/toolchain/nvrtc/nvidia/cu13/lib");
        let of_cuda = [PathBuf::from("/opt/cuda/lib64"), "/opt/cuda/lib".into()];
        let usual = PathBuf::from("/usr/local/cuda/lib64");
        let [lib64, lib] = of_cuda.clone();
        let with_target = [lib64, lib, installed, usual.clone()];
        assert_eq!(folders(Some("/r/target")), with_target);
        let [lib64, lib] = of_cuda;
        let without = [lib64, lib, usual];
        assert_eq!(folders(None), without);
        assert_eq!(folders(Some("target")), without, "of wherever one stands");
    }

    /// Prints the messages of the process in which the test below looks.
    #[cfg(target_os = "linux")]
    #[test]
    #[ignore = "it is the process that another test starts"]
    fn looks_by_name() {
        by_name()
            .filter_map(Result::err)
            .for_each(|why| println!("{why}"));
    }

    /// Whether or not there is another one that will do.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_wrong_with_a_library_of_the_name_is_said() {
        use std::process::Command;
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("libnvrtc.so.13");
        let says = |expected: &str| {
            // The loader reads its variable when a process starts.
            let looks = concat!(module_path!(), "::looks_by_name");
            let (_, looks) = looks.split_once("::").unwrap();
            let looked = Command::new(env::current_exe().unwrap())
                .args(["--exact", looks, "--ignored", "--nocapture"])
                .env("LD_LIBRARY_PATH", directory.path())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&looked.stdout);
            assert!(looked.status.success(), "{said}");
            let expected = format!("the system's loader: {expected}");
            assert!(said.contains(&expected), "{expected}: {said}");
        };
        // The system's own words: too short, or no ELF file.
        fs::write(&library, "not a library").unwrap();
        says(&format!("{}: ", library.display()));
        // A pipe would be waited for.
        fs::remove_file(&library).unwrap();
        let made = Command::new("mkfifo").arg(&library).status().unwrap();
        assert!(made.success());
        says(&format!(
            "LD_LIBRARY_PATH: {} is not a regular file",
            library.display()
        ));
    }

    #[test]
    fn a_folder_without_it_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let says = |folder: &Path| from("X", folder).map(|(place, _)| place).unwrap_err();
        let says_here = || says(directory.path());
        let why = says_here();
        assert!(
            why.starts_with("X: ") && why.ends_with("no libnvrtc.so"),
            "{why}"
        );
        let why = says(&directory.path().join("no\u{1b}ne"));
        assert!(
            why.contains("No such file") && why.contains(r"no\u{1b}ne"),
            "{why}"
        );
        fs::write(directory.path().join("libnvrtc.so.13"), "not a library").unwrap();
        let why = says_here();
        assert!(why.contains("libnvrtc.so.13 cannot be loaded: "), "{why}");
        // The reason that the system gives, and not which of its functions failed.
        let (_, reason) = why.split_once("cannot be loaded: ").unwrap_or_default();
        assert!(reason.contains("libnvrtc.so.13: "), "{why}");
        #[cfg(unix)]
        {
            let made = std::process::Command::new("mkfifo")
                .arg(directory.path().join("libnvrtc.so.14"))
                .status();
            assert!(made.unwrap().success());
            let why = says_here();
            assert!(
                why.contains("libnvrtc.so.14 cannot be loaded: it is not a regular file"),
                "{why}"
            );
        }
    }
}
