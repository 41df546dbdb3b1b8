//! Accesses of grids that may run at the same time, kept so that a conflict shows whichever access comes first.

use std::ops::Range;

use super::footprint::Footprint;
use crate::exec::grid_dependency::bit;
use crate::exec::pending::Use;

/// Accesses by CTAs of a grid for which the same grids were over.
#[derive(Debug, Default)]
struct Group {
    behind: u64,
    reads: Footprint,
    writes: Footprint,
}

/// Accesses to global memory of all grids of a run.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    grids: Vec<Vec<Group>>,
}

/// An access that conflicts with another grid's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict {
    /// The other grid.
    pub(super) grid: usize,
    /// Instruction of the other grid.
    pub(super) pc: u32,
    /// Whether the other grid's access is a write.
    pub(super) wrote: bool,
    /// The first byte of both.
    pub(super) address: u64,
}

/// An access of a grid to global memory, by a CTA for which these grids are over.
pub(super) struct Touch {
    pub(super) grid: usize,
    pub(super) behind: u64,
    pub(super) range: Range<u64>,
    pub(super) how: Use,
    pub(super) pc: u32,
}

impl Accesses {
    pub(super) fn of(grids: usize) -> Self {
        let none = (0..grids).map(|_| Vec::new());
        Self {
            grids: none.collect(),
        }
    }

    /// Keeps an access, and says whether it conflicts with one that was kept.
    pub(super) fn touch(&mut self, t: &Touch) -> Option<Conflict> {
        let found = self.conflict(t);
        let groups = self.grids.get_mut(t.grid)?;
        let i = match groups.iter().position(|g| g.behind == t.behind) {
            Some(i) => i,
            None => {
                groups.push(Group {
                    behind: t.behind,
                    ..Group::default()
                });
                groups.len() - 1
            }
        };
        let group = &mut groups[i];
        match t.how {
            Use::Read => group.reads.add(&t.range, t.pc),
            Use::Write | Use::Reduce => group.writes.add(&t.range, t.pc),
        }
        found
    }

    fn conflict(&self, t: &Touch) -> Option<Conflict> {
        let all = self.grids.iter().enumerate();
        let mut groups = all.flat_map(|(grid, groups)| groups.iter().map(move |g| (grid, g)));
        groups.find_map(|(grid, group)| {
            // The CTA of the later of two grids knows whether the earlier grid is over.
            let ordered = match grid.cmp(&t.grid) {
                std::cmp::Ordering::Less => t.behind & bit(grid) != 0,
                std::cmp::Ordering::Equal => true,
                std::cmp::Ordering::Greater => group.behind & bit(t.grid) != 0,
            };
            if ordered {
                return None;
            }
            let conflict = |wrote| {
                move |(address, pc)| Conflict {
                    grid,
                    pc,
                    wrote,
                    address,
                }
            };
            let written = group.writes.first(&t.range).map(conflict(true));
            match t.how {
                Use::Read => written,
                _ => written.or_else(|| group.reads.first(&t.range).map(conflict(false))),
            }
        })
    }
}
