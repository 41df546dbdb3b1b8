//! Launch specifications with tensor maps: one runs, and the others are refused.

use std::path::{Path, PathBuf};

use ptx_sim::launch::LaunchSpec;
use ptx_sim::report::ViolationKind;
use ptx_sim::{Module, Options, SimError};
use serde_json::{Value, json};

#[path = "common/program.rs"]
mod program;

/// Loads the box at {4, -1} of a map of words, 4 x 4, and stores it as it lies.
const PTX: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n\
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out) {\n\
 .reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %d<6>;\n\
 .shared .align 128 .b8 box[64]; .shared .align 8 .b64 bar;\n\
 mov.u32 %r1, %tid.x; mov.u32 %r2, box; mov.u32 %r3, bar; setp.ne.u32 %p1, %r1, 0;\n\
 mov.b64 %d1, map; cvta.param.u64 %d1, %d1; ld.param.u64 %d2, [out];\n\
 @%p1 bra READY;\n mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;\n\
READY: bar.sync 0;\n @%p1 bra WAIT;\n\
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 64;\n\
 mov.b32 %r4, 4; mov.b32 %r5, -1;\n\
 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes \
[%r2], [%d1, {%r4, %r5}], [%r3];\n\
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n @!%p2 bra WAIT;\n\
 shl.b32 %r6, %r1, 2; add.u32 %r6, %r6, %r2; ld.shared.u32 %r7, [%r6];\n\
 mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d2; st.global.u32 [%d3], %r7;\n ret;\n}\n";

/// Columns and rows of the tensor, in a buffer whose first 4 rows are not its.
const DIMS: (i32, i32) = (6, 5);
const ROW: i32 = 8;
const SKIPPED: i32 = 4;

fn spec() -> Value {
    let words: Vec<i32> = (0..(SKIPPED + DIMS.1) * ROW).map(|i| 1 + i).collect();
    json!({
        "grid": [1, 1, 1], "block": [16, 1, 1],
        "buffers": {
            "x": {"contents": {"i32": words}},
            "y": {"size": 64, "dump": "y.bin"},
        },
        "params": [
            {"tensor_map": {
                "buffer": "x", "offset": SKIPPED * ROW * 4, "type": 2,
                "dims": [DIMS.0, DIMS.1], "strides": [ROW * 4], "box": [4, 4],
            }},
            {"buffer": "y"},
        ],
    })
}

/// Values that the kernel finds: zero outside the tensor.
fn expected(traversal: i32) -> Vec<i32> {
    let element = |i: i32| {
        let (x, y) = (4 + i % 4, -1 + i / 4 * traversal);
        let inside = x < DIMS.0 && (0..DIMS.1).contains(&y);
        if inside {
            1 + (SKIPPED + y) * ROW + x
        } else {
            0
        }
    };
    (0..16).map(element).collect()
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes
        .chunks(4)
        .map(|c| i32::from_le_bytes(c.try_into().unwrap()))
        .collect()
}

fn run(spec: &Value) -> Result<Vec<i32>, SimError> {
    run_ptx(PTX, spec)
}

fn run_ptx(ptx: &str, spec: &Value) -> Result<Vec<i32>, SimError> {
    let module = Module::parse(ptx)?;
    let spec = LaunchSpec::parse(&spec.to_string())?;
    let mut p = spec.prepare(module, "k", Path::new("."))?;
    p.sim.run(&p.launch, &Options::default())?;
    Ok(words(p.sim.download(p.buffers["y"])))
}

#[test]
fn a_tensor_map_from_json() {
    assert_eq!(run(&spec()).unwrap(), expected(1));
    // Everything that may be left out, said.
    let mut s = spec();
    let map = &mut s["params"][0]["tensor_map"];
    map["elem_strides"] = json!([1, 2]);
    map["box"] = json!([4, 8]);
    map["interleave"] = json!(0);
    map["swizzle"] = json!(0);
    map["l2_promotion"] = json!(3);
    map["oob_fill"] = json!(0);
    assert_eq!(run(&s).unwrap(), expected(2));
    // Values of the tensor map by name.
    let map = &mut s["params"][0]["tensor_map"];
    map["interleave"] = json!("NONE");
    map["swizzle"] = json!("CU_TENSOR_MAP_SWIZZLE_NONE");
    map["l2_promotion"] = json!("CU_TENSOR_MAP_L2_PROMOTION_L2_256B");
    map["oob_fill"] = json!("NONE");
    assert_eq!(run(&s).unwrap(), expected(2));
}

/// The map is where kernels of libraries have theirs: inside a structure, behind other members.
#[test]
fn a_tensor_map_inside_a_structure() {
    let ptx = PTX
        .replace(
            ".param .align 64 .b8 map[128], .param .u64 out",
            ".param .align 64 .b8 p[448]",
        )
        .replace(
            "mov.b64 %d1, map; cvta.param.u64 %d1, %d1;",
            "mov.b64 %d1, p; cvta.param.u64 %d1, %d1; add.s64 %d1, %d1, 192;",
        )
        .replace("[out]", "[p+384]");
    let mut s = spec();
    let (map, out) = (s["params"][0].clone(), s["params"][1].clone());
    let structure = |at: usize| {
        json!([{"struct": {"size": 448, "fields": [
            {"offset": 0, "value": {"f32": 1.5}},
            {"offset": at, "value": map},
            {"offset": 384, "value": out},
        ]}}])
    };
    s["params"] = structure(192);
    assert_eq!(run_ptx(&ptx, &s).unwrap(), expected(1));
    // A map must be aligned to 64 bytes.
    s["params"] = structure(200);
    let ptx = ptx.replace("%d1, 192", "%d1, 200");
    assert!(run_ptx(&ptx, &s).unwrap_err().to_string().contains("64"));
}

/// Each name is the enumerator of its number: a map that cannot be encoded by name cannot be encoded by number, for the
/// same reason.
#[test]
fn names_of_enumerators_are_those_of_their_numbers() {
    #[rustfmt::skip]
    let types = [
        "UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16",
        "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B",
    ];
    #[rustfmt::skip]
    let swizzles = [
        "NONE", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B",
    ];
    for (field, names) in [
        ("type", &types[..]),
        ("interleave", &["NONE", "16B", "32B"]),
        ("swizzle", &swizzles),
        ("oob_fill", &["NONE", "NAN_REQUEST_ZERO_FMA"]),
    ] {
        let outcome = |value: Value| {
            let mut s = spec();
            s["params"][0]["tensor_map"][field] = value;
            format!("{:?}", run(&s))
        };
        for (number, name) in names.iter().enumerate() {
            assert_eq!(
                outcome(json!(name)),
                outcome(json!(number)),
                "{field} {name}"
            );
        }
    }
}

#[test]
fn the_program_runs_it() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("launch_spec");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("k.ptx"), PTX).unwrap();
    std::fs::write(dir.join("launch.json"), spec().to_string()).unwrap();
    let out = program::program()
        .current_dir(&dir)
        .args(["run", "--ptx", "k.ptx", "--launch", "launch.json"])
        .args([
            "--timing", "random", "--policy", "random:1", "--seeds", "20", "--force",
        ])
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert_eq!(
        words(&std::fs::read(dir.join("y.bin")).unwrap()),
        expected(1)
    );
}

/// The message with which `spec` is refused before it runs.
fn refused(spec: &Value) -> String {
    match run(spec) {
        Err(SimError::Launch(message)) => message,
        other => panic!("{spec}: {other:?}"),
    }
}

#[test]
fn refusals_name_the_field() {
    // A field of the map, what is put there, and what the message must say.
    let cases = [
        ("dims", json!([6, "5"]), "params[0].tensor_map.dims[1]: "),
        ("dims", json!([6, -5]), "params[0].tensor_map.dims[1]: "),
        ("box", json!(4), "params[0].tensor_map.box: "),
        (
            "swizzle",
            json!("256B"),
            "params[0].tensor_map.swizzle: invalid value: string \"256B\", expected a number, or a name: NONE, 32B",
        ),
        ("type", json!(-1), "params[0].tensor_map.type: "),
        ("strides", Value::Null, "params[0].tensor_map.strides: "),
        (
            "element_strides",
            json!([1, 1]),
            "params[0].tensor_map.element_strides: unknown field",
        ),
        (
            "buffer",
            json!("z"),
            "params[0]: tensor_map: there is no buffer `z`",
        ),
        ("type", json!(16), "params[0]: tensor_map: type 16"),
        ("swizzle", json!(7), "params[0]: tensor_map: swizzle 7"),
        (
            "interleave",
            json!(3),
            "params[0]: tensor_map: interleave 3",
        ),
        (
            "l2_promotion",
            json!(4),
            "params[0]: tensor_map: l2_promotion 4",
        ),
        ("oob_fill", json!(2), "params[0]: tensor_map: oob_fill 2"),
        ("oob_fill", json!(1), "params[0]: tensor_map: NaN fill"),
        (
            "box",
            json!([4, 257]),
            "params[0]: tensor_map: boxDim[1] = 257",
        ),
        (
            "strides",
            json!([24]),
            "params[0]: tensor_map: globalStrides[0] = 24",
        ),
        (
            "strides",
            json!([32, 64]),
            "params[0]: tensor_map: globalStrides",
        ),
        ("offset", json!(8), "params[0]: tensor_map: globalAddress"),
        (
            "elem_strides",
            json!([1, 0]),
            "params[0]: tensor_map: elementStrides[1] = 0",
        ),
        ("dims", json!([]), "params[0]: tensor_map: tensorRank 0"),
    ];
    for (field, value, want) in cases {
        let mut s = spec();
        s["params"][0]["tensor_map"][field] = value;
        let message = refused(&s);
        assert!(message.contains(want), "{message}");
    }
}

#[test]
fn parameters_that_are_none() {
    for (param, want) in [
        (json!({}), "params[1]: "),
        (json!(7), "params[1]: "),
        (json!({"u32": 1, "u64": 2}), "one value"),
        (json!({"u33": 1}), "params[1]: unknown variant `u33`"),
        (json!({"u32": -1}), "params[1].u32: "),
        (json!({"buffer_at": {"buffer": "y"}}), "params[1].buffer_at"),
        (
            json!({"struct": {"size": 8}}),
            "params[1].struct: missing field `fields`",
        ),
        (
            json!({"struct": {"size": 8, "fields": [{"offset": 0, "value": {"f32": "x"}}]}}),
            "params[1].struct.fields[0].value.f32: ",
        ),
        (
            json!({"struct": {"size": 8, "fields": [{"offset": 6, "value": {"f32": 1.0}}]}}),
            "params[1]: field at 6",
        ),
        (
            json!({"tensor_map": {"buffer": "x"}}),
            "params[1].tensor_map: missing field `type`",
        ),
    ] {
        let mut s = spec();
        s["params"][1] = param;
        let message = refused(&s);
        assert!(message.contains(want), "{message}");
    }
}

/// A parameter with several maps: an array of them, as a kernel's C++ has it.
#[test]
fn an_array_of_maps() {
    let ptx = PTX.replace("map[128]", "map[256]").replace(
        "cvta.param.u64 %d1, %d1;",
        "cvta.param.u64 %d1, %d1; add.s64 %d1, %d1, 128;",
    );
    let mut s = spec();
    let wanted = s["params"][0].clone();
    let mut other = wanted.clone();
    other["tensor_map"]["offset"] = json!(0);
    s["params"][0] = json!({"struct": {"size": 256, "fields": [
        {"offset": 0, "value": other}, {"offset": 128, "value": wanted},
    ]}});
    assert_eq!(run_ptx(&ptx, &s).unwrap(), expected(1));
    // The kernel asks for a map where there is none.
    s["params"][0]["struct"]["fields"][1]["offset"] = json!(64);
    match run_ptx(&ptx, &s) {
        Err(SimError::Violation(v)) => assert!(v.to_string().contains("no tensor map"), "{v}"),
        other => panic!("{other:?}"),
    }
}

/// A driver on Hopper would not have made the map.
#[test]
fn a_map_that_hopper_does_not_know() {
    let mut s = spec();
    s["params"][0]["tensor_map"]["swizzle"] = json!(4);
    match run(&s) {
        Err(SimError::Violation(v)) => assert!(v.to_string().contains("Hopper has no"), "{v}"),
        other => panic!("{other:?}"),
    }
}

/// The map is as large as it says, not as its buffer: reading past it is found when it happens.
#[test]
fn a_map_past_its_buffer() {
    let mut s = spec();
    s["params"][0]["tensor_map"]["dims"] = json!([DIMS.0, DIMS.1 + 9]);
    assert_eq!(run(&s).unwrap()[4], expected(1)[4]);
    s["params"][0]["tensor_map"]["offset"] = json!((SKIPPED + DIMS.1 - 1) * ROW * 4);
    match run(&s) {
        Err(SimError::Violation(v)) => assert_eq!(v.kind, ViolationKind::OutOfBounds, "{v}"),
        other => panic!("{other:?}"),
    }
}
