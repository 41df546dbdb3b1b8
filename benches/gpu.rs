//! Time on the first GPU, by CUDA events, with throughput in weight bytes. Cold: launches take turns over more weights
//! than twice the L2 cache holds. Warm: the weights are always the same.
//!
//! `cargo bench --bench gpu [-- FILTER]`. `nvfp4-gemv bench` compares with the memory's ceiling. This benchmark follows
//! single kernels from change to change, with criterion's statistics.

use std::sync::Arc;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use half::{bf16, f16};
use nvfp4_gemv::measure::{Replay, Stopwatch, copies_for_cold_l2};
use nvfp4_gemv::{
    Activation, Device, Dims, GlobalScale, Gpu, Kernel, Nvfp4Vectors, Operands, Options, Output,
    ScaleLayout, Shape, Target, VectorScale, Vectors, Weights, gemv_on_device, raw, select,
};

/// Nanoseconds between two events on a stream.
#[derive(Clone)]
struct CudaEvents(Arc<Stopwatch>);

impl Measurement for CudaEvents {
    type Intermediate = ();
    type Value = f64;

    fn start(&self) {
        self.0.start().expect("an event");
    }

    fn end(&self, (): ()) -> f64 {
        self.0.stop().expect("the work") * 1e9
    }

    fn add(&self, a: &f64, b: &f64) -> f64 {
        a + b
    }

    fn zero(&self) -> f64 {
        0.0
    }

    fn to_f64(&self, nanoseconds: &f64) -> f64 {
        *nanoseconds
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        // Wall time is in nanoseconds too.
        static WALL: WallTime = WallTime;
        WALL.formatter()
    }
}

/// Launches of a graph at least, so that what starts it does not count.
const LAUNCHES: usize = 48;
const LAYOUT: ScaleLayout = ScaleLayout::Tiled128x4;

/// Weights, one copy behind another, and vectors.
struct Data {
    shape: Shape,
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    x_codes: CudaSlice<u8>,
    x_scales: CudaSlice<u8>,
    x_wide: CudaSlice<bf16>,
}

impl Data {
    fn new(stream: &Arc<CudaStream>, shape: Shape, copies: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes = |count: usize, below: u16| {
            let bytes: Vec<u8> = (0..count).map(|_| random.u16(0..below) as u8).collect();
            stream.clone_htod(&bytes).expect("device memory")
        };
        let repeated = |one: CudaSlice<u8>| {
            let mut all = stream
                .alloc_zeros::<u8>(one.len() * copies)
                .expect("device memory");
            for at in (0..all.len()).step_by(one.len()) {
                let mut copy = all.slice_mut(at..at + one.len());
                stream.memcpy_dtod(&one, &mut copy).expect("a copy");
            }
            all
        };
        let (n, k) = (shape.n() * shape.l(), shape.k());
        let wide: Vec<bf16> = (0..n * k)
            .map(|i| bf16::from_f32((i % 13) as f32 - 6.0))
            .collect();
        Self {
            shape,
            codes: repeated(bytes(shape.weight_code_bytes(), 256)),
            scales: repeated(bytes(shape.weight_scale_bytes(LAYOUT), 0x7f)),
            x_codes: bytes(n * k / 2, 256),
            x_scales: bytes(LAYOUT.bytes(shape.n(), shape.blocks()) * shape.l(), 0x7f),
            x_wide: stream.clone_htod(&wide).expect("device memory"),
        }
    }

    fn weights(&self, copy: usize) -> Weights<'_, Device> {
        let codes = self.shape.weight_code_bytes();
        let scales = self.shape.weight_scale_bytes(LAYOUT);
        Weights::on_device(
            &self.shape,
            self.codes.slice(copy * codes..(copy + 1) * codes),
            self.scales.slice(copy * scales..(copy + 1) * scales),
            LAYOUT,
            GlobalScale::ONE,
        )
        .expect("weights")
    }

    fn vectors(&self, activation: Activation) -> Vectors<'_, Device> {
        match activation {
            Activation::Bf16 => Vectors::on_device(self.x_wide.as_view()),
            _ => Vectors::Nvfp4(Nvfp4Vectors::new(
                self.x_codes.as_view(),
                self.x_scales.as_view(),
                LAYOUT,
                VectorScale::Shared(GlobalScale::ONE),
            )),
        }
    }
}

fn main() {
    if let Err(reason) = raw::device_count() {
        println!("nothing to measure: {reason}");
        return;
    }
    let gpu = raw::gpu(0).expect("a device");
    let context = CudaContext::new(0).expect("a context");
    // SAFETY: all work goes to the one stream below, whose order makes events unnecessary.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("a stream");
    let events = CudaEvents(Arc::new(Stopwatch::new(&stream).expect("events")));
    let mut criterion = Criterion::default()
        .with_measurement(events.clone())
        .configure_from_args();
    for (m, n, k, l) in [
        (7168, 1, 16384, 1),
        (4096, 1, 7168, 8),
        (7168, 1, 2048, 4),
        (4096, 1, 4096, 1),
        (4096, 4, 4096, 1),
    ] {
        let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
        let copies = copies_for_cold_l2(shape.weight_bytes(), gpu.l2_bytes);
        let data = Data::new(&stream, shape, copies);
        for (cache, copies) in [("cold", copies), ("warm", 1)] {
            bench(&mut criterion, &events, &stream, &gpu, &data, cache, copies);
        }
    }
    criterion.final_summary();
}

fn bench(
    criterion: &mut Criterion<CudaEvents>,
    events: &CudaEvents,
    stream: &Arc<CudaStream>,
    gpu: &Gpu,
    data: &Data,
    cache: &str,
    copies: usize,
) {
    let shape = &data.shape;
    let mut group = criterion.benchmark_group(format!("{cache} {shape}"));
    group.throughput(Throughput::Bytes(shape.weight_bytes() as u64));
    group.sample_size(20);
    for &kernel in Kernel::ALL {
        for activation in [Activation::Nvfp4, Activation::Bf16] {
            let operands = Operands::new(activation, LAYOUT);
            let options = Options::new().kernel(kernel);
            if select(shape, &operands, Target::Gpu(gpu), &options).is_err() {
                continue;
            }
            let x = data.vectors(activation);
            let mut y = stream
                .alloc_zeros::<f16>(shape.outputs())
                .expect("device memory");
            let launches = copies.max(LAUNCHES);
            let mut launch = |i: usize| {
                let (weights, y) = (data.weights(i % copies), Output::on_device(y.as_view_mut()));
                gemv_on_device(stream, shape, &weights, &x, y, &options).map(drop)
            };
            // Once outside of the graph: the kernel may have to be loaded.
            launch(0).expect("a launch");
            // SAFETY: weights, vectors and output live to the end of this turn, which waits for every
            // replay.
            let replay = unsafe { Replay::capture(stream, launches, launch) }.expect("a graph");
            group.bench_function(BenchmarkId::new(kernel.name(), activation), |b| {
                // Whole replays, and the part of them that the iterations are.
                b.iter_custom(|iterations| {
                    let replays = iterations.div_ceil(launches as u64);
                    events.start();
                    for _ in 0..replays {
                        replay.enqueue().expect("a replay");
                    }
                    events.end(()) * iterations as f64 / (replays * launches as u64) as f64
                });
            });
        }
    }
    group.finish();
}
