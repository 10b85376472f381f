//! Prepares the fallback models of a request: their quotes, and the request encoded for the next
//! one.
//!
//! If the quote required encoding, the gateway keeps the encoded request until the model's turn.
//! Otherwise it encodes the client's body when that turn comes. This file must not decide that a
//! model has failed: `edge/upstream/attempts.rs` does, and `edge/upstream/next_model.rs` switches
//! to the next one.

use super::{OutboundRequest, QuotedRequest, is_interleaved};
use crate::edge::turn::MeteredTurn;
use accounts::Principal;
use bytes::Bytes;
use config::Settings;
use config::catalog::CatalogModel;
use credits::pricing::Quote;
use llm_protocol::Protocol;
use llm_protocol::failure::Failure;
use llm_protocol::request::RequestSummary;
use std::collections::VecDeque;
use std::sync::Arc;

/// State that the gateway keeps to try fallback models.
pub struct Fallbacks {
    /// Models that have not been tried yet.
    pub(in crate::edge) remaining: VecDeque<PendingFallback>,
    /// The requested model's failure. Set once a fallback model is tried.
    pub(in crate::edge) failure: Option<Failure>,
    /// Output limit that the hold covers.
    pub(in crate::edge) limit: u64,
    pub(in crate::edge) version: Option<String>,
    pub(in crate::edge) flags: Vec<String>,
    pub(in crate::edge) surface: Protocol,
    /// Body of the client's request.
    pub(in crate::edge) body: Bytes,
    summary: RequestSummary,
    turn: MeteredTurn,
    account_id: Arc<str>,
    request_id: String,
}

/// A fallback model that has not been tried.
pub(in crate::edge) struct PendingFallback {
    pub(in crate::edge) model: Arc<CatalogModel>,
    /// The request encoded for the model, if the quote required encoding.
    pub(in crate::edge) quoted: Option<QuotedRequest>,
}

impl Fallbacks {
    /// Returns the models that could answer `request` as well, and the quote of the most expensive
    /// of all. A request that is strict or for completions gets only the model that it names.
    /// Models that the key may not use, and models for which the request cannot be encoded, are
    /// left out.
    pub(in crate::edge) fn from_request(
        request: &OutboundRequest<'_>,
        principal: &Principal,
        own: &Quote,
    ) -> Option<(Box<Self>, Quote)> {
        if request.model.fallback.is_empty() || request.is_fixed() {
            return None;
        }
        let allowed = request
            .model
            .fallback
            .iter()
            .filter(|id| principal.allows(id));
        let (mut remaining, mut quote) = (VecDeque::new(), own.clone());
        for model in allowed.filter_map(|id| request.settings.catalog.by_id(id)) {
            let model = model.select_variant(request.surface, request.summary);
            if let Ok((other, quoted)) = quote_fallback(&request.for_model(model)) {
                quote = quote.with_alternative(other.with_output_limit(model.max_output_tokens));
                remaining.push_back(PendingFallback {
                    model: Arc::clone(model),
                    quoted,
                });
            }
        }
        if remaining.is_empty() {
            return None;
        }
        let kept = Box::new(Self {
            remaining,
            failure: None,
            limit: quote.output_limit,
            version: None,
            flags: Vec::new(),
            surface: request.surface,
            body: request.body.clone(),
            summary: request.summary.clone(),
            turn: request.turn.clone(),
            account_id: Arc::clone(&request.account_id),
            request_id: request.request_id.to_owned(),
        });
        Some((kept, quote))
    }

    pub(in crate::edge) fn with_output_limit(mut self: Box<Self>, limit: u64) -> Box<Self> {
        self.limit = limit;
        self
    }

    /// Sets the parts of the client's header that vendors get.
    pub(in crate::edge) fn with_headers(
        mut self: Box<Self>,
        version: Option<String>,
        flags: Vec<String>,
    ) -> Box<Self> {
        self.version = version;
        self.flags = flags;
        self
    }

    pub fn has_remaining(&self) -> bool {
        !self.remaining.is_empty()
    }

    /// Returns the number of bytes of the bodies that wait for their model's turn.
    pub(in crate::edge) fn retained_bytes(&self) -> usize {
        self.remaining
            .iter()
            .filter_map(|remaining| remaining.quoted.as_ref())
            .map(|quoted| quoted.encoded.body.len())
            .sum()
    }

    /// Returns the requested model's failure, or `None` while that model is in use.
    pub fn original_failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    pub(in crate::edge) fn outbound_request<'a>(
        &'a self,
        settings: &'a Settings,
        model: &'a Arc<CatalogModel>,
    ) -> OutboundRequest<'a> {
        OutboundRequest {
            turn: self.turn.with_model(model),
            settings,
            surface: self.surface,
            model,
            strict: false,
            body: self.body.clone(),
            summary: &self.summary,
            request_id: &self.request_id,
            account_id: Arc::clone(&self.account_id),
            is_interleaved: is_interleaved(&self.flags),
        }
    }
}

/// Quotes the request for this model. The quote does not require encoding if the request is passed
/// on unchanged.
fn quote_fallback(
    request: &OutboundRequest<'_>,
) -> Result<(Quote, Option<QuotedRequest>), Failure> {
    if request.is_unmodified_passthrough() {
        return Ok((
            request.quote(
                request.summary,
                request.summary.features.content.max_text_bytes(),
            )?,
            None,
        ));
    }
    let quoted = request.encode_and_quote()?;
    Ok((quoted.quote.clone(), Some(quoted)))
}
