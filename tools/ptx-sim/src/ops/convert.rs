//! `cvt`: section 9.7.9.21 of the ISA.

use super::{sext, zext};
use crate::ast::Ty;
use crate::program::decode::{Cx, R};
use crate::program::{Alu, Op};
use crate::softfloat::{BF16, E2M1, E4M3, E5M2, F16, F32, Format, Round, TF32, int_odd};

/// Rounding of a float to an integral value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Integral {
    Nearest,
    Zero,
    Down,
    Up,
}

impl Integral {
    fn apply(self, x: f64) -> f64 {
        match self {
            Integral::Nearest => x.round_ties_even(),
            Integral::Zero => x.trunc(),
            Integral::Down => x.floor(),
            Integral::Up => x.ceil(),
        }
    }
}

#[derive(Clone, Copy)]
struct Mode {
    round: Option<Round>,
    integral: Option<Integral>,
    ftz: bool,
    sat: bool,
    satfinite: bool,
    relu: bool,
}

fn format(ty: Ty) -> Option<Format> {
    Some(match ty {
        Ty::F16 | Ty::F16x2 => F16,
        Ty::Bf16 | Ty::Bf16x2 => BF16,
        Ty::F32 => F32,
        Ty::Tf32 => TF32,
        Ty::E4m3x2 => E4M3,
        Ty::E5m2x2 => E5M2,
        Ty::E2m1x2 => E2M1,
        _ => return None,
    })
}

fn is_packed(ty: Ty) -> bool {
    matches!(
        ty,
        Ty::F16x2 | Ty::Bf16x2 | Ty::E4m3x2 | Ty::E5m2x2 | Ty::E2m1x2
    )
}

/// Flushes f32 subnormals where the instruction asks for it.
fn flush(bits: u32, ftz: bool) -> u32 {
    if ftz && bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    }
}

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "cvt" {
        return Ok(None);
    }
    if cx.mods.take("pack") {
        return super::pack::decode(cx).map(Some);
    }
    let to = cx.mods.ty()?;
    let from = cx.mods.ty()?;
    let round = match cx.mods.one_of(&["rn", "rna", "rz", "rm", "rp"]) {
        Some("rn") => Some(Round::Nearest),
        Some("rna") => Some(Round::NearestAway),
        Some("rz") => Some(Round::Zero),
        Some("rm") => Some(Round::Down),
        Some("rp") => Some(Round::Up),
        _ => None,
    };
    let integral = match cx.mods.one_of(&["rni", "rzi", "rmi", "rpi"]) {
        Some("rni") => Some(Integral::Nearest),
        Some("rzi") => Some(Integral::Zero),
        Some("rmi") => Some(Integral::Down),
        Some("rpi") => Some(Integral::Up),
        _ => None,
    };
    let m = Mode {
        round,
        integral,
        ftz: cx.mods.take("ftz"),
        sat: cx.mods.take("sat"),
        satfinite: cx.mods.take("satfinite"),
        relu: cx.mods.take("relu"),
    };
    if m.ftz && to != Ty::F32 && from != Ty::F32 {
        return Err(".ftz needs an f32".into());
    }
    if m.round == Some(Round::NearestAway) && to != Ty::Tf32 {
        return Err(".rna is only defined for tf32".into());
    }
    let op = if is_packed(to) || is_packed(from) {
        packed(cx, m, to, from)?
    } else {
        scalar(cx, m, to, from)?
    };
    Ok(Some(op))
}

/// A float value into a format, with everything a `cvt` may ask for.
fn narrow(x: f64, f: Format, m: Mode) -> u64 {
    if m.sat {
        let x = if x > 0.0 { x.min(1.0) } else { 0.0 };
        return u64::from(f.round(x, m.round.unwrap_or(Round::Nearest), false));
    }
    if m.relu && x <= 0.0 {
        return 0;
    }
    u64::from(f.round(x, m.round.unwrap_or(Round::Nearest), m.satfinite))
}

fn packed(cx: &mut Cx<'_>, m: Mode, to: Ty, from: Ty) -> R<Op> {
    let small = matches!(to, Ty::E4m3x2 | Ty::E5m2x2 | Ty::E2m1x2);
    let Some(f) = format(to) else {
        return Err("this conversion is not modelled".into());
    };
    if m.round.is_none() || m.integral.is_some() || m.ftz || m.sat {
        return Err("a rounding mode is missing, or a modifier is not defined here".into());
    }
    if small && (!m.satfinite || m.round != Some(Round::Nearest)) {
        return Err(".rn.satfinite is required here".into());
    }
    let width = to.bits() / 2;
    match from {
        // The first source goes to the upper half.
        Ty::F32 => {
            let v = |b: u64| F32.to_f64(b as u32);
            let g = Alu::of2(move |a, b| narrow(v(a), f, m) << width | narrow(v(b), f, m));
            cx.alu(g, to, &[Ty::F32, Ty::F32])
        }
        Ty::F16x2 | Ty::Bf16x2 if small => {
            let h = format(from).ok_or("not a float")?;
            let g = Alu::of1(move |a| {
                let lo = narrow(h.to_f64((a & 0xffff) as u32), f, m);
                lo | narrow(h.to_f64((a >> 16 & 0xffff) as u32), f, m) << width
            });
            cx.alu(g, to, &[from])
        }
        Ty::E4m3x2 | Ty::E5m2x2 | Ty::E2m1x2 if to == Ty::F16x2 && !m.satfinite => {
            let s = format(from).ok_or("not a float")?;
            let bits = from.bits() / 2;
            // Few codes: a table of all of them.
            let table: Vec<u64> = (0..1u32 << bits)
                .map(|c| narrow(s.to_f64(c), f, m))
                .collect();
            let mask = (1u64 << bits) - 1;
            let g = Alu::of1(move |a| {
                table[(a & mask) as usize] | table[(a >> bits & mask) as usize] << 16
            });
            cx.alu(g, to, &[from])
        }
        _ => Err(format!("conversion from {from} to {to} is not modelled")),
    }
}

fn scalar(cx: &mut Cx<'_>, m: Mode, to: Ty, from: Ty) -> R<Op> {
    let float = |t: Ty| t == Ty::F64 || format(t).is_some();
    let f = match (from.is_int(), to.is_int()) {
        (true, true) => int_to_int(m, to, from)?,
        (true, false) if float(to) => int_to_float(m, to, from)?,
        (false, true) if float(from) => float_to_int(m, to, from)?,
        (false, false) if float(to) && float(from) => float_to_float(m, to, from)?,
        _ => {
            return Err(format!("conversion from {from} to {to} is not modelled"));
        }
    };
    cx.alu(f, to, &[from])
}

fn int_to_int(m: Mode, to: Ty, from: Ty) -> R<Alu> {
    if m.round.is_some() || m.integral.is_some() || m.relu || m.satfinite || m.ftz {
        return Err("conversions between integers do not round".into());
    }
    let (tb, fb) = (to.bits(), from.bits());
    let value = move |a: u64| {
        if from.signed() {
            sext(a, fb) as u64
        } else {
            zext(a, fb)
        }
    };
    // Signed results extend to the whole register, whose width cuts them again.
    let fit = move |v: u64| {
        if to.signed() {
            sext(v, tb) as u64
        } else {
            zext(v, tb)
        }
    };
    if !m.sat {
        return Ok(Alu::of1(move |a| fit(value(a))));
    }
    Ok(Alu::of1(move |a| {
        let v = if from.signed() {
            i128::from(sext(a, fb))
        } else {
            i128::from(zext(a, fb))
        };
        let (lo, hi) = range(to);
        v.clamp(lo, hi) as u64
    }))
}

fn range(ty: Ty) -> (i128, i128) {
    let b = ty.bits();
    if ty.signed() {
        (-(1 << (b - 1)), (1 << (b - 1)) - 1)
    } else {
        (0, (1 << b) - 1)
    }
}

fn int_to_float(m: Mode, to: Ty, from: Ty) -> R<Alu> {
    let Some(round) = m.round else {
        return Err("a rounding mode is missing".into());
    };
    if m.relu || m.satfinite || m.integral.is_some() {
        return Err("a modifier is not defined from integers".into());
    }
    if m.sat {
        // Within [0, 1] an integer is one of the ends, in every rounding mode.
        let one = match format(to) {
            Some(f) => u64::from(f.round(1.0, Round::Nearest, false)),
            None => 1f64.to_bits(),
        };
        let positive = move |a| {
            if from.signed() {
                sext(a, from.bits()) > 0
            } else {
                zext(a, from.bits()) > 0
            }
        };
        return Ok(Alu::of1(move |a| if positive(a) { one } else { 0 }));
    }
    let fb = from.bits();
    let parts = move |a: u64| {
        if from.signed() {
            let v = sext(a, fb);
            (v < 0, v.unsigned_abs())
        } else {
            (false, zext(a, fb))
        }
    };
    match format(to) {
        Some(f) => Ok(Alu::of1(move |a| {
            let (negative, magnitude) = parts(a);
            // Integer zero is +0 in every mode.
            u64::from(f.round(int_odd(negative, magnitude), round, false))
        })),
        None if round == Round::Nearest || fb <= 32 => Ok(Alu::of1(move |a| {
            let (negative, magnitude) = parts(a);
            let v = magnitude as f64;
            (if negative { -v } else { v }).to_bits()
        })),
        None => Err("directed rounding to f64 is not modelled".into()),
    }
}

fn float_bits_to_f64(a: u64, from: Ty, ftz: bool) -> f64 {
    match format(from) {
        Some(F32) => F32.to_f64(flush(a as u32, ftz)),
        Some(f) => f.to_f64((a & 0xffff) as u32),
        None => f64::from_bits(a),
    }
}

fn float_to_int(m: Mode, to: Ty, from: Ty) -> R<Alu> {
    let Some(integral) = m.integral else {
        return Err("an integer rounding mode is missing".into());
    };
    if m.relu || m.satfinite || m.round.is_some() {
        return Err("a modifier is not defined to integers".into());
    }
    let bits = to.bits();
    let nan = if from != Ty::F64 && bits != 64 {
        0
    } else if to.signed() {
        range(to).0 as u64
    } else {
        1u64 << (bits - 1)
    };
    let ftz = m.ftz && from == Ty::F32;
    Ok(Alu::of1(move |a| {
        let x = float_bits_to_f64(a, from, ftz);
        if x.is_nan() {
            return nan;
        }
        // `as` saturates; i128 holds every range.
        let (lo, hi) = range(to);
        (integral.apply(x) as i128).clamp(lo, hi) as u64
    }))
}

/// NaNs whose payload comes through, as recorded on hardware: between f64 and the others, from
/// bf16, and to tf32 with `.rna`.
fn nan_payload(a: u64, from: Ty, to: Ty, m: Mode) -> Option<u64> {
    if m.sat || m.relu || (m.ftz && from == Ty::Bf16) || m.integral.is_some() {
        return None;
    }
    let is_nan = match from {
        Ty::F64 => f64::from_bits(a).is_nan(),
        Ty::F32 => f32::from_bits(a as u32).is_nan(),
        Ty::Bf16 => BF16.is_nan((a & 0xffff) as u32),
        _ => false,
    };
    if !is_nan {
        return None;
    }
    Some(match (from, to) {
        (Ty::F64, Ty::F32) => a >> 63 << 31 | 0x7fc0_0000 | a >> 29 & 0x3f_ffff,
        (Ty::F64, Ty::F16) => a >> 63 << 15 | 0x7e00 | a >> 42 & 0x1ff,
        (Ty::F32, Ty::F64) => (a >> 31 & 1) << 63 | 0x7ff8_0000_0000_0000 | (a & 0x3f_ffff) << 29,
        (Ty::Bf16, Ty::F32) => (a & 0xffff) << 16,
        // Truncated like a number, even to infinity.
        (Ty::F32, Ty::Tf32) if m.round == Some(Round::NearestAway) => a & 0xffff_e000,
        _ => return None,
    })
}

fn float_to_float(m: Mode, to: Ty, from: Ty) -> R<Alu> {
    if from == Ty::Tf32 {
        return Err("tf32 is not a source".into());
    }
    if m.integral.is_some() && (to != from || m.round.is_some()) {
        return Err("integer rounding keeps the type".into());
    }
    let rank = |t: Ty| match t {
        Ty::F64 => 3,
        Ty::F32 => 2,
        _ => 1,
    };
    let narrows = rank(to) < rank(from) || to == Ty::Tf32 || rank(to) == rank(from) && to != from;
    if narrows && m.round.is_none() {
        return Err("a rounding mode is missing".into());
    }
    if !narrows && m.round.is_some() {
        return Err("this conversion does not round".into());
    }
    if (m.relu || m.satfinite) && !(from == Ty::F32 && narrows) {
        return Err(".relu and .satfinite narrow from f32".into());
    }
    let target = format(to);
    Ok(Alu::of1(move |a| {
        if let Some(nan) = nan_payload(a, from, to, m) {
            return nan;
        }
        let mut x = float_bits_to_f64(a, from, m.ftz && from == Ty::F32);
        if let Some(i) = m.integral {
            x = i.apply(x);
        }
        match target {
            Some(F32) => u64::from(flush(narrow(x, F32, m) as u32, m.ftz)),
            // tf32 stands in the upper bits of 32.
            Some(TF32) => narrow(x, TF32, m) << 13,
            Some(f) => narrow(x, f, m),
            None if x.is_nan() => 0x7fff_ffff_ffff_ffff,
            None if m.sat => (if x > 0.0 { x.min(1.0) } else { 0.0 }).to_bits(),
            None => x.to_bits(),
        }
    }))
}

#[cfg(test)]
mod tests;
