//! The types of elements, sums and block scales that the matrix instructions share.

use crate::softfloat::{BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, Format, TF32};

named! {
    /// Type of the elements of A or B.
    #[allow(missing_docs)]
    Element {
        F16 "f16",
        Bf16 "bf16",
        Tf32 "tf32",
        E4m3 "e4m3",
        E5m2 "e5m2",
        S8 "s8",
        U8 "u8",
        S4 "s4",
        U4 "u4",
        E3m2 "e3m2",
        E2m3 "e2m3",
        E2m1 "e2m1",
        B1 "b1",
    }
}

impl Element {
    /// Whether only whole numbers are multiplied.
    pub fn is_integer(self) -> bool {
        self.format().is_none()
    }

    /// Bits an element takes in a register or in memory. Elements of `.kind::f8f6f4` have a byte each.
    pub(super) fn bits(self) -> u32 {
        match self {
            Self::Tf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 8,
            Self::E3m2 | Self::E2m3 | Self::E2m1 => 8,
            Self::S4 | Self::U4 => 4,
            Self::B1 => 1,
        }
    }

    /// The code in the bits that an element takes. Padding is not looked at: the lower bits of TF32. E2M1 stands in the
    /// central four bits of its byte, E3M2 and E2M3 in the lower six.
    pub(super) fn code(self, bits: u32) -> u32 {
        match self {
            Self::Tf32 => bits >> 13,
            Self::E3m2 | Self::E2m3 => bits & 0x3f,
            Self::E2m1 => bits >> 2 & 0xf,
            _ => bits,
        }
    }

    /// The value of an integer's bits.
    pub(super) fn integer(self, bits: u32) -> i64 {
        match self {
            Self::S8 => i64::from(bits as u8 as i8),
            Self::S4 => i64::from((bits << 4) as u8 as i8 >> 4),
            _ => i64::from(bits),
        }
    }

    /// The format of a float; `None` of an integer.
    pub(super) fn format(self) -> Option<Format> {
        match self {
            Self::F16 => Some(F16),
            Self::Bf16 => Some(BF16),
            Self::Tf32 => Some(TF32),
            Self::E4m3 => Some(E4M3),
            Self::E5m2 => Some(E5M2),
            Self::E3m2 => Some(E3M2),
            Self::E2m3 => Some(E2M3),
            Self::E2m1 => Some(E2M1),
            Self::S8 | Self::U8 | Self::S4 | Self::U4 | Self::B1 => None,
        }
    }
}

named! {
    /// Type of C and D.
    #[allow(missing_docs)]
    Accumulator {
        F16 "f16",
        F32 "f32",
        S32 "s32",
    }
}

impl Accumulator {
    /// Bits of a sum.
    pub(super) fn bits(self) -> usize {
        match self {
            Self::F16 => 16,
            Self::F32 | Self::S32 => 32,
        }
    }

    /// The format of sums of floats.
    pub(super) fn format(self) -> Format {
        match self {
            Self::F16 => F16,
            Self::F32 | Self::S32 => F32,
        }
    }
}

named! {
    /// Type of block scales.
    #[allow(missing_docs)]
    ScaleType {
        Ue8m0 "ue8m0",
        Ue4m3 "ue4m3",
    }
}
