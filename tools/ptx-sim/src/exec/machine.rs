//! The machine while a kernel runs: resident CTAs, memories, barriers, counters.

use std::cell::Cell;
use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::event::EventQueue;
use super::grid_dependency::Neighbours;
use super::hazards::Hazards;
use super::overlap::Overlap;
use super::pending::Pending;
use super::tcgen05::TensorState;
use super::transfer::Stored;
use super::warp::{State, Wait, Warp};
use super::wgmma::WgmmaState;
use crate::coverage::Counters;
use crate::error::SimError;
use crate::memory::layout::{SHARED_RANK_SHIFT, SHARED_START, SMALL_START};
use crate::memory::{Fault, Observer, Region, Space, SyncEvent};
use crate::models::mbarrier::Slot;
use crate::models::relaxation::Relaxation;
use crate::program::{Program, Special};
use crate::report::{Report, ThreadId, Violation, ViolationKind};
use crate::sched::Scheduler;
use crate::sim::{HazardChecks, Launch, Options};
use crate::trace::Recorder;

/// A barrier of a CTA.
#[derive(Debug, Clone, Default)]
pub(crate) struct Barrier {
    pub(crate) generation: u64,
    /// Lanes of each warp that arrived in this generation; empty before the first.
    pub(crate) arrived: Vec<u32>,
    /// The count that arrivals of this generation gave.
    pub(crate) count: Option<u32>,
    /// Whether these arrivals are `bar.red`s.
    pub(crate) reduces: bool,
    pub(crate) popc: u32,
    pub(crate) all: bool,
    pub(crate) any: bool,
    /// Results of the last generations: the number, population count, and, or.
    pub(crate) results: Vec<(u64, u32, bool, bool)>,
}

impl Barrier {
    /// Threads that arrived, of a CTA with these live lanes. Where a count is given it is in whole warps: a warp counts
    /// once all of its lanes have arrived that have not exited.
    pub(crate) fn threads(&self, live: &[u32]) -> u32 {
        let threads = |(arrived, live): (&u32, &u32)| match self.count {
            Some(_) if *arrived == 0 || live & !arrived != 0 => 0,
            Some(_) => 32,
            None => arrived.count_ones(),
        };
        self.arrived.iter().zip(live).map(threads).sum()
    }
}

/// A resident CTA.
#[derive(Debug)]
pub(crate) struct Cta {
    pub(crate) id: [u32; 3],
    pub(crate) linear: u32,
    /// The multiprocessor that it runs on, and which of the two that the CTAs of a pair may have there.
    pub(crate) sm: (u32, u32),
    /// Index of its cluster among the resident ones.
    pub(crate) cluster: usize,
    pub(crate) rank: u32,
    pub(crate) shared: Region,
    /// mbarrier objects by their offset in shared memory.
    pub(crate) mbarriers: BTreeMap<u64, Slot>,
    /// Phases of an mbarrier object that a warp has seen end: by address and warp, if any.
    pub(crate) waited: BTreeMap<(u64, u32), u64>,
    pub(crate) barriers: Vec<Barrier>,
    /// `None` while it runs, and once it has ended.
    pub(crate) warps: Vec<Option<Warp>>,
    /// Lanes of each warp that have not exited.
    pub(crate) live: Vec<u32>,
    /// Lanes that arrived at the cluster barrier's current phase.
    pub(crate) cluster_arrived: Vec<u32>,
    /// Lanes that arrived and have not waited yet, and in which phase.
    pub(crate) cluster_token: Vec<(u32, u64)>,
    /// Whether the CTA has seen a `clusterlaunchcontrol.try_cancel` fail.
    pub(crate) refused: bool,
    /// Whether the CTA has executed `griddepcontrol.launch_dependents`, or ended.
    pub(crate) lets_dependents_start: bool,
    /// The grids that are over for it, a bit each, as [`Neighbours`] numbers them.
    pub(crate) behind: u64,
}

impl Cta {
    pub(crate) fn ended(&self) -> bool {
        self.live.iter().all(|l| *l == 0)
    }
}

/// A resident cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) linear: u32,
    /// CTAs of the cluster by rank, as indices of the resident ones.
    pub(crate) ctas: Vec<usize>,
    pub(crate) phase: u64,
}

/// Everything a running kernel can touch.
pub(crate) struct Machine<'a> {
    pub(crate) program: &'a Program,
    pub(crate) launch: &'a Launch,
    pub(crate) options: &'a Options,
    /// Whether the module runs on Hopper only.
    pub(crate) hopper: bool,
    pub(crate) global: &'a mut Region,
    pub(crate) param: Region,
    pub(crate) constant: Region,
    pub(crate) ctas: Vec<Cta>,
    pub(crate) clusters: Vec<Cluster>,
    /// Clusters of the grid, in linear order, that have become resident or were cancelled.
    pub(crate) begun: u32,
    /// Clusters that may be resident where all that are wait.
    pub(crate) most_resident: u64,
    pub(crate) cluster_dims: [u32; 3],
    pub(crate) scheduler: Scheduler,
    pub(crate) events: EventQueue,
    pub(crate) tensor: TensorState,
    pub(crate) wgmma: WgmmaState,
    pub(crate) neighbours: Neighbours,
    /// State that this grid has in common with grids that run at the same time, if there may be any.
    pub(crate) overlap: Option<Box<Overlap<'a>>>,
    /// Stores and atomics executed, and asynchronous operations completed.
    pub(crate) stores: u64,
    pub(crate) hazards: Option<Hazards>,
    pub(crate) pending: Pending,
    pub(crate) observer: Option<&'a mut dyn Observer>,
    pub(crate) counters: Counters,
    pub(crate) report: Report,
    /// The notes that are in [`Report::notes`] already.
    pub(crate) noted: FxHashSet<(Relaxation, usize)>,
    /// Bulk stores of the instruction at hand.
    pub(crate) stored: Vec<Stored>,
    /// The instruction at hand took a generic address for a shared one.
    pub(crate) generic: Cell<bool>,
    /// The instruction at hand reached a CTA that has ended.
    pub(crate) late: Cell<bool>,
    /// Loads of the instruction at hand from shared memory that nothing wrote, by lane.
    pub(crate) holes: Vec<(u32, Fault)>,
    pub(crate) trace: Option<Box<Recorder>>,
}

/// The target of an access, after generic and cluster addresses are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// State space of the access.
    pub(crate) space: Space,
    /// The resident CTA whose shared memory is meant; the executing one for other spaces.
    pub(crate) owner: usize,
    /// Address in the space; of shared memory the offset in its CTA.
    pub(crate) address: u64,
}

/// An error before it knows where it happened.
pub(crate) enum Trouble {
    /// A fault of a lane, or of the warp if there is none.
    Fault(Fault, Option<u32>),
    /// A finished error.
    Error(SimError),
}

/// The outcome of an instruction.
pub(crate) type Tried<T> = Result<T, Trouble>;

impl From<SimError> for Trouble {
    fn from(e: SimError) -> Self {
        Trouble::Error(e)
    }
}

/// Says of which lane a fault is.
pub(crate) trait OfLane {
    type Trouble;

    fn of_lane(self, lane: u32) -> Self::Trouble;
}

impl OfLane for Fault {
    type Trouble = Trouble;

    fn of_lane(self, lane: u32) -> Trouble {
        Trouble::Fault(self, Some(lane))
    }
}

impl<T> OfLane for Result<T, Fault> {
    type Trouble = Tried<T>;

    fn of_lane(self, lane: u32) -> Self::Trouble {
        self.map_err(|fault| fault.of_lane(lane))
    }
}

/// Shorthand for faults of synchronisation.
pub(crate) fn sync_fault(message: impl Into<String>) -> Trouble {
    Trouble::Fault(Fault::new(ViolationKind::Synchronisation, message), None)
}

impl<'a> Machine<'a> {
    /// A machine for a launch that was checked, in clusters of this shape. It has no observer.
    pub(crate) fn new(
        (program, launch, options): (&'a Program, &'a Launch, &'a Options),
        cluster_dims: [u32; 3],
        global: &'a mut Region,
        constant: Region,
    ) -> Self {
        Self {
            program,
            launch,
            options,
            hopper: false,
            global,
            param: Machine::param_region(program, &launch.params),
            constant,
            ctas: Vec::new(),
            clusters: Vec::new(),
            begun: 0,
            most_resident: 0,
            cluster_dims,
            scheduler: Scheduler::new(options.policy),
            events: EventQueue::default(),
            pending: Pending::default(),
            tensor: TensorState::default(),
            wgmma: WgmmaState::default(),
            neighbours: Neighbours::of(launch),
            overlap: None,
            stores: 0,
            hazards: match options.hazards {
                HazardChecks::Off => None,
                _ => Hazards::of(program, launch.shared, options.allowed()),
            },
            observer: None,
            counters: Counters::new(program.code.len()),
            report: Report {
                kernel: program.kernel.clone(),
                ..Report::default()
            },
            noted: FxHashSet::default(),
            stored: Vec::new(),
            generic: Cell::new(false),
            late: Cell::new(false),
            holes: Vec::new(),
            trace: None,
        }
    }
}

impl Machine<'_> {
    pub(crate) fn thread(&self, cta: usize, warp: u32, lane: u32) -> ThreadId {
        let [x, y, _] = self.launch.block;
        let t = warp * 32 + lane;
        ThreadId {
            cta: self.ctas[cta].id,
            thread: [t % x, t / x % y, t / x / y],
            warp,
            lane,
        }
    }

    /// A fault with its place and thread.
    pub(crate) fn violation(&self, f: Fault, pc: usize, thread: Option<ThreadId>) -> Violation {
        let shared = f.address.filter(|_| f.message.contains("shared"));
        Violation {
            kind: f.kind,
            variable: shared.and_then(|at| self.program.shared_name(at, self.launch.shared)),
            more: 0,
            message: f.message,
            site: self.program.site(pc),
            thread,
            address: f.address,
            nearest: f.nearest,
        }
    }

    /// Value of a special register for a lane.
    pub(crate) fn special(&self, s: Special, cta: usize, warp: u32, lane: u32) -> u64 {
        let c = &self.ctas[cta];
        let cluster = self.cluster_dims;
        let (block, grid) = (self.launch.block, self.launch.grid);
        let u = u64::from;
        match s {
            Special::Tid(a) => u(self.thread(cta, warp, lane).thread[a]),
            Special::Ntid(a) => u(block[a]),
            Special::Ctaid(a) => u(c.id[a]),
            Special::Nctaid(a) => u(grid[a]),
            Special::LaneId => u(lane),
            Special::WarpId => u(warp),
            Special::NWarpId => c.live.len() as u64,
            Special::LaneMaskEq => 1 << lane,
            Special::LaneMaskLe => (2u64 << lane) - 1,
            Special::LaneMaskLt => (1u64 << lane) - 1,
            Special::LaneMaskGe => u(u32::MAX << lane),
            Special::LaneMaskGt => 0xffff_ffff & !((2u64 << lane) - 1),
            Special::ClusterId(a) => u(c.id[a] / cluster[a]),
            Special::NClusterId(a) => u(grid[a] / cluster[a]),
            Special::ClusterCtaid(a) => u(c.id[a] % cluster[a]),
            Special::ClusterNctaid(a) => u(cluster[a]),
            Special::ClusterCtaRank => u(c.rank),
            Special::ClusterNctaRank => u(cluster.iter().product::<u32>()),
            Special::SmId => u(c.sm.0),
            Special::NSmId => u(self.options.sms),
            Special::GridId => 1,
            Special::DynamicSharedSize => u(self.launch.shared),
            // Without what is reserved, in units of 128 bytes.
            Special::TotalSharedSize => {
                let end = self.program.dynamic_shared + u(self.launch.shared);
                (end - SHARED_START).next_multiple_of(128)
            }
            Special::SharedAddress(at) => u(c.rank << SHARED_RANK_SHIFT | at),
        }
    }

    /// The CTA that a shared address belongs to, and the offset in it.
    pub(crate) fn shared_owner(
        &self,
        cta: usize,
        own: bool,
        address: u64,
    ) -> Result<(usize, u64), Fault> {
        let me = &self.ctas[cta];
        let offset = address & ((1 << SHARED_RANK_SHIFT) - 1);
        let rank = address >> SHARED_RANK_SHIFT;
        let miss = |message: String| Fault::new(ViolationKind::OutOfBounds, message).at(address);
        if rank == u64::from(me.rank) {
            return Ok((cta, offset));
        }
        let peers = &self.clusters[me.cluster].ctas;
        let Some(&peer) = usize::try_from(rank).ok().and_then(|r| peers.get(r)) else {
            return Err(miss(format!(
                "shared address of CTA {rank} in a cluster of {}",
                peers.len()
            )));
        };
        if own {
            return Err(miss(format!(
                "shared::cta address that belongs to CTA {rank} of the cluster"
            )));
        }
        let ended = self.ctas[peer].ended();
        self.late
            .set(self.late.get() || ended && self.options.hazards == HazardChecks::Warn);
        if ended && self.options.hazards == HazardChecks::Error {
            return Err(Fault {
                kind: ViolationKind::Hazard,
                ..miss(format!(
                    "shared memory of CTA {rank} of the cluster, which has ended"
                ))
            });
        }
        Ok((peer, offset))
    }

    pub(crate) fn region(&mut self, space: Space, owner: usize) -> &mut Region {
        match space {
            Space::Global => self.global,
            Space::Shared => &mut self.ctas[owner].shared,
            Space::Const => &mut self.constant,
            // Local memory is the warp's, which hands its own region to those who need it.
            Space::Param | Space::Local => &mut self.param,
        }
    }

    pub(crate) fn synchronised(&mut self, event: SyncEvent) -> Tried<()> {
        if let Some(h) = &mut self.hazards {
            h.sync(&event);
        }
        match &mut self.observer {
            Some(o) => o.sync(&event).map_err(|f| Trouble::Fault(f, None)),
            None => Ok(()),
        }
    }

    /// Whether the event that a part waits for has happened.
    pub(crate) fn done(&self, cta: usize, wait: Wait) -> bool {
        let c = &self.ctas[cta];
        match wait {
            Wait::Bar { id, generation } => c.barriers[id as usize].generation != generation,
            Wait::Tensor { warp, stores } => self.tensor.waited(c.linear, warp, stores),
            Wait::Wgmma { warp, keep } => {
                let whole = self.options.allows(Relaxation::WarpgroupWait);
                self.wgmma.waited((c.linear, warp), keep, whole)
            }
            Wait::TensorAlloc { epoch, .. } | Wait::TensorFree { epoch } => {
                self.tensor.epoch != epoch
            }
            Wait::GridBefore => !self.neighbours.before_runs,
            Wait::Store { stores, .. } => self.stores != stores,
            Wait::Cluster { phase } => self.clusters[c.cluster].phase > phase,
            Wait::Groups {
                warp,
                lanes,
                keep,
                bulk,
                reads_only,
            } => super::lanes(lanes).all(|l| {
                self.pending
                    .waited_for((c.linear, warp * 32 + l, bulk), keep, reads_only)
            }),
            Wait::Mbarrier {
                owner, at, phase, ..
            } => self.mbarrier_phase(owner, at) != Some(phase),
        }
    }

    /// Whether a warp has a part that can run. With `alone`, also one that could go on from a join
    /// without the lanes it waits for.
    pub(crate) fn runnable(&self, cta: usize, warp: &Warp, alone: bool) -> bool {
        warp.parts.iter().any(|p| match p.state {
            State::Ready => true,
            State::Join => alone,
            State::Sync(_) => false,
            State::Blocked(w) => self.done(cta, w),
        })
    }

    /// The parameter block as a region, one allocation a parameter.
    pub(crate) fn param_region(program: &Program, values: &[Vec<u8>]) -> Region {
        let mut r = Region::new(Space::Param);
        for (p, v) in program.params.iter().zip(values) {
            let a = r.add(&p.name, SMALL_START + p.offset, p.size as usize);
            a.upload(0, v);
            a.read_only = true;
        }
        r
    }
}
