//! Calls of many vectors, which take several passes over the weights.

use std::sync::Arc;

use nvfp4_gemv::kernel::Config;
use ptx_sim::Options;

use super::operands::{Case, Operands};
use super::sim::Simulator;

/// Numbers of vectors: past one pass of `ring`, `stream` and `direct`; past a quarter of a 128-row atom of scales;
/// a half of the atom; and past the whole atom.
pub(crate) const MANY_VECTORS: [usize; 4] = [17, 33, 64, 130];

/// Demands that the result is right, and bit for bit the result of one call for the vectors of each pass.
pub(crate) fn check_passes(
    simulator: &Simulator,
    case: &Case,
    config: impl Into<Config>,
    chained: bool,
    options: &Options,
) {
    let config = config.into();
    let operands = Arc::new(Operands::new(case));
    let all = simulator.run(&operands, config, chained, options);
    let (m, n) = (case.shape.m(), case.shape.n());
    let row = m * case.output.bytes();
    let most = config.pass_vectors() as usize;
    assert!(n > most, "{n} vectors are one pass");
    for first in (0..n).step_by(most) {
        let end = n.min(first + most);
        let some = Arc::new(operands.of_vectors(first..end));
        let alone = simulator.run(&some, config, chained, options);
        for (batch, alone) in alone.chunks((end - first) * row).enumerate() {
            let together = &all[(batch * n + first) * row..][..alone.len()];
            assert!(
                together == alone,
                "{config:?}, {case:?}, batch {batch}: vectors {first}..{end} have other bits alone"
            );
        }
    }
}
