//! Configs and launch plans, for commands that show them without a GPU.

use nvfp4_gemv::kernel::Call;
use nvfp4_gemv::kernel::plan::Launch;
use nvfp4_gemv::{Config, Gpu};
use serde_json::Value;

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

/// The launches of a config, or none where it cannot compute the call or there is nothing to compute.
pub(crate) fn launches(config: &Config, call: &Call, gpu: &Gpu, chained: bool) -> Vec<Launch> {
    let plan = config.plan(call, gpu, chained);
    plan.map_or_else(|_| Vec::new(), |plan| plan.launches().to_vec())
}

/// A launch in a line: `gemv_ring_nvfp4_c2_r1_l1, 132 CTAs of 512 threads, 70144 bytes of shared memory`.
pub(crate) fn launch_line(launch: &Launch) -> String {
    let grid = launch.grid.iter().rev().skip_while(|&&ctas| ctas == 1);
    let mut grid: Vec<_> = grid.map(ToString::to_string).collect();
    grid.reverse();
    let grid = match grid.is_empty() {
        true => "1".into(),
        false => grid.join(" x "),
    };
    let cluster = match launch.cluster {
        0 | 1 => String::new(),
        ctas => format!(" in clusters of {ctas}"),
    };
    format!(
        "{}, {grid} CTAs{cluster} of {} threads, {} bytes of shared memory",
        launch.entry,
        launch.threads,
        launch.dynamic_shared + launch.static_shared
    )
}
