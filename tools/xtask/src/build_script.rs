//! Parts of the crate's build script: what xtask uses of it, and the tests that a build script cannot have.

#[cfg(test)]
#[path = "../../../build/advice.rs"]
mod advice;
#[allow(dead_code)] // the build script uses all of it
#[path = "../../../build/arch.rs"]
pub(crate) mod arch;
#[cfg(test)]
#[path = "../../../build/no_kernels.rs"]
mod no_kernels;

#[allow(dead_code)] // the build script uses all of it
#[path = "../../../build/sources.rs"]
pub(crate) mod sources;

// The name by which the build script's files know it.
#[cfg(test)]
use crate::toolchain::nvcc;

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use super::advice::{self, Reader, no_nvcc};
    use super::{arch, no_kernels};
    use crate::testing::contains;
    use crate::toolchain::places::HOME;
    use crate::toolchain::{nvcc, pins};

    /// No query is expected.
    fn unasked() -> Result<String, String> {
        panic!("asked for this machine's GPUs")
    }

    #[test]
    fn lists_of_architectures_are_read_without_asking_for_gpus() {
        assert_eq!(
            arch::parse("80; 90a,100f;80", unasked).unwrap(),
            ["80", "90a", "100f"]
        );
        assert_eq!(arch::parse(arch::DEFAULT, unasked).unwrap().len(), 4);
        for (list, says) in [
            ("", "names no architecture"),
            ("hopper", "\"hopper\" is not an architecture"),
            ("75", "sm_80 or newer"),
            ("90aa", "not supported"),
        ] {
            let error = arch::parse(list, unasked).unwrap_err();
            assert!(error.contains(says), "{list}: {error}");
        }
    }

    #[test]
    fn native_is_what_the_machine_has() {
        let with = |list: &str, gpus: &str| arch::parse(list, || Ok(gpus.to_owned()));
        assert_eq!(with("native", "9.0\n9.0\n").unwrap(), ["90a"]);
        assert_eq!(with("native", "8.6\r\n12.0\r\n").unwrap(), ["86", "120a"]);
        assert_eq!(with("80;native", "10.3\n").unwrap(), ["80", "103a"]);
        // A display's old GPU beside the one that computes.
        assert_eq!(with("native", "6.1\n8.9\n").unwrap(), ["89"]);
    }

    #[test]
    fn native_without_a_gpu_says_what_to_write_instead() {
        for gpus in [
            Err("it does not run (No such file)".to_owned()),
            Ok(String::new()),
            Ok("No devices were found\n".to_owned()),
            Ok("7.5\n".to_owned()),
        ] {
            let error = arch::parse("native", || gpus.clone()).unwrap_err();
            let parts = ["nvidia-smi", "NVFP4_GEMV_ARCHS=90a", arch::DEFAULT];
            contains(&error, &parts);
        }
    }

    #[test]
    fn a_build_without_kernels_is_asked_for_by_name_or_by_docs_rs() {
        let asked = |name: &'static str, value: &'static str| {
            no_kernels::asked_for(|of| (of == name).then(|| OsString::from(value)))
        };
        assert!(asked("NVFP4_GEMV_NO_KERNELS", "1"));
        assert!(asked("DOCS_RS", "1"));
        assert!(!asked("NVFP4_GEMV_NO_KERNELS", "0"));
        assert!(!asked("NVFP4_GEMV_NO_KERNELS", ""));
        assert!(!asked("PATH", "1"));
    }

    #[test]
    fn every_function_of_the_bindings_has_a_stub() {
        let bindings = include_str!("../../../src/ffi.rs");
        let stubs = no_kernels::stubs(bindings).unwrap();
        let declared = bindings.matches("    pub fn nvfp4_").count();
        assert!(declared > 5);
        assert_eq!(stubs.matches("#[unsafe(no_mangle)]").count(), declared);
        assert!(no_kernels::stubs("pub struct x;").is_err());
    }

    #[test]
    fn advice_names_what_its_reader_has() {
        let missing = nvcc::NotFound::default();
        let to = |reader| no_nvcc(&missing, reader, no_kernels::VARIABLE);
        let dependent = to(Reader::Dependent);
        assert!(!dependent.contains("xtask") && !dependent.contains("--no-default-features"));
        let repository = to(Reader::Repository);
        for (advice, cpu, compiler) in [
            (
                dependent,
                "default-features = false, features = [\"checkpoint\", \"tune\"]",
                "pip install",
            ),
            (
                repository,
                "cargo build --no-default-features",
                "cargo xtask toolchain",
            ),
        ] {
            // A line each, the first two after what is wrong.
            let lines: Vec<&str> = advice.lines().collect();
            assert!(lines[1].starts_with("  CPU only: "), "{advice}");
            contains(lines[1], &[cpu]);
            assert!(lines[2].starts_with("  compiler: "), "{advice}");
            contains(lines[2], &[compiler]);
            assert!(lines[3].contains("jit"), "{advice}");
            let rest = lines[4..].join("\n");
            let parts = ["12.9 or newer", "CUDA_HOME", "NVFP4_GEMV_NO_KERNELS=1"];
            contains(&rest, &parts);
        }
    }

    /// A folder with everything in it that the repository has may be a dependent's path or git dependency.
    #[test]
    fn a_checkout_is_ones_own_where_cargo_was_started_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let [package, other] = ["nvfp4-gemv", "app"].map(|name| folder.path().join(name));
        std::fs::create_dir_all(package.join("xtask")).unwrap();
        std::fs::create_dir(&other).unwrap();
        let of = |checkout: Option<&Path>| Reader::of(&package, checkout);
        assert_eq!(of(Some(&package.join("."))), Reader::Repository);
        assert_eq!(of(Some(&other)), Reader::Dependent);
        assert_eq!(of(Some(&folder.path().join("gone"))), Reader::Dependent);
        assert_eq!(of(None), Reader::Dependent);
    }

    /// Cargo tells the build script so by the repository's configuration.
    #[test]
    fn the_configuration_of_cargo_names_the_checkout() {
        let config: toml::Table = include_str!("../../../.cargo/config.toml").parse().unwrap();
        let checkout = &config["env"][advice::CHECKOUT];
        assert_eq!(checkout["value"].as_str(), Some("."));
        assert_eq!(checkout["relative"].as_bool(), Some(true));
        assert!(config["alias"].get("xtask").is_some());
    }

    /// The build script advises the packages that xtask installs, which are known to work.
    #[test]
    fn advice_names_the_packages_that_xtask_installs() {
        let installed = pins::compiler(pins::Arch::X86_64);
        let names: Vec<&str> = installed.iter().map(|pin| &*pin.name).collect();
        assert_eq!(names.len(), advice::PYPI.len());
        for pin in &installed {
            let dashes = pin.name.replace('_', "-");
            assert!(advice::PYPI.contains(&&*dashes), "{dashes}");
            let version = &pin.version;
            assert!(version.starts_with(advice::PYPI_RELEASE), "{version}");
        }
        assert_eq!(advice::PYPI_HOME, HOME);
    }
}
