//! Conflicts in words. The violation itself names the later instruction and its thread.

use super::{Machine, Thread};
use crate::memory::Fault;
use crate::models::hazard::{AccessKind, Actor, Conflict, ConflictKind, Proxy, Side};
use crate::report::ViolationKind;

fn done(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Read => "read",
        AccessKind::Write => "written",
        AccessKind::Init => "initialised",
        AccessKind::Free => "freed",
        AccessKind::Sync => "changed atomically",
    }
}

impl Machine<'_> {
    pub(super) fn hazard(&self, c: &Conflict, threads: [Option<Thread>; 2]) -> Fault {
        let who = |side: &Side, thread: Option<Thread>| {
            let name = self.who(thread).map(|t| t.to_string());
            let name = name.unwrap_or_else(|| "a thread that has ended".into());
            match side.actor {
                Actor::Agent(_) => name,
                Actor::Op(_) => format!("an asynchronous operation of {name}"),
            }
        };
        let before = format!(
            "at {} by {}",
            self.program.site(c.earlier.site as usize),
            who(&c.earlier, threads[0])
        );
        let memory = if c.later.proxy == Proxy::Tensor || c.range.space >> 60 == 2 {
            format!("tensor memory columns {}..{}", c.range.start, c.range.end)
        } else {
            let cta = c.range.space & 0xffff_ffff;
            let mut range = format!("0x{:x}..0x{:x}", c.range.start, c.range.end);
            if let Some(name) = self.program.shared_name(c.range.start, self.launch.shared) {
                range += &format!(" ({name})");
            }
            if threads.iter().flatten().all(|t| u64::from(t.0) == cta) {
                format!("shared memory {range}")
            } else {
                format!("shared memory {range} of CTA {cta}")
            }
        };
        let (later, earlier) = (done(c.later.kind), done(c.earlier.kind));
        let message = match c.kind {
            ConflictKind::BarrierInitNotVisible => format!(
                "the mbarrier at {memory} is used here, where its initialisation {before} is not visible: no synchronisation between them"
            ),
            ConflictKind::PeerNotStarted => format!(
                "{memory} {later} here: nothing tells that its CTA runs (no cluster barrier since the launch)"
            ),
            ConflictKind::MayOutlive => format!(
                "a CTA ends here while {memory}, {earlier} {before}, may still be in use: nothing tells its threads that this is over (a cluster barrier at the end, or a wait)"
            ),
            _ => format!(
                "{memory} {later} here and {earlier} before {before}: {}",
                c.kind.why()
            ),
        };
        let kind = match c.kind {
            ConflictKind::BarrierInitNotVisible => ViolationKind::BarrierInit,
            _ => ViolationKind::Hazard,
        };
        Fault::new(kind, message)
    }
}
