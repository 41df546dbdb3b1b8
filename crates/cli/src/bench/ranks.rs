//! Threads with a GPU each, which compute pairs of layers together: what `--tensor-parallel` measures.
//!
//! The first one also computes them alone. That takes turns with what all compute, so that both meet the GPU in the
//! same state; the others wait meanwhile.

mod rank;
mod steps;

use std::thread::{ScopedJoinHandle, scope};

use anyhow::{Context, Result, anyhow, bail, ensure};
use half::{bf16, f16};
use nvfp4_gemv::{Activation, GlobalScale, ScaleLayout, Shape, Weights};
use nvfp4_gemv_parallel::layers::{DeviceElement, HostRank, TensorParallel, origin};
use nvfp4_gemv_parallel::nccl::UniqueId;

use super::several::{Job, Measured, Pair};
use rank::Rank;
use steps::{At, Steps};

/// Weights on the host: all matrices are the beginnings of the same random bytes.
struct Bytes {
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Bytes {
    fn new(pair: &Pair, layout: ScaleLayout) -> Result<Self> {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut codes, mut scales) = (0, 0);
        for (m, k) in pair.columns.iter().copied().chain([pair.row]) {
            let shape = Shape::matrix(m, k)?;
            codes = codes.max(shape.weight_code_bytes());
            scales = scales.max(shape.weight_scale_bytes(layout));
        }
        let mut bytes = Self {
            codes: vec![0; codes],
            scales: vec![0; scales],
        };
        random.fill(&mut bytes.codes);
        // Scales from 0.5 to 2.
        bytes.scales.fill_with(|| random.u8(0x30..=0x40));
        Ok(bytes)
    }

    fn weights(&self, (m, k): (usize, usize), layout: ScaleLayout) -> Result<Weights<'_>> {
        let shape = Shape::matrix(m, k)?;
        let codes = &self.codes[..shape.weight_code_bytes()];
        let scales = &self.scales[..shape.weight_scale_bytes(layout)];
        // Results of about the size of the vectors.
        let global = GlobalScale::Multiplier(0.25 / (k as f32).sqrt());
        Ok(Weights::new(&shape, codes, scales, layout, global)?)
    }
}

/// Converts what the host makes.
trait FromF32 {
    fn from_f32(value: f32) -> Self;
}

macro_rules! from_f32 {
    ($($type:ty: $convert:expr;)*) => {$(
        impl FromF32 for $type {
            fn from_f32(value: f32) -> Self {
                $convert(value)
            }
        }
    )*};
}

from_f32! {
    f32: std::convert::identity;
    f16: f16::from_f32;
    bf16: bf16::from_f32;
}

/// Measures one pair: on one GPU, and on all ranks.
pub(super) fn measure(job: &Job) -> Result<Measured> {
    match job.activation {
        Activation::F32 => with_type::<f32>(job),
        Activation::F16 => with_type::<f16>(job),
        Activation::Bf16 => with_type::<bf16>(job),
        // Quantised from what is between the layers, and added up in that.
        Activation::Nvfp4 => with_type::<bf16>(job),
    }
}

fn with_type<T: DeviceElement + FromF32>(job: &Job) -> Result<Measured> {
    let bytes = Bytes::new(&job.pair, job.layout)?;
    let weights = |size| bytes.weights(size, job.layout);
    let columns = job.pair.columns.iter().map(|&size| weights(size));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let row = weights(job.pair.row)?;
    let divided = |ranks| -> Result<TensorParallel<'_>> {
        Ok(match (job.pair.head, &columns[..]) {
            (None, [gate, up]) => TensorParallel::mlp(gate, up, &row, ranks)?,
            (Some(head), [q, k, v]) => TensorParallel::attention([q, k, v], &row, head, ranks)?,
            _ => bail!("{} are no pair of layers", job.pair.name),
        })
    };
    // Indivisible layers are refused before anything is copied.
    let (over_ranks, over_one) = (divided(job.ranks)?, divided(1)?);
    let id = UniqueId::new()?;
    let steps = Steps::new(job.ranks);
    let rank = |group: HostRank| -> Result<Outcome> {
        let at = steps.of(group.rank());
        let alone = match group.rank() {
            0 => Some(alone::<T>(job, &over_one, at)?),
            _ => None,
        };
        at.step(|| "waiting for the first rank, which prepares one GPU".into());
        // The other ranks wait for this rank with a timeout only from here on.
        group.all_gather(&[0.0], &mut vec![0.0; group.ranks()])?;
        Rank::<T>::new(job, &over_ranks, group, id, at)?.measure(alone)
    };
    let outcomes = steps.watched(|| of_threads(HostRank::group(job.ranks), &rank))?;
    let same_bits = have_same_bits(&outcomes);
    let first = outcomes.into_iter().next().context("no rank")?;
    let mut measured = first.measured;
    measured.same_bits = same_bits;
    measured.difference = difference(&first.one, &first.whole)?;
    Ok(measured)
}

/// The layers on the first GPU.
fn alone<'a, T: DeviceElement + FromF32>(
    job: &'a Job,
    layers: &TensorParallel<'_>,
    at: At<'a>,
) -> Result<Rank<'a, T>> {
    let group = HostRank::group(1).pop().context("no rank")?;
    Rank::new(job, layers, group, UniqueId::new()?, at)
}

/// The results of a thread: `one` of one GPU, only on the first thread, and `whole` of all GPUs.
struct Outcome {
    one: Vec<f32>,
    whole: Vec<f32>,
    measured: Measured,
}

/// All ranks, in all of their replays.
fn have_same_bits(outcomes: &[Outcome]) -> bool {
    let is_first = |outcome: &Outcome| bits(&outcome.whole) == bits(&outcomes[0].whole);
    let mut all = outcomes.iter();
    all.all(|outcome| is_first(outcome) && outcome.measured.same_bits)
}

/// The largest difference from one GPU's result, as a share of the largest element.
fn difference(one: &[f32], whole: &[f32]) -> Result<f64> {
    let largest = one.iter().fold(0.0f32, |most, y| most.max(y.abs()));
    ensure!(largest > 0.0, "the result on one GPU is 0");
    let off = one
        .iter()
        .zip(whole)
        .map(|(one, whole)| f64::from((one - whole).abs()));
    // A NaN stays one.
    let most = off.fold(0.0, |most: f64, off| {
        if off > most || off.is_nan() {
            off
        } else {
            most
        }
    });
    Ok(most / f64::from(largest))
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// Runs each rank on a thread of its own, and returns their results; if some fail, the error that explains the other
/// errors.
fn of_threads<R: Send>(
    group: Vec<HostRank>,
    rank: &(impl Fn(HostRank) -> Result<R> + Sync),
) -> Result<Vec<R>> {
    let results: Vec<Result<R>> = scope(|scope| {
        let threads: Vec<_> = group
            .into_iter()
            .map(|group| scope.spawn(move || rank(group)))
            .collect();
        let join = |thread: ScopedJoinHandle<'_, Result<R>>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a rank's thread panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let (mut done, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(result) => done.push(result),
            Err(error) => errors.push(error),
        }
    }
    match errors
        .into_iter()
        .min_by_key(|error| origin(error.as_ref()))
    {
        Some(error) => Err(error),
        None => Ok(done),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nvfp4_gemv_parallel::nccl::NcclError;

    use super::*;

    /// NCCL reports what a rank itself lacks, and a system's error of one that may be either's.
    #[test]
    fn what_a_rank_reports_of_itself_is_no_other_ranks_end() {
        let fails = |group: HostRank| -> Result<()> {
            let (rank, ranks, status) = (group.rank(), 3, [6, 2, 1][group.rank()]);
            Err(NcclError::Failed {
                doing: "joining the other ranks",
                rank,
                ranks,
                status,
                result: format!("result {status}"),
                said: String::new(),
            })?
        };
        let error = of_threads(HostRank::group(3), &fails).unwrap_err();
        assert!(error.to_string().contains("result 1"), "{error}");
    }

    /// The first rank waits for the others in a sum, the second in their group, and the last one fails.
    #[test]
    fn the_error_that_explains_the_others_is_reported() {
        let rank = |group: HostRank| -> Result<()> {
            match group.rank() {
                0 => Err(NcclError::Timeout {
                    doing: "the stream's work",
                    rank: 0,
                    ranks: 3,
                    timeout: Duration::ZERO,
                })
                .context("rank 0"),
                1 => Ok(group.all_gather(&[0.0], &mut [0.0; 3])?),
                _ => bail!("out of memory"),
            }
        };
        let error = of_threads(HostRank::group(3), &rank).unwrap_err();
        assert_eq!(error.to_string(), "out of memory");
        let done = of_threads(HostRank::group(2), &|group: HostRank| Ok(group.rank()));
        assert_eq!(done.unwrap(), [0, 1]);
    }

    /// A rank that sees its own bits change while the first one does not, too.
    #[test]
    fn bits_are_the_same_on_all_ranks_in_all_replays() {
        let outcome = |value: f32, same_bits| Outcome {
            one: vec![],
            whole: vec![value],
            measured: Measured {
                same_bits,
                ..Measured::default()
            },
        };
        assert!(have_same_bits(&[outcome(1.0, true), outcome(1.0, true)]));
        assert!(!have_same_bits(&[outcome(1.0, true), outcome(2.0, true)]));
        for changes in [0, 1] {
            let outcomes = [0, 1].map(|rank| outcome(1.0, rank != changes));
            assert!(!have_same_bits(&outcomes), "rank {changes}");
        }
    }

    #[test]
    fn a_difference_is_a_share_of_the_largest_element() {
        assert_eq!(difference(&[1.0, -4.0], &[1.0, -3.0]).unwrap(), 0.25);
        assert!(difference(&[1.0, 2.0], &[f32::NAN, 2.0]).unwrap().is_nan());
        assert!(difference(&[0.0], &[1.0]).is_err());
    }
}
