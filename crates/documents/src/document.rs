//! The document that `bench --json` prints and `cargo xtask bench` reads. docs/benchmarks.md describes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::statistics::median;

/// Changes whenever a reader of older documents would misread newer ones.
pub const SCHEMA: &str = "nvfp4-gemv/bench/2";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    pub schema: String,
    pub crate_version: String,
    /// A hash of the kernels' sources; `null` in a program without them.
    #[serde(default)]
    pub kernels: Option<String>,
    /// The commit, as whoever started the program knows it.
    pub git_commit: Option<String>,
    /// When the measurement ended, RFC 3339.
    pub date_utc: String,
    pub host: Option<String>,
    /// `all`, `quick`, `vectors`, `cpu` or `custom`.
    pub suite: String,
    pub device: Device,
    pub method: Method,
    /// The most that the device's memory gives: the limit of a chain of layers. Missing on the CPU, and where 1 GiB
    /// does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_read: Option<LongRead>,
    /// Paths that were slowed down on purpose, and by how many percent of the weights.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub slowed_percent: BTreeMap<String, u32>,
    /// Why figures are missing that were asked for, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    pub cases: Vec<Case>,
    /// Problems that could not be measured; missing where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Failed>,
}

/// The device that computed. Fields that mean nothing for its kind are `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// `cuda` or `cpu`.
    pub kind: String,
    pub name: String,
    pub compute_capability: Option<String>,
    pub multiprocessors: Option<u32>,
    pub threads: Option<usize>,
    pub l2_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// The driver's own version.
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports.
    pub driver_cuda: Option<String>,
    /// The CUDA runtime that is linked in.
    pub runtime_cuda: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// Measured rounds; those to warm up are not counted.
    pub rounds: usize,
    /// The bytes that were asked for. Each case says what it rotated over.
    pub cold_bytes: usize,
    /// How long each result was repeated to sustain it; missing where none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained_seconds: Option<f64>,
}

/// One problem, and everything that was measured of it in the same rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub l: usize,
    pub activation: String,
    /// Layout of all block scales.
    pub layout: String,
    pub output_type: String,
    /// Whether batches select their matrix: by `early` or `late` ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<String>,
    /// Codes and unpadded scales: what GB/s count.
    pub weight_bytes: usize,
    /// The bytes of weights that the launches rotated over.
    pub rotated_bytes: usize,
    pub launches_per_round: usize,
    /// The fastest of the kernels that only read as many bytes.
    pub ceiling: ReadTimes,
    /// Others of them that took turns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slower_reads: Vec<ReadTimes>,
    /// The library's own pick; `null` where nothing can run the case.
    pub picked: Option<Picked>,
    pub paths: Vec<Measured>,
    /// cuBLAS, where it took turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas: Option<Cublas>,
    /// Paths that cannot run the case.
    pub skipped: Vec<Skipped>,
}

/// A kernel that only reads, and its times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadTimes {
    /// Which, for people; missing on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    pub median_us: f64,
    pub gb_per_s: f64,
    /// Times of one launch, in order of the rounds.
    pub samples_us: Vec<f64>,
    #[serde(flatten)]
    pub board: BoardReadings,
}

/// cuBLAS's GEMM with f16 weights of the case's shape, f16 vectors and f16 results. Its times are of the same rounds as
/// the paths'; GB/s count its own weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cublas {
    pub version: String,
    pub weight_bytes: usize,
    pub rotated_bytes: usize,
    pub launches_per_round: usize,
    #[serde(flatten)]
    pub times: ReadTimes,
}

/// One launch that reads about 1 GiB, with the fastest kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongRead {
    pub bytes: usize,
    #[serde(flatten)]
    pub times: ReadTimes,
}

/// A problem that could not be measured, though it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// For people.
    pub problem: String,
    pub why: String,
}

/// The beginning of every other document of `bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub schema: String,
    pub crate_version: String,
    pub kernels: Option<String>,
    pub git_commit: Option<String>,
    pub date_utc: String,
    pub host: Option<String>,
    pub device: Device,
    pub method: Method,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Picked {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    pub reason: String,
}

/// A path's times. The sample of a round belongs to the ceiling's sample of the same round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub path: String,
    /// The kernel of a GPU. Missing on the CPU, and in documents of before kernels had names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// `isolated` or `chained`.
    pub mode: String,
    /// The path that the library would take.
    pub picked: bool,
    /// The kernel's config, for people.
    pub config: String,
    pub median_us: f64,
    pub gb_per_s: f64,
    /// The median of the rounds' ceiling time / time: 1 is the ceiling.
    pub share_of_ceiling: f64,
    /// The median of the rounds' cuBLAS time / time: how many times faster this is. Missing where cuBLAS took no turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas_ratio: Option<f64>,
    pub samples_us: Vec<f64>,
    #[serde(flatten)]
    pub board: BoardReadings,
}

/// Readings of the board. Missing fields are those that the board did not give.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BoardReadings {
    /// Clock of the multiprocessors right after a turn, the median of the rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<f64>,
    /// Power right after a turn, the median of the rounds. A turn is shorter than what boards average over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Turns of which a limit of power or temperature held the clock back for all that was waited.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_back_turns: usize,
    /// Figures of this work repeated for seconds; missing where nobody asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained: Option<Sustained>,
}

/// Work that was repeated for seconds without rest, and measured over the last half of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sustained {
    /// How long all of it took.
    pub seconds: f64,
    /// Mean time of one launch.
    pub mean_us: f64,
    pub gb_per_s: f64,
    /// The mean.
    pub watts: Option<f64>,
    /// The median.
    pub sm_mhz: Option<f64>,
    /// Energy of the whole board for each 10^9 bytes of weights.
    pub joules_per_gb: Option<f64>,
    /// Energy beyond that of the kernel that only reads in the same case: the cost of arithmetic, shared memory and
    /// waiting. Missing for that kernel itself, and where it was not sustained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic_joules_per_gb: Option<f64>,
}

// xtask only reads what the program made.
impl Sustained {
    /// `seconds` are the whole repetition's, `launch` the seconds of one launch. `energy` is watts and joules a byte,
    /// where the board counts energy.
    pub fn new(
        seconds: f64,
        launch: f64,
        bytes_per_s: f64,
        energy: Option<(f64, f64)>,
        sm_mhz: Option<f64>,
    ) -> Self {
        Self {
            seconds: rounded(seconds),
            mean_us: rounded(launch * 1e6),
            gb_per_s: rounded(bytes_per_s / 1e9),
            watts: energy.map(|(watts, _)| rounded(watts)),
            joules_per_gb: energy.map(|(_, joules)| rounded(joules * 1e9)),
            sm_mhz: sm_mhz.map(rounded),
            arithmetic_joules_per_gb: None,
        }
    }

    /// Fills in what this takes beyond a read of the same bytes.
    pub fn compare_energy(&mut self, read: &Self) {
        let pair = self.joules_per_gb.zip(read.joules_per_gb);
        self.arithmetic_joules_per_gb = pair.map(|(own, read)| rounded(own - read));
    }
}

/// One way's part of one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Mean time of one launch.
    pub us: f64,
    pub sm_mhz: Option<f64>,
    pub watts: Option<f64>,
    /// A limit of power or temperature had lowered the clock, and waiting did not help.
    #[serde(default)]
    pub held_back: bool,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Case {
    /// The place of a way's sustained figures: way 0 is the ceiling, way i + 1 is path i. Ways behind the paths are the
    /// other reads, which nobody sustains.
    pub fn sustained_mut(&mut self, way: usize) -> Option<&mut Option<Sustained>> {
        let board = match way.checked_sub(1) {
            None => &mut self.ceiling.board,
            Some(path) => &mut self.paths.get_mut(path)?.board,
        };
        Some(&mut board.sustained)
    }

    /// Once all was sustained: what each path takes beyond the ceiling's energy.
    pub fn compare_energy(&mut self) {
        let Some(read) = self.ceiling.board.sustained.clone() else {
            return;
        };
        for path in &mut self.paths {
            if let Some(sustained) = &mut path.board.sustained {
                sustained.compare_energy(&read);
            }
        }
    }

    /// Fills in what was measured of cuBLAS, one turn a round, after the paths were [completed](Self::complete).
    pub fn complete_cublas(&mut self, mut cublas: Cublas, turns: &[Turn]) {
        cublas.times.complete(cublas.weight_bytes, turns);
        for path in &mut self.paths {
            let ratios = shares(&cublas.times.samples_us, &path.samples_us);
            path.cublas_ratio = Some(rounded(median(&ratios)));
        }
        self.cublas = Some(cublas);
    }

    /// Fills in what was measured, one turn a round: for the ceiling, for each path in order, and for the other reads
    /// as far as they took turns. The fastest of the reads becomes the ceiling.
    pub fn complete(&mut self, turns: &[Vec<Turn>]) {
        let [ceiling, others @ ..] = turns else {
            return;
        };
        let weight_bytes = self.weight_bytes;
        let (paths, reads) = others.split_at(others.len().min(self.paths.len()));
        self.ceiling.complete(weight_bytes, ceiling);
        self.slower_reads.truncate(reads.len());
        for (read, turns) in self.slower_reads.iter_mut().zip(reads) {
            read.complete(weight_bytes, turns);
            if read.median_us < self.ceiling.median_us {
                std::mem::swap(read, &mut self.ceiling);
            }
        }
        let of_ceiling = &self.ceiling;
        for (path, turns) in self.paths.iter_mut().zip(paths) {
            path.samples_us = samples(turns);
            path.median_us = median(&path.samples_us);
            path.gb_per_s = gb_per_s(weight_bytes, path.median_us);
            path.share_of_ceiling =
                rounded(median(&shares(&of_ceiling.samples_us, &path.samples_us)));
            path.board.read(turns);
        }
    }
}

impl ReadTimes {
    /// Times of a kernel, not yet measured.
    pub fn of(kernel: Option<String>) -> Self {
        Self {
            kernel,
            ..Self::default()
        }
    }

    /// Fills in what was measured of reads of so many bytes.
    pub fn complete(&mut self, bytes: usize, turns: &[Turn]) {
        self.samples_us = samples(turns);
        self.median_us = median(&self.samples_us);
        self.gb_per_s = gb_per_s(bytes, self.median_us);
        self.board.read(turns);
    }
}

/// The times of turns, as documents have them.
pub fn samples(turns: &[Turn]) -> Vec<f64> {
    turns.iter().map(|turn| rounded(turn.us)).collect()
}

/// The rate of a launch that reads so many bytes in so long.
pub fn gb_per_s(bytes: usize, us: f64) -> f64 {
    rounded(bytes as f64 / us / 1e3)
}

impl BoardReadings {
    /// Fills in what the board said after each turn.
    pub fn read(&mut self, turns: &[Turn]) {
        let middle = |of: fn(&Turn) -> Option<f64>| {
            let values: Vec<f64> = turns.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| rounded(median(&values)))
        };
        self.held_back_turns = turns.iter().filter(|turn| turn.held_back).count();
        self.sm_mhz = middle(|turn| turn.sm_mhz);
        self.watts = middle(|turn| turn.watts);
    }
}

/// The share of the ceiling, round by round.
pub fn shares(ceiling_us: &[f64], samples_us: &[f64]) -> Vec<f64> {
    let pairs = ceiling_us.iter().zip(samples_us);
    pairs.map(|(ceiling, sample)| ceiling / sample).collect()
}

/// To six significant digits, however small the value is: more digits say nothing, and make documents long.
pub fn rounded(value: f64) -> f64 {
    // Every printed number can be read again, NaN and infinity too.
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    pub path: String,
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(us: [f64; 3]) -> Vec<Turn> {
        let turn = |us| Turn {
            us,
            sm_mhz: None,
            watts: None,
            held_back: false,
        };
        us.map(turn).to_vec()
    }

    fn case() -> Case {
        let read = |name: &str| ReadTimes::of(Some(name.into()));
        let path = Measured {
            path: "cuda-core".into(),
            mode: "isolated".into(),
            picked: true,
            ..Measured::default()
        };
        Case {
            weight_bytes: 6000,
            ceiling: read("a"),
            slower_reads: vec![read("b"), read("c")],
            paths: vec![path],
            ..Case::default()
        }
    }

    #[test]
    fn the_read_with_the_least_median_is_the_ceiling() {
        let path = turns([8.0, 8.0, 4.0]);
        // The least time is c's, the least median b's.
        let (a, b, c) = ([3.0; 3], [2.0, 2.0, 9.0], [1.0, 2.5, 2.5]);
        let mut all = case();
        all.complete(&[turns(a), path.clone(), turns(b), turns(c)]);
        let kernels = |case: &Case| -> Vec<String> {
            let reads = std::iter::once(&case.ceiling).chain(&case.slower_reads);
            reads.filter_map(|read| read.kernel.clone()).collect()
        };
        assert_eq!(kernels(&all), ["b", "a", "c"]);
        assert_eq!((all.ceiling.median_us, all.ceiling.gb_per_s), (2.0, 3.0));
        assert_eq!(all.slower_reads[1].median_us, 2.5);
        // Round by round: 2 / 8, 2 / 8, 9 / 4.
        assert_eq!(all.paths[0].share_of_ceiling, 0.25);
        // Whoever asks for fewer turns has fewer reads.
        let mut first = case();
        first.complete(&[turns(a), path]);
        assert_eq!(kernels(&first), ["a"]);
        assert_eq!(first.paths[0].share_of_ceiling, 0.375);
    }

    #[test]
    fn cublas_is_compared_round_by_round() {
        let mut all = case();
        all.complete(&[turns([1.0; 3]), turns([8.0, 8.0, 4.0])]);
        let cublas = Cublas {
            version: "13.0".into(),
            weight_bytes: 32_000,
            ..Cublas::default()
        };
        all.complete_cublas(cublas, &turns([16.0, 12.0, 20.0]));
        // 16 / 8, 12 / 8, 20 / 4.
        assert_eq!(all.paths[0].cublas_ratio, Some(2.0));
        let times = &all.cublas.as_ref().unwrap().times;
        assert_eq!((times.median_us, times.gb_per_s), (16.0, 2.0));
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), all);
    }

    #[test]
    fn arithmetic_is_the_energy_beyond_the_read() {
        let sustained = |joules: Option<f64>| {
            let energy = joules.map(|joules| (600.0, joules * 1e-9));
            Some(Sustained::new(5.0, 1e-5, 1e12, energy, None))
        };
        let arithmetic = |read, path| {
            let mut all = case();
            all.ceiling.board.sustained = read;
            all.paths[0].board.sustained = path;
            all.compare_energy();
            let path = all.paths[0].board.sustained.as_ref();
            path.and_then(|path| path.arithmetic_joules_per_gb)
        };
        let with = arithmetic(sustained(Some(0.15)), sustained(Some(0.17)));
        assert_eq!(with, Some(0.02));
        assert_eq!(arithmetic(sustained(None), sustained(Some(0.17))), None);
        assert_eq!(arithmetic(sustained(Some(0.15)), sustained(None)), None);
        assert_eq!(arithmetic(None, sustained(Some(0.17))), None);
        assert_eq!(arithmetic(sustained(Some(0.15)), None), None);
    }

    #[test]
    fn small_values_keep_their_digits() {
        for (value, is) in [
            (0.003_901_234_567, 0.003_901_23),
            (4_123.456_789, 4_123.46),
            (1e-9 / 3.0, 3.333_33e-10),
            (0.0, 0.0),
            (-1.0, -1.0),
        ] {
            assert_eq!(rounded(value), is);
        }
        assert!(rounded(f64::NAN).is_nan());
        assert_eq!(rounded(f64::INFINITY), f64::INFINITY);
    }
}
