//! Small random models, in both dialects of NVFP4, against the same weights as dense matrices.

use std::fs;
use std::path::Path;

use candle_core::Device;
use nvfp4_gemv::Dialect;
use nvfp4_gemv_llama::bounds::{self, Rule};
use nvfp4_gemv_llama::{
    Arithmetic, Config, Generator, Head, Model, Reader, Sampling, Tokens, Weights,
};
use random::{Random, Sizes};
use serde_json::{Value, json};

mod random;

const SIZES: Sizes = Sizes {
    hidden: 64,
    heads: 4,
    kv: 2,
    head: 16,
    between: 96,
    layers: 2,
    vocabulary: 50,
    experts: 6,
};
const HEAD: usize = SIZES.head;
const VOCABULARY: usize = SIZES.vocabulary;

fn config(model: &str) -> Value {
    random::config(model, &SIZES)
}

/// Writes a model to a directory.
fn write(directory: &Path, model: &str, dialect: Dialect) {
    random::write(directory, model, dialect, &SIZES);
}

fn load(directory: &Path, arithmetic: Arithmetic) -> Model {
    load_with(directory, arithmetic, Head::Dense)
}

fn load_with(directory: &Path, arithmetic: Arithmetic, head: Head) -> Model {
    let (weights, config) = Weights::open(directory, arithmetic, &Device::Cpu).unwrap();
    Model::load(&weights, config, 256, head, 2, |_| ()).unwrap()
}

fn text() -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(5);
    (0..150).map(|_| random.u32(0..VOCABULARY as u32)).collect()
}

/// Logits behind each token of a pass.
fn read_all(model: &mut Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let logits = model.read_all(tokens).unwrap();
    logits
        .chunks_exact(VOCABULARY)
        .map(<[f32]>::to_vec)
        .collect()
}

/// Logits behind each token of a text, read in passes of so many.
fn logits(model: &mut Model, text: &[u32], pass: usize) -> Vec<Vec<f32>> {
    model.reset();
    let passes = text.chunks(pass);
    let read = passes.flat_map(|some| read_all(model, some));
    read.collect()
}

/// The largest difference, in the largest logit.
fn apart(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.concat().into_iter().zip(b.concat());
    let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    apart
        / b.concat()
            .into_iter()
            .fold(0.0, |most, x| x.abs().max(most))
}

/// The most that sums in another order may differ by, behind two layers. Vectors in NVFP4 differ by a hundred times as
/// much.
const ROUNDING: f32 = 5e-5;

#[test]
fn a_model_is_its_dense_reference() {
    let directory = tempfile::tempdir().unwrap();
    for model in ["llama", "qwen3", "qwen3_moe"] {
        for dialect in Dialect::ALL {
            write(directory.path(), model, dialect);
            let mut reference = load(directory.path(), Arithmetic::Reference);
            let expected = logits(&mut reference, &text(), 64);
            let mut nvfp4 = load(directory.path(), Arithmetic::Nvfp4);
            let found = apart(&logits(&mut nvfp4, &text(), 64), &expected);
            assert!(found < ROUNDING, "{model}, {dialect}: {found}");
            // Other passes, single tokens among them, are the same text.
            let found = apart(&logits(&mut nvfp4, &text(), 1), &expected);
            assert!(
                found < ROUNDING,
                "{model}, {dialect}, a token a pass: {found}"
            );
            // `read` says what the last token's logits are, in passes of its own.
            nvfp4.reset();
            let last = nvfp4.read(&text()).unwrap().to_vec();
            let found = apart(&[last], &expected[expected.len() - 1..]);
            assert!(
                found < ROUNDING,
                "{model}, {dialect}, the last token: {found}"
            );
            // Vectors in bytes are off by what a 254th of a block's largest element makes of logits. A router may choose
            // another expert for that.
            let mut bytes = load(directory.path(), Arithmetic::Nvfp4Bytes);
            let found = apart(&logits(&mut bytes, &text(), 64), &expected);
            let most = if model == "qwen3_moe" { 0.35 } else { 0.05 };
            assert!(
                (2.0 * ROUNDING..most).contains(&found),
                "{model}, {dialect}, bytes: {found}"
            );
            // Vectors in NVFP4 are something else, of the same size.
            let mut vectors = load(directory.path(), Arithmetic::Nvfp4Vectors);
            let found = apart(&logits(&mut vectors, &text(), 64), &expected);
            assert!(
                (100.0 * ROUNDING..0.7).contains(&found),
                "{model}, {dialect}: {found}"
            );
        }
    }
}

/// 64 tokens, teacher-forced. With NVFP4 vectors an element that lies at a boundary, so that roundings decide what it
/// becomes, makes what is known of a token's logits little: there are such in layers of experts, and in MLPs, whose inner
/// vectors the reference does not follow on the CPU.
#[test]
fn logits_lie_within_their_derived_bound() {
    let directory = tempfile::tempdir().unwrap();
    let text = &text()[..64];
    for model in ["llama", "qwen3", "qwen3_moe"] {
        for dialect in Dialect::ALL {
            write(directory.path(), model, dialect);
            for (arithmetic, known) in [(Arithmetic::Nvfp4, 64), (Arithmetic::Nvfp4Vectors, 56)] {
                let mut nvfp4 = load(directory.path(), arithmetic);
                let rule = Rule::on_cpu(arithmetic);
                let found = bounds::compare(directory.path(), &mut nvfp4, rule, text, &PASSES);
                let found = found
                    .unwrap_or_else(|error| panic!("{model}, {dialect}, {arithmetic:?}: {error}"));
                println!(
                    "{model}, {dialect}, {arithmetic:?}: {} known, {found:?}",
                    found.known()
                );
                assert!(
                    found.distance <= 1.0,
                    "{model}, {dialect}, {arithmetic:?}: {found:?}"
                );
                assert!(
                    found.known() >= known,
                    "{model}, {dialect}, {arithmetic:?}: {found:?}"
                );
                assert!(
                    found.certain >= known - 4,
                    "{model}, {dialect}, {arithmetic:?}: {found:?}"
                );
            }
        }
    }
}

/// A prompt, and guesses; then single tokens.
const PASSES: [usize; 4] = [20, 1, 4, 30];

/// Otherwise the bound would say nothing: vectors in bytes, or in NVFP4, are further off than roundings of f32 explain, and
/// so is another ε, and a position that is not the token's.
#[test]
fn what_is_computed_otherwise_lies_outside_the_derived_bound() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "qwen3", Dialect::ModelOpt);
    let text = &text()[..30];
    let is_outside = |model: &mut Model| {
        let rule = Rule::on_cpu(Arithmetic::Nvfp4);
        let found = bounds::compare(directory.path(), model, rule, text, &[10, 2]);
        bounds::is_outside(&found)
    };
    let sound = || load(directory.path(), Arithmetic::Nvfp4);
    assert!(!is_outside(&mut sound()));
    for arithmetic in [Arithmetic::Nvfp4Bytes, Arithmetic::Nvfp4Vectors] {
        assert!(
            is_outside(&mut load(directory.path(), arithmetic)),
            "{arithmetic:?}"
        );
    }
    for (key, value) in [("rms_norm_eps", 1e-4), ("rope_theta", 10_100.0)] {
        let (weights, _) =
            Weights::open(directory.path(), Arithmetic::Nvfp4, &Device::Cpu).unwrap();
        let mut changed = config("qwen3");
        changed[key] = json!(value);
        let changed = Config::of_text(&changed.to_string()).unwrap();
        let mut model = Model::load(&weights, changed, 256, Head::Dense, 2, |_| ()).unwrap();
        assert!(is_outside(&mut model), "{key}");
    }
}

/// What is known without following: prints the largest `off` behind each layer, in the largest number there.
#[test]
#[ignore = "prints numbers"]
fn what_a_reference_that_follows_nothing_knows() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "llama", Dialect::ModelOpt);
    let (weights, config) =
        Weights::open(directory.path(), Arithmetic::Reference, &Device::Cpu).unwrap();
    let rule = Rule::on_cpu(Arithmetic::Nvfp4);
    let mut reference = bounds::Decoder::load(&weights, &config, rule, 64).unwrap();
    reference.read(&text()[..64], None).unwrap();
    println!("{:?}", reference.growth);
}

/// The head as two matrices is nearly as it was; as one it is not. Both are what their dense matrices are.
#[test]
fn a_head_in_nvfp4_is_its_dense_reference() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "llama", Dialect::ModelOpt);
    let text = text();
    let of = |arithmetic, head| {
        let mut model = load_with(directory.path(), arithmetic, head);
        logits(&mut model, &text[..40], 20)
    };
    let dense = of(Arithmetic::Nvfp4, Head::Dense);
    let mut off = [Head::Nvfp4Twice, Head::Nvfp4].map(|head| {
        let found = of(Arithmetic::Nvfp4, head);
        let from_reference = apart(&found, &of(Arithmetic::Reference, head));
        assert!(from_reference < ROUNDING, "{head:?}: {from_reference}");
        apart(&found, &dense)
    });
    assert!(off[0] > 0.0, "the head has not been quantised");
    off[0] *= 8.0;
    assert!(off[0] < off[1] && off[1] < 0.2, "{off:?}");
}

/// Whatever a pass has beside a token, its logits keep their bits: guesses change no text.
#[test]
fn batch_invariant_logits_do_not_depend_on_passes() {
    let directory = tempfile::tempdir().unwrap();
    for model in ["llama", "qwen3", "qwen3_moe"] {
        write(directory.path(), model, Dialect::ModelOpt);
        for arithmetic in [Arithmetic::Nvfp4, Arithmetic::Nvfp4Bytes] {
            let load = |is_invariant| {
                let (weights, config) =
                    Weights::open(directory.path(), arithmetic, &Device::Cpu).unwrap();
                let weights = weights.with_batch_invariance(is_invariant);
                Model::load(&weights, config, 256, Head::Nvfp4Twice, 2, |_| ())
            };
            if model == "qwen3_moe" {
                let error = load(true).err().expect("experts are not invariant");
                assert!(error.to_string().contains("experts"), "{error}");
                continue;
            }
            let mut model = load(true).unwrap();
            let of_one = logits(&mut model, &text(), 1);
            for pass in [2, 5, 64] {
                assert!(
                    logits(&mut model, &text(), pass) == of_one,
                    "{arithmetic:?}, {pass}"
                );
            }
            // Without it they do depend on it, or this would show nothing.
            let mut free = load(false).unwrap();
            let depends = logits(&mut free, &text(), 1) != logits(&mut free, &text(), 64);
            assert!(depends || arithmetic == Arithmetic::Nvfp4Bytes);
        }
    }
}

/// A tokenizer whose tokens are words.
fn tokens(directory: &Path) -> Tokens {
    let vocabulary: serde_json::Map<_, _> = (0..VOCABULARY)
        .map(|i| (format!("w{i}"), json!(i)))
        .collect();
    let model = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"});
    let file = json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model});
    fs::write(directory.join("tokenizer.json"), file.to_string()).unwrap();
    Tokens::open(directory).unwrap()
}

/// With guesses the text is that without, where rows do not depend on the others of a pass: right guesses, wrong ones, and
/// some of both.
#[test]
fn guesses_change_no_text() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "qwen3", Dialect::ModelOpt);
    let tokens = tokens(directory.path());
    for arithmetic in [Arithmetic::Nvfp4, Arithmetic::Nvfp4Bytes] {
        let (weights, config) = Weights::open(directory.path(), arithmetic, &Device::Cpu).unwrap();
        let weights = weights.with_batch_invariance(true);
        let mut model = Model::load(&weights, config, 256, Head::Nvfp4, 2, |_| ()).unwrap();
        let mut answer = |draft| {
            model.reset();
            let mut generator = Generator {
                model: &mut model,
                tokens: &tokens,
                sampling: Sampling {
                    temperature: 0.0,
                    top_p: 1.0,
                    seed: 0,
                },
                draft,
            };
            generator.answer(&text(), 90, |_| ()).unwrap()
        };
        let (plain, times) = answer(0);
        assert_eq!((plain.len(), times.drafted), (90, 0));
        for draft in [1, 4, 7] {
            let (guessed, times) = answer(draft);
            assert_eq!(guessed, plain, "{arithmetic:?}, {draft}");
            let (right, all) = (times.accepted, times.drafted);
            assert!(
                right > 0 && right < all,
                "{arithmetic:?}, {draft}: {right} of {all}"
            );
        }
    }
}

#[test]
fn a_text_that_is_cut_goes_on_as_if_the_rest_had_not_been_read() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "qwen3", Dialect::ModelOpt);
    let mut model = load(directory.path(), Arithmetic::Nvfp4);
    let text = text();
    let expected = logits(&mut model, &text, 10);
    model.reset();
    model.read_all(&text[..40]).unwrap();
    model.read_all(&[7, 8, 9]).unwrap();
    model.truncate(40).unwrap();
    assert_eq!(model.position(), 40);
    let rest = read_all(&mut model, &text[40..50]);
    assert!(apart(&rest, &expected[40..50]) < ROUNDING);
    model.truncate(0).unwrap();
    let first = read_all(&mut model, &text[..10]);
    assert!(apart(&first, &expected[..10]) < ROUNDING);
    assert!(model.truncate(11).is_err());
    assert!(model.read(&[]).is_err());
    model.reset();
    assert!(model.read(&[0; 257]).is_err(), "longer than the cache");
}

#[test]
fn configs_that_are_not_computed_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "llama", Dialect::ModelOpt);
    let refused = |key: &str, value: Value| {
        let mut config = config("llama");
        config[key] = value;
        fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
        let opened = Weights::open(directory.path(), Arithmetic::Nvfp4, &Device::Cpu);
        let error = opened.err().map(|error| format!("{error:#}"));
        error.unwrap_or_else(|| panic!("{key} was taken"))
    };
    assert!(refused("model_type", json!("gemma3")).contains("gemma3"));
    assert!(refused("hidden_act", json!("gelu")).contains("gelu"));
    assert!(refused("use_sliding_window", json!(true)).contains("window"));
    assert!(refused("num_key_value_heads", json!(3)).contains("heads"));
    assert!(refused("rope_scaling", json!({"rope_type": "yarn"})).contains("yarn"));
    assert!(refused("rope_parameters", json!({"rope_type": "linear"})).contains("linear"));
    assert!(refused("rope_scaling", json!({"rope_type": "llama3"})).contains("frequencies"));
    assert!(refused("num_attention_heads", json!(0)).contains("no head"));
    fs::write(
        directory.path().join("config.json"),
        config("llama").to_string(),
    )
    .unwrap();
    let original = Weights::open(directory.path(), Arithmetic::Original, &Device::Cpu);
    assert!(
        original.is_err(),
        "the weights before quantisation are not there"
    );
}

/// Llama-3.1's frequencies: short waves stay, long ones are stretched by the factor.
#[test]
fn rotary_frequencies_are_stretched() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "llama", Dialect::ModelOpt);
    let mut config = config("llama");
    config["rope_theta"] = json!(500000.0);
    let open = |config: &Value| {
        fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
        let opened = Weights::open(directory.path(), Arithmetic::Nvfp4, &Device::Cpu);
        opened.unwrap().1.frequencies()
    };
    let plain = open(&config);
    assert_eq!(plain.len(), HEAD / 2);
    config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let stretched = open(&config);
    assert_eq!(stretched[0], plain[0]);
    assert_eq!(stretched[HEAD / 2 - 1], plain[HEAD / 2 - 1] / 8.0);
    // As transformers 5 writes it.
    let mut newer = config.clone();
    newer["rope_parameters"] = config["rope_scaling"].clone();
    newer["rope_parameters"]["rope_theta"] = json!(500000.0);
    for old in ["rope_scaling", "rope_theta"] {
        newer.as_object_mut().unwrap().remove(old);
    }
    assert_eq!(open(&newer), stretched);
    // Waves of 2048 to 8192 tokens lie between.
    let between = plain
        .iter()
        .zip(&stretched)
        .filter(|(p, s)| *s < *p && **s > **p / 8.0);
    assert!(between.count() >= 1);
}

/// A Llama of one layer in a GGUF file, as f32. Elements of a tensor are made from its name and their place.
fn write_gguf(path: &Path) {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut keys = Vec::new();
    let mut key = |name: &str, kind: u32, value: &[u8]| {
        keys.push([&string(name)[..], &kind.to_le_bytes(), value].concat());
    };
    key("general.architecture", 8, &string("llama"));
    for (name, value) in [
        ("block_count", 1u32),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", 16),
        ("vocab_size", 8),
    ] {
        key(&format!("llama.{name}"), 4, &value.to_le_bytes());
    }
    for (name, value) in [
        ("attention.layer_norm_rms_epsilon", 1e-5f32),
        ("rope.freq_base", 1e4),
    ] {
        key(&format!("llama.{name}"), 6, &value.to_le_bytes());
    }
    let (mut infos, mut data) = (Vec::new(), Vec::new());
    let tensors: [(&str, &[u64]); 11] = [
        ("token_embd", &[32, 8]),
        ("output_norm", &[32]),
        ("blk.0.attn_norm", &[32]),
        ("blk.0.ffn_norm", &[32]),
        ("blk.0.attn_q", &[32, 32]),
        ("blk.0.attn_k", &[32, 16]),
        ("blk.0.attn_v", &[32, 16]),
        ("blk.0.attn_output", &[32, 32]),
        ("blk.0.ffn_gate", &[32, 48]),
        ("blk.0.ffn_up", &[32, 48]),
        ("blk.0.ffn_down", &[48, 32]),
    ];
    for (seed, (name, shape)) in tensors.into_iter().enumerate() {
        infos.extend(string(&format!("{name}.weight")));
        infos.extend((shape.len() as u32).to_le_bytes());
        infos.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
        infos.extend(0u32.to_le_bytes());
        infos.extend((data.len() as u64).to_le_bytes());
        let mut random = Random(fastrand::Rng::with_seed(seed as u64));
        let values = random.numbers(shape.iter().product::<u64>() as usize, 1.0);
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((keys.len() as u64).to_le_bytes());
    file.extend(keys.concat());
    file.extend(infos);
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    fs::write(path, file).unwrap();
}

/// The statistics by which `quantize --calibration` rounds: means over all vectors of all texts.
#[test]
fn mean_products_of_the_vectors_that_layers_meet_are_collected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    write_gguf(&path);
    let (weights, config) = Weights::watched(&path, &Device::Cpu).unwrap();
    let mut model = Model::load(&weights, config.clone(), 16, Head::Dense, 1, |_| {}).unwrap();
    let nothing = weights.statistics().unwrap_err();
    assert!(
        nothing.to_string().contains("no text was read"),
        "{nothing}"
    );
    for text in [&[3, 5][..], &[3]] {
        model.reset();
        model.read(text).unwrap();
    }
    let statistics = weights.statistics().unwrap();
    let layer = "model.layers.0";
    let qkv = ["q", "k", "v"]
        .map(|part| format!("{layer}.self_attn.{part}_proj"))
        .join("+");
    let gate_up = ["gate", "up"]
        .map(|part| format!("{layer}.mlp.{part}_proj"))
        .join("+");
    let down = format!("{layer}.mlp.down_proj");
    let mut shapes: Vec<_> = statistics
        .iter()
        .map(|(name, of)| (&name[..], of.dims()))
        .collect();
    shapes.sort();
    let output = format!("{layer}.self_attn.o_proj");
    let mut expected = [
        (&qkv[..], &[32, 32][..]),
        (&output, &[32, 32]),
        (&gate_up, &[32, 32]),
        (&down, &[48, 48]),
    ];
    expected.sort();
    assert_eq!(shapes, expected);
    // Of the first layer they can be said: token 3 was read twice, 5 once.
    let embeddings = weights
        .matrix("model.embed_tokens")
        .unwrap()
        .to_vec2::<f32>()
        .unwrap();
    let factors = weights.norm(&format!("{layer}.input_layernorm")).unwrap();
    let factors = factors.to_vec1::<f32>().unwrap();
    let vectors = [3, 3, 5].map(|token: usize| {
        let x = &embeddings[token];
        let size = (x.iter().map(|x| x * x).sum::<f32>() / 32.0 + 1e-5).sqrt();
        x.iter()
            .zip(&factors)
            .map(|(x, factor)| x / size * factor)
            .collect::<Vec<f32>>()
    });
    let found = statistics[&qkv].to_vec2::<f32>().unwrap();
    for (i, row) in found.iter().enumerate() {
        for (j, found) in row.iter().enumerate() {
            let mean = vectors.iter().map(|x| x[i] * x[j]).sum::<f32>() / 3.0;
            assert!((found - mean).abs() < 1e-5, "{i} {j}: {found} {mean}");
        }
    }
}
