//! nvcc, and the PTX that it made before.
//!
//! Compiled PTX is kept in a folder of cargo's target directory, in a [`Store`]. A file's name is
//! a hash of what its PTX depends on: see [`Compiler::key`]. A change that affects one kernel compiles that kernel
//! again. A host compiler that is replaced under the same name is not noticed: PTX depends on its headers. If several
//! processes ask for the same PTX at the same time, one compiles, and the others wait.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use nvfp4_gemv_files::store::{self, Store};

/// Environment variables that change what nvcc does, or where its host compiler finds headers.
pub(crate) const VARIABLES: [&str; 5] = [
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
];

/// How many versions of a source's PTX stay: of other branches, and of what was tried last.
const VERSIONS: usize = 4;

/// A compiler, and where its results are kept.
#[derive(Debug)]
pub(crate) struct Compiler {
    pub(crate) nvcc: PathBuf,
    /// Version of nvcc as it prints it: release and build.
    pub(crate) version: String,
    /// The values of [`VARIABLES`].
    pub(crate) environment: Vec<String>,
    /// The folder that sources are named from.
    pub(crate) root: PathBuf,
    pub(crate) kept: Store,
}

/// A source, and what it is compiled for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// The name in files.
    pub(crate) name: &'a str,
    /// Path of the source from the root.
    pub(crate) file: &'a str,
    /// A macro to define.
    pub(crate) define: Option<&'a str>,
    /// The architecture as nvcc names it, without `compute_`.
    pub(crate) arch: &'a str,
}

impl Compiler {
    /// The PTX of a source.
    ///
    /// # Panics
    /// Where the source cannot be read or does not compile.
    pub(crate) fn compile(&self, wanted: &Wanted<'_>) -> String {
        let of_source = format!("{}-{}-", wanted.name, wanted.arch);
        let file = format!("{of_source}{}.ptx", self.key(wanted));
        let kept = || self.kept.read(&file).map(|(ptx, _)| ptx);
        if let Some(ptx) = kept() {
            return ptx;
        }
        let lock = self.lock(&of_source);
        // Whoever had the lock before may have compiled it.
        if let Some(ptx) = lock.as_ref().and_then(|_| kept()) {
            return ptx;
        }
        let output = self.command(wanted).output().expect("nvcc starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let ptx = String::from_utf8(output.stdout).expect("PTX is text");
        // A full disk: the next process compiles again.
        if self.kept.write(&file, &ptx, &[]).is_ok() {
            self.remove_old(&of_source);
        }
        ptx
    }

    fn command(&self, wanted: &Wanted<'_>) -> Command {
        let mut command = Command::new(&self.nvcc);
        command
            .args(["-x", "cu", "-std=c++17", "-O3", "-lineinfo", "-ptx"])
            .arg(format!("-arch=compute_{}", wanted.arch))
            .args(wanted.define.map(|define| format!("-D{define}")))
            .args(["-o", "-"])
            .arg(self.root.join(wanted.file));
        command
    }

    /// A hash of all that the PTX depends on: nvcc's build, its environment and command line, and each source file. The
    /// source files are the source itself and each file of the repository that it includes, with names and contents.
    /// The toolkit's headers go with nvcc's build. The path of the repository is a part: line information names files
    /// by it.
    fn key(&self, wanted: &Wanted<'_>) -> String {
        let command = format!("{:?}", self.command(wanted));
        let mut files = BTreeMap::new();
        let mut left = BTreeSet::from([PathBuf::from(wanted.file)]);
        while let Some(file) = left.pop_first() {
            let path = self.root.join(&file);
            let text = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let beside = file.parent().unwrap_or(Path::new(""));
            left.extend(included(&text).map(|name| straight(&beside.join(name))));
            files.insert(file.display().to_string(), text);
            left.retain(|file| !files.contains_key(&file.display().to_string()));
        }
        let files = files.iter().flat_map(|(name, text)| [&**name, text]);
        let fixed = ["1", &*self.version, &*command];
        let environment = self.environment.iter().map(String::as_str);
        store::key(fixed.into_iter().chain(environment).chain(files))
    }

    /// Waits until no other process or thread compiles this source. None where locks are not supported.
    fn lock(&self, of_source: &str) -> Option<File> {
        fs::create_dir_all(self.kept.folder()).ok()?;
        let name = format!("{}.lock", of_source.trim_end_matches('-'));
        let lock = File::create(self.kept.folder().join(name)).ok()?;
        lock.lock().ok()?;
        Some(lock)
    }

    /// Removes all but the newest results of a source. Somebody who still wants another one compiles again.
    fn remove_old(&self, of_source: &str) {
        let Ok(entries) = fs::read_dir(self.kept.folder()) else {
            return;
        };
        let is_result = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(of_source) && name.ends_with(".ptx")
        };
        let modified = |path: &Path| {
            let meta = fs::metadata(path).and_then(|meta| meta.modified());
            meta.unwrap_or(SystemTime::UNIX_EPOCH)
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let mut results: Vec<_> = paths
            .filter(|path| is_result(path))
            .map(|path| (modified(&path), path))
            .collect();
        results.sort();
        let old = results.len().saturating_sub(VERSIONS);
        for (_, path) in &results[..old] {
            let _ = fs::remove_file(path);
        }
    }
}

/// The names of the files that a source includes by `#include "..."`, whether or not a condition leaves them out.
///
/// # Panics
/// At an `#include` of a macro, which would hide a file.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let directive = line.trim_start().strip_prefix('#')?.trim_start();
        let named = directive.strip_prefix("include")?.trim_start();
        match named.strip_prefix('"') {
            Some(name) => name.split('"').next(),
            None => {
                assert!(named.starts_with('<'), "{line}: not a file's name");
                None
            }
        }
    })
}

/// A path without `..`.
fn straight(path: &Path) -> PathBuf {
    let mut straight = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                straight.pop();
            }
            part => straight.push(part),
        }
    }
    straight
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A repository of a source and a header, and a compiler that writes down that it was called.
    struct Place(tempfile::TempDir);

    const WANTED: Wanted<'_> = Wanted {
        name: "a",
        file: "kernels/a.cuh",
        define: None,
        arch: "90a",
    };

    impl Place {
        fn new() -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            place.write(
                "kernels/a.cuh",
                "#include <cstdint>\n # include \"../b.cuh\"\n",
            );
            place.write("b.cuh", "#include \"kernels/c.cuh\"\n#include \"b.cuh\"\n");
            place.write("kernels/c.cuh", "c\n");
            place.write("other.cuh", "other\n");
            let (nvcc, log) = (place.0.path().join("nvcc"), place.0.path().join("log"));
            let script = format!(
                "#!/bin/sh\necho \"$@\" >> {}\nsleep 0.1\necho \"// ptx $@\"\ngrep -q wrong {} && exit 1\nexit 0\n",
                log.display(),
                place.0.path().join("b.cuh").display(),
            );
            place.write("script", &script);
            // Copied by another process: while a thread here starts one, a program that this one writes is "busy".
            let copy = Command::new("cp")
                .arg(place.0.path().join("script"))
                .arg(&nvcc)
                .status();
            assert!(copy.unwrap().success());
            fs::set_permissions(nvcc, fs::Permissions::from_mode(0o755)).unwrap();
            place
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn compiler(&self) -> Compiler {
            Compiler {
                nvcc: self.0.path().join("nvcc"),
                version: "13.0".into(),
                environment: vec![],
                root: self.0.path().into(),
                kept: Store::at(self.0.path().join("kept")),
            }
        }

        /// How often the compiler was called.
        fn calls(&self) -> usize {
            let log = fs::read_to_string(self.0.path().join("log"));
            log.map_or(0, |log| log.lines().count())
        }

        fn results(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.0.path().join("kept")).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths
                .filter(|path| path.extension().is_some_and(|end| end == "ptx"))
                .collect()
        }
    }

    #[test]
    fn what_was_compiled_is_not_compiled_again() {
        let place = Place::new();
        let first = place.compiler().compile(&WANTED);
        assert!(first.contains("-arch=compute_90a"), "{first}");
        assert_eq!(
            (place.compiler().compile(&WANTED), place.calls()),
            (first, 1)
        );
        // A header that the source does not include.
        place.write("other.cuh", "changed\n");
        place.compiler().compile(&WANTED);
        assert_eq!(place.calls(), 1);
    }

    #[test]
    fn whatever_changes_the_result_compiles_again() {
        let place = Place::new();
        let mut calls = 0;
        let mut compiles = |compiler: Compiler, wanted: Wanted<'_>, what: &str| {
            compiler.compile(&wanted);
            calls += 1;
            assert_eq!(place.calls(), calls, "{what}");
        };
        compiles(place.compiler(), WANTED, "the first");
        for file in ["kernels/a.cuh", "b.cuh", "kernels/c.cuh"] {
            place.write(
                file,
                &format!(
                    "{}// more\n",
                    fs::read_to_string(place.0.path().join(file)).unwrap()
                ),
            );
            compiles(place.compiler(), WANTED, file);
        }
        let other = |change: fn(&mut Compiler)| {
            let mut compiler = place.compiler();
            change(&mut compiler);
            compiler
        };
        compiles(
            other(|c| c.version = "13.0 other build".into()),
            WANTED,
            "version",
        );
        compiles(
            other(|c| c.environment = vec!["-G".into()]),
            WANTED,
            "environment",
        );
        compiles(
            place.compiler(),
            Wanted {
                arch: "100a",
                ..WANTED
            },
            "architecture",
        );
        compiles(
            place.compiler(),
            Wanted {
                define: Some("X"),
                ..WANTED
            },
            "macro",
        );
        let linked = place.0.path().join("linked");
        std::os::unix::fs::symlink(place.0.path(), &linked).unwrap();
        let elsewhere = Compiler {
            root: linked,
            ..place.compiler()
        };
        compiles(elsewhere, WANTED, "the repository's place");
    }

    #[test]
    fn those_who_ask_at_once_compile_once() {
        let place = Place::new();
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| place.compiler().compile(&WANTED)))
                .collect();
            let results = threads.into_iter().map(|thread| thread.join().unwrap());
            results.collect::<BTreeSet<_>>()
        });
        assert_eq!((results.len(), place.calls()), (1, 1));
    }

    #[test]
    fn damaged_results_and_failures_are_not_taken() {
        let place = Place::new();
        let right = place.compiler().compile(&WANTED);
        let file = &place.results()[0];
        let whole = fs::read(file).unwrap();
        fs::write(file, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(
            (place.compiler().compile(&WANTED), place.calls()),
            (right, 2)
        );
        assert_eq!(fs::read(file).unwrap(), whole);
        place.write("b.cuh", "wrong\n");
        for _ in 0..2 {
            let fails = || place.compiler().compile(&WANTED);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fails)).is_err());
        }
        assert_eq!((place.calls(), place.results().len()), (4, 1));
    }

    #[test]
    fn old_versions_go() {
        let place = Place::new();
        for version in 0..VERSIONS + 3 {
            place.write("b.cuh", &format!("{version}\n"));
            place.compiler().compile(&WANTED);
        }
        place.compiler().compile(&Wanted {
            arch: "100a",
            ..WANTED
        });
        assert_eq!(place.results().len(), VERSIONS + 1);
        place.compiler().compile(&WANTED);
        assert_eq!(place.calls(), VERSIONS + 4, "the newest stays");
    }

    #[test]
    #[should_panic(expected = "not a file's name")]
    fn an_included_macro_is_refused() {
        included("#include NAME").for_each(drop);
    }
}
