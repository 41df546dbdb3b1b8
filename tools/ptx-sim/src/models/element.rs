//! The types of elements and sums that the matrix instructions of warps and warpgroups share.

use super::mma_number::Format;

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

    /// The format of a float; `None` of an integer.
    pub(super) fn format(self) -> Option<Format> {
        match self {
            Self::F16 => Some(Format::F16),
            Self::Bf16 => Some(Format::BF16),
            Self::Tf32 => Some(Format::TF32),
            Self::E4m3 => Some(Format::E4M3),
            Self::E5m2 => Some(Format::E5M2),
            Self::E3m2 => Some(Format::E3M2),
            Self::E2m3 => Some(Format::E2M3),
            Self::E2m1 => Some(Format::E2M1),
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
