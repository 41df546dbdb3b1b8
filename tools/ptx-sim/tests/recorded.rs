//! Replays what GPUs did: the same PTX, the same inputs, the same bytes.
//!
//! `probes/recorded` has what an H200 did, and a folder for each other GPU: `cargo xtask first-light --apply` puts them
//! there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ptx_sim::SumRule;
use ptx_sim::recording::{End, Recording, replay};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("probes")
}

/// Cases that are known to end otherwise: `topic case` or `topic prefix*`, and why.
fn exceptions(topic: &str) -> Vec<(String, String)> {
    let text =
        std::fs::read_to_string(folder().join("exceptions.txt")).expect("list of exceptions");
    let mut list = Vec::new();
    for line in text
        .lines()
        .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
    {
        let mut words = line.splitn(3, ' ');
        let (t, case, why) = (
            words.next().unwrap_or(""),
            words.next().unwrap_or(""),
            words.next().unwrap_or(""),
        );
        assert!(!why.is_empty(), "no reason: {line}");
        if t == topic {
            list.push((case.to_string(), why.to_string()));
        }
    }
    list
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(p) => name.starts_with(p),
        None => pattern == name,
    }
}

/// Replays a file; `device` is in front of the file's topic in the list of exceptions.
fn recorded(file: &Path, device: &str) {
    let bytes = std::fs::read(file).expect("recording");
    let data = Recording::read(&bytes).expect("a recording");
    let topic = format!("{device}{}", data.topic().expect("topic"));
    let listed = exceptions(&topic);
    let modules = data.modules(&folder().join("ptx")).expect("PTX");
    let (mut same, mut maps, mut refused) = (0, 0, 0);
    let (mut unmodelled, mut different) = (0, 0);
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for case in &data.cases {
        let known = listed.iter().find(|(p, _)| matches(p, &case.name));
        let count = match case.status.as_str() {
            _ if case.is_a_map() => &mut maps,
            "ok" => &mut same,
            _ => &mut refused,
        };
        let end = replay(case, &modules, &data, SumRule::Own).expect("a case");
        match (&end, known) {
            (End::Same, Some((p, _))) => {
                wrong.push(format!("{}: listed as {p}, and now the same", case.name))
            }
            (_, Some((p, _))) => {
                used.insert(p.clone());
            }
            (End::Same, None) => {}
            (End::Unmodelled(why), None) => {
                wrong.push(format!("{}: not modelled: {why}", case.name))
            }
            (End::Different(why), None) => wrong.push(format!("{}: {why}", case.name)),
        }
        match end {
            End::Same => *count += 1,
            End::Unmodelled(_) => unmodelled += 1,
            End::Different(_) => different += 1,
        }
    }
    for (p, _) in listed.iter().filter(|(p, _)| !used.contains(p)) {
        wrong.push(format!("{p}: listed, but no such case differs"));
    }
    println!(
        "{topic}: {same} the same, {refused} refused on both sides, {maps} tensor maps judged \
         alike, {different} different, {unmodelled} not modelled"
    );
    assert!(
        wrong.is_empty(),
        "{topic}: {} of {} cases:\n{}",
        wrong.len(),
        data.cases.len(),
        wrong.join("\n")
    );
}

fn topic(topic: &str) {
    let file = format!("{topic}.safetensors");
    recorded(&folder().join("recorded").join(file), "");
}

/// Exceptions of these name the device: `b200/tcgen05 case reason`.
#[test]
fn other_devices() {
    let entries = std::fs::read_dir(folder().join("recorded")).expect("recordings");
    let folders = entries.map(|entry| entry.expect("an entry").path());
    for device in folders.filter(|path| path.is_dir()) {
        let name = device.file_name().expect("a name").to_string_lossy();
        for file in std::fs::read_dir(&device).expect("a device's recordings") {
            recorded(&file.expect("an entry").path(), &format!("{name}/"));
        }
    }
}

#[test]
fn conversions() {
    topic("cvt");
}

#[test]
fn floating_point() {
    topic("arith");
}

#[test]
fn integers() {
    topic("integer");
}

#[test]
fn warps() {
    topic("warp");
}

#[test]
fn asynchronous() {
    topic("async");
}

#[test]
fn matrices() {
    topic("matrix");
}

#[test]
fn sums_of_f16() {
    topic("sums_f16");
}

#[test]
fn tensor_copies() {
    topic("tma");
}

#[test]
fn warpgroup_matrices() {
    topic("wgmma");
}
