//! Runs nvcc on every unit of `csrc` and on its host code, side by side, and only on units that changed.
//!
//! `cc` would compile CUDA with relocatable device code, which costs a device link and inlining
//! across files; so nvcc is run here, and `cc` only archives the objects.

use std::collections::VecDeque;
use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::SystemTime;

use nvfp4_gemv_targets::nvcc::Nvcc;
use nvfp4_gemv_targets::units::{UNITS, Unit};

/// Compiles what `csrc` has for `archs`, and returns the objects. They are in a folder of `all`: one for what is
/// compiled by the same commands from the same place. Until the file that comes with them is dropped, no other build
/// replaces them.
pub(crate) fn compile(
    nvcc: &Nvcc,
    archs: &[String],
    csrc: &Path,
    all: &Path,
) -> Result<(Vec<PathBuf>, File), String> {
    let mut same = DefaultHasher::new();
    let changes = [RACECHECK, LINEINFO].map(|name| env::var_os(name).is_some());
    (&nvcc.path, nvcc.version.to_string(), archs, csrc, changes).hash(&mut same);
    let objects = &all.join(format!("{:016x}", same.finish()));
    let failed = |e: std::io::Error| format!("{}: {e}", objects.display());
    fs::create_dir_all(objects).map_err(failed)?;
    // Of builds at once, one compiles, and the others wait for its objects.
    let lock = File::create(objects.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut jobs = Vec::new();
    let mut compiled = String::new();
    for unit in UNITS {
        let archs: Vec<&str> = archs
            .iter()
            .map(String::as_str)
            .filter(|arch| unit.exists_for(arch))
            .collect();
        if !archs.is_empty() {
            compiled.push_str(&format!("UNIT({})\n", unit.name));
            jobs.push(Job::unit(nvcc, &archs, csrc, unit, objects));
        }
    }
    write_if_new(&objects.join(COMPILED_UNITS), &compiled)?;
    jobs.push(Job::host(nvcc, &archs[0], csrc, objects));
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
    if !errors.is_empty() {
        return Err(errors.join("\n"));
    }
    remove_others(objects, &jobs)?;
    Ok((jobs.into_iter().map(|job| job.object).collect(), lock))
}

/// Removes what earlier builds left in the folder of units that are not compiled any more.
fn remove_others(objects: &Path, jobs: &[Job]) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", objects.display());
    for entry in fs::read_dir(objects).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let of_a_unit = ["o", "d", "stamp"]
            .iter()
            .any(|end| file.extension() == Some(end.as_ref()));
        let is_used = |job: &Job| job.object.file_stem() == file.file_stem();
        if of_a_unit && !jobs.iter().any(is_used) {
            fs::remove_file(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    Ok(())
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

/// Says in the machine code which line of the source it is, for profilers and compute-sanitizer.
pub(crate) const LINEINFO: &str = "NVFP4_GEMV_LINEINFO";

/// File that host.cu includes: a list of the units that this build has.
const COMPILED_UNITS: &str = "compiled_units.inc";

impl Job {
    /// The kernels of a unit.
    fn unit(nvcc: &Nvcc, archs: &[&str], csrc: &Path, unit: &Unit, objects: &Path) -> Self {
        let mut arguments: Vec<String> = unit
            .part
            .map(|part| format!("-D{part}"))
            .into_iter()
            .collect();
        if env::var_os(RACECHECK).is_some() {
            arguments.push(format!("-D{RACECHECK}"));
        }
        if env::var_os(LINEINFO).is_some() {
            arguments.push("-lineinfo".into());
        }
        let source = csrc.join("kernels").join(unit.source).with_extension("cuh");
        Self::new(nvcc, archs, arguments, &source, &objects.join(unit.name))
    }

    /// Host code, which has no kernels.
    fn host(nvcc: &Nvcc, arch: &str, csrc: &Path, objects: &Path) -> Self {
        let arguments = vec![format!("-I{}", objects.display())];
        let source = csrc.join("host.cu");
        Self::new(nvcc, &[arch], arguments, &source, &objects.join("host"))
    }

    fn new(
        nvcc: &Nvcc,
        archs: &[&str],
        mut arguments: Vec<String>,
        source: &Path,
        object: &Path,
    ) -> Self {
        let object = object.with_extension("o");
        let dependencies = object.with_extension("d");
        // nvcc's headers include libstdc++'s special functions, which take a tenth of the compile time where
        // their guard is not defined.
        // No libstdc++: no exceptions, no type information, no guarded statics. The only statics
        // are in the stubs behind `<<<>>>`, which nobody calls: the driver launches kernels.
        arguments.extend(
            [
                "-std=c++17",
                "-O3",
                "-D_GLIBCXX_BITS_SPECFUN_H",
                "--compress-mode=size",
                "-Xcompiler",
                "-fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall",
                "-cudart=static",
                "-c",
            ]
            .map(String::from),
        );
        for arch in archs {
            arguments.push(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
        }
        for (flag, value) in [
            ("-MF", dependencies.as_path()),
            ("-x", Path::new("cu")),
            ("-o", object.as_path()),
        ] {
            arguments.extend([flag.into(), value.display().to_string()]);
        }
        arguments.extend(["-MD".into(), source.display().to_string()]);
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
        // ptxas says as information only that it made warpgroup matrix instructions wait for each other.
        let worth_showing = |line: &&str| {
            ["warning", "Performance Loss"]
                .iter()
                .any(|what| line.contains(what))
        };
        for line in messages.lines().filter(worth_showing) {
            println!("cargo::warning={line}");
        }
        fs::write(&self.stamp, &self.fingerprint)
            .map_err(|error| format!("{}: {error}", self.stamp.display()))
    }
}

/// Leaves a file that has these contents as old as it is.
fn write_if_new(file: &Path, contents: &str) -> Result<(), String> {
    if fs::read_to_string(file).is_ok_and(|old| old == contents) {
        return Ok(());
    }
    fs::write(file, contents).map_err(|error| format!("{}: {error}", file.display()))
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
