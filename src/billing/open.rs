//! What is open at this moment, for an operator to look at: how many requests, since when, and what
//! they hold.
//!
//! Read from the journals and the holds' mirror, some 20 ms old, so that admission is not asked.
//! Reads files: not for a thread that serves. Must not be believed where money is decided.

use super::{Billing, journal};
use crate::money::Micro;
use crate::store::StoreError;
use crate::store::holds::HeldMirror;

/// The open holds of the processes on this machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OpenHolds {
    pub requests: u64,
    pub oldest_at_ms: Option<i64>,
    pub credits: Micro,
}

impl Billing {
    /// What running processes hold of the accounts in this folder; `None` where a store that edges
    /// share knows it.
    ///
    /// # Errors
    /// A journal or the mirror cannot be read.
    pub fn open_holds(&self) -> Result<Option<OpenHolds>, StoreError> {
        if self.0.shared.is_some() {
            return Ok(None);
        }
        let mut open = OpenHolds::default();
        for kept in journal::kept(&self.0.data_dir)?
            .iter()
            .filter(|kept| kept.is_living && !kept.ended)
        {
            let at_ms = kept.ending.at_ms;
            open.requests += 1;
            open.oldest_at_ms = Some(open.oldest_at_ms.map_or(at_ms, |oldest| oldest.min(at_ms)));
        }
        let live = journal::live_boots(&self.0.data_dir)?;
        for (_, claim) in HeldMirror::open(&self.0.data_dir)?.all()? {
            if live.contains(&claim.boot) {
                open.credits = open.credits.plus(claim.held.total());
            }
        }
        Ok(Some(open))
    }
}
