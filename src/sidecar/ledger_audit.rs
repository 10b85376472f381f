//! Holds the progress of the ledger audit that an administrator started, and the last result. At
//! most one audit runs at a time, and the last result stays until the next one.
//!
//! This file must not audit anything itself; `operator/verify.rs` does.

use super::display::Timestamp;
use crate::billing::AuditProgress;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(super) struct LedgerAuditRunner {
    state: Mutex<LedgerAuditState>,
}

#[derive(Default, Clone)]
pub(super) struct LedgerAuditState {
    pub(super) running: Option<RunningAudit>,
    pub(super) last: Option<LedgerAuditResult>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RunningAudit {
    pub(super) since_ms: i64,
    /// Progress; `None` until the first entries are checked.
    pub(super) progress: Option<AuditProgress>,
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

    /// Marks an audit as started. Returns false if an audit is already running.
    pub(super) fn try_start(&self, now_ms: i64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = state.running.is_none();
        if is_free {
            state.running = Some(RunningAudit {
                since_ms: now_ms,
                progress: None,
            });
        }
        is_free
    }

    pub(super) fn set_progress(&self, progress: AuditProgress) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &mut state.running {
            running.progress = Some(progress);
        }
    }

    pub(super) fn finish(&self, last: LedgerAuditResult) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = LedgerAuditState {
            running: None,
            last: Some(last),
        };
    }
}
