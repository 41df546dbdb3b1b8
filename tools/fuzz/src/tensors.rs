//! Mutations of safetensors files: eight bytes that say how long the header is, the header in JSON, data.

use fastrand::Rng;

use crate::json;

const LENGTH: usize = size_of::<u64>();

/// Header and data. `None` for what is no such file.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// Changes a file's header and keeps its length right, or changes what its tensors hold.
pub fn mutate(bytes: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let (header, data) = split(bytes)?;
    let mut data = data.to_vec();
    let mut new = header.to_vec();
    match rng.u8(..4) {
        0 => {
            let special = [0, 1, 0x7f, 0x80, 0xff];
            for _ in 0..rng.usize(1..=8) {
                let byte = special[rng.usize(..special.len())];
                let at = rng.usize(..data.len().max(1));
                if let Some(slot) = data.get_mut(at) {
                    *slot = byte;
                }
            }
        }
        1 => data.resize(rng.usize(..2 * data.len() + 2), 0),
        _ => new = json::mutate(header, rng)?,
    }
    let mut file = (new.len() as u64).to_le_bytes().to_vec();
    file.extend(new);
    file.extend(data);
    Some(file)
}
