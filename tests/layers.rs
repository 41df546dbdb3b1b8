//! The layers of the library, and those of the repository's packages. Sources and manifests obey the two pictures at
//! the beginning of docs/architecture.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Modules of `src`, each with the layer that the picture puts it in; 0 is the lowest.
fn picture() -> BTreeMap<String, usize> {
    picture_of(0)
}

/// The page's picture of a number.
fn picture_of(number: usize) -> BTreeMap<String, usize> {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let rest = text.split("```text\n").nth(number + 1).expect("a picture");
    let (picture, _) = rest.split_once("```").unwrap();
    let layers: Vec<&str> = picture
        .lines()
        .filter(|line| !line.starts_with(' '))
        .collect();
    let mut modules = BTreeMap::new();
    for (layer, line) in layers.iter().rev().enumerate() {
        // The layer's name, two spaces or more, its modules, two spaces or more, what it is.
        let columns: Vec<&str> = line
            .split("  ")
            .filter(|column| !column.is_empty())
            .collect();
        for module in columns[1].split_whitespace() {
            let before = modules.insert(module.to_string(), layer);
            assert_eq!(before, None, "{module} stands in a picture twice");
        }
    }
    modules
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a module, without those that are tests.
fn files(module: &str) -> Vec<PathBuf> {
    fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(folder) else {
            return;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            match path.is_dir() {
                true if name != "tests" => collect(&path, files),
                false if name.ends_with(".rs") && name != "tests.rs" => files.push(path),
                _ => {}
            }
        }
    }
    let src = root().join("src");
    let mut found = Vec::new();
    collect(&src.join(module), &mut found);
    found.extend(
        [src.join(format!("{module}.rs"))]
            .into_iter()
            .filter(|file| file.is_file()),
    );
    found
}

/// The source without comments, and without the tests at its end.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let before_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let lines: Vec<&str> = before_tests.lines().filter(is_code).collect();
    lines.join("\n")
}

/// Names that follow `crate::`, one or several in braces.
fn used(code: &str) -> BTreeSet<String> {
    let name = |text: &str| -> String {
        let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        text.chars().take_while(is_name).collect()
    };
    let mut used = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` too, but not the end of another word.
        if code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let list = list.split_once("};").map_or("", |(list, _)| list);
                used.extend(list.split(',').map(|item| name(item.trim())));
            }
            None => drop(used.insert(name(rest))),
        }
    }
    used
}

/// The module that each name comes from which `lib.rs` exports.
fn exports() -> BTreeMap<String, String> {
    let lib = code(&root().join("src/lib.rs"));
    let mut exports = BTreeMap::new();
    for statement in lib.split("pub use ").skip(1) {
        let statement = statement.split(';').next().unwrap();
        let Some((module, names)) = statement.split_once("::") else {
            continue; // a crate of somebody else's
        };
        let names = names.trim_matches(['{', '}', '\n', ' ']);
        for name in names
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            exports.insert(name.to_string(), module.to_string());
        }
    }
    exports
}

/// The modules that each module uses.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let (layers, exports) = (picture(), exports());
    let module_of = |name: &String| -> Option<String> {
        match layers.contains_key(name) {
            true => Some(name.clone()),
            false => exports.get(name).cloned(),
        }
    };
    let of = |module: &String| -> BTreeSet<String> {
        let files = files(module);
        assert!(!files.is_empty(), "the picture has {module}, src has not");
        let names = files.iter().flat_map(|file| used(&code(file)));
        let mut used: BTreeSet<String> = names.filter_map(|name| module_of(&name)).collect();
        used.remove(module);
        used
    };
    layers
        .keys()
        .map(|module| (module.clone(), of(module)))
        .collect()
}

#[test]
fn every_module_stands_in_the_picture() {
    let layers = picture();
    let lib = code(&root().join("src/lib.rs"));
    let modules = lib.lines().filter_map(|line| {
        let line = line
            .trim_start_matches("pub ")
            .trim_start_matches("pub(crate) ");
        line.strip_prefix("mod ")?.strip_suffix([';', '{'])
    });
    for module in modules.map(str::trim) {
        // `no_kernels` stands for C functions where there are none.
        if module != "no_kernels" {
            assert!(
                layers.contains_key(module),
                "docs/architecture.md has no {module}"
            );
        }
    }
}

#[test]
fn nothing_knows_what_is_above_it() {
    let layers = picture();
    for (module, used) in uses() {
        for other in used {
            assert!(
                layers[&other] <= layers[&module],
                "{module} uses {other}, which docs/architecture.md puts above it"
            );
        }
    }
}

/// Modules of one layer may use each other, but not in a ring.
#[test]
fn modules_are_in_no_ring() {
    let uses = uses();
    let mut ready: BTreeSet<String> = BTreeSet::new();
    loop {
        let next: Vec<String> = uses
            .iter()
            .filter(|(module, used)| !ready.contains(*module) && used.is_subset(&ready))
            .map(|(module, _)| module.clone())
            .collect();
        if next.is_empty() {
            break;
        }
        ready.extend(next);
    }
    let ring: Vec<String> = uses
        .iter()
        .filter(|(module, _)| !ready.contains(*module))
        .map(|(module, used)| {
            let in_ring: Vec<_> = used.difference(&ready).cloned().collect();
            format!("{module} uses {}", in_ring.join(", "))
        })
        .collect();
    assert!(ring.is_empty(), "a ring:\n{}", ring.join("\n"));
}

/// Packages as cargo knows them: the workspace's, without what tests alone depend on.
#[test]
fn packages_depend_on_those_below_them() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]);
    let output = cargo.current_dir(root()).output().unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let layers = picture_of(1);
    let packages = metadata["packages"].as_array().unwrap();
    assert_eq!(packages.len(), layers.len(), "as many as in the picture");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            if dependency["path"].is_null() || dependency["kind"] == "dev" {
                continue;
            }
            let other = dependency["name"].as_str().unwrap();
            assert!(
                layers[other] < layers[name],
                "{name} depends on {other}, which docs/architecture.md does not put below it"
            );
        }
    }
}

/// Shared code is a package: no file of one package is named by its path in another one.
#[test]
fn no_file_belongs_to_two_packages() {
    fn search(folder: &Path, package: &Path, found: &mut Vec<String>) {
        let package = match folder.join("Cargo.toml").is_file() {
            true => folder,
            false => package,
        };
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                search(&path, package, found);
            } else if name.ends_with(".rs") {
                let text = fs::read_to_string(&path).unwrap();
                let paths = text.lines().filter_map(|line| {
                    let named = line
                        .trim()
                        .strip_prefix("#[path = \"")?
                        .strip_suffix("\"]")?;
                    let named = folder.join(named).canonicalize().unwrap();
                    let mut folders = named.ancestors();
                    let owner = folders.find(|folder| folder.join("Cargo.toml").is_file());
                    (owner != Some(package)).then(|| format!("{}: {line}", path.display()))
                });
                found.extend(paths);
            }
        }
    }
    let mut found = Vec::new();
    let root = root().canonicalize().unwrap();
    search(&root, &root, &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
