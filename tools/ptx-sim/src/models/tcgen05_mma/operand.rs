//! Reading A and B: 32 bytes of K per row for every kind, decoded once per MMA.

use super::super::idesc::{Element, Kind};
use super::super::memory::SharedRead;
use super::super::smem_desc::{Layout, Major, SmemDesc};
use super::super::tmem::TmemAddr;
use super::MmaError::*;
use super::inner;
use super::small::Integers;
use super::{AOperand, CtaGroup, CtaMemory, Footprint, Mma, MmaError, TmemBlock};
use crate::softfloat::E2M1_DOUBLED;
use std::sync::LazyLock;

/// Bytes of K one row takes in shared memory, for every dense kind.
const ROW_BYTES: u32 = 32;

/// A decoded operand, row-major `[rows][k]`.
pub(super) enum Values {
    /// Twice the E2M1 values, of the 4-bit kinds.
    Doubled(Vec<i8>),
    /// Everything else; integers too, which f32 holds exactly.
    Real(Vec<f32>),
}

fn element_bytes(e: Element) -> u32 {
    match e {
        Element::F16 | Element::Bf16 => 2,
        Element::Tf32 => 4,
        _ => 1,
    }
}

/// Data bytes at the front of every 16-byte slot. The rest of a slot of sub-byte elements is
/// padding, which TMA leaves uninitialised; the 4-bit kinds have none.
fn slot_bytes(kind: Kind, e: Element) -> u32 {
    match (kind, e) {
        (Kind::Mxf4 | Kind::Mxf4nvf4, _) => 16,
        (_, Element::E2m1) => 8,
        (_, Element::E2m3 | Element::E3m2) => 12,
        _ => 16,
    }
}

fn layout(desc: &SmemDesc, major: Major, e: Element, is_a: bool) -> Result<Layout, MmaError> {
    desc.layout(major, ROW_BYTES, element_bytes(e))
        .map_err(if is_a { DescA } else { DescB })
}

/// A row of an operand as it lies in memory.
pub(super) type Row = [u8; ROW_BYTES as usize];

/// Reads rows of an operand from shared memory as raw K-contiguous bytes, of which the padding is zero.
fn raw_rows<S: SharedRead + ?Sized>(
    layout: &Layout,
    out: &mut [Row],
    (e, slot_bytes): (Element, u32),
    shared: &S,
    fail: impl Fn(super::SharedReadError) -> MmaError,
) -> Result<(), MmaError> {
    let size = element_bytes(e);
    if !layout.is_k_major() {
        for (r, row) in out.iter_mut().enumerate() {
            for (k, bytes) in row.chunks_exact_mut(size as usize).enumerate() {
                let at = layout.element_address(r as u32, k as u32);
                shared.read(at, bytes).map_err(&fail)?;
            }
        }
        return Ok(());
    }
    let len = slot_bytes as usize;
    if len == 16 && whole_groups(layout, out, shared).is_some() {
        return Ok(());
    }
    let at: Vec<[u32; 2]> = layout.rows(out.len() as u32).collect();
    let ends = || at.iter().flatten();
    let (first, last) = (ends().min(), ends().max());
    // One look at all that lies between, where all of it was written.
    if let (Some(&first), Some(&last)) = (first, last)
        && let Some(window) = shared.window(first, last - first + slot_bytes)
    {
        for (row, at) in out.iter_mut().zip(&at) {
            for (half, at) in row.chunks_exact_mut(16).zip(at) {
                let from = &window[(at - first) as usize..];
                half[..len].copy_from_slice(&from[..len]);
            }
        }
        return Ok(());
    }
    for (row, at) in out.iter_mut().zip(&at) {
        for (half, at) in row.chunks_exact_mut(16).zip(at) {
            shared.read(*at, &mut half[..len]).map_err(&fail)?;
        }
    }
    Ok(())
}

/// Reads whole groups of eight rows without padding that lie alike, if all bytes between them were written. `None` of
/// other rows, and then some rows may have been read.
fn whole_groups<S: SharedRead + ?Sized>(
    layout: &Layout,
    out: &mut [Row],
    shared: &S,
) -> Option<()> {
    let (out, []) = out.as_chunks_mut::<8>() else {
        return None;
    };
    let (slots, stride) = layout.groups(8 * out.len() as u32)?;
    let start = *slots.iter().flatten().min()?;
    let end = slots.iter().flatten().max()? + 16;
    let further = stride * (out.len() as u32).checked_sub(1)?;
    let window = shared.window(start, end - start + further)?;
    let slots = slots.map(|at| at.map(|at| (at - start) as usize));
    for (group, rows) in out.iter_mut().enumerate() {
        let group = window.get(group * stride as usize..)?;
        for (row, at) in rows.iter_mut().zip(&slots) {
            for (half, at) in row.as_chunks_mut().0.iter_mut().zip(at) {
                *half = *group.get(*at..)?.first_chunk::<16>()?;
            }
        }
    }
    Some(())
}

/// The value of each code of an element of at most eight bits; bits above a code do not count.
fn table(e: Element) -> &'static [f32; 256] {
    static TABLES: LazyLock<Vec<(Element, [f32; 256])>> = LazyLock::new(|| {
        let value = |e: Element, bits| match e.format() {
            Some(format) => format.to_f64(bits & (2 * format.sign_bit() - 1)) as f32,
            None => e.integer(bits) as f32,
        };
        let table = |e| (e, std::array::from_fn(|bits| value(e, bits as u32)));
        let eight = Element::ALL.into_iter().filter(|e| e.bits() == 8);
        eight.map(table).collect()
    });
    let found = TABLES.iter().find(|(of, _)| *of == e);
    found.map_or(&[f32::NAN; 256], |(_, table)| table)
}

/// Decodes rows of 32 bytes.
fn decode(kind: Kind, e: Element, negate: bool, rows: &[[u8; 32]]) -> Values {
    if matches!(kind, Kind::Mxf4 | Kind::Mxf4nvf4) {
        let sign = if negate { -1 } else { 1 };
        let nibbles = rows.iter().flatten().flat_map(|b| [b & 0xf, b >> 4]);
        return Values::Doubled(
            nibbles
                .map(|c| sign * E2M1_DOUBLED[usize::from(c)])
                .collect(),
        );
    }
    let mut out: Vec<f32> = Vec::with_capacity(rows.len() * kind.k() as usize);
    if e == Element::F16 {
        out.resize(rows.len() * ROW_BYTES as usize / 2, 0.0);
        inner::f16_values(rows.as_flattened(), &mut out);
    }
    for row in rows {
        match e {
            Element::F16 => {}
            Element::Bf16 => out.extend(pairs(row).map(|b| f32::from_bits(u32::from(b) << 16))),
            Element::Tf32 => out.extend(
                row.as_chunks()
                    .0
                    .iter()
                    .map(|b| f32::from_bits(u32::from_le_bytes(*b) & 0xffff_e000)),
            ),
            // Sixteen packed elements at the front of every 16-byte slot, then padding.
            Element::E2m1 => packed(row, 4, table(e), &mut out),
            Element::E2m3 | Element::E3m2 => packed(row, 6, table(e), &mut out),
            _ => {
                let table = table(e);
                out.extend(row.iter().map(|b| table[usize::from(*b)]));
            }
        }
    }
    if negate {
        out.iter_mut().for_each(|v| *v = -*v);
    }
    Values::Real(out)
}

fn pairs(row: &[u8; 32]) -> impl Iterator<Item = u16> + '_ {
    row.chunks_exact(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
}

fn packed(row: &[u8; 32], bits: usize, values: &[f32; 256], out: &mut Vec<f32>) {
    for slot in row.chunks_exact(16) {
        for i in 0..16 {
            let at = i * bits;
            let two = u16::from(slot[at / 8]) | u16::from(slot[(at / 8 + 1).min(15)]) << 8;
            out.push(values[usize::from((two >> (at % 8)) as u8)]);
        }
    }
}

/// A, all M rows in order.
pub(super) fn read_a<S: SharedRead + ?Sized>(
    mma: &Mma,
    ctas: &[CtaMemory<'_, S>],
) -> Result<Vec<Row>, MmaError> {
    let i = &mma.idesc;
    let share = i.m / mma.group.ctas() as u32;
    let mut rows = vec![[0; ROW_BYTES as usize]; i.m as usize];
    let shares = rows.chunks_exact_mut(share.max(1) as usize);
    for ((cta, memory), rows) in ctas.iter().enumerate().zip(shares) {
        match mma.a {
            AOperand::Shared(desc) => {
                let l = layout(&desc, i.a_major, i.a, true)?;
                let fail = |source| Shared {
                    operand: 'A',
                    cta,
                    source,
                };
                let slots = (i.a, slot_bytes(i.kind, i.a));
                raw_rows(&l, rows, slots, memory.shared, fail)?;
            }
            AOperand::Tmem(at) => {
                for (r, row) in (0..share).zip(rows) {
                    let lane = at.lane() + if i.m == 64 { r % 16 + 32 * (r / 16) } else { r };
                    for (j, word) in row.chunks_exact_mut(4).enumerate() {
                        let value = memory.tmem.read_operand(lane, at.column() + j as u32, 0xf);
                        let fail = |source| Tmem {
                            operand: "A",
                            cta,
                            source,
                        };
                        word.copy_from_slice(&value.map_err(fail)?.to_le_bytes());
                    }
                }
            }
        }
    }
    Ok(rows)
}

/// The values of A's rows.
pub(super) fn decode_a(mma: &Mma, rows: &[Row]) -> Values {
    let i = &mma.idesc;
    decode(i.kind, i.a, i.negate_a, rows)
}

/// The values of B's rows.
pub(super) fn decode_b(mma: &Mma, rows: &[Row]) -> Values {
    let i = &mma.idesc;
    decode(i.kind, i.b, i.negate_b, rows)
}

/// A and B as integers, where they are f16 that hold small ones.
pub(super) fn integers(mma: &Mma, a: &[Row], b: &[Row]) -> Option<(Integers, Integers)> {
    let i = &mma.idesc;
    let plain = (i.a, i.b) == (Element::F16, Element::F16) && !i.negate_a && !i.negate_b;
    let of = |rows: &[Row]| Integers::of_f16(rows.as_flattened());
    plain.then(|| Some((of(a)?, of(b)?)))?
}

/// B, all N rows (its columns) in order: with a CTA pair each CTA holds half of them.
pub(super) fn read_b<S: SharedRead + ?Sized>(
    mma: &Mma,
    ctas: &[CtaMemory<'_, S>],
) -> Result<Vec<Row>, MmaError> {
    let i = &mma.idesc;
    let share = i.n / mma.group.ctas() as u32;
    let l = layout(&mma.b, i.b_major, i.b, false)?;
    let mut rows = vec![[0; ROW_BYTES as usize]; i.n as usize];
    let shares = rows.chunks_exact_mut(share.max(1) as usize);
    for ((cta, memory), rows) in ctas.iter().enumerate().zip(shares) {
        let fail = |source| Shared {
            operand: 'B',
            cta,
            source,
        };
        let slots = (i.b, slot_bytes(i.kind, i.b));
        raw_rows(&l, rows, slots, memory.shared, fail)?;
    }
    Ok(rows)
}

pub(super) fn check_tmem_a(mma: &Mma, a: TmemAddr) -> Result<(), MmaError> {
    let i = &mma.idesc;
    if i.a_major == Major::Mn {
        return Err(Unmodelled("a transposed A in tensor memory"));
    }
    if mma.group == CtaGroup::Two && i.m == 128 {
        return Err(Unmodelled("A in tensor memory with M = 128 of a CTA pair"));
    }
    let byte_kind = matches!(i.kind, Kind::F8f6f4 | Kind::Mxf8f6f4);
    if byte_kind && matches!(i.a, Element::E2m1 | Element::E2m3 | Element::E3m2) {
        return Err(Unmodelled(
            "sub-byte A in 8-bit containers in tensor memory",
        ));
    }
    // "Must use the same Tensor Memory lane alignment across matrices A, D".
    if a.lane() != mma.d.lane() {
        return Err(Lane {
            operand: "A",
            lane: a.lane(),
        });
    }
    Ok(())
}

pub(super) fn footprint(mma: &Mma, out: &mut Footprint) -> Result<(), MmaError> {
    let i = &mma.idesc;
    let group = mma.group.ctas();
    let mut shared = |l: Layout, rows: u32, e: Element| {
        for cta in 0..group {
            if l.is_k_major() {
                let len = slot_bytes(i.kind, e);
                for ends in l.rows(rows) {
                    if ends[0].abs_diff(ends[1]) == len {
                        out.shared_reads.push((cta, ends[0].min(ends[1]), 2 * len));
                    } else {
                        out.shared_reads.extend(ends.map(|a| (cta, a, len)));
                    }
                }
                continue;
            }
            for row in 0..rows {
                let size = element_bytes(e);
                let all = (0..ROW_BYTES / size).map(|k| l.element_address(row, k));
                out.shared_reads.extend(all.map(|a| (cta, a, size)));
            }
        }
    };
    let share = group as u32;
    shared(layout(&mma.b, i.b_major, i.b, false)?, i.n / share, i.b);
    match mma.a {
        AOperand::Shared(desc) => shared(layout(&desc, i.a_major, i.a, true)?, i.m / share, i.a),
        AOperand::Tmem(at) => out.tmem_reads.extend((0..group).map(|cta| TmemBlock {
            cta,
            lane: 0,
            lanes: 128,
            column: at.column(),
            columns: 8,
        })),
    }
    Ok(())
}
