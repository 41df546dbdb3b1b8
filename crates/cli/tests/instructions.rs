//! Instructions that the host executes for a call that is not prepared, up to the part that needs CUDA. The call checks
//! its operands by address, chooses a kernel and its config, and plans launches. A child process executes the
//! instructions one at a time: counts are the same on every run, and on a busy machine. Counts depend on the compiler,
//! and on the processor, by which libc chooses how to copy. So budgets are a fifth above the counts of Rust 1.95 on a
//! Xeon with AVX-512.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::hint::black_box;
use std::ptr;
use std::thread;

use libc::{
    PTRACE_CONT, PTRACE_SINGLESTEP, PTRACE_TRACEME, SIGSTOP, SIGTRAP, SIGUSR1, WIFSTOPPED,
    WSTOPSIG, c_int, c_uint,
};
use nvfp4_gemv::dispatch::plan;
use nvfp4_gemv::kernel::Call;
use nvfp4_gemv::{
    Activation, Dims, FloatType, GlobalScale, Gpu, Kernel, Options, RawOutput, RawVectors,
    RawWeights, ScaleLayout, Shape, Strides,
};

/// Instructions of `work` in a child process, after `warm_up`: tables are read at the first use. `None` if a sandbox
/// lets nobody trace.
fn instructions(warm_up: impl Fn(), work: impl Fn()) -> Option<u64> {
    const NOTHING: *mut () = ptr::null_mut();
    warm_up();
    // SAFETY: the child runs `work`, which takes no lock that another thread may hold, and otherwise only what may run
    // after a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: the child's own signals; `ptrace` is given nothing to follow.
        unsafe {
            if libc::ptrace(PTRACE_TRACEME, 0, NOTHING, NOTHING) != 0 {
                libc::_exit(1);
            }
            libc::raise(SIGSTOP);
            libc::raise(SIGUSR1);
        }
        work();
        // SAFETY: as above.
        unsafe {
            libc::raise(SIGUSR1);
            libc::_exit(0)
        }
    }
    // The signal that the child stops for, or 0 if the child ends.
    let stop = || -> c_int {
        let mut status = 0;
        // SAFETY: the address is of the variable.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        if WIFSTOPPED(status) {
            WSTOPSIG(status)
        } else {
            0
        }
    };
    let go = |request: c_uint| {
        // SAFETY: the child has stopped, and is this process's; it is given nothing to follow.
        unsafe { libc::ptrace(request, child, NOTHING, NOTHING) };
        stop()
    };
    if stop() != SIGSTOP {
        return None;
    }
    assert_eq!(go(PTRACE_CONT), SIGUSR1);
    let mut count = 0;
    let end = loop {
        match go(PTRACE_SINGLESTEP) {
            SIGTRAP => count += 1,
            other => break other,
        }
    };
    assert_eq!(end, SIGUSR1);
    assert_eq!(go(PTRACE_CONT), 0);
    Some(count)
}

/// Instructions around the work: those of the signals.
fn nothing() -> Option<u64> {
    instructions(|| (), || ())
}

fn shape(m: usize, k: usize, n: usize) -> Shape {
    Shape::new(Dims { m, n, k, l: 1 }).unwrap()
}

/// A call, from operands by address to its plan.
fn call(shape: &Shape, activation: Activation, gpu: &Gpu, options: &Options<'_>) {
    let at = |i: u64| i << 40;
    let strides = |row: usize| Strides {
        row,
        batch: row * shape.n(),
    };
    let weights = RawWeights {
        codes: at(1),
        scales: at(2),
        layout: ScaleLayout::Linear,
        global: GlobalScale::ONE,
        row_alpha: 0,
        row_alpha_batch_stride: 0,
        select: None,
    };
    let vectors = match activation {
        Activation::Nvfp4 => RawVectors::Nvfp4 {
            codes: at(3),
            code_strides: strides(shape.row_code_bytes()),
            scales: at(4),
            layout: ScaleLayout::Linear,
            scale_strides: strides(shape.blocks()),
            global: GlobalScale::ONE,
            vector_alpha: 0,
            digits: 1,
        },
        _ => RawVectors::Dense {
            element: FloatType::Bf16,
            values: at(3),
            strides: strides(2 * shape.k()),
        },
    };
    let output = RawOutput::packed(at(5), FloatType::Bf16);
    let operands = black_box((weights, vectors, output));
    let call = Call::new(shape, &operands.0, &operands.1, &operands.2).unwrap();
    black_box(plan(&call, gpu, options).unwrap());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "of optimised code: cargo test --release")]
fn calls_that_are_not_prepared_stay_within_their_budget() {
    let Some(nothing) = nothing() else {
        println!("NOT COUNTED: processes cannot be traced here");
        return;
    };
    let gpu = &Gpu {
        name: "NVIDIA H200".into(),
        ..Gpu::of_compute_capability((9, 0), "80;90a;100f;120f")
    };
    let automatic = Options::new();
    // SAFETY: nothing is launched.
    let chained = unsafe { automatic.chained() };
    let ring = automatic.kernel(Kernel::Ring);
    let (nvfp4, bf16) = (Activation::Nvfp4, Activation::Bf16);
    let mut failed = Vec::new();
    for (name, [m, k, n], activation, options, budgets) in [
        (
            "4096x4096",
            [4096, 4096, 1],
            nvfp4,
            automatic,
            [23_500, 3700],
        ),
        ("chained", [4096, 4096, 1], nvfp4, chained, [23_500, 3700]),
        ("with ring", [4096, 4096, 1], nvfp4, ring, [9100, 3700]),
        (
            "28672x8192, 8 of bf16",
            [28672, 8192, 8],
            bf16,
            automatic,
            [51_500, 3700],
        ),
        (
            "not measured",
            [4096, 6400, 1],
            nvfp4,
            automatic,
            [122_000, 3700],
        ),
        (
            "not measured, 3 of bf16",
            [6400, 4112, 3],
            bf16,
            automatic,
            [351_000, 3700],
        ),
    ] {
        let work = || call(&shape(m, k, n), activation, gpu, &options);
        let other = || call(&shape(128, 256, 1), nvfp4, gpu, &automatic);
        // Each thread remembers its choices.
        let count = |again: bool| {
            let count = || match again {
                false => instructions(other, work),
                true => instructions(work, work),
            };
            let count = thread::scope(|scope| scope.spawn(count).join().unwrap());
            count.expect("it could trace before") - nothing
        };
        for ((when, count), budget) in [("at first", count(false)), ("again", count(true))]
            .into_iter()
            .zip(budgets)
        {
            println!("{name}, {when}: {count} instructions, of {budget}");
            if count > budget {
                failed.push((name, when, count, budget));
            }
        }
    }
    assert!(failed.is_empty(), "over budget: {failed:?}");
}
