//! Everything that can go wrong before and during a run.

use crate::models::sums::NoRule;
use crate::report::{Deadlock, Violation};

/// The source is not PTX that this parser knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line of the PTX source, counted from 1.
    pub line: u32,
    /// Description of the fault.
    pub message: String,
}

impl ParseError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self {
            line,
            message: message.into(),
        }
    }
}

/// An instruction or declaration that parses but cannot be turned into an executable program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `{text}`: {message}")]
pub struct DecodeError {
    /// Line of the PTX source, counted from 1.
    pub line: u32,
    /// The statement.
    pub text: String,
    /// Description of the fault.
    pub message: String,
}

/// A buffer that does not hold the expected elements.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "buffer {buffer}: element {index} is {got}, not {want}; {wrong} of {of} elements differ by more than is allowed, \
     at most by {worst}"
)]
pub struct Mismatch {
    /// The buffer.
    pub buffer: String,
    /// The first element that differs.
    pub index: usize,
    /// The value that is expected there.
    pub want: f64,
    /// The value that is there.
    pub got: f64,
    /// Elements that differ.
    pub wrong: usize,
    /// Elements compared.
    pub of: usize,
    /// The largest difference.
    pub worst: f64,
}

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The source does not parse.
    #[error("PTX does not parse: {0}")]
    Parse(#[from] ParseError),
    /// The kernel cannot be decoded.
    #[error("PTX cannot be executed: {0}")]
    Decode(#[from] DecodeError),
    /// The launch does not fit the kernel, or exceeds a limit.
    #[error("launch refused: {0}")]
    Launch(String),
    /// The launch, its module or its specification asks for more memory than it may have.
    #[error(
        "launch refused: {what} would take {bytes} bytes; {used} of {limit} are taken (a larger limit: \
         --memory, Sim::with_memory)"
    )]
    Memory {
        /// The thing that asks for the memory.
        what: String,
        /// Bytes it asks for.
        bytes: u64,
        /// Bytes taken before.
        used: u64,
        /// Bytes allowed in all.
        limit: u64,
    },
    /// The specification's name for a dumped buffer leaves the output directory, or is another's.
    #[error("launch refused: buffer {buffer:?}: dump {name:?} {reason}")]
    DumpName {
        /// The buffer.
        buffer: String,
        /// The buffer's `dump`.
        name: std::path::PathBuf,
        /// The fault of the name.
        reason: String,
    },
    /// An instruction that is parsed but not modelled was reached.
    #[error("not modelled, line {line}: `{text}`: {reason}")]
    Unmodelled {
        /// Line of the PTX source.
        line: u32,
        /// The instruction.
        text: String,
        /// The feature that is missing.
        reason: String,
    },
    /// An instruction was reached whose sums nobody says anything of: [`Options::sums`](crate::Options::sums).
    #[error("line {line}: `{text}`: {why}")]
    SumRule {
        /// Line of the PTX source.
        line: u32,
        /// The instruction.
        text: String,
        /// The instruction's form, and who has no rule for it.
        why: NoRule,
    },
    /// The kernel did something that the ISA does not allow.
    #[error("{0}")]
    Violation(Box<Violation>),
    /// A buffer does not hold what its specification expects.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// A specification expects something of a buffer where nothing was written.
    #[error("buffer {buffer}: element {index} is expected to be {want}, and was never written")]
    Unwritten {
        /// The buffer.
        buffer: String,
        /// The first such element.
        index: usize,
        /// The value that is expected there.
        want: f64,
    },
    /// Nothing can run any more.
    #[error("{0}")]
    Deadlock(Box<Deadlock>),
    /// The instruction budget is used up.
    #[error(
        "the kernel is still running after {budget} thread-instructions; \
         raise the budget if that is expected. Last at line {line}: `{text}`"
    )]
    Budget {
        /// The budget that was given.
        budget: u64,
        /// Line of the last instruction.
        line: u32,
        /// Text of the last instruction.
        text: String,
    },
    /// A file of the launch specification, or a result, cannot be read or written.
    #[error("{path}: {message}")]
    Io {
        /// The file.
        path: String,
        /// The system's message.
        message: String,
    },
}
