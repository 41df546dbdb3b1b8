//! Linear layers on a GPU, and the vectors that they read.

use anyhow::{Result, bail, ensure};
use nvfp4_gemv::cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DevicePtr, DeviceRepr};
use nvfp4_gemv::format::{e2m1, e4m3};
use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::{
    Activation, BLOCK, Device, Dims, FloatType, Gate, LinearOnDevice, Output, QuantizedVectors,
    RowOrder, Shape, Vectors, Workspace,
};

use super::gpu::Place;
use super::kernels;
use crate::met::Met;
use crate::weights::{Arithmetic, Product as HostProduct};

/// The vectors that NVFP4 layers multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    Bf16,
    F16,
    Nvfp4,
}

impl Kind {
    pub(super) fn of(arithmetic: Arithmetic) -> Result<Self> {
        match arithmetic {
            Arithmetic::Nvfp4 => Ok(Self::F32),
            Arithmetic::Nvfp4Bf16 => Ok(Self::Bf16),
            Arithmetic::Nvfp4F16 => Ok(Self::F16),
            Arithmetic::Nvfp4Vectors => Ok(Self::Nvfp4),
            other => bail!("{other:?} is not computed on a GPU"),
        }
    }

    pub(super) fn activation(self) -> Activation {
        match self {
            Self::F32 => Activation::F32,
            Self::Bf16 => Activation::Bf16,
            Self::F16 => Activation::F16,
            Self::Nvfp4 => Activation::Nvfp4,
        }
    }
}

/// A linear layer.
pub(super) enum Product {
    Nvfp4(LinearOnDevice),
    Dense(Dense),
}

/// A matrix that is not NVFP4, in bf16 where that is exact, and in f32 otherwise.
pub(super) struct Dense {
    weights: Elements,
    rows: usize,
    k: usize,
}

enum Elements {
    F32(CudaSlice<f32>),
    Bf16(CudaSlice<bf16>),
}

impl Product {
    /// Copies a layer to the device.
    pub(super) fn new(place: &Place, of: &HostProduct) -> Result<Self> {
        if let Some(layer) = of.on_host() {
            let is_invariant = layer.is_batch_invariant();
            let layer = layer.on_device(&place.stream, place.layout())?;
            let layer = layer.with_batch_invariance(is_invariant);
            // SAFETY: the layer is copied before the first call, as whoever loads a model waits for all copies. No
            // kernel writes it.
            return Ok(Self::Nvfp4(unsafe { layer.chained() }));
        }
        let HostProduct::Dense(layer) = of else {
            bail!("a layer that is not NVFP4 and not dense is not computed on a GPU");
        };
        Ok(Self::Dense(Dense::new(place, layer)?))
    }

    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Nvfp4(layer) => layer.rows(),
            Self::Dense(dense) => dense.rows,
        }
    }

    pub(super) fn k(&self) -> usize {
        match self {
            Self::Nvfp4(layer) => layer.k(),
            Self::Dense(dense) => dense.k,
        }
    }

    /// Bytes of weights that a step reads.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Nvfp4(layer) => layer.rows() * layer.k() / 16 * 9,
            Self::Dense(dense) => dense.bytes(),
        }
    }

    /// Gives this layer a workspace, if it takes one.
    pub(super) fn set_workspace(&mut self, workspace: &Workspace) {
        if let Self::Nvfp4(layer) = self {
            *layer = layer.clone().with_workspace(workspace.clone());
        }
    }

    /// The kind of vectors that it reads, in a model of a kind.
    pub(super) fn reads(&self, kind: Kind) -> Kind {
        match self {
            Self::Nvfp4(_) => kind,
            Self::Dense(_) => Kind::F32,
        }
    }

    /// Enqueues y = W x of `n` vectors, or y += W x.
    pub(super) fn multiply(
        &self,
        place: &Place,
        kind: Kind,
        x: &Input,
        n: usize,
        mut y: CudaViewMut<'_, f32>,
        adds: bool,
    ) -> Result<()> {
        match self {
            Self::Nvfp4(layer) => {
                let to = Output::on_device(y);
                let to = if adds { to.accumulating() } else { to };
                layer.forward(&place.stream, &x.vectors(kind)?, n, to)?;
            }
            Self::Dense(dense) => {
                ensure!(y.len() == n * dense.rows && x.plain.len() == n * dense.k);
                let to = place.address(&y.slice_mut(..));
                let addresses = [dense.address(place), place.address(&x.plain), to];
                let sizes = [n, dense.rows, dense.k];
                let launch = kernels::dense(addresses, sizes, dense.is_halves(), adds);
                // SAFETY: the matrix has these sizes, and the vectors' lengths were compared.
                unsafe { place.enqueue(&launch, false) }?;
            }
        }
        Ok(())
    }
}

impl Dense {
    /// Copies a layer to the device.
    pub(super) fn new(place: &Place, layer: &candle_nn::Linear) -> Result<Self> {
        ensure!(
            layer.bias().is_none(),
            "the bias of a layer that is not NVFP4 is not computed on a GPU"
        );
        let (rows, k) = layer.weight().dims2()?;
        let values = layer.weight().flatten_all()?.to_vec1::<f32>()?;
        ensure!(
            k > 0 && k.is_multiple_of(8),
            "a dense matrix of {rows} x {k} is not computed on a GPU: the second number must be a multiple of 8"
        );
        let halves: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
        let is_exact = halves.iter().zip(&values).all(|(a, b)| a.to_f32() == *b);
        let weights = match is_exact {
            true => Elements::Bf16(place.stream.clone_htod(&halves)?),
            false => Elements::F32(place.stream.clone_htod(&values)?),
        };
        Ok(Self { weights, rows, k })
    }

    /// Of elements that are there.
    pub(super) fn of_bf16(weights: CudaSlice<bf16>, rows: usize, k: usize) -> Self {
        let weights = Elements::Bf16(weights);
        Self { weights, rows, k }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// Whether elements are bf16.
    pub(super) fn is_halves(&self) -> bool {
        matches!(self.weights, Elements::Bf16(_))
    }

    pub(super) fn address(&self, place: &Place) -> u64 {
        match &self.weights {
            Elements::F32(of) => place.address(of),
            Elements::Bf16(of) => place.address(of),
        }
    }

    fn bytes(&self) -> usize {
        self.rows * self.k * if self.is_halves() { 2 } else { 4 }
    }
}

/// Numbers of 16 bits.
enum Halves {
    Bf16(CudaSlice<bf16>),
    F16(CudaSlice<f16>),
}

/// Vectors `[n][k]` that a layer reads, of each kind that one of the model's may ask for.
pub(super) struct Input {
    n: usize,
    k: usize,
    pub(super) plain: CudaSlice<f32>,
    halves: Option<Halves>,
    nvfp4: Option<QuantizedVectors>,
}

impl Input {
    pub(super) fn new(place: &Place, kind: Kind, n: usize, k: usize) -> Result<Self> {
        let stream = &place.stream;
        let halves = match kind {
            Kind::F32 | Kind::Nvfp4 => None,
            Kind::Bf16 => Some(Halves::Bf16(stream.alloc_zeros(n * k)?)),
            Kind::F16 => Some(Halves::F16(stream.alloc_zeros(n * k)?)),
        };
        let nvfp4 = (kind == Kind::Nvfp4).then(|| -> Result<_> {
            let shape = Shape::new(Dims { m: 0, n, k, l: 1 })?;
            let vectors = QuantizedVectors::new(stream, &shape, place.layout())?;
            // SAFETY: the example's own kernels wait for the launches before them, as those of the library do.
            Ok(unsafe { vectors.chained() }?)
        });
        Ok(Self {
            n,
            k,
            plain: stream.alloc_zeros(n * k)?,
            halves,
            nvfp4: nvfp4.transpose()?,
        })
    }

    fn vectors(&self, kind: Kind) -> Result<Vectors<'_, Device>> {
        Ok(match (kind, &self.halves, &self.nvfp4) {
            (Kind::F32, ..) => Vectors::on_device(self.plain.as_view()),
            (Kind::Bf16, Some(Halves::Bf16(of)), _) => Vectors::on_device(of.as_view()),
            (Kind::F16, Some(Halves::F16(of)), _) => Vectors::on_device(of.as_view()),
            (Kind::Nvfp4, _, Some(nvfp4)) => nvfp4.vectors(),
            _ => bail!("no vectors of this kind were made"),
        })
    }

    /// Where a kernel writes for a layer, and as what. NVFP4 is [made](Self::quantize) of f32.
    pub(super) fn target(&self, place: &Place, kind: Kind, of: &Product) -> (u64, FloatType) {
        match (of.reads(kind), &self.halves) {
            (Kind::Bf16, Some(Halves::Bf16(of))) => (place.address(of), FloatType::Bf16),
            (Kind::F16, Some(Halves::F16(of))) => (place.address(of), FloatType::F16),
            _ => (place.address(&self.plain), FloatType::F32),
        }
    }

    /// Enqueues the norm of f32 `[n][k / copies]`, for a layer.
    pub(super) fn norm(
        &mut self,
        place: &Place,
        kind: Kind,
        of: &Product,
        xs: CudaView<'_, f32>,
        factors: &CudaSlice<f32>,
        copies: usize,
    ) -> Result<()> {
        let epsilon = place.heads.epsilon;
        let hidden = factors.len();
        ensure!(xs.len() == self.n * hidden && self.k == copies * hidden);
        if let (Kind::Nvfp4, 1, Some(nvfp4)) = (of.reads(kind), copies, &mut self.nvfp4) {
            let factors = Vectors::on_device(factors.as_view());
            let xs = Vectors::on_device(xs);
            return Ok(nvfp4.quantize_normed(&place.stream, &xs, &factors, epsilon, None)?);
        }
        let (to, element) = self.target(place, kind, of);
        let addresses = [place.address(&xs), place.address(factors), to];
        let launch = kernels::norm(addresses, epsilon, [self.n, hidden, copies], element);
        // SAFETY: the lengths were compared, and those of `self` are its own.
        unsafe { place.enqueue(&launch, false) }?;
        self.quantize(place, kind, of)
    }

    /// Enqueues what becomes of the results of gate and up, f32 `[n][2 k]`, for a layer.
    pub(super) fn gate(
        &mut self,
        place: &Place,
        kind: Kind,
        of: &Product,
        both: &CudaSlice<f32>,
    ) -> Result<()> {
        ensure!(both.len() == 2 * self.n * self.k);
        if let (Kind::Nvfp4, Some(nvfp4)) = (of.reads(kind), &mut self.nvfp4) {
            let both = Vectors::on_device(both.as_view());
            let (gate, order) = (Gate::Silu, RowOrder::Stacked);
            return Ok(nvfp4.quantize_gated(&place.stream, &both, gate, order, None)?);
        }
        let (to, element) = self.target(place, kind, of);
        let launch = kernels::gate([place.address(both), to], [self.n, self.k], element);
        // SAFETY: the length was compared, and those of `self` are its own.
        unsafe { place.enqueue(&launch, false) }
    }

    /// Enqueues the quantisation of what a kernel has written for a layer, if that reads NVFP4.
    pub(super) fn quantize(&mut self, place: &Place, kind: Kind, of: &Product) -> Result<()> {
        if let (Kind::Nvfp4, Some(nvfp4)) = (of.reads(kind), &mut self.nvfp4) {
            nvfp4.quantize(&place.stream, &Vectors::on_device(self.plain.as_view()))?;
        }
        Ok(())
    }

    /// Keeps the vectors of a kind, if that was asked for.
    pub(super) fn keep(&self, place: &Place, kind: Kind, met: &mut Met) -> Result<()> {
        if !met.is_kept() {
            return Ok(());
        }
        match (kind, &self.halves, &self.nvfp4) {
            (Kind::Bf16, Some(Halves::Bf16(of)), _) => {
                met.add(read(place, of)?.iter().map(|x| x.to_f64()));
            }
            (Kind::F16, Some(Halves::F16(of)), _) => {
                met.add(read(place, of)?.iter().map(|x| x.to_f64()));
            }
            (Kind::Nvfp4, _, Some(of)) => {
                let (codes, scales) = (read(place, &of.codes())?, read(place, &of.scales())?);
                let globals = read(place, &of.global_scales())?;
                met.add((0..self.n * self.k).map(|at| {
                    let (row, i) = (at / self.k, at % self.k);
                    let scale = scales[of.layout().offset(row, i / BLOCK, self.k / BLOCK)];
                    let code = e2m1::decode(e2m1::unpack(&codes, at));
                    f64::from(code) * f64::from(e4m3::decode(scale)) * f64::from(globals[row])
                }));
            }
            _ => met.add(read(place, &self.plain)?.into_iter().map(f64::from)),
        }
        Ok(())
    }
}

/// What a buffer has, when all before is done.
fn read<T: DeviceRepr>(place: &Place, of: &impl DevicePtr<T>) -> Result<Vec<T>> {
    let values = place.stream.clone_dtoh(of)?;
    place.stream.synchronize()?;
    Ok(values)
}
