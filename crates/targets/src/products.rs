//! GPU products, with published figures: so that calls can be planned for one that is not in this machine.

/// A product. The figures are published ones; nothing here was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Name as programs take it: `rtx5090`.
    pub name: &'static str,
    /// Name as the product's driver says it.
    pub full_name: &'static str,
    /// Major and minor compute capability.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes a second that its memory gives at most. No kernel reaches that.
    pub memory_bandwidth: u64,
    /// The connection between several of them in one host; none where a host has one.
    pub link: Option<Link>,
}

/// A connection between GPUs of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kind of connection.
    pub kind: LinkKind,
    /// Bytes a second each way that a GPU has at most, as published.
    pub bandwidth: u64,
}

/// How GPUs of one host are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// NVLink, through NVSwitch where there are more than two.
    NvLink,
    /// The host's PCI Express, with 16 lanes.
    Pcie,
}

impl LinkKind {
    /// Name as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvLink => "NVLink",
            Self::Pcie => "PCIe",
        }
    }
}

impl Link {
    const fn nvlink(gigabytes_per_second: u64) -> Option<Self> {
        Self::new(LinkKind::NvLink, gigabytes_per_second)
    }

    /// 16 lanes of the fourth generation, or of the fifth.
    const PCIE4: Option<Self> = Self::new(LinkKind::Pcie, 32);
    const PCIE5: Option<Self> = Self::new(LinkKind::Pcie, 64);

    const fn new(kind: LinkKind, gigabytes_per_second: u64) -> Option<Self> {
        let bandwidth = gigabytes_per_second * 1_000_000_000;
        Some(Self { kind, bandwidth })
    }
}

/// Products, a line each: the arguments of [`Product::new`].
macro_rules! products {
    ($($name:literal $full_name:literal $capability:tt $multiprocessors:literal $memory:literal $link:expr;)*) => {
        &[$(Self::new($name, $full_name, $capability, $multiprocessors, $memory, $link)),*]
    };
}

impl Product {
    /// The known products. [`of_compute_capability`](Self::of_compute_capability) gives the first one with a compute
    /// capability.
    ///
    /// Sources: NVIDIA's data sheets for the memory; for multiprocessors the architecture white papers and, of B300,
    /// GB10 and Jetson Thor, published output of the driver. NVLink's rates are half of those that data sheets have,
    /// which add both ways. NVLink bridges, which some of those with PCIe can have, are left out.
    pub const ALL: &[Self] = products![
        "a100" "NVIDIA A100-SXM4-80GB" (8, 0) 108 2039 Link::nvlink(300);
        "a40" "NVIDIA A40" (8, 6) 84 696 Link::PCIE4;
        "rtx3090" "NVIDIA GeForce RTX 3090" (8, 6) 82 936 Link::PCIE4;
        "jetson-orin" "Orin" (8, 7) 16 205 None;
        "rtx4090" "NVIDIA GeForce RTX 4090" (8, 9) 128 1008 Link::PCIE4;
        "l40s" "NVIDIA L40S" (8, 9) 142 864 Link::PCIE4;
        "h200" "NVIDIA H200" (9, 0) 132 4800 Link::nvlink(450);
        "h100" "NVIDIA H100 80GB HBM3" (9, 0) 132 3350 Link::nvlink(450);
        "b200" "NVIDIA B200" (10, 0) 148 8000 Link::nvlink(900);
        "b300" "NVIDIA B300 SXM6 AC" (10, 3) 148 8000 Link::nvlink(900);
        "jetson-thor" "NVIDIA Thor" (11, 0) 20 273 None;
        "rtx5090" "NVIDIA GeForce RTX 5090" (12, 0) 170 1792 Link::PCIE5;
        "rtx-pro-6000" "NVIDIA RTX PRO 6000 Blackwell Workstation Edition" (12, 0) 188 1792 Link::PCIE5;
        "dgx-spark" "NVIDIA GB10" (12, 1) 48 273 None;
    ];

    const fn new(
        name: &'static str,
        full_name: &'static str,
        compute_capability: (i32, i32),
        multiprocessors: u32,
        gigabytes_per_second: u64,
        link: Option<Link>,
    ) -> Self {
        Self {
            name,
            full_name,
            compute_capability,
            multiprocessors,
            memory_bandwidth: gigabytes_per_second * 1_000_000_000,
            link,
        }
    }

    /// The product of a name, in lower or upper case.
    pub fn of_name(name: &str) -> Option<&'static Self> {
        Self::ALL
            .iter()
            .find(|product| product.name.eq_ignore_ascii_case(name))
    }

    /// The product to plan with for a GPU of which no more is known: the first product of its compute capability. Where
    /// there is none, it is the first of the same major. Else it is the first of the newest older compute capability,
    /// or else the first of all.
    pub fn of_compute_capability(compute_capability: (i32, i32)) -> &'static Self {
        let first = |is: &dyn Fn((i32, i32)) -> bool| {
            let mut all = Self::ALL.iter();
            all.find(|product| is(product.compute_capability))
        };
        let (major, _) = compute_capability;
        first(&|of| of == compute_capability)
            .or_else(|| first(&|of| of.0 == major))
            .or_else(|| {
                let older = Self::ALL.iter().map(|product| product.compute_capability);
                let newest = older.filter(|of| *of < compute_capability).max()?;
                first(&|of| of == newest)
            })
            .unwrap_or(&Self::ALL[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_found_by_name() {
        for product in Product::ALL {
            assert_eq!(Product::of_name(product.name), Some(product));
            assert_eq!(
                Product::of_name(&product.name.to_uppercase()),
                Some(product)
            );
        }
        assert_eq!(Product::of_name("abacus"), None);
        assert_eq!(Product::of_name(""), None);
    }

    #[test]
    fn every_compute_capability_has_a_product_that_stands_for_it() {
        let of = |major, minor| Product::of_compute_capability((major, minor)).name;
        assert_eq!(of(9, 0), "h200");
        assert_eq!(of(10, 3), "b300");
        assert_eq!(of(12, 1), "dgx-spark");
        assert_eq!(of(8, 4), "a100");
        assert_eq!(of(10, 1), "b200");
        assert_eq!(of(13, 0), "dgx-spark");
        assert_eq!(of(7, 5), "a100");
        assert_eq!(of(i32::MIN, i32::MAX), "a100");
    }
}
