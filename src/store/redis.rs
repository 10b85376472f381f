//! The store that several edges share: balances and holds in Redis (or Valkey). Only scripts that
//! run as one step change them.
//!
//! Each account, with everything that belongs to it, is in one of sixteen partitions. A partition
//! is one hash slot, so a script finds everything on one node. Redis decides which account can
//! spend how much. The truth is the ledger, which consumes the events of the partitions. Scripts
//! read the server's clock, so the edges' clocks do not matter. Must not know HTTP or prices. Read
//! next: `redis/common.lua` (the start of every script), `redis/reserve.lua`, `redis/end.lua`.

mod asked;
pub mod breaker;
mod fault;
mod feed;
mod judge;
mod late;
mod link;
mod revoked;

use super::StoreError;
use crate::billing::bounds::Bounds;
use crate::billing::rates::{Limited, Meter, Meters, Wait, Whose};
use crate::money::{Micro, Parts};
use ::redis::{Cmd, FromRedisValue, RedisError, Script, ScriptInvocation};
pub use asked::{Entry, SharedRoom};
use breaker::Breaker;
pub use fault::reason;
pub use feed::{KeySeed, Lineage, RESTORED_AT_ONCE, Restore, SharedKey};
pub use late::TOLD_MOST;
use link::Link;
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
pub struct SharedStore(Arc<Inner>);

struct Inner {
    link: Link,
    /// Circuit breaker that stops requests from calling a store that does not answer.
    breaker: Option<Arc<Breaker>>,
    scripts: &'static Scripts,
}

/// Address of the shared store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    One(String),
    /// Some nodes of a cluster.
    Cluster(Vec<String>),
    /// The primary that Sentinels name.
    Sentinel(Sentinel),
}

/// The Sentinels that know the primary's address, and the credentials for the primary.
#[derive(Clone, PartialEq, Eq)]
pub struct Sentinel {
    pub master: String,
    pub nodes: Vec<String>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub database: i64,
    /// Whether to use TLS for the primary, as for the Sentinels.
    pub tls: bool,
}

impl std::fmt::Debug for Sentinel {
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
pub struct Reserve<'a> {
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
    pub within: Option<(&'a str, &'a Bounds)>,
}

/// The result of a [`ReserveCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reserved {
    Held(Parts),
    /// Credits reserved under limits, with the remaining limits.
    HeldWithin(Parts, Meters),
    Insufficient {
        available: Micro,
    },
    TrialExpired,
    TooManyOpen,
    /// A limit on requests, on tokens or on concurrency was reached.
    Limited(Wait),
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
pub struct End<'a> {
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
pub enum Ended {
    /// The event for the ledger, the debited amount, and the amount written off because the account
    /// could not cover it.
    Done {
        event: String,
        taken: Parts,
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
pub struct Post<'a> {
    /// Reference of the operation; the store applies an operation once.
    pub operation: &'a str,
    pub account: &'a str,
    pub change: Parts,
    pub credited: Micro,
    /// Whether the debit must be covered by credits that are not reserved.
    pub only_free: bool,
    /// Position of the ledger's entry, if it exists already; otherwise 0.
    pub seq: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    Done,
    /// The store had applied the operation before, with this change.
    Known {
        change: Parts,
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
pub struct Seed<'a> {
    pub account: &'a str,
    pub has: Parts,
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
pub struct Shared {
    pub has: Parts,
    pub held: Parts,
    pub credited: Micro,
    pub is_active: bool,
    pub trial_ends_at_ms: Option<i64>,
}

/// An event that the ledger must enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Ended {
        request_id: String,
        account: String,
        taken: Parts,
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
    pub fn new(address: Address, patience: Duration) -> Self {
        Self::with(address, patience, None)
    }

    /// Creates a store for calls on behalf of requests. A call fails at once while `breaker` is
    /// open, and each outcome is recorded in `breaker`.
    pub fn guarded(address: Address, patience: Duration, breaker: Arc<Breaker>) -> Self {
        Self::with(address, patience, Some(breaker))
    }

    fn with(address: Address, patience: Duration, breaker: Option<Arc<Breaker>>) -> Self {
        Self(Arc::new(Inner {
            link: Link::new(address, patience),
            breaker,
            scripts: &SCRIPTS,
        }))
    }

    /// Returns a new connection to the same store, without the circuit breaker, for background
    /// work.
    pub fn another(&self, patience: Duration) -> Self {
        Self::new(self.0.link.address().clone(), patience)
    }

    /// Returns true while the circuit breaker stops requests from calling the store.
    pub fn is_away(&self) -> bool {
        self.0
            .breaker
            .as_ref()
            .is_some_and(|breaker| breaker.is_open())
    }

    /// Connects at once.
    ///
    /// # Errors
    /// Returns an error if the address is not valid, or if no server answers there.
    pub async fn connect(address: &Address, patience: Duration) -> Result<Self, StoreError> {
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
    pub async fn reserve(&self, asked: &Reserve<'_>) -> Result<Reserved, StoreError> {
        let lease_ms = u64::try_from(asked.lease.as_millis()).unwrap_or(u64::MAX);
        let mut call = self.of_request(&self.0.scripts.reserve, asked.account, asked.request_id);
        call.arg(asked.full.get())
            .arg(asked.floor.get())
            .arg(lease_ms)
            .arg(asked.most_open);
        if let Some((
            key_id,
            Bounds {
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
        let answer = self.call("set credit aside", &call).await?;
        Ok(match answer.word() {
            "held" if asked.within.is_some() => {
                Reserved::HeldWithin(answer.parts(1)?, answer.meters(3)?)
            }
            "held" => Reserved::Held(answer.parts(1)?),
            "limited" => Reserved::Limited(answer.wait()?),
            "key_spend" => Reserved::KeySpendLimit {
                free: answer.amount(1)?,
            },
            "insufficient" => Reserved::Insufficient {
                available: answer.amount(1)?,
            },
            "trial_expired" => Reserved::TrialExpired,
            "too_many" => Reserved::TooManyOpen,
            "suspended" => Reserved::Suspended,
            "ended" => Reserved::Ended,
            "unknown" => Reserved::Unknown,
            _ => return Err(answer.strange()),
        })
    }

    /// Settles a request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. Try again until it answers.
    pub async fn end(&self, asked: &End<'_>) -> Result<Ended, StoreError> {
        let mut call = self.of_request(&self.0.scripts.end, asked.account, asked.request_id);
        let partition = partition(asked.account);
        call.key(key(partition, "ev", ""))
            .key(key(partition, "k:", asked.key_id));
        call.arg(asked.cost.get())
            .arg(MARKER_MS)
            .arg(asked.ending)
            .arg(asked.tokens);
        let answer = self.call("end a request", &call).await?;
        Ok(match answer.word() {
            "done" => Ended::Done {
                event: answer.text(1)?.into(),
                taken: answer.parts(2)?,
                writeoff: answer.amount(4)?,
            },
            "known" if answer.text(1)? == APPLIED => Ended::Applied,
            "known" => Ended::Known {
                event: answer.text(1)?.into(),
            },
            "unknown" => Ended::Unknown,
            _ => return Err(answer.strange()),
        })
    }

    /// Posts a change of a balance.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. It is safe to try again, since an operation
    /// counts once.
    pub async fn post(&self, post: &Post<'_>) -> Result<Posted, StoreError> {
        self.post_beside(post, None).await
    }

    /// Posts the difference between the ledger's and the store's debit for `request_id`, like
    /// [`SharedStore::post`]. It applies only if the store has the end of that request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. It is safe to try again.
    pub async fn level(&self, post: &Post<'_>, request_id: &str) -> Result<Posted, StoreError> {
        self.post_beside(post, Some(request_id)).await
    }

    async fn post_beside(
        &self,
        post: &Post<'_>,
        request_id: Option<&str>,
    ) -> Result<Posted, StoreError> {
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
            "done" => Posted::Done,
            "lost" => Posted::Lost,
            "known" => Posted::Known {
                change: answer.parts(1)?,
            },
            "insufficient" => Posted::Insufficient {
                available: answer.amount(1)?,
            },
            "unknown" => Posted::Unknown,
            _ => return Err(answer.strange()),
        })
    }

    /// Seeds an account. Returns false if the store already knows it, or if the partition is in
    /// another epoch.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn seed(&self, seed: &Seed<'_>) -> Result<bool, StoreError> {
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
        self.ask("look a key up", &get).await
    }

    /// Returns the server's time.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn now_ms(&self) -> Result<i64, StoreError> {
        let (seconds, micros): (i64, i64) = self
            .ask("ask the server's time", &::redis::cmd("TIME"))
            .await?;
        Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
    }

    /// Returns true if the store has all API keys, so that an unknown key is not valid. Returns
    /// false if the store lost the keys and has not received them again.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn knows_keys(&self) -> Result<bool, StoreError> {
        let mut exists = Cmd::new();
        exists.arg("EXISTS").arg(KEYS_KNOWN);
        self.ask("ask whether the keys are known", &exists).await
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
        let lapsed: Vec<String> = self.ask("look for lapsed holds", &lapsed).await?;
        let mut swept = 0;
        for (account, request_id) in lapsed.iter().filter_map(|member| member.split_once(' ')) {
            let holds = key(partition, "h:", account);
            let mut hold = Cmd::new();
            hold.arg("HGET").arg(&holds).arg(request_id);
            let hold: Option<String> = self.ask("look at a lapsed hold", &hold).await?;
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
            swept += usize::from(self.call("give up a hold", &call).await?.word() == "done");
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
        call.key(key(partition, "op:", &lapse(account)))
            .arg(account)
            .arg(OPERATION_MS);
        Ok(self.call("lapse a trial", &call).await?.word() == "done")
    }

    /// Returns the account's current state; `None` if the store does not know it.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn account(&self, account: &str) -> Result<Option<Shared>, StoreError> {
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
        let values: Vec<Option<String>> = self.ask("read a balance", &get).await?;
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
        let has = Parts {
            paid: amount(paid)?,
            trial: amount(trial)?,
        };
        let held = Parts {
            paid: amount(held_paid)?,
            trial: amount(held_trial)?,
        };
        let trial_ends_at_ms = ends.as_deref().and_then(|ends| ends.parse().ok());
        let is_active = status == "active";
        Ok(Some(Shared {
            has,
            held,
            credited: amount(credited)?,
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
    ) -> Result<Vec<(String, Event)>, StoreError> {
        let mut read = Cmd::new();
        read.arg("XRANGE")
            .arg(key(partition, "ev", ""))
            .arg(format!("({after}"))
            .arg("+")
            .arg("COUNT")
            .arg(most);
        let events: Vec<(String, Vec<(String, String)>)> = self.ask("read events", &read).await?;
        // An unreadable event must not block the others: the caller decides about it.
        let read =
            |fields| event(fields).unwrap_or_else(|error| Event::Unreadable(error.to_string()));
        Ok(events
            .into_iter()
            .map(|(id, fields)| (id, read(fields)))
            .collect())
    }

    fn of_request<'s>(
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
    ) -> Result<Answer, StoreError> {
        let mut link = self.0.link.clone();
        let words = self.guard(operation, call.invoke_async(&mut link)).await?;
        Ok(Answer { operation, words })
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

    async fn ask<T: FromRedisValue>(
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
        let failed = |source| StoreError::redis(operation, fault::first_of(source));
        let Some(breaker) = &self.0.breaker else {
            return ask.await.map_err(failed);
        };
        if self.is_away() {
            return Err(StoreError::Away(operation));
        }
        let outcome = ask.await.map_err(failed);
        match &outcome {
            Ok(_) => breaker.worked(Instant::now()),
            Err(error) => breaker.failed(Instant::now(), error),
        }
        outcome
    }
}

fn event(fields: Vec<(String, String)>) -> Result<Event, StoreError> {
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
            return Ok(Event::Lapsed {
                account: field("account")?,
                trial: amount(&field("trial")?)?,
            });
        }
        Some("late") => {
            let (request_id, account, ending) =
                (field("late")?, field("account")?, field("ending")?);
            return Ok(Event::EndedLate {
                request_id,
                account,
                ending,
            });
        }
        _ => {}
    }
    Ok(Event::Ended {
        request_id: field("request")?,
        account: field("account")?,
        taken: Parts {
            paid: amount(&field("paid")?)?,
            trial: amount(&field("trial")?)?,
        },
        writeoff: amount(&field("writeoff")?)?,
        ending: field("ending")?,
    })
}

/// Operation id of a trial's expiry, so that it counts once.
pub fn lapse(account: &str) -> String {
    format!("lapse:{account}")
}

fn amount(text: &str) -> Result<Micro, StoreError> {
    text.parse()
        .map(Micro::new)
        .map_err(|_| StoreError::Unusable(format!("the shared store has {text:?} for an amount")))
}

/// A script's reply: a result word and its arguments.
struct Answer {
    operation: &'static str,
    words: Vec<String>,
}

impl Answer {
    fn word(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    fn text(&self, index: usize) -> Result<&str, StoreError> {
        self.words
            .get(index)
            .map(String::as_str)
            .ok_or_else(|| self.strange())
    }

    fn amount(&self, index: usize) -> Result<Micro, StoreError> {
        amount(self.text(index)?)
    }

    fn parts(&self, index: usize) -> Result<Parts, StoreError> {
        Ok(Parts {
            paid: self.amount(index)?,
            trial: self.amount(index + 1)?,
        })
    }

    fn count(&self, index: usize) -> Result<u64, StoreError> {
        self.text(index)?.parse().map_err(|_| self.strange())
    }

    /// Reads what is left under the limits, beginning at word `first`: requests and tokens of the
    /// key, then of the account. Empty if the request was a repeat or has no limits.
    fn meters(&self, first: usize) -> Result<Meters, StoreError> {
        if self.words.len() <= first {
            return Ok(Meters::default());
        }
        let meter = |index: usize| {
            let (limit, remaining, reset_ms) = (
                self.count(index)?,
                self.count(index + 1)?,
                self.count(index + 2)?,
            );
            Ok::<_, StoreError>((limit > 0).then_some(Meter {
                limit,
                remaining,
                reset_ms,
            }))
        };
        let of_key = Meters {
            requests: meter(first)?,
            tokens: meter(first + 3)?,
        };
        let of_account = Meters {
            requests: meter(first + 6)?,
            tokens: meter(first + 9)?,
        };
        Ok(of_key.with(of_account))
    }

    fn wait(&self) -> Result<Wait, StoreError> {
        let whose = match self.text(1)? {
            "key" => Whose::Key,
            "account" => Whose::Account,
            _ => return Err(self.strange()),
        };
        let limited = match self.text(2)? {
            "requests" => Limited::Requests,
            "tokens" => Limited::Tokens,
            "concurrent" => Limited::Concurrent,
            _ => return Err(self.strange()),
        };
        Ok(Wait {
            limited,
            whose,
            most: self.count(3)?,
            ms: self.count(4)?,
            meters: self.meters(5)?,
        })
    }

    fn strange(&self) -> StoreError {
        StoreError::Unusable(format!(
            "{}: the shared store answered {:?}",
            self.operation, self.words
        ))
    }
}
