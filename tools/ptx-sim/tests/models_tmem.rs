//! tcgen05.ld/st fragments and tcgen05.cp shapes.

#[macro_use]
#[path = "common/refused.rs"]
mod refused;

use ptx_sim::models::memory::SharedRead;
use ptx_sim::models::smem_desc::SmemDesc;
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tcgen05_cp::{CpError, CpFormat, CpShape, copy, source_ranges};
use ptx_sim::models::tcgen05_ld_st::{Cell, LdSt, LdStError, Shape};
use ptx_sim::models::tmem::{Tmem, TmemAddr, TmemError};
use std::collections::HashSet;

const SHAPES: [(Shape, u32, u32); 5] = [
    // shape, columns of .x1, largest .num
    (Shape::S16x64b, 2, 128),
    (Shape::S16x128b, 4, 64),
    (Shape::S16x256b, 8, 32),
    (Shape::S32x32b, 1, 128),
    (Shape::S16x32bx2, 2, 128),
];

fn all() -> impl Iterator<Item = (LdSt, u32, u32)> {
    SHAPES
        .into_iter()
        .flat_map(|(shape, width, max)| {
            (0..8)
                .map(|i| 1 << i)
                .filter(move |n| *n <= max)
                .flat_map(move |num| {
                    [false, true].map(|packed| {
                        let scale = if packed { 2 } else { 1 };
                        let split = (shape == Shape::S16x32bx2).then_some(num * scale);
                        (LdSt::new(shape, num, packed, split), width * num * scale, 0)
                    })
                })
        })
        .filter_map(|(op, columns, z)| op.ok().map(|o| (o, columns, z)))
}

#[test]
fn fragments_cover_every_cell_exactly_once() {
    let mut checked = 0;
    for (op, columns, _) in all() {
        if columns > 512 {
            continue;
        }
        let cells: Vec<_> = op.cells(TmemAddr::new(0, 0)).collect();
        let set: HashSet<_> = cells.iter().copied().collect();
        assert_eq!(set.len(), cells.len(), "{op:?}");
        assert_eq!(set.len() as u32, op.lanes() * columns, "{op:?}");
        assert!(
            set.iter().all(|c| c.0 < op.lanes() && c.1 < columns),
            "{op:?}"
        );
        let columns: HashSet<_> = op
            .columns(TmemAddr::new(0, 0))
            .flat_map(|(first, count)| first..first + count)
            .collect();
        let all = (0..op.lanes()).flat_map(|lane| columns.iter().map(move |c| (lane, *c)));
        assert_eq!(all.collect::<HashSet<_>>(), set, "{op:?}");
        checked += 1;
    }
    assert!(checked > 60);
}

#[test]
fn fragments_by_hand() {
    let cell = |shape, num, t, r| {
        let c = LdSt::new(shape, num, false, None).unwrap().cell(t, r);
        (c.lane, c.column)
    };
    // The fragment of .16x256b: row lane/4 + 8*((j%4)/2), col 8*(j/4)+2*(lane%4)+j%2.
    for t in 0..32 {
        for j in 0..16 {
            let want = (t / 4 + 8 * ((j % 4) / 2), 8 * (j / 4) + 2 * (t % 4) + j % 2);
            assert_eq!(cell(Shape::S16x256b, 4, t, j), want);
        }
        assert_eq!(cell(Shape::S32x32b, 8, t, 5), (t, 5));
    }
    assert_eq!(cell(Shape::S16x128b, 2, 6, 0), (1, 2));
    assert_eq!(cell(Shape::S16x128b, 2, 6, 1), (9, 2));
    assert_eq!(cell(Shape::S16x128b, 2, 6, 2), (1, 6));
    assert_eq!(cell(Shape::S16x64b, 2, 1, 0), (8, 0));
    assert_eq!(cell(Shape::S16x64b, 2, 2, 0), (0, 1));
    assert_eq!(cell(Shape::S16x64b, 2, 7, 1), (9, 3));
    let x2 = LdSt::new(Shape::S16x32bx2, 4, false, Some(64)).unwrap();
    assert_eq!(x2.cell(3, 2), Cell { lane: 3, column: 2 });
    assert_eq!(
        x2.cell(19, 2),
        Cell {
            lane: 3,
            column: 66
        }
    );
}

#[test]
fn register_counts_and_limits() {
    let regs = |s, n| LdSt::new(s, n, false, None).map(|o| o.registers());
    assert_eq!(regs(Shape::S32x32b, 128), Ok(128));
    assert_eq!(regs(Shape::S16x128b, 64), Ok(128));
    assert_eq!(regs(Shape::S16x256b, 32), Ok(128));
    refused!(regs(Shape::S16x128b, 128) => LdStError::Num { .. });
    refused!(regs(Shape::S16x256b, 64) => LdStError::Num { .. });
    assert!(regs(Shape::S32x32b, 3).is_err() && regs(Shape::S32x32b, 0).is_err());
    assert_eq!(regs(Shape::S16x32bx2, 1), Err(LdStError::HalfSplit));
    assert!(LdSt::new(Shape::S32x32b, 1, false, Some(1)).is_err());
}

fn pattern(regs: usize) -> Vec<[u32; 32]> {
    (0..regs)
        .map(|r| std::array::from_fn(|t| (r as u32) << 16 | t as u32 | 0x4000_8000))
        .collect()
}

#[test]
fn store_then_load_gives_the_registers_back() {
    for (op, columns, _) in all() {
        if columns > 512 {
            continue;
        }
        let mut tmem = Tmem::all_allocated();
        let lane = if op.lanes() == 16 { 48 } else { 32 };
        let at = TmemAddr::new(lane, 0);
        let regs = pattern(op.registers());
        op.store(&mut tmem, 5, at, &regs).unwrap();
        assert_eq!(op.load(&tmem, 1, at).unwrap(), regs, "{op:?}");
        refused!(op.load(&tmem, 2, at) => LdStError::Tmem(TmemError::WarpLanes { .. }));
    }
}

#[test]
fn packing_joins_adjacent_columns() {
    let mut tmem = Tmem::all_allocated();
    for lane in 0..32 {
        tmem.write(lane, 10, 0xaaaa_0000 | lane).unwrap();
        tmem.write(lane, 11, 0xbbbb_0100 | lane).unwrap();
    }
    let op = LdSt::new(Shape::S32x32b, 1, true, None).unwrap();
    let regs = op.load(&tmem, 0, TmemAddr::new(0, 10)).unwrap();
    assert_eq!(regs[0][7], 0x0107_0007);
    op.store(&mut tmem, 0, TmemAddr::new(0, 10), &regs).unwrap();
    assert!(
        tmem.read(7, 10).is_err(),
        "the upper half of an unpacked cell is not defined"
    );
    assert_eq!(tmem.read_masked(7, 11, 3).unwrap() & 0xffff, 0x107);
}

#[test]
fn loads_and_stores_refuse() {
    let mut tmem = Tmem::all_allocated();
    let op = LdSt::new(Shape::S16x64b, 1, false, None).unwrap();
    let at = TmemAddr::new(8, 0);
    refused!(op.load(&tmem, 0, at) => LdStError::LaneAlignment { multiple: 16, .. });
    let at = TmemAddr::new(0, 511);
    let regs = pattern(1);
    refused!(op.store(&mut tmem, 0, at, &regs) => LdStError::Tmem(_));
    refused!(op.load(&tmem, 0, TmemAddr::new(0, 511)) => LdStError::Tmem(_));
    refused!(op.store(&mut tmem, 0, TmemAddr::new(0, 0), &[]) => LdStError::Registers { .. });
}

/// Shared memory whose word at address a is a, up to 32 KiB.
fn shared() -> impl Fn(u32) -> Option<u8> {
    |a| (a < 32768).then_some(((a & !3) >> (8 * (a % 4))) as u8)
}

fn desc() -> SmemDesc {
    let swizzle = Swizzle::None;
    SmemDesc {
        start: 4096,
        leading: 4096,
        stride: 128,
        base_offset: 0,
        absolute: false,
        swizzle,
    }
}

#[test]
fn scale_atoms_through_cp() {
    // A 512-byte scale atom: byte of (m, k) at (m % 32) * 16 + (m / 32) * 4 + k.
    let mut tmem = Tmem::all_allocated();
    let at = TmemAddr::new(0, 20);
    copy(
        CpShape::S32x128bWarpx4,
        CpFormat::Plain,
        &desc(),
        &shared(),
        &mut tmem,
        at,
    )
    .unwrap();
    for m in 0..128 {
        for q in 0..4 {
            let word = tmem.read(m % 32 + 32 * q, 20 + m / 32).unwrap();
            assert_eq!(word, 4096 + (m % 32) * 16 + (m / 32) * 4);
        }
    }
    assert!(tmem.read(0, 24).is_err());
}

#[test]
fn shapes_write_their_lanes() {
    let lanes = |s: CpShape, r| s.lanes(r).collect::<Vec<_>>();
    assert_eq!(lanes(CpShape::S64x128bWarpx2_02_13, 40), [40, 104]);
    assert_eq!(lanes(CpShape::S64x128bWarpx2_01_23, 40), [72, 104]);
    assert_eq!(lanes(CpShape::S64x128bWarpx2_01_23, 5), [5, 37]);
    assert_eq!(lanes(CpShape::S4x256b, 3), [96]);
    for s in [
        CpShape::S128x256b,
        CpShape::S128x128b,
        CpShape::S64x128bWarpx2_02_13,
        CpShape::S64x128bWarpx2_01_23,
        CpShape::S32x128bWarpx4,
    ] {
        let mut all: Vec<_> = (0..s.rows()).flat_map(|r| s.lanes(r)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..128).collect::<Vec<_>>(), "{s:?}");
        let mut tmem = Tmem::all_allocated();
        copy(
            s,
            CpFormat::Plain,
            &desc(),
            &shared(),
            &mut tmem,
            TmemAddr::new(0, 0),
        )
        .unwrap();
        for row in 0..s.rows() {
            for c in 0..s.row_bytes() / 4 {
                let want = 4096 + row / 8 * 128 + row % 8 * 16 + c / 4 * 4096 + c % 4 * 4;
                for lane in s.lanes(row) {
                    assert_eq!(tmem.read(lane, c).unwrap(), want, "{s:?}");
                }
            }
        }
        assert_eq!(
            source_ranges(s, &desc()).unwrap().len() as u32,
            s.rows() * s.row_bytes() / 16
        );
    }
}

#[test]
fn copies_refuse() {
    let mut tmem = Tmem::all_allocated();
    let mut go = |d: &SmemDesc, f, at| copy(CpShape::S128x128b, f, d, &shared(), &mut tmem, at);
    let zero = TmemAddr::new(0, 0);
    refused!(go(&desc(), CpFormat::B4x16P64, zero) => CpError::Unmodelled(_));
    refused!(go(&desc(), CpFormat::Plain, TmemAddr::new(1, 0)) => CpError::Lane { .. });
    refused!(go(&desc(), CpFormat::Plain, TmemAddr::new(0, 509)) => CpError::Tmem(_));
    let high = SmemDesc {
        start: 32768 - 16,
        ..desc()
    };
    match go(&high, CpFormat::Plain, zero) {
        Err(CpError::Shared(e)) => assert_eq!(e.address, 32768),
        other => panic!("{other:?}"),
    }
    assert!(tmem.read(0, 0).is_err(), "a refused copy writes nothing");
}

#[test]
fn shared_read_reports_the_first_bad_byte() {
    let mut out = [0; 4];
    assert_eq!(shared().read(32766, &mut out).unwrap_err().address, 32768);
}
