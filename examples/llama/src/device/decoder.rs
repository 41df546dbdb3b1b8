//! A model on a GPU: one CUDA graph for a step.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use nvfp4_gemv::cudarc::driver::{CudaGraph, CudaSlice, sys};
use nvfp4_gemv::{Dims, ExpertsOnDevice, Operands, Options, Shape, Target, Workspace, select};

use super::gpu::Place;
use super::kernels::{CHOOSERS, Heads};
use super::pass::{FeedForward, Layer, Parts, Pass, Shared, Wanted};
use super::product::{Dense, Kind, Product};
use crate::config::Config;
use crate::layers::Maker;
use crate::met::Met;
use crate::model::{Head, PASS, Reader, of_head, rotations};
use crate::weights::{Arithmetic, Weights};

/// Passes of up to so many tokens are captured into a graph when they come for the second time.
pub(super) const CAPTURED: usize = 8;
/// Passes whose memory is kept.
const KEPT: usize = 24;

/// Loads the parts of layers onto a device.
struct Loader<'a> {
    weights: &'a Weights,
    config: &'a Config,
    kind: Kind,
    place: &'a Place,
}

impl Maker for Loader<'_> {
    type Norm = CudaSlice<f32>;
    type Linear = Product;
    type FeedForward = FeedForward;

    fn norm(&mut self, module: &str, _: usize) -> Result<CudaSlice<f32>> {
        let factors = self.weights.norm(module)?.to_vec1::<f32>()?;
        Ok(self.place.stream.clone_htod(&factors)?)
    }

    fn linear(&mut self, modules: &[String], _: usize, _: usize) -> Result<Product> {
        Product::new(self.place, &self.weights.linear(modules)?)
    }

    fn mlp(&mut self, module: &str) -> Result<FeedForward> {
        let mut part = |parts: &[&str]| {
            let modules: Vec<_> = parts
                .iter()
                .map(|of| format!("{module}.{of}_proj"))
                .collect();
            self.linear(&modules, 0, 0)
        };
        Ok(FeedForward::Mlp {
            gate_up: part(&["gate", "up"])?,
            down: part(&["down"])?,
        })
    }

    fn experts(&mut self, module: &str, _: usize) -> Result<FeedForward> {
        ensure!(
            !self.weights.is_batch_invariant(),
            "results of experts depend on the other tokens of a pass"
        );
        let router = Dense::new(self.place, &self.weights.router(module)?)?;
        let experts = self.weights.experts_on_host(module)?;
        let of_first = experts.all()[0].layers();
        let bytes = of_first
            .map(|layer| layer.rows() * layer.k() / 16 * 9)
            .sum();
        let experts = experts.on_device(&self.place.stream, self.place.layout())?;
        mixture(self.config, self.kind, router, experts, bytes)
    }
}

/// A model on a GPU, with the keys and values of the text that it has read. A step of one token, or of a few, is one
/// CUDA graph, which is replayed for every step: position and tokens lie in the device's memory.
pub struct DeviceModel {
    // Before `place`, whose stream they are freed on.
    passes: HashMap<[usize; 2], Pass>,
    pub(super) parts: Parts,
    pub(super) shared: Shared,
    pub(super) place: Place,
    pub(super) most: usize,
    position: usize,
    /// The content of `step` on the device: the position, and the one token of the next step.
    on_device: Option<(usize, u32)>,
    /// The latest logits.
    logits: Vec<f32>,
    graphs: bool,
    met: Met,
}

impl DeviceModel {
    /// Loads a model onto the first GPU, for texts of up to `most` tokens. `progress` is called behind each layer.
    ///
    /// # Errors
    /// No GPU, or no NVRTC to compile kernels with. What the device's kernels do not compute: heads whose size is no
    /// multiple of 32, factors of columns, layers of experts with vectors that are not NVFP4. Nor do they compute
    /// another arithmetic than those of NVFP4 weights with vectors in f32, bf16, f16 and NVFP4.
    pub fn load(
        weights: &Weights,
        config: &Config,
        most: usize,
        head: Head,
        mut progress: impl FnMut(usize),
    ) -> Result<Self> {
        config.allows(most)?;
        let kind = Kind::of(weights.arithmetic())?;
        ensure!(
            !weights.is_batch_invariant() || kind != Kind::F32,
            "on a GPU results with vectors in f32 depend on the other tokens of a pass: ask for {:?} or {:?}",
            Arithmetic::Nvfp4F16,
            Arithmetic::Nvfp4Vectors
        );
        let place = Place::new(|sms| Heads::new(config, most, sms))?;
        let mut loader = Loader {
            weights,
            config,
            kind,
            place: &place,
        };
        let mut layers = Vec::new();
        for number in 0..config.num_hidden_layers {
            layers.push(Layer::new(config, number, &mut loader, &place)?);
            progress(number);
        }
        let embeddings = weights.matrix("model.embed_tokens")?;
        let (head, is_twice) = of_head(weights, config, head, &embeddings)?;
        let parts = Parts {
            layers,
            norm: loader.norm("model.norm", config.hidden_size)?,
            head: Product::new(&place, &head)?,
            copies: 1 + usize::from(is_twice),
            hidden: config.hidden_size,
            table: (place.stream).clone_htod(&embeddings.flatten_all()?.to_vec1::<f32>()?)?,
            kind,
        };
        Self::new(place, parts, config, most)
    }

    /// Of layers that are on the device.
    pub(super) fn new(
        place: Place,
        mut parts: Parts,
        config: &Config,
        most: usize,
    ) -> Result<Self> {
        check(&place, &parts, config)?;
        let stream = &place.stream;
        let mut bytes = 0;
        let mut known = Vec::new();
        for product in parts.products() {
            let Product::Nvfp4(layer) = product else {
                continue;
            };
            let size = (layer.rows(), layer.k());
            if !known.contains(&size) {
                known.push(size);
                for n in 1..=PASS {
                    let of_layer = layer.workspace_bytes(n, parts.kind.activation())?;
                    bytes = of_layer.max(bytes);
                }
            }
        }
        if bytes > 0 {
            parts.set_workspace(&Workspace::new(stream, bytes)?);
        }
        let rotations = rotations(config, most);
        let [cosines, sines] = &rotations;
        let shared = Shared {
            rotations: [stream.clone_htod(cosines)?, stream.clone_htod(sines)?],
            step: stream.alloc_zeros(1 + PASS)?,
            parts: stream.alloc_zeros(place.heads.part_elements(PASS))?,
            counters: stream.alloc_zeros(place.heads.counters(PASS))?,
            choosers: stream.alloc_zeros(2 * CHOOSERS * PASS)?,
            zeros: stream.alloc_zeros(PASS)?,
        };
        // From here on nobody writes weights: launches may read them early.
        stream.synchronize()?;
        Ok(Self {
            passes: HashMap::new(),
            parts,
            shared,
            place,
            most,
            position: 0,
            on_device: None,
            logits: Vec::new(),
            graphs: true,
            met: Met::default(),
        })
    }

    /// This model with graphs for steps, or with each launch by itself.
    #[must_use]
    pub fn with_graphs(mut self, graphs: bool) -> Self {
        self.passes.clear();
        self.graphs = graphs;
        self
    }

    /// The GPU's name.
    pub fn gpu(&self) -> &str {
        &self.place.gpu.name
    }

    /// The most roundings of a term in an NVFP4 layer `[m][k]` with `n` vectors, by the configs that dispatch chooses with
    /// a workspace as large as any asks for: for [`bounds`](crate::bounds).
    pub fn roundings(&self) -> Result<impl Fn(usize, usize, usize) -> u32 + use<>> {
        let workspace = Workspace::new(&self.place.stream, 64 << 20)?;
        let (gpu, activation) = (self.place.gpu.clone(), self.parts.kind.activation());
        let operands = Operands::new(activation, self.place.layout());
        Ok(move |m, k, n| {
            // SAFETY: nothing is launched.
            let options = unsafe { Options::new().chained() }.workspace(&workspace);
            let config = Shape::new(Dims { m, n, k, l: 1 }).and_then(|shape| {
                let choice = select(&shape, &operands, Target::Gpu(&gpu), &options)?;
                Ok(choice
                    .config
                    .map(|config| config.roundings(&shape, activation)))
            });
            config.ok().flatten().unwrap_or(u32::MAX)
        })
    }

    /// Tokens that the model knows.
    pub fn vocabulary(&self) -> usize {
        self.parts.head.rows()
    }

    /// Reads a pass's tokens, and leaves logits of the last ones, and their likeliest tokens, in the device's memory.
    fn pass(&mut self, tokens: &[u32], last: usize) -> Result<[usize; 2]> {
        let n = tokens.len();
        ensure!(
            n <= self.room(),
            "the text has more than {} tokens",
            self.most
        );
        ensure!((1..=PASS).contains(&n), "a pass has 1 to {PASS} tokens");
        let known = self.parts.table.len() / self.parts.hidden;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= known) {
            anyhow::bail!("there is no token {token}: the model has {known}");
        }
        if n != 1 || self.on_device != Some((self.position, tokens[0])) {
            self.set_step(tokens)?;
        }
        self.on_device = None;
        let key = [n, last];
        if !self.passes.contains_key(&key) {
            let is_many = |key: &&[usize; 2]| key[0] > CAPTURED;
            if self.passes.len() >= KEPT
                && let Some(old) = self.passes.keys().find(is_many).copied()
            {
                self.passes.remove(&old);
            }
            let pass = Pass::new(&self.place, &self.parts, n, last)?;
            self.passes.insert(key, pass);
        }
        let pass = self.passes.get_mut(&key).context("it was made")?;
        let (place, parts, shared) = (&self.place, &self.parts, &self.shared);
        let is_graph = self.graphs && n <= CAPTURED && last == n && !self.met.is_kept();
        if is_graph && pass.is_warm && pass.graph.is_none() {
            pass.graph = Some(capture(place, pass, parts, shared, Wanted::ALL)?);
        }
        match &pass.graph {
            Some(graph) if is_graph => graph.launch()?,
            _ => pass.enqueue(place, parts, shared, Wanted::ALL, &mut self.met)?,
        }
        pass.is_warm = true;
        self.position += n;
        Ok(key)
    }

    /// Writes the position and the tokens of the next pass.
    fn set_step(&mut self, tokens: &[u32]) -> Result<()> {
        let step: Vec<i32> = [self.position as u32]
            .iter()
            .chain(tokens)
            .map(|&value| value as i32)
            .collect();
        let to = &mut self.shared.step.slice_mut(..step.len());
        Ok(self.place.stream.memcpy_htod(&step, to)?)
    }

    /// Reads tokens in passes. The last pass leaves logits of its last token.
    fn passes(&mut self, tokens: &[u32]) -> Result<[usize; 2]> {
        ensure!(!tokens.is_empty(), "no token to read");
        ensure!(
            tokens.len() <= self.room(),
            "the text has more than {} tokens",
            self.most
        );
        let (before, rest) = tokens.split_at((tokens.len() - 1) / PASS * PASS);
        for some in before.chunks(PASS) {
            self.pass(some, 0)?;
        }
        self.pass(rest, 1)
    }

    fn logits_of(&mut self, key: [usize; 2]) -> Result<&[f32]> {
        let pass = &self.passes[&key];
        self.logits.resize(pass.logits.len(), 0.0);
        self.place
            .stream
            .memcpy_dtoh(&pass.logits, &mut self.logits)?;
        self.place.stream.synchronize()?;
        Ok(&self.logits)
    }

    /// Memory of a step of one token at a position, to be captured in other ways, and what it is enqueued with.
    pub(super) fn step(
        &mut self,
        position: usize,
        token: u32,
    ) -> Result<(&mut Pass, &Place, &Parts, &Shared)> {
        self.position = position;
        self.set_step(&[token])?;
        self.on_device = None;
        let pass = self.passes.get_mut(&[1, 1]).context("no step was made")?;
        Ok((pass, &self.place, &self.parts, &self.shared))
    }
}

/// A layer of experts.
pub(super) fn mixture(
    config: &Config,
    kind: Kind,
    router: Dense,
    experts: ExpertsOnDevice,
    bytes: usize,
) -> Result<FeedForward> {
    ensure!(
        kind == Kind::Nvfp4,
        "experts on a GPU multiply NVFP4 vectors: ask for {:?}, or for the CPU",
        Arithmetic::Nvfp4Vectors
    );
    let top = config.top_k(experts.count())?;
    // SAFETY: the weights are copied before the first call, as whoever makes a model waits for all copies. No kernel
    // writes them. All kernels wait for the launches before them.
    let experts = unsafe { experts.chained() };
    Ok(FeedForward::Moe {
        router,
        experts,
        top,
        normalised: config.norm_topk_prob,
        bytes,
    })
}

/// Refuses parts that do not fit each other, for which launches by address would be wrong.
fn check(place: &Place, parts: &Parts, config: &Config) -> Result<()> {
    let heads = &place.heads;
    let (hidden, attended) = (parts.hidden, heads.heads * heads.size);
    let fits = |what: &str, found: [usize; 2], expected: [usize; 2]| {
        ensure!(
            found == expected,
            "{what} has {found:?} rows and columns, and the config asks for {expected:?}"
        );
        Ok(())
    };
    let of = |product: &Product| [product.rows(), product.k()];
    let is_long = |what: &str, found: usize, expected: usize| {
        ensure!(
            found == expected,
            "{what} has {found} factors, not {expected}"
        );
        Ok(())
    };
    let mut between = None;
    for (number, Layer { of: layer, .. }) in parts.layers.iter().enumerate() {
        let name = |what: &str| format!("{what} of layer {number}");
        fits(&name("q, k, v"), of(&layer.qkv), [heads.width(), hidden])?;
        fits(&name("o"), of(&layer.output), [hidden, attended])?;
        is_long(&name("a norm"), layer.attention_norm.len(), hidden)?;
        is_long(&name("a norm"), layer.mlp_norm.len(), hidden)?;
        for norm in layer.head_norms.iter().flatten() {
            is_long(&name("a norm of heads"), norm.len(), heads.size)?;
        }
        match &layer.feed_forward {
            FeedForward::Mlp { gate_up, down } => {
                let width = *between.get_or_insert(down.k());
                fits(&name("gate and up"), of(gate_up), [2 * width, hidden])?;
                fits(&name("down"), of(down), [hidden, width])?;
            }
            FeedForward::Moe {
                router, experts, ..
            } => {
                let count = experts.count();
                let router = [router.rows(), router.k()];
                fits(&name("the router"), router, [count, hidden])?;
                let found = [experts.rows(), experts.k()];
                fits(&name("the experts"), found, [hidden, hidden])?;
            }
        }
    }
    is_long("the last norm", parts.norm.len(), hidden)?;
    ensure!(
        hidden > 0 && parts.table.len().is_multiple_of(hidden) && !parts.table.is_empty(),
        "a table of {} elements, of {hidden} a row",
        parts.table.len()
    );
    ensure!(parts.layers.len() == config.num_hidden_layers);
    let vocabulary = parts.table.len() / hidden;
    fits(
        "the head",
        of(&parts.head),
        [vocabulary, parts.copies * hidden],
    )
}

/// A pass as one CUDA graph.
pub(super) fn capture(
    place: &Place,
    pass: &mut Pass,
    parts: &Parts,
    shared: &Shared,
    wanted: Wanted,
) -> Result<CudaGraph> {
    let stream = &place.stream;
    stream.synchronize()?;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let enqueued = pass.enqueue(place, parts, shared, wanted, &mut Met::default());
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    // Ended whatever happened, or the stream would stay unusable.
    let graph = stream.end_capture(flags);
    enqueued?;
    graph?.context("nothing was captured")
}

impl Reader for DeviceModel {
    fn position(&self) -> usize {
        self.position
    }

    fn capacity(&self) -> usize {
        self.most
    }

    fn reset(&mut self) {
        self.position = 0;
    }

    fn truncate(&mut self, position: usize) -> Result<()> {
        ensure!(
            position <= self.position,
            "nothing was read from {position} on"
        );
        // The next tokens are written over the rest.
        self.position = position;
        Ok(())
    }

    fn met(&mut self) -> &mut Met {
        &mut self.met
    }

    fn read(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        let key = self.passes(tokens)?;
        self.logits_of(key)
    }

    fn read_all(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        let key = self.pass(tokens, tokens.len())?;
        self.logits_of(key)
    }

    /// The device chooses, and where there is one token it goes on with its choice: of a step only that comes back.
    fn likeliest(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        let key = self.pass(tokens, tokens.len())?;
        let chosen = self.place.stream.clone_dtoh(&self.passes[&key].chosen)?;
        self.place.stream.synchronize()?;
        let known = |id: &i32| u32::try_from(*id).context("the model's logits have a NaN");
        let chosen = chosen.iter().map(known).collect::<Result<Vec<u32>>>()?;
        if let [next] = chosen[..] {
            self.on_device = Some((self.position, next));
        }
        Ok(chosen)
    }
}
