//! Claims that this repository's kernels rely on, and whether a recording bears them out.

use serde::Serialize;

use super::{Recording, RecordingError};

/// A sentence about the hardware.
#[derive(Debug, Serialize)]
pub struct Claim {
    /// The sentence.
    pub says: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// The counts that decide whether the claim holds.
    pub seen: String,
}

/// Columns of a result with rows of `n` words.
fn columns(words: &[u32], n: usize, rows: usize, first: usize) -> Vec<u32> {
    let rows = words.chunks_exact(n).take(rows);
    rows.flat_map(|row| row[..first].to_vec()).collect()
}

fn differing(a: &[u32], b: &[u32]) -> usize {
    let beside = a.iter().zip(b).filter(|(a, b)| a != b).count();
    beside + a.len().abs_diff(b.len())
}

/// The claims about which a recording says something.
pub fn claims(recording: &Recording<'_>) -> Result<Vec<Claim>, RecordingError> {
    let ok = |name: &str| {
        let mut cases = recording.cases.iter();
        cases.any(|case| case.name == name && case.status == "ok")
    };
    let out = |name: &str| recording.words(&format!("{name}/out"));
    let mut claims = Vec::new();
    for (n, says) in [
        (
            32,
            "columns 0 to 15 are the same to the bit with N = 16 and with N = 32",
        ),
        (
            64,
            "columns 0 to 15 are the same to the bit with N = 16 and with N = 64",
        ),
        (
            128,
            "columns 0 to 15 are the same to the bit with N = 16 and with N = 128",
        ),
    ] {
        let wide = format!("full_n{n}");
        if ok("full_n16") && ok(&wide) {
            let narrow = columns(&out("full_n16")?, 16, 128, 16);
            let differ = differing(&narrow, &columns(&out(&wide)?, n, 128, 16));
            claims.push(Claim {
                says,
                holds: differ == 0,
                seen: format!("{differ} of {} sums differ", narrow.len()),
            });
        }
    }
    if ok("exact_n16_k256") && ok("nan_scales_n16") {
        let clean = columns(&out("exact_n16_k256")?, 16, 100, 16);
        let differ = differing(&clean, &columns(&out("nan_scales_n16")?, 16, 100, 16));
        claims.push(Claim {
            says: "NaN scales of rows and columns that nobody stores change no other sum",
            holds: differ == 0,
            seen: format!("{differ} of {} sums differ", clean.len()),
        });
    }
    let waits = ["wait_then_allocate_512", "wait_then_allocate_32"];
    let ended = waits.map(|name| recording.cases.iter().find(|case| case.name == name));
    if let [Some(all), Some(part)] = ended {
        claims.push(Claim {
            says: "a dependent launch that waits before it allocates tensor memory ends behind one that allocates late",
            holds: all.status == "ok" && part.status == "ok",
            seen: format!("{}; {}", all.status, part.status),
        });
    }
    Ok(claims)
}
