//! A mixture of experts behind its router.

use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::ops::{softmax, softmax_last_dim};

use crate::error::Error;
use crate::experts::Nvfp4Experts;

/// The mixture of experts of a decoder layer, as Qwen3 and Mixtral have it: a dense router, the softmax of its results
/// in f32, and the experts with the largest numbers, weighted by them. A module of tensors `[.., K]`, whose results
/// `[.., M]` have the same type. A clone shares the weights.
///
/// Where tensors lie and what waits is as [`Nvfp4Experts::forward`] says. A mixture that chooses its experts in another
/// way calls that function itself.
#[derive(Clone, Debug)]
pub struct Nvfp4Moe {
    router: candle_nn::Linear,
    experts: Nvfp4Experts,
    top_k: usize,
    normalised: bool,
}

impl Nvfp4Moe {
    /// Of a router with weights `[experts, K]`, from candle's `VarBuilder`. `top_k` is the config's
    /// `num_experts_per_tok`, `normalised` its `norm_topk_prob`: whether the weights of a vector's experts are divided
    /// by their sum.
    ///
    /// # Errors
    /// [`Error::Router`].
    pub fn new(
        router: candle_nn::Linear,
        experts: Nvfp4Experts,
        top_k: usize,
        normalised: bool,
    ) -> crate::Result<Self> {
        let (number, k) = (experts.number(), experts.k());
        let fits = router.weight().dims() == [number, k] && (1..=number).contains(&top_k);
        match fits {
            true => Ok(Self {
                router,
                experts,
                top_k,
                normalised,
            }),
            false => Err(Error::Router {
                router: router.weight().shape().clone(),
                experts: number,
                k,
                top_k,
            }),
        }
    }

    /// The experts of vectors `[T, K]`: ids `[T, top_k]`, u32, and weights, f32.
    ///
    /// # Errors
    /// Errors of candle's.
    pub fn route(&self, xs: &Tensor) -> Result<(Tensor, Tensor)> {
        let xs = xs.to_dtype(self.router.weight().dtype())?;
        let logits = self.router.forward(&xs)?.to_dtype(DType::F32)?;
        // The second, which is one operation, loses the gradient without a word.
        let shares = match logits.track_op() {
            true => softmax(&logits, D::Minus1)?,
            false => softmax_last_dim(&logits)?,
        };
        let ids = shares.arg_sort_last_dim(false)?;
        let ids = ids.narrow(D::Minus1, 0, self.top_k)?.contiguous()?;
        let weights = shares.gather(&ids, D::Minus1)?;
        match self.normalised {
            true => {
                let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
                Ok((ids, weights))
            }
            false => Ok((ids, weights)),
        }
    }
}

impl Module for Nvfp4Moe {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut dims = xs.dims().to_vec();
        let k = dims.pop().unwrap_or_default();
        let vectors = xs.reshape((dims.iter().product::<usize>(), k))?;
        let (ids, weights) = self.route(&vectors)?;
        let results = self.experts.forward(&vectors, &ids, &weights)?;
        dims.push(self.experts.rows());
        results.reshape(dims)
    }
}
