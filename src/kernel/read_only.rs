//! The kernels that only read, `csrc/kernels/read_only.cuh` and `read_bulk.cuh`: the fastest of them at a size is the
//! ceiling for kernels that must read as much.

use std::fmt;

use nvfp4_gemv_targets::units::HELPERS;

use super::params::{
    NVFP4_READ_BULK_BAR_BYTES, NVFP4_READ_ONLY_MAX_THREADS, NVFP4_READ_PIECE, NVFP4_WARP,
    nvfp4_read_bulk_params, nvfp4_read_only_params,
};
use super::plan::{KernelParameters, Launch, Parameters};
use super::{compute_capability, field, image, shared_memory};
use crate::gpu::Gpu;
use crate::refusal::Refusal;

/// How a kernel reads bytes, and does nothing else. A config prints in one line: `loads 8x256x4` is 8 CTAs an SM, 256
/// threads, 4 loads. `bulk 1x12x8192` is 1 CTA an SM and a ring of 12 copies of 8192 bytes. [`Share`] stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadConfig {
    /// Loads of 16 bytes into registers.
    Loads {
        /// Loads that a thread has asked for at once: 4 or 8.
        loads: u32,
        /// Threads of a CTA: whole warps, 1024 at most.
        threads: u32,
        /// Which bytes each CTA reads.
        share: Share,
    },
    /// Bulk copies into a ring in shared memory, from compute capability 9.0 on.
    Bulk {
        /// Bytes of a copy: a multiple of 16, 65536 at most.
        copy_bytes: u32,
        /// Copies that a CTA has asked for at once.
        stages: u32,
        /// Which bytes each CTA reads.
        share: Share,
    },
}

/// Which bytes each CTA reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// CTAs take turns. One turn is a load of each thread, or a copy.
    Turns {
        /// CTAs of an SM: 1 to 32.
        ctas: u32,
    },
    /// Each CTA has a contiguous part. All parts have the same size.
    Parts {
        /// CTAs of an SM: 1 to 32.
        ctas: u32,
    },
    /// A CTA ends after the contiguous bytes that it asks for at once. There are as many CTAs as that takes.
    Pieces,
}

/// The bytes to read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Address of the bytes, 16-byte aligned.
    pub data: u64,
    /// Number of bytes, rounded down to a multiple of 16.
    pub bytes: usize,
    /// Address of the sink: 4 bytes, 4-byte aligned.
    pub sink: u64,
    /// Whether the sum of all 32-bit words, modulo 2^32, is added to the sink: for tests. Otherwise the sink is
    /// practically never written, and no memory traffic is added.
    pub sums: bool,
}

/// The unit of the kernels that load.
const LOADS_UNIT: &str = HELPERS;
const BULK_UNIT: &str = "read_bulk";
const MOST_COPY_BYTES: u32 = 1 << 16;
const MOST_CTAS: u32 = 32;
/// Contiguous parts begin at multiples of this number of bytes, which L2 fetches at once.
const PART_BYTES: u64 = 256;
/// The most CTAs of a grid of [`Share::Pieces`]. If the bytes have more pieces than that, pieces are longer.
const MOST_PIECES: u64 = 1 << 24;

impl ReadConfig {
    /// A config that reads reasonably well on every GPU.
    pub const DEFAULT: Self = Self::Loads {
        loads: 4,
        threads: 256,
        share: Share::Turns { ctas: 8 },
    };

    /// Configs that the GPU can run, of which one or another is the fastest, depending on the size and the GPU.
    pub fn candidates(gpu: &Gpu) -> Vec<Self> {
        let loads = |loads, threads, share| Self::Loads {
            loads,
            threads,
            share,
        };
        let bulk = |stages, copy_bytes, share| Self::Bulk {
            copy_bytes,
            stages,
            share,
        };
        let (turns, parts) = (|ctas| Share::Turns { ctas }, |ctas| Share::Parts { ctas });
        let mut all = vec![Self::DEFAULT];
        // As many threads as an SM has room for, with the registers of four loads, and of eight.
        all.extend([(1, 1024), (2, 1024), (4, 512)].map(|(c, t)| loads(4, t, turns(c))));
        all.push(loads(4, 256, parts(8)));
        for (ctas, threads) in [(1, 1024), (2, 512), (4, 256), (8, 128)] {
            all.push(loads(8, threads, turns(ctas)));
            all.push(loads(8, threads, parts(ctas)));
        }
        all.extend([256, 512].map(|threads| loads(4, threads, Share::Pieces)));
        all.extend([128, 256].map(|threads| loads(8, threads, Share::Pieces)));
        // 96 and 192 KiB of an SM.
        for (ctas, stages) in [(1, 12), (1, 24), (2, 6), (2, 12), (4, 6)] {
            all.push(bulk(stages, 8192, turns(ctas)));
            all.push(bulk(stages, 8192, parts(ctas)));
        }
        all.extend([2, 4].map(|stages| bulk(stages, 8192, Share::Pieces)));
        all.retain(|config| config.check(gpu).is_ok());
        all
    }

    /// Whether a GPU can run this config.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, gpu: &Gpu) -> Result<(), Refusal> {
        match *self {
            Self::Loads { loads, threads, .. } => {
                image(gpu, LOADS_UNIT)?;
                field("loads", loads, "4 or 8", matches!(loads, 4 | 8))?;
                let whole = threads.is_multiple_of(NVFP4_WARP);
                let fit = (NVFP4_WARP..=NVFP4_READ_ONLY_MAX_THREADS).contains(&threads);
                let takes = "a multiple of 32, 1024 at most";
                field("threads", threads, takes, whole && fit)?;
            }
            Self::Bulk {
                copy_bytes, stages, ..
            } => {
                compute_capability(gpu, (9, 0), "9.0 or newer")?;
                image(gpu, BULK_UNIT)?;
                let whole = copy_bytes.is_multiple_of(NVFP4_READ_PIECE);
                let fit = (NVFP4_READ_PIECE..=MOST_COPY_BYTES).contains(&copy_bytes);
                let takes = "a multiple of 16, 65536 at most";
                field("copy_bytes", copy_bytes, takes, whole && fit)?;
                field("stages", stages, "1 or more", stages > 0)?;
                shared_memory(ring_bytes(copy_bytes, stages), gpu)?;
            }
        }
        match self.share() {
            Share::Pieces => Ok(()),
            Share::Turns { ctas } | Share::Parts { ctas } => {
                let takes = "1 to 32";
                field("ctas", ctas, takes, (1..=MOST_CTAS).contains(&ctas))
            }
        }
    }

    /// Which bytes each CTA reads.
    pub fn share(&self) -> Share {
        match *self {
            Self::Loads { share, .. } | Self::Bulk { share, .. } => share,
        }
    }

    /// Bytes that a CTA has asked for at once.
    pub fn bytes_in_flight(&self) -> u64 {
        match *self {
            Self::Loads { loads, threads, .. } => u64::from(loads) * load_bytes(threads),
            Self::Bulk {
                copy_bytes, stages, ..
            } => u64::from(copy_bytes) * u64::from(stages),
        }
    }

    /// The launch of this config, which [`check`](Self::check) found right, on `multiprocessors` multiprocessors (at
    /// least 1).
    pub fn launch(&self, read: &Read, multiprocessors: u32) -> Launch {
        let piece = u64::from(NVFP4_READ_PIECE);
        let bytes = read.bytes as u64 / piece * piece;
        let division = self.division(bytes, multiprocessors);
        let grid = [division.ctas, 1, 1];
        match *self {
            Self::Loads { loads, threads, .. } => {
                let parameters = nvfp4_read_only_params {
                    data: read.data,
                    pieces: (bytes / piece) as i64,
                    cta_step: (division.cta_step / piece) as i64,
                    cta_reach: (division.cta_reach / piece) as i64,
                    load_step: (division.step / piece) as i64,
                    sum_bits: if read.sums { 0 } else { u32::MAX },
                    sink: read.sink,
                    ..nvfp4_read_only_params::default()
                };
                Launch {
                    entry: match loads {
                        8 => "read_only_loads8",
                        _ => "read_only_loads4",
                    },
                    unit: LOADS_UNIT,
                    grid,
                    threads,
                    parameters: Parameters::of(&parameters),
                    ..Launch::default()
                }
            }
            Self::Bulk {
                copy_bytes, stages, ..
            } => {
                let parameters = nvfp4_read_bulk_params {
                    data: read.data,
                    bytes: bytes as i64,
                    cta_step: division.cta_step as i64,
                    cta_reach: division.cta_reach as i64,
                    copy_step: division.step as i64,
                    copy_bytes,
                    stages,
                    sums: u32::from(read.sums),
                    sink: read.sink,
                    ..nvfp4_read_bulk_params::default()
                };
                Launch {
                    entry: "read_bulk",
                    unit: BULK_UNIT,
                    grid,
                    threads: NVFP4_WARP,
                    dynamic_shared: ring_bytes(copy_bytes, stages) as u32,
                    parameters: Parameters::of(&parameters),
                    ..Launch::default()
                }
            }
        }
    }

    /// Divides bytes among CTAs.
    fn division(&self, bytes: u64, multiprocessors: u32) -> Division {
        let one = match *self {
            Self::Loads { threads, .. } => load_bytes(threads),
            Self::Bulk { copy_bytes, .. } => u64::from(copy_bytes),
        };
        // More multiprocessors than any GPU has would overflow the grid.
        let grid = |ctas: u32| multiprocessors.clamp(1, 1 << 20) * ctas.min(MOST_CTAS);
        match self.share() {
            Share::Turns { ctas } => Division {
                ctas: grid(ctas),
                cta_step: one,
                cta_reach: bytes,
                step: one * u64::from(grid(ctas)),
            },
            Share::Parts { ctas } => {
                let part = bytes.div_ceil(u64::from(grid(ctas)));
                let part = part.next_multiple_of(PART_BYTES);
                Division {
                    ctas: grid(ctas),
                    cta_step: part,
                    cta_reach: part,
                    step: one,
                }
            }
            Share::Pieces => {
                let at_once = self.bytes_in_flight();
                let several = bytes.div_ceil(at_once).div_ceil(MOST_PIECES).max(1);
                let piece = at_once * several;
                Division {
                    ctas: bytes.div_ceil(piece).max(1) as u32,
                    cta_step: piece,
                    cta_reach: piece,
                    step: one,
                }
            }
        }
    }
}

/// The division of the bytes among CTAs. Steps and reaches are in bytes.
struct Division {
    ctas: u32,
    /// Distance from the first byte of a CTA to the first byte of the next CTA.
    cta_step: u64,
    /// All that a CTA reads lies within this distance of its first byte.
    cta_reach: u64,
    /// Distance from a load or copy of a CTA to its next one.
    step: u64,
}

/// Bytes of one load of each thread.
fn load_bytes(threads: u32) -> u64 {
    u64::from(threads) * u64::from(NVFP4_READ_PIECE)
}

/// Bytes of shared memory of a ring.
fn ring_bytes(copy_bytes: u32, stages: u32) -> u64 {
    u64::from(stages) * u64::from(copy_bytes + NVFP4_READ_BULK_BAR_BYTES)
}

impl fmt::Display for ReadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, each) = match *self {
            Self::Loads { loads, threads, .. } => ("loads", [threads, loads]),
            Self::Bulk {
                copy_bytes, stages, ..
            } => ("bulk", [stages, copy_bytes]),
        };
        let [a, b] = each;
        match self.share() {
            Share::Turns { ctas } => write!(f, "{kind} {ctas}x{a}x{b}"),
            Share::Parts { ctas } => write!(f, "{kind} {ctas}x{a}x{b} parts"),
            Share::Pieces => write!(f, "{kind} {a}x{b} pieces"),
        }
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_read_only_params {}
// SAFETY: as above.
unsafe impl KernelParameters for nvfp4_read_bulk_params {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn gpu(compute_capability: (i32, i32)) -> Gpu {
        Gpu::of_compute_capability(compute_capability, "80;90a;100f;120f")
    }

    #[test]
    fn candidates_are_those_that_a_gpu_can_run_each_once() {
        for (compute_capability, bulk) in [((8, 0), 0), ((9, 0), 12), ((12, 0), 10)] {
            let candidates = ReadConfig::candidates(&gpu(compute_capability));
            assert_eq!(candidates[0], ReadConfig::DEFAULT);
            let names: BTreeSet<String> = candidates.iter().map(ReadConfig::to_string).collect();
            assert_eq!(names.len(), candidates.len(), "{names:?}");
            let is_bulk = |config: &&ReadConfig| matches!(config, ReadConfig::Bulk { .. });
            assert_eq!(candidates.iter().filter(is_bulk).count(), bulk, "{names:?}");
            for name in ["loads 8x256x4", "loads 2x512x8 parts", "loads 256x8 pieces"] {
                assert!(names.contains(name), "{name}: {names:?}");
            }
        }
    }

    #[test]
    fn configs_that_no_gpu_can_run_are_refused() {
        let hopper = gpu((9, 0));
        let share = Share::Turns { ctas: 1 };
        let loads = |loads, threads, share| ReadConfig::Loads {
            loads,
            threads,
            share,
        };
        let bulk = |copy_bytes, stages| ReadConfig::Bulk {
            copy_bytes,
            stages,
            share,
        };
        let refused = |config: ReadConfig| match config.check(&hopper) {
            Err(Refusal::Field { name, .. }) => name,
            Err(Refusal::SharedMemory { .. }) => "shared memory",
            other => panic!("{config}: {other:?}"),
        };
        assert_eq!(refused(loads(5, 256, share)), "loads");
        for threads in [0, 48, 2048] {
            assert_eq!(refused(loads(4, threads, share)), "threads");
        }
        for ctas in [0, 33, u32::MAX] {
            assert_eq!(refused(loads(4, 256, Share::Parts { ctas })), "ctas");
        }
        for copy_bytes in [0, 24, 1 << 20] {
            assert_eq!(refused(bulk(copy_bytes, 1)), "copy_bytes");
        }
        assert_eq!(refused(bulk(8192, 0)), "stages");
        for stages in [29, u32::MAX] {
            assert_eq!(refused(bulk(8192, stages)), "shared memory");
        }
        assert!(matches!(
            bulk(8192, 1).check(&gpu((8, 0))),
            Err(Refusal::ComputeCapability { .. })
        ));
        let none = Gpu::of_compute_capability((9, 0), "");
        assert_eq!(
            ReadConfig::DEFAULT.check(&none),
            Err(Refusal::BuiltWithoutKernels)
        );
    }

    /// All sizes have a grid that GPUs take. Other grids would fail only on a GPU.
    #[test]
    fn sizes_of_any_kind_have_a_launch() {
        for multiprocessors in [0, 1, 132, u32::MAX] {
            for bytes in [0, 15, 16, 1 << 20, (1 << 30) + 48, isize::MAX as usize] {
                for config in ReadConfig::candidates(&gpu((9, 0))) {
                    let read = Read {
                        data: 0,
                        bytes,
                        sink: 0,
                        sums: false,
                    };
                    let [ctas, ..] = config.launch(&read, multiprocessors).grid;
                    assert!((1..=i32::MAX as u32).contains(&ctas), "{config}: {ctas}");
                }
            }
        }
    }
}
