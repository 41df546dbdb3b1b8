//! The program, run as its users run it.

mod bench;
mod cases;
#[cfg(unix)]
mod files;
mod hostile_files;
mod hostile_names;
mod inspect;
mod numbers;
mod quantize;
mod quantize_directory;
mod ranks;
mod run;
mod tune;
mod verify;

use std::process::{Command, Output};

use serde_json::Value;

const MODELOPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/minilm-l0-modelopt.safetensors"
);
const COMPRESSED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/minilm-l0-compressed-tensors.safetensors"
);
/// Measurements on a GPU, in the form of a file of tuned configs.
const H200: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../src/dispatch/measured/h200.jsonl"
);
const LAYER: &str = "encoder.layer.0.intermediate.dense";

/// Variables that the program gets from the environment of the tests: how to find the driver, which of its devices to
/// use, where to count coverage. Everything else, from `NVFP4_GEMV_PATH` to `COLUMNS`, could change what it prints.
const KEPT: [&str; 4] = [
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LLVM_PROFILE_FILE",
    "SystemRoot",
];

/// The program, started the same way whoever runs the tests. Every test that starts it begins with this.
fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4-gemv"));
    let kept = KEPT
        .iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    command
        .env_clear()
        .envs(kept)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(std::process::Stdio::null());
    command
}

fn program(args: &[&str]) -> Output {
    command().args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The words of a command line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The arguments that run a layer on the CPU, with more options.
fn run_layer<'a>(checkpoint: &'a str, layer: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let files = ["--checkpoint", checkpoint, "--layer", layer];
    [&["run", "--path", "cpu"], &files[..], rest].concat()
}

/// All parts stand in a text.
#[track_caller]
fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// A folder of a test's own.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// The path of a file in it.
    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Output of a successful call.
fn prints(args: &[&str]) -> String {
    let out = program(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// The JSON object of a call that succeeds.
fn json(args: &[&str]) -> Value {
    let args = [args, &["--json"]].concat();
    serde_json::from_str(&prints(&args)).unwrap()
}

/// Error output of a call with this exit code.
#[track_caller]
fn ends_with(code: i32, args: &[&str]) -> String {
    let out = program(args);
    let printed = text(&out.stdout);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {printed}");
    text(&out.stderr)
}

/// Error output of a call with wrong arguments.
#[track_caller]
fn refuses(args: &[&str]) -> String {
    ends_with(2, args)
}

fn there_is_a_device() -> bool {
    json(&["info"])["cuda"]["why_none"].is_null()
}

/// The error of a call that must fail with 1, the same for people and for scripts.
fn fails(args: &[&str]) -> String {
    let error = ends_with(1, args);
    assert!(error.starts_with("error: "), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    let out = program(&[args, &["--json"]].concat());
    assert_eq!(out.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    let message = json["error"].as_str().unwrap();
    assert!(error.contains(message), "{error} {message}");
    error
}

#[test]
fn help_has_examples_and_wrong_usage_exits_with_2() {
    assert!(prints(&["--help"]).contains("Exit codes"));
    for command in [
        "info", "run", "verify", "inspect", "quantize", "plan", "kernels", "bench", "compare",
    ] {
        let help = prints(&[command, "--help"]);
        contains(&help, &["Examples:", "--json"]);
    }
    for wrong in "frobnicate|run|plan x 16|plan 16 16 --path gpu|bench --shape 1,2,3,4,5|bench --shape 16,24|\
        bench --shape 16,16 --n 0|plan|plan 16,16 --shape 16,16|plan 16 16 1 1 1|tune --shape 16|tune --chain|\
        tune --chain --suite|tune --chain --shape 16,16 --rank energy|bench --tuned t.json --ceiling|\
        bench --tuned t.json --suite decode --tensor-parallel 2|verify --problem x --contest|\
        run --checkpoint c --layer l --random 1 --input a:b|plan 16 16 --tensor-parallel 2|\
        plan 16 16 --gpu h200 --tensor-parallel 0|plan 16 16 --gpu h200 --split k|\
        bench --suite decode --tensor-parallel 1|bench --suite decode --windows|\
        bench --suite decode --tensor-parallel 2 --sustained 5|\
        bench --suite decode --tensor-parallel 2 --output-type f32|\
        bench --suite decode --tensor-parallel 2 --path cpu"
        .split('|')
    {
        assert!(!refuses(&words(wrong)).is_empty());
    }
}

#[test]
fn info_lists_every_path_with_its_state() {
    let info = json(&["info"]);
    let paths = info["paths"].as_array().unwrap();
    let names: Vec<_> = paths.iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cpu", "cuda-core", "tensor-core"]);
    assert_eq!(paths[0]["available"], true);
    let kernels = info["kernels"].as_array().unwrap();
    for kernel in kernels {
        assert!(names[1..].contains(&kernel["path"].as_str().unwrap()));
    }
    for path in paths.iter().chain(kernels) {
        let has_reason = path["why_not"].is_string();
        assert_ne!(path["available"] == true, has_reason, "{path}");
    }
    assert!(info["cpu"]["implementations"].as_array().unwrap().len() >= 2);
    assert!(prints(&["info"]).contains("Paths"));
}

#[test]
fn a_path_that_is_not_there_is_an_error_and_auto_says_why_it_is_not_taken() {
    if there_is_a_device() {
        return;
    }
    for kernel in json(&["info"])["kernels"].as_array().unwrap() {
        let name = kernel["name"].as_str().unwrap();
        let error = fails(&["verify", "--kernel", name, "--case", "zeros 5x16"]);
        assert!(error.contains("hint: "), "{error}");
    }
    for path in ["cuda-core", "tensor-core"] {
        let run = ["run", "--checkpoint", MODELOPT, "--layer", LAYER];
        let error = fails(&[&run[..], &["--path", path]].concat());
        assert!(
            error.contains(path) || error.contains("driver") || error.contains("device"),
            "{error}"
        );
        assert!(error.contains("hint: "), "{error}");
        fails(&["verify", "--path", path, "--case", "zeros 5x16"]);
        fails(&["plan", "128", "256", "--path", path]);
        fails(&["bench", "--path", path, "--shape", "16,16"]);
    }
    let run = json(&["run", "--checkpoint", MODELOPT, "--layer", LAYER]);
    assert_eq!(run["path"], "cpu");
    contains(run["reason"].as_str().unwrap(), &["not cuda-core"]);
    let mut forced = command();
    let forced = forced
        .args(["plan", "16", "16"])
        .env("NVFP4_GEMV_PATH", "cuda-core");
    assert_eq!(forced.output().unwrap().status.code(), Some(1));
    let unknown = forced.env("NVFP4_GEMV_PATH", "gpu").output().unwrap();
    assert!(text(&unknown.stderr).contains("\"gpu\" is not a path"));
}

/// Who reads it is at `plan`.
#[test]
fn the_hint_of_a_plan_leads_somewhere() {
    if !compiled_for("90a") {
        return;
    }
    let asked = words("plan 4096 4096 --gpu h200");
    let error = fails(&[&asked[..], &["--kernel", "tcgen05"]].concat());
    contains(&error, &["hint: without --kernel, `nvfp4-gemv plan` shows"]);
    let kernels = json(&asked)["kernels"].to_string();
    let plan = prints(&asked);
    assert!(
        kernels.contains("tcgen05") || plan.contains("tcgen05"),
        "{plan}"
    );
}

/// Plans are for the architectures of the build, where it has any.
fn compiled_for(arch: &str) -> bool {
    let archs = json(&["info"])["cuda"]["archs"].clone();
    let archs = archs.as_array().unwrap();
    archs.is_empty() || archs.iter().any(|one| one == arch)
}

fn compiled_for_blackwell() -> bool {
    compiled_for("100f")
}

/// The kernel divides tiles through a workspace, and does without one if that costs less than a quarter.
#[test]
fn plan_without_a_workspace() {
    // 56 tiles are few for 148 multiprocessors, which share them through a workspace: 8192 bytes of counters, and 295
    // parts of 128 rows. 256 tiles may stay whole.
    for (shape, with, without) in [
        ("7168,16384", 8192 + 295 * 128 * 16 * 4, None),
        ("4096,7168,8", 8192 + 295 * 128 * 16 * 4, Some(0)),
    ] {
        let asked = words("--n 16 --layout 128x4 --gpu b200");
        let asked = [&["plan", shape], &asked[..]].concat();
        let plan = json(&asked);
        assert_eq!(
            (&plan["kernel"], &plan["workspace_bytes"]),
            (&"tcgen05".into(), &with.into())
        );
        let plan = json(&[&asked[..], &["--no-workspace"]].concat());
        let mut kernels = plan["kernels"].as_array().unwrap().iter();
        let tcgen05 = kernels.find(|of| of["kernel"] == "tcgen05").unwrap();
        match without {
            Some(bytes) => assert_eq!(plan["workspace_bytes"], bytes),
            None => contains(
                tcgen05["why_not"].as_str().unwrap(),
                &["2424832", "workspace"],
            ),
        }
        assert_eq!(plan["kernel"] == "tcgen05", without.is_some());
    }
}

/// One order of sums for any number of vectors, in parts of as many steps for few as for many; or an error.
#[test]
fn plan_of_batch_invariant_calls() {
    let asked = |n, others: &[&'static str]| {
        let plan = words("plan 4096,4096 --gpu h200 --n");
        [&plan[..], &[n], others].concat()
    };
    let config = |n, others: &[&'static str]| json(&asked(n, others))["config"].clone();
    let [one, eight, all] = ["1", "8", "128"].map(|n| config(n, &["--batch-invariant"]));
    assert_eq!(all["packed"]["long_sums"], true, "{all}");
    for few in [one, eight] {
        assert_eq!(few["stream"]["part"], all["packed"]["chunk"], "{few} {all}");
    }
    assert_eq!(config("1", &[])["stream"]["part"], Value::Null);
    // Without a workspace `stream` has the same parts, where it takes K.
    let without = ["--batch-invariant", "--no-workspace"];
    let stream = config("128", &without);
    assert_eq!(
        stream["stream"]["part"], all["packed"]["chunk"],
        "{stream} {all}"
    );
    let ragged = words("plan 4096,4160 --gpu h200 --n 128");
    let workspace = fails(&[&ragged[..], &without].concat());
    contains(&workspace, &["packed", "workspace"]);
    let f32 = fails(&asked("1", &["--batch-invariant", "--activation", "f32"]));
    contains(&f32, &["batch invariance"]);
}

/// Digits of vectors where they are allowed and worth it, with the launch that makes them and their workspace.
#[test]
fn plan_of_vectors_that_may_be_digits() {
    if !compiled_for_blackwell() {
        return;
    }
    let of = |gpu, accuracy| {
        let plan = words("plan 7168,16384 --n 16 --activation bf16 --layout 128x4 --gpu");
        let plan = [&plan[..], &[gpu, "--vector-accuracy", accuracy]].concat();
        (json(&plan), text(&program(&plan).stdout))
    };
    let (exact, _) = of("b200", "exact");
    assert_eq!(
        (&exact["digits"], exact["kernel"] == "tcgen05"),
        (&Value::Null, false)
    );
    let (f16, lines) = of("b200", "f16");
    assert_eq!(
        (&f16["digits"], &f16["kernel"]),
        (&4.into(), &"tcgen05".into())
    );
    // Codes and scales of 64 rows, and what the kernel asks for.
    let digits = 64 * 16384 / 2 + 128 * 1024 + 64;
    assert!(f16["workspace_bytes"].as_u64().unwrap() > digits, "{f16}");
    contains(
        &lines,
        &[
            "4 digits",
            "launch: quantize_digits_bf16",
            "launch: gemv_tcgen05_n64",
        ],
    );
    assert_eq!(of("h200", "bf16").0["digits"], Value::Null);
}

#[test]
fn plan_explains() {
    if !compiled_for_blackwell() {
        return;
    }
    let plan = json(&words("plan 4096 7168 8 --n 4 --compute-capability 10.0"));
    assert_eq!(plan["l"], 8);
    assert_ne!(plan["path"], "cpu");
    let kernels = plan["kernels"].as_array().unwrap();
    let kernel = |name| kernels.iter().find(|one| one["kernel"] == name).unwrap();
    let planned = plan["kernel"].as_str().unwrap();
    assert_eq!(plan["config"], kernel(planned)["config"]);
    for one in kernels {
        let mut launches = one["launches"].as_array().unwrap().iter();
        let launched = launches.any(|launch| launch["threads"].as_u64() > Some(0));
        assert_eq!(one["available"], launched, "{one}");
        let has_reason = one["why_not"].is_string();
        assert_ne!(has_reason, one["config"].is_object(), "{one}");
    }
    // One vector a pass, and up to eight.
    for (name, passes) in [("ring", 4), ("stream", 1), ("direct", 1)] {
        assert_eq!(kernel(name)["passes"], passes, "{name}");
    }
    let many = words("plan 4096 7168 --n 130 --compute-capability 9.0 --kernel");
    for (name, passes, most) in [("direct", 17, 8), ("ring", 130, 1)] {
        let text = prints(&[&many[..], &[name]].concat());
        let says = format!("{passes} passes over the weights, of at most {most} vector");
        contains(&text, &[&says]);
    }
    // Linear scales: tensor cores cannot read them.
    let reason = plan["reason"].as_str().unwrap();
    assert!(reason.starts_with("not tcgen05"), "{reason}");
    let blackwell = ["--layout", "128x4", "--compute-capability", "10.0"];
    for (n, path) in [("1", "cuda-core"), ("8", "tensor-core")] {
        let plan = json(&[&["plan", "4096", "7168", "--n", n], &blackwell[..]].concat());
        assert_eq!(plan["path"], path);
        assert!(plan["reason"].as_str().unwrap().contains("modelled"));
    }
    let asked = words("plan 4096 7168 --compute-capability 10.0 --kernel");
    let direct = json(&[&asked[..], &["direct"]].concat());
    assert_eq!(direct["kernel"], "direct");
    let refused = fails(&[&asked[..], &["tcgen05"]].concat());
    contains(&refused, &["the tcgen05 kernel is not available"]);
    let old = fails(&["plan", "128", "256", "--compute-capability", "7.5"]);
    assert!(old.contains("compute capability 7.5"), "{old}");
    assert_eq!(json(&["plan", "0", "16", "--path", "cpu"])["path"], "cpu");
}

#[test]
fn every_command_reads_shapes_alike() {
    for written in [
        &["4096,7168,8,4"][..],
        &["4096x7168x8x4"],
        &["4096", "7168", "8", "4"],
        &["4096x7168", "8", "--n", "4"],
        &["--shape", "4096,7168,8,4"],
        &["--shape", "4096x7168x8", "--n", "4"],
    ] {
        let plan = json(&[&["plan", "--path", "cpu"], written].concat());
        let dimensions = ["m", "k", "l", "n"].map(|name| plan[name].as_u64().unwrap());
        assert_eq!(dimensions, [4096, 7168, 8, 4], "{written:?}");
    }
    let huge = usize::MAX.to_string();
    for (shape, says) in [
        ("4096", "1 number given; expected M,K[,L[,N]]"),
        ("4096,x", "K is missing"),
        ("1o24,16", "M = \"1o24\" is not a whole number"),
        ("128,0", "K is 0"),
        ("128,24", "K = 24"),
        ("128,32,1,0", "N = 0"),
        ("128,32,1,4294967296", "N = 4294967296"),
        (&format!("{huge},16"), "overflow"),
        (&format!("16,{huge}0"), "is too large"),
    ] {
        for command in [
            &["plan"][..],
            &["plan", "--shape"],
            &["tune", "--shape"],
            &["bench", "--shape"],
            &["compare", "--a", "cpu", "--b", "cpu", "--shape"],
        ] {
            let error = refuses(&[command, &[shape]].concat());
            assert!(error.contains(says), "{command:?} {shape}: {error}");
        }
    }
    let error = refuses(&["plan", "64,64", "64,64"]);
    assert!(error.contains("one shape is planned at a time"), "{error}");
    let out = program(&["plan", "16,24", "--json"]);
    assert_eq!(out.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .starts_with("invalid shape \"16,24\"")
    );
    for command in [
        &["plan", "16,16"][..],
        &["bench", "--shape", "16,16"],
        &run_layer(MODELOPT, LAYER, &[]),
    ] {
        assert!(refuses(&[command, &["--n", "0"]].concat()).contains("N = 0"));
        let error = refuses(&[command, &["--n", "4294967296"]].concat());
        contains(&error, &["N = 4294967296", "overflow"]);
    }
}

#[test]
fn a_plan_for_a_gpu_that_no_build_knows_is_shown_with_what_this_build_lacks() {
    let plan = json(&["plan", "4096,7168", "--compute-capability", "11.0"]);
    assert_eq!(plan["path"], "cuda-core");
    let note = plan["other_build"].as_str().unwrap();
    assert!(note.contains("this build"), "{note}");
    let table = prints(&["plan", "4096,7168", "--compute-capability", "11.0"]);
    assert!(table.contains(note) && table.contains("* ring"), "{table}");
    // Whatever the build has, a B200 can be planned for.
    json(&["plan", "4096,7168", "--compute-capability", "10.0"]);
}

#[test]
fn a_plan_without_a_gpu_says_once_what_is_missing_and_how_to_ask_for_one() {
    if there_is_a_device() {
        return;
    }
    let text = prints(&["plan", "4096,7168"]);
    contains(&text, &["no kernel of a GPU: ", "--gpu NAME", "h200"]);
    let (_, after) = text.split_once("because: ").unwrap();
    let why = after.lines().next().unwrap();
    assert!(text.lines().count() < 8 && !why.is_empty(), "{text}");
    let kernels = json(&["plan", "4096,7168"])["kernels"].clone();
    assert!(kernels.as_array().unwrap().len() > 5);
}

#[test]
fn a_plan_for_a_gpu_that_nobody_knows_says_so() {
    let plan = |of| json(&["plan", "4096,7168", "--compute-capability", of]);
    let note = plan("13.0")["unknown_gpu"].as_str().unwrap().to_owned();
    contains(
        &note,
        &["no GPU of compute capability 13.0 is known", "10.0"],
    );
    assert!(prints(&["plan", "4096,7168", "--compute-capability", "13.0"]).contains(&note));
    assert!(plan("9.0")["unknown_gpu"].is_null());
}

#[test]
fn a_plan_of_several_passes_says_which_launches_are_shown() {
    if !compiled_for("90a") {
        return;
    }
    let of = |n: &str, kernel: &str| {
        let plan = words("plan 4096 7168 --compute-capability 9.0");
        prints(&[&plan[..], &["--n", n, "--kernel", kernel]].concat())
    };
    // Equal passes, one that is smaller, and a single one.
    contains(&of("16", "direct"), &["2 passes", "  launch, 2 times: "]);
    contains(
        &of("130", "direct"),
        &["17 passes", "  launch, 16 times: ", "  last launch: "],
    );
    let two = of("12", "direct");
    contains(&two, &["  first launch: ", "  last launch: "]);
    let one = of("8", "direct");
    assert!(
        one.contains("  launch: ") && !one.contains("times"),
        "{one}"
    );
}

#[test]
fn a_wrong_shape_is_followed_by_the_usage_of_its_command() {
    let error = refuses(&["plan", "4096,7169"]);
    contains(&error, &["K = 7169", "Usage: nvfp4-gemv plan"]);
    assert!(!error.contains("<COMMAND>"), "{error}");
}

#[test]
fn hints_name_options_that_the_command_has() {
    let forced = |path| {
        let mut plan = command();
        plan.args(["plan", "16,16"]).env("NVFP4_GEMV_PATH", path);
        plan.output().unwrap()
    };
    assert!(text(&forced("gpu").stderr).contains("NVFP4_GEMV_PATH"));
    assert!(text(&forced("cpu").stdout).contains("because: asked for by NVFP4_GEMV_PATH"));
    let by_flag = prints(&["plan", "16,16", "--path", "cpu"]);
    assert!(by_flag.contains("because: asked for by the caller"));
    if there_is_a_device() {
        return; // nothing below fails
    }
    for command in [
        &["tune", "--shape", "16,16"][..],
        &words("tune --chain --shape 16,16 --shape 16,32"),
        &words("bench --shape 16,16 --tuned Cargo.toml"),
        &words("compare --shape 16,16 --a cuda-core --b cuda-core")[..],
        &["plan", "16,16", "--path", "tensor-core"],
        &["bench", "--shape", "16,16", "--path", "cuda-core"],
        &["verify", "--case", "zeros 5x16", "--path", "cuda-core"],
    ] {
        let error = fails(command);
        let (_, hint) = error.split_once("hint: ").expect(&error);
        let has_path = prints(&[command[0], "--help"]).contains("--path <");
        assert_eq!(hint.contains("--path"), has_path, "{command:?}: {hint}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let mut child = command()
        .args(["verify", "--case", "zeros", "--path", "cpu"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(
        out.status.success() && out.stderr.is_empty(),
        "{}",
        text(&out.stderr)
    );
}
