//! The one way in which these programs write a file that somebody names: whole, or not at all.
//!
//! A [`Destination`] is the path and what may be replaced there. [`Destination::check`] says before long work whether
//! writing will be possible; [`Destination::create`] gives a file to write to; [`OutputFile::publish`] gives it its
//! name. Until then nobody sees it, and the file that had the name stays as it was.
//!
//! # What the path may lead to
//!
//! - Nothing: a new file, with the rights that the umask leaves of 0666. If something appears there in the meantime, it
//!   stays, unless it may be replaced.
//! - A regular file: it is replaced in one step if [`Destination::replace`] allows it, and refused otherwise. The new
//!   one gets its mode, and its owner and group as far as the system allows that. Access control lists and extended
//!   attributes are not copied; other hard links keep the old content.
//! - A file that [`Destination::never_over`] names, under whatever name, as standard output too: refused, always.
//! - A symbolic link: the file that it leads to is written, the link stays. If it leads to nothing, the file is made
//!   there.
//! - A pipe or a character device such as `/dev/null`: written in place. Opening a named pipe waits until somebody
//!   reads it ([`Destination::on_wait`]). Bytes that were written before a failure stay written.
//! - A link to an open file, such as `/dev/stdout` or `/proc/self/fd/3` where that is a regular file: it is written in
//!   place as well, after what it holds. Such a link leads to the file that is open, and a new file under its name
//!   would not be that one.
//! - Standard output, under whatever name: the content goes there, and [`stdout_holds_result`] then says that a report
//!   must go elsewhere. Standard error: refused, since messages would be among the content. `/dev/null` may be all of
//!   them.
//! - Anything else (directories, block devices, sockets): refused.
//!
//! # What is left after a failure
//!
//! Nothing, after an error. When the process is ended, it depends on the system. On Linux a file without a name
//! (`O_TMPFILE`) takes the content, and goes away with the process. Where the file system has none (NFS, FAT), or on
//! other systems, the file has a name that begins with `.nvfp4-gemv-`, in the same folder.
//! `remove_temporaries_on_signals` removes such a file, except after SIGKILL, and after SIGBUS, which is sent when a
//! mapped input goes away while it is read. A file without a name has such a name, too, in the moment in which it
//! replaces another, because Linux can only replace by name.
//!
//! The content is on the disk before it gets its name, so that a power cut cannot leave an empty file under it.

#[cfg(all(unix, feature = "program"))]
mod signals;
mod standard;
mod temporary;
#[cfg(all(test, unix))]
mod tests;

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

#[cfg(all(unix, feature = "program"))]
pub use signals::remove_temporaries_on_signals;
use standard::Standard;
pub use standard::stdout_holds_result;
#[cfg(feature = "program")]
pub use standard::stdout_was_closed;
use temporary::{Temporary, folder_of};

/// A path to write to, and what may be replaced there.
#[derive(Clone, Debug)]
pub struct Destination {
    path: PathBuf,
    replace: bool,
    only_files: bool,
    inputs: Vec<(PathBuf, Option<FileId>)>,
    on_wait: fn(&Path),
}

/// The place that a path leads to.
enum Place {
    /// A file that is there, or that will be: the path without symbolic links at its end.
    File {
        path: PathBuf,
        existing: Option<Metadata>,
    },
    /// A stream, which is written in place.
    Stream(Stream),
}

/// Streams, which are written in place.
#[derive(Clone, Debug, PartialEq)]
enum Stream {
    Pipe,
    /// A character device.
    Device,
    /// A regular file that a link of the system's leads to, not a name.
    OpenFile(Option<FileId>),
    /// This process's own standard output.
    Standard,
}

/// The end of the links at the end of a path.
enum End {
    /// A name, whether or not a file has it.
    Name(PathBuf),
    /// A file that some process has open, whatever its name.
    Open,
}

impl Destination {
    /// A file that is not there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            replace: false,
            only_files: false,
            inputs: Vec::new(),
            on_wait: |_| (),
        }
    }

    /// Whether a regular file that is there may be replaced.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Refuses whatever would be written in place: pipes, devices, files without a name. Standard output and standard
    /// error are files as any others then.
    #[must_use]
    pub fn only_files(mut self) -> Self {
        self.only_files = true;
        self
    }

    /// A file that must stay, because the content is made from it. It is known by more than its name: another
    /// hard link of it, or a symbolic link to it, is refused as well.
    #[must_use]
    pub fn never_over(mut self, input: impl Into<PathBuf>) -> Self {
        let input = input.into();
        let id = FileId::at(&input);
        self.inputs.push((input, id));
        self
    }

    /// Sets the function to call before waiting for somebody to read a named pipe.
    #[must_use]
    pub fn on_wait(mut self, tell: fn(&Path)) -> Self {
        self.on_wait = tell;
        self
    }

    /// The path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a file could be written now. Never waits, and leaves nothing.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] for a file that may not be replaced. Other kinds for everything else that the
    /// module's text refuses, for a folder that is not there, and for any refusal of the system.
    pub fn check(&self) -> io::Result<()> {
        match self.place()? {
            Place::File { path, existing } => {
                Temporary::new(folder_of(&path), existing.as_ref()).map(drop)
            }
            // Standard output is open already.
            Place::Stream(Stream::Standard) => Ok(()),
            #[cfg(unix)]
            Place::Stream(_) => Ok(rustix::fs::access(
                &self.path,
                rustix::fs::Access::WRITE_OK,
            )?),
            #[cfg(not(unix))]
            Place::Stream(_) => Ok(()),
        }
    }

    /// Whether the path leads to what is written in place, and so holds no file to read afterwards.
    pub fn is_stream(&self) -> bool {
        matches!(self.place(), Ok(Place::Stream(_)))
    }

    /// A file to write to, which has no name yet.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn create(&self) -> io::Result<OutputFile<'_>> {
        let (file, to) = match self.place()? {
            Place::File { path, existing } => {
                let (file, temporary) = Temporary::new(folder_of(&path), existing.as_ref())?;
                (file, To::File { temporary, path })
            }
            Place::Stream(stream) => (self.open_stream(&stream)?, To::Stream),
        };
        Ok(OutputFile {
            content: BufWriter::with_capacity(1 << 20, file),
            written: 0,
            to,
            output: self,
        })
    }

    /// Writes a file that holds this.
    ///
    /// # Errors
    /// As [`check`](Self::check), and [`OutputFile::publish`]'s.
    pub fn write(&self, content: &[u8]) -> io::Result<()> {
        let mut file = self.create()?;
        file.write_all(content)?;
        file.publish()
    }

    /// The place that the path leads to now, if it may be written.
    fn place(&self) -> io::Result<Place> {
        if self.path.file_name().is_none() || ends_as_folder(&self.path) {
            let why = "this names a directory; name the file to write";
            return Err(io::Error::new(ErrorKind::IsADirectory, why));
        }
        // The system has the first word: it may not let this process follow a link.
        let followed = metadata(&self.path)?;
        let end = end_of_links(&self.path)?;
        // The file that is judged has to be the file that is replaced.
        let existing = match &end {
            End::Name(path) => metadata(path)?,
            End::Open => followed,
        };
        if let Some(metadata) = &existing {
            let kind = metadata.file_type();
            let standard = match self.only_files {
                true => None,
                false => standard::which(metadata),
            };
            match standard {
                Some(Standard::Error) => {
                    return Err(refused(
                        "this is standard error, and messages would be among the content; name another file",
                    ));
                }
                // A file that is replaced is this process's output no more, and so no place for a report either.
                Some(Standard::Output) => standard::stdout_gets_result(),
                None => {}
            }
            // An open file may lead to an input, too: appending to an input destroys it as well.
            if kind.is_file()
                && let Some(input) = self.input_at(metadata)
            {
                let input = crate::printable::path(input);
                return Err(refused(format!("this is the file that is read as {input}")));
            }
            let stream = stream(kind);
            if standard.is_some() && (stream.is_some() || matches!(end, End::Open)) {
                return Ok(Place::Stream(Stream::Standard));
            }
            if let Some(stream) = stream.filter(|_| !self.only_files) {
                return Ok(Place::Stream(stream));
            }
            if !kind.is_file() {
                return Err(refused(match kind.is_dir() {
                    true => "this is a directory; name the file to write",
                    false => "this is not a regular file",
                }));
            }
        }
        match (end, existing) {
            (End::Open, _) if self.only_files => {
                Err(refused("this leads to an open file; name the file itself"))
            }
            (End::Name(_), Some(_)) if !self.replace => Err(already_exists()),
            (End::Name(path), existing) => Ok(Place::File { path, existing }),
            (End::Open, Some(open)) => {
                let id = FileId::of(&self.path, &open);
                Ok(Place::Stream(Stream::OpenFile(id)))
            }
            (End::Open, None) => Err(changed()),
        }
    }

    /// The input that is this file: as it was when it was named, or by its path now.
    fn input_at(&self, file: &Metadata) -> Option<&Path> {
        let id = Some(FileId::of(&self.path, file)?);
        let mut inputs = self.inputs.iter();
        let (path, _) = inputs.find(|(path, then)| *then == id || FileId::at(path) == id)?;
        Some(path)
    }

    #[cfg(unix)]
    fn open_stream(&self, stream: &Stream) -> io::Result<File> {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        use rustix::io::Errno;

        if *stream == Stream::Standard {
            use std::os::fd::AsFd;
            // A duplicate shares the place in the file, so that whoever writes next writes behind this. Opening the
            // name would not.
            return Ok(io::stdout().as_fd().try_clone_to_owned()?.into());
        }
        let open = |flags: OFlags| {
            // Without NOCTTY a terminal could become the one that controls this process.
            let mut flags = flags | OFlags::NOCTTY;
            if matches!(stream, Stream::OpenFile(_)) {
                flags |= OFlags::APPEND;
            }
            fs::OpenOptions::new()
                .write(true)
                .custom_flags(flags.bits().cast_signed())
                .open(&self.path)
        };
        let file = match open(OFlags::NONBLOCK) {
            Ok(file) => {
                fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
                file
            }
            // Nobody reads it yet.
            Err(error)
                if *stream == Stream::Pipe && Errno::from_io_error(&error) == Some(Errno::NXIO) =>
            {
                (self.on_wait)(&self.path);
                open(OFlags::empty())?
            }
            Err(error) => return Err(error),
        };
        let opened = file.metadata()?;
        let as_before = match stream {
            Stream::OpenFile(id) => *id == FileId::of(&self.path, &opened),
            Stream::Standard => true,
            Stream::Pipe | Stream::Device => self::stream(opened.file_type()).is_some(),
        };
        if as_before { Ok(file) } else { Err(changed()) }
    }

    #[cfg(not(unix))]
    fn open_stream(&self, _: &Stream) -> io::Result<File> {
        Err(changed())
    }
}

/// A file that is being written. Dropped without [`publish`](Self::publish), it was never there.
#[derive(Debug)]
pub struct OutputFile<'a> {
    content: BufWriter<File>,
    written: u64,
    to: To,
    output: &'a Destination,
}

#[derive(Debug)]
enum To {
    File { temporary: Temporary, path: PathBuf },
    Stream,
}

impl OutputFile<'_> {
    /// How many bytes were written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Gives the file its name, if what [`Destination::create`] checked still holds.
    ///
    /// # Errors
    /// As [`Destination::check`], and what the system reports. The name then stands for what it did before.
    pub fn publish(self) -> io::Result<()> {
        let file = self.content.into_inner().map_err(|e| e.into_error())?;
        let To::File { temporary, path } = self.to else {
            return Ok(());
        };
        file.sync_all()?;
        // Hours may have passed.
        match self.output.place()? {
            Place::File {
                path: now,
                existing,
            } if now == path => {
                if let Some(existing) = &existing {
                    temporary::take_rights(&file, existing)?;
                }
            }
            _ => return Err(changed()),
        }
        temporary.publish(&file, &path, self.output.replace)
    }
}

impl Write for OutputFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.content.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.content.flush()
    }
}

/// Identity of a file, which is the same under all its names.
#[cfg(unix)]
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

#[cfg(unix)]
impl FileId {
    #[allow(clippy::unnecessary_wraps)] // not every system says it
    fn of(_: &Path, file: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        Some(Self(file.dev(), file.ino()))
    }
}

#[cfg(not(unix))]
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileId(PathBuf);

#[cfg(not(unix))]
impl FileId {
    fn of(path: &Path, _: &Metadata) -> Option<Self> {
        path.canonicalize().ok().map(Self)
    }
}

impl FileId {
    fn at(path: &Path) -> Option<Self> {
        Self::of(path, &fs::metadata(path).ok()?)
    }
}

/// The kind of stream that a file type is, whatever leads there; none for a type that is not written in place.
fn stream(kind: FileType) -> Option<Stream> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return Some(Stream::Pipe);
        }
        if kind.is_char_device() {
            return Some(Stream::Device);
        }
    }
    let _ = kind;
    None
}

/// Whether a path says that it is a folder's, which `Path::file_name` passes over.
fn ends_as_folder(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    [&b"/"[..], b"/."].iter().any(|end| bytes.ends_with(end))
}

/// Metadata of the file at a path, through symbolic links.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The end of the links that the last part of a path is, whether or not something is there.
fn end_of_links(path: &Path) -> io::Result<End> {
    /// The number of links that Linux follows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..=MOST_LINKS {
        match fs::read_link(&path) {
            Ok(_) if leads_to_what_is_open(&path) => return Ok(End::Open),
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) => return Ok(End::Name(path)), // no link
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Whether a symbolic link is one of /proc. The system follows those without their text, which may be the name
/// of another file by now.
fn leads_to_what_is_open(link: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{PROC_SUPER_MAGIC, statfs};
        statfs(folder_of(link)).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = link;
        false
    }
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why.into())
}

fn already_exists() -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, "is there already")
}

fn changed() -> io::Error {
    io::Error::other("something else was put in its place meanwhile")
}
