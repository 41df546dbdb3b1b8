//! Pure models of the asynchronous machinery: TMA, mbarrier, tensor memory, tcgen05, wgmma, ordering.
//!
//! Each file models one thing of the PTX ISA, knows nothing of parsing or scheduling, and reports every broken rule as
//! a typed error. Nothing here guesses: behaviour that the ISA does not define and this crate has not modelled is an
//! `Unmodelled` error. Places where the text leaves room, and the choices made there, stand in
//! `docs/semantics-async.md`.

/// Declares an enumeration of the driver's, from number 0 on. Behind each enumerator stands its name there, without the
/// prefix of all names.
macro_rules! of_driver {
    (
        $(#[$about:meta])* $name:ident $prefix:literal {
            $($(#[$of:meta])* $enumerator:ident $rest:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$of])* $enumerator,)*
        }

        impl $name {
            /// Every enumerator, in the order of their numbers.
            pub const ALL: [Self; [$($rest),*].len()] = [$(Self::$enumerator),*];

            /// Decodes the driver's enumeration value.
            pub fn from_driver(value: u32) -> Option<Self> {
                Self::ALL.get(value as usize).copied()
            }
        }

        impl $crate::models::Enumeration for $name {
            const PREFIX: &'static str = $prefix;
            const NAMES: &'static [&'static str] = &[$($rest),*];
        }
    };
}

/// An enumeration of the driver's.
pub(crate) trait Enumeration {
    /// Prefix of all names of the enumeration.
    const PREFIX: &'static str;
    /// The rest of its names, from number 0 on.
    const NAMES: &'static [&'static str];
}

pub mod approx;
pub mod element;
pub mod hazard;
pub mod idesc;
mod matrix_sums;
pub mod mbarrier;
pub mod memory;
mod mma_number;
pub mod mma_sync;
pub mod relaxation;
pub mod smem_desc;
pub mod sums;
pub mod swizzle;
pub mod tcgen05_cp;
pub mod tcgen05_ld_st;
pub mod tcgen05_mma;
pub mod tensor_map;
pub mod tma;
pub mod tma_bulk;
pub mod tmem;
pub mod tmem_alloc;
mod versions;
pub mod wgmma;
pub mod wmma;
