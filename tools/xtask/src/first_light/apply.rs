//! `cargo xtask first-light --apply ARCHIVE`: recordings go where tests read them, and what was tuned becomes a table.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::archive::{self, Archive};
use super::steps::is_a_topic;

/// The folder in which the simulator's test finds recordings: a folder for each GPU.
const RECORDED: &str = "tools/ptx-sim/probes/recorded";

const PTX: &str = "tools/ptx-sim/probes/ptx";

/// The folder of the built-in tables, and the list of them.
const TABLES: &str = "src/dispatch/measured";
const LIST: &str = "src/dispatch/measured/builtin.rs";

/// The contents to write, by path below the repository's root.
type Changes = BTreeMap<PathBuf, Vec<u8>>;

pub(super) fn command(root: &Path, file: &Path) -> Result<()> {
    let archive = archive::read(file)?;
    let plan = plan(root, &archive)?;
    write(root, &plan.changes)?;
    println!("{}", plan.text());
    Ok(())
}

#[derive(Debug)]
struct Plan {
    gpu: String,
    changes: Changes,
    topics: Vec<String>,
    /// Recordings that are not taken, and why.
    left: Vec<String>,
    table: Option<String>,
}

/// The changes that an archive would make. Everything is looked at before anything is written.
fn plan(root: &Path, archive: &Archive) -> Result<Plan> {
    let manifest = &archive.manifest;
    let version = super::version(root)?;
    ensure!(
        manifest.version == version,
        "made by version {:?} of the crate, and this is {version:?}",
        manifest.version
    );
    let gpu = manifest.device.slug();
    let mut plan = Plan {
        gpu: gpu.clone(),
        changes: Changes::new(),
        topics: Vec::new(),
        left: Vec::new(),
        table: None,
    };
    for (name, bytes) in &archive.files {
        let topic = name
            .strip_prefix("recorded/")
            .and_then(|name| name.strip_suffix(".safetensors"));
        let Some(topic) = topic else { continue };
        ensure!(is_a_topic(topic), "{name:?}: no such topic");
        match recording(root, topic, bytes, archive).with_context(|| name.clone())? {
            Err(why) => plan.left.push(format!("{name}: {why}")),
            Ok(()) => {
                let to = Path::new(RECORDED)
                    .join(&gpu)
                    .join(format!("{topic}.safetensors"));
                plan.change(root, to, bytes.clone())?;
                plan.topics.push(topic.into());
            }
        }
    }
    if let Some(tuned) = archive.files.get(super::TUNED) {
        plan.table(root, archive, tuned).context(super::TUNED)?;
    }
    if plan.topics.is_empty() && plan.table.is_none() {
        bail!("nothing in it could be applied\n{}", plan.left.join("\n"));
    }
    Ok(plan)
}

impl Plan {
    fn change(&mut self, root: &Path, to: PathBuf, bytes: Vec<u8>) -> Result<()> {
        let there = root.join(&to);
        match fs::read(&there) {
            Ok(old) if old == bytes => return Ok(()),
            Ok(_) => bail!(
                "{} is there, with other contents: what was recorded stays; remove it first if this is to replace it",
                to.display()
            ),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {}
            Err(why) => {
                return Err(why).with_context(|| format!("cannot read {}", there.display()));
            }
        }
        self.changes.insert(to, bytes);
        Ok(())
    }

    /// The table that was tuned, and its line in the list.
    fn table(&mut self, root: &Path, archive: &Archive, tuned: &[u8]) -> Result<()> {
        let tuned = std::str::from_utf8(tuned)?;
        let value: Value = serde_json::from_str(tuned.lines().next().unwrap_or_default())?;
        let (of, device) = (&value["gpu"], &archive.manifest.device);
        let (major, minor) = device.compute_capability;
        let capability = serde_json::json!([major, minor]);
        ensure!(
            of["name"] == *device.name && of["compute_capability"] == capability,
            "a table of {of}, and the archive is of {} ({major}.{minor})",
            device.name
        );
        let name = format!("{}.jsonl", self.gpu);
        self.change(root, Path::new(TABLES).join(&name), tuned.into())?;
        let mut list = fs::read_to_string(root.join(LIST)).context(LIST)?;
        let included = format!("include_str!({name:?})");
        if !list.contains(&included) {
            let end = list
                .rfind("];")
                .with_context(|| format!("{LIST}: no list"))?;
            list.insert_str(end, &format!("    {included},\n"));
            self.changes.insert(LIST.into(), list.into());
        }
        self.table = Some(name);
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::from("written:\n");
        for to in self.changes.keys() {
            text += &format!("  {}\n", to.display());
        }
        for left in &self.left {
            text += &format!("not taken: {left}\n");
        }
        if !self.topics.is_empty() {
            text += &format!(
                "{} now replays {} of {}: cargo test --package ptx-sim --test recorded other_devices\n\
                 It fails where the simulator differs. What it does wrong is a bug of it; what it refuses, or the ISA leaves \
                 open, goes into tools/ptx-sim/probes/exceptions.txt, in lines that begin with \"{}/\".\n",
                "tools/ptx-sim/tests/recorded.rs",
                self.topics.join(", "),
                self.gpu,
                self.gpu
            );
        }
        if let Some(table) = &self.table {
            text += &format!(
                "calls on this GPU are chosen by {TABLES}/{table} now: cargo test --lib dispatch\n"
            );
        }
        text + "Look at summary.md in the archive for the sums, and at docs/first-light.md for what follows from them."
    }
}

/// Whether a recording is of the probes that the repository has, and of the archive's device; or why it is left.
fn recording(
    root: &Path,
    topic: &str,
    bytes: &[u8],
    archive: &Archive,
) -> Result<Result<(), String>> {
    let meta = metadata(bytes)?;
    let said = |key: &str| {
        meta[key]
            .as_str()
            .with_context(|| format!("the metadata has no {key:?}"))
    };
    ensure!(
        said("format")? == "ptx-sim-probes/1",
        "another format: {:?}",
        said("format")?
    );
    ensure!(said("topic")? == topic, "its topic is {:?}", said("topic")?);
    let device = &archive.manifest.device;
    let (major, minor) = device.compute_capability;
    ensure!(
        said("gpu")? == device.name && said("compute_capability")? == format!("{major}.{minor}"),
        "of {:?}, and the archive is of {:?}",
        said("gpu")?,
        device.name
    );
    let ptx = root.join(PTX).join(format!("{topic}.ptx"));
    let ptx = fs::read(&ptx).with_context(|| format!("cannot read {}", ptx.display()))?;
    ensure!(
        said("ptx_fnv1a64")? == fnv1a(&ptx),
        "made by other probes than this repository has"
    );
    let cases = cases(bytes)?;
    ensure!(!cases.is_empty(), "it has no cases");
    let failed = cases
        .iter()
        .filter(|case| case["status"] != "ok" && case["encode_only"] != true);
    let mut failed = failed.filter_map(|case| case["name"].as_str());
    // Some of Hopper's cases are meant to fail. If all cases failed, the GPU was not there.
    let none = cases.iter().all(|case| case["status"] != "ok");
    Ok(match failed.next() {
        Some(case) if none => Err(format!("no case ended well, as {case:?}")),
        _ => Ok(()),
    })
}

/// The cases of a recording.
pub(super) fn cases(bytes: &[u8]) -> Result<Vec<Value>> {
    let meta = metadata(bytes)?;
    let cases = meta["cases"].as_str().context("it says nothing of cases")?;
    serde_json::from_str(cases).context("its cases")
}

/// The metadata of a safetensors file.
fn metadata(bytes: &[u8]) -> Result<Value> {
    let (length, rest) = bytes.split_first_chunk().context("no safetensors file")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok();
    let header = length.and_then(|length| rest.get(..length));
    let header: Value = serde_json::from_slice(header.context("no safetensors file")?)?;
    ensure!(header["__metadata__"].is_object(), "no metadata");
    Ok(header["__metadata__"].clone())
}

/// The hash that the recorder makes of PTX.
fn fnv1a(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// All or nothing: what was written before a failure is taken back.
fn write(root: &Path, changes: &Changes) -> Result<()> {
    let mut before: Vec<(&PathBuf, Option<Vec<u8>>)> = Vec::new();
    for (to, bytes) in changes {
        let file = root.join(to);
        let put = || {
            fs::create_dir_all(file.parent().context("no folder")?)?;
            crate::write::whole(&file, bytes)
        };
        let old = fs::read(&file).ok();
        if let Err(why) = put() {
            for (to, old) in &before {
                let file = root.join(to);
                let back = match old {
                    Some(old) => fs::write(&file, old),
                    None => fs::remove_file(&file),
                };
                back.with_context(|| format!("cannot take {} back", file.display()))?;
            }
            return Err(why)
                .with_context(|| format!("cannot write {}; nothing was changed", file.display()));
        }
        before.push((to, old));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::archive::tests::manifest;
    use super::*;
    use crate::testing::contains;

    fn repository() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let version = env!("CARGO_PKG_VERSION");
        put(
            "Cargo.toml",
            &format!("[workspace.package]\nversion = {version:?}\n"),
        );
        put("tools/ptx-sim/probes/ptx/mma_fp4.ptx", "the probes");
        put("tools/ptx-sim/probes/recorded/tma.safetensors", "an H200's");
        put(LIST, BEFORE);
        root
    }

    const BEFORE: &str =
        "const FILES: &[&str] = &[\n    include_str!(\"h200.jsonl\"), // first\n];\n";

    fn table(name: &str, capability: [i32; 2]) -> String {
        let gpu = json!({"name": name, "compute_capability": capability, "multiprocessors": 170});
        format!("{}\n{}\n", json!({"gpu": gpu}), json!({"m": 1}))
    }

    /// A file of the simulator's answers, as if an RTX 5090 had recorded them.
    fn recorded(change: impl Fn(&mut Value)) -> Vec<u8> {
        let file = "../ptx-sim/probes/simulated/mma_fp4.safetensors";
        let bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let mut header: Value = serde_json::from_slice(header).unwrap();
        let meta = &mut header["__metadata__"];
        meta["gpu"] = manifest().device.name.into();
        meta["compute_capability"] = "12.0".into();
        meta["ptx_fnv1a64"] = fnv1a(b"the probes").into();
        change(meta);
        let header = serde_json::to_vec(&header).unwrap();
        [&(header.len() as u64).to_le_bytes(), &header[..], data].concat()
    }

    fn archive(files: &[(&str, Vec<u8>)]) -> Archive {
        let files = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.clone()));
        Archive {
            manifest: manifest(),
            files: files.collect(),
        }
    }

    fn whole() -> Archive {
        let tuned = table(&manifest().device.name, [12, 0]).into_bytes();
        archive(&[
            (RECORDING, recorded(|_| {})),
            ("tuned.jsonl", tuned),
            ("summary.md", vec![]),
        ])
    }

    const RECORDING: &str = "recorded/mma_fp4.safetensors";

    fn refusal(root: &Path, archive: &Archive) -> String {
        format!("{:#}", plan(root, archive).unwrap_err())
    }

    #[test]
    fn recordings_and_tables_go_where_they_are_read() {
        let root = repository();
        let root = root.path();
        let archive = whole();
        let plan = plan(root, &archive).unwrap();
        write(root, &plan.changes).unwrap();
        let there = |name: &str| fs::read(root.join(name)).expect(name);
        let recorded = "tools/ptx-sim/probes/recorded/rtx5090/mma_fp4.safetensors";
        assert_eq!(there(recorded), archive.files[RECORDING]);
        let older = "tools/ptx-sim/probes/recorded/tma.safetensors";
        assert_eq!(there(older), b"an H200's");
        let table = format!("{TABLES}/rtx5090.jsonl");
        assert_eq!(there(&table), archive.files["tuned.jsonl"]);
        let list = String::from_utf8(there(LIST)).unwrap();
        contains(
            &list,
            &["// first\n    include_str!(\"rtx5090.jsonl\"),\n];"],
        );
        contains(
            &plan.text(),
            &["replays mma_fp4 of rtx5090", "rtx5090.jsonl now"],
        );
        // Again changes nothing; with other contents it would replace what was recorded.
        assert_eq!(super::plan(root, &archive).unwrap().changes, Changes::new());
        fs::write(root.join(recorded), "older").unwrap();
        let parts = ["rtx5090/mma_fp4", "what was recorded stays"];
        contains(&refusal(root, &archive), &parts);
    }

    #[test]
    fn what_is_not_of_these_probes_and_this_gpu_is_refused() {
        let root = repository();
        let root = root.path();
        let says = |name: &str, bytes: Vec<u8>, parts: &[&str]| {
            contains(&refusal(root, &archive(&[(name, bytes)])), parts);
        };
        for (key, value, parts) in [
            ("gpu", "NVIDIA B200", &["\"NVIDIA B200\"", "RTX 5090"][..]),
            ("compute_capability", "9.0", &["and the archive is of"]),
            ("ptx_fnv1a64", "0", &["made by other probes"]),
            ("topic", "tma", &["its topic is \"tma\""]),
            ("format", "x", &["another format"]),
            ("cases", "[]", &["no cases"]),
            ("cases", "[", &["its cases"]),
            (
                "cases",
                r#"[{"name": "a", "status": "error: x"}]"#,
                &["nothing in it could be applied", "no case ended well"],
            ),
        ] {
            says(RECORDING, recorded(|meta| meta[key] = value.into()), parts);
        }
        says(
            RECORDING,
            recorded(|meta| *meta = json!([])),
            &["no metadata"],
        );
        for bytes in [vec![], vec![255; 8], vec![255; 100]] {
            says(RECORDING, bytes, &["no safetensors file"]);
        }
        says("recorded/passwords.safetensors", vec![], &["no such topic"]);
        let tuned = table("NVIDIA B200", [10, 0]).into_bytes();
        says("tuned.jsonl", tuned, &["and the archive is of"]);
        let mut other = whole();
        other.manifest.version = "99.0.0".into();
        contains(&refusal(root, &other), &["\"99.0.0\""]);
        assert!(!root.join(RECORDED).join("rtx5090").exists());
    }

    #[test]
    fn a_failure_changes_nothing() {
        let root = repository();
        let root = root.path();
        let plan = plan(root, &whole()).unwrap();
        // A folder stands where the last of the files belongs.
        let last = plan.changes.keys().next_back().unwrap();
        assert!(last.starts_with(RECORDED) && plan.changes.len() > 2);
        fs::create_dir_all(root.join(last)).unwrap();
        let error = write(root, &plan.changes).unwrap_err();
        contains(&format!("{error:#}"), &["nothing was changed"]);
        assert!(!root.join(TABLES).join("rtx5090.jsonl").exists());
        assert_eq!(fs::read_to_string(root.join(LIST)).unwrap(), BEFORE);
    }
}
