//! The driver's own launch, with nothing around it: an empty kernel, and the kernel that a call of this crate enqueues.
//! The kernel, its grid and its parameters are taken out of a graph into which the call was captured.

use std::error::Error;
use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaStream, result, sys};

/// One launch.
pub struct Bare {
    params: sys::CUDA_KERNEL_NODE_PARAMS,
    function: sys::CUfunction,
    /// CTAs of a cluster, or 0.
    cluster: u32,
    /// Owner of the memory that the parameters point to.
    _graph: Option<CudaGraph>,
}

impl Bare {
    /// A kernel without parameters that does nothing. The driver compiles it.
    pub fn empty(stream: &Arc<CudaStream>) -> Result<Self, Box<dyn Error>> {
        const PTX: &str =
            ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n";
        stream.context().bind_to_thread()?;
        let ptx = CString::new(PTX)?;
        // SAFETY: the text ends with a zero. The module is never unloaded.
        let module = unsafe { result::module::load_data(ptx.as_ptr().cast()) }?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(module, CString::new("empty")?) }?;
        // SAFETY: a structure of integers and pointers, for which zeros are valid.
        let mut params: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
        (params.gridDimX, params.gridDimY, params.gridDimZ) = (1, 1, 1);
        (params.blockDimX, params.blockDimY, params.blockDimZ) = (32, 1, 1);
        Ok(Self {
            params,
            function,
            cluster: 0,
            _graph: None,
        })
    }

    /// The one launch that `call` enqueues on `stream`.
    pub fn of(
        stream: &Arc<CudaStream>,
        call: impl FnOnce() -> crate::Result<()>,
    ) -> Result<Self, Box<dyn Error>> {
        stream.synchronize()?;
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let called = call();
        let graph = stream.end_capture(
            sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
        );
        called?;
        let graph = graph?.ok_or("the capture is empty")?;
        let mut count = 1;
        let mut node = null_mut();
        // SAFETY: the graph lives, and there is room for the one node that is asked for. Zeros are
        // valid for the structures, which hold integers and pointers.
        let (params, value) = unsafe {
            sys::cuGraphGetNodes(graph.cu_graph(), &mut node, &mut count).result()?;
            let mut params: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
            sys::cuGraphKernelNodeGetParams_v2(node, &mut params).result()?;
            let mut value: sys::CUlaunchAttributeValue = std::mem::zeroed();
            let cluster = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            sys::cuGraphKernelNodeGetAttribute(node, cluster, &mut value).result()?;
            (params, value)
        };
        if count != 1 {
            return Err(format!("the call made {count} launches").into());
        }
        // SAFETY: the driver wrote this member.
        let cluster = unsafe { value.clusterDim.x };
        Ok(Self {
            params,
            // Captured launches name a kernel, which the driver takes in a function's place.
            function: match params.func.is_null() {
                true => params.kern.cast(),
                false => params.func,
            },
            cluster,
            _graph: Some(graph),
        })
    }

    /// Launches.
    ///
    /// # Safety
    /// The context of `stream` is current, and the memory that the parameters name is alive in it.
    pub unsafe fn launch(&self, stream: sys::CUstream) -> Result<(), result::DriverError> {
        let p = &self.params;
        if self.cluster == 0 {
            // SAFETY: this function's own contract; the parameters are the kernel's.
            return unsafe {
                sys::cuLaunchKernel(
                    self.function,
                    p.gridDimX,
                    p.gridDimY,
                    p.gridDimZ,
                    p.blockDimX,
                    p.blockDimY,
                    p.blockDimZ,
                    p.sharedMemBytes,
                    stream,
                    p.kernelParams,
                    null_mut::<*mut c_void>(),
                )
            }
            .result();
        }
        // SAFETY: integers and pointers.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim.x = self.cluster;
        attribute.value.clusterDim.y = 1;
        attribute.value.clusterDim.z = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: p.gridDimX,
            gridDimY: p.gridDimY,
            gridDimZ: p.gridDimZ,
            blockDimX: p.blockDimX,
            blockDimY: p.blockDimY,
            blockDimZ: p.blockDimZ,
            sharedMemBytes: p.sharedMemBytes,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        // SAFETY: as above.
        unsafe { sys::cuLaunchKernelEx(&config, self.function, p.kernelParams, null_mut()) }
            .result()
    }
}

impl fmt::Debug for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params = &self.params;
        f.debug_struct("Bare")
            .field("grid", &[params.gridDimX, params.gridDimY, params.gridDimZ])
            .field("threads", &params.blockDimX)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}
