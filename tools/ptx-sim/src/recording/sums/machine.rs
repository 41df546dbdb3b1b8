//! Ways in which an instruction may add 64 products and C: rules that can be tried on recorded sums.

use serde::Serialize;

use crate::models::sums::Rule;

/// Fixed point: a number is a multiple of 2^-UNIT.
pub(super) const UNIT: i32 = 60;

/// The exponent of nothing.
pub(super) const NONE: i32 = i32::MIN;

/// Products that share their scales.
const BLOCK: usize = 16;

/// A product with the exponents that a machine may take it to have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Product {
    pub(super) value: i128,
    /// The exponents of both codes and both scales, each by itself, added.
    pub(super) factors: i32,
    /// The exponents of each code times its scale, added.
    pub(super) scaled: i32,
    /// The exponent of the product of both codes, and that of both scales, added.
    pub(super) codes: i32,
    /// The exponents of both scales, added; [`NONE`] where one of them is zero.
    pub(super) scales: i32,
}

/// A sum's terms.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) products: [Product; 64],
    pub(super) c: i128,
}

impl Terms {
    pub(super) fn exact(&self) -> i128 {
        self.products.iter().map(|p| p.value).sum::<i128>() + self.c
    }

    /// The magnitude that the library's error bounds are relative to (`Reference::magnitude`): of all terms, and of each
    /// block without a product that is not zero 2^(e-9), where e is the sum of its scales' exponents.
    pub(super) fn magnitude(&self) -> i128 {
        let blocks = self.products.chunks(BLOCK).map(|block| {
            let products: i128 = block.iter().map(|p| p.value.abs()).sum();
            match block[0].scales {
                e if products == 0 && e != NONE => 1 << (UNIT + e - 9),
                _ => products,
            }
        });
        blocks.sum::<i128>() + self.c.abs()
    }
}

/// The exponent of a product that decides where terms are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exponents {
    /// Codes' and scales' exponents, added.
    Factors,
    /// The exponents of code times scale of both operands, added.
    Scaled,
    /// The exponent of the codes' product, and those of the scales, added.
    Codes,
    /// The exponent of the product itself.
    Value,
    /// The exponents of both scales, added, whatever the codes are.
    Scales,
}

/// Treatment of bits that are cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Gone: toward zero.
    Zero,
    /// Rounded to nearest, ties to even.
    Nearest,
    /// Gone, in two's complement: toward negative infinity.
    Down,
}

/// A way to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Number of products beside each other that are added exactly before anything is cut.
    pub grain: usize,
    /// Number of products that are one sum; the sums follow each other, with an f32 between them.
    pub chain: usize,
    /// Whether C is a term of the first sum like others. Otherwise C is added to the sum of the products.
    pub c_with_products: bool,
    /// Terms are cut so many binary places below the largest term's exponent; `None`: nothing is cut.
    pub fraction: Option<i32>,
    /// The cut of terms.
    pub cut: Cut,
    /// The rounding of a sum to f32.
    pub result: Cut,
    /// The exponent that counts.
    pub exponents: Exponents,
    /// Whether the exponent of a product counts that is zero, and whose scales are not.
    pub zeros: bool,
}

/// Most places that are tried: more than the published rule of Blackwell's FP4 has, which are 35.
const MOST_FRACTION: i32 = 40;

impl Machine {
    /// All that are tried, the simplest first.
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        use Exponents::{Codes, Factors, Scaled, Scales, Value};
        // A zero has no exponent of its own, but for its factors'.
        let kinds = [
            (Factors, false),
            (Scaled, false),
            (Codes, false),
            (Value, false),
            (Scales, false),
            (Factors, true),
            (Scales, true),
        ];
        let fractions = std::iter::once(None).chain((10..=MOST_FRACTION).rev().map(Some));
        for fraction in fractions {
            for (chain, grain) in [64, 32, 16, 8, 4]
                .into_iter()
                .flat_map(|chain| [1, 2, 4, 8, 16, 32].map(|grain| (chain, grain)))
                .filter(|(chain, grain)| grain <= chain)
            {
                for c_with_products in [true, false] {
                    for cut in [Cut::Zero, Cut::Nearest, Cut::Down] {
                        for result in [Cut::Zero, Cut::Nearest] {
                            for (exponents, zeros) in kinds {
                                // Grain, cut and exponents make no difference where nothing is cut.
                                let plain = grain == 1
                                    && cut == Cut::Zero
                                    && (exponents, zeros) == kinds[0];
                                if fraction.is_some() || plain {
                                    all.push(Self {
                                        grain,
                                        chain,
                                        c_with_products,
                                        fraction,
                                        cut,
                                        result,
                                        exponents,
                                        zeros,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
        all
    }

    /// A rule of [`models::sums`](crate::models::sums) for FP4 with block scales, as one of these.
    pub(super) const fn of_rule(rule: &Rule) -> Self {
        let of_blocks = rule.block > 1;
        Self {
            grain: rule.block,
            chain: rule.chain,
            c_with_products: true,
            fraction: Some(rule.fraction),
            cut: Cut::Zero,
            result: Cut::Zero,
            exponents: match of_blocks {
                true => Exponents::Scales,
                false => Exponents::Factors,
            },
            zeros: of_blocks,
        }
    }

    /// The sum as this machine forms it.
    pub(super) fn sum(&self, terms: &Terms) -> f32 {
        let mut sum = terms.c;
        for chunk in terms.products.chunks(self.chain) {
            let mut parts: Vec<(i128, i32)> = Vec::with_capacity(65);
            if self.c_with_products {
                parts.push((sum, exponent(sum)));
            }
            parts.extend(chunk.chunks(self.grain).map(|grain| self.part(grain)));
            let products = self.add(&parts);
            let whole = match self.c_with_products {
                true => products,
                false => products + sum,
            };
            sum = to_f32(whole, self.result);
        }
        // Exact: it was rounded to f32.
        sum as f32 * 2f32.powi(-UNIT)
    }

    fn part(&self, grain: &[Product]) -> (i128, i32) {
        let value = grain.iter().map(|p| p.value).sum();
        let of = |p: &Product| match self.exponents {
            _ if p.value == 0 && (!self.zeros || p.scales == NONE) => NONE,
            Exponents::Scales => p.scales,
            Exponents::Factors => p.factors,
            Exponents::Scaled => p.scaled,
            Exponents::Codes => p.codes,
            Exponents::Value => exponent(p.value),
        };
        (value, grain.iter().map(of).max().unwrap_or(NONE))
    }

    fn add(&self, parts: &[(i128, i32)]) -> i128 {
        let values = parts.iter().map(|(value, _)| *value);
        let largest = parts.iter().map(|(_, exponent)| *exponent).max();
        match (self.fraction, largest) {
            (Some(fraction), Some(largest)) if largest != NONE => {
                let place = largest - fraction + UNIT;
                values.map(|value| cut(value, place, self.cut)).sum()
            }
            _ => values.sum(),
        }
    }
}

/// The exponent of a number in fixed point.
pub(super) fn exponent(x: i128) -> i32 {
    match x.unsigned_abs().checked_ilog2() {
        Some(top) => top as i32 - UNIT,
        None => NONE,
    }
}

/// A number without the bits below a place.
fn cut(x: i128, place: i32, how: Cut) -> i128 {
    let Ok(place) = u32::try_from(place) else {
        return x;
    };
    if place == 0 {
        return x;
    }
    if place > 120 {
        return 0;
    }
    let (unit, magnitude) = (1i128 << place, x.abs());
    let down = magnitude >> place << place;
    let rounded = match how {
        Cut::Down => return x >> place << place,
        Cut::Zero => down,
        Cut::Nearest => {
            let (rest, half) = (magnitude - down, unit / 2);
            let odd = magnitude >> place & 1 == 1;
            down + if rest > half || (rest == half && odd) {
                unit
            } else {
                0
            }
        }
    };
    rounded * x.signum()
}

/// A number as f32 has it, still in fixed point.
fn to_f32(x: i128, how: Cut) -> i128 {
    match x.unsigned_abs().checked_ilog2() {
        Some(top) => cut(x, top as i32 - 23, how),
        None => 0,
    }
}
