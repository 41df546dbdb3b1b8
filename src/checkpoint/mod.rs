//! NVFP4 layers in safetensors checkpoints, as ModelOpt and compressed-tensors write them.
//!
//! | | ModelOpt | compressed-tensors (`nvfp4-pack-quantized`) |
//! |---|---|---|
//! | codes | `weight` U8 [N, K/2] | `weight_packed` U8 [N, K/2] |
//! | block scales | `weight_scale` F8_E4M3 [N, K/16], linear | the same |
//! | global scale | `weight_scale_2` F32, a multiplier | `weight_global_scale` F32, a divisor |
//! | activations' global scale | `input_scale`, a multiplier | `input_global_scale`, a divisor |
//!
//! The dialect is found out layer by layer. Files are mapped, and weights borrow from the map.
//!
//! ```no_run
//! use nvfp4_gemv::checkpoint::Checkpoint;
//! let checkpoint = Checkpoint::open("model.safetensors")?;
//! for name in checkpoint.layers() {
//!     let layer = checkpoint.layer(name)?;
//!     println!("{name}: {} x {}, {}", layer.rows(), layer.k(), layer.dialect());
//! }
//! # Ok::<(), nvfp4_gemv::checkpoint::CheckpointError>(())
//! ```

mod error;
mod open;

use std::path::Path;

use safetensors::Dtype;

pub use error::CheckpointError;
pub use open::{Checkpoint, INDEX_FILE};

pub use crate::dialect::Dialect;

use crate::file::{FileError, Tensor};
use crate::{Dims, GlobalScale, ScaleLayout, Shape, Weights};

/// One NVFP4 layer. Its tensors' types and shapes, its block scales and its global scale have been
/// checked.
#[derive(Debug)]
pub struct Layer<'a> {
    name: &'a str,
    dialect: Dialect,
    codes: Tensor<'a>,
    scales: Tensor<'a>,
    shape: Shape,
    global: GlobalScale,
    input_global: Option<GlobalScale>,
}

impl<'a> Layer<'a> {
    /// The layer's name, without `.weight`.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The file that holds the codes.
    pub fn path(&self) -> &'a Path {
        self.codes.file().path()
    }

    /// Whose tensor names it uses.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Rows of the weight, M: the layer's output features.
    pub fn rows(&self) -> usize {
        self.shape.m()
    }

    /// Elements of a row, K: the layer's input features.
    pub fn k(&self) -> usize {
        self.shape.k()
    }

    /// The dimensions of a call with `n` vectors.
    ///
    /// # Errors
    /// [`Error::NZero`](crate::Error::NZero), and [`Error::SizeOverflow`](crate::Error::SizeOverflow) for more vectors
    /// than memory can have.
    pub fn shape(&self, n: usize) -> crate::Result<Shape> {
        Shape::new(Dims {
            m: self.rows(),
            n,
            k: self.k(),
            l: 1,
        })
    }

    /// Codes `[M][K/2]`.
    pub fn codes(&self) -> &'a [u8] {
        self.codes.bytes()
    }

    /// Block scales, linear `[M][K/16]`.
    pub fn scales(&self) -> &'a [u8] {
        self.scales.bytes()
    }

    /// The weight's global scale.
    pub fn global(&self) -> GlobalScale {
        self.global
    }

    /// The global scale for activations that the calibration found, where the file has one.
    pub fn input_global(&self) -> Option<GlobalScale> {
        self.input_global
    }

    /// The weights, borrowed from the mapped file.
    ///
    /// # Errors
    /// None, unless the file has been changed since the layer was opened.
    pub fn weights(&self) -> crate::Result<Weights<'a>> {
        Weights::new(
            &self.shape,
            self.codes(),
            self.scales(),
            ScaleLayout::Linear,
            self.global,
        )
    }

    /// Finds a layer's tensors and checks them.
    fn open(
        checkpoint: &'a Checkpoint,
        name: &'a str,
        dialect: Dialect,
    ) -> Result<Self, FileError> {
        let of = |suffix: &str, expected: &str| {
            checkpoint.require(&format!("{name}.{suffix}"), expected)
        };
        let codes = of(dialect.codes(), "U8 [N, K/2]")?;
        let &[rows, k_half] = codes.shape() else {
            return Err(codes.wrong("U8 [N, K/2]"));
        };
        if codes.dtype() != Dtype::U8 {
            return Err(codes.wrong("U8 [N, K/2]"));
        }
        let shape = Shape::matrix(rows, k_half.saturating_mul(2)).map_err(|e| codes.refused(e))?;
        let dims = [rows, shape.blocks()];
        let scales = of(dialect.scales(), &format!("F8_E4M3 {dims:?}"))?;
        let scales = scales.expect(Dtype::F8_E4M3, &dims)?;
        let global = of(dialect.global(), "F32 [] or [1]")?;
        let layer = Self {
            name,
            dialect,
            codes,
            scales,
            shape,
            global: scalar(&global, dialect)?,
            input_global: checkpoint
                .tensor(&format!("{name}.{}", dialect.input_global()))
                .map(|t| scalar(&t, dialect))
                .transpose()?,
        };
        layer.weights().map_err(|e| scales.refused(e))?;
        Ok(layer)
    }
}

/// A global scale from a tensor of one F32 that is usable as one.
fn scalar(tensor: &Tensor<'_>, dialect: Dialect) -> Result<GlobalScale, FileError> {
    if !matches!(tensor.shape(), [] | [1]) || tensor.dtype() != Dtype::F32 {
        return Err(tensor.wrong("F32 [] or [1]"));
    }
    let [value] = tensor.to_f32()?[..] else {
        return Err(tensor.wrong("F32 [] or [1]"));
    };
    dialect
        .global_scale(value)
        .check("global scale")
        .map_err(|e| tensor.refused(e))
}
