//! `wgmma`: section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". What it
//! does stands in `exec/wgmma` and `models/wgmma`.

use crate::ast::{Operand, Ty};
use crate::models::wgmma::{A_REGISTERS, Accumulator, Element, K, M, Shape};
use crate::program::decode::{Cx, R, immediate};
use crate::program::{Dst, Op, Wgmma, WgmmaA, WgmmaMma};

/// Forms that are parsed and named, by a modifier that gives them away.
const UNMODELLED: &[(&str, &str)] = &[
    ("sp", "a sparse A"),
    ("tf32", "tf32"),
    ("e4m3", "e4m3"),
    ("e5m2", "e5m2"),
    ("s8", "integers"),
    ("u8", "integers"),
    ("b1", "single bits"),
];

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "wgmma" {
        return Ok(None);
    }
    for (name, what) in UNMODELLED {
        if cx.ins.mods.iter().any(|m| m == name) {
            let reason = format!("wgmma.mma_async with {what} is not modelled");
            return Ok(Some(Op::Unmodelled { reason }));
        }
    }
    if !cx.b.hopper {
        return Err("wgmma needs `.target sm_90a`".into());
    }
    let what = cx.ins.mods.first().map_or("", String::as_str);
    cx.mods.take(what);
    if !(cx.mods.take("sync") && cx.mods.take("aligned")) {
        return Err(".sync.aligned is missing".into());
    }
    let op = match what {
        "fence" | "commit_group" => {
            cx.mods.finish()?;
            cx.count(&[0])?;
            match what {
                "fence" => Wgmma::Fence,
                _ => Wgmma::Commit,
            }
        }
        "wait_group" => {
            cx.mods.finish()?;
            cx.count(&[1])?;
            let keep = immediate(cx.operand(0)?).and_then(|n| u32::try_from(n).ok());
            Wgmma::Wait {
                keep: keep.ok_or("the number of groups is a constant of 32 bits")?,
            }
        }
        "mma_async" => mma(cx)?,
        _ => return Err(format!(".{what} is not known")),
    };
    Ok(Some(Op::Wgmma(op)))
}

fn mma(cx: &mut Cx<'_>) -> R<Wgmma> {
    let n = cx.mods.find(columns);
    let n = n.ok_or("the shape is missing, or not m64nNk16")?;
    let missing = || "a type is missing or not modelled".to_string();
    let accumulator = cx.mods.find(accumulator).ok_or_else(missing)?;
    let element = cx.mods.find(self::element).ok_or_else(missing)?;
    if cx.mods.find(self::element).ok_or_else(missing)? != element {
        return Err("A and B have one type in this shape".into());
    }
    cx.mods.finish()?;
    let shape = Shape::new(n, element, accumulator).map_err(|e| e.to_string())?;
    let d = registers(cx, 0, shape.d_registers())?;
    let in_registers = matches!(cx.operand(1)?, Operand::Vector(_));
    // A transposition of A only where it lies in shared memory.
    cx.count(&[if in_registers { 7 } else { 8 }])?;
    let sign = |i: usize| match cx.operand(i).map(immediate)? {
        Some(1) => Ok(false),
        Some(v) if v as i64 == -1 || v as u32 as i32 == -1 => Ok(true),
        _ => Err("imm-scale is 1 or -1".to_string()),
    };
    let (negate_a, negate_b) = (sign(4)?, sign(5)?);
    let transposed = |i: usize| match cx.operand(i).map(immediate)? {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err("imm-trans is 0 or 1".to_string()),
    };
    let (a, transposed_b) = if in_registers {
        let transposed_b = transposed(6)?;
        let a = registers(cx, 1, A_REGISTERS)?;
        let a = a.try_into().map_err(|_| "A is four registers")?;
        (WgmmaA::Registers(a), transposed_b)
    } else {
        let (transposed, transposed_b) = (transposed(6)?, transposed(7)?);
        let descriptor = cx.src(1, Ty::B64)?;
        let a = WgmmaA::Shared {
            descriptor,
            transposed,
        };
        (a, transposed_b)
    };
    distinct(&d, &a)?;
    Ok(Wgmma::Mma(Box::new(WgmmaMma {
        shape,
        d,
        a,
        b: cx.src(2, Ty::B64)?,
        transposed_b,
        accumulate: cx.pred(3)?,
        negate_a,
        negate_b,
    })))
}

/// N of `m64nNk16`.
fn columns(modifier: &str) -> Option<u32> {
    let rest = modifier.strip_prefix('m')?;
    let (m, rest) = rest.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    let [m, n, k] = [m, n, k].map(|v| v.parse::<u32>().ok());
    (m == Some(M) && k == Some(K)).then_some(n?)
}

fn accumulator(modifier: &str) -> Option<Accumulator> {
    match modifier {
        "f16" => Some(Accumulator::F16),
        "f32" => Some(Accumulator::F32),
        _ => None,
    }
}

fn element(modifier: &str) -> Option<Element> {
    match modifier {
        "f16" => Some(Element::F16),
        "bf16" => Some(Element::Bf16),
        _ => None,
    }
}

fn registers(cx: &mut Cx<'_>, i: usize, n: usize) -> R<Vec<Dst>> {
    let Operand::Vector(all) = cx.operand(i)? else {
        return Err(format!("{n} registers are expected as operand {}", i + 1));
    };
    if all.len() != n {
        return Err(format!("{n} registers are expected as operand {}", i + 1));
    }
    let one = |o| -> R<Dst> {
        cx.dst_of(o, Ty::B32)?
            .ok_or_else(|| "`_` cannot be a part of a matrix".into())
    };
    all.iter().map(one).collect()
}

/// No register holds two parts of D, or of D and A.
fn distinct(d: &[Dst], a: &WgmmaA) -> R<()> {
    let mut all: Vec<u32> = d.iter().map(|r| r.0).collect();
    all.sort_unstable();
    if all.windows(2).any(|w| w[0] == w[1]) {
        return Err("a register stands twice in the accumulator".into());
    }
    match a {
        WgmmaA::Registers(a) if a.iter().any(|r| all.binary_search(&r.0).is_ok()) => {
            Err("a register is both accumulator and A".into())
        }
        _ => Ok(()),
    }
}
