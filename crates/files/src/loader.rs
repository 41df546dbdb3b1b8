//! The one way in which these programs load a library of the system, by its path or by its name.
//!
//! The message of the system's loader is kept: a library that is there may lack another one that it needs. The loader
//! opens whatever has the name, and waits for ever at a pipe: so only regular files are given to it.

use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

pub use libloading::Library;

use crate::printable;

/// Loads the library at a path, or says why not.
///
/// # Safety
/// Loading runs the library's initialisers, with all rights of the process: it must be what its path says.
pub unsafe fn at(path: &Path) -> Result<Library, String> {
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => Err("it is not a regular file".into()),
        // SAFETY: the caller's promise.
        Ok(_) => unsafe { load(path.as_os_str()) },
        Err(error) => Err(error.to_string()),
    }
}

/// Why a library was not loaded by its name.
#[derive(Debug)]
pub enum NotLoaded {
    /// No library has the name.
    NotFound(String),
    /// A library is there, and something is wrong with it.
    Refused(String),
}

impl NotLoaded {
    /// The message of the system's loader.
    pub fn why(self) -> String {
        let (Self::NotFound(why) | Self::Refused(why)) = self;
        why
    }
}

/// Loads the library that the system's loader finds by a name: in LD_LIBRARY_PATH, and where the system keeps
/// libraries.
///
/// # Safety
/// As [`at`]'s.
pub unsafe fn by_name(name: &str) -> Result<Library, NotLoaded> {
    if let Some(odd) = odd_in(&env::var_os("LD_LIBRARY_PATH").unwrap_or_default(), name) {
        let why = format!(
            "LD_LIBRARY_PATH: {} is not a regular file",
            printable::path(&odd)
        );
        return Err(NotLoaded::Refused(why));
    }
    // SAFETY: the caller's promise.
    unsafe { load(name.as_ref()) }.map_err(|why| match is_not_found(&why, name) {
        true => NotLoaded::NotFound(why),
        false => NotLoaded::Refused(why),
    })
}

/// Declares a struct of a library's functions, and `of`, which looks them up by their names. An error of `of` is the
/// first name that the library lacks. Structs behind `?` are there where the library has all of their functions.
#[macro_export]
macro_rules! functions {
    (
        $(#[$about:meta])* $api:ident {
            $($field:ident: $name:literal $type:ty;)*
            $(? $part:ident: $of_part:ident;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $api {
            $(pub(super) $field: $type,)*
            $(pub(super) $part: Option<$of_part>,)*
        }

        impl $api {
            /// Looks up the functions, which may be called for as long as the library stays loaded.
            ///
            /// # Safety
            /// The library is the one whose header declares the functions so.
            pub(super) unsafe fn of(
                library: &$crate::loader::Library,
            ) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the caller's promise.
                        *unsafe { library.get::<$type>($name.as_bytes()) }.map_err(|_| $name)?
                    },)*
                    // SAFETY: the caller's promise.
                    $($part: unsafe { $of_part::of(library) }.ok(),)*
                })
            }
        }
    };
}

/// # Safety
/// As [`at`]'s.
unsafe fn load(file: &OsStr) -> Result<Library, String> {
    // SAFETY: the caller's promise.
    unsafe { Library::new(file) }.map_err(|error| {
        // The error itself names the function that failed.
        let why = error
            .source()
            .map_or_else(|| error.to_string(), <dyn Error>::to_string);
        printable::text(&why).to_string()
    })
}

/// The path that a name leads to in a list of folders, where the loader would open it and it is neither a file nor a
/// folder.
fn odd_in(folders: &OsStr, name: &str) -> Option<PathBuf> {
    let folders = folders_of(folders).filter_map(|folder| {
        let file = folder.join(name);
        Some((fs::metadata(&file).ok()?, file))
    });
    // The loader passes folders over, and takes the first file.
    let mut named = folders.filter(|(there, _)| !there.is_dir());
    let (there, file) = named.next()?;
    (!there.is_file()).then_some(file)
}

/// The folders of a list: bytes, which need not be text.
#[cfg(unix)]
fn folders_of(list: &OsStr) -> impl Iterator<Item = &Path> {
    use std::os::unix::ffi::OsStrExt;
    let folders = list.as_bytes().split(|byte| b":;".contains(byte));
    folders.map(|folder| Path::new(OsStr::from_bytes(folder)))
}

/// Other systems' loaders know no such list.
#[cfg(not(unix))]
fn folders_of(_: &OsStr) -> impl Iterator<Item = &Path> {
    std::iter::empty()
}

/// Whether the loader says no more than that no file has this name. glibc begins with the file that it lacks; musl
/// names it behind its own words, and then what needs it.
fn is_not_found(why: &str, name: &str) -> bool {
    let is_about = why.starts_with(&format!("{name}: ")) || why.contains(&format!(" {name}: "));
    is_about && why.contains("No such file or directory") && !why.contains("needed by")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nothing_has_is_told_from_what_is_wrong_with_a_library() {
        let glibc = "cannot open shared object file: No such file or directory";
        assert!(is_not_found(&format!("libx.so.2: {glibc}"), "libx.so.2"));
        assert!(!is_not_found(
            &format!("libneeded.so: {glibc}"),
            "libx.so.2"
        ));
        assert!(!is_not_found("libx.so.2: invalid ELF header", "libx.so.2"));
        let musl = "Error loading shared library libx.so.2: No such file or directory";
        assert!(is_not_found(musl, "libx.so.2"));
        let needed = "Error loading shared library liby.so: No such file or directory (needed by /l/libx.so.2)";
        assert!(!is_not_found(needed, "libx.so.2"));
        // As it really is.
        let none = "libnvfp4-gemv-has-no-such-library.so.7";
        // SAFETY: there is no such library.
        let error = unsafe { by_name(none) }.unwrap_err();
        let why = format!("{error:?}");
        assert!(why.contains(none), "{why}");
        #[cfg(target_os = "linux")]
        assert!(matches!(error, NotLoaded::NotFound(_)), "{why}");
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_given_to_the_systems_loader() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["pipes", "files", "folders"] {
            fs::create_dir(at(name)).unwrap();
        }
        let pipe = at("pipes/libx.so");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", at("pipes/libzero.so")).unwrap();
        fs::write(at("files/libx.so"), "not a library").unwrap();
        fs::create_dir(at("folders/libx.so")).unwrap();
        for odd in [&pipe, &at("pipes/libzero.so"), &at("folders/libx.so")] {
            // SAFETY: nothing is loaded.
            let why = unsafe { super::at(odd) }.unwrap_err();
            assert!(why.contains("not a regular file"), "{why}");
        }
        // SAFETY: this is no library.
        let why = unsafe { super::at(&at("files/libx.so")) }.unwrap_err();
        assert!(
            why.contains("libx.so: ") && !why.contains("No such"),
            "{why}"
        );
        let list = |folders: &[&str]| {
            let folders: Vec<String> = folders
                .iter()
                .map(|name| at(name).to_str().unwrap().to_owned())
                .collect();
            // Not every name in it is text.
            let bytes = [b"/none\xff:", folders.join(":").as_bytes()].concat();
            odd_in(std::os::unix::ffi::OsStrExt::from_bytes(&bytes), "libx.so")
        };
        assert_eq!(list(&["none", "folders", "pipes", "files"]), Some(pipe));
        assert_eq!(list(&["files", "pipes"]), None);
        assert_eq!(list(&["none", "folders"]), None);
    }
}
