//! Loops that are compiled for several instruction sets.

/// Compiles a function for the instruction sets that differ here, and chooses at run time. `$body` takes up to three
/// generic arguments. The first is the type in brackets, if there is one. Then come the vector lanes of an f64, and
/// whether two operations are one instruction each: multiplying and adding, and rounding to an integer.
macro_rules! versions {
    ($(#[$about:meta])* $name:ident$([$t:ty])?($($arg:ident: $ty:ty),*) = $body:ident) => {
        $(#[$about])*
        pub(super) fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $ty),*) {
                    $body::<$($t,)? 8, true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) {
                    $body::<$($t,)? 4, true>($($arg),*)
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    if is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                    {
                        // SAFETY: this processor has what the function is compiled for.
                        return unsafe { avx512($($arg),*) };
                    }
                    // SAFETY: as above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            $body::<$($t,)? 2, { cfg!(target_arch = "aarch64") }>($($arg),*)
        }
    };
}

pub(super) use versions;
