//! Approximations: functions whose results the ISA bounds and does not define, sections 9.7.3 and 9.7.4.
//!
//! Each result is the exact one rounded, or an adversary's choice among those within the bound.

use std::f64::consts::PI;

use crate::softfloat::{BF16, F16, F32, Format, Round};

named! {
    /// The choice among the results of an approximation that the ISA allows.
    #[derive(Default)]
    Approximations {
        /// The nearest to the exact result.
        #[default]
        Nearest "nearest",
        /// The smallest.
        Low "low",
        /// The largest.
        High "high",
        /// Any, by the operands.
        Mixed "mixed",
    }
}

named! {
    /// A function that is approximated.
    #[allow(missing_docs)]
    Function {
        Div "div",
        Rcp "rcp",
        Sqrt "sqrt",
        Rsqrt "rsqrt",
        Sin "sin",
        Cos "cos",
        Lg2 "lg2",
        Ex2 "ex2",
        Tanh "tanh",
    }
}

/// An instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approx {
    /// The function.
    pub function: Function,
    /// Format of operands and results; `None` is f64.
    pub format: Option<Format>,
    /// Two of them in a register.
    pub packed: bool,
    /// Subnormals are zero.
    pub ftz: bool,
    /// `div.full`.
    pub full: bool,
}

/// A number between -1 and 1 that says nothing about the operands.
fn mixed(a: u32, b: u32) -> f64 {
    let bits = (u64::from(a) << 32 | u64::from(b)).wrapping_add(1);
    let hash = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (hash >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

impl Approx {
    /// The result of a lane.
    pub fn of(&self, choice: Approximations, a: u64, b: u64) -> u64 {
        let Some(format) = self.format else {
            return self.double(a);
        };
        let mask = if format == F32 { u32::MAX } else { 0xffff };
        let one = |at: u32| {
            let [a, b] = [a, b].map(|v| (v >> at) as u32 & mask);
            u64::from(self.element(format, choice, a, b)) << at
        };
        one(0) | if self.packed { one(16) } else { 0 }
    }

    /// f64 has no bound: the exact result rounded. With `.ftz` both have the upper 32 bits only.
    fn double(&self, a: u64) -> u64 {
        let cut = if self.ftz { u64::MAX << 32 } else { u64::MAX };
        let x = f64::from_bits(a & cut);
        let x = if self.ftz && x.is_subnormal() {
            0f64.copysign(x)
        } else {
            x
        };
        let exact = self.exact(x, 0.0);
        if exact.is_nan() {
            return 0x7fff_ffff_ffff_ffff & cut;
        }
        let bits = exact.to_bits();
        let rounded = bits.wrapping_add(if self.ftz && exact.is_finite() {
            1 << 31
        } else {
            0
        }) & cut;
        match self.ftz && f64::from_bits(rounded).is_subnormal() {
            true => bits & 1 << 63,
            false => rounded,
        }
    }

    fn element(&self, format: Format, choice: Approximations, a: u32, b: u32) -> u32 {
        let tiny = |v: f64| self.ftz && v.abs() < 2f64.powi(1 - bias(format));
        let flush = |v: f64| if tiny(v) { 0f64.copysign(v) } else { v };
        let [x, y] = [a, b].map(|v| flush(format.to_f64(v)));
        let exact = flush(self.exact(x, y));
        if exact.is_nan() {
            return format.nan;
        }
        let nearest = format.round(exact, Round::Nearest, false);
        if choice == Approximations::Nearest || exact == 0.0 || exact.is_infinite() {
            return nearest;
        }
        let error = self.bound(format, x, exact);
        let low = format.round(exact - error, Round::Up, false);
        let high = format.round(exact + error, Round::Down, false);
        let value = |bits| format.to_f64(bits);
        let chosen = match choice {
            Approximations::Low => low,
            Approximations::High => high,
            _ => format.round(exact + error * mixed(a, b), Round::Nearest, false),
        };
        // Of subnormal numbers none may be within a relative error.
        let within = value(low) <= value(chosen) && value(chosen) <= value(high);
        let chosen = if within { chosen } else { nearest };
        format.round(flush(value(chosen)), Round::Nearest, false)
    }

    fn exact(&self, x: f64, y: f64) -> f64 {
        match self.function {
            // "For 2^126 < |b| < 2^128": the reciprocal is flushed.
            Function::Div if !self.full && y.abs() > 2f64.powi(126) && y.is_finite() => {
                x * 0f64.copysign(y)
            }
            Function::Div => x / y,
            Function::Rcp => 1.0 / x,
            Function::Sqrt => x.sqrt(),
            Function::Rsqrt => 1.0 / x.sqrt(),
            Function::Sin => x.sin(),
            Function::Cos => x.cos(),
            Function::Lg2 => x.log2(),
            Function::Ex2 => x.exp2(),
            Function::Tanh => x.tanh(),
        }
    }

    /// The largest error.
    fn bound(&self, format: Format, x: f64, exact: f64) -> f64 {
        let relative = |bits: f64| exact.abs() * 2f64.powf(-bits);
        let ulps = |n: f64| {
            let exponent = exact.abs().log2().floor().max(f64::from(1 - bias(format)));
            n * 2f64.powf(exponent - 23.0)
        };
        match self.function {
            Function::Div => ulps(2.0),
            Function::Rcp => ulps(1.0),
            Function::Sqrt => relative(23.0),
            Function::Rsqrt => relative(22.9),
            Function::Sin | Function::Cos if x.abs() <= 2.0 * PI => 2f64.powf(-20.5),
            // Beyond 100 pi there is none.
            Function::Sin | Function::Cos => 2f64.powf(-14.7),
            Function::Lg2 if 0.5 < x && x < 2.0 => 2f64.powi(-22),
            Function::Lg2 => relative(22.0),
            Function::Ex2 if format == F16 => relative(9.9),
            Function::Ex2 if format == BF16 => relative(7.0),
            Function::Ex2 => ulps(2.0),
            Function::Tanh if format == F16 => 2f64.powf(-10.987),
            Function::Tanh if format == BF16 => 2f64.powi(-8),
            Function::Tanh => relative(11.0),
        }
    }
}

fn bias(format: Format) -> i32 {
    if format == F16 { 15 } else { 127 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn f32_of(function: Function, choice: Approximations, a: f32, b: f32) -> f32 {
        let instruction = Approx {
            function,
            format: Some(F32),
            packed: false,
            ftz: false,
            full: true,
        };
        f32::from_bits(instruction.of(choice, a.to_bits().into(), b.to_bits().into()) as u32)
    }

    #[test]
    fn corner_cases_are_those_of_the_tables() {
        let inf = f32::INFINITY;
        for choice in Approximations::ALL {
            let of = |f, x| f32_of(f, choice, x, 0.0);
            assert_eq!(of(Function::Rcp, -0.0), -inf);
            assert_eq!(of(Function::Rcp, -inf).to_bits(), (-0f32).to_bits());
            assert_eq!(of(Function::Rsqrt, -0.0), -inf);
            assert!(of(Function::Rsqrt, -1.0).is_nan() && of(Function::Lg2, -1.0).is_nan());
            assert_eq!(of(Function::Lg2, 0.0), -inf);
            assert_eq!(of(Function::Ex2, -inf).to_bits(), 0);
            assert!(of(Function::Sin, inf).is_nan());
            assert_eq!(of(Function::Sin, -0.0).to_bits(), (-0f32).to_bits());
        }
        assert_eq!(
            f32_of(Function::Ex2, Approximations::Nearest, 10.0, 0.0),
            1024.0
        );
        let approx = Approx {
            function: Function::Div,
            format: Some(F32),
            packed: false,
            ftz: true,
            full: false,
        };
        let div = |a: f32, b: f32| {
            approx.of(
                Approximations::Nearest,
                a.to_bits().into(),
                b.to_bits().into(),
            )
        };
        assert_eq!(div(1.0, 2f32.powi(127)), 0);
        assert_eq!(div(f32::INFINITY, 2f32.powi(127)), u64::from(F32.nan));
        let rcp = Approx {
            function: Function::Rcp,
            format: None,
            packed: false,
            ftz: true,
            full: false,
        };
        assert_eq!(
            f64::from_bits(rcp.of(Approximations::Nearest, 4f64.to_bits(), 0)),
            0.25
        );
    }

    proptest! {
        /// Every choice is within the bound, and the adversary's differ.
        #[test]
        fn choices_are_within_the_bound(x in 0.1f32..80.0, y in 0.1f32..80.0, half: u16) {
            for f in Function::ALL {
                let instruction = Approx { function: f, format: Some(F32), packed: false, ftz: false, full: true };
                let exact = instruction.exact(x.into(), y.into());
                let bound = instruction.bound(F32, x.into(), exact);
                let all = Approximations::ALL.map(|c| f64::from(f32_of(f, c, x, y)));
                for v in all {
                    prop_assert!((v - exact).abs() <= bound.max(exact.abs() * 2f64.powi(-24)), "{f} {x} {y} {v}");
                }
                prop_assert!(all[1] <= all[3] && all[3] <= all[2]);
                prop_assert!(all[1] < all[2] || f == Function::Sqrt, "{f} {x}");
            }
            for (format, function) in [(F16, Function::Ex2), (BF16, Function::Ex2), (F16, Function::Tanh), (BF16, Function::Tanh)] {
                let packed = Approx { function, format: Some(format), packed: true, ftz: false, full: false };
                let single = Approx { packed: false, ..packed };
                for choice in Approximations::ALL {
                    let both = packed.of(choice, u64::from(half) << 16 | 0x1234, 0);
                    prop_assert_eq!(both, single.of(choice, half.into(), 0) << 16 | single.of(choice, 0x1234, 0));
                }
            }
        }
    }
}
