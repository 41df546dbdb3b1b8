//! Since when there is code for one very architecture. Shared by all that name architectures.

/// The first architecture, as ten times the compute capability, of which there is such code: `90a`.
pub(crate) const SPECIFIC_SINCE: u32 = 90;
