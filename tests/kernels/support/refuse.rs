//! Problems and configs that kernels refuse, with the typed reasons. Nothing here needs a GPU.

use nvfp4_gemv::kernel::{Call, Config, Job};
use nvfp4_gemv::{Activation, Gpu, Operands, Refusal, ScaleLayout, Shape};

use super::fields;

/// Demands that the module's `refusal` of a change is this error, or `like` a pattern.
#[macro_export]
macro_rules! refuses {
    (|$c:ident| $change:expr => like $error:pat $(if $also:expr)?) => {
        let error = refusal(|$c| $change);
        assert!(matches!(error, $error $(if $also)?), "{error}");
    };
    (|$c:ident| $change:expr => $error:expr) => {
        assert_eq!(refusal(|$c| $change), $error);
    };
}

/// Every architecture that a build carries unless it is told otherwise.
pub(crate) const IMAGES: &str = "80;90a;100f;120f";

/// A config for a problem on a GPU.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) shape: Shape,
    pub(crate) operands: Operands,
    pub(crate) gpu: Gpu,
    pub(crate) config: Config,
}

impl Asked {
    /// A config for a problem with aligned NVFP4 operands.
    pub(crate) fn new(
        (m, n, k, l): (usize, usize, usize, usize),
        layout: ScaleLayout,
        compute_capability: (i32, i32),
        config: impl Into<Config>,
    ) -> Self {
        Self {
            shape: super::sized(m, n, k, l),
            operands: Operands::new(Activation::Nvfp4, layout).with_workspace(u64::MAX),
            gpu: Gpu::of_compute_capability(compute_capability, IMAGES),
            config: config.into(),
        }
    }

    pub(crate) fn shape(&mut self, m: usize, n: usize, k: usize, l: usize) {
        self.shape = super::sized(m, n, k, l);
    }

    pub(crate) fn job<T>(&self, ask: impl FnOnce(&Job<'_>) -> T) -> T {
        ask(&Job::new(&self.shape, &self.operands, &self.gpu))
    }

    /// The problem at addresses where no memory is.
    fn call(&self) -> Call {
        let Operands {
            activation,
            weight_layout,
            ..
        } = self.operands;
        Call::nowhere(&self.shape, activation, weight_layout, 32)
    }

    pub(crate) fn check(&self) -> Result<(), Refusal> {
        self.job(|job| self.config.check(job))
    }
}

/// A change that makes a kernel refuse a problem, and the reason.
pub(crate) type Problem = (Box<dyn Fn(&mut Asked)>, Refusal);

pub(crate) fn problem(change: impl Fn(&mut Asked) + 'static, why: Refusal) -> Problem {
    (Box::new(change), why)
}

pub(crate) fn shape((m, n, k, l): (usize, usize, usize, usize), why: Refusal) -> Problem {
    problem(move |asked| asked.shape(m, n, k, l), why)
}

pub(crate) fn gpu(found: (i32, i32), needed: &'static str) -> Problem {
    let why = Refusal::ComputeCapability { found, needed };
    problem(move |asked| asked.gpu.compute_capability = found, why)
}

pub(crate) fn images(compute_capability: (i32, i32), images: &'static str) -> Problem {
    let change = move |asked: &mut Asked| {
        asked.gpu.compute_capability = compute_capability;
        asked.gpu.images = images;
    };
    let why = Refusal::NoKernelImage {
        compute_capability,
        images,
    };
    problem(change, why)
}

pub(crate) fn activation(found: Activation, takes: &'static str) -> Problem {
    let change = move |asked: &mut Asked| {
        let operands = Operands::new(found, asked.operands.weight_layout);
        asked.operands = operands.with_workspace(asked.operands.workspace);
    };
    problem(change, Refusal::Activation { found, takes })
}

pub(crate) const UNALIGNED: Refusal = Refusal::Alignment { needed: 16 };

/// Demands that a problem with nothing to compute launches nothing and is no error, with any config.
fn nothing_to_compute(valid: &Asked) {
    let [m, n, k, l] = [Shape::m, Shape::n, Shape::k, Shape::l].map(|size| size(&valid.shape));
    for (m, l) in [(0, l), (m, 0), (0, 0)] {
        let mut asked = valid.clone();
        asked.shape(m, n, k, l);
        assert_eq!(asked.check(), Ok(()), "{m} {l}");
        let kernel = asked.config.kernel();
        asked.job(|job| {
            assert_eq!(kernel.available(job), Ok(()));
            let default = kernel.default_config(job).unwrap();
            for config in kernel
                .candidates(job)
                .into_iter()
                .chain([default, asked.config])
            {
                let plan = config.plan(&asked.call(), &asked.gpu, true).unwrap();
                assert!(plan.launches().is_empty(), "{m} {l} {config:?}");
            }
        });
    }
}

impl Asked {
    fn refusal(&self, change: impl FnOnce(&mut Asked)) -> (Asked, Refusal) {
        let mut asked = self.clone();
        change(&mut asked);
        let refused = asked.check().expect_err("changed, and not refused");
        assert!(!refused.to_string().is_empty());
        (asked, refused)
    }

    /// Demands that the kernel refuses these problems, whatever the config: it has no default and no candidates for
    /// them.
    pub(crate) fn refuses_problems(&self, table: &[Problem]) {
        assert_eq!(self.check(), Ok(()));
        nothing_to_compute(self);
        for (i, (change, expected)) in table.iter().enumerate() {
            let (asked, refused) = self.refusal(change);
            assert_eq!(refused, *expected, "line {i}");
            let kernel = asked.config.kernel();
            asked.job(|job| {
                assert_eq!(kernel.available(job), Err(*expected), "line {i}");
                assert_eq!(kernel.default_config(job), Err(*expected), "line {i}");
                assert!(kernel.candidates(job).is_empty(), "line {i}");
            });
        }
    }

    /// Demands that the kernel refuses these values of fields.
    pub(crate) fn refuses_fields(&self, table: &[(&str, &[u32])]) {
        for &(name, values) in table {
            for &value in values {
                self.refuses_field(name, value, |_| ());
            }
        }
    }

    /// Demands that the kernel refuses a field's value for a changed problem, but takes the changed problem itself.
    pub(crate) fn refuses_field(&self, name: &str, value: u32, change: impl FnOnce(&mut Asked)) {
        assert_eq!(self.check(), Ok(()));
        let (asked, refused) = self.refusal(|asked| {
            change(asked);
            fields::set(&mut asked.config, name, value);
        });
        match refused {
            Refusal::Field {
                name: of,
                value: found,
                takes,
            } => {
                assert_eq!((of, found), (name, value), "{:?}", asked.config);
                assert!(!takes.is_empty());
            }
            other => panic!("{:?}: {other:?}", asked.config),
        }
        let default = asked.job(|job| asked.config.kernel().default_config(job));
        assert!(default.is_ok(), "{default:?}");
    }

    /// Demands that the config needs exactly the shared memory of its launches: a GPU with one byte less is refused.
    pub(crate) fn needs_its_shared_memory(&self) {
        let with = |bytes: u32| {
            let mut asked = self.clone();
            asked.gpu.shared_bytes = bytes;
            asked
        };
        // Some kernels use more shared memory if the GPU has more. The refusal of a GPU that has too little names the
        // least.
        let gpu = match with(0).check() {
            Err(Refusal::SharedMemory { needed, .. }) => with(needed as u32).gpu,
            _ => self.gpu.clone(),
        };
        let plan = self.config.plan(&self.call(), &gpu, false).unwrap();
        let of_launches = plan.launches().iter();
        let most = of_launches
            .map(|launch| launch.dynamic_shared + launch.static_shared)
            .max()
            .unwrap();
        assert_eq!(with(most).check(), Ok(()));
        let refused = Refusal::SharedMemory {
            needed: most.into(),
            available: most - 1,
        };
        assert_eq!(with(most - 1).check(), Err(refused));
    }
}
