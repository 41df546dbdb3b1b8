//! A shared library without code, in place of NVIDIA's runtime. Programs that were linked with NVIDIA's ask for its
//! file and for a version of its functions. This library has the version and leads to the recorder, which has the
//! functions.

/// A file of the ELF format, and where each part of it begins.
#[derive(Debug, Default)]
struct Parts {
    bytes: Vec<u8>,
}

impl Parts {
    fn add(&mut self, bytes: &[u8]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let at = self.bytes.len() as u64;
        self.bytes.extend(bytes);
        at
    }
}

/// Names, each ended by a zero, and where they are.
#[derive(Debug)]
struct Names(Vec<u8>);

impl Names {
    fn add(&mut self, name: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(name.as_bytes());
        self.0.push(0);
        at
    }
}

/// The hash of names in ELF's version tables.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0, |h: u32, byte| {
        let h = (h << 4).wrapping_add(byte.into());
        let high = h & 0xf000_0000;
        (h ^ (high >> 24)) & !high
    })
}

fn bytes32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn bytes64(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// An entry of the version table: version 1 of the format, one name.
fn version(flags: u16, index: u16, name: (u32, u32), last: bool) -> Vec<u8> {
    let mut entry: Vec<u8> = [1, flags, index, 1]
        .iter()
        .flat_map(|n: &u16| n.to_le_bytes())
        .collect();
    // Hash of the name, offset of the name's entry, offset of the next version; then the name, and no other.
    entry.extend(bytes32(&[name.1, 20, if last { 0 } else { 28 }, name.0, 0]));
    entry
}

const HEADER: usize = 64;
const SEGMENT: usize = 56;

/// Number of the processor, x86-64 or AArch64, in ELF.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

/// A library called `name`, which has the version `name` and needs the library `needed`.
pub(crate) fn library(name: &str, needed: &str) -> Vec<u8> {
    const SEGMENTS: usize = 3;
    let mut names = Names(vec![0]);
    let (own, needed) = (names.add(name), names.add(needed));
    let mut parts = Parts {
        bytes: vec![0; HEADER + SEGMENTS * SEGMENT],
    };
    // One symbol, which ELF reserves.
    let symbols = parts.add(&[0; 24]);
    let versions_of_symbols = parts.add(&[0; 2]);
    let mut table = version(1, 1, (own, hash(name)), false);
    table.extend(version(0, 2, (own, hash(name)), true));
    let versions = parts.add(&table);
    // One bucket and one chain, both empty.
    let buckets = parts.add(&bytes32(&[1, 1, 0, 0]));
    let strings = parts.add(&names.0);
    let dynamic = [
        [1, needed.into()],                 // DT_NEEDED
        [14, own.into()],                   // DT_SONAME
        [4, buckets],                       // DT_HASH
        [5, strings],                       // DT_STRTAB
        [6, symbols],                       // DT_SYMTAB
        [10, names.0.len() as u64],         // DT_STRSZ
        [11, 24],                           // DT_SYMENT
        [0x6fff_fff0, versions_of_symbols], // DT_VERSYM
        [0x6fff_fffc, versions],            // DT_VERDEF
        [0x6fff_fffd, 2],                   // DT_VERDEFNUM
        [0, 0],
    ];
    let dynamic = bytes64(dynamic.as_flattened());
    let at = parts.add(&dynamic);
    let size = parts.bytes.len() as u64;
    let segment = |kind: u32, from: u64, size: u64, align: u64| {
        // Readable and writable: the loader writes into the dynamic section.
        let mut s = bytes32(&[kind, 6]);
        s.extend(bytes64(&[from, from, from, size, size, align]));
        s
    };
    let mut head = b"\x7fELF\x02\x01\x01".to_vec();
    head.resize(16, 0);
    head.extend([3u16, MACHINE].iter().flat_map(|n| n.to_le_bytes())); // a shared object
    head.extend(bytes32(&[1]));
    head.extend(bytes64(&[0, HEADER as u64, 0]));
    head.extend(bytes32(&[0]));
    let sizes = [HEADER as u16, SEGMENT as u16, SEGMENTS as u16, 64, 0, 0];
    head.extend(sizes.iter().flat_map(|n| n.to_le_bytes()));
    head.extend(segment(1, 0, size, 4096)); // PT_LOAD
    head.extend(segment(2, at, dynamic.len() as u64, 8)); // PT_DYNAMIC
    head.extend(segment(0x6474_e551, 0, 0, 16)); // PT_GNU_STACK: not executable
    parts.bytes[..head.len()].copy_from_slice(&head);
    parts.bytes
}
