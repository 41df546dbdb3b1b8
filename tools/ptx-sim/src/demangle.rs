//! Kernels' names as their C++ source has them: `_Z4gemmILi128EEvPf` is `gemm<128>(float*)`.

use cpp_demangle::{DemangleOptions, Symbol};

/// A kernel's name with its parameters' types; the name itself where it is not mangled.
pub fn demangled(name: &str) -> String {
    with(name, DemangleOptions::new().no_return_type()).unwrap_or_else(|| name.into())
}

/// Whether a kernel is meant by a name: by its own, mangled or not, or without its parameters' types, or without its
/// template arguments either.
pub fn is_called(name: &str, asked: &str) -> bool {
    let short = with(name, DemangleOptions::new().no_return_type().no_params());
    let plain = short.as_deref().and_then(|short| short.split('<').next());
    name == asked
        || demangled(name) == asked
        || short.as_deref() == Some(asked)
        || plain == Some(asked)
}

fn with(name: &str, options: DemangleOptions) -> Option<String> {
    // Other names are C's.
    let symbol = name.starts_with("_Z").then(|| Symbol::new(name).ok());
    symbol??.demangle_with_options(&options).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEMM: &str = "_Z4gemmILi128ELi64EEvPfi";

    #[test]
    fn names_are_shown_as_the_source_has_them() {
        assert_eq!(demangled(GEMM), "gemm<128, 64>(float*, int)");
        assert_eq!(
            demangled("_ZN2my4axpyEPKff"),
            "my::axpy(float const*, float)"
        );
        for name in ["gemv_ring_c2", "_Zwrong", "_Z", ""] {
            assert_eq!(demangled(name), name);
        }
    }

    #[test]
    fn kernels_are_meant_by_longer_and_shorter_names() {
        for asked in [GEMM, "gemm<128, 64>(float*, int)", "gemm<128, 64>", "gemm"] {
            assert!(is_called(GEMM, asked), "{asked}");
        }
        for asked in ["gemm<128>", "gem", "", "gemm<128, 64>(float*)"] {
            assert!(!is_called(GEMM, asked), "{asked}");
        }
        assert!(is_called("axpy", "axpy"));
    }
}
