//! Kernels' names as their C++ source has them: `_Z4gemmILi128EEvPf` is `gemm<128>(float*)`.

use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};

/// A kernel's name with its parameters' types; the name itself where it is not mangled, or would become far longer.
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
    let mut capped = Capped {
        text: String::new(),
        most: 1000 + 16 * name.len(),
    };
    symbol??.structured_demangle(&mut capped, &options).ok()?;
    Some(capped.text)
}

/// A text that ends in an error where it becomes too long: substitutions can double a name again and again.
struct Capped {
    text: String,
    most: usize,
}

impl fmt::Write for Capped {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.text.len() + s.len() > self.most {
            return Err(fmt::Error);
        }
        self.text.push_str(s);
        Ok(())
    }
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
    fn names_that_double_again_and_again_stay_as_they_are() {
        // Each type is A of the one before, twice; 20 of them have millions of letters.
        let name = |n: u32| {
            let digit = |i| char::from_digit(i, 36).unwrap().to_ascii_uppercase();
            let types: String = (1..=n)
                .map(|i| format!("S0_IS{0}_S{0}_E", digit(i)))
                .collect();
            format!("_Z1fI1AIiiE{types}EvT_")
        };
        assert!(demangled(&name(1)).starts_with("f<A<int, int>, A<A<int, int>, A<int, int> > >"));
        assert_eq!(demangled(&name(20)), name(20));
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
