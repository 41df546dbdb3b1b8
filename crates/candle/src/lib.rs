#![doc = include_str!("../README.md")]

mod builder;
#[cfg(feature = "device")]
mod cuda;
mod error;
mod experts;
mod linear;
mod mlp;
mod moe;
mod rows;

pub use builder::Nvfp4Builder;
pub use error::{Error, Result};
pub use experts::Nvfp4Experts;
pub use linear::Nvfp4Linear;
pub use mlp::Nvfp4Mlp;
pub use moe::Nvfp4Moe;

const _: () = {
    const fn is_send_and_sync<T: Send + Sync + Clone + 'static>() {}
    is_send_and_sync::<Nvfp4Builder>();
    is_send_and_sync::<Nvfp4Experts>();
    is_send_and_sync::<Nvfp4Linear>();
    is_send_and_sync::<Nvfp4Mlp>();
    is_send_and_sync::<Nvfp4Moe>();
};

/// The library whose layers these modules compute, in the version that they take.
pub use nvfp4_gemv;
