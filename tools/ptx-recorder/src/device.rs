//! The GPU that programs see: limits that CUDA documents for its compute capability, and no speed.

/// Shared memory of a CTA in bytes, unless a kernel may have more.
pub(crate) const SHARED: u64 = 48 << 10;
/// Bytes of each CTA's shared memory that the system keeps.
pub(crate) const RESERVED_SHARED: u64 = ptx_sim::memory::layout::SHARED_START;
/// Registers of a multiprocessor, and of a CTA.
pub(crate) const REGISTERS: i32 = 64 << 10;
/// Threads of a CTA.
pub(crate) const THREADS: i32 = 1024;

/// Limits in which GPUs differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Compute capability, as in the names of architectures: 100 for 10.0.
    pub architecture: u32,
    /// Threads of a multiprocessor.
    pub threads: i32,
    /// CTAs of a multiprocessor.
    pub ctas: i32,
    /// KiB of shared memory of a multiprocessor. A CTA may have one KiB less, which is the system's.
    shared_kib: i32,
}

impl Limits {
    const fn new(architecture: u32, threads: i32, ctas: i32, shared_kib: i32) -> Self {
        Self {
            architecture,
            threads,
            ctas,
            shared_kib,
        }
    }

    /// Limits of an architecture. One that is not in the table has the limits of the one before it, or else of the
    /// first.
    pub(crate) fn of(architecture: u32) -> Self {
        let mut latest_first = LIMITS.iter().rev();
        let known = latest_first.find(|l| l.architecture <= architecture);
        *known.unwrap_or(&LIMITS[0])
    }

    /// Shared memory of a multiprocessor in bytes.
    pub(crate) fn shared(self) -> i32 {
        self.shared_kib << 10
    }

    /// Shared memory of a CTA in bytes, for kernels that may have more than [`SHARED`].
    pub(crate) fn shared_opt_in(self) -> i32 {
        self.shared() - RESERVED_SHARED as i32
    }
}

/// The GPUs that there are, by architecture.
pub const LIMITS: [Limits; 10] = [
    Limits::new(80, 2048, 32, 164),
    Limits::new(86, 1536, 16, 100),
    Limits::new(87, 1536, 16, 164),
    Limits::new(89, 1536, 24, 100),
    Limits::new(90, 2048, 32, 228),
    Limits::new(100, 2048, 32, 228),
    Limits::new(103, 2048, 32, 228),
    Limits::new(110, 1536, 24, 228),
    Limits::new(120, 1536, 24, 100),
    Limits::new(121, 1536, 24, 100),
];

/// The device, with the properties that a program may ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device {
    /// Compute capability, as in the names of architectures: 100 for 10.0.
    pub(crate) architecture: u32,
    /// Multiprocessors.
    pub(crate) sms: u32,
    /// Bytes of memory.
    pub(crate) memory: u64,
}

/// Attributes of features that the recorder does not have. 89: managed memory is copied at the beginning and the end of a
/// launch, so host and device must not use it at once. 91, 113: the device does not see host memory that a program
/// registers. 102 to 105, 110, 128: virtual memory management. 132: multicast objects.
const ABSENT: [u32; 59] = [
    17, 18, 20, 32, 33, 34, 35, 50, 84, 85, 86, 88, 89, 91, 92, 93, 94, 96, 98, 100, 101, 102, 103,
    104, 105, 107, 108, 109, 110, 112, 113, 114, 116, 117, 118, 119, 121, 122, 123, 124, 125, 128,
    129, 130, 132, 133, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147,
];

impl Device {
    /// `cudaDeviceAttr` and `CUdevice_attribute`, which share their numbers. `None` for an attribute that is not known
    /// here.
    pub(crate) fn attribute(&self, number: u32) -> Option<i32> {
        let limits = Limits::of(self.architecture);
        let (major, minor) = (self.architecture / 10, self.architecture % 10);
        Some(match number {
            1..=3 => THREADS,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65535,
            8 => SHARED as i32,
            9 => 64 << 10,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => REGISTERS,
            // A clock rate of 1 GHz: nothing here has a speed.
            13 | 36 => 1_000_000,
            14 => 512,
            16 => self.sms as i32,
            15 | 19 | 31 | 41 | 78..=80 | 83 | 90 | 95 | 99 | 115 => 1,
            30 => 512,
            37 => 8192,
            38 => 50 << 20,
            39 => limits.threads,
            40 => 1,
            51 => 32,
            75 => major as i32,
            76 => minor as i32,
            81 => limits.shared(),
            87 => 2,
            97 => limits.shared_opt_in(),
            106 => limits.ctas,
            111 => RESERVED_SHARED as i32,
            // Clusters and tensor maps.
            120 | 127 => i32::from(major >= 9),
            126 => 1,
            131 | 134 => -1,
            _ if ABSENT.contains(&number) => 0,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_architecture() {
        let of = |a| {
            (
                Limits::of(a).shared() >> 10,
                Limits::of(a).shared_opt_in() >> 10,
            )
        };
        assert_eq!(of(80), (164, 163));
        assert_eq!(of(110), (228, 227));
        assert_eq!(of(121), (100, 99));
        // Architectures of PTX that have no GPU in the table.
        assert_eq!(Limits::of(75), Limits::of(80));
        assert_eq!(Limits::of(101), Limits::of(100));
        assert!(LIMITS.is_sorted_by_key(|l| l.architecture));
    }

    #[test]
    fn every_attribute_of_cuda_13_has_a_value() {
        let device = Device {
            architecture: 90,
            sms: 132,
            memory: 1 << 30,
        };
        let textures = |n: u32| matches!(n, 21..=29 | 42..=49 | 52..=74 | 77);
        for n in (1..=147).filter(|n| !textures(*n)) {
            assert!(device.attribute(n).is_some(), "{n}");
        }
        assert_eq!(device.attribute(127), Some(1));
        assert_eq!(device.attribute(89), Some(0));
        assert_eq!(
            Device {
                architecture: 89,
                ..device
            }
            .attribute(127),
            Some(0)
        );
    }
}
