//! Checks a request's header before the gateway reads a byte of its body: the declared length, the
//! limits of the key and the account, and whether the account has any credit.
//!
//! This file must not read a body or reserve credit: `admit/call.rs` repeats these checks once the
//! price is known.

use super::operation::ApiOperation;
use super::{credit_refusal, idempotency_key};
use crate::billing::backlog::{BacklogReason, BacklogRefusal};
use crate::billing::holds::Payer;
use crate::billing::{PendingRequests, ReserveError};
use crate::edge::activity::PendingAdmission;
use crate::edge::gateway::Gateway;
use crate::edge::intake::{self, BodyHolders, BodyLimits, BodyShare};
use crate::edge::{connections, free_rate_limits, rate_limits};
use accounts::Principal;
use base::clock;
use config::Settings;
use credits::limits::RequestLimits;
use credits::money::Micro;
use credits::pricing::{self, Quote};
use credits::rates::FreeUse;
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::metered::ModelKind;
use pingora::proxy::Session;
use std::sync::Arc;

/// Minimum body length, in bytes, above which the gateway checks limits and credit in a shared
/// store on the header alone. For a shorter body, the admission follows at once and makes the same
/// checks.
const MAX_SHORT_BODY_BYTES: u64 = 65_536;

pub struct HeaderAdmission {
    pub share: BodyShare,
    /// Counts the request for its key and account until the request holds credit.
    pub arrival: Option<PendingAdmission>,
    pub has_credit: bool,
}

/// Checks the header of a request.
///
/// # Errors
/// Returns 413 or 429 for the declared length, 429 for a limit, and 402 if the account cannot pay
/// for the cheapest request of any model. A request with a known idempotency key skips the last two
/// checks, because its response may be stored.
pub async fn authorize(
    gateway: &Gateway,
    settings: &Settings,
    session: &Session,
    principal: &Principal,
    operation: &ApiOperation,
) -> Result<HeaderAdmission, Failure> {
    match operation.free {
        true => free_rate_limits::check_and_add(gateway, settings, principal, FreeUse::Count)?,
        false => free_rate_limits::check(gateway, settings, principal, FreeUse::Refused)?,
    }
    let limits = BodyLimits::from_limits(&settings.limits);
    let account = gateway.activity.get(&principal.account_id);
    let holders = BodyHolders {
        process: Arc::clone(&gateway.body_bytes),
        account: Arc::clone(&account.body_bytes),
        connection: connections::body_byte_counter(session.digest()),
    };
    let share = BodyShare::new(holders, &limits);
    let declared_bytes = intake::declared_body_bytes(session);
    match declared_bytes {
        Some(bytes) if bytes > limits.body_bytes => {
            return Err(Failure::body_too_large(limits.body_bytes));
        }
        Some(bytes) => share.check_declared(bytes)?,
        None => {}
    }
    let arrival = PendingAdmission::enter(account, gateway.activity.get(&principal.key_id));
    let checked = check(
        gateway,
        settings,
        principal,
        operation,
        &arrival,
        declared_bytes,
    )
    .await;
    let has_credit = match checked {
        Ok(()) => true,
        Err(
            ReserveError::Insufficient { .. }
            | ReserveError::TrialExpired
            | ReserveError::SpendLimit { .. }
            | ReserveError::Unavailable(_),
        ) if operation.free => false,
        Err(_) if idempotency_key::is_known(gateway, session, operation, principal).await? => {
            log::debug!(
                "reading the body of a refused request, because its response may be stored"
            );
            false
        }
        Err(refused) => {
            return Err(refusal_failure(operation.surface, &refused, settings, None));
        }
    };
    Ok(HeaderAdmission {
        share,
        arrival: Some(arrival),
        has_credit,
    })
}

/// Checks limits and credit. A free request does not count against the request rates of models, and
/// the account's credit decides who answers it.
async fn check(
    gateway: &Gateway,
    settings: &Settings,
    principal: &Principal,
    operation: &ApiOperation,
    arrival: &PendingAdmission,
    declared_bytes: Option<u64>,
) -> Result<(), ReserveError> {
    let bounds = match operation.free {
        true => RequestLimits {
            spend: principal.spend_limits(),
            ..RequestLimits::default()
        },
        false => rate_limits::bounds(settings, principal, || 0),
    };
    let payer = Payer {
        account: &principal.account_id,
        key: &principal.key_id,
        member: principal.member_id(),
        bounds: &bounds,
    };
    let PendingRequests { of_account, .. } = arrival.others();
    let max_open = settings.limits.open_requests_per_account;
    if of_account >= max_open {
        return Err(ReserveError::TooManyOpen { limit: max_open });
    }
    if !operation.free
        && let Some(backlog) = gateway.admission.backlog()
    {
        backlog.check(&principal.account_id)?;
    }
    let is_short = declared_bytes.is_some_and(|bytes| bytes <= MAX_SHORT_BODY_BYTES);
    let cheapest = || min_cost(settings, operation.model_kind());
    let (others, reserves_soon) = (arrival.others(), is_short && !operation.free);
    gateway
        .admission
        .authorize(&payer, others, &cheapest, reserves_soon, clock::now_ms())
        .await
}

/// Returns the cost of the cheapest request of any model of this kind: one token in and, of a chat
/// model, one token out.
fn min_cost(settings: &Settings, kind: ModelKind) -> Micro {
    settings
        .catalog
        .models_of(kind)
        .map(|model| pricing::min_cost(&model.price))
        .min()
        .unwrap_or_default()
}

/// Returns the failure for a refused hold. `asked` is the request's quote, if the body was read,
/// and whether the output limit may not be lowered.
pub(super) fn refusal_failure(
    surface: Protocol,
    refused: &ReserveError,
    settings: &Settings,
    asked: Option<(&Quote, bool)>,
) -> Failure {
    match refused {
        ReserveError::Insufficient { .. }
        | ReserveError::TrialExpired
        | ReserveError::SpendLimit { .. } => {
            credit_refusal::failure(refused, settings, asked, clock::now_ms())
        }
        ReserveError::Suspended => credit_refusal::suspended(settings),
        ReserveError::Limited(wait) => rate_limits::limit_failure(surface, wait, clock::now_ms()),
        ReserveError::TooManyOpen { limit } => Failure::new(
            Kind::TooManyOpen,
            format!(
                "This account already has {limit} running requests, its limit. Try again when one has ended."
            ),
        ),
        ReserveError::Busy => Failure::from_kind(Kind::Overloaded),
        ReserveError::Backlog(refusal) => backlog_failure(*refusal),
        ReserveError::Unavailable(why) => {
            log::error!("cannot reserve credits: {why}");
            Failure::from_kind(Kind::LedgerUnavailable)
        }
    }
}

pub(super) fn backlog_failure(refusal: BacklogRefusal) -> Failure {
    let kind = match refusal.reason {
        BacklogReason::Share | BacklogReason::Delayed => Kind::LedgerBacklog,
        BacklogReason::Full => Kind::LedgerUnavailable,
    };
    Failure::from_kind(kind).with_retry_after(refusal.retry_after_seconds)
}
