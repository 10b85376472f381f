//! Admits a request to one of the gateway's own endpoints: counts it, checks its parameters, and
//! has it answered here or by the sidecar.
//!
//! This file must not look anything up: `edge/local_api.rs` does.

use crate::edge::activity::LookupGuard;
use crate::edge::gateway::Gateway;
use crate::edge::route::LocalEndpoint;
use crate::edge::state::RequestContext;
use crate::edge::state::authenticated::Authenticated;
use crate::edge::state::sidecar::SidecarRequest;
use crate::edge::{free_rate_limits, local_api};
use accounts::Principal;
use config::Settings;
use credits::rates::FreeUse;
use llm_protocol::failure::{Failure, Kind};
use pingora::proxy::Session;

/// Answers a request to one of the gateway's own endpoints, or returns it for the sidecar.
pub(super) async fn answer(
    gateway: &Gateway,
    settings: &Settings,
    session: &mut Session,
    ctx: &mut RequestContext,
    authenticated: Authenticated,
    endpoint: LocalEndpoint,
) -> Result<Option<SidecarRequest>, Failure> {
    let principal = &authenticated.principal;
    let counted = count_local_request(gateway, settings, session, ctx, principal, &endpoint)?;
    let _lookup = match counted {
        Some(lookup) if gateway.ledger.is_none() => {
            let request = SidecarRequest::for_lookup(authenticated, lookup);
            return Ok(Some(request));
        }
        lookup => lookup,
    };
    local_api::send_answer(gateway, settings, session, ctx, principal, endpoint).await?;
    Ok(None)
}

/// Counts a request that the gateway answers itself. For a receipt or usage, also counts the
/// lookup. Checks the query of a request for usage here, because an error has the shape of the
/// surface, which the sidecar does not know.
///
/// # Errors
/// Returns 429 if a limit is exceeded, and 400 if a parameter is not valid.
fn count_local_request(
    gateway: &Gateway,
    settings: &Settings,
    session: &Session,
    ctx: &RequestContext,
    principal: &Principal,
    endpoint: &LocalEndpoint,
) -> Result<Option<LookupGuard>, Failure> {
    free_rate_limits::check_and_add(gateway, settings, principal, FreeUse::Question)?;
    if *endpoint == LocalEndpoint::Usage {
        local_api::parse_usage_query(session, ctx.record.surface)?;
    }
    if !matches!(endpoint, LocalEndpoint::Receipt(_) | LocalEndpoint::Usage) {
        return Ok(None);
    }
    let max = settings.limits.receipt_lookups_per_account;
    let lookup = LookupGuard::enter(gateway.activity.get(&principal.account_id), max);
    let too_many = || {
        format!(
            "This account already looks up {max} receipts or usage reports at once, its limit. Try again shortly."
        )
    };
    lookup
        .map(Some)
        .ok_or_else(|| Failure::new(Kind::TooManyOpen, too_many()))
}
