//! Decoder layers on the CPU: a launch computes all linear layers of one.

use std::hint::black_box;

use nvfp4_gemv::{GemvPath, GlobalScale, Result, Weights};

use super::super::{Ask, Chain, Inputs, Plan, Values, Ways, Work, memory};
use super::rounds::drive_ways;
use super::{Cpu, compute};

/// The largest alignment that the CPU path asks for.
const ALIGNMENT: usize = 64;

impl Cpu {
    pub(super) fn prepare_chain(
        &self,
        chain: &Chain,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let bytes = chain.layer_bytes();
        let layers = chain.layers(plan.cold_bytes);
        let layer = chain.places(1, ALIGNMENT);
        let needed = |cold: usize| {
            let layers = chain.layers(cold);
            memory::sum(&[
                (layers, layer.code_bytes),
                (layers, layer.scale_bytes),
                // Bytes that the ceiling reads.
                (layers.checked_mul(bytes)?.max(cold), 1),
                (chain.operand_bytes()?, 1),
            ])
        };
        let sizes = [layer.code_bytes, layer.scale_bytes, bytes];
        let [codes, scales, read] = sizes.map(|bytes| layers.saturating_mul(bytes));
        let mut pool = self.pool(&chain.name, (codes, scales, read), plan, needed)?;
        let places = chain.places(layers, ALIGNMENT);
        let pool = &mut *pool;
        let mut weights = Vec::with_capacity(places.all.len());
        for place in &places.all {
            let case = &chain.linears[place.linear];
            let codes = &pool.codes[place.codes..][..case.shape.weight_code_bytes()];
            let scale_bytes = case.shape.weight_scale_bytes(case.layout);
            let scales = &pool.scales[place.scales..][..scale_bytes];
            let layout = case.layout;
            weights.push(Weights::new(
                &case.shape,
                codes,
                scales,
                layout,
                GlobalScale::ONE,
            )?);
        }
        let inputs: Vec<Inputs> = chain.linears.iter().map(|case| case.inputs()).collect();
        let outputs = chain.linears.iter();
        let mut outputs: Vec<Values> = outputs
            .map(|case| Values::poisoned(case.output, case.shape.outputs()))
            .collect();
        let linears = chain.linears.len();
        let mut next = (0..layers).cycle();
        let mut compute_layer = || -> Result<()> {
            let layer = next.next().unwrap_or(0);
            for (i, case) in chain.linears.iter().enumerate() {
                let ask = Ask::of_path(GemvPath::Cpu);
                let weights = &weights[layer * linears + i];
                compute(
                    ask,
                    &case.shape,
                    weights,
                    &inputs[i].view(),
                    &mut outputs[i],
                )?;
            }
            black_box(&outputs);
            Ok(())
        };
        let sizes = (bytes, layers * bytes);
        drive_ways(works, sizes, &mut pool.read, &mut compute_layer, drive)
    }
}
