//! Detects changes of the files from which settings come.
//!
//! The stamp is taken before the file is read, so that a write in between shows as a change. This
//! file must not interpret a file's contents.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The files to check among those that the config names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileChecks {
    /// All files that an edge needs.
    Edge,
    /// The files of a sidecar in a separate process, which has no certificate and no access log.
    Sidecar,
    /// Only the files of `file:` values, which are part of the settings.
    Secrets,
    /// No files, because the config belongs to another machine. A `file:` value becomes a
    /// placeholder.
    None,
}

/// A file and its stamp from just before it was read.
#[derive(Debug, Clone)]
pub struct SourceFile {
    path: PathBuf,
    stamp: FileStamp,
}

/// Metadata of a file: device, inode and size, and the times of the last write to its contents and
/// to its inode, in seconds and nanoseconds. Links are followed, so a link to another file shows as
/// a change. `None` if the file does not exist.
pub type FileStamp = Option<([u64; 3], [i64; 4])>;

impl SourceFile {
    pub fn from_path(path: &Path) -> Self {
        let stamp = std::fs::metadata(path).ok().map(|file| {
            (
                [file.dev(), file.ino(), file.size()],
                [
                    file.mtime(),
                    file.mtime_nsec(),
                    file.ctime(),
                    file.ctime_nsec(),
                ],
            )
        });
        Self {
            path: path.to_owned(),
            stamp,
        }
    }

    /// Returns the same file with its current stamp.
    pub fn restat(&self) -> Self {
        Self::from_path(&self.path)
    }

    pub fn stamp(&self) -> FileStamp {
        self.stamp
    }
}

/// Maximum time to wait for the writer of a config file that is a pipe.
pub(super) const PIPE_READ_LIMIT: Duration = Duration::from_secs(10);

/// Reads a config file. The file may be a pipe, whose writer has time until `limit`.
pub(super) fn read_config(path: &Path, limit: Duration) -> io::Result<String> {
    if std::fs::metadata(path)?.is_file() {
        return std::fs::read_to_string(path);
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let pipe = path.to_owned();
    std::thread::Builder::new()
        .name("config".into())
        .spawn(move || drop(sender.send(std::fs::read_to_string(pipe))))?;
    receiver.recv_timeout(limit).unwrap_or_else(|_| {
        let message = format!("nobody wrote all of this pipe within {} s", limit.as_secs());
        Err(io::Error::new(ErrorKind::TimedOut, message))
    })
}

/// Returns a message about a file that cannot be read.
pub(super) fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => format!("the file {path} does not exist"),
        ErrorKind::NotADirectory => {
            format!("the file {path} does not exist: a part of its path is not a folder")
        }
        ErrorKind::PermissionDenied => format!("{} may not read {path}", this_process()),
        ErrorKind::IsADirectory => format!("{path} is a directory, not a file"),
        ErrorKind::InvalidData => format!("{path} is not text in UTF-8"),
        _ => format!("cannot read {path}: {error}"),
    }
}

pub(super) fn this_process() -> String {
    let user = rustix::process::geteuid();
    format!("this process (user ID {})", user.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_read_as_a_file_is_and_waited_for_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let new_pipe = |name: &str| {
            let pipe = dir.path().join(name);
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
            pipe
        };
        let pipe = new_pipe("unwritten");
        let error = read_config(&pipe, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(
            cannot_read(&pipe, &error).contains("nobody wrote"),
            "{error}"
        );
        // The reader that gave up still waits at its pipe and would take what is written there.
        let pipe = new_pipe("written");
        let end = pipe.clone();
        let writer = std::thread::spawn(move || std::fs::write(end, "listen: {}"));
        let text = read_config(&pipe, Duration::from_secs(60)).unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(text, "listen: {}");
        let none = read_config(dir.path(), Duration::from_secs(60)).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::IsADirectory);
    }

    #[test]
    fn every_way_to_change_a_file_shows_and_reading_it_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let link = path("link");
        std::fs::write(path("one"), "one").unwrap();
        std::fs::write(path("two"), "one").unwrap();
        std::os::unix::fs::symlink(path("one"), &link).unwrap();
        let mut last = SourceFile::from_path(&link);
        assert!(last.stamp().is_some());
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "one");
        assert_eq!(last.restat().stamp(), last.stamp(), "it was read, no more");
        let mut changed = |how: &str| {
            let now = last.restat();
            assert_ne!(now.stamp(), last.stamp(), "{how}");
            last = now;
        };
        std::fs::write(path("one"), "one more").unwrap();
        changed("written in place");
        std::fs::rename(path("two"), path("one")).unwrap();
        changed("renamed over");
        std::fs::write(path("three"), "one").unwrap();
        std::os::unix::fs::symlink(path("three"), path("new")).unwrap();
        std::fs::rename(path("new"), &link).unwrap();
        changed("the link turned");
        std::fs::remove_file(path("three")).unwrap();
        changed("gone");
        assert!(last.stamp().is_none());
        std::fs::write(path("three"), "one").unwrap();
        assert!(last.restat().stamp().is_some(), "back");
    }
}
