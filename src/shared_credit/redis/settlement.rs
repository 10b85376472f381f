//! Ends a request: releases its hold, debits its cost, and leaves an event for the ledger.
//!
//! This file must not decide the cost. Read next: `redis/end.lua`.

use super::keyspace::{APPLIED, MARKER_MS, partition};
use super::views::StoreHolds;
use credits::money::{CreditSplit, Micro};
use ledger::StoreError;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Copy)]
pub struct SettleCommand<'a> {
    pub request_id: &'a str,
    pub account: &'a str,
    pub cost: Micro,
    /// Ending for the ledger, as serialized JSON.
    pub ending: &'a str,
    /// API key of the request, and its member. `tokens` is the number of tokens that the request
    /// has used.
    pub key_id: &'a str,
    pub member: Option<&'a str>,
    pub tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettleReply {
    /// The event for the ledger, the debited amount, and the amount written off because the account
    /// could not cover it. Without a hold, the store debits no credits, and the ledger decides and
    /// posts its debit.
    Done {
        event: String,
        taken: CreditSplit,
        writeoff: Micro,
    },
    /// The request had ended already, with this event.
    Known { event: String },
    /// The request had ended already, and the ledger has entered its end.
    Applied,
}

/// The state of an end that the store has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndState {
    /// The ledger has this request's ending.
    Applied,
    Waiting,
    /// The server does not have the end, so the caller must settle the request again.
    Lost,
}

impl StoreHolds<'_> {
    /// Returns whether the ledger has the end of each request, given its account and its id. The
    /// call only reads. The requests must be of one group of
    /// [`super::client::SharedStore::partition_groups`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn end_states(
        &self,
        requests: &[(String, String)],
    ) -> Result<Vec<EndState>, StoreError> {
        let numbers: BTreeMap<u32, usize> = requests
            .iter()
            .map(|(account, _)| partition(account))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .zip(1..)
            .collect();
        let mut call = self.0.0.scripts.poll.prepare_invoke();
        call.arg(numbers.len());
        for partition in numbers.keys() {
            call.key(self.0.key(*partition, "ev", ""));
        }
        for (account, request_id) in requests {
            let partition = partition(account);
            call.key(self.0.key(partition, "r:", request_id))
                .arg(numbers.get(&partition).copied().unwrap_or_default());
        }
        let reply = self.0.call("ask for entered requests", &call).await?;
        let states = reply.values.iter().map(|state| match state.as_str() {
            APPLIED => Ok(EndState::Applied),
            "waiting" => Ok(EndState::Waiting),
            "lost" => Ok(EndState::Lost),
            _ => Err(reply.unexpected_reply()),
        });
        let states = states.collect::<Result<Vec<_>, _>>()?;
        match states.len() == requests.len() {
            true => Ok(states),
            false => Err(reply.unexpected_reply()),
        }
    }

    /// Settles a request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. The caller must retry until the store
    /// answers.
    pub async fn settle(&self, command: &SettleCommand<'_>) -> Result<SettleReply, StoreError> {
        let mut call =
            self.0
                .request_invocation(&self.0.0.scripts.end, command.account, command.request_id);
        let partition = partition(command.account);
        call.key(self.0.key(partition, "ev", ""))
            .key(self.0.key(partition, "k:", command.key_id));
        if let Some(member) = command.member {
            call.key(self.0.key(partition, "k:", member));
        }
        call.arg(command.cost.get())
            .arg(MARKER_MS)
            .arg(command.ending)
            .arg(command.tokens);
        let reply = self.0.call("settle a request", &call).await?;
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
            _ => return Err(reply.unexpected_reply()),
        })
    }
}
