//! Runs scripts and commands over a connection to the shared store.
//!
//! This file must not depend on a script's effect.

use super::breaker::StoreBreaker;
use super::clock::StoreClock;
use super::errors;
use super::keyspace::{Keyspace, PARTITIONS, partition};
use super::link::RedisLink;
use super::reply::ScriptReply;
use super::scripts::{SCRIPTS, Scripts};
use ::redis::{Cmd, FromRedisValue, RedisError, Script, ScriptInvocation};
use config::redis_address::RedisAddress;
use ledger::StoreError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection to the shared store, which all requests share. Cloning it is cheap. It connects at
/// its first use and belongs to the runtime of that use, so a thread with its own runtime needs its
/// own `SharedStore`.
#[derive(Clone)]
pub struct SharedStore(pub(crate) Arc<SharedStoreInner>);

pub(crate) struct SharedStoreInner {
    pub link: RedisLink,
    /// Circuit breaker that stops requests from calling a store that does not answer.
    breaker: Option<Arc<StoreBreaker>>,
    clock: StoreClock,
    keyspace: Keyspace,
    pub scripts: &'static Scripts,
}

impl SharedStore {
    /// Creates a store that connects at its first use. A call fails if it has no reply within
    /// `reply_timeout`, including the time to connect.
    pub fn new(address: RedisAddress, reply_timeout: Duration) -> Self {
        Self::build(address, reply_timeout, None, StoreClock::default())
    }

    /// Creates a store for calls on behalf of requests. A call fails at once while `breaker` is
    /// open, and its outcome is recorded in `breaker`. The caller must measure `clock`.
    pub fn with_breaker(
        address: RedisAddress,
        reply_timeout: Duration,
        breaker: Arc<StoreBreaker>,
        clock: StoreClock,
    ) -> Self {
        Self::build(address, reply_timeout, Some(breaker), clock)
    }

    fn build(
        address: RedisAddress,
        reply_timeout: Duration,
        breaker: Option<Arc<StoreBreaker>>,
        clock: StoreClock,
    ) -> Self {
        Self(Arc::new(SharedStoreInner {
            keyspace: Keyspace::from_address(&address),
            link: RedisLink::new(address, reply_timeout),
            breaker,
            clock,
            scripts: &SCRIPTS,
        }))
    }

    /// Returns a new connection to the same store, without the circuit breaker, for background
    /// work.
    pub fn new_connection(&self, reply_timeout: Duration) -> Self {
        let address = self.0.link.address().clone();
        Self::build(address, reply_timeout, None, self.0.clock.clone())
    }

    /// Returns the server's clock, as far as it was measured.
    pub fn clock(&self) -> &StoreClock {
        &self.0.clock
    }

    /// Returns the partitions in groups that one command can read: all at once on a single server,
    /// or one at a time in a cluster.
    pub fn partition_groups(&self) -> Vec<Vec<u32>> {
        match self.is_cluster() {
            true => (0..PARTITIONS).map(|partition| vec![partition]).collect(),
            false => vec![(0..PARTITIONS).collect()],
        }
    }

    /// Returns the name of a key of this partition.
    pub(crate) fn key(&self, partition: u32, kind: &str, of: &str) -> String {
        self.0.keyspace.key(partition, kind, of)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.0.link.address(), RedisAddress::Cluster(_))
    }

    pub fn reply_timeout(&self) -> Duration {
        self.0.link.reply_timeout()
    }

    /// Returns whether the circuit breaker is open, so that requests do not call the store.
    pub fn is_unavailable(&self) -> bool {
        self.0
            .breaker
            .as_ref()
            .is_some_and(|breaker| breaker.is_open())
    }

    /// Connects at once.
    ///
    /// # Errors
    /// Returns an error if the address is not valid, or if no server answers at it.
    pub async fn connect(
        address: &RedisAddress,
        reply_timeout: Duration,
    ) -> Result<Self, StoreError> {
        let store = Self::new(address.clone(), reply_timeout);
        store
            .0
            .link
            .connect()
            .await
            .map_err(|source| errors::store_error("connect to the shared store", source))?;
        Ok(store)
    }

    /// Returns the server's time, in ms since 1970.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn now_ms(&self) -> Result<i64, StoreError> {
        let (seconds, micros): (i64, i64) = self
            .query("read the server's time", &::redis::cmd("TIME"))
            .await?;
        Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
    }

    pub(crate) fn request_invocation<'s>(
        &self,
        script: &'s Script,
        account: &str,
        request_id: &str,
    ) -> ScriptInvocation<'s> {
        let partition = partition(account);
        let mut call = script.prepare_invoke();
        call.key(self.key(partition, "a:", account))
            .key(self.key(partition, "h:", account))
            .key(self.key(partition, "l", ""));
        call.key(self.key(partition, "r:", request_id))
            .arg(request_id)
            .arg(account);
        call
    }

    pub(crate) async fn call(
        &self,
        operation: &'static str,
        call: &ScriptInvocation<'_>,
    ) -> Result<ScriptReply, StoreError> {
        let mut link = self.0.link.clone();
        let values = self.guard(operation, call.invoke_async(&mut link)).await?;
        Ok(ScriptReply { operation, values })
    }

    /// Does the same as [`Self::call`] for a reply that need not be text.
    pub(crate) async fn call_bytes(
        &self,
        operation: &'static str,
        call: &ScriptInvocation<'_>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut link = self.0.link.clone();
        self.guard(operation, call.invoke_async(&mut link)).await
    }

    pub(crate) async fn query<T: FromRedisValue>(
        &self,
        operation: &'static str,
        command: &Cmd,
    ) -> Result<T, StoreError> {
        let mut link = self.0.link.clone();
        self.guard(operation, command.query_async(&mut link)).await
    }

    /// Runs the call unless the circuit breaker is open.
    pub(crate) async fn guard<T>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, StoreError> {
        let failed = |source| errors::store_error(operation, errors::first_error(source));
        let Some(breaker) = &self.0.breaker else {
            return request.await.map_err(failed);
        };
        if self.is_unavailable() {
            return Err(errors::circuit_open(operation));
        }
        let outcome = request.await.map_err(failed);
        match &outcome {
            Ok(_) => breaker.record_success(Instant::now()),
            Err(error) => breaker.record_failure(Instant::now(), error),
        }
        outcome
    }
}
