//! Opens regular files without waiting, even if a pipe or a folder has replaced them.
//!
//! Opening a pipe would wait until another process writes to it, perhaps forever. This file must
//! not depend on a format.

use crate::file_owner;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
/// Returns an error if the file cannot be opened, or if it is a folder, a pipe or a device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_with(OpenOptions::new().read(true), path)
}

/// Reads a regular file.
///
/// # Errors
/// Returns the errors of [`open_regular`], and an error if the file cannot be read.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file of text in UTF-8.
///
/// # Errors
/// Returns the errors of [`read_regular`], and an error if the file is not UTF-8.
pub fn read_regular_text(path: &Path) -> io::Result<String> {
    let bytes = read_regular(path)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Opens a regular file with these options.
///
/// # Errors
/// Returns the errors of [`open_regular`].
pub fn open_regular_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = file_owner::open(options.custom_flags(flags), path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(file);
    }
    let kind = match metadata.is_dir() {
        true => io::ErrorKind::IsADirectory,
        false => io::ErrorKind::Other,
    };
    let message = format!("{} is not a regular file", path.display());
    Err(io::Error::new(kind, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_and_a_folder_are_refused_at_once_and_a_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, file) = (dir.path().join("pipe"), dir.path().join("file"));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        std::fs::write(&file, "text").unwrap();
        for path in [&pipe, dir.path()] {
            assert!(open_regular(path).is_err(), "{}", path.display());
        }
        assert!(open_regular_with(OpenOptions::new().write(true), &pipe).is_err());
        assert_eq!(read_regular(&file).unwrap(), b"text");
    }
}
