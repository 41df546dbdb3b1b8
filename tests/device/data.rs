//! A shape with the data that every kernel must get right, and the answers.

use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::reference::Reference;
use nvfp4_gemv::{Config, Shape};

use super::{Case, Gpu, OnDevice};

/// Integers, whose sums are exact, and numbers of the whole range with factors of the rows.
pub(crate) struct Data {
    exact: (Problem, Reference),
    random: (Problem, Reference),
}

impl Data {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let known = |problem: Problem| {
            let truth = problem.reference().unwrap();
            (problem, truth)
        };
        Self {
            exact: known(Problem::integers(shape, seed)),
            random: known(Problem::full_range(shape, seed).with_row_alpha(seed)),
        }
    }

    /// The exact answer, and one inside its bound, in every cut.
    pub(crate) fn assert_right(&self, gpu: &Gpu, case: Case, cuts: &[impl Into<Config> + Copy]) {
        assert!(!cuts.is_empty(), "{} {case:?}", self.exact.0.shape);
        let mut exact = OnDevice::new(gpu, &self.exact.0, case);
        let mut random = OnDevice::new(gpu, &self.random.0, case);
        for &config in cuts {
            exact = exact.cut(config);
            exact.assert_exact(&self.exact.1);
            random = random.cut(config);
            random.assert_in_bound(&self.random.1);
        }
    }
}
