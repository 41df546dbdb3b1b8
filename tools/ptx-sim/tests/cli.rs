//! The command-line program, from outside.

use std::path::{Path, PathBuf};
use std::process::Output;

#[path = "common/program.rs"]
mod program;

use program::program;

const PTX: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n\
.visible .entry axpy(.param .align 8 .b8 p[24]) {\n\
 .reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<6>;\n\
 mov.u32 %r1, %tid.x;\n ld.param.u32 %r2, [p+20];\n setp.ge.u32 %p1, %r1, %r2;\n @%p1 ret;\n\
 ld.param.u64 %d1, [p];\n ld.param.u64 %d2, [p+8];\n ld.param.f32 %f1, [p+16];\n\
 mul.wide.u32 %d3, %r1, 4;\n add.s64 %d4, %d1, %d3;\n add.s64 %d5, %d2, %d3;\n\
 ld.global.f32 %f2, [%d4];\n fma.rn.f32 %f3, %f1, %f2, %f2;\n st.global.f32 [%d5], %f3;\n ret;\n}\n";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a run that succeeds.
#[track_caller]
fn succeeds(out: &Output) -> String {
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{shown}{}", text(&out.stderr));
    shown
}

/// The message of a run that fails.
#[track_caller]
fn fails(out: &Output) -> String {
    assert!(!out.status.success(), "{}", text(&out.stdout));
    text(&out.stderr)
}

fn parsed(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

/// A command of the program with the source and the launch in a directory.
fn with_launch(command: &str, dir: &Path, extra: &[&str]) -> Output {
    let mut program = program();
    program.arg(command);
    program.args(["--ptx".as_ref(), dir.join("k.ptx").as_os_str()]);
    program.args(["--launch".as_ref(), dir.join("launch.json").as_os_str()]);
    program.args(extra).output().unwrap()
}

/// A directory of its own for a test.
fn directory(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn spec(count: u32) -> String {
    format!(
        r#"{{"grid":[1,1,1],"block":[64,1,1],
        "buffers":{{"x":{{"contents":{{"safetensors":{{"file":"x.safetensors","tensor":"x"}}}}}},
                   "y":{{"size":12,"dump":"y.bin"}}}},
        "params":[{{"struct":{{"size":24,"fields":[
          {{"offset":0,"value":{{"buffer":"x"}}}},{{"offset":8,"value":{{"buffer":"y"}}}},
          {{"offset":16,"value":{{"f32":2.0}}}},{{"offset":20,"value":{{"u32":{count}}}}}]}}}}]}}"#
    )
}

fn run(name: &str, count: u32, extra: &[&str]) -> (PathBuf, Output) {
    let dir = directory(name);
    let x: Vec<u8> = [1f32, 2.0, 3.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![3], &x).unwrap();
    let file = safetensors::serialize([("x", view)], None).unwrap();
    std::fs::write(dir.join("x.safetensors"), file).unwrap();
    std::fs::write(dir.join("k.ptx"), PTX).unwrap();
    std::fs::write(dir.join("launch.json"), spec(count)).unwrap();
    let to = ["--out", dir.to_str().unwrap(), "--force"];
    let out = with_launch("run", &dir, &[&to, extra].concat());
    (dir, out)
}

#[test]
fn a_specification_runs_and_dumps() {
    let (dir, out) = run("runs", 3, &["--policy", "random:5", "--seeds", "7"]);
    let shown = succeeds(&out);
    assert!(shown.contains("14 of 14 instructions executed"), "{shown}");
    let y = std::fs::read(dir.join("y.bin")).unwrap();
    let want: Vec<u8> = [3f32, 6.0, 9.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    assert_eq!(y, want);
}

#[test]
fn findings_are_counted_by_kind() {
    let (dir, _) = run("findings", 3, &[]);
    let shared = ".shared .align 4 .b8 s[256]; .reg .b32 %s<3>; mov.u32 %s1, s; shl.b32 %s2, %r1, 2; add.u32 %s1, %s1, %s2;\n";
    let reads = format!("{shared} ld.shared.f32 %f1, [%s1];\n mul.wide");
    std::fs::write(dir.join("k.ptx"), PTX.replace("mul.wide", &reads)).unwrap();
    let to = ["--out", dir.to_str().unwrap(), "--force"];
    let schedules = ["--policy", "all", "--keep-going"];
    let out = with_launch("run", &dir, &[&to[..], &schedules].concat());
    fails(&out);
    let shown = text(&out.stdout);
    assert!(shown.contains("and 2 more of this kind here"), "{shown}");
    assert!(shown.contains("findings: 3 uninitialised\n"), "{shown}");
    // An error that ends a run is not the end of the others.
    std::fs::write(
        dir.join("k.ptx"),
        PTX.replace("ld.global", "trap;\n ld.global"),
    )
    .unwrap();
    let out = with_launch("run", &dir, &[&to[..], &schedules].concat());
    fails(&out);
    let shown = text(&out.stdout);
    assert!(
        shown.contains("and 1 more schedules:\nerror: trap was executed"),
        "{shown}"
    );
    assert!(shown.contains("findings: 2 trap\n"), "{shown}");
}

#[test]
fn launches_before_the_launch_run_first() {
    let dir = directory("before");
    // x to y, then y to z; `hasty` does not wait.
    let sound = PTX.replace("ld.global", "griddepcontrol.wait;\n ld.global");
    let (_, hasty) = PTX.split_once(".visible").unwrap();
    let hasty = hasty.replace(" .entry axpy", ".visible .entry hasty");
    std::fs::write(dir.join("k.ptx"), format!("{sound}{hasty}")).unwrap();
    let params = |from: &str, to: &str| {
        serde_json::json!([{"struct": {"size": 24, "fields": [
            {"offset": 0, "value": {"buffer": from}}, {"offset": 8, "value": {"buffer": to}},
            {"offset": 16, "value": {"f32": 2.0}}, {"offset": 20, "value": {"u32": 3}},
        ]}}])
    };
    let spec = serde_json::json!({
        "kernel": "axpy",
        "grid": [1, 1, 1], "block": [64, 1, 1], "dependent": true, "params": params("y", "z"),
        "buffers": {
            "x": {"contents": {"f32": [1.0, 2.0, 3.0]}}, "y": {"size": 12},
            "z": {"size": 12, "expect": {"type": "f32", "values": {"numbers": [9, 18, 27]}}},
        },
        "before": [{
            "kernel": "axpy", "grid": [1, 1, 1], "block": [64, 1, 1], "params": params("x", "y"),
        }],
    });
    std::fs::write(dir.join("launch.json"), spec.to_string()).unwrap();
    let command = |command: &str, extra: &[&str]| with_launch(command, &dir, extra);
    succeeds(&command("run", &["--timing", "all"]));
    let why = fails(&command(
        "run",
        &["--entry", "hasty", "--profile", "hardware"],
    ));
    assert!(
        why.contains("y+0 is read here") && why.contains("griddepcontrol.wait"),
        "{why}"
    );
    // Together: only then is it known what the first one reads.
    succeeds(&command("run", &["--timing", "all", "--overlap", "1"]));
    let mut overwrites = spec.clone();
    overwrites["params"] = params("w", "x");
    overwrites["buffers"]["w"] = overwrites["buffers"]["x"].clone();
    overwrites["buffers"]["z"] = serde_json::json!({"size": 12});
    std::fs::write(dir.join("launch.json"), overwrites.to_string()).unwrap();
    let hasty = ["--entry", "hasty", "--hazards", "error"];
    succeeds(&command("run", &hasty));
    let why = fails(&command("run", &[&hasty[..], &["--overlap", "1"]].concat()));
    assert!(
        why.contains("x+0 is written here by grid 2 (hasty)") && why.contains("reads it"),
        "{why}"
    );
    std::fs::write(dir.join("launch.json"), spec.to_string()).unwrap();
    succeeds(&command("mutate", &["--kinds", "drop-grid-wait"]));
}

#[test]
fn a_violation_is_json_with_its_place() {
    let (_, out) = run("fails", 4, &["--json"]);
    fails(&out);
    let v = parsed(&out.stdout);
    assert_eq!(v["violation"]["kind"], "out_of_bounds");
    assert_eq!(v["violation"]["thread"]["thread"][0], 3);
    assert_eq!(v["violation"]["nearest"]["name"], "x");
    assert_eq!(v["violation"]["site"]["text"], "ld.global.f32 %f2, [%d4]");
}

#[test]
fn inventories_and_bad_files() {
    let dir = directory("inventory");
    let file = dir.join("k.ptx");
    let ptx = PTX.replace("ret;\n}", "multimem.red.add.u32 [%rd1], %r1;\nret;\n}");
    std::fs::write(&file, ptx).unwrap();
    let inventory = |path: &Path, options: &[&str]| {
        let mut program = program();
        program.arg("inventory").args(options).arg(path);
        program.output().unwrap()
    };
    let list = parsed(&inventory(&file, &["--json"]).stdout);
    let opcodes = list["opcodes"].as_array().unwrap().iter();
    let missing: Vec<_> = opcodes.filter(|e| !e["unmodelled"].is_null()).collect();
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0]["opcode"], "multimem.red.add.u32");
    std::fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    fails(&inventory(&file, &[]));
    fails(&inventory(Path::new("/no/such"), &[]));
}

#[test]
fn planted_faults_are_counted_and_survivors_shown() {
    let (dir, _) = run("mutate", 3, &[]);
    let mutate = |extra: &[&str]| {
        let few = ["--seeds", "0", "--threads", "1"];
        with_launch("mutate", &dir, &[&few, extra].concat())
    };

    let listed = succeeds(&mutate(&["--list"]));
    assert!(listed.contains("drop-store `st.global.f32 [%d], %f`#0"));

    let caught = succeeds(&mutate(&["--kinds", "drop-store,offset,guard"]));
    assert!(caught.contains("axpy: "), "{caught}");

    // Another CTA writes the same values once more.
    let survivor = mutate(&["--kinds", "launch"]);
    fails(&survivor);
    assert!(text(&survivor.stdout).contains("survived  launch (one cluster more)"));
    std::fs::write(
        dir.join("known.txt"),
        "[equivalent axpy]\nlaunch (one cluster more)#0\n  The same values.\n",
    )
    .unwrap();
    let known = dir.join("known.txt");
    let known = ["--known", known.to_str().unwrap(), "--json"];
    let known = succeeds(&mutate(&[&["--kinds", "launch"], &known[..]].concat()));
    assert_eq!(parsed(known.as_bytes())[0]["reason"], "The same values.");

    // The sound kernel's output is not what this file says.
    std::fs::write(dir.join("want.bin"), [0u8; 12]).unwrap();
    let want = dir.join("want.bin");
    let wrong = fails(&mutate(&["--expect", want.to_str().unwrap()]));
    assert!(wrong.contains("wrong without a planted fault"));
}

#[test]
fn all_schedules_are_run_and_counted() {
    let all = ["--policy", "all", "--timing", "all", "--seeds", "3"];
    let (_, out) = run("schedules", 3, &all);
    let shown = succeeds(&out);
    // Three timings; round robin once, and two policies with three seeds.
    assert!(shown.contains("21 runs without a violation"), "{shown}");
    assert!(shown.contains("by at least one of 21 runs"), "{shown}");
    assert!(text(&out.stderr).is_empty(), "no progress into a pipe");
    let (_, out) = run("schedules", 3, &[&all[..], &["--json"]].concat());
    let v = parsed(&out.stdout);
    assert_eq!(v["runs"], 21);
    assert_eq!(v["coverage"]["complete"], true);
    assert_eq!(v["differing"], serde_json::json!([]));
    for bad in [
        ["--policy", "any"],
        ["--timing", "late"],
        ["--profile", "soft"],
    ] {
        fails(&run("schedules", 3, &bad).1);
    }
}

#[test]
fn a_failure_says_how_to_repeat_it() {
    let (_, out) = run("repeats", 4, &["--policy", "all:7", "--timing", "lazy"]);
    let shown = fails(&out);
    let repeat = "with --policy fair --timing lazy:";
    assert!(shown.contains(repeat), "{shown}");
    let (_, out) = run("repeats", 4, &["--policy", "starve:7", "--json"]);
    let v = parsed(&out.stdout);
    assert_eq!(v["schedule"]["policy"], "starve:7");
    assert_eq!(v["schedule"]["timing"], "eager");
}

#[test]
fn what_is_not_executed_is_named_with_its_lines() {
    // No thread passes the bound: the branch is always taken, and all behind it is never reached.
    let (_, out) = run("uncovered", 0, &["--policy", "all", "--seeds", "2"]);
    let shown = succeeds(&out);
    assert!(
        shown.contains("coverage: 4 of 14 instructions executed"),
        "{shown}"
    );
    assert!(
        shown.contains(
            "never executed: lines 10 to 19 (10 instructions), from line 10: `ld.param.u64"
        ),
        "{shown}"
    );
}

/// The launch of a conformance kernel with inputs that are all zero.
fn pipelined(dir: &std::path::Path, k: u32) -> [PathBuf; 2] {
    let map = |buffer: &str, rows: u32, box_rows: u32| {
        serde_json::json!({"tensor_map": {"buffer": buffer, "type": 0, "dims": [k / 2, rows],
            "strides": [k / 2], "box": [128, box_rows], "swizzle": 3}})
    };
    let fill = |size: u32| serde_json::json!({"size": size, "contents": {"fill": 0}});
    let launch = serde_json::json!({
        "grid": [1, 1, 1], "block": [192, 1, 1], "shared": 68608,
        "buffers": {"w": fill(64 * k), "x": fill(8 * k), "sfw": fill(8 * k), "sfx": fill(8 * k),
                    "d": {"size": 8192, "dump": "d.bin"}},
        "params": [map("w", 128, 128), map("x", 16, 16), {"buffer": "sfw"}, {"buffer": "sfx"},
                   {"buffer": "d"}, {"u32": k}],
    });
    let path = dir.join("launch.json");
    std::fs::write(&path, launch.to_string()).unwrap();
    let ptx = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/conformance/ptx/mma_pipelined.ptx"
    );
    [ptx.into(), path]
}

#[test]
fn a_trace_is_written_and_drawn() {
    let dir = directory("traces");
    let [ptx, launch] = pipelined(&dir, 1280);
    let (trace, svg) = (dir.join("t.json"), dir.join("t.svg"));
    let run = |extra: &[&str]| {
        let mut c = program();
        c.args(["run", "--ptx"]).arg(&ptx);
        c.arg("--launch").arg(&launch);
        c.args(["--force", "--out"]).arg(dir.join("new/dir"));
        c.arg("--trace").arg(&trace).args(extra).output().unwrap()
    };
    let all = ["--timing", "all", "--policy", "all"];
    let shown = succeeds(&run(&[&all[..], &["--profile", "hardware"]].concat()));
    assert!(shown.contains("9 runs"), "{shown}");
    // No k of 0 is among the inputs.
    assert!(shown.contains("branch never taken: line 118: `@%p5 bra"));
    assert_eq!(std::fs::read(dir.join("new/dir/d.bin")).unwrap(), [0; 8192]);
    let v = parsed(&std::fs::read(&trace).unwrap());
    assert_eq!(v["otherData"]["run"]["policy"], "starve:0");
    assert_eq!(v["otherData"]["run"]["profile"], "hardware");
    let draw = |extra: &[&str]| {
        let mut c = program();
        c.args(["draw", "--force", "-o"]).arg(&svg).arg(&trace);
        c.args(extra).output().unwrap()
    };
    let named = "--label|0x418=empty[0]|--label|warp 4=loads|--warps|4,5";
    succeeds(&draw(&named.split('|').collect::<Vec<_>>()));
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.contains(">loads<") && picture.contains(">empty[0]<"));
    assert!(!picture.contains(">warp 0<"));
    for bad in [
        &["--steps", "5"][..],
        &["--label", "x"],
        &["--width", "1"],
        &["--cta", "9"],
    ] {
        assert!(!draw(bad).status.success(), "{bad:?}");
    }
    let out = run(&["--trace-limit", "50"]);
    assert!(text(&out.stderr).contains("truncated after 50 events"));
    // A run that fails leaves its timeline too.
    let out = run(&["--budget", "2000"]);
    fails(&out);
    let v = parsed(&std::fs::read(&trace).unwrap());
    let error = v["otherData"]["run"]["error"].as_str().unwrap();
    assert!(error.contains("budget"));
    std::fs::write(&trace, "{}").unwrap();
    fails(&draw(&[]));
}

#[test]
fn buffers_that_depend_on_the_schedule_are_named() {
    let dir = directory("racy");
    // The warp that comes last stays.
    let ptx = ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p) {\n\
        .reg .b32 %r<2>; .reg .b64 %d<2>;\n ld.param.u64 %d1, [p];\n mov.u32 %r1, %warpid;\n\
        st.global.u32 [%d1], %r1;\n ret;\n}";
    std::fs::write(dir.join("k.ptx"), ptx).unwrap();
    let launch = r#"{"grid":[1,1,1],"block":[128,1,1],
        "buffers":{"y":{"size":4,"dump":"y.bin"}},"params":[{"buffer":"y"}]}"#;
    std::fs::write(dir.join("launch.json"), launch).unwrap();
    let out = program()
        .current_dir(&dir)
        .args(["run", "--ptx", "k.ptx", "--launch", "launch.json"])
        .args(["--policy", "all", "--seeds", "8", "--force"])
        .output()
        .unwrap();
    let shown = succeeds(&out);
    let warning = "warning: buffer y depends on the schedule";
    assert!(shown.contains(warning), "{shown}");
}

/// The commands in README.md print what README.md shows.
#[test]
fn the_readme_shows_what_its_commands_print() {
    let readme = include_str!("../README.md");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = directory("readme");
    let mut shown = 0;
    let mut command: Vec<&str> = Vec::new();
    for block in readme.split("```").skip(1).step_by(2) {
        let (kind, text_of_block) = block.split_once('\n').unwrap();
        if kind == "sh" {
            let line = text_of_block
                .lines()
                .find(|line| line.starts_with("ptx-sim "));
            command = line.map_or(Vec::new(), |line| line.split(' ').skip(1).collect());
            continue;
        }
        let mut run = program();
        // Commands are for the repository's root.
        run.current_dir(here.join("../..")).args(&command);
        if command[0] == "run" {
            run.arg("--out").arg(&out).arg("--force");
        }
        let run = run.output().unwrap();
        let printed = format!("{}{}", text(&run.stdout), text(&run.stderr));
        for line in text_of_block.lines() {
            assert!(
                printed.contains(line),
                "{command:?} does not print {line:?}:\n{printed}"
            );
            shown += 1;
        }
    }
    assert_eq!(shown, 9);
}

#[test]
fn kernels_go_by_the_names_that_their_source_has() {
    let dir = directory("mangled");
    let kernel = |name| format!(".visible .entry {name}(.param .u64 p) {{ ret; }}\n");
    let ptx = [
        ".version 9.0\n.target sm_90a\n.address_size 64\n".into(),
        kernel("_Z4gemmILi64EEvPf"),
        kernel("_Z4gemmILi128EEvPf"),
        kernel("_Z4axpyPf"),
        kernel("axpy"),
    ];
    std::fs::write(dir.join("k.ptx"), ptx.concat()).unwrap();
    let launch =
        r#"{"grid":[1,1,1],"block":[32,1,1],"buffers":{"y":{"size":4}},"params":[{"buffer":"y"}]}"#;
    std::fs::write(dir.join("launch.json"), launch).unwrap();
    let run = |entry: &[&str]| {
        program()
            .current_dir(&dir)
            .args(["run", "--ptx", "k.ptx", "--launch", "launch.json"])
            .args(entry)
            .output()
            .unwrap()
    };
    for (asked, shown) in [
        ("gemm<64>", "gemm<64>(float*): 1 CTAs"),
        ("_Z4gemmILi128EEvPf", "gemm<128>(float*): 1 CTAs"),
        ("axpy(float*)", "axpy(float*): 1 CTAs"),
        // The one that is called just so.
        ("axpy", "axpy: 1 CTAs"),
    ] {
        let printed = succeeds(&run(&["--entry", asked]));
        assert!(printed.starts_with(shown), "{asked}");
    }
    for (entry, says) in [
        (
            &["--entry", "gemm"][..],
            "several kernels are called gemm; say which one of: gemm<64>(float*); gemm<128>(float*)",
        ),
        (
            &["--entry", "relu"],
            "no kernel is called relu; there are: gemm<64>(float*); gemm<128>(float*); axpy(float*); axpy",
        ),
        (&[], "--entry is needed, one of: gemm<64>(float*); "),
    ] {
        let said = fails(&run(entry));
        assert!(said.contains(says), "{said}");
    }
}

/// Measurements are for people to look at: no test depends on how fast a machine is.
#[test]
fn the_bench_verifies_its_tile() {
    let out = program()
        .args(["bench", "--json", "--millions", "1"])
        .output()
        .unwrap();
    let v = parsed(succeeds(&out).as_bytes());
    assert_eq!(v["tile"]["k"], 4096);
}
