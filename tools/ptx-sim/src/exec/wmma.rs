//! `wmma`: fragments of a warp from and to memory, and their products.

use super::Ctx;
use super::machine::{Machine, OfLane, Place, Tried, sync_fault};
use super::tcgen05::uniform;
use super::warp::Warp;
use crate::memory::Fault;
use crate::models::wmma::Fragment;
use crate::program::{Addr, Lanes, Src, Wmma};
use crate::report::ViolationKind;

impl Machine<'_> {
    pub(super) fn wmma(&mut self, c: &Ctx<'_>, w: &mut Warp, i: &Wmma) -> Tried<()> {
        if c.active != u32::MAX {
            return Err(sync_fault("matrix instructions need all 32 lanes"));
        }
        let get = |w: &Warp, s: &[Src]| -> Vec<Lanes> {
            s.iter().map(|s| *w.get(c.program, *s)).collect()
        };
        let (d, out) = match i {
            Wmma::Load {
                fragment,
                by_columns,
                d,
                addr,
                stride,
            } => {
                let places = self.wmma_places(c, w, (fragment, *by_columns), addr, *stride)?;
                let mut elements = Vec::with_capacity(places.len());
                for (element, at) in places.into_iter().enumerate() {
                    let actor = c.actor(self, w, fragment.place(element).1 as u32);
                    let (mut bytes, n) = ([0; 4], fragment.bits / 8);
                    self.read(actor, at, n as u32, &mut bytes[..n])?;
                    elements.push(u32::from_le_bytes(bytes));
                }
                (d, fragment.registers(&elements))
            }
            Wmma::Store {
                fragment,
                by_columns,
                s,
                addr,
                stride,
            } => {
                let places = self.wmma_places(c, w, (fragment, *by_columns), addr, *stride)?;
                let elements = fragment.elements(&get(w, s));
                for (element, (at, v)) in places.into_iter().zip(elements).enumerate() {
                    let actor = c.actor(self, w, fragment.place(element).1 as u32);
                    let n = fragment.bits / 8;
                    self.write(actor, at, n as u32, &v.to_le_bytes()[..n])?;
                }
                return Ok(());
            }
            Wmma::Mma {
                product,
                d,
                s: [a, b, of_c],
            } => {
                let rule = product.rule(self.options.sums);
                let rule = rule.map_err(|why| c.no_rule(why))?;
                (d, product.run(&get(w, a), &get(w, b), &get(w, of_c), rule))
            }
        };
        for (d, v) in d.iter().zip(&out) {
            if let Some(d) = d {
                w.set(c.program, *d, v, c.active);
            }
        }
        Ok(())
    }

    /// Places of a fragment's elements in memory.
    fn wmma_places(
        &self,
        c: &Ctx<'_>,
        w: &Warp,
        (f, by_columns): (&Fragment, bool),
        addr: &Addr,
        stride: Src,
    ) -> Tried<Vec<Place>> {
        let base = uniform(c, w, addr.base, "addresses")?;
        let stride = uniform(c, w, stride, "strides")? & 0xffff_ffff;
        let bytes = f.bits as u64 / 8;
        let start = self.locate(c, addr, base, 0)?;
        // "Aligned with the size of the corresponding fragment"; CUDA asks for no more than 16 bytes.
        let align = (4 * f.registers as u64).min(16);
        if !start.address.is_multiple_of(align) || !(stride * bytes).is_multiple_of(align) {
            let why = format!("a line of a wmma matrix starts at no multiple of {align} bytes");
            let fault = Fault::new(ViolationKind::Misaligned, why);
            return Err(fault.at(start.address).of_lane(0));
        }
        let place = |i: usize| {
            let (line, at) = ((i / f.length) as u64, (i % f.length) as u64);
            let element = match by_columns == f.by_columns {
                true => line * stride + at,
                false => at * stride + line,
            };
            let base = base.wrapping_add(element * bytes);
            self.locate(c, addr, base, f.place(i).1 as u32)
        };
        (0..f.lines * f.length).map(place).collect()
    }
}
