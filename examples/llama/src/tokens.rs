//! Tokens: the model's tokenizer and chat template.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use minijinja::{Environment, context};
use nvfp4_gemv::checkpoint::Gguf;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, PreTokenizerWrapper, Tokenizer};

/// A message of a conversation.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Message {
    pub role: &'static str,
    pub content: String,
}

/// A model's tokenizer, its template, and the tokens that end an answer.
pub struct Tokens {
    tokenizer: Tokenizer,
    template: Option<String>,
    ends: Vec<u32>,
}

/// GGUF's kind of a token that is no text.
const CONTROL: i64 = 3;

impl Tokens {
    /// Of a directory or a GGUF file.
    pub fn open(path: &Path) -> Result<Self> {
        match path.is_dir() {
            true => Self::of_directory(path),
            false => Self::of_gguf(&Gguf::open(path)?),
        }
    }

    /// Of a directory with `tokenizer.json`, `tokenizer_config.json` and, where there is one, `generation_config.json`.
    pub fn of_directory(directory: &Path) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&path);
        let tokenizer = tokenizer.map_err(|error| anyhow!("{}: {error}", path.display()))?;
        let json = |name: &str| -> Result<Value> {
            match fs::read_to_string(directory.join(name)) {
                Ok(text) => serde_json::from_str(&text).with_context(|| name.to_owned()),
                Err(_) => Ok(Value::Null),
            }
        };
        let (config, generation) = (
            json("tokenizer_config.json")?,
            json("generation_config.json")?,
        );
        let template = match fs::read_to_string(directory.join("chat_template.jinja")) {
            Ok(template) => Some(template),
            Err(_) => config["chat_template"].as_str().map(str::to_owned),
        };
        let mut ends: Vec<u32> = match &generation["eos_token_id"] {
            Value::Array(ids) => ids
                .iter()
                .filter_map(Value::as_u64)
                .map(|id| id as u32)
                .collect(),
            id => id.as_u64().map(|id| id as u32).into_iter().collect(),
        };
        let end = &config["eos_token"];
        let end = end.as_str().or_else(|| end["content"].as_str());
        ends.extend(end.and_then(|end| tokenizer.token_to_id(end)));
        Ok(Self {
            tokenizer,
            template,
            ends,
        })
    }

    /// Of a GGUF file's metadata: byte-level BPE, as of SmolLM2.
    pub fn of_gguf(gguf: &Gguf) -> Result<Self> {
        let text = |key: &str| gguf.text(&format!("tokenizer.ggml.{key}"));
        let texts = |key: &str| {
            let key = format!("tokenizer.ggml.{key}");
            gguf.texts(&key).with_context(|| format!("no {key}"))
        };
        match (text("model"), text("pre")) {
            (Some("gpt2"), Some("smollm")) => {}
            (model, pre) => {
                bail!("a tokenizer {model:?} that divides texts as {pre:?} is not known")
            }
        }
        let tokens = texts("tokens")?;
        let pairs = texts("merges")?;
        let pairs = pairs.into_iter().map(|pair| {
            let (a, b) = pair
                .split_once(' ')
                .with_context(|| format!("merge {pair:?}"))?;
            Ok((a.to_owned(), b.to_owned()))
        });
        let ids = tokens
            .iter()
            .zip(0..)
            .map(|(token, id)| ((*token).to_owned(), id));
        let bpe = BPE::builder()
            .vocab_and_merges(
                ids.collect::<Vocabulary>(),
                pairs.collect::<Result<Vec<_>>>()?,
            )
            .build();
        let mut tokenizer = Tokenizer::new(bpe.map_err(|error| anyhow!("{error}"))?);
        let bytes = ByteLevel::new(false, true, true);
        tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![
            PreTokenizerWrapper::Digits(Digits::new(true)),
            PreTokenizerWrapper::ByteLevel(bytes),
        ])));
        tokenizer.with_decoder(Some(bytes));
        let kinds = gguf
            .integers("tokenizer.ggml.token_type")
            .unwrap_or_default();
        let control = tokens
            .iter()
            .zip(&kinds)
            .filter(|(_, kind)| **kind == CONTROL);
        let control = control.map(|(token, _)| AddedToken::from(*token, true));
        let added = tokenizer.add_special_tokens(control);
        added.map_err(|error| anyhow!("{error}"))?;
        let end = gguf
            .integer("tokenizer.ggml.eos_token_id")
            .context("no token that ends")?;
        Ok(Self {
            tokenizer,
            template: gguf.text("tokenizer.chat_template").map(str::to_owned),
            ends: vec![end as u32],
        })
    }

    /// The tokens of a text, in which special tokens stand for themselves.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.tokenizer.encode(text, false);
        Ok(encoded
            .map_err(|error| anyhow!("{error}"))?
            .get_ids()
            .to_vec())
    }

    /// The text of tokens, without special ones.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer
            .decode(tokens, true)
            .map_err(|error| anyhow!("{error}"))
    }

    /// Whether an answer ends with a token.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// A conversation as the model's template has it, up to where its answer begins.
    pub fn conversation(&self, messages: &[Message]) -> Result<String> {
        let template = self
            .template
            .as_deref()
            .context("the model has no chat template")?;
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let rendered = environment.render_str(
            template,
            context! { messages => messages, add_generation_prompt => true },
        );
        rendered.context("the model's chat template")
    }
}

type Vocabulary = tokenizers::models::bpe::Vocab;
