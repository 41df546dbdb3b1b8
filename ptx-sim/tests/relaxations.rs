//! What kernels rely on without a promise: each is an error under the strict profile, and works with a note where it
//! is allowed, whatever the schedule.

mod common;

use common::hazard::kernel;
use common::ones::edited;
use ptx_sim::{
    Allowed, HazardChecks, Launch, Module, Options, Policy, Profile, Relaxation, Report, Sim,
    SimError, Timing,
};

/// Runs a kernel `k(in, out)` or `k(out)` of so many threads; `out` as words.
fn run(ptx: &str, threads: u32, o: &Options) -> Result<(Report, Vec<u32>), SimError> {
    let mut sim = Sim::new(Module::parse(ptx)?);
    let input = sim.upload("in", &[7; 4096])?;
    let out = sim.alloc("out", 4096)?;
    let launch = Launch::new("k", [1, 1, 1], [threads, 1, 1]);
    let launch = match ptx.contains(".param .u64 b") {
        true => launch.buffer(input).buffer(out),
        false => launch.buffer(out),
    };
    let report = sim.run(&launch, o)?;
    let words = sim.download(out).chunks_exact(4);
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Ok((report, words.map(word).collect()))
}

fn schedules() -> Vec<Options> {
    let mut all = Vec::new();
    for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
        for policy in [Policy::Fair, Policy::Random(1), Policy::Random(2)] {
            all.push(Options {
                policy,
                timing,
                budget: 10_000_000,
                ..Options::default()
            });
        }
    }
    all
}

/// The kernel relies on this and on nothing else, and its output is right where that is allowed.
fn relies(relaxation: Relaxation, ptx: &str, threads: u32, error: &str, right: impl Fn(&[u32])) {
    for o in schedules() {
        let with = |allow: Allowed| run(ptx, threads, &Options { allow, ..o.clone() });
        for refused in [Allowed::NONE, Allowed::ALL.without(relaxation)] {
            let e = match with(refused) {
                Ok(_) => panic!("{relaxation} is not needed with {o:?}\n{ptx}"),
                Err(e) => e.to_string(),
            };
            assert!(e.contains(error), "{relaxation} with {o:?}: {e}");
        }
        let hardware = Options {
            profile: Profile::Hardware,
            ..o.clone()
        };
        let runs = [
            with(Allowed::NONE.with(relaxation)),
            run(ptx, threads, &hardware),
        ];
        for result in runs {
            let (report, out) =
                result.unwrap_or_else(|e| panic!("{relaxation} with {o:?}: {e}\n{ptx}"));
            let notes: Vec<_> = report.notes.iter().map(|n| n.relaxation).collect();
            assert!(
                !notes.is_empty() && notes.iter().all(|n| *n == relaxation),
                "{notes:?}"
            );
            assert!(report.warnings.is_empty());
            right(&out);
        }
    }
}

fn all_sixteen(out: &[u32]) {
    assert!(out.iter().all(|v| f32::from_bits(*v) == 16.0), "{out:?}");
}

const LD_WAIT: &str = "    tcgen05.wait::ld.sync.aligned;\n";

#[test]
fn no_fence_after_a_wait() {
    let ptx = edited(&[("tcgen05.fence::after_thread_sync; //wait", "")]);
    let error = "a tcgen05.fence is missing";
    relies(Relaxation::AfterFence, &ptx, 128, error, all_sixteen);
}

#[test]
fn a_fence_before_the_synchronisation_is_needed_all_the_same() {
    // The loads' warps do not hand on that they have read: the columns are freed under them.
    let ptx = edited(&[("    bar.sync 0; //end\n", "")]);
    let hardware = Options {
        profile: Profile::Hardware,
        ..Options::default()
    };
    assert!(run(&ptx, 128, &hardware).is_err());
}

#[test]
fn registers_behind_the_scoreboard() {
    let stores = "    st.global.v4.u32 [%rd4+16], {%r24, %r25, %r26, %r27};\n";
    let after = format!("{stores}{LD_WAIT}");
    let ptx = edited(&[(LD_WAIT, ""), (stores, &after)]);
    let error = "is used before tcgen05.wait::ld";
    relies(Relaxation::LoadedRegisters, &ptx, 128, error, all_sixteen);
}

#[test]
fn lane_bits_of_no_account() {
    let ptx = edited(&[("add.u32 %r11, %r11, %r10", "mov.u32 %r11, %r10")]);
    relies(
        Relaxation::LaneBits,
        &ptx,
        128,
        "may touch lanes",
        all_sixteen,
    );
    // A column that is not there is an error all the same.
    let beyond = edited(&[("add.u32 %r11, %r11, %r10", "add.u32 %r11, %r10, 600")]);
    let hardware = Options {
        profile: Profile::Hardware,
        ..Options::default()
    };
    let e = run(&beyond, 128, &hardware).unwrap_err().to_string();
    assert!(e.contains("does not exist"), "{e}");
}

#[test]
fn a_copy_behind_an_mma() {
    let cp = "mov.u32 %r12, %r10;\n    tcgen05.cp.cta_group::1.128x128b [%r12], %rd2;\n";
    let ptx = edited(&[("//after mma", cp)]);
    let error = "tensor memory columns 0..4 written here and written before";
    relies(Relaxation::CpAfterMma, &ptx, 128, error, |out| {
        let copied = 0x3f80_3f80;
        let sixteen = f32::to_bits(16.0);
        assert_eq!(out[..5], [copied, copied, copied, copied, sixteen]);
    });
}

#[test]
fn rows_that_nothing_wrote() {
    // Of A, the last eight of 128 rows.
    let fill = "    st.shared.u32 [%r5], 0x3f803f80;\n";
    let most = "    setp.lt.u32 %p6, %r4, 960;\n    setp.ge.or.u32 %p6, %r4, 1024, %p6;\n    @%p6";
    let ptx = edited(&[(fill, &format!("{most}{fill}"))]);
    relies(Relaxation::Unwritten, &ptx, 128, "not initialised", |out| {
        all_sixteen(&out[..120 * 8]);
        let unusable = |v: &u32| f32::from_bits(*v).is_nan() || f32::from_bits(*v) > 1e30;
        assert!(out[120 * 8..].iter().all(unusable), "{:?}", &out[120 * 8..]);
    });
}

/// Warp 0 fills 128 bytes and makes them visible to bulk copies; the other warp ends.
const FILLED: &str = "setp.ge.u32 %p1, %t, 32;\n@%p1 bra END;\nst.shared.u32 [%mine], %t;\n\
                      fence.proxy.async.shared::cta;\nbar.warp.sync 0xffffffff;\n";
const STORE: &str = "cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 128;\n\
                     cp.async.bulk.commit_group;\n";

fn counted(out: &[u32]) {
    assert!(
        out[..32].iter().enumerate().all(|(i, v)| *v == i as u32),
        "{out:?}"
    );
}

#[test]
fn a_store_by_all_lanes() {
    let wait = "cp.async.bulk.wait_group 0;\n";
    let ptx = kernel("", &format!("{FILLED}{STORE}{wait}END:"));
    relies(
        Relaxation::WarpStores,
        &ptx,
        64,
        "that an asynchronous operation in flight writes",
        counted,
    );
}

#[test]
fn a_store_that_outlives_its_cta() {
    let one = STORE.replacen("cp.async", "@%p8 bra END;\ncp.async", 1);
    let ptx = kernel("", &format!("{FILLED}{one}END:"));
    relies(
        Relaxation::UnreadStores,
        &ptx,
        64,
        "may still be in use",
        counted,
    );
}

#[test]
fn generic_addresses_of_shared_memory() {
    let generic = "mov.u64 %d1, buf;\ncvta.shared.u64 %d1, %d1;\nmul.wide.u32 %d2, %t, 4;\nadd.s64 %d1, %d1, %d2;\n";
    let rest = "ld.shared.u32 %r1, [%mine];\nst.global.u32 [%w], %r1;\n";
    let whole = kernel("", &format!("{generic}st.shared.u32 [%d1], %t;\n{rest}"));
    let cut = "cvt.u32.u64 %r2, %d1;\nst.shared.u32 [%r2], %t;\n";
    let cut = kernel("", &format!("{generic}{cut}{rest}"));
    for ptx in [whole, cut] {
        let error = "a generic address where one of shared memory is expected";
        relies(Relaxation::GenericShared, &ptx, 64, error, counted);
    }
}

#[test]
fn lanes_that_write_the_same_bytes() {
    let body =
        "st.shared.u32 [%s], 3;\nbar.sync 0;\nld.shared.u32 %r1, [%s];\nst.global.u32 [%w], %r1;\n";
    let ptx = kernel("", body);
    relies(
        Relaxation::SameBytes,
        &ptx,
        32,
        "nothing orders the two",
        |out| {
            assert!(out[..32].iter().all(|v| *v == 3));
        },
    );
}

#[test]
fn hazards_may_be_warnings_or_nothing() {
    let body = "st.shared.u32 [%mine], %t;\nxor.b32 %r1, %mine, 128;\nld.shared.u32 %r2, [%r1];\n\
                st.global.u32 [%w], %r2;\n";
    let ptx = kernel("", body);
    let o = |hazards| Options {
        hazards,
        uninitialised: ptx_sim::Uninitialised::Ignore,
        ..Options::default()
    };
    let e = run(&ptx, 64, &o(HazardChecks::Error)).unwrap_err();
    assert!(e.to_string().contains("nothing orders the two"), "{e}");
    let (report, _) = run(&ptx, 64, &o(HazardChecks::Warn)).unwrap();
    let all = &report.warnings;
    assert!(
        !all.is_empty()
            && all
                .iter()
                .all(|w| w.message.contains("nothing orders the two"))
    );
    assert!(all[0].thread.is_some());
    let (report, _) = run(&ptx, 64, &o(HazardChecks::Off)).unwrap();
    assert!(report.warnings.is_empty());
}
