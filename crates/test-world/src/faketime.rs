//! Finds the library that gives a process another clock.

use crate::skip;
use std::path::Path;

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
