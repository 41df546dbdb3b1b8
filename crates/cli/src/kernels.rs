//! `kernels`: the entry points of the machine code, each with a config that takes it.

use anyhow::{Result, anyhow, bail};
use nvfp4_gemv::kernel::plan::Launch;
use nvfp4_gemv::kernel::read_only::{Read, ReadConfig};
use nvfp4_gemv::kernel::{Call, Job, MainLoop, combine, quantize, relayout};
use nvfp4_gemv::{
    Activation, Config, FloatType, Gpu, Kernel, Operands, RawOutput, ScaleLayout, Shape, Strides,
};
use nvfp4_gemv_cli::problem::CONTEST_BENCHMARKS;
use serde_json::{Value, json};

use crate::configs::{launches, one_line};
use crate::engine::compiled_archs;
use crate::report::{Report, Table};
use crate::shapes;

/// Lists the GPU kernels' entry points, each as it is launched for a representative problem; computes nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The problem is one of the benchmark shapes, for every type and number of vectors; where a GPU has too little shared \
memory for so many vectors of its length, it is 4096x2048. An entry point that several configs take is shown with the \
default one for the most vectors that it computes in one pass.

Examples:
  nvfp4-gemv kernels
  nvfp4-gemv kernels --arch 90a --json")]
pub(crate) struct Args {
    /// As a build for this architecture has them, on the largest GPU of its kind; may be repeated [default: this
    /// build's]
    #[arg(long = "arch", value_name = "ARCH")]
    archs: Vec<String>,
}

/// An entry point, and a launch of it.
struct Entry {
    launch: Launch,
    shape: Shape,
    /// Bytes of weights that a CTA has asked for at once.
    bytes_in_flight: u64,
    /// Only for kernels that multiply.
    gemv: Option<Gemv>,
    /// Rank of this launch among those of its entry point, the most important first: K, all vectors in one pass, how
    /// many they are, the kernel's default config. The highest one is shown.
    rank: (usize, bool, usize, bool),
}

/// The computation of a launch, and its config.
struct Gemv {
    config: Config,
    operands: Operands,
    main_loop: Option<MainLoop>,
}

/// K of vectors that fit where the problem's do not.
const SHORT: usize = 2048;

/// Numbers of vectors for which kernels have entry points: powers of two up to the largest pass that a kernel may take.
const VECTORS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Alignments of weights that kernels have entry points for, the widest first.
const ALIGNMENTS: [u64; 2] = [16, 8];

pub(crate) fn run(args: &Args) -> Result<Report> {
    let of_build = || compiled_archs().split(';').filter(|arch| !arch.is_empty());
    let archs: Vec<&str> = match &args.archs[..] {
        [] => of_build().collect(),
        archs => archs.iter().map(String::as_str).collect(),
    };
    if archs.is_empty() {
        bail!("this build carries no kernels; --arch says what to list them for");
    }
    let (m, k, l) = CONTEST_BENCHMARKS[1];
    let problem = shapes::of(m, 1, k, l)?;
    let mut text = String::new();
    let mut all = Vec::new();
    for arch in archs {
        let gpu = gpu(arch)?;
        let entries = entries(&problem, &gpu)?;
        text.push_str(&format!(
            "{arch}, {problem}, {} SMs:\n{}\n",
            gpu.multiprocessors,
            table(&entries)
        ));
        all.push(json!({
            "arch": arch,
            "multiprocessors": gpu.multiprocessors,
            "shared_bytes": gpu.shared_bytes,
            "entries": entries.iter().map(to_json).collect::<Vec<_>>(),
        }));
    }
    Ok(Report::new(
        text,
        json!({ "problem": problem.to_string(), "archs": all }),
    ))
}

/// The largest GPU of an architecture's kind.
fn gpu(arch: &str) -> Result<Gpu> {
    let number = arch.trim_end_matches(['a', 'f']).parse::<i32>();
    let known = number.ok().filter(|number| (80..1000).contains(number));
    let wrong = || anyhow!("--arch {arch:?}: expected a number, for example 90a");
    let number = known.ok_or_else(wrong)?;
    // One small string for each architecture of the one command of a process.
    let images = String::leak(arch.to_owned());
    let compute_capability = (number / 10, number % 10);
    Ok(Gpu::of_compute_capability(compute_capability, images))
}

/// The entry points that some default, candidate or batch invariant config takes, and those of kernels that have no
/// config.
fn entries(problem: &Shape, gpu: &Gpu) -> Result<Vec<Entry>> {
    let mut entries = helpers(problem, gpu);
    for activation in Activation::ALL {
        for n in VECTORS {
            // Many vectors of the problem's length fit no CTA of small GPUs: those of a shorter one do.
            for (k, l) in [(problem.k(), problem.l()), (SHORT, 1)] {
                let shape = shapes::of(problem.m(), n, k, l)?;
                for layout in ScaleLayout::ALL {
                    for align in ALIGNMENTS {
                        let plain = Call::nowhere(&shape, activation, layout, align);
                        // Some kernels have entry points of their own for an epilogue that has operands, for a
                        // selection, and for vectors that they quantise.
                        let on_read = activation == Activation::Nvfp4;
                        let calls = [plain, plain.biased_nowhere(), plain.selecting_nowhere()];
                        let on_read = on_read.then(|| plain.reading_nowhere());
                        for call in calls.into_iter().chain(on_read) {
                            for &kernel in Kernel::ALL {
                                add(&mut entries, kernel, &call, gpu, false);
                                add(&mut entries, kernel, &call, gpu, true);
                            }
                        }
                    }
                }
            }
        }
    }
    entries.sort_by_key(|entry| entry.launch.entry);
    Ok(entries)
}

/// The kernels that multiply nothing.
fn helpers(problem: &Shape, gpu: &Gpu) -> Vec<Entry> {
    // Nothing is there, and nothing is launched.
    let nowhere = 0;
    let mut launches = Vec::new();
    for layout in ScaleLayout::ALL {
        launches.push((relayout::launch(problem, layout, nowhere, nowhere), 0));
    }
    for element in FloatType::ALL {
        let kinds = quantize::Input::KINDS.map(|input| (input, 1));
        for (input, digits) in kinds.into_iter().chain([(quantize::Input::Plain, 3)]) {
            let of = quantize::Quantize {
                element,
                input,
                chained: false,
                early: false,
                copies: 1,
                digits,
                values: nowhere,
                strides: Strides { row: 0, batch: 0 },
                global: quantize::Global::Computed,
                codes: nowhere,
                scales: nowhere,
                layout: ScaleLayout::Tiled128x4,
                vector_alpha: nowhere,
            };
            launches.push((quantize::launch(problem, &of), 0));
        }
    }
    let sum = combine::Combine {
        slots: 8,
        element: FloatType::F32,
        inputs: nowhere,
        weights: nowhere,
        ids: nowhere,
        output: RawOutput::packed(nowhere, FloatType::F32),
        chained: false,
    };
    launches.push((combine::launch(problem, &sum), 0));
    let read = Read {
        data: nowhere,
        bytes: problem.weight_bytes(),
        sink: nowhere,
        sums: false,
    };
    for config in ReadConfig::candidates(gpu) {
        let launch = config.launch(&read, gpu.multiprocessors);
        if launches
            .iter()
            .all(|(known, _)| known.entry != launch.entry)
        {
            launches.push((launch, config.bytes_in_flight()));
        }
    }
    let entry = |(launch, bytes_in_flight)| Entry {
        launch,
        shape: *problem,
        bytes_in_flight,
        gemv: None,
        rank: Default::default(),
    };
    launches.into_iter().map(entry).collect()
}

/// The entry points of a kernel's configs for a call, in the place of launches that show them less well.
fn add(entries: &mut Vec<Entry>, kernel: Kernel, call: &Call, gpu: &Gpu, chained: bool) {
    let (shape, operands) = (*call.shape(), call.operands());
    let job = Job::new(&shape, &operands, gpu).chained(chained);
    let default = kernel.default_config(&job).ok();
    let invariant = kernel.batch_invariant_config(&job).ok();
    let all = default.into_iter().chain(kernel.candidates(&job));
    for config in all.chain(invariant) {
        let plan = launches(&config, call, gpu, chained);
        let is_default = Some(config) == default;
        let multiply = plan.iter().filter(|launch| !launch.auxiliary).count();
        let rank = (shape.k(), multiply == 1, shape.n(), is_default);
        for launch in plan {
            let known = entries
                .iter()
                .position(|known| known.launch.entry == launch.entry);
            if known.is_some_and(|at| rank <= entries[at].rank) {
                continue;
            }
            let entry = Entry {
                shape,
                bytes_in_flight: match launch.auxiliary {
                    true => 0,
                    false => config.bytes_in_flight(&job),
                },
                gemv: Some(Gemv {
                    config,
                    operands,
                    main_loop: match launch.auxiliary {
                        true => None,
                        false => config.main_loop(&job).ok(),
                    },
                }),
                rank,
                launch,
            };
            match known {
                Some(at) => entries[at] = entry,
                None => entries.push(entry),
            }
        }
    }
}

fn table(entries: &[Entry]) -> String {
    let mut table = Table::new(["  entry point", "threads", "shared", "in flight"]);
    for entry in entries {
        let launch = &entry.launch;
        table.row(vec![
            format!("  {}", launch.entry),
            launch.threads.to_string(),
            (launch.static_shared + launch.dynamic_shared).to_string(),
            entry.bytes_in_flight.to_string(),
        ]);
    }
    let config = |entry: &Entry| entry.gemv.as_ref().map(|gemv| one_line(&gemv.config));
    let configs = entries
        .iter()
        .map(|entry| config(entry).unwrap_or_default());
    let notes: Vec<String> = std::iter::once("config".into()).chain(configs).collect();
    table.with_notes(&notes)
}

fn to_json(entry: &Entry) -> Value {
    let mut json = json!(entry.launch);
    let gemv = entry.gemv.as_ref();
    json["shape"] = json!(entry.shape.to_string());
    json["kernel"] = json!(gemv.map(|gemv| gemv.config.kernel().name()));
    json["config"] = json!(gemv.map(|gemv| gemv.config));
    json["activation"] = json!(gemv.map(|gemv| gemv.operands.activation.name()));
    json["layout"] = json!(gemv.map(|gemv| gemv.operands.weight_layout.name()));
    json["n"] = json!(gemv.map(|_| entry.shape.n()));
    json["bytes_in_flight"] = json!(entry.bytes_in_flight);
    json["main_loop"] = json!(gemv.and_then(|gemv| gemv.main_loop));
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arch: &str) -> Vec<Entry> {
        let shape = shapes::of(4096, 1, 7168, 8).unwrap();
        entries(&shape, &gpu(arch).unwrap()).unwrap()
    }

    #[test]
    fn each_entry_point_is_listed_once_on_gpus_that_have_it() {
        let names = |arch| -> Vec<&str> {
            let entries = of(arch);
            entries.iter().map(|entry| entry.launch.entry).collect()
        };
        let (ampere, hopper, blackwell) = (names("80"), names("90a"), names("100f"));
        let consumer = names("120f");
        for names in [&ampere, &hopper, &blackwell, &consumer] {
            assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
            for of_all in [
                "gemv_direct_f32_n1_b2",
                "gemv_direct_bf16_n8_b1",
                "gemv_mma_nvfp4_n8",
                "gemv_stream_f16_n1",
                "quantize_bf16",
                "quantize_digits_f16",
                "quantize_gated_f32",
                "combine",
                "relayout_to_linear",
                "read_only_loads4",
                "read_only_loads8",
            ] {
                assert!(names.contains(&of_all), "{of_all}: {names:?}");
            }
        }
        let has = |names: &[&str], of| names.iter().any(|name| name.starts_with(of));
        for (of, there) in [
            ("gemv_ring", [false, true, true, true]),
            ("read_bulk", [false, true, true, true]),
            ("gemv_packed", [false, true, false, false]),
            ("gemv_packed_f16_n8_operands", [false, true, false, false]),
            ("gemv_ring_select", [false, true, true, true]),
            ("gemv_ring_on_read", [false, true, true, true]),
            ("gemv_stream_select", [true; 4]),
            ("gemv_stream_ordered", [false, true, false, false]),
            ("gemv_tcgen05", [false, false, true, false]),
            ("gemv_mma_fp4_n128", [false, false, false, true]),
        ] {
            assert_eq!(
                [&ampere, &hopper, &blackwell, &consumer].map(|names| has(names, of)),
                there,
                "{of}"
            );
        }
        assert!(gpu("abacus").is_err());
    }

    #[test]
    fn entry_points_are_shown_with_the_default_for_the_most_vectors() {
        let entries = of("90a");
        let entry = |name| {
            let mut entries = entries.iter();
            entries.find(|entry| entry.launch.entry == name).unwrap()
        };
        for (name, n) in [
            ("gemv_direct_f16_n1_b2", 1),
            ("gemv_stream_nvfp4_n4", 4),
            ("gemv_mma_nvfp4_n8", 8),
        ] {
            let entry = entry(name);
            assert_eq!(entry.rank, (7168, true, n, true), "{name}");
            assert_eq!(entry.shape.n(), n, "{name}");
            let main_loop = entry.gemv.as_ref().unwrap().main_loop.unwrap();
            assert_eq!(main_loop.vectors, n as u32, "{name}");
            assert!(entry.launch.threads > 0, "{name}");
            assert!(entry.bytes_in_flight > 0, "{name}");
        }
    }
}
