//! MMAs whose arithmetic is put off until somebody looks at D.
//!
//! Operands are read, and everything is checked, when an MMA executes. What is left is arithmetic that cannot fail. Put
//! off, the products onto one D are computed together: D stays in registers from one to the next, and several threads
//! share the rows. Each product is still rounded onto D by itself, in the order of the MMAs, so that the bits are those
//! of [`execute`](super::execute).

use std::num::NonZero;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

use super::super::idesc::Accumulator;
use super::super::memory::SharedRead;
use super::super::tmem::{COLUMNS, Tmem};
use super::compute::{self, Product, Summation, Sums};
use super::inner::{self, ROWS};
use super::operand::{self, Row};
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

    fn product(&self) -> Option<Product> {
        let a = operand::decode_a(&self.mma, &self.a);
        let b = operand::decode_b(&self.mma, &self.b);
        // Only scales can be wrong, and there are none.
        compute::product_of(&self.mma, a, b, None).ok()
    }

    /// Its link of a chain for the rows from one on, if it can be one.
    fn link<'a>(&self, product: &'a Product, first: usize) -> Option<inner::Link<'a>> {
        let m = &self.mma;
        let plain =
            m.idesc.d == Accumulator::F32 && m.scale_input_d == 0 && m.disable_lanes == [0; 8];
        product.link(first, m.accumulate).filter(|_| plain)
    }
}

/// What has not been computed yet of the tensor memory of one CTA. Whoever looks at that memory settles it first.
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

/// How many threads some work is worth.
fn threads(multiplications: usize) -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));
    (multiplications / WORTH_A_THREAD).clamp(1, *CORES)
}

/// Calls a function for each element of a list, on up to so many threads.
fn divide<T: Send>(list: Vec<T>, threads: usize, f: impl Fn(T) + Sync) {
    let queue = Mutex::new(list.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(element) = next() {
            f(element);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where no more threads can be had, there is one less.
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
    let mut products: Vec<Option<Product>> = taken.iter().map(|_| None).collect();
    let decode = products.iter_mut().zip(taken).collect();
    divide(
        decode,
        threads,
        |(product, taken): (&mut Option<Product>, &Taken)| {
            *product = taken.product();
        },
    );
    let products: Vec<(&Taken, Product)> = taken
        .iter()
        .zip(products)
        .filter_map(|(t, p)| Some((t, p?)))
        .collect();
    let mut lanes: Vec<_> = tmem.blocks_mut(ROWS as u32).map(Some).collect();
    let rows: Vec<(usize, &mut [u32])> = layout::lanes_of_rows(mma)
        .filter_map(|(row, lane)| {
            let block = lanes.get_mut(lane as usize / ROWS)?;
            Some((row, block.take()?))
        })
        .collect();
    divide(rows, threads, |(row, cells)| add(&products, row, cells));
}

/// Adds products in turn onto the rows of D from one on, which lie in these cells.
fn add(products: &[(&Taken, Product)], row: usize, cells: &mut [u32]) {
    let link = |(t, p): &'_ (&Taken, Product)| t.link(p, row).is_some();
    let mut sums = Sums::default();
    for run in products.chunk_by(|a, b| link(a) && link(b)) {
        let Mma { d, idesc, .. } = &run[0].0.mma;
        let (column, n) = (d.column() as usize, idesc.n as usize);
        let links: Vec<_> = run.iter().filter_map(|(t, p)| t.link(p, row)).collect();
        if links.len() == run.len() {
            inner::chain_f32(&links, n, &mut cells[column..], COLUMNS as usize);
            continue;
        }
        for (t, product) in run {
            product.rows(row, &mut sums);
            for (r, cells) in cells.chunks_exact_mut(COLUMNS as usize).enumerate() {
                if layout::writes_row(&t.mma, row + r) {
                    product.finish(&t.mma, &sums, row + r, 0, &mut cells[column..column + n]);
                }
            }
        }
    }
}
