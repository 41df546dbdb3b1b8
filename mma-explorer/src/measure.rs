//! How the kernels `latency` and `throughput` of [`crate::source::measure`] are launched, as plain data.
//!
//! Their parameters are: counts of cycles, D, what A, B and D hold at first, turns, and a zero.

use crate::types::Type;
use crate::variants::{Family, Variant};

/// Instructions of one turn of `latency`, each waiting for the one before: LINKS of the kernels.
pub const LINKS: u32 = 16;
/// Instructions of one turn of `throughput`, of a warp or warpgroup: CHAINS of the kernels.
pub const CHAINS: u32 = 8;

/// What a kernel of nothing but one instruction needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// Threads that execute an instruction together.
    pub threads: u32,
    /// 32-bit words of D that a thread writes.
    pub words: u32,
    /// The kernel's input: A and B full of ones, and accumulators of zeros.
    pub input: Vec<u8>,
    /// Whether D is a number made of CHAINS accumulators; or else it is the only one.
    mixes: bool,
}

impl Measure {
    /// Of `latency`, or of `throughput`.
    pub fn new(variant: &Variant, is_throughput: bool) -> Self {
        let words = variant.accumulator_registers();
        let mixes = is_throughput && variant.family() == Family::Mma;
        let input = match variant.family() {
            Family::Wgmma => {
                let ones = [variant.a, variant.b];
                let words = ones.iter().flat_map(|ty| ones_of(variant, *ty));
                words.collect()
            }
            _ => fragments_of_ones(variant, if mixes { CHAINS } else { 1 }),
        };
        Self {
            threads: variant.threads(),
            words,
            input,
            mixes,
        }
    }

    /// What every word of D is after so many turns, as long as sums of ones are exact.
    pub fn expected(&self, variant: &Variant, is_throughput: bool, turns: u32) -> u32 {
        let product = match variant.bits() {
            Some("xor") => 0,
            _ => i64::from(variant.shape.k),
        };
        let each = match (is_throughput, self.mixes) {
            (false, _) => LINKS,
            (true, true) => 1,
            (true, false) => CHAINS,
        };
        let sum = code_of_sum(variant, product * i64::from(each * turns));
        match self.mixes {
            true => (1..CHAINS).fold(sum, |all, _| all.wrapping_mul(31).wrapping_add(sum)),
            false => sum,
        }
    }
}

fn fragments_of_ones(variant: &Variant, accumulators: u32) -> Vec<u8> {
    let [a, b, c] = variant.registers();
    let ones = [(variant.a, a), (variant.b, b)];
    let ones = ones
        .iter()
        .flat_map(|(ty, registers)| ones_of(variant, *ty).repeat(32 * *registers as usize));
    let zeros = std::iter::repeat_n(0, (accumulators * c * 32 * 4) as usize);
    ones.chain(zeros).collect()
}

/// A word full of ones.
fn ones_of(variant: &Variant, ty: Type) -> [u8; 4] {
    let bits = variant.container_bits(ty);
    let one = ty.encode(1).unwrap_or(0) << variant.container_shift(ty);
    let word = (0..32 / bits).fold(0u32, |word, i| word | one << (i * bits));
    word.to_le_bytes()
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
