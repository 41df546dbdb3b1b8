//! The GPU that programs see: limits that CUDA documents for compute capability 9.0 and later, and no speed.

/// Shared memory of a CTA in bytes, unless a kernel may have more.
pub(crate) const SHARED: u64 = 48 << 10;
/// What the system keeps of each CTA's shared memory.
pub(crate) const RESERVED_SHARED: u64 = 1 << 10;
/// Registers of a multiprocessor, and of a CTA.
pub(crate) const REGISTERS: i32 = 64 << 10;
/// Threads of a CTA.
pub(crate) const THREADS: i32 = 1024;

/// Shared memory of a CTA in bytes, for kernels that may have more than [`SHARED`].
pub(crate) fn shared_opt_in(major: i32) -> i32 {
    match major {
        9 | 10 => 227 << 10,
        _ => 99 << 10,
    }
}

/// Shared memory of a multiprocessor in bytes.
pub(crate) fn shared_of_multiprocessor(major: i32) -> i32 {
    match major {
        9 | 10 => 228 << 10,
        _ => 100 << 10,
    }
}

/// Threads of a multiprocessor.
pub(crate) fn threads_of_multiprocessor(major: i32) -> i32 {
    match major {
        9 | 10 => 2048,
        _ => 1536,
    }
}

/// CTAs of a multiprocessor.
pub(crate) fn ctas_of_multiprocessor(major: i32) -> i32 {
    match major {
        9 | 10 => 32,
        _ => 24,
    }
}

/// What a program may ask of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device {
    /// Compute capability.
    pub(crate) capability: (i32, i32),
    /// Multiprocessors.
    pub(crate) sms: i32,
    /// Bytes of memory.
    pub(crate) memory: u64,
}

impl Device {
    /// `cudaDeviceAttr` and `CUdevice_attribute`, which share their numbers. `None` for what is not known here.
    pub(crate) fn attribute(&self, number: u32) -> Option<i32> {
        let major = self.capability.0;
        Some(match number {
            1 | 2 => THREADS,
            3 => 64,
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
            16 => self.sms,
            17 | 18 | 20 | 32 | 33 | 34 | 35 | 50 | 84 | 85 | 86 | 88 | 98 | 100 | 101 | 133 => 0,
            15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 | 89 | 90 | 95 | 99 | 115 | 120 => 1,
            30 => 512,
            37 => 8192,
            38 => 50 << 20,
            39 => threads_of_multiprocessor(major),
            40 => 1,
            51 => 32,
            75 => major,
            76 => self.capability.1,
            81 => shared_of_multiprocessor(major),
            87 => 2,
            // Host memory that a program registers is not seen by the device.
            91 | 96 | 112 | 113 | 114 | 116 | 117 | 118 | 119 | 121 | 125 => 0,
            97 => shared_opt_in(major),
            106 => ctas_of_multiprocessor(major),
            108 | 109 => 0,
            111 => RESERVED_SHARED as i32,
            126 => 1,
            130 => 0,
            131 | 134 => -1,
            _ => return None,
        })
    }
}
