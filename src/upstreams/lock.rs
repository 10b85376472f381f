//! Locks the state of an endpoint or of a vendor's key.
//!
//! This file must not refuse after a panic: each of these states is valid between any two
//! statements.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
