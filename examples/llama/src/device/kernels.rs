//! Launches of the example's own kernels, as data: the device enqueues them, and tests hand them to the simulator.

use anyhow::{Result, ensure};
use nvfp4_gemv::FloatType;

use crate::config::Config;

/// A launch of a kernel of `kernels.cu`.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    pub entry: &'static str,
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: u32,
    pub arguments: Vec<Argument>,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// Of the device's memory; 0 for nothing.
    Address(u64),
    Int(i32),
    Long(i64),
    Float(f32),
}

impl Argument {
    /// As it lies in memory, least significant byte first, behind which there may be zeros.
    pub fn bits(self) -> u64 {
        match self {
            Self::Address(address) => address,
            Self::Int(value) => u64::from(value as u32),
            Self::Long(value) => value as u64,
            Self::Float(value) => u64::from(value.to_bits()),
        }
    }

    /// How many bytes it has.
    pub fn bytes(self) -> usize {
        match self {
            Self::Address(_) | Self::Long(_) => 8,
            Self::Int(_) | Self::Float(_) => 4,
        }
    }
}

use Argument::{Address, Float, Int, Long};

/// The kernels.
pub const ENTRIES: [&str; 8] = [
    "embed", "rms_norm", "gate", "dense", "route", "turn", "attend", "choose",
];
/// The kernel that makes random numbers.
pub const RANDOM: &str = "random_words";

/// Threads of a CTA of the kernels that go over vectors.
const THREADS: u32 = 256;
/// CTAs that the likeliest token is looked for by.
pub const CHOOSERS: usize = 64;
/// CTAs that share a token and a group of heads in `attend`, at most.
const MOST_PARTS: usize = 128;
/// The most elements of a vector that `rms_norm` takes: 16 for each of 1024 threads.
const MOST_NORMED: usize = 16 * 1024;
/// The most experts that `route` knows, and elements of a vector.
const MOST_EXPERTS: usize = 1024;
const MOST_ROUTED: usize = 8192;

/// The sizes that kernels of attention are compiled for, and launched with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    pub heads: usize,
    pub kv: usize,
    /// Elements of a head.
    pub size: usize,
    /// Heads of queries that a CTA of `attend` takes.
    pub group: usize,
    /// Parts of the positions before a token.
    pub parts: usize,
    /// Positions that the keys and values of a layer have room for.
    pub most: usize,
    pub epsilon: f32,
}

impl Heads {
    /// Of a model, for a GPU with so many multiprocessors.
    ///
    /// # Errors
    /// Sizes of heads that the kernels do not take; positions past 2^31.
    pub fn new(config: &Config, most: usize, multiprocessors: u32) -> Result<Self> {
        let (heads, kv, size) = (
            config.num_attention_heads,
            config.kv_heads(),
            config.head_size(),
        );
        ensure!(
            size.is_multiple_of(32) && size <= 256,
            "heads of {size} elements are not computed on a GPU: 32, 64, 96, ... 256 are"
        );
        let elements = kv.saturating_mul(most).saturating_mul(size);
        ensure!(
            most <= i32::MAX as usize && elements <= isize::MAX as usize / 4,
            "{most} positions are more than the kernels count"
        );
        let hidden = config.hidden_size;
        ensure!(
            hidden.is_multiple_of(16) && hidden <= MOST_NORMED,
            "vectors of {hidden} elements are not computed on a GPU: a multiple of 16 up to {MOST_NORMED} is"
        );
        // As many as registers hold what a lane has of: four heads of 128 elements.
        let shared = heads / kv;
        let few = |group: &usize| shared.is_multiple_of(*group) && group * size <= 512;
        let group = (1..=8).rev().find(few).unwrap_or(1);
        let parts = (2 * multiprocessors as usize).div_ceil(heads / group);
        Ok(Self {
            heads,
            kv,
            size,
            group,
            parts: parts.clamp(1, MOST_PARTS),
            most,
            epsilon: config.rms_norm_eps as f32,
        })
    }

    /// The source that the kernels are compiled from.
    pub fn source(&self) -> String {
        format!(
            "#define SIZE {}\n#define GROUP {}\n{}",
            self.size,
            self.group,
            include_str!("kernels.cu")
        )
    }

    /// Elements of the results of q, k and v.
    pub fn width(&self) -> usize {
        (self.heads + 2 * self.kv) * self.size
    }

    /// Elements of the keys of a layer, and of its values.
    pub fn cache_elements(&self) -> usize {
        self.kv * self.most * self.size
    }

    /// f32 that the parts of `n` tokens need.
    pub fn part_elements(&self, n: usize) -> usize {
        n * self.heads * self.parts * (self.size + 4)
    }

    /// Counters of `n` tokens.
    pub fn counters(&self, n: usize) -> usize {
        n * (self.heads / self.group)
    }

    fn turning(&self, of: &Attention) -> [Argument; 11] {
        let [q, k] = of.factors.map(Address);
        [
            Address(of.qkv),
            q,
            k,
            Float(self.epsilon),
            Address(of.cosines),
            Address(of.sines),
            Address(of.keys),
            Address(of.values),
            Address(of.step),
            Int(self.most as i32),
            Int(self.heads as i32),
        ]
    }

    /// The launches for `n` tokens: one or two.
    pub fn attend(&self, of: &Attention, n: usize) -> Vec<Launch> {
        // Of one token, `attend` turns heads itself.
        let own = n == 1;
        let mut launches = Vec::new();
        let shared = self.turning(of).into_iter().chain([Int(self.kv as i32)]);
        if !own {
            launches.push(Launch {
                entry: "turn",
                grid: [(self.heads + 2 * self.kv) as u32, n as u32, 1],
                block: 32,
                arguments: shared.clone().collect(),
            });
        }
        let rest = [
            Int(i32::from(own)),
            Address(of.parts),
            Address(of.counters),
            Address(of.out),
            Int(type_of(of.to)),
        ];
        launches.push(Launch {
            entry: "attend",
            grid: [
                (self.heads / self.group) as u32,
                self.parts as u32,
                n as u32,
            ],
            block: 128,
            arguments: shared.chain(rest).collect(),
        });
        launches
    }
}

/// Addresses of what attention reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// f32 `[n][heads + 2 kv][size]`.
    pub qkv: u64,
    /// Of the norms of queries and keys; 0: there are none.
    pub factors: [u64; 2],
    /// f32 `[most][size / 2]`.
    pub cosines: u64,
    pub sines: u64,
    /// f32 `[kv][most][size]`.
    pub keys: u64,
    pub values: u64,
    pub step: u64,
    /// f32 `[n][heads][parts][size + 4]`.
    pub parts: u64,
    /// Zeros `[n][heads / group]`.
    pub counters: u64,
    /// `[n][heads · size]`.
    pub out: u64,
    pub to: FloatType,
}

/// A type of vectors, as the kernels number them.
fn type_of(of: FloatType) -> i32 {
    match of {
        FloatType::F32 => 0,
        FloatType::Bf16 => 1,
        FloatType::F16 => 2,
    }
}

/// Rows of a table `[vocabulary][hidden]` into f32 `[n][hidden]`.
pub fn embed(step: u64, table: u64, xs: u64, [n, hidden, vocabulary]: [usize; 3]) -> Launch {
    Launch {
        entry: "embed",
        grid: [n as u32, 1, 1],
        block: THREADS,
        arguments: vec![
            Address(step),
            Address(table),
            Address(xs),
            Int(hidden as i32),
            Int(vocabulary as i32),
        ],
    }
}

/// The norm of f32 `[n][hidden]`, into `[n][copies][hidden]`.
pub fn norm(
    [xs, factors, out]: [u64; 3],
    epsilon: f32,
    [n, hidden, copies]: [usize; 3],
    to: FloatType,
) -> Launch {
    Launch {
        entry: "rms_norm",
        grid: [n as u32, 1, 1],
        block: hidden.div_ceil(4).next_multiple_of(32).clamp(32, 1024) as u32,
        arguments: vec![
            Address(xs),
            Address(factors),
            Float(epsilon),
            Address(out),
            Int(hidden as i32),
            Int(copies as i32),
            Int(type_of(to)),
        ],
    }
}

/// The gate between up and down: of f32 `[n][2 size]` into `[n][size]`.
pub fn gate([both, out]: [u64; 2], [n, size]: [usize; 2], to: FloatType) -> Launch {
    Launch {
        entry: "gate",
        grid: [(size as u32 / 4).div_ceil(THREADS), n as u32, 1],
        block: THREADS,
        arguments: vec![
            Address(both),
            Address(out),
            Int(size as i32),
            Int(type_of(to)),
        ],
    }
}

/// A matrix `[rows][k]`, in bf16 or f32, by f32 vectors. `k` is a multiple of 8.
pub fn dense(
    [weights, xs, ys]: [u64; 3],
    [n, rows, k]: [usize; 3],
    halves: bool,
    adds: bool,
) -> Launch {
    Launch {
        entry: "dense",
        grid: [(rows as u32).div_ceil(THREADS / 32), n as u32, 1],
        block: THREADS,
        arguments: vec![
            Address(weights),
            Address(xs),
            Address(ys),
            Int(rows as i32),
            Int(k as i32),
            Int(i32::from(halves)),
            Int(i32::from(adds)),
        ],
    }
}

/// Addresses of what a router reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Routing {
    /// f32 `[n][hidden]`.
    pub xs: u64,
    /// Of the norm `[hidden]`.
    pub factors: u64,
    /// `[experts][hidden]`, in bf16 or f32.
    pub weights: u64,
    /// f32 `[n][hidden]`.
    pub normed: u64,
    /// f32 `[n][experts]`.
    pub logits: u64,
    /// Zeros `[n]`.
    pub counters: u64,
    /// `[n][top]`.
    pub ids: u64,
    /// f32 `[n][top]`.
    pub shares: u64,
}

/// The norm of each vector, and the experts of each token with their shares. `hidden` is a multiple of 8.
///
/// # Errors
/// More experts, or longer vectors, than the kernel knows.
pub fn route(
    of: &Routing,
    epsilon: f32,
    [n, hidden, experts, top]: [usize; 4],
    halves: bool,
    normalised: bool,
) -> Result<Launch> {
    ensure!(
        experts <= MOST_EXPERTS,
        "layers of {experts} experts are not computed on a GPU, of {MOST_EXPERTS} at most are"
    );
    ensure!(
        hidden <= MOST_ROUTED,
        "experts of vectors of {hidden} elements are not computed on a GPU, of {MOST_ROUTED} at most are"
    );
    Ok(Launch {
        entry: "route",
        grid: [(experts as u32).div_ceil(THREADS / 32), n as u32, 1],
        block: THREADS,
        arguments: vec![
            Address(of.xs),
            Address(of.factors),
            Float(epsilon),
            Address(of.weights),
            Int(hidden as i32),
            Int(i32::from(halves)),
            Address(of.normed),
            Address(of.logits),
            Address(of.counters),
            Int(experts as i32),
            Int(top as i32),
            Int(i32::from(normalised)),
            Address(of.ids),
            Address(of.shares),
        ],
    })
}

/// The likeliest tokens by f32 logits `[n][vocabulary]`. `parts` is `[n][CHOOSERS]` of 8 bytes, `counters` zeros `[n]`.
/// With `goes_on` it is the next step's, where `n` is 1.
pub fn choose(
    [logits, parts, counters, chosen, step]: [u64; 5],
    [n, vocabulary]: [usize; 2],
    goes_on: bool,
) -> Launch {
    Launch {
        entry: "choose",
        grid: [CHOOSERS as u32, n as u32, 1],
        block: THREADS,
        arguments: vec![
            Address(logits),
            Int(vocabulary as i32),
            Address(parts),
            Address(counters),
            Address(chosen),
            Address(step),
            Int(i32::from(goes_on)),
        ],
    }
}

/// The kind of random words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Words {
    /// Eight elements of NVFP4.
    Codes,
    /// Four block scales, from 0.5 to 1.875.
    Scales,
    /// An f32 of at most this magnitude.
    Floats(f32),
    /// Two bf16, of magnitudes from 2^-7 to 2^-5.
    Halves,
}

/// Random words of four bytes.
pub fn random(to: u64, count: usize, seed: u32, words: Words) -> Launch {
    let (kind, size) = match words {
        Words::Codes => (0, 0.0),
        Words::Scales => (1, 0.0),
        Words::Floats(size) => (2, size),
        Words::Halves => (3, 0.0),
    };
    Launch {
        entry: RANDOM,
        grid: [count.div_ceil(THREADS as usize).clamp(1, 4096) as u32, 1, 1],
        block: THREADS,
        arguments: vec![
            Address(to),
            Long(count as i64),
            Int(seed as i32),
            Int(kind),
            Float(size),
        ],
    }
}
