//! Bulk and tensor copies: where every byte lands, what counts, and what must be fenced.

use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};

use super::trial::{HOPPER, Kernels, Trial, noise};

crate::trials! {
    simulator: bulk, boxes_of_rank_3, the_proxy_fence_is_needed;
}

fn bulk() {
    let data = noise(8192, 2);
    for arch in HOPPER {
        let kernels = Kernels::new("copies", arch);
        let trial = |offset: usize, bytes: usize, at: u32, last: u32| {
            kernels
                .trial("bulk", [1, 1, 1], [64, 1, 1])
                .input(&data)
                .output(bytes)
                .words(&[offset as u32, bytes as u32, at, last, 0])
        };
        for (offset, bytes, at) in [(0, 16, 0), (48, 512, 16), (8192 - 2048, 2048, 4096)] {
            for last in [0, 1] {
                trial(offset, bytes, at, last).gives(&data[offset..offset + bytes]);
            }
        }
        trial(8, 16, 0, 0).is_refused(&["16"]);
        trial(0, 16, 8, 0).is_refused(&["16"]);
        trial(8192 - 16, 32, 0, 0).is_refused(&["outside"]);
        trial(0, 512, 0, 0).wrong(1).is_refused(&["in flight"]);
        trial(0, 512, 0, 0).wrong(2).is_refused(&["16"]);
        // Hints, which the simulator ignores.
        for hint in [
            "createpolicy.fractional.L2::evict_first.b64",
            "L2::evict_last.b64",
            "prefetch.tensormap [",
        ] {
            assert!(kernels.ptx.contains(hint), "{arch}");
        }
    }
}

/// A tensor of bytes, dense, and the box that is copied.
struct Tensor {
    dims: Vec<usize>,
    box_dims: Vec<usize>,
    swizzle: Swizzle,
    data: Vec<u8>,
}

impl Tensor {
    fn new(dims: &[usize], box_dims: &[usize], swizzle: Swizzle) -> Self {
        Self {
            dims: dims.into(),
            box_dims: box_dims.into(),
            swizzle,
            data: noise(dims.iter().product(), 3),
        }
    }

    fn box_bytes(&self) -> usize {
        self.box_dims.iter().product()
    }

    /// The element at a place; zero outside.
    fn at(&self, place: &[i32]) -> u8 {
        let mut index = 0;
        for (i, d) in place.iter().zip(&self.dims).rev() {
            match usize::try_from(*i) {
                Ok(i) if i < *d => index = index * d + i,
                _ => return 0,
            }
        }
        self.data[index]
    }

    /// Content of shared memory after a copy of the box at `corner`, from the start of a swizzle pattern. In 128-byte
    /// rows the swizzle exchanges 16-byte chunks: c lies at c ^ row % 8.
    fn placed(&self, corner: &[i32]) -> Vec<u8> {
        let mut out = vec![0; self.box_bytes()];
        for linear in 0..out.len() {
            let mut rest = linear;
            let mut place = corner.to_vec();
            for (p, b) in place.iter_mut().zip(&self.box_dims) {
                *p += (rest % b) as i32;
                rest /= b;
            }
            let to = match self.swizzle {
                Swizzle::None => linear,
                _ => {
                    let (row, byte) = (linear / 128, linear % 128);
                    row * 128 + ((byte / 16) ^ (row % 8)) * 16 + byte % 16
                }
            };
            out[to] = self.at(&place);
        }
        out
    }

    fn trial(&self, kernels: &Kernels, corner: &[i32], at: u32) -> Trial {
        let rank = self.dims.len();
        let kernel = format!("box{rank}");
        let mut trial = kernels.trial(&kernel, [1, 1, 1], [64, 1, 1]);
        let buffer = trial.sim.upload("tensor", &self.data).unwrap();
        let strides = (1..rank).map(|i| self.dims[..i].iter().product::<usize>() as u64);
        let map = TensorMap::encode(TensorMapArgs {
            data_type: DataType::Uint8,
            global_address: buffer.address,
            global_dim: self.dims.iter().map(|d| *d as u64).collect(),
            global_strides: strides.collect(),
            box_dim: self.box_dims.iter().map(|d| *d as u32).collect(),
            element_strides: vec![1; rank],
            interleave: Interleave::None,
            swizzle: self.swizzle,
            l2_promotion: L2Promotion::B256,
            oob_fill: OobFill::Zero,
        });
        trial.launch = trial.launch.tensor_map(map.unwrap());
        let corner: Vec<u32> = corner.iter().map(|c| *c as u32).collect();
        let mut trial =
            trial
                .output(self.box_bytes())
                .words(&corner)
                .words(&[self.box_bytes() as u32, at, 0]);
        trial.seeds = 1;
        trial
    }

    fn check(&self, kernels: &Kernels, corner: &[i32]) {
        let want = self.placed(corner);
        for at in [0, 2048] {
            self.trial(kernels, corner, at).gives(&want);
        }
        let mut trial = self.trial(kernels, corner, 0);
        // Bytes outside the tensor count too.
        trial.wrong(2).is_refused(&["deadlock"]);
    }
}

fn boxes_of_rank_3() {
    for kernels in HOPPER.map(|arch| Kernels::new("copies", arch)) {
        for swizzle in [Swizzle::None, Swizzle::B128] {
            let tensor = Tensor::new(&[208, 23, 3], &[128, 8, 2], swizzle);
            for corner in [
                [0, 0, 0],
                [64, 5, 1],
                [128, 20, 2],
                [-32, -3, -1],
                [208, 0, 0],
                [0, 23, 0],
                [16, 8, 3],
            ] {
                tensor.check(&kernels, &corner);
            }
            let want = tensor.placed(&[16, 0, 1]);
            let mut trial = tensor.trial(&kernels, &[16, 0, 1], 0);
            trial.wrong(1).differs(&want);
        }
        // The formula makes a difference.
        let (plain, swizzled) = [Swizzle::None, Swizzle::B128]
            .map(|s| Tensor::new(&[208, 23, 3], &[128, 8, 2], s))
            .into();
        let corner = [0, 0, 0];
        assert_eq!(plain.data, swizzled.data);
        swizzled
            .trial(&kernels, &corner, 0)
            .differs(&plain.placed(&corner));
        // The swizzle places the same rows otherwise if they do not start at a pattern.
        swizzled
            .trial(&kernels, &corner, 128)
            .differs(&swizzled.placed(&corner));
        swizzled.trial(&kernels, &corner, 64).is_refused(&["128"]);
    }
}

fn the_proxy_fence_is_needed() {
    let data = noise(2048, 4);
    for kernels in HOPPER.map(|arch| Kernels::new("copies", arch)) {
        for loads in [0, 1] {
            let mut trial = kernels.trial("overwrite", [1, 1, 1], [64, 1, 1]);
            trial = trial.input(&data).output(1024 + 64).words(&[loads, 0]);
            let sums = (0..64).map(|t| {
                let mine = (t..1024).step_by(64).map(|i| data[i]);
                mine.fold(0u8, u8::wrapping_add) * loads as u8
            });
            let want: Vec<u8> = data[1024..].iter().copied().chain(sums).collect();
            trial.gives(&want);
            trial.wrong(1).is_refused(&["fence.proxy.async is missing"]);
            trial.wrong(2).is_refused(&["nothing orders"]);
        }
    }
}
