//! Registers of a warp that asynchronous operations in flight use: nobody may touch them before the
//! wait that ends it.

use std::cell::Cell;

use super::wgmma::Registers;
use crate::models::relaxation::Relaxation;

/// The registers of a warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Poison {
    /// Whether any register is watched, by either of the two: most kernels have none.
    watches: bool,
    /// Registers that a `tcgen05.ld` writes, and the number of the load among the loads that no wait has ended.
    slots: Vec<(u32, u32)>,
    loads: u32,
    touched: Cell<bool>,
    /// The loads whose registers were touched, a bit each as far as there are bits.
    used: Cell<u64>,
    wgmma: Option<Box<Registers>>,
}

impl Poison {
    /// A load will write these registers.
    pub(crate) fn insert(&mut self, slots: impl Iterator<Item = u32>) {
        for slot in slots {
            self.note(slot);
            self.slots.push((slot, self.loads));
        }
        self.loads += 1;
        self.watches = true;
    }

    /// All loads were waited for.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.loads = 0;
        self.used.set(0);
        self.watches = self.wgmma.is_some();
    }

    /// The loads not waited for whose registers were used: their numbers, in order of issue.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> + use<> {
        let used = self.used.get();
        (0..64).filter(move |n| used >> n & 1 == 1)
    }

    /// The state of the warp's registers for `wgmma`; `None` before the warp's first `wgmma.fence`.
    pub(crate) fn wgmma(&mut self) -> Option<&mut Registers> {
        self.wgmma.as_deref_mut()
    }

    /// A `wgmma.fence` of a warp with so many registers.
    pub(crate) fn wgmma_fence(&mut self, registers: usize) {
        self.watches = true;
        self.wgmma
            .get_or_insert_with(|| Box::new(Registers::new(registers)))
            .fence();
    }

    /// Whether operations of `wgmma` were not waited for.
    pub(crate) fn wgmma_is_busy(&self) -> bool {
        self.wgmma.as_ref().is_some_and(|r| r.busy())
    }

    /// An instruction reads or writes a register.
    #[inline]
    pub(crate) fn note(&self, slot: u32) {
        if self.watches {
            self.note_watched(slot);
        }
    }

    fn note_watched(&self, slot: u32) {
        for (_, load) in self.slots.iter().filter(|(s, _)| *s == slot) {
            self.touched.set(true);
            self.used
                .set(self.used.get() | 1u64.checked_shl(*load).unwrap_or(0));
        }
        if let Some(registers) = &self.wgmma {
            registers.note(slot);
        }
    }

    /// The fault, and the relaxation that would excuse it, if one of these registers was touched since the last call.
    #[inline]
    pub(crate) fn touched(&self) -> Option<(&'static str, Option<Relaxation>)> {
        if !self.watches {
            return None;
        }
        if self.touched.take() {
            return Some((
                "a register that a tcgen05.ld in flight writes is used before tcgen05.wait::ld",
                Some(Relaxation::LoadedRegisters),
            ));
        }
        match &self.wgmma {
            Some(registers) if registers.touched() => Some((
                "a register that a wgmma.mma_async uses is accessed before a wgmma.wait_group for its group",
                None,
            )),
            _ => None,
        }
    }
}
