//! Tensor maps against the driver's: `probes/recorded/tensor_maps.txt`, whose lines
//! `probes/tensor_maps.cpp` explains.

use std::fmt::Debug;

use proptest::prelude::*;
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};

const RECORDED: &str = include_str!("../probes/recorded/tensor_maps.txt");

/// A recorded call: the arguments, if they have a name, and the bytes, if the driver wrote any.
struct Call {
    line: &'static str,
    args: Option<TensorMapArgs>,
    bytes: Option<[u8; TensorMap::BYTES]>,
}

fn number<T: TryFrom<u64, Error: Debug>>(text: &str) -> T {
    let value = u64::from_str_radix(text, 16).expect("a hexadecimal number");
    T::try_from(value).expect("a number of this size")
}

fn list<T: TryFrom<u64, Error: Debug>>(text: &str) -> Vec<T> {
    let entries = text.split(',').filter(|entry| *entry != "-");
    entries.map(number).collect()
}

fn calls() -> impl Iterator<Item = Call> {
    RECORDED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let f: Vec<&str> = line.split(' ').collect();
            let bytes = (f[0] == "0").then(|| {
                let mut bytes = [0; TensorMap::BYTES];
                for (to, word) in bytes.chunks_exact_mut(4).zip(&f[11..]) {
                    to.copy_from_slice(&number::<u32>(word).to_le_bytes());
                }
                bytes
            });
            let args = || {
                Some(TensorMapArgs {
                    data_type: DataType::from_driver(number(f[1]))?,
                    global_address: number(f[2]),
                    global_dim: list(f[3]),
                    global_strides: list(f[4]),
                    box_dim: list(f[5]),
                    element_strides: list(f[6]),
                    interleave: Interleave::from_driver(number(f[7]))?,
                    swizzle: Swizzle::from_driver(number(f[8]))?,
                    l2_promotion: L2Promotion::from_driver(number(f[9]))?,
                    oob_fill: OobFill::from_driver(number(f[10]))?,
                })
            };
            Call {
                line,
                args: args(),
                bytes,
            }
        })
}

#[test]
fn the_drivers_bytes() {
    let (mut accepted, mut refused) = (0, 0);
    for call in calls() {
        let map = call.args.and_then(|args| {
            let map = TensorMap::encode(args).ok()?;
            map.check_hopper().ok().map(|()| map)
        });
        assert_eq!(
            map.as_ref().map(TensorMap::to_bytes),
            call.bytes,
            "{}",
            call.line
        );
        match call.bytes {
            Some(bytes) => {
                assert_eq!(TensorMap::from_bytes(&bytes), map, "{}", call.line);
                accepted += 1;
            }
            None => refused += 1,
        }
    }
    assert_eq!((accepted, refused), (1345, 475));
}

/// Every bit counts: with one bit turned, the bytes are another map or none.
#[test]
fn no_bit_is_ignored() {
    let (mut other, mut none) = (0, 0);
    for bytes in calls().filter_map(|call| call.bytes).step_by(10) {
        let map = TensorMap::from_bytes(&bytes);
        for bit in 0..TensorMap::BYTES * 8 {
            let mut turned = bytes;
            turned[bit / 8] ^= 1 << (bit % 8);
            match TensorMap::from_bytes(&turned) {
                None => none += 1,
                Some(turned) => {
                    assert_ne!(Some(turned), map, "bit {bit}");
                    other += 1;
                }
            }
        }
    }
    assert!(other > 0 && none > other, "{other} {none}");
}

proptest! {
    /// Also with what Hopper does not know, whose bytes are the simulator's own.
    #[test]
    fn later_maps_come_back(data_type in 0u32..16, swizzle in 0u32..7, rank in 1usize..=5, fill in 0u32..2) {
        let data_type = DataType::from_driver(data_type).unwrap();
        let swizzle = Swizzle::from_driver(swizzle).unwrap();
        let span = swizzle.span().map_or(1024, |bytes| u64::from(bytes) * 8);
        let inner = if data_type.is_padded() { 128 } else { (span / data_type.bits()) as u32 };
        let map = TensorMap::encode(TensorMapArgs {
            data_type,
            global_address: 0x1000,
            global_dim: vec![256; rank],
            global_strides: vec![256 * 8; rank - 1],
            box_dim: (0..rank).map(|d| if d == 0 { inner } else { 2 }).collect(),
            element_strides: (1..=rank as u32).collect(),
            interleave: Interleave::None,
            swizzle,
            l2_promotion: L2Promotion::B128,
            oob_fill: OobFill::from_driver(fill * u32::from(data_type.is_float())).unwrap(),
        });
        // Padded types do not go with every swizzle.
        prop_assert!(map.is_ok() || data_type.is_padded());
        if let Ok(map) = map {
            prop_assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map));
        }
    }

    #[test]
    fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), TensorMap::BYTES), zeros in any::<bool>()) {
        if zeros {
            // Close to a map: what is never set is not.
            bytes[4 * 15..].fill(0);
        }
        let bytes: [u8; TensorMap::BYTES] = bytes.try_into().unwrap();
        if let Some(map) = TensorMap::from_bytes(&bytes) {
            prop_assert_eq!(map.to_bytes(), bytes);
        }
    }
}
