//! Texts on bars, the longest first.

use super::super::Slice;

pub(super) fn run_texts(name: &str) -> Vec<String> {
    let short = |s: &str| s.replace("tcgen05.", "").replace("cp.async.bulk", "bulk");
    let all = short(name);
    let interesting: Vec<&str> = all
        .split(", ")
        .filter(|w| !w.starts_with("bar") && !w.starts_with("mbarrier") && *w != "…")
        .collect();
    let names: Vec<&str> = interesting
        .iter()
        .map(|w| w.split_once(" ×").map_or(*w, |(name, _)| name))
        .collect();
    let mut texts = vec![all.clone(), interesting.join(", ")];
    texts.extend((1..=names.len()).rev().map(|n| names[..n].join(", ")));
    texts
}

pub(super) fn phase_texts(s: &Slice) -> Vec<String> {
    let mut texts = vec![s.name.clone()];
    if let Some(n) = s.number("arrivals").filter(|n| *n > 0) {
        let arrivals = if n == 1 { "arrival" } else { "arrivals" };
        texts.insert(0, format!("{}: {n} {arrivals}", s.name));
        if let Some(tx) = s.number("tx_bytes") {
            texts.insert(0, format!("{}, {tx} B", texts[0]));
        }
    }
    texts.extend(s.number("phase").map(|n| n.to_string()));
    texts
}
