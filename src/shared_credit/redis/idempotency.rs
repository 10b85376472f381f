//! Requests under idempotency keys, and their responses, shared by all edges. An entry is in the
//! account's hash slot.
//!
//! An entry is either running, until a stored time, or done, with or without a stored response.
//! Entries expire by themselves. The entries of a process that died are found by its instance id.
//! This file must not validate keys or depend on a request's cost.

use super::keyspace::{MARKER_MS, PARTITIONS, partition};
use super::reply::ScriptReply;
use super::views::StoreIdempotency;
use crate::idempotency::entry::{IdempotencyEntry, IdempotencyLookup, StoredResponse};
use crate::idempotency::key_completion::SharedRetentionLimits;
use ::redis::{Cmd, Pipeline, Script, ScriptInvocation};
use ledger::StoreError;
use std::time::Duration;

/// Maximum number of expired responses and keys that one script removes from the totals.
const MAX_REMOVAL_BATCH: usize = 100;

impl IdempotencyEntry {
    fn redis_key(&self) -> String {
        format!("{}:{}", self.account, self.name)
    }
}

impl StoreIdempotency<'_> {
    fn entry_invocation<'s>(
        &self,
        entry: &IdempotencyEntry,
        script: &'s Script,
        before: &[String],
    ) -> ScriptInvocation<'s> {
        let partition = partition(&entry.account);
        let mut call = script.prepare_invoke();
        for name in before {
            call.key(name.as_str());
        }
        call.key(self.0.key(partition, "i:", &entry.redis_key()));
        call.key(self.0.key(partition, "ib:", &entry.instance_id));
        call
    }

    /// Returns the Redis keys that `answers.lua` expects.
    fn response_keys(&self, partition: u32) -> [String; 3] {
        ["il", "ik", "iu"].map(|kind| self.0.key(partition, kind, ""))
    }

    /// Looks a key up, and enters the request as running if the key is unknown. Both happen in one
    /// atomic step, even if several edges call at the same time. After the time `runs`, the request
    /// no longer counts as running.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. The request may have been entered all the
    /// same.
    pub async fn claim_idempotency_key(
        &self,
        entry: &IdempotencyEntry,
        runs: Duration,
        known_for: Duration,
    ) -> Result<IdempotencyLookup, StoreError> {
        let mut call = self.entry_invocation(entry, &self.0.0.scripts.ask, &[]);
        call.arg(&entry.hash)
            .arg(&entry.request_id)
            .arg(entry.redis_key())
            .arg(millis(runs))
            .arg(millis(known_for));
        let reply: Vec<Vec<u8>> = self
            .0
            .call_bytes("record an idempotency key", &call)
            .await?;
        let text = |index: usize| {
            reply
                .get(index)
                .map(|text| String::from_utf8_lossy(text).into_owned())
        };
        Ok(match text(0).as_deref() {
            Some("new") => IdempotencyLookup::Nothing,
            Some("running") => IdempotencyLookup::Running,
            Some("other_body") => IdempotencyLookup::OtherBody,
            Some("done") => {
                let headers = text(2).and_then(|headers| serde_json::from_str(&headers).ok());
                let response = headers
                    .zip(reply.get(3).cloned())
                    .map(|(headers, body)| StoredResponse { headers, body });
                IdempotencyLookup::Done {
                    request_id: text(1).unwrap_or_default(),
                    response,
                }
            }
            other => {
                let status = other.unwrap_or_default();
                return Err(StoreError::Unusable(format!(
                    "cannot look up an idempotency key: the shared store answered {status:?}"
                )));
            }
        })
    }

    /// Marks the request as done and stores its response; `None` stores no response. The response
    /// is also not stored if there is no room for it after the oldest ones are removed.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. A retry is safe: the call takes effect once.
    pub async fn complete_idempotency_key(
        &self,
        entry: &IdempotencyEntry,
        response: Option<&StoredResponse>,
        known_for: Duration,
        limits: SharedRetentionLimits,
    ) -> Result<(), StoreError> {
        let at = partition(&entry.account);
        let mut call =
            self.entry_invocation(entry, &self.0.0.scripts.keep, &self.response_keys(at));
        call.key(self.0.key(at, "ia:", &entry.account));
        call.arg(&entry.hash)
            .arg(&entry.request_id)
            .arg(entry.redis_key())
            .arg(&entry.account)
            .arg(millis(known_for));
        call.arg(limits.of_account)
            .arg(limits.of_all / u64::from(PARTITIONS));
        if let Some(response) = response {
            let headers = serde_json::to_string(&response.headers).map_err(|error| {
                StoreError::Unusable(format!(
                    "cannot store the response of an idempotency key: {error}"
                ))
            })?;
            call.arg(headers).arg(&response.body[..]);
        }
        self.0
            .call("store the response of an idempotency key", &call)
            .await
            .map(drop)
    }

    /// Releases the key of a request that had no result.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. A retry is safe.
    pub async fn release_idempotency_key(
        &self,
        entry: &IdempotencyEntry,
    ) -> Result<(), StoreError> {
        let mut call = self.entry_invocation(entry, &self.0.0.scripts.free, &[]);
        call.arg(&entry.request_id);
        self.0
            .call("release an idempotency key", &call)
            .await
            .map(drop)
    }

    /// Returns the entries that a process left as running. Their body hash is not known.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn orphaned_requests(
        &self,
        instance_id: &str,
    ) -> Result<Vec<IdempotencyEntry>, StoreError> {
        let mut orphaned = Vec::new();
        for partition in 0..PARTITIONS {
            let mut get = Cmd::new();
            get.arg("HGETALL")
                .arg(self.0.key(partition, "ib:", instance_id));
            let found: Vec<(String, String)> = self
                .0
                .query("look for requests of ended processes", &get)
                .await?;
            orphaned.extend(found.into_iter().filter_map(|(request_id, named)| {
                let (account, name) = named.split_once(':')?;
                let (account, name, instance_id) =
                    (account.to_owned(), name.to_owned(), instance_id.to_owned());
                Some(IdempotencyEntry {
                    account,
                    name,
                    hash: String::new(),
                    request_id,
                    instance_id,
                })
            }));
        }
        Ok(orphaned)
    }

    /// Returns whether the request of an entry has ended, or `None` if it began so long ago that
    /// its marker may have expired. `runs` is the time with which the entry was claimed.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn has_ended(
        &self,
        entry: &IdempotencyEntry,
        runs: Duration,
    ) -> Result<Option<bool>, StoreError> {
        let operation = "check whether a request has ended";
        let partition = partition(&entry.account);
        let now_ms = self.0.now_ms().await?;
        let mut pipeline = Pipeline::new();
        pipeline
            .cmd("EXISTS")
            .arg(self.0.key(partition, "r:", &entry.request_id));
        pipeline
            .cmd("HGET")
            .arg(self.0.key(partition, "i:", &entry.redis_key()))
            .arg("until");
        let mut link = self.0.0.link.clone();
        let (has_marker, until): (bool, Option<i64>) = self
            .0
            .guard(operation, pipeline.query_async(&mut link))
            .await?;
        let began_ms = until.map(|until| until.saturating_sub_unsigned(millis(runs)));
        let is_certain =
            began_ms.is_some_and(|began_ms| now_ms < began_ms.saturating_add_unsigned(MARKER_MS));
        Ok((has_marker || is_certain).then_some(has_marker))
    }

    /// Returns whether the store has an entry for the idempotency key.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn has_idempotency_key(&self, entry: &IdempotencyEntry) -> Result<bool, StoreError> {
        let mut exists = Cmd::new();
        exists.arg("EXISTS").arg(
            self.0
                .key(partition(&entry.account), "i:", &entry.redis_key()),
        );
        self.0.query("look up an idempotency key", &exists).await
    }

    /// Removes expired entries from the totals of stored responses. Returns their number.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn remove_expired_responses(&self, partition: u32) -> Result<usize, StoreError> {
        let mut call = self.0.0.scripts.tidy.prepare_invoke();
        for name in self.response_keys(partition) {
            call.key(name);
        }
        call.arg(MAX_REMOVAL_BATCH);
        let reply: ScriptReply = self.0.call("count the stored responses", &call).await?;
        reply.text(1)?.parse().map_err(|_| reply.unexpected_reply())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
