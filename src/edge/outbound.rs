//! Prepares a request for one model: encodes it in the vendor's protocol, quotes it, and lowers its
//! output limit to the amount that the account can pay.
//!
//! A request in the vendor's own protocol is passed on with a few edits; any other is translated.
//! The quote covers the encoded request. This file must not depend on the fields of a protocol, or
//! on the payer. Next: `crates/llm-protocol/src/request.rs` and
//! `crates/llm-protocol/src/translate.rs`, `billing/quote.rs` (the quote), `outbound/fallback.rs`
//! (the models that may answer instead).

pub mod fallback;
pub mod reasoning_retry;

use super::turn::MeteredTurn;
use crate::billing::quote;
use base::clock;
use bytes::Bytes;
use config::Settings;
use config::catalog::CatalogModel;
use credits::pricing::Quote;
use llm_protocol::Protocol;
use llm_protocol::capabilities::TranslationTarget;
use llm_protocol::capabilities::repair_rules::RepairRules;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::ir::CacheMarkerOrigin;
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::keepalive::KeepAlive;
use llm_protocol::request::{
    self, PassthroughContext, RequestBody, RequestCleanup, RequestEdits, RequestSummary,
};
use llm_protocol::responses::EventSequencer;
use llm_protocol::translate;
use llm_protocol::usage::{PerTool, ServerTool, UsageEstimator};
use std::sync::Arc;

/// The client's request, together with the model that should answer.
pub(super) struct OutboundRequest<'a> {
    pub turn: MeteredTurn,
    pub settings: &'a Settings,
    pub surface: Protocol,
    pub model: &'a Arc<CatalogModel>,
    pub strict: bool,
    pub body: Bytes,
    pub summary: &'a RequestSummary,
    pub request_id: &'a str,
    pub account_id: Arc<str>,
    /// True if a preview flag lets the thinking budget exceed the output limit.
    pub is_interleaved: bool,
}

/// The encoded body, with the settings of its response.
pub(super) struct UpstreamRequest {
    pub body: RequestBody,
    pub warnings: Vec<String>,
    /// True if the gateway requests a stream from the vendor.
    pub asks_for_stream: bool,
    carries_thinking: bool,
    /// Output limit after clamping to the account's credit.
    output_limit: Option<u64>,
    /// True if the client set the thinking budget itself.
    is_budget_from_client: bool,
    /// True if the gateway changed a passed-on request because the model refuses parts of it.
    is_repaired: bool,
    /// The origin of the cache markers in the body, if it has any.
    pub cache_marks: Option<CacheMarkerOrigin>,
    pub translation: Option<ResponseContext>,
}

impl UpstreamRequest {
    /// Returns the event sequencer for keep-alives. A response recorded under an idempotency key
    /// does not contain keep-alives, so its keep-alives must not take a number or carry content of
    /// the response.
    pub fn sequencer(&self, is_kept: bool) -> Option<EventSequencer> {
        self.translation
            .as_ref()
            .and_then(|context| context.sequencer.clone())
            .filter(|_| !is_kept)
    }
}

/// A body and the largest cost that it can cause.
pub(super) struct QuotedRequest {
    pub encoded: UpstreamRequest,
    /// Summary of the body, if the gateway changed it.
    translated: Option<Box<RequestSummary>>,
    pub quote: Quote,
}

impl QuotedRequest {
    /// Returns whether an output limit of `limit` requires that the body is encoded again.
    pub fn is_lowered_by(&self, limit: u64) -> bool {
        limit < self.quote.own_limit
    }
}

/// Removes what the vendor's profile says that its server refuses, and arranges the turns as the
/// server wants them. Returns the body and its warnings.
pub(in crate::edge) fn fit_to_vendor(
    model: &CatalogModel,
    surface: Protocol,
    mut body: RequestBody,
) -> (RequestBody, Vec<String>) {
    let (profile, protocol) = (&model.vendor.profile, model.protocol());
    let mut warnings = Vec::new();
    // A profile describes the vendor's first protocol.
    if protocol != model.vendor.protocol {
        return (body, warnings);
    }
    let is_translated = !model.passes_through(surface);
    if let Some((without, dropped)) =
        request::without_refused(protocol, profile, &body, is_translated)
    {
        body = without.into();
        warnings = dropped;
    }
    let joined = profile
        .alternates
        .then(|| request::alternate_roles(&body.to_bytes()));
    if let Some((joined, lost)) = joined.flatten() {
        body = joined.into();
        let member = match surface {
            Protocol::Responses => "input",
            Protocol::Chat | Protocol::Messages => "messages",
        };
        warnings.push(format!("merged:{member}"));
        warnings.extend(lost);
    }
    (body, warnings)
}

impl<'a> OutboundRequest<'a> {
    pub fn for_model(&self, model: &'a Arc<CatalogModel>) -> Self {
        let (body, account_id) = (self.body.clone(), Arc::clone(&self.account_id));
        let turn = self.turn.with_model(model);
        Self {
            model,
            body,
            account_id,
            turn,
            ..*self
        }
    }

    /// Encodes the request in the vendor's protocol, with these limits.
    pub fn encode(
        &self,
        output_limit: Option<u64>,
        thinking_budget: Option<u64>,
    ) -> Result<UpstreamRequest, Failure> {
        if !self.model.passes_through(self.surface) {
            let input = translation_request(
                self.model,
                self.surface,
                &self.body,
                (&self.account_id, self.request_id),
                output_limit,
            );
            let estimator = self.turn.estimator();
            let input = translate::TranslationRequest {
                strict: self.strict,
                estimator,
                ..input
            };
            let translated = translate::translate_request(&input, false)?;
            let body: Bytes = match thinking_budget.filter(|_| translated.has_client_budget) {
                Some(budget) => self.set_thinking_budget(&translated.body, budget)?,
                None => translated.body,
            };
            let (body, fitted) = fit_to_vendor(self.model, self.surface, body.into());
            self.reject_if_strict(&fitted)?;
            return Ok(UpstreamRequest {
                is_budget_from_client: translated.has_client_budget,
                body,
                warnings: [translated.warnings, self.summary.rewritten.clone(), fitted].concat(),
                asks_for_stream: translated.streams,
                carries_thinking: translated.carries_thinking,
                output_limit,
                is_repaired: false,
                cache_marks: translated.response_context.cache_markers,
                translation: Some(translated.response_context),
            });
        }
        let profile = &self.model.vendor.profile;
        if self.surface == Protocol::Messages
            && self.summary.is_prewarming()
            && !profile.prewarms_cache
        {
            let message = "0 is only supported for models that offer cache pre-warming.";
            return Err(Failure::invalid_param(self.surface, "max_tokens", message));
        }
        let edits = RequestEdits {
            model: &self.model.upstream_model,
            output_limit,
            output_limit_field: self.upstream_limit_field(),
            thinking_budget,
            include_usage: includes_usage(self.model, self.surface, self.summary),
        };
        let rules = self.repair_rules(output_limit, thinking_budget);
        let (stripped, carries_thinking) = match self.surface {
            Protocol::Responses => {
                let sender = PassthroughContext {
                    repair: rules,
                    ..passthrough_sender(self.model, &self.account_id, false)
                };
                request::clean_responses_request(&self.body, self.summary, &sender)?
            }
            _ if self.summary.completion.is_some() => (RequestCleanup::default(), false),
            surface => (
                request::clean_request(surface, profile, &self.body, self.summary, Some(&rules)),
                false,
            ),
        };
        let (warnings, is_repaired) = (stripped.warnings.clone(), stripped.is_repaired);
        let is_budget_from_client = !stripped.makes_budget;
        let body = request::splice(&self.body, self.summary, &edits, stripped);
        let (body, fitted) = fit_to_vendor(self.model, self.surface, body);
        let warnings = [warnings, fitted].concat();
        self.reject_if_strict(&warnings)?;
        Ok(UpstreamRequest {
            body,
            warnings: [warnings, self.summary.rewritten.clone()].concat(),
            asks_for_stream: self.summary.stream,
            carries_thinking,
            output_limit,
            is_budget_from_client,
            is_repaired,
            cache_marks: (self.summary.features.cache_markers).then_some(CacheMarkerOrigin::Caller),
            translation: None,
        })
    }

    /// Returns the rules for the parts that the model refuses in its own protocol.
    fn repair_rules(
        &self,
        output_limit: Option<u64>,
        thinking_budget: Option<u64>,
    ) -> RepairRules<'_> {
        let is_interleaved = self.is_interleaved && self.model.vendor.profile.takes_betas;
        RepairRules {
            output_limit,
            thinking_budget,
            is_interleaved,
            ..self.model.repair_rules()
        }
    }

    /// Returns whether the request is passed on unchanged, except for the model's name and its
    /// limits. The gateway does not parse the body of such a request again.
    pub fn is_unmodified_passthrough(&self) -> bool {
        let needs_cleaning = || {
            request::needs_cleaning(
                self.surface,
                &self.model.vendor.profile,
                self.summary,
                Some(&self.repair_rules(None, None)),
            )
        };
        self.model.passes_through(self.surface)
            && self.surface != Protocol::Responses
            && !self.model.vendor.profile.alternates
            && !self
                .model
                .vendor
                .profile
                .refuses_beyond_cleaning(self.surface, false)
            && (self.summary.completion.is_some() || !needs_cleaning())
    }

    /// Returns whether only this model may answer, and nothing of the body may be left out.
    pub fn is_fixed(&self) -> bool {
        self.strict || self.summary.completion.is_some()
    }

    /// Returns the name of the output limit that the gateway sets at the vendor.
    fn upstream_limit_field(&self) -> &'static str {
        match self.summary.completion {
            Some(_) => "max_tokens",
            None => self.model.output_limit_field(),
        }
    }

    /// Lowers the client's own thinking budget in a translated body.
    fn set_thinking_budget(&self, body: &Bytes, budget: u64) -> Result<Bytes, Failure> {
        let summary = request::read_summary(self.model.protocol(), body)?;
        let edits = RequestEdits {
            model: &summary.model,
            output_limit: None,
            output_limit_field: self.model.output_limit_field(),
            thinking_budget: Some(budget),
            include_usage: false,
        };
        Ok(request::rewrite(body, &summary, &edits))
    }

    /// Rejects a request of strict mode if its encoding produced any warning.
    pub fn reject_if_strict(&self, warnings: &[String]) -> Result<(), Failure> {
        match warnings.first().filter(|_| self.strict) {
            Some(token) => Err(Failure::new(
                Kind::InvalidRequest,
                format!("Strict mode: {token}"),
            )),
            None => Ok(()),
        }
    }

    pub fn encode_and_quote(&self) -> Result<QuotedRequest, Failure> {
        let encoded = self.encode(None, None)?;
        let is_changed = encoded.translation.is_some() || encoded.is_repaired;
        let mut translated = match is_changed || self.surface == Protocol::Responses {
            // The gateway wrote or changed this body, so it parses without an error.
            true => {
                let summary =
                    request::read_summary(self.model.protocol(), &encoded.body.to_bytes())?;
                Some(Box::new(summary))
            }
            false => None,
        };
        let client_bytes = self.summary.features.content.max_text_bytes();
        let text_bytes = match &translated {
            Some(summary) => client_bytes.max(summary.features.content.max_text_bytes()),
            None => client_bytes,
        };
        if let Some(summary) = &mut translated {
            // The gateway can lower or remove a budget that it set itself.
            summary.thinking_budget = summary
                .thinking_budget
                .filter(|_| encoded.is_budget_from_client);
        }
        let quote = self.quote(translated.as_deref().unwrap_or(self.summary), text_bytes)?;
        Ok(QuotedRequest {
            encoded,
            translated,
            quote,
        })
    }

    /// Quotes a body with this summary and this number of text bytes.
    pub fn quote(&self, summary: &RequestSummary, text_bytes: u64) -> Result<Quote, Failure> {
        let min_output = self.settings.limits.min_output_tokens;
        quote::quote(self.model, self.surface, summary, text_bytes, min_output)
    }

    /// Encodes the request again with an output limit of at most `limit`, if the limit is lower. A
    /// limit that is changed anyway is also lowered to what the model takes.
    pub fn clamp_output(
        &self,
        quoted: QuotedRequest,
        limit: u64,
    ) -> Result<UpstreamRequest, Failure> {
        if !quoted.is_lowered_by(limit) {
            return Ok(quoted.encoded);
        }
        let limit = limit.min(self.model.max_output_tokens);
        let translated = quoted.translated;
        let budget = clamp_thinking_budget(
            self.settings,
            translated.as_deref().unwrap_or(self.summary),
            limit,
        );
        let mut encoded = self.encode(Some(limit), budget)?;
        encoded
            .warnings
            .push(format!("clamped:{}", self.output_limit_field()));
        let clamped = budget.map(|_| "clamped:thinking.budget_tokens".to_owned());
        encoded
            .warnings
            .extend(clamped.filter(|clamped| !encoded.warnings.contains(clamped)));
        Ok(encoded)
    }

    /// Returns the name of the output limit's field in the client's protocol.
    fn output_limit_field(&self) -> &'static str {
        let default_field = match self.surface {
            surface if surface == self.model.protocol() => self.upstream_limit_field(),
            Protocol::Chat => "max_completion_tokens",
            Protocol::Responses => "max_output_tokens",
            Protocol::Messages => "max_tokens",
        };
        self.summary
            .output_limit
            .map_or(default_field, |limit| limit.field)
    }

    /// Returns the keep-alive that the gateway sends to a stream's client while the vendor is
    /// silent. A passed-through stream needs one too, because no vendor sends keep-alives before
    /// its first event. The gateway passes a stream on event by event, so a keep-alive never splits
    /// an event.
    pub fn keep_alive(&self, sequencer: Option<EventSequencer>) -> Option<KeepAlive> {
        self.summary
            .stream
            .then(|| KeepAlive::new(self.surface, sequencer))
    }

    /// Returns the preview flags for the vendor, joined by commas, and the warning if a flag was
    /// dropped, because it is not priced or the vendor takes none.
    pub fn filter_preview_flags(&self, flags: &[String]) -> (Option<String>, Option<String>) {
        if self.model.protocol() != self.surface {
            return (None, None);
        }
        let takes_betas = self.model.vendor.profile.takes_betas;
        let is_sent = |flag: &&str| {
            let widens = |(start, tokens): &(&str, u64)| {
                flag.starts_with(start) && self.model.context_tokens < *tokens
            };
            takes_betas && !WIDE_CONTEXT_FLAGS.iter().any(widens)
        };
        let kept: Vec<_> = flags.iter().map(String::as_str).filter(is_sent).collect();
        let dropped = (kept.len() < flags.len()).then(|| "dropped:anthropic-beta".to_owned());
        ((!kept.is_empty()).then(|| kept.join(",")), dropped)
    }
}

/// Returns whether a passed-on request asks the vendor for the usage of its stream.
fn includes_usage(model: &CatalogModel, surface: Protocol, summary: &RequestSummary) -> bool {
    let profile = &model.vendor.profile;
    let takes_options = profile.takes("stream_options") && !summary.reports_usage_unasked();
    surface == Protocol::Chat && summary.stream && takes_options
}

/// Describes the sender of a request that is passed on in the vendor's own protocol.
fn passthrough_sender<'a>(
    model: &'a CatalogModel,
    account_id: &'a str,
    without_reasoning: bool,
) -> PassthroughContext<'a> {
    let mut sold = PerTool::default();
    for tool in ServerTool::ALL {
        *sold.get_mut(tool) = model.price.features.tool_price(tool).is_some();
    }
    let (profile, repair) = (&model.vendor.profile, model.repair_rules());
    PassthroughContext {
        account_id,
        profile,
        sold,
        without_reasoning,
        model: &model.id,
        repair,
    }
}

/// Returns the input of a translation, with the current time.
pub(in crate::edge) fn translation_request<'a>(
    model: &'a CatalogModel,
    surface: Protocol,
    body: &'a [u8],
    (account_id, request_id): (&'a str, &'a str),
    output_limit: Option<u64>,
) -> translate::TranslationRequest<'a> {
    let target = TranslationTarget {
        upstream_model: &model.upstream_model,
        public_model: &model.id,
        max_output_tokens: model.max_output_tokens,
        profile: &model.vendor.profile,
        accepts: &model.accepts,
    };
    let clock = clock::now_seconds;
    let estimator = UsageEstimator::default();
    translate::TranslationRequest {
        surface,
        body,
        target,
        account_id,
        output_limit,
        strict: false,
        clock,
        request_id,
        estimator,
    }
}

/// Returns the lowered thinking budget, or `None` if it need not change. A budget must stay below
/// the output limit.
fn clamp_thinking_budget(settings: &Settings, summary: &RequestSummary, limit: u64) -> Option<u64> {
    let budget = summary.thinking_budget?;
    let max_budget = limit
        .saturating_sub(settings.limits.min_output_tokens)
        .max(quote::MIN_THINKING_TOKENS);
    (budget > max_budget).then_some(max_budget)
}

/// Prefix of the preview flag that lets a model think between its tool calls, with a budget larger
/// than the output limit.
const INTERLEAVED_FLAG_PREFIX: &str = "interleaved-thinking-";

pub(super) fn is_interleaved(flags: &[String]) -> bool {
    flags
        .iter()
        .any(|flag| flag.starts_with(INTERLEAVED_FLAG_PREFIX))
}

/// Preview flags that widen the context, each with the context's length in tokens. For a model with
/// a smaller context, the quote and the hold would not cover that number of tokens.
const WIDE_CONTEXT_FLAGS: &[(&str, u64)] = &[("context-1m-", 1_000_000)];
