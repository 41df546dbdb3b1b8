//! The 64-bit shared memory matrix descriptors of tcgen05 and wgmma, and the canonical layouts that
//! they share.
//!
//! Sources: PTX ISA "Shared memory descriptor", "Major-ness supported by Strides",
//! "Canonical Layouts", "Shared Memory Layout and Swizzling".

use super::swizzle::Swizzle;
use thiserror::Error;

/// A field of a descriptor that holds a value the ISA does not allow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum SmemDescError {
    #[error("reserved bits {bits} of the shared memory descriptor hold {value:#x}, not {want:#x}")]
    Reserved {
        bits: &'static str,
        value: u64,
        want: u64,
    },
    #[error("swizzling mode {0} is invalid")]
    Swizzle(u64),
    #[error("absolute leading-dimension addresses exist on sm_103a only")]
    AbsoluteMode,
    #[error("absolute leading-dimension mode needs {0}")]
    AbsoluteRestriction(&'static str),
    #[error("start address {address:#x} and base offset {base} disagree: {why}")]
    BaseOffset {
        address: u32,
        base: u32,
        why: &'static str,
    },
    #[error("{0}")]
    Layout(&'static str),
    #[error(
        "rows of {bytes} bytes starting {within} bytes into a {span}-byte swizzle span leave it"
    )]
    CrossesSpan { bytes: u32, within: u32, span: u32 },
    #[error(
        "{swizzle:?} does not support {major:?}-major operands of {element_bytes}-byte elements"
    )]
    Unsupported {
        swizzle: Swizzle,
        major: Major,
        element_bytes: u32,
    },
}

/// The index of an operand that runs along consecutive bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Major {
    /// K is contiguous: not transposed.
    K,
    /// M (of A) or N (of B) is contiguous: transposed.
    Mn,
}

/// A decoded descriptor. Offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmemDesc {
    /// Matrix start address in the shared window (18 bits, 16-byte aligned).
    pub start: u32,
    /// Leading dimension byte offset, or absolute address in absolute mode.
    pub leading: u32,
    /// Stride dimension byte offset.
    pub stride: u32,
    /// Matrix base offset, 0..8.
    pub base_offset: u32,
    /// Bit 52: the leading dimension is an absolute address (sm_103a only).
    pub absolute: bool,
    /// Swizzling mode.
    pub swizzle: Swizzle,
}

impl SmemDesc {
    /// Decodes a descriptor, refusing every reserved bit and invalid mode.
    pub fn decode(desc: u64) -> Result<Self, SmemDescError> {
        let field = |lo: u32, bits: u32| (desc >> lo) & ((1 << bits) - 1);
        let reserved = |bits, value, want| {
            if value == want {
                Ok(())
            } else {
                Err(SmemDescError::Reserved { bits, value, want })
            }
        };
        reserved("14-15", field(14, 2), 0)?;
        reserved("30-31", field(30, 2), 0)?;
        reserved("46-48", field(46, 3), 0b001)?;
        reserved("53-60", field(53, 8), 0)?;
        let swizzle = match field(61, 3) {
            0 => Swizzle::None,
            1 => Swizzle::B128Atom32,
            2 => Swizzle::B128,
            4 => Swizzle::B64,
            6 => Swizzle::B32,
            other => return Err(SmemDescError::Swizzle(other)),
        };
        let desc = Self {
            start: (field(0, 14) as u32) << 4,
            leading: (field(16, 14) as u32) << 4,
            stride: (field(32, 14) as u32) << 4,
            base_offset: field(49, 3) as u32,
            absolute: field(52, 1) == 1,
            swizzle,
        };
        if desc.absolute {
            if swizzle != Swizzle::B128 {
                return Err(SmemDescError::AbsoluteRestriction(
                    "128B swizzling, 16B atoms",
                ));
            }
            if desc.base_offset != 0 {
                return Err(SmemDescError::AbsoluteRestriction("a base offset of 0"));
            }
            return Err(SmemDescError::AbsoluteMode);
        }
        Ok(desc)
    }

    /// Decodes a descriptor of `wgmma`: PTX ISA, "Matrix Descriptor Format". Bits that its table does
    /// not name are refused unless they are zero.
    pub fn decode_wgmma(desc: u64) -> Result<Self, SmemDescError> {
        let field = |lo: u32, bits: u32| (desc >> lo) & ((1 << bits) - 1);
        for (bits, lo, n) in [
            ("14-15", 14, 2),
            ("30-31", 30, 2),
            ("46-48", 46, 3),
            ("52-61", 52, 10),
        ] {
            let value = field(lo, n);
            if value != 0 {
                return Err(SmemDescError::Reserved {
                    bits,
                    value,
                    want: 0,
                });
            }
        }
        Ok(Self {
            start: (field(0, 14) as u32) << 4,
            leading: (field(16, 14) as u32) << 4,
            stride: (field(32, 14) as u32) << 4,
            base_offset: field(49, 3) as u32,
            absolute: false,
            swizzle: match field(62, 2) {
                0 => Swizzle::None,
                1 => Swizzle::B128,
                2 => Swizzle::B64,
                _ => Swizzle::B32,
            },
        })
    }

    /// Encodes the descriptor of tcgen05; the inverse of [`SmemDesc::decode`] for descriptors that it accepts.
    pub fn encode(&self) -> u64 {
        let offset = |x: u32| u64::from((x & 0x3ffff) >> 4);
        let mode = match self.swizzle {
            Swizzle::None => 0,
            Swizzle::B128Atom32 => 1,
            Swizzle::B128 => 2,
            Swizzle::B64 => 4,
            Swizzle::B32 => 6,
            _ => 7,
        };
        offset(self.start)
            | offset(self.leading) << 16
            | offset(self.stride) << 32
            | 1 << 46
            | u64::from(self.base_offset & 7) << 49
            | u64::from(self.absolute) << 52
            | mode << 61
    }

    /// Checks that a matrix of `row_bytes` bytes along K (or `element_bytes`-byte elements, MN
    /// major) can be addressed, and returns its layout.
    pub fn layout(
        &self,
        major: Major,
        row_bytes: u32,
        element_bytes: u32,
    ) -> Result<Layout, SmemDescError> {
        let bad = SmemDescError::Unsupported {
            swizzle: self.swizzle,
            major,
            element_bytes,
        };
        match (major, self.swizzle.span()) {
            (Major::K, Some(span)) => {
                // The leading offset is "not used, assumed to be 1": K may not leave the span.
                let within = self.start % span;
                if row_bytes > span || within + row_bytes > span {
                    return Err(SmemDescError::CrossesSpan {
                        bytes: row_bytes,
                        within,
                        span,
                    });
                }
            }
            (Major::K, None) => {}
            // Table "Valid Combinations of Type-Size, Major-ness and Swizzling".
            (Major::Mn, _) => {
                let ok = match element_bytes {
                    1 | 2 => self.swizzle != Swizzle::B128Atom32,
                    4 => self.swizzle == Swizzle::B128Atom32,
                    _ => false,
                };
                if !ok {
                    return Err(bad);
                }
            }
        }
        self.check_base_offset()?;
        Ok(Layout {
            desc: *self,
            major,
            element_bytes,
        })
    }

    /// The base offset names the line at which a pattern starts that is not aligned to its
    /// period. Modes with a shorter period than 8 lines can only name as many lines as it has.
    fn check_base_offset(&self) -> Result<(), SmemDescError> {
        let (address, base) = (self.start, self.base_offset);
        let lines = self.swizzle.period() / 128;
        let fail = |why| Err(SmemDescError::BaseOffset { address, base, why });
        if base != 0 && lines == 0 {
            return fail("without swizzling there is no pattern to offset");
        }
        Ok(())
    }
}

/// A matrix in shared memory: where its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    desc: SmemDesc,
    major: Major,
    element_bytes: u32,
}

impl Layout {
    /// The pattern that its bytes lie in.
    pub fn swizzle(&self) -> Swizzle {
        self.desc.swizzle
    }

    /// K-major: the absolute shared address of byte `kb` of row `row` (a row of A is an m, a
    /// row of B an n). For MN-major see [`Layout::element_address`].
    pub fn byte_address(&self, row: u32, kb: u32) -> u32 {
        let d = &self.desc;
        let group = (row / 8).wrapping_mul(d.stride);
        let linear = match d.swizzle.span() {
            None => {
                let column = (kb / 16).wrapping_mul(d.leading);
                d.start
                    .wrapping_add(group)
                    .wrapping_add((row % 8 * 16).wrapping_add(kb % 16))
                    .wrapping_add(column)
            }
            Some(span) => d
                .start
                .wrapping_add(group)
                .wrapping_add((row % 8 * span).wrapping_add(kb)),
        };
        d.swizzle.apply_with_base(linear, d.base_offset)
    }

    /// For a K-major operand: addresses of the two 16-byte slots of each of the first eight rows, and the distance of
    /// the next eight rows' slots behind them. `None` unless all groups of eight of so many rows lie in the pattern as
    /// the first does.
    pub fn groups(&self, rows: u32) -> Option<([[u32; 2]; 8], u32)> {
        let (stride, last) = (self.desc.stride, rows / 8);
        let end = u64::from(self.desc.start) + u64::from(last + 1) * u64::from(stride.max(4096));
        let same = stride.is_multiple_of(self.desc.swizzle.period()) && end < 1 << 32;
        same.then(|| (std::array::from_fn(|row| self.slots(row as u32)), stride))
    }

    /// K-major: where the two 16-byte slots of a row are.
    fn slots(&self, row: u32) -> [u32; 2] {
        [0, 16].map(|byte| self.byte_address(row, byte))
    }

    /// K-major: where the two 16-byte slots of each of the first `rows` rows are.
    pub fn rows(&self, rows: u32) -> impl Iterator<Item = [u32; 2]> {
        let groups = self.groups(rows);
        (0..rows).map(move |row| match groups {
            Some((first, stride)) => first[row as usize % 8].map(|at| at + row / 8 * stride),
            None => self.slots(row),
        })
    }

    /// The absolute shared address of element (`mn`, `k`), for either majorness and elements
    /// of at least a byte.
    pub fn element_address(&self, mn: u32, k: u32) -> u32 {
        if self.major == Major::K {
            return self.byte_address(mn, k.wrapping_mul(self.element_bytes));
        }
        let d = &self.desc;
        let mnb = mn.wrapping_mul(self.element_bytes);
        // Bytes of MN that are contiguous, and how many k's make one repetition.
        let (width, depth) = match d.swizzle.span() {
            None => (16, 8),
            Some(span) if d.swizzle == Swizzle::B128Atom32 => (span, 4),
            Some(span) => (span, 8),
        };
        let (blocks_mn, blocks_k) = (mnb / width, k / depth);
        // "Interleave": MN blocks stride by SBO and K blocks by LBO; swizzled, the reverse.
        let (mn_stride, k_stride) = if width == 16 {
            (d.stride, d.leading)
        } else {
            (d.leading, d.stride)
        };
        let linear = d
            .start
            .wrapping_add(blocks_mn.wrapping_mul(mn_stride))
            .wrapping_add(blocks_k.wrapping_mul(k_stride))
            .wrapping_add(k % depth * width + mnb % width);
        d.swizzle.apply_with_base(linear, d.base_offset)
    }

    /// Is K contiguous?
    pub fn is_k_major(&self) -> bool {
        self.major == Major::K
    }
}
