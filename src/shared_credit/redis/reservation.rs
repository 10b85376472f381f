//! Reserves credits for a request before the vendor is called, and releases reservations whose
//! lease has ended.
//!
//! This file must not decide amounts. Read next: `redis/reserve.lua`.

use super::keyspace::partition;
use super::views::StoreHolds;
use ::redis::Cmd;
use credits::limits::{RequestLimits, Spender};
use credits::money::{CreditSplit, Micro};
use credits::rates::{RateLimitStatuses, RateLimitWait};
use ledger::StoreError;
use std::time::Duration;
use tokio::task::JoinSet;

/// Maximum number of accounts that one call lists, and of consecutive calls for a partition.
const MAX_VISITS: usize = 100;
const MAX_SWEEPS: usize = 100;

#[derive(Debug, Clone, Copy)]
pub struct ReserveCommand<'a> {
    pub request_id: &'a str,
    pub account: &'a str,
    /// Maximum cost of the request.
    pub full: Micro,
    /// Minimum reservation with which the request is worth running.
    pub floor: Micro,
    /// Time after which the store releases a hold that was not settled. Zero means a dry run: the
    /// store reserves and counts nothing, and only replies whether it would.
    pub lease: Duration,
    pub max_open: u64,
    /// The API key, its member, and the limits of the request; `None` without limits.
    pub within: Option<(&'a str, Option<&'a str>, &'a RequestLimits)>,
}

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
    /// The rest of the spend limit of the API key or of its member is less than the request needs.
    SpendLimit {
        of: Spender,
        free: Micro,
    },
    Suspended,
    /// The request has ended already.
    Ended,
    /// The store does not know the account, or the spending of the API key or its member, which
    /// must be seeded from the ledger.
    Unknown,
}

impl StoreHolds<'_> {
    /// Reserves credits for a request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called. The credits may have been reserved all the
    /// same, until the lease ends or the caller retries.
    pub async fn reserve(&self, command: &ReserveCommand<'_>) -> Result<ReserveReply, StoreError> {
        let lease_ms = u64::try_from(command.lease.as_millis()).unwrap_or(u64::MAX);
        let mut call = self.0.request_invocation(
            &self.0.0.scripts.reserve,
            command.account,
            command.request_id,
        );
        call.arg(command.full.get())
            .arg(command.floor.get())
            .arg(lease_ms)
            .arg(command.max_open);
        if let Some((
            key_id,
            member,
            RequestLimits {
                key: of_key,
                account: of_account,
                spend,
                tokens,
            },
        )) = command.within
        {
            call.key(self.0.key(partition(command.account), "k:", key_id))
                .arg(key_id)
                .arg(tokens);
            for rates in [of_key, of_account] {
                call.arg(rates.requests_per_minute)
                    .arg(rates.tokens_per_minute)
                    .arg(rates.concurrent);
            }
            for (_, limit) in Some(key_id).into_iter().chain(member).zip(spend) {
                let credits = limit.map(|limit| limit.credits.get().to_string());
                call.arg(credits.unwrap_or_default())
                    .arg(limit.map_or("total", |limit| limit.period.name()));
            }
            if let Some(member) = member {
                call.key(self.0.key(partition(command.account), "k:", member))
                    .arg(member);
            }
        }
        let reply = self.0.call("reserve credits", &call).await?;
        Ok(match reply.status() {
            "held" if command.within.is_some() => {
                ReserveReply::HeldWithin(reply.parts(1)?, reply.rate_limits(3)?)
            }
            "held" => ReserveReply::Held(reply.parts(1)?),
            "limited" => ReserveReply::Limited(reply.wait()?),
            "key_spend" => ReserveReply::SpendLimit {
                of: Spender::Key,
                free: reply.amount(1)?,
            },
            "member_budget" => ReserveReply::SpendLimit {
                of: Spender::Member,
                free: reply.amount(1)?,
            },
            "insufficient" => ReserveReply::Insufficient {
                available: reply.amount(1)?,
            },
            "trial_expired" => ReserveReply::TrialExpired,
            "too_many" => ReserveReply::TooManyOpen,
            "suspended" => ReserveReply::Suspended,
            "ended" => ReserveReply::Ended,
            "unknown" => ReserveReply::Unknown,
            _ => return Err(reply.unexpected_reply()),
        })
    }

    /// Releases the holds of a partition whose leases have ended. Returns their number.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn sweep(&self, partition: u32, now_ms: i64) -> Result<usize, StoreError> {
        let leases = self.0.key(partition, "l", "");
        let mut due = Cmd::new();
        due.arg("ZRANGEBYSCORE")
            .arg(&leases)
            .arg("-inf")
            .arg(now_ms)
            .arg("LIMIT")
            .arg(0)
            .arg(MAX_VISITS);
        let mut swept = 0;
        for _ in 0..MAX_SWEEPS {
            let due: Vec<String> = self.0.query("look for expired reservations", &due).await?;
            let mut has_visited = false;
            // Visit all accounts at the same time: busy accounts are visited repeatedly, and each
            // call takes a round trip.
            let mut visits = JoinSet::new();
            for member in due {
                let (store, leases) = (self.0.clone(), leases.clone());
                visits.spawn(async move {
                    match member.split_once(' ') {
                        None => store.holds().visit(partition, &leases, &member).await,
                        Some((account, request_id)) => {
                            store
                                .holds()
                                .lapse(partition, &leases, account, request_id)
                                .await
                        }
                    }
                });
            }
            while let Some(released) = visits.join_next().await {
                let released = released.map_err(|error| {
                    StoreError::Unusable(format!("cannot release expired reservations: {error}"))
                })??;
                has_visited |= released.is_some();
                swept += released.unwrap_or_default();
            }
            if !has_visited {
                break;
            }
        }
        Ok(swept)
    }

    /// Releases the expired holds of an account. Returns `None` if the visit is not due.
    async fn visit(
        &self,
        partition: u32,
        leases: &str,
        account: &str,
    ) -> Result<Option<usize>, StoreError> {
        let mut call = self.0.0.scripts.visit.prepare_invoke();
        call.key(self.0.key(partition, "a:", account))
            .key(leases)
            .arg(account);
        let reply = self.0.call("release expired reservations", &call).await?;
        match reply.status() {
            "done" => reply
                .text(1)?
                .parse()
                .map(Some)
                .map_err(|_| reply.unexpected_reply()),
            _ => Ok(None),
        }
    }

    /// Releases an expired hold that an older version made, which listed each hold separately.
    async fn lapse(
        &self,
        partition: u32,
        leases: &str,
        account: &str,
        request_id: &str,
    ) -> Result<Option<usize>, StoreError> {
        let holds = self.0.key(partition, "h:", account);
        let mut hold = Cmd::new();
        hold.arg("HGET").arg(&holds).arg(request_id);
        let hold: Option<String> = self.0.query("read an expired reservation", &hold).await?;
        // The fifth field of a hold is the API key, if the hold has one.
        let api_key = hold
            .as_deref()
            .and_then(|hold| hold.splitn(5, ':').nth(4))
            .unwrap_or_default();
        let mut call = self.0.0.scripts.lapse.prepare_invoke();
        call.key(self.0.key(partition, "a:", account))
            .key(holds)
            .key(leases)
            .key(self.0.key(partition, "k:", api_key));
        call.arg(request_id).arg(account);
        let reply = self.0.call("release an expired reservation", &call).await?;
        Ok((reply.status() == "done").then_some(1))
    }
}
