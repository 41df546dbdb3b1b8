//! The floating-point elements of host and device buffers.

use std::fmt::Debug;

use half::{bf16, f16};

use crate::memory::{Buffer, Host, Memory};
use crate::types::FloatType;

/// f16, bf16 or f32: the element types of results, of residuals that are added to results, and of vectors that are
/// quantised.
pub trait Element: Copy + Debug + Send + Sync + Into<f32> + sealed::Sealed + 'static {
    /// Its type, as a value.
    const TYPE: FloatType;

    /// This number in f32; exact.
    fn to_f32(self) -> f32 {
        self.into()
    }

    /// A number in this type, rounded to nearest even.
    #[doc(hidden)]
    fn round(x: f32) -> Self;

    /// A buffer of such elements that is read.
    #[doc(hidden)]
    fn floats<'a, S: Memory>(values: S::Slice<'a, Self>) -> Floats<'a, S>;

    /// A buffer of such elements that is written.
    #[doc(hidden)]
    fn floats_mut<'a, S: Memory>(values: S::SliceMut<'a, Self>) -> FloatsMut<'a, S>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($element:ident = $variant:ident by $round:expr),+) => {
        /// Floats that are read, of one of the types.
        #[derive(Debug)]
        pub enum Floats<'a, S: Memory = Host> {
            $(#[allow(missing_docs)] $variant(S::Slice<'a, $element>),)+
        }

        /// Floats that are written, of one of the types.
        #[derive(Debug)]
        pub enum FloatsMut<'a, S: Memory = Host> {
            $(#[allow(missing_docs)] $variant(S::SliceMut<'a, $element>),)+
        }

        impl<S: Memory> Floats<'_, S> {
            pub(crate) fn element(&self) -> FloatType {
                match self { $(Self::$variant(_) => FloatType::$variant),+ }
            }

            pub(crate) fn count(&self) -> usize {
                match self { $(Self::$variant(values) => values.count()),+ }
            }
        }

        impl<S: Memory> FloatsMut<'_, S> {
            pub(crate) fn element(&self) -> FloatType {
                match self { $(Self::$variant(_) => FloatType::$variant),+ }
            }

            pub(crate) fn count(&self) -> usize {
                match self { $(Self::$variant(values) => values.count()),+ }
            }
        }

        $(
            impl sealed::Sealed for $element {}

            impl Element for $element {
                const TYPE: FloatType = FloatType::$variant;

                fn round(x: f32) -> Self {
                    ($round)(x)
                }

                fn floats<'a, S: Memory>(values: S::Slice<'a, Self>) -> Floats<'a, S> {
                    Floats::$variant(values)
                }

                fn floats_mut<'a, S: Memory>(values: S::SliceMut<'a, Self>) -> FloatsMut<'a, S> {
                    FloatsMut::$variant(values)
                }
            }
        )+
    };
}

elements!(f16 = F16 by f16::from_f32, bf16 = Bf16 by bf16::from_f32, f32 = F32 by |x| x);

impl Floats<'_> {
    /// An element as f64, which every one is exactly.
    pub(crate) fn get(&self, at: usize) -> f64 {
        match self {
            Self::F16(values) => f64::from(values[at]),
            Self::Bf16(values) => f64::from(values[at]),
            Self::F32(values) => f64::from(values[at]),
        }
    }
}
