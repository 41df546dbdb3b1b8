//! Shared trials of the kernels for many vectors: mma, wgmma and packed. Each kernel describes itself and has its own
//! tables.

use nvfp4_gemv::ScaleLayout;
use nvfp4_gemv::kernel::Config;

use crate::support::faults::At;

#[cfg(feature = "device")]
pub(crate) mod gpu;
pub(crate) mod refuse;
pub(crate) mod sim;

/// A kernel for many vectors.
pub(crate) struct Kernel {
    /// Name of the kernel's unit, also in the list of faults.
    pub(crate) unit: &'static str,
    /// Makes a config of so many tiles, parts, steps of a chunk, CTAs of a cluster (packed: of the launch) and vectors
    /// of a pass. Numbers of things that the kernel does not have are ignored.
    pub(crate) config: fn([u32; 5]) -> Config,
    /// Vectors of a pass, at most.
    pub(crate) most_vectors: u32,
    /// Small launches that between them do everything that a config can ask for.
    pub(crate) cuttings: &'static [Cutting],
    /// Numbers of vectors that every cutting is tried with.
    pub(crate) vectors: &'static [usize],
    /// Few warps, each of which stores several of so many vectors. Between them the last vector is at every place among
    /// the vectors that are stored at once.
    pub(crate) few_warps: &'static [([u32; 4], usize)],
    /// Cuttings for the entry points of most vectors, and their numbers of vectors.
    pub(crate) full: [(Cutting, usize); 2],
    /// K of a problem that is not cut. K of problems at random is a multiple of `granule`.
    pub(crate) short_k: usize,
    pub(crate) granule: usize,
    /// Cutting for vectors over the whole range of their type.
    pub(crate) magnitudes: Cutting,
    /// Architectures for configs at random.
    pub(crate) archs: &'static [&'static str],
    /// Queues and buffers that are used several times, warps that share tiles, rows past M, both layouts, a cluster;
    /// loops that go round more than once.
    pub(crate) faulty: [Cutting; 4],
    /// File name of the kernel's source, and the text of that file.
    pub(crate) source: (&'static str, &'static str),
    /// Branches that no launch takes, although nvcc does not know: text of the line in the source, and ending of the
    /// entry points' names.
    pub(crate) never_taken: &'static [(&'static str, &'static str)],
    /// Words of a plan that may be wrong, with reasons.
    pub(crate) harmless: &'static [(At, &'static str)],
}

/// A shape without N, and a config for it.
#[derive(Clone, Copy)]
pub(crate) struct Cutting {
    shape: (usize, usize, usize),
    layout: ScaleLayout,
    /// Tiles, parts, steps of a chunk, CTAs of a cluster.
    sizes: [u32; 4],
    /// Vectors of a pass, if not the kernel's most.
    pass: Option<u32>,
    /// Least number of vectors that the cutting is for.
    least: usize,
    chained: bool,
    /// Exact data of fewer vectors than this number run under every schedule.
    every_schedule: usize,
}

/// A cutting of M, K and L, with a config's tiles, parts, steps of a chunk and CTAs of a cluster.
pub(crate) const fn cutting(
    shape: (usize, usize, usize),
    layout: ScaleLayout,
    sizes: [u32; 4],
) -> Cutting {
    let [_, _, chunk, cluster] = sizes;
    Cutting {
        shape,
        layout,
        sizes,
        pass: None,
        least: 1,
        chained: cluster.is_multiple_of(4) || chunk == 4,
        every_schedule: 0,
    }
}

impl Cutting {
    /// The cutting, under every schedule if there are few vectors.
    pub(crate) const fn under_every_schedule(self) -> Self {
        Self {
            every_schedule: 10,
            ..self
        }
    }

    pub(crate) const fn always_under_every_schedule(self) -> Self {
        Self {
            every_schedule: usize::MAX,
            ..self
        }
    }

    /// The cutting, for at least so many vectors.
    pub(crate) const fn from(self, least: usize) -> Self {
        Self { least, ..self }
    }
}

impl Kernel {
    fn config(&self, cutting: &Cutting) -> Config {
        let [tiles, parts, chunk, cluster] = cutting.sizes;
        let vectors = cutting.pass.unwrap_or(self.most_vectors);
        (self.config)([tiles, parts, chunk, cluster, vectors])
    }
}
