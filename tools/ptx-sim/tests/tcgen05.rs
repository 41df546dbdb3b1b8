//! A small handwritten tcgen05 kernel, and every way of getting it wrong that must be reported.

mod common;

use common::ones::edited;
use common::options::all_options;
use ptx_sim::{Launch, Module, Options, Profile, Sim, SimError, Timing};

fn run(edits: &[(&str, &str)], options: &Options) -> Result<Vec<f32>, SimError> {
    run_as(edits, false, options)
}

/// `dependent`: the grid before it may still run.
fn run_as(
    edits: &[(&str, &str)],
    dependent: bool,
    options: &Options,
) -> Result<Vec<f32>, SimError> {
    let mut sim = Sim::new(Module::parse(&edited(edits))?);
    let out = sim.alloc("out", 128 * 8 * 4)?;
    let launch = Launch {
        dependent,
        ..Launch::new("k", [1, 1, 1], [128, 1, 1]).buffer(out)
    };
    sim.run(&launch, options)?;
    Ok(sim.words(out).into_iter().map(f32::from_bits).collect())
}

/// Demands that the edited kernel is reported whatever the schedule and the profile, with this message.
fn reported(edits: &[(&str, &str)], message: &str) {
    reported_with(edits, message, all_options());
}

/// Demands that the edited kernel is reported under the strict profile. The other profile is tried in relaxations.rs.
fn reported_strictly(edits: &[(&str, &str)], message: &str) {
    let mut options = all_options();
    options.retain(|o| o.profile == Profile::Strict);
    reported_with(edits, message, options);
}

fn reported_with(edits: &[(&str, &str)], message: &str, options: Vec<Options>) {
    for o in options {
        match run(edits, &o) {
            Ok(_) => panic!("not reported with {o:?}: {edits:?}"),
            Err(e) => assert!(e.to_string().contains(message), "with {o:?}: {e}"),
        }
    }
}

fn works(edits: &[(&str, &str)], value: f32) {
    for o in all_options() {
        let out = run(edits, &o).unwrap_or_else(|e| panic!("with {o:?}: {e}"));
        assert!(
            out.iter().all(|v| *v == value),
            "{:?} with {o:?}",
            &out[..8]
        );
    }
}

const WAIT: &str =
    "    mbarrier.try_wait.parity.shared::cta.b64 %p5, [sm+4608], 0;\n    @!%p5 bra WAIT;\n";
const MMA: &str = "    tcgen05.mma.cta_group::1.kind::f16 [%r10], %rd2, %rd3, 0x08020490, %p4;\n";
const LD: &str = "    tcgen05.ld.sync";

#[test]
fn the_kernel_works() {
    works(&[], 16.0);
}

#[test]
fn a_second_mma_accumulates_in_order() {
    let two = format!(
        "{MMA}    tcgen05.mma.cta_group::1.kind::f16 [%r10], %rd2, %rd3, 0x08020490, !%p4;\n"
    );
    works(&[(MMA, &two)], 32.0);
    let scaled = two.replace("!%p4", "!%p4, 2");
    works(&[(MMA, &scaled)], 20.0);
}

#[test]
fn missing_waits() {
    // Read before the MMA was even issued, or before it is known to have ended.
    reported(&[(WAIT, "")], "tensor memory");
    // A wait whose answer is ignored may be long enough, but not under every schedule.
    let ignored = ("    @!%p5 bra WAIT;\n", "");
    assert!(all_options().iter().any(|o| run(&[ignored], o).is_err()));
    reported(
        &[
            (WAIT, ""),
            ("    tcgen05.commit.", "    @%p4 tcgen05.commit."),
        ],
        "tensor memory",
    );
    reported_strictly(
        &[("tcgen05.fence::after_thread_sync; //wait", "")],
        "tcgen05.fence is missing",
    );
    let unwaited = [("    tcgen05.wait::ld.sync.aligned;\n", "")];
    reported_strictly(&unwaited, "before tcgen05.wait::ld");
}

#[test]
fn one_warp_waits_for_all() {
    let wait = |sem: &str, meet: &str| {
        let poll = WAIT.replace(".parity", &format!(".parity{sem}"));
        format!("    @%p3 bra MEET;\n{poll}MEET:\n{meet}")
    };
    let meet = "    bar.sync 1;\n";
    works(&[(WAIT, &wait("", meet))], 16.0);
    works(&[(WAIT, &wait(".relaxed.cta", meet))], 16.0);
    // Fences that the waiting warp may execute besides.
    let fences = "    tcgen05.fence::after_thread_sync;\n    tcgen05.fence::before_thread_sync;\n";
    works(&[(WAIT, &wait("", &format!("{fences}{meet}")))], 16.0);
    // One lane of each warp.
    let lane = "    setp.ne.u32 %p6, %r6, 5;\n    @%p6 bra MEET;\n";
    let lane = format!("    and.b32 %r6, %r1, 31;\n{lane}{WAIT}MEET:\n");
    works(&[(WAIT, &lane)], 16.0);

    let after = ("tcgen05.fence::after_thread_sync; //wait", "");
    reported_strictly(
        &[(WAIT, &wait("", meet)), after],
        "tcgen05.fence is missing",
    );
    reported(&[(WAIT, &wait("", ""))], "tensor memory");
    // The barrier in front of the wait tells nothing.
    let early = format!("{meet}{}", wait("", ""));
    reported(&[(WAIT, &early)], "tensor memory");
}

#[test]
fn a_commit_that_never_comes_is_a_deadlock() {
    for o in all_options() {
        let e = run(&[("    tcgen05.commit.", "    @%p4 tcgen05.commit.")], &o).unwrap_err();
        assert!(matches!(e, SimError::Deadlock(_)), "{e}");
    }
}

#[test]
fn a_commit_that_nobody_waits_for() {
    let init = "    fence.mbarrier_init.release.cluster;\n";
    let second = format!("    mbarrier.init.shared::cta.b64 [sm+4624], 1;\n{init}");
    let commit =
        "    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [sm+4624];\n";
    // The last use of a stage: its arrival may come after the end of the CTA, if what it tracks is over.
    works(&[(init, &second), ("    //after mma\n", commit)], 16.0);
    // The kernel waits for this arrival, and the one behind another MMA comes too late.
    let behind = |o: &str| {
        format!("    @%p2 bra BEHIND;\n{o}{commit}BEHIND:\n    bar.warp.sync 0xffffffff;\n{LD}")
    };
    works(&[(init, &second), (LD, &behind(""))], 16.0);
    let late = behind(MMA);
    reported(
        &[(init, &second), (LD, &late)],
        "tensor memory columns 0..8",
    );
}

#[test]
fn allocation() {
    let dealloc = "    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;\n";
    reported(
        &[(dealloc, "")],
        "without tcgen05.dealloc of tensor memory columns 0..32",
    );
    reported(
        &[(dealloc, &dealloc.replace("32;", "64;"))],
        "matches no allocation",
    );
    reported(&[("[sm+4616], 32", "[sm+4616], 48")], "not a power of two");
    let relinquish = "    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n";
    let again = "    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [sm+4620], 32;\n";
    reported(
        &[(relinquish, &format!("{relinquish}{again}"))],
        "after tcgen05.relinquish_alloc_permit",
    );
    reported(
        &[(
            "cta_group::1.sync.aligned.shared",
            "cta_group::2.sync.aligned.shared",
        )],
        "without a peer CTA",
    );
    // Warps 1 to 3 may still be reading, or read what is freed.
    reported(&[("    bar.sync 0; //end\n", "")], "tensor memory column");
    let full = [
        ("[sm+4616], 32", "[sm+4616], 512"),
        (relinquish, &again.replace("32;", "512;")),
    ];
    for o in all_options() {
        let e = run(&full, &o).unwrap_err();
        assert!(
            matches!(e, SimError::Deadlock(_)) && e.to_string().contains("for tensor memory"),
            "{e}"
        );
    }
}

const ALLOC: &str = "    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [sm+4616], 32;\n";

fn deadlock(result: Result<Vec<f32>, SimError>, reason: &str, options: &Options) {
    match result {
        Err(e @ SimError::Deadlock(_)) => assert!(e.to_string().contains(reason), "{e}"),
        other => panic!("{other:?} with {options:?}"),
    }
}

#[test]
fn tensor_memory_is_not_held_while_waiting_for_the_grid_before() {
    let before = format!("    griddepcontrol.wait;\n{ALLOC}");
    let after = format!("{ALLOC}    griddepcontrol.wait;\n");
    for o in all_options() {
        run_as(&[(ALLOC, &before)], true, &o).unwrap_or_else(|e| panic!("with {o:?}: {e}"));
        let held = run_as(&[(ALLOC, &after)], true, &o);
        match o.timing {
            // Public kernels allocate before they wait: those before them have allocated already.
            _ if o.profile == Profile::Hardware => assert!(held.is_ok(), "{held:?} with {o:?}"),
            // The grid before has ended when this one starts.
            Timing::Eager => assert!(held.is_ok(), "{held:?} with {o:?}"),
            Timing::Lazy => deadlock(held, "for tensor memory: CTA 0 holds some", &o),
            Timing::Random | Timing::After(_) => {}
        }
        run_as(&[(ALLOC, &after)], false, &o).unwrap_or_else(|e| panic!("with {o:?}: {e}"));
        // Whoever does not wait may hold it: its end lets the grid before go on.
        run_as(&[], true, &o).unwrap_or_else(|e| panic!("with {o:?}: {e}"));
    }
    let some = all_options()
        .into_iter()
        .any(|o| o.timing == Timing::Random && run_as(&[(ALLOC, &after)], true, &o).is_err());
    assert!(some, "no random schedule shows it");
}

#[test]
fn dependents_start_after_the_allocation() {
    let before = format!("    griddepcontrol.launch_dependents;\n{ALLOC}");
    let after = format!("{ALLOC}    griddepcontrol.launch_dependents;\n");
    for o in all_options() {
        run(&[(ALLOC, &after)], &o).unwrap_or_else(|e| panic!("with {o:?}: {e}"));
        let late = run(&[(ALLOC, &before)], &o);
        match o.profile {
            Profile::Strict => {
                deadlock(late, "which a grid that waits for the end of this one", &o)
            }
            Profile::Hardware => assert!(late.is_ok(), "{late:?} with {o:?}"),
        }
    }
}

#[test]
fn addresses_and_descriptors() {
    reported_strictly(
        &[("shl.b32 %r11, %r2, 21", "shl.b32 %r11, %r2, 22")],
        "may touch lanes",
    );
    reported(&[("0x0000401000080000", "0x0000401000084000")], "reserved");
    reported(&[("0x0000401000080000", "0x0000001000080000")], "A: ");
    reported(&[("0x08020490", "0x08020491")], "");
    reported(&[("0x08020490", "0x08420490")], "holds 264");
}

#[test]
fn shared_operands() {
    reported(
        &[("    fence.proxy.async.shared::cta;\n", "")],
        "fence.proxy.async is missing",
    );
    let overwrite = ("//after mma", "st.shared.u32 [sm+64], 0;");
    reported(&[overwrite], "in flight");
    let overwrite = ("//after mma", "st.shared.u32 [sm+4500], 0;");
    works(&[overwrite], 16.0);
    reported_strictly(&[("%r4, 1088", "%r4, 1000")], "not initialised");
}

#[test]
fn copies() {
    // Into other columns before, and into those of D after.
    let cp = "tcgen05.cp.cta_group::1.128x128b [%r12], %rd2;\n";
    let before = format!("    add.u32 %r12, %r10, 16;\n    {cp}{MMA}");
    works(
        &[
            (MMA, &before),
            ("add.u32 %r11, %r11, %r10", "add.u32 %r11, %r11, %r10"),
        ],
        16.0,
    );
    let read = [
        (MMA, before.as_str()),
        (LD, "    add.u32 %r11, %r11, 12;\n    tcgen05.ld.sync"),
    ];
    reported(&read, "not initialised");
    let after = format!("mov.u32 %r12, %r10;\n    {cp}");
    for o in all_options() {
        let r = run(&[("//after mma", &after)], &o);
        match o.profile {
            Profile::Strict => {
                let e = r.unwrap_err().to_string();
                assert!(
                    e.contains(
                        "tensor memory columns 0..4 written here and written before at line"
                    ),
                    "{e}"
                );
            }
            Profile::Hardware => {
                let copied = f32::from_bits(0x3f80_3f80);
                assert_eq!(r.unwrap()[..5], [copied, copied, copied, copied, 16.0]);
            }
        }
    }
}

#[test]
fn stores() {
    let st = "    tcgen05.st.sync.aligned.32x32b.x2.b32 [%r11], {%r10, %r10};\n";
    let wait = "    tcgen05.wait::st.sync.aligned;\n";
    for (extra, good) in [
        (format!("{st}{wait}{LD}"), true),
        (format!("{st}{LD}"), false),
    ] {
        if good {
            for o in all_options() {
                let out = run(&[(LD, &extra)], &o).unwrap();
                assert_eq!(out[..3], [0.0, 0.0, 16.0]);
            }
        } else {
            reported(
                &[(LD, &extra)],
                "tensor memory columns 0..2 read here and written before",
            );
        }
    }
}

#[test]
fn what_is_not_modelled_says_so() {
    let shift = ("//after mma", "tcgen05.shift.cta_group::1.down [%r10];");
    for o in all_options() {
        let e = run(&[shift], &o).unwrap_err();
        assert!(matches!(e, SimError::Unmodelled { .. }), "{e}");
    }
}
