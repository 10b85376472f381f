//! The library that gives a process another clock.

use crate::skip;
use std::path::Path;

/// The paths of Debian's package.
const PATHS: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
];

/// Path of the library, for `LD_PRELOAD`. Without it, the calling test is skipped.
#[track_caller]
pub fn faketime() -> Option<&'static Path> {
    let found = PATHS.into_iter().map(Path::new).find(|path| path.exists());
    if found.is_none() {
        skip("libfaketime is not installed (Debian package faketime)");
    }
    found
}
