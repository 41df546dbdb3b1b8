//! Every variant with kernels on every architecture: what it becomes in machine code, and whether its kernels compute the
//! exact result in the simulator, and on a GPU where there is one. Trials need NVRTC, the disassembler, or a GPU: where what
//! they need is missing they are reported as ignored. `cargo xtask toolchain --nvrtc` installs the first two.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};
use mma_explorer::arch::{self, Arch};
use mma_explorer::blackwell::Scales;
use mma_explorer::cache::Cache;
use mma_explorer::cublaslt::CublasLt;
use mma_explorer::device::{Device, DeviceError};
use mma_explorer::exact::{Exact, sum_bits};
use mma_explorer::machine_code;
use mma_explorer::matmul::{Operands, Plan, Problem, Tiles};
use mma_explorer::nvrtc::{self, Compiled, Nvrtc, NvrtcError, Source, Stage};
use mma_explorer::results::{FORM, Measured, Product, Results, SumBits};
use mma_explorer::simulate::{self, Simulated, SimulationError};
use mma_explorer::source;
use mma_explorer::variants::{self, Family, Variant};
use ptx_sim::schedules;

/// Trials named by a group and a function, each with what it needs.
macro_rules! trials {
    ($($needs:ident $group:ident::$function:ident;)*) => {
        vec![$($needs(concat!(stringify!($group), "::", stringify!($function)), $function)),*]
    };
}

fn main() -> ExitCode {
    let mut trials = trials! {
        nvrtc errors::an_unknown_architecture_is_named;
        nvrtc errors::a_wrong_source_is_quoted;
        nothing errors::a_size_of_zero_is_refused;
        nvrtc info::a_path_need_not_be_text;
        nothing report::of_two_measurements;
        nvrtc cache::a_kept_kernel_is_the_compiled_one;
        nvrtc simulator::a_wrong_result_is_noticed;
        nvrtc simulator::a_missing_wait_is_noticed;
        nvrtc simulator::planted_faults_of_bulk_copies_are_noticed;
        nvrtc simulator::bits_of_sums;
        nvrtc simulator::planted_faults_of_warpgroups_are_noticed;
        nvrtc simulator::planted_faults_of_tensor_memory_are_noticed;
        nvrtc simulator::wrong_scales_are_noticed;
        long_disassembler machine_code::fast_tiles_of_warps;
        long_disassembler machine_code::fast_tiles_of_warpgroups;
        long_disassembler machine_code::fast_tiles_of_tensor_memory;
        gpu gpu::every_variant_is_exact;
        gpu gpu::every_variant_has_a_rate;
        gpu gpu::every_product_counts_its_clock;
        gpu gpu::cublaslt_multiplies_the_same;
    };
    for name in arch::ALL {
        let arch = sm(name);
        let there: Vec<Variant> = variants_of(arch).collect();
        // Kin of GPUs that are in the other trials. What differs in their machine code, the tables below hold.
        let is_another = ["103a", "110a", "121a"].contains(&name);
        for &variant in &there {
            let name = format!("matmul::sm_{arch}::{}", variant.name());
            let trial = nvrtc(&name, move || matmul(&variant, arch));
            trials.push(match is_another {
                true => on_request(trial),
                false => trial,
            });
        }
        // Those that emulate differently.
        if ["90a", "100a", "120a"].contains(&name) {
            trials.push(disassembler(&format!("measured::sm_{arch}"), move || {
                measured_instructions_stay(arch)
            }));
        }
        trials.push(nvrtc(&format!("refused::sm_{arch}"), move || refused(arch)));
        trials.push(disassembler(
            &format!("machine_code::sm_{arch}"),
            move || table_is_right(&there, arch),
        ));
    }
    for variant in variants::all() {
        trials.push(nvrtc(&format!("measure::{}", variant.name()), move || {
            measure(&variant)
        }));
    }
    let all_tiles: [(&str, &str, &str, &'static [&str]); 4] = [
        ("tiles", "80", TILES, &MMA),
        ("tiles", "90a", BULK_TILES, &MMA),
        ("tiles::wgmma", "90a", WGMMA_TILES, &WGMMA),
        ("tiles::tcgen05", "100a", TCGEN05_TILES, &TCGEN05),
    ];
    for (group, arch, all, names) in all_tiles {
        for text in all.split(' ') {
            let (arch, of) = (sm(arch), tiles(text));
            trials.push(nvrtc(&format!("{group}::{text}"), move || {
                with_tiles(arch, names, of)
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn nothing(name: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        run();
        Ok(())
    })
}

fn nvrtc(name: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match nvrtc::get() {
        Err(missing @ NvrtcError::Missing { .. }) => {
            Ok(Completion::ignored_with(missing.to_string()))
        }
        Err(error) => Err(error.to_string().into()),
        Ok(_) => {
            run();
            Ok(Completion::Completed)
        }
    })
}

fn disassembler(name: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    let missing = machine_code::disassembler().err();
    match missing {
        Some(missing) => Trial::ignorable_test(name, move || {
            Ok(Completion::ignored_with(missing.to_string()))
        }),
        None => nvrtc(name, run),
    }
}

fn long_disassembler(name: &str, run: fn()) -> Trial {
    on_request(disassembler(name, run))
}

fn on_request(trial: Trial) -> Trial {
    trial.with_kind("long").with_ignored_flag(true)
}

fn gpu(name: &str, run: fn(&Device)) -> Trial {
    Trial::ignorable_test(name, move || match Device::open(0) {
        Err(
            missing @ (DeviceError::NoDriver
            | DeviceError::NoDevice { .. }
            | DeviceError::TooOld { .. }),
        ) => Ok(Completion::ignored_with(missing.to_string())),
        Err(error) => Err(error.to_string().into()),
        Ok(_) if nvrtc::get().is_err() => {
            Ok(Completion::ignored_with("there is a GPU, but no NVRTC"))
        }
        Ok(device) => {
            run(&device);
            Ok(Completion::Completed)
        }
    })
}

fn sm(arch: &str) -> Arch {
    arch.parse().expect("an architecture")
}

fn tiles(text: &str) -> Tiles {
    text.parse().expect("tiles")
}

fn found(name: &str) -> Variant {
    variants::find(name).expect("a variant")
}

/// Variants that an architecture has.
fn variants_of(arch: Arch) -> impl Iterator<Item = Variant> {
    let all = variants::all().into_iter();
    all.filter(move |variant| variant.missing(arch).is_none())
}

fn compiled(source: &Source, arch: Arch, stage: Stage) -> Compiled {
    let compiled = cache().compile(library(), source, arch, &source::options(), stage);
    compiled.expect("it compiles").0
}

fn every_variant_is_exact(device: &Device) {
    for variant in variants_of(device.arch) {
        for tiles in [Tiles::smallest(&variant), Tiles::usual(&variant)] {
            let source = source::matmul(&variant, &tiles);
            let compiled = compiled(&source, device.arch, Stage::Cubin);
            for odd in [0, 1] {
                let problem = problem(&variant, &tiles, odd);
                let exact = Exact::new(&variant, problem, 3);
                let plan = Plan::new(&variant, &tiles, problem, 2).expect("a plan");
                if let Err(error) = device.check(&variant, &compiled, &plan, problem, &exact) {
                    panic!("{} {tiles} {problem:?}: {error}", variant.name());
                }
            }
        }
    }
}

/// A product counts the clock that it runs at.
fn every_product_counts_its_clock(device: &Device) {
    for variant in variants_of(device.arch) {
        let tiles = Tiles::usual(&variant);
        let compiled = compiled(&source::matmul(&variant, &tiles), device.arch, Stage::Cubin);
        let problem = problem(&variant, &tiles, 0);
        let plan = Plan::new(&variant, &tiles, problem, 2).expect("a plan");
        let prepared = device.prepare(&compiled, plan, problem).expect("it loads");
        let exact = Exact::new(&variant, problem, 3);
        let mut matrices = device.upload(&exact).expect("room");
        let ran = device.seconds(&prepared, &mut matrices, 1);
        ran.expect("it runs");
        let cycles = device.cycles_a_second(&prepared).expect("it was counted");
        let name = variant.name();
        assert!(cycles > 0.0 && cycles.is_finite(), "{name}: {cycles}");
    }
}

/// No test depends on how fast they are.
fn every_variant_has_a_rate(device: &Device) {
    for variant in variants_of(device.arch) {
        let source = source::measure(&variant, device.arch);
        let compiled = compiled(&source, device.arch, Stage::Cubin);
        let peak = device.peak(&variant, &compiled).expect("it runs");
        assert!(
            peak.latency > 0.0 && peak.operations > 0.0 && peak.operations_per_cycle > 0.0,
            "{}: {peak:?}",
            variant.name()
        );
    }
}

/// The kernels are compared with the same product: of the same operands, it has the same D.
fn cublaslt_multiplies_the_same(device: &Device) {
    let Ok(library) = CublasLt::open(device.stream(), None) else {
        println!("there is no cuBLASLt");
        return;
    };
    let mut compared = 0;
    for variant in variants_of(device.arch) {
        let problem = Problem {
            m: 256,
            n: 384,
            k: 512,
        };
        // Hopper's cuBLASLt multiplies with `wgmma`, whose sums of FP8 have 13 bits, also where this variant has more.
        let same = |other: &Variant| {
            let types = |variant: &Variant| (variant.a, variant.b, variant.accumulator);
            other.family() == Family::Wgmma && types(other) == types(&variant)
        };
        let multiplied = variants_of(device.arch).find(same).unwrap_or(variant);
        let exact = Exact::new(&multiplied, problem, 5);
        let mut matrices = device.upload(&exact).expect("room");
        let Ok(product) = library.product(&variant, problem, &mut matrices) else {
            continue;
        };
        product.seconds(&mut matrices, 1).expect("it runs");
        if let Err(error) = device.compare(&variant, problem, &exact, &matrices) {
            panic!("{}: {error}", variant.name());
        }
        compared += 1;
    }
    assert!(compared > 3, "{compared}");
}

fn library() -> &'static Nvrtc {
    nvrtc::get().expect("trials without NVRTC are ignored")
}

/// By source and build of NVRTC: what has not changed since the last tests is not compiled again.
fn cache() -> Cache {
    Cache::at(env!("CARGO_TARGET_TMPDIR"))
}

/// A product in the simulator: each part of it can be made wrong.
#[derive(Clone)]
struct Case {
    variant: Variant,
    problem: Problem,
    ptx: String,
    plan: Plan,
    exact: Exact,
}

impl Case {
    /// As on a GPU of so many multiprocessors.
    fn new(
        variant: &Variant,
        arch: Arch,
        tiles: &Tiles,
        problem: Problem,
        multiprocessors: u32,
    ) -> Self {
        Self {
            variant: *variant,
            problem,
            ptx: compiled(&source::matmul(variant, tiles), arch, Stage::Ptx).ptx,
            plan: Plan::new(variant, tiles, problem, multiprocessors).expect("a plan"),
            exact: Exact::new(variant, problem, 1),
        }
    }

    /// The smallest tiles, and sizes that are no multiples of them.
    fn small(name: &str, arch: &str) -> Self {
        let variant = found(name);
        let tiles = Tiles::smallest(&variant);
        Self::new(&variant, sm(arch), &tiles, problem(&variant, &tiles, 0), 2)
    }

    fn with_ptx(&self, ptx: String) -> Self {
        Self {
            ptx,
            ..self.clone()
        }
    }

    fn run(&self, options: &ptx_sim::Options) -> Result<Simulated, SimulationError> {
        let Self {
            variant,
            problem,
            ptx,
            plan,
            exact,
        } = self;
        simulate::matmul(variant, ptx, plan, *problem, exact, options)
    }

    /// The first wrong thing, under the usual options.
    fn error(&self) -> String {
        let ran = self.run(&ptx_sim::Options::default());
        ran.unwrap_err().to_string()
    }

    /// Whether it is right under these options.
    fn is_right(&self, options: impl AsRef<[ptx_sim::Options]>) -> bool {
        let mut all = options.as_ref().iter();
        all.all(|options| self.run(options).is_ok())
    }
}

/// The table's words on machine code are those of NVRTC and the disassembler.
fn table_is_right(variants: &[Variant], arch: Arch) {
    let emitted = machine_code::survey(&cache(), library(), arch, variants).expect("a survey");
    assert_eq!(emitted.len(), variants.len());
    let mut wrong = Vec::new();
    for (variant, emitted) in variants.iter().zip(emitted) {
        let machine = variant.machine(arch).expect("it is there");
        let named = |opcode: &String| opcode.split('.').next() == Some(machine.opcode);
        if emitted.emission != machine.emission || !emitted.instructions.keys().all(named) {
            wrong.push(format!(
                "{}: {machine:?} in the table, in fact {emitted:?}",
                variant.name()
            ));
        }
    }
    assert!(wrong.is_empty(), "sm_{arch}:\n{}", wrong.join("\n"));
}

/// Variants that the table says are not there do not compile. NVRTC stops at the first errors, so each is tried alone;
/// one of each kind is enough.
fn refused(arch: Arch) {
    let missing = variants::all().into_iter().filter(|variant| {
        variant.missing(arch).is_some()
            // FP8 with FP8 compiles with and without its kind, also where no other pair of the kind does.
            && (!variant.name().contains(".f8f6f4.") || variant.name().contains("e2m1.e2m1"))
    });
    let mut seen = Vec::new();
    for variant in missing {
        let kind = (
            variant.family(),
            variant.shape,
            variant.accumulator,
            variant.scale(),
        );
        if seen.contains(&kind) {
            continue;
        }
        seen.push(kind);
        let source = source::survey(&[variant]);
        let compiled = library().compile(&source, arch, &source::options(), Stage::Cubin);
        match compiled {
            Err(NvrtcError::Source { log, .. }) => {
                assert!(
                    log.contains("not supported") || log.contains("requires"),
                    "{}: {log}",
                    variant.name()
                );
            }
            Err(error) => panic!("{} on sm_{arch}: {error}", variant.name()),
            Ok(_) => panic!("{} compiles for sm_{arch}", variant.name()),
        }
    }
}

/// Sizes that are no multiples of any tile, and a last step that is not whole.
fn problem(variant: &Variant, tiles: &Tiles, odd: u32) -> Problem {
    Problem {
        m: tiles.block_m + 3,
        n: tiles.block_n + 4 + odd,
        k: 8 * (2 * tiles.block_k + 16) / variant.container_bits(variant.a),
    }
}

fn matmul(variant: &Variant, arch: Arch) {
    let smallest = Tiles::smallest(variant);
    smallest.check(variant, arch).expect("the smallest tiles");
    let bulk = Tiles {
        bulk: true,
        ..smallest
    };
    for tiles in [smallest, bulk] {
        if tiles.check(variant, arch).is_err() {
            // Of others than `mma.sync`, and where there are no bulk copies.
            assert!(tiles.bulk && (variant.family() != Family::Mma || arch.number < 90));
            continue;
        }
        let mut case = Case::new(variant, arch, &tiles, problem(variant, &tiles, 0), 2);
        let all = schedules::few(u64::from(arch.number));
        for (seed, options) in all.into_iter().enumerate() {
            case.problem = problem(variant, &tiles, seed as u32 % 2);
            case.exact = Exact::new(variant, case.problem, seed as u64);
            case.plan = Plan::new(variant, &tiles, case.problem, 2).expect("a plan");
            match case.run(&options) {
                Ok(simulated) => assert!(simulated.warp_instructions > 0),
                Err(error) => panic!("{tiles} {options:?}: {error}"),
            }
        }
    }
}

/// The kernels that measure still have all of their instructions in machine code: the compiler has not taken the work of
/// emulated ones out of the loop. What some are emulated by is a function that is called.
fn measured_instructions_stay(arch: Arch) {
    let names = [
        F16,
        "mma.m16n8k32.f32.e4m3.e4m3",
        "mma.m16n8k64.s32.s4.s4",
        "mma.m16n8k256.s32.b1.b1.xor",
        "mma.m16n8k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3",
        "wgmma.m64n256k16.f32.f16.f16",
        "wgmma.m64n256k32.s32.s8.s8",
        "tcgen05.m128n256k8.tf32.f32.tf32.tf32",
        NVFP4,
    ];
    let variants: Vec<Variant> = names
        .iter()
        .map(|name| found(name))
        .filter(|variant| variant.missing(arch).is_none())
        .collect();
    let each = machine_code::survey(&cache(), library(), arch, &variants).expect("a survey");
    for (variant, one) in variants.iter().zip(each) {
        let source = source::measure(variant, arch);
        let compiled = compiled(&source, arch, Stage::Cubin);
        let of_one: u32 = one.instructions.values().sum();
        let functions = machine_code::functions(&compiled).expect("a disassembly");
        assert_eq!(functions.len(), 2);
        for function in functions {
            let expected = if function.symbol == "latency" { 16 } else { 8 };
            let matrix: u32 = machine_code::matrix_instructions(&function).values().sum();
            let calls = function.code.iter().filter(|i| i.name() == "CALL").count();
            assert!(
                matrix >= expected * of_one || calls >= expected as usize,
                "{} on sm_{arch}, {}: {matrix} matrix instructions, {calls} calls, {of_one} of one",
                variant.name(),
                function.symbol,
            );
        }
    }
}

/// The kernels that measure, on the first architecture that has the variant.
fn measure(variant: &Variant) {
    let arch = arch::ALL.iter().map(|name| sm(name));
    let arch = arch
        .into_iter()
        .find(|arch| variant.missing(*arch).is_none());
    let arch = arch.expect("one has it");
    let ptx = compiled(&source::measure(variant, arch), arch, Stage::Ptx).ptx;
    // Chains that are alike must not have become one: 16 instructions that depend on each other, and 8 that do not.
    let instructions = ptx
        .lines()
        .filter(|line| line.contains(&variant.instruction()))
        .count();
    assert_eq!(instructions, 16 + 8, "{}", variant.name());
    if let Err(error) = simulate::measure(variant, &ptx, &ptx_sim::Options::default()) {
        panic!("{error}");
    }
}

/// Both lengths of a step with their own orders of chunks, more and fewer stages than steps, one warp and several, groups
/// that do not divide the tiles, and numbers of fragments that one or several loads bring.
const TILES: &str = "32x16x64/16x8/3/1 32x16x64/16x16/5/3 16x8x64/16x8/3/1 64x32x64/32x16/4/2 32x32x128/32x16/3/2 \
    48x24x128/48x8/3/2 16x32x128/16x32/3/3";

/// The same with bulk copies.
const BULK_TILES: &str = "32x16x64/16x8/2/1/bulk 32x16x64/16x16/5/3/bulk 16x8x128/16x8/2/2/bulk \
    48x24x128/48x8/3/2/bulk 64x32x64/64x16/4/2/bulk 192x128x128/96x64/3/2/bulk";

const MMA: [&str; 3] = [F16, "mma.m16n8k8.f16.f16.f16", "mma.m8n8k16.s32.s8.u8"];

/// One warpgroup and several, side by side and below each other, with several instructions below each other, and alone
/// and in clusters.
const WGMMA_TILES: &str = "64x16x128/64x16/2/1 128x32x128/128x16/3/2 64x32x128/64x32/2/1/2 128x48x128/64x48/3/3/2 \
    256x16x128/128x16/4/2/2";

const WGMMA: [&str; 2] = ["wgmma.m64n256k16.f16.f16.f16", "wgmma.m64n256k32.s32.s8.u8"];

const NVFP4: &str = "tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3";

/// One and several instructions below each other, one place of sums and two, scales whose tiles begin within a group of
/// columns, and alone, in clusters and in pairs.
const TCGEN05_TILES: &str = "128x64x128/128x64/2/1 128x64x128/128x64/3/2/2 256x64x128/128x64/2/3 \
    128x128x128/128x128/3/1 256x128x128/128x128/2/1/2 128x256x128/128x256/4/2 128x64x128/256x64/2/1/2 \
    256x64x128/256x64/3/2/2 128x128x128/256x128/3/1/2";

const TCGEN05: [&str; 5] = [
    "tcgen05.m128n256k8.tf32.f32.tf32.tf32",
    "tcgen05.m128n256k16.f16.f16.f16.f16",
    "tcgen05.m128n256k32.mxf8f6f4.f32.e5m2.e2m3.ue8m0",
    "tcgen05.m128n256k64.mxf4.f32.e2m1.e2m1.ue8m0",
    NVFP4,
];

fn with_tiles(arch: Arch, names: &[&str], tiles: Tiles) {
    for name in names {
        let variant = found(name);
        tiles.check(&variant, arch).expect("tiles that exist");
        for (m, n, steps) in [(1, 1, 1), (130, 50, 3), (tiles.block_m, tiles.block_n, 8)] {
            let k = 8 * steps * tiles.block_k / variant.container_bits(variant.a);
            let problem = Problem { m, n, k };
            // Of kernels that walk over tiles, CTAs that have several, and some that have none.
            let mut case = Case::new(&variant, arch, &tiles, problem, 4);
            case.exact = Exact::new(&variant, problem, 11);
            for options in schedules::few(5) {
                if let Err(error) = case.run(&options) {
                    panic!("{name} {problem:?} {options:?}: {error}");
                }
            }
        }
    }
}

fn an_unknown_architecture_is_named() {
    let source = source::survey(&[variants::all()[0]]);
    for name in ["999a", "85"] {
        let compiled = library().compile(&source, sm(name), &[], Stage::Ptx);
        let error = compiled.unwrap_err();
        assert!(
            matches!(error, NvrtcError::Architecture { .. }),
            "{error:?}"
        );
        let expected = format!("does not compile for sm_{name}");
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(error.hint(&nvrtc::NAMES).is_some());
    }
}

/// Before a GPU or a compiler is looked for.
fn a_size_of_zero_is_refused() {
    for command in [["run", "--size", "0"], ["sweep", "--size", "0"]] {
        let refused = std::process::Command::new(env!("CARGO_BIN_EXE_mma-explorer"))
            .args(command)
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains("0 is not in 1.."),
            "{command:?}: {said}"
        );
    }
}

/// JSON and terminals take text only.
#[cfg(unix)]
fn a_path_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let folder = std::ffi::OsStr::from_bytes(b"/none/\xff\x1b[31m");
    for (json, part) in [(false, r"/none/\u{fffd}\u{1b}[31m"), (true, r"\u001b[31m")] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mma-explorer"));
        command.arg("info").env("MMA_EXPLORER_CACHE", folder);
        let output = command.args(json.then_some("--json")).output();
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let part = part.replace(r"\u{fffd}", "\u{fffd}");
        assert!(output.status.success() && said.contains(&part), "{said}");
    }
}

#[cfg(not(unix))]
fn a_path_need_not_be_text() {}

fn a_wrong_source_is_quoted() {
    let mut source = source::survey(&[variants::all()[0]]);
    source.text += "\nint oops = undefined_name;\n";
    let compiled = library().compile(&source, sm("90a"), &[], Stage::Ptx);
    let text = compiled.unwrap_err().to_string();
    assert!(
        text.contains("survey.cu") && text.contains("undefined_name"),
        "{text}"
    );
}

fn a_kept_kernel_is_the_compiled_one() {
    use mma_explorer::cache::Origin;
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(folder.path().join("cache"));
    let source = source::survey(&[variants::all()[0]]);
    let compile = |cache: &Cache| {
        let compiled = cache.compile(
            library(),
            &source,
            sm("90a"),
            &source::options(),
            Stage::Cubin,
        );
        compiled.expect("it compiles")
    };
    let (first, origin) = compile(&cache);
    assert!(matches!(origin, Origin::Compiled(_)));
    assert!(first.ptx.contains("mma.sync") && first.cubin.starts_with(b"\x7fELF"));
    let (second, origin) = compile(&cache);
    assert!(matches!(origin, Origin::Cached(_)));
    assert_eq!(first, second);
    assert!(matches!(compile(&Cache::none()).1, Origin::Compiled(_)));
}

const F16: &str = "mma.m16n8k16.f32.f16.f16";

fn a_wrong_result_is_noticed() {
    let mut case = Case::small(F16, "80");
    *case.exact.a.last_mut().expect("an element") ^= 0x80;
    let error = case.error();
    assert!(error.contains("elements of D are wrong"), "{error}");
}

fn a_missing_wait_is_noticed() {
    let case = Case::small(F16, "80");
    let ptx = &case.ptx;
    let broken = ptx.replacen("cp.async.wait_group \t1", "cp.async.wait_group \t3", 1);
    let broken = broken.replacen("cp.async.wait_group 1", "cp.async.wait_group 3", 1);
    assert_ne!(broken, *ptx, "the kernel waits");
    assert!(!case.with_ptx(broken).is_right(schedules::few(1)));
}

/// Each of these in all places is needed: commented out, or another text where one is given.
fn all_are_needed(case: &Case, what: &str, all: &[(&str, Option<&str>)]) {
    assert!(case.is_right(schedules::few(1)), "{what}");
    for (whole, other) in all {
        let other = other.map_or(format!("// {whole}"), String::from);
        let mutant = case.ptx.replace(whole, &other);
        assert_ne!(mutant, case.ptx, "there is no {whole}");
        let mutant = case.with_ptx(mutant);
        assert!(!mutant.is_right(schedules::few(1)), "{what}: {whole}");
    }
}

/// Barriers, their counts and the fence of the kernel with bulk copies are needed, and its order of chunks is the swizzle's.
fn planted_faults_of_bulk_copies_are_noticed() {
    let (variant, tiles) = (found(F16), tiles("64x32x64/32x16/2/2/bulk"));
    let arch = sm("90a");
    // Several tiles of a CTA, and more steps than stages.
    let problem = Problem {
        m: 200,
        n: 70,
        k: 256,
    };
    let case = Case::new(&variant, arch, &tiles, problem, 2);
    let needed = [
        ("fence.proxy.async.shared::cta;", Some("")),
        ("mbarrier.arrive.release.cta", None),
        ("mbarrier.init.shared::cta.b64", None),
        ("mbarrier.arrive.expect_tx", None),
    ];
    all_are_needed(&case, "bulk copies", &needed);
    // Barriers of the empty stages that one of the four warps completes.
    let mut source = source::matmul(&variant, &tiles);
    source.text = source.text.replace(
        "barrier_init(empty + stage * 8, WARPS)",
        "barrier_init(empty + stage * 8, 1)",
    );
    let early = case.with_ptx(compiled(&source, arch, Stage::Ptx).ptx);
    assert!(early.ptx != case.ptx && !early.is_right(schedules::few(1)));
    // Another swizzle than that of the kernel's order of chunks.
    let mut swizzled = case.clone();
    if let Operands::Maps { a, .. } = &mut swizzled.plan.operands {
        a.box_bytes = 128;
    }
    assert_ne!(swizzled.plan, case.plan);
    assert!(!swizzled.is_right(schedules::few(1)));
}

/// Waits, fences and barriers of the kernel with `wgmma` are needed: without them a schedule shows a wrong result or
/// a broken rule.
fn planted_faults_of_warpgroups_are_noticed() {
    let variant = found("wgmma.m64n256k16.f32.f16.f16");
    for cluster in [1, 2] {
        let tiles = Tiles {
            cluster,
            ..Tiles::smallest(&variant)
        };
        let problem = problem(&variant, &tiles, 0);
        let case = Case::new(&variant, sm("90a"), &tiles, problem, 2);
        let needed = [
            ("wgmma.wait_group.sync.aligned 0;", Some("")),
            (
                "wgmma.wait_group.sync.aligned 1;",
                Some("wgmma.wait_group.sync.aligned 2;"),
            ),
            ("wgmma.fence.sync.aligned;", Some("")),
            ("mbarrier.init.shared::cta.b64", None),
            (", 1, 1, 0, 0;", Some(", 1, -1, 0, 0;")),
        ];
        all_are_needed(&case, &format!("cluster of {cluster}"), &needed);
    }
}

/// Waits, fences, copies and barriers of the kernel with `tcgen05` are needed, too.
fn planted_faults_of_tensor_memory_are_noticed() {
    let variant = found(NVFP4);
    // Alone, in a cluster, and as a pair.
    for (cluster, warp_m) in [(1, 128), (2, 128), (2, 256)] {
        let tiles = Tiles {
            cluster,
            warp_m,
            ..Tiles::smallest(&variant)
        };
        // Several tiles of each CTA, and more steps than stages.
        let problem = Problem {
            m: tiles.block_m * cluster + 3,
            n: 2 * tiles.block_n,
            k: 8 * 5 * tiles.block_k / variant.container_bits(variant.a),
        };
        let case = Case::new(&variant, sm("100a"), &tiles, problem, cluster);
        let ptx = &case.ptx;
        assert!(case.is_right(schedules::schedules(1)));
        let mut missed = Vec::new();
        // All of them, and each alone of what stands there several times.
        for (what, each) in [
            ("tcgen05.wait::ld.sync.aligned;", false),
            ("tcgen05.fence::before_thread_sync;", true),
            ("tcgen05.fence::after_thread_sync;", true),
            ("tcgen05.commit.", true),
            ("tcgen05.cp.", true),
            ("tcgen05.mma.", true),
            ("tcgen05.dealloc.", false),
            ("mbarrier.init.", true),
            ("mbarrier.arrive.release.", false),
            ("mbarrier.arrive.expect_tx.", false),
            ("cp.async.bulk.tensor.2d", true),
        ] {
            let places: Vec<usize> = ptx.match_indices(what).map(|(at, _)| at).collect();
            assert!(!places.is_empty(), "there is no {what}");
            // The first fence and the last one stand around the allocation, for which the simulator has no such rule.
            let last = places.len() - 1;
            let is_needed = |i: usize| !what.contains("fence") || (i > 0 && i < last);
            let chosen = |i: usize| (each || i == 0) && is_needed(i);
            for (i, &at) in places.iter().enumerate().filter(|(i, _)| chosen(*i)) {
                let mutant = format!("{}// {}", &ptx[..at], &ptx[at..]);
                if case.with_ptx(mutant).is_right(schedules::schedules(1)) {
                    missed.push(format!("{what} {i} of {}", places.len()));
                }
            }
        }
        assert!(missed.is_empty(), "{tiles}: {missed:?}");
    }
}

/// Every scale counts, and so do the types in the instruction descriptor.
fn wrong_scales_are_noticed() {
    let case = Case::small(NVFP4, "100a");
    let problem = case.problem;
    let ran = case.run(&ptx_sim::Options::default());
    ran.expect("it is right");
    let places = Scales::of(&case.variant, problem).expect("it has scales");
    let blocks = problem.k.div_ceil(places[0].block) as usize;
    for (operand, rows) in [(0, problem.m), (1, problem.n)] {
        for (row, block) in [(0, 0), (rows - 1, 0), (33, blocks - 1)] {
            let mut wrong = case.clone();
            let scales = wrong.exact.scales.as_mut().expect("scales");
            // Another power of two.
            scales[operand][places[operand].place(row as usize, block)] ^= 0x10;
            let error = wrong.error();
            let where_from = match operand {
                0 => format!("row {row} "),
                _ => format!("column {row}"),
            };
            assert!(
                error.contains("elements of D are wrong") && error.contains(&where_from),
                "{operand} {row} {block}: {error}"
            );
        }
    }
    let mut other = case.clone();
    if let Operands::Maps { instruction, .. } = &mut other.plan.operands {
        // UE8M0 scales.
        *instruction = instruction.map(|bits| bits | 1 << 23);
    }
    assert!(!other.error().is_empty());
    let mut none = case.clone();
    none.exact.scales = None;
    let error = none.error();
    assert!(error.contains("the matrices have none"), "{error}");
}

/// The program reads what it is given, and says what it cannot read.
fn of_two_measurements() {
    let folder = tempfile::tempdir().expect("a folder");
    let results = |name: &str| Results {
        form: FORM,
        device: "NVIDIA H200".into(),
        arch: "90a".into(),
        multiprocessors: 132,
        nvrtc: "13.0".into(),
        cublaslt: None,
        variants: vec![Measured {
            name: name.into(),
            family: "wgmma".into(),
            a: "f16".into(),
            b: "f16".into(),
            accumulator: "f32".into(),
            machine: "HGMMA (native)".into(),
            products: vec![Product {
                size: 8192,
                tiles: "128x256x128/64x256/4/8/2".into(),
                operations: 6e14,
                ..Product::default()
            }],
            ..Measured::default()
        }],
    };
    for name in ["one", "two"] {
        let json = serde_json::to_string(&results(name)).expect("JSON");
        std::fs::write(folder.path().join(name), json).expect("a file");
    }
    std::fs::write(folder.path().join("other"), "{\"form\": 99}").expect("a file");
    let report = |files: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_mma-explorer"))
            .current_dir(folder.path())
            .arg("report")
            .args(files)
            .args(["--out", "made"])
            .output()
            .expect("it starts")
    };
    let made = report(&["one", "two"]);
    assert!(made.status.success(), "{made:?}");
    let read = |name: &str| {
        std::fs::read_to_string(folder.path().join("made").join(name)).expect("it is there")
    };
    let merged = Results::parse(&read("report.json")).expect("results");
    assert_eq!(merged.variants.len(), 2);
    assert!(read("report.md").contains("| two |") && read("report.html").contains("<svg"));
    let refused = report(&["one", "other"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("form 99"),
        "{said}"
    );
}

/// The machine code of a product's one kernel, which has nothing in local memory.
fn product_without_stack(variant: &Variant, tiles: &Tiles, arch: Arch) -> sass::Function {
    tiles.check(variant, arch).expect("tiles that exist");
    let compiled = compiled(&source::matmul(variant, tiles), arch, Stage::Cubin);
    let mut functions = machine_code::functions(&compiled).expect("a disassembly");
    assert_eq!(functions.len(), 1, "{} {tiles}", variant.name());
    let function = functions.remove(0);
    let local = (function.stack, function.local);
    assert_eq!(local, (0, 0), "{} {tiles}", variant.name());
    function
}

/// Sums and fragments of the large tiles stay in registers, and a step has no more than one other instruction for each
/// multiplication.
fn fast_tiles_of_warps() {
    let half = "mma.m16n8k16.f16.f16.f16";
    let single = F16;
    let bytes = "mma.m16n8k32.s32.s8.s8";
    for (name, arch, of, multiplications) in [
        (single, "90a", "192x256x128/96x64/4/8/bulk", 192),
        (single, "90a", "128x256x128/64x64/4/8/bulk", 128),
        (half, "90a", "256x256x128/128x64/3/8/bulk", 256),
        (bytes, "90a", "192x256x128/96x64/4/8/bulk", 192),
        (single, "120a", "128x256x64/64x64/4/8/bulk", 64),
        (single, "80", "128x256x64/64x64/4/8", 64),
        (single, "80", "128x128x64/64x64/4/8", 64),
    ] {
        let (variant, arch, tiles) = (found(name), sm(arch), tiles(of));
        let function = product_without_stack(&variant, &tiles, arch);
        let is_matrix = |one: &sass::Instruction| machine_code::is_matrix_instruction(one.name());
        let first = function.code.iter().position(is_matrix).expect("one");
        let last = function.code.iter().rposition(is_matrix).expect("one");
        // Code for sm_120 has a NOP behind most multiplications.
        let step = function.code[first..=last].iter();
        let step: Vec<_> = step.filter(|one| one.name() != "NOP").collect();
        let matrix = step.iter().filter(|one| is_matrix(one)).count();
        assert_eq!(matrix, multiplications, "{name} sm_{arch} {tiles}");
        let loads = step.iter().filter(|one| one.name() == "LDSM").count();
        assert!(loads > 0, "{name} sm_{arch} {tiles}");
        // The code that finds the next tile is among them, and rarely executed.
        let limit = 2 * multiplications + 80;
        assert!(
            step.len() <= limit,
            "{name} sm_{arch} {tiles}: {}",
            step.len()
        );
    }
}

/// The kernel's speed stands in its machine code: sums in registers, multiplications that follow each other without
/// a copy in between, and no fence of the whole GPU in the loop.
fn fast_tiles_of_warpgroups() {
    for (types, of, multiplications) in [
        ("k16.f32.f16.f16", "128x256x128/64x256/4/8/2", 4),
        ("k32.f32.e4m3.e4m3", "128x256x128/64x256/4/8", 4),
        ("k32.s32.s8.s8", "256x128x128/128x128/4/8/2", 8),
        ("k16.f16.f16.f16", "256x192x128/128x192/3/8", 8),
    ] {
        let name = format!("wgmma.m64n256{types}");
        let (variant, tiles) = (found(&name), tiles(of));
        let function = product_without_stack(&variant, &tiles, sm("90a"));
        let matrix: u32 = machine_code::matrix_instructions(&function).values().sum();
        assert_eq!(matrix, multiplications, "{name} {tiles}");
        let is_matrix = |one: &sass::Instruction| machine_code::is_matrix_instruction(one.name());
        let first = function.code.iter().position(is_matrix).expect("one");
        let last = function.code.iter().rposition(is_matrix).expect("one");
        let between = &function.code[first..last];
        // Those of the two barriers of the cluster.
        let fences = function.code.iter();
        let fences = fences.filter(|one| one.name() == "MEMBAR" && one.has_modifier("GPU"));
        assert_eq!(fences.count(), 2, "{name} {tiles}");
        // Waits between them would be the compiler's, which has then given up to overlap them.
        let waits = between.iter().filter(|one| one.name() == "WARPGROUP");
        assert_eq!(waits.count(), 0, "{name} {tiles}");
    }
}

/// The thread that multiplies does little else: multiplications of a step follow each other, and no register spills.
fn fast_tiles_of_tensor_memory() {
    let f16 = "tcgen05.m128n256k16.f16.f32.f16.f16";
    let bytes = "tcgen05.m128n256k32.i8.s32.s8.s8";
    for (name, of, multiplications, copies) in [
        (f16, "128x256x128/128x256/4/8/2", 4, 0),
        (bytes, "256x128x128/128x128/4/8", 8, 0),
        (NVFP4, "128x256x128/128x256/4/8/2", 4, 12),
        (NVFP4, "128x256x128/256x256/5/8/2", 4, 12),
        (NVFP4, "256x128x128/128x128/4/8", 8, 12),
    ] {
        let (variant, tiles) = (found(name), tiles(of));
        let function = product_without_stack(&variant, &tiles, sm("100a"));
        let is_multiplication = |name: &str| machine_code::is_matrix_instruction(name);
        let names: Vec<&str> = function.code.iter().map(|one| one.name()).collect();
        let count = |name: &str| names.iter().filter(|other| **other == name).count();
        let matrix = names.iter().filter(|name| is_multiplication(name)).count();
        assert_eq!(
            (matrix, count("UTCCP")),
            (multiplications, copies),
            "{name} {tiles}"
        );
        let of_pair = function
            .code
            .iter()
            .filter(|one| is_multiplication(one.name()) && one.has_modifier("2CTA"));
        let expected = if tiles.warp_m == 256 { matrix } else { 0 };
        assert_eq!(of_pair.count(), expected, "{name} {tiles}");
        let first = names.iter().position(|name| is_multiplication(name));
        let last = names.iter().rposition(|name| is_multiplication(name));
        let (first, last) = (first.expect("one"), last.expect("one"));
        // In uniform registers all along: no move from ordinary ones, no branch, no wait.
        let between = &names[first..last];
        for slow in ["R2UR", "BRA", "SYNCS", "WARPSYNC", "ELECT", "VOTEU"] {
            assert!(!between.contains(&slow), "{name} {tiles}: {slow}");
        }
    }
}

/// The measurements that `run` makes of sums, by the simulator, which sums as an H200 was recorded to: FP8 with `wgmma`
/// has 13 bits, and emulated FP8 as many as its factors can show.
fn bits_of_sums() {
    for (name, bits, ends) in [
        ("wgmma.m64n256k16.f32.f16.f16", 23, false),
        ("wgmma.m64n256k32.f32.e4m3.e5m2", 13, true),
        ("wgmma.m64n256k16.f16.f16.f16", 10, false),
        ("mma.m16n8k32.f32.e4m3.e4m3", 16, false),
    ] {
        let variant = found(name);
        let k = 2048 / variant.container_bits(variant.a);
        let problem = Problem { m: 16, n: 16, k };
        let tiles = Tiles::smallest(&variant);
        let mut case = Case::new(&variant, sm("90a"), &tiles, problem, 2);
        let bits_found = sum_bits(&variant, problem, |exact| {
            case.exact = exact.clone();
            match case.run(&ptx_sim::Options::default()) {
                Ok(_) => Ok(true),
                Err(SimulationError::Wrong(_)) => Ok(false),
                Err(error) => Err(error),
            }
        });
        let bits_found = bits_found.expect("it runs");
        assert_eq!(bits_found, Some(SumBits { bits, ends }), "{name}");
    }
    let integers = found("wgmma.m64n256k32.s32.s8.s8");
    let problem = Problem { m: 1, n: 1, k: 16 };
    assert_eq!(sum_bits(&integers, problem, |_| Err(())), Ok(None));
}
