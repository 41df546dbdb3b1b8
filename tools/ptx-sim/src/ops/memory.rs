//! Loads, stores, atomics: which bytes move. Section 9.7.9 and 9.7.13.5 of the ISA.

use crate::ast::{Operand, Ty};
use crate::memory::Space;
use crate::models::tma_bulk::{ReduceDst, ReduceOp, check_reduction, reduced};
use crate::program::decode::{Cx, R, immediate};
use crate::program::{AtomicFn, Dst, Op, Order, Src};

use std::sync::Arc;

/// Modifiers that order or cache. Such modifiers change no value: execution here is sequentially consistent, and orders
/// are the hazard tracker's matter.
fn take_ordering(cx: &mut Cx<'_>) -> Order {
    let mut order = Order::default();
    // At most one of each.
    #[rustfmt::skip]
    const KNOWN: &[&[&str]] = &[
        &["weak", "relaxed", "acquire", "release", "acq_rel", "volatile"], &["mmio"],
        &["cta", "cluster", "gpu", "sys"], &["nc"], &["unified"],
        &["ca", "cg", "cs", "lu", "cv", "wb", "wt"],
        &["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"],
        &["L2::evict_normal", "L2::evict_first", "L2::evict_last"], &["L2::64B", "L2::128B", "L2::256B"],
    ];
    for m in KNOWN.iter().filter_map(|kind| cx.mods.one_of(kind)) {
        order.strong |= matches!(
            m,
            "relaxed" | "acquire" | "release" | "acq_rel" | "volatile" | "mmio"
        );
        order.acquires |= matches!(m, "acquire" | "acq_rel");
        order.releases |= matches!(m, "release" | "acq_rel");
    }
    order
}

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let asynchronous = cx.ins.mods.iter().any(|m| m == "async" || m == "bulk");
    let op = match cx.ins.opcode.as_str() {
        _ if asynchronous => return Ok(None),
        "ld" | "ldu" => load(cx)?,
        "st" => store(cx)?,
        "atom" => atomic(cx, true)?,
        "red" => atomic(cx, false)?,
        "prefetch" | "prefetchu" | "applypriority" => {
            cx.space();
            let levels = [
                "L1",
                "L2",
                "L2::evict_last",
                "L2::evict_normal",
                "tensormap",
            ];
            cx.mods.one_of(&levels).ok_or("a level is missing")?;
            cx.mods.finish()?;
            cx.count(&[if cx.ins.opcode == "applypriority" {
                2
            } else {
                1
            }])?;
            if !matches!(cx.operand(0)?, Operand::Address { .. }) {
                return Err("an address in brackets is expected".into());
            }
            Op::Prefetch
        }
        "discard" => {
            let (space, own) = cx.space();
            if !matches!(space, None | Some(Space::Global)) || !cx.mods.take("L2") {
                return Err("only discard.global.L2 is defined".into());
            }
            cx.mods.finish()?;
            cx.count(&[2])?;
            if immediate(cx.operand(1)?) != Some(128) {
                return Err("the size must be 128".into());
            }
            Op::Discard {
                addr: cx.addr(0, space, own)?,
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn vector(cx: &mut Cx<'_>) -> usize {
    match cx.mods.one_of(&["v2", "v4", "v8"]) {
        Some("v2") => 2,
        Some("v4") => 4,
        Some("v8") => 8,
        _ => 1,
    }
}

/// Bytes of an element, and of all, which are the alignment.
fn sizes(t: Ty, n: usize, space: Option<Space>) -> R<(u32, u32)> {
    if t == Ty::Pred {
        return Err("predicates cannot be loaded or stored".into());
    }
    let total = t.bytes() * n as u32;
    let wide = total == 32 && matches!((n, t.bytes()), (8, 4) | (4, 8));
    if (n == 8 || total > 16) && !wide {
        return Err("an access has at most 16 bytes, or 32 as .v8 of 32 or .v4 of 64 bits".into());
    }
    if wide && !matches!(space, None | Some(Space::Global)) {
        return Err("accesses of 32 bytes are of global memory".into());
    }
    Ok((t.bytes().min(8), total))
}

fn hint(cx: &mut Cx<'_>, plain: usize) -> R<()> {
    let hinted = cx.mods.take("L2::cache_hint");
    cx.count(&[plain + usize::from(hinted)])?;
    if hinted {
        cx.src(plain, Ty::B64)?;
    }
    Ok(())
}

fn load(cx: &mut Cx<'_>) -> R<Op> {
    let (space, own) = cx.space();
    let order = take_ordering(cx);
    let n = vector(cx);
    let t = cx.mods.ty()?;
    hint(cx, 2)?;
    cx.mods.finish()?;
    let (bytes, align) = sizes(t, n, space)?;
    let mut d = Vec::new();
    for o in cx.vector(0, n)? {
        let r = cx.dst_of(o, t)?;
        d.push(r);
        if t == Ty::B128 {
            d.push(r.map(|Dst(s)| Dst(s + 1)));
        }
    }
    Ok(Op::Ld {
        d,
        addr: cx.addr(1, space, own)?,
        bytes,
        align,
        signed: t.signed(),
        order,
    })
}

fn store(cx: &mut Cx<'_>) -> R<Op> {
    let (space, own) = cx.space();
    if space == Some(Space::Const) {
        return Err("constant memory cannot be written".into());
    }
    let order = take_ordering(cx);
    let n = vector(cx);
    let t = cx.mods.ty()?;
    hint(cx, 2)?;
    cx.mods.finish()?;
    let (bytes, align) = sizes(t, n, space)?;
    let mut s = Vec::new();
    for o in cx.vector(1, n)? {
        let r = cx.src_of(o, t)?;
        s.push(r);
        if t == Ty::B128 {
            s.push(Src(r.0 + 1));
        }
    }
    Ok(Op::St {
        s,
        addr: cx.addr(0, space, own)?,
        bytes,
        align,
        order,
    })
}

fn atomic(cx: &mut Cx<'_>, returns: bool) -> R<Op> {
    let (space, own) = cx.space();
    let order = Order {
        strong: true,
        reduces: !returns,
        ..take_ordering(cx)
    };
    if vector(cx) != 1 {
        return Err("vector atomics are not modelled".into());
    }
    let noftz = cx.mods.take("noftz");
    let op = cx
        .mods
        .one_of(&[
            "add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas",
        ])
        .ok_or("the operation is missing or not modelled")?;
    let t = cx.mods.ty()?;
    if !matches!(t.bits(), 16 | 32 | 64) {
        return Err(format!("atomics on {t} are not modelled"));
    }
    if matches!(space, Some(Space::Local | Space::Param | Space::Const)) {
        return Err("atomics work on global and shared memory".into());
    }
    let f = atomic_fn(op, t, noftz)?;
    let cas = op == "cas";
    let first = usize::from(returns);
    hint(cx, first + 2 + usize::from(cas))?;
    cx.mods.finish()?;
    let d = if returns {
        let o = cx.operand(0)?;
        cx.dst_of(o, t)?
    } else {
        None
    };
    let b = cx.src(first + 1, t)?;
    let c = if cas { cx.src(first + 2, t)? } else { b };
    Ok(Op::Atom {
        f,
        d,
        addr: cx.addr(first, space, own)?,
        bytes: t.bytes(),
        b,
        c,
        order,
    })
}

/// The new value from the old one, b and c.
fn atomic_fn(op: &str, t: Ty, noftz: bool) -> R<AtomicFn> {
    use Ty::*;
    let make = |f| AtomicFn {
        f,
        compares: op == "cas",
    };
    let wrap = |f: fn(u64, u64, u64) -> u64| make(Arc::new(f));
    Ok(match (op, t) {
        ("exch", B32 | B64) => wrap(|_, b, _| b),
        ("cas", B16 | B32 | B64) => wrap(|o, b, c| if o == b { c } else { o }),
        // On global memory the sum of f32 flushes subnormals, on shared memory it does not.
        ("add", F32) => wrap(|o, b, global| {
            let flush = |x: f32| {
                if global == 1 && x.is_subnormal() {
                    0f32.copysign(x)
                } else {
                    x
                }
            };
            let sum = flush(flush(f32::from_bits(o as u32)) + flush(f32::from_bits(b as u32)));
            u64::from(if sum.is_nan() {
                0x7fff_ffff
            } else {
                sum.to_bits()
            })
        }),
        ("add", F64) => wrap(|o, b, _| (f64::from_bits(o) + f64::from_bits(b)).to_bits()),
        _ => {
            let (of, packed) = match t {
                F16x2 => (F16, true),
                Bf16x2 => (Bf16, true),
                _ => (t, false),
            };
            let half = matches!(of, F16 | Bf16);
            let op = ReduceOp::parse(op)
                .filter(|op| check_reduction(*op, of, ReduceDst::Global).is_ok())
                .filter(|op| !half || noftz && *op == ReduceOp::Add)
                .ok_or_else(|| format!("atomic {op} of {t} is not defined or not modelled"))?;
            make(Arc::new(move |old, b, _| match packed {
                false => reduced(op, of, old, b),
                true => {
                    let upper = reduced(op, of, old >> 16, b >> 16);
                    upper << 16 | reduced(op, of, old & 0xffff, b & 0xffff)
                }
            }))
        }
    })
}
