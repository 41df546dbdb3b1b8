//! Proofs that a step must have left. A filter that names no trial, a GPU that is not there, or a program that finds
//! nothing to do ends with status 0: that is no answer.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::apply;

/// A proof that a step did its work; files are below the night's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The status is enough.
    Status,
    /// The log counts a trial that passed.
    Trials,
    /// A recording with a case that ended well.
    Recording(String),
    /// A replay of one case or more.
    Replay(String),
    /// `info`: the program has this machine code, and found a GPU.
    Image { file: String, arch: String },
    /// `verify`: something was computed.
    Verified(String),
    /// `verify --soak`: launches, and results that were looked at more than once.
    Soak(String),
    /// A verdict on each predicted problem, of which one at least was asked.
    Predicted(String),
    /// `bench --ceiling`: kernels of both kinds at each size.
    Ceilings(String),
    /// Clusters of more than one CTA.
    Clusters(String),
    /// `bench`: a problem that a path ran.
    Bench(String),
    /// A file of lines.
    Lines(String),
}

impl Proof {
    /// Looks at what is there.
    ///
    /// # Errors
    /// The missing proof.
    pub(super) fn check(&self, out: &Path, log: &Path) -> Result<(), String> {
        let json = |file: &str| -> Result<Value, String> {
            let bytes = fs::read(out.join(file)).map_err(|why| format!("{file}: {why}"))?;
            serde_json::from_slice(&bytes).map_err(|why| format!("{file}: {why}"))
        };
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let some = |is: bool, missing: &str| is.then_some(()).ok_or_else(|| missing.to_owned());
        match self {
            Self::Status => Ok(()),
            Self::Trials => {
                let text = fs::read(log).map_err(|why| why.to_string())?;
                some(
                    passed_trials(&String::from_utf8_lossy(&text)) > 0,
                    "no trial ran",
                )
            }
            Self::Recording(file) => {
                let bytes = fs::read(out.join(file)).map_err(|why| format!("{file}: {why}"))?;
                let cases = apply::cases(&bytes).map_err(|why| format!("{file}: {why:#}"))?;
                let ended = cases.iter().filter(|case| case["status"] == "ok");
                some(ended.count() > 0, "no case ended well")
            }
            Self::Replay(file) => some(number(&json(file)?["cases"]) > 0, "no case was replayed"),
            Self::Image { file, arch } => {
                let cuda = &json(file)?["cuda"];
                let archs = cuda["archs"].as_array().map_or(&[][..], Vec::as_slice);
                some(
                    archs.iter().any(|of| of == arch),
                    &format!("the program has no machine code for {arch}, which ships"),
                )?;
                let devices = cuda["devices"].as_array().map_or(0, Vec::len);
                some(devices > 0, "the program found no GPU")
            }
            Self::Verified(file) => {
                some(number(&json(file)?["computed"]) > 0, "nothing was computed")
            }
            Self::Soak(file) => {
                let soak = &json(file)?["soak"];
                some(
                    number(&soak["launches"]) > 0 && number(&soak["rounds"]) > 1,
                    "nothing was computed again",
                )
            }
            Self::Predicted(file) => {
                let json = json(file)?;
                let problems = json.as_array().map_or(&[][..], Vec::as_slice);
                let asked =
                    |of: &&Value| of["verdict"] == "confirmed" || of["verdict"] == "refuted";
                some(
                    problems.iter().filter(asked).count() > 0,
                    "no problem was asked",
                )
            }
            Self::Ceilings(file) => {
                let json = json(file)?;
                some(!ceilings(&json).is_empty(), "no kernel only read")
            }
            Self::Clusters(file) => {
                let json = json(file)?;
                let all = json["clusters"].as_array().map_or(&[][..], Vec::as_slice);
                let fits = |of: &&Value| number(&of["size"]) > 1 && number(&of["most"]) > 0;
                some(all.iter().filter(fits).count() > 0, "no cluster fits")
            }
            Self::Bench(file) => {
                let json = json(file)?;
                let cases = json["cases"].as_array().map_or(&[][..], Vec::as_slice);
                let ran = |of: &&Value| {
                    of["paths"]
                        .as_array()
                        .is_some_and(|paths| !paths.is_empty())
                };
                some(cases.iter().filter(ran).count() > 0, "no path ran")
            }
            Self::Lines(file) => {
                let text =
                    fs::read_to_string(out.join(file)).map_err(|why| format!("{file}: {why}"))?;
                some(text.lines().count() > 0, "the file is empty")
            }
        }
    }
}

/// Trials that passed, by the summaries of test programs.
fn passed_trials(log: &str) -> u64 {
    let summaries = log.lines().filter(|line| line.starts_with("test result:"));
    let passed = summaries.filter_map(|line| {
        let (before, _) = line.split_once(" passed")?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    });
    passed.sum()
}

/// A size of `bench --ceiling`: its bytes, and GB/s of the fastest kernels of wide loads and of bulk copies.
#[derive(Debug, PartialEq)]
pub(super) struct Ceiling {
    pub(super) bytes: u64,
    pub(super) loads: f64,
    pub(super) bulk: f64,
}

/// The sizes at which both kinds of kernels read.
pub(super) fn ceilings(json: &Value) -> Vec<Ceiling> {
    let sizes = json["sizes"].as_array().map_or(&[][..], Vec::as_slice);
    let of = |size: &Value| {
        let reads = size["reads"].as_array()?;
        let fastest = |bulk: bool| {
            let of_kind = reads.iter().filter(|read| {
                let kernel = read["kernel"].as_str();
                kernel.is_some_and(|kernel| kernel.starts_with("bulk") == bulk)
            });
            let rates = of_kind.filter_map(|read| read["gb_per_s"].as_f64());
            rates.reduce(f64::max)
        };
        Some(Ceiling {
            bytes: size["bytes"].as_u64()?,
            loads: fastest(false)?,
            bulk: fastest(true)?,
        })
    };
    sizes.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(proof: &Proof, file: &str, text: &[u8]) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(file), text).unwrap();
        proof.check(folder.path(), &folder.path().join("log"))
    }

    /// The output of a program that ran something; and of one that ran nothing, with status 0 all the same.
    #[test]
    fn a_step_that_did_nothing_has_not_passed() {
        let file = || "f".to_owned();
        let image = Proof::Image {
            file: file(),
            arch: "100f".into(),
        };
        let read = |kernel: &str, rate: f64| json!({"kernel": kernel, "gb_per_s": rate});
        let reads = |all: &[Value]| json!({"sizes": [{"bytes": 9, "reads": all}]});
        let (loads, bulk) = (read("8x256x4", 10.0), read("bulk 1x12x8192", 12.0));
        for (proof, did, nothing) in [
            (
                image.clone(),
                json!({"cuda": {"archs": ["100f"], "devices": [{}]}}),
                json!({"cuda": {"archs": ["103f"], "devices": [{}]}}),
            ),
            (
                image,
                json!({"cuda": {"archs": ["100f"], "devices": [{}]}}),
                json!({"cuda": {"archs": ["100f"], "devices": []}}),
            ),
            (
                Proof::Replay(file()),
                json!({"cases": 1}),
                json!({"cases": 0}),
            ),
            (
                Proof::Verified(file()),
                json!({"computed": 1}),
                json!({"computed": 0}),
            ),
            (
                Proof::Soak(file()),
                json!({"soak": {"launches": 9, "rounds": 2}}),
                json!({"soak": null}),
            ),
            (
                Proof::Soak(file()),
                json!({"soak": {"launches": 9, "rounds": 2}}),
                json!({"soak": {"launches": 9, "rounds": 1}}),
            ),
            (
                Proof::Predicted(file()),
                json!([{"verdict": "refuted"}]),
                json!([{"verdict": "not asked: too few multiprocessors"}]),
            ),
            (
                Proof::Predicted(file()),
                json!([{"verdict": "confirmed"}]),
                json!([]),
            ),
            (
                Proof::Ceilings(file()),
                reads(&[loads.clone(), bulk]),
                reads(&[loads]),
            ),
            (
                Proof::Clusters(file()),
                json!({"clusters": [{"size": 2, "most": 66}]}),
                json!({"clusters": [{"size": 1, "most": 132}, {"size": 2, "most": 0}]}),
            ),
            (
                Proof::Bench(file()),
                json!({"cases": [{"paths": [{}]}]}),
                json!({"cases": [{"paths": []}]}),
            ),
        ] {
            let did = check(&proof, "f", did.to_string().as_bytes());
            assert_eq!(did, Ok(()), "{proof:?}");
            let nothing = check(&proof, "f", nothing.to_string().as_bytes());
            assert!(nothing.is_err(), "{proof:?}");
            assert!(check(&proof, "another", b"").is_err(), "{proof:?}: no file");
            assert!(check(&proof, "f", b"").is_err(), "{proof:?}: an empty file");
        }
        assert!(check(&Proof::Lines(file()), "f", b"x\n").is_ok());
        assert!(check(&Proof::Lines(file()), "f", b"").is_err());
    }

    #[test]
    fn trials_are_counted_in_the_log() {
        let ran = "running 3 tests\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out\n";
        let none = "running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
        let ignored =
            "test result: ok. 0 passed; 0 failed; 19 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(check(&Proof::Trials, "log", ran.as_bytes()), Ok(()));
        for nothing in [none, ignored, ""] {
            assert!(
                check(&Proof::Trials, "log", nothing.as_bytes()).is_err(),
                "{nothing}"
            );
        }
    }

    #[test]
    fn a_recording_without_a_case_is_none() {
        let of = |status: &str| {
            let cases = format!(r#"[{{"name":"a","status":"{status}"}}]"#);
            let header = json!({"__metadata__": {"cases": cases}}).to_string();
            [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
        };
        let proof = Proof::Recording("f".into());
        assert_eq!(check(&proof, "f", &of("ok")), Ok(()));
        assert!(check(&proof, "f", &of("error: load")).is_err());
        assert!(check(&proof, "f", b"").is_err());
    }
}
