//! Asynchronous copies: sections 9.7.9.25 to 9.7.9.28 of the ISA.

use crate::ast::{Operand, Ty};
use crate::memory::Space;
use crate::models::tma::Direction;
use crate::models::tma_bulk::{ReduceDst, ReduceOp, check_reduction};
use crate::program::decode::{Cx, R, immediate};
use crate::program::{Addr, Completion, Op, Reduction, Src, Transfer};

const TRANSACTION: &str = "mbarrier::complete_tx::bytes";

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let opcode = cx.ins.opcode.as_str();
    if !matches!(opcode, "cp" | "st" | "red") || !cx.mods.take("async") {
        return Ok(None);
    }
    let t = match opcode {
        "cp" => copy(cx)?,
        _ => store(cx, opcode == "red")?,
    };
    let Some(t) = t else { return Ok(None) };
    cx.mods.finish()?;
    Ok(Some(t))
}

fn op(t: Transfer) -> R<Option<Op>> {
    Ok(Some(Op::Transfer(Box::new(t))))
}

fn copy(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let bulk = cx.mods.take("bulk");
    if cx.mods.take("commit_group") {
        cx.count(&[0])?;
        return op(Transfer::Commit { bulk });
    }
    if cx.mods.take("wait_all") {
        cx.count(&[0])?;
        return op(Transfer::Wait {
            bulk,
            keep: None,
            reads_only: false,
        });
    }
    if cx.mods.take("wait_group") {
        let reads_only = bulk && cx.mods.take("read");
        cx.count(&[1])?;
        let n = immediate(cx.operand(0)?).ok_or("the number of groups must be a constant")?;
        let keep = Some(u32::try_from(n).map_err(|_| "the number of groups is too large")?);
        return op(Transfer::Wait {
            bulk,
            keep,
            reads_only,
        });
    }
    if cx.mods.take("mbarrier") {
        if !cx.mods.take("arrive") {
            return Err(".arrive is missing".into());
        }
        let increments = !cx.mods.take("noinc");
        let (space, own) = cx.space();
        if !cx.mods.take("b64") {
            return Err(".b64 is missing".into());
        }
        cx.count(&[1])?;
        return op(Transfer::Arrive {
            addr: cx.addr(0, space, own)?,
            increments,
        });
    }
    if !bulk {
        return small(cx);
    }
    let prefetch = cx.mods.take("prefetch");
    let hint = cx.mods.take("L2::cache_hint");
    if cx.mods.take("tensor") {
        return tensor(cx, prefetch, hint);
    }
    if prefetch {
        cx.mods.take("L2");
        let global = cx.mods.take("global").then_some(Space::Global);
        cx.count(&[2 + usize::from(hint)])?;
        cx.addr(0, global, false)?;
        bulk_size(cx, 1)?;
        return Ok(Some(Op::Prefetch));
    }
    plain(cx, hint)
}

/// The next state space in the order of the modifiers.
fn next_space(cx: &mut Cx<'_>) -> R<(Space, bool)> {
    cx.mods
        .find(|m| match m {
            "global" => Some((Space::Global, false)),
            "shared::cta" | "shared" => Some((Space::Shared, true)),
            "shared::cluster" => Some((Space::Shared, false)),
            _ => None,
        })
        .ok_or_else(|| "a state space is missing".into())
}

/// Takes operands one after another.
struct Operands {
    next: usize,
}

impl Operands {
    fn take(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }
}

/// A cache policy only has to be there.
fn end(cx: &mut Cx<'_>, mut at: Operands, hint: bool) -> R<()> {
    if hint {
        cx.src(at.take(), Ty::B64)?;
    }
    cx.count(&[at.next]).map(|_| ())
}

fn small(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let all = cx
        .mods
        .one_of(&["cg", "ca"])
        .ok_or(".ca or .cg is missing")?;
    let (dst_space, own) = next_space(cx)?;
    let (src_space, _) = next_space(cx)?;
    if (dst_space, src_space) != (Space::Shared, Space::Global) {
        return Err("cp.async copies from global to shared memory".into());
    }
    let hint = cx.mods.take("L2::cache_hint");
    cx.mods.one_of(&["L2::64B", "L2::128B", "L2::256B"]);
    let dst = cx.addr(0, Some(dst_space), own)?;
    let src = cx.addr(1, Some(src_space), false)?;
    let size = match immediate(cx.operand(2)?) {
        Some(n @ (4 | 8)) if all == "ca" => n as u32,
        Some(16) => 16,
        _ => return Err("the size is 16 bytes, or with .ca 4, 8 or 16".into()),
    };
    let mut at = Operands { next: 3 };
    let (mut src_size, mut ignore) = (None, None);
    if cx.ins.operands.len() > 3 + usize::from(hint) {
        let i = at.take();
        if cx.pred(i).is_ok() && immediate(cx.operand(i)?).is_none() {
            ignore = Some(cx.pred(i)?);
        } else {
            src_size = Some(cx.src(i, Ty::B32)?);
        }
    }
    end(cx, at, hint)?;
    op(Transfer::Small {
        dst,
        src,
        size,
        src_size,
        ignore,
    })
}

fn operation(cx: &mut Cx<'_>) -> R<ReduceOp> {
    let found = cx.mods.find(ReduceOp::parse);
    found.ok_or_else(|| "the reduction is missing".into())
}

/// Operation and type of a reduction into some memory.
fn reduction(cx: &mut Cx<'_>, into: Space) -> R<Reduction> {
    let (op, noftz, ty) = (operation(cx)?, cx.mods.take("noftz"), cx.mods.ty()?);
    let dst = match into {
        Space::Shared => ReduceDst::SharedCluster,
        _ => ReduceDst::Global,
    };
    check_reduction(op, ty, dst).map_err(|e| e.to_string())?;
    if (matches!(ty, Ty::F16 | Ty::Bf16) && op == ReduceOp::Add) != noftz {
        return Err(".noftz goes with additions of f16 and bf16".into());
    }
    Ok((op, ty))
}

fn reduces(cx: &Cx<'_>) -> bool {
    cx.ins.mods.first().is_some_and(|m| m == "reduce")
}

/// Whether a copy signals an mbarrier object, and not its thread's bulk group.
fn completion(cx: &mut Cx<'_>) -> R<bool> {
    if cx.mods.take(TRANSACTION) {
        return Ok(true);
    }
    if cx.mods.take("bulk_group") {
        return Ok(false);
    }
    Err("the completion mechanism is missing".into())
}

/// The size of a bulk copy: 32 bits. A wider one is not cut to its low bits, which may be 0.
fn bulk_size(cx: &mut Cx<'_>, i: usize) -> R<Src> {
    let o = cx.operand(i)?;
    let wide = match o {
        Operand::Int(v) if v.is_multiple_of(16) => *v > u64::from(u32::MAX),
        Operand::Int(v) => {
            return Err(format!(
                "the size of a bulk copy, {v}, is not a multiple of 16"
            ));
        }
        _ => cx.reg_ty(o).is_some_and(|t| t.bits() != 32),
    };
    if wide {
        return Err("the size of a bulk copy has 32 bits".into());
    }
    cx.src(i, Ty::B32)
}

fn plain(cx: &mut Cx<'_>, hint: bool) -> R<Option<Op>> {
    let reduce = reduces(cx) && cx.mods.take("reduce");
    let (dst_space, dst_own) = next_space(cx)?;
    let (src_space, src_own) = next_space(cx)?;
    let by_mbarrier = completion(cx)?;
    let ok = match (dst_space, src_space) {
        (Space::Shared, Space::Global) => by_mbarrier && !reduce,
        (Space::Shared, Space::Shared) => by_mbarrier && !dst_own && src_own,
        (Space::Global, Space::Shared) => !by_mbarrier && src_own,
        _ => false,
    };
    if !ok {
        return Err("no such direction of a bulk copy".into());
    }
    let multicast = cx.mods.take("multicast::cluster");
    if multicast && (src_space != Space::Global || dst_own) {
        return Err("multicast goes from global memory to shared::cluster".into());
    }
    let reduce = match reduce {
        true => Some(reduction(cx, dst_space)?),
        false => None,
    };
    let mut at = Operands { next: 0 };
    let dst = cx.addr(at.take(), Some(dst_space), dst_own)?;
    let src = cx.addr(at.take(), Some(src_space), src_own)?;
    let size = bulk_size(cx, at.take())?;
    let completion = if by_mbarrier {
        Completion::Mbarrier(cx.addr(at.take(), Some(Space::Shared), dst_own)?)
    } else {
        Completion::Group
    };
    let mask = if multicast {
        Some(cx.src(at.take(), Ty::B16)?)
    } else {
        None
    };
    end(cx, at, hint)?;
    op(Transfer::Bulk {
        dst,
        src,
        size,
        completion,
        mask,
        reduce,
    })
}

/// `[map, {c0, c1, ...}]`.
fn tensor_operand(cx: &mut Cx<'_>, i: usize, rank: usize) -> R<(Addr, Vec<crate::program::Src>)> {
    let Operand::Address { base, offset, rest } = cx.operand(i)? else {
        return Err("a tensor in brackets is expected".into());
    };
    let [Operand::Vector(c)] = rest.as_slice() else {
        return Err("a tensor has one list of coordinates".into());
    };
    if c.len() != rank {
        return Err(format!(
            "{} coordinates of a tensor of rank {rank}",
            c.len()
        ));
    }
    let base = cx.src_of(base, Ty::B64)?;
    let coords = c
        .iter()
        .map(|c| cx.src_of(c, Ty::B32))
        .collect::<R<Vec<_>>>()?;
    Ok((
        Addr {
            space: None,
            own: false,
            base,
            offset: *offset,
            narrow: false,
        },
        coords,
    ))
}

fn tensor(cx: &mut Cx<'_>, prefetch: bool, hint: bool) -> R<Option<Op>> {
    let reduce = reduces(cx) && cx.mods.take("reduce");
    let rank = match cx.mods.one_of(&["1d", "2d", "3d", "4d", "5d"]) {
        Some(r) => usize::from(r.as_bytes()[0] - b'0'),
        None => return Err("the number of dimensions is missing".into()),
    };
    if let Some(m) = cx
        .ins
        .mods
        .iter()
        .find(|m| m.starts_with("im2col") || m.starts_with("tile::"))
    {
        return Ok(Some(Op::Unmodelled {
            reason: format!(".{m} is not modelled"),
        }));
    }
    cx.mods.take("tile");
    if prefetch {
        cx.mods.take("L2");
        cx.mods.take("global");
        tensor_operand(cx, 0, rank)?;
        return Ok(Some(Op::Prefetch));
    }
    let (dst_space, dst_own) = next_space(cx)?;
    let (src_space, src_own) = next_space(cx)?;
    let by_mbarrier = completion(cx)?;
    let load = match (dst_space, src_space) {
        (Space::Shared, Space::Global) if by_mbarrier && !reduce => true,
        (Space::Global, Space::Shared) if !by_mbarrier && src_own => false,
        _ => return Err("no such direction of a tensor copy".into()),
    };
    let multicast = cx.mods.take("multicast::cluster");
    let group = cx.mods.one_of(&["cta_group::1", "cta_group::2"]);
    if (multicast || group.is_some()) && (!load || (dst_own && multicast)) {
        return Err("multicast and CTA groups go with loads to shared::cluster".into());
    }
    let reduce = match reduce {
        true => Some(operation(cx)?),
        false => None,
    };
    let mut at = Operands { next: 0 };
    let (map, coords, shared, completion);
    if load {
        shared = cx.addr(at.take(), Some(Space::Shared), dst_own)?;
        (map, coords) = tensor_operand(cx, at.take(), rank)?;
        completion = Completion::Mbarrier(cx.addr(at.take(), Some(Space::Shared), dst_own)?);
    } else {
        (map, coords) = tensor_operand(cx, at.take(), rank)?;
        shared = cx.addr(at.take(), Some(Space::Shared), true)?;
        completion = Completion::Group;
    }
    let mask = if multicast {
        Some(cx.src(at.take(), Ty::B16)?)
    } else {
        None
    };
    end(cx, at, hint)?;
    let direction = match (load, reduce) {
        (true, _) => Direction::Load,
        (false, None) => Direction::Store,
        (false, Some(_)) => Direction::Reduce,
    };
    let pair = group == Some("cta_group::2");
    op(Transfer::Tensor {
        map,
        coords,
        shared,
        direction,
        completion,
        mask,
        reduce,
        pair,
    })
}

/// `st.async` and `red.async`.
fn store(cx: &mut Cx<'_>, reduces: bool) -> R<Option<Op>> {
    cx.mods.one_of(&["weak", "relaxed"]);
    cx.mods.take("cluster");
    if !(cx.mods.take("shared::cluster") && cx.mods.take(TRANSACTION)) {
        let reason = "only the form on shared::cluster with an mbarrier is modelled".into();
        return Ok(Some(Op::Unmodelled { reason }));
    }
    let n = match cx.mods.one_of(&["v2", "v4"]) {
        Some("v2") => 2,
        Some(_) => 4,
        None => 1,
    };
    let (reduce, t) = match reduces {
        true => reduction(cx, Space::Shared).map(|(op, ty)| (Some((op, ty)), ty))?,
        false => (None, cx.mods.ty()?),
    };
    if !matches!(t.bits(), 32 | 64) {
        return Err(format!("{t} is not a type of st.async or red.async"));
    }
    cx.count(&[3])?;
    let dst = cx.addr(0, Some(Space::Shared), false)?;
    let values = cx.vector(1, n)?.iter().map(|o| cx.src_of(o, t));
    let values = values.collect::<R<_>>()?;
    let mbarrier = cx.addr(2, Some(Space::Shared), false)?;
    op(Transfer::Store {
        dst,
        values,
        bytes: t.bytes(),
        mbarrier,
        reduce,
    })
}
