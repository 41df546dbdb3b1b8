//! Compiles `csrc` with nvcc into one static library, for every architecture of the list.
//!
//! Needs no GPU and no driver. Without the `cuda` feature, and for a build without kernels
//! (`NVFP4_GEMV_NO_KERNELS`, or docs.rs), it needs nothing at all.

#[cfg(feature = "cuda")]
#[path = "build/advice.rs"]
mod advice;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
#[path = "build/arch.rs"]
mod arch;
#[cfg(feature = "cuda")]
#[path = "build/compile.rs"]
mod compile;
#[cfg(feature = "cuda")]
#[path = "build/no_kernels.rs"]
mod no_kernels;
#[cfg(feature = "cuda")]
#[path = "build/nvcc.rs"]
mod nvcc;
#[cfg(feature = "cuda")]
#[path = "build/sources.rs"]
mod sources;
#[cfg(feature = "cuda")]
#[path = "src/kernel/units.rs"]
mod units;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(nvfp4_gemv_no_kernels)");
    // `Gpu::DEFAULT_IMAGES`.
    println!(
        "cargo::rustc-env=NVFP4_GEMV_DEFAULT_ARCHS={}",
        arch::DEFAULT
    );
    #[cfg(feature = "cuda")]
    if let Err(message) = cuda::build() {
        // A build script's panic is shown with its message whole; `cargo::error` joins lines.
        eprintln!("\n{message}");
        std::process::exit(1);
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::env;
    use std::path::{Path, PathBuf};

    #[cfg(feature = "regenerate-bindings")]
    use crate::units;
    use crate::{advice, arch, compile, no_kernels, nvcc, sources};

    pub(crate) fn build() -> Result<(), String> {
        for name in [no_kernels::VARIABLE, no_kernels::DOCS_RS] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        println!("cargo::rerun-if-env-changed={}", arch::VARIABLE);
        for name in [compile::RACECHECK, compile::LINEINFO] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        println!("cargo::rerun-if-changed=build");
        println!("cargo::rerun-if-changed=csrc");
        println!("cargo::rerun-if-changed=src/kernel/units.rs");
        let manifest = folder("CARGO_MANIFEST_DIR")?;
        let csrc = manifest.join("csrc");
        #[cfg(feature = "regenerate-bindings")]
        bindings(&csrc)?;

        println!(
            "cargo::rustc-env=NVFP4_GEMV_KERNELS={}",
            sources::hash(&csrc)?
        );
        if no_kernels::asked_for(|name| env::var_os(name)) {
            let bindings = manifest.join("src").join("ffi.rs");
            println!("cargo::rerun-if-changed={}", bindings.display());
            let bindings = std::fs::read_to_string(&bindings)
                .map_err(|error| format!("{}: {error}", bindings.display()))?;
            let stubs = folder("OUT_DIR")?.join("no_kernels.rs");
            std::fs::write(&stubs, no_kernels::stubs(&bindings)?)
                .map_err(|error| format!("{}: {error}", stubs.display()))?;
            println!("cargo::rustc-cfg=nvfp4_gemv_no_kernels");
            println!("cargo::rustc-env=NVFP4_GEMV_COMPILED_ARCHS=");
            return Ok(());
        }
        for name in nvcc::VARIABLES {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let archs = env::var(arch::VARIABLE).unwrap_or(arch::DEFAULT.into());
        let archs = arch::parse(&archs, arch::gpus_here)?;
        let nvcc = nvcc::find().map_err(|missing| {
            let reader = match manifest.join("xtask").is_dir() {
                true => advice::Reader::Repository,
                false => advice::Reader::Dependent,
            };
            let number = |part| env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
            let version = format!("{}.{}", number("MAJOR"), number("MINOR"));
            advice::no_nvcc(&missing, reader, &version, no_kernels::VARIABLE)
        })?;

        let out = folder("OUT_DIR")?;
        let objects = compile::compile(&nvcc, &archs, &csrc, &out.join("objects"))?;
        cc::Build::new()
            .cargo_metadata(true)
            .cpp_link_stdlib(None)
            .objects(&objects)
            .compile("nvfp4_gemv_kernels");
        link_cudart(&nvcc)?;

        let archs = archs.join(";");
        println!("cargo::rustc-env=NVFP4_GEMV_COMPILED_ARCHS={archs}");
        // For build scripts of dependents: DEP_NVFP4_GEMV_INCLUDE and DEP_NVFP4_GEMV_ARCHS.
        println!("cargo::metadata=include={}", csrc.display());
        println!("cargo::metadata=archs={archs}");
        Ok(())
    }

    /// The CUDA runtime, statically, so that a program starts where there is no driver.
    fn link_cudart(nvcc: &nvcc::Nvcc) -> Result<(), String> {
        let root = nvcc.root();
        let library = "libcudart_static.a";
        // Toolkits, their cross-compilation folders, PyPI packages, distributions.
        let folders = [
            root.join("lib64"),
            root.join("lib"),
            root.join(format!(
                "targets/{}-linux/lib",
                env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default()
            )),
            root.join("lib/x86_64-linux-gnu"),
            root.join("lib/aarch64-linux-gnu"),
        ];
        let folder = folders
            .iter()
            .find(|folder| folder.join(library).is_file())
            .ok_or_else(|| {
                format!(
                    "nvfp4-gemv: {} has no {library}; looked in {folders:?}. Install the CUDA \
                     runtime's static library (package cuda-cudart-dev).",
                    root.display()
                )
            })?;
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static=cudart_static");
        for library in ["dl", "rt", "pthread"] {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
        Ok(())
    }

    fn folder(variable: &str) -> Result<PathBuf, String> {
        env::var_os(variable)
            .map(PathBuf::from)
            .ok_or_else(|| format!("cargo did not set {variable}"))
    }

    /// Writes `ffi.rs` and `params.rs` into the folder that `NVFP4_GEMV_BINDINGS_OUT` names.
    #[cfg(feature = "regenerate-bindings")]
    fn bindings(csrc: &Path) -> Result<(), String> {
        const TO: &str = "NVFP4_GEMV_BINDINGS_OUT";
        println!("cargo::rerun-if-env-changed={TO}");
        let Some(to) = env::var_os(TO).map(PathBuf::from) else {
            return Ok(());
        };
        let mut sources: Vec<&str> = units::UNITS.iter().map(|unit| unit.source).collect();
        sources.dedup();
        let kernels = csrc.join("kernels");
        let params = sources.iter().fold(bindgen(), |builder, source| {
            let file = kernels.join(source).with_extension("cuh");
            builder.header(file.display().to_string())
        });
        let params = params
            .allowlist_item("(nvfp4|NVFP4)_.*")
            // The bytes of a parameter struct are a kernel's argument: none is left out.
            .explicit_padding(true)
            .raw_line(
                "// Generated by bindgen from csrc/shared.h and csrc/kernels: cargo xtask bindings.",
            );
        let ffi = bindgen()
            .header(csrc.join("nvfp4_gemv.h").display().to_string())
            .allowlist_function("nvfp4_.*")
            .blocklist_type("nvfp4_tensor_map")
            .raw_line("// Generated by bindgen from csrc/nvfp4_gemv.h: cargo xtask bindings.")
            .raw_line("pub(crate) use crate::kernel::params::nvfp4_tensor_map;");
        for (name, builder) in [("params.rs", params), ("ffi.rs", ffi)] {
            let file = to.join(name);
            let bindings = builder
                .generate()
                .map_err(|error| format!("bindgen: {error}"))?
                .to_string();
            // Anonymous enums are constants, whose types need no names.
            let text: String = bindings
                .lines()
                .filter(|line| !line.starts_with("pub type _bindgen_ty_"))
                .map(|line| match line.split_once(": _bindgen_ty_") {
                    Some((name, rest)) => {
                        let (_, value) = rest.split_once(' ').unwrap_or_default();
                        format!("{name}: u32 {value}\n")
                    }
                    None => format!("{line}\n"),
                })
                .collect();
            std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(())
    }

    #[cfg(feature = "regenerate-bindings")]
    fn bindgen() -> bindgen::Builder {
        bindgen::Builder::default()
            .clang_args(["-x", "c", "-std=c11"])
            .prepend_enum_name(false)
            .translate_enum_integer_types(true)
            .derive_debug(true)
            .derive_default(true)
            .layout_tests(false)
            .use_core()
            .generate_comments(true)
    }

    #[cfg(not(feature = "regenerate-bindings"))]
    const _: fn(&Path) = |_| {};
}
