//! tcgen05.mma against an independent matrix product, for every kind and layout.

#[path = "common/float.rs"]
mod float;
#[macro_use]
#[path = "common/refused.rs"]
mod refused;

use float::float;
use half::{bf16, f16};
use proptest::prelude::*;
use ptx_sim::models::idesc::{Accumulator, Element, Idesc, Kind, ScaleType};
use ptx_sim::models::smem_desc::{Major, SmemDesc};
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tcgen05_mma::{
    AOperand, CtaGroup, CtaMemory, Mma, MmaError, ScaleVec, Scales, Summation, d_cell, execute,
};
use ptx_sim::models::tmem::{Tmem, TmemAddr};
use std::collections::HashMap;

type Bytes = HashMap<u32, u8>;

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The layouts written out here once more, from the canonical-layout table.
fn place(d: &SmemDesc, major: Major, size: u32, row: u32, k_byte: u32) -> u32 {
    let span = d.swizzle.span().unwrap_or(16);
    let x = if major == Major::K {
        match d.swizzle {
            Swizzle::None => {
                row / 8 * d.stride + row % 8 * 16 + k_byte / 16 * d.leading + k_byte % 16
            }
            _ => row / 8 * d.stride + row % 8 * span + k_byte,
        }
    } else {
        let (k, mn) = (k_byte / size, row * size + k_byte % size);
        let depth = if d.swizzle == Swizzle::B128Atom32 {
            4
        } else {
            8
        };
        let (m_step, k_step) = if d.swizzle == Swizzle::None {
            (d.stride, d.leading)
        } else {
            (d.leading, d.stride)
        };
        mn / span * m_step + k / depth * k_step + k % depth * span + mn % span
    };
    d.swizzle.apply(d.start + x)
}

fn element_bits(e: Element, rng: &mut Rng, integers: bool) -> (u32, f64) {
    let bits = rng.next() as u32;
    let small = (rng.below(7) as i32 - 3) as f32;
    match e {
        Element::F16 => {
            // Bounded away from infinities: exponents up to 2^4.
            let v = if integers {
                f16::from_f32(small)
            } else {
                f16::from_bits((bits & 0xcbff) as u16)
            };
            (u32::from(v.to_bits()), f64::from(v))
        }
        Element::Bf16 => {
            let v = if integers {
                bf16::from_f32(small)
            } else {
                bf16::from_f32(small * 1.37 + (bits & 0xff) as f32)
            };
            (u32::from(v.to_bits()), f64::from(v))
        }
        Element::Tf32 => {
            let v = f32::from_bits(if integers {
                small.to_bits()
            } else {
                (bits & 0x8fff_e000) | 0x3f00_0000
            });
            (v.to_bits() | (bits & 0x1fff), f64::from(v)) // the low bits are ignored
        }
        Element::S8 => (bits & 0xff, f64::from(bits as u8 as i8)),
        Element::U8 => (bits & 0xff, f64::from(bits as u8)),
        // Exponent and mantissa bits, and the largest exponent that is drawn.
        _ => {
            let (exp, man, top) = match e {
                Element::E4m3 => (4, 3, 0xe),
                Element::E5m2 => (5, 2, 0x1e),
                Element::E2m3 => (2, 3, 3),
                Element::E3m2 => (3, 2, 7),
                _ => (2, 1, 3),
            };
            let (x, f, sign) = (
                bits % (top + 1),
                bits >> 8 & ((1 << man) - 1),
                bits >> 20 & 1,
            );
            let code = sign << (exp + man) | x << man | f;
            (code, float(code as u8, exp, man))
        }
    }
}

#[derive(Clone, Copy)]
struct Case {
    idesc: Idesc,
    group: CtaGroup,
    swizzle: Swizzle,
    vec: Option<ScaleVec>,
    integers: bool,
    accumulate: bool,
    a_in_tmem: bool,
    summation: Summation,
    seed: u64,
}

struct Outcome {
    got: Vec<u32>,
    want: Vec<f64>,
    magnitude: Vec<f64>,
    old: Vec<f64>,
}

fn bits_of(e: Element) -> u32 {
    match e {
        Element::F16 | Element::Bf16 => 16,
        Element::Tf32 => 32,
        Element::E2m1 => 4,
        Element::E2m3 | Element::E3m2 => 6,
        _ => 8,
    }
}

#[allow(clippy::too_many_arguments)]
fn put(
    mem: &mut Bytes,
    d: &SmemDesc,
    major: Major,
    kind: Kind,
    e: Element,
    row: u32,
    k: u32,
    bits: u32,
) {
    let mut byte = |kb: u32, value: u8, mask: u8| {
        let size = (bits_of(e) / 8).max(1);
        let cell = mem.entry(place(d, major, size, row, kb)).or_insert(0);
        *cell = *cell & !mask | value & mask;
    };
    match (bits_of(e), kind) {
        (4, Kind::Mxf4 | Kind::Mxf4nvf4) => {
            let shift = 4 * (k % 2);
            byte(k / 2, (bits << shift) as u8, 0xf << shift);
        }
        (b @ (4 | 6), _) => {
            let at = k % 16 * b;
            let word = bits << (at % 8);
            let mask = ((1 << b) - 1) << (at % 8);
            let kb = k / 16 * 16 + at / 8;
            byte(kb, word as u8, mask as u8);
            if mask > 0xff {
                byte(kb + 1, (word >> 8) as u8, (mask >> 8) as u8);
            }
        }
        (b, _) => (0..b / 8).for_each(|i| byte(k * b / 8 + i, (bits >> (8 * i)) as u8, 0xff)),
    }
}

fn run(case: &Case) -> Result<Outcome, MmaError> {
    let i = case.idesc;
    let (m, n, k) = (i.m, i.n, i.kind.k());
    let ctas = case.group.ctas() as u32;
    let mut rng = Rng(case.seed);
    let span = case.swizzle.span().unwrap_or(16);
    let desc = |start, major| {
        let (leading, stride) = match (major, case.swizzle) {
            (Major::K, Swizzle::None) => (8 * 1024, 128),
            (Major::K, _) => (16, 8 * span),
            // (MN block stride, K block stride) in the order the mode wants.
            (Major::Mn, Swizzle::None) => (4096, 128),
            (Major::Mn, _) => (2048, 32 * 1024 / 2),
        };
        SmemDesc {
            start,
            leading,
            stride,
            base_offset: 0,
            absolute: false,
            swizzle: case.swizzle,
        }
    };
    let (da, db) = (desc(0x1_0000, i.a_major), desc(0x2_0000, i.b_major));
    let mut shared = vec![Bytes::new(); ctas as usize];
    let mut tmems: Vec<Tmem> = (0..ctas).map(|_| Tmem::all_allocated()).collect();
    let half_lane = if m == 64 && case.seed % 2 == 1 { 16 } else { 0 };
    let (d_at, a_at) = (TmemAddr::new(half_lane, 64), TmemAddr::new(half_lane, 400));

    let (m_share, n_share) = (m / ctas, n / ctas);
    let mut a = vec![0.0; (m * k) as usize];
    let mut b = vec![0.0; (n * k) as usize];
    for row in 0..m {
        let mut a_row = Bytes::new();
        for kk in 0..k {
            let (bits, value) = element_bits(i.a, &mut rng, case.integers);
            a[(row * k + kk) as usize] = if i.negate_a { -value } else { value };
            let cta = (row / m_share) as usize;
            put(
                &mut shared[cta],
                &da,
                i.a_major,
                i.kind,
                i.a,
                row % m_share,
                kk,
                bits,
            );
            let flat = SmemDesc {
                stride: 0,
                swizzle: Swizzle::None,
                ..DESC
            };
            put(&mut a_row, &flat, Major::K, i.kind, i.a, 0, kk, bits);
        }
        if case.a_in_tmem {
            let r = row % m_share;
            let lane = half_lane + if m == 64 { r % 16 + 32 * (r / 16) } else { r };
            for c in 0..8 {
                let w = [0, 1, 2, 3].map(|j| a_row[&(4 * c + j)]);
                tmems[(row / m_share) as usize]
                    .write(lane, 400 + c, u32::from_le_bytes(w))
                    .unwrap();
            }
        }
    }
    for col in 0..n {
        for kk in 0..k {
            let (bits, value) = element_bits(i.b, &mut rng, case.integers);
            b[(col * k + kk) as usize] = if i.negate_b { -value } else { value };
            let cta = (col / n_share) as usize;
            put(
                &mut shared[cta],
                &db,
                i.b_major,
                i.kind,
                i.b,
                col % n_share,
                kk,
                bits,
            );
        }
    }

    // Scales, placed by the layout figures: byte `id + block` of column row / 32.
    let (sfa, sfb) = (TmemAddr::new(0, 10), TmemAddr::new(0, 20));
    let count = case.vec.map_or(1, ScaleVec::count);
    let factor = |rows: u32, rng: &mut Rng| -> Vec<(u8, f64)> {
        (0..rows * count)
            .map(|_| match (case.vec, i.scale) {
                (None, _) => (0, 1.0),
                (_, ScaleType::Ue8m0) if case.integers => (127, 1.0),
                (_, ScaleType::Ue8m0) => {
                    let e = 127 - 4 + rng.below(8) as u8;
                    (e, 2f64.powi(i32::from(e) - 127))
                }
                (_, ScaleType::Ue4m3) if case.integers => (0x38, 1.0),
                (_, ScaleType::Ue4m3) => {
                    let c = rng.below(0x7f) as u8;
                    (c, float(c, 4, 3))
                }
            })
            .collect()
    };
    let (fa, fb) = (factor(m, &mut rng), factor(n, &mut rng));
    if case.vec.is_some() {
        let mut words: HashMap<(usize, u32, u32), u32> = HashMap::new();
        let mut set = |cta: usize, lane: u32, column: u32, byte: u32, value: u8| {
            let w = words.entry((cta, lane, column)).or_insert(0xa5a5_a5a5);
            *w = *w & !(0xff << (8 * byte)) | u32::from(value) << (8 * byte);
        };
        for blk in 0..count {
            for row in 0..m {
                let (cta, r) = ((row / m_share) as usize, row % m_share);
                for q in 0..4 {
                    let byte = (u32::from(i.sfa_id) + blk) % 4;
                    set(
                        cta,
                        r % 32 + 32 * q,
                        10 + r / 32,
                        byte,
                        fa[(row * count + blk) as usize].0,
                    );
                }
            }
            for col in 0..n {
                for cta in 0..ctas as usize {
                    let byte = (u32::from(i.sfb_id) + blk) % 4;
                    let value = fb[(col * count + blk) as usize].0;
                    if ctas == 2 && m == 128 {
                        let (side, c) = (col / n_share, col % n_share);
                        for q in 0..2 {
                            set(cta, c % 32 + 32 * q + 64 * side, 20 + c / 32, byte, value);
                        }
                    } else {
                        for q in 0..4 {
                            set(cta, col % 32 + 32 * q, 20 + col / 32, byte, value);
                        }
                    }
                }
            }
        }
        for ((cta, lane, column), w) in words {
            tmems[cta].write(lane, column, w).unwrap();
        }
    }

    let mut old = vec![0.0; (m * n) as usize];
    if case.accumulate {
        for row in 0..m {
            for col in 0..n {
                let v = rng.below(2001) as f64 - 1000.0;
                let c = d_cell(case.group, m, n, row, col);
                let at = (d_at.lane() + c.lane, d_at.column() + c.column);
                let t = &mut tmems[c.cta];
                match i.d {
                    Accumulator::F32 => t.write(at.0, at.1, (v as f32).to_bits()).unwrap(),
                    Accumulator::F16 => t
                        .write_low_half(at.0, at.1, f16::from_f64(v).to_bits())
                        .unwrap(),
                    Accumulator::S32 => t.write(at.0, at.1, v as i32 as u32).unwrap(),
                }
                old[(row * n + col) as usize] = v;
            }
        }
    }

    let (mut want, mut magnitude) = (vec![0.0; (m * n) as usize], vec![0.0; (m * n) as usize]);
    let per = k / count;
    for row in 0..m {
        for col in 0..n {
            let at = (row * n + col) as usize;
            (want[at], magnitude[at]) = (old[at], old[at].abs());
            for kk in 0..k {
                let s = fa[(row * count + kk / per) as usize].1
                    * fb[(col * count + kk / per) as usize].1;
                let p = a[(row * k + kk) as usize] * b[(col * k + kk) as usize] * s;
                want[at] += p;
                magnitude[at] += p.abs();
            }
        }
    }

    let mma = Mma {
        group: case.group,
        idesc: i,
        d: d_at,
        a: if case.a_in_tmem {
            AOperand::Tmem(a_at)
        } else {
            AOperand::Shared(da)
        },
        b: db,
        accumulate: case.accumulate,
        scale_input_d: 0,
        scales: case.vec.map(|vec| Scales {
            vec,
            a: sfa,
            b: sfb,
        }),
        disable_lanes: [0; 8],
        summation: case.summation,
    };
    let reads: Vec<_> = shared
        .iter()
        .map(|s| |addr: u32| s.get(&addr).copied())
        .collect();
    let mut memories: Vec<_> = reads
        .iter()
        .zip(&mut tmems)
        .map(|(shared, tmem)| CtaMemory { shared, tmem })
        .collect();
    execute(&mma, &mut memories)?;
    // The footprint names exactly the shared bytes that were written above.
    let f = mma.footprint()?;
    for (cta, addr, len) in f.shared_reads {
        for x in addr..addr + len {
            assert!(
                case.a_in_tmem || shared[cta].contains_key(&x),
                "footprint byte {x:#x}"
            );
        }
    }
    let mask = if i.d == Accumulator::F16 { 3 } else { 15 };
    let mut got = Vec::new();
    for row in 0..m {
        for col in 0..n {
            let c = d_cell(case.group, m, n, row, col);
            got.push(
                tmems[c.cta]
                    .read_masked(d_at.lane() + c.lane, d_at.column() + c.column, mask)
                    .unwrap(),
            );
        }
    }
    Ok(Outcome {
        got,
        want,
        magnitude,
        old,
    })
}

fn value(d: Accumulator, bits: u32) -> f64 {
    match d {
        Accumulator::F32 => f64::from(f32::from_bits(bits)),
        Accumulator::F16 => f64::from(f16::from_bits(bits as u16)),
        Accumulator::S32 => f64::from(bits as i32),
    }
}

fn case(
    kind: Kind,
    a: Element,
    b: Element,
    d: Accumulator,
    group: CtaGroup,
    m: u32,
    n: u32,
) -> Case {
    let vec = match kind {
        Kind::Mxf8f6f4 => Some(ScaleVec::X1),
        Kind::Mxf4 => Some(ScaleVec::X2),
        Kind::Mxf4nvf4 => Some(ScaleVec::X4),
        _ => None,
    };
    let mut idesc = Idesc::dense(kind, a, b, d, m, n);
    if kind == Kind::Mxf4nvf4 {
        idesc.scale = ScaleType::Ue4m3;
    }
    Case {
        idesc,
        group,
        swizzle: Swizzle::B128,
        vec,
        integers: false,
        accumulate: true,
        a_in_tmem: false,
        summation: Summation::Once,
        seed: 7,
    }
}

fn nvfp4(n: u32) -> Case {
    let (e, d) = (Element::E2m1, Accumulator::F32);
    case(Kind::Mxf4nvf4, e, e, d, CtaGroup::One, 128, n)
}

/// One rounding of the exact sum: half an ulp of the result type, and f64's own rounding.
fn check(c: &Case) {
    let o = run(c).unwrap();
    for (i, bits) in o.got.iter().enumerate() {
        let got = value(c.idesc.d, *bits);
        let unit = match c.idesc.d {
            Accumulator::F32 => 2f64.powi(-24),
            Accumulator::F16 => 2f64.powi(-11),
            Accumulator::S32 => 0.0,
        };
        let tiny = match c.idesc.d {
            Accumulator::F16 => 2f64.powi(-25),
            _ => 0.0,
        };
        let bound = match c.integers {
            true => 0.0,
            false => unit * o.want[i].abs() + 2f64.powi(-48) * o.magnitude[i] + tiny,
        };
        assert!(
            (got - o.want[i]).abs() <= bound,
            "{:?} {:?} {:?}: element {i}: {got} for {} (old {})",
            c.idesc,
            c.group,
            c.swizzle,
            o.want[i],
            o.old[i]
        );
    }
}

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

fn every_case() -> Vec<Case> {
    use Element::*;
    let (one, two) = (CtaGroup::One, CtaGroup::Two);
    let f32 = Accumulator::F32;
    let mut out = Vec::new();
    for (group, m, n) in [(one, 64, 8), (one, 128, 24), (two, 128, 32), (two, 256, 16)] {
        for (a, b, d) in [
            (F16, F16, f32),
            (F16, Bf16, f32),
            (F16, F16, Accumulator::F16),
        ] {
            out.push(case(Kind::F16, a, b, d, group, m, n));
        }
        out.push(case(Kind::Tf32, Tf32, Tf32, f32, group, m, n));
        out.push(case(Kind::F8f6f4, E4m3, E5m2, f32, group, m, n));
        out.push(case(Kind::F8f6f4, E2m1, E3m2, f32, group, m, n));
        out.push(case(Kind::F8f6f4, E2m3, E4m3, f32, group, m, n));
        if m != 64 {
            out.push(case(Kind::Mxf8f6f4, E4m3, E2m1, f32, group, m, n));
            out.push(case(Kind::Mxf4, E2m1, E2m1, f32, group, m, n));
            out.push(case(Kind::Mxf4nvf4, E2m1, E2m1, f32, group, m, n));
        }
    }
    for (group, m, n) in [(one, 64, 8), (one, 128, 48), (two, 128, 64), (two, 256, 32)] {
        out.push(case(Kind::I8, S8, U8, Accumulator::S32, group, m, n));
    }
    out
}

#[test]
fn all_kinds_and_groups_match_the_plain_product() {
    for base in every_case() {
        for swizzle in SWIZZLES {
            for accumulate in [false, true] {
                check(&Case {
                    swizzle,
                    accumulate,
                    seed: accumulate as u64 + 3,
                    ..base
                });
            }
        }
    }
}

#[test]
fn integers_are_exact_under_either_summation() {
    for base in every_case() {
        // Random 8- and 6-bit floats span too many binades to be summed exactly.
        let wide = [Element::E4m3, Element::E5m2, Element::E2m3, Element::E3m2];
        if wide.contains(&base.idesc.a) || wide.contains(&base.idesc.b) {
            continue;
        }
        let plain = Case {
            integers: true,
            ..base
        };
        check(&plain);
        let reversed = Case {
            summation: Summation::EachReversed,
            ..plain
        };
        assert_eq!(
            run(&plain).unwrap().got,
            run(&reversed).unwrap().got,
            "{:?}",
            base.idesc
        );
    }
    // Random data is order-dependent, so the two summations are really two.
    let (e, d) = (Element::F16, Accumulator::F16);
    let c = case(Kind::F16, e, e, d, CtaGroup::One, 128, 64);
    let r = Case {
        summation: Summation::EachReversed,
        ..c
    };
    assert_ne!(run(&c).unwrap().got, run(&r).unwrap().got);
}

#[test]
fn transposed_operands() {
    use Element::*;
    let f32 = Accumulator::F32;
    for (kind, e, swizzles) in [
        (Kind::F16, Bf16, &SWIZZLES[..]),
        (Kind::F8f6f4, E4m3, &SWIZZLES),
        (Kind::Tf32, Tf32, &[Swizzle::B128Atom32]),
    ] {
        for &swizzle in swizzles {
            let mut c = case(kind, e, e, f32, CtaGroup::One, 128, 64);
            c.swizzle = swizzle;
            c.idesc.a_major = Major::Mn;
            c.idesc.b_major = Major::Mn;
            check(&c);
        }
    }
}

#[test]
fn a_in_tensor_memory() {
    use Element::*;
    let f32 = Accumulator::F32;
    for (kind, e) in [
        (Kind::F16, F16),
        (Kind::Tf32, Tf32),
        (Kind::F8f6f4, E5m2),
        (Kind::Mxf4nvf4, E2m1),
    ] {
        for (group, m) in [
            (CtaGroup::One, 128),
            (CtaGroup::Two, 256),
            (CtaGroup::One, 64),
        ] {
            if kind == Kind::Mxf4nvf4 && m == 64 {
                continue;
            }
            let c = Case {
                a_in_tmem: true,
                ..case(kind, e, e, f32, group, m, 32)
            };
            check(&c);
        }
    }
}

#[test]
fn negation_and_scale_ids() {
    for (kind, vec, ids) in [
        (Kind::Mxf8f6f4, ScaleVec::X1, vec![0, 1, 2, 3]),
        (Kind::Mxf4, ScaleVec::X2, vec![0, 2]),
        (Kind::Mxf4nvf4, ScaleVec::X4, vec![0]),
    ] {
        for id in ids {
            let e = if kind == Kind::Mxf8f6f4 {
                Element::E3m2
            } else {
                Element::E2m1
            };
            let mut c = case(kind, e, e, Accumulator::F32, CtaGroup::One, 128, 72);
            c.vec = Some(vec);
            (c.idesc.sfa_id, c.idesc.sfb_id) = (id, id);
            c.idesc.negate_a = true;
            check(&c);
            c.idesc.negate_b = true;
            check(&c);
        }
    }
    let mut c = nvfp4(8);
    (c.vec, c.idesc.scale) = (Some(ScaleVec::X2), ScaleType::Ue8m0);
    check(&c);
    c.idesc.scale = ScaleType::Ue4m3;
    assert!(matches!(run(&c), Err(MmaError::ScaleVec { .. })));
    (c.vec, c.idesc.scale, c.idesc.sfa_id) = (Some(ScaleVec::X4), ScaleType::Ue4m3, 2);
    refused!(run(&c) => MmaError::ScaleId { which: 'A', id: 2, .. });
}

const DESC: SmemDesc = SmemDesc {
    start: 0,
    leading: 16,
    stride: 1024,
    base_offset: 0,
    absolute: false,
    swizzle: Swizzle::B128,
};

/// An MMA of one CTA, both operands at the start of its shared memory and D at that of its tensor memory.
fn plain(idesc: Idesc) -> Mma {
    Mma {
        group: CtaGroup::One,
        idesc,
        d: TmemAddr(0),
        a: AOperand::Shared(DESC),
        b: DESC,
        accumulate: false,
        scale_input_d: 0,
        scales: None,
        disable_lanes: [0; 8],
        summation: Summation::Once,
    }
}

/// A one-CTA NVFP4 MMA whose memory is simple: all codes 1.0 (0x22), all scales 1.0.
fn ones(edit: impl FnOnce(&mut Mma, &mut Tmem)) -> Result<Tmem, MmaError> {
    let mut tmem = Tmem::all_allocated();
    for lane in 0..128 {
        for c in 100..108 {
            tmem.write(lane, c, 0x3838_3838).unwrap();
        }
    }
    let mut mma = plain(nvfp4(16).idesc);
    let (a, b) = (TmemAddr(100), TmemAddr(104));
    let vec = ScaleVec::X4;
    mma.scales = Some(Scales { vec, a, b });
    edit(&mut mma, &mut tmem);
    execute_with(&mma, |_| Some(0x22), &mut tmem)?;
    Ok(tmem)
}

/// Executes an MMA of one CTA.
fn execute_with(
    mma: &Mma,
    shared: impl Fn(u32) -> Option<u8>,
    tmem: &mut Tmem,
) -> Result<(), MmaError> {
    let shared = &shared;
    execute(mma, &mut [CtaMemory { shared, tmem }])
}

#[test]
fn simple_sum_and_its_rules() {
    let t = ones(|_, _| {}).unwrap();
    assert_eq!(t.read(127, 15), Ok(64f32.to_bits()));
    assert!(t.read(0, 16).is_err());
    let t = ones(|m, _| m.disable_lanes[1] = 1 << 3).unwrap();
    assert!(t.read(35, 0).is_err() && t.read(34, 0).is_ok());
    refused!(ones(|m, _| m.accumulate = true) => MmaError::Tmem { operand: "D", .. });
    refused!(ones(|m, _| m.scales = None) => MmaError::Scales);
    refused!(ones(|m, _| m.d = TmemAddr::new(16, 0)) => MmaError::Lane { operand: "D", .. });
    refused!(ones(|m, _| m.scale_input_d = 1) => MmaError::ScaleInputD { .. });
    refused!(ones(|m, _| m.idesc.sparse = true) => MmaError::Unmodelled(_));
    refused!(ones(|m, _| m.group = CtaGroup::Two) => MmaError::Ctas { got: 1, group: 2 });
    refused!(ones(|_, t| t.write(70, 100, 0x3838_3839).unwrap()) => MmaError::ScaleNotDuplicated { which: 'A', row: 6 });
    let negative = |_: &mut Mma, t: &mut Tmem| {
        (0..4).for_each(|q| t.write(5 + 32 * q, 104, 0x38b8_3838).unwrap());
    };
    refused!(ones(negative) => MmaError::ScaleSign { which: 'B', row: 5, block: 2, value: 0xb8 });
    refused!(ones(|_, t| t.poison(1, 104).unwrap()) => MmaError::Tmem { operand: "scale B", .. });
    // A NaN scale poisons its rows only.
    let t =
        ones(|_, t| (0..4).for_each(|q| t.write(5 + 32 * q, 101, 0x3838_387f).unwrap())).unwrap();
    assert_eq!(t.read(37, 0), Ok(0x7fff_ffff));
    assert_eq!(t.read(38, 0), Ok(64f32.to_bits()));
}

#[test]
fn scale_input_d_divides_the_accumulator() {
    use Element::F16;
    let idesc = Idesc::dense(Kind::F16, F16, F16, Accumulator::F32, 128, 8);
    let mut tmem = Tmem::all_allocated();
    (0..128).for_each(|l| (0..8).for_each(|c| tmem.write(l, c, 80f32.to_bits()).unwrap()));
    let mma = Mma {
        accumulate: true,
        scale_input_d: 3,
        ..plain(idesc)
    };
    let ones = |a: u32| Some(if a % 2 == 1 { 0x3c } else { 0 });
    execute_with(&mma, ones, &mut tmem).unwrap();
    assert_eq!(tmem.read(9, 3), Ok(26f32.to_bits()));
}

#[test]
fn data_path_layouts_by_hand() {
    let at = |group, m, n, row, col| {
        let c = d_cell(group, m, n, row, col);
        (c.cta, c.lane, c.column)
    };
    let (one, two) = (CtaGroup::One, CtaGroup::Two);
    assert_eq!(at(one, 64, 32, 15, 3), (0, 15, 3)); // layout F
    assert_eq!(at(one, 64, 32, 17, 3), (0, 33, 3));
    assert_eq!(at(one, 64, 32, 63, 31), (0, 111, 31));
    assert_eq!(at(one, 128, 32, 77, 31), (0, 77, 31)); // layout D
    assert_eq!(at(two, 256, 32, 77, 31), (0, 77, 31)); // layout A
    assert_eq!(at(two, 256, 32, 130, 5), (1, 2, 5));
    assert_eq!(at(two, 128, 32, 63, 15), (0, 63, 15)); // layout B
    assert_eq!(at(two, 128, 32, 63, 16), (0, 127, 0));
    assert_eq!(at(two, 128, 32, 65, 31), (1, 65, 15));
}

#[test]
fn data_path_layouts_are_bijective() {
    for (group, m, n, used) in [
        (CtaGroup::One, 64, 40, 64),
        (CtaGroup::One, 128, 40, 128),
        (CtaGroup::Two, 128, 64, 256),
        (CtaGroup::Two, 256, 64, 256),
    ] {
        let mut cells = std::collections::HashSet::new();
        for row in 0..m {
            for col in 0..n {
                assert!(cells.insert(format!("{:?}", d_cell(group, m, n, row, col))));
            }
        }
        let lanes: std::collections::HashSet<_> = (0..m)
            .flat_map(|r| (0..n).map(move |c| d_cell(group, m, n, r, c)))
            .map(|c| (c.cta, c.lane))
            .collect();
        assert_eq!(lanes.len(), used);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nvfp4_full_range(seed in any::<u64>(), n8 in 1u32..=16) {
        let mut c = nvfp4(8 * n8);
        c.seed = seed;
        check(&c);
    }

    /// Whatever the registers hold, the answer is a result or a typed error.
    #[test]
    fn no_input_panics(
        kind in prop::sample::select(Kind::ALL.to_vec()),
        bits in any::<u32>(),
        descs in any::<[u64; 2]>(),
        tidy in any::<bool>(),
        addresses in any::<[u32; 4]>(),
        flags in any::<[bool; 4]>(),
        scale_input_d in 0u32..20,
        vec in prop::sample::select(vec![ScaleVec::X1, ScaleVec::X2, ScaleVec::X4]),
    ) {
        // Mostly valid field values, so that the checks behind the decoder are reached too.
        let fix = |d: u64| if tidy { d & !(0x1fe0_0000_0000_0000 | 0xc000_c000 | 7 << 46 | 1 << 52 | 7 << 61) | 1 << 46 } else { d };
        let Ok(idesc) = Idesc::decode(if tidy { clean(kind, bits) } else { bits }, kind) else { return Ok(()) };
        let (Ok(a), Ok(b)) = (SmemDesc::decode(fix(descs[0])), SmemDesc::decode(fix(descs[1]))) else { return Ok(()) };
        let small = |x: u32| TmemAddr(if tidy { x & 0x01ff } else { x });
        let group = if flags[0] { CtaGroup::Two } else { CtaGroup::One };
        let mma = Mma {
            group, idesc, d: small(addresses[0]),
            a: if flags[1] { AOperand::Tmem(small(addresses[1])) } else { AOperand::Shared(a) },
            b, accumulate: flags[2], scale_input_d: if tidy { 0 } else { scale_input_d },
            scales: kind.is_block_scaled().then_some(Scales { vec, a: small(addresses[2]), b: small(addresses[3]) }),
            disable_lanes: [bits; 8], summation: Summation::EachReversed,
        };
        let shared = |a: u32| (!flags[3] || a < 200_000).then_some(a as u8);
        let (mut t0, mut t1) = (Tmem::all_allocated(), Tmem::all_allocated());
        let mut ctas = vec![CtaMemory { shared: &shared, tmem: &mut t0 }];
        if flags[0] {
            ctas.push(CtaMemory { shared: &shared, tmem: &mut t1 });
        }
        let _ = execute(&mma, &mut ctas);
        let _ = mma.footprint();
    }

    #[test]
    fn contradictory_fields_are_refused(a in 0usize..10, b in 0usize..10, kind in prop::sample::select(Kind::ALL.to_vec())) {
        use Element::*;
        let all = [F16, Bf16, Tf32, E4m3, E5m2, E2m3, E3m2, E2m1, U8, S8];
        let idesc = Idesc::dense(kind, all[a], all[b], Accumulator::F32, 128, 64);
        let _ = execute_with(&plain(idesc), |_| Some(0), &mut Tmem::all_allocated());
    }
}

/// Clears most of what a kind reserves.
fn clean(kind: Kind, bits: u32) -> u32 {
    let valid = case_bits(kind);
    valid ^ (bits & (0x3f << 17 | 0x6000 | 0x1_8000))
}

fn case_bits(kind: Kind) -> u32 {
    let (e, d) = match kind {
        Kind::F16 => (Element::F16, Accumulator::F16),
        Kind::Tf32 => (Element::Tf32, Accumulator::F32),
        Kind::I8 => (Element::S8, Accumulator::S32),
        Kind::F8f6f4 | Kind::Mxf8f6f4 => (Element::E4m3, Accumulator::F32),
        _ => (Element::E2m1, Accumulator::F32),
    };
    Idesc::dense(kind, e, e, d, 128, 64).encode()
}
