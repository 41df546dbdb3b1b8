//! Registers of a warp that asynchronous operations in flight use: nobody may touch them before the
//! wait that ends it.

use std::cell::Cell;

use super::wgmma::Registers;

/// The registers of a warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Poison {
    /// Those that a `tcgen05.ld` writes.
    slots: Vec<u32>,
    touched: Cell<bool>,
    /// What `wgmma` does with registers, from the warp's first `wgmma.fence` on.
    pub(crate) wgmma: Option<Box<Registers>>,
}

impl Poison {
    /// A load will write this register.
    pub(crate) fn insert(&mut self, slot: u32) {
        self.note(slot);
        self.slots.push(slot);
    }

    /// All loads were waited for.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    /// An instruction reads or writes a register.
    #[inline]
    pub(crate) fn note(&self, slot: u32) {
        if !self.slots.is_empty() && self.slots.contains(&slot) {
            self.touched.set(true);
        }
        if let Some(registers) = &self.wgmma {
            registers.note(slot);
        }
    }

    /// What is wrong with it, if one of them was touched since the last call.
    #[inline]
    pub(crate) fn touched(&self) -> Option<&'static str> {
        if !self.slots.is_empty() && self.touched.take() {
            return Some(
                "a register that a tcgen05.ld in flight writes is used before tcgen05.wait::ld",
            );
        }
        match &self.wgmma {
            Some(registers) if registers.touched() => Some(
                "a register that a wgmma.mma_async uses is accessed before a wgmma.wait_group for its group",
            ),
            _ => None,
        }
    }
}
