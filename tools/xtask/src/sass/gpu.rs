//! Resources of an SM, and the GPUs that estimates are made for.

use std::sync::LazyLock;

use nvfp4_gemv_targets::products::Product;
use serde::Serialize;

/// One GPU for an architecture, and its SM's limits.
///
/// Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (8.0, 9.0, 10.0,
/// 12.0) and, for 512 columns of tensor memory, the PTX ISA, "Tensor Memory".
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Gpu {
    /// Without its prefix: 90a.
    pub(crate) arch: &'static str,
    pub(crate) name: &'static str,
    pub(crate) multiprocessors: u32,
    /// Boost clock, as published.
    pub(crate) megahertz: u32,
    /// The memory's largest rate, in GB/s.
    pub(crate) gigabytes: u32,
    /// Source of that rate.
    pub(crate) source: &'static str,
    pub(crate) sm: Sm,
}

/// Resources that the CTAs of an SM share.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sm {
    pub(crate) threads: u32,
    pub(crate) ctas: u32,
    pub(crate) shared_bytes: u32,
    /// The most shared memory of a CTA.
    pub(crate) cta_shared_bytes: u32,
    pub(crate) tensor_columns: u32,
}

impl Sm {
    const fn new(threads: u32, ctas: u32, shared_kib: u32, tensor_columns: u32) -> Self {
        Self {
            threads,
            ctas,
            shared_bytes: shared_kib << 10,
            cta_shared_bytes: (shared_kib << 10) - RESERVED_SHARED,
            tensor_columns,
        }
    }
}

/// Shared memory that the system takes of every CTA: CUDA C++ Programming Guide, compute capability 8.x
/// and later.
pub(crate) const RESERVED_SHARED: u32 = 1024;
/// 32-bit registers of an SM, a quarter for each of its four schedulers.
pub(crate) const REGISTERS: u32 = 64 << 10;
/// Lane-instructions an SM can issue a clock: four schedulers, one instruction of 32 lanes each.
pub(crate) const ISSUE: f64 = 128.0;
/// Lanes a clock of the integer pipe (logic, shifts, byte permutes, comparisons). CUDA C++ Programming
/// Guide, "Arithmetic Instructions": 64 for 8.0 and 9.0. Taken for 10.x and 12.0 too.
pub(crate) const ALU: f64 = 64.0;
/// Lanes a clock of integer multiply-adds and dp4a: 64, from the same table.
pub(crate) const INTEGER_MULTIPLY: f64 = 64.0;
/// Lanes a clock of the special functions and conversions between float and integer: 16, same table.
pub(crate) const SPECIAL: f64 = 16.0;
/// Bytes a clock that shared memory gives: 32 banks of 4.
pub(crate) const SHARED_BYTES: f64 = 128.0;
/// Seconds from a load to its data while memory is busy, an assumption: 0.8 to 1 microsecond fits what
/// is published of B200 and measured on H200.
pub(crate) const LATENCY: f64 = 0.9e-6;

/// The largest rate of the memory that was measured on a GPU, in GB/s: `read_only` on 132 MB.
const MEASURED: [(&str, u32); 1] = [("h200", 4180)];

/// A GPU for each architecture: the product, its boost clock, and what its SM has.
static GPUS: LazyLock<[Gpu; 4]> = LazyLock::new(|| {
    [
        Gpu::new("80", "a100", 1410, Sm::new(2048, 32, 164, 0)),
        Gpu::new("90a", "h200", 1980, Sm::new(2048, 32, 228, 0)),
        Gpu::new("100f", "b200", 1850, Sm::new(2048, 32, 228, 512)),
        Gpu::new("120f", "rtx5090", 2407, Sm::new(1536, 24, 100, 0)),
    ]
});

impl Gpu {
    fn new(arch: &'static str, product: &str, megahertz: u32, sm: Sm) -> Self {
        let measured = MEASURED.iter().find(|(name, _)| *name == product);
        let product = Product::of_name(product).expect("a product");
        Self {
            arch,
            name: product.full_name,
            multiprocessors: product.multiprocessors,
            megahertz,
            gigabytes: match measured {
                Some((_, gigabytes)) => *gigabytes,
                None => (product.memory_bandwidth / 1_000_000_000) as u32,
            },
            source: match measured {
                Some(_) => "measured",
                None => "published, not measured",
            },
            sm,
        }
    }

    pub(crate) fn all() -> &'static [Self] {
        &*GPUS
    }

    pub(crate) fn of_arch(arch: &str) -> Option<&'static Self> {
        Self::all().iter().find(|gpu| gpu.arch == arch)
    }

    /// Bytes of memory for each SM and clock.
    pub(crate) fn bytes_per_clock(&self) -> f64 {
        f64::from(self.gigabytes) * 1e3 / f64::from(self.megahertz * self.multiprocessors)
    }
}

/// Resources that a CTA takes of an SM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) threads: u32,
    pub(crate) registers: u32,
    /// Static and dynamic, with what the system reserves.
    pub(crate) shared_bytes: u32,
    pub(crate) tensor_columns: u32,
}

/// CTAs that fit an SM at once, and what there would have to be more of for another.
pub(crate) fn ctas_per_sm(need: &Need, sm: &Sm) -> (u32, &'static str) {
    let warps = need.threads.div_ceil(32).max(1);
    // A warp's registers come in pieces of 256, from the quarter of its scheduler.
    let warp_registers = (need.registers.max(1) * 32).next_multiple_of(256);
    let warps_with_registers = REGISTERS / 4 / warp_registers * 4;
    let shared = need.shared_bytes.next_multiple_of(128).max(1);
    let columns = match need.tensor_columns {
        0 => u32::MAX,
        columns => sm.tensor_columns / columns,
    };
    let limits = [
        (warps_with_registers / warps, "registers"),
        (sm.shared_bytes / shared, "shared"),
        (sm.threads / 32 / warps, "threads"),
        (columns, "tensor mem"),
        (sm.ctas, "CTAs"),
    ];
    limits
        .into_iter()
        .min_by_key(|&(ctas, _)| ctas)
        .unwrap_or((0, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(
        threads: u32,
        registers: u32,
        shared_bytes: u32,
        tensor_columns: u32,
    ) -> (u32, &'static str) {
        let sm = &Gpu::of_arch("100f").unwrap().sm;
        let need = Need {
            threads,
            registers,
            shared_bytes,
            tensor_columns,
        };
        ctas_per_sm(&need, sm)
    }

    #[test]
    fn ctas_are_limited_by_what_runs_out_first() {
        assert_eq!(fit(256, 32, 1024, 0), (8, "registers"));
        assert_eq!(fit(256, 16, 1024, 0), (8, "threads"));
        assert_eq!(fit(192, 40, 100 << 10, 256), (2, "shared"));
        assert_eq!(fit(192, 40, 10 << 10, 512), (1, "tensor mem"));
        assert_eq!(fit(32, 16, 1024, 0), (32, "CTAs"));
        assert_eq!(fit(256, 32, 300 << 10, 0), (0, "shared"));
    }

    /// Nine warps: a scheduler has five of two CTAs' eighteen, and 16384 registers.
    #[test]
    fn registers_are_a_schedulers_own() {
        assert_eq!(fit(288, 96, 1024, 0), (2, "registers"));
        assert_eq!(fit(288, 104, 1024, 0), (1, "registers"));
    }

    /// The H200's SM has about four issue slots for the 9/16 byte of a weight.
    #[test]
    fn bytes_and_slots() {
        let gpu = Gpu::of_arch("90a").unwrap();
        let slots = ISSUE * (9.0 / 16.0) / gpu.bytes_per_clock();
        assert!((4.0..5.0).contains(&slots), "{slots}");
    }
}
