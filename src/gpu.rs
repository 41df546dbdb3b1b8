//! Properties of a GPU: enough to choose a kernel and to plan its launch without a GPU.

use nvfp4_gemv_targets::products::Product;

/// A GPU, as dispatch and kernels see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The product name, as the driver says it; empty where it is not known.
    pub name: String,
    /// Major and minor compute capability.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a CTA can ask for.
    pub shared_bytes: u32,
    /// Bytes of L2 cache; 0 where they are not known.
    pub l2_bytes: u64,
    /// Bytes of device memory; 0 where they are not known.
    pub memory_bytes: u64,
    /// The architectures that there is machine code for, as in `NVFP4_GEMV_ARCHS`: `80;90a;100f`. Those that this build
    /// carries; or, with feature `jit`, where none of them runs on the GPU, the GPU's own, for which kernels are
    /// compiled at run time.
    pub images: &'static str,
}

/// Properties of a GPU that kernels' checks, defaults and plans depend on: not its name, and not its L2 cache and
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    compute_capability: (i32, i32),
    multiprocessors: u32,
    shared_bytes: u32,
    images: &'static str,
}

impl Gpu {
    /// Whether there is programmatic dependent launch.
    pub(crate) fn has_dependent_launches(&self) -> bool {
        self.compute_capability >= (9, 0)
    }

    /// The properties that kernels depend on.
    pub(crate) fn limits(&self) -> Limits {
        let Self {
            name: _,
            compute_capability,
            multiprocessors,
            shared_bytes,
            l2_bytes: _,
            memory_bytes: _,
            images,
        } = *self;
        Limits {
            compute_capability,
            multiprocessors,
            shared_bytes,
            images,
        }
    }

    /// The [`images`](Self::images) of a build that was not told which architectures to compile for.
    pub const DEFAULT_IMAGES: &'static str = env!("NVFP4_GEMV_DEFAULT_ARCHS");

    /// A GPU of which only the compute capability is known: everything else is that of [the product that stands for
    /// it](Product::of_compute_capability).
    ///
    /// Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", for shared memory.
    pub fn of_compute_capability(compute_capability: (i32, i32), images: &'static str) -> Self {
        let shared_kib = match compute_capability {
            (8, 0 | 7) => 163,
            (9..12, _) => 227,
            _ => 99,
        };
        let product = Product::of_compute_capability(compute_capability);
        Self {
            name: String::new(),
            compute_capability,
            multiprocessors: product.multiprocessors,
            shared_bytes: shared_kib << 10,
            l2_bytes: 0,
            memory_bytes: 0,
            images,
        }
    }

    /// A GPU of a product.
    pub fn of_product(product: &Product, images: &'static str) -> Self {
        Self {
            name: product.full_name.into(),
            multiprocessors: product.multiprocessors,
            ..Self::of_compute_capability(product.compute_capability, images)
        }
    }
}
