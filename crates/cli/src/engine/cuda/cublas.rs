//! cuBLAS, with which engines compute layers of f16 weights: loaded where it is installed, and only when it is asked
//! for.

use std::sync::Arc;

use cudarc::cublas::result;
use cudarc::cublas::sys;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use half::f16;
use nvfp4_gemv::format::{e2m1, e4m3};
use nvfp4_gemv::{BLOCK, Error, Result, Shape};

use super::super::rounds::scale;
use super::{Cuda, cuda};

/// Bytes of cuBLAS's own memory. Given to it, because it would otherwise allocate some within each capture. As many as
/// NVIDIA recommends from Hopper on.
const WORKSPACE_BYTES: usize = 32 << 20;

/// The functions that are called. cudarc panics where one is missing, so they are looked for first.
const FUNCTIONS: &str = "cublasCreate_v2 cublasDestroy_v2 cublasGetVersion_v2 cublasSetStream_v2 \
    cublasSetWorkspace_v2 cublasGemmEx cublasGemmStridedBatchedEx";

/// The library, ready to launch on a stream.
pub(super) struct Cublas {
    handle: sys::cublasHandle_t,
    version: String,
    stream: Arc<CudaStream>,
    _workspace: CudaSlice<u8>,
}

impl Cublas {
    /// Loads the library for a stream; or says why it cannot be used.
    pub(super) fn load(stream: &Arc<CudaStream>) -> Result<Self, String> {
        look_for_it()?;
        let failed = |what: &str| format!("{what} failed");
        let context = stream.context();
        context
            .bind_to_thread()
            .map_err(|error| failed(&format!("making its context current ({error})")))?;
        // SAFETY: all of it is written before it is read: cuBLAS's own.
        let workspace = unsafe { stream.alloc::<u8>(WORKSPACE_BYTES) };
        let workspace = workspace.map_err(|error| failed(&format!("allocating ({error})")))?;
        let handle = result::create_handle();
        let mut cublas = Self {
            handle: handle.map_err(|error| failed(&format!("creating its handle ({error})")))?,
            version: String::new(),
            stream: stream.clone(),
            _workspace: workspace,
        };
        cublas
            .set_up()
            .map_err(|error| failed(&format!("setting it up ({error})")))?;
        Ok(cublas)
    }

    /// Gives cuBLAS its stream and workspace.
    fn set_up(&mut self) -> Result<(), result::CublasError> {
        let (workspace, _guard) = self._workspace.device_ptr(&self.stream);
        let mut version = 0;
        // SAFETY: the handle is valid; the stream and the workspace live as long as it does. The stream comes first,
        // since setting it takes the workspace away again.
        unsafe {
            result::set_stream(self.handle, self.stream.cu_stream().cast())?;
            let workspace = workspace as *mut std::ffi::c_void;
            sys::cublasSetWorkspace_v2(self.handle, workspace, WORKSPACE_BYTES).result()?;
            sys::cublasGetVersion_v2(self.handle, &mut version).result()?;
        }
        self.version = version_text(version);
        Ok(())
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Enqueues `y = W x` for all vectors and batches of a shape, all of them f16, with sums in f32. `weights` is where
    /// a copy of the weights begins, in elements.
    pub(super) fn enqueue(&self, shape: &Shape, of: &Layer<'_>, weights: usize) -> Result<()> {
        let (m, n, k) = (shape.m(), shape.n(), shape.k());
        let end = weights.saturating_add(m * k * shape.l());
        let fits = end <= of.weights.len()
            && shape.vector_elements() <= of.x.len()
            && shape.outputs() <= of.y.len();
        if !fits {
            return Err(error(format!("operands of {shape} are too short")));
        }
        let sizes = [m, n, k, shape.l()].map(i32::try_from);
        let [Ok(m32), Ok(n32), Ok(k32), Ok(l32)] = sizes else {
            return Err(error(format!("{shape} is too large for it")));
        };
        let (w, _weights) = of.weights.device_ptr(&self.stream);
        let (x, _x) = of.x.device_ptr(&self.stream);
        let (y, _y) = of.y.device_ptr(&self.stream);
        let w = w + (weights * size_of::<f16>()) as u64;
        let f16_type = sys::cudaDataType::CUDA_R_16F;
        let (one, zero) = (1f32, 0f32);
        // cuBLAS counts in columns: there, weights are K x M and are transposed, vectors are K x N, results M x N.
        let (transposed, plain) = (
            sys::cublasOperation_t::CUBLAS_OP_T,
            sys::cublasOperation_t::CUBLAS_OP_N,
        );
        let sums = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let algorithm = sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
        // One batch has a call of its own, as its users call it.
        let launched = match shape.l() {
            // SAFETY: the sizes were checked: weights [M][K], vectors [N][K] and results [N][M] are in bounds.
            1 => unsafe {
                result::gemm_ex(
                    self.handle,
                    transposed,
                    plain,
                    m32,
                    n32,
                    k32,
                    (&raw const one).cast(),
                    w as *const _,
                    f16_type,
                    k32,
                    x as *const _,
                    f16_type,
                    k32,
                    (&raw const zero).cast(),
                    y as *mut _,
                    f16_type,
                    m32,
                    sums,
                    algorithm,
                )
            },
            // SAFETY: as above, with [L] in front of each.
            _ => unsafe {
                result::gemm_strided_batched_ex(
                    self.handle,
                    transposed,
                    plain,
                    m32,
                    n32,
                    k32,
                    (&raw const one).cast(),
                    w as *const _,
                    f16_type,
                    k32,
                    (m * k) as i64,
                    x as *const _,
                    f16_type,
                    k32,
                    (n * k) as i64,
                    (&raw const zero).cast(),
                    y as *mut _,
                    f16_type,
                    m32,
                    (n * m) as i64,
                    l32,
                    sums,
                    algorithm,
                )
            },
        };
        launched.map_err(|status| error(status.to_string()))
    }
}

/// Whether the library and all of its functions that are called are there; or what is not. A call of a missing one
/// would panic.
fn look_for_it() -> Result<(), String> {
    // SAFETY: it runs the initialisers of NVIDIA's library, which is what loading it means.
    if !unsafe { sys::is_culib_present() } {
        return Err("no libcublas was found; LD_LIBRARY_PATH can say where it is".into());
    }
    // SAFETY: as above; it is there.
    let library = unsafe { sys::culib() };
    for name in FUNCTIONS.split(' ') {
        // SAFETY: the symbol is only looked for, not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        found.map_err(|_| format!("the libcublas that was found has no {name}"))?;
    }
    Ok(())
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // Nothing can be done where it fails.
        // SAFETY: the handle was made by `load`, and this is its end.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

fn error(message: String) -> Error {
    Error::Cuda {
        during: "calling cuBLAS",
        code: 0,
        message,
    }
}

/// `130002` is 13.0.2.
fn version_text(version: i32) -> String {
    let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
    format!("{major}.{minor}.{patch}")
}

/// Operands of one shape.
pub(super) struct Layer<'a> {
    /// Copies of `[L][M][K]`.
    pub(super) weights: &'a CudaSlice<f16>,
    /// `[L][N][K]`.
    pub(super) x: &'a CudaSlice<f16>,
    /// `[L][N][M]`.
    pub(super) y: &'a CudaSlice<f16>,
}

/// Values that NVFP4 weights of random codes and scales have, decoded. All of them are f16 numbers: they have 6
/// significant bits, and the largest is 6 * 448.
fn dequantised(count: usize) -> Vec<f16> {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut values = Vec::with_capacity(count.next_multiple_of(BLOCK));
    while values.len() < count {
        let scale = e4m3::decode(scale(rng.u8(..)));
        values.extend((0..BLOCK).map(|_| f16::from_f32(e2m1::decode(rng.u8(..)) * scale)));
    }
    values.truncate(count);
    values
}

impl Cuda {
    /// At least `count` weights, dequantised, in device memory. Random weights are made once and repeated.
    pub(super) fn f16_weights(&self, count: usize) -> Result<CudaSlice<f16>> {
        const RANDOM: usize = 4 << 20;
        self.repeated(&dequantised(RANDOM.min(count)), count)
    }

    /// Vectors for them.
    pub(super) fn f16_vectors(&self, count: usize) -> Result<CudaSlice<f16>> {
        let mut rng = fastrand::Rng::with_seed(4);
        let mut value = || f16::from_f32(rng.f32() * 2.0 - 1.0);
        let values: Vec<f16> = (0..count).map(|_| value()).collect();
        self.upload(&values)
    }

    /// Memory that cuBLAS writes results to.
    pub(super) fn f16_results(&self, count: usize) -> Result<CudaSlice<f16>> {
        let zeros = self.stream.alloc_zeros::<f16>(count);
        zeros.map_err(|error| cuda("allocating results of cuBLAS", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_finite_and_differ() {
        let weights = dequantised(1001);
        assert_eq!(weights.len(), 1001);
        assert!(weights.iter().all(|w| w.is_finite()));
        let negative = weights.iter().filter(|w| w.to_f32() < 0.0).count();
        assert!((300..700).contains(&negative), "{negative}");
    }

    #[test]
    fn versions_are_written_as_nvidia_does() {
        assert_eq!(version_text(130_002), "13.0.2");
        assert_eq!(version_text(130_100), "13.1.0");
        assert_eq!(version_text(120_805), "12.8.5");
        assert_eq!(version_text(110_401), "11.4.1");
    }

    /// Without a GPU too.
    #[test]
    fn a_missing_library_is_a_sentence_and_no_panic() {
        if let Err(why) = look_for_it() {
            assert!(why.contains("libcublas"), "{why}");
        }
    }
}
