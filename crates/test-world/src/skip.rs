//! A test that cannot run on this machine says so, and passes only where nobody relies on it.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `scripts/test` sets this variable to 1: it has installed all that a test needs, so a test that
/// is skipped there was not run by mistake.
pub const SKIPPING_FAILS: &str = "GATEWAY_SKIPPED_TESTS_FAIL";

/// Number of tests that this process has skipped.
static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Reports that the calling test is skipped, and why. The test must return at once.
///
/// # Panics
///
/// Under `scripts/test`.
#[track_caller]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(
        std::env::var_os(SKIPPING_FAILS).is_none(),
        "skipped: {reason}"
    );
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // Not `eprintln`: the harness hides what a test that passes prints.
    let line = format!("skipped ({count} in this program): {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
