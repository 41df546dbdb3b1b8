//! The shape of the JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::{ExpectSpec, ParamSpec, RandomSpec, TensorMapSpec};
use crate::error::SimError;
use crate::program::MAX_PARAMETERS;
use crate::sim::{Buffer, Launch};

/// A launch: sizes, buffers, parameters.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSpec {
    /// The kernel's name, as in the PTX. `ptx-sim run --entry` says it in its place.
    #[serde(default)]
    pub kernel: Option<String>,
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster, if the kernel does not say.
    #[serde(default)]
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory in bytes.
    #[serde(default)]
    pub shared: u32,
    /// Programmatic dependent launch: [`crate::Launch::dependent`].
    #[serde(default)]
    pub dependent: bool,
    /// Buffers in global memory by name.
    #[serde(default)]
    pub buffers: BTreeMap<String, BufferSpec>,
    /// First bytes of global and constant variables of the module, by name.
    #[serde(default)]
    pub variables: BTreeMap<String, Contents>,
    /// Parameters in order.
    #[serde(default)]
    pub params: Vec<ParamSpec>,
    /// Launches that the stream has before this one, in their order. They use the same buffers and variables, and must
    /// say their kernels.
    #[serde(default)]
    pub before: Vec<LaunchSpec>,
}

impl LaunchSpec {
    /// The launch of a kernel.
    pub(super) fn launch(
        &self,
        kernel: &str,
        buffers: &BTreeMap<String, Buffer>,
    ) -> Result<Launch, SimError> {
        let launch = Launch {
            kernel: kernel.to_string(),
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            shared: self.shared,
            dependent: self.dependent,
            ..Launch::default()
        };
        with_params(launch, &self.params, buffers)
    }

    /// The launch, as one before another: it names its kernel, and shares all else with that one.
    pub(super) fn earlier(&self, buffers: &BTreeMap<String, Buffer>) -> Result<Launch, SimError> {
        let refuse = |m: &str| Err(SimError::Launch(m.into()));
        if !self.buffers.is_empty() || !self.variables.is_empty() || !self.before.is_empty() {
            return refuse(
                "`buffers`, `variables` and `before` are of the specification, not of a launch before",
            );
        }
        match &self.kernel {
            Some(kernel) => self.launch(kernel, buffers),
            None => refuse("a launch before says its `kernel`"),
        }
    }
}

/// Adds parameters to a launch.
fn with_params(
    mut launch: Launch,
    params: &[ParamSpec],
    buffers: &BTreeMap<String, Buffer>,
) -> Result<Launch, SimError> {
    let mut bytes_of_all = 0;
    for (i, p) in params.iter().enumerate() {
        let at = |e| within(&format!("params[{i}]"), e);
        let bytes = p.bytes(buffers).map_err(at)?;
        bytes_of_all += bytes.len() as u64;
        if bytes_of_all > MAX_PARAMETERS {
            return Err(at(SimError::Launch(format!(
                "a kernel has at most {MAX_PARAMETERS} bytes of parameters"
            ))));
        }
        launch = launch.bytes(&bytes);
    }
    Ok(launch)
}

/// An error of a part of the specification.
pub(super) fn within(part: &str, error: SimError) -> SimError {
    match error {
        SimError::Launch(message) => SimError::Launch(format!("{part}: {message}")),
        error => error,
    }
}

/// A buffer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    /// Size in bytes; that of the contents if it is not given.
    #[serde(default)]
    pub size: Option<usize>,
    /// Address of the buffer, for launches whose memory holds pointers. A buffer without one is where there is room.
    #[serde(default)]
    pub address: Option<u64>,
    /// Contents before the run. A buffer without contents is poisoned: reading a byte that the kernel has not written
    /// is an error.
    #[serde(default)]
    pub contents: Option<Contents>,
    /// File to write it to after the run: a plain relative path, inside the output directory.
    #[serde(default)]
    pub dump: Option<PathBuf>,
    /// Contents that the buffer must have after the run.
    #[serde(default)]
    pub expect: Option<ExpectSpec>,
}

/// Contents of a buffer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Contents {
    /// Every byte the same; needs a size.
    Fill(u8),
    /// A raw file, below the specification's folder.
    File(PathBuf),
    /// A tensor's bytes.
    Safetensors {
        /// The file, below the specification's folder.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// Bytes in hexadecimal.
    Hex(String),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// Elements from a generator.
    Random(RandomSpec),
}

/// A number, an address or a tensor map.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Scalar {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
    /// Bytes in hexadecimal.
    Hex(String),
    /// Address of a buffer.
    Buffer(String),
    /// Address inside a buffer.
    BufferAt {
        buffer: String,
        offset: u64,
    },
    /// A tensor map's 128 bytes. It must be 64-byte aligned.
    TensorMap(TensorMapSpec),
}

/// A structure: bytes that no field covers are zero.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StructSpec {
    /// Size in bytes.
    pub size: usize,
    /// Members of the structure.
    pub fields: Vec<Field>,
}

/// A member of a structure.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Offset of the member.
    pub offset: usize,
    /// Value of the member.
    pub value: Scalar,
}

/// Bytes of a hexadecimal string; white space is allowed.
pub(super) fn hex(s: &str) -> Result<Vec<u8>, SimError> {
    let bad = || {
        SimError::Launch(format!(
            "`{}` is not hexadecimal",
            s.chars().take(32).collect::<String>()
        ))
    };
    let digits: Vec<u8> = s
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).map(|d| d as u8).ok_or_else(bad))
        .collect::<Result<_, _>>()?;
    if !digits.len().is_multiple_of(2) {
        return Err(bad());
    }
    Ok(digits.chunks(2).map(|p| p[0] << 4 | p[1]).collect())
}

impl Scalar {
    pub(super) fn bytes(&self, buffers: &BTreeMap<String, Buffer>) -> Result<Vec<u8>, SimError> {
        let address = |name: &str| {
            buffers
                .get(name)
                .map(|b| b.address)
                .ok_or_else(|| SimError::Launch(format!("there is no buffer `{name}`")))
        };
        Ok(match self {
            Scalar::U8(v) => v.to_le_bytes().to_vec(),
            Scalar::U16(v) => v.to_le_bytes().to_vec(),
            Scalar::U32(v) => v.to_le_bytes().to_vec(),
            Scalar::U64(v) => v.to_le_bytes().to_vec(),
            Scalar::I8(v) => v.to_le_bytes().to_vec(),
            Scalar::I16(v) => v.to_le_bytes().to_vec(),
            Scalar::I32(v) => v.to_le_bytes().to_vec(),
            Scalar::I64(v) => v.to_le_bytes().to_vec(),
            Scalar::F32(v) => v.to_le_bytes().to_vec(),
            Scalar::F64(v) => v.to_le_bytes().to_vec(),
            Scalar::Hex(s) => hex(s)?,
            Scalar::Buffer(name) => address(name)?.to_le_bytes().to_vec(),
            Scalar::BufferAt { buffer, offset } => address(buffer)?
                .wrapping_add(*offset)
                .to_le_bytes()
                .to_vec(),
            Scalar::TensorMap(map) => map.encode(buffers)?.to_bytes().to_vec(),
        })
    }
}
