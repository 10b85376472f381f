//! Applies rate limits per key and account to free requests: token counts, responses of the gateway
//! itself, and requests that were refused after their body was read.
//!
//! A limit on requests per minute applies to token counts too, and ten times that limit applies to
//! other free requests. An account without such a limit has `limits.free_requests_per_minute`. Each
//! process counts its own requests. This file must not decide what is billed.

use super::gateway::Gateway;
use super::rate_limits;
use accounts::Principal;
use base::clock;
use config::Settings;
use credits::rates::{FreeUse, LimitScope};
use llm_protocol::failure::{Failure, Kind};

/// Number of free requests allowed per billed one. A token count weighs as much as this many free
/// requests, because it may be work for a vendor.
const FREE_REQUESTS_PER_REQUEST: u64 = 10;

/// Counts one free request.
///
/// # Errors
/// Returns 429, without counting the request, if it would exceed the limit of the key or the
/// account.
pub fn check_and_add(
    gateway: &Gateway,
    settings: &Settings,
    principal: &Principal,
    free_use: FreeUse,
) -> Result<(), Failure> {
    check(gateway, settings, principal, free_use)?;
    add(gateway, settings, principal, free_use);
    Ok(())
}

/// Checks whether the limits allow one more free request. The check itself is not counted.
///
/// # Errors
/// Returns 429 if the request would exceed the limit of the key or the account.
pub fn check(
    gateway: &Gateway,
    settings: &Settings,
    principal: &Principal,
    free_use: FreeUse,
) -> Result<(), Failure> {
    let now_ms = clock::steady_now_ms();
    for (whose, id, limit) in applicable_limits(settings, principal) {
        let activity = gateway.activity.get(id);
        let wait_ms = activity
            .free_usage()
            .wait_ms(free_use, weight(free_use), limit, now_ms);
        if wait_ms > 0 {
            return Err(limit_failure(free_use, whose, limit, wait_ms));
        }
    }
    Ok(())
}

/// Counts one free request, regardless of the limit.
pub fn add(gateway: &Gateway, settings: &Settings, principal: &Principal, free_use: FreeUse) {
    let now_ms = clock::steady_now_ms();
    for (_, id, limit) in applicable_limits(settings, principal) {
        gateway
            .activity
            .get(id)
            .free_usage()
            .add(free_use, weight(free_use), limit, now_ms);
    }
}

/// Returns the limits per minute that apply to the key and to its account.
fn applicable_limits<'p>(
    settings: &Settings,
    principal: &'p Principal,
) -> impl Iterator<Item = (LimitScope, &'p std::sync::Arc<str>, u64)> {
    let default = settings.limits.free_requests_per_minute;
    let all = &settings.rate_limits;
    let of_key = rate_limits::merge_rates(all.key, &principal.settings.rates).requests_per_minute;
    let of_account =
        rate_limits::merge_rates(all.account, &principal.account_rates).requests_per_minute;
    let times = |limit: u64| limit.saturating_mul(FREE_REQUESTS_PER_REQUEST);
    let of_account = if of_account > 0 {
        times(of_account)
    } else {
        default
    };
    let both = [
        (LimitScope::Key, &principal.key_id, times(of_key)),
        (LimitScope::Account, &principal.account_id, of_account),
    ];
    both.into_iter()
        .filter(move |(_, _, limit)| default > 0 && *limit > 0)
}

fn weight(free_use: FreeUse) -> u64 {
    match free_use {
        FreeUse::Count => FREE_REQUESTS_PER_REQUEST,
        FreeUse::Question | FreeUse::Refused => 1,
    }
}

fn limit_failure(free_use: FreeUse, whose: LimitScope, limit: u64, wait_ms: u64) -> Failure {
    let whose = match whose {
        LimitScope::Key => "key",
        LimitScope::Account => "account",
    };
    let seconds = u32::try_from(wait_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
    let may_have = match free_use {
        FreeUse::Count => format!("{} token counts", limit / FREE_REQUESTS_PER_REQUEST),
        FreeUse::Question => format!("{limit} free requests"),
        FreeUse::Refused => format!("{limit} requests with invalid bodies"),
    };
    let message = format!(
        "Rate limit reached: the limit of this {whose} is {may_have} per minute. Try again in {seconds} s."
    );
    Failure::new(Kind::FreeRequests, message).with_retry_after(seconds)
}
