//! NVRTC, NVIDIA's compiler as a library: found and loaded when a compilation's result is asked for, never before. Its
//! results are [kept on disk](cache), by NVRTC's build among others: so NVRTC is loaded for results that are kept, too.
//!
//! This package knows nothing of what is compiled. The library compiles kernels with it, under feature `jit`, and
//! `mma-explorer` instructions; each says its own [`Names`].

mod api;
pub mod arch;
pub mod cache;
mod error;
mod find;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvfp4_gemv_targets::nvcc::Version;
use serde::Serialize;

use self::api::{Api, COMPILATION, Get, Handle, INVALID_OPTION, Size, Status};
use self::arch::Arch;

pub use error::NvrtcError;
pub use find::Place;

/// Names that belong to the package that compiles with NVRTC.
#[derive(Debug)]
pub struct Names {
    /// The environment variable that names NVRTC's folder. It comes before all other places.
    pub place: &'static str,
    /// The environment variable that names the cache's folder.
    pub cache: &'static str,
    /// The cache's folder in that of the user's caches.
    pub cache_folder: &'static str,
    /// The target directory of the repository that the package was built in, to look for NVRTC in. A library has none:
    /// the directory may be anybody's on the machine where its program runs.
    pub target: Option<&'static str>,
    /// The command or function that says which NVRTC is used.
    pub info: &'static str,
    /// Advice on where NVRTC comes from.
    pub install: &'static str,
}

/// A source with the headers that it includes by name, all of them embedded in this program or made by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name that messages call it by.
    pub name: String,
    /// CUDA C++.
    pub text: String,
    /// Name in `#include`, and text.
    pub headers: Arc<[(String, String)]>,
}

/// Results of a compilation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// Assembly, for the simulator and for people.
    pub ptx: String,
    /// Machine code: an ELF file, for the driver and the disassembler. Empty where only PTX was asked for.
    pub cubin: Vec<u8>,
}

/// The result that a compilation ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Stage {
    /// PTX.
    Ptx,
    /// PTX, and machine code.
    Cubin,
}

/// A loaded NVRTC.
#[derive(Debug)]
pub struct Nvrtc {
    api: Api,
    place: Place,
    version: Version,
    build: String,
    known: Vec<u32>,
}

impl Nvrtc {
    /// Loads it. What is loaded stays so for as long as the process lives: a package does this once.
    ///
    /// # Errors
    /// [`NvrtcError::Missing`] and [`NvrtcError::TooOld`] where there is none, and [`NvrtcError::Call`] of one that
    /// does not work.
    pub fn load(names: &Names) -> Result<Self, NvrtcError> {
        let (place, api) = find::load(names)?;
        Self::new(place, api)
    }

    fn new(place: Place, api: Api) -> Result<Self, NvrtcError> {
        let version = api.version()?;
        let mut count = 0;
        // SAFETY: a place for a number.
        api.check("nvrtcGetNumSupportedArchs", unsafe {
            (api.count_of_archs)(&mut count)
        })?;
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= MOST_ARCHS);
        let count = count.ok_or_else(|| absurd("nvrtcGetNumSupportedArchs", "numbers"))?;
        let mut known = vec![0; count];
        // SAFETY: as many places as the library has just said that it fills.
        api.check("nvrtcGetSupportedArchs", unsafe {
            (api.archs)(known.as_mut_ptr())
        })?;
        let mut nvrtc = Self {
            api,
            place,
            version,
            build: String::new(),
            known: known.iter().map(|arch: &c_int| *arch as u32).collect(),
        };
        nvrtc.build = nvrtc.ask_build()?;
        Ok(nvrtc)
    }

    /// The library tells its release alone. Which build of it this is stands in the PTX that it makes.
    fn ask_build(&self) -> Result<String, NvrtcError> {
        let empty = Source {
            name: "empty.cu".into(),
            text: r#"extern "C" __global__ void empty() {}"#.into(),
            headers: Arc::default(),
        };
        let compiled = self.run(&empty, None, &[], Stage::Ptx)?;
        let comments = compiled
            .ptx
            .lines()
            .filter_map(|line| line.strip_prefix("// "));
        let words = comments.filter_map(|line| {
            let (_, build) = line
                .split_once("Compiler Build ID: ")
                .or_else(|| line.split_once(", V"))?;
            Some(build.trim().to_string())
        });
        Ok(words.collect::<Vec<_>>().join(" "))
    }

    /// The place where the library was found.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Its release, such as 13.0.
    pub fn version(&self) -> String {
        self.version.to_string()
    }

    /// Major and minor of its release.
    pub fn release(&self) -> (u32, u32) {
        (self.version.0, self.version.1)
    }

    /// Its build, such as `CL-36424714 13.0.88`: its output depends on the build, beside the release.
    pub fn build(&self) -> &str {
        &self.build
    }

    /// The numbers of the architectures that it compiles for.
    pub fn architectures(&self) -> &[u32] {
        &self.known
    }

    /// Compiles a source, and says how long that took.
    ///
    /// # Errors
    /// An architecture that this NVRTC does not know, and a source that does not compile.
    pub fn compile(
        &self,
        source: &Source,
        arch: Arch,
        options: &[String],
        stage: Stage,
    ) -> Result<(Compiled, Duration), NvrtcError> {
        if !self.known.contains(&arch.number) {
            return Err(NvrtcError::Architecture {
                arch,
                version: self.version(),
                known: self.known.clone(),
            });
        }
        let start = Instant::now();
        let compiled = self.run(source, Some(arch), options, stage)?;
        Ok((compiled, start.elapsed()))
    }

    fn run(
        &self,
        source: &Source,
        arch: Option<Arch>,
        options: &[String],
        stage: Stage,
    ) -> Result<Compiled, NvrtcError> {
        let program = Program::new(&self.api, source)?;
        let kind = match stage {
            Stage::Ptx => "compute",
            Stage::Cubin => "sm",
        };
        let arch_option = arch.map(|arch| format!("{ARCHITECTURE}={kind}_{arch}"));
        let options: Vec<CString> = arch_option
            .iter()
            .chain(options)
            .map(|option| text(option))
            .collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, and so are the options, which end with zero.
        let result = unsafe {
            (self.api.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr())
        };
        if result != 0 {
            return Err(self.failure(result, source, arch, program.log()));
        }
        let ptx = program.bytes("nvrtcGetPTX", self.api.ptx_size, self.api.ptx)?;
        let cubin = match stage {
            Stage::Ptx => Vec::new(),
            Stage::Cubin => program.bytes("nvrtcGetCUBIN", self.api.cubin_size, self.api.cubin)?,
        };
        let end = ptx.iter().position(|byte| *byte == 0).unwrap_or(ptx.len());
        Ok(Compiled {
            ptx: String::from_utf8_lossy(&ptx[..end]).into_owned(),
            cubin,
        })
    }

    /// Why a source was not compiled.
    fn failure(
        &self,
        result: Status,
        source: &Source,
        arch: Option<Arch>,
        log: String,
    ) -> NvrtcError {
        match (result, arch) {
            // Other options beside the architecture are right or wrong for all architectures.
            (INVALID_OPTION, Some(arch)) if log.is_empty() || log.contains(ARCHITECTURE) => {
                NvrtcError::Architecture {
                    arch,
                    version: self.version(),
                    known: self.known.clone(),
                }
            }
            (COMPILATION, Some(arch)) => NvrtcError::Source {
                name: source.name.clone(),
                arch,
                log,
            },
            (other, _) => NvrtcError::Call {
                call: "nvrtcCompileProgram",
                result: self.api.text(other),
                log,
            },
        }
    }
}

/// More than it compiles for, and more than is made of a kernel, its log included: a library that says more is broken.
const MOST_ARCHS: usize = 4096;
const MOST_BYTES: usize = 1 << 30;

/// The error of a library that says that there is more than there can be.
fn absurd(call: &'static str, of: &str) -> NvrtcError {
    NvrtcError::Call {
        call,
        result: format!("it says that there are more {of} than can be"),
        log: String::new(),
    }
}

/// The option that says what is compiled for.
const ARCHITECTURE: &str = "--gpu-architecture";

/// Text for C. Texts that this program compiles have no zeros in them. A text that has a zero ends there.
fn text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

impl Api {
    fn check(&self, call: &'static str, status: Status) -> Result<(), NvrtcError> {
        match status {
            0 => Ok(()),
            other => Err(NvrtcError::Call {
                call,
                result: self.text(other),
                log: String::new(),
            }),
        }
    }

    fn version(&self) -> Result<Version, NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for a number.
        self.check("nvrtcVersion", unsafe {
            (self.version)(&mut major, &mut minor)
        })?;
        Ok(Version(major as u32, minor as u32))
    }
}

/// NVRTC's handle of a source, released when it goes.
struct Program<'a> {
    api: &'a Api,
    handle: Handle,
}

impl<'a> Program<'a> {
    fn new(api: &'a Api, source: &Source) -> Result<Self, NvrtcError> {
        let (code, name) = (text(&source.text), text(&source.name));
        let headers: Vec<(CString, CString)> = source
            .headers
            .iter()
            .map(|(name, code)| (text(name), text(code)))
            .collect();
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let codes: Vec<*const c_char> = headers.iter().map(|(_, code)| code.as_ptr()).collect();
        let mut handle = std::ptr::null_mut();
        // SAFETY: all texts end with zero; NVRTC copies them (its documentation lets callers free them after this
        // call), and `handle` is a place for the program.
        let result = unsafe {
            (api.create)(
                &mut handle,
                code.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                codes.as_ptr(),
                names.as_ptr(),
            )
        };
        api.check("nvrtcCreateProgram", result)?;
        Ok(Self { api, handle })
    }

    fn bytes(&self, call: &'static str, size: Size, get: Get) -> Result<Vec<u8>, NvrtcError> {
        let mut length = 0;
        // SAFETY: the program is alive, and `length` a place for a number.
        (self.api).check(call, unsafe { size(self.handle, &mut length) })?;
        let mut bytes = Vec::new();
        let has_room = length <= MOST_BYTES && bytes.try_reserve_exact(length).is_ok();
        if !has_room {
            return Err(absurd(call, "bytes"));
        }
        bytes.resize(length, 0u8);
        // SAFETY: the program is alive, and there is room for as many bytes as it has said.
        (self.api).check(call, unsafe { get(self.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    fn log(&self) -> String {
        let log = self.bytes("nvrtcGetProgramLog", self.api.log_size, self.api.log);
        let log = log.unwrap_or_default();
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        text.map(|text| text.trim().to_string()).unwrap_or_default()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is a program's, and nobody uses it after this. Nothing can be done about a failure.
        let _ = unsafe { (self.api.destroy)(&mut self.handle) };
    }
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
