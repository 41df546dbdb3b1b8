//! How exported functions are written.

use std::ffi::{CStr, c_char, c_void};

use crate::code::{Code, Fail};
use crate::recorder::{Recorder, recorder};

/// Which of CUDA's two libraries a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    /// Its failures are what `cudaGetLastError` returns.
    Runtime,
    /// Its failures are not.
    Driver,
}

/// Runs a function's body, and says why it fails.
pub(crate) fn run(
    library: Library,
    name: &str,
    body: impl FnOnce(&mut Recorder) -> Result<(), Fail>,
) -> i32 {
    let mut r = recorder();
    let result = r.healthy().and_then(|()| body(&mut r));
    finish(&mut r, library, name, result)
}

/// Says why a call failed, and keeps it for `cudaGetLastError`.
pub(crate) fn finish(
    r: &mut Recorder,
    library: Library,
    name: &str,
    result: Result<(), Fail>,
) -> i32 {
    let Err(e) = result else {
        return Code::SUCCESS.0;
    };
    if !e.message.is_empty() {
        crate::say(&format!("{name}: {}", e.message));
    }
    if library == Library::Runtime {
        r.last = e.code;
    }
    e.code.0
}

/// What a function that is not here returns.
pub(crate) fn not_here(library: Library, name: &str) -> i32 {
    let what = match library {
        Library::Runtime => "CUDA runtime",
        Library::Driver => "CUDA driver",
    };
    let why = format!("this function of the {what} is not supported");
    let mut r = recorder();
    finish(
        &mut r,
        library,
        name,
        Err(Fail::new(Code::NOT_SUPPORTED, why)),
    )
}

/// One exported function, and what it is called.
macro_rules! function {
    ($library:ident $name:ident ($($argument:ident: $kind:ty),* $(,)?) |$r:ident| $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> i32 {
            $crate::call::run($crate::call::Library::$library, stringify!($name), |$r| {
                let _ = &$r;
                // SAFETY: a program calls this as CUDA documents it: pointers to results may be written, those to
                // arguments read, and arrays are as long as the arguments say.
                #[allow(unused_unsafe)]
                unsafe { $body }
            })
        }
    };
}

/// Functions that CUDA exports, under their names and under those of variants that mean the same here, since all
/// streams are one.
macro_rules! api {
    ($library:ident; $(
        $(also [$($alias:ident),*])? fn $name:ident $arguments:tt |$r:ident| $body:block
    )*) => {
        $(
            $crate::call::function!($library $name $arguments |$r| $body);
            $($($crate::call::function!($library $alias $arguments |$r| $body);)*)?
        )*
    };
}

/// Functions that only say that they are not here.
macro_rules! missing {
    ($library:ident; $($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            extern "C" fn $name() -> i32 {
                $crate::call::not_here($crate::call::Library::$library, stringify!($name))
            }
        )*
    };
}

pub(crate) use {api, function, missing};

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

/// The function of the driver that a program asks for by name: the newest of those of that name.
pub(crate) fn driver_function(name: &str) -> *mut c_void {
    for suffix in ["_v4", "_v3", "_v2", ""] {
        let Ok(full) = std::ffi::CString::new(format!("{name}{suffix}")) else {
            break;
        };
        // SAFETY: a look-up by a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, full.as_ptr()) };
        if !found.is_null() {
            return found;
        }
    }
    std::ptr::null_mut()
}
