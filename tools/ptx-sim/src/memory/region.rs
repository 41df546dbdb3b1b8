//! One memory: allocations sorted by address.

use super::{Allocation, Fault, Space};
use crate::models::swizzle::Swizzle;
use crate::report::{Nearest, ViolationKind};

/// Bytes for a range of memory in which a swizzle permutes them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permuted<'d> {
    /// Address and size of the range.
    pub(crate) to: u64,
    pub(crate) size: usize,
    pub(crate) swizzle: Swizzle,
    /// A row for each span of the swizzle, with the bytes that lie between rows. Without a swizzle, the bytes that fill
    /// the range.
    pub(crate) data: &'d [u8],
    /// Distance of rows, from start to start.
    pub(crate) pitch: usize,
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

    /// Space of the region.
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
            return Err(Fault::new(ViolationKind::Misaligned, format!(
                    "misaligned {what} of {size} bytes in {} memory: the address must be a multiple of {align}",
                    self.space.name()
                )).at(address));
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
        Ok(Err(Fault::new(
            ViolationKind::Uninitialised,
            format!(
                "read of {size} bytes of {} memory that nothing wrote: {}+{first}",
                self.space.name(),
                a.name
            ),
        )
        .at(address)))
    }

    /// Writes bytes.
    pub fn write(&mut self, address: u64, align: u32, data: &[u8]) -> Result<(), Fault> {
        let (i, at) = self.locate(address, data.len() as u32, align, "write")?;
        let a = &mut self.allocations[i];
        if a.read_only {
            return Err(Fault::new(
                ViolationKind::ReadOnly,
                format!("write to {}, which is read-only", a.name),
            )
            .at(address));
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
            // 16 bytes are a run that a swizzle leaves side by side: a copy of known length is a move, not a call.
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

    /// Writes bytes, as `write_all` does, that a swizzle permutes in the range that they fill. Returns `false` also
    /// where some source gives no bytes, and then some ranges may have been written.
    pub(crate) fn write_permuted<'d>(
        &mut self,
        span: (u64, u64),
        sources: impl Iterator<Item = Option<Permuted<'d>>>,
        marks: impl Iterator<Item = (u64, u64)>,
    ) -> bool {
        let Some(a) = self.writable(span) else {
            return false;
        };
        for source in sources {
            let Some(p) = source else {
                return false;
            };
            let at = (p.to - a.base) as usize;
            let to = &mut a.bytes[at..at + p.size];
            if p.swizzle == Swizzle::None {
                to.copy_from_slice(p.data);
            } else {
                p.swizzle.permute(p.to as u32, (p.data, p.pitch), to);
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

    /// A byte as the name of its allocation and where it is in that, for reports.
    pub(crate) fn name_of(&self, address: u64) -> String {
        let after = self.allocations.partition_point(|a| a.base <= address);
        match after.checked_sub(1).and_then(|i| self.allocations.get(i)) {
            Some(a) => format!("{}+{}", a.name, address - a.base),
            None => format!("0x{address:x}"),
        }
    }

    /// Whether a byte lies in an allocation.
    pub fn holds(&self, address: u64) -> bool {
        let after = self.allocations.partition_point(|a| a.base <= address);
        let before = after.checked_sub(1).and_then(|i| self.allocations.get(i));
        before.is_some_and(|a| address - a.base < a.size())
    }

    /// The bytes of a range, if all of them lie in one allocation and were written.
    pub fn written(&self, address: u64, n: usize) -> Option<&[u8]> {
        self.written_rows(address, (n, 0), 1)
    }

    /// The bytes from the first of some rows to the last, if all of them lie in one allocation and those of the rows
    /// were written. `size` is the bytes of a row, `pitch` the distance of rows from start to start.
    pub(crate) fn written_rows(
        &self,
        address: u64,
        (size, pitch): (usize, usize),
        count: usize,
    ) -> Option<&[u8]> {
        let i = self
            .allocations
            .partition_point(|a| a.base <= address)
            .checked_sub(1)?;
        let a = &self.allocations[i];
        let at = (address - a.base) as usize;
        let extent = pitch * count.saturating_sub(1) + size;
        let bytes = a.bytes.get(at..at.checked_add(extent)?)?;
        let written = a.initialised(at, extent)
            || count > 1 && (0..count).all(|row| a.initialised(at + row * pitch, size));
        written.then_some(bytes)
    }

    /// Reads bytes that must all have been written; `false` if they were not, or are nowhere.
    pub fn peek(&self, address: u64, out: &mut [u8]) -> bool {
        let found = self.written(address, out.len());
        if let Some(bytes) = found {
            out.copy_from_slice(bytes);
        }
        found.is_some()
    }

    /// The allocation that holds a range, if no access to it is refused except for bytes that nothing wrote.
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

    /// A byte is also forgotten where all of an allocation was written at once before.
    #[test]
    fn what_is_forgotten_is_not_written() {
        let mut r = Region::new(Space::Global);
        r.add("a", 0, 100).upload(0, &[1; 100]);
        assert!(r.written(0, 100).is_some());
        r.forget(40, 1).unwrap();
        assert!(r.written(0, 100).is_none() && r.written(41, 59).is_some());
        r.write(40, 1, &[2]).unwrap();
        assert!(r.written(0, 100).is_some());
        r.poison_all();
        assert!(r.written(7, 1).is_none());
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
