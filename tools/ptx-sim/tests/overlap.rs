//! Launches that run at the same time, as programmatic dependent launch lets them, and share multiprocessors.

use ptx_sim::report::{Deadlock, ViolationKind};
use ptx_sim::schedules::schedules;
use ptx_sim::{
    Buffer, HazardChecks, Launch, Module, Multiprocessors, Options, Profile, Program, Sim, SimError,
};

const WAIT: &str = "griddepcontrol.wait;\n";
const START: &str = "griddepcontrol.launch_dependents;\n";
const LOAD: &str = "ld.global.u32 %r1, [%d1];\n";
const STORE: &str = "st.global.u32 [%d2], %r1;\n";
/// Time for others to come first.
const LOOP: &str =
    "mov.u32 %r8, 0;\nL: add.u32 %r8, %r8, 1;\nsetp.lt.u32 %p1, %r8, 1500;\n@%p1 bra L;\n";
const FREE: &str = "bar.sync 0;\nld.shared.u32 %r7, [columns];\n";

const BLOCK: u32 = 32;
const GRID: u32 = 2;
const WORDS: u32 = BLOCK * GRID;

fn alloc(columns: u32) -> String {
    format!(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [columns], {columns};\n\
         tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
    )
}

fn free(columns: u32) -> String {
    format!("{FREE}tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r7, {columns};\n")
}

/// Kernels of these bodies, named a, b, c. Each takes two buffers of a word a thread, at `%d1` and `%d2`.
fn module(bodies: &[&str]) -> Module {
    let kernel = |(name, body): (char, &&str)| {
        format!(
            ".visible .entry {name}(.param .u64 from, .param .u64 to) {{\n\
             .reg .pred %p<4>; .reg .b32 %r<10>; .reg .b64 %d<10>; .shared .align 16 .b8 columns[16];\n\
             mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r4, %r3, 32, %r2;\n\
             mul.wide.u32 %d5, %r4, 4; ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to];\n\
             add.s64 %d1, %d1, %d5; add.s64 %d2, %d2, %d5;\n{body}\nret;\n}}\n"
        )
    };
    let all: String = ('a'..).zip(bodies).map(kernel).collect();
    let text = format!(".version 9.0\n.target sm_100a\n.address_size 64\n{all}");
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Launches of the kernels of a module, and their buffers.
struct Stream {
    sim: Sim,
    programs: Vec<Program>,
    launches: Vec<Launch>,
    /// Buffers between the kernels: each kernel reads the buffer that the kernel before it writes.
    buffers: Vec<Buffer>,
}

impl Stream {
    /// All but the first are dependent.
    fn new(bodies: &[&str]) -> Self {
        let mut sim = Sim::new(module(bodies));
        let words: Vec<u8> = (0..WORDS).flat_map(u32::to_le_bytes).collect();
        let buffers: Vec<Buffer> = (0..=bodies.len())
            .map(|i| sim.upload(&format!("v{i}"), &words).unwrap())
            .collect();
        let names = ('a'..).take(bodies.len()).map(String::from);
        let launches = names.zip(buffers.windows(2)).enumerate();
        let launches: Vec<Launch> = launches
            .map(|(i, (name, v))| Launch {
                dependent: i > 0,
                ..Launch::new(&name, [GRID, 1, 1], [BLOCK, 1, 1])
                    .buffer(v[0])
                    .buffer(v[1])
            })
            .collect();
        let programs = launches.iter().map(|l| sim.program(&l.kernel).unwrap());
        Self {
            programs: programs.collect(),
            sim,
            launches,
            buffers,
        }
    }

    fn run_on(&mut self, options: &Options, on: Multiprocessors) -> Result<(), SimError> {
        let all: Vec<_> = self.programs.iter().zip(&self.launches).collect();
        self.sim.run_overlapped(&all, options, on).map(|reports| {
            assert!(reports.iter().all(|r| r.ctas == u64::from(GRID)));
        })
    }

    fn run(&mut self, options: &Options) -> Result<(), SimError> {
        self.run_on(options, Multiprocessors::default())
    }

    fn words(&self, buffer: usize) -> Vec<u32> {
        self.sim.words(self.buffers[buffer])
    }
}

fn all_options() -> Vec<Options> {
    let all = (0..3).flat_map(schedules);
    let both = all.flat_map(|o| {
        [Profile::Strict, Profile::Hardware].map(|profile| Options {
            profile,
            budget: 10_000_000,
            ..o.clone()
        })
    });
    both.collect()
}

/// Number of schedules that end in a deadlock, number of all schedules, and the first report. Nothing else goes wrong.
fn deadlocks(bodies: &[&str], on: Multiprocessors) -> (usize, usize, Option<Deadlock>) {
    let (mut found, mut first) = (0, None);
    let all = all_options();
    for options in &all {
        match Stream::new(bodies).run_on(options, on) {
            Ok(()) => {}
            Err(SimError::Deadlock(d)) => {
                found += 1;
                first.get_or_insert(*d);
            }
            Err(e) => panic!("{e}\n{bodies:?}\n{options:?}"),
        }
    }
    (found, all.len(), first)
}

fn none(bodies: &[&str], on: Multiprocessors) {
    let (found, _, first) = deadlocks(bodies, on);
    assert_eq!(found, 0, "{bodies:?}\n{}", first.unwrap());
}

#[track_caller]
fn caught(bodies: &[&str], messages: &[&str]) {
    for options in all_options() {
        match Stream::new(bodies).run(&options) {
            Err(SimError::Violation(v)) => {
                assert_eq!(v.kind, ViolationKind::Hazard, "{v}");
                let text = v.to_string();
                assert!(messages.iter().any(|m| text.contains(m)), "{text}");
                assert!(text.contains("grid 1 (a)"), "{text}");
            }
            other => panic!("{other:?}, not a hazard\n{bodies:?}\n{options:?}"),
        }
    }
}

/// Runs clean, and adds one for each kernel, whatever the schedule.
fn adds(bodies: &[&str]) {
    for options in all_options() {
        let mut stream = Stream::new(bodies);
        let ran = stream.run(&options);
        ran.unwrap_or_else(|e| panic!("{e}\n{bodies:?}\n{options:?}"));
        let n = bodies.len() as u32;
        let want: Vec<u32> = (n..WORDS + n).collect();
        assert_eq!(stream.words(bodies.len()), want, "{options:?}");
    }
}

const ADD: &str = "add.u32 %r1, %r1, 1;\n";

#[test]
fn tensor_memory_before_the_wait_deadlocks() {
    let early_and_late = format!("{START}{LOOP}{}{}", alloc(512), free(512));
    let old = format!("{}{WAIT}{}", alloc(512), free(512));
    let mended = format!("{WAIT}{}{}", alloc(512), free(512));
    let one = Multiprocessors::default();
    none(&[&early_and_late, &mended], one);
    let (found, all, first) = deadlocks(&[&early_and_late, &old], one);
    assert!(found * 2 > all, "{found} of {all}");
    let text = first.unwrap().to_string();
    for part in [
        "in grid 1 (a), for 512 columns of the tensor memory of multiprocessor 0",
        "in grid 2 (b), for the end of grid 1 (a)",
        " of grid 2 (b) holds columns 0..512",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // If the earlier grid has allocated before it lets the later one start, the later grid waits for the columns.
    let early = format!("{}{START}{LOOP}{}", alloc(512), free(512));
    none(&[&early, &old], one);
    // Half of the columns each, and a multiprocessor each.
    let half = [&early_and_late, &old].map(|body| body.replace("512", "256"));
    let half: Vec<&str> = half.iter().map(String::as_str).collect();
    let alone = Multiprocessors {
        count: 4,
        ctas: 1,
        ..one
    };
    none(&[&early_and_late, &old], alone);
    let single = |bodies: &[&str]| {
        for options in all_options() {
            let mut stream = Stream::new(bodies);
            stream.launches.iter_mut().for_each(|l| l.grid = [1, 1, 1]);
            let all: Vec<_> = stream.programs.iter().zip(&stream.launches).collect();
            stream.sim.run_overlapped(&all, &options, one).unwrap();
        }
    };
    single(&half);
}

/// A grid does not get columns that another grid holds.
#[test]
fn grids_share_the_columns_of_a_multiprocessor() {
    let first = format!("{}{START}{LOOP}{}", alloc(128), free(128));
    let tell = format!("{FREE}st.global.u32 [%d2], %r7;\n");
    let second = format!("{}{tell}{}", alloc(128), free(128));
    let mut seen = std::collections::BTreeSet::new();
    for options in all_options() {
        let mut stream = Stream::new(&[&first, &second]);
        stream.run(&options).unwrap();
        seen.extend(stream.words(2));
    }
    assert!(
        seen.contains(&256),
        "two CTAs of the first grid hold the columns before: {seen:?}"
    );
}

#[test]
fn accesses_that_no_wait_orders() {
    let copy = format!("{START}{LOOP}{WAIT}{LOAD}{ADD}{STORE}");
    adds(&[&copy, &copy]);
    // Both grids only read.
    adds(&[
        &copy,
        &format!("{START}ld.global.u32 %r5, [%d2];\n{WAIT}{LOAD}{ADD}{STORE}"),
    ]);
    // A read of what the first writes, a write of it, and a write of what the first reads: v0 is the first's source.
    let hasty = format!("{LOAD}{WAIT}{LOAD}{ADD}{STORE}");
    caught(&[&copy, &hasty], &["v1+"]);
    let hasty = format!("st.global.u32 [%d1], 1;\n{WAIT}{LOAD}{ADD}{STORE}");
    caught(&[&copy, &hasty], &["v1+"]);
    let overwrites =
        |order: &str| order.replace("OVER", "sub.s64 %d3, %d1, %d7;\nst.global.u32 [%d3], 1;\n");
    let body = |order: &str| {
        // Distance from v1 to v0, which lies before it.
        let distance = {
            let s = Stream::new(&[&copy, &copy]);
            s.buffers[1].address - s.buffers[0].address
        };
        format!(
            "mov.u64 %d7, {distance};\n{}{LOAD}{ADD}{STORE}",
            overwrites(order)
        )
    };
    adds(&[&copy, &body(&format!("{WAIT}OVER"))]);
    caught(
        &[&copy, &body(&format!("OVER{WAIT}"))],
        &[
            "is written here by grid 2 (b), and grid 1 (a) reads it, which may still run",
            "is read here by grid 1 (a), and grid 2 (b) writes it, which has started",
        ],
    );
    // A copy reads when it is issued, or later.
    let fetch = "mov.u32 %r9, columns;\n@%p2 bra N;\ncp.async.ca.shared.global [%r9], [%d1], 4;\nN: cp.async.wait_all;\n";
    let fetch = format!("setp.ne.u32 %p2, %r2, 0;\n{fetch}");
    adds(&[&copy, &format!("{WAIT}{fetch}{LOAD}{ADD}{STORE}")]);
    caught(
        &[&copy, &format!("{fetch}{WAIT}{LOAD}{ADD}{STORE}")],
        &["v1+"],
    );
}

#[test]
fn three_grids_in_a_chain() {
    let copy = format!("{START}{WAIT}{LOAD}{ADD}{STORE}");
    adds(&[&copy, &copy, &copy]);
    // The first grid's words by way of the second grid, which does not touch them.
    let idle = |waits: &str| format!("{START}{waits}");
    let reach = |s: &Stream| s.buffers[2].address - s.buffers[1].address;
    let back = reach(&Stream::new(&["", "", ""]));
    let third = format!("{WAIT}mov.u64 %d7, {back};\nsub.s64 %d1, %d1, %d7;\n{LOAD}{STORE}");
    let slow = format!("{START}{LOOP}{LOAD}{ADD}{STORE}");
    for options in all_options() {
        let mut stream = Stream::new(&[&slow, &idle(WAIT), &third]);
        stream
            .run(&options)
            .unwrap_or_else(|e| panic!("{e}\n{options:?}"));
        assert_eq!(
            stream.words(3),
            (1..=WORDS).collect::<Vec<_>>(),
            "{options:?}"
        );
    }
    caught(
        &[&slow, &idle(""), &third],
        &[
            "was for the grid in between only",
            "no griddepcontrol.wait has told its CTA",
        ],
    );
    // A launch that is not dependent comes after all.
    for options in all_options() {
        let mut stream = Stream::new(&[&slow, &idle(""), &third.replace(WAIT, "")]);
        stream.launches[2].dependent = false;
        stream
            .run(&options)
            .unwrap_or_else(|e| panic!("{e}\n{options:?}"));
        assert_eq!(
            stream.words(3),
            (1..=WORDS).collect::<Vec<_>>(),
            "{options:?}"
        );
    }
}

/// Number of schedules in which the first grid sees, before it ends, what the second one does first. All run to their
/// ends.
fn meets(shared: u32, on: Multiprocessors) -> (usize, usize) {
    let first =
        format!("{START}{LOOP}ld.volatile.global.u32 %r1, [%d2];\nst.global.u32 [%d1], %r1;\n");
    let second = format!("st.volatile.global.u32 [%d1], 77;\n{WAIT}");
    let all = all_options();
    let met = all.iter().filter(|options| {
        let options = Options {
            hazards: HazardChecks::Off,
            ..(*options).clone()
        };
        let run = || {
            let mut stream = Stream::new(&[&first, &second]);
            stream.launches[1].shared = shared;
            stream
                .run_on(&options, on)
                .unwrap_or_else(|e| panic!("{e}\n{options:?}"));
            stream.words(0)
        };
        let words = run();
        assert_eq!(words, run(), "a seed decides everything");
        words.contains(&77)
    });
    (met.count(), all.len())
}

#[test]
fn there_must_be_room() {
    let one = Multiprocessors::default();
    let (met, all) = meets(0, one);
    assert!(met > all / 3 && met < all, "{met} of {all}");
    // Each CTA has 16 bytes, and the system's KiB.
    assert!(meets((228 << 10) - 3 * (1024 + 16), one).0 > 0);
    let full = Multiprocessors {
        shared: 100 << 10,
        ..one
    };
    // The last CTA of the first grid to end has the multiprocessor to itself.
    assert_eq!(meets(98 << 10, full).0, 0);
    assert_eq!(meets(0, Multiprocessors { ctas: 1, ..one }).0, 0);
    assert_eq!(meets(0, Multiprocessors { threads: 32, ..one }).0, 0);
    // There is room on other multiprocessors.
    let four = Multiprocessors {
        count: 4,
        ctas: 1,
        ..one
    };
    assert!(meets(0, four).0 > 0);
}

#[test]
fn launches_that_cannot_overlap_are_refused() {
    let refused = |change: fn(&mut Stream) -> Multiprocessors, message: &str| {
        let mut stream = Stream::new(&[WAIT, WAIT]);
        let on = change(&mut stream);
        let error = stream.run_on(&Options::default(), on).unwrap_err();
        assert!(matches!(error, SimError::Launch(_)), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    };
    fn one() -> Multiprocessors {
        Multiprocessors::default()
    }
    refused(
        |s| {
            s.launches[1].shared = 100_000;
            Multiprocessors {
                shared: 100_000,
                ..one()
            }
        },
        "a CTA of b needs 32 threads and 101040 bytes",
    );
    refused(
        |s| {
            s.launches[1].params.clear();
            one()
        },
        "0 parameters",
    );
    refused(
        |s| {
            s.launches[1].block = [2048, 1, 1];
            one()
        },
        "1 to 1024 threads",
    );
    let mut sim = Sim::new(module(&[WAIT]));
    let program = sim.program("a").unwrap();
    let launch = Launch::new("a", [1, 1, 1], [32, 1, 1]);
    let many = vec![(&program, &launch); 64];
    let error = sim.run_overlapped(&many, &Options::default(), one());
    assert!(error.unwrap_err().to_string().contains("at most 63"));
    assert!(
        sim.run_overlapped(&[], &Options::default(), one())
            .unwrap()
            .is_empty()
    );
}
