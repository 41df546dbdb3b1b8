//! Measurements on a GPU: the document that `run` and `sweep` write and `report` reads.

use serde::{Deserialize, Serialize};

/// The document's form. One of another form is refused.
pub const FORM: u32 = 1;

/// A measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORM`].
    pub form: u32,
    /// The GPU, as the driver calls it.
    pub device: String,
    /// Architecture of the GPU, such as `90a`.
    pub arch: String,
    /// Multiprocessors of the GPU.
    pub multiprocessors: u32,
    /// NVRTC's version.
    pub nvrtc: String,
    /// cuBLASLt's version; none where it was not there.
    pub cublaslt: Option<String>,
    /// Measurements by variant.
    pub variants: Vec<Measured>,
}

/// A variant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the variant.
    pub name: String,
    /// `mma`, `wgmma` or `tcgen05`.
    pub family: String,
    /// Type of A.
    pub a: String,
    /// Type of B.
    pub b: String,
    /// Type of sums.
    pub accumulator: String,
    /// The instruction in machine code, and whether natively.
    pub machine: String,
    /// Operations a second by the data sheet; none where it has none.
    pub data_sheet: Option<f64>,
    /// The rate of nothing but the instruction.
    pub peak: Option<Peak>,
    /// Bits that sums of floats keep: from the largest power of two to which one can be added, as far as types A and B
    /// have factors of it.
    pub sum_bits: Option<SumBits>,
    /// Matrix products with the fastest tiles, by size.
    pub products: Vec<Product>,
    /// Tiles that were tried.
    pub tried: Vec<Tried>,
    /// The error of a result; none where everything is exact.
    pub wrong: Option<String>,
}

/// How many bits a sum keeps below its largest term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumBits {
    /// 2^bits + 1 is right, as are all smaller powers.
    pub bits: u32,
    /// Whether 2^(bits + 1) + 1 was tried, and is wrong. If not, there may be more bits.
    pub ends: bool,
}

impl std::fmt::Display for SumBits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let more = if self.ends { "" } else { "+" };
        f.pad(&format!("{}{more}", self.bits))
    }
}

/// Latency and rate of nothing but an instruction.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// Cycles from one instruction to the next one that needs its result.
    pub latency: f64,
    /// Operations a second, of all multiprocessors.
    pub operations: f64,
    /// Operations a cycle and multiprocessor, by the multiprocessors' clocks.
    pub operations_per_cycle: f64,
    /// Warps of a multiprocessor with which that was reached.
    pub warps: u32,
}

/// A matrix product.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Product {
    /// Rows, columns and length of sums.
    pub size: u32,
    /// Tiles.
    pub tiles: String,
    /// Operations a second.
    pub operations: f64,
    /// Cycles a second of the multiprocessors at the end of a round, the median of the rounds: under load a GPU lowers
    /// its clock.
    #[serde(default)]
    pub clock: Option<f64>,
    /// Operations a second of cuBLASLt, in alternating rounds.
    pub cublaslt: Option<f64>,
    /// The kernel's rate as a share of cuBLASLt's: the median of the rounds.
    pub share: Option<f64>,
}

/// Tiles with their rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Rows, columns and length of sums.
    pub size: u32,
    /// Tiles.
    pub tiles: String,
    /// Operations a second.
    pub operations: f64,
}

/// A document that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The text is no JSON of this form.
    #[error("not what `run --json` or `sweep --json` prints: {0}")]
    Json(#[from] serde_json::Error),
    /// Another version of this program wrote it.
    #[error("the document has form {0}, and this program reads form {FORM}: measure again")]
    Form(u32),
    /// Documents of two GPUs or versions.
    #[error("results of {0} and of {1} do not go into one report")]
    Mixed(String, String),
}

impl Results {
    /// Reads a document.
    ///
    /// # Errors
    /// Where it is none, or of another form.
    pub fn parse(json: &str) -> Result<Self, ResultsError> {
        #[derive(Deserialize)]
        struct Head {
            form: u32,
        }
        let head: Head = serde_json::from_str(json)?;
        if head.form != FORM {
            return Err(ResultsError::Form(head.form));
        }
        Ok(serde_json::from_str(json)?)
    }

    /// One document of several of the same GPU and the same libraries. If a variant stands in several documents, the
    /// later peak counts, and the products and tiles of all.
    ///
    /// # Errors
    /// Where they are of different GPUs.
    pub fn merge(mut self, other: Self) -> Result<Self, ResultsError> {
        let of = |results: &Self| {
            let cublaslt = results.cublaslt.as_deref().unwrap_or("none");
            format!(
                "{} (sm_{}, NVRTC {}, cuBLASLt {cublaslt})",
                results.device, results.arch, results.nvrtc
            )
        };
        if of(&self) != of(&other) {
            return Err(ResultsError::Mixed(of(&self), of(&other)));
        }
        for measured in other.variants {
            match self
                .variants
                .iter_mut()
                .find(|known| known.name == measured.name)
            {
                None => self.variants.push(measured),
                Some(known) => known.add(measured),
            }
        }
        Ok(self)
    }
}

impl Measured {
    fn add(&mut self, other: Self) {
        self.peak = other.peak.or(self.peak);
        self.sum_bits = other.sum_bits.or(self.sum_bits);
        self.wrong = other.wrong.or(self.wrong.take());
        for product in other.products {
            // The faster one: it has better tiles.
            match self
                .products
                .iter_mut()
                .find(|known| known.size == product.size)
            {
                Some(known) if product.operations > known.operations => *known = product,
                Some(_) => {}
                None => self.products.push(product),
            }
        }
        self.products.sort_by_key(|product| product.size);
        self.tried.extend(other.tried);
    }

    /// The share of the peak that a product reaches at the clock that it runs at: of operations a cycle.
    pub fn share_of_cycles(&self, product: &Product, multiprocessors: u32) -> Option<f64> {
        let cycles = product.clock? * f64::from(multiprocessors);
        Some(product.operations / cycles / self.peak?.operations_per_cycle)
    }

    /// The product of the largest size.
    pub fn largest(&self) -> Option<&Product> {
        self.products.iter().max_by_key(|product| product.size)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two variants; the second one is not in cuBLASLt.
    pub(crate) fn example() -> Results {
        let part = |name: &str, i| name.split('.').nth(i).unwrap_or_default().to_owned();
        let measured = |name: &str, peak: f64, cublaslt: Option<f64>| Measured {
            name: name.into(),
            family: part(name, 0),
            a: part(name, 3),
            b: part(name, 4),
            accumulator: part(name, 2),
            machine: "HGMMA (native)".into(),
            data_sheet: Some(989.5e12),
            peak: Some(Peak {
                latency: 128.0,
                operations: peak,
                operations_per_cycle: 4096.0,
                warps: 8,
            }),
            sum_bits: Some(SumBits {
                bits: 23,
                ends: false,
            }),
            products: [4096, 8192]
                .map(|size| Product {
                    size,
                    tiles: "128x256x128/64x256/4/8/2".into(),
                    operations: 600e12 + f64::from(size) * 1e9,
                    clock: Some(1.5e9),
                    cublaslt,
                    share: cublaslt.map(|_| 0.875),
                })
                .to_vec(),
            ..Measured::default()
        };
        Results {
            form: FORM,
            device: "NVIDIA H200".into(),
            arch: "90a".into(),
            multiprocessors: 132,
            nvrtc: "13.0".into(),
            cublaslt: Some("13.1".into()),
            variants: vec![
                measured("wgmma.m64n256k16.f32.f16.f16", 960e12, Some(700e12)),
                measured("mma.m16n8k32.f16.e4m3.e5m2", 620e12, None),
            ],
        }
    }

    #[test]
    fn documents_are_written_and_read() {
        let example = example();
        let json = serde_json::to_string(&example).unwrap();
        assert_eq!(Results::parse(&json).unwrap(), example);
        let other = json.replacen("\"form\":1", "\"form\":2", 1);
        assert!(matches!(Results::parse(&other), Err(ResultsError::Form(2))));
        assert!(matches!(Results::parse("{}"), Err(ResultsError::Json(_))));
        assert!(Results::parse("[").is_err());
    }

    #[test]
    fn documents_without_clocks_are_read() {
        let mut example = example();
        let json = serde_json::to_string(&example).unwrap();
        let json = json.replace("\"clock\":1500000000.0,", "");
        assert!(!json.contains("clock\""), "{json}");
        for measured in &mut example.variants {
            measured
                .products
                .iter_mut()
                .for_each(|product| product.clock = None);
        }
        assert_eq!(Results::parse(&json).unwrap(), example);
    }

    /// 4096 operations a cycle at 1.5 GHz on 132 multiprocessors are 811 T/s.
    #[test]
    fn a_lower_clock_is_no_smaller_share() {
        let example = example();
        let measured = &example.variants[0];
        let product = Product {
            operations: 405.5e12,
            ..measured.products[0].clone()
        };
        let share = measured.share_of_cycles(&product, 132).unwrap();
        assert!((share - 0.5).abs() < 1e-3, "{share}");
    }

    #[test]
    fn documents_are_merged() {
        let mut second = example();
        second.variants[0].products[1].operations = 1e15;
        second.variants[0].products[0].operations = 1.0;
        second.variants[1].name = "another".into();
        let merged = example().merge(second).unwrap();
        assert_eq!(merged.variants.len(), 3);
        let f16 = &merged.variants[0];
        assert_eq!(f16.products.len(), 2);
        assert_eq!(f16.largest().unwrap().operations, 1e15);
        assert!(f16.products[0].operations > 1e14);
        let mut other = example();
        other.device = "NVIDIA H100 PCIe".into();
        let error = example().merge(other).unwrap_err();
        assert!(matches!(error, ResultsError::Mixed(..)), "{error}");
    }
}
