//! The GPU kernels, one module each. A module has the kernel's configs, requirements, default, candidates, error bound
//! and launch plan. Modules are plain data and arithmetic: no CUDA, no device.

mod call;
pub mod combine;
mod direct;
mod expected;
#[cfg(test)]
mod extremes;
mod many_vectors;
mod mma;
mod mma_fp4;
mod packed;
#[cfg(feature = "unstable")]
pub mod params;
#[cfg(not(feature = "unstable"))]
pub(crate) mod params;
pub mod plan;
pub mod quantize;
#[cfg(feature = "unstable")]
pub mod read_only;
#[cfg(not(feature = "unstable"))]
#[allow(dead_code, unreachable_pub, reason = "public with feature `unstable`")]
pub(crate) mod read_only;
pub mod relayout;
mod ring;
mod stream;
mod tcgen05;
mod tensor_maps;
mod wgmma;

use std::fmt;
use std::str::FromStr;

use nvfp4_gemv_targets::{arch, units};

use self::params::NVFP4_FEW_VECTORS;
use crate::error::Error;
use crate::gpu::{Gpu, Limits};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::shape::{Dims, Shape};
use crate::types::{Activation, GemvPath};

pub use call::Call;
use call::magic;
pub use direct::DirectConfig;
pub(crate) use expected::{Cost, compared_by_time};
pub use mma::MmaConfig;
pub use mma_fp4::MmaFp4Config;
pub use packed::PackedConfig;
use plan::Plan;
pub use ring::RingConfig;
pub use stream::StreamConfig;
pub use tcgen05::Tcgen05Config;
pub use wgmma::WgmmaConfig;

/// A problem without its addresses, and the GPU that shall compute it. Checks, defaults and candidates depend on a job.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The dimensions.
    pub shape: &'a Shape,
    /// Types, layouts and alignment.
    pub operands: &'a Operands,
    /// The GPU.
    pub gpu: &'a Gpu,
    /// Whether launches follow each other with programmatic dependent launch.
    pub chained: bool,
}

impl<'a> Job<'a> {
    /// A job of launches that do not overlap.
    pub fn new(shape: &'a Shape, operands: &'a Operands, gpu: &'a Gpu) -> Self {
        Self {
            shape,
            operands,
            gpu,
            chained: false,
        }
    }

    /// This job, with launches that overlap or do not.
    #[must_use]
    pub fn chained(self, chained: bool) -> Self {
        Self { chained, ..self }
    }

    /// Calls `ask` with the job, or with one row of the job if M, N or L is 0: kernels divide by M, N and L.
    fn some<T>(&self, ask: impl FnOnce(&Job<'_>) -> T) -> T {
        match Shape::new(Dims {
            m: 1,
            n: self.shape.n().max(1),
            k: self.shape.k(),
            l: 1,
        }) {
            Ok(row) if self.shape.is_empty() => ask(&Job {
                shape: &row,
                ..*self
            }),
            _ => ask(self),
        }
    }

    /// Whether weights are asked for while the launch before still runs: not where ids are late. What is the fastest in
    /// chains is so for this.
    pub(crate) fn ahead(&self) -> bool {
        self.chained && !self.operands.late
    }

    /// Whether launches of this job overlap. Devices without such launches give right results all the same.
    pub(crate) fn dependent(&self) -> bool {
        self.chained && self.gpu.has_dependent_launches()
    }

    /// Checks that the build carries machine code of a unit for the GPU.
    fn image(&self, unit: &str) -> Result<(), Refusal> {
        image(self.gpu, unit)
    }

    /// Checks that the GPU's compute capability is `least` or more.
    fn needs(&self, least: (i32, i32), needed: &'static str) -> Result<(), Refusal> {
        compute_capability(self.gpu, least, needed)
    }

    /// Checks that K is a multiple of `of`.
    fn row_length(&self, of: usize, needed: &'static str) -> Result<(), Refusal> {
        let k = self.shape.k();
        match k.is_multiple_of(of) {
            true => Ok(()),
            false => Err(Refusal::RowLength { k, needed }),
        }
    }

    /// Checks that the operands allow copies of 16 bytes.
    fn aligned_16(&self) -> Result<(), Refusal> {
        match self.operands.alignment.is_16() {
            true => Ok(()),
            false => Err(Refusal::Alignment { needed: 16 }),
        }
    }

    /// Checks that the vectors are NVFP4.
    fn nvfp4(&self) -> Result<(), Refusal> {
        match self.operands.activation {
            Activation::Nvfp4 => Ok(()),
            found => Err(Refusal::Activation {
                found,
                takes: crate::refusal::NVFP4,
            }),
        }
    }

    /// Vectors as kernels count them: those of several digits count for each.
    fn vector_rows(&self) -> u64 {
        (self.shape.n() as u64).saturating_mul(self.operands.digits as u64)
    }

    /// Checks that vectors of several digits fit passes of `most` rows: all of them one pass, or none of them two.
    fn digits_fit(&self, most: u32) -> Result<(), Refusal> {
        let digits = self.operands.digits;
        let refusal = |takes| Err(Refusal::Digits { digits, takes });
        if self.shape.of_digits(digits).is_err() {
            return refusal("vectors of 1 to 5");
        }
        match self.vector_rows() <= u64::from(most) || (most as usize).is_multiple_of(digits) {
            true => Ok(()),
            false => refusal(
                "vectors of 3 or 5 digits only while a pass has room for all of them: 128 digits, or fewer where a \
                 config says so",
            ),
        }
    }

    /// Checks that the vectors are anything but f32.
    fn not_f32(&self) -> Result<(), Refusal> {
        match self.operands.activation {
            found @ Activation::F32 => Err(Refusal::Activation {
                found,
                takes: "NVFP4, f16 and bf16",
            }),
            _ => Ok(()),
        }
    }
}

impl Gpu {
    /// The architecture of machine code for GPUs of exactly this compute capability, as in `NVFP4_GEMV_ARCHS`: `80`,
    /// `90a`.
    pub fn own_image((major, minor): (i32, i32)) -> String {
        let number = major.saturating_mul(10).saturating_add(minor);
        arch::own(number.max(0) as u32)
    }
}

/// Whether machine code for some of these architectures runs on a compute capability.
#[cfg(feature = "jit")]
pub(crate) fn images_run(images: &str, compute_capability: (i32, i32)) -> bool {
    let mut images = images.split(';');
    images.any(|arch| arch::runs_on(arch, compute_capability))
}

/// Checks that the build carries machine code of a unit for a GPU.
fn image(gpu: &Gpu, unit: &str) -> Result<(), Refusal> {
    let &Gpu {
        compute_capability,
        images,
        ..
    } = gpu;
    if images.is_empty() {
        return Err(Refusal::BuiltWithoutKernels);
    }
    let unit = units::find(unit).expect("kernels name their units");
    let runs = |arch: &str| arch::runs_on(arch, compute_capability) && unit.exists_for(arch);
    match images.split(';').any(runs) {
        true => Ok(()),
        false => Err(Refusal::NoKernelImage {
            compute_capability,
            images,
        }),
    }
}

/// Checks that a GPU's compute capability is `least` or more.
fn compute_capability(gpu: &Gpu, least: (i32, i32), needed: &'static str) -> Result<(), Refusal> {
    let found = gpu.compute_capability;
    match found >= least {
        true => Ok(()),
        false => Err(Refusal::ComputeCapability { found, needed }),
    }
}

/// Checks a field of a config: `holds` says whether the field may have this value.
fn field(name: &'static str, value: u32, takes: &'static str, holds: bool) -> Result<(), Refusal> {
    match holds {
        true => Ok(()),
        false => Err(Refusal::Field { name, value, takes }),
    }
}

/// Checks that `needed` bytes of shared memory fit a CTA of the GPU.
fn shared_memory(needed: u64, gpu: &Gpu) -> Result<(), Refusal> {
    let available = gpu.shared_bytes;
    match needed <= u64::from(available) {
        true => Ok(()),
        false => Err(Refusal::SharedMemory { needed, available }),
    }
}

/// Whether `vectors` vectors of a pass are few: kernels then have more rows, warps or CTAs (`csrc/shared.h`).
fn few(vectors: usize) -> bool {
    vectors <= NVFP4_FEW_VECTORS as usize
}

/// The configs that `keep` accepts, each once, in their order.
fn distinct<T: Copy + PartialEq>(configs: Vec<T>, keep: impl Fn(&T) -> bool) -> Vec<T> {
    let mut distinct = Vec::with_capacity(configs.len());
    for config in configs {
        if keep(&config) && !distinct.contains(&config) {
            distinct.push(config);
        }
    }
    distinct
}

/// The most CTAs of a cluster that every device takes: CUDA C++ Programming Guide, "Thread Block Clusters".
const MOST_CLUSTER: u32 = 8;
/// Bytes of shared memory that every CTA takes in addition to those that it asks for.
const RESERVED: u32 = 1024;

/// f32 roundings of an output's factors: of the product of the global scales, and of the multiplications by that
/// product, the row alpha and the vector alpha.
const ALPHAS: u32 = 4;

/// Bytes of shared memory of a multiprocessor: those that one CTA can ask for, and the reserved ones.
fn multiprocessor_shared(gpu: &Gpu) -> u64 {
    u64::from(gpu.shared_bytes) + u64::from(RESERVED)
}

/// Number of CTAs for which a multiprocessor has room, if each asks for `bytes` bytes of shared memory.
fn with_room(bytes: u64, gpu: &Gpu) -> u64 {
    multiprocessor_shared(gpu) / (bytes + u64::from(RESERVED))
}

/// The fewest bytes of shared memory of a CTA with which no multiprocessor has room for more than its share of a grid.
fn apart(ctas: u64, gpu: &Gpu) -> u64 {
    let share = ctas.div_ceil(u64::from(gpu.multiprocessors.max(1)));
    // One byte more than each CTA could have if there were one CTA too many.
    (multiprocessor_shared(gpu) / (share + 1) + 1).saturating_sub(RESERVED.into())
}

/// The interface of a kernel's module: its config, whose type knows everything else about the kernel.
trait KernelConfig: Copy + PartialEq + Sized {
    /// The most vectors that any config takes in a pass over the weights.
    const MOST_VECTORS: u32;

    /// Bytes of workspace that some config uses, though the default may use less.
    const OPTIONAL_WORKSPACE: u64 = 0;

    /// Part of a sentence: why the kernel comes first for jobs that nobody measured, if it does.
    const WHY: &'static str;

    /// Whether no kernel of the same path takes more problems on the GPUs that have this kernel's instructions. If no
    /// kernel can compute a job, this kernel's refusal is the path's.
    const TAKES_MOST: bool = false;

    /// Whether the time of a single vector depends on the config, as far as is expected.
    const ONE_VECTOR_VARIES: bool = false;

    /// The share of the read-only ceiling that the kernel is expected to reach with one vector, if it loses no time on
    /// its products.
    fn share_of_one(_: &Shape, operands: &Operands) -> f64 {
        expected::share_of_one(operands.activation)
    }

    /// The expected cost of the vectors of a pass.
    fn cost(_: &Job<'_>) -> Cost {
        Cost::FAST
    }

    /// The expected cost of the vectors of a pass with this config.
    fn cost_with(&self, job: &Job<'_>) -> Cost {
        Self::cost(job)
    }

    /// The part of its best config's share that the default is expected to reach for a job that nobody measured. Times in
    /// tables are of the best config. Fitted to what an H100 took on problems drawn at random: docs/notes/tuning.md,
    /// "Problems that no table has". A default that has become better since needs no other number: it says how clearly a
    /// kernel must be in front, too.
    fn default_reaches(_: &Job<'_>) -> f64 {
        1.0
    }

    /// The fraction of the kernel's share that this config leaves.
    fn share_left(&self, _: &Job<'_>) -> f64 {
        1.0
    }

    /// Microseconds that an H100 is expected to take with this config; `None` where nobody knows. It counts for [some
    /// jobs](expected::compared_by_time).
    fn microseconds(&self, _: &Job<'_>) -> Option<f64> {
        None
    }

    /// Whether this config, the fastest of a measured problem whose rows are as long, is likely to be as fast for the job
    /// as `default`, the kernel's own. Only kernels say so for which measurements show it.
    fn follows(&self, _: &Job<'_>, _default: &Self) -> bool {
        false
    }

    /// Whether the kernel can compute a job that it can compute without its selection of matrices.
    fn takes_select(_: &Job<'_>) -> Result<(), Refusal> {
        Err(Refusal::Select)
    }

    /// Whether the kernel can compute a job that it can compute with NVFP4 vectors, of vectors that it quantises when it
    /// reads them.
    fn takes_on_read(_: &Job<'_>) -> Result<(), Refusal> {
        Err(Refusal::OnRead)
    }

    /// Whether the kernel can compute a job that it can compute if each digit of a vector is a vector of its own.
    fn takes_digits(job: &Job<'_>) -> Result<(), Refusal> {
        Err(Refusal::Digits {
            digits: job.operands.digits,
            takes: "vectors of one; it multiplies f16 and bf16 vectors as they are",
        })
    }

    /// The config that reads a matrix once for the batches that select it, where the job can have such batches and this
    /// is expected to be the fastest way of all kernels.
    fn bundles(_: &Job<'_>) -> Option<Self> {
        None
    }

    /// Whether the kernel can compute the job at all, with some config.
    fn available(job: &Job<'_>) -> Result<(), Refusal>;

    /// The default config for a job that the kernel can compute.
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal>;

    /// Configs worth measuring, the default first; none if the kernel cannot compute the job.
    fn candidates(job: &Job<'_>) -> Vec<Self>;

    /// A config for a job that the kernel can compute, with which the bits of a vector's results do not depend on other
    /// vectors, nor on their number. The order in which it adds up follows from the GPU and from all of the job but N
    /// and the workspace. `None` where the kernel has no such config.
    fn batch_invariant(_: &Job<'_>) -> Option<Self> {
        None
    }

    /// Whether this config is of that kind, if calls of any number of vectors have it.
    fn is_batch_invariant(&self, _: &Job<'_>) -> bool {
        false
    }

    /// Where a row's sums are made in parts of so many spans of 256 elements, the last one perhaps shorter: each part
    /// by a chain of matrix instructions in the order of `packed`, then the parts in the order of K. All configs with
    /// the same parts give the same bits. `None` for other orders.
    fn chain(&self, _: &Job<'_>) -> Option<u32> {
        None
    }

    /// Whether this config can compute a job that the kernel can compute: there is an entry point for it, and room on
    /// the GPU. `check` does not panic, whatever the fields say.
    fn check(&self, job: &Job<'_>) -> Result<(), Refusal>;

    /// The most vectors that this config takes in a pass over the weights.
    fn pass_vectors(&self) -> u32 {
        Self::MOST_VECTORS
    }

    /// The most successive f32 roundings that any term passes through.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32;

    /// The config for chained launches, if this config was the fastest of launches that wait and no chain was measured.
    /// `None` if the default is better.
    fn in_chain(&self, job: &Job<'_>) -> Option<Self> {
        let alone = Job {
            chained: false,
            ..*job
        };
        (Self::default_for(job) == Self::default_for(&alone)).then_some(*self)
    }

    /// This config, that of launches that wait, where ids are [late](crate::raw::RawSelect::late).
    fn behind_ids(&self, _: &Job<'_>) -> Self {
        *self
    }

    /// The launches, for a call whose job and config were checked.
    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan;

    /// Bytes that the plan of a legal config uses of the workspace.
    fn workspace_bytes(&self, _: &Job<'_>) -> u64 {
        0
    }

    /// Bytes of weights that a CTA has asked for at once, for estimates.
    fn bytes_in_flight(&self, job: &Job<'_>) -> u64;

    /// The work of the main loop of the first launch's kernel, for estimates. The config is legal.
    fn main_loop(&self, job: &Job<'_>) -> MainLoop;
}

/// The work of one iteration of a kernel's main loop as it stands in the source, before the compiler unrolls it.
/// Figures of the machine code are counted per iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MainLoop {
    /// Weights that a lane multiplies.
    pub lane_weights: u32,
    /// Vectors that a lane multiplies each weight with.
    pub vectors: u32,
    /// How the products are made.
    pub products: Products,
    /// Columns of tensor memory of a CTA.
    pub tensor_columns: u32,
}

/// The instructions that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Products {
    /// dp4a, two for each four products: positive and negative magnitudes apart.
    Integer,
    /// Fused multiply-adds of f16 pairs or f32.
    Float,
    /// `mma.sync`, one instruction for eight of a lane's weights and `vectors` vectors.
    WarpMatrix {
        /// Vectors of one instruction.
        vectors: u32,
    },
    /// `mma.sync` with block scales, one instruction for 32 of a lane's weights and `vectors` vectors.
    ScaledWarpMatrix {
        /// Vectors of one instruction.
        vectors: u32,
    },
    /// `wgmma`, one instruction for eight of a lane's weights and all vectors.
    WarpgroupMatrix,
    /// One instruction of the block-scaled tensor cores.
    Matrix,
}

/// The registry of kernels: makes [`Kernel`] and [`Config`] from one line for each kernel.
macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident($config:ident) = $name:literal on $path:ident;)*) => {
        /// A GPU kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kernel {
            $($(#[$doc])* $kernel,)*
        }

        /// How a kernel divides a problem among warps, CTAs and steps. The variant says which kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub enum Config {
            $($(#[$doc])* $kernel($config),)*
        }

        // Fields that files leave out are read as these defaults, so no value of a default may change.
        $(impl Default for $config {
            fn default() -> Self {
                Self::DEFAULT
            }
        }

        impl From<$config> for Config {
            fn from(config: $config) -> Self {
                Self::$kernel(config)
            }
        })*

        impl Kernel {
            /// All kernels, in the order in which equals are preferred.
            pub const ALL: &'static [Self] = &[$(Self::$kernel),*];

            /// The name in messages, flags and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kernel => $name),* }
            }

            /// The path that the kernel belongs to.
            pub const fn path(self) -> GemvPath {
                match self { $(Self::$kernel => GemvPath::$path),* }
            }

            /// Whether the kernel can compute the job at all, with some config.
            ///
            /// # Errors
            /// Why not.
            pub fn available(self, job: &Job<'_>) -> Result<(), Refusal> {
                job.some(|job| match self {
                    $(Self::$kernel => {
                        <$config as KernelConfig>::available(job)?;
                        if job.operands.on_read {
                            <$config as KernelConfig>::takes_on_read(job)?;
                        }
                        if job.operands.digits != 1 {
                            <$config as KernelConfig>::takes_digits(job)?;
                        }
                        match job.operands.select {
                            true => <$config as KernelConfig>::takes_select(job),
                            false => Ok(()),
                        }
                    }),*
                })
            }

            /// The kernel's default config for a job.
            ///
            /// # Errors
            /// Why it cannot compute the job.
            pub fn default_config(self, job: &Job<'_>) -> Result<Config, Refusal> {
                self.available(job)?;
                job.some(|job| match self {
                    $(Self::$kernel => <$config as KernelConfig>::default_for(job).map(Config::from)),*
                })
            }

            /// The config that reads a matrix once for the batches that select it, where that is expected to be the
            /// fastest way of all kernels.
            pub(crate) fn bundles(self, job: &Job<'_>) -> Option<Checked> {
                if !job.operands.select || job.shape.is_empty() || self.available(job).is_err() {
                    return None;
                }
                let config = match self {
                    $(Self::$kernel => <$config as KernelConfig>::bundles(job).map(Config::from)),*
                };
                config?.checked(job).ok()
            }

            /// The kernel's config for a job with which the bits of a vector's results do not depend on other vectors,
            /// nor on their number: [`Options::batch_invariant`](crate::Options::batch_invariant).
            ///
            /// # Errors
            /// Why it cannot compute the job so.
            pub fn batch_invariant_config(self, job: &Job<'_>) -> Result<Config, Refusal> {
                self.available(job)?;
                let config = job.some(|job| match self {
                    $(Self::$kernel => <$config as KernelConfig>::batch_invariant(job).map(Config::from)),*
                });
                config.ok_or(Refusal::BatchInvariant)
            }

            /// The most vectors that any of the kernel's configs takes in a pass over the weights.
            pub(crate) const fn most_vectors(self) -> u32 {
                match self { $(Self::$kernel => <$config as KernelConfig>::MOST_VECTORS),* }
            }

            /// Part of a sentence: why the kernel comes first for jobs that nobody measured.
            pub(crate) const fn why(self) -> &'static str {
                match self { $(Self::$kernel => <$config as KernelConfig>::WHY),* }
            }

            /// Whether no kernel of the same path takes more problems on the GPUs that have this kernel's instructions.
            pub(crate) const fn takes_most(self) -> bool {
                match self { $(Self::$kernel => <$config as KernelConfig>::TAKES_MOST),* }
            }

            /// Whether the time of a single vector depends on the config, as far as is expected.
            pub(crate) const fn one_vector_varies(self) -> bool {
                match self { $(Self::$kernel => <$config as KernelConfig>::ONE_VECTOR_VARIES),* }
            }

            /// The share of the read-only ceiling that the kernel is expected to reach with one vector, if it loses no
            /// time on its products.
            pub(crate) fn share_of_one(self, shape: &Shape, operands: &Operands) -> f64 {
                match self { $(Self::$kernel => <$config as KernelConfig>::share_of_one(shape, operands)),* }
            }

            /// The part of its best config's share that the kernel's default is expected to reach.
            pub(crate) fn default_reaches(self, job: &Job<'_>) -> f64 {
                match self { $(Self::$kernel => <$config as KernelConfig>::default_reaches(job)),* }
            }

            /// The expected cost of the vectors of a pass.
            pub(crate) fn cost(self, job: &Job<'_>) -> Cost {
                match self { $(Self::$kernel => <$config as KernelConfig>::cost(job)),* }
            }

            /// Bytes of workspace with which each kernel can have its best default for a job, and count rows.
            pub fn most_workspace_bytes(job: &Job<'_>) -> u64 {
                let operands = job.operands.with_workspace(u64::MAX);
                let job = &Job { operands: &operands, ..*job };
                let of = |kernel: &Self| {
                    let default = kernel.default_config(job).ok()?.workspace_bytes(job);
                    Some(default.max(kernel.optional_workspace()))
                };
                Self::ALL.iter().filter_map(of).max().unwrap_or(0)
            }

            /// Bytes of workspace that some config uses, though the default may use less.
            const fn optional_workspace(self) -> u64 {
                match self { $(Self::$kernel => <$config as KernelConfig>::OPTIONAL_WORKSPACE),* }
            }

            /// The kernel's configs worth measuring for a job, the default first; none if the kernel cannot compute the
            /// job.
            pub fn candidates(self, job: &Job<'_>) -> Vec<Config> {
                if self.available(job).is_err() {
                    return Vec::new();
                }
                job.some(|job| match self {
                    $(Self::$kernel => {
                        let all = <$config as KernelConfig>::candidates(job);
                        all.into_iter().map(Config::from).collect()
                    })*
                })
            }
        }

        impl Config {
            #[cfg(test)]
            const DEFAULTS: &'static [Self] = &[$(Self::$kernel($config::DEFAULT)),*];

            /// The kernel that the config belongs to.
            pub const fn kernel(&self) -> Kernel {
                match self { $(Self::$kernel(_) => Kernel::$kernel),* }
            }

            /// Whether the config can compute a job: there is an entry point for it, and room on the GPU. If there is
            /// nothing to compute, only the kernel's needs count: no launch will have the config.
            ///
            /// # Errors
            /// Why not.
            pub fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
                self.kernel().available(job)?;
                if job.shape.is_empty() {
                    return Ok(());
                }
                match self { $(Self::$kernel(config) => config.check(job)),* }
            }

            /// Whether the bits of a vector's results do not depend on other vectors, nor on their number, where calls
            /// of any number of vectors have this config.
            pub fn is_batch_invariant(&self, job: &Job<'_>) -> bool {
                job.some(|job| match self {
                    $(Self::$kernel(config) => KernelConfig::is_batch_invariant(config, job)),*
                })
            }

            /// Spans of each part of a row that one chain of matrix instructions adds up; `None` for other orders.
            /// Configs of two kernels with the same number give the same bits.
            pub(crate) fn chain(&self, job: &Job<'_>) -> Option<u32> {
                job.some(|job| match self {
                    $(Self::$kernel(config) => KernelConfig::chain(config, job)),*
                })
            }

            /// The config for a chained job, if this config was the fastest of launches that wait and no chain was
            /// measured. `None` if the kernel's default is better.
            pub(crate) fn in_chain(&self, job: &Job<'_>) -> Option<Self> {
                job.some(|job| match self {
                    $(Self::$kernel(config) => KernelConfig::in_chain(config, job).map(Self::from)),*
                })
            }

            /// This config, that of launches that wait, where ids are late.
            pub(crate) fn behind_ids(&self, job: &Job<'_>) -> Self {
                match self {
                    $(Self::$kernel(config) => KernelConfig::behind_ids(config, job).into()),*
                }
            }

            /// Whether this config, the fastest of a measured problem whose rows are as long, is likely to be as fast for
            /// the job as `default`, of the same kernel.
            pub(crate) fn follows(&self, job: &Job<'_>, default: &Self) -> bool {
                job.some(|job| match (self, default) {
                    $((Self::$kernel(config), Self::$kernel(default)) => config.follows(job, default),)*
                    _ => false,
                })
            }

            /// The most vectors of a pass over the weights. A call of more takes several passes, a launch each.
            pub fn pass_vectors(&self) -> u32 {
                match self { $(Self::$kernel(config) => KernelConfig::pass_vectors(config)),* }
            }

            /// The expected cost of the vectors of a pass with this config.
            pub(crate) fn cost(&self, job: &Job<'_>) -> Cost {
                match self { $(Self::$kernel(config) => config.cost_with(job)),* }
            }

            /// Microseconds that an H100 is expected to take with this config, where there is a model of that.
            pub(crate) fn microseconds(&self, job: &Job<'_>) -> Option<f64> {
                job.some(|job| match self { $(Self::$kernel(config) => config.microseconds(job)),* })
            }

            /// The fraction of the kernel's share that this config leaves.
            pub(crate) fn share_left(&self, job: &Job<'_>) -> f64 {
                match self { $(Self::$kernel(config) => config.share_left(job)),* }
            }

            /// The most successive f32 roundings that any term passes through:
            /// [`reference::error_bound`](crate::reference::error_bound) needs it.
            pub fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
                // A call without vectors counts as a call of one: kernels ask which of their entry points takes so
                // many.
                let one = Shape::new(Dims {
                    m: shape.m(),
                    n: shape.n().max(1),
                    k: shape.k(),
                    l: shape.l(),
                });
                let shape = one.as_ref().unwrap_or(shape);
                match self {
                    $(Self::$kernel(config) => KernelConfig::roundings(config, shape, activation)),*
                }
            }

            /// Bytes of a [workspace](crate::RawWorkspace) that the config uses for a job that it can compute.
            pub fn workspace_bytes(&self, job: &Job<'_>) -> u64 {
                if job.shape.is_empty() {
                    return 0;
                }
                match self { $(Self::$kernel(config) => config.workspace_bytes(job)),* }
            }

            /// Bytes of weights that a CTA has asked for at once, for estimates.
            pub fn bytes_in_flight(&self, job: &Job<'_>) -> u64 {
                job.some(|job| match self { $(Self::$kernel(config) => config.bytes_in_flight(job)),* })
            }

            /// The work of the main loop of the first launch's kernel, for estimates.
            ///
            /// # Errors
            /// Why it cannot compute the job.
            pub fn main_loop(&self, job: &Job<'_>) -> Result<MainLoop, Refusal> {
                self.kernel().available(job)?;
                job.some(|job| match self {
                    $(Self::$kernel(config) => config.check(job).map(|()| config.main_loop(job))),*
                })
            }

            /// The launches of a call, with this config; none where there is nothing to compute.
            ///
            /// # Errors
            /// Why it cannot compute the call.
            pub fn plan(&self, call: &Call, gpu: &Gpu, chained: bool) -> Result<Plan, Refusal> {
                if call.shape.is_empty() {
                    return Ok(Plan::new());
                }
                let operands = call.operands();
                let job = Job::new(&call.shape, &operands, gpu).chained(chained);
                self.check(&job)?;
                Ok(self.launches(call, &job))
            }

            /// The launches of a call. The config was checked for the job of this call.
            fn launches(&self, call: &Call, job: &Job<'_>) -> Plan {
                match self {
                    _ if call.shape.is_empty() => Plan::new(),
                    $(Self::$kernel(config) => config.plan(call, job)),*
                }
            }
        }
    };
}

kernels! {
    /// Rows in bulk copies, into a ring in shared memory. Integer products with an NVFP4 vector, `mma.sync` with an f16
    /// or bf16 vector. One vector a pass, sm_90 and up.
    Ring(RingConfig) = "ring" on CudaCore;
    /// Rows through a queue of each warp in shared memory, multiplied on `mma.sync`. Any vectors, any K.
    Stream(StreamConfig) = "stream" on CudaCore;
    /// Tiles of 64 rows for up to 128 vectors, each weight decoded once and multiplied on Hopper's `wgmma`. Any vectors
    /// but f32, K a multiple of 64, sm_90a.
    Wgmma(WgmmaConfig) = "wgmma" on CudaCore;
    /// Tiles of 16 rows for up to 128 vectors, each weight decoded once and multiplied on `mma.sync`. Any vectors but
    /// f32, any K.
    Mma(MmaConfig) = "mma" on CudaCore;
    /// Products as in wgmma, of vectors that a launch before packs into a workspace. Work is dealt evenly to CTAs; a
    /// launch behind adds the sums of rows that CTAs share. Any vectors but f32, K a multiple of 64, sm_90a.
    Packed(PackedConfig) = "packed" on CudaCore;
    /// Rows straight into registers, vectors decoded where they are used; f16x2 or f32 products. Any vectors, any K.
    Direct(DirectConfig) = "direct" on CudaCore;
    /// Tiles of 128 rows for up to 128 vectors on block-scaled tensor cores, work dealt evenly to CTAs. NVFP4 vectors,
    /// sm_100 and sm_103.
    Tcgen05(Tcgen05Config) = "tcgen05" on TensorCore;
    /// Groups of 16 to 128 rows for up to 128 vectors, on the block-scaled FP4 instruction of a warp. NVFP4 vectors, K
    /// a multiple of 64, compute capability 12.x.
    MmaFp4(MmaFp4Config) = "mma-fp4" on TensorCore;
}

/// A config, and the job that it was checked for. Launches are planned from a `Checked` without another check. Only
/// [`Config::checked`] and [`Kernel::default_checked`] make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    config: Config,
    shape: Shape,
    operands: Operands,
    limits: Limits,
    chained: bool,
}

impl Config {
    /// Checks the config for a job.
    ///
    /// # Errors
    /// Errors of [`check`](Self::check).
    pub(crate) fn checked(self, job: &Job<'_>) -> Result<Checked, Refusal> {
        self.check(job).map(|()| Checked::of(self, job))
    }
}

impl Kernel {
    /// The kernel's default for a job. A default is legal, and is not checked again.
    ///
    /// # Errors
    /// Errors of [`default_config`](Self::default_config).
    pub(crate) fn default_checked(self, job: &Job<'_>) -> Result<Checked, Refusal> {
        let config = self.default_config(job)?;
        debug_assert_eq!(config.check(job), Ok(()), "{config:?}");
        Ok(Checked::of(config, job))
    }
}

impl Checked {
    fn of(config: Config, job: &Job<'_>) -> Self {
        Self {
            config,
            shape: *job.shape,
            operands: *job.operands,
            limits: job.gpu.limits(),
            chained: job.chained,
        }
    }

    /// The config.
    pub(crate) fn config(&self) -> Config {
        self.config
    }

    /// Bytes of a workspace that its launches use.
    pub(crate) fn workspace_bytes(&self, gpu: &Gpu) -> u64 {
        let job = Job::new(&self.shape, &self.operands, gpu).chained(self.chained);
        self.config.workspace_bytes(&job)
    }

    /// Whether `job` is the job that the config was checked for.
    pub(crate) fn is_for(&self, job: &Job<'_>) -> bool {
        self.shape == *job.shape
            && self.operands == *job.operands
            && self.chained == job.chained
            && self.limits == job.gpu.limits()
    }

    /// The launches of a call, none where there is nothing to compute.
    ///
    /// # Panics
    /// If the call is not the job that the config was checked for.
    pub(crate) fn plan(&self, call: &Call, gpu: &Gpu) -> Plan {
        let operands = call.operands();
        let job = Job::new(&call.shape, &operands, gpu).chained(self.chained);
        assert!(self.is_for(&job), "checked for another call");
        self.config.launches(call, &job)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::from_name(name).ok_or_else(|| Error::UnknownKernel {
            name: name.into(),
            known: Self::ALL.iter().map(|kernel| kernel.name()).collect(),
        })
    }
}

impl Kernel {
    /// The kernel of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|kernel| kernel.name() == name)
    }
}
