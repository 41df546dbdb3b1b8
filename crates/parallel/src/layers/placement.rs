//! Placement of a rank's part on its GPU, and the vectors that its layers read there.

use std::sync::Arc;

use nvfp4_gemv::cudarc::driver::{CudaSlice, CudaStream};
use nvfp4_gemv::{Device, GlobalScale, QuantizedVectors, ScaleLayout, Shape, VectorScale, Vectors};

use super::device::{DeviceElement, cuda};
use super::{LayersError, sums};
use crate::nccl;

/// How [`RankLayers::place`](super::RankLayers::place) prepares layers: for how many vectors, of which kind, and where
/// the sum is made. All ranks have the same placement.
///
/// ```
/// use nvfp4_gemv::GlobalScale;
/// use nvfp4_gemv_parallel::layers::{Placement, VectorGlobals};
/// // As a checkpoint has them: the greatest values of the two layers' vectors, over those that NVFP4 has.
/// let globals = VectorGlobals {
///     input: GlobalScale::Multiplier(9.5 / (6.0 * 448.0)),
///     between: GlobalScale::Multiplier(21.0 / (6.0 * 448.0)),
/// };
/// let placement = Placement::new(8).nvfp4(globals).in_window();
/// # assert_ne!(placement, Placement::new(8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    pub(super) n: usize,
    sum: SumMemory,
    nvfp4: Option<VectorGlobals>,
}

/// Where a sum is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SumMemory {
    Plain,
    Window,
    BySize,
}

/// The global scales of NVFP4 vectors: given beforehand, from calibration, as checkpoints have them
/// (`checkpoint::Layer::input_global`). With the same ones on all ranks, each quantises its part as one device does the
/// whole; scales of each rank's own would give other results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VectorGlobals {
    /// The global scale of the vectors that the first layers read.
    pub input: GlobalScale,
    /// The global scale of the vectors that the last layer reads.
    pub between: GlobalScale,
}

impl Placement {
    /// For n vectors, which the layers read as they are; the sum is made in memory as any other.
    pub const fn new(n: usize) -> Self {
        Self {
            n,
            sum: SumMemory::Plain,
            nvfp4: None,
        }
    }

    /// The sum is made in a [`Window`](crate::nccl::Window).
    pub const fn in_window(mut self) -> Self {
        self.sum = SumMemory::Window;
        self
    }

    /// The sum is made where it was measured to take less time, for its bytes and the number of ranks:
    /// [`sums::window_pays`]. Where NCCL has no windows, or its environment turns them off, it is made in memory as any
    /// other. That environment is the same for all ranks.
    pub const fn by_size(mut self) -> Self {
        self.sum = SumMemory::BySize;
        self
    }

    /// Whether a sum of so many bytes over so many ranks is made in a window.
    ///
    /// # Errors
    /// As [`nccl::library`]'s.
    pub(super) fn takes_window(&self, ranks: usize, bytes: usize) -> Result<bool, LayersError> {
        Ok(match self.sum {
            SumMemory::Plain => false,
            SumMemory::Window => true,
            // Nobody asks a library that nobody needs.
            SumMemory::BySize => sums::window_pays(ranks, bytes) && nccl::windows_are_on()?,
        })
    }

    /// The layers read NVFP4 vectors: a launch quantises the vectors that are given and those between, each with one
    /// kernel more.
    pub const fn nvfp4(mut self, globals: VectorGlobals) -> Self {
        self.nvfp4 = Some(globals);
        self
    }

    /// The global scales of the first layers' vectors and of the last one's, checked.
    pub(super) fn globals(&self) -> Result<Option<[GlobalScale; 2]>, LayersError> {
        let Some(VectorGlobals { input, between }) = self.nvfp4 else {
            return Ok(None);
        };
        input.as_multiplier("global scale of the first layers' vectors")?;
        between.as_multiplier("global scale of the last layer's vectors")?;
        Ok(Some([input, between]))
    }
}

/// Vectors that layers read: as they are written, and as NVFP4 where the layers take that.
#[derive(Debug)]
pub(super) struct Read<T: DeviceElement> {
    values: CudaSlice<T>,
    nvfp4: Option<(QuantizedVectors, GlobalScale)>,
}

impl<T: DeviceElement> Read<T> {
    /// Vectors of a layer's shape, of zeros.
    pub(super) fn new(
        stream: &Arc<CudaStream>,
        shape: &Shape,
        layout: ScaleLayout,
        global: Option<GlobalScale>,
    ) -> Result<Self, LayersError> {
        let nvfp4 = global.map(|global| -> Result<_, LayersError> {
            Ok((QuantizedVectors::new(stream, shape, layout)?, global))
        });
        Ok(Self {
            values: stream.alloc_zeros(shape.vector_elements()).map_err(cuda)?,
            nvfp4: nvfp4.transpose()?,
        })
    }

    /// The buffer in which the vectors are written.
    pub(super) fn values(&mut self) -> &mut CudaSlice<T> {
        &mut self.values
    }

    /// Enqueues what makes NVFP4 of what was written, where the layers take that.
    pub(super) fn quantize(&mut self, stream: &Arc<CudaStream>) -> Result<(), LayersError> {
        let Some((quantized, global)) = &mut self.nvfp4 else {
            return Ok(());
        };
        let vectors = T::vectors(self.values.as_view());
        Ok(quantized.quantize_with(stream, &vectors, &VectorScale::Shared(*global))?)
    }

    /// The vectors as the layers take them.
    pub(super) fn vectors(&self) -> Vectors<'_, Device> {
        match &self.nvfp4 {
            None => T::vectors(self.values.as_view()),
            Some((quantized, _)) => quantized.vectors(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_that_are_none_are_refused_before_anything_is_placed() {
        let globals = |input, between| {
            let [input, between] = [input, between].map(GlobalScale::Divisor);
            let placement = Placement::new(1).nvfp4(VectorGlobals { input, between });
            placement.globals().map_err(|error| error.to_string())
        };
        let kept = [2.0, 4.0].map(GlobalScale::Divisor);
        assert_eq!(globals(2.0, 4.0), Ok(Some(kept)));
        for (input, between, what) in [(0.0, 1.0, "first layers'"), (1.0, f32::NAN, "last layer's")]
        {
            let error = globals(input, between).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        assert_eq!(Placement::new(1).globals(), Ok(None));
    }

    /// The caller's wish wins; without one, a window is taken only where it pays.
    #[test]
    fn windows_are_taken_as_asked() {
        let takes = |placement: Placement, ranks, bytes| placement.takes_window(ranks, bytes);
        let (small, middle) = (16 << 10, 256 << 10);
        assert_eq!(takes(Placement::new(1), 2, small), Ok(false));
        assert_eq!(takes(Placement::new(1).in_window(), 8, middle), Ok(true));
        // Not the library's to say.
        assert_eq!(takes(Placement::new(1).by_size(), 2, middle), Ok(false));
        assert_eq!(takes(Placement::new(1).by_size(), 8, small), Ok(false));
    }
}
