//! Queues the lines of the log, which one thread writes.
//!
//! The reader of the log may be blocked, for example a terminal after Ctrl-S, the log driver of a
//! container, or a journal that hangs. Only the writing thread then waits. The queue holds a
//! limited number of bytes; more lines are dropped and counted. This file must not depend on the
//! text of a line.

use super::metrics::METRICS;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of queued bytes. They are some thousand lines.
const MAX_QUEUED_BYTES: usize = 1_048_576;

pub struct LogQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

struct QueueState {
    lines: Vec<u8>,
    /// Number of lines that were dropped since the log last had room.
    dropped: u64,
    is_writing: bool,
}

/// Lines to write, and the number of lines that were dropped before them.
pub struct LogBatch {
    lines: Vec<u8>,
    pub dropped: u64,
}

impl LogQueue {
    pub const fn new() -> Self {
        Self {
            state: Mutex::new(QueueState {
                lines: Vec::new(),
                dropped: 0,
                is_writing: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds a line without waiting for its reader.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.lines.len().saturating_add(line.len()) > MAX_QUEUED_BYTES {
            state.dropped += 1;
            drop(state);
            return METRICS.count_dropped_log_line("full");
        }
        state.lines.extend_from_slice(line);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until lines are queued, up to the time limit.
    pub fn wait(&self, limit: Duration) -> LogBatch {
        let is_empty = |state: &mut QueueState| state.lines.is_empty();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.state(), limit, is_empty)
            .unwrap_or_else(PoisonError::into_inner);
        state.is_writing = !state.lines.is_empty();
        LogBatch {
            lines: std::mem::take(&mut state.lines),
            dropped: std::mem::take(&mut state.dropped),
        }
    }

    /// Writes the lines, and waits for their reader. Returns whether the write succeeded.
    pub fn write(&self, batch: &LogBatch, out: &mut impl Write) -> bool {
        let written = out.write_all(&batch.lines);
        if written.is_err() {
            let lines = batch.lines.iter().filter(|byte| **byte == b'\n').count();
            (0..lines).for_each(|_| METRICS.count_dropped_log_line("failed"));
        }
        self.state().is_writing = false;
        self.changed.notify_all();
        written.is_ok()
    }

    /// Waits until all lines are written, up to the time limit.
    pub fn flush(&self, limit: Duration) {
        let is_pending = |state: &mut QueueState| state.is_writing || !state.lines.is_empty();
        drop(
            self.changed
                .wait_timeout_while(self.state(), limit, is_pending),
        );
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives lines from the logger, which makes one call for each line.
impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_reader_that_stands_still_stops_the_writing_thread_and_nothing_else() {
        let queue = LogQueue::new();
        let (reader, mut pipe) = io::pipe().unwrap();
        let is_over = AtomicBool::new(false);
        let line = [&[b'a'; 1_023][..], b"\n"].concat();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut dropped = 0;
                while !is_over.load(Ordering::Acquire) {
                    let batch = queue.wait(Duration::from_secs(60));
                    dropped += batch.dropped;
                    assert!(queue.write(&batch, &mut pipe));
                }
                drop(pipe);
                dropped
            });
            let sent = 4 * MAX_QUEUED_BYTES / line.len();
            (0..sent).for_each(|_| queue.push(&line));
            let limit = Duration::from_millis(20);
            let began = std::time::Instant::now();
            queue.flush(limit);
            assert!(began.elapsed() >= limit, "nobody reads");
            assert!(began.elapsed() < limit * 50, "an exit does not wait for it");
            assert!(queue.state().lines.len() <= MAX_QUEUED_BYTES);
            let mut lines = BufReader::new(reader).lines();
            lines.next().unwrap().unwrap();
            is_over.store(true, Ordering::Release);
            let read = 1 + lines.map(Result::unwrap).count();
            let dropped = writing.join().unwrap() + queue.state().dropped;
            let waiting = queue.state().lines.len() / line.len();
            assert_eq!(read + waiting + dropped as usize, sent, "each line once");
            assert!(dropped > 0);
        });
    }

    #[test]
    fn a_reader_that_is_gone_costs_its_lines() {
        let queue = LogQueue::new();
        let (reader, mut pipe) = io::pipe().unwrap();
        drop(reader);
        queue.push(b"one\n");
        let batch = queue.wait(Duration::ZERO);
        assert!(!queue.write(&batch, &mut pipe));
        queue.flush(Duration::from_secs(60));
        assert!(queue.wait(Duration::ZERO).lines.is_empty());
    }
}
