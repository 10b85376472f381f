//! Checks the rules about journals: the ledger has every ending of a journal, with the same amounts
//! (`journal`), and no line is damaged (`damaged journal`).
//!
//! This file must not replay a journal.

use super::super::journal::{self, JournalledRequest};
use super::endings::find_endings;
use super::findings::LedgerAuditReport;
use crate::Ledger;
use crate::StoreError;
use crate::audit::walk::{EndingRow, LedgerWalk};
use std::path::Path;

/// Age above which an ending that has not reached the ledger counts as stuck. An ending normally
/// takes milliseconds.
const MAX_JOURNAL_AGE_MS: i64 = 60_000;
/// Number of requests whose ends one query looks up.
const MAX_LOOKED_UP: usize = 4_096;

/// Checks the requests that were read from the journals before the ledger was read.
pub(crate) fn check_requests(
    requests: &[JournalledRequest],
    ledger: &Ledger,
    walk: &LedgerWalk,
    somebody_serves: bool,
    now_ms: i64,
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    for some in requests.chunks(MAX_LOOKED_UP) {
        let ids: Vec<_> = some.iter().map(|request| &*request.request_id).collect();
        let found = find_endings(ledger, walk, &ids)?;
        for request in some {
            let id = &*request.request_id;
            if found.unknown.contains(id) {
                continue;
            }
            let known = found.known.get(id);
            if let Some(message) = describe_fault(request, known, somebody_serves, now_ms) {
                report.add_finding("journal", 0, message);
            }
        }
    }
    Ok(())
}

fn describe_fault(
    request: &JournalledRequest,
    known: Option<&EndingRow>,
    somebody_serves: bool,
    now_ms: i64,
) -> Option<String> {
    let JournalledRequest {
        instance_id,
        is_living,
        ended,
        request_id: request,
        account,
        kind,
        cost,
        at_ms,
    } = request;
    let old = now_ms.saturating_sub(*at_ms) > MAX_JOURNAL_AGE_MS;
    match known {
        Some(known) if *ended => {
            let billed = known.charged.plus(known.writeoff);
            if (&**account, *kind, *cost) == (&*known.account, &*known.kind, billed) {
                return None;
            }
            Some(format!(
                "{request} is a {kind} of {cost} in the journal of instance {instance_id}, but a {} of {billed} in the ledger",
                known.kind
            ))
        }
        None if *ended && old => Some(format!(
            "{request} ended in instance {instance_id} but never reached the ledger"
        )),
        // A start voids the requests that dead processes left open, but a request of a living
        // process may stay open for long.
        None if !*ended && old && !*is_living && somebody_serves => Some(format!(
            "{request} was left open by instance {instance_id} and never voided"
        )),
        _ => None,
    }
}

pub(crate) fn check_damage(
    data_dir: &Path,
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    for damaged in journal::find_damaged(data_dir)? {
        report.add_finding("damaged journal", 0, damaged.to_string());
    }
    Ok(())
}
