//! Results of a run: violations, deadlocks, coverage, counts.

use std::fmt;

use serde::Serialize;

use crate::coverage::Coverage;
use crate::demangle::demangled;
use crate::models::relaxation::Relaxation;

/// Place in the program where something happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Kernel name.
    pub kernel: String,
    /// Line of the PTX source.
    pub line: u32,
    /// The instruction.
    pub text: String,
    /// `file:line` of the kernel's own source, where the PTX has `.loc`.
    pub source: Option<String>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: `{}`", self.line, shortened(&self.text))?;
        if let Some(s) = &self.source {
            write!(f, " ({s})")?;
        }
        write!(f, " in {}", demangled(&self.kernel))
    }
}

/// Registers of a list that are shown.
const SHOWN: usize = 4;

/// An instruction without the middle of its long lists of registers: an accumulator has up to 128.
fn shortened(text: &str) -> String {
    let mut parts = text.split_inclusive(['{', '}']);
    let mut all = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let list: Vec<&str> = part.trim_end_matches('}').split(", ").collect();
        match part.ends_with('}') && list.len() > 2 * SHOWN {
            true => {
                let (first, last) = (list[..SHOWN].join(", "), list[list.len() - 1]);
                all += &format!("{first}, ..., {last}}}");
            }
            false => all += part,
        }
    }
    all
}

/// A thread of the grid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ThreadId {
    /// `%ctaid`.
    pub cta: [u32; 3],
    /// `%tid`.
    pub thread: [u32; 3],
    /// Warp in the CTA.
    pub warp: u32,
    /// Lane in the warp.
    pub lane: u32,
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (c, t) = (self.cta, self.thread);
        write!(
            f,
            "CTA ({}, {}, {}) thread ({}, {}, {}) [warp {} lane {}]",
            c[0], c[1], c[2], t[0], t[1], t[2], self.warp, self.lane
        )
    }
}

/// The allocation an address missed by least.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Nearest {
    /// Name of the allocation.
    pub name: String,
    /// First address of the allocation.
    pub base: u64,
    /// Size of the allocation in bytes.
    pub size: u64,
    /// Bytes before (negative) or past its end.
    pub distance: i64,
}

named! {
    /// The kinds of violations.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    ViolationKind {
        /// Outside every allocation.
        OutOfBounds "out of bounds",
        /// Address is not a multiple of the access's size.
        Misaligned "misaligned",
        /// Bytes that nothing wrote are read.
        Uninitialised "uninitialised",
        /// Write to memory that is read-only.
        ReadOnly "read-only",
        /// Rules of barriers and warp-synchronous instructions.
        Synchronisation "synchronisation",
        /// `trap` was executed.
        Trap "trap",
        /// An `assert` of the kernel does not hold.
        Assertion "assertion",
        /// Two accesses that nothing orders, or an asynchronous operation's buffer in use.
        Hazard "hazard",
        /// An mbarrier object is used where its initialisation is not visible.
        BarrierInit "barrier initialisation",
        /// Any other rule of the ISA.
        Other "other",
    }
}

/// Something the ISA does not allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Kind of the violation.
    pub kind: ViolationKind,
    /// Description of the violation.
    pub message: String,
    /// Place of the instruction.
    pub site: Site,
    /// By which thread.
    pub thread: Option<ThreadId>,
    /// At which address.
    pub address: Option<u64>,
    /// The shared variable there, with the offset.
    pub variable: Option<String>,
    /// The allocation missed.
    pub nearest: Option<Nearest>,
    /// Further ones of this kind at this instruction, as warnings: they are counted only.
    pub more: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  at {}", self.message, self.site)?;
        if let Some(t) = &self.thread {
            write!(f, "\n  by {t}")?;
        }
        if let Some(a) = self.address {
            write!(f, "\n  address 0x{a:x}")?;
        }
        if let Some(v) = self
            .variable
            .as_ref()
            .filter(|v| !self.message.contains(*v))
        {
            write!(f, " ({v})")?;
        }
        if let Some(n) = &self.nearest {
            let side = if n.distance < 0 {
                "before"
            } else {
                "past the end of"
            };
            write!(
                f,
                "\n  {} bytes {side} {} (0x{:x}, {} bytes)",
                n.distance.unsigned_abs(),
                n.name,
                n.base,
                n.size
            )?;
        }
        if self.more > 0 {
            write!(f, "\n  and {} more of this kind here", self.more)?;
        }
        Ok(())
    }
}

/// Something that the ISA does not promise, and that a kernel relied on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The relaxation that the kernel relied on.
    #[serde(serialize_with = "name")]
    pub relaxation: Relaxation,
    /// The fault that there would be without the relaxation.
    pub message: String,
    /// Place of the instruction.
    pub site: Site,
}

fn name<S: serde::Serializer>(r: &Relaxation, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(r.name())
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (r, site) = (self.relaxation, &self.site);
        write!(f, "{r} ({}): {}\n  at {site}", r.about(), self.message)
    }
}

/// One waiting part of a warp.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiter {
    /// First thread of the part.
    pub thread: ThreadId,
    /// Lanes that wait.
    pub lanes: u32,
    /// The instruction it waits at.
    pub site: Site,
    /// The event that the part waits for.
    pub reason: String,
}

/// Every warp that can no longer run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deadlock {
    /// All of them.
    pub waiting: Vec<Waiter>,
    /// State of barriers and pending operations, a line each.
    pub state: Vec<String>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deadlock: every warp waits")?;
        for w in &self.waiting {
            write!(
                f,
                "\n  {} lanes {:08x}: {}\n    at {}",
                w.thread, w.lanes, w.reason, w.site
            )?;
        }
        for s in &self.state {
            write!(f, "\n  {s}")?;
        }
        Ok(())
    }
}

/// The result of a run that ended.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Kernel name.
    pub kernel: String,
    /// CTAs run.
    pub ctas: u64,
    /// Instructions, counted once a warp.
    pub warp_instructions: u64,
    /// Instructions, counted once a thread.
    pub thread_instructions: u64,
    /// Violations that were asked to be warnings; at most [`Report::MAX_WARNINGS`].
    pub warnings: Vec<Violation>,
    /// Warnings beyond those kept.
    pub warnings_dropped: u64,
    /// Relaxations that the kernel relied on, once for each relaxation and instruction.
    pub notes: Vec<Note>,
    /// Instructions and branches that ran, and those that did not.
    pub coverage: Coverage,
    /// What the kernel's `printf` printed; at most [`Report::MAX_PRINTED`] bytes.
    pub printed: String,
    /// Texts beyond those kept.
    pub printed_dropped: u64,
}

impl Report {
    /// Warnings kept; the rest are counted.
    pub const MAX_WARNINGS: usize = 64;
    /// Bytes of printed text that are kept: what a GPU keeps, unless a program asks for more.
    pub const MAX_PRINTED: usize = 1 << 20;
}
