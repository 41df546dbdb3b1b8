//! Documents that the programs of nvfp4-gemv write and read, so that writer and reader cannot disagree.
//!
//! - [`document`]: measurements, as `nvfp4-gemv bench --json` prints them and `cargo xtask bench` reads them.
//! - [`protocol`]: how two programs take turns on one GPU, told by `cargo xtask nightly`.
//! - [`gpu_record`]: which tests ran on which GPU, and of which sources.
//! - [`table`]: how programs print tables.
//! - [`alternate`] and [`statistics`]: the order of turns, and what is said of their times.
//!
//! This is no library for other programs: any release may change it.

pub mod alternate;
pub mod document;
pub mod gpu_record;
pub mod protocol;
pub mod statistics;
pub mod table;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
