//! The CTAs on each multiprocessor, and whether there is room for more.

use crate::error::SimError;
use crate::program::Program;
use crate::sim::{Launch, Multiprocessors};

/// Resources that a CTA takes of a multiprocessor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    threads: u64,
    shared: u64,
}

impl Needs {
    pub(super) fn of(program: &Program, launch: &Launch) -> Self {
        let threads = launch.block.iter().map(|n| u64::from(*n)).product::<u64>();
        Self {
            threads: threads.next_multiple_of(32),
            // The system's KiB is in front of the kernel's shared memory.
            shared: program.dynamic_shared + u64::from(launch.shared),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Used {
    ctas: u32,
    threads: u64,
    shared: u64,
}

/// The multiprocessors of a run.
#[derive(Debug)]
pub(super) struct Room {
    each: Multiprocessors,
    used: Vec<Used>,
}

impl Room {
    /// With at least so many multiprocessors as the largest cluster has CTAs.
    pub(super) fn new(each: Multiprocessors, largest: u32) -> Self {
        let count = each.count.max(largest) as usize;
        Self {
            each,
            used: vec![Used::default(); count],
        }
    }

    /// Refuses a CTA that never fits.
    pub(super) fn check(&self, kernel: &str, needs: Needs) -> Result<(), SimError> {
        if self.fits(&Used::default(), needs) {
            return Ok(());
        }
        let Needs { threads, shared } = needs;
        Err(SimError::Launch(format!(
            "a CTA of {kernel} needs {threads} threads and {shared} bytes of shared memory, and a multiprocessor has \
             room for {} CTAs, {} threads and {} bytes",
            self.each.ctas, self.each.threads, self.each.shared
        )))
    }

    fn fits(&self, used: &Used, needs: Needs) -> bool {
        used.ctas < self.each.ctas
            && used.threads + needs.threads <= u64::from(self.each.threads)
            && used.shared + needs.shared <= u64::from(self.each.shared)
    }

    /// Takes room for the CTAs of a cluster, each on another multiprocessor: where most is taken already, so that grids
    /// meet.
    pub(super) fn take(&mut self, ctas: u32, needs: Needs) -> Option<Vec<u32>> {
        let mut places: Vec<u32> = (0..self.used.len() as u32).collect();
        places.retain(|sm| self.fits(&self.used[*sm as usize], needs));
        places.sort_by_key(|sm| std::cmp::Reverse(self.used[*sm as usize].ctas));
        if places.len() < ctas as usize {
            return None;
        }
        places.truncate(ctas as usize);
        for sm in &places {
            let used = &mut self.used[*sm as usize];
            used.ctas += 1;
            used.threads += needs.threads;
            used.shared += needs.shared;
        }
        Some(places)
    }

    /// Gives the room of a CTA back.
    pub(super) fn release(&mut self, sm: u32, needs: Needs) {
        let used = &mut self.used[sm as usize];
        used.ctas -= 1;
        used.threads -= needs.threads;
        used.shared -= needs.shared;
    }
}
