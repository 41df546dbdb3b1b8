//! A named piece of memory, with a bit per byte that says it was written.

/// A named piece of memory.
#[derive(Debug, Clone)]
pub struct Allocation {
    /// Name for reports.
    pub name: String,
    /// First address in its space.
    pub base: u64,
    pub(super) bytes: Vec<u8>,
    /// A bit per byte; sized like `bytes`, rounded up to words.
    init: Vec<u64>,
    /// All of the bits are known to be set. They may be set where this is false.
    all_written: bool,
    /// Writes by the kernel are errors.
    pub read_only: bool,
    /// A bit per byte that the grid at hand, or else the last one, has written. Empty before its first write.
    by_grid: Vec<u64>,
    /// A bit per byte that an earlier grid has written: one before the grid of `by_grid`, with which that grid may
    /// overlap.
    pub(super) by_grids_before: Vec<u64>,
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
    pub(super) fn new(name: &str, base: u64, size: usize) -> Self {
        Self {
            name: name.to_string(),
            base,
            bytes: vec![0; size],
            init: vec![0; size.div_ceil(64)],
            all_written: false,
            read_only: false,
            by_grid: Vec::new(),
            by_grids_before: Vec::new(),
        }
    }

    /// Size of the allocation in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// All bytes, written or not.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether every byte of the range was written.
    pub fn initialised(&self, at: usize, n: usize) -> bool {
        if self.all_written {
            return true;
        }
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
    pub(super) fn first_uninitialised(&self, at: usize, n: usize) -> usize {
        (at..at + n)
            .find(|&i| !self.initialised(i, 1))
            .unwrap_or(at)
    }

    pub(super) fn mark(&mut self, at: usize, n: usize, written: bool) {
        set(&mut self.init, at, n, written);
        self.all_written = written && (self.all_written || n == self.bytes.len());
    }

    /// The grid at hand writes these bytes.
    pub(super) fn mark_of_grid(&mut self, at: usize, n: usize) {
        self.begin_writes_of_grid();
        set(&mut self.by_grid, at, n, true);
    }

    /// From here on the writes of the grid at hand are marked.
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

    /// Writes bytes, which must lie inside. The bytes count as the grid's where its writes are marked.
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

    /// A grid begins: bytes that the last grid wrote count as written before. Bytes that the grids before the last
    /// wrote still do, if the new grid may overlap with these grids.
    pub(super) fn begin_grid(&mut self, overlaps: bool) {
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
    pub(super) fn first_of_grids_before(&self, at: usize, n: usize) -> Option<usize> {
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
        self.all_written = false;
    }
}
