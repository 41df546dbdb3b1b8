//! Finding nvcc, for the build script and for `cargo xtask`; and CUDA's releases.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variables that [`find`] reads.
pub const VARIABLES: [&str; 4] = ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH"];

/// The oldest release whose compilers, nvcc and NVRTC, know every architecture of the default list, and the PTX of the
/// sources.
pub const MINIMUM: Version = Version(12, 9);

/// A CUDA release, such as 13.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    /// Reads the output of `nvcc --version`.
    pub fn parse(output: &str) -> Option<Self> {
        let release = output.split("release ").nth(1)?;
        let (major, rest) = release.split_once('.')?;
        let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(Self(major.trim().parse().ok()?, minor.parse().ok()?))
    }
}

/// An nvcc that runs and is new enough.
#[derive(Clone, Debug)]
pub struct Nvcc {
    /// The executable.
    pub path: PathBuf,
    /// Its release.
    pub version: Version,
    /// Place where nvcc was found: `NVCC`, `PATH`, ...
    pub place: String,
    /// The places before that one.
    pub passed_over: NotFound,
}

impl Nvcc {
    /// The folder with `bin`, `include` and `lib` or `lib64`.
    pub fn root(&self) -> PathBuf {
        // Debian's /usr/bin/nvcc and many PATH entries are links into the toolkit.
        let real = self
            .path
            .canonicalize()
            .unwrap_or_else(|_| self.path.clone());
        real.parent()
            .and_then(Path::parent)
            .unwrap_or(Path::new("/"))
            .to_path_buf()
    }
}

/// Everything that was looked at, for the error message.
#[derive(Clone, Debug, Default)]
pub struct NotFound {
    /// A place and what was found there, in the order of the search.
    pub looked_at: Vec<(String, String)>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no nvcc {MINIMUM} or newer. Looked at:")?;
        for (place, found) in &self.looked_at {
            writeln!(f, "  {place}: {found}")?;
        }
        Ok(())
    }
}

/// Looks for nvcc in `NVCC`, `CUDA_HOME`, `CUDA_PATH`, `PATH` and `/usr/local/cuda`; the first that
/// is new enough wins.
pub fn find() -> Result<Nvcc, NotFound> {
    find_with(|name| env::var_os(name), Path::new("/usr/local/cuda"))
}

/// [`find`] with the environment and the default toolkit given, for tests.
pub fn find_with(
    variable: impl Fn(&str) -> Option<OsString>,
    default_toolkit: &Path,
) -> Result<Nvcc, NotFound> {
    let mut missing = NotFound::default();
    let exe = format!("nvcc{}", env::consts::EXE_SUFFIX);
    let mut candidates: Vec<(String, Option<PathBuf>)> = Vec::new();
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    candidates.push(("NVCC".into(), set("NVCC").map(PathBuf::from)));
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        let path = set(name).map(|root| PathBuf::from(root).join("bin").join(&exe));
        candidates.push((name.into(), path));
    }
    let on_path = set("PATH").and_then(|path| {
        env::split_paths(&path)
            .map(|dir| dir.join(&exe))
            .find(|nvcc| nvcc.is_file())
    });
    candidates.push(("PATH".into(), on_path));
    candidates.push((
        default_toolkit.display().to_string(),
        Some(default_toolkit.join("bin").join(&exe)),
    ));

    for (place, path) in candidates {
        let found = match path {
            None if place == "PATH" => "no nvcc in any of its folders".to_string(),
            None => "not set".to_string(),
            Some(path) => match version(&path) {
                Ok(version) if version >= MINIMUM => {
                    return Ok(Nvcc {
                        path,
                        version,
                        place,
                        passed_over: missing,
                    });
                }
                Ok(version) => format!("{} is CUDA {version}, too old", path.display()),
                Err(why) => format!("{}: {why}", path.display()),
            },
        };
        missing.looked_at.push((place, found));
    }
    Err(missing)
}

/// The release of an nvcc, by asking it.
pub fn version(nvcc: &Path) -> Result<Version, String> {
    Version::parse(&says(nvcc)?).ok_or_else(|| "prints no version".into())
}

/// Version that an nvcc states: its release, and the build of that release.
pub fn says(nvcc: &Path) -> Result<String, String> {
    // `NVCC=nvcc` is a name to be looked up, not a file.
    if nvcc.components().count() > 1 && !nvcc.is_file() {
        return Err("no such file".into());
    }
    let output = Command::new(nvcc)
        .arg("--version")
        .output()
        .map_err(|error| format!("does not run: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
