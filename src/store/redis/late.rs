//! Endings that are told so late that the store cannot know whether it had them: the ledger is
//! told, and decides.
//!
//! Must not take anything: the ledger's entry is posted like any other.

use super::{APPLIED, End, Ended, MARKER_MS, SharedStore, key, partition};
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use std::time::Duration;

/// An ending that is older was perhaps told before by a marker that has gone since. Half of a
/// marker's time: what was told by then is marked for as long again.
pub const TOLD_MOST: Duration = Duration::from_millis(MARKER_MS / 2);

impl SharedStore {
    /// As [`SharedStore::end`], of a request that ended longer than [`TOLD_MOST`] ago.
    ///
    /// # Errors
    /// The store cannot be asked; to be tried again until it answers.
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
