//! `mma.sync` of a warp: section 9.7.14.5.14.

use crate::ast::Ty;
use crate::models::mma_sync::{
    Accumulator, Element, Kind, Mma, Modifiers, Product, ScaleType, Scaling, Selector,
};
use crate::program::decode::{Cx, R};
use crate::program::{BlockScales, Dst, MmaSync, Op, Src};

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
            let ty = cx.mods.find(ScaleType::parse);
            let ty = ty.ok_or("the type of the scales is missing")?;
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
    let d = results(cx, 0, nc)?;
    let (a, b, c) = (
        sources(cx, 1, na)?,
        sources(cx, 2, nb)?,
        sources(cx, 3, nc)?,
    );
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
fn scaled_kind(cx: &mut Cx<'_>) -> R<(Kind, usize)> {
    let kind = cx.mods.find(kind).filter(|kind| kind.is_block_scaled());
    let kind = kind.ok_or("the .kind of the scaling is missing")?;
    let default = match kind {
        Kind::Mxf8f6f4 => Some(1),
        Kind::Mxf4 => Some(2),
        _ => None,
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
    let register = cx.vector(i, 1)?;
    let selector = cx.vector(i + 1, 2)?;
    Ok(BlockScales {
        register: cx.src_of(&register[0], Ty::B32)?,
        selector: [
            cx.src_of(&selector[0], Ty::U16)?,
            cx.src_of(&selector[1], Ty::U16)?,
        ],
    })
}

/// The kind that a modifier names.
pub(super) fn kind(modifier: &str) -> Option<Kind> {
    modifier.strip_prefix("kind::").and_then(Kind::parse)
}

/// M and K of a shape; N is 8.
fn shape(name: &str) -> Option<(usize, usize)> {
    let (m, k) = name.strip_prefix('m')?.split_once("n8k")?;
    Some((m.parse().ok()?, k.parse().ok()?))
}

/// The registers that a fragment's results go to.
pub(super) fn results(cx: &mut Cx<'_>, i: usize, n: usize) -> R<Vec<Option<Dst>>> {
    let all = cx.vector(i, n)?.iter();
    all.map(|o| cx.dst_of(o, Ty::B32)).collect()
}

/// The registers of a fragment.
pub(super) fn sources(cx: &mut Cx<'_>, i: usize, n: usize) -> R<Vec<Src>> {
    let all = cx.vector(i, n)?.iter();
    all.map(|o| cx.src_of(o, Ty::B32)).collect()
}
