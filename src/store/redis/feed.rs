//! What the sidecar alone does in the shared store: follows its events, restores what a server has
//! lost, makes accounts and keys known.
//!
//! Everything here may be done twice. Must not decide when: that is `billing/feeder.rs`.

use super::{APPLIED, KEYS_KNOWN, MARKER_MS, SharedStore, amount, key, partition};
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use ::redis::{Cmd, Pipeline};

/// Requests that one call of [`SharedStore::restore`] takes: a script holds up its server while it
/// runs.
pub const RESTORED_AT_ONCE: usize = 100;

/// How long a revoked key is known as such.
const REVOKED_MS: u64 = 24 * 3_600 * 1_000;

/// Holds of a partition that are looked at, at most.
const HOLDS_LOOKED_AT: isize = 20_000;

/// Accounts that edges have met and the store does not know.
const WANTED: &str = "gw:wanted";

/// Which server a partition lies on, and of which past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    /// Changes with every restart and every failover.
    pub server: String,
    /// Empty once everything was lost.
    pub epoch: String,
    /// The server's time.
    pub now_ms: i64,
}

/// A request as the ledger has it.
#[derive(Debug, Clone)]
pub struct Restore {
    pub request_id: String,
    pub account: String,
    pub taken: Parts,
    pub seq: i64,
    pub key_id: String,
    pub at_ms: i64,
}

/// What an API key has spent as the ledger has it, by day, week, month and in total, at a moment of
/// the store's.
#[derive(Debug, Clone, Copy)]
pub struct KeySeed<'a> {
    pub account: &'a str,
    pub key_id: &'a str,
    pub at_ms: i64,
    pub spent: [Micro; 4],
    /// The ledger's last entry that is in this.
    pub seq: i64,
    /// The epoch in which the partition was found.
    pub epoch: &'a str,
}

/// A key as edges find it.
#[derive(Debug, Clone)]
pub struct SharedKey {
    /// SHA-256 in hex.
    pub hash: String,
    pub account: String,
    pub key_id: String,
    pub shown: String,
    pub status: String,
    pub account_is_active: bool,
    /// What is set for the key and for its account: JSON, or empty.
    pub settings: String,
    pub account_rates: String,
}

impl SharedStore {
    /// # Errors
    /// The store cannot be asked.
    pub async fn lineage(&self, partition: u32) -> Result<Lineage, StoreError> {
        let mut call = self.0.scripts.lineage.prepare_invoke();
        call.key(key(partition, "epoch", ""));
        let answer = self.call("ask which server answers", &call).await?;
        let now_ms = answer.text(2)?.parse().map_err(|_| answer.strange())?;
        Ok(Lineage {
            server: answer.text(0)?.into(),
            epoch: answer.text(1)?.into(),
            now_ms,
        })
    }

    /// Begins another epoch after `before`; false where the partition is in none such.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn begin_epoch(
        &self,
        partition: u32,
        before: &str,
        epoch: &str,
    ) -> Result<bool, StoreError> {
        let mut call = self.0.scripts.epoch.prepare_invoke();
        call.key(key(partition, "epoch", "")).arg(before).arg(epoch);
        Ok(self.call("begin an epoch", &call).await?.word() == "done")
    }

    /// Makes requests of one partition ended that the ledger has as ended, where the store has not:
    /// at most [`RESTORED_AT_ONCE`]. Returns how many it had lost.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn restore(&self, partition: u32, ended: &[Restore]) -> Result<usize, StoreError> {
        let mut call = self.0.scripts.restore.prepare_invoke();
        call.key(key(partition, "l", "")).arg(MARKER_MS);
        for Restore {
            request_id,
            account,
            taken,
            seq,
            key_id,
            at_ms,
        } in ended
        {
            call.key(key(partition, "a:", account))
                .key(key(partition, "h:", account));
            call.key(key(partition, "r:", request_id))
                .key(key(partition, "k:", key_id));
            call.arg(request_id)
                .arg(account)
                .arg(taken.paid.get())
                .arg(taken.trial.get())
                .arg(seq)
                .arg(at_ms);
        }
        let answer = self.call("restore ended requests", &call).await?;
        answer.text(1)?.parse().map_err(|_| answer.strange())
    }

    /// Marks requests as being in the ledger, then removes the events that told of them (and of
    /// what is no request).
    ///
    /// # Errors
    /// The store cannot be asked; to be done again.
    pub async fn clear(
        &self,
        partition: u32,
        events: &[String],
        requests: &[String],
    ) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        // Both or neither: a server without memory marks nothing, and would remove all the same.
        pipeline.atomic();
        for request in requests {
            let marker = key(partition, "r:", request);
            pipeline
                .cmd("SET")
                .arg(marker)
                .arg(APPLIED)
                .arg("XX")
                .arg("KEEPTTL")
                .ignore();
        }
        pipeline
            .cmd("XDEL")
            .arg(key(partition, "ev", ""))
            .arg(events)
            .ignore();
        let mut link = self.0.link.clone();
        self.guard("clear events", pipeline.query_async::<()>(&mut link))
            .await
    }

    /// Begins to count what an API key spends, where that is not counted yet. False where it was,
    /// where the account is not known, or where too much has happened that the ledger does not have
    /// yet: to be tried again.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn seed_key(&self, seed: &KeySeed<'_>) -> Result<bool, StoreError> {
        let partition = partition(seed.account);
        let mut call = self.0.scripts.spend.prepare_invoke();
        call.key(key(partition, "k:", seed.key_id))
            .key(key(partition, "a:", seed.account));
        call.key(key(partition, "ev", ""))
            .key(key(partition, "epoch", ""))
            .arg(seed.key_id)
            .arg(seed.at_ms);
        for spent in seed.spent {
            call.arg(spent.get());
        }
        call.arg(seed.seq).arg(seed.epoch);
        Ok(self
            .call("begin to count what a key spends", &call)
            .await?
            .word()
            == "done")
    }

    /// Asks for an account to be made known.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn want(&self, account: &str) -> Result<(), StoreError> {
        let mut add = Cmd::new();
        add.arg("SADD").arg(WANTED).arg(account);
        self.ask("ask for an account", &add).await
    }

    /// Takes accounts that somebody asks for.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn wanted(&self, most: usize) -> Result<Vec<String>, StoreError> {
        let mut pop = Cmd::new();
        pop.arg("SPOP").arg(WANTED).arg(most);
        self.ask("look for accounts to seed", &pop).await
    }

    /// Says whether an account may spend; nothing where it is not known.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn set_status(&self, account: &str, is_active: bool) -> Result<(), StoreError> {
        let mut call = self.0.scripts.status.prepare_invoke();
        call.key(key(partition(account), "a:", account))
            .arg(word(is_active));
        self.call("set an account's status", &call).await.map(drop)
    }

    /// Makes a key known.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn put_key(&self, shared: &SharedKey) -> Result<(), StoreError> {
        let mut call = self.0.scripts.key.prepare_invoke();
        call.key(format!("gw:k:{}", shared.hash))
            .arg(&shared.hash)
            .arg(&shared.account)
            .arg(&shared.key_id);
        call.arg(&shared.shown)
            .arg(&shared.status)
            .arg(word(shared.account_is_active))
            .arg(REVOKED_MS);
        call.arg(&shared.settings).arg(&shared.account_rates);
        self.call("make a key known", &call).await.map(drop)
    }

    /// Every key has been made known since the store lost them.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn put_keys_known(&self) -> Result<(), StoreError> {
        let mut set = Cmd::new();
        set.arg("SET").arg(KEYS_KNOWN).arg(1);
        self.ask("say that the keys are known", &set).await
    }

    /// What requests hold of the accounts of a partition.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn held(&self, partition: u32) -> Result<Vec<(String, Parts)>, StoreError> {
        let mut range = Cmd::new();
        range
            .arg("ZRANGE")
            .arg(key(partition, "l", ""))
            .arg(0)
            .arg(HOLDS_LOOKED_AT);
        let leases: Vec<String> = self.ask("look at the holds", &range).await?;
        let mut accounts: Vec<_> = leases
            .iter()
            .filter_map(|lease| lease.split_once(' '))
            .map(|(id, _)| id)
            .collect();
        accounts.sort_unstable();
        accounts.dedup();
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = Pipeline::new();
        for account in &accounts {
            pipeline
                .cmd("HMGET")
                .arg(key(partition, "a:", account))
                .arg("held_paid")
                .arg("held_trial");
        }
        let mut link = self.0.link.clone();
        let held: Vec<(Option<String>, Option<String>)> = self
            .guard("look at the holds", pipeline.query_async(&mut link))
            .await?;
        let mut told = Vec::new();
        for (account, held) in accounts.into_iter().zip(held) {
            if let (Some(paid), Some(trial)) = held {
                told.push((
                    account.to_owned(),
                    Parts {
                        paid: amount(&paid)?,
                        trial: amount(&trial)?,
                    },
                ));
            }
        }
        Ok(told)
    }
}

fn word(is_active: bool) -> &'static str {
    if is_active { "active" } else { "suspended" }
}
