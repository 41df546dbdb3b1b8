//! A directory of a checkpoint that is quantised: written beside its place, file by file, and named at the end.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};
use nvfp4_gemv::checkpoint::{
    AnyCheckpoint, CONFIG_FILE, Checkpoint, Gguf, INDEX_FILE, ModuleKind, Note, QUANT_CONFIG_FILE,
};
use nvfp4_gemv::file::{FileError, TensorFile};
use nvfp4_gemv_cli::file;
use nvfp4_gemv_files::output::Destination;
use nvfp4_gemv_files::{
    input::{self, InputError},
    printable,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::calibration::Calibrations;
use super::choice::{check_patterns, listed};
use super::item::{Maker, Matrix, Moved, Plan, Shard, Sizes, in_order};
use super::partial::{Partial, done_name, refuse_existing};
use super::{Args, CHANGED, label, rope};
use crate::notes;
use crate::report::{Report, bytes, count, progress, small};

/// The source that is quantised.
struct Input(AnyCheckpoint);

impl Input {
    fn files(&self) -> Vec<&Path> {
        match &self.0 {
            AnyCheckpoint::Safetensors(checkpoint) => in_order(checkpoint)
                .into_iter()
                .map(TensorFile::path)
                .collect(),
            AnyCheckpoint::Gguf(file) => file.files().collect(),
        }
    }

    /// The directory of its configs.
    fn directory(&self) -> Option<&Path> {
        match &self.0 {
            AnyCheckpoint::Safetensors(checkpoint) => Some(directory_of(checkpoint)),
            AnyCheckpoint::Gguf(_) => None,
        }
    }

    /// Refuses what is quantised already: one label cannot speak of both.
    fn refuse_quantised(&self, config: &Map<String, Value>) -> Result<()> {
        let AnyCheckpoint::Safetensors(checkpoint) = &self.0 else {
            return Ok(());
        };
        const INSTEAD: &str = "it is quantised already; --to takes models that are not";
        let path = printable::path(checkpoint.path());
        if let Some(layer) = checkpoint.layers().next() {
            bail!(
                "{path}: layer {layer:?} is NVFP4 already; --to takes models that are not quantised"
            );
        }
        if let Some(key) = label::entry_of_quantised(config) {
            bail!("{path}: {CONFIG_FILE} has {key:?}: {INSTEAD}");
        }
        let is_own = |file: &&PathBuf| file.ends_with(QUANT_CONFIG_FILE);
        let own = checkpoint.config_files().iter().find(is_own);
        let declared = checkpoint.declared_exporters().map(|(_, file)| file);
        let mut declared = declared.chain(checkpoint.comfy_files());
        if let Some(file) = own.map(|own| &**own).or_else(|| declared.next()) {
            bail!("{}: {INSTEAD}", printable::path(file));
        }
        for module in checkpoint.modules() {
            let is_quantised = match module.kind() {
                ModuleKind::Nvfp4 { .. } | ModuleKind::Mxfp4 | ModuleKind::Fp8 { .. } => true,
                _ => module.tensors().iter().any(label::is_code),
            };
            if is_quantised {
                let tensor = module.tensors().first().map_or("", |tensor| tensor.name());
                bail!(
                    "{path}: module {:?} has {tensor:?}: {INSTEAD}",
                    module.name()
                );
            }
        }
        Ok(())
    }
}

fn directory_of(checkpoint: &Checkpoint) -> &Path {
    let path = checkpoint.path();
    match path.is_dir() {
        true => path,
        false => path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new(".")),
    }
}

/// The model's config, as an object; empty where there is none.
pub(super) fn config_of(checkpoint: &Checkpoint) -> Result<Map<String, Value>> {
    // A config that is not read may change every product. Of one that is, the reader bounds the values.
    let unread = |note: &&Note| matches!(note, Note::Unread { .. });
    if let Some(note) = checkpoint.notes().iter().find(unread) {
        bail!("{note}");
    }
    let path = directory_of(checkpoint).join(CONFIG_FILE);
    // A link that leads nowhere is no missing config.
    if path.symlink_metadata().is_err() {
        return Ok(Map::new());
    }
    refuse_link_out(directory_of(checkpoint), CONFIG_FILE)?;
    let text = read(&path)?;
    serde_json::from_slice(&text).with_context(|| printable::path(&path).to_string())
}

/// About how many bytes of a GGUF file become one file.
const SHARD_BYTES: usize = 4 << 30;
/// Limit: bytes of other files that are copied.
const MOST_COPIED: u64 = 256 << 20;

/// A file of the input that is no checkpoint's.
fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let file = path.to_owned();
    input::read(path, MOST_COPIED).map_err(|error| match error {
        InputError::Io(source) => FileError::Read { file, source },
        InputError::NotRegular(found) => FileError::NotRegular { file, found },
        InputError::TooLarge { most } => FileError::TooLarge { file, most },
    })
}

/// A file that is complete, as it is noted beside it until all are.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    /// All that it was made of: it is made again where this differs.
    key: Value,
    file_bytes: u64,
    layers: BTreeMap<String, Moved>,
}

pub(super) fn run(args: &Args, to: &Path) -> Result<Report> {
    let shown = printable::path(to).to_string();
    refuse_existing(to)?;
    let input = Input(AnyCheckpoint::open(&args.input)?);
    let states = States::of(&input, args)?;
    let config = match &input.0 {
        AnyCheckpoint::Safetensors(checkpoint) => config_of(checkpoint)?,
        AnyCheckpoint::Gguf(file) => gguf_config(file)?,
    };
    input.refuse_quantised(&config)?;
    let sizes = Sizes::of(&Value::Object(config.clone()));
    let plan = match &input.0 {
        AnyCheckpoint::Safetensors(checkpoint) => {
            let tensors = in_order(checkpoint)
                .into_iter()
                .flat_map(|file| file.tensors());
            check_patterns(args, tensors.map(|tensor| tensor.name()))?;
            Plan::of(checkpoint, &sizes, args)
        }
        AnyCheckpoint::Gguf(file) => {
            check_patterns(args, file.tensors().map(|tensor| tensor.name()))?;
            Plan::of_gguf(file, args, SHARD_BYTES)?
        }
    };
    let matrices = plan
        .shards
        .iter()
        .map(|shard| shard.matrices.len())
        .sum::<usize>();
    let repacked: Vec<String> = plan
        .shards
        .iter()
        .flat_map(|shard| shard.repacked.clone())
        .collect();
    if matrices + repacked.len() == 0 {
        let none = plan.copied.text("not quantised");
        bail!(
            "{}: nothing to quantise\n{}",
            printable::path(&args.input),
            none.trim_end()
        );
    }

    plan.refuse_collisions(args)?;
    let all = plan.shards.iter().flat_map(|shard| &shard.matrices);
    let calibrations = match &args.calibration {
        Some(path) => Some(Calibrations::open(path, all)?),
        None => None,
    };
    let others = others(&input)?;
    let partial = Partial::take(to, &others)?;
    let files = plan.shards.len();
    let keys = Keys::of(&input, args, &config, &states, plan.has_split());
    let groups = Groups::of(&plan, args.share_scales);
    let bar = progress(matrices as u64, "quantising");
    let mut layers: BTreeMap<String, Moved> = BTreeMap::new();
    let (mut weight_map, mut written, mut resumed) = (BTreeMap::new(), 0, 0);
    let mut names = Vec::new();
    for (at, shard) in plan.shards.iter().enumerate() {
        let file = match files {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{files:05}.safetensors", at + 1),
        };
        bar.set_message(file.clone());
        let path = partial.path.join(&file);
        let note = partial.path.join(done_name(&file));
        let key = keys.of_shard(at, shard, files);
        let done = match read_done(&note, &path, &key) {
            Some(done) => {
                resumed += 1;
                done
            }
            None => {
                // Of a note whose file is written anew nothing holds.
                let _ = fs::remove_file(&note);
                write(
                    &path,
                    shard,
                    &groups,
                    args,
                    calibrations.as_ref(),
                    &keys.metadata(&input, at),
                )
                .map(|(file_bytes, layers)| Done {
                    key,
                    file_bytes,
                    layers,
                })
                .and_then(|done| {
                    states.check(&input, args)?;
                    let text = serde_json::to_vec(&done)?;
                    Destination::new(&note).replace(true).write(&text)?;
                    Ok(done)
                })
                .with_context(|| partial.kept_for_later())?
            }
        };
        bar.inc(shard.matrices.len() as u64);
        for tensor in TensorFile::open(&path)?.tensors() {
            weight_map.insert(tensor.name().to_owned(), file.clone());
        }
        written += done.file_bytes;
        layers.extend(done.layers);
        names.push(file);
    }
    bar.finish_and_clear();

    let mut left = plan.left.clone();
    // A head that is tied to the embeddings is a linear layer of the model without tensors of its own.
    if !weight_map.keys().any(|name| name.contains(HEAD)) && !config.is_empty() {
        left.push(HEAD.into());
    }
    let mut configs = label::files(args.dialect, config, left);
    if files > 1 {
        let index = json!({ "metadata": { "total_size": written }, "weight_map": weight_map });
        configs.push((INDEX_FILE, index));
    }
    for (name, value) in &configs {
        let text = serde_json::to_string_pretty(value)? + "\n";
        Destination::new(partial.path.join(name))
            .replace(true)
            .write(text.as_bytes())
            .with_context(|| printable::path(&partial.path.join(name)).to_string())
            .with_context(|| partial.kept_for_later())?;
    }
    copy_others(&input, &others, &partial.path).with_context(|| partial.kept_for_later())?;
    let done: Vec<String> = names.iter().map(|name| done_name(name)).collect();
    let made = configs.iter().map(|(name, _)| *name);
    let wanted = [&names, &others, &done].into_iter().flatten();
    let wanted: Vec<&str> = wanted.map(String::as_str).chain(made).collect();
    partial
        .clean(&wanted)
        .with_context(|| partial.kept_for_later())?;
    let kept = partial.kept_for_later();
    states.check(&input, args).context(kept.clone())?;
    partial.publish(to).context(kept)?;
    // The directory is complete: a note that stays in it means nothing.
    for note in &done {
        let _ = fs::remove_file(to.join(note));
    }

    let notes = match &input.0 {
        AnyCheckpoint::Safetensors(checkpoint) => notes::show(checkpoint.notes().iter()),
        AnyCheckpoint::Gguf(_) => json!([]),
    };
    let taken: Vec<String> = layers.keys().cloned().collect();
    let furthest = layers
        .iter()
        .max_by(|(_, a), (_, b)| a.relative_error.total_cmp(&b.relative_error));
    let moved = furthest.map_or(String::new(), |(name, layer)| {
        let sum: f64 = layers.values().map(|layer| layer.relative_error).sum();
        format!(
            "  moved, relative to their size: {} on average, {:?} furthest: {}\n",
            small(sum / layers.len() as f64),
            name,
            small(layer.relative_error)
        )
    });
    let again = match resumed {
        0 => String::new(),
        _ => format!("  {} from an earlier run\n", count(resumed, "file")),
    };
    let unrounded = match repacked.len() {
        0 => String::new(),
        _ => format!("  NVFP4 or MXFP4 before, repacked: {}\n", listed(&repacked)),
    };
    let text = format!(
        "{} quantised, {} copied\n  quantised: {}\n{unrounded}{moved}{}{again}written {shown} ({}, {}, {})\n",
        count(taken.len(), "layer"),
        count(plan.copied.count(), "tensor"),
        listed(&taken),
        plan.copied.text("copied"),
        count(files, "file"),
        bytes(written as usize),
        args.dialect,
    );
    let json = json!({
        "input": args.input.display().to_string(),
        "output": to.display().to_string(),
        "dialect": args.dialect.name(),
        "quantised": taken.len(),
        "layers": layers.iter().map(|(name, layer)| json!({
            "name": name, "rows": layer.rows, "k": layer.k, "relative_error": layer.relative_error,
        })).collect::<Vec<_>>(),
        "repacked": repacked,
        "copied": plan.copied.count(),
        "copied_tensors": plan.copied.json(),
        "files": names,
        "other_files": others,
        "file_bytes": written,
        "resumed": resumed,
        "notes": notes,
    });
    Ok(Report::new(text, json))
}

/// The output head of transformers' models.
const HEAD: &str = "lm_head";

/// The note of a complete file of an earlier run, if it is the file that would be made now.
fn read_done(note: &Path, path: &Path, key: &Value) -> Option<Done> {
    let text = input::read(note, MOST_COPIED).ok()?;
    let done: Done = serde_json::from_slice(&text).ok()?;
    let same = done.key == *key && fs::metadata(path).ok()?.len() == done.file_bytes;
    (same && TensorFile::open(path).is_ok()).then_some(done)
}

/// Counted up when other bytes are made of the same input: files of an earlier run are made again then.
const ARITHMETIC: u32 = 1;

/// The sources and options that the files are made of.
struct Keys {
    of_all: Value,
    files: Vec<Value>,
    /// Whether a file depends on all of the input: it is one, layers share their scales, or experts have their biases
    /// elsewhere.
    on_all: bool,
}

/// Sizes and times of the files that are read: another content has others.
#[derive(PartialEq)]
struct States {
    files: Vec<Value>,
    calibration: Option<Value>,
}

impl States {
    fn of(input: &Input, args: &Args) -> Result<Self> {
        let state = |path: &Path| -> Result<Value> {
            let metadata = fs::metadata(path)?;
            let modified = metadata
                .modified()?
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let path = path.canonicalize()?;
            Ok(json!([
                path.to_string_lossy(),
                metadata.len(),
                modified.as_nanos().to_string()
            ]))
        };
        let state = |path: &Path| state(path).with_context(|| printable::path(path).to_string());
        Ok(Self {
            files: input
                .files()
                .into_iter()
                .map(state)
                .collect::<Result<_>>()?,
            calibration: args.calibration.as_deref().map(state).transpose()?,
        })
    }

    /// Refuses what other programs have written to meanwhile: a part of the output may be of either content.
    fn check(&self, input: &Input, args: &Args) -> Result<()> {
        let now = Self::of(input, args)?;
        if now == *self {
            return Ok(());
        }
        let mut files = now.files.iter().zip(&self.files).zip(input.files());
        let changed = files.find_map(|((now, before), file)| (now != before).then_some(file));
        let changed = changed.or(args.calibration.as_deref());
        bail!(
            "{}: {CHANGED}",
            printable::path(changed.unwrap_or(&args.input))
        );
    }
}

impl Keys {
    fn of(
        input: &Input,
        args: &Args,
        config: &Map<String, Value>,
        states: &States,
        has_split: bool,
    ) -> Self {
        Self {
            of_all: json!([
                env!("CARGO_PKG_VERSION"),
                ARITHMETIC,
                args.dialect.name(),
                args.include,
                args.exclude,
                args.share_scales,
                states.calibration,
                config,
            ]),
            files: states.files.clone(),
            on_all: args.share_scales || has_split || matches!(input.0, AnyCheckpoint::Gguf(_)),
        }
    }

    /// A tensor's treatment depends on the names in other files, too: the plan has it.
    fn of_shard(&self, at: usize, shard: &Shard<'_>, files: usize) -> Value {
        let of = match self.on_all {
            true => &self.files[..],
            false => &self.files[at..=at],
        };
        json!([self.of_all, of, at, files, shard.summary()])
    }

    /// The metadata of a file: the input's own, and the entry that transformers' loader asks for.
    fn metadata(&self, input: &Input, at: usize) -> HashMap<String, String> {
        let mut metadata = match &input.0 {
            AnyCheckpoint::Safetensors(checkpoint) => in_order(checkpoint)[at].metadata().clone(),
            AnyCheckpoint::Gguf(_) => HashMap::new(),
        };
        metadata.entry("format".into()).or_insert("pt".into());
        metadata
    }
}

/// Parts of fused layers, by the name of the layer and what it fuses.
struct Groups<'a, 'p>(HashMap<String, Vec<&'p Rc<Matrix<'a>>>>);

impl<'a, 'p> Groups<'a, 'p> {
    fn of(plan: &'p Plan<'a>, are_shared: bool) -> Self {
        let mut groups: HashMap<String, Vec<_>> = HashMap::new();
        let all = plan.shards.iter().flat_map(|shard| &shard.matrices);
        for matrix in all.filter(|_| are_shared) {
            if let Some(group) = fused(&matrix.name) {
                groups.entry(group).or_default().push(matrix);
            }
        }
        Self(groups)
    }

    /// A matrix with those that it shares its global scale with.
    fn with(&self, matrix: &Rc<Matrix<'a>>) -> Vec<Rc<Matrix<'a>>> {
        let group = fused(&matrix.name).and_then(|group| self.0.get(&group));
        match group {
            Some(group) => group.iter().map(|one| Rc::clone(one)).collect(),
            None => vec![Rc::clone(matrix)],
        }
    }
}

/// The fused layer that engines make a part of.
pub(crate) fn fused(name: &str) -> Option<String> {
    const FUSED: [&[&str]; 3] = [
        &["q_proj", "k_proj", "v_proj"],
        &["gate_proj", "up_proj"],
        &["w1", "w3"],
    ];
    let (stem, part) = name.rsplit_once('.')?;
    let fused = FUSED.iter().find(|parts| parts.contains(&part))?;
    Some(format!("{stem}.{}", fused.join("+")))
}

/// Writes a file, and says how many bytes it has and how far its matrices moved.
fn write<'a>(
    path: &Path,
    shard: &Shard<'a>,
    groups: &Groups<'a, '_>,
    args: &Args,
    calibrations: Option<&'a Calibrations>,
    metadata: &HashMap<String, String>,
) -> Result<(u64, BTreeMap<String, Moved>)> {
    let maker = Rc::new(Maker::new(args.dialect, calibrations));
    let pieces = shard.pieces(&maker, |matrix| groups.with(matrix));
    let output = Destination::new(path).replace(true).only_files();
    let written = file::write_to(&output, pieces, Some(metadata.clone()))?;
    // Of a group there are others, which may be another file's.
    let mut moved = maker.moved.take();
    let of_this = shard.matrices.iter();
    let of_this = of_this
        .filter_map(|matrix| moved.remove_entry(&matrix.name))
        .collect();
    Ok((written, of_this))
}

/// The small files of the input's directory that are not made anew: tokenizers, licences. Folders stay. One that cannot
/// be read is an error before anything is quantised.
fn others(input: &Input) -> Result<Vec<String>> {
    const ENDINGS: [&str; 8] = [
        ".json",
        ".txt",
        ".model",
        ".jinja",
        ".tiktoken",
        ".md",
        ".py",
        ".jsonl",
    ];
    let (Some(from), true) = (
        input.directory(),
        matches!(&input.0, AnyCheckpoint::Safetensors(c) if c.path().is_dir()),
    ) else {
        return Ok(Vec::new());
    };
    let mut others = Vec::new();
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_made =
            [CONFIG_FILE, QUANT_CONFIG_FILE].contains(&name) || name.contains(".safetensors");
        let is_known =
            ENDINGS.iter().any(|ending| name.ends_with(ending)) || name.starts_with("LICENSE");
        if is_made || !is_known || name.starts_with('.') || from.join(name).is_dir() {
            continue;
        }
        refuse_link_out(from, name)?;
        read(&from.join(name))?;
        others.push(name.to_owned());
    }
    others.sort();
    Ok(others)
}

/// Refuses a config or a small file that is a link to elsewhere than this directory, or a hub's files of this model: whoever made
/// the directory does not decide what of the user's is copied.
fn refuse_link_out(from: &Path, name: &str) -> Result<()> {
    let path = from.join(name);
    if !path.symlink_metadata()?.is_symlink() {
        return Ok(());
    }
    let shown = || printable::path(&path).to_string();
    let (to, from) = (
        path.canonicalize().with_context(shown)?,
        from.canonicalize()?,
    );
    let blobs = from
        .parent()
        .and_then(Path::parent)
        .map(|hub| hub.join("blobs"));
    if !to.starts_with(&from) && !blobs.is_some_and(|blobs| to.starts_with(blobs)) {
        bail!(
            "{}: a link that leads out of the directory, which is not followed",
            shown()
        );
    }
    Ok(())
}

fn copy_others(input: &Input, others: &[String], to: &Path) -> Result<()> {
    let from = input.directory().unwrap_or(Path::new(""));
    for name in others {
        let content = read(&from.join(name))?;
        Destination::new(to.join(name))
            .replace(true)
            .write(&content)
            .with_context(|| printable::path(&to.join(name)).to_string())?;
    }
    Ok(())
}

/// The architectures of GGUF files whose config is made, and transformers' classes.
const CONFIGS: [(&str, &str); 3] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];

/// Whether the config that is made says what a tensor of a GGUF file does.
pub(super) fn is_in_config(file: &Gguf, stored_name: &str) -> bool {
    let has_config = CONFIGS
        .iter()
        .any(|(of, _)| file.architecture() == Some(of));
    has_config && stored_name == rope::FACTORS
}

/// The config of a model of a GGUF file, as transformers has it, of the architectures whose names are known.
///
/// # Errors
/// Facts that it would not say, and without which it is another model's: positions that are scaled, an entry of another
/// type.
fn gguf_config(file: &Gguf) -> Result<Map<String, Value>> {
    let architecture = file.architecture().unwrap_or_default();
    let known = CONFIGS.into_iter().find(|(name, _)| *name == architecture);
    let Some((kind, class)) = known else {
        return Ok(Map::new());
    };
    refuse_scaled_positions(file, architecture)?;
    refuse_unsaid(file, architecture)?;
    let scaling = rope::llama3(file, architecture)?;
    let said = |key: &str, is_read: bool, what: &str| {
        if !is_read && file.has_entry(key) {
            bail!(
                "{}: the entry {key:?} is not {what}, and the config that would be made of it another model's",
                printable::path(file.path())
            );
        }
        Ok(())
    };
    let integer_of = |key: &str| {
        let value = file.integer(key);
        said(key, value.is_some(), "an integer of at least 0").map(|()| value)
    };
    let integer = |key: &str| integer_of(&format!("{architecture}.{key}"));
    // The shortest decimal number that is this f32: 1e-5, not 9.99999974e-6.
    let shortest = |x: f64| (x as f32).to_string().parse::<f64>().unwrap_or(x);
    let float = |key: &str| {
        let key = format!("{architecture}.{key}");
        let value = file.float(&key);
        said(&key, value.is_some(), "a floating-point number").map(|()| value.map(shortest))
    };
    let heads = integer("attention.head_count")?;
    // transformers reads biases of these only where the config says that there are some; qwen2's it always reads.
    let has_bias = |of: &str| {
        let is_one = |name: &str| name.contains(of) && name.ends_with("_proj.bias");
        let any = kind != "qwen2" && file.tensors().any(|tensor| is_one(tensor.name()));
        any.then_some(true)
    };
    let vocabulary = file
        .tensor("model.embed_tokens.weight")
        .map(|of| of.shape()[0]);
    let all = [
        ("architectures", json!([class])),
        ("model_type", json!(kind)),
        ("hidden_act", json!("silu")),
        ("hidden_size", json!(integer("embedding_length")?)),
        ("intermediate_size", json!(integer("feed_forward_length")?)),
        ("num_hidden_layers", json!(integer("block_count")?)),
        ("num_attention_heads", json!(heads)),
        (
            "num_key_value_heads",
            json!(integer("attention.head_count_kv")?.or(heads)),
        ),
        ("head_dim", json!(integer("attention.key_length")?)),
        ("max_position_embeddings", json!(integer("context_length")?)),
        (
            "rms_norm_eps",
            json!(float("attention.layer_norm_rms_epsilon")?),
        ),
        ("rope_theta", json!(float("rope.freq_base")?)),
        ("rope_scaling", json!(scaling)),
        ("attention_bias", json!(has_bias(".self_attn."))),
        ("mlp_bias", json!(has_bias(".mlp."))),
        ("vocab_size", json!(vocabulary)),
        (
            "bos_token_id",
            json!(integer_of("tokenizer.ggml.bos_token_id")?),
        ),
        (
            "eos_token_id",
            json!(integer_of("tokenizer.ggml.eos_token_id")?),
        ),
        (
            "tie_word_embeddings",
            json!(file.tensor("lm_head.weight").is_none()),
        ),
    ];
    let known = all.into_iter().filter(|(_, value)| !value.is_null());
    Ok(known.map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Refuses a model with entries and tensors that the config would not speak of: another architecture's, or another
/// model's, such as Mixtral's experts, which llama.cpp calls `llama`, too.
fn refuse_unsaid(file: &Gguf, architecture: &str) -> Result<()> {
    // Those that are read, and those that say nothing, or what the tensors say.
    const KNOWN: [&str; 11] = [
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.freq_base",
        "tensor_data_layout",
        "vocab_size",
    ];
    // Experts that are none, and heads whose values, and whose part with positions, are as long as their keys.
    let of = |key: &str| file.integer(&format!("{architecture}.{key}"));
    let size = || of("embedding_length")?.checked_div(of("attention.head_count")?);
    let size = || of("attention.key_length").or_else(size);
    let is_said = |key: &str| match key {
        "expert_count" | "expert_used_count" => of(key) == Some(0),
        // Without heads nobody could tell, and transformers has the size of its class.
        "attention.value_length" | "rope.dimension_count" => {
            size().is_none_or(|size| of(key) == Some(size))
        }
        // `refuse_scaled_positions` has looked at these.
        _ => KNOWN.contains(&key) || key.starts_with("rope.scal"),
    };
    let shown = printable::path(file.path());
    let own = |key: &&str| {
        let key = key
            .strip_prefix(architecture)
            .and_then(|rest| rest.strip_prefix('.'));
        key.is_some_and(|key| !is_said(key))
    };
    let mut unsaid: Vec<&str> = file.keys().filter(own).collect();
    unsaid.sort_unstable();
    if let Some(key) = unsaid.first() {
        bail!(
            "{shown}: the entry {key:?} is not said by the config that would be made, which would be another model's"
        );
    }
    let is_unnamed = |name: &str| !is_in_config(file, name) && !name.contains("rope_f");
    let mut tensors = file.tensors();
    if let Some(tensor) = tensors.find(|of| of.name() == of.stored_name() && is_unnamed(of.name()))
    {
        bail!(
            "{shown}: the tensor {:?} has no name in transformers' {architecture}, whose config would be made",
            tensor.stored_name()
        );
    }
    Ok(())
}

/// Refuses a model whose rotary positions are scaled: the config would have to say how, and does not.
fn refuse_scaled_positions(file: &Gguf, architecture: &str) -> Result<()> {
    let shown = printable::path(file.path());
    let of = |key: &str| format!("{architecture}.rope.{key}");
    let (kind, factors) = (
        of("scaling.type"),
        ["scaling.factor", "scale_linear"].map(of),
    );
    let is_none = file.text(&kind) == Some("none");
    if file.has_entry(&kind) && !is_none {
        bail!(
            "{shown}: the entry {kind:?} is {:?}: scaled positions, of which no config is made",
            file.text(&kind).unwrap_or("no text")
        );
    }
    // Without a type, llama.cpp takes a factor to be linear's; 0 is none.
    let is_scaled = |key: &&String| {
        file.has_entry(key)
            && !matches!(file.float(key), Some(factor) if [0.0, 1.0].contains(&factor))
    };
    if let Some(key) = factors.iter().find(is_scaled).filter(|_| !is_none) {
        bail!("{shown}: the entry {key:?} scales positions, of which no config is made");
    }
    // What `rope::llama3` reads, or refuses, is another matter.
    let is_factors = |name: &str| {
        name != rope::FACTORS && (name.contains("rope_freqs") || name.contains("rope_factors"))
    };
    if let Some(tensor) = file
        .tensors()
        .find(|tensor| is_factors(tensor.stored_name()))
    {
        bail!(
            "{shown}: the tensor {:?} scales positions, of which no config is made",
            tensor.stored_name()
        );
    }
    Ok(())
}
