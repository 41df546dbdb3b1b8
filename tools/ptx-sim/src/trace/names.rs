//! Names of stretches of a warp.

use std::fmt::Write as _;

use serde_json::Value;

use super::Slice;

/// Opcodes worth a word, the longest first where one begins with another.
#[rustfmt::skip]
const FAMILIES: [&str; 43] = [
    "cp.async.bulk.tensor", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "cp.async.bulk",
    "cp.reduce.async.bulk", "cp.async", "tcgen05.alloc", "tcgen05.dealloc", "tcgen05.mma", "tcgen05.cp",
    "tcgen05.commit", "tcgen05.ld", "tcgen05.st", "tcgen05.wait", "wgmma.mma_async", "wgmma.fence",
    "wgmma.commit_group", "wgmma.wait_group", "mbarrier.init", "mbarrier.arrive", "mbarrier.expect_tx",
    "mbarrier.try_wait", "mbarrier.test_wait", "barrier.cluster.arrive", "barrier.cluster.wait", "bar.sync",
    "bar.arrive", "bar.red", "barrier.sync", "barrier.arrive", "st.async", "red.async", "ld.global",
    "st.global", "ld.shared", "st.shared", "ldmatrix", "stmatrix", "mma.sync", "dp4a", "atom", "red", "shfl",
];

/// Words that a stretch's name may have.
const WORDS: usize = 4;

/// The family of an instruction, if it is worth a word.
pub(super) fn family(text: &str) -> Option<&'static str> {
    FAMILIES.into_iter().find(|f| {
        text.strip_prefix(f)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    })
}

/// Names a stretch by its notable instructions and their counts, or else by its lines.
pub(super) fn describe(
    s: &mut Slice,
    families: &[(&'static str, u32)],
    lines: (u32, u32),
    instructions: u64,
) {
    let (low, high) = lines;
    let mut name = String::new();
    for (i, (f, n)) in families.iter().enumerate() {
        if i == WORDS {
            name += ", …";
            break;
        }
        let comma = if i == 0 { "" } else { ", " };
        let _ = match n {
            1 => write!(name, "{comma}{f}"),
            _ => write!(name, "{comma}{f} ×{n}"),
        };
    }
    s.name = match name.is_empty() {
        true if instructions == 0 => "stopped".into(),
        true if low == high => format!("line {low}"),
        true => format!("lines {low}–{high}"),
        false => name,
    };
    s.details
        .insert("lines".into(), format!("{low}–{high}").into());
    s.details.insert("instructions".into(), instructions.into());
    let counts = families.iter().map(|(f, n)| (f.to_string(), (*n).into()));
    s.details
        .insert("opcodes".into(), Value::Object(counts.collect()));
}
