//! Finds the library that gives a process another clock.

use crate::skip;
use std::ffi::OsString;
use std::path::Path;
use tempfile::TempDir;

/// Paths at which Debian's package installs the library.
const PATHS: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
];

/// Returns the path of the library, for `LD_PRELOAD`. Without the library, the calling test is
/// skipped.
#[track_caller]
pub fn faketime() -> Option<&'static Path> {
    let found = PATHS.into_iter().map(Path::new).find(|path| path.exists());
    if found.is_none() {
        skip("libfaketime is not installed (Debian package faketime)");
    }
    found
}

/// The wall clock of a process, which the test can set while the process runs.
pub struct SettableClock {
    dir: TempDir,
    library: &'static Path,
}

impl SettableClock {
    /// Creates a clock that is right. Without the library, the calling test is skipped.
    #[track_caller]
    pub fn new() -> Option<Self> {
        let library = faketime()?;
        let dir = tempfile::tempdir().unwrap();
        let clock = Self { dir, library };
        clock.set("+0");
        Some(clock)
    }

    /// The environment of a process with this clock. Its monotonic clock is the machine's.
    pub fn environment(&self) -> [(&'static str, OsString); 5] {
        [
            ("LD_PRELOAD", self.library.into()),
            (
                "FAKETIME_TIMESTAMP_FILE",
                self.dir.path().join("clock").into(),
            ),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }

    /// Sets the clock to an offset from the right time, such as `+8d`.
    pub fn set(&self, offset: &str) {
        let next = self.dir.path().join("next");
        std::fs::write(&next, offset).unwrap();
        std::fs::rename(next, self.dir.path().join("clock")).unwrap();
    }
}
