//! Why a path, a kernel or a config cannot compute a problem.

use nvfp4_gemv_targets::arch;

use crate::types::Activation;

/// Why something cannot run. Prints as a clause that says what would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A GPU path, and operands in host memory.
    #[error("the operands are in host memory; copy them to a device first")]
    OperandsOnHost,
    /// The CPU path, and operands in device memory.
    #[error("the operands are in device memory; copy them to the host first")]
    OperandsOnDevice,
    /// Built without the `cuda` and `jit` features.
    #[error("built with neither feature `cuda` nor feature `jit`")]
    BuiltWithoutCuda,
    /// A build without kernels: for documentation, editors and `cargo check` (`NVFP4_GEMV_NO_KERNELS`), or with feature
    /// `device` alone. With feature `jit` there is no such build; the refusal is then of a [`Gpu`](crate::Gpu) whose
    /// `images` are empty.
    #[error("{}", without_kernels(cfg!(feature = "cuda"), cfg!(feature = "jit")))]
    BuiltWithoutKernels,
    /// The device lacks what the kernel is made of.
    #[error(
        "the device has compute capability {}.{}, and {needed} is needed",
        found.0,
        found.1
    )]
    ComputeCapability {
        /// The device's, major and minor.
        found: (i32, i32),
        /// The compute capability that the kernel needs.
        needed: &'static str,
    },
    /// No machine code for this device in this build.
    #[error(
        "this build carries machine code for {images}, none of which runs this on compute capability {}.{}; {}",
        compute_capability.0,
        compute_capability.1,
        other_build(images, *compute_capability)
    )]
    NoKernelImage {
        /// The device's compute capability.
        compute_capability: (i32, i32),
        /// The architectures that this build carries.
        images: &'static str,
    },
    /// The kernel does not multiply such vectors.
    #[error(
        "the vectors are {found}, and it multiplies {takes} vectors{}",
        if *takes == NVFP4 { "; QuantizedVectors makes NVFP4 ones on the device" } else { "" }
    )]
    Activation {
        /// The vectors' element type.
        found: Activation,
        /// The kinds of vectors that it multiplies.
        takes: &'static str,
    },
    /// The kernel reads scales in the 128x4 layout only.
    #[error(
        "the {operand} are linear, and it reads the 128x4 layout; TiledWeights and QuantizedVectors, or \
         convert_scales on the host, make it"
    )]
    ScaleLayout {
        /// Whose scales are linear.
        operand: &'static str,
    },
    /// The kernel copies whole pieces of rows.
    #[error("K is {k}, and it needs {needed}")]
    RowLength {
        /// Elements of a row.
        k: usize,
        /// The condition on K.
        needed: &'static str,
    },
    /// Rows of several batches are counted on, and a group of rows has one batch.
    #[error("M is {m}, and with several batches it needs a multiple of {of}")]
    RowsOfBatch {
        /// M.
        m: usize,
        /// The number that M must be a multiple of.
        of: usize,
    },
    /// More rows than the kernel counts.
    #[error("the batches have more rows in all than it counts")]
    Rows,
    /// More vectors than the kernel counts.
    #[error("the vectors of all batches are longer in all than it counts")]
    Vectors,
    /// Addresses or strides are not multiples of what the kernel copies at once.
    #[error("codes, their strides and scales must be aligned to {needed} bytes for its copies")]
    Alignment {
        /// Bytes.
        needed: u32,
    },
    /// A batch's codes are more than a tensor map can step over.
    #[error("a batch of codes has 2^40 bytes or more, too many for a tensor map")]
    BatchSize,
    /// The vectors do not fit the device's shared memory, however the rest is chosen.
    #[error(
        "the vectors do not fit the device's shared memory beside a stage of weights; fewer vectors a call, or \
         NVFP4 instead of 16-bit ones, take less"
    )]
    VectorMemory,
    /// A config asks for more shared memory than a CTA of the device can have.
    #[error("it takes {needed} bytes of shared memory a CTA, and the device has {available}")]
    SharedMemory {
        /// Bytes that it asks for.
        needed: u64,
        /// Bytes that there are.
        available: u32,
    },
    /// The kernel needs memory beside the operands.
    #[error(
        "it needs a workspace of {needed} bytes, and {}; see Workspace",
        if *given == 0 { "none is given".to_owned() } else { format!("{given} are given") }
    )]
    Workspace {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that the call is given.
        given: u64,
    },
    /// The vectors are made of several [digits](crate::Nvfp4Vectors::with_digits).
    #[error("the vectors have {digits} digits each, and it takes {takes}")]
    Digits {
        /// Digits of a vector.
        digits: usize,
        /// The digits that it takes.
        takes: &'static str,
    },
    /// Each batch says which matrix it has.
    #[error("it does not take a selection of matrices")]
    Select,
    /// Each batch says which matrix it has, and the kernel takes that with whole steps only.
    #[error(
        "it takes a selection of matrices only where K is a multiple of 256, operands are aligned to 16 bytes, and \
         vectors are not f32"
    )]
    SelectWhole,
    /// Vectors that are quantised when they are read.
    #[error(
        "it does not quantise vectors when it reads them; QuantizedVectors makes NVFP4 ones in a launch of its own"
    )]
    OnRead,
    /// Results shall not depend on other vectors, and the order of the kernel's or config's sums does.
    #[error(
        "batch invariance is asked for, and the order in which it adds up a vector's products depends on the number of \
         vectors"
    )]
    BatchInvariant,
    /// A config's value that no kernel is compiled for, or that this problem has no use for.
    #[error("{name} is {value}, and may be {takes}")]
    Field {
        /// The field's name.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The values that it may have.
        takes: &'static str,
    },
}

/// Advice beside an architecture that is compiled in: feature `jit`, where the build does not have it.
pub(crate) const OR_JIT: &str = or_jit(cfg!(feature = "jit"));

/// Advice where the machine code of a build, for these architectures, does not run on a compute capability.
pub(crate) fn other_build(images: &str, (major, minor): (i32, i32)) -> String {
    let number = major.saturating_mul(10).saturating_add(minor);
    match u32::try_from(number) {
        Ok(number @ OLDEST..) => {
            let own = arch::own(number);
            let archs = [images, &own].into_iter().filter(|archs| !archs.is_empty());
            let archs: Vec<&str> = archs.collect();
            format!(
                "rebuild with NVFP4_GEMV_ARCHS=\"{}\"{OR_JIT}",
                archs.join(";")
            )
        }
        // Not known: an error came before the device was asked.
        Ok(0) => format!("rebuild with NVFP4_GEMV_ARCHS naming its architecture{OR_JIT}"),
        _ => format!("the kernels need {}.{} or newer", OLDEST / 10, OLDEST % 10),
    }
}

/// The oldest architecture that the kernels are compiled for.
const OLDEST: u32 = 80;

const fn or_jit(jit: bool) -> &'static str {
    match jit {
        true => "",
        false => ", or with feature `jit`",
    }
}

/// Why a build with these features carries no kernels, and what helps.
fn without_kernels(cuda: bool, jit: bool) -> &'static str {
    match (cuda, jit) {
        (_, true) => {
            "the GPU is said to be of a build that carries no kernels: its `images` are empty"
        }
        (true, false) => {
            "this build carries no kernels: NVFP4_GEMV_NO_KERNELS (or DOCS_RS) was set when it was built; unset it and \
             build again, or build with feature `jit`"
        }
        (false, false) => {
            "this build carries no kernels: it has neither feature `cuda` nor feature `jit`; build with one of them"
        }
    }
}

/// The text for kernels that take NVFP4 vectors only.
pub(crate) const NVFP4: &str = "NVFP4";

#[cfg(test)]
mod tests {
    use super::*;

    /// Features that a build has already are not advised.
    #[test]
    fn advice_is_of_features_that_the_build_lacks() {
        let advises = |text: &str, what: &str| text.contains(&format!("with feature {what}"));
        assert!(advises(or_jit(false), "`jit`") && or_jit(true).is_empty());
        let kernels = without_kernels(true, false);
        assert!(kernels.contains("NVFP4_GEMV_NO_KERNELS") && advises(kernels, "`jit`"));
        let device = without_kernels(false, false);
        assert!(
            !device.contains("NO_KERNELS") && device.contains("feature `cuda` nor feature `jit`")
        );
        for cuda in [false, true] {
            let jit = without_kernels(cuda, true);
            assert!(
                !jit.contains("NO_KERNELS") && !jit.contains("feature"),
                "{jit}"
            );
        }
        let image = Refusal::NoKernelImage {
            compute_capability: (11, 0),
            images: "80",
        };
        assert_eq!(advises(&image.to_string(), "`jit`"), !cfg!(feature = "jit"));
        let rebuild = "rebuild with NVFP4_GEMV_ARCHS=\"80;110a\"";
        assert!(image.to_string().contains(rebuild), "{image}");
        assert!(other_build("", (8, 6)).contains("NVFP4_GEMV_ARCHS=\"86\""));
        assert!(other_build("80;90a;100f", (12, 0)).contains("\"80;90a;100f;120a\""));
        assert_eq!(other_build("80", (7, 5)), "the kernels need 8.0 or newer");
        assert!(other_build("80", (0, 0)).contains("NVFP4_GEMV_ARCHS naming"));
        assert!(Refusal::BuiltWithoutCuda.to_string().contains("`jit`"));
    }
}
