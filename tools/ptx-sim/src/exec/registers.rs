//! Instructions that only move bits between registers and predicates.

use super::poison::PREDICATE;
use super::warp::Warp;
use crate::ops::bitfield::insert_bits;
use crate::ops::int::product;
use crate::program::{Lanes, Op, Program};

pub(super) fn execute(p: &Program, w: &mut Warp, op: &Op, active: u32) {
    match op {
        Op::Multi(moves) => {
            if let [(d, s)] = moves.as_slice() {
                let v = *w.get(p, *s);
                w.set(p, *d, &v, active);
            } else {
                let v: Vec<Lanes> = moves.iter().map(|(_, s)| *w.get(p, *s)).collect();
                for ((d, _), v) in moves.iter().zip(&v) {
                    w.set(p, *d, v, active);
                }
            }
        }
        Op::Pack { d, parts, bits } => {
            let mut out = [0; 32];
            let mask = (1u64 << bits) - 1;
            for (i, s) in parts.iter().enumerate() {
                for (o, v) in out.iter_mut().zip(w.get(p, *s)) {
                    *o |= (v & mask) << (*bits * i as u32);
                }
            }
            w.set(p, *d, &out, active);
        }
        Op::Unpack { parts, a, bits } => {
            let v = *w.get(p, *a);
            let mask = (1u64 << bits) - 1;
            for (i, d) in parts.iter().enumerate() {
                if let Some(d) = d {
                    let part = v.map(|x| x >> (*bits * i as u32) & mask);
                    w.set(p, *d, &part, active);
                }
            }
        }
        Op::Setp {
            f,
            p: first,
            q,
            a,
            b,
            with,
            packed,
        } => {
            let (r, hi) = (f.0)(w.get(p, *a), w.get(p, *b));
            let second = if *packed { hi } else { !r };
            let combine = |v: u32| with.map_or(v, |(op, s)| op.apply(v, w.pred(s)));
            let (r, second) = (combine(r), combine(second));
            if let Some(d) = first {
                w.set_pred(*d, r, active);
            }
            if let Some(d) = q {
                w.set_pred(*d, second, active);
            }
        }
        Op::Set {
            f,
            d,
            a,
            b,
            with,
            yes,
            packed,
        } => {
            let (lo, hi) = (f.0)(w.get(p, *a), w.get(p, *b));
            let combine = |v: u32| with.map_or(v, |(op, s)| op.apply(v, w.pred(s)));
            let (lo, hi) = (combine(lo), if *packed { combine(hi) } else { 0 });
            let part = |m: u32, i: usize| if m >> i & 1 == 1 { *yes } else { 0 };
            let out = std::array::from_fn(|i| part(lo, i) | part(hi, i) << 16);
            w.set(p, *d, &out, active);
        }
        Op::Selp { d, a, b, p: by } => {
            let (x, y, m) = (w.get(p, *a), w.get(p, *b), w.pred(*by));
            let undefined = |slot| w.poison.undefined(slot);
            let chosen = undefined(a.0) & m | undefined(b.0) & !m;
            let chosen = chosen | undefined(by.slot | PREDICATE);
            w.poison.choose(chosen, u32::MAX);
            let mut out = [0; 32];
            for i in 0..32 {
                out[i] = if m >> i & 1 == 1 { x[i] } else { y[i] };
            }
            w.set(p, *d, &out, active);
        }
        Op::PredLogic { op, d, a, b } => {
            let v = op.apply(w.pred(*a), w.pred(*b));
            w.set_pred(*d, v, active);
        }
        Op::Insert {
            d,
            a,
            b,
            at,
            n,
            bits,
        } => {
            let (a, b) = (w.get(p, *a), w.get(p, *b));
            let (at, n) = (w.get(p, *at), w.get(p, *n));
            let out = std::array::from_fn(|i| insert_bits(a[i], b[i], at[i], n[i], *bits));
            w.set(p, *d, &out, active);
        }
        Op::Carry { .. } => carry(p, w, op, active),
        _ => {}
    }
}

fn carry(p: &Program, w: &mut Warp, op: &Op, active: u32) {
    let Op::Carry { d, a, b, times, f } = op else {
        return;
    };
    let (x, y) = (w.get(p, *a), w.get(p, *b));
    let factor = times.map(|t| w.get(p, t));
    let mask = if f.bits == 64 {
        u64::MAX
    } else {
        (1 << f.bits) - 1
    };
    let mut out = [0; 32];
    let mut carries = 0;
    for i in 0..32 {
        let cin = u128::from(f.carry_in && w.carry >> i & 1 == 1);
        let first = match factor {
            None => x[i],
            Some(t) => {
                let v = product(f.bits, f.signed, x[i], t[i]);
                (if f.high { v >> f.bits } else { v }) as u64
            }
        };
        let (x, y) = (u128::from(first & mask), u128::from(y[i] & mask));
        // A borrow is kept as the carry.
        let r = if f.subtract {
            x.wrapping_sub(y).wrapping_sub(cin)
        } else {
            x + y + cin
        };
        carries |= u32::from(r >> f.bits & 1 == 1) << i;
        out[i] = r as u64 & mask;
    }
    w.set(p, *d, &out, active);
    if f.carry_out {
        w.carry = w.carry & !active | carries & active;
    }
}
