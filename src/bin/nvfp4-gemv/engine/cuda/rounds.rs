//! Rounds on a device: each way is a CUDA graph of launches, captured once and replayed each round.

use cudarc::driver::CudaSlice;
use nvfp4_gemv::measure::{ReadOnly, Replay, copies_for_cold_l2};
use nvfp4_gemv::{
    Device, GlobalScale, Launched, Result, Weights, gemv_on_device_chained, gemv_on_device_with,
};

use super::super::rounds::{alternate, scale};
use super::super::{Case, Mode, Plan, Rounds, Series, Work};
use super::{Cuda, cuda};

/// Random bytes in device memory that every case's weights are cut from: uploaded once, because a
/// suite's weights together are many times what the host makes and copies in a second.
pub(super) struct Pool {
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
}

/// Where copies begin: what the widest loads and bulk copies need, and more.
const ALIGNMENT: usize = 256;

/// Launches a graph holds at least, so that what starts it does not count.
const LAUNCHES: usize = 48;

/// Random bytes made on the host; the device repeats them. Its memory does not notice.
const RANDOM_BYTES: usize = 16 << 20;

impl Cuda {
    fn random(&self, bytes: usize, seed: u64, map: fn(u8) -> u8) -> Result<CudaSlice<u8>> {
        let mut piece = vec![0; RANDOM_BYTES.min(bytes)];
        fastrand::Rng::with_seed(seed).fill(&mut piece);
        piece.iter_mut().for_each(|byte| *byte = map(*byte));
        let piece = self.upload(&piece)?;
        let failed = |error| cuda("filling device memory", error);
        // SAFETY: every byte is written below, before it is read.
        let mut all = unsafe { self.stream.alloc::<u8>(bytes) }.map_err(failed)?;
        for at in (0..bytes).step_by(RANDOM_BYTES) {
            let count = piece.len().min(bytes - at);
            self.stream
                .memcpy_dtod(&piece.slice(..count), &mut all.slice_mut(at..at + count))
                .map_err(failed)?;
        }
        Ok(all)
    }

    pub(super) fn measure(&self, case: &Case, works: &[Work], plan: &Plan) -> Result<Rounds> {
        let shape = &case.shape;
        let bytes = shape.weight_bytes();
        let copies = plan.copies(bytes, copies_for_cold_l2(bytes, self.info.l2_bytes));
        let (code_bytes, scale_bytes) = (
            shape.weight_code_bytes(),
            shape.weight_scale_bytes(case.layout),
        );
        let read_stride = bytes.next_multiple_of(ALIGNMENT);
        let code_stride = code_bytes.next_multiple_of(ALIGNMENT);
        let scale_stride = scale_bytes.next_multiple_of(ALIGNMENT);
        // The read-only kernel reads codes instead of codes and scales: as many bytes.
        let needed = (copies * read_stride, copies * scale_stride);
        let mut pool = self.pool.borrow_mut();
        if pool
            .as_ref()
            .is_none_or(|pool| pool.codes.len() < needed.0 || pool.scales.len() < needed.1)
        {
            *pool = None; // freed before its successor is allocated
        }
        let pool = match pool.take() {
            Some(kept) => pool.insert(kept),
            None => pool.insert(Pool {
                codes: self.random(needed.0.max(plan.cold_bytes), 1, |byte| byte)?,
                scales: self.random(needed.1.max(plan.cold_bytes / 8), 2, scale)?,
            }),
        };
        let weights: Vec<Weights<'_, Device>> = (0..copies)
            .map(|copy| {
                Weights::on_device(
                    shape,
                    pool.codes.slice(copy * code_stride..).slice(..code_bytes),
                    pool.scales
                        .slice(copy * scale_stride..)
                        .slice(..scale_bytes),
                    case.layout,
                    GlobalScale::ONE,
                )
            })
            .collect::<Result<_>>()?;
        let host_inputs = case.inputs();
        let inputs = self.inputs(&host_inputs)?;
        let x = inputs.view();
        let mut y = self.poisoned(case.output, shape.outputs())?;
        let read = ReadOnly::new(&self.stream, &pool.codes, self.info.multiprocessors)?;
        let launches = copies.max(LAUNCHES);

        let mut ways: Vec<(Work, String, Replay)> = Vec::with_capacity(works.len());
        for &work in works {
            let (config, graph) = match work {
                Work::Read => {
                    let launch = |i: usize| read.enqueue(i % copies * read_stride, bytes);
                    // SAFETY: weights, vectors, output and sink live to the end of this function,
                    // which waits for every replay.
                    let graph = unsafe { Replay::capture(&self.stream, launches, launch) }?;
                    (String::new(), graph)
                }
                Work::Gemv {
                    path,
                    mode,
                    slow_percent,
                } => {
                    let (stream, weights) = (&self.stream, &weights);
                    let mut launch = |config, i: usize| {
                        let (weights, output) = (&weights[i % copies], y.output());
                        match mode {
                            // SAFETY: copies filled the pool, and no kernel writes it.
                            Mode::Chained => unsafe {
                                gemv_on_device_chained(
                                    Some(path),
                                    config,
                                    stream,
                                    shape,
                                    weights,
                                    &x,
                                    output,
                                )
                            },
                            Mode::Isolated => gemv_on_device_with(
                                Some(path),
                                config,
                                stream,
                                shape,
                                weights,
                                &x,
                                output,
                            ),
                        }
                    };
                    // Once outside of the graph: it tells the cut, and loads the kernel.
                    let Launched { config, .. } = launch(None, 0)?;
                    let can_depend = self.info.compute_capability >= (9, 0);
                    if mode == Mode::Chained && !can_depend {
                        continue;
                    }
                    let slow = bytes * slow_percent as usize / 100;
                    let launch = |i: usize| {
                        launch(Some(config), i)?;
                        // Cold weights, half a turn away from those of this launch.
                        match slow {
                            0 => Ok(()),
                            slow => read.enqueue((i + copies / 2) % copies * read_stride, slow),
                        }
                    };
                    // SAFETY: as above.
                    let graph = unsafe { Replay::capture(&self.stream, launches, launch) }?;
                    (format!("{config:?}"), graph)
                }
            };
            ways.push((work, config, graph));
        }
        let seconds = alternate(ways.len(), plan.rounds, |way| {
            ways[way].2.seconds_a_launch()
        })?;
        Ok(Rounds {
            series: ways
                .into_iter()
                .zip(seconds)
                .map(|((work, config, _), seconds)| Series {
                    work,
                    config,
                    seconds,
                })
                .collect(),
            rotated_bytes: bytes * copies,
            launches,
        })
    }
}
