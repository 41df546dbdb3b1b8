//! The names of things: paths, element types, scale layouts. Everything may know them; they know nothing.

/// Declares an enumeration whose values have names, each written once.
#[cfg_attr(feature = "unstable", macro_export)]
macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$what:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$what])* $value,)*
        }

        impl $type {
            /// All values, in the order in which they are declared.
            pub const ALL: [Self; [$(Self::$value),*].len()] = [$(Self::$value),*];

            /// The name in messages, tables, flags and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $name),* }
            }

            /// The value of a name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                // Padded like a string where a table asks for it.
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use named;

named! {
    /// One of the ways to compute a GEMV: which part of the machine does the work. `NVFP4_GEMV_PATH` takes their names.
    GemvPath {
        /// The CPU, with the widest vector instructions it has.
        Cpu = "cpu",
        /// A GPU's CUDA cores, sm_80 and up.
        CudaCore = "cuda-core",
        /// Blackwell's block-scaled tensor cores: tcgen05 on sm_100 and sm_103, block-scaled mma.sync on sm_120 and
        /// sm_121. Verified in simulation, not yet on hardware.
        TensorCore = "tensor-core",
    }
}

named! {
    /// The element type of the vectors.
    Activation {
        /// E2M1 with block scales and a global scale.
        Nvfp4 = "nvfp4",
        /// IEEE half precision.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE single precision.
        F32 = "f32",
    }
}

named! {
    /// How close to f16, bf16 and f32 vectors those have to be that are multiplied in their place:
    /// [`Options::vector_accuracy`](crate::Options::vector_accuracy).
    VectorAccuracy {
        /// The vectors themselves are multiplied.
        Exact = "exact",
        /// Three [digits](crate::Nvfp4Vectors::with_digits): an element is off by at most 2^-9 of the largest magnitude
        /// of its block of 16, as rounding to bf16 may change that largest one.
        Bf16 = "bf16",
        /// Four digits, 2^-12, as much as rounding to f16.
        F16 = "f16",
        /// Five digits, 2^-15: for vectors whose large elements stand beside small ones that matter.
        Finest = "finest",
    }
}

impl VectorAccuracy {
    /// The digits that are close enough; `None` where the vectors themselves are multiplied.
    pub const fn digits(self) -> Option<usize> {
        match self {
            Self::Exact => None,
            Self::Bf16 => Some(3),
            Self::F16 => Some(4),
            Self::Finest => Some(5),
        }
    }
}

named! {
    /// A floating-point element: of the result, or of vectors that are not NVFP4.
    FloatType {
        /// IEEE half precision.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE single precision.
        F32 = "f32",
    }
}

impl FloatType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

named! {
    /// The order of the block scales of a `rows x K` operand in memory.
    ScaleLayout {
        /// Row-major `[rows][K/16]`, as checkpoints store it.
        Linear = "linear",
        /// Atoms of 128 rows x 4 scales (cuBLASLt's `VEC16_UE4M3`), as block-scaled tensor-core
        /// instructions read it. Rows are padded to a multiple of 128, scales of a row to a
        /// multiple of 4; the padding's content is never used.
        ///
        /// Source: cuBLAS documentation, "1D block scaling factors layout".
        Tiled128x4 = "128x4",
    }
}

impl ScaleLayout {
    /// Rows of an atom of [`Tiled128x4`](Self::Tiled128x4).
    pub const ATOM_ROWS: usize = 128;
    /// Blocks of K in such an atom.
    pub const ATOM_BLOCKS: usize = 4;

    /// Bytes that the scales of `rows` rows of `blocks` blocks take, padding included (one batch). `usize::MAX`,
    /// which no buffer has, where they are more than that; a [`Shape`](crate::Shape)'s never are.
    pub const fn bytes(self, rows: usize, blocks: usize) -> usize {
        let padded = match self {
            Self::Linear => (Some(rows), Some(blocks)),
            Self::Tiled128x4 => (
                rows.checked_next_multiple_of(Self::ATOM_ROWS),
                blocks.checked_next_multiple_of(Self::ATOM_BLOCKS),
            ),
        };
        match padded {
            (Some(rows), Some(blocks)) => rows.saturating_mul(blocks),
            _ => usize::MAX,
        }
    }

    /// The one that this is not.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Linear => Self::Tiled128x4,
            Self::Tiled128x4 => Self::Linear,
        }
    }

    /// Byte offset of the scale of block `block` of row `row`, within one batch.
    ///
    /// ```
    /// use nvfp4_gemv::ScaleLayout;
    /// assert_eq!(ScaleLayout::Linear.offset(2, 3, 8), 19);
    /// // Row 33 is in the second quarter of its atom, block 5 in the row block's second atom.
    /// assert_eq!(ScaleLayout::Tiled128x4.offset(33, 5, 8), 512 + 16 + 4 + 1);
    /// ```
    pub const fn offset(self, row: usize, block: usize, blocks: usize) -> usize {
        match self {
            Self::Linear => row * blocks + block,
            Self::Tiled128x4 => {
                let atoms = blocks.div_ceil(4);
                (row / 128 * atoms + block / 4) * 512
                    + row % 32 * 16
                    + row % 128 / 32 * 4
                    + block % 4
            }
        }
    }
}

named! {
    /// The order of rows of layers that are joined to one matrix.
    RowOrder {
        /// All rows of the first layer, then all of the second.
        Stacked = "stacked",
        /// The first row of each layer, then the second of each. The layers have equally many.
        Interleaved = "interleaved",
    }
}
