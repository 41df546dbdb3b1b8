//! The published rules of sums: all that an H200 was recorded to give follows Hopper's, a rule with one number changed
//! does not, and the sums of NVFP4 are those of the model's text, written down a second time here.

use std::path::{Path, PathBuf};

use ptx_sim::models::element::{Accumulator, Element};
use ptx_sim::models::idesc::{Kind, ScaleType};
use ptx_sim::models::sums::{Form, Instruction, NoRule, Nvfp4, Rule, Scales, nvfp4};
use ptx_sim::recording::{End, Recording, outputs, replay};
use ptx_sim::{Silicon, SumRule};

fn probes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("probes")
}

fn file(folder: &str, topic: &str) -> Vec<u8> {
    std::fs::read(probes().join(format!("{folder}/{topic}.safetensors"))).unwrap()
}

/// How each case of an H200's recording ends, whose name begins so.
fn ends(topic: &str, beginning: &str, sums: SumRule) -> Vec<(String, End)> {
    let bytes = file("recorded", topic);
    let recording = Recording::read(&bytes).unwrap();
    let modules = recording.modules(&probes().join("ptx")).unwrap();
    let cases = recording
        .cases
        .iter()
        .filter(|case| case.name.starts_with(beginning));
    let ends = cases.map(|case| {
        let end = replay(case, &modules, &recording, sums).unwrap();
        (case.name.clone(), end)
    });
    ends.collect()
}

#[test]
fn every_recorded_sum_of_hopper_follows_the_published_rule() {
    let mut same = 0;
    for (topic, beginning) in [("sums_f16", ""), ("matrix", "mma_"), ("wgmma", "wgmma_")] {
        for (name, end) in ends(topic, beginning, SumRule::Published(Silicon::Hopper)) {
            match (name.as_str(), end) {
                // The model has FP8 of Hopper for `wgmma` only.
                ("mma_e4m3_exact", End::Unmodelled(why)) => {
                    assert!(
                        why.contains("mma.sync with K = 32 of e4m3 and e4m3 into f32"),
                        "{why}"
                    );
                }
                (_, end) => {
                    assert_eq!(end, End::Same, "{topic}: {name}");
                    same += 1;
                }
            }
        }
    }
    // One case of `sums_f16` is 5231 sums.
    assert_eq!(same, 1 + 13 + 82);
    let bytes = file("recorded", "sums_f16");
    let labels = Recording::read(&bytes).unwrap().words("in/labels").unwrap();
    assert!(labels.len() >= 5231);
}

/// Without this test, recordings that any rule explains would pass for evidence.
#[test]
fn a_rule_with_one_number_changed_is_refuted() {
    let wide = Rule {
        chain: 64,
        block: 1,
        fraction: 25,
        mantissa: 23,
    };
    let narrow = Rule {
        fraction: 13,
        mantissa: 13,
        ..wide
    };
    for (topic, beginning, rule) in [
        ("sums_f16", "", wide),
        ("matrix", "mma_f16_random", wide),
        ("wgmma", "wgmma_f32_bf16_middling", wide),
        ("wgmma", "wgmma_f32_e4m3_middling", narrow),
        ("wgmma", "wgmma_f32_e5m2_middling", narrow),
    ] {
        let all_same = |rule| {
            let ends = ends(topic, beginning, SumRule::Tried(rule));
            assert!(!ends.is_empty(), "{topic}: {beginning}");
            ends.iter().all(|(_, end)| *end == End::Same)
        };
        assert!(all_same(rule), "{topic}: {beginning}");
        let mut changed = vec![
            Rule { chain: 8, ..rule },
            Rule {
                fraction: rule.fraction - 1,
                ..rule
            },
            Rule {
                fraction: rule.fraction + 1,
                ..rule
            },
            Rule {
                mantissa: rule.mantissa - 1,
                ..rule
            },
        ];
        if rule.mantissa < 23 {
            changed.push(Rule {
                mantissa: rule.mantissa + 1,
                ..rule
            });
        }
        for rule in changed {
            assert!(!all_same(rule), "{topic}: {beginning}: {rule:?}");
        }
    }
}

/// The operands of each sum of the probes, and C: rows, columns.
fn nvfp4_sums(recording: &Recording<'_>) -> Vec<(Nvfp4, Nvfp4, f32)> {
    let words = |name: &str| recording.words(name).unwrap();
    let (a, of_a, b, of_b) = (
        words("in/a"),
        words("in/scales_a"),
        words("in/b"),
        words("in/scales_b"),
    );
    let operand = |codes: &[u32], scales: &[u32], i: usize| {
        let bytes: Vec<u8> = codes[8 * i..][..8]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        (bytes.try_into().unwrap(), scales[i].to_le_bytes())
    };
    let rows = words("in/c").into_iter().enumerate();
    let sums = rows.map(|(i, c)| {
        (
            operand(&a, &of_a, i),
            operand(&b, &of_b, i / 16),
            f32::from_bits(c),
        )
    });
    sums.collect()
}

/// The model's text, by the letter, in fixed point of 2^-90: a second author beside `models/sums`.
fn by_the_letter((a, of_a): &Nvfp4, (b, of_b): &Nvfp4, c: f32) -> f32 {
    const UNIT: i32 = 90;
    let code = |bytes: &[u8; 32], k: usize| {
        let bits = bytes[k / 2] >> (4 * (k % 2)) & 15;
        let twice = [0i128, 1, 2, 3, 4, 6, 8, 12][usize::from(bits & 7)];
        if bits & 8 == 0 { twice } else { -twice }
    };
    // Exponent, and significand in eighths, which is below 8 of a subnormal scale.
    let scale = |bits: u8| match (bits >> 3 & 15, bits & 7) {
        (0, m) => (-6, i128::from(m)),
        (e, m) => (i32::from(e) - 7, i128::from(8 + m)),
    };
    let c_exponent = (c.to_bits() >> 23 & 255).max(1) as i32 - 127;
    let c_fixed = (f64::from(c) * 2f64.powi(UNIT)) as i128;
    assert_eq!(
        c_fixed as f64,
        f64::from(c) * 2f64.powi(UNIT),
        "a C that fits"
    );
    let mut terms = vec![(c_fixed, c_exponent)];
    for block in 0..4 {
        let ((ea, sa), (eb, sb)) = (scale(of_a[block]), scale(of_b[block]));
        if sa * sb == 0 {
            continue;
        }
        let products = (16 * block..16 * block + 16).map(|k| code(a, k) * code(b, k));
        // Quarters of codes, and 64ths of both significands.
        let shift = UNIT + ea + eb - 8;
        terms.push(((products.sum::<i128>() * sa * sb) << shift, ea + eb));
    }
    let largest = terms.iter().map(|(_, exponent)| *exponent).max().unwrap();
    let place = largest - 35 + UNIT;
    let cut = |x: i128, place: i32| match place {
        ..=0 => x,
        place => (x.abs() >> place << place) * x.signum(),
    };
    let sum: i128 = terms.iter().map(|(x, _)| cut(*x, place)).sum();
    let top = sum.unsigned_abs().checked_ilog2().unwrap_or(0) as i32;
    cut(sum, top - 23) as f32 * 2f32.powi(-UNIT)
}

/// Executed as `mma.sync` and as `tcgen05.mma`, for a whole problem (`nvfp4`), and by the letter: the same bits.
#[test]
fn sums_of_nvfp4_are_those_of_the_models_text() {
    for (topic, silicon) in [
        ("mma_fp4", Silicon::RtxBlackwell),
        ("tcgen05", Silicon::Blackwell),
    ] {
        let bytes = file("simulated", topic);
        let recording = Recording::read(&bytes).unwrap();
        let modules = recording.modules(&probes().join("ptx")).unwrap();
        let case = recording
            .cases
            .iter()
            .find(|case| case.name == "sums")
            .unwrap();
        let by = |sums| {
            let all = outputs(case, &modules, &recording, sums).unwrap().unwrap();
            let (words, _) = all[0].1.as_chunks();
            words
                .iter()
                .map(|word| u32::from_le_bytes(*word))
                .collect::<Vec<u32>>()
        };
        let published = by(SumRule::Published(silicon));
        let sums = nvfp4_sums(&recording);
        let columns = published.len() / sums.len();
        for (i, (a, b, c)) in sums.iter().enumerate() {
            let executed = f32::from_bits(published[i * columns]);
            assert!(
                published[i * columns..][..columns]
                    .iter()
                    .all(|x| *x == executed.to_bits())
            );
            let letter = by_the_letter(a, b, *c);
            assert_eq!(
                executed.to_bits(),
                letter.to_bits(),
                "{topic}: sum {i}: {executed} {letter}"
            );
            let fast = nvfp4(silicon).unwrap().nvfp4(*c, a, b);
            assert_eq!(
                fast.to_bits(),
                letter.to_bits(),
                "{topic}: sum {i}: {fast} {letter}"
            );
        }
        // The probes tell the rule from its neighbours, and from the simulator's own.
        let rule = Rule {
            chain: 64,
            block: 16,
            fraction: 35,
            mantissa: 23,
        };
        assert!(by(SumRule::Tried(rule)) == published);
        for other in [
            Rule { chain: 32, ..rule },
            Rule {
                fraction: 25,
                ..rule
            },
            Rule {
                mantissa: 22,
                ..rule
            },
        ] {
            let differs = by(SumRule::Tried(other)) != published;
            assert!(differs, "{topic}: {other:?}");
        }
        assert!(by(SumRule::Own) != published, "{topic}");
    }
}

/// Properties that the probes of sums cannot tell: places beyond 31, and blocks of zeros.
#[test]
fn a_block_of_zeros_with_large_scales_cuts_what_c_has() {
    let zeros = ([0; 32], [0x7e; 4]); // scales of 448: exponent 8
    let ones = ([0x22; 32], [0x7e; 4]);
    let add = |c: f32, a: &Nvfp4, b: &Nvfp4| nvfp4(Silicon::Blackwell).unwrap().nvfp4(c, a, b);
    // 8 + 8 - 35: what lies below 2^-19 is gone.
    assert_eq!(add(2f32.powi(-19) * 1.5, &zeros, &ones), 2f32.powi(-19));
    assert_eq!(add(-(2f32.powi(-20)), &zeros, &ones), 0.0);
    // A scale of zero has no exponent.
    let nothing = ([0x22; 32], [0; 4]);
    assert_eq!(
        add(1.75 * 2f32.powi(-120), &nothing, &ones),
        1.75 * 2f32.powi(-120)
    );
    for change in [-1, 1] {
        let c = 2f32.powi(-19 + change);
        assert_eq!(
            add(c, &zeros, &ones),
            if change > 0 { c } else { 0.0 },
            "35 places and no other"
        );
    }
    let nan = ([0; 32], [0x7f; 4]);
    assert_eq!(add(1.0, &nan, &ones).to_bits(), 0x7fff_ffff);
}

fn form(instruction: Instruction, k: usize, a: Element, d: Accumulator) -> Form {
    Form {
        instruction,
        k,
        a,
        b: a,
        d,
        scales: None,
    }
}

const TCGEN05: Instruction = Instruction::Tcgen05 {
    pair: false,
    scales_d: false,
};

#[test]
fn rules_by_gpu() {
    use Element::*;
    use Instruction::*;
    let rule = |silicon, form: Form| SumRule::Published(silicon).rule(&form);
    let of = |chain, block, fraction, mantissa| {
        Ok(Some(Rule {
            chain,
            block,
            fraction,
            mantissa,
        }))
    };
    let f32 = Accumulator::F32;
    for silicon in [Silicon::Ampere, Silicon::Ada] {
        assert_eq!(rule(silicon, form(MmaSync, 16, F16, f32)), of(8, 1, 24, 23));
        assert_eq!(rule(silicon, form(MmaSync, 8, Bf16, f32)), of(8, 1, 24, 23));
        assert_eq!(rule(silicon, form(MmaSync, 8, Tf32, f32)), of(4, 1, 24, 23));
    }
    assert_eq!(
        rule(Silicon::Ada, form(MmaSync, 32, E4m3, f32)),
        of(16, 1, 13, 13)
    );
    assert_eq!(
        rule(Silicon::Hopper, form(Wgmma, 32, E5m2, f32)),
        of(32, 1, 13, 13)
    );
    assert_eq!(
        rule(Silicon::Blackwell, form(TCGEN05, 32, E5m2, f32)),
        of(32, 1, 25, 23)
    );
    let scaled = |instruction, a, k, kind, count, ty| Form {
        scales: Some(Scales { kind, count, ty }),
        ..form(instruction, k, a, f32)
    };
    let (mx8, mx4) = (Kind::Mxf8f6f4, Kind::Mxf4);
    for (silicon, instruction) in [
        (Silicon::Blackwell, TCGEN05),
        (Silicon::RtxBlackwell, MmaSync),
    ] {
        let of_form = |a, k, kind, count| {
            rule(
                silicon,
                scaled(instruction, a, k, kind, count, ScaleType::Ue8m0),
            )
        };
        assert_eq!(of_form(E4m3, 32, mx8, 1), of(32, 1, 25, 23));
        assert_eq!(of_form(E2m1, 64, mx4, 2), of(64, 16, 35, 23));
        assert!(of_form(E3m2, 32, mx8, 1).is_err());
        assert!(of_form(E2m1, 32, mx8, 1).is_err());
    }
    // Integers are exact everywhere.
    assert_eq!(
        rule(Silicon::Ampere, form(MmaSync, 32, S8, Accumulator::S32)),
        Ok(None)
    );
}

#[test]
fn what_nobody_published_is_refused_by_name() {
    use Element::*;
    let f32 = Accumulator::F32;
    let pair = Instruction::Tcgen05 {
        pair: true,
        scales_d: false,
    };
    for (silicon, form, says) in [
        (
            Silicon::Ampere,
            form(Instruction::Wgmma, 16, F16, f32),
            "wgmma with K = 16 of f16",
        ),
        (
            Silicon::Hopper,
            form(Instruction::MmaSync, 32, E4m3, f32),
            "published for hopper",
        ),
        (
            Silicon::Blackwell,
            form(pair, 16, F16, f32),
            "tcgen05.mma of two CTAs",
        ),
        (
            Silicon::RtxBlackwell,
            form(Instruction::MmaSync, 32, E2m3, f32),
            "of e2m3 and e2m3",
        ),
        (
            Silicon::Ampere,
            form(Instruction::Wmma, 16, F16, f32),
            "wmma",
        ),
    ] {
        let refused = SumRule::Published(silicon).rule(&form).unwrap_err();
        assert_eq!(refused, NoRule::Unpublished { form, silicon });
        assert!(refused.to_string().contains(says), "{refused}");
    }
    for (chain, block, fraction, mantissa) in [
        (0, 1, 25, 23),
        (16, 2, 25, 23),
        (16, 1, 39, 23),
        (16, 1, 25, 24),
    ] {
        let rule = Rule {
            chain,
            block,
            fraction,
            mantissa,
        };
        let form = form(Instruction::MmaSync, 16, F16, f32);
        let refused = SumRule::Tried(rule).rule(&form);
        assert_eq!(refused, Err(NoRule::Impossible { form, rule }));
    }
    assert!(
        "b200"
            .parse::<SumRule>()
            .unwrap_err()
            .contains("rtx-blackwell")
    );
    let refused = nvfp4(Silicon::Hopper).unwrap_err().to_string();
    assert!(
        refused.contains("e2m1 and e2m1 into f32, Mxf4nvf4 with 4 scales"),
        "{refused}"
    );
    for name in [
        "own",
        "ampere",
        "ada",
        "hopper",
        "blackwell",
        "rtx-blackwell",
    ] {
        assert_eq!(name.parse::<SumRule>().unwrap().to_string(), name);
    }
}
