//! The end of a request: its hold is released, its cost debited, and an event left for the ledger.
//!
//! Must not decide the cost. Read next: `redis/end.lua`.

use super::client::SharedStore;
use super::keyspace::{APPLIED, MARKER_MS, key, partition};
use crate::store::StoreError;
use credits::money::{CreditSplit, Micro};

/// The end of a request.
#[derive(Debug, Clone, Copy)]
pub struct SettleCommand<'a> {
    pub request_id: &'a str,
    pub account: &'a str,
    pub cost: Micro,
    /// Ending for the ledger, as JSON.
    pub ending: &'a str,
    /// API key of the request. `tokens` is the number of tokens that the request used.
    pub key_id: &'a str,
    pub tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettleReply {
    /// The event for the ledger, the debited amount, and the amount written off because the account
    /// could not cover it.
    Done {
        event: String,
        taken: CreditSplit,
        writeoff: Micro,
    },
    /// The request had ended before, with this event.
    Known { event: String },
    /// The request had ended before, and the ledger has entered it.
    Applied,
    /// The store does not know the account.
    Unknown,
}

impl SharedStore {
    /// Settles a request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. Try again until it answers.
    pub async fn settle(&self, command: &SettleCommand<'_>) -> Result<SettleReply, StoreError> {
        let mut call =
            self.request_invocation(&self.0.scripts.end, command.account, command.request_id);
        let partition = partition(command.account);
        call.key(key(partition, "ev", ""))
            .key(key(partition, "k:", command.key_id));
        call.arg(command.cost.get())
            .arg(MARKER_MS)
            .arg(command.ending)
            .arg(command.tokens);
        let reply = self.call("settle a request", &call).await?;
        Ok(match reply.status() {
            "done" => SettleReply::Done {
                event: reply.text(1)?.into(),
                taken: reply.parts(2)?,
                writeoff: reply.amount(4)?,
            },
            "known" if reply.text(1)? == APPLIED => SettleReply::Applied,
            "known" => SettleReply::Known {
                event: reply.text(1)?.into(),
            },
            "unknown" => SettleReply::Unknown,
            _ => return Err(reply.unexpected_reply()),
        })
    }
}
