//! Vectors that are hard to quantise to the same bits. Also for the simulator's tests.

use half::{bf16, f16};
use nvfp4_gemv::format::e4m3;
use nvfp4_gemv::kernel::quantize::Input;
use nvfp4_gemv::{Element, Gate, RowOrder, rms_norm};

/// An element type that can be made from f32.
pub(crate) trait Source: Element + std::fmt::Debug {
    /// Exponents of the smallest subnormal number and of the largest number.
    const EXPONENTS: (i32, i32);
    fn from_f32(x: f32) -> Self;
}

macro_rules! source {
    ($type:ty, $exponents:expr, $from:expr) => {
        impl Source for $type {
            const EXPONENTS: (i32, i32) = $exponents;
            fn from_f32(x: f32) -> Self {
                $from(x)
            }
        }
    };
}

source!(f16, (-24, 15), f16::from_f32);
source!(bf16, (-133, 127), bf16::from_f32);
source!(f32, (-149, 127), |x| x);

/// The function of vectors before they are quantised.
#[derive(Debug)]
pub(crate) enum Before<T> {
    Nothing,
    Gate(Gate, RowOrder),
    /// With weights, and what is added to the mean square.
    Norm(Vec<T>, f32),
}

impl<T: Source> Before<T> {
    /// The elements that are quantised: `[rows][k]`.
    pub(crate) fn of(&self, x: &[T], k: usize) -> Vec<f32> {
        let x: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        match self {
            Self::Nothing => x,
            Self::Gate(gate, order) => {
                let rows = x.chunks_exact(2 * k);
                let made = rows.flat_map(|row| {
                    (0..k).map(|i| match order {
                        RowOrder::Stacked => gate.of(row[i], row[k + i]),
                        RowOrder::Interleaved => gate.of(row[2 * i], row[2 * i + 1]),
                    })
                });
                made.collect()
            }
            Self::Norm(weight, epsilon) => {
                let weight: Vec<f32> = weight.iter().map(|w| w.to_f32()).collect();
                let rows = x.chunks_exact(k);
                rows.flat_map(|row| rms_norm(row, &weight, *epsilon))
                    .collect()
            }
        }
    }

    /// The same as a kernel is told, with the weights at an address.
    pub(crate) fn input(&self, upload: impl FnOnce(&[T]) -> u64) -> Input {
        match self {
            Self::Nothing => Input::Plain,
            Self::Gate(gate, order) => Input::Gated {
                gate: *gate,
                order: *order,
            },
            Self::Norm(weight, epsilon) => Input::Normed {
                weight: upload(weight),
                epsilon: *epsilon,
            },
        }
    }
}

/// A property of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Blocks of very different magnitudes, anywhere in the type's range.
    Spread,
    /// Every element with an exponent of its own, to the ends of the range.
    Wild,
    /// Subnormal numbers.
    Subnormal,
    /// Block scales and elements at the boundaries between two codes, and next to them.
    Boundaries,
    /// Zeros of both signs, among them whole blocks and vectors.
    Zeros,
    /// A NaN or an infinity in every second vector.
    NotFinite,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Spread,
        Self::Wild,
        Self::Subnormal,
        Self::Boundaries,
        Self::Zeros,
        Self::NotFinite,
    ];
}

/// `[rows][k]` elements of a kind. Deterministic.
pub(crate) fn vectors<T: Source>(kind: Kind, rows: usize, k: usize, seed: u64) -> Vec<T> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..rows)
        .flat_map(|row| {
            let mut x = match kind {
                Kind::Spread | Kind::Zeros | Kind::NotFinite => spread::<T>(k, &mut rng),
                Kind::Wild => wild::<T>(k, T::EXPONENTS, &mut rng),
                Kind::Subnormal => {
                    let least = T::EXPONENTS.0;
                    wild::<T>(k, (least, least + rng.i32(1..30)), &mut rng)
                }
                Kind::Boundaries => boundaries::<T>(k, &mut rng),
            };
            match kind {
                Kind::Zeros => zeros(&mut x, row, &mut rng),
                Kind::NotFinite if row % 2 == 0 => {
                    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
                    x[rng.usize(..k)] = bad[row / 2 % 4];
                }
                _ => {}
            }
            x.into_iter().map(T::from_f32)
        })
        .collect()
}

/// `x` if it is finite in the type, or 1 with the sign of `x`.
fn clamp<T: Source>(x: f32) -> f32 {
    if T::from_f32(x).to_f32().is_finite() {
        x
    } else {
        1.0f32.copysign(x)
    }
}

fn number<T: Source>(exponent: i32, rng: &mut fastrand::Rng) -> f32 {
    let x = (1.0 + rng.f64()) * f64::from(exponent).exp2();
    clamp::<T>(if rng.bool() { -x } else { x } as f32)
}

fn spread<T: Source>(k: usize, rng: &mut fastrand::Rng) -> Vec<f32> {
    let (least, most) = T::EXPONENTS;
    let top = rng.i32(least..=most);
    let mut x = Vec::with_capacity(k);
    for _ in 0..k / 16 {
        let block = top - rng.i32(0..25);
        x.extend((0..16).map(|_| number::<T>(block - rng.i32(0..6), rng)));
    }
    x
}

fn wild<T: Source>(k: usize, exponents: (i32, i32), rng: &mut fastrand::Rng) -> Vec<f32> {
    (0..k)
        .map(|_| number::<T>(rng.i32(exponents.0..=exponents.1), rng))
        .collect()
}

fn zeros(x: &mut [f32], row: usize, rng: &mut fastrand::Rng) {
    for block in x.chunks_mut(16) {
        let all = row.is_multiple_of(3) || rng.u8(..3) == 0;
        for x in block {
            if all || rng.bool() {
                *x = if rng.bool() { 0.0 } else { -0.0 };
            }
        }
    }
}

/// Elements at boundaries between two codes. The first element decides the global scale, and the first element of a
/// block decides its block scale. The other elements are where two codes meet.
fn boundaries<T: Source>(k: usize, rng: &mut fastrand::Rng) -> Vec<f32> {
    let near = |x: f32, rng: &mut fastrand::Rng| f32::from_bits(x.to_bits() + rng.u32(..3) - 1);
    let (least, most) = T::EXPONENTS;
    let exponent = rng.i32((least / 2).max(-60)..=most - 13);
    let amax = T::from_f32(2688.0 * (1.0 + rng.f32()) * (exponent as f32).exp2() / 2.0).to_f32();
    let global = amax / 2688.0;
    let mut x = Vec::with_capacity(k);
    for block in 0..k / 16 {
        let code = rng.u8(0x08..0x7d);
        let middle = (e4m3::decode(code) + e4m3::decode(code + 1)) / 2.0;
        x.push(near(6.0 * middle * global, rng));
        let scale = e4m3::decode(code + rng.u8(..2));
        for _ in 1..16 {
            let boundary = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0][rng.usize(..7)];
            let value = near(boundary * (scale * global), rng);
            x.push(if rng.bool() { -value } else { value });
        }
        if block == 0 {
            x[0] = amax;
        }
    }
    x.into_iter().map(clamp::<T>).collect()
}
