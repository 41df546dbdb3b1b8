//! Tests that hold parts of the build script to files of the repository.

use nvfp4_gemv_targets::{advice, no_kernels};

use crate::toolchain::pins;

#[test]
fn every_function_of_the_bindings_has_a_stub() {
    let bindings = include_str!("../../../src/ffi.rs");
    let stubs = no_kernels::stubs(bindings).unwrap();
    let declared = bindings.matches("    pub fn nvfp4_").count();
    assert!(declared > 5);
    assert_eq!(stubs.matches("#[unsafe(no_mangle)]").count(), declared);
    assert!(no_kernels::stubs("pub struct x;").is_err());
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
}
