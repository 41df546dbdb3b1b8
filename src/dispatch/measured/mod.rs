//! Times on devices: the measurements, the operands that they are for, and the tables that this crate comes with.
//!
//! A table is JSON Lines, the same for built-in tables (beside this file) and for files that `nvfp4-gemv tune` writes:
//! the machine, then a line a problem. To refill a built-in table, run on that GPU, with a build of what is measured,
//! `nvfp4-gemv tune --suite --chained --seconds 1.5 --replace --out h200.jsonl`, and put the file here. The table of
//! another GPU comes the same way, with a line in `builtin.rs`, or with `cargo xtask first-light --apply`. The H200's
//! has since had times, ceilings and some configs replaced by hand, with those of `nvfp4-gemv bench` and later runs of
//! `tune`: its `from` says which.

mod builtin;
mod wire;

use std::collections::HashMap;
use std::iter;
use std::sync::OnceLock;

use crate::gpu::Gpu;
use crate::kernel::{Config, Kernel};
use crate::operands::{Alignment, Operands};
use crate::shape::Shape;

/// A model of GPU.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuModel {
    /// The product name, as the driver says it.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors: parts of a GPU that are sold or lent have fewer.
    pub multiprocessors: u32,
}

impl GpuModel {
    /// The model of a GPU.
    #[cfg(all(feature = "device", feature = "tune"))]
    pub(crate) fn of(gpu: &Gpu) -> Self {
        Self {
            name: gpu.name.clone(),
            compute_capability: gpu.compute_capability,
            multiprocessors: gpu.multiprocessors,
        }
    }

    /// Whether a GPU is of this model.
    pub fn is_of(&self, gpu: &Gpu) -> bool {
        self.name == gpu.name
            && self.compute_capability == gpu.compute_capability
            && self.multiprocessors == gpu.multiprocessors
    }
}

/// Circumstances that a time depends on besides the problem.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    /// The device.
    pub gpu: GpuModel,
    /// The newest CUDA that its driver supports, for example `13.0`.
    pub driver: String,
    /// The version of this crate.
    pub crate_version: String,
    /// A hash of the kernels' sources.
    pub kernels: String,
}

/// The best time of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// The config, which says which kernel.
    pub config: Config,
    /// Seconds a call, with cold caches.
    pub seconds: f64,
    /// The best time of launches that follow each other with programmatic dependent launch, where that was measured.
    /// Where one kernel of an entry has such a time and another kernel has none, no chained call takes the other kernel
    /// before it. The other kernel was slower there, or its time was left out, because it is faster in a chain of this
    /// problem alone and slower between other layers (`tune::Tuner::tune_chain`).
    pub chained: Option<Chained>,
}

impl Timed {
    /// The kernel.
    pub fn kernel(&self) -> Kernel {
        self.config.kernel()
    }
}

/// The best of a kernel in launches that follow each other with programmatic dependent launch, as layers of a model
/// can.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chained {
    /// The config, of the same kernel.
    pub config: Config,
    /// Seconds a launch, with cold caches.
    pub seconds: f64,
}

/// Measurements of one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its sizes.
    pub shape: Shape,
    /// Its operands. Only one thing counts of their alignment: whether [everything is a multiple of
    /// 16](Alignment::is_16).
    pub operands: Operands,
    /// Seconds of a kernel that only reads as many bytes as the weights have.
    pub ceiling_seconds: f64,
    /// The best of each kernel that was tried, fastest first; at least one. Where a kernel has no time here, the best
    /// of another kernel of its path was faster, if there is one.
    pub kernels: Vec<Timed>,
}

/// Measurements on one machine, a problem at most once.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements {
    /// The machine that the measurements were made on.
    pub machine: Machine,
    /// How and when the measurements were made, for people.
    pub from: String,
    entries: Vec<Entry>,
    /// Indices of the entries, by their problems.
    index: HashMap<Problem, usize>,
    /// Sizes of the entries, for [`nearest`], which calls that are not prepared ask.
    sizes: Vec<Size>,
}

/// The key of an entry.
#[derive(Clone, Copy, Debug, Eq, Hash)]
#[allow(
    clippy::derived_hash_with_manual_eq,
    reason = "both look at all fields; a test counts comparisons"
)]
struct Problem {
    shape: Shape,
    operands: Operands,
}

impl Problem {
    fn new(shape: &Shape, operands: &Operands) -> Self {
        Self {
            shape: *shape,
            operands: comparable(operands),
        }
    }
}

/// Operands as entries are compared by: of their alignment counts whether everything is a multiple of 16 bytes. A
/// workspace says which kernels can run: one that is too small for their fastest configs refuses them. A selection of
/// matrices takes the time of as many batches.
pub(crate) fn comparable(operands: &Operands) -> Operands {
    let alignment = match operands.alignment.is_16() {
        true => Alignment::BEST,
        false => Alignment::LEAST,
    };
    Operands {
        alignment,
        workspace: 0,
        select: false,
        matrices: 0,
        distinct: false,
        late: false,
        on_read: false,
        ..*operands
    }
}

impl PartialEq for Problem {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::COMPARISONS.set(tests::COMPARISONS.get() + 1);
        self.shape == other.shape && self.operands == other.operands
    }
}

/// Powers of two of what makes problems alike.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size {
    vectors: f64,
    bytes: f64,
    rows: f64,
}

impl Size {
    fn of(shape: &Shape) -> Self {
        let log2 = |size: usize| (size.max(1) as f64).log2();
        Self {
            vectors: log2(shape.n()),
            bytes: log2(shape.weight_bytes()),
            rows: log2(shape.m() * shape.l()),
        }
    }

    fn distance(&self, other: &Self) -> f64 {
        2.0 * (self.vectors - other.vectors).abs()
            + (self.bytes - other.bytes).abs()
            + 0.5 * (self.rows - other.rows).abs()
    }
}

/// Distance, in octaves, between problems whose scales lie in different layouts.
const OTHER_LAYOUT: f64 = 4.0;
/// Distance, in octaves, of tables of other models of GPU than the first: less than that of twice or half as many
/// vectors, which is 2.
const OTHER_MODEL: f64 = 1.5;

impl Entry {
    /// The best time of a kernel.
    pub fn of(&self, kernel: Kernel) -> Option<&Timed> {
        self.kernels.iter().find(|timed| timed.kernel() == kernel)
    }

    /// The share of the read-only ceiling that a time reaches.
    pub fn share(&self, timed: &Timed) -> f64 {
        self.ceiling_seconds / timed.seconds
    }
}

#[cfg(feature = "tune")]
impl Machine {
    /// The machine that the measurements of a table were made on. No more is read of the table.
    ///
    /// # Errors
    /// The fault of the table, as part of a sentence.
    pub(crate) fn from_json_lines(text: &str) -> Result<Self, String> {
        wire::parse_machine(text)
    }
}

impl Measurements {
    /// A table without entries.
    pub fn new(machine: Machine, from: impl Into<String>) -> Self {
        Self {
            machine,
            from: from.into(),
            entries: Vec::new(),
            index: HashMap::new(),
            sizes: Vec::new(),
        }
    }

    /// All entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The measurements of a problem.
    pub fn find(&self, shape: &Shape, operands: &Operands) -> Option<&Entry> {
        let at = self.index.get(&Problem::new(shape, operands))?;
        Some(&self.entries[*at])
    }

    /// Adds a measurement, in the place of an older one of the same problem.
    pub fn insert(&mut self, mut entry: Entry) {
        let problem = Problem::new(&entry.shape, &entry.operands);
        entry.operands = problem.operands;
        let end = self.entries.len();
        let at = *self.index.entry(problem).or_insert(end);
        if at < end {
            self.entries[at] = entry;
        } else {
            self.sizes.push(Size::of(&entry.shape));
            self.entries.push(entry);
        }
    }

    /// Reads a table.
    ///
    /// # Errors
    /// The fault of the table, as part of a sentence.
    pub fn from_json_lines(text: &str) -> Result<Self, String> {
        wire::parse(text)
    }

    /// Whether [`from_json_lines`](Self::from_json_lines) would read what [`to_json_lines`](Self::to_json_lines)
    /// writes: entries that were [inserted](Self::insert) may say anything.
    ///
    /// # Errors
    /// The fault of the entries, as part of a sentence.
    #[cfg(feature = "tune")]
    pub(crate) fn check(&self) -> Result<(), String> {
        wire::check(self)
    }

    /// Writes a table.
    pub fn to_json_lines(&self) -> String {
        wire::write(self)
    }
}

impl AsRef<Self> for Measurements {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// A time that was measured of a problem near another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Near<'t> {
    /// The table that it stands in.
    pub(super) table: &'t Measurements,
    /// The problem.
    pub(super) entry: &'t Entry,
    /// The kernel's time.
    pub(super) timed: &'t Timed,
}

/// The measurements of some tables that are nearest to a problem, among those in which `pick` finds a time: one for
/// each of N things to pick. Only problems with the same type of vectors are compared. The nearest is the one with the
/// fewest octaves between the numbers of vectors (which count double), of bytes and of rows (which count half). K
/// counts only by its bytes. The other scale layout is as far as [`OTHER_LAYOUT`] octaves, and tables behind the first
/// are as far as [`OTHER_MODEL`]. The first table is that of the model of GPU that is asked for, or else the one that
/// has most. Of problems at the same distance, the first counts.
pub(super) fn nearest<'t, const N: usize>(
    tables: impl Iterator<Item = &'t Measurements>,
    shape: &Shape,
    operands: &Operands,
    pick: impl Fn(usize, &'t Entry) -> Option<&'t Timed>,
) -> [Option<Near<'t>>; N] {
    let size = Size::of(shape);
    let mut nearest = [(f64::INFINITY, None); N];
    for (table, elsewhere) in tables.zip(iter::once(0.0).chain(iter::repeat(OTHER_MODEL))) {
        for (entry, of) in table.entries.iter().zip(&table.sizes) {
            let Some(distance) = distance(&size, operands, of, entry) else {
                continue;
            };
            let distance = distance + elsewhere;
            for (i, (least, found)) in nearest.iter_mut().enumerate() {
                if distance < *least
                    && let Some(timed) = pick(i, entry)
                {
                    let near = Near {
                        table,
                        entry,
                        timed,
                    };
                    (*least, *found) = (distance, Some(near));
                }
            }
        }
    }
    nearest.map(|(_, found)| found)
}

/// The distance of an entry, of this size, from a problem, in whichever table it is: [`nearest`] says what counts.
/// `None` for another type of vectors.
#[inline]
fn distance(size: &Size, operands: &Operands, of: &Size, entry: &Entry) -> Option<f64> {
    if entry.operands.activation != operands.activation {
        return None;
    }
    let same = entry.operands.weight_layout == operands.weight_layout;
    let layout = if same { 0.0 } else { OTHER_LAYOUT };
    Some(size.distance(of) + layout)
}

/// The entries of some tables for the same type of vectors, the nearest to a problem first: [`nearest`] says what counts.
#[cfg(all(feature = "device", feature = "tune"))]
pub(super) fn by_distance<'t>(
    tables: impl Iterator<Item = &'t Measurements>,
    shape: &Shape,
    operands: &Operands,
) -> impl Iterator<Item = &'t Entry> {
    let size = Size::of(shape);
    let mut all = Vec::new();
    for (table, elsewhere) in tables.zip(iter::once(0.0).chain(iter::repeat(OTHER_MODEL))) {
        let entries = table.entries.iter().zip(&table.sizes);
        let far = |(entry, of)| Some((distance(&size, operands, of, entry)? + elsewhere, entry));
        all.extend(entries.filter_map(far));
    }
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b)); // stable
    all.into_iter().map(|(_, entry)| entry)
}

/// The tables that this crate comes with, one a model of GPU.
pub fn builtin() -> &'static [Measurements] {
    static TABLES: OnceLock<Vec<Measurements>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let read = |text| wire::parse(text).expect("a test reads every built-in table");
        builtin::FILES.iter().copied().map(read).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::shape::Dims;
    use crate::types::Activation;
    use crate::types::ScaleLayout;

    thread_local! {
        /// The number of times that two problems were compared on this thread.
        pub(super) static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// Tables of files that others made may have as many entries as fit. Counted, not timed.
    #[test]
    fn reading_and_looking_up_take_as_many_steps_as_there_are_entries() {
        let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
        let shape = |m| Shape::matrix(m, 256).unwrap();
        let mut table = Measurements::new(builtin()[0].machine.clone(), "a test");
        let any = builtin()[0].entries()[0].kernels[0];
        const ENTRIES: usize = 3000;
        for m in 1..=ENTRIES {
            table.insert(Entry {
                shape: shape(m),
                operands,
                ceiling_seconds: 1e-6,
                kernels: vec![Timed {
                    seconds: 2e-6,
                    ..any
                }],
            });
        }
        COMPARISONS.set(0);
        let read = Measurements::from_json_lines(&table.to_json_lines()).unwrap();
        // A search through what was read so far would take 4.5 million. A hash table compares what its hash does
        // not tell apart, by chance more than once in some hundred times.
        let comparisons = COMPARISONS.get();
        assert!(comparisons < 2 * ENTRIES, "{comparisons}");
        assert_eq!(read, table);

        COMPARISONS.set(0);
        for m in 1..=ENTRIES {
            assert_eq!(read.find(&shape(m), &operands).unwrap().shape, shape(m));
        }
        let comparisons = COMPARISONS.get();
        assert!(comparisons < 2 * ENTRIES, "{comparisons}");
        assert!(read.find(&shape(ENTRIES + 1), &operands).is_none());
    }

    #[test]
    fn a_newer_measurement_takes_the_place_of_the_older() {
        let mut table = builtin()[0].clone();
        let first = table.entries()[0].clone();
        let mut newer = first.clone();
        newer.ceiling_seconds *= 2.0;
        table.insert(newer.clone());
        assert_eq!(table.entries().len(), builtin()[0].entries().len());
        assert_eq!(table.entries()[0], newer);
        assert_eq!(table.find(&first.shape, &first.operands), Some(&newer));
    }

    /// Whether a line says what is written of it. A config's fields that it leaves out have `DEFAULT`'s values.
    fn says(line: &serde_json::Value, written: &serde_json::Value) -> bool {
        use serde_json::Value::{Array, Object};
        match (line, written) {
            (Object(a), Object(b)) => a
                .iter()
                .all(|(key, a)| b.get(key).is_some_and(|b| says(a, b))),
            (Array(a), Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| says(a, b)),
            _ => line == written,
        }
    }

    /// A table has one form, and its numbers lose nothing. A field that a config has got since needs not be there.
    #[test]
    fn builtin_tables_are_what_is_written_of_them() {
        for (text, table) in builtin::FILES.iter().zip(builtin()) {
            let written = table.to_json_lines();
            assert_eq!(text.lines().count(), written.lines().count());
            for (line, written) in text.lines().zip(written.lines()) {
                let of = |line| serde_json::from_str(line).expect("JSON");
                assert!(line == written || says(&of(line), &of(written)), "{line}");
            }
            assert_eq!(Measurements::from_json_lines(&written).as_ref(), Ok(table));
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dispatch/measured");
        let files = std::fs::read_dir(folder).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let tables = names.filter(|name| name.ends_with(".jsonl"));
        assert_eq!(tables.count(), builtin().len());
        assert_eq!(builtin()[0].machine.gpu.name, "NVIDIA H200");
    }

    #[test]
    fn builtin_tables_are_sound() {
        for table in builtin() {
            assert!(!table.from.is_empty());
            for entry in table.entries() {
                assert!(!entry.shape.is_empty(), "{entry:?}");
                // A time below the ceiling's is an error of measurement, or a warm cache.
                for timed in &entry.kernels {
                    let share = entry.share(timed);
                    assert!((0.01..1.1).contains(&share), "{}: {share}", entry.shape);
                    // Chained launches overlap with each other, the ceiling's launches do not.
                    if let Some(chained) = timed.chained {
                        let share = entry.ceiling_seconds / chained.seconds;
                        assert!((0.01..1.2).contains(&share), "{}: {share}", entry.shape);
                    }
                }
            }
        }
    }

    #[test]
    fn nearest_prefers_the_same_vectors_and_layout() {
        let h200 = &builtin()[0];
        let of_h200 = || iter::once(h200);
        let tiled = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
        let near = |m, k, l, operands: &Operands| {
            let shape = Shape::new(Dims { m, n: 1, k, l }).unwrap();
            let [near] = nearest(of_h200(), &shape, operands, |_, one| one.kernels.first());
            near.unwrap().entry.shape
        };
        // A measured problem is its own neighbour, in whichever layout.
        for entry in h200.entries() {
            let (shape, operands) = (&entry.shape, &entry.operands);
            let [found] = nearest(of_h200(), shape, operands, |_, one| one.kernels.first());
            assert_eq!(found.unwrap().entry, entry);
        }
        let small = near(4096, 4080, 1, &tiled);
        assert_eq!((small.m(), small.k()), (4096, 4096));
        let shape = Shape::matrix(4096, 4096).unwrap();
        let never = nearest(of_h200(), &shape, &tiled, |_, one| one.of(Kernel::Tcgen05));
        assert_eq!(never, [None]);
    }

    /// A problem that is far from all problems of the first table may be near to one of another table.
    #[test]
    fn nearest_prefers_the_first_table() {
        let whole = &builtin()[0];
        let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
        let shape = |m, n| {
            let (k, l) = (4096, 1);
            Shape::new(Dims { m, n, k, l }).unwrap()
        };
        let mut part = Measurements::new(whole.machine.clone(), "a part");
        part.insert(whole.find(&shape(4096, 1), &operands).unwrap().clone());
        let near = |m, n, activation| {
            let (shape, operands) = (shape(m, n), Operands::new(activation, ScaleLayout::Linear));
            let tables = [&part, whole].into_iter();
            let [near] = nearest(tables, &shape, &operands, |_, one| one.kernels.first());
            let near = near.unwrap();
            (std::ptr::eq(near.table, &part), near.entry.shape)
        };
        assert_eq!(near(4096, 1, Activation::Nvfp4), (true, shape(4096, 1)));
        // Half as many rows again are .6 octaves of bytes and of rows.
        assert_eq!(near(6144, 1, Activation::Nvfp4), (true, shape(4096, 1)));
        assert_eq!(near(14336, 1, Activation::Nvfp4), (false, shape(14336, 1)));
        assert_eq!(near(4096, 8, Activation::Nvfp4), (false, shape(4096, 8)));
        assert_eq!(near(4096, 1, Activation::F16), (false, shape(4096, 1)));
    }
}
