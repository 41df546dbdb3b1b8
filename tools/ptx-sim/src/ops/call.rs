//! Calls of functions that no module has: those behind `printf` and `assert`. A function of the module is laid out in
//! place of its call, and leaves no such instruction.

use crate::program::Op;
use crate::program::decode::{Cx, R};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "call" {
        return Ok(None);
    }
    let (name, given) = cx.ins.callee().unwrap_or_default();
    Ok(Some(match (name, given.as_slice()) {
        ("vprintf", [result, format, values]) => Op::Printf {
            result: cx.given(result)?,
            format: cx.given(format)?,
            values: cx.given(values)?,
        },
        ("__assertfail", [condition, file, line, function, _]) => Op::AssertFail {
            texts: [cx.given(condition)?, cx.given(file)?, cx.given(function)?],
            line: cx.given(line)?,
        },
        _ => Op::Unmodelled {
            reason: match name {
                "" => "a call of this form is not modelled".into(),
                n if n.starts_with('%') => "calls by address are not modelled".into(),
                n => format!(
                    "`{n}` is called under a predicate, calls itself, or is no function of this module: that is not modelled"
                ),
            },
        },
    }))
}
