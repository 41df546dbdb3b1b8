//! Limits of what a source, a specification or a command line may ask for: memory, sizes, names of files.

#[path = "common/program.rs"]
mod program;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ptx_sim::files::Existing;
use ptx_sim::inventory::inventory;
use ptx_sim::launch::LaunchSpec;
use ptx_sim::{Buffer, Launch, Module, Options, Sim, SimError};
use serde_json::{Value, json};

/// A module with these variables, and one kernel with this body.
fn module(variables: &str, body: &str) -> Module {
    let ptx = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n{variables}\n.visible .entry k() {{\n{body}\n}}"
    );
    Module::parse(&ptx).unwrap()
}

fn prepare(spec: &Value) -> Result<(), SimError> {
    let spec = LaunchSpec::parse(&spec.to_string())?;
    let p = spec.prepare(module("", "ret;"), "k", Path::new("."))?;
    p.sim.clone().run(&p.launch, &Options::default())?;
    Ok(())
}

fn launch(buffers: Value) -> Value {
    json!({"grid": [1, 1, 1], "block": [1, 1, 1], "buffers": buffers})
}

/// Runs the kernel of a module with one thread and says what it was refused with.
fn refused(m: Module, launch: &Launch) -> SimError {
    Sim::new(m).run(launch, &Options::default()).unwrap_err()
}

fn one_thread() -> Launch {
    Launch::new("k", [1, 1, 1], [1, 1, 1])
}

fn is_about_memory(e: &SimError, what: &str) {
    match e {
        SimError::Memory { what: who, .. } => assert!(who.contains(what), "{e}"),
        other => panic!("{other}"),
    }
}

#[test]
fn buffers_share_a_limit() {
    let huge = 4u64 << 30;
    is_about_memory(
        &prepare(&launch(json!({"x": {"size": huge}}))).unwrap_err(),
        "buffer x",
    );
    // A fill is not made first.
    let fill = json!({"x": {"size": 1u64 << 60, "contents": {"fill": 1}}});
    is_about_memory(&prepare(&launch(fill)).unwrap_err(), "buffer x");
    // Each is small enough, all are not.
    let twenty: serde_json::Map<_, _> = (0..20)
        .map(|i| (format!("b{i:02}"), json!({"size": 100 << 20})))
        .collect();
    is_about_memory(&prepare(&launch(twenty.into())).unwrap_err(), "buffer b10");

    let mut sim = Sim::with_memory(module("", "ret;"), 1000);
    sim.alloc("a", 600).unwrap();
    assert_eq!(sim.free_memory(), 400);
    is_about_memory(&sim.alloc("b", 401).unwrap_err(), "buffer b");
    sim.alloc("c", 400).unwrap();
    // A limit that limits nothing does not let addresses run out, either.
    let mut sim = Sim::with_memory(module("", "ret;"), u64::MAX);
    let e = sim.alloc("x", usize::MAX).unwrap_err();
    assert!(e.to_string().contains("no addresses are left"), "{e}");
}

#[test]
fn variables_of_a_source_count() {
    for (space, what) in [("global", "global variables"), ("const", "constants")] {
        let m = module(&format!(".{space} .align 4 .b8 x[4294967296];"), "ret;");
        assert!(inventory(&m).problems.is_empty());
        is_about_memory(&refused(m, &one_thread()), what);
    }
    // Local memory is each thread's.
    let local = ".local .b8 x[1048576]; ret;";
    Sim::new(module("", local))
        .run(&one_thread(), &Options::default())
        .unwrap();
    let many = Launch::new("k", [1, 1, 1], [1024, 1, 1]);
    is_about_memory(&refused(module("", local), &many), "1 CTAs");
    let small: String = (0..2000).map(|i| format!(".local .b8 a{i}; ")).collect();
    let four = Options {
        resident: 4,
        ..Options::default()
    };
    let m = module("", &format!("{small} ret;"));
    let launch = Launch {
        grid: [4, 1, 1],
        ..many.clone()
    };
    is_about_memory(&Sim::new(m).run(&launch, &four).unwrap_err(), "4 CTAs");
    // Shared memory has a limit of its own.
    let e = refused(module("", ".shared .b8 x[300000]; ret;"), &one_thread());
    assert!(e.to_string().contains("of shared memory"), "{e}");
    // A module's counts for the kernels that use it, also in what they call.
    let variables = ".shared .b8 x[200000]; .shared .b8 y[200000];\n\
                     .func helper() { .reg .b32 %r; mov.b32 %r, y; ret; }";
    let use_x = ".reg .b32 %r<2>; mov.b32 %r0, x;";
    Sim::new(module(variables, &format!("{use_x} ret;")))
        .run(&one_thread(), &Options::default())
        .unwrap();
    for both in ["mov.b32 %r1, y+4;", "call helper;"] {
        let e = refused(
            module(variables, &format!("{use_x} {both} ret;")),
            &one_thread(),
        );
        assert!(e.to_string().contains("of shared memory"), "{e}");
    }
}

#[test]
fn joins_of_branches_are_not_searched_for_ever() {
    let n = 15_000;
    let branches: String = (0..n).map(|i| format!("@%p bra L{i};\n")).collect();
    let labels: String = (0..n).map(|i| format!("L{i}: mov.b32 %r, 0;\n")).collect();
    let m = module(
        "",
        &format!(".reg .pred %p; .reg .b32 %r;\n{branches}{labels}ret;"),
    );
    let e = refused(m, &one_thread());
    assert!(e.to_string().contains("where they meet again"), "{e}");
}

#[test]
fn ctas_that_run_at_once_count() {
    let body = ".reg .b64 %d<30000>; ret;";
    let launch = Launch::new("k", [1 << 31, 1, 1], [1024, 1, 1]);
    let mut sim = Sim::new(module("", body));
    let all = Options {
        resident: usize::MAX,
        ..Options::default()
    };
    is_about_memory(&sim.run(&launch, &all).unwrap_err(), "2147483648 CTAs");
}

#[test]
fn sizes_of_a_launch_do_not_overflow() {
    // The products are 2^64, and 2^64 + 4.
    for size in [[1u32 << 31, 1 << 31, 4], [769_546, 494_770, 48_448_661]] {
        let block = Launch::new("k", [1, 1, 1], size);
        let e = refused(module("", "ret;"), &block).to_string();
        assert!(e.contains("1 to 1024 threads"), "{e}");
        let grid = Launch::new("k", size, [1, 1, 1]);
        let e = refused(module("", "ret;"), &grid).to_string();
        assert!(e.contains("at most 2^31"), "{e}");
        let cluster = Launch {
            cluster: Some(size),
            ..one_thread()
        };
        let e = refused(module("", "ret;"), &cluster).to_string();
        assert!(e.contains("1 to 16 CTAs"), "{e}");
    }
}

/// An empty body uses its budget up, too: no grid of it runs for ever.
#[test]
fn empty_kernels_use_the_budget() {
    let options = Options {
        budget: 1000,
        ..Options::default()
    };
    let e = Sim::new(module("", ""))
        .run(&Launch::new("k", [1 << 31, 1, 1], [1, 1, 1]), &options)
        .unwrap_err();
    assert!(matches!(e, SimError::Budget { .. }), "{e}");
}

#[test]
fn parameters_have_the_isas_limit() {
    let body = "{\n.reg .b32 %r<2>; ret;\n}";
    let ptx = |n: u32| {
        format!(
            ".version 9.0\n.target sm_90a\n.visible .entry k(.param .b8 a[{n}], .param .b8 b[4]) {body}"
        )
    };
    let program = |n| {
        Sim::new(Module::parse(&ptx(n)).unwrap())
            .program("k")
            .map(|_| ())
    };
    program(32760).unwrap();
    let e = program(32761).unwrap_err().to_string();
    assert!(e.contains("1 to 32764 bytes in all"), "{e}");

    // A short specification of much memory.
    let s = json!({"struct": {"size": 30000, "fields": []}});
    let mut spec = launch(json!({}));
    spec["params"] = json!([s, s]);
    let e = prepare(&spec).unwrap_err().to_string();
    assert!(
        e.contains("params[1]: a kernel has at most 32764 bytes"),
        "{e}"
    );
}

const BULK: &str = ".reg .b32 %r<4>; .reg .b64 %d<4>; .shared .align 128 .b8 s[256];\n\
 .shared .align 8 .b64 bar; mov.b64 %d1, 0x700000000000; mov.u32 %r1, s; mov.u32 %r2, bar;\n";

/// A size of 4 GiB is not a size of 0, and nothing of that size is made.
#[test]
fn sizes_of_bulk_copies() {
    let copy = |size: &str| {
        let body = format!(
            "{BULK}mov.b64 %d2, 4294967296;\n\
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes \
             [%r1], [%d1], {size}, [%r2]; ret;"
        );
        module("", &body)
    };
    for (size, why) in [
        ("4294967296", "has 32 bits"),
        ("-16", "has 32 bits"),
        ("%d2", "has 32 bits"),
        ("24", "not a multiple of 16"),
    ] {
        let e = Sim::new(copy(size)).program("k").unwrap_err().to_string();
        assert!(e.contains(why), "{size}: {e}");
    }
    let mut sim = Sim::with_memory(copy("4294967280"), 16 << 30);
    sim.program("k").unwrap();
    let e = sim.run(&one_thread(), &Options::default()).unwrap_err();
    assert!(e.to_string().contains("bytes of shared memory"), "{e}");
    let prefetch = |size: &str| {
        let body = format!("{BULK}cp.async.bulk.prefetch.L2.global [%d1], {size}; ret;");
        Sim::new(module("", &body)).program("k").map(|_| ())
    };
    prefetch("1024").unwrap();
    assert!(prefetch("4294967296").is_err());
    assert!(prefetch("20").is_err());
}

/// Each would take hours if it took a time proportional to the square of its size.
#[test]
fn inventories_of_large_sources() {
    let n = 200_000;
    let distinct: String = (0..n).map(|i| format!("no{i}.such.op;\n")).collect();
    let list = inventory(&module("", &distinct));
    assert_eq!(list.opcodes.len(), n);
    assert!(list.opcodes.iter().all(|e| e.unmodelled.is_some()));
    assert!(list.problems.is_empty());

    let same = "bogus.op;\n".repeat(n);
    assert_eq!(inventory(&module("", &same)).opcodes[0].count, n);

    // Kernels, and variables that each of them sees.
    let variables: String = (0..n).map(|i| format!(".global .b32 v{i};\n")).collect();
    let kernels: String = (0..n)
        .map(|i| format!(".entry e{i}() {{ odd; }}\n"))
        .collect();
    let list = inventory(&module(&(variables + &kernels), "ret;"));
    let odd = list.opcodes.iter().find(|e| e.opcode == "odd").unwrap();
    assert_eq!((odd.count, odd.unmodelled.is_some()), (n, true));

    // Addresses of shared memory are special registers.
    let addresses: String = (0..n).map(|i| format!("mov.u32 %r1, s+{i};\n")).collect();
    let body = format!(".reg .b32 %r<2>; .shared .b8 s[4];\n{addresses}");
    assert_eq!(inventory(&module("", &body)).opcodes[0].unmodelled, None);
}

/// Declarations of one kernel are not the next one's.
#[test]
fn inventories_keep_kernels_apart() {
    let m = module(
        ".entry a(.param .u32 p) { .reg .b32 %r<2>; .shared .b8 s[64]; L: ld.param.u32 %r1, [p]; bra L; }\n\
         .entry b(.param .u32 p) { .reg .b32 %r<2>; mov.u32 %r1, s; bra L; }",
        "ret;",
    );
    let list = inventory(&m);
    let why = |opcode: &str| {
        let e = list.opcodes.iter().find(|e| e.opcode == opcode).unwrap();
        e.unmodelled.clone().unwrap_or_default()
    };
    assert!(why("mov.u32").contains("`s` is not declared"), "{list:?}");
    assert!(why("bra").contains("label `L` is not defined"), "{list:?}");
    assert_eq!(why("ld.param.u32"), "");
    assert!(list.problems.is_empty(), "{:?}", list.problems);
}

#[test]
fn lists_of_labels_are_limited() {
    let targets = vec!["L"; 2000].join(", ");
    let body = format!(
        ".reg .b32 %r<2>;\nL: ret;\nT: .branchtargets {targets};\n{}",
        "brx.idx %r1, T;\n".repeat(2000)
    );
    let e = Sim::new(module("", &body)).program("k").unwrap_err();
    assert!(e.to_string().contains("branch targets"), "{e}");
}

/// Names that would leave the output directory.
const OUTSIDE: [&str; 7] = ["", ".", "..", "../y", "a/../../y", "/tmp/y", "./y"];

#[test]
fn dumps_stay_inside_the_output_directory() {
    for name in OUTSIDE {
        let e = prepare(&launch(json!({"y": {"size": 4, "dump": name}}))).unwrap_err();
        assert!(
            matches!(&e, SimError::DumpName { buffer, .. } if buffer == "y"),
            "{name}: {e}"
        );
    }
    let twice = json!({"x": {"size": 4, "dump": "a//y"}, "y": {"size": 4, "dump": "a/y"}});
    let e = prepare(&launch(twice)).unwrap_err().to_string();
    assert!(e.contains("is also the dump of buffer \"x\""), "{e}");
}

/// A new directory for a test.
fn directory(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(
        dir.join("k.ptx"),
        ".version 9.0\n.target sm_90a\n.visible .entry k() { ret; }",
    )
    .unwrap();
    dir
}

/// Runs the program in a directory. The program must end by itself: a minute is far more than it takes.
fn ptx_sim(dir: &Path, args: &[&str]) -> Output {
    use std::process::Stdio;
    let mut child = program::program()
        .current_dir(dir)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..1200 {
        if child.try_wait().unwrap().is_some() {
            return child.wait_with_output().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    child.kill().unwrap();
    panic!("ptx-sim {args:?} hangs");
}

fn run_spec(dir: &Path, spec: &Value, extra: &[&str]) -> Output {
    std::fs::write(dir.join("k.json"), spec.to_string()).unwrap();
    let args = [
        "run", "--ptx", "k.ptx", "--launch", "k.json", "--out", "out",
    ];
    ptx_sim(dir, &[&args[..], extra].concat())
}

fn fails_with(out: &Output, message: &str) {
    let shown = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && shown.contains(message), "{shown}");
}

#[test]
fn nothing_is_written_outside() {
    let dir = directory("outside");
    for name in OUTSIDE {
        let spec = launch(json!({"y": {"size": 4, "contents": {"fill": 1}, "dump": name}}));
        fails_with(&run_spec(&dir, &spec, &[]), "buffer \"y\": dump");
    }
    assert!(!dir.join("y").exists() && !dir.join("out").exists());
    // A name with directories is plain, too.
    let spec = launch(json!({"y": {"size": 4, "contents": {"fill": 1}, "dump": "a/b/y"}}));
    assert!(run_spec(&dir, &spec, &[]).status.success());
    assert_eq!(std::fs::read(dir.join("out/a/b/y")).unwrap(), [1; 4]);
}

/// Launch files of strangers: files that they name are read below their folder, and nowhere else.
#[test]
fn nothing_is_read_outside() {
    let outer = directory("read-outside");
    let dir = outer.join("launch");
    std::fs::create_dir_all(dir.join("a")).unwrap();
    std::fs::copy(outer.join("k.ptx"), dir.join("k.ptx")).unwrap();
    let tensor = [1, 2, 3, 4];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![4], &tensor);
    let file = safetensors::serialize([("x", view.unwrap())], None).unwrap();
    for (folder, name) in [(&outer, "secret"), (&dir, "x"), (&dir, "a/x")] {
        std::fs::write(folder.join(name), &file).unwrap();
    }
    let size = file.len();
    let absolute = outer.join("secret");
    let plain = "is not a plain relative path";
    let mut refused = vec![
        ("../secret", plain),
        ("a/../../secret", plain),
        ("a/../x", plain),
        (absolute.to_str().unwrap(), plain),
        ("/dev/zero", plain),
    ];
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink("../secret", dir.join("link")).unwrap();
        symlink("x", dir.join("inside")).unwrap();
        symlink("..", dir.join("folder")).unwrap();
        symlink("none", dir.join("dangling")).unwrap();
        for name in ["link", "inside", "folder/secret", "a/../link", "dangling"] {
            let says = if name.contains("..") {
                plain
            } else {
                "is a symbolic link"
            };
            refused.push((name, says));
        }
    }
    let specs = |name: &str| {
        [
            json!({"y": {"contents": {"file": name}}}),
            json!({"y": {"contents": {"safetensors": {"file": name, "tensor": "x"}}}}),
            json!({"y": {
                "contents": {"file": "x"}, "size": size,
                "expect": {"type": "u8", "values": {"file": name}},
            }}),
        ]
    };
    for name in ["x", "./x", "a/x"] {
        for spec in specs(name) {
            let out = run_spec(&dir, &launch(spec.clone()), &[]);
            let shown = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{spec}: {shown}");
        }
    }
    for (name, says) in refused {
        for spec in specs(name) {
            fails_with(&run_spec(&dir, &launch(spec), &[]), says);
        }
    }
}

/// Links in the folder of results, which may come with a launch file.
#[cfg(unix)]
#[test]
fn nothing_is_written_through_links() {
    use std::os::unix::fs::symlink;
    let dir = directory("write-links");
    let elsewhere = dir.join("elsewhere");
    for folder in ["out", "elsewhere", "elsewhere/real"] {
        std::fs::create_dir(dir.join(folder)).unwrap();
    }
    std::fs::write(elsewhere.join("y"), "mine").unwrap();
    symlink("../elsewhere", dir.join("out/folder")).unwrap();
    symlink("../elsewhere/y", dir.join("out/y")).unwrap();
    symlink("../elsewhere/new", dir.join("out/dangling")).unwrap();
    let spec =
        |name: &str| launch(json!({"y": {"size": 4, "contents": {"fill": 1}, "dump": name}}));
    for name in ["folder/y", "folder/new", "folder/real/new", "y", "dangling"] {
        for force in [&[][..], &["--force"]] {
            fails_with(&run_spec(&dir, &spec(name), force), "is a symbolic link");
        }
        // Also where nobody has looked before.
        let spec = LaunchSpec::parse(&spec(name).to_string()).unwrap();
        let prepared = spec.prepare(module("", "ret;"), "k", Path::new("."));
        let prepared = prepared.unwrap();
        for existing in [Existing::Refuse, Existing::Replace] {
            spec.dump(&prepared, &dir.join("out"), existing)
                .unwrap_err();
        }
    }
    assert_eq!(std::fs::read(elsewhere.join("y")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 2);
    assert_eq!(
        std::fs::read_dir(elsewhere.join("real")).unwrap().count(),
        0
    );
    // A path that the user names may be a link.
    let linked = [
        "run",
        "--ptx",
        "k.ptx",
        "--launch",
        "k.json",
        "--out",
        "out/folder/real",
    ];
    std::fs::write(dir.join("k.json"), spec("new").to_string()).unwrap();
    assert!(ptx_sim(&dir, &linked).status.success());
    assert_eq!(std::fs::read(elsewhere.join("real/new")).unwrap(), [1; 4]);
}

#[test]
fn files_are_not_replaced_unasked() {
    let dir = directory("replaced");
    let spec = launch(json!({
        "x": {"contents": {"file": "x.bin"}, "dump": "y.bin"},
    }));
    std::fs::write(dir.join("x.bin"), "data").unwrap();
    std::fs::create_dir(dir.join("out")).unwrap();
    std::fs::write(dir.join("out/y.bin"), "mine").unwrap();
    fails_with(&run_spec(&dir, &spec, &[]), "--force replaces it");
    assert_eq!(std::fs::read(dir.join("out/y.bin")).unwrap(), b"mine");
    assert!(run_spec(&dir, &spec, &["--force"]).status.success());
    assert_eq!(std::fs::read(dir.join("out/y.bin")).unwrap(), b"data");
    // The timeline likewise, and never a file that is read.
    for input in ["k.ptx", "k.json", "x.bin"] {
        let before = std::fs::read(dir.join(input)).unwrap();
        fails_with(
            &run_spec(&dir, &spec, &["--force", "--trace", input]),
            "this file is read",
        );
        assert_eq!(std::fs::read(dir.join(input)).unwrap(), before);
    }
    fails_with(
        &run_spec(&dir, &spec, &["--force", "--trace", "out/y.bin"]),
        "both a dumped buffer and the timeline",
    );
    assert!(
        run_spec(&dir, &spec, &["--force", "--trace", "t.json"])
            .status
            .success()
    );
    fails_with(
        &ptx_sim(&dir, &["draw", "t.json", "-o", "x.bin"]),
        "--force replaces it",
    );
    fails_with(
        &ptx_sim(&dir, &["draw", "t.json", "--force", "-o", "t.json"]),
        "this file is read",
    );
}

#[test]
fn the_limit_is_an_option() {
    let dir = directory("memory");
    let spec = launch(json!({"y": {"size": 3 << 20}}));
    fails_with(
        &run_spec(&dir, &spec, &["--memory", "2"]),
        "buffer y would take 3145728",
    );
    assert!(run_spec(&dir, &spec, &["--memory", "4"]).status.success());
}

/// More than there is ends no process.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_beyond_the_machines_memory() {
    let dir = directory("too-much");
    let all = u64::MAX.to_string();
    let spec = launch(json!({"y": {"size": 1u64 << 43}}));
    fails_with(
        &run_spec(&dir, &spec, &["--memory", &all]),
        "of memory, where this machine has",
    );
    // Who says so by a call is refused where the system has no such memory; it may have.
    let mut sim = Sim::with_memory(module("", "ret;"), u64::MAX);
    for (name, size) in [("x", 1usize << 43), ("y", 7 << 40)] {
        if let Err(error) = sim.alloc(name, size) {
            assert!(error.to_string().contains("the system has no"), "{error}");
            assert!(sim.free_memory() > u64::MAX - (1 << 44));
        }
    }
}

/// Pipes that nobody writes to, and devices without an end, wherever a file is read.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused() {
    let dir = directory("pipes");
    std::fs::create_dir(dir.join("out")).unwrap();
    for pipe in ["pipe", "out/pipe"] {
        let made = Command::new("mkfifo").arg(dir.join(pipe)).status().unwrap();
        assert!(made.success());
    }
    for odd in ["pipe", "/dev/zero"] {
        let says = "not a regular file";
        fails_with(&ptx_sim(&dir, &["inventory", odd]), says);
        fails_with(&ptx_sim(&dir, &["draw", odd, "-o", "new.svg"]), says);
        for [ptx, launch] in [[odd, "k.json"], ["k.ptx", odd]] {
            let both = ["--ptx", ptx, "--launch", launch];
            fails_with(&ptx_sim(&dir, &[&["run"][..], &both].concat()), says);
            fails_with(&ptx_sim(&dir, &[&["mutate"][..], &both].concat()), says);
        }
        let spec = launch(json!({"y": {"size": 4}}));
        fails_with(&run_spec(&dir, &spec, &["--force", "--trace", odd]), says);
    }
    for contents in [
        json!({"file": "pipe"}),
        json!({"safetensors": {"file": "pipe", "tensor": "x"}}),
    ] {
        let spec = launch(json!({"y": {"size": 4, "contents": contents}}));
        fails_with(&run_spec(&dir, &spec, &[]), "not a regular file");
    }
    let spec = launch(json!({"y": {"size": 4, "dump": "pipe"}}));
    fails_with(&run_spec(&dir, &spec, &["--force"]), "not a regular file");
    // A large file is not read whole before it is refused, either.
    let large = std::fs::File::create(dir.join("large")).unwrap();
    large.set_len(1 << 40).unwrap();
    fails_with(&ptx_sim(&dir, &["inventory", "large"]), "more than");
    let spec = launch(json!({"y": {"contents": {"file": "large"}}}));
    fails_with(&run_spec(&dir, &spec, &[]), "more than");
}

#[test]
fn buffers_keep_their_places() {
    let mut sim = Sim::new(module("", "ret;"));
    let a: Buffer = sim.alloc("a", 1).unwrap();
    let b = sim.alloc("b", 1).unwrap();
    assert!(b.address > a.address && b.address.is_multiple_of(256));
}

#[test]
fn names_do_not_act_on_a_terminal() {
    let dir = directory("names");
    let spec = launch(json!({"y\u{1b}[31m\u{202e}": {"size": 4, "contents": {"fill": 300}}}));
    let out = run_spec(&dir, &spec, &[]);
    let shown = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success(), "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
    let file = dir.join("no\u{1b}[2Jfile.ptx");
    let out = ptx_sim(&dir, &["inventory", file.to_str().unwrap()]);
    let shown = String::from_utf8_lossy(&out.stderr);
    assert!(shown.contains(r"no\u{1b}[2Jfile.ptx"), "{shown:?}");
}

/// JSON says the same, and is JSON still.
#[test]
fn names_in_json_do_not_act_on_a_terminal() {
    let dir = directory("json-names");
    let name = "größe\u{1b}[31m\u{9b}\u{7f}\u{202e}\u{e0001}.ptx";
    let out = ptx_sim(&dir, &["inventory", name, "--json"]);
    assert!(!out.status.success());
    let shown = String::from_utf8(out.stdout).unwrap();
    let acts = ['\u{1b}', '\u{9b}', '\u{7f}', '\u{202e}', '\u{e0001}'];
    assert!(!shown.contains(acts), "{shown:?}");
    assert!(
        shown.contains(r"größe\u001b[31m\u009b\u007f\u202e\udb40\udc01.ptx"),
        "{shown}"
    );
    let parsed: Value = serde_json::from_str(&shown).unwrap();
    assert!(parsed["error"].as_str().unwrap().contains(name), "{shown}");
}

/// A result that nobody has got is no success.
#[cfg(target_os = "linux")]
mod standard_output {
    use std::fs::File;
    use std::process::Stdio;

    use super::*;

    const COMMANDS: [&[&str]; 7] = [
        &["run", "--ptx", "k.ptx", "--launch", "k.json"],
        &["run", "--ptx", "k.ptx", "--launch", "k.json", "--json"],
        &["inventory", "k.ptx"],
        &["inventory", "k.ptx", "--json"],
        &["mutate", "--ptx", "k.ptx", "--launch", "k.json", "--list"],
        &["--help"],
        &["--version"],
    ];

    fn folder(name: &str) -> PathBuf {
        let dir = directory(name);
        let spec = launch(json!({"y": {"size": 4}}));
        std::fs::write(dir.join("k.json"), spec.to_string()).unwrap();
        dir
    }

    fn ends(dir: &Path, args: &[&str], to: Stdio) -> (bool, String) {
        let mut command = program::program();
        let command = command.current_dir(dir).args(args).stdout(to);
        let out = command.output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        (out.status.success(), said)
    }

    #[test]
    fn that_is_full_is_an_error() {
        let dir = folder("full");
        for args in COMMANDS {
            let full = File::options().write(true).open("/dev/full").unwrap();
            let (success, said) = ends(&dir, args, full.into());
            let expected = "error: standard output: No space left";
            assert!(!success && said.contains(expected), "{args:?}: {said}");
        }
    }

    #[test]
    fn that_is_closed_is_an_error() {
        let dir = folder("closed");
        for args in COMMANDS {
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec \"$@\" >&-", "sh"]);
            shell.arg(env!("CARGO_BIN_EXE_ptx-sim")).args(args);
            let out = shell.current_dir(&dir).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            let expected = "error: standard output: it was closed";
            assert!(
                !out.status.success() && said.contains(expected),
                "{args:?}: {said}"
            );
        }
    }

    /// The reader leaves, as in `| head`.
    #[test]
    fn that_a_reader_has_left_is_none() {
        let dir = folder("left");
        for args in COMMANDS {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let (success, said) = ends(&dir, args, writer.into());
            assert!(success && said.is_empty(), "{args:?}: {said}");
        }
    }
}
