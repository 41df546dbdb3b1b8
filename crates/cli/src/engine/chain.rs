//! A decode step as memory sees it: the linear layers of one decoder layer after another.

use nvfp4_gemv::{Activation, Dims, FloatType, Result, ScaleLayout, Shape};

use super::{Case, memory};

/// The linear layers of a decoder layer, in the order in which a model computes them. A turn computes them for one
/// decoder layer after the other, each with weights of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The name in messages.
    pub(crate) name: String,
    /// At least one. The results of none are vectors of the next: speed does not depend on numbers.
    pub(crate) linears: Vec<Case>,
}

impl Chain {
    /// Linear layers of these rows and row lengths, with the same number and type of vectors.
    ///
    /// # Errors
    /// A shape that cannot be.
    pub(crate) fn new(
        name: String,
        linears: impl IntoIterator<Item = (usize, usize)>,
        n: usize,
        activation: Activation,
        layout: ScaleLayout,
        output: FloatType,
    ) -> Result<Self> {
        let case = |(m, k)| {
            Ok(Case {
                select: None,
                shape: Shape::new(Dims { m, n, k, l: 1 })?,
                activation,
                layout,
                output,
            })
        };
        let linears = linears.into_iter().map(case).collect::<Result<_>>()?;
        Ok(Self { name, linears })
    }

    /// One linear layer, in the place of a decoder layer.
    pub(super) fn of(case: &Case) -> Self {
        Self {
            name: case.shape.to_string(),
            linears: vec![*case],
        }
    }

    /// Bytes of weights of a decoder layer.
    pub(crate) fn layer_bytes(&self) -> usize {
        let bytes = self.linears.iter().map(|case| case.shape.weight_bytes());
        bytes.sum()
    }

    /// Decoder layers that fit so many bytes of weights; at least one.
    pub(crate) fn layers(&self, bytes: usize) -> usize {
        (bytes / self.layer_bytes().max(1)).max(1)
    }

    /// Bytes that the vectors and results of a decoder layer take, at most.
    pub(super) fn operand_bytes(&self) -> Option<usize> {
        let each = self.linears.iter();
        let each = each.map(|case| Some((case.operand_bytes()?, 1)));
        memory::sum(&each.collect::<Option<Vec<_>>>()?)
    }

    /// Offsets of the codes and scales of every linear layer in two large buffers, decoder layer after decoder layer;
    /// and how long the buffers must be.
    pub(super) fn places(&self, layers: usize, alignment: usize) -> Places {
        let mut places = Places::default();
        for _ in 0..layers {
            for (linear, case) in self.linears.iter().enumerate() {
                let (codes, scales) = (places.code_bytes, places.scale_bytes);
                places.all.push(Place {
                    linear,
                    codes,
                    scales,
                });
                let shape = &case.shape;
                let ends = codes + shape.weight_code_bytes();
                places.code_bytes = ends.next_multiple_of(alignment);
                let ends = scales + shape.weight_scale_bytes(case.layout);
                places.scale_bytes = ends.next_multiple_of(alignment);
            }
        }
        places
    }
}

/// Offsets of a chain's weights.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// Places in the order of the launches.
    pub(super) all: Vec<Place>,
    pub(super) code_bytes: usize,
    pub(super) scale_bytes: usize,
}

/// The weights of one linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Which one of the chain's linear layers.
    pub(super) linear: usize,
    /// Offset of the linear layer's codes.
    pub(super) codes: usize,
    /// Offset of the linear layer's scales.
    pub(super) scales: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_lie_behind_each_other_and_never_twice() {
        let chain = Chain::new(
            "tiny".into(),
            [(64, 48), (32, 64)],
            2,
            Activation::F16,
            ScaleLayout::Linear,
            FloatType::F16,
        )
        .unwrap();
        // 64 x 48 x 9 / 16 and 32 x 64 x 9 / 16.
        assert_eq!(chain.layer_bytes(), 1728 + 1152);
        assert_eq!((chain.layers(0), chain.layers(2 * 2880)), (1, 2));
        assert_eq!(chain.layers(3 * 2880 - 1), 2);
        let places = chain.places(2, 256);
        let expected = [(0, 0, 0), (1, 1536, 256), (0, 2560, 512), (1, 4096, 768)];
        let expected = expected.map(|(linear, codes, scales)| Place {
            linear,
            codes,
            scales,
        });
        assert_eq!(places.all, expected);
        assert_eq!((places.code_bytes, places.scale_bytes), (5120, 1024));
        assert!(chain.operand_bytes().unwrap() >= 2 * (48 + 64) * 2 + 2 * (64 + 32) * 2);
    }
}
