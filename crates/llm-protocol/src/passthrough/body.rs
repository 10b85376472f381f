//! Passthrough of a whole JSON answer that came with a 2xx status.
//!
//! This file may change the model's name, the usage, and calls that a client would misread
//! (`call_repair.rs`), but nothing else. `vendor_response/completion.rs` decides when an answer is
//! complete.
//!
//! Read next: `failure.rs`, for bodies that are not answers.

use super::call_repair::{AnswerForm, CallRepair, RepairEdits};
use super::chat::ChatChunk;
use super::usage::{closing_brace, encode_usage, meter_billed, restate_usage, usage_edit};
use super::{chat, messages, responses};
use crate::Protocol;
use crate::ir::event::{ReadResult, UpstreamError};
use crate::json::{Span, edit, edit::JsonEdit};
use crate::usage::{ChatCounters, MeteredUsage, MeteringTerms, ServiceTier, Usage, VendorCounters};
use crate::vendor_response::{CompleteResponse, Completion, StopReasonStatus};
use bytes::Bytes;

/// Reads a whole answer, renames its model, and rewrites its usage if that differs from the bill by
/// `terms`. `call_seed` is the seed of [`StreamPassthrough::with_call_repair`].
///
/// [`StreamPassthrough::with_call_repair`]: super::StreamPassthrough::with_call_repair
///
/// # Errors
/// Returns an [`UpstreamError`] if the body is not an answer, is an error, or lacks its stop
/// reason.
pub fn rewrite_response(
    protocol: Protocol,
    public_model: &str,
    body: Bytes,
    terms: &MeteringTerms,
    call_seed: Option<&str>,
) -> ReadResult<CompleteResponse> {
    let (seen, completeness) = scan_body(protocol, &body, &terms.usage_paths, call_seed)?;
    completeness?;
    let usage = seen.usage(terms);
    let ResponseBodyScan {
        model,
        usage_at,
        counters,
        tier,
        generated_bytes,
        refused_free,
        repair,
    } = seen;
    let known_usage = usage
        .map(|metered| metered.usage)
        .or_else(|| tier.map(Usage::from_tier));
    let text = std::str::from_utf8(&body).unwrap_or_default();
    let restated = match counters.zip(usage) {
        Some((counters, usage)) => {
            let raw = usage_at.unwrap_or_default().slice(text);
            restate_usage(protocol, &counters, &usage, &Usage::default(), raw)
        }
        None if refused_free => None,
        // Report the estimate, which is billed instead.
        None => Some(encode_usage(
            protocol,
            &terms.estimator.usage(known_usage, generated_bytes),
        )),
    };
    let restated = restated.map(|usage| usage_edit(text, usage_at, closing_brace(text), usage));
    let edits = restated.into_iter().chain(repair.edits).collect();
    let body = edit_body(body.clone(), model, public_model, edits);
    Ok(CompleteResponse {
        body,
        usage,
        known_usage,
        generated_bytes,
        refused_free,
        warnings: repair.warnings,
    })
}

/// Reads a token count, which has no stop reason, and renames its model.
///
/// # Errors
/// Returns an [`UpstreamError`] if the body is an error or not JSON.
pub fn rewrite_token_count(
    protocol: Protocol,
    public_model: &str,
    body: Bytes,
) -> ReadResult<Bytes> {
    let (seen, _) = scan_body(protocol, &body, &[], None)?;
    Ok(edit_body(body, seen.model, public_model, Vec::new()))
}

/// Returns the usage of an incomplete answer, for which the operator must pay the vendor.
pub fn read_usage(protocol: Protocol, body: &[u8], terms: &MeteringTerms) -> Option<Usage> {
    let (seen, _) = scan_body(protocol, body, &terms.usage_paths, None).ok()?;
    Some(seen.usage(terms)?.usage)
}

const WHOLE: AnswerForm = AnswerForm {
    is_whole: true,
    is_misnamed: false,
};

/// The facts found in a whole body.
struct ResponseBodyScan {
    model: Option<Span>,
    /// Span of the usage, of any type.
    usage_at: Option<Span>,
    counters: Option<VendorCounters>,
    tier: Option<ServiceTier>,
    generated_bytes: u64,
    refused_free: bool,
    repair: RepairEdits,
}

impl ResponseBodyScan {
    fn usage(&self, terms: &MeteringTerms) -> Option<MeteredUsage> {
        Some(meter_billed(
            self.counters.as_ref()?,
            terms,
            self.generated_bytes,
        ))
    }
}

/// Reads a body. Returns an error if the body is one; the inner result says whether the body is a
/// complete answer.
fn scan_body(
    protocol: Protocol,
    body: &[u8],
    usage_paths: &[String],
    call_seed: Option<&str>,
) -> ReadResult<(ResponseBodyScan, ReadResult)> {
    let text = std::str::from_utf8(body).map_err(|_| UpstreamError::NotJson)?;
    let (seen, is_error, (is_answer, has_stopped)) = match protocol {
        Protocol::Chat => {
            let answer = chat::parse_chunk(text, usage_paths, true);
            let answer = answer.ok_or(UpstreamError::NotJson)?;
            let counters = answer.counters().map(|counters| ChatCounters {
                service_tier: answer.tier,
                ..counters
            });
            let ending = (answer.has_choices(), answer.is_finished());
            let repair = match call_seed {
                Some(seed) => CallRepair::new(seed).repair(&answer, text, WHOLE)?,
                None => RepairEdits::default(),
            };
            let ChatChunk {
                model,
                usage_at,
                tier,
                generated_bytes,
                is_error,
                ..
            } = answer;
            let counters = counters.map(VendorCounters::Chat);
            (
                ResponseBodyScan {
                    model,
                    usage_at,
                    counters,
                    tier,
                    generated_bytes,
                    refused_free: false,
                    repair,
                },
                is_error,
                ending,
            )
        }
        Protocol::Messages => {
            let answer = messages::parse_event(text).ok_or(UpstreamError::NotJson)?;
            let is_error = answer.kind.as_deref() == Some("error") || answer.has_error;
            let settled = answer.to_stream_state();
            let refused_free = settled.refused_free(answer.generated_bytes);
            let seen = ResponseBodyScan {
                model: answer.model,
                usage_at: answer.usage_at,
                counters: settled.usage.total(),
                tier: None,
                generated_bytes: answer.generated_bytes,
                refused_free,
                repair: RepairEdits::default(),
            };
            (
                seen,
                is_error,
                (
                    answer.has_content || answer.has_stop_reason,
                    answer.has_stop_reason,
                ),
            )
        }
        Protocol::Responses => {
            let answer = responses::parse_body(text).ok_or(UpstreamError::NotJson)?;
            let seen = ResponseBodyScan {
                model: answer.model,
                usage_at: answer.usage_at,
                counters: answer.counters().map(VendorCounters::Chat),
                tier: answer.tier,
                generated_bytes: answer.output_bytes,
                refused_free: false,
                repair: RepairEdits::default(),
            };
            (
                seen,
                answer.is_failure(),
                (answer.has_output, answer.has_ended),
            )
        }
    };
    if is_error {
        return Err(UpstreamError::from_error_body(body));
    }
    let mut completion = Completion::default();
    completion.set_stop_reason(StopReasonStatus::from_bool(has_stopped));
    let is_complete = is_answer && completion.record_last_event().is_ok();
    Ok((
        seen,
        if is_complete {
            Ok(())
        } else {
            Err(UpstreamError::Empty)
        },
    ))
}

/// Renames the model in a body and applies these edits.
fn edit_body(
    body: Bytes,
    model: Option<Span>,
    public_model: &str,
    mut edits: Vec<JsonEdit<'_>>,
) -> Bytes {
    if let Some(span) = model {
        edits.insert(0, JsonEdit::new(span, edit::json_string(public_model)));
    }
    if edits.is_empty() {
        return body;
    }
    let mut edited = Vec::with_capacity(body.len().saturating_add(public_model.len()));
    edit::apply_edits(&body, &mut edits, &mut edited);
    Bytes::from(edited)
}
