//! `clusterlaunchcontrol`: requests to cancel a cluster that has not begun, and their responses.
//!
//! The ISA leaves open when a request succeeds. Here a request succeeds where a cluster is left, if the scheduler
//! grants it.

use super::copies::Finish;
use super::machine::{Machine, OfLane, Tried};
use super::pieces::{From, Piece};
use super::transfer::refuse;
use super::warp::Warp;
use super::{Ctx, lanes};
use crate::memory::Space;
use crate::models::hazard::Proxy;
use crate::program::{LaunchControl, Src};

/// The response that says no. Responses are opaque: nothing else is accepted as one.
const REFUSED: [u64; 2] = [0x6e6f_7420_6361_6e63, 0x656c_6c65_6421_0000];

/// The first half of one that says yes; the other one has the coordinates of the cancelled cluster's first CTA.
const GRANTED: u64 = 0x6361_6e63_656c_6c65;

/// A grid has at most 2^16 CTAs along y and z.
fn granted([x, y, z]: [u32; 3]) -> [u64; 2] {
    let [x, y, z] = [x, y, z].map(u64::from);
    [GRANTED, x | y << 32 | z << 48]
}

/// The coordinates in the second half of a response that says yes.
fn first_cta(second: u64) -> [u64; 3] {
    [second & 0xffff_ffff, second >> 32 & 0xffff, second >> 48]
}

impl Machine<'_> {
    pub(super) fn launch_control(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        op: &LaunchControl,
    ) -> Tried<()> {
        match *op {
            LaunchControl::TryCancel { .. } => {
                for lane in lanes(c.active) {
                    self.try_cancel(c, w, lane, op)?;
                }
            }
            LaunchControl::IsCanceled { p, response } => {
                let yes = self.granted_lanes(c, w, response)?;
                self.ctas[c.cta].refused |= yes != c.active;
                w.set_pred(p, yes, c.active);
            }
            LaunchControl::FirstCta { into, response } => {
                let no = c.active & !self.granted_lanes(c, w, response)?;
                if no != 0 {
                    let message = "get_first_ctaid of a request that failed";
                    return Err(refuse(no.trailing_zeros(), REFUSED[0], message));
                }
                let second = *w.get(c.program, Src(response.0 + 1));
                for (axis, d) in into.into_iter().enumerate() {
                    if let Some(d) = d {
                        w.set(c.program, d, &second.map(|v| first_cta(v)[axis]), c.active);
                    }
                }
            }
        }
        Ok(())
    }

    fn try_cancel(&mut self, c: &Ctx<'_>, w: &Warp, lane: u32, op: &LaunchControl) -> Tried<()> {
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
        let answer = match self.scheduler.grants().then(|| self.cancel_cluster()) {
            Some(Some(first)) => granted(first),
            _ => REFUSED,
        };
        for cta in targets {
            if self.ctas[cta].ended() {
                let message = "a multicast response to a CTA that has ended";
                return Err(refuse(lane, to.address, message));
            }
            self.region(Space::Shared, cta)
                .check(to.address, 16, 16, "asynchronous write")
                .of_lane(lane)?;
            let response = answer.iter().flat_map(|v| v.to_le_bytes()).collect();
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

    /// The lanes whose response says yes.
    fn granted_lanes(&self, c: &Ctx<'_>, w: &Warp, s: Src) -> Tried<u32> {
        let (low, high) = (w.get(c.program, s), w.get(c.program, Src(s.0 + 1)));
        let mut yes = 0;
        for lane in lanes(c.active) {
            let response = [low[lane as usize], high[lane as usize]];
            let first = first_cta(response[1]);
            let in_grid = (0..3).all(|i| first[i] < u64::from(self.launch.grid[i]));
            if response[0] == GRANTED && in_grid {
                yes |= 1 << lane;
            } else if response != REFUSED {
                return Err(refuse(
                    lane,
                    response[0],
                    "not the response of a try_cancel",
                ));
            }
        }
        Ok(yes)
    }
}
