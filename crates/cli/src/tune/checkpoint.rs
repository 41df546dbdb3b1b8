//! The shapes of a checkpoint's layers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use nvfp4_gemv::Shape;
use nvfp4_gemv::checkpoint::{Checkpoint, ModuleKind};
use nvfp4_gemv_files::printable;

use crate::quantize::fused;
use crate::shapes;

/// The shapes of all NVFP4 matrices of a checkpoint, and of those that engines join to one (q, k and v; gate and up),
/// each for so many vectors; those with the most bytes first. Experts are left out: their calls take no tuned file.
pub(super) fn shapes(path: &Path, vectors: &[usize]) -> Result<Vec<Shape>> {
    let checkpoint = Checkpoint::open(path)?;
    let mut matrices = Vec::new();
    // By the joined layer's name: rows, columns, parts.
    let mut joined: BTreeMap<String, (usize, usize, usize)> = BTreeMap::new();
    let mut experts = 0;
    for module in checkpoint.modules() {
        if !matches!(module.kind(), ModuleKind::Nvfp4 { .. }) {
            continue;
        }
        let (name, &[m, k]) = (module.name(), module.shape()) else {
            experts += 1;
            continue;
        };
        if name.split('.').any(|part| part == "experts") {
            experts += 1;
            continue;
        }
        matrices.push((m, k));
        if let Some(of) = fused(name) {
            let (rows, _, parts) = joined.entry(of).or_insert((0, k, 0));
            (*rows, *parts) = (*rows + m, *parts + 1);
        }
    }
    let joined = joined.into_values().filter(|(.., parts)| *parts > 1);
    matrices.extend(joined.map(|(rows, k, _)| (rows, k)));
    matrices.sort_by_key(|&(m, k)| (std::cmp::Reverse(m.saturating_mul(k)), m));
    matrices.dedup();
    if matrices.is_empty() {
        let what = match experts {
            0 => "no NVFP4 layer",
            _ => "no NVFP4 layer but experts, whose calls take no tuned file",
        };
        bail!("{}: {what}", printable::path(path));
    }
    let mut all = Vec::new();
    for (m, k) in matrices {
        for &n in vectors {
            all.push(shapes::of(m, n, k, 1)?);
        }
    }
    Ok(all)
}
