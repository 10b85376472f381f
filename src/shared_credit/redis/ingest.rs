//! Implements the operations that only the sidecar runs on the shared store. It consumes events,
//! restores the data that a server has lost, and seeds accounts and keys.
//!
//! Every operation can be repeated safely. This file must not decide when to run one:
//! `shared_credit/ledger_ingest.rs` does.

use super::keyspace::{KEYS_KNOWN, MARKER_MS, partition};
use super::reply::parse_amount;
use super::views::StoreIngest;
use ::redis::{Cmd, Pipeline};
use base::clock::now_ms;
use credits::limits::Spender;
use credits::money::{CreditSplit, Micro};
use ledger::StoreError;

/// Maximum number of requests per call of [`StoreIngest::restore`]. A script blocks its server
/// while it runs, so the number is small.
pub const MAX_RESTORED: usize = 100;

/// Time for which the store remembers a revoked key as revoked, and an ended token as ended.
const REVOKED_TTL_MS: u64 = 24 * 3_600 * 1_000;

/// Maximum number of accounts of a partition whose holds one call reads.
const MAX_HOLDS_SCANNED: isize = 20_000;
/// Maximum number of accounts that one call reads. The server answers no other call meanwhile.
const MAX_ACCOUNTS_READ: usize = 1_000;

/// Redis key of the set of accounts that edges have requested because the store does not know them.
const SEED_REQUESTS_KEY: &str = "gw:wanted";

/// Redis key of the address of the sidecar that holds the ledger. The next constant is the lifetime
/// of this key.
const SIDECAR_KEY: &str = "gw:sidecar";
const SIDECAR_TTL_MS: u64 = 60_000;

/// Redis key of the last ledger entry that the sidecar has announced, in the form `SEQ HASH`.
const LEDGER_HEAD_KEY: &str = "gw:ledger";

/// The server of a partition, and the epoch of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionServer {
    /// Id of the server, which changes with every restart and every failover.
    pub server: String,
    /// Epoch of the data. Empty after the server lost all data.
    pub epoch: String,
    /// The server's time, in ms since 1970.
    pub now_ms: i64,
}

/// A request with the ledger's data.
#[derive(Debug, Clone)]
pub struct RestoreEntry {
    pub request_id: String,
    pub account: String,
    pub taken: CreditSplit,
    pub seq: i64,
    /// The ids of the API key and of its member.
    pub spenders: Vec<String>,
    pub at_ms: i64,
}

/// Spending of an API key or a member by day, week, month and in total. The ledger's amounts are as
/// of a moment of the store's clock.
#[derive(Debug, Clone, Copy)]
pub struct SpendSeed<'a> {
    pub account: &'a str,
    pub spender: Spender,
    /// Id of the key, or of the membership.
    pub id: &'a str,
    pub at_ms: i64,
    pub spent: [Micro; 4],
    /// Position of the last ledger entry that this spending includes.
    pub seq: i64,
    /// Last known epoch of the partition.
    pub epoch: &'a str,
}

/// An API key with the fields that edges need.
#[derive(Debug, Clone)]
pub struct SharedKey {
    /// SHA-256 of the key, in hex.
    pub hash: String,
    pub account: String,
    pub key_id: String,
    pub shown: String,
    pub status: String,
    pub account_is_active: bool,
    /// Settings of the key and rates of its account, as JSON or empty.
    pub settings: String,
    pub account_rates: String,
    /// Id, budget and allowed models of the member whose key it is, or empty texts.
    pub member_id: String,
    pub budget: String,
    pub models: String,
    /// When the text of the key ends; `None` but for a token of a login.
    pub token_ends_at_ms: Option<i64>,
}

impl SharedKey {
    /// Returns the time in ms for which the store keeps the key; 0: for good.
    fn kept_ms(&self, now_ms: i64) -> u64 {
        match self.token_ends_at_ms {
            _ if self.status == "revoked" => REVOKED_TTL_MS,
            Some(ends) => u64::try_from(ends - now_ms).unwrap_or(0) + REVOKED_TTL_MS,
            None => 0,
        }
    }
}

impl StoreIngest<'_> {
    /// Returns the server and the epoch of a partition.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn partition_server(&self, partition: u32) -> Result<PartitionServer, StoreError> {
        let mut servers = self.partition_servers(&[partition]).await?;
        servers.pop().ok_or_else(|| {
            StoreError::Unusable(format!("no server answered for partition {partition}"))
        })
    }

    /// Returns the server and the epoch of each of these partitions, which must be of one group of
    /// [`super::client::SharedStore::partition_groups`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn partition_servers(
        &self,
        partitions: &[u32],
    ) -> Result<Vec<PartitionServer>, StoreError> {
        let mut call = self.0.0.scripts.server.prepare_invoke();
        for partition in partitions {
            call.key(self.0.key(*partition, "epoch", ""));
        }
        let reply = self.0.call("identify the server", &call).await?;
        let now_ms = reply
            .text(1)?
            .parse()
            .map_err(|_| reply.unexpected_reply())?;
        let server = reply.text(0)?;
        (2..partitions.len() + 2)
            .map(|index| {
                Ok(PartitionServer {
                    server: server.to_owned(),
                    epoch: reply.text(index)?.to_owned(),
                    now_ms,
                })
            })
            .collect()
    }

    /// Records that these partitions have every entry of the ledger up to `seq`, if `server` (see
    /// [`PartitionServer`]) still answers for them. They must be of one group of
    /// [`super::client::SharedStore::partition_groups`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn record_published(
        &self,
        partitions: &[u32],
        server: &str,
        seq: i64,
    ) -> Result<(), StoreError> {
        let mut call = self.0.0.scripts.publish.prepare_invoke();
        for partition in partitions {
            call.key(self.0.key(*partition, "published", ""));
        }
        call.arg(server).arg(seq);
        self.0
            .call("record the published entries", &call)
            .await
            .map(drop)
    }

    /// Returns the position in the ledger up to which this partition has every entry, or `None` if
    /// no position was recorded.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn published(&self, partition: u32) -> Result<Option<i64>, StoreError> {
        let mut get = Cmd::new();
        get.arg("GET").arg(self.0.key(partition, "published", ""));
        self.0.query("read the published entries", &get).await
    }

    /// Begins a new epoch that follows `before`. Returns false if the partition is not in the epoch
    /// `before`.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn begin_epoch(
        &self,
        partition: u32,
        before: &str,
        epoch: &str,
    ) -> Result<bool, StoreError> {
        let mut call = self.0.0.scripts.epoch.prepare_invoke();
        call.key(self.0.key(partition, "epoch", ""))
            .arg(before)
            .arg(epoch);
        Ok(self.0.call("start an epoch", &call).await?.status() == "done")
    }

    /// Settles at most [`MAX_RESTORED`] requests of one partition that have ended according to the
    /// ledger, but not according to the store. Returns the number of requests that the store had
    /// lost.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn restore(
        &self,
        partition: u32,
        ended: &[RestoreEntry],
    ) -> Result<usize, StoreError> {
        let mut call = self.0.0.scripts.restore.prepare_invoke();
        call.key(self.0.key(partition, "l", "")).arg(MARKER_MS);
        for RestoreEntry {
            request_id,
            account,
            taken,
            seq,
            spenders,
            at_ms,
        } in ended
        {
            call.key(self.0.key(partition, "a:", account))
                .key(self.0.key(partition, "h:", account));
            call.key(self.0.key(partition, "r:", request_id));
            for index in 0..Spender::ALL.len() {
                let id = spenders.get(index).map(String::as_str);
                call.key(self.0.key(partition, "k:", id.unwrap_or_default()));
            }
            call.arg(request_id)
                .arg(account)
                .arg(taken.paid.get())
                .arg(taken.trial.get())
                .arg(seq)
                .arg(at_ms);
        }
        let reply = self.0.call("restore ended requests", &call).await?;
        reply.text(1)?.parse().map_err(|_| reply.unexpected_reply())
    }

    /// Removes events of a partition that the ledger has entered, each with its request ("" if it
    /// belongs to none). The edges thus learn that the ledger has the requests.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. A retry is safe.
    pub async fn clear_events(
        &self,
        partition: u32,
        entered: &[(String, String)],
    ) -> Result<(), StoreError> {
        if entered.is_empty() {
            return Ok(());
        }
        let mut call = self.0.0.scripts.clear.prepare_invoke();
        call.key(self.0.key(partition, "ev", ""));
        for (event, request) in entered {
            call.key(self.0.key(partition, "r:", request))
                .arg(event)
                .arg(request);
        }
        self.0.call("remove entered events", &call).await.map(drop)
    }

    /// Begins to count the spending of an API key or a member if the store does not count it yet.
    /// Returns false if it already does, if the account is not known, or if the ledger still lacks
    /// too many events, so that the caller must retry.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn seed_spending(&self, seed: &SpendSeed<'_>) -> Result<bool, StoreError> {
        let partition = partition(seed.account);
        let field = match seed.spender {
            Spender::Key => "key_id",
            Spender::Member => "member",
        };
        let mut call = self.0.0.scripts.spend.prepare_invoke();
        call.key(self.0.key(partition, "k:", seed.id))
            .key(self.0.key(partition, "a:", seed.account));
        call.key(self.0.key(partition, "ev", ""))
            .key(self.0.key(partition, "epoch", ""))
            .arg(format!("\"{field}\":\"{}\"", seed.id))
            .arg(seed.at_ms);
        for spent in seed.spent {
            call.arg(spent.get());
        }
        call.arg(seed.seq).arg(seed.epoch);
        Ok(self
            .0
            .call("seed a key's or member's spending", &call)
            .await?
            .status()
            == "done")
    }

    /// Requests that the sidecar seeds an account.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn request_seed(&self, account: &str) -> Result<(), StoreError> {
        let mut add = Cmd::new();
        add.arg("SADD").arg(SEED_REQUESTS_KEY).arg(account);
        self.0.query("request an account", &add).await
    }

    /// Removes and returns accounts that edges have requested.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn take_seed_requests(&self, limit: usize) -> Result<Vec<String>, StoreError> {
        let mut pop = Cmd::new();
        pop.arg("SPOP").arg(SEED_REQUESTS_KEY).arg(limit);
        self.0.query("look for accounts to seed", &pop).await
    }

    /// Announces the address of the sidecar to the edges.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn announce_sidecar(&self, address: &str) -> Result<(), StoreError> {
        let mut set = Cmd::new();
        set.arg("SET").arg(SIDECAR_KEY).arg(address);
        set.arg("PX").arg(SIDECAR_TTL_MS);
        self.0.query("announce the sidecar", &set).await
    }

    /// Records the last entry of the ledger, so that an older ledger is recognised.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn record_ledger_head(&self, seq: i64, hash: &str) -> Result<(), StoreError> {
        let mut set = Cmd::new();
        set.arg("SET")
            .arg(LEDGER_HEAD_KEY)
            .arg(format!("{seq} {hash}"));
        self.0.query("record the end of the ledger", &set).await
    }

    /// Returns the position and the hash (hex) of the last recorded entry, or `None` without a
    /// record.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn ledger_head(&self) -> Result<Option<(i64, String)>, StoreError> {
        let mut get = Cmd::new();
        get.arg("GET").arg(LEDGER_HEAD_KEY);
        let recorded: Option<String> = self.0.query("read the end of the ledger", &get).await?;
        let parse = |text: String| {
            let (seq, hash) = text.split_once(' ')?;
            Some((seq.parse().ok()?, hash.to_owned()))
        };
        Ok(recorded.and_then(parse))
    }

    /// Returns the address that the sidecar has announced, or `None` if the config applies.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn announced_sidecar(&self) -> Result<Option<String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("GET").arg(SIDECAR_KEY);
        self.0.query("look for the sidecar", &get).await
    }

    /// Sets whether an account can spend. The call has no effect if the store does not know the
    /// account.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn set_status(&self, account: &str, is_active: bool) -> Result<(), StoreError> {
        let mut call = self.0.0.scripts.status.prepare_invoke();
        call.key(self.0.key(partition(account), "a:", account))
            .arg(status_name(is_active));
        self.0
            .call("set an account's status", &call)
            .await
            .map(drop)
    }

    /// Stores an API key.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn put_key(&self, shared: &SharedKey) -> Result<(), StoreError> {
        let mut call = self.0.0.scripts.key.prepare_invoke();
        call.key(format!("gw:k:{}", shared.hash))
            .arg(&shared.hash)
            .arg(&shared.account)
            .arg(&shared.key_id);
        call.arg(&shared.shown)
            .arg(&shared.status)
            .arg(status_name(shared.account_is_active))
            .arg(shared.kept_ms(now_ms()));
        call.arg(&shared.settings)
            .arg(&shared.account_rates)
            .arg(&shared.member_id)
            .arg(&shared.budget)
            .arg(&shared.models);
        self.0.call("publish a key", &call).await.map(drop)
    }

    /// Records that the store has every API key, after it had lost them.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn mark_keys_complete(&self) -> Result<(), StoreError> {
        let mut set = Cmd::new();
        set.arg("SET").arg(KEYS_KNOWN).arg(1);
        self.0.query("mark the keys as published", &set).await
    }

    /// Returns whether any of these partitions may have holds. They must be of one group of
    /// [`super::client::SharedStore::partition_groups`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn has_holds(&self, partitions: &[u32]) -> Result<bool, StoreError> {
        let mut exists = Cmd::new();
        exists.arg("EXISTS");
        for partition in partitions {
            exists.arg(self.0.key(*partition, "l", ""));
        }
        let found: u64 = self.0.query("look for reservations", &exists).await?;
        Ok(found > 0)
    }

    /// Returns the credits that requests hold, for each account of these partitions. They must be
    /// of one group of [`super::client::SharedStore::partition_groups`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn held_by_account(
        &self,
        partitions: &[u32],
    ) -> Result<Vec<(String, CreditSplit)>, StoreError> {
        let mut listing = Pipeline::new();
        for partition in partitions {
            listing
                .cmd("ZRANGE")
                .arg(self.0.key(*partition, "l", ""))
                .arg(0)
                .arg(MAX_HOLDS_SCANNED);
        }
        let mut link = self.0.0.link.clone();
        let listed: Vec<Vec<String>> = self
            .0
            .guard("list the reservations", listing.query_async(&mut link))
            .await?;
        let mut accounts: Vec<_> = listed
            .iter()
            .flatten()
            .map(|listed| listed.split_once(' ').map_or(&**listed, |(id, _)| id))
            .collect();
        accounts.sort_unstable();
        accounts.dedup();
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        let mut reservations = Vec::new();
        for some in accounts.chunks(MAX_ACCOUNTS_READ) {
            let mut reading = Pipeline::new();
            for account in some {
                reading
                    .cmd("HMGET")
                    .arg(self.0.key(partition(account), "a:", account))
                    .arg("held_paid")
                    .arg("held_trial");
            }
            let held: Vec<(Option<String>, Option<String>)> = self
                .0
                .guard("list the reservations", reading.query_async(&mut link))
                .await?;
            for (account, held) in some.iter().zip(held) {
                if let (Some(paid), Some(trial)) = held {
                    let (paid, trial) = (parse_amount(&paid)?, parse_amount(&trial)?);
                    reservations.push(((*account).to_owned(), CreditSplit { paid, trial }));
                }
            }
        }
        Ok(reservations)
    }
}

fn status_name(is_active: bool) -> &'static str {
    if is_active { "active" } else { "suspended" }
}
