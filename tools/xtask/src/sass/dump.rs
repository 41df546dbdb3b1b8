//! The kernels of object files, with what is worked out about them.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::Result;
use sass::{Function, Functions};
use serde::Serialize;

use crate::sass::catalogue::Catalogue;
use crate::sass::estimate::Estimate;
use crate::sass::figures::{Figures, reserved_in_usage};
use crate::sass::gpu::Gpu;

/// One kernel as compiled for one architecture.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Kernel {
    #[serde(flatten)]
    pub(crate) function: Function,
    /// Figures from the code and the crate's facts together, on the architecture's GPU.
    pub(crate) figures: Option<Figures>,
    /// No measurement.
    pub(crate) estimate: Option<Estimate>,
}

impl Deref for Kernel {
    type Target = Function;

    fn deref(&self) -> &Function {
        &self.function
    }
}

impl DerefMut for Kernel {
    fn deref_mut(&mut self) -> &mut Function {
        &mut self.function
    }
}

impl From<Function> for Kernel {
    fn from(function: Function) -> Self {
        Self {
            function,
            ..Self::default()
        }
    }
}

impl Kernel {
    pub(crate) fn instructions(&self) -> u32 {
        self.opcodes.values().sum()
    }

    /// Without what the system reserves.
    pub(crate) fn static_shared(&self) -> u32 {
        self.shared.saturating_sub(reserved_in_usage(&self.arch))
    }

    /// Once all of the code is there.
    pub(crate) fn examine(&mut self, catalogue: &Catalogue) {
        let facts = catalogue.facts(&self.arch, &self.symbol);
        self.figures = facts.and_then(|facts| Figures::of(self, facts));
        self.estimate = self.figures.as_ref().and_then(|figures| {
            let gpu = Gpu::of_arch(&self.arch)?;
            Estimate::of(figures, gpu)
        });
    }
}

/// The kernels of all files.
pub(crate) fn read(cuobjdump: &Path, files: &[PathBuf]) -> Result<Vec<Kernel>> {
    let mut functions: Functions = BTreeMap::new();
    for file in files {
        sass::read(cuobjdump, file, &mut functions)?;
    }
    Ok(functions.into_values().map(Kernel::from).collect())
}
