//! How the kernels `latency` and `throughput` of [`crate::source::measure`] are launched, as plain data.
//!
//! Their parameters are: counts of cycles, D, what A, B and D hold at first, turns, and a zero.

use crate::blackwell;
use crate::types::Type;
use crate::variants::{Family, Variant};

/// Instructions of one turn of `latency`, each waiting for the one before: LINKS of the kernels.
pub const LINKS: u32 = 16;
/// Instructions of one turn of `throughput`, of a warp or warpgroup: CHAINS of the kernels.
pub const CHAINS: u32 = 8;

/// The launch of a kernel of nothing but one instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// Threads that execute an instruction together.
    pub threads: u32,
    /// 32-bit words of D that a thread writes.
    pub words: u32,
    /// The kernel's input: A and B full of ones, and what else it reads.
    pub input: Vec<u8>,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The largest CTA, as a multiple of `threads`.
    pub most_groups: u32,
    /// Accumulators of which the numbers of D are made.
    accumulators: u32,
}

impl Measure {
    /// The launch of `latency`, or of `throughput`.
    pub fn new(variant: &Variant, is_throughput: bool) -> Self {
        let accumulators = match variant.family() {
            _ if !is_throughput => 1,
            Family::Mma => CHAINS,
            Family::Wgmma => 1,
            Family::Tcgen05 => blackwell::accumulators(variant),
        };
        let types = [variant.a, variant.b];
        let input = match variant.family() {
            Family::Mma => fragments_of_ones(variant, accumulators),
            Family::Wgmma => types
                .iter()
                .flat_map(|ty| word_of_ones(variant, *ty))
                .collect(),
            Family::Tcgen05 => {
                let ones = types.iter().flat_map(|ty| ones_of(variant, *ty));
                let instruction = blackwell::instruction(variant).unwrap_or(0);
                let scale = variant.scale().map_or(0, |scale| scale.one());
                let words = [instruction, u32::from_le_bytes([scale; 4])];
                ones.chain(words.into_iter().flat_map(u32::to_le_bytes))
                    .collect()
            }
        };
        Self {
            threads: variant.threads(),
            words: variant.accumulator_registers(),
            input,
            shared: match variant.family() {
                Family::Tcgen05 => blackwell::measure_shared(variant),
                _ => 0,
            },
            most_groups: match variant.family() {
                Family::Mma => 32,
                Family::Wgmma => 3,
                Family::Tcgen05 => 1,
            },
            accumulators,
        }
    }

    /// Every word of D after so many turns, as long as sums of ones are exact.
    pub fn expected(&self, variant: &Variant, is_throughput: bool, turns: u32) -> u32 {
        let product = match variant.bits() {
            Some("xor") => 0,
            _ => i64::from(variant.shape.k),
        };
        let each = match is_throughput {
            false => LINKS,
            true => CHAINS / self.accumulators,
        };
        let sum = code_of_sum(variant, product * i64::from(each * turns));
        (1..self.accumulators).fold(sum, |all, _| all.wrapping_mul(31).wrapping_add(sum))
    }
}

fn fragments_of_ones(variant: &Variant, accumulators: u32) -> Vec<u8> {
    let [a, b, c] = variant.registers();
    let ones = [(variant.a, a), (variant.b, b)];
    let ones = ones
        .iter()
        .flat_map(|(ty, registers)| word_of_ones(variant, *ty).repeat(32 * *registers as usize));
    let zeros = std::iter::repeat_n(0, (accumulators * c * 32 * 4) as usize);
    ones.chain(zeros).collect()
}

/// 16 bytes full of ones, as they lie in memory.
fn ones_of(variant: &Variant, ty: Type) -> [u8; 16] {
    let one = u128::from(ty.encode(1).unwrap_or(0));
    let elements = 128 / variant.container_bits(ty) as usize;
    let all = (0..elements).fold(0u128, |all, i| all | one << variant.bit_of(ty, i));
    all.to_le_bytes()
}

/// A word of them, where all are the same.
fn word_of_ones(variant: &Variant, ty: Type) -> [u8; 4] {
    let [a, b, c, d, ..] = ones_of(variant, ty);
    [a, b, c, d]
}

/// The word of D's registers that have this number in every element. Sums of so few ones are exact.
fn code_of_sum(variant: &Variant, sum: i64) -> u32 {
    match variant.accumulator {
        Type::F16 => {
            let code = Type::F16.encode(sum).unwrap_or(0);
            code << 16 | code
        }
        other => other.encode(sum).unwrap_or(0),
    }
}
