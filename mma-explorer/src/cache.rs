//! What was compiled before, on disk: a file for each source, options and NVRTC.
//!
//! A file is one line of JSON, which says how long its parts are and what they hash to, and the parts. It appears whole,
//! by a rename. One that is damaged counts as none, and is replaced.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::arch::Arch;
use crate::nvrtc::{Compiled, Nvrtc, NvrtcError, Source, Stage};

/// The environment variable that names the folder.
pub const FOLDER: &str = "MMA_EXPLORER_CACHE";

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: Option<PathBuf>,
}

/// Where a compilation's result came from, and how long that took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// NVRTC compiled it.
    Compiled(Duration),
    /// It was in the cache.
    Cached(Duration),
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    ptx: usize,
    cubin: usize,
    sha256: String,
}

impl Cache {
    /// The user's: the folder that `MMA_EXPLORER_CACHE` names, or `mma-explorer` in `XDG_CACHE_HOME` or `~/.cache`. None
    /// where the environment has neither; nothing is kept then.
    pub fn of_user() -> Self {
        Self {
            folder: user_folder(|name| env::var_os(name).map(PathBuf::from)),
        }
    }

    /// One in a folder, which is made when something is kept.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: Some(folder.into()),
        }
    }

    /// None: everything is compiled.
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// Its folder.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Takes what was compiled before, or compiles and keeps it. That it cannot be kept is no error.
    ///
    /// # Errors
    /// As [`Nvrtc::compile`].
    pub fn compile(
        &self,
        nvrtc: &Nvrtc,
        source: &Source,
        arch: Arch,
        options: &[String],
        stage: Stage,
    ) -> Result<(Compiled, Origin), NvrtcError> {
        let start = std::time::Instant::now();
        let made_by = format!("{} {}", nvrtc.version(), nvrtc.build());
        let file = self.folder.as_ref().map(|folder| {
            folder.join(format!(
                "{}.kernel",
                key(&made_by, source, arch, options, stage)
            ))
        });
        if let Some(kept) = file.as_deref().and_then(read) {
            return Ok((kept, Origin::Cached(start.elapsed())));
        }
        let (compiled, took) = nvrtc.compile(source, arch, options, stage)?;
        if let Some(file) = file {
            // A full disk, or a home that may not be written to: the next run compiles again.
            let _ = write(&file, &compiled);
        }
        Ok((compiled, Origin::Compiled(took)))
    }
}

fn user_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let value = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
    value(FOLDER).or_else(|| {
        let caches = value("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
        let caches = caches.or_else(|| Some(value("HOME")?.join(".cache")));
        Some(caches?.join("mma-explorer"))
    })
}

/// Of everything that the result depends on. Each part is preceded by its length, so that no two lists of parts hash the
/// same text.
fn key(made_by: &str, source: &Source, arch: Arch, options: &[String], stage: Stage) -> String {
    let (arch, stage) = (arch.to_string(), format!("{stage:?}"));
    let mut parts = vec!["1", made_by, &arch, &stage, &source.name, &source.text];
    parts.extend(options.iter().map(String::as_str));
    parts.extend(
        source
            .headers
            .iter()
            .flat_map(|(name, text)| [name.as_str(), text]),
    );
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(file: &Path) -> Option<Compiled> {
    let bytes = fs::read(file).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
    let body = &bytes[end + 1..];
    if head.ptx.checked_add(head.cubin)? != body.len() || hex(&Sha256::digest(body)) != head.sha256
    {
        return None;
    }
    let (ptx, cubin) = body.split_at(head.ptx);
    Some(Compiled {
        ptx: String::from_utf8(ptx.to_vec()).ok()?,
        cubin: cubin.to_vec(),
    })
}

fn write(file: &Path, compiled: &Compiled) -> std::io::Result<()> {
    let body = [compiled.ptx.as_bytes(), &compiled.cubin].concat();
    let head = Head {
        ptx: compiled.ptx.len(),
        cubin: compiled.cubin.len(),
        sha256: hex(&Sha256::digest(&body)),
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder)?;
    let mut partial = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut partial, &head)?;
    partial.write_all(b"\n")?;
    partial.write_all(&body)?;
    partial.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        Source {
            name: "a.cu".into(),
            text: "one".into(),
            headers: vec![("b.cuh".into(), "two".into())],
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
        header.headers[0].1 = "other".into();
        // The same letters, cut in another place.
        let mut moved = source();
        moved.headers[0] = ("b.cuht".into(), "wo".into());
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
    fn damaged_files_count_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("below/x.kernel");
        let compiled = Compiled {
            ptx: "// ptx\n".into(),
            cubin: vec![0, 10, 255],
        };
        assert_eq!(read(&file), None);
        write(&file, &compiled).unwrap();
        assert_eq!(read(&file).as_ref(), Some(&compiled));
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(read(&file), None);
        let mut other = whole.clone();
        *other.last_mut().unwrap() ^= 1;
        fs::write(&file, &other).unwrap();
        assert_eq!(read(&file), None);
        fs::write(&file, b"").unwrap();
        assert_eq!(read(&file), None);
        write(&file, &compiled).unwrap();
        assert_eq!(read(&file), Some(compiled));
        let left = fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no partial file stays");
    }

    #[test]
    fn the_folder_is_the_users() {
        let with = |variables: &[(&str, &str)]| {
            user_folder(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| PathBuf::from(value))
            })
        };
        assert_eq!(with(&[]), None);
        assert_eq!(
            with(&[("HOME", "/h")]),
            Some("/h/.cache/mma-explorer".into())
        );
        let both = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x")];
        assert_eq!(with(&both), Some("/x/mma-explorer".into()));
        let relative = [("HOME", "/h"), ("XDG_CACHE_HOME", "x")];
        assert_eq!(with(&relative), Some("/h/.cache/mma-explorer".into()));
        assert_eq!(
            with(&[("MMA_EXPLORER_CACHE", "/c"), ("HOME", "/h")]),
            Some("/c".into())
        );
    }
}
