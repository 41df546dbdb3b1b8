use std::collections::BTreeMap;

use super::testing::script;
use super::*;
use crate::testing::contains;

struct NoDownload;

impl Fetch for NoDownload {
    fn fetch(&self, pin: &Pin, _: &Path) -> Result<PathBuf> {
        bail!("{} was not to be downloaded", pin.name)
    }
}

/// Runs the search among these variables only.
fn search(variables: &[(&str, &Path)], usual: &Path) -> Result<Nvcc, NotFound> {
    let variables: BTreeMap<&str, &Path> = variables.iter().copied().collect();
    let value = |name: &str| {
        variables
            .get(name)
            .map(|value| value.as_os_str().to_owned())
    };
    nvcc::find_with(value, usual)
}

fn nothing() -> Result<Nvcc, NotFound> {
    search(&[], Path::new("/no/such/place"))
}

fn fake(home: &Path, release: &str) {
    script(
        &home.join("bin/nvcc"),
        &format!("echo 'Cuda compilation tools, release {release}, V{release}.1'"),
    );
}

#[test]
fn versions_are_read_and_compared_by_number() {
    let text = "nvcc: NVIDIA (R) Cuda compiler driver\n\
                Copyright (c) 2005-2025 NVIDIA Corporation\n\
                Cuda compilation tools, release 13.0, V13.0.88\n\
                Build cuda_13.0.r13.0/compiler.36424714_0\n";
    assert_eq!(Version::parse(text), Some(Version(13, 0)));
    assert_eq!(
        Version::parse("release 12.10, V12.10.1\r\n"),
        Some(Version(12, 10))
    );
    for text in ["", "release", "release x.y, V", "release 13", "13.0"] {
        assert_eq!(Version::parse(text), None, "{text:?}");
    }
    assert!(Version(12, 8) < MINIMUM && Version(9, 2) < MINIMUM);
    assert!(Version(12, 9) >= MINIMUM && Version(12, 10) > MINIMUM && Version(13, 0) > MINIMUM);
}

#[test]
fn order_is_nvcc_home_path_and_usual_place() {
    let directory = tempfile::tempdir().unwrap();
    let home = |name: &str| directory.path().join(name);
    for (index, name) in ["a", "b", "c", "d", "e"].iter().enumerate() {
        fake(&home(name), &format!("13.{index}"));
    }
    let nvcc = home("a").join("bin/nvcc");
    let (b, c, d) = (home("b"), home("c"), home("d").join("bin"));
    let mut variables: Vec<(&str, &Path)> = vec![
        ("PATH", &d),
        ("CUDA_PATH", &c),
        ("CUDA_HOME", &b),
        ("NVCC", &nvcc),
    ];
    let usual = home("e").display().to_string();
    let places = ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", &usual];
    for (passed_over, place) in places.into_iter().enumerate() {
        let found = search(&variables, &home("e")).unwrap();
        assert_eq!(found.place, place);
        assert_eq!(found.version, Version(13, passed_over as u32));
        assert_eq!(found.passed_over.looked_at.len(), passed_over);
        variables.pop();
    }
    let reported = nothing().unwrap_err().looked_at.len();
    assert_eq!(reported, 5, "every place is reported");
}

#[test]
fn old_and_broken_compilers_are_reported_and_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let home = |name: &str| directory.path().join(name);
    fake(&home("old"), "12.8");
    script(&home("broken").join("bin/nvcc"), "exit 3");
    fake(&home("good"), "12.9");
    let nvcc = home("old").join("bin/nvcc");
    let (broken, missing) = (home("broken"), home("missing"));
    let variables: [(&str, &Path); 3] = [
        ("NVCC", &nvcc),
        ("CUDA_HOME", &broken),
        ("CUDA_PATH", &missing),
    ];
    let found = search(&variables, &home("good")).unwrap();
    assert_eq!(
        (found.version, found.path),
        (MINIMUM, home("good").join("bin/nvcc"))
    );
    let text = found.passed_over.to_string();
    let parts = ["12.8, too old", "prints no version", "no such file", "PATH"];
    contains(&text, &parts);
}

#[test]
fn a_found_compiler_is_used_and_nothing_is_downloaded() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("cuda");
    fake(&home, "13.1");
    std::fs::create_dir_all(home.join("include")).unwrap();
    std::fs::write(home.join("include/cuda_runtime.h"), "").unwrap();
    let root = directory.path().join("toolchain");
    let found = search(&[("CUDA_HOME", &home)], Path::new("/no/such/place"));
    let found = resolve(&root, found, &("linux", "x86_64"), &NoDownload).unwrap();
    assert_eq!(found.place, "CUDA_HOME");
    assert!(!root.exists());

    let environment = found.environment();
    let value = |name: &str| {
        let pair = environment.iter().find(|(key, _)| *key == name);
        pair.unwrap().1.to_string_lossy().into_owned()
    };
    assert_eq!(Path::new(&value("NVCC")), home.join("bin/nvcc"));
    assert_eq!(Path::new(&value("CUDA_HOME")), home);
    let first = env::split_paths(&value("PATH")).next().unwrap();
    assert_eq!(first, home.join("bin"));
}

#[test]
fn none_found_means_a_download() {
    let directory = tempfile::tempdir().unwrap();
    for arch in ["x86_64", "aarch64"] {
        let outcome = resolve(directory.path(), nothing(), &("linux", arch), &NoDownload);
        let text = format!("{:#}", outcome.unwrap_err());
        assert!(text.contains("nvidia-cuda-nvcc 13.0.88"), "{text}");
    }
}

#[test]
fn other_systems_are_told_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    for platform in [
        ("macos", "aarch64"),
        ("windows", "x86_64"),
        ("linux", "riscv64"),
    ] {
        let outcome = resolve(directory.path(), nothing(), &platform, &NoDownload);
        let text = format!("{:#}", outcome.unwrap_err());
        contains(&text, &["Linux x86_64 and aarch64 only", platform.0]);
        contains(&text, &["NVCC", "--no-default-features"]);
    }
}

#[test]
fn a_damaged_installation_is_noticed_though_its_path_is_exported() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("cuda").join(HOME);
    fake(&home, "13.0");
    let found = search(&[("CUDA_HOME", &home)], Path::new("/no/such/place"));
    let outcome = resolve(directory.path(), found, &("linux", "x86_64"), &NoDownload);
    assert!(format!("{:#}", outcome.unwrap_err()).contains("was not to be downloaded"));
}

#[test]
fn shell_output_survives_odd_directories() {
    assert_eq!(quote(Path::new("/a b/it's")), r"'/a b/it'\''s'");
}
