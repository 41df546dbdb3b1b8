//! The example's kernels for GPUs, executed by ptx-sim, against f64. Where NVRTC is missing, which compiles them, each
//! trial is ignored, with the reason.
//!
//! A bound is what f32 loses at most: EPSILON for each addition of a sum, relative to the sum of magnitudes.

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use nvfp4_gemv::FloatType;
use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv_llama::Config;
use nvfp4_gemv_llama::device::kernels::{self, Attention, CHOOSERS, Heads, Launch, Routing, Words};
use nvfp4_gemv_nvrtc::arch::Arch;
use nvfp4_gemv_nvrtc::{Names, Nvrtc, Source, Stage};
use nvfp4_gemv_trials::{nothing, trials};
use ptx_sim::{Buffer, Module, Options, Policy, Sim, SimError};

const EPSILON: f64 = 1.0 / (1 << 24) as f64;

const NAMES: Names = Names {
    place: "NVFP4_GEMV_NVRTC",
    cache: "NVFP4_GEMV_CACHE",
    cache_folder: "nvfp4-gemv",
    target: None,
    info: "`nvfp4-gemv info`",
    install: "`cargo xtask test` installs it.",
};

fn nvrtc() -> &'static Result<Nvrtc, String> {
    static LOADED: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    LOADED.get_or_init(|| Nvrtc::load(&NAMES).map_err(|error| error.to_string()))
}

fn main() -> ExitCode {
    let no_nvrtc = || {
        let why = nvrtc().as_ref().err()?;
        Some(why.lines().next().unwrap_or("no NVRTC").to_owned())
    };
    let mut all = trials![
        no_nvrtc;
        attention_is_its_definition,
        a_token_alone_has_the_bits_that_it_has_in_a_pass,
        attention_notices_planted_faults,
        vectors_are_normed_and_gated,
        dense_matrices_are_multiplied,
        experts_are_the_likeliest_first_of_equals,
        routing_notices_planted_faults,
        the_likeliest_token_is_the_first_of_the_largest,
        tokens_are_rows_of_the_table,
        random_words_are_what_they_say,
    ];
    all.extend(trials![nothing; sizes_that_are_not_computed_are_refused]);
    nvfp4_gemv_trials::run(all)
}

/// Kernels of a text, with memory.
struct Device(Sim);

impl Device {
    fn of_text(text: String) -> Self {
        let source = Source {
            name: "kernels.cu".into(),
            text,
            headers: Arc::default(),
        };
        let arch: Arch = "90a".parse().unwrap();
        let nvrtc = nvrtc().as_ref().unwrap();
        let options = ["--std=c++17".to_owned()];
        let compiled = nvrtc.compile(&source, arch, &options, Stage::Ptx);
        let (compiled, _) = compiled.unwrap_or_else(|error| panic!("{error}"));
        Self(Sim::new(Module::parse(&compiled.ptx).unwrap()))
    }

    /// Kernels that do not depend on a model.
    fn any() -> Self {
        static ANY: OnceLock<Sim> = OnceLock::new();
        let sim = ANY.get_or_init(|| Self::of_text(Shape::SMALL.heads().source()).0);
        Self(sim.clone())
    }

    fn upload(&mut self, name: &str, values: &[f32]) -> Buffer {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.0.upload(name, &bytes).unwrap()
    }

    fn ints(&mut self, name: &str, values: &[i32]) -> Buffer {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.0.upload(name, &bytes).unwrap()
    }

    /// Memory that nothing wrote: to read it is an error.
    fn empty(&mut self, name: &str, words: usize) -> Buffer {
        self.0.alloc(name, 4 * words).unwrap()
    }

    /// Runs a launch that may begin before those before it have ended.
    fn run(&mut self, launch: &Launch, policy: Policy) -> Result<(), SimError> {
        let mut of = ptx_sim::Launch::new(launch.entry, launch.grid, [launch.block, 1, 1]);
        of.dependent = true;
        for argument in &launch.arguments {
            of = of.bytes(&argument.bits().to_le_bytes()[..argument.bytes()]);
        }
        let options = Options {
            policy,
            ..Options::default()
        };
        self.0.run(&of, &options).map(drop)
    }

    fn must(&mut self, launch: &Launch) {
        self.run(launch, Policy::Fair)
            .unwrap_or_else(|error| panic!("{launch:?}: {error}"));
    }

    fn floats(&self, of: Buffer) -> Vec<f32> {
        let words = self.0.words(of).into_iter();
        words.map(f32::from_bits).collect()
    }

    fn numbers(&self, of: Buffer, element: FloatType) -> Vec<f32> {
        let pairs = self.0.download(of).chunks_exact(2);
        let pairs = pairs.map(|pair| [pair[0], pair[1]]);
        match element {
            FloatType::F32 => self.floats(of),
            FloatType::Bf16 => pairs.map(|of| bf16::from_le_bytes(of).to_f32()).collect(),
            FloatType::F16 => pairs.map(|of| f16::from_le_bytes(of).to_f32()).collect(),
        }
    }
}

/// The largest relative error of rounding to a type.
fn rounding(of: FloatType) -> f64 {
    match of {
        FloatType::F32 => 0.0,
        FloatType::Bf16 => 2f64.powi(-8),
        FloatType::F16 => 2f64.powi(-11),
    }
}

/// And to subnormal numbers of it.
fn tiny(of: FloatType) -> f64 {
    match of {
        FloatType::F16 => 2f64.powi(-25),
        _ => 0.0,
    }
}

struct Random(fastrand::Rng);

impl Random {
    fn numbers(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| size * (self.0.f32() - 0.5)).collect()
    }
}

/// Heads of a model, and how much of it is tried.
#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    kv: usize,
    size: usize,
    most: usize,
    normed: bool,
}

impl Shape {
    const SMALL: Self = Self {
        heads: 4,
        kv: 2,
        size: 32,
        most: 160,
        normed: false,
    };

    fn heads(&self) -> Heads {
        let config = format!(
            r#"{{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": {},
               "num_key_value_heads": {}, "head_dim": {}, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}}"#,
            self.heads, self.kv, self.size
        );
        // As few multiprocessors as ask for several parts, which are then longer than what warps take at once.
        Heads::new(&Config::of_text(&config).unwrap(), self.most, 2).unwrap()
    }
}

/// The largest difference of attention from f64, by its bound; or the simulator's error.
fn attend(
    device: &Device,
    shape: &Shape,
    position: usize,
    n: usize,
    to: FloatType,
    policy: Policy,
) -> Result<f64, SimError> {
    let mut device = Device(device.0.clone());
    let heads = shape.heads();
    let Shape {
        heads: count,
        kv,
        size,
        most,
        normed,
    } = *shape;
    let mut random = Random(fastrand::Rng::with_seed((position * 131 + n) as u64));
    let width = heads.width();
    // Scores of some positions exceed all others: the largest one is found wherever it stands.
    let qkv = random.numbers(n * width, 3.0);
    let factors = [0, 1].map(|_| {
        let numbers = random.numbers(size, 0.5).into_iter();
        numbers.map(|x| x + 1.0).collect::<Vec<f32>>()
    });
    let angles: Vec<f64> = (0..most * size / 2)
        .map(|i| (i / (size / 2)) as f64 * 0.7f64.powi((i % (size / 2)) as i32))
        .collect();
    let [cosines, sines] = [f64::cos, f64::sin].map(|of: fn(f64) -> f64| -> Vec<f32> {
        angles.iter().map(|&angle| of(angle) as f32).collect()
    });
    let mut caches = [0, 1].map(|_| random.numbers(kv * most * size, 4.0));

    let memory = Attention {
        qkv: device.upload("qkv", &qkv).address,
        factors: match normed {
            true => [0, 1].map(|i| device.upload("factors", &factors[i]).address),
            false => [0, 0],
        },
        cosines: device.upload("cosines", &cosines).address,
        sines: device.upload("sines", &sines).address,
        step: device.ints("step", &[position as i32]).address,
        to,
        keys: 0,
        values: 0,
        parts: 0,
        counters: 0,
        out: 0,
    };
    // What was not read yet, nothing has written.
    let on_device = [0, 1].map(|which| {
        let buffer = device.empty(["keys", "values"][which], kv * most * size);
        for head in 0..kv {
            let at = head * most * size;
            let before = &caches[which][at..at + position * size];
            let bytes: Vec<u8> = before.iter().flat_map(|x| x.to_le_bytes()).collect();
            device.0.write(buffer, 4 * at, &bytes).unwrap();
        }
        buffer
    });
    let counters = device.ints("counters", &vec![0; heads.counters(n)]);
    let out = device.empty("out", n * count * size);
    let parts = device.empty("parts", heads.part_elements(n));
    let memory = Attention {
        keys: on_device[0].address,
        values: on_device[1].address,
        parts: parts.address,
        counters: counters.address,
        out: out.address,
        ..memory
    };
    for launch in heads.attend(&memory, n) {
        device.run(&launch, policy)?;
    }
    let found = device.numbers(out, to);
    if device.0.words(counters).iter().any(|&count| count != 0) {
        return Ok(f64::INFINITY);
    }

    // The definition.
    let turned = |head: &[f32], factors: Option<&Vec<f32>>, at: usize| -> Vec<f64> {
        let mean = head.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / size as f64;
        let normed: Vec<f64> = (0..size)
            .map(|i| match factors {
                Some(of) => {
                    f64::from(head[i]) / (mean + f64::from(heads.epsilon)).sqrt() * f64::from(of[i])
                }
                None => f64::from(head[i]),
            })
            .collect();
        (0..size)
            .map(|i| {
                let pair = i % (size / 2);
                let [cosine, sine] =
                    [&cosines, &sines].map(|of| f64::from(of[at * size / 2 + pair]));
                let (a, b) = (normed[pair], normed[pair + size / 2]);
                match i < size / 2 {
                    true => a * cosine - b * sine,
                    false => a * sine + b * cosine,
                }
            })
            .collect()
    };
    let mut worst: f64 = 0.0;
    for token in 0..n {
        for head in 0..kv {
            let at = (head * most + position + token) * size;
            let of = &qkv[token * width..][..width];
            let key = turned(
                &of[(count + head) * size..][..size],
                normed.then_some(&factors[1]),
                position + token,
            );
            for i in 0..size {
                caches[0][at + i] = key[i] as f32;
                caches[1][at + i] = of[(count + kv + head) * size + i];
            }
        }
    }
    for (which, buffer) in on_device.iter().enumerate() {
        let found = device.0.words(*buffer);
        for head in 0..kv {
            for i in 0..(position + n) * size {
                let at = head * most * size + i;
                let (x, expected) = (f32::from_bits(found[at]), caches[which][at]);
                // A norm of `size` squares, and a rotation.
                let bound = 4.0 * 4.0 * (size + 8) as f64 * EPSILON;
                worst = worst.max(f64::from((x - expected).abs()) / bound);
            }
        }
        // Nothing behind the last token.
        if position + n < most {
            let after = 4 * (position + n) * size;
            assert!(!device.0.written(*buffer, after, 4));
        }
    }
    for token in 0..n {
        let length = position + token + 1;
        for head in 0..count {
            let of = &qkv[token * width + head * size..][..size];
            let q = turned(of, normed.then_some(&factors[0]), position + token);
            let cache = head / (count / kv) * most * size;
            let row = |which: usize, at: usize| &caches[which][cache + at * size..][..size];
            let products = |at: usize| {
                let pairs = q.iter().zip(row(0, at));
                pairs.map(|(q, &k)| q * f64::from(k) / (size as f64).sqrt())
            };
            let scores: Vec<f64> = (0..length).map(|at| products(at).sum()).collect();
            let magnitudes = (0..length).map(|at| products(at).map(f64::abs).sum());
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let all: f64 = weights.iter().sum();
            // A score is off by its sum's roundings, and by those of q and k: their norms' and rotations'. So is a
            // weight, relatively, twice as much, the largest score being off, too. A sum of weights or values adds an
            // EPSILON for each of its terms.
            let magnitude: f64 = magnitudes.fold(0.0, f64::max);
            let of_score = magnitude * (3 * size + 32) as f64 * EPSILON;
            let relative = 2.0 * of_score + 2.0 * (length + 64) as f64 * EPSILON;
            for i in 0..size {
                let terms = || (0..length).map(|at| weights[at] * f64::from(row(1, at)[i]) / all);
                let expected: f64 = terms().sum();
                let size_of_terms: f64 = terms().map(f64::abs).sum();
                let bound = size_of_terms * relative + expected.abs() * rounding(to) + tiny(to);
                let x = f64::from(found[(token * count + head) * size + i]);
                let off = (x - expected).abs() / bound;
                worst = if off.is_nan() {
                    f64::INFINITY
                } else {
                    worst.max(off)
                };
            }
        }
    }
    Ok(worst)
}

/// Position 0, parts that begin and end at multiples of 32, one more and one less, and the last position of the cache;
/// heads that share keys by 1, 3, 4, 8 and 16; passes of several tokens.
fn attention_is_its_definition() {
    let shape = |heads, kv, size, normed| Shape {
        heads,
        kv,
        size,
        normed,
        ..Shape::SMALL
    };
    let shapes = [
        (shape(2, 2, 64, true), [0, 31, 159]),
        (shape(3, 1, 64, false), [32, 63, 96]),
        (shape(8, 2, 128, true), [0, 33, 100]),
        (shape(8, 1, 32, false), [1, 64, 159]),
        (shape(16, 1, 32, true), [0, 65, 159]),
    ];
    for (shape, positions) in shapes {
        let device = Device::of_text(shape.heads().source());
        assert!(shape.heads().parts > 1, "{shape:?} has one part");
        for (number, position) in positions.into_iter().enumerate() {
            let policy = [Policy::Fair, Policy::Random(7)][number % 2];
            let to = [FloatType::F32, FloatType::Bf16, FloatType::F16][number];
            let found = attend(&device, &shape, position, 1, to, policy)
                .unwrap_or_else(|error| panic!("{shape:?} at {position}: {error}"));
            assert!(found < 1.0, "{shape:?} at {position}: {found} of the bound");
        }
        // Tokens see themselves and those before.
        for position in [0, 30] {
            let found = attend(&device, &shape, position, 3, FloatType::F32, Policy::Fair)
                .unwrap_or_else(|error| panic!("{shape:?}, three at {position}: {error}"));
            assert!(
                found < 1.0,
                "{shape:?}, three at {position}: {found} of the bound"
            );
        }
    }
}

/// Guesses are checked in a pass; a token that is computed by itself turns its own heads. Neither may change a bit.
fn a_token_alone_has_the_bits_that_it_has_in_a_pass() {
    let shape = Shape {
        heads: 8,
        kv: 1,
        size: 64,
        normed: true,
        ..Shape::SMALL
    };
    let (heads, most) = (shape.heads(), shape.most);
    let fresh = Device::of_text(heads.source());
    let mut random = Random(fastrand::Rng::with_seed(17));
    let (position, n) = (70, 3);
    let qkv = random.numbers(n * heads.width(), 3.0);
    let factors = random.numbers(shape.size, 2.0);
    let rotations = random.numbers(most * shape.size / 2, 2.0);
    let before = random.numbers(heads.cache_elements(), 4.0);
    // Returns the results, and keys and values.
    let run = |qkv: &[f32], position: usize, n: usize, caches: [&[f32]; 2]| -> [Vec<f32>; 3] {
        let mut device = Device(fresh.0.clone());
        let [keys, values] = caches.map(|of| device.upload("cache", of));
        let out = device.empty("out", n * heads.heads * heads.size);
        let memory = Attention {
            qkv: device.upload("qkv", qkv).address,
            factors: [device.upload("factors", &factors).address; 2],
            cosines: device.upload("cosines", &rotations).address,
            sines: device.upload("sines", &rotations).address,
            keys: keys.address,
            values: values.address,
            step: device.ints("step", &[position as i32]).address,
            parts: device.empty("parts", heads.part_elements(n)).address,
            counters: device.ints("counters", &vec![0; heads.counters(n)]).address,
            out: out.address,
            to: FloatType::F32,
        };
        let launches = heads.attend(&memory, n);
        assert_eq!(launches.len(), if n == 1 { 1 } else { 2 });
        launches.iter().for_each(|launch| device.must(launch));
        [out, keys, values].map(|of| device.floats(of))
    };
    let [in_pass, keys, values] = run(&qkv, position, n, [&before, &before]);
    // As before the last token: its own key and value are not there yet.
    let caches = [&keys, &values].map(|of| {
        let mut cache = of.clone();
        cache[(position + n - 1) * shape.size..][..shape.size].fill(f32::NAN);
        cache
    });
    let last = &qkv[(n - 1) * heads.width()..];
    let [alone, own_keys, own_values] = run(last, position + n - 1, 1, [&caches[0], &caches[1]]);
    let bits = |of: &[f32]| -> Vec<u32> { of.iter().map(|x| x.to_bits()).collect() };
    let of_last = &in_pass[(n - 1) * heads.heads * heads.size..];
    assert!(of_last.iter().all(|x| x.is_finite()));
    assert_eq!(bits(of_last), bits(&alone));
    assert_eq!(bits(&keys), bits(&own_keys));
    assert_eq!(bits(&values), bits(&own_values));
}

/// What would be wrong is seen.
fn attention_notices_planted_faults() {
    let shape = Shape {
        normed: true,
        ..Shape::SMALL
    };
    let source = shape.heads().source();
    let sound = attend(
        &Device::of_text(source.clone()),
        &shape,
        100,
        1,
        FloatType::F32,
        Policy::Fair,
    );
    assert!(sound.unwrap() < 1.0);
    for (right, wrong) in [
        // A part goes on into the next one.
        ("min(start + each, length)", "min(start + each + 1, length)"),
        // The last position is left out.
        (
            "int length = step[0] + token + 1;",
            "int length = step[0] + token;",
        ),
        // Sums of before stay as they are when a larger score comes.
        ("sum[head][i] *= less", "sum[head][i] *= 1"),
        // Heads read others' keys.
        ("int of = group * GROUP / (heads / kv);", "int of = 0;"),
        // A rotation the other way round.
        ("a[i] * cosine - b[i] * sine", "a[i] * cosine + b[i] * sine"),
        // A part's weight counts for another.
        ("exp2f(tail[j].y - now)", "exp2f(tail[0].y - now)"),
        // The token's own position is that of the one before.
        ("LANES < length - 1) continue;", "LANES < length) continue;"),
        (
            "if (first + i < length - 1) continue;",
            "if (first + i < length) continue;",
        ),
        // Nobody writes the key.
        ("group * GROUP % (heads / kv) == 0", "group < 0"),
        // The counter stays.
        ("if (threadIdx.x == 0) *counter = 0;", ""),
        // Another CTA's part is read before it is there.
        ("== used - 1;", "== 0;"),
        // What was written before is read too early.
        ("griddepcontrol.wait;", ""),
    ] {
        assert_eq!(source.matches(right).count(), 1, "{right}");
        let device = Device::of_text(source.replace(right, wrong));
        let found = attend(&device, &shape, 100, 1, FloatType::F32, Policy::Fair);
        // Other numbers, or an error of the simulator.
        let is_seen = found.map_or(true, |off| off >= 1.0);
        // A launch is dependent on one before: alone, it has nothing to wait for.
        let is_seen = is_seen || {
            let run = || attend(&device, &shape, 100, 3, FloatType::F32, Policy::Fair);
            right.starts_with("griddep") && run().is_err()
        };
        assert!(is_seen, "{wrong:?} in place of {right:?} is not noticed");
    }
}

/// Before anything is compiled or launched.
fn sizes_that_are_not_computed_are_refused() {
    let config = |hidden: usize, heads: usize, size: usize| {
        let text = format!(
            r#"{{"model_type": "qwen3", "hidden_size": {hidden}, "num_hidden_layers": 1, "num_attention_heads": {heads},
               "num_key_value_heads": 1, "head_dim": {size}, "rms_norm_eps": 1e-5, "max_position_embeddings": 64}}"#
        );
        Config::of_text(&text).unwrap()
    };
    let refused = |config: &Config, most| Heads::new(config, most, 132).unwrap_err().to_string();
    for size in [16, 48, 288] {
        assert!(refused(&config(64, 4, size), 64).contains(&format!("heads of {size}")));
    }
    for hidden in [72, 16400] {
        assert!(refused(&config(hidden, 4, 64), 64).contains(&format!("of {hidden}")));
    }
    assert!(refused(&config(64, 4, 64), 1 << 31).contains("positions"));
    // Groups divide the heads that share keys, and registers hold them.
    for (heads, size, group) in [
        (1, 128, 1),
        (6, 128, 3),
        (32, 128, 4),
        (7, 64, 7),
        (9, 96, 3),
    ] {
        let heads = Heads::new(&config(64, heads, size), 64, 132).unwrap();
        assert_eq!(heads.group, group, "{heads:?}");
    }
}

fn vectors_are_normed_and_gated() {
    let mut random = Random(fastrand::Rng::with_seed(3));
    use FloatType::{Bf16, F16, F32};
    for (hidden, copies, to) in [(64, 1, F32), (576, 2, F16), (8192, 1, Bf16)] {
        let mut device = Device::any();
        let (xs, factors) = (random.numbers(2 * hidden, 6.0), random.numbers(hidden, 2.0));
        let [x, factor] = [("xs", &xs), ("factors", &factors)].map(|(n, of)| device.upload(n, of));
        let out = device.empty("out", 2 * hidden * copies);
        let addresses = [x.address, factor.address, out.address];
        device.must(&kernels::norm(addresses, 1e-5, [2, hidden, copies], to));
        let found = device.numbers(out, to);
        for (i, xs) in xs.chunks_exact(hidden).enumerate() {
            let mean = xs.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / hidden as f64;
            for copy in 0..copies {
                for (at, (&x, &of)) in xs.iter().zip(&factors).enumerate() {
                    let expected =
                        f64::from(x) / (mean + f64::from(1e-5f32)).sqrt() * f64::from(of);
                    let found = f64::from(found[(i * copies + copy) * hidden + at]);
                    // Half of a sum's relative error, and five roundings.
                    let relative = EPSILON * (hidden as f64 / 2.0 + 5.0);
                    let bound = expected.abs() * (relative + rounding(to)) + tiny(to);
                    assert!((found - expected).abs() <= bound, "{hidden} {i} {at}");
                }
            }
        }
    }
    for (size, to) in [(96, F32), (304, Bf16), (2000, F16)] {
        let mut device = Device::any();
        let both = random.numbers(2 * 2 * size, 40.0);
        let (from, out) = (device.upload("both", &both), device.empty("out", 2 * size));
        device.must(&kernels::gate([from.address, out.address], [2, size], to));
        let found = device.numbers(out, to);
        for (i, both) in both.chunks_exact(2 * size).enumerate() {
            for at in 0..size {
                let (gate, up) = (f64::from(both[at]), f64::from(both[size + at]));
                let expected = gate / (1.0 + (-gate).exp()) * up;
                // expf's two units in the last place, with an argument up to 20 whose rounding counts, and four more.
                let relative = EPSILON * 32.0 + rounding(to);
                let off = (f64::from(found[i * size + at]) - expected).abs();
                assert!(
                    off <= expected.abs() * relative + tiny(to),
                    "{i} {at}: {off}"
                );
            }
        }
    }
}

fn dense_matrices_are_multiplied() {
    let mut random = Random(fastrand::Rng::with_seed(4));
    let (rows, k, n) = (19, 328, 3);
    for (halves, adds) in [(false, false), (true, true)] {
        let mut device = Device::any();
        let mut weights = random.numbers(rows * k, 2.0);
        let x = random.numbers(n * k, 2.0);
        let before = random.numbers(n * rows, 2.0);
        let bytes: Vec<u8> = match halves {
            true => {
                let halves: Vec<bf16> = weights.iter().map(|&w| bf16::from_f32(w)).collect();
                weights = halves.iter().map(|half| half.to_f32()).collect();
                halves.iter().flat_map(|half| half.to_le_bytes()).collect()
            }
            false => weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
        };
        let w = device.0.upload("weights", &bytes).unwrap();
        let (xs, ys) = (device.upload("xs", &x), device.upload("ys", &before));
        let addresses = [w.address, xs.address, ys.address];
        device.must(&kernels::dense(addresses, [n, rows, k], halves, adds));
        let found = device.floats(ys);
        for i in 0..n * rows {
            let (vector, row) = (i / rows, i % rows);
            let terms =
                (0..k).map(|j| f64::from(weights[row * k + j]) * f64::from(x[vector * k + j]));
            let old = if adds { f64::from(before[i]) } else { 0.0 };
            let (sum, size) = terms.fold((old, old.abs()), |(sum, size), term| {
                (sum + term, size + term.abs())
            });
            let off = (f64::from(found[i]) - sum).abs();
            assert!(off <= size * EPSILON * 64.0, "{i}: {off}");
        }
    }
}

/// Fewer experts than a CTA has warps, and more; rows that are asked for before the vector is there, and longer ones.
fn experts_are_the_likeliest_first_of_equals() {
    for (experts, top, hidden, halves, normalised) in [
        (6, 2, 320, false, true),
        (128, 8, 256, true, true),
        (19, 8, 2176, true, false),
        (40, 40, 1032, false, true),
    ] {
        let mut device = Device::any();
        assert_eq!(
            route(&mut device, [experts, top, hidden], halves, normalised),
            Ok(())
        );
    }
    let nothing = Routing::default();
    assert!(kernels::route(&nothing, 0.0, [1, 8, 1025, 8], true, true).is_err());
    assert!(kernels::route(&nothing, 0.0, [1, 8200, 8, 8], true, true).is_err());
}

/// Three tokens, the second of which has a NaN. What is wrong, if something is.
fn route(
    device: &mut Device,
    [experts, top, hidden]: [usize; 3],
    halves: bool,
    normalised: bool,
) -> Result<(), String> {
    const N: usize = 3;
    let mut random = Random(fastrand::Rng::with_seed(6));
    let mut xs = random.numbers(N * hidden, 3.0);
    xs[hidden + 3] = f32::NAN;
    let factors = random.numbers(hidden, 2.0);
    let mut weights = random.numbers(experts * hidden, 0.4);
    // The likeliest expert of the first token, twice.
    for (i, (x, factor)) in xs.iter().zip(&factors).enumerate() {
        weights[hidden + i] = 0.01f32.copysign(x * factor);
    }
    weights
        .iter_mut()
        .filter(|_| halves)
        .for_each(|w| *w = bf16::from_f32(*w).to_f32());
    let equal = weights[hidden..2 * hidden].to_vec();
    weights[4 * hidden..][..hidden].copy_from_slice(&equal);
    let bytes: Vec<u8> = match halves {
        true => weights
            .iter()
            .flat_map(|w| bf16::from_f32(*w).to_le_bytes())
            .collect(),
        false => weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
    };
    let [normed, logits] =
        [("normed", hidden), ("logits", experts)].map(|(name, each)| device.empty(name, N * each));
    let [ids, shares] = ["ids", "shares"].map(|name| device.empty(name, N * top));
    let counters = device.ints("counters", &[0; N]);
    let routing = Routing {
        xs: device.upload("xs", &xs).address,
        factors: device.upload("factors", &factors).address,
        weights: device.0.upload("weights", &bytes).unwrap().address,
        normed: normed.address,
        logits: logits.address,
        counters: counters.address,
        ids: ids.address,
        shares: shares.address,
    };
    let sizes = [N, hidden, experts, top];
    let launch = kernels::route(&routing, 1e-5, sizes, halves, normalised).unwrap();
    let ran = device.run(&launch, Policy::Random(3));
    ran.map_err(|error| error.to_string())?;
    if device.0.words(counters) != [0; N] {
        return Err("counters stay".into());
    }
    let (ids, shares) = (device.0.words(ids), device.floats(shares));
    let (normed, all_logits) = (device.floats(normed), device.floats(logits));
    for token in [0, 2] {
        let x = &xs[token * hidden..][..hidden];
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / hidden as f64;
        let scale = 1.0 / (mean + f64::from(1e-5f32)).sqrt();
        let relative = EPSILON * (hidden as f64 / 2.0 + 5.0);
        for (i, (&x, &factor)) in x.iter().zip(&factors).enumerate() {
            let (expected, found) = (
                f64::from(x) * scale * f64::from(factor),
                normed[token * hidden + i],
            );
            if (f64::from(found) - expected).abs() > expected.abs() * relative {
                return Err(format!(
                    "{token}: element {i} of the norm is {found}, not {expected}"
                ));
            }
        }
        let logits = &all_logits[token * experts..][..experts];
        for (expert, &found) in logits.iter().enumerate() {
            let row = &weights[expert * hidden..][..hidden];
            let terms = row.iter().zip(x).zip(&factors);
            let terms =
                terms.map(|((w, x), f)| f64::from(*w) * f64::from(*x) * scale * f64::from(*f));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), of| (sum + of, size + of.abs()));
            let off = (f64::from(found) - sum).abs();
            if off > size * (relative + EPSILON * (hidden / 32 + 7) as f64) {
                return Err(format!("{token}: logit {expert} is {found}, not {sum}"));
            }
        }
        let mut ranked: Vec<usize> = (0..experts).collect();
        ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let exps = |at: usize| f64::from(logits[at] - logits[ranked[0]]).exp();
        let all: f64 = match normalised {
            true => ranked[..top].iter().map(|&at| exps(at)).sum(),
            false => (0..experts).map(exps).sum(),
        };
        for (slot, &expert) in ranked[..top].iter().enumerate() {
            let at = token * top + slot;
            let expected = exps(expert) / all;
            let off = (f64::from(shares[at]) - expected).abs();
            if ids[at] as usize != expert || off > expected * EPSILON * (64 + experts) as f64 {
                let found = (ids[at], shares[at]);
                return Err(format!(
                    "{token}: {found:?}, not {} {expected}",
                    ranked[slot]
                ));
            }
        }
    }
    // No expert has this number: results are NaN.
    match ids[top] as usize >= experts {
        true => Ok(()),
        false => Err("logits that are NaN choose an expert".into()),
    }
}

fn routing_notices_planted_faults() {
    let source = Shape::SMALL.heads().source();
    for (right, wrong) in [
        // Another CTA's logits are read before they are there.
        (
            "atomicAdd(counters + token, 1) == gridDim.x - 1",
            "atomicAdd(counters + token, 1) == 0",
        ),
        // The counter stays.
        ("if (threadIdx.x == 0) counters[token] = 0;", ""),
        // What is not asked for early is left out.
        (
            "at = lane + WARP * MOST; at < hidden",
            "at = lane + WARP * MOST; at < 0 * hidden",
        ),
        // The norm of another token.
        ("(xs + (long long)token * hidden)", "(xs)"),
        // Of equals the last.
        (
            "__reduce_min_sync(ALL, key == best ? (unsigned)at : ALL)",
            "__reduce_max_sync(ALL, key == best ? (unsigned)at : 0)",
        ),
        // An expert is taken twice.
        ("keys[id] = 0;", ""),
        // Zero of the sign that it does not have: negative logits come first.
        (
            "return bits >> 31 ? ~bits : bits | 0x80000000;",
            "return bits;",
        ),
        // The vector is read before all of it is normalised.
        (
            "if (blockIdx.x == 0) to[at] = four;\n    }\n    __syncthreads();",
            "if (blockIdx.x == 0) to[at] = four;\n    }",
        ),
    ] {
        assert_eq!(source.matches(right).count(), 1, "{right}");
        let mut device = Device::of_text(source.replace(right, wrong));
        let found = route(&mut device, [19, 8, 2176], true, true);
        assert!(
            found.is_err(),
            "{wrong:?} in place of {right:?} is not noticed"
        );
    }
}

fn the_likeliest_token_is_the_first_of_the_largest() {
    let mut random = Random(fastrand::Rng::with_seed(8));
    let vocabulary = 256 * CHOOSERS + 77;
    let plain = random.numbers(vocabulary, 2.0);
    let with = |changes: &[(usize, f32)]| {
        let mut logits = plain.clone();
        changes.iter().for_each(|&(at, value)| logits[at] = value);
        logits
    };
    let cases = [
        (with(&[(vocabulary - 1, 3.0)]), vocabulary as i32 - 1),
        (with(&[(0, 3.0), (9000, 3.0)]), 0),
        (with(&[(9000, 3.0), (300, 3.0), (301, 3.0)]), 300),
        (with(&[(9000, 3.0), (16000, f32::NAN)]), -1),
        (with(&[(5, f32::INFINITY), (6, f32::INFINITY)]), 5),
        (vec![f32::NEG_INFINITY; vocabulary], 0),
    ];
    for goes_on in [true, false] {
        for (logits, expected) in &cases {
            let mut device = Device::any();
            let n = if goes_on { 1 } else { 2 };
            let logits = device.upload("logits", &logits.repeat(n));
            let parts = device.empty("parts", 2 * n * CHOOSERS);
            let counters = device.ints("counters", &vec![0; n]);
            let chosen = device.empty("chosen", n);
            let step = device.ints("step", &[40, 3]);
            let addresses = [logits, parts, counters, chosen, step].map(|of| of.address);
            device.must(&kernels::choose(addresses, [n, vocabulary], goes_on));
            let words = |of| -> Vec<i32> {
                device
                    .0
                    .words(of)
                    .into_iter()
                    .map(|word| word as i32)
                    .collect()
            };
            assert_eq!(words(chosen), vec![*expected; n]);
            assert_eq!(words(counters), vec![0; n]);
            let next = if goes_on { [41, *expected] } else { [40, 3] };
            assert_eq!(words(step), next);
        }
    }
}

fn tokens_are_rows_of_the_table() {
    let mut device = Device::any();
    let (hidden, vocabulary) = (300, 7);
    let table: Vec<f32> = (0..hidden * vocabulary).map(|i| i as f32).collect();
    let from = device.upload("table", &table);
    let step = device.ints("step", &[9, 6, 0, -1, 7]);
    let xs = device.empty("xs", 4 * hidden);
    let sizes = [4, hidden, vocabulary];
    device.must(&kernels::embed(
        step.address,
        from.address,
        xs.address,
        sizes,
    ));
    let found = device.floats(xs);
    assert_eq!(found[..hidden], table[6 * hidden..]);
    assert_eq!(found[hidden..2 * hidden], table[..hidden]);
    assert!(found[2 * hidden..].iter().all(|x| x.is_nan()));
}

fn random_words_are_what_they_say() {
    let mut device = Device::any();
    let count = 5000;
    let mut words = |seed, words| {
        let out = device.empty("out", count);
        device.must(&kernels::random(out.address, count, seed, words));
        device.0.words(out)
    };
    let codes = words(1, Words::Codes);
    assert_ne!(codes, words(2, Words::Codes));
    let ones: u32 = codes.iter().map(|word| word.count_ones()).sum();
    assert!((ones as f64 / (32 * count) as f64 - 0.5).abs() < 0.01);
    let scales = words(3, Words::Scales);
    let all = || scales.iter().flat_map(|word| word.to_le_bytes());
    assert_eq!((all().min(), all().max()), (Some(0x30), Some(0x3f)));
    let floats = words(4, Words::Floats(2.0)).into_iter().map(f32::from_bits);
    let floats: Vec<f32> = floats.collect();
    assert!(floats.iter().all(|x| x.abs() <= 2.0) && floats.iter().any(|x| *x < -1.9));
    let halves = words(5, Words::Halves);
    let of = |bits: u32| bf16::from_bits(bits as u16).to_f32().abs();
    let range = 2f32.powi(-7)..2f32.powi(-5);
    assert!(
        halves
            .iter()
            .all(|word| range.contains(&of(*word)) && range.contains(&of(word >> 16)))
    );
}
