//! Loads and stores of a whole warp, checked once: where all that its lanes reach lies in one allocation, and nothing
//! in between is out of the ordinary. Everything else is looked at lane by lane.

use super::machine::{Machine, Place, Tried};
use super::pending::Use;
use super::warp::Warp;
use super::{Ctx, lanes};
use crate::memory::layout::{SHARED_RANK_SHIFT, split_generic};
use crate::memory::{AccessKind, Allocation, Space};
use crate::program::{Addr, Lanes, Order};

/// An access of the lanes of a warp to memory: each lane so many bytes at an address of its own.
pub(super) struct Together<'a> {
    pub(super) addr: &'a Addr,
    pub(super) base: &'a Lanes,
    /// Bytes of an element.
    pub(super) bytes: usize,
    /// Elements of a lane.
    pub(super) elements: usize,
    pub(super) align: u32,
    pub(super) order: Order,
}

/// All bytes that the lanes of a warp access, and the bytes that lie in between.
struct Span {
    /// Place of the first byte.
    place: Place,
    size: u64,
    /// Difference between the lanes' addresses and those of the space.
    window: u64,
}

impl Together<'_> {
    fn address(&self, lane: u32) -> u64 {
        let address = self.base[lane as usize & 31].wrapping_add_signed(self.addr.offset);
        if self.addr.narrow {
            address & 0xffff_ffff
        } else {
            address
        }
    }

    /// Bytes of a lane.
    fn size(&self) -> usize {
        self.bytes * self.elements
    }
}

/// Calls a function for the size of a lane's access, as a constant: a copy of known length is a move.
macro_rules! by_size {
    ($size:expr, $f:ident($($arg:expr),*)) => {
        match $size {
            1 => $f::<1>($($arg),*),
            2 => $f::<2>($($arg),*),
            4 => $f::<4>($($arg),*),
            8 => $f::<8>($($arg),*),
            16 => $f::<16>($($arg),*),
            32 => $f::<32>($($arg),*),
            _ => false,
        }
    };
}

fn element_of<const N: usize>(at: &[u8; N], first: usize, n: usize) -> u64 {
    match (N, n) {
        // Spelled out for the frequent ones, because `n` is not known.
        (4, 4) | (8, 8) => at.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)),
        _ => at[first..first + n]
            .iter()
            .rev()
            .fold(0, |v, b| v << 8 | u64::from(*b)),
    }
}

/// Reads the bytes that the lanes ask for; `false` where nothing wrote some of them.
fn read_lanes<const N: usize>(
    a: &Allocation,
    (active, n): (u32, usize),
    offset: impl Fn(u32) -> usize,
    out: &mut [Lanes],
) -> bool {
    for lane in lanes(active) {
        let Some(bytes) = a.get::<N>(offset(lane)) else {
            return false;
        };
        for (i, o) in out.iter_mut().take(N / n).enumerate() {
            o[lane as usize] = element_of(bytes, i * n, n);
        }
    }
    true
}

fn write_lanes<const N: usize>(
    a: &mut Allocation,
    (active, n): (u32, usize),
    offset: impl Fn(u32) -> usize,
    values: &[&Lanes],
) -> bool {
    for lane in lanes(active) {
        let mut bytes = [0; N];
        match values {
            [one] if N <= 8 => bytes.copy_from_slice(&one[lane as usize].to_le_bytes()[..N.min(8)]),
            _ => {
                for (to, v) in bytes.chunks_exact_mut(n).zip(values) {
                    to.copy_from_slice(&v[lane as usize].to_le_bytes()[..n]);
                }
            }
        }
        a.put(offset(lane), &bytes);
    }
    true
}

impl Machine<'_> {
    /// The span that the lanes access, if it is all in global memory or all in their own CTA's shared memory.
    fn span(&self, c: &Ctx<'_>, t: &Together<'_>) -> Option<Span> {
        let (mut low, mut high, mut all) = (u64::MAX, 0, 0);
        for lane in lanes(c.active) {
            let at = t.address(lane);
            (low, high, all) = (low.min(at), high.max(at), all | at);
        }
        if all & u64::from(t.align.max(1) - 1) != 0 {
            return None;
        }
        let ((space, first), (last_space, last)) = match t.addr.space {
            None => (split_generic(low), split_generic(high)),
            Some(space) => ((space, low), (space, high)),
        };
        let rank = match space {
            Space::Global => 0,
            Space::Shared => u64::from(self.ctas[c.cta].rank) << SHARED_RANK_SHIFT,
            _ => return None,
        };
        let end = last.checked_add(t.size() as u64)?;
        let own = |at: u64| at.wrapping_sub(rank) < 1 << SHARED_RANK_SHIFT;
        if space != last_space || space == Space::Shared && !(own(first) && own(last)) {
            return None;
        }
        let place = Place {
            space,
            owner: c.cta,
            address: first - rank,
        };
        Some(Span {
            place,
            size: end - first,
            window: low - place.address,
        })
    }

    /// The allocation of a span, if nothing in it can refuse an access.
    fn plain(&mut self, s: &Span, writes: bool) -> Option<&mut Allocation> {
        let (space, owner, address) = (s.place.space, s.place.owner, s.place.address);
        // Accesses that other grids may conflict with are looked at one by one.
        if space == Space::Global && self.overlap.is_some() {
            return None;
        }
        let mbarriers =
            space == Space::Shared && self.refuse_mbarrier(owner, address, s.size, "").is_err();
        let how = if writes { Use::Write } else { Use::Read };
        let range = self.range(space, owner, address, s.size);
        if mbarriers || self.pending.conflicts(&range, how) {
            return None;
        }
        let size = u32::try_from(s.size).ok()?;
        self.region(space, owner).plain(address, size, writes)
    }

    /// Executes a load. `None`, and nothing has happened, where the lanes must be looked at one by one.
    pub(super) fn load_together(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        t: &Together<'_>,
        out: &mut [Lanes],
    ) -> Tried<Option<()>> {
        let Some(s) = self.span(c, t) else {
            return Ok(None);
        };
        let Some(a) = self.plain(&s, false) else {
            return Ok(None);
        };
        let first = s.window.wrapping_add(a.base);
        let offset = |lane| t.address(lane).wrapping_sub(first) as usize;
        if !by_size!(t.size(), read_lanes(a, (c.active, t.bytes), offset, out)) {
            return Ok(None);
        }
        self.observe_lanes(c, w, t, &s, AccessKind::Read).map(Some)
    }

    /// Executes a store of these elements, in the same way.
    pub(super) fn store_together(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        t: &Together<'_>,
        values: &[&Lanes],
    ) -> Tried<Option<()>> {
        let Some(s) = self.span(c, t) else {
            return Ok(None);
        };
        let Some(a) = self.plain(&s, true) else {
            return Ok(None);
        };
        let first = s.window.wrapping_add(a.base);
        let offset = |lane| t.address(lane).wrapping_sub(first) as usize;
        if s.place.space == Space::Global {
            a.begin_writes_of_grid();
        }
        if !by_size!(
            t.size(),
            write_lanes(a, (c.active, t.bytes), offset, values)
        ) {
            return Ok(None);
        }
        self.observe_lanes(c, w, t, &s, AccessKind::Write).map(Some)
    }

    /// Shows every lane's access to the hazard tracker and to the observer.
    fn observe_lanes(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        t: &Together<'_>,
        s: &Span,
        kind: AccessKind,
    ) -> Tried<()> {
        if !self.observes(s.place.space, t.order) {
            return Ok(());
        }
        for lane in lanes(c.active) {
            let place = Place {
                address: t.address(lane) - s.window,
                ..s.place
            };
            let actor = c.actor(self, w, lane);
            self.observe(actor, place, t.size(), (kind, t.order))?;
        }
        Ok(())
    }
}
