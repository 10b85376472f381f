//! Takes a snapshot of the open holds for operators: the number of requests, the age of the oldest,
//! and the held credits.
//!
//! The snapshot comes from the journals and the mirror of the holds, which is up to 20 ms old, so
//! that admission is not involved. It reads files, so it must not run on a serving thread. This
//! file must not be used to decide about credits.

use super::data_dir::Billing;
use super::views::BillingPages;
use credits::money::Micro;
use ledger::StoreError;
use ledger::journal;
use ledger::journal::holds_mirror::HoldsMirror;

/// The open holds of the processes on this machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OpenHolds {
    pub requests: u64,
    pub oldest_at_ms: Option<i64>,
    pub credits: Micro,
}

/// A request whose end is not in the ledger yet.
#[derive(Debug, PartialEq, Eq)]
pub struct RunningRequest {
    pub account: String,
    pub at_ms: i64,
}

impl BillingPages<'_> {
    /// Returns a request of this machine by its id, if its end is not in the ledger yet. Returns
    /// `None` for other requests, and if a shared store has the reservations.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be read.
    pub fn running_request(&self, request_id: &str) -> Result<Option<RunningRequest>, StoreError> {
        let requests = journal::read_requests(&self.0.0.data_dir)?;
        let mut found = requests.iter().filter(|it| &*it.request_id == request_id);
        Ok(found.next().map(|request| RunningRequest {
            account: request.account.to_string(),
            at_ms: request.at_ms,
        }))
    }
}

impl Billing {
    /// Returns the holds of running processes on accounts in this data directory, or `None` if a
    /// shared store has them.
    ///
    /// # Errors
    /// Returns an error if a journal or the mirror cannot be read.
    pub fn open_holds(&self) -> Result<Option<OpenHolds>, StoreError> {
        if self.0.shared.is_some() {
            return Ok(None);
        }
        let mut open = OpenHolds::default();
        for request in journal::read_requests(&self.0.data_dir)?
            .iter()
            .filter(|request| request.is_living && !request.ended)
        {
            let at_ms = request.at_ms;
            open.requests += 1;
            open.oldest_at_ms = Some(open.oldest_at_ms.map_or(at_ms, |oldest| oldest.min(at_ms)));
        }
        let live = journal::live_instance_ids(&self.0.data_dir)?;
        for (_, claim) in HoldsMirror::open(&self.0.data_dir)?.all_claims()? {
            if live.contains(&claim.instance_id) {
                open.credits = open.credits.plus(claim.held.total());
            }
        }
        Ok(Some(open))
    }
}
