//! Entry points that launch plans ask for, entry points that exist, and their static shared memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use nvfp4_gemv::kernel::plan::Launch;
use nvfp4_gemv::kernel::read_only::{Read, ReadConfig};
use nvfp4_gemv::kernel::{Call, Job, Kernel, combine, quantize, relayout};
use nvfp4_gemv::{Activation, Dims, FloatType, Gpu, RawOutput, ScaleLayout, Shape, Strides};

use crate::support::ptx::{self, ALL, CONSUMER};
use crate::support::sim::gpu;

crate::trials! {
    simulator: plans_and_units_agree;
}

/// Launches by their entry points, static shared memory, and bytes of tensor maps and parameters: all that the trials
/// here look at.
#[derive(Default)]
struct Distinct(BTreeMap<(&'static str, u32, u64, usize), Launch>);

impl Distinct {
    fn extend(&mut self, launches: impl IntoIterator<Item = Launch>) {
        for launch in launches {
            let bytes = launch.parameters.bytes().len();
            let key = (
                launch.entry,
                launch.static_shared,
                bytes_of_maps(&launch),
                bytes,
            );
            self.0.entry(key).or_insert(launch);
        }
    }
}

fn bytes_of_maps(launch: &Launch) -> u64 {
    128 * launch.maps.len() as u64
}

/// The launches that [`plan`] makes for an architecture. Many trials ask for them, and planning takes seconds.
pub(crate) fn planned(arch: &'static str) -> Arc<Vec<Launch>> {
    static PLANNED: Mutex<BTreeMap<&str, Arc<Vec<Launch>>>> = Mutex::new(BTreeMap::new());
    let mut planned = PLANNED.lock().unwrap_or_else(PoisonError::into_inner);
    let of_arch = planned.entry(arch).or_insert_with(|| Arc::new(plan(arch)));
    Arc::clone(of_arch)
}

/// The distinct launches of all defaults, candidates and batch invariant configs for many problems, and of kernels that
/// are no GEMV.
fn plan(arch: &'static str) -> Vec<Launch> {
    let gpu = gpu(arch);
    let mut planned = Distinct::default();
    let mut problems = Vec::new();
    for (m, k) in [
        (128, 16),
        (64, 48),
        (512, 1024),
        (4096, 4096),
        (1024, 7168),
        (384, 14336),
        (8, 262_144),
    ] {
        // Passes of all sizes, and calls of several.
        let numbers = (1..=17).chain([33, 64, 128, 130]);
        problems.extend(numbers.map(|n| (m, k, n)));
    }
    problems.push((28672, 8192, 1)); // enough weights to count units
    for (m, k, n) in problems {
        let shape = Shape::new(Dims { m, n, k, l: 1 }).expect("a shape");
        for activation in Activation::ALL {
            for layout in ScaleLayout::ALL {
                let plain = Call::nowhere(&shape, activation, layout, 32);
                let reading = (activation == Activation::Nvfp4).then(|| plain.reading_nowhere());
                for call in [plain, plain.selecting_nowhere()]
                    .into_iter()
                    .chain(reading)
                {
                    plan_for(&mut planned, &call, &gpu);
                }
            }
        }
    }
    // Batches that may select the same matrix, of few vectors a bundle and of many.
    for l in [8, 64, 512] {
        let (m, n, k) = (128, 1, 256);
        let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
        let call = Call::nowhere(&shape, Activation::Nvfp4, ScaleLayout::Linear, 32);
        plan_for(&mut planned, &call.selecting_nowhere(), &gpu);
    }
    let shape = Shape::matrix(128, 256).expect("a shape");
    for layout in ScaleLayout::ALL {
        for (element, input) in FloatType::ALL
            .into_iter()
            .flat_map(|element| quantize::Input::KINDS.map(|input| (element, input)))
        {
            let digits = match input {
                quantize::Input::Plain => &[1, 3][..],
                _ => &[1],
            };
            let q = quantize::Quantize {
                element,
                input,
                chained: true,
                early: false,
                copies: 1,
                digits: 1,
                values: 1 << 40,
                strides: Strides {
                    row: 1024,
                    batch: 1024,
                },
                global: quantize::Global::Computed,
                codes: 2 << 40,
                scales: 3 << 40,
                layout,
                vector_alpha: 4 << 40,
            };
            planned.extend(
                digits
                    .iter()
                    .map(|&digits| quantize::launch(&shape, &quantize::Quantize { digits, ..q })),
            );
        }
        planned.extend([relayout::launch(&shape, layout, 1 << 40, 2 << 40)]);
    }
    let combine = combine::Combine {
        slots: 8,
        element: FloatType::F32,
        inputs: 1 << 40,
        weights: 2 << 40,
        ids: 3 << 40,
        output: RawOutput::packed(4 << 40, FloatType::F32),
        chained: true,
    };
    planned.extend([combine::launch(&shape, &combine)]);
    let read = Read {
        data: 1 << 40,
        bytes: 1 << 20,
        sink: 2 << 40,
        sums: false,
    };
    let reads = ReadConfig::candidates(&gpu).into_iter();
    planned.extend(reads.map(|config| config.launch(&read, gpu.multiprocessors)));
    planned.0.into_values().collect()
}

/// Plans a call by all defaults, candidates and batch invariant configs.
fn plan_for(planned: &mut Distinct, call: &Call, gpu: &Gpu) {
    let operands = call.operands();
    for chained in [false, true] {
        let job = Job::new(call.shape(), &operands, gpu).chained(chained);
        for kernel in Kernel::ALL {
            let default = kernel.default_config(&job).ok();
            // Calls with operands of the epilogue may have entry points of their own.
            let biased = call.biased_nowhere();
            let invariant = kernel.batch_invariant_config(&job).ok();
            let all = default.into_iter().chain(kernel.candidates(&job));
            let all = all.chain(invariant);
            let all = all.map(|config| (call, config));
            for (call, config) in default
                .map(|default| (&biased, default))
                .into_iter()
                .chain(all)
            {
                let plan = config.plan(call, gpu, chained).expect("a plan");
                planned.extend(plan.launches().iter().cloned());
            }
        }
    }
}

/// Every entry point that one of these configs takes is in a unit of the architecture, and each entry point of a
/// unit is taken. Plans know how much static shared memory an entry point has, and give it the parameters that it
/// takes.
fn plans_and_units_agree() {
    for arch in ALL.into_iter().chain([CONSUMER]) {
        let mut taken = BTreeSet::new();
        for launch in planned(arch).iter() {
            taken.insert(launch.entry);
            let program = &ptx::entry(launch.entry, arch).program;
            let sized = || program.shared.iter().filter(|v| v.size > 0);
            let start = sized().map(|v| v.address).min().unwrap_or(0);
            let end = sized().map(|v| v.address + v.size).max().unwrap_or(0);
            assert_eq!(
                u64::from(launch.static_shared),
                end - start,
                "{} for {arch}",
                launch.entry
            );
            let maps = bytes_of_maps(launch);
            let of_maps = (maps > 0).then_some(maps);
            let given = of_maps
                .into_iter()
                .chain([launch.parameters.bytes().len() as u64]);
            let expected = program.params.iter().map(|p| p.size);
            assert!(given.eq(expected), "{} for {arch}", launch.entry);
        }
        let units: Vec<_> = ptx::of_arch(arch)
            .map(|unit| ptx::unit(unit, arch))
            .collect();
        let exist: BTreeSet<&str> = units.iter().flat_map(|ptx| ptx::entries(ptx)).collect();
        let unused: Vec<_> = exist.difference(&taken).collect();
        assert!(unused.is_empty(), "for {arch} nothing takes {unused:?}");
        let missing: Vec<_> = taken.difference(&exist).collect();
        assert!(missing.is_empty(), "for {arch} there is no {missing:?}");
    }
}
