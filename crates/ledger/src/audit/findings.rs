//! Collects the findings of an audit.
//!
//! This file must not decide about violations: the files with the rules do.

use serde::Serialize;

/// Maximum number of findings. A broken chain would otherwise list every entry.
const MAX_FINDINGS: usize = 1_000;

#[derive(Debug, Default, Serialize)]
pub struct LedgerAuditReport {
    pub findings: Vec<Finding>,
    pub debits: u64,
    pub refunds: u64,
    pub adjustments: u64,
    pub accounts: u64,
    /// Number of entries that were read. The numbers of debits, refunds and adjustments refer to
    /// these entries.
    pub entries: u64,
    /// Number of entries in sealed segments whose signatures were checked.
    pub sealed_entries: u64,
    /// True if the sealed entries are among those that were read.
    pub reads_sealed: bool,
}

#[derive(Debug, Serialize)]
pub struct Finding {
    /// Name of the violated rule.
    pub rule: &'static str,
    /// Position in the ledger; 0 if the finding does not concern an entry.
    pub seq: i64,
    pub message: String,
}

impl LedgerAuditReport {
    /// Describes the number of entries that the audit covered.
    pub fn scope(&self) -> String {
        let Self {
            entries,
            sealed_entries,
            reads_sealed,
            ..
        } = self;
        match (sealed_entries, reads_sealed) {
            (0, _) => format!("{entries} entries"),
            (sealed, true) => format!("{entries} entries ({sealed} of them in sealed segments)"),
            (sealed, false) => format!(
                "{entries} entries that are not sealed and the signatures of {sealed} sealed ones"
            ),
        }
    }

    /// Adds a finding about an entry, up to the maximum number.
    pub(crate) fn add_finding(&mut self, rule: &'static str, seq: i64, message: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { rule, seq, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_how_many_entries_it_covers_and_how_many_are_sealed() {
        for (entries, sealed_entries, reads_sealed, text) in [
            (7, 0, true, "7 entries"),
            (7, 0, false, "7 entries"),
            (
                1,
                500,
                false,
                "1 entries that are not sealed and the signatures of 500 sealed ones",
            ),
            (
                501,
                500,
                true,
                "501 entries (500 of them in sealed segments)",
            ),
        ] {
            let report = LedgerAuditReport {
                entries,
                sealed_entries,
                reads_sealed,
                ..LedgerAuditReport::default()
            };
            assert_eq!(report.scope(), text);
        }
    }
}
