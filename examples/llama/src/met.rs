//! What linear layers are given, for tests that check a model step by step.

/// The vectors that a model's layers were given, if they are kept: of each pass, layer by layer, those of q, k and v, of
/// o, and of gate and up or of the experts; on a GPU those of down, too, where there are no experts. Vectors are
/// `[tokens][k]`, as they are multiplied. But NVFP4 vectors are kept on the CPU as they were before, and so are those of
/// experts.
#[derive(Debug, Default)]
pub struct Met {
    vectors: Option<Vec<Vec<f64>>>,
}

impl Met {
    /// Keeps vectors from now on.
    pub fn keep(&mut self) {
        self.vectors = Some(Vec::new());
    }

    /// Keeps none any more.
    pub fn stop(&mut self) {
        self.vectors = None;
    }

    pub fn is_kept(&self) -> bool {
        self.vectors.is_some()
    }

    pub(crate) fn add(&mut self, values: impl IntoIterator<Item = f64>) {
        if let Some(vectors) = &mut self.vectors {
            vectors.push(values.into_iter().collect());
        }
    }

    /// What was kept since the last time.
    pub fn take(&mut self) -> Vec<Vec<f64>> {
        self.vectors
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }
}
