//! `Owed`: MMAs whose arithmetic is put off give the bits, and the errors, of those executed at once.

use proptest::prelude::*;
use ptx_sim::models::idesc::{Accumulator, Element, Idesc, Kind};
use ptx_sim::models::smem_desc::SmemDesc;
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tcgen05_mma::{AOperand, CtaGroup, CtaMemory, Mma, Owed, Summation, execute};
use ptx_sim::models::tmem::{COLUMNS, LANES, Tmem, TmemAddr};

/// Operands start at multiples of this.
const OPERAND: u32 = 1 << 15;
/// Index of the operand with bytes that nothing wrote.
const UNWRITTEN: u32 = 4;

fn hash(x: u64) -> u64 {
    let z = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 27
}

/// Operands 0 and 1 hold small integers of f16, so that sums are exact in f32. The other operands hold any bits,
/// infinities and NaNs among them.
fn shared(address: u32) -> Option<u8> {
    let (operand, within) = (address / OPERAND, address % OPERAND);
    let bits = hash(u64::from(address / 2));
    let integers = [0x0000u16, 0x3c00, 0xbc00, 0x4000, 0xc200, 0x8000];
    let half = match operand {
        0 | 1 => integers[bits as usize % integers.len()],
        _ => bits as u16,
    };
    let written = operand != UNWRITTEN || within < 4096;
    written.then_some(half.to_le_bytes()[address as usize % 2])
}

fn operand(number: u32, step: u32) -> SmemDesc {
    SmemDesc {
        start: number * OPERAND + step * 32,
        leading: 16,
        stride: 1024,
        base_offset: 0,
        absolute: false,
        swizzle: Swizzle::B128,
    }
}

fn mma(idesc: Idesc, column: u32, (a, b): (u32, u32), step: u32) -> Mma {
    Mma {
        group: CtaGroup::One,
        idesc,
        d: TmemAddr(column),
        a: AOperand::Shared(operand(a, step)),
        b: operand(b, step),
        accumulate: true,
        scale_input_d: 0,
        scales: None,
        disable_lanes: [0; 8],
        summation: Summation::Once,
    }
}

/// Tensor memory whose first columns hold any bits, and negative zeros; nothing wrote the others.
fn tensor_memory(written: u32) -> Tmem {
    let mut t = Tmem::all_allocated();
    for lane in 0..LANES {
        for column in 0..written {
            let bits = hash(u64::from(lane << 16 | column)) as u32;
            let bits = if bits & 7 == 0 { 0x8000_0000 } else { bits };
            t.write(lane, column, bits).unwrap();
        }
    }
    t
}

/// Executes MMAs at once and put off, and compares every cell.
fn compare(all: &[Mma], written: u32) -> Result<(), TestCaseError> {
    let (mut at_once, mut put_off) = (tensor_memory(written), tensor_memory(written));
    let mut owed = Owed::default();
    for (i, m) in all.iter().enumerate() {
        prop_assert!(Owed::takes(m));
        let now = CtaMemory {
            shared: &shared,
            tmem: &mut at_once,
        };
        let want = execute(m, &mut [now]);
        let later = CtaMemory {
            shared: &shared,
            tmem: &mut put_off,
        };
        prop_assert_eq!(owed.execute(m, later), want, "MMA {}", i);
    }
    owed.settle(&mut put_off);
    for lane in 0..LANES {
        for column in 0..COLUMNS {
            let read = |t: &Tmem| [0x3, 0xf].map(|mask| t.read_masked(lane, column, mask));
            prop_assert_eq!(
                read(&put_off),
                read(&at_once),
                "lane {} column {}",
                lane,
                column
            );
        }
    }
    Ok(())
}

fn f16(m: u32, n: u32) -> Idesc {
    Idesc::dense(
        Kind::F16,
        Element::F16,
        Element::F16,
        Accumulator::F32,
        m,
        n,
    )
}

/// So many onto one D that threads share the work, exact and inexact ones in turn, and more than are put off.
#[test]
fn many_onto_one_d() {
    let of = |i: u32| {
        let operands = if i / 5 % 3 == 2 { (2, 3) } else { (0, 1) };
        mma(f16(128, 256), 8, operands, i % 4)
    };
    let all: Vec<Mma> = (0..100).map(of).collect();
    compare(&all, COLUMNS).unwrap();
    // The first MMA onto a D that nothing has written does not accumulate.
    let mut fresh = all[..40].to_vec();
    fresh[0].accumulate = false;
    compare(&fresh, 0).unwrap();
}

#[test]
fn what_cannot_be_put_off() {
    let plain = mma(f16(64, 8), 0, (0, 1), 0);
    assert!(Owed::takes(&plain));
    let in_tmem = AOperand::Tmem(TmemAddr(64));
    for other in [
        Mma {
            group: CtaGroup::Two,
            ..plain
        },
        Mma {
            a: in_tmem,
            ..plain
        },
        Mma {
            summation: Summation::EachReversed,
            ..plain
        },
    ] {
        assert!(!Owed::takes(&other));
    }
}

fn kinds() -> impl Strategy<Value = (Kind, Element, Accumulator)> {
    prop_oneof![
        6 => Just((Kind::F16, Element::F16, Accumulator::F32)),
        1 => Just((Kind::F16, Element::Bf16, Accumulator::F32)),
        1 => Just((Kind::F16, Element::F16, Accumulator::F16)),
        1 => Just((Kind::Tf32, Element::Tf32, Accumulator::F32)),
        1 => Just((Kind::F8f6f4, Element::E4m3, Accumulator::F32)),
        1 => Just((Kind::I8, Element::S8, Accumulator::S32)),
    ]
}

prop_compose! {
    /// MMAs onto a few places, which meet or do not.
    fn any_mma()(
        (kind, e, d) in kinds(),
        (large, n, column) in (any::<bool>(), 1u32..4, 0u32..4),
        operands in (0u32..4, 0u32..4),
        step in 0u32..4,
        accumulate in prop::bool::weighted(0.8),
        scale in prop_oneof![4 => Just(0u32), 1 => 1u32..16],
        disabled in prop_oneof![3 => Just(0u32), 1 => any::<u32>()],
        unwritten in prop::bool::weighted(0.03),
    ) -> Mma {
        let idesc = Idesc::dense(kind, e, e, d, if large { 128 } else { 64 }, 16 * n);
        let mut m = mma(idesc, 24 * column, operands, step);
        m.accumulate = accumulate;
        m.scale_input_d = if matches!(kind, Kind::F16 | Kind::Tf32) { scale } else { 0 };
        m.disable_lanes[1] = disabled;
        if unwritten { m.b = operand(UNWRITTEN, 0); }
        m
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence(all in prop::collection::vec(any_mma(), 1..12), written in prop_oneof![Just(COLUMNS), 0u32..160]) {
        compare(&all, written)?;
    }
}
