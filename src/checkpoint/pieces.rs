//! Joined weights to somewhere else by pieces: bounded host memory, read ahead while earlier pieces are copied.

use std::collections::VecDeque;
use std::sync::mpsc;

use rayon::prelude::*;

use super::Joined;
use super::joined::Which;
use crate::Error;

/// A piece of joined weights: whole rows of one of their two arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
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
    /// The destination failed. What it has got is not all.
    #[error("{0}")]
    Destination(E),
}

impl Joined<'_> {
    /// Sends codes, then block scales, to a destination, piece by piece and in order. Pieces are as many whole rows as
    /// the shortest buffer holds. Up to half of the buffers are with copies that are under way, and a thread reads the
    /// next pieces into the others: two is the least for that, and no other memory is taken. `progress` is called after
    /// each piece that has arrived, with the bytes of all that have, and those of all that there are.
    ///
    /// # Errors
    /// [`SendError::Buffers`] before anything is sent. [`SendError::Destination`] after every copy under way has ended.
    pub fn send<D: Pieces>(
        &self,
        mut buffers: Vec<D::Buffer>,
        to: &mut D,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<(), SendError<D::Error>> {
        let lengths = buffers
            .iter_mut()
            .map(|buffer| D::bytes(buffer).map(|bytes| bytes.len()));
        let lengths = lengths
            .collect::<Result<Vec<_>, _>>()
            .map_err(SendError::Destination)?;
        let pieces = self
            .pieces(lengths.into_iter().min().unwrap_or(0))
            .map_err(SendError::Buffers)?;
        let all: usize = pieces.iter().map(|piece| piece.bytes).sum();
        let most_under_way = (buffers.len() / 2).max(1);
        let mut under_way = VecDeque::new();
        let mut arrived = 0;
        let sent = std::thread::scope(|scope| {
            let (free, to_fill) = mpsc::channel();
            let (filled, ready) = mpsc::channel();
            for buffer in buffers {
                // The other end is this function's own.
                let _ = free.send(buffer);
            }
            let of_reader = &pieces;
            scope.spawn(move || {
                for piece in of_reader {
                    let Ok(mut buffer) = to_fill.recv() else {
                        return;
                    };
                    let read = D::bytes(&mut buffer)
                        .map(|bytes| self.read(piece, &mut bytes[..piece.bytes]));
                    if filled.send(read.map(|()| buffer)).is_err() {
                        return;
                    }
                }
            });
            let mut end = |to: &mut D, under_way: &mut VecDeque<usize>| {
                let ended = to.end().transpose()?;
                arrived += under_way.pop_front().unwrap_or(0);
                progress(arrived, all);
                Ok(ended)
            };
            // An error ends both channels, and with them the thread.
            for piece in &pieces {
                let Ok(read) = ready.recv() else { break };
                to.begin(*piece, read?)?;
                under_way.push_back(piece.bytes);
                if under_way.len() == most_under_way
                    && let Some(buffer) = end(to, &mut under_way)?
                {
                    // The thread has gone when all is read.
                    let _ = free.send(buffer);
                }
            }
            while !under_way.is_empty() {
                end(to, &mut under_way)?;
            }
            Ok(())
        });
        // After an error, the buffers of copies under way are still read.
        while to.end().is_some() {}
        sent.map_err(SendError::Destination)
    }

    /// The pieces in their order, of whole rows and of no more bytes than these.
    fn pieces(&self, most: usize) -> Result<Vec<Piece>, Error> {
        let shape = self.shape();
        let rows = shape.l() * shape.m();
        let mut pieces = Vec::new();
        for (of_scales, of_row) in [(false, shape.k() / 2), (true, shape.blocks())] {
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
                of_scales,
                at: row * of_row,
                bytes: of_piece.min(rows - row) * of_row,
            }));
        }
        Ok(pieces)
    }

    fn read(&self, piece: &Piece, out: &mut [u8]) {
        let which = if piece.of_scales {
            Which::Scales
        } else {
            Which::Codes
        };
        let of_row = which.of_row(&self.shape());
        let first = piece.at / of_row;
        let rows = out.par_chunks_exact_mut(of_row).with_min_len(64);
        rows.enumerate()
            .for_each(|(row, out)| self.write_row(which, first + row, out));
    }
}
