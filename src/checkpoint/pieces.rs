//! Joined weights to somewhere else by pieces: in bounded host memory, read by several threads while earlier pieces are
//! copied.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};

use super::Joined;
use super::joined::Which;
use crate::Error;
use crate::file::FileError;

/// A piece of joined weights: whole rows of one of their two arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the joined weights among those that are sent together.
    pub of: usize,
    /// Whether it is of the block scales, linear `[L][M][K/16]`, or of the codes `[L][M][K/2]`.
    pub of_scales: bool,
    /// Where it begins in that array, in bytes.
    pub at: usize,
    /// How many bytes it has.
    pub bytes: usize,
}

/// Where pieces go. Copies may run while the next piece is read: [`begin`](Self::begin) need not wait for its copy.
pub trait Pieces {
    /// Memory that a piece is read into, such as memory that a GPU copies from.
    type Buffer: Send;
    /// Why a copy fails.
    type Error: Send;

    /// The memory of a buffer that no copy reads.
    ///
    /// # Errors
    /// The destination's.
    fn bytes(buffer: &mut Self::Buffer) -> Result<&mut [u8], Self::Error>;

    /// Begins to copy the first [`Piece::bytes`] bytes of a buffer to their place.
    ///
    /// # Errors
    /// The destination's.
    fn begin(&mut self, piece: Piece, buffer: Self::Buffer) -> Result<(), Self::Error>;

    /// Waits for the copy that began first of those under way, and returns its buffer; `None` where none is under way.
    ///
    /// # Errors
    /// The destination's.
    fn end(&mut self) -> Option<Result<Self::Buffer, Self::Error>>;
}

/// Why joined weights were not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError<E> {
    /// No buffer, or one that holds no row.
    #[error(transparent)]
    Buffers(Error),
    /// A file that cannot be read any more, or a block scale that is NaN or negative.
    #[error(transparent)]
    File(FileError),
    /// The destination failed. What it has got is not all.
    #[error("{0}")]
    Destination(E),
}

impl Joined<'_> {
    /// Sends codes and block scales of all of these to a destination, piece by piece. Pieces are as many whole rows as the
    /// shortest buffer holds. Up to half of the buffers are with copies that are under way. Into each of the others a
    /// thread reads the next piece of all, so that pieces may arrive in another order than they are in: two buffers are
    /// the least for reading and copying at once. No other memory is taken. Block scales are looked at as they are read.
    /// Afterwards the buffers are there again, for other weights.
    ///
    /// `progress` is called after each piece that has arrived, with the bytes of all that have, and those of all that there
    /// are.
    ///
    /// # Errors
    /// [`SendError::Buffers`] before anything is sent. [`SendError::File`] and [`SendError::Destination`] after every copy
    /// under way has ended; the destination has a part of the weights then, and buffers that the destination did not give
    /// back are missing.
    pub fn send<D: Pieces>(
        all: &[Self],
        buffers: &mut Vec<D::Buffer>,
        to: &mut D,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<(), SendError<D::Error>> {
        let lengths = buffers
            .iter_mut()
            .map(|buffer| D::bytes(buffer).map(|bytes| bytes.len()));
        let lengths = lengths
            .collect::<Result<Vec<_>, _>>()
            .map_err(SendError::Destination)?;
        let most = lengths.into_iter().min().unwrap_or(0);
        let mut pieces = Vec::new();
        for (of, joined) in all.iter().enumerate() {
            let of_this = joined.pieces(of, most).map_err(SendError::Buffers)?;
            pieces.extend(of_this);
        }
        let total: usize = pieces.iter().map(|piece| piece.bytes).sum();
        let most_under_way = (buffers.len() / 2).max(1);
        let readers = (buffers.len() - buffers.len() / 2).min(pieces.len());
        let (mut under_way, mut arrived) = (VecDeque::new(), 0);
        let free = Free::new(std::mem::take(buffers));
        let next = AtomicUsize::new(0);
        let sent = std::thread::scope(|scope| {
            let (filled, ready) = mpsc::channel();
            // Threads that wait for a buffer go when this function does, however it goes.
            let _closed = Closed(&free);
            for _ in 0..readers {
                let (free, next, pieces) = (&free, &next, &pieces);
                let filled = filled.clone();
                scope.spawn(move || {
                    while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
                        && let Some(buffer) = free.take()
                    {
                        let read = all[piece.of].fill::<D>(piece, buffer);
                        if filled.send((*piece, read)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(filled);
            let mut end = |to: &mut D, under_way: &mut VecDeque<usize>| {
                if let Some(buffer) = to.end() {
                    free.give(buffer.map_err(SendError::Destination)?);
                }
                arrived += under_way.pop_front().unwrap_or(0);
                progress(arrived, total);
                Ok(())
            };
            // It ends when the threads have.
            for (piece, read) in ready {
                to.begin(piece, read?).map_err(SendError::Destination)?;
                under_way.push_back(piece.bytes);
                if under_way.len() == most_under_way {
                    end(to, &mut under_way)?;
                }
            }
            while !under_way.is_empty() {
                end(to, &mut under_way)?;
            }
            Ok(())
        });
        // After an error, the buffers of copies under way are still read.
        while let Some(ended) = to.end() {
            if let Ok(buffer) = ended {
                free.give(buffer);
            }
        }
        *buffers = free.into_all();
        sent
    }

    /// The pieces in their order, of whole rows and of no more bytes than these.
    fn pieces(&self, of: usize, most: usize) -> Result<Vec<Piece>, Error> {
        let shape = self.shape();
        let rows = shape.l() * shape.m();
        let mut pieces = Vec::new();
        for which in [Which::Codes, Which::Scales] {
            let of_row = which.of_row(&shape);
            if rows == 0 || of_row == 0 {
                continue;
            }
            let of_piece = most / of_row;
            if of_piece == 0 {
                return Err(Error::BufferTooShort {
                    operand: "buffer of pieces",
                    unit: "bytes",
                    needed: of_row,
                    got: most,
                    hint: " (a row)".into(),
                });
            }
            pieces.extend((0..rows).step_by(of_piece).map(|row| Piece {
                of,
                of_scales: which == Which::Scales,
                at: row * of_row,
                bytes: of_piece.min(rows - row) * of_row,
            }));
        }
        Ok(pieces)
    }

    /// Reads a piece into a buffer.
    fn fill<D: Pieces>(
        &self,
        piece: &Piece,
        mut buffer: D::Buffer,
    ) -> Result<D::Buffer, SendError<D::Error>> {
        let bytes = D::bytes(&mut buffer).map_err(SendError::Destination)?;
        let read = self.read(piece, &mut bytes[..piece.bytes]);
        read.map(|()| buffer).map_err(SendError::File)
    }

    fn read(&self, piece: &Piece, out: &mut [u8]) -> Result<(), FileError> {
        let which = if piece.of_scales {
            Which::Scales
        } else {
            Which::Codes
        };
        let first = piece.at / which.of_row(&self.shape());
        self.read_rows(which, first, out)?;
        match which {
            Which::Codes => Ok(()),
            Which::Scales => self.check_scales(first, out),
        }
    }
}

/// Buffers that no copy reads and no thread fills. The last one that came is the first that goes: it may be in a cache.
struct Free<B> {
    /// The buffers, and whether none is given any more.
    state: Mutex<(Vec<B>, bool)>,
    changed: Condvar,
}

impl<B> Free<B> {
    fn new(all: Vec<B>) -> Self {
        Self {
            state: Mutex::new((all, false)),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<B>, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a buffer, or until none is given any more.
    fn take(&self) -> Option<B> {
        let none = |state: &mut (Vec<B>, bool)| state.0.is_empty() && !state.1;
        let state = self.changed.wait_while(self.lock(), none);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let (buffers, is_closed) = &mut *state;
        match is_closed {
            true => None,
            false => buffers.pop(),
        }
    }

    fn give(&self, buffer: B) {
        self.lock().0.push(buffer);
        self.changed.notify_one();
    }

    fn into_all(self) -> Vec<B> {
        let state = self.state.into_inner();
        state.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Gives no buffer any more when it is dropped.
struct Closed<'a, B>(&'a Free<B>);

impl<B> Drop for Closed<'_, B> {
    fn drop(&mut self) {
        self.0.lock().1 = true;
        self.0.changed.notify_all();
    }
}
