//! Allocation of tensor memory on one SM, shared by the CTAs that are resident there.
//!
//! Source: PTX ISA "Tensor Memory Allocation", `tcgen05.alloc`, `tcgen05.dealloc`,
//! `tcgen05.relinquish_alloc_permit`.

use super::tmem::{COLUMNS, TmemAddr};
use std::collections::BTreeMap;
use thiserror::Error;

/// The rule an allocation instruction breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum AllocError {
    #[error("nCols {0} is not a power of two in 32..=512")]
    Columns(u32),
    #[error("tcgen05.alloc of {now} columns after one of {before}: counts may not increase")]
    Growing { before: u32, now: u32 },
    #[error("tcgen05.alloc after tcgen05.relinquish_alloc_permit")]
    Relinquished,
    #[error(".cta_group::{now} after .cta_group::{before}: a kernel must use one")]
    MixedCtaGroup { before: u8, now: u8 },
    #[error("tcgen05.dealloc of {columns} columns at {address:#x} matches no allocation")]
    NoSuchAllocation { address: u32, columns: u32 },
    #[error("the two CTAs of the pair ask for {0} and {1} columns")]
    PairMismatch(u32, u32),
}

/// Outcome of `tcgen05.alloc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocOutcome {
    /// The address that is written to shared memory.
    Allocated(TmemAddr),
    /// Not enough free columns: the warp blocks and tries again after a `dealloc`.
    Blocked,
}

/// The free columns that an allocation gets; the ISA does not say which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The lowest that fit, as observed on hardware.
    #[default]
    Lowest,
    /// The highest that fit: catches kernels that assume column 0.
    Highest,
}

#[derive(Debug, Clone, Default)]
struct CtaState {
    group: Option<u8>,
    last: Option<u32>,
    relinquished: bool,
    live: Vec<(u32, u32)>, // first column, count
}

/// The columns of one SM and who holds them.
#[derive(Debug, Clone, Default)]
pub struct TmemAllocator {
    placement: Placement,
    ctas: BTreeMap<u64, CtaState>,
}

impl TmemAllocator {
    /// An SM with all columns free.
    pub fn new(placement: Placement) -> Self {
        Self {
            placement,
            ctas: BTreeMap::new(),
        }
    }

    fn admit(&mut self, cta: u64, group: u8, columns: u32) -> Result<&mut CtaState, AllocError> {
        if !(32..=COLUMNS).contains(&columns) || !columns.is_power_of_two() {
            return Err(AllocError::Columns(columns));
        }
        let state = self.state(cta, group)?;
        if state.relinquished {
            return Err(AllocError::Relinquished);
        }
        match state.last {
            Some(before) if columns > before => Err(AllocError::Growing {
                before,
                now: columns,
            }),
            _ => Ok(state),
        }
    }

    fn state(&mut self, cta: u64, group: u8) -> Result<&mut CtaState, AllocError> {
        let state = self.ctas.entry(cta).or_default();
        match state.group {
            Some(before) if before != group => {
                Err(AllocError::MixedCtaGroup { before, now: group })
            }
            _ => {
                state.group = Some(group);
                Ok(state)
            }
        }
    }

    fn is_free(&self, first: u32, columns: u32) -> bool {
        let mut live = self.ctas.values().flat_map(|c| &c.live);
        live.all(|&(f, n)| f + n <= first || first + columns <= f)
    }

    fn place(&self, columns: u32, also: Option<&TmemAllocator>) -> Option<u32> {
        let fits = |first: &u32| {
            self.is_free(*first, columns) && also.is_none_or(|o| o.is_free(*first, columns))
        };
        let mut starts = (0..=(COLUMNS - columns) / 32).map(|i| 32 * i);
        match self.placement {
            Placement::Lowest => starts.find(fits),
            Placement::Highest => starts.rev().find(fits),
        }
    }

    fn record(&mut self, cta: u64, first: u32, columns: u32) {
        let state = self.ctas.entry(cta).or_default();
        state.last = Some(columns);
        state.live.push((first, columns));
    }

    /// `tcgen05.alloc.cta_group::1` by one warp of `cta`.
    pub fn alloc(&mut self, cta: u64, columns: u32) -> Result<AllocOutcome, AllocError> {
        self.admit(cta, 1, columns)?;
        Ok(match self.place(columns, None) {
            None => AllocOutcome::Blocked,
            Some(first) => {
                self.record(cta, first, columns);
                AllocOutcome::Allocated(TmemAddr::new(0, first))
            }
        })
    }

    /// `tcgen05.alloc.cta_group::2`, once a warp of each CTA of the pair has issued it. Both
    /// get the same columns, because one instruction addresses both tensor memories.
    pub fn alloc_pair(
        &mut self,
        peer: &mut TmemAllocator,
        ctas: [u64; 2],
        columns: [u32; 2],
    ) -> Result<AllocOutcome, AllocError> {
        self.admit(ctas[0], 2, columns[0])?;
        peer.admit(ctas[1], 2, columns[1])?;
        if columns[0] != columns[1] {
            return Err(AllocError::PairMismatch(columns[0], columns[1]));
        }
        Ok(match self.place(columns[0], Some(peer)) {
            None => AllocOutcome::Blocked,
            Some(first) => {
                self.record(ctas[0], first, columns[0]);
                peer.record(ctas[1], first, columns[0]);
                AllocOutcome::Allocated(TmemAddr::new(0, first))
            }
        })
    }

    /// `tcgen05.dealloc`: must name a live allocation exactly. Returns its first column.
    pub fn dealloc(
        &mut self,
        cta: u64,
        group: u8,
        address: TmemAddr,
        columns: u32,
    ) -> Result<u32, AllocError> {
        if !(32..=COLUMNS).contains(&columns) || !columns.is_power_of_two() {
            return Err(AllocError::Columns(columns));
        }
        let state = self.state(cta, group)?;
        let found = state
            .live
            .iter()
            .position(|&(f, n)| TmemAddr::new(0, f) == address && n == columns);
        match found {
            Some(i) => Ok(state.live.remove(i).0),
            None => Err(AllocError::NoSuchAllocation {
                address: address.0,
                columns,
            }),
        }
    }

    /// `tcgen05.relinquish_alloc_permit`.
    pub fn relinquish(&mut self, cta: u64, group: u8) -> Result<(), AllocError> {
        self.state(cta, group)?.relinquished = true;
        Ok(())
    }

    /// The CTA exits: columns that it has not freed are a leak (first column, count), and are freed.
    pub fn exit(&mut self, cta: u64) -> Vec<(u32, u32)> {
        self.ctas.remove(&cta).map(|c| c.live).unwrap_or_default()
    }

    /// CTAs that have live allocations.
    pub fn holders(&self) -> impl Iterator<Item = u64> + '_ {
        let holding = self.ctas.iter().filter(|(_, c)| !c.live.is_empty());
        holding.map(|(cta, _)| *cta)
    }

    /// Every live allocation: the CTA, first column, count.
    pub fn held(&self) -> impl Iterator<Item = (u64, u32, u32)> + '_ {
        let all = self.ctas.iter();
        all.flat_map(|(cta, c)| c.live.iter().map(|&(first, count)| (*cta, first, count)))
    }

    /// Live allocations of a CTA, for reports.
    pub fn live(&self, cta: u64) -> &[(u32, u32)] {
        self.ctas.get(&cta).map_or(&[], |c| &c.live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(outcome: Result<AllocOutcome, AllocError>) -> u32 {
        match outcome {
            Ok(AllocOutcome::Allocated(a)) => a.column(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sizes_order_and_permits() {
        let mut a = TmemAllocator::default();
        for n in [0, 16, 33, 48, 1024, u32::MAX] {
            assert_eq!(a.alloc(1, n), Err(AllocError::Columns(n)));
        }
        assert_eq!(at(a.alloc(1, 128)), 0);
        assert_eq!(
            a.alloc(1, 256),
            Err(AllocError::Growing {
                before: 128,
                now: 256
            })
        );
        assert_eq!(at(a.alloc(1, 128)), 128);
        assert_eq!(at(a.alloc(1, 32)), 256);
        a.relinquish(1, 1).unwrap();
        assert_eq!(a.alloc(1, 32), Err(AllocError::Relinquished));
        assert!(a.relinquish(1, 2).is_err());
        assert!(a.dealloc(1, 1, TmemAddr(128), 64).is_err());
        assert!(a.dealloc(1, 1, TmemAddr(1 << 16), 128).is_err());
        assert_eq!(a.dealloc(1, 1, TmemAddr(128), 128), Ok(128));
        assert!(a.dealloc(1, 1, TmemAddr(128), 128).is_err(), "freed twice");
        assert_eq!(a.exit(1), [(0, 128), (256, 32)]);
        assert!(a.live(1).is_empty());
    }

    #[test]
    fn blocks_until_another_cta_frees() {
        let mut a = TmemAllocator::default();
        assert_eq!(at(a.alloc(1, 512)), 0);
        assert_eq!(a.alloc(2, 32), Ok(AllocOutcome::Blocked));
        a.dealloc(1, 1, TmemAddr(0), 512).unwrap();
        assert_eq!(at(a.alloc(2, 32)), 0);
        let mut high = TmemAllocator::new(Placement::Highest);
        assert_eq!(at(high.alloc(1, 64)), 448);
    }

    #[test]
    fn pairs_share_columns() {
        let (mut a, mut b) = (TmemAllocator::default(), TmemAllocator::default());
        assert_eq!(at(b.alloc(9, 64)), 0);
        assert_eq!(at(a.alloc_pair(&mut b, [1, 2], [128, 128])), 64);
        assert_eq!(
            a.alloc_pair(&mut b, [1, 2], [64, 32]),
            Err(AllocError::PairMismatch(64, 32))
        );
        assert!(matches!(
            a.alloc(1, 32),
            Err(AllocError::MixedCtaGroup { before: 2, now: 1 })
        ));
        a.dealloc(1, 2, TmemAddr(64), 128).unwrap();
        assert_eq!(b.exit(2), [(64, 128)]);
    }
}
