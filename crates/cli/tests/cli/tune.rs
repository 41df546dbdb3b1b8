//! `tune`, and plans that `plan` makes of measurements.

use serde_json::Value;

use super::{H200, compiled_for, contains, fails, json, prints, refuses, there_is_a_device, words};

#[test]
fn plan_ranks_the_kernels_of_a_measured_gpu() {
    if !compiled_for("90a") {
        return;
    }
    let arguments = ["plan", "4096", "7168", "8", "--layout", "128x4"];
    let plan = json(&[&arguments[..], &["--gpu", "h200"]].concat());
    let kernels = plan["kernels"].as_array().unwrap();
    let shares: Vec<f64> = kernels
        .iter()
        .map(|kernel| kernel["share_of_ceiling"].as_f64().unwrap_or(0.0))
        .collect();
    assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
    assert_eq!(plan["kernel"], kernels[0]["kernel"]);
    assert_eq!(kernels[0]["evidence"], "measured on NVIDIA H200");
    assert!(kernels[0]["seconds"].as_f64().unwrap() > 0.0);
    let chained = json(&[&arguments[..], &["--gpu", "h200", "--chained"]].concat());
    assert!(chained["kernels"][0]["seconds"].as_f64() < kernels[0]["seconds"].as_f64());
    let plan = json(&["plan", "5000", "7168", "--n", "2", "--gpu", "H200"]);
    let evidence = plan["kernels"][0]["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("after "), "{evidence}");
    let text = prints(&[&arguments[..], &["--gpu", "h200"]].concat());
    assert!(text.contains("* ") && text.contains("% "), "{text}");
    let measured = &kernels[0]["seconds_at_published_rate"];
    assert!(measured.is_null(), "{measured}");
    assert_eq!(plan["gpu"]["multiprocessors"], 132);
    let error = refuses(&["plan", "16", "16", "--gpu", "abacus"]);
    contains(&error, &["h200", "b300", "rtx-pro-6000", "dgx-spark"]);
}

#[test]
fn every_product_can_be_planned_for_without_a_gpu() {
    for product in nvfp4_gemv::Product::ALL {
        for problem in ["14336,4096", "14336,4096,1,16", "4096,7168,8,128"] {
            let arguments = ["plan", problem, "--layout", "128x4", "--gpu", product.name];
            let plan = json(&arguments);
            assert_ne!(plan["path"], "cpu", "{}", product.name);
            assert_eq!(plan["gpu"]["name"], product.name);
            let bytes = plan["weight_bytes"].as_f64().unwrap();
            let read = bytes / product.memory_bandwidth as f64;
            for kernel in plan["kernels"].as_array().unwrap() {
                let (modelled, share) = (
                    &kernel["seconds_at_published_rate"],
                    &kernel["share_of_ceiling"],
                );
                match kernel["seconds"].is_f64() || share.is_null() {
                    true => assert!(modelled.is_null(), "{kernel}"),
                    false => {
                        let expected = read / share.as_f64().unwrap();
                        let given = modelled.as_f64().unwrap();
                        assert!((given / expected - 1.0).abs() < 1e-9, "{kernel}");
                    }
                }
            }
            let text = prints(&arguments);
            contains(&text, &[product.full_name, "as published"]);
        }
    }
}

#[test]
fn tune_and_its_files() {
    let help = prints(&["tune", "--help"]);
    assert!(help.contains("Examples:") && help.contains("--json"));
    contains(
        &help,
        &[
            "--rank <RANK>",
            "sustained",
            "energy",
            "NVML",
            "--chain",
            "bench --suite decode",
            "With --json that is a line",
            "--seconds is about the search",
        ],
    );
    refuses(&["tune", "--shape", "16,16", "--rank", "beauty"]);
    refuses(&["tune", "--shape", "16,16", "--sustained", "0.5"]);
    let error = refuses(&["tune"]);
    assert!(error.contains("--shape"), "{error}");
    if !there_is_a_device() {
        let error = fails(&["tune", "--shape", "4096,4096"]);
        let reasons = ["driver", "cuda", "carries no kernels"];
        assert!(reasons.iter().any(|why| error.contains(why)), "{error}");
        assert!(error.contains("hint: "), "{error}");
        // A plan from the file of another machine, and from a file that is none.
        if compiled_for("90a") {
            let plan = json(&["plan", "4096", "4096", "--tuned", H200]);
            let evidence = &plan["kernels"][0]["evidence"];
            assert_eq!(evidence, "from the file of tuned configs");
        }
        let error = fails(&["plan", "4096", "4096", "--tuned", "Cargo.toml"]);
        assert!(error.contains("Cargo.toml"), "{error}");
        // The name alone would not say what to mend.
        let error = fails(&["plan", "4096", "4096", "--tuned", "gone.json"]);
        assert!(error.contains("gone.json: "), "{error}");
        assert!(error.to_lowercase().contains("no such file"), "{error}");
    }
}

/// Matrices, and those that engines join, each once.
#[test]
fn tune_finds_the_shapes_of_a_checkpoint() {
    let of = |name: &str, rest: &[&str]| -> Vec<[u64; 3]> {
        let path = format!("../../tests/data/exporters/{name}");
        let run = [
            "tune",
            "--list",
            "--layout",
            "linear",
            "--checkpoint",
            &path,
        ];
        let problems = json(&[&run, rest].concat())["problems"].clone();
        let numbers = |of: &Value| ["m", "k", "n"].map(|name| of[name].as_u64().unwrap());
        problems.as_array().unwrap().iter().map(numbers).collect()
    };
    // gate and up, q, k and v, the layers by themselves.
    let (joined, alone) = (
        [[96, 80], [64, 80]],
        [[48, 80], [80, 48], [32, 80], [80, 32], [16, 80]],
    );
    let all = [&joined[..], &alone].concat();
    let of_n = |n: u64| all.iter().map(move |&[m, k]| [m, k, n]);
    assert_eq!(of("modelopt-nvfp4", &[]), of_n(1).collect::<Vec<_>>());
    let both = all.iter().flat_map(|&[m, k]| [1, 8].map(|n| [m, k, n]));
    let found = of("modelopt-nvfp4", &["--n", "1", "--n", "8"]);
    assert_eq!(found, both.collect::<Vec<_>>());
    // No experts, which have 16x64 matrices; k_proj has as many.
    assert!(!of("modelopt-experts", &[]).contains(&[64, 16, 1]));
    let error = fails(&[
        "tune",
        "--list",
        "--checkpoint",
        "../../tests/data/exporters/make",
    ]);
    assert!(error.contains("make"), "{error}");
    refuses(&["tune", "--shape", "16,16", "--n", "4"]);
}

/// Measurements of one machine are made again on another one.
#[test]
fn a_sample_is_drawn_by_its_seed() {
    let listed = |line: &str| json(&words(line))["problems"].clone();
    let some = listed("tune --list --sample 5 --seed 3");
    assert_eq!(some.as_array().unwrap().len(), 5);
    assert_eq!(some, listed("tune --list --sample 5 --seed 3"));
    assert_eq!(
        listed("tune --list --sample 5"),
        listed("tune --list --sample 5 --seed 1")
    );
    assert_ne!(some, listed("tune --list --sample 5"));
    for meaningless in [
        "tune --seed 3",
        "tune --sample 0",
        "tune --sample 2 --out f",
        "tune --sample 2 --shape 16,16",
    ] {
        refuses(&words(meaningless));
    }
    if !there_is_a_device() {
        let error = fails(&words("tune --sample 2"));
        assert!(error.contains("hint: "), "{error}");
    }
}

#[test]
fn kernels_lists_entry_points() {
    let listed = json(&["kernels", "--arch", "80", "--arch", "90a"]);
    assert_eq!(listed["problem"], "4096x7168x8");
    let entries = |arch: usize| listed["archs"][arch]["entries"].as_array().unwrap();
    let has = |arch, name| entries(arch).iter().any(|entry| entry["entry"] == name);
    let direct = "gemv_direct_f16_n1_b2";
    assert!(has(0, direct) && has(1, direct));
    assert!(!has(0, "gemv_ring_nvfp4_c2_r1_l1") && has(1, "gemv_ring_nvfp4_c2_r1_l1"));
    for entry in entries(1) {
        let name = entry["entry"].as_str().unwrap();
        let of_gemv = name.starts_with("gemv_");
        let has_config = of_gemv || name == "bundle_batches";
        assert_eq!(entry["config"].is_object(), has_config, "{entry}");
        // All kernels except those that multiply nothing.
        let multiplies = of_gemv && !name.contains("_pack_") && !name.ends_with("_add");
        assert_eq!(entry["main_loop"].is_object(), multiplies, "{entry}");
    }
    let text = prints(&["kernels", "--arch", "90a"]);
    contains(&text, &["gemv_ring_nvfp4_c2_r1_l1", "132 SMs"]);
    let error = fails(&["kernels", "--arch", "abacus"]);
    assert!(error.contains("90a"), "{error}");
}
