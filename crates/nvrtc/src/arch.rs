//! GPU architectures, as nvcc and NVRTC name them.

use std::fmt;
use std::str::FromStr;

use nvfp4_gemv_targets::arch::SPECIFIC_SINCE;

/// An architecture that code is compiled for: `80`, `90a`, `100f`. Parsed with or without `sm_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Ten times the compute capability: 80, 90, 103, 120.
    pub number: u32,
    /// The instructions that may be used beside those of the base architecture.
    pub features: Features,
}

/// Instructions that may be used beside the base architecture's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Features {
    /// No others: the code also runs on later architectures.
    Base,
    /// Instructions of the family (`f`): GPUs of the same major compute capability.
    Family,
    /// All instructions of this very architecture (`a`).
    Specific,
}

impl Arch {
    /// The architecture of code for the very GPUs of a number, with all features that they have.
    pub fn own(number: u32) -> Self {
        let features = match number {
            SPECIFIC_SINCE.. => Features::Specific,
            _ => Features::Base,
        };
        Self { number, features }
    }

    /// Whether instructions of a family's first architecture are there: those of 100 for `103a`, `100f`, `100a`.
    pub fn has_family(self, first: u32) -> bool {
        self.features != Features::Base && self.number >= first && self.number / 10 == first / 10
    }

    /// Whether this is `<number>a`.
    pub fn is_exactly(self, number: u32) -> bool {
        self.features == Features::Specific && self.number == number
    }
}

/// A text that names no architecture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an architecture that this program knows: write 80, 89, 90a, 100a, 120f, ... (from 80 on)"
)]
pub struct ArchError(String);

impl FromStr for Arch {
    type Err = ArchError;

    fn from_str(text: &str) -> Result<Self, ArchError> {
        let error = || ArchError(text.into());
        let name = text.strip_prefix("sm_").unwrap_or(text);
        let (digits, features) = match name.as_bytes().last() {
            Some(b'a') => (&name[..name.len() - 1], Features::Specific),
            Some(b'f') => (&name[..name.len() - 1], Features::Family),
            _ => (name, Features::Base),
        };
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        let number: u32 = digits.parse().map_err(|_| error())?;
        // Code of families exists from 10.0 on.
        let known = (80..1000).contains(&number)
            && match features {
                Features::Base => true,
                Features::Family => number >= 100,
                Features::Specific => number >= SPECIFIC_SINCE,
            };
        known.then_some(Self { number, features }).ok_or_else(error)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.features {
            Features::Base => "",
            Features::Family => "f",
            Features::Specific => "a",
        };
        write!(f, "{}{suffix}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for name in ["80", "89", "90", "90a", "100f", "103a", "121a"] {
            assert_eq!(name.parse::<Arch>().unwrap().to_string(), name);
            assert_eq!(
                format!("sm_{name}").parse::<Arch>().unwrap().to_string(),
                name
            );
        }
        for name in [
            "", "a", "sm_", "75", "80a", "90f", "+80", "9.0", "90aa", "100af", "sm_sm_80", "10000",
        ] {
            assert!(name.parse::<Arch>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_gpu_has_code_of_its_own() {
        for (number, name) in [(80, "80"), (89, "89"), (90, "90a"), (103, "103a")] {
            assert_eq!(Arch::own(number).to_string(), name);
        }
    }

    #[test]
    fn families() {
        let arch = |name: &str| name.parse::<Arch>().unwrap();
        assert!(
            arch("100a").has_family(100)
                && arch("103a").has_family(100)
                && arch("100f").has_family(100)
        );
        assert!(
            !arch("100").has_family(100)
                && !arch("110a").has_family(100)
                && !arch("120a").has_family(100)
        );
        assert!(!arch("100a").has_family(103));
        assert!(
            arch("90a").is_exactly(90)
                && !arch("90").is_exactly(90)
                && !arch("100a").is_exactly(90)
        );
    }
}
