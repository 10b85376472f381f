//! Starts the ledger audit of the service page, and describes its progress and findings. The audit
//! runs in the background with a part of one core.
//!
//! This file must not run on a thread that serves requests.

use super::super::authz::OperatorForm;
use super::super::display::{Timestamp, group_digits};
use super::super::error::PageError;
use super::super::ledger_audit::{LedgerAuditResult, LedgerAuditRunner, RunningAudit};
use super::super::state::SidecarState;
use crate::billing::{AuditProgress, AuditScope, AuditStep, CpuShare, Finding, LedgerAuditReport};
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use serde_json::json;
use std::sync::Arc;

const MAX_FINDINGS: usize = 20;

/// Percentage of one core that an audit uses while the gateway serves requests.
const CPU_PERCENT: u32 = 30;

pub(super) struct RunningAuditView {
    pub since: Timestamp,
    pub done: u64,
    /// Total number of entries, which is never zero.
    pub total: u64,
    pub text: String,
}

impl RunningAuditView {
    pub fn new(running: RunningAudit) -> Self {
        let RunningAudit { since_ms, progress } = running;
        let (done, total) = progress.map_or((0, 0), |at| (at.done, at.total));
        let of = || format!("{} of {}", group_digits(done), group_digits(total));
        let text = match progress.map(|at| at.step) {
            None => "Starting".to_owned(),
            Some(AuditStep::Sealed) => format!("{} sealed entries checked", of()),
            Some(AuditStep::Entries) => format!("{} entries checked", of()),
            Some(AuditStep::References) => format!("{} references compared", of()),
        };
        Self {
            since: Timestamp(since_ms),
            done,
            total: total.max(1),
            text,
        }
    }
}

/// Starts an audit unless one is running. The page then shows its progress.
pub async fn verify(
    State(app): State<Arc<SidecarState>>,
    OperatorForm { by, .. }: OperatorForm,
) -> Result<Response, PageError> {
    let began = now_ms();
    if app.audits.try_start(began) {
        // The work runs on a thread of its own. An audit can take many minutes, and the end of the
        // process would wait for a thread of the blocking pool.
        let work = Arc::clone(&app);
        let run = move || {
            let mut end = AuditEnd {
                runner: &work.audits,
                result: failed(began),
            };
            let recorded =
                work.accounts
                    .with_actor(&by, began)
                    .record("ledger.verify", "ledger", &json!({}));
            if let Err(error) = recorded {
                log::error!("cannot record the ledger audit in the audit log: {error}");
            }
            end.result = audit(&work, began);
        };
        let thread = std::thread::Builder::new().name("ledger-audit".to_owned());
        if let Err(error) = thread.spawn(run) {
            log::error!("cannot start the ledger audit: {error}");
            app.audits.finish(failed(began));
        }
    }
    Ok(Redirect::to("/dashboard/operator/service").into_response())
}

/// Ends the audit when it is dropped, even if its thread panics.
struct AuditEnd<'a> {
    runner: &'a LedgerAuditRunner,
    result: LedgerAuditResult,
}

impl Drop for AuditEnd<'_> {
    fn drop(&mut self) {
        self.runner.finish(self.result.clone());
    }
}

fn audit(app: &SidecarState, began: i64) -> LedgerAuditResult {
    let mut on_progress = |at: AuditProgress| app.audits.set_progress(at);
    let share = CpuShare::from_percent(CPU_PERCENT);
    match app
        .billing
        .verify_with_progress(began, AuditScope::Unsealed, share, &mut on_progress)
    {
        Ok(report) => describe_report(&report, began),
        Err(error) => {
            log::error!("cannot audit the ledger: {error}");
            failed(began)
        }
    }
}

fn failed(began: i64) -> LedgerAuditResult {
    LedgerAuditResult {
        at: Timestamp(began),
        seconds: (now_ms() - began) / 1_000,
        outcome: "The audit failed. See the gateway's log.".to_owned(),
        is_good: false,
        findings: Vec::new(),
    }
}

fn describe_report(report: &LedgerAuditReport, began: i64) -> LedgerAuditResult {
    let count = report.findings.len();
    let of = format!(
        "{}, {} debits, {} accounts",
        report.scope(),
        report.debits,
        report.accounts
    );
    let outcome = if count == 0 {
        format!("No findings in {of}.")
    } else {
        format!("{count} findings in {of}.")
    };
    let line = |finding: &Finding| {
        format!(
            "{} (entry {}): {}",
            finding.rule, finding.seq, finding.message
        )
    };
    LedgerAuditResult {
        at: Timestamp(began),
        seconds: (now_ms() - began) / 1_000,
        outcome,
        is_good: count == 0,
        findings: report
            .findings
            .iter()
            .take(MAX_FINDINGS)
            .map(line)
            .collect(),
    }
}
