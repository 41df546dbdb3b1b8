//! `tcgen05.ld`, `.st`, `.wait` and `.fence`.

use super::{Pending, broken, tensor_address, uniform};
use crate::exec::event::Event;
use crate::exec::machine::{Machine, Tried, Trouble};
use crate::exec::warp::{Part, State, Wait, Warp};
use crate::exec::{Ctx, Flow, lanes};
use crate::memory::Fault;
use crate::models::hazard::{AccessKind, Fence, OpClass};
use crate::models::relaxation::Relaxation;
use crate::models::tcgen05_ld_st::LdSt;
use crate::models::tmem::TmemAddr;
use crate::program::{Dst, Src, TensorAddr};
use crate::trace::{Kind, Operation};

#[derive(Debug)]
enum Data {
    Load(Vec<Dst>),
    Store(Vec<[u32; 32]>),
}

#[derive(Debug)]
struct LdStEvent {
    id: u64,
    pc: usize,
    cta: u32,
    warp: u32,
    shape: LdSt,
    address: TmemAddr,
    data: Data,
}

impl Event for LdStEvent {
    fn describe(&self) -> String {
        let name = if matches!(self.data, Data::Load(_)) {
            "ld"
        } else {
            "st"
        };
        format!(
            "tcgen05.{name} of CTA {} warp {} at {:#x}",
            self.cta, self.warp, self.address.0
        )
    }

    fn trace(&self) -> Operation {
        let (kind, name) = match self.data {
            Data::Load(_) => (Kind::Ld, "ld"),
            Data::Store(_) => (Kind::St, "st"),
        };
        Operation {
            kind,
            name: format!("{name} {:#x} of warp {}", self.address.0, self.warp),
            details: vec![("address", format!("{:#x}", self.address.0).into())],
            barriers: Vec::new(),
        }
    }

    fn pc(&self) -> usize {
        self.pc
    }

    fn ready(&self, _: &Machine<'_>) -> bool {
        true
    }

    fn complete(self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        let (shape, warp, address) = (self.shape, self.warp, self.address);
        let (cta, values) = m.with_tmem(&[self.cta], |_, indices, memories| {
            let tmem = &mut memories[0];
            let values = match &self.data {
                Data::Load(_) => shape.load(tmem, warp, address).map_err(broken)?,
                Data::Store(v) => {
                    shape.store(tmem, warp, address, v).map_err(broken)?;
                    Vec::new()
                }
            };
            Ok((indices[0], values))
        })?;
        if let (Data::Load(d), Some(Some(w))) =
            (&self.data, m.ctas[cta].warps.get_mut(warp as usize))
        {
            for (d, row) in d.iter().zip(&values) {
                if let Some(r) = w.regs.get_mut(d.0 as usize) {
                    *r = row.map(u64::from);
                }
            }
        }
        m.tensor.pending.remove(&self.id);
        Ok(())
    }
}

impl Machine<'_> {
    pub(super) fn tensor_load(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        shape: &LdSt,
        d: &[Dst],
        address: TensorAddr,
    ) -> Tried<()> {
        w.poison.insert(d.iter().map(|r| r.0));
        self.start(c, w, shape, address, Data::Load(d.to_vec()))
    }

    pub(super) fn tensor_store(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        shape: &LdSt,
        s: &[Src],
        address: TensorAddr,
    ) -> Tried<()> {
        let values = s
            .iter()
            .map(|s| w.get(c.program, *s).map(|v| v as u32))
            .collect();
        self.start(c, w, shape, address, Data::Store(values))
    }

    fn start(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        shape: &LdSt,
        address: TensorAddr,
        data: Data,
    ) -> Tried<()> {
        uniform(c, w, address.base, "tensor memory addresses")?;
        let mut address = tensor_address(c, w, address, 0);
        if self.options.allows(Relaxation::LaneBits) && shape.check(w.index, address).is_err() {
            let lanes = shape.lanes();
            let own = 32 * (w.index % 4) + address.lane() % 32 / lanes * lanes;
            let own = TmemAddr::new(own, address.column());
            if shape.check(w.index, own).is_ok() {
                let (lane, here) = (address.lane(), own.lane());
                let message = format!("the address says lane {lane}, the warp reaches lane {here}");
                self.note(Relaxation::LaneBits, c.pc, message);
                address = own;
            }
        }
        shape
            .check(w.index, address)
            .map_err(|e| Trouble::Fault(broken(e), None))?;
        let cta = self.ctas[c.cta].linear;
        let store = matches!(data, Data::Store(_));
        if let Some(h) = &mut self.hazards {
            let Some(op) = h.begin((cta, w.index, 0), OpClass::LdSt) else {
                return Ok(());
            };
            let kind = if store {
                AccessKind::Write
            } else {
                AccessKind::Read
            };
            for columns in shape.columns(address) {
                let lanes = (address.lane(), shape.lanes());
                h.op_tensor(op, cta, lanes, columns, kind, c.pc);
            }
            self.tensor
                .unwaited
                .entry((cta, w.index, store))
                .or_default()
                .push(op);
        }
        self.check_hazards().map_err(|f| Trouble::Fault(f, None))?;
        if let (Data::Load(d), true) = (&data, self.options.allows(Relaxation::LoadedRegisters)) {
            // The loaded values are complete when they are used: nothing between here and there may change the columns
            // that are read.
            let values = self.with_tmem(&[cta], |_, _, memories| {
                shape.load(&memories[0], w.index, address).map_err(broken)
            });
            let values = values.map_err(|f| Trouble::Fault(f, None))?;
            for (d, row) in d.iter().zip(&values) {
                if let Some(r) = w.regs.get_mut(d.0 as usize) {
                    *r = row.map(u64::from);
                }
            }
            return Ok(());
        }
        let id = self.tensor_issue(Pending {
            what: OpClass::LdSt,
            issuer: (cta, w.index, 0),
            store,
            unit: cta,
        });
        let event = LdStEvent {
            id,
            pc: c.pc,
            cta,
            warp: w.index,
            shape: *shape,
            address,
            data,
        };
        self.events.push(Box::new(event));
        Ok(())
    }

    /// Registers of loads were used before a wait, which is allowed: these loads have read tensor memory.
    pub(in crate::exec) fn tensor_loads_used(&mut self, cta: usize, w: &Warp) {
        let cta = self.ctas[cta].linear;
        let Some(issued) = self.tensor.unwaited.get(&(cta, w.index, false)) else {
            return;
        };
        let read: Vec<_> = w
            .poison
            .used()
            .filter_map(|n| issued.get(n).copied())
            .collect();
        if let Some(h) = &mut self.hazards {
            h.waited(cta, w.index, &read);
        }
    }

    pub(super) fn tensor_wait(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        stores: bool,
    ) -> Tried<Flow> {
        let cta = self.ctas[c.cta].linear;
        if !self.tensor.waited(cta, w.index, stores) {
            cur.state = State::Blocked(Wait::Tensor {
                warp: w.index,
                stores,
            });
            return Ok(Flow::Stop);
        }
        if !stores {
            w.poison.clear();
        }
        let done = self
            .tensor
            .unwaited
            .remove(&(cta, w.index, stores))
            .unwrap_or_default();
        if let Some(h) = &mut self.hazards {
            h.waited(cta, w.index, &done);
        }
        Ok(Flow::Next)
    }

    pub(super) fn tensor_fence(&mut self, c: &Ctx<'_>, w: &Warp, after: bool) {
        let cta = self.ctas[c.cta].linear;
        let Some(h) = &mut self.hazards else { return };
        let fence = if after {
            Fence::Tcgen05After
        } else {
            Fence::Tcgen05Before
        };
        for lane in lanes(c.active) {
            h.fence((cta, w.index, lane), fence);
        }
    }
}
