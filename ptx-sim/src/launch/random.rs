//! Contents from a generator: the same for the same seed.

use serde::Deserialize;

use super::Element;

/// Random elements.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomSpec {
    /// Their type.
    #[serde(rename = "type")]
    pub element: Element,
    /// How many.
    pub count: usize,
    /// Which ones.
    #[serde(default)]
    pub seed: u64,
    /// What they may be.
    pub values: Values,
}

/// What random elements may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// Integers from the first to the second. Sums of their products are exact, whatever the order, as long as they
    /// are small.
    Integers(i32, i32),
    /// Any bit pattern that has a finite value.
    Full,
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl RandomSpec {
    /// Bytes that it makes, if that is a whole number.
    pub(super) fn size(&self) -> Option<usize> {
        self.element.bytes(self.count)
    }

    /// Its bytes, or what is wrong with it.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, String> {
        let (element, mut state) = (self.element, self.seed);
        let patterns: Vec<u64> = match self.values {
            Values::Full => {
                let mask = u64::MAX >> (64 - element.bits());
                let mut one = || loop {
                    let bits = random(&mut state) & mask;
                    if element.value(bits).is_finite() {
                        return bits;
                    }
                };
                (0..self.count).map(|_| one()).collect()
            }
            Values::Integers(low, high) if low <= high => {
                let span = (i64::from(high) - i64::from(low)) as u64 + 1;
                let pattern = |value: i64| {
                    let found = element.pattern(value as f64);
                    found.ok_or_else(|| format!("{element:?} has no {value}"))
                };
                // Each value is looked up once where they are few.
                let few: Vec<u64> = match span {
                    0..=4096 => (0..span as i64)
                        .map(|i| pattern(i64::from(low) + i))
                        .collect::<Result<_, _>>()?,
                    _ => Vec::new(),
                };
                (0..self.count)
                    .map(|_| {
                        let i = random(&mut state) % span;
                        match few.get(i as usize) {
                            Some(p) => Ok(*p),
                            None => pattern(i64::from(low) + i as i64),
                        }
                    })
                    .collect::<Result<_, _>>()?
            }
            Values::Integers(low, high) => {
                return Err(format!("no integer is from {low} to {high}"));
            }
        };
        Ok(element.write(patterns.into_iter()))
    }
}
