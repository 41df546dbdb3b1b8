//! Elements of buffers: how numbers lie in them.

use serde::Deserialize;

use crate::softfloat::{BF16, E2M1, E4M3, E5M2, F16, F32, Format, Round, ue4m3, ue8m0};

/// The type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum BufferType {
    F64,
    F32,
    F16,
    Bf16,
    E4m3,
    E5m2,
    /// Two a byte, the first one in the low bits.
    E2m1,
    Ue4m3,
    Ue8m0,
    U8,
    I8,
    U32,
    I32,
}

impl BufferType {
    /// Bits of one.
    pub fn bits(self) -> usize {
        match self {
            BufferType::F64 => 64,
            BufferType::F32 | BufferType::U32 | BufferType::I32 => 32,
            BufferType::F16 | BufferType::Bf16 => 16,
            BufferType::E2m1 => 4,
            _ => 8,
        }
    }

    /// Bytes of so many, if that is a number of bytes.
    pub fn bytes(self, count: usize) -> Option<usize> {
        let bits = count.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    fn format(self) -> Option<Format> {
        Some(match self {
            BufferType::F32 => F32,
            BufferType::F16 => F16,
            BufferType::Bf16 => BF16,
            BufferType::E4m3 => E4M3,
            BufferType::E5m2 => E5M2,
            BufferType::E2m1 => E2M1,
            _ => return None,
        })
    }

    /// The value of a bit pattern. NaN for patterns that have none.
    pub fn value(self, bits: u64) -> f64 {
        let bits = bits & (u64::MAX >> (64 - self.bits()));
        let byte = bits as u8;
        match self {
            BufferType::F64 => f64::from_bits(bits),
            BufferType::Ue4m3 => ue4m3(byte).unwrap_or(f64::NAN),
            BufferType::Ue8m0 => ue8m0(byte),
            BufferType::I8 => f64::from(byte as i8),
            BufferType::I32 => f64::from(bits as u32 as i32),
            _ => match self.format() {
                Some(format) => format.to_f64(bits as u32),
                None => f64::from(bits as u32),
            },
        }
    }

    /// The bit pattern of a value, if it has one.
    pub fn pattern(self, value: f64) -> Option<u64> {
        let bits = match self {
            BufferType::F64 => value.to_bits(),
            BufferType::U32 => u64::from(value as u32),
            BufferType::I32 => u64::from(value as i32 as u32),
            _ => match self.format() {
                Some(format) => u64::from(format.round(value, Round::Nearest, false)),
                // These types have so few bit patterns that all can be tried.
                None => (0..1 << self.bits()).find(|bits| self.value(*bits) == value)?,
            },
        };
        (self.value(bits) == value).then_some(bits)
    }

    /// The values of a buffer's bytes.
    pub fn read(self, bytes: &[u8]) -> Vec<f64> {
        if self == BufferType::E2m1 {
            let both = |b: &u8| [u64::from(b & 0xf), u64::from(b >> 4)];
            return bytes.iter().flat_map(both).map(|b| self.value(b)).collect();
        }
        let bits = |b: &[u8]| b.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
        bytes
            .chunks_exact(self.bits() / 8)
            .map(|b| self.value(bits(b)))
            .collect()
    }

    /// The bytes of bit patterns.
    pub(super) fn write(self, mut patterns: impl Iterator<Item = u64>) -> Vec<u8> {
        let count = patterns.size_hint().1.unwrap_or_default();
        let mut out = Vec::with_capacity(self.bytes(count).unwrap_or_default());
        while let Some(first) = patterns.next() {
            match self {
                BufferType::E2m1 => {
                    let high = patterns.next().unwrap_or_default();
                    out.push((first & 0xf | high << 4) as u8);
                }
                _ => out.extend_from_slice(&first.to_le_bytes()[..self.bits() / 8]),
            }
        }
        out
    }
}
