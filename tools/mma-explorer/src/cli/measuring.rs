//! Parts that `run` and `sweep` share: the GPU with its libraries, products that are checked and timed, and their
//! table.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use mma_explorer::arch::Arch;
use mma_explorer::cache::Cache;
use mma_explorer::cublaslt::CublasLt;
use mma_explorer::device::{self, Device, DeviceError, Matrices};
use mma_explorer::exact::Exact;
use mma_explorer::machine_code::{self, Emitted};
use mma_explorer::matmul::{Plan, Problem, Tiles};
use mma_explorer::nvrtc::{self, Compiled, Nvrtc, Source, Stage};
use mma_explorer::results::{FORM, Measured, Peak, Product, Results, SumBits, Tried};
use mma_explorer::types::Type;
use mma_explorer::variants::Variant;
use mma_explorer::{data_sheet, exact, source};

use super::{Filter, progress, table};

/// Seconds of a kernel in a round, and rounds.
const ROUND: f64 = 0.02;
const ROUNDS: usize = 5;

/// The GPU, and what compiles for it.
pub(crate) struct Bench<'a> {
    pub(crate) device: Device,
    pub(crate) nvrtc: &'static Nvrtc,
    cache: &'a Cache,
    cublaslt: Option<CublasLt>,
    emitted: BTreeMap<String, Emitted>,
}

/// A variant's matrices of one size. Not all variants of a size fit at once.
pub(crate) struct Workload {
    variant: Variant,
    problem: Problem,
    matrices: Matrices,
}

impl<'a> Bench<'a> {
    /// The GPU of that number, and those of the selected variants that it has.
    pub(crate) fn open(
        ordinal: usize,
        filter: &Filter,
        cache: &'a Cache,
    ) -> Result<(Self, Vec<Variant>)> {
        let selected = filter.select()?;
        let device = Device::open(ordinal)?;
        let nvrtc = nvrtc::get()?;
        let variants: Vec<Variant> = selected
            .into_iter()
            .filter(|variant| variant.missing(device.arch).is_none())
            .collect();
        let emitted = match machine_code::disassembler() {
            Ok(_) => machine_code::survey(cache, nvrtc, device.arch, &variants)?,
            Err(_) => Vec::new(),
        };
        let names = variants.iter().map(Variant::name);
        let cublaslt = match CublasLt::open(device.stream(), nvrtc.place().folder()) {
            Ok(library) => Some(library),
            Err(error) => {
                let hint = error.hint().unwrap_or_default();
                eprintln!("note: no comparison with cuBLASLt: {error}. {hint}");
                None
            }
        };
        let emitted = names.zip(emitted).collect();
        let bench = Self {
            device,
            nvrtc,
            cache,
            cublaslt,
            emitted,
        };
        Ok((bench, variants))
    }

    /// Compiles for this GPU.
    pub(crate) fn compile(&self, source: &Source) -> Result<Compiled> {
        compile(self.cache, self.nvrtc, self.device.arch, source)
    }

    /// Compiles these sources on all processors, and keeps the results in the cache: later the GPU need not wait. A
    /// source that fails does so again when it is used.
    pub(crate) fn compile_ahead(&self, sources: &[Source]) {
        if self.cache.folder().is_none() {
            return;
        }
        let (cache, nvrtc, arch) = (self.cache, self.nvrtc, self.device.arch);
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(sources.len()) {
                scope.spawn(|| {
                    while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let _ = compile(cache, nvrtc, arch, source);
                    }
                });
            }
        });
    }

    /// The record of a variant before anything ran.
    pub(crate) fn described(&self, variant: &Variant) -> Measured {
        let machine = match self.emitted.get(&variant.name()) {
            Some(emitted) => {
                let opcodes: Vec<&str> = emitted.instructions.keys().map(String::as_str).collect();
                format!("{} ({})", opcodes.join(" "), emitted.emission.name())
            }
            None => variant
                .machine(self.device.arch)
                .map_or(String::new(), |machine| {
                    format!("{} ({})", machine.opcode, machine.emission.name())
                }),
        };
        Measured {
            name: variant.name(),
            family: variant.family().name().into(),
            a: variant.a.to_string(),
            b: variant.b.to_string(),
            accumulator: variant.accumulator.to_string(),
            machine,
            data_sheet: data_sheet::rate(&self.device.name, variant),
            ..Measured::default()
        }
    }

    /// Matrices of a size.
    pub(crate) fn workload(&self, variant: &Variant, size: u32) -> Result<Workload> {
        let (m, n, k) = (size, size, size);
        let problem = Problem { m, n, k };
        // The usual tiles, of which only the bytes of a row count here.
        let plan = self.plan(variant, &Tiles::usual(variant), problem)?;
        Ok(Workload {
            variant: *variant,
            problem,
            matrices: self.device.matrices(variant, &plan, problem)?,
        })
    }

    fn plan(&self, variant: &Variant, tiles: &Tiles, problem: Problem) -> Result<Plan> {
        let multiprocessors = self.device.multiprocessors;
        Plan::new(variant, tiles, problem, multiprocessors)
            .with_context(|| format!("{} with tiles {tiles}", variant.name()))
    }

    /// Whether a product with these tiles is exact; in words where it is not.
    pub(crate) fn check(&self, variant: &Variant, tiles: &Tiles) -> Result<Option<String>> {
        // The longest sums that are exact, of rows of whole 16 bytes.
        let k = match variant.accumulator {
            Type::F16 => 512,
            _ if !variant.sums_are_wide() => 512,
            _ => 1024,
        };
        let small = Problem {
            m: tiles.block_m * tiles.cluster + 44,
            n: tiles.block_n + 76,
            k,
        };
        let exact = Exact::new(variant, small, 1);
        let compiled = self.compile(&source::matmul(variant, tiles))?;
        let plan = self.plan(variant, tiles, small)?;
        match self.device.check(variant, &compiled, &plan, small, &exact) {
            Ok(()) => Ok(None),
            Err(DeviceError::Wrong(wrong)) => Ok(Some(format!("{tiles}: {wrong}"))),
            Err(error) => Err(error).with_context(|| format!("{} {tiles}", variant.name())),
        }
    }

    /// How many bits its sums keep.
    pub(crate) fn sum_bits(&self, variant: &Variant) -> Result<Option<SumBits>> {
        let tiles = Tiles::usual(variant);
        let compiled = self.compile(&source::matmul(variant, &tiles))?;
        let (m, n, k) = (16, 16, 2048 / variant.container_bits(variant.a));
        let problem = Problem { m, n, k };
        let plan = self.plan(variant, &tiles, problem)?;
        let bits = exact::sum_bits(variant, problem, |exact| {
            match self.device.check(variant, &compiled, &plan, problem, exact) {
                Ok(()) => Ok(true),
                Err(DeviceError::Wrong(_)) => Ok(false),
                Err(error) => Err(error),
            }
        });
        Ok(bits?)
    }

    /// Operations a second with these tiles: the best of a few runs. Gives up after the first one where that took more
    /// than `limit` seconds.
    pub(crate) fn quick(
        &self,
        workload: &mut Workload,
        tiles: &Tiles,
        limit: f64,
    ) -> Result<Option<Tried>> {
        let compiled = self.compile(&source::matmul(&workload.variant, tiles))?;
        let plan = self.plan(&workload.variant, tiles, workload.problem)?;
        let prepared = self.device.prepare(&compiled, plan, workload.problem)?;
        let matrices = &mut workload.matrices;
        let mut run = |repeats| self.device.seconds(&prepared, matrices, repeats);
        // The first run loads the kernel.
        run(1)?;
        let mut best = run(1)?;
        if best > limit {
            return Ok(None);
        }
        for _ in 0..2 {
            best = best.min(run(2)?);
        }
        Ok(Some(Tried {
            size: workload.problem.m,
            tiles: tiles.to_string(),
            operations: operations(workload.problem) / best,
        }))
    }

    /// A product with these tiles, in alternating rounds with cuBLASLt where that has it.
    pub(crate) fn product(&self, workload: &mut Workload, tiles: &Tiles) -> Result<Product> {
        let (variant, problem) = (&workload.variant, workload.problem);
        let matrices = &mut workload.matrices;
        let compiled = self.compile(&source::matmul(variant, tiles))?;
        let plan = self.plan(variant, tiles, problem)?;
        let prepared = self.device.prepare(&compiled, plan, problem)?;
        let other = self.cublaslt.as_ref();
        let other = other.and_then(|library| library.product(variant, problem, matrices).ok());
        let matrices = std::cell::RefCell::new(matrices);
        let clocks = std::cell::RefCell::new(Vec::new());
        let ours = |repeats| {
            let matrices = &mut matrices.borrow_mut();
            let seconds = self.device.seconds(&prepared, matrices, repeats)?;
            let now = self.device.cycles_a_second(&prepared)?;
            clocks.borrow_mut().push(now);
            Ok(seconds)
        };
        let theirs = |repeats| match &other {
            Some(product) => product.seconds(&mut matrices.borrow_mut(), repeats),
            // Without a product of cuBLASLt the kernel runs against itself.
            None => ours(repeats),
        };
        let rounds = device::rounds(ROUNDS, ROUND, ours, theirs)?;
        let operations = operations(problem);
        Ok(Product {
            size: problem.m,
            tiles: tiles.to_string(),
            operations: operations / rounds.first,
            // The first call was one product only.
            clock: device::median(&clocks.borrow()[1..]),
            cublaslt: other.as_ref().map(|_| operations / rounds.second),
            share: other.as_ref().map(|_| rounds.ratio),
        })
    }

    /// The document of what was measured.
    pub(crate) fn results(&self, variants: Vec<Measured>) -> Results {
        let version = |library: &CublasLt| {
            let version = library.version();
            format!("{}.{}", version / 10_000, version / 100 % 100)
        };
        Results {
            form: FORM,
            device: self.device.name.clone(),
            arch: self.device.arch.to_string(),
            multiprocessors: self.device.multiprocessors,
            nvrtc: self.nvrtc.version(),
            cublaslt: self.cublaslt.as_ref().map(version),
            variants,
        }
    }
}

/// Measures variants one after another: what cannot be measured is noted with its reason, and the rest goes on. Ends
/// before the next one when `seconds` are over.
pub(crate) fn each(
    bench: &Bench<'_>,
    variants: &[Variant],
    seconds: Option<u64>,
    mut one: impl FnMut(usize, &Variant) -> Result<Measured>,
) -> Vec<Measured> {
    let start = Instant::now();
    let mut all = Vec::with_capacity(variants.len());
    for (i, variant) in variants.iter().enumerate() {
        if seconds.is_some_and(|seconds| start.elapsed().as_secs() >= seconds) {
            let left = variants.len() - i;
            eprintln!("note: {left} variants are left out: the time is over");
            break;
        }
        all.push(one(i, variant).unwrap_or_else(|error| Measured {
            wrong: Some(format!("{error:#}")),
            ..bench.described(variant)
        }));
    }
    progress(1, 1, "");
    all
}

fn compile(cache: &Cache, nvrtc: &Nvrtc, arch: Arch, source: &Source) -> Result<Compiled> {
    let (compiled, _) = cache.compile(nvrtc, source, arch, &source::options(), Stage::Cubin)?;
    Ok(compiled)
}

fn operations(problem: Problem) -> f64 {
    2.0 * f64::from(problem.m) * f64::from(problem.n) * f64::from(problem.k)
}

/// The fastest of those tried for a size.
pub(crate) fn fastest(tried: &[Tried], size: u32) -> Option<&Tried> {
    let of_size = tried.iter().filter(|tried| tried.size == size);
    of_size.max_by(|a, b| a.operations.total_cmp(&b.operations))
}

/// The results for people: a line for each variant and size.
pub(crate) fn text(results: &Results) -> String {
    let tera = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{:.1}", rate / 1e12));
    let share = |share: Option<f64>| share.map_or("-".into(), |share| format!("{share:.2}"));
    let mut rows = Vec::new();
    for measured in &results.variants {
        let peak = measured.peak.map(|peak| peak.operations);
        let of_peak = |of: fn(&Peak) -> String| measured.peak.as_ref().map_or("-".into(), of);
        let head = |of: &str| {
            vec![
                measured.name.clone(),
                of.to_string(),
                measured.machine.clone(),
                measured.sum_bits.map_or("-".into(), |of| of.to_string()),
                of_peak(|peak| format!("{:.1}", peak.latency)),
                of_peak(|peak| format!("{:.0}", peak.operations_per_cycle)),
                tera(peak),
                tera(measured.data_sheet),
            ]
        };
        for product in &measured.products {
            let of = |whole: Option<f64>| share(whole.map(|whole| product.operations / whole));
            let mut row = head(&product.size.to_string());
            row.extend([
                tera(Some(product.operations)),
                of(measured.data_sheet),
                of(peak),
                share(measured.share_of_cycles(product, results.multiprocessors)),
                tera(product.cublaslt),
                share(product.share),
                product.tiles.clone(),
                measured.wrong.clone().unwrap_or_else(|| "exact".into()),
            ]);
            rows.push(row);
        }
        if measured.products.is_empty() {
            let mut row = head("-");
            row.extend(["-"; 7].map(String::from));
            row.push(measured.wrong.clone().unwrap_or_default());
            rows.push(row);
        }
    }
    let head = "variant|size|machine code|sum bits|latency|ops/cycle/SM|peak T/s|sheet T/s|matmul T/s|of sheet|of peak|\
        per cycle|cuBLASLt T/s|of it|tiles|result";
    format!(
        "{} (sm_{}, {} multiprocessors), NVRTC {}, cuBLASLt {}; sum bits: the largest n with 2^n + 1 right; latency in cycles, T/s: 10^12 operations a second, sheet: \
         the data sheet's dense rate\n\n{}",
        results.device,
        results.arch,
        results.multiprocessors,
        results.nvrtc,
        results.cublaslt.as_deref().unwrap_or("not there"),
        table(head.split('|'), &rows),
    )
}
