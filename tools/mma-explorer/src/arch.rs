//! GPU architectures.

pub use crate::nvrtc::arch::*;

/// The architectures that are looked at where none is named: of each kind of tensor core one, and all that a test
/// compiles for.
pub const ALL: [&str; 8] = ["80", "89", "90a", "100a", "103a", "110a", "120a", "121a"];
