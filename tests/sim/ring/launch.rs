//! One problem on `gemv_ring` in the simulator: what `csrc/launch/gemv_ring.cu` does, in Rust.

use std::fmt::Debug;

use nvfp4_gemv::{RingConfig, ScaleLayout};
use ptx_sim::{Launch, Module};

use super::super::kernels::Launched;
use super::super::loaded::{Extras, Loaded};
use super::super::operands::Operands;
use super::super::params::{Params, magic};

const WARP: usize = 32;
const UNIT_ROWS: usize = 4;
const CHUNK_BYTES: usize = 16;
const MAX_PRODUCERS: usize = 4;
const SCALE_SLOTS: usize = 3;
const SCALE_BYTES: usize = 256;
const BAR_BYTES: usize = 16;

/// Offsets in dynamic shared memory, and its size.
struct Shared {
    scales: usize,
    bars: usize,
    sums: usize,
    sums_pitch: usize,
    size: usize,
}

/// A cut of a problem.
pub(crate) struct Run<'a> {
    loaded: Loaded<'a>,
    cut: RingConfig,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        module: &Module,
        operands: &'a Operands,
        cut: RingConfig,
        extras: Extras,
    ) -> Self {
        Self {
            loaded: Loaded::new(module, operands, extras),
            cut,
        }
    }

    /// The launch of a call, with its entry.
    pub(crate) fn launched(&self) -> (Launch, String) {
        let RingConfig {
            chunks,
            rows,
            cached,
            ..
        } = self.cut;
        let cached = u32::from(cached);
        let entry =
            format!("_ZN5nvfp44ring9gemv_ringILi{chunks}ELj{rows}ELb{cached}EEEvNS0_6ParamsE");
        let warps = self.groups() * self.row_warps() + self.producers();
        let mut launch = Launch::new(&entry, [self.cut.ctas, 1, 1], [(warps * WARP) as u32, 1, 1]);
        let shared = self.lay_out();
        launch.shared = shared.size as u32;
        launch.dependent = self.cut.dependent;
        launch.params = vec![self.params(&shared)];
        (launch, entry)
    }

    fn groups(&self) -> usize {
        self.cut.groups as usize
    }

    fn producers(&self) -> usize {
        self.groups().min(MAX_PRODUCERS)
    }

    fn row_bytes(&self) -> usize {
        self.loaded.shape().row_code_bytes()
    }

    /// Warps that share a row.
    fn row_warps(&self) -> usize {
        (self.row_bytes() / CHUNK_BYTES).div_ceil(self.cut.chunks as usize * WARP)
    }

    /// Rows of all batches, and their places.
    fn rows(&self) -> (usize, usize) {
        let rows = self.loaded.shape().m() * self.loaded.shape().l();
        let whole = if self.loaded.tiled() { 128 } else { 1 };
        (rows, rows.next_multiple_of(whole))
    }

    /// Granules of every CTA, and CTAs that have one more.
    fn granules(&self) -> (usize, usize) {
        let granules = self.rows().1.div_ceil(self.cut.granule as usize);
        let ctas = self.cut.ctas as usize;
        (granules / ctas, granules % ctas)
    }

    fn lay_out(&self) -> Shared {
        let units = self.groups() * self.cut.depth as usize;
        let (each, left) = self.granules();
        let most = (each + usize::from(left != 0)) * self.cut.granule as usize;
        let sums_pitch = (most.div_ceil(UNIT_ROWS) + 1) * UNIT_ROWS;
        let scales = units * UNIT_ROWS * self.row_bytes();
        let slots = self.groups() * self.row_warps() * SCALE_SLOTS * self.cut.chunks as usize;
        let bars = scales + slots * SCALE_BYTES;
        let sums = bars + units * (UNIT_ROWS / self.cut.rows as usize) * BAR_BYTES;
        Shared {
            scales,
            bars,
            sums,
            sums_pitch,
            size: sums + self.row_warps() * sums_pitch * 4,
        }
    }

    /// `ring::Params`.
    fn params(&self, shared: &Shared) -> Vec<u8> {
        let Self { loaded, cut } = self;
        let (shape, extras) = (loaded.shape(), &loaded.extras);
        let (m, blocks) = (shape.m(), shape.blocks());
        let (each, left) = self.granules();
        let (rows, places) = self.rows();
        let several = shape.l() > 1;
        let mut p = Params::new(224);
        p.words(
            0,
            &[
                each,
                left,
                cut.granule.ilog2() as usize,
                self.producers(),
                if loaded.tiled() || several { 3 } else { 0 },
                usize::from(loaded.tiled()),
                rows,
                places,
                self.row_bytes(),
                cut.depth as usize,
                self.groups(),
                self.row_warps(),
                (1_usize << 16).div_ceil(self.row_warps()),
                shared.bars,
            ],
        );
        p.long(56, loaded.codes.address);
        p.words(
            64,
            &[
                self.row_bytes() / CHUNK_BYTES,
                usize::from(cut.dependent),
                m,
                if several { magic(m) } else { 0 },
                0,
                shared.scales,
                shared.sums,
                shared.sums_pitch,
            ],
        );
        p.long(96, loaded.vectors.address);
        p.long(104, self.row_bytes() as u64);
        if let Some(scales) = loaded.vector_scales {
            p.long(112, scales.address);
        }
        p.layout(120, extras.vector_layout, blocks);
        p.long(136, extras.vector_layout.bytes(1, blocks) as u64);
        p.long(144, loaded.scales.address);
        let (row, group) = match extras.weight_layout {
            ScaleLayout::Linear => (blocks, 4),
            ScaleLayout::Tiled128x4 => (blocks / 4 * 512, 512),
        };
        p.words(152, &[row, group]);
        loaded.epilogue(&mut p, 160, 0);
        p.into_bytes()
    }
}

impl Launched for Run<'_> {
    fn loaded(&self) -> &Loaded<'_> {
        &self.loaded
    }

    fn cut(&self) -> &dyn Debug {
        &self.cut
    }

    fn launches(&self) -> Vec<(Launch, String)> {
        vec![self.launched()]
    }

    fn roundings(&self) -> u32 {
        self.cut.roundings(self.loaded.shape())
    }
}
