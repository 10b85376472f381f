//! Looks up the ends of single requests in the ledger and in sealed segments.
//!
//! This file must not report a violation.

use crate::Ledger;
use crate::StoreError;
use crate::audit::walk::{EndingRow, LedgerWalk};
use credits::money::Micro;
use std::collections::{HashMap, HashSet};

/// The ends that were found for a list of requests.
pub(crate) struct FoundEndings {
    pub known: HashMap<String, EndingRow>,
    /// Requests that may have ended in a segment that is missing.
    pub unknown: HashSet<String>,
}

/// Looks up the ends of these requests.
pub(crate) fn find_endings(
    ledger: &Ledger,
    walk: &LedgerWalk,
    request_ids: &[&str],
) -> Result<FoundEndings, StoreError> {
    let mut found = FoundEndings {
        known: walk
            .endings(request_ids)?
            .into_iter()
            .map(|ending| (ending.request_id.clone(), ending))
            .collect(),
        unknown: HashSet::new(),
    };
    for id in request_ids {
        if found.known.contains_key(*id) {
            continue;
        }
        match ledger.segments().sealed_ending(id) {
            Ok(None) => {}
            Ok(Some(entry)) => {
                let row = EndingRow {
                    request_id: entry.reference,
                    kind: entry.kind,
                    account: entry.account,
                    charged: Micro::ZERO.minus(entry.d_paid).minus(entry.d_trial),
                    writeoff: entry.writeoff,
                };
                found.known.insert((*id).to_owned(), row);
            }
            Err(StoreError::SegmentUnavailable(_)) => drop(found.unknown.insert((*id).to_owned())),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
