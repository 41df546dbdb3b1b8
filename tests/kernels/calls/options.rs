//! Everything that a caller can ask for, as a table: path, kernel, config, tuned file and chained, in every
//! combination. Each combination gives what it asks for, or the error that says why not: on the host, on a device and
//! by address.

use nvfp4_gemv::dispatch::measured::{Chained, Entry, GpuModel, Machine, Measurements, Timed};
use nvfp4_gemv::kernel::{DirectConfig, Job, RingConfig, StreamConfig};
use nvfp4_gemv::{
    Activation, Config, Error, GemvPath, Gpu, Kernel, Operands, Options, Refusal, ScaleLayout,
    Shape, Target, select,
};
use nvfp4_gemv_cli::problem::Problem;

use crate::support::refuse::IMAGES;
use crate::support::sized;

crate::trials! {
    host: on_the_host, on_hopper;
}

const RING: RingConfig = RingConfig {
    chunks: 1,
    groups: 4,
    rows: 2,
    depth: 2,
    cached: true,
    ctas: 3,
    ..RingConfig::DEFAULT
};
const STREAM: StreamConfig = StreamConfig {
    warps: 8,
    stages: 3,
    vectors: 8,
    fetch: 128,
    ctas: 3,
    ..StreamConfig::DEFAULT
};
const DIRECT: DirectConfig = DirectConfig {
    blocks_per_load: 2,
    warps: 2,
    k_split: 1,
    ..DirectConfig::DEFAULT
};
/// Tuned configs of the ring kernel, alone and in chains. None of them is a default.
const TUNED_RING: [RingConfig; 2] = [
    RingConfig { depth: 3, ..RING },
    RingConfig { depth: 5, ..RING },
];
/// Tuned configs of the stream kernel, which was fastest, alone and in chains.
const TUNED_STREAM: [StreamConfig; 2] = [
    StreamConfig { ctas: 5, ..STREAM },
    StreamConfig { ctas: 7, ..STREAM },
];

fn shape() -> Shape {
    Shape::matrix(256, 1024).unwrap()
}

fn operands() -> Operands {
    Operands::new(Activation::Nvfp4, ScaleLayout::Linear)
}

/// Measurements that a caller gives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Given {
    Nothing,
    /// Measurements of this problem on this GPU.
    Right,
    /// Measurements of another problem.
    OtherProblem,
    /// Measurements of another GPU.
    OtherGpu,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
struct Asked {
    path: Option<GemvPath>,
    kernel: Option<Kernel>,
    config: Option<Config>,
    tuned: Given,
    chained: bool,
}

/// The whole table.
fn every() -> Vec<Asked> {
    let paths = [None].into_iter().chain(GemvPath::ALL.map(Some));
    let kernels = [
        None,
        Some(Kernel::Ring),
        Some(Kernel::Direct),
        Some(Kernel::Tcgen05),
    ];
    let configs = [None, Some(RING.into()), Some(DIRECT.into())];
    let given = [
        Given::Nothing,
        Given::Right,
        Given::OtherProblem,
        Given::OtherGpu,
    ];
    let mut every = Vec::new();
    for path in paths {
        for kernel in kernels {
            for config in configs {
                for tuned in given {
                    every.extend([false, true].map(|chained| Asked {
                        path,
                        kernel,
                        config,
                        tuned,
                        chained,
                    }));
                }
            }
        }
    }
    every
}

/// The tables that lines name.
struct Tables {
    right: Measurements,
    other_problem: Measurements,
    other_gpu: Measurements,
}

impl Tables {
    fn new(machine: &Machine) -> Self {
        let timed = |seconds: f64, alone: Config, chained: Config| Timed {
            config: alone,
            seconds,
            chained: Some(Chained {
                config: chained,
                seconds,
            }),
        };
        let entry = |shape| Entry {
            shape,
            operands: operands(),
            ceiling_seconds: 1e-6,
            kernels: vec![
                timed(1e-6, TUNED_STREAM[0].into(), TUNED_STREAM[1].into()),
                timed(2e-6, TUNED_RING[0].into(), TUNED_RING[1].into()),
            ],
        };
        let table = |machine: &Machine, shape| {
            let mut table = Measurements::new(machine.clone(), "a test");
            table.insert(entry(shape));
            table
        };
        let mut other = machine.clone();
        other.gpu.name = "NVIDIA Other".into();
        Self {
            right: table(machine, shape()),
            // So small that no problem is near it.
            other_problem: table(machine, Shape::matrix(1, 16).unwrap()),
            other_gpu: table(&other, shape()),
        }
    }
}

impl Asked {
    fn options<'t>(&self, tables: &'t Tables) -> Options<'t> {
        let options = Options::new()
            .path(self.path)
            .kernel(self.kernel)
            .config(self.config)
            .without_environment();
        let options = match self.tuned {
            Given::Nothing => options,
            Given::Right => options.tuned(&tables.right),
            Given::OtherProblem => options.tuned(&tables.other_problem),
            Given::OtherGpu => options.tuned(&tables.other_gpu),
        };
        match self.chained {
            // SAFETY: weights were copied to the device, and no kernel writes them.
            true => unsafe { options.chained() },
            false => options,
        }
    }

    /// The kernel, which a config implies.
    fn kernel(&self) -> Option<Kernel> {
        self.kernel.or(self.config.map(|config| config.kernel()))
    }

    /// Whether path, kernel and config contradict each other.
    fn contradicts(&self) -> bool {
        let of_config = self.config.map(|config| config.kernel());
        let other_kernel = of_config.is_some() && self.kernel.is_some() && of_config != self.kernel;
        let path = self.kernel().map(Kernel::path);
        other_kernel || path.is_some() && self.path.is_some() && path != self.path
    }

    /// On a Hopper: the config that must be chosen, or only the kernel if its config is the crate's to choose, or the
    /// reason why there is none.
    fn on_hopper(&self, result: &Result<(Kernel, Config), Error>) {
        match result {
            Err(Error::Contradiction { .. }) => assert!(self.contradicts()),
            _ if self.contradicts() => panic!("{self:?}: {result:?}"),
            Err(Error::PathUnavailable {
                path: GemvPath::Cpu,
                reason: Refusal::OperandsOnDevice,
            }) => assert_eq!(self.path, Some(GemvPath::Cpu)),
            _ if self.path == Some(GemvPath::Cpu) => panic!("{self:?}: {result:?}"),
            Err(Error::TunedElsewhere { .. }) => assert_eq!(self.tuned, Given::OtherGpu),
            _ if self.tuned == Given::OtherGpu => panic!("{self:?}: {result:?}"),
            Err(Error::KernelUnavailable {
                kernel: "tcgen05",
                reason: Refusal::ComputeCapability { .. },
            }) => assert_eq!(self.kernel, Some(Kernel::Tcgen05)),
            _ if self.kernel == Some(Kernel::Tcgen05) => panic!("{self:?}: {result:?}"),
            Err(Error::PathUnavailable {
                path: GemvPath::TensorCore,
                reason: Refusal::ComputeCapability { .. },
            }) => assert_eq!(self.path, Some(GemvPath::TensorCore)),
            _ if self.path == Some(GemvPath::TensorCore) => panic!("{self:?}: {result:?}"),
            Err(other) => panic!("{self:?}: {other}"),
            Ok((kernel, config)) => {
                assert_eq!(config.kernel(), *kernel);
                let tuned = usize::from(self.chained);
                match (self.config, self.kernel, self.tuned) {
                    (Some(asked), _, _) => assert_eq!(*config, asked),
                    (None, None, Given::Right) => assert_eq!(*config, TUNED_STREAM[tuned].into()),
                    (None, Some(Kernel::Ring), Given::Right) => {
                        assert_eq!(*config, TUNED_RING[tuned].into());
                    }
                    (None, Some(asked), _) => assert_eq!(*kernel, asked),
                    (None, None, _) => assert_eq!(kernel.path(), GemvPath::CudaCore),
                }
            }
        }
    }
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
        kernels: "0".into(),
    }
}

fn truth(problem: &Problem) -> Vec<f32> {
    let truth = problem.reference().unwrap().y.into_iter();
    truth.map(|y| y as f32).collect()
}

fn on_hopper() {
    let gpu = Gpu::of_compute_capability((9, 0), IMAGES);
    let tables = Tables::new(&machine(&gpu));
    let mut chosen = 0;
    for asked in every() {
        let (shape, operands) = (shape(), operands());
        let options = asked.options(&tables);
        let choice = select(&shape, &operands, Target::Gpu(&gpu), &options);
        let choice = choice.map(|choice| {
            chosen += 1;
            assert!(!choice.reason.to_string().is_empty());
            let config = choice.config.expect("no GPU path without a config");
            assert_eq!(choice.path, config.kernel().path());
            let job = Job::new(&shape, &operands, &gpu).chained(asked.chained);
            assert_eq!(config.check(&job), Ok(()));
            (choice.kernel().unwrap(), config)
        });
        asked.on_hopper(&choice);
    }
    assert!(chosen > 50, "only {chosen}");
}

/// On the host only the CPU path is there. Measurements are of GPUs, and chains are too: they change nothing.
fn on_the_host() {
    use nvfp4_gemv::{Output, PreparedGemv, gemv};
    let tables = Tables::new(&machine(&Gpu::of_compute_capability((9, 0), IMAGES)));
    let problem = Problem::integers(sized(3, 1, 64, 2), 1);
    let (w, x) = (
        problem.weights(ScaleLayout::Linear).unwrap(),
        problem.vectors(ScaleLayout::Linear).unwrap(),
    );
    let (weights, vectors) = (w.view().unwrap(), x.view());
    let truth = truth(&problem);
    let mut computed = 0;
    for asked in every() {
        let (options, shape) = (asked.options(&tables), &problem.shape);
        let mut y = vec![f32::NAN; shape.outputs()];
        let called = gemv(shape, &weights, &vectors, Output::of(&mut y), &options);
        let prepared = PreparedGemv::new(shape, &weights, &options);
        let of_prepared = prepared.as_ref().map(|prepared| *prepared.choice());
        assert_eq!(called, of_prepared.map_err(Clone::clone));
        assert_eq!(called, select(shape, &operands(), Target::Host, &options));
        let gpu_path = match cfg!(feature = "device") {
            true => Refusal::OperandsOnHost,
            false => Refusal::BuiltWithoutCuda,
        };
        match called {
            Ok(choice) => {
                computed += 1;
                assert_eq!((choice.path, choice.config), (GemvPath::Cpu, None));
                assert!(asked.kernel().is_none() && y == truth);
                y.fill(f32::NAN);
                prepared.unwrap().run(&vectors, Output::of(&mut y)).unwrap();
                assert_eq!(y, truth);
                continue;
            }
            Err(Error::Contradiction { .. }) => assert!(asked.contradicts()),
            Err(Error::KernelUnavailable { kernel, reason }) => {
                assert_eq!(asked.kernel().map(Kernel::name), Some(kernel));
                assert_eq!(reason, gpu_path);
            }
            Err(Error::PathUnavailable { path, reason }) => {
                assert_eq!((asked.path, asked.kernel()), (Some(path), None));
                assert_eq!(reason, gpu_path);
            }
            Err(other) => panic!("{asked:?}: {other}"),
        }
        assert!(y.iter().all(|y| y.is_nan()), "refused, and written");
    }
    assert_eq!(
        computed,
        2 * 4 * 2,
        "no path or the CPU's, with any measurements, chained or not"
    );
}

/// The table with calls that launch on a GPU.
#[cfg(feature = "device")]
pub(crate) mod on_a_gpu {
    use nvfp4_gemv::raw::{self, PreparedRawGemv};
    use nvfp4_gemv::{PreparedGemvOnDevice, gemv_on_device, tune};

    use super::*;
    use crate::support::device::{Uploaded, into};
    use crate::support::gpu::Gpu;

    crate::trials! {
        gpu: at_all_levels;
    }

    #[derive(Clone, Copy, Debug)]
    enum Level {
        Call,
        Prepared,
        Address,
        PreparedAddress,
    }

    impl Level {
        const ALL: [Self; 4] = [
            Self::Call,
            Self::Prepared,
            Self::Address,
            Self::PreparedAddress,
        ];
    }

    fn at_all_levels() {
        let gpu = Gpu::first();
        let stream = &gpu.stream;
        let tables = Tables::new(&tune::machine(&gpu.info).unwrap());
        let problem = Problem::integers(shape(), 3);
        let truth = truth(&problem);
        let linear = ScaleLayout::Linear;
        let uploaded = Uploaded::new(&gpu, &problem, linear, linear, false);
        let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
        let shape = problem.shape;
        let mut y = gpu.upload(&vec![f32::NAN; shape.outputs()]);
        let poison = vec![f32::NAN; shape.outputs()];
        let mut launched = 0;
        for asked in every() {
            let options = asked.options(&tables);
            let expected = select(&shape, &operands(), Target::Gpu(&gpu.info), &options);
            if gpu.info.compute_capability.0 == 9 {
                let choice = expected.clone();
                asked.on_hopper(&choice.map(|c| (c.kernel().unwrap(), c.config.unwrap())));
            }
            let by_address = uploaded.call(&gpu, &y);
            for level in Level::ALL {
                stream.memcpy_htod(&poison, &mut y).unwrap();
                let (w, x) = (&weights, &vectors);
                let chosen = match level {
                    Level::Call => gemv_on_device(stream, &shape, w, x, into(&mut y), &options),
                    Level::Prepared => {
                        let y = &mut y;
                        let prepared =
                            PreparedGemvOnDevice::new(stream, &shape, w, x, into(y), &options);
                        prepared.map(|prepared| {
                            prepared.run(stream, w, x, into(y)).unwrap();
                            *prepared.choice()
                        })
                    }
                    // SAFETY: all buffers live until the copy below has waited for the kernel.
                    Level::Address => unsafe {
                        raw::gemv(&by_address, &gpu.info, &options, gpu.handle())
                    },
                    Level::PreparedAddress => {
                        PreparedRawGemv::new(&by_address, &gpu.info, &options).map(|prepared| {
                            // SAFETY: as above.
                            unsafe { prepared.run(gpu.handle()) }.unwrap();
                            *prepared.choice()
                        })
                    }
                };
                assert_eq!(chosen, expected, "{asked:?}, {level:?}");
                let y = stream.clone_dtoh(&y).unwrap();
                match expected {
                    Ok(_) => assert_eq!(y, truth, "{asked:?}, {level:?}"),
                    Err(_) => assert!(y.iter().all(|y| y.is_nan()), "{asked:?}, {level:?}"),
                }
            }
            launched += usize::from(expected.is_ok());
        }
        assert!(launched > 50, "only {launched}");
    }
}
