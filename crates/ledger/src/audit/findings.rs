//! What an audit found.
//!
//! Must not decide what is a violation: the rules beside it do.

use serde::Serialize;

/// Maximum number of findings: a broken chain would list every entry.
const MAX_FINDINGS: usize = 1_000;

/// Result of an audit.
#[derive(Debug, Default, Serialize)]
pub struct LedgerAuditReport {
    pub findings: Vec<Finding>,
    pub debits: u64,
    pub refunds: u64,
    pub adjustments: u64,
    pub accounts: u64,
    pub entries: u64,
}

/// One violation of an invariant.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Name of the violated rule.
    pub rule: &'static str,
    /// Position in the ledger; 0 if the finding is not about an entry.
    pub seq: i64,
    pub message: String,
}

impl LedgerAuditReport {
    /// Adds a finding about an entry, up to a maximum.
    pub(crate) fn add_finding(&mut self, rule: &'static str, seq: i64, message: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { rule, seq, message });
        }
    }
}
