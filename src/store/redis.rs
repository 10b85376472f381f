//! The store that several edges share: balances and holds in Redis (or Valkey). Only scripts that
//! run as one step change them.
//!
//! Each account, with everything that belongs to it, is in one of sixteen partitions. A partition
//! is one hash slot, so a script finds everything on one node. Redis decides which account can
//! spend how much. The truth is the ledger, which consumes the events of the partitions. Scripts
//! read the server's clock, so the edges' clocks do not matter. Must not know HTTP or prices. Read
//! next: `redis/common.lua` (the start of every script), `redis/reserve.lua`, `redis/end.lua`.

pub mod breaker;
mod errors;
mod fitness;
mod idempotency;
mod ingest;
mod late_settlement;
mod link;
mod revocations;

use super::StoreError;
use ::redis::{Cmd, FromRedisValue, RedisError, Script, ScriptInvocation};
use breaker::StoreBreaker;
use credits::limits::RequestLimits;
use credits::money::{CreditSplit, Micro};
use credits::rates::{
    LimitScope, RateLimitKind, RateLimitStatus, RateLimitStatuses, RateLimitWait,
};
pub use errors::reason;
pub use idempotency::{IdempotencyEntry, SharedRetentionLimits};
pub use ingest::{KeySeed, MAX_RESTORED, PartitionServer, RestoreEntry, SharedKey};
pub use late_settlement::MAX_REPORT_AGE;
use link::RedisLink;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of partitions. Never change it while the store has data.
pub const PARTITIONS: u32 = 16;

/// Lifetime of a request's or an operation's marker: twice as long as an edge may keep undelivered
/// data.
const MARKER_MS: u64 = 12 * 3_600 * 1_000;

/// Lifetime of an operation's marker: an interrupted command can be run again until then.
const OPERATION_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// Value of a request's marker once the ledger has entered its end.
const APPLIED: &str = "applied";

/// Redis key that exists while the store knows every API key.
const KEYS_KNOWN: &str = "gw:keys";

/// A connection to the shared store. It is cheap to clone, and all requests share one. It connects
/// at its first use and belongs to the runtime that uses it first: a thread with its own runtime
/// needs its own `SharedStore`.
#[derive(Clone)]
pub struct SharedStore(Arc<SharedStoreInner>);

struct SharedStoreInner {
    link: RedisLink,
    /// Circuit breaker that stops requests from calling a store that does not answer.
    breaker: Option<Arc<StoreBreaker>>,
    scripts: &'static Scripts,
}

/// Address of the shared store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisAddress {
    One(String),
    /// Some nodes of a cluster.
    Cluster(Vec<String>),
    /// The primary that Sentinels name.
    Sentinel(SentinelAddress),
}

/// The Sentinels that know the primary's address, and the credentials for the primary.
#[derive(Clone, PartialEq, Eq)]
pub struct SentinelAddress {
    pub master: String,
    pub nodes: Vec<String>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub database: i64,
    /// Whether to use TLS for the primary, as for the Sentinels.
    pub tls: bool,
}

impl std::fmt::Debug for SentinelAddress {
    /// Leaves out the credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Sentinel {{ master: {:?}, nodes: {} }}",
            self.master,
            self.nodes.len()
        )
    }
}

/// A request to reserve credits.
#[derive(Debug, Clone, Copy)]
pub struct ReserveCommand<'a> {
    pub request_id: &'a str,
    pub account: &'a str,
    /// Highest possible cost of the request.
    pub full: Micro,
    /// Smallest reservation with which the request is worth running.
    pub floor: Micro,
    /// Time after which the store releases a hold that nobody settled. Zero is a dry run: the store
    /// reserves and counts nothing, and only replies whether it would.
    pub lease: Duration,
    pub most_open: u64,
    /// The API key and the limits of the request; `None` if it has no limits.
    pub within: Option<(&'a str, &'a RequestLimits)>,
}

/// The result of a [`ReserveCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReserveReply {
    Held(CreditSplit),
    /// Credits reserved under limits, with the remaining limits.
    HeldWithin(CreditSplit, RateLimitStatuses),
    Insufficient {
        available: Micro,
    },
    TrialExpired,
    TooManyOpen,
    /// A limit on requests, on tokens or on concurrency was reached.
    Limited(RateLimitWait),
    /// The API key's spending limit leaves less than the request needs.
    KeySpendLimit {
        free: Micro,
    },
    Suspended,
    /// The request has ended already.
    Ended,
    /// The store does not know the account, or its API key's spending. It must be seeded from the
    /// ledger.
    Unknown,
}

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

/// A change of a balance that the ledger has posted, or a debit that it is about to post.
#[derive(Debug, Clone, Copy)]
pub struct PostCommand<'a> {
    /// Reference of the operation; the store applies an operation once.
    pub operation: &'a str,
    pub account: &'a str,
    pub change: CreditSplit,
    pub credited: Micro,
    /// Whether the debit must be covered by credits that are not reserved.
    pub only_free: bool,
    /// Position of the ledger's entry, if it exists already; otherwise 0.
    pub seq: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostReply {
    Done,
    /// The store had applied the operation before, with this change.
    Known {
        change: CreditSplit,
    },
    Insufficient {
        available: Micro,
    },
    /// The server does not have the settled request that this post corrects. The restore of that
    /// request uses the ledger's amount.
    Lost,
    Unknown,
}

/// An account as the ledger has it.
#[derive(Debug, Clone, Copy)]
pub struct AccountSeed<'a> {
    pub account: &'a str,
    pub has: CreditSplit,
    pub credited: Micro,
    pub is_active: bool,
    pub trial_ends_at_ms: Option<i64>,
    /// Position of the last ledger entry that this balance includes.
    pub seq: i64,
    /// Epoch in which the caller found the partition.
    pub epoch: &'a str,
}

/// An account as the store has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreAccount {
    pub has: CreditSplit,
    pub held: CreditSplit,
    pub credited: Micro,
    pub is_active: bool,
    pub trial_ends_at_ms: Option<i64>,
}

/// An event that the ledger must enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    Ended {
        request_id: String,
        account: String,
        taken: CreditSplit,
        writeoff: Micro,
        ending: String,
    },
    /// An end reported too late for the store to know whether it is new; the ledger decides.
    EndedLate {
        request_id: String,
        account: String,
        ending: String,
    },
    Lapsed {
        account: String,
        trial: Micro,
    },
    /// Not an event we wrote; holds the reason.
    Unreadable(String),
}

struct Scripts {
    reserve: Script,
    end: Script,
    late: Script,
    post: Script,
    seed: Script,
    lapse: Script,
    expire: Script,
    lineage: Script,
    epoch: Script,
    restore: Script,
    spend: Script,
    status: Script,
    key: Script,
    ask: Script,
    keep: Script,
    free: Script,
    tidy: Script,
    probe: Script,
}

static SCRIPTS: std::sync::LazyLock<Scripts> = std::sync::LazyLock::new(|| {
    let (common, limits) = (
        include_str!("redis/common.lua"),
        include_str!("redis/limits.lua"),
    );
    let script = |text: &str| Script::new(&format!("{common}{text}"));
    let limited = |text: &str| Script::new(&format!("{common}{limits}{text}"));
    let of_answers = |text: &str| script(&format!("{}{text}", include_str!("redis/answers.lua")));
    Scripts {
        reserve: limited(include_str!("redis/reserve.lua")),
        end: limited(include_str!("redis/end.lua")),
        late: limited(include_str!("redis/late.lua")),
        post: script(include_str!("redis/post.lua")),
        seed: script(include_str!("redis/seed.lua")),
        lapse: limited(include_str!("redis/lapse.lua")),
        expire: script(include_str!("redis/expire.lua")),
        lineage: script(include_str!("redis/lineage.lua")),
        epoch: script(include_str!("redis/epoch.lua")),
        restore: limited(include_str!("redis/restore.lua")),
        spend: limited(include_str!("redis/spend.lua")),
        status: script(include_str!("redis/status.lua")),
        key: script(include_str!("redis/key.lua")),
        ask: script(include_str!("redis/ask.lua")),
        keep: of_answers(include_str!("redis/keep.lua")),
        free: script(include_str!("redis/free.lua")),
        tidy: of_answers(include_str!("redis/tidy.lua")),
        probe: script(include_str!("redis/probe.lua")),
    }
});

/// Returns the partition of an account.
pub fn partition(account: &str) -> u32 {
    crc32fast::hash(account.as_bytes()) % PARTITIONS
}

fn key(partition: u32, kind: &str, of: &str) -> String {
    format!("gw:{{p{partition}}}:{kind}{of}")
}

impl SharedStore {
    /// Connects at the first use. A call fails if it has no reply within `patience`, connecting
    /// included.
    pub fn new(address: RedisAddress, patience: Duration) -> Self {
        Self::build(address, patience, None)
    }

    /// Creates a store for calls on behalf of requests. A call fails at once while `breaker` is
    /// open, and each outcome is recorded in `breaker`.
    pub fn with_breaker(
        address: RedisAddress,
        patience: Duration,
        breaker: Arc<StoreBreaker>,
    ) -> Self {
        Self::build(address, patience, Some(breaker))
    }

    fn build(
        address: RedisAddress,
        patience: Duration,
        breaker: Option<Arc<StoreBreaker>>,
    ) -> Self {
        Self(Arc::new(SharedStoreInner {
            link: RedisLink::new(address, patience),
            breaker,
            scripts: &SCRIPTS,
        }))
    }

    /// Returns a new connection to the same store, without the circuit breaker, for background
    /// work.
    pub fn new_connection(&self, patience: Duration) -> Self {
        Self::new(self.0.link.address().clone(), patience)
    }

    /// Returns true while the circuit breaker stops requests from calling the store.
    pub fn is_unavailable(&self) -> bool {
        self.0
            .breaker
            .as_ref()
            .is_some_and(|breaker| breaker.is_open())
    }

    /// Connects at once.
    ///
    /// # Errors
    /// Returns an error if the address is not valid, or if no server answers there.
    pub async fn connect(address: &RedisAddress, patience: Duration) -> Result<Self, StoreError> {
        let store = Self::new(address.clone(), patience);
        store
            .0
            .link
            .connect()
            .await
            .map_err(|source| StoreError::redis("connect to the shared store", source))?;
        Ok(store)
    }

    /// Reserves credits for a request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. The credits can be reserved all the same,
    /// until the lease ends or the caller tries again.
    pub async fn reserve(&self, asked: &ReserveCommand<'_>) -> Result<ReserveReply, StoreError> {
        let lease_ms = u64::try_from(asked.lease.as_millis()).unwrap_or(u64::MAX);
        let mut call =
            self.request_invocation(&self.0.scripts.reserve, asked.account, asked.request_id);
        call.arg(asked.full.get())
            .arg(asked.floor.get())
            .arg(lease_ms)
            .arg(asked.most_open);
        if let Some((
            key_id,
            RequestLimits {
                key: of_key,
                account: of_account,
                spend,
                tokens,
            },
        )) = asked.within
        {
            call.key(key(partition(asked.account), "k:", key_id))
                .arg(key_id)
                .arg(tokens);
            for rates in [of_key, of_account] {
                call.arg(rates.requests_per_minute)
                    .arg(rates.tokens_per_minute)
                    .arg(rates.concurrent);
            }
            call.arg(
                spend
                    .map(|limit| limit.credits.get().to_string())
                    .unwrap_or_default(),
            );
            call.arg(spend.map_or("total", |limit| limit.period.name()));
        }
        let answer = self.call("reserve credits", &call).await?;
        Ok(match answer.word() {
            "held" if asked.within.is_some() => {
                ReserveReply::HeldWithin(answer.parts(1)?, answer.rate_limits(3)?)
            }
            "held" => ReserveReply::Held(answer.parts(1)?),
            "limited" => ReserveReply::Limited(answer.wait()?),
            "key_spend" => ReserveReply::KeySpendLimit {
                free: answer.amount(1)?,
            },
            "insufficient" => ReserveReply::Insufficient {
                available: answer.amount(1)?,
            },
            "trial_expired" => ReserveReply::TrialExpired,
            "too_many" => ReserveReply::TooManyOpen,
            "suspended" => ReserveReply::Suspended,
            "ended" => ReserveReply::Ended,
            "unknown" => ReserveReply::Unknown,
            _ => return Err(answer.unexpected_reply()),
        })
    }

    /// Settles a request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. Try again until it answers.
    pub async fn settle(&self, asked: &SettleCommand<'_>) -> Result<SettleReply, StoreError> {
        let mut call =
            self.request_invocation(&self.0.scripts.end, asked.account, asked.request_id);
        let partition = partition(asked.account);
        call.key(key(partition, "ev", ""))
            .key(key(partition, "k:", asked.key_id));
        call.arg(asked.cost.get())
            .arg(MARKER_MS)
            .arg(asked.ending)
            .arg(asked.tokens);
        let answer = self.call("settle a request", &call).await?;
        Ok(match answer.word() {
            "done" => SettleReply::Done {
                event: answer.text(1)?.into(),
                taken: answer.parts(2)?,
                writeoff: answer.amount(4)?,
            },
            "known" if answer.text(1)? == APPLIED => SettleReply::Applied,
            "known" => SettleReply::Known {
                event: answer.text(1)?.into(),
            },
            "unknown" => SettleReply::Unknown,
            _ => return Err(answer.unexpected_reply()),
        })
    }

    /// Posts a change of a balance.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. It is safe to try again, since an operation
    /// counts once.
    pub async fn post(&self, post: &PostCommand<'_>) -> Result<PostReply, StoreError> {
        self.invoke_post(post, None).await
    }

    /// Posts the difference between the ledger's and the store's debit for `request_id`, like
    /// [`SharedStore::post`]. It applies only if the store has the end of that request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. It is safe to try again.
    pub async fn reconcile(
        &self,
        post: &PostCommand<'_>,
        request_id: &str,
    ) -> Result<PostReply, StoreError> {
        self.invoke_post(post, Some(request_id)).await
    }

    async fn invoke_post(
        &self,
        post: &PostCommand<'_>,
        request_id: Option<&str>,
    ) -> Result<PostReply, StoreError> {
        let partition = partition(post.account);
        let mut call = self.0.scripts.post.prepare_invoke();
        call.key(key(partition, "a:", post.account))
            .key(key(partition, "op:", post.operation));
        call.arg(post.change.paid.get())
            .arg(post.change.trial.get())
            .arg(post.credited.get());
        if let Some(request_id) = request_id {
            call.key(key(partition, "r:", request_id));
        }
        call.arg(OPERATION_MS)
            .arg(u8::from(post.only_free))
            .arg(post.seq);
        let answer = self.call("change a balance", &call).await?;
        Ok(match answer.word() {
            "done" => PostReply::Done,
            "lost" => PostReply::Lost,
            "known" => PostReply::Known {
                change: answer.parts(1)?,
            },
            "insufficient" => PostReply::Insufficient {
                available: answer.amount(1)?,
            },
            "unknown" => PostReply::Unknown,
            _ => return Err(answer.unexpected_reply()),
        })
    }

    /// Seeds an account. Returns false if the store already knows it, or if the partition is in
    /// another epoch.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn seed_account(&self, seed: &AccountSeed<'_>) -> Result<bool, StoreError> {
        let partition = partition(seed.account);
        let mut call = self.0.scripts.seed.prepare_invoke();
        call.key(key(partition, "a:", seed.account))
            .key(key(partition, "h:", seed.account));
        call.key(key(partition, "epoch", ""));
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
        Ok(self.call("seed an account", &call).await?.word() == "done")
    }

    /// Returns the fields of the API key with this hash; empty if the store does not know it.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn api_key(&self, hash: &str) -> Result<HashMap<String, String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("HGETALL").arg(format!("gw:k:{hash}"));
        self.query("look up a key", &get).await
    }

    /// Returns the server's time.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn now_ms(&self) -> Result<i64, StoreError> {
        let (seconds, micros): (i64, i64) = self
            .query("read the server's time", &::redis::cmd("TIME"))
            .await?;
        Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
    }

    /// Returns true if the store has all API keys, so that an unknown key is not valid. Returns
    /// false if the store lost the keys and has not received them again.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn has_all_keys(&self) -> Result<bool, StoreError> {
        let mut exists = Cmd::new();
        exists.arg("EXISTS").arg(KEYS_KNOWN);
        self.query("check whether the keys are published", &exists)
            .await
    }

    /// Releases the holds of a partition whose leases have ended, at most one hundred per call.
    /// Returns their number.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn sweep(&self, partition: u32, now_ms: i64) -> Result<usize, StoreError> {
        let leases = key(partition, "l", "");
        let mut lapsed = Cmd::new();
        lapsed
            .arg("ZRANGEBYSCORE")
            .arg(&leases)
            .arg("-inf")
            .arg(now_ms)
            .arg("LIMIT")
            .arg(0)
            .arg(100);
        let lapsed: Vec<String> = self.query("look for expired reservations", &lapsed).await?;
        let mut swept = 0;
        for (account, request_id) in lapsed.iter().filter_map(|member| member.split_once(' ')) {
            let holds = key(partition, "h:", account);
            let mut hold = Cmd::new();
            hold.arg("HGET").arg(&holds).arg(request_id);
            let hold: Option<String> = self.query("read an expired reservation", &hold).await?;
            // The fifth field of a hold is the API key, if there is one.
            let api_key = hold
                .as_deref()
                .and_then(|hold| hold.splitn(5, ':').nth(4))
                .unwrap_or_default();
            let mut call = self.0.scripts.lapse.prepare_invoke();
            call.key(key(partition, "a:", account))
                .key(holds)
                .key(&leases)
                .key(key(partition, "k:", api_key));
            call.arg(request_id).arg(account);
            swept += usize::from(
                self.call("release an expired reservation", &call)
                    .await?
                    .word()
                    == "done",
            );
        }
        Ok(swept)
    }

    /// Expires the rest of an account's trial credits if the trial is over and no hold uses them.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn expire_trial(&self, account: &str) -> Result<bool, StoreError> {
        let partition = partition(account);
        let mut call = self.0.scripts.expire.prepare_invoke();
        call.key(key(partition, "a:", account))
            .key(key(partition, "ev", ""));
        call.key(key(partition, "op:", &lapse_operation(account)))
            .arg(account)
            .arg(OPERATION_MS);
        Ok(self.call("expire a trial", &call).await?.word() == "done")
    }

    /// Returns the account's current state; `None` if the store does not know it.
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
            .arg(key(partition(account), "a:", account))
            .arg(&fields[..]);
        let values: Vec<Option<String>> = self.query("read a balance", &get).await?;
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

    /// Returns the events of a partition after the event `after` ("0": from the beginning), in
    /// order, with their ids.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn events(
        &self,
        partition: u32,
        after: &str,
        most: usize,
    ) -> Result<Vec<(String, StoreEvent)>, StoreError> {
        let mut read = Cmd::new();
        read.arg("XRANGE")
            .arg(key(partition, "ev", ""))
            .arg(format!("({after}"))
            .arg("+")
            .arg("COUNT")
            .arg(most);
        let events: Vec<(String, Vec<(String, String)>)> = self.query("read events", &read).await?;
        // An unreadable event must not block the others: the caller decides about it.
        let read = |fields| {
            parse_event(fields).unwrap_or_else(|error| StoreEvent::Unreadable(error.to_string()))
        };
        Ok(events
            .into_iter()
            .map(|(id, fields)| (id, read(fields)))
            .collect())
    }

    fn request_invocation<'s>(
        &self,
        script: &'s Script,
        account: &str,
        request_id: &str,
    ) -> ScriptInvocation<'s> {
        let partition = partition(account);
        let mut call = script.prepare_invoke();
        call.key(key(partition, "a:", account))
            .key(key(partition, "h:", account))
            .key(key(partition, "l", ""));
        call.key(key(partition, "r:", request_id))
            .arg(request_id)
            .arg(account);
        call
    }

    async fn call(
        &self,
        operation: &'static str,
        call: &ScriptInvocation<'_>,
    ) -> Result<ScriptReply, StoreError> {
        let mut link = self.0.link.clone();
        let words = self.guard(operation, call.invoke_async(&mut link)).await?;
        Ok(ScriptReply { operation, words })
    }

    /// Like `call`, for a reply that need not be text.
    async fn call_bytes(
        &self,
        operation: &'static str,
        call: &ScriptInvocation<'_>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut link = self.0.link.clone();
        self.guard(operation, call.invoke_async(&mut link)).await
    }

    async fn query<T: FromRedisValue>(
        &self,
        operation: &'static str,
        command: &Cmd,
    ) -> Result<T, StoreError> {
        let mut link = self.0.link.clone();
        self.guard(operation, command.query_async(&mut link)).await
    }

    /// Runs the call unless the circuit breaker is open.
    async fn guard<T>(
        &self,
        operation: &'static str,
        ask: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, StoreError> {
        let failed = |source| StoreError::redis(operation, errors::first_error(source));
        let Some(breaker) = &self.0.breaker else {
            return ask.await.map_err(failed);
        };
        if self.is_unavailable() {
            return Err(StoreError::Away(operation));
        }
        let outcome = ask.await.map_err(failed);
        match &outcome {
            Ok(_) => breaker.record_success(Instant::now()),
            Err(error) => breaker.record_failure(Instant::now(), error),
        }
        outcome
    }
}

fn parse_event(fields: Vec<(String, String)>) -> Result<StoreEvent, StoreError> {
    let field = |name: &str| {
        let found = fields
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.clone());
        found.ok_or_else(|| {
            StoreError::Unusable(format!(
                "an event of the shared store has no {name}: {fields:?}"
            ))
        })
    };
    match fields.first().map(|(name, _)| name.as_str()) {
        Some("lapse") => {
            return Ok(StoreEvent::Lapsed {
                account: field("account")?,
                trial: parse_amount(&field("trial")?)?,
            });
        }
        Some("late") => {
            let (request_id, account, ending) =
                (field("late")?, field("account")?, field("ending")?);
            return Ok(StoreEvent::EndedLate {
                request_id,
                account,
                ending,
            });
        }
        _ => {}
    }
    Ok(StoreEvent::Ended {
        request_id: field("request")?,
        account: field("account")?,
        taken: CreditSplit {
            paid: parse_amount(&field("paid")?)?,
            trial: parse_amount(&field("trial")?)?,
        },
        writeoff: parse_amount(&field("writeoff")?)?,
        ending: field("ending")?,
    })
}

/// Operation id of a trial's expiry, so that it counts once.
pub fn lapse_operation(account: &str) -> String {
    format!("lapse:{account}")
}

fn parse_amount(text: &str) -> Result<Micro, StoreError> {
    text.parse().map(Micro::new).map_err(|_| {
        StoreError::Unusable(format!(
            "the shared store has {text:?} where an amount must be"
        ))
    })
}

/// A script's reply: a result word and its arguments.
struct ScriptReply {
    operation: &'static str,
    words: Vec<String>,
}

impl ScriptReply {
    fn word(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    fn text(&self, index: usize) -> Result<&str, StoreError> {
        self.words
            .get(index)
            .map(String::as_str)
            .ok_or_else(|| self.unexpected_reply())
    }

    fn amount(&self, index: usize) -> Result<Micro, StoreError> {
        parse_amount(self.text(index)?)
    }

    fn parts(&self, index: usize) -> Result<CreditSplit, StoreError> {
        Ok(CreditSplit {
            paid: self.amount(index)?,
            trial: self.amount(index + 1)?,
        })
    }

    fn count(&self, index: usize) -> Result<u64, StoreError> {
        self.text(index)?
            .parse()
            .map_err(|_| self.unexpected_reply())
    }

    /// Reads what is left under the limits, beginning at word `first`: requests and tokens of the
    /// key, then of the account. Empty if the request was a repeat or has no limits.
    fn rate_limits(&self, first: usize) -> Result<RateLimitStatuses, StoreError> {
        if self.words.len() <= first {
            return Ok(RateLimitStatuses::default());
        }
        let meter = |index: usize| {
            let (limit, remaining, reset_ms) = (
                self.count(index)?,
                self.count(index + 1)?,
                self.count(index + 2)?,
            );
            Ok::<_, StoreError>((limit > 0).then_some(RateLimitStatus {
                limit,
                remaining,
                reset_ms,
            }))
        };
        let of_key = RateLimitStatuses {
            requests: meter(first)?,
            tokens: meter(first + 3)?,
        };
        let of_account = RateLimitStatuses {
            requests: meter(first + 6)?,
            tokens: meter(first + 9)?,
        };
        Ok(of_key.tighter(of_account))
    }

    fn wait(&self) -> Result<RateLimitWait, StoreError> {
        let whose = match self.text(1)? {
            "key" => LimitScope::Key,
            "account" => LimitScope::Account,
            _ => return Err(self.unexpected_reply()),
        };
        let limited = match self.text(2)? {
            "requests" => RateLimitKind::Requests,
            "tokens" => RateLimitKind::Tokens,
            "concurrent" => RateLimitKind::Concurrent,
            _ => return Err(self.unexpected_reply()),
        };
        Ok(RateLimitWait {
            limited,
            whose,
            most: self.count(3)?,
            ms: self.count(4)?,
            meters: self.rate_limits(5)?,
        })
    }

    fn unexpected_reply(&self) -> StoreError {
        StoreError::Unusable(format!(
            "cannot {}: the shared store answered {:?}",
            self.operation, self.words
        ))
    }
}
