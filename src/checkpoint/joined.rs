//! Layers that are joined: the parts of a fused layer one matrix, experts one array of matrices.

use std::borrow::Cow;

use rayon::prelude::*;
use safetensors::Dtype;

use super::stacked::{CODES, Stacked};
use super::{Checkpoint, CheckpointError, Layer, Note, other, swap_nibbles};
use crate::file::{FileError, Tensor};
use crate::tensor::{WEIGHT_SCALES, bad_scale, first_bad_scale};
use crate::{BLOCK, Dims, GlobalScale, RowOrder, ScaleLayout, Shape, Weights, check};

/// Layers as one array of weights `[L][M][K]`: q, k and v of an attention, gate and up of an MLP, experts.
///
/// Parts of a fused layer, and experts, have global scales of their own. Where those differ, the weights have a factor
/// for each row, so that no scale is rounded. Nothing is copied before [`gather`](Self::gather), and block scales are
/// looked at when they are copied or multiplied.
#[derive(Debug)]
pub struct Joined<'a> {
    shape: Shape,
    order: RowOrder,
    /// The parts of the first matrix, those of the second.
    parts: Vec<Part<'a>>,
    /// Of layers, not of stacked experts.
    names: Vec<String>,
    /// How many parts a matrix has.
    of_matrix: usize,
    /// Codes and block scales of all, where one tensor has them in this order.
    whole: Option<[&'a [u8]; 2]>,
    global: GlobalScale,
    row_alpha: Option<Vec<f32>>,
    column_alpha: Option<Vec<f32>>,
    notes: Vec<Note>,
}

/// A layer, or an expert of several that are stacked.
#[derive(Clone, Copy, Debug)]
struct Part<'a> {
    rows: usize,
    k: usize,
    /// Codes and block scales, and the tensors that they are in.
    bytes: [&'a [u8]; 2],
    tensors: [Tensor<'a>; 2],
    /// Whether these are `[K/2][M]` and `[K/16][M]`.
    is_transposed: bool,
    /// Of the block scales.
    layout: ScaleLayout,
    /// Whether the high nibble of codes comes first.
    high_first: bool,
    global: GlobalScale,
}

/// One of the two arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Codes,
    Scales,
}

impl Which {
    /// Bytes of a row.
    pub(super) fn of_row(self, shape: &Shape) -> usize {
        match self {
            Self::Codes => shape.k() / 2,
            Self::Scales => shape.blocks(),
        }
    }
}

/// Weights that were [gathered](Joined::gather): their operands, owned where they had to be copied.
#[derive(Clone, Debug)]
pub struct Gathered<'a> {
    pub(super) shape: Shape,
    pub(super) codes: Cow<'a, [u8]>,
    pub(super) scales: Cow<'a, [u8]>,
    pub(super) global: GlobalScale,
    pub(super) row_alpha: Option<Vec<f32>>,
    pub(super) column_alpha: Option<Vec<f32>>,
}

impl Checkpoint {
    /// Layers with equally long rows as one matrix: q, k and v, or gate and up.
    ///
    /// # Errors
    /// As [`layer`](Self::layer)'s for each of them, but for what block scales hold. [`CheckpointError::Join`] for layers whose sizes or factors of
    /// columns (AWQ) differ, for those with factors of rows already, and for no layer at all. Experts may have factors
    /// of columns that differ: matrices have their own, and the parts of one matrix the same.
    ///
    /// ```no_run
    /// use nvfp4_gemv::checkpoint::{Checkpoint, RowOrder};
    /// let checkpoint = Checkpoint::open("model/")?;
    /// let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| format!("model.layers.0.self_attn.{part}"));
    /// let qkv = checkpoint.joined(&qkv, RowOrder::Stacked)?.gather();
    /// let weights = qkv.weights()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn joined(
        &self,
        layers: &[impl AsRef<str>],
        order: RowOrder,
    ) -> Result<Joined<'_>, CheckpointError> {
        let opened = layers.iter().map(|name| self.unscanned(name.as_ref()));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        Joined::of_layers(opened, layers.len(), order)
    }

    /// All experts of a layer as one array of matrices: `experts` is their common name, such as
    /// `model.layers.0.mlp.experts`. Each matrix joins these `parts` of an expert, such as `gate_proj` and `up_proj`,
    /// or is the only one. The experts have tensors of their own (`experts.0.gate_proj`), or are stacked in one
    /// (`experts.gate_up_proj`).
    ///
    /// # Errors
    /// As [`joined`](Self::joined)'s. An expert that is missing is [`CheckpointError::NoLayer`].
    pub fn experts(
        &self,
        experts: &str,
        parts: &[impl AsRef<str>],
        order: RowOrder,
    ) -> Result<Joined<'_>, CheckpointError> {
        let experts = experts.trim_end_matches('.');
        if parts.is_empty() {
            return Joined::of_layers(Vec::new(), 0, order);
        }
        let parts = || parts.iter().map(AsRef::as_ref);
        if let Some(experts_of_their_own) = self.experts_of_their_own(experts)? {
            let mut layers = Vec::new();
            for expert in 0..experts_of_their_own {
                for part in parts() {
                    layers.push(self.unscanned(&format!("{experts}.{expert}.{part}"))?);
                }
            }
            return Joined::of_layers(layers, parts().len(), order);
        }
        let stacked = |part: &str| {
            let name = format!("{experts}.{part}");
            let codes = CODES.map(|ending| self.tensor(&format!("{name}{ending}")));
            let is_stack = |of: &Tensor<'_>| match of.dtype() {
                Dtype::U8 => of.shape().len() == 3,
                _ => other::is_stacked(self, of),
            };
            if let Some(codes) = codes.into_iter().flatten().find(is_stack) {
                return Stacked::of(self, codes);
            }
            // A tensor that is there instead has words of its own.
            self.unscanned(&name)?;
            Err(CheckpointError::Join {
                layers: [name.clone(), name],
                reason: "it is one layer, and no experts".into(),
            })
        };
        Joined::of_stacked(parts().map(stacked).collect::<Result<_, _>>()?, order)
    }
}

impl Checkpoint {
    /// How many experts there are, where they have tensors of their own, such as `experts.0.gate_proj.weight`.
    ///
    /// # Errors
    /// Tensors of experts in files that are not open.
    pub(crate) fn experts_of_their_own(
        &self,
        experts: &str,
    ) -> Result<Option<usize>, CheckpointError> {
        self.nothing_elsewhere(experts)?;
        let number = |rest: &str| rest.split_once('.')?.0.parse::<usize>().ok();
        let tensors = self.behind(format!("{experts}."));
        let last = tensors.filter_map(|(rest, _)| number(rest)).max();
        Ok(last.map(|last| last.saturating_add(1)))
    }
}

impl<'a> Joined<'a> {
    /// Layers, so many of which are one matrix.
    fn of_layers(
        layers: Vec<Layer<'a>>,
        of_matrix: usize,
        order: RowOrder,
    ) -> Result<Self, CheckpointError> {
        let parts = layers.iter().map(|layer| Part {
            rows: layer.rows(),
            k: layer.k(),
            bytes: [layer.headers.stored_codes(), layer.scales()],
            tensors: layer.tensors(),
            is_transposed: false,
            layout: layer.layout(),
            high_first: layer.headers.high_first,
            global: layer.global(),
        });
        let name = |part: usize| layers[part].name().to_owned();
        let mut joined = Self::of(parts.collect(), of_matrix, order, name)?;
        if let Some(at) = layers.iter().position(|layer| layer.row_alpha().is_some()) {
            return Err(CheckpointError::Join {
                layers: [name(0), name(at)],
                reason: "the second has parts of its own, with a global scale each".into(),
            });
        }
        let factors: Vec<_> = layers.iter().map(Layer::column_alpha).collect();
        joined.column_alpha = joined.columns(&factors, name)?;
        joined.names = layers.iter().map(|l| l.name().to_owned()).collect();
        joined.notes = layers.iter().flat_map(|l| l.notes().to_vec()).collect();
        Ok(joined)
    }

    fn of_stacked(stacked: Vec<Stacked<'a>>, order: RowOrder) -> Result<Self, CheckpointError> {
        let of_matrix = stacked.len();
        let experts = stacked.iter().map(|of| of.shape.l()).max().unwrap_or(0);
        let name = |part: usize| stacked[part % of_matrix].name.to_owned();
        if let Some(fewer) = stacked.iter().position(|of| of.shape.l() != experts) {
            let most = stacked.iter().position(|of| of.shape.l() == experts);
            return Err(CheckpointError::Join {
                layers: [name(most.unwrap_or(0)), name(fewer)],
                reason: format!("{experts} and {} experts", stacked[fewer].shape.l()),
            });
        }
        let mut parts = vec![Vec::new(); experts];
        for of in &stacked {
            let globals = of.globals()?;
            for ((bytes, global), matrix) in of.experts().zip(globals).zip(&mut parts) {
                matrix.push(Part {
                    rows: of.shape.m(),
                    k: of.shape.k(),
                    bytes,
                    tensors: of.tensors(),
                    is_transposed: of.is_transposed,
                    layout: ScaleLayout::Linear,
                    high_first: false,
                    global,
                });
            }
        }
        let mut joined = Self::of(parts.concat(), of_matrix, order, name)?;
        let factors = stacked.iter().map(Stacked::column_alpha);
        let factors = factors.collect::<Result<Vec<_>, _>>()?;
        let of_part = |part: usize| {
            let (matrix, k) = (part / of_matrix, joined.shape.k());
            let factors = factors[part % of_matrix].as_deref()?;
            // One expert's, or all experts'.
            Some(factors.chunks(k).nth(matrix).unwrap_or(factors))
        };
        let factors: Vec<_> = (0..joined.parts.len()).map(of_part).collect();
        joined.column_alpha = joined.columns(&factors, name)?;
        joined.notes = stacked.iter().flat_map(|of| of.notes.clone()).collect();
        if let [one] = &stacked[..] {
            joined.whole = (!one.is_transposed).then(|| one.whole());
        }
        Ok(joined)
    }

    fn of(
        parts: Vec<Part<'a>>,
        of_matrix: usize,
        order: RowOrder,
        name: impl Fn(usize) -> String,
    ) -> Result<Self, CheckpointError> {
        let differ = |a: usize, b: usize, reason: String| CheckpointError::Join {
            layers: [a, b].map(&name),
            reason,
        };
        let Some(first) = parts.first() else {
            return Err(CheckpointError::Join {
                layers: Default::default(),
                reason: "there is none to join".into(),
            });
        };
        for (at, part) in parts.iter().enumerate() {
            if part.k != first.k {
                return Err(differ(0, at, format!("K = {} and {}", first.k, part.k)));
            }
            // The same part of the first matrix; interleaved, any part.
            let as_many = match order {
                RowOrder::Stacked => at % of_matrix,
                RowOrder::Interleaved => 0,
            };
            let rows = parts[as_many].rows;
            if part.rows != rows {
                return Err(differ(
                    as_many,
                    at,
                    format!("{rows} and {} rows", part.rows),
                ));
            }
        }
        let rows = parts[..of_matrix].iter().map(|part| part.rows);
        let dims = Dims {
            m: rows.fold(0, usize::saturating_add),
            n: 1,
            k: first.k,
            l: parts.len() / of_matrix,
        };
        let shape = Shape::new(dims).map_err(|error| differ(0, 0, error.to_string()))?;
        let mut joined = Self {
            shape,
            order,
            whole: (parts.len() == 1 && first.is_as_joined()).then_some(first.bytes),
            global: first.global,
            row_alpha: None,
            column_alpha: None,
            parts,
            names: Vec::new(),
            of_matrix,
            notes: Vec::new(),
        };
        if joined.parts.iter().any(|part| part.global != joined.global) {
            joined.global = GlobalScale::ONE;
            joined.row_alpha = Some(joined.factors());
        }
        Ok(joined)
    }

    /// The factors of columns that all parts have, or those of each matrix. A matrix without any has ones.
    fn columns(
        &self,
        of_parts: &[Option<&[f32]>],
        name: impl Fn(usize) -> String,
    ) -> Result<Option<Vec<f32>>, CheckpointError> {
        let matrices = || of_parts.chunks(self.of_matrix);
        for (matrix, parts) in matrices().enumerate() {
            if let Some(other) = parts.iter().position(|factors| *factors != parts[0]) {
                let first = matrix * self.of_matrix;
                return Err(CheckpointError::Join {
                    layers: [name(first), name(first + other)],
                    reason: "their factors of columns (`pre_quant_scale`) differ, and one vector is for all".into(),
                });
            }
        }
        if of_parts.iter().all(|factors| *factors == of_parts[0]) {
            return Ok(of_parts[0].map(<[f32]>::to_vec));
        }
        let ones = vec![1.0; self.shape.k()];
        let of_matrix = matrices().map(|parts| parts[0].unwrap_or(&ones));
        Ok(Some(of_matrix.collect::<Vec<_>>().concat()))
    }

    /// The global scale of each row's layer. What a single layer's rows are multiplied by is rounded to f32 as well.
    fn factors(&self) -> Vec<f32> {
        let mut factors = vec![0.0; self.shape.l() * self.shape.m()];
        let matrices = factors.chunks_mut(self.shape.m().max(1));
        for (matrix, parts) in matrices.zip(self.parts.chunks(self.of_matrix)) {
            for (part, rows) in parts.iter().zip(self.rows(parts)) {
                for row in rows {
                    matrix[row] = part.global.multiplier() as f32;
                }
            }
        }
        factors
    }

    /// Where the rows of each part are in its matrix.
    fn rows(&self, parts: &[Part<'_>]) -> Vec<impl Iterator<Item = usize> + use<>> {
        let mut before = 0;
        let of_part = |(at, part): (usize, &Part<'_>)| {
            let (first, step) = match self.order {
                RowOrder::Stacked => (before, 1),
                RowOrder::Interleaved => (at, parts.len()),
            };
            before += part.rows;
            (0..part.rows).map(move |row| first + row * step)
        };
        parts.iter().enumerate().map(of_part).collect()
    }

    /// The weights' shape: of one vector, and of as many batches as there are matrices.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The global scale: the layers' own, or 1 where they have several.
    pub fn global(&self) -> GlobalScale {
        self.global
    }

    /// The factors of rows `[L][M]`: the layers' global scales where those differ, or `None`.
    pub fn row_alpha(&self) -> Option<&[f32]> {
        self.row_alpha.as_deref()
    }

    /// The factors of columns, as [`Layer::column_alpha`]: `[K]` where all layers have the same, or `[L][K]`.
    pub fn column_alpha(&self) -> Option<&[f32]> {
        self.column_alpha.as_deref()
    }

    /// Notes on all layers.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Writes the codes `[L][M][K/2]` to memory of the caller's, such as memory that a GPU copies from.
    ///
    /// # Errors
    /// Memory of another length than [`Shape::weight_code_bytes`].
    pub fn write_codes(&self, codes: &mut [u8]) -> crate::Result<()> {
        let bytes = self.shape.weight_code_bytes();
        check::len("weight codes", "bytes", codes.len(), bytes)?;
        self.write(codes, Which::Codes);
        Ok(())
    }

    /// Writes the block scales, linear `[L][M][K/16]`. Their content is not looked at: [`Weights::new`] does that.
    ///
    /// # Errors
    /// Memory of another length than [`Shape::weight_scale_bytes`].
    pub fn write_scales(&self, scales: &mut [u8]) -> crate::Result<()> {
        let bytes = self.shape.weight_scale_bytes(ScaleLayout::Linear);
        check::len("weight scales", "bytes", scales.len(), bytes)?;
        self.write(scales, Which::Scales);
        Ok(())
    }

    /// Refuses block scales `[rows][K/16]` of all `[L][M]` rows, from the `first` one on, that are NaN or negative. The
    /// error names the tensor, and the row in it.
    pub(crate) fn check_scales(&self, first: usize, scales: &[u8]) -> Result<(), FileError> {
        let Some(at) = first_bad_scale(scales) else {
            return Ok(());
        };
        let (row, block) = (at / self.shape.blocks(), at % self.shape.blocks());
        let (part, row, _) = self.part_of(first + row);
        let error = bad_scale(WEIGHT_SCALES, [0, row, block], scales[at]);
        Err(part.tensors[Which::Scales as usize].refused(error))
    }

    /// The name and the rows of each layer, as its tensors have them.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        let rows = self.parts.iter().map(|part| part.rows);
        self.names.iter().map(String::as_str).zip(rows)
    }

    /// The codes and block scales of each part, and its global scale. They lie in a mapped file, but for those that are
    /// transposed there.
    pub(crate) fn parts(&self) -> impl Iterator<Item = ([Cow<'a, [u8]>; 2], GlobalScale)> {
        self.parts.iter().map(move |part| {
            let bytes = [Which::Codes, Which::Scales].map(|which| match part.is_as_joined() {
                true => Cow::Borrowed(part.bytes[which as usize]),
                false => {
                    let mut bytes = vec![0; part.bytes[which as usize].len()];
                    part.write(&mut bytes, which, which.of_row(&self.shape), 0..part.rows);
                    bytes.into()
                }
            });
            (bytes, part.global)
        })
    }

    /// Writes codes or block scales.
    fn write(&self, out: &mut [u8], which: Which) {
        let of_row = which.of_row(&self.shape);
        let matrices = out.par_chunks_mut((self.shape.m() * of_row).max(1));
        let parts = self.parts.par_chunks(self.of_matrix);
        matrices.zip(parts).for_each(|(matrix, parts)| {
            for (part, rows) in parts.iter().zip(self.rows(parts)) {
                part.write(matrix, which, of_row, rows);
            }
        });
    }

    /// Reads the codes or block scales of some rows of all `[L][M]`, from the `first` one on.
    pub(super) fn read_rows(
        &self,
        which: Which,
        mut first: usize,
        mut out: &mut [u8],
    ) -> Result<(), FileError> {
        let of_row = which.of_row(&self.shape);
        while !out.is_empty() {
            let (part, row, follow) = self.part_of(first);
            let rows = follow.min(out.len() / of_row);
            let (now, later) = out.split_at_mut(rows * of_row);
            match part.is_as_joined() {
                true => part.read_rows(which, row, now)?,
                false => {
                    for (at, to) in now.chunks_exact_mut(of_row).enumerate() {
                        part.write_row(which, row + at, to);
                    }
                }
            }
            (first, out) = (first + rows, later);
        }
        Ok(())
    }

    /// The part that a row of all `[L][M]` is of, its row there, and how many rows from there on follow each other in
    /// both.
    fn part_of(&self, row: usize) -> (&Part<'a>, usize, usize) {
        let (matrix, within) = (row / self.shape.m(), row % self.shape.m());
        let parts = &self.parts[matrix * self.of_matrix..][..self.of_matrix];
        let mut before = 0;
        match self.order {
            RowOrder::Interleaved if parts.len() > 1 => {
                (&parts[within % parts.len()], within / parts.len(), 1)
            }
            _ => {
                let holds = |part: &&Part<'_>| {
                    let is_in = within < before + part.rows;
                    before += if is_in { 0 } else { part.rows };
                    is_in
                };
                let part = parts.iter().find(holds);
                let part = part.expect("rows of a matrix are its parts'");
                (part, within - before, part.rows - (within - before))
            }
        }
    }

    /// Codes and block scales as one array each: those of the mapped file where one tensor has them so, or else copied
    /// once.
    pub fn gather(&self) -> Gathered<'a> {
        let [codes, scales] = match self.whole {
            Some(whole) => whole.map(Cow::Borrowed),
            None => {
                let shape = &self.shape;
                let mut codes = vec![0; shape.weight_code_bytes()];
                self.write(&mut codes, Which::Codes);
                let mut scales = vec![0; shape.weight_scale_bytes(ScaleLayout::Linear)];
                self.write(&mut scales, Which::Scales);
                [codes.into(), scales.into()]
            }
        };
        Gathered {
            shape: self.shape,
            codes,
            scales,
            global: self.global,
            row_alpha: self.row_alpha.clone(),
            column_alpha: self.column_alpha.clone(),
        }
    }
}

impl Part<'_> {
    /// Whether its bytes lie as those of joined weights do.
    fn is_as_joined(&self) -> bool {
        !self.is_transposed && !self.high_first && self.layout == ScaleLayout::Linear
    }

    /// Writes codes or block scales to these rows of a matrix.
    fn write(
        &self,
        matrix: &mut [u8],
        which: Which,
        of_row: usize,
        rows: impl Iterator<Item = usize>,
    ) {
        for (row, to) in rows.enumerate() {
            self.write_row(which, row, &mut matrix[to * of_row..(to + 1) * of_row]);
        }
    }

    /// Reads rows that lie here as in joined weights.
    fn read_rows(&self, which: Which, first: usize, to: &mut [u8]) -> Result<(), FileError> {
        let of_row = match which {
            Which::Codes => self.k / 2,
            Which::Scales => self.k / BLOCK,
        };
        let bytes = &self.bytes[which as usize][first * of_row..][..to.len()];
        self.tensors[which as usize].file().copy(bytes, to)
    }

    /// Writes codes or block scales of one row.
    fn write_row(&self, which: Which, row: usize, to: &mut [u8]) {
        let bytes = self.bytes[which as usize];
        let of_row = to.len();
        let is_tiled = which == Which::Scales && self.layout != ScaleLayout::Linear;
        if self.is_transposed || is_tiled {
            let at = |column: usize| match is_tiled {
                true => self.layout.offset(row, column, of_row),
                false => column * self.rows + row,
            };
            for (column, to) in to.iter_mut().enumerate() {
                *to = bytes[at(column)];
            }
        } else {
            to.copy_from_slice(&bytes[row * of_row..(row + 1) * of_row]);
        }
        if which == Which::Codes && self.high_first {
            to.iter_mut().for_each(|byte| *byte = swap_nibbles(byte));
        }
    }
}

impl Gathered<'_> {
    /// Codes and block scales, copied where they were not.
    pub(crate) fn into_owned(self) -> (Vec<u8>, Vec<u8>) {
        (self.codes.into_owned(), self.scales.into_owned())
    }

    /// The weights' shape: of one vector, and of as many batches as there are matrices.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Codes `[L][M][K/2]`.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Block scales, linear `[L][M][K/16]`.
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// The global scale: the layers' own, or 1 where they have several.
    pub fn global(&self) -> GlobalScale {
        self.global
    }

    /// The factors of rows `[L][M]`: the layers' global scales where those differ, or `None`.
    pub fn row_alpha(&self) -> Option<&[f32]> {
        self.row_alpha.as_deref()
    }

    /// The factors of columns, as [`Layer::column_alpha`]: `[K]` where all layers have the same, or `[L][K]`.
    pub fn column_alpha(&self) -> Option<&[f32]> {
        self.column_alpha.as_deref()
    }

    /// The weights, with the factors of their rows and columns. Reads every block scale once.
    ///
    /// # Errors
    /// A block scale that is NaN or negative.
    pub fn weights(&self) -> crate::Result<Weights<'_>> {
        let layout = ScaleLayout::Linear;
        let mut weights =
            Weights::new(&self.shape, &self.codes, &self.scales, layout, self.global)?;
        if let Some(factors) = &self.row_alpha {
            weights = weights.with_row_alpha(factors)?;
        }
        match &self.column_alpha {
            Some(factors) => weights.with_column_alpha(factors),
            None => Ok(weights),
        }
    }
}
