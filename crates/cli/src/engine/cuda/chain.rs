//! Decoder layers on a device: all linear layers of all of them in one CUDA graph.

use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::measure::{ReadOnly, Replay};
use nvfp4_gemv::{Device, GlobalScale, Options, Result, Weights, gemv_on_device};

use super::super::{Chain, Extent, Inputs, Plan, Ready, Way, Ways, Work, memory};
use super::Cuda;
use super::operands::{DeviceInputs, DeviceValues};
use super::rounds::{ALIGNMENT, CudaWays, RANDOM_BYTES};

/// A read of all weights is made of launches of at most this many bytes: a launch of so many is a long read.
const LONG_READ: usize = 1 << 30;

impl Cuda {
    pub(super) fn prepare_chain(
        &self,
        chain: &Chain,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let layers = chain.layers(plan.cold_bytes);
        let layer = chain.places(1, ALIGNMENT);
        // Kernels that only read take codes instead of codes and scales: as many bytes.
        let codes_or_read =
            |layers: usize| layers.checked_mul(layer.code_bytes.max(chain.layer_bytes()));
        let workspaces = chain.linears.iter();
        let workspaces =
            workspaces.map(|case| self.workspace_bytes(&case.shape, case.activation, case.layout));
        let workspace_bytes = usize::try_from(workspaces.max().unwrap_or(0)).unwrap_or(usize::MAX);
        let on_device = |cold: usize| {
            let layers = chain.layers(cold);
            memory::sum(&[
                (codes_or_read(layers)?.max(cold), 1),
                (layers.checked_mul(layer.scale_bytes)?.max(cold / 8), 1),
                (chain.operand_bytes()?, 1),
                (workspace_bytes, 1),
            ])
        };
        let has = usize::try_from(self.gpu.memory_bytes).ok();
        let name = &chain.name;
        memory::check(name, plan.cold_bytes, "device", has, on_device)?;
        memory::check(name, plan.cold_bytes, "host", memory::available(), |_| {
            memory::sum(&[(chain.operand_bytes()?, 1), (2, RANDOM_BYTES)])
        })?;
        let total = layers * chain.layer_bytes();
        let places = chain.places(layers, ALIGNMENT);
        let pool = self.pool(places.code_bytes.max(total), places.scale_bytes, plan)?;
        let mut weights: Vec<Weights<'_, Device>> = Vec::with_capacity(places.all.len());
        for place in &places.all {
            let case = &chain.linears[place.linear];
            let (codes, scales) = (
                case.shape.weight_code_bytes(),
                case.shape.weight_scale_bytes(case.layout),
            );
            weights.push(Weights::on_device(
                &case.shape,
                pool.codes.slice(place.codes..place.codes + codes),
                pool.scales.slice(place.scales..place.scales + scales),
                case.layout,
                GlobalScale::ONE,
            )?);
        }
        let host: Vec<Inputs> = chain.linears.iter().map(|case| case.inputs()).collect();
        let inputs = host.iter().map(|inputs| self.inputs(inputs));
        let inputs: Vec<DeviceInputs<'_>> = inputs.collect::<Result<_>>()?;
        let outputs = chain.linears.iter();
        let outputs = outputs.map(|case| self.poisoned(case.output, case.shape.outputs()));
        let mut outputs: Vec<DeviceValues> = outputs.collect::<Result<_>>()?;
        // Workspace for the linear layer that asks for most: the last one that is made is the largest.
        let mut workspace = None;
        for case in &chain.linears {
            workspace = self.workspace(&case.shape, case.activation, case.layout)?;
        }
        let read = ReadOnly::new(&self.stream, &pool.codes, &self.gpu)?;
        let extent = Extent {
            bytes: chain.layer_bytes(),
            rotated_bytes: total,
            launches: layers,
        };

        let mut ways = Vec::with_capacity(works.len());
        let mut graphs: Vec<Replay> = Vec::with_capacity(works.len());
        for &work in works {
            let graph = match work {
                Work::Cublas => continue, // f16 weights of as many layers are another chain
                Work::Gemv { ask, .. } if ask.is_chained && !self.can_chain() => continue,
                Work::Read(config) => {
                    let config = config.unwrap_or(ReadConfig::DEFAULT);
                    read.prepare(&config)?;
                    let launches = total.div_ceil(LONG_READ);
                    let piece = total.div_ceil(launches).next_multiple_of(ALIGNMENT);
                    let launch = |i: usize| {
                        let at = i * piece;
                        read.enqueue(&config, at, piece.min(total - at))
                    };
                    // SAFETY: weights, vectors, outputs and sink live to the end of this function, which waits for
                    // every replay. Nothing writes the weights.
                    unsafe { Replay::capture(&self.stream, launches, launch) }?
                }
                Work::Gemv { ask, .. } => {
                    let mut launch = |at: usize, options: &Options<'_>| {
                        let linear = places.all[at].linear;
                        let x = inputs[linear].view();
                        let y = outputs[linear].output();
                        let shape = &chain.linears[linear].shape;
                        gemv_on_device(&self.stream, shape, &weights[at], &x, y, options)
                    };
                    // Each once outside of the graph: it tells the config, and loads the kernel.
                    let options = (0..chain.linears.len()).map(|linear| {
                        let asked = ask.options().workspace(workspace.as_ref());
                        let choice = launch(linear, &asked)?;
                        Ok(asked.config(choice.config))
                    });
                    let options: Vec<Options<'_>> = options.collect::<Result<_>>()?;
                    let launch = |at: usize| {
                        let options = &options[places.all[at].linear];
                        launch(at, options).map(drop)
                    };
                    // SAFETY: as above. Nobody reads the launches' outputs. Launches that write one output do so in the
                    // order of the stream, chained ones too.
                    unsafe { Replay::capture(&self.stream, places.all.len(), launch) }?
                }
            };
            ways.push(Way {
                work,
                kernel: None, // one each linear layer
                config: String::new(),
                extent,
            });
            graphs.push(graph);
        }
        drive(&mut CudaWays {
            ready: Ready { ways, extent },
            graphs,
            board: &self.board,
        })
    }
}
