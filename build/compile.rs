//! Runs nvcc on every translation unit of `csrc/launch`, side by side, and only on what changed.
//!
//! `cc` would compile CUDA with relocatable device code, which costs a device link and inlining
//! across files; so nvcc is run here, and `cc` only archives the objects.

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::SystemTime;

use crate::arch;
use crate::nvcc::Nvcc;

/// Compiles `sources` for `archs` and returns the objects.
pub(crate) fn compile(
    nvcc: &Nvcc,
    archs: &[String],
    sources: &[PathBuf],
    objects: &Path,
) -> Result<Vec<PathBuf>, String> {
    fs::create_dir_all(objects).map_err(|e| format!("{}: {e}", objects.display()))?;
    let jobs: Vec<Job> = sources
        .iter()
        .map(|source| Job::new(nvcc, archs, source, objects))
        .collect();
    let queue: Mutex<VecDeque<&Job>> = Mutex::new(jobs.iter().filter(|j| !j.fresh()).collect());
    let errors = Mutex::new(Vec::new());
    let workers = env::var("NUM_JOBS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1usize);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                // The lock is released before the job runs.
                while let Some(job) = { queue.lock().unwrap().pop_front() } {
                    if let Err(error) = job.run() {
                        errors.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().unwrap();
    if errors.is_empty() {
        Ok(jobs.into_iter().map(|job| job.object).collect())
    } else {
        Err(errors.join("\n"))
    }
}

struct Job {
    object: PathBuf,
    /// nvcc's list of the headers that were read, in make's syntax.
    dependencies: PathBuf,
    /// The command line of the last success; a different one makes the object stale.
    stamp: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    /// Program, version and arguments.
    fingerprint: String,
}

/// Makes kernels that compute-sanitizer's racecheck can follow: docs/notes/testing.md.
pub(crate) const RACECHECK: &str = "NVFP4_GEMV_RACECHECK";

impl Job {
    fn new(nvcc: &Nvcc, archs: &[String], source: &Path, objects: &Path) -> Self {
        let object = objects
            .join(source.file_stem().unwrap_or_default())
            .with_extension("o");
        let dependencies = object.with_extension("d");
        // No libstdc++: no exceptions, no type information, no guarded statics. The only statics
        // are in the stubs behind `<<<>>>`, which the launchers never call: they use
        // cudaLaunchKernel.
        let mut arguments: Vec<String> = [
            "-std=c++17",
            "-O3",
            "-lineinfo",
            "-Xcompiler",
            "-fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall",
            "-cudart=static",
            "-c",
        ]
        .map(String::from)
        .into();
        let unit = source.file_stem().unwrap_or_default().to_string_lossy();
        let mut compiled = arch::of_unit(&unit, archs);
        if compiled.is_empty() {
            // The entry points are there, and say that the kernels are not.
            arguments.push("-DNVFP4_GEMV_NO_KERNELS".into());
            compiled = archs.iter().take(1).map(String::as_str).collect();
        }
        for arch in compiled {
            arguments.push(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
        }
        if env::var_os(RACECHECK).is_some() {
            arguments.push(format!("-D{RACECHECK}"));
        }
        arguments.push("-MD".into());
        arguments.push("-MF".into());
        arguments.push(dependencies.display().to_string());
        arguments.push(source.display().to_string());
        arguments.push("-o".into());
        arguments.push(object.display().to_string());
        Self {
            stamp: object.with_extension("stamp"),
            object,
            dependencies,
            program: nvcc.path.clone(),
            fingerprint: format!(
                "{} {} {}",
                nvcc.path.display(),
                nvcc.version,
                arguments.join(" ")
            ),
            arguments,
        }
    }

    /// The object was made by this command from files that have not changed since.
    fn fresh(&self) -> bool {
        let Some(made) = modified(&self.object) else {
            return false;
        };
        let Ok(dependencies) = fs::read_to_string(&self.dependencies) else {
            return false;
        };
        fs::read_to_string(&self.stamp).is_ok_and(|stamp| stamp == self.fingerprint)
            && make_dependencies(&dependencies)
                .all(|file| modified(Path::new(&file)).is_some_and(|time| time <= made))
    }

    fn run(&self) -> Result<(), String> {
        let output = Command::new(&self.program)
            .args(&self.arguments)
            .output()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        let messages = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("{}\n{messages}", self.fingerprint));
        }
        for line in messages.lines().filter(|line| line.contains("warning")) {
            println!("cargo::warning={line}");
        }
        fs::write(&self.stamp, &self.fingerprint)
            .map_err(|error| format!("{}: {error}", self.stamp.display()))
    }
}

fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|meta| meta.modified()).ok()
}

/// The files on the right-hand side of a rule of make.
fn make_dependencies(rule: &str) -> impl Iterator<Item = String> + '_ {
    let files = rule.split_once(": ").map_or("", |(_, files)| files);
    files
        .split(['\n', ' '])
        .map(|file| file.trim_end_matches('\\').trim())
        .filter(|file| !file.is_empty())
        .map(String::from)
}
