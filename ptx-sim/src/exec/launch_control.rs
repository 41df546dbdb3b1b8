//! `clusterlaunchcontrol`: every request to cancel a cluster fails.
//!
//! The ISA leaves open when a request succeeds, so a kernel must be right if none does.

use super::copies::Finish;
use super::machine::{Machine, Trouble};
use super::pieces::{From, Piece};
use super::transfer::refuse;
use super::warp::Warp;
use super::{Ctx, lanes};
use crate::memory::Space;
use crate::models::hazard::Proxy;
use crate::program::{LaunchControl, Src};

/// The response that says no. Opaque: nothing else is accepted as a response.
const REFUSED: [u64; 2] = [0x6e6f_7420_6361_6e63, 0x656c_6c65_6421_0000];

impl Machine<'_> {
    pub(super) fn launch_control(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        op: &LaunchControl,
    ) -> Result<(), Trouble> {
        match *op {
            LaunchControl::TryCancel { .. } => {
                for lane in lanes(c.active) {
                    self.try_cancel(c, w, lane, op)?;
                }
            }
            LaunchControl::IsCanceled { p, response } => {
                self.check_response(c, w, response)?;
                self.ctas[c.cta].refused = true;
                w.set_pred(p, 0, c.active);
            }
            LaunchControl::FirstCta { response } => {
                self.check_response(c, w, response)?;
                let lane = c.active.trailing_zeros();
                let message = "get_first_ctaid of a request that failed";
                return Err(refuse(lane, REFUSED[0], message));
            }
        }
        Ok(())
    }

    fn try_cancel(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        lane: u32,
        op: &LaunchControl,
    ) -> Result<(), Trouble> {
        let LaunchControl::TryCancel {
            response,
            mbarrier,
            everywhere,
        } = op
        else {
            return Ok(());
        };
        let value = |s: Src| w.get(c.program, s)[lane as usize];
        let to = self.locate(c, response, value(response.base), lane)?;
        let (owner, at) = self.mbarrier_place(c, mbarrier, value(mbarrier.base), lane)?;
        if self.ctas[c.cta].refused {
            let message = "try_cancel by a CTA that has seen an earlier one fail";
            return Err(refuse(lane, to.address, message));
        }
        if to.space != Space::Shared || to.owner != c.cta || owner != c.cta {
            let message = "the response and its mbarrier object lie in the CTA's shared memory";
            return Err(refuse(lane, to.address, message));
        }
        let targets = if *everywhere {
            self.clusters[self.ctas[c.cta].cluster].ctas.clone()
        } else {
            vec![c.cta]
        };
        for cta in targets {
            if self.ctas[cta].ended() {
                let message = "a multicast response to a CTA that has ended";
                return Err(refuse(lane, to.address, message));
            }
            self.region(Space::Shared, cta)
                .check(to.address, 16, 16, "asynchronous write")
                .map_err(|f| Trouble::Fault(f, Some(lane)))?;
            let response = REFUSED.iter().flat_map(|v| v.to_le_bytes()).collect();
            let range = self.range(Space::Shared, cta, to.address, 16);
            let piece = Piece::in_order(From::Data(response), range);
            let finish = Finish::Transaction {
                owner: self.ctas[cta].linear,
                at,
                bytes: 16,
            };
            self.issue(c, w, lane, vec![piece], None, (finish, Proxy::Async, None))?;
        }
        Ok(())
    }

    fn check_response(&self, c: &Ctx<'_>, w: &Warp, s: Src) -> Result<(), Trouble> {
        let (low, high) = (w.get(c.program, s), w.get(c.program, Src(s.0 + 1)));
        for lane in lanes(c.active) {
            let l = lane as usize;
            if [low[l], high[l]] != REFUSED {
                return Err(refuse(lane, low[l], "not the response of a try_cancel"));
            }
        }
        Ok(())
    }
}
