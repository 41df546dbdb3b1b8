//! Tensor maps and tile-mode plans: rules, round trips, edges, swizzles.

#[macro_use]
#[path = "common/refused.rs"]
mod refused;

use proptest::prelude::*;
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs, TensorMapError,
};
use ptx_sim::models::tma::{Direction::*, GlobalSide, Plan, TmaError::*, plan};

fn args(data_type: DataType, dims: &[u64], boxes: &[u32]) -> TensorMapArgs {
    let mut strides = Vec::new();
    let mut bytes = dims[0] * data_type.bits() / 8;
    for d in &dims[1..] {
        bytes = bytes.next_multiple_of(32);
        strides.push(bytes);
        bytes *= d;
    }
    TensorMapArgs {
        data_type,
        global_address: 0x1000,
        global_dim: dims.to_vec(),
        global_strides: strides,
        box_dim: boxes.to_vec(),
        element_strides: vec![1; dims.len()],
        interleave: Interleave::None,
        swizzle: Swizzle::None,
        l2_promotion: L2Promotion::B256,
        oob_fill: OobFill::Zero,
    }
}

fn base() -> TensorMapArgs {
    args(DataType::Uint8, &[128, 64], &[64, 8])
}

#[test]
fn every_rule_of_the_driver() {
    use TensorMapError::*;
    assert!(TensorMap::encode(base()).is_ok());
    let edited = |edit: fn(&mut TensorMapArgs)| {
        let mut a = base();
        edit(&mut a);
        TensorMap::encode(a)
    };
    refused!(edited(|a| a.global_dim.clear()) => Rank(0));
    refused!(edited(|a| a.global_dim = vec![1; 6]) => Rank(6));
    refused!(edited(|a| a.box_dim.push(1)) => Length { array: "boxDim", .. });
    refused!(edited(|a| a.global_strides.clear()) => Length { array: "globalStrides", .. });
    refused!(edited(|a| a.element_strides.clear()) => Length { .. });
    refused!(edited(|a| a.interleave = Interleave::B16) => InterleaveRank(2));
    refused!(edited(|a| a.global_address += 8) => Address { align: 16, .. });
    refused!(edited(|a| a.global_dim[1] = 0) => GlobalDim { dim: 1, .. });
    refused!(edited(|a| a.global_dim[0] = (1 << 32) + 1) => GlobalDim { dim: 0, .. });
    refused!(edited(|a| a.global_strides[0] = 136) => StrideMultiple { multiple: 16, .. });
    refused!(edited(|a| a.global_strides[0] = 1 << 40) => StrideTooLarge { .. });
    refused!(edited(|a| a.box_dim[1] = 0) => BoxDim { dim: 1, value: 0 });
    refused!(edited(|a| a.box_dim[1] = 257) => BoxDim { dim: 1, value: 257 });
    refused!(edited(|a| a.box_dim[0] = 24) => BoxBytes { bits: 192 });
    refused!(edited(|a| a.element_strides[1] = 0) => ElementStride { dim: 1, value: 0 });
    refused!(edited(|a| a.element_strides[1] = 9) => ElementStride { dim: 1, value: 9 });
    refused!(edited(|a| a.swizzle = Swizzle::B32) => BoxOverSwizzle { bytes: 64, span: 32 });
    refused!(edited(|a| a.oob_fill = OobFill::NanRequestZeroFma) => NanFill(_));
    refused!(edited(|a| a.global_address = 1 << 57) => AddressTooLarge(_));
    refused!(edited(|a| *a = args(DataType::U4x16Align8B, &[63, 4], &[32, 4])) => GlobalDimMultiple { multiple: 2, .. });
    let padded = || args(DataType::U4x16Align16B, &[256, 4], &[128, 4]);
    assert!(TensorMap::encode(padded()).is_ok());
    let with = |edit: fn(&mut TensorMapArgs)| {
        let mut a = padded();
        edit(&mut a);
        TensorMap::encode(a)
    };
    refused!(with(|a| a.global_address = 0x1010) => Address { align: 32, .. });
    refused!(with(|a| a.box_dim = vec![64, 4]) => BoxPacked(64));
    refused!(with(|a| a.global_dim = vec![64, 4]) => GlobalDimMultiple { multiple: 128, .. });
    refused!(with(|a| a.global_strides = vec![144]) => StrideMultiple { multiple: 32, .. });
    refused!(with(|a| a.swizzle = Swizzle::B64) => PackedSwizzle { .. });
    // Dimension 0's traversal stride is ignored without interleave, but must be a valid one.
    refused!(edited(|a| a.element_strides[0] = 9) => ElementStride { dim: 0, value: 9 });
    refused!(edited(|a| *a = args(DataType::Uint8, &[256, 256, 4], &[256, 229, 4])) => BoxSize { bytes: 0x39400 });
    let mut a = base();
    a.element_strides[0] = 8;
    assert_eq!(TensorMap::encode(a).unwrap().box_elements(0), 64);
    assert_eq!(DataType::from_driver(9), Some(DataType::Bfloat16));
    assert_eq!(DataType::from_driver(16), None);
}

/// Shared memory and the set of written bytes after a load of `global`.
fn run_load(p: &Plan, start: u32, global: &[u8]) -> Vec<Option<u8>> {
    let mut out = vec![None; (start + p.shared_bytes) as usize];
    for m in p.moves.iter().flat_map(|m| m.granules()) {
        for i in 0..m.len {
            let at = (m.shared + i) as usize;
            assert!(out[at].is_none(), "byte {at} written twice");
            out[at] = match m.global {
                GlobalSide::Bytes(a) => Some(global[(a + u64::from(i)) as usize - 0x1000]),
                GlobalSide::Zero => Some(0),
                GlobalSide::Nan { pattern, bytes } => {
                    Some((pattern >> (8 * (i % u32::from(bytes)))) as u8)
                }
                GlobalSide::Uninitialised => None,
            };
        }
    }
    out
}

fn noise(n: usize) -> Vec<u8> {
    (0..n)
        .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8 | 1)
        .collect()
}

#[test]
fn what_hopper_does_not_know() {
    assert!(TensorMap::encode(base()).unwrap().check_hopper().is_ok());
    let mut atoms = base();
    atoms.swizzle = Swizzle::B128Atom64;
    let packed = args(DataType::U4x16Align8B, &[128, 4], &[64, 4]);
    for later in [atoms, packed] {
        refused!(TensorMap::encode(later).unwrap().check_hopper() => TensorMapError::NotOnHopper(_));
    }
}

#[test]
fn two_d_box_by_hand() {
    // 30 x 4 f32 tensor; a 4 x 2 box at (28, -1): half its columns and one row are outside.
    let map = TensorMap::encode(args(DataType::Float32, &[30, 4], &[4, 2])).unwrap();
    let p = plan(&map, &[28, -1], 256, Load).unwrap();
    assert_eq!(
        (p.shared_bytes, p.transaction_bytes),
        (32, 32),
        "the full box counts"
    );
    let global = noise(32 * 4 * 4);
    let out = run_load(&p, 256, &global);
    assert!(out[256..272].iter().all(|b| *b == Some(0)));
    assert_eq!(
        out[272..280],
        global[112..120]
            .iter()
            .map(|b| Some(*b))
            .collect::<Vec<_>>()
    );
    assert!(out[280..288].iter().all(|b| *b == Some(0)));
    let mut nan = args(DataType::Float32, &[30, 4], &[4, 2]);
    nan.oob_fill = OobFill::NanRequestZeroFma;
    let p = plan(&TensorMap::encode(nan).unwrap(), &[28, -1], 256, Load).unwrap();
    let out = run_load(&p, 256, &global);
    let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| out[i + j].unwrap()));
    assert!(f32::from_bits(word(256)).is_nan() && f32::from_bits(word(284)).is_nan());
}

#[test]
fn traversal_stride_skips() {
    let mut a = args(DataType::Uint8, &[16, 16], &[16, 7]);
    a.element_strides[1] = 3;
    let map = TensorMap::encode(a).unwrap();
    assert_eq!(map.box_elements(1), 3, "ceil(7 / 3)");
    let p = plan(&map, &[0, 2], 0, Load).unwrap();
    let from: Vec<_> = p.moves.iter().map(|m| (m.shared, m.global)).collect();
    let row = |r: u64| GlobalSide::Bytes(0x1000 + 32 * r);
    // A 16-byte row padded to a 32-byte stride.
    assert_eq!(from, [(0, row(2)), (16, row(5)), (32, row(8))]);
}

#[test]
fn padded_types_leave_gaps() {
    let map = TensorMap::encode(args(DataType::U4x16Align16B, &[256, 2], &[128, 2])).unwrap();
    let p = plan(&map, &[128, 0], 0, Load).unwrap();
    assert_eq!((p.shared_bytes, p.transaction_bytes), (256, 128));
    let global = noise(256);
    let out = run_load(&p, 0, &global);
    for slot in 0..8 {
        for i in 0..8 {
            assert_eq!(out[slot * 16 + i], Some(global[64 + slot * 8 + i]));
            assert_eq!(out[slot * 16 + 8 + i], None);
        }
    }
    refused!(plan(&map, &[64, 0], 0, Load) => PackedCoordinate { .. });
    refused!(plan(&map, &[0, 0], 0, Store) => PackedDirection { .. });
}

#[test]
fn refusals() {
    let map = TensorMap::encode(base()).unwrap();
    let refuse = |c: &[i32], at, d| plan(&map, c, at, d);
    refused!(refuse(&[0], 0, Load) => CoordinateCount { got: 1, want: 2 });
    for d in [Load, Store, Reduce] {
        for x in [8, 200] {
            refused!(refuse(&[x, 0], 0, d) => CoordinateAlignment { .. });
        }
    }
    refused!(refuse(&[-8, 0], 0, Load) => CoordinateAlignment { value: -8, .. });
    refused!(refuse(&[0, 0], 64, Load) => SharedAlignment { .. });
    refused!(refuse(&[0, -1], 0, Store) => NegativeStore { dim: 1, .. });
    refused!(refuse(&[0, 0], 0xffff_ff80, Load) => SharedOverflow { .. });
    let mut a = base();
    a.swizzle = Swizzle::B128;
    let narrow = TensorMap::encode(a.clone()).unwrap();
    for d in [Store, Reduce] {
        refused!(plan(&narrow, &[0, 0], 0, d) => Unmodelled(_));
    }
    a.swizzle = Swizzle::B128Atom32;
    refused!(plan(&TensorMap::encode(a).unwrap(), &[0, 0], 0, Load) => Unmodelled(_));
    let dense = TensorMap::encode(args(DataType::U4x16Align8B, &[128, 4], &[64, 4])).unwrap();
    refused!(plan(&dense, &[1, 0], 0, Load) => PackedCoordinate { .. });
    refused!(plan(&dense, &[0, 0], 0, Reduce) => PackedDirection { .. });
}

#[test]
fn narrow_swizzled_rows_lie_a_span_apart() {
    // 48-byte rows, 64B swizzle, as recorded: chunk c of row 5 lies at chunk c ^ 2 of its span.
    let mut a = args(DataType::Uint8, &[64, 8], &[48, 8]);
    a.swizzle = Swizzle::B64;
    let map = TensorMap::encode(a).unwrap();
    let p = plan(&map, &[0, 0], 512, Load).unwrap();
    assert_eq!((p.shared_bytes, p.transaction_bytes), (512, 384));
    let global = noise(64 * 8);
    let out = run_load(&p, 512, &global);
    let row = &out[512 + 5 * 64..][..64];
    let chunk = |c: usize| -> Vec<_> {
        global[5 * 64 + 16 * c..][..16]
            .iter()
            .copied()
            .map(Some)
            .collect()
    };
    assert_eq!(row[..16], chunk(2));
    assert_eq!(row[16..32], [None; 16]);
    assert_eq!(row[32..48], chunk(0));
    assert_eq!(row[48..], chunk(1));
}

#[test]
fn swizzled_row_five_by_hand() {
    // 128-byte rows, 128B swizzle: chunk c of row 5 lies at chunk c ^ 5 of line 5.
    let mut a = args(DataType::Uint8, &[128, 8], &[128, 8]);
    a.swizzle = Swizzle::B128;
    let map = TensorMap::encode(a).unwrap();
    let p = plan(&map, &[0, 0], 2048, Load).unwrap();
    let out = run_load(&p, 2048, &noise(1024));
    let global = noise(1024);
    assert_eq!(
        out[2048 + 5 * 128 + (3 ^ 5) * 16 + 7],
        Some(global[5 * 128 + 3 * 16 + 7])
    );
    // A box of the same shape, 128 bytes further, starts one line into the pattern.
    let p = plan(&map, &[0, 0], 2048 + 128, Load).unwrap();
    let out = run_load(&p, 2048 + 128, &global);
    assert_eq!(out[2048 + 128 + 16], Some(global[0]));
}

fn swizzles() -> impl Strategy<Value = Swizzle> {
    prop::sample::select(Swizzle::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A load is what plain nested loops over coordinates say, for every rank and swizzle; a
    /// store of the same box puts exactly the in-bounds bytes back.
    #[test]
    fn load_matches_loops_and_store_inverts(
        rank in 1usize..=5,
        swizzle in swizzles(),
        dims in prop::collection::vec(1u64..12, 4),
        boxes in prop::collection::vec(1u32..5, 4),
        strides in prop::collection::vec(1u32..3, 4),
        first in -3i32..6,
        coords in prop::collection::vec(-3i32..10, 4),
        inner in 1u64..80,
        start in 0u32..4,
        wide in any::<bool>(),
    ) {
        let t = if wide { DataType::Uint16 } else { DataType::Uint8 };
        let size = t.bits() / 8;
        let box0 = (u64::from(swizzle.span().unwrap_or(48)) / size) as u32;
        let mut all_dims = vec![inner];
        all_dims.extend(&dims[..rank - 1]);
        let mut all_boxes = vec![box0];
        all_boxes.extend(&boxes[..rank - 1]);
        let mut a = args(t, &all_dims, &all_boxes);
        a.swizzle = swizzle;
        a.element_strides[1..].copy_from_slice(&strides[..rank - 1]);
        let bytes = a.global_strides.last().map_or(inner * size, |s| s * dims[rank - 2]) as usize;
        let global = noise(bytes);
        let map = TensorMap::encode(a.clone()).unwrap();
        // A copy starts at a multiple of 16 bytes.
        let mut c = vec![first * 16 / size as i32];
        c.extend(&coords[..rank - 1]);
        let c = &c[..];
        let at = 1024 + 128 * start;
        let p = plan(&map, c, at, Load).unwrap();
        let out = run_load(&p, at, &global);
        prop_assert_eq!(out[at as usize..].iter().filter(|b| b.is_some()).count() as u64, map.box_bytes());

        let counts: Vec<u32> = (0..rank).map(|d| map.box_elements(d)).collect();
        let total: u32 = counts.iter().product();
        for e in 0..total {
            let (mut rest, mut inside, mut offset) = (e, true, 0u64);
            for d in 0..rank {
                let i = rest % counts[d];
                rest /= counts[d];
                let step = if d == 0 { 1 } else { a.element_strides[d] };
                let x = i64::from(c[d]) + i64::from(i * step);
                inside &= x >= 0 && (x as u64) < all_dims[d];
                let pitch = if d == 0 { size } else { a.global_strides[d - 1] };
                offset = offset.wrapping_add((x as u64).wrapping_mul(pitch));
            }
            for byte in 0..size {
                let lies = swizzle.apply(at + e * size as u32 + byte as u32) as usize;
                let want = if inside { global[(offset + byte) as usize] } else { 0 };
                prop_assert_eq!(out[lies], Some(want));
            }
        }

        if c.iter().all(|x| *x >= 0) {
            let p = plan(&map, c, at, Store).unwrap();
            for m in p.moves.iter().flat_map(|m| m.granules()) {
                let GlobalSide::Bytes(to) = m.global else { panic!("a store fills nothing") };
                for i in 0..m.len {
                    // A store ends on a multiple of 16 bytes, past the end of a row.
                    let offset = to - 0x1000 + u64::from(i);
                    if offset % a.global_strides.first().unwrap_or(&u64::MAX) >= inner * size {
                        continue;
                    }
                    let back = out[(m.shared + i) as usize];
                    prop_assert_eq!(back, Some(global[to as usize - 0x1000 + i as usize]));
                }
            }
        }
    }

    /// Extreme coordinates and addresses give a plan or a typed error.
    #[test]
    fn no_coordinate_panics(c in any::<[i32; 3]>(), at in any::<u32>(), near in any::<bool>(), bits in 0u32..16) {
        let t = DataType::from_driver(bits).unwrap();
        let size = t.bits() * 128 / 8;
        let mut a = args(t, &[1 << 32, 3, 1 << 20], &[128, 2, 2]);
        a.global_dim[1] = 1 << 32;
        a.global_strides = vec![1 << 39, 32];
        if size > 128 { a.box_dim[0] = 16; }
        if let Ok(map) = TensorMap::encode(a) {
            let c = if near { [c[0] & !127, c[1] & 3, c[2]] } else { c };
            let at = if near { at & 0xff80 } else { at };
            for d in [Load, Store, Reduce] {
                let _ = plan(&map, &c, at, d);
            }
        }
    }
}
