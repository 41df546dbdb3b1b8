//! Measured times, to hold estimates against: tools/xtask/sass-measured.toml.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::sass::budget::has_parts;
use crate::sass::dump::Kernel;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measured {
    pub(crate) run: Run,
    #[serde(rename = "kernel")]
    pub(crate) kernels: Vec<MeasuredKernel>,
}

/// The place and the method of all measurements.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) gpu: String,
    pub(crate) date: String,
    pub(crate) driver: String,
    pub(crate) cuda: String,
    pub(crate) how: String,
    pub(crate) command: String,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeasuredKernel {
    /// Parts of the kernel's symbol, as in the budget.
    #[serde(rename = "match")]
    pattern: String,
    arch: String,
    pub(crate) path: String,
    pub(crate) times: Vec<Time>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Time {
    pub(crate) shape: String,
    pub(crate) config: String,
    us: f64,
    ceiling_us: f64,
}

impl Measured {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).context("not a file of measured times")
    }
}

impl MeasuredKernel {
    /// The compiled code of this kernel, if it is among these.
    pub(crate) fn find<'a>(&self, kernels: &'a [Kernel]) -> Option<&'a Kernel> {
        kernels
            .iter()
            .find(|kernel| kernel.arch == self.arch && has_parts(&kernel.symbol, &self.pattern))
    }
}

impl Time {
    pub(crate) fn us(&self) -> f64 {
        self.us
    }

    /// Share of the ceiling's rate.
    pub(crate) fn share(&self) -> f64 {
        self.ceiling_us / self.us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const COMMITTED: &str = include_str!("../../sass-measured.toml");

    #[test]
    fn the_committed_times_can_be_read() {
        let measured = Measured::parse(COMMITTED).unwrap();
        assert_eq!(measured.kernels.len(), 1);
        for time in measured.kernels.iter().flat_map(|kernel| &kernel.times) {
            // The read-only kernel is no upper bound: others beat it by a little.
            assert!((0.3..=1.05).contains(&time.share()), "{}", time.shape);
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let text = COMMITTED.replace("ceiling_us", "roof_us");
        assert!(Measured::parse(&text).is_err());
    }

    #[test]
    fn finds_the_code_that_was_measured() {
        let measured = Measured::parse(COMMITTED).unwrap();
        let kernel = |arch: &str, symbol: &str| {
            Kernel::from(sass::Function {
                arch: arch.into(),
                symbol: symbol.into(),
                ..sass::Function::default()
            })
        };
        let kernels = [
            kernel("100f", "gemv_ring_nvfp4_c2_r1_l1"),
            kernel("90a", "gemv_ring_nvfp4_c2_r2_l1"),
            kernel("90a", "gemv_ring_nvfp4_c2_r1_l1"),
        ];
        let found = measured.kernels[0].find(&kernels).unwrap();
        assert!(std::ptr::eq(found, &kernels[2]));
        assert!(measured.kernels[0].find(&kernels[..2]).is_none());
    }
}
