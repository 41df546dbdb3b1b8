//! The MLP of a decoder layer.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, D, Error, Layout, Module, Result, Shape, Tensor};
use candle_nn::ops::sigmoid;
use nvfp4_gemv::{Gate, Mlp};

use crate::linear::{Nvfp4Linear, apply};
use crate::rows::{Rows, Size};

/// The MLP of a decoder layer, `down · (silu(gate · x) * (up · x))`, as Llama, Qwen and Mistral have it, or with
/// another [`Gate`] between. It is a module of tensors `[.., K]`, whose results `[.., M of down]` have the same type. A
/// clone shares the weights.
///
/// [`Nvfp4Builder::mlp`](crate::Nvfp4Builder::mlp) loads one. On the CPU it is the library's [`Mlp`], whose weights stay
/// in the files and whose results between the layers are f32: tensors and errors are as
/// [`Nvfp4Linear`](crate::Nvfp4Linear)'s. On CUDA gate and up are one launch, and candle computes what is between, in
/// the tensors' type.
#[derive(Clone, Debug)]
pub struct Nvfp4Mlp {
    layers: Layers,
}

#[derive(Clone, Debug)]
enum Layers {
    Host(HostMlp),
    /// Gate and up, and down.
    Joined(Arc<[Nvfp4Linear; 2]>, Gate),
}

impl From<Mlp> for Nvfp4Mlp {
    /// On the CPU.
    fn from(mlp: Mlp) -> Self {
        let layers = Layers::Host(HostMlp(mlp));
        Self { layers }
    }
}

impl Nvfp4Mlp {
    /// Of gate and up as one layer, whose first half of rows is gate's, and down: on their device, which may be the CPU.
    /// The gate is [`Gate::Silu`].
    ///
    /// # Errors
    /// [`nvfp4_gemv::Error::LayersMismatch`] for layers that do not fit each other.
    pub fn joined(gate_up: Nvfp4Linear, down: Nvfp4Linear) -> crate::Result<Self> {
        let (found, expected) = (gate_up.rows(), 2 * down.k());
        if found != expected {
            return Err(nvfp4_gemv::Error::LayersMismatch {
                dimension: "gate and up's M",
                found,
                of: "twice down's K",
                expected,
            }
            .into());
        }
        let layers = Layers::Joined(Arc::new([gate_up, down]), Gate::Silu);
        Ok(Self { layers })
    }

    /// This MLP with another gate.
    ///
    /// # Errors
    /// [`nvfp4_gemv::Error::Factor`] for a gate's number that is not positive and finite.
    pub fn with_gate(self, gate: Gate) -> crate::Result<Self> {
        gate.check()?;
        let layers = match self.layers {
            Layers::Host(HostMlp(mlp)) => Layers::Host(HostMlp(mlp.with_gate(gate)?)),
            Layers::Joined(layers, _) => Layers::Joined(layers, gate),
        };
        Ok(Self { layers })
    }

    /// The library's MLP, of one on the CPU that was made of it: for calls without tensors.
    pub fn on_host(&self) -> Option<&Mlp> {
        match &self.layers {
            Layers::Host(HostMlp(mlp)) => Some(mlp),
            Layers::Joined(..) => None,
        }
    }

    /// Elements of a vector.
    pub fn k(&self) -> usize {
        match &self.layers {
            Layers::Host(HostMlp(mlp)) => mlp.k(),
            Layers::Joined(layers, _) => layers[0].k(),
        }
    }

    /// Elements of a result.
    pub fn rows(&self) -> usize {
        match &self.layers {
            Layers::Host(HostMlp(mlp)) => mlp.rows(),
            Layers::Joined(layers, _) => layers[1].rows(),
        }
    }
}

impl Module for Nvfp4Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match &self.layers {
            Layers::Host(mlp) => apply(xs, mlp),
            Layers::Joined(layers, gate) => {
                let [gate_up, down] = &**layers;
                down.forward(&between(*gate, &gate_up.forward(xs)?)?)
            }
        }
    }
}

/// Of results `[.., gate and up]`, what the gate makes of them, in their type.
pub(crate) fn between(of: Gate, gate_up: &Tensor) -> Result<Tensor> {
    let half = gate_up.dim(D::Minus1)? / 2;
    let gate = gate_up.narrow(D::Minus1, 0, half)?;
    let up = gate_up.narrow(D::Minus1, half, half)?;
    match of {
        Gate::Silu => gate.silu()? * up,
        Gate::GeluTanh => gate.gelu()? * up,
        Gate::Clamped { alpha, limit } => {
            let limit = f64::from(limit);
            // Not `minimum`, which makes a number of NaN on CUDA.
            let at_most = |x: &Tensor| {
                x.gt(limit)?
                    .where_cond(&x.ones_like()?.affine(limit, 0.0)?, x)
            };
            let gate = at_most(&gate)?;
            let up = at_most(&at_most(&up)?.neg()?)?.neg()?;
            let sigma = sigmoid(&gate.affine(f64::from(alpha), 0.0)?)?;
            (gate * sigma)? * up.affine(1.0, 1.0)?
        }
        other => Err(Error::Msg(format!("{other:?} is not computed"))),
    }
}

/// The library's MLP as an operation of candle's.
#[derive(Clone, Debug)]
pub(crate) struct HostMlp(pub(crate) Mlp);

impl HostMlp {
    pub(crate) fn size(&self) -> Size {
        let (rows, k) = (self.0.rows(), self.0.k());
        Size { rows, k }
    }
}

const OP: &str = "nvfp4-mlp";

impl CustomOp1 for HostMlp {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, m) = (Rows::of(layout, self.size(), OP)?, self.0.rows());
        let y = rows.on_host(storage, m, OP, &self.0)?;
        Ok((y, Rows::results(layout, m)))
    }

    #[cfg(feature = "device")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        _: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        Err(crate::cuda::on_a_device(storage, OP))
    }
}
