//! Needs of a stand-in for a driver: buffers at addresses of its choice that outlive a module, variables by name, and
//! both in specifications.

use std::path::Path;

use ptx_sim::launch::LaunchSpec;
use ptx_sim::{Launch, Module, Options, Sim, SimError};
use serde_json::json;

/// Follows the pointer in a table and stores there: the constant `factor` times the variable `count`, which grows.
const PTX: &str = ".version 9.0\n.target sm_90\n.address_size 64\n\
.const .align 4 .u32 factor = 3;\n.visible .global .align 4 .u32 count[2] = {5};\n\
.visible .entry k(.param .u64 table) {\n\
 .reg .b32 %r<4>; .reg .b64 %d<4>;\n\
 ld.param.u64 %d1, [table]; ld.global.u64 %d2, [%d1];\n\
 ld.const.u32 %r1, [factor]; ld.global.u32 %r2, [count]; mul.lo.u32 %r3, %r1, %r2;\n\
 st.global.u32 [%d2], %r3; add.u32 %r2, %r2, 1; st.global.u32 [count], %r2;\n ret;\n}\n";

const TABLE: u64 = Sim::FIRST_ADDRESS + (1 << 20);
const DATA: u64 = Sim::FIRST_ADDRESS + (5 << 20);

fn module() -> Module {
    Module::parse(PTX).unwrap()
}

fn launch() -> Launch {
    Launch::new("k", [1, 1, 1], [1, 1, 1]).bytes(&TABLE.to_le_bytes())
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

#[test]
fn buffers_outlive_modules_and_variables_do_not() {
    let mut home = Sim::new(Module::default());
    let table = home.alloc_at("table", TABLE, 8).unwrap();
    let data = home.alloc_at("data", DATA, 8).unwrap();
    home.write(table, 0, &DATA.to_le_bytes()).unwrap();
    let free = home.free_memory();
    for (module_number, expected) in [(0, [15, 18]), (1, [15, 18])] {
        let mut sim = Sim::new(module());
        for expected in expected {
            sim.put_buffers(home.take_buffers());
            sim.run(&launch(), &Options::default()).unwrap();
            home.put_buffers(sim.take_buffers());
            assert_eq!(
                number(home.download(data)),
                expected,
                "module {module_number}"
            );
        }
        assert_eq!(home.free_memory(), free);
    }
    // Only half of it was written; a copy knows that.
    assert!(home.written(data, 0, 4) && !home.written(data, 0, 8));
    let copy = home.alloc_at("copy", DATA + 4096, 8).unwrap();
    home.copy((copy, 0), (data, 0), 8).unwrap();
    assert!(home.written(copy, 0, 4) && !home.written(copy, 4, 4));
    assert!(home.copy((copy, 4), (data, 0), 8).is_err());
    home.free(copy);
    home.free(data);
    assert_eq!(home.free_memory(), free + 8);
    // A buffer that was freed is out of bounds.
    let mut sim = Sim::new(module());
    sim.put_buffers(home.take_buffers());
    let e = sim.run(&launch(), &Options::default()).unwrap_err();
    assert!(e.to_string().contains("outside every allocation"), "{e}");
}

#[test]
fn addresses_that_buffers_cannot_have() {
    let mut sim = Sim::new(module());
    let refused = |r: Result<_, SimError>| r.unwrap_err().to_string();
    sim.alloc_at("a", DATA, 100).unwrap();
    assert!(refused(sim.alloc_at("b", DATA + 99, 1)).contains("another's"));
    assert!(refused(sim.alloc_at("b", DATA - 1, 2)).contains("another's"));
    assert!(refused(sim.alloc_at("b", 0, 8)).contains("outside of what buffers may have"));
    assert!(refused(sim.alloc_at("b", u64::MAX, 8)).contains("outside of what buffers may have"));
    assert!(refused(sim.alloc_at("b", DATA, 0)).contains("no bytes"));
    sim.alloc_at("b", DATA + 100, 8).unwrap();
    // Buffers without a wish go behind.
    assert!(sim.alloc("c", 8).unwrap().address >= DATA + 108);
}

#[test]
fn variables_by_name() {
    let mut sim = Sim::new(module());
    let program = sim.program("k").unwrap();
    assert_eq!(number(&sim.read_symbol(&program, "factor").unwrap()), 3);
    assert_eq!(
        sim.read_symbol(&program, "count").unwrap(),
        [5, 0, 0, 0, 0, 0, 0, 0]
    );
    sim.write_symbol(&program, "factor", 0, &[7, 0, 0, 0])
        .unwrap();
    sim.write_symbol(&program, "count", 4, &[1]).unwrap();
    assert!(sim.write_symbol(&program, "count", 7, &[1, 2]).is_err());
    assert!(sim.write_symbol(&program, "factors", 0, &[1]).is_err());
    let table = sim.alloc_at("table", TABLE, 8).unwrap();
    let data = sim.alloc_at("data", DATA, 8).unwrap();
    sim.write(table, 0, &DATA.to_le_bytes()).unwrap();
    sim.run(&launch(), &Options::default()).unwrap();
    assert_eq!(number(sim.download(data)), 35);
    assert_eq!(
        sim.read_symbol(&program, "count").unwrap(),
        [6, 0, 0, 0, 1, 0, 0, 0]
    );
    let symbol = Sim::symbol(&program, "factor").unwrap();
    assert!(symbol.constant && symbol.size == 4 && Sim::may_be_variable(symbol.address));
    assert_eq!(
        Sim::symbols(&program).collect::<Vec<_>>(),
        ["count", "factor"]
    );
}

#[test]
fn specifications_have_both() {
    let hex = |n: u64| n.to_le_bytes().map(|b| format!("{b:02x}")).concat();
    let spec = json!({
        "grid": [1, 1, 1], "block": [1, 1, 1],
        // The pointer in memory is true, since the buffer is where it was.
        "buffers": {
            "anywhere": {"size": 64},
            "data": {"size": 8, "address": DATA},
            "table": {"address": TABLE, "contents": {"hex": hex(DATA)}},
        },
        "variables": {"factor": {"i32": [11]}, "count": {"i32": [2, 9]}},
        "params": [{"buffer": "table"}],
    });
    let prepare = |spec: &serde_json::Value| {
        let spec = LaunchSpec::parse(&spec.to_string())?;
        spec.prepare(module(), "k", Path::new("."))
    };
    let mut prepared = prepare(&spec).unwrap();
    prepared
        .sim
        .run(&prepared.launch, &Options::default())
        .unwrap();
    assert_eq!(number(prepared.sim.download(prepared.buffers["data"])), 22);
    let mut unknown = spec.clone();
    unknown["variables"]["other"] = json!({"i32": [1]});
    assert!(
        prepare(&unknown)
            .unwrap_err()
            .to_string()
            .contains("no variable other")
    );
    let mut twice = spec;
    twice["buffers"]["second"] = json!({"size": 8, "address": DATA + 4});
    assert!(
        prepare(&twice)
            .unwrap_err()
            .to_string()
            .contains("another's")
    );
}
