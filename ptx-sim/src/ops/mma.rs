//! `mma.sync` of a warp: section 9.7.14.5.14.

use crate::ast::{Operand, Ty};
use crate::models::mma_sync::{Accumulator, Element, Mma, Modifiers, Product};
use crate::program::decode::{Cx, R};
use crate::program::{MmaSync, Op};

/// Forms that are parsed and named, by a modifier that gives them away.
const UNMODELLED: &[(&str, &str)] = &[
    ("sp", "a sparse A"),
    ("sp::ordered_metadata", "a sparse A"),
    ("block_scale", "block scaling"),
    ("f64", "f64"),
    ("m8n8k4", "the shape m8n8k4"),
];

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "mma" {
        return Ok(None);
    }
    for (name, what) in UNMODELLED {
        if cx.ins.mods.iter().any(|m| m == name) {
            let reason = format!("mma.sync with {what} is not modelled");
            return Ok(Some(Op::Unmodelled { reason }));
        }
    }
    if !(cx.mods.take("sync") && cx.mods.take("aligned")) {
        return Err(".sync.aligned is missing".into());
    }
    let shape = cx.mods.find(shape);
    let shape = shape.ok_or("the shape is missing or not modelled")?;
    if !(cx.mods.take("row") && cx.mods.take("col")) {
        return Err(".row.col is missing".into());
    }
    let mut modifiers = Modifiers {
        f8f6f4: cx.mods.take("kind::f8f6f4"),
        satfinite: cx.mods.take("satfinite"),
        product: Product::Times,
    };
    let missing = || "a type is missing or not modelled".to_string();
    let d = cx.mods.find(Accumulator::parse).ok_or_else(missing)?;
    let a = cx.mods.find(Element::parse).ok_or_else(missing)?;
    let b = cx.mods.find(Element::parse).ok_or_else(missing)?;
    let c = cx.mods.find(Accumulator::parse).ok_or_else(missing)?;
    if c != d {
        return Err("C and D have one type in these shapes".into());
    }
    if let Some(operation) = cx.mods.one_of(&["and", "xor"]) {
        modifiers.product = match operation {
            "and" => Product::And,
            _ => Product::Xor,
        };
        if !cx.mods.take("popc") {
            return Err(".popc is missing".into());
        }
    }
    cx.mods.finish()?;
    cx.count(&[4])?;
    let mma = Mma::new(shape, a, b, d, modifiers).map_err(|e| e.to_string())?;
    let (na, nb, nc) = mma.registers();
    let d = registers(cx, 0, nc)?
        .iter()
        .map(|o| cx.dst_of(o, Ty::B32))
        .collect::<R<_>>()?;
    let mut sources = |i, n| -> R<Vec<_>> {
        registers(cx, i, n)?
            .iter()
            .map(|o| cx.src_of(o, Ty::B32))
            .collect()
    };
    let (a, b, c) = (sources(1, na)?, sources(2, nb)?, sources(3, nc)?);
    Ok(Some(Op::Mma(Box::new(MmaSync { mma, d, a, b, c }))))
}

/// M and K of a shape; N is 8.
fn shape(name: &str) -> Option<(usize, usize)> {
    let (m, k) = name.strip_prefix('m')?.split_once("n8k")?;
    Some((m.parse().ok()?, k.parse().ok()?))
}

/// The registers of a fragment; one may stand without braces.
fn registers<'a>(cx: &Cx<'a>, i: usize, n: usize) -> R<&'a [Operand]> {
    match cx.operand(i)? {
        Operand::Vector(v) if v.len() == n => Ok(v),
        o @ Operand::Name(_) if n == 1 => Ok(std::slice::from_ref(o)),
        _ => Err(format!("{n} registers are expected as operand {}", i + 1)),
    }
}
