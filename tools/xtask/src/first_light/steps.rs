//! The steps of a night, and their order: steps that could disturb most come last.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::device::Device;
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
    /// Keeps what it prints in a file below the night's folder.
    fn prints(&mut self, file: String) {
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
    /// Environment variables that a build needs to see.
    pub(super) environment: Vec<(String, std::ffi::OsString)>,
}

/// Topics of the recorder, each with the major compute capability that has its instructions; 0: all have them.
const TOPICS: [(&str, i32, &str); 12] = [
    (
        "sums_f16",
        0,
        "how the f16 instruction adds: a rehearsal of the probes of sums",
    ),
    (
        "mma_fp4",
        12,
        "block-scaled mma.sync: fragments, scale selectors, exact data, sums",
    ),
    (
        "tcgen05",
        10,
        "tensor memory, copies, loads, commits, one multiplication for each N, sums",
    ),
    ("tma", 0, "tensor copies: zero filling, and what it counts"),
    ("cvt", 0, "conversions"),
    ("arith", 0, "floating point"),
    ("integer", 0, "integers"),
    ("warp", 0, "warps"),
    ("matrix", 0, "mma.sync of other types"),
    ("wgmma", 9, "warpgroup matrices"),
    ("async", 0, "mbarriers, bulk copies, clusters"),
    (
        "tcgen05_pdl",
        10,
        "a dependent launch behind a kernel that allocates tensor memory late",
    ),
];

/// Whether the recorder knows a topic.
pub(super) fn is_a_topic(name: &str) -> bool {
    TOPICS.iter().any(|(topic, ..)| *topic == name)
}

const MINUTE: u64 = 60;

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

    fn add(&mut self, name: &str, what: &'static str, seconds: u64, command: Command) -> &mut Step {
        self.steps.push(Step {
            name: name.into(),
            what,
            seconds,
            needs: Vec::new(),
            on_gpu: false,
            action: Action::Run {
                command,
                output: None,
            },
        });
        self.steps.last_mut().expect("just added")
    }

    fn machine(&mut self) {
        let gpu = self.places.gpu.to_string();
        let smi = self.command("nvidia-smi", &["-i", &gpu, "-q"]);
        self.add("machine", "what the driver says about the GPU", MINUTE, smi);
        let toolchain = self.command(self.places.xtask, &["toolchain", "--json"]);
        self.add(
            "toolchain",
            "the CUDA compiler; installs one where there is none",
            30 * MINUTE,
            toolchain,
        );
    }

    fn builds(&mut self) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let builds: [(&str, &'static str, &[&str]); 3] = [
            (
                "build-program",
                "nvfp4-gemv with kernels for this GPU",
                &["build", "--release", "--package", "nvfp4-gemv-cli"],
            ),
            (
                "build-simulator",
                "ptx-sim, which gives the answers to compare with",
                &["build", "--release", "--package", "ptx-sim"],
            ),
            (
                "build-tests",
                "the tests of the kernels",
                &["test", "--release", "--no-run", "--test", "kernels"],
            ),
        ];
        for (name, what, args) in builds {
            let command = self.command(&cargo, args);
            let step = self.add(name, what, 60 * MINUTE, command);
            step.needs = vec!["toolchain".into()];
        }
        let probes = self.places.out.join("probes");
        let script = self.places.root.join("tools/ptx-sim/probes/assemble.sh");
        let mut assemble = self.command("sh", &[]);
        assemble.arg(script).arg(probes).arg(self.device.arch());
        let step = self.add(
            "build-probes",
            "the recorder, and the probes' machine code",
            10 * MINUTE,
            assemble,
        );
        step.needs = vec!["toolchain".into()];
    }

    fn probes(&mut self) {
        let (out, target) = (self.places.out, self.places.target);
        let (recorder, simulator) = (out.join("probes/record"), target.join("release/ptx-sim"));
        let (major, minor) = self.device.compute_capability;
        for (topic, needs, what) in TOPICS {
            let name = format!("probe-{topic}");
            if needs != 0 && needs != major {
                let why = format!("for compute capability {needs}.x, and this is {major}.{minor}");
                self.never(&name, what, why);
                continue;
            }
            let mut record = self.command(&recorder, &["--topic", topic, "--out"]);
            record
                .arg(out.join("recorded"))
                .arg("--code")
                .arg(out.join("probes"));
            let step = self.add(&name, what, 6 * MINUTE, record);
            step.on_gpu = true;
            step.needs = vec!["build-probes".into()];
        }
        for (topic, needs, _) in TOPICS {
            if needs != 0 && needs != major {
                continue;
            }
            let mut replay = self.command(&simulator, &["replay"]);
            replay.arg(out.join(format!("recorded/{topic}.safetensors")));
            replay
                .arg("--ptx")
                .arg(self.places.root.join("tools/ptx-sim/probes/ptx"));
            replay.arg("--json");
            let step = self.add(
                &format!("replay-{topic}"),
                "the same in the simulator, and what differs",
                20 * MINUTE,
                replay,
            );
            step.needs = vec!["build-simulator".into(), format!("probe-{topic}")];
            step.prints(format!("replays/{topic}.json"));
        }
    }

    fn never(&mut self, name: &str, what: &'static str, why: String) {
        self.steps.push(Step {
            name: name.into(),
            what,
            seconds: 0,
            needs: Vec::new(),
            on_gpu: false,
            action: Action::Never(why),
        });
    }

    fn suites(&mut self) {
        let program = self.places.target.join("release/nvfp4-gemv");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let info = self.command(&program, &["info"]);
        self.suite(
            "info",
            "what the program can run here",
            MINUTE,
            info,
            "build-program",
            None,
        );
        let kernels = [("tcgen05", 10), ("mma_fp4", 12), ("wgmma", 9)];
        for (kernel, needs) in kernels {
            let (name, what) = (
                format!("tests-{kernel}"),
                "the GPU tests of the kernel for this GPU's instruction",
            );
            let (major, minor) = self.device.compute_capability;
            if needs != major {
                let why = format!("for compute capability {needs}.x, and this is {major}.{minor}");
                self.never(&name, what, why);
                continue;
            }
            let filter = format!("{kernel}::gpu");
            let test = self.command(
                &cargo,
                &["test", "--release", "--test", "kernels", "--", &filter],
            );
            self.suite(&name, what, 30 * MINUTE, test, "build-tests", None);
        }
        let test = self.command(
            &cargo,
            &["test", "--release", "--test", "kernels", "--", "gpu::"],
        );
        self.suite(
            "tests-all",
            "the GPU tests of all kernels",
            60 * MINUTE,
            test,
            "build-tests",
            None,
        );
        let verify = self.command(&program, &["verify"]);
        self.suite(
            "verify",
            "problems with known answers, by every kernel",
            60 * MINUTE,
            verify,
            "build-program",
            None,
        );
        let mut tune = self.command(
            &program,
            &[
                "tune",
                "--suite",
                "--chained",
                "--seconds",
                "1.5",
                "--replace",
                "--out",
            ],
        );
        tune.arg(self.places.out.join(super::TUNED));
        self.suite(
            "tune",
            "the fastest config of each problem: a built-in table",
            180 * MINUTE,
            tune,
            "build-program",
            None,
        );
        let bench = self.command(&program, &["bench", "--suite", "all", "--json"]);
        self.suite(
            "bench",
            "every path on every shape",
            90 * MINUTE,
            bench,
            "build-program",
            Some(super::BENCH),
        );
    }

    fn suite(
        &mut self,
        name: &str,
        what: &'static str,
        seconds: u64,
        command: Command,
        needs: &str,
        to: Option<&'static str>,
    ) {
        let step = self.add(name, what, seconds, command);
        step.on_gpu = true;
        step.needs = vec![needs.into()];
        if let Some(file) = to {
            step.prints(file.into());
        }
    }
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
            environment: Vec::new(),
        };
        all(&places, &Device::imagined(capability))
    }

    fn runs(steps: &[Step], name: &str) -> bool {
        let step = steps.iter().find(|step| step.name == name);
        matches!(step.expect(name).action, Action::Run { .. })
    }

    #[test]
    fn steps_are_those_that_the_device_has_instructions_for() {
        for (capability, has) in [
            ((9, 0), ["probe-wgmma", "tests-wgmma"].as_slice()),
            (
                (10, 0),
                &["probe-tcgen05", "probe-tcgen05_pdl", "tests-tcgen05"],
            ),
            (
                (10, 3),
                &["probe-tcgen05", "probe-tcgen05_pdl", "tests-tcgen05"],
            ),
            ((12, 0), &["probe-mma_fp4", "tests-mma_fp4"]),
            ((12, 1), &["probe-mma_fp4", "tests-mma_fp4"]),
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
            for name in [
                "probe-tma",
                "replay-tma",
                "probe-sums_f16",
                "tests-all",
                "verify",
                "tune",
                "bench",
            ] {
                assert!(runs(&steps, name), "{capability:?} {name}");
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
        let order = [
            "machine",
            "build-probes",
            "probe-tcgen05",
            "probe-tcgen05_pdl",
            "tests-tcgen05",
            "tests-all",
            "verify",
            "tune",
            "bench",
        ];
        assert!(order.map(at).is_sorted());
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
