//! Memory that calls need beside their operands, which later calls use again.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cpu::parallel::Scratch;
use crate::cpu::prepare::{Form, Line, Tiles};
use crate::cpu::rows::WHOLE_ROWS_UP_TO;
use crate::cpu::threads::Threads;
use crate::cpu::{Implementation, Manner};
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
    /// Sums of vectors' digits.
    pub(super) sums: Vec<f32>,
}

/// Memory for calls, as many sets as calls ran at once. A call that finds enough of it allocates nothing.
#[derive(Default)]
pub(crate) struct Pool {
    buffers: Mutex<Vec<Buffers>>,
    /// Results between layers.
    floats: Mutex<Vec<Vec<f32>>>,
}

impl fmt::Debug for Pool {
    /// Without what is in it: every layer has the pool.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    /// The pool that all of the process's prepared calls share.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Pool>> = Mutex::new(Weak::new());
        shared(&SHARED)
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
            resize(floats, count, 0.0)?;
            f(&mut floats[..count])
        })
    }

    /// Makes room for so many calls at once, of this shape or with fewer vectors, on the pool of threads that is
    /// current, whatever the vectors' values.
    pub(crate) fn reserve(
        &self,
        at_once: usize,
        shape: &Shape,
        layout: ScaleLayout,
        (activation, manner): (Activation, Manner),
        has_column_alpha: bool,
    ) -> Result<()> {
        if shape.is_empty() {
            return Ok(());
        }
        let kernels = Implementation::best().kernels();
        each(&self.buffers, at_once, |buffers| {
            let Buffers {
                lines,
                scratch,
                scaled,
                ..
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
            for form in Form::possible(activation, kernels, manner.accuracy) {
                let family = &kernels.family_in(form, manner.batch_invariant);
                // Tiles of K are longer for fewer vectors.
                for n in [1, WHOLE_ROWS_UP_TO, family.direct_up_to, shape.n()] {
                    let shape = &shape.with_vectors(n.min(shape.n()))?;
                    let tiles = Tiles::new(shape, form, (kernels, manner.batch_invariant));
                    reserve(lines, tiles.lines(shape.l()))?;
                    for scratch in &mut *scratch {
                        lock(scratch).reserve(family, shape, layout, &tiles)?;
                    }
                }
            }
            Ok(())
        })
    }
}

/// Memory that is shared in a process as long as it has users: layers run one after the other, so the memory of the
/// largest one does for all. Freed with the last user.
pub(crate) fn shared<T: Default>(of: &Mutex<Weak<T>>) -> Arc<T> {
    let mut of = lock(of);
    of.upgrade().unwrap_or_else(|| {
        let one = Arc::default();
        *of = Arc::downgrade(&one);
        one
    })
}

/// Makes room for so many elements in all.
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, len: usize) -> Result<()> {
    let more = len.saturating_sub(buffer.len());
    let bytes = len.saturating_mul(size_of::<T>());
    (buffer.try_reserve(more)).map_err(|_| Error::NoMemory { bytes })
}

/// As [`reserve`], with elements of some value: at least so many are there then.
pub(crate) fn resize<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) -> Result<()> {
    if buffer.len() < len {
        reserve(buffer, len)?;
        buffer.resize(len, value);
    }
    Ok(())
}

/// Calls `f` with one of some sets of memory, which nobody else has meanwhile, or with an empty one.
pub(crate) fn with<T: Default, R>(pool: &Mutex<Vec<T>>, f: impl FnOnce(&mut T) -> R) -> R {
    let mut one = lock(pool).pop().unwrap_or_default();
    let result = f(&mut one);
    lock(pool).push(one);
    result
}

/// Calls `f` with so many sets of memory: those that `with` takes next.
fn each<T: Default>(
    pool: &Mutex<Vec<T>>,
    count: usize,
    f: impl FnMut(&mut T) -> Result<()>,
) -> Result<()> {
    let mut own = {
        let mut all = lock(pool);
        let rest = all.len().saturating_sub(count);
        all.split_off(rest)
    };
    own.resize_with(count, T::default);
    let result = own.iter_mut().try_for_each(f);
    lock(pool).append(&mut own);
    result
}

/// Nothing that is locked here is ever left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
