//! The examples in C and C++ compile with the system's compilers, without a warning, and compute what they say: linked
//! to the static library and to the shared one.

use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}{errors}",
        output.status
    );
    assert!(errors.is_empty(), "{command:?}: {errors}");
    said
}

/// The folder in which cargo has put the libraries of this build.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Compiles and runs an example, as examples/Makefile does.
fn example(compiler: &str, standard: &str, source: &str) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let libraries = libraries();
    let data = package.join("../../tests/data/minilm-l0-compressed-tensors.safetensors");
    let shared = format!("-Wl,-rpath,{}", libraries.display());
    let library = libraries.join("libnvfp4_gemv_capi.a");
    let folder_of = format!("-L{}", libraries.display());
    // Kernels, which features of other packages may have brought in, need the last two.
    let of_static = ["-lpthread", "-ldl", "-lm", "-lrt", "-lstdc++"];
    for (name, link) in [
        (
            "static",
            [&[library.to_str().unwrap()], &of_static[..]].concat(),
        ),
        (
            "shared",
            vec![&*folder_of, "-lnvfp4_gemv_capi", "-lm", &shared],
        ),
    ] {
        let program = folder.path().join(name);
        let mut compile = Command::new(compiler);
        compile.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
        compile.arg(package.join("include")).arg("-o").arg(&program);
        run(compile
            .arg(package.join("examples").join(source))
            .args(link));
        for argument in [None, Some(&data)] {
            let mut program = Command::new(&program);
            program.args(argument);
            // Found beside the program, not by what cargo has set.
            program.env_remove("LD_LIBRARY_PATH");
            let said = run(&mut program);
            assert!(said.ends_with("as expected\n"), "{said}");
        }
    }
}

#[test]
fn in_c() {
    example("cc", "-std=c11", "layer.c");
}

#[test]
fn in_cpp() {
    example("c++", "-std=c++17", "layer.cpp");
}
