//! The 32-bit instruction descriptors of `tcgen05.mma`.
//!
//! Source: PTX ISA "Instruction descriptor", its three tables, and "Transpose and Negate
//! operations". Every bit is either a field with its values checked or reserved and zero.

pub use super::element::{Accumulator, Element, ScaleType};
use super::smem_desc::Major;
use thiserror::Error;

named! {
    /// `.kind` of a matrix instruction.
    #[allow(missing_docs)]
    Kind {
        F16 "f16",
        Tf32 "tf32",
        F8f6f4 "f8f6f4",
        I8 "i8",
        Mxf8f6f4 "mxf8f6f4",
        Mxf4 "mxf4",
        Mxf4nvf4 "mxf4nvf4",
    }
}

impl Kind {
    /// Does this kind take `.block_scale`?
    pub fn is_block_scaled(self) -> bool {
        matches!(self, Kind::Mxf8f6f4 | Kind::Mxf4 | Kind::Mxf4nvf4)
    }

    /// Elements along K of a dense instruction (K = 96 of sm_103a is not modelled).
    pub fn k(self) -> u32 {
        match self {
            Kind::Tf32 => 8,
            Kind::F16 => 16,
            Kind::F8f6f4 | Kind::I8 | Kind::Mxf8f6f4 => 32,
            Kind::Mxf4 | Kind::Mxf4nvf4 => 64,
        }
    }
}

/// A field that holds a value the ISA does not allow for the kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "instruction descriptor {desc:#010x} of kind {kind:?}: {field} (bits {bits}) holds {value}"
)]
pub struct IdescError {
    /// The whole descriptor.
    pub desc: u32,
    /// The kind it was decoded for.
    pub kind: Kind,
    /// Name of the field, or "reserved".
    pub field: &'static str,
    /// The bits.
    pub bits: &'static str,
    /// Value of the bits.
    pub value: u32,
}

/// A decoded instruction descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Idesc {
    /// The kind it belongs to.
    pub kind: Kind,
    /// Sparsity enabled (bit 2).
    pub sparse: bool,
    /// Sparsity selector (not for block-scaled kinds).
    pub sparsity_selector: u8,
    /// Saturate, kind::i8 only.
    pub saturate: bool,
    /// Type of D.
    pub d: Accumulator,
    /// Type of A.
    pub a: Element,
    /// Type of B.
    pub b: Element,
    /// Negate A.
    pub negate_a: bool,
    /// Negate B.
    pub negate_b: bool,
    /// Majorness of A (transpose bit).
    pub a_major: Major,
    /// Majorness of B (transpose bit).
    pub b_major: Major,
    /// N.
    pub n: u32,
    /// M.
    pub m: u32,
    /// Maximum shift field of `.ws`.
    pub ws_shift: u8,
    /// Scale type; UE8M0 for kinds without scales.
    pub scale: ScaleType,
    /// Scale factor A ID.
    pub sfa_id: u8,
    /// Scale factor B ID.
    pub sfb_id: u8,
    /// Bit 31 of the 4-bit kinds: K = 96.
    pub k96: bool,
}

impl Idesc {
    /// Decodes a descriptor for `kind`, refusing reserved bits and invalid values.
    pub fn decode(desc: u32, kind: Kind) -> Result<Self, IdescError> {
        let get = |lo: u32, bits: u32| (desc >> lo) & ((1 << bits) - 1);
        let err = |field, bits, value| IdescError {
            desc,
            kind,
            field,
            bits,
            value,
        };
        let zero = |lo: u32, n: u32, bits: &'static str| match get(lo, n) {
            0 => Ok(()),
            value => Err(err("reserved", bits, value)),
        };
        let mut out = Self {
            kind,
            sparse: get(2, 1) == 1,
            sparsity_selector: 0,
            saturate: false,
            d: Accumulator::F32,
            a: Element::E2m1,
            b: Element::E2m1,
            negate_a: get(13, 1) == 1,
            negate_b: get(14, 1) == 1,
            a_major: if get(15, 1) == 1 { Major::Mn } else { Major::K },
            b_major: if get(16, 1) == 1 { Major::Mn } else { Major::K },
            n: get(17, 6) << 3,
            m: 0,
            ws_shift: 0,
            scale: ScaleType::Ue8m0,
            sfa_id: 0,
            sfb_id: 0,
            k96: false,
        };
        if out.n == 0 || out.n > 256 {
            return Err(err("N", "17-22", out.n));
        }
        zero(6, 1, "6")?;
        if kind.is_block_scaled() {
            zero(0, 2, "0-1")?;
            zero(3, 1, "3")?;
            zero(24, 3, "24-26")?;
            out.sfb_id = get(4, 2) as u8;
            out.sfa_id = get(29, 2) as u8;
            out.m = get(27, 2) << 7;
            out.scale = if get(23, 1) == 1 {
                ScaleType::Ue8m0
            } else {
                ScaleType::Ue4m3
            };
            if out.m == 0 || out.m > 256 {
                return Err(err("M", "27-28", out.m));
            }
            if kind != Kind::Mxf4nvf4 && out.scale == ScaleType::Ue4m3 {
                return Err(err("scale matrix type", "23", 0));
            }
        } else {
            out.sparsity_selector = get(0, 2) as u8;
            if !out.sparse && out.sparsity_selector != 0 {
                return Err(err("sparsity selector", "0-1", get(0, 2)));
            }
            if out.sparse && matches!(kind, Kind::I8 | Kind::F8f6f4) && get(0, 2) != 0 {
                return Err(err("sparsity selector", "0-1", get(0, 2)));
            }
            out.saturate = get(3, 1) == 1;
            if out.saturate && kind != Kind::I8 {
                return Err(err("saturate", "3", 1));
            }
            zero(23, 1, "23")?;
            zero(29, 1, "29")?;
            out.ws_shift = get(30, 2) as u8;
            out.m = get(24, 5) << 4;
            if !matches!(out.m, 32 | 64 | 128 | 256) {
                return Err(err("M", "24-28", out.m));
            }
            out.d = match (get(4, 2), kind) {
                (0, Kind::F16 | Kind::F8f6f4) => Accumulator::F16,
                (1, Kind::F16 | Kind::F8f6f4 | Kind::Tf32) => Accumulator::F32,
                (2, Kind::I8) => Accumulator::S32,
                (value, _) => return Err(err("dtype", "4-5", value)),
            };
        }
        let b_bits = if matches!(kind, Kind::Mxf4 | Kind::Mxf4nvf4) {
            zero(12, 1, "12")?;
            2
        } else {
            3
        };
        let (a, b) = (get(7, 3), get(10, b_bits));
        out.a = element(kind, a).ok_or(err("atype", "7-9", a))?;
        out.b = element(kind, b).ok_or(err("btype", "10-12", b))?;
        out.check_modes(desc)?;
        Ok(out)
    }

    fn check_modes(&mut self, desc: u32) -> Result<(), IdescError> {
        let kind = self.kind;
        let err = |field, bits, value| {
            Err(IdescError {
                desc,
                kind,
                field,
                bits,
                value,
            })
        };
        if kind == Kind::I8 && (self.negate_a || self.negate_b) {
            return err("negate", "13-14", (desc >> 13) & 3);
        }
        // dtype f16 takes f16 inputs only ("Various combinations of .kind and shapes").
        if kind == Kind::F16
            && self.d == Accumulator::F16
            && (self.a, self.b) != (Element::F16, Element::F16)
        {
            return err("atype/btype with an f16 D", "7-12", (desc >> 7) & 0x3f);
        }
        match kind {
            Kind::Mxf4 | Kind::Mxf4nvf4 => {
                if (desc >> 15) & 3 != 0 {
                    return err("transpose", "15-16", (desc >> 15) & 3);
                }
                for (field, bits, id) in [
                    ("scale factor B id", "4-5", self.sfb_id),
                    ("scale factor A id", "29-30", self.sfa_id),
                ] {
                    if id & 1 != 0 {
                        return err(field, bits, u32::from(id));
                    }
                }
                self.k96 = desc >> 31 == 1;
            }
            Kind::Mxf8f6f4 if desc >> 31 != 0 => return err("reserved", "31", 1),
            Kind::F8f6f4 | Kind::Mxf8f6f4 => {}
            _ => {}
        }
        // Transposed operands exist for whole-byte elements ("Type-Size, Major-ness").
        let whole = |e| !matches!(e, Element::E2m1 | Element::E2m3 | Element::E3m2);
        if self.a_major == Major::Mn && !whole(self.a) {
            return err("transpose of a sub-byte A", "15", 1);
        }
        if self.b_major == Major::Mn && !whole(self.b) {
            return err("transpose of a sub-byte B", "16", 1);
        }
        Ok(())
    }

    /// Encodes the descriptor; the inverse of [`Idesc::decode`] for descriptors that it accepts.
    pub fn encode(&self) -> u32 {
        let bit = |b: bool, at: u32| u32::from(b) << at;
        let common = bit(self.sparse, 2)
            | code(self.kind, self.a) << 7
            | code(self.kind, self.b) << 10
            | bit(self.negate_a, 13)
            | bit(self.negate_b, 14)
            | bit(self.a_major == Major::Mn, 15)
            | bit(self.b_major == Major::Mn, 16)
            | (self.n >> 3) << 17;
        if self.kind.is_block_scaled() {
            common
                | u32::from(self.sfb_id) << 4
                | bit(self.scale == ScaleType::Ue8m0, 23)
                | (self.m >> 7) << 27
                | u32::from(self.sfa_id) << 29
                | bit(self.k96, 31)
        } else {
            let d = match self.d {
                Accumulator::F16 => 0,
                Accumulator::F32 => 1,
                Accumulator::S32 => 2,
            };
            common
                | u32::from(self.sparsity_selector)
                | bit(self.saturate, 3)
                | d << 4
                | (self.m >> 4) << 24
                | u32::from(self.ws_shift) << 30
        }
    }

    /// A dense, K-major descriptor to start from, in tests and examples.
    pub fn dense(kind: Kind, a: Element, b: Element, d: Accumulator, m: u32, n: u32) -> Self {
        Self {
            kind,
            sparse: false,
            sparsity_selector: 0,
            saturate: false,
            d,
            a,
            b,
            negate_a: false,
            negate_b: false,
            a_major: Major::K,
            b_major: Major::K,
            n,
            m,
            ws_shift: 0,
            scale: ScaleType::Ue8m0,
            sfa_id: 0,
            sfb_id: 0,
            k96: false,
        }
    }
}

fn element(kind: Kind, value: u32) -> Option<Element> {
    use Element::*;
    Some(match (kind, value) {
        (Kind::F16, 0) => F16,
        (Kind::F16, 1) => Bf16,
        (Kind::Tf32, 2) => Tf32,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 0) => E4m3,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 1) => E5m2,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 3) => E2m3,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 4) => E3m2,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 5) => E2m1,
        (Kind::I8, 0) => U8,
        (Kind::I8, 1) => S8,
        (Kind::Mxf4 | Kind::Mxf4nvf4, 1) => E2m1,
        _ => return None,
    })
}

fn code(kind: Kind, e: Element) -> u32 {
    (0..8).find(|v| element(kind, *v) == Some(e)).unwrap_or(7)
}
