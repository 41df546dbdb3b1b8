//! Layers of published directories, by the names of their modules.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use nvfp4_gemv::checkpoint::Checkpoint;
use nvfp4_gemv::{Experts, Linear, Mlp, RowOrder};

use crate::error::Result;
use crate::experts::Nvfp4Experts;
use crate::linear::{Nvfp4Linear, no_kernels};
use crate::mlp::Nvfp4Mlp;

/// NVFP4 layers of a checkpoint in ModelOpt's or compressed-tensors' dialect, by module paths, as candle's `VarBuilder`
/// gives dense tensors: both are used on the same directory.
///
/// ```no_run
/// use candle_core::{DType, Device};
/// use candle_nn::VarBuilder;
/// use nvfp4_gemv_candle::Nvfp4Builder;
/// let device = Device::Cpu;
/// let nvfp4 = Nvfp4Builder::open("Llama-3.1-8B-NVFP4", &device)?;
/// // SAFETY: nobody writes the files.
/// let dense = unsafe { VarBuilder::from_mmaped_safetensors(&nvfp4.files(), DType::BF16, &device)? };
/// for layer in 0..32 {
///     let (nvfp4, dense) = (nvfp4.pp(format!("model.layers.{layer}")), dense.pp(format!("model.layers.{layer}")));
///     let norm = candle_nn::rms_norm(4096, 1e-5, dense.pp("input_layernorm"))?;
///     let qkv = nvfp4.pp("self_attn").joined(&["q_proj", "k_proj", "v_proj"])?;
///     let mlp = nvfp4.pp("mlp").mlp()?;
///     # drop((norm, qkv, mlp));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Nvfp4Builder {
    checkpoint: Arc<Checkpoint>,
    device: Device,
    prefix: String,
    #[cfg(feature = "device")]
    workspace: Option<nvfp4_gemv::Workspace>,
}

impl Nvfp4Builder {
    /// Opens a file, an index or a directory, for layers on a device.
    ///
    /// # Errors
    /// As [`Checkpoint::open`]'s; [`Device`](crate::Error::Device).
    pub fn open(path: impl AsRef<Path>, device: &Device) -> Result<Self> {
        Self::new(Arc::new(Checkpoint::open(path)?), device)
    }

    /// Of a checkpoint that is open.
    ///
    /// # Errors
    /// [`Device`](crate::Error::Device).
    pub fn new(checkpoint: Arc<Checkpoint>, device: &Device) -> Result<Self> {
        match device {
            Device::Cpu => {}
            #[cfg(feature = "device")]
            Device::Cuda(_) => {}
            other => return Err(no_kernels(other)),
        }
        Ok(Self {
            checkpoint,
            device: device.clone(),
            prefix: String::new(),
            #[cfg(feature = "device")]
            workspace: None,
        })
    }

    /// With a workspace for all linear layers and MLPs that are loaded from now on: see
    /// [`Nvfp4Linear::with_workspace`].
    #[cfg(feature = "device")]
    #[must_use]
    pub fn with_workspace(self, workspace: nvfp4_gemv::Workspace) -> Self {
        let workspace = Some(workspace);
        Self { workspace, ..self }
    }

    /// Of the modules below one: `pp("model").pp("layers.0")` is `pp("model.layers.0")`.
    #[must_use]
    pub fn pp(&self, module: impl AsRef<str>) -> Self {
        let prefix = self.path(module.as_ref());
        let of = self.clone();
        Self { prefix, ..of }
    }

    /// The checkpoint: its notes, its modules, its tensors.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// The checkpoint's safetensors files, for candle's `VarBuilder`.
    pub fn files(&self) -> Vec<PathBuf> {
        let files = self.checkpoint.files().iter();
        files.map(|file| file.path().to_owned()).collect()
    }

    /// Whether a module has the codes of an NVFP4 layer. Of others, such as an attention that was not quantised,
    /// candle's `VarBuilder` has the weights.
    pub fn has(&self, module: &str) -> bool {
        let path = self.path(module);
        self.checkpoint.layers().any(|layer| layer == path)
    }

    /// The linear layer of a module, with its `bias` if it has one. On the CPU its bytes stay in the file.
    ///
    /// # Errors
    /// As [`Linear::from_checkpoint`]'s and [`Nvfp4Linear::new`]'s.
    pub fn linear(&self, module: &str) -> Result<Nvfp4Linear> {
        self.place(self.host(module)?)
    }

    /// Modules with equally long rows as one layer, such as q, k and v: its results are theirs, one behind the other in
    /// the last dimension. Codes and scales are copied. Of biases, those that are not there are 0.
    ///
    /// # Errors
    /// As [`Checkpoint::joined`]'s, and [`linear`](Self::linear)'s.
    pub fn joined(&self, modules: &[impl AsRef<str>]) -> Result<Nvfp4Linear> {
        let paths: Vec<String> = modules.iter().map(|of| self.path(of.as_ref())).collect();
        let stacked = RowOrder::Stacked;
        self.place(Linear::joined_from_checkpoint(
            &self.checkpoint,
            &paths,
            stacked,
        )?)
    }

    /// The MLP of this module: `gate_proj`, `up_proj` and `down_proj`, with the gate that `config.json` names
    /// ([`Checkpoint::gate`]), and SiLU's where it names none.
    ///
    /// # Errors
    /// As [`linear`](Self::linear)'s, [`joined`](Self::joined)'s and [`Checkpoint::gate`]'s; layers that do not fit each
    /// other.
    pub fn mlp(&self) -> Result<Nvfp4Mlp> {
        let of_config = self.checkpoint.gate(&self.prefix)?;
        let [gate, up, down] = ["gate_proj", "up_proj", "down_proj"];
        let mlp = match &self.device {
            Device::Cpu => self.host_mlp([gate, up, down])?.into(),
            _ => Nvfp4Mlp::joined(self.joined(&[gate, up])?, self.linear(down)?)?,
        };
        mlp.with_gate(of_config)
    }

    /// The experts of this module, such as `model.layers.0.mlp.experts`, whose gate, up and down have these names, such
    /// as `gate_proj`, `up_proj` and `down_proj`, or `w1`, `w3` and `w2`. Experts have tensors of their own
    /// (`experts.0.gate_proj`), or are stacked in three (`experts.gate_proj`). On the CPU their bytes stay in the files, but
    /// for stacked tensors that are transposed; on CUDA they are copied. Their gate is found as [`mlp`](Self::mlp)'s.
    ///
    /// # Errors
    /// As [`Experts::from_checkpoint`]'s; on CUDA [`ExpertsHave`](crate::Error::ExpertsHave) for a bias or factors of
    /// columns, which are not computed there.
    pub fn experts(&self, gate: &str, up: &str, down: &str) -> Result<Nvfp4Experts> {
        match &self.device {
            #[cfg(feature = "device")]
            Device::Cuda(device) => {
                let of_config = self.checkpoint.gate(&self.prefix)?;
                let gate_up = self.arrays(&[gate, up])?;
                let down = self.arrays(&[down])?;
                let experts = crate::cuda::Experts::new(device, &gate_up, &down)?;
                Nvfp4Experts::on_device(experts).with_gate(of_config)
            }
            _ => {
                let (name, gate_up, order) = (&self.prefix, [gate, up], RowOrder::Stacked);
                let experts =
                    Experts::from_checkpoint(&self.checkpoint, name, &gate_up, order, down)?;
                Ok(Nvfp4Experts::on_host(experts))
            }
        }
    }

    /// Experts' matrices, each of these parts.
    #[cfg(feature = "device")]
    fn arrays(&self, parts: &[&str]) -> Result<OfJoined> {
        use nvfp4_gemv::checkpoint::Note;
        let joined = (self.checkpoint).experts(&self.prefix, parts, RowOrder::Stacked)?;
        let bias = joined.notes().iter().find_map(|note| match note {
            Note::NotAdded { tensor } => Some(format!("the bias {tensor:?}")),
            _ => None,
        });
        let columns = joined
            .column_alpha()
            .map(|_| "factors of columns".to_owned());
        match bias.or(columns) {
            Some(what) => Err(crate::Error::ExpertsHave { what }),
            None => OfJoined::gather(&joined),
        }
    }

    fn host_mlp(&self, names: [impl AsRef<str>; 3]) -> Result<Mlp> {
        let [gate, up, down] = names.map(|name| self.host(name.as_ref()));
        Ok(Mlp::new(gate?, up?, down?)?)
    }

    /// A layer in host memory.
    fn host(&self, module: &str) -> Result<Linear> {
        let path = self.path(module);
        Ok(Linear::from_checkpoint(&self.checkpoint, &path)?)
    }

    /// A layer on the device.
    fn place(&self, layer: Linear) -> Result<Nvfp4Linear> {
        let layer = Nvfp4Linear::new(layer, &self.device)?;
        #[cfg(feature = "device")]
        if let Some(workspace) = &self.workspace {
            return Ok(layer.with_workspace(workspace));
        }
        Ok(layer)
    }

    fn path(&self, module: &str) -> String {
        match (&*self.prefix, module) {
            ("", path) | (path, "") => path.to_owned(),
            (prefix, module) => format!("{prefix}.{module}"),
        }
    }
}

/// Matrices that were joined, in memory of their own.
#[cfg(feature = "device")]
pub(crate) struct OfJoined {
    pub(crate) shape: nvfp4_gemv::Shape,
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: Vec<u8>,
    pub(crate) global: nvfp4_gemv::GlobalScale,
    pub(crate) row_alpha: Option<Vec<f32>>,
}

#[cfg(feature = "device")]
impl OfJoined {
    fn gather(joined: &nvfp4_gemv::checkpoint::Joined<'_>) -> Result<Self> {
        let shape = joined.shape();
        let mut codes = vec![0; shape.weight_code_bytes()];
        joined.write_codes(&mut codes)?;
        let (linear, global) = (nvfp4_gemv::ScaleLayout::Linear, joined.global());
        let mut scales = vec![0; shape.weight_scale_bytes(linear)];
        joined.write_scales(&mut scales)?;
        // Looks at the scales: those of stacked experts were not looked at before, and a device does not.
        nvfp4_gemv::Weights::new(&shape, &codes, &scales, linear, global)?;
        Ok(Self {
            shape,
            codes,
            scales,
            global,
            row_alpha: joined.row_alpha().map(<[f32]>::to_vec),
        })
    }
}
