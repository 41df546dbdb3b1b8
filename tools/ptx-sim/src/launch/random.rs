//! Contents from a generator: the same for the same seed.

use serde::Deserialize;

use super::BufferType;
use crate::sched::split_mix;

/// Random elements.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomSpec {
    /// Type of the elements.
    #[serde(rename = "type")]
    pub element: BufferType,
    /// Number of elements.
    pub count: usize,
    /// Seed of the random numbers.
    #[serde(default)]
    pub seed: u64,
    /// Values that the elements may have.
    pub values: Values,
}

/// Values that random elements may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// Integers from the first to the second. Sums of their products are exact, whatever the order, as long as they
    /// are small.
    Integers(i32, i32),
    /// Any bit pattern that has a finite value.
    Full,
}

/// Integers that are looked up before, all of them.
const FEW: u64 = 4096;

impl RandomSpec {
    /// Bytes that it makes, if that is a whole number.
    pub(super) fn size(&self) -> Option<usize> {
        self.element.bytes(self.count)
    }

    /// The random bytes, or the fault of the specification. Nothing is made beyond these bytes but a short table.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, String> {
        let (element, mut state) = (self.element, self.seed);
        match self.values {
            Values::Full => {
                let mask = u64::MAX >> (64 - element.bits());
                let mut one = || loop {
                    let bits = split_mix(&mut state) & mask;
                    if element.value(bits).is_finite() {
                        return bits;
                    }
                };
                Ok(element.write((0..self.count).map(|_| one())))
            }
            Values::Integers(low, high) if low <= high => {
                let span = (i64::from(high) - i64::from(low)) as u64 + 1;
                let pattern = |value: i64| {
                    let found = element.pattern(value as f64);
                    found.ok_or_else(|| format!("{element:?} has no {value}"))
                };
                // Each value is looked up once where they are few.
                let few: Vec<u64> = match span {
                    0..=FEW => (0..span as i64)
                        .map(|i| pattern(i64::from(low) + i))
                        .collect::<Result<_, _>>()?,
                    _ => Vec::new(),
                };
                let mut wrong = None;
                let patterns = (0..self.count).map_while(|_| {
                    let i = split_mix(&mut state) % span;
                    let found = match few.get(i as usize) {
                        Some(p) => Ok(*p),
                        None => pattern(i64::from(low) + i as i64),
                    };
                    found.map_err(|e| wrong = Some(e)).ok()
                });
                let bytes = element.write(patterns.fuse());
                wrong.map_or(Ok(bytes), Err)
            }
            Values::Integers(low, high) => Err(format!("no integer is from {low} to {high}")),
        }
    }
}
