//! The GPU of the night, as nvidia-smi tells it: what it is, and whether it still answers.

use std::process::Command;

use anyhow::{Context, Result, bail};
use nvfp4_gemv_targets::arch;
use nvfp4_gemv_targets::products::Product;
use serde::{Deserialize, Serialize};

use crate::process;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Device {
    /// The name as the driver says it.
    pub(super) name: String,
    pub(super) compute_capability: (i32, i32),
    pub(super) driver: String,
}

const QUERY: &str = "--query-gpu=name,compute_cap,driver_version";

/// Asks about the GPU of an index in the order of PCI addresses.
pub(super) fn query(index: u32) -> Command {
    let mut command = Command::new("nvidia-smi");
    command.args(["-i", &index.to_string(), QUERY, "--format=csv,noheader"]);
    command
}

impl Device {
    pub(super) fn here(index: u32) -> Result<Self> {
        let text = process::stdout(&mut query(index)).context(
            "no GPU was found; --dry-run --compute-capability 10.0 shows what would run on one",
        )?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.trim().split(',').map(str::trim).collect();
        match words[..] {
            [name, capability, driver] if !name.is_empty() => Ok(Self {
                name: name.into(),
                compute_capability: capability_of(capability).with_context(|| {
                    format!("nvidia-smi says compute capability {capability:?}")
                })?,
                driver: driver.into(),
            }),
            _ => {
                bail!("nvidia-smi says {text:?}, and not a name, a compute capability and a driver")
            }
        }
    }

    /// The device to plan for, where there is no such GPU.
    pub(super) fn imagined(compute_capability: (i32, i32)) -> Self {
        Self {
            name: Product::of_compute_capability(compute_capability)
                .full_name
                .into(),
            compute_capability,
            driver: "none".into(),
        }
    }

    /// A word for the names of files: the product's, or what is left of the driver's name.
    pub(super) fn slug(&self) -> String {
        let products = Product::ALL.iter();
        let known =
            products.filter(|product| product.compute_capability == self.compute_capability);
        let mut known = known.filter(|product| product.full_name == self.name);
        if let Some(product) = known.next() {
            return product.name.into();
        }
        let name = self.name.to_lowercase();
        let name = name.trim_start_matches("nvidia ").chars().take(40);
        match crate::write::slug(&name.collect::<String>()) {
            slug if slug.is_empty() => "gpu".into(),
            slug => slug,
        }
    }

    /// The suffix of the code that runs on it where a build is not told anything else: what ships. Where nothing that
    /// ships does, that of code for it alone.
    pub(super) fn arch(&self) -> String {
        let shipped = arch::parse(arch::DEFAULT, || Err("nobody is asked".into()));
        let mut shipped = shipped.unwrap_or_default().into_iter();
        let (major, minor) = self.compute_capability;
        shipped
            .find(|arch| arch::runs_on(arch, self.compute_capability))
            .unwrap_or_else(|| arch::own((10 * major + minor).unsigned_abs()))
    }
}

/// `10.0`, as nvidia-smi and the command line have it.
pub(super) fn capability_of(text: &str) -> Option<(i32, i32)> {
    let (major, minor) = text.split_once('.')?;
    let digits = |part: &str| part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
    match digits(major) && digits(minor) {
        true => Some((major.parse().ok()?, minor.parse().ok()?)),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nvidia_smi_says_is_read() {
        let device = Device::parse("NVIDIA B200, 10.0, 580.65.06\n").unwrap();
        assert_eq!(device.compute_capability, (10, 0));
        assert_eq!((&*device.slug(), &*device.arch()), ("b200", "100f"));
        let device = Device::parse("NVIDIA RTX 5070 Ti (x), 12.0, 1").unwrap();
        assert_eq!(
            (&*device.slug(), &*device.arch()),
            ("rtx-5070-ti-x", "120f")
        );
        assert_eq!(Device::imagined((12, 1)).slug(), "dgx-spark");
        for text in [
            "",
            "A, 10.0",
            "A, [N/A], 1",
            "A, 10, 1",
            "A, 1.-1, 1",
            ", 10.0, 1",
        ] {
            assert!(Device::parse(text).is_err(), "{text:?}");
        }
    }

    /// The shipped kernels are asked, also where the GPU could have code of its own: 100f on a B300, 120f on a DGX
    /// Spark.
    #[test]
    fn the_code_is_what_ships() {
        for (capability, arch) in [
            ((8, 0), "80"),
            ((8, 9), "80"),
            ((9, 0), "90a"),
            ((10, 0), "100f"),
            ((10, 3), "100f"),
            ((12, 0), "120f"),
            ((12, 1), "120f"),
            ((11, 0), "110a"),
        ] {
            assert_eq!(Device::imagined(capability).arch(), arch, "{capability:?}");
        }
    }

    /// Names come from elsewhere, and become names of folders.
    #[test]
    fn a_slug_is_nothing_but_a_word() {
        for name in ["../../etc", "", "---", "Ä/ö", "NVIDIA  ", &"x/".repeat(100)] {
            let slug = Device {
                name: name.into(),
                ..Device::imagined((10, 0))
            }
            .slug();
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            assert!(
                !slug.is_empty() && slug.len() <= 80 && slug.bytes().all(fits),
                "{slug:?}"
            );
        }
    }
}
