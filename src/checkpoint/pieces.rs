//! Joined weights to somewhere else by pieces: in bounded host memory, read by several threads while earlier pieces are
//! copied.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

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
    ///
    /// `progress` is called after each piece that has arrived, with the bytes of all that have, and those of all that there
    /// are.
    ///
    /// # Errors
    /// [`SendError::Buffers`] before anything is sent. [`SendError::File`] and [`SendError::Destination`] after every copy
    /// under way has ended; the destination has a part of the weights then.
    pub fn send<D: Pieces>(
        all: &[Self],
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
        let sent = std::thread::scope(|scope| {
            let (free, to_fill) = mpsc::channel();
            let (filled, ready) = mpsc::channel();
            for buffer in buffers {
                // The other end is this function's own.
                let _ = free.send(buffer);
            }
            let reader = Reader {
                all,
                pieces: &pieces,
                next: AtomicUsize::new(0),
                to_fill: Mutex::new(to_fill),
            };
            let reader = std::sync::Arc::new(reader);
            for _ in 0..readers {
                let (reader, filled) = (reader.clone(), filled.clone());
                scope.spawn(move || reader.run::<D>(&filled));
            }
            // An error ends both channels, and with them the threads.
            drop((reader, filled));
            let mut end = |to: &mut D, under_way: &mut VecDeque<usize>| {
                let ended = to.end().transpose().map_err(SendError::Destination)?;
                arrived += under_way.pop_front().unwrap_or(0);
                progress(arrived, total);
                Ok(ended)
            };
            // It ends when the threads have: of the buffers that are not with copies now, each thread gets one, and finds
            // no piece for it.
            for read in ready {
                let (piece, buffer) = read?;
                to.begin(piece, buffer).map_err(SendError::Destination)?;
                under_way.push_back(piece.bytes);
                if under_way.len() == most_under_way
                    && let Some(buffer) = end(to, &mut under_way)?
                {
                    // The threads have gone when all is read.
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

/// What threads share that read pieces.
struct Reader<'a, 'f, B> {
    all: &'a [Joined<'f>],
    pieces: &'a [Piece],
    /// The number of the piece that is read next.
    next: AtomicUsize,
    to_fill: Mutex<mpsc::Receiver<B>>,
}

type Read<D> = Result<(Piece, <D as Pieces>::Buffer), SendError<<D as Pieces>::Error>>;

impl<B> Reader<'_, '_, B> {
    /// Reads pieces, until there is none that another thread does not read, or until nobody wants them.
    fn run<D: Pieces<Buffer = B>>(&self, filled: &mpsc::Sender<Read<D>>) {
        loop {
            let buffer = {
                let to_fill = self.to_fill.lock();
                to_fill.unwrap_or_else(PoisonError::into_inner).recv()
            };
            let Ok(mut buffer) = buffer else { return };
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(piece) else {
                return;
            };
            let read = match D::bytes(&mut buffer) {
                Ok(bytes) => {
                    let read = self.all[piece.of].read(piece, &mut bytes[..piece.bytes]);
                    read.map_err(SendError::File)
                }
                Err(error) => Err(SendError::Destination(error)),
            };
            if filled.send(read.map(|()| (*piece, buffer))).is_err() {
                return;
            }
        }
    }
}
