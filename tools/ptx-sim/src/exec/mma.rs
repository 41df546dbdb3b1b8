//! `mma.sync`: the fragments of a warp through the model.

use super::Ctx;
use super::machine::{Machine, Trouble, sync_fault};
use super::warp::Warp;
use crate::program::{Lanes, MmaSync, Src};

impl Machine<'_> {
    pub(super) fn mma_sync(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        i: &MmaSync,
    ) -> Result<(), Trouble> {
        if c.active != u32::MAX {
            return Err(sync_fault("matrix instructions need all 32 lanes"));
        }
        let get = |s: &[Src]| -> Vec<Lanes> { s.iter().map(|s| *w.get(c.program, *s)).collect() };
        let scales = i.scales.map(|s| s.map(|s| *w.get(c.program, s)));
        let scales = scales.as_ref().map(|[a, b]| [a, b]);
        let out = i.mma.run(&get(&i.a), &get(&i.b), &get(&i.c), scales);
        let out = out.map_err(sync_fault)?;
        for (d, v) in i.d.iter().zip(&out) {
            if let Some(d) = d {
                w.set(c.program, *d, v, c.active);
            }
        }
        Ok(())
    }
}
