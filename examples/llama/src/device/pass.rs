//! Memory of a pass over the weights, and what is enqueued for one.

use anyhow::{Result, ensure};
use nvfp4_gemv::cudarc::driver::{CudaGraph, CudaSlice};
use nvfp4_gemv::{ExpertsBuffers, ExpertsOnDevice, Output, Vectors};

use super::gpu::Place;
use super::kernels::{self, Attention, CHOOSERS, Routing};
use super::product::{Dense, Input, Kind, Product};
use crate::config::Config;
use crate::layers::{self, Maker};
use crate::met::Met;

/// The parts of a decoder.
pub(super) struct Parts {
    pub(super) layers: Vec<Layer>,
    /// Factors of the last norm.
    pub(super) norm: CudaSlice<f32>,
    pub(super) head: Product,
    /// Times that a vector is given to the head.
    pub(super) copies: usize,
    /// f32 `[vocabulary][hidden]`.
    pub(super) table: CudaSlice<f32>,
    pub(super) hidden: usize,
    pub(super) kind: Kind,
}

/// A layer, with the keys and values of what was read, f32 `[kv][most][size]`.
pub(super) struct Layer {
    pub(super) of: layers::Layer<CudaSlice<f32>, Product, FeedForward>,
    pub(super) keys: CudaSlice<f32>,
    pub(super) values: CudaSlice<f32>,
}

impl Layer {
    /// Makes a layer of a model, which has read nothing.
    pub(super) fn new<M>(
        config: &Config,
        number: usize,
        maker: &mut M,
        place: &Place,
    ) -> Result<Self>
    where
        M: Maker<Norm = CudaSlice<f32>, Linear = Product, FeedForward = FeedForward>,
    {
        let cache = || place.stream.alloc_zeros(place.heads.cache_elements());
        Ok(Self {
            of: layers::Layer::new(config, number, maker)?,
            keys: cache()?,
            values: cache()?,
        })
    }
}

pub(super) enum FeedForward {
    Mlp {
        gate_up: Product,
        down: Product,
    },
    /// Reads NVFP4 vectors.
    Moe {
        router: Dense,
        experts: ExpertsOnDevice,
        top: usize,
        normalised: bool,
        /// Of an expert.
        bytes: usize,
    },
}

/// Memory and kernels that all passes share.
pub(super) struct Shared {
    /// Of each position `[most][size / 2]`: cosines and sines.
    pub(super) rotations: [CudaSlice<f32>; 2],
    /// The position, then the tokens of a pass.
    pub(super) step: CudaSlice<i32>,
    /// Parts of attention, of as many tokens as a pass has at most.
    pub(super) parts: CudaSlice<f32>,
    /// Attention's, zeros.
    pub(super) counters: CudaSlice<u32>,
    /// Parts of rows that the likeliest token is found by.
    pub(super) choosers: CudaSlice<u32>,
    /// A zero for each token, for kernels whose last CTA goes on.
    pub(super) zeros: CudaSlice<u32>,
}

/// Parts of a pass that may be left out, to see what time they take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wanted {
    /// Linear layers and experts.
    pub(super) products: bool,
    /// Norms, gates, routers and quantisers.
    pub(super) vectors: bool,
    pub(super) attention: bool,
    /// Rows of the table, and the choice of the likeliest token.
    pub(super) ends: bool,
}

impl Wanted {
    pub(super) const ALL: Self = Self {
        products: true,
        vectors: true,
        attention: true,
        ends: true,
    };
}

/// Memory of a pass of so many tokens.
pub(super) struct Pass {
    pub(super) n: usize,
    /// The last tokens of the pass, whose logits are computed.
    pub(super) last: usize,
    xs: CudaSlice<f32>,
    normed: Input,
    qkv: CudaSlice<f32>,
    attended: Input,
    mlp: Option<(CudaSlice<f32>, Input)>,
    mixture: Option<Mixture>,
    for_head: Option<Input>,
    pub(super) logits: CudaSlice<f32>,
    pub(super) chosen: CudaSlice<i32>,
    /// This pass, captured.
    pub(super) graph: Option<CudaGraph>,
    /// Whether it was enqueued, so that everything is loaded and prepared.
    pub(super) is_warm: bool,
}

/// Of layers of experts.
struct Mixture {
    logits: CudaSlice<f32>,
    ids: CudaSlice<i32>,
    shares: CudaSlice<f32>,
    buffers: ExpertsBuffers,
}

impl Pass {
    pub(super) fn new(place: &Place, parts: &Parts, n: usize, last: usize) -> Result<Self> {
        let (stream, heads) = (&place.stream, &place.heads);
        let input = |n, k| Input::new(place, parts.kind, n, k);
        let floats = |count: usize| stream.alloc_zeros::<f32>(count.max(1));
        let (mut mlp, mut mixture) = (None, None);
        for layer in &parts.layers {
            match &layer.of.feed_forward {
                FeedForward::Mlp { gate_up, down } if mlp.is_none() => {
                    mlp = Some((floats(n * gate_up.rows())?, input(n, down.k())?));
                }
                FeedForward::Moe {
                    router,
                    experts,
                    top,
                    ..
                } if mixture.is_none() => {
                    mixture = Some(Mixture {
                        logits: floats(n * router.rows())?,
                        ids: stream.alloc_zeros(n * top)?,
                        shares: floats(n * top)?,
                        buffers: experts.buffers(stream, n, *top)?,
                    });
                }
                _ => {}
            }
        }
        Ok(Self {
            n,
            last,
            xs: floats(n * parts.hidden)?,
            normed: input(n, parts.hidden)?,
            qkv: floats(n * heads.width())?,
            attended: input(n, heads.heads * heads.size)?,
            mlp,
            mixture,
            for_head: match last {
                0 => None,
                _ => Some(input(last, parts.copies * parts.hidden)?),
            },
            logits: floats(last * parts.head.rows())?,
            chosen: stream.alloc_zeros(last.max(1))?,
            graph: None,
            is_warm: false,
        })
    }

    /// Enqueues the pass. Where vectors are kept, it waits for each.
    pub(super) fn enqueue(
        &mut self,
        place: &Place,
        parts: &Parts,
        shared: &Shared,
        wanted: Wanted,
        met: &mut Met,
    ) -> Result<()> {
        let (n, hidden, kind) = (self.n, parts.hidden, parts.kind);
        ensure!(n < shared.step.len(), "a pass has too many tokens");
        // SAFETY: each launch below has addresses of buffers that `self`, `parts` and `shared` hold, made for these
        // numbers; all work is on one stream, and they are freed there.
        let enqueue = |launch| unsafe { place.enqueue(&launch, false) };
        if wanted.ends {
            let sizes = [n, hidden, parts.table.len() / hidden];
            let [step, table] = [place.address(&shared.step), place.address(&parts.table)];
            let launch = kernels::embed(step, table, place.address(&self.xs), sizes);
            // SAFETY: as above.
            unsafe { place.enqueue(&launch, true) }?;
        }
        for Layer { of, keys, values } in &parts.layers {
            let factors = &of.attention_norm;
            if wanted.vectors {
                let xs = self.xs.as_view();
                (self.normed).norm(place, kind, &of.qkv, xs, factors, 1)?;
                self.normed.keep(place, of.qkv.reads(kind), met)?;
            }
            if wanted.products {
                let to = self.qkv.as_view_mut();
                of.qkv.multiply(place, kind, &self.normed, n, to, false)?;
            }
            if wanted.attention {
                let (out, to) = self.attended.target(place, kind, &of.output);
                let attention = Attention {
                    qkv: place.address(&self.qkv),
                    factors: match &of.head_norms {
                        Some([q, k]) => [place.address(q), place.address(k)],
                        None => [0, 0],
                    },
                    cosines: place.address(&shared.rotations[0]),
                    sines: place.address(&shared.rotations[1]),
                    keys: place.address(keys),
                    values: place.address(values),
                    step: place.address(&shared.step),
                    parts: place.address(&shared.parts),
                    counters: place.address(&shared.counters),
                    out,
                    to,
                };
                let launches = place.heads.attend(&attention, n);
                launches.into_iter().try_for_each(enqueue)?;
            }
            if wanted.vectors {
                self.attended.quantize(place, kind, &of.output)?;
                self.attended.keep(place, of.output.reads(kind), met)?;
            }
            if wanted.products {
                let to = self.xs.as_view_mut();
                of.output
                    .multiply(place, kind, &self.attended, n, to, true)?;
            }
            self.feed_forward(place, parts, shared, of, wanted, met)?;
        }
        if let Some(for_head) = &mut self.for_head {
            let xs = self.xs.slice((n - self.last) * hidden..);
            if wanted.vectors {
                for_head.norm(place, kind, &parts.head, xs, &parts.norm, parts.copies)?;
            }
            if wanted.products {
                let to = self.logits.as_view_mut();
                (parts.head).multiply(place, kind, for_head, self.last, to, false)?;
            }
            if wanted.ends {
                let (of_rows, zeros) = (&shared.choosers, &shared.zeros);
                let addresses = [
                    place.address(&self.logits),
                    place.address(of_rows),
                    place.address(zeros),
                    place.address(&self.chosen),
                    place.address(&shared.step),
                ];
                ensure!(of_rows.len() >= 2 * CHOOSERS * self.last && zeros.len() >= self.last);
                let goes_on = n == 1;
                let sizes = [self.last, parts.head.rows()];
                enqueue(kernels::choose(addresses, sizes, goes_on))?;
            }
        }
        Ok(())
    }

    fn feed_forward(
        &mut self,
        place: &Place,
        parts: &Parts,
        shared: &Shared,
        layer: &layers::Layer<CudaSlice<f32>, Product, FeedForward>,
        wanted: Wanted,
        met: &mut Met,
    ) -> Result<()> {
        let (n, kind) = (self.n, parts.kind);
        let (normed, factors) = (&mut self.normed, &layer.mlp_norm);
        match (&layer.feed_forward, &mut self.mlp, &mut self.mixture) {
            (FeedForward::Mlp { gate_up, down }, Some((both, between)), _) => {
                if wanted.vectors {
                    normed.norm(place, kind, gate_up, self.xs.as_view(), factors, 1)?;
                    normed.keep(place, gate_up.reads(kind), met)?;
                }
                if wanted.products {
                    gate_up.multiply(place, kind, normed, n, both.as_view_mut(), false)?;
                }
                if wanted.vectors {
                    between.gate(place, kind, down, both)?;
                    between.keep(place, down.reads(kind), met)?;
                }
                if wanted.products {
                    down.multiply(place, kind, between, n, self.xs.as_view_mut(), true)?;
                }
            }
            (
                FeedForward::Moe {
                    router,
                    experts,
                    top,
                    normalised,
                    ..
                },
                _,
                Some(mixture),
            ) => {
                let Mixture {
                    logits,
                    ids,
                    shares,
                    buffers,
                } = mixture;
                if wanted.vectors {
                    // The experts quantise the norm in f32.
                    let routing = Routing {
                        xs: place.address(&self.xs),
                        factors: place.address(factors),
                        weights: router.address(place),
                        normed: place.address(&normed.plain),
                        logits: place.address(logits),
                        counters: place.address(&shared.zeros),
                        ids: place.address(ids),
                        shares: place.address(shares),
                    };
                    let sizes = [n, parts.hidden, router.rows(), *top];
                    let (epsilon, halves) = (place.heads.epsilon, router.is_halves());
                    let launch = kernels::route(&routing, epsilon, sizes, halves, *normalised)?;
                    // SAFETY: the buffers were made for these sizes.
                    unsafe { place.enqueue(&launch, false) }?;
                    normed.keep(place, Kind::F32, met)?;
                }
                if wanted.products {
                    let x = Vectors::on_device(normed.plain.as_view());
                    let to = Output::on_device(self.xs.as_view_mut()).accumulating();
                    let (ids, shares) = (ids.as_view(), shares.as_view());
                    experts.forward(&place.stream, buffers, &x, &ids, &shares, to)?;
                }
            }
            _ => anyhow::bail!("a pass without memory for a layer"),
        }
        Ok(())
    }
}

impl FeedForward {
    /// Bytes of weights that a step of one token reads.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Mlp { gate_up, down } => gate_up.bytes() + down.bytes(),
            Self::Moe { bytes, top, .. } => bytes * top,
        }
    }
}

impl Parts {
    /// Bytes of weights that a step of one token reads: linear layers and the head.
    pub(super) fn bytes(&self) -> usize {
        let of_layers = self
            .layers
            .iter()
            .map(|Layer { of, .. }| of.qkv.bytes() + of.output.bytes() + of.feed_forward.bytes());
        of_layers.sum::<usize>() + self.head.bytes()
    }

    /// All linear layers that are not experts'.
    pub(super) fn products(&self) -> Vec<&Product> {
        let mut all = vec![&self.head];
        for Layer { of, .. } in &self.layers {
            all.extend([&of.qkv, &of.output]);
            if let FeedForward::Mlp { gate_up, down } = &of.feed_forward {
                all.extend([gate_up, down]);
            }
        }
        all
    }

    /// Gives the products a workspace.
    pub(super) fn set_workspace(&mut self, workspace: &nvfp4_gemv::Workspace) {
        self.head.set_workspace(workspace);
        for Layer { of, .. } in &mut self.layers {
            of.qkv.set_workspace(workspace);
            of.output.set_workspace(workspace);
            if let FeedForward::Mlp { gate_up, down } = &mut of.feed_forward {
                gate_up.set_workspace(workspace);
                down.set_workspace(workspace);
            }
        }
    }
}
