//! `mma.sync` of a warp: section 9.7.14.5.14.

use crate::ast::{Operand, Ty};
use crate::models::mma_sync::{
    Accumulator, Element, Mma, Modifiers, Product, ScaleType, ScaledKind, Scaling, Selector,
};
use crate::program::decode::{Cx, R};
use crate::program::{BlockScales, MmaSync, Op};

/// Forms that are parsed and named, by a modifier that gives them away.
const UNMODELLED: &[(&str, &str)] = &[
    ("sp", "a sparse A"),
    ("sp::ordered_metadata", "a sparse A"),
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
        scaling: None,
    };
    let scaling = match cx.mods.take("block_scale") {
        true => Some(scaled_kind(cx)?),
        false => None,
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
    let scales = match scaling {
        Some((kind, vector)) => {
            let ty = match cx.mods.one_of(&["ue8m0", "ue4m3"]) {
                Some("ue8m0") => ScaleType::Ue8m0,
                Some(_) => ScaleType::Ue4m3,
                None => return Err("the type of the scales is missing".into()),
            };
            cx.count(&[8])?;
            let (a, b) = (
                Selector { byte: 0, thread: 0 },
                Selector { byte: 0, thread: 0 },
            );
            modifiers.scaling = Some(Scaling {
                kind,
                vector,
                ty,
                a,
                b,
            });
            Some([block_scales(cx, 4)?, block_scales(cx, 6)?])
        }
        None => {
            cx.count(&[4])?;
            None
        }
    };
    cx.mods.finish()?;
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
    Ok(Some(Op::Mma(Box::new(MmaSync {
        mma,
        d,
        a,
        b,
        c,
        scales,
    }))))
}

/// `.kind` and scales of a row, of an instruction with block scales.
fn scaled_kind(cx: &mut Cx<'_>) -> R<(ScaledKind, usize)> {
    let kinds = ["kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"];
    let (kind, default) = match cx.mods.one_of(&kinds) {
        Some("kind::mxf8f6f4") => (ScaledKind::Mxf8f6f4, Some(1)),
        Some("kind::mxf4") => (ScaledKind::Mxf4, Some(2)),
        Some(_) => (ScaledKind::Mxf4nvf4, None),
        None => return Err("the .kind of the scaling is missing".into()),
    };
    let vectors = ["scale_vec::1X", "scale_vec::2X", "scale_vec::4X"];
    let vector = match cx.mods.one_of(&vectors) {
        Some("scale_vec::1X") => Some(1),
        Some("scale_vec::2X") => Some(2),
        Some(_) => Some(4),
        None => default,
    };
    Ok((kind, vector.ok_or(".scale_vec_size is missing")?))
}

/// A register of scales and, behind it, `{byte-id, thread-id}`: constants or registers.
fn block_scales(cx: &mut Cx<'_>, i: usize) -> R<BlockScales> {
    let register = registers(cx, i, 1)?;
    let selector = registers(cx, i + 1, 2)?;
    Ok(BlockScales {
        register: cx.src_of(&register[0], Ty::B32)?,
        selector: [
            cx.src_of(&selector[0], Ty::U16)?,
            cx.src_of(&selector[1], Ty::U16)?,
        ],
    })
}

/// M and K of a shape; N is 8.
fn shape(name: &str) -> Option<(usize, usize)> {
    let (m, k) = name.strip_prefix('m')?.split_once("n8k")?;
    Some((m.parse().ok()?, k.parse().ok()?))
}

/// The registers of a fragment; one may stand without braces.
pub(super) fn registers<'a>(cx: &Cx<'a>, i: usize, n: usize) -> R<&'a [Operand]> {
    match cx.operand(i)? {
        Operand::Vector(v) if v.len() == n => Ok(v),
        o @ Operand::Name(_) if n == 1 => Ok(std::slice::from_ref(o)),
        _ => Err(format!("{n} registers are expected as operand {}", i + 1)),
    }
}
