//! Attacks on the files that commands write: special files, files that are there, inputs, rights, limits.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};

use nvfp4_gemv::file::TensorFile;
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;

use crate::{Folder, contains, fails, prints, text, words};

/// A folder with a model to quantise, a checkpoint and a problem.
struct Files(Folder);

impl Files {
    fn new() -> Self {
        let files = Self(Folder::new());
        let tensors =
            [("fc1.weight", [64, 32]), ("embed.weight", [64, 64])].map(|(name, shape)| {
                let values = vec![0.5; shape[0] * shape[1]];
                (name.to_owned(), NewTensor::f32(&shape, &values))
            });
        file::write(Path::new(&files.at("model")), tensors, None).unwrap();
        prints(&["quantize", &files.at("model"), &files.at("checkpoint")]);
        let dump = ["verify", "--path", "cpu", "--case", "zeros 5x16", "--dump"];
        prints(&[&dump[..], &[&files.at("problem")]].concat());
        files
    }

    fn at(&self, name: &str) -> String {
        self.0.at(name)
    }

    /// The arguments of a command that writes to `out`.
    fn writing(&self, command: &str, out: &str, rest: &[&str]) -> Vec<String> {
        let place = |arg: &&str| match *arg {
            "OUT" => out.to_owned(),
            "CHECKPOINT" => self.at("checkpoint"),
            "MODEL" => self.at("model"),
            "PROBLEM" => self.at("problem"),
            other => other.to_owned(),
        };
        words(command).iter().chain(rest).map(place).collect()
    }

    fn names(&self) -> Vec<String> {
        self.0.names()
    }
}

const RUN: &str = "run --checkpoint CHECKPOINT --layer fc1 --path cpu --output OUT";
const REPLAY: &str = "verify --path cpu --problem PROBLEM --dump OUT";
const QUANTIZE: &str = "quantize MODEL OUT";
/// Every command that writes a file, and the name of its input.
const COMMANDS: [(&str, &str); 3] = [
    (RUN, "checkpoint"),
    (REPLAY, "problem"),
    (QUANTIZE, "model"),
];

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn start(args: &[String]) -> std::process::Child {
    crate::command()
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a command that writes to a pipe which nobody reads, and waits until it has said so.
fn start_waiting(args: &[String]) -> (std::process::Child, BufReader<ChildStderr>) {
    let mut child = start(args);
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    contains(&line, &["waiting until somebody reads the pipe"]);
    (child, said)
}

fn mkfifo(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Makes a device like one of /dev, which a command may destroy, or `None` where only /dev itself can be had.
fn device(files: &Files, name: &str, minor: &str) -> Option<String> {
    let path = files.at(name);
    let mut mknod = Command::new("mknod");
    let made = mknod
        .args([&*path, "c", "1", minor])
        .stderr(Stdio::null())
        .status();
    // A device that may not be opened (in a folder without devices) is of no use.
    if made.is_ok_and(|made| made.success()) && OpenOptions::new().write(true).open(&path).is_ok() {
        return Some(path);
    }
    let _ = fs::remove_file(&path);
    // Who cannot make devices cannot replace those of /dev either.
    let is_root = fs::metadata(files.at("model")).unwrap().uid() == 0;
    if is_root {
        eprintln!("skipped: this root can make no devices");
    }
    (!is_root).then(|| format!("/dev/{name}"))
}

#[test]
fn devices_are_written_in_place() {
    let files = Files::new();
    if let Some(null) = device(&files, "null", "3") {
        let link = files.at("link");
        symlink(&null, &link).unwrap();
        for (command, _) in COMMANDS {
            for out in [&null, &link] {
                for rest in [&[][..], &["--force"]] {
                    prints(&strs(&files.writing(command, out, rest)));
                    let kind = fs::metadata(&null).unwrap().file_type();
                    assert!(kind.is_char_device(), "{command:?}");
                }
            }
        }
    }
    if let Some(full) = device(&files, "full", "7") {
        for (command, _) in COMMANDS {
            let error = fails(&strs(&files.writing(command, &full, &["--force"])));
            assert!(error.contains("No space left"), "{error}");
            assert!(fs::metadata(&full).unwrap().file_type().is_char_device());
        }
    }
}

#[test]
fn what_is_dumped_to_a_device_cannot_be_replayed() {
    let dump = ["verify", "--path", "cpu", "--case", "zeros 5x16", "--dump"];
    let said = prints(&[&dump[..], &["/dev/null"]].concat());
    assert!(said.contains("is written to /dev/null\n"), "{said}");
    assert!(!said.contains("replay"), "{said}");
}

/// A reader of a pipe that holds no more than a page. Neither opening nor reading waits for a writer.
#[cfg(target_os = "linux")]
fn small_pipe(path: &Path) -> File {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    let reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let reader = reader.unwrap();
    // SAFETY: the descriptor is open; the call takes a number and changes the pipe's capacity.
    let bytes = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETPIPE_SZ, 1) };
    assert!((1..16384).contains(&bytes), "{bytes}");
    reader
}

#[test]
fn pipes_are_written_in_place() {
    let files = Files::new();
    let pipe = files.at("pipe");
    mkfifo(&pipe);
    for (command, _) in COMMANDS {
        let (mut child, _said) = start_waiting(&files.writing(command, &pipe, &[]));
        let written = fs::read(&pipe).unwrap();
        assert!(child.wait().unwrap().success(), "{command:?}");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        let copy = files.at("copy");
        fs::write(&copy, &written).unwrap();
        assert!(TensorFile::open(copy).unwrap().tensors().count() > 0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_goes_away_is_an_error() {
    let files = Files::new();
    let pipe = files.at("pipe");
    mkfifo(&pipe);
    // The reader goes away when the pipe has some of what is written, and cannot have all.
    let mut reader = small_pipe(Path::new(&pipe));
    let mut child = start(&files.writing(QUANTIZE, &pipe, &[]));
    while let Err(error) = reader.read_exact(&mut [0]) {
        assert!(
            matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::UnexpectedEof
            ),
            "{error}"
        );
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(reader);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    contains(&text(&out.stderr), &["Broken pipe"]);
}

/// A signal that somebody sends says nothing about files, and ends the program as any other.
#[cfg(target_os = "linux")]
#[test]
fn a_bus_error_that_is_sent_ends_the_program_by_that_signal() {
    use std::os::unix::process::ExitStatusExt;
    let files = Files::new();
    let pipe = files.at("pipe");
    mkfifo(&pipe);
    let (mut child, mut said) = start_waiting(&files.writing(QUANTIZE, &pipe, &[]));
    let kill = format!("kill -BUS {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGBUS));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn what_is_no_file_is_refused() {
    let files = Files::new();
    fs::create_dir(files.at("directory")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(files.at("socket")).unwrap();
    let before = files.names();
    for (command, _) in COMMANDS {
        for (name, says) in [
            ("directory", "directory"),
            ("socket", "not a regular file"),
            ("new/", "directory"),
            ("gone/new", "no directory"),
        ] {
            let error = fails(&strs(&files.writing(
                command,
                &files.at(name),
                &["--force"],
            )));
            contains(&error, &["cannot be written", says]);
        }
    }
    assert_eq!(files.names(), before);
}

#[test]
fn files_are_replaced_by_force_only() {
    let files = Files::new();
    let (out, link) = (files.at("out"), files.at("link"));
    symlink("out", &link).unwrap();
    for (command, _) in COMMANDS {
        fs::write(&out, "mine").unwrap();
        for path in [&out, &link] {
            let error = fails(&strs(&files.writing(command, path, &[])));
            contains(&error, &["is there already", "--force"]);
            assert_eq!(fs::read(&out).unwrap(), b"mine");
        }
        prints(&strs(&files.writing(command, &link, &["--force"])));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        TensorFile::open(&out).unwrap();
        fs::remove_file(&out).unwrap();
        prints(&strs(&files.writing(command, &link, &[]))); // the link leads to nothing
        TensorFile::open(&out).unwrap();
    }
    let all = ["checkpoint", "link", "model", "out", "problem"];
    assert_eq!(files.names(), all);
}

#[test]
fn inputs_are_never_replaced() {
    let files = Files::new();
    let refuses = |args: Vec<String>, input: &str| {
        let before = fs::read(input).unwrap();
        let error = fails(&strs(&args));
        assert!(error.contains("cannot be written"), "{error}");
        assert!(error.contains("is read as"), "{error}");
        assert_eq!(fs::read(input).unwrap(), before);
    };
    let (hard, soft) = (files.at("hard"), files.at("soft"));
    for (command, input) in COMMANDS {
        let input = files.at(input);
        fs::hard_link(&input, &hard).unwrap();
        symlink(&input, &soft).unwrap();
        for out in [&input, &hard, &soft] {
            refuses(files.writing(command, out, &["--force"]), &input);
        }
        fs::remove_file(&hard).unwrap();
        fs::remove_file(&soft).unwrap();
    }
    // The file of the vectors.
    let x = files.at("x");
    let values = NewTensor::f32(&[32], &[0.25; 32]);
    file::write(Path::new(&x), [("x".to_owned(), values)], None).unwrap();
    let from = format!("{x}:x");
    refuses(files.writing(RUN, &x, &["--force", "--input", &from]), &x);
    // An index, and the file that it names.
    let sharded = files.at("sharded");
    fs::create_dir(&sharded).unwrap();
    let (index, shard) = (
        format!("{sharded}/model.safetensors.index.json"),
        format!("{sharded}/shard.safetensors"),
    );
    fs::copy(files.at("model"), &shard).unwrap();
    let map = r#"{"weight_map": {"fc1.weight": "shard.safetensors", "embed.weight": "shard.safetensors"}}"#;
    fs::write(&index, map).unwrap();
    for input in [&sharded, &index] {
        for out in [&index, &shard] {
            let args = ["quantize", input, out, "--force"].map(str::to_owned);
            refuses(args.to_vec(), out);
        }
    }
}

/// Runs the program in a shell, after `first`.
fn shell(first: &str, args: &[String]) -> std::process::Output {
    script(&format!("{first}; exec \"$@\""), args)
}

/// Runs a script, in which `"$@"` is the program with its arguments.
fn script(script: &str, args: &[String]) -> std::process::Output {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(env!("CARGO_BIN_EXE_nvfp4-gemv"))
        .args(args)
        .env_clear()
        .env("PATH", path)
        .output()
        .unwrap()
}

/// Signals need file descriptors, of which a limit may leave too few.
#[cfg(target_os = "linux")]
#[test]
fn signals_that_cannot_be_handled_are_an_error_like_others() {
    let plan = ["plan", "16", "16", "--json"].map(str::to_owned);
    // The loader of programs needs one more than the standard three, which may be taken here.
    let out = shell("exec 3>&-; ulimit -n 4", &plan);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let error = json["error"].as_str().unwrap();
    assert!(error.contains("cannot handle signals"), "{error}");
}

fn mode(path: &str) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn new_files_follow_the_umask_and_replaced_ones_keep_their_mode() {
    let files = Files::new();
    let out = files.at("out");
    for (command, _) in COMMANDS {
        for (umask, new) in [("077", 0o600), ("002", 0o664)] {
            let first = format!("umask {umask}");
            let written = shell(&first, &files.writing(command, &out, &[]));
            assert!(written.status.success(), "{}", text(&written.stderr));
            assert_eq!(mode(&out), new, "{command:?}");
            for old in [0o600, 0o640] {
                fs::set_permissions(&out, Permissions::from_mode(old)).unwrap();
                let written = shell(&first, &files.writing(command, &out, &["--force"]));
                assert!(written.status.success(), "{}", text(&written.stderr));
                assert_eq!(mode(&out), old, "{command:?}");
            }
            fs::remove_file(&out).unwrap();
        }
    }
}

#[test]
fn a_limit_of_file_sizes_is_an_error() {
    let files = Files::new();
    let out = files.at("out");
    fs::write(&out, "mine").unwrap();
    let before = files.names();
    for command in [&format!("{RUN} --random 1 --n 16"), QUANTIZE] {
        // One block, of 512 or 1024 bytes.
        let failed = shell("ulimit -f 1", &files.writing(command, &out, &["--force"]));
        let error = text(&failed.stderr);
        assert_eq!(failed.status.code(), Some(1), "{error}");
        contains(&error, &["cannot be written", "too large"]);
        assert_eq!(fs::read(&out).unwrap(), b"mine");
        assert_eq!(files.names(), before);
    }
}

/// The program has seen that all weights are finite, and writes; then one of them is NaN.
#[cfg(target_os = "linux")]
#[test]
fn an_input_that_changes_while_it_is_quantised_is_an_error() {
    let files = Files::new();
    let (model, pipe) = (files.at("model"), files.at("pipe"));
    // More than a pipe holds, of what comes before the codes, and too large to be read at once.
    let big = vec![0.0; 5 << 20];
    let tensors = [
        ("big", NewTensor::f32(&[big.len()], &big)),
        ("fc1.weight", NewTensor::f32(&[64, 32], &[0.5; 64 * 32])),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
    file::write(Path::new(&model), tensors, None).unwrap();
    let at = {
        let file = fs::read(&model).unwrap();
        let opened = TensorFile::open(&model).unwrap();
        let tensor = opened.get("fc1.weight").unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32);
        file.len() - tensor.bytes().len() // the last one by name
    };
    mkfifo(&pipe);
    let (mut child, mut said) = start_waiting(&files.writing(QUANTIZE, &pipe, &[]));
    let mut reader = File::open(&pipe).unwrap();
    reader.read_exact(&mut [0; 8]).unwrap();
    let input = OpenOptions::new().write(true).open(&model).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&input, &f32::NAN.to_le_bytes(), at as u64).unwrap();
    reader.read_to_end(&mut Vec::new()).unwrap();
    let mut error = String::new();
    said.read_to_string(&mut error).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{error}");
    contains(&error, &["fc1.weight", "NaN"]);
}

/// Standard output gets the result, and the report goes elsewhere.
#[cfg(target_os = "linux")]
#[test]
fn a_result_on_standard_output_is_nothing_but_the_result() {
    let files = Files::new();
    let (out, link) = (files.at("out"), files.at("link"));
    symlink("/dev/stdout", &link).unwrap();
    for (command, _) in COMMANDS {
        let plain = files.at("plain");
        prints(&strs(&files.writing(command, &plain, &["--force"])));
        let expected = fs::read(&plain).unwrap();
        for to in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", &link] {
            for json in [&[][..], &["--json"]] {
                let args = files.writing(command, to, json);
                // A pipe, a file from its beginning, and a file behind what it holds.
                let piped = script("exec \"$@\"", &args);
                assert!(piped.status.success(), "{args:?}: {}", text(&piped.stderr));
                assert_eq!(piped.stdout, expected, "{args:?}");
                let report = text(&piped.stderr);
                let parsed = serde_json::from_str::<serde_json::Value>(&report);
                assert_eq!(parsed.is_ok(), !json.is_empty(), "{report}");
                assert!(!report.is_empty(), "{args:?}");
                let redirected = format!("{{ \"$@\"; echo end; }} > {out}");
                let said = script(&redirected, &args);
                assert_eq!(text(&said.stderr).lines().count(), report.lines().count());
                assert_eq!(fs::read(&out).unwrap(), [&expected[..], b"end\n"].concat());
                fs::write(&out, "before\n").unwrap();
                script(&format!("exec \"$@\" >> {out}"), &args);
                assert_eq!(
                    fs::read(&out).unwrap(),
                    [b"before\n", &expected[..]].concat()
                );
            }
        }
        // By its own name: then it is replaced, and what was open has gone.
        let args = files.writing(command, &out, &["--force"]);
        let said = script(&format!("exec \"$@\" > {out}"), &args);
        assert!(said.status.success() && !said.stderr.is_empty(), "{args:?}");
        assert_eq!(fs::read(&out).unwrap(), expected);
        fs::remove_file(&out).unwrap();
    }
}

/// Behind what it holds, and over it.
#[cfg(target_os = "linux")]
#[test]
fn an_input_that_is_standard_output_stays() {
    let files = Files::new();
    for (command, input) in COMMANDS {
        let input = files.at(input);
        let before = fs::read(&input).unwrap();
        for redirected in [">>", "1<>"] {
            for to in ["/dev/stdout", "/proc/self/fd/1", &*input] {
                for option in ["--force", "--json"] {
                    let args = files.writing(command, to, &[option]);
                    let ended = script(&format!("exec \"$@\" {redirected} {input}"), &args);
                    assert!(fs::read(&input).unwrap() == before, "{redirected} {args:?}");
                    assert_eq!(ended.status.code(), Some(1), "{redirected} {args:?}");
                    contains(
                        &text(&ended.stderr),
                        &["cannot be written", "this is the file that is read as"],
                    );
                }
            }
        }
    }
}

/// Messages may come at any time.
#[cfg(target_os = "linux")]
#[test]
fn a_result_is_not_mixed_with_messages() {
    let files = Files::new();
    let out = files.at("out");
    for (command, _) in COMMANDS {
        for (to, text_of) in &[
            ("/dev/stderr", format!("exec \"$@\" 2> {out}")),
            ("/dev/stdout", format!("exec \"$@\" > {out} 2>&1")),
            ("/dev/stderr", format!("exec \"$@\" > {out} 2>&1")),
            (&*out, format!("exec \"$@\" 2> {out}")),
        ] {
            let args = files.writing(command, to, &["--force"]);
            let ended = script(text_of, &args);
            assert_eq!(ended.status.code(), Some(1), "{text_of} {args:?}");
            contains(
                &fs::read_to_string(&out).unwrap(),
                &["this is standard error"],
            );
        }
        // Nothing is mixed where nothing is kept.
        let args = files.writing(command, "/dev/null", &[]);
        assert!(
            script("exec \"$@\" > /dev/null 2>&1", &args)
                .status
                .success()
        );
        let said = script("exec \"$@\" > /dev/null", &args);
        assert_eq!(text(&said.stderr), "");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_that_nobody_gets_is_an_error() {
    let says = "error: standard output: ";
    for command in [
        "plan 4096 4096",
        "plan 4096 4096 --json",
        "info",
        "info --json",
        "--help",
        "plan --help",
        "--version",
    ] {
        let args: Vec<String> = words(command).iter().map(ToString::to_string).collect();
        for (to, why) in [("> /dev/full", "No space left"), (">&-", "it was closed")] {
            let ended = script(&format!("exec \"$@\" {to}"), &args);
            assert_eq!(ended.status.code(), Some(1), "{command} {to}");
            contains(&text(&ended.stderr), &[says, why]);
        }
        // Who reads no more has what he wants.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut left = crate::command();
        let left = left.args(&args).stdout(writer).output().unwrap();
        assert!(left.status.success(), "{command}");
        assert_eq!(text(&left.stderr), "", "{command}");
    }
}
