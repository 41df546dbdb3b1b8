//! Several GPUs: plans for them, and refusals without them.

use serde_json::Value;

use super::{contains, fails, json, prints, refuses, words};

/// The split of a plan for two H200.
fn split<'a>(plan: &'a Value, name: &str) -> &'a Value {
    let splits = plan["splits"].as_array().unwrap();
    splits.iter().find(|split| split["split"] == name).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn a_plan_for_several_gpus_says_what_each_has_and_what_the_sum_takes() {
    let plan = json(&words(
        "plan 8192 28672 --n 8 --activation bf16 --gpu h200 --tensor-parallel 2",
    ));
    assert_eq!(plan["tensor_parallel"], 2);
    assert_eq!(plan["link"]["kind"], "NVLink");
    let (rows, k) = (split(&plan, "rows"), split(&plan, "k"));
    for (part, shape) in [(rows, [4096, 28672]), (k, [8192, 14336])] {
        let rank = &part["rank"];
        assert_eq!(
            [&rank["m"], &rank["k"], &rank["n"]],
            [shape[0], shape[1], 8]
        );
        let half = number(&plan["whole"]["weight_bytes"]) / 2.0;
        assert_eq!(number(&rank["weight_bytes"]), half);
        assert!(
            rank["kernel"].is_string() && rank["config"].is_object(),
            "{rank}"
        );
        // Eight vectors of 8192 numbers of 16 bits.
        assert_eq!(part["collective_bytes"], 131_072);
        let steps = number(&part["collective_steps"]) * number(&part["collective_step_seconds"]);
        let sum = number(&part["collective_start_seconds"]) + steps;
        let sum = sum + number(&part["collective_bytes_seconds"]);
        assert!((sum / number(&part["collective_seconds"]) - 1.0).abs() < 1e-9);
        let seconds = number(&rank["seconds"]) + sum;
        assert!((seconds / number(&part["seconds"]) - 1.0).abs() < 1e-9);
        let faster = number(&plan["whole"]["seconds"]) / seconds;
        assert!((faster / number(&part["speedup"]) - 1.0).abs() < 1e-9);
        // The split pays from this size on: there the saved time is the collective's time.
        let size = if part["split"] == "k" {
            28672.0
        } else {
            8192.0
        };
        let saved = number(&plan["whole"]["seconds"]) - number(&rank["seconds"]);
        let from = number(&part["pays_from"]);
        assert!((from * saved / size / sum - 1.0).abs() < 1e-3, "{part}");
        assert!(number(&part["speedup_without_collective"]) > faster);
    }
    assert_eq!(rows["collective"], "all-gather");
    assert_eq!(rows["collective_needed"], false);
    assert_eq!(k["collective"], "all-reduce");
    assert!(number(&k["collective_seconds"]) > number(&rows["collective_seconds"]));

    let text = prints(&words(
        "plan 8192 28672 --gpu b200 --tensor-parallel 8 --split k",
    ));
    contains(
        &text,
        &[
            "over 8 of NVIDIA B200",
            "each of 8 has 8192 x 3584",
            "all-reduce of 16.4 kB",
            "14 steps",
            "pays from K",
            "nothing was measured",
        ],
    );
    assert!(!text.contains("split rows"), "{text}");
    contains(&text, &["in one host"]);

    let many = prints(&words("plan 8192 28672 --gpu b200 --tensor-parallel 16"));
    contains(&many, &["as if one host had so many"]);
    assert!(!many.contains("in one host"), "{many}");
}

/// The layers of Llama-3.1-405B divide among eight, and no part has ragged rows: no kernel is ruled out by its shape.
#[test]
fn layers_of_405b_divide_among_eight() {
    for (layer, divided, part) in [
        ("16384 16384", "rows", [2048, 16384]),
        ("1024 16384", "rows", [128, 16384]),
        ("16384 16384", "k", [16384, 2048]),
        ("53248 16384", "rows", [6656, 16384]),
        ("16384 53248", "k", [16384, 6656]),
    ] {
        let line = format!(
            "plan {layer} --gpu h200 --activation bf16 --n 8 --tensor-parallel 8 --split {divided}"
        );
        let plan = json(&words(&line));
        let part_of_rank = split(&plan, divided);
        let rank = &part_of_rank["rank"];
        assert_eq!([&rank["m"], &rank["k"]], [part[0], part[1]], "{line}");
        assert_eq!(part_of_rank["ragged"], false, "{line}");
        assert!(
            rank["kernel"].is_string() && rank["config"].is_object(),
            "{line}"
        );
    }
    let error = fails(&words("plan 16384 53248 --gpu h200 --tensor-parallel 7"));
    contains(&error, &["over 7 ranks", "1, 2, 4, 8, 16 ranks"]);
}

/// 11008 is a multiple of 256, and a fourth of it is not.
#[test]
fn a_plan_says_where_parts_have_ragged_rows() {
    let four = words("plan 4096 11008 --layout 128x4 --gpu h200 --split k --tensor-parallel 4");
    let says = "note: K = 2752 of a part is no multiple of 256, as the whole's is: it takes longer for its bytes, and cannot \
                be computed by ring";
    contains(&prints(&four), &[says]);
    assert_eq!(split(&json(&four), "k")["ragged"], true);
    // 11 parts of 1024.
    let even = words("plan 4096 11264 --layout 128x4 --gpu h200 --tensor-parallel 4");
    assert_eq!(split(&json(&even), "k")["ragged"], false);
    assert!(!prints(&even).contains("note: K"));
}

#[test]
fn plans_that_cannot_be_say_what_could() {
    let three = fails(&words("plan 8192 4096 --gpu h200 --tensor-parallel 3"));
    contains(&three, &["M = 8192 over 3 ranks", "1, 2, 4, 8, 16 ranks"]);
    let alone = fails(&words("plan 8192 4096 --gpu dgx-spark --tensor-parallel 2"));
    contains(&alone, &["a host has one NVIDIA GB10"]);
}

/// On a machine without GPUs, or with fewer.
#[test]
fn what_needs_several_gpus_says_so_without_them() {
    for activation in ["bf16", "nvfp4"] {
        let few = fails(&words(&format!(
            "bench --suite decode --tensor-parallel 64 --activation {activation}"
        )));
        assert!(
            few.contains("--tensor-parallel measures GPUs of this machine")
                || few.contains("--tensor-parallel 64 needs so many GPUs"),
            "{few}"
        );
    }
    let shapes = refuses(&words("bench --tensor-parallel 2"));
    contains(&shapes, &["--suite decode"]);
}
