//! From the body to a [`Call`]: what it asks for, said in the vendor's protocol, quoted, and its worst case held.
//!
//! A request of the vendor's own protocol is passed on with a few edits; any other is translated. What is quoted is what
//! the vendor will read. Must not know either protocol's fields. Next: `protocol/request.rs` and
//! `protocol/translate.rs`, `billing/rules.rs` (the quote), `intake.rs` (the body's way on).

use super::fallback::Fallbacks;
use super::keyed::{self, Keyed};
use super::version_header;
use crate::account::Principal;
use crate::billing::pricing::Quote;
use crate::billing::{Hold, Opening, Refused, rules};
use crate::catalog::Model;
use crate::clock;
use crate::config::Settings;
use crate::edge::context::{Again, Call, Context, InFlight, Upstream};
use crate::edge::intake::{self, Deadlines};
use crate::edge::reply::Reply;
use crate::edge::{EdgeLimits, Gateway, rates};
use crate::idempotency::Answer;
use crate::protocol::Protocol;
use crate::protocol::aside::SignOfLife;
use crate::protocol::failure::{Failure, Kind};
use crate::protocol::form::answer::Recall;
use crate::protocol::request::{self, ConversationKey, Edits, Outline, Sender};
use crate::protocol::responses::Voice;
use crate::protocol::rules::Target;
use crate::protocol::translate::{self, Translated};
use bytes::Bytes;
use pingora::proxy::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the path said.
pub struct Asked {
    pub surface: Protocol,
    pub path: &'static str,
    pub free: bool,
    pub in_flight: InFlight,
}

pub enum Prepared {
    Call(Box<Call>),
    /// The input's tokens, counted here because the model's vendor does not.
    Count(u64),
    /// The answer that was given before under this idempotency key.
    Replay(Answer),
}

/// # Errors
/// The body is no request, names no model, asks for what cannot be had, or cannot be paid.
pub async fn prepare(
    gateway: &Gateway,
    settings: &Arc<Settings>,
    session: &mut Session,
    ctx: &Context,
    principal: Principal,
    asked: Asked,
) -> Result<Prepared, Failure> {
    let surface = asked.surface;
    let limits = EdgeLimits::of(&settings.limits);
    let (body, mut share) = intake::read_body(session, &gateway.bodies, &limits).await?;
    let body_read = Instant::now();
    let outline = request::read(surface, &body)?;
    let model = model(settings, &principal, &outline.model)?.door(surface, &outline);
    let crosses = model.protocol() != surface;
    let count = if asked.free { Some(translate::count_tokens(surface, &body)) } else { None };
    // A responses vendor is not asked: its counter wants another body than its answers do.
    if (crosses || surface == Protocol::Responses)
        && let Some(count) = count
    {
        return count.map(Prepared::Count);
    }
    let keyed = match keyed::begin(gateway, settings, session, &asked, &principal, &body, &ctx.request_id).await? {
        Keyed::Go(keyed) => keyed,
        Keyed::Replay(answer) => return Ok(Prepared::Replay(answer)),
    };
    let order = Order {
        conversation: conversation(session, &principal, &outline, &body),
        settings,
        surface,
        model,
        strict: session.req_header().headers.get("x-gateway-strict").is_some_and(|value| value.as_bytes() == b"true"),
        body,
        outline: &outline,
        request_id: &ctx.request_id,
        account_id: Arc::clone(&principal.account_id),
    };
    let (flags, version) = (flags(session, surface), version_header(session, settings));
    let (previews, dropped) = order.previews(&flags);
    order.bear(dropped.as_slice())?;
    let Fitted { hold, sent, fallbacks } = match asked.free {
        true => Fitted { hold: None, sent: order.sent(None, None)?, fallbacks: None },
        false => order.fit(gateway, principal).await?,
    };
    let fallbacks = fallbacks.map(|fallbacks| fallbacks.with_headers(version.clone(), flags));
    let again = order.again_without_thinking(&sent, false);
    share.cover(order.kept_bytes(&sent, again.is_some(), fallbacks.is_some()), limits.bodies_in_flight_bytes)?;
    let voice = sent.voice(keyed.is_some());
    let (stream, warnings) = (order.outline.stream, [sent.warnings, dropped.into_iter().collect()].concat());
    let (path, version) = if crosses { (translate::path(model.protocol()), None) } else { (asked.path, version) };
    let upstream = Upstream { path, version, previews, streams: sent.streams, ..order.place(gateway, asked.free) };
    let (model, sent_bytes, is_drained) = (Arc::clone(model), sent.body.len(), stream && keyed.is_none());
    // Under an idempotency key the whole answer is wanted, whoever has left.
    let shared = intake::install(session, sent.body, share, deadlines(settings, ctx.arrived, is_drained));
    shared.set_keyed(keyed);
    shared.expect(model.hides_reasoning(), keep_alive(surface, &model, stream, voice));
    Ok(Prepared::Call(Box::new(Call {
        settings: Arc::clone(settings),
        model,
        upstream,
        hold,
        body_bytes: order.body.len() as u64,
        sent_bytes,
        stream,
        warnings,
        reply: Reply::new(!order.outline.include_usage, sent.recall, count.and_then(Result::ok)),
        shared,
        again,
        fallbacks,
        failure: None,
        body_read,
        admitted: Instant::now(),
        vendor_answered: None,
        billed: None,
        in_flight: asked.in_flight,
    })))
}

/// Of which conversation the request is a turn.
fn conversation(session: &Session, principal: &Principal, outline: &Outline, body: &[u8]) -> ConversationKey {
    let headers = &session.req_header().headers;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    outline.conversation(&principal.account_id, header, body)
}

/// The model of that id, where there is one and the key may use it.
fn model<'a>(settings: &'a Settings, principal: &Principal, id: &str) -> Result<&'a Arc<Model>, Failure> {
    let model = settings.catalog.find(id).ok_or_else(|| Failure::model_not_found(id))?;
    if principal.settings.allows(id) { Ok(model) } else { Err(Failure::model_not_allowed(id)) }
}

/// What a stream's client is told while its vendor is silent. A stream that is passed on is kept alive by its vendor, in
/// the vendor's way.
pub(super) fn keep_alive(surface: Protocol, model: &Model, stream: bool, voice: Option<Voice>) -> Option<SignOfLife> {
    (stream && model.protocol() != surface).then(|| SignOfLife::of(surface, voice))
}

/// What a request asks for, of which model.
pub(super) struct Order<'a> {
    pub conversation: ConversationKey,
    pub settings: &'a Settings,
    pub surface: Protocol,
    pub model: &'a Arc<Model>,
    pub strict: bool,
    pub body: Bytes,
    pub outline: &'a Outline,
    pub request_id: &'a str,
    pub account_id: Arc<str>,
}

/// The body as the vendor gets it.
pub(super) struct Sent {
    pub body: Bytes,
    pub warnings: Vec<String>,
    /// The vendor is asked for a stream.
    pub streams: bool,
    carries_thinking: bool,
    /// As it was lowered to what the account can pay.
    output_limit: Option<u64>,
    /// A thinking budget in it is the caller's own.
    budget_is_given: bool,
    /// Of a translation.
    pub recall: Option<Recall>,
}

impl Sent {
    /// What is kept under a key holds no sign of life, so there none may say what belongs to the answer.
    fn voice(&self, is_kept: bool) -> Option<Voice> {
        self.recall.as_ref().and_then(|recall| recall.voice.clone()).filter(|_| !is_kept)
    }
}

/// A body and the most that it can cost.
pub(super) struct Priced {
    sent: Sent,
    /// Of a translation.
    translated: Option<Outline>,
    pub quote: Quote,
}

/// A body whose worst case is held.
struct Fitted {
    hold: Option<Hold>,
    sent: Sent,
    fallbacks: Option<Box<Fallbacks>>,
}

impl<'a> Order<'a> {
    /// The same, of another model.
    pub fn of(&self, model: &'a Arc<Model>) -> Self {
        let (body, account_id) = (self.body.clone(), Arc::clone(&self.account_id));
        Self { model, body, account_id, ..*self }
    }

    /// By what its endpoint is chosen. A count has no cache to find again.
    fn place(&self, gateway: &Gateway, is_count: bool) -> Upstream {
        let stays = self.outline.stays();
        let key = (stays || self.model.vendor.sticky && !is_count).then(|| self.conversation.as_u64());
        Upstream { key, stays, ..Upstream::to(gateway.fleet.of(&self.model.vendor)) }
    }

    /// Says the request in the vendor's protocol, with these limits.
    fn sent(&self, output_limit: Option<u64>, thinking_budget: Option<u64>) -> Result<Sent, Failure> {
        if self.model.protocol() != self.surface {
            let translated = translate::request(&self.asked(&self.body, output_limit), false)?;
            let body = match thinking_budget.filter(|_| translated.budget_is_given) {
                Some(budget) => self.with_budget(&translated.body, budget)?,
                None => translated.body,
            };
            return Ok(Sent {
                budget_is_given: translated.budget_is_given,
                body,
                warnings: translated.warnings,
                streams: translated.streams,
                carries_thinking: translated.carries_thinking,
                output_limit,
                recall: Some(translated.recall),
            });
        }
        let edits = Edits {
            model: &self.model.upstream_model,
            output_limit,
            output_limit_field: self.model.output_limit_field(),
            thinking_budget,
            include_usage: self.surface == Protocol::Chat && self.outline.stream,
        };
        let (stripped, carries_thinking) = match self.surface {
            Protocol::Responses => request::for_responses(&self.body, &sender(self.model, &self.account_id, false))?,
            surface => (request::strip(surface, self.model.vendor.official, &self.body, self.outline), false),
        };
        let warnings = stripped.warnings.clone();
        self.bear(&warnings)?;
        Ok(Sent {
            body: request::rewrite_stripped(&self.body, self.outline, &edits, stripped),
            warnings,
            streams: self.outline.stream,
            carries_thinking,
            output_limit,
            budget_is_given: true,
            recall: None,
        })
    }

    /// The caller's own thinking budget in a translated body, lowered.
    fn with_budget(&self, body: &Bytes, budget: u64) -> Result<Bytes, Failure> {
        let outline = request::read(self.model.protocol(), body)?;
        let edits = Edits {
            model: &outline.model,
            output_limit: None,
            output_limit_field: self.model.output_limit_field(),
            thinking_budget: Some(budget),
            include_usage: false,
        };
        Ok(request::rewrite(body, &outline, &edits))
    }

    /// A caller that is strict bears no warning.
    fn bear(&self, warnings: &[String]) -> Result<(), Failure> {
        match warnings.first().filter(|_| self.strict) {
            Some(token) => Err(Failure::new(Kind::InvalidRequest, format!("Strict mode: {token}"))),
            None => Ok(()),
        }
    }

    fn asked<'b>(&'b self, body: &'b [u8], output_limit: Option<u64>) -> translate::Asked<'b> {
        translate::Asked {
            surface: self.surface,
            body,
            target: target(self.model),
            account_id: &self.account_id,
            output_limit,
            strict: self.strict,
            created: u64::try_from(clock::now_ms() / 1_000).unwrap_or_default(),
            request_id: self.request_id,
        }
    }

    /// Says the request, and what that can cost.
    pub fn priced(&self) -> Result<Priced, Failure> {
        let sent = self.sent(None, None)?;
        let is_translated = sent.recall.is_some();
        let mut translated = match is_translated || self.surface == Protocol::Responses {
            // Written here, or what is not sold was taken out of it here; so it can be read.
            true => Some(request::read(self.model.protocol(), &sent.body)?),
            false => None,
        };
        let body_bytes = match translated {
            Some(_) => self.body.len().max(sent.body.len()),
            None => self.body.len(),
        };
        if let Some(outline) = &mut translated {
            // A budget that was made here can be made smaller, or left out.
            outline.thinking_budget = outline.thinking_budget.filter(|_| sent.budget_is_given);
        }
        let quote = self.quote(translated.as_ref().unwrap_or(self.outline), body_bytes)?;
        Ok(Priced { sent, translated, quote })
    }

    /// The most that a body of this outline can cost.
    pub fn quote(&self, outline: &Outline, body_bytes: usize) -> Result<Quote, Failure> {
        let min_output = self.settings.limits.min_output_tokens;
        rules::quote(self.model, self.surface, outline, body_bytes as u64, min_output)
    }

    /// Sets the worst case of what the vendor will read aside, and lowers the output limit to what can be paid.
    async fn fit(&self, gateway: &Gateway, principal: Principal) -> Result<Fitted, Failure> {
        let priced = self.priced()?;
        if let Some((fallbacks, dearest)) = Fallbacks::of(self, &principal, &priced.quote) {
            // Nobody's answer is shortened for the sake of a model that may never be asked.
            match self.reserve(gateway, &principal, &dearest, true).await {
                Ok((hold, limit)) => {
                    let fallbacks = Some(fallbacks.within(limit));
                    return Ok(Fitted { hold: Some(hold), sent: self.lowered(priced, limit)?, fallbacks });
                }
                // Who can pay for the model that was asked for has that.
                Err(Refused::Insufficient { .. } | Refused::KeySpendLimit { .. } | Refused::TrialExpired) => {}
                Err(refused) => return Err(refusal(self.surface, &refused)),
            }
        }
        let reserved = self.reserve(gateway, &principal, &priced.quote, self.strict).await;
        let (hold, limit) = reserved.map_err(|refused| refusal(self.surface, &refused))?;
        Ok(Fitted { hold: Some(hold), sent: self.lowered(priced, limit)?, fallbacks: None })
    }

    /// `exact`: the whole output limit or nothing.
    async fn reserve(
        &self,
        gateway: &Gateway,
        principal: &Principal,
        quote: &Quote,
        exact: bool,
    ) -> Result<(Hold, u64), Refused> {
        let may_use = || {
            let input = translate::count_tokens(self.surface, &self.body).unwrap_or(self.body.len() as u64);
            input.saturating_add(quote.output_limit.saturating_mul(quote.choices))
        };
        let opening = Opening {
            request_id: self.request_id.to_owned(),
            account: Arc::clone(&principal.account_id),
            key_id: Arc::clone(&principal.key_id),
            key_shown: Arc::clone(&principal.key_shown),
            model: Arc::clone(self.model),
            surface: self.surface,
            bounds: rates::bounds(self.settings, principal, may_use),
            conversation: Some(self.conversation.to_string()),
        };
        gateway.billing.reserve(opening, quote, exact, clock::now_ms()).await
    }

    /// The same with an output limit of at most `limit`.
    pub fn lowered(&self, priced: Priced, limit: u64) -> Result<Sent, Failure> {
        let Priced { sent, translated, quote } = priced;
        if limit >= quote.own_limit {
            return Ok(sent);
        }
        let budget = thinking_budget(self.settings, translated.as_ref().unwrap_or(self.outline), limit);
        let mut sent = self.sent(Some(limit), budget)?;
        sent.warnings.push(format!("clamped:{}", self.limit_field()));
        sent.warnings.extend(budget.map(|_| "clamped:thinking.budget_tokens".to_owned()));
        Ok(sent)
    }

    /// The output limit's name, as the caller knows it.
    fn limit_field(&self) -> &'static str {
        let usual = match self.surface {
            surface if surface == self.model.protocol() => self.model.output_limit_field(),
            Protocol::Chat => "max_completion_tokens",
            Protocol::Responses => "max_output_tokens",
            Protocol::Messages => "max_tokens",
        };
        self.outline.output_limit.map_or(usual, |limit| limit.field)
    }

    /// Where the vendor may refuse the reasoning in it: what is needed to say it without. `instead`: of another model, whose
    /// reasoning is passed on as it stands.
    pub fn again_without_thinking(&self, sent: &Sent, instead: bool) -> Option<Again> {
        let is_another_ones = instead && self.model.protocol() == self.surface && self.surface != Protocol::Responses;
        ((sent.carries_thinking || is_another_ones) && !self.strict).then(|| Again {
            surface: self.surface,
            body: self.body.clone(),
            output_limit: sent.output_limit,
            account_id: Arc::clone(&self.account_id),
            request_id: self.request_id.to_owned(),
        })
    }

    /// What is held of the request until it is answered.
    fn kept_bytes(&self, sent: &Sent, has_again: bool, has_fallbacks: bool) -> u64 {
        // What may be said again is said from the client's body; in another model's words it is about as long.
        let client = if has_again || has_fallbacks { self.body.len() } else { 0 };
        let instead = if has_fallbacks { sent.body.len() } else { 0 };
        (sent.body.len() + client + instead) as u64
    }

    /// The preview flags that the vendor gets, joined by commas; and the warning that an unpriced one was dropped.
    pub fn previews(&self, flags: &[String]) -> (Option<String>, Option<String>) {
        if self.model.protocol() != self.surface {
            return (None, None);
        }
        let is_priced = |flag: &&str| {
            let widens = |(start, tokens): &(&str, u64)| flag.starts_with(start) && self.model.context_tokens < *tokens;
            !WIDER_CONTEXTS.iter().any(widens)
        };
        let kept: Vec<_> = flags.iter().map(String::as_str).filter(is_priced).collect();
        let dropped = (kept.len() < flags.len()).then(|| "dropped:anthropic-beta".to_owned());
        ((!kept.is_empty()).then(|| kept.join(",")), dropped)
    }
}

/// By whom a request of the vendor's own protocol is passed on.
fn sender<'a>(model: &'a Model, account_id: &'a str, without_reasoning: bool) -> Sender<'a> {
    let may_search = model.price.features.web_search.is_some();
    Sender { account_id, official: model.vendor.official, may_search, without_reasoning, model: &model.id }
}

fn target(model: &Model) -> Target<'_> {
    Target {
        upstream_model: &model.upstream_model,
        public_model: &model.id,
        max_output_tokens: model.max_output_tokens,
        official: model.vendor.official,
        accepts: &model.accepts,
    }
}

/// A request said once more.
pub struct Said {
    pub body: Bytes,
    pub warnings: Vec<String>,
    /// Of a translation.
    pub recall: Option<Recall>,
}

/// The same request without its reasoning, after the vendor refused that.
///
/// # Errors
/// It cannot be said without.
pub fn without_thinking(again: &Again, model: &Model) -> Result<Said, Failure> {
    if again.surface == model.protocol() {
        let outline = request::read(again.surface, &again.body)?;
        let edits = Edits {
            model: &model.upstream_model,
            output_limit: again.output_limit,
            output_limit_field: model.output_limit_field(),
            thinking_budget: None,
            include_usage: again.surface == Protocol::Chat && outline.stream,
        };
        let stripped = match again.surface {
            Protocol::Responses => request::for_responses(&again.body, &sender(model, &again.account_id, true))?.0,
            surface => request::without_reasoning(surface, &again.body)
                .ok_or_else(|| Failure::invalid(surface, "messages", "have no reasoning that could be left out"))?,
        };
        let warnings = stripped.warnings.clone();
        let body = request::rewrite_stripped(&again.body, &outline, &edits, stripped);
        return Ok(Said { body, warnings, recall: None });
    }
    let asked = translate::Asked {
        surface: again.surface,
        body: &again.body,
        target: target(model),
        account_id: &again.account_id,
        output_limit: again.output_limit,
        strict: false,
        created: u64::try_from(clock::now_ms() / 1_000).unwrap_or_default(),
        request_id: &again.request_id,
    };
    let Translated { body, warnings, recall, .. } = translate::request(&asked, true)?;
    Ok(Said { body, warnings, recall: Some(recall) })
}

/// A thinking budget must stay below the output limit: lowered with it.
fn thinking_budget(settings: &Settings, outline: &Outline, limit: u64) -> Option<u64> {
    let budget = outline.thinking_budget?;
    let most = limit.saturating_sub(settings.limits.min_output_tokens).max(rules::THINKING_TOKENS_LEAST);
    (budget > most).then_some(most)
}

fn refusal(surface: Protocol, refused: &Refused) -> Failure {
    match refused {
        Refused::Insufficient { available, needed } => Failure::new(
            Kind::InsufficientCredits,
            format!("Insufficient credits: {available} available, at least {needed} needed for this request."),
        ),
        Refused::TrialExpired => Failure::of(Kind::TrialExpired),
        Refused::KeySpendLimit { free } => Failure::new(
            Kind::KeySpendLimit,
            format!("This key has reached its spend limit: {free} credits are left of it, too few for this request."),
        ),
        Refused::Limited(wait) => rates::refusal(surface, wait, clock::now_ms()),
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
        keep_alive: seconds(limits.stream_keep_alive_seconds),
    }
}

/// Preview flags that widen the context, and to how many tokens: beyond what a model of fewer was priced and held for.
const WIDER_CONTEXTS: &[(&str, u64)] = &[("context-1m-", 1_000_000)];

/// The messages protocol's preview flags, unknown ones too.
fn flags(session: &Session, surface: Protocol) -> Vec<String> {
    if surface != Protocol::Messages {
        return Vec::new();
    }
    let values = session.req_header().headers.get_all("anthropic-beta");
    let flags = values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim);
    flags.filter(|flag| !flag.is_empty()).map(str::to_owned).collect()
}
