//! `plan --tensor-parallel`: what each of several GPUs computes of a layer, and from which size on that pays.

use anyhow::{Context, Result};
use nvfp4_gemv::dispatch::rank;
use nvfp4_gemv::{
    Activation, Choice, Gpu, Kernel, Link, Operands, Options, Product, Refusal, ScaleLayout, Shape,
    Target, select,
};
use nvfp4_gemv_parallel::shard::{Sharding, Split};
use serde_json::{Value, json};

use super::reduction::{Collective, NVLINK_STEP, Parts, Reduction, SHARE_OF_LINK, START};
use crate::configs::one_line;
use crate::report::{Report, bytes, count, time};

/// The layer that is divided, and the GPUs that it is divided among.
pub(super) struct Layer<'a> {
    pub(super) shape: Shape,
    pub(super) activation: Activation,
    pub(super) layout: ScaleLayout,
    pub(super) gpu: &'a Gpu,
    pub(super) product: &'static Product,
    pub(super) options: Options<'a>,
    pub(super) chained: bool,
}

/// The expected time of one GPU for a shape.
struct Expected {
    shape: Shape,
    choice: Choice,
    seconds: f64,
    /// The time is a bound: it takes at least as long.
    at_least: bool,
    evidence: String,
}

impl Layer<'_> {
    /// The kernel that computes a shape, and its time: the estimate's, or what its share gives at the published rate of
    /// the memory.
    fn expected(&self, shape: Shape) -> Result<Expected> {
        let operands = Operands::new(self.activation, self.layout);
        let choice = select(&shape, &operands, Target::Gpu(self.gpu), &self.options)?;
        let kernel = choice.kernel().context("no kernel computes it")?;
        let ranked = rank(&shape, &operands, self.gpu, None, self.chained);
        let estimate = ranked.into_iter().find(|ranked| ranked.kernel == kernel);
        let estimate = estimate.and_then(|ranked| ranked.estimate);
        let estimate = estimate.with_context(|| format!("no time is known of kernel {kernel}"))?;
        let read = shape.weight_bytes() as f64 / self.product.memory_bandwidth as f64;
        Ok(Expected {
            shape,
            choice,
            seconds: estimate.seconds.unwrap_or(read / estimate.share),
            at_least: estimate.seconds.is_none() || estimate.evidence.is_bound(),
            evidence: estimate.evidence.to_string(),
        })
    }

    /// Kernels that compute the whole layer, and not a part of such a shape, because of its K.
    fn refused_by_length(&self, part: &Shape) -> Vec<Kernel> {
        let operands = Operands::new(self.activation, self.layout);
        let ranked = |shape| rank(shape, &operands, self.gpu, None, self.chained);
        let whole = ranked(&self.shape);
        let computes = |kernel| {
            let known = whole.iter().find(|ranked| ranked.kernel == kernel);
            known.is_some_and(|ranked| ranked.config.is_ok())
        };
        let refused = ranked(part).into_iter().filter(|ranked| {
            let is_by_length = matches!(ranked.config, Err(Refusal::RowLength { .. }));
            is_by_length && computes(ranked.kernel)
        });
        refused.map(|ranked| ranked.kernel).collect()
    }

    /// Bytes of an element of the result: as large as the vectors, of which NVFP4 ones are made of 16 bits.
    fn result_bytes(&self) -> usize {
        match self.activation {
            Activation::F32 => 4,
            Activation::Nvfp4 | Activation::F16 | Activation::Bf16 => 2,
        }
    }
}

impl Expected {
    fn kernel(&self) -> &'static str {
        self.choice.kernel().map_or("-", Kernel::name)
    }

    fn time(&self) -> String {
        let more = if self.at_least { ">" } else { "" };
        format!("{more}{}", time(self.seconds))
    }

    fn line(&self) -> String {
        format!(
            "{} x {}, {}, kernel {}: {} ({})",
            self.shape.m(),
            self.shape.k(),
            bytes(self.shape.weight_bytes()),
            self.kernel(),
            self.time(),
            self.evidence
        )
    }

    fn json(&self) -> Value {
        json!({
            "m": self.shape.m(), "n": self.shape.n(), "k": self.shape.k(), "l": self.shape.l(),
            "weight_bytes": self.shape.weight_bytes(),
            "kernel": self.kernel(),
            "config": self.choice.config,
            "seconds": self.seconds,
            "is_bound": self.at_least,
            "evidence": self.evidence,
        })
    }
}

/// A layer divided in one way.
struct Divided {
    split: Split,
    part: Expected,
    collective: Collective,
    collected: usize,
    takes: Parts,
    /// The least size of the divided dimension from which it pays to divide it.
    pays_from: Option<usize>,
    /// Kernels that compute the whole, and no part because of its ragged rows. Nothing where rows are not ragged.
    ragged: Option<Vec<Kernel>>,
}

impl Divided {
    fn new(
        layer: &Layer<'_>,
        whole: &Expected,
        link: Link,
        split: Split,
        ranks: usize,
    ) -> Result<Self> {
        let sharding = Sharding::new(&layer.shape, layer.layout, split, ranks)?;
        let part = layer.expected(sharding.shape())?;
        let collective = match split {
            Split::Rows => Collective::AllGather,
            Split::K => Collective::AllReduce,
        };
        let collected = layer.shape.outputs() * layer.result_bytes();
        let takes = Reduction { link, ranks }.parts(collective, collected);
        let size = match split {
            Split::Rows => layer.shape.m(),
            Split::K => layer.shape.k(),
        };
        let ragged = sharding
            .makes_rows_ragged()
            .then(|| layer.refused_by_length(&sharding.shape()));
        let pays_from = pays_from(size, whole.seconds - part.seconds, takes.seconds());
        Ok(Self {
            split,
            part,
            collective,
            collected,
            takes,
            pays_from,
            ragged,
        })
    }

    /// Seconds with the collective, and without it.
    fn seconds(&self) -> (f64, f64) {
        (self.part.seconds + self.takes.seconds(), self.part.seconds)
    }

    fn text(&self, whole: &Expected, ranks: usize) -> String {
        let (with, without) = self.seconds();
        let faster = |seconds: f64| format!("{:.2} times as fast as one", whole.seconds / seconds);
        let Parts {
            start,
            steps,
            step,
            bytes: sent,
        } = self.takes;
        let (name, alone) = match self.collective {
            Collective::AllReduce => ("all-reduce", String::new()),
            Collective::AllGather => (
                "all-gather",
                format!(
                    "  without collecting, where a layer cut along K follows: {}, {}\n",
                    time(without),
                    faster(without)
                ),
            ),
        };
        let dimension = match self.split {
            Split::Rows => "M",
            Split::K => "K",
        };
        let pays = match self.pays_from {
            Some(size) => {
                format!("pays from {dimension} = {size} on, if time saved grows with {dimension}")
            }
            None => "pays at no size at these rates".into(),
        };
        format!(
            "split {}: each of {ranks} has {}\n\
             {}{}  {name} of {}: {} ({} to start, {} of {}, {} for the bytes)\n{alone}  \
             with the {name}: {}, {}; {pays}\n",
            self.split,
            self.part.line(),
            self.part
                .choice
                .config
                .map_or(String::new(), |config| format!(
                    "  config: {}\n",
                    one_line(&config)
                )),
            self.ragged_line(),
            bytes(self.collected),
            time(self.takes.seconds()),
            time(start),
            count(steps, "step"),
            time(step),
            time(sent),
            time(with),
            faster(with),
        )
    }

    /// The note for parts whose rows are ragged while the whole's are not.
    fn ragged_line(&self) -> String {
        let Some(kernels) = &self.ragged else {
            return String::new();
        };
        let kernels: Vec<&str> = kernels.iter().map(|kernel| kernel.name()).collect();
        let cannot = match kernels.is_empty() {
            true => String::new(),
            false => format!(", and cannot be computed by {}", kernels.join(", ")),
        };
        format!(
            "  note: K = {} of a part is no multiple of 256, as the whole's is: it takes longer for its bytes{cannot}\n",
            self.part.shape.k()
        )
    }

    fn json(&self, whole: &Expected) -> Value {
        let (with, without) = self.seconds();
        json!({
            "split": self.split.name(),
            "rank": self.part.json(),
            "collective": match self.collective {
                Collective::AllReduce => "all-reduce",
                Collective::AllGather => "all-gather",
            },
            // Rows of a result are what a layer cut along K reads: then nothing is collected.
            "collective_needed": self.collective == Collective::AllReduce,
            "collective_bytes": self.collected,
            "collective_seconds": self.takes.seconds(),
            "collective_start_seconds": self.takes.start,
            "collective_steps": self.takes.steps,
            "collective_step_seconds": self.takes.step,
            "collective_bytes_seconds": self.takes.bytes,
            "seconds": with,
            "speedup": whole.seconds / with,
            "speedup_without_collective": whole.seconds / without,
            "pays_from": self.pays_from,
            // The whole's rows are a multiple of 256, and a part's are not.
            "ragged": self.ragged.is_some(),
        })
    }
}

/// The size from which the saved time is more than the collective's time. The saved time is proportional to the size,
/// as far as launches cost the same for any size.
fn pays_from(size: usize, saved: f64, takes: f64) -> Option<usize> {
    (saved > 0.0).then(|| (size as f64 * takes / saved).ceil() as usize)
}

pub(super) fn report(
    layer: &Layer<'_>,
    ranks: usize,
    splits: &[Split],
    other_build: Option<&str>,
) -> Result<Report> {
    let product = layer.product;
    let link = product.link.with_context(|| {
        format!(
            "a host has one {}: nothing is known here of what connects several",
            product.full_name
        )
    })?;
    let whole = layer.expected(layer.shape)?;
    let divided = splits
        .iter()
        .map(|&split| Divided::new(layer, &whole, link, split, ranks));
    let divided = divided.collect::<Result<Vec<_>>>()?;
    let shape = &layer.shape;
    let parts = divided.iter().map(|split| split.text(&whole, ranks));
    let parts: String = parts.collect();
    let note = other_build.map_or(String::new(), |note| format!("note: {note}\n"));
    let text = format!(
        "{} with {} vectors, {} scales, over {} of {}{} ({}, {} GB/s each way, as published)\n{note}\
         one has {}\n{parts}{}",
        layer.shape,
        layer.activation,
        layer.layout,
        ranks,
        product.full_name,
        place(ranks),
        link.kind.name(),
        link.bandwidth / 1_000_000_000,
        whole.line(),
        model(),
    );
    Ok(Report::new(
        text,
        json!({
            "m": shape.m(), "n": shape.n(), "k": shape.k(), "l": shape.l(),
            "activation": layer.activation.name(),
            "layout": layer.layout.name(),
            "chained": layer.chained,
            "gpu": product.name,
            "tensor_parallel": ranks,
            "link": { "kind": link.kind.name(), "bandwidth": link.bandwidth },
            "other_build": other_build,
            "whole": whole.json(),
            "splits": divided.iter().map(|split| split.json(&whole)).collect::<Vec<_>>(),
            "model": model().trim_end(),
        }),
    ))
}

/// The most GPUs of such a kind in one host.
const HOST: usize = 8;

/// The place of so many GPUs. Links between hosts are not modelled.
fn place(ranks: usize) -> &'static str {
    match ranks <= HOST {
        true => " in one host",
        false => ", as if one host had so many",
    }
}

/// The basis of the times of sums and collections.
fn model() -> String {
    format!(
        "model: fitted to sums of 16 KiB to 2 MiB between two H100 and among eight H200 (NVLink, NCCL 2.28.9, no windows, \
         in CUDA graphs), which it gives within 16%, but for 2 MiB between two (27%): {} to begin, {} for a step of a \
         ring, and {:.0}% of the link's published rate. Of other GPUs and links nothing was measured.\n",
        time(START),
        time(NVLINK_STEP),
        100.0 * SHARE_OF_LINK,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_pays_where_it_saves_more_than_its_sum_takes() {
        // 40 us are saved at 8192, and the sum takes 10: a quarter of that size is enough.
        assert_eq!(pays_from(8192, 40e-6, 10e-6), Some(2048));
        assert_eq!(pays_from(8192, 5e-6, 10e-6), Some(16384));
        assert_eq!(pays_from(8192, 0.0, 10e-6), None);
        assert_eq!(pays_from(8192, -1e-6, 10e-6), None);
        assert_eq!(pays_from(8192, 1e-6, 0.0), Some(0));
    }
}
