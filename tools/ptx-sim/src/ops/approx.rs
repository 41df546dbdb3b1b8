//! Approximations: see [`crate::models::approx`].

use crate::ast::Ty;
use crate::models::approx::{Approx, Function};
use crate::program::decode::{Cx, R};
use crate::program::{Op, Src};
use crate::softfloat::{BF16, F16, F32};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let Some(function) = Function::parse(&cx.ins.opcode) else {
        return Ok(None);
    };
    let Some(how) = cx.mods.one_of(&["approx", "full"]) else {
        return Ok(None);
    };
    let ftz = cx.mods.take("ftz");
    let ty = cx.mods.ty()?;
    cx.mods.finish()?;
    let exponential = matches!(function, Function::Ex2 | Function::Tanh);
    let (format, packed) = match ty {
        Ty::F32 => (Some(F32), false),
        Ty::F16 | Ty::F16x2 if exponential => (Some(F16), ty == Ty::F16x2),
        Ty::Bf16 | Ty::Bf16x2 if exponential => (Some(BF16), ty == Ty::Bf16x2),
        Ty::F64 if function == Function::Rsqrt || function == Function::Rcp && ftz => (None, false),
        _ => return Err(format!("{function}.{how} is not defined for {ty}")),
    };
    if how == "full" && function != Function::Div {
        return Err(format!("{function}.full is not defined"));
    }
    let sources = if function == Function::Div { 2 } else { 1 };
    cx.count(&[1 + sources])?;
    let d = cx.dst(0, ty)?;
    let mut s = [Src(Src::CONST); 2];
    for (i, s) in s.iter_mut().enumerate() {
        *s = cx.src(1 + i.min(sources - 1), ty)?;
    }
    let f = Approx {
        function,
        format,
        packed,
        ftz,
        full: how == "full",
    };
    Ok(Some(Op::Approx { f, d, s }))
}
