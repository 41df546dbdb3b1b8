//! Pure models of the asynchronous machinery: TMA, mbarrier, tensor memory, tcgen05, wgmma, ordering.
//!
//! Each file models one thing of the PTX ISA, knows nothing of parsing or scheduling, and reports every broken rule as
//! a typed error. Nothing here guesses: behaviour that the ISA does not define and this crate has not modelled is an
//! `Unmodelled` error. Places where the text leaves room, and the choices made there, stand in
//! `docs/semantics-async.md`.

mod element;
pub mod float;
pub mod hazard;
pub mod idesc;
mod matrix_sums;
pub mod mbarrier;
pub mod memory;
mod mma_number;
pub mod mma_sync;
pub mod relaxation;
pub mod smem_desc;
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
