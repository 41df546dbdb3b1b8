//! `tune`, and what `plan` makes of measurements.

use super::{compiled_for, fails, json, prints};

#[test]
fn plan_ranks_the_paths_of_a_measured_gpu() {
    if !compiled_for("90a") {
        return;
    }
    let arguments = ["plan", "4096", "7168", "8", "--layout", "128x4"];
    let plan = json(&[&arguments[..], &["--gpu", "h200"]].concat());
    let paths = plan["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 4);
    let shares: Vec<f64> = paths
        .iter()
        .map(|path| path["share_of_ceiling"].as_f64().unwrap_or(0.0))
        .collect();
    assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
    if cfg!(feature = "cuda") {
        assert_eq!(plan["path"], paths[0]["path"]);
    }
    assert_eq!(paths[0]["evidence"], "measured on NVIDIA H200");
    assert!(paths[0]["seconds"].as_f64().unwrap() > 0.0);
    let plan = json(&["plan", "5000", "7168", "--n", "2", "--gpu", "H200"]);
    let evidence = plan["paths"][0]["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("after "), "{evidence}");
    let text = prints(&[&arguments[..], &["--gpu", "h200"]].concat());
    assert!(text.contains("* ") && text.contains("% "), "{text}");
    let error = fails(&["plan", "16", "16", "--gpu", "abacus"]);
    assert!(error.contains("NVIDIA H200"), "{error}");
}

#[test]
fn tune_and_its_files() {
    let help = prints(&["tune", "--help"]);
    assert!(help.contains("Examples:") && help.contains("--json"));
    let error = fails(&["tune"]);
    assert!(error.contains("--shape"), "{error}");
    let info = json(&["info"]);
    if info["cuda"]["why_none"].is_string() {
        let error = fails(&["tune", "--shape", "4096,4096"]);
        assert!(
            error.contains("driver") || error.contains("cuda"),
            "{error}"
        );
        assert!(error.contains("hint: "), "{error}");
        // A plan from the file of another machine, and from what is no such file.
        if compiled_for("90a") {
            let table = concat!(env!("CARGO_MANIFEST_DIR"), "/src/path/measured/h200.json");
            let plan = ["plan", "4096", "4096", "--tuned"];
            let evidence = json(&[&plan[..], &[table]].concat())["paths"][0]["evidence"].clone();
            assert_eq!(evidence, "from the file of tuned configurations");
        }
        let error = fails(&["plan", "4096", "4096", "--tuned", "Cargo.toml"]);
        assert!(error.contains("Cargo.toml"), "{error}");
        // The name alone would not say what to mend.
        let error = fails(&["plan", "4096", "4096", "--tuned", "gone.json"]);
        assert!(error.contains("gone.json: "), "{error}");
        assert!(error.to_lowercase().contains("no such file"), "{error}");
    }
}
