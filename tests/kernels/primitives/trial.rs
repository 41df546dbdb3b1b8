//! One small kernel, run under many schedules.

use std::sync::Arc;

use ptx_sim::{Buffer, Launch, Options, Program, Sim};

use crate::support::ptx::{self, Entry};
pub(crate) use crate::support::ptx::{ALL, BLACKWELL, HOPPER};
use crate::support::schedules::schedules;
use crate::support::sim;

/// The PTX of a file of this folder.
#[derive(Clone)]
pub(crate) struct Kernels {
    pub(crate) ptx: Arc<String>,
    arch: &'static str,
}

impl Kernels {
    /// Compiles `<file>.cu`, once for all tests.
    pub(crate) fn new(file: &str, arch: &'static str) -> Self {
        Self {
            ptx: ptx::file(&format!("tests/kernels/primitives/{file}.cu"), arch),
            arch,
        }
    }

    /// A kernel with empty memory.
    pub(crate) fn trial(
        &self,
        kernel: &str,
        grid: impl Into<[u32; 3]>,
        block: impl Into<[u32; 3]>,
    ) -> Trial {
        Trial {
            program: Entry::new(&self.ptx, kernel).program,
            sim: sim::empty(self.arch),
            launch: Launch::new(kernel, grid, block),
            inputs: Vec::new(),
            output: None,
            seeds: 3,
        }
    }
}

/// A kernel with its memory and parameters.
pub(crate) struct Trial {
    program: Program,
    pub(crate) sim: Sim,
    pub(crate) launch: Launch,
    inputs: Vec<Buffer>,
    output: Option<Buffer>,
    /// Seeds for each policy and timing.
    pub(crate) seeds: u64,
}

/// A run's output, or what the simulator said.
pub(crate) type Outcome = Result<Vec<u8>, String>;

impl Trial {
    /// Adds a parameter: the address of this data.
    #[must_use]
    pub(crate) fn input(mut self, data: &[u8]) -> Self {
        let buffer = self.sim.upload("input", data).unwrap();
        self.launch = self.launch.buffer(buffer);
        self.inputs.push(buffer);
        self
    }

    /// Changes what an input holds.
    pub(crate) fn refill(&mut self, input: usize, data: &[u8]) {
        self.sim.write(self.inputs[input], 0, data).unwrap();
    }

    /// Adds a parameter: where the output goes.
    #[must_use]
    pub(crate) fn output(mut self, bytes: usize) -> Self {
        let buffer = self.sim.alloc("output", bytes).unwrap();
        self.launch = self.launch.buffer(buffer);
        self.output = Some(buffer);
        self
    }

    /// Adds 32-bit parameters.
    #[must_use]
    pub(crate) fn words(mut self, words: &[u32]) -> Self {
        for &word in words {
            self.launch = self.launch.u32(word);
        }
        self
    }

    /// Changes a 32-bit parameter, counted from the last one.
    pub(crate) fn set_from_last(&mut self, from_last: usize, value: u32) -> &mut Self {
        let at = self.launch.params.len() - 1 - from_last;
        assert_eq!(self.launch.params[at].len(), 4);
        self.launch.params[at] = value.to_le_bytes().to_vec();
        self
    }

    /// Makes the kernel wrong, or right again.
    pub(crate) fn wrong(&mut self, variant: u32) -> &mut Self {
        self.set_from_last(0, variant)
    }

    fn run(&mut self, options: &Options) -> Outcome {
        let output = self.output.expect("the kernel has an output");
        self.sim.poison(output);
        // Deadlocks are expected here, and nothing waits for long.
        let options = Options {
            timeouts: 50,
            budget: 20_000_000,
            ..options.clone()
        };
        self.sim
            .run_program(&self.program, &self.launch, &options, None)
            .map_err(|error| error.to_string())?;
        if !self.sim.fully_written(output) {
            return Err("an output was not written".into());
        }
        Ok(self.sim.download(output).to_vec())
    }

    /// The outcome of the plainest schedule.
    pub(crate) fn once(&mut self) -> Outcome {
        self.run(&Options::default())
    }

    /// Every schedule's outcome.
    pub(crate) fn outcomes(&mut self) -> Vec<Outcome> {
        let seeds = self.seeds;
        (0..seeds)
            .flat_map(schedules)
            .map(|options| self.run(&options))
            .collect()
    }

    /// Panics unless all schedules give this output.
    pub(crate) fn gives(&mut self, want: &[u8]) {
        for (i, outcome) in self.outcomes().into_iter().enumerate() {
            let got = outcome.unwrap_or_else(|e| panic!("{}, run {i}: {e}", self.program.kernel));
            let at = got.iter().zip(want).position(|(g, w)| g != w);
            assert!(
                got == want,
                "{}, run {i}, byte {at:?}: {:x?}",
                self.program.kernel,
                at.map(|at| (got[at], want[at]))
            );
        }
    }

    /// Panics unless some schedule ends with a message that contains the first of these, and all
    /// that end with a message with one of them.
    pub(crate) fn is_refused(&mut self, whys: &[&str]) {
        let kernel = self.program.kernel.clone();
        let errors: Vec<String> = self
            .outcomes()
            .into_iter()
            .filter_map(Result::err)
            .collect();
        assert!(
            errors.iter().any(|error| error.contains(whys[0])),
            "{kernel}: nothing said `{}`: {:?}",
            whys[0],
            errors.first()
        );
        for error in errors {
            assert!(
                whys.iter().any(|why| error.contains(why)),
                "{kernel}: none of {whys:?}: {error}"
            );
        }
    }

    /// Panics unless all schedules end, and with another output.
    pub(crate) fn differs(&mut self, right: &[u8]) {
        for outcome in self.outcomes() {
            let got = outcome.unwrap_or_else(|e| panic!("{}: {e}", self.program.kernel));
            assert_ne!(got, right, "{}", self.program.kernel);
        }
    }
}

/// 16-bit numbers as memory holds them.
pub(crate) fn bytes16(values: impl IntoIterator<Item = u16>) -> Vec<u8> {
    values.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// 32-bit numbers as memory holds them.
pub(crate) fn bytes32(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Bytes without a pattern.
pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| rng.u8(..)).collect()
}
