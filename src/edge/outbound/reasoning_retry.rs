//! The request without its reasoning, for a vendor that refused the reasoning: what the gateway
//! keeps to encode it, and the encoding.
//!
//! This file must not decide that a vendor refused the reasoning: `response/error.rs` and
//! `upstream/attempts.rs` do.

use super::{
    OutboundRequest, UpstreamRequest, includes_usage, passthrough_sender, translation_request,
};
use bytes::Bytes;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use llm_protocol::capabilities::repair_rules::RepairRules;
use llm_protocol::failure::Failure;
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::request::{self, PassthroughContext, RequestEdits};
use llm_protocol::translate::{self, TranslatedRequest};
use llm_protocol::usage::UsageEstimator;
use std::sync::Arc;

/// What is needed to encode a translated request again.
pub struct RetryWithoutReasoning {
    pub surface: Protocol,
    /// Strict mode: no retry if anything else would be lost.
    pub strict: bool,
    /// Body of the client's request.
    pub body: Bytes,
    pub output_limit: Option<u64>,
    pub account_id: Arc<str>,
    pub request_id: String,
    /// Estimator of the usage that the caller gets if the vendor reports none.
    pub estimator: UsageEstimator,
}

impl OutboundRequest<'_> {
    /// Returns what a retry without reasoning needs, if the vendor may refuse the reasoning in the
    /// request. `is_fallback`: the request goes to a fallback model, with another model's reasoning
    /// passed on unchanged.
    pub(in crate::edge) fn retry_without_reasoning(
        &self,
        encoded: &UpstreamRequest,
        is_fallback: bool,
    ) -> Option<RetryWithoutReasoning> {
        // Responses bodies show whether they carry reasoning, and a chat vendor that refuses it
        // receives none.
        let has_none =
            self.surface == Protocol::Chat && self.model.vendor.profile.refuses_reasoning();
        let is_from_another_model = is_fallback
            && self.model.passes_through(self.surface)
            && self.surface != Protocol::Responses
            && !has_none;
        // Reasoning in the gateway's own reasoning tokens is no loss for the caller. Chat has no
        // such tokens.
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

/// A request that was encoded again.
pub struct ReencodedRequest {
    pub body: Bytes,
    pub warnings: Vec<String>,
    /// Context of the response's translation.
    pub translation: Option<ResponseContext>,
}

/// Encodes the request without its reasoning, after the vendor refused that.
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
        let body = request::rewrite_cleaned(&retry.body, &summary, &edits, stripped);
        return Ok(ReencodedRequest {
            body,
            warnings,
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
    Ok(ReencodedRequest {
        body,
        warnings,
        translation: Some(translation),
    })
}
