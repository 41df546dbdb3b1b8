//! Where NVRTC is.
//!
//! By its name the system's loader looks for a library in LD_LIBRARY_PATH, as it was when the process started, and where
//! the system keeps libraries. A library of another place is loaded by its path. NVRTC itself asks for
//! `libnvrtc-builtins` by name in the same way: so that one is loaded before it, and the loader takes it then.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use libloading::Library;

use super::api::Api;
use super::places;
use crate::nvrtc_names::PLACE;

/// Where the library was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The system's loader found it by its name: LD_LIBRARY_PATH, or where the system keeps libraries.
    Loader,
    /// In a folder.
    Folder {
        /// What named the folder.
        named_by: String,
        /// The folder.
        folder: PathBuf,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loader => write!(
                f,
                "found by the system's loader (LD_LIBRARY_PATH, system libraries)"
            ),
            Self::Folder { named_by, folder } => write!(f, "{} ({named_by})", folder.display()),
        }
    }
}

/// The newest major release that is asked for by name, and the oldest.
const RELEASES: [u32; 2] = [20, 11];

/// Loads the library. Otherwise says where it was looked for.
pub(super) fn load() -> Result<(Place, Api), Vec<String>> {
    let mut looked_at = Vec::new();
    let asked = env::var_os(PLACE).filter(|folder| !folder.is_empty());
    if let Some(folder) = &asked {
        // No silent fallback: this one, or none.
        return from(PLACE.into(), Path::new(folder), &mut looked_at).ok_or(looked_at);
    }
    match by_name() {
        Some(Ok(api)) => return Ok((Place::Loader, api)),
        Some(Err(why)) => looked_at.push(format!("the system's loader: {why}")),
        None => looked_at.push("the system's loader does not find it".to_string()),
    }
    for (named_by, folder) in folders(
        |name| env::var_os(name).map(PathBuf::from),
        &env::current_exe().unwrap_or_default(),
    ) {
        if let Some(found) = from(named_by, &folder, &mut looked_at) {
            return Ok(found);
        }
    }
    Err(looked_at)
}

/// What the loader finds by a name, the newest release first.
fn by_name() -> Option<Result<Api, String>> {
    let [newest, oldest] = RELEASES;
    let releases = (oldest..=newest).rev();
    let mut names = releases
        .map(|release| format!("libnvrtc.so.{release}"))
        .chain(["libnvrtc.so".to_string()]);
    names.find_map(|name| {
        // SAFETY: loading runs the library's initialisers, which do nothing but set NVRTC up.
        let library = unsafe { Library::new(&name) }.ok()?;
        Some(Api::of(library).map_err(|why| format!("{name}: {why}")))
    })
}

/// The folders that may have it: of CUDA installations, and of `cargo xtask toolchain --nvrtc`, whose target directory
/// is one that this program stands in.
fn folders(variable: impl Fn(&str) -> Option<PathBuf>, program: &Path) -> Vec<(String, PathBuf)> {
    let mut folders = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = variable(name).filter(|home| !home.as_os_str().is_empty()) {
            for inside in ["lib64", "lib"] {
                folders.push((name.to_string(), home.join(inside)));
            }
        }
    }
    for around in program.ancestors().skip(1) {
        let toolchain = around.join(places::TOOLCHAIN);
        if toolchain.is_dir() {
            let folder = toolchain.join(places::NVRTC).join(places::HOME).join("lib");
            folders.push(("cargo xtask toolchain --nvrtc".to_string(), folder));
        }
    }
    folders.push((
        "the usual place".to_string(),
        PathBuf::from("/usr/local/cuda/lib64"),
    ));
    folders
}

/// Loads from a folder, or says why not.
fn from(named_by: String, folder: &Path, looked_at: &mut Vec<String>) -> Option<(Place, Api)> {
    let mut fail = |why: String| {
        looked_at.push(format!("{named_by}: {}: {why}", folder.display()));
        None
    };
    let names = match libraries(folder) {
        Ok(names) if !names.is_empty() => names,
        Ok(_) => return fail("no libnvrtc.so".into()),
        Err(why) => return fail(why),
    };
    let mut last = None;
    for name in names {
        // SAFETY: as for `by_name`; this is NVRTC or its builtins, by their names.
        match unsafe { Library::new(folder.join(&name)) } {
            // The builtins stay for as long as the process lives, as NVRTC does.
            Ok(library) => std::mem::forget(last.replace(library)),
            Err(error) => return fail(format!("{name} cannot be loaded: {error}")),
        }
    }
    match Api::of(last?) {
        Ok(api) => {
            let folder = folder.to_path_buf();
            Some((Place::Folder { named_by, folder }, api))
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
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        fs::create_dir_all(target.join(places::TOOLCHAIN)).unwrap();
        let program = target.join("debug/deps/explorer");
        let home = |name: &str| (name == "CUDA_PATH").then(|| PathBuf::from("/opt/cuda"));
        let folders: Vec<PathBuf> = folders(home, &program)
            .into_iter()
            .map(|(_, folder)| folder)
            .collect();
        let own = target.join("toolchain/nvrtc/nvidia/cu13/lib");
        assert_eq!(
            folders,
            [
                PathBuf::from("/opt/cuda/lib64"),
                "/opt/cuda/lib".into(),
                own,
                "/usr/local/cuda/lib64".into()
            ]
        );
    }

    #[test]
    fn a_folder_without_it_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let mut looked_at = Vec::new();
        let mut none = |name: &str, folder: &Path| {
            assert!(from(name.into(), folder, &mut looked_at).is_none());
        };
        none("X", directory.path());
        none("Y", &directory.path().join("none"));
        fs::write(directory.path().join("libnvrtc.so.13"), "not a library").unwrap();
        none("Z", directory.path());
        assert!(
            looked_at[0].starts_with("X: ") && looked_at[0].ends_with("no libnvrtc.so"),
            "{looked_at:?}"
        );
        assert!(looked_at[1].contains("No such file"), "{looked_at:?}");
        assert!(looked_at[2].contains("cannot be loaded"), "{looked_at:?}");
    }
}
