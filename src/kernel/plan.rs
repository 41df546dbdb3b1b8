//! Launch plans: everything that a launch is, as plain data. A kernel's module makes a plan from a problem. A GPU and
//! the simulator execute the same plan.

use super::params::nvfp4_tensor_map;

/// The most bytes of a kernel's parameter structure.
pub(crate) const MOST_PARAMETER_BYTES: usize = 384;
/// The most CTAs of a grid along y, and along z.
///
/// Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
pub const MOST_GRID_Y: u32 = 65535;

/// The launches of one call, in order. Each pass over the weights has one launch that multiplies, and before and behind
/// it the auxiliary launches that it needs.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    launches: Few<Launch>,
}

/// Values in order. A single value takes no allocation: most plans have one launch.
#[allow(clippy::large_enum_variant, reason = "one is the usual number")]
#[derive(Clone, Debug, Default)]
pub(crate) enum Few<T> {
    #[default]
    None,
    One(T),
    Several(Vec<T>),
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, value: T) {
        match self {
            Self::None => *self = Self::One(value),
            Self::Several(all) => all.push(value),
            Self::One(_) => {
                if let Self::One(first) = std::mem::take(self) {
                    *self = Self::Several(vec![first, value]);
                }
            }
        }
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(all) => all,
        }
    }
}

impl Plan {
    /// A plan without launches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a launch.
    pub(crate) fn push(&mut self, launch: Launch) {
        self.launches.push(launch);
    }

    /// The launches.
    pub fn launches(&self) -> &[Launch] {
        self.launches.as_slice()
    }
}

impl From<Launch> for Plan {
    fn from(launch: Launch) -> Self {
        Self {
            launches: Few::One(launch),
        }
    }
}

/// One launch of a kernel. As JSON it has what a GPU is told of its size.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Launch {
    /// The kernel's entry point, as in the machine code.
    pub entry: &'static str,
    /// The unit of `csrc` that the kernel is compiled in, alone or with others.
    #[serde(skip)]
    pub unit: &'static str,
    /// CTAs along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub threads: u32,
    /// CTAs of a cluster, along x; 0 for a launch without clusters.
    pub cluster: u32,
    /// Bytes of dynamic shared memory of a CTA.
    pub dynamic_shared: u32,
    /// Bytes of static shared memory of a CTA, which the kernel has in addition to the dynamic ones.
    pub static_shared: u32,
    /// Whether this is a programmatic dependent launch.
    #[serde(skip)]
    pub dependent: bool,
    /// Whether the launch multiplies nothing: it writes data that a later launch needs, or ends what an earlier launch
    /// began.
    #[serde(skip)]
    pub auxiliary: bool,
    /// Tensor maps, which are the kernel's first argument, one after the other. Kernels without them are the usual ones,
    /// and an empty list takes no allocation.
    #[serde(skip)]
    #[doc(hidden)]
    pub maps: Vec<nvfp4_tensor_map>,
    /// The kernel's parameter structure, its last argument.
    #[serde(skip)]
    pub parameters: Parameters,
    /// How the launch is repeated for batches that a grid's y does not hold.
    #[serde(skip)]
    pub repeat: Option<Repeat>,
}

impl Launch {
    /// The launches that this one stands for, all batches together: itself, or one for each
    /// [`MOST_GRID_Y`] batches.
    pub fn parts(&self) -> impl Iterator<Item = Self> + '_ {
        let batches = self.repeat.map_or(1, |repeat| repeat.batches);
        let step = match self.repeat {
            Some(_) => MOST_GRID_Y,
            None => 1,
        };
        (0..batches).step_by(step as usize).map(move |first| {
            let mut part = self.clone();
            if let Some(repeat) = self.repeat {
                part.grid[1] = (batches - first).min(MOST_GRID_Y);
                part.parameters.set_u32(repeat.first_batch, first);
                part.repeat = None;
            }
            part
        })
    }
}

/// How a launch is repeated whose grid has one row of CTAs for each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Batches in all.
    pub batches: u32,
    /// Offset of the number of a launch's first batch in the parameters, in bytes.
    pub first_batch: usize,
}

/// The bytes of a kernel's parameter structure.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Parameters {
    bytes: [u8; MOST_PARAMETER_BYTES],
    len: usize,
}

impl Parameters {
    /// The bytes of a structure that [`KernelParameters`] vouches for.
    pub(crate) fn of<P: KernelParameters>(parameters: &P) -> Self {
        const { assert!(size_of::<P>() <= MOST_PARAMETER_BYTES && align_of::<P>() <= 64) };
        let mut bytes = [0; MOST_PARAMETER_BYTES];
        // SAFETY: `KernelParameters` promises that every byte of the structure is initialised; the regions do not
        // overlap, and the size is checked above.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(parameters).cast::<u8>(),
                bytes.as_mut_ptr(),
                size_of::<P>(),
            );
        }
        Self {
            bytes,
            len: size_of::<P>(),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The bytes, mutable: a test of the plan plants faults there.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            bytes: [0; MOST_PARAMETER_BYTES],
            len: 0,
        }
    }
}

impl std::fmt::Debug for Parameters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parameters({} bytes)", self.len)
    }
}

/// A parameter structure of a kernel, declared in C.
///
/// # Safety
/// Every byte of a value is initialised: the structure has no padding that is not a field. bindgen makes padding
/// fields (`explicit_padding`).
pub(crate) unsafe trait KernelParameters: Copy {}
