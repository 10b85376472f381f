//! Admits a request in steps: path → key → header → body → model → idempotency key → quote → hold.
//! The result is an [`AdmittedRequest`] with credit reserved, a response that the gateway wrote
//! itself, or a failure.
//!
//! The order of the checks: path 404, method 405, key 401/403; on the header alone declared size
//! 413, limits 429, no credit 402; then size 413, body 400, model 404, idempotency 409/422, limits
//! 429, credits 402. This module must not call vendors. Next: `admit/preflight.rs`,
//! `admit/page.rs` (pages), `admit/header.rs`, `admit/call.rs` (from the body on), `local_api.rs`
//! (paths that need no vendor).

mod call;
mod credit_refusal;
mod header;
mod idempotency_key;
mod local;
mod metered;
mod operation;
mod pacing;
mod page;
mod preflight;
mod received;
mod reserve;

use super::cors::CorsHeaders;
use super::gateway::Gateway;
use super::malformed::MALFORMED;
use super::route::{Route, route, surface_for_path};
use super::state::InFlightGuard;
use super::state::admitted::AdmittedRequest;
use super::state::authenticated::Authenticated;
use super::state::record::{RequestRecord, RouteLabel};
use super::state::sidecar::SidecarRequest;
use super::state::{RequestContext, Stage};
use super::{connections, framing, free_rate_limits, intake, local_api, respond};
use accounts::{AuthError, Principal};
use base::clock;
use base::failpoint::{self, Point};
use base::telemetry::log_path::{loggable_method, loggable_path};
use base::telemetry::refusals::{self, RefusalReason};
use config::Settings;
use credits::rates::FreeUse;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use operation::{ApiOperation, version_header};
use pingora::Result;
use pingora::http::RequestHeader;
use pingora::proxy::Session;
use received::{AdmissionRequest, PreparedRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Admits, answers or refuses a request. Returns true if the request has been answered.
///
/// The futures that write an answer are boxed, so that a request for a vendor does not reserve
/// memory for them.
pub async fn admit(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<bool> {
    let settings = gateway.settings.load_full();
    let route = match route(session.req_header().uri.path()) {
        // Only programs that signed in send it.
        Route::Telemetry if !settings.sign_in.device => Route::Unknown,
        route => route,
    };
    ctx.record.route = match &route {
        Route::Health => RouteLabel::Health,
        Route::Sidecar => RouteLabel::Page,
        Route::Vendor { .. }
        | Route::Metered(_)
        | Route::Local(_)
        | Route::Telemetry
        | Route::Unknown => RouteLabel::Api,
    };
    ctx.record.surface = match &route {
        Route::Vendor { surface, .. } => *surface,
        Route::Metered(_) => Protocol::Chat,
        Route::Unknown
            if surface_for_path(session.req_header().uri.path()) == Some(Protocol::Messages) =>
        {
            Protocol::Messages
        }
        _ if version_header(session, &settings).is_some() => Protocol::Messages,
        _ => Protocol::Chat,
    };
    if !matches!(route, Route::Sidecar | Route::Health) {
        ctx.record.cors = CorsHeaders::from_request(&settings.cors, &session.req_header().headers);
    }
    if let Err((reason, failure)) = validate_framing(session, &settings) {
        return Box::pin(answer_malformed(session, ctx, reason, &failure))
            .await
            .map(|()| true);
    }
    if preflight::is_preflight(session, ctx) {
        ctx.set_answered("preflight");
        return Box::pin(preflight::answer_preflight(session, ctx, &settings))
            .await
            .map(|()| true);
    }
    if route == Route::Sidecar {
        return Box::pin(page::admit(gateway, &settings, session, ctx)).await;
    }
    match admit_api_request(gateway, &settings, session, ctx, route).await {
        Ok(AdmissionOutcome::Answered(handler)) => {
            ctx.set_answered(handler);
            Ok(true)
        }
        Ok(AdmissionOutcome::Call(call)) => {
            ctx.stage = Stage::Admitted(call);
            Ok(false)
        }
        Ok(AdmissionOutcome::Sidecar(request)) => {
            ctx.stage = Stage::Sidecar(request);
            Ok(false)
        }
        Err(failure) => {
            // A client that reads the failure must find its idempotency key free.
            gateway
                .idempotency
                .wait_until_committed(&ctx.record.request_id)
                .await;
            if let Some(defect) = connections::body_defect(session.digest()) {
                let failure = defect.into();
                return Box::pin(answer_malformed(session, ctx, defect.reason, &failure))
                    .await
                    .map(|()| true);
            }
            if matches!(
                failure.kind,
                Kind::Draining | Kind::FilesShort | Kind::NoWebSocket
            ) {
                // The closed connection makes a retrying client reach another process, or frees a
                // file descriptor for its new connection. A client that asked for a WebSocket
                // expects the close.
                session.set_keepalive(None);
            }
            ctx.set_answered("rejected");
            Box::pin(answer_early(session, ctx, &failure)).await?;
            Ok(true)
        }
    }
}

/// Checks that the header, and the part of the body that has arrived, have only one interpretation.
fn validate_framing(
    session: &Session,
    settings: &Settings,
) -> Result<(), (RefusalReason, Box<Failure>)> {
    framing::validate(session, &settings.limits)?;
    connections::body_defect(session.digest()).map_or(Ok(()), |defect| {
        Err((defect.reason, Box::new(Failure::from(defect))))
    })
}

/// Answers with a failure, possibly before the body has arrived, so that the client can read the
/// response.
async fn answer_early(
    session: &mut Session,
    ctx: &mut RequestContext,
    failure: &Failure,
) -> Result<()> {
    if matches!(failure.status(ctx.record.surface), 402 | 429) {
        intake::keep_alive_past_body(session);
    }
    respond::send_failure(session, ctx, failure).await?;
    intake::discard_refused_body(session, failure, ctx.record.surface).await;
    Ok(())
}

/// Refuses a request that two parsers could understand differently, and closes its connection: the
/// bytes that were read as its body may be another request.
async fn answer_malformed(
    session: &mut Session,
    ctx: &mut RequestContext,
    reason: RefusalReason,
    failure: &Failure,
) -> Result<()> {
    session.set_keepalive(None);
    ctx.set_answered(MALFORMED);
    respond::answer_malformed(session, ctx, reason, failure).await?;
    let head = session.req_header();
    let (method, path) = (
        loggable_method(head.method.as_str().as_bytes()),
        loggable_path(head.raw_path()),
    );
    let client = ctx.record.caller.map(|caller| caller.address);
    let detail = format_args!(
        "{method} {path}: {} Request {}",
        failure.message, ctx.record.request_id
    );
    refusals::record(reason, client, detail);
    Ok(())
}

/// Label of a response that is sent again under the id of its request.
pub(super) const REPLAYED: &str = "replayed";

enum AdmissionOutcome {
    Answered(&'static str),
    Call(Box<AdmittedRequest>),
    /// The request is for a receipt that only the sidecar can look up.
    Sidecar(SidecarRequest),
}

fn refused_method(record: &RequestRecord, header: &RequestHeader, allowed: &[&str]) -> Failure {
    if record.wants_web_socket && record.surface == Protocol::Responses {
        return Failure::from_kind(Kind::NoWebSocket);
    }
    Failure::method_not_allowed(header.method.as_str(), header.uri.path(), allowed)
}

async fn admit_api_request(
    gateway: &Gateway,
    settings: &Arc<Settings>,
    session: &mut Session,
    ctx: &mut RequestContext,
    route: Route,
) -> Result<AdmissionOutcome, Failure> {
    let method = session.req_header().method.clone();
    let allowed = match &route {
        Route::Health | Route::Local(_) => &["GET", "HEAD"][..],
        Route::Vendor { .. } | Route::Metered(_) | Route::Telemetry => &["POST"],
        Route::Unknown | Route::Sidecar => {
            let path = session.req_header().uri.path();
            let failure = Failure::unknown_path(method.as_str(), path, &settings.base_url);
            return Err(refuse_path(gateway, session, &mut ctx.record, failure).await);
        }
    };
    if !allowed.contains(&method.as_str()) {
        let failure = refused_method(&ctx.record, session.req_header(), allowed);
        return Err(refuse_path(gateway, session, &mut ctx.record, failure).await);
    }
    if route == Route::Health {
        return Box::pin(local_api::send_health(session, ctx))
            .await
            .map(|()| AdmissionOutcome::Answered(local_api::HEALTH))
            .map_err(unanswerable);
    }
    enter(gateway, settings, ctx)?;
    ctx.record.asks_model = matches!(route, Route::Vendor { .. } | Route::Metered(_));
    ctx.record.asked_for = route.asked_for();
    let principal = authenticate_request(gateway, session, &mut ctx.record).await?;
    let authenticated = Authenticated {
        principal,
        at: Instant::now(),
    };
    ctx.stage = Stage::Authenticated(authenticated.clone());
    match route {
        Route::Telemetry => Box::pin(local_api::discard_telemetry(session, ctx))
            .await
            .map(|()| AdmissionOutcome::Answered("own"))
            .map_err(unanswerable),
        Route::Local(endpoint) => {
            let answer = Box::pin(local::answer(
                gateway,
                settings,
                session,
                ctx,
                authenticated,
                endpoint,
            ));
            let for_sidecar = answer.await?;
            Ok(for_sidecar.map_or(AdmissionOutcome::Answered("own"), AdmissionOutcome::Sidecar))
        }
        Route::Vendor {
            surface,
            path,
            free,
        } => {
            let operation = ApiOperation {
                surface,
                path,
                free,
                metered: None,
            };
            admit_vendor_request(gateway, settings, session, ctx, authenticated, operation).await
        }
        Route::Metered(endpoint) => {
            let operation = ApiOperation {
                surface: Protocol::Chat,
                path: endpoint.path,
                free: false,
                metered: Some(endpoint),
            };
            admit_vendor_request(gateway, settings, session, ctx, authenticated, operation)
                .await
                .map_err(|failure| match endpoint.file() {
                    Some(name) if failure.kind == Kind::BodyTooLarge => failure.with_param(name),
                    _ => failure,
                })
        }
        _ => Err(Failure::from_kind(Kind::Internal)),
    }
}

/// Refuses a request for its path or method, whether it has a valid key or not. If it has, its
/// account finds the refusal among the others.
async fn refuse_path(
    gateway: &Gateway,
    session: &Session,
    record: &mut RequestRecord,
    failure: Failure,
) -> Failure {
    record.asks_model = true;
    if let Ok(principal) = authenticate_request(gateway, session, record).await {
        record.refused_key = Some(Box::new(principal.identity()));
    }
    failure
}

/// Counts the request as running, unless the gateway drains or has no room for it.
fn enter(gateway: &Gateway, settings: &Settings, ctx: &mut RequestContext) -> Result<(), Failure> {
    // Enter before the check of `draining`: a drain that begins after the check waits for this
    // request.
    ctx.in_flight = Some(InFlightGuard::enter(&gateway.in_flight));
    if gateway.draining.load(Ordering::Acquire) {
        return Err(Failure::from_kind(Kind::Draining));
    }
    let running = gateway.in_flight.load(Ordering::Acquire);
    // Check before the gateway reads a body, so that a request without a slot costs no memory.
    if running as u64 > settings.limits.open_requests {
        return Err(Failure::from_kind(Kind::Overloaded));
    }
    if let Some(shortage) = gateway.pressure.refusal(running) {
        return Err(Failure::from_kind(shortage));
    }
    Ok(())
}

/// Admits a request for a vendor, or answers it from the stored response of an earlier request.
async fn admit_vendor_request(
    gateway: &Gateway,
    settings: &Arc<Settings>,
    session: &mut Session,
    ctx: &mut RequestContext,
    authenticated: Authenticated,
    operation: ApiOperation,
) -> Result<AdmissionOutcome, Failure> {
    failpoint::hit(Point::AfterAuth);
    let (principal, free) = (&authenticated.principal, operation.free);
    let authorized = header::authorize(gateway, settings, session, principal, &operation).await?;
    let request = AdmissionRequest {
        gateway,
        settings,
        record: &ctx.record,
        cpu: gateway.cpu.worker(&principal.account_id, &settings.limits),
        authenticated,
        operation,
        authorized,
    };
    let prepared = match request.operation.metered {
        None => Box::pin(call::prepare(session, request)).await,
        Some(endpoint) => Box::pin(metered::prepare(session, request, endpoint)).await,
    };
    match prepared.inspect_err(|failure| count_refused(gateway, settings, ctx, failure, free))? {
        PreparedRequest::Call(call) => Ok(AdmissionOutcome::Call(call)),
        PreparedRequest::Count(tokens) => {
            Box::pin(local_api::send_count(session, ctx, tokens))
                .await
                .map_err(unanswerable)?;
            Ok(AdmissionOutcome::Answered("count"))
        }
        PreparedRequest::Replay(response) => {
            Box::pin(local_api::send_replay(session, ctx, response))
                .await
                .map_err(unanswerable)?;
            Ok(AdmissionOutcome::Answered(REPLAYED))
        }
    }
}

/// Counts a billed request that was refused because of its body.
fn count_refused(
    gateway: &Gateway,
    settings: &Settings,
    ctx: &RequestContext,
    failure: &Failure,
    free: bool,
) {
    let status = failure.status(ctx.record.surface);
    if let Some(authenticated) = ctx.stage.authenticated()
        && !free
        && (400..500).contains(&status)
        && status != 429
    {
        free_rate_limits::add(
            gateway,
            settings,
            &authenticated.principal,
            FreeUse::Refused,
        );
    }
}

/// Returns the failure for a client connection that broke while the gateway was answering.
fn unanswerable(error: Box<pingora::Error>) -> Failure {
    Failure::new(Kind::Internal, error.to_string())
}

const KEY_HEADERS: [HeaderName; 2] = [AUTHORIZATION, HeaderName::from_static("x-api-key")];

/// Returns the one gateway key of a request. The request may repeat it in both headers. In
/// `authorization` the key needs its scheme.
///
/// # Errors
/// Returns 401 if the request has no key or two different keys. Two keys are refused, because other
/// readers of the header might take the other key as the payer.
fn extract_key(headers: &HeaderMap) -> Result<&str, Failure> {
    let (mut seen, mut found, mut has_key_header) = (None, None, false);
    for (name, value) in KEY_HEADERS
        .iter()
        .flat_map(|name| headers.get_all(name).iter().map(move |value| (name, value)))
    {
        has_key_header = true;
        // Proxies join the values of a repeated field with commas.
        for part in value.to_str().unwrap_or_default().split(',').map(str::trim) {
            let (key, has_scheme) = match part.split_once(' ') {
                Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => (key.trim(), true),
                _ => (part, false),
            };
            if !accounts::parse_key(key) {
                continue;
            }
            if seen.is_some_and(|seen| seen != key) {
                return Err(Failure::new(Kind::BadKey, TWO_KEYS));
            }
            seen = Some(key);
            if has_scheme || *name != AUTHORIZATION {
                found = Some(key);
            }
        }
    }
    found.ok_or_else(|| match (seen, has_key_header) {
        (Some(_), _) => Failure::new(Kind::BadKey, NO_SCHEME),
        (None, true) => Failure::new(Kind::BadKey, foreign_key()),
        (None, false) => Failure::from_kind(Kind::MissingKey),
    })
}

const TWO_KEYS: &str =
    "The API key is not valid: the request has two different keys. Send one of them.";
const NO_SCHEME: &str = "The API key is not valid in this form. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.";

/// Returns the message for a text that is not a gateway key. The message does not repeat the text,
/// which may be the key of a vendor.
fn foreign_key() -> String {
    format!(
        "The API key is not valid: a key of this gateway begins with `{}` and is complete. A vendor's own key does not work here; create one in the dashboard.",
        accounts::KEY_PREFIX
    )
}

/// Message for a well-formed key that no account has.
const UNKNOWN_KEY: &str = "The API key is not valid: it was revoked, or belongs to another gateway. Create one in the dashboard.";

/// Returns the account and the key that pay. A recognised key that is refused is recorded all the
/// same.
async fn authenticate_request(
    gateway: &Gateway,
    session: &Session,
    record: &mut RequestRecord,
) -> Result<Principal, Failure> {
    let key = extract_key(&session.req_header().headers)?;
    let refusal = match gateway.admission.authenticate(key, clock::now_ms()).await {
        Ok(principal) => return Ok(principal),
        Err(refusal) => refusal,
    };
    record.refused_key = refusal.key().cloned().map(Box::new);
    Err(match refusal {
        AuthError::BadKey => Failure::new(Kind::BadKey, UNKNOWN_KEY),
        AuthError::KeyExpired(_) => Failure::from_kind(Kind::KeyExpired),
        AuthError::KeyDisabled(_) => Failure::from_kind(Kind::KeyDisabled),
        AuthError::AccountSuspended(_) => credit_refusal::suspended(&gateway.settings.load()),
        AuthError::TooManyLookups => Failure::from_kind(Kind::KeyLookups),
        AuthError::Unavailable(error) => {
            log::error!("cannot check a key: {error}");
            Failure::from_kind(Kind::LedgerUnavailable)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> String {
        accounts::generate_key().unwrap().text
    }

    fn extract(fields: &[(&'static str, &str)]) -> Result<String, Kind> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        extract_key(&headers)
            .map(str::to_owned)
            .map_err(|failure| failure.kind)
    }

    #[test]
    fn one_key_counts_wherever_it_is_and_two_never_do() {
        let (one, other) = (key(), key());
        let bearer = |key: &str| format!("Bearer {key}");
        for fields in [
            vec![("authorization", bearer(&one))],
            vec![("authorization", format!("bearer  {one} "))],
            vec![("x-api-key", one.clone())],
            vec![("authorization", bearer(&one)), ("x-api-key", one.clone())],
            vec![
                ("authorization", bearer("sk-of-a-vendor")),
                ("x-api-key", one.clone()),
            ],
            vec![
                ("authorization", bearer(&one)),
                ("authorization", bearer(&one)),
            ],
            vec![("x-api-key", format!("{one}, {one}"))],
        ] {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            assert_eq!(extract(&fields), Ok(one.clone()), "{fields:?}");
        }
        for fields in [
            vec![
                ("authorization", bearer(&one)),
                ("authorization", bearer(&other)),
            ],
            vec![
                ("authorization", bearer(&one)),
                ("x-api-key", other.clone()),
            ],
            vec![("x-api-key", one.clone()), ("x-api-key", other.clone())],
            vec![(
                "authorization",
                format!("{}, {}", bearer(&one), bearer(&other)),
            )],
            vec![("authorization", format!("{},{other}", bearer(&one)))],
            vec![("x-api-key", format!("{one},{other}"))],
            vec![("x-api-key", "none".into())],
            vec![("authorization", one.clone())],
        ] {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            assert_eq!(extract(&fields), Err(Kind::BadKey), "{fields:?}");
        }
        assert_eq!(extract(&[("x-other", &one)]), Err(Kind::MissingKey));
    }
}
