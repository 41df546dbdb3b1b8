//! Mixtures of experts, and the choices that a router makes for them.

use nvfp4_gemv::Shape;

/// A layer of a mixture of experts, and how many tokens it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mixture {
    pub(crate) experts: usize,
    /// Experts of a token.
    pub(crate) slots: usize,
    /// Elements of a token's vector.
    pub(crate) hidden: usize,
    /// Rows of gate, and of up.
    pub(crate) intermediate: usize,
    pub(crate) tokens: usize,
    /// Whether some experts are chosen far more often than others: expert e with a weight of 1 / (e + 1).
    pub(crate) skewed: bool,
}

/// Times of one call each, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MixtureTimes {
    pub(crate) seconds: Vec<f64>,
    /// Layers, with weights of their own, that the calls take turns over.
    pub(crate) layers: usize,
    /// Experts that a call has, each counted once, on average.
    pub(crate) distinct: f64,
    /// Launches of a call.
    pub(crate) launches: usize,
}

impl Mixture {
    /// Bytes of an expert's codes and scales.
    pub(crate) fn expert_bytes(&self) -> usize {
        let bytes = |m, k| Shape::matrix(m, k).map_or(0, |shape| shape.weight_bytes());
        bytes(2 * self.intermediate, self.hidden) + bytes(self.hidden, self.intermediate)
    }

    /// Choices of a router for one call, `[tokens][slots]`: a token's experts are different ones.
    #[cfg(any(feature = "device", test))]
    pub(crate) fn choose(&self, rng: &mut fastrand::Rng) -> Vec<i32> {
        let mut ids = Vec::with_capacity(self.tokens * self.slots);
        for _ in 0..self.tokens {
            let mut left: Vec<(usize, f64)> = (0..self.experts)
                .map(|expert| {
                    (
                        expert,
                        if self.skewed {
                            1.0 / (expert + 1) as f64
                        } else {
                            1.0
                        },
                    )
                })
                .collect();
            for _ in 0..self.slots.min(self.experts) {
                let all: f64 = left.iter().map(|(_, weight)| weight).sum();
                let mut at = rng.f64() * all;
                let found = left.iter().position(|(_, weight)| {
                    at -= weight;
                    at < 0.0
                });
                let (expert, _) = left.remove(found.unwrap_or(left.len() - 1));
                ids.push(expert as i32);
            }
        }
        ids
    }
}

/// Numbers among the ids, each counted once.
#[cfg(any(feature = "device", test))]
pub(crate) fn distinct(ids: &[i32]) -> usize {
    ids.iter().collect::<std::collections::BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokens_experts_are_different_ones_and_skew_shares_them() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut average = |skewed| {
            let mixture = Mixture {
                experts: 64,
                slots: 8,
                hidden: 64,
                intermediate: 32,
                tokens: 16,
                skewed,
            };
            let calls = (0..20).map(|_| {
                let ids = mixture.choose(&mut rng);
                assert!(ids.chunks(8).all(|token| distinct(token) == 8));
                assert!(ids.iter().all(|id| (0..64).contains(id)));
                distinct(&ids)
            });
            calls.sum::<usize>() as f64 / 20.0
        };
        let (uniform, skewed) = (average(false), average(true));
        assert!(skewed < uniform && uniform > 50.0, "{uniform} {skewed}");
    }
}
