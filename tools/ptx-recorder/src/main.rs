//! `ptx-record`: starts a CUDA program with the recorder in place of the CUDA runtime and driver.

mod child;
mod stub;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use ptx_recorder::device::LIMITS;
use ptx_recorder::fatbin::architecture;
use ptx_recorder::settings::{Settings, VARIABLE};
use ptx_recorder::{say, specs};

const LIBRARY: &str = "libptx_recorder.so";
const RUNTIME: &str = "libcudart.so.13";
const DRIVER: &str = "libcuda.so.1";

/// Runs a CUDA program without a GPU: its launches are executed in ptx-sim, so that the program's own check decides.
///
/// The program must be linked with `nvcc -cudart shared` (CUDA 13) and contain PTX, as with `-gencode
/// arch=compute_100a,code=compute_100a`. The exit status is the program's.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    /// The library to start the program with; the one beside this program if this is not given.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, last = true)]
    program: Vec<OsString>,
}

impl Cli {
    fn settings(&self) -> Result<Settings, String> {
        let mut settings = self.settings.clone();
        let specs = settings.specs.as_deref().map(std::path::absolute);
        settings.specs = specs.transpose().map_err(|e| format!("--specs: {e}"))?;
        settings.options()?;
        if settings.memory != Settings::default().memory {
            ptx_sim::check_memory(settings.memory_bytes()).map_err(|e| format!("--memory: {e}"))?;
        }
        if let Some(device) = &settings.device
            && !LIMITS
                .iter()
                .any(|l| l.architecture == architecture(device))
        {
            let known: Vec<_> = LIMITS.iter().map(|l| l.architecture.to_string()).collect();
            let known = known.join(", sm_");
            return Err(format!("--device {device}: none of sm_{known}"));
        }
        if let Some(dir) = settings.specs.as_deref().filter(|dir| specs::are_in(dir)) {
            let dir = dir.display();
            return Err(format!(
                "--specs {dir}: it has specifications of another run"
            ));
        }
        Ok(settings)
    }

    /// Cargo puts the library beside the program, and for tests only among the dependencies: the newer one counts.
    fn library(&self) -> Result<PathBuf, String> {
        if let Some(given) = &self.library {
            let path = given.canonicalize();
            return path.map_err(|e| format!("{}: {e}", given.display()));
        }
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        let here = own.parent().unwrap_or(Path::new("."));
        let places = [here.join(LIBRARY), here.join("deps").join(LIBRARY)];
        let modified = |p: &PathBuf| p.metadata().and_then(|m| m.modified()).ok();
        let there = places.into_iter().filter(|p| p.is_file());
        there.max_by_key(modified).ok_or_else(|| {
            format!(
                "there is no {LIBRARY} in {}: `cargo build -p ptx-recorder` makes it, --library names another",
                here.display()
            )
        })
    }
}

/// New value of a variable: `first`, and behind it the value that the variable has now.
fn before(name: &str, first: &Path) -> OsString {
    let mut value = first.as_os_str().to_owned();
    if let Some(old) = std::env::var_os(name).filter(|v| !v.is_empty()) {
        value.push(":");
        value.push(old);
    }
    value
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}

/// Programs beyond this are started without advice.
const MOST_PROGRAM_BYTES: u64 = 4 << 30;

/// Says what keeps a program from being recorded, where its file shows it.
fn advise(program: &Path) {
    // A path that is no regular file may make a reader wait, and starts no program.
    let Ok(bytes) = ptx_sim::files::read(program, MOST_PROGRAM_BYTES) else {
        return;
    };
    let asks = contains(&bytes, RUNTIME) || contains(&bytes, LIBRARY);
    if contains(&bytes, ".nv_fatbin") && !asks {
        say(&format!(
            "{} has kernels and does not ask for {RUNTIME}: link it with `nvcc -cudart shared` of CUDA 13",
            program.display()
        ));
    }
}

fn start(cli: &Cli) -> Result<ExitCode, String> {
    let settings = cli.settings()?;
    let library = cli.library()?;
    let io = |e: std::io::Error| e.to_string();
    // From here on signals end the program, and its end lets the folder be removed.
    let signals = child::Ending::new().map_err(|e| format!("signals: {e}"))?;
    let directory = tempfile::Builder::new().prefix("ptx-record-").tempdir();
    let directory = directory.map_err(io)?;
    let here = directory.path();
    std::fs::write(here.join(RUNTIME), stub::library(RUNTIME, LIBRARY)).map_err(io)?;
    for name in [DRIVER, "libcuda.so", LIBRARY] {
        std::os::unix::fs::symlink(&library, here.join(name)).map_err(io)?;
    }
    let Some((program, arguments)) = cli.program.split_first() else {
        return Err("there is no program".into());
    };
    advise(Path::new(program));
    // The link has a name of ours: LD_PRELOAD ends at spaces and colons, which the library's may have.
    let link = here.join(LIBRARY);
    if link.to_string_lossy().contains([' ', ':', ';']) {
        return Err(format!(
            "TMPDIR: {} has a character that ends a name in LD_PRELOAD",
            here.display()
        ));
    }
    let preload = before("LD_PRELOAD", &link);
    let path = before("LD_LIBRARY_PATH", here);
    if !settings.quiet {
        say(&format!(
            "LD_PRELOAD={} LD_LIBRARY_PATH={} {}",
            preload.to_string_lossy(),
            path.to_string_lossy(),
            cli.program.join(" ".as_ref()).to_string_lossy()
        ));
    }
    let json = serde_json::to_string(&settings).map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env("LD_LIBRARY_PATH", path)
        .env(VARIABLE, json);
    let status = signals.run(&mut command);
    let status = status.map_err(|e| format!("{}: {e}", Path::new(program).display()))?;
    if let Some(signal) = status.signal() {
        say(&format!("the program ended with signal {signal}"));
        return Ok(ExitCode::from(128u8.wrapping_add(signal as u8)));
    }
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start(&cli).unwrap_or_else(|e| {
        say(&format!("error: {e}"));
        ExitCode::from(2)
    })
}
