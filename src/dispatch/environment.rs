//! The one variable that dispatch reads.

use std::sync::OnceLock;

use crate::error::Result;
use crate::types::GemvPath;

/// The variable that forces a path by its [name](GemvPath::name), or `auto`.
pub const PATH_VARIABLE: &str = "NVFP4_GEMV_PATH";

/// The path that [`PATH_VARIABLE`] asks for. Read on every call of this function; [`select`](super::select) reads it
/// once a process.
///
/// # Errors
/// [`Error::UnknownPath`](crate::Error::UnknownPath) where it names none.
pub fn forced_by_environment() -> Result<Option<GemvPath>> {
    match std::env::var_os(PATH_VARIABLE) {
        None => Ok(None),
        Some(name) if name.is_empty() || name == "auto" => Ok(None),
        Some(name) => name.to_string_lossy().parse().map(Some),
    }
}

/// The path that [`PATH_VARIABLE`] asks for, read once.
pub(super) fn forced() -> Result<Option<GemvPath>> {
    static FORCED: OnceLock<Result<Option<GemvPath>>> = OnceLock::new();
    FORCED.get_or_init(forced_by_environment).clone()
}
