//! One memory: allocations sorted by address, each with a bit per byte that says it was written.

use super::{Fault, Space};
use crate::models::swizzle::Swizzle;
use crate::report::{Nearest, ViolationKind};

/// A named piece of memory.
#[derive(Debug, Clone)]
pub struct Allocation {
    /// Name for reports.
    pub name: String,
    /// First address in its space.
    pub base: u64,
    bytes: Vec<u8>,
    /// A bit per byte; sized like `bytes`, rounded up to words.
    init: Vec<u64>,
    /// Writes by the kernel are errors.
    pub read_only: bool,
    /// A bit per byte that the grid at hand, or else the last one, has written. Empty before its first write.
    by_grid: Vec<u64>,
    /// The same of the grids before that one which it may overlap with.
    by_grids_before: Vec<u64>,
}

/// A bit mask of `n` bits from bit `at % 64`, which must not cross the word.
fn bits(at: usize, n: usize) -> u64 {
    let ones = if n >= 64 { u64::MAX } else { (1u64 << n) - 1 };
    ones << (at % 64)
}

/// Sets or clears the bits of a range of bytes.
fn set(mask: &mut [u64], at: usize, n: usize, to: bool) {
    let mut i = at;
    while i < at + n {
        let step = (64 - i % 64).min(at + n - i);
        let m = bits(i, step);
        if to {
            mask[i / 64] |= m;
        } else {
            mask[i / 64] &= !m;
        }
        i += step;
    }
}

impl Allocation {
    fn new(name: &str, base: u64, size: usize) -> Self {
        Self {
            name: name.to_string(),
            base,
            bytes: vec![0; size],
            init: vec![0; size.div_ceil(64)],
            read_only: false,
            by_grid: Vec::new(),
            by_grids_before: Vec::new(),
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// All bytes, written or not.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether every byte of the range was written.
    pub fn initialised(&self, at: usize, n: usize) -> bool {
        let (mut i, end) = (at, at + n);
        let whole = |i: usize| i.is_multiple_of(64) && end - i >= 64;
        while i < end {
            if whole(i) {
                let words = (end - i) / 64;
                // No early end: a loop over vectors.
                let all = self.init[i / 64..][..words]
                    .iter()
                    .fold(u64::MAX, |all, w| all & w);
                if all != u64::MAX {
                    return false;
                }
                i += 64 * words;
                continue;
            }
            let step = (64 - i % 64).min(end - i);
            let m = bits(i, step);
            if self.init[i / 64] & m != m {
                return false;
            }
            i += step;
        }
        true
    }

    /// First byte of the range that nothing wrote.
    fn first_uninitialised(&self, at: usize, n: usize) -> usize {
        (at..at + n)
            .find(|&i| !self.initialised(i, 1))
            .unwrap_or(at)
    }

    fn mark(&mut self, at: usize, n: usize, written: bool) {
        set(&mut self.init, at, n, written);
    }

    /// The grid at hand writes these bytes.
    fn mark_of_grid(&mut self, at: usize, n: usize) {
        self.begin_writes_of_grid();
        set(&mut self.by_grid, at, n, true);
    }

    /// From here on what the grid at hand writes is marked.
    pub(crate) fn begin_writes_of_grid(&mut self) {
        if self.by_grid.is_empty() {
            self.by_grid = vec![0; self.init.len()];
        }
    }

    /// Bytes that must all have been written.
    pub(crate) fn get<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        let bytes = self.bytes.get(at..)?.first_chunk()?;
        self.initialised(at, N).then_some(bytes)
    }

    /// Writes bytes, which must lie inside. They count as the grid's where those are marked.
    pub(crate) fn put<const N: usize>(&mut self, at: usize, data: &[u8; N]) {
        if let Some(to) = self.bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *to = *data;
        }
        for marks in [&mut self.init, &mut self.by_grid] {
            match marks.get_mut(at / 64) {
                Some(word) if at % 64 + N <= 64 => *word |= bits(at, N),
                Some(_) => set(marks, at, N, true),
                None => {}
            }
        }
    }

    /// A grid begins: what the last one wrote counts as written before. What those before it wrote still does, if this
    /// one may overlap with them.
    fn begin_grid(&mut self, overlaps: bool) {
        let last = std::mem::take(&mut self.by_grid);
        if !overlaps {
            self.by_grids_before = Vec::new();
        } else if self.by_grids_before.is_empty() {
            self.by_grids_before = last;
        } else {
            for (all, last) in self.by_grids_before.iter_mut().zip(last) {
                *all |= last;
            }
        }
    }

    /// The bytes are the host's: no grid has written them.
    pub(crate) fn forget_grids(&mut self, at: usize, n: usize) {
        for written in [&mut self.by_grid, &mut self.by_grids_before] {
            if !written.is_empty() {
                set(written, at, n, false);
            }
        }
    }

    /// The first byte of the range that a grid before this one wrote.
    fn first_of_grids_before(&self, at: usize, n: usize) -> Option<usize> {
        if self.by_grids_before.is_empty() {
            return None;
        }
        let mut i = at;
        while i < at + n {
            let step = (64 - i % 64).min(at + n - i);
            let found = self.by_grids_before[i / 64] & bits(i, step);
            if found != 0 {
                return Some(i / 64 * 64 + found.trailing_zeros() as usize);
            }
            i += step;
        }
        None
    }

    /// Writes from the host, whatever the protection. The range must lie inside.
    pub fn upload(&mut self, at: usize, data: &[u8]) {
        self.bytes[at..at + data.len()].copy_from_slice(data);
        self.mark(at, data.len(), true);
    }

    /// Counts every byte as written. A new allocation holds zeros then.
    pub fn written(&mut self) {
        self.mark(0, self.bytes.len(), true);
    }

    /// Forgets that anything was written.
    pub fn poison(&mut self) {
        self.init.fill(0);
    }
}

/// A memory of one space.
#[derive(Debug, Clone)]
pub struct Region {
    space: Space,
    allocations: Vec<Allocation>,
    /// The allocation hit last: most accesses hit the same one again.
    last: usize,
}

impl Region {
    /// Empty.
    pub fn new(space: Space) -> Self {
        Self {
            space,
            allocations: Vec::new(),
            last: 0,
        }
    }

    /// Its space.
    pub fn space(&self) -> Space {
        self.space
    }

    /// All allocations, sorted by address.
    pub fn allocations(&self) -> &[Allocation] {
        &self.allocations
    }

    /// Adds an uninitialised allocation at an address that nothing else overlaps.
    pub fn add(&mut self, name: &str, base: u64, size: usize) -> &mut Allocation {
        let i = self.allocations.partition_point(|a| a.base < base);
        self.allocations
            .insert(i, Allocation::new(name, base, size));
        &mut self.allocations[i]
    }

    /// Takes out the allocation that starts at `base`.
    pub fn remove(&mut self, base: u64) -> Option<Allocation> {
        let i = self.allocations.binary_search_by_key(&base, |a| a.base);
        i.ok().map(|i| self.allocations.remove(i))
    }

    /// Takes out all allocations that start below an address.
    pub fn take_below(&mut self, end: u64) -> Vec<Allocation> {
        let n = self.allocations.partition_point(|a| a.base < end);
        self.allocations.drain(..n).collect()
    }

    /// Puts in an allocation, which nothing else overlaps.
    pub fn put(&mut self, a: Allocation) {
        let i = self.allocations.partition_point(|b| b.base < a.base);
        self.allocations.insert(i, a);
    }

    /// The allocation that starts at `base`.
    pub fn at(&self, base: u64) -> Option<&Allocation> {
        self.allocations
            .binary_search_by_key(&base, |a| a.base)
            .ok()
            .map(|i| &self.allocations[i])
    }

    /// The allocation that starts at `base`.
    pub fn at_mut(&mut self, base: u64) -> Option<&mut Allocation> {
        let i = self
            .allocations
            .binary_search_by_key(&base, |a| a.base)
            .ok()?;
        Some(&mut self.allocations[i])
    }

    /// Forgets all contents, keeps the allocations: a new CTA finds nothing written.
    pub fn poison_all(&mut self) {
        for a in &mut self.allocations {
            a.poison();
        }
    }

    /// Fills all allocations with bytes of a generator: as though something had run before.
    pub fn upload_stale(&mut self, seed: u64) {
        let mut state = seed;
        for a in &mut self.allocations {
            let mut byte = || {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 56) as u8
            };
            let bytes: Vec<u8> = (0..a.bytes.len()).map(|_| byte()).collect();
            a.upload(0, &bytes);
        }
    }

    fn find(&mut self, address: u64, size: u32) -> Option<(usize, usize)> {
        let inside = |a: &Allocation| {
            let offset = address.wrapping_sub(a.base);
            let end = offset.checked_add(u64::from(size))?;
            (end <= a.bytes.len() as u64).then_some(offset as usize)
        };
        if let Some(offset) = self.allocations.get(self.last).and_then(inside) {
            return Some((self.last, offset));
        }
        let i = self
            .allocations
            .partition_point(|a| a.base <= address)
            .checked_sub(1)?;
        let offset = inside(&self.allocations[i])?;
        self.last = i;
        Some((i, offset))
    }

    fn nearest(&self, address: u64, size: u32) -> Option<Nearest> {
        self.allocations
            .iter()
            .map(|a| {
                let end = a.base + a.size();
                let distance = if address < a.base {
                    -(i64::try_from(a.base - address).unwrap_or(i64::MAX))
                } else {
                    // Past the end by the first byte outside.
                    let last = address.saturating_add(u64::from(size));
                    i64::try_from(last.saturating_sub(end)).unwrap_or(i64::MAX)
                };
                Nearest {
                    name: a.name.clone(),
                    base: a.base,
                    size: a.size(),
                    distance,
                }
            })
            .min_by_key(|n| n.distance.unsigned_abs())
    }

    fn locate(
        &mut self,
        address: u64,
        size: u32,
        align: u32,
        what: &str,
    ) -> Result<(usize, usize), Fault> {
        if !address.is_multiple_of(u64::from(align.max(1))) {
            return Err(Fault {
                kind: ViolationKind::Misaligned,
                message: format!(
                    "misaligned {what} of {size} bytes in {} memory: the address must be a multiple of {align}",
                    self.space.name()
                ),
                address: Some(address),
                nearest: None,
            });
        }
        match self.find(address, size) {
            Some(x) => Ok(x),
            None => Err(Fault {
                kind: ViolationKind::OutOfBounds,
                message: format!(
                    "{what} of {size} bytes outside every allocation of {} memory",
                    self.space.name()
                ),
                address: Some(address),
                nearest: self.nearest(address, size),
            }),
        }
    }

    /// Reads `out.len()` bytes. The inner result is the fault of bytes that nothing wrote; the
    /// bytes are delivered all the same, for callers that only warn.
    pub fn read(
        &mut self,
        address: u64,
        align: u32,
        out: &mut [u8],
    ) -> Result<Result<(), Fault>, Fault> {
        let size = out.len() as u32;
        let (i, at) = self.locate(address, size, align, "read")?;
        let a = &self.allocations[i];
        out.copy_from_slice(&a.bytes[at..at + out.len()]);
        if a.initialised(at, out.len()) {
            return Ok(Ok(()));
        }
        let first = a.first_uninitialised(at, out.len());
        Ok(Err(Fault {
            kind: ViolationKind::Uninitialised,
            message: format!(
                "read of {size} bytes of {} memory that nothing wrote: {}+{first}",
                self.space.name(),
                a.name
            ),
            address: Some(address),
            nearest: None,
        }))
    }

    /// Writes bytes.
    pub fn write(&mut self, address: u64, align: u32, data: &[u8]) -> Result<(), Fault> {
        let (i, at) = self.locate(address, data.len() as u32, align, "write")?;
        let a = &mut self.allocations[i];
        if a.read_only {
            return Err(Fault {
                kind: ViolationKind::ReadOnly,
                message: format!("write to {}, which is read-only", a.name),
                address: Some(address),
                nearest: None,
            });
        }
        a.upload(at, data);
        if self.space == Space::Global {
            a.mark_of_grid(at, data.len());
        }
        Ok(())
    }

    /// Writes pieces that all lie in the `span` of so many bytes from an address on, and counts the `marks`, which
    /// are the same bytes, as written. `false`, and nothing is written, where the span does not lie in one
    /// allocation that may be written.
    pub fn write_all<'d>(
        &mut self,
        span: (u64, u64),
        pieces: impl Iterator<Item = (u64, &'d [u8])>,
        marks: impl Iterator<Item = (u64, u64)>,
    ) -> bool {
        let Some(a) = self.writable(span) else {
            return false;
        };
        for (start, data) in pieces {
            let at = (start - a.base) as usize;
            let to = &mut a.bytes[at..at + data.len()];
            // What a swizzle leaves side by side: of known length it is a move, not a call.
            match (to.first_chunk_mut::<16>(), data.first_chunk::<16>()) {
                (Some(to), Some(data16)) if data.len() == 16 => *to = *data16,
                _ => to.copy_from_slice(data),
            }
        }
        self.mark_all(span, marks);
        true
    }

    /// The allocation that holds a span of so many bytes from an address on, if it may be written.
    fn writable(&mut self, (start, size): (u64, u64)) -> Option<&mut Allocation> {
        let (i, _) = self.find(start, u32::try_from(size).ok()?)?;
        let a = &mut self.allocations[i];
        (!a.read_only).then_some(a)
    }

    /// Counts ranges of a span as written.
    fn mark_all(&mut self, span: (u64, u64), marks: impl Iterator<Item = (u64, u64)>) {
        let of_grid = self.space == Space::Global;
        let Some(a) = self.writable(span) else {
            return;
        };
        for (start, size) in marks {
            let (at, size) = ((start - a.base) as usize, size as usize);
            a.mark(at, size, true);
            if of_grid {
                a.mark_of_grid(at, size);
            }
        }
    }

    /// The same for bytes that a swizzle permutes in the range that they fill. `false` also where there is nothing to
    /// be had of some source, and then some of them may have been written.
    pub fn write_permuted<'d>(
        &mut self,
        span: (u64, u64),
        sources: impl Iterator<Item = Option<(u64, Swizzle, &'d [u8])>>,
        marks: impl Iterator<Item = (u64, u64)>,
    ) -> bool {
        let Some(a) = self.writable(span) else {
            return false;
        };
        for source in sources {
            let Some((start, swizzle, data)) = source else {
                return false;
            };
            let at = (start - a.base) as usize;
            let to = &mut a.bytes[at..at + data.len()];
            if swizzle == Swizzle::None {
                to.copy_from_slice(data);
            } else {
                swizzle.permute(start as u32, data, to);
            }
        }
        self.mark_all(span, marks);
        true
    }

    /// The bytes of a range, and for each whether it was written.
    pub fn copy_out(&mut self, address: u64, size: u32) -> Result<(Vec<u8>, Vec<bool>), Fault> {
        let (i, at) = self.locate(address, size, 1, "read")?;
        let a = &self.allocations[i];
        let n = size as usize;
        let init = if a.initialised(at, n) {
            vec![true; n]
        } else {
            (at..at + n).map(|b| a.initialised(b, 1)).collect()
        };
        Ok((a.bytes[at..at + n].to_vec(), init))
    }

    /// Makes bytes uninitialised.
    pub fn forget(&mut self, address: u64, size: u32) -> Result<(), Fault> {
        let (i, at) = self.locate(address, size, 1, "write")?;
        self.allocations[i].mark(at, size as usize, false);
        Ok(())
    }

    /// A grid begins, which may overlap with the last one or not.
    pub(crate) fn begin_grid(&mut self, overlaps: bool) {
        for a in &mut self.allocations {
            a.begin_grid(overlaps);
        }
    }

    /// The first byte of a range that a grid wrote which this one may overlap with: the allocation's name, and where in
    /// it.
    pub(crate) fn of_grids_before(&mut self, address: u64, size: u32) -> Option<(&str, usize)> {
        let (i, at) = self.find(address, size)?;
        let a = &self.allocations[i];
        let first = a.first_of_grids_before(at, size as usize)?;
        Some((&a.name, first))
    }

    /// Whether a byte lies in an allocation.
    pub fn holds(&self, address: u64) -> bool {
        let after = self.allocations.partition_point(|a| a.base <= address);
        let before = after.checked_sub(1).and_then(|i| self.allocations.get(i));
        before.is_some_and(|a| address - a.base < a.size())
    }

    /// The bytes of a range, if all of them lie in one allocation and were written.
    pub fn written(&self, address: u64, n: usize) -> Option<&[u8]> {
        let i = self
            .allocations
            .partition_point(|a| a.base <= address)
            .checked_sub(1)?;
        let a = &self.allocations[i];
        let at = (address - a.base) as usize;
        let bytes = a.bytes.get(at..at.checked_add(n)?)?;
        a.initialised(at, n).then_some(bytes)
    }

    /// Reads bytes that must all have been written; `false` if they were not, or are nowhere.
    pub fn peek(&self, address: u64, out: &mut [u8]) -> bool {
        let found = self.written(address, out.len());
        if let Some(bytes) = found {
            out.copy_from_slice(bytes);
        }
        found.is_some()
    }

    /// The allocation that holds a range, if no access to it is refused but for what nothing wrote.
    pub(crate) fn plain(
        &mut self,
        address: u64,
        size: u32,
        writes: bool,
    ) -> Option<&mut Allocation> {
        let (i, _) = self.find(address, size)?;
        let a = &mut self.allocations[i];
        let refuses = writes && a.read_only || !a.by_grids_before.is_empty();
        (!refuses).then_some(a)
    }

    /// Checks that a range lies inside an allocation, without reading it.
    pub fn check(&mut self, address: u64, size: u32, align: u32, what: &str) -> Result<(), Fault> {
        self.locate(address, size, align, what).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_alignment_and_initialisation() {
        let mut r = Region::new(Space::Global);
        r.add("a", 0x1000, 100);
        r.add("b", 0x2000, 8);
        let mut four = [0; 4];
        assert_eq!(
            r.read(0x1000, 4, &mut four).unwrap().unwrap_err().kind,
            ViolationKind::Uninitialised
        );
        r.write(0x1060, 4, &[1, 2, 3, 4]).unwrap();
        r.read(0x1060, 4, &mut four).unwrap().unwrap();
        assert_eq!(four, [1, 2, 3, 4]);
        assert_eq!(
            r.write(0x1061, 4, &four).unwrap_err().kind,
            ViolationKind::Misaligned
        );
        let f = r.write(0x1064, 4, &four).unwrap_err();
        assert_eq!(
            (f.kind, f.nearest.unwrap().distance),
            (ViolationKind::OutOfBounds, 4)
        );
        let f = r.write(0x1ff8, 8, &[0; 8]).unwrap_err();
        let n = f.nearest.unwrap();
        assert_eq!((n.name.as_str(), n.distance), ("b", -8));
        assert!(r.write(u64::MAX - 3, 1, &four).is_err());
    }

    #[test]
    fn initialisation_is_per_byte_across_words() {
        let mut r = Region::new(Space::Shared);
        r.add("s", 0, 256);
        r.write(60, 1, &[9; 9]).unwrap();
        let mut out = [0; 9];
        r.read(60, 1, &mut out).unwrap().unwrap();
        let mut out = [0; 10];
        let f = r.read(60, 1, &mut out).unwrap().unwrap_err();
        assert!(f.message.contains("s+69"), "{}", f.message);
    }
}
