//! The steps of a night, and their order. What ships is asked first, for twenty minutes; then single instructions, those
//! that could disturb most last; then what takes hours.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::device::Device;
use super::proof::Proof;
use crate::process;

/// Something that runs in a process of its own.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    /// The step's work in a few words, for people.
    pub(super) what: &'static str,
    pub(super) seconds: u64,
    /// Steps that must have passed.
    pub(super) needs: Vec<String>,
    /// Whether it uses the GPU, which is then asked for life.
    pub(super) on_gpu: bool,
    /// The proof that it must have left: a program that ends well and has done nothing has not passed.
    pub(super) proof: Proof,
    pub(super) action: Action,
}

#[derive(Debug)]
pub(super) enum Action {
    Run {
        command: Command,
        /// A file below the night's folder, for what it prints to standard output.
        output: Option<String>,
    },
    /// The step has no meaning on this device, and why.
    Never(String),
}

impl Step {
    /// Keeps what it prints in a file below the night's folder, which must hold what `proof` says.
    fn prints(&mut self, file: String, proof: fn(String) -> Proof) {
        self.proof = proof(file.clone());
        if let Action::Run { output, .. } = &mut self.action {
            *output = Some(file);
        }
    }

    /// The command as a user would type it, or why there is none.
    pub(super) fn line(&self) -> String {
        match &self.action {
            Action::Run { command, .. } => process::line(command),
            Action::Never(why) => format!("skipped: {why}"),
        }
    }
}

/// Paths and the GPU that the steps use.
pub(super) struct Places<'a> {
    pub(super) root: &'a Path,
    /// Cargo's target directory.
    pub(super) target: &'a Path,
    /// The night's folder.
    pub(super) out: &'a Path,
    /// This program.
    pub(super) xtask: &'a Path,
    pub(super) gpu: u32,
    /// Whether there is a compute-sanitizer.
    pub(super) sanitizer: bool,
    /// Environment variables that a build needs to see.
    pub(super) environment: Vec<(String, std::ffi::OsString)>,
}

/// Topics of the recorder, each with the major compute capability that has its instructions; 0: all have them.
const TOPICS: &str = "
    sums_f16 0 how the f16 instruction adds: a rehearsal of the probes of sums
    mma_fp4 12 block-scaled mma.sync: fragments, scale selectors, exact data, sums
    tcgen05 10 tensor memory, copies, loads, commits, one multiplication for each N, sums
    tma 0 tensor copies: zero filling, and what it counts
    cvt 0 conversions
    arith 0 floating point
    integer 0 integers
    warp 0 warps
    matrix 0 mma.sync of other types
    wgmma 9 warpgroup matrices
    async 0 mbarriers, bulk copies, clusters
    tcgen05_pdl 10 a dependent launch behind a kernel that allocates tensor memory late";

/// The GPU whose published rule of sums `ptx-sim --sums` takes for a topic, by major compute capability.
const RULES: [(&str, i32, &str); 6] = [
    ("sums_f16", 9, "hopper"),
    ("sums_f16", 10, "blackwell"),
    ("sums_f16", 12, "rtx-blackwell"),
    ("wgmma", 9, "hopper"),
    ("mma_fp4", 12, "rtx-blackwell"),
    ("tcgen05", 10, "blackwell"),
];

/// Kernels whose bits are predicted for whole problems, each with the major compute capability that has its
/// instruction.
const PREDICTED: [(&str, i32); 2] = [("tcgen05", 10), ("mma_fp4", 12)];

/// Kernels with GPU tests of their own, each with the major compute capability that has its instruction.
const KERNELS: [(&str, i32); 3] = [("tcgen05", 10), ("mma_fp4", 12), ("wgmma", 9)];

/// The steps that are no probes: each with the minutes that it may take, the step that must have passed, and its work.
const STEPS: &str = "
    machine 1 - what the driver says about the GPU
    toolchain 30 - the CUDA compiler; installs one where there is none
    build-program 60 toolchain nvfp4-gemv with kernels for this GPU
    build-simulator 60 toolchain ptx-sim, which gives the answers to compare with
    build-tests 60 toolchain the tests of the kernels
    build-probes 10 toolchain the recorder, and the probes' machine code
    info 1 build-program what the program can run here, with which machine code
    soak 60 build-program what ships: the contest's problems, again and again for 20 minutes, no bit another
    build-checked 90 toolchain the tests of the kernels again, with checks of tensor memory where there is such
    checked 60 build-checked small problems under compute-sanitizer
    ceilings 30 build-program memory alone: bulk copies against wide loads
    clusters 2 build-probes the most clusters of each size that fit at once
    tests-all 60 build-tests the GPU tests of all kernels
    verify 60 build-program problems with known answers, by every kernel
    tune 180 build-program the fastest config of each problem: a built-in table
    bench 90 build-program every path on every shape";

/// The rows of a table: two or three words, and the rest of the line.
fn rows<const N: usize>(table: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    let rows = table.trim().lines();
    rows.filter_map(|row| {
        row.trim()
            .splitn(N, ' ')
            .collect::<Vec<_>>()
            .try_into()
            .ok()
    })
}

/// The topics, as [`TOPICS`] has them.
fn topics() -> impl Iterator<Item = (&'static str, i32, &'static str)> {
    rows::<3>(TOPICS).filter_map(|[topic, needs, what]| Some((topic, needs.parse().ok()?, what)))
}

/// Whether the recorder knows a topic.
pub(super) fn is_a_topic(name: &str) -> bool {
    topics().any(|(topic, ..)| topic == name)
}

const MINUTE: u64 = 60;

/// Minutes for which what ships is computed again and again.
const SOAK_MINUTES: u32 = 20;

/// The topic whose kernels wait for each other's tensor memory.
const LAST_TOPIC: &str = "tcgen05_pdl";

struct Night<'a> {
    places: &'a Places<'a>,
    device: &'a Device,
    steps: Vec<Step>,
}

/// All steps, also those that have no meaning on this device.
pub(super) fn all(places: &Places<'_>, device: &Device) -> Vec<Step> {
    let mut night = Night {
        places,
        device,
        steps: Vec::new(),
    };
    night.machine();
    night.builds();
    night.what_ships();
    night.probes();
    night.suites();
    night.steps
}

impl Night<'_> {
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.places.root);
        command.envs(self.places.environment.iter().map(|(k, v)| (k, v)));
        command.env("CARGO_TARGET_DIR", self.places.target);
        // These variables describe this program, not the package that is built next.
        for variable in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"] {
            command.env_remove(variable);
        }
        // One GPU, the one that nvidia-smi was asked about.
        command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        command.env("CUDA_VISIBLE_DEVICES", self.places.gpu.to_string());
        command.env("NVFP4_GEMV_ARCHS", self.device.arch());
        for variable in [
            "NVFP4_GEMV_PATH",
            "NVFP4_GEMV_TUNED",
            "NVFP4_GEMV_NO_KERNELS",
        ] {
            command.env_remove(variable);
        }
        command
    }

    /// Adds a step, which needs one that passed.
    fn add(
        &mut self,
        name: &str,
        (minutes, needs, what): (u64, &str, &'static str),
        command: Command,
    ) -> &mut Step {
        self.steps.push(Step {
            name: name.into(),
            what,
            seconds: minutes * MINUTE,
            needs: (needs != "-").then(|| needs.into()).into_iter().collect(),
            on_gpu: false,
            proof: Proof::Status,
            action: Action::Run {
                command,
                output: None,
            },
        });
        self.steps.last_mut().expect("just added")
    }

    /// Adds a step of [`STEPS`].
    fn known(&mut self, name: &str, command: Command) -> &mut Step {
        let row = rows::<4>(STEPS).find(|row| row[0] == name);
        let [_, minutes, needs, what] = row.expect("a row of the table");
        let minutes = minutes.parse().expect("a number of minutes");
        self.add(name, (minutes, needs, what), command)
    }

    fn machine(&mut self) {
        let gpu = self.places.gpu.to_string();
        let smi = self.command("nvidia-smi", &["-i", &gpu, "-q"]);
        self.known("machine", smi);
        let toolchain = self.command(self.places.xtask, &["toolchain", "--json"]);
        self.known("toolchain", toolchain);
    }

    /// Cargo, with arguments in a line.
    fn cargo(&self, args: &str) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        self.command(cargo, &args.split(' ').collect::<Vec<_>>())
    }

    fn builds(&mut self) {
        for (name, args) in [
            ("build-program", "build --release --package nvfp4-gemv-cli"),
            ("build-simulator", "build --release --package ptx-sim"),
            ("build-tests", "test --release --no-run --test kernels"),
        ] {
            let command = self.cargo(args);
            self.known(name, command);
        }
        let probes = self.places.out.join("probes");
        let script = self.places.root.join("tools/ptx-sim/probes/assemble.sh");
        let mut assemble = self.command("sh", &[]);
        assemble.arg(script).arg(probes).arg(self.device.arch());
        self.known("build-probes", assemble);
    }

    /// Adds a step that has no meaning here.
    fn never(&mut self, name: &str, what: &'static str, why: String) {
        self.steps.push(Step {
            name: name.into(),
            what,
            seconds: 0,
            needs: Vec::new(),
            on_gpu: false,
            proof: Proof::Status,
            action: Action::Never(why),
        });
    }

    /// Whether the device has what needs a major compute capability; adds a step that says why where it has not.
    fn has(&mut self, needs: i32, name: &str, what: &'static str) -> bool {
        let (major, minor) = self.device.compute_capability;
        let has = needs == 0 || needs == major;
        if !has {
            let why = format!("for compute capability {needs}.x, and this is {major}.{minor}");
            self.never(name, what, why);
        }
        has
    }

    /// The program.
    fn program(&self, line: &str) -> Command {
        let program = self.places.target.join("release/nvfp4-gemv");
        self.command(program, &line.split(' ').collect::<Vec<_>>())
    }

    /// The kernel for this GPU's FP4 instruction, as the library names it.
    fn fp4_kernel(&self) -> Option<String> {
        let (major, _) = self.device.compute_capability;
        let kernel = PREDICTED.iter().find(|(_, needs)| *needs == major);
        kernel.map(|(kernel, _)| kernel.replace('_', "-"))
    }

    fn what_ships(&mut self) {
        let arch = self.device.arch();
        let info = self.program("info --json");
        let step = self.known("info", info);
        step.on_gpu = true;
        step.prints(super::INFO.into(), |_| Proof::Status);
        step.proof = Proof::Image {
            file: super::INFO.into(),
            arch,
        };
        let mut line = format!("verify --contest --soak {SOAK_MINUTES} --json");
        if let Some(kernel) = self.fp4_kernel() {
            line += &format!(" --kernel {kernel}");
        }
        let soak = self.program(&line);
        let step = self.known("soak", soak);
        step.on_gpu = true;
        step.prints(super::SOAK.into(), Proof::Soak);
    }

    /// Small problems under the sanitizer, with machine code that traps where tensor memory is not the CTA's own.
    fn checked(&mut self) {
        let (major, minor) = self.device.compute_capability;
        let what = "small problems under compute-sanitizer";
        let kernel = KERNELS.iter().find(|(_, needs)| *needs == major);
        let why = match kernel {
            None => format!("no kernel for an instruction of {major}.{minor}"),
            Some(_) => "there is no compute-sanitizer on PATH; CUDA's toolkit has it".into(),
        };
        let Some((kernel, _)) = kernel.filter(|_| self.places.sanitizer) else {
            return self.never("checked", what, why);
        };
        let target = self.places.target.join("checked");
        let with_checks = |mut command: Command| {
            command.env("CARGO_TARGET_DIR", &target);
            command.env("NVFP4_GEMV_LINEINFO", "1");
            if major == 10 {
                command.env("NVCC_APPEND_FLAGS", "-Xptxas -g-tmem-access-check");
            }
            command
        };
        let build = with_checks(self.cargo("test --release --no-run --test kernels"));
        self.known("build-checked", build);
        let trials = gpu_trials(kernel) + "::edge_cases --test-threads=1";
        let cargo = self.cargo(&trials);
        let options = "--tool memcheck --error-exitcode 9 --target-processes all";
        let mut check = self.command("compute-sanitizer", &options.split(' ').collect::<Vec<_>>());
        check.arg(cargo.get_program()).args(cargo.get_args());
        let step = self.known("checked", with_checks(check));
        step.on_gpu = true;
        step.proof = Proof::Trials;
    }

    fn probes(&mut self) {
        let (out, root) = (self.places.out, self.places.root);
        let simulator = self.places.target.join("release/ptx-sim");
        let mut replays = Vec::new();
        for (topic, needs, what) in topics() {
            // The last topic may wait in the hardware.
            if topic == LAST_TOPIC {
                self.checked();
            }
            let name = format!("probe-{topic}");
            if !self.has(needs, &name, what) {
                continue;
            }
            let mut record = self.command(out.join("probes/record"), &["--topic", topic, "--out"]);
            record.arg(out.join("recorded"));
            record.arg("--code").arg(out.join("probes"));
            let step = self.add(&name, (6, "build-probes", what), record);
            step.on_gpu = true;
            step.proof = Proof::Recording(format!("recorded/{topic}.safetensors"));
            let mut replay = self.command(&simulator, &["replay"]);
            replay.arg(out.join(format!("recorded/{topic}.safetensors")));
            replay
                .arg("--ptx")
                .arg(root.join("tools/ptx-sim/probes/ptx"));
            replay.arg("--json");
            let (major, _) = self.device.compute_capability;
            let rule = RULES.iter().find(|rule| (rule.0, rule.1) == (topic, major));
            replays.push((topic, name, replay, rule.map(|rule| rule.2)));
        }
        let ceilings = "bench --ceiling --shape 4096,4096 --shape 28672,8192 --json";
        let ceilings = self.program(ceilings);
        let step = self.known("ceilings", ceilings);
        step.on_gpu = true;
        step.prints(super::CEILINGS.into(), Proof::Ceilings);
        let mut clusters = self.command(out.join("probes/record"), &["--clusters", "--code"]);
        clusters.arg(out.join("probes"));
        let step = self.known("clusters", clusters);
        step.on_gpu = true;
        step.prints(super::CLUSTERS.into(), Proof::Clusters);
        let what = "the same in the simulator, and what differs";
        for (topic, probe, replay, rule) in replays {
            if let Some(rule) = rule {
                let mut by_rule = self.command(replay.get_program(), &[]);
                by_rule.args(replay.get_args()).args(["--sums", rule]);
                let what = "the same with sums as a published model has them";
                let name = format!("rule-{topic}");
                let step = self.add(&name, (20, "build-simulator", what), by_rule);
                step.needs.push(probe.clone());
                step.prints(format!("published/rule-{topic}.json"), Proof::Replay);
            }
            let name = format!("replay-{topic}");
            let step = self.add(&name, (20, "build-simulator", what), replay);
            step.needs.push(probe);
            step.prints(format!("replays/{topic}.json"), Proof::Replay);
        }
    }

    fn suites(&mut self) {
        let what = "the GPU tests of the kernel for this GPU's instruction";
        for (kernel, needs) in KERNELS {
            let name = format!("tests-{kernel}");
            if self.has(needs, &name, what) {
                let test = self.cargo(&gpu_trials(kernel));
                self.trials(&name, (30, "build-tests", what), test);
            }
        }
        let what = "the bits of whole problems, which a published model of sums predicts";
        for (kernel, needs) in PREDICTED {
            let name = format!("predicted-{kernel}");
            if self.has(needs, &name, what) {
                let mut test = self.cargo(&(gpu_trials(kernel) + "::predicted_bits"));
                let verdicts = format!("published/{name}.json");
                test.env("NVFP4_GEMV_PREDICTED", self.places.out.join(&verdicts));
                let step = self.add(&name, (30, "build-tests", what), test);
                step.on_gpu = true;
                step.proof = Proof::Predicted(verdicts);
            }
        }
        let test = self.cargo("test --release --test kernels -- gpu::");
        let step = self.known("tests-all", test);
        step.on_gpu = true;
        step.proof = Proof::Trials;
        let verify = self.program("verify --json");
        let step = self.known("verify", verify);
        step.on_gpu = true;
        step.prints(super::VERIFIED.into(), Proof::Verified);
        let mut tune = self.program("tune --suite --chained --seconds 1.5 --replace --out");
        tune.arg(self.places.out.join(super::TUNED));
        let step = self.known("tune", tune);
        step.on_gpu = true;
        step.proof = Proof::Lines(super::TUNED.into());
        let bench = self.program("bench --suite all --json");
        let step = self.known("bench", bench);
        step.on_gpu = true;
        step.prints(super::BENCH.into(), Proof::Bench);
    }

    /// Adds a step that runs trials on the GPU.
    fn trials(&mut self, name: &str, of: (u64, &str, &'static str), test: Command) {
        let step = self.add(name, of, test);
        step.on_gpu = true;
        step.proof = Proof::Trials;
    }
}

/// Arguments of cargo for the GPU trials of a kernel, whose names have its name as the library writes it.
fn gpu_trials(kernel: &str) -> String {
    let kernel = kernel.replace('_', "-");
    format!("test --release --test kernels -- {kernel}::gpu")
}

/// The directory into which cargo builds for this program's commands.
pub(super) fn target(release: &Path) -> PathBuf {
    release.parent().unwrap_or(Path::new("")).to_path_buf()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn steps(capability: (i32, i32)) -> Vec<Step> {
        let places = Places {
            root: Path::new("/root"),
            target: Path::new("/target"),
            out: Path::new("/out"),
            xtask: Path::new("/xtask"),
            gpu: 3,
            sanitizer: true,
            environment: Vec::new(),
        };
        all(&places, &Device::imagined(capability))
    }

    fn runs(steps: &[Step], name: &str) -> bool {
        let step = steps.iter().find(|step| step.name == name);
        matches!(step.expect(name).action, Action::Run { .. })
    }

    /// Trials are named by the library's names of kernels: with others no trial would run, and the step would pass.
    #[test]
    fn trials_of_a_kernel_have_its_name() {
        let names = nvfp4_gemv_names();
        for (kernel, _) in KERNELS.into_iter().chain(PREDICTED) {
            let trials = gpu_trials(kernel);
            let name = trials.rsplit_once(' ').unwrap().1.trim_end_matches("::gpu");
            assert!(names.contains(&format!("\"{name}\"")), "{name}");
        }
    }

    /// The library's list of kernels.
    fn nvfp4_gemv_names() -> String {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/kernel/mod.rs");
        std::fs::read_to_string(file).unwrap()
    }

    #[test]
    fn steps_are_those_that_the_device_has_instructions_for() {
        let tcgen05 = [
            "probe-tcgen05",
            "probe-tcgen05_pdl",
            "rule-tcgen05",
            "tests-tcgen05",
            "predicted-tcgen05",
        ];
        let mma_fp4 = [
            "probe-mma_fp4",
            "rule-mma_fp4",
            "tests-mma_fp4",
            "predicted-mma_fp4",
        ];
        for (capability, has) in [
            ((9, 0), &["probe-wgmma", "rule-wgmma", "tests-wgmma"][..]),
            ((10, 0), &tcgen05),
            ((10, 3), &tcgen05),
            ((12, 0), &mma_fp4),
            ((12, 1), &mma_fp4),
        ] {
            let steps = steps(capability);
            let particular = steps.iter().filter(|step| {
                let words = ["wgmma", "tcgen05", "mma_fp4"];
                !step.name.starts_with("replay")
                    && words.iter().any(|word| step.name.contains(word))
            });
            for step in particular {
                assert_eq!(
                    runs(&steps, &step.name),
                    has.contains(&&*step.name),
                    "{capability:?} {}",
                    step.name
                );
            }
            let always = "probe-tma replay-tma probe-sums_f16 tests-all verify tune bench";
            for name in always.split(' ') {
                assert!(runs(&steps, name), "{capability:?} {name}");
            }
        }
    }

    /// The code that ships, for so long, with the kernel that has never run; and what is missing is said.
    #[test]
    fn what_ships_is_asked() {
        for (capability, arch, kernel) in [
            ((10, 3), "100f", Some("tcgen05")),
            ((12, 1), "120f", Some("mma-fp4")),
            ((9, 0), "90a", None),
        ] {
            for step in &steps(capability) {
                let Action::Run { command, .. } = &step.action else {
                    continue;
                };
                let mut env = command.get_envs();
                let archs = env.find(|(name, _)| *name == "NVFP4_GEMV_ARCHS");
                assert_eq!(archs.unwrap().1.unwrap(), arch, "{}", step.name);
                if step.name == "soak" {
                    let line = step.line();
                    assert!(line.contains("--soak 20"), "{line}");
                    let asked = line.split_once("--kernel ").map(|(_, kernel)| kernel);
                    assert_eq!(asked, kernel);
                    assert!(step.seconds > 2 * 60 * u64::from(SOAK_MINUTES));
                }
            }
        }
        let places = Places {
            root: Path::new("/root"),
            target: Path::new("/target"),
            out: Path::new("/out"),
            xtask: Path::new("/xtask"),
            gpu: 0,
            sanitizer: false,
            environment: Vec::new(),
        };
        let without = all(&places, &Device::imagined((10, 0)));
        assert!(!runs(&without, "checked"));
    }

    /// A step that ends with 0 has to show what it did, unless there is nothing to show.
    #[test]
    fn every_step_on_the_gpu_has_a_proof() {
        for capability in [(9, 0), (10, 0), (12, 0)] {
            for step in steps(capability).iter().filter(|step| step.on_gpu) {
                assert!(!matches!(step.proof, Proof::Status), "{}", step.name);
            }
        }
    }

    /// Probes come before everything that shares a launch with them, and a step's needs before it.
    #[test]
    fn the_order_protects_the_night() {
        let steps = steps((10, 0));
        let mut before = BTreeSet::new();
        for step in &steps {
            assert!(
                step.needs.iter().all(|need| before.contains(need.as_str())),
                "{}",
                step.name
            );
            assert!(before.insert(step.name.as_str()), "{} twice", step.name);
        }
        let at = |name: &str| steps.iter().position(|step| step.name == name).unwrap();
        let order = "machine build-probes info soak probe-sums_f16 probe-tcgen05 checked probe-tcgen05_pdl ceilings \
            clusters replay-tcgen05 tests-tcgen05 tests-all verify tune bench";
        assert!(order.split_whitespace().map(at).is_sorted());
        for step in steps.iter().filter(|step| step.on_gpu) {
            let Action::Run { command, .. } = &step.action else {
                continue;
            };
            let visible = command
                .get_envs()
                .find(|(name, _)| *name == "CUDA_VISIBLE_DEVICES");
            assert_eq!(visible.unwrap().1.unwrap(), "3", "{}", step.name);
        }
    }
}
