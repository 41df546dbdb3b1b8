//! A problem with its addresses, checked. Launch plans are made from a `Call`.

use super::params::{
    NVFP4_ACTIVATION_BF16, NVFP4_ACTIVATION_F16, NVFP4_ACTIVATION_F32, NVFP4_ATOM_BLOCKS,
    NVFP4_ATOM_BYTES, NVFP4_ATOM_ROWS, NVFP4_GLOBAL_COMPUTED, NVFP4_GLOBAL_SHARED,
    NVFP4_OUTPUT_BF16, NVFP4_OUTPUT_F16, NVFP4_OUTPUT_F32, nvfp4_epilogue, nvfp4_gate,
    nvfp4_on_read, nvfp4_scale_steps, nvfp4_select, nvfp4_vectors, nvfp4_weights,
};
use super::quantize::{Input, operand};
use crate::check::{Batches, Regions, extent, pointer, reach, strided};
use crate::error::{Error, Result};
use crate::operands::{
    Operands, RawOnRead, RawOutput, RawSelect, RawVectors, RawWeights, RawWorkspace,
};
use crate::shape::{Shape, Strides};
use crate::tensor::{GlobalScale, combine};
use crate::types::{Activation, FloatType, ScaleLayout};

// The kernels' header and the layout's definition agree on the size of atoms.
const _: () = assert!(
    NVFP4_ATOM_ROWS as usize == ScaleLayout::ATOM_ROWS
        && NVFP4_ATOM_BLOCKS as usize == ScaleLayout::ATOM_BLOCKS
);

const OUTPUT: &str = "output";

/// A problem with its addresses, checked: its fields are consistent with each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    pub(crate) shape: Shape,
    pub(crate) weights: RawWeights,
    pub(crate) vectors: RawVectors,
    pub(crate) output: RawOutput,
    pub(crate) workspace: RawWorkspace,
    /// The product of the global scales.
    pub(crate) alpha: f32,
}

/// The operands of one pass over the weights, as kernels take them. Vectors are counted from the first one of the pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Number of vectors of the pass; digits count as vectors.
    pub(super) n: i32,
    pub(super) weights: nvfp4_weights,
    pub(super) vectors: nvfp4_vectors,
    pub(super) epilogue: nvfp4_epilogue,
}

impl Call {
    /// Checks everything that can be checked without reading device memory, and combines the global scales. If M, N or
    /// L is 0, there is nothing to compute, and addresses mean nothing.
    ///
    /// # Errors
    /// Null or misaligned pointers; strides that are too small, too large or misaligned; a [global
    /// scale](crate::Error::GlobalScale) that is not usable; an output that overlaps an input. All bytes from the first
    /// to the last of a strided operand count as its own.
    pub fn new(
        shape: &Shape,
        weights: &RawWeights,
        vectors: &RawVectors,
        output: &RawOutput,
    ) -> Result<Self> {
        weights.global.check("weight global scale")?;
        shape.of_digits(vectors.digits())?;
        let global = match vectors {
            RawVectors::Nvfp4 { global, .. } => global.check("vector global scale")?,
            // A vector's own global scale is a factor of its results.
            RawVectors::Dense { .. } | RawVectors::OnRead(_) => GlobalScale::ONE,
        };
        let call = Self {
            shape: *shape,
            weights: *weights,
            vectors: *vectors,
            output: *output,
            workspace: RawWorkspace::NONE,
            alpha: combine(weights.global, global)?,
        };
        if !shape.is_empty() {
            call.check_addresses()?;
        }
        Ok(call)
    }

    /// This call with a workspace.
    ///
    /// # Errors
    /// A misaligned workspace, and one that overlaps an operand.
    pub fn with_workspace(mut self, workspace: RawWorkspace) -> Result<Self> {
        const WORKSPACE: &str = "workspace";
        self.workspace = workspace;
        if workspace.bytes == 0 || self.shape.is_empty() {
            return Ok(self);
        }
        pointer(WORKSPACE, workspace.address, RawWorkspace::ALIGNMENT)?;
        let bytes = usize::try_from(workspace.bytes).unwrap_or(usize::MAX);
        let output = self.output_bytes()?;
        let mut regions = self.regions()?;
        regions.push(OUTPUT, self.output.address, output);
        regions.push_written(WORKSPACE, workspace.address, bytes)?;
        Ok(self)
    }

    fn output_strides(&self) -> Strides {
        let row = self.shape.m() * self.output.element.bytes();
        let packed = Strides::packed(self.shape.n(), row);
        self.output.strides.unwrap_or(packed)
    }

    /// Bytes from the output's first to its last, after a check of its address and strides.
    fn output_bytes(&self) -> Result<usize> {
        let (shape, size) = (&self.shape, self.output.element.bytes());
        pointer(OUTPUT, self.output.address, size as u64)?;
        let strides = self.output_strides();
        let bytes = strided(
            OUTPUT,
            shape,
            strides,
            shape.m() * size,
            size as u64,
            Batches::Apart,
        )?;
        let (stride, most) = (strides.row / size, i32::MAX as usize);
        match shape.n() > 1 && stride > most {
            true => Err(Error::StrideTooLarge {
                operand: OUTPUT,
                stride,
                most,
            }),
            false => Ok(bytes),
        }
    }

    /// This call with a bias, an operand of the epilogue, at an address where no memory is.
    #[doc(hidden)]
    pub fn biased_nowhere(mut self) -> Self {
        self.output.bias = 6 << 59;
        self
    }

    /// This call with batches that select their matrix, by ids at an address where no memory is.
    #[doc(hidden)]
    pub fn selecting_nowhere(mut self) -> Self {
        self.weights.select = Some(RawSelect {
            ids: 8 << 59,
            late: false,
            distinct: false,
            matrices: self.shape.l(),
        });
        self
    }

    /// This call with vectors that are quantised when they are read, of elements at an address where no memory is.
    #[doc(hidden)]
    pub fn reading_nowhere(mut self) -> Self {
        let element = FloatType::Bf16;
        self.vectors = RawVectors::OnRead(RawOnRead {
            element,
            values: 3 << 59,
            strides: Strides::packed(self.shape.n(), self.shape.k() * element.bytes()),
            copies: 1,
            gate: None,
            global: None,
        });
        self
    }

    /// A call with packed operands at addresses where no memory is: enough to plan its launches. The weights' codes and
    /// scales are aligned to `align` bytes, a power of two; everything else is aligned as allocations are. The
    /// workspace is as large as any kernel asks for.
    #[doc(hidden)]
    pub fn nowhere(shape: &Shape, activation: Activation, layout: ScaleLayout, align: u64) -> Self {
        let at = |i: u64| i << 59;
        let packed = |row| Strides::packed(shape.n(), row);
        let dense = |element: FloatType| RawVectors::Dense {
            element,
            values: at(3),
            strides: packed(shape.k() * element.bytes()),
        };
        Self {
            shape: *shape,
            weights: RawWeights {
                codes: at(1) + align,
                scales: at(2) + align,
                layout,
                global: GlobalScale::ONE,
                row_alpha: 0,
                row_alpha_batch_stride: 0,
                select: None,
            },
            vectors: match activation {
                Activation::Nvfp4 => RawVectors::Nvfp4 {
                    codes: at(3),
                    code_strides: packed(shape.row_code_bytes()),
                    scales: at(4),
                    layout,
                    scale_strides: Strides {
                        row: shape.blocks(),
                        batch: layout.bytes(shape.n(), shape.blocks()),
                    },
                    global: GlobalScale::ONE,
                    vector_alpha: 0,
                    digits: 1,
                },
                Activation::F16 => dense(FloatType::F16),
                Activation::Bf16 => dense(FloatType::Bf16),
                Activation::F32 => dense(FloatType::F32),
            },
            output: RawOutput::packed(at(5), FloatType::F32),
            workspace: RawWorkspace {
                address: at(7),
                bytes: u64::MAX,
            },
            alpha: 1.0,
        }
    }

    fn check_addresses(&self) -> Result<()> {
        let bytes = self.output_bytes()?;
        self.regions()?.check_disjoint(self.output.address, bytes)
    }

    /// Number of matrices that the weights have.
    pub(super) fn matrices(&self) -> usize {
        let select = self.weights.select;
        select.map_or(self.shape.l(), |select| select.matrices)
    }

    /// Bytes of all matrices, if one has `one` bytes.
    fn of_matrices(&self, one: usize) -> Result<usize> {
        let all = self.matrices().checked_mul(one);
        all.filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| self.overflow())
    }

    /// Elements of an operand with one number a row, if `stride` elements lie between the first numbers of a matrix and
    /// the next.
    fn rows(&self, stride: usize) -> Result<usize> {
        extent(self.matrices(), stride, 1, 0, self.shape.m())
            .filter(|&rows| isize::try_from(rows).is_ok())
            .ok_or_else(|| self.overflow())
    }

    fn overflow(&self) -> Error {
        let (m, n, k) = (self.shape.m(), self.shape.n(), self.shape.k());
        Error::SizeOverflow {
            m,
            n,
            k,
            l: self.matrices(),
        }
    }

    /// Memory regions of the inputs, after a check of their addresses and strides.
    fn regions(&self) -> Result<Regions> {
        let (shape, weights) = (&self.shape, &self.weights);
        let mut regions = Regions::default();
        pointer("weight codes", weights.codes, 8)?;
        let matrices = self.matrices();
        let bytes = self.of_matrices(shape.m() * shape.row_code_bytes())?;
        regions.push("weight codes", weights.codes, bytes);
        let align = match weights.layout {
            ScaleLayout::Linear => 1,
            ScaleLayout::Tiled128x4 => 4,
        };
        pointer("weight scales", weights.scales, align)?;
        let bytes = self.of_matrices(weights.layout.bytes(shape.m(), shape.blocks()))?;
        regions.push("weight scales", weights.scales, bytes);
        if let Some(select) = weights.select {
            const SELECT: &str = "select";
            pointer(SELECT, select.ids, 4)?;
            regions.push(SELECT, select.ids, shape.l() * 4);
            if matrices == 0 {
                return Err(Error::Select {
                    batch: 0,
                    id: 0,
                    matrices,
                });
            }
            // Ids are signed 32-bit numbers, and reach no further.
            if matrices > Shape::MAX_DIM {
                return Err(self.overflow());
            }
        }
        if weights.row_alpha != 0 {
            pointer("row alpha", weights.row_alpha, 4)?;
            let rows = self.rows(weights.row_alpha_batch_stride)?;
            regions.push("row alpha", weights.row_alpha, rows.saturating_mul(4));
        }
        match self.vectors {
            RawVectors::Nvfp4 {
                codes,
                code_strides,
                scales,
                layout,
                scale_strides,
                vector_alpha,
                ..
            } => {
                const SCALES: &str = "vector scales";
                pointer("vector codes", codes, 8)?;
                let row = shape.row_code_bytes();
                let digits = &shape.of_digits(self.vectors.digits())?;
                let bytes = strided(
                    "vector codes",
                    digits,
                    code_strides,
                    row,
                    8,
                    Batches::MayBeShared,
                )?;
                regions.push("vector codes", codes, bytes);
                pointer(SCALES, scales, 1)?;
                let bytes = match layout {
                    ScaleLayout::Linear => strided(
                        SCALES,
                        digits,
                        scale_strides,
                        shape.blocks(),
                        1,
                        Batches::MayBeShared,
                    )?,
                    ScaleLayout::Tiled128x4 => {
                        let bytes = layout.bytes(digits.n(), shape.blocks());
                        if shape.l() > 1 {
                            Batches::MayBeShared.check(
                                SCALES,
                                "bytes",
                                scale_strides.batch,
                                bytes,
                            )?;
                        }
                        reach(shape, scale_strides.batch, bytes)?
                    }
                };
                regions.push(SCALES, scales, bytes);
                if vector_alpha != 0 {
                    const GLOBALS: &str = "vector global scales";
                    pointer(GLOBALS, vector_alpha, 4)?;
                    regions.push(GLOBALS, vector_alpha, shape.l() * shape.n() * 4);
                }
            }
            RawVectors::Dense {
                element,
                values,
                strides,
            } => {
                pointer("vectors", values, 16)?;
                let row = shape.k() * element.bytes();
                let bytes = strided("vectors", shape, strides, row, 16, Batches::MayBeShared)?;
                regions.push("vectors", values, bytes);
            }
            RawVectors::OnRead(RawOnRead {
                element,
                values,
                strides,
                copies,
                gate,
                global,
            }) => {
                pointer("vectors", values, 16)?;
                if let Some((gate, _)) = gate {
                    gate.check()?;
                }
                if let Some(global) = global {
                    global.as_multiplier("given global scale")?;
                }
                let read = &Input::of(gate).source(shape, copies)?;
                let row = read.k() * element.bytes();
                let bytes = strided("vectors", read, strides, row, 16, Batches::MayBeShared)?;
                regions.push("vectors", values, bytes);
            }
        }
        let output = &self.output;
        if output.bias != 0 {
            const BIAS: &str = "bias";
            pointer(BIAS, output.bias, 4)?;
            let rows = self.rows(output.bias_batch_stride)?;
            regions.push(BIAS, output.bias, rows.saturating_mul(4));
        }
        // A residual may lie in the output's own memory: one thread reads the residual before it writes the result.
        if output.residual != 0 && output.residual != output.address {
            const RESIDUAL: &str = "residual";
            pointer(RESIDUAL, output.residual, output.element.bytes() as u64)?;
            regions.push(RESIDUAL, output.residual, self.output_bytes()?);
        }
        Ok(regions)
    }

    /// The problem's dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Properties of the operands on which dispatch depends.
    pub fn operands(&self) -> Operands {
        Operands::of(&self.shape, &self.weights, &self.vectors).with_workspace(self.workspace.bytes)
    }

    /// Passes over the weights, each for at most `most` vectors. `most` is a power of two, and no more than the rows of
    /// an atom of scales.
    ///
    /// So the scales of a pass's vectors are those of rows of one atom, beginning at a multiple of `most`. A kernel
    /// that counts the vectors of a pass from 0 finds their scales as those of rows from 0 on. Digits count as vectors;
    /// those of one vector are in one pass. Either they divide `most`, or there is one pass.
    pub(super) fn passes(&self, most: usize) -> impl Iterator<Item = Pass> + '_ {
        assert!(
            most.is_power_of_two() && most <= NVFP4_ATOM_ROWS as usize,
            "passes of {most} vectors"
        );
        let (n, digits) = (self.shape.n(), self.vectors.digits());
        let vectors = most / digits;
        assert!(
            n <= vectors || most.is_multiple_of(digits),
            "passes of {most} for vectors of {digits}"
        );
        (0..n)
            .step_by(vectors)
            .map(move |first| self.pass(first, vectors.min(n - first)))
    }

    /// The pass for the vectors `first..first + n`, where vector `first` begins a [pass](Self::passes).
    fn pass(&self, first: usize, n: usize) -> Pass {
        let blocks = self.shape.blocks();
        let (vectors, strides, vector_scales, layout, scale_strides) = match self.vectors {
            RawVectors::Nvfp4 {
                codes,
                code_strides,
                scales,
                layout,
                scale_strides,
                ..
            } => (codes, code_strides, scales, layout, scale_strides),
            RawVectors::Dense {
                values, strides, ..
            }
            | RawVectors::OnRead(RawOnRead {
                values, strides, ..
            }) => {
                let none = Strides { row: 0, batch: 0 };
                (values, strides, 0, ScaleLayout::Linear, none)
            }
        };
        let digits = self.vectors.digits();
        let first_row = first * digits;
        let first_scale = match layout {
            ScaleLayout::Linear => first_row * scale_strides.row,
            ScaleLayout::Tiled128x4 => layout.offset(first_row, 0, blocks),
        };
        Pass {
            n: (n * digits) as i32,
            weights: self.weights_operand(),
            vectors: nvfp4_vectors {
                values: vectors + (first_row * strides.row) as u64,
                scales: vector_scales + first_scale as u64,
                scale_steps: scale_steps(layout, blocks, scale_strides.row),
                row_bytes: strides.row as i64,
                batch_bytes: strides.batch as i64,
                scale_batch_bytes: scale_strides.batch as i64,
            },
            epilogue: self.epilogue(first),
        }
    }

    fn weights_operand(&self) -> nvfp4_weights {
        let (shape, weights) = (&self.shape, &self.weights);
        let blocks = shape.blocks();
        nvfp4_weights {
            codes: weights.codes,
            scales: weights.scales,
            scale_steps: scale_steps(weights.layout, blocks, blocks),
            row_bytes: shape.row_code_bytes() as i64,
            matrix_bytes: (shape.m() * shape.row_code_bytes()) as i64,
            scale_matrix_bytes: weights.layout.bytes(shape.m(), blocks) as i64,
        }
    }

    /// The operand that says which matrix each batch has. A launch that waits for the one before has all ids.
    pub(super) fn select_operand(&self, job: &super::Job<'_>) -> nvfp4_select {
        let select = self.weights.select;
        nvfp4_select {
            ids: select.map_or(0, |select| select.ids),
            matrices: self.matrices() as u32,
            late: u32::from(job.chained && select.is_some_and(|select| select.late)),
        }
    }

    /// The operand that says how vectors are quantised when they are read; zeros where they are not.
    pub(super) fn on_read_operand(&self) -> nvfp4_on_read {
        let RawVectors::OnRead(on_read) = self.vectors else {
            return nvfp4_on_read::default();
        };
        let element = match on_read.element {
            FloatType::F16 => NVFP4_ACTIVATION_F16,
            FloatType::Bf16 => NVFP4_ACTIVATION_BF16,
            FloatType::F32 => NVFP4_ACTIVATION_F32,
        };
        let gate = on_read.gate;
        nvfp4_on_read {
            element: element as i32,
            gated: gate.is_some().into(),
            gate: gate.map_or_else(nvfp4_gate::default, |(gate, order)| operand(gate, order)),
            global_kind: match on_read.global {
                None => NVFP4_GLOBAL_COMPUTED as i32,
                Some(_) => NVFP4_GLOBAL_SHARED as i32,
            },
            global: on_read
                .global
                .map_or(0.0, |global| global.multiplier() as f32),
            copies: on_read.copies as u32,
        }
    }

    /// Operands of the epilogue, for the vectors from `first` on.
    fn epilogue(&self, first: usize) -> nvfp4_epilogue {
        let n = self.shape.n();
        let vector_alpha = match self.vectors {
            RawVectors::Nvfp4 { vector_alpha, .. } => vector_alpha,
            RawVectors::Dense { .. } | RawVectors::OnRead(_) => 0,
        };
        let output = self.results();
        let operands = [
            self.weights.row_alpha,
            vector_alpha,
            self.output.bias,
            self.output.residual,
        ];
        nvfp4_epilogue {
            alpha: self.alpha,
            has_operands: operands.iter().any(|&address| address != 0).into(),
            row_alpha: self.weights.row_alpha,
            row_alpha_batch: self.weights.row_alpha_batch_stride as i64,
            vector_alpha: match vector_alpha {
                0 => 0,
                address => address + 4 * first as u64,
            },
            vector_alpha_batch: n as i64,
            output: output.at(self.output.address, first),
            output_batch: output.batch as i64,
            output_vector: output.vector as i32,
            output_type: float_type(self.output.element),
            bias: self.output.bias,
            bias_batch: self.output.bias_batch_stride as i64,
            residual: match self.output.residual {
                0 => 0,
                address => output.at(address, first),
            },
        }
    }

    /// Size and strides of the results.
    fn results(&self) -> Results {
        let (shape, size) = (&self.shape, self.output.element.bytes());
        let strides = self.output_strides();
        Results {
            size,
            vector: if shape.n() > 1 { strides.row / size } else { 0 },
            batch: if shape.l() > 1 {
                strides.batch / size
            } else {
                0
            },
        }
    }
}

/// Size and strides of results, and of the residuals that are added to them. `size` is bytes of one result. `vector`
/// and `batch` are elements from one vector, or batch, to the next.
#[derive(Clone, Copy)]
struct Results {
    size: usize,
    vector: usize,
    batch: usize,
}

impl Results {
    /// Address of a vector's results, if all results begin at `address`.
    fn at(&self, address: u64, vector: usize) -> u64 {
        address + (vector * self.vector * self.size) as u64
    }
}

/// The number that stands for a type in kernels' parameters.
pub(super) fn float_type(element: FloatType) -> i32 {
    let number = match element {
        FloatType::F16 => NVFP4_OUTPUT_F16,
        FloatType::Bf16 => NVFP4_OUTPUT_BF16,
        FloatType::F32 => NVFP4_OUTPUT_F32,
    };
    number as i32
}

/// How the scales of rows of `blocks` blocks lie. `row_stride` counts in the linear layout only.
fn scale_steps(layout: ScaleLayout, blocks: usize, row_stride: usize) -> nvfp4_scale_steps {
    let (row_stride, group_stride, tiled) = match layout {
        ScaleLayout::Linear => (row_stride, NVFP4_ATOM_BLOCKS, false),
        ScaleLayout::Tiled128x4 => (
            layout.bytes(NVFP4_ATOM_ROWS as usize, blocks),
            NVFP4_ATOM_BYTES,
            true,
        ),
    };
    nvfp4_scale_steps {
        row_stride: row_stride as i64,
        group_stride: group_stride as i32,
        tiled: tiled.into(),
    }
}

/// 2^32 / y rounded up, in 32 bits, for kernels that divide by multiplying; 0 for a y of 1.
pub(super) fn magic(y: u32) -> u32 {
    match y {
        1 => 0,
        y => (1_u64 << 32).div_ceil(u64::from(y)) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Dims;

    const BATCHES: usize = 2;

    fn call(n: usize, k: usize, activation: Activation, layout: ScaleLayout) -> Call {
        let shape = Shape::new(Dims {
            m: 48,
            n,
            k,
            l: BATCHES,
        })
        .unwrap();
        let mut call = Call::nowhere(&shape, activation, layout, 32);
        if let RawVectors::Nvfp4 { vector_alpha, .. } = &mut call.vectors {
            *vector_alpha = 6 << 59;
        }
        call
    }

    /// Numbers of vectors of a pass that kernels may take.
    fn sizes_of_passes() -> impl Iterator<Item = usize> {
        (0..8).map(|log2| 1 << log2)
    }

    /// `row_offset` and `block_offset` of `csrc/format/scale_steps.cuh`.
    fn device_offset(steps: &nvfp4_scale_steps, row: i64, block: i64) -> i64 {
        let of_row = match steps.tiled {
            1 => row / 128 * steps.row_stride + row % 32 * 16 + row % 128 / 32 * 4,
            _ => row * steps.row_stride,
        };
        of_row + block / 4 * i64::from(steps.group_stride) + block % 4
    }

    /// A kernel counts vectors from the first one of the pass. The scales that the kernel finds for a vector are those
    /// that the layout gives.
    #[test]
    fn scales_of_every_pass_lie_where_the_layout_says() {
        for layout in ScaleLayout::ALL {
            for (most, k) in sizes_of_passes().flat_map(|most| [(most, 16), (most, 80)]) {
                let call = call(300, k, Activation::Nvfp4, layout);
                let blocks = call.shape.blocks();
                let RawVectors::Nvfp4 {
                    scales,
                    scale_strides,
                    ..
                } = call.vectors
                else {
                    panic!("{:?}", call.vectors);
                };
                let mut vector = 0;
                for pass in call.passes(most) {
                    assert_eq!(pass.vectors.scale_batch_bytes, scale_strides.batch as i64);
                    for i in 0..pass.n {
                        for block in 0..blocks {
                            let steps = &pass.vectors.scale_steps;
                            let found = device_offset(steps, i.into(), block as i64);
                            let found = pass.vectors.scales + found as u64;
                            let right = scales + layout.offset(vector, block, blocks) as u64;
                            assert_eq!(found, right, "{layout} {most}: {vector}, {block}");
                        }
                        vector += 1;
                    }
                }
                assert_eq!(vector, 300);
            }
        }
    }

    #[test]
    fn vectors_factors_and_outputs_of_every_pass_follow_each_other() {
        for (activation, row) in [
            (Activation::Nvfp4, 40),
            (Activation::F16, 160),
            (Activation::F32, 320),
        ] {
            for most in sizes_of_passes() {
                let call = call(300, 80, activation, ScaleLayout::Linear);
                let mut first = 0;
                for pass in call.passes(most) {
                    let at = |base: u64, bytes: u64| (base << 59) + first * bytes;
                    assert_eq!(pass.vectors.values, at(3, row));
                    assert_eq!(pass.vectors.row_bytes, row as i64);
                    assert_eq!(pass.vectors.batch_bytes, 300 * row as i64);
                    assert_eq!(pass.epilogue.output, at(5, 48 * 4));
                    assert_eq!(pass.epilogue.output_batch, 300 * 48);
                    let factors = match activation {
                        Activation::Nvfp4 => at(6, 4),
                        _ => 0,
                    };
                    assert_eq!(pass.epilogue.vector_alpha, factors);
                    assert_eq!(pass.epilogue.vector_alpha_batch, 300);
                    assert!(pass.n as usize <= most);
                    first += pass.n as u64;
                }
                assert_eq!(first, 300);
            }
        }
    }
}
