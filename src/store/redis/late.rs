//! Ends that are reported so late that the store cannot know whether it has had them already. The
//! ledger decides.
//!
//! Must not debit anything: the ledger's entry is posted to the store like any other.

use super::{APPLIED, End, Ended, MARKER_MS, SharedStore, key, partition};
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use std::time::Duration;

/// Maximum age of an end that the store itself can settle. An older one may have been reported
/// before, under a marker that has expired since. Half of a marker's lifetime, so that a marker set
/// by then lasts as long again.
pub const TOLD_MOST: Duration = Duration::from_millis(MARKER_MS / 2);

impl SharedStore {
    /// Reports a request that ended longer than [`MAX_REPORT_AGE`] ago. See
    /// [`SharedStore::settle`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. Try again until it answers.
    pub async fn end_late(&self, asked: &End<'_>) -> Result<Ended, StoreError> {
        let mut call = self.of_request(&self.0.scripts.late, asked.account, asked.request_id);
        let partition = partition(asked.account);
        call.key(key(partition, "ev", ""))
            .key(key(partition, "k:", asked.key_id));
        call.arg(MARKER_MS).arg(asked.ending).arg(asked.tokens);
        let answer = self.call("tell the ledger of a late end", &call).await?;
        Ok(match answer.word() {
            "done" => Ended::Done {
                event: answer.text(1)?.into(),
                taken: Parts::ZERO,
                writeoff: Micro::ZERO,
            },
            "known" if answer.text(1)? == APPLIED => Ended::Applied,
            "known" => Ended::Known {
                event: answer.text(1)?.into(),
            },
            _ => return Err(answer.strange()),
        })
    }
}
