//! Shows the progress of a long command on stderr: at most one line a second, and none during the
//! first second.
//!
//! This file must not write to stdout, which is for data.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Minimum time between two lines.
const MIN_LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Format of the progress on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressDisplay {
    Off,
    /// Each line replaces the previous one.
    Terminal,
    /// Each line follows the previous one, for logs.
    Lines,
}

impl ProgressDisplay {
    /// Selects the format. Progress is shown on a terminal, elsewhere only on request, and never
    /// with JSON.
    pub fn select(is_requested: bool, json: bool) -> Self {
        match (json, std::io::stderr().is_terminal()) {
            (true, _) => Self::Off,
            (false, true) => Self::Terminal,
            (false, false) if is_requested => Self::Lines,
            (false, false) => Self::Off,
        }
    }
}

/// Writes the lines of one command.
pub struct ProgressReporter {
    display: ProgressDisplay,
    last: Instant,
    has_line: bool,
}

impl ProgressReporter {
    pub fn new(display: ProgressDisplay) -> Self {
        Self::start_at(display, Instant::now())
    }

    fn start_at(display: ProgressDisplay, now: Instant) -> Self {
        Self {
            display,
            last: now,
            has_line: false,
        }
    }

    /// Writes a line, if one is due.
    pub fn update(&mut self, line: impl FnOnce() -> String) {
        if self.display != ProgressDisplay::Off && self.is_due(Instant::now()) {
            let line = line();
            let mut stderr = std::io::stderr().lock();
            // A command must not fail because its progress cannot be written.
            let _ = match self.display {
                ProgressDisplay::Terminal => write!(stderr, "\r{line}\x1b[K"),
                _ => writeln!(stderr, "{line}"),
            };
            let _ = stderr.flush();
            self.has_line = true;
        }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.saturating_duration_since(self.last) >= MIN_LINE_INTERVAL;
        if is_due {
            self.last = now;
        }
        is_due
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        if self.has_line && self.display == ProgressDisplay::Terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Runs `copy` and meanwhile shows the size of the folder `to`, relative to the size of `from`.
pub fn watch_copy<T>(
    display: ProgressDisplay,
    from: &Path,
    to: &Path,
    copy: impl FnOnce() -> T,
) -> T {
    if display == ProgressDisplay::Off {
        return copy();
    }
    let total = megabytes(folder_bytes(from));
    let (finish, finished) = sync_channel::<()>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut progress = ProgressReporter::new(display);
            while finished.recv_timeout(MIN_LINE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                progress.update(|| {
                    let done = megabytes(folder_bytes(to));
                    format!("copied {done} MB of about {total} MB")
                });
            }
        });
        let outcome = copy();
        drop(finish);
        outcome
    })
}

/// Returns the bytes of all files below a folder. Unreadable files count as empty.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

fn megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_a_second_apart() {
        let start = Instant::now();
        let mut progress = ProgressReporter::start_at(ProgressDisplay::Lines, start);
        let due: Vec<_> = [0, 999, 1_000, 1_001, 1_999, 2_000, 9_000, 9_999]
            .into_iter()
            .filter(|ms| progress.is_due(start + Duration::from_millis(*ms)))
            .collect();
        assert_eq!(due, [1_000, 2_000, 9_000]);
    }

    #[test]
    fn progress_is_not_written_beside_json() {
        assert_eq!(ProgressDisplay::select(true, true), ProgressDisplay::Off);
        assert_ne!(ProgressDisplay::select(true, false), ProgressDisplay::Off);
    }

    #[test]
    fn a_folder_is_as_large_as_its_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("inner")).unwrap();
        std::fs::write(dir.path().join("one"), [0; 1_000]).unwrap();
        std::fs::write(dir.path().join("inner/two"), [0; 500]).unwrap();
        assert_eq!(folder_bytes(dir.path()), 1_500);
        assert_eq!(folder_bytes(&dir.path().join("none")), 0);
        assert_eq!(
            (megabytes(0), megabytes(1), megabytes(1_000_001)),
            (0, 1, 2)
        );
        let copied = watch_copy(ProgressDisplay::Lines, dir.path(), dir.path(), || 7);
        assert_eq!(copied, 7);
    }
}
