//! Kernels as NVRTC compiles them at run time: all of them, for each kind of GPU, and the same as nvcc's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvfp4_gemv::jit::{self, Cache, Compiled, Event};
use nvfp4_gemv::kernel::plan::Launch;
use nvfp4_gemv::kernel::{Config, Job, Kernel};
use nvfp4_gemv::{Activation, Dims, Error, ScaleLayout, Shape};
use ptx_sim::{Options, Program, Uninitialised};

use crate::entries::planned;
use crate::support::operands::{Case, Data, Operands};
use crate::support::ptx::{self, Entry};
use crate::support::sim::{Loaded, gpu, launches};

crate::trials! {
    nvrtc:
        one_kernel_of_each_other_gpu,
        what_is_kept_is_not_compiled_again,
        what_is_damaged_is_compiled_again,
        many_may_keep_the_same_kernel,
        a_folder_that_cannot_be_written_to,
        what_cannot_be_compiled_says_why;
    compilers:
        a_kernel_of_each_unit_for_90a = || of_each_unit("90a"),
        a_kernel_of_each_unit_for_100a = || of_each_unit("100a"),
        results_of_nvcc_for_90a = || compare_results("90a");
    long_nvrtc:
        kernels_of_80 = || compile_all("80"),
        kernels_of_89 = || compile_all("89"),
        kernels_of_90a = || compile_all("90a"),
        kernels_of_100a = || compile_all("100a"),
        kernels_of_120a = || compile_all("120a");
    long_compilers:
        arithmetic_of_nvcc_for_80 = || compare_all_arithmetic("80"),
        arithmetic_of_nvcc_for_90a = || compare_all_arithmetic("90a"),
        arithmetic_of_nvcc_for_100a = || compare_all_arithmetic("100a"),
        results_of_nvcc_for_80 = || compare_results("80"),
        results_of_nvcc_for_100a = || compare_results("100a");
}

/// A launch of each kernel that a plan for an architecture takes.
fn kernels(arch: &'static str) -> impl Iterator<Item = Launch> {
    let planned = planned(arch);
    let by_name = planned.iter().map(|launch| (launch.entry, launch.clone()));
    by_name.collect::<BTreeMap<_, _>>().into_values()
}

fn compiled(launch: &Launch, arch: &str, cache: &Cache) -> Compiled {
    jit::compile(launch, arch, cache).unwrap_or_else(|error| panic!("{error}"))
}

/// The cache of kernels that trials compile to look at their code. Later runs use it again.
fn kept() -> Cache {
    Cache::at(nvfp4_gemv_simulate::target().join("jit"))
}

/// Any kernel: one that is compiled quickly.
fn some_kernel() -> Launch {
    let mut all = kernels("90a");
    all.find(|launch| launch.entry == "read_bulk")
        .expect("it is planned")
}

/// Of each GPU whose units no other trial but long ones compiles: one kernel, of `mma-fp4` where that exists.
fn one_kernel_of_each_other_gpu() {
    for (arch, name) in [
        ("80", "gemv_direct_f16_n1"),
        ("89", "gemv_stream_f16_n1"),
        ("120a", "gemv_mma_fp4_n8"),
    ] {
        let launch = kernels(arch).find(|launch| launch.entry.starts_with(name));
        let launch = launch.unwrap_or_else(|| panic!("{arch} has no {name}"));
        let Compiled { cubin, .. } = compiled(&launch, arch, &kept());
        assert!(cubin.starts_with(b"\x7fELF"), "{arch}");
    }
}

/// A unit's kernels share what they include: the first of each unit shows what NVRTC lacks, or compiles otherwise.
fn of_each_unit(arch: &'static str) {
    let mut first = BTreeMap::new();
    for launch in kernels(arch) {
        first.entry(launch.unit).or_insert(launch);
    }
    let first: Vec<Launch> = first.into_values().collect();
    compile(&first, arch, 8);
    compare_arithmetic(&first, arch, 5);
}

fn compile_all(arch: &'static str) {
    compile(&kernels(arch).collect::<Vec<_>>(), arch, 50);
}

fn compare_all_arithmetic(arch: &'static str) {
    compare_arithmetic(&kernels(arch).collect::<Vec<_>>(), arch, 50);
}

/// The sources are embedded: no folder of headers is given. Each compilation has the kernel that was asked for, alone,
/// as machine code of that architecture. There are more than `least`.
fn compile(launches: &[Launch], arch: &'static str, least: usize) {
    for launch in launches {
        let Compiled { ptx, cubin } = compiled(launch, arch, &kept());
        assert!(cubin.starts_with(b"\x7fELF"), "{}", launch.entry);
        assert!(
            ptx.contains(&format!(".target sm_{arch}\n")),
            "{}",
            launch.entry
        );
        let entries: Vec<&str> = ptx::entries(&ptx).collect();
        assert_eq!(entries, [launch.entry]);
    }
    let count = launches.len();
    assert!(count > least, "only {count} kernels for {arch}");
}

/// The arithmetic of a kernel: each instruction on floating-point numbers, and each product of integers. Plain
/// additions are left out: sums over parts are loops, which each compiler unrolls as it likes. Each instruction has its
/// count, except the instructions that scale and convert a result: a compiler may copy such a block into both paths
/// that lead to it. Products that one compiler alone contracts with a sum still show: the number of `fma` differs. In
/// `tcgen05` the only `fma` scales a result, and in `combine` it stands in a loop over slots, whose number no compiler
/// knows.
fn arithmetic(ptx: &str, kernel: &str) -> BTreeMap<String, usize> {
    const PRODUCTS: [&str; 4] = ["mma", "wgmma", "dp4a", "tcgen05"];
    const COPIED: [&str; 2] = ["mul", "cvt"];
    const OTHERS: [&str; 8] = ["sub", "fma", "neg", "abs", "min", "max", "rcp", "div"];
    const NUMBERS: [&str; 6] = ["f16", "f32", "f64", "bf16", "e4m3", "e2m1"];
    let (_, body) = ptx
        .split_once(&format!(".entry {kernel}("))
        .unwrap_or_else(|| panic!("no {kernel}"));
    let body = body.split(".entry ").next().unwrap_or_default();
    let mut counted = BTreeMap::new();
    for statement in body.split([';', '{', '}', '\n']) {
        let mut words = statement.split_whitespace();
        let Some(name) = words.find(|word| !word.starts_with('@')) else {
            continue;
        };
        let mut parts = name.split('.');
        let kind = parts.next().unwrap_or_default();
        let is_float = parts.any(|part| NUMBERS.iter().any(|of| part.starts_with(of)));
        let copied = COPIED.contains(&kind)
            || kind == "fma" && (body.contains("tcgen05.mma") || kernel == "combine");
        if PRODUCTS.contains(&kind) || is_float && OTHERS.contains(&kind) && !copied {
            *counted.entry(name.to_string()).or_default() += 1;
        } else if is_float && copied {
            counted.insert(name.to_string(), 1);
        }
    }
    counted
}

/// Both compilers give a kernel the same arithmetic: they differ in how they count addresses. More kernels than `least`
/// compute.
fn compare_arithmetic(launches: &[Launch], arch: &'static str, least: usize) {
    let (mut differ, mut compute) = (BTreeSet::new(), 0);
    for launch in launches {
        let nvcc = arithmetic(&ptx::unit(launch.unit, arch), launch.entry);
        let nvrtc = compiled(launch, arch, &kept()).ptx;
        let nvrtc = arithmetic(&nvrtc, launch.entry);
        if nvcc != nvrtc {
            println!("{}\n  nvcc  {nvcc:?}\n  NVRTC {nvrtc:?}", launch.entry);
            differ.insert(launch.entry);
        }
        // Some kernels only copy.
        compute += usize::from(!nvcc.is_empty());
    }
    assert!(differ.is_empty(), "{differ:?} differ for {arch}");
    assert!(compute > least, "only {compute} kernels compute for {arch}");
}

/// Bytes of the result of a plan. `program` has the plan's kernels.
fn result(
    operands: &Arc<Operands>,
    config: Config,
    arch: &'static str,
    program: impl Fn(&Launch) -> Arc<Entry>,
) -> Vec<u8> {
    let mut loaded = Loaded::new(operands, arch);
    let plan = loaded.plan(config, &gpu(arch), false);
    // Rows past M leave gaps in the ring of the kernel of that name.
    let options = Options {
        uninitialised: Uninitialised::Stale(1),
        ..Options::default()
    };
    for planned in plan.launches() {
        let entry = program(planned);
        let run: &Program = &entry.program;
        for launch in launches(planned).expect("a valid launch") {
            let report = loaded.memory.launch(run, &launch, &options);
            report.unwrap_or_else(|error| panic!("{config:?}, {}: {error}", planned.entry));
        }
    }
    assert!(loaded.memory.fully_written(), "{config:?}");
    loaded.memory.output().to_vec()
}

/// The simulator gives the same bits for both compilers' kernels, on numbers of which sums round.
fn compare_results(arch: &'static str) {
    let gpu = gpu(arch);
    let mut count = 0;
    for activation in Activation::ALL {
        for (n, k) in [(1, 512), (3, 1024), (8, 528), (9, 512)] {
            let shape = Shape::new(Dims { m: 33, n, k, l: 1 }).expect("a shape");
            let layout = ScaleLayout::Tiled128x4;
            let case = Case {
                activation,
                ..Case::new(shape, Data::FullRange, layout, n as u64)
            };
            let operands = Arc::new(Operands::new(&case));
            let asked = Loaded::new(&operands, arch).memory.call.operands();
            for kernel in Kernel::ALL {
                let Ok(config) = kernel.default_config(&Job::new(&shape, &asked, &gpu)) else {
                    continue;
                };
                let nvcc = result(&operands, config, arch, |launch| {
                    ptx::entry(launch.entry, arch)
                });
                let nvrtc = result(&operands, config, arch, |launch| {
                    let ptx = compiled(launch, arch, &kept()).ptx;
                    Arc::new(Entry::new(&ptx, launch.entry))
                });
                assert!(nvcc == nvrtc, "{config:?} for {arch}: {case:?}");
                count += 1;
            }
        }
    }
    assert!(count > 30, "only {count} configs for {arch}");
}

fn what_is_kept_is_not_compiled_again() {
    static COMPILED: AtomicUsize = AtomicUsize::new(0);
    const KERNEL: &str = "relayout_to_linear";
    let counts = jit::observe(|event| {
        if matches!(event, Event::Compiled { kernel: KERNEL, arch, .. } if arch == "121a") {
            COMPILED.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(counts, "another trial observes, too");
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("below/it"));
    let launch = kernels("90a")
        .find(|launch| launch.entry == KERNEL)
        .unwrap();
    let first = compiled(&launch, "121a", &cache);
    assert_eq!(COMPILED.load(Ordering::Relaxed), 1);
    assert_eq!(compiled(&launch, "121a", &cache), first);
    assert_eq!(COMPILED.load(Ordering::Relaxed), 1);
    // However it was written, events have the name alone.
    assert_eq!(compiled(&launch, "sm_121a", &Cache::none()), first);
    assert_eq!(COMPILED.load(Ordering::Relaxed), 2);
    // Another architecture is another file.
    assert_ne!(compiled(&launch, "90a", &cache), first);
    let files = fs::read_dir(cache.folder().unwrap()).unwrap().count();
    assert_eq!(files, 2);
}

fn what_is_damaged_is_compiled_again() {
    let (folder, launch) = (tempfile::tempdir().unwrap(), some_kernel());
    let cache = Cache::at(folder.path());
    let right = compiled(&launch, "90a", &cache);
    let file = fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    let middle = whole.len() / 2;
    flipped[middle] ^= 0x10;
    for damaged in [&whole[..0], &whole[..middle], &flipped[..], b"{}\n"] {
        fs::write(&file, damaged).unwrap();
        assert_eq!(compiled(&launch, "90a", &cache), right);
        assert_eq!(fs::read(&file).unwrap(), whole, "it is whole again");
    }
}

/// Writers at the same time leave one whole file, and nothing else.
fn many_may_keep_the_same_kernel() {
    let (folder, launch) = (tempfile::tempdir().unwrap(), some_kernel());
    let results = std::thread::scope(|scope| {
        let one = || compiled(&launch, "100a", &Cache::at(folder.path()));
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect::<Vec<_>>()
    });
    assert!(results.iter().all(|one| *one == results[0]));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(
        compiled(&launch, "100a", &Cache::at(folder.path())),
        results[0]
    );
}

/// A kernel compiles even if the cache's folder cannot be written to.
fn a_folder_that_cannot_be_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    fs::write(&file, "no folder").unwrap();
    let below = Cache::at(file.join("kernels"));
    assert_eq!(
        compiled(&some_kernel(), "90a", &below),
        compiled(&some_kernel(), "90a", &Cache::none())
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "no folder");
}

fn what_cannot_be_compiled_says_why() {
    let says = |launch: &Launch, arch: &str| {
        let error = jit::compile(launch, arch, &Cache::none()).unwrap_err();
        assert!(
            matches!(error, Error::Jit { kernel, .. } if kernel == launch.entry),
            "{error:?}"
        );
        error.to_string()
    };
    // A kernel of another unit, which compiles without this kernel.
    let elsewhere = Launch {
        unit: "gemv_stream",
        ..some_kernel()
    };
    let error = jit::compile(&elsewhere, "90a", &Cache::none()).unwrap_err();
    assert!(
        matches!(error, Error::NoEntry { unit: "gemv_stream", kernel } if kernel == elsewhere.entry),
        "{error:?}"
    );
    // Architectures of tomorrow, and of long ago.
    let text = says(&some_kernel(), "990a");
    assert!(
        text.contains("does not compile for sm_990a") && text.contains("A newer CUDA's NVRTC"),
        "{text}"
    );
    let text = says(&some_kernel(), "75");
    assert!(text.contains("\"75\" is not an architecture"), "{text}");
    // Instructions that the architecture has not: the compiler's own words.
    let wgmma = kernels("90a")
        .find(|launch| launch.unit == "gemv_wgmma")
        .unwrap();
    let text = says(&wgmma, "80");
    assert!(
        text.contains("cannot compile") && text.contains("wgmma"),
        "{text}"
    );
}
