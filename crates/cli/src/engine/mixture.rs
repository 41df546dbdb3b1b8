//! Mixtures of experts, and the choices that a router makes for them.

use nvfp4_gemv::Shape;
use nvfp4_gemv_documents::document::Turn;

#[cfg(any(feature = "device", test))]
use super::{Plan, memory};

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

/// Times of one call each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MixtureTimes {
    /// One a round.
    pub(crate) turns: Vec<Turn>,
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

    /// Layers that calls take turns over, so that they read `cold_bytes` between two visits of a layer, and more than
    /// caches hold. A call reads few of a layer's experts: layers are counted by what calls read, not by what they have.
    #[cfg(any(feature = "device", test))]
    pub(super) fn layers(&self, cold_bytes: usize, cold_copies: impl Fn(usize) -> usize) -> usize {
        let touched = self.touched_bytes();
        Plan::copies(cold_bytes, touched, cold_copies(touched))
    }

    /// Bytes of the experts that a call reads, each counted once, on average. Of many tokens only the first few are
    /// looked at: more of them read as much or more.
    #[cfg(any(feature = "device", test))]
    pub(crate) fn touched_bytes(&self) -> usize {
        const CALLS: usize = 64;
        const TOKENS: usize = 64;
        let mut rng = fastrand::Rng::with_seed(4);
        let few = Self {
            tokens: self.tokens.min(TOKENS),
            ..*self
        };
        let found: usize = (0..CALLS).map(|_| distinct(&few.choose(&mut rng))).sum();
        found * self.expert_bytes() / CALLS
    }

    /// Bytes that ids, vectors, results and what lies between the layers take in a device's memory, at most; nothing
    /// where they cannot be counted.
    #[cfg(any(feature = "device", test))]
    pub(crate) fn operand_bytes(&self, calls: usize) -> Option<usize> {
        let pairs = self.tokens.checked_mul(self.slots)?;
        memory::sum(&[
            // Ids of every call, and weights.
            (pairs.checked_mul(calls.checked_add(1)?)?, 4),
            // Vectors and results, bf16.
            (self.tokens.checked_mul(self.hidden)?, 2 * 2),
            // Quantised vectors, of less than a byte an element, and f32 results: of both products.
            (pairs.checked_mul(self.hidden)?, 1 + 4),
            (pairs.checked_mul(self.intermediate)?, 1 + 2 * 4),
        ])
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

    /// A call of one token reads exactly its slots; many tokens read nearly all experts, and never more.
    #[test]
    fn a_call_touches_the_experts_that_it_chose() {
        let touched = |tokens, skewed| {
            let mixture = Mixture {
                experts: 128,
                slots: 8,
                hidden: 2048,
                intermediate: 768,
                tokens,
                skewed,
            };
            mixture.touched_bytes() as f64 / mixture.expert_bytes() as f64
        };
        assert_eq!((touched(1, false), touched(1, true)), (8.0, 8.0));
        let (uniform, skewed) = (touched(8, false), touched(8, true));
        assert!(
            (40.0..60.0).contains(&uniform) && skewed < uniform,
            "{uniform} {skewed}"
        );
        let all = touched(1_000_000_000, false);
        assert!((120.0..=128.0).contains(&all), "{all}");
    }

    /// As docs/benchmarks.md says. Counted by all of a layer's experts they were 13, 1, 10 and 6.
    #[test]
    fn calls_read_four_gib_between_two_visits_of_a_layer() {
        let sizes = [
            ([128, 8, 2048, 768], 203),
            ([256, 8, 7168, 2048], 22),
            ([32, 4, 2880, 2880], 77),
            ([8, 2, 4096, 14336], 22),
        ];
        for ([experts, slots, hidden, intermediate], layers) in sizes {
            let mixture = Mixture {
                experts,
                slots,
                hidden,
                intermediate,
                tokens: 1,
                skewed: true,
            };
            assert_eq!(mixture.layers(4 << 30, |_| 2), layers, "{mixture:?}");
            // A cache's own wish counts, too; and nothing does where the weights may be the same ones.
            assert_eq!(mixture.layers(1, |_| 5), 5);
            assert_eq!(mixture.layers(0, |_| 5), 1);
        }
    }

    /// More tokens than memory has room for are counted, or found not to be countable, before anything is allocated.
    #[test]
    fn operands_are_counted() {
        let of = |tokens| {
            let mixture = Mixture {
                experts: 8,
                slots: 2,
                hidden: 100,
                intermediate: 10,
                tokens,
                skewed: false,
            };
            mixture.operand_bytes(48)
        };
        // Ids and weights, vectors and results, and of both products.
        assert_eq!(of(1), Some(2 * 49 * 4 + 400 + 2 * 500 + 2 * 90));
        assert_eq!((of(0), of(usize::MAX / 8)), (Some(0), None));
    }

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
