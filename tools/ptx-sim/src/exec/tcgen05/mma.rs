//! `tcgen05.mma`: operands are decoded and checked when it is issued; memory is read when it
//! completes.

use std::sync::Arc;

use super::{Pending, SharedView, TensorState, broken, shared_reads, tensor_address, trouble};
use crate::exec::Ctx;
use crate::exec::event::Event;
use crate::exec::machine::{Machine, Tried};
use crate::exec::pending::SharedReads;
use crate::exec::warp::Warp;
use crate::memory::Fault;
use crate::models::hazard::{AccessKind, OpClass};
use crate::models::idesc::Idesc;
use crate::models::relaxation::Relaxation;
use crate::models::smem_desc::SmemDesc;
use crate::models::tcgen05_mma::{
    AOperand, CtaMemory, Mma, MmaError, Owed, Scales, Summation, TmemBlock, execute,
};
use crate::models::tmem::Tmem;
use crate::program::{MmaA, MmaOperands};
use crate::trace::{Kind, Operation};

#[derive(Debug)]
struct MmaEvent {
    id: u64,
    /// Number of the operation's reads of shared memory in `Pending`.
    reads: u64,
    pc: usize,
    after: Vec<u64>,
    /// Linear CTAs, the even rank first.
    ctas: Vec<u32>,
    mma: Mma,
}

impl Event for MmaEvent {
    fn describe(&self) -> String {
        format!(
            "tcgen05.mma of CTA {}, accumulator {:#x}",
            self.ctas[0], self.mma.d.0
        )
    }

    fn trace(&self) -> Operation {
        let i = &self.mma.idesc;
        Operation {
            kind: Kind::Mma,
            name: format!("mma {}x{}", i.m, i.n),
            details: vec![
                ("accumulator", format!("{:#x}", self.mma.d.0).into()),
                ("accumulates", self.mma.accumulate.into()),
                ("ctas", self.ctas.len().into()),
            ],
            barriers: Vec::new(),
        }
    }

    fn pc(&self) -> usize {
        self.pc
    }

    fn ready(&self, m: &Machine<'_>) -> bool {
        m.tensor.over(&self.after)
    }

    fn complete(self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        let unwritten = if Owed::takes(&self.mma) {
            let mut owed = m.tensor.owed.remove(&self.ctas[0]).unwrap_or_default();
            let result = m.with_owing_tmem(&self.ctas, |m, indices, memories| {
                on_memories(m, indices, memories, |ctas| match ctas.pop() {
                    Some(memory) => owed.execute(&self.mma, memory),
                    None => Ok(()),
                })
            });
            m.tensor.owed.insert(self.ctas[0], owed);
            result?
        } else {
            m.with_tmem(&self.ctas, |m, indices, memories| {
                on_memories(m, indices, memories, |ctas| execute(&self.mma, ctas))
            })?
        };
        m.tensor_done(self.id, self.reads, self.pc, unwritten);
        Ok(())
    }
}

/// Instructions whose footprints are kept at most: a kernel has some for each stage of its ring.
const KEPT: usize = 256;

/// Memory that an MMA touches.
#[derive(Debug)]
pub(super) struct Touched {
    /// Shared memory that is read: the owner is the CTA's place in the group.
    shared: Vec<SharedReads>,
    /// Tensor memory that is read, apart from D.
    tensor: Vec<TmemBlock>,
    d: Vec<TmemBlock>,
}

impl Touched {
    fn of(mma: &Mma) -> Result<Self, MmaError> {
        let mut all = mma.footprint()?;
        Ok(Self {
            shared: shared_reads(&[0, 1], &mut all.shared_reads),
            tensor: all.tmem_reads,
            d: all.d,
        })
    }

    /// Shared memory of these CTAs that is read.
    fn reads_of(&self, ctas: &[u32]) -> Vec<SharedReads> {
        let of_cta = |r: &SharedReads| {
            let owner = *ctas.get(r.owner as usize)?;
            let parts = r.parts.clone();
            Some(SharedReads { owner, parts })
        };
        self.shared.iter().filter_map(of_cta).collect()
    }
}

impl TensorState {
    /// Memory that an MMA touches. Loops issue the same MMAs again and again.
    fn footprint(&mut self, mma: &Mma) -> Result<Arc<Touched>, MmaError> {
        // D is touched whether it is read or not.
        let key = Mma {
            accumulate: false,
            ..*mma
        };
        if let Some(known) = self.footprints.get(&key) {
            return Ok(known.clone());
        }
        let new = Arc::new(Touched::of(mma)?);
        if self.footprints.len() >= KEPT {
            self.footprints.clear();
        }
        self.footprints.insert(key, new.clone());
        Ok(new)
    }
}

/// Executes on the memories of some CTAs; whether bytes were read that nothing wrote.
fn on_memories(
    m: &Machine<'_>,
    indices: &[usize],
    memories: &mut [Tmem],
    f: impl FnOnce(&mut Vec<CtaMemory<'_, SharedView<'_>>>) -> Result<(), MmaError>,
) -> Result<bool, Fault> {
    let shared: Vec<_> = indices
        .iter()
        .map(|i| SharedView::new(&m.ctas[*i].shared, m.options))
        .collect();
    for tmem in memories.iter_mut() {
        tmem.set_lenient(m.options.allows(Relaxation::Unwritten));
    }
    let mut ctas: Vec<_> = shared
        .iter()
        .zip(memories.iter_mut())
        .map(|(shared, tmem)| CtaMemory { shared, tmem })
        .collect();
    let result = f(&mut ctas).map_err(broken);
    drop(ctas);
    let in_shared = shared.iter().any(SharedView::took_unwritten);
    let in_tmem = memories
        .iter_mut()
        .fold(false, |any, t| t.set_lenient(false) | any);
    result.map(|()| in_shared || in_tmem)
}

/// Names accumulator and shape: equal keys are pipelined.
fn key(m: &Mma) -> u64 {
    let (i, d) = (&m.idesc, u64::from(m.d.0));
    d << 24 | u64::from(i.m) << 12 | u64::from(i.n) << 2 | m.group.ctas() as u64
}

impl Machine<'_> {
    pub(super) fn tensor_mma(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        lane: u32,
        o: &MmaOperands,
    ) -> Tried<()> {
        let t = trouble(lane);
        let get = |s| w.get(c.program, s)[lane as usize];
        let descriptor =
            |which, s| SmemDesc::decode(get(s)).map_err(|e| t(broken(format!("{which}: {e}"))));
        let idesc = Idesc::decode(get(o.idesc) as u32, o.kind).map_err(|e| t(broken(e)))?;
        let a = match o.a {
            MmaA::Descriptor(s) => AOperand::Shared(descriptor("A", s)?),
            MmaA::Tensor(a) => AOperand::Tmem(tensor_address(c, w, a, lane)),
        };
        let mut disable_lanes = [0; 8];
        for (d, s) in disable_lanes.iter_mut().zip(&o.disable) {
            *d = get(*s) as u32;
        }
        let mut mma = Mma {
            group: o.group,
            idesc,
            d: tensor_address(c, w, o.d, lane),
            a,
            b: descriptor("B", o.b)?,
            accumulate: w.pred(o.enable_d) >> lane & 1 == 1,
            scale_input_d: o.scale_d.unwrap_or(0),
            scales: o.scales.map(|(vec, a, b)| Scales {
                vec,
                a: tensor_address(c, w, a, lane),
                b: tensor_address(c, w, b, lane),
            }),
            disable_lanes,
            summation: Summation::default(),
        };
        if let Some(rule) = mma.rule(self.options.sums).map_err(|why| c.no_rule(why))? {
            mma.summation = Summation::By(rule);
        }
        let footprint = self.tensor.footprint(&mma).map_err(|e| t(broken(e)))?;
        let ctas = self.tensor_group(c.cta, o.group).map_err(&t)?;
        let reads = footprint.reads_of(&ctas);
        let what = OpClass::Mma(key(&mma));
        let after = self.tensor.before(what, ctas[0], self.options);
        let issuer = (self.ctas[c.cta].linear, w.index, lane);
        if let Some(h) = &mut self.hazards
            && let Some(op) = h.begin(issuer, what)
        {
            // With one for both, no range has another.
            if let AOperand::Tmem(_) = mma.a {
                h.expects(op, issuer.0, mma.b.swizzle);
            } else if let AOperand::Shared(a) = mma.a
                && a.swizzle == mma.b.swizzle
            {
                h.expects(op, issuer.0, a.swizzle);
            }
            h.op_shared((op, issuer.0), &reads, c.pc);
            let mut blocks = |list: &[TmemBlock], kind| {
                for b in list {
                    h.op_tensor(
                        op,
                        ctas[b.cta],
                        (b.lane, b.lanes),
                        (b.column, b.columns),
                        kind,
                        c.pc,
                    );
                }
            };
            blocks(&footprint.tensor, AccessKind::Read);
            blocks(&footprint.d, AccessKind::Write);
            self.remember(issuer, op);
        }
        self.check_hazards().map_err(&t)?;
        let reads = self.begin_reads(c.pc, &reads).map_err(&t)?;
        let id = self.tensor_issue(Pending {
            what,
            issuer,
            store: false,
            unit: ctas[0],
        });
        self.events.push(Box::new(MmaEvent {
            id,
            reads,
            pc: c.pc,
            after,
            ctas,
            mma,
        }));
        Ok(())
    }
}
