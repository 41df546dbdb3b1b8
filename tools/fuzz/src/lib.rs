//! Code that the fuzz targets share: mutations that know the formats, and files to parse.
//!
//! `cargo xtask fuzz` builds and runs the targets with a stable compiler, `cargo fuzz run NAME` with a nightly one and
//! the address sanitizer. docs/notes/testing.md says more.

pub mod directory;
pub mod exercise;
pub mod json;
pub mod scratch;
pub mod tensors;
pub mod text;

use fastrand::Rng;

/// A mutation of libFuzzer's, or as often one that knows the format: a changed input that is still one of
/// its kind gets past the first checks. `data` holds an input of `size` bytes and has room for
/// `max_size`; returns the new input's size.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    structured: impl FnOnce(&[u8], &mut Rng) -> Option<Vec<u8>>,
) -> usize {
    let mut rng = Rng::with_seed(seed.into());
    if rng.bool()
        && let Some(new) = data.get(..size).and_then(|old| structured(old, &mut rng))
        && let Some(room) = data.get_mut(..new.len())
        && new.len() <= max_size
    {
        room.copy_from_slice(&new);
        return new.len();
    }
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
}

/// One of several.
fn pick<'a, T>(rng: &mut Rng, all: &'a [T]) -> Option<&'a T> {
    (!all.is_empty()).then(|| &all[rng.usize(..all.len())])
}
