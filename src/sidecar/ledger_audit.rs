//! The ledger audit that an administrator starts: whether one is running, and the last result.
//!
//! Must not audit anything itself; `operator/service.rs` does.

use super::display::Timestamp;
use std::sync::{Mutex, PoisonError};

/// The last ledger audit, and whether one is running.
#[derive(Default)]
pub(super) struct LedgerAuditRunner {
    state: Mutex<LedgerAuditState>,
}

#[derive(Default, Clone)]
pub(super) struct LedgerAuditState {
    pub(super) running_since_ms: Option<i64>,
    pub(super) last: Option<LedgerAuditResult>,
}

#[derive(Clone)]
pub(super) struct LedgerAuditResult {
    pub(super) at: Timestamp,
    pub(super) seconds: i64,
    pub(super) outcome: String,
    pub(super) is_good: bool,
    pub(super) findings: Vec<String>,
}

impl LedgerAuditRunner {
    pub(super) fn snapshot(&self) -> LedgerAuditState {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Marks an audit as started; false if one is already running.
    pub(super) fn try_start(&self, now_ms: i64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = state.running_since_ms.is_none();
        if is_free {
            state.running_since_ms = Some(now_ms);
        }
        is_free
    }

    pub(super) fn finish(&self, last: LedgerAuditResult) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = LedgerAuditState {
            running_since_ms: None,
            last: Some(last),
        };
    }
}
