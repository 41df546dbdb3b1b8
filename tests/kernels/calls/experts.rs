//! MLPs and experts in a device's memory, against the same layers on the host, which quantise as the device does.

use std::sync::Arc;

use cudarc::driver::CudaSlice;
use half::bf16;
use nvfp4_gemv::dispatch::select;
use nvfp4_gemv::kernel::Config;
use nvfp4_gemv::kernel::combine::Combine;
use nvfp4_gemv::quantize::quantize_vectors_or_nan;
use nvfp4_gemv::raw;
use nvfp4_gemv::{
    Activation, DenseVectors, Error, Experts, ExpertsBuffers, ExpertsOnDevice, FloatType, Gate,
    GlobalScale, Linear, MatricesOnDevice, Mlp, Operands, Options, Output, QuantizedVectors,
    RawOutput, RowOrder, ScaleLayout, Shape, Strides, Target, Vectors, Weights, gemv_on_device,
};

use crate::support::gpu::Gpu;
use crate::support::sized;

crate::trials! {
    gpu:
        an_mlp_is_near_the_host, experts_are_near_the_host, bundled_tokens_are_near_the_host,
        few_launches_have_the_bits_of_five, ids_that_name_no_expert,
        replays_with_other_ids, no_tokens_and_no_slots, refusals;
    long_gpu: times;
}

/// Elements of a vector and of a result; rows of gate, and of up.
const K: usize = 512;
const M: usize = 272;

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut r = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| r.f32() * 2.0 - 1.0).collect()
}

fn layer(rows: usize, k: usize, seed: u64) -> Linear {
    let scale = 1.0 + seed as f32;
    let values: Vec<f32> = numbers(rows * k, seed)
        .into_iter()
        .map(|x| x * scale / 16.0)
        .collect();
    Linear::from_dense(&values, rows, k).unwrap()
}

/// MLPs of different global scales: gate and up apart, or joined in an order; with biases and factors, or without.
#[derive(Clone, Copy, Debug)]
struct Kind {
    joined: Option<RowOrder>,
    more: bool,
    gate: Gate,
}

const KINDS: [Kind; 3] = [
    Kind {
        joined: None,
        more: false,
        gate: Gate::Silu,
    },
    Kind {
        joined: Some(RowOrder::Interleaved),
        more: true,
        gate: Gate::GPT_OSS,
    },
    Kind {
        joined: Some(RowOrder::Stacked),
        more: true,
        gate: Gate::GeluTanh,
    },
];

/// An MLP, and its layers.
struct Made {
    mlp: Mlp,
    gate_up: Vec<Linear>,
    order: RowOrder,
    down: Linear,
    gate: Gate,
}

fn make(kind: Kind, seed: u64) -> Made {
    make_of(kind, M, seed)
}

/// With another number of rows of gate, and of up.
fn make_of(kind: Kind, rows: usize, seed: u64) -> Made {
    let more = |layer: Linear, seed| match kind.more {
        false => layer,
        true => {
            let rows = layer.rows();
            let alpha: Vec<f32> = numbers(rows, seed).iter().map(|x| 1.0 + x / 4.0).collect();
            let layer = layer.with_row_alpha(alpha).unwrap();
            layer.with_bias(numbers(rows, seed + 1)).unwrap()
        }
    };
    let down = more(layer(K, rows, seed), 50 + seed);
    let (gate_up, order, mlp) = match kind.joined {
        None => {
            let [gate, up] = [1, 2].map(|i| more(layer(rows, K, seed + i), 60 + seed + i));
            let mlp = Mlp::new(gate.clone(), up.clone(), down.clone());
            (vec![gate, up], RowOrder::Stacked, mlp)
        }
        Some(order) => {
            let both = more(layer(2 * rows, K, seed + 3), 70 + seed);
            (
                vec![both.clone()],
                order,
                Mlp::joined(both, order, down.clone()),
            )
        }
    };
    Made {
        mlp: mlp.unwrap().with_gate(kind.gate).unwrap(),
        gate_up,
        order,
        down,
        gate: kind.gate,
    }
}

/// A product on the host with vectors that are quantised as the device does.
fn product(layers: &[Linear], x: &[f32], n: usize) -> Vec<f32> {
    let x = quantize_vectors_or_nan(x, n, layers[0].k(), None).unwrap();
    let all = layers.iter().map(|layer| {
        let mut y = vec![0.0f32; n * layer.rows()];
        layer.forward(&x.vectors(), n, Output::of(&mut y)).unwrap();
        y
    });
    let all: Vec<Vec<f32>> = all.collect();
    let rows = |v: usize| {
        all.iter()
            .flat_map(move |y| y[v * y.len() / n..][..y.len() / n].iter())
    };
    (0..n).flat_map(rows).copied().collect()
}

/// An MLP of the host, with quantised vectors before each product.
fn on_host(made: &Made, x: &[f32], n: usize) -> Vec<f32> {
    let (sums, rows) = (product(&made.gate_up, x, n), made.down.k());
    let between = sums.chunks_exact(2 * rows).flat_map(|sums| {
        (0..rows).map(|i| match made.order {
            RowOrder::Stacked => made.gate.of(sums[i], sums[rows + i]),
            RowOrder::Interleaved => made.gate.of(sums[2 * i], sums[2 * i + 1]),
        })
    });
    let between: Vec<f32> = between.collect();
    product(std::slice::from_ref(&made.down), &between, n)
}

/// Sums in another order move a number to the next code now and then, which is seen in all results of a vector.
fn assert_near(found: &[f32], expected: &[f32], what: &dyn std::fmt::Debug) {
    let most = expected.iter().fold(0.0f32, |most, y| most.max(y.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= 0.02 * most,
            "{what:?}: element {i} is {found}, {expected} on the host"
        );
    }
    assert_eq!(found.len(), expected.len());
    assert!(most > 0.0);
}

fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|x| bf16::from_f32(*x)).collect()
}

fn an_mlp_is_near_the_host() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    for (i, kind) in KINDS.into_iter().enumerate() {
        let made = make(kind, i as u64);
        for layout in ScaleLayout::ALL {
            let mlp = made.mlp.on_device(stream, layout).unwrap();
            stream.synchronize().unwrap();
            // SAFETY: the weights were copied, and laid out, before; no kernel writes them any more.
            let chained = unsafe { mlp.clone().chained() };
            for n in [1, 3, 17] {
                let x = rounded(&numbers(n * K, n as u64));
                let values: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
                let expected = on_host(&made, &values, n);
                let x = gpu.upload(&x);
                for mlp in [&mlp, &chained] {
                    let mut buffers = mlp.buffers(stream, n).unwrap();
                    let mut y = gpu.upload(&vec![f32::NAN; n * K]);
                    let output = Output::on_device(y.as_view_mut());
                    let x = Vectors::on_device(x.as_view());
                    mlp.forward(stream, &mut buffers, &x, output).unwrap();
                    let y = stream.clone_dtoh(&y).unwrap();
                    assert_near(&y, &expected, &(kind, layout, n));
                }
            }
        }
    }
}

fn experts(kind: Kind, count: usize) -> (Vec<Made>, Experts) {
    experts_of(kind, M, count)
}

fn experts_of(kind: Kind, rows: usize, count: usize) -> (Vec<Made>, Experts) {
    let made: Vec<Made> = (0..count).map(|i| make_of(kind, rows, i as u64)).collect();
    let mlps: Vec<Mlp> = made.iter().map(|made| made.mlp.clone()).collect();
    (made, Experts::new(mlps).unwrap())
}

/// Runs a call with these ids and weights, and returns its results. Something else lies between vectors.
#[allow(clippy::too_many_arguments, reason = "operands of a call")]
fn run(
    gpu: &Gpu,
    experts: &ExpertsOnDevice,
    buffers: &mut ExpertsBuffers,
    x: &[bf16],
    ids: &[i32],
    weights: &[f32],
    residual: &[f32],
) -> Vec<f32> {
    let apart = match x.len() / K {
        0 => x.to_vec(),
        _ => x.chunks(K).collect::<Vec<_>>().join(&[bf16::NAN; 8][..]),
    };
    let (x, ids, weights) = (gpu.upload(&apart), gpu.upload(ids), gpu.upload(weights));
    let mut y = gpu.upload(residual);
    let output = Output::on_device(y.as_view_mut()).accumulating();
    let (row, batch) = (K + 8, apart.len() + 8);
    let x = DenseVectors::new(x.as_view()).with_strides(Strides { row, batch });
    let x = Vectors::Bf16(x);
    let (ids, weights) = (ids.as_view(), weights.as_view());
    experts
        .forward(&gpu.stream, buffers, &x, &ids, &weights, output)
        .unwrap();
    gpu.stream.clone_dtoh(&y).unwrap()
}

fn experts_are_near_the_host() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    for (i, kind) in KINDS.into_iter().enumerate() {
        let (made, host) = experts(kind, 5);
        let layout = ScaleLayout::ALL[i % 2];
        let device = host.on_device(stream, layout).unwrap();
        for (tokens, slots) in [(1, 2), (3, 4), (2, 1)] {
            assert_near_the_host(&gpu, &made, &device, tokens, slots, &kind);
        }
    }
}

/// Calls with an id of -1 now and then, twice with the same buffers.
fn assert_near_the_host(
    gpu: &Gpu,
    made: &[Made],
    device: &ExpertsOnDevice,
    tokens: usize,
    slots: usize,
    kind: &Kind,
) {
    let mut r = fastrand::Rng::with_seed(tokens as u64);
    let x = rounded(&numbers(tokens * K, 9));
    let values: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    let ids: Vec<i32> = (0..tokens * slots)
        .map(|_| r.i32(-1..made.len() as i32))
        .collect();
    let weights = numbers(tokens * slots, 10);
    let residual = numbers(tokens * K, 11);
    let mut expected = residual.clone();
    for (slot, &id) in ids.iter().enumerate() {
        let token = slot / slots;
        if let Some(expert) = usize::try_from(id).ok().map(|id| &made[id]) {
            let y = on_host(expert, &values[token * K..][..K], 1);
            let sums = expected[token * K..][..K].iter_mut();
            sums.zip(y).for_each(|(sum, y)| *sum += weights[slot] * y);
        }
    }
    let mut buffers = device.buffers(&gpu.stream, tokens, slots).unwrap();
    for _ in 0..2 {
        let found = run(gpu, device, &mut buffers, &x, &ids, &weights, &residual);
        assert_near(&found, &expected, &(kind, tokens, slots, &ids));
    }
}

/// So many tokens of so few experts, and matrices so large, that both products bundle tokens, if the GPU can: a Hopper.
fn bundled_tokens_are_near_the_host() {
    const ROWS: usize = 384;
    const EXPERTS: usize = 5;
    const SLOTS: usize = 8;
    let gpu = Gpu::first();
    for (i, kind) in KINDS.into_iter().enumerate() {
        let (made, host) = experts_of(kind, ROWS, EXPERTS);
        let layout = ScaleLayout::ALL[i % 2];
        let plain = host.on_device(&gpu.stream, layout).unwrap();
        gpu.stream.synchronize().unwrap();
        // SAFETY: no kernel writes the weights any more.
        let chained = unsafe { plain.clone().chained() };
        for (tokens, device) in [(24, &plain), (41, &chained)] {
            for (m, k) in [(2 * ROWS, K), (K, ROWS)] {
                let shape = sized(m, 1, k, tokens * SLOTS);
                let operands = Operands {
                    select: true,
                    matrices: EXPERTS,
                    late: true,
                    ..Operands::new(Activation::Nvfp4, layout).with_workspace(u64::MAX)
                };
                let target = Target::Gpu(&gpu.info);
                let choice = select(&shape, &operands, target, &Options::new()).unwrap();
                let bundles =
                    matches!(choice.config, Some(Config::Packed(config)) if config.bundle);
                assert_eq!(bundles, gpu.info.compute_capability == (9, 0), "{shape}");
            }
            assert_near_the_host(&gpu, &made, device, tokens, SLOTS, &kind);
        }
    }
}

/// The buffers of a call by hand: a layer of experts in pieces, each of which takes a launch.
struct Pieces {
    gate_up: Side,
    down: Side,
    gate: Gate,
    order: RowOrder,
}

/// Matrices of a device, with factors and a bias of each row.
struct Side {
    shape: Shape,
    codes: Arc<CudaSlice<u8>>,
    scales: Arc<CudaSlice<u8>>,
    row_alpha: Arc<CudaSlice<f32>>,
    bias: Arc<CudaSlice<f32>>,
    layout: ScaleLayout,
}

impl Side {
    fn new(gpu: &Gpu, (m, k, l): (usize, usize, usize), layout: ScaleLayout) -> Self {
        let shape = sized(m, 1, k, l);
        let mut rng = fastrand::Rng::with_seed((m + k) as u64);
        let mut bytes = |count: usize, least: u8, end: u8| -> Vec<u8> {
            (0..count).map(|_| rng.u8(least..end)).collect()
        };
        let codes = bytes(shape.weight_code_bytes(), 0, 255);
        // 0.25 to 0.9375.
        let scales = bytes(shape.weight_scale_bytes(layout), 0x28, 0x37);
        let small = |seed| -> Vec<f32> {
            let numbers = numbers(l * m, seed).into_iter();
            numbers.map(|x| (1.0 + x / 4.0) / 16.0).collect()
        };
        Self {
            shape,
            codes: gpu.upload(&codes).into(),
            scales: gpu.upload(&scales).into(),
            row_alpha: gpu.upload(&small(1)).into(),
            bias: gpu.upload(&small(2)).into(),
            layout,
        }
    }

    fn matrices(&self) -> MatricesOnDevice {
        let (shape, layout) = (&self.shape, self.layout);
        let (codes, scales) = (self.codes.clone(), self.scales.clone());
        let (count, one) = (shape.l(), GlobalScale::ONE);
        let matrices =
            MatricesOnDevice::new(count, shape.m(), shape.k(), codes, scales, layout, one);
        let matrices = matrices.unwrap().with_row_alpha(self.row_alpha.clone());
        matrices.unwrap().with_bias(self.bias.clone()).unwrap()
    }

    /// The shape of a product with so many vectors.
    fn of(&self, batches: usize) -> Shape {
        sized(self.shape.m(), 1, self.shape.k(), batches)
    }

    /// A product of quantised vectors.
    fn product(
        &self,
        gpu: &Gpu,
        x: &QuantizedVectors,
        ids: &CudaSlice<i32>,
        batches: usize,
    ) -> CudaSlice<f32> {
        let shape = self.of(batches);
        let mut y = gpu.upload(&vec![f32::NAN; shape.outputs()]);
        let (codes, scales) = (self.codes.as_view(), self.scales.as_view());
        let one = GlobalScale::ONE;
        let weights = Weights::on_device(&self.shape, codes, scales, self.layout, one).unwrap();
        let weights = weights
            .with_row_alpha_on_device(self.row_alpha.as_view())
            .unwrap();
        let weights = weights.select_on_device(ids.as_view()).late().distinct();
        let output = Output::on_device(y.as_view_mut()).with_bias_on_device(self.bias.as_view());
        let options = Options::new();
        gemv_on_device(
            &gpu.stream,
            &shape,
            &weights,
            &x.vectors(),
            output,
            &options,
        )
        .unwrap();
        y
    }
}

impl Pieces {
    /// A call in five launches.
    fn by_hand(
        &self,
        gpu: &Gpu,
        x: &CudaSlice<bf16>,
        ids: &CudaSlice<i32>,
        weights: &CudaSlice<f32>,
        (tokens, slots): (usize, usize),
    ) -> Vec<u32> {
        let (stream, linear) = (&gpu.stream, ScaleLayout::Linear);
        let pairs = tokens * slots;
        let shape = self.gate_up.of(pairs);
        let quantized = QuantizedVectors::new(stream, &shape, linear).unwrap();
        let mut quantized = quantized.with_copies(slots).unwrap();
        let x = Vectors::on_device(x.as_view());
        quantized.quantize(stream, &x).unwrap();
        let sums = self.gate_up.product(gpu, &quantized, ids, pairs);
        let shape = self.down.of(pairs);
        let mut between = QuantizedVectors::new(stream, &shape, linear).unwrap();
        let sums = Vectors::on_device(sums.as_view());
        between
            .quantize_gated(stream, &sums, self.gate, self.order, None)
            .unwrap();
        let results = self.down.product(gpu, &between, ids, pairs);
        let y = gpu.upload(&vec![f32::NAN; tokens * shape.m()]);
        let call = Combine {
            slots,
            element: FloatType::F32,
            inputs: gpu.address(&results),
            weights: gpu.address(weights),
            ids: gpu.address(ids),
            output: RawOutput::packed(gpu.address(&y), FloatType::F32),
            chained: false,
        };
        let shape = sized(shape.m(), tokens, 16, 1);
        // SAFETY: the buffers have the sizes that the shape asks for and outlive the work.
        unsafe { raw::combine(&shape, &call, gpu.handle()) }.unwrap();
        let y: Vec<f32> = stream.clone_dtoh(&y).unwrap();
        y.into_iter().map(f32::to_bits).collect()
    }
}

/// Where products quantise their vectors when they read them, and where they do not: the bits of a call in five launches,
/// with ids of no expert, and with a token that holds a NaN.
fn few_launches_have_the_bits_of_five() {
    const EXPERTS: usize = 12;
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let sizes = [
        (2048, 768, true),
        (512, 256, true),
        (7168, 256, true),
        (512, 2048, true),
        (512, 272, false),
    ];
    for (i, (hidden, rows, on_read)) in sizes.into_iter().enumerate() {
        let layout = ScaleLayout::ALL[i % 2];
        let (gate, order) = (
            [Gate::Silu, Gate::GPT_OSS, Gate::GeluTanh][i % 3],
            [RowOrder::Stacked, RowOrder::Interleaved][i / 2 % 2],
        );
        let pieces = Pieces {
            gate_up: Side::new(&gpu, (2 * rows, hidden, EXPERTS), layout),
            down: Side::new(&gpu, (hidden, rows, EXPERTS), layout),
            gate,
            order,
        };
        let (gate_up, down) = (pieces.gate_up.matrices(), pieces.down.matrices());
        let plain = ExpertsOnDevice::new(gate_up, order, down, gate).unwrap();
        // SAFETY: no kernel writes the weights any more, once the stream is idle.
        let chained = unsafe { plain.clone().chained() };
        let operands = Operands {
            select: true,
            matrices: EXPERTS,
            late: true,
            on_read: true,
            ..Operands::new(Activation::Nvfp4, layout)
        };
        let choice = select(
            &pieces.down.of(8),
            &operands,
            Target::Gpu(&gpu.info),
            &Options::new(),
        );
        let takes = gpu.info.compute_capability >= (9, 0) && on_read;
        assert_eq!(choice.is_ok(), takes, "{choice:?}");
        for (tokens, slots) in [(1, 8), (3, 4)] {
            let mut r = fastrand::Rng::with_seed(i as u64);
            let mut x = rounded(&numbers(tokens * hidden, 5));
            let ids: Vec<i32> = (0..tokens * slots)
                .map(|slot| match slot {
                    9 => EXPERTS as i32,
                    _ => r.i32(-1..EXPERTS as i32),
                })
                .collect();
            if tokens > 1 {
                x[7] = bf16::NAN;
            }
            let (x, ids) = (gpu.upload(&x), gpu.upload(&ids));
            let weights = gpu.upload(&numbers(tokens * slots, 6));
            stream.synchronize().unwrap();
            let expected = pieces.by_hand(&gpu, &x, &ids, &weights, (tokens, slots));
            for experts in [&plain, &chained] {
                let mut buffers = experts.buffers(stream, tokens, slots).unwrap();
                let mut y = gpu.upload(&vec![f32::NAN; tokens * hidden]);
                for _ in 0..3 {
                    let output = Output::on_device(y.as_view_mut());
                    let x = Vectors::on_device(x.as_view());
                    let (ids, weights) = (ids.as_view(), weights.as_view());
                    experts
                        .forward(stream, &mut buffers, &x, &ids, &weights, output)
                        .unwrap();
                }
                let y: Vec<f32> = stream.clone_dtoh(&y).unwrap();
                let found = y.into_iter().map(f32::to_bits);
                let differs = found.zip(&expected).position(|(a, &b)| a != b);
                assert_eq!(differs, None, "{hidden} {rows} {layout} {tokens} tokens");
            }
        }
    }
}

/// -1 adds nothing, whatever the weight is. Others that are none make their token NaN, and no other token.
fn ids_that_name_no_expert() {
    let gpu = Gpu::first();
    let (_, host) = experts(KINDS[1], 3);
    let device = host.on_device(&gpu.stream, ScaleLayout::Linear).unwrap();
    let mut buffers = device.buffers(&gpu.stream, 3, 2).unwrap();
    let (x, residual) = (rounded(&numbers(3 * K, 4)), numbers(3 * K, 5));
    for foreign in [3, -2, i32::MAX, i32::MIN] {
        let ids = [-1, -1, foreign, 0, 2, -1];
        let weights = [f32::NAN, 1.0, 1.0, 1.0, 0.5, f32::INFINITY];
        let y = run(&gpu, &device, &mut buffers, &x, &ids, &weights, &residual);
        assert_eq!(y[..K], residual[..K]);
        assert!(y[K..2 * K].iter().all(|y| y.is_nan()), "{foreign}");
        assert!(y[2 * K..].iter().all(|y| y.is_finite()));
    }
}

/// Without slots a result is the residual, and without tokens there are none.
fn no_tokens_and_no_slots() {
    let gpu = Gpu::first();
    let (_, host) = experts(KINDS[0], 2);
    let device = host.on_device(&gpu.stream, ScaleLayout::Linear).unwrap();
    let residual = numbers(2 * K, 3);
    let x = rounded(&numbers(2 * K, 4));
    for (tokens, slots) in [(2, 0), (0, 3), (0, 0)] {
        let mut buffers = device.buffers(&gpu.stream, tokens, slots).unwrap();
        let (x, residual) = (&x[..tokens * K], &residual[..tokens * K]);
        // A device has no buffers of nothing.
        let (x, of_nothing) = (if tokens == 0 { &[bf16::ZERO][..] } else { x }, [0.0f32]);
        let residual = if tokens == 0 {
            &of_nothing[..]
        } else {
            residual
        };
        let y = run(&gpu, &device, &mut buffers, x, &[0], &[1.0], residual);
        assert_eq!(y, residual);
    }
}

/// Captured once, chained: each replay has the bits of a call that is made for it alone.
fn replays_with_other_ids() {
    const TOKENS: usize = 2;
    const SLOTS: usize = 4;
    const EXPERTS: i32 = 6;
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let (_, host) = experts(KINDS[0], EXPERTS as usize);
    let plain = host.on_device(stream, ScaleLayout::Tiled128x4).unwrap();
    stream.synchronize().unwrap();
    // SAFETY: no kernel writes the weights any more.
    let chained = unsafe { plain.clone().chained() };
    let mut x = gpu.upload(&rounded(&numbers(TOKENS * K, 1)));
    let mut ids = gpu.upload(&[0i32; TOKENS * SLOTS]);
    let mut weights = gpu.upload(&[0.0f32; TOKENS * SLOTS]);
    let mut y = gpu.upload(&vec![f32::NAN; TOKENS * K]);
    let mut z = gpu.upload(&vec![f32::NAN; TOKENS * K]);
    let mut buffers = chained.buffers(stream, TOKENS, SLOTS).unwrap();
    let mut own = plain.buffers(stream, TOKENS, SLOTS).unwrap();
    let call = |experts: &ExpertsOnDevice,
                buffers: &mut ExpertsBuffers,
                x: &_,
                ids: &_,
                weights: &_,
                y: &mut _| {
        let x: &cudarc::driver::CudaSlice<bf16> = x;
        let ids: &cudarc::driver::CudaSlice<i32> = ids;
        let weights: &cudarc::driver::CudaSlice<f32> = weights;
        let y: &mut cudarc::driver::CudaSlice<f32> = y;
        let output = Output::on_device(y.as_view_mut());
        let x = Vectors::on_device(x.as_view());
        experts
            .forward(
                stream,
                buffers,
                &x,
                &ids.as_view(),
                &weights.as_view(),
                output,
            )
            .unwrap();
    };
    match raw::COMPILED_ARCHS.is_empty() {
        // Kernels that are compiled at run time are compiled before the capture.
        true => call(&chained, &mut buffers, &x, &ids, &weights, &mut y),
        false => {
            let (x, output) = (
                Vectors::on_device(x.as_view()),
                Output::on_device(y.as_view_mut()),
            );
            let (ids, weights) = (ids.as_view(), weights.as_view());
            chained
                .prepare(stream, &mut buffers, &x, &ids, &weights, output)
                .unwrap();
        }
    }
    let graph = gpu.capture(|| {
        for _ in 0..3 {
            call(&chained, &mut buffers, &x, &ids, &weights, &mut y);
        }
    });
    let mut r = fastrand::Rng::with_seed(8);
    for replay in 0..100u64 {
        let chosen: Vec<i32> = (0..TOKENS * SLOTS)
            .map(|slot| match replay % 4 {
                0 => r.i32(0..EXPERTS),
                1 => 3, // all the same
                2 => r.i32(-1..EXPERTS),
                _ if slot == 5 => EXPERTS + r.i32(0..9), // none, in the second token
                _ => r.i32(0..2).min(r.i32(0..EXPERTS)),
            })
            .collect();
        stream.memcpy_htod(&chosen, &mut ids).unwrap();
        stream
            .memcpy_htod(&numbers(TOKENS * SLOTS, replay), &mut weights)
            .unwrap();
        stream
            .memcpy_htod(&rounded(&numbers(TOKENS * K, 100 + replay)), &mut x)
            .unwrap();
        graph.launch().unwrap();
        call(&plain, &mut own, &x, &ids, &weights, &mut z);
        let bits = |y| -> Vec<u32> {
            let y: Vec<f32> = stream.clone_dtoh(y).unwrap();
            y.into_iter().map(f32::to_bits).collect()
        };
        let (found, expected) = (bits(&y), bits(&z));
        let tokens = found.chunks(K).zip(expected.chunks(K)).enumerate();
        for (token, (found, expected)) in tokens {
            match replay % 4 == 3 && token == 1 {
                true => assert!(found.iter().all(|y| f32::from_bits(*y).is_nan())),
                false => assert!(
                    found == expected,
                    "replay {replay}, token {token}: {chosen:?}"
                ),
            }
        }
    }
}

fn refusals() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let (_, host) = experts(KINDS[0], 2);
    let device = host.on_device(stream, ScaleLayout::Linear).unwrap();
    let mut buffers = device.buffers(stream, 1, 2).unwrap();
    let x = gpu.upload(&rounded(&numbers(K, 1)));
    let (ids, weights) = (gpu.upload(&[0i32; 3]), gpu.upload(&[1.0f32; 3]));
    let mut y = gpu.upload(&vec![0.0f32; K]);
    let view = |count: usize| (ids.slice(..count), weights.slice(..count));
    let x = Vectors::on_device(x.as_view());
    let ((two, two_weights), (three, _)) = (view(2), view(3));
    let output = Output::on_device(y.as_view_mut());
    let error = device.forward(stream, &mut buffers, &x, &three, &two_weights, output);
    assert!(matches!(
        error,
        Err(Error::BufferTooLong {
            operand: "ids of experts",
            ..
        })
    ));
    let output = Output::on_device(y.slice_mut(..K - 1));
    let error = device.forward(stream, &mut buffers, &x, &two, &two_weights, output);
    assert!(matches!(
        error,
        Err(Error::BufferTooShort {
            operand: "output",
            ..
        })
    ));
    let layer = |m, k| layer(m, k, 1);
    let small = Mlp::new(layer(64, 32), layer(64, 32), layer(32, 64)).unwrap();
    let other = Experts::new([small])
        .unwrap()
        .on_device(stream, ScaleLayout::Linear)
        .unwrap();
    let mut others = other.buffers(stream, 1, 2).unwrap();
    let output = Output::on_device(y.as_view_mut());
    let error = device.forward(stream, &mut others, &x, &two, &two_weights, output);
    let (found, needed) = ([32, 64, 32], [K, M, K]);
    assert_eq!(error, Err(Error::BuffersMismatch { found, needed }));
    // As many elements before and between the products, and others behind them.
    let wide = Mlp::new(layer(M, K), layer(M, K), layer(2 * K, M)).unwrap();
    let wide = Experts::new([wide]).unwrap();
    let wide = wide.on_device(stream, ScaleLayout::Linear).unwrap();
    let output = Output::on_device(y.as_view_mut());
    let error = device.forward(
        stream,
        &mut wide.buffers(stream, 1, 2).unwrap(),
        &x,
        &two,
        &two_weights,
        output,
    );
    let (found, needed) = ([K, M, 2 * K], [K, M, K]);
    assert_eq!(error, Err(Error::BuffersMismatch { found, needed }));
    let mixed = [make(KINDS[0], 0).mlp, make(KINDS[2], 0).mlp];
    let error = Experts::new(mixed)
        .unwrap()
        .on_device(stream, ScaleLayout::Linear);
    assert_eq!(error.err(), Some(Error::ExpertsDiffer));
}

/// Prints how long each kernel of a layer of Qwen3-30B-A3B takes in a chain of its own: `--ignored --nocapture`.
fn times() {
    use nvfp4_gemv::Dims;
    use nvfp4_gemv::measure::time_launches;

    const SLOTS: usize = 8;
    const LAUNCHES: usize = 100;
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let us = |what: &str, launch: &mut dyn FnMut() -> nvfp4_gemv::Result<()>| {
        launch().unwrap();
        // SAFETY: the buffers live to the end of the trial, and nothing else uses them.
        let time = unsafe { time_launches(stream, LAUNCHES, 9, |_| launch()) }.unwrap();
        println!("{what}: {:.2} us", time.median * 1e6);
    };
    let shape = |k, l| Shape::new(Dims { m: 0, n: 1, k, l }).unwrap();
    let new = |k, l| {
        let vectors = QuantizedVectors::new(stream, &shape(k, l), ScaleLayout::Linear).unwrap();
        // SAFETY: nothing but kernels of this crate is launched.
        unsafe { vectors.chained() }.unwrap()
    };
    for k in [2048, 4096, 7168] {
        let x = gpu.upload(&rounded(&numbers(k, 1)));
        for copies in [1, SLOTS] {
            let mut quantized = new(k, copies).with_copies(copies).unwrap();
            let name = format!("quantise {k} bf16 elements, {copies} copies");
            us(&name, &mut || {
                quantized.quantize(stream, &Vectors::on_device(x.as_view()))
            });
        }
    }
    for k in [768, 2048] {
        let sums = gpu.upload(&numbers(SLOTS * 2 * k, 2));
        let sums = Vectors::on_device(sums.as_view());
        for (gate, order) in [
            (Gate::Silu, RowOrder::Stacked),
            (Gate::GPT_OSS, RowOrder::Interleaved),
        ] {
            let mut quantized = new(k, SLOTS);
            let name = format!("{SLOTS} times {k} elements of {gate:?}");
            us(&name, &mut || {
                quantized.quantize_gated(stream, &sums, gate, order, None)
            });
        }
        let x = gpu.upload(&rounded(&numbers(k, 3)));
        let (x, mut quantized) = (Vectors::on_device(x.as_view()), new(k, 1));
        us(&format!("RMSNorm of {k} elements"), &mut || {
            quantized.quantize_normed(stream, &x, &x, 1e-5, None)
        });
    }
    for m in [2048, 7168] {
        let results = gpu.upload(&numbers(SLOTS * m, 4));
        let (weights, ids) = (gpu.upload(&[0.5f32; SLOTS]), gpu.upload(&[1i32; SLOTS]));
        let y = gpu.upload(&vec![bf16::ZERO; m]);
        let call = Combine {
            slots: SLOTS,
            element: FloatType::F32,
            inputs: gpu.address(&results),
            weights: gpu.address(&weights),
            ids: gpu.address(&ids),
            output: RawOutput::packed(gpu.address(&y), FloatType::Bf16),
            chained: true,
        };
        let shape = Shape::new(Dims {
            m,
            n: 1,
            k: 16,
            l: 1,
        })
        .unwrap();
        us(&format!("sum of {SLOTS} times {m} elements"), &mut || {
            // SAFETY: the buffers have the sizes that the shape asks for and outlive the work.
            unsafe { raw::combine(&shape, &call, gpu.handle()) }
        });
    }
}
