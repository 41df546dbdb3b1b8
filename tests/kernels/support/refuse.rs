//! What kernels refuse, and the typed reason: nothing of it needs a GPU.

use nvfp4_gemv::kernel::{Call, Config, Job};
use nvfp4_gemv::{Activation, Gpu, Operands, Refusal, ScaleLayout, Shape};

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
    /// Aligned NVFP4 operands.
    pub(crate) fn new(
        (m, n, k, l): (usize, usize, usize, usize),
        layout: ScaleLayout,
        compute_capability: (i32, i32),
        config: impl Into<Config>,
    ) -> Self {
        Self {
            shape: Shape::new(m, n, k, l).unwrap(),
            operands: Operands::new(Activation::Nvfp4, layout),
            gpu: Gpu::of_compute_capability(compute_capability, IMAGES),
            config: config.into(),
        }
    }

    pub(crate) fn shape(&mut self, m: usize, n: usize, k: usize, l: usize) {
        self.shape = Shape::new(m, n, k, l).unwrap();
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

/// The same, changed in one thing.
pub(crate) type Change = fn(&mut Asked);

fn refusal(valid: &Asked, change: Change) -> (Asked, Refusal) {
    let mut asked = valid.clone();
    change(&mut asked);
    let refused = asked.check().expect_err("changed, and not refused");
    assert!(!refused.to_string().is_empty());
    (asked, refused)
}

/// Where there is nothing to compute, a config that a problem was given launches nothing, and is no error.
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

/// Problems that the kernel refuses, whatever the config: neither a default nor candidates.
pub(crate) fn problems(valid: &Asked, table: &[(Change, Refusal)]) {
    assert_eq!(valid.check(), Ok(()));
    nothing_to_compute(valid);
    for (i, &(change, expected)) in table.iter().enumerate() {
        let (asked, refused) = refusal(valid, change);
        assert_eq!(refused, expected, "line {i}");
        let kernel = asked.config.kernel();
        asked.job(|job| {
            assert_eq!(kernel.available(job), Err(expected), "line {i}");
            assert_eq!(kernel.default_config(job), Err(expected), "line {i}");
            assert!(kernel.candidates(job).is_empty(), "line {i}");
        });
    }
}

/// Configs that the kernel refuses for a problem that it takes, by the field that is wrong and its value.
pub(crate) fn fields(valid: &Asked, table: &[(Change, &str, u32)]) {
    assert_eq!(valid.check(), Ok(()));
    for &(change, expected, expected_value) in table {
        let (asked, refused) = refusal(valid, change);
        match refused {
            Refusal::Field { name, value, takes } => {
                assert_eq!(
                    (name, value),
                    (expected, expected_value),
                    "{:?}",
                    asked.config
                );
                assert!(!takes.is_empty());
            }
            other => panic!("{:?}: {other:?}", asked.config),
        }
        let default = asked.job(|job| asked.config.kernel().default_config(job));
        assert!(default.is_ok(), "{default:?}");
    }
}

/// The config needs so much shared memory as its launches have, and a GPU that has one byte less is refused.
pub(crate) fn shared_memory(valid: &Asked) {
    let plan = valid.config.plan(&valid.call(), &valid.gpu, false).unwrap();
    let of_launches = plan.launches().iter();
    let most = of_launches
        .map(|launch| launch.dynamic_shared + launch.static_shared)
        .max()
        .unwrap();
    let with = |bytes: u32| {
        let mut asked = valid.clone();
        asked.gpu.shared_bytes = bytes;
        asked.check()
    };
    assert_eq!(with(most), Ok(()));
    let refused = Refusal::SharedMemory {
        needed: most.into(),
        available: most - 1,
    };
    assert_eq!(with(most - 1), Err(refused));
}

/// Reasons that several kernels have.
pub(crate) fn too_old(found: (i32, i32), needed: &'static str) -> Refusal {
    Refusal::ComputeCapability { found, needed }
}

pub(crate) fn no_image(compute_capability: (i32, i32), images: &'static str) -> Refusal {
    Refusal::NoKernelImage {
        compute_capability,
        images,
    }
}

pub(crate) fn takes(found: Activation, takes: &'static str) -> Refusal {
    Refusal::Activation { found, takes }
}

pub(crate) const UNALIGNED: Refusal = Refusal::Alignment { needed: 16 };
