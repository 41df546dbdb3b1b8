//! Kernels and the operands that they take: each cell of `docs/matrix.md` is executed here, or refused with a typed
//! reason.
//!
//! After a wanted change of a cell: `NVFP4_GEMV_MATRIX=docs cargo test --release --test kernels matrix::is_the_page`.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
#[cfg(feature = "device")]
use std::sync::Arc;

use nvfp4_gemv::kernel::{Job, Kernel};
use nvfp4_gemv::{Activation, FloatType, Gpu, Options, Refusal, ScaleLayout, Target, dispatch};
use nvfp4_gemv_simulate::launch::gpu;
use ptx_sim::{Policy, Timing};

#[cfg(feature = "device")]
use crate::support::gpu::OnDevice;
#[cfg(feature = "device")]
use crate::support::operands::Operands;
use crate::support::operands::{Bias, Case, Data, Residual};
use crate::support::schedules::options;
use crate::support::sim::Simulator;
use crate::support::{ptx, sized, trial};

/// Adds an operand to a call, or nothing where the call has no use for it.
type With = fn(Case) -> Option<Case>;

/// Operands that a call may have beside weights and vectors: the page's columns.
const COLUMNS: [(&str, With); 10] = [
    ("alone", Some),
    ("bias", |case| {
        Some(Case {
            bias: Bias::OfBatches,
            ..case
        })
    }),
    ("residual", |case| {
        Some(Case {
            residual: Residual::Apart,
            ..case
        })
    }),
    ("residual in place", |case| {
        Some(Case {
            residual: Residual::InPlace,
            ..case
        })
    }),
    ("select", |case| {
        Some(Case {
            select: true,
            ..case
        })
    }),
    ("select, late", |case| {
        Some(Case {
            select: true,
            late: true,
            ..case
        })
    }),
    ("shared vectors", |case| {
        Some(Case {
            shared: true,
            ..case
        })
    }),
    ("strides", |case| {
        Some(Case {
            strided: true,
            ..case
        })
    }),
    (ON_READ, on_read),
    (DIGITS, |case| Some(Case { digits: 3, ..case })),
];

const ON_READ: &str = "quantised on read";

/// Elements that become NVFP4 vectors when they are read.
fn on_read(case: Case) -> Option<Case> {
    let element = match case.activation {
        Activation::Nvfp4 => return None,
        Activation::F16 => FloatType::F16,
        Activation::Bf16 => FloatType::Bf16,
        Activation::F32 => FloatType::F32,
    };
    Some(Case {
        activation: Activation::Nvfp4,
        on_read: Some(element),
        // Factors of quantised vectors are no integers.
        data: Data::FullRange,
        ..case
    })
}

/// The column of vectors that tensor cores alone multiply.
const DIGITS: &str = "3 digits";

const PAGE: &str = include_str!("../../docs/matrix.md");

pub(crate) fn trials() -> Vec<nvfp4_gemv_trials::Trial> {
    let mut trials = vec![
        trial::host(concat!(module_path!(), "::is_the_page"), is_the_page),
        trial::host(
            concat!(module_path!(), "::every_cell_has_a_kernel"),
            every_cell_has_a_kernel,
        ),
    ];
    for &kernel in Kernel::ALL {
        let name = format!("{}::{kernel}::sim", module_path!());
        trials.push(trial::simulator(&name, move || simulate(kernel)));
        #[cfg(feature = "device")]
        trials.push(crate::support::gpu::kernel_trial(
            kernel,
            "every_operand",
            move |gpu| {
                for case in cells(kernel, &gpu.info) {
                    let mut on = OnDevice::new(gpu, Arc::new(Operands::new(&case)));
                    for chained in [false, true] {
                        let config = on.job(chained, |job| kernel.default_config(job)).unwrap();
                        on.assert_right(config, chained);
                    }
                }
            },
        ));
    }
    trials
}

/// The architecture whose code the simulator executes.
fn arch(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Tcgen05 => ptx::BLACKWELL,
        Kernel::MmaFp4 => ptx::CONSUMER,
        _ => "90a",
    }
}

/// Types of vectors, layouts of the weights' scales and layouts of the vectors' scales: the page's rows.
fn rows() -> impl Iterator<Item = (Activation, ScaleLayout, ScaleLayout)> {
    let layouts = |activation| {
        let of_vectors = match activation {
            Activation::Nvfp4 => &ScaleLayout::ALL[..],
            _ => &ScaleLayout::ALL[..1],
        };
        let weights = ScaleLayout::ALL.into_iter();
        weights.flat_map(move |w| of_vectors.iter().map(move |&v| (activation, w, v)))
    };
    Activation::ALL.into_iter().flat_map(layouts)
}

/// Three batches of rows that every kernel takes, but for their type, layout and `select`.
fn case(
    (activation, weight_layout, vector_layout): (Activation, ScaleLayout, ScaleLayout),
    n: usize,
) -> Case {
    // With several batches in the 128x4 layout, `ring` wants whole blocks of rows.
    let m = if weight_layout == ScaleLayout::Linear {
        40
    } else {
        128
    };
    Case {
        activation,
        vector_layout,
        ..Case::new(sized(m, n, 256, 3), Data::Integers, weight_layout, 3)
    }
}

fn refusal(kernel: Kernel, case: &Case, gpu: &Gpu) -> Option<Refusal> {
    kernel
        .available(&Job::new(&case.shape, &case.asked(), gpu))
        .err()
}

/// The cells that a kernel takes, each with numbers of its own, whole or of the full range; those with a selection also
/// with ids of no matrix.
fn cells(kernel: Kernel, gpu: &Gpu) -> Vec<Case> {
    let of_row = |row| {
        COLUMNS
            .into_iter()
            .filter_map(move |(_, with)| with(case(row, 3)))
    };
    let dealt = rows().flat_map(of_row).enumerate().map(|(i, case)| Case {
        seed: i as u64,
        data: match case.on_read {
            Some(_) => case.data,
            None => Data::BOTH[i % 2],
        },
        row_alpha: i % 3 == 1,
        ..case
    });
    let mut cells: Vec<Case> = dealt
        .filter(|case| refusal(kernel, case, gpu).is_none())
        .collect();
    let selecting: Vec<Case> = cells.iter().copied().filter(|case| case.select).collect();
    cells.extend(selecting.into_iter().flat_map(Case::with_unknown_ids));
    cells
}

fn simulate(kernel: Kernel) {
    // Few multiprocessors, so that each CTA gets several of the parts that are dealt among CTAs.
    let simulator = Simulator::with_multiprocessors(arch(kernel), 3);
    let cells = cells(kernel, &simulator.gpu);
    assert!(cells.len() > 5, "only {} cells", cells.len());
    for (i, case) in cells.into_iter().enumerate() {
        let chained = i % 2 == 1;
        let config = simulator.job(&case, chained, |job| kernel.default_config(job));
        let config = config.unwrap_or_else(|why| panic!("{case:?}: {why}"));
        let options = options(Policy::Random(i as u64), Timing::Eager);
        simulator.check(&case, config, chained, &options);
    }
}

/// The cells as a page. Rows of a kernel and type that have the same cells are one.
fn page() -> String {
    let head = PAGE.find("| kernel").unwrap_or(PAGE.len());
    let mut page = PAGE[..head].to_string();
    let names = COLUMNS.map(|(name, _)| name).join(" | ");
    writeln!(
        page,
        "| kernel | vectors | scales of W (and of vectors) | {names} |"
    )
    .unwrap();
    writeln!(page, "|---|---|---{}|", "|---".repeat(COLUMNS.len())).unwrap();
    let mut refusals: Vec<String> = Vec::new();
    for &kernel in Kernel::ALL {
        let gpu = gpu(arch(kernel));
        // Cells, and the layouts that have them, of each type.
        let mut lines: Vec<(Activation, String, Vec<String>)> = Vec::new();
        for row in rows() {
            let (activation, w, v) = row;
            let mut cell =
                |with: With| match with(case(row, 3)).map(|case| refusal(kernel, &case, &gpu)) {
                    None => "–".to_string(),
                    Some(None) => "tested".to_string(),
                    Some(Some(why)) => {
                        let why = why.to_string();
                        let known = refusals.iter().position(|of| *of == why);
                        let at = known.unwrap_or(refusals.len());
                        if known.is_none() {
                            refusals.push(why);
                        }
                        format!("({})", at + 1)
                    }
                };
            let cells = COLUMNS.map(|(_, with)| cell(with)).join(" | ");
            let layouts = match activation {
                Activation::Nvfp4 => format!("{w} ({v})"),
                _ => w.to_string(),
            };
            let same = lines
                .iter_mut()
                .find(|of| of.0 == activation && of.1 == cells);
            match same {
                Some((_, _, all)) => all.push(layouts),
                None => lines.push((activation, cells, vec![layouts])),
            }
        }
        for (activation, cells, layouts) in lines {
            let layouts = layouts.join(", ");
            writeln!(page, "| `{kernel}` | {activation} | {layouts} | {cells} |").unwrap();
        }
    }
    writeln!(page, "\nRefused:\n").unwrap();
    for (i, why) in refusals.iter().enumerate() {
        writeln!(page, "{}. {why}", i + 1).unwrap();
    }
    page
}

fn is_the_page() {
    let page = page();
    if let Some(folder) = std::env::var_os("NVFP4_GEMV_MATRIX") {
        std::fs::write(Path::new(&folder).join("matrix.md"), &page).expect("a page");
        return;
    }
    let differs = page
        .lines()
        .zip(PAGE.lines())
        .find(|(now, then)| now != then);
    assert!(
        page == PAGE,
        "docs/matrix.md is not what kernels take: {differs:?}"
    );
}

/// The page's rows with all that a column or several columns together add, for so many vectors.
fn combinations(n: usize) -> impl Iterator<Item = Case> {
    let with_all = move |row, columns: usize| {
        let mut chosen = (0..COLUMNS.len()).filter(move |i| columns >> i & 1 == 1);
        chosen.try_fold(case(row, n), |case, i| COLUMNS[i].1(case))
    };
    let all = 0..1 << COLUMNS.len();
    let cases = rows().flat_map(move |row| all.clone().filter_map(move |all| with_all(row, all)));
    // What is quantised on read has one digit.
    cases.filter(|case| case.on_read.is_none() || case.digits == 1)
}

/// Dispatch finds a kernel for each row, whatever columns it is asked for at once, with the built-in choice: for few
/// vectors and many, on GPUs of all kinds, chained or not, with a workspace or without. Not all GPUs have a kernel that
/// quantises what it reads, or one for digits. There a choice is found exactly where a kernel takes the call.
fn every_cell_has_a_kernel() {
    for arch in ["80", "90a", ptx::BLACKWELL, ptx::CONSUMER] {
        let gpu = gpu(arch);
        // Dispatch does not see what epilogues add and where results lie: kernels that take a call take it with these.
        let mut asked = HashSet::new();
        for n in [1, 4, 16, 64] {
            for case in combinations(n) {
                for workspace in [0, u64::MAX] {
                    let operands = nvfp4_gemv::Operands {
                        late: case.late,
                        ..case.asked().with_workspace(workspace)
                    };
                    if !asked.insert((case.shape, operands)) {
                        continue;
                    }
                    let options = Options::new().without_environment();
                    // SAFETY: nothing is launched, here or by what this returns.
                    for options in [options, unsafe { options.chained() }] {
                        let job = Job::new(&case.shape, &operands, &gpu);
                        let takes = |kernel: &Kernel| kernel.available(&job).is_ok();
                        let everywhere = case.on_read.is_none() && case.digits == 1;
                        let exists = everywhere || Kernel::ALL.iter().any(takes);
                        let target = Target::Gpu(&gpu);
                        let choice = dispatch::select(&case.shape, &operands, target, &options);
                        let kernel = choice.map(|choice| choice.kernel());
                        assert!(
                            matches!(kernel, Ok(Some(_))) == exists,
                            "{arch} {case:?}: {kernel:?}"
                        );
                    }
                }
            }
        }
        assert!(asked.len() > 100, "{arch}: only {} calls", asked.len());
    }
}
