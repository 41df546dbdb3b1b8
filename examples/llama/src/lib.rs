//! Llama, Qwen3 and Qwen3-MoE decoding: every linear layer is nvfp4-gemv's. What is between them candle does, or on the
//! CPU loops of the example. See README.md.

#![allow(
    missing_debug_implementations,
    reason = "candle's and tokenizers' parts have none"
)]

pub mod bounds;
pub mod config;
pub mod device;
pub mod generate;
pub mod host;
pub mod layers;
pub mod met;
pub mod model;
pub mod tokens;
pub mod weights;

pub use config::Config;
#[cfg(feature = "cuda")]
pub use device::DeviceModel;
pub use generate::{Generator, Sampling};
pub use met::Met;
pub use model::{Head, Model, Reader};
pub use tokens::Tokens;
pub use weights::{Arithmetic, Weights};
