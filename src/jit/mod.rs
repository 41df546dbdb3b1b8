//! Kernels that are compiled at run time, by NVRTC: feature `jit`.
//!
//! A kernel is compiled at run time where a program carries no machine code for a device: the program was built without
//! nvcc, or is older than the device's architecture. The kernel's source is embedded in the program, with all that it
//! includes. Each kernel is compiled by itself, when it is first needed, for exactly the device's architecture. It is
//! compiled from the same sources as nvcc's code, and has the same launch plans.
//!
//! # When
//!
//! - [`PreparedGemvOnDevice::new`](crate::PreparedGemvOnDevice::new) and
//!   [`raw::PreparedRawGemv::new`](crate::raw::PreparedRawGemv::new) compile the kernels of their launches.
//! - A call that is not prepared compiles the kernels that no earlier call has, before it enqueues anything.
//! - A call on a stream that is being captured into a graph compiles nothing, and reads no file. Where its kernel was
//!   neither prepared nor called before in this process, it is [`Error::NotCompiled`].
//! - Launches of prepared calls compile nothing, ever.
//!
//! A kernel is compiled, or read from the cache, once in a process for each architecture, and loaded once in each CUDA
//! context. [`observe`] tells a program of it. [`compile`] makes machine code without a GPU, to fill a cache
//! beforehand.
//!
//! # The library
//!
//! NVRTC is loaded when a kernel is first asked for, whether it is then compiled or in the cache. The first of these
//! that is new enough is taken:
//!
//! 1. the one in the folder that the environment's [`LIBRARY_VARIABLE`] names. Where that is set, no other is looked
//!    for.
//! 2. the library that the system's loader finds by the name `libnvrtc.so`: in `LD_LIBRARY_PATH`, as it was when the
//!    process started, and where the system keeps libraries. Those with a newer major release in their name come first.
//! 3. the newest in `lib64` or `lib` of `CUDA_HOME`, then of `CUDA_PATH`.
//! 4. the newest in `/usr/local/cuda/lib64`.
//!
//! New enough is CUDA 12.9, as for nvcc. Where NVRTC is missing, or does not know the architecture, the call fails with
//! [`Error::Jit`], which says what helps. The driver must take NVRTC's code: its CUDA's major release must not be older
//! than NVRTC's, or the call fails with [`Error::NotLoaded`].
//!
//! # The cache
//!
//! Compiled kernels are kept in the folder that [`CACHE_VARIABLE`] names, or in `nvfp4-gemv` in `XDG_CACHE_HOME` or
//! `~/.cache`; the value `off` keeps nothing. A file's name is a hash of source, headers, options, architecture and
//! NVRTC's build. So NVRTC must be there even where all kernels are in the cache, and another NVRTC compiles anew.
//! Files appear whole, so that several processes may write at once. A file that is damaged, or is not a regular file,
//! is compiled again. A folder that cannot be written to is no error: then every process compiles.
//!
//! Whoever can write to the folder can have this process run code of theirs on the GPU. So a folder that the variable
//! does not name is made for its user alone. One that is there is used only where it is this user's, or root's, and
//! neither its group nor others may write to it. [`Cache::refused`] says why one is not. A folder that the variable
//! names is used as it is: it may be shared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
#[cfg(feature = "tune")]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::Duration;

use nvfp4_gemv_nvrtc::cache::{self, Origin};
use nvfp4_gemv_nvrtc::{Nvrtc, Source, Stage};
use nvfp4_gemv_targets::units::{self, Unit};

use crate::error::{Error, Result};
use crate::kernel::plan::Launch;
use crate::nvrtc::{self, NAMES};

pub use crate::nvrtc::hint;

#[doc(inline)]
pub use nvfp4_gemv_nvrtc::arch::{Arch, ArchError, Features};
#[doc(inline)]
pub use nvfp4_gemv_nvrtc::{Compiled, NvrtcError};

/// The environment variable that names NVRTC's folder. It comes before all other places.
pub const LIBRARY_VARIABLE: &str = NAMES.place;

/// The environment variable that names the cache's folder, or says `off`.
pub const CACHE_VARIABLE: &str = NAMES.cache;

/// A folder in which compiled kernels are kept, or none. Calls read that of [`of_user`](Self::of_user).
// A type of its own: what the inner one has beside the folder takes a loaded NVRTC.
#[derive(Clone, Debug)]
pub struct Cache(cache::Cache);

impl Cache {
    /// The user's, which calls take: see [the module](self#the-cache).
    pub fn of_user() -> Self {
        Self(cache::Cache::of_user(&NAMES))
    }

    /// A cache in a folder, which is made when something is kept.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(cache::Cache::at(folder))
    }

    /// No cache: everything is compiled.
    pub fn none() -> Self {
        Self(cache::Cache::none())
    }

    /// The cache's folder.
    pub fn folder(&self) -> Option<&Path> {
        self.0.folder()
    }

    /// Why nothing is read from its folder, or kept there: it is another user's, or others may write to it, and
    /// [`CACHE_VARIABLE`] does not name it. `None` where it is used.
    pub fn refused(&self) -> Option<&'static str> {
        self.0.refused()
    }
}

/// The files that kernels' files include, and the kernels' files themselves: name in `#include`, and text.
const EMBEDDED: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Something that happens to a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The kernel's compilation begins: it takes a second or so.
    Begins {
        /// The kernel.
        kernel: &'static str,
        /// The architecture that it is compiled for, such as `90a`.
        arch: String,
    },
    /// The kernel was compiled.
    Compiled {
        /// The kernel.
        kernel: &'static str,
        /// The architecture.
        arch: String,
        /// The time that NVRTC took.
        took: Duration,
    },
    /// The kernel was in the cache.
    Cached {
        /// The kernel.
        kernel: &'static str,
        /// The architecture.
        arch: String,
        /// The time that it took to find and read the kernel.
        took: Duration,
    },
}

type Observer = Box<dyn Fn(&Event) + Send + Sync>;

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Has a function called with each event of a kernel from now on, on the thread that asks for the kernel. There is an
/// event when a compilation begins, when it has succeeded, and when a kernel was in the cache. A compilation that fails
/// is the error of the call that asked for it, and no further event. There is one such function a process: the first
/// stays. Returns whether this function is the one.
///
/// Whoever else asks for the kernel waits meanwhile. So the function must not ask for kernels itself, by preparing or
/// making a call that takes any: for the same kernel it would wait for ever.
pub fn observe(observer: impl Fn(&Event) + Send + Sync + 'static) -> bool {
    OBSERVER.set(Box::new(observer)).is_ok()
}

fn tell(event: impl FnOnce() -> Event) {
    if let Some(observer) = OBSERVER.get() {
        observer(&event());
    }
}

/// The NVRTC that this process compiles with: its release and build, and where it is.
///
/// # Errors
/// [`NvrtcError::Missing`] and [`NvrtcError::TooOld`] where there is none, and [`NvrtcError::Call`] of one that does
/// not work.
pub fn library() -> Result<(String, String), NvrtcError> {
    let nvrtc = nvrtc::get()?;
    let version = format!("{} ({})", nvrtc.version(), nvrtc.build());
    Ok((version, nvrtc.place().to_string()))
}

/// Compiles the kernel of a launch for an architecture, such as `90a`, or takes what the cache has. Needs no GPU:
/// launches are those of [`Config::plan`](crate::Config::plan). With [`Cache::of_user`] this fills the cache that calls
/// read.
///
/// # Errors
/// [`Error::NoEntry`]: a launch that is not of a plan. [`Error::Jit`]: no NVRTC, or one that does not know the
/// architecture, or an architecture that does not have the kernel's instructions.
pub fn compile(launch: &Launch, arch: &str, cache: &Cache) -> Result<Compiled> {
    let kernel = launch.entry;
    let no_entry = || Error::NoEntry {
        kernel,
        unit: launch.unit,
    };
    let failed = |error| Error::Jit {
        kernel,
        error: Box::new(error),
    };
    let wanted: Arch = arch
        .parse()
        .map_err(|error| failed(NvrtcError::from(error)))?;
    let unit = units::find(launch.unit).ok_or_else(no_entry)?;
    let source = source(unit, kernel);
    let nvrtc = nvrtc::get().map_err(failed)?;
    let (options, stage) = (options(), Stage::Cubin);
    let begins = || {
        tell(|| Event::Begins {
            kernel,
            arch: wanted.to_string(),
        });
    };
    let result = (cache.0).compile_telling(nvrtc, &source, wanted, &options, stage, begins);
    let (compiled, origin) = result.map_err(failed)?;
    if !compiled.ptx.contains(&format!(".entry {kernel}(")) {
        return Err(no_entry());
    }
    let arch = wanted.to_string();
    tell(|| match origin {
        Origin::Compiled(took) => Event::Compiled { kernel, arch, took },
        Origin::Cached(took) => Event::Cached { kernel, arch, took },
    });
    Ok(compiled)
}

/// Major and minor of the release of the NVRTC that this process compiles with; zeros where it has none.
pub(crate) fn release() -> (u32, u32) {
    nvrtc::get().map(Nvrtc::release).unwrap_or_default()
}

/// The options of NVRTC beside the architecture. As in nvcc, functions without a mark that are called on the device are
/// the device's: generic lambdas need it.
fn options() -> Vec<String> {
    ["--std=c++17", "--device-as-default-execution-space"]
        .map(String::from)
        .to_vec()
}

/// A file that includes the unit's, and has it leave all kernels out but one: `csrc/entries.cuh`.
fn source(unit: &Unit, kernel: &str) -> Source {
    static HEADERS: OnceLock<Arc<[(String, String)]>> = OnceLock::new();
    let owned = |&(name, text): &(&str, &str)| (name.to_owned(), text.to_owned());
    let headers = HEADERS.get_or_init(|| EMBEDDED.iter().map(owned).collect());
    let part = (unit.part).map_or(String::new(), |part| format!("#define {part}\n"));
    Source {
        name: format!("{kernel}.cu"),
        text: format!(
            "{part}#define NVFP4_ONLY\n#define NVFP4_ONLY_{kernel} ,\n#include \"{}.cuh\"\n",
            unit.source
        ),
        headers: headers.clone(),
    }
}

/// Machine code: a cubin.
pub(crate) type Code = Arc<[u8]>;

/// A kernel of an architecture, which one thread makes while others wait.
type Slot = Arc<Mutex<Option<Code>>>;

fn slot(kernel: &'static str, arch: &'static str) -> Slot {
    static CODES: Mutex<BTreeMap<(&str, &str), Slot>> = Mutex::new(BTreeMap::new());
    let mut codes = CODES.lock().unwrap_or_else(PoisonError::into_inner);
    codes.entry((kernel, arch)).or_default().clone()
}

/// The machine code of a launch's kernel for an architecture: this process's, the cache's, or made now.
pub(crate) fn code(launch: &Launch, arch: &'static str) -> Result<Code> {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    let slot = slot(launch.entry, arch);
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = &*slot {
        return Ok(code.clone());
    }
    let compiled = compile(launch, arch, CACHE.get_or_init(Cache::of_user))?;
    let code: Code = compiled.cubin.into();
    *slot = Some(code.clone());
    Ok(code)
}

/// Makes the machine code of these launches' kernels, on all processors at once. A compilation that fails does so again
/// where its kernel is used.
#[cfg(feature = "tune")]
pub(crate) fn code_of_all<'l>(launches: impl Iterator<Item = &'l Launch>, arch: &'static str) {
    each_kernel(launches, |launch| drop(code(launch, arch)));
}

/// Calls `make` once for each kernel, on all processors.
#[cfg(feature = "tune")]
fn each_kernel<'l>(launches: impl Iterator<Item = &'l Launch>, make: impl Fn(&Launch) + Sync) {
    let kernels: BTreeMap<&str, &Launch> = launches.map(|launch| (launch.entry, launch)).collect();
    let kernels: Vec<&Launch> = kernels.into_values().collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(kernels.len()) {
            scope.spawn(|| {
                while let Some(launch) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                    make(launch);
                }
            });
        }
    });
}

/// The machine code, if this process has it already. Waits for nobody who is making it.
pub(crate) fn code_that_is_there(launch: &Launch, arch: &'static str) -> Result<Code> {
    let slot = slot(launch.entry, arch);
    let code = match slot.try_lock() {
        Ok(code) => code.clone(),
        // A thread that panicked had made the code, or not.
        Err(TryLockError::Poisoned(code)) => code.into_inner().clone(),
        Err(TryLockError::WouldBlock) => None,
    };
    code.ok_or(Error::NotCompiled {
        kernel: launch.entry,
    })
}

/// The architecture that kernels are compiled for on GPUs of a compute capability, where this build's machine code, for
/// `images`, does not run there.
pub(crate) fn image(images: &'static str, compute_capability: (i32, i32)) -> Option<&'static str> {
    static NAMES: RwLock<BTreeMap<(i32, i32), &str>> = RwLock::new(BTreeMap::new());
    if crate::kernel::images_run(images, compute_capability) {
        return None;
    }
    let known = NAMES.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = known.get(&compute_capability) {
        return Some(name);
    }
    drop(known);
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    // One for each kind of GPU of a machine.
    let name = || &*String::leak(crate::Gpu::own_image(compute_capability));
    Some(*names.entry(compute_capability).or_insert_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::relayout;
    use crate::{ScaleLayout, Shape};

    #[test]
    fn kernels_are_compiled_only_where_no_machine_code_runs() {
        assert_eq!(image("80;90a;100f", (8, 9)), None);
        assert_eq!(image("80;90a;100f", (9, 0)), None);
        assert_eq!(image("80;90a;100f", (10, 3)), None);
        assert_eq!(image("80;90a;100f", (11, 0)), Some("110a"));
        assert_eq!(image("80", (9, 0)), Some("90a"));
        assert_eq!(image("", (8, 6)), Some("86"));
        let again = image("", (8, 6)).unwrap();
        assert!(std::ptr::eq(again, image("", (8, 6)).unwrap()));
    }

    #[test]
    fn what_was_not_compiled_is_not_there() {
        let shape = Shape::matrix(128, 256).unwrap();
        let launch = relayout::launch(&shape, ScaleLayout::Linear, 1 << 40, 2 << 40);
        let kernel = launch.entry;
        let missing = Err(Error::NotCompiled { kernel });
        assert_eq!(code_that_is_there(&launch, "90a"), missing);
        let slot = slot(kernel, "90a");
        let made: Code = [1, 2, 3].into();
        let mut busy = slot.lock().unwrap();
        assert_eq!(code_that_is_there(&launch, "90a"), missing);
        *busy = Some(made.clone());
        drop(busy);
        assert_eq!(code_that_is_there(&launch, "90a"), Ok(made.clone()));
        assert_eq!(code_that_is_there(&launch, "100a"), missing);
        // Code that is there stays so where a thread has panicked since, as an observer may.
        let panicked = std::thread::spawn(move || {
            let _code = slot.lock().unwrap();
            panic!("so that the lock is poisoned");
        });
        assert!(panicked.join().is_err());
        assert_eq!(code_that_is_there(&launch, "90a"), Ok(made));
    }

    #[cfg(feature = "tune")]
    #[test]
    fn each_kernel_is_made_once() {
        let launch = |entry| Launch {
            entry,
            ..Launch::default()
        };
        let all = ["a", "b", "a", "c", "b", "a"].map(launch);
        let made = Mutex::new(Vec::new());
        each_kernel(all.iter(), |launch| made.lock().unwrap().push(launch.entry));
        let mut made = made.into_inner().unwrap();
        made.sort_unstable();
        assert_eq!(made, ["a", "b", "c"]);
        each_kernel([].iter(), |_| panic!("there is none"));
    }

    #[test]
    fn a_launch_of_no_unit_is_an_error() {
        let error = compile(&Launch::default(), "90a", &Cache::none()).unwrap_err();
        let (kernel, unit) = ("", "");
        assert_eq!(error, Error::NoEntry { kernel, unit });
    }

    /// Each name of an `#include` leads to a file, so that no other header can take its place.
    #[test]
    fn everything_that_is_included_is_embedded() {
        let names: Vec<&str> = EMBEDDED.iter().map(|&(name, _)| name).collect();
        let mut count = 0;
        for (file, text) in EMBEDDED {
            if *file == "../nvfp4_gemv.h" {
                continue; // for the host
            }
            for line in text
                .lines()
                .filter_map(|line| line.strip_prefix("#include "))
            {
                let included = line.trim_matches(['"', '<', '>']);
                assert!(names.contains(&included), "{file}: {included}");
                count += 1;
            }
        }
        assert!(count > 100, "only {count}");
    }
}
