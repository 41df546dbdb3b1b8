//! Comparing a result with the truth.

use nvfp4_gemv::reference::{self, Reference, error_bound};
use nvfp4_gemv::{FloatType, Result};
use serde_json::{Value, json};

use crate::engine::Operands;
use crate::report::{count, number, small};

/// The truth.
pub(crate) fn truth(operands: &Operands<'_>) -> Result<Reference> {
    reference::gemv(&operands.shape, &operands.weights()?, &operands.x.view())
}

/// How far a result lies from the truth, and how far it may.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    /// The largest error.
    pub(crate) max_error: f64,
    /// The element that is nearest to its bound or furthest beyond it, with error and bound.
    pub(crate) worst: usize,
    pub(crate) error: f64,
    pub(crate) bound: f64,
    /// Elements beyond their bounds.
    pub(crate) failures: usize,
    /// The first element that is not finite where the truth is: the type of the result does not hold it.
    pub(crate) overflow: Option<(usize, f64)>,
    pub(crate) passed: bool,
}

impl Check {
    /// Compares element by element; `bound` gives what each may be off by.
    pub(crate) fn new(y: &[f64], truth: &[f64], bound: impl Fn(usize) -> f64) -> Self {
        let mut check = Self {
            max_error: 0.0,
            worst: 0,
            error: 0.0,
            bound: 0.0,
            failures: 0,
            overflow: None,
            passed: y.len() == truth.len(),
        };
        let mut worst_share = -1.0;
        for (i, (y, truth)) in y.iter().zip(truth).enumerate() {
            // Infinities of the same sign agree; their difference would be NaN.
            let error = if y == truth { 0.0 } else { (y - truth).abs() };
            let bound = bound(i);
            let overflows = !y.is_finite() && truth.is_finite();
            if overflows && check.overflow.is_none() {
                check.overflow = Some((i, *y));
            }
            let fails = overflows || error.is_nan() || error > bound;
            let share = match (fails, bound > 0.0) {
                (true, _) if overflows || error.is_nan() => f64::INFINITY,
                (_, true) => error / bound,
                (true, false) => f64::INFINITY,
                (false, false) => 0.0,
            };
            check.failures += usize::from(fails);
            // NaN must not hide behind a comparison.
            if error.is_nan() || error > check.max_error {
                check.max_error = error;
            }
            if share > worst_share {
                worst_share = share;
                (check.worst, check.error, check.bound) = (i, error, bound);
            }
        }
        check.passed &= check.failures == 0;
        check
    }

    /// Against the bound that follows from the number of roundings.
    pub(crate) fn derived(y: &[f64], truth: &Reference, roundings: u32, output: FloatType) -> Self {
        Self::new(y, &truth.y, |i| {
            let of = |output| error_bound(truth.y[i], truth.magnitude[i], roundings, output);
            let bound = of(output);
            match bound.is_infinite() {
                false => bound,
                // The result may overflow, and fails if it does. If not, it is as near as others are.
                true => of(FloatType::F32) + truth.y[i].abs() * half_unit(output),
            }
        })
    }

    /// The error as a share of the bound, where that means something.
    pub(crate) fn share(&self) -> f64 {
        match self.bound {
            0.0 if self.error == 0.0 => 0.0,
            bound => self.error / bound,
        }
    }

    /// `ok` or what is wrong.
    pub(crate) fn verdict(&self) -> String {
        match self.overflow {
            _ if self.passed => "ok".into(),
            None => format!("FAILED ({})", count(self.failures, "element")),
            Some((at, value)) => format!(
                "FAILED ({}; element {at} is {value}, which the type of the result does not hold)",
                count(self.failures, "element")
            ),
        }
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "{} (max {}; at element {}: {} of {} allowed, {:.0}%)",
            self.verdict(),
            small(self.max_error),
            self.worst,
            small(self.error),
            small(self.bound),
            100.0 * self.share(),
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "passed": self.passed,
            "max_error": number(self.max_error),
            "worst_element": self.worst,
            "worst_error": number(self.error),
            "worst_bound": number(self.bound),
            "share_of_bound": number(self.share()),
            "failures": self.failures,
            "overflow_element": self.overflow.map(|(at, _)| at),
        })
    }
}

/// How far a rounding to a type moves a number at most, as a share of it.
fn half_unit(of: FloatType) -> f64 {
    match of {
        FloatType::F16 => 2f64.powi(-11),
        FloatType::Bf16 => 2f64.powi(-8),
        FloatType::F32 => 2f64.powi(-24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_wrong_infinities_fail() {
        let bound = |_: usize| 1.0;
        assert!(Check::new(&[1.0, 2.5], &[1.5, 2.0], bound).passed);
        assert!(!Check::new(&[1.0], &[2.5], bound).passed);
        assert!(!Check::new(&[1.0], &[1.0, 2.0], bound).passed);
        for y in [f64::NAN, f64::INFINITY] {
            let check = Check::new(&[0.0, y, 0.0], &[0.0; 3], bound);
            assert!(!check.passed);
            assert_eq!((check.worst, check.failures), (1, 1));
            assert!(check.max_error.is_nan() || check.max_error > 1.0);
        }
        assert!(Check::new(&[f64::INFINITY], &[f64::INFINITY], bound).passed);
    }

    fn of_one(truth: f64) -> Reference {
        let (y, magnitude) = (vec![truth], vec![truth]);
        Reference { y, magnitude }
    }

    /// Results of f16, and of f32, whose bound is infinite itself there.
    #[test]
    fn a_result_that_overflows_fails_and_one_near_the_end_does_not() {
        for (output, truth, near) in [
            (FloatType::F16, 65510.0, 65504.0),
            (FloatType::Bf16, 3.3895e38, 3.3895e38),
            (FloatType::F32, 3.4028e38, 3.4028e38),
        ] {
            let reference = of_one(truth);
            let check = |y: f64| Check::derived(&[y], &reference, 8, output);
            assert!(check(near).passed, "{output:?}");
            for y in [f64::INFINITY, f64::NAN, f64::NEG_INFINITY] {
                let check = check(y);
                assert!(!check.passed, "{output:?}");
                assert_eq!(check.failures, 1);
                let verdict = check.verdict();
                assert!(verdict.contains("element 0 is"), "{verdict}");
            }
        }
        assert!(!Check::derived(&[5.0], &of_one(7e4), 8, FloatType::F16).passed);
    }

    #[test]
    fn exact_means_exact() {
        assert!(Check::new(&[3.0, 0.0], &[3.0, 0.0], |_| 0.0).passed);
        let check = Check::new(&[3.0, 1e-30], &[3.0, 0.0], |_| 0.0);
        assert!(!check.passed);
        assert_eq!(check.worst, 1);
    }
}
