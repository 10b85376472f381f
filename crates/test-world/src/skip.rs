//! Skips tests that cannot run on this machine, with a message. Under `scripts/test`, a skipped
//! test fails.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Variable that `scripts/test` sets to 1. It has installed everything that tests need, so a
/// skipped test is a mistake there.
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
    // The test harness hides the output of `eprintln` for tests that pass.
    let line = format!("skipped ({count} in this program): {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
