//! Encodes a request again without its reasoning, for a vendor that refused the reasoning.
//!
//! This file must not decide that a vendor refused the reasoning: `response/error.rs` and
//! `upstream/attempts.rs` do.

use super::{
    OutboundRequest, UpstreamRequest, fit_to_vendor, includes_usage, passthrough_sender,
    translation_request,
};
use bytes::Bytes;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use llm_protocol::capabilities::repair_rules::RepairRules;
use llm_protocol::failure::Failure;
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::request::{self, PassthroughContext, RequestBody, RequestEdits};
use llm_protocol::translate::{self, TranslatedRequest};
use llm_protocol::usage::UsageEstimator;
use std::sync::Arc;

/// State for encoding a translated request again.
pub struct RetryWithoutReasoning {
    pub surface: Protocol,
    /// True if the request is strict. Then the gateway does not retry if anything but the reasoning
    /// would be lost.
    pub strict: bool,
    pub body: Bytes,
    pub output_limit: Option<u64>,
    pub account_id: Arc<str>,
    pub request_id: String,
    /// Estimates the usage to report to the client if the vendor reports none.
    pub estimator: UsageEstimator,
}

impl OutboundRequest<'_> {
    /// Returns the state for a retry without reasoning, if the vendor may refuse the reasoning in
    /// the request. `is_fallback` says that the request goes to a fallback model, which gets
    /// another model's reasoning unchanged.
    pub(in crate::edge) fn retry_without_reasoning(
        &self,
        encoded: &UpstreamRequest,
        is_fallback: bool,
    ) -> Option<RetryWithoutReasoning> {
        // A responses body shows whether it carries reasoning, and a chat vendor that refuses
        // reasoning receives none.
        let has_none =
            self.surface == Protocol::Chat && self.model.vendor.profile.refuses_reasoning();
        let is_from_another_model = is_fallback
            && self.model.passes_through(self.surface)
            && self.surface != Protocol::Responses
            && !has_none;
        // Dropping reasoning in the gateway's own reasoning tokens loses nothing for the client.
        // Chat has no such tokens.
        let may = !self.strict || encoded.translation.is_some() && self.surface != Protocol::Chat;
        ((encoded.carries_thinking || is_from_another_model) && may).then(|| {
            RetryWithoutReasoning {
                surface: self.surface,
                strict: self.strict,
                body: self.body.clone(),
                output_limit: encoded.output_limit,
                account_id: Arc::clone(&self.account_id),
                request_id: self.request_id.to_owned(),
                estimator: self.turn.estimator(),
            }
        })
    }
}

pub struct ReencodedRequest {
    pub body: RequestBody,
    pub warnings: Vec<String>,
    pub translation: Option<ResponseContext>,
}

/// Encodes the request without its reasoning, after the vendor refused the reasoning.
///
/// # Errors
/// Returns an error if the request cannot be encoded without its reasoning.
pub fn encode_without_reasoning(
    retry: &RetryWithoutReasoning,
    model: &CatalogModel,
) -> Result<ReencodedRequest, Failure> {
    if model.passes_through(retry.surface) {
        let summary = request::read_summary(retry.surface, &retry.body)?;
        let edits = RequestEdits {
            model: &model.upstream_model,
            output_limit: retry.output_limit,
            output_limit_field: model.output_limit_field(),
            thinking_budget: None,
            include_usage: includes_usage(model, retry.surface, &summary),
        };
        let rules = RepairRules {
            output_limit: retry.output_limit,
            ..model.repair_rules()
        };
        let stripped = match retry.surface {
            Protocol::Responses => {
                let sender = PassthroughContext {
                    repair: rules,
                    ..passthrough_sender(model, &retry.account_id, true)
                };
                request::clean_responses_request(&retry.body, &summary, &sender)?.0
            }
            surface => {
                request::remove_reasoning(surface, &model.vendor.profile, &retry.body, &rules)
                    .ok_or_else(|| {
                        Failure::invalid_param(
                            surface,
                            "messages",
                            "contain no reasoning that the gateway could remove",
                        )
                    })?
            }
        };
        let warnings = stripped.warnings.clone();
        let body = request::splice(&retry.body, &summary, &edits, stripped);
        let (body, fitted) = fit_to_vendor(model, retry.surface, body);
        return Ok(ReencodedRequest {
            body,
            warnings: [warnings, fitted].concat(),
            translation: None,
        });
    }
    let input = translation_request(
        model,
        retry.surface,
        &retry.body,
        (&retry.account_id, &retry.request_id),
        retry.output_limit,
    );
    let input = translate::TranslationRequest {
        estimator: retry.estimator,
        ..input
    };
    let TranslatedRequest {
        body,
        warnings,
        response_context: translation,
        ..
    } = translate::translate_request(&input, true)?;
    let (body, fitted) = fit_to_vendor(model, retry.surface, body.into());
    Ok(ReencodedRequest {
        body,
        warnings: [warnings, fitted].concat(),
        translation: Some(translation),
    })
}
