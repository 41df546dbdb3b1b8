//! The page of a night: what was confirmed, what was refuted, and which bound, model and default follow from it.
//!
//! An answer comes from what a step left, never from its status alone, and a question that nobody could ask is said to
//! be open.

use std::collections::BTreeMap;

use nvfp4_gemv_documents::table::Table;
use serde_json::Value;

use super::archive::{Manifest, Ran};
use super::proof::ceilings;
use super::report::{known, plain, said};
use super::watchdog::End;
use super::{CEILINGS, CLUSTERS, INFO, SOAK, TUNED};

/// The files that steps left.
pub(super) struct Night<'a> {
    pub(super) manifest: &'a Manifest,
    /// The simulator's verdict on each topic.
    pub(super) replays: &'a BTreeMap<String, Value>,
    /// Verdicts on the published rule of sums, by step.
    pub(super) published: &'a BTreeMap<String, Value>,
    /// Other outputs, by their names in the archive.
    pub(super) results: &'a BTreeMap<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Confirmed,
    Refuted,
    /// A figure, which nothing was predicted for.
    Measured,
    Open,
}

impl Answer {
    const fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Refuted => "**refuted**",
            Self::Measured => "measured",
            Self::Open => "open",
        }
    }

    /// `None`: nobody could ask.
    const fn of(holds: Option<bool>) -> Self {
        match holds {
            Some(true) => Self::Confirmed,
            Some(false) => Self::Refuted,
            None => Self::Open,
        }
    }
}

/// One question.
#[derive(Debug)]
struct Verdict {
    question: String,
    answer: Answer,
    seen: String,
    /// The consequence: a bound, a model, a default.
    follows: String,
}

/// Roundings that the bounds count for a matrix instruction: `ASSUMED_ROUNDINGS` of `src/kernel/tcgen05.rs`.
const ASSUMED: u64 = 3;

/// Clocks in which memory brings a step of 256 codes of 128 rows to a multiprocessor of a B200, at least: a role that
/// takes more is the limit.
const MEMORY_CLOCKS: f64 = 650.0;

/// The share of multiprocessors that `cost` in `src/kernel/mma_fp4.rs` gives clusters of more than two CTAs.
const FILLED: f64 = 0.9;

/// The consequences where a claim of the probes holds, and where it does not; by the claim's name.
const CLAIMS: [(&str, &str, &str); 9] = [
    (
        "n16_as_n32",
        "Default: none changes; rows are the same for N of 16 and 32.",
        "Default: rows that must not depend on n need one N for all (docs/using.md).",
    ),
    (
        "n16_as_n64",
        "Default: none changes; rows are the same for N of 16 and 64.",
        "Default: rows that must not depend on n need one N for all (docs/using.md).",
    ),
    (
        "n16_as_n128",
        "Default: none changes; rows are the same for N of 16 and 128.",
        "Default: rows that must not depend on n need one N for all (docs/using.md).",
    ),
    (
        "nan_outside",
        "Default: scales of rows and vectors that nobody stores stay as they are copied.",
        "Default: `gemv_tcgen05` must clear them before it multiplies: results are wrong until it does.",
    ),
    (
        "nan_inside",
        "Default: `clear_missing_words` of `gemv_tcgen05` is not needed by this GPU, only by the simulator.",
        "Default: `clear_missing_words` stays. Model: what a NaN scale reaches, in ptx-sim's `tcgen05.mma`.",
    ),
    (
        "copies_between",
        "Default: scales may be copied between multiplications.",
        "Default: all copies of a step stay before its multiplications. Model: the order in which ptx-sim runs them.",
    ),
    (
        "one_place",
        "Default: stages may share columns of scales, which frees tensor memory; the ISA still does not promise it.",
        "Default: each stage keeps columns of its own. Model: ptx-sim is right to call it a hazard.",
    ),
    (
        "n8",
        "Default: an entry point with N = 8 would give the same bits for up to eight vectors.",
        "Default: N stays 16 at least.",
    ),
    (
        "held",
        "Default: none changes; beside a foreign kernel the launch waits (docs/tensor-core-path.md).",
        "Default: `tensor-core` must not be taken beside kernels that hold tensor memory: say so where it is chosen.",
    ),
];

/// Cases that the simulator refuses on purpose, by topic: a kernel's late allocation may wait for one that waits for it.
const REFUSED: (&str, [&str; 3]) = (
    "tcgen05_pdl",
    [
        "wait_then_allocate_512",
        "wait_then_allocate_32",
        "allocate_then_wait_256",
    ],
);

/// The claim about dependent launches, which has no row of [`CLAIMS`]: its name is enough.
const DEPENDENT: &str = "dependent";

impl Night<'_> {
    fn ran(&self, step: &str) -> Option<&Ran> {
        let mut steps = self.manifest.steps.iter();
        steps.find(|ran| ran.name == step)
    }

    /// Whether steps passed; `None` where one of them was not there or not begun, and none failed.
    fn passed(&self, steps: &[&str]) -> Option<bool> {
        let ends: Vec<Option<&End>> = steps
            .iter()
            .map(|step| self.ran(step).map(|ran| &ran.end))
            .collect();
        let failed =
            |end: &Option<&End>| !matches!(end, None | Some(End::Passed | End::Skipped(_)));
        match ends.iter().any(failed) {
            true => Some(false),
            false => ends
                .iter()
                .all(|end| matches!(end, Some(End::Passed)))
                .then_some(true),
        }
    }

    /// How steps ended.
    fn ends(&self, steps: &[&str]) -> String {
        let end = |step: &&str| match self.ran(step) {
            None => format!("{step}: not chosen"),
            Some(ran) => match ran.end.why() {
                "" => format!("{step}: {}", ran.end.word()),
                why => format!("{step}: {} ({})", ran.end.word(), plain(why)),
            },
        };
        steps.iter().map(end).collect::<Vec<_>>().join("; ")
    }

    /// The step of the tests of this GPU's own kernel.
    fn own_tests(&self) -> Option<&str> {
        let own = |ran: &&Ran| {
            let name = ran.name.strip_prefix("tests-");
            name.is_some_and(|name| name != "all")
                && !matches!(&ran.end, End::Skipped(why) if why.starts_with("for compute capability"))
        };
        let found = self.manifest.steps.iter().find(own);
        found.map(|ran| ran.name.as_str())
    }

    fn what_ships(&self) -> Verdict {
        let tests = self.own_tests();
        let mut steps = vec!["info"];
        steps.extend(tests);
        steps.extend(["tests-all", "verify"]);
        let kernel = tests.map_or("the kernels", |name| &name["tests-".len()..]);
        Verdict {
            question: format!(
                "Does the code that ships ({}) compute right on this GPU?",
                self.manifest.device.arch()
            ),
            answer: Answer::of(self.passed(&steps)),
            seen: match self.results.get(INFO) {
                Some(info) => format!(
                    "machine code for {}; {}",
                    said(&info["cuda"]["archs"]),
                    self.ends(&steps)
                ),
                None => self.ends(&steps),
            },
            follows: match self.passed(&steps) {
                Some(true) => format!(
                    "Default: dispatch goes on taking {kernel}. The words \"not yet on hardware\" go, for this GPU"
                ),
                Some(false) => format!(
                    "Default: {kernel} must be refused on this GPU (`Kernel::available`) until what failed is mended"
                ),
                None => String::new(),
            },
        }
    }

    fn soak(&self) -> Verdict {
        let soak = self.results.get(SOAK).map(|of| &of["soak"]);
        let holds = match (self.passed(&["soak"]), soak) {
            // Launches that were counted, or the watchdog's word.
            (Some(true), Some(soak)) => Some(soak["passed"] == true),
            (Some(false), _) => Some(false),
            _ => None,
        };
        Verdict {
            question: "Does it for twenty minutes, without a hang and without another bit?".into(),
            answer: Answer::of(holds),
            seen: match soak {
                Some(soak) if soak.is_object() => format!(
                    "{} launches, {} rounds, failures: {}",
                    soak["launches"],
                    soak["rounds"],
                    said(&soak["failures"])
                ),
                _ => self.ends(&["soak"]),
            },
            follows: match holds {
                Some(true) => "Default: none changes".into(),
                Some(false) => "Default: `tensor-core` must not be taken on this GPU. Build with code for this very \
                    architecture (`NVFP4_GEMV_ARCHS=103a` on a B300) and ask again: public hangs there concern 100f"
                    .into(),
                None => String::new(),
            },
        }
    }

    /// The published rule for a topic's instruction, by its single sums.
    fn rule(&self, step: &str, by_rule: &Value) -> Verdict {
        let topic = &step["rule-".len()..];
        let question = format!(
            "Does {} add as the published model says?",
            instruction(topic)
        );
        let open = |seen: String| Verdict {
            question: question.clone(),
            answer: Answer::Open,
            seen,
            follows: String::new(),
        };
        let gpu = said(&by_rule["sums_of"]);
        let different = by_rule["different"].as_array();
        let Some(different) = different else {
            return open("the step left no answer".into());
        };
        let of_sums = |case: &&Value| {
            let name = case["case"].as_str().unwrap_or_default();
            topic == "wgmma" || name.starts_with("sums")
        };
        let unasked = different
            .iter()
            .find(|case| of_sums(case) && case["status"] != "ok");
        if let Some(case) = unasked {
            return open(format!(
                "{}: {}",
                said(&case["case"]),
                said(&case["status"])
            ));
        }
        let wrong = different.iter().filter(of_sums).count();
        let is_fp4 = matches!(topic, "tcgen05" | "mma_fp4");
        if !is_fp4 {
            let cases = &by_rule["cases"];
            return Verdict {
                answer: Answer::of((cases.as_u64() > Some(0)).then_some(wrong == 0)),
                question,
                seen: format!("{gpu}: {wrong} of {cases} cases differ"),
                follows: match wrong {
                    0 => "Model: the authors' method holds for this instruction".into(),
                    _ => format!(
                        "Model: `{gpu}` in tools/ptx-sim/src/models/sums.rs is wrong for it"
                    ),
                },
            };
        }
        let sums = match self.replays.get(topic).map(|replay| &replay["sums"]) {
            Some(sums) if sums["sums"].as_u64() > Some(0) => sums,
            _ => return open("no sums were recorded".into()),
        };
        if sums["exact_sums_wrong"] != 0 || sums["columns_agree"] != true {
            return open(
                "operands are not where they are believed to be: mend the layout first".into(),
            );
        }
        let roundings = sums["roundings_at_least"].as_u64().unwrap_or(u64::MAX);
        let all = sums["by_published"] == sums["sums"];
        let holds = all && wrong == 0 && roundings <= ASSUMED;
        let machine = match sums["explained"] == sums["sums"] {
            true => format!("this rule gives all: {}", said(&sums["machine"])),
            false => format!(
                "no rule that was tried gives all; the nearest, {} of {}: {}",
                sums["explained"],
                sums["sums"],
                said(&sums["machine"])
            ),
        };
        Verdict {
            question,
            answer: Answer::of(Some(holds)),
            seen: format!(
                "{} of {} sums come out by it, and {} other rules do as well; the worst error is {roundings} roundings",
                sums["by_published"],
                sums["sums"],
                match sums["is_published"] == true {
                    true => "no".into(),
                    false => said(&sums["as_good"]),
                }
            ),
            follows: match holds {
                true => format!(
                    "Bound: ASSUMED_ROUNDINGS stays {ASSUMED}, and no longer rests on a model alone. Model: ptx-sim's own \
                     sums of {} become this rule (`SumRule::Own`). Default: none changes",
                    instruction(topic)
                ),
                false => format!(
                    "Bound: ASSUMED_ROUNDINGS must be {} at least, and what the rule's worst case is. Model: {machine}",
                    roundings.max(ASSUMED + u64::from(!all && roundings <= ASSUMED)),
                ),
            },
        }
    }

    /// Whole problems.
    fn predicted(&self, step: &str, problems: &[Value]) -> Verdict {
        let count = |verdict: &str| {
            problems
                .iter()
                .filter(|of| of["verdict"] == verdict)
                .count()
        };
        let (right, wrong) = (count("confirmed"), count("refuted"));
        let holds = match (right, wrong) {
            (0, 0) => None,
            (_, wrong) => Some(wrong == 0),
        };
        Verdict {
            question: format!(
                "Do whole problems have the bits that it predicts for {}?",
                &step["predicted-".len()..]
            ),
            answer: Answer::of(holds),
            seen: format!(
                "{right} confirmed, {wrong} refuted, {} not asked",
                problems.len() - right - wrong
            ),
            follows: match holds {
                Some(true) => "Model: the order of sums in tests/kernels/predicted.rs is the hardware's. Bound: holds for \
                    whole problems"
                    .into(),
                Some(false) => "Model: where single sums were confirmed, the order of sums in \
                    tests/kernels/predicted.rs is another. Bound: check it with the error of `verify`"
                    .into(),
                None => String::new(),
            },
        }
    }

    fn claims(&self) -> Vec<Verdict> {
        let all = self.replays.values().map(|replay| &replay["claims"]);
        let all: Vec<&Value> = all.filter_map(Value::as_array).flatten().collect();
        let found = |name: &str| all.iter().find(|claim| claim["name"] == name);
        let mut verdicts = Vec::new();
        for (name, holds, not) in CLAIMS {
            if let Some(claim) = found(name) {
                let is = claim["holds"] == true;
                verdicts.push(Verdict {
                    question: said(&claim["says"]),
                    answer: Answer::of(Some(is)),
                    seen: said(&claim["seen"]),
                    follows: if is { holds } else { not }.trim_end_matches('.').into(),
                });
            }
        }
        if let Some(claim) = found(DEPENDENT) {
            let is = claim["holds"] == true;
            verdicts.push(Verdict {
                question: said(&claim["says"]),
                answer: Answer::of(Some(is)),
                seen: said(&claim["seen"]),
                follows: match is {
                    true => "Default: chained launches stay",
                    false => "Default: `tcgen05` must not be chained on this GPU",
                }
                .into(),
            });
        }
        verdicts
    }

    fn roles(&self) -> Option<Verdict> {
        let roles = &self.replays.get("tcgen05")?["roles"];
        let issue = roles["multiply_issue"].as_f64()?;
        let (all, load) = (roles["multiply"].as_f64()?, roles["load"].as_f64()?);
        let holds = issue.max(all) <= MEMORY_CLOCKS;
        Some(Verdict {
            question: format!(
                "Does the thread that multiplies take fewer than the {MEMORY_CLOCKS} clocks in which memory brings a step?"
            ),
            answer: Answer::of(Some(holds)),
            seen: format!(
                "{issue:.0} clocks to issue a step of 256, {all:.0} with what it waits for (estimated: 555); {load:.0} to \
                 load one, latency included"
            ),
            follows: match holds {
                true => "Default: memory is the limit; SHARE in src/kernel/tcgen05.rs may rise to what `bench` shows",
                false => "Default: the thread is the limit: prefer steps of 512 codes, and leave SHARE in \
                    src/kernel/tcgen05.rs",
            }
            .into(),
        })
    }

    fn ceilings(&self) -> Option<Verdict> {
        let all = ceilings(self.results.get(CEILINGS)?);
        let seen = all.iter().map(|of| {
            let bytes = of.bytes as f64 / 1e6;
            format!(
                "{bytes:.0} MB: bulk copies {:.0} GB/s, wide loads {:.0}",
                of.bulk, of.loads
            )
        });
        let slower = all.iter().any(|of| of.bulk < 0.97 * of.loads);
        Some(Verdict {
            question: "What does memory give to bulk copies alone, and to wide loads?".into(),
            answer: Answer::Measured,
            seen: seen.collect::<Vec<_>>().join("; "),
            follows: match slower {
                true => "Default: kernels that copy in bulk cannot reach the ceiling: SHARE of tcgen05 and mma-fp4 is at most \
                    this quotient",
                false => "Default: bulk copies are no limit; SHARE counts against the larger",
            }
            .into(),
        })
    }

    fn clusters(&self) -> Option<Verdict> {
        let found = self.results.get(CLUSTERS)?;
        let sms = found["multiprocessors"].as_f64()?;
        let all = found["clusters"].as_array()?;
        let most_shared = all
            .iter()
            .filter_map(|of| of["shared_bytes"].as_u64())
            .max()?;
        // One CTA a multiprocessor: with all of its shared memory.
        let rows = all.iter().filter(|of| of["shared_bytes"] == most_shared);
        let rows: Vec<(u64, u64)> = rows
            .filter_map(|of| Some((of["size"].as_u64()?, of["most"].as_u64()?)))
            .collect();
        let share = |(size, most): (u64, u64)| (size * most) as f64 / sms;
        let asked = rows.iter().filter(|(size, _)| [4, 8].contains(size));
        let shares: Vec<f64> = asked.map(|row| share(*row)).collect();
        let holds = (!shares.is_empty()).then(|| shares.iter().all(|share| *share >= FILLED));
        let seen = rows.iter().map(|(size, most)| format!("{most} of {size}"));
        Some(Verdict {
            question: format!(
                "Do clusters of four and of eight CTAs fill {:.0}% of the multiprocessors?",
                100.0 * FILLED
            ),
            answer: Answer::of(holds),
            seen: format!(
                "on {sms} multiprocessors: {}",
                seen.collect::<Vec<_>>().join(", ")
            ),
            follows: match holds {
                Some(true) => "Default: `cost` in src/kernel/mma_fp4.rs counts right",
                Some(false) => "Default: `cost` in src/kernel/mma_fp4.rs must count these instead",
                None => "",
            }
            .into(),
        })
    }

    fn checked(&self) -> Verdict {
        let holds = self.passed(&["checked"]);
        Verdict {
            question: "Is every access that compute-sanitizer sees its kernel's own?".into(),
            answer: Answer::of(holds),
            seen: self.ends(&["checked"]),
            follows: match holds {
                Some(true) => "Default: none changes",
                Some(false) => "Default: the kernel must be refused on this GPU until it is mended: logs/checked.log",
                None => "",
            }
            .into(),
        }
    }

    /// Cases that the simulator answers otherwise, apart from sums.
    fn simulator(&self) -> Verdict {
        let mut wrong = Vec::new();
        let cases = |of: &Value| -> Vec<String> {
            let different = of["different"].as_array().map_or(&[][..], Vec::as_slice);
            different.iter().map(|case| said(&case["case"])).collect()
        };
        for (topic, replay) in self.replays {
            // A case that only rounds otherwise is the same by the published rule.
            let by_rule = self.published.get(&format!("rule-{topic}")).map(cases);
            let different = cases(replay);
            let news = different.iter().filter(|name| {
                let of_rounding = by_rule.as_ref().is_some_and(|still| !still.contains(name));
                let refused = topic == REFUSED.0 && REFUSED.1.contains(&name.as_str());
                !name.starts_with("sums")
                    && !of_rounding
                    && !refused
                    && known(topic, name).is_none()
            });
            match news.count() {
                0 => {}
                count => wrong.push(format!("{topic}: {count} cases")),
            }
        }
        let holds = (!self.replays.is_empty()).then_some(wrong.is_empty());
        Verdict {
            question: "Does the simulator give what this GPU gave, apart from sums?".into(),
            answer: Answer::of(holds),
            seen: match holds {
                None => "nothing was replayed".into(),
                Some(true) => format!("{} topics", self.replays.len()),
                Some(false) => wrong.join(", "),
            },
            follows: match holds {
                Some(false) => "Model: what differs is mended in ptx-sim, or goes into probes/exceptions.txt: summary.md \
                    lists it",
                _ => "",
            }
            .into(),
        }
    }

    fn tuned(&self) -> Verdict {
        let lines = self.results.contains_key(TUNED) || self.manifest.passed("tune");
        Verdict {
            question: "Which config is the fastest for each problem?".into(),
            answer: match lines {
                true => Answer::Measured,
                false => Answer::Open,
            },
            seen: self.ends(&["tune"]),
            follows: match lines {
                true => format!(
                    "Default: {TUNED}; `cargo xtask first-light --apply` makes it the table that dispatch reads for this GPU"
                ),
                false => String::new(),
            },
        }
    }

    fn all(&self) -> Vec<Verdict> {
        let mut all = vec![self.what_ships(), self.soak()];
        for (step, verdict) in self.published {
            match verdict.as_array() {
                Some(problems) if step.starts_with("predicted-") => {
                    all.push(self.predicted(step, problems));
                }
                None if step.starts_with("rule-") => all.push(self.rule(step, verdict)),
                _ => {}
            }
        }
        if !self.published.keys().any(|step| step.starts_with("rule-")) {
            all.push(Verdict {
                question: "Does the instruction add as the published model says?".into(),
                answer: Answer::Open,
                seen: "no step asked".into(),
                follows: String::new(),
            });
        }
        all.extend(self.roles());
        all.extend(self.claims());
        all.push(self.checked());
        all.extend(self.ceilings());
        all.extend(self.clusters());
        all.push(self.simulator());
        all.push(self.tuned());
        all
    }
}

/// An instruction, as people write it.
fn instruction(topic: &str) -> &str {
    match topic {
        "tcgen05" => "tcgen05.mma of NVFP4",
        "mma_fp4" => "mma.sync of NVFP4",
        "sums_f16" => "mma.sync of f16",
        "wgmma" => "wgmma",
        other => other,
    }
}

/// The page, as Markdown.
pub(super) fn page(night: &Night<'_>) -> String {
    let device = &night.manifest.device;
    let (major, minor) = device.compute_capability;
    let all = night.all();
    let count = |answer| all.iter().filter(|of| of.answer == answer).count();
    let text = format!(
        "# What the first night says: {}\n\nCompute capability {major}.{minor}, driver {}, crate {}, commit {}. \
         {} confirmed, {} refuted, {} measured, {} open.\n\n",
        plain(&device.name),
        plain(&device.driver),
        plain(&night.manifest.version),
        plain(night.manifest.commit.as_deref().unwrap_or("unknown")),
        count(Answer::Confirmed),
        count(Answer::Refuted),
        count(Answer::Measured),
        count(Answer::Open),
    );
    let mut table = Table::new(["question", "answer", "seen", "what follows"]);
    for of in &all {
        table.row([
            of.question.clone(),
            of.answer.name().into(),
            of.seen.clone(),
            of.follows.clone(),
        ]);
    }
    text + &table.markdown()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::archive;
    use super::*;

    /// A night on which all went as predicted.
    struct Fine {
        manifest: Manifest,
        replays: BTreeMap<String, Value>,
        published: BTreeMap<String, Value>,
        results: BTreeMap<String, Value>,
    }

    fn claim(name: &str) -> Value {
        json!({"name": name, "says": format!("claim {name}"), "holds": true, "seen": "0 of 9"})
    }

    fn fine() -> Fine {
        let ran = |name: &str| Ran {
            name: name.into(),
            what: String::new(),
            command: String::new(),
            end: End::Passed,
            seconds: 1,
        };
        let steps = "info soak probe-tcgen05 checked tests-tcgen05 tests-all verify tune";
        let names = CLAIMS.map(|(name, ..)| name);
        let claims: Vec<Value> = names
            .iter()
            .chain(&[DEPENDENT])
            .map(|name| claim(name))
            .collect();
        let sums = json!({
            "sums": 9, "by_published": 9, "is_published": true, "explained": 9, "as_good": 0, "exact_sums_wrong": 0,
            "columns_agree": true, "roundings_at_least": 2, "machine": {"fraction": 35},
        });
        let size = |size, most| json!({"size": size, "shared_bytes": 9, "most": most});
        let read = |kernel: &str| json!({"kernel": kernel, "gb_per_s": 7000.0});
        Fine {
            manifest: Manifest {
                device: super::super::device::Device::imagined((10, 3)),
                steps: steps.split(' ').map(ran).collect(),
                ..archive::tests::manifest()
            },
            replays: [(
                "tcgen05".to_owned(),
                json!({"cases": 3, "different": [{"case": "sums", "status": "ok", "why": ""},
                    {"case": "full_n16", "status": "ok", "why": "sums"}], "claims": claims,
                    "roles": {"multiply_issue": 500.0, "multiply": 540.0, "load": 400.0}, "sums": sums}),
            )]
            .into(),
            published: [
                (
                    "rule-tcgen05".to_owned(),
                    json!({"cases": 3, "different": [], "sums_of": "blackwell"}),
                ),
                (
                    "predicted-tcgen05".to_owned(),
                    json!([{"verdict": "confirmed"}, {"verdict": "not asked: x"}]),
                ),
            ]
            .into(),
            results: [
                (INFO, json!({"cuda": {"archs": ["100f"]}})),
                (
                    SOAK,
                    json!({"soak": {"passed": true, "launches": 9, "rounds": 2, "failures": []}}),
                ),
                (
                    CEILINGS,
                    json!({"sizes": [{"bytes": 9_000_000, "reads": [read("bulk 1"), read("8x256x4")]}]}),
                ),
                (
                    CLUSTERS,
                    json!({"multiprocessors": 148, "clusters": [size(2, 74), size(4, 36), size(8, 17)]}),
                ),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        }
    }

    impl Fine {
        fn night(&self) -> Night<'_> {
            Night {
                manifest: &self.manifest,
                replays: &self.replays,
                published: &self.published,
                results: &self.results,
            }
        }

        fn answers(&self) -> Vec<(String, Answer)> {
            let all = self.night().all();
            all.into_iter().map(|of| (of.question, of.answer)).collect()
        }

        fn sums(&mut self) -> &mut Value {
            &mut self.replays.get_mut("tcgen05").unwrap()["sums"]
        }

        fn ends(&mut self, step: &str, end: End) {
            let mut steps = self.manifest.steps.iter_mut();
            steps.find(|ran| ran.name == step).unwrap().end = end;
        }
    }

    #[test]
    fn a_fine_night_confirms_everything() {
        let fine = fine();
        for (question, answer) in fine.answers() {
            let figure =
                question.starts_with("What does memory") || question.starts_with("Which config");
            let expected = if figure {
                Answer::Measured
            } else {
                Answer::Confirmed
            };
            assert_eq!(answer, expected, "{question}");
        }
        let page = page(&fine.night());
        for says in [
            "(100f)",
            "ASSUMED_ROUNDINGS stays 3",
            "`SumRule::Own`",
            "9 of 9 sums come out by it, and no other rules",
            " 0 refuted, 2 measured, 0 open",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
    }

    /// A fault each, and the words of the only question that then has another answer.
    #[test]
    fn each_fault_changes_its_own_answer() {
        type Fault = fn(&mut Fine);
        let claim = |night: &mut Fine, name: &str| {
            let claims = &mut night.replays.get_mut("tcgen05").unwrap()["claims"];
            let mut all = claims.as_array_mut().unwrap().iter_mut();
            all.find(|claim| claim["name"] == name).unwrap()["holds"] = json!(false);
        };
        let faults: [(&str, Answer, Fault); 19] = [
            ("code that ships", Answer::Refuted, |night| {
                night.ends("tests-tcgen05", End::Failed("no trial ran".into()));
            }),
            ("code that ships", Answer::Refuted, |night| {
                night.ends("info", End::Failed("no machine code for 100f".into()));
            }),
            ("code that ships", Answer::Open, |night| {
                night.ends("verify", End::Skipped("no time is left".into()));
            }),
            ("twenty minutes", Answer::Refuted, |night| {
                night.ends("soak", End::OutOfTime);
                night.results.remove(SOAK);
            }),
            ("twenty minutes", Answer::Refuted, |night| {
                night.results.get_mut(SOAK).unwrap()["soak"]["passed"] = json!(false);
            }),
            ("twenty minutes", Answer::Open, |night| {
                night.results.remove(SOAK);
            }),
            // One sum of nine.
            ("add as the published", Answer::Refuted, |night| {
                night.sums()["by_published"] = json!(8)
            }),
            ("add as the published", Answer::Refuted, |night| {
                night.sums()["roundings_at_least"] = json!(4);
            }),
            ("add as the published", Answer::Refuted, |night| {
                let different = json!([{"case": "sums_far", "status": "ok", "why": ""}]);
                night.published.get_mut("rule-tcgen05").unwrap()["different"] = different;
            }),
            // The GPU did not run the case.
            ("add as the published", Answer::Open, |night| {
                let different = json!([{"case": "sums", "status": "error: kernel", "why": ""}]);
                night.published.get_mut("rule-tcgen05").unwrap()["different"] = different;
            }),
            ("add as the published", Answer::Open, |night| {
                night.sums()["exact_sums_wrong"] = json!(1);
            }),
            ("add as the published", Answer::Open, |night| {
                night.sums()["sums"] = json!(0)
            }),
            ("add as the published", Answer::Open, |night| {
                night.published.remove("rule-tcgen05");
                // Without the rule nobody knows that this is rounding alone.
                let different = json!([{"case": "sums", "status": "ok", "why": ""}]);
                night.replays.get_mut("tcgen05").unwrap()["different"] = different;
            }),
            ("whole problems", Answer::Refuted, |night| {
                night.published.get_mut("predicted-tcgen05").unwrap()[0]["verdict"] =
                    json!("refuted");
            }),
            ("whole problems", Answer::Open, |night| {
                night.published.get_mut("predicted-tcgen05").unwrap()[0]["verdict"] =
                    json!("not asked: y");
            }),
            ("thread that multiplies", Answer::Refuted, |night| {
                night.replays.get_mut("tcgen05").unwrap()["roles"]["multiply"] = json!(700.0);
            }),
            ("clusters of four", Answer::Refuted, |night| {
                night.results.get_mut(CLUSTERS).unwrap()["clusters"][2]["most"] = json!(16);
            }),
            ("compute-sanitizer", Answer::Refuted, |night| {
                night.ends("checked", End::Failed("exit status: 9".into()));
            }),
            ("Does the simulator", Answer::Refuted, |night| {
                let case = json!({"case": "cp_4x256b", "status": "ok", "why": "a byte"});
                let all = [
                    night.replays.get_mut("tcgen05"),
                    night.published.get_mut("rule-tcgen05"),
                ];
                for of in all.into_iter().flatten() {
                    of["different"].as_array_mut().unwrap().push(case.clone());
                }
            }),
        ];
        let before = fine().answers();
        let only = |night: &Fine, words: &str, answer: Answer| {
            for ((question, now), (was_asked, was)) in night.answers().iter().zip(&before) {
                match question.contains(words) || was_asked.contains(words) {
                    true => assert_eq!(*now, answer, "{question}"),
                    false => assert_eq!(now, was, "{words}: {question}"),
                }
            }
        };
        for (words, answer, fault) in faults {
            let mut night = fine();
            fault(&mut night);
            let asked = before.iter().any(|(question, _)| question.contains(words));
            assert!(asked, "{words}");
            only(&night, words, answer);
        }
        for name in CLAIMS.map(|(name, ..)| name).iter().chain(&[DEPENDENT]) {
            let mut night = fine();
            claim(&mut night, name);
            let all = night.answers();
            let refuted: Vec<_> = all.iter().filter(|of| of.1 == Answer::Refuted).collect();
            assert_eq!(refuted.len(), 1, "{name}");
            assert_eq!(refuted[0].0, format!("claim {name}"));
        }
    }

    /// A rule that was refuted: the bound and the model come from what was found.
    #[test]
    fn a_refuted_rule_says_which_bound_and_which_model_follow() {
        let mut night = fine();
        night.sums()["by_published"] = json!(1);
        night.sums()["roundings_at_least"] = json!(11);
        let page = page(&night.night());
        assert!(
            page.contains("ASSUMED_ROUNDINGS must be 11 at least"),
            "{page}"
        );
        assert!(page.contains("this rule gives all"), "{page}");
        night.sums()["explained"] = json!(5);
        assert!(super::page(&night.night()).contains("no rule that was tried gives all"));
    }

    /// A case that the simulator refuses on purpose is no news of it; another case of the same topic is.
    #[test]
    fn cases_that_are_refused_on_purpose_are_no_news() {
        let mut night = fine();
        let different = |names: &[&str]| {
            let case = |name: &&str| json!({"case": name, "status": "ok", "why": "deadlock"});
            let all: Vec<Value> = names.iter().map(case).collect();
            json!({"cases": 4, "different": all, "claims": [], "sums": null, "roles": null})
        };
        let topic = REFUSED.0.to_owned();
        night.replays.insert(topic.clone(), different(&REFUSED.1));
        assert_eq!(night.night().simulator().answer, Answer::Confirmed);
        let more = [&REFUSED.1[..], &["allocate_while_held_512"]].concat();
        night.replays.insert(topic, different(&more));
        assert_eq!(night.night().simulator().answer, Answer::Refuted);
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../ptx-sim/probes/blackwell.cpp"
        );
        let probes = std::fs::read_to_string(file).unwrap();
        assert!(
            REFUSED
                .1
                .iter()
                .all(|name| probes.contains(&format!("\"{name}\"")))
        );
    }

    /// A night of which nothing came.
    #[test]
    fn an_empty_night_confirms_nothing() {
        let mut night = fine();
        night.manifest.steps.clear();
        night.replays.clear();
        night.published.clear();
        night.results.clear();
        for (question, answer) in night.answers() {
            assert_eq!(answer, Answer::Open, "{question}");
        }
    }

    /// The numbers that the page quotes are the library's, and every claim of the probes has a line here.
    #[test]
    fn the_library_has_these_numbers_and_names() {
        let file = |name: &str| {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
            std::fs::read_to_string(format!("{root}{name}")).unwrap()
        };
        let assumed = format!("ASSUMED_ROUNDINGS: u32 = {ASSUMED};");
        assert!(file("src/kernel/tcgen05.rs").contains(&assumed));
        assert!(file("src/kernel/mma_fp4.rs").contains("sms * 9 / 10"));
        assert!(file("csrc/kernels/gemv_tcgen05.cuh").contains("clear_missing_words"));
        let claims = file("tools/ptx-sim/src/recording/claims.rs");
        for name in CLAIMS.map(|(name, ..)| name).iter().chain(&[DEPENDENT]) {
            assert!(claims.contains(&format!("\"{name}\"")), "{name}");
        }
        let sums = file("tools/ptx-sim/src/recording/sums/mod.rs");
        for name in "sums by_published is_published explained as_good exact_sums_wrong columns_agree roundings_at_least \
            machine"
            .split_whitespace()
        {
            assert!(sums.contains(&format!("    pub {name}: ")), "{name}");
        }
        for name in ["multiply_issue", "multiply", "load"] {
            assert!(claims.contains(&format!("    pub {name}: f64")), "{name}");
        }
    }
}
