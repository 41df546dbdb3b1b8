//! `wmma`: section 9.7.14.4.

use super::mma::{results, sources};
use crate::ast::Ty;
use crate::memory::Space;
use crate::models::wmma::{Fragment, Matrix, Shape, WmmaProduct};
use crate::program::decode::{Cx, R};
use crate::program::{Op, Wmma};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "wmma" {
        return Ok(None);
    }
    let what = cx.mods.one_of(&["load", "store", "mma"]);
    let what = what.ok_or("load, store or mma is missing")?;
    if !(cx.mods.take("sync") && cx.mods.take("aligned")) {
        return Err(".sync.aligned is missing".into());
    }
    let unmodelled = || {
        let reason = "wmma of these types and this shape is not modelled".into();
        Ok(Some(Op::Unmodelled { reason }))
    };
    let Some(shape) = cx.mods.find(Shape::parse) else {
        return unmodelled();
    };
    if what == "mma" {
        let turned = [layout(cx)? == "col", layout(cx)? == "row"];
        let satfinite = cx.mods.take("satfinite");
        let types: Vec<&str> = std::iter::from_fn(|| cx.mods.find(Some)).collect();
        let product = match types[..] {
            [d, c] => WmmaProduct::new(shape, [d, "f16", "f16", c], satfinite),
            [d, a, b, c] => WmmaProduct::new(shape, [d, a, b, c], satfinite),
            _ => return Err("two or four types are expected".into()),
        };
        let Some(product) = product else {
            return unmodelled();
        };
        let mut product = Box::new(product.map_err(|e| e.to_string())?);
        for (fragment, turned) in product.fragments.iter_mut().zip(turned) {
            fragment.turned = turned;
        }
        cx.count(&[4])?;
        let [a, b, c, of_d] = product.fragments;
        let d = results(cx, 0, of_d.registers)?;
        let s = [
            sources(cx, 1, a.registers)?,
            sources(cx, 2, b.registers)?,
            sources(cx, 3, c.registers)?,
        ];
        return Ok(Some(Op::Wmma(Box::new(Wmma::Mma { product, d, s }))));
    }
    let matrix = cx.mods.find(Matrix::parse).ok_or("the matrix is missing")?;
    if (what == "store") != (matrix == Matrix::D) {
        return Err(format!("wmma.{what}.{matrix} is not defined"));
    }
    let by_columns = layout(cx)? == "col";
    let (space, own) = cx.space();
    if !matches!(space, None | Some(Space::Global | Space::Shared)) {
        return Err("global or shared memory is expected".into());
    }
    let ty = cx.mods.find(Some).ok_or("the type is missing")?;
    cx.mods.finish()?;
    let Some(mut fragment) = Fragment::of(matrix, shape, ty) else {
        return unmodelled();
    };
    let lines_stand = by_columns == fragment.by_columns;
    fragment.turned = matches!(matrix, Matrix::A | Matrix::B) && !lines_stand;
    let usual = if lines_stand {
        fragment.length
    } else {
        fragment.lines
    };
    let stride = match cx.count(&[2, 3])? {
        3 => cx.src(2, Ty::B32)?,
        _ => cx.b.constant(usual as u64),
    };
    let op = match what {
        "load" => Wmma::Load {
            fragment,
            by_columns,
            d: results(cx, 0, fragment.registers)?,
            addr: cx.addr(1, space, own)?,
            stride,
        },
        _ => Wmma::Store {
            fragment,
            by_columns,
            s: sources(cx, 1, fragment.registers)?,
            addr: cx.addr(0, space, own)?,
            stride,
        },
    };
    Ok(Some(Op::Wmma(Box::new(op))))
}

/// The next layout in order.
fn layout<'a>(cx: &mut Cx<'a>) -> R<&'a str> {
    let found = cx.mods.find(|m| matches!(m, "row" | "col").then_some(m));
    found.ok_or_else(|| "a layout is missing".into())
}
