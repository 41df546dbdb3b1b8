//! Instructions that the ISA has and this simulator parses, but does not execute.

use crate::program::Op;
use crate::program::decode::{Cx, R};

/// Opcodes, and the feature that they need.
const KNOWN: &[(&str, &str)] = &[
    ("cp", "asynchronous copies"),
    ("tensormap", "tensor maps"),
    ("multimem", "multicast memory"),
    ("red", "asynchronous reductions"),
    ("st", "asynchronous stores"),
    ("alloca", "stack allocation"),
    ("stacksave", "stack allocation"),
    ("stackrestore", "stack allocation"),
    ("tex", "textures"),
    ("tld4", "textures"),
    ("txq", "textures"),
    ("suld", "surfaces"),
    ("sust", "surfaces"),
    ("brkpt", "breakpoints"),
];

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let opcode = cx.ins.opcode.as_str();
    Ok(KNOWN
        .iter()
        .find(|(o, _)| *o == opcode)
        .map(|(_, what)| Op::Unmodelled {
            reason: format!(
                "{what} {} not modelled",
                if what.ends_with('s') { "are" } else { "is" }
            ),
        }))
}
