//! The sound kernel's own output as the expected result.

use std::collections::BTreeMap;

use super::mutant::{Kernel, Planted};
use super::run::Ran;
use crate::error::SimError;
use crate::launch::Prepared;
use crate::sim::Options;

/// A launch whose buffers must end up as they should, to the bit.
#[derive(Debug)]
pub struct Golden {
    prepared: Prepared,
    /// Bytes of buffers after the run, and whether all of them were written.
    want: BTreeMap<String, (Vec<u8>, bool)>,
}

impl Golden {
    /// Runs the sound kernel and keeps the contents of all buffers.
    pub fn record(kernel: &Kernel, prepared: Prepared) -> Result<Self, SimError> {
        let planted = kernel.sound()?;
        let mut p = prepared.clone();
        let options = Options::default();
        p.sim
            .run_program(planted.program(), &p.launch, &options, None)?;
        let want = p
            .buffers
            .iter()
            .map(|(name, b)| {
                let bytes = p.sim.download(*b).to_vec();
                (name.clone(), (bytes, p.sim.fully_written(*b)))
            })
            .collect();
        Ok(Self { prepared, want })
    }

    /// Expects these bytes in these buffers; the others may hold anything.
    pub fn expect(prepared: Prepared, want: BTreeMap<String, Vec<u8>>) -> Result<Self, SimError> {
        for (name, bytes) in &want {
            let size = prepared.buffers.get(name).map(|b| b.size);
            if size != Some(bytes.len()) {
                return Err(SimError::Launch(format!(
                    "{} bytes are expected in buffer `{name}` of {} bytes",
                    bytes.len(),
                    size.unwrap_or(0)
                )));
            }
        }
        let want = want.into_iter().map(|(n, b)| (n, (b, true))).collect();
        Ok(Self { prepared, want })
    }

    /// The launch.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Runs and compares.
    pub fn check(&self, planted: &Planted, options: &Options) -> Result<Ran, SimError> {
        let launch = planted.launch(self.prepared.launch.clone())?;
        let mut sim = self.prepared.sim.clone();
        let report = sim.run_program(planted.program(), &launch, options, None)?;
        let mut wrong = None;
        for (name, (want, written)) in &self.want {
            let Some(b) = self.prepared.buffers.get(name) else {
                continue;
            };
            let got = sim.download(*b);
            if let Some(at) = got.iter().zip(want).position(|(g, w)| g != w) {
                wrong = Some(format!("buffer `{name}` differs from byte {at} on"));
            } else if sim.fully_written(*b) != *written {
                wrong = Some(format!("buffer `{name}` is not written in the same places"));
            }
            if wrong.is_some() {
                break;
            }
        }
        Ok(Ran { report, wrong })
    }
}
