//! The 128 bytes of a tensor map, as `cuTensorMapEncodeTiled` writes them on Hopper.
//!
//! NVIDIA does not document them. This layout was deduced from a recording of the driver,
//! `probes/recorded/tensor_maps.txt`, and gives all of it back (`tests/recorded_tensor_maps.rs`).
//! As 32-bit words, little-endian, where every bit that is not named is zero:
//!
//! | word | bits | what |
//! |---|---|---|
//! | 0, 1 | | address |
//! | 2 | 4..=6 | rank - 1 |
//! | | 7..=10, 16 | element type: [`TYPES`] |
//! | | 11..=12 | interleave |
//! | | 13..=14, 19..=20 | swizzle: [`SWIZZLES`] |
//! | | 15 | fill with NaN |
//! | | 17..=18 | L2 promotion |
//! | 3..=6 | | bits 4..=35 of the strides |
//! | 7 | 4 each | bits 36..=39 of the strides |
//! | 8..=12 | | dimensions - 1 |
//! | 13 | 3 each | element strides - 1 |
//! | | 24..=31 | box dimension 0, - 1 |
//! | 14 | 8 each | box dimensions 1 to 4, - 1 |
//! | 16 | | [`driver_box_bytes`] |
//! | 18 | | bytes after which the swizzle repeats |
//!
//! The driver refuses packed types and atoms of more than 16 bytes on Hopper, so their codes are
//! not recorded: they are codes that no recorded map has. Drivers on Blackwell may write other
//! bytes, for those maps and for all others.

use super::{
    DataType, Interleave, L2Promotion, OobFill, Swizzle, TensorMap, TensorMapArgs, driver_box_bytes,
};

/// Bits 7..=10 and bit 16 of word 2, in the order of `CUtensorMapDataType`. The last three are
/// this simulator's own.
const TYPES: [(u32, u32); 16] = [
    (0, 0),
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (9, 0),
    (10, 0),
    (8, 0),
    (7, 1),
    (8, 1),
    (11, 0),
    (12, 0),
    (13, 0),
];

/// Bits 13..=14 and 19..=20 of word 2, in the order of `CUtensorMapSwizzle`. The last three are this
/// simulator's own.
const SWIZZLES: [(u32, u32); 7] = [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3)];

impl TensorMap {
    /// Bytes of a tensor map.
    pub const BYTES: usize = 128;

    /// The bytes that the driver writes for this map on Hopper. The bytes of maps that it refuses there
    /// ([`check_hopper`](Self::check_hopper)) are this simulator's own.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let args = self.args();
        let mut words = [0u32; Self::BYTES / 4];
        words[0] = args.global_address as u32;
        words[1] = (args.global_address >> 32) as u32;
        let (code, tf32) = TYPES[args.data_type as usize];
        let (swizzle, atom) = SWIZZLES[args.swizzle as usize];
        words[2] = (self.rank() as u32 - 1) << 4
            | code << 7
            | (args.interleave as u32) << 11
            | swizzle << 13
            | (args.oob_fill as u32) << 15
            | tf32 << 16
            | (args.l2_promotion as u32) << 17
            | atom << 19;
        for (i, stride) in args.global_strides.iter().enumerate() {
            words[3 + i] = (stride >> 4) as u32;
            words[7] |= ((stride >> 36) as u32) << (4 * i);
        }
        for d in 0..self.rank() {
            words[8 + d] = (args.global_dim[d] - 1) as u32;
            words[13] |= (args.element_strides[d] - 1) << (3 * d);
            match d {
                0 => words[13] |= (args.box_dim[0] - 1) << 24,
                _ => words[14] |= (args.box_dim[d] - 1) << (8 * (d - 1)),
            }
        }
        words[16] = driver_box_bytes(args) as u32;
        words[18] = args.swizzle.period();
        let mut bytes = [0; Self::BYTES];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The map that these bytes are, or `None` if no map has them.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| bytes[4 * i + j]));
        let field = |i: usize, from: usize, bits: u32| word(i) >> from & ((1 << bits) - 1);
        let rank = field(2, 4, 3) as usize + 1;
        if rank > 5 {
            return None;
        }
        let data_type = (field(2, 7, 4), field(2, 16, 1));
        let swizzle = (field(2, 13, 2), field(2, 19, 2));
        let of = |all: &[(u32, u32)], codes| all.iter().position(|c| *c == codes).map(|i| i as u32);
        let stride = |i| u64::from(field(7, 4 * i, 4)) << 36 | u64::from(word(3 + i)) << 4;
        let box_dim = |d| match d {
            0 => field(13, 24, 8) + 1,
            _ => field(14, 8 * (d - 1), 8) + 1,
        };
        let map = Self::encode(TensorMapArgs {
            data_type: DataType::from_driver(of(&TYPES, data_type)?)?,
            global_address: u64::from(word(1)) << 32 | u64::from(word(0)),
            global_dim: (0..rank).map(|d| u64::from(word(8 + d)) + 1).collect(),
            global_strides: (0..rank - 1).map(stride).collect(),
            box_dim: (0..rank).map(box_dim).collect(),
            element_strides: (0..rank).map(|d| field(13, 3 * d, 3) + 1).collect(),
            interleave: Interleave::from_driver(field(2, 11, 2))?,
            swizzle: Swizzle::from_driver(of(&SWIZZLES, swizzle)?)?,
            l2_promotion: L2Promotion::from_driver(field(2, 17, 2))?,
            oob_fill: OobFill::from_driver(field(2, 15, 1))?,
        })
        .ok()?;
        (map.to_bytes() == *bytes).then_some(map)
    }

    /// The maps among a kernel's parameters, each with the parameter and the byte in it that the map starts at. A
    /// parameter may be a map, or an array or a structure that contains some.
    pub fn find(params: &[Vec<u8>]) -> Vec<(usize, usize, Self)> {
        let mut found = Vec::new();
        for (p, bytes) in params.iter().enumerate() {
            // A map is 64-byte aligned.
            for at in (0..bytes.len()).step_by(64) {
                let bytes = bytes.get(at..at + Self::BYTES);
                let map = bytes.and_then(|b| Self::from_bytes(b.try_into().ok()?));
                found.extend(map.map(|map| (p, at, map)));
            }
        }
        found
    }
}
