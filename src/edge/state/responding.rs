//! Holds the state of the vendor's response: its kind, and the part that the gateway has received.
//! The next attempt replaces this state.
//!
//! This file must not read or write response bytes: `edge/response/` does.

use crate::edge::intake::ContentCoding;
use base::telemetry::METRICS;
use config::catalog::CatalogModel;
use llm_protocol::capabilities::CompletionsApi;
use llm_protocol::failure::{self, Failure};
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::metered::{MeteredAnswer, MeteredForm};
use llm_protocol::request::RequestSummary;
use llm_protocol::responses::EventSequencer;
use llm_protocol::translate::StreamTranslation;
use llm_protocol::usage::{MeteredUsage, MeteringTerms, Usage};
use llm_protocol::vendor_response::ResponseStream;
use std::time::Instant;

pub struct Responding {
    /// True to remove the usage, which only the gateway requested from the vendor.
    pub(in crate::edge) hide_usage: bool,
    /// Context of the response's translation. `None` if the response is passed on.
    pub(in crate::edge) translation: Option<ResponseContext>,
    /// The gateway's own estimate of a token count, in case the vendor does not offer that path.
    pub(in crate::edge) estimated_count: Option<u64>,
    /// Number of choices that the client requested.
    pub(in crate::edge) choices: u64,
    /// Number of choices that the vendor generates.
    pub(in crate::edge) drafts: u64,
    /// Set if the request is for completions.
    pub(in crate::edge) completions: Option<CompletionsApi>,
    /// Seed for the ids of calls that a chat vendor sends without one. `None` if the client reads
    /// `function_call`, the older form of calls, which the gateway does not repair.
    pub(in crate::edge) call_seed: Option<String>,
    /// Time at which the header of the running attempt's response arrived.
    pub(in crate::edge) answered_at: Option<Instant>,
    pub(in crate::edge) client_gets_stream: bool,
    pub(in crate::edge) mode: ResponseMode,
    /// Whether the answer of a metered endpoint passes piece by piece, because it is long.
    pub(in crate::edge) is_passing: bool,
    /// The form of the answer of a metered endpoint.
    pub answer_form: MeteredForm,
    /// Whether the answer of a metered endpoint must have a length: a client of HTTP/1.0 takes an
    /// answer without one for whole wherever it ends.
    pub(in crate::edge) needs_length: bool,
    /// Usage of a whole response that is not passed on.
    pub(in crate::edge) unbilled_usage: Option<Usage>,
    /// Events that preceded a failure in the same piece. The gateway sends them before the failure.
    pub unsent: Vec<u8>,
    /// The vendor's id of the request, as the client gets it.
    pub(in crate::edge) header_id: Option<String>,
    /// The id of the answer, as the client gets it.
    pub(in crate::edge) answer_id: Option<String>,
}

pub(in crate::edge) enum ResponseMode {
    /// No header has arrived.
    Waiting,
    /// The response has a success status, but too few bytes to tell its form.
    Undecided {
        /// True if the content type announces a stream of events.
        is_named_events: bool,
        opening: Vec<u8>,
    },
    Stream(Box<dyn ResponseStream>, OpenStreamGuard),
    /// The vendor streams, but the client wants the whole response.
    Fold {
        stream: Box<StreamTranslation>,
        bytes: usize,
    },
    /// A whole JSON response, or a response that the gateway must parse before it knows the status.
    /// `context` converts the response; `None` passes it on.
    Whole {
        kept: Vec<u8>,
        context: Option<Box<ResponseContext>>,
    },
    /// The answer of a metered endpoint.
    Metered {
        answer: Box<MeteredAnswer>,
        /// What the client may have of it, and has not got yet.
        held: Vec<u8>,
    },
    Error {
        status: u16,
        retry_after: Option<String>,
        coding: Option<ContentCoding>,
        body: Vec<u8>,
    },
    /// The response was released completely, or failed.
    Over,
}

/// Counts an open stream in the metrics until the guard is dropped.
pub(in crate::edge) struct OpenStreamGuard;

impl OpenStreamGuard {
    pub(in crate::edge) fn new() -> Self {
        METRICS.streams_open.inc();
        Self
    }
}

impl Drop for OpenStreamGuard {
    fn drop(&mut self) {
        METRICS.streams_open.dec();
    }
}

impl Responding {
    pub fn new(
        request_id: &str,
        summary: &RequestSummary,
        translation: Option<ResponseContext>,
        estimated_count: Option<u64>,
    ) -> Self {
        let (mode, unsent) = (ResponseMode::Waiting, Vec::new());
        Self {
            hide_usage: !summary.include_usage && !summary.reports_usage_unasked(),
            translation,
            estimated_count,
            choices: summary.choices,
            drafts: summary.drafts(),
            completions: summary.completion.map(|completion| completion.api),
            call_seed: (!summary.has_functions()).then(|| request_id.to_owned()),
            answered_at: None,
            client_gets_stream: false,
            mode,
            is_passing: false,
            answer_form: MeteredForm::default(),
            needs_length: false,
            unbilled_usage: None,
            unsent,
            header_id: None,
            answer_id: None,
        }
    }

    /// Resets the state for another model, before any byte of the response was processed.
    pub fn reset_for_fallback(&mut self, translation: Option<ResponseContext>) {
        self.translation = translation;
        self.unsent.clear();
        self.mode = ResponseMode::Waiting;
    }

    /// Ends the state of this attempt, because another attempt follows.
    pub fn abandon_attempt(&mut self) {
        if matches!(
            self.mode,
            ResponseMode::Undecided { .. }
                | ResponseMode::Stream(..)
                | ResponseMode::Fold { .. }
                | ResponseMode::Whole { .. }
                | ResponseMode::Metered { .. }
        ) {
            self.mode = ResponseMode::Waiting;
        }
    }

    /// Resets the state for a retry at the same model with another body.
    pub fn reset_for_retry(&mut self, mut translation: Option<ResponseContext>) {
        if let Some(context) = &mut translation {
            // The keep-alives continue with the sequencer that they already use.
            context.sequencer = self.sequencer().cloned().or(context.sequencer.take());
        }
        self.reset_for_fallback(translation);
    }

    /// Returns whether the client gets a stream. A failure of a stream that has begun must be sent
    /// inside it.
    pub fn is_stream(&self) -> bool {
        self.client_gets_stream
    }

    /// Returns the sequencer of the stream, if its events are numbered.
    pub fn sequencer(&self) -> Option<&EventSequencer> {
        let translated = || self.translation.as_ref()?.sequencer.as_ref();
        match &self.mode {
            ResponseMode::Stream(stream, _) => stream.sequencer().or_else(translated),
            _ => translated(),
        }
    }

    pub(in crate::edge) fn is_open_stream(&self) -> bool {
        matches!(self.mode, ResponseMode::Stream(..))
    }

    /// Returns the failure for a vendor's error status without a body, or with a body that broke
    /// off.
    pub fn failure_from_status(&self, model: &CatalogModel) -> Option<Failure> {
        let ResponseMode::Error {
            status,
            retry_after,
            ..
        } = &self.mode
        else {
            return None;
        };
        let retry_after = retry_after.as_deref();
        Some(failure::from_vendor_response(
            &model.vendor.profile,
            *status,
            retry_after,
            b"",
            &model.upstream_model,
            &model.id,
        ))
    }

    /// Returns the error status of the vendor's response.
    pub fn error_status(&self) -> Option<u16> {
        match self.mode {
            ResponseMode::Error { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Returns the reported usage and the number of generated bytes of a stream that did not end.
    pub fn partial_usage(&self) -> (Option<MeteredUsage>, Option<Usage>, u64) {
        match &self.mode {
            ResponseMode::Stream(pass, _) => {
                (pass.usage(), pass.usage_so_far(), pass.generated_bytes())
            }
            ResponseMode::Fold { stream, .. } => (
                stream.usage(),
                stream.usage_so_far(),
                stream.generated_bytes(),
            ),
            _ => (None, None, 0),
        }
    }

    /// Takes the usage of a response for which the vendor charges and no account is billed. The
    /// usage is estimated if the vendor reported none. A second call returns `None`, and so does a
    /// call before the vendor began to answer.
    pub fn take_unbilled_usage(&mut self, terms: &MeteringTerms) -> Option<Usage> {
        let has_begun = match &self.mode {
            ResponseMode::Stream(pass, _) => pass.has_started() && !pass.is_complete(),
            ResponseMode::Fold { stream, .. } => stream.has_started() && !stream.is_complete(),
            _ => return self.unbilled_usage.take(),
        };
        let (usage, reported_usage, generated_bytes) = self.partial_usage();
        let usage = usage.map(|metered| metered.usage);
        has_begun.then(|| {
            usage.unwrap_or_else(|| terms.estimator.usage(reported_usage, generated_bytes))
        })
    }
}
