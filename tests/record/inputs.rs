//! The recorded cases and their operands, from seeds: the same bytes wherever they are made. Read
//! by the recorder, and by the replay in `ptx-sim`.

use half::{bf16, f16};
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape, Strides};

/// How a kernel cuts the problem: `CudaCoreConfig`, which exists only with the `cuda` feature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// CTAs of the integer-dot kernel; `None` is the direct kernel.
    pub(crate) ctas: Option<u32>,
    /// Blocks a lane loads at once.
    pub(crate) blocks_per_load: u32,
    /// Warps a CTA.
    pub(crate) warps: u32,
    /// Warps that share a row tile.
    pub(crate) k_split: u32,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Dimensions.
    pub(crate) shape: Shape,
    /// Where the operands come from.
    pub(crate) seed: u64,
    /// Element type of the vectors.
    pub(crate) activation: Activation,
    /// Layout of the weights' scales.
    pub(crate) weight_layout: ScaleLayout,
    /// Layout of the vectors' scales.
    pub(crate) vector_layout: ScaleLayout,
    /// Element type of the output.
    pub(crate) output: FloatType,
    /// A factor for each row.
    pub(crate) row_alpha: bool,
    /// A factor for each vector; NVFP4 vectors only.
    pub(crate) vector_alpha: bool,
    /// Vectors as rows of 128, the others garbage; NVFP4 vectors only.
    pub(crate) padded: bool,
    /// The kernel and its cut.
    pub(crate) cut: Cut,
}

/// M, N, K, L: odd ones, row tiles that are not full, one and two passes, with and without a
/// second step of K.
const SHAPES: [(usize, usize, usize, usize); 11] = [
    (13, 1, 1056, 2),
    (129, 1, 80, 1),
    (33, 2, 288, 1),
    (7, 3, 528, 3),
    (5, 4, 96, 2),
    (18, 5, 1088, 1),
    (6, 7, 48, 2),
    (9, 8, 2080, 1),
    (3, 11, 160, 2),
    (4, 16, 544, 1),
    (1, 1, 16, 1),
];

/// Warps and K split; those of more than 8 warps fit the integer-dot kernel with one or two
/// vectors.
const DIRECT: [(u32, u32); 6] = [(4, 1), (4, 2), (8, 8), (6, 3), (1, 1), (8, 4)];
const INTEGER_DOT: [(u32, u32, u32); 6] = [
    (8, 2, 1),
    (16, 4, 3),
    (8, 8, 2),
    (4, 1, 132),
    (7, 7, 1),
    (16, 1, 2),
];

/// Every case. The attributes that do not make a kernel are dealt out in turn.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let kernels = [
        (Activation::Nvfp4, true),
        (Activation::Nvfp4, false),
        (Activation::F16, false),
        (Activation::Bf16, false),
        (Activation::F32, false),
    ];
    for &(m, n, k, l) in &SHAPES {
        let shape = Shape::new(m, n, k, l).expect("the shapes are valid");
        for (activation, integer_dot) in kernels {
            for (j, weight_layout) in [0, 1].into_iter().zip(ScaleLayout::ALL) {
                for blocks_per_load in 1..=(if k % 32 == 0 { 2 } else { 1 }) {
                    let i = cases.len();
                    let nvfp4 = activation == Activation::Nvfp4;
                    let (warps, k_split, ctas) = if integer_dot {
                        let (warps, k_split, ctas) = INTEGER_DOT[i / 3 % INTEGER_DOT.len()];
                        (
                            if n <= 2 { warps } else { warps.min(8) },
                            k_split,
                            Some(ctas),
                        )
                    } else {
                        let (warps, k_split) = DIRECT[i / 3 % DIRECT.len()];
                        (warps, k_split, None)
                    };
                    cases.push(Case {
                        shape,
                        seed: 1000 + i as u64,
                        activation,
                        weight_layout,
                        vector_layout: ScaleLayout::ALL[(i / 2 + j) % 2],
                        output: FloatType::ALL[i % 3],
                        row_alpha: i % 5 == 1,
                        vector_alpha: nvfp4 && i % 4 == 2,
                        padded: nvfp4 && i % 3 == 1,
                        cut: Cut {
                            ctas,
                            blocks_per_load,
                            warps,
                            k_split,
                        },
                    });
                }
            }
        }
    }
    cases
}

impl Case {
    /// A name that says all of it.
    pub(crate) fn name(&self) -> String {
        let s = &self.shape;
        let kernel = match self.cut.ctas {
            Some(ctas) => format!("dot{ctas}"),
            None => "direct".into(),
        };
        let flag = |on: bool, name: &'static str| if on { name } else { "" };
        format!(
            "{kernel}_{}_{}_m{}n{}k{}l{}_{}_{}_b{}w{}s{}{}{}{}_{}",
            self.activation.name(),
            self.output.name(),
            s.m(),
            s.n(),
            s.k(),
            s.l(),
            self.weight_layout.name(),
            self.vector_layout.name(),
            self.cut.blocks_per_load,
            self.cut.warps,
            self.cut.k_split,
            flag(self.row_alpha, "_row"),
            flag(self.vector_alpha, "_vector"),
            flag(self.padded, "_padded"),
            self.seed,
        )
    }
}

/// The bytes of a case's operands, as a device holds them.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// Weight codes.
    pub(crate) codes: Vec<u8>,
    /// Weight scales.
    pub(crate) scales: Vec<u8>,
    /// The global scale.
    pub(crate) alpha: f32,
    /// A factor for each row, or nothing.
    pub(crate) row_alpha: Vec<u8>,
    /// The vectors: codes or numbers.
    pub(crate) vectors: Vec<u8>,
    /// Their strides in bytes.
    pub(crate) vector_strides: Strides,
    /// Scales of NVFP4 vectors, or nothing.
    pub(crate) vector_scales: Vec<u8>,
    /// Their strides in bytes.
    pub(crate) vector_scale_strides: Strides,
    /// A factor for each vector, or nothing.
    pub(crate) vector_alpha: Vec<u8>,
}

impl Inputs {
    /// Makes them.
    pub(crate) fn new(case: &Case) -> Self {
        let shape = &case.shape;
        let mut problem = Problem::full_range(*shape, case.seed);
        if case.row_alpha {
            problem = problem.with_row_alpha(case.seed + 1);
        }
        let w = problem.weights(case.weight_layout).expect("weights");
        let mut inputs = Self {
            codes: w.codes.to_vec(),
            scales: w.scales.to_vec(),
            alpha: w.global().stored(),
            row_alpha: bytes(w.row_alpha().unwrap_or_default()),
            vectors: Vec::new(),
            vector_strides: Strides { row: 0, batch: 0 },
            vector_scales: Vec::new(),
            vector_scale_strides: Strides { row: 0, batch: 0 },
            vector_alpha: Vec::new(),
        };
        let mut random = SplitMix(case.seed);
        if case.activation != Activation::Nvfp4 {
            let row = inputs.dense(case, &mut random) / (shape.n() * shape.l());
            inputs.vector_strides = dense_rows(row, shape.n());
            return inputs;
        }
        let x = if case.padded {
            problem.padded_vectors(case.vector_layout, case.seed + 2)
        } else {
            problem.vectors(case.vector_layout)
        }
        .expect("vectors");
        inputs.vector_strides = x
            .code_strides
            .unwrap_or(dense_rows(shape.row_code_bytes(), shape.n()));
        inputs.vector_scale_strides = x.scale_strides.unwrap_or(Strides {
            row: shape.blocks(),
            batch: case.vector_layout.bytes(shape.n(), shape.blocks()),
        });
        inputs.vectors = x.codes.into_owned();
        inputs.vector_scales = x.scales.into_owned();
        if case.vector_alpha {
            let alpha: Vec<f32> = (0..shape.l() * shape.n())
                .map(|_| 0.5 + (random.next() >> 40) as f32 / (1 << 24) as f32)
                .collect();
            inputs.vector_alpha = bytes(&alpha);
        }
        inputs
    }

    /// Numbers of either sign, of magnitudes from 2^-15 to 2^6, a few subnormal or zero. Returns
    /// their bytes.
    fn dense(&mut self, case: &Case, random: &mut SplitMix) -> usize {
        for _ in 0..case.shape.vector_elements() {
            let bits = random.next();
            let (sign, mantissa) = ((bits >> 63) as u32, bits as u32);
            let tiny = bits >> 58 & 31 == 0;
            let exponent = (bits >> 40) as u32 % 22;
            let of = |bias: u32| if tiny { 0 } else { bias - 15 + exponent };
            match case.activation {
                Activation::F16 => {
                    let x = sign << 15 | of(16) << 10 | mantissa >> 22;
                    self.vectors.extend(f16::from_bits(x as u16).to_le_bytes());
                }
                Activation::Bf16 => {
                    let x = sign << 15 | of(127) << 7 | mantissa >> 25;
                    self.vectors.extend(bf16::from_bits(x as u16).to_le_bytes());
                }
                _ => {
                    let x = sign << 31 | of(127) << 23 | mantissa >> 9;
                    self.vectors.extend(f32::from_bits(x).to_le_bytes());
                }
            }
        }
        self.vectors.len()
    }

    /// FNV-1a of all of it, to notice a generator that changed.
    pub(crate) fn hash(&self) -> String {
        let alpha = self.alpha.to_le_bytes();
        let parts: [&[u8]; 7] = [
            &self.codes,
            &self.scales,
            &alpha,
            &self.row_alpha,
            &self.vectors,
            &self.vector_scales,
            &self.vector_alpha,
        ];
        let hash = parts
            .concat()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        format!("{hash:016x}")
    }
}

fn dense_rows(row: usize, n: usize) -> Strides {
    Strides {
        row,
        batch: n * row,
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
