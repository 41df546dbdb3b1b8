//! The paths of a device in the order of what is known of them for a problem.

use std::fmt;

use super::measured::{self, Entry, Measurements, Timed};
use super::{Operands, Path, Target, Unavailable, available, model};
use crate::config::Config;
use crate::shape::Shape;

/// What an estimate rests on, from the best evidence to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// Times of this problem on this device: a file of [`crate::tune`].
    Tuned,
    /// Times of this problem on the same model of GPU, in a built-in table.
    Measured {
        /// The GPU.
        on: &'static str,
    },
    /// Times of the nearest problem in a built-in table, of a GPU with the same major compute capability,
    /// scaled as the model says.
    Nearest {
        /// The GPU.
        on: &'static str,
        /// The problem that was measured.
        shape: Shape,
    },
    /// A count of instructions and bytes, from the machine code and published rates.
    Modelled,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tuned => f.write_str("from the file of tuned configurations"),
            Self::Measured { on } => write!(f, "measured on {on}"),
            Self::Nearest { on, shape } => write!(f, "after {shape}, measured on {on}"),
            Self::Modelled => f.write_str("modelled"),
        }
    }
}

/// How fast a path is for a problem, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The share of the read-only ceiling.
    pub share: f64,
    /// Seconds a call; `None` where the device's ceiling is not known.
    pub seconds: Option<f64>,
    /// What both rest on.
    pub evidence: Evidence,
    /// The cut that was measured for this very problem; `None` for the path's default.
    pub config: Option<Config>,
}

/// A path, whether it can run a problem, and how fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The path.
    pub path: Path,
    /// Why it cannot run, if it cannot.
    pub available: Result<(), Unavailable>,
    /// What is known of its time; nothing of paths that this target never runs, nor of the CPU's.
    pub estimate: Option<Estimate>,
}

/// All paths for a problem, the fastest first, whether they can run or not. `tuned` are measurements on
/// the very device that `target` stands for.
///
/// ```
/// use nvfp4_gemv::path::{Operands, rank};
/// use nvfp4_gemv::{Activation, ScaleLayout, Shape, Target};
/// let shape = Shape::gemv(4096, 7168, 8)?;
/// let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
/// let b200 = Target::Cuda { compute_capability: (10, 0), archs: "100a", model: None };
/// for ranked in rank(&shape, &operands, &b200, None) {
///     if let Some(estimate) = ranked.estimate {
///         println!("{}: {:.0}% ({})", ranked.path, 100.0 * estimate.share, estimate.evidence);
///     }
/// }
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn rank(
    shape: &Shape,
    operands: &Operands,
    target: &Target,
    tuned: Option<&Measurements>,
) -> [Ranked; Path::ALL.len()] {
    let tables = Tables::of(target, tuned);
    let mut ranked = Path::ALL.map(|path| {
        let available = available(path, shape, operands, target);
        let estimate = match (target, available) {
            (Target::Host, _) | (_, Err(Unavailable::ComputeCapability { .. })) => None,
            _ => tables.estimate(path, shape, operands, available.is_ok()),
        };
        Ranked {
            path,
            available,
            estimate,
        }
    });
    let share = |ranked: &Ranked| ranked.estimate.map_or(0.0, |estimate| estimate.share);
    // Stable: equals stay in the order of `Path::ALL`.
    ranked.sort_by(|a, b| share(b).total_cmp(&share(a)));
    ranked
}

/// What there is to look a problem up in.
struct Tables<'t> {
    tuned: Option<&'t Measurements>,
    /// Of the same model of GPU.
    model: Option<&'static Measurements>,
    /// Of that model, or of another GPU with the same major compute capability.
    class: Option<&'static Measurements>,
}

impl<'t> Tables<'t> {
    fn of(target: &Target, tuned: Option<&'t Measurements>) -> Self {
        let &Target::Cuda {
            compute_capability,
            model,
            ..
        } = target
        else {
            return Self {
                tuned,
                model: None,
                class: None,
            };
        };
        let find = |is: &dyn Fn(&measured::Gpu) -> bool| {
            measured::builtin()
                .iter()
                .find(|table| is(&table.machine.gpu))
        };
        let model = model.and_then(|model| find(&|gpu| gpu.name == model));
        let class = find(&|gpu| gpu.compute_capability.0 == compute_capability.0);
        Self {
            tuned,
            model,
            class: model.or(class),
        }
    }

    fn estimate(
        &self,
        path: Path,
        shape: &Shape,
        operands: &Operands,
        available: bool,
    ) -> Option<Estimate> {
        let exact = |table: &Measurements, evidence| {
            let entry = table.find(shape, operands)?;
            let timed = entry.of(path)?;
            Some(Estimate {
                share: entry.share(timed),
                seconds: Some(timed.seconds),
                evidence,
                config: timed.config,
            })
        };
        let modelled = || {
            Some(Estimate {
                share: model::share(path, shape, operands)?,
                seconds: None,
                evidence: Evidence::Modelled,
                config: None,
            })
        };
        let tuned = self.tuned.and_then(|table| exact(table, Evidence::Tuned));
        let measured = || {
            let table = self.model?;
            let on = table.machine.gpu.name.as_str();
            exact(table, Evidence::Measured { on })
        };
        let nearest = || {
            let table = self.class?;
            let (entry, timed) = table.nearest(path, shape, operands)?;
            scaled(table, entry, timed, shape, operands)
        };
        // What cannot run is not worth a guess beside what was measured.
        let guess = || match self.class {
            Some(_) if !available => None,
            _ => modelled(),
        };
        tuned.or_else(measured).or_else(nearest).or_else(guess)
    }
}

/// A measured problem's share, changed by as much as the model says that the problem differs.
fn scaled(
    table: &'static Measurements,
    entry: &Entry,
    timed: &Timed,
    shape: &Shape,
    operands: &Operands,
) -> Option<Estimate> {
    let model = |shape: &Shape, operands: &Operands| model::share(timed.path, shape, operands);
    let by = model(shape, operands)? / model(&entry.shape, &entry.operands)?;
    let share = (entry.share(timed) * by).min(1.0);
    let bytes_per_second = entry.shape.weight_bytes() as f64 / entry.ceiling_seconds;
    Some(Estimate {
        share,
        seconds: Some(shape.weight_bytes() as f64 / bytes_per_second / share),
        evidence: Evidence::Nearest {
            on: &table.machine.gpu.name,
            shape: entry.shape,
        },
        config: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::measured::{Gpu, Machine};
    use crate::path::select_tuned;
    use crate::types::Activation;
    use crate::types::ScaleLayout;

    const TILED: ScaleLayout = ScaleLayout::Tiled128x4;

    fn hopper(model: Option<&'static str>) -> Target {
        Target::Cuda {
            compute_capability: (9, 0),
            archs: "80;90a;100a",
            model,
        }
    }

    fn first(shape: &Shape, operands: &Operands, target: &Target) -> (Path, Estimate) {
        let ranked = rank(shape, operands, target, None);
        let first = ranked.iter().find(|one| one.available.is_ok()).unwrap();
        (first.path, first.estimate.unwrap())
    }

    #[test]
    fn a_measured_problem_is_ranked_by_its_own_times() {
        let table = measured::builtin_for("NVIDIA H200", 132).unwrap();
        let on = table.machine.gpu.name.as_str();
        for entry in table.entries() {
            let ranked = rank(&entry.shape, &entry.operands, &hopper(Some(on)), None);
            // A path that the table has not for this problem is ranked by what there is of it.
            let measured = Evidence::Measured { on };
            let own: Vec<_> = ranked
                .iter()
                .filter_map(|one| Some((one.path, one.estimate?)))
                .filter(|(_, estimate)| estimate.evidence == measured)
                .map(|(path, estimate)| (path, estimate.seconds.unwrap()))
                .collect();
            let table: Vec<_> = entry.paths.iter().map(|t| (t.path, t.seconds)).collect();
            assert_eq!(own, table);
        }
    }

    #[test]
    fn other_problems_and_other_hoppers_follow_the_nearest() {
        let tiled = Operands::new(Activation::Nvfp4, TILED);
        let shape = Shape::gemv(4096, 7168, 8).unwrap();
        for model in [None, Some("NVIDIA H100 80GB HBM3")] {
            let (_, estimate) = first(&shape, &tiled, &hopper(model));
            let Evidence::Nearest { shape: of, .. } = estimate.evidence else {
                panic!("{estimate:?}");
            };
            assert_eq!(of, shape);
        }
    }

    fn machine() -> Machine {
        Machine {
            gpu: Gpu {
                name: "NVIDIA H200".into(),
                compute_capability: (9, 0),
                multiprocessors: 132,
            },
            driver: "13.0".into(),
            crate_version: "0".into(),
            kernels: String::new(),
        }
    }

    fn timed(path: Path, seconds: f64) -> Timed {
        Timed {
            chained: None,
            path,
            config: None,
            seconds,
        }
    }

    #[test]
    fn a_neighbour_is_scaled_as_the_model_says() {
        let shape = Shape::new(4096, 8, 4096, 1).unwrap();
        let operands = Operands::new(Activation::Nvfp4, TILED);
        let mut table = Measurements::new(machine(), "a test");
        table.insert(Entry {
            shape,
            operands,
            ceiling_seconds: 4e-6,
            paths: vec![timed(Path::CudaCore, 8e-6), timed(Path::TensorCore, 8e-6)],
        });
        let table: &'static Measurements = Box::leak(Box::new(table));
        let seconds = |path, n, l| {
            let shape = Shape::new(4096, n, 4096, l).unwrap();
            let (entry, timed) = table.nearest(path, &shape, &operands).unwrap();
            let estimate = scaled(table, entry, timed, &shape, &operands).unwrap();
            estimate.seconds.unwrap() * 1e6
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
        near(seconds(Path::CudaCore, 8, 1), 8.0);
        // Twice the bytes; two passes over the weights, which tensor cores do not need.
        near(seconds(Path::CudaCore, 8, 2), 16.0);
        near(seconds(Path::CudaCore, 16, 1), 16.0);
        near(seconds(Path::TensorCore, 16, 1), 8.0);
        assert!(seconds(Path::CudaCore, 1, 1) < 8.0);
    }

    #[test]
    fn tuned_times_go_before_all_others() {
        let mut tuned = Measurements::new(machine(), "a test");
        let shape = Shape::gemv(4096, 4096, 1).unwrap();
        let operands = Operands::new(Activation::Nvfp4, TILED);
        tuned.insert(Entry {
            shape,
            operands,
            ceiling_seconds: 1e-6,
            paths: vec![
                timed(Path::CudaCoreTma, 1.1e-6),
                timed(Path::CudaCore, 2e-6),
            ],
        });
        let target = hopper(Some("NVIDIA H200"));
        let choose = |shape: &Shape, forced| {
            select_tuned(shape, &operands, &target, forced, Some(&tuned)).unwrap()
        };
        let choice = choose(&shape, None);
        assert_eq!(choice.path, Path::CudaCoreTma);
        assert!(choice.reason.to_string().contains("tuned configurations"));
        assert_eq!(choose(&shape, Some(Path::CudaCore)).path, Path::CudaCore);
        // Not for another problem.
        let other = choose(&Shape::gemv(4096, 4096, 2).unwrap(), None);
        assert!(
            !other.reason.to_string().contains("tuned"),
            "{}",
            other.reason
        );
    }

    #[test]
    fn without_measurements_the_model_decides_and_impossible_paths_have_no_rank() {
        let operands = Operands::new(Activation::Bf16, ScaleLayout::Linear);
        let shape = Shape::new(128, 3, 256, 1).unwrap();
        let ampere = Target::Cuda {
            compute_capability: (8, 6),
            archs: "80",
            model: None,
        };
        let ranked = rank(&shape, &operands, &ampere, None);
        assert_eq!(ranked[0].path, Path::CudaCore);
        assert_eq!(ranked[0].estimate.unwrap().evidence, Evidence::Modelled);
        assert!(ranked[1..].iter().all(|one| one.estimate.is_none()));
        let host = rank(&shape, &operands, &Target::Host, None);
        assert!(host.iter().all(|one| one.estimate.is_none()));
    }
}
