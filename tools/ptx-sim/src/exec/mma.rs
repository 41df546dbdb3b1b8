//! `mma.sync`: the fragments of a warp through the model.

use super::Ctx;
use super::machine::{Machine, Tried, sync_fault};
use super::tcgen05::uniform;
use super::warp::Warp;
use crate::models::mma_sync::Selector;
use crate::models::sums::Instruction;
use crate::program::{Lanes, MmaSync, Src};

impl Machine<'_> {
    pub(super) fn mma_sync(&mut self, c: &Ctx<'_>, w: &mut Warp, i: &MmaSync) -> Tried<()> {
        if c.active != u32::MAX {
            return Err(sync_fault("matrix instructions need all 32 lanes"));
        }
        let get = |s: &[Src]| -> Vec<Lanes> { s.iter().map(|s| *w.get(c.program, *s)).collect() };
        let mut mma = i.mma;
        if let Some(scales) = i.scales {
            let mut selectors = [Selector { byte: 0, thread: 0 }; 2];
            for (s, scales) in selectors.iter_mut().zip(scales) {
                let of = |s| uniform(c, w, s, "selectors of scales").map(|v| usize::from(v as u16));
                (s.byte, s.thread) = (of(scales.selector[0])?, of(scales.selector[1])?);
            }
            mma = mma
                .selecting(selectors)
                .map_err(|e| sync_fault(e.to_string()))?;
        }
        let rule = mma.rule(self.options.sums, Instruction::MmaSync);
        let rule = rule.map_err(|why| c.no_rule(why))?;
        let scales = i.scales.map(|s| s.map(|s| *w.get(c.program, s.register)));
        let scales = scales.as_ref().map(|[a, b]| [a, b]);
        let out = mma.run(&get(&i.a), &get(&i.b), &get(&i.c), scales, rule);
        let out = out.map_err(sync_fault)?;
        for (d, v) in i.d.iter().zip(&out) {
            if let Some(d) = d {
                w.set(c.program, *d, v, c.active);
            }
        }
        Ok(())
    }
}
