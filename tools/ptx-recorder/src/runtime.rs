//! Functions of the CUDA runtime, `libcudart.so.13`.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};

use crate::call::{
    self, HostFunction, Library, api, call_host_function, exported, finish, offer, ordered, put,
    put_text, run_always, text,
};
use crate::code::{Code, Fail};
use crate::copy::Direction;
use crate::fatbin;
use crate::launch::{Arguments, Attribute, Request};
use crate::memory::Kind;
use crate::names::entry_point;
use crate::objects::{self, handle_of, module_of, put_handle, put_module, put_variable};
use crate::recorder::{Kernel, Recorder, Target, Variable, recorder};

/// `dim3`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

impl From<Dim3> for [u32; 3] {
    fn from(d: Dim3) -> Self {
        [d.x, d.y, d.z]
    }
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: *mut c_void,
    attributes: *const Attribute,
    count: u32,
}

impl LaunchConfig {
    /// # Safety
    ///
    /// The pointer must be null or lead to one, with as many attributes as it says.
    unsafe fn request(
        config: *const Self,
        kernel: *const c_void,
        arguments: Arguments,
    ) -> Result<Request, Fail> {
        // SAFETY: the caller's promise.
        let Some(c) = (unsafe { config.as_ref() }) else {
            return Err(Fail::value("the launch configuration is null"));
        };
        let request = Request::new(kernel, c.grid.into(), c.block.into(), c.shared as u64);
        let request = request.on(c.stream).with(arguments);
        // SAFETY: the caller's promise.
        unsafe { request.attributes(c.attributes, c.count) }
    }
}

/// The configuration of `<<<...>>>`: pushed by the caller of a kernel's host function, popped inside of it.
type Configuration = (Dim3, Dim3, usize, usize);

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// A launch as `cudaLaunchKernel` is asked for it.
fn plain(
    kernel: *const c_void,
    (grid, block): (Dim3, Dim3),
    list: *const *const c_void,
    shared: usize,
    stream: *mut c_void,
) -> Request {
    let request = Request::new(kernel, grid.into(), block.into(), shared as u64);
    request.on(stream).with(Arguments::Pointers(list))
}

// Functions that nvcc's code calls before `main` have no result to fail with: a fault is reported when a kernel is
// launched.
exported! {
    fn __cudaRegisterFatBinary(wrapper: *const u8) -> *mut *mut c_void {
        let mut index = 0;
        run_always(Library::Runtime, "__cudaRegisterFatBinary", |r| {
            // SAFETY: nvcc's code gives its own wrapper, which is static.
            let sources = unsafe { fatbin::of_wrapper(wrapper) }.and_then(|c| fatbin::sources(&c));
            index = handle_of(r.load(sources));
            Ok(())
        });
        index as *mut *mut c_void
    }
    also [__cudaUnregisterFatBinary] fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) -> () {}
    fn __cudaInitModule(_handle: *mut *mut c_void) -> c_char { 1 }
    fn __cudaRegisterFunction(
        handle: *mut *mut c_void, host: *const c_void, _device: *const c_char, name: *const c_char, _thread_limit: i32,
        _thread: *const c_void, _block: *const c_void, _block_dim: *const c_void, _grid_dim: *const c_void,
        _warp_size: *const i32,
    ) -> () {
        // SAFETY: nvcc's code gives a name that ends with a zero.
        if let Ok(name) = unsafe { text(name) } {
            let kernel = Kernel { module: module_of(handle.cast()), name, ..Kernel::default() };
            recorder().kernels.insert(host as usize, kernel);
        }
    }
    fn __cudaRegisterVar(
        handle: *mut *mut c_void, host: *const c_void, _device: *const c_char, name: *const c_char, _external: i32,
        _size: usize, _constant: i32, _global: i32,
    ) -> () {
        // SAFETY: nvcc's code gives a name that ends with a zero.
        if let Ok(name) = unsafe { text(name) } {
            let variable = Variable { module: module_of(handle.cast()), name };
            recorder().variables.insert(host as usize, variable);
        }
    }
    fn __cudaRegisterManagedVar() -> () {
        crate::say("__cudaRegisterManagedVar: __managed__ variables are not supported: kernels see their own copies");
    }
    also [__cudaRegisterUnifiedTable] fn __cudaRegisterHostVar() -> () {}
    fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared: usize, stream: *mut c_void) -> u32 {
        CONFIGURATIONS.with_borrow_mut(|all| all.push((grid, block, shared, stream as usize)));
        0
    }
    fn __cudaPopCallConfiguration(grid: *mut Dim3, block: *mut Dim3, shared: *mut usize, stream: *mut usize) -> i32 {
        let popped = CONFIGURATIONS.with_borrow_mut(Vec::pop);
        let name = "__cudaPopCallConfiguration";
        let Some((g, b, bytes, s)) = popped else {
            let why = "a kernel's host function was called without <<<...>>>";
            return finish(Library::Runtime, name, Err(Fail::new(Code::MISSING_CONFIGURATION, why)));
        };
        // SAFETY: nvcc's code gives variables of its own.
        unsafe {
            offer(grid, g);
            offer(block, b);
            offer(shared, bytes);
            offer(stream, s);
        }
        0
    }

    // The functions below report errors, and so must not fail because of an earlier one.

    fn cudaGetLastError() -> i32 {
        let last = last_error();
        call::forget_last();
        last
    }
    fn cudaPeekAtLastError() -> i32 { last_error() }
    fn cudaGetErrorString(code: i32) -> *const c_char {
        Code(code).text().unwrap_or(c"unrecognized error code").as_ptr()
    }
    fn cudaGetErrorName(code: i32) -> *const c_char {
        Code(code).runtime_name().unwrap_or(c"unrecognized error code").as_ptr()
    }
    also [cudaLaunchHostFunc_ptsz] fn cudaLaunchHostFunc(
        stream: *mut c_void, function: Option<HostFunction>, data: *mut c_void,
    ) -> i32 {
        // SAFETY: the program gives a function that takes this data.
        unsafe { call_host_function(Library::Runtime, "cudaLaunchHostFunc", stream, function, data) }
    }
}

fn last_error() -> i32 {
    let sticky = recorder().sticky;
    sticky.unwrap_or_else(call::last).0
}

// Functions that a program needs when it ends work still: these never fail because of a launch.
api! { Runtime run_always;
    also [cudaFreeHost] fn cudaFree(address: u64) |r| { r.free(address) }
    also [cudaFreeAsync_ptsz] fn cudaFreeAsync(address: u64, _stream: *mut c_void) |r| { r.free(address) }
    also [cudaEventDestroy] fn cudaStreamDestroy(_object: *mut c_void) |r| { Ok(()) }
    fn cudaLibraryUnload(library: *mut c_void) |r| {
        r.unload(module_of(library));
        Ok(())
    }
    fn cudaDeviceReset() |r| {
        // Programs end with it: a failed launch is forgotten, as documented, and memory goes with the process.
        r.sticky = None;
        r.end_of_all();
        call::forget_last();
        Ok(())
    }
}

/// Allocates nothing for no bytes, as `cudaMalloc` does.
fn allocate(r: &mut Recorder, size: usize, kind: Kind) -> Result<u64, Fail> {
    match size {
        0 => Ok(0),
        _ => r.memory.allocate(size, kind),
    }
}

fn variable(r: &Recorder, host: usize) -> Result<Variable, Fail> {
    let known = r.variables.get(&host).cloned();
    known.ok_or_else(|| Fail::new(Code::INVALID_SYMBOL, "this is no variable of a module"))
}

/// Members of `cudaFuncAttributes`: sizes, then numbers, by the driver's numbers of attributes.
const SIZES: [u32; 3] = [1, 2, 3];
const NUMBERS: [u32; 12] = [0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15];

/// `cudaFuncAttributes`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct FuncAttributes {
    sizes: [usize; 3],
    numbers: [i32; 12],
    any_cluster: i32,
    reserved: [i32; 16],
}

/// `cudaPointerAttributes`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PointerAttributes {
    kind: u32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
    reserved: [i64; 8],
}

api! { Runtime run;
    // Launches.

    also [cudaGetKernel, cudaGetFuncBySymbol] fn __cudaGetKernel(kernel: *mut *mut c_void, host: *const c_void) |r| {
        r.kernel(host as usize)?;
        put_handle(kernel, host as usize)
    }

    also [__cudaLaunchKernel_ptsz, cudaLaunchKernel, cudaLaunchKernel_ptsz] fn __cudaLaunchKernel(
        kernel: *const c_void, grid: Dim3, block: Dim3, arguments: *const *const c_void, shared: usize,
        stream: *mut c_void,
    ) |r| { r.launch(&plain(kernel, (grid, block), arguments, shared, stream)) }

    also [cudaLaunchCooperativeKernel_ptsz] fn cudaLaunchCooperativeKernel(
        kernel: *const c_void, grid: Dim3, block: Dim3, arguments: *const *const c_void, shared: usize,
        stream: *mut c_void,
    ) |r| { r.launch(&plain(kernel, (grid, block), arguments, shared, stream).cooperative()) }

    also [cudaLaunchKernelExC_ptsz] fn cudaLaunchKernelExC(
        config: *const LaunchConfig, kernel: *const c_void, arguments: *const *const c_void,
    ) |r| { r.launch(&LaunchConfig::request(config, kernel, Arguments::Pointers(arguments))?) }

    fn cudaFuncSetAttribute(kernel: *const c_void, attribute: u32, value: i32) |r| {
        r.set_attribute(kernel as usize, attribute, value)
    }

    fn cudaKernelSetAttributeForDevice(kernel: *const c_void, attribute: u32, value: i32, device: i32) |r| {
        r.only(device)?;
        r.set_attribute(kernel as usize, attribute, value)
    }

    also [cudaFuncSetSharedMemConfig] fn cudaFuncSetCacheConfig(kernel: *const c_void, _config: u32) |r| {
        r.kernel(kernel as usize).map(|_| ())
    }

    fn cudaFuncGetAttributes(to: *mut FuncAttributes, kernel: *const c_void) |r| {
        let kernel = kernel as usize;
        let mut found = FuncAttributes {
            sizes: [0; 3],
            numbers: [0; 12],
            any_cluster: r.get_attribute(kernel, objects::function::ANY_CLUSTER)?,
            reserved: [0; 16],
        };
        for (to, id) in found.sizes.iter_mut().zip(SIZES) {
            *to = r.get_attribute(kernel, id)? as usize;
        }
        for (to, id) in found.numbers.iter_mut().zip(NUMBERS) {
            *to = r.get_attribute(kernel, id)?;
        }
        put(to, found)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        count: *mut i32, kernel: *const c_void, threads: i32, shared: usize,
    ) |r| { put(count, r.occupancy(kernel as usize, threads.max(0) as u64, shared as u64)?) }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: *mut i32, kernel: *const c_void, threads: i32, shared: usize, _flags: u32,
    ) |r| { put(count, r.occupancy(kernel as usize, threads.max(0) as u64, shared as u64)?) }

    fn cudaOccupancyMaxActiveClusters(count: *mut i32, kernel: *const c_void, config: *const LaunchConfig) |r| {
        let request = LaunchConfig::request(config, kernel, Arguments::Block(std::ptr::null(), 0))?;
        put(count, r.clusters_at_once(&request)?)
    }

    fn cudaOccupancyMaxPotentialClusterSize(
        size: *mut i32, kernel: *const c_void, _config: *const LaunchConfig,
    ) |r| { put(size, if r.kernel(kernel as usize)?.any_cluster { 16 } else { 8 }) }

    // Memory.

    fn cudaMalloc(to: *mut u64, size: usize) |r| { put(to, allocate(r, size, Kind::Device)?) }

    also [cudaMallocAsync_ptsz] fn cudaMallocAsync(to: *mut u64, size: usize, _stream: *mut c_void) |r| {
        put(to, allocate(r, size, Kind::Device)?)
    }

    also [cudaMallocFromPoolAsync_ptsz] fn cudaMallocFromPoolAsync(
        to: *mut u64, size: usize, _pool: *mut c_void, _stream: *mut c_void,
    ) |r| { put(to, allocate(r, size, Kind::Device)?) }

    fn cudaMallocManaged(to: *mut u64, size: usize, _flags: u32) |r| { put(to, allocate(r, size, Kind::Managed)?) }

    fn cudaMallocHost(to: *mut u64, size: usize) |r| { put(to, allocate(r, size, Kind::Host)?) }

    fn cudaHostAlloc(to: *mut u64, size: usize, _flags: u32) |r| { put(to, allocate(r, size, Kind::Host)?) }

    fn cudaHostGetDevicePointer(to: *mut u64, host: u64, _flags: u32) |r| {
        if r.memory.find(host).is_none() {
            return Err(Fail::value("this host memory was not allocated by cudaHostAlloc or cudaMallocHost"));
        }
        put(to, host)
    }

    fn cudaHostGetFlags(to: *mut u32, host: u64) |r| {
        match r.memory.find(host) {
            Some(_) => put(to, 0),
            None => Err(Fail::value("this host memory was not allocated by cudaHostAlloc or cudaMallocHost")),
        }
    }

    // Page-locking is for speed. The device does not see this memory: `cudaHostGetDevicePointer` says so.
    fn cudaHostRegister(_host: *mut c_void, _size: usize, _flags: u32) |r| { Ok(()) }
    fn cudaHostUnregister(_host: *mut c_void) |r| { Ok(()) }

    fn cudaMallocPitch(to: *mut u64, pitch: *mut usize, width: usize, height: usize) |r| {
        let found = match width.min(height) {
            0 => (0, 0),
            _ => r.allocate_rows(width, height)?,
        };
        put(pitch, found.1)?;
        put(to, found.0)
    }

    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) |r| {
        let sizes = r.memory.sizes();
        offer(free, sizes.1 as usize);
        offer(total, sizes.0 as usize);
        Ok(())
    }

    fn cudaGetSymbolAddress(to: *mut u64, symbol: *const c_void) |r| {
        let v = variable(r, symbol as usize)?;
        let found = r.get_variable(v.module, &v.name)?;
        put(to, found.0)
    }

    fn cudaGetSymbolSize(to: *mut usize, symbol: *const c_void) |r| {
        let v = variable(r, symbol as usize)?;
        let found = r.get_variable(v.module, &v.name)?;
        put(to, found.1 as usize)
    }

    fn cudaPointerGetAttributes(to: *mut PointerAttributes, pointer: u64) |r| {
        // A variable is device memory, though no allocation.
        let known = match r.memory.find(pointer).map(|a| a.kind) {
            None if matches!(r.target_of(pointer, 1), Ok(Target::Variable(..))) => Some(Kind::Device),
            known => known,
        };
        let (kind, device, device_pointer, host_pointer) = match known {
            None => (0, -2, 0, pointer),
            Some(Kind::Host) => (1, 0, pointer, pointer),
            Some(Kind::Device) => (2, 0, pointer, 0),
            Some(Kind::Managed) => (3, 0, pointer, pointer),
        };
        put(to, PointerAttributes { kind, device, device_pointer, host_pointer, reserved: [0; 8] })
    }

    // Hints of where managed memory should be: it is at one place.
    also [cudaMemPrefetchAsync_ptsz] fn cudaMemPrefetchAsync(
        _address: u64, _size: usize, _location: u64, _flags: u32, _stream: *mut c_void,
    ) |r| { Ok(()) }
    fn cudaMemAdvise(_address: u64, _size: usize, _advice: u32, _location: u64) |r| { Ok(()) }
    also [cudaStreamAttachMemAsync_ptsz] fn cudaStreamAttachMemAsync(
        _stream: *mut c_void, _address: u64, _size: usize, _flags: u32,
    ) |r| { Ok(()) }
    also [cudaDeviceGetMemPool] fn cudaDeviceGetDefaultMemPool(pool: *mut *mut c_void, device: i32) |r| {
        r.only(device)?;
        put_handle(pool, r.handle())
    }
    fn cudaMemPoolSetAttribute(_pool: *mut c_void, _attribute: u32, _value: *const c_void) |r| { Ok(()) }
    fn cudaMemPoolTrimTo(_pool: *mut c_void, _keep: usize) |r| { Ok(()) }

    // Streams and events: all that was launched has ended when a launch returns.

    also [cudaEventCreate] fn cudaStreamCreate(to: *mut *mut c_void) |r| { put_handle(to, r.handle()) }
    also [cudaEventCreateWithFlags] fn cudaStreamCreateWithFlags(to: *mut *mut c_void, _flags: u32) |r| {
        put_handle(to, r.handle())
    }
    fn cudaStreamCreateWithPriority(to: *mut *mut c_void, _flags: u32, _priority: i32) |r| {
        put_handle(to, r.handle())
    }
    also [cudaStreamSynchronize_ptsz, cudaStreamQuery, cudaStreamQuery_ptsz] fn cudaStreamSynchronize(
        stream: *mut c_void,
    ) |r| {
        r.end_of(stream as usize);
        Ok(())
    }
    also [cudaStreamWaitEvent_ptsz] fn cudaStreamWaitEvent(
        _stream: *mut c_void, _event: *mut c_void, _flags: u32,
    ) |r| { Ok(()) }
    also [cudaStreamIsCapturing_ptsz] fn cudaStreamIsCapturing(_stream: *mut c_void, status: *mut u32) |r| {
        put(status, 0)
    }
    also [cudaStreamGetFlags_ptsz] fn cudaStreamGetFlags(_stream: *mut c_void, flags: *mut u32) |r| { put(flags, 0) }
    also [cudaStreamGetPriority_ptsz] fn cudaStreamGetPriority(_stream: *mut c_void, priority: *mut i32) |r| {
        put(priority, 0)
    }
    also [cudaStreamGetDevice_ptsz] fn cudaStreamGetDevice(_stream: *mut c_void, device: *mut i32) |r| { put(device, 0) }
    also [cudaStreamSetAttribute_ptsz] fn cudaStreamSetAttribute(
        _stream: *mut c_void, _attribute: u32, _value: *const c_void,
    ) |r| { Ok(()) }
    fn cudaDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) |r| {
        offer(least, 0);
        offer(greatest, 0);
        Ok(())
    }
    also [cudaEventRecord_ptsz] fn cudaEventRecord(event: *mut c_void, _stream: *mut c_void) |r| {
        r.record(event as usize);
        Ok(())
    }
    also [cudaEventRecordWithFlags_ptsz] fn cudaEventRecordWithFlags(
        event: *mut c_void, _stream: *mut c_void, _flags: u32,
    ) |r| {
        r.record(event as usize);
        Ok(())
    }
    also [cudaEventQuery] fn cudaEventSynchronize(event: *mut c_void) |r| {
        r.wait_for(event as usize);
        Ok(())
    }
    fn cudaEventElapsedTime(to: *mut f32, start: *mut c_void, end: *mut c_void) |r| {
        put(to, objects::elapsed(start as usize, end as usize)?)
    }

    // The device.

    fn cudaDeviceSynchronize() |r| {
        r.end_of_all();
        Ok(())
    }
    fn cudaGetDeviceCount(to: *mut i32) |r| { put(to, 1) }
    fn cudaGetDevice(to: *mut i32) |r| { put(to, 0) }
    fn cudaSetDevice(device: i32) |r| { r.only(device) }
    fn cudaInitDevice(device: i32, _device_flags: u32, _flags: u32) |r| { r.only(device) }
    fn cudaChooseDevice(to: *mut i32, _properties: *const c_void) |r| { put(to, 0) }
    fn cudaSetDeviceFlags(_flags: u32) |r| { Ok(()) }
    fn cudaGetDeviceFlags(to: *mut u32) |r| { put(to, 0) }
    also [cudaDeviceSetSharedMemConfig] fn cudaDeviceSetCacheConfig(_config: u32) |r| { Ok(()) }
    fn cudaDeviceSetLimit(_limit: u32, _value: usize) |r| { Ok(()) }
    fn cudaCtxResetPersistingL2Cache() |r| { Ok(()) }
    also [cudaProfilerStop] fn cudaProfilerStart() |r| { Ok(()) }
    also [cudaRuntimeGetVersion] fn cudaDriverGetVersion(to: *mut i32) |r| { put(to, crate::driver::VERSION) }
    fn cudaDeviceGetAttribute(to: *mut i32, attribute: u32, device: i32) |r| {
        put(to, r.attribute(attribute, device)?)
    }
    fn cudaDeviceCanAccessPeer(to: *mut i32, _device: i32, _peer: i32) |r| { put(to, 0) }
    fn cudaDeviceGetPCIBusId(to: *mut c_char, length: i32, device: i32) |r| {
        r.only(device)?;
        put_text(to, length, "0000:00:00.0")
    }
    also [cudaGetDeviceProperties_v2] fn cudaGetDeviceProperties(to: *mut u8, device: i32) |r| {
        r.only(device)?;
        if to.is_null() {
            return Err(Fail::value("the pointer to a result is null"));
        }
        let bytes = properties(r);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        Ok(())
    }

    // The driver's functions, and modules that a program loads.

    also [cudaGetDriverEntryPoint_ptsz] fn cudaGetDriverEntryPoint(
        name: *const c_char, function: *mut *mut c_void, _flags: u64, status: *mut u32,
    ) |r| { entry_point(&text(name)?, function, crate::driver::VERSION as u32, status) }
    also [cudaGetDriverEntryPointByVersion_ptsz] fn cudaGetDriverEntryPointByVersion(
        name: *const c_char, function: *mut *mut c_void, version: u32, _flags: u64, status: *mut u32,
    ) |r| { entry_point(&text(name)?, function, version, status) }
    fn cudaLibraryLoadData(
        library: *mut *mut c_void, code: *const u8, _jit: *const u32, _jit_values: *const *const c_void, _count: u32,
        _options: *const u32, _values: *const *const c_void, _options_count: u32,
    ) |r| { put_module(library, r.load_now(fatbin::image(code))?) }
    fn cudaLibraryGetKernel(kernel: *mut *mut c_void, library: *mut c_void, name: *const c_char) |r| {
        let handle = r.get_kernel(module_of(library), &text(name)?)?;
        put_handle(kernel, handle)
    }
    fn cudaLibraryGetGlobal(address: *mut u64, size: *mut usize, library: *mut c_void, name: *const c_char) |r| {
        let found = r.get_variable(module_of(library), &text(name)?)?;
        put_variable(address, size, found)
    }
}

ordered! { Runtime;
    [cudaMemcpy, cudaMemcpy_ptds] [cudaMemcpyAsync, cudaMemcpyAsync_ptsz] (
        to: u64, from: u64, size: usize, kind: u32,
    ) |r| { r.copy(to, from, size, Direction::from_number(kind)?) }

    [cudaMemcpyPeer] [cudaMemcpyPeerAsync] (to: u64, _to_device: i32, from: u64, _from_device: i32, size: usize) |r| {
        r.copy(to, from, size, Direction::DeviceToDevice)
    }

    [cudaMemcpy2D, cudaMemcpy2D_ptds] [cudaMemcpy2DAsync, cudaMemcpy2DAsync_ptsz] (
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: u32,
    ) |r| {
        r.copy_2d((to, to_pitch), (from, from_pitch), (width, height), Direction::from_number(kind)?)
    }

    [cudaMemset, cudaMemset_ptds] [cudaMemsetAsync, cudaMemsetAsync_ptsz] (to: u64, value: i32, size: usize) |r| {
        r.fill((to, 0), &[value as u8], (size, 1))
    }

    [cudaMemset2D, cudaMemset2D_ptds] [cudaMemset2DAsync, cudaMemset2DAsync_ptsz] (
        to: u64, pitch: usize, value: i32, width: usize, height: usize,
    ) |r| { r.fill((to, pitch), &[value as u8], (width, height)) }

    [cudaMemcpyToSymbol, cudaMemcpyToSymbol_ptds] [cudaMemcpyToSymbolAsync, cudaMemcpyToSymbolAsync_ptsz] (
        symbol: *const c_void, from: u64, size: usize, offset: usize, _kind: u32,
    ) |r| {
        let v = variable(r, symbol as usize)?;
        r.copy_to_variable(&v, offset, from, size)
    }

    [cudaMemcpyFromSymbol, cudaMemcpyFromSymbol_ptds] [cudaMemcpyFromSymbolAsync, cudaMemcpyFromSymbolAsync_ptsz] (
        to: u64, symbol: *const c_void, size: usize, offset: usize, _kind: u32,
    ) |r| {
        let v = variable(r, symbol as usize)?;
        r.copy_from_variable(to, &v, offset, size)
    }
}

/// The bytes of `cudaDeviceProp` of CUDA 13. Members that are not named here are zero.
fn properties(r: &Recorder) -> Vec<u8> {
    let d = r.device();
    let number = |id| d.attribute(id).unwrap_or_default();
    let mut bytes = vec![0u8; SIZE];
    let name = r.device_name();
    bytes[..name.len().min(255)].copy_from_slice(&name.as_bytes()[..name.len().min(255)]);
    let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    set(288, &d.memory.to_le_bytes());
    for (at, id) in LONG {
        set(at, &(number(id) as u64).to_le_bytes());
    }
    for (at, id) in SHORT {
        set(at, &number(id).to_le_bytes());
    }
    bytes
}

/// Bytes of `cudaDeviceProp`.
const SIZE: usize = 1008;

/// Members of `cudaDeviceProp` of 64 bits: the offset of each, and the attribute whose value it has.
#[rustfmt::skip]
const LONG: [(usize, u32); 9] = [
    (296, 8), (312, 11), (352, 9), (368, 14), (376, 51), (552, 30), (624, 81), (672, 97), (696, 111),
];

/// Members of `cudaDeviceProp` of 32 bits: the offset of each, and the attribute whose value it has.
#[rustfmt::skip]
const SHORT: [(usize, u32); 30] = [
    (304, 12), (308, 10), (320, 1), (324, 2), (328, 3), (332, 4), (336, 5), (340, 6), (344, 7), (360, 75), (364, 76),
    (384, 16), (392, 19), (560, 31), (584, 40), (588, 41), (592, 37), (596, 38), (604, 39), (608, 78), (612, 79),
    (616, 80), (632, 82), (636, 83), (656, 89), (660, 90), (668, 95), (688, 106), (720, 115), (748, 120),
];

const _: () = assert!(size_of::<FuncAttributes>() == 144 && size_of::<PointerAttributes>() == 88);
