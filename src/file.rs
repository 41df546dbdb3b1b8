//! Safetensors files: read or mapped, validated, and read tensor by tensor.
//!
//! Source: the safetensors format, <https://github.com/huggingface/safetensors#format>.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use nvfp4_gemv_files::input::{self, InputError};
use nvfp4_gemv_files::printable;
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};

/// Errors of a file, which name the file, the tensor, what was expected and what was found.
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
        /// The kind of thing that the path leads to.
        found: &'static str,
    },
    /// The file has more bytes than are read of such a file. Nothing of it was used.
    #[error(
        "{}: larger than {most} bytes, the most that are read of such a file",
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
        /// The fault.
        reason: String,
    },
    /// The file is of another format, which its first bytes tell.
    #[error("{}: not a safetensors file but {found}", printable::path(file))]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// The format that the first bytes belong to.
        found: &'static str,
    },
    /// The file is no GGUF file that is read, or a damaged or truncated one.
    #[error(
        "{}: not a GGUF file that is read: {}",
        printable::path(file),
        printable::text(reason)
    )]
    Gguf {
        /// The file.
        file: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A tensor that must be there is not.
    #[error("{}: no tensor {tensor:?}; expected {expected}", printable::path(file))]
    MissingTensor {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The content that the tensor should hold.
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
}

impl FileError {
    pub(crate) fn of_input(file: &Path, error: InputError) -> Self {
        let file = file.to_owned();
        match error {
            InputError::Io(source) => Self::Read { file, source },
            InputError::NotRegular(found) => Self::NotRegular { file, found },
            InputError::TooLarge { most } => Self::TooLarge { file, most },
        }
    }
}

/// Files up to this many bytes are read, larger ones are mapped. Reading so many takes milliseconds, and bytes that
/// were read cannot go away: nothing that happens to the file later matters. A shard of a model has gigabytes, of which
/// a program may want one layer; mapping is for such files.
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
    /// In alphabetical order. A vector takes half the memory of a map, and a model may have 370,000 of them.
    tensors: Vec<(Box<str>, TensorInfo)>,
    metadata: HashMap<String, String>,
}

/// The bytes of a file.
#[derive(Debug)]
pub(crate) enum Bytes {
    Read(Vec<u8>),
    /// The file stays open, for [`Bytes::copy`].
    Mapped(Mmap, File),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Mapped(map, _) => map,
        }
    }
}

impl Bytes {
    pub(crate) fn of(path: &Path) -> Result<Self, InputError> {
        let (file, metadata) = input::open(path)?;
        if metadata.len() <= READ_UP_TO
            && let Some(bytes) = input::up_to(&file, READ_UP_TO)?
        {
            return Ok(Self::Read(bytes));
        }
        // SAFETY: the map is private to its file (`TensorFile`, `Gguf`) and only read. That the file is not truncated
        // meanwhile is the documented condition of that type, which no program can enforce.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self::Mapped(map, file))
    }

    /// Copies the bytes from here on. Those of a mapped file are read, and not touched: no page of them is mapped, so that
    /// the process does not grow, and a file that has become shorter is an error.
    fn copy(&self, from: usize, to: &mut [u8]) -> std::io::Result<()> {
        #[cfg(unix)]
        if let Self::Mapped(_, file) = self {
            return std::os::unix::fs::FileExt::read_exact_at(file, to, from as u64);
        }
        to.copy_from_slice(&self[from..from + to.len()]);
        Ok(())
    }
}

/// The format of a file that has another format's first bytes. Asked of a file that could not be read as safetensors.
pub(crate) fn not_safetensors(bytes: &[u8]) -> Option<&'static str> {
    const PICKLE: &str = "a pickle, as PyTorch's older files are, which is not read";
    const FORMATS: [(&[u8], &str); 13] = [
        (b"GGUF", "a GGUF file, which `checkpoint::Gguf` reads"),
        (
            b"version https://git-lfs",
            "a git-lfs pointer: the file itself was not downloaded (`git lfs pull` does it)",
        ),
        (
            b"PK\x03\x04",
            "a ZIP archive, as PyTorch's files are, which is not read",
        ),
        (b"\x89HDF", "an HDF5 file, which is not read"),
        (b"\x80\x02", PICKLE),
        (b"\x80\x03", PICKLE),
        (b"\x80\x04", PICKLE),
        (b"\x80\x05", PICKLE),
        (b"\x1f\x8b", "compressed by gzip"),
        (b"\xfd7zXZ", "compressed by xz"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
        (b"<!", "a web page: the download has failed"),
        (b"<html", "a web page: the download has failed"),
    ];
    let mut formats = FORMATS.iter();
    let (begin, what) = formats.find(|(begin, _)| bytes.starts_with(begin))?;
    // A damaged safetensors file whose header has a length of these bytes.
    let is_header = bytes.get(size_of::<u64>()) == Some(&b'{') && begin.len() < size_of::<u64>();
    (!is_header || *begin == b"GGUF").then_some(*what)
}

/// As [`not_safetensors`], of a file that should not be text. A header's length, which a safetensors file begins with,
/// has bytes that are 0.
fn not_tensors(bytes: &[u8]) -> Option<&'static str> {
    let first = &bytes[..bytes.len().min(size_of::<u64>())];
    let is_text = first
        .iter()
        .all(|c| c.is_ascii_graphic() || c.is_ascii_whitespace());
    let text = (is_text && !first.is_empty())
        .then_some("text, perhaps a message in its place: the download may have failed");
    not_safetensors(bytes).or(text)
}

impl TensorFile {
    /// Opens a file and validates its header, which the format limits to 100 MB.
    ///
    /// # Errors
    /// [`FileError::Read`], [`FileError::NotRegular`], [`FileError::Format`], [`FileError::OtherFormat`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let path = path.into();
        let bytes = Bytes::of(&path).map_err(|error| FileError::of_input(&path, error))?;
        let header = SafeTensors::read_metadata(&bytes);
        let (header, metadata) = header.map_err(|e| match not_tensors(&bytes) {
            Some(found) => FileError::OtherFormat {
                file: path.clone(),
                found,
            },
            None => FileError::Format {
                reason: match bytes.len() {
                    0 => "the file is empty".into(),
                    bytes => format!("{e} ({bytes} bytes in all)"),
                },
                file: path.clone(),
            },
        })?;
        let tensors = metadata.tensors().into_iter();
        let tensors = tensors.map(|(name, info)| (name.into(), info.clone()));
        let mut tensors: Vec<(Box<str>, TensorInfo)> = tensors.collect();
        tensors.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Self {
            path,
            bytes,
            data_start: header + size_of::<u64>(),
            tensors,
            metadata: metadata.metadata().clone().unwrap_or_default(),
        })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, in alphabetical order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        (0..self.tensors.len()).map(|index| self.at(index))
    }

    /// The tensor of this number in alphabetical order.
    pub(crate) fn at(&self, index: usize) -> Tensor<'_> {
        let (file, (name, info)) = (self, &self.tensors[index]);
        Tensor { file, name, info }
    }

    /// The text entries under `__metadata__`.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// A tensor, or `None` where there is none of that name.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        let of = self
            .tensors
            .binary_search_by(|(other, _)| (**other).cmp(name));
        Some(self.at(of.ok()?))
    }

    /// Bytes of the file.
    pub(crate) fn bytes_in(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Copies bytes of the file, which [`bytes_in`](Self::bytes_in) gave, without touching them where it is mapped.
    pub(crate) fn copy(&self, bytes: &[u8], to: &mut [u8]) -> Result<(), FileError> {
        let Some(range) = self.range_of(bytes) else {
            to.copy_from_slice(bytes);
            return Ok(());
        };
        let copied = self.bytes.copy(range.start, to);
        copied.map_err(|source| FileError::Read {
            file: self.path.clone(),
            source,
        })
    }

    /// Where bytes lie in the file, if they are the file's.
    pub(crate) fn range_of(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let start = bytes
            .as_ptr()
            .addr()
            .checked_sub(self.bytes.as_ptr().addr())?;
        let range = start..start + bytes.len();
        (range.end <= self.bytes.len()).then_some(range)
    }

    /// A tensor that must be there. The error of a missing tensor says `expected`: what the tensor should hold.
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
        self.file.bytes_in(self.range())
    }

    /// Where its bytes lie in the file.
    pub(crate) fn range(&self) -> Range<usize> {
        let (start, end) = self.info.data_offsets;
        self.file.data_start + start..self.file.data_start + end
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

    /// The error that this tensor is not as expected.
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
