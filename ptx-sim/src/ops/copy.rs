//! `cp.async` of single elements and its groups: section 9.7.9.25.3. Bulk and tensor copies are
//! not here.

use crate::ast::Ty;
use crate::memory::Space;
use crate::program::Op;
use crate::program::decode::{Cx, R, immediate};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let mods = &cx.ins.mods;
    let mine = cx.ins.opcode == "cp"
        && mods.first().is_some_and(|m| m == "async")
        && !mods
            .iter()
            .any(|m| matches!(m.as_str(), "bulk" | "mbarrier" | "reduce"));
    if !mine {
        return Ok(None);
    }
    cx.mods.take("async");
    if cx.mods.take("commit_group") {
        cx.mods.finish()?;
        cx.count(&[0])?;
        return Ok(Some(Op::CopyCommit));
    }
    if cx.mods.take("wait_all") {
        cx.mods.finish()?;
        cx.count(&[0])?;
        return Ok(Some(Op::CopyWait { keep: None }));
    }
    if cx.mods.take("wait_group") {
        cx.mods.finish()?;
        cx.count(&[1])?;
        let keep = immediate(cx.operand(0)?).and_then(|n| u32::try_from(n).ok());
        return Ok(Some(Op::CopyWait {
            keep: Some(keep.ok_or("the count is an integer")?),
        }));
    }
    let whole = cx.mods.take("cg");
    if !whole && !cx.mods.take("ca") {
        return Err(".ca or .cg is missing".into());
    }
    let from_global = cx.mods.take("global");
    let (space, own) = cx.space();
    if space != Some(Space::Shared) || !from_global {
        return Err("the copy goes from global to shared memory".into());
    }
    cx.mods.one_of(&["L2::64B", "L2::128B", "L2::256B"]);
    let hinted = usize::from(cx.mods.take("L2::cache_hint"));
    cx.mods.finish()?;
    let n = cx.count(&[3 + hinted, 4 + hinted])?;
    let bytes = match immediate(cx.operand(2)?) {
        Some(b @ (4 | 8 | 16)) if !whole || b == 16 => b as u32,
        _ => return Err("a copy has 4, 8 or 16 bytes, and 16 with .cg".into()),
    };
    let size = if n == 4 + hinted {
        Some(cx.src(3, Ty::U32)?)
    } else {
        None
    };
    let (dst, src) = (
        cx.addr(0, space, own)?,
        cx.addr(1, Some(Space::Global), false)?,
    );
    Ok(Some(Op::Copy {
        dst,
        src,
        bytes,
        size,
    }))
}
