//! The command-line program, from outside.

use std::path::PathBuf;
use std::process::{Command, Output};

const PTX: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n\
.visible .entry axpy(.param .align 8 .b8 p[24]) {\n\
 .reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<6>;\n\
 mov.u32 %r1, %tid.x;\n ld.param.u32 %r2, [p+20];\n setp.ge.u32 %p1, %r1, %r2;\n @%p1 ret;\n\
 ld.param.u64 %d1, [p];\n ld.param.u64 %d2, [p+8];\n ld.param.f32 %f1, [p+16];\n\
 mul.wide.u32 %d3, %r1, 4;\n add.s64 %d4, %d1, %d3;\n add.s64 %d5, %d2, %d3;\n\
 ld.global.f32 %f2, [%d4];\n fma.rn.f32 %f3, %f1, %f2, %f2;\n st.global.f32 [%d5], %f3;\n ret;\n}\n";

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
    let out = Command::new(env!("CARGO_BIN_EXE_ptx-sim"))
        .arg("run")
        .args(["--ptx".as_ref(), dir.join("k.ptx").as_os_str()])
        .args(["--launch".as_ref(), dir.join("launch.json").as_os_str()])
        .args(["--out".as_ref(), dir.as_os_str()])
        .args(extra)
        .output()
        .unwrap();
    (dir, out)
}

#[test]
fn a_specification_runs_and_dumps() {
    let (dir, out) = run("runs", 3, &["--policy", "random:5", "--seeds", "7"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(text.contains("14 of 14 instructions executed"), "{text}");
    let y = std::fs::read(dir.join("y.bin")).unwrap();
    let want: Vec<u8> = [3f32, 6.0, 9.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    assert_eq!(y, want);
}

#[test]
fn a_violation_is_json_with_its_place() {
    let (_, out) = run("fails", 4, &["--json"]);
    assert!(!out.status.success());
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(v["violation"]["kind"], "out_of_bounds");
    assert_eq!(v["violation"]["thread"]["thread"][0], 3);
    assert_eq!(v["violation"]["nearest"]["name"], "x");
    assert_eq!(v["violation"]["site"]["text"], "ld.global.f32 %f2, [%d4]");
}

#[test]
fn inventories_and_bad_files() {
    let dir = directory("inventory");
    let file = dir.join("k.ptx");
    std::fs::write(
        &file,
        PTX.replace("ret;\n}", "ex2.approx.f32 %f1, %f2;\nret;\n}"),
    )
    .unwrap();
    let ptx_sim = || Command::new(env!("CARGO_BIN_EXE_ptx-sim"));
    let out = ptx_sim()
        .args(["inventory", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let list: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let missing: Vec<_> = list["opcodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| !e["unmodelled"].is_null())
        .collect();
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0]["opcode"], "ex2.approx.f32");
    std::fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    assert!(
        !ptx_sim()
            .arg("inventory")
            .arg(&file)
            .output()
            .unwrap()
            .status
            .success()
    );
    assert!(
        !ptx_sim()
            .args(["inventory", "/no/such"])
            .output()
            .unwrap()
            .status
            .success()
    );
}
