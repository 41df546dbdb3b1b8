//! Device memory, and host memory that the device sees.
//!
//! Device memory is a simulator's buffers: no host address leads to it, as on a GPU. Memory that host and device share
//! (`cudaMallocManaged`, `cudaHostAlloc`) is real host memory at the address that the device sees. Bytes of it that the
//! host has changed are copied into the simulator before a launch. Bytes that the launch has changed are copied back
//! after it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ptx_sim::{Buffer, Module, Sim, SimError};

use crate::code::{Code, Fail};

/// Allocations start at multiples of this, as `cudaMalloc` aligns them, and the host's pages.
const ALIGN: u64 = 4096;
/// Bytes between allocations that belong to nobody.
const GUARD: u64 = 4096;

/// Kind of an allocation: who owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The device's alone.
    Device,
    /// Pinned host memory.
    Host,
    /// Managed memory.
    Managed,
}

/// An allocation.
#[derive(Debug, Clone)]
pub struct Allocation {
    /// Name of the allocation in the simulator.
    pub name: String,
    /// Buffer of the allocation in the simulator.
    pub buffer: Buffer,
    /// Owner of the allocation.
    pub kind: Kind,
    /// Bytes of host memory mapped at its address, if any.
    mapped: usize,
}

/// Memory that a pointer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// To host memory.
    Host,
    /// Into a buffer, at an offset.
    Device(Buffer, usize),
}

/// All memory but the variables of modules.
#[derive(Debug)]
pub struct Memory {
    /// The buffers, while no launch has them.
    pub sim: Sim,
    allocations: BTreeMap<u64, Allocation>,
    next: u64,
    made: u64,
}

impl Memory {
    /// None, and at most so many bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            sim: Sim::with_memory(Module::default(), limit),
            allocations: BTreeMap::new(),
            next: Sim::FIRST_ADDRESS,
            made: 0,
        }
    }

    /// Bytes in all, and free ones.
    pub fn sizes(&self) -> (u64, u64) {
        (self.sim.memory_limit(), self.sim.free_memory())
    }

    /// All allocations, sorted by address.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.allocations.values()
    }

    /// Allocates; returns the address.
    pub fn allocate(&mut self, size: usize, kind: Kind) -> Result<u64, Fail> {
        let address = self.next;
        let behind = (size as u64)
            .checked_add(address + GUARD)
            .and_then(|end| end.checked_next_multiple_of(ALIGN))
            .filter(|end| Sim::is_buffer_address(*end));
        let Some(behind) = behind else {
            return Err(Fail::new(Code::OUT_OF_MEMORY, format!("{size} bytes")));
        };
        let name = format!("b{}", self.made);
        let buffer = self
            .sim
            .alloc_at(&name, address, size)
            .map_err(|e| Fail::new(Code::OUT_OF_MEMORY, e.to_string()))?;
        let mut mapped = 0;
        if kind != Kind::Device {
            mapped = size.next_multiple_of(ALIGN as usize);
            if let Err(e) = map(address, mapped) {
                self.sim.free(buffer);
                return Err(e);
            }
        }
        self.made += 1;
        self.next = behind;
        self.allocations.insert(
            address,
            Allocation {
                name,
                buffer,
                kind,
                mapped,
            },
        );
        Ok(address)
    }

    /// Frees the allocation that starts at an address.
    pub fn free(&mut self, address: u64) -> Result<(), Fail> {
        let Some(a) = self.allocations.remove(&address) else {
            return Err(Fail::value(format!("no allocation starts at {address:#x}")));
        };
        if a.mapped > 0 {
            // SAFETY: `allocate` mapped these pages, nothing else has them, and the program says that it is done.
            unsafe { libc::munmap(address as *mut libc::c_void, a.mapped) };
        }
        self.sim.free(a.buffer);
        Ok(())
    }

    /// The allocation that an address lies in.
    pub fn find(&self, address: u64) -> Option<&Allocation> {
        let (base, a) = self.allocations.range(..=address).next_back()?;
        (address - base < a.buffer.size as u64).then_some(a)
    }

    /// Place of so many bytes from a pointer. Bytes that lie nowhere, or only in part in a buffer, are refused.
    pub fn place(&self, pointer: u64, size: usize) -> Result<Place, Fail> {
        let Some(a) = self.find(pointer) else {
            if (Sim::FIRST_ADDRESS..self.next).contains(&pointer) {
                return Err(Fail::value(format!(
                    "device address {pointer:#x} belongs to no allocation"
                )));
            }
            return Ok(Place::Host);
        };
        let at = (pointer - a.buffer.address) as usize;
        if size > a.buffer.size - at {
            return Err(Fail::value(format!(
                "{size} bytes at offset {at} of an allocation of {} bytes",
                a.buffer.size
            )));
        }
        Ok(match a.kind {
            Kind::Device => Place::Device(a.buffer, at),
            Kind::Host | Kind::Managed => Place::Host,
        })
    }

    /// Copies bytes of shared allocations that the host has changed into the simulator. Returns the contents of the
    /// shared allocations then, for [`to_host`](Self::to_host).
    pub fn to_device(&mut self) -> Result<Vec<Shared>, Fail> {
        let fail = |e: SimError| Fail::new(Code::UNKNOWN, e.to_string());
        let mut all = Vec::new();
        for a in self.allocations.values().filter(|a| a.mapped > 0) {
            let bytes = read_mapped(a);
            if self.sim.fully_written(a.buffer) {
                // Bytes that kernels wrote stay theirs: a grid that overlaps with that one must not touch them.
                for range in differing(self.sim.download(a.buffer), &bytes) {
                    let part = &bytes[range.clone()];
                    let written = self.sim.write(a.buffer, range.start, part);
                    written.map_err(fail)?;
                }
            } else {
                self.sim.write(a.buffer, 0, &bytes).map_err(fail)?;
            }
            let address = a.buffer.address;
            all.push(Shared { address, bytes });
        }
        Ok(all)
    }

    /// Copies bytes of shared allocations that a launch has changed back to the host. Bytes that the launch has not
    /// changed stay as they are: another thread of the program may have written them meanwhile.
    pub fn to_host(&mut self, before: &[Shared]) {
        for shared in before {
            let Some(a) = self.allocations.get(&shared.address) else {
                continue;
            };
            let after = self.sim.download(a.buffer);
            for i in differing(&shared.bytes, after).into_iter().flatten() {
                let at = (shared.address as usize + i) as *mut u8;
                // SAFETY: the byte is mapped from `allocate` to `free`, and other threads of the program may use it
                // at the same time, which is why it is written atomically.
                unsafe { AtomicU8::from_ptr(at) }.store(after[i], Ordering::Relaxed);
            }
        }
    }
}

/// Contents of an allocation that host and device share, as it was when a launch began.
#[derive(Debug, Clone)]
pub struct Shared {
    address: u64,
    bytes: Vec<u8>,
}

/// The bytes of an allocation that host and device share, as the host has them.
fn read_mapped(a: &Allocation) -> Vec<u8> {
    let mut bytes = vec![0; a.mapped];
    for (i, to) in bytes.chunks_exact_mut(8).enumerate() {
        let at = (a.buffer.address as usize + 8 * i) as *mut u64;
        // SAFETY: whole pages are mapped from `allocate` to `free`, so all of these words are there. Other threads of
        // the program may write them at the same time, which is why they are read atomically.
        let word = unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Relaxed);
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes.truncate(a.buffer.size);
    bytes
}

/// Ranges in which two arrays of one length differ.
fn differing(a: &[u8], b: &[u8]) -> Vec<Range<usize>> {
    const CHUNK: usize = 64;
    let mut found: Vec<Range<usize>> = Vec::new();
    for (chunk, (x, y)) in a.chunks(CHUNK).zip(b.chunks(CHUNK)).enumerate() {
        if x == y {
            continue;
        }
        let start = chunk * CHUNK;
        for i in (0..x.len().min(y.len())).filter(|i| x[*i] != y[*i]) {
            match found.last_mut() {
                Some(last) if last.end == start + i => last.end += 1,
                _ => found.push(start + i..start + i + 1),
            }
        }
    }
    found
}

/// Maps zeros at an address, where nothing may be.
fn map(address: u64, size: usize) -> Result<(), Fail> {
    // SAFETY: MAP_FIXED_NOREPLACE takes no pages that are in use; the result is checked.
    let got = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if got as u64 == address {
        return Ok(());
    }
    let why = std::io::Error::last_os_error();
    if got != libc::MAP_FAILED {
        // SAFETY: an old kernel mapped these pages elsewhere; nobody knows of them.
        unsafe { libc::munmap(got, size) };
    }
    Err(Fail::new(
        Code::OUT_OF_MEMORY,
        format!("{size} bytes at {address:#x}: {why}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_differ() {
        let (a, mut b) = (vec![0u8; 200], vec![0u8; 200]);
        assert!(differing(&a, &b).is_empty());
        b[0] = 1;
        b[60..70].fill(2);
        b[199] = 3;
        assert_eq!(differing(&a, &b), [0..1, 60..70, 199..200]);
    }

    #[test]
    fn sizes_from_elsewhere() {
        let mut memory = Memory::new(1 << 20);
        let a = memory.allocate(100, Kind::Device).unwrap();
        for size in [101, usize::MAX, usize::MAX - a as usize] {
            assert!(memory.place(a, size).is_err() && memory.place(a + 99, size).is_err());
            assert!(memory.allocate(size.max(2 << 20), Kind::Managed).is_err());
        }
        assert!(memory.place(a + 99, 1).is_ok());
    }

    /// Allocates as a program does that wants to find out how much memory there is.
    #[test]
    fn more_than_the_machine_has_ends_no_program() {
        let mut memory = Memory::new(u64::MAX);
        for kind in [Kind::Device, Kind::Managed, Kind::Host] {
            let before = memory.sizes();
            match memory.allocate(7 << 40, kind) {
                Ok(address) => memory.free(address).unwrap(),
                Err(fail) => assert_eq!(fail.code, Code::OUT_OF_MEMORY),
            }
            assert_eq!(memory.sizes(), before);
        }
    }

    #[test]
    fn what_another_thread_writes_meanwhile_stays() {
        let mut memory = Memory::new(1 << 20);
        let a = memory.allocate(100, Kind::Managed).unwrap();
        let byte = |i: usize| {
            // SAFETY: 100 bytes are mapped at `a` until the end of the test.
            unsafe { AtomicU8::from_ptr((a as usize + i) as *mut u8) }
        };
        byte(0).store(1, Ordering::Relaxed);
        let before = memory.to_device().unwrap();
        let buffer = memory.find(a).unwrap().buffer;
        assert_eq!(memory.sim.download(buffer)[0], 1);
        // The launch writes one byte, the host another one.
        memory.sim.write(buffer, 1, &[2]).unwrap();
        byte(2).store(3, Ordering::Relaxed);
        memory.to_host(&before);
        let now = [0, 1, 2].map(|i| byte(i).load(Ordering::Relaxed));
        assert_eq!(now, [1, 2, 3]);
        memory.to_device().unwrap();
        assert_eq!(memory.sim.download(buffer)[..4], [1, 2, 3, 0]);
    }
}
