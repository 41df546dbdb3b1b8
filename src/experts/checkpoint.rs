//! Experts of checkpoints.

use std::sync::Arc;

use super::Experts;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::linear::Linear;
use crate::mlp::Mlp;
use crate::types::RowOrder;

impl Experts {
    /// All experts of a layer of a checkpoint. `experts` is their common name, such as `model.layers.0.mlp.experts`.
    /// `gate_up` names gate and up, as `["gate_proj", "up_proj"]`, or the one layer that has the rows of both in an
    /// order, as `["gate_up_proj"]`; `down` names the last layer. The experts have tensors of their own
    /// (`experts.0.gate_proj`), or are stacked in one (`experts.gate_up_proj`).
    ///
    /// Codes and scales stay in the files, but for stacked tensors that are transposed. The [gate](crate::Gate) is the one
    /// that `config.json` names ([`Checkpoint::gate`]), and SiLU's where it names none;
    /// [`with_gate`](Self::with_gate) takes another one.
    ///
    /// # Errors
    /// As [`Checkpoint::experts`]'s, as [`Linear::from_checkpoint`]'s, and as [`Checkpoint::gate`]'s.
    /// [`CheckpointError::Join`] for layers that do not fit each other.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use nvfp4_gemv::{Experts, RowOrder, checkpoint::Checkpoint};
    /// let checkpoint = Arc::new(Checkpoint::open("model/")?);
    /// let (name, gate_up) = ("model.layers.0.mlp.experts", ["gate_proj", "up_proj"]);
    /// let experts = Experts::from_checkpoint(&checkpoint, name, &gate_up, RowOrder::Stacked, "down_proj")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_checkpoint(
        checkpoint: &Arc<Checkpoint>,
        experts: &str,
        gate_up: &[&str],
        order: RowOrder,
        down: &str,
    ) -> Result<Self, CheckpointError> {
        let gate = checkpoint.gate(experts)?;
        let layers = |part: &str| Linear::experts_from_checkpoint(checkpoint, experts, part);
        let refused = |error: crate::Error| CheckpointError::Join {
            layers: [experts.to_owned(), experts.to_owned()],
            reason: error.to_string(),
        };
        let downs = layers(down)?;
        let mlps: crate::Result<Vec<Mlp>> = match gate_up {
            [gate, up] => {
                let (gates, ups) = (layers(gate)?, layers(up)?);
                check(&downs, &[&gates, &ups]).map_err(refused)?;
                let layers = gates.into_iter().zip(ups).zip(downs);
                layers
                    .map(|((gate, up), down)| Mlp::new(gate, up, down))
                    .collect()
            }
            [both] => {
                let both = layers(both)?;
                check(&downs, &[&both]).map_err(refused)?;
                let layers = both.into_iter().zip(downs);
                layers
                    .map(|(gate_up, down)| Mlp::joined(gate_up, order, down))
                    .collect()
            }
            others => {
                return Err(CheckpointError::Join {
                    layers: [experts.to_owned(), experts.to_owned()],
                    reason: format!(
                        "gate and up are one layer or two, and {} were named",
                        others.len()
                    ),
                });
            }
        };
        let experts = mlps.and_then(Self::new);
        experts.and_then(|of| of.with_gate(gate)).map_err(refused)
    }
}

/// Whether each layer has as many experts.
fn check(downs: &[Linear], others: &[&[Linear]]) -> crate::Result<()> {
    let fits = |other: &&[Linear]| {
        crate::check::fits(
            "the number of gates or ups",
            other.len(),
            "the number of downs",
            downs.len(),
        )
    };
    others.iter().try_for_each(fits)
}
