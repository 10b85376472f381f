//! Ends that are reported so late that the store cannot know whether it has had them already. The
//! ledger decides.
//!
//! Must not debit anything: the ledger's entry is posted to the store like any other.

use super::client::SharedStore;
use super::keyspace::{APPLIED, MARKER_MS, key, partition};
use super::settlement::{SettleCommand, SettleReply};
use crate::store::StoreError;
use credits::money::{CreditSplit, Micro};
use std::time::Duration;

/// Maximum age of an end that the store itself can settle. An older one may have been reported
/// before, under a marker that has expired since. Half of a marker's lifetime, so that a marker set
/// by then lasts as long again.
pub const MAX_REPORT_AGE: Duration = Duration::from_millis(MARKER_MS / 2);

impl SharedStore {
    /// Reports a request that ended longer than [`MAX_REPORT_AGE`] ago. See
    /// [`SharedStore::settle`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. Try again until it answers.
    pub async fn settle_late(
        &self,
        command: &SettleCommand<'_>,
    ) -> Result<SettleReply, StoreError> {
        let mut call =
            self.request_invocation(&self.0.scripts.late, command.account, command.request_id);
        let partition = partition(command.account);
        call.key(key(partition, "ev", ""))
            .key(key(partition, "k:", command.key_id));
        call.arg(MARKER_MS).arg(command.ending).arg(command.tokens);
        let reply = self.call("publish a late settlement", &call).await?;
        Ok(match reply.status() {
            "done" => SettleReply::Done {
                event: reply.text(1)?.into(),
                taken: CreditSplit::ZERO,
                writeoff: Micro::ZERO,
            },
            "known" if reply.text(1)? == APPLIED => SettleReply::Applied,
            "known" => SettleReply::Known {
                event: reply.text(1)?.into(),
            },
            _ => return Err(reply.unexpected_reply()),
        })
    }
}
