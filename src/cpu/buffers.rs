//! Memory that calls need beside their operands, which later calls use again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cpu::parallel::Scratch;
use crate::cpu::prepare::{Form, Line, Tiles};
use crate::cpu::threads::Threads;
use crate::cpu::{Accuracy, Implementation};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::types::{Activation, ScaleLayout};

/// The memory of one call at a time.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// The vectors, as kernels read them.
    pub(super) lines: Vec<Line>,
    /// A set for each thread.
    pub(super) scratch: Vec<Mutex<Scratch>>,
    /// The vectors times factors of columns.
    pub(super) scaled: Vec<f32>,
}

/// Memory for calls, as many sets as calls ran at once. A call that finds enough of it allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    buffers: Mutex<Vec<Buffers>>,
    /// Results between layers.
    floats: Mutex<Vec<Vec<f32>>>,
}

impl Pool {
    /// The pool that all of the process's prepared calls share: layers run one after the other, so the memory of the
    /// largest one does for all. Freed with the last of its users.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Pool>> = Mutex::new(Weak::new());
        let mut shared = lock(&SHARED);
        shared.upgrade().unwrap_or_else(|| {
            let pool = Arc::default();
            *shared = Arc::downgrade(&pool);
            pool
        })
    }

    /// Calls `f` with buffers that nobody else has meanwhile.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Buffers) -> R) -> R {
        with(&self.buffers, f)
    }

    /// Calls `f` with so many numbers, of any value, that nobody else has meanwhile.
    pub(crate) fn with_floats(
        &self,
        count: usize,
        f: impl FnOnce(&mut [f32]) -> Result<()>,
    ) -> Result<()> {
        with(&self.floats, |floats| {
            if floats.len() < count {
                reserve(floats, count)?;
                floats.resize(count, 0.0);
            }
            f(&mut floats[..count])
        })
    }

    /// Makes room for a call of this shape on the pool of threads that is current, whatever the vectors' values.
    pub(crate) fn reserve(
        &self,
        shape: &Shape,
        layout: ScaleLayout,
        (activation, accuracy): (Activation, Accuracy),
        has_column_alpha: bool,
    ) -> Result<()> {
        if shape.is_empty() {
            return Ok(());
        }
        let kernels = Implementation::best().kernels();
        self.with(|buffers| {
            let Buffers {
                lines,
                scratch,
                scaled,
            } = buffers;
            let activation = match has_column_alpha {
                true => {
                    reserve(scaled, shape.vector_elements())?;
                    Activation::F32
                }
                false => activation,
            };
            let threads = Threads::current().count().max(scratch.len());
            scratch.resize_with(threads, Mutex::default);
            for form in Form::possible(activation, kernels, accuracy) {
                let (tiles, family) = (Tiles::new(shape, form, kernels), kernels.family(form));
                reserve(lines, tiles.lines(shape.l()))?;
                for scratch in &mut *scratch {
                    lock(scratch).reserve(family, shape, layout, &tiles)?;
                }
            }
            Ok(())
        })
    }
}

/// Makes room for so many elements in all.
pub(super) fn reserve<T>(buffer: &mut Vec<T>, len: usize) -> Result<()> {
    let more = len.saturating_sub(buffer.len());
    let bytes = len.saturating_mul(size_of::<T>());
    (buffer.try_reserve(more)).map_err(|_| Error::NoMemory { bytes })
}

fn with<T: Default, R>(pool: &Mutex<Vec<T>>, f: impl FnOnce(&mut T) -> R) -> R {
    let mut one = lock(pool).pop().unwrap_or_default();
    let result = f(&mut one);
    lock(pool).push(one);
    result
}

/// Nothing that is locked here is ever left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
