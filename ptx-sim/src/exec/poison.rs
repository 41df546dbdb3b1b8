//! Registers that an asynchronous load will write: nobody may touch them before its wait.

use std::cell::Cell;

/// The registers of a warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Poison {
    slots: Vec<u32>,
    touched: Cell<bool>,
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
    }

    /// Whether one of them was touched since the last call.
    #[inline]
    pub(crate) fn touched(&self) -> bool {
        !self.slots.is_empty() && self.touched.take()
    }
}
