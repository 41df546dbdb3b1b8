//! Plans: which kernel computes a problem, and why, on any machine.

use std::ffi::{CString, c_char};
use std::fmt::Write as _;

use nvfp4_gemv::dispatch::{self, Target};
use nvfp4_gemv::kernel::{Call, plan::Plan};
use nvfp4_gemv::{Choice, Dims, Gpu, Operands, Options, Product, Shape, select};
use serde_json::{Value, json};

use crate::failure::{Failure, nvfp4_status};
use crate::memory;

/// A GPU: one of this machine, or a product that is elsewhere.
#[derive(Debug)]
pub struct nvfp4_gpu(pub(crate) Gpu);

/// A problem that is planned.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_problem {
    /// Rows of the weights.
    pub rows: usize,
    /// Elements of a row.
    pub k: usize,
    /// Vectors.
    pub n: usize,
    /// NVFP4_F16, NVFP4_BF16, NVFP4_F32 or NVFP4_CODES.
    pub element: u32,
    /// Layout of the block scales, of NVFP4 vectors too.
    pub layout: u32,
    /// Whether the launch is chained: see nvfp4_call_prepare.
    pub chained: u32,
}

/// A plan as sentences, a line each.
pub const NVFP4_TEXT: u32 = 0;
/// A plan as one JSON object.
pub const NVFP4_JSON: u32 = 1;

/// A product by its name, such as "h200" or "rtx5090", for plans on machines without it.
///
/// # Safety
/// `name` is NULL or text, and `gpu` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_gpu_of_product(
    name: *const c_char,
    gpu: *mut *mut nvfp4_gpu,
) -> nvfp4_status {
    let find = || {
        // SAFETY: this function's own contract.
        let name = unsafe { memory::text("name", name) }?;
        let product = Product::of_name(name).ok_or_else(|| {
            let known = Product::ALL.iter().map(|product| product.name);
            let known: Vec<&str> = known.collect();
            Failure::argument(format!(
                "{name:?} is no product; known are {}",
                known.join(", ")
            ))
        })?;
        Ok(nvfp4_gpu(Gpu::of_product(product, Gpu::DEFAULT_IMAGES)))
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(gpu, find) }
}

/// Frees what is known of a GPU.
///
/// # Safety
/// `gpu` is NULL or there, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_gpu_free(gpu: *mut nvfp4_gpu) {
    // SAFETY: this function's own contract.
    unsafe { memory::free(gpu) }
}

/// Says which kernel computes a problem, why, and by which launches, as NVFP4_TEXT or NVFP4_JSON. A `gpu` of NULL is the
/// CPU. A workspace counts as large enough. The text is freed by nvfp4_text_free.
///
/// # Safety
/// `gpu` is NULL or there, `problem` is NULL or there, and `text` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_plan(
    gpu: *const nvfp4_gpu,
    problem: *const nvfp4_problem,
    format: u32,
    text: *mut *mut c_char,
) -> nvfp4_status {
    let plan = || {
        // SAFETY: this function's own contract.
        let problem = Problem::of(unsafe { memory::read("problem", problem) }?)?;
        if gpu.is_null() {
            let target = Target::Host;
            let choice = select(&problem.shape, &problem.operands, target, &Options::new())?;
            return said(&choice, &Plan::new(), format);
        }
        // SAFETY: this function's own contract.
        let gpu = &unsafe { memory::read("gpu", gpu) }?.0;
        let Operands {
            activation,
            weight_layout,
            ..
        } = problem.operands;
        let call = Call::nowhere(&problem.shape, activation, weight_layout, 256);
        let (choice, plan) = dispatch::plan(&call, gpu, &problem.options())?;
        said(&choice, &plan, format)
    };
    // SAFETY: this function's own contract.
    unsafe { memory::value(text, std::ptr::null_mut(), plan) }
}

/// Bytes of a workspace that a call of the problem would use, 0 for none.
///
/// # Safety
/// `gpu` is NULL or there, `problem` is NULL or there, and `bytes` is NULL or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_workspace_bytes(
    gpu: *const nvfp4_gpu,
    problem: *const nvfp4_problem,
    bytes: *mut u64,
) -> nvfp4_status {
    let ask = || {
        // SAFETY: this function's own contract.
        let gpu = &unsafe { memory::read("gpu", gpu) }?.0;
        // SAFETY: this function's own contract.
        let problem = Problem::of(unsafe { memory::read("problem", problem) }?)?;
        let (shape, operands) = (&problem.shape, &problem.operands);
        Ok(dispatch::workspace_bytes(
            shape,
            operands,
            gpu,
            &problem.options(),
        )?)
    };
    // SAFETY: this function's own contract.
    unsafe { memory::value(bytes, 0, ask) }
}

/// Frees a text that a function here has made.
///
/// # Safety
/// `text` is NULL or such a text, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: made by `CString::into_raw` in `said`, and freed once, says the caller.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// A problem that was checked.
struct Problem {
    shape: Shape,
    operands: Operands,
    chained: bool,
}

impl Problem {
    fn of(problem: &nvfp4_problem) -> Result<Self, Failure> {
        let nvfp4_problem { rows: m, k, n, .. } = *problem;
        let activation = memory::activation(problem.element)?;
        Ok(Self {
            shape: Shape::new(Dims { m, n, k, l: 1 })?,
            operands: Operands::new(activation, memory::layout(problem.layout)?),
            chained: problem.chained != 0,
        })
    }

    fn options(&self) -> Options<'static> {
        options(self.chained)
    }
}

/// Options that nothing is launched with, or for whose launches the caller of C has promised what they ask for.
pub(crate) fn options(chained: bool) -> Options<'static> {
    match chained {
        // SAFETY: `nvfp4_call_prepare` has this promise in its contract; plans launch nothing.
        true => unsafe { Options::new().chained() },
        false => Options::new(),
    }
}

/// A choice and its launches, as text for C.
pub(crate) fn said(choice: &Choice, plan: &Plan, format: u32) -> Result<*mut c_char, Failure> {
    let text = match format {
        NVFP4_TEXT => sentences(choice, plan),
        NVFP4_JSON => object(choice, plan).to_string(),
        _ => {
            return Err(Failure::argument(format!(
                "{format} is no format of a plan"
            )));
        }
    };
    let text = CString::new(text).map_err(|_| Failure::argument("a plan with a zero"))?;
    Ok(text.into_raw())
}

fn sentences(choice: &Choice, plan: &Plan) -> String {
    let mut text = choice.path.to_string();
    if let Some(kernel) = choice.kernel() {
        let _ = write!(text, ", kernel {kernel}");
    }
    let _ = write!(text, ": {}", choice.reason);
    for launch in plan.launches() {
        let [x, y, z] = launch.grid;
        let (entry, threads) = (launch.entry, launch.threads);
        let _ = write!(text, "\n{entry}: {x} x {y} x {z} CTAs of {threads} threads");
    }
    text
}

fn object(choice: &Choice, plan: &Plan) -> Value {
    json!({
        "path": choice.path.name(),
        "kernel": choice.kernel().map(|kernel| kernel.name()),
        "config": choice.config,
        "reason": choice.reason.to_string(),
        "launches": plan.launches(),
    })
}
