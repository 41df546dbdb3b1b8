//! Functions of the CUDA driver, `libcuda.so.1`, as far as programs use it beside the runtime or in its place.

use std::ffi::{CStr, c_char, c_void};

use crate::call::{
    HostFunction, Library, api, call_host_function, exported, finish, offer, ordered, put,
    put_text, text,
};
use crate::code::{Code, Fail};
use crate::copy::Direction;
use crate::fatbin;
use crate::launch::{Arguments, Attribute, Request};
use crate::memory::Kind;
use crate::names::entry_point;
use crate::objects::{self, put_handle, put_module, put_variable};
use crate::recorder::Recorder;

/// The version of CUDA that this stands in for: 13.0.
pub(crate) const VERSION: i32 = 13000;
/// Handle of the context: there is only one.
const CONTEXT: usize = 0x7e57_c000_0000;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: *mut c_void,
    attributes: *const Attribute,
    count: u32,
}

/// Numbers in the list that `cuLaunchKernel` may be given in place of parameters: its end, and the entries in it.
const LAUNCH_END: usize = 0;
const LAUNCH_BUFFER: usize = 1;
const LAUNCH_SIZE: usize = 2;

/// The parameters of a launch, given in one of two ways.
///
/// # Safety
///
/// Both must be as `cuLaunchKernel` documents them.
unsafe fn arguments(
    list: *const *const c_void,
    extra: *const *const c_void,
) -> Result<Arguments, Fail> {
    if extra.is_null() {
        return Ok(Arguments::Pointers(list));
    }
    if !list.is_null() {
        return Err(Fail::value("parameters are given in both ways"));
    }
    let (mut start, mut size) = (std::ptr::null::<u8>(), 0);
    let mut at = extra;
    loop {
        // SAFETY: the caller says that the list is names with values behind them, up to its end.
        unsafe {
            match *at as usize {
                LAUNCH_END => return Ok(Arguments::Block(start, size)),
                LAUNCH_BUFFER => start = (*at.add(1)).cast(),
                LAUNCH_SIZE => size = (*at.add(1)).cast::<usize>().read_unaligned(),
                other => return Err(Fail::value(format!("{other:#x} is no kind of parameters"))),
            }
            at = at.add(2);
        }
    }
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
        let request = Request::new(kernel, c.grid, c.block, c.shared.into());
        let request = request.on(c.stream).with(arguments);
        // SAFETY: the caller's promise.
        unsafe { request.attributes(c.attributes, c.count) }
    }
}

/// Gives a program a text of a code; null where there is none.
///
/// # Safety
///
/// `to` must be null or writable.
unsafe fn offer_text(to: *mut *const c_char, found: Option<&'static CStr>) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { offer(to, found.map_or(std::ptr::null(), |t| t.as_ptr())) };
    found.map_or(Code::INVALID_VALUE, |_| Code::SUCCESS).0
}

exported! {
    fn cuGetErrorString(code: i32, to: *mut *const c_char) -> i32 {
        // SAFETY: the program's pointer may be written.
        unsafe { offer_text(to, Code(code).text()) }
    }
    fn cuGetErrorName(code: i32, to: *mut *const c_char) -> i32 {
        // SAFETY: the program's pointer may be written.
        unsafe { offer_text(to, Code(code).driver_name()) }
    }
    fn cuLaunchHostFunc(stream: *mut c_void, function: Option<HostFunction>, data: *mut c_void) -> i32 {
        // SAFETY: the program gives a function that takes this data.
        unsafe { call_host_function(Library::Driver, "cuLaunchHostFunc", stream, function, data) }
    }

    // The CUDA runtime that `nvcc` links by default asks for this, which nobody documents.
    fn cuGetExportTable(_table: *mut *const c_void, _id: *const c_void) -> i32 {
        let why = "this program contains the CUDA runtime: link it with `nvcc -cudart shared`";
        finish(Library::Driver, "cuGetExportTable", Err(Fail::new(Code::NOT_SUPPORTED, why)))
    }
}

// Functions that a program needs when it ends work still: these never fail because of a launch.
api! { Driver run_always;
    also [cuMemFreeHost] fn cuMemFree_v2(address: u64) |r| { r.free(address) }
    fn cuMemFreeAsync(address: u64, _stream: *mut c_void) |r| { r.free(address) }
    also [cuLibraryUnload] fn cuModuleUnload(module: *mut c_void) |r| {
        r.unload(objects::module_of(module));
        Ok(())
    }
    also [cuEventDestroy_v2] fn cuStreamDestroy_v2(_object: *mut c_void) |r| { Ok(()) }
}

/// `CUDA_MEMCPY2D`: one end of it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    x: usize,
    y: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: *mut c_void,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy2d {
    from: End,
    to: End,
    width: usize,
    height: usize,
}

impl Copy2d {
    /// # Safety
    ///
    /// The pointer must be null or lead to one whose rows are there.
    unsafe fn run(copy: *const Self, r: &mut Recorder) -> Result<(), Fail> {
        // SAFETY: the caller's promise.
        let Some(c) = (unsafe { copy.as_ref() }) else {
            return Err(Fail::value("the description of the copy is null"));
        };
        let (to, from) = (c.to.start()?, c.from.start()?);
        // SAFETY: the caller's promise.
        unsafe { r.copy_2d(to, from, (c.width, c.height), Direction::Addresses) }
    }
}

impl End {
    fn start(&self) -> Result<(u64, usize), Fail> {
        let base = match self.kind {
            1 => self.host,
            2 | 4 => self.device,
            _ => {
                return Err(Fail::new(
                    Code::NOT_SUPPORTED,
                    "copies of CUDA arrays are not supported",
                ));
            }
        };
        let offset = self.y.checked_mul(self.pitch);
        let offset = offset.and_then(|o| o.checked_add(self.x));
        let start = offset.and_then(|o| base.checked_add(o as u64));
        let start = start.ok_or_else(|| Fail::value("rows reach beyond all addresses"))?;
        Ok((start, self.pitch))
    }
}

api! { Driver run;
    fn cuInit(_flags: u32) |r| { Ok(()) }
    fn cuDriverGetVersion(to: *mut i32) |r| { put(to, VERSION) }
    fn cuDeviceGet(to: *mut i32, device: i32) |r| {
        r.only(device)?;
        put(to, 0)
    }
    fn cuDeviceGetCount(to: *mut i32) |r| { put(to, 1) }
    fn cuDeviceGetName(to: *mut c_char, length: i32, device: i32) |r| {
        r.only(device)?;
        put_text(to, length, &r.device_name())
    }
    also [cuDeviceGetUuid] fn cuDeviceGetUuid_v2(to: *mut [u8; 16], device: i32) |r| {
        r.only(device)?;
        put(to, *b"ptx-sim recorder")
    }
    fn cuDeviceTotalMem_v2(to: *mut usize, device: i32) |r| {
        r.only(device)?;
        put(to, r.memory.sizes().0 as usize)
    }
    fn cuDeviceGetAttribute(to: *mut i32, attribute: u32, device: i32) |r| { put(to, r.attribute(attribute, device)?) }
    fn cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, device: i32) |r| {
        put(major, r.attribute(75, device)?)?;
        put(minor, r.attribute(76, device)?)
    }
    fn cuDeviceCanAccessPeer(to: *mut i32, _device: i32, _peer: i32) |r| { put(to, 0) }
    fn cuDeviceGetPCIBusId(to: *mut c_char, length: i32, device: i32) |r| {
        r.only(device)?;
        put_text(to, length, "0000:00:00.0")
    }
    also [cuDeviceGetMemPool] fn cuDeviceGetDefaultMemPool(pool: *mut *mut c_void, device: i32) |r| {
        r.only(device)?;
        put_handle(pool, r.handle())
    }
    fn cuMemPoolSetAttribute(_pool: *mut c_void, _attribute: u32, _value: *const c_void) |r| { Ok(()) }

    // Contexts: one, always current.

    fn cuDevicePrimaryCtxRetain(to: *mut *mut c_void, device: i32) |r| {
        r.only(device)?;
        put_handle(to, CONTEXT)
    }
    also [cuDevicePrimaryCtxReset_v2] fn cuDevicePrimaryCtxRelease_v2(device: i32) |r| { r.only(device) }
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _flags: u32) |r| { r.only(device) }
    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) |r| {
        r.only(device)?;
        offer(flags, 0);
        offer(active, 1);
        Ok(())
    }
    fn cuCtxCreate_v2(to: *mut *mut c_void, _flags: u32, device: i32) |r| {
        r.only(device)?;
        put_handle(to, CONTEXT)
    }
    fn cuCtxCreate_v4(to: *mut *mut c_void, _parameters: *const c_void, _flags: u32, device: i32) |r| {
        r.only(device)?;
        put_handle(to, CONTEXT)
    }
    also [cuCtxSetCurrent, cuCtxPushCurrent_v2] fn cuCtxDestroy_v2(_context: *mut c_void) |r| { Ok(()) }
    also [cuCtxPopCurrent_v2] fn cuCtxGetCurrent(to: *mut *mut c_void) |r| { put_handle(to, CONTEXT) }
    fn cuCtxGetDevice(to: *mut i32) |r| { put(to, 0) }
    fn cuCtxGetId(_context: *mut c_void, to: *mut u64) |r| { put(to, 1) }
    fn cuCtxGetApiVersion(_context: *mut c_void, to: *mut i32) |r| { put(to, VERSION) }
    fn cuCtxGetFlags(to: *mut u32) |r| { put(to, 0) }
    fn cuCtxSetLimit(_limit: u32, _value: usize) |r| { Ok(()) }
    fn cuCtxSetCacheConfig(_config: u32) |r| { Ok(()) }
    fn cuCtxGetDevice_v2(to: *mut i32, _context: *mut c_void) |r| { put(to, 0) }
    also [cuProfilerStart, cuProfilerStop] fn cuCtxResetPersistingL2Cache() |r| { Ok(()) }
    fn cuCtxSynchronize() |r| {
        r.end_of_all();
        Ok(())
    }
    fn cuCtxSynchronize_v2(_context: *mut c_void) |r| {
        r.end_of_all();
        Ok(())
    }
    fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) |r| {
        offer(least, 0);
        offer(greatest, 0);
        Ok(())
    }

    // Modules.

    also [cuModuleLoadFatBinary] fn cuModuleLoadData(module: *mut *mut c_void, image: *const u8) |r| {
        put_module(module, r.load_now(fatbin::image(image))?)
    }
    fn cuModuleLoadDataEx(
        module: *mut *mut c_void, image: *const u8, _count: u32, _options: *const u32, _values: *mut *mut c_void,
    ) |r| { put_module(module, r.load_now(fatbin::image(image))?) }
    fn cuModuleLoad(module: *mut *mut c_void, path: *const c_char) |r| {
        let path = text(path)?;
        // A path that is no file, such as that of a pipe, is not waited for.
        let bytes = ptx_sim::files::read(path.as_ref(), r.settings.memory_bytes());
        let bytes = bytes.map_err(|e| Fail::new(Code::FILE_NOT_FOUND, e.to_string()))?;
        put_module(module, r.load_now(fatbin::image_of(&bytes))?)
    }
    also [cuLibraryGetKernel] fn cuModuleGetFunction(
        function: *mut *mut c_void, module: *mut c_void, name: *const c_char,
    ) |r| {
        let handle = r.get_kernel(objects::module_of(module), &text(name)?)?;
        put_handle(function, handle)
    }
    also [cuLibraryGetGlobal] fn cuModuleGetGlobal_v2(
        address: *mut u64, size: *mut usize, module: *mut c_void, name: *const c_char,
    ) |r| {
        let found = r.get_variable(objects::module_of(module), &text(name)?)?;
        put_variable(address, size, found)
    }
    fn cuLibraryLoadData(
        library: *mut *mut c_void, code: *const u8, _jit: *const u32, _jit_values: *const *const c_void, _count: u32,
        _options: *const u32, _values: *const *const c_void, _options_count: u32,
    ) |r| { put_module(library, r.load_now(fatbin::image(code))?) }
    fn cuLibraryGetModule(module: *mut *mut c_void, library: *mut c_void) |r| { put_handle(module, library as usize) }
    fn cuKernelGetFunction(function: *mut *mut c_void, kernel: *mut c_void) |r| {
        r.kernel(kernel as usize)?;
        put_handle(function, kernel as usize)
    }
    fn cuModuleGetLoadingMode(to: *mut u32) |r| { put(to, 2) }

    // Kernels.

    fn cuFuncGetAttribute(to: *mut i32, attribute: u32, kernel: *mut c_void) |r| {
        put(to, r.get_attribute(kernel as usize, attribute)?)
    }
    fn cuKernelGetAttribute(to: *mut i32, attribute: u32, kernel: *mut c_void, device: i32) |r| {
        r.only(device)?;
        put(to, r.get_attribute(kernel as usize, attribute)?)
    }
    fn cuFuncSetAttribute(kernel: *mut c_void, attribute: u32, value: i32) |r| {
        r.set_attribute(kernel as usize, attribute, value)
    }
    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: *mut c_void, device: i32) |r| {
        r.only(device)?;
        r.set_attribute(kernel as usize, attribute, value)
    }
    also [cuFuncSetSharedMemConfig] fn cuFuncSetCacheConfig(kernel: *mut c_void, _config: u32) |r| {
        r.kernel(kernel as usize).map(|_| ())
    }
    fn cuFuncLoad(kernel: *mut c_void) |r| { r.program(kernel as usize).map(|_| ()) }
    also [cuKernelGetParamInfo] fn cuFuncGetParamInfo(
        kernel: *mut c_void, index: usize, offset: *mut usize, size: *mut usize,
    ) |r| {
        let (_, program) = r.program(kernel as usize)?;
        let Some(p) = program.params.get(index) else {
            return Err(Fail::value(format!("the kernel has {} parameters", program.params.len())));
        };
        offer(offset, p.offset as usize);
        offer(size, p.size as usize);
        Ok(())
    }
    also [cuLaunchKernel_ptsz] fn cuLaunchKernel(
        kernel: *mut c_void, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: *mut c_void, list: *const *const c_void, extra: *const *const c_void,
    ) |r| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let request = Request::new(kernel, grid, block, shared.into());
        r.launch(&request.on(stream).with(arguments(list, extra)?))
    }
    also [cuLaunchCooperativeKernel_ptsz] fn cuLaunchCooperativeKernel(
        kernel: *mut c_void, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: *mut c_void, list: *const *const c_void,
    ) |r| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let request = Request::new(kernel, grid, block, shared.into());
        r.launch(&request.on(stream).with(Arguments::Pointers(list)).cooperative())
    }
    also [cuLaunchKernelEx_ptsz] fn cuLaunchKernelEx(
        config: *const LaunchConfig, kernel: *mut c_void, list: *const *const c_void, extra: *const *const c_void,
    ) |r| { r.launch(&LaunchConfig::request(config, kernel, arguments(list, extra)?)?) }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        count: *mut i32, kernel: *mut c_void, threads: i32, shared: usize,
    ) |r| { put(count, r.occupancy(kernel as usize, threads.max(0) as u64, shared as u64)?) }
    fn cuOccupancyMaxActiveClusters(count: *mut i32, kernel: *mut c_void, config: *const LaunchConfig) |r| {
        let request = LaunchConfig::request(config, kernel, Arguments::Block(std::ptr::null(), 0))?;
        put(count, r.clusters_at_once(&request)?)
    }

    // Memory.

    // The driver refuses to allocate nothing, unlike the runtime.
    fn cuMemAlloc_v2(to: *mut u64, size: usize) |r| { put(to, r.memory.allocate(objects::some(size)?, Kind::Device)?) }
    fn cuMemAllocAsync(to: *mut u64, size: usize, _stream: *mut c_void) |r| {
        put(to, r.memory.allocate(size.max(1), Kind::Device)?)
    }
    fn cuMemAllocPitch_v2(to: *mut u64, pitch: *mut usize, width: usize, height: usize, _element: u32) |r| {
        let found = r.allocate_rows(objects::some(width)?, objects::some(height)?)?;
        put(pitch, found.1)?;
        put(to, found.0)
    }
    fn cuMemAllocManaged(to: *mut u64, size: usize, _flags: u32) |r| {
        put(to, r.memory.allocate(objects::some(size)?, Kind::Managed)?)
    }
    fn cuMemAllocHost_v2(to: *mut u64, size: usize) |r| { put(to, r.memory.allocate(size.max(1), Kind::Host)?) }
    fn cuMemHostAlloc(to: *mut u64, size: usize, _flags: u32) |r| {
        put(to, r.memory.allocate(size.max(1), Kind::Host)?)
    }
    fn cuMemHostGetDevicePointer_v2(to: *mut u64, host: u64, _flags: u32) |r| {
        if r.memory.find(host).is_none() {
            return Err(Fail::value("this host memory was not allocated by cuMemHostAlloc or cuMemAllocHost"));
        }
        put(to, host)
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |r| {
        let sizes = r.memory.sizes();
        offer(free, sizes.1 as usize);
        offer(total, sizes.0 as usize);
        Ok(())
    }
    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) |r| {
        let Some(found) = r.memory.find(address).map(|a| a.buffer) else {
            return Err(Fail::new(Code::NOT_FOUND, format!("{address:#x} is no device address")));
        };
        offer(base, found.address);
        offer(size, found.size);
        Ok(())
    }
    fn cuPointerGetAttribute(to: *mut u64, attribute: u32, address: u64) |r| {
        let Some(kind) = r.memory.find(address).map(|a| a.kind) else {
            return Err(Fail::value(format!("{address:#x} is no device address")));
        };
        let host = kind != Kind::Device;
        match attribute {
            1 => put(to, CONTEXT as u64),
            2 => put(to.cast(), if kind == Kind::Host { 1u32 } else { 2 }),
            3 => put(to, address),
            4 if host => put(to, address),
            8 => put(to.cast(), u32::from(kind == Kind::Managed)),
            9 => put(to.cast(), 0i32),
            _ => Err(Fail::new(Code::NOT_SUPPORTED, format!("pointer attribute {attribute} is not supported"))),
        }
    }

    // Streams and events: all that was launched has ended when a launch returns.

    also [cuEventCreate] fn cuStreamCreate(to: *mut *mut c_void, _flags: u32) |r| { put_handle(to, r.handle()) }
    fn cuStreamCreateWithPriority(to: *mut *mut c_void, _flags: u32, _priority: i32) |r| { put_handle(to, r.handle()) }
    also [cuStreamQuery] fn cuStreamSynchronize(stream: *mut c_void) |r| {
        r.end_of(stream as usize);
        Ok(())
    }
    fn cuStreamWaitEvent(_stream: *mut c_void, _event: *mut c_void, _flags: u32) |r| { Ok(()) }
    fn cuStreamIsCapturing(_stream: *mut c_void, status: *mut u32) |r| { put(status, 0) }
    fn cuStreamGetCtx(_stream: *mut c_void, to: *mut *mut c_void) |r| { put_handle(to, CONTEXT) }
    fn cuStreamGetCtx_v2(_stream: *mut c_void, to: *mut *mut c_void, green: *mut *mut c_void) |r| {
        offer(green, std::ptr::null_mut());
        put_handle(to, CONTEXT)
    }
    also [cuEventQuery] fn cuEventSynchronize(event: *mut c_void) |r| {
        r.wait_for(event as usize);
        Ok(())
    }
    fn cuEventRecord(event: *mut c_void, _stream: *mut c_void) |r| {
        r.record(event as usize);
        Ok(())
    }
    fn cuEventRecordWithFlags(event: *mut c_void, _stream: *mut c_void, _flags: u32) |r| {
        r.record(event as usize);
        Ok(())
    }
    also [cuEventElapsedTime] fn cuEventElapsedTime_v2(to: *mut f32, start: *mut c_void, end: *mut c_void) |r| {
        put(to, objects::elapsed(start as usize, end as usize)?)
    }

    fn cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, version: i32, _flags: u64, status: *mut u32,
    ) |r| { entry_point(&text(name)?, function, version as u32, status) }
    fn cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: i32, _flags: u64) |r| {
        entry_point(&text(name)?, function, version as u32, std::ptr::null_mut())
    }
}

ordered! { Driver;
    [cuMemcpy] [cuMemcpyAsync] (to: u64, from: u64, size: usize) |r| { r.copy(to, from, size, Direction::Addresses) }
    [cuMemcpyHtoD_v2] [cuMemcpyHtoDAsync_v2] (to: u64, from: u64, size: usize) |r| {
        r.copy(to, from, size, Direction::HostToDevice)
    }
    [cuMemcpyDtoH_v2] [cuMemcpyDtoHAsync_v2] (to: u64, from: u64, size: usize) |r| {
        r.copy(to, from, size, Direction::DeviceToHost)
    }
    [cuMemcpyDtoD_v2] [cuMemcpyDtoDAsync_v2] (to: u64, from: u64, size: usize) |r| {
        r.copy(to, from, size, Direction::DeviceToDevice)
    }
    [cuMemcpy2D_v2, cuMemcpy2DUnaligned_v2] [cuMemcpy2DAsync_v2] (copy: *const Copy2d) |r| { Copy2d::run(copy, r) }
    [cuMemsetD8_v2] [cuMemsetD8Async] (to: u64, value: u8, count: usize) |r| {
        r.fill((to, 0), &value.to_le_bytes(), (count, 1))
    }
    [cuMemsetD16_v2] [cuMemsetD16Async] (to: u64, value: u16, count: usize) |r| {
        r.fill((to, 0), &value.to_le_bytes(), (count, 1))
    }
    [cuMemsetD32_v2] [cuMemsetD32Async] (to: u64, value: u32, count: usize) |r| {
        r.fill((to, 0), &value.to_le_bytes(), (count, 1))
    }
}
