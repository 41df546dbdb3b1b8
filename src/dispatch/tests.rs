//! Choices: those that are known from before, and why.

use super::measured::{Chained, Entry, GpuModel, Machine, Measurements, Timed};
use super::*;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::kernel::{Config, Job, Kernel};
use crate::operands::{Alignment, Operands};
use crate::refusal::Refusal;
use crate::shape::{Dims, Shape};
use crate::types::{Activation, GemvPath, ScaleLayout, VectorAccuracy};

const IMAGES: &str = "80;90a;100f;120f";
const TILED: ScaleLayout = ScaleLayout::Tiled128x4;

fn gpu(compute_capability: (i32, i32)) -> Gpu {
    Gpu::of_compute_capability(compute_capability, IMAGES)
}

fn h200() -> Gpu {
    Gpu {
        name: "NVIDIA H200".into(),
        ..gpu((9, 0))
    }
}

fn nvfp4(layout: ScaleLayout) -> Operands {
    Operands::new(Activation::Nvfp4, layout)
}

fn options<'a>() -> Options<'a> {
    Options::new().without_environment()
}

fn choose(shape: &Shape, operands: &Operands, gpu: &Gpu, chained: bool) -> Choice {
    let options = options().as_if_chained(chained);
    select(shape, operands, Target::Gpu(gpu), &options).unwrap()
}

/// `choices.tsv` has the choices of the crate when dispatch still ranked paths, and a path's rule picked its kernel:
/// GPU, sizes M,K,L,N, vectors, layout, alignment of the weights, chained, config. Every kernel is there for every GPU
/// that takes it. Whoever changes a rule on purpose changes the lines that it is about.
#[test]
fn choices_are_as_they_were() {
    for line in include_str!("choices.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[on, sizes, activation, layout, align, chained, config] = &fields[..] else {
            panic!("{line}");
        };
        let gpu = match on.split_once('.') {
            Some((major, minor)) => gpu((major.parse().unwrap(), minor.parse().unwrap())),
            None => h200(),
        };
        let sizes: Vec<usize> = sizes.split(',').map(|size| size.parse().unwrap()).collect();
        let shape = Shape::new(Dims {
            m: sizes[0],
            n: sizes[3],
            k: sizes[1],
            l: sizes[2],
        })
        .unwrap();
        let activation = Activation::from_name(activation).unwrap();
        let layout = ScaleLayout::from_name(layout).unwrap();
        let mut operands = Operands::new(activation, layout);
        let codes: u32 = align.parse().unwrap();
        operands.alignment.codes = codes;
        operands.alignment.scales = codes;
        if activation == Activation::Nvfp4 && shape.n() > 1 {
            let row = shape.row_code_bytes().trailing_zeros().min(4);
            operands.alignment.vectors = 1 << row;
        }
        let choice = choose(&shape, &operands, &gpu, chained == "true");
        let expected: Config = serde_json::from_str(config).unwrap();
        assert_eq!(choice.config, Some(expected), "{line}\n{}", choice.reason);
    }
}

#[test]
fn measured_problems_take_what_was_fastest() {
    for table in measured::builtin() {
        of_a_table_the_fastest_is_taken(table);
    }
}

fn of_a_table_the_fastest_is_taken(table: &'static Measurements) {
    let GpuModel {
        name,
        compute_capability,
        multiprocessors,
    } = table.machine.gpu.clone();
    let gpu = Gpu {
        name,
        multiprocessors,
        ..gpu(compute_capability)
    };
    let on = table.machine.gpu.name.as_str();
    for entry in table.entries() {
        let (shape, operands) = (&entry.shape, &entry.operands.with_workspace(u64::MAX));
        let best = &entry.kernels[0];
        let chosen = |chained| choose(shape, operands, &gpu, chained).config.unwrap();
        assert_eq!(chosen(false), best.config);
        let chained = entry.kernels.iter().filter_map(|timed| timed.chained);
        let chained = chained.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let chained = chained.map(|chained| chained.config).or_else(|| {
            let job = Job::new(shape, operands, &gpu).chained(true);
            best.config.in_chain(&job)
        });
        assert_eq!(chosen(true), chained.unwrap());

        let ranked = rank(shape, operands, &gpu, None, false);
        let mut own = Vec::new();
        for one in &ranked {
            let Some(estimate) = one.estimate else {
                continue;
            };
            if estimate.evidence == (Evidence::Measured { on }) {
                own.push((one.kernel, estimate.seconds.unwrap()));
            }
            // A kernel without a time there stands behind the kernel with the best time, and can run.
            if estimate.evidence.is_bound() {
                assert!(one.config.is_ok() && estimate.seconds.unwrap() >= best.seconds);
            }
            assert_ne!(estimate.evidence, Evidence::Modelled);
        }
        let times = entry.kernels.iter();
        let times: Vec<_> = times.map(|one| (one.kernel(), one.seconds)).collect();
        assert_eq!(own, times);
        let first = ranked.iter().find(|one| one.config.is_ok()).unwrap();
        assert_eq!(first.kernel, best.kernel());
    }
}

#[test]
fn other_problems_and_other_hoppers_follow_the_nearest() {
    let shape = Shape::new(Dims {
        m: 4096,
        n: 1,
        k: 7168,
        l: 8,
    })
    .unwrap();
    let h100 = Gpu {
        name: "NVIDIA H100 80GB HBM3".into(),
        ..gpu((9, 0))
    };
    let evidence = |kernel| Evidence::Nearest {
        kernel,
        on: "NVIDIA H200",
        shape,
    };
    for gpu in [gpu((9, 0)), h100] {
        let ranked = rank(&shape, &nvfp4(TILED), &gpu, None, false);
        let (first, why) = (ranked[0].kernel, ranked[0].estimate.unwrap().evidence);
        assert_eq!((first, why), (Kernel::Ring, evidence(Kernel::Ring)));
        assert!(why.to_string().contains("after ring with 4096x7168x8"));
        // The problem's time on the H200 is no time of another model of GPU.
        assert_eq!(ranked[0].estimate.unwrap().seconds, None);
    }
    // Where the ring kernel cannot compute a problem, another kernel does nearly as well.
    let odd = Shape::new(Dims {
        m: 4096,
        n: 1,
        k: 7184,
        l: 8,
    })
    .unwrap();
    let choice = choose(&odd, &nvfp4(ScaleLayout::Linear), &h200(), false);
    assert_eq!(choice.kernel(), Some(Kernel::Stream));
    let says = "not ring: K is 7184, and it needs a multiple of 256";
    assert_eq!(choice.reason.to_string(), says);
}

fn machine(gpu: &Gpu) -> Machine {
    Machine {
        gpu: GpuModel {
            name: gpu.name.clone(),
            compute_capability: gpu.compute_capability,
            multiprocessors: gpu.multiprocessors,
        },
        driver: "13.0".into(),
        crate_version: "0".into(),
        kernels: String::new(),
    }
}

/// A kernel's default, as if it took so long.
fn timed(kernel: Kernel, shape: &Shape, gpu: &Gpu, seconds: f64) -> Timed {
    let operands = nvfp4(TILED);
    let job = Job::new(shape, &operands, gpu);
    Timed {
        config: kernel.default_config(&job).unwrap(),
        seconds,
        chained: None,
    }
}

#[test]
fn tuned_times_go_before_all_others() {
    let (shape, gpu) = (Shape::matrix(4096, 4096).unwrap(), h200());
    let mut tuned = Measurements::new(machine(&gpu), "a test");
    let ring = timed(Kernel::Ring, &shape, &gpu, 2e-6);
    let chained = Config::Ring(match ring.config {
        Config::Ring(config) => crate::kernel::RingConfig { depth: 1, ..config },
        other => panic!("{other:?}"),
    });
    let ring = Timed {
        chained: Some(Chained {
            config: chained,
            seconds: 1.5e-6,
        }),
        ..ring
    };
    let direct = timed(Kernel::Direct, &shape, &gpu, 1.1e-6);
    tuned.insert(Entry {
        shape,
        operands: nvfp4(TILED),
        ceiling_seconds: 1e-6,
        kernels: vec![direct, ring],
    });
    let choose = |shape: &Shape, options: Options<'_>| {
        select(shape, &nvfp4(TILED), Target::Gpu(&gpu), &options).unwrap()
    };
    let with = || options().tuned(&tuned);
    let choice = choose(&shape, with());
    assert_eq!(choice.config, Some(direct.config));
    assert!(choice.reason.to_string().contains("tuned configs"));
    let choice = choose(&shape, with().kernel(Kernel::Ring));
    assert_eq!(choice.config, Some(ring.config));
    // Chained times are compared with chained times, and go before times of launches that wait: `direct` has none,
    // and waits for less.
    let choice = choose(&shape, with().as_if_chained(true));
    assert_eq!(choice.config, Some(chained));
    // `direct` is known to be behind, and the model is not asked.
    let ranked = rank(&shape, &nvfp4(TILED), &gpu, Some(&tuned), true);
    let mut ranked = ranked.iter();
    let there = ranked.find(|one| one.kernel == Kernel::Direct).unwrap();
    let evidence = there.estimate.unwrap().evidence.to_string();
    assert_eq!(evidence, "slower than ring, on this GPU");
    // Operands that are aligned as well are the same ones; not so another problem.
    let mut aligned = nvfp4(TILED);
    aligned.alignment.codes = 16;
    assert!(tuned.find(&shape, &aligned).is_some());
    aligned.alignment.codes = 8;
    assert!(tuned.find(&shape, &aligned).is_none());
    let other = choose(
        &Shape::new(Dims {
            m: 4096,
            n: 1,
            k: 4096,
            l: 2,
        })
        .unwrap(),
        with(),
    )
    .reason;
    assert!(!other.to_string().contains("tuned"), "{other}");
    // The other kernels that were tried on its path were slower.
    let ranked = rank(&shape, &nvfp4(TILED), &gpu, Some(&tuned), false);
    let order: Vec<Kernel> = ranked.iter().map(|one| one.kernel).collect();
    assert_eq!(order[..2], [Kernel::Direct, Kernel::Stream]);
    let evidence = ranked[1].estimate.unwrap().evidence.to_string();
    assert_eq!(evidence, "slower than direct, on this GPU");

    let other = Gpu {
        multiprocessors: 100,
        ..h200()
    };
    let elsewhere = select(&shape, &nvfp4(TILED), Target::Gpu(&other), &with());
    assert!(matches!(elsewhere, Err(Error::TunedElsewhere { .. })));
}

/// Rows that are ragged for stream alone: what stream reaches says nothing of the others, and mma's time does.
#[test]
fn times_say_nothing_of_kernels_that_the_model_expects_to_be_faster() {
    let (shape, gpu) = (Shape::matrix(4096, 4160).unwrap(), h200());
    let mut tuned = Measurements::new(machine(&gpu), "a test");
    let of = |kernel, seconds| timed(kernel, &shape, &gpu, seconds);
    tuned.insert(Entry {
        shape,
        operands: nvfp4(TILED),
        ceiling_seconds: 1e-6,
        kernels: vec![of(Kernel::Stream, 1.1e-6), of(Kernel::Mma, 2e-6)],
    });
    let ranked = rank(&shape, &nvfp4(TILED), &gpu, Some(&tuned), false);
    for kernel in [Kernel::Direct, Kernel::Wgmma] {
        let one = ranked.iter().find(|one| one.kernel == kernel).unwrap();
        let evidence = one.estimate.unwrap().evidence.to_string();
        assert_eq!(evidence, "slower than mma, on this GPU");
    }
}

/// The table of the H200 has the ragged 28672x8208 with as many vectors, where packed cannot run and mma was the
/// fastest.
#[test]
fn what_could_not_run_at_the_nearest_problem_was_not_slower_there() {
    let dims = Dims {
        m: 28672,
        n: 128,
        k: 8192,
        l: 1,
    };
    let shape = Shape::new(dims).unwrap();
    let operands = Operands::new(Activation::Bf16, ScaleLayout::Linear).with_workspace(u64::MAX);
    let ranked = rank(&shape, &operands, &h200(), None, false);
    assert_eq!(ranked[0].kernel, Kernel::Packed);
}

#[test]
fn a_measured_config_that_cannot_run_is_replaced_by_the_default() {
    let (shape, gpu) = (Shape::matrix(4096, 4096).unwrap(), h200());
    let mut tuned = Measurements::new(machine(&gpu), "a test");
    let good = timed(Kernel::Direct, &shape, &gpu, 1e-6);
    let bad = match good.config {
        Config::Direct(config) => crate::kernel::DirectConfig {
            warps: 77,
            ..config
        },
        other => panic!("{other:?}"),
    };
    tuned.insert(Entry {
        shape,
        operands: nvfp4(TILED),
        ceiling_seconds: 1e-6,
        kernels: vec![Timed {
            config: bad.into(),
            ..good
        }],
    });
    let options = options().tuned(&tuned);
    let choice = select(&shape, &nvfp4(TILED), Target::Gpu(&gpu), &options).unwrap();
    assert_eq!(choice.config, Some(good.config));
}

#[test]
fn without_measurements_the_model_decides() {
    let linear = ScaleLayout::Linear;
    for (on, n, layout, kernel) in [
        // Tensor cores take several vectors.
        ((10, 0), 1, TILED, Kernel::Ring),
        ((10, 0), 2, TILED, Kernel::Stream),
        ((10, 0), 3, TILED, Kernel::Tcgen05),
        ((10, 3), 16, TILED, Kernel::Tcgen05),
        ((10, 0), 4, linear, Kernel::Stream),
        ((10, 0), 8, linear, Kernel::Stream),
        ((12, 0), 1, linear, Kernel::Ring),
        ((12, 0), 2, linear, Kernel::Stream),
        ((12, 0), 4, TILED, Kernel::Stream),
        ((12, 0), 9, linear, Kernel::MmaFp4),
        ((12, 1), 128, TILED, Kernel::MmaFp4),
        ((8, 6), 1, linear, Kernel::Stream),
    ] {
        let shape = Shape::new(Dims {
            m: 4096,
            n,
            k: 4096,
            l: 1,
        })
        .unwrap();
        // The tcgen05 kernel divides tiles of so few rows, for which it needs a workspace.
        let operands = nvfp4(layout).with_workspace(u64::MAX);
        let choice = choose(&shape, &operands, &gpu(on), false);
        assert_eq!(choice.kernel(), Some(kernel), "{on:?} n = {n}");
        let reason = choice.reason.to_string();
        // Where the best kernel, of another path, cannot run, its refusal is the reason for the next kernel.
        let says = match on.0 == 10 && n > 2 && layout == linear {
            true => "not tcgen05: the weights' scales are linear",
            false => "(modelled)",
        };
        assert!(reason.contains(says), "{reason}");
    }
    // Kernels that the GPU lacks, or that take no such vectors, have no rank.
    let shape = Shape::new(Dims {
        m: 128,
        n: 3,
        k: 256,
        l: 1,
    })
    .unwrap();
    let bf16 = Operands::new(Activation::Bf16, linear);
    let ranked = rank(&shape, &bf16, &gpu((8, 6)), None, false);
    let (known, others) = ranked.split_at(3);
    for (one, kernel) in known
        .iter()
        .zip([Kernel::Stream, Kernel::Mma, Kernel::Direct])
    {
        assert_eq!((one.kernel, one.estimate.is_some()), (kernel, true));
    }
    for one in others {
        assert!(one.estimate.is_none() && one.config.is_err());
    }
}

#[test]
fn what_cannot_run_says_why() {
    let shape = Shape::matrix(128, 256).unwrap();
    let linear = nvfp4(ScaleLayout::Linear);
    let (turing, spark) = (gpu((7, 5)), gpu((12, 1)));
    let (hopper, blackwell, ampere) = (gpu((9, 0)), gpu((10, 0)), gpu((8, 6)));
    let bare = Gpu::of_compute_capability((9, 0), "");
    let only_hopper = Gpu::of_compute_capability((12, 1), "90a");
    let path = |path| options().path(path);
    for (gpu, options, says) in [
        (
            &turing,
            options(),
            "the cuda-core path is not available: the device has compute capability 7.5, and 8.0",
        ),
        (&only_hopper, options(), "rebuild with NVFP4_GEMV_ARCHS"),
        (&bare, options(), "carries no kernels"),
        (&hopper, path(GemvPath::TensorCore), "10.x is needed"),
        (&blackwell, path(GemvPath::TensorCore), "128x4"),
        (&hopper, path(GemvPath::Cpu), "in device memory"),
        (
            &ampere,
            options().kernel(Kernel::Ring),
            "the ring kernel is not available: the device has compute capability 8.6",
        ),
        (
            &hopper,
            options().kernel(Kernel::Tcgen05),
            "the tcgen05 kernel is not available",
        ),
    ] {
        let error = select(&shape, &linear, Target::Gpu(gpu), &options).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(select(&shape, &linear, Target::Gpu(&spark), &options()).is_ok());
    let because = match cfg!(feature = "device") {
        true => Refusal::OperandsOnHost,
        false => Refusal::BuiltWithoutCuda,
    };
    let host = |options: &Options<'_>| select(&shape, &linear, Target::Host, options);
    let on_gpu = Err(Error::PathUnavailable {
        path: GemvPath::CudaCore,
        reason: because,
    });
    assert_eq!(host(&path(GemvPath::CudaCore)), on_gpu);
    let ring = host(&options().kernel(Kernel::Ring)).unwrap_err();
    let is_refused = matches!(ring, Error::KernelUnavailable { kernel, .. } if kernel == "ring");
    assert!(is_refused, "{ring}");
    let asked = host(&path(GemvPath::Cpu)).unwrap().reason;
    assert_eq!(asked, Reason::Asked { by: Asker::Caller });
    let choice = host(&options()).unwrap();
    assert_eq!((choice.path, choice.kernel()), (GemvPath::Cpu, None));
}

/// A request is taken, with what it implies, or refused; two requests that contradict each other are refused.
#[test]
fn paths_kernels_and_configs_that_are_asked_for() {
    let (shape, gpu) = (Shape::matrix(4096, 4096).unwrap(), h200());
    let operands = nvfp4(TILED);
    let config = |kernel| timed(kernel, &shape, &gpu, 1.0).config;
    fn or_none<T: Copy>(all: &[T]) -> impl Iterator<Item = Option<T>> {
        std::iter::once(None).chain(all.iter().copied().map(Some))
    }
    let kernels = [Kernel::Ring, Kernel::Stream, Kernel::Tcgen05];
    let configs = [config(Kernel::Ring), config(Kernel::Direct)];
    let check = |path: Option<GemvPath>, kernel: Option<Kernel>, config: Option<Config>| {
        let asked = options().path(path).kernel(kernel).config(config);
        let result = select(&shape, &operands, Target::Gpu(&gpu), &asked);
        let of_config = config.map(|config| config.kernel());
        let implied = kernel.or(of_config);
        let contradict = kernel.is_some_and(|kernel| of_config.is_some_and(|of| of != kernel))
            || implied.is_some_and(|kernel| path.is_some_and(|path| path != kernel.path()));
        match result {
            Err(Error::Contradiction { .. }) => assert!(contradict, "{asked:?}"),
            other => {
                assert!(!contradict, "{asked:?}");
                let path = path.or(implied.map(Kernel::path));
                // The GPU has no such tensor cores, and the operands are not on the host.
                match path {
                    Some(GemvPath::Cpu | GemvPath::TensorCore) => {
                        other.unwrap_err();
                    }
                    Some(GemvPath::CudaCore) | None => {
                        let choice = other.unwrap();
                        assert_eq!(choice.kernel(), implied.or(Some(Kernel::Ring)));
                        assert!(config.is_none() || choice.config == config);
                        let is_asked = choice.reason == Reason::Asked { by: Asker::Caller };
                        assert_eq!(is_asked, implied.is_some());
                        let of_path = matches!(choice.reason, Reason::BestOfPath { .. });
                        assert_eq!(of_path, implied.is_none() && path.is_some());
                    }
                }
            }
        }
    };
    for path in or_none(&GemvPath::ALL) {
        for kernel in or_none(&kernels) {
            or_none(&configs).for_each(|config| check(path, kernel, config));
        }
    }
    // A config is checked.
    let asked = options().config(config(Kernel::Ring));
    let short = Shape::matrix(4096, 4112).unwrap();
    let refused = select(&short, &operands, Target::Gpu(&gpu), &asked).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains(r#"{"ring":{"#), "{text}");
    assert!(text.contains("K is 4112, and it needs"), "{text}");
    let Error::Config { reason, .. } = refused else {
        panic!("{refused}");
    };
    assert!(matches!(reason, Refusal::RowLength { .. }), "{reason}");
}

#[test]
fn a_neighbour_is_scaled_as_the_model_says() {
    let gpu = h200();
    // Where batches select their matrix, nine vectors and more are compared by the nearest problem, too.
    let operands = Operands {
        select: true,
        ..nvfp4(TILED)
    };
    let seconds = |shape: Shape| {
        let ranked = rank(&shape, &operands, &gpu, None, false);
        let of = |kernel| {
            let one = ranked.iter().find(|one| one.kernel == kernel).unwrap();
            one.estimate.unwrap()
        };
        assert!(!matches!(of(Kernel::Direct).evidence, Evidence::Modelled));
        of(Kernel::Stream).seconds.unwrap()
    };
    let shape = |n, l| {
        Shape::new(Dims {
            m: 4096,
            n,
            k: 14336,
            l,
        })
        .unwrap()
    };
    // So long vectors go four a pass, and eight of them were measured. One more vector is one more pass, which costs
    // less than a pass of four. Any number of fours is as many passes.
    // What was measured is the best config, what is expected of the others is the default.
    let eight = seconds(shape(8, 1));
    for (n, passes) in [(9, 2.0 + 1.0 / 1.1), (16, 4.0), (20, 5.0)] {
        let reaches = Kernel::Stream.default_reaches(&Job::new(&shape(n, 1), &operands, &gpu));
        let times = seconds(shape(n, 1)) * reaches / eight;
        assert!((times - passes / 2.0).abs() < 1e-9, "{n}: {times}");
    }
    // The nearest problem's time is scaled: twice the bytes take twice as long, but for where CTAs begin.
    let (one, two) = (seconds(shape(7, 40)), seconds(shape(7, 80)));
    assert!((two / one - 2.0).abs() < 0.02, "{one} {two}");
}

/// With sixteen vectors `packed` was measured to be faster than `stream` on large matrices. A kernel without a time at
/// the nearest problem is not put in front of a kernel with one. With eight, `stream` was the fastest of all.
#[test]
fn what_was_slower_at_the_neighbour_is_not_picked_here() {
    // `packed` needs a workspace.
    let operands = Operands::new(Activation::F16, ScaleLayout::Linear).with_workspace(u64::MAX);
    let picked = |m, k, n, gpu: &Gpu| {
        let shape = Shape::new(Dims { m, n, k, l: 1 }).unwrap();
        let choice = choose(&shape, &operands, gpu, false);
        (choice.kernel().unwrap(), choice.reason.to_string())
    };
    for gpu in [h200(), gpu((9, 0))] {
        for (m, k, n, kernel) in [
            (24576, 4096, 16, Kernel::Packed),
            (32768, 4096, 16, Kernel::Packed),
            (5120, 4096, 8, Kernel::Stream),
            (9216, 5120, 8, Kernel::Stream),
            (4096, 4096, 10, Kernel::Stream),
            // `stream` would take two passes: clearly behind.
            (4096, 4096, 17, Kernel::Packed),
        ] {
            let (found, why) = picked(m, k, n, &gpu);
            assert_eq!(found, kernel, "{m}x{k} n={n}: {why}");
            // From nine vectors on kernels count their microseconds.
            assert_eq!(why.contains("after "), n < 9, "{why}");
        }
    }
    let nine = Shape::new(Dims {
        m: 4096,
        n: 9,
        k: 4096,
        l: 1,
    })
    .unwrap();
    let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear).with_workspace(u64::MAX);
    let choice = choose(&nine, &operands, &h200(), false);
    assert_eq!(choice.kernel(), Some(Kernel::Stream), "{}", choice.reason);
    // Nor does a reason ever say that something else is faster.
    for entry in measured::builtin()[0].entries() {
        for n in [3, 5, 9, 12, 17, 24, 33] {
            let (m, k, l) = (entry.shape.m(), entry.shape.k(), entry.shape.l());
            let shape = Shape::new(Dims { m, n, k, l }).unwrap();
            let operands = entry.operands.with_workspace(u64::MAX);
            let why = choose(&shape, &operands, &h200(), false).reason;
            assert!(!why.to_string().contains("slower than"), "{shape}: {why}");
        }
    }
}

/// Problems of all kinds: those of the tables, and others.
fn problems() -> Vec<(Shape, Operands)> {
    let entries = measured::builtin().iter().flat_map(Measurements::entries);
    let own = entries.map(|entry| (entry.shape, entry.operands));
    let others = [(4096, 4096, 1), (1000, 4112, 3), (9216, 5120, 9)];
    let others = others.into_iter().flat_map(|(m, k, n)| {
        let shape = Shape::new(Dims { m, n, k, l: 2 }).unwrap();
        Activation::ALL.map(|activation| (shape, Operands::new(activation, TILED)))
    });
    let with_workspace = |(shape, operands): (Shape, Operands)| {
        [0, u64::MAX].map(|bytes| (shape, operands.with_workspace(bytes)))
    };
    own.chain(others).flat_map(with_workspace).collect()
}

/// Whatever the vectors, the layouts, the alignment and the GPU, some kernel takes the call.
#[test]
fn a_kernel_takes_every_call() {
    let capabilities = [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)];
    for (gpu, n) in capabilities
        .map(gpu)
        .iter()
        .flat_map(|gpu| [1, 4, 16, 64].map(|n| (gpu, n)))
    {
        for (k, activation) in [4096, 4112]
            .into_iter()
            .flat_map(|k| Activation::ALL.map(|a| (k, a)))
        {
            let shape = Shape::new(Dims {
                m: 1000,
                n,
                k,
                l: 2,
            })
            .unwrap();
            for layout in ScaleLayout::ALL {
                for alignment in [Alignment::BEST, Alignment::LEAST] {
                    let operands = Operands {
                        alignment,
                        ..Operands::new(activation, layout)
                    };
                    let choice = choose(&shape, &operands, gpu, n == 4);
                    assert_ne!(choice.path, GemvPath::Cpu);
                }
            }
        }
    }
}

/// Kernels that are known to stand behind are not asked: no choice differs by that.
#[test]
fn the_choice_is_the_first_that_can_run() {
    for gpu in [h200(), gpu((9, 0)), gpu((12, 0))] {
        for (i, (shape, operands)) in problems().into_iter().enumerate() {
            let chained = i % 4 > 1;
            let ranked = rank(&shape, &operands, &gpu, None, chained);
            let mut first = ranked.iter().filter(|one| one.estimate.is_some());
            let best = first.clone().find(|one| one.config.is_ok());
            let choice = choose(&shape, &operands, &gpu, chained);
            assert_eq!(choice.config, best.and_then(|best| best.config.ok()));
            match (choice.reason, first.next().unwrap()) {
                (Reason::Instead { of, because }, first) => {
                    assert_eq!((of, Err(because)), (first.kernel, first.config));
                }
                (Reason::Best { evidence, .. }, first) => {
                    assert_eq!(first.estimate.unwrap().evidence, evidence);
                    assert_eq!(choice.kernel(), Some(first.kernel));
                }
                (other, _) => panic!("{other:?}"),
            }
        }
    }
}

/// A thread that remembers its choices makes the same ones as a thread that has none.
#[test]
fn what_was_chosen_before_changes_nothing() {
    let few: Vec<_> = problems().into_iter().step_by(97).collect();
    let all = || {
        let mut choices = Vec::new();
        for (shape, operands) in &few {
            for gpu in [&h200(), &gpu((9, 0))] {
                for chained in [false, true] {
                    for kernel in [None, Some(Kernel::Stream)] {
                        let asked = options().kernel(kernel).as_if_chained(chained);
                        choices.push(select(shape, operands, Target::Gpu(gpu), &asked));
                    }
                }
            }
        }
        choices
    };
    let again = || (all(), all()).1;
    std::thread::scope(|scope| {
        let (once, twice) = (scope.spawn(all), scope.spawn(again));
        assert_eq!(once.join().unwrap(), twice.join().unwrap());
    });
    // For a few problems the thread remembers the choice, and asks for no other one.
    let (shape, operands) = &few[0];
    let gpu = h200();
    let ask = |options: &Options<'_>| select(shape, operands, Target::Gpu(&gpu), options).unwrap();
    let automatic = ask(&options());
    let config = ask(&options().kernel(Kernel::Stream)).config;
    assert_eq!(ask(&options().config(config)).config, config);
    assert_eq!(ask(&options()), automatic);
}

/// A reason asks for a workspace where that would be used, and nowhere else.
#[test]
fn a_workspace_is_asked_for_where_it_would_be_used() {
    let gpu = h200();
    for (shape, operands) in problems() {
        let choose = |bytes| choose(&shape, &operands.with_workspace(bytes), &gpu, false);
        let (with, without) = (choose(u64::MAX), choose(0));
        let asked_for = match without.reason {
            Reason::Instead {
                of,
                because: Refusal::Workspace { .. },
            } => Some(of),
            _ => None,
        };
        assert!(asked_for.is_none() || asked_for == with.kernel(), "{shape}");
        // Anything else that the best kernel lacks is said first.
        let is_best = matches!(with.reason, Reason::Best { .. });
        if is_best && with.kernel() == Some(Kernel::Packed) {
            assert_eq!(asked_for, with.kernel(), "{shape}: {}", without.reason);
        }
    }
}

#[test]
fn unaligned_operands_have_times_of_their_own() {
    let mut operands = nvfp4(TILED);
    operands.alignment.codes = 8;
    let shape = Shape::matrix(4096, 4096).unwrap();
    let choice = choose(&shape, &operands, &h200(), false);
    assert_eq!(choice.kernel(), Some(Kernel::Stream));
    let reason = choice.reason.to_string();
    assert!(reason.contains("not ring: codes, their strides"));
}

/// One NVFP4 vector in `ring`, where the table of the GPU has rows as long: a large matrix takes what was found for them,
/// one that is far from them does not, and neither does a GPU that has no table.
#[test]
fn matrices_with_rows_as_long_are_followed() {
    let shape = |m| Shape::matrix(m, 5120).unwrap();
    let mut tables = measured::builtin().iter();
    let table = tables
        .find(|table| table.machine.gpu.is_of(&h200()))
        .unwrap();
    let operands = nvfp4(ScaleLayout::Linear);
    for chained in [false, true] {
        let timed = table.find(&shape(25600), &operands);
        let timed = timed.and_then(|entry| entry.of(Kernel::Ring)).unwrap();
        let found = match chained {
            true => timed.chained.unwrap().config,
            false => timed.config,
        };
        // 34816 rows are .44 octaves from 25600, and .56 from 51200.
        let of = |gpu: &Gpu, m| choose(&shape(m), &operands, gpu, chained).config.unwrap();
        assert_eq!(of(&h200(), 34816), found, "{chained}");
        assert_ne!(of(&gpu((9, 0)), 34816), found, "{chained}");
        assert_ne!(of(&h200(), 150_000), found, "{chained}");
    }
}

/// By hand. What is asked for in advance is 48 KiB or more where that is possible: 5120x17408 has units of 34 KiB. Groups
/// share the units evenly, and each has two or more. GPUs that were not measured have what they had.
#[test]
fn what_the_rule_of_ring_takes() {
    let ring = |m, k, gpu: &Gpu, chained, workspace| {
        let shape = Shape::matrix(m, k).unwrap();
        let operands = nvfp4(ScaleLayout::Linear).with_workspace(workspace);
        let job = Job::new(&shape, &operands, gpu).chained(chained);
        match Kernel::Ring.default_config(&job).unwrap() {
            Config::Ring(one) => [
                one.chunks,
                one.groups,
                one.rows,
                one.depth,
                one.ctas,
                one.counted,
            ],
            other => panic!("{other:?}"),
        }
    };
    let (hopper, other) = (gpu((9, 0)), gpu((10, 0)));
    assert_eq!(ring(5120, 17408, &hopper, false, 0), [2, 1, 1, 2, 132, 0]);
    assert_eq!(ring(5120, 17408, &other, false, 0)[3], 1);
    assert_eq!(ring(16384, 3072, &hopper, false, 0), [1, 5, 2, 2, 132, 0]);
    // 4 units a CTA: two turns of two groups.
    assert_eq!(ring(2048, 8192, &hopper, false, 0), [2, 2, 1, 2, 132, 0]);
    assert_eq!(ring(43008, 5376, &hopper, false, 0), [2, 3, 1, 2, 132, 0]);
    assert_eq!(
        ring(43008, 5376, &hopper, false, u64::MAX),
        [2, 3, 2, 2, 132, 4]
    );
    // In a chain: 84 KiB, so that a CTA of the next launch has room. Large matrices fill their rings further.
    assert_eq!(ring(2048, 7168, &hopper, true, 0), [2, 2, 1, 3, 132, 0]);
    assert_eq!(ring(36864, 7168, &hopper, true, 0), [2, 4, 2, 2, 132, 0]);
}

/// Late ids keep weights from being asked for before the wait: what is the fastest in chains is not asked then.
#[test]
fn chained_calls_with_late_ids_take_what_waits() {
    let gpu = h200();
    let mut differ = 0;
    for (m, k, l) in [
        (1536, 2048, 8),
        (2048, 768, 8),
        (7168, 2048, 8),
        (4096, 14336, 2),
    ] {
        let shape = Shape::new(Dims { m, n: 1, k, l }).unwrap();
        let with = |late| Operands {
            select: true,
            matrices: l,
            distinct: true,
            late,
            ..nvfp4(ScaleLayout::Linear)
        };
        let isolated = choose(&shape, &with(false), &gpu, false).config;
        assert_eq!(choose(&shape, &with(true), &gpu, false).config, isolated);
        let late = choose(&shape, &with(true), &gpu, true).config;
        // Experts of few rows have more warps, and sums of the same order: `late_ids_have_more_warps`.
        let but_warps = |config: Option<Config>| match config {
            Some(Config::Ring(config)) => Some(Config::Ring(crate::kernel::RingConfig {
                groups: 0,
                depth: 0,
                ..config
            })),
            other => other,
        };
        match m {
            ..=2048 => assert_eq!(but_warps(late), but_warps(isolated)),
            _ => assert_eq!(late, isolated),
        }
        differ += usize::from(choose(&shape, &with(false), &gpu, true).config != isolated);
    }
    assert!(differ > 0);
}

/// What decides the order of a config's sums, for every number of vectors: where nothing of it differs, neither do
/// bits.
fn order_of_sums(config: &Config, shape: &Shape) -> String {
    let spans = shape.k().div_ceil(256);
    match config {
        // Parts of a chunk: each CTA has one, or all groups have one.
        Config::Packed(one) => {
            assert!(one.long_sums);
            let groups = shape.m().div_ceil(16 * one.warps as usize) * shape.l();
            let parts = spans.div_ceil(one.chunk as usize);
            assert!(parts == 1 || groups * parts == one.ctas as usize, "{one:?}");
            format!("parts of {}", one.chunk)
        }
        Config::Stream(one) => {
            assert!(one.part != 0 && one.part as usize <= spans);
            format!("parts of {}", one.part)
        }
        // Each step is added by itself, in the order of K.
        Config::Mma(one) if (one.parts, one.cluster) == (1, 1) => "mma".into(),
        Config::Mma(one) => format!("mma {} {} {}", one.parts, one.chunk, one.cluster),
        Config::Wgmma(one) => format!("wgmma {} {} {}", one.parts, one.chunk, one.cluster),
        other => panic!("{other:?}"),
    }
}

/// Whatever the number of vectors, their layout and alignment, and the workspace, as long as it is enough; and whatever
/// was measured.
#[test]
fn the_order_of_batch_invariant_sums_does_not_depend_on_the_vectors() {
    const N: [usize; 15] = [1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 300];
    let (mut differ, mut together) = (0, 0);
    for gpu in [
        h200(),
        gpu((9, 0)),
        gpu((8, 0)),
        gpu((8, 9)),
        gpu((10, 0)),
        gpu((12, 0)),
    ] {
        for (m, k, l) in [
            (1024, 4096, 1),
            (4096, 4096, 1),
            (6144, 4096, 1),
            (28672, 8192, 1),
            (4096, 14336, 1),
            (7168, 2048, 4),
            (1000, 4112, 3),
            (1, 64, 1),
        ] {
            for activation in [Activation::Nvfp4, Activation::F16, Activation::Bf16] {
                for layout in ScaleLayout::ALL {
                    let choice = |n, invariant| {
                        let shape = Shape::new(Dims { m, n, k, l }).unwrap();
                        let mut operands =
                            Operands::new(activation, layout).with_workspace(1 << 40);
                        if activation == Activation::Nvfp4 {
                            operands.vector_layout = ScaleLayout::ALL[n % 2];
                            operands.alignment.vectors = 1 << (n % 5);
                        }
                        let options = options().batch_invariant(invariant);
                        let options = options.as_if_chained(n % 3 == 0);
                        select(&shape, &operands, Target::Gpu(&gpu), &options).unwrap()
                    };
                    let first = choice(1, true);
                    assert_eq!(first.reason, Reason::BatchInvariant);
                    let shape = Shape::new(Dims { m, n: 1, k, l }).unwrap();
                    let configs = N.map(|n| choice(n, true).config.unwrap());
                    let orders = configs.map(|config| order_of_sums(&config, &shape));
                    let kernels = configs.map(|config| config.kernel());
                    together += usize::from(kernels.contains(&Kernel::Stream));
                    let same = |order: &String| *order == orders[0];
                    assert!(
                        orders.iter().all(same),
                        "{m}x{k}x{l} {activation}: {orders:?}"
                    );
                    let free = N.map(|n| choice(n, false).config);
                    differ += usize::from(free.iter().any(|config| *config != free[0]));
                }
            }
        }
    }
    // Otherwise this test tests nothing.
    assert!(differ > 200, "{differ}");
    assert!(together >= 60, "{together}");
}

/// A config of `packed` whose sums are short for few vectors is none; a table knows such configs.
#[test]
fn what_cannot_be_batch_invariant_is_refused() {
    let (shape, gpu) = (Shape::matrix(4096, 4096).unwrap(), h200());
    let of = |operands: Operands, options: Options<'_>| {
        let options = options.batch_invariant(true);
        select(&shape, &operands, Target::Gpu(&gpu), &options)
    };
    let refusal = |result: Result<Choice, Error>| match result.unwrap_err() {
        Error::KernelUnavailable { reason, .. }
        | Error::PathUnavailable { reason, .. }
        | Error::Config { reason, .. } => reason,
        other => panic!("{other}"),
    };
    let enough = nvfp4(ScaleLayout::Linear).with_workspace(u64::MAX);
    let not = Refusal::BatchInvariant;
    // No other kernel takes what lacks a workspace, but for few vectors, which need none.
    let without = options().kernel(Kernel::Packed);
    let without = refusal(of(nvfp4(ScaleLayout::Linear), without));
    assert!(matches!(without, Refusal::Workspace { .. }), "{without}");
    let few = of(nvfp4(ScaleLayout::Linear), options()).unwrap();
    assert_eq!(few.kernel(), Some(Kernel::Stream));
    let select = Operands {
        select: true,
        ..enough
    };
    let f32 = Operands::new(Activation::F32, ScaleLayout::Linear).with_workspace(u64::MAX);
    for operands in [select, f32] {
        assert_eq!(refusal(of(operands, options())), not, "{operands:?}");
    }
    for kernel in [Kernel::Ring, Kernel::Direct] {
        assert_eq!(refusal(of(enough, options().kernel(kernel))), not);
    }
    let cores = refusal(of(enough, options().path(GemvPath::TensorCore)));
    assert!(
        matches!(cores, Refusal::ComputeCapability { .. }),
        "{cores}"
    );
    for kernel in [Kernel::Packed, Kernel::Wgmma, Kernel::Mma, Kernel::Stream] {
        let choice = of(enough, options().kernel(kernel)).unwrap();
        assert_eq!(choice.kernel(), Some(kernel));
        let again = of(enough, options().config(choice.config)).unwrap();
        assert_eq!(again.config, choice.config);
        assert_eq!(again.reason, Reason::Asked { by: Asker::Caller });
    }
    let job = Job::new(&shape, &enough, &gpu);
    for kernel in [Kernel::Packed, Kernel::Stream] {
        let short = kernel.default_config(&job).unwrap();
        assert_eq!(refusal(of(enough, options().config(short))), not);
    }
    // A file that knows the problem is not asked.
    let table = &measured::builtin()[0];
    let tuned = of(enough, options().tuned(table)).unwrap();
    assert_eq!(tuned.reason, Reason::BatchInvariant);
    let host = super::select(
        &shape,
        &enough,
        Target::Host,
        &options().batch_invariant(true),
    );
    assert_eq!(host.unwrap().path, GemvPath::Cpu);
}

/// Calls of mixtures of experts: tokens that share experts are bundled, where that spares enough and there is a
/// workspace; ids that are all distinct, as those of one token, are not.
#[test]
fn batches_that_share_matrices_are_bundled() {
    let of = |tokens: usize, workspace, distinct, (m, k): (usize, usize), chained| {
        let l = 8 * tokens;
        let shape = Shape::new(Dims { m, n: 1, k, l }).unwrap();
        let operands = Operands {
            select: true,
            matrices: 128,
            distinct,
            late: true,
            ..nvfp4(ScaleLayout::Linear).with_workspace(workspace)
        };
        choose(&shape, &operands, &h200(), chained)
    };
    let bundles = |choice: &Choice| match choice.config {
        Some(Config::Packed(config)) => config.bundle.then_some(config.vectors),
        _ => None,
    };
    // Two layers of Qwen3-30B-A3B.
    for layer in [(1536, 2048), (2048, 768)] {
        for chained in [false, true] {
            let choice = of(16, u64::MAX, false, layer, chained);
            assert_eq!(bundles(&choice), Some(8));
            assert!(choice.reason.to_string().contains("are read once"));
            // 512 batches have 126 of 128 matrices, four each; 4096 have 32 each.
            let vectors =
                [64, 512].map(|tokens| bundles(&of(tokens, u64::MAX, false, layer, chained)));
            assert_eq!(vectors, [Some(8), Some(64)]);
            for (tokens, workspace, distinct) in [
                (1, u64::MAX, false),
                (4, u64::MAX, false),
                (16, 0, false),
                (16, 1 << 20, false),
                (16, u64::MAX, true),
                // More batches than a launch bundles.
                (513, u64::MAX, false),
            ] {
                let choice = of(tokens, workspace, distinct, layer, chained);
                assert_eq!(bundles(&choice), None, "{tokens} tokens, {choice:?}");
            }
        }
    }
}

/// One token of Qwen3-30B-A3B, whose ids the launch before writes: sixteen warps of a multiprocessor multiply, in CTAs as
/// many as without, and in the same order of sums. A layer takes 15% less time on an H200.
#[test]
fn late_ids_have_more_warps() {
    let of = |(m, k), late| {
        let shape = Shape::new(Dims { m, n: 1, k, l: 8 }).unwrap();
        let operands = Operands {
            select: true,
            matrices: 128,
            distinct: true,
            late,
            ..nvfp4(ScaleLayout::Linear)
        };
        match choose(&shape, &operands, &h200(), late).config {
            Some(Config::Ring(config)) => config,
            other => panic!("{other:?}"),
        }
    };
    for (layer, before, after) in [
        ((1536, 2048), (8, 2), (16, 2)),
        ((2048, 768), (4, 4), (8, 3)),
    ] {
        let (usual, late) = (of(layer, false), of(layer, true));
        assert_eq!((usual.groups, usual.depth), before);
        let expected = crate::kernel::RingConfig {
            groups: after.0,
            depth: after.1,
            ..usual
        };
        assert_eq!(late, expected);
    }
}

/// Vectors of several digits go to tensor cores that multiply NVFP4 vectors, and to the CPU. Everywhere else the refusal
/// names them.
#[test]
fn digits_are_for_tensor_cores() {
    let dims = Dims {
        m: 4096,
        n: 2,
        k: 4096,
        l: 1,
    };
    let shape = Shape::new(dims).unwrap();
    let operands = Operands {
        digits: 3,
        ..nvfp4(TILED).with_workspace(u64::MAX)
    };
    let options = options();
    let select = |gpu: &Gpu| select(&shape, &operands, Target::Gpu(gpu), &options);
    for (capability, images, kernel) in [
        ((10, 0), "100f", Kernel::Tcgen05),
        ((12, 0), "120f", Kernel::MmaFp4),
    ] {
        let choice = select(&Gpu::of_compute_capability(capability, images)).unwrap();
        assert_eq!(choice.kernel(), Some(kernel));
    }
    // Digits that no vector has are refused everywhere.
    for digits in [0, 6, 64] {
        let operands = Operands { digits, ..operands };
        let b200 = gpu((10, 0));
        let why = Kernel::Tcgen05.available(&Job::new(&shape, &operands, &b200));
        assert!(matches!(why, Err(Refusal::Digits { .. })), "{why:?}");
    }
    let h100 = Gpu::of_compute_capability((9, 0), "90a");
    let error = select(&h100).unwrap_err().to_string();
    assert!(error.contains("the vectors have 3 digits each"), "{error}");
    for &kernel in Kernel::ALL {
        let why = kernel.available(&Job::new(&shape, &operands, &h100));
        let tensor = matches!(kernel, Kernel::Tcgen05 | Kernel::MmaFp4);
        assert_eq!(
            tensor,
            !matches!(why, Err(Refusal::Digits { digits: 3, .. })),
            "{kernel}"
        );
    }
}

/// With 9 to 32 vectors the nearest problem of a table does not say what launches, ends of tiles and vectors cost. Kernels
/// count that; without, `stream` took all of the first problem's 16 tiles of two steps, at 1.7 times the time of `packed`,
/// and `packed` with its three launches the second one, at 1.4 times that of `stream`.
#[test]
fn many_vectors_are_compared_by_times_where_no_table_has_the_problem() {
    let h100 = Gpu {
        name: "NVIDIA H100 80GB HBM3".into(),
        ..gpu((9, 0))
    };
    let problem = |m, n, k, activation, chained| {
        let shape = Shape::new(Dims { m, n, k, l: 1 }).unwrap();
        let operands = Operands::new(activation, ScaleLayout::Linear).with_workspace(u64::MAX);
        let choice = choose(&shape, &operands, &h100, chained);
        (choice.config.unwrap().kernel(), choice.reason)
    };
    let (few, reason) = problem(32768, 16, 512, Activation::Bf16, true);
    assert_eq!(few, Kernel::Packed, "{reason}");
    let evidence = Evidence::Modelled;
    assert!(matches!(reason, Reason::Best { evidence: found, .. } if found == evidence));
    assert_eq!(
        problem(1536, 11, 1024, Activation::Nvfp4, false).0,
        Kernel::Stream
    );
    // One wave of `wgmma`, whose 16 warps share the K of 64 rows.
    assert_eq!(
        problem(8192, 12, 8192, Activation::Bf16, true).0,
        Kernel::Wgmma
    );
    // Large matrices are for the kernel that decodes each weight once, and deals work evenly.
    assert_eq!(
        problem(43008, 16, 5376, Activation::Bf16, false).0,
        Kernel::Packed
    );
    // Nothing to compute has a choice, too.
    problem(0, 16, 4096, Activation::F16, false);
    // A kernel that lacks only a workspace is still named.
    let shape = Shape::new(Dims {
        m: 34816,
        n: 16,
        k: 5120,
        l: 1,
    })
    .unwrap();
    let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
    let reason = choose(&shape, &operands, &h100, false).reason;
    assert!(
        matches!(
            reason,
            Reason::Instead {
                of: Kernel::Packed,
                ..
            }
        ),
        "{reason}"
    );
}

/// What a caller who allows digits gets, of f16 vectors.
fn with_accuracy(
    n: usize,
    workspace: u64,
    gpu: &Gpu,
    options: Options<'_>,
) -> crate::Result<Choice> {
    let shape = Shape::new(Dims {
        m: 7168,
        n,
        k: 16384,
        l: 1,
    })?;
    let operands = Operands::new(Activation::F16, TILED).with_workspace(workspace);
    select(&shape, &operands, Target::Gpu(gpu), &options)
}

/// Where digits are allowed, f16 vectors go to FP4 tensor cores if these are expected to be faster, and nowhere else.
#[test]
fn digits_are_made_where_they_are_allowed_and_faster() {
    let (b200, rtx, h100) = (gpu((10, 0)), gpu((12, 0)), gpu((9, 0)));
    let of = |accuracy| options().vector_accuracy(accuracy);
    for accuracy in VectorAccuracy::ALL {
        for n in [16, 25] {
            let choice = with_accuracy(n, u64::MAX, &b200, of(accuracy)).unwrap();
            let kernel = choice.kernel().unwrap();
            assert_eq!(choice.digits, accuracy.digits(), "{choice:?}");
            assert_eq!(
                kernel == Kernel::Tcgen05,
                choice.digits.is_some(),
                "{choice:?}"
            );
        }
        // Nobody multiplies digits there.
        let choice = with_accuracy(16, u64::MAX, &h100, of(accuracy)).unwrap();
        assert_eq!(
            choice,
            with_accuracy(16, u64::MAX, &h100, options()).unwrap()
        );
        // Without a place for digits vectors are multiplied as they are.
        let choice = with_accuracy(16, 0, &b200, of(accuracy)).unwrap();
        assert_eq!(choice.digits, None);
    }
    let bf16 = of(VectorAccuracy::Bf16);
    let choice = with_accuracy(32, u64::MAX, &rtx, bf16).unwrap();
    assert_eq!(
        (choice.kernel(), choice.digits),
        (Some(Kernel::MmaFp4), Some(3))
    );
    // Where the model sees no gain, vectors stay as they are: one vector, whose digits take a launch more.
    assert_eq!(with_accuracy(1, u64::MAX, &rtx, bf16).unwrap().digits, None);
    // Rows that do not depend on others come from other kernels.
    let choice = with_accuracy(16, u64::MAX, &b200, bf16.batch_invariant(true)).unwrap();
    assert_eq!(choice.digits, None);
}

/// A path or kernel that takes NVFP4 vectors alone gets digits, or says why not: never other vectors than were allowed.
#[test]
fn asking_for_tensor_cores_asks_for_digits() {
    let (b200, h100) = (gpu((10, 0)), gpu((9, 0)));
    let allowed = options().vector_accuracy(VectorAccuracy::F16);
    for ask in [
        allowed.path(GemvPath::TensorCore),
        allowed.kernel(Kernel::Tcgen05),
    ] {
        let choice = with_accuracy(1, u64::MAX, &b200, ask).unwrap();
        assert_eq!(
            (choice.kernel(), choice.digits),
            (Some(Kernel::Tcgen05), Some(4))
        );
        let error = with_accuracy(1, 0, &b200, ask).unwrap_err().to_string();
        assert!(error.contains("workspace"), "{error}");
        let error = with_accuracy(1, u64::MAX, &h100, ask)
            .unwrap_err()
            .to_string();
        assert!(error.contains("compute capability 9.0"), "{error}");
    }
    // 43 vectors of three digits are more than a pass, and not divided.
    let bf16 = options().vector_accuracy(VectorAccuracy::Bf16);
    let error = with_accuracy(43, u64::MAX, &b200, bf16.kernel(Kernel::Tcgen05)).unwrap_err();
    assert!(
        error.to_string().contains("vectors of 3 or 5 digits"),
        "{error}"
    );
    assert_eq!(
        with_accuracy(43, u64::MAX, &b200, bf16).unwrap().digits,
        None
    );
    // Nothing allowed, nothing made.
    let ask = options().kernel(Kernel::Tcgen05);
    let error = with_accuracy(1, u64::MAX, &b200, ask).unwrap_err();
    assert!(error.to_string().contains("f16"), "{error}");
}

/// As much workspace as `workspace_bytes` says is enough, and no less is.
#[test]
fn digits_have_their_place_in_the_workspace() {
    for n in [1, 9, 25] {
        let shape = Shape::new(Dims {
            m: 7168,
            n,
            k: 2080,
            l: 3,
        })
        .unwrap();
        let operands = Operands::new(Activation::Bf16, TILED);
        let b200 = gpu((10, 0));
        let options = options()
            .vector_accuracy(VectorAccuracy::Finest)
            .kernel(Kernel::Tcgen05);
        let needed = workspace_bytes(&shape, &operands, &b200, &options).unwrap();
        let with = |bytes| {
            let operands = operands.with_workspace(bytes);
            select(&shape, &operands, Target::Gpu(&b200), &options)
        };
        let most = with(u64::MAX).unwrap();
        assert_eq!(with(needed).unwrap(), most);
        assert_ne!(with(needed - 1).ok(), Some(most));
        let error = with(100).unwrap_err();
        let Error::KernelUnavailable {
            reason: Refusal::Workspace { needed, given: 100 },
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_ne!(
            with(needed),
            Err(error),
            "what an error asks for is more than what it was"
        );
    }
}
