//! Text from NVFP4 weights. See README.md.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use candle_core::Device;
use clap::Parser;
#[cfg(feature = "cuda")]
use nvfp4_gemv_llama::DeviceModel;
use nvfp4_gemv_llama::bounds::{self, Rule};
#[cfg(feature = "cuda")]
use nvfp4_gemv_llama::device;
use nvfp4_gemv_llama::model::PASS;
use nvfp4_gemv_llama::tokens::Message;
use nvfp4_gemv_llama::{
    Arithmetic, Config, Generator, Head, Model, Reader, Sampling, Tokens, Weights,
};

/// Llama and Qwen3 models that speak, with NVFP4 weights
#[derive(Debug, Parser)]
struct Arguments {
    /// A directory with NVFP4 layers in safetensors files and a tokenizer, or a GGUF file, which is quantised as it is
    /// loaded
    #[cfg_attr(feature = "cuda", arg(required_unless_present = "random"))]
    #[cfg_attr(not(feature = "cuda"), arg(required = true))]
    model: Option<PathBuf>,
    /// What to ask. Without it a conversation begins, with a question a line
    prompt: Option<String>,
    /// Where the tokenizer is, if it is not in MODEL: a directory or a GGUF file
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// The prompt is the beginning of a text that is to go on, not a question
    #[arg(long)]
    raw: bool,
    /// Tokens of an answer at most
    #[arg(long, default_value_t = 256)]
    tokens: usize,
    /// Tokens of the whole text at most
    #[arg(long, default_value_t = 2048)]
    context: usize,
    /// How freely tokens are chosen; 0: always the most probable one
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Choose among the most probable tokens that have this much probability together
    #[arg(long, default_value_t = 0.95)]
    top_p: f32,
    /// Of the random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How linear layers are computed
    #[arg(long, value_enum, default_value = "nvfp4")]
    arithmetic: Arithmetic,
    /// How the head is multiplied, where the checkpoint has it as it is
    #[arg(long, value_enum, default_value = "nvfp4-twice")]
    head: Head,
    /// Compute on the CPU, also where there is a GPU for which this program was built
    #[arg(long)]
    cpu: bool,
    /// Time a model of random weights, made on the GPU: Llama-3.1-8B, Llama-3.1-70B, Qwen3-30B-A3B or a config.json
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "CONFIG",
          conflicts_with_all = ["model", "cpu", "perplexity", "bounds", "collect", "batch_invariant"])]
    random: Option<String>,
    /// Of --random: tokens of the text before
    #[cfg(feature = "cuda")]
    #[arg(long, default_value_t = 512, requires = "random")]
    read: usize,
    /// Threads on the CPU [default: as many as it has processors]
    #[arg(long)]
    threads: Option<usize>,
    /// Guess so many tokens a step from the text before, and check them in one pass
    #[arg(long, default_value_t = 0)]
    draft: usize,
    /// Compute a token's logits with the same bits whatever other tokens a pass has: with --draft the text is that
    /// without
    #[arg(long)]
    batch_invariant: bool,
    /// Print how long reading and writing took, and what a step is made of
    #[arg(long)]
    bench: bool,
    /// Print the perplexity of a text file in place of an answer
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "raw"])]
    perplexity: Option<PathBuf>,
    /// Compare the logits of a text file's first 64 tokens with a reference in f64 that knows what roundings explain
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "raw", "perplexity", "head", "batch_invariant"])]
    bounds: Option<PathBuf>,
    /// Read the beginnings of text files with a GGUF file's own weights, and write what its layers' vectors are like
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "statistics",
          conflicts_with_all = ["perplexity", "bounds", "prompt", "raw", "draft", "bench", "arithmetic"])]
    collect: Vec<PathBuf>,
    /// Of --collect: the file for `nvfp4-gemv quantize --calibration`
    #[arg(long, value_name = "FILE", requires = "collect")]
    statistics: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.draft < PASS, "a step has {PASS} tokens at most");
    let start = Instant::now();
    #[cfg(feature = "cuda")]
    if let Some(name) = &arguments.random {
        return random(&arguments, name);
    }
    let path = arguments.model.as_deref().context("no MODEL")?;
    let (weights, config) = match arguments.statistics {
        Some(_) => Weights::watched(path, &Device::Cpu)?,
        None => Weights::open(path, arguments.arithmetic, &Device::Cpu)?,
    };
    let weights = weights.with_batch_invariance(arguments.batch_invariant);
    let tokens = match (&arguments.tokenizer, weights.gguf()) {
        (Some(other), _) => Tokens::open(other)?,
        (None, Some(gguf)) => Tokens::of_gguf(gguf)?,
        (None, None) => Tokens::of_directory(path)?,
    };
    let (layers, shows) = (config.num_hidden_layers, io::stderr().is_terminal());
    let most = arguments.context.min(config.max_position_embeddings);
    let progress = |layer: usize| {
        if shows {
            eprint!("\rlayer {} of {layers}", layer + 1);
        }
    };
    // The original's head is its own.
    let head = match arguments.arithmetic {
        _ if arguments.statistics.is_some() || arguments.bounds.is_some() => Head::Dense,
        Arithmetic::Original => Head::Dense,
        _ => arguments.head,
    };
    let mut model = Engine::load(&arguments, &weights, config, most, head, progress)?;
    if shows {
        eprint!("\r\x1b[2K");
    }
    if let Some(to) = &arguments.statistics {
        return collect(&weights, model.reader(), &tokens, &arguments.collect, to);
    }
    drop(weights);
    if arguments.bench {
        eprintln!("loaded in {:.1} s", start.elapsed().as_secs_f64());
    }
    if let Some(file) = &arguments.perplexity {
        return perplexity(model.reader(), &tokens, file, most);
    }
    if let Some(file) = &arguments.bounds {
        return compare(path, &mut model, arguments.arithmetic, &tokens, file);
    }
    let mut messages = Vec::new();
    match &arguments.prompt {
        Some(prompt) => say(&arguments, &mut model, &tokens, prompt, &mut messages),
        None if arguments.raw => bail!("--raw goes on with a prompt, and there is none"),
        None => {
            let mut line = String::new();
            loop {
                eprint!("> ");
                line.clear();
                if io::stdin().read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if !line.trim().is_empty() {
                    say(&arguments, &mut model, &tokens, line.trim(), &mut messages)?;
                }
            }
        }
    }
}

/// A model where it is computed.
enum Engine {
    Host(Box<Model>),
    #[cfg(feature = "cuda")]
    Device(Box<DeviceModel>),
}

impl Engine {
    fn load(
        arguments: &Arguments,
        weights: &Weights,
        config: Config,
        most: usize,
        head: Head,
        progress: impl FnMut(usize),
    ) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if is_for_gpu(arguments) {
            let model = DeviceModel::load(weights, &config, most, head, progress)?;
            return Ok(Self::Device(model.into()));
        }
        let threads = threads(arguments)?;
        let model = Model::load(weights, config, most, head, threads, progress)?;
        Ok(Self::Host(model.into()))
    }

    fn reader(&mut self) -> &mut dyn Reader {
        match self {
            Self::Host(model) => &mut **model,
            #[cfg(feature = "cuda")]
            Self::Device(model) => &mut **model,
        }
    }
}

/// Threads on the CPU.
fn threads(arguments: &Arguments) -> Result<usize> {
    Ok(match arguments.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism()?.get(),
    })
}

/// Whether there is a GPU, and what was asked for is computed on one.
#[cfg(feature = "cuda")]
fn is_for_gpu(arguments: &Arguments) -> bool {
    let arithmetic = match arguments.arithmetic {
        Arithmetic::Nvfp4
        | Arithmetic::Nvfp4Bf16
        | Arithmetic::Nvfp4F16
        | Arithmetic::Nvfp4Vectors => true,
        Arithmetic::Nvfp4Bytes | Arithmetic::Reference | Arithmetic::Original => false,
    };
    let is_free = !arguments.cpu && arguments.statistics.is_none();
    arithmetic && is_free && nvfp4_gemv::raw::device_count().is_ok_and(|count| count > 0)
}

/// Times a model of random weights.
#[cfg(feature = "cuda")]
fn random(arguments: &Arguments, name: &str) -> Result<()> {
    let config = device::random_config(name)?;
    let most = arguments.context.min(config.max_position_embeddings);
    let (arithmetic, head) = (arguments.arithmetic, arguments.head);
    let start = Instant::now();
    let mut model = DeviceModel::random(&config, arithmetic, most, head, |_| ())?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{name}, random weights, made in {seconds:.1} s; {arithmetic:?}, head {head:?}, context {most}"
    );
    device::bench(&mut model, arguments.read, arguments.tokens)
}

/// Answers a prompt, and remembers both.
fn say(
    arguments: &Arguments,
    engine: &mut Engine,
    tokens: &Tokens,
    prompt: &str,
    messages: &mut Vec<Message>,
) -> Result<()> {
    let text = match arguments.raw {
        true => prompt.to_owned(),
        false => {
            messages.push(Message {
                role: "user",
                content: prompt.to_owned(),
            });
            tokens.conversation(messages)?
        }
    };
    let text = tokens.encode(&text)?;
    let model = engine.reader();
    model.reset();
    let mut generator = Generator {
        model,
        tokens,
        sampling: Sampling {
            temperature: arguments.temperature,
            top_p: arguments.top_p,
            seed: arguments.seed,
        },
        draft: arguments.draft,
    };
    let mut out = io::stdout();
    let (answer, times) = generator.answer(&text, arguments.tokens, |piece| {
        // Who reads no more still gets the times.
        let _ = write!(out, "{piece}").and_then(|()| out.flush());
    })?;
    println!();
    messages.push(Message {
        role: "assistant",
        content: tokens.decode(&answer)?,
    });
    if arguments.bench {
        let a_second = |count: usize, time: std::time::Duration| count as f64 / time.as_secs_f64();
        eprintln!(
            "read {} tokens, {:.1} a second; wrote {}, {:.1} a second",
            times.read,
            a_second(times.read, times.reading),
            times.written,
            a_second(times.written, times.writing)
        );
        if arguments.draft > 0 {
            eprintln!("{} of {} guesses were right", times.accepted, times.drafted);
        }
        match engine {
            Engine::Host(model) if model.room() > 0 => model.bench(threads(arguments)?)?,
            Engine::Host(_) => {}
            #[cfg(feature = "cuda")]
            Engine::Device(model) => device::bench(model, times.read, times.written)?,
        }
    }
    Ok(())
}

/// Tokens whose logits are compared: of a prompt, of guesses, and single ones.
const COMPARED: usize = 64;
const PASSES: [usize; 3] = [20, 1, 4];

/// Compares a model's logits with what they may be.
fn compare(
    path: &Path,
    engine: &mut Engine,
    arithmetic: Arithmetic,
    tokens: &Tokens,
    file: &Path,
) -> Result<()> {
    let ids = tokens.encode(&std::fs::read_to_string(file)?)?;
    let ids = &ids[..ids.len().min(COMPARED)];
    #[cfg(feature = "cuda")]
    let of_device;
    let rule = match engine {
        Engine::Host(_) => Rule::on_cpu(arithmetic),
        #[cfg(feature = "cuda")]
        Engine::Device(model) => {
            of_device = model.roundings()?;
            Rule {
                arithmetic,
                on_gpu: true,
                roundings: &of_device,
            }
        }
    };
    let found = bounds::compare(path, engine.reader(), rule, ids, &PASSES)?;
    let mut explained = found.explained.clone();
    explained.sort_by(f64::total_cmp);
    println!(
        "{} tokens: logits lie within {:.4} of what roundings explain, which is {:.1e} of the largest logit (median; {:.1e} \
         at most); the likeliest token is certain behind {}",
        ids.len(),
        found.distance,
        explained[explained.len() / 2],
        explained[explained.len() - 1],
        found.certain
    );
    ensure!(found.distance <= 1.0, "that is more than roundings explain");
    Ok(())
}

/// Tokens of a text that are collected from at most: texts of several kinds tell more than one long one.
const COLLECTED: usize = 512;

/// Writes the mean products of the vectors that layers meet in some texts.
fn collect(
    weights: &Weights,
    model: &mut dyn Reader,
    tokens: &Tokens,
    texts: &[PathBuf],
    to: &Path,
) -> Result<()> {
    for path in texts {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let ids = tokens.encode(&text)?;
        let ids = &ids[..ids.len().min(COLLECTED).min(model.capacity())];
        model.reset();
        model
            .read(ids)
            .with_context(|| path.display().to_string())?;
    }
    // Under its name when it is complete.
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    candle_core::safetensors::save(&weights.statistics()?, &partial)?;
    std::fs::rename(&partial, to).with_context(|| to.display().to_string())
}

/// The perplexity of a text: e to the mean of -log p of each token, behind all before it in a window.
fn perplexity(model: &mut dyn Reader, tokens: &Tokens, file: &Path, window: usize) -> Result<()> {
    let ids = tokens.encode(&std::fs::read_to_string(file)?)?;
    ensure!(ids.len() > 1, "{}: one token is no text", file.display());
    let (mut sum, mut count) = (0.0, 0usize);
    for window in ids.chunks(window.min(512)) {
        model.reset();
        for (pass, some) in window.chunks(PASS).enumerate() {
            let logits = model.read_all(some)?;
            for (i, logits) in logits.chunks_exact(logits.len() / some.len()).enumerate() {
                let Some(&next) = window.get(pass * PASS + i + 1) else {
                    continue;
                };
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exps = logits.iter().map(|logit| f64::from(logit - most).exp());
                let all: f64 = exps.sum();
                sum += all.ln() - f64::from(logits[next as usize] - most);
                count += 1;
            }
        }
    }
    println!(
        "perplexity {:.3} of {count} tokens",
        (sum / count as f64).exp()
    );
    Ok(())
}
