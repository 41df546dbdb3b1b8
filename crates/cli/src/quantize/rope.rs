//! Scaled rotary positions of Llama 3.1 to 3.3: a GGUF file has the factors, and a config what they are made of.
//!
//! Sources: llama.cpp's `convert_hf_to_gguf.py` (`generate_extra_tensors`); transformers' `modeling_rope_utils.py`.

use anyhow::{Result, bail};
use nvfp4_gemv::checkpoint::Gguf;
use nvfp4_gemv_files::printable;
use serde_json::{Value, json};

/// The tensor of the factors, which rotary frequencies are divided by.
pub(super) const FACTORS: &str = "rope_freqs.weight";

/// Constants of all of these models.
const CONTEXT: f64 = 8192.0;
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;

/// How far a factor may be off, relative to its size: the converter computes in f32.
const MOST_OFF: f64 = 1e-5;

/// The config's `rope_scaling` of a file that has such factors, or nothing where it has none.
///
/// # Errors
/// Factors that these models do not have: a config would say others.
pub(super) fn llama3(file: &Gguf, architecture: &str) -> Result<Option<Value>> {
    if file.tensor(FACTORS).is_none() {
        return Ok(None);
    }
    let factors = file.vector(FACTORS)?;
    let integer = |key: &str| file.integer(&format!("{architecture}.{key}"));
    let of_heads = || integer("embedding_length")?.checked_div(integer("attention.head_count")?);
    let size = integer("rope.dimension_count").or(integer("attention.key_length"));
    let base = file.float(&format!("{architecture}.rope.freq_base"));
    let factor = f64::from(*factors.last().unwrap_or(&0.0));
    let is_as_made = |base: f64, size: u64| {
        let expected =
            (0..size / 2).map(|pair| of_pair(base, 2.0 * pair as f64 / size as f64, factor));
        let near =
            |(found, expected): (&f32, f64)| (f64::from(*found) / expected - 1.0).abs() <= MOST_OFF;
        factors.len() as u64 == size / 2 && factors.iter().zip(expected).all(near)
    };
    match (base, size.or_else(of_heads)) {
        (Some(base), Some(size)) if is_as_made(base, size) => Ok(Some(json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": LOW, "high_freq_factor": HIGH,
            "original_max_position_embeddings": CONTEXT as u64,
        }))),
        _ => bail!(
            "{}: the tensor {FACTORS:?} scales positions in another way than Llama 3.1's, of which no config is made",
            printable::path(file.path())
        ),
    }
}

/// The divisor of a pair's frequency `base ^ -exponent`.
fn of_pair(base: f64, exponent: f64, factor: f64) -> f64 {
    let turns = CONTEXT * base.powf(-exponent) / std::f64::consts::TAU;
    let share = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
    1.0 / ((1.0 - share) / factor + share)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.1 8B's, of 64 pairs: the converter's own numbers, in f32.
    #[test]
    fn factors_are_the_converters() {
        const BETWEEN: [f64; 6] = [
            1.207_483_9,
            1.553_414_6,
            2.026_313,
            2.694_53,
            3.684_253_2,
            5.257_327,
        ];
        let of = |pair: u32| of_pair(500_000.0, f64::from(pair) / 64.0, 8.0);
        for pair in 0..64 {
            let expected = match pair {
                ..=28 => 1.0,
                35.. => 8.0,
                _ => BETWEEN[pair as usize - 29],
            };
            assert!(
                (of(pair) / expected - 1.0).abs() < MOST_OFF,
                "{pair}: {}",
                of(pair)
            );
        }
    }
}
