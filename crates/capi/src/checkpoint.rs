//! Checkpoints: opened, listed, and the origin of layers.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use nvfp4_gemv::Linear;
use nvfp4_gemv::checkpoint::Checkpoint;

use crate::failure::{Failure, nvfp4_status};
use crate::linear::nvfp4_linear;
use crate::memory;

/// An open checkpoint: safetensors files of ModelOpt or compressed-tensors.
#[derive(Debug)]
pub struct nvfp4_checkpoint {
    pub(crate) checkpoint: Arc<Checkpoint>,
    names: Vec<CString>,
}

/// Opens a .safetensors file, an index, or a directory of a model. Larger files are mapped, and must not be truncated
/// while they, or layers of them, are open.
///
/// # Safety
/// `path` is NULL or text, and `checkpoint` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_checkpoint_open(
    path: *const c_char,
    checkpoint: *mut *mut nvfp4_checkpoint,
) -> nvfp4_status {
    let open = || {
        // SAFETY: this function's own contract.
        let path = unsafe { memory::text("path", path) }?;
        let checkpoint = Arc::new(Checkpoint::open(path)?);
        // A name with a zero is no text in C: nobody could ask for it.
        let names = checkpoint
            .layers()
            .filter_map(|name| CString::new(name).ok());
        Ok(nvfp4_checkpoint {
            names: names.collect(),
            checkpoint: checkpoint.clone(),
        })
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(checkpoint, open) }
}

/// Closes a checkpoint. Layers that were made of it stay, and keep its files open.
///
/// # Safety
/// `checkpoint` is NULL or open, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_checkpoint_close(checkpoint: *mut nvfp4_checkpoint) {
    // SAFETY: this function's own contract.
    unsafe { memory::free(checkpoint) }
}

/// The number of NVFP4 layers.
///
/// # Safety
/// `checkpoint` is NULL or open, and `count` is NULL or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_checkpoint_count(
    checkpoint: *const nvfp4_checkpoint,
    count: *mut usize,
) -> nvfp4_status {
    let counted = || {
        // SAFETY: this function's own contract.
        let checkpoint = unsafe { memory::read("checkpoint", checkpoint) }?;
        Ok(checkpoint.names.len())
    };
    // SAFETY: this function's own contract.
    unsafe { memory::value(count, 0, counted) }
}

/// The name of a layer by its number, in alphabetical order. The text is valid while the checkpoint is open.
///
/// # Safety
/// `checkpoint` is NULL or open, and `name` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_checkpoint_name(
    checkpoint: *const nvfp4_checkpoint,
    number: usize,
    name: *mut *const c_char,
) -> nvfp4_status {
    let named = || {
        // SAFETY: this function's own contract.
        let names = &unsafe { memory::read("checkpoint", checkpoint) }?.names;
        match names.get(number) {
            Some(name) => Ok(name.as_ptr()),
            None => Err(Failure::argument(format!(
                "there is no layer {number} of {}",
                names.len()
            ))),
        }
    };
    // SAFETY: this function's own contract.
    unsafe { memory::value(name, std::ptr::null(), named) }
}

/// A layer by its name, with its bias if it has one. Codes and scales stay in the files.
///
/// # Safety
/// `checkpoint` is NULL or open, `name` is NULL or text, and `linear` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_linear_from_checkpoint(
    checkpoint: *const nvfp4_checkpoint,
    name: *const c_char,
    linear: *mut *mut nvfp4_linear,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        let checkpoint = &unsafe { memory::read("checkpoint", checkpoint) }?.checkpoint;
        // SAFETY: this function's own contract.
        let name = unsafe { memory::text("name", name) }?;
        Ok(nvfp4_linear(Linear::from_checkpoint(checkpoint, name)?))
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(linear, make) }
}
