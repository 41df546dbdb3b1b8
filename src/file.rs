//! Safetensors files: read or mapped, validated, read tensor by tensor, and written whole or not at all.
//!
//! Source: the safetensors format, <https://github.com/huggingface/safetensors#format>.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};

use crate::output::Destination;

use crate::input::{self, InputError};
use crate::printable;

/// What is wrong with a file, by name: the file, the tensor, what was expected, what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be opened or mapped.
    #[error("{}: cannot be read: {source}", printable::path(file))]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The path leads to something else than a file: a pipe, a device, a directory.
    #[error("{}: not a regular file but {found}", printable::path(file))]
    NotRegular {
        /// The path.
        file: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// The file has more bytes than such a file can have. Nothing of it was used.
    #[error(
        "{}: larger than {most} bytes, which no such file is",
        printable::path(file)
    )]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The most bytes.
        most: u64,
    },
    /// The file is no safetensors file, or a damaged or truncated one.
    #[error(
        "{}: not a valid safetensors file: {}",
        printable::path(file),
        printable::text(reason)
    )]
    Format {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that must be there is not.
    #[error("{}: no tensor {tensor:?}; expected {expected}", printable::path(file))]
    MissingTensor {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What it should hold.
        expected: String,
    },
    /// A tensor has another element type or shape than it must have.
    #[error(
        "{}: tensor {tensor:?} is {found}; expected {expected}",
        printable::path(file)
    )]
    WrongTensor {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Element type and shape that it should have.
        expected: String,
        /// Element type and shape that it has.
        found: String,
    },
    /// A tensor's content, or what the tensors make together, is refused.
    #[error("{}: tensor {tensor:?}: {source}", printable::path(file))]
    Content {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Why it is refused.
        source: crate::Error,
    },
    /// A tensor cannot be converted to what should be written.
    #[error(
        "{}: tensor {tensor:?}: {}",
        printable::path(file),
        printable::text(reason)
    )]
    Conversion {
        /// The file that the tensor is in.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Why.
        reason: String,
    },
    /// The file cannot be written. Whatever was at its place before is still there.
    #[error(
        "{}: cannot be written: {}",
        printable::path(file),
        printable::text(reason)
    )]
    Write {
        /// The file.
        file: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// A file is there already, and may not be replaced.
    #[error("{}: is there already", printable::path(file))]
    Exists {
        /// The file.
        file: PathBuf,
    },
}

impl FileError {
    /// What [`crate::output`] reports of a file.
    pub fn writing(file: &Path, error: std::io::Error) -> Self {
        let file = file.to_owned();
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => Self::Exists { file },
            _ => Self::Write {
                file,
                reason: error.to_string(),
            },
        }
    }

    pub(crate) fn of_input(file: &Path, error: InputError) -> Self {
        let file = file.to_owned();
        match error {
            InputError::Io(source) => Self::Read { file, source },
            InputError::NotRegular(found) => Self::NotRegular { file, found },
            InputError::TooLarge { most } => Self::TooLarge { file, most },
        }
    }
}

/// Files up to this many bytes are read, larger ones are mapped. Reading so many takes milliseconds, and
/// what was read cannot go away: nothing that happens to the file later matters. A shard of a model has
/// gigabytes, of which a program may want one layer; that is what mapping is for.
pub const READ_UP_TO: u64 = 16 << 20;

/// A safetensors file, in memory if it has up to [`READ_UP_TO`] bytes, or else mapped. Its header has been
/// validated: every tensor lies inside the file, and its length is what its type and shape say.
///
/// Nobody may truncate a larger file while it is mapped: touching the pages that are gone ends the
/// process with the signal SIGBUS, as with every mapped file. A library cannot catch that for the program
/// it is in. A program can: `nvfp4-gemv` says what happened and exits with 1.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    bytes: Bytes,
    data_start: usize,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: HashMap<String, String>,
}

/// The bytes of a file.
#[derive(Debug)]
enum Bytes {
    Read(Vec<u8>),
    Mapped(Mmap),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl Bytes {
    fn of(path: &Path) -> Result<Self, InputError> {
        let (file, metadata) = input::open(path)?;
        if metadata.len() <= READ_UP_TO
            && let Some(bytes) = input::up_to(&file, READ_UP_TO)?
        {
            return Ok(Self::Read(bytes));
        }
        // SAFETY: the map is private to `TensorFile` and only read. That the file is not truncated
        // meanwhile is the documented condition of that type, which no program can enforce.
        Ok(Self::Mapped(unsafe { Mmap::map(&file) }?))
    }
}

impl TensorFile {
    /// Opens a file and validates its header, which the format limits to 100 MB.
    ///
    /// # Errors
    /// [`FileError::Read`], [`FileError::NotRegular`], [`FileError::Format`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let path = path.into();
        let bytes = Bytes::of(&path).map_err(|error| FileError::of_input(&path, error))?;
        let header = SafeTensors::read_metadata(&bytes);
        let (header, metadata) = header.map_err(|e| FileError::Format {
            reason: match bytes.len() {
                0 => "the file is empty".into(),
                bytes => format!("{e} ({bytes} bytes in all)"),
            },
            file: path.clone(),
        })?;
        let tensors = metadata.tensors().into_iter();
        Ok(Self {
            path,
            bytes,
            data_start: header + size_of::<u64>(),
            tensors: tensors.map(|(name, info)| (name, info.clone())).collect(),
            metadata: metadata.metadata().clone().unwrap_or_default(),
        })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, in alphabetical order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        let file = self;
        let tensors = self.tensors.iter();
        tensors.map(move |(name, info)| Tensor { file, name, info })
    }

    /// The text entries under `__metadata__`.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// A tensor, or `None` where there is none of that name.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        let (file, (name, info)) = (self, self.tensors.get_key_value(name)?);
        Some(Tensor { file, name, info })
    }

    /// A tensor that must be there; `expected` says in the error what it should hold.
    ///
    /// # Errors
    /// [`FileError::MissingTensor`].
    pub fn require(&self, name: &str, expected: &str) -> Result<Tensor<'_>, FileError> {
        self.get(name).ok_or_else(|| FileError::MissingTensor {
            file: self.path.clone(),
            tensor: name.into(),
            expected: expected.into(),
        })
    }
}

/// One tensor of a [`TensorFile`].
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    file: &'a TensorFile,
    name: &'a str,
    info: &'a TensorInfo,
}

impl<'a> Tensor<'a> {
    /// The file it is in.
    pub fn file(&self) -> &'a TensorFile {
        self.file
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Its element type.
    pub fn dtype(&self) -> Dtype {
        self.info.dtype
    }

    /// Its shape, outermost dimension first.
    pub fn shape(&self) -> &'a [usize] {
        &self.info.shape
    }

    /// Its bytes, little-endian, row-major, at no particular alignment.
    pub fn bytes(&self) -> &'a [u8] {
        let (start, end) = self.info.data_offsets;
        &self.file.bytes[self.file.data_start + start..self.file.data_start + end]
    }

    /// Its number of elements.
    pub fn elements(&self) -> usize {
        self.info.shape.iter().product()
    }

    /// Refuses another element type or another shape than these.
    ///
    /// # Errors
    /// [`FileError::WrongTensor`].
    pub fn expect(self, dtype: Dtype, shape: &[usize]) -> Result<Self, FileError> {
        if self.dtype() == dtype && self.shape() == shape {
            return Ok(self);
        }
        Err(self.wrong(format!("{dtype} {shape:?}")))
    }

    /// The error that this tensor is not what was expected.
    pub fn wrong(&self, expected: impl Into<String>) -> FileError {
        FileError::WrongTensor {
            file: self.file.path.clone(),
            tensor: self.name.into(),
            expected: expected.into(),
            found: self.to_string(),
        }
    }

    /// The error that this tensor's content is refused.
    pub fn refused(&self, source: crate::Error) -> FileError {
        FileError::Content {
            file: self.file.path.clone(),
            tensor: self.name.into(),
            source,
        }
    }

    /// The elements of an F32 tensor, copied, because files do not align them.
    ///
    /// # Errors
    /// [`FileError::WrongTensor`] for another element type.
    pub fn to_f32(&self) -> Result<Vec<f32>, FileError> {
        self.decoded(Dtype::F32, f32::from_le_bytes)
    }

    /// The elements of an F32, F16 or BF16 tensor as f32, which holds each of them exactly.
    ///
    /// # Errors
    /// [`FileError::WrongTensor`] for another element type.
    pub fn to_f32_widened(&self) -> Result<Vec<f32>, FileError> {
        match self.dtype() {
            Dtype::F32 => self.to_f32(),
            Dtype::F16 => self.decoded(Dtype::F16, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => self.decoded(Dtype::BF16, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            _ => Err(self.wrong("F32, F16 or BF16")),
        }
    }

    /// The elements of an F64 tensor, copied, because files do not align them.
    ///
    /// # Errors
    /// [`FileError::WrongTensor`] for another element type.
    pub fn to_f64(&self) -> Result<Vec<f64>, FileError> {
        self.decoded(Dtype::F64, f64::from_le_bytes)
    }

    /// The elements of a tensor that must be of this type, whose elements have `BYTES` bytes.
    fn decoded<T, const BYTES: usize>(
        &self,
        dtype: Dtype,
        decode: impl Fn([u8; BYTES]) -> T,
    ) -> Result<Vec<T>, FileError> {
        if self.dtype() != dtype {
            return Err(self.wrong(dtype.to_string()));
        }
        let (elements, _) = self.bytes().as_chunks();
        Ok(elements.iter().copied().map(decode).collect())
    }
}

/// Type and shape, as error messages show them: `U8 [1536, 192]`.
impl std::fmt::Display for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.dtype(), self.shape())
    }
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct NewTensor<'a> {
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Its bytes, little-endian, row-major.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a> NewTensor<'a> {
    /// A tensor of bytes that are there already.
    pub fn borrowed(dtype: Dtype, shape: &[usize], bytes: &'a [u8]) -> Self {
        Self::new(dtype, shape, bytes.into())
    }

    fn new(dtype: Dtype, shape: &[usize], bytes: Cow<'a, [u8]>) -> Self {
        let shape = shape.to_vec();
        Self {
            dtype,
            shape,
            bytes,
        }
    }

    /// An F32 tensor.
    pub fn f32(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes());
        Self::new(Dtype::F32, shape, bytes.collect())
    }

    /// An F64 tensor.
    pub fn f64(shape: &[usize], values: &[f64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes());
        Self::new(Dtype::F64, shape, bytes.collect())
    }
}

/// A tensor to be written. It may make its bytes when it is asked for them, so that a whole file need not be in
/// memory at once.
pub trait Content {
    /// Its element type.
    fn dtype(&self) -> Dtype;

    /// Its shape, outermost dimension first.
    fn shape(&self) -> &[usize];

    /// How many bytes it has.
    fn byte_len(&self) -> usize;

    /// Its bytes, little-endian, row-major: [`byte_len`](Self::byte_len) of them.
    ///
    /// # Errors
    /// Why they cannot be made. Nothing is written then.
    fn bytes(&self) -> Result<Cow<'_, [u8]>, FileError>;
}

impl Content for NewTensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>, FileError> {
        Ok(Cow::Borrowed(&self.bytes))
    }
}

/// Writes a safetensors file, or replaces one: [`write_to`] with [`Destination::replace`].
///
/// # Errors
/// As [`write_to`].
pub fn write<C: Content>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, C)>,
    metadata: Option<HashMap<String, String>>,
) -> Result<(), FileError> {
    write_to(&Destination::new(path).replace(true), tensors, metadata).map(drop)
}

/// Writes a safetensors file, and returns how many bytes it has. The path then leads to the whole new content;
/// after an error it leads to what it did before ([`crate::output`] has the exceptions: pipes and devices).
///
/// # Errors
/// [`FileError::Exists`], [`FileError::Write`], and what [`Content::bytes`] reports.
pub fn write_to<C: Content>(
    output: &Destination,
    tensors: impl IntoIterator<Item = (String, C)>,
    metadata: Option<HashMap<String, String>>,
) -> Result<u64, FileError> {
    // The safetensors crate can write such a file too, but not to a pipe, and its tensors cannot fail.
    let refused = |reason: String| FileError::Write {
        file: output.path().into(),
        reason,
    };
    let io = |error| FileError::writing(output.path(), error);
    let mut tensors: Vec<(String, C)> = tensors.into_iter().collect();
    let header = header(&mut tensors, metadata).map_err(refused)?;
    let mut file = output.create().map_err(io)?;
    file.write_all(&(header.len() as u64).to_le_bytes())
        .and_then(|()| file.write_all(&header))
        .map_err(io)?;
    for (name, tensor) in &tensors {
        let bytes = tensor.bytes()?;
        if bytes.len() != tensor.byte_len() {
            return Err(refused(format!(
                "tensor {name:?} has {} bytes, and should have {}",
                bytes.len(),
                tensor.byte_len()
            )));
        }
        file.write_all(&bytes).map_err(io)?;
    }
    let written = file.written();
    file.publish().map_err(io)?;
    Ok(written)
}

/// The most bytes that readers take as a header.
const MOST_HEADER_BYTES: usize = 100_000_000;

/// Puts tensors into the order in which they are written, and makes the header that says so.
fn header<C: Content>(
    tensors: &mut [(String, C)],
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>, String> {
    // The widest elements first: then all are aligned to their size.
    tensors
        .sort_by(|(a, left), (b, right)| right.dtype().cmp(&left.dtype()).then_with(|| a.cmp(b)));
    let mut names = HashSet::new();
    let mut end = 0usize;
    let mut infos = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        if !names.insert(&**name) {
            return Err(format!("there are two tensors {name:?}"));
        }
        let start = end;
        end = start
            .checked_add(tensor.byte_len())
            .ok_or("the tensors have more bytes than a file can have")?;
        let info = TensorInfo {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            data_offsets: (start, end),
        };
        infos.push((name.clone(), info));
    }
    let header = Metadata::new(metadata, infos).map_err(|e| e.to_string())?;
    let mut header = serde_json::to_vec(&header).map_err(|e| e.to_string())?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    if header.len() > MOST_HEADER_BYTES {
        return Err(format!(
            "the names and shapes of the tensors have more than {MOST_HEADER_BYTES} bytes"
        ));
    }
    Ok(header)
}
