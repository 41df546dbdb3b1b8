//! Kernels on a GPU: checked on exact data, and timed.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute, CUevent_flags, CUfunction_attribute};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr,
    DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

use crate::arch::Arch;
use crate::blackwell::Scales;
use crate::cublaslt::CublasLtError;
use crate::exact::Exact;
use crate::matmul::{Map, Operands, Plan, Problem};
use crate::measure::{CHAINS, LINKS, Measure};
use crate::nvrtc::Compiled;
use crate::results::Peak;
use crate::types::Type;
use crate::variants::{Family, Variant};

/// Why nothing ran on a GPU.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no driver.
    #[error("there is no NVIDIA driver: libcuda is not found")]
    NoDriver,
    /// There is no such GPU.
    #[error("there is no GPU {ordinal}: the driver lists {count}")]
    NoDevice {
        /// Number of the device that was asked for.
        ordinal: usize,
        /// How many there are.
        count: i32,
    },
    /// A GPU without the instructions that this program has.
    #[error("{name} has compute capability {major}.{minor}; the kernels need 8.0 or newer")]
    TooOld {
        /// Name of the GPU.
        name: String,
        /// Compute capability.
        major: i32,
        /// Compute capability.
        minor: i32,
    },
    /// cuBLASLt is missing or reports an error.
    #[error(transparent)]
    CublasLt(#[from] CublasLtError),
    /// The driver reports an error.
    #[error("the driver reports {0:?}")]
    Driver(DriverError),
    /// The kernel reads block scales, and the matrices have none.
    #[error("the kernel reads block scales, and the matrices have none")]
    NoScales,
    /// The result is not exact.
    #[error("{0}")]
    Wrong(String),
}

impl DeviceError {
    /// Advice about the error.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoDriver | Self::NoDevice { .. } => {
                Some("`check` and `compile` need no GPU: `mma-explorer check --arch 90a`")
            }
            Self::CublasLt(error) => error.hint(),
            _ => None,
        }
    }
}

impl From<DriverError> for DeviceError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// A GPU that is used.
#[derive(Debug)]
pub struct Device {
    stream: Arc<CudaStream>,
    /// Name of the GPU.
    pub name: String,
    /// The architecture to compile for, with all features that the GPU has.
    pub arch: Arch,
    /// Multiprocessors of the GPU.
    pub multiprocessors: u32,
}

/// Operands of a matrix product and its result, in the GPU's memory.
#[derive(Debug)]
pub struct Matrices {
    pub(crate) a: CudaSlice<u8>,
    pub(crate) b: CudaSlice<u8>,
    pub(crate) d: CudaSlice<u8>,
    /// Block scales of A and B, where the kernel reads them.
    scales: Option<[CudaSlice<u8>; 2]>,
}

/// A matrix product that is ready to run.
#[derive(Debug)]
pub struct Prepared {
    module: Arc<CudaModule>,
    kernel: CudaFunction,
    plan: Plan,
    problem: Problem,
}

/// Two programs in alternating rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    /// Median of the first one's seconds.
    pub first: f64,
    /// Median of the second one's.
    pub second: f64,
    /// Median of the second one's seconds as a multiple of the first one's, round by round.
    pub ratio: f64,
}

/// Gives a launch the kernel's parameters, in their order.
macro_rules! args {
    ($launch:ident, $($parameter:expr),+) => {
        $($launch.arg($parameter);)+
    };
}

/// A map as a kernel's parameter.
#[repr(transparent)]
struct MapParameter(sys::CUtensorMap);

// SAFETY: 128 bytes without pointers of the host, aligned to 64 as the kernel's `TensorMap`.
unsafe impl DeviceRepr for MapParameter {}

impl Device {
    /// The GPU of that number.
    ///
    /// # Errors
    /// Where there is no driver, or no such GPU.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        // SAFETY: loading the driver runs its initialisers, which any use of it does.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoDriver);
        }
        let count = match CudaContext::device_count() {
            // A driver without a GPU returns this error when it is initialised.
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            count => count?,
        };
        if usize::try_from(count).is_ok_and(|count| ordinal >= count) {
            return Err(DeviceError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)?;
        // SAFETY: everything runs on one stream. Events around each launch would be time between them.
        unsafe { context.disable_event_tracking() };
        let name = context.name()?;
        let (major, minor) = context.compute_capability()?;
        if major < 8 {
            return Err(DeviceError::TooOld { name, major, minor });
        }
        let multiprocessors =
            context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(Self {
            stream: context.new_stream()?,
            name,
            arch: Arch::own((10 * major + minor) as u32),
            multiprocessors: multiprocessors as u32,
        })
    }

    fn module(&self, compiled: &Compiled) -> Result<Arc<CudaModule>, DeviceError> {
        let cubin = Ptx::from_binary(compiled.cubin.clone());
        Ok(self.stream.context().load_module(cubin)?)
    }

    fn function(&self, compiled: &Compiled, name: &str) -> Result<CudaFunction, DeviceError> {
        Ok(self.module(compiled)?.load_function(name)?)
    }

    /// The stream that kernels run on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Latency and throughput of a variant, from the kernels of [`crate::source::measure`].
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn peak(&self, variant: &Variant, compiled: &Compiled) -> Result<Peak, DeviceError> {
        let latency = self.latency(compiled, &Measure::new(variant, false))?;
        // Ones: the GPU draws less power than with data that changes, so that this is the rate at full clock.
        let measure = Measure::new(variant, true);
        let input = self.stream.clone_htod(&measure.input)?;
        let mut peak = Peak {
            latency,
            ..Peak::default()
        };
        let most = self
            .function(compiled, "throughput")?
            .max_threads_per_block()? as u32;
        let most = most.min(measure.threads * measure.most_groups) / 32;
        let all: &[u32] = match variant.family() {
            Family::Mma => &[4, 8, 16, 32],
            Family::Wgmma => &[4, 8, 12],
            Family::Tcgen05 => &[4],
        };
        for &warps in all.iter().filter(|warps| **warps <= most) {
            let (operations, per_cycle) =
                self.throughput(variant, &measure, compiled, &input, warps)?;
            if operations > peak.operations {
                peak = Peak {
                    operations,
                    operations_per_cycle: per_cycle,
                    warps,
                    ..peak
                };
            }
        }
        Ok(peak)
    }

    fn latency(&self, compiled: &Compiled, measure: &Measure) -> Result<f64, DeviceError> {
        const TURNS: u32 = 256;
        let kernel = self.function_with_shared(compiled, "latency", measure.shared)?;
        let input = self.stream.clone_htod(&measure.input)?;
        let mut cycles = self.stream.alloc_zeros::<u64>(1)?;
        let mut out = self
            .stream
            .alloc_zeros::<u32>((measure.words * measure.threads) as usize)?;
        let config = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (measure.threads, 1, 1),
            shared_mem_bytes: measure.shared,
        };
        let mut best = u64::MAX;
        // The first run also brings the code to the multiprocessor.
        for _ in 0..5 {
            let mut launch = self.stream.launch_builder(&kernel);
            args!(launch, &mut cycles, &mut out, &input, &TURNS, &0u32);
            // SAFETY: the parameters are those of `latency` in csrc/measure.cu and its siblings, and the buffers have
            // the sizes that the kernels document. The sizes are one count, C's registers of all threads, and all that
            // `in` has.
            unsafe { launch.launch(config) }?;
            best = best.min(self.stream.clone_dtoh(&cycles)?[0]);
        }
        Ok(best as f64 / f64::from(TURNS * LINKS))
    }

    /// Operations a second, and a cycle and multiprocessor, with a CTA of so many warps on each multiprocessor.
    fn throughput(
        &self,
        variant: &Variant,
        measure: &Measure,
        compiled: &Compiled,
        input: &CudaSlice<u8>,
        warps: u32,
    ) -> Result<(f64, f64), DeviceError> {
        let kernel = self.function_with_shared(compiled, "throughput", measure.shared)?;
        let all_warps = (self.multiprocessors * warps) as usize;
        let groups = 32 * warps / measure.threads;
        let mut cycles = self.stream.alloc_zeros::<u64>(2 * all_warps)?;
        let mut out = self
            .stream
            .alloc_zeros::<u32>(all_warps * 32 * measure.words as usize)?;
        let config = LaunchConfig {
            grid_dim: (self.multiprocessors, 1, 1),
            block_dim: (32 * warps, 1, 1),
            shared_mem_bytes: measure.shared,
        };
        let mut run = |turns: u32| {
            seconds(&self.stream, || {
                let mut launch = self.stream.launch_builder(&kernel);
                args!(launch, &mut cycles, &mut out, input, &turns, &0u32);
                // SAFETY: the parameters are those of `throughput` in csrc/measure.cu and its siblings, and the buffers
                // have the sizes that the kernels document. The sizes are two counts a warp, C's registers a thread,
                // and all that `in` has.
                unsafe { launch.launch(config) }?;
                Ok(())
            })
        };
        run(1)?; // loads the kernel
        // The turns take 5 to 20 ms, so that the launch does not count.
        let mut turns = 1 << 10;
        while turns < 1 << 24 && run(turns)? < 5e-3 {
            turns *= 4;
        }
        let mut seconds = f64::INFINITY;
        for _ in 0..3 {
            seconds = seconds.min(run(turns)?);
        }
        // Operations of one multiprocessor.
        let each = variant.operations() * u64::from(CHAINS * groups) * u64::from(turns);
        let operations = each as f64 * f64::from(self.multiprocessors) / seconds;
        let cycles = self.stream.clone_dtoh(&cycles)?;
        let of_cta = |warps: &[u64]| {
            let start = warps.iter().step_by(2).min().copied().unwrap_or(0);
            let end = warps.iter().skip(1).step_by(2).max().copied().unwrap_or(0);
            end.saturating_sub(start)
        };
        let each_cta = cycles.chunks(2 * warps as usize).map(of_cta);
        let longest = each_cta.max().unwrap_or(0).max(1);
        let per_cycle = each as f64 / longest as f64;
        Ok((operations, per_cycle))
    }

    /// Runs the kernel `matmul`, and compares D with the exact result, bit by bit.
    ///
    /// # Errors
    /// Errors of the driver, and a wrong D.
    pub fn check(
        &self,
        variant: &Variant,
        compiled: &Compiled,
        plan: &Plan,
        problem: Problem,
        exact: &Exact,
    ) -> Result<(), DeviceError> {
        let prepared = self.prepare(compiled, *plan, problem)?;
        let mut matrices = self.upload(exact)?;
        self.seconds(&prepared, &mut matrices, 1)?;
        self.compare(variant, problem, exact, &matrices)
    }

    /// The operands of an exact problem, and a D of which nothing is written.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn upload(&self, exact: &Exact) -> Result<Matrices, DeviceError> {
        Ok(Matrices {
            a: self.stream.clone_htod(&exact.a)?,
            b: self.stream.clone_htod(&exact.b)?,
            // Bytes that are no element of D: what is not written shows.
            d: self.stream.clone_htod(&vec![0xa5u8; exact.d.len()])?,
            scales: match &exact.scales {
                Some([a, b]) => Some([self.stream.clone_htod(a)?, self.stream.clone_htod(b)?]),
                None => None,
            },
        })
    }

    /// Compares D with the exact result, bit by bit.
    ///
    /// # Errors
    /// Errors of the driver, and a wrong D.
    pub fn compare(
        &self,
        variant: &Variant,
        problem: Problem,
        exact: &Exact,
        matrices: &Matrices,
    ) -> Result<(), DeviceError> {
        let d = self.stream.clone_dtoh(&matrices.d)?;
        exact
            .compare(variant, problem, &d)
            .map_or(Ok(()), |wrong| Err(DeviceError::Wrong(wrong)))
    }

    /// Operands of random numbers, and room for D. Block scales are one. Floats are between 1/16 and 2 in magnitude, so
    /// that sums stay finite, as they do in real products: what is infinite draws less power.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn matrices(
        &self,
        variant: &Variant,
        plan: &Plan,
        problem: Problem,
    ) -> Result<Matrices, DeviceError> {
        // Bytes that are copied again and again.
        const CHUNK: usize = 16 << 20;
        let random = |ty: Type, rows: u32| -> Result<CudaSlice<u8>, DeviceError> {
            let mut state = 0x2545_f491_4f6c_dd1du64;
            let mut sixteen = || {
                let mut all = 0u128;
                for i in 0..128 / variant.container_bits(ty) as usize {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    all |= u128::from(ty.random((state >> 32) as u32)) << variant.bit_of(ty, i);
                }
                all.to_le_bytes()
            };
            let bytes = u64::from(rows) * plan.row_bytes;
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let times = bytes.div_ceil(16).min(CHUNK / 16);
            let chunk: Vec<u8> = (0..times).flat_map(|_| sixteen()).collect();
            let mut all = self.stream.alloc_zeros::<u8>(bytes)?;
            for from in (0..bytes).step_by(CHUNK) {
                let length = CHUNK.min(bytes - from);
                let mut part = all.slice_mut(from..from + length);
                self.stream.memcpy_htod(&chunk[..length], &mut part)?;
            }
            Ok(all)
        };
        let elements = u64::from(problem.m) * u64::from(problem.n);
        let d = elements * u64::from(variant.accumulator.bits()) / 8;
        Ok(Matrices {
            a: random(variant.a, problem.m)?,
            b: random(variant.b, problem.n)?,
            d: self
                .stream
                .alloc_zeros::<u8>(usize::try_from(d).unwrap_or(usize::MAX))?,
            scales: match Scales::of(variant, problem) {
                Some([a, b]) => Some([self.ones(&a)?, self.ones(&b)?]),
                None => None,
            },
        })
    }

    /// Scales that are one.
    fn ones(&self, scales: &Scales) -> Result<CudaSlice<u8>, DeviceError> {
        let one = scales.encode(1).unwrap_or_default();
        Ok(self.stream.clone_htod(&vec![one; scales.bytes()])?)
    }

    /// The kernel `matmul` for a problem.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn prepare(
        &self,
        compiled: &Compiled,
        plan: Plan,
        problem: Problem,
    ) -> Result<Prepared, DeviceError> {
        let module = self.module(compiled)?;
        let kernel = with_shared(module.load_function("matmul")?, plan.shared)?;
        let mut plan = plan;
        if let Operands::Maps { .. } = plan.operands {
            // A GPU's multiprocessors need not make whole clusters. CTAs that do not run at once would walk over their
            // tiles when all other CTAs are through. If the driver does not say how many clusters run at once, all CTAs
            // are taken to run at once.
            let clusters = kernel.occupancy_max_active_clusters(config(&plan), &self.stream);
            if let Some(clusters) = clusters.ok().filter(|clusters| *clusters > 0) {
                plan.grid = plan.grid.min(clusters * plan.cluster);
            }
        }
        Ok(Prepared {
            module,
            kernel,
            plan,
            problem,
        })
    }

    /// Seconds of one product, of so many that follow each other.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn seconds(
        &self,
        prepared: &Prepared,
        matrices: &mut Matrices,
        repeats: u32,
    ) -> Result<f64, DeviceError> {
        let all = seconds(&self.stream, || {
            (0..repeats).try_for_each(|_| self.launch_matmul(prepared, matrices))
        })?;
        Ok(all / f64::from(repeats))
    }

    /// Cycles a second of the multiprocessors during the last run of a product, as its first CTA counted them.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn cycles_a_second(&self, prepared: &Prepared) -> Result<f64, DeviceError> {
        let counts = prepared.module.get_global("clock_counts", &self.stream)?;
        let bytes = self.stream.clone_dtoh(&counts)?;
        let mut counts = bytes.chunks_exact(8).map(|eight| {
            let eight = eight.try_into().unwrap_or_default();
            u64::from_le_bytes(eight)
        });
        let mut next = || counts.next().unwrap_or_default();
        let [cycles, nanoseconds, cycles_after, nanoseconds_after] =
            [next(), next(), next(), next()];
        let cycles = cycles_after.saturating_sub(cycles);
        let nanoseconds = nanoseconds_after.saturating_sub(nanoseconds);
        Ok(1e9 * cycles as f64 / nanoseconds.max(1) as f64)
    }

    fn function_with_shared(
        &self,
        compiled: &Compiled,
        name: &str,
        shared: u32,
    ) -> Result<CudaFunction, DeviceError> {
        with_shared(self.function(compiled, name)?, shared)
    }

    fn launch_matmul(&self, of: &Prepared, matrices: &mut Matrices) -> Result<(), DeviceError> {
        let Matrices { a, b, d, scales } = matrices;
        let (a, b) = (&*a, &*b);
        let (plan, problem) = (&of.plan, &of.problem);
        let config = config(plan);
        let mut launch = self.stream.launch_builder(&of.kernel);
        match &plan.operands {
            Operands::Addresses => {
                args!(launch, d, a, b, &problem.m, &problem.n, &plan.row_bytes);
                // SAFETY: the parameters are those of `matmul` in csrc/matmul.cu. A and B have M and N rows of
                // `row_bytes`, and D has M times N elements. The grid covers D, and bytes beyond the matrices are
                // neither read nor written.
                unsafe { launch.launch(config) }?;
            }
            Operands::Maps {
                a: map_a,
                b: map_b,
                steps,
                instruction,
                scales: maps,
            } => {
                let of_scales = match (maps, &*scales) {
                    (Some([of_a, of_b]), Some([a, b])) => {
                        [self.encoded(of_a, a)?, self.encoded(of_b, b)?]
                    }
                    // Maps that the kernel does not look at.
                    (None, _) => [self.encoded(map_a, a)?, self.encoded(map_b, b)?],
                    (Some(_), None) => return Err(DeviceError::NoScales),
                };
                let (map_a, map_b) = (self.encoded(map_a, a)?, self.encoded(map_b, b)?);
                args!(launch, d, &map_a, &map_b, &problem.m, &problem.n, steps);
                if let Some(instruction) = instruction {
                    args!(launch, instruction, &of_scales[0], &of_scales[1]);
                }
                // SAFETY: the parameters are those of `matmul` in csrc/matmul_wgmma.cu and csrc/matmul_bulk.cu, and
                // with an instruction in csrc/matmul_tcgen05.cu. The maps are of A and B and of their scales, and the
                // launch copies them. D has M times N elements, and the kernel writes no other.
                unsafe { launch.launch(config) }?;
            }
        }
        Ok(())
    }

    /// The map of a matrix that lies in `matrix`.
    fn encoded(&self, map: &Map, matrix: &CudaSlice<u8>) -> Result<MapParameter, DeviceError> {
        use sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE as NO_FILL;
        use sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE as NOT_INTERLEAVED;
        use sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B as L2;
        let swizzle = match (map.swizzled, map.box_bytes) {
            (false, _) => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            (true, 64) => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            (true, _) => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let (address, _reads) = matrix.device_ptr(&self.stream);
        let mut encoded = std::mem::MaybeUninit::<sys::CUtensorMap>::zeroed();
        // SAFETY: two dimensions, and so as many entries of each array, one stride fewer. The driver writes the map,
        // and checks all the rest.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                encoded.as_mut_ptr(),
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                2,
                address as *mut std::ffi::c_void,
                [map.row_bytes, map.rows.into()].as_ptr(),
                [map.row_bytes].as_ptr(),
                [map.box_bytes, map.box_rows].as_ptr(),
                [1, 1].as_ptr(),
                NOT_INTERLEAVED,
                swizzle,
                L2,
                NO_FILL,
            )
        }
        .result()?;
        // SAFETY: written above; all its bytes were zero before.
        Ok(MapParameter(unsafe { encoded.assume_init() }))
    }
}

/// A kernel that is given so many bytes of shared memory.
fn with_shared(kernel: CudaFunction, bytes: u32) -> Result<CudaFunction, DeviceError> {
    kernel.set_attribute(
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        bytes as i32,
    )?;
    Ok(kernel)
}

fn config(plan: &Plan) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (plan.grid, 1, 1),
        block_dim: (plan.threads, 1, 1),
        shared_mem_bytes: plan.shared,
    }
}

/// Seconds that what `enqueue` puts on the stream takes.
pub(crate) fn seconds(
    stream: &CudaStream,
    enqueue: impl FnOnce() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let start = stream.record_event(flags)?;
    enqueue()?;
    let end = stream.record_event(flags)?;
    Ok(f64::from(start.elapsed_ms(&end)?) / 1e3)
}

/// Runs two programs in turn, each for so many seconds a round, and compares them round by round: what the GPU's clock
/// and temperature do, they do to both. Each program takes how often it repeats, and returns the seconds of one
/// repetition.
///
/// # Errors
/// The first one of a program.
pub fn rounds(
    rounds: usize,
    seconds: f64,
    mut first: impl FnMut(u32) -> Result<f64, DeviceError>,
    mut second: impl FnMut(u32) -> Result<f64, DeviceError>,
) -> Result<Rounds, DeviceError> {
    let repeats = |took: f64| (seconds / took).clamp(1.0, 1000.0) as u32;
    let repeats = [repeats(first(1)?), repeats(second(1)?)];
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds.max(1) {
        times.push((first(repeats[0])?, second(repeats[1])?));
    }
    let median = |of: fn(&(f64, f64)) -> f64| {
        let all: Vec<f64> = times.iter().map(of).collect();
        median(&all).expect("one round at least")
    };
    Ok(Rounds {
        first: median(|time| time.0),
        second: median(|time| time.1),
        ratio: median(|time| time.1 / time.0),
    })
}

/// The median: the upper one of an even count, and none without values.
pub fn median(all: &[f64]) -> Option<f64> {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both programs get slower from round to round, and the second one takes 3 times as long in each but one.
    #[test]
    fn programs_are_compared_round_by_round() {
        let (mut a, mut b) = (0.0, 0.0);
        let mut asked = Vec::new();
        let first = |repeats| {
            asked.push(repeats);
            a += 1e-3;
            Ok(a)
        };
        let second = |_| {
            b += 1e-3;
            let is_fourth = b > 3.5e-3 && b < 4.5e-3;
            Ok(if is_fourth { 1.0 } else { 3.0 * b })
        };
        let all = rounds(5, 8e-3, first, second).unwrap();
        // The first call only says how often to repeat.
        assert_eq!(asked, [1, 8, 8, 8, 8, 8]);
        assert!((all.ratio - 3.0).abs() < 1e-9, "{all:?}");
        assert!((all.first - 4e-3).abs() < 1e-9, "{all:?}");
        let fails = |_| Err(DeviceError::NoDriver);
        assert!(rounds(1, 1.0, |_| Ok(1.0), fails).is_err());
    }
}
