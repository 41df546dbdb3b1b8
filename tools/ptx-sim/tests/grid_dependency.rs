//! Dependent launches: bytes that the grid before wrote, and `griddepcontrol.wait`.

mod common;

use std::path::Path;

use ptx_sim::launch::LaunchSpec;
use ptx_sim::mutate::{Golden, Kernel, Kind};
use ptx_sim::report::ViolationKind;
use ptx_sim::schedules::schedules;
use ptx_sim::{Buffer, HazardChecks, Launch, Module, Options, Profile, Report, Sim, SimError};
use serde_json::{Value, json};

const WAIT: &str = "griddepcontrol.wait;";
const LOAD: &str = "ld.global.u32 %r1, [%d1];";
const STORE: &str = "st.global.u32 [%d2], %r1;";

/// Threads of a CTA, and CTAs.
const BLOCK: u32 = 32;
const GRID: u32 = 2;
const BYTES: usize = (BLOCK * GRID * 4) as usize;

/// A kernel of two buffers with a word a thread; `%d1` and `%d2` are a thread's words, `%d3` and `%d4` those of its
/// CTA.
fn kernel(name: &str, body: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 a, .param .u64 b) {{\n\
         .reg .pred %p<4>; .reg .b32 %r<10>; .reg .b64 %d<10>;\n\
         .shared .align 128 .b8 tile[128]; .shared .align 8 .b64 bar;\n\
         mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; setp.ne.u32 %p1, %r2, 0; setp.ne.u32 %p2, %r3, 0;\n\
         mul.wide.u32 %d5, %r3, 128; mul.wide.u32 %d6, %r2, 4;\n\
         ld.param.u64 %d3, [a]; ld.param.u64 %d4, [b];\n\
         add.s64 %d3, %d3, %d5; add.s64 %d4, %d4, %d5; add.s64 %d1, %d3, %d6; add.s64 %d2, %d4, %d6;\n\
         mov.u32 %r4, tile; shl.b32 %r5, %r2, 2; add.u32 %r5, %r5, %r4; mov.u32 %r6, bar;\n\
         {body}\nret;\n}}\n"
    )
}

/// `first` adds 5 to each word on the way from a to b, `second` does what a test says.
fn module(second: &str) -> Module {
    let first =
        format!("griddepcontrol.launch_dependents;\n{WAIT}\n{LOAD}\nadd.u32 %r1, %r1, 5;\n{STORE}");
    let text = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n{}{}",
        kernel("first", &first),
        kernel("second", second)
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Buffers for a chain: what is there from the beginning, and two that are written.
struct Chain {
    sim: Sim,
    x: Buffer,
    y: Buffer,
    z: Buffer,
}

impl Chain {
    fn new(second: &str) -> Self {
        let mut sim = Sim::new(module(second));
        let words: Vec<u8> = (0..BYTES as u32 / 4).flat_map(u32::to_le_bytes).collect();
        let x = sim.upload("x", &words).unwrap();
        let y = sim.alloc("y", BYTES).unwrap();
        let z = sim.upload("z", &words).unwrap();
        Self { sim, x, y, z }
    }

    fn run(
        &mut self,
        kernel: &str,
        [from, to]: [Buffer; 2],
        dependent: bool,
        options: &Options,
    ) -> Result<Report, SimError> {
        let launch = Launch::new(kernel, [GRID, 1, 1], [BLOCK, 1, 1]);
        let mut launch = launch.buffer(from).buffer(to);
        launch.dependent = dependent;
        self.sim.run(&launch, options)
    }
}

fn all_options() -> Vec<Options> {
    let mut all = schedules(1);
    let hardware = all.clone().into_iter().map(|o| Options {
        profile: Profile::Hardware,
        ..o
    });
    all.extend(hardware.collect::<Vec<_>>());
    all
}

/// x to y by `first`, then y to z by `second`, dependent.
fn two(second: &str, options: &Options) -> Result<Vec<u8>, SimError> {
    let mut chain = Chain::new(second);
    let (x, y, z) = (chain.x, chain.y, chain.z);
    chain.run("first", [x, y], false, options)?;
    chain.run("second", [y, z], true, options)?;
    Ok(chain.sim.download(z).to_vec())
}

/// Demands the right result, whatever the schedule and the profile.
fn clean(second: &str) {
    let want: Vec<u8> = (0..BYTES as u32 / 4)
        .flat_map(|i| (i + 5).to_le_bytes())
        .collect();
    for options in all_options() {
        let got = two(second, &options).unwrap_or_else(|e| panic!("{e}\n{second}\n{options:?}"));
        assert_eq!(got, want, "{second}\n{options:?}");
    }
}

#[track_caller]
fn hazard(result: Result<impl std::fmt::Debug, SimError>, message: &str) {
    match result {
        Err(SimError::Violation(v)) => {
            assert_eq!(v.kind, ViolationKind::Hazard, "{v}");
            let text = v.to_string();
            assert!(text.contains(message), "{text}");
            assert!(text.contains("griddepcontrol.wait"), "{text}");
        }
        other => panic!("{other:?}, not a hazard"),
    }
}

/// Demands an error in every schedule and profile.
#[track_caller]
fn caught(second: &str, message: &str) {
    for options in all_options() {
        hazard(two(second, &options), message);
    }
}

#[test]
fn a_wait_in_front_of_what_the_grid_before_wrote() {
    clean(&format!("{WAIT}\n{LOAD}\n{STORE}"));
    // Bytes that the grid before did not write need no wait.
    clean(&format!(
        "{STORE}\nld.global.u32 %r1, [%d2];\n{WAIT}\n{LOAD}\n{STORE}"
    ));
    // A barrier tells the other threads what one thread waited for.
    clean(&format!(
        "@%p1 bra M;\n{WAIT}\nM: bar.sync 0;\n{LOAD}\n{STORE}"
    ));
    caught(&format!("{LOAD}\n{STORE}"), "is read here");
    caught(&format!("{LOAD}\n{WAIT}\n{STORE}"), "is read here");
    // To let dependents start is not to wait.
    caught(
        &format!("griddepcontrol.launch_dependents;\n{LOAD}\n{STORE}"),
        "is read here",
    );
    // The grid before may still write the bytes that this grid writes.
    caught(
        &format!("st.global.u32 [%d1], 1;\n{WAIT}\n{LOAD}\n{STORE}"),
        "is written here",
    );
    caught(
        &format!("atom.global.add.u32 %r1, [%d1], 1;\n{WAIT}\n{STORE}"),
        "is read here",
    );
}

#[test]
fn each_cta_waits_for_itself() {
    for options in all_options() {
        let one = format!("@%p2 bra M;\n{WAIT}\nM:\n{LOAD}\n{STORE}");
        hazard(two(&one, &options), "y+128 is read here");
    }
}

#[test]
fn copies_begin_where_they_are_issued() {
    let begin = "@%p1 bra M;\nmbarrier.init.shared::cta.b64 [%r6], 1;\n";
    let copy = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], 128;\n\
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d3], 128, [%r6];\n";
    let end = format!(
        "M: bar.sync 0;\nW: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6], 0;\n@!%p3 bra W;\n\
         ld.shared.u32 %r1, [%r5];\n{STORE}"
    );
    clean(&format!("{begin}{WAIT}\n{copy}{end}"));
    caught(&format!("{begin}{copy}{WAIT}\n{end}"), "is read here");

    let copy = "cp.async.ca.shared.global [%r5], [%d1], 4;\n";
    let end = format!("cp.async.wait_all;\nld.shared.u32 %r1, [%r5];\n{STORE}");
    clean(&format!("{WAIT}\n{copy}{end}"));
    caught(&format!("{copy}{WAIT}\n{end}"), "is read here");

    // A bulk store into bytes that the grid before wrote.
    let store = "@%p1 bra N;\n\
                 cp.async.bulk.global.shared::cta.bulk_group [%d3], [%r4], 128;\n\
                 cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nN:";
    let fill = "st.shared.u32 [%r5], 7;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n";
    clean(&format!(
        "{WAIT}\n{LOAD}\n{STORE}\nbar.sync 0;\n{fill}{store}"
    ));
    caught(&format!("{fill}{store}\n{WAIT}\n"), "is written here");
}

#[test]
fn only_a_dependent_launch_overlaps() {
    let hasty = format!("{LOAD}\n{STORE}");
    for options in all_options() {
        let mut chain = Chain::new(&hasty);
        let (x, y, z) = (chain.x, chain.y, chain.z);
        chain.run("first", [x, y], false, &options).unwrap();
        chain.run("second", [y, z], false, &options).unwrap();
        // The grid before the last is over if the last was not dependent.
        chain.run("first", [x, z], false, &options).unwrap();
        chain.run("second", [y, x], true, &options).unwrap();
    }
}

/// The grid before may have let its dependents start before it waited for the grid before it.
#[test]
fn a_chain_overlaps_with_all_of_its_grids() {
    for options in all_options() {
        for (dependent, waits) in [(true, false), (false, false), (true, true)] {
            let wait = if waits { WAIT } else { "" };
            let mut chain = Chain::new(&format!("{wait}\n{LOAD}\n{STORE}"));
            let (x, y, z) = (chain.x, chain.y, chain.z);
            let other = chain.sim.alloc("other", BYTES).unwrap();
            chain.run("first", [x, y], false, &options).unwrap();
            chain.run("first", [x, z], dependent, &options).unwrap();
            let third = chain.run("second", [y, other], true, &options);
            match dependent && !waits {
                true => hazard(third, "is read here"),
                false => drop(third.unwrap()),
            }
        }
    }
}

#[test]
fn what_the_host_wrote_is_no_grids() {
    let options = Options::default();
    let mut chain = Chain::new(&format!("{LOAD}\n{STORE}"));
    let (x, y, z) = (chain.x, chain.y, chain.z);
    chain.run("first", [x, y], false, &options).unwrap();
    chain.sim.write(y, 0, &[1; BYTES - 4]).unwrap();
    let late = chain.run("second", [y, z], true, &options);
    hazard(late, &format!("y+{} is read here", BYTES - 4));
    let mut chain = Chain::new(&format!("{LOAD}\n{STORE}"));
    chain.run("first", [x, y], false, &options).unwrap();
    chain.sim.write(y, 0, &[1; BYTES]).unwrap();
    chain.run("second", [y, z], true, &options).unwrap();
    assert_eq!(chain.sim.download(z), [1; BYTES]);
}

#[test]
fn hazards_may_be_warnings_or_off() {
    let hasty = format!("{LOAD}\n{STORE}");
    let warnings = |hazards| {
        let options = Options {
            hazards,
            ..Options::default()
        };
        let mut chain = Chain::new(&hasty);
        let (x, y, z) = (chain.x, chain.y, chain.z);
        chain.run("first", [x, y], false, &options).unwrap();
        chain
            .run("second", [y, z], true, &options)
            .unwrap()
            .warnings
    };
    assert!(warnings(HazardChecks::Off).is_empty());
    let warned = warnings(HazardChecks::Warn);
    assert!(!warned.is_empty());
    assert!(
        warned.iter().all(|w| w.message.contains("is read here")),
        "{warned:?}"
    );
}

fn spec() -> Value {
    let words: Vec<i32> = (0..BYTES as i32 / 4).collect();
    json!({
        "grid": [GRID, 1, 1], "block": [BLOCK, 1, 1], "dependent": true,
        "buffers": {
            "x": {"contents": {"i32": words}},
            "y": {"size": BYTES},
            "z": {"size": BYTES},
        },
        "params": [{"buffer": "y"}, {"buffer": "z"}],
        "before": [{
            "kernel": "first", "grid": [GRID, 1, 1], "block": [BLOCK, 1, 1],
            "params": [{"buffer": "x"}, {"buffer": "y"}],
        }],
    })
}

fn prepared(spec: &Value, module: Module) -> Result<ptx_sim::launch::Prepared, SimError> {
    LaunchSpec::parse(&spec.to_string())?.prepare(module, "second", Path::new("."))
}

#[test]
fn a_specification_lists_the_launches_before() {
    let run = |second: &str| {
        let options = Options::default();
        let mut p = prepared(&spec(), module(second)).unwrap();
        let before = p.run_before(&options).unwrap();
        let kernels: Vec<_> = before.iter().map(|report| report.kernel.as_str()).collect();
        assert_eq!(kernels, ["first"]);
        p.sim.run(&p.launch, &options)?;
        Ok(p.sim.download(p.buffers["z"])[..8].to_vec())
    };
    let words = run(&format!("{WAIT}\n{LOAD}\n{STORE}")).unwrap();
    assert_eq!(words, [5, 0, 0, 0, 6, 0, 0, 0]);
    hazard(run(&format!("{LOAD}\n{WAIT}\n{STORE}")), "is read here");
}

#[test]
fn bad_launches_before_are_refused() {
    let sound = format!("{WAIT}\n{LOAD}\n{STORE}");
    let refused = |change: fn(&mut Value), message: &str| {
        let mut spec = spec();
        change(&mut spec["before"][0]);
        let ran = prepared(&spec, module(&sound))
            .and_then(|mut p| p.run_before(&Options::default()).map(drop));
        let text = ran.unwrap_err().to_string();
        assert!(text.contains(message), "{text}");
    };
    refused(|b| b["kernel"] = json!("third"), "third");
    refused(
        |b| drop(b.as_object_mut().unwrap().remove("kernel")),
        "kernel",
    );
    refused(|b| b["buffers"] = json!({"w": {"size": 4}}), "buffers");
    refused(
        |b| b["variables"] = json!({"v": {"hex": "00"}}),
        "variables",
    );
    let inner = |b: &mut Value| b["before"] = json!([b.clone()]);
    refused(inner, "before[0]: `buffers`");
    refused(
        |b| b["params"][1] = json!({"buffer": "w"}),
        "before[0]: params[1]: there is no buffer `w`",
    );
    refused(|b| b["block"] = json!([2048, 1, 1]), "1 to 1024 threads");
    refused(|b| b["params"] = json!([]), "0 parameters");
}

/// In a launch with another launch before it, a wait that is left out is caught by rule, not by the result.
#[test]
fn a_wait_that_is_left_out_is_caught() {
    let module = module(&format!("{WAIT}\n{LOAD}\n{STORE}"));
    let kernel = Kernel::new(&module, "second").unwrap();
    let mut p = prepared(&spec(), module).unwrap();
    p.run_before(&Options::default()).unwrap();
    let golden = Golden::record(&kernel, p).unwrap();
    let mutants = kernel.mutants();
    let waits: Vec<_> = mutants
        .iter()
        .filter(|m| m.kind == Kind::DropGridWait)
        .collect();
    assert_eq!(waits.len(), 1);
    let planted = kernel.plant(waits[0]).unwrap();
    hazard(golden.check(&planted, &Options::default()), "is read here");
}
