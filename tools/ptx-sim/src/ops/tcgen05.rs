//! `tcgen05`: section 9.7.16. The instructions' effects are in `exec/tcgen05` and `models`.

use crate::ast::{Operand, Ty};
use crate::memory::Space;
use crate::models::idesc::Kind;
use crate::models::tcgen05_cp::{CpFormat, CpShape};
use crate::models::tcgen05_ld_st::{LdSt, Shape};
use crate::models::tcgen05_mma::{CtaGroup, ScaleVec};
use crate::program::decode::{Cx, R, immediate};
use crate::program::{MmaA, MmaOperands, Op, Tcgen05, TensorAddr};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "tcgen05" {
        return Ok(None);
    }
    const UNMODELLED: &[(&str, &str)] = &[
        ("shift", "tcgen05.shift is not modelled"),
        ("ws", "tcgen05.mma.ws is not modelled"),
        ("sp", "sparse tcgen05.mma is not modelled"),
        ("ashift", "shifted A of tcgen05.mma is not modelled"),
        ("red", "tcgen05.ld.red is not modelled"),
    ];
    for (m, reason) in UNMODELLED {
        if cx.ins.mods.iter().any(|x| x == m) {
            return Ok(Some(Op::Unmodelled {
                reason: (*reason).into(),
            }));
        }
    }
    let what = cx.ins.mods.first().map_or("", |m| m.as_str());
    cx.mods.take(what);
    let op = match what {
        "alloc" => alloc(cx)?,
        "dealloc" => {
            let group = group(cx)?;
            aligned(cx)?;
            cx.mods.take("b32");
            cx.mods.finish()?;
            cx.count(&[2])?;
            Tcgen05::Dealloc {
                group,
                address: cx.src(0, Ty::B32)?,
                columns: cx.src(1, Ty::U32)?,
            }
        }
        "relinquish_alloc_permit" => {
            let group = group(cx)?;
            aligned(cx)?;
            cx.mods.finish()?;
            cx.count(&[0])?;
            Tcgen05::Relinquish { group }
        }
        "cp" => copy(cx)?,
        "mma" => mma(cx)?,
        "commit" => commit(cx)?,
        "ld" | "st" => load_store(cx, what == "st")?,
        "wait::ld" | "wait::st" => {
            aligned(cx)?;
            cx.mods.finish()?;
            cx.count(&[0])?;
            Tcgen05::Wait {
                stores: what == "wait::st",
            }
        }
        "fence::before_thread_sync" | "fence::after_thread_sync" => {
            cx.mods.finish()?;
            cx.count(&[0])?;
            Tcgen05::Fence {
                after: what == "fence::after_thread_sync",
            }
        }
        _ => return Err(format!(".{what} is not known")),
    };
    Ok(Some(Op::Tcgen05(op)))
}

fn group(cx: &mut Cx<'_>) -> R<CtaGroup> {
    match cx.mods.one_of(&["cta_group::1", "cta_group::2"]) {
        Some("cta_group::1") => Ok(CtaGroup::One),
        Some(_) => Ok(CtaGroup::Two),
        None => Err(".cta_group is missing".into()),
    }
}

fn aligned(cx: &mut Cx<'_>) -> R<()> {
    if cx.mods.take("sync") && cx.mods.take("aligned") {
        Ok(())
    } else {
        Err(".sync.aligned is missing".into())
    }
}

/// `[taddr]`.
fn tensor_addr(cx: &mut Cx<'_>, i: usize) -> R<TensorAddr> {
    match cx.operand(i)? {
        Operand::Address { base, offset, rest } if rest.is_empty() => Ok(TensorAddr {
            base: cx.src_of(base, Ty::B32)?,
            offset: *offset,
        }),
        _ => Err("a tensor memory address in brackets is expected".into()),
    }
}

fn alloc(cx: &mut Cx<'_>) -> R<Tcgen05> {
    let group = group(cx)?;
    aligned(cx)?;
    let (space, _) = cx.space();
    if !matches!(space, None | Some(Space::Shared)) {
        return Err("the address is written to shared memory".into());
    }
    cx.mods.take("b32");
    cx.mods.finish()?;
    cx.count(&[2])?;
    Ok(Tcgen05::Alloc {
        group,
        dst: cx.addr(0, space, true)?,
        columns: cx.src(1, Ty::U32)?,
    })
}

fn copy(cx: &mut Cx<'_>) -> R<Tcgen05> {
    use CpShape::{
        S4x256b, S32x128bWarpx4, S64x128bWarpx2_01_23, S64x128bWarpx2_02_13, S128x128b, S128x256b,
    };
    let group = group(cx)?;
    let shape = cx
        .mods
        .one_of(&["128x256b", "4x256b", "128x128b", "64x128b", "32x128b"]);
    let multicast = cx
        .mods
        .one_of(&["warpx2::02_13", "warpx2::01_23", "warpx4"]);
    let shape = match (shape, multicast) {
        (Some("128x256b"), None) => S128x256b,
        (Some("4x256b"), None) => S4x256b,
        (Some("128x128b"), None) => S128x128b,
        (Some("64x128b"), Some("warpx2::02_13")) => S64x128bWarpx2_02_13,
        (Some("64x128b"), Some("warpx2::01_23")) => S64x128bWarpx2_01_23,
        (Some("32x128b"), Some("warpx4")) => S32x128bWarpx4,
        _ => return Err("the shape and its multicast do not go together".into()),
    };
    let format = if cx.mods.take("b8x16") {
        match cx.mods.one_of(&["b6x16_p32", "b4x16_p64"]) {
            Some("b6x16_p32") => CpFormat::B6x16P32,
            Some(_) => CpFormat::B4x16P64,
            None => return Err("the source format is missing".into()),
        }
    } else {
        CpFormat::Plain
    };
    cx.mods.finish()?;
    cx.count(&[2])?;
    Ok(Tcgen05::Cp {
        group,
        shape,
        format,
        address: tensor_addr(cx, 0)?,
        desc: cx.src(1, Ty::B64)?,
    })
}

fn scale_vec(cx: &mut Cx<'_>, kind: Kind) -> R<ScaleVec> {
    if !cx.mods.take("block_scale") {
        return Err(".block_scale is missing".into());
    }
    let given = cx.mods.one_of(&[
        "scale_vec::1X",
        "scale_vec::2X",
        "scale_vec::4X",
        "block16",
        "block32",
    ]);
    let block = |n| {
        ScaleVec::from_block(n, kind).ok_or_else(|| format!(".block{n} is not defined for {kind}"))
    };
    match given {
        Some("scale_vec::1X") => Ok(ScaleVec::X1),
        Some("scale_vec::2X") => Ok(ScaleVec::X2),
        Some("scale_vec::4X") => Ok(ScaleVec::X4),
        Some("block16") => block(16),
        Some(_) => block(32),
        // The two kinds with one size have it as their default.
        None if matches!(kind, Kind::Mxf4 | Kind::Mxf8f6f4) => block(32),
        None => Err("the scale vector size is missing".into()),
    }
}

fn mma(cx: &mut Cx<'_>) -> R<Tcgen05> {
    let group = group(cx)?;
    let kind = cx.mods.find(super::mma::kind);
    let kind = kind.ok_or("a known .kind is missing")?;
    let vec = if kind.is_block_scaled() {
        Some(scale_vec(cx, kind)?)
    } else {
        None
    };
    // Hints: reuse of A is the hardware's business.
    while cx
        .mods
        .find(|m| m.starts_with("collector::").then_some(()))
        .is_some()
    {}
    cx.mods.finish()?;
    let n = cx.count(&[5, 6, 7])?;
    let d = tensor_addr(cx, 0)?;
    let a = match cx.operand(1)? {
        Operand::Address { .. } => MmaA::Tensor(tensor_addr(cx, 1)?),
        _ => MmaA::Descriptor(cx.src(1, Ty::B64)?),
    };
    let (b, idesc) = (cx.src(2, Ty::B64)?, cx.src(3, Ty::B32)?);
    let mut at = 4;
    let scales = match vec {
        Some(v) => {
            at = 6;
            Some((v, tensor_addr(cx, 4)?, tensor_addr(cx, 5)?))
        }
        None => None,
    };
    let mut disable = Vec::new();
    if let (None, Operand::Vector(list)) = (vec, cx.operand(at)?) {
        let want = 4 * group.ctas();
        if list.len() != want {
            return Err(format!(
                "disable-output-lane has {} words, {want} are needed",
                list.len()
            ));
        }
        for o in list {
            disable.push(cx.src_of(o, Ty::B32)?);
        }
        at += 1;
    }
    let enable_d = cx.pred(at)?;
    let scale_d = match (n - at, vec) {
        (1, _) => None,
        (2, None) => {
            let v = immediate(cx.operand(at + 1)?).ok_or("scale-input-d is an immediate")?;
            Some(u32::try_from(v).map_err(|_| "scale-input-d is out of range")?)
        }
        _ => return Err("too many operands".into()),
    };
    Ok(Tcgen05::Mma(Box::new(MmaOperands {
        group,
        kind,
        d,
        a,
        b,
        idesc,
        scales,
        disable,
        enable_d,
        scale_d,
    })))
}

fn commit(cx: &mut Cx<'_>) -> R<Tcgen05> {
    let group = group(cx)?;
    if !cx.mods.take("mbarrier::arrive::one") {
        return Err(".mbarrier::arrive::one is missing".into());
    }
    let (space, own) = cx.space();
    if !matches!(space, None | Some(Space::Shared)) {
        return Err("the mbarrier is in shared memory".into());
    }
    let multicast = cx.mods.take("multicast::cluster");
    cx.mods.take("b64");
    cx.mods.finish()?;
    cx.count(&[1 + usize::from(multicast)])?;
    let mask = if multicast {
        Some(cx.src(1, Ty::B16)?)
    } else {
        None
    };
    Ok(Tcgen05::Commit {
        group,
        barrier: cx.addr(0, space, own)?,
        mask,
    })
}

fn load_store(cx: &mut Cx<'_>, store: bool) -> R<Tcgen05> {
    aligned(cx)?;
    let shape = cx.mods.find(Shape::parse);
    let shape = shape.ok_or("the shape is missing")?;
    let num = cx
        .mods
        .find(|m| m.strip_prefix('x').and_then(|n| n.parse::<u32>().ok()))
        .ok_or("the repeat factor is missing")?;
    let packed = cx
        .mods
        .take(if store { "unpack::16b" } else { "pack::16b" });
    cx.mods.take("b32");
    cx.mods.finish()?;
    let split = shape == Shape::S16x32bx2;
    cx.count(&[2 + usize::from(split)])?;
    let (address, regs) = if store {
        (0, 1 + usize::from(split))
    } else {
        (1, 0)
    };
    let half = if split {
        let v = immediate(cx.operand(address + 1)?).ok_or("immHalfSplitoff is an immediate")?;
        Some(u32::try_from(v).map_err(|_| "immHalfSplitoff is out of range")?)
    } else {
        None
    };
    let shape = LdSt::new(shape, num, packed, half).map_err(|e| e.to_string())?;
    let address = tensor_addr(cx, address)?;
    let list = cx.vector(regs, shape.registers())?;
    if store {
        let s = list
            .iter()
            .map(|o| cx.src_of(o, Ty::B32))
            .collect::<R<_>>()?;
        return Ok(Tcgen05::St { shape, s, address });
    }
    let d = list
        .iter()
        .map(|o| {
            cx.dst_of(o, Ty::B32)?
                .ok_or_else(|| "`_` cannot be the result here".to_string())
        })
        .collect::<R<_>>()?;
    Ok(Tcgen05::Ld { shape, d, address })
}
