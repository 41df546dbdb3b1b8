//! Registers of a warp that asynchronous operations in flight use: nobody may touch them before the
//! wait that ends it. And registers that hold no value: nobody may use them.

use std::cell::Cell;

use rustc_hash::FxHashMap;

use super::wgmma::Registers;
use crate::models::relaxation::Relaxation;
use crate::program::{Dst, Lanes};
use crate::report::Violation;

/// Set in the numbers of predicates, beside those of other registers.
pub(crate) const PREDICATE: u32 = 1 << 30;

/// Registers that hold what nothing defined: loaded from bytes that nothing wrote, or shuffled from a lane that does not
/// execute. Instructions that only move values or compute with them hand this on; all others use the value.
#[derive(Debug, Clone, Default)]
struct Undefined {
    /// By register: lanes, and which fault it is to use them.
    lanes: FxHashMap<u32, (u32, usize)>,
    faults: Vec<Violation>,
    /// Lanes that the instruction at hand has read, and the fault.
    read: Cell<(u32, usize)>,
    /// Registers that it has written.
    written: Vec<u32>,
}

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
    undefined: Option<Box<Undefined>>,
    /// By register: behind the load of shared memory whose value nothing has read since, its instruction and one. Empty
    /// where nobody asks.
    unread: Vec<Cell<u32>>,
    /// By instruction: addresses of the lanes in its last load.
    loads_at: FxHashMap<u32, Lanes>,
}

impl Poison {
    fn watch(&mut self) {
        let operations = !self.slots.is_empty() || self.wgmma.is_some();
        self.watches = operations || self.undefined.is_some();
    }

    /// Lanes of a register that hold what nothing defined.
    pub(crate) fn undefined(&self, slot: u32) -> u32 {
        let found = self.undefined.as_ref().and_then(|u| u.lanes.get(&slot));
        found.map_or(0, |(lanes, _)| *lanes)
    }

    /// The fault of an instruction whose guard nothing defined.
    pub(crate) fn guard(&self, slot: u32, lanes: u32) -> Option<Violation> {
        let u = self.undefined.as_ref()?;
        let (undefined, fault) = u.lanes.get(&(slot | PREDICATE))?;
        (undefined & lanes != 0).then(|| u.faults[*fault].clone())
    }

    /// From here on these lanes of a register hold what nothing defined.
    pub(crate) fn undefine(&mut self, slot: u32, lanes: u32, fault: &Violation) {
        let u = self.undefined.get_or_insert_default();
        let known = u.faults.iter().position(|f| f.site.line == fault.site.line);
        let number = known.unwrap_or_else(|| {
            u.faults.push(fault.clone());
            u.faults.len() - 1
        });
        let entry = u.lanes.entry(slot).or_default();
        *entry = (entry.0 | lanes, number);
        self.watches = true;
    }

    /// Of the sources of the instruction at hand, these lanes are undefined among `of`, and not those of the registers.
    pub(crate) fn choose(&self, lanes: u32, of: u32) {
        if let Some(u) = &self.undefined {
            let (read, fault) = u.read.get();
            u.read.set((read & !of | lanes & of, fault));
        }
    }

    /// The instruction at hand is over. The fault, if it used what nothing defined and did not only hand it on.
    pub(crate) fn settle(&mut self, hands_on: bool, active: u32) -> Option<Violation> {
        let u = self.undefined.as_mut()?;
        let (read, fault) = u.read.take();
        let written = std::mem::take(&mut u.written);
        let lanes = read & active;
        if lanes != 0 && !hands_on {
            return Some(u.faults[fault].clone());
        }
        for slot in written {
            let entry = u.lanes.entry(slot).or_default();
            *entry = (entry.0 | lanes, fault);
        }
        u.lanes.retain(|_, (lanes, _)| *lanes != 0);
        if u.lanes.is_empty() {
            self.undefined = None;
            self.watch();
        }
        None
    }

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
        self.watch();
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

    /// An instruction reads a register.
    #[inline]
    pub(crate) fn note(&self, slot: u32) {
        if let Some(unread) = self.unread.get(slot as usize) {
            unread.set(0);
        }
        if self.watches {
            self.note_watched(slot);
            self.note_undefined(slot);
        }
    }

    /// From here on it is known which loads nothing has read from, in a warp with so many registers.
    pub(crate) fn follow_loads(&mut self, registers: usize) {
        self.unread = vec![Cell::new(0); registers];
    }

    /// An instruction has loaded these registers from shared memory, each lane from its address.
    pub(crate) fn loaded(&mut self, pc: u32, d: &[Option<Dst>], addresses: &Lanes) {
        if self.unread.is_empty() {
            return;
        }
        d.iter()
            .flatten()
            .for_each(|d| self.unread[d.0 as usize].set(pc + 1));
        self.loads_at.insert(pc, *addresses);
    }

    /// Where a lane loaded from, if it was the last time for this instruction and nothing has read what it loaded.
    pub(crate) fn unread(&self, pc: u32, d: &[Option<Dst>], lane: u32) -> Option<u64> {
        let unread = |d: &Dst| {
            self.unread
                .get(d.0 as usize)
                .is_some_and(|u| u.get() == pc + 1)
        };
        let all = d.iter().flatten().all(unread);
        all.then(|| self.loads_at.get(&pc).map(|at| at[lane as usize]))
            .flatten()
    }

    /// An instruction writes lanes of a register.
    #[inline]
    pub(crate) fn note_write(&mut self, slot: u32, lanes: u32) {
        if self.watches {
            if slot & PREDICATE == 0 {
                self.note_watched(slot);
            }
            if let Some(u) = &mut self.undefined {
                u.written.push(slot);
                if let Some((undefined, _)) = u.lanes.get_mut(&slot) {
                    *undefined &= !lanes;
                }
            }
        }
    }

    /// An instruction reads a register, whatever operations do with it.
    #[inline]
    pub(crate) fn note_undefined(&self, slot: u32) {
        if let Some(unread) = self.unread.get(slot as usize) {
            unread.set(0);
        }
        if let Some(u) = &self.undefined
            && let Some((lanes, fault)) = u.lanes.get(&slot)
        {
            u.read.set((u.read.get().0 | lanes, *fault));
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
