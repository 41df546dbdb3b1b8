//! Operands of synchronisation and asynchronous operations that differ.

use super::Plan;
use super::body::{changed, has, instr, name};
use super::class::{Class, class};
use super::kind::Kind::{self, *};
use super::tweak::Tweak::{self, *};
use super::tweak::{Select, base, index};
use crate::ast::{Instr, Operand, Stmt};

pub(super) fn plan(p: &mut Plan<'_>, at: usize, i: &Instr) {
    use Class::*;
    match class(i) {
        Wait => wait(p, at, i),
        ExpectTx => {
            let last = i.operands.len().saturating_sub(1);
            bytes(p, ExpectBytes, at, i, last);
        }
        Init if has(i, "init") => {
            for (d, t) in [("+1", Add(1)), ("-1", Add(-1))] {
                p.tweak(InitCount, at, i, d, index(1), t);
            }
        }
        Copy => copy(p, at, i),
        Commit => {
            p.tweak(BarrierAddress, at, i, "+8", base(0), Add(8));
            if has(i, "multicast::cluster") {
                masks(p, at, i, 1);
            }
        }
        Tensor => tensor(p, at, i),
        Wgmma => wgmma(p, at, i),
        GroupWait if i.opcode == "wgmma" => {
            let more = Add(1);
            p.tweak(GroupCount, at, i, "one more", index(0), more);
        }
        Alloc => alloc(p, at, i),
        Barrier => barrier(p, at, i),
        Other if i.opcode == "elect" => elect(p, at, i),
        Scalar if i.opcode == "mapa" => {
            let last = i.operands.len().saturating_sub(1);
            p.tweak(Rank, at, i, "xor 1", index(last), Xor(1));
        }
        _ => {}
    }
    if matches!(class(i), Wait | ExpectTx | Init | Arrive)
        && let Some(n) = first_address(i)
    {
        p.tweak(BarrierAddress, at, i, "+8", base(n), Add(8));
    }
    weaken(p, at, i);
}

fn first_address(i: &Instr) -> Option<usize> {
    i.operands
        .iter()
        .position(|o| matches!(o, Operand::Address { .. }))
}

fn wait(p: &mut Plan<'_>, at: usize, i: &Instr) {
    if has(i, "parity") {
        p.tweak(Parity, at, i, "flipped", index(2), Xor(1));
    }
}

fn bytes(p: &mut Plan<'_>, kind: Kind, at: usize, i: &Instr, n: usize) {
    for (detail, t) in [("+16", Add(16)), ("-16", Add(-16)), ("half", Half)] {
        p.tweak(kind, at, i, detail, index(n), t);
    }
}

fn copy(p: &mut Plan<'_>, at: usize, i: &Instr) {
    let tensor = has(i, "tensor");
    for (n, o) in i.operands.iter().enumerate() {
        let Operand::Address { rest, .. } = o else {
            // cp.async.bulk has its size in a register, cp.async its constant.
            let size = n == 2 && i.opcode == "cp" && !tensor;
            if size {
                bytes(p, CopyBytes, at, i, n);
            }
            continue;
        };
        if !rest.is_empty() {
            coordinates(p, at, i, n, rest);
            continue;
        }
        let is_barrier = n > 0 && n + 1 >= 3;
        if is_barrier {
            p.tweak(BarrierAddress, at, i, "+8", base(n), Add(8));
        } else {
            let what = if n == 0 { "destination" } else { "source" };
            for by in [16, 128] {
                let detail = format!("{what} +{by}");
                p.tweak(CopyAddress, at, i, &detail, base(n), Add(by));
            }
        }
    }
    if has(i, "multicast::cluster") {
        // The last operand, but for the cache policy behind it.
        let behind = 1 + usize::from(has(i, "L2::cache_hint"));
        let n = i.operands.len().saturating_sub(behind);
        masks(p, at, i, n);
    }
}

fn coordinates(p: &mut Plan<'_>, at: usize, i: &Instr, n: usize, rest: &[Operand]) {
    let Some(Operand::Vector(all)) = rest.first() else {
        return;
    };
    for k in 0..all.len() {
        for by in [1, 16, 128] {
            let select = Select::Coordinate(n, k);
            let detail = format!("{k} +{by}");
            p.tweak(Coordinate, at, i, &detail, select, Add(by));
        }
    }
}

fn masks(p: &mut Plan<'_>, at: usize, i: &Instr, n: usize) {
    for bit in [1, 2] {
        let detail = format!("mask xor {bit}");
        p.tweak(Multicast, at, i, &detail, index(n), Xor(bit));
    }
}

/// Fields of the shared memory descriptor: name and change.
const DESCRIPTOR: &[(&str, Tweak)] = &[
    ("start +16 bytes", Add(1)),
    ("start +128 bytes", Add(8)),
    ("leading offset +16", Add(1 << 16)),
    ("stride offset +16", Add(1 << 32)),
    ("stride offset doubled bit", Xor(1 << 38)),
    ("fixed bits", Xor(1 << 46)),
    ("base offset", Xor(1 << 49)),
    ("leading mode", Xor(1 << 52)),
    ("swizzle bit 61", Xor(1 << 61)),
    ("swizzle bit 62", Xor(1 << 62)),
    ("swizzle bit 63", Xor(1 << 63)),
];

fn descriptor(p: &mut Plan<'_>, at: usize, i: &Instr, n: usize, what: &str) {
    for (field, t) in DESCRIPTOR {
        let detail = format!("{what}: {field}");
        p.tweak(SmemDescriptor, at, i, &detail, index(n), *t);
    }
}

fn tensor_address(p: &mut Plan<'_>, at: usize, i: &Instr, n: usize, what: &str) {
    for (by, t) in [
        ("+1", 1),
        ("+4", 4),
        ("+16", 16),
        ("+1 lane", 1 << 16),
        ("+32 lanes", 32 << 16),
    ] {
        let detail = format!("{what} {by}");
        p.tweak(TensorAddress, at, i, &detail, base(n), Add(t));
    }
}

fn tensor(p: &mut Plan<'_>, at: usize, i: &Instr) {
    match i.mods.first().map(String::as_str) {
        Some("cp") => {
            tensor_address(p, at, i, 0, "destination");
            descriptor(p, at, i, 1, "source");
        }
        Some("ld") => tensor_address(p, at, i, 1, "source"),
        Some("st") => tensor_address(p, at, i, 0, "destination"),
        Some("mma") => mma(p, at, i),
        _ => {}
    }
}

fn mma(p: &mut Plan<'_>, at: usize, i: &Instr) {
    tensor_address(p, at, i, 0, "d");
    if matches!(i.operands.get(1), Some(Operand::Address { .. })) {
        tensor_address(p, at, i, 1, "a");
    } else {
        descriptor(p, at, i, 1, "a");
    }
    descriptor(p, at, i, 2, "b");
    for bit in 0..32 {
        let detail = format!("bit {bit}");
        p.tweak(
            InstructionDescriptor,
            at,
            i,
            &detail,
            index(3),
            Xor(1 << bit),
        );
    }
    if has(i, "block_scale") {
        tensor_address(p, at, i, 4, "scale a");
        tensor_address(p, at, i, 5, "scale b");
    }
    // Predicates have no suffix of their own: the operand behind descriptors and scales.
    let from = if has(i, "block_scale") { 6 } else { 4 };
    let flag = (from..i.operands.len()).find(|n| matches!(i.operands[*n], Operand::Name(_)));
    if let Some(n) = flag {
        accumulate(p, at, i, n);
    }
}

/// The predicate that says whether an MMA accumulates, the operand of this number, is negated.
fn accumulate(p: &mut Plan<'_>, at: usize, i: &Instr, n: usize) {
    if let Some(Operand::Name(flag)) = i.operands.get(n) {
        let mut m = i.clone();
        m.operands[n] = name("%plantedp_0");
        let flip = instr(i, "not.pred", vec![name("%plantedp_0"), name(flag)]);
        p.one(
            Accumulate,
            at,
            i,
            "negated",
            vec![Stmt::Instr(flip), changed(m)],
        );
    }
}

fn wgmma(p: &mut Plan<'_>, at: usize, i: &Instr) {
    let a_in_shared = matches!(i.operands.get(1), Some(Operand::Name(_)));
    if a_in_shared {
        descriptor(p, at, i, 1, "a");
    }
    descriptor(p, at, i, 2, "b");
    accumulate(p, at, i, 3);
    for (n, which) in [(4, "a"), (5, "b")] {
        // 1 or -1; the lowest bit stays.
        let sign = Xor(!1);
        p.tweak(Negate, at, i, which, index(n), sign);
    }
    let transposed: &[_] = if a_in_shared {
        &[(6, "a"), (7, "b")]
    } else {
        &[(6, "b")]
    };
    for (n, which) in transposed {
        p.tweak(Transpose, at, i, which, index(*n), Xor(1));
    }
}

fn alloc(p: &mut Plan<'_>, at: usize, i: &Instr) {
    if has(i, "alloc") || has(i, "dealloc") {
        p.tweak(AllocColumns, at, i, "half", index(1), Half);
        p.tweak(AllocColumns, at, i, "twice", index(1), Twice);
    }
    if has(i, "dealloc") {
        for by in [16, 32] {
            let detail = format!("freed +{by}");
            p.tweak(TensorAddress, at, i, &detail, index(0), Add(by));
        }
    }
}

fn barrier(p: &mut Plan<'_>, at: usize, i: &Instr) {
    if has(i, "cluster") || i.operands.is_empty() {
        return;
    }
    p.tweak(BarrierId, at, i, "id +1", index(0), Add(1));
    if i.operands.len() > 1 {
        for (detail, by) in [("threads +32", 32), ("threads -32", -32)] {
            p.tweak(BarrierId, at, i, detail, index(1), Add(by));
        }
    }
}

fn elect(p: &mut Plan<'_>, at: usize, i: &Instr) {
    let Some(Operand::Pair(d, flag)) = i.operands.first() else {
        return;
    };
    let zero = || Operand::Int(0);
    for (detail, compare) in [("all lanes", "setp.eq.u32"), ("none", "setp.ne.u32")] {
        let mut new = vec![Stmt::Instr(instr(
            i,
            compare,
            vec![(**flag).clone(), zero(), zero()],
        ))];
        if let Operand::Name(d) = &**d {
            new.push(Stmt::Instr(instr(i, "mov.b32", vec![name(d), zero()])));
        }
        p.one(Elect, at, i, detail, new);
    }
}

/// `.release`, `.acquire` and `.acq_rel` become `.relaxed` where the ISA has that form.
fn weaken(p: &mut Plan<'_>, at: usize, i: &Instr) {
    use Class::*;
    let strong = i
        .mods
        .iter()
        .position(|m| matches!(m.as_str(), "release" | "acquire" | "acq_rel"));
    let relaxed = |m: &mut Vec<String>, at: usize| m[at] = "relaxed".into();
    let mut weak = i.clone();
    match (class(i), strong) {
        (Fence, _) => return,
        (Arrive | ExpectTx | Wait, None) if i.opcode == "mbarrier" && !has(i, "noComplete") => {
            // The default is .release or .acquire, with CTA scope.
            let after = if has(i, "expect_tx") && has(i, "arrive") {
                2
            } else {
                1 + usize::from(has(i, "parity"))
            };
            if i.mods[0] == "expect_tx" {
                return;
            }
            weak.mods.insert(after, "relaxed".into());
            weak.mods.insert(after + 1, "cta".into());
        }
        (Arrive | ExpectTx | Wait, Some(n)) => relaxed(&mut weak.mods, n),
        (Barrier, Some(n)) if has(i, "arrive") => relaxed(&mut weak.mods, n),
        (Barrier, None) if has(i, "cluster") && has(i, "arrive") => {
            weak.mods.insert(2, "relaxed".into());
        }
        (Store | Load, Some(n)) => relaxed(&mut weak.mods, n),
        _ => return,
    }
    p.one(WeakenOrder, at, i, "", vec![changed(weak)]);
}
