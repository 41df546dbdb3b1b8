//! Tensor copies: tensor maps as kernels see them, and the pieces of a box.

use super::Ctx;
use super::copies::Finish;
use super::machine::{Machine, OfLane, Place, Tried};
use super::pending::Rows;
use super::pieces::{From, Piece};

use super::transfer::refuse;
use super::warp::Warp;
use crate::ast::Ty;
use crate::memory::Space;
use crate::models::hazard::Proxy;
use crate::models::tensor_map::{DataType, TensorMap};
use crate::models::tma::{Direction, GlobalSide, Move, Plan, plan};
use crate::models::tma_bulk::{ReduceDst, ReduceOp, check_reduction};
use crate::program::{Completion, Src, Transfer};

/// Alignment of a tensor map.
const MAP_ALIGN: u64 = 64;

/// Element type that a reduction has by its tensor map.
fn reduce_type(op: ReduceOp, t: DataType) -> Option<Ty> {
    let logic = matches!(op, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor);
    Some(match t {
        DataType::Uint32 | DataType::Int32 if logic => Ty::B32,
        DataType::Uint64 | DataType::Int64 if logic => Ty::B64,
        DataType::Uint32 => Ty::U32,
        DataType::Int32 => Ty::S32,
        DataType::Uint64 => Ty::U64,
        DataType::Int64 => Ty::S64,
        DataType::Float16 => Ty::F16,
        DataType::Bfloat16 => Ty::Bf16,
        DataType::Float32 | DataType::Float32Ftz => Ty::F32,
        DataType::Float64 => Ty::F64,
        _ => return None,
    })
}

impl Machine<'_> {
    fn tensor_map(&mut self, c: &Ctx<'_>, w: &Warp, lane: u32, at: &Place) -> Tried<TensorMap> {
        let actor = c.actor(self, w, lane);
        if !at.address.is_multiple_of(MAP_ALIGN) {
            return Err(refuse(
                lane,
                at.address,
                "a tensor map must be 64-byte aligned",
            ));
        }
        if !matches!(at.space, Space::Param | Space::Const | Space::Global) {
            let message = format!("a tensor map in {} memory", at.space.name());
            return Err(refuse(lane, at.address, message));
        }
        let mut bytes = [0; TensorMap::BYTES];
        self.read(actor, *at, 1, &mut bytes)?;
        let wrong = |message: String| refuse(lane, at.address, message);
        let map = TensorMap::from_bytes(&bytes)
            .ok_or_else(|| wrong("these 128 bytes are no tensor map".into()))?;
        if self.hopper {
            map.check_hopper()
                .map_err(|e| wrong(format!("tensor map: {e}")))?;
        }
        Ok(map)
    }

    pub(super) fn tensor_copy(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        lane: u32,
        t: &Transfer,
    ) -> Tried<()> {
        let Transfer::Tensor {
            map,
            coords,
            shared,
            direction,
            completion,
            mask,
            reduce,
            pair,
        } = t
        else {
            return Ok(());
        };
        let l = lane as usize;
        let value = |s: Src| w.get(c.program, s)[l];
        let place = self.locate(c, map, value(map.base), lane)?;
        let map = self.tensor_map(c, w, lane, &place)?;
        let coords: Vec<i32> = coords.iter().map(|s| value(*s) as i32).collect();
        let here = self.locate(c, shared, value(shared.base), lane)?;
        let start = here.address as u32;
        let plan = plan(&map, &coords, start, *direction)
            .map_err(|e| refuse(lane, here.address, e.to_string()))?;
        let what = if *direction == Direction::Load {
            "asynchronous write"
        } else {
            "asynchronous read"
        };
        self.region(here.space, here.owner)
            .check(here.address, plan.shared_bytes, 1, what)
            .of_lane(lane)?;
        let reduce = match *reduce {
            None => None,
            Some(op) => {
                let data = map.args().data_type;
                let ty = reduce_type(op, data).ok_or_else(|| {
                    refuse(
                        lane,
                        here.address,
                        format!("reductions of {data:?} are not modelled"),
                    )
                })?;
                check_reduction(op, ty, ReduceDst::Global)
                    .map_err(|e| refuse(lane, here.address, e.to_string()))?;
                Some((op, ty))
            }
        };
        let targets = match mask {
            Some(m) => self.multicast(c, value(*m), lane)?,
            None => vec![here.owner],
        };
        let data_type = map.args().data_type;
        let swizzle = Some(map.args().swizzle);
        let tf32 = matches!(data_type, DataType::Tfloat32 | DataType::Tfloat32Ftz);
        for owner in targets {
            let finish = match completion {
                Completion::Group => Finish::Group,
                Completion::Mbarrier(addr) => {
                    let (of, at) = self.mbarrier_place(c, addr, value(addr.base), lane)?;
                    let of = self
                        .signalled(owner, of, mask.is_some(), *pair)
                        .ok_or_else(|| {
                            refuse(
                                lane,
                                at,
                                "the mbarrier object lies in another CTA than the destination",
                            )
                        })?;
                    Finish::Transaction {
                        owner: self.ctas[of].linear,
                        at,
                        bytes: plan.transaction_bytes,
                    }
                }
            };
            let pieces = self.box_pieces(&plan, owner, *direction, tf32);
            self.issue(c, w, lane, pieces, reduce, (finish, Proxy::Async, swizzle))?;
        }
        Ok(())
    }

    /// The CTA whose mbarrier object a copy into `owner` signals. `named` is the CTA of the object that the operand
    /// names. The signalled CTA is the destination itself. With `.cta_group::2` it is the member of the destination's
    /// pair that has the parity of the named one.
    fn signalled(&self, owner: usize, named: usize, multicast: bool, pair: bool) -> Option<usize> {
        let (rank, of) = (self.ctas[owner].rank, self.ctas[named].rank);
        let to = match (pair, multicast) {
            (true, true) => rank & !1 | of & 1,
            (true, false) if rank & !1 == of & !1 => of,
            (false, true) => rank,
            _ if owner == named => rank,
            _ => return None,
        };
        self.clusters[self.ctas[owner].cluster]
            .ctas
            .get(to as usize)
            .copied()
    }

    fn box_pieces(
        &self,
        plan: &Plan,
        owner: usize,
        direction: Direction,
        tf32: bool,
    ) -> Vec<Piece> {
        let piece = |m: &Move| {
            let len = u64::from(m.len);
            let here = self.range(Space::Shared, owner, u64::from(m.shared), len);
            let from = match m.global {
                GlobalSide::Bytes(a) if m.rows() > 1 => From::Rows(Rows {
                    first: self.range(Space::Global, 0, a, len / m.rows()),
                    pitch: m.pitch,
                    count: m.rows(),
                }),
                GlobalSide::Bytes(a) => {
                    let there = self.range(Space::Global, 0, a, len);
                    if direction != Direction::Load {
                        return Piece {
                            from: From::Memory(here),
                            to: there,
                            swizzle: m.swizzle,
                        };
                    }
                    if tf32 {
                        From::Tf32(there)
                    } else {
                        From::Memory(there)
                    }
                }
                GlobalSide::Zero => From::Data(vec![0; m.len as usize]),
                GlobalSide::Nan { pattern, bytes } => {
                    let one = pattern.to_le_bytes();
                    From::Data(
                        one[..usize::from(bytes)]
                            .iter()
                            .copied()
                            .cycle()
                            .take(m.len as usize)
                            .collect(),
                    )
                }
                GlobalSide::Uninitialised => From::Nothing,
            };
            Piece {
                from,
                to: here,
                swizzle: m.swizzle,
            }
        };
        if tf32 {
            let granules = plan.moves.iter().flat_map(|m| m.granules());
            return granules.map(|m| piece(&m)).collect();
        }
        plan.moves.iter().map(piece).collect()
    }
}
