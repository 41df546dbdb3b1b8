//! Calls with f16, bf16 or f32 vectors, as calls with [digits](crate::Nvfp4Vectors::with_digits) that a launch of their
//! own makes: where the caller allows it ([`Options::vector_accuracy`](super::Options::vector_accuracy)), and a kernel
//! that multiplies digits is expected to be the faster one. The digits lie in the call's workspace.

use nvfp4_gemv_targets::products::Product;

use crate::gpu::Gpu;
use crate::kernel::plan::{Launch, Plan};
use crate::kernel::quantize::{self, Global, Input, Quantize};
use crate::kernel::{Call, Checked, Job};
use crate::operands::{Alignment, Operands, RawVectors, RawWorkspace};
use crate::refusal::Refusal;
use crate::shape::{Shape, Strides};
use crate::tensor::GlobalScale;
use crate::types::{Activation, ScaleLayout};

/// Seconds that making digits adds to a call. An H100's quantiser took 2.2 to 2.9 us for a vector or 16
/// (docs/notes/quantise.md); no GPU that multiplies digits was asked.
const SECONDS: f64 = 2.5e-6;
/// The layout that every kernel takes which multiplies digits.
const LAYOUT: ScaleLayout = ScaleLayout::Tiled128x4;

/// Whether digits can be made of a job's vectors at all.
pub(super) fn can_be_made(job: &Job<'_>) -> bool {
    let Operands {
        activation,
        select,
        on_read,
        ..
    } = *job.operands;
    activation != Activation::Nvfp4 && !select && !on_read && !job.shape.is_empty()
}

/// Bytes that a GPU's memory brings while digits are made, at its kind's published rate.
pub(super) fn bytes_meanwhile(gpu: &Gpu) -> f64 {
    let product = Product::of_compute_capability(gpu.compute_capability);
    SECONDS * product.memory_bandwidth as f64
}

/// The digits of a call's vectors, as offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digits {
    /// Digits of a vector.
    digits: usize,
    code_strides: Strides,
    scale_strides: Strides,
    scales: u64,
    globals: u64,
    bytes: u64,
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(RawWorkspace::ALIGNMENT)
}

impl Digits {
    /// So many digits of each vector of a shape.
    ///
    /// # Errors
    /// More rows than a shape can have.
    pub(super) fn of(shape: &Shape, digits: usize) -> Result<Self, Refusal> {
        let rows = shape.of_digits(digits).map_err(|_| Refusal::Digits {
            digits,
            takes: "no more vectors than a shape can have",
        })?;
        let code_strides = Strides::packed(rows.n(), shape.row_code_bytes());
        let of_batch = LAYOUT.bytes(rows.n(), shape.blocks());
        // A shape's sizes are those that memory can have.
        let scales = aligned((rows.l() * rows.n() * shape.row_code_bytes()) as u64);
        let globals = scales + aligned((rows.l() * of_batch) as u64);
        Ok(Self {
            digits,
            code_strides,
            scale_strides: Strides {
                row: shape.blocks(),
                batch: of_batch,
            },
            scales,
            globals,
            bytes: globals + aligned((shape.l() * shape.n() * 4) as u64),
        })
    }

    /// The number of digits of a vector.
    pub(super) fn number(&self) -> usize {
        self.digits
    }

    /// The vectors that the kernel multiplies, which lie at an address.
    fn vectors(&self, at: u64) -> RawVectors {
        RawVectors::Nvfp4 {
            codes: at,
            code_strides: self.code_strides,
            scales: at + self.scales,
            layout: LAYOUT,
            scale_strides: self.scale_strides,
            global: GlobalScale::ONE,
            vector_alpha: at + self.globals,
            digits: self.digits,
        }
    }

    /// The job's operands, with the digits in the place of its vectors, and what they leave of its workspace.
    ///
    /// # Errors
    /// A workspace in which digits have no place behind the counters of its front.
    pub(super) fn operands(&self, job: &Job<'_>) -> Result<Operands, Refusal> {
        let given = job.operands.workspace;
        let left = left(given, self.bytes);
        if left < RawWorkspace::COUNTER_BYTES {
            let needed = self.and(RawWorkspace::COUNTER_BYTES);
            return Err(Refusal::Workspace { needed, given });
        }
        let nowhere = Call::nowhere(job.shape, Activation::Nvfp4, LAYOUT, 0);
        let made = Operands::of(job.shape, &nowhere.weights, &self.vectors(0));
        Ok(Operands {
            alignment: Alignment {
                codes: job.operands.alignment.codes,
                scales: job.operands.alignment.scales,
                ..made.alignment
            },
            workspace: left,
            activation: made.activation,
            vector_layout: made.vector_layout,
            digits: made.digits,
            ..*job.operands
        })
    }

    /// Bytes of a workspace of which a kernel uses so many.
    pub(super) fn and(&self, of_kernel: u64) -> u64 {
        place(of_kernel).saturating_add(self.bytes)
    }

    /// A refusal for want of a workspace, which counts the digits.
    pub(super) fn counted(&self, refusal: Refusal, given: u64) -> Refusal {
        match refusal {
            Refusal::Workspace {
                needed,
                given: left,
            } if left != given => Refusal::Workspace {
                needed: self.and(needed),
                given,
            },
            other => other,
        }
    }

    /// The launch that makes the digits, and those that multiply them, with a config that was checked for [these
    /// operands](Self::operands).
    pub(super) fn plan(&self, checked: &Checked, call: &Call, job: &Job<'_>) -> Plan {
        let RawVectors::Dense {
            element,
            values,
            strides,
        } = call.vectors
        else {
            unreachable!("digits are made of f16, bf16 and f32 vectors");
        };
        let of_kernel = checked.workspace_bytes(job.gpu);
        let at = call.workspace.address + place(of_kernel);
        let of_digits = Call {
            vectors: self.vectors(at),
            workspace: RawWorkspace {
                bytes: left(call.workspace.bytes, self.bytes),
                ..call.workspace
            },
            ..*call
        };
        let made = Quantize {
            element,
            input: Input::Plain,
            chained: job.dependent(),
            early: false,
            copies: 1,
            values,
            strides,
            digits: self.digits,
            global: Global::Computed,
            codes: at,
            scales: at + self.scales,
            layout: LAYOUT,
            vector_alpha: at + self.globals,
        };
        let mut plan = Plan::from(Launch {
            auxiliary: true,
            ..quantize::launch(&call.shape, &made)
        });
        for launch in checked.plan(&of_digits, job.gpu).launches() {
            plan.push(launch.clone());
        }
        plan
    }
}

/// Bytes of a workspace that digits leave to the kernel.
fn left(given: u64, digits: u64) -> u64 {
    let left = given.saturating_sub(digits);
    left - left % RawWorkspace::ALIGNMENT
}

/// Where digits begin: behind what the kernel uses, and behind the counters, which other calls expect to be zeros.
fn place(of_kernel: u64) -> u64 {
    aligned(of_kernel.max(RawWorkspace::COUNTER_BYTES))
}
