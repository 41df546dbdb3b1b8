//! Experts in a device's memory.

use std::fmt::Debug;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, DevicePtr};

use super::Experts;
use crate::check;
use crate::context::{driver_error, make_current};
use crate::device::{Kept, Taken, gpu, output, read};
use crate::dispatch::{self, Options};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::kernel::combine::Combine;
use crate::linear::{MatricesOnDevice, with_bias};
use crate::memory::Device;
use crate::operands::Operands;
use crate::output::Output;
use crate::quantized::QuantizedVectors;
use crate::raw;
use crate::shape::{Dims, Shape, Strides};
use crate::tensor::{DenseVectors, Vectors};
use crate::types::{Activation, FloatType, RowOrder, ScaleLayout};
use crate::workspace::Workspace;

/// [`Experts`] in a device's memory: each token and expert of it is a batch of one vector. Five kernels a call of few
/// tokens: the vectors are quantised, a copy for each expert; gate and up; the [`Gate`], and quantised again; down; the
/// weighted sum. Results between the layers are f32. With one token, where a product is [`ring`](crate::Kernel::Ring)'s
/// and its rows have no more than 2048 elements, it quantises its vectors when it reads them, behind the gate. Then
/// there is no kernel for that: three kernels a call, or four. The bits are the same.
///
/// Which experts a token has is read on the device. Ids and weights may change between calls and between replays of a
/// CUDA graph. An id of -1 is no expert: it adds nothing. Another id that is none of the experts' makes its token's
/// result NaN, and nothing is read for it.
///
/// A call allocates nothing, synchronises nothing, and can be [captured into a CUDA graph](crate#cuda-graphs), once it
/// was [prepared](Self::prepare), or made, with these buffers and ids. Products of 64 such pairs are kept, then the oldest
/// is prepared again when it comes. What a call writes between the layers lies in [`ExpertsBuffers`], which layers of one
/// size share, in calls on one stream. With more tokens, where tokens are expected to share experts, products are made
/// for bundles of tokens that chose the same expert, which is read once for a bundle, and a product is three or four
/// kernels. An output's rounding may then depend on what all tokens chose.
///
/// ```no_run
/// use nvfp4_gemv::cudarc::driver::CudaContext;
/// use nvfp4_gemv::{Experts, Linear, Mlp, Output, ScaleLayout, Vectors, half::bf16};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let layer = |rows, k| Linear::from_dense(&vec![1.0f32; rows * k], rows, k);
/// let expert = || Ok::<_, Box<dyn std::error::Error>>(
///     Mlp::new(layer(256, 512)?, layer(256, 512)?, layer(512, 256)?)?);
/// let experts = Experts::new([expert()?, expert()?, expert()?])?;
/// let experts = experts.on_device(&stream, ScaleLayout::Linear)?;
/// let mut buffers = experts.buffers(&stream, 1, 2)?; // one token of two experts
///
/// let x = stream.clone_htod(&vec![bf16::ONE; 512])?;
/// let (ids, weights) = (stream.clone_htod(&[2i32, 0])?, stream.clone_htod(&[0.75f32, 0.25])?);
/// let mut y = stream.alloc_zeros::<bf16>(512)?;
/// let (vectors, output) = (Vectors::on_device(x.as_view()), Output::on_device(y.as_view_mut()));
/// experts.forward(&stream, &mut buffers, &vectors, &ids.as_view(), &weights.as_view(), output)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExpertsOnDevice {
    gate_up: MatricesOnDevice,
    down: MatricesOnDevice,
    gate: Gate,
    order: RowOrder,
    chained: bool,
    kept: Arc<Kept>,
}

/// Memory that [`ExpertsOnDevice::forward`] writes between the layers, for a number of tokens and of experts of each.
#[derive(Debug)]
pub struct ExpertsBuffers {
    tokens: usize,
    slots: usize,
    /// Elements of a result.
    rows: usize,
    x: QuantizedVectors,
    sums: CudaSlice<f32>,
    between: QuantizedVectors,
    results: CudaSlice<f32>,
    /// Whether gate and up, and down, quantise their vectors when they read them.
    on_read: [bool; 2],
    /// Whether gate and up, and down, bundle tokens; and a workspace for those that do.
    bundles: [bool; 2],
    workspace: Option<Workspace>,
}

impl Experts {
    /// These experts in a device's memory, their block scales in the layout that is asked for: copied now, on `stream`,
    /// as [`Linear::on_device`](crate::Linear::on_device) does.
    ///
    /// # Errors
    /// [`Error::HasColumnAlpha`] for layers with factors of columns. [`Error::LayersMismatch`] for experts whose layers
    /// have other sizes than the first one's, [`Error::ExpertsDiffer`] for other orders of rows or gates. Errors that CUDA reports of memory, copies and
    /// the kernel that changes the layout.
    pub fn on_device(
        &self,
        stream: &Arc<CudaStream>,
        layout: ScaleLayout,
    ) -> Result<ExpertsOnDevice> {
        let first = &self.experts[0];
        let (gate, order) = (first.gate(), first.gate_up().1);
        for expert in &self.experts[1..] {
            let (found, expected) = (expert.down().k(), first.down().k());
            check::fits("the K of an expert's down", found, "expert 0's", expected)?;
            if (expert.gate(), expert.gate_up().1) != (gate, order) {
                return Err(Error::ExpertsDiffer);
            }
        }
        let gate_ups: Vec<_> = (self.experts.iter())
            .map(|expert| expert.gate_up().0)
            .collect();
        let downs: Vec<_> = (self.experts.iter())
            .map(|expert| vec![expert.down()])
            .collect();
        let gate_up = MatricesOnDevice::upload(stream, layout, &gate_ups)?;
        let down = MatricesOnDevice::upload(stream, layout, &downs)?;
        ExpertsOnDevice::new(gate_up, order, down, gate)
    }
}

impl ExpertsOnDevice {
    /// Experts of matrices that are there: those of gate and up have the rows of both, in an order.
    ///
    /// # Errors
    /// [`Error::LayersMismatch`] for matrices that do not fit each other, or are not equally many; [`Error::Factor`] for
    /// a gate's number.
    pub fn new(
        gate_up: MatricesOnDevice,
        order: RowOrder,
        down: MatricesOnDevice,
        gate: Gate,
    ) -> Result<Self> {
        gate.check()?;
        let (both, last) = (&gate_up.shape, &down.shape);
        let twice = last.k().saturating_mul(2);
        check::fits("gate and up's M", both.m(), "twice down's K", twice)?;
        check::fits(
            "the number of gates and ups",
            both.l(),
            "the number of downs",
            last.l(),
        )?;
        Ok(Self {
            gate_up,
            down,
            gate,
            order,
            chained: false,
            kept: Arc::default(),
        })
    }

    /// These experts with chained launches: as [`Options::chained`]. Ids, routing weights and vectors may be what a
    /// launch of the chain writes.
    ///
    /// # Safety
    /// As [`Options::chained`]'s, for every later call of these experts and of their clones; but for the ids, which are
    /// [late](crate::Weights::late). And the launch before such a call waits for those before it, as
    /// [`QuantizedVectors::chained`] says.
    #[must_use]
    pub unsafe fn chained(self) -> Self {
        Self {
            chained: true,
            kept: Arc::default(),
            ..self
        }
    }

    /// Memory for what lies between the layers, for calls with so many tokens and `slots` experts for each.
    ///
    /// # Errors
    /// Sizes past the address range; errors that CUDA reports of the allocations; with many tokens the per-thread default
    /// stream, as [`Workspace::new`] says.
    pub fn buffers(
        &self,
        stream: &Arc<CudaStream>,
        tokens: usize,
        slots: usize,
    ) -> Result<ExpertsBuffers> {
        let error = |error| driver_error("allocating buffers of experts", error);
        let quantized = |of: &MatricesOnDevice| {
            let shape = of_calls(of, tokens, slots)?;
            let vectors = QuantizedVectors::new(stream, &shape, ScaleLayout::Linear)?;
            match self.chained {
                // SAFETY: whoever called `chained` has promised more.
                true => unsafe { vectors.chained_before_late() },
                false => Ok(vectors),
            }
        };
        let results = |of: &MatricesOnDevice| {
            let count = of_calls(of, tokens, slots)?.outputs();
            stream.alloc_zeros::<f32>(count.max(1)).map_err(error)
        };
        let bytes = self.bundling_bytes(stream, tokens, slots)?;
        Ok(ExpertsBuffers {
            tokens,
            slots,
            rows: self.rows(),
            x: match slots {
                0 => quantized(&self.gate_up)?,
                _ => quantized(&self.gate_up)?.with_copies(slots)?,
            },
            sums: results(&self.gate_up)?,
            between: quantized(&self.down)?,
            results: results(&self.down)?,
            on_read: self.on_read(stream, tokens, slots, bytes)?,
            bundles: bytes.map(|bytes| bytes != 0),
            workspace: match bytes.into_iter().max() {
                Some(bytes @ 1..) => Some(Workspace::new(stream, bytes)?),
                _ => None,
            },
        })
    }

    /// Enqueues the vectors `[tokens][K]`, f16, bf16 or f32, whose rows may be apart, into results `[tokens][M of
    /// down]`, with what the [`Output`] adds. `ids` and `weights` are `[tokens][slots]`, as the buffers were made for.
    /// The weighted results of a token are summed in f32, in the order of its slots. A slot without an expert counts as
    /// nothing, whatever its weight is.
    ///
    /// # Errors
    /// As [`QuantizedVectors::quantize`]'s and [`gemv_on_device`](crate::gemv_on_device)'s. Ids and weights of another
    /// length. [`Error::BuffersMismatch`] for buffers of experts of
    /// another size, [`Error::BuffersChained`] for those of chained ones where these are not.
    pub fn forward(
        &self,
        stream: &Arc<CudaStream>,
        buffers: &mut ExpertsBuffers,
        x: &Vectors<'_, Device>,
        ids: &CudaView<'_, i32>,
        weights: &CudaView<'_, f32>,
        y: Output<'_, Device>,
    ) -> Result<()> {
        self.call(stream, buffers, x, ids, weights, y, true)
    }

    /// Checks a call with these operands and prepares its products, and enqueues nothing: before a capture. With
    /// feature `jit` make a call instead: this does not compile the quantiser, nor what follows the products.
    ///
    /// # Errors
    /// As [`forward`](Self::forward)'s.
    pub fn prepare(
        &self,
        stream: &Arc<CudaStream>,
        buffers: &mut ExpertsBuffers,
        x: &Vectors<'_, Device>,
        ids: &CudaView<'_, i32>,
        weights: &CudaView<'_, f32>,
        y: Output<'_, Device>,
    ) -> Result<()> {
        self.call(stream, buffers, x, ids, weights, y, false)
    }

    #[allow(clippy::too_many_arguments, reason = "a call's operands, and how")]
    fn call(
        &self,
        stream: &Arc<CudaStream>,
        buffers: &mut ExpertsBuffers,
        x: &Vectors<'_, Device>,
        ids: &CudaView<'_, i32>,
        weights: &CudaView<'_, f32>,
        mut y: Output<'_, Device>,
        launch: bool,
    ) -> Result<()> {
        let ExpertsBuffers {
            tokens,
            slots,
            rows,
            x: own,
            sums,
            between,
            results,
            on_read,
            bundles,
            workspace,
        } = buffers;
        let workspaces = bundles.map(|bundles| workspace.as_ref().filter(|_| bundles));
        let (tokens, slots, on_read) = (*tokens, *slots, *on_read);
        let found = [own.shape().k(), between.shape().k(), *rows];
        let needed = [self.k(), self.down.shape.k(), self.rows()];
        if found != needed {
            return Err(Error::BuffersMismatch { found, needed });
        }
        if own.is_chained() && !self.chained {
            return Err(Error::BuffersChained);
        }
        check::len("ids of experts", "elements", ids.len(), tokens * slots)?;
        check::len(
            "weights of experts",
            "elements",
            weights.len(),
            tokens * slots,
        )?;
        let out = Shape::new(Dims {
            m: self.rows(),
            n: tokens,
            k: self.k(),
            l: 1,
        })?;
        let gpu = gpu(stream.context().ordinal())?;
        // Operands that do not fit are refused before anything is enqueued, and before the output is written what a
        // product refuses when it is prepared.
        let x = &of_tokens(x, tokens, self.k())?;
        if slots > 0 {
            own.check(stream, x)?;
        }
        let (output, _output) = output(stream, &out, &mut y)?;
        let (weights, _weights) = read("weights of experts", weights, stream)?;
        let (address_of_ids, _ids) = read("ids of experts", ids, stream)?;
        let combine = Combine {
            slots,
            element: FloatType::F32,
            inputs: results.device_ptr(stream).0,
            weights,
            ids: address_of_ids,
            output,
            chained: self.chained && gpu.has_dependent_launches(),
        };
        raw::check_combine(&out, &combine)?;
        if slots > 0 && tokens > 0 {
            let ids = ids.slice(..tokens * slots);
            if launch && !on_read[0] {
                own.quantize(stream, x)?;
            }
            let shape = of_calls(&self.gate_up, tokens, slots)?;
            let to = sums.slice_mut(..shape.outputs());
            let (copies, gate) = (slots, None);
            let quantized = own.vectors();
            let vectors = match on_read[0] {
                true => (x, Taken::OnRead { copies, gate }),
                false => (&quantized, Taken::AsTheyAre),
            };
            self.product(
                stream,
                &self.gate_up,
                &shape,
                &ids,
                vectors,
                to,
                workspaces[0],
                tokens,
                launch,
            )?;
            let sums = Vectors::on_device(sums.slice(..shape.outputs()));
            if launch && !on_read[1] {
                between.quantize_gated(stream, &sums, self.gate, self.order, None)?;
            }
            let shape = of_calls(&self.down, tokens, slots)?;
            let to = results.slice_mut(..shape.outputs());
            let (copies, gate) = (1, Some((self.gate, self.order)));
            let quantized = between.vectors();
            let vectors = match on_read[1] {
                true => (&sums, Taken::OnRead { copies, gate }),
                false => (&quantized, Taken::AsTheyAre),
            };
            self.product(
                stream,
                &self.down,
                &shape,
                &ids,
                vectors,
                to,
                workspaces[1],
                tokens,
                launch,
            )?;
        }
        if !launch {
            return Ok(());
        }
        let (_, _inputs) = results.device_ptr(stream);
        make_current(stream)?;
        // SAFETY: the stream's context is current. The views' lengths were checked, and the buffers were made for these
        // numbers. cudarc's events, recorded by the guards, keep them from being freed or reused before the enqueued
        // work has run.
        unsafe { raw::combine(&out, &combine, stream.cu_stream().cast()) }
    }

    fn options(&self) -> Options<'static> {
        match self.chained {
            // SAFETY: whoever called `chained` has promised this for all calls.
            true => unsafe { Options::new().chained() },
            false => Options::new(),
        }
    }

    /// Whether gate and up, and down, quantise their vectors when they read them.
    fn on_read(
        &self,
        stream: &CudaStream,
        tokens: usize,
        slots: usize,
        bundling: [u64; 2],
    ) -> Result<[bool; 2]> {
        // Each CTA quantises its batch's whole vector. Where this was measured with longer vectors, or more tokens, it took
        // as long as kernels for them, or longer: docs/notes/experts.md.
        const MOST: usize = 2048;
        let gpu = gpu(stream.context().ordinal())?;
        let on_read = |of: &MatricesOnDevice, bundling| {
            let (shape, operands) = (of_calls(of, tokens, slots)?, operands(of, tokens));
            let short = shape.k() <= MOST;
            let same = || dispatch::is_same_on_read(&shape, &operands, gpu, &self.options());
            Ok::<_, Error>(bundling == 0 && tokens == 1 && slots > 0 && short && same())
        };
        Ok([
            on_read(&self.gate_up, bundling[0])?,
            on_read(&self.down, bundling[1])?,
        ])
    }

    /// Bytes of a workspace for each product that bundles tokens; 0 for one that does not.
    fn bundling_bytes(&self, stream: &CudaStream, tokens: usize, slots: usize) -> Result<[u64; 2]> {
        let gpu = gpu(stream.context().ordinal())?;
        let bytes = |of: &MatricesOnDevice| {
            let shape = of_calls(of, tokens, slots)?;
            dispatch::bundling_bytes(&shape, &operands(of, tokens), gpu, &self.options())
        };
        Ok([bytes(&self.gate_up)?, bytes(&self.down)?])
    }

    /// A product of matrices that ids select.
    #[allow(clippy::too_many_arguments, reason = "a call's operands, and how")]
    fn product(
        &self,
        stream: &Arc<CudaStream>,
        of: &MatricesOnDevice,
        shape: &Shape,
        ids: &CudaView<'_, i32>,
        x: (&Vectors<'_, Device>, Taken),
        y: cudarc::driver::CudaViewMut<'_, f32>,
        workspace: Option<&Workspace>,
        tokens: usize,
        launch: bool,
    ) -> Result<()> {
        let all = of.weights()?;
        let weights = all.select_on_device(ids.slice(..)).late();
        let weights = match tokens {
            1 => weights.distinct(),
            _ => weights,
        };
        let y = with_bias(Output::on_device(y), of.bias(), |y, bias| {
            y.with_bias_on_device(bias)
        })?;
        let options = self.options().workspace(workspace);
        self.kept
            .call(stream, shape, &weights, x, y, &options, launch)?;
        Ok(())
    }

    /// How many experts there are.
    pub fn count(&self) -> usize {
        self.down.shape.l()
    }

    /// Elements of a vector.
    pub fn k(&self) -> usize {
        self.gate_up.shape.k()
    }

    /// Elements of a result.
    pub fn rows(&self) -> usize {
        self.down.shape.m()
    }
}

/// Vectors `[tokens][K]` as vectors of a batch for each token, as the quantiser reads them.
fn of_tokens<'x>(
    x: &'x Vectors<'_, Device>,
    tokens: usize,
    k: usize,
) -> Result<Vectors<'x, Device>> {
    fn dense<'x, T: Debug>(
        x: &'x DenseVectors<'_, T, Device>,
        shape: &Shape,
    ) -> Result<DenseVectors<'x, T, Device>> {
        let batch = x.resolve(shape)?.row;
        let strides = Strides {
            row: shape.k(),
            batch,
        };
        Ok(DenseVectors::new(x.values.slice(..)).with_strides(strides))
    }
    let shape = &Shape::matrix(1, k)?.with_vectors(tokens)?;
    Ok(match x {
        Vectors::Nvfp4(_) => return Err(Error::AlreadyNvfp4),
        Vectors::F16(x) => Vectors::F16(dense(x, shape)?),
        Vectors::Bf16(x) => Vectors::Bf16(dense(x, shape)?),
        Vectors::F32(x) => Vectors::F32(dense(x, shape)?),
    })
}

/// A product's operands, as dispatch knows them.
fn operands(of: &MatricesOnDevice, tokens: usize) -> Operands {
    Operands {
        select: true,
        matrices: of.shape.l(),
        distinct: tokens == 1,
        late: true,
        ..Operands::new(Activation::Nvfp4, of.layout)
    }
}

/// The shape of a product with a vector for each slot of each token.
fn of_calls(of: &MatricesOnDevice, tokens: usize, slots: usize) -> Result<Shape> {
    let (m, k) = (of.shape.m(), of.shape.k());
    let l = tokens.saturating_mul(slots);
    Shape::new(Dims { m, n: 1, k, l })
}
