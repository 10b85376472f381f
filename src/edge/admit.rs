//! Admission: path → key → body → model → quote → hold. What comes out is a [`Call`] with credit set aside, or a
//! failure.
//!
//! The order of judgement is the contract's: path 404, method 405, key 401/403, size 413, body 400, model 404, limits
//! 429, credits 402. Must not talk to vendors. Next: `intake.rs` (the body), `billing.rs` (the hold), `own.rs` (paths
//! that need no vendor).

use super::context::{Call, Context, InFlight, Stage, Upstream};
use super::intake::{self, Deadlines};
use super::reply::Reply;
use super::{EdgeLimits, Gateway, own, reject, upstream};
use crate::account::{Principal, Refusal};
use crate::billing::{Hold, Opening, Refused, rules};
use crate::catalog::Model;
use crate::clock;
use crate::config::Settings;
use crate::protocol::Protocol;
use crate::protocol::failure::{Failure, Kind};
use crate::protocol::request::{self, Edits, Outline};
use http::{Method, header};
use pingora::Result;
use pingora::proxy::Session;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Route {
    /// To a vendor, through this surface; free of charge or billed.
    Vendor {
        surface: Protocol,
        path: &'static str,
        free: bool,
    },
    Own(own::Question),
    Health,
    Sidecar,
    Responses,
    Unknown,
}

fn route(path: &str) -> Route {
    let vendor = |surface, path, free| Route::Vendor { surface, path, free };
    match path {
        "/v1/chat/completions" => vendor(Protocol::Chat, "/v1/chat/completions", false),
        "/v1/messages" => vendor(Protocol::Messages, "/v1/messages", false),
        "/v1/messages/count_tokens" => vendor(Protocol::Messages, "/v1/messages/count_tokens", true),
        "/v1/responses" => Route::Responses,
        "/healthz" | "/health" | "/api/hello" => Route::Health,
        _ => match path.strip_prefix("/v1") {
            None => Route::Sidecar,
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                own::question(rest).map_or(Route::Unknown, Route::Own)
            }
            Some(_) => Route::Sidecar,
        },
    }
}

/// Decides what becomes of a request. True where it has been answered.
pub async fn admit(gateway: &Gateway, session: &mut Session, ctx: &mut Context) -> Result<bool> {
    let settings = gateway.settings.load_full();
    let route = route(session.req_header().uri.path());
    ctx.surface = match &route {
        Route::Vendor { surface, .. } => *surface,
        _ if version_header(session, &settings).is_some() => Protocol::Messages,
        _ => Protocol::Chat,
    };
    if route == Route::Sidecar {
        ctx.stage = Stage::Sidecar;
        return Ok(false);
    }
    match judge(gateway, &settings, session, ctx, route).await {
        Ok(Admitted::Answered(what)) => {
            ctx.stage = Stage::Answered { what };
            Ok(true)
        }
        Ok(Admitted::Call(call)) => {
            ctx.stage = Stage::Call(call);
            Ok(false)
        }
        Err(failure) => {
            if matches!(failure.kind, Kind::BodyTooLarge | Kind::BodyTimeout | Kind::Draining) {
                // What is left of the body, or of the process, is not waited for.
                session.set_keepalive(None);
            }
            ctx.stage = Stage::Answered { what: "rejected" };
            reject::answer(session, ctx, &failure).await?;
            Ok(true)
        }
    }
}

enum Admitted {
    Answered(&'static str),
    Call(Box<Call>),
}

async fn judge(
    gateway: &Gateway,
    settings: &Arc<Settings>,
    session: &mut Session,
    ctx: &mut Context,
    route: Route,
) -> Result<Admitted, Failure> {
    let method = session.req_header().method.clone();
    let wanted = match &route {
        Route::Health => &[Method::GET, Method::HEAD][..],
        Route::Own(_) => &[Method::GET],
        Route::Vendor { .. } => &[Method::POST],
        Route::Responses => return Err(Failure::responses_path()),
        Route::Unknown | Route::Sidecar => {
            return Err(Failure::unknown_path(method.as_str(), session.req_header().uri.path()));
        }
    };
    if !wanted.contains(&method) {
        let path = session.req_header().uri.path();
        return Err(Failure::new(Kind::WrongMethod, format!("{path} does not take {method}.")));
    }
    if route == Route::Health {
        return own::health(session, ctx).await.map(|()| Admitted::Answered("health")).map_err(lost);
    }
    // Entered before the look at `draining`: whoever drains afterwards waits for this request.
    let in_flight = InFlight::enter(&gateway.in_flight);
    if gateway.draining.load(Ordering::Acquire) {
        return Err(Failure::of(Kind::Draining));
    }
    let principal = principal(gateway, session)?;
    match route {
        Route::Own(question) => {
            own::answer(gateway, settings, session, ctx, &principal, question).await?;
            Ok(Admitted::Answered("own"))
        }
        Route::Vendor { surface, path, free } => {
            let asked = Asked { surface, path, free, in_flight };
            let call = call(gateway, settings, session, ctx, principal, asked).await?;
            Ok(Admitted::Call(Box::new(call)))
        }
        _ => Err(Failure::of(Kind::Internal)),
    }
}

/// The client's connection broke while it was being answered.
fn lost(error: Box<pingora::Error>) -> Failure {
    Failure::new(Kind::Internal, error.to_string())
}

/// The account and key that pay: of the two headers, the one that holds a gateway key.
fn principal(gateway: &Gateway, session: &Session) -> Result<Principal, Failure> {
    let headers = &session.req_header().headers;
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, key) = value.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok()).map(str::trim);
    let given = bearer.is_some() || plain.is_some() || headers.contains_key(header::AUTHORIZATION);
    if !given {
        return Err(Failure::of(Kind::MissingKey));
    }
    let is_ours = |key: &&str| crate::account::parse_key(key);
    let key = match (bearer.filter(is_ours), plain.filter(is_ours)) {
        (Some(one), Some(other)) if one != other => return Err(Failure::of(Kind::BadKey)),
        (Some(key), _) | (None, Some(key)) => key,
        (None, None) => return Err(Failure::of(Kind::BadKey)),
    };
    gateway.accounts.authenticate(key).map_err(|refusal| match refusal {
        Refusal::BadKey => Failure::of(Kind::BadKey),
        Refusal::KeyDisabled => Failure::of(Kind::KeyDisabled),
        Refusal::AccountSuspended => Failure::new(Kind::KeyDisabled, "This account is suspended."),
        Refusal::Unavailable(error) => {
            log::error!("check a key: {error}");
            Failure::of(Kind::LedgerUnavailable)
        }
    })
}

/// The messages protocol's version, under any of its names.
fn version_header(session: &Session, settings: &Settings) -> Option<String> {
    let headers = &session.req_header().headers;
    settings.version_headers.iter().find_map(|name| Some(headers.get(name)?.to_str().ok()?.to_owned()))
}

/// What the path said.
struct Asked {
    surface: Protocol,
    path: &'static str,
    free: bool,
    in_flight: InFlight,
}

async fn call(
    gateway: &Gateway,
    settings: &Arc<Settings>,
    session: &mut Session,
    ctx: &Context,
    principal: Principal,
    asked: Asked,
) -> Result<Call, Failure> {
    let surface = asked.surface;
    if let Some(encoding) = session.req_header().headers.get(header::CONTENT_ENCODING)
        && encoding.as_bytes() != b"identity"
    {
        return Err(Failure::new(
            Kind::InvalidRequest,
            "The request body's content-encoding is not supported: send it plain.",
        ));
    }
    let limits = EdgeLimits::of(&settings.limits);
    let (body, share) = intake::read_body(session, &gateway.bodies, &limits).await?;
    let outline = request::read(surface, &body)?;
    let model = model(settings, surface, &outline)?;
    let strict = session.req_header().headers.get("x-gateway-strict").is_some_and(|value| value.as_bytes() == b"true");
    let Held { hold, mut warnings, lowered } = if asked.free {
        Held { hold: None, warnings: Vec::new(), lowered: None }
    } else {
        let asking = Asking { principal, model: &model, outline: &outline, body_bytes: body.len() as u64, strict };
        hold(gateway, settings, ctx, surface, asking)?
    };
    let budget = lowered.and_then(|limit| thinking_budget(settings, &outline, limit));
    warnings.extend(budget.map(|_| "clamped:thinking.budget_tokens".to_owned()));
    let edits = Edits {
        model: &model.upstream_model,
        output_limit: lowered,
        output_limit_field: model.output_limit_field,
        thinking_budget: budget,
        include_usage: surface == Protocol::Chat && outline.stream,
    };
    let sent = request::rewrite(&body, &outline, &edits);
    let body_bytes = body.len() as u64;
    drop(body);
    let sent_bytes = sent.len();
    let deadlines = deadlines(settings, ctx.arrived, outline.stream);
    let (previews, dropped) = previews(session, surface);
    warnings.extend(dropped.then(|| "dropped:anthropic-beta".to_owned()));
    let upstream = Upstream {
        path: asked.path,
        version: version_header(session, settings),
        previews,
        plan: upstream::plan(&model.vendor, settings.limits.attempts),
        tries: 0,
        repeated: false,
        sent: false,
    };
    let reply = Reply::new(!outline.include_usage);
    let shared = intake::install(session, sent, share, deadlines);
    Ok(Call {
        settings: Arc::clone(settings),
        model,
        upstream,
        hold,
        body_bytes,
        sent_bytes,
        stream: outline.stream,
        warnings,
        reply,
        shared,
        failure: None,
        admitted: Instant::now(),
        in_flight: asked.in_flight,
    })
}

fn model(settings: &Settings, surface: Protocol, outline: &Outline) -> Result<Arc<Model>, Failure> {
    let Some(model) = settings.catalog.find(&outline.model) else {
        return Err(Failure::model_not_found(&outline.model));
    };
    if model.vendor.protocol != surface {
        return Err(Failure::other_surface(&model.id));
    }
    Ok(Arc::clone(model))
}

/// Who asks for how much.
struct Asking<'a> {
    principal: Principal,
    model: &'a Arc<Model>,
    outline: &'a Outline,
    body_bytes: u64,
    strict: bool,
}

/// What was set aside, and what that changed.
struct Held {
    hold: Option<Hold>,
    warnings: Vec<String>,
    /// The output limit, where it was lowered to what the account can pay.
    lowered: Option<u64>,
}

/// Sets the worst case aside.
fn hold(
    gateway: &Gateway,
    settings: &Settings,
    ctx: &Context,
    surface: Protocol,
    asking: Asking<'_>,
) -> Result<Held, Failure> {
    let Asking { principal, model, outline, body_bytes, strict } = asking;
    let quote = rules::quote(model, surface, outline, body_bytes, settings.limits.min_output_tokens)?;
    let opening = Opening {
        request_id: ctx.request_id.clone(),
        account: principal.account_id,
        key_id: principal.key_id,
        key_shown: principal.key_shown,
        model: Arc::clone(model),
        surface,
    };
    let (hold, limit) =
        gateway.billing.reserve(opening, &quote, strict, clock::now_ms()).map_err(|refused| refusal(&refused))?;
    if limit == quote.output_limit {
        return Ok(Held { hold: Some(hold), warnings: Vec::new(), lowered: None });
    }
    let field = outline.output_limit.map_or(model.output_limit_field, |limit| limit.field);
    Ok(Held { hold: Some(hold), warnings: vec![format!("clamped:{field}")], lowered: Some(limit) })
}

/// A thinking budget must stay below the output limit: lowered with it.
fn thinking_budget(settings: &Settings, outline: &Outline, limit: u64) -> Option<u64> {
    let budget = outline.thinking_budget?;
    let most = limit.saturating_sub(settings.limits.min_output_tokens).max(rules::THINKING_TOKENS_LEAST);
    (budget > most).then_some(most)
}

fn refusal(refused: &Refused) -> Failure {
    match refused {
        Refused::Insufficient { available, needed } => Failure::new(
            Kind::InsufficientCredits,
            format!("Insufficient credits: {available} available, at least {needed} needed for this request."),
        ),
        Refused::TrialExpired => Failure::of(Kind::TrialExpired),
        Refused::TooManyOpen { limit } => {
            Failure::new(Kind::TooManyOpen, format!("This account has {limit} requests in flight, its limit."))
        }
        Refused::Busy => Failure::of(Kind::Overloaded),
        Refused::Unavailable(why) => {
            log::error!("hold credit: {why}");
            Failure::of(Kind::LedgerUnavailable)
        }
    }
}

fn deadlines(settings: &Settings, arrived: Instant, stream: bool) -> Deadlines {
    let limits = &settings.limits;
    let seconds = Duration::from_secs;
    Deadlines {
        total: arrived + seconds(limits.total_seconds),
        first_byte: seconds(limits.first_byte_seconds),
        idle: seconds(limits.idle_seconds),
        client_write: seconds(limits.client_write_seconds),
        drain: seconds(limits.drain_after_client_seconds),
        drain_hidden: seconds(limits.drain_hidden_seconds),
        stream,
    }
}

/// Preview flags that would widen the context beyond what the model's price and hold were made for.
const UNPRICED_PREVIEWS: &[&str] = &["context-1m-"];

/// The messages protocol's preview flags, unknown ones too, joined by commas; and whether an unpriced one was dropped.
fn previews(session: &Session, surface: Protocol) -> (Option<String>, bool) {
    if surface != Protocol::Messages {
        return (None, false);
    }
    let mut dropped = false;
    let values = session.req_header().headers.get_all("anthropic-beta");
    let flags: Vec<_> = values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|flag| !flag.is_empty())
        .filter(|flag| {
            let unpriced = UNPRICED_PREVIEWS.iter().any(|start| flag.starts_with(start));
            dropped |= unpriced;
            !unpriced
        })
        .collect();
    ((!flags.is_empty()).then(|| flags.join(",")), dropped)
}
