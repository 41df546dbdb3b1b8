//! Device memory, and host memory that the device sees.
//!
//! Device memory is a simulator's buffers: no host address leads to it, as on a GPU. What host and device share
//! (`cudaMallocManaged`, `cudaHostAlloc`) is real host memory at the address that the device sees. Its bytes are copied
//! into the simulator before a launch, and back after it.

use std::collections::BTreeMap;

use ptx_sim::{Buffer, Module, Sim};

use crate::code::{Code, Fail};

/// Allocations start at multiples of this, as `cudaMalloc` aligns them, and the host's pages.
const ALIGN: u64 = 4096;
/// Bytes between allocations that belong to nobody.
const GUARD: u64 = 4096;

/// Whose an allocation is.
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
    /// What the simulator calls it.
    pub name: String,
    /// Its place in the simulator.
    pub buffer: Buffer,
    /// Whose it is.
    pub kind: Kind,
    /// Bytes of host memory mapped at its address, if any.
    mapped: usize,
}

/// Where a pointer leads.
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

    /// Frees what starts at an address.
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

    /// The allocation that an address lies in, its end included if it is asked for.
    pub fn find(&self, address: u64) -> Option<&Allocation> {
        let (base, a) = self.allocations.range(..=address).next_back()?;
        (address - base < a.buffer.size as u64).then_some(a)
    }

    /// Where so many bytes from a pointer lie. What lies nowhere, or only in part in a buffer, is refused.
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
        if at + size > a.buffer.size {
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

    /// Copies what host and device share into the simulator.
    pub fn to_device(&mut self) -> Result<(), Fail> {
        for a in self.allocations.values().filter(|a| a.mapped > 0) {
            // SAFETY: these bytes are mapped from `allocate` to `free`, and every bit pattern is a byte. The program
            // must not write them while a launch begins, as CUDA says.
            let bytes =
                unsafe { std::slice::from_raw_parts(a.buffer.address as *const u8, a.buffer.size) };
            let written = self.sim.write(a.buffer, 0, bytes);
            written.map_err(|e| Fail::new(Code::UNKNOWN, e.to_string()))?;
        }
        Ok(())
    }

    /// Copies what host and device share back.
    pub fn to_host(&mut self) {
        for a in self.allocations.values().filter(|a| a.mapped > 0) {
            let bytes = self.sim.download(a.buffer);
            // SAFETY: as in `to_device`; the source is the simulator's own memory.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    a.buffer.address as *mut u8,
                    a.buffer.size,
                );
            }
        }
    }
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
