//! PTX out of fat binaries: what `nvcc` embeds in a program, and what `fatbinary` writes.
//!
//! NVIDIA does not document the format. A container begins with a header of 16 bytes and holds entries. Each begins
//! with a header of its own, which says how long it and what follows are, what it is, and how it is compressed. This
//! was read from what nvcc 13.0 writes with each `--compress-mode`. As bytes of an entry's header, little-endian:
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

use std::io::Read;

const WRAPPER: u32 = 0x4662_43b1;
const CONTAINER: u32 = 0xba55_ed50;
const HEADER: usize = 16;
const PTX: u16 = 1;
const LZ4: u64 = 1 << 13;
const ZSTD: u64 = 1 << 15;
/// More than any PTX has: what a wrong size does not get to allocate.
const MAX_PTX: usize = 1 << 30;

/// Why there is no PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FatbinError {
    /// It is something else.
    #[error("this is no fat binary: it begins with {0:#010x}")]
    Magic(u32),
    /// An entry is longer than what holds it.
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
    /// Its `.target`: `sm_100a`.
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
}

/// The number of an architecture: 100 for `sm_100a`, 0 for what is none.
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
/// `wrapper` must point to a `__fatBinC_Wrapper_t` as nvcc makes it, and what it points to must stay.
pub unsafe fn of_wrapper(wrapper: *const u8) -> Result<Vec<u8>, FatbinError> {
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
    // SAFETY: the wrapper's pointer leads to a container, which is at least its header.
    unsafe { of_memory(data) }
}

/// Whether memory begins as a container does.
///
/// # Safety
///
/// Four bytes must be readable.
pub unsafe fn is_container(data: *const u8) -> bool {
    // SAFETY: the caller says that four bytes are there.
    unsafe { data.cast::<u32>().read_unaligned() == CONTAINER }
}

/// Whether memory begins as a wrapper does.
///
/// # Safety
///
/// Four bytes must be readable.
pub unsafe fn is_wrapper(data: *const u8) -> bool {
    // SAFETY: the caller says that four bytes are there.
    unsafe { data.cast::<u32>().read_unaligned() == WRAPPER }
}

/// A container in memory, as long as its header says.
///
/// # Safety
///
/// `data` must point to a container, whole.
pub unsafe fn of_memory(data: *const u8) -> Result<Vec<u8>, FatbinError> {
    // SAFETY: a container is at least its header.
    let header = unsafe { std::slice::from_raw_parts(data, HEADER) };
    let magic = u32_at(header, 0)?;
    if magic != CONTAINER {
        return Err(FatbinError::Magic(magic));
    }
    let size = u64_at(header, 8)? as usize + HEADER;
    // SAFETY: the header says how long the container is, and the caller says that it is whole.
    Ok(unsafe { std::slice::from_raw_parts(data, size) }.to_vec())
}

/// All PTX sources of a container.
pub fn sources(container: &[u8]) -> Result<Vec<Ptx>, FatbinError> {
    let magic = u32_at(container, 0)?;
    if magic != CONTAINER {
        return Err(FatbinError::Magic(magic));
    }
    let header = u16::from_le_bytes(number(container, 6)?);
    let end = (u64_at(container, 8)? as usize)
        .checked_add(usize::from(header))
        .filter(|end| *end <= container.len())
        .ok_or(FatbinError::Damaged)?;
    let (mut found, mut others) = (Vec::new(), Vec::new());
    let mut at = usize::from(header);
    while at < end {
        let kind = u16::from_le_bytes(number(container, at)?);
        let head = u32_at(container, at + 4)? as usize;
        let size = u64_at(container, at + 8)? as usize;
        let start = at.checked_add(head).ok_or(FatbinError::Damaged)?;
        let next = start.checked_add(size).filter(|next| *next <= end);
        let next = next.filter(|next| *next > at).ok_or(FatbinError::Damaged)?;
        let body = &container[start..next];
        if kind == PTX {
            let entry = container.get(at..start).ok_or(FatbinError::Damaged)?;
            found.push(Ptx::new(text(entry, body)?));
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

fn text(header: &[u8], body: &[u8]) -> Result<String, FatbinError> {
    let flags = u64_at(header, 40)?;
    let bytes = if flags & (LZ4 | ZSTD) == 0 {
        body.to_vec()
    } else {
        let packed = u32_at(header, 16)? as usize;
        let size = u64_at(header, 56)? as usize;
        let packed = body.get(..packed).ok_or(FatbinError::Damaged)?;
        if size > MAX_PTX {
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
    let text = String::from_utf8(bytes[..length].to_vec());
    text.map_err(|e| FatbinError::Compressed(e.to_string()))
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

/// One LZ4 block: literals and copies of what came before, in turns.
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
mod tests {
    use super::*;

    const TEXT: &str = ".version 9.0\n.target sm_100a\n.address_size 64\n";

    fn container(kind: u16, flags: u64, body: &[u8], unpacked: usize) -> Vec<u8> {
        let mut entry = vec![0u8; 64];
        entry[..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&64u32.to_le_bytes());
        entry[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
        entry[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
        entry[28..32].copy_from_slice(&100u32.to_le_bytes());
        entry[40..48].copy_from_slice(&flags.to_le_bytes());
        entry[56..64].copy_from_slice(&(unpacked as u64).to_le_bytes());
        entry.extend(body);
        let mut all = CONTAINER.to_le_bytes().to_vec();
        all.extend([1, 0, 16, 0]);
        all.extend((entry.len() as u64).to_le_bytes());
        all.extend(entry);
        all
    }

    #[test]
    fn plain_text() {
        let mut body = TEXT.as_bytes().to_vec();
        body.extend([0; 5]);
        let found = sources(&container(1, 0, &body, 0)).unwrap();
        assert_eq!(found[0].text, TEXT);
        assert_eq!(found[0].target, "sm_100a");
        assert_eq!(found[0].architecture(), 100);
    }

    #[test]
    fn lz4_blocks() {
        // "abcabcabcabc!": 3 literals, a copy of 9 from 3 back, 1 literal.
        let block = [0x35, b'a', b'b', b'c', 3, 0, 0x10, b'!'];
        assert_eq!(lz4(&block, 13).unwrap(), b"abcabcabcabc!");
        assert!(lz4(&block, 12).is_err() && lz4(&block, 14).is_err());
        assert!(lz4(&block[..4], 13).is_err());
        // A copy from before the beginning.
        assert!(lz4(&[0x15, b'a', 9, 0, 0], 10).is_err());
        // A length that goes on: 15 + 255 + 2 literals.
        let mut long = vec![0xf0, 255, 2];
        long.extend([b'x'; 272]);
        assert_eq!(lz4(&long, 272).unwrap(), [b'x'; 272]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let e = sources(&container(2, 0, &[1, 2, 3], 0)).unwrap_err();
        assert!(e.to_string().contains("code=compute_100a") && e.to_string().contains("sm_100"));
        let e = sources(&container(1, ZSTD, &[1, 2, 3, 4, 5], 50)).unwrap_err();
        assert!(e.to_string().contains("--no-compress"), "{e}");
        let e = sources(&container(1, ZSTD, &[1], usize::MAX)).unwrap_err();
        assert!(e.to_string().contains("--no-compress"), "{e}");
        let whole = container(1, 0, TEXT.as_bytes(), 0);
        for n in 0..whole.len() {
            assert!(sources(&whole[..n]).is_err(), "{n}");
        }
        assert_eq!(sources(&[0; 32]), Err(FatbinError::Magic(0)));
    }
}
