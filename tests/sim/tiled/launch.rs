//! One problem on a tiled kernel in the simulator: what `csrc/launch/tiles.{cu,cuh}` do, in Rust.

use std::cell::RefCell;

use half::{bf16, f16};
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::reference::error_bound;
use nvfp4_gemv::{FloatType, ScaleLayout, TileConfig, TileKernel};
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Buffer, Launch, Module, Options, Program, Report, Sim, SimError, Trace};

/// How results are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Comparison {
    /// To the bit, as f32.
    Exact,
    /// Within the derived bound.
    Bound,
}

/// What a problem does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras {
    /// Element type of the output.
    pub(crate) element: FloatType,
    /// Multiplies the results of each vector by a power of two of its own.
    pub(crate) vector_alpha: bool,
}

impl Default for Extras {
    fn default() -> Self {
        Self {
            element: FloatType::F32,
            vector_alpha: false,
        }
    }
}

/// A problem in the simulator's memory.
pub(crate) struct Run<'a> {
    problem: &'a Problem,
    config: TileConfig,
    sim: RefCell<Sim>,
    codes: Buffer,
    scales: Buffer,
    vectors: Buffer,
    vector_scales: Buffer,
    row_alpha: Option<Buffer>,
    vector_alpha: Option<Buffer>,
    element: FloatType,
    output: Buffer,
    /// Bytes of a batch of vectors and of their scales.
    vector_batch: u64,
    vector_scale_batch: u64,
    global: f32,
}

impl<'a> Run<'a> {
    /// Vectors are rows 0..n of 128, the rest garbage.
    pub(crate) fn new(
        module: &Module,
        problem: &'a Problem,
        config: TileConfig,
        extras: Extras,
    ) -> Self {
        let shape = &problem.shape;
        let tiled = ScaleLayout::Tiled128x4;
        let weights = problem.weights(tiled).unwrap();
        let vectors = problem.padded_vectors(tiled, 100).unwrap();
        let mut sim = Sim::new(module.clone());
        let mut upload = |name, bytes: &[u8]| sim.upload(name, bytes).unwrap();
        let codes = upload("weight codes", weights.codes);
        let scales = upload("weight scales", &with_nan_padding(problem, &weights.scales));
        let x = upload("vector codes", &vectors.codes);
        let x_scales = upload("vector scales", &with_nan_tail(problem, &vectors.scales));
        let bytes =
            |alpha: &[f32]| -> Vec<u8> { alpha.iter().flat_map(|a| a.to_le_bytes()).collect() };
        let row_alpha = weights
            .row_alpha()
            .map(|alpha| upload("row alpha", &bytes(alpha)));
        let vector_alpha = extras.vector_alpha.then(|| {
            let alpha: Vec<f32> = (0..shape.l() * shape.n()).map(vector_alpha).collect();
            upload("vector alpha", &bytes(&alpha))
        });
        let output_bytes = shape.outputs() * extras.element.bytes();
        let output = sim.alloc("output", output_bytes).unwrap();
        Self {
            problem,
            config,
            sim: RefCell::new(sim),
            codes,
            scales,
            vectors: x,
            vector_scales: x_scales,
            row_alpha,
            vector_alpha,
            element: extras.element,
            output,
            vector_batch: vectors.code_strides.unwrap().batch as u64,
            vector_scale_batch: vectors.scale_strides.unwrap().batch as u64,
            global: weights.global().multiplier() as f32,
        }
    }

    /// The launches of one call, with their entries.
    pub(crate) fn launches(&self) -> Vec<(Launch, String)> {
        let n = self.problem.shape.n();
        match self.config.kernel {
            TileKernel::TensorCore { mma_n } => {
                let entry =
                    format!("_ZN5nvfp47tcgen0512gemv_tcgen05ILj{mma_n}EEEvNS_4tile4MapsENS2_6ParamsE");
                vec![self.one(&entry, 192, mma_n, 0, n)]
            }
            TileKernel::CudaCore => (0..n)
                .step_by(8)
                .map(|first| {
                    let count = (n - first).min(8);
                    let vectors = count.next_power_of_two();
                    let entry = format!(
                        "_ZN5nvfp43tma18gemv_cuda_core_tmaILi{vectors}EEEvNS_4tile4MapsENS2_6ParamsE"
                    );
                    self.one(&entry, 288, 8, first, count)
                })
                .collect(),
        }
    }

    fn one(
        &self,
        entry: &str,
        threads: u32,
        vector_rows: u32,
        first: usize,
        n: usize,
    ) -> (Launch, String) {
        let shape = &self.problem.shape;
        let (m, k, l) = (shape.m() as u64, shape.k() as u64, shape.l() as u64);
        let (row, atoms) = (k / 2, k.div_ceil(64));
        let grid = [
            m.div_ceil(128) as u32 * self.config.cluster,
            shape.l() as u32,
            1,
        ];
        let mut launch = Launch::new(entry, grid, [threads, 1, 1]);
        launch.cluster = Some([self.config.cluster, 1, 1]);
        launch.dependent = self.config.dependent;
        // Tensor cores take whole atoms of scales.
        let scale_rows = if vector_rows == 8 { 8 } else { 32 };
        let stage: u32 = 128 * 128 + vector_rows * 128 + 4 * 512 + 4 * scale_rows * 16;
        let stage = stage.next_multiple_of(1024);
        launch.shared = self.config.stages * stage + 1024 - 16;
        launch = launch
            .tensor_map(map(
                self.codes.address,
                &[row, m, l],
                &[row, row * m],
                &[128, 128, 1],
                Swizzle::B128,
            ))
            .tensor_map(map(
                self.vectors.address + first as u64 * row,
                &[row, n as u64, l],
                &[row, self.vector_batch],
                &[128, vector_rows, 1],
                Swizzle::B128,
            ))
            .tensor_map(map(
                self.vector_scales.address + first as u64 * 16,
                &[16, n as u64, atoms, l],
                &[16, 512, self.vector_scale_batch],
                &[16, scale_rows, 4, 1],
                Swizzle::None,
            ));
        launch.params = vec![launch.params.concat(), self.params(first, n)];
        (launch, entry.to_string())
    }

    /// `tile::Params`.
    fn params(&self, first: usize, n: usize) -> Vec<u8> {
        let shape = &self.problem.shape;
        let mut p = vec![0u8; 104];
        let mut put = |at: usize, v: &[u8]| p[at..at + v.len()].copy_from_slice(v);
        let atoms = shape.k().div_ceil(64);
        let last = shape.blocks() - (atoms - 1) * 4;
        let (stages, columns) = (self.config.stages, self.config.tensor_columns());
        let words = [
            shape.m(),
            n,
            0,
            atoms,
            last,
            stages as usize,
            usize::from(self.config.dependent),
            columns as usize,
        ];
        for (i, v) in words.into_iter().enumerate() {
            put(4 * i, &(v as u32).to_le_bytes());
        }
        put(32, &self.scales.address.to_le_bytes());
        put(40, &self.global.to_le_bytes());
        if let Some(alpha) = self.row_alpha {
            put(48, &alpha.address.to_le_bytes());
        }
        if let Some(alpha) = self.vector_alpha {
            put(64, &(alpha.address + first as u64 * 4).to_le_bytes());
            put(72, &(shape.n() as u64).to_le_bytes());
        }
        let output = self.output.address + (first * shape.m() * self.element.bytes()) as u64;
        put(80, &output.to_le_bytes());
        put(88, &((shape.n() * shape.m()) as u64).to_le_bytes());
        let element: u32 = match self.element {
            FloatType::F16 => 0,
            FloatType::Bf16 => 1,
            FloatType::F32 => 2,
        };
        put(96, &element.to_le_bytes());
        p
    }

    /// Runs one launch.
    pub(crate) fn launch(
        &self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, SimError> {
        self.sim
            .borrow_mut()
            .run_program(program, launch, options, None)
    }

    /// Runs one launch and records what it does.
    pub(crate) fn traced(
        &self,
        program: &Program,
        launch: &Launch,
        options: &Options,
        limit: usize,
    ) -> Result<Trace, SimError> {
        let (result, trace) = self
            .sim
            .borrow_mut()
            .run_traced(program, launch, options, limit);
        result.map(|_| trace)
    }

    /// The output, as numbers.
    pub(crate) fn output(&self) -> Vec<f64> {
        let sim = self.sim.borrow();
        sim.download(self.output)
            .chunks_exact(self.element.bytes())
            .map(|b| match self.element {
                FloatType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
                FloatType::Bf16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
                FloatType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
            })
            .collect()
    }

    /// Panics where the output is not what the problem asks for.
    pub(crate) fn compare(&self, comparison: Comparison, context: &str) {
        if let Some(difference) = self.difference(comparison) {
            panic!("{:?}: {difference}; {context}", self.problem.shape);
        }
    }

    /// The first element that is not what the problem asks for.
    pub(crate) fn difference(&self, comparison: Comparison) -> Option<String> {
        if !self.sim.borrow().fully_written(self.output) {
            return Some("an output was not written".into());
        }
        let truth = self.problem.reference().unwrap();
        let roundings = self.config.roundings(&self.problem.shape);
        self.output().into_iter().enumerate().find_map(|(i, got)| {
            let alpha = match self.vector_alpha {
                Some(_) => f64::from(vector_alpha(i / self.problem.shape.m())),
                None => 1.0,
            };
            let (y, magnitude) = (truth.y[i] * alpha, truth.magnitude[i] * alpha);
            let bound = match comparison {
                Comparison::Exact => 0.0,
                Comparison::Bound => error_bound(y, magnitude, roundings, self.element),
            };
            // A NaN is wrong too.
            let right = (got - y).abs() <= bound;
            (!right).then(|| format!("element {i}: {got} instead of {y}, bound {bound:e}"))
        })
    }
}

/// Powers of two: no rounding.
pub(crate) fn vector_alpha(vector: usize) -> f32 {
    [1.0, 0.5, 0.25, 2.0][vector % 4]
}

/// The scales of 128 rows a batch with NaN in the blocks past K.
fn with_nan_tail(problem: &Problem, scales: &[u8]) -> Vec<u8> {
    let blocks = problem.shape.blocks();
    let atoms = blocks.div_ceil(4);
    let is_scale = |at: usize| at / 512 % atoms * 4 + at % 4 < blocks;
    let scale = |(at, &scale): (usize, &u8)| if is_scale(at) { scale } else { 0x7f };
    scales.iter().enumerate().map(scale).collect()
}

/// The weights' scales with NaN where no scale is: rows past M, blocks past K.
pub(crate) fn with_nan_padding(problem: &Problem, scales: &[u8]) -> Vec<u8> {
    let shape = &problem.shape;
    let atoms = shape.blocks().div_ceil(4);
    let batch = shape.m().div_ceil(128) * atoms * 512;
    let mut out = vec![0x7f; scales.len()];
    for l in 0..shape.l() {
        for row in 0..shape.m() {
            for block in 0..shape.blocks() {
                let at = l * batch
                    + (row / 128 * atoms + block / 4) * 512
                    + row % 32 * 16
                    + row % 128 / 32 * 4
                    + block % 4;
                out[at] = scales[at];
            }
        }
    }
    out
}

fn map(
    address: u64,
    dims: &[u64],
    strides: &[u64],
    box_dims: &[u32],
    swizzle: Swizzle,
) -> TensorMap {
    TensorMap::encode(TensorMapArgs {
        data_type: DataType::Uint8,
        global_address: address,
        global_dim: dims.to_vec(),
        global_strides: strides.to_vec(),
        box_dim: box_dims.to_vec(),
        element_strides: vec![1; dims.len()],
        interleave: Interleave::None,
        swizzle,
        l2_promotion: L2Promotion::B256,
        oob_fill: OobFill::Zero,
    })
    .expect("a valid tensor map")
}
