//! Recordings of probes: the results of small launches on a GPU, and whether the simulator has the same results.
//!
//! `docs/probes.md` describes the files. A file may come from somebody else's machine, so nothing in it is believed:
//! data that are not there, too short or out of range are a [`RecordingError`].

pub mod claims;
mod replay;
pub mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde::Deserialize;
use thiserror::Error;

pub use self::replay::{End, outputs, replay};
use crate::Module;
use crate::files;
use crate::models::swizzle::Swizzle;
use crate::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};

/// The format that this module reads.
pub const FORMAT: &str = "ptx-sim-probes/1";

/// Why a recording cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum RecordingError {
    #[error("not a safetensors file: {0}")]
    File(#[from] safetensors::SafeTensorError),
    #[error("the metadata has no {0:?}")]
    Missing(&'static str),
    #[error("the format is {0:?}, and not {FORMAT:?}")]
    Format(String),
    #[error("its cases cannot be read: {0}")]
    Cases(#[from] serde_json::Error),
    #[error("{case:?}: {what}")]
    Case { case: String, what: String },
    #[error("{name:?}: {what}")]
    Tensor { name: String, what: String },
    #[error("PTX {name:?}: {what}")]
    Ptx { name: String, what: String },
}

/// A launch, and how it ended.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// The file that has its kernel.
    pub ptx: String,
    #[serde(default)]
    entry: String,
    /// A kernel that is launched before, with the same parameters: `entry` depends on it.
    first: Option<String>,
    #[serde(default)]
    grid: [u32; 3],
    #[serde(default)]
    block: [u32; 3],
    cluster: Option<[u32; 3]>,
    #[serde(default)]
    smem: u32,
    #[serde(default)]
    buffers: Vec<Contents>,
    #[serde(default)]
    params: Vec<Param>,
    #[serde(default)]
    tags: Vec<String>,
    /// `ok`, or the error.
    pub status: String,
    #[serde(default)]
    encode_only: bool,
    encode_result: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Contents {
    name: String,
    bytes: usize,
    init: Option<String>,
    fill: Option<u8>,
    out: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Param {
    Buffer(usize),
    U32(u32),
    TensorMap(Map),
}

/// Arguments of `cuTensorMapEncodeTiled`, enumerators as numbers.
#[derive(Debug, Deserialize)]
struct Map {
    buffer: usize,
    offset: u64,
    #[serde(rename = "type")]
    data_type: u32,
    rank: usize,
    dims: Vec<u64>,
    strides: Vec<u64>,
    #[serde(rename = "box")]
    box_dim: Vec<u32>,
    elem_strides: Vec<u32>,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
}

impl Map {
    /// The map of a tensor in a buffer at `base`.
    fn encode(&self, base: u64) -> Result<TensorMap, String> {
        let named = |e: &str| format!("{e} is not known");
        TensorMap::encode(TensorMapArgs {
            data_type: DataType::from_driver(self.data_type).ok_or(named("type"))?,
            global_address: base.wrapping_add(self.offset),
            global_dim: self.dims.get(..self.rank).ok_or(named("rank"))?.to_vec(),
            global_strides: self.strides.clone(),
            box_dim: self.box_dim.clone(),
            element_strides: self.elem_strides.clone(),
            interleave: Interleave::from_driver(self.interleave).ok_or(named("interleave"))?,
            swizzle: Swizzle::from_driver(self.swizzle).ok_or(named("swizzle"))?,
            l2_promotion: L2Promotion::from_driver(self.l2_promotion).ok_or(named("promotion"))?,
            oob_fill: OobFill::from_driver(self.oob_fill).ok_or(named("fill"))?,
        })
        .map_err(|e| e.to_string())
    }
}

/// Result of a case: the tensors of its outputs, or why it ended.
pub type Outputs = Result<Vec<(String, Vec<u8>)>, String>;

/// The result of each case of a recording, with its name.
pub type Ends = Vec<(String, Outputs)>;

/// A file of recordings.
#[derive(Debug)]
pub struct Recording<'a> {
    tensors: SafeTensors<'a>,
    meta: BTreeMap<String, String>,
    /// Launches of the recording, in their order.
    pub cases: Vec<Case>,
}

impl<'a> Recording<'a> {
    /// Reads a file's bytes.
    pub fn read(bytes: &'a [u8]) -> Result<Self, RecordingError> {
        let tensors = SafeTensors::deserialize(bytes)?;
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let meta = header.metadata().clone().unwrap_or_default();
        let meta: BTreeMap<_, _> = meta.into_iter().collect();
        let of = |key| meta.get(key).ok_or(RecordingError::Missing(key));
        if of("format")? != FORMAT {
            return Err(RecordingError::Format(of("format")?.clone()));
        }
        let cases = serde_json::from_str(of("cases")?)?;
        let recording = Self {
            tensors,
            meta,
            cases,
        };
        recording.topic()?;
        Ok(recording)
    }

    /// Topic of the launches: the name of the recording's file, without the suffix.
    pub fn topic(&self) -> Result<&str, RecordingError> {
        self.said("topic").ok_or(RecordingError::Missing("topic"))
    }

    /// A word of the metadata, such as `gpu`.
    pub fn said(&self, key: &str) -> Option<&str> {
        self.meta.get(key).map(String::as_str)
    }

    /// The bytes of a tensor.
    pub fn tensor(&self, name: &str) -> Result<&[u8], RecordingError> {
        match self.tensors.tensor(name) {
            Ok(tensor) => Ok(tensor.data()),
            Err(why) => Err(RecordingError::Tensor {
                name: name.into(),
                what: why.to_string(),
            }),
        }
    }

    /// The words of a tensor.
    pub fn words(&self, name: &str) -> Result<Vec<u32>, RecordingError> {
        let (words, rest) = self.tensor(name)?.as_chunks();
        match rest {
            [] => Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect()),
            _ => Err(RecordingError::Tensor {
                name: name.into(),
                what: "not a multiple of four bytes".into(),
            }),
        }
    }

    /// The modules of all cases, from a folder.
    pub fn modules(&self, ptx: &Path) -> Result<BTreeMap<String, Module>, RecordingError> {
        let launched = self.cases.iter().filter(|case| !case.encode_only);
        let names: BTreeSet<&str> = launched.map(|case| case.ptx.as_str()).collect();
        let module = |name: &str| {
            let error = |what: String| RecordingError::Ptx {
                name: name.into(),
                what,
            };
            if name.contains(['/', '\\']) || !name.ends_with(".ptx") {
                return Err(error("not the name of a file of PTX".into()));
            }
            let bytes = files::read_below(ptx, Path::new(name), files::MAX_TEXT);
            let bytes = bytes.map_err(|why| error(why.to_string()))?;
            let text = String::from_utf8(bytes).map_err(|why| error(why.to_string()))?;
            let module = Module::parse(&text).map_err(|why| error(why.to_string()))?;
            Ok((name.to_owned(), module))
        };
        names.into_iter().map(module).collect()
    }

    /// A copy of this file with these outputs, as if somebody else had recorded them: for each case the tensors that it
    /// wrote, or why it ended.
    pub fn with_outputs(&self, ends: &Ends, by: &str) -> Result<Vec<u8>, RecordingError> {
        let mut meta = self.meta.clone();
        meta.insert("gpu".into(), by.into());
        meta.remove("dry_run");
        let of = meta.get("cases").ok_or(RecordingError::Missing("cases"))?;
        let mut cases: Vec<serde_json::Value> = serde_json::from_str(of)?;
        for (case, (_, end)) in cases.iter_mut().zip(ends) {
            case["status"] = match end {
                Ok(_) => "ok".into(),
                Err(why) => format!("error: {why}").into(),
            };
        }
        meta.insert("cases".into(), serde_json::to_string(&cases)?);
        let made = ends.iter().filter_map(|(_, end)| end.as_ref().ok());
        let outputs: BTreeMap<&str, &[u8]> = made
            .flatten()
            .map(|(name, data)| (name.as_str(), data.as_slice()))
            .collect();
        let tensors = self.tensors.tensors();
        let views = tensors.iter().map(|(name, tensor)| {
            let data = outputs.get(name.as_str()).copied().unwrap_or(tensor.data());
            let of = |dtype: Dtype| TensorView::new(dtype, tensor.shape().to_vec(), data);
            Ok::<_, safetensors::SafeTensorError>((name.clone(), of(tensor.dtype())?))
        });
        let views = views.collect::<Result<Vec<_>, _>>()?;
        Ok(serialize(views, Some(meta.into_iter().collect()))?)
    }
}
