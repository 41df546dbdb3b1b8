//! The mbarrier object as a state machine.
//!
//! Source: PTX ISA "Parallel Synchronization and Communication Instructions: mbarrier". A
//! [`Slot`] is eight bytes of shared memory that may hold an object; every operation that the
//! ISA calls undefined is a typed error naming the rule.

use thiserror::Error;

/// Largest arrival count and largest magnitude of the tx-count: 2^20 - 1.
pub const MAX_COUNT: u32 = (1 << 20) - 1;

/// Alignment and size of the object, in bytes.
pub const SIZE: u32 = 8;

/// The rule an mbarrier operation breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum MbarrierError {
    #[error("{op} on memory that holds no initialised mbarrier object")]
    Uninitialised { op: &'static str },
    #[error("mbarrier.init on a valid mbarrier object without mbarrier.inval")]
    Reinit,
    #[error("{op} count {count} is not in 1..=2^20-1")]
    CountRange { op: &'static str, count: u32 },
    #[error("mbarrier address {0:#x} is not 8-byte aligned")]
    Alignment(u32),
    #[error("arrive count {count} exceeds the {pending} pending arrivals of phase {phase}")]
    PendingUnderflow {
        count: u32,
        pending: u32,
        phase: u64,
    },
    #[error("pending count {pending} + {add} exceeds 2^20-1")]
    PendingOverflow { pending: u32, add: u32 },
    #[error("arrive_drop of {count} leaves an expected count of {expected} - {count} < 1")]
    ExpectedUnderflow { count: u32, expected: u32 },
    #[error("tx-count {tx} {delta:+} leaves the range -(2^20-1)..=2^20-1")]
    TxRange { tx: i32, delta: i64 },
    #[error("{op}.noComplete would complete phase {phase}")]
    NoComplete { op: &'static str, phase: u64 },
    #[error("phase parity operand {0} is neither 0 nor 1")]
    Parity(u32),
    #[error("operand {0:#018x} is not a state returned by an arrive")]
    NotAState(u64),
    #[error("the state operand belongs to another mbarrier object")]
    OtherObject,
    #[error(
        "the state is of phase {state}, only phases {current} and its predecessor may be tested"
    )]
    StaleState { state: u64, current: u64 },
}

/// A valid mbarrier object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mbarrier {
    id: u16,
    phase: u64,
    expected: u32,
    pending: u32,
    tx: i32,
}

/// Effect of an arrive or a completed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// Opaque state of the phase before the operation, as the instruction returns it.
    pub state: u64,
    /// The operation completed the phase: waiters may go on.
    pub completed: bool,
}

const STATE_TAG: u64 = 0xb;

impl Mbarrier {
    fn new(id: u16, count: u32) -> Result<Self, MbarrierError> {
        in_range("mbarrier.init", count)?;
        Ok(Self {
            id,
            phase: 0,
            expected: count,
            pending: count,
            tx: 0,
        })
    }

    /// Number of completed phases, which is the index of the current one.
    pub fn phase(&self) -> u64 {
        self.phase
    }

    /// Arrivals still missing in the current phase.
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// Arrivals each new phase starts with.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Transactions still expected in the current phase.
    pub fn tx_count(&self) -> i32 {
        self.tx
    }

    /// The 64-bit state an arrive returns: tag, object, phase and pending count.
    fn state(&self) -> u64 {
        STATE_TAG << 60
            | u64::from(self.id & 0xfff) << 48
            | (self.phase & 0xfff_ffff) << 20
            | u64::from(self.pending)
    }

    fn try_complete(&mut self) -> bool {
        let done = self.pending == 0 && self.tx == 0;
        if done {
            self.phase += 1;
            self.pending = self.expected;
        }
        done
    }

    fn add_tx(&mut self, delta: i64) -> Result<(), MbarrierError> {
        let tx = i64::from(self.tx) + delta;
        if tx.abs() > i64::from(MAX_COUNT) {
            return Err(MbarrierError::TxRange { tx: self.tx, delta });
        }
        self.tx = tx as i32;
        Ok(())
    }

    /// `mbarrier.expect_tx`.
    pub fn expect_tx(&mut self, count: u32) -> Result<(), MbarrierError> {
        self.add_tx(i64::from(count))
    }

    /// `mbarrier.complete_tx`, and the implicit one of asynchronous copies.
    pub fn complete_tx(&mut self, count: u32) -> Result<Effect, MbarrierError> {
        let state = self.state();
        self.add_tx(-i64::from(count))?;
        let completed = self.try_complete();
        Ok(Effect { state, completed })
    }

    /// `mbarrier.arrive` with a count; also the arrive-on of commits and async copies.
    pub fn arrive(&mut self, count: u32) -> Result<Effect, MbarrierError> {
        in_range("mbarrier.arrive", count)?;
        let state = self.state();
        let Some(left) = self.pending.checked_sub(count) else {
            let (pending, phase) = (self.pending, self.phase);
            return Err(MbarrierError::PendingUnderflow {
                count,
                pending,
                phase,
            });
        };
        self.pending = left;
        let completed = self.try_complete();
        Ok(Effect { state, completed })
    }

    /// `mbarrier.arrive.noComplete`.
    pub fn arrive_no_complete(&mut self, count: u32) -> Result<Effect, MbarrierError> {
        self.refuse_completion("mbarrier.arrive", count)?;
        self.arrive(count)
    }

    /// `mbarrier.arrive.expect_tx`: expect first, then arrive with count 1.
    pub fn arrive_expect_tx(&mut self, tx: u32) -> Result<Effect, MbarrierError> {
        let before = self.clone();
        self.expect_tx(tx)?;
        self.arrive(1).inspect_err(|_| *self = before)
    }

    /// `mbarrier.arrive_drop`: later phases expect `count` fewer arrivals.
    pub fn arrive_drop(&mut self, count: u32) -> Result<Effect, MbarrierError> {
        in_range("mbarrier.arrive_drop", count)?;
        if count >= self.expected {
            return Err(MbarrierError::ExpectedUnderflow {
                count,
                expected: self.expected,
            });
        }
        self.expected -= count;
        self.arrive(count).inspect_err(|_| self.expected += count)
    }

    /// `mbarrier.arrive_drop.noComplete`.
    pub fn arrive_drop_no_complete(&mut self, count: u32) -> Result<Effect, MbarrierError> {
        self.refuse_completion("mbarrier.arrive_drop", count)?;
        self.arrive_drop(count)
    }

    /// `mbarrier.arrive_drop.expect_tx`.
    pub fn arrive_drop_expect_tx(&mut self, tx: u32) -> Result<Effect, MbarrierError> {
        let before = self.clone();
        self.expect_tx(tx)?;
        self.arrive_drop(1).inspect_err(|_| *self = before)
    }

    /// The increment of `cp.async.mbarrier.arrive` without `.noinc`; its arrive comes later.
    pub fn increment_pending(&mut self) -> Result<(), MbarrierError> {
        if self.pending >= MAX_COUNT {
            return Err(MbarrierError::PendingOverflow {
                pending: self.pending,
                add: 1,
            });
        }
        self.pending += 1;
        Ok(())
    }

    fn refuse_completion(&self, op: &'static str, count: u32) -> Result<(), MbarrierError> {
        if count == self.pending && self.tx == 0 {
            return Err(MbarrierError::NoComplete {
                op,
                phase: self.phase,
            });
        }
        Ok(())
    }

    /// `test_wait.parity` / `try_wait.parity`: has the phase of this parity completed?
    ///
    /// Parity names the current phase or its predecessor, so the answer is whether it differs
    /// from the current one's; a fresh object's predecessor counts as complete.
    pub fn test_parity(&self, parity: u32) -> Result<bool, MbarrierError> {
        if parity > 1 {
            return Err(MbarrierError::Parity(parity));
        }
        Ok(u64::from(parity) != self.phase & 1)
    }

    /// `test_wait` / `try_wait` with the state an arrive returned.
    pub fn test_state(&self, state: u64) -> Result<bool, MbarrierError> {
        if state >> 60 != STATE_TAG {
            return Err(MbarrierError::NotAState(state));
        }
        if (state >> 48) & 0xfff != u64::from(self.id & 0xfff) {
            return Err(MbarrierError::OtherObject);
        }
        let (named, current) = ((state >> 20) & 0xfff_ffff, self.phase & 0xfff_ffff);
        match current.wrapping_sub(named) & 0xfff_ffff {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MbarrierError::StaleState {
                state: named,
                current,
            }),
        }
    }
}

/// `mbarrier.pending_count`: the pending count an arrive's state captured.
pub fn pending_count(state: u64) -> Result<u32, MbarrierError> {
    if state >> 60 != STATE_TAG {
        return Err(MbarrierError::NotAState(state));
    }
    Ok((state & u64::from(MAX_COUNT)) as u32)
}

fn in_range(op: &'static str, count: u32) -> Result<(), MbarrierError> {
    if count == 0 || count > MAX_COUNT {
        return Err(MbarrierError::CountRange { op, count });
    }
    Ok(())
}

/// Eight bytes of shared memory that hold an object between `init` and `inval`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slot {
    object: Option<Mbarrier>,
}

impl Slot {
    /// `mbarrier.init` at shared address `address`.
    pub fn init(&mut self, address: u32, count: u32) -> Result<(), MbarrierError> {
        if !address.is_multiple_of(SIZE) {
            return Err(MbarrierError::Alignment(address));
        }
        if self.object.is_some() {
            return Err(MbarrierError::Reinit);
        }
        self.object = Some(Mbarrier::new((address / SIZE) as u16, count)?);
        Ok(())
    }

    /// `mbarrier.inval`.
    pub fn inval(&mut self) -> Result<(), MbarrierError> {
        let gone = self.object.take();
        gone.map(drop).ok_or(MbarrierError::Uninitialised {
            op: "mbarrier.inval",
        })
    }

    /// The object, for the operation named `op`.
    pub fn get(&mut self, op: &'static str) -> Result<&mut Mbarrier, MbarrierError> {
        self.object
            .as_mut()
            .ok_or(MbarrierError::Uninitialised { op })
    }

    /// The object if there is one, for reports.
    pub fn peek(&self) -> Option<&Mbarrier> {
        self.object.as_ref()
    }
}
