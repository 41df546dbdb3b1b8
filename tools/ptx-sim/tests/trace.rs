//! Timelines of runs, and the picture of one.

mod common;

use common::conformance::{self, Case, Loaded, module};
use ptx_sim::trace::Kind::*;
use ptx_sim::trace::draw::{DrawError, DrawOptions, draw};
use ptx_sim::trace::{DEFAULT_LIMIT, Slice, TrackKind};
use ptx_sim::{Launch, Module, Options, Policy, Program, Sim, Timing, Trace};

fn traced(entry: &str, case: &Case, policy: Policy, timing: Timing, limit: usize) -> Trace {
    let Loaded {
        mut sim, launch, ..
    } = Loaded::new(&module(entry), case);
    let program = sim.program(entry).expect(entry);
    let options = Options {
        policy,
        timing,
        ..Options::default()
    };
    let (result, trace) = sim.run_traced(&program, &launch, &options, limit);
    result.expect("a run");
    trace
}

/// The timeline of the picture: six stages through a ring of three.
fn pipelined(timing: Timing) -> Trace {
    let case = conformance::mma_pipelined(1, 1, 16, 1536);
    traced("mma_pipelined", &case, Policy::Fair, timing, DEFAULT_LIMIT)
}

fn of(t: &Trace, kind: TrackKind, index: u64) -> Vec<&Slice> {
    let track = t
        .tracks
        .iter()
        .position(|k| k.kind == kind && k.index == index)
        .expect("a track");
    t.slices.iter().filter(|s| s.track == track).collect()
}

const FULL: [u64; 3] = [0x400, 0x408, 0x410];
const EMPTY: [u64; 3] = [0x418, 0x420, 0x428];

#[test]
fn every_operation_and_phase_of_a_pipeline_is_there() {
    for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
        let t = pipelined(timing);
        let count = |kind| t.slices.iter().filter(|s| s.kind == kind).count();
        assert_eq!(count(Copy), 6 * 4);
        assert_eq!(count(Cp), 6 * 8);
        assert_eq!(count(Mma), 6 * 4);
        assert_eq!(count(Commit), 3 + 1);
        assert_eq!(count(Ld), 4);
        for at in FULL {
            let phases = of(&t, TrackKind::Barrier, at);
            let done = phases.iter().filter(|p| p.details["completed"] == true);
            let done: Vec<_> = done.collect();
            assert_eq!(done.len(), 2);
            for (n, p) in done.iter().enumerate() {
                assert_eq!(p.name, format!("phase {n}"));
                assert_eq!(p.details["arrivals"], 1);
                assert_eq!(p.details["tx_bytes"], 22528);
            }
            assert_eq!(done[0].end, done[1].start);
        }
        for at in EMPTY {
            assert_eq!(of(&t, TrackKind::Barrier, at)[0].details["completed"], true);
        }
        let copy = t.slices.iter().find(|s| s.kind == Copy).expect("one");
        assert!(
            copy.details["opcode"]
                .as_str()
                .expect("text")
                .starts_with("cp.async.bulk")
        );
        assert!(copy.details["bytes"].as_u64().expect("a number") >= 2048);
        assert_eq!(t.truncated, None);
    }
}

/// Slices of a warp follow each other, and a warp that waits does not run.
#[test]
fn a_warp_does_one_thing_at_a_time() {
    let t = pipelined(Timing::Random);
    for warp in 0..6 {
        let mut list = of(&t, TrackKind::Warp, warp);
        list.sort_by_key(|s| s.start);
        assert!(list.iter().all(|s| s.start < s.end && !s.name.is_empty()));
        assert!(
            list.windows(2).all(|w| w[0].end <= w[1].start),
            "warp {warp}"
        );
    }
    // One warp runs at a time.
    let mut runs: Vec<_> = t.slices.iter().filter(|s| s.kind == Run).collect();
    runs.sort_by_key(|s| s.start);
    assert!(runs.windows(2).all(|w| w[0].end <= w[1].start));
    let executed: u64 = runs
        .iter()
        .filter_map(|s| s.details["instructions"].as_u64())
        .sum();
    let completed = t.slices.iter();
    let completed = completed.filter(|s| matches!(s.kind, Copy | Cp | Mma | Commit | Ld | St));
    assert_eq!(t.steps, executed + completed.count() as u64);
    let loader = of(&t, TrackKind::Warp, 4);
    assert!(
        loader
            .iter()
            .any(|s| s.name == "try_wait barrier +0x418 parity 0")
    );
    assert!(loader.iter().any(|s| s.name == "bar.sync 0"));
    assert!(
        loader
            .iter()
            .any(|s| s.name.contains("cp.async.bulk.tensor ×2"))
    );
}

#[test]
fn flows_lead_from_what_completes_a_phase_to_who_waits_for_it() {
    let t = pipelined(Timing::Lazy);
    let flow = |from, warp| {
        t.flows.iter().any(|f| {
            let (a, b) = (&t.slices[f.from], &t.slices[f.to]);
            assert!(a.start < b.end && b.kind == Run);
            a.kind == from && t.tracks[b.track].index == warp
        })
    };
    assert!(flow(Copy, 5), "copies wake the MMA warp");
    assert!(flow(Commit, 4), "commits wake the loading warp");
    assert!(flow(Commit, 0), "the last commit wakes those that store");
}

#[test]
fn the_file_holds_all_that_was_recorded() {
    for t in [
        pipelined(Timing::Random),
        traced(
            "mma_two_cta",
            &conformance::mma_two_cta(1),
            Policy::Starve(3),
            Timing::Lazy,
            DEFAULT_LIMIT,
        ),
    ] {
        let text = t.to_chrome();
        assert_eq!(Trace::from_chrome(&text).expect("what was written"), t);
        let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(
            file["otherData"]["axis"]
                .as_str()
                .expect("text")
                .contains("not a time")
        );
        // Viewers need slices of a row not to overlap.
        let mut rows = std::collections::BTreeMap::<_, Vec<(u64, u64)>>::new();
        for e in file["traceEvents"].as_array().expect("a list") {
            if e["ph"] == "X" {
                let n = |name: &str| e[name].as_u64().expect("a number");
                let row = rows.entry((n("pid"), n("tid"))).or_default();
                row.push((n("ts"), n("ts") + n("dur")));
            }
        }
        for mut row in rows.into_values() {
            row.sort_unstable();
            assert!(row.windows(2).all(|w| w[0].1 <= w[1].0));
        }
    }
}

#[test]
fn a_pair_of_ctas_has_two_processes() {
    let case = conformance::mma_two_cta(1);
    let t = traced(
        "mma_two_cta",
        &case,
        Policy::Fair,
        Timing::Lazy,
        DEFAULT_LIMIT,
    );
    assert_eq!(t.ctas.len(), 2);
    assert!(t.slices.iter().any(|s| s.name == "barrier.cluster.wait"));
    let commit = t.slices.iter().find(|s| s.kind == Commit).expect("one");
    assert_eq!(
        commit.details["signals"].as_array().expect("a list").len(),
        2
    );
    let svg = draw(&t, &DrawOptions::default()).expect("a picture");
    assert!(svg.contains("CTA (0, 0, 0): warps") && svg.contains("CTA (1, 0, 0): warps"));
}

#[test]
fn a_limit_cuts_and_says_so() {
    let case = conformance::mma_pipelined(1, 1, 16, 1536);
    let whole = pipelined(Timing::Random);
    let t = traced("mma_pipelined", &case, Policy::Fair, Timing::Random, 60);
    assert_eq!(t.truncated, Some(60));
    // Slices that are open at the limit are there, too.
    assert!(
        t.slices.len() >= 60 && t.slices.len() < 110,
        "{}",
        t.slices.len()
    );
    assert!(t.steps < whole.steps);
    assert!(t.slices.iter().all(|s| s.end <= t.steps.max(s.start + 1)));
    assert!(t.to_chrome().contains("\"truncated after 60 events\""));
    assert!(
        draw(&t, &DrawOptions::default())
            .expect("a picture")
            .contains("truncated after 60")
    );
    let nothing = traced("mma_pipelined", &case, Policy::Fair, Timing::Random, 0);
    assert!(nothing.slices.len() < 60);
    Trace::from_chrome(&nothing.to_chrome()).expect("what was written");
}

/// Recording changes nothing.
#[test]
fn a_traced_run_is_the_same_run() {
    let module = module("mma_pipelined");
    let program = Program::new(&module, "mma_pipelined").expect("a kernel");
    let loaded = Loaded::new(&module, &conformance::mma_pipelined(1, 2, 5, 768));
    let (launch, out) = (&loaded.launch, loaded.out);
    for policy in [Policy::Fair, Policy::Random(4), Policy::Starve(4)] {
        let options = Options {
            policy,
            timing: Timing::Random,
            ..Options::default()
        };
        let (mut a, mut b) = (loaded.sim.clone(), loaded.sim.clone());
        let plain = a.run_program(&program, launch, &options, None);
        let (traced, _) = b.run_traced(&program, launch, &options, 1000);
        let (plain, traced) = (plain.expect("a run"), traced.expect("a run"));
        assert_eq!(plain.coverage, traced.coverage);
        assert_eq!(plain.thread_instructions, traced.thread_instructions);
        assert_eq!(a.download(out), b.download(out));
    }
}

/// Also where no warp can run until then.
#[test]
fn copies_take_the_steps_that_the_timing_says() {
    for steps in [10, 3000] {
        let t = pipelined(Timing::After(steps));
        let copies = t.slices.iter().filter(|s| s.kind == Copy);
        let shortest = copies.map(|s| s.end - s.start).min().expect("copies");
        // Completions are looked at between the turns of warps.
        let steps = u64::from(steps);
        assert!((steps..steps + 500).contains(&shortest), "{shortest}");
        assert_eq!(t.about["timing"], format!("after:{steps}"));
        assert!(t.steps > steps);
    }
}

/// Stretches say what was executed, and how often.
#[test]
fn stretches_count_what_they_execute() {
    let t = pipelined(Timing::Eager);
    let runs = t.slices.iter().filter(|s| s.kind == Run);
    let counts = runs.map(|s| s.details["opcodes"]["tcgen05.mma"].as_u64());
    let mmas: u64 = counts.flatten().sum();
    let issued = t.slices.iter().filter(|s| s.kind == Mma).count();
    assert!(mmas > 0);
    assert_eq!(mmas, issued as u64);
}

#[test]
fn a_run_that_fails_leaves_its_trace() {
    let ptx = ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {\n\
        .reg .b32 %r<4>; .reg .b64 %d<2>;\n mov.u32 %r1, %tid.x;\n bar.sync 0;\n\
        mov.b64 %d1, 64;\n ld.global.u32 %r2, [%d1];\n ret;\n}";
    let mut sim = Sim::new(Module::parse(ptx).expect("PTX"));
    let program = sim.program("k").expect("a kernel");
    let launch = Launch::new("k", [1, 1, 1], [64, 1, 1]);
    let (result, t) = sim.run_traced(&program, &launch, &Options::default(), 100);
    assert!(result.is_err());
    assert!(t.about["error"].contains("ld.global.u32"));
    assert!(
        t.slices
            .iter()
            .any(|s| s.kind == Wait && s.name == "bar.sync 0")
    );
    assert!(t.slices.iter().all(|s| !s.name.is_empty()));
    // A launch that is refused has no timeline.
    let refused = Launch::new("k", [1, 1, 1], [2048, 1, 1]);
    let (result, t) = sim.run_traced(&program, &refused, &Options::default(), 100);
    assert!(result.is_err() && t.slices.is_empty());
}

#[test]
fn files_that_are_no_traces_are_refused() {
    for text in [
        "",
        "{}",
        "[]",
        r#"{"otherData":{"steps":1},"traceEvents":[{"ph":"X","name":"a"}]}"#,
        r#"{"otherData":{"steps":1},"traceEvents":[{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{}}]}"#,
        r#"{"otherData":{"steps":1},"traceEvents":[{"ph":"f","id":0,"args":{"slice":9}}]}"#,
        r#"{"otherData":{"steps":1},"traceEvents":[{"ph":"M","name":"process_name","pid":99999999999,"args":{"ctaid":[0,0,0]}}]}"#,
    ] {
        assert!(Trace::from_chrome(text).is_err(), "{text}");
    }
    let empty = Trace::from_chrome(r#"{"otherData":{"steps":0},"traceEvents":[]}"#);
    let empty = empty.expect("an empty trace");
    assert_eq!(draw(&empty, &DrawOptions::default()), Err(DrawError::Empty));
}

#[test]
fn pictures_of_a_part() {
    let t = pipelined(Timing::Random);
    let with = |change: &dyn Fn(&mut DrawOptions)| {
        let mut o = DrawOptions::default();
        change(&mut o);
        draw(&t, &o)
    };
    let part = with(&|o| o.steps = Some((400, 900))).expect("a picture");
    assert!(part.len() < with(&|_| {}).expect("a picture").len());
    assert_eq!(
        with(&|o| o.steps = Some((9, 9))),
        Err(DrawError::Steps(9, 9))
    );
    assert_eq!(with(&|o| o.ctas = vec![7]), Err(DrawError::Empty));
    assert_eq!(with(&|o| o.width = 10), Err(DrawError::Width(10)));
    with(&|o| o.steps = Some((0, u64::MAX))).expect("a picture");
    let named = with(&|o| {
        o.title = Some("a < b & \"c\"\u{1}".into());
        o.labels.insert("0x418".into(), "empty<0>".into());
    });
    let named = named.expect("a picture");
    assert!(named.contains("a &lt; b &amp; &quot;c&quot; <"));
    assert!(named.contains("waits for empty&lt;0&gt;, parity 0"));
}

/// `docs/pipeline.svg` is what the simulator draws now.
#[test]
fn the_committed_picture_is_current() {
    let labels = [
        ("warp 0", "warps 0–3: store"),
        ("warp 4", "warp 4: load"),
        ("warp 5", "warp 5: multiply"),
        ("0x400", "full[0]"),
        ("0x408", "full[1]"),
        ("0x410", "full[2]"),
        ("0x418", "empty[0]"),
        ("0x420", "empty[1]"),
        ("0x428", "empty[2]"),
        ("0x430", "done"),
    ];
    let options = DrawOptions {
        title: Some("mma_pipelined: six stages of K through a ring of three".into()),
        warps: vec![0, 4, 5],
        labels: labels.map(|(a, b)| (a.to_string(), b.to_string())).into(),
        ..DrawOptions::default()
    };
    let svg = draw(&pipelined(Timing::Random), &options).expect("a picture");
    assert!(svg.len() < 60_000, "{} bytes", svg.len());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pipeline.svg");
    if std::env::var_os("PIPELINE_WRITE").is_some() {
        std::fs::write(path, &svg).expect("the picture can be written");
    }
    // A checkout may have changed the line ends.
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed.replace('\r', "") == svg,
        "docs/pipeline.svg is not what the simulator draws; after looking at the change, run\n  \
         PIPELINE_WRITE=1 cargo test -p ptx-sim --test trace the_committed_picture_is_current"
    );
}
