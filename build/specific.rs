//! Since when there is code for one very architecture. Shared by all that name architectures.

/// The first architecture, as ten times the compute capability, of which there is such code: `90a`.
pub(crate) const SPECIFIC_SINCE: u32 = 90;

/// The architecture of code for the very GPUs of a number: 80 gives `80`, 90 gives `90a`. Some kernels need
/// architecture-specific code.
#[allow(dead_code, reason = "not all that read this file ask")]
pub(crate) fn own(number: u32) -> String {
    match number {
        SPECIFIC_SINCE.. => format!("{number}a"),
        _ => number.to_string(),
    }
}
