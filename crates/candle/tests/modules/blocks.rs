//! The MLP and the mixture of experts against candle's own dense f32 modules.

use candle_core::{DType, Device, Error, Module, Tensor, Var};
use nvfp4_gemv::{Activation, Experts, FloatType, Gate, Linear, Mlp, RowOrder};
use nvfp4_gemv_candle::{Error as OurError, Nvfp4Experts, Nvfp4Linear, Nvfp4Mlp, Nvfp4Moe};

use crate::bound::{self, Near, UNIT, Whose, assert_near, exactly, share_outside};
use crate::files::{layer, tensor};

/// Gate, up and down.
fn layers(seed: u64, k: usize, between: usize) -> [Linear; 3] {
    [
        layer(seed, between, k),
        layer(seed + 1, between, k),
        layer(seed + 2, k, between),
    ]
}

fn mlp([gate, up, down]: &[Linear; 3]) -> Mlp {
    Mlp::new(gate.clone(), up.clone(), down.clone()).unwrap()
}

/// candle's MLP in f32, of the same weights.
fn dense([gate, up, down]: &[Linear; 3], xs: &Tensor) -> Tensor {
    let [gate, up, down] = [gate, up, down].map(bound::dense);
    let xs = xs.to_dtype(DType::F32).unwrap();
    let gate = gate.forward(&xs).unwrap().silu().unwrap();
    let between = (gate * up.forward(&xs).unwrap()).unwrap();
    down.forward(&between).unwrap()
}

#[test]
fn candles_llama_mlp_gives_the_same_within_the_bound() {
    for (seed, k, between, dims) in [
        (1, 128, 352, &[1, 128][..]),
        (11, 256, 688, &[2, 3, 256]),
        (21, 64, 96, &[33, 64]),
    ] {
        let layers = layers(seed, k, between);
        let module = Nvfp4Mlp::from(mlp(&layers));
        assert_eq!((module.k(), module.rows()), (k, k));
        for (dtype, activation, element) in [
            (DType::F32, Activation::F32, FloatType::F32),
            (DType::F16, Activation::F16, FloatType::F16),
            (DType::BF16, Activation::Bf16, FloatType::Bf16),
        ] {
            let xs = tensor(seed + 5, dims, dtype);
            let ys = module.forward(&xs).unwrap();
            assert_eq!((ys.dims(), ys.dtype()), (dims, dtype));
            let of = |whose| bound::mlp(&layers, &exactly(&xs), whose);
            let our_bound = of(Whose::Ours(activation, element));
            assert_near(&ys, &our_bound, &dense(&layers, &xs), &of(Whose::Candles));
            // The bound tells gate and up apart.
            let [gate, up, down] = layers.clone();
            let other = Nvfp4Mlp::from(mlp(&[up, gate, down])).forward(&xs).unwrap();
            assert!(share_outside(&other, &our_bound) > 0.9);
        }
    }
}

/// A CUDA device's computation, on the CPU: one layer for gate and up, and what is between by candle.
#[test]
fn gate_and_up_as_one_layer_give_the_same_within_the_bound() {
    let (k, between) = (96, 160);
    // One matrix has one global scale: that of gate's and up's numbers together.
    let gate_up = layer(1, 2 * between, k);
    let half = |rows: std::ops::Range<usize>| {
        let weights = gate_up.weights();
        let bytes = |of: &[u8], each: usize| of[rows.start * each..rows.end * each].to_vec();
        Linear::new(
            between,
            k,
            bytes(weights.codes(), k / 2),
            bytes(weights.scales(), k / 16),
            weights.layout(),
            weights.global(),
        )
        .unwrap()
    };
    let layers = [
        half(0..between),
        half(between..2 * between),
        layer(2, k, between),
    ];
    let on_cpu = |layer: &Linear| Nvfp4Linear::new(layer.clone(), &Device::Cpu).unwrap();
    let module = Nvfp4Mlp::joined(on_cpu(&gate_up), on_cpu(&layers[2])).unwrap();
    assert_eq!((module.k(), module.rows()), (k, k));
    let xs = tensor(3, &[5, k], DType::F32);
    let ys = module.forward(&xs).unwrap();
    let of = |whose| bound::mlp(&layers, &exactly(&xs), whose);
    let our_bound = of(Whose::Ours(Activation::F32, FloatType::F32));
    assert_near(&ys, &our_bound, &dense(&layers, &xs), &of(Whose::Candles));

    let other = Nvfp4Mlp::joined(on_cpu(&gate_up), on_cpu(&layer(2, k, 2 * between))).unwrap_err();
    let expected = nvfp4_gemv::Error::LayersMismatch {
        dimension: "gate and up's M",
        found: 2 * between,
        of: "twice down's K",
        expected: 4 * between,
    };
    assert!(
        matches!(&other, OurError::Layer(found) if *found == expected),
        "{other}"
    );
}

#[test]
fn an_mlp_refuses_what_a_layer_does() {
    let module = Nvfp4Mlp::from(mlp(&layers(1, 32, 48)));
    let of = |dims: &[usize], dtype| {
        let xs = Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
        module.forward(&xs)
    };
    let size = of(&[2, 48], DType::F32).unwrap_err();
    assert!(
        matches!(
            size,
            Error::ShapeMismatchBinaryOp {
                op: "nvfp4-mlp",
                ..
            }
        ),
        "{size}"
    );
    let dtype = of(&[2, 32], DType::F64).unwrap_err();
    assert!(
        matches!(dtype, Error::UnsupportedDTypeForOp(DType::F64, "nvfp4-mlp")),
        "{dtype}"
    );
    assert_eq!(of(&[0, 32], DType::F32).unwrap().dims(), [0, 32]);
}

const EXPERTS: usize = 8;
const TOP: usize = 3;

struct Mixture {
    router: candle_nn::Linear,
    experts: Vec<[Linear; 3]>,
}

impl Mixture {
    fn new(k: usize, between: usize) -> Self {
        let router = tensor(100, &[EXPERTS, k], DType::F32);
        let seeds = (0..EXPERTS as u64).map(|expert| 4 * expert);
        Self {
            router: candle_nn::Linear::new(router, None),
            experts: seeds.map(|seed| layers(seed, k, between)).collect(),
        }
    }

    fn experts(&self) -> Nvfp4Experts {
        Nvfp4Experts::on_host(
            Experts::new(self.experts.iter().map(mlp).collect::<Vec<_>>()).unwrap(),
        )
    }

    fn module(&self, normalised: bool) -> Nvfp4Moe {
        Nvfp4Moe::new(self.router.clone(), self.experts(), TOP, normalised).unwrap()
    }

    /// The experts of a vector with their weights, in f64: the largest first.
    fn route(&self, x: &[f64], normalised: bool) -> Vec<(usize, f64)> {
        let rows = bound::numbers(self.router.weight());
        let logit = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        let logits: Vec<f64> = rows.chunks_exact(x.len()).map(logit).collect();
        let all: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let mut shares: Vec<(usize, f64)> = logits
            .iter()
            .map(|logit| logit.exp() / all)
            .enumerate()
            .collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares.truncate(TOP);
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        let by = if normalised { sum } else { 1.0 };
        shares
            .into_iter()
            .map(|(id, share)| (id, share / by))
            .collect()
    }

    /// The sums of what experts give, which were weighted so.
    fn sums(&self, xs: &Tensor, ids: &[Vec<u32>], weights: &[Vec<f32>], whose: Whose) -> Vec<Near> {
        let k = xs.dim(1).unwrap();
        let xs = exactly(xs);
        let mut sums = Vec::new();
        for (x, (ids, weights)) in xs.chunks_exact(k).zip(ids.iter().zip(weights)) {
            // How many vectors an expert has decides how its sums are rounded: any number of them.
            let of_experts = ids.iter().map(|&id| {
                let counts = [1, 2, 4, ids.len() * xs.len() / k];
                let bounds = counts.map(|n| {
                    let mut all = bound::mlp(&self.experts[id as usize], &x.repeat(n), whose);
                    all.truncate(k);
                    all
                });
                let largest = |at: usize| bounds.iter().map(|of| of[at].off).fold(0.0, f64::max);
                let nears = bounds[0].iter().enumerate();
                nears
                    .map(|(at, near)| Near {
                        off: largest(at),
                        ..*near
                    })
                    .collect::<Vec<_>>()
            });
            let of_experts: Vec<Vec<Near>> = of_experts.collect();
            for row in 0..k {
                let terms = || {
                    of_experts
                        .iter()
                        .zip(weights)
                        .map(|(of, &w)| (of[row], f64::from(w)))
                };
                let value = terms().map(|(y, w)| w * y.value).sum();
                let carried: f64 = terms().map(|(y, w)| w * y.off).sum();
                let most: f64 = terms().map(|(y, w)| w * y.most()).sum();
                // A product each, and as many additions.
                let off = carried + (TOP as f64 + 1.0) * UNIT * 1.01 * most;
                sums.push(Near { value, off });
            }
        }
        sums
    }
}

/// Qwen3's mixture as candle would compute it from dense weights: each vector by itself, each of its experts by itself.
fn dense_sums(mixture: &Mixture, xs: &Tensor, ids: &[Vec<u32>], weights: &[Vec<f32>]) -> Tensor {
    let sums = ids
        .iter()
        .zip(weights)
        .enumerate()
        .map(|(vector, (ids, weights))| {
            let x = xs.narrow(0, vector, 1).unwrap();
            let parts = ids.iter().zip(weights).map(|(&id, &weight)| {
                let y = dense(&mixture.experts[id as usize], &x);
                (y * f64::from(weight)).unwrap()
            });
            parts.reduce(|a, b| (a + b).unwrap()).unwrap()
        });
    Tensor::cat(&sums.collect::<Vec<_>>(), 0).unwrap()
}

#[test]
fn candles_qwen3_mixture_gives_the_same_within_the_bound() {
    let (k, between) = (64, 96);
    let mixture = Mixture::new(k, between);
    for (normalised, vectors) in [(true, 1), (true, 6), (false, 6)] {
        let module = mixture.module(normalised);
        let xs = tensor(50, &[vectors, k], DType::F32);
        let (ids, weights) = module.route(&xs).unwrap();
        let (ids, weights) = (
            ids.to_vec2::<u32>().unwrap(),
            weights.to_vec2::<f32>().unwrap(),
        );
        for (x, (ids, weights)) in bound::numbers(&xs)
            .chunks_exact(k)
            .zip(ids.iter().zip(&weights))
        {
            let expected = mixture.route(x, normalised);
            let found: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
            assert_eq!(
                found,
                expected.iter().map(|(id, _)| *id).collect::<Vec<_>>()
            );
            for (weight, (_, expected)) in weights.iter().zip(expected) {
                assert!((f64::from(*weight) - expected).abs() < 1e-5);
            }
        }
        // The weights in f32 are the same for both.
        let of = |whose| mixture.sums(&xs, &ids, &weights, whose);
        let our_bound = of(Whose::Ours(Activation::F32, FloatType::F32));
        let ours = module.forward(&xs).unwrap();
        let candles = dense_sums(&mixture, &xs, &ids, &weights);
        assert_near(&ours, &our_bound, &candles, &of(Whose::Candles));
        // The bound tells one expert from another.
        let mut others = mixture.experts.clone();
        others.rotate_left(1);
        let others = Mixture {
            router: mixture.router.clone(),
            experts: others,
        };
        let others = others.module(normalised).forward(&xs).unwrap();
        assert!(share_outside(&others, &our_bound) > 0.9);
    }
}

#[test]
fn a_mixture_keeps_leading_dimensions_and_the_type() {
    let mixture = Mixture::new(32, 48);
    let module = mixture.module(true);
    let xs = tensor(51, &[2, 3, 32], DType::F32);
    let flat = module.forward(&xs.reshape((6, 32)).unwrap()).unwrap();
    let ys = module.forward(&xs).unwrap();
    assert_eq!(ys.dims(), [2, 3, 32]);
    assert_eq!(bound::numbers(&ys), bound::numbers(&flat));
    for dtype in [DType::F16, DType::BF16] {
        let ys = module.forward(&xs.to_dtype(dtype).unwrap()).unwrap();
        assert_eq!((ys.dims(), ys.dtype()), (&[2, 3, 32][..], dtype));
    }
    let none = Tensor::zeros((0, 32), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(module.forward(&none).unwrap().dims(), [0, 32]);
}

/// Experts are called with all of their vectors, in another order than the pairs have.
#[test]
fn the_order_of_pairs_is_kept() {
    let mixture = Mixture::new(32, 48);
    let experts = mixture.experts();
    assert_eq!(
        (experts.number(), experts.k(), experts.rows()),
        (EXPERTS, 32, 32)
    );
    let xs = tensor(52, &[3, 32], DType::F32);
    let ids: [[u32; 2]; 3] = [[7, 0], [3, 7], [0, 1]];
    let ids = Tensor::new(&ids, &Device::Cpu).unwrap();
    let weights: [[f32; 2]; 3] = [[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]];
    let weights = Tensor::new(&weights, &Device::Cpu).unwrap();
    let ys = experts.forward(&xs, &ids, &weights).unwrap();
    // Expert 7 has two vectors, as here; expert 0 too.
    let of = |expert: usize, vectors: [usize; 2]| {
        let rows = vectors.map(|vector| xs.narrow(0, vector, 1).unwrap());
        let module = Nvfp4Mlp::from(mlp(&mixture.experts[expert]));
        module.forward(&Tensor::cat(&rows, 0).unwrap()).unwrap()
    };
    let row = |of: &Tensor, at: usize| bound::numbers(&of.narrow(0, at, 1).unwrap());
    let (seven, zero) = (of(7, [0, 1]), of(0, [0, 2]));
    assert_eq!(row(&ys, 0), row(&seven, 0));
    assert_eq!(row(&ys, 1), row(&seven, 1));
    let doubled = (zero * 2.0).unwrap();
    assert_eq!(row(&ys, 2), row(&doubled, 1));
}

#[test]
fn experts_and_routers_that_do_not_fit_are_typed_errors() {
    let mixture = Mixture::new(32, 48);
    let experts = mixture.experts();
    let cpu = Device::Cpu;
    let xs = tensor(1, &[2, 32], DType::F32);
    let (ids, weights) = (
        Tensor::zeros((2, 3), DType::U32, &cpu).unwrap(),
        tensor(2, &[2, 3], DType::F32),
    );
    let refused = |xs: &Tensor, ids: &Tensor, weights: &Tensor| {
        experts.forward(xs, ids, weights).unwrap_err()
    };
    let unknown = Tensor::new(&[[0u32, 1, 8], [0, 1, 2]], &cpu).unwrap();
    let error = refused(&xs, &unknown, &weights);
    assert!(
        matches!(
            error,
            Error::InvalidIndex {
                index: 8,
                size: EXPERTS,
                ..
            }
        ),
        "{error}"
    );
    for error in [
        refused(&tensor(1, &[2, 48], DType::F32), &ids, &weights),
        refused(
            &xs,
            &Tensor::zeros((3, 3), DType::U32, &cpu).unwrap(),
            &weights,
        ),
        refused(&xs, &ids, &tensor(2, &[2, 2], DType::F32)),
    ] {
        assert!(
            matches!(error, Error::ShapeMismatchBinaryOp { .. }),
            "{error}"
        );
    }
    let i64s = ids.to_dtype(DType::I64).unwrap();
    for error in [
        refused(&xs, &i64s, &weights),
        refused(&xs, &ids, &weights.to_dtype(DType::F64).unwrap()),
    ] {
        assert!(matches!(error, Error::UnexpectedDType { .. }), "{error}");
    }
    let f64s = refused(&xs.to_dtype(DType::F64).unwrap(), &ids, &weights);
    assert!(
        matches!(f64s, Error::UnsupportedDTypeForOp(DType::F64, _)),
        "{f64s}"
    );

    for (router, top) in [
        (&[EXPERTS, 32][..], 0),
        (&[EXPERTS, 32], EXPERTS + 1),
        (&[EXPERTS, 48], 2),
        (&[4, 32], 2),
    ] {
        let router = candle_nn::Linear::new(tensor(3, router, DType::F32), None);
        let error = Nvfp4Moe::new(router, experts.clone(), top, true).unwrap_err();
        assert!(matches!(error, OurError::Router { .. }), "{error}");
    }
}

/// A result without a gradient would train nothing, and say nothing: whoever asks, vectors or weights, which a router
/// gives.
#[test]
fn a_gradient_through_experts_is_an_error() {
    let mixture = Mixture::new(32, 48);
    let experts = mixture.experts();
    let var = |of: &Tensor| Var::from_tensor(of).unwrap();
    let xs = tensor(2, &[1, 32], DType::F32);
    let ids = Tensor::new(&[[1u32, 0]], &Device::Cpu).unwrap();
    let weights = Tensor::new(&[[0.5f32, 0.5]], &Device::Cpu).unwrap();
    let plain = experts.forward(&xs, &ids, &weights).unwrap();
    let moe = |router: &Tensor, xs: &Tensor| {
        let router = candle_nn::Linear::new(router.clone(), None);
        let moe = Nvfp4Moe::new(router, experts.clone(), TOP, true).unwrap();
        moe.forward(xs).unwrap()
    };
    let router = mixture.router.weight();
    let of_vectors = experts.forward(&var(&xs), &ids, &weights).unwrap();
    let of_weights = experts.forward(&xs, &ids, &var(&weights)).unwrap();
    for ys in [&of_vectors, &of_weights] {
        assert_eq!(bound::numbers(ys), bound::numbers(&plain));
        assert!(ys.is_contiguous());
    }
    for ys in [
        of_vectors,
        of_weights,
        moe(&var(router), &xs),
        moe(router, &var(&xs)),
    ] {
        let error = ys.sum_all().unwrap().backward().unwrap_err();
        let expected = matches!(
            error,
            Error::BackwardNotSupported {
                op: "nvfp4-experts"
            }
        );
        assert!(expected, "{error}");
    }
    // The router's own computation has its gradient.
    let router = var(router);
    let moe = Nvfp4Moe::new(
        candle_nn::Linear::new(router.as_tensor().clone(), None),
        experts.clone(),
        TOP,
        false,
    );
    let (_, weights) = moe.unwrap().route(&xs).unwrap();
    let gradients = weights.sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(router.as_tensor()).is_some());
}

#[test]
fn an_id_of_no_expert_adds_nothing_whatever_its_weight_is() {
    let experts = Mixture::new(32, 48).experts();
    let xs = tensor(2, &[2, 32], DType::F32);
    let of = |ids: &[[u32; 2]; 2], weights: &[[f32; 2]; 2]| {
        let [ids, weights] = [
            Tensor::new(ids, &Device::Cpu).unwrap(),
            Tensor::new(weights, &Device::Cpu).unwrap(),
        ];
        bound::numbers(&experts.forward(&xs, &ids, &weights).unwrap())
    };
    let none = u32::MAX;
    let found = of(&[[3, none], [none; 2]], &[[0.5, f32::NAN], [1.0, 2.0]]);
    let expected = of(&[[3, 3], [3, 3]], &[[0.5, 0.0], [0.0, 0.0]]);
    assert_eq!(found, expected);
}

/// On the CPU by the library, and as a CUDA device computes it, by candle: both near candle's in f32, and near each other.
#[test]
fn gates_are_those_that_were_asked_for() {
    let (k, half) = (32, 48);
    let [gate_up, down] = [layer(1, 2 * half, k), layer(2, k, half)];
    let xs = tensor(3, &[5, k], DType::F32);
    let limit = 0.25;
    let clamped = Gate::Clamped { alpha: 1.5, limit };
    let mut all = Vec::new();
    for gate in [Gate::Silu, Gate::GeluTanh, clamped] {
        let host = Mlp::joined(gate_up.clone(), RowOrder::Stacked, down.clone()).unwrap();
        let experts = Experts::new(vec![host.clone()]).unwrap();
        let experts = Nvfp4Experts::on_host(experts).with_gate(gate).unwrap();
        let host = Nvfp4Mlp::from(host).with_gate(gate).unwrap();
        let on_cpu = |layer: &Linear| Nvfp4Linear::new(layer.clone(), &Device::Cpu).unwrap();
        let joined = Nvfp4Mlp::joined(on_cpu(&gate_up), on_cpu(&down)).unwrap();
        let joined = joined.with_gate(gate).unwrap();
        let ids = Tensor::full(0u32, (5, 1), &Device::Cpu).unwrap();
        let weights = Tensor::full(1f32, (5, 1), &Device::Cpu).unwrap();
        let found = [
            host.forward(&xs).unwrap(),
            joined.forward(&xs).unwrap(),
            experts.forward(&xs, &ids, &weights).unwrap(),
        ];
        // The gate between the layers, by the library's own arithmetic.
        let sums = bound::numbers(&bound::dense(&gate_up).forward(&xs).unwrap());
        let between = sums.chunks_exact(2 * half).flat_map(|both| {
            let (gates, ups) = both.split_at(half);
            let pairs = gates.iter().zip(ups);
            pairs.map(move |(g, u)| gate.of(*g as f32, *u as f32))
        });
        let between = Tensor::from_vec(between.collect::<Vec<f32>>(), (5, half), &Device::Cpu);
        let expected = bound::numbers(&bound::dense(&down).forward(&between.unwrap()).unwrap());
        let largest = expected.iter().fold(0f64, |most, y| most.max(y.abs()));
        for ys in &found {
            for (y, expected) in bound::numbers(ys).iter().zip(&expected) {
                assert!((y - expected).abs() < 1e-4 * largest, "{gate:?}");
            }
        }
        // Each gate is another result.
        assert!(!all.contains(&expected));
        all.push(expected);
    }
    // NaN stays NaN, which a clamp must not hide.
    let on_cpu = |layer: &Linear| Nvfp4Linear::new(layer.clone(), &Device::Cpu).unwrap();
    let joined = Nvfp4Mlp::joined(on_cpu(&gate_up), on_cpu(&down)).unwrap();
    let joined = joined.with_gate(clamped).unwrap();
    let ys = joined.forward(&(xs * f64::NAN).unwrap()).unwrap();
    assert!(bound::numbers(&ys).iter().all(|y| y.is_nan()));
    let (alpha, limit) = (1.0, -1.0);
    let error = joined
        .with_gate(Gate::Clamped { alpha, limit })
        .unwrap_err();
    let expected = matches!(error, OurError::Layer(nvfp4_gemv::Error::Factor { .. }));
    assert!(expected, "{error}");
}
