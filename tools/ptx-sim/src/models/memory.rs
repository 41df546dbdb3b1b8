//! Shared memory as the models read it: by 32-bit address, with initialisation tracked.

use thiserror::Error;

/// A byte of shared memory that an asynchronous operation read but nobody had written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("shared memory byte {address:#x} is read but not initialised, or outside the window")]
pub struct SharedReadError {
    /// Address of the first such byte, in the shared window.
    pub address: u32,
}

/// Shared memory of one CTA as the async proxy reads it.
///
/// Any `Fn(u32) -> Option<u8>` is one; `None` means uninitialised or out of bounds.
pub trait SharedRead {
    /// The byte at `address`, or `None` where nothing was ever written.
    fn byte(&self, address: u32) -> Option<u8>;

    /// Fills `out` from consecutive addresses; override it where a slice copy is cheaper.
    fn read(&self, address: u32, out: &mut [u8]) -> Result<(), SharedReadError> {
        for (i, slot) in out.iter_mut().enumerate() {
            let at = address.wrapping_add(i as u32);
            *slot = self.byte(at).ok_or(SharedReadError { address: at })?;
        }
        Ok(())
    }

    /// The `len` bytes from `address` on as they lie there, if all of them were written and the memory can say
    /// so at once.
    fn window(&self, address: u32, len: u32) -> Option<&[u8]> {
        let _ = (address, len);
        None
    }
}

impl<F: Fn(u32) -> Option<u8>> SharedRead for F {
    fn byte(&self, address: u32) -> Option<u8> {
        self(address)
    }
}
