//! A problem's operands byte by byte, as a GPU's memory holds them.

use nvfp4_gemv::kernel::Call;
use nvfp4_gemv::{
    Activation, FloatType, GlobalScale, RawOnRead, RawOutput, RawSelect, RawVectors, RawWeights,
    ScaleLayout, Shape, Strides,
};

/// The operands of one call, and the type of its result.
#[derive(Clone, Debug)]
pub struct Operands {
    /// The dimensions.
    pub shape: Shape,
    /// Codes of the weights.
    pub codes: Vec<u8>,
    /// Block scales of the weights.
    pub scales: Vec<u8>,
    /// How these lie.
    pub layout: ScaleLayout,
    /// The weights' global scale.
    pub global: GlobalScale,
    /// A factor for each row, of one batch or of all of them, or nothing.
    pub row_alpha: Vec<f32>,
    /// The matrix of each batch, of as many as there are batches; or nothing.
    pub select: Vec<i32>,
    /// Whether the launch before a chained one may write `select`.
    pub late: bool,
    /// Element type of the vectors.
    pub activation: Activation,
    /// Codes or numbers.
    pub vectors: Vec<u8>,
    /// Bytes between vectors, and between batches.
    pub vector_strides: Strides,
    /// Block scales of NVFP4 vectors, or nothing.
    pub vector_scales: Vec<u8>,
    /// How these lie.
    pub vector_layout: ScaleLayout,
    /// Bytes between the scales of vectors, and between batches.
    pub vector_scale_strides: Strides,
    /// The global scale of NVFP4 vectors.
    pub vector_global: GlobalScale,
    /// A factor for each vector, or nothing.
    pub vector_alpha: Vec<f32>,
    /// Whether the kernel quantises `vectors`, which are elements then, and how; its address and strides are left out.
    pub on_read: Option<RawOnRead>,
    /// Digits of a vector.
    pub digits: usize,
    /// Element type of the result.
    pub output: FloatType,
    /// Bytes between vectors' results and between batches, where they do not follow each other.
    pub output_strides: Option<Strides>,
    /// A number for each row, of one batch or of all of them, or nothing.
    pub bias: Vec<f32>,
    /// A number for each result, densely packed, of the result's type; or nothing.
    pub residual: Vec<u8>,
    /// The result takes the residual's place.
    pub in_place: bool,
}

impl Operands {
    /// The call that computes it, where `upload` gives the addresses of bytes, and `output` is the result's.
    ///
    /// # Panics
    /// Where the operands do not belong together, or the addresses are none.
    pub fn call(&self, output: u64, mut upload: impl FnMut(&str, &[u8]) -> u64) -> Call {
        // An operand that is not there stays a null pointer.
        let mut upload = |name: &str, bytes: &[u8]| match bytes {
            [] => 0,
            bytes => upload(name, bytes),
        };
        let weights = RawWeights {
            codes: upload("weight codes", &self.codes),
            scales: upload("weight scales", &self.scales),
            layout: self.layout,
            global: self.global,
            row_alpha: upload("row alpha", &bytes(&self.row_alpha)),
            row_alpha_batch_stride: match self.row_alpha.len() > self.shape.m() {
                true => self.shape.m(),
                false => 0,
            },
            select: (!self.select.is_empty()).then(|| RawSelect {
                ids: upload("select", &words(&self.select)),
                late: self.late,
                distinct: false,
                matrices: self.codes.len() / (self.shape.m() * self.shape.row_code_bytes()),
            }),
        };
        let values = upload("vectors", &self.vectors);
        let dense = |element| RawVectors::Dense {
            element,
            values,
            strides: self.vector_strides,
        };
        let vectors = match (self.on_read, self.activation) {
            (Some(on_read), _) => RawVectors::OnRead(RawOnRead {
                values,
                strides: self.vector_strides,
                ..on_read
            }),
            (None, Activation::Nvfp4) => RawVectors::Nvfp4 {
                codes: values,
                code_strides: self.vector_strides,
                scales: upload("vector scales", &self.vector_scales),
                layout: self.vector_layout,
                scale_strides: self.vector_scale_strides,
                global: self.vector_global,
                vector_alpha: upload("vector alpha", &bytes(&self.vector_alpha)),
                digits: self.digits,
            },
            (None, Activation::F16) => dense(FloatType::F16),
            (None, Activation::Bf16) => dense(FloatType::Bf16),
            (None, Activation::F32) => dense(FloatType::F32),
        };
        let residual = match self.in_place {
            true => output,
            false => upload("residual", &self.spread(&self.residual, 0xff)),
        };
        let output = RawOutput {
            strides: self.output_strides,
            bias: upload("bias", &bytes(&self.bias)),
            bias_batch_stride: match self.bias.len() > self.shape.m() {
                true => self.shape.m(),
                false => 0,
            },
            residual,
            ..RawOutput::packed(output, self.output)
        };
        Call::new(&self.shape, &weights, &vectors, &output).expect("a valid call")
    }

    /// Bytes that the result reaches.
    pub fn output_bytes(&self) -> usize {
        self.rows().last().map_or(0, |last| last.end)
    }

    /// The bytes at the result's place before the launch, where they matter: the residual, and ones between results.
    pub fn output_before(&self) -> Option<Vec<u8>> {
        match (self.in_place, self.output_strides) {
            (false, None) => None,
            (true, _) => Some(self.spread(&self.residual, 0xff)),
            (false, Some(_)) => Some(vec![0xff; self.output_bytes()]),
        }
    }

    /// The results of what is at their place, densely packed; `None` where a byte between them has changed.
    pub fn results(&self, memory: &[u8]) -> Option<Vec<u8>> {
        let results: Vec<u8> = self.rows().flat_map(|row| &memory[row]).copied().collect();
        (self.spread(&results, 0xff) == memory).then_some(results)
    }

    /// Densely packed results as they lie, with so many bits between them; nothing of nothing.
    fn spread(&self, packed: &[u8], between: u8) -> Vec<u8> {
        if packed.is_empty() {
            return Vec::new();
        }
        let mut all = vec![between; self.output_bytes()];
        let row = self.shape.m() * self.output.bytes();
        for (to, from) in self.rows().zip(packed.chunks_exact(row)) {
            all[to].copy_from_slice(from);
        }
        all
    }

    /// Byte ranges of the results of each vector of each batch.
    fn rows(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let (n, row) = (self.shape.n(), self.shape.m() * self.output.bytes());
        let strides = self.output_strides.unwrap_or(Strides::packed(n, row));
        (0..self.shape.l() * n).map(move |i| {
            let start = i / n * strides.batch + i % n * strides.row;
            start..start + row
        })
    }
}

fn words(ids: &[i32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Numbers as memory holds them.
pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
