//! Memory that operands lie in: host memory, or a CUDA device's.

use std::fmt::Debug;

/// A place that operands lie in. Operand types take it as a parameter, so that the host's and
/// the device's are one definition with one set of checks.
pub trait Memory: sealed::Sealed + Sized + 'static {
    /// A borrowed buffer that is read.
    type Slice<'a, T: Debug + 'static>: Buffer + Debug;
    /// A borrowed buffer that is written.
    type SliceMut<'a, T: Debug + 'static>: Buffer + Debug;
}

/// A buffer that knows its length.
pub trait Buffer {
    /// The number of elements that it holds.
    fn count(&self) -> usize;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Host {}
    #[cfg(feature = "device")]
    impl Sealed for super::Device {}
}

/// Host memory: plain slices.
#[derive(Clone, Copy, Debug)]
pub enum Host {}

impl Memory for Host {
    type Slice<'a, T: Debug + 'static> = &'a [T];
    type SliceMut<'a, T: Debug + 'static> = &'a mut [T];
}

impl<T> Buffer for &[T] {
    fn count(&self) -> usize {
        self.len()
    }
}

impl<T> Buffer for &mut [T] {
    fn count(&self) -> usize {
        self.len()
    }
}

/// A CUDA device's memory: cudarc's views.
#[cfg(feature = "device")]
#[derive(Clone, Copy, Debug)]
pub enum Device {}

#[cfg(feature = "device")]
impl Memory for Device {
    type Slice<'a, T: Debug + 'static> = cudarc::driver::CudaView<'a, T>;
    type SliceMut<'a, T: Debug + 'static> = cudarc::driver::CudaViewMut<'a, T>;
}

#[cfg(feature = "device")]
impl<T> Buffer for cudarc::driver::CudaView<'_, T> {
    fn count(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "device")]
impl<T> Buffer for cudarc::driver::CudaViewMut<'_, T> {
    fn count(&self) -> usize {
        self.len()
    }
}
