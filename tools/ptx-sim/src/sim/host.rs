//! Functions that a stand-in for a driver needs beyond one launch: buffers at addresses of its choice, which outlive a
//! module, and a module's variables by name.

use super::{BUFFER_ALIGN, Buffer, GUARD, Sim, total};
use crate::error::SimError;
use crate::memory::layout::{CONST, GLOBAL, GLOBAL_VARS, WINDOW, generic_base};
use crate::memory::{Allocation, Space};
use crate::program::{Program, Variable};

/// Buffers on their way from one [`Sim`] to another: [`Sim::take_buffers`].
#[derive(Debug, Default)]
pub struct Buffers {
    allocations: Vec<Allocation>,
    bytes: u64,
}

/// A variable of a module, in global or constant memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Generic address of the variable.
    pub address: u64,
    /// Size of the variable in bytes.
    pub size: u64,
    /// Whether the variable lies in constant memory.
    pub constant: bool,
}

impl Sim {
    /// Whether buffers may have these addresses: no variable, and nothing but global memory, has them.
    pub fn is_buffer_address(address: u64) -> bool {
        (GLOBAL..GLOBAL_VARS).contains(&address)
    }

    /// Whether a variable of a module may have a generic address.
    pub fn may_be_variable(address: u64) -> bool {
        address.wrapping_sub(CONST) < WINDOW || address.wrapping_sub(GLOBAL_VARS) < WINDOW
    }

    /// First address that a buffer may have.
    pub const FIRST_ADDRESS: u64 = GLOBAL;

    /// Allocates a buffer whose bytes nothing has written, at an address. It must not overlap another.
    pub fn alloc_at(&mut self, name: &str, address: u64, size: usize) -> Result<Buffer, SimError> {
        let refuse = |m: &str| Err(SimError::Launch(format!("buffer {name}: {m}")));
        if size == 0 {
            return refuse("it has no bytes");
        }
        let end = address.checked_add(size as u64);
        let Some(end) = end.filter(|end| address >= GLOBAL && *end <= GLOBAL_VARS) else {
            return refuse("its address is outside of what buffers may have");
        };
        let overlaps = |a: &Allocation| a.base < end && address < a.base + a.size();
        if self.global.allocations().iter().any(overlaps) {
            return refuse("its address is another's");
        }
        self.take_for_buffer(name, size)?;
        // Buffers that `alloc` places later go behind this one.
        let behind = end.saturating_add(GUARD).next_multiple_of(BUFFER_ALIGN);
        self.next = self.next.max(behind);
        self.global.add(name, address, size);
        Ok(Buffer { address, size })
    }

    /// Gives a buffer's memory back. An access to it is an error from now on.
    pub fn free(&mut self, b: Buffer) {
        if let Some(a) = self.global.remove(b.address) {
            self.memory.used -= a.size();
        }
    }

    /// All grids have ended: a dependent launch that comes next finds nothing that one before it may still write.
    pub fn grids_ended(&mut self) {
        self.global.begin_grid(false);
    }

    /// Whether all of these bytes of a buffer were written.
    pub fn written(&self, b: Buffer, at: usize, size: usize) -> bool {
        let end = at.checked_add(size);
        end.is_some_and(|end| end <= b.size)
            && self
                .global
                .at(b.address)
                .is_some_and(|a| a.initialised(at, size))
    }

    /// Copies from buffer to buffer. Bytes that nothing wrote stay so.
    pub fn copy(
        &mut self,
        (to, to_at): (Buffer, usize),
        (from, from_at): (Buffer, usize),
        size: usize,
    ) -> Result<(), SimError> {
        let outside = |b: Buffer, at: usize| at.checked_add(size).is_none_or(|end| end > b.size);
        if outside(to, to_at) || outside(from, from_at) {
            return Err(SimError::Launch("copy outside a buffer".into()));
        }
        let Some(source) = self.global.at(from.address) else {
            return Err(SimError::Launch(
                "copy from a buffer that is not there".into(),
            ));
        };
        let bytes = source.bytes()[from_at..from_at + size].to_vec();
        let written: Option<Vec<bool>> = match source.initialised(from_at, size) {
            true => None,
            false => Some(
                (0..size)
                    .map(|i| source.initialised(from_at + i, 1))
                    .collect(),
            ),
        };
        self.write(to, to_at, &bytes)?;
        for (i, written) in written.into_iter().flatten().enumerate() {
            if !written {
                let address = to.address + (to_at + i) as u64;
                let _ = self.global.forget(address, 1);
            }
        }
        Ok(())
    }

    /// Takes all buffers out, for [`put_buffers`](Self::put_buffers) of another module's simulator. Variables stay.
    pub fn take_buffers(&mut self) -> Buffers {
        let allocations = self.global.take_below(GLOBAL_VARS);
        let bytes = allocations.iter().map(Allocation::size).sum();
        self.memory.used -= bytes;
        Buffers { allocations, bytes }
    }

    /// Puts in buffers that [`take_buffers`](Self::take_buffers) took out. There must be no others here.
    pub fn put_buffers(&mut self, buffers: Buffers) {
        self.memory.used += buffers.bytes;
        for a in buffers.allocations {
            self.global.put(a);
        }
    }

    /// Places global variables with their first values, unless that was done.
    pub(super) fn place_variables(&mut self, program: &Program) {
        if self.variables_placed {
            return;
        }
        self.variables_placed = true;
        for v in program.global.iter().filter(|v| v.size > 0) {
            let a = self.global.add(&v.name, v.address, v.size as usize);
            a.written();
            a.upload(0, v.init.as_deref().unwrap_or_default());
        }
    }

    fn find<'p>(program: &'p Program, name: &str) -> Option<(&'p Variable, bool)> {
        let constant = program.constant.iter().map(|v| (v, true));
        let mut all = program.global.iter().map(|v| (v, false)).chain(constant);
        all.find(|(v, _)| v.name == name)
    }

    /// A global or constant variable of the module, as one of its kernels sees it.
    pub fn symbol(program: &Program, name: &str) -> Option<Symbol> {
        let (v, constant) = Self::find(program, name)?;
        let base = match constant {
            true => generic_base(Space::Const),
            false => 0,
        };
        Some(Symbol {
            address: v.address + base,
            size: v.size,
            constant,
        })
    }

    /// Names of the module's global and constant variables.
    pub fn symbols(program: &Program) -> impl Iterator<Item = &str> {
        let all = program.global.iter().chain(&program.constant);
        all.filter(|v| v.size > 0).map(|v| v.name.as_str())
    }

    /// The bytes of a global or constant variable. Zeros where nothing was written: variables begin so.
    pub fn read_symbol(&mut self, program: &Program, name: &str) -> Result<Vec<u8>, SimError> {
        let (v, constant) = Self::known(program, name)?;
        if !constant {
            self.place_variables_within(program)?;
            let there = self.global.at(v.address).map(|a| a.bytes().to_vec());
            return Ok(there.unwrap_or_default());
        }
        let mut bytes = self
            .constants
            .get(name)
            .or(v.init.as_ref())
            .cloned()
            .unwrap_or_default();
        bytes.resize(v.size as usize, 0);
        Ok(bytes)
    }

    /// Writes into a global or constant variable, as a host does between launches.
    pub fn write_symbol(
        &mut self,
        program: &Program,
        name: &str,
        at: usize,
        data: &[u8],
    ) -> Result<(), SimError> {
        let (v, constant) = Self::known(program, name)?;
        if at
            .checked_add(data.len())
            .is_none_or(|end| end as u64 > v.size)
        {
            return Err(SimError::Launch(format!(
                "variable {name} has {} bytes: {} bytes at {at} do not fit",
                v.size,
                data.len()
            )));
        }
        let mut bytes = self.read_symbol(program, name)?;
        bytes[at..at + data.len()].copy_from_slice(data);
        if constant {
            self.constants.insert(name.to_string(), bytes);
        } else if let Some(a) = self.global.at_mut(v.address) {
            a.upload(0, &bytes);
            a.forget_grids(at, data.len());
        }
        Ok(())
    }

    fn known<'p>(program: &'p Program, name: &str) -> Result<(&'p Variable, bool), SimError> {
        Self::find(program, name)
            .ok_or_else(|| SimError::Launch(format!("the module has no variable {name}")))
    }

    fn place_variables_within(&mut self, program: &Program) -> Result<(), SimError> {
        if !self.variables_placed {
            let bytes = total(&program.global);
            self.memory.take(|| "the global variables".into(), bytes)?;
        }
        self.place_variables(program);
        Ok(())
    }
}
