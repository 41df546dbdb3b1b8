//! `bench` and `compare`, on the CPU: any machine has one.

use serde_json::Value;

use super::{
    command, contains, fails, json, prints, program, refuses, text, there_is_a_device, words,
};

/// Small problems, few rounds, and little to rotate over.
const QUICK: [&str; 6] = ["--path", "cpu", "--rounds", "3", "--cold", "1"];

/// Documents have six significant digits, of slow machines too: twice half a digit of the sixth.
const ROUNDING: f64 = 1e-5;

fn bench(args: &[&str]) -> Value {
    json(&[&["bench"], args, &QUICK].concat())
}

fn samples(of: &Value) -> Vec<f64> {
    let samples = of["samples_us"].as_array().unwrap();
    samples
        .iter()
        .map(|sample| sample.as_f64().unwrap())
        .collect()
}

#[test]
fn bench_measures_every_combination_in_rounds_with_the_ceiling() {
    let document = bench(&words(
        "--shape 256,512 --shape 64x64x2x3 --activation nvfp4 --activation f32 --layout linear --layout 128x4 \
         --commit 0123abc",
    ));
    assert_eq!(document["schema"], "nvfp4-gemv/bench/2");
    assert_eq!(document["git_commit"], "0123abc");
    assert_eq!(document["suite"], "custom");
    assert_eq!(document["device"]["kind"], "cpu");
    assert_eq!(document["method"]["rounds"], 3);
    assert_eq!(document.get("slowed_percent"), None);
    assert_eq!(document.get("long_read"), None);
    let cases = document["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 8);
    assert_eq!((&cases[4]["n"], &cases[4]["l"]), (&3.into(), &2.into()));
    for case in cases {
        assert_eq!(case["picked"]["path"], "cpu");
        let [cpu] = &case["paths"].as_array().unwrap()[..] else {
            panic!("{case}");
        };
        assert_eq!(cpu["mode"], "isolated");
        assert_eq!(cpu["picked"], true);
        let (ceiling, times) = (samples(&case["ceiling"]), samples(cpu));
        assert_eq!((ceiling.len(), times.len()), (3, 3));
        let mut shares: Vec<f64> = ceiling.iter().zip(&times).map(|(c, t)| c / t).collect();
        shares.sort_by(f64::total_cmp);
        let share = cpu["share_of_ceiling"].as_f64().unwrap();
        assert!((share / shares[1] - 1.0).abs() < ROUNDING, "{case}");
        let bytes = case["weight_bytes"].as_f64().unwrap();
        let rate = bytes / cpu["median_us"].as_f64().unwrap() / 1e3;
        let printed = cpu["gb_per_s"].as_f64().unwrap();
        assert!((rate / printed - 1.0).abs() < ROUNDING, "{case}");
    }
    let table = prints(&[&["bench", "--shape", "256,512"], &QUICK[..]].concat());
    contains(&table, &["256x512", "cpu*"]);
}

#[test]
fn ceilings_are_listed_once_for_each_size() {
    // Two of the three have as many bytes.
    let document = bench(&words(
        "--ceiling --shape 256,512 --shape 512,256 --shape 64,64",
    ));
    assert_eq!(document["schema"], "nvfp4-gemv/reads/1");
    let sizes = document["sizes"].as_array().unwrap();
    let bytes: Vec<_> = sizes.iter().map(|size| size["bytes"].as_u64()).collect();
    assert_eq!(bytes, [Some(256 * 512 * 9 / 16), Some(64 * 64 * 9 / 16)]);
    for size in sizes {
        // The CPU reads in one way, which has no name.
        let [read] = &size["reads"].as_array().unwrap()[..] else {
            panic!("{size}");
        };
        assert_eq!((samples(read).len(), read.get("kernel")), (3, None));
    }
    let table = prints(&[&["bench", "--ceiling", "--shape", "256,512"], &QUICK[..]].concat());
    assert!(table.contains("read by"), "{table}");
    let out = program(&["bench", "--ceiling", "--sustained", "1"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
}

#[test]
fn options_replace_parts_of_a_suite() {
    let document = bench(&words(
        "--suite quick --shape 64,64 --n 2 --n 3 --activation f16",
    ));
    assert_eq!(document["suite"], "custom");
    let cases = document["cases"].as_array().unwrap();
    let seen: Vec<_> = cases
        .iter()
        .map(|case| {
            (
                case["n"].as_u64().unwrap(),
                case["activation"].as_str().unwrap(),
                case["layout"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(seen, [(2, "f16", "128x4"), (3, "f16", "128x4")]);
    assert!(refuses(&["bench", "--path", "cpu", "--shape", "0,16"]).contains("nothing to measure"));
}

#[test]
fn a_rehearsed_slowdown_is_in_the_document() {
    let document = bench(&["--shape", "64,64", "--slow-down", "cpu=20"]);
    assert_eq!(document["slowed_percent"]["cpu"], 20);
    for wrong in ["cpu", "gpu=10", "cpu=1000", "cpu=-1"] {
        refuses(&["bench", "--slow-down", wrong]);
    }
}

#[test]
fn what_is_missing_is_a_note_and_no_failure() {
    // On the CPU there is neither cuBLAS nor NVML.
    let document = bench(&words("--shape 64,64 --cublas --sustained 0.01"));
    let notes = document["notes"].as_array().unwrap();
    let [cublas, energy] = &notes[..] else {
        panic!("{notes:?}");
    };
    assert!(
        cublas
            .as_str()
            .unwrap()
            .starts_with("cuBLAS takes no turns: ")
    );
    assert!(energy.as_str().unwrap().contains("energy"));
    assert_eq!(document["method"]["sustained_seconds"], 0.01);
    let case = &document["cases"][0];
    assert_eq!(case.get("cublas"), None);
    let path = &case["paths"][0];
    assert!(path["sustained"]["mean_us"].as_f64().unwrap() > 0.0);
    assert_eq!(path["sustained"].get("arithmetic_joules_per_gb"), None);
    assert_eq!(bench(&["--shape", "64,64"]).get("notes"), None);
    let quick = [&["bench", "--shape", "64,64", "--cublas"], &QUICK[..]].concat();
    contains(&prints(&quick), &["note: cuBLAS takes no turns"]);
    refuses(&["bench", "--cublas", "--ceiling"]);
}

#[test]
fn decode_steps_have_the_shapes_of_models() {
    for option in [
        "--shape 16,16",
        "--ceiling",
        "--cublas",
        "--slow-down cpu=1",
    ] {
        let command = format!("bench --path cpu --suite decode {option}");
        let error = refuses(&words(&command));
        let name = option.split(' ').next().unwrap();
        contains(&error, &[name, "--suite decode"]);
    }
    let help = prints(&["bench", "--help"]);
    contains(&help, &["--suite decode", "Qwen3-32B", "--cublas"]);
}

/// Options that do not go with the suite are named as they were given, and no others.
#[test]
fn layers_of_experts_refuse_each_option_by_its_name() {
    let refusal = |error: &str| {
        let (name, rest) = error.trim_start_matches("error: ").split_once(' ').unwrap();
        assert!(rest.starts_with("does not go with --suite moe"), "{error}");
        name.to_owned()
    };
    for option in [
        "--shape 16,16",
        "--activation f16",
        "--layout linear",
        "--output-type f16",
        "--output-type f32",
        "--path cpu",
        "--ceiling",
        "--cublas",
        "--sustained 1",
    ] {
        let error = refuses(&words(&format!("bench --suite moe {option}")));
        assert_eq!(refusal(&error), words(option)[0]);
    }
    let mut forced = command();
    let forced = forced
        .args(words("bench --suite moe"))
        .env("NVFP4_GEMV_PATH", "cpu");
    let out = forced.output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(refusal(&text(&out.stderr)), "NVFP4_GEMV_PATH");
}

/// A hint that cannot be followed is none: `--path` excludes `--tensor-parallel`.
#[test]
fn hints_speak_of_options_that_the_command_takes() {
    if there_is_a_device() {
        return;
    }
    let error = fails(&words("bench --suite decode --tensor-parallel 2"));
    assert!(!error.contains("--path"), "{error}");
    // A suite of which nothing was measured is no success.
    let error = fails(&words("bench --suite moe --n 1"));
    assert!(error.contains("are measured on a GPU"), "{error}");
}

const COMPARE: [&str; 7] = [
    "compare", "--shape", "256,512", "--rounds", "9", "--cold", "1",
];

#[test]
fn compare_gives_a_ratio_with_its_spread() {
    let same = json(&[&COMPARE[..], &["--a", "cpu", "--b", "cpu"]].concat());
    assert_eq!(samples(&same["a"]).len(), 9);
    assert_eq!(samples(&same["b"]).len(), 9);
    let ratio = &same["ratio_b_to_a"];
    let number = |name: &str| ratio[name].as_f64().unwrap();
    assert!(number("p05") <= number("median") && number("median") <= number("p95"));
    assert!(number("interval_low") <= number("interval_high"));
    let outside = number("interval_low") > 1.0 || number("interval_high") < 1.0;
    assert_eq!(same["differs"], outside);
    assert!(!same["verdict"].as_str().unwrap().is_empty());
    let report = prints(&[&COMPARE[..], &["--a", "cpu", "--b", "cpu"]].concat());
    assert!(report.contains("b / a"), "{report}");
}

#[test]
fn compare_says_what_cannot_take_turns() {
    let with = |a, b| [&COMPARE[..], &["--a", a, "--b", b]].concat();
    assert!(refuses(&with("cpu", "cuda-core")).contains("different memories"));
    assert!(fails(&with("cpu", "cpu:chained")).contains("no programmatic dependent launch"));
    for wrong in ["gpu", "cpu:", "cpu:tied"] {
        refuses(&[&COMPARE[..], &["--a", wrong, "--b", "cpu"]].concat());
    }
}
