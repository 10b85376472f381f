//! What is judged of a request on its header alone, before a byte of its body is read: the
//! announced length, the limits of its key and account, and whether there is any credit.
//!
//! Must not read a body, nor set credit aside: `admit/call.rs` judges the same again once it knows
//! the price.

use super::call::{Asked, refusal};
use super::keyed;
use crate::account::Principal;
use crate::billing::bounds::Bounds;
use crate::billing::holds::Asker;
use crate::billing::rates::FreeUse;
use crate::billing::{Arriving, Refused, pricing};
use crate::clock;
use crate::config::Settings;
use crate::edge::activity::Arrival;
use crate::edge::intake::{self, BodyHolders, BodyShare};
use crate::edge::{EdgeLimits, Gateway, connections, free_rates, rates};
use crate::money::Micro;
use crate::protocol::failure::Failure;
use pingora::proxy::Session;
use std::sync::Arc;

/// A shared store is asked on the header only where the body is longer, in bytes: else its
/// admission, which follows at once, says the same.
const SHORT_BODY_BYTES: u64 = 65_536;

/// A request whose body may be read.
pub struct Authorized {
    /// What its body will take.
    pub share: BodyShare,
    /// Counts it among the requests of its key and account until it holds credit.
    pub arrival: Arrival,
    /// The account could pay for the cheapest request.
    pub has_credit: bool,
}

/// # Errors
/// 413 or 429 for the announced length, 429 for a limit, 402 where not even the cheapest request of
/// any model could be paid. A request under an idempotency key that is known passes the last two:
/// its answer may be stored.
pub async fn authorize(
    gateway: &Gateway,
    settings: &Settings,
    session: &Session,
    principal: &Principal,
    asked: &Asked,
) -> Result<Authorized, Failure> {
    match asked.free {
        true => free_rates::take(gateway, settings, principal, FreeUse::Count)?,
        false => free_rates::check(gateway, settings, principal, FreeUse::Refused)?,
    }
    let limits = EdgeLimits::of(&settings.limits);
    let account = gateway.activity.get(&principal.account_id);
    let holders = BodyHolders {
        process: Arc::clone(&gateway.body_bytes),
        account: Arc::clone(&account.body_bytes),
        connection: connections::body_bytes(session.digest()),
    };
    let share = BodyShare::new(holders, &limits);
    let announced = intake::announced_bytes(session);
    match announced {
        Some(bytes) if bytes > limits.body_bytes => {
            return Err(Failure::body_too_large(limits.body_bytes));
        }
        Some(bytes) => share.check_announced(bytes)?,
        None => {}
    }
    let arrival = Arrival::enter(account, gateway.activity.get(&principal.key_id));
    let checked = check(gateway, settings, principal, asked, &arrival, announced).await;
    let has_credit = match checked {
        Ok(()) => true,
        Err(
            Refused::Insufficient { .. }
            | Refused::TrialExpired
            | Refused::KeySpendLimit { .. }
            | Refused::Unavailable(_),
        ) if asked.free => false,
        Err(refused) if keyed::is_known(gateway, session, asked, principal).await? => {
            log::debug!("read a body for a stored answer: {refused:?}");
            false
        }
        Err(refused) => return Err(refusal(asked.surface, &refused)),
    };
    Ok(Authorized {
        share,
        arrival,
        has_credit,
    })
}

/// Judges limits and credit. What is free has no rate of a model's requests, and its account's
/// credit decides who answers.
async fn check(
    gateway: &Gateway,
    settings: &Settings,
    principal: &Principal,
    asked: &Asked,
    arrival: &Arrival,
    announced: Option<u64>,
) -> Result<(), Refused> {
    let bounds = match asked.free {
        true => Bounds {
            spend: principal.settings.spend_limit,
            ..Bounds::default()
        },
        false => rates::bounds(settings, principal, || 0),
    };
    let asker = Asker {
        account: &principal.account_id,
        key: &principal.key_id,
        bounds: &bounds,
    };
    let Arriving { of_account, .. } = arrival.others();
    let most_open = settings.limits.open_requests_per_account;
    if of_account >= most_open {
        return Err(Refused::TooManyOpen { limit: most_open });
    }
    let is_short = announced.is_some_and(|bytes| bytes <= SHORT_BODY_BYTES);
    if gateway.billing.asks_sidecar() && is_short && !asked.free {
        return Ok(());
    }
    let least = || least_cost(settings);
    gateway
        .billing
        .check(&asker, arrival.others(), &least, clock::now_ms())
        .await
}

/// The least that the cheapest request of any model costs: one token in and one out.
fn least_cost(settings: &Settings) -> Micro {
    let models = settings.catalog.models().iter();
    models
        .map(|model| pricing::least_cost(&model.price))
        .min()
        .unwrap_or_default()
}
