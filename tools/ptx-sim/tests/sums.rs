//! The sums of the probes tell how an instruction adds: each of the simulator's own ways is found, and nothing else.

use std::path::{Path, PathBuf};

use ptx_sim::models::sums::{Rule, nvfp4};
use ptx_sim::recording::claims::{claims, roles};
use ptx_sim::recording::sums::{Cut, Exponents, Machine, Sums, Verdict};
use ptx_sim::recording::{End, Ends, Recording, RecordingError, outputs, replay};
use ptx_sim::{Silicon, SumRule};

fn probes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("probes")
}

/// Committed answers of the simulator, which are compared with its answers now.
fn simulated(topic: &str) -> Vec<u8> {
    std::fs::read(probes().join(format!("simulated/{topic}.safetensors"))).unwrap()
}

fn verdict(bytes: &[u8]) -> Verdict {
    let recording = Recording::read(bytes).unwrap();
    Sums::of(&recording).unwrap().unwrap().judge()
}

fn is_found(topic: &str, machine: Machine, roundings: u32) {
    let bytes = simulated(topic);
    let recording = Recording::read(&bytes).unwrap();
    let modules = recording.modules(&probes().join("ptx")).unwrap();
    for case in &recording.cases {
        let end = replay(case, &modules, &recording, SumRule::Own).unwrap();
        assert_eq!(end, End::Same, "{topic}: {}", case.name);
    }
    for claim in claims(&recording).unwrap() {
        assert!(claim.holds, "{}: {}", claim.says, claim.seen);
    }
    let verdict = verdict(&bytes);
    assert_eq!(verdict.machine, machine, "{topic}");
    assert_eq!(verdict.explained, verdict.sums, "{topic}");
    assert_eq!(verdict.exact_sums_wrong, 0, "{topic}");
    assert!(verdict.columns_agree, "{topic}");
    assert_eq!(verdict.roundings_at_least, roundings, "{topic}");
    assert!(!verdict.is_published, "{topic}");
}

const CUT_AT_25: Machine = Machine {
    grain: 1,
    chain: 64,
    c_with_products: true,
    fraction: Some(25),
    cut: Cut::Zero,
    result: Cut::Zero,
    exponents: Exponents::Factors,
    zeros: false,
};

/// The published rule of Blackwell's FP4.
const PUBLISHED: Machine = Machine {
    grain: 16,
    fraction: Some(35),
    exponents: Exponents::Scales,
    zeros: true,
    ..CUT_AT_25
};

/// Answers of the simulator by another rule.
fn by_rule(topic: &str, rule: SumRule) -> Verdict {
    let bytes = simulated(topic);
    let recording = Recording::read(&bytes).unwrap();
    let modules = recording.modules(&probes().join("ptx")).unwrap();
    let mut ends = Ends::new();
    for case in &recording.cases {
        let end = match case.name.starts_with("sums") {
            true => outputs(case, &modules, &recording, rule).unwrap(),
            false => Ok(Vec::new()),
        };
        ends.push((case.name.clone(), end));
    }
    verdict(&recording.with_outputs(&ends, "another").unwrap())
}

/// A GPU that adds by the published rule is told from every other that is tried, and three roundings are enough.
#[test]
fn the_published_rule_is_told() {
    for (topic, silicon) in [
        ("mma_fp4", Silicon::RtxBlackwell),
        ("tcgen05", Silicon::Blackwell),
    ] {
        let verdict = by_rule(topic, SumRule::Published(silicon));
        assert_eq!(verdict.machine, PUBLISHED, "{topic}");
        let counts = (verdict.explained, verdict.by_published, verdict.as_good);
        assert_eq!(counts, (verdict.sums, verdict.sums, 0), "{topic}");
        assert!(verdict.is_published, "{topic}");
        assert!(verdict.roundings_at_least <= 3, "{topic}: {verdict:?}");
    }
}

/// Rules beside the published one, each of which differs in one thing.
#[test]
fn rules_beside_the_published_one_are_not_taken_for_it() {
    let rule = nvfp4(Silicon::RtxBlackwell).unwrap();
    let places = |fraction| (Rule { fraction, ..rule }, Some(fraction));
    let (fewer, more) = (places(34), places(36));
    let eight = (Rule { block: 8, ..rule }, None);
    let half = (Rule { chain: 32, ..rule }, None);
    for (rule, fraction) in [fewer, more, eight, half] {
        let machine = Machine {
            fraction: fraction.or(PUBLISHED.fraction),
            grain: rule.block,
            chain: rule.chain,
            ..PUBLISHED
        };
        let verdict = by_rule("mma_fp4", SumRule::Tried(rule));
        assert_eq!((verdict.machine, verdict.as_good), (machine, 0), "{rule:?}");
        assert!(!verdict.is_published, "{rule:?}");
        assert!(verdict.by_published < verdict.sums, "{rule:?}");
    }
}

/// Clocks are a machine's own: a replay does not compare them.
#[test]
fn clocks_of_roles_are_reported() {
    let bytes = altered("tcgen05", "roles/times", |times| times[2] += 6400);
    let recording = Recording::read(&bytes).unwrap();
    let of = roles(&recording).unwrap().unwrap();
    assert!(of.multiply_issue > 1.0 && of.multiply >= of.multiply_issue && of.load > 100.0);
    // A wait that ran out: its clocks say nothing.
    let bytes = altered("tcgen05", "roles/flags", |flags| flags[1] = 0);
    let recording = Recording::read(&bytes).unwrap();
    assert!(roles(&recording).unwrap().is_none());
}

#[test]
fn four_f16_instructions_in_a_row() {
    let machine = Machine {
        chain: 16,
        exponents: Exponents::Scaled,
        ..CUT_AT_25
    };
    is_found("sums_f16", machine, 24);
}

#[test]
fn one_aligned_sum_of_scaled_products() {
    is_found("mma_fp4", CUT_AT_25, 24);
}

#[test]
fn an_exact_sum_that_is_rounded_once() {
    let machine = Machine {
        fraction: None,
        result: Cut::Nearest,
        ..CUT_AT_25
    };
    is_found("tcgen05", machine, 1);
}

/// A recording in which a case has other outputs.
fn altered(topic: &str, tensor: &str, alter: impl Fn(&mut [u32])) -> Vec<u8> {
    let bytes = simulated(topic);
    let recording = Recording::read(&bytes).unwrap();
    let mut words = recording.words(tensor).unwrap();
    alter(&mut words);
    let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let of = tensor.split('/').next().unwrap();
    let ends: Ends = recording
        .cases
        .iter()
        .map(|case| match case.name == of {
            true => (of.to_owned(), Ok(vec![(tensor.to_owned(), data.clone())])),
            false => (case.name.clone(), Ok(Vec::new())),
        })
        .collect();
    recording.with_outputs(&ends, "another").unwrap()
}

#[test]
fn other_results_are_seen() {
    // The series is in the top byte of a label: the exact ones, and one of any data.
    let bytes = simulated("mma_fp4");
    let labels = Recording::read(&bytes).unwrap().words("in/labels").unwrap();
    let of = |series: u32| {
        labels
            .iter()
            .position(|label| label >> 24 == series)
            .unwrap()
    };
    let (random, exact) = (of(6), of(7));

    let one = verdict(&altered("mma_fp4", "sums/out", |out| {
        out[8 * random + 3] ^= 1
    }));
    assert!(!one.columns_agree);

    let all = verdict(&altered("mma_fp4", "sums/out", |out| {
        out[8 * exact..8 * exact + 8].fill(0x4640_e400); // 12345
    }));
    assert_eq!(all.exact_sums_wrong, 1);
    assert_eq!(all.explained, all.sums - 1);
    assert_eq!(all.machine, CUT_AT_25);

    let nan = verdict(&altered("mma_fp4", "sums/out", |out| {
        out[8 * random..8 * random + 8].fill(0x7fff_ffff);
    }));
    assert_eq!((nan.not_finite, nan.roundings_at_least), (1, u32::MAX));
}

#[test]
fn claims_are_held_against_what_was_recorded() {
    for (tensor, at) in [
        ("full_n64/out", 64 * 127 + 15),
        ("nan_scales_n16/out", 16 * 99),
        ("nan_scales_inside_n64/out", 64 * 127 + 32),
        ("one_place_n16/out", 0),
        ("in_turn_n8/out", 8 * 128 - 1),
    ] {
        let bytes = altered("tcgen05", tensor, |out| out[at] ^= 1);
        let claims = claims(&Recording::read(&bytes).unwrap()).unwrap();
        let broken: Vec<_> = claims.iter().filter(|claim| !claim.holds).collect();
        assert_eq!(broken.len(), 1, "{claims:?}");
        assert!(broken[0].seen.starts_with("1 of"), "{broken:?}");
    }
    // A value that nobody stores may be anything.
    let bytes = altered("tcgen05", "full_n64/out", |out| out[16] ^= 1);
    let claims = claims(&Recording::read(&bytes).unwrap()).unwrap();
    assert!(claims.iter().all(|claim| claim.holds));
}

#[test]
fn files_that_lie_are_refused() {
    let bytes = simulated("mma_fp4");
    assert!(matches!(
        Recording::read(&bytes[..bytes.len() - 1]),
        Err(RecordingError::File(_))
    ));
    // The replacement has the same length, so that the offsets of the tensors stay.
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes());
        let mut bytes = bytes.clone();
        bytes[at.unwrap()..][..to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    let other = replaced("ptx-sim-probes/1", "ptx-sim-probes/9");
    assert!(matches!(
        Recording::read(&other),
        Err(RecordingError::Format(_))
    ));
    let elsewhere = replaced("mma_fp4.ptx", "../../x.ptx");
    let recording = Recording::read(&elsewhere).unwrap();
    assert!(matches!(
        recording.modules(&probes().join("ptx")),
        Err(RecordingError::Ptx { .. })
    ));
    let long = replaced("\\\"bytes\\\":2048", "\\\"bytes\\\":9999");
    let recording = Recording::read(&long).unwrap();
    let modules = recording.modules(&probes().join("ptx")).unwrap();
    assert!(matches!(
        replay(&recording.cases[0], &modules, &recording, SumRule::Own),
        Err(RecordingError::Case { .. })
    ));
}
