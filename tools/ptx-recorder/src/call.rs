//! How exported functions are written.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Code, Fail};
use crate::recorder::{Recorder, recorder};

/// One of CUDA's two libraries: the library that a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    /// The runtime: `cudaGetLastError` returns the failures of its functions.
    Runtime,
    /// The driver: `cudaGetLastError` does not return the failures of its functions.
    Driver,
}

thread_local! {
    /// The result of the next `cudaGetLastError`: each thread of the program has its own.
    static LAST: Cell<Code> = const { Cell::new(Code::SUCCESS) };
    /// Whether this thread is inside of a function that the program had launched.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// The last failure of a call of the runtime on this thread.
pub(crate) fn last() -> Code {
    LAST.get()
}

/// Forgets it.
pub(crate) fn forget_last() {
    LAST.set(Code::SUCCESS);
}

/// Runs a function's body, and says why it fails. After a launch has failed, the body is not run.
pub(crate) fn run(
    library: Library,
    name: &str,
    body: impl FnOnce(&mut Recorder) -> Result<(), Fail>,
) -> i32 {
    run_always(library, name, |r| r.healthy().and_then(|()| body(r)))
}

/// Runs a function's body as `run` does, also after a launch has failed: for functions that programs call when they
/// end.
pub(crate) fn run_always(
    library: Library,
    name: &str,
    body: impl FnOnce(&mut Recorder) -> Result<(), Fail>,
) -> i32 {
    if IN_HOST_FUNCTION.get() {
        let why = "a host function must not call CUDA";
        return finish(library, name, Err(Fail::new(Code::NOT_PERMITTED, why)));
    }
    let mut r = recorder();
    // A panic that unwound into the program would end it. A body that stopped half done shows in no later result: all
    // later calls fail.
    let result = catch_unwind(AssertUnwindSafe(|| body(&mut r)));
    let result = result.unwrap_or_else(|_| {
        r.sticky = Some(Code::UNKNOWN);
        let why = "a fault of ptx-recorder, please report it";
        Err(Fail::new(Code::UNKNOWN, why))
    });
    drop(r);
    finish(library, name, result)
}

/// Says why a call failed, and keeps it for `cudaGetLastError`.
pub(crate) fn finish(library: Library, name: &str, result: Result<(), Fail>) -> i32 {
    let Err(e) = result else {
        return Code::SUCCESS.0;
    };
    if !e.message.is_empty() {
        crate::say(&format!("{name}: {}", e.message));
    }
    if library == Library::Runtime {
        LAST.set(e.code);
    }
    e.code.0
}

/// A function that a program has launched.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Calls a function of the program, when all that was launched on the stream before has ended.
///
/// # Safety
///
/// The function must be one, and take the data.
pub(crate) unsafe fn call_host_function(
    library: Library,
    name: &str,
    stream: *mut c_void,
    function: Option<HostFunction>,
    data: *mut c_void,
) -> i32 {
    let result = run(library, name, |r| {
        r.end_of(stream as usize);
        let there = function.map(|_| ());
        there.ok_or_else(|| Fail::value("the function is null"))
    });
    // Nothing is locked here: the function may wait for threads that call CUDA.
    if let (0, Some(function)) = (result, function) {
        IN_HOST_FUNCTION.set(true);
        // SAFETY: the caller's promise.
        unsafe { function(data) };
        IN_HOST_FUNCTION.set(false);
    }
    result
}

/// Result of a function that is not here.
pub(crate) fn not_here(library: Library, name: &str) -> i32 {
    let what = match library {
        Library::Runtime => "CUDA runtime",
        Library::Driver => "CUDA driver",
    };
    let why = format!("this function of the {what} is not supported");
    finish(library, name, Err(Fail::new(Code::NOT_SUPPORTED, why)))
}

/// Functions that CUDA exports, each with a result of its own, under their names and under those of variants that mean
/// the same here, since all streams are one.
macro_rules! exported {
    (@one $name:ident ($($argument:ident: $kind:ty),* $(,)?) ($result:ty) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments, clippy::unused_unit)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> $result $body
    };
    ($($(also [$($alias:ident),*])? fn $name:ident $arguments:tt -> $result:ty $body:block)*) => {
        $(
            $crate::call::exported!(@one $name $arguments ($result) $body);
            $($($crate::call::exported!(@one $alias $arguments ($result) $body);)*)?
        )*
    };
}

/// One exported function whose body is run by `run` or `run_always`, and its name.
macro_rules! function {
    ($library:ident $run:ident $name:ident ($($argument:ident: $kind:ty),* $(,)?) |$r:ident| $body:block) => {
        $crate::call::exported!(@one $name ($($argument: $kind),*) (i32) {
            $crate::call::$run($crate::call::Library::$library, stringify!($name), |$r| {
                let _ = &$r;
                // SAFETY: a program calls this as CUDA documents it: pointers to results may be written, those to
                // arguments read, and arrays are as long as the arguments say.
                #[allow(unused_unsafe)]
                unsafe { $body }
            })
        });
    };
}

/// Functions that CUDA exports, as `exported`, whose results are codes.
macro_rules! api {
    ($library:ident $run:ident; $(
        $(also [$($alias:ident),*])? fn $name:ident $arguments:tt |$r:ident| $body:block
    )*) => {
        $(
            $crate::call::function!($library $run $name $arguments |$r| $body);
            $($($crate::call::function!($library $run $alias $arguments |$r| $body);)*)?
        )*
    };
}

/// Functions that copy or fill. Those named first do so behind all that was launched; those named second behind what was
/// launched on a stream, which is one argument more.
macro_rules! ordered {
    (@on $library:ident $name:ident ($($argument:ident: $kind:ty),* $(,)?) |$r:ident| $body:block) => {
        $crate::call::function!($library run $name ($($argument: $kind,)* stream: *mut c_void) |$r| {
            $r.end_of(stream as usize);
            $body
        });
    };
    ($library:ident; $([$($all:ident),*] [$($on:ident),*] $arguments:tt |$r:ident| $body:block)*) => {
        $(
            $($crate::call::function!($library run $all $arguments |$r| {
                $r.end_of_all();
                $body
            });)*
            $($crate::call::ordered!(@on $library $on $arguments |$r| $body);)*
        )*
    };
}

/// Functions that only say that they are not here.
macro_rules! missing {
    ($library:ident; $($name:ident)*) => {
        $(
            $crate::call::exported!(@one $name () (i32) {
                $crate::call::not_here($crate::call::Library::$library, stringify!($name))
            });
        )*
    };
}

pub(crate) use {api, exported, function, missing, ordered};

/// Writes a result.
///
/// # Safety
///
/// `to` must be null or writable.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Fail> {
    if to.is_null() {
        return Err(Fail::value("the pointer to a result is null"));
    }
    // SAFETY: it is not null, so the caller says that it is writable.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes a result that a program need not ask for.
///
/// # Safety
///
/// `to` must be null or writable.
pub(crate) unsafe fn offer<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: it is not null, so the caller says that it is writable.
        unsafe { to.write_unaligned(value) };
    }
}

/// A name that a program gives.
///
/// # Safety
///
/// `name` must be null or end with a zero.
pub(crate) unsafe fn text(name: *const c_char) -> Result<String, Fail> {
    if name.is_null() {
        return Err(Fail::value("a name is null"));
    }
    // SAFETY: it is not null, so the caller says that it ends with a zero.
    Ok(unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned())
}

/// Writes a name as an array of `length` characters.
///
/// # Safety
///
/// `to` must have so many.
pub(crate) unsafe fn put_text(to: *mut c_char, length: i32, name: &str) -> Result<(), Fail> {
    if to.is_null() || length <= 0 {
        return Err(Fail::value("there is no room for a name"));
    }
    let n = name.len().min(length as usize - 1);
    // SAFETY: n + 1 characters are no more than the caller says that there are.
    unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr(), to.cast::<u8>(), n);
        to.add(n).write(0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_ends_no_program() {
        let name = "cuFault";
        let code = run(Library::Driver, name, |_| panic!("planted"));
        assert_eq!(code, Code::UNKNOWN.0);
        // Later calls fail, but those with which programs end.
        let code = run(Library::Driver, name, |_| Ok(()));
        assert_eq!(code, Code::UNKNOWN.0);
        assert_eq!(run_always(Library::Driver, name, |_| Ok(())), 0);
        assert_eq!(
            last(),
            Code::SUCCESS,
            "the driver's failures are not the runtime's"
        );
    }
}
