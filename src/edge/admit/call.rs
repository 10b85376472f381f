//! Turns a body into an [`AdmittedRequest`]: what it requests, from which model, with its largest
//! possible cost reserved.
//!
//! This file must not encode the request itself. Next: `admit/outbound.rs` (the request in a
//! model's protocol, and its price), `admit/fallback.rs` (fallback models), `intake.rs` (how the
//! body reaches the vendor).

use super::fallback::Fallbacks;
use super::header::Authorized;
use super::keyed::{self, Keyed};
use super::order::{self, Order, Sent};
use super::version_header;
use crate::account::Principal;
use crate::billing::pricing::Quote;
use crate::billing::{Hold, Opening, Refused};
use crate::catalog::Model;
use crate::clock;
use crate::config::Settings;
use crate::edge::context::{Call, Context, InFlight, Upstream};
use crate::edge::intake::{self, BodyShare, Deadlines, ReceivedBody};
use crate::edge::pool::{self, CpuSlot, CpuWorker};
use crate::edge::reply::Reply;
use crate::edge::shutdown::Shutdown;
use crate::edge::turn::Turn;
use crate::edge::{EdgeLimits, Gateway, rates};
use crate::idempotency::{self, Answer, BodyHash};
use crate::protocol::Protocol;
use crate::protocol::failure::{Failure, Kind};
use crate::protocol::request::{self, ConversationKey, Outline};
use crate::protocol::translate;
use crate::usage::UsageBounds;
use bytes::Bytes;
use pingora::http::RequestHeader;
use pingora::proxy::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The operation that the path names.
pub struct Asked {
    pub surface: Protocol,
    pub path: &'static str,
    pub free: bool,
    pub in_flight: InFlight,
}

pub enum Prepared {
    Call(Box<Call>),
    /// Number of input tokens, counted by the gateway because the model's vendor cannot count them.
    Count(u64),
    /// The earlier response under this idempotency key.
    Replay(Answer),
}

/// Reads the body, finds the model and reserves credit.
///
/// # Errors
/// Returns an error if the body is not a valid request, names no model, requests something that is
/// unavailable, or cannot be paid.
#[expect(
    clippy::too_many_lines,
    reason = "the steps of admission, in their order"
)]
pub async fn prepare(
    gateway: &Gateway,
    settings: &Arc<Settings>,
    session: &mut Session,
    ctx: &Context,
    principal: Principal,
    asked: Asked,
    authorized: Authorized,
) -> Result<Prepared, Failure> {
    let surface = asked.surface;
    let Authorized {
        mut share,
        arrival,
        has_credit,
    } = authorized;
    let cpu = gateway.cpu.worker(&principal.account_id, &settings.limits);
    let (received, body_read, slot) =
        receive_body(gateway, settings, session, &mut share, &cpu).await?;
    let header = session.req_header();
    let read = slot.run(|| {
        read(
            &asked,
            settings,
            &principal.account_id,
            header,
            received,
            &mut share,
        )
    })?;
    let ReadRequest {
        body,
        body_hash,
        outline,
        conversation,
        count,
    } = read;
    let model = model(settings, &principal, &outline.model)?.door(surface, &outline);
    let crosses = !model.passes(surface);
    let is_local = !has_credit || is_counted_here(model, &asked);
    if is_local && let Some(count) = count {
        return count.map(Prepared::Count);
    }
    let keyed = match keyed::begin(
        gateway,
        settings,
        session,
        &asked,
        &principal,
        body_hash,
        &ctx.request_id,
    )
    .await?
    {
        Keyed::Go(keyed) => keyed,
        Keyed::Replay(answer) => return Ok(Prepared::Replay(answer)),
    };
    let flags = flags(session, surface);
    let order = Order {
        turn: Turn::new(
            &gateway.turns,
            &principal.account_id,
            conversation,
            outline.features.content,
            model,
        ),
        settings,
        surface,
        model,
        strict: session
            .req_header()
            .headers
            .get("x-gateway-strict")
            .is_some_and(|value| value.as_bytes() == b"true"),
        body,
        outline: &outline,
        request_id: &ctx.request_id,
        account_id: Arc::clone(&principal.account_id),
        is_interleaved: order::is_interleaved(&flags),
    };
    let version = version_header(session, settings);
    let (previews, dropped) = order.previews(&flags);
    order.bear(dropped.as_slice())?;
    let slot = cpu.slot(pool::work_of(&order.body), session).await?;
    // From here on, the request's hold counts it.
    drop(arrival);
    let Fitted {
        hold,
        sent,
        fallbacks,
        usage_bounds,
    } = match asked.free {
        true => {
            Fitted::free(slot.run(|| share.during(order.tree_bytes(), || order.sent(None, None)))?)
        }
        false => {
            order
                .fit(gateway, principal, &mut share, (&cpu, slot))
                .await?
        }
    };
    let fallbacks = fallbacks.map(|fallbacks| fallbacks.with_headers(version.clone(), flags));
    let again = order.again_without_thinking(&sent, false);
    share.cover(order.kept_bytes(&sent, again.is_some(), fallbacks.as_deref()))?;
    let voice = sent.voice(keyed.is_some());
    let (path, version) = if crosses {
        (translate::path(model.protocol()), None)
    } else {
        (asked.path, version)
    };
    let upstream = Upstream {
        path,
        version,
        previews,
        streams: sent.streams,
        ..order.place(gateway, asked.free)
    };
    let (model, sent_bytes, is_drained) = (
        Arc::clone(model),
        sent.body.len(),
        outline.stream && keyed.is_none(),
    );
    // With an idempotency key, the gateway reads the whole response even if the client has
    // disconnected.
    let shared = intake::install(
        session,
        sent.body,
        share,
        deadlines(
            settings,
            ctx.arrived,
            is_drained,
            Arc::clone(&gateway.shutdown),
        ),
    );
    shared.set_keyed(keyed);
    shared.expect(
        model.hides_reasoning() || order.turn.is_doubtful(),
        order.sign_of_life(voice),
    );
    Ok(Prepared::Call(Box::new(Call {
        settings: Arc::clone(settings),
        model,
        upstream,
        hold,
        body_bytes: order.body.len() as u64,
        turn: order.turn.clone(),
        usage_bounds,
        sent_bytes,
        stream: outline.stream,
        warnings: [sent.warnings, dropped.into_iter().collect()].concat(),
        reply: Reply::new(
            !order.outline.include_usage,
            order.outline.choices,
            sent.recall,
            count.and_then(Result::ok),
        ),
        shared,
        again,
        fallbacks,
        failure: None,
        body_read,
        admitted: Instant::now(),
        vendor_answered: None,
        billed: None,
        cpu,
        in_flight: asked.in_flight,
    })))
}

/// Returns the body, when it arrived, and a CPU slot in which to parse it. A shutdown waits for
/// neither.
async fn receive_body(
    gateway: &Gateway,
    settings: &Settings,
    session: &mut Session,
    share: &mut BodyShare,
    cpu: &CpuWorker,
) -> Result<(ReceivedBody, Instant, CpuSlot), Failure> {
    let limits = EdgeLimits::of(&settings.limits);
    let receive = async {
        let received = intake::read_body(session, share, &limits).await?;
        let body_read = Instant::now();
        let slot = cpu.slot(received.work(), session).await?;
        Ok((received, body_read, slot))
    };
    tokio::select! {
        biased;
        received = receive => received,
        () = gateway.shutdown.cut_off() => {
            gateway.shutdown.count_cut();
            Err(Failure::of(Kind::Draining))
        }
    }
}

/// Whether the gateway counts the tokens of such a request itself. Responses vendors expect another
/// body for counting than for generation, and endpoints with a custom path may have no counter.
fn is_counted_here(model: &Model, asked: &Asked) -> bool {
    let surface = asked.surface;
    !model.passes(surface) || surface == Protocol::Responses || !model.vendor.serves(asked.path)
}

/// The content of a body, independent of the model.
struct ReadRequest {
    body: Bytes,
    /// Hash of the body, for requests that may have an idempotency key.
    body_hash: BodyHash,
    outline: Outline,
    conversation: ConversationKey,
    /// Number of input tokens, if the request asks for it.
    count: Option<Result<u64, Failure>>,
}

fn read(
    asked: &Asked,
    settings: &Settings,
    account_id: &str,
    header: &RequestHeader,
    received: ReceivedBody,
    share: &mut BodyShare,
) -> Result<ReadRequest, Failure> {
    let limits = EdgeLimits::of(&settings.limits);
    let body = received.into_plain(&limits, share)?;
    let outline = request::read_bounded(asked.surface, &body, settings.limits.body_values)?;
    let header = |name: &str| {
        header
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let conversation = outline.conversation(account_id, header, &body);
    let body_hash = header("idempotency-key")
        .map(|_| idempotency::hash(&body))
        .unwrap_or_default();
    let count = if asked.free {
        Some(share.during(translate::tree_bytes(outline.values), || {
            Ok(translate::count_tokens(asked.surface, &body))
        })?)
    } else {
        None
    };
    Ok(ReadRequest {
        body,
        body_hash,
        outline,
        conversation,
        count,
    })
}

/// Returns the model with this id or alias, if the key may use it. Keys are bound to ids.
fn model<'a>(
    settings: &'a Settings,
    principal: &Principal,
    name: &str,
) -> Result<&'a Arc<Model>, Failure> {
    let model = settings
        .catalog
        .find(name)
        .ok_or_else(|| Failure::model_not_found(name))?;
    if principal.settings.allows(&model.id) {
        Ok(model)
    } else {
        Err(Failure::model_not_allowed(name))
    }
}

/// A request whose largest possible cost is reserved.
struct Fitted {
    hold: Option<Hold>,
    sent: Sent,
    fallbacks: Option<Box<Fallbacks>>,
    usage_bounds: UsageBounds,
}

impl Fitted {
    /// Wraps a free request, which needs no hold.
    fn free(sent: Sent) -> Self {
        Self {
            hold: None,
            sent,
            fallbacks: None,
            usage_bounds: UsageBounds::default(),
        }
    }
}

impl Order<'_> {
    /// Selects the vendor's endpoints, and the hash that chooses one of them. A token count has no
    /// prompt cache to reuse, so it needs no hash.
    fn place(&self, gateway: &Gateway, is_count: bool) -> Upstream {
        let key =
            (self.model.vendor.sticky && !is_count).then(|| self.turn.conversation().as_u64());
        Upstream {
            key,
            ..Upstream::to(gateway.fleet.of(&self.model.vendor))
        }
    }

    /// Reserves the largest possible cost of the request, and lowers the output limit to what the
    /// account can pay. Counts the memory for its bodies before it waits.
    async fn fit(
        &self,
        gateway: &Gateway,
        principal: Principal,
        share: &mut BodyShare,
        (cpu, slot): (&CpuWorker, CpuSlot),
    ) -> Result<Fitted, Failure> {
        let (priced, fallbacks) = slot.run(|| {
            let priced = share.during(self.tree_bytes(), || self.priced())?;
            let fallbacks = Fallbacks::of(self, &principal, &priced.quote);
            Ok::<_, Failure>((priced, fallbacks))
        })?;
        let lowered = |priced, limit| {
            cpu.run_admitted(pool::work_of(&self.body), || self.lowered(priced, limit))
        };
        if let Some((fallbacks, dearest)) = fallbacks {
            share.cover(self.kept_bytes(&priced.sent, true, Some(&fallbacks)))?;
            // Reserve the whole output limit: the gateway does not shorten a response for the sake
            // of a fallback model that may never be used.
            match self.reserve(gateway, cpu, &principal, &dearest, true).await {
                Ok((hold, limit)) => {
                    let fallbacks = Some(fallbacks.within(limit));
                    let usage_bounds = priced.quote.usage_bounds(limit);
                    let sent = lowered(priced, limit)?;
                    return Ok(Fitted {
                        hold: Some(hold),
                        sent,
                        fallbacks,
                        usage_bounds,
                    });
                }
                // An account that can pay for the requested model gets that model, without
                // fallbacks.
                Err(
                    Refused::Insufficient { .. }
                    | Refused::KeySpendLimit { .. }
                    | Refused::TrialExpired,
                ) => {}
                Err(refused) => return Err(refusal(self.surface, &refused)),
            }
        }
        let reserved = self
            .reserve(gateway, cpu, &principal, &priced.quote, self.strict)
            .await;
        let (hold, limit) = reserved.map_err(|refused| refusal(self.surface, &refused))?;
        let usage_bounds = priced.quote.usage_bounds(limit);
        Ok(Fitted {
            hold: Some(hold),
            sent: lowered(priced, limit)?,
            fallbacks: None,
            usage_bounds,
        })
    }

    /// Reserves credit. `exact`: reserve the whole output limit or nothing.
    async fn reserve(
        &self,
        gateway: &Gateway,
        cpu: &CpuWorker,
        principal: &Principal,
        quote: &Quote,
        exact: bool,
    ) -> Result<(Hold, u64), Refused> {
        let may_use = || {
            let input =
                translate::count_tokens(self.surface, &self.body).unwrap_or(self.body.len() as u64);
            input.saturating_add(quote.output_limit.saturating_mul(quote.choices))
        };
        let bounds = cpu.run_admitted(pool::work_of(&self.body), || {
            rates::bounds(self.settings, principal, may_use)
        });
        let opening = Opening {
            request_id: self.request_id.to_owned(),
            account: Arc::clone(&principal.account_id),
            key_id: Arc::clone(&principal.key_id),
            key_shown: Arc::clone(&principal.key_shown),
            model: Arc::clone(self.model),
            surface: self.surface,
            bounds,
            conversation: Some(self.turn.conversation().to_string()),
        };
        gateway
            .billing
            .reserve(opening, quote, exact, clock::now_ms())
            .await
    }

    /// Returns the memory for the JSON document of the body, if one is built.
    fn tree_bytes(&self) -> u64 {
        if self.is_passed_on_unchanged() {
            0
        } else {
            translate::tree_bytes(self.outline.values)
        }
    }

    /// Returns the number of bytes that the request keeps until it is answered.
    fn kept_bytes(&self, sent: &Sent, has_again: bool, fallbacks: Option<&Fallbacks>) -> u64 {
        // The gateway encodes a retry from the client's body. Encoded for another model, the
        // request is about as long.
        let client = if has_again || fallbacks.is_some() {
            self.body.len()
        } else {
            0
        };
        let instead = fallbacks.map_or(0, |fallbacks| fallbacks.kept_bytes().max(sent.body.len()));
        (sent.body.len() + client + instead) as u64
    }
}

pub(super) fn refusal(surface: Protocol, refused: &Refused) -> Failure {
    match refused {
        Refused::Insufficient { available, needed } => Failure::new(
            Kind::InsufficientCredits,
            format!(
                "Insufficient credits: {available} available, at least {needed} needed for this request."
            ),
        ),
        Refused::TrialExpired => Failure::of(Kind::TrialExpired),
        Refused::KeySpendLimit { free } => Failure::new(
            Kind::KeySpendLimit,
            format!(
                "This key has reached its spend limit: {free} credits are left of it, too few for this request."
            ),
        ),
        Refused::Limited(wait) => rates::refusal(surface, wait, clock::now_ms()),
        Refused::TooManyOpen { limit } => Failure::new(
            Kind::TooManyOpen,
            format!("This account has {limit} requests in flight, its limit."),
        ),
        Refused::Busy => Failure::of(Kind::Overloaded),
        Refused::Unavailable(why) => {
            log::error!("hold credit: {why}");
            Failure::of(Kind::LedgerUnavailable)
        }
    }
}

fn deadlines(
    settings: &Settings,
    arrived: Instant,
    stream: bool,
    shutdown: Arc<Shutdown>,
) -> Deadlines {
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
        keep_alive: seconds(limits.stream_keep_alive_seconds),
        shutdown,
    }
}

/// Returns the preview flags of the messages protocol, including unknown ones.
fn flags(session: &Session, surface: Protocol) -> Vec<String> {
    if surface != Protocol::Messages {
        return Vec::new();
    }
    let values = session.req_header().headers.get_all("anthropic-beta");
    let flags = values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    flags
        .filter(|flag| !flag.is_empty())
        .map(str::to_owned)
        .collect()
}
