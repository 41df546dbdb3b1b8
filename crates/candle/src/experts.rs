//! The experts of a mixture.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, DeviceLocation, Error, Layout, Result, Shape, Storage,
    Tensor,
};
use nvfp4_gemv::{Experts, Gate, Output, Vectors};

use crate::linear::elsewhere;
use crate::rows::{OnHost, Rows, Size, activation};

/// The experts of a mixture, an MLP each: for each vector, the sum of what some of them give, times a weight each. A
/// clone shares the weights. [`Nvfp4Builder::experts`](crate::Nvfp4Builder::experts) loads them;
/// [`Nvfp4Moe`](crate::Nvfp4Moe) is them behind a router.
///
/// There is no gradient: asking for one of vectors or of weights through experts is an error.
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
    Device(std::sync::Arc<crate::cuda::Experts>, Gate),
}

const OP: &str = "nvfp4-experts";
/// The id of no expert.
pub(crate) const NONE: u32 = u32::MAX;

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
            place: Place::Device(std::sync::Arc::new(experts), Gate::Silu),
        }
    }

    /// These experts with another gate than theirs.
    ///
    /// # Errors
    /// [`nvfp4_gemv::Error::Factor`] for a gate's number that is not positive and finite.
    pub fn with_gate(self, gate: Gate) -> crate::Result<Self> {
        gate.check()?;
        let place = match self.place {
            Place::Host(experts) => Place::Host(experts.with_gate(gate)?),
            #[cfg(feature = "device")]
            Place::Device(experts, _) => Place::Device(experts, gate),
        };
        Ok(Self { place, ..self })
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
    /// [`Experts::forward`]; on CUDA the sum is f32. The id `u32::MAX` is no expert: it adds nothing, whatever its weight
    /// is.
    ///
    /// On CUDA, with no more pairs of a vector and an expert than there are experts, all pairs are one launch for gate
    /// and up and one for down, whose ids stay on the device, and nothing waits. Nobody looks at the ids: one of an expert
    /// that does not exist gives NaN. (A capture into a CUDA graph needs candle's `enable_cuda_graph_htod_cache`, for the
    /// operations between, and a call before.) With more pairs each expert that is named is a call with all of its
    /// vectors, so that its weights are read once; the host reads the ids for that, and waits for the device.
    ///
    /// # Errors
    /// Tensors of other types or sizes; an id of an expert that does not exist ([`Error::InvalidIndex`]), on the CPU, and
    /// on CUDA with more pairs than experts; else as [`Nvfp4Linear`](crate::Nvfp4Linear)'s.
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
        let ys = match &self.place {
            Place::Host(experts) => {
                let ids = ids.flatten_all()?.to_vec1::<u32>()?;
                let id = |&id: &u32| match exists(id, self.experts)? {
                    true => Ok(id as i32), // there are fewer experts than that
                    false => Ok(-1),
                };
                xs.apply_op1_no_bwd(&Chosen {
                    experts: experts.clone(),
                    ids: ids.iter().map(id).collect::<Result<_>>()?,
                    weights: weights.flatten_all()?.to_vec1::<f32>()?,
                    size: self.size,
                })?
            }
            #[cfg(feature = "device")]
            Place::Device(experts, gate) => {
                let of_pairs = match vectors * top <= self.experts {
                    true => experts.select(*gate, xs, ids)?,
                    false => experts.each(*gate, xs, ids)?,
                };
                let of_pairs = of_pairs.reshape((vectors, top, self.size.rows))?;
                sums(&of_pairs, ids, experts.none(), weights)?.to_dtype(xs.dtype())?
            }
        };
        match xs.track_op() || weights.track_op() {
            true => xs.apply_op2(weights, NoGradient(ys)),
            false => Ok(ys),
        }
    }
}

/// Whether an id is one of so many experts', or [`NONE`].
fn exists(id: u32, size: usize) -> Result<bool> {
    match id as usize {
        index if index < size => Ok(true),
        _ if id == NONE => Ok(false),
        index => Err(Error::InvalidIndex {
            op: OP,
            index,
            size,
        }),
    }
}

/// Of the results of pairs `[T, top, M]`, which are 0 where there is no expert, each vector's weighted sum. `none` is
/// [`NONE`] on their device, so that nothing is copied there.
#[cfg(any(test, feature = "device"))]
fn sums(of_pairs: &Tensor, ids: &Tensor, none: &Tensor, weights: &Tensor) -> Result<Tensor> {
    // A weight that is no number would make one of 0.
    let named = ids.broadcast_ne(none)?;
    let weights = named.where_cond(weights, &weights.zeros_like()?)?;
    of_pairs.broadcast_mul(&weights.unsqueeze(2)?)?.sum(1)
}

/// The pairs of a call, dealt to the experts that they name.
#[cfg(any(test, feature = "device"))]
#[derive(Debug, PartialEq)]
struct Dealt {
    /// Experts, each with its pairs' vectors.
    vectors_of: Vec<(usize, Vec<u32>)>,
    /// Where each pair's result is, if those of experts follow each other; behind all of them for one without an expert.
    places: Vec<u32>,
}

#[cfg(any(test, feature = "device"))]
impl Dealt {
    /// Of the ids of pairs, of which each vector has so many.
    fn of(ids: &[u32], top: usize, experts: usize) -> Result<Self> {
        let mut pairs_of = vec![Vec::new(); experts];
        for (pair, &id) in ids.iter().enumerate() {
            if exists(id, experts)? {
                pairs_of[id as usize].push(pair);
            }
        }
        let all = pairs_of.iter().map(Vec::len).sum::<usize>();
        let mut places = vec![all as u32; ids.len()];
        for (place, &pair) in (0..).zip(pairs_of.iter().flatten()) {
            places[pair] = place;
        }
        let named = pairs_of.iter().enumerate().filter(|(_, of)| !of.is_empty());
        let vectors = |pairs: &Vec<usize>| pairs.iter().map(|pair| (pair / top) as u32).collect();
        let vectors_of = named.map(|(expert, pairs)| (expert, vectors(pairs)));
        Ok(Self {
            vectors_of: vectors_of.collect(),
            places,
        })
    }
}

/// Results whose gradient is asked for in vain: of vectors and weights, which may have one.
struct NoGradient(Tensor);

impl CustomOp2 for NoGradient {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (storage, layout) = self.0.storage_and_layout();
        match &*storage {
            Storage::Cpu(ys) => Ok((ys.try_clone(layout)?, layout.shape().clone())),
            _ => Err(elsewhere(
                DeviceLocation::Cpu,
                self.0.device().location(),
                OP,
            )),
        }
    }

    #[cfg(feature = "device")]
    fn cuda_fwd(
        &self,
        xs: &candle_core::CudaStorage,
        _: &Layout,
        _: &candle_core::CudaStorage,
        _: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (storage, layout) = self.0.storage_and_layout();
        match &*storage {
            Storage::Cuda(ys) => Ok((ys.try_clone(layout)?, layout.shape().clone())),
            _ => Err(crate::cuda::on_a_device(xs, OP)),
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
    fn each(&self, gate: Gate, xs: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (device, top) = (xs.device(), ids.dim(1)?);
        let ids = ids.flatten_all()?.to_vec1::<u32>()?;
        let Dealt { vectors_of, places } = Dealt::of(&ids, top, self.number())?;
        let mut results = Vec::new();
        for (expert, vectors) in vectors_of {
            let count = vectors.len();
            let vectors = xs.index_select(&Tensor::from_vec(vectors, count, device)?, 0)?;
            results.push(self.one(gate, expert, &vectors)?);
        }
        if ids.contains(&NONE) {
            results.push(Tensor::zeros((1, self.size().rows), DType::F32, device)?);
        }
        Tensor::cat(&results, 0)?.index_select(&Tensor::new(places, device)?, 0)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn pairs_are_dealt_to_their_experts_and_none_is_left_out() {
        // Of two vectors with three experts each, of which the first has none twice.
        let dealt = Dealt::of(&[2, NONE, NONE, 0, 2, 1], 3, 3).unwrap();
        let expected = Dealt {
            vectors_of: vec![(0, vec![1]), (1, vec![1]), (2, vec![0, 1])],
            places: vec![2, 4, 4, 0, 3, 1],
        };
        assert_eq!(dealt, expected);
        let none = Dealt::of(&[NONE; 2], 1, 3).unwrap();
        assert_eq!((none.vectors_of.len(), none.places), (0, vec![0, 0]));
        let error = Dealt::of(&[0, 3], 1, 3).unwrap_err();
        let expected = matches!(
            error,
            Error::InvalidIndex {
                index: 3,
                size: 3,
                ..
            }
        );
        assert!(expected, "{error}");
    }

    /// The sum behind the products on a CUDA device: the results of no expert are 0 there.
    #[test]
    fn the_weight_of_no_expert_is_not_looked_at() {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
        let of_pairs = tensor(&[1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 5.0, 6.0]);
        let of_pairs = of_pairs.reshape((2, 2, 2)).unwrap();
        let weights = tensor(&[0.5, f32::NAN, f32::INFINITY, 2.0]);
        let weights = weights.reshape((2, 2)).unwrap();
        let ids = Tensor::new(&[[1u32, NONE], [0, 2]], &Device::Cpu).unwrap();
        let none = Tensor::new(NONE, &Device::Cpu).unwrap();
        let sums = sums(&of_pairs, &ids, &none, &weights).unwrap();
        let sums = sums.to_vec2::<f32>().unwrap();
        assert_eq!(sums, [[0.5, 1.0], [f32::INFINITY; 2]]);
    }
}
