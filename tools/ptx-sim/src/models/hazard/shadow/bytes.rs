//! The state of each byte of a memory.

use std::collections::BTreeMap;

/// Bytes that mostly have one state.
const GRAIN: u64 = 16;
/// Grains of a page.
const GRAINS: u64 = 256;
/// Bytes of a page.
const PAGE: u64 = GRAIN * GRAINS;
/// Pages that are found by index: 4 MiB, more than any shared memory.
const NEAR: u64 = 1024;

/// The state of bytes that nothing has touched.
pub(super) const NONE: u32 = 0;
/// Set in a grain whose bytes have states of their own: the rest is an index of [`Fine::grains`].
const FINE: u32 = 1 << 31;

/// The state of each grain, or where those of its bytes are.
type Page = [u32; GRAINS as usize];

/// Bytes side by side with one state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) state: u32,
}

fn push(runs: &mut Vec<Run>, start: u64, end: u64, state: u32) {
    match runs.last_mut() {
        Some(last) if last.state == state && last.end == start => last.end = end,
        _ => runs.push(Run { start, end, state }),
    }
}

/// The pages of a memory, by number.
#[derive(Debug, Clone, Default)]
struct Pages {
    near: Vec<Option<Box<Page>>>,
    far: BTreeMap<u64, Box<Page>>,
}

impl Pages {
    fn get(&self, number: u64) -> Option<&Page> {
        if number < NEAR {
            self.near.get(number as usize)?.as_deref()
        } else {
            self.far.get(&number).map(|p| &**p)
        }
    }

    fn get_mut(&mut self, number: u64) -> &mut Page {
        let new = || Box::new([NONE; GRAINS as usize]);
        if number < NEAR {
            let at = number as usize;
            if self.near.len() <= at {
                self.near.resize(at + 1, None);
            }
            self.near[at].get_or_insert_with(new)
        } else {
            self.far.entry(number).or_insert_with(new)
        }
    }

    /// Numbers of the pages that are there, from one to another.
    fn within(&self, first: u64, last: u64) -> Vec<u64> {
        let near = first..last.saturating_add(1).min(self.near.len() as u64);
        let near = near.filter(|n| self.near[*n as usize].is_some());
        near.chain(self.far.range(first..=last).map(|p| *p.0))
            .collect()
    }
}

/// One memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pages: Pages,
    fine: Fine,
}

impl Memory {
    /// Appends the runs of some ranges.
    pub(super) fn runs(&self, ranges: impl Iterator<Item = (u64, u64)>, runs: &mut Vec<Run>) {
        // Mostly many of them lie in one page.
        let mut last = (u64::MAX, None);
        for (start, end) in ranges {
            let mut at = start;
            while at < end {
                let number = at / PAGE;
                if last.0 != number {
                    last = (number, self.pages.get(number));
                }
                let to = (number + 1).saturating_mul(PAGE).min(end);
                match last.1 {
                    Some(page) => self.runs_of_page(page, at, to, runs),
                    None => push(runs, at, to, NONE),
                }
                at = to;
            }
        }
    }

    /// The runs of a range that have been touched.
    pub(super) fn touched(&self, start: u64, end: u64) -> Vec<Run> {
        let mut runs = Vec::new();
        if start < end {
            for number in self.pages.within(start / PAGE, (end - 1) / PAGE) {
                let (first, last) = (number * PAGE, (number + 1).saturating_mul(PAGE));
                if let Some(page) = self.pages.get(number) {
                    self.runs_of_page(page, start.max(first), end.min(last), &mut runs);
                }
            }
        }
        runs.retain(|r| r.state != NONE);
        runs
    }

    /// The runs of a part of a page.
    #[inline(always)]
    fn runs_of_page(&self, page: &Page, start: u64, end: u64, runs: &mut Vec<Run>) {
        let mut at = start;
        while at < end {
            let mut grain = (at / GRAIN % GRAINS) as usize;
            let mut to = (at / GRAIN + 1) * GRAIN;
            let cell = page[grain];
            if cell & FINE == 0 {
                // Takes as many grains as have the same cell.
                while to < end && page.get(grain + 1) == Some(&cell) {
                    grain += 1;
                    to += GRAIN;
                }
                push(runs, at, to.min(end), cell);
            } else {
                let bytes = &self.fine.grains[(cell & !FINE) as usize];
                for b in at..to.min(end) {
                    push(runs, b, b + 1, bytes[(b % GRAIN) as usize]);
                }
            }
            at = to;
        }
    }

    /// Gives the bytes of some runs another state.
    pub(super) fn assign(&mut self, runs: impl Iterator<Item = Run>, state: u32) {
        let Self { pages, fine } = self;
        let mut last: Option<(u64, &mut Page)> = None;
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let number = at / PAGE;
                let page = match last.take() {
                    Some((of, page)) if of == number => page,
                    _ => pages.get_mut(number),
                };
                let end = (number + 1).saturating_mul(PAGE).min(run.end);
                fine.assign(page, (at, end), state);
                last = Some((number, page));
                at = end;
            }
        }
    }
}

/// States of single bytes, by grains that have more than one.
#[derive(Debug, Clone, Default)]
struct Fine {
    grains: Vec<[u32; GRAIN as usize]>,
    unused: Vec<u32>,
}

impl Fine {
    /// Gives bytes of a page another state.
    #[inline]
    fn assign(&mut self, page: &mut Page, (start, end): (u64, u64), state: u32) {
        let mut at = start;
        while at < end {
            let first = (at / GRAIN % GRAINS) as usize;
            let whole = match at.is_multiple_of(GRAIN) {
                true => (end - at) / GRAIN,
                false => 0,
            };
            if whole > 0 {
                for cell in &mut page[first..first + whole as usize] {
                    if *cell & FINE != 0 {
                        self.unused.push(*cell & !FINE);
                    }
                    *cell = state;
                }
                at += whole * GRAIN;
                continue;
            }
            let to = (at / GRAIN + 1).saturating_mul(GRAIN).min(end);
            let bytes = self.of(&mut page[first]);
            let first = (at % GRAIN) as usize;
            bytes[first..first + (to - at) as usize].fill(state);
            at = to;
        }
    }

    /// The states of the bytes of a grain, which are apart from here on.
    fn of(&mut self, cell: &mut u32) -> &mut [u32; GRAIN as usize] {
        if *cell & FINE == 0 {
            let i = self.unused.pop().unwrap_or_else(|| {
                self.grains.push([NONE; GRAIN as usize]);
                self.grains.len() as u32 - 1
            });
            self.grains[i as usize] = [*cell; GRAIN as usize];
            *cell = FINE | i;
        }
        &mut self.grains[(*cell & !FINE) as usize]
    }
}
