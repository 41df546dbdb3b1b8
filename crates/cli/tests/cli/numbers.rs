//! Every number that the program takes, at its ends and beyond: computed, or refused in an orderly way.

use crate::{LAYER, MODELOPT, contains, program, text, words};

/// Options that take a number or several, with a call that has everything else. `{}` is the number.
const NUMBERS: [&str; 29] = [
    "plan {} 16",
    "plan 16 {}",
    "plan 16 16 {}",
    "plan {} {} {}",
    "plan {} 2147483520 --compute-capability 10.0",
    "plan 16 2147483520 {} --n 16 --gpu h200",
    "plan 16 16 --n {}",
    "plan 16 16 --compute-capability {}",
    "plan 16 16 --compute-capability {}.0",
    "plan 16 16 --compute-capability 9.{}",
    "plan 64 64 --gpu h200 --tensor-parallel {}",
    "run --checkpoint MODELOPT --layer LAYER --path cpu --n {}",
    "run --checkpoint MODELOPT --layer LAYER --path cpu --random {}",
    "load MODELOPT --rounds {}",
    "load MODELOPT --buffers {}",
    "load MODELOPT --piece {}",
    "tune --shape {},2147483520",
    "tune --shape 16,16 --seconds {}",
    "tune --list --sample {}",
    "tune --list --sample 3 --seed {}",
    "tune --shape 16,16 --rank sustained --sustained {}",
    "bench --path cpu --shape 16,16 --cold 0 --rounds 1 --n {}",
    "bench --path cpu --suite decode --cold 0 --rounds 1 --n {}",
    "bench --suite decode --rounds 1 --tensor-parallel {}",
    "bench --path cpu --shape 16,16 --cold 0 --rounds {}",
    "bench --path cpu --shape 16,16 --rounds 1 --cold {}",
    "bench --path cpu --shape 16,16 --cold 0 --rounds 1 --sustained {}",
    "bench --path cpu --shape 16,16 --cold 0 --rounds 1 --slow-down cpu={}",
    "compare --a cpu --b cpu --shape 16,16 --cold 0 --rounds {}",
];

/// Shapes that no computer has the memory for, whichever of the dimensions are large.
const SHAPES: [&str; 5] = [
    "2147483520,2147483520",
    "2147483520,2147483520,1,16",
    "2147483520,16,2147483520",
    "16,2147483520,2147483520",
    "9223372036854775807,16",
];

/// Values for the options. No value that is a number takes long.
const VALUES: &str = " 0 -0 -1 x NaN inf 1e400 2147483520 2147483647 4294967295 9223372036854775807 \
    18446744073709551615 18446744073709551616 99999999999999999999999999999999999999999";

/// A call that ends with 0, 1 or 2, and says why it failed if it did.
fn is_orderly(args: &[&str]) {
    let out = program(args);
    let (code, error) = (out.status.code(), text(&out.stderr));
    assert!(
        matches!(code, Some(0..=2)),
        "{args:?}: {}: {error}",
        out.status
    );
    assert!(!error.contains("panicked"), "{args:?}: {error}");
    assert_eq!(
        code != Some(0),
        error.contains("error: "),
        "{args:?}: {error}"
    );
}

#[test]
fn no_number_panics_or_aborts() {
    for value in VALUES.split(' ') {
        for call in NUMBERS {
            let arg = |arg: &str| match arg {
                "MODELOPT" => MODELOPT.into(),
                "LAYER" => LAYER.into(),
                arg => arg.replace("{}", value),
            };
            let mut call: Vec<String> = call.split(' ').map(arg).collect();
            // An option's value may begin with a minus.
            if let Some(option) = call.iter().rposition(|arg| arg.starts_with("--"))
                && option + 2 == call.len()
            {
                let value = call.remove(option + 1);
                call[option] = format!("{}={value}", call[option]);
            }
            is_orderly(&call.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_takes_more_memory_than_there_is_is_refused_with_the_figures() {
    for shape in SHAPES {
        for cold in ["0", "1", "4096"] {
            for rest in [
                &["bench", "--path", "cpu"][..],
                &["compare", "--a", "cpu", "--b", "cpu"],
            ] {
                let args = [rest, &["--shape", shape, "--cold", cold]].concat();
                is_orderly(&args);
                let error = text(&program(&args).stderr);
                assert!(
                    error.contains("of host memory") || error.contains("overflow"),
                    "{error}"
                );
            }
        }
        is_orderly(&["tune", "--shape", shape, "--seconds", "0.01"]);
    }
    let args = words("bench --path cpu --shape 64,64 --cold 4294967295");
    let error = text(&program(&args).stderr);
    contains(&error, &["--cold 4294967295 takes", "with --cold 0, "]);
    assert!(error.contains("hint: "), "{error}");
}

/// The first problem fills the memory that all share. The second one's vectors, 52 TB of them, were once allocated without
/// a look at what there is, which ends the program. The first problem's times are kept.
#[test]
fn every_problem_is_checked_against_memory_and_one_does_not_lose_the_others() {
    let line = "bench --path cpu --rounds 1 --cold 0 --shape 16,1048576 --n 1 --n 100000000";
    // The suite has two types of vectors.
    for (rest, problems) in [("", 1), (" --suite quick", 2)] {
        let line = format!("{line}{rest}");
        let output = program(&words(&line));
        assert_eq!(output.status.code(), Some(1));
        let failed = "FAILED: 16x1048576 n=100000000";
        contains(
            &text(&output.stdout),
            &["16x1048576  ", failed, "of host memory"],
        );
        let output = program(&[&words(&line)[..], &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |field: &str| document[field].as_array().unwrap().len();
        assert_eq!((count("cases"), count("failed")), (problems, problems));
    }
}

/// Options that take no number, or one that a test above puts in the place of a `{}`. Whoever adds an option
/// adds it here, and above if it takes a number.
const KNOWN: &str = "\
    --a --activation --adversarial --b --batch-invariant --buffers --calibration --case --ceiling --chain --chained --checkpoint --cold --commit --compute-capability \
    --contest --cublas --dialect --dump --each --exclude --force --gpu --help --include --input --json --kernel --layer --layout --list \
    --n --no-workspace --out --output --output-type --path --piece --problem --random --rank --replace --require-gpu --rounds --sample --seconds --seed --select --shape --share-scales --soak --split --suite \
    --sustained --tensor-parallel --to --tuned --vector-accuracy --version --windows";

#[test]
fn every_option_is_known_here() {
    for command in [
        "info", "run", "verify", "inspect", "load", "quantize", "plan", "tune", "bench", "compare",
    ] {
        let help = text(&program(&[command, "--help"]).stdout);
        let lines = help.lines().map(str::trim_start);
        for line in lines.filter(|line| line.starts_with('-')) {
            let options = line
                .split([' ', ',', '=', '['])
                .filter(|word| word.starts_with("--"));
            for option in options.take(1) {
                assert!(words(KNOWN).contains(&option), "{command} {option}");
            }
        }
    }
}
