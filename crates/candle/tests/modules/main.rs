//! Modules on the CPU: the library's bits, candle's own dense f32 modules, and what is refused.

mod blocks;
mod bound;
mod builder;
mod files;
mod linear;
