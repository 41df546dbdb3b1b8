//! Attacks on the writer: what is at the path, what comes there meanwhile, and processes that are ended.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::temporary::Rights;
use super::*;

/// The names in a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The kinds of temporaries: both, where the file system has both; `false` for those without a name.
fn kinds(folder: &Path) -> Vec<bool> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        let flags = OFlags::TMPFILE | OFlags::WRONLY;
        if openat(CWD, folder, flags, Mode::empty()).is_ok() {
            let (_, temporary) = Temporary::new(folder, None).unwrap();
            assert!(matches!(temporary, Temporary::Unnamed));
            return vec![false, true];
        }
    }
    eprintln!("skipped: {} has no files without a name", folder.display());
    vec![true]
}

/// [`Destination::create`], with a kind of temporary.
fn create(output: &Destination, named: bool) -> io::Result<OutputFile<'_>> {
    let mut file = output.create()?;
    if named && let To::File { temporary, path } = &mut file.to {
        let rights = match path.exists() {
            true => Rights::Owner,
            false => Rights::Umask,
        };
        let (inner, with_name) = Temporary::named(folder_of(path), rights)?;
        if let Ok(existing) = fs::metadata(&*path) {
            temporary::take_rights(&inner, &existing)?;
        }
        file.content = BufWriter::new(inner);
        *temporary = with_name;
    }
    Ok(file)
}

fn put(output: &Destination, named: bool, text: &str) -> io::Result<()> {
    let mut file = create(output, named)?;
    file.write_all(text.as_bytes())?;
    file.publish()
}

#[test]
fn a_file_appears_whole_and_replaces_only_what_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    for named in kinds(folder.path()) {
        let new = Destination::new(&path);
        new.check().unwrap();
        assert_eq!(names_in(folder.path()), [""; 0], "a check leaves nothing");
        let mut file = create(&new, named).unwrap();
        file.write_all(b"half").unwrap();
        file.flush().unwrap();
        drop(file);
        assert_eq!(
            names_in(folder.path()),
            [""; 0],
            "half a file leaves nothing"
        );
        put(&new, named, "one").unwrap();
        for result in [new.check(), put(&new, named, "two")] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        put(&new.clone().replace(true), named, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(names_in(folder.path()), ["out"]);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn what_comes_to_the_path_meanwhile_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let other = folder.path().join("other");
    for named in kinds(folder.path()) {
        for replace in [false, true] {
            let output = Destination::new(&path).replace(replace).never_over(&other);
            // A file.
            let file = create(&output, named).unwrap();
            fs::write(&path, "theirs").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            match file.publish() {
                Ok(()) => assert!(replace),
                Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
            }
            let theirs = if replace { "" } else { "theirs" };
            assert_eq!(fs::read_to_string(&path).unwrap(), theirs);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            fs::remove_file(&path).unwrap();
            // Another name of an input.
            fs::write(&other, "input").unwrap();
            let file = create(&output, named).unwrap();
            fs::hard_link(&other, &path).unwrap();
            file.publish().unwrap_err();
            assert_eq!(fs::read_to_string(&path).unwrap(), "input");
            fs::remove_file(&path).unwrap();
            // A link, and a directory.
            let file = create(&output, named).unwrap();
            symlink("other", &path).unwrap();
            file.publish().unwrap_err();
            assert_eq!(fs::read_to_string(&other).unwrap(), "input");
            fs::remove_file(&path).unwrap();
            let file = create(&output, named).unwrap();
            fs::create_dir(&path).unwrap();
            file.publish().unwrap_err();
            fs::remove_dir(&path).unwrap();
            fs::remove_file(&other).unwrap();
            assert_eq!(names_in(folder.path()), [""; 0]);
        }
    }
}

/// The rule holds in the moment after the last look at the path, too.
#[test]
fn a_new_name_is_taken_only_if_it_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    fs::write(&path, "theirs").unwrap();
    for named in kinds(folder.path()) {
        let temporary = match named {
            true => Temporary::named(folder.path(), Rights::Umask),
            false => Temporary::new(folder.path(), None),
        };
        let (file, temporary) = temporary.unwrap();
        let error = temporary.publish(&file, &path, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        assert_eq!(names_in(folder.path()), ["out"]);
    }
}

#[test]
fn links_lead_to_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for named in kinds(folder.path()) {
        fs::create_dir(at("there")).unwrap();
        symlink("there/next", at("link")).unwrap();
        symlink("../target", at("there/next")).unwrap();
        let output = Destination::new(at("link"));
        put(&output, named, "new").unwrap(); // the links lead to nothing yet
        assert!(put(&output, named, "other").is_err());
        put(&output.replace(true), named, "newer").unwrap();
        for link in ["link", "there/next"] {
            assert!(at(link).symlink_metadata().unwrap().is_symlink());
        }
        assert!(at("target").symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(at("target")).unwrap(), "newer");
        symlink("circle", at("circle")).unwrap();
        put(&Destination::new(at("circle")).replace(true), named, "").unwrap_err();
        symlink("nowhere/target", at("lost")).unwrap();
        let error = put(&Destination::new(at("lost")), named, "").unwrap_err();
        assert!(error.to_string().contains("no directory"), "{error}");
        assert_eq!(names_in(folder.path()).len(), 5);
        fs::remove_dir_all(at("there")).unwrap();
        for file in ["link", "target", "circle", "lost"] {
            fs::remove_file(at(file)).unwrap();
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn links_to_open_files_are_written_in_place() {
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("log"), "old ").unwrap();
    let open = fs::OpenOptions::new().write(true).open(at("log")).unwrap();
    let inode = open.metadata().unwrap().ino();
    let magic = format!("/proc/self/fd/{}", open.as_raw_fd());
    symlink(&magic, at("link")).unwrap();
    for path in [PathBuf::from(&magic), at("link")] {
        let output = Destination::new(&path).replace(true);
        output.check().unwrap();
        assert!(output.is_stream());
        put(&output, false, "new ").unwrap();
        output.never_over(at("log")).check().unwrap_err();
    }
    assert_eq!(fs::read_to_string(at("log")).unwrap(), "old new new ");
    assert_eq!(fs::metadata(at("log")).unwrap().ino(), inode);
    // The link leads to the open file even when the name is another file's by now.
    fs::rename(at("log"), at("moved")).unwrap();
    fs::write(at("log"), "other").unwrap();
    put(&Destination::new(&magic).replace(true), false, "newest").unwrap();
    assert_eq!(fs::read_to_string(at("log")).unwrap(), "other");
    let moved = fs::read_to_string(at("moved")).unwrap();
    assert_eq!(moved, "old new new newest");
    assert_eq!(names_in(folder.path()), ["link", "log", "moved"]);
}

#[test]
fn a_replaced_file_keeps_its_rights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let mut given_away = false;
    for named in kinds(folder.path()) {
        for mode in [0o600, 0o400, 0o640, 0o666, 0o755] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            given_away = std::os::unix::fs::chown(&path, Some(1234), Some(4321)).is_ok();
            let old = fs::metadata(&path).unwrap();
            let output = Destination::new(&path).replace(true);
            let file = create(&output, named).unwrap();
            let early = file.content.get_ref().metadata().unwrap();
            assert_eq!(early.mode() & 0o777, mode, "before anything is written");
            file.publish().unwrap();
            let new = fs::metadata(&path).unwrap();
            assert_ne!(new.ino(), old.ino());
            let rights = |file: &Metadata| (file.mode() & 0o777, file.uid(), file.gid());
            assert_eq!(rights(&new), rights(&old));
            fs::remove_file(&path).unwrap();
        }
    }
    if !given_away {
        eprintln!("skipped: only root can give files to others");
    }
}

/// Whoever opens a file keeps what its mode allowed then, so a mode that is changed later is too late.
#[test]
fn what_replaces_a_file_is_its_owners_alone_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _temporary) = Temporary::named(folder.path(), Rights::Owner).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o177, 0);
    #[cfg(target_os = "linux")]
    if kinds(folder.path()).len() == 2 {
        let file = temporary::unnamed::create(folder.path(), Rights::Owner).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o177, 0);
    }
}

#[test]
fn paths_that_name_no_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let long = "x".repeat(300);
    for name in [
        "directory",
        "socket",
        "new/",
        "new/.",
        "..",
        "no/new",
        &long,
    ] {
        let output = Destination::new(at(name)).replace(true);
        output.check().unwrap_err();
        output.create().unwrap_err();
    }
    assert!(Destination::new("").check().is_err());
    Destination::new("/dev/null").check().unwrap();
    assert_eq!(names_in(folder.path()), ["directory", "socket"]);
}

#[test]
fn a_file_keeps_its_mode_and_a_link_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (file, link) = (at("file"), at("link"));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    fs::write(at("plain"), "").unwrap();
    symlink("file", &link).unwrap();
    for named in kinds(folder.path()) {
        // The link leads to nothing yet: the file is made there.
        put(&Destination::new(&link), named, "new").unwrap();
        assert_eq!(mode(&file), mode(&at("plain")), "what the umask leaves");
        for other in [0o640, 0o600, 0o604] {
            fs::set_permissions(&file, Permissions::from_mode(other)).unwrap();
            put(&Destination::new(&link).replace(true), named, "newer").unwrap();
            assert_eq!(mode(&file), other);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(names_in(folder.path()), ["file", "link", "plain"]);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn only_files_are_files_with_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let to = |path: &Path| Destination::new(path).replace(true).only_files();
    for (refused, kind) in [
        (folder.path().to_owned(), ErrorKind::InvalidInput),
        (folder.path().join("no/file"), ErrorKind::NotFound),
        (folder.path().join("new/"), ErrorKind::IsADirectory),
        ("/dev/null".into(), ErrorKind::InvalidInput),
    ] {
        assert_eq!(
            to(&refused).check().unwrap_err().kind(),
            kind,
            "{refused:?}"
        );
        let error = put(&to(&refused), false, "new").unwrap_err();
        assert_eq!(error.kind(), kind, "{refused:?}");
    }
    fs::write(&file, "old").unwrap();
    // A file that is open and has no name, or whose name is another file's by now.
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let gone = tempfile::tempfile().unwrap();
        let opened = File::open(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::write(&file, "old").unwrap();
        for open in [gone, opened] {
            let link = format!("/proc/self/fd/{}", open.as_raw_fd());
            let error = put(&to(Path::new(&link)), false, "new").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }
    to(&file).check().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    assert_eq!(names_in(folder.path()), ["file"]);
}

#[cfg(feature = "program")]
mod processes {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, ExitStatus, Stdio};

    use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM};

    use super::*;

    /// The variable that makes this test program the process which is ended: it names the folder to write in.
    const FOLDER: &str = "NVFP4_GEMV_TEST_FOLDER";
    const NAMED: &str = "NVFP4_GEMV_TEST_NAMED";

    #[test]
    #[ignore = "it is the process that other tests end"]
    fn writer() {
        let Some(folder) = std::env::var_os(FOLDER) else {
            return;
        };
        remove_temporaries_on_signals().unwrap();
        let output = Destination::new(Path::new(&folder).join("out")).replace(true);
        let mut file = create(&output, std::env::var_os(NAMED).is_some()).unwrap();
        file.write_all(&vec![1; 3 << 20]).unwrap();
        println!("written");
        // Until it is ended.
        let _ = io::stdin().read_line(&mut String::new());
        panic!("nobody has ended this process");
    }

    /// A process that has written half a file, started by a shell after `first`.
    fn start(folder: &Path, named: bool, first: &str) -> Child {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{first} exec \"$@\""), "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "output::tests::processes::writer"])
            .args(["--ignored", "--nocapture"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        match named {
            true => command.env(NAMED, "1"),
            false => command.env_remove(NAMED),
        };
        // Whoever runs the tests may ignore signals, as `nohup` does, and children inherit that.
        let by_default = || {
            for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
                // SAFETY: `signal` is safe to call for these signals between fork and exec.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: the closure only makes the system call above.
        unsafe { command.pre_exec(by_default) };
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("written")));
        child
    }

    fn send(child: &Child, signal: i32) {
        let kill = format!("kill -{signal} {}", child.id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
    }

    fn wait(mut child: Child) -> ExitStatus {
        let stdin = child.stdin.take(); // stays open: at its end the process would go on
        let status = child.wait().unwrap();
        drop(stdin);
        status
    }

    #[test]
    fn signals_leave_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("out"), "old").unwrap();
        for named in kinds(folder) {
            for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGKILL] {
                if named && signal == SIGKILL {
                    continue; // nothing can be done about it
                }
                let child = start(folder, named, "ulimit -c 0;");
                assert_eq!(names_in(folder).len(), if named { 2 } else { 1 });
                send(&child, signal);
                assert_eq!(wait(child).signal(), Some(signal));
                assert_eq!(names_in(folder), ["out"], "signal {signal}, {named}");
                assert_eq!(fs::read_to_string(folder.join("out")).unwrap(), "old");
            }
        }
    }

    #[test]
    fn signals_that_were_ignored_stay_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let child = start(folder.path(), true, "trap '' HUP;");
        send(&child, SIGHUP);
        send(&child, SIGTERM);
        assert_eq!(wait(child).signal(), Some(SIGTERM));
    }
}
