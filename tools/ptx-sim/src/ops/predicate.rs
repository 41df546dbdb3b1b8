//! `setp`, `selp` and logic on predicates: sections 9.7.6 and 9.7.7.

use super::{first_type, sext, zext};
use crate::ast::{Operand, Ty};
use crate::program::decode::{Cx, R};
use crate::program::{BoolOp, Compare, Op, PredSrc};
use crate::softfloat::{BF16, F16, F32};

use std::sync::Arc;

fn over_lanes(f: impl Fn(u64, u64) -> bool + Send + Sync + 'static) -> Compare {
    Compare(Arc::new(move |a, b| {
        let mut m = 0;
        for i in 0..32 {
            m |= u32::from(f(a[i], b[i])) << i;
        }
        (m, 0)
    }))
}

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let op = match cx.ins.opcode.as_str() {
        "setp" => setp(cx)?,
        "testp" => testp(cx)?,
        "selp" => {
            let t = cx.mods.ty()?;
            cx.mods.finish()?;
            cx.count(&[4])?;
            if !matches!(t.bits(), 16 | 32 | 64) {
                return Err(format!("selp of {t} is not defined"));
            }
            Op::Selp {
                d: cx.dst(0, t)?,
                a: cx.src(1, t)?,
                b: cx.src(2, t)?,
                p: cx.pred(3)?,
            }
        }
        "and" | "or" | "xor" | "not" | "mov" if first_type(cx.ins) == Some(Ty::Pred) => {
            cx.mods.take("pred");
            cx.mods.finish()?;
            let one = matches!(cx.ins.opcode.as_str(), "not" | "mov");
            cx.count(&[if one { 2 } else { 3 }])?;
            let d = cx.pred_dst(0)?;
            let a = cx.pred(1)?;
            let (op, b) = match cx.ins.opcode.as_str() {
                "and" => (BoolOp::And, cx.pred(2)?),
                "or" => (BoolOp::Or, cx.pred(2)?),
                "xor" => (BoolOp::Xor, cx.pred(2)?),
                // Slot 0 always holds true: xor with it inverts, xor with its opposite copies.
                "not" => (
                    BoolOp::Xor,
                    PredSrc {
                        slot: 0,
                        negated: false,
                    },
                ),
                _ => (
                    BoolOp::Xor,
                    PredSrc {
                        slot: 0,
                        negated: true,
                    },
                ),
            };
            Op::PredLogic { op, d, a, b }
        }
        _ => return Ok(None),
    };
    Ok(Some(op))
}

/// Takes the comparison of `setp` or `set`.
pub(super) fn comparison_name(cx: &mut Cx<'_>) -> R<&'static str> {
    cx.mods
        .one_of(&[
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu",
            "gtu", "geu", "num", "nan",
        ])
        .ok_or_else(|| "a comparison is missing".into())
}

/// Takes the operation that combines a comparison with a predicate.
pub(super) fn combination(cx: &mut Cx<'_>) -> Option<BoolOp> {
    Some(match cx.mods.one_of(&["and", "or", "xor"])? {
        "and" => BoolOp::And,
        "or" => BoolOp::Or,
        _ => BoolOp::Xor,
    })
}

/// `testp`: zeros are normal, and NaN and infinity are neither normal nor subnormal.
fn testp(cx: &mut Cx<'_>) -> R<Op> {
    use std::num::FpCategory::{self, Infinite, Nan, Normal, Subnormal, Zero};
    let test: fn(FpCategory) -> bool = match cx.mods.one_of(&[
        "finite",
        "infinite",
        "number",
        "notanumber",
        "normal",
        "subnormal",
    ]) {
        Some("finite") => |c| !matches!(c, Infinite | Nan),
        Some("infinite") => |c| c == Infinite,
        Some("number") => |c| c != Nan,
        Some("notanumber") => |c| c == Nan,
        Some("normal") => |c| matches!(c, Normal | Zero),
        Some(_) => |c| c == Subnormal,
        None => return Err("a property is missing".into()),
    };
    let t = cx.mods.ty()?;
    cx.mods.finish()?;
    cx.count(&[2])?;
    let f = match t {
        Ty::F32 => over_lanes(move |a, _| test(f32::from_bits(a as u32).classify())),
        Ty::F64 => over_lanes(move |a, _| test(f64::from_bits(a).classify())),
        _ => return Err(format!("testp of {t} is not defined")),
    };
    let a = cx.src(1, t)?;
    Ok(Op::Setp {
        f,
        p: Some(cx.pred_dst(0)?),
        q: None,
        a,
        b: a,
        with: None,
        packed: false,
    })
}

fn setp(cx: &mut Cx<'_>) -> R<Op> {
    let cmp = comparison_name(cx)?;
    let combine = combination(cx);
    let t = cx.mods.ty()?;
    let ftz = cx.mods.take("ftz");
    cx.mods.finish()?;
    let n = cx.count(if combine.is_some() { &[4] } else { &[3] })?;
    let packed = matches!(t, Ty::F16x2 | Ty::Bf16x2);
    let f = comparison(cmp, t, ftz)?;
    let (p, q) = match cx.operand(0)? {
        Operand::Pair(p, q) => (cx.pred_dst_of(p)?, cx.pred_dst_of(q)?),
        o if !packed => (cx.pred_dst_of(o)?, None),
        _ => return Err("a packed comparison has two results".into()),
    };
    let with = match combine {
        None => None,
        Some(op) => Some((op, cx.pred(n - 1)?)),
    };
    Ok(Op::Setp {
        f,
        p,
        q,
        a: cx.src(1, t)?,
        b: cx.src(2, t)?,
        with,
        packed,
    })
}

pub(super) fn comparison(cmp: &'static str, t: Ty, ftz: bool) -> R<Compare> {
    use Ty::*;
    if ftz && !matches!(t, F32 | F16 | F16x2) {
        return Err(".ftz needs a float".into());
    }
    let bits = t.bits();
    Ok(match t {
        B16 | B32 | B64 => match cmp {
            "eq" => over_lanes(move |a, b| zext(a, bits) == zext(b, bits)),
            "ne" => over_lanes(move |a, b| zext(a, bits) != zext(b, bits)),
            _ => return Err(format!(".{cmp} is not defined for bit types")),
        },
        U16 | U32 | U64 | S16 | S32 | S64 => {
            if matches!(cmp, "lo" | "ls" | "hi" | "hs") && t.signed() {
                return Err(format!(".{cmp} is not defined for signed types"));
            }
            // Signed order is unsigned order with the sign bit turned over.
            let key = move |v: u64| {
                if t.signed() {
                    sext(v, bits) as u64 ^ 1 << 63
                } else {
                    zext(v, bits)
                }
            };
            match cmp {
                "eq" => over_lanes(move |a, b| key(a) == key(b)),
                "ne" => over_lanes(move |a, b| key(a) != key(b)),
                "lt" | "lo" => over_lanes(move |a, b| key(a) < key(b)),
                "le" | "ls" => over_lanes(move |a, b| key(a) <= key(b)),
                "gt" | "hi" => over_lanes(move |a, b| key(a) > key(b)),
                "ge" | "hs" => over_lanes(move |a, b| key(a) >= key(b)),
                _ => return Err(format!(".{cmp} is not defined for integers")),
            }
        }
        F32 | F64 | F16 | Bf16 => {
            let value = move |v: u64| match t {
                F32 => {
                    let b = v as u32;
                    F32_.to_f64(if ftz && b & 0x7f80_0000 == 0 {
                        b & 0x8000_0000
                    } else {
                        b
                    })
                }
                F16 => flushed_half(v, ftz),
                Bf16 => BF16.to_f64((v & 0xffff) as u32),
                _ => f64::from_bits(v),
            };
            let f = float_compare(cmp)?;
            over_lanes(move |a, b| f(value(a), value(b)))
        }
        F16x2 | Bf16x2 => {
            let value = move |v: u64| {
                if t == F16x2 {
                    flushed_half(v, ftz)
                } else {
                    BF16.to_f64((v & 0xffff) as u32)
                }
            };
            let f = float_compare(cmp)?;
            Compare(Arc::new(move |a, b| {
                let (mut lo, mut hi) = (0, 0);
                for i in 0..32 {
                    lo |= u32::from(f(value(a[i]), value(b[i]))) << i;
                    hi |= u32::from(f(value(a[i] >> 16), value(b[i] >> 16))) << i;
                }
                (lo, hi)
            }))
        }
        other => return Err(format!("setp of {other} is not modelled")),
    })
}

/// The format, named apart from the type of the same name.
const F32_: crate::softfloat::Format = F32;

fn flushed_half(v: u64, ftz: bool) -> f64 {
    let b = (v & 0xffff) as u32;
    F16.to_f64(if ftz && b & 0x7c00 == 0 {
        b & 0x8000
    } else {
        b
    })
}

fn float_compare(cmp: &str) -> R<fn(f64, f64) -> bool> {
    // Rust's comparisons are the ordered ones; the rest are opposites of them.
    Ok(match cmp {
        "eq" => |a, b| a == b,
        "ne" => |a, b| matches!(a.partial_cmp(&b), Some(o) if o.is_ne()),
        "lt" => |a, b| a < b,
        "le" => |a, b| a <= b,
        "gt" => |a, b| a > b,
        "ge" => |a, b| a >= b,
        "equ" => |a, b| !matches!(a.partial_cmp(&b), Some(o) if o.is_ne()),
        "neu" => |a, b| a != b,
        "ltu" => |a, b| !matches!(a.partial_cmp(&b), Some(o) if o.is_ge()),
        "leu" => |a, b| !matches!(a.partial_cmp(&b), Some(o) if o.is_gt()),
        "gtu" => |a, b| !matches!(a.partial_cmp(&b), Some(o) if o.is_le()),
        "geu" => |a, b| !matches!(a.partial_cmp(&b), Some(o) if o.is_lt()),
        "num" => |a, b| !a.is_nan() && !b.is_nan(),
        "nan" => |a, b| a.is_nan() || b.is_nan(),
        other => return Err(format!(".{other} is not defined for floats")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cmp(c: &'static str, t: Ty, a: u64, b: u64) -> bool {
        let f = comparison(c, t, false).unwrap();
        (f.0)(&[a; 32], &[b; 32]).0 & 1 == 1
    }

    #[test]
    fn order() {
        let f = |x: f32| u64::from(x.to_bits());
        assert!(cmp("lt", Ty::S32, 0xffff_ffff, 0));
        assert!(!cmp("lt", Ty::U32, 0xffff_ffff, 0));
        assert!(cmp("ge", Ty::S16, 0, 0x8000));
        assert!(cmp("eq", Ty::F32, f(0.0), f(-0.0)));
        for (c, with_nan) in [
            ("eq", false),
            ("ne", false),
            ("lt", false),
            ("equ", true),
            ("neu", true),
            ("ltu", true),
            ("geu", true),
            ("nan", true),
            ("num", false),
        ] {
            assert_eq!(cmp(c, Ty::F32, f(f32::NAN), f(1.0)), with_nan, "{c}");
        }
        assert!(!cmp("ltu", Ty::F32, f(2.0), f(1.0)));
        assert!(comparison("lt", Ty::B32, false).is_err());
        assert!(comparison("lo", Ty::S32, false).is_err());
    }
}
