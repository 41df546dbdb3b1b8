//! Files, libraries and text from elsewhere, which may be anything: each is met in one way only.
//!
//! - [`input`] opens and reads files that somebody names.
//! - [`printable`] prints names of files, and other text, that others made.
#![cfg_attr(
    feature = "loader",
    doc = "- [`loader`] loads libraries of the system, by path or by name."
)]
#![cfg_attr(
    feature = "output",
    doc = "- [`output`] writes files whole or not at all, and replaces only what it may."
)]
#![cfg_attr(
    feature = "store",
    doc = "- [`store`] keeps results in files that are named by hashes of what they were made of."
)]

pub mod input;
#[cfg(feature = "loader")]
pub mod loader;
#[cfg(feature = "output")]
pub mod output;
pub mod printable;
#[cfg(feature = "store")]
pub mod store;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
