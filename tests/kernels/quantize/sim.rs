//! The quantiser, as nvcc compiles it, against the host's, bit for bit. The hardware's conversions to E2M1 are on
//! Blackwell only: here they run too.

use half::{bf16, f16};
use nvfp4_gemv::kernel::plan::Launch;
use nvfp4_gemv::kernel::quantize::{self, Global, Quantize};
use nvfp4_gemv::quantize::{quantize_digits_or_nan, quantize_vectors_or_nan};
use nvfp4_gemv::{
    Dims, FloatType, Gate, GlobalScale, RowOrder, ScaleLayout, Shape, Strides, VectorScale,
    convert_scales,
};
use ptx_sim::Policy;

use crate::support::ptx::{self, ALL};
use crate::support::quantize_data::{Before, Kind, Source, vectors};
use crate::support::sim;

crate::trials! {
    simulator:
        f16_vectors = same_bits::<f16>,
        bf16_vectors = same_bits::<bf16>,
        f32_vectors = same_bits::<f32>,
        gated_f16 = gated::<f16>,
        gated_bf16 = gated::<bf16>,
        gated_f32 = gated::<f32>,
        normed_f16 = normed::<f16>,
        normed_bf16 = normed::<bf16>,
        normed_f32 = normed::<f32>,
        digits_of_f16 = digits::<f16>,
        digits_of_bf16 = digits::<bf16>,
        digits_of_f32 = digits::<f32>,
        copies_of_batches, many_batches, many_vectors, late_grids_are_waited_for, instructions;
}

/// Element types as memory has them.
pub(crate) trait Simulated: Source {
    const ELEMENT: FloatType;
    fn memory(values: &[Self]) -> Vec<u8>;
}

macro_rules! simulated {
    ($type:ty, $element:ident) => {
        impl Simulated for $type {
            const ELEMENT: FloatType = FloatType::$element;
            fn memory(values: &[Self]) -> Vec<u8> {
                values.iter().flat_map(|x| x.to_le_bytes()).collect()
            }
        }
    };
}

simulated!(f16, F16);
simulated!(bf16, Bf16);
simulated!(f32, F32);

/// Source of the global scales.
#[derive(Clone, Copy, Debug)]
enum Given<'a> {
    Nothing,
    Shared(f32),
    PerVector(&'a [f32]),
}

/// Quantises `x` with a plan that `change` may change.
fn check<T: Simulated>(
    arch: &'static str,
    shape: (usize, usize, usize),
    x: &[T],
    given: Given<'_>,
    layout: ScaleLayout,
    policy: Policy,
    change: fn(&mut Launch),
) {
    let before = Before::Nothing;
    check_behind(
        arch,
        shape,
        x,
        &before,
        (1, 1),
        given,
        layout,
        policy,
        change,
    );
}

/// Quantises what becomes of `x`, each batch in so many copies, each vector as so many digits.
#[allow(clippy::too_many_arguments, reason = "what a call is, and how it runs")]
fn check_behind<T: Simulated>(
    arch: &'static str,
    (n, k, l): (usize, usize, usize),
    x: &[T],
    before: &Before<T>,
    (copies, digits): (usize, usize),
    given: Given<'_>,
    layout: ScaleLayout,
    policy: Policy,
    change: fn(&mut Launch),
) {
    let shape = Shape::new(Dims { m: 1, n, k, l }).expect("a shape");
    let (rows, blocks) = (n * l, k / 16);
    let scale = match given {
        Given::Nothing => None,
        Given::Shared(value) => Some(VectorScale::Shared(GlobalScale::Multiplier(value))),
        Given::PerVector(values) => Some(VectorScale::PerVector(values)),
    };
    let made = before.of(x, k);
    let batches = made.chunks_exact(n * k);
    let made: Vec<f32> = batches.flat_map(|batch| batch.repeat(copies)).collect();
    let host = match digits {
        1 => quantize_vectors_or_nan(&made, rows, k, scale),
        _ => quantize_digits_or_nan(&made, rows, k, digits),
    };
    let host = host.expect("the host quantises");

    let mut sim = sim::empty(arch);
    let memory = T::memory(x);
    let row = memory.len() * copies / rows;
    let values = sim.upload("vectors", &memory).expect("memory").address;
    let global = match given {
        Given::Nothing => Global::Computed,
        Given::Shared(value) => Global::Shared(GlobalScale::Multiplier(value)),
        Given::PerVector(values) => {
            let globals = sim.upload("globals", &f32::memory(values));
            Global::PerVector(globals.expect("memory").address)
        }
    };
    let input = before.input(|weight| {
        let weight = sim.upload("weight", &T::memory(weight));
        weight.expect("memory").address
    });
    let mut alloc = |name, bytes| sim.alloc(name, bytes).expect("memory");
    let codes = alloc("codes", rows * digits * k / 2);
    let scales = alloc("scales", layout.bytes(n * digits, blocks) * l);
    let alpha = alloc("alpha", rows * 4);
    let mut planned = quantize::launch(
        &shape,
        &Quantize {
            element: T::ELEMENT,
            input,
            chained: false,
            early: copies > 1,
            copies,
            digits,
            values,
            strides: Strides::packed(n, row),
            global,
            codes: codes.address,
            scales: scales.address,
            layout,
            vector_alpha: alpha.address,
        },
    );
    change(&mut planned);
    let context = format!("{} for {arch}: {shape}, {given:?}", planned.entry);
    let written = [codes, scales, alpha];
    sim::run_helper(&mut sim, arch, &planned, policy, &written, &context);
    let linear = ScaleLayout::Linear;
    let want = convert_scales(&host.scales, linear, layout, n * digits, k, l).expect("scales");
    assert_eq!(sim.download(alpha), f32::memory(&host.globals), "{context}");
    assert!(sim.download(scales) == want, "{context}: scales");
    assert!(sim.download(codes) == host.codes, "{context}: codes");
}

/// Gates of both orders, of halves whose elements are small, large, zero and no numbers.
fn gated<T: Simulated>() {
    let as_planned: fn(&mut Launch) = |_| {};
    let gates = [Gate::Silu, Gate::GeluTanh, Gate::GPT_OSS];
    for arch in ALL {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            for (j, order) in [RowOrder::Stacked, RowOrder::Interleaved]
                .into_iter()
                .enumerate()
            {
                let (n, k, l) = [(1, 16, 1), (2, 80, 2), (1, 4160, 1)][(i + j) % 3];
                let seed = (2 * i + j) as u64;
                let x: Vec<T> = vectors(kind, n * l, 2 * k, seed);
                let gate = gates[i % 3];
                let before = Before::Gate(gate, order);
                let layout = ScaleLayout::ALL[j];
                let policy = Policy::Random(seed);
                let given = [Given::Nothing, Given::Shared(0.01)][j];
                check_behind(
                    arch,
                    (n, k, l),
                    &x,
                    &before,
                    (1, 1),
                    given,
                    layout,
                    policy,
                    as_planned,
                );
            }
        }
        // Where the gates bend: in one vector, and in vectors of one number, whose global scales have its bits.
        for gate in gates {
            let rising = (0..512).map(|i| (i as f32 - 250.0) / 16.0).collect();
            let numbers = (0..64).map(|i| [(i as f32 - 32.3) / 9.7, 1.0]);
            let equal = numbers.flat_map(|pair| [pair; 16].concat()).collect();
            for (shape, x) in [((1, 256, 1), rising), ((64, 16, 1), equal)] {
                let x: Vec<f32> = x;
                let x: Vec<T> = x.into_iter().map(T::from_f32).collect();
                let before = Before::Gate(gate, RowOrder::Interleaved);
                let (given, layout) = (Given::Nothing, ScaleLayout::Linear);
                check_behind(
                    arch,
                    shape,
                    &x,
                    &before,
                    (1, 1),
                    given,
                    layout,
                    Policy::Fair,
                    as_planned,
                );
            }
        }
    }
}

/// Digits of vectors of all kinds, in both layouts: CTAs that share a vector, vectors that fill atoms of scales and more.
fn digits<T: Simulated>() {
    let one_cta: fn(&mut Launch) = |planned| planned.grid[0] = 1;
    let as_planned: fn(&mut Launch) = |_| {};
    let shapes = [
        ((1, 16, 1), 3, as_planned),
        ((3, 48, 2), 4, as_planned),
        ((1, 2320, 1), 2, one_cta),
        ((26, 48, 1), 5, as_planned),
    ];
    for arch in ALL {
        for (seed, (shape, digits, change)) in shapes.into_iter().enumerate() {
            for (i, kind) in Kind::ALL.into_iter().enumerate() {
                let (n, k, l) = shape;
                let x: Vec<T> = vectors(kind, n * l, k, seed as u64);
                let layout = ScaleLayout::ALL[(seed + i) % 2];
                let policy = Policy::Random(seed as u64);
                let (given, before) = (Given::Nothing, Before::Nothing);
                check_behind(
                    arch,
                    shape,
                    &x,
                    &before,
                    (1, digits),
                    given,
                    layout,
                    policy,
                    change,
                );
            }
        }
        let x: Vec<T> = vectors(Kind::Spread, 2, 48, 5);
        let (shape, layout) = ((1, 48, 6), ScaleLayout::Tiled128x4);
        let (given, before) = (Given::Nothing, Before::Nothing);
        check_behind(
            arch,
            shape,
            &x,
            &before,
            (3, 3),
            given,
            layout,
            Policy::Fair,
            as_planned,
        );
    }
}

/// Vectors behind an RMSNorm, whose sums overflow, are zero, or not finite among them.
fn normed<T: Simulated>() {
    let one_cta: fn(&mut Launch) = |planned| planned.grid[0] = 1;
    for arch in ALL {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            let (n, k, l) = [(1, 16, 1), (3, 80, 2), (1, 4160, 1), (2, 2064, 1)][i % 4];
            let x: Vec<T> = vectors(kind, n * l, k, i as u64);
            let weight: Vec<T> = vectors(Kind::Boundaries, 1, k, 7);
            let epsilon = [1e-5, 1e-6, f32::MIN_POSITIVE][i % 3];
            let before = Before::Norm(weight, epsilon);
            let (layout, policy) = (ScaleLayout::ALL[i % 2], Policy::Random(i as u64));
            let shape = (n, k, l);
            check_behind(
                arch,
                shape,
                &x,
                &before,
                (1, 1),
                Given::Nothing,
                layout,
                policy,
                one_cta,
            );
        }
        let ordinary: Vec<T> = (0..2048)
            .map(|i| T::from_f32((i % 61) as f32 - 30.0))
            .collect();
        let weight: Vec<T> = (0..2048)
            .map(|i| T::from_f32((i % 7) as f32 / 4.0))
            .collect();
        let before = Before::Norm(weight, 1e-5);
        let (shape, given, layout) = ((1, 2048, 1), Given::Nothing, ScaleLayout::Linear);
        check_behind(
            arch,
            shape,
            &ordinary,
            &before,
            (1, 1),
            given,
            layout,
            Policy::Fair,
            |_| {},
        );
    }
}

/// A vector for each of its experts.
fn copies_of_batches() {
    for arch in ALL {
        for (i, layout) in ScaleLayout::ALL.into_iter().enumerate() {
            let x: Vec<bf16> = vectors(Kind::Spread, 2 * 2, 48, 5);
            let (shape, given, policy) = ((2, 48, 6), Given::Nothing, Policy::Random(i as u64));
            let before = Before::Nothing;
            check_behind(
                arch,
                shape,
                &x,
                &before,
                (3, 1),
                given,
                layout,
                policy,
                |_| {},
            );
        }
    }
}

fn same_bits<T: Simulated>() {
    let one_cta: fn(&mut Launch) = |planned| planned.grid[0] = 1;
    let as_planned: fn(&mut Launch) = |_| {};
    let shapes = [
        ((1, 16, 1), as_planned),
        ((3, 48, 2), as_planned),
        ((1, 4160, 1), as_planned),
        ((16, 80, 1), as_planned),
        // A CTA that strides over its part.
        ((1, 8240, 1), one_cta),
    ];
    for arch in ALL {
        for (seed, (shape, change)) in shapes.into_iter().enumerate() {
            for (i, kind) in Kind::ALL.into_iter().enumerate() {
                let (n, k, l) = shape;
                let x: Vec<T> = vectors(kind, n * l, k, seed as u64);
                let layout = ScaleLayout::ALL[(seed + i) % 2];
                let policy = Policy::Random(seed as u64);
                check(arch, shape, &x, Given::Nothing, layout, policy, change);
            }
        }
        for value in [0.37, 1e38, 1e-45] {
            let x: Vec<T> = vectors(Kind::Zeros, 2, 64, 9);
            for layout in ScaleLayout::ALL {
                for given in [Given::Shared(value), Given::PerVector(&[value, f32::NAN])] {
                    let shape = (2, 64, 1);
                    check(arch, shape, &x, given, layout, Policy::Fair, as_planned);
                }
            }
        }
    }
}

/// Batches after each other in one CTA, whose warps may be a batch apart.
fn many_batches() {
    let (shape, given) = ((1, 2048, 6), Given::Nothing);
    let one_cta: fn(&mut Launch) = |planned| planned.grid = [1, 1, 1];
    for arch in ALL {
        for seed in 0..8 {
            let x: Vec<f16> = vectors(Kind::Spread, 6, 2048, seed);
            let layout = ScaleLayout::ALL[seed as usize % 2];
            let policy = Policy::Random(seed);
            check(arch, shape, &x, given, layout, policy, one_cta);
        }
    }
}

/// Vectors that fill a quarter of an atom of scales, more of the atom, the whole atom, and several atoms. Some launches
/// have fewer rows of CTAs than vectors, as if the vectors were more than a grid has rows.
fn many_vectors() {
    let as_planned: fn(&mut Launch) = |_| {};
    let few_rows: fn(&mut Launch) = |planned| planned.grid[1] = 5;
    for (seed, n) in [17, 32, 33, 64, 100, 128, 129, 300].into_iter().enumerate() {
        let (k, l) = ([16, 48, 80][seed % 3], 1 + seed % 2);
        let x: Vec<bf16> = vectors(Kind::Spread, n * l, k, seed as u64);
        let change = [as_planned, few_rows][seed / 2 % 2];
        for layout in ScaleLayout::ALL {
            let policy = Policy::Random(seed as u64);
            check("90a", (n, k, l), &x, Given::Nothing, layout, policy, change);
        }
    }
}

/// All that is read is behind the wait: what comes before it in the PTX loads no global memory.
fn late_grids_are_waited_for() {
    for arch in ALL.into_iter().filter(|arch| *arch != "80") {
        let unit = ptx::unit("helpers", arch);
        let entries: Vec<&str> = unit.split(".entry quantize").skip(1).collect();
        assert_eq!(entries.len(), 12);
        for entry in entries {
            let (before, _) = entry.split_once("griddepcontrol.wait").expect("a wait");
            assert!(!before.contains("ld.global"), "{arch}: {}", &entry[..30]);
        }
    }
}

/// The hardware converts if the architecture has the instruction.
fn instructions() {
    for arch in ALL {
        let ptx = ptx::unit("helpers", arch);
        for (instruction, has) in [
            ("cvt.rn.satfinite.e2m1x2.f32", arch == "100a"),
            ("cvt.rn.satfinite.e4m3x2.f32", arch != "80"),
        ] {
            assert_eq!(ptx.contains(instruction), has, "{instruction} for {arch}");
        }
    }
}
