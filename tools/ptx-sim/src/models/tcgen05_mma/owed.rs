//! MMAs whose arithmetic is put off until somebody looks at D.
//!
//! Operands are read, and everything is checked, when an MMA executes. Only arithmetic that cannot fail is left. Put
//! off, the products onto one D are computed together: D stays in registers from one to the next, and several threads
//! share the rows. Each product is still rounded onto D by itself, in the order of the MMAs, so that the bits are those
//! of [`execute`](super::execute).

use std::num::NonZero;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use super::super::idesc::Accumulator;
use super::super::memory::SharedRead;
use super::super::tmem::{COLUMNS, Tmem};
use super::compute::{self, Product, Summation, Sums};
use super::inner::{self, ROWS};
use super::operand::{self, Row, Values};
use super::small::{self, Small};
use super::{AOperand, CtaGroup, CtaMemory, Mma, MmaError, layout};

/// Products that are put off at most: operands of up to 12 KiB each.
const MOST: usize = 64;

/// Multiplications that a thread is worth starting for.
const WORTH_A_THREAD: usize = 4 << 20;

/// An MMA and the operands that it has read.
#[derive(Debug)]
struct Taken {
    mma: Mma,
    a: Vec<Row>,
    b: Vec<Row>,
}

impl Taken {
    /// Whether another MMA has the same D, and all of it.
    fn same_d(&self, mma: &Mma) -> bool {
        let of = |m: &Mma| (m.d, m.idesc.m, m.idesc.n, m.idesc.d, m.disable_lanes);
        of(&self.mma) == of(mma)
    }

    /// Whether another MMA's D may have cells of this one's.
    fn meets(&self, mma: &Mma) -> bool {
        let columns = |m: &Mma| m.d.column()..m.d.column() + m.idesc.n;
        let (mine, other) = (columns(&self.mma), columns(mma));
        mine.start < other.end && other.start < mine.end
    }

    fn multiplications(&self) -> usize {
        self.a.len() * self.b.len() * self.mma.idesc.kind.k() as usize
    }

    /// `small`: of integers, if they are small.
    fn product(&self, small: bool) -> Option<Computed> {
        let k = self.mma.idesc.kind.k() as usize;
        if small
            && let Some((a, b)) = operand::integers(&self.mma, &self.a, &self.b)
            && let Some(product) = Small::of_integers(&a, &b, k)
        {
            return Some(Computed::Small(product));
        }
        let a = operand::decode_a(&self.mma, &self.a);
        let b = operand::decode_b(&self.mma, &self.b);
        if let (true, Values::Real(a), Values::Real(b)) = (small, &a, &b)
            && let Some(product) = Small::of(a, b, k)
        {
            return Some(Computed::Small(product));
        }
        // Only scales can be wrong, and there are none.
        let product = compute::product_of(&self.mma, a, b, None);
        Some(Computed::Any(product.ok()?))
    }

    /// The MMA's link of a chain for the rows from `first` on, if it can be one.
    fn link<'a>(&self, product: &'a Computed, first: usize) -> Option<Link<'a>> {
        let m = &self.mma;
        let plain =
            m.idesc.d == Accumulator::F32 && m.scale_input_d == 0 && m.disable_lanes == [0; 8];
        match product {
            Computed::Small(p) => p.link(first, m.accumulate).map(Link::Small),
            Computed::Any(p) if plain => p.link(first, m.accumulate).map(Link::F32),
            Computed::Any(_) => None,
        }
    }
}

/// A product, by how it is added onto D.
enum Computed {
    Small(Small),
    Any(Product),
}

/// Rows of a product in a chain of its kind.
enum Link<'a> {
    Small(small::Link<'a>),
    F32(inner::Link<'a>),
}

/// Products that have not been computed yet, onto the tensor memory of one CTA. Whoever looks at that memory settles
/// them first.
#[derive(Debug, Default)]
pub struct Owed {
    /// By D: no two have a cell in common.
    of_d: Vec<Vec<Taken>>,
}

impl Owed {
    /// Whether the arithmetic of an MMA may be put off. One of two CTAs, or with operands in tensor memory, is
    /// executed at once.
    pub fn takes(mma: &Mma) -> bool {
        mma.group == CtaGroup::One
            && matches!(mma.a, AOperand::Shared(_))
            && mma.scales.is_none()
            && mma.summation == Summation::Once
    }

    /// Executes an MMA that [`Owed::takes`], but for its arithmetic. On an error D is unchanged.
    pub fn execute<S: SharedRead + ?Sized>(
        &mut self,
        mma: &Mma,
        mut memory: CtaMemory<'_, S>,
    ) -> Result<(), MmaError> {
        mma.check()?;
        let ctas = std::slice::from_mut(&mut memory);
        let (a, b) = (operand::read_a(mma, ctas)?, operand::read_b(mma, ctas)?);
        let taken = Taken { mma: *mma, a, b };
        // The first one onto a D has checked it for the others.
        let same = |of_one: &&mut Vec<Taken>| of_one.iter().any(|t| t.same_d(mma));
        if let Some(of_one) = self.of_d.iter_mut().find(same) {
            of_one.push(taken);
        } else {
            layout::check_d(mma, ctas)?;
            if self.of_d.iter().flatten().any(|t| t.meets(mma)) {
                self.settle(ctas[0].tmem);
            }
            layout::claim_d(mma, ctas)?;
            self.of_d.push(vec![taken]);
        }
        if self.of_d.iter().map(Vec::len).sum::<usize>() >= MOST {
            self.settle(memory.tmem);
        }
        Ok(())
    }

    /// Computes all of it.
    pub fn settle(&mut self, tmem: &mut Tmem) {
        for taken in std::mem::take(&mut self.of_d) {
            settle(&taken, tmem);
        }
    }
}

/// Number of threads that some work is worth.
fn threads(multiplications: usize) -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));
    (multiplications / WORTH_A_THREAD).clamp(1, *CORES)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Elements of a list that threads take one by one.
struct Queue<I> {
    rest: Mutex<I>,
    /// Number of elements that nobody has dealt with yet.
    open: Mutex<usize>,
    none_open: Condvar,
}

impl<T, I: ExactSizeIterator<Item = T>> Queue<I> {
    fn new(list: I) -> Self {
        Self {
            open: Mutex::new(list.len()),
            rest: Mutex::new(list),
            none_open: Condvar::new(),
        }
    }

    /// Takes elements until none is left.
    fn work(&self, f: impl Fn(T)) {
        /// Counts an element as dealt with, also where that panics: nobody waits for it for ever.
        struct Dealt<'a>(&'a Mutex<usize>, &'a Condvar);
        impl Drop for Dealt<'_> {
            fn drop(&mut self) {
                let mut open = lock(self.0);
                *open -= 1;
                if *open == 0 {
                    self.1.notify_all();
                }
            }
        }
        loop {
            let Some(element) = lock(&self.rest).next() else {
                return;
            };
            let _dealt = Dealt(&self.open, &self.none_open);
            f(element);
        }
    }

    /// Until all elements are dealt with, by whomever.
    fn wait(&self) {
        let open = lock(&self.open);
        let done = self.none_open.wait_while(open, |open| *open > 0);
        drop(done.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Does some work on up to so many threads.
fn on_threads(threads: usize, work: impl Fn() + Sync) {
    let work = &work;
    thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that cannot be started is one less.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

fn settle(taken: &[Taken], tmem: &mut Tmem) {
    let Some(Taken { mma, .. }) = taken.first() else {
        return;
    };
    let threads = threads(taken.iter().map(Taken::multiplications).sum());
    let small =
        taken.iter().all(|t| small::takes(&t.mma)) && !(mma.accumulate && negative_zero(mma, tmem));
    let products: Vec<OnceLock<Computed>> = taken.iter().map(|_| OnceLock::new()).collect();
    let decode = Queue::new(products.iter().zip(taken));
    let mut lanes: Vec<_> = tmem.blocks_mut(ROWS as u32).map(Some).collect();
    let rows: Vec<(usize, &mut [u32])> = layout::lanes_of_rows(mma)
        .filter_map(|(row, lane)| {
            let block = lanes.get_mut(lane as usize / ROWS)?;
            Some((row, block.take()?))
        })
        .collect();
    let rows = Queue::new(rows.into_iter());
    // Threads cost something to start: the same ones decode and then, once all is decoded, add.
    on_threads(threads, || {
        decode.work(|(product, taken)| {
            if let Some(p) = taken.product(small) {
                let _ = product.set(p);
            }
        });
        decode.wait();
        let all = taken.iter().zip(&products);
        let products: Vec<(&Taken, &Computed)> =
            all.filter_map(|(t, p)| Some((t, p.get()?))).collect();
        rows.work(|(row, cells)| add(&products, row, cells));
    });
}

/// Whether D may have a negative zero. A negative zero stays one where nothing but negative zeros is added, and
/// integers have none.
fn negative_zero(mma: &Mma, tmem: &mut Tmem) -> bool {
    const NEGATIVE_ZERO: u32 = 1 << 31;
    let columns = mma.d.column() as usize..(mma.d.column() + mma.idesc.n) as usize;
    tmem.blocks_mut(1)
        .any(|lane| lane[columns.clone()].contains(&NEGATIVE_ZERO))
}

/// Adds products in turn onto the rows of D from one on, which lie in these cells.
fn add(products: &[(&Taken, &Computed)], row: usize, cells: &mut [u32]) {
    let mut sums = Sums::default();
    let mut rest = products;
    while let Some((taken, product)) = rest.first() {
        let Mma { d, idesc, .. } = &taken.mma;
        let (column, n) = (d.column() as usize, idesc.n as usize);
        let pitch = COLUMNS as usize;
        let links = || rest.iter().map(|(t, p)| t.link(p, row));
        let done = match (taken.link(product, row), product) {
            (Some(Link::Small(_)), _) => {
                let run = links().map_while(|l| match l? {
                    Link::Small(l) => Some(l),
                    Link::F32(_) => None,
                });
                let run: Vec<_> = run.collect();
                small::chain(&run, n, &mut cells[column..], pitch);
                run.len()
            }
            (Some(Link::F32(_)), _) => {
                let run = links().map_while(|l| match l? {
                    Link::F32(l) => Some(l),
                    Link::Small(_) => None,
                });
                let run: Vec<_> = run.collect();
                inner::chain_f32(&run, n, &mut cells[column..], pitch);
                run.len()
            }
            (None, Computed::Any(product)) => {
                product.rows(row, &mut sums);
                for (r, cells) in cells.chunks_exact_mut(pitch).enumerate() {
                    if layout::writes_row(&taken.mma, row + r) {
                        let cells = &mut cells[column..column + n];
                        product.finish(&taken.mma, &sums, row + r, 0, cells);
                    }
                }
                1
            }
            // Small products have a link for every row.
            (None, Computed::Small(_)) => 1,
        };
        rest = &rest[done..];
    }
}
