//! PTX out of fat binaries, which `nvcc` embeds in a program and `fatbinary` writes.
//!
//! NVIDIA does not document the format. A container begins with a header of 16 bytes and holds entries. Each entry
//! begins with a header of its own. That header says how long the header and the data behind it are, what the entry is,
//! and how it is compressed. The format was read from files that nvcc 13.0 writes with each `--compress-mode`. Fields
//! of an entry's header, little-endian:
//!
//! | from | bytes | what |
//! |---|---|---|
//! | 0 | 2 | 1: PTX, 2: machine code |
//! | 4 | 4 | bytes of the header |
//! | 8 | 8 | bytes that follow it |
//! | 16 | 4 | bytes of the compressed data; the rest is padding |
//! | 28 | 4 | architecture: 100 for sm_100 |
//! | 40 | 8 | flags: bit 13 LZ4, bit 15 Zstandard |
//! | 56 | 8 | bytes once decompressed |

use std::ffi::CStr;
use std::io::Read;

const WRAPPER: u32 = 0x4662_43b1;
const CONTAINER: u32 = 0xba55_ed50;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
/// The least that a container's header has.
const HEADER: usize = 16;
const PTX: u16 = 1;
const LZ4: u64 = 1 << 13;
const ZSTD: u64 = 1 << 15;
/// More bytes than all PTX of a container has: a limit for allocations, whatever wrong sizes ask for.
const MAX_PTX: usize = 1 << 28;

/// Why there is no PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FatbinError {
    /// The data is something else.
    #[error("this is no fat binary: it begins with {0:#010x}")]
    Magic(u32),
    /// A wrapper holds an address in a program's memory, which means nothing in a file.
    #[error("this is the wrapper of a fat binary, without the fat binary")]
    Wrapper,
    /// There is nothing.
    #[error("the image of a module is null")]
    Null,
    /// Neither of CUDA's formats, nor a text.
    #[error("this is neither a fat binary nor PTX")]
    Text,
    /// An entry is longer than its container.
    #[error("this fat binary is cut off or damaged")]
    Damaged,
    /// Compressed in a way that is not known here.
    #[error("PTX in this fat binary does not decompress ({0}): compile with `nvcc --no-compress`")]
    Compressed(String),
    /// Machine code only.
    #[error(
        "this fat binary holds no PTX (machine code: {0}): compile with \
         `nvcc -gencode arch=compute_100a,code=compute_100a`, or the architecture that the kernels are for"
    )]
    NoPtx(String),
}

/// One PTX source of a fat binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptx {
    /// The `.target` of the source: `sm_100a`.
    pub target: String,
    /// The source.
    pub text: String,
}

impl Ptx {
    /// A source by itself.
    pub fn new(text: String) -> Self {
        let line = text.lines().find_map(|l| l.trim().strip_prefix(".target"));
        let target = line.and_then(|l| l.split([',', ' ']).find(|w| w.starts_with("sm_")));
        Self {
            target: target.unwrap_or_default().to_string(),
            text,
        }
    }

    /// The number of its architecture: 100 for `sm_100a`.
    pub fn architecture(&self) -> u32 {
        architecture(&self.target)
    }

    /// Whether a GPU of an architecture takes the source. `sm_100a` is for that architecture only, and `sm_100` for all
    /// later ones. `sm_100f` is for its family: the architectures that have the same digits but the last.
    pub fn runs_on(&self, architecture: u32) -> bool {
        let own = self.architecture();
        match self.target.as_bytes().last() {
            Some(b'a') => own == architecture,
            Some(b'f') => own <= architecture && own / 10 == architecture / 10,
            _ => own <= architecture,
        }
    }

    /// The best of the sources that run on a GPU: the one that was compiled for the most of the GPU's features.
    pub fn best_for(sources: &[Ptx], architecture: u32) -> Option<&Ptx> {
        let special = |p: &&Ptx| match p.target.as_bytes().last() {
            Some(b'a') => 2,
            Some(b'f') => 1,
            _ => 0,
        };
        let fit = sources.iter().filter(|p| p.runs_on(architecture));
        fit.max_by_key(|p| (p.architecture(), special(p)))
    }
}

/// The number of an architecture: 100 for `sm_100a`, 0 for a target that is none.
pub fn architecture(target: &str) -> u32 {
    let digits = target.strip_prefix("sm_").unwrap_or_default();
    digits
        .trim_end_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .unwrap_or(0)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], FatbinError> {
    let slice = bytes.get(at..).and_then(|b| b.first_chunk());
    slice.copied().ok_or(FatbinError::Damaged)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, FatbinError> {
    Ok(u32::from_le_bytes(number(bytes, at)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, FatbinError> {
    Ok(u64::from_le_bytes(number(bytes, at)?))
}

/// The container that a program's wrapper points to: what `__cudaRegisterFatBinary` is given.
///
/// # Safety
///
/// `wrapper` must be null, or point to a `__fatBinC_Wrapper_t` as nvcc makes it, and what it points to must stay.
pub unsafe fn of_wrapper(wrapper: *const u8) -> Result<Vec<u8>, FatbinError> {
    if wrapper.is_null() {
        return Err(FatbinError::Null);
    }
    // SAFETY: a wrapper has 24 bytes: two 32-bit numbers and two pointers. The caller says that this is one.
    let (magic, data) = unsafe {
        (
            wrapper.cast::<u32>().read_unaligned(),
            wrapper.add(8).cast::<*const u8>().read_unaligned(),
        )
    };
    if magic != WRAPPER {
        return Err(FatbinError::Magic(magic));
    }
    // SAFETY: the wrapper's pointer leads to a container.
    unsafe { of_memory(data) }
}

/// The PTX of what a program gives as a module: a fat binary, its wrapper, or a text.
///
/// # Safety
///
/// `image` must be null or point to one of them, whole.
pub unsafe fn image(image: *const u8) -> Result<Vec<Ptx>, FatbinError> {
    if image.is_null() {
        return Err(FatbinError::Null);
    }
    let begins = |magic: u32| {
        let mut bytes = magic.to_le_bytes().into_iter().enumerate();
        bytes.all(|(i, byte)| {
            // SAFETY: none of these numbers has a zero byte. A byte is read only if the bytes before it are those of a
            // number, so no byte behind the zero that ends a text is read.
            let own = unsafe { image.add(i).read() };
            own == byte
        })
    };
    // SAFETY: the caller says that it is what its first bytes say, whole; a text ends with a zero.
    unsafe {
        match () {
            () if begins(WRAPPER) => sources(&of_wrapper(image)?),
            () if begins(CONTAINER) => sources(&of_memory(image)?),
            () if begins(ELF) => Err(FatbinError::NoPtx("a cubin".into())),
            () => of_text(CStr::from_ptr(image.cast()).to_bytes()),
        }
    }
}

/// The PTX of a file that a program loads as a module: a fat binary or a text.
pub fn image_of(bytes: &[u8]) -> Result<Vec<Ptx>, FatbinError> {
    match u32_at(bytes, 0) {
        Ok(WRAPPER) => Err(FatbinError::Wrapper),
        Ok(CONTAINER) => sources(bytes),
        Ok(ELF) => Err(FatbinError::NoPtx("a cubin".into())),
        _ => of_text(bytes),
    }
}

fn of_text(bytes: &[u8]) -> Result<Vec<Ptx>, FatbinError> {
    let length = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..length]).map_err(|_| FatbinError::Text)?;
    Ok(vec![Ptx::new(text.to_string())])
}

/// Offsets in a container: where its entries begin, and where they end. `container` has at least a header.
fn extent(container: &[u8]) -> Result<(usize, usize), FatbinError> {
    let magic = u32_at(container, 0)?;
    if magic != CONTAINER {
        return Err(FatbinError::Magic(magic));
    }
    let header = usize::from(u16::from_le_bytes(number(container, 6)?));
    let size = usize::try_from(u64_at(container, 8)?).ok();
    let end = size.and_then(|size| size.checked_add(header));
    // A slice of memory is at most `isize::MAX` bytes long.
    let end = end.filter(|end| header >= HEADER && isize::try_from(*end).is_ok());
    Ok((header, end.ok_or(FatbinError::Damaged)?))
}

/// A container in memory, as long as its header says.
///
/// # Safety
///
/// `data` must be null or point to a container, whole.
unsafe fn of_memory(data: *const u8) -> Result<Vec<u8>, FatbinError> {
    if data.is_null() {
        return Err(FatbinError::Null);
    }
    // SAFETY: a container is at least its header.
    let (_, end) = extent(unsafe { std::slice::from_raw_parts(data, HEADER) })?;
    // SAFETY: the header says how long the container is, and the caller says that it is whole.
    Ok(unsafe { std::slice::from_raw_parts(data, end) }.to_vec())
}

/// All PTX sources of a container.
pub fn sources(container: &[u8]) -> Result<Vec<Ptx>, FatbinError> {
    sources_within(container, MAX_PTX)
}

/// All PTX sources of a container. Compressed sources may have `room` bytes in all.
fn sources_within(container: &[u8], mut room: usize) -> Result<Vec<Ptx>, FatbinError> {
    let (mut at, end) = extent(container)?;
    if end > container.len() {
        return Err(FatbinError::Damaged);
    }
    let (mut found, mut others) = (Vec::new(), Vec::new());
    while at < end {
        let kind = u16::from_le_bytes(number(container, at)?);
        let head = u32_at(container, at + 4)? as usize;
        let size = usize::try_from(u64_at(container, at + 8)?).map_err(|_| FatbinError::Damaged)?;
        let start = at.checked_add(head).ok_or(FatbinError::Damaged)?;
        let next = start.checked_add(size).filter(|next| *next <= end);
        let next = next.filter(|next| *next > at).ok_or(FatbinError::Damaged)?;
        let body = &container[start..next];
        if kind == PTX {
            let entry = container.get(at..start).ok_or(FatbinError::Damaged)?;
            let text = text(entry, body, room)?;
            room = room.saturating_sub(text.len());
            found.push(Ptx::new(text));
        } else {
            others.push(format!("sm_{}", u32_at(container, at + 28)?));
        }
        at = next;
    }
    if found.is_empty() {
        return Err(FatbinError::NoPtx(others.join(", ")));
    }
    Ok(found)
}

/// The text of an entry, of at most `room` bytes if it is compressed.
fn text(header: &[u8], body: &[u8], room: usize) -> Result<String, FatbinError> {
    let flags = u64_at(header, 40)?;
    let mut bytes = if flags & (LZ4 | ZSTD) == 0 {
        body.to_vec()
    } else {
        let packed = u32_at(header, 16)? as usize;
        let size = u64_at(header, 56)? as usize;
        let packed = body.get(..packed).ok_or(FatbinError::Damaged)?;
        if size > room {
            return Err(FatbinError::Compressed(format!("to {size} bytes")));
        }
        if flags & ZSTD != 0 {
            zstd(packed, size)?
        } else {
            lz4(packed, size)?
        }
    };
    // Texts are padded with zeros.
    let length = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|e| FatbinError::Compressed(e.to_string()))
}

fn zstd(packed: &[u8], size: usize) -> Result<Vec<u8>, FatbinError> {
    let fail = |e: String| FatbinError::Compressed(format!("Zstandard: {e}"));
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed);
    let decoder = decoder.map_err(|e| fail(e.to_string()))?;
    let mut out = Vec::new();
    let read = decoder.take(size as u64 + 1).read_to_end(&mut out);
    read.map_err(|e| fail(e.to_string()))?;
    match out.len() == size {
        true => Ok(out),
        false => Err(fail(format!("{} bytes in place of {size}", out.len()))),
    }
}

/// One LZ4 block: literals and copies of earlier bytes, in turns.
fn lz4(packed: &[u8], size: usize) -> Result<Vec<u8>, FatbinError> {
    let damaged = || FatbinError::Compressed("LZ4".into());
    let mut input = packed.iter().copied();
    // Lengths go on in bytes of 255.
    let length = |nibble: u8, input: &mut dyn Iterator<Item = u8>| {
        let mut n = usize::from(nibble);
        if nibble == 15 {
            loop {
                let more = input.next().ok_or_else(damaged)?;
                n += usize::from(more);
                if more != 255 {
                    break;
                }
            }
        }
        Ok(n)
    };
    let mut out: Vec<u8> = Vec::new();
    while let Some(token) = input.next() {
        let literals = length(token >> 4, &mut input)?;
        for _ in 0..literals {
            out.push(input.next().ok_or_else(damaged)?);
        }
        // A block ends with literals.
        let Some(low) = input.next() else { break };
        let high = input.next().ok_or_else(damaged)?;
        let back = usize::from(u16::from_le_bytes([low, high]));
        let copied = length(token & 15, &mut input)? + 4;
        if back == 0 || back > out.len() || out.len() + copied > size {
            return Err(damaged());
        }
        for _ in 0..copied {
            out.push(out[out.len() - back]);
        }
    }
    match out.len() == size {
        true => Ok(out),
        false => Err(damaged()),
    }
}

#[cfg(test)]
mod tests;
