//! Functions of the CUDA runtime, `libcudart.so.13`.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};

use crate::call::{Library, api, driver_function, finish, offer, put, put_text, text};
use crate::code::{Code, Fail};
use crate::copy::Direction;
use crate::fatbin;
use crate::launch::{Arguments, Attribute, Request};
use crate::memory::Kind;
use crate::objects::{self, put_handle, put_variable};
use crate::recorder::{Kernel, Recorder, Variable, recorder};

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
    /// The attributes must be as many as `count` says.
    unsafe fn request(&self, kernel: usize, arguments: Arguments) -> Result<Request, Fail> {
        let mut request = Request {
            kernel,
            grid: self.grid.into(),
            block: self.block.into(),
            cluster: None,
            shared: self.shared as u64,
            dependent: false,
            cooperative: false,
            arguments,
        };
        if self.count > 0 && !self.attributes.is_null() {
            // SAFETY: the caller says that there are so many.
            let list = unsafe { std::slice::from_raw_parts(self.attributes, self.count as usize) };
            request.take(list)?;
        }
        Ok(request)
    }
}

/// What `<<<...>>>` says: pushed by the caller of a kernel's host function, popped inside of it.
type Configuration = (Dim3, Dim3, usize, usize);

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

fn plain(
    kernel: usize,
    grid: Dim3,
    block: Dim3,
    arguments: *const *const c_void,
    shared: usize,
) -> Request {
    Request {
        kernel,
        grid: grid.into(),
        block: block.into(),
        cluster: None,
        shared: shared as u64,
        dependent: false,
        cooperative: false,
        arguments: Arguments::Pointers(arguments),
    }
}

/// Index of a module by the handle that a program has of it.
fn module_of(handle: usize) -> usize {
    handle - 1
}

// What nvcc's code calls before `main` has no result to fail with: what is wrong is said when a kernel is launched.

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn __cudaRegisterFatBinary(wrapper: *const u8) -> *mut *mut c_void {
    // SAFETY: nvcc's code gives its own wrapper, which is static.
    let sources = unsafe { fatbin::of_wrapper(wrapper) }.and_then(|c| fatbin::sources(&c));
    let index = recorder().load(sources);
    (index + 1) as *mut *mut c_void
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaUnregisterFatBinary(_handle: *mut *mut c_void) {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaInitModule(_handle: *mut *mut c_void) -> c_char {
    1
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
unsafe extern "C" fn __cudaRegisterFunction(
    handle: *mut *mut c_void,
    host: *const c_void,
    _device: *const c_char,
    name: *const c_char,
    _thread_limit: i32,
    _thread: *const c_void,
    _block: *const c_void,
    _block_dim: *const c_void,
    _grid_dim: *const c_void,
    _warp_size: *const i32,
) {
    // SAFETY: nvcc's code gives a name that ends with a zero.
    let Ok(name) = (unsafe { text(name) }) else {
        return;
    };
    let kernel = Kernel {
        module: module_of(handle as usize),
        name,
        ..Kernel::default()
    };
    recorder().kernels.insert(host as usize, kernel);
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
unsafe extern "C" fn __cudaRegisterVar(
    handle: *mut *mut c_void,
    host: *const c_void,
    _device: *const c_char,
    name: *const c_char,
    _external: i32,
    _size: usize,
    _constant: i32,
    _global: i32,
) {
    // SAFETY: nvcc's code gives a name that ends with a zero.
    let Ok(name) = (unsafe { text(name) }) else {
        return;
    };
    let variable = Variable {
        module: module_of(handle as usize),
        name,
    };
    recorder().variables.insert(host as usize, variable);
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterManagedVar() {
    crate::say(
        "__cudaRegisterManagedVar: __managed__ variables are not supported: kernels see their own copies",
    );
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterHostVar() {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterUnifiedTable() {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: *mut c_void,
) -> u32 {
    CONFIGURATIONS.with_borrow_mut(|all| all.push((grid, block, shared, stream as usize)));
    0
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared: *mut usize,
    stream: *mut usize,
) -> i32 {
    let popped = CONFIGURATIONS.with_borrow_mut(Vec::pop);
    let name = "__cudaPopCallConfiguration";
    let Some((g, b, bytes, s)) = popped else {
        let e = Fail::new(
            Code::MISSING_CONFIGURATION,
            "a kernel's host function was called without <<<...>>>",
        );
        return finish(&mut recorder(), Library::Runtime, name, Err(e));
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

// These report errors, and so must not fail because of one.

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetLastError() -> i32 {
    let mut r = recorder();
    let last = r.sticky.unwrap_or(r.last);
    r.last = Code::SUCCESS;
    last.0
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaPeekAtLastError() -> i32 {
    let r = recorder();
    r.sticky.unwrap_or(r.last).0
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetErrorString(code: i32) -> *const c_char {
    Code(code)
        .text()
        .unwrap_or(c"unrecognized error code")
        .as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetErrorName(code: i32) -> *const c_char {
    Code(code)
        .runtime_name()
        .unwrap_or(c"unrecognized error code")
        .as_ptr()
}

/// What a program needs of its memory when it ends is there still: freeing never fails because of a launch.
fn freed(name: &str, free: impl FnOnce(&mut Recorder) -> Result<(), Fail>) -> i32 {
    let mut r = recorder();
    let result = free(&mut r);
    finish(&mut r, Library::Runtime, name, result)
}

fn free(name: &str, address: u64) -> i32 {
    freed(name, |r| match address {
        0 => Ok(()),
        _ => r.memory.free(address),
    })
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaFree(address: u64) -> i32 {
    free("cudaFree", address)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaFreeHost(address: u64) -> i32 {
    free("cudaFreeHost", address)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaFreeAsync(address: u64, _stream: *mut c_void) -> i32 {
    free("cudaFreeAsync", address)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaFreeAsync_ptsz(address: u64, _stream: *mut c_void) -> i32 {
    free("cudaFreeAsync_ptsz", address)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaStreamDestroy(_stream: *mut c_void) -> i32 {
    0
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaEventDestroy(_event: *mut c_void) -> i32 {
    0
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

api! { Runtime;
    // Launches.

    also [cudaGetKernel] fn __cudaGetKernel(kernel: *mut *mut c_void, host: *const c_void) |r| {
        r.kernel(host as usize)?;
        put_handle(kernel, host as usize)
    }

    fn cudaGetFuncBySymbol(function: *mut *mut c_void, host: *const c_void) |r| {
        r.kernel(host as usize)?;
        put_handle(function, host as usize)
    }

    also [__cudaLaunchKernel_ptsz] fn __cudaLaunchKernel(
        kernel: *const c_void, grid: Dim3, block: Dim3, arguments: *const *const c_void, shared: usize,
        _stream: *mut c_void,
    ) |r| {
        r.launch(&plain(kernel as usize, grid, block, arguments, shared))
    }

    also [cudaLaunchKernel_ptsz] fn cudaLaunchKernel(
        kernel: *const c_void, grid: Dim3, block: Dim3, arguments: *const *const c_void, shared: usize,
        _stream: *mut c_void,
    ) |r| {
        r.launch(&plain(kernel as usize, grid, block, arguments, shared))
    }

    also [cudaLaunchCooperativeKernel_ptsz] fn cudaLaunchCooperativeKernel(
        kernel: *const c_void, grid: Dim3, block: Dim3, arguments: *const *const c_void, shared: usize,
        _stream: *mut c_void,
    ) |r| {
        let mut request = plain(kernel as usize, grid, block, arguments, shared);
        request.cooperative = true;
        r.launch(&request)
    }

    also [cudaLaunchKernelExC_ptsz] fn cudaLaunchKernelExC(
        config: *const LaunchConfig, kernel: *const c_void, arguments: *const *const c_void,
    ) |r| {
        if config.is_null() {
            return Err(Fail::value("the launch configuration is null"));
        }
        let request = (*config).request(kernel as usize, Arguments::Pointers(arguments))?;
        r.launch(&request)
    }

    also [cudaLaunchHostFunc_ptsz] fn cudaLaunchHostFunc(
        _stream: *mut c_void, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void,
    ) |r| {
        let function = function.ok_or_else(|| Fail::value("the function is null"))?;
        // CUDA says that it must not call CUDA, so it does not wait for this call.
        function(data);
        Ok(())
    }

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
            any_cluster: r.get_attribute(kernel, 14)?,
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
    ) |r| {
        let n = r.occupancy(kernel as usize, threads.max(0) as u64, shared as u64)?;
        put(count, n)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: *mut i32, kernel: *const c_void, threads: i32, shared: usize, _flags: u32,
    ) |r| {
        let n = r.occupancy(kernel as usize, threads.max(0) as u64, shared as u64)?;
        put(count, n)
    }

    fn cudaOccupancyMaxActiveClusters(count: *mut i32, kernel: *const c_void, config: *const LaunchConfig) |r| {
        if config.is_null() {
            return Err(Fail::value("the launch configuration is null"));
        }
        let request = (*config).request(kernel as usize, Arguments::Block(std::ptr::null(), 0))?;
        let threads = request.block.iter().map(|n| u64::from(*n)).product();
        let n = r.occupancy(kernel as usize, threads, request.shared)?;
        let cluster: u32 = request.cluster.unwrap_or([1; 3]).iter().product();
        put(count, n * r.settings.sms as i32 / cluster.max(1) as i32)
    }

    fn cudaOccupancyMaxPotentialClusterSize(
        size: *mut i32, kernel: *const c_void, _config: *const LaunchConfig,
    ) |r| {
        put(size, if r.kernel(kernel as usize)?.any_cluster { 16 } else { 8 })
    }

    // Memory.

    fn cudaMalloc(to: *mut u64, size: usize) |r| {
        let address = allocate(r, size, Kind::Device)?;
        put(to, address)
    }

    also [cudaMallocAsync_ptsz] fn cudaMallocAsync(to: *mut u64, size: usize, _stream: *mut c_void) |r| {
        let address = allocate(r, size, Kind::Device)?;
        put(to, address)
    }

    also [cudaMallocFromPoolAsync_ptsz] fn cudaMallocFromPoolAsync(
        to: *mut u64, size: usize, _pool: *mut c_void, _stream: *mut c_void,
    ) |r| {
        let address = allocate(r, size, Kind::Device)?;
        put(to, address)
    }

    fn cudaMallocManaged(to: *mut u64, size: usize, _flags: u32) |r| {
        let address = allocate(r, size, Kind::Managed)?;
        put(to, address)
    }

    fn cudaMallocHost(to: *mut u64, size: usize) |r| {
        let address = allocate(r, size, Kind::Host)?;
        put(to, address)
    }

    fn cudaHostAlloc(to: *mut u64, size: usize, _flags: u32) |r| {
        let address = allocate(r, size, Kind::Host)?;
        put(to, address)
    }

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
        let bytes = width.next_multiple_of(512);
        let size = bytes.checked_mul(height).ok_or_else(|| Fail::new(Code::OUT_OF_MEMORY, "too many bytes"))?;
        put(pitch, bytes)?;
        let address = allocate(r, size, Kind::Device)?;
        put(to, address)
    }

    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) |r| {
        let (all, left) = r.memory.sizes();
        offer(free, left as usize);
        offer(total, all as usize);
        Ok(())
    }

    also [cudaMemcpy_ptds] fn cudaMemcpy(to: u64, from: u64, size: usize, kind: u32) |r| {
        r.copy(to, from, size, Direction::from_number(kind)?)
    }

    also [cudaMemcpyAsync_ptsz] fn cudaMemcpyAsync(
        to: u64, from: u64, size: usize, kind: u32, _stream: *mut c_void,
    ) |r| {
        r.copy(to, from, size, Direction::from_number(kind)?)
    }

    fn cudaMemcpyPeer(to: u64, _to_device: i32, from: u64, _from_device: i32, size: usize) |r| {
        r.copy(to, from, size, Direction::DeviceToDevice)
    }

    fn cudaMemcpyPeerAsync(
        to: u64, _to_device: i32, from: u64, _from_device: i32, size: usize, _stream: *mut c_void,
    ) |r| {
        r.copy(to, from, size, Direction::DeviceToDevice)
    }

    also [cudaMemcpy2D_ptds] fn cudaMemcpy2D(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: u32,
    ) |r| {
        r.copy_2d((to, to_pitch), (from, from_pitch), (width, height), Direction::from_number(kind)?)
    }

    also [cudaMemcpy2DAsync_ptsz] fn cudaMemcpy2DAsync(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: u32,
        _stream: *mut c_void,
    ) |r| {
        r.copy_2d((to, to_pitch), (from, from_pitch), (width, height), Direction::from_number(kind)?)
    }

    also [cudaMemset_ptds] fn cudaMemset(to: u64, value: i32, size: usize) |r| {
        r.fill((to, size), &[value as u8], (size, 1))
    }

    also [cudaMemsetAsync_ptsz] fn cudaMemsetAsync(to: u64, value: i32, size: usize, _stream: *mut c_void) |r| {
        r.fill((to, size), &[value as u8], (size, 1))
    }

    also [cudaMemset2D_ptds] fn cudaMemset2D(to: u64, pitch: usize, value: i32, width: usize, height: usize) |r| {
        r.fill((to, pitch), &[value as u8], (width, height))
    }

    also [cudaMemset2DAsync_ptsz] fn cudaMemset2DAsync(
        to: u64, pitch: usize, value: i32, width: usize, height: usize, _stream: *mut c_void,
    ) |r| {
        r.fill((to, pitch), &[value as u8], (width, height))
    }

    also [cudaMemcpyToSymbol_ptds] fn cudaMemcpyToSymbol(
        symbol: *const c_void, from: u64, size: usize, offset: usize, _kind: u32,
    ) |r| {
        let v = variable(r, symbol as usize)?;
        let bytes = r.read(from, size)?;
        r.write_variable(v.module, &v.name, offset, &bytes)
    }

    also [cudaMemcpyToSymbolAsync_ptsz] fn cudaMemcpyToSymbolAsync(
        symbol: *const c_void, from: u64, size: usize, offset: usize, _kind: u32, _stream: *mut c_void,
    ) |r| {
        let v = variable(r, symbol as usize)?;
        let bytes = r.read(from, size)?;
        r.write_variable(v.module, &v.name, offset, &bytes)
    }

    also [cudaMemcpyFromSymbol_ptds] fn cudaMemcpyFromSymbol(
        to: u64, symbol: *const c_void, size: usize, offset: usize, _kind: u32,
    ) |r| {
        let v = variable(r, symbol as usize)?;
        let bytes = r.read_variable(v.module, &v.name)?;
        let part = offset.checked_add(size).and_then(|end| bytes.get(offset..end));
        let part = part.ok_or_else(|| Fail::value(format!("variable {} has {} bytes", v.name, bytes.len())))?;
        r.write(to, part)
    }

    also [cudaMemcpyFromSymbolAsync_ptsz] fn cudaMemcpyFromSymbolAsync(
        to: u64, symbol: *const c_void, size: usize, offset: usize, _kind: u32, _stream: *mut c_void,
    ) |r| {
        let v = variable(r, symbol as usize)?;
        let bytes = r.read_variable(v.module, &v.name)?;
        let part = offset.checked_add(size).and_then(|end| bytes.get(offset..end));
        let part = part.ok_or_else(|| Fail::value(format!("variable {} has {} bytes", v.name, bytes.len())))?;
        r.write(to, part)
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
        let (kind, device, device_pointer, host_pointer) = match r.memory.find(pointer).map(|a| a.kind) {
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
        let handle = r.handle();
        put_handle(pool, handle)
    }
    fn cudaMemPoolSetAttribute(_pool: *mut c_void, _attribute: u32, _value: *const c_void) |r| { Ok(()) }
    fn cudaMemPoolTrimTo(_pool: *mut c_void, _keep: usize) |r| { Ok(()) }

    // Streams and events: all that was launched has ended when a launch returns.

    fn cudaStreamCreate(to: *mut *mut c_void) |r| {
        let handle = r.handle();
        put_handle(to, handle)
    }
    fn cudaStreamCreateWithFlags(to: *mut *mut c_void, _flags: u32) |r| {
        let handle = r.handle();
        put_handle(to, handle)
    }
    fn cudaStreamCreateWithPriority(to: *mut *mut c_void, _flags: u32, _priority: i32) |r| {
        let handle = r.handle();
        put_handle(to, handle)
    }
    also [cudaStreamSynchronize_ptsz, cudaStreamQuery, cudaStreamQuery_ptsz] fn cudaStreamSynchronize(
        _stream: *mut c_void,
    ) |r| { Ok(()) }
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
    fn cudaEventCreate(to: *mut *mut c_void) |r| {
        let handle = r.handle();
        put_handle(to, handle)
    }
    fn cudaEventCreateWithFlags(to: *mut *mut c_void, _flags: u32) |r| {
        let handle = r.handle();
        put_handle(to, handle)
    }
    also [cudaEventRecord_ptsz] fn cudaEventRecord(event: *mut c_void, _stream: *mut c_void) |r| {
        objects::record(event as usize);
        Ok(())
    }
    also [cudaEventRecordWithFlags_ptsz] fn cudaEventRecordWithFlags(
        event: *mut c_void, _stream: *mut c_void, _flags: u32,
    ) |r| {
        objects::record(event as usize);
        Ok(())
    }
    also [cudaEventQuery] fn cudaEventSynchronize(_event: *mut c_void) |r| { Ok(()) }
    fn cudaEventElapsedTime(to: *mut f32, start: *mut c_void, end: *mut c_void) |r| {
        put(to, objects::elapsed(start as usize, end as usize)?)
    }

    // The device.

    fn cudaDeviceSynchronize() |r| { Ok(()) }
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
    ) |r| {
        entry_point(&text(name)?, function, status)
    }
    also [cudaGetDriverEntryPointByVersion_ptsz] fn cudaGetDriverEntryPointByVersion(
        name: *const c_char, function: *mut *mut c_void, _version: u32, _flags: u64, status: *mut u32,
    ) |r| {
        entry_point(&text(name)?, function, status)
    }
    fn cudaLibraryLoadData(
        library: *mut *mut c_void, code: *const u8, _jit: *const u32, _jit_values: *const *const c_void, _count: u32,
        _options: *const u32, _values: *const *const c_void, _options_count: u32,
    ) |r| {
        let index = r.load(objects::image(code));
        r.module(index)?;
        put_handle(library, index + 1)
    }
    fn cudaLibraryUnload(library: *mut c_void) |r| {
        r.unload(module_of(library as usize));
        Ok(())
    }
    fn cudaLibraryGetKernel(kernel: *mut *mut c_void, library: *mut c_void, name: *const c_char) |r| {
        let handle = r.get_kernel(module_of(library as usize), &text(name)?)?;
        put_handle(kernel, handle)
    }
    fn cudaLibraryGetGlobal(address: *mut u64, size: *mut usize, library: *mut c_void, name: *const c_char) |r| {
        let found = r.get_variable(module_of(library as usize), &text(name)?)?;
        put_variable(address, size, found)
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaDeviceReset() -> i32 {
    // Programs end with it: a failed launch is forgotten, as documented, and memory goes with the process.
    let mut r = recorder();
    r.sticky = None;
    r.last = Code::SUCCESS;
    0
}

/// # Safety
///
/// Both must be null or writable.
unsafe fn entry_point(
    name: &str,
    function: *mut *mut c_void,
    status: *mut u32,
) -> Result<(), Fail> {
    let found = driver_function(name);
    // SAFETY: the caller's promise.
    unsafe {
        // 0: found, 1: there is none of that name.
        offer(status, u32::from(found.is_null()));
        put(function, found)?;
    }
    if found.is_null() {
        return Err(Fail::new(
            Code::NOT_FOUND,
            format!("there is no {name} here"),
        ));
    }
    Ok(())
}

/// The bytes of `cudaDeviceProp` of CUDA 13. Members that are not named here are zero.
fn properties(r: &Recorder) -> Vec<u8> {
    let d = r.device();
    let number = |id| d.attribute(id).unwrap_or_default();
    let mut bytes = vec![0u8; SIZE];
    let name = format!("ptx-sim ({})", r.target());
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

/// Its members of 64 bits: where each is, and the attribute that it has the value of.
const LONG: [(usize, u32); 9] = [
    (296, 8),
    (312, 11),
    (352, 9),
    (368, 14),
    (376, 51),
    (552, 30),
    (624, 81),
    (672, 97),
    (696, 111),
];

/// Its members of 32 bits.
const SHORT: [(usize, u32); 30] = [
    (304, 12),
    (308, 10),
    (320, 1),
    (324, 1),
    (328, 2),
    (332, 3),
    (336, 5),
    (340, 6),
    (344, 7),
    (360, 75),
    (364, 76),
    (384, 16),
    (392, 19),
    (560, 31),
    (584, 40),
    (588, 41),
    (592, 37),
    (596, 38),
    (604, 39),
    (608, 78),
    (612, 79),
    (616, 80),
    (632, 82),
    (636, 83),
    (656, 89),
    (660, 90),
    (668, 95),
    (688, 106),
    (720, 115),
    (748, 120),
];

const _: () = assert!(size_of::<FuncAttributes>() == 144 && size_of::<PointerAttributes>() == 88);
