//! The kernels for many vectors in the simulator: every kind of config, compared with the f64 reference.

use std::sync::Arc;

use nvfp4_gemv::kernel::Config;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout};
use ptx_sim::Uninitialised;
use ptx_sim::mutate;

use super::{Cutting, Kernel, cutting};
use crate::support::faults::{At, Run, demand, demand_right_plans, no_arithmetic, subject};
use crate::support::operands::{Bias, Case, Data, Operands, Residual};
use crate::support::schedules::few;
use crate::support::sim::{Simulator, dealt, is_of_factors, source_line};
use crate::support::sized;

/// A choice of the launch that gets faults: [`Run::new`] for the launch that multiplies, or another for a launch beside
/// it.
type Beside = fn(&'static str, &Case, Config, bool, Uninitialised) -> Run;

const ACTIVATIONS: [Activation; 3] = [Activation::Nvfp4, Activation::F16, Activation::Bf16];

impl Cutting {
    fn case(&self, n: usize, activation: Activation, data: Data) -> Case {
        let (m, k, l) = self.shape;
        Case {
            activation,
            ..Case::new(sized(m, n, k, l), data, self.layout, 7)
        }
    }
}

/// The loop over the vectors that a warp stores, several at once.
pub(crate) const VECTORS_OF_A_WARP: &str = "n += kTogether * step";

/// Branches of all kernels of this kind that no launch takes, as in [`Kernel::never_taken`].
const NEVER_TAKEN: &[(&str, &str)] = &[
    // At least one of eight vectors exists, except in an entry point's last eight: for fewer there is another entry
    // point.
    ("if (i / 4 * kColumns < p.n)", ""),
    // Test of the first of the vectors that are stored at once: that vector exists, or the loop has ended.
    ("if (of >= uint32_t(p.n)) break;", ""),
    // A chunk of so many vectors has four warps at least, which store eight vectors each at once.
    (VECTORS_OF_A_WARP, "_n32"),
    // The loop around this loop has already tested a row's first vector.
    (
        "for (uint32_t n = first; n < uint32_t(p.n); n += kTogether * step)",
        "",
    ),
];

impl Kernel {
    fn is_never_taken(&self, entry: &str, at: &str) -> bool {
        let mut all = NEVER_TAKEN.iter().chain(self.never_taken);
        all.any(|(text, end)| at.contains(text) && entry.ends_with(end))
    }

    /// Whether no launch can do better for a line of the coverage report. Such lines are branches that are never taken,
    /// and waits that never had to try again. Vectors that are not NVFP4 have no factors. The vector behind those that
    /// are stored at once has no factor if that vector does not exist.
    fn cannot_be(&self, line: &str) -> bool {
        let (entry, _) = line.split_once(':').expect("an entry point's name");
        let entry = entry.strip_suffix("_operands").unwrap_or(entry);
        let shared = include_str!("../../../csrc/kernels/many_vectors.cuh");
        let (own, source) = self.source;
        // No call here selects its matrices; those of `every_operand` do.
        let operands = include_str!("../../../csrc/format/operands.cuh");
        let of_ids = |at: &str| at.contains("s.ids ?") || at.contains("p.select.late");
        if line.contains("format/operands.cuh:0")
            || source_line(line, "format/operands.cuh", operands).is_some_and(of_ids)
            || source_line(line, own, source).is_some_and(of_ids)
        {
            return true;
        }
        let branch = source_line(line, "many_vectors.cuh", shared)
            .or_else(|| source_line(line, own, source));
        if let Some(at) = branch {
            return line.contains("never taken") && self.is_never_taken(entry, at);
        }
        // The schedule decides whether a wait has to try again. In some entry points no wait may have had to.
        let mbarrier = include_str!("../../../csrc/arch/mbarrier.cuh");
        if let Some(at) = source_line(line, "mbarrier.cuh", mbarrier) {
            return line.contains("never taken") && at.contains("while (!mbarrier_try_wait_parity");
        }
        let none_behind = self.is_never_taken(entry, VECTORS_OF_A_WARP);
        (none_behind || !entry.contains("_nvfp4_")) && is_of_factors(line)
    }
}

impl Kernel {
    /// Whether the cutting is for so many vectors, and the kernel takes them with this config.
    fn takes(
        &self,
        simulator: &Simulator,
        cutting: &Cutting,
        (activation, n): (Activation, usize),
    ) -> bool {
        let case = cutting.case(n, activation, Data::Integers);
        n >= cutting.least && simulator.takes(&case, self.config(cutting))
    }

    /// Runs a cutting on exact and full-range data. The attributes that select no kernel are dealt out in turn.
    fn check(
        &self,
        simulator: &Simulator,
        cutting: &Cutting,
        kernel: (Activation, usize),
        turn: &mut usize,
    ) {
        self.check_on(&Data::BOTH, simulator, cutting, kernel, turn);
    }

    fn check_on(
        &self,
        data: &[Data],
        simulator: &Simulator,
        cutting: &Cutting,
        (activation, n): (Activation, usize),
        turn: &mut usize,
    ) {
        let config = self.config(cutting);
        for &data in data {
            *turn += 1;
            let case = cutting.case(n, activation, data).dealt(*turn);
            let operands = Arc::new(Operands::new(&case));
            let those = dealt(*turn, n < cutting.every_schedule && data == Data::Integers);
            for options in &those {
                simulator.run(&operands, config, cutting.chained, options);
            }
            // The kernel packed stores in another way if nothing is added.
            let plain = Case {
                bias: Bias::None,
                residual: Residual::None,
                ..case
            };
            let differs = (case.bias, case.residual) != (plain.bias, plain.residual);
            if differs && self.unit == "gemv_packed" && data == Data::Integers {
                let operands = Arc::new(Operands::new(&plain));
                simulator.run(&operands, config, cutting.chained, &those[0]);
            }
        }
    }

    /// Every config on one kernel or another, and every kernel.
    pub(crate) fn short_sweep(&self, arch: &'static str, vectors: &[usize]) {
        let simulator = Simulator::new(arch);
        let kernels: Vec<(Activation, usize)> = ACTIVATIONS
            .into_iter()
            .flat_map(|activation| vectors.iter().map(move |&n| (activation, n)))
            .collect();
        let mut turn = 0;
        for (i, cutting) in self.cuttings.iter().enumerate() {
            let kernel = kernels[5 * i % kernels.len()];
            if self.takes(&simulator, cutting, kernel) {
                self.check(&simulator, cutting, kernel, &mut turn);
            }
        }
    }

    /// The kernels that are compiled for most vectors, and a call of several passes.
    pub(crate) fn many_vectors(&self) {
        let simulator = Simulator::new("90a");
        let mut turn = 0;
        for activation in ACTIVATIONS {
            for (cutting, n) in &self.full {
                self.check(&simulator, cutting, (activation, *n), &mut turn);
            }
        }
        let mut passes = cutting((20, 256, 1), ScaleLayout::Linear, [2, 2, 2, 1]);
        passes.pass = Some(16);
        self.check(&simulator, &passes, (Activation::Nvfp4, 35), &mut turn);
    }

    /// Every config, number of vectors and type of vectors, which together execute every instruction. Exact data meet
    /// every combination; full-range data meet every pair of the three.
    pub(crate) fn every_config(&self) {
        let hopper = Simulator::new("90a");
        let mut turn = 0;
        for (type_of, activation) in ACTIVATIONS.into_iter().enumerate() {
            for (number, &n) in self.vectors.iter().enumerate() {
                for (config, cutting) in self.cuttings.iter().enumerate() {
                    let kernel = (activation, n);
                    // Any two of the three choose the third.
                    let full_range = (type_of + number + config) % ACTIVATIONS.len() == 0;
                    let data = &Data::BOTH[..1 + usize::from(full_range)];
                    if self.takes(&hopper, cutting, kernel) {
                        self.check_on(data, &hopper, cutting, kernel, &mut turn);
                    }
                }
            }
        }
        self.stores(&hopper);
        hopper.demand_coverage(|line| self.cannot_be(line));
    }

    /// Vectors that a warp stores one after the other: as every type of output, with and without factors of vectors.
    fn stores(&self, simulator: &Simulator) {
        for &(sizes, n) in self.few_warps {
            let cutting = cutting((20, self.short_k, 1), ScaleLayout::Linear, sizes);
            for (i, activation) in ACTIVATIONS.into_iter().enumerate() {
                for (j, output) in FloatType::ALL.into_iter().enumerate() {
                    for vector_alpha in [false, true] {
                        let nvfp4 = activation == Activation::Nvfp4;
                        if vector_alpha && !nvfp4 {
                            continue;
                        }
                        let case = Case {
                            output,
                            row_alpha: vector_alpha,
                            vector_alpha,
                            ..cutting.case(n, activation, Data::Integers)
                        };
                        let options = &few((i + j) as u64)[(i + j) % 3];
                        simulator.check(&case, self.config(&cutting), false, options);
                    }
                }
            }
        }
    }

    /// f16 and bf16 over their whole ranges.
    pub(crate) fn vectors_of_every_magnitude(&self) {
        let simulator = Simulator::new("90a");
        let cutting = &self.magnitudes;
        for (activation, end) in [(Activation::Bf16, 230), (Activation::F16, 31)] {
            // One element in 200, of any exponent that f32 sums have room for: no large element hides what becomes of a
            // small one.
            for one_of in [1, 200] {
                let case = Case {
                    seed: one_of.into(),
                    ..cutting.case(10, activation, Data::Exponents(0, end, one_of))
                };
                let options = &few(one_of.into())[0];
                simulator.check(&case, self.config(cutting), false, options);
            }
        }
    }

    /// Configs that nobody thought of: for changes of the kernel.
    pub(crate) fn random_configs(&self) {
        for &arch in self.archs {
            let simulator = Simulator::new(arch);
            for seed in 0..100 {
                let rng = &mut fastrand::Rng::with_seed(seed);
                let n = rng.usize(1..=128);
                let (m, l) = (rng.usize(1..150), rng.usize(1..=3));
                let layout = ScaleLayout::ALL[rng.usize(..2)];
                let (tiles, parts) = ([1, 2, 3, 7, 8][rng.usize(..5)], [1, 2, 4][rng.usize(..3)]);
                let chunk = parts * rng.u32(1..=2);
                let cluster = [1, 2, 4][rng.usize(..3)];
                let k = self.granule * rng.usize(1..=1280 / self.granule);
                let cutting = cutting((m, k, l), layout, [tiles, parts, chunk, cluster]);
                let kernel = (ACTIVATIONS[rng.usize(..3)], n);
                if self.takes(&simulator, &cutting, kernel) {
                    self.check(&simulator, &cutting, kernel, &mut rng.usize(..99));
                }
            }
        }
    }

    /// Runs for `n` NVFP4 vectors, with faults in the launch that `of` chooses.
    fn runs_of(&self, n: usize, of: Beside) -> Vec<Run> {
        let run = |(i, cutting): (usize, &Cutting)| {
            let case = cutting.case(n, Activation::Nvfp4, Data::Integers);
            let case = case.for_faults(i);
            let config = self.config(cutting);
            of("90a", &case, config, cutting.chained, Uninitialised::Error)
        };
        self.faulty.iter().enumerate().map(run).collect()
    }

    /// Plants one in `of` of the faults.
    pub(crate) fn faults(&self, n: usize, of: u64) {
        let subject = subject(
            self.unit,
            "90a",
            self.runs_of(n, Run::new),
            mutate::schedules(3),
            move |mutant| no_arithmetic(mutant) && mutant.is_in_share(of),
        );
        let least = 60 / of as usize;
        demand(&subject, include_str!("equivalent_faults.txt"), least);
    }

    /// Plants faults in the entry points for most vectors.
    pub(crate) fn faults_of_many_vectors(&self) {
        let run = |(i, (cutting, n)): (usize, &(Cutting, usize))| {
            let case = Case {
                output: FloatType::ALL[i % 3],
                row_alpha: true,
                ..cutting.case(*n, Activation::F16, Data::Integers)
            };
            Run::new(
                "90a",
                &case,
                self.config(cutting),
                cutting.chained,
                Uninitialised::Error,
            )
        };
        let runs = self.full.iter().enumerate().map(run).collect();
        let name = format!("{}_many", self.unit);
        let subject = subject(&name, "90a", runs, mutate::schedules(2), no_arithmetic);
        demand(&subject, include_str!("equivalent_faults.txt"), 60);
    }

    /// Plants faults in a launch beside the one that multiplies. The list of faults has them under the unit's name and
    /// `name`. There must be at least `least` faults.
    pub(crate) fn faults_beside(&self, name: &str, n: usize, beside: Beside, least: usize) {
        let (name, runs) = (format!("{}_{name}", self.unit), self.runs_of(n, beside));
        let subject = subject(&name, "90a", runs, mutate::schedules(3), no_arithmetic);
        demand(&subject, include_str!("equivalent_faults.txt"), least);
    }

    pub(crate) fn wrong_plans_beside(&self, beside: Beside, harmless: &[(At, &str)], of: u64) {
        let runs = [9, 16].map(|n| self.runs_of(n, beside)).concat();
        demand_right_plans("90a", &runs, harmless, of);
    }

    pub(crate) fn wrong_plans(&self, of: u64) {
        self.wrong_plans_beside(Run::new, self.harmless, of);
    }
}
