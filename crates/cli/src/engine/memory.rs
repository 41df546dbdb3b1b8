//! Memory that a measurement needs, added up and compared with the available memory before anything is allocated. An
//! allocation that fails ends the program, and one that succeeds may end the machine's other programs.

use std::fmt::Display;

use anyhow::{Result, bail};
use nvfp4_gemv::Shape;

use crate::report::bytes;

/// There is not enough memory for what was asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "{what} with --cold {cold_mib} takes {} of {whose} memory; {}{}",
    needed.map_or("more than can be addressed".to_owned(), bytes),
    available.map_or("its size is not known".to_owned(), |has| format!("{} are available", bytes(has))),
    without_cold.map_or(String::new(), |least| format!("; with --cold 0, {}", bytes(least)))
)]
pub(crate) struct NotEnoughMemory {
    /// The work that was to be measured: a shape, or a model's layer.
    what: String,
    cold_mib: usize,
    whose: &'static str,
    needed: Option<usize>,
    available: Option<usize>,
    /// Bytes to compute with the same weights every time, where that would fit.
    without_cold: Option<usize>,
}

impl NotEnoughMemory {
    /// Options that take less memory. Not every command that measures takes shapes, so no option but `--cold` is named.
    pub(crate) const fn hint(&self) -> &'static str {
        match self.cold_mib {
            0 => "fewer vectors take less, and so do smaller weights",
            _ => "a smaller --cold takes less, and so do fewer vectors and smaller weights",
        }
    }
}

/// Refuses what takes more memory than there is. `needed` says what a measurement takes with copies of the
/// weights that make up so many bytes together; `None` where that cannot be counted.
pub(super) fn check(
    what: &dyn Display,
    cold_bytes: usize,
    whose: &'static str,
    available: Option<usize>,
    needed: impl Fn(usize) -> Option<usize>,
) -> Result<(), NotEnoughMemory> {
    // No allocation is larger than this, whatever the machine has.
    let most = available.unwrap_or(usize::MAX).min(isize::MAX as usize);
    let fits = |needed: &usize| *needed <= most;
    let with_cold = needed(cold_bytes);
    if with_cold.as_ref().is_some_and(fits) {
        return Ok(());
    }
    Err(NotEnoughMemory {
        what: what.to_string(),
        cold_mib: cold_bytes >> 20,
        whose,
        needed: with_cold,
        available,
        without_cold: needed(0).filter(fits).filter(|_| cold_bytes > 0),
    })
}

/// Refuses vectors, and results of them, that take more host memory than there is: each is there as it is computed
/// with, in f32 and in f64.
pub(crate) fn check_memory_of(shape: &Shape) -> Result<()> {
    const EACH: usize = 4 + 4 + 8;
    let needed = sum(&[(shape.vector_elements(), EACH), (shape.outputs(), EACH)]);
    let available = available().unwrap_or(usize::MAX);
    match needed {
        Some(needed) if needed <= available => Ok(()),
        _ => bail!(
            "{shape:#}: vectors and results take {} of host memory; {} are available",
            needed.map_or("more than can be addressed".into(), bytes),
            bytes(available)
        ),
    }
}

/// The sum of products, or `None` where it cannot be counted.
pub(super) fn sum(products: &[(usize, usize)]) -> Option<usize> {
    products
        .iter()
        .try_fold(0usize, |sum, (a, b)| sum.checked_add(a.checked_mul(*b)?))
}

/// Bytes that this process may still allocate without swapping, where Linux says it.
pub(super) fn available() -> Option<usize> {
    let number = |text: &str| text.split_whitespace().next()?.parse::<usize>().ok();
    let line = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        text.lines()
            .find_map(|line| number(line.strip_prefix(key)?))
    };
    let machine = line("/proc/meminfo", "MemAvailable:")?.checked_mul(1024)?;
    // A container's own limit; the file says "max" where there is none.
    let limit = line("/sys/fs/cgroup/memory.max", "").and_then(|limit| {
        let used = line("/sys/fs/cgroup/memory.stat", "anon ")?;
        Some(limit.saturating_sub(used))
    });
    Some(limit.map_or(machine, |limit| limit.min(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let shape = nvfp4_gemv::Shape::matrix(64, 64).unwrap();
        let needed = |cold: usize| cold.checked_mul(2)?.checked_add(1000);
        let check = |cold, available| check(&shape, cold, "host", available, needed);
        check(1 << 20, Some(2_098_152)).unwrap();
        let error = check(1 << 20, Some(2_098_151)).unwrap_err().to_string();
        assert_eq!(
            error,
            "64x64 with --cold 1 takes 2.1 MB of host memory; 2.1 MB are available; with --cold 0, 1.0 kB"
        );
        let error = check(0, Some(999)).unwrap_err();
        assert!(!error.hint().contains("--cold"), "{}", error.hint());
        let error = error.to_string();
        assert!(error.ends_with("999 B are available"), "{error}");
        let error = check(usize::MAX, None).unwrap_err();
        assert!(error.hint().contains("--cold"), "{}", error.hint());
        let error = error.to_string();
        assert!(error.contains("more than can be addressed"), "{error}");
        check(1 << 20, None).unwrap();
    }

    #[test]
    fn sums_that_overflow_are_none() {
        assert_eq!(sum(&[(2, 3), (4, 5)]), Some(26));
        assert_eq!(sum(&[(usize::MAX, 2)]), None);
        assert_eq!(sum(&[(usize::MAX, 1), (1, 1)]), None);
    }
}
