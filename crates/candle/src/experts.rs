//! The experts of a mixture.

use candle_core::{CpuStorage, CustomOp1, DType, Error, Layout, Result, Shape, Tensor};
use nvfp4_gemv::{Experts, Output, Vectors};

use crate::rows::{OnHost, Rows, Size, activation};

/// The experts of a mixture, an MLP each: for each vector, the sum of what some of them give, times a weight each. A
/// clone shares the weights. [`Nvfp4Builder::experts`](crate::Nvfp4Builder::experts) loads them;
/// [`Nvfp4Moe`](crate::Nvfp4Moe) is them behind a router.
#[derive(Clone, Debug)]
pub struct Nvfp4Experts {
    size: Size,
    experts: usize,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Host(Experts),
    #[cfg(feature = "device")]
    Device(std::sync::Arc<crate::cuda::Experts>),
}

const OP: &str = "nvfp4-experts";

impl Nvfp4Experts {
    /// Experts on the CPU.
    pub fn on_host(experts: Experts) -> Self {
        let (rows, k) = (experts.rows(), experts.k());
        Self {
            size: Size { rows, k },
            experts: experts.all().len(),
            place: Place::Host(experts),
        }
    }

    #[cfg(feature = "device")]
    pub(crate) fn on_device(experts: crate::cuda::Experts) -> Self {
        Self {
            size: experts.size(),
            experts: experts.number(),
            place: Place::Device(std::sync::Arc::new(experts)),
        }
    }

    /// How many there are.
    pub fn number(&self) -> usize {
        self.experts
    }

    /// Elements of a vector.
    pub fn k(&self) -> usize {
        self.size.k
    }

    /// Elements of a result.
    pub fn rows(&self) -> usize {
        self.size.rows
    }

    /// For each vector of `xs` `[T, K]`, f32, f16 or bf16, the sum of the experts that `ids` `[T, top]`, u32, names,
    /// times `weights` `[T, top]`, f32. Results `[T, M]` have the type of `xs`. On the CPU they have the bits of
    /// [`Experts::forward`]; on CUDA the sum is f32.
    ///
    /// On CUDA, with no more pairs of a vector and an expert than there are experts, all pairs are one launch for gate
    /// and up and one for down, whose ids stay on the device, and nothing waits. An id of no expert gives NaN there, and
    /// `u32::MAX` adds nothing. (A capture into a CUDA graph needs candle's `enable_cuda_graph_htod_cache`, for the
    /// operations between, and a call before.) With more pairs each expert that is named is a call with all of its vectors, so that its weights are read
    /// once; the host reads the ids for that, and waits for the device.
    ///
    /// # Errors
    /// Tensors of other types or sizes; on the CPU an id of no expert ([`Error::InvalidIndex`]); else as
    /// [`Nvfp4Linear`](crate::Nvfp4Linear)'s.
    pub fn forward(&self, xs: &Tensor, ids: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let (vectors, k) = xs.dims2()?;
        let top = ids.dim(1)?;
        let mismatch = |lhs: &Tensor, rhs: (usize, usize)| {
            let (lhs, rhs) = (lhs.shape().clone(), rhs.into());
            Err(Error::ShapeMismatchBinaryOp { lhs, rhs, op: OP })
        };
        if k != self.size.k {
            return mismatch(xs, (self.size.rows, self.size.k));
        }
        for of_pairs in [ids, weights] {
            if of_pairs.dims() != [vectors, top] {
                return mismatch(of_pairs, (vectors, top));
            }
        }
        let typed = |tensor: &Tensor, expected, msg| match tensor.dtype() {
            got if got == expected => Ok(()),
            got => Err(Error::UnexpectedDType { msg, expected, got }),
        };
        typed(ids, DType::U32, "nvfp4-experts: ids")?;
        typed(weights, DType::F32, "nvfp4-experts: weights")?;
        activation(xs.dtype(), OP)?;
        if vectors * top == 0 {
            return Tensor::zeros((vectors, self.size.rows), xs.dtype(), xs.device());
        }
        match &self.place {
            Place::Host(experts) => {
                let ids = ids.flatten_all()?.to_vec1::<u32>()?;
                let id = |&index: &u32| match (index as usize) < self.experts {
                    true => Ok(index as i32), // there are fewer experts than that
                    false => Err(Error::InvalidIndex {
                        op: OP,
                        index: index as usize,
                        size: self.experts,
                    }),
                };
                xs.apply_op1(Chosen {
                    experts: experts.clone(),
                    ids: ids.iter().map(id).collect::<Result<_>>()?,
                    weights: weights.flatten_all()?.to_vec1::<f32>()?,
                    size: self.size,
                })
            }
            #[cfg(feature = "device")]
            Place::Device(experts) => {
                let of_pairs = match vectors * top <= self.experts {
                    true => experts.select(xs, ids)?,
                    false => experts.each(xs, ids)?,
                };
                let of_pairs = of_pairs.reshape((vectors, top, self.size.rows))?;
                let weighted = of_pairs.broadcast_mul(&weights.unsqueeze(2)?)?;
                weighted.sum(1)?.to_dtype(xs.dtype())
            }
        }
    }
}

/// Experts of the library, with what a router chose.
struct Chosen {
    experts: Experts,
    ids: Vec<i32>,
    weights: Vec<f32>,
    size: Size,
}

impl OnHost for Chosen {
    fn forward<'a>(&'a self, x: &Vectors<'_>, n: usize, y: Output<'a>) -> nvfp4_gemv::Result<()> {
        self.experts.forward(x, n, &self.ids, &self.weights, y)
    }
}

impl CustomOp1 for Chosen {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, m) = (Rows::of(layout, self.size, OP)?, self.size.rows);
        let y = rows.on_host(storage, m, OP, self)?;
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

#[cfg(feature = "device")]
impl crate::cuda::Experts {
    /// The results of all pairs in their order, `[T · top, M]` in f32, by a call for each expert that is named.
    fn each(&self, xs: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let device = xs.device();
        let mut pairs_of = vec![Vec::new(); self.number()];
        let top = ids.dim(1)?;
        for (pair, id) in (0..).zip(ids.flatten_all()?.to_vec1::<u32>()?) {
            let (index, size) = (id as usize, self.number());
            match pairs_of.get_mut(index) {
                Some(pairs) => pairs.push(pair),
                None => {
                    return Err(Error::InvalidIndex {
                        op: OP,
                        index,
                        size,
                    });
                }
            }
        }
        // Places of pairs among the results.
        let mut places = vec![0; xs.dim(0)? * top];
        let mut results = Vec::new();
        let mut before = 0;
        for (expert, pairs) in pairs_of.iter().enumerate().filter(|(_, of)| !of.is_empty()) {
            for (&pair, place) in pairs.iter().zip(before..) {
                let pair: u32 = pair;
                places[pair as usize] = place;
            }
            before += pairs.len() as u32;
            let vectors: Vec<u32> = pairs.iter().map(|&pair| pair / top as u32).collect();
            let vectors = Tensor::from_vec(vectors, pairs.len(), device)?;
            let vectors = xs.index_select(&vectors, 0)?;
            results.push(self.one(expert, &vectors)?);
        }
        Tensor::cat(&results, 0)?.index_select(&Tensor::new(places, device)?, 0)
    }
}
