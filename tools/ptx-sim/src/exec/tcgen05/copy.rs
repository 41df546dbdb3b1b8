//! `tcgen05.cp`.

use super::{Pending, SharedView, broken, shared_reads, tensor_address, trouble};
use crate::exec::Ctx;
use crate::exec::event::Event;
use crate::exec::machine::{Machine, Tried};
use crate::exec::warp::Warp;
use crate::memory::Fault;
use crate::models::hazard::{AccessKind, OpClass};
use crate::models::smem_desc::SmemDesc;
use crate::models::tcgen05_cp::{CpFormat, CpShape, copy, source_ranges};
use crate::models::tmem::TmemAddr;
use crate::program::Tcgen05;
use crate::trace::{Kind, Operation};

#[derive(Debug)]
struct CpEvent {
    id: u64,
    /// Number of the operation's reads of shared memory in `Pending`.
    reads: u64,
    pc: usize,
    after: Vec<u64>,
    ctas: Vec<u32>,
    shape: CpShape,
    format: CpFormat,
    desc: SmemDesc,
    address: TmemAddr,
}

impl Event for CpEvent {
    fn describe(&self) -> String {
        format!(
            "tcgen05.cp of CTA {} to {:#x}",
            self.ctas[0], self.address.0
        )
    }

    fn trace(&self) -> Operation {
        Operation {
            kind: Kind::Cp,
            name: format!("cp → {:#x}", self.address.0),
            details: vec![
                ("to", format!("{:#x}", self.address.0).into()),
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
        let unwritten = m.with_tmem(&self.ctas, |m, indices, memories| {
            let mut unwritten = false;
            for (i, tmem) in indices.iter().zip(memories) {
                let shared = SharedView::new(&m.ctas[*i].shared, m.options);
                copy(
                    self.shape,
                    self.format,
                    &self.desc,
                    &shared,
                    tmem,
                    self.address,
                )
                .map_err(broken)?;
                unwritten |= shared.took_unwritten();
            }
            Ok(unwritten)
        })?;
        m.tensor_done(self.id, self.reads, self.pc, unwritten);
        Ok(())
    }
}

impl Machine<'_> {
    pub(super) fn tcgen05_copy(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        lane: u32,
        op: &Tcgen05,
    ) -> Tried<()> {
        let Tcgen05::Cp {
            group,
            shape,
            format,
            address,
            desc,
        } = op
        else {
            return Ok(());
        };
        let (shape, format) = (*shape, *format);
        let t = trouble(lane);
        let desc =
            SmemDesc::decode(w.get(c.program, *desc)[lane as usize]).map_err(|e| t(broken(e)))?;
        let address = tensor_address(c, w, *address, lane);
        let sources = source_ranges(shape, &desc).map_err(|e| t(broken(e)))?;
        let ctas = self.tensor_group(c.cta, *group).map_err(&t)?;
        let mut reads: Vec<_> = (0..ctas.len())
            .flat_map(|i| sources.iter().map(move |(a, n)| (i, *a, *n)))
            .collect();
        let reads = shared_reads(&ctas, &mut reads);
        let what = OpClass::Cp {
            is_4x256b: shape == CpShape::S4x256b,
        };
        let after = self.tensor.before(what, ctas[0], self.options);
        let issuer = (self.ctas[c.cta].linear, w.index, lane);
        if let Some(h) = &mut self.hazards
            && let Some(tracked) = h.begin(issuer, what)
        {
            h.expects(tracked, issuer.0, desc.swizzle);
            h.op_shared((tracked, issuer.0), &reads, c.pc);
            for linear in &ctas {
                let n = shape.row_bytes() / 4;
                h.op_tensor(
                    tracked,
                    *linear,
                    (0, 128),
                    (address.column(), n),
                    AccessKind::Write,
                    c.pc,
                );
            }
            self.remember(issuer, tracked);
        }
        self.check_hazards().map_err(&t)?;
        let reads = self.begin_reads(c.pc, &reads).map_err(&t)?;
        let id = self.tensor_issue(Pending {
            what,
            issuer,
            store: false,
            unit: ctas[0],
        });
        self.events.push(Box::new(CpEvent {
            id,
            reads,
            pc: c.pc,
            after,
            ctas,
            shape,
            format,
            desc,
            address,
        }));
        Ok(())
    }
}
