//! The explorer's matrix products by cuBLASLt, for comparison. The library is loaded when it is used.

use std::env;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use nvfp4_gemv_files::loader;

use crate::device::{DeviceError, Matrices};
use crate::matmul::Problem;
use crate::types::Type;
use crate::variants::Variant;

/// The environment variable that names the library's folder.
pub const PLACE: &str = "MMA_EXPLORER_CUBLASLT";

/// Bytes of workspace that NVIDIA recommends for Hopper; less suffices elsewhere.
const WORKSPACE: usize = 32 << 20;
/// Algorithms of the library's list that are tried.
const TRIED: usize = 8;

/// Why there is no time of cuBLASLt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CublasLtError {
    /// The library is not there.
    #[error("cuBLASLt is not found")]
    Missing,
    /// cuBLASLt does not multiply these types.
    #[error("cuBLASLt has no product of these types")]
    Types,
    /// cuBLASLt reports an error.
    #[error("cuBLASLt reports {0:?}")]
    Status(sys::cublasStatus_t),
}

impl CublasLtError {
    /// Advice about the error.
    pub fn hint(&self) -> Option<&'static str> {
        matches!(self, Self::Missing).then_some(
            "name the folder of libcublasLt.so.13 or .12 in MMA_EXPLORER_CUBLASLT or LD_LIBRARY_PATH; a CUDA installation \
             has it in lib64, the Python package nvidia-cublas in its lib folder",
        )
    }
}

impl From<result::CublasError> for CublasLtError {
    fn from(error: result::CublasError) -> Self {
        match error.0 {
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => Self::Types,
            status => Self::Status(status),
        }
    }
}

/// The library, for a stream.
#[derive(Debug)]
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    stream: Arc<CudaStream>,
}

/// How the library calls a variant's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Types {
    a: sys::cudaDataType,
    b: sys::cudaDataType,
    d: sys::cudaDataType,
    compute: sys::cublasComputeType_t,
    /// One and zero of the type of alpha and beta.
    scale: (sys::cudaDataType, u32),
    /// FP8 without sums in registers of CUDA cores, as `wgmma` itself adds.
    fast_sums: bool,
}

impl Types {
    fn of(variant: &Variant) -> Option<Self> {
        use sys::cublasComputeType_t as Compute;
        use sys::cudaDataType as Data;
        if variant.scale().is_some() {
            return None;
        }
        let data = |ty: Type| {
            Some(match ty {
                Type::F16 => Data::CUDA_R_16F,
                Type::Bf16 => Data::CUDA_R_16BF,
                Type::Tf32 | Type::F32 => Data::CUDA_R_32F,
                Type::E4m3 => Data::CUDA_R_8F_E4M3,
                Type::E5m2 => Data::CUDA_R_8F_E5M2,
                Type::S8 => Data::CUDA_R_8I,
                Type::S32 => Data::CUDA_R_32I,
                _ => return None,
            })
        };
        let (compute, one) = match (variant.a, variant.accumulator) {
            (Type::F16, Type::F16) => (Compute::CUBLAS_COMPUTE_16F, 0x3c00),
            (Type::E4m3 | Type::E5m2, Type::F16) => return None,
            (Type::Tf32, _) => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, 1f32.to_bits()),
            (Type::S8, _) => (Compute::CUBLAS_COMPUTE_32I, 1),
            _ => (Compute::CUBLAS_COMPUTE_32F, 1f32.to_bits()),
        };
        let d = data(variant.accumulator)?;
        Some(Self {
            a: data(variant.a)?,
            b: data(variant.b)?,
            d,
            compute,
            scale: (d, one),
            fast_sums: variant.a.bits() == 8 && !variant.a.is_integer(),
        })
    }
}

/// A product that the library can run.
#[derive(Debug)]
pub struct Product<'a> {
    library: &'a CublasLt,
    operation: sys::cublasLtMatmulDesc_t,
    /// Layouts of B, A and D. The library has matrices by columns, so that D's transpose is the product of B's and A's.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    one: u32,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl CublasLt {
    /// Loads the library. `also`: a folder where it may lie.
    ///
    /// # Errors
    /// Where it is missing or does not start.
    pub fn open(stream: &Arc<CudaStream>, also: Option<&Path>) -> Result<Self, DeviceError> {
        if !load(also) {
            return Err(CublasLtError::Missing.into());
        }
        stream.context().bind_to_thread()?;
        Ok(Self {
            workspace: stream.alloc_zeros(WORKSPACE)?,
            handle: result::create_handle().map_err(CublasLtError::from)?,
            stream: stream.clone(),
        })
    }

    /// Version of the library: 130100 for 13.1.
    pub fn version(&self) -> usize {
        // SAFETY: the library is loaded; the function takes nothing.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// A product of a variant's types: the fastest of those that the library proposes.
    ///
    /// # Errors
    /// Where it has none.
    pub fn product(
        &self,
        variant: &Variant,
        problem: Problem,
        matrices: &mut Matrices,
    ) -> Result<Product<'_>, DeviceError> {
        let types = Types::of(variant).ok_or(CublasLtError::Types)?;
        let mut product = self.described(&types, problem)?;
        let mut best = f64::INFINITY;
        let mut chosen = None;
        for algorithm in product.proposed()? {
            product.algorithm = algorithm;
            // The first run loads the kernel.
            let took = product
                .seconds(matrices, 1)
                .and_then(|_| product.seconds(matrices, 2));
            if let Ok(took) = took
                && took < best
            {
                best = took;
                chosen = Some(algorithm);
            }
        }
        product.algorithm = chosen.ok_or(CublasLtError::Types)?;
        Ok(product)
    }

    fn described(&self, types: &Types, problem: Problem) -> Result<Product<'_>, CublasLtError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let (m, n, k) = (
            u64::from(problem.m),
            u64::from(problem.n),
            u64::from(problem.k),
        );
        let operation = result::create_matmul_desc(types.compute, types.scale.0)?;
        let mut product = Product {
            library: self,
            operation,
            layouts: [std::ptr::null_mut(); 3],
            one: types.scale.1,
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        // cublasOperation_t: CUBLAS_OP_T.
        let transposed = 1i32;
        let fast = i8::from(types.fast_sums);
        // SAFETY: the description exists; each value has the size that the attribute says.
        unsafe {
            result::set_matmul_desc_attribute(
                operation,
                Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transposed).cast(),
                size_of_val(&transposed),
            )?;
            if types.fast_sums {
                result::set_matmul_desc_attribute(
                    operation,
                    Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                    (&raw const fast).cast(),
                    size_of_val(&fast),
                )?;
            }
        }
        let all = [(types.b, k, n), (types.a, k, m), (types.d, n, m)];
        for (layout, (ty, rows, columns)) in product.layouts.iter_mut().zip(all) {
            *layout = result::create_matrix_layout(ty, rows, columns, rows as i64)?;
        }
        Ok(product)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's, and products borrow it. That it cannot be destroyed changes nothing.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Product<'_> {
    /// The algorithms that the library proposes, best first.
    fn proposed(&self) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CublasLtError> {
        let preference = result::create_matmul_pref()?;
        let workspace = WORKSPACE;
        let [b, a, d] = self.layouts;
        let mut found = Vec::with_capacity(TRIED);
        let mut count = 0;
        // SAFETY: all descriptions exist; the library writes up to TRIED results, and says how many.
        let status = unsafe {
            let sized = result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace).cast(),
                size_of_val(&workspace),
            );
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.library.handle,
                self.operation,
                b,
                a,
                d,
                d,
                preference,
                TRIED as i32,
                found.as_mut_ptr(),
                &mut count,
            );
            found.set_len(usize::try_from(count).unwrap_or(0).min(TRIED));
            let _ = result::destroy_matmul_pref(preference);
            sized.and(status.result())
        };
        status?;
        let good = |one: &&sys::cublasLtMatmulHeuristicResult_t| one.state.result().is_ok();
        Ok(found.iter().filter(good).map(|one| one.algo).collect())
    }

    /// Seconds of one product, of so many that follow each other.
    ///
    /// # Errors
    /// Errors of the driver and the library.
    pub fn seconds(&self, matrices: &mut Matrices, repeats: u32) -> Result<f64, DeviceError> {
        let stream = &self.library.stream;
        let zero = 0u32;
        let all = crate::device::seconds(stream, || {
            let (a, _a) = matrices.a.device_ptr(stream);
            let (b, _b) = matrices.b.device_ptr(stream);
            let (d, _d) = matrices.d.device_ptr_mut(stream);
            let (workspace, _w) = self.library.workspace.device_ptr(stream);
            let [layout_b, layout_a, layout_d] = self.layouts;
            for _ in 0..repeats {
                // SAFETY: the matrices have the sizes and types of the layouts, and lie on the stream's device.
                unsafe {
                    result::matmul(
                        self.library.handle,
                        self.operation,
                        (&raw const self.one).cast(),
                        (&raw const zero).cast(),
                        b as *const c_void,
                        layout_b,
                        a as *const c_void,
                        layout_a,
                        d as *const c_void,
                        layout_d,
                        d as *mut c_void,
                        layout_d,
                        &raw const self.algorithm,
                        workspace as *mut c_void,
                        WORKSPACE,
                        stream.cu_stream().cast(),
                    )
                }
                .map_err(CublasLtError::from)?;
            }
            Ok(())
        })?;
        Ok(all / f64::from(repeats))
    }
}

impl Drop for Product<'_> {
    fn drop(&mut self) {
        // SAFETY: these are this value's own, made and not yet destroyed.
        unsafe {
            for layout in self.layouts.iter().filter(|layout| !layout.is_null()) {
                let _ = result::destroy_matrix_layout(*layout);
            }
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

/// Whether cudarc finds the library by its name, after it was looked for in folders that may have it.
fn load(also: Option<&Path>) -> bool {
    let named = env::var_os(PLACE).map(PathBuf::from);
    let homes = ["CUDA_HOME", "CUDA_PATH"]
        .map(|name| Some(PathBuf::from(env::var_os(name)?).join("lib64")));
    let usual = Some(PathBuf::from("/usr/local/cuda/lib64"));
    let folders = [named.clone(), also.map(Path::to_path_buf)];
    for folder in folders.into_iter().chain(homes).chain([usual]).flatten() {
        if named.is_none() && is_loadable() {
            break;
        }
        for name in ["libcublasLt.so.13", "libcublasLt.so.12"] {
            // SAFETY: this is cuBLASLt, by its name; any use of it runs its initialisers.
            if let Ok(library) = unsafe { loader::at(&folder.join(name)) } {
                // The library stays loaded for as long as the process lives. The loader takes it for later requests of
                // its name.
                std::mem::forget(library);
                return is_loadable();
            }
        }
    }
    is_loadable()
}

fn is_loadable() -> bool {
    // SAFETY: as above.
    unsafe { sys::is_culib_present() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variants;

    #[test]
    fn types_that_it_has() {
        let types = |name: &str| Types::of(&variants::find(name).unwrap());
        let f16 = types("wgmma.m64n256k16.f32.f16.f16").unwrap();
        assert_eq!(f16.d, sys::cudaDataType::CUDA_R_32F);
        assert_eq!(f16.scale.1, 0x3f80_0000);
        let in_half = types("mma.m16n8k16.f16.f16.f16").unwrap();
        assert_eq!(
            in_half.compute,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_16F
        );
        assert_eq!(in_half.scale, (sys::cudaDataType::CUDA_R_16F, 0x3c00));
        assert!(types("wgmma.m64n256k32.f32.e4m3.e5m2").unwrap().fast_sums);
        let bytes = types("wgmma.m64n256k32.s32.s8.s8").unwrap();
        assert_eq!((bytes.d, bytes.scale.1), (sys::cudaDataType::CUDA_R_32I, 1));
        for none in [
            "wgmma.m64n256k32.f16.e4m3.e4m3",
            "wgmma.m64n256k32.s32.s8.u8",
            "mma.m16n8k64.mxf4.f32.e2m1.e2m1.ue8m0",
            "mma.m16n8k256.s32.b1.b1.and",
        ] {
            assert_eq!(types(none), None, "{none}");
        }
    }
}
