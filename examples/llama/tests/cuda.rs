//! Small random models on a GPU, against the CPU. Where there is no GPU, each trial is ignored, with the reason.
//! `--record FILE` records the run: see tests/recorded/README.md.

use std::path::Path;
use std::process::ExitCode;

use candle_core::Device;
use nvfp4_gemv::{Dialect, raw};
use nvfp4_gemv_llama::bounds::{self, Rule};
use nvfp4_gemv_llama::model::{PASS, likeliest};
use nvfp4_gemv_llama::{Arithmetic, Config, DeviceModel, Head, Model, Reader, Weights, device};
use nvfp4_gemv_trials::{Program, trials};
use random::Sizes;

#[allow(dead_code, reason = "the other program of tests uses all")]
mod random;

/// Rows of 256 elements, which most kernels ask for, and of 512.
const SIZES: Sizes = Sizes {
    hidden: 256,
    heads: 8,
    kv: 2,
    head: 64,
    between: 512,
    layers: 3,
    vocabulary: 1000,
    experts: 8,
};
/// Heads that share keys by 16, of which two CTAs have the keys; rows that are no multiple of 256.
const OTHER: Sizes = Sizes {
    hidden: 288,
    heads: 16,
    kv: 1,
    head: 32,
    between: 96,
    layers: 2,
    ..SIZES
};
const MOST: usize = 300;
const MODELS: [&str; 3] = ["llama", "qwen3", "qwen3_moe"];

fn main() -> ExitCode {
    let no_gpu = || Some(raw::device_count().err()?.to_string());
    let program = Program {
        name: "llama",
        gpus: || raw::gpu(0).map(|gpu| gpu.name).into_iter().collect(),
        sources: nvfp4_gemv::TESTED,
        one_by_one: true,
    };
    let mut all = trials![
        no_gpu;
        logits_are_the_cpus,
        with_quantised_vectors_logits_are_near_the_cpus,
        heads_are_those_of_the_cpu,
        graphs_have_the_bits_of_single_launches,
        batch_invariant_logits_do_not_depend_on_passes,
        the_device_chooses_as_its_logits_say,
        what_is_not_computed_is_refused,
        a_random_model_is_timed,
    ];
    // With `--ignored`: on an H200, 2026-11-28, Llama in ModelOpt's dialect was within its bounds with exact, bf16 and f16
    // vectors. With NVFP4 vectors what the first layer's o is given was not, nobody knows why, and the trial ended there.
    let asked_for = trials![no_gpu; logits_lie_within_their_derived_bound];
    all.extend(
        asked_for
            .into_iter()
            .map(|trial| trial.with_ignored_flag(true)),
    );
    program.run(all)
}

/// What a GPU computes a model with: experts have NVFP4 vectors alone.
fn arithmetics(model: &str) -> &'static [Arithmetic] {
    const ALL: [Arithmetic; 4] = [
        Arithmetic::Nvfp4,
        Arithmetic::Nvfp4Bf16,
        Arithmetic::Nvfp4F16,
        Arithmetic::Nvfp4Vectors,
    ];
    match model {
        "qwen3_moe" => &[Arithmetic::Nvfp4Vectors],
        _ => &ALL,
    }
}

fn on_cpu(directory: &Path, arithmetic: Arithmetic, head: Head) -> Model {
    let (weights, config) = Weights::open(directory, arithmetic, &Device::Cpu).unwrap();
    Model::load(&weights, config, MOST, head, 2, |_| ()).unwrap()
}

fn on_gpu(directory: &Path, arithmetic: Arithmetic, head: Head) -> anyhow::Result<DeviceModel> {
    let (weights, config) = Weights::open(directory, arithmetic, &Device::Cpu)?;
    DeviceModel::load(&weights, &config, MOST, head, |_| ())
}

fn text(count: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(5);
    let token = |_| random.u32(0..SIZES.vocabulary as u32);
    (0..count).map(token).collect()
}

/// Logits behind each token of a text: of passes of these lengths, then of single tokens.
fn logits(model: &mut dyn Reader, text: &[u32], passes: &[usize]) -> Vec<Vec<f32>> {
    model.reset();
    let (mut at, mut all) = (0, Vec::new());
    let lengths = passes.iter().copied().chain(std::iter::repeat(1));
    for length in lengths {
        if at == text.len() {
            break;
        }
        let logits = model.read_all(&text[at..at + length]).unwrap();
        let each = logits.len() / length;
        all.extend(logits.chunks_exact(each).map(<[f32]>::to_vec));
        at += length;
    }
    all
}

/// The largest difference, in the largest logit. No number is no distance.
fn apart(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let (a, b) = (a.concat(), b.concat());
    assert_eq!(a.len(), b.len());
    assert!(a.iter().chain(&b).all(|x| x.is_finite()));
    let pairs = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
    pairs.fold(0.0, f32::max) / b.iter().fold(0.0, |most: f32, x| x.abs().max(most))
}

/// Where the CPU's two largest logits are further apart than twice a bound, the GPU has the same largest one.
fn choices_agree(gpu: &[Vec<f32>], cpu: &[Vec<f32>], bound: f32) -> usize {
    let largest = cpu
        .concat()
        .into_iter()
        .fold(0.0, |most: f32, x| x.abs().max(most));
    let mut compared = 0;
    for (gpu, cpu) in gpu.iter().zip(cpu) {
        let mut sorted = cpu.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        if sorted[0] - sorted[1] > 2.0 * bound * largest {
            assert_eq!(likeliest(gpu).unwrap(), likeliest(cpu).unwrap());
            compared += 1;
        }
    }
    compared
}

/// Sums in another order, behind three layers. An H100 had 2.3e-6 at most.
const ROUNDING: f32 = 2e-5;

/// 64 tokens, a prompt of 20 and three guesses among them.
fn logits_are_the_cpus() {
    let directory = tempfile::tempdir().unwrap();
    let (text, passes) = (text(64), [20, 1, 4]);
    for sizes in [SIZES, OTHER] {
        for model in ["llama", "qwen3"] {
            for dialect in Dialect::ALL {
                random::write(directory.path(), model, dialect, &sizes);
                let mut cpu = on_cpu(directory.path(), Arithmetic::Nvfp4, Head::Dense);
                let expected = logits(&mut cpu, &text, &passes);
                let mut gpu = on_gpu(directory.path(), Arithmetic::Nvfp4, Head::Dense).unwrap();
                let found = logits(&mut gpu, &text, &passes);
                let off = apart(&found, &expected);
                println!("{model}, {dialect}, hidden {}: {off:e}", sizes.hidden);
                assert!(off < ROUNDING, "{model}, {dialect}: {off}");
                assert!(choices_agree(&found, &expected, ROUNDING) > 40);
                // Other passes of the prompt, and `read`, which has the last token's logits.
                let off = apart(&logits(&mut gpu, &text, &[]), &expected);
                assert!(off < ROUNDING, "{model}, {dialect}, a token a pass: {off}");
                gpu.reset();
                let last = gpu.read(&text).unwrap().to_vec();
                let off = apart(&[last], &expected[63..]);
                assert!(off < ROUNDING, "{model}, {dialect}, the last token: {off}");
                // Longer than a pass.
                let long = [&text[..], &text, &text].concat();
                gpu.reset();
                let found = gpu.read(&long).unwrap().to_vec();
                cpu.reset();
                let off = apart(&[found], &[cpu.read(&long).unwrap().to_vec()]);
                assert!(
                    off < ROUNDING && long.len() > PASS,
                    "{model}, {dialect}: {off}"
                );
            }
        }
    }
}

/// 64 tokens, teacher-forced, in both dialects. The reference goes on with what the GPU gave its layers.
fn logits_lie_within_their_derived_bound() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(64);
    for (model, sizes) in [
        ("llama", SIZES),
        ("qwen3", SIZES),
        ("qwen3", OTHER),
        ("qwen3_moe", SIZES),
    ] {
        for dialect in Dialect::ALL {
            random::write(directory.path(), model, dialect, &sizes);
            for &arithmetic in arithmetics(model) {
                let mut gpu = on_gpu(directory.path(), arithmetic, Head::Dense).unwrap();
                let roundings = gpu.roundings().unwrap();
                let rule = Rule {
                    arithmetic,
                    on_gpu: true,
                    roundings: &roundings,
                };
                let name = format!("{model}, {dialect}, {arithmetic:?}");
                let found = bounds::compare(directory.path(), &mut gpu, rule, &text, &[20, 1, 4]);
                let found = found.unwrap_or_else(|error| panic!("{name}: {error:#}"));
                let most = found.explained.iter().copied().fold(0.0, f64::max);
                println!(
                    "{name}: {:.4} of what roundings explain, {most:.2e} at most, {} tokens known, {} certain",
                    found.distance,
                    found.known(),
                    found.certain
                );
                assert!(found.distance <= 1.0, "{name}: {found:?}");
                // What is not one rule's is outside it.
                if arithmetic == Arithmetic::Nvfp4Bf16 {
                    let rule = Rule {
                        arithmetic: Arithmetic::Nvfp4F16,
                        ..rule
                    };
                    let found = bounds::compare(directory.path(), &mut gpu, rule, &text, &[20]);
                    assert!(bounds::is_outside(&found), "{name}");
                }
            }
        }
    }
}

/// Vectors in bf16 and f16 are off by their rounding. Vectors in NVFP4 are rounded as on the CPU, but for elements that
/// lie at a boundary, where the last bit of a sum decides: a few of them, which are off by a step. Both are by far
/// nearer to the CPU with the same rounding than exact vectors are to NVFP4 ones.
fn with_quantised_vectors_logits_are_near_the_cpus() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(64);
    for model in MODELS {
        for dialect in Dialect::ALL {
            random::write(directory.path(), model, dialect, &SIZES);
            let of_cpu = |arithmetic| {
                logits(
                    &mut on_cpu(directory.path(), arithmetic, Head::Dense),
                    &text,
                    &[],
                )
            };
            let of_gpu = |arithmetic| {
                let mut gpu = on_gpu(directory.path(), arithmetic, Head::Dense).unwrap();
                logits(&mut gpu, &text, &[])
            };
            let exact = of_cpu(Arithmetic::Nvfp4);
            let quantised = of_cpu(Arithmetic::Nvfp4Vectors);
            let between = apart(&exact, &quantised);
            let off = apart(&of_gpu(Arithmetic::Nvfp4Vectors), &quantised);
            println!("{model}, {dialect}: {off:e} of {between:e}");
            assert!(
                off < between / 2.0,
                "{model}, {dialect}: {off} of {between}"
            );
            if model == "qwen3_moe" {
                continue;
            }
            for (arithmetic, range) in [
                (Arithmetic::Nvfp4Bf16, 1e-4..0.05),
                (Arithmetic::Nvfp4F16, 1e-5..0.008),
            ] {
                let off = apart(&of_gpu(arithmetic), &exact);
                println!("{model}, {dialect}, {arithmetic:?}: {off:e}");
                assert!(
                    range.contains(&off),
                    "{model}, {dialect}, {arithmetic:?}: {off}"
                );
            }
        }
    }
}

fn heads_are_those_of_the_cpu() {
    let directory = tempfile::tempdir().unwrap();
    random::write(directory.path(), "llama", Dialect::ModelOpt, &SIZES);
    let text = text(20);
    for head in [Head::Nvfp4Twice, Head::Nvfp4] {
        let [mut cpu, mut gpu]: [Box<dyn Reader>; 2] = [
            Box::new(on_cpu(directory.path(), Arithmetic::Nvfp4, head)),
            Box::new(on_gpu(directory.path(), Arithmetic::Nvfp4, head).unwrap()),
        ];
        let [cpu, gpu] = [&mut cpu, &mut gpu].map(|of| logits(&mut **of, &text, &[7]));
        let off = apart(&gpu, &cpu);
        assert!(off < ROUNDING, "{head:?}: {off}");
    }
}

fn graphs_have_the_bits_of_single_launches() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(64);
    for model in MODELS {
        random::write(directory.path(), model, Dialect::ModelOpt, &SIZES);
        for &arithmetic in arithmetics(model) {
            let [graphs, launches] = [true, false].map(|graphs| {
                let gpu = on_gpu(directory.path(), arithmetic, Head::Nvfp4Twice).unwrap();
                let mut gpu = gpu.with_graphs(graphs);
                // The third pass of a length is a replay, at another position.
                logits(&mut gpu, &text, &[20, 3, 3, 3, 3])
            });
            let bits = |of: &[Vec<f32>]| -> Vec<u32> {
                of.concat().iter().map(|logit| logit.to_bits()).collect()
            };
            assert!(bits(&graphs) == bits(&launches), "{model}, {arithmetic:?}");
        }
    }
}

/// Guesses that are checked in a pass change no text.
fn batch_invariant_logits_do_not_depend_on_passes() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(80);
    for (model, sizes) in [("llama", SIZES), ("qwen3", SIZES), ("qwen3", OTHER)] {
        random::write(directory.path(), model, Dialect::ModelOpt, &sizes);
        let load = |arithmetic| {
            let (weights, config) = Weights::open(directory.path(), arithmetic, &Device::Cpu)?;
            let weights = weights.with_batch_invariance(true);
            DeviceModel::load(&weights, &config, MOST, Head::Nvfp4, |_| ())
        };
        for arithmetic in [Arithmetic::Nvfp4F16, Arithmetic::Nvfp4Vectors] {
            let mut gpu = load(arithmetic).unwrap();
            let of_one = logits(&mut gpu, &text, &[]);
            for passes in [&[40, 5, 5, 5, 2, 8][..], &[80]] {
                let found = logits(&mut gpu, &text, passes);
                let same = |(a, b): (&Vec<f32>, &Vec<f32>)| {
                    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
                };
                let off = found.iter().zip(&of_one).position(|pair| !same(pair));
                assert_eq!(off, None, "{model}, {arithmetic:?}, {passes:?}");
            }
        }
        assert!(load(Arithmetic::Nvfp4).is_err(), "f32 is not invariant");
    }
}

fn the_device_chooses_as_its_logits_say() {
    let directory = tempfile::tempdir().unwrap();
    random::write(directory.path(), "qwen3", Dialect::ModelOpt, &SIZES);
    let load = || on_gpu(directory.path(), Arithmetic::Nvfp4Vectors, Head::Nvfp4).unwrap();
    let (mut chooses, mut says) = (load(), load());
    let text = text(10);
    let first = likeliest(says.read(&text).unwrap()).unwrap();
    let again = likeliest(chooses.read(&text).unwrap()).unwrap();
    assert_eq!(first, again);
    let mut next = first;
    for step in 0..40 {
        let expected = likeliest(says.read_all(&[next]).unwrap()).unwrap();
        assert_eq!(
            chooses.likeliest(&[next]).unwrap(),
            [expected],
            "step {step}"
        );
        next = expected;
        if step == 20 {
            // A pass of guesses that are wrong is taken back, and the text goes on as before.
            let before = chooses.position();
            let all = chooses.likeliest(&[next, 1, 2, 3]).unwrap();
            assert_eq!(all.len(), 4);
            chooses.truncate(before).unwrap();
        }
    }
    assert_eq!(chooses.position(), says.position());
    // Tokens that the device has not chosen itself.
    let expected = likeliest(says.read_all(&[7]).unwrap()).unwrap();
    assert_eq!(chooses.likeliest(&[7]).unwrap(), [expected]);
}

fn what_is_not_computed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |model: &str, sizes: Sizes, arithmetic| {
        random::write(directory.path(), model, Dialect::ModelOpt, &sizes);
        let error = on_gpu(directory.path(), arithmetic, Head::Dense).err();
        format!("{:#}", error.expect("refused"))
    };
    let small = Sizes { head: 16, ..SIZES };
    assert!(refused("llama", small, Arithmetic::Nvfp4).contains("heads of 16"));
    assert!(refused("qwen3_moe", SIZES, Arithmetic::Nvfp4).contains("Nvfp4Vectors"));
    assert!(refused("llama", SIZES, Arithmetic::Nvfp4Bytes).contains("Nvfp4Bytes"));
    random::write(directory.path(), "llama", Dialect::ModelOpt, &SIZES);
    let mut model = on_gpu(directory.path(), Arithmetic::Nvfp4, Head::Dense).unwrap();
    assert!(model.read(&[]).is_err());
    assert!(model.read(&[SIZES.vocabulary as u32]).is_err());
    assert!(model.read(&[0; MOST + 1]).is_err());
    assert!(model.read_all(&[0; PASS + 1]).is_err());
    assert_eq!(model.position(), 0);
    assert!(model.truncate(1).is_err());
    // As long as the cache, to its last position.
    model.read(&[0; MOST - 1]).unwrap();
    model.read(&[1]).unwrap();
    assert_eq!(model.room(), 0);
    assert!(model.likeliest(&[1]).is_err());
}

fn a_random_model_is_timed() {
    let config = |more: &str| {
        Config::of_text(&format!(
            r#"{{"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
               "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "vocab_size": 2000, {more}}}"#
        ))
    };
    let dense = config(r#""model_type": "llama", "intermediate_size": 1024"#).unwrap();
    let experts = r#""model_type": "qwen3_moe", "moe_intermediate_size": 256, "num_experts": 16"#;
    let experts = config(&format!(r#"{experts}, "num_experts_per_tok": 4"#)).unwrap();
    for (config, arithmetic, head) in [
        (&dense, Arithmetic::Nvfp4Bf16, Head::Dense),
        (&dense, Arithmetic::Nvfp4Vectors, Head::Nvfp4Twice),
        (&experts, Arithmetic::Nvfp4Vectors, Head::Nvfp4),
    ] {
        let mut model = DeviceModel::random(config, arithmetic, 300, head, |_| ()).unwrap();
        let logits = model.read(&[1, 2, 3]).unwrap();
        let largest = logits.iter().fold(0.0, |most: f32, x| x.abs().max(most));
        assert!(largest.is_finite() && largest > 1e-3, "{largest}");
        device::bench(&mut model, 200, 40).unwrap();
        assert!(device::bench(&mut model, 270, 40).is_err(), "no room");
    }
    for name in device::RANDOM_NAMES {
        device::random_config(name).unwrap();
    }
    assert!(device::random_config("no such model").is_err());
}
