//! The destination of a command's output: which files it may replace, and which never.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nvfp4_gemv::checkpoint::{Checkpoint, INDEX_FILE};
use nvfp4_gemv_cli::file::WriteError;
use nvfp4_gemv_files::output::Destination;

/// The destination that `--output` and `--force` of a command mean. Reports before long work what cannot be written.
pub(crate) fn output(
    path: &Path,
    force: bool,
    inputs: impl IntoIterator<Item = PathBuf>,
) -> Result<Destination, WriteError> {
    let all = Destination::new(path).replace(force).on_wait(|path| {
        let _ = writeln!(
            io::stderr(),
            "waiting until somebody reads the pipe {}",
            nvfp4_gemv_files::printable::path(path)
        );
    });
    let output = inputs.into_iter().fold(all, Destination::never_over);
    match output.check() {
        Ok(()) => Ok(output),
        Err(error) => Err(WriteError::writing(path, error)),
    }
}

/// The files that a checkpoint is read from: its tensors' and, where there is one, its index.
pub(crate) fn files_of(checkpoint: &Checkpoint) -> Vec<PathBuf> {
    let path = checkpoint.path();
    let mut files = vec![path.to_owned(), path.join(INDEX_FILE)];
    files.extend(checkpoint.files().iter().map(|file| file.path().to_owned()));
    files
}
