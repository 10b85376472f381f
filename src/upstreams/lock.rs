//! Locks the state of an endpoint or of a vendor's key.
//!
//! A lock is also taken after a panic, because each of these states is valid between any two
//! statements.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
