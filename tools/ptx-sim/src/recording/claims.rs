//! Claims that this repository's kernels rely on, and whether a recording bears them out.

use serde::Serialize;

use super::{Param, Recording, RecordingError};

/// A sentence about the hardware.
#[derive(Debug, Serialize)]
pub struct Claim {
    /// A word for programs.
    pub name: &'static str,
    /// The sentence.
    pub says: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// The counts that decide whether the claim holds.
    pub seen: String,
}

/// Clocks that a thread of `gemv_tcgen05` takes for a step of 256 codes of 128 rows, by itself: `roles` in the probes.
#[derive(Debug, Serialize)]
pub struct Roles {
    /// Of the thread that multiplies, to issue its copies of scales, multiplications and the commit.
    pub multiply_issue: f64,
    /// Of the same, until all of it was complete.
    pub multiply: f64,
    /// Of the thread that loads: three bulk copies and the wait for them.
    pub load: f64,
}

/// The clocks of the roles, where a recording has them and nothing ran into its bound.
pub fn roles(recording: &Recording<'_>) -> Result<Option<Roles>, RecordingError> {
    let mut cases = recording.cases.iter();
    let Some(case) = cases.find(|case| case.name == "roles" && case.status == "ok") else {
        return Ok(None);
    };
    let Some(Param::U32(steps @ 1..)) = case.params.last() else {
        return Err(RecordingError::Case {
            case: case.name.clone(),
            what: "its last parameter is not the number of steps".into(),
        });
    };
    let flags = recording.words("roles/flags")?;
    let times = recording.words("roles/times")?;
    let [issue, all, load] = times[..] else {
        return Err(RecordingError::Tensor {
            name: "roles/times".into(),
            what: "not three numbers".into(),
        });
    };
    let step = |clocks: u32| f64::from(clocks) / f64::from(*steps);
    Ok((flags == [1, 1]).then_some(Roles {
        multiply_issue: step(issue),
        multiply: step(all),
        load: step(load),
    }))
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
    for (n, name, says) in [
        (
            32,
            "n16_as_n32",
            "columns 0 to 15 are the same to the bit with N = 16 and with N = 32",
        ),
        (
            64,
            "n16_as_n64",
            "columns 0 to 15 are the same to the bit with N = 16 and with N = 64",
        ),
        (
            128,
            "n16_as_n128",
            "columns 0 to 15 are the same to the bit with N = 16 and with N = 128",
        ),
    ] {
        let wide = format!("full_n{n}");
        if ok("full_n16") && ok(&wide) {
            let narrow = columns(&out("full_n16")?, 16, 128, 16);
            let differ = differing(&narrow, &columns(&out(&wide)?, n, 128, 16));
            claims.push(Claim {
                name,
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
            name: "nan_outside",
            says: "NaN scales of rows and columns that nobody stores change no other sum",
            holds: differ == 0,
            seen: format!("{differ} of {} sums differ", clean.len()),
        });
    }
    for (case, n, clean, first, name, says) in [
        (
            "nan_scales_inside_n64",
            64,
            "exact_n64_k256",
            33,
            "nan_inside",
            "NaN scales of columns 33 and up, which N = 64 multiplies, change no column before them",
        ),
        (
            "in_turn_n8",
            8,
            "full_n16",
            8,
            "n8",
            "columns 0 to 7 are the same to the bit with N = 8 and with N = 16",
        ),
        (
            "in_turn_n16",
            16,
            "exact_n16_k256",
            16,
            "copies_between",
            "scales may be copied between multiplications, to columns of their own",
        ),
        (
            "one_place_n16",
            16,
            "exact_n16_k256",
            16,
            "one_place",
            "a copy of scales over columns that an earlier multiplication reads does not overtake it",
        ),
    ] {
        if ok(case) && ok(clean) {
            let width = if clean.contains("n64") { 64 } else { 16 };
            let clean = columns(&out(clean)?, width, 128, first);
            let differ = differing(&clean, &columns(&out(case)?, n, 128, first));
            claims.push(Claim {
                name,
                says,
                holds: differ == 0,
                seen: format!("{differ} of {} sums differ", clean.len()),
            });
        }
    }
    let mut cases = recording.cases.iter();
    if let Some(case) = cases.find(|case| case.name == "allocate_while_held_512") {
        claims.push(Claim {
            name: "held",
            says: "a kernel that allocates while another holds all of tensor memory waits until it is free, and ends",
            holds: case.status == "ok",
            seen: case.status.clone(),
        });
    }
    let waits = ["wait_then_allocate_512", "wait_then_allocate_32"];
    let ended = waits.map(|name| recording.cases.iter().find(|case| case.name == name));
    if let [Some(all), Some(part)] = ended {
        claims.push(Claim {
            name: "dependent",
            says: "a dependent launch that waits before it allocates tensor memory ends behind one that allocates late",
            holds: all.status == "ok" && part.status == "ok",
            seen: format!("{}; {}", all.status, part.status),
        });
    }
    Ok(claims)
}
