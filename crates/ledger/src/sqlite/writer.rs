//! Holds the connection that writes to a database, and counts its uses. By the count, another
//! thread notices a write that stands still. From the time of the last use, a command knows how
//! long to wait for other processes (`row_cache.rs`).
//!
//! This file must not run a statement.

use rusqlite::Connection;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

thread_local! {
    /// Time by which the next write of this thread must begin; `None`: it may wait for its turn.
    static BEGIN_BY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs work whose first write begins by a time, or fails: a client whose change was reported as
/// failed must not find it made later. Nothing that follows the first write is refused, so that no
/// change stays half made.
pub fn begin_writes_by<T>(by: Instant, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Instant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            BEGIN_BY.set(self.0);
        }
    }
    let _before = Restore(BEGIN_BY.replace(Some(by)));
    work()
}

/// Returns whether the write that gets its turn now is the first one under [`begin_writes_by`], and
/// too late.
pub fn begins_too_late() -> bool {
    BEGIN_BY.take().is_some_and(|by| Instant::now() >= by)
}

/// Time at which the last write of this process ended, to whichever database.
static LAST_WRITE: Mutex<Option<Instant>> = Mutex::new(None);

fn last_write_slot() -> MutexGuard<'static, Option<Instant>> {
    LAST_WRITE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time at which the last write of this process ended; `None` if it wrote nothing.
pub fn last_write() -> Option<Instant> {
    *last_write_slot()
}

pub struct WriteConnection {
    connection: Mutex<Connection>,
    count: WriteCount,
}

/// Counts begins and ends of writes: the number is odd while a write runs.
#[derive(Clone, Default)]
pub struct WriteCount(Arc<AtomicU64>);

/// The right to write. Dropping it ends the write.
pub struct WriteGuard<'a> {
    connection: MutexGuard<'a, Connection>,
    count: &'a WriteCount,
}

impl WriteConnection {
    pub fn new(connection: Connection) -> Self {
        Self {
            connection: Mutex::new(connection),
            count: WriteCount::default(),
        }
    }

    /// Waits for the writes of other threads.
    pub fn lock(&self) -> WriteGuard<'_> {
        let connection = self.connection.lock();
        let connection = connection.unwrap_or_else(PoisonError::into_inner);
        self.count.0.fetch_add(1, Ordering::AcqRel);
        WriteGuard {
            connection,
            count: &self.count,
        }
    }

    pub fn get_mut(&mut self) -> &mut Connection {
        let connection = self.connection.get_mut();
        connection.unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self) -> WriteCount {
        self.count.clone()
    }
}

impl WriteCount {
    /// Returns the number of the write that runs; `None` if none does.
    pub fn running(&self) -> Option<u64> {
        let count = self.0.load(Ordering::Acquire);
        (count % 2 == 1).then_some(count)
    }
}

impl Deref for WriteGuard<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.count.0.fetch_add(1, Ordering::AcqRel);
        *last_write_slot() = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_write_has_a_number_while_it_runs() {
        let writer = WriteConnection::new(Connection::open_in_memory().unwrap());
        let count = writer.count();
        let mut running = vec![count.running()];
        for _ in 0..2 {
            let guard = writer.lock();
            running.push(count.running());
            drop(guard);
            running.push(count.running());
        }
        assert_eq!(running, [None, Some(1), None, Some(3), None]);
    }
}
