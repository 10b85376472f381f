//! Seeds an account's balance from the ledger, changes it by the ledger's postings, and reads it.
//!
//! This file must not reserve or settle.

use super::keyspace::{OPERATION_MS, partition};
use super::reply::parse_amount;
use super::views::StoreBalances;
use ::redis::Cmd;
use credits::money::{CreditSplit, Micro};
use ledger::StoreError;

/// A change of a balance that the ledger has posted, or a debit that it is about to post.
#[derive(Debug, Clone, Copy)]
pub struct PostCommand<'a> {
    /// Reference of the operation, which the store applies once.
    pub operation: &'a str,
    pub account: &'a str,
    pub change: CreditSplit,
    pub credited: Micro,
    /// True if only credits that are not reserved may cover the debit.
    pub only_free: bool,
    /// Position of the ledger's entry, or 0 if the entry does not exist yet.
    pub seq: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostReply {
    Done,
    /// The store had already applied the operation, with this change.
    Known {
        change: CreditSplit,
    },
    Insufficient {
        available: Micro,
    },
    /// The server does not have the settled request that this posting corrects. The restored
    /// request will have the ledger's amount.
    Lost,
    Unknown,
}

/// An account with the ledger's balance.
#[derive(Debug, Clone, Copy)]
pub struct AccountSeed<'a> {
    pub account: &'a str,
    pub has: CreditSplit,
    pub credited: Micro,
    pub is_active: bool,
    pub trial_ends_at_ms: Option<i64>,
    /// Position of the last ledger entry that this balance includes.
    pub seq: i64,
    /// Last known epoch of the partition.
    pub epoch: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreAccount {
    pub has: CreditSplit,
    pub held: CreditSplit,
    pub credited: Micro,
    pub is_active: bool,
    pub trial_ends_at_ms: Option<i64>,
}

impl StoreBalances<'_> {
    /// Posts a change of a balance.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. A retry is safe, because an operation takes
    /// effect once.
    pub async fn post(&self, post: &PostCommand<'_>) -> Result<PostReply, StoreError> {
        self.invoke_post(post, &[], &[]).await
    }

    /// Posts the ledger's debit of a late end, like [`Self::post`]. The debit counts as spending of
    /// the API key and its member (by id) at the time `at_ms`.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. A retry is safe.
    pub async fn post_late(
        &self,
        post: &PostCommand<'_>,
        spenders: &[String],
        at_ms: i64,
    ) -> Result<PostReply, StoreError> {
        let key = |id: &String| self.0.key(partition(post.account), "k:", id);
        let keys: Vec<_> = spenders.iter().map(key).collect();
        self.invoke_post(post, &keys, &[&at_ms.to_string()]).await
    }

    /// Posts the difference between the ledger's and the store's debit for the request that `event`
    /// reports, like [`Self::post`]. The posting has no effect unless the store has that event.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. A retry is safe.
    pub async fn reconcile(
        &self,
        post: &PostCommand<'_>,
        event: &str,
        request_id: &str,
    ) -> Result<PostReply, StoreError> {
        let events = self.0.key(partition(post.account), "ev", "");
        self.invoke_post(post, &[events], &[event, request_id])
            .await
    }

    async fn invoke_post(
        &self,
        post: &PostCommand<'_>,
        keys: &[String],
        about: &[&str],
    ) -> Result<PostReply, StoreError> {
        let partition = partition(post.account);
        let mut call = self.0.0.scripts.post.prepare_invoke();
        call.key(self.0.key(partition, "a:", post.account))
            .key(self.0.key(partition, "op:", post.operation));
        call.arg(post.change.paid.get())
            .arg(post.change.trial.get())
            .arg(post.credited.get());
        for key in keys {
            call.key(key);
        }
        call.arg(OPERATION_MS)
            .arg(u8::from(post.only_free))
            .arg(post.seq)
            .arg(about);
        let reply = self.0.call("change a balance", &call).await?;
        Ok(match reply.status() {
            "done" => PostReply::Done,
            "lost" => PostReply::Lost,
            "known" => PostReply::Known {
                change: reply.parts(1)?,
            },
            "insufficient" => PostReply::Insufficient {
                available: reply.amount(1)?,
            },
            "unknown" => PostReply::Unknown,
            _ => return Err(reply.unexpected_reply()),
        })
    }

    /// Seeds an account. Returns false if the store already knows it, or if the partition is in
    /// another epoch.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn seed_account(&self, seed: &AccountSeed<'_>) -> Result<bool, StoreError> {
        let partition = partition(seed.account);
        let mut call = self.0.0.scripts.seed.prepare_invoke();
        call.key(self.0.key(partition, "a:", seed.account))
            .key(self.0.key(partition, "h:", seed.account));
        call.key(self.0.key(partition, "epoch", ""));
        call.arg(seed.has.paid.get())
            .arg(seed.has.trial.get())
            .arg(seed.credited.get());
        call.arg(if seed.is_active {
            "active"
        } else {
            "suspended"
        });
        call.arg(
            seed.trial_ends_at_ms
                .map(|ends| ends.to_string())
                .unwrap_or_default(),
        );
        call.arg(seed.seq).arg(seed.epoch);
        Ok(self.0.call("seed an account", &call).await?.status() == "done")
    }

    /// Expires the rest of an account's trial credits if the trial is over and no hold uses them.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn expire_trial(&self, account: &str) -> Result<bool, StoreError> {
        let partition = partition(account);
        let mut call = self.0.0.scripts.expire.prepare_invoke();
        call.key(self.0.key(partition, "a:", account))
            .key(self.0.key(partition, "ev", ""));
        call.key(self.0.key(partition, "op:", &lapse_operation(account)))
            .arg(account)
            .arg(OPERATION_MS);
        Ok(self.0.call("expire a trial", &call).await?.status() == "done")
    }

    /// Returns the account's current state, or `None` if the store does not know the account.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn account(&self, account: &str) -> Result<Option<StoreAccount>, StoreError> {
        let fields = [
            "paid",
            "trial",
            "held_paid",
            "held_trial",
            "credited",
            "status",
            "trial_ends",
        ];
        let mut get = Cmd::new();
        get.arg("HMGET")
            .arg(self.0.key(partition(account), "a:", account))
            .arg(&fields[..]);
        let values: Vec<Option<String>> = self.0.query("read a balance", &get).await?;
        let [
            Some(paid),
            Some(trial),
            Some(held_paid),
            Some(held_trial),
            Some(credited),
            Some(status),
            ends,
        ] = &values[..]
        else {
            return Ok(None);
        };
        let has = CreditSplit {
            paid: parse_amount(paid)?,
            trial: parse_amount(trial)?,
        };
        let held = CreditSplit {
            paid: parse_amount(held_paid)?,
            trial: parse_amount(held_trial)?,
        };
        let trial_ends_at_ms = ends.as_deref().and_then(|ends| ends.parse().ok());
        let is_active = status == "active";
        Ok(Some(StoreAccount {
            has,
            held,
            credited: parse_amount(credited)?,
            is_active,
            trial_ends_at_ms,
        }))
    }
}

/// Returns the operation id of a trial's expiry, by which it takes effect once.
pub fn lapse_operation(account: &str) -> String {
    format!("lapse:{account}")
}
