//! Checks the files and folders that the config names: the certificate, the access log and the data
//! directory.
//!
//! This file must not create, change or keep open any of them.

use super::certificate::{CertificateFault, load_certificate, validity_warning};
use super::raw;
use super::source::{FileChecks, cannot_read, this_process};
use super::validator::ConfigValidator;
use base::clock;
use base::telemetry::access::LogDestination;
use rustix::fs::{Access, access, statfs};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Magic numbers of kernel file systems, which store no files: `/proc` and `/sys`.
const KERNEL_FILE_SYSTEMS: [i64; 2] = [0x9fa0, 0x6265_6572];

impl ConfigValidator {
    pub(super) fn check_data_dir_name(&mut self, name: &str) {
        if name.is_empty() {
            self.add_fault("data_dir", "must name a directory");
        } else if name.starts_with('~') {
            self.add_fault(
                "data_dir",
                "begins with ~, which only a shell replaces: write the whole path",
            );
        }
    }

    pub(super) fn check_files(&mut self, config: &raw::Config, access_log: &LogDestination) {
        if matches!(self.file_checks, FileChecks::Edge | FileChecks::Sidecar)
            && !config.data_dir.is_empty()
            && let Err(message) = check_data_dir(Path::new(&config.data_dir))
        {
            self.add_fault("data_dir", message);
        }
        if self.file_checks != FileChecks::Edge {
            return;
        }
        if let Some(tls) = &config.listen.tls {
            self.check_certificate(tls);
        }
        if let LogDestination::File(path) = access_log
            && let Err(message) = check_log_file(path)
        {
            self.add_fault("access_log", message);
        }
    }

    fn check_certificate(&mut self, tls: &raw::Tls) {
        match load_certificate(Path::new(&tls.cert), Path::new(&tls.key)) {
            Ok(certified) => {
                if let Some(message) = validity_warning(&certified, clock::now_ms()) {
                    self.add_warning("listen.tls.cert".to_owned(), message);
                }
            }
            Err(CertificateFault::Certificate(message)) => {
                self.add_fault("listen.tls.cert", message);
            }
            Err(CertificateFault::Key(message)) => self.add_fault("listen.tls.key", message),
        }
    }
}

/// Checks that the directory can be written, or created if it does not exist yet.
fn check_data_dir(dir: &Path) -> Result<(), String> {
    let mut existing = dir;
    let metadata = loop {
        match std::fs::metadata(existing) {
            Ok(metadata) => break metadata,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                existing = parent(existing);
            }
            Err(error) => return Err(cannot_read(existing, &error)),
        }
    };
    let is_whole = existing == dir;
    if !metadata.is_dir() {
        let shown = existing.display();
        return Err(match is_whole {
            true => "is a file, but must be a directory".to_owned(),
            false => format!("cannot be created, because {shown} is a file"),
        });
    }
    check_writable(existing).map_err(|reason| match is_whole {
        true => reason,
        false => format!("does not exist and cannot be created: {reason}"),
    })
}

/// Checks that the file can be appended to, or created.
fn check_log_file(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            return Err(format!(
                "{} is a directory: name a file in it",
                path.display()
            ));
        }
        Ok(metadata) if metadata.file_type().is_socket() => {
            return Err(format!(
                "{} is a socket, but must be a file or a pipe",
                path.display()
            ));
        }
        Ok(metadata) => {
            let (rights, verb) = match metadata.file_type().is_fifo() {
                // The gateway opens a pipe for reading too, so that it never waits for a reader.
                true => (Access::READ_OK | Access::WRITE_OK, "read and write to"),
                false => (Access::WRITE_OK, "write to"),
            };
            return access(path, rights)
                .map_err(|_| format!("{} may not {verb} {}", this_process(), path.display()));
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
        Err(error) => return Err(cannot_read(path, &error)),
    }
    let folder = parent(path);
    match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => check_writable(folder),
        Ok(_) => Err(format!("{} is not a directory", folder.display())),
        Err(_) => Err(format!(
            "cannot create {}: its directory does not exist, and the gateway does not create it",
            path.display()
        )),
    }
}

/// Returns the folder of a path. The folder of a bare name is the current one.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

fn check_writable(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    if statfs(folder).is_ok_and(|found| KERNEL_FILE_SYSTEMS.contains(&found.f_type)) {
        return Err(format!("{shown} belongs to the kernel and stores no files"));
    }
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| match error {
        rustix::io::Errno::ROFS => format!("{shown} is on a read-only file system"),
        _ => format!("{} may not write to {shown}", this_process()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_dir_exists_or_can_be_created() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink(dir.path(), path("link")).unwrap();
        for good in [
            path("data"),
            path("link/data"),
            path("a/b/c"),
            "data".into(),
        ] {
            assert_eq!(check_data_dir(&good), Ok(()), "{}", good.display());
        }
        for (bad, why) in [
            (path("file"), "is a file, but must be"),
            (path("file/data"), "because"),
            ("/proc/data".into(), "/proc belongs to the kernel"),
            ("/sys".into(), "/sys belongs to the kernel"),
        ] {
            let message = check_data_dir(&bad).unwrap_err();
            assert!(message.contains(why), "{}: {message}", bad.display());
        }
    }

    #[test]
    fn the_folder_of_an_access_log_exists() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "").unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), mode).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for good in [
            path("file"),
            path("pipe"),
            path("new.log"),
            "new.log".into(),
            "/dev/null".into(),
        ] {
            assert_eq!(check_log_file(&good), Ok(()), "{}", good.display());
        }
        for (bad, why) in [
            (path("logs/a.log"), "its directory does not exist"),
            (path("file/a.log"), "file is not a directory"),
            (path(""), "is a directory: name a file in it"),
            (path("socket"), "is a socket"),
            ("/proc/a.log".into(), "belongs to the kernel"),
        ] {
            let message = check_log_file(&bad).unwrap_err();
            assert!(message.contains(why), "{}: {message}", bad.display());
        }
    }

    /// The kernel refuses nothing to root, so a user who is not root runs this test in full.
    #[test]
    fn a_folder_of_another_user_is_not_writable() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        for outcome in [
            check_data_dir(&closed),
            check_data_dir(&closed.join("data")),
            check_log_file(&closed.join("a.log")),
        ] {
            assert_eq!(outcome.is_ok(), is_root, "{outcome:?}");
            assert!(outcome.is_ok() || outcome.unwrap_err().contains("may not write to"));
        }
    }
}
