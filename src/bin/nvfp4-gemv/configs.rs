//! Configs and launch plans, for commands that show them without a GPU.

use nvfp4_gemv::kernel::Call;
use nvfp4_gemv::kernel::plan::Launch;
use nvfp4_gemv::{
    Activation, Config, FloatType, GlobalScale, Gpu, RawOutput, RawVectors, RawWeights, Result,
    ScaleLayout, Shape, Strides,
};
use serde_json::{Value, json};

/// A kernel and the fields of its config: `ring: chunks 2, ctas 132, ...`.
pub(crate) fn one_line(config: &Config) -> String {
    let mut fields = Vec::new();
    if let Ok(Value::Object(kernels)) = serde_json::to_value(config) {
        for of in kernels.values().filter_map(Value::as_object) {
            fields.extend(of.iter().map(|(name, value)| format!("{name} {value}")));
        }
    }
    format!("{}: {}", config.kernel(), fields.join(", "))
}

/// A call with packed operands at addresses where no memory is: enough to plan its launches. The weights' codes and
/// scales are aligned to so many bytes, everything else as allocations are.
pub(crate) fn placeholder(
    shape: &Shape,
    activation: Activation,
    layout: ScaleLayout,
    align: u64,
) -> Result<Call> {
    // Regions that no operand reaches the end of, as far as addresses go.
    let at = |i: u64| i << 59;
    let weights = RawWeights {
        codes: at(1) + align,
        scales: at(2) + align,
        layout,
        global: GlobalScale::ONE,
        row_alpha: 0,
        row_alpha_batch_stride: 0,
    };
    let packed = |row: usize| Strides {
        row,
        batch: row * shape.n(),
    };
    let dense = |element: FloatType| RawVectors::Dense {
        element,
        values: at(3),
        strides: packed(shape.k() * element.bytes()),
    };
    let vectors = match activation {
        Activation::Nvfp4 => RawVectors::Nvfp4 {
            codes: at(3),
            code_strides: packed(shape.row_code_bytes()),
            scales: at(4),
            layout,
            scale_strides: Strides {
                row: shape.blocks(),
                batch: layout.bytes(shape.n(), shape.blocks()),
            },
            global: GlobalScale::ONE,
            vector_alpha: 0,
        },
        Activation::F16 => dense(FloatType::F16),
        Activation::Bf16 => dense(FloatType::Bf16),
        Activation::F32 => dense(FloatType::F32),
    };
    let output = RawOutput {
        address: at(5),
        element: FloatType::F32,
    };
    Call::new(shape, &weights, &vectors, &output)
}

/// The launches of a config, or none where it cannot compute the call or there is nothing to compute.
pub(crate) fn launches(config: &Config, call: &Call, gpu: &Gpu, chained: bool) -> Vec<Launch> {
    let plan = config.plan(call, gpu, chained);
    plan.map_or_else(|_| Vec::new(), |plan| plan.launches().to_vec())
}

pub(crate) fn launch_json(launch: &Launch) -> Value {
    json!({
        "entry": launch.entry,
        "grid": launch.grid,
        "threads": launch.threads,
        "cluster": launch.cluster,
        "dynamic_shared": launch.dynamic_shared,
        "static_shared": launch.static_shared,
    })
}

/// A launch in a line: `gemv_ring_c2_r1, 132 CTAs of 512 threads, 70144 bytes of shared memory`.
pub(crate) fn launch_line(launch: &Launch) -> String {
    let grid = launch.grid.iter().rev().skip_while(|&&ctas| ctas == 1);
    let mut grid: Vec<_> = grid.map(ToString::to_string).collect();
    grid.reverse();
    let grid = match grid.is_empty() {
        true => "1".into(),
        false => grid.join(" x "),
    };
    let cluster = match launch.cluster {
        0 => String::new(),
        ctas => format!(" in clusters of {ctas}"),
    };
    format!(
        "{}, {grid} CTAs{cluster} of {} threads, {} bytes of shared memory",
        launch.entry,
        launch.threads,
        launch.dynamic_shared + launch.static_shared
    )
}
