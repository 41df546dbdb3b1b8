//! The kernels that only read: their sums show that they read all of the data, once.

#[cfg(feature = "device")]
pub(crate) mod gpu;
pub(crate) mod sim;

use nvfp4_gemv::Gpu;
use nvfp4_gemv::kernel::read_only::{ReadConfig, Share};

/// The candidates, and others in which few bytes make many turns.
fn configs(gpu: &Gpu) -> Vec<ReadConfig> {
    let mut all = ReadConfig::candidates(gpu);
    for share in [
        Share::Turns { ctas: 1 },
        Share::Turns { ctas: 3 },
        Share::Parts { ctas: 2 },
        Share::Pieces,
    ] {
        all.extend([4, 8].map(|loads| ReadConfig::Loads {
            loads,
            threads: 32,
            share,
        }));
        all.extend(
            [(48, 1), (512, 2), (1040, 3)].map(|(copy_bytes, stages)| ReadConfig::Bulk {
                copy_bytes,
                stages,
                share,
            }),
        );
    }
    all.retain(|config| config.check(gpu).is_ok());
    all
}

/// Random bytes, and the sum of their 32-bit words but for a rest of less than 16 bytes.
fn data(bytes: usize) -> (Vec<u8>, u32) {
    let mut data = vec![0; bytes];
    fastrand::Rng::with_seed(bytes as u64).fill(&mut data);
    let words = data[..bytes / 16 * 16].as_chunks::<4>().0.iter();
    let sum = words.fold(0, |sum: u32, word| {
        sum.wrapping_add(u32::from_le_bytes(*word))
    });
    (data, sum)
}
