//! Parts of instructions: registers, addresses, and functions over lanes.

use std::fmt;
use std::sync::Arc;

use crate::memory::Space;

/// A register of a warp: one value a lane, zero-extended.
pub type Lanes = [u64; 32];

/// A register to read; with the high bit set, a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Src(pub u32);

impl Src {
    /// Marks constants.
    pub const CONST: u32 = 1 << 31;
}

/// A register to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dst(pub u32);

/// A predicate to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredSrc {
    /// Slot of the predicate.
    pub slot: u32,
    /// Read as its opposite.
    pub negated: bool,
}

/// An arithmetic instruction over all lanes, from its sources to its result.
#[derive(Clone)]
pub struct Alu(pub(crate) Arc<AluFn>);

/// A loop over lanes, generated around a scalar function so that the compiler can vectorise it.
pub type AluFn = dyn Fn(&Lanes, &Lanes, &Lanes, &mut Lanes) + Send + Sync;

impl Alu {
    /// From a function of one source.
    pub fn of1(f: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |a, _, _, d| {
            for (d, a) in d.iter_mut().zip(a) {
                *d = f(*a);
            }
        }))
    }

    /// From a function of two sources.
    pub fn of2(f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |a, b, _, d| {
            for i in 0..32 {
                d[i] = f(a[i], b[i]);
            }
        }))
    }

    /// From a function of three sources.
    pub fn of3(f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |a, b, c, d| {
            for i in 0..32 {
                d[i] = f(a[i], b[i], c[i]);
            }
        }))
    }

    /// The result for one lane's values.
    pub fn scalar(&self, a: u64, b: u64, c: u64) -> u64 {
        let mut d = [0; 32];
        (self.0)(&[a; 32], &[b; 32], &[c; 32], &mut d);
        d[0]
    }
}

impl fmt::Debug for Alu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alu")
    }
}

/// A comparison over all lanes; a bit a lane. Packed comparisons have a second result.
#[derive(Clone)]
pub struct Compare(pub(crate) Arc<CompareFn>);

/// See [`Compare`].
pub type CompareFn = dyn Fn(&Lanes, &Lanes) -> (u32, u32) + Send + Sync;

impl fmt::Debug for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compare")
    }
}

/// Operation that combines two predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

impl BoolOp {
    /// On a bit a lane.
    pub fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            BoolOp::And => a & b,
            BoolOp::Or => a | b,
            BoolOp::Xor => a ^ b,
        }
    }
}

/// An address: register plus offset in a state space; `None` is generic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addr {
    /// Space, `None` for generic addresses.
    pub space: Option<Space>,
    /// Shared memory of this CTA only (`.shared::cta`).
    pub own: bool,
    /// Base register.
    pub base: Src,
    /// Constant offset.
    pub offset: i64,
    /// Addresses in 32-bit registers wrap at 32 bits.
    pub narrow: bool,
}

/// An atomic operation: the new value from the old one and the sources.
#[derive(Clone)]
pub struct AtomicFn {
    pub(crate) f: Arc<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>,
    /// Whether the operation is `cas`: the third argument is its second source. Otherwise that argument is 1 on global
    /// memory, where some additions round differently.
    pub(crate) compares: bool,
}

impl fmt::Debug for AtomicFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtomicFn")
    }
}
