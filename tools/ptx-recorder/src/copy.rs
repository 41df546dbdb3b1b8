//! Copies and fills between host memory, buffers and variables.

use std::ops::Range;

use ptx_sim::SimError;

use crate::code::{Code, Fail};
use crate::memory::Place;
use crate::recorder::{Recorder, Target, Variable};

/// `cudaMemcpyKind`: the direction that a program gives a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From host to host.
    HostToHost,
    /// From host to device.
    HostToDevice,
    /// From device to host.
    DeviceToHost,
    /// From device to device.
    DeviceToDevice,
    /// The direction that the addresses tell.
    Addresses,
}

impl Direction {
    /// From CUDA's number.
    pub fn from_number(kind: u32) -> Result<Self, Fail> {
        Ok(match kind {
            0 => Self::HostToHost,
            1 => Self::HostToDevice,
            2 => Self::DeviceToHost,
            3 => Self::DeviceToDevice,
            4 => Self::Addresses,
            _ => return Err(Fail::value(format!("{kind} is no cudaMemcpyKind"))),
        })
    }

    fn ends(self) -> [Option<bool>; 2] {
        match self {
            Self::HostToHost => [Some(false), Some(false)],
            Self::HostToDevice => [Some(false), Some(true)],
            Self::DeviceToHost => [Some(true), Some(false)],
            Self::DeviceToDevice => [Some(true), Some(true)],
            Self::Addresses => [None, None],
        }
    }
}

fn of_sim(e: SimError) -> Fail {
    Fail::value(e.to_string())
}

impl Recorder {
    /// Whether an address agrees with a program's statement about it. Memory that host and device share counts as both.
    fn agrees(&self, what: &str, address: u64, target: &Target, device: bool) -> Result<(), Fail> {
        let shared = self.memory.find(address).is_some();
        let is_device = *target != Target::Place(Place::Host) || shared;
        let is_host = *target == Target::Place(Place::Host);
        if (device && is_device) || (!device && is_host) {
            return Ok(());
        }
        let (is, not) = match is_host {
            true => ("host", "device"),
            false => ("device", "host"),
        };
        Err(Fail::value(format!(
            "the {what} {address:#x} is {is} memory; the direction of the copy says {not} memory"
        )))
    }

    /// Copies.
    ///
    /// # Safety
    ///
    /// A range of the two that is host memory must be as large as `size`.
    pub unsafe fn copy(
        &mut self,
        to: u64,
        from: u64,
        size: usize,
        direction: Direction,
    ) -> Result<(), Fail> {
        if size == 0 {
            return Ok(());
        }
        let [source, destination] = direction.ends();
        let from_target = self.target_of(from, size)?;
        let to_target = self.target_of(to, size)?;
        if let Some(device) = source {
            self.agrees("source", from, &from_target, device)?;
        }
        if let Some(device) = destination {
            self.agrees("destination", to, &to_target, device)?;
        }
        if let (Target::Place(Place::Device(b, at)), Target::Place(Place::Device(a, from_at))) =
            (&to_target, &from_target)
        {
            let copied = self.memory.sim.copy((*b, *at), (*a, *from_at), size);
            return copied.map_err(of_sim);
        }
        let host = Target::Place(Place::Host);
        if from_target == host && to_target == host && from != 0 && to != 0 {
            // SAFETY: the caller says that both are as large. They may overlap.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
            return Ok(());
        }
        // SAFETY: the caller says that host ranges are as large.
        let bytes = unsafe { self.read_target(from, &from_target, size) }?;
        // SAFETY: as above.
        unsafe { self.write_target(to, &to_target, &bytes) }
    }

    /// Reads so many bytes.
    ///
    /// # Safety
    ///
    /// If it is host memory, it must be as large.
    pub unsafe fn read(&mut self, from: u64, size: usize) -> Result<Vec<u8>, Fail> {
        let target = self.target_of(from, size)?;
        // SAFETY: the caller's promise.
        unsafe { self.read_target(from, &target, size) }
    }

    /// Writes bytes.
    ///
    /// # Safety
    ///
    /// If it is host memory, it must be as large.
    pub unsafe fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), Fail> {
        let target = self.target_of(to, bytes.len())?;
        // SAFETY: the caller's promise.
        unsafe { self.write_target(to, &target, bytes) }
    }

    unsafe fn read_target(
        &mut self,
        from: u64,
        target: &Target,
        size: usize,
    ) -> Result<Vec<u8>, Fail> {
        match target {
            Target::Place(Place::Device(b, at)) => {
                if !self.memory.sim.written(*b, *at, size) && !self.settings.no_run {
                    crate::say(&format!(
                        "warning: a copy reads {size} bytes at {from:#x}, of which some were never written"
                    ));
                }
                Ok(self.memory.sim.download(*b)[*at..*at + size].to_vec())
            }
            Target::Variable(module, name, at) => {
                let bytes = self.read_variable(*module, name)?;
                Ok(bytes[*at..*at + size].to_vec())
            }
            Target::Place(Place::Host) if from == 0 => Err(Fail::value("the source is null")),
            Target::Place(Place::Host) => {
                let mut bytes = vec![0u8; size];
                // SAFETY: `bytes` has so many; the caller says that the program's memory has, too.
                unsafe {
                    std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), size);
                }
                Ok(bytes)
            }
        }
    }

    unsafe fn write_target(&mut self, to: u64, target: &Target, bytes: &[u8]) -> Result<(), Fail> {
        match target {
            Target::Place(Place::Device(b, at)) => {
                self.memory.sim.write(*b, *at, bytes).map_err(of_sim)
            }
            Target::Variable(module, name, at) => self.write_variable(*module, name, *at, bytes),
            Target::Place(Place::Host) if to == 0 => Err(Fail::value("the destination is null")),
            Target::Place(Place::Host) => {
                // SAFETY: the caller says that the program's memory is as large.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len());
                }
                Ok(())
            }
        }
    }

    /// The bytes of a variable.
    pub fn read_variable(&mut self, module: usize, name: &str) -> Result<Vec<u8>, Fail> {
        let ready = self.module(module)?;
        let program = ready.any()?;
        let read = ready.sim.read_symbol(&program, name);
        read.map_err(|e| Fail::new(Code::INVALID_SYMBOL, e.to_string()))
    }

    /// Writes into a variable.
    pub fn write_variable(
        &mut self,
        module: usize,
        name: &str,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), Fail> {
        let ready = self.module(module)?;
        let program = ready.any()?;
        let written = ready.sim.write_symbol(&program, name, at, bytes);
        written.map_err(|e| Fail::new(Code::INVALID_SYMBOL, e.to_string()))
    }

    /// Copies from the host or the device into a variable.
    ///
    /// # Safety
    ///
    /// If the source is host memory, it must be as large as `size`.
    pub unsafe fn copy_to_variable(
        &mut self,
        variable: &Variable,
        offset: usize,
        from: u64,
        size: usize,
    ) -> Result<(), Fail> {
        self.part_of_variable(variable, offset, size)?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.read(from, size) }?;
        self.write_variable(variable.module, &variable.name, offset, &bytes)
    }

    /// Copies from a variable to the host or the device.
    ///
    /// # Safety
    ///
    /// If the destination is host memory, it must be as large as `size`.
    pub unsafe fn copy_from_variable(
        &mut self,
        to: u64,
        variable: &Variable,
        offset: usize,
        size: usize,
    ) -> Result<(), Fail> {
        let part = self.part_of_variable(variable, offset, size)?;
        let bytes = self.read_variable(variable.module, &variable.name)?;
        // SAFETY: the caller's promise.
        unsafe { self.write(to, &bytes[part]) }
    }

    /// The bytes of a variable that a copy means; refused where it has fewer.
    fn part_of_variable(
        &mut self,
        v: &Variable,
        offset: usize,
        size: usize,
    ) -> Result<Range<usize>, Fail> {
        let (_, bytes) = self.get_variable(v.module, &v.name)?;
        match offset.checked_add(size) {
            Some(end) if end as u64 <= bytes => Ok(offset..end),
            _ => Err(Fail::value(format!(
                "{size} bytes at offset {offset} of variable {} of {bytes} bytes",
                v.name
            ))),
        }
    }

    /// Copies rows of `width` bytes that lie `pitch` bytes apart.
    ///
    /// # Safety
    ///
    /// Rows that are host memory must be there.
    pub unsafe fn copy_2d(
        &mut self,
        (to, to_pitch): (u64, usize),
        (from, from_pitch): (u64, usize),
        (width, height): (usize, usize),
        direction: Direction,
    ) -> Result<(), Fail> {
        if width > to_pitch || width > from_pitch {
            return Err(Fail::value("rows are wider than their pitch"));
        }
        if width == 0 || height == 0 {
            return Ok(());
        }
        for (start, pitch) in [(to, to_pitch), (from, from_pitch)] {
            self.target_of(start, extent(pitch, width, height)?)?;
        }
        for i in 0..height {
            let (to, from) = (row(to, to_pitch, i)?, row(from, from_pitch, i)?);
            // SAFETY: the caller says that each row is there.
            unsafe { self.copy(to, from, width, direction) }?;
        }
        Ok(())
    }

    /// Repeats a pattern over rows.
    ///
    /// # Safety
    ///
    /// Rows that are host memory must be there.
    pub unsafe fn fill(
        &mut self,
        (to, pitch): (u64, usize),
        pattern: &[u8],
        (elements, height): (usize, usize),
    ) -> Result<(), Fail> {
        let width = pattern.len().checked_mul(elements);
        let width = width.ok_or_else(|| Fail::value("too many bytes"))?;
        if height > 1 && width > pitch {
            return Err(Fail::value("rows are wider than their pitch"));
        }
        if width == 0 || height == 0 {
            return Ok(());
        }
        self.target_of(to, extent(pitch, width, height)?)?;
        let mut bytes = Vec::new();
        for i in 0..height {
            let to = row(to, pitch, i)?;
            let target = self.target_of(to, width)?;
            if target == Target::Place(Place::Host) {
                if to == 0 {
                    return Err(Fail::value("the destination is null"));
                }
                for at in 0..width {
                    // SAFETY: the caller says that the row is there, which has so many bytes.
                    unsafe { (to as *mut u8).add(at).write(pattern[at % pattern.len()]) };
                }
                continue;
            }
            // The row lies in a buffer or a variable: there are no more bytes than these have.
            if bytes.is_empty() {
                bytes = pattern.repeat(elements);
            }
            // SAFETY: it is no host memory.
            unsafe { self.write_target(to, &target, &bytes) }?;
        }
        Ok(())
    }
}

/// Bytes from the first row's beginning to the last one's end. All of them must lie in one allocation.
fn extent(pitch: usize, width: usize, height: usize) -> Result<usize, Fail> {
    let last = (height - 1).checked_mul(pitch);
    let end = last.and_then(|at| at.checked_add(width));
    end.ok_or_else(|| Fail::value("rows reach beyond all addresses"))
}

/// Address at which row `i` begins.
fn row(start: u64, pitch: usize, i: usize) -> Result<u64, Fail> {
    let at = (pitch as u64).checked_mul(i as u64);
    let at = at.and_then(|at| at.checked_add(start));
    at.ok_or_else(|| Fail::value("rows reach beyond all addresses"))
}
