//! Results of earlier compilations, on disk: a file for each source, options and NVRTC.

use std::env;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvfp4_gemv_files::store::{self, Store};

use crate::arch::Arch;
use crate::{Compiled, Names, Nvrtc, NvrtcError, Source, Stage};

/// The value of the environment variable that asks for no cache.
const OFF: &str = "off";

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub struct Cache {
    store: Option<Store>,
}

/// The place that a compilation's result came from, and how long that took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// NVRTC compiled it.
    Compiled(Duration),
    /// The result was in the cache.
    Cached(Duration),
}

impl Cache {
    /// The user's: the folder that the package's variable names, or one in `XDG_CACHE_HOME` or `~/.cache`. None
    /// where the environment has neither, or the variable is `off`; nothing is kept then. A folder that the variable
    /// does not name is used only where it is this user's, and nobody else may write to it.
    pub fn of_user(names: &Names) -> Self {
        Self {
            store: user_store(names, |name| env::var_os(name).map(PathBuf::from)),
        }
    }

    /// A cache in a folder, which is made when something is kept.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            store: Some(Store::at(folder)),
        }
    }

    /// No cache: everything is compiled.
    pub fn none() -> Self {
        Self { store: None }
    }

    /// Its folder.
    pub fn folder(&self) -> Option<&Path> {
        self.store.as_ref().map(Store::folder)
    }

    /// Why its folder is not used, if it is not: it is another user's, or others may write to it, and nobody has named
    /// it.
    pub fn refused(&self) -> Option<&'static str> {
        self.store.as_ref()?.refused()
    }

    /// Takes what was compiled before, or compiles and keeps it. That it cannot be kept is no error.
    ///
    /// # Errors
    /// An architecture that this NVRTC does not know, and a source that does not compile.
    pub fn compile(
        &self,
        nvrtc: &Nvrtc,
        source: &Source,
        arch: Arch,
        options: &[String],
        stage: Stage,
    ) -> Result<(Compiled, Origin), NvrtcError> {
        self.compile_telling(nvrtc, source, arch, options, stage, || ())
    }

    /// Does as [`compile`](Self::compile), and calls `begins` before it compiles.
    ///
    /// # Errors
    /// As [`compile`](Self::compile)'s.
    pub fn compile_telling(
        &self,
        nvrtc: &Nvrtc,
        source: &Source,
        arch: Arch,
        options: &[String],
        stage: Stage,
        begins: impl FnOnce(),
    ) -> Result<(Compiled, Origin), NvrtcError> {
        let start = Instant::now();
        let place = self.store.as_ref().map(|store| {
            let made_by = format!("{} {}", nvrtc.version(), nvrtc.build());
            let key = key(&made_by, source, arch, options, stage);
            (store, format!("{key}.kernel"))
        });
        let kept = place.as_ref().and_then(|(store, file)| store.read(file));
        // There is no kernel without code.
        let is_whole =
            |ptx: &str, cubin: &[u8]| !ptx.is_empty() && cubin.is_empty() == (stage == Stage::Ptx);
        let kept = kept.filter(|(ptx, cubin)| is_whole(ptx, cubin));
        if let Some((ptx, cubin)) = kept {
            let took = start.elapsed();
            return Ok((Compiled { ptx, cubin }, Origin::Cached(took)));
        }
        begins();
        let (compiled, took) = nvrtc.compile(source, arch, options, stage)?;
        if let Some((store, file)) = place {
            // A full disk, or a home that may not be written to: the next run compiles again.
            let _ = store.write(&file, &compiled.ptx, &compiled.cubin);
        }
        Ok((compiled, Origin::Compiled(took)))
    }
}

fn user_store(names: &Names, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<Store> {
    let value = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
    if variable(names.cache).is_some_and(|value| value.as_os_str() == OFF) {
        return None;
    }
    if let Some(named) = value(names.cache) {
        return Some(Store::at(named));
    }
    let caches = value("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
    let caches = caches.or_else(|| Some(value("HOME")?.join(".cache")));
    Some(Store::private(caches?.join(names.cache_folder)))
}

/// The key: a hash of everything that the result depends on.
fn key(made_by: &str, source: &Source, arch: Arch, options: &[String], stage: Stage) -> String {
    let (arch, stage) = (arch.to_string(), format!("{stage:?}"));
    let mut parts = vec!["2", made_by, &arch, &stage, &source.name, &source.text];
    parts.extend(options.iter().map(String::as_str));
    parts.extend(
        source
            .headers
            .iter()
            .flat_map(|(name, text)| [name.as_str(), text]),
    );
    store::key(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::NAMES;

    fn source() -> Source {
        Source {
            name: "a.cu".into(),
            text: "one".into(),
            headers: [("b.cuh".into(), "two".into())].into(),
        }
    }

    #[test]
    fn keys_depend_on_everything() {
        let arch = |name: &str| name.parse::<Arch>().unwrap();
        let base = key("13.0", &source(), arch("90a"), &["-x".into()], Stage::Ptx);
        assert_eq!(
            base,
            key("13.0", &source(), arch("90a"), &["-x".into()], Stage::Ptx)
        );
        let mut text = source();
        text.text = "other".into();
        let mut header = source();
        header.headers = [("b.cuh".into(), "other".into())].into();
        // A header whose name and text have the same letters, cut in another place.
        let mut moved = source();
        moved.headers = [("b.cuht".into(), "wo".into())].into();
        let others = [
            key("13.1", &source(), arch("90a"), &["-x".into()], Stage::Ptx),
            key("13.0", &source(), arch("90"), &["-x".into()], Stage::Ptx),
            key("13.0", &source(), arch("90a"), &["-y".into()], Stage::Ptx),
            key("13.0", &source(), arch("90a"), &["-x".into()], Stage::Cubin),
            key("13.0", &text, arch("90a"), &["-x".into()], Stage::Ptx),
            key("13.0", &header, arch("90a"), &["-x".into()], Stage::Ptx),
            key("13.0", &moved, arch("90a"), &["-x".into()], Stage::Ptx),
        ];
        let distinct: std::collections::BTreeSet<_> = others.iter().chain([&base]).collect();
        assert_eq!(distinct.len(), 8);
    }

    #[test]
    fn the_folder_is_the_users() {
        let with = |variables: &[(&str, &str)]| {
            let store = user_store(&NAMES, |name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| PathBuf::from(value))
            });
            store.map(|store| store.folder().to_owned())
        };
        assert_eq!(with(&[]), None);
        assert_eq!(
            with(&[("HOME", "/h")]),
            Some(Path::new("/h/.cache").join(NAMES.cache_folder))
        );
        let both = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x")];
        assert_eq!(with(&both), Some(Path::new("/x").join(NAMES.cache_folder)));
        let relative = [("HOME", "/h"), ("XDG_CACHE_HOME", "x")];
        let of_home = Path::new("/h/.cache").join(NAMES.cache_folder);
        assert_eq!(with(&relative), Some(of_home.clone()));
        let named = |value| with(&[(NAMES.cache, value), ("HOME", "/h")]);
        assert_eq!(named("/c"), Some("/c".into()));
        assert_eq!(named(""), Some(of_home));
        assert_eq!(named("off"), None);
    }

    /// Who names a folder may share it.
    #[cfg(unix)]
    #[test]
    fn only_a_folder_that_nobody_named_must_be_the_users() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".cache").join(NAMES.cache_folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = |variable: &str, value: &Path| {
            let store = user_store(&NAMES, |name| (name == variable).then(|| value.to_owned()));
            Cache { store }.refused()
        };
        let why = Some("others may write to it");
        assert_eq!(refused("HOME", home.path()), why);
        assert_eq!(refused("XDG_CACHE_HOME", &home.path().join(".cache")), why);
        assert_eq!(refused(NAMES.cache, &folder), None);
    }
}
