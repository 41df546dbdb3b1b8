//! Vectors that `ring` quantises when it reads them: the bits of two launches, whatever the vectors are.

use std::sync::Arc;

use half::{bf16, f16};
use nvfp4_gemv::kernel::RingConfig;
use nvfp4_gemv::kernel::params::nvfp4_ring_params as Params;
use nvfp4_gemv::quantize::quantize_vectors_or_nan;
use nvfp4_gemv::{
    FloatType, Gate, GlobalScale, RawOnRead, RowOrder, ScaleLayout, Strides, VectorScale,
};
use ptx_sim::{Options, Uninitialised};

use crate::quantize::sim::Simulated;
use crate::support::faults::{ANY_OPERAND, NO_BIAS, PADDING, Run, demand_right_plans};
use crate::support::operands::{Bias, Case, Data, Operands, Residual};
use crate::support::quantize_data::{Before, Kind, vectors};
use crate::support::schedules::few;
use crate::support::sim::{Loaded, Simulator, launches};
use crate::support::{ptx, sized};

crate::trials! {
    simulator:
        f16_elements = same_bits::<f16>,
        bf16_elements = same_bits::<bf16>,
        f32_elements = same_bits::<f32>,
        given_global_scales, copies_of_batches, many_vectors_take_turns, wrong_plans,
        blackwell = || check_all::<bf16>(&Simulator::new("100a"), 1);
}

/// A config, and a problem: M, K.
struct Cutting {
    m: usize,
    k: usize,
    config: RingConfig,
}

/// All entry points; one warp a row, and several; groups without units; lanes and warps past K; more pieces of the vector
/// than threads, and fewer; more outputs than threads.
fn cuttings() -> Vec<Cutting> {
    let cutting = |(m, k), (chunks, groups, rows, depth), ctas, cached| Cutting {
        m,
        k,
        config: RingConfig {
            chunks,
            groups,
            rows,
            depth,
            cached,
            ctas,
            ..RingConfig::DEFAULT
        },
    };
    vec![
        cutting((40, 768), (1, 2, 4, 1), 7, true),
        cutting((24, 1280), (1, 1, 2, 2), 3, false),
        cutting((9, 256), (2, 4, 2, 1), 4, true),
        cutting((20, 2560), (2, 1, 1, 3), 5, false),
        cutting((12, 512), (2, 3, 4, 2), 3, false),
        cutting((140, 256), (1, 1, 4, 3), 3, true),
        cutting((8, 4352), (2, 2, 4, 1), 6, true),
        cutting((16, 768), (1, 8, 2, 1), 3, false),
        cutting((6, 1024), (2, 1, 2, 1), 6, true),
    ]
}

/// A call's problem, beside its cutting.
#[derive(Clone, Copy, Debug)]
struct Call {
    layout: ScaleLayout,
    kind: Kind,
    gate: Option<(Gate, RowOrder)>,
    global: Option<f32>,
    copies: usize,
    n: usize,
    select: bool,
    seed: usize,
}

/// Runs the call with vectors that the host quantised, and with elements that the kernel quantises; the same config, and
/// the same bits.
fn check<T: Simulated>(simulator: &Simulator, cutting: &Cutting, call: Call) {
    let Call {
        copies, n, seed, ..
    } = call;
    // The kernel of quantised vectors takes several batches of whole units.
    let whole = call.layout == ScaleLayout::Linear && cutting.m.is_multiple_of(4);
    let batches = if call.select || whole { 2 } else { 1 };
    let k = cutting.k;
    let l = copies * batches;
    let case = Case {
        row_alpha: seed % 3 == 0,
        bias: [Bias::None, Bias::OfBatches, Bias::Shared][seed % 3],
        residual: [Residual::None, Residual::InPlace][seed % 2],
        output: FloatType::ALL[seed % 3],
        strided: seed % 5 == 1,
        vector_layout: ScaleLayout::Linear,
        select: call.select,
        late: call.select && seed % 2 == 0,
        ..Case::new(
            sized(cutting.m, n, k, l),
            Data::FullRange,
            call.layout,
            seed as u64,
        )
    };
    let case = match call.select {
        true => case.with_unknown_ids()[seed % 4],
        false => case,
    };
    let before = match call.gate {
        None => Before::Nothing,
        Some((gate, order)) => Before::Gate(gate, order),
    };
    let of = if call.gate.is_some() { 2 * k } else { k };
    let x: Vec<T> = vectors(call.kind, n * batches, of, seed as u64);
    let made = before.of(&x, k);
    let made = made
        .chunks_exact(n * k)
        .flat_map(|batch| batch.repeat(copies));
    let global = call
        .global
        .map(|global| VectorScale::Shared(GlobalScale::Multiplier(global)));
    let made: Vec<f32> = made.collect();
    let host = quantize_vectors_or_nan(&made, n * l, k, global).expect("the host quantises");

    let packed = |row: usize| Strides::packed(n, row);
    let mut plain = Operands::new(&case);
    let bytes = &mut plain.bytes;
    (bytes.vectors, bytes.vector_strides) = (host.codes, packed(k / 2));
    (bytes.vector_scales, bytes.vector_scale_strides) = (host.scales, packed(k / 16));
    bytes.vector_alpha = host.globals;
    let mut read = plain.clone();
    let bytes = &mut read.bytes;
    (bytes.vector_scales, bytes.vector_alpha) = (Vec::new(), Vec::new());
    // NaN between the vectors.
    let row = of * T::ELEMENT.bytes();
    let pad = 16;
    let elements = T::memory(&x);
    let padded = elements.chunks_exact(row);
    bytes.vectors = padded.flat_map(|row| [row, &[0xff; 16]].concat()).collect();
    bytes.vector_strides = Strides {
        row: row + pad,
        batch: n * (row + pad),
    };
    bytes.on_read = Some(RawOnRead {
        element: T::ELEMENT,
        values: 0,
        strides: bytes.vector_strides,
        copies,
        gate: call.gate,
        global: call.global.map(GlobalScale::Multiplier),
    });
    let run = |operands: Operands| {
        let mut loaded = Loaded::new(&Arc::new(operands), simulator.arch);
        let plan = loaded.plan(cutting.config.into(), &simulator.gpu, seed % 2 == 0);
        for planned in plan.launches() {
            let options = Options {
                // Units with rows of another CTA leave gaps in the ring.
                uninitialised: Uninitialised::Stale(seed as u64),
                ..few(seed as u64)[seed % 3].clone()
            };
            let program = &ptx::entry(planned.entry, simulator.arch).program;
            for launch in launches(planned).expect("a valid launch") {
                let ran = loaded.memory.launch(program, &launch, &options);
                ran.unwrap_or_else(|error| panic!("{error}: {}, {call:?}", planned.entry));
            }
        }
        assert!(loaded.memory.fully_written(), "{call:?}");
        loaded.memory.output().to_vec()
    };
    let (expected, found) = (run(plain), run(read));
    let differs = (expected.iter().zip(&found)).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{:?}, {call:?}", cutting.config);
}

const GATES: [Gate; 3] = [Gate::Silu, Gate::GeluTanh, Gate::GPT_OSS];

/// Every cutting, with what else a call may be dealt out from `seed` on.
fn check_all<T: Simulated>(simulator: &Simulator, mut seed: usize) {
    for cutting in cuttings() {
        for gated in [false, true] {
            seed += 1;
            let order = [RowOrder::Stacked, RowOrder::Interleaved][seed / 2 % 2];
            let call = Call {
                layout: ScaleLayout::ALL[seed % 2],
                kind: Kind::ALL[seed % 6],
                gate: gated.then_some((GATES[seed / 2 % 3], order)),
                global: None,
                copies: 1,
                n: 1,
                select: !seed.is_multiple_of(3),
                seed,
            };
            check::<T>(simulator, &cutting, call);
        }
    }
}

/// Vectors whose magnitudes spread, subnormal ones, boundaries between codes, zeros, NaN and infinities; each also behind
/// a gate.
fn same_bits<T: Simulated>() {
    let simulator = Simulator::new("90a");
    check_all::<T>(&simulator, T::ELEMENT as usize);
    let cutting = &cuttings()[2];
    for (seed, kind) in Kind::ALL.into_iter().enumerate() {
        for gate in [None, Some((GATES[seed % 3], RowOrder::Interleaved))] {
            let call = Call {
                layout: ScaleLayout::ALL[seed % 2],
                kind,
                gate,
                global: None,
                copies: 1,
                n: 1,
                select: true,
                seed,
            };
            check::<T>(&simulator, cutting, call);
        }
    }
}

const PLAIN: Call = Call {
    layout: ScaleLayout::Linear,
    kind: Kind::Spread,
    gate: None,
    global: None,
    copies: 1,
    n: 1,
    select: true,
    seed: 4,
};

/// Elements past their range saturate; those far below become zeros.
fn given_global_scales() {
    let simulator = Simulator::new("90a");
    for (seed, global) in [1.0, 1e-30, 3e38, 0.37].into_iter().enumerate() {
        let call = Call {
            global: Some(global),
            kind: Kind::ALL[seed % 2],
            seed,
            ..PLAIN
        };
        check::<f32>(&simulator, &cuttings()[seed], call);
    }
}

/// Batches that follow each other have the same vectors, as the experts of a token.
fn copies_of_batches() {
    let simulator = Simulator::new("90a");
    for (seed, cutting) in cuttings().iter().take(3).enumerate() {
        let copies = seed + 2;
        check::<bf16>(
            &simulator,
            cutting,
            Call {
                copies,
                seed,
                ..PLAIN
            },
        );
    }
}

/// Several vectors, with a launch for each.
fn many_vectors_take_turns() {
    let simulator = Simulator::new("90a");
    let call = Call { n: 3, ..PLAIN };
    check::<f16>(&simulator, &cuttings()[0], call);
}

/// Every second wrong word of the parameters: another place of the quantised vector, other elements, another vector. Both layouts,
/// every type, with a selection and without.
fn wrong_plans() {
    const NOT_COUNTED: &str = "units are not counted";
    const FEW: &str = "few numbers are divided: a larger factor gives the same quotients";
    const SHORT: &str = "bytes of rows and scales are counted in 32 bits";
    const TWICE: &str = "granules end with the batch, and a row that two CTAs have has one result";
    const NO_GATE: &str = "the runs have no gate: it is in `same_bits`";
    const OWN: &str = "the vector that is quantised here has a factor of its own";
    let harmless = crate::words![Params:
        granules_per_cta = TWICE,
        granules_left = TWICE,
        aligned = "a unit in front of the CTA's first one has no rows",
        places = NOT_COUNTED,
        dealt = "granules end there too, and rows are counted out by `rows`",
        counters = NOT_COUNTED,
        counters + 4 = NOT_COUNTED,
        turns = NOT_COUNTED,
        announced_at = NOT_COUNTED,
        m = "rows are counted in a batch",
        m_magic = "rows are counted in a batch",
        bars_at + 4 = PADDING,
        row_warps_magic = FEW,
        dependent = "a run has one grid",
        sums_at = "sums have room for a unit that no CTA has here",
        sums_pitch = "sums have room for a unit that no CTA has here",
        weights.scale_steps + 4 = SHORT,
        weights.row_bytes + 4 = SHORT,
        vectors.row_bytes = "a launch has one vector of a batch",
        vectors.row_bytes + 4 = "a launch has one vector of a batch",
        epilogue.alpha = "units in the last place, which other sums' roundings may be",
        epilogue.output_type = "what is neither f16 nor bf16 is f32",
        epilogue.output_vector = "the one vector of a pass is its first",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.vector_alpha = OWN,
        epilogue.vector_alpha + 4 = OWN,
        epilogue.vector_alpha_batch = OWN,
        epilogue.vector_alpha_batch + 4 = OWN,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        select.matrices = "all ids are of matrices",
        select.late = "to wait earlier changes nothing",
        batches_more = "the grid has as many CTAs for every batch",
        fewer_per_cta = TWICE,
        fewer_left = TWICE,
        on_read.gate.kind = NO_GATE,
        on_read.gate.interleaved = NO_GATE,
        on_read.gate.alpha = NO_GATE,
        on_read.gate.limit = NO_GATE,
        on_read.global = "global scales are computed",
        on_read.copies + 4 = PADDING,
        ; unread in weights, vectors, select
    ];
    let runs: Vec<Run> = [
        (FloatType::Bf16, ScaleLayout::Linear, (20, 768), true),
        (FloatType::F16, ScaleLayout::Tiled128x4, (130, 256), true),
        (FloatType::F32, ScaleLayout::Linear, (16, 1280), false),
    ]
    .into_iter()
    .map(|(element, layout, (m, k), select)| {
        let case = Case {
            on_read: Some(element),
            select,
            row_alpha: true,
            ..Case::new(sized(m, 1, k, 3), Data::FullRange, layout, 7)
        };
        let config = RingConfig {
            chunks: 1,
            groups: 2,
            rows: 2,
            depth: 1,
            cached: true,
            ctas: 7,
            ..RingConfig::DEFAULT
        };
        Run::new("90a", &case, config, false, Uninitialised::Stale(7))
    })
    .collect();
    demand_right_plans("90a", &runs, &harmless, 2);
}
