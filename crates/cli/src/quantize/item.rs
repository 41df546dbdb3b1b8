//! What becomes of the tensors of an input: matrices that are quantised, and what is kept.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, bail};
use nvfp4_gemv::checkpoint::{
    Checkpoint, Dense, Dialect, Gathered, Gguf, GgufElement, GgufTensor, Note,
};
use nvfp4_gemv::file::{Tensor, TensorFile};
use nvfp4_gemv::format::{e2m1, e4m3};
use nvfp4_gemv::quantize::{Quantized, quantize, quantize_calibrated};
use nvfp4_gemv::{BLOCK, GlobalScale};
use nvfp4_gemv_cli::file::{Content, NewTensor, WriteError};
use nvfp4_gemv_files::printable;
use rayon::prelude::*;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::calibration::Calibrations;
use super::choice::{self, Copied, Named};
use super::{Args, CHANGED, directory, label};

/// A matrix that is quantised.
pub(super) struct Matrix<'a> {
    /// The module's name in the output.
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) k: usize,
    from: From<'a>,
}

/// Where a matrix's elements are.
enum From<'a> {
    /// A tensor `[M, K]`.
    Tensor(Tensor<'a>),
    /// A matrix `[M, K]`, or, transposed, `[K, M]`.
    Dense {
        dense: Dense<'a>,
        is_transposed: bool,
        /// Its file.
        path: &'a Path,
    },
}

impl<'a> Matrix<'a> {
    fn of(name: String, dense: Dense<'a>, is_transposed: bool, path: &'a Path) -> Rc<Self> {
        let (rows, k) = match is_transposed {
            true => (dense.k(), dense.rows()),
            false => (dense.rows(), dense.k()),
        };
        Rc::new(Self {
            name,
            rows,
            k,
            from: From::Dense {
                dense,
                is_transposed,
                path,
            },
        })
    }

    /// The elements `[M][K]` in f32.
    fn values(&self) -> Result<Vec<f32>, WriteError> {
        let (dense, is_transposed) = match &self.from {
            From::Tensor(tensor) => return Ok(tensor.to_f32_widened()?),
            From::Dense {
                dense,
                is_transposed,
                ..
            } => (dense, *is_transposed),
        };
        let stored = widened(dense).map_err(|reason| self.refused(reason))?;
        if !is_transposed {
            return Ok(stored);
        }
        let mut values = vec![0.0; stored.len()];
        let rows = values.par_chunks_exact_mut(self.k).enumerate();
        rows.for_each(|(row, out)| {
            for (column, out) in out.iter_mut().enumerate() {
                *out = stored[column * self.rows + row];
            }
        });
        Ok(values)
    }

    fn refused(&self, reason: String) -> WriteError {
        let (file, tensor) = match &self.from {
            From::Tensor(tensor) => (tensor.file().path(), tensor.name()),
            From::Dense { dense, path, .. } => (*path, dense.name()),
        };
        let (file, tensor) = (file.into(), tensor.into());
        WriteError::Conversion {
            file,
            tensor,
            reason,
        }
    }
}

/// All elements of a matrix as they are stored.
fn widened(dense: &Dense<'_>) -> Result<Vec<f32>, String> {
    let mut values = vec![0.0; dense.rows() * dense.k()];
    let rows = values.par_chunks_exact_mut(dense.k().max(1)).enumerate();
    let read = rows.map(|(row, out)| dense.row(row, out));
    read.collect::<Result<(), _>>()
        .map_err(|error| error.to_string())?;
    Ok(values)
}

/// How far a matrix moved.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Moved {
    pub(super) rows: usize,
    pub(super) k: usize,
    /// The root of the sum of squares of the differences, over that of the elements.
    pub(super) relative_error: f64,
}

/// Quantises matrices, one at a time: it keeps what it has made last, and each one's global scale.
pub(super) struct Maker<'a> {
    dialect: Dialect,
    calibrations: Option<&'a Calibrations>,
    last: RefCell<Option<(String, Rc<Quantized>)>>,
    globals: RefCell<HashMap<String, GlobalScale>>,
    /// Hashes of all that was made: a matrix that is made again must be the same.
    made: RefCell<HashMap<String, u64>>,
    pub(super) moved: RefCell<BTreeMap<String, Moved>>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(dialect: Dialect, calibrations: Option<&'a Calibrations>) -> Self {
        Self {
            dialect,
            calibrations,
            last: RefCell::default(),
            globals: RefCell::default(),
            made: RefCell::default(),
            moved: RefCell::default(),
        }
    }

    fn quantised(
        &self,
        matrix: &Matrix<'_>,
        global: GlobalScale,
    ) -> Result<Rc<Quantized>, WriteError> {
        if let Some((name, last)) = &*self.last.borrow()
            && *name == matrix.name
        {
            return Ok(Rc::clone(last));
        }
        *self.last.borrow_mut() = None;
        let values = matrix.values()?;
        let (rows, k, dialect) = (matrix.rows, matrix.k, self.dialect);
        let made = match self.calibrations {
            None => quantize(&values, rows, k, dialect, Some(global)),
            Some(all) => {
                let of = all.of(&matrix.name).map_err(|why| matrix.refused(why))?;
                quantize_calibrated(&values, rows, k, dialect, Some(global), &of)
            }
        };
        let made = Rc::new(made.map_err(|error| matrix.refused(error.to_string()))?);
        let mut hash = DefaultHasher::new();
        (&made.codes, &made.scales).hash(&mut hash);
        let known = self
            .made
            .borrow_mut()
            .insert(matrix.name.clone(), hash.finish());
        // Other programs can write to the input while it is mapped.
        if known.is_some_and(|known| known != hash.finish()) {
            return Err(matrix.refused(CHANGED.into()));
        }
        let moved = Moved {
            rows: matrix.rows,
            k: matrix.k,
            relative_error: relative_error(&values, &made),
        };
        self.moved.borrow_mut().insert(matrix.name.clone(), moved);
        *self.last.borrow_mut() = Some((matrix.name.clone(), Rc::clone(&made)));
        Ok(made)
    }

    /// A matrix that shares its global scale with no other. It is made again when it is written.
    pub(super) fn alone(&self, matrix: &Matrix<'_>) -> Result<Rc<Quantized>, WriteError> {
        let made = self.quantised(matrix, self.own_global(matrix)?);
        *self.last.borrow_mut() = None;
        made
    }

    /// A matrix's own global scale, which depends on its largest magnitude alone: that of one block which has it.
    fn own_global(&self, matrix: &Matrix<'_>) -> Result<GlobalScale, WriteError> {
        if let Some(global) = self.globals.borrow().get(&matrix.name) {
            return Ok(*global);
        }
        let values = matrix.values()?;
        let largest = values.par_iter().map(|x| x.abs()).reduce(|| 0.0, f32::max);
        let mut block = [0.0; BLOCK];
        block[0] = largest;
        let of_block = quantize(&block, 1, BLOCK, self.dialect, None);
        // What is wrong with the block is wrong with the matrix, which has it at its place.
        let of_block =
            of_block.or_else(|_| quantize(&values, matrix.rows, matrix.k, self.dialect, None));
        let global = of_block
            .map_err(|error| matrix.refused(error.to_string()))?
            .global;
        let name = matrix.name.clone();
        self.globals.borrow_mut().insert(name, global);
        Ok(global)
    }

    /// The global scale that several matrices share: that of the largest element.
    fn global(&self, matrices: &[Rc<Matrix<'_>>]) -> Result<GlobalScale, WriteError> {
        let all = matrices.iter().map(|matrix| self.own_global(matrix));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let widest = all
            .into_iter()
            .max_by(|a, b| a.multiplier().total_cmp(&b.multiplier()));
        Ok(widest.unwrap_or(GlobalScale::ONE))
    }
}

/// In f64, row by row: a row's sums are added in the order of the rows, so that they are the same on any machine.
fn relative_error(values: &[f32], made: &Quantized) -> f64 {
    let global = made.global.multiplier();
    let rows = values.par_chunks(made.k);
    let codes = made.codes.par_chunks(made.k / 2);
    let scales = made.scales.par_chunks(made.k / BLOCK);
    let of_row = |((values, codes), scales): ((&[f32], &[u8]), &[u8])| {
        let blocks = values
            .chunks(BLOCK)
            .zip(codes.chunks(BLOCK / 2))
            .zip(scales);
        let (mut off, mut all) = (0.0, 0.0);
        for ((values, codes), scale) in blocks {
            let step = f64::from(e4m3::decode(*scale)) * global;
            for (at, x) in values.iter().enumerate() {
                let (x, y) = (
                    f64::from(*x),
                    f64::from(e2m1::decode(e2m1::unpack(codes, at))) * step,
                );
                off += (x - y) * (x - y);
                all += x * x;
            }
        }
        [off, all]
    };
    let sums: Vec<[f64; 2]> = rows.zip(codes).zip(scales).map(of_row).collect();
    let [off, all] = sums
        .into_iter()
        .fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d]);
    if all == 0.0 { 0.0 } else { (off / all).sqrt() }
}

/// A tensor of the output.
#[derive(Clone)]
pub(super) enum Piece<'a> {
    Kept(NewTensor<'a>),
    /// A matrix of GGUF's that becomes F32.
    Widened {
        shape: Vec<usize>,
        dense: Dense<'a>,
        /// Its file.
        path: &'a Path,
    },
    /// A part of a matrix that is NVFP4 or MXFP4 in a GGUF file.
    Repacked {
        of: Rc<Repacked<'a>>,
        part: Part,
        shape: Vec<usize>,
    },
    Made {
        of: Rc<Matrix<'a>>,
        /// Those that share its global scale, itself among them.
        group: Vec<Rc<Matrix<'a>>>,
        part: Part,
        shape: Vec<usize>,
        maker: Rc<Maker<'a>>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Codes,
    Scales,
    Global,
}

impl Content for Piece<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Self::Kept(tensor) => tensor.dtype,
            Self::Widened { .. } => Dtype::F32,
            Self::Made { part, .. } | Self::Repacked { part, .. } => match part {
                Part::Codes => Dtype::U8,
                Part::Scales => Dtype::F8_E4M3,
                Part::Global => Dtype::F32,
            },
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Kept(tensor) => &tensor.shape,
            Self::Widened { shape, .. }
            | Self::Repacked { shape, .. }
            | Self::Made { shape, .. } => shape,
        }
    }

    fn byte_len(&self) -> usize {
        match self {
            Self::Kept(tensor) => tensor.bytes.len(),
            _ => self.shape().iter().product::<usize>() * self.dtype().bitsize() / 8,
        }
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>, WriteError> {
        match self {
            Self::Kept(tensor) => tensor.bytes(),
            Self::Widened { dense, path, .. } => {
                let values = widened(dense).map_err(|reason| WriteError::Conversion {
                    file: (*path).into(),
                    tensor: dense.name().into(),
                    reason,
                })?;
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                Ok(bytes.into())
            }
            Self::Repacked { of, part, .. } => Ok(of.part(*part)?.into()),
            Self::Made {
                of,
                group,
                part,
                maker,
                ..
            } => {
                let global = maker.global(group)?;
                Ok(match part {
                    Part::Global => global.stored().to_le_bytes().to_vec().into(),
                    Part::Codes => maker.quantised(of, global)?.codes.clone().into(),
                    Part::Scales => maker.quantised(of, global)?.scales.clone().into(),
                })
            }
        }
    }
}

/// A file of the output: what is in it.
#[derive(Default)]
pub(super) struct Shard<'a> {
    pub(super) matrices: Vec<Rc<Matrix<'a>>>,
    /// Tensors that are kept, and layers that are NVFP4 already.
    pub(super) kept: Vec<(String, Piece<'a>)>,
    /// Layers that are NVFP4 already.
    pub(super) repacked: Vec<String>,
}

impl<'a> Shard<'a> {
    /// The tensors that it becomes; `group` has the matrices that share a matrix's global scale.
    pub(super) fn pieces(
        &self,
        maker: &Rc<Maker<'a>>,
        group: impl Fn(&Rc<Matrix<'a>>) -> Vec<Rc<Matrix<'a>>>,
    ) -> impl Iterator<Item = (String, Piece<'a>)> {
        let made = self.matrices.iter().flat_map(move |matrix| {
            let group = group(matrix);
            let all = parts(maker.dialect, matrix.rows, matrix.k);
            all.map(|(suffix, part, shape)| {
                let piece = Piece::Made {
                    of: Rc::clone(matrix),
                    group: group.clone(),
                    part,
                    shape,
                    maker: Rc::clone(maker),
                };
                (format!("{}.{suffix}", matrix.name), piece)
            })
        });
        made.chain(self.kept.iter().cloned())
    }

    /// The names of the tensors that it becomes.
    pub(super) fn names(&self, dialect: Dialect) -> impl Iterator<Item = String> {
        let of_matrix = move |matrix: &Rc<Matrix<'_>>| {
            parts(dialect, matrix.rows, matrix.k)
                .map(|(suffix, ..)| format!("{}.{suffix}", matrix.name))
        };
        let kept = self.kept.iter().map(|(name, _)| name.clone());
        self.matrices.iter().flat_map(of_matrix).chain(kept)
    }

    /// What is in it, without what it is made of.
    pub(super) fn summary(&self) -> Value {
        let matrices = self.matrices.iter().map(|matrix| {
            let is_transposed = matches!(
                matrix.from,
                From::Dense {
                    is_transposed: true,
                    ..
                }
            );
            json!([matrix.name, matrix.rows, matrix.k, is_transposed])
        });
        let kept = self.kept.iter();
        let kept = kept.map(|(name, of)| json!([name, of.dtype().to_string(), of.shape()]));
        json!([matrices.collect::<Vec<_>>(), kept.collect::<Vec<_>>()])
    }
}

/// Everything that becomes of an input.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) shards: Vec<Shard<'a>>,
    pub(super) copied: Copied,
    /// Modules that could have been quantised, and were not.
    pub(super) left: Vec<String>,
    /// Tensors that become another's layers' biases, by name.
    split: BTreeSet<String>,
    opened: Opened,
}

/// What a config says of a model, as far as it is needed to tell the rows of stacked experts from their columns.
pub(super) struct Sizes {
    hidden: Option<usize>,
    is_transposed: bool,
    has_conv1d: bool,
}

impl Sizes {
    pub(super) fn of(config: &Value) -> Self {
        let inner = config.get("text_config").unwrap_or(config);
        let hidden = inner.get("hidden_size").and_then(Value::as_u64);
        let kind = |of: &Value| Some(of.get("model_type")?.as_str()?.to_owned());
        let kind = kind(inner).or_else(|| kind(config)).unwrap_or_default();
        Self {
            hidden: hidden.and_then(|hidden| hidden.try_into().ok()),
            is_transposed: kind.starts_with("llama4") || kind == "gpt_oss",
            has_conv1d: choice::has_conv1d(config),
        }
    }

    /// Whether stacked matrices have rows of K elements, or columns, as far as can be told from their shape `[E, a, b]`
    /// or that of another part of the same experts, which lies the same way.
    fn transposed(
        &self,
        name: &str,
        shape_of: impl Fn(&str) -> Option<[usize; 2]>,
    ) -> Option<bool> {
        // Of down, the hidden size is M; of the others, K.
        const PARTS: [(&str, bool); 7] = [
            ("gate_up_proj", false),
            ("gate_proj", false),
            ("up_proj", false),
            ("w1", false),
            ("w3", false),
            ("down_proj", true),
            ("w2", true),
        ];
        let hidden = self.hidden?;
        let (module, ending) = match name.strip_suffix(".weight") {
            Some(module) => (module, ".weight"),
            None => (name, ""),
        };
        let (stem, part) = module
            .rsplit_once('.')
            .map_or(("", module), |(stem, part)| (stem, part));
        PARTS.iter().find(|(of, _)| *of == part)?;
        let mut ways = PARTS.iter().filter_map(|(of, is_down)| {
            let name = match stem {
                "" => format!("{of}{ending}"),
                _ => format!("{stem}.{of}{ending}"),
            };
            let [a, b] = shape_of(&name)?;
            let [as_k, as_m] = if *is_down { [a, b] } else { [b, a] }.map(|size| size == hidden);
            // Of a square nothing, of what has no such size neither.
            Some(match (as_k, as_m) {
                (true, false) => Some(Some(false)),
                (false, true) => Some(Some(true)),
                (true, true) => None,
                (false, false) => Some(None),
            })
        });
        let told = ways.by_ref().flatten().next();
        match told {
            Some(way) => way.filter(|way| ways.flatten().all(|other| other == Some(*way))),
            None => self.is_transposed.then_some(true),
        }
    }
}

/// A checkpoint's files by their names: an index may have them in any order.
pub(super) fn in_order(checkpoint: &Checkpoint) -> Vec<&TensorFile> {
    let mut files: Vec<_> = checkpoint.files().iter().collect();
    files.sort_by_key(|file| file.path());
    files
}

impl<'a> Plan<'a> {
    /// A file of the output for each of the input.
    pub(super) fn of(checkpoint: &'a Checkpoint, sizes: &Sizes, args: &Args) -> Self {
        let mut plan = Self::default();
        // Stacked experts first: what becomes of them decides of their biases, wherever those are.
        let files = in_order(checkpoint);
        let mut shards: Vec<_> = files.iter().map(|_| Shard::default()).collect();
        for are_stacked in [true, false] {
            for (file, shard) in files.iter().zip(&mut shards) {
                let all = file.tensors();
                for tensor in all.filter(|tensor| choice::is_stacked(tensor) == are_stacked) {
                    plan.add(shard, checkpoint, tensor, sizes, args);
                }
            }
        }
        plan.shards = shards;
        plan
    }

    /// All of it in one file.
    pub(super) fn joined(&mut self) -> Shard<'a> {
        let mut all = Shard::default();
        for shard in self.shards.drain(..) {
            all.matrices.extend(shard.matrices);
            all.kept.extend(shard.kept);
        }
        all
    }

    /// Refuses two tensors of one name: one that is copied may have the name of one that is made.
    pub(super) fn refuse_collisions(&self, args: &Args) -> Result<()> {
        let mut seen = HashSet::new();
        let mut all = self.shards.iter().flat_map(|of| of.names(args.dialect));
        if let Some(name) = all.find(|name| !seen.insert(name.clone())) {
            bail!(
                "{}: the output would have two tensors {name:?}",
                printable::path(&args.input)
            );
        }
        Ok(())
    }

    /// Whether a file of the output is made of several of the input: a bias may be in another than its experts.
    pub(super) fn has_split(&self) -> bool {
        !self.split.is_empty()
    }

    fn add(
        &mut self,
        shard: &mut Shard<'a>,
        checkpoint: &'a Checkpoint,
        tensor: Tensor<'a>,
        sizes: &Sizes,
        args: &Args,
    ) {
        if self.split.contains(tensor.name()) {
            self.copied.add(tensor.name(), SPLIT.into());
            return;
        }
        let why = match choice::is_stacked(&tensor) && args.to.is_some() {
            true => match self.experts(shard, checkpoint, tensor, sizes, args) {
                Ok(()) => return,
                Err(why) => why,
            },
            false => match choice::why_copied(&tensor, sizes.has_conv1d, args) {
                None => {
                    let name = tensor.name();
                    let &[rows, k] = tensor.shape() else {
                        unreachable!("it has two dimensions, or is copied")
                    };
                    shard.matrices.push(Rc::new(Matrix {
                        name: name.strip_suffix(".weight").unwrap_or(name).into(),
                        rows,
                        k,
                        from: From::Tensor(tensor),
                    }));
                    return;
                }
                Some(why) => why,
            },
        };
        self.copied.add(tensor.name(), why);
        self.left.extend(label::module_left(checkpoint, &tensor));
        let kept = NewTensor::new(tensor.dtype(), tensor.shape(), tensor.bytes());
        shard.kept.push((tensor.name().into(), Piece::Kept(kept)));
    }

    /// A matrix for each expert of a stack, or why they stay what they are.
    fn experts(
        &mut self,
        shard: &mut Shard<'a>,
        checkpoint: &'a Checkpoint,
        tensor: Tensor<'a>,
        sizes: &Sizes,
        args: &Args,
    ) -> Result<(), String> {
        let name = tensor.name();
        let &[_, a, b] = tensor.shape() else {
            return Err("not three dimensions".into());
        };
        let shape_of = |name: &str| match *checkpoint.tensor(name)?.shape() {
            [_, a, b] => Some([a, b]),
            _ => None,
        };
        let Some(is_transposed) = sizes.transposed(name, shape_of) else {
            return Err("stacked experts, and no config says which dimension is K".into());
        };
        let (rows, k) = if is_transposed { (b, a) } else { (a, b) };
        let named = Named {
            name,
            shape: &[rows, k],
        };
        if let Some(why) = choice::why_not_matrix(&named, args) {
            return Err(why);
        }
        let Some((stem, part)) = name
            .strip_suffix(".weight")
            .unwrap_or(name)
            .rsplit_once('.')
        else {
            return Err("stacked experts without a module".into());
        };
        let all = checkpoint
            .dense_experts(name)
            .map_err(|error| error.to_string())?;
        let bias = match all.first().map_or(&[][..], Dense::notes) {
            [] => None,
            [Note::NotAdded { tensor }] => {
                let module = name.strip_suffix(".weight").unwrap_or(name);
                let names = ['.', '_'].map(|dot| format!("{module}{dot}{BIAS}"));
                let bias = checkpoint.tensor(tensor).filter(|bias| {
                    let is_of_rows = *bias.shape() == [all.len(), rows];
                    names.contains(tensor) && is_of_rows && choice::is_float(bias)
                });
                Some(bias.ok_or_else(|| {
                    format!("stacked experts with {tensor:?}, which is no bias [E, M] in F32, F16 or BF16")
                })?)
            }
            notes => {
                let notes: Vec<_> = notes.iter().map(Note::to_string).collect();
                return Err(format!("stacked experts, of which {}", notes.join("; ")));
            }
        };
        if let Some(bias) = bias {
            let each = bias.bytes().len() / all.len();
            for (expert, row) in bias.bytes().chunks_exact(each).enumerate() {
                let row = NewTensor::new(bias.dtype(), &[rows], row);
                let name = format!("{stem}.{expert}.{part}.{BIAS}");
                shard.kept.push((name, Piece::Kept(row)));
            }
            self.split.insert(bias.name().into());
        }
        for (expert, dense) in all.into_iter().enumerate() {
            let name = format!("{stem}.{expert}.{part}");
            let path = tensor.file().path();
            shard
                .matrices
                .push(Matrix::of(name, dense, is_transposed, path));
        }
        Ok(())
    }

    /// Files of about so many bytes for a GGUF file.
    pub(super) fn of_gguf(file: &'a Gguf, args: &Args, most_bytes: usize) -> Result<Self> {
        let mut plan = Self::default();
        let mut shard = Shard::default();
        let mut bytes = 0;
        for tensor in file.tensors() {
            if bytes > most_bytes {
                plan.shards.push(std::mem::take(&mut shard));
                bytes = 0;
            }
            bytes += tensor.bytes().len();
            plan.add_gguf(&mut shard, file, tensor, args)?;
        }
        plan.shards.push(shard);
        Ok(plan)
    }

    fn add_gguf(
        &mut self,
        shard: &mut Shard<'a>,
        file: &'a Gguf,
        tensor: GgufTensor<'a>,
        args: &Args,
    ) -> Result<()> {
        let name = tensor.name();
        let module = name.strip_suffix(".weight").unwrap_or(name);
        match tensor.element() {
            GgufElement::Nvfp4 | GgufElement::Mxfp4 => {
                return shard.repack(file, tensor, module, args.dialect, &self.opened);
            }
            GgufElement::Other(element) => bail!(
                "{}: tensor {:?} is {element}, which is not read",
                printable::path(file.path()),
                tensor.stored_name()
            ),
            _ => {}
        }
        if directory::is_in_config(file, tensor.stored_name()) {
            let why = "factors of rotary positions, which config.json says";
            self.copied.add(name, why.into());
            return Ok(());
        }
        if is_scale(file, name) {
            if name.ends_with("input_scale") {
                self.copied.add(
                    name,
                    "a scale of vectors, which the output, weights only, has no use for".into(),
                );
            }
            return Ok(());
        }
        // Experts that are not quantised are an error: those of a bias are layers, each with its own row of it.
        if let Some((experts, [all, rows])) = experts_of(file, name) {
            let Some((stem, part)) = experts.rsplit_once('.') else {
                bail!("{name:?}: experts without a module");
            };
            if *tensor.shape() != [all, rows] {
                bail!(
                    "{name:?}: {tensor}, which is not the bias [{all}, {rows}] of stacked experts"
                );
            }
            let values = file.dense(name)?;
            for expert in 0..all {
                let mut row = vec![0.0; rows];
                values.row(expert, &mut row)?;
                let name = format!("{stem}.{expert}.{part}.{BIAS}");
                let row = NewTensor::f32(&[rows], &row);
                shard.kept.push((name, Piece::Kept(row)));
            }
            self.copied.add(name, SPLIT.into());
            return Ok(());
        }
        let why = match *tensor.shape() {
            [_, ref matrix @ ..] if matrix.len() == 2 && name.ends_with(".weight") => {
                let named = Named {
                    name,
                    shape: matrix,
                };
                let why = choice::why_not_matrix(&named, args);
                if why.is_none() {
                    let Some((stem, part)) = module.rsplit_once('.') else {
                        bail!("{name:?}: experts without a module");
                    };
                    for (expert, dense) in file.dense_experts(module)?.into_iter().enumerate() {
                        let name = format!("{stem}.{expert}.{part}");
                        shard
                            .matrices
                            .push(Matrix::of(name, dense, false, file.path()));
                    }
                    return Ok(());
                }
                why
            }
            _ if !name.ends_with(".weight") => Some("not named `*.weight`".into()),
            ref shape => {
                let why = choice::why_not_matrix(&Named { name, shape }, args);
                if why.is_none() {
                    let dense = file.dense(module)?;
                    let matrix = Matrix::of(module.into(), dense, false, file.path());
                    shard.matrices.push(matrix);
                    return Ok(());
                }
                why
            }
        };
        self.copied.add(name, why.unwrap_or_default());
        let kept = match *tensor.shape() {
            [elements] => Piece::Kept(NewTensor::f32(&[elements], &file.vector(name)?)),
            [rows, k] => {
                self.left.push(module.into());
                Piece::Widened {
                    shape: vec![rows, k],
                    dense: file.dense(module)?,
                    path: file.path(),
                }
            }
            _ => bail!("{name:?}: {tensor} is neither quantised nor kept"),
        };
        shard.kept.push((name.into(), kept));
        Ok(())
    }
}

/// Why a bias of stacked experts is another tensor of the output.
const SPLIT: &str = "the bias of stacked experts, a row for each of their layers";

const BIAS: &str = "bias";

/// The module of the stacked experts `[E, M, K]` whose bias has this name, and E and M.
fn experts_of<'n>(file: &Gguf, bias: &'n str) -> Option<(&'n str, [usize; 2])> {
    let module = bias.strip_suffix(BIAS)?.strip_suffix('.')?;
    match *file.tensor(&format!("{module}.weight"))?.shape() {
        [experts, rows, _] => Some((module, [experts, rows])),
        _ => None,
    }
}

/// Whether a tensor is a scale of an NVFP4 or MXFP4 weight: what is made of the weight has it.
fn is_scale(file: &Gguf, name: &str) -> bool {
    let ends = [
        ".weight.scale",
        ".weight.input_scale",
        ".scale",
        ".input_scale",
    ];
    ends.iter().any(|end| {
        let weight = name
            .strip_suffix(end)
            .map(|module| format!("{module}.weight"));
        let weight = weight.and_then(|weight| file.tensor(&weight));
        weight.is_some_and(|of| matches!(of.element(), GgufElement::Nvfp4 | GgufElement::Mxfp4))
    })
}

/// The module of a GGUF file that was opened last: its experts are written one after the other.
type Opened = Rc<RefCell<Option<(String, Rc<Gathered<'static>>)>>>;

/// A matrix that is NVFP4 or MXFP4 in a GGUF file.
pub(super) struct Repacked<'a> {
    file: &'a Gguf,
    module: String,
    expert: usize,
    dialect: Dialect,
    opened: Opened,
}

impl Repacked<'_> {
    fn part(&self, part: Part) -> Result<Vec<u8>, WriteError> {
        let of_last = |(module, opened): &(String, Rc<Gathered<'static>>)| {
            (*module == self.module).then(|| Rc::clone(opened))
        };
        let last = self.opened.borrow().as_ref().and_then(of_last);
        let gathered = match last {
            Some(gathered) => gathered,
            None => {
                *self.opened.borrow_mut() = None;
                let opened = self.file.weights(&self.module);
                let opened = Rc::new(opened.map_err(|error| self.refused(error.to_string()))?);
                let last = (self.module.clone(), Rc::clone(&opened));
                *self.opened.borrow_mut() = Some(last);
                opened
            }
        };
        let shape = gathered.shape();
        let of_expert = |all: &[u8]| {
            let each = all.len() / shape.l();
            all[self.expert * each..(self.expert + 1) * each].to_vec()
        };
        match part {
            Part::Codes => Ok(of_expert(gathered.codes())),
            Part::Scales => Ok(of_expert(gathered.scales())),
            Part::Global => {
                let global = self
                    .global(&gathered)
                    .map_err(|reason| self.refused(reason))?;
                Ok(global.stored().to_le_bytes().to_vec())
            }
        }
    }

    fn global(&self, gathered: &Gathered<'_>) -> Result<GlobalScale, String> {
        let (m, dialect) = (gathered.shape().m(), self.dialect);
        let factors = gathered.row_alpha().map(|all| &all[self.expert * m..][..m]);
        let factor = factors.map_or(1.0, |factors| factors[0]);
        if factors.is_some_and(|all| all.iter().any(|one| *one != factor)) {
            return Err(format!(
                "its rows have factors that differ, which the dialect {dialect} has no place for"
            ));
        }
        // One of the two is 1.
        in_dialect(gathered.global().stored() * factor, dialect)
    }

    fn refused(&self, reason: String) -> WriteError {
        WriteError::Conversion {
            file: self.file.path().into(),
            tensor: self.module.clone(),
            reason,
        }
    }
}

/// A global scale as a dialect stores it, exactly.
fn in_dialect(multiplier: f32, dialect: Dialect) -> Result<GlobalScale, String> {
    let global = match dialect {
        Dialect::ModelOpt => GlobalScale::Multiplier(multiplier),
        Dialect::CompressedTensors => GlobalScale::Divisor(1.0 / multiplier),
    };
    match global.multiplier() == f64::from(multiplier) {
        true => Ok(global),
        false => Err(format!(
            "its global scale {multiplier} has no exact reciprocal, which the dialect {dialect} stores; --dialect {} \
             has the scale itself",
            Dialect::ModelOpt
        )),
    }
}

impl<'a> Shard<'a> {
    /// Matrices that are NVFP4 or MXFP4 already, as tensors of the dialect.
    ///
    /// # Errors
    /// NVFP4's global scales are read now: one that the dialect does not hold is an error before anything is converted.
    fn repack(
        &mut self,
        file: &'a Gguf,
        tensor: GgufTensor<'a>,
        module: &str,
        dialect: Dialect,
        opened: &Opened,
    ) -> Result<()> {
        let globals = match tensor.element() {
            GgufElement::Nvfp4 => file.globals(module)?,
            _ => None,
        };
        let (experts, m, k) = match *tensor.shape() {
            [experts, m, k] => (experts, m, k),
            [m, k] => (1, m, k),
            // Opening it says that it is neither.
            _ => (1, 0, 0),
        };
        for expert in 0..experts {
            let name = match module.rsplit_once('.') {
                Some((stem, part)) if tensor.shape().len() == 3 => {
                    format!("{stem}.{expert}.{part}")
                }
                _ => module.into(),
            };
            let of = Rc::new(Repacked {
                file,
                module: module.into(),
                expert,
                dialect,
                opened: Rc::clone(opened),
            });
            let of_expert = globals.as_ref();
            // One may be for all experts.
            let of_expert = of_expert.and_then(|all| all.get(expert).or(all.first()));
            if let Some(global) = of_expert {
                in_dialect(global.stored(), dialect).map_err(|reason| of.refused(reason))?;
            }
            for (suffix, part, shape) in parts(dialect, m, k) {
                let (of, name) = (Rc::clone(&of), format!("{name}.{suffix}"));
                self.kept.push((name, Piece::Repacked { of, part, shape }));
            }
            self.repacked.push(name);
        }
        Ok(())
    }
}

/// The tensors of an NVFP4 layer: the endings of their names, and their shapes.
pub(super) fn parts(dialect: Dialect, m: usize, k: usize) -> [(&'static str, Part, Vec<usize>); 3] {
    [
        (dialect.codes(), Part::Codes, vec![m, k / 2]),
        (dialect.scales(), Part::Scales, vec![m, k / BLOCK]),
        (
            dialect.global(),
            Part::Global,
            global_shape(dialect).to_vec(),
        ),
    ]
}

fn global_shape(dialect: Dialect) -> &'static [usize] {
    match dialect {
        Dialect::ModelOpt => &[],
        Dialect::CompressedTensors => &[1],
    }
}

#[cfg(test)]
mod tests {
    use nvfp4_gemv_cli::file;

    use super::*;

    /// Parts of two matrices would be written as one.
    #[test]
    fn a_matrix_that_is_another_by_then_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let opened = |name: &str, values: &[f32]| {
            let path = folder.path().join(name);
            let tensors = [(String::from("a.weight"), NewTensor::f32(&[2, 32], values))];
            file::write(&path, tensors, None).unwrap();
            TensorFile::open(&path).unwrap()
        };
        let [first, second] =
            [("first", 0.5), ("second", 0.25)].map(|(name, x)| opened(name, &[x; 64]));
        let [first, second] = [&first, &second].map(|file| Matrix {
            name: "a".into(),
            rows: 2,
            k: 32,
            from: From::Tensor(file.get("a.weight").unwrap()),
        });
        for dialect in Dialect::ALL {
            let maker = Maker::new(dialect, None);
            let made = maker.alone(&first).unwrap();
            assert_eq!(maker.alone(&first).unwrap().codes, made.codes);
            let error = maker.alone(&second).unwrap_err();
            assert!(matches!(error, WriteError::Conversion { .. }), "{error}");
            assert!(error.to_string().contains(CHANGED), "{error}");
        }
    }

    #[test]
    fn rows_of_stacked_experts_are_told_from_columns_or_not_at_all() {
        let of = |config: Value| Sizes::of(&config);
        let qwen = of(json!({ "model_type": "qwen3_moe", "hidden_size": 64 }));
        let llama =
            of(json!({ "text_config": { "model_type": "llama4_text", "hidden_size": 64 } }));
        let oss = of(json!({ "model_type": "gpt_oss", "hidden_size": 64 }));
        let up = "model.layers.0.mlp.experts.gate_up_proj";
        let down = "model.layers.0.mlp.experts.down_proj.weight";
        for (sizes, name, shape, expected) in [
            (&qwen, up, [32, 64], Some(false)),
            (&qwen, up, [64, 32], Some(true)),
            (&qwen, down, [64, 16], Some(false)),
            (&qwen, down, [16, 64], Some(true)),
            // Square: a model that is known tells.
            (&qwen, up, [64, 64], None),
            (&llama, up, [64, 64], Some(true)),
            (&oss, down, [64, 64], Some(true)),
            (&qwen, up, [32, 48], None),
            (&qwen, "experts.other", [64, 32], None),
            (&of(json!({})), up, [64, 32], None),
        ] {
            let told = sizes.transposed(name, |of| (of == name).then_some(shape));
            assert_eq!(told, expected, "{name} {shape:?}");
        }
        // Or the other part.
        for (down, expected) in [
            ([64, 32], Some(false)),
            ([32, 64], Some(true)),
            ([32, 32], None),
        ] {
            let shape_of = |name: &str| match name {
                "a.experts.gate_up_proj" => Some([64, 64]),
                "a.experts.down_proj" => Some(down),
                _ => None,
            };
            for name in ["a.experts.gate_up_proj", "a.experts.down_proj"] {
                assert_eq!(qwen.transposed(name, shape_of), expected, "{name} {down:?}");
            }
        }
        // Parts that lie in different ways.
        let differ = |name: &str| Some(if name == up { [32, 64] } else { [16, 64] });
        assert_eq!(qwen.transposed(up, differ), None);
    }

    /// GPT-2's would be quantised along the wrong dimension.
    #[test]
    fn models_that_may_have_conv1d_are_known() {
        for (config, expected) in [
            (json!({}), true),
            (json!({ "model_type": "gpt2" }), true),
            (
                json!({ "model_type": "vision-encoder-decoder", "decoder": { "model_type": "gpt2" } }),
                true,
            ),
            (json!({ "model_type": "gpt_bigcode" }), false),
        ] {
            assert_eq!(choice::has_conv1d(&config), expected, "{config}");
        }
    }
}
