//! The last accesses of every byte, as ranges.

use super::report::{Access, AccessKind, Range, Side};
use std::collections::BTreeMap;

/// An access with its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) slot: u32,
    pub(super) time: u32,
    pub(super) side: Side,
    /// Pipeline class of a tcgen05 operation.
    pub(super) class: super::OpClass,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Segment {
    end: u64,
    writes: Vec<Record>,
    reads: Vec<Record>,
    syncs: Vec<Record>,
}

/// A list of this many records is looked through for outdated ones.
const PRUNE: usize = 8;

/// All memories.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    spaces: BTreeMap<u64, BTreeMap<u64, Segment>>,
}

fn split(map: &mut BTreeMap<u64, Segment>, at: u64) {
    if let Some((&start, segment)) = map.range_mut(..at).next_back()
        && segment.end > at
    {
        let tail = segment.clone();
        segment.end = at;
        debug_assert!(start < at);
        map.insert(at, tail);
    }
}

impl Shadow {
    /// Records an access and calls `conflict` for each earlier one it may conflict with. Of those of
    /// its own kind, it stands for the `outdated` ones from here on.
    pub(super) fn access(
        &mut self,
        access: &Access,
        mine: Record,
        mut conflict: impl FnMut(&Record, Range),
        outdated: impl Fn(&Record) -> bool,
    ) {
        let Range { space, start, end } = access.range;
        if start >= end {
            return;
        }
        let map = self.spaces.entry(space).or_default();
        // The common case: the same range as before.
        if let Some(segment) = map.get_mut(&start)
            && segment.end == end
        {
            visit(segment, access.kind, |r| conflict(r, access.range));
            add(segment, access.kind, mine, &outdated);
            return;
        }
        split(map, start);
        split(map, end);
        let mut gaps = Vec::new();
        let mut at = start;
        for (&from, segment) in map.range_mut(start..end) {
            if from > at {
                gaps.push((at, from));
            }
            at = segment.end;
            let range = Range {
                space,
                start: from,
                end: segment.end,
            };
            visit(segment, access.kind, |r| conflict(r, range));
            add(segment, access.kind, mine, &outdated);
        }
        if at < end {
            gaps.push((at, end));
        }
        for (from, to) in gaps {
            let mut segment = Segment {
                end: to,
                ..Segment::default()
            };
            add(&mut segment, access.kind, mine, &outdated);
            map.insert(from, segment);
        }
        merge(map, start, end);
    }

    /// Calls `f` for every record of a range, then forgets them unless they are to be kept.
    pub(super) fn clear(&mut self, range: Range, keep: bool, mut f: impl FnMut(&Record, Range)) {
        let Some(map) = self.spaces.get_mut(&range.space) else {
            return;
        };
        split(map, range.start);
        split(map, range.end);
        let starts: Vec<u64> = map.range(range.start..range.end).map(|(s, _)| *s).collect();
        for start in starts {
            if let Some(s) = map.get(&start) {
                let at = Range {
                    space: range.space,
                    start,
                    end: s.end,
                };
                s.writes
                    .iter()
                    .chain(&s.reads)
                    .chain(&s.syncs)
                    .for_each(|r| f(r, at));
            }
            if !keep {
                map.remove(&start);
            }
        }
    }
}

/// The records an access of `kind` may conflict with.
fn visit(segment: &Segment, kind: AccessKind, conflict: impl FnMut(&Record)) {
    let unless = |same, list: &'_ Vec<Record>| if kind == same { 0 } else { list.len() };
    let reads = &segment.reads[..unless(AccessKind::Read, &segment.reads)];
    let syncs = &segment.syncs[..unless(AccessKind::Sync, &segment.syncs)];
    let all = segment.writes.iter().chain(reads).chain(syncs);
    all.for_each(conflict);
}

fn add(segment: &mut Segment, kind: AccessKind, mine: Record, outdated: impl Fn(&Record) -> bool) {
    let list = match kind {
        // Whoever frees it next must know of the others too.
        AccessKind::Free => &mut segment.writes,
        AccessKind::Write | AccessKind::Init => {
            segment.reads.clear();
            segment.syncs.clear();
            segment.writes.clear();
            &mut segment.writes
        }
        AccessKind::Read => &mut segment.reads,
        AccessKind::Sync => &mut segment.syncs,
    };
    // Sorted, so that many readers cost little; outdated ones go when the list has doubled.
    let key = |r: &Record| (r.slot, r.side.proxy as u8);
    match list.binary_search_by_key(&key(&mine), key) {
        // A later access of the same slot and proxy stands for the earlier ones.
        Ok(i) => list[i] = mine,
        Err(i) => {
            list.insert(i, mine);
            if list.len() >= PRUNE && list.len().is_power_of_two() {
                list.retain(|r| key(r) == key(&mine) || !outdated(r));
            }
        }
    }
}

/// Joins neighbours with equal contents, so that the map stays as small as the accesses are
/// regular.
fn merge(map: &mut BTreeMap<u64, Segment>, start: u64, end: u64) {
    let from = map.range(..start).next_back().map_or(start, |(s, _)| *s);
    // What goes, and the first of the equal ones in front of it, which stays.
    let mut gone: Vec<(u64, u64)> = Vec::new();
    let mut last: Option<(u64, &Segment)> = None;
    for (&key, b) in map.range(from..=end) {
        let joined = last.filter(|(_, a)| {
            a.end == key && a.writes == b.writes && a.reads == b.reads && a.syncs == b.syncs
        });
        let first = joined.map_or(key, |(first, _)| first);
        if joined.is_some() {
            gone.push((first, key));
        }
        last = Some((first, b));
    }
    for (first, key) in gone {
        if let Some(gone) = map.remove(&key)
            && let Some(kept) = map.get_mut(&first)
        {
            kept.end = gone.end;
        }
    }
}
