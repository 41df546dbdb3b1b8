//! Properties of operands besides their shape, and operands by address.

use crate::gate::Gate;
use crate::shape::Strides;
use crate::tensor::GlobalScale;
use crate::types::{Activation, FloatType, RowOrder, ScaleLayout};

/// Properties of operands that dispatch and kernels ask about, besides their shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operands {
    /// The vectors' element type.
    pub activation: Activation,
    /// Layout of the weights' block scales.
    pub weight_layout: ScaleLayout,
    /// Layout of NVFP4 vectors' block scales; linear for other vectors, which have none.
    pub vector_layout: ScaleLayout,
    /// [Digits](crate::Nvfp4Vectors::with_digits) of a vector; 1 but for NVFP4 vectors that are made of several.
    pub digits: usize,
    /// Alignment of addresses and strides.
    pub alignment: Alignment,
    /// Bytes of the workspace that the call is given, or 0. Some kernels need one, and are not chosen without it;
    /// others divide their work otherwise then. See [`RawWorkspace`].
    pub workspace: u64,
    /// Whether each batch says which matrix it has.
    pub select: bool,
    /// Matrices that there are to select from; 0 where batches do not select.
    pub matrices: usize,
    /// Whether no two batches are expected to select the same matrix.
    pub distinct: bool,
    /// Whether these ids are late: a chained launch then asks for weights only when the launch before has ended.
    pub late: bool,
    /// Whether the vectors are elements that the kernel quantises when it reads them: [`RawVectors::OnRead`].
    pub on_read: bool,
}

impl Operands {
    /// Aligned operands whose scales all lie in `layout`. Vectors without scales count as linear.
    pub fn new(activation: Activation, layout: ScaleLayout) -> Self {
        Self {
            activation,
            weight_layout: layout,
            vector_layout: match activation {
                Activation::Nvfp4 => layout,
                _ => ScaleLayout::Linear,
            },
            digits: 1,
            alignment: Alignment::BEST,
            workspace: 0,
            select: false,
            matrices: 0,
            distinct: false,
            late: false,
            on_read: false,
        }
    }

    /// These operands with a workspace of so many bytes; [`u64::MAX`] asks what would be chosen if there were always
    /// enough.
    #[must_use]
    pub fn with_workspace(self, bytes: u64) -> Self {
        Self {
            workspace: bytes,
            ..self
        }
    }

    /// The weights' scales are in the 128x4 layout.
    pub(crate) fn tiled(&self) -> bool {
        self.weight_layout == ScaleLayout::Tiled128x4
    }
}

/// Powers of two, 16 at most, that addresses in bytes are multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alignment {
    /// The weights' codes.
    pub codes: u32,
    /// The weights' scales.
    pub scales: u32,
    /// NVFP4 vectors' codes and scales, and the strides that are used; 16 for others.
    pub vectors: u32,
    /// The codes alone, and their strides.
    pub vector_codes: u32,
    /// The scales alone, and their strides: in the linear layout also the one from a vector to the next, which
    /// `vectors` leaves out.
    pub vector_scales: u32,
}

impl Alignment {
    /// The most that any kernel asks for.
    pub const BEST: Self = Self {
        codes: 16,
        scales: 16,
        vectors: 16,
        vector_codes: 16,
        vector_scales: 16,
    };

    /// The alignment that every operand has.
    pub const LEAST: Self = Self {
        codes: 8,
        scales: 1,
        vectors: 1,
        vector_codes: 1,
        vector_scales: 1,
    };

    /// The alignment of all of these addresses and strides together.
    pub(crate) fn of(values: &[u64]) -> u32 {
        let bits = values.iter().fold(0, |bits, value| bits | value);
        1 << bits.trailing_zeros().min(4)
    }

    /// Everything but the scales of vectors behind the first one is a multiple of 16 bytes, the most that one copy
    /// instruction takes.
    pub fn is_16(&self) -> bool {
        self.codes.min(self.scales).min(self.vectors) >= 16
    }
}

/// NVFP4 weights by address; see [`Weights`](crate::Weights).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawWeights {
    /// Packed E2M1 codes `[L][M][K/2]`, 8-byte aligned; with [`select`](Self::select) of as many matrices as it says.
    /// With 16-byte alignment there are faster kernels.
    pub codes: u64,
    /// E4M3 block scales, densely packed batches; 4-byte aligned in the 128x4 layout.
    pub scales: u64,
    /// Layout of the scales.
    pub layout: ScaleLayout,
    /// The global scale.
    pub global: GlobalScale,
    /// f32 factors of the rows, 4-byte aligned, or 0.
    pub row_alpha: u64,
    /// Elements from one matrix's row factors to the next's: 0 (shared) or M.
    pub row_alpha_batch_stride: usize,
    /// The matrix that each batch has; `None`: batch l has matrix l.
    pub select: Option<RawSelect>,
}

/// The matrix of the weights that each batch has, by address; see [`Weights::select`](crate::Weights::select).
///
/// There are [`matrices`](Self::matrices) of codes, scales, row factors and bias then. A batch with the number -1 has no
/// matrix: its results are what the residual alone gives, or 0. A batch with another number that is none of theirs has
/// NaN as its results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawSelect {
    /// i32 numbers `[L]`, 4-byte aligned. They are complete when the launch may start; for a chained launch, as weights
    /// are, unless they are [late](Self::late).
    pub ids: u64,
    /// Whether a launch of the chain may write the ids: the launch right before a chained launch, or one further back. Then
    /// the chained launch reads them, and asks for weights, only when the launches before it have ended. Otherwise a
    /// chained launch asks for weights before.
    pub late: bool,
    /// Whether no two batches are expected to select the same matrix, as `Weights::distinct` says on a device.
    pub distinct: bool,
    /// Matrices that there are: from one to [`Shape::MAX_DIM`](crate::Shape::MAX_DIM).
    pub matrices: usize,
}

/// Vectors by address; see [`Vectors`](crate::Vectors).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RawVectors {
    /// 4-bit activations.
    Nvfp4 {
        /// Packed E2M1 codes, 8-byte aligned.
        codes: u64,
        /// Their strides in bytes, multiples of 8. A batch stride of 0, here and below: all batches have the same.
        code_strides: Strides,
        /// E4M3 block scales; any alignment.
        scales: u64,
        /// Layout of the scales.
        layout: ScaleLayout,
        /// Their strides in bytes; the 128x4 layout uses the batch stride only.
        scale_strides: Strides,
        /// The global scale of all vectors.
        global: GlobalScale,
        /// f32 factors `[L][N]`, 4-byte aligned, or 0.
        vector_alpha: u64,
        /// [Digits](crate::Nvfp4Vectors::with_digits) of a vector, usually 1: codes and scales are of N times so many
        /// vectors, and so are their strides.
        digits: usize,
    },
    /// 16- or 32-bit activations.
    Dense {
        /// Their element type.
        element: FloatType,
        /// The elements, 16-byte aligned.
        values: u64,
        /// Strides in bytes, multiples of 16. A batch stride of 0: all batches have the same vectors.
        strides: Strides,
    },
    /// 4-bit activations that the kernel makes of f16, bf16 or f32 elements when it reads them. Results have the bits of
    /// two launches: `raw::quantize` with the same operands, and a product with the same config and what that wrote as
    /// [`Nvfp4`](Self::Nvfp4). So a vector that holds a NaN or an infinity has NaN as its results.
    OnRead(RawOnRead),
}

/// Elements that become NVFP4 vectors `[L][N][K]` when a kernel reads them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawOnRead {
    /// Their type.
    pub element: FloatType,
    /// The elements, 16-byte aligned: those of the vectors, or of vectors `[L][N][2K]` of which a gate makes them.
    pub values: u64,
    /// Strides in bytes, multiples of 16. A batch stride of 0: all batches have the same vectors.
    pub strides: Strides,
    /// So many batches that follow each other have the same vectors, usually 1. There are L / copies batches of elements.
    pub copies: usize,
    /// The gate, and the order of its two halves; or none.
    pub gate: Option<(Gate, RowOrder)>,
    /// The global scale of all vectors; or none: each vector's largest magnitude / 2688, as the quantiser computes it.
    pub global: Option<GlobalScale>,
}

impl RawVectors {
    /// Digits of a vector.
    pub(crate) fn digits(&self) -> usize {
        match self {
            Self::Nvfp4 { digits, .. } => *digits,
            Self::Dense { .. } | Self::OnRead(_) => 1,
        }
    }

    /// The vectors' element type.
    pub fn activation(&self) -> Activation {
        match self {
            Self::Nvfp4 { .. } | Self::OnRead(_) => Activation::Nvfp4,
            Self::Dense { element, .. } => match element {
                FloatType::F16 => Activation::F16,
                FloatType::Bf16 => Activation::Bf16,
                FloatType::F32 => Activation::F32,
            },
        }
    }
}

/// Device memory for intermediate data of a call, by address: vectors in the order in which a kernel reads them, for
/// example. Kernels that need no workspace run without one. [`workspace_bytes`](crate::dispatch::workspace_bytes) says
/// how much the kernel that would be chosen needs.
///
/// The content before a call does not matter, except for [the front](Self::COUNTER_BYTES), and neither does the content
/// afterwards. Calls that may run at the same time need one workspace each: calls in one stream can share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawWorkspace {
    /// [`ALIGNMENT`](Self::ALIGNMENT)-byte aligned; 0 for none.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

impl RawWorkspace {
    /// No workspace.
    pub const NONE: Self = Self {
        address: 0,
        bytes: 0,
    };
    /// Bytes that the address is a multiple of, as that of every allocation is.
    pub const ALIGNMENT: u64 = 256;
    /// Bytes in front that must be zeros before the first call that uses it, and that every call leaves zeros: some
    /// kernels count in them who has come. `Workspace`, of feature `device`, sees to the zeros.
    pub const COUNTER_BYTES: u64 = 8192;
}

/// The output by address, `[L][N][M]`, and the numbers that are added to it; see [`Output`](crate::Output).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawOutput {
    /// Aligned to its elements.
    pub address: u64,
    /// The element type.
    pub element: FloatType,
    /// Strides in bytes, multiples of an element; `None` for densely packed results. Less than 2^31 elements from one
    /// vector's results to the next one's.
    pub strides: Option<Strides>,
    /// f32 numbers that are added to rows, 4-byte aligned, or 0.
    pub bias: u64,
    /// Elements from one matrix's bias to the next's: 0 (shared) or M.
    pub bias_batch_stride: usize,
    /// Address of numbers that are added to results, or 0. The numbers have the output's type and strides. They are the
    /// output's own, at its address, or none of them lies between the output's first byte and its last.
    pub residual: u64,
}

impl RawOutput {
    /// Densely packed results to which nothing is added.
    pub const fn packed(address: u64, element: FloatType) -> Self {
        Self {
            address,
            element,
            strides: None,
            bias: 0,
            bias_batch_stride: 0,
            residual: 0,
        }
    }
}

impl Operands {
    /// The properties of operands at these addresses.
    pub fn of(shape: &crate::Shape, weights: &RawWeights, vectors: &RawVectors) -> Self {
        let (vector_layout, of_vectors) = match vectors {
            RawVectors::Nvfp4 {
                codes,
                code_strides,
                scales,
                layout,
                scale_strides,
                ..
            } => {
                // The strides of a single vector or batch are not used.
                let rows = shape.n().saturating_mul(vectors.digits());
                let [row, scale_row] = match (rows, layout) {
                    (..=1, _) => [0, 0],
                    (_, ScaleLayout::Linear) => [code_strides.row, scale_strides.row],
                    (_, ScaleLayout::Tiled128x4) => [code_strides.row, 0],
                };
                let [batch, scale_batch] = match shape.l() {
                    0 | 1 => [0, 0],
                    _ => [code_strides.batch, scale_strides.batch],
                };
                let strides = [row, batch, scale_row, scale_batch].map(|stride| stride as u64);
                let [row, batch, scale_row, scale_batch] = strides;
                let aligned = Alignment {
                    vectors: Alignment::of(&[*codes, *scales, row, batch, scale_batch]),
                    vector_codes: Alignment::of(&[*codes, row, batch]),
                    vector_scales: Alignment::of(&[*scales, scale_row, scale_batch]),
                    ..Alignment::BEST
                };
                (*layout, aligned)
            }
            RawVectors::Dense { .. } | RawVectors::OnRead(_) => {
                (ScaleLayout::Linear, Alignment::BEST)
            }
        };
        Self {
            activation: vectors.activation(),
            weight_layout: weights.layout,
            vector_layout,
            digits: vectors.digits(),
            alignment: Alignment {
                codes: Alignment::of(&[weights.codes]),
                scales: Alignment::of(&[weights.scales]),
                ..of_vectors
            },
            workspace: 0,
            select: weights.select.is_some(),
            matrices: weights.select.map_or(0, |select| select.matrices),
            distinct: weights.select.is_some_and(|select| select.distinct),
            late: weights.select.is_some_and(|select| select.late),
            on_read: matches!(vectors, RawVectors::OnRead(_)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Dims, Shape};

    /// Strides that count for each alignment, with vectors whose scales lie 21 bytes apart.
    #[test]
    fn strides_that_are_used_count() {
        let of = |n, l, layout| {
            let shape = Shape::new(Dims { m: 8, n, k: 320, l }).unwrap();
            let weights = RawWeights {
                codes: 1 << 40,
                scales: 3 << 41,
                layout: ScaleLayout::Linear,
                global: GlobalScale::ONE,
                row_alpha: 0,
                row_alpha_batch_stride: 0,
                select: None,
            };
            let vectors = RawVectors::Nvfp4 {
                codes: 1 << 42,
                code_strides: Strides {
                    row: 168,
                    batch: 1 << 20,
                },
                scales: 1 << 43,
                layout,
                scale_strides: Strides {
                    row: 21,
                    batch: 1 << 20,
                },
                global: GlobalScale::ONE,
                vector_alpha: 0,
                digits: 1,
            };
            let alignment = Operands::of(&shape, &weights, &vectors).alignment;
            [
                alignment.vectors,
                alignment.vector_codes,
                alignment.vector_scales,
            ]
        };
        use ScaleLayout::{Linear, Tiled128x4};
        assert_eq!(of(1, 2, Linear), [16, 16, 16]);
        assert_eq!(of(3, 1, Linear), [8, 8, 1]);
        assert_eq!(of(3, 1, Tiled128x4), [8, 8, 16]);
    }
}
