//! Registers of a warp that `wgmma` uses: those in use until a `wgmma.wait_group`, and those that were accessed since
//! the last `wgmma.fence`.

use std::cell::Cell;
use std::collections::BTreeMap;

/// The last access of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Not by `wgmma`.
    Ordinary,
    /// By `wgmma`, as a part of A.
    A,
    /// By `wgmma`, as a part of an accumulator of instructions of this shape, given by its key.
    Accumulator(u32),
}

/// The uses of a register, until they are waited for.
#[derive(Debug, Clone, Copy, Default)]
struct InUse {
    /// Operations that have it as a part of A.
    as_a: u32,
    /// The chain whose accumulator it is a part of.
    chain: Option<u64>,
}

/// Operations on one accumulator, in order.
#[derive(Debug, Clone)]
struct Chain {
    registers: Vec<u32>,
    key: u32,
    /// Operations that were not waited for.
    members: u32,
    /// The last one.
    last: u64,
}

/// An operation's registers.
#[derive(Debug, Clone)]
pub(crate) struct Operands {
    /// The accumulator.
    pub(crate) d: Vec<u32>,
    /// A, if it is in registers.
    pub(crate) a: Vec<u32>,
    /// See [`crate::models::wgmma::Shape::accumulator_key`].
    pub(crate) key: u32,
}

/// Place of an operation among those that were issued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The operation on the same accumulator that it comes after.
    pub(crate) after: Option<u64>,
    /// Description of accesses that only ptxas puts in order.
    pub(crate) lacks: Option<&'static str>,
}

/// The registers of a warp.
#[derive(Debug, Clone)]
pub(crate) struct Registers {
    /// `wgmma.fence`s executed.
    fences: u32,
    /// For each register: the number of fences before its last access, and the kind of that access.
    accessed: Vec<Cell<(u32, Access)>>,
    in_use: Vec<InUse>,
    chains: BTreeMap<u64, Chain>,
    touched: Cell<bool>,
}

impl Registers {
    /// The state of a warp with so many registers.
    pub(crate) fn new(registers: usize) -> Self {
        Self {
            fences: 0,
            accessed: vec![Cell::new((0, Access::Ordinary)); registers],
            in_use: vec![InUse::default(); registers],
            chains: BTreeMap::new(),
            touched: Cell::new(false),
        }
    }

    /// `wgmma.fence`.
    pub(crate) fn fence(&mut self) {
        self.fences += 1;
    }

    /// An instruction other than `wgmma` reads or writes a register.
    #[inline]
    pub(crate) fn note(&self, slot: u32) {
        let slot = slot as usize;
        self.accessed[slot].set((self.fences, Access::Ordinary));
        let used = &self.in_use[slot];
        if used.as_a != 0 || used.chain.is_some() {
            self.touched.set(true);
        }
    }

    /// Whether one that is in use was accessed since the last call.
    pub(crate) fn touched(&self) -> bool {
        self.touched.take()
    }

    /// Whether operations are in flight that were not waited for.
    pub(crate) fn busy(&self) -> bool {
        !self.chains.is_empty()
    }

    /// An operation is issued, or this is wrong. `compiled`: registers may also be accessed behind the fence, because
    /// ptxas puts such accesses in order itself.
    pub(crate) fn issue(
        &mut self,
        id: u64,
        o: &Operands,
        compiled: bool,
    ) -> Result<Place, &'static str> {
        let before = self.check_in_use(o)?;
        let lacks = self.check_fence(o, false).err();
        if lacks.is_some() {
            self.check_fence(o, compiled)?;
        }
        for r in &o.a {
            self.accessed[*r as usize].set((self.fences, Access::A));
            self.in_use[*r as usize].as_a += 1;
        }
        for r in &o.d {
            self.accessed[*r as usize].set((self.fences, Access::Accumulator(o.key)));
        }
        if let Some(chain) = before.and_then(|c| self.chains.get_mut(&c)) {
            chain.members += 1;
            let after = Some(std::mem::replace(&mut chain.last, id));
            return Ok(Place { after, lacks });
        }
        let chain = Chain {
            registers: o.d.clone(),
            key: o.key,
            members: 1,
            last: id,
        };
        self.chains.insert(id, chain);
        for r in &o.d {
            self.in_use[*r as usize].chain = Some(id);
        }
        Ok(Place { after: None, lacks })
    }

    /// The chain that an operation joins, if any; an error if it uses registers of others.
    fn check_in_use(&self, o: &Operands) -> Result<Option<u64>, &'static str> {
        let used = |r: &u32| self.in_use[*r as usize];
        if o.a.iter().any(|r| used(r).chain.is_some()) {
            return Err(
                "a register of A is the accumulator of a wgmma.mma_async that was not waited for",
            );
        }
        if o.d.iter().any(|r| used(r).as_a != 0) {
            return Err(
                "a register of the accumulator is A of a wgmma.mma_async that was not waited for",
            );
        }
        let Some(chain) = o.d.iter().find_map(|r| used(r).chain) else {
            return Ok(None);
        };
        let same = |c: &Chain| c.registers == o.d && c.key == o.key;
        match self.chains.get(&chain).is_some_and(same) {
            true => Ok(Some(chain)),
            false => Err(
                "the accumulator is that of a wgmma.mma_async of another shape, or with other registers, that was not waited for",
            ),
        }
    }

    /// Checks that no fence is missing: an access since the last fence must not be one that a fence has to order.
    fn check_fence(&self, o: &Operands, compiled: bool) -> Result<(), &'static str> {
        let since = |r: &u32| {
            let (fences, access) = self.accessed[*r as usize].get();
            (fences == self.fences).then_some(access)
        };
        let harmless = |access: Option<Access>, own: Access| match access {
            None => true,
            Some(Access::Ordinary) => compiled,
            Some(other) => other == own,
        };
        if !o.a.iter().all(|r| harmless(since(r), Access::A)) {
            return Err("a register of A was accessed since the last wgmma.fence");
        }
        let own = Access::Accumulator(o.key);
        if !o.d.iter().all(|r| harmless(since(r), own)) {
            return Err("a register of the accumulator was accessed since the last wgmma.fence");
        }
        Ok(())
    }

    /// An operation was waited for.
    pub(crate) fn release(&mut self, o: &Operands) {
        for r in &o.a {
            self.in_use[*r as usize].as_a -= 1;
        }
        let Some(id) = o.d.first().and_then(|r| self.in_use[*r as usize].chain) else {
            return;
        };
        let Some(chain) = self.chains.get_mut(&id) else {
            return;
        };
        chain.members -= 1;
        if chain.members == 0 {
            for r in &chain.registers {
                self.in_use[*r as usize].chain = None;
            }
            self.chains.remove(&id);
        }
    }
}
