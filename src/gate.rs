//! Gates and RMSNorm: the steps between the layers of an MLP, and before them. The host's arithmetic is the device's,
//! operation by operation, so that both give the same bits. `csrc/kernels/gate.cuh` and `csrc/kernels/quantize.cuh` have
//! the other half.

use crate::error::{Error, Result};

/// The function of the results of `gate` and `up` in the MLP of a decoder layer, element by element, before `down`
/// multiplies it. All of it is f32. An infinite or NaN operand gives a result that is infinite or NaN, unless it was
/// clamped.
///
/// `σ(x) = 1 / (1 + exp(-x))` is computed with a relative error below 2^-21, as long as x is at least -87. Beyond that
/// it is `σ(-87)` or less: a magnitude below 2^-125.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Gate {
    /// `gate · σ(gate) · up`: SwiGLU, of Llama, Qwen, Mistral, DeepSeek.
    #[default]
    Silu,
    /// `gate · σ(√(8/π) · (gate + 0.044715 gate³)) · up`: GeGLU with the tanh form of GELU, of Gemma.
    GeluTanh,
    /// `g · σ(alpha · g) · (u + 1)`, with `g = min(gate, limit)` and u = `up`, at least `-limit` and at most `limit`: of
    /// gpt-oss, with an alpha of 1.702 and a limit of 7.
    Clamped {
        /// Multiplies gate within σ.
        alpha: f32,
        /// The largest magnitude that counts; positive.
        limit: f32,
    },
}

impl Gate {
    /// The gate of gpt-oss.
    pub const GPT_OSS: Self = Self::gpt_oss(7.0);

    /// The gate of gpt-oss with another limit.
    pub(crate) const fn gpt_oss(limit: f32) -> Self {
        let alpha = 1.702;
        Self::Clamped { alpha, limit }
    }

    /// Refuses an alpha or a limit that is not positive and finite.
    ///
    /// # Errors
    /// [`Error::Factor`].
    pub fn check(self) -> Result<()> {
        match self {
            Self::Silu | Self::GeluTanh => Ok(()),
            Self::Clamped { alpha, limit } => {
                positive("alpha of the gate", alpha)?;
                positive("limit of the gate", limit)
            }
        }
    }

    /// The gate of an element of `gate` and the one of `up`.
    ///
    /// ```
    /// use nvfp4_gemv::Gate;
    /// assert_eq!(Gate::Silu.of(0.0, 3.0), 0.0);
    /// assert!((Gate::Silu.of(1.0, 2.0) - 1.462_117).abs() < 1e-6);
    /// assert_eq!(Gate::GPT_OSS.of(100.0, 100.0), Gate::GPT_OSS.of(7.0, 7.0));
    /// ```
    #[inline(always)]
    pub fn of(self, gate: f32, up: f32) -> f32 {
        match self {
            Self::Silu => times_sigmoid(gate, gate) * up,
            Self::GeluTanh => {
                let factor = 0.071_354_816_f32 * (gate * gate) + 1.595_769_2;
                times_sigmoid(gate, gate * factor) * up
            }
            Self::Clamped { alpha, limit } => {
                // Not `min` and `max`, which would make a number of NaN.
                let gate = if gate > limit { limit } else { gate };
                let up = match up {
                    up if up > limit => limit,
                    up if up < -limit => -limit,
                    up => up,
                };
                times_sigmoid(gate, alpha * gate) * (up + 1.0)
            }
        }
    }
}

/// A number that a gate or a norm is given.
pub(crate) fn positive(operand: &'static str, value: f32) -> Result<()> {
    match value > 0.0 && value.is_finite() {
        true => Ok(()),
        false => Err(Error::Factor { operand, value }),
    }
}

/// x · σ(y).
#[inline(always)]
fn times_sigmoid(x: f32, y: f32) -> f32 {
    x / (1.0 + exponential(-y))
}

/// `exp(x)` for x of -87 to 88; beyond them, `exp(-87)` and `exp(88)`. e^x = 2^n e^r with n the integer nearest to
/// x / ln 2. What becomes of NaN differs on a device, and does not matter: a gate whose exponent is NaN multiplies by the
/// NaN that it comes from.
#[inline(always)]
fn exponential(x: f32) -> f32 {
    /// ln 2 in two parts. A product of the first one with n has no rounding.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    /// 1.5 · 2^23: a sum with it has no digits behind the point.
    const ROUND: f32 = 12_582_912.0;
    const TERMS: [f32; 7] = [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let sum = TERMS.iter().fold(1.0 / 5040.0, |sum, term| sum * r + term);
    let power = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127)
        << 23;
    sum * f32::from_bits(power)
}

/// Threads that share a vector in `csrc/kernels/quantize.cuh`, the elements that one of them takes at once, and those
/// that add up in exchanges.
const THREADS: usize = 256;
const PIECE: usize = 8;
const WARP: usize = 32;

/// RMSNorm of a vector, in f32: `x / √(mean(x²) + epsilon) · weight`, with the device's bits. The squares are summed in
/// a fixed order. A sum that is not finite gives NaN in every element.
///
/// ```
/// let y = nvfp4_gemv::rms_norm(&[3.0, -4.0], &[1.0, 2.0], 0.0);
/// assert!((y[0] - 0.848_528).abs() < 1e-6 && (y[1] + 2.262_742).abs() < 1e-6);
/// ```
///
/// # Panics
/// If there are not as many weights as elements.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    assert_eq!(x.len(), weight.len(), "weights of an RMSNorm");
    let mut sums = [0.0f32; THREADS];
    for (piece, sum) in x.chunks(PIECE).zip((0..THREADS).cycle()) {
        let sum = &mut sums[sum];
        *sum = piece.iter().fold(*sum, |sum, x| sum + x * x);
    }
    let of_warp = |warp: &[f32]| {
        let mut sums: [f32; WARP] = warp.try_into().unwrap_or_default();
        for step in [16, 8, 4, 2, 1] {
            for lane in 0..step {
                sums[lane] += sums[lane + step];
            }
        }
        sums[0]
    };
    let warps = sums.chunks_exact(WARP).map(of_warp);
    let sum = warps.reduce(|sum, warp| sum + warp).unwrap_or_default();
    if !sum.is_finite() {
        return vec![f32::NAN; x.len()];
    }
    let scale = 1.0 / (sum / x.len() as f32 + epsilon).sqrt();
    let element = |(x, weight): (&f32, &f32)| x * scale * weight;
    x.iter().zip(weight).map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 997th number, of each sign.
    fn numbers() -> impl Iterator<Item = f32> {
        (0..0x7f80_0000u32)
            .step_by(997)
            .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn gates_are_within_their_error() {
        let oss = |gate: f64, up: f64| {
            let gate = gate.min(7.0);
            gate * sigmoid(f64::from(1.702f32) * gate) * (up.clamp(-7.0, 7.0) + 1.0)
        };
        let gelu = |gate: f64, up: f64| {
            let y = (8.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            gate * sigmoid(y) * up
        };
        type Truth<'a> = &'a dyn Fn(f64, f64) -> f64;
        let silu = |gate: f64, up: f64| gate * sigmoid(gate) * up;
        // The exponent of GELU is rounded three times, relative to itself: 87 at most where it matters.
        let all: [(Gate, Truth<'_>, f64); 3] = [
            (Gate::Silu, &silu, 0.0),
            (Gate::GeluTanh, &gelu, 3.0 * 87.0 / 2.0),
            (Gate::GPT_OSS, &oss, 87.0 / 2.0),
        ];
        for (gate, truth, more) in all {
            let bound = (2.0 + more / 4.0) * 2f64.powi(-21);
            for x in numbers() {
                let (found, true_y) = (f64::from(gate.of(x, 0.75)), truth(x.into(), 0.75));
                let least = f64::from(x.abs()) * 2f64.powi(-124) + 1e-44;
                let error = (found - true_y).abs();
                assert!(
                    error <= bound * true_y.abs() + least,
                    "{gate:?} of {x:e}: {found:e}, true {true_y:e}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for gate in [Gate::Silu, Gate::GeluTanh, Gate::GPT_OSS] {
            assert!(gate.of(f32::NAN, 1.0).is_nan());
            assert!(gate.of(1.0, f32::NAN).is_nan());
            assert!(!gate.of(f32::NEG_INFINITY, 1.0).is_finite(), "{gate:?}");
        }
        assert_eq!(Gate::Silu.of(f32::INFINITY, 1.0), f32::INFINITY);
    }

    #[test]
    fn a_norm_is_near_the_norm_in_f64() {
        let mut rng = fastrand::Rng::with_seed(3);
        for k in [16, 2048, 2064, 8200] {
            let mut values = || (0..k).map(|_| rng.f32() * 4.0 - 2.0).collect::<Vec<f32>>();
            let (x, weight) = (values(), values());
            let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / k as f64;
            let scale = 1.0 / (mean + f64::from(1e-5f32)).sqrt();
            for ((x, w), y) in x.iter().zip(&weight).zip(rms_norm(&x, &weight, 1e-5)) {
                let true_y = f64::from(*x) * scale * f64::from(*w);
                // Half of the error of a sum of up to 33 squares in a row, 5 exchanges, 8 warps; and six roundings.
                let bound = true_y.abs() * f64::from(f32::EPSILON) / 2.0 * 30.0;
                assert!((f64::from(y) - true_y).abs() <= bound, "{y} {true_y}");
            }
        }
        assert!(
            rms_norm(&[1e30; 16], &[1.0; 16], 0.0)
                .iter()
                .all(|y| y.is_nan())
        );
        assert!(rms_norm(&[f32::INFINITY; 16], &[1.0; 16], 0.0)[0].is_nan());
    }
}
