//! CUDA programs, compiled by nvcc and started with the recorder: their own checks decide. Each is also compiled with a
//! planted fault, which must show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Completion, Trial};
use nvfp4_gemv_targets::nvcc;
use ptx_sim::launch::{LaunchSpec, Prepared};
use ptx_sim::{Module, Options};

/// The compiler of the programs, or the reason why there is none.
fn compiler() -> &'static Result<nvcc::Nvcc, String> {
    static FOUND: OnceLock<Result<nvcc::Nvcc, String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = nvcc::find().map_err(|_| "no nvcc of CUDA 13".to_string())?;
        match found.version >= nvcc::Version(13, 0) {
            true => Ok(found),
            false => {
                let version = found.version;
                Err(format!("nvcc {version}: the recorder is for CUDA 13"))
            }
        }
    })
}

fn recorder() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ptx-record"))
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// The recorder's library.
fn library() -> PathBuf {
    let beside = recorder().parent().unwrap();
    let places = ["", "deps"].map(|d| beside.join(d).join("libptx_recorder.so"));
    let found = places.into_iter().find(|l| l.is_file());
    found.expect("the recorder's library")
}

/// A folder with a `libcudart.so` to link with: the toolkit's, or where it has none the recorder.
fn libraries(root: &Path, dir: &Path) {
    let toolkit = ["lib64", "lib", "targets/x86_64-linux/lib"];
    let toolkit = toolkit.map(|l| root.join(l).join("libcudart.so.13"));
    let found = toolkit.into_iter().find(|l| l.is_file());
    std::os::unix::fs::symlink(found.unwrap_or_else(library), dir.join("libcudart.so")).unwrap();
}

/// Compiles a program; the folder is the caller's.
fn compile(name: &str, flags: &[&str], dir: &Path) -> PathBuf {
    let nvcc = compiler().as_ref().unwrap();
    let program = dir.join(name);
    libraries(&nvcc.root(), dir);
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ptx-sim/conformance/kernels");
    let mut command = Command::new(&nvcc.path);
    command
        .args(["-std=c++17", "-lineinfo", "-cudart", "shared"])
        .args(["-gencode", "arch=compute_100a,code=compute_100a"])
        .args(flags)
        .args([Path::new("-I"), &kernels, Path::new("-L"), dir])
        .args([Path::new("-o"), &program])
        .arg(sources().join(name).with_extension("cu"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "nvcc: {}", texts(&output).1);
    program
}

fn record(program: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(recorder());
    let command = command.args(options).arg("--").arg(program);
    command.output().unwrap()
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The program must say that it is right, and the loader nothing.
fn right(output: &Output) -> String {
    let (out, err) = texts(output);
    let is_right = output.status.success() && out.contains("right");
    assert!(is_right, "{out}{err}");
    assert!(!err.contains("no version information"), "{err}");
    err
}

/// Runs a program as it is, and with its fault, of which the recorder or the program must say this.
fn program(name: &'static str, shows: &'static str) -> Trial {
    trial(name, move || {
        let dir = tempfile::tempdir().unwrap();
        let err = right(&record(&compile(name, &[], dir.path()), &[]));
        assert!(err.contains("launch 1: "), "{err}");
        let dir = tempfile::tempdir().unwrap();
        let output = record(&compile(name, &["-DFAULT"], dir.path()), &[]);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{out}{err}");
        assert!(format!("{out}{err}").contains(shows), "{out}{err}");
    })
}

/// Runs a program as it is.
fn plain(name: &'static str) -> Trial {
    trial(name, move || {
        let dir = tempfile::tempdir().unwrap();
        right(&record(&compile(name, &[], dir.path()), &["--quiet"]));
    })
}

/// The table of functions that have several ABIs is the header's.
fn abis() {
    let root = compiler().as_ref().unwrap().root();
    let header = read(&root.join("include/cudaTypedefs.h"));
    let mut all: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for found in header.split("*PFN_").skip(1) {
        let Some((name, version)) = found.split(')').next().unwrap().rsplit_once("_v") else {
            continue;
        };
        // Variants for another default stream are no other ABI.
        if let Ok(version) = version.parse() {
            all.entry(name).or_default().insert(version);
        }
    }
    assert!(all.len() > 400);
    let several = all.into_iter().filter(|(_, versions)| versions.len() > 1);
    let of_header: BTreeMap<&str, Vec<u32>> = several
        .map(|(name, versions)| (name, versions.into_iter().collect()))
        .collect();
    let own: BTreeMap<_, _> = ptx_recorder::names::abis().collect();
    assert_eq!(own, of_header);
}

fn trial(name: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match compiler() {
        Err(why) => Ok(Completion::ignored_with(why)),
        Ok(_) => {
            run();
            Ok(Completion::Completed)
        }
    })
}

/// A trial that needs no nvcc.
fn anywhere(name: &str, run: fn()) -> Trial {
    Trial::test(name, move || {
        run();
        Ok(())
    })
}

/// nvcc compresses PTX in two ways, or not at all.
fn compression() {
    for mode in ["size", "speed", "none"] {
        let dir = tempfile::tempdir().unwrap();
        let program = compile("dependent", &["-compress-mode", mode], dir.path());
        right(&record(&program, &["--quiet"]));
    }
}

/// A program without PTX, and one with the runtime inside: the recorder says what to do.
fn advice() {
    let dir = tempfile::tempdir().unwrap();
    let machine_code = ["-gencode", "arch=compute_90a,code=sm_90a"];
    let nvcc = compiler().as_ref().unwrap();
    let source = sources().join("dependent.cu");
    let program = dir.path().join("machine_code");
    libraries(&nvcc.root(), dir.path());
    let build = |flags: &[&str]| {
        let mut command = Command::new(&nvcc.path);
        command.args(flags).args(machine_code).arg(&source);
        command.args([Path::new("-L"), dir.path(), Path::new("-o"), &program]);
        assert!(command.status().unwrap().success());
    };
    build(&["-cudart", "shared"]);
    let output = record(&program, &[]);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(err.contains("holds no PTX (machine code: sm_90)"), "{err}");
    assert!(err.contains("code=compute_100a"), "{err}");
    if nvcc.root().join("lib/libcudart_static.a").is_file() {
        build(&[]);
        let output = record(&program, &[]);
        assert!(!output.status.success());
        assert!(texts(&output).1.contains("-cudart shared"));
    }
}

fn execute(prepared: &mut Prepared) {
    let Prepared { sim, launch, .. } = prepared;
    sim.run(launch, &Options::default()).unwrap();
}

/// Launches that were written down give the same results when they are executed later. The first inputs of the next
/// launch are the simulator's results of this launch.
fn specifications() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("dependent", &[], dir.path());
    let specs = dir.path().join("specs");
    let text = specs.to_str().unwrap();
    right(&record(&program, &["--specs", text]));
    let spec = |n: u32| LaunchSpec::parse(&read(&specs.join(format!("launch-000{n}.json"))));
    let commands = read(&specs.join("commands.txt"));
    let lines: Vec<Vec<&str>> = commands.lines().map(|l| l.split(' ').collect()).collect();
    assert_eq!(lines.len(), 2, "{commands}");
    assert!(commands.contains(" --sms 148"), "{commands}");
    let (ptx, entry) = (lines[0][3], lines[1][7].trim_matches('\''));
    assert!(entry.contains("second"), "{commands}");
    let module = Module::parse(&read(&specs.join(ptx))).unwrap();
    let second = spec(2).unwrap();
    assert!(second.dependent && !spec(1).unwrap().dependent);
    let mut prepared = second.prepare(module.clone(), entry, &specs).unwrap();
    execute(&mut prepared);
    let out = prepared.sim.download(prepared.buffers["b1"]);
    let expected: Vec<u8> = (0..96i32).flat_map(|i| (3 * i + 1).to_le_bytes()).collect();
    assert_eq!(out, expected);
    // The first launch wrote what the second one finds.
    let first = lines[0][7].trim_matches('\'');
    let mut prepared = spec(1).unwrap().prepare(module, first, &specs).unwrap();
    let buffer = prepared.buffers["b0"];
    let is_written = prepared.sim.fully_written(buffer);
    assert!(!is_written, "nothing wrote it before");
    execute(&mut prepared);
    let again = second.prepare(prepared.sim.module().clone(), entry, &specs);
    let again = again.unwrap();
    let found = again.sim.download(again.buffers["b0"]);
    assert_eq!(prepared.sim.download(buffer), found);
    // Without execution, the program's own check fails, and both launches are there.
    let other = dir.path().join("other");
    let output = record(&program, &["--no-run", "--specs", other.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(other.join("launch-0002.json").is_file());
    // The specifications in the folder are another run's.
    let output = record(&program, &["--specs", text]);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{out}{err}");
    assert!(err.contains("specifications of another run") && out.is_empty());
    // A program that starts another program: both have a first launch. Limits of a run hold for commands, too.
    let both = dir.path().join("both");
    let twice = format!("{0} && {0}", program.display());
    let mut command = Command::new(recorder());
    command.arg("--specs").arg(&both);
    command.args(["--budget", "100000", "--sms", "2", "--", "sh", "-c", &twice]);
    right(&command.output().unwrap());
    let commands = read(&both.join("commands.txt"));
    for name in (1..=4).map(|n| format!("launch-000{n}.json")) {
        assert!(both.join(&name).is_file());
        assert!(commands.contains(&name), "{commands}");
    }
    assert_eq!(commands.matches(" --sms 2 --budget 100000").count(), 4);
}

/// A tensor map in a structure and one in a constant variable are in the specification, which runs.
fn tensor_maps_in_specifications() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("tensor_map", &[], dir.path());
    let specs = dir.path().join("specs");
    let options = ["--quiet", "--specs", specs.to_str().unwrap()];
    right(&record(&program, &options));
    let json = read(&specs.join("launch-0001.json"));
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let fields = value["params"][0]["struct"]["fields"].as_array().unwrap();
    let map = fields.iter().find(|f| f["offset"] == 128).unwrap();
    let dimensions = &map["value"]["tensor_map"]["dims"];
    assert_eq!(*dimensions, serde_json::json!([96, 64]), "{json}");
    let has_buffer = fields.iter().any(|f| f["value"]["buffer"] == "b1");
    assert!(has_buffer, "{json}");
    let commands = read(&specs.join("commands.txt"));
    let ptx = commands.split(' ').nth(3).unwrap();
    let module = Module::parse(&read(&specs.join(ptx))).unwrap();
    let kernel = module.entries().next().unwrap().to_string();
    let spec = LaunchSpec::parse(&json).unwrap();
    let mut prepared = spec.prepare(module, &kernel, &specs).unwrap();
    execute(&mut prepared);
    let sums = prepared.sim.download(prepared.buffers["b1"]);
    let first = f32::from_le_bytes(sums[..4].try_into().unwrap());
    let expected: u32 = (16..24).map(|row| 2 * (row * 96 + 64)).sum();
    assert_eq!(first, expected as f32);
}

/// Wrong options are refused before the program starts; its exit status is `ptx-record`'s.
fn options() {
    let run = |arguments: &[&str]| {
        let output = Command::new(recorder()).args(arguments).output().unwrap();
        (output.status.code(), texts(&output).1)
    };
    let lenient = "`lenient` is none of strict, hardware";
    for (option, value, says) in [
        ("--profile", "lenient", lenient),
        ("--timing", "soon", "`soon` is not a timing"),
        ("--policy", "unfair", "`unfair` is not a policy"),
        ("--hazards", "some", "`some` is none of error, warn, off"),
        ("--allow", "everything", "everything"),
        ("--device", "hopper", "none of sm_80, "),
        ("--device", "sm_99", "none of sm_80, "),
        ("--library", "/nowhere/lib.so", "/nowhere/lib.so"),
        ("--memory", "18446744073709551615", "where this machine has"),
    ] {
        let (code, err) = run(&[option, value, "--", "sh", "-c", "echo started >&2"]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(says) && !err.contains("started"), "{err}");
    }
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).0, Some(7));
    let (code, err) = run(&["--", "/nowhere/program"]);
    assert!(code == Some(2) && err.contains("/nowhere/program"), "{err}");
    // The recorder waits for nobody: this is a pipe that nobody writes to.
    let pipes = tempfile::tempdir().unwrap();
    let pipe = pipes.path().join("program");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    let (code, err) = run(&["--", pipe.to_str().unwrap()]);
    assert!(made.success() && code == Some(2), "{err}");
    // Without nvcc too: what the library and its stand-in for the runtime are called, the loader finds.
    let preload = "printenv LD_PRELOAD LD_LIBRARY_PATH >&2";
    let (code, err) = run(&["--quiet", "--", "sh", "-c", preload]);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("libptx_recorder.so"), "{err}");
    assert!(!err.contains("cannot be preloaded"), "{err}");
    // LD_PRELOAD would end in this library's name.
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("a b.so");
    std::os::unix::fs::symlink(library(), &place).unwrap();
    let own = ["--quiet", "--library", place.to_str().unwrap()];
    let (code, err) = run(&[&own[..], &["--", "sh", "-c", preload]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(!err.contains("cannot be preloaded"), "{err}");
    // Nobody listens.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(ours);
    let mut command = Command::new(recorder());
    command
        .args(["--", "sh", "-c", "exit 7"])
        .stderr(OwnedFd::from(theirs));
    assert_eq!(command.status().unwrap().code(), Some(7));
}

/// A fault by its name in the lists of `ptx-sim mutate`: the program finds wrong results.
fn planted() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("add", &[], dir.path());
    let fault = "drop-store `st.global.f32 [%rd], %f`#0";
    let output = record(&program, &["--fault", fault]);
    let (out, err) = texts(&output);
    assert!(!output.status.success(), "{out}{err}");
    assert!(out.contains("not true"), "{out}{err}");
    let output = record(&program, &["--fault", "drop-store `nothing`#0"]);
    let (out, err) = texts(&output);
    let says = "has no fault `drop-store `nothing`#0`";
    assert!(err.contains(says), "{out}{err}");
}

/// A signal leaves nothing of the recorder: neither its folder nor the program.
fn signals() {
    let temporary = tempfile::tempdir().unwrap();
    let start = |script: &str| {
        let mut command = Command::new(recorder());
        let command = command.env("TMPDIR", temporary.path());
        let (child, line, _) = start(command, script);
        (child, line)
    };
    let send = |pid: &str, signal: i32| {
        let mut kill = Command::new("sh");
        let kill = kill.args(["-c", &format!("kill -{signal} {pid}")]);
        kill.stderr(Stdio::null()).status().unwrap().success()
    };
    let left = || std::fs::read_dir(temporary.path()).unwrap().count();
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        let (mut child, program) = start("ulimit -c 0; echo $$; exec sleep 600");
        assert_eq!(left(), 1);
        assert!(send(&child.id().to_string(), signal));
        assert_eq!(child.wait().unwrap().code(), Some(128 + signal));
        assert!(!send(&program, 0), "the program still runs");
        assert_eq!(left(), 0, "signal {signal}");
    }
    // A program that goes on is killed when it is asked again, some time later.
    let (mut child, program) = start("trap '' TERM INT; echo $$; exec sleep 600");
    while child.try_wait().unwrap().is_none() {
        send(&child.id().to_string(), libc::SIGTERM);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGKILL));
    assert!(!send(&program, 0), "the program still runs");
    assert_eq!(left(), 0);
    // Two at once are sent on, and it may end as it wants to.
    let (mut child, _) = start(
        "n=0; trap 'n=$((n+1))' TERM; trap 'n=$((n+1))' INT; echo; \
         while [ $n -lt 2 ]; do sleep 0.01; done; exit 7",
    );
    let id = child.id();
    assert!(send(&id.to_string(), libc::SIGSTOP));
    let mut status = 0;
    // SAFETY: waits for a child of this process, which stays one, and writes a number.
    let stopped = unsafe { libc::waitpid(id as libc::pid_t, &mut status, libc::WUNTRACED) };
    assert!(stopped == id as libc::pid_t && libc::WIFSTOPPED(status));
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCONT] {
        assert!(send(&id.to_string(), signal));
    }
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

/// Starts the recorder with a script that prints something. Returns its first line, and its later output.
fn start(command: &mut Command, script: &str) -> (Child, String, impl BufRead) {
    // Whoever runs the tests may ignore signals, as `nohup` does, and children inherit that.
    let by_default = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: `signal` is safe to call for these signals between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure only makes the system call above.
    unsafe { command.pre_exec(by_default) };
    let child = command.args(["--quiet", "--", "sh", "-c", script]);
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    (child, line.trim().to_owned(), out)
}

/// The program gets a key's signal from the terminal once, and the signal is no request to the recorder.
fn keys() {
    let (mut keyboard, terminal) = terminal();
    let mut command = Command::new(recorder());
    let of_terminal = || {
        // SAFETY: both are system calls, which take numbers: standard input is a terminal.
        match unsafe { libc::setsid() != -1 && libc::ioctl(0, libc::TIOCSCTTY, 0) != -1 } {
            true => Ok(()),
            false => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure only makes the system calls above.
    unsafe { command.stdin(terminal).pre_exec(of_terminal) };
    let (mut child, _, mut out) = start(
        &mut command,
        "trap 'echo pressed' INT; trap 'exit 7' TERM; echo; while :; do sleep 0.01; done",
    );
    let mut said = String::new();
    for _ in 0..2 {
        keyboard.write_all(b"\x03").unwrap();
        out.read_line(&mut said).unwrap();
    }
    // SAFETY: the call takes two numbers, of which the first is a child's that was not waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    out.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert_eq!(said, "pressed\npressed\n");
}

/// A new terminal: who presses its keys, and who reads them.
fn terminal() -> (File, File) {
    use std::ptr::{null, null_mut as none};
    let (mut keyboard, mut terminal) = (-1, -1);
    // SAFETY: both are places for a number; the rest need not be given.
    let made = unsafe { libc::openpty(&mut keyboard, &mut terminal, none(), null(), null()) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both are open, and nobody else's.
    let own = |number| File::from(unsafe { OwnedFd::from_raw_fd(number) });
    (own(keyboard), own(terminal))
}

fn main() -> ExitCode {
    let trials = vec![
        program("add", "an illegal memory access was encountered"),
        program("tensor_map", "launch 1: add_boxes(Job): error: "),
        program("cluster", "launch 1: rotate(int*): error: "),
        program("dependent", "not true: host[i] == 3 * i + 1"),
        program("product", "launch 1: mma_bf16: error: "),
        program("driver", "illegal memory access"),
        program("streams", "a grid before this one writes it"),
        program(
            "host_function",
            "not true: cudaGetLastError() == cudaSuccess",
        ),
        plain("lookup"),
        plain("refused"),
        trial("abis", abis),
        anywhere("options", options),
        anywhere("signals", signals),
        anywhere("keys", keys),
        trial("compression", compression),
        trial("planted", planted),
        trial("advice", advice),
        trial("specifications", specifications),
        trial(
            "tensor_maps_in_specifications",
            tensor_maps_in_specifications,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
