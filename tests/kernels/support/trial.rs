//! Trials: their needs, and what becomes of trials that cannot run here.
//!
//! A module names its functions with [`trials!`](crate::trials). A trial that needs something that this machine lacks
//! is reported as ignored, with the reason. Long trials are of the kind `long`, and run with `--ignored long`.

use nvfp4_gemv_trials::{Program, Trial};

/// Makes a module's `trials()` from its functions, grouped by their needs: `host`, `simulator`, `nvrtc`, `compilers`
/// (NVRTC and nvcc) or `gpu`. `long`, `long_nvrtc`, `long_compilers` and `long_gpu` run on request. Another function than
/// the one of the trial's name may stand behind `=`.
#[macro_export]
macro_rules! trials {
    ($($needs:ident: $($name:ident $(= $run:expr)?),+ $(,)?;)+) => {
        pub(crate) fn trials() -> Vec<nvfp4_gemv_trials::Trial> {
            vec![$($(
                $crate::support::trial::$needs(
                    concat!(module_path!(), "::", stringify!($name)),
                    $crate::trials!(@run $name $($run)?),
                ),
            )+)+]
        }
    };
    (@run $function:ident) => { $function };
    (@run $name:ident $run:expr) => { $run };
}

/// A trial that needs nothing.
pub(crate) fn host(path: &str, run: fn()) -> Trial {
    trial(path, || None, run)
}

/// A trial that needs nvcc, which makes the PTX.
pub(crate) fn simulator(path: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    trial(path, super::ptx::missing, run)
}

/// A trial that needs nvcc and takes minutes.
pub(crate) fn long(path: &str, run: fn()) -> Trial {
    on_request(simulator(path, run))
}

fn on_request(trial: Trial) -> Trial {
    trial.with_kind("long").with_ignored_flag(true)
}

/// A trial that needs a GPU and runs on request: it prints times.
#[cfg(feature = "device")]
pub(crate) fn long_gpu(path: &str, run: fn()) -> Trial {
    on_request(gpu(path, run))
}

/// A trial that needs NVRTC.
#[cfg(feature = "jit")]
pub(crate) fn nvrtc(path: &str, run: fn()) -> Trial {
    trial(path, no_nvrtc, run)
}

/// A trial that needs NVRTC and nvcc.
#[cfg(feature = "jit")]
pub(crate) fn compilers(path: &str, run: fn()) -> Trial {
    trial(path, || no_nvrtc().or_else(super::ptx::missing), run)
}

/// A trial that needs NVRTC and takes long.
#[cfg(feature = "jit")]
pub(crate) fn long_nvrtc(path: &str, run: fn()) -> Trial {
    on_request(nvrtc(path, run))
}

/// A trial that needs NVRTC and nvcc and takes long.
#[cfg(feature = "jit")]
pub(crate) fn long_compilers(path: &str, run: fn()) -> Trial {
    on_request(compilers(path, run))
}

#[cfg(feature = "jit")]
fn no_nvrtc() -> Option<String> {
    Some(nvfp4_gemv::jit::library().err()?.to_string())
}

/// A trial that needs a GPU.
#[cfg(feature = "device")]
pub(crate) fn gpu(path: &str, run: fn()) -> Trial {
    trial(path, no_gpu, run)
}

/// The reason why there is no GPU; `None` if there is one.
#[cfg(feature = "device")]
fn no_gpu() -> Option<String> {
    static WHY: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let why = || match nvfp4_gemv::raw::device_count() {
        Ok(0) => Some("no GPU".into()),
        Ok(_) => None,
        Err(error) => Some(format!("no GPU: {error}")),
    };
    WHY.get_or_init(why).clone()
}

fn trial(
    path: &str,
    missing: fn() -> Option<String>,
    run: impl FnOnce() + Send + 'static,
) -> Trial {
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    nvfp4_gemv_trials::trial(name, missing, run)
}

/// The program of all trials.
pub(crate) const PROGRAM: Program = Program {
    name: "kernels",
    gpus,
    sources: match option_env!("NVFP4_GEMV_TESTED") {
        Some(sources) => sources,
        None => "",
    },
    one_by_one: false,
};

/// The names of this machine's GPUs.
fn gpus() -> Vec<String> {
    #[cfg(feature = "device")]
    {
        let count = nvfp4_gemv::raw::device_count().unwrap_or(0);
        let names = (0..count).map(|gpu| nvfp4_gemv::raw::gpu(gpu).map(|gpu| gpu.name));
        names.filter_map(Result::ok).collect()
    }
    #[cfg(not(feature = "device"))]
    Vec::new()
}
