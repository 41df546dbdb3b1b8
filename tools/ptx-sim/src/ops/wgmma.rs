//! `wgmma`: section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". The instructions' effects
//! are in `exec/wgmma` and `models/wgmma`.

use crate::ast::{Operand, Ty};
use crate::models::wgmma::{A_REGISTERS, Accumulator, Element, M, Shape};
use crate::program::decode::{Cx, R, immediate};
use crate::program::{Dst, Op, Wgmma, WgmmaA, WgmmaMma};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "wgmma" {
        return Ok(None);
    }
    if cx.ins.mods.iter().any(|m| m == "sp") {
        let reason = "wgmma.mma_async with a sparse A is not modelled".into();
        return Ok(Some(Op::Unmodelled { reason }));
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
    let size = cx.mods.find(size);
    let (n, k) = size.ok_or("the shape is missing, or not m64nNkK")?;
    let missing = || "a type is missing or not known".to_string();
    let accumulator = cx.mods.find(Accumulator::parse).ok_or_else(missing)?;
    let a = cx.mods.find(Element::parse).ok_or_else(missing)?;
    let b = cx.mods.find(Element::parse).ok_or_else(missing)?;
    let shape = Shape::new(n, a, b, accumulator).map_err(|e| e.to_string())?;
    if shape.k() != k {
        return Err(format!("the shape of these types is m64nNk{}", shape.k()));
    }
    let saturate = shape.is_integer() && a != Element::B1 && cx.mods.take("satfinite");
    if a == Element::B1 && !(cx.mods.take("and") && cx.mods.take("popc")) {
        return Err(".and.popc is missing".into());
    }
    cx.mods.finish()?;
    let d = registers(cx, 0, shape.d_registers())?;
    let in_registers = matches!(cx.operand(1)?, Operand::Vector(_));
    // Floats can be negated, and an operand in shared memory can be transposed if its elements have 16 bits.
    let signs = if shape.is_integer() { 0 } else { 2 };
    let transpositions = match (shape.has_transposition(), in_registers) {
        (false, _) => 0,
        (true, true) => 1,
        (true, false) => 2,
    };
    cx.count(&[4 + signs + transpositions])?;
    let sign = |i: usize| match cx.operand(i).map(immediate)? {
        Some(1) => Ok(false),
        Some(v) if v as i64 == -1 || v as u32 as i32 == -1 => Ok(true),
        _ => Err("imm-scale is 1 or -1".to_string()),
    };
    let (negate_a, negate_b) = match signs {
        0 => (false, false),
        _ => (sign(4)?, sign(5)?),
    };
    let transposed = |i: usize| match cx.operand(i).map(immediate)? {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err("imm-trans is 0 or 1".to_string()),
    };
    let (transposed_a, transposed_b) = match transpositions {
        0 => (false, false),
        1 => (false, transposed(6)?),
        _ => (transposed(6)?, transposed(7)?),
    };
    let a = if in_registers {
        let a = registers(cx, 1, A_REGISTERS)?;
        WgmmaA::Registers(a.try_into().map_err(|_| "A is four registers")?)
    } else {
        WgmmaA::Shared {
            descriptor: cx.src(1, Ty::B64)?,
            transposed: transposed_a,
        }
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
        saturate,
    })))
}

/// N and K of `m64nNkK`.
fn size(modifier: &str) -> Option<(u32, u32)> {
    let rest = modifier.strip_prefix('m')?;
    let (m, rest) = rest.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    let [m, n, k] = [m, n, k].map(|v| v.parse::<u32>().ok());
    (m == Some(M)).then_some((n?, k?))
}

fn registers(cx: &mut Cx<'_>, i: usize, n: usize) -> R<Vec<Dst>> {
    let all = cx.vector(i, n)?;
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
