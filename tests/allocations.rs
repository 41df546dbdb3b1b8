//! Prepared calls in host memory allocate nothing. One test: it counts what all threads of the process do.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use half::{bf16, f16};
use nvfp4_gemv::cpu::{Accuracy, Workers};
use nvfp4_gemv::{
    Experts, GlobalScale, Linear, Mlp, Options, Output, PreparedGemv, ScaleLayout, Vectors,
    convert_scales,
};

/// An allocator that counts.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to another allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: this function's own contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Vectors of a type, some of which the CPU's BF16 instructions do not take: they have another form there.
struct X {
    f32: Vec<f32>,
    f16: [Vec<f16>; 2],
    bf16: [Vec<bf16>; 2],
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl X {
    fn new(n: usize, k: usize) -> Self {
        let f32: Vec<f32> = (0..n * k).map(|i| (i % 7) as f32 - 3.0).collect();
        let f16: Vec<_> = f32.iter().map(|&x| f16::from_f32(x)).collect();
        let bf16: Vec<_> = f32.iter().map(|&x| bf16::from_f32(x)).collect();
        let (mut odd_f16, mut odd_bf16) = (f16.clone(), bf16.clone());
        odd_f16[0] = f16::INFINITY;
        odd_bf16[0] = bf16::from_f32(1e-38);
        Self {
            f32,
            f16: [f16, odd_f16],
            bf16: [bf16, odd_bf16],
            codes: vec![0x31; n * k / 2],
            scales: vec![0x38; n * k / 16],
        }
    }

    fn all(&self) -> [Vectors<'_>; 6] {
        let global = GlobalScale::ONE;
        [
            Vectors::of(&self.f32),
            Vectors::of(&self.f16[0]),
            Vectors::of(&self.f16[1]),
            Vectors::of(&self.bf16[0]),
            Vectors::of(&self.bf16[1]),
            Vectors::nvfp4(&self.codes, &self.scales, ScaleLayout::Linear, global),
        ]
    }
}

/// Allocations of the first call, and of the next ones.
fn allocations(mut call: impl FnMut()) -> usize {
    let before = ALLOCATIONS.load(Relaxed);
    (0..CALLS).for_each(|_| call());
    ALLOCATIONS.load(Relaxed) - before
}

const CALLS: usize = 2;

/// Has rayon make the room that its queues and threads need: the first work of a thread does so.
fn warm_up() {
    fn halves(depth: u32) {
        if depth > 0 {
            rayon::join(|| halves(depth - 1), || halves(depth - 1));
        }
    }
    (0..200).for_each(|_| halves(8));
}

/// Everything that is prepared, on the pool of threads that is current.
fn calls(allowed: usize) {
    warm_up();
    // One that a thread computes by itself, and one for several.
    for (m, k, all) in [(48, 272, [4, 1]), (32, 4096, [20, 1])] {
        let dense = |m: usize, k: usize| {
            let values: Vec<f32> = (0..m * k).map(|i| (i % 13) as f32 - 6.0).collect();
            Linear::from_dense(&values, m, k).unwrap()
        };
        let (linear, down) = (dense(m, k), dense(32, m));
        let tiled = {
            let (w, to) = (linear.weights(), ScaleLayout::Tiled128x4);
            let scales = convert_scales(w.scales(), w.layout(), to, m, k, 1).unwrap();
            Linear::new(m, k, w.codes().to_vec(), scales, to, w.global()).unwrap()
        };
        let in_bytes = linear.clone().with_accuracy(Accuracy::Bytes);
        for layer in [linear, tiled, in_bytes] {
            let mlp = Mlp::new(layer.clone(), layer.clone(), down.clone()).unwrap();
            for n in all {
                let (x, mut y) = (X::new(n, k), vec![0.0f32; n * m]);
                for vectors in x.all() {
                    let activation = vectors.activation();
                    let what = format!("{m}x{k} n={n} {activation}");
                    layer.prepare(n, activation).unwrap();
                    let run = || layer.forward(&vectors, n, Output::of(&mut y)).unwrap();
                    let count = allocations(run);
                    assert!(count <= allowed, "{what}: {count}");

                    let (shape, weights) = (layer.shape(n).unwrap(), layer.weights());
                    let prepared = PreparedGemv::new(&shape, &weights, &Options::new()).unwrap();
                    prepared.reserve(activation).unwrap();
                    let count = allocations(|| prepared.run(&vectors, Output::of(&mut y)).unwrap());
                    assert!(count <= allowed, "prepared, {what}: {count}");

                    mlp.prepare(n, activation).unwrap();
                    let y = &mut y[..n * 32];
                    let count = allocations(|| mlp.forward(&vectors, n, Output::of(y)).unwrap());
                    assert!(count <= 4 * allowed, "MLP, {what}: {count}");

                    let experts = Experts::new(vec![mlp.clone(); 5]).unwrap();
                    experts.prepare(n, 3, activation).unwrap();
                    // Experts with a vector, with several and with none.
                    let id = |slot: usize| [4, -1, (slot / 3).min(1) as i32][slot % 3];
                    let ids: Vec<i32> = (0..3 * n).map(id).collect();
                    let weights = vec![0.5; 3 * n];
                    let count = allocations(|| {
                        let y = Output::of(y);
                        experts.forward(&vectors, n, &ids, &weights, y).unwrap();
                    });
                    assert!(count <= 16 * allowed, "experts, {what}: {count}");
                }
            }
        }
    }
}

#[test]
fn prepared_calls_allocate_nothing() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3);
    pool.build().unwrap().install(|| calls(0));
    Workers::new(3).unwrap().install(|| calls(0));
    // From outside of a pool, rayon's queue makes room for 63 calls at a time. A call queues at most twice: to prepare
    // vectors, and to multiply them.
    calls(1);
}
