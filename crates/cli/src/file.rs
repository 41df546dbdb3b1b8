//! Safetensors files, written whole or not at all.
//!
//! Source: the safetensors format, <https://github.com/huggingface/safetensors#format>. [`nvfp4_gemv::file`] reads
//! such files.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use nvfp4_gemv::checkpoint::Dialect;
use nvfp4_gemv::file::FileError;
use nvfp4_gemv::quantize::Quantized;
use nvfp4_gemv_files::output::Destination;
use nvfp4_gemv_files::printable;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

/// Why a file is not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// An input cannot be read.
    #[error(transparent)]
    Input(#[from] FileError),
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
    /// The file cannot be written. A file that was at its place before is still there.
    #[error(
        "{}: cannot be written: {}",
        printable::path(file),
        printable::text(reason)
    )]
    Write {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A file is there already, and may not be replaced.
    #[error("{}: is there already", printable::path(file))]
    Exists {
        /// The file.
        file: PathBuf,
    },
}

impl WriteError {
    /// The error for a failure that [`nvfp4_gemv_files::output`] reports of a file.
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
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct NewTensor<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes of the elements, little-endian, row-major.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a> NewTensor<'a> {
    /// A tensor of these bytes, its own or borrowed ones.
    pub fn new(dtype: Dtype, shape: &[usize], bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        let (shape, bytes) = (shape.to_vec(), bytes.into());
        Self {
            dtype,
            shape,
            bytes,
        }
    }

    /// A tensor of bytes that are 0.
    pub fn zeros(dtype: Dtype, shape: &[usize]) -> Self {
        let bits = shape.iter().product::<usize>() * dtype.bitsize();
        Self::new(dtype, shape, vec![0; bits / 8])
    }

    /// The tensors of a quantised layer, with a dialect's names.
    pub fn layer(name: &str, dialect: Dialect, q: Quantized) -> [(String, Self); 3] {
        let (codes, scales) = ([q.rows, q.k / 2], [q.rows, q.k / 16]);
        [
            (dialect.codes(), Self::new(Dtype::U8, &codes, q.codes)),
            (
                dialect.scales(),
                Self::new(Dtype::F8_E4M3, &scales, q.scales),
            ),
            (dialect.global(), Self::f32(&[], &[q.global.stored()])),
        ]
        .map(|(suffix, tensor)| (format!("{name}.{suffix}"), tensor))
    }

    /// An F32 tensor.
    pub fn f32(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes());
        Self::new(Dtype::F32, shape, bytes.collect::<Vec<u8>>())
    }

    /// An F64 tensor.
    pub fn f64(shape: &[usize], values: &[f64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes());
        Self::new(Dtype::F64, shape, bytes.collect::<Vec<u8>>())
    }
}

/// A tensor to be written. It may make its bytes when it is asked for them, so that a whole file need not be in
/// memory at once.
pub trait Content {
    /// Element type.
    fn dtype(&self) -> Dtype;

    /// Shape, outermost dimension first.
    fn shape(&self) -> &[usize];

    /// How many bytes it has.
    fn byte_len(&self) -> usize;

    /// Bytes of the elements, little-endian, row-major: [`byte_len`](Self::byte_len) of them.
    ///
    /// # Errors
    /// Why they cannot be made. Nothing is written then.
    fn bytes(&self) -> Result<Cow<'_, [u8]>, WriteError>;
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

    fn bytes(&self) -> Result<Cow<'_, [u8]>, WriteError> {
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
) -> Result<(), WriteError> {
    write_to(&Destination::new(path).replace(true), tensors, metadata).map(drop)
}

/// Writes a safetensors file, and returns how many bytes it has. The path then leads to the whole new content;
/// after an error it leads to what it did before ([`nvfp4_gemv_files::output`] has the exceptions: pipes and devices).
///
/// # Errors
/// [`WriteError::Exists`], [`WriteError::Write`], and what [`Content::bytes`] reports.
pub fn write_to<C: Content>(
    output: &Destination,
    tensors: impl IntoIterator<Item = (String, C)>,
    metadata: Option<HashMap<String, String>>,
) -> Result<u64, WriteError> {
    // The safetensors crate can write such a file too, but not to a pipe, and its tensors cannot fail.
    let refused = |reason: String| WriteError::Write {
        file: output.path().into(),
        reason,
    };
    let io = |error| WriteError::writing(output.path(), error);
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
    // The widest elements first: then all are aligned to their size. Codes and scales of a layer are neighbours.
    tensors.sort_by(|(a, left), (b, right)| {
        let wider = right.dtype().bitsize().cmp(&left.dtype().bitsize());
        wider.then_with(|| a.cmp(b))
    });
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
    let of_tensors = Metadata::new(None, infos).map_err(|e| e.to_string())?;
    let mut header = serde_json::to_vec(&of_tensors).map_err(|e| e.to_string())?;
    if let Some(metadata) = metadata {
        // In order: a map's own is another in each run, and the file would be.
        let metadata: BTreeMap<_, _> = metadata.into_iter().collect();
        let metadata = serde_json::to_string(&metadata).map_err(|e| e.to_string())?;
        let more = if header.len() > "{}".len() { "," } else { "" };
        let first = format!("\"__metadata__\":{metadata}{more}");
        header.splice(1..1, first.into_bytes());
    }
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    if header.len() > MOST_HEADER_BYTES {
        return Err(format!(
            "the names and shapes of the tensors have more than {MOST_HEADER_BYTES} bytes"
        ));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Metadata are in order, so that the same tensors give the same file.
    #[test]
    fn a_header_is_the_same_each_time() {
        let metadata = || {
            (0..20)
                .map(|i| (format!("key{i:02}"), i.to_string()))
                .collect()
        };
        let make = |tensors: &[&str]| {
            let tensor = |name: &&str| (String::from(*name), NewTensor::f32(&[1], &[0.0]));
            let mut tensors: Vec<_> = tensors.iter().map(tensor).collect();
            String::from_utf8(header(&mut tensors, Some(metadata())).unwrap()).unwrap()
        };
        for tensors in [&["a", "b"][..], &[]] {
            let header = make(tensors);
            assert!((0..8).all(|_| make(tensors) == header));
            let parsed: Metadata = serde_json::from_str(&header).unwrap();
            assert_eq!(parsed.metadata(), &Some(metadata()));
            assert_eq!(parsed.tensors().len(), tensors.len());
        }
    }

    /// A tensor that cannot be made.
    struct Fails;

    impl Content for Fails {
        fn dtype(&self) -> Dtype {
            Dtype::U8
        }

        fn shape(&self) -> &[usize] {
            &[4]
        }

        fn byte_len(&self) -> usize {
            4
        }

        fn bytes(&self) -> Result<Cow<'_, [u8]>, WriteError> {
            Err(WriteError::Conversion {
                file: "in".into(),
                tensor: "x".into(),
                reason: "it is NaN".into(),
            })
        }
    }

    #[test]
    fn a_tensor_that_cannot_be_made_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        for _ in 0..2 {
            let before = names();
            let error = write(&path, [("x".into(), Fails)], None).unwrap_err();
            assert!(error.to_string().contains("it is NaN"), "{error}");
            assert_eq!(names(), before);
            fs::write(&path, "old").unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let twice = ["x", "x"].map(|name| (name.to_owned(), Fails));
        let error = write(&path, twice, None).unwrap_err();
        assert!(error.to_string().contains("two tensors"), "{error}");
    }
}
