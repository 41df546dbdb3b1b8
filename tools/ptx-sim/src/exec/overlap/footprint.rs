//! Bytes of global memory that were accessed, and the instruction that accessed them.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of addresses: start to end, and the instruction that accessed them first.
#[derive(Debug, Default)]
pub(super) struct Footprint {
    ranges: BTreeMap<u64, (u64, u32)>,
}

impl Footprint {
    /// The range that holds an address, and its instruction.
    fn at(&self, address: u64) -> Option<(Range<u64>, u32)> {
        let (&start, &(end, pc)) = self.ranges.range(..=address).next_back()?;
        (address < end).then_some((start..end, pc))
    }

    /// The first of these bytes that was accessed, and by which instruction.
    pub(super) fn first(&self, range: &Range<u64>) -> Option<(u64, u32)> {
        if let Some((_, pc)) = self.at(range.start) {
            return Some((range.start, pc));
        }
        let (&start, &(_, pc)) = self.ranges.range(range.clone()).next()?;
        Some((start, pc))
    }

    /// Adds bytes. Bytes that were accessed before keep their instruction.
    pub(super) fn add(&mut self, range: &Range<u64>, pc: u32) {
        let mut at = range.start;
        while at < range.end {
            if let Some((there, _)) = self.at(at) {
                at = there.end;
                continue;
            }
            let next = self.ranges.range(at..range.end).next();
            let end = next.map_or(range.end, |(start, _)| *start);
            self.insert(at..end, pc);
            at = end;
        }
    }

    /// Adds bytes that are not there, and joins them to their neighbours.
    fn insert(&mut self, range: Range<u64>, pc: u32) {
        let Range { mut start, mut end } = range;
        if let Some((&before, &(its_end, its_pc))) = self.ranges.range(..start).next_back()
            && (its_end, its_pc) == (start, pc)
        {
            start = before;
        }
        if let Some(&(its_end, its_pc)) = self.ranges.get(&end)
            && its_pc == pc
        {
            self.ranges.remove(&end);
            end = its_end;
        }
        self.ranges.insert(start, (end, pc));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a map of single bytes.
    #[test]
    fn as_a_map_of_bytes() {
        let mut state = 7;
        let mut below = |n: u64| crate::sched::split_mix(&mut state) % n;
        for _ in 0..50 {
            let mut footprint = Footprint::default();
            let mut bytes: [Option<u32>; 64] = [None; 64];
            for _ in 0..20 {
                let start = below(60);
                let range = start..start + 1 + below(64 - start);
                let of = &mut bytes[range.start as usize..range.end as usize];
                let first = (range.clone())
                    .zip(&*of)
                    .find_map(|(a, b)| Some((a, (*b)?)));
                assert_eq!(footprint.first(&range), first, "{range:?} {footprint:?}");
                let pc = below(3) as u32;
                footprint.add(&range, pc);
                of.iter_mut().for_each(|b| *b = b.or(Some(pc)));
            }
            let sides = bytes.windows(2).filter(|w| w[0] != w[1] && w[1].is_some());
            let runs = sides.count() + usize::from(bytes[0].is_some());
            assert_eq!(footprint.ranges.len(), runs, "{footprint:?}");
        }
    }
}
