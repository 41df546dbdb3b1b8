//! The packages that would be published work where they are unpacked: outside the repository, without the simulator,
//! and without nvcc. Checked are the library with its tests and benches, each feature alone, and the program with that
//! library. The simulator, and the packages that the library is made of, are checked by themselves. Before that, each
//! has what a registry and its readers ask for, and `cargo publish` would take it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cargo::Cargo;
use crate::process;
use crate::workspace::Workspace;

/// The most bytes of a .crate file: crates.io sends it to every build that does not have it. A little above what is
/// there in 2026-11, all of it source and pages for users: to notice a large file, not to argue about each page.
const MOST_BYTES: u64 = 750_000;

const LIBRARY: &str = "nvfp4-gemv";
const PROGRAM: &str = "nvfp4-gemv-cli";
/// Its features have candle's kernels compiled, which takes nvcc minutes: check `compat-cuda`.
const CANDLE: &str = "nvfp4-gemv-candle";

pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let target = workspace.check_dir("package");
    let cargo = Cargo::new(workspace).target_dir(&target);
    // Packages of another version may be left from before.
    let packages = target.join("package");
    if packages.is_dir() {
        fs::remove_dir_all(&packages)
            .with_context(|| format!("cannot remove {}", packages.display()))?;
    }
    let all = super::packages(&cargo)?.into_iter();
    let published = all.filter(|package| package["publish"].is_null());
    let published: Vec<Value> = published.collect();
    let missing: Vec<String> = published.iter().flat_map(missing).collect();
    if !missing.is_empty() {
        bail!(
            "packages are not ready for a registry:\n{}",
            missing.join("\n")
        );
    }
    let published: Vec<String> = published
        .iter()
        .filter_map(|package| package["name"].as_str().map(str::to_owned))
        .collect();
    // Cargo does not verify the packages: that would build the kernels, which the rest of CI does.
    let named = published.iter().flat_map(|name| ["--package", name]);
    let as_they_are = ["--no-verify", "--allow-dirty"];
    // All at once: cargo then takes the others as what they will be when they are published.
    let dry_run = ["publish", "--dry-run"].into_iter();
    cargo.run(dry_run.chain(named.clone()).chain(as_they_are))?;
    cargo.run(["package"].into_iter().chain(named).chain(as_they_are))?;
    // Outside the repository, where neither its workspace nor its files can help.
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut folders = BTreeMap::new();
    for name in &published {
        folders.insert(&**name, unpacked(&packages, name, directory.path())?);
    }
    // None of them is published yet.
    let mut patches = String::from("[patch.crates-io]\n");
    for (name, folder) in &folders {
        patches += &format!("{name}.path = {:?}\n", folder.display().to_string());
    }
    let patched = directory.path().join("patches.toml");
    fs::write(&patched, patches).with_context(|| format!("cannot write {}", patched.display()))?;
    let patched = patched.to_str().context("a name that is no text")?;

    let at = |cargo: Cargo, name: &str| -> Result<Cargo> {
        let folder = folders.get(name).with_context(|| format!("no {name}"))?;
        let cargo = cargo.env("NVFP4_GEMV_NO_KERNELS", "1");
        Ok(cargo.at(folder.join("Cargo.toml")))
    };
    let check = |name: &str, arguments: &[&str]| {
        // Where the check of that name has compiled most dependencies. Of clippy, only its way to refuse the compiler's
        // warnings: flags for all crates would compile them again.
        let cargo = Cargo::new(workspace).target_dir(workspace.target());
        let refuse = ["--", "--allow", "clippy::all", "--deny", "warnings"];
        let clippy = ["clippy", "--config", patched];
        at(cargo, name)?.run([&clippy, arguments, &refuse].concat())
    };
    for features in ["", "cuda", "jit", "checkpoint", "tune"] {
        let only = ["--tests", "--no-default-features", "--features", features];
        check(LIBRARY, &only)?;
    }
    // The default features, with the tests for GPUs among the targets.
    check(LIBRARY, &["--all-targets"])?;
    check(LIBRARY, &["--all-targets", "--features", "unstable"])?;
    check(PROGRAM, &[])?;
    for name in folders
        .keys()
        .filter(|name| ![LIBRARY, PROGRAM].contains(name))
    {
        let features: &[&str] = match *name {
            CANDLE => &[],
            _ => &["--all-features"],
        };
        check(name, &[&["--all-targets"], features].concat())?;
    }
    // Elsewhere, it would take the place of the program with kernels.
    says_that_it_has_no_kernels(&at(cargo, PROGRAM)?, patched)
}

/// The most lines of a README: a screen or two.
const MOST_LINES: usize = 130;

/// The fields that a registry and its readers ask for, and that `cargo metadata` lacks for a package.
fn missing(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    let count = |key: &str| package[key].as_array().map_or(0, Vec::len);
    let mut missing = Vec::new();
    let mut needs = |holds: bool, what: &str| {
        if !holds {
            missing.push(format!("{name}: {what}"));
        }
    };
    for key in ["description", "license", "repository"] {
        needs(!text(key).is_empty(), &format!("no {key}"));
    }
    needs((1..=5).contains(&count("keywords")), "one to five keywords");
    needs(
        (1..=5).contains(&count("categories")),
        "one to five categories",
    );
    needs(
        package["metadata"]["docs"]["rs"].is_object(),
        "no [package.metadata.docs.rs]: with which features are its pages made?",
    );
    let manifest = Path::new(text("manifest_path"));
    let readme = manifest.with_file_name(text("readme"));
    let readme = match text("readme") {
        "" => String::new(),
        _ => fs::read_to_string(readme).unwrap_or_default(),
    };
    let lines = readme.lines().count();
    needs(lines > 0, "no README");
    needs(
        lines <= MOST_LINES,
        &format!("a README of {lines} lines, {MOST_LINES} at most"),
    );
    needs(readme.contains("\n```"), "no example in its README");
    missing
}

/// A program of a build without kernels links, starts, and says what it lacks.
fn says_that_it_has_no_kernels(cargo: &Cargo, patched: &str) -> Result<()> {
    let program = cargo.executable(&["--config", patched])?;
    let info = process::stdout(Command::new(program).args(["info", "--json"]))?;
    let info: Value = serde_json::from_str(&info).context("`nvfp4-gemv info --json`")?;
    let why = info["cuda"]["why_none"].as_str().unwrap_or_default();
    if !why.contains("carries no kernels") {
        bail!("a build without kernels does not say so, but {why:?}: {info}");
    }
    Ok(())
}

/// Unpacks a package, and returns its folder.
fn unpacked(packages: &Path, package: &str, to: &Path) -> Result<PathBuf> {
    let file = the_crate(packages, package)?;
    let bytes = fs::metadata(&file)
        .with_context(|| format!("cannot read {}", file.display()))?
        .len();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&file).arg("-C").arg(to);
    process::run(&mut tar)?;
    let name = file.file_stem().unwrap_or_default();
    let unpacked = to.join(name);
    eprintln!(
        "{}: {} kB, {} kB unpacked",
        name.to_string_lossy(),
        bytes / 1000,
        size(&unpacked)? / 1000
    );
    if bytes > MOST_BYTES {
        bail!(
            "the package has {bytes} bytes, {MOST_BYTES} at most: what is new and large? \
             `cargo package --package {package} --list` lists it; Cargo.toml's `exclude` leaves files out"
        );
    }
    Ok(unpacked)
}

/// The file of a package: its name has the version.
fn the_crate(directory: &Path, package: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?
        .collect::<std::io::Result<Vec<_>>>()
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let is_its = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let version = name
            .strip_prefix(package)
            .and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".crate"));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    let mut files = entries.into_iter().map(|entry| entry.path());
    files
        .find(is_its)
        .with_context(|| format!("cargo left no {package} in {}", directory.display()))
}

/// Bytes of all files below a directory.
fn size(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::contains;

    #[test]
    fn what_a_registry_asks_for_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let put = |text: &str| fs::write(folder.path().join("README.md"), text).unwrap();
        let whole = json!({
            "name": "p", "description": "d", "license": "MIT", "repository": "r", "readme": "README.md",
            "keywords": ["k"], "categories": ["c"], "metadata": {"docs": {"rs": {"all-features": true}}},
            "manifest_path": folder.path().join("Cargo.toml"),
        });
        put("# p\n\n```rust\n1;\n```\n");
        assert_eq!(missing(&whole), [""; 0]);
        for (key, value, says) in [
            ("description", json!(null), "no description"),
            ("license", json!(""), "no license"),
            ("repository", json!(null), "no repository"),
            ("keywords", json!([]), "keywords"),
            ("keywords", json!([1, 2, 3, 4, 5, 6]), "keywords"),
            ("categories", json!([]), "categories"),
            ("metadata", json!(null), "docs.rs"),
            ("readme", json!(null), "no README"),
            ("readme", json!("absent.md"), "no README"),
        ] {
            let mut package = whole.clone();
            package[key] = value;
            contains(&missing(&package).join("\n"), &["p: ", says]);
        }
        put("# p\n");
        contains(&missing(&whole).join("\n"), &["no example"]);
        put(&format!("\n```\n{}", "line\n".repeat(MOST_LINES)));
        contains(&missing(&whole).join("\n"), &["lines"]);
    }
}
