//! The threads over which calls are spread: rayon's, or [`Workers`] that a program owns.

use std::any::Any;
use std::cell::{RefCell, UnsafeCell};
use std::hint;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::error::{Error, Result};

/// Threads that wait for the next call by looking for it, so that a call of some microseconds need not wake anybody.
///
/// Calls are spread over rayon's threads, which sleep between calls; waking one takes longer than a small layer. A
/// program that makes one call after the other, as decoding does, owns workers, and makes its calls within
/// [`install`](Self::install). Results have the same bits on any threads.
///
/// A worker that finds nothing to do for a while (1 ms, or what [`waiting`](Self::waiting) was told) goes to sleep until
/// the next call. Meanwhile it takes a processor, which it yields to other programs now and then.
///
/// ```
/// use nvfp4_gemv::cpu::Workers;
/// use nvfp4_gemv::{Linear, Output, Vectors};
/// let layer = Linear::from_dense(&[1.0f32; 4 * 32], 4, 32)?;
/// let workers = Workers::new(2)?;
/// let mut y = [0.0f32; 4];
/// workers.install(|| layer.forward(&Vectors::of(&[1.0f32; 32]), 1, Output::of(&mut y)))?;
/// assert_eq!(y, [32.0; 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    /// The process that started the threads. A forked child has none of them.
    process: u32,
}

/// How long a worker looks for work before it sleeps, where nothing was said.
const WAITING: Duration = Duration::from_millis(1);

/// More threads than any machine has processors are a mistake.
const MOST: usize = 1 << 12;

/// Looks between two glances at the clock.
const LOOKS: usize = 64;

/// Looks after which a caller who waits for the last job leaves its processor to others.
const PATIENCE: usize = 4096;

impl Workers {
    /// So many threads, the caller's own included: one less is started.
    ///
    /// # Errors
    /// [`Error::Threads`] for none, for more than 4096, and where the system starts no more.
    pub fn new(threads: usize) -> Result<Self> {
        Self::waiting(threads, WAITING)
    }

    /// As [`new`](Self::new), with workers that look for work for so long before they sleep.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s.
    pub fn waiting(threads: usize, waiting: Duration) -> Result<Self> {
        let why = match threads {
            0 => Some("a call needs one".into()),
            1..=MOST => None,
            _ => Some(format!("{MOST} at most")),
        };
        if let Some(why) = why {
            return Err(Error::Threads { threads, why });
        }
        let mut workers = Self {
            shared: Arc::new(Shared {
                threads,
                waiting,
                ..Shared::default()
            }),
            handles: Vec::new(),
            process: std::process::id(),
        };
        for number in 1..threads {
            let shared = Arc::clone(&workers.shared);
            let thread = thread::Builder::new().name(format!("nvfp4-gemv-{number}"));
            let started = thread.spawn(move || shared.serve(number));
            // Those that run are ended when `workers` is dropped.
            workers
                .handles
                .push(started.map_err(|error| Error::Threads {
                    threads,
                    why: error.to_string(),
                })?);
        }
        Ok(workers)
    }

    /// Calls `f`, whose calls of this library on this thread are spread over these workers. While they serve another
    /// thread's call, a call is computed by its own thread alone.
    pub fn install<R>(&self, f: impl FnOnce() -> R) -> R {
        let _before = Before(CURRENT.replace(Some(Arc::clone(&self.shared))));
        f()
    }

    /// Calls `f` for each of so many jobs, 0 first, on these workers and this thread: for what a program computes between
    /// its products.
    ///
    /// # Panics
    /// Where `f` panics, when all jobs have ended.
    pub fn for_each(&self, jobs: usize, f: impl Fn(usize) + Sync) {
        self.shared.for_each(jobs, &|_, job| f(job));
    }

    /// Calls `f(start, chunk)` for each chunk of so many elements of a slice, the last one shorter, with the place of its
    /// first element: as [`for_each`](Self::for_each).
    ///
    /// # Panics
    /// Where `f` panics, when all chunks were passed.
    pub fn for_each_chunk<T: Send>(
        &self,
        all: &mut [T],
        size: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        Threads::Workers(Arc::clone(&self.shared)).for_each_chunk(all, size, f);
    }

    /// Threads, the caller's own included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(std::mem::take(&mut self.handles));
            return;
        }
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.wake();
        for handle in self.handles.drain(..) {
            // A job's panic is its caller's; a worker has none of its own.
            let _ = handle.join();
        }
    }
}

thread_local! {
    /// The workers over which this thread's calls are spread, if not over rayon's threads.
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Restores what was current.
struct Before(Option<Arc<Shared>>);

impl Drop for Before {
    fn drop(&mut self) {
        // Not there any more where a thread ends.
        let _ = CURRENT.try_with(|current| current.replace(self.0.take()));
    }
}

/// The threads over which this thread's calls are spread.
pub(crate) enum Threads {
    Rayon,
    Workers(Arc<Shared>),
}

impl Threads {
    pub(crate) fn current() -> Self {
        let current = CURRENT.try_with(|current| current.borrow().clone());
        match current {
            Ok(Some(shared)) => Self::Workers(shared),
            // Nothing was said, or the thread ends and has no such variable any more.
            Ok(None) | Err(_) => Self::Rayon,
        }
    }

    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Rayon => rayon::current_num_threads(),
            Self::Workers(shared) => shared.threads,
        }
    }

    /// Bytes of weights times vectors below which other threads cost more than they bring.
    pub(crate) fn alone_below(&self) -> usize {
        match self {
            Self::Rayon => 256 << 10,
            // A job is taken some 100 ns after it was offered; so many bytes take a thread 1 µs.
            Self::Workers(_) => 32 << 10,
        }
    }

    /// Elements that a thread computes at least, where an element takes some nanoseconds.
    pub(crate) fn elements_at_once(&self) -> usize {
        match self {
            Self::Rayon => 4096,
            Self::Workers(_) => 512,
        }
    }

    /// Calls `f(thread, job)` for each job. No two threads have the same number at once.
    pub(crate) fn for_each(&self, jobs: usize, f: impl Fn(usize, usize) + Sync) {
        match self {
            Self::Rayon => {
                let on_its_thread = |job| f(rayon::current_thread_index().unwrap_or(0), job);
                (0..jobs).into_par_iter().for_each(on_its_thread);
            }
            Self::Workers(shared) => shared.for_each(jobs, &f),
        }
    }

    /// Calls `f(start, chunk)` for each chunk of so many elements, the last one shorter, with the place of its first.
    pub(crate) fn for_each_chunk<T: Send>(
        &self,
        all: &mut [T],
        size: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let chunks = Chunks(all.as_mut_ptr(), all.len());
        let jobs = all.len().div_ceil(size.max(1));
        let chunk = |_: usize, job: usize| {
            let start = job * size;
            // SAFETY: a chunk of the slice, which is borrowed until all jobs are done. Each job comes once, so that
            // nobody else has it.
            f(start, unsafe { chunks.chunk(start, size) });
        };
        match jobs {
            0 | 1 => self.alone(jobs, chunk),
            _ => self.for_each(jobs, chunk),
        }
    }

    /// As [`for_each`](Self::for_each), by this thread.
    pub(crate) fn alone(&self, jobs: usize, f: impl Fn(usize, usize)) {
        let thread = match self {
            Self::Rayon => rayon::current_thread_index().unwrap_or(0),
            Self::Workers(_) => 0,
        };
        (0..jobs).for_each(|job| f(thread, job));
    }
}

/// The elements of a slice, of which several threads write chunks.
struct Chunks<T>(*mut T, usize);

// SAFETY: elements are handed out once, to threads that may have them.
unsafe impl<T: Send> Sync for Chunks<T> {}

impl<T> Chunks<T> {
    /// # Safety
    /// The slice is borrowed, and nobody else accesses the chunk, for as long as it lives.
    #[expect(clippy::mut_from_ref, reason = "the caller has each chunk once")]
    unsafe fn chunk(&self, start: usize, size: usize) -> &mut [T] {
        let end = (start + size).min(self.1);
        // SAFETY: inside the slice; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), end - start) }
    }
}

/// A number that other processors' writes to other numbers do not disturb.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicUsize);

/// A call: what is done for each job, and how many there are.
#[derive(Clone, Copy)]
struct Call {
    job: *const (dyn Fn(usize, usize) + Sync),
    jobs: usize,
}

/// The panic of the first of several jobs.
#[derive(Default)]
struct First(Option<Box<dyn Any + Send>>);

impl First {
    /// Does a job, whatever the ones before did.
    fn of(&mut self, job: impl FnOnce()) {
        self.keep(panic::catch_unwind(AssertUnwindSafe(job)));
    }

    fn keep(&mut self, result: thread::Result<()>) {
        match (result, &self.0) {
            (Ok(()), _) => {}
            (Err(panic), None) => self.0 = Some(panic),
            // To drop it could panic, while others still work on the call.
            (Err(panic), Some(_)) => std::mem::forget(panic),
        }
    }

    /// Panics again, where one did.
    fn resume(self) {
        if let Some(panic) = self.0 {
            panic::resume_unwind(panic);
        }
    }
}

/// The state that workers and callers share.
///
/// A caller writes `call`, then `left`. Whoever takes one from `left` may read `call`: the caller waits until as many
/// are `done`, and writes neither before.
#[derive(Default)]
pub(crate) struct Shared {
    threads: usize,
    waiting: Duration,
    /// Jobs of the call that nobody has taken.
    left: Apart,
    /// Jobs of the call that have ended.
    done: Apart,
    call: UnsafeCell<Option<Call>>,
    /// Somebody's call is being served.
    busy: AtomicBool,
    /// The panic of a job of the call.
    panic: Mutex<First>,
    /// Workers that sleep. Changed with `bed` locked.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    alarm: Condvar,
    ends: AtomicBool,
}

// SAFETY: `call` is written by the caller who has `busy`, while `left` is 0. It is read by whoever took a job from
// `left` and has not counted it in `done`; the caller waits for all of them before it gives `busy` back. What `job`
// points to may be called by any thread.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing belongs to a thread.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("threads", &self.threads)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Calls `f(thread, job)` for each job, this thread being number 0.
    fn for_each(&self, jobs: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        let is_small = jobs <= 1 || self.threads == 1;
        if is_small || self.busy.swap(true, Ordering::Acquire) {
            let mut first = First::default();
            (0..jobs).for_each(|job| first.of(|| f(0, job)));
            return first.resume();
        }
        // SAFETY: the lifetime alone changes, and this function returns when no job is running or left.
        let job = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize, usize) + Sync + '_),
                *const (dyn Fn(usize, usize) + Sync + 'static),
            >(f)
        };
        // SAFETY: `busy` is this call's, and nobody reads before `left` is written.
        unsafe { *self.call.get() = Some(Call { job, jobs }) };
        self.done.0.store(0, Ordering::Relaxed);
        self.left.0.store(jobs, Ordering::SeqCst);
        // Either a worker that goes to sleep sees the jobs, or it is seen here.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
        self.work(0);
        let mut looks = 0;
        while self.done.0.load(Ordering::Acquire) < jobs {
            looks += 1;
            match looks < PATIENCE {
                true => hint::spin_loop(),
                false => thread::yield_now(),
            }
        }
        let panic = std::mem::take(&mut *lock(&self.panic));
        self.busy.store(false, Ordering::Release);
        panic.resume();
    }

    /// Takes jobs until none is left.
    fn work(&self, thread: usize) {
        let take = |left: usize| left.checked_sub(1);
        while let Ok(left) = (self.left.0).fetch_update(Ordering::Acquire, Ordering::Relaxed, take)
        {
            // SAFETY: a job of the call was taken and is not done; the call was written before `left` was.
            let result = unsafe {
                let Some(call) = *self.call.get() else {
                    unreachable!("a job without a call");
                };
                let job = call.jobs - left;
                panic::catch_unwind(AssertUnwindSafe(|| (*call.job)(thread, job)))
            };
            lock(&self.panic).keep(result);
            self.done.0.fetch_add(1, Ordering::Release);
        }
    }

    /// The loop of a worker.
    fn serve(self: Arc<Self>, thread: usize) {
        // Calls within jobs find the workers busy, and are computed by the job's thread.
        CURRENT.replace(Some(Arc::clone(&self)));
        let mut idle = Instant::now();
        loop {
            if self.has_work() {
                self.work(thread);
                idle = Instant::now();
            }
            for _ in 0..LOOKS {
                if self.has_work() {
                    break;
                }
                hint::spin_loop();
            }
            if self.ends.load(Ordering::Relaxed) {
                break;
            }
            if self.has_work() {
                continue;
            }
            let time = idle.elapsed();
            if time >= self.waiting {
                self.sleep();
                idle = Instant::now();
            } else if time >= self.waiting / 16 {
                thread::yield_now();
            }
        }
        CURRENT.replace(None);
    }

    fn has_work(&self) -> bool {
        self.left.0.load(Ordering::Relaxed) > 0
    }

    /// Until somebody wakes all.
    fn sleep(&self) {
        let bed = lock(&self.bed);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let must_stay_up =
            self.left.0.load(Ordering::SeqCst) > 0 || self.ends.load(Ordering::SeqCst);
        if !must_stay_up {
            // Woken for nothing it looks for work again, for a while.
            drop(self.alarm.wait(bed));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake(&self) {
        // Who is about to sleep has the lock until it does.
        drop(lock(&self.bed));
        self.alarm.notify_all();
    }
}

/// Nothing that is locked here is ever left half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each job once, whether workers look or sleep.
    #[test]
    fn each_job_is_done_once() {
        for threads in [1, 2, 5] {
            for waiting in [Duration::ZERO, WAITING] {
                let workers = Workers::waiting(threads, waiting).unwrap();
                for jobs in (0..40).chain([1000]) {
                    let times: Vec<_> = (0..jobs).map(|_| AtomicUsize::new(0)).collect();
                    workers.for_each(jobs, |job| {
                        times[job].fetch_add(1, Ordering::Relaxed);
                    });
                    let times: Vec<_> = times.iter().map(|of| of.load(Ordering::Relaxed)).collect();
                    assert_eq!(times, vec![1; jobs], "{threads} threads");
                    if jobs % 8 == 0 {
                        thread::sleep(Duration::from_micros(100));
                    }
                }
            }
        }
    }

    /// Numbers of threads stand for memory that a thread has to itself.
    #[test]
    fn no_two_threads_have_the_same_number_at_once() {
        let workers = Workers::new(4).unwrap();
        let taken: [AtomicBool; 4] = Default::default();
        for _ in 0..200 {
            workers.install(|| {
                Threads::current().for_each(32, |thread, _| {
                    assert!(!taken[thread].swap(true, Ordering::SeqCst));
                    hint::spin_loop();
                    taken[thread].store(false, Ordering::SeqCst);
                });
            });
        }
    }

    #[test]
    fn calls_from_many_threads_and_within_jobs_all_end() {
        let workers = Workers::new(3).unwrap();
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        workers.install(|| {
                            Threads::current().for_each(7, |_, _| {
                                Threads::current().for_each(3, |_, _| {
                                    count.fetch_add(1, Ordering::Relaxed);
                                });
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 4 * 100 * 7 * 3);
    }

    #[test]
    fn a_panic_is_the_callers_and_workers_live_on() {
        for threads in [1, 3] {
            let workers = Workers::new(threads).unwrap();
            let ended = AtomicUsize::new(0);
            let result = panic::catch_unwind(AssertUnwindSafe(|| {
                workers.for_each(50, |job| {
                    assert!(job != 17, "job {job}");
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let message = result.unwrap_err();
            assert_eq!(*message.downcast::<String>().unwrap(), "job 17");
            assert_eq!(ended.load(Ordering::Relaxed), 49, "{threads} threads");
            workers.for_each(50, |_| {
                ended.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ended.load(Ordering::Relaxed), 99, "{threads} threads");
        }
    }

    /// A job's panic may itself panic when it is dropped: not before all jobs have ended.
    #[test]
    fn panics_that_panic_again_are_kept_until_the_end() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        for threads in [1, 3] {
            let workers = Workers::new(threads).unwrap();
            let ended = AtomicUsize::new(0);
            let result = panic::catch_unwind(AssertUnwindSafe(|| {
                workers.for_each(50, |_| {
                    ended.fetch_add(1, Ordering::Relaxed);
                    panic::panic_any(Bomb);
                });
            }));
            std::mem::forget(result);
            assert_eq!(ended.load(Ordering::Relaxed), 50, "{threads} threads");
        }
    }

    /// A thread that ends calls from a destructor of its own variables.
    #[test]
    fn calls_while_a_thread_ends_are_on_rayons_threads() {
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                Threads::current().for_each(3, |_, _| {});
            }
        }
        thread_local!(static LAST: Last = const { Last });
        let ends = || {
            LAST.with(|_| {});
            let workers = Workers::new(2).unwrap();
            workers.install(|| Threads::current().for_each(3, |_, _| {}));
        };
        thread::spawn(ends).join().unwrap();
    }

    #[test]
    fn what_was_current_is_current_again() {
        let (one, two) = (Workers::new(1).unwrap(), Workers::new(2).unwrap());
        let count = || match Threads::current() {
            Threads::Rayon => 0,
            Threads::Workers(shared) => shared.threads,
        };
        one.install(|| {
            assert_eq!(two.install(count), 2);
            let within = AssertUnwindSafe(|| two.install(|| -> () { panic!("within") }));
            assert!(panic::catch_unwind(within).is_err());
            assert_eq!(count(), 1);
        });
        assert_eq!(count(), 0);
        assert!(Workers::new(0).is_err(), "none computes nothing");
        assert!(Workers::new(usize::MAX).is_err());
    }
}
