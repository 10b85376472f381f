//! The vendor's response: its status and header, then its bytes, until the last one may leave.
//!
//! This file enforces the rule that makes the bill correct: the journal has the usage before the
//! gateway releases the terminal event, or the whole JSON body, to the client. It is the only file
//! that touches response bytes. It must not await: Pingora's body filters are synchronous.

use super::context::{AdmittedRequest, RequestContext};
use super::intake::DeferredHead;
use super::{cpu_pool, finish, local_api, rate_limits, upstream};
use crate::billing::Hold;
use crate::catalog::CatalogModel;
use crate::clock;
use crate::failpoint::{self, Point};
use crate::store::ledger::RequestOutcome;
use crate::telemetry::METRICS;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use llm_protocol::Protocol;
use llm_protocol::capabilities::ModelCapabilities;
use llm_protocol::failure::{self, Failure, Kind};
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::keepalive;
use llm_protocol::passthrough::{self, StreamPassthrough};
use llm_protocol::responses::EventSequencer;
use llm_protocol::translate::{self, StreamTranslation};
use llm_protocol::usage::{MeteredUsage, MeteringTerms, Usage, UsageBounds, UsageVerdict};
use llm_protocol::vendor_response::{self, CompleteResponse, StreamConverter, UpstreamError};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use std::time::Instant;

/// Maximum size of a vendor's error body, in bytes. The gateway ignores the rest.
const MAX_ERROR_BODY_BYTES: usize = 262_144;

/// The state of the vendor's response.
pub struct UpstreamResponse {
    hide_usage: bool,
    /// Context of the response's translation. `None` if the response is passed on.
    recall: Option<ResponseContext>,
    /// The gateway's own estimate of a token count, in case the vendor does not offer that path.
    count: Option<u64>,
    /// Number of choices that the client requested.
    choices: u64,
    /// Whether the client gets a stream.
    streams: bool,
    mode: ResponseMode,
    /// Usage of a whole response that is not passed on.
    lost: Option<Usage>,
    /// Events that preceded a failure in the same piece. They are sent before the failure.
    pub unsent: Vec<u8>,
}

enum ResponseMode {
    /// No header has arrived.
    Waiting,
    Stream(StreamConverter, OpenStreamGuard),
    /// The vendor streams, but the client wants the whole response.
    Fold {
        stream: Box<StreamTranslation>,
        bytes: usize,
    },
    /// A whole JSON response, or one that the gateway must parse before it knows the status.
    Whole(Vec<u8>),
    Error {
        status: u16,
        retry_after: Option<String>,
        body: Vec<u8>,
    },
    /// Released completely, or failed.
    Over,
}

/// Counts a stream among the open ones.
struct OpenStreamGuard;

impl OpenStreamGuard {
    fn new() -> Self {
        METRICS.streams_open.inc();
        Self
    }
}

impl Drop for OpenStreamGuard {
    fn drop(&mut self) {
        METRICS.streams_open.dec();
    }
}

impl UpstreamResponse {
    /// `hide_usage`: a chat caller did not ask for the usage that the gateway requests from the
    /// vendor.
    pub fn new(
        hide_usage: bool,
        choices: u64,
        recall: Option<ResponseContext>,
        count: Option<u64>,
    ) -> Self {
        let (mode, unsent) = (ResponseMode::Waiting, Vec::new());
        Self {
            hide_usage,
            recall,
            count,
            choices,
            streams: false,
            mode,
            lost: None,
            unsent,
        }
    }

    /// Resets the state for another model, before any of the response was seen.
    pub fn reset_for_fallback(&mut self, recall: Option<ResponseContext>) {
        self.recall = recall;
        self.unsent.clear();
        self.mode = ResponseMode::Waiting;
    }

    /// Ends the state of this attempt, because another attempt follows.
    pub fn abandon_attempt(&mut self) {
        if matches!(
            self.mode,
            ResponseMode::Stream(..) | ResponseMode::Fold { .. } | ResponseMode::Whole(_)
        ) {
            self.mode = ResponseMode::Waiting;
        }
    }

    /// Resets the state for a retry at the same model with another body.
    pub fn reset_for_retry(&mut self, mut recall: Option<ResponseContext>) {
        if let Some(recall) = &mut recall {
            // The keep-alives continue with the sequencer that they already use.
            recall.voice = self.sequencer().cloned().or(recall.voice.take());
        }
        self.reset_for_fallback(recall);
    }

    /// Whether the client gets a stream. Once it has begun, a failure must be sent inside it.
    pub fn is_stream(&self) -> bool {
        self.streams
    }

    /// Returns how the stream numbers its events, if it does.
    pub fn sequencer(&self) -> Option<&EventSequencer> {
        match &self.mode {
            ResponseMode::Stream(StreamConverter::Same(pass), _) => pass.sequencer(),
            _ => self.recall.as_ref()?.voice.as_ref(),
        }
    }

    fn is_open_stream(&self) -> bool {
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
        let protocol = model.protocol();
        Some(failure::from_vendor_response(
            protocol,
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

    /// Returns what is known of a stream that did not end: usage, and number of generated bytes.
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

    /// Takes the usage that the vendor charges for a response that nobody is billed for, estimated
    /// if the vendor reported none. It is taken so that it is counted once. `None`: the vendor has
    /// not begun to answer.
    pub fn take_unbilled_usage(&mut self, terms: &MeteringTerms) -> Option<Usage> {
        let has_begun = match &self.mode {
            ResponseMode::Stream(pass, _) => pass.has_started() && !pass.is_complete(),
            ResponseMode::Fold { stream, .. } => stream.has_started() && !stream.is_complete(),
            _ => return self.lost.take(),
        };
        let (usage, learned, generated_bytes) = self.partial_usage();
        let usage = usage.map(|metered| metered.usage);
        has_begun.then(|| usage.unwrap_or_else(|| terms.estimator.usage(learned, generated_bytes)))
    }
}

/// Maximum size of a vendor's header, names and values together. Over HTTP/1.1 Pingora's own limit
/// applies; over HTTP/2 the library accepts 16 MiB.
const MAX_HEADER_BYTES: usize = 262_144;

/// Checks the vendor's header and replaces it with the gateway's.
///
/// # Errors
/// Returns an error if the header is too large, or if the status calls for another attempt and one
/// is possible.
pub fn filter_header(ctx: &mut RequestContext, header: &mut ResponseHeader) -> Result<()> {
    if header.status == StatusCode::SWITCHING_PROTOCOLS {
        return reject_protocol_switch(ctx);
    }
    if header.status.is_informational() {
        return Ok(());
    }
    if let Some(trace) = &mut ctx.trace {
        trace.record_status(header.status.as_u16());
    }
    let surface = ctx.surface;
    let Some(call) = ctx.call() else {
        return Ok(());
    };
    failpoint::hit(Point::VendorAnswered);
    let header_bytes: usize = header
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    if header_bytes > MAX_HEADER_BYTES {
        return Error::e_explain(
            ErrorType::InvalidHTTPHeader,
            "the vendor's header is too large",
        )
        .map_err(|error: Box<Error>| error.into_up());
    }
    let status = header.status.as_u16();
    call.vendor_answered = Some(Instant::now());
    call.reply.unsent.clear();
    call.reply.lost = None;
    let text = |name: &str| {
        header
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    let retry_after =
        text("retry-after").map(|value| normalize_retry_after(value, clock::now_ms()));
    if upstream::record_status(call, status, retry_after.as_deref()) {
        return Error::e_explain(
            ErrorType::HTTPStatus(status),
            "the vendor answered with this status",
        )
        .map_err(|error: Box<Error>| error.into_up());
    }
    let is_events = text("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    call.reply.mode = if header.status.is_success() {
        select_mode(call, surface, is_events)
    } else {
        ResponseMode::Error {
            status,
            retry_after,
            body: Vec::new(),
        }
    };
    if !header.status.is_success() {
        call.shared.mark_vendor_failed();
    }
    if status != 400 {
        // Only status 400 can mean that the vendor refused the reasoning.
        call.again = None;
    }
    let theirs = text("request-id").or_else(|| text("x-request-id"));
    let theirs = theirs
        .filter(|id| is_forwardable_id(id) && !id.contains(call.model.vendor.api_key.reveal()));
    let ours = build_response_header(
        ctx,
        if header.status.is_success() {
            200
        } else {
            status
        },
        theirs,
    )?;
    ctx.status = ours.status.as_u16();
    *header = ours;
    Ok(())
}

/// Handles a vendor that switches protocols. The gateway did not request that, and cannot read what
/// follows.
fn reject_protocol_switch(ctx: &mut RequestContext) -> Result<()> {
    if let Some(call) = ctx.call() {
        call.failure = Some(Failure::new(
            Kind::UpstreamFailed,
            "The vendor answered with status 101, although the request did not ask to switch protocols.",
        ));
        upstream::record_protocol_switch(call);
    }
    Error::e_explain(
        ErrorType::InvalidHTTPHeader,
        "the vendor switched protocols",
    )
    .map_err(|error: Box<Error>| error.into_up())
}

/// Builds the header that the client gets.
fn build_response_header(
    ctx: &mut RequestContext,
    status: u16,
    theirs: Option<String>,
) -> Result<ResponseHeader> {
    let (request_id, surface) = (ctx.request_id.clone(), ctx.surface);
    let mut ours = ResponseHeader::build_no_case(status, Some(10))?;
    if let Some(call) = ctx.call() {
        let reply = &mut call.reply;
        let made_stream =
            call.stream && reply.recall.is_some() && matches!(reply.mode, ResponseMode::Whole(_));
        let stream = made_stream || matches!(reply.mode, ResponseMode::Stream(..));
        reply.streams = stream;
        ours.insert_header(
            header::CONTENT_TYPE,
            if stream {
                "text/event-stream; charset=utf-8"
            } else {
                "application/json"
            },
        )?;
        ours.insert_header("x-request-id", &request_id)?;
        ours.insert_header("request-id", &request_id)?;
        if let Some(theirs) = theirs.and_then(|id| HeaderValue::from_str(&id).ok()) {
            ours.insert_header("x-upstream-request-id", theirs)?;
        }
        if stream {
            let voice = call.reply.sequencer().cloned();
            call.shared.set_terminal_error(move || {
                keepalive::encode_terminal_error(
                    surface,
                    voice.as_ref(),
                    &Failure::from_kind(Kind::UpstreamClosed),
                    &request_id,
                )
            });
            ours.insert_header(header::CACHE_CONTROL, "no-cache")?;
            ours.insert_header("x-accel-buffering", "no")?;
        }
        if !call.warnings.is_empty() {
            ours.insert_header("x-gateway-warnings", encode_warnings(&mut call.warnings))?;
        }
        if status == 200
            && let Some(hold) = &call.hold
        {
            for (name, value) in rate_limits::headers(surface, &hold.rate_limits(), clock::now_ms())
            {
                ours.insert_header(name, value)?;
            }
        }
        if let Some(mut keyed) = call.shared.take_idempotency() {
            keyed.set_headers(replayable_headers(&ours));
            call.shared.set_idempotency(Some(keyed));
        }
    }
    // Added after the copy that is kept for a replay: the replay may go to another page.
    if let Some(cors) = &ctx.cors {
        cors.apply(&mut ours)?;
    }
    if let Some(phases) = ctx.phases() {
        ours.insert_header("server-timing", phases.to_string())?;
    }
    Ok(ours)
}

/// Converts a vendor's `retry-after` to seconds, also if it is a date.
fn normalize_retry_after(retry_after: String, now_ms: i64) -> String {
    let Some(at_ms) = clock::http_date_ms(&retry_after) else {
        return retry_after;
    };
    at_ms
        .saturating_sub(now_ms)
        .max(0)
        .unsigned_abs()
        .div_ceil(1_000)
        .to_string()
}

/// Maximum length of a vendor's request id that is passed on, in bytes.
const MAX_ID_BYTES: usize = 128;

/// Whether a text is no more than a vendor's request id.
fn is_forwardable_id(text: &str) -> bool {
    let is_part =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    text.len() <= MAX_ID_BYTES && text.bytes().all(is_part)
}

/// Returns the header fields that a replay repeats: all except the ids, which belong to the
/// request, and the rate limits of that time.
fn replayable_headers(header: &ResponseHeader) -> Vec<(String, String)> {
    let is_id = |name: &HeaderName| {
        matches!(name.as_str(), "request-id" | "x-request-id")
            || name.as_str().contains("ratelimit")
    };
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = header.headers.iter().filter(|(name, _)| !is_id(name));
    headers
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}

/// Maximum length of the list of warnings, in bytes.
const MAX_WARNINGS_BYTES: usize = 1_024;
/// Replaces the rest of a longer list.
const TRUNCATION_MARK: &str = "...more";

/// Encodes the warnings as the value of one header, sorted.
fn encode_warnings(tokens: &mut [String]) -> Vec<u8> {
    tokens.sort();
    let all = tokens.join(", ");
    if all.len() <= MAX_WARNINGS_BYTES {
        return all.into_bytes();
    }
    let mut told = String::new();
    for token in tokens {
        if told.len() + token.len() + 2 + TRUNCATION_MARK.len() > MAX_WARNINGS_BYTES {
            break;
        }
        told.push_str(token);
        told.push_str(", ");
    }
    told.push_str(TRUNCATION_MARK);
    told.into_bytes()
}

/// Selects how to process a successful response.
fn select_mode(call: &AdmittedRequest, surface: Protocol, is_events: bool) -> ResponseMode {
    let event_bytes = to_usize(call.settings.limits.event_bytes);
    let vendor = call.model.protocol();
    match (&call.reply.recall, is_events) {
        (None, true) if call.stream => {
            let pass =
                StreamPassthrough::new(surface, &call.model.id, call.reply.hide_usage, event_bytes)
                    .with_request(call.metering_terms(), call.reply.choices);
            ResponseMode::Stream(
                StreamConverter::Same(Box::new(pass)),
                OpenStreamGuard::new(),
            )
        }
        // Events instead of a whole response are invalid, whether the response is passed on or
        // translated.
        (Some(recall), true) if call.stream || call.upstream.streams => {
            let recall = ResponseContext {
                usage_bounds: call.usage_bounds,
                ..recall.clone()
            };
            let stream = StreamTranslation::new(vendor, surface, recall, call.stream, event_bytes);
            if call.stream {
                ResponseMode::Stream(
                    StreamConverter::Translated(Box::new(stream)),
                    OpenStreamGuard::new(),
                )
            } else {
                ResponseMode::Fold {
                    stream: Box::new(stream),
                    bytes: 0,
                }
            }
        }
        _ => ResponseMode::Whole(Vec::new()),
    }
}

/// Passes a piece of the vendor's body on, or keeps it until the whole body is there.
///
/// # Errors
/// Returns an error if the response cannot continue. `call.failure` holds the reason.
pub fn filter_body(ctx: &mut RequestContext, body: &mut Option<Bytes>, end: bool) -> Result<()> {
    let surface = ctx.surface;
    let request_id = ctx.request_id.clone();
    let Some(call) = ctx.call() else {
        return Ok(());
    };
    let piece = body.take().unwrap_or_default();
    let mut status = None;
    let outcome = match &mut call.reply.mode {
        ResponseMode::Stream(..) => process_stream(call, &piece, end),
        ResponseMode::Fold { .. } => fold_stream(call, &piece, end),
        ResponseMode::Whole(kept) => {
            let limit = to_usize(call.settings.limits.response_buffer_bytes);
            match append_bounded(kept, &piece, limit) {
                Ok(()) if end => process_whole(call, surface),
                Ok(()) => Ok(None),
                Err(failure) => Err(failure),
            }
        }
        ResponseMode::Error { body: kept, .. } => {
            // The start of an error body is enough; the rest above the limit is ignored.
            let room = MAX_ERROR_BODY_BYTES
                .saturating_sub(kept.len())
                .min(piece.len());
            kept.extend_from_slice(piece.get(..room).unwrap_or_default());
            if end {
                let answer = process_error(call, surface, &request_id)?;
                status = Some(
                    call.failure
                        .as_ref()
                        .map_or(200, |failure| failure.status(surface)),
                );
                Ok(Some(answer))
            } else {
                Ok(None)
            }
        }
        ResponseMode::Waiting | ResponseMode::Over => Ok(None),
    };
    // The gateway itself ends a response that exceeds its buffer, so the vendor has not failed.
    if outcome
        .as_ref()
        .is_err_and(|failure| failure.kind != Kind::UpstreamEventTooLarge)
    {
        call.shared.mark_vendor_failed();
    }
    match outcome {
        Ok(bytes) => {
            *body = bytes;
            ctx.status = status.unwrap_or(ctx.status);
            Ok(())
        }
        Err(failure) if call.reply.is_open_stream() && call.shared.progress().has_begun() => {
            *body = Some(end_stream_with_failure(
                call,
                &failure,
                surface,
                &request_id,
            ));
            Ok(())
        }
        Err(failure) => {
            call.failure = Some(failure);
            Error::e_explain(
                ErrorType::InvalidHTTPHeader,
                "cannot use the vendor's answer",
            )
            .map_err(|error: Box<Error>| error.into_up())
        }
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn append_bounded(kept: &mut Vec<u8>, piece: &[u8], limit: usize) -> Result<(), Failure> {
    if kept.len().saturating_add(piece.len()) > limit {
        return Err(Failure::new(Kind::UpstreamFailed, RESPONSE_TOO_LARGE));
    }
    kept.extend_from_slice(piece);
    Ok(())
}

const RESPONSE_TOO_LARGE: &str = "The model's answer is larger than this gateway accepts.";

fn process_stream(
    call: &mut AdmittedRequest,
    piece: &[u8],
    end: bool,
) -> Result<Option<Bytes>, Failure> {
    let ResponseMode::Stream(pass, _) = &mut call.reply.mode else {
        return Ok(None);
    };
    if pass.is_complete() {
        return Ok(None);
    }
    if call.shared.progress().has_begun() {
        failpoint::hit(Point::MidStream);
        // No other model is tried any more.
        call.fallbacks = None;
    }
    // The translation of an event may be longer than the event.
    let mut out = Vec::with_capacity(piece.len().saturating_mul(2).saturating_add(256));
    let mut outcome = pass.push(piece, &mut out);
    if outcome.is_ok() && end && !pass.is_complete() {
        outcome = pass.finish(&mut out);
    }
    let is_opening = !pass.has_content() && !pass.is_complete();
    if pass.generated_bytes() > 0 {
        if let Some(after) = call
            .hold
            .as_mut()
            .and_then(|hold| hold.record_first_token())
            .filter(|_| call.stream)
        {
            METRICS.gen_ai.observe_first_token(&call.model.id, after);
        }
        let hides_output = match &call.model.accepts {
            // A chat vendor that shows its reasoning shows all of it; a messages vendor shows a
            // summary or nothing.
            ModelCapabilities::Chat(_) => call.model.hides_reasoning() && !pass.shows_thinking(),
            ModelCapabilities::Messages(_) => pass.shows_thinking(),
            // A responses vendor shows a summary or nothing.
            ModelCapabilities::Responses(_) => call.model.hides_reasoning(),
        };
        call.shared.set_hidden_reasoning(
            hides_output || call.turn.is_estimate_still_uncertain(pass.usage_so_far()),
        );
    }
    call.shared
        .set_finishing(pass.is_finishing(), pass.usage().is_some());
    if let Err(fault) = outcome {
        call.reply.unsent = out;
        return Err(handle_fault(call, &fault, is_opening));
    }
    let mut counted = ResponseUsage {
        usage: pass.usage(),
        learned: pass.usage_so_far(),
        generated_bytes: pass.generated_bytes(),
        refused_free: pass.refused_free(),
        cut: None,
    };
    let generated = counted.generated_bytes;
    if !pass.is_complete()
        && !pass.is_finishing()
        && exceeds_output_limit(
            &call.model,
            &call.usage_bounds,
            pass.counted_output(),
            generated,
        )
    {
        counted.cut = usage_at_hold(
            call.hold.as_ref(),
            &MeteringTerms::new(call.turn.estimator(), call.usage_bounds),
            &counted,
        );
    }
    if let Some(usage) = &counted.cut {
        pass.end_at_limit(usage, &mut out);
    }
    if pass.is_complete() {
        let is_cut = counted.cut.is_some();
        settle(call, counted)?;
        if is_cut {
            call.shared.complete_and_hang_up()
        } else {
            call.shared.set_completed()
        }
    }
    let progress = call.shared.progress();
    if is_opening
        && !progress.completed
        && !progress.has_begun()
        && call.shared.buffer_opening(&out)
    {
        return Ok(None);
    }
    let opening = call.shared.take_opening();
    let out = if opening.is_empty() {
        out
    } else {
        [opening, out].concat()
    };
    record_for_replay(call, &out);
    Ok((!out.is_empty()).then(|| out.into()))
}

/// Returns the failure that the client gets for a fault in a response, and updates the vendor's
/// state by the fault. `nothing_generated`: whether the vendor has generated nothing, so that an
/// error it sent is an explicit refusal of the request and not a failure in the middle of a
/// response.
fn handle_fault(
    call: &mut AdmittedRequest,
    fault: &UpstreamError,
    nothing_generated: bool,
) -> Failure {
    let failure = fault_failure(&call.model, fault);
    if let UpstreamError::Vendor(error) = fault {
        call.upstream.refused = nothing_generated;
        if error.refuses_key() {
            upstream::handle_refused_key(call, failure.kind);
        }
    }
    failure
}

/// Whether a response has exceeded its output limit because the vendor ignores it. The vendors that
/// defined the protocols respect it. The gateway believes the vendor's token count if that many
/// tokens can have been delivered; otherwise it counts only the bytes, at the smallest possible
/// number of tokens.
fn exceeds_output_limit(
    model: &CatalogModel,
    bounds: &UsageBounds,
    counted_output: u64,
    generated_bytes: u64,
) -> bool {
    let most = bounds.output;
    let certain = Usage::lower_bound(generated_bytes).output;
    let is_counted = counted_output > most && counted_output <= generated_bytes;
    !model.vendor.official && (certain > most || is_counted)
}

/// Returns the usage to bill for a response that is ended at its hold.
fn usage_at_hold(
    hold: Option<&Hold>,
    terms: &MeteringTerms,
    so_far: &ResponseUsage,
) -> Option<Usage> {
    let ResponseUsage {
        usage,
        learned,
        generated_bytes,
        ..
    } = *so_far;
    let usage = usage.map(|metered| metered.usage);
    Some(
        hold?.clamp_usage(usage.unwrap_or_else(|| terms.estimator.usage(learned, generated_bytes))),
    )
}

/// Checks, after an exchange broke off, whether the bytes so far are a complete response.
pub fn inspect_broken_response(call: &mut AdmittedRequest, surface: Protocol) {
    let ResponseMode::Whole(kept) = &call.reply.mode else {
        return;
    };
    // If the JSON value is closed, only the framing is missing.
    if kept
        .last()
        .is_some_and(|byte| matches!(byte, b'}' | b' ' | b'\n' | b'\r' | b'\t'))
    {
        let body = Bytes::copy_from_slice(kept);
        let is_whole = call.cpu.run_admitted(cpu_pool::work_of(&body), || {
            read_whole(call, surface, body).is_ok()
        });
        call.shared.set_finishing(is_whole, true);
    }
}

/// Ends a complete response whose vendor has broken off or sends nothing more. Returns `None` if
/// the response is not complete.
pub fn finish_complete_response(call: &mut AdmittedRequest, surface: Protocol) -> Option<Bytes> {
    let outcome = match &call.reply.mode {
        ResponseMode::Stream(pass, _) if pass.is_finishing() => process_stream(call, b"", true),
        ResponseMode::Fold { stream, .. } if stream.is_finishing() => fold_stream(call, b"", true),
        ResponseMode::Whole(_) if call.shared.progress().finishing => process_whole(call, surface),
        _ => return None,
    };
    outcome.ok().flatten()
}

/// Ends a stream that has begun with a failure that the client can read. The connection stays
/// usable.
fn end_stream_with_failure(
    call: &mut AdmittedRequest,
    failure: &Failure,
    surface: Protocol,
    request_id: &str,
) -> Bytes {
    let mut last = [
        call.shared.take_opening(),
        std::mem::take(&mut call.reply.unsent),
    ]
    .concat();
    last.extend_from_slice(&keepalive::encode_terminal_error(
        surface,
        call.reply.sequencer(),
        failure,
        request_id,
    ));
    call.failure = Some(failure.clone());
    finish::settle_or_release(call);
    call.shared.set_completed();
    call.reply.mode = ResponseMode::Over;
    last.into()
}

/// Returns the failure that the client gets for a fault in a response. Removes the vendor's key,
/// which a vendor may quote.
fn fault_failure(model: &CatalogModel, fault: &UpstreamError) -> Failure {
    fault
        .to_failure(model.protocol(), &model.upstream_model, &model.id)
        .redact_secret(model.vendor.api_key.reveal())
}

/// Reads a piece of a stream for a client that waits for the whole response.
fn fold_stream(
    call: &mut AdmittedRequest,
    piece: &[u8],
    end: bool,
) -> Result<Option<Bytes>, Failure> {
    let limit = to_usize(call.settings.limits.response_buffer_bytes);
    let ResponseMode::Fold { stream, bytes } = &mut call.reply.mode else {
        return Ok(None);
    };
    *bytes = bytes.saturating_add(piece.len());
    if *bytes > limit {
        // The gateway itself ends the response, so what was generated is billed.
        return Err(Failure::new(
            Kind::UpstreamEventTooLarge,
            RESPONSE_TOO_LARGE,
        ));
    }
    let mut out = Vec::new();
    let mut outcome = stream.push(piece, &mut out);
    if outcome.is_ok() && end && !stream.is_complete() {
        outcome = stream.finish(&mut out);
    }
    let has_generated = stream.generated_bytes() > 0;
    call.shared
        .set_finishing(stream.is_finishing(), stream.usage().is_some());
    if let Err(fault) = outcome {
        return Err(handle_fault(call, &fault, !has_generated));
    }
    let mut counted = ResponseUsage {
        usage: stream.usage(),
        learned: stream.usage_so_far(),
        generated_bytes: stream.generated_bytes(),
        refused_free: stream.refused_free(),
        cut: None,
    };
    let generated = counted.generated_bytes;
    if !stream.is_complete()
        && !stream.is_finishing()
        && exceeds_output_limit(
            &call.model,
            &call.usage_bounds,
            stream.counted_output(),
            generated,
        )
    {
        counted.cut = usage_at_hold(
            call.hold.as_ref(),
            &MeteringTerms::new(call.turn.estimator(), call.usage_bounds),
            &counted,
        );
    }
    if let Some(usage) = &counted.cut {
        stream.end_at_limit(usage, &mut out);
    }
    if !stream.is_complete() || out.is_empty() {
        return Ok(None);
    }
    let is_cut = counted.cut.is_some();
    let told = release_whole(call, out.into(), counted)?;
    if is_cut {
        call.shared.complete_and_hang_up();
    }
    Ok(told)
}

fn process_whole(call: &mut AdmittedRequest, surface: Protocol) -> Result<Option<Bytes>, Failure> {
    let ResponseMode::Whole(kept) = &mut call.reply.mode else {
        return Ok(None);
    };
    let kept = Bytes::from(std::mem::take(kept));
    let (outcome, lost) = call.cpu.run_admitted(cpu_pool::work_of(&kept), || {
        let outcome = read_whole(call, surface, kept.clone());
        let lost = outcome.as_ref().err().and_then(|_| {
            passthrough::read_usage(call.model.protocol(), &kept, &call.metering_terms())
        });
        (outcome, lost)
    });
    let whole = match outcome {
        Ok(whole) => whole,
        Err(fault) => {
            call.reply.lost = lost;
            return Err(handle_fault(call, &fault, true));
        }
    };
    let CompleteResponse {
        body,
        usage,
        learned,
        generated_bytes,
        refused_free,
    } = whole;
    release_whole(
        call,
        body,
        ResponseUsage {
            usage,
            learned,
            generated_bytes,
            refused_free,
            cut: None,
        },
    )
}

fn read_whole(
    call: &AdmittedRequest,
    surface: Protocol,
    body: Bytes,
) -> Result<CompleteResponse, UpstreamError> {
    let (vendor, model) = (call.model.protocol(), &call.model.id);
    if call.reply.count.is_some() {
        let body = passthrough::rewrite_token_count(vendor, model, body)?;
        return Ok(CompleteResponse {
            body,
            usage: None,
            learned: None,
            generated_bytes: 0,
            refused_free: false,
        });
    }
    let recall = call.reply.recall.clone();
    vendor_response::convert_response(
        vendor,
        surface,
        model,
        recall,
        call.reply.streams,
        body,
        &call.metering_terms(),
    )
}

/// Releases a whole response, after the debit.
fn release_whole(
    call: &mut AdmittedRequest,
    body: Bytes,
    counted: ResponseUsage,
) -> Result<Option<Bytes>, Failure> {
    call.reply.mode = ResponseMode::Over;
    let mut late = DeferredHead {
        content_length: Some(body.len()),
        ..DeferredHead::default()
    };
    if let Some(credits) = settle(call, counted)? {
        let value = HeaderValue::from_str(&credits.to_string());
        late.headers
            .extend(value.ok().map(|value| ("x-gateway-credits", value)));
        if let Some(mut keyed) = call.shared.take_idempotency() {
            keyed.add_header("x-gateway-credits", credits.to_string());
            call.shared.set_idempotency(Some(keyed));
        }
    }
    call.shared.set_deferred_head(late);
    call.shared.set_completed();
    record_for_replay(call, &body);
    Ok(Some(body))
}

/// The counts of a response.
struct ResponseUsage {
    /// Set once the vendor has reported the complete usage.
    usage: Option<MeteredUsage>,
    /// Usage as far as the vendor has reported it.
    learned: Option<Usage>,
    generated_bytes: u64,
    refused_free: bool,
    /// Usage to bill for a response that was ended at its hold.
    cut: Option<Usage>,
}

/// Records the bytes that are about to leave for the request's idempotency key. With the last
/// bytes, commits the recording.
fn record_for_replay(call: &mut AdmittedRequest, bytes: &[u8]) {
    let Some(mut keyed) = call.shared.take_idempotency() else {
        return;
    };
    keyed.push_body(bytes);
    if call.shared.progress().completed {
        keyed.complete();
    } else {
        call.shared.set_idempotency(Some(keyed));
    }
}

/// Debits the account, before the last byte leaves.
fn settle(
    call: &mut AdmittedRequest,
    answer: ResponseUsage,
) -> Result<Option<credits::money::Micro>, Failure> {
    let ResponseUsage {
        usage,
        learned,
        generated_bytes,
        refused_free,
        cut,
    } = answer;
    let Some(mut hold) = call.hold.take() else {
        return Ok(None);
    };
    let outcome = match (refused_free, call.shared.progress().has_client_left()) {
        (true, _) => RequestOutcome::RefusedFree,
        (false, true) => RequestOutcome::ClientLeft,
        (false, false) if cut.is_some() => RequestOutcome::GatewayEnded,
        (false, false) => RequestOutcome::Completed,
    };
    let verdict = match usage {
        _ if cut.is_some() => UsageVerdict::Estimated,
        Some(metered) => metered.verdict,
        None if refused_free => UsageVerdict::Exact,
        None => UsageVerdict::Estimated,
    };
    let is_exact = verdict == UsageVerdict::Exact && !refused_free;
    if let Some(metered) = usage.filter(|_| is_exact) {
        call.turn.remember(&metered.usage, generated_bytes);
    }
    let usage = cut.or(usage.map(|metered| metered.usage));
    let usage = usage.unwrap_or_else(|| call.estimate(learned, generated_bytes));
    let estimated = hold.record_verdict(verdict);
    let credits = hold
        .settle(usage, outcome, estimated, clock::now_ms())
        .map_err(|error| {
            log::error!("cannot journal a debit: {error}; the gateway withholds the answer");
            Failure::from_kind(Kind::LedgerUnavailable)
        })?;
    call.billed = Some((outcome, credits));
    Ok(Some(credits))
}

/// Whether the vendor refused the reasoning that the request carried and the gateway retries
/// without it. If so, prepares the retry.
fn retry_if_reasoning_refused(call: &mut AdmittedRequest) -> bool {
    let ResponseMode::Error {
        status: 400, body, ..
    } = &call.reply.mode
    else {
        return false;
    };
    if call.again.is_none() || !translate::refuses_thinking(body) {
        return false;
    }
    upstream::retry_without_reasoning(call)
}

/// Renders a vendor's error in the gateway's own form.
///
/// # Errors
/// Returns an error if another attempt follows. If none is possible after all, the client gets
/// `call.failure`.
fn process_error(call: &mut AdmittedRequest, surface: Protocol, request_id: &str) -> Result<Bytes> {
    let asks_again = Error::explain(
        ErrorType::InvalidHTTPHeader,
        "the vendor refused the reasoning",
    );
    if retry_if_reasoning_refused(call) {
        call.failure = Some(Failure::from_kind(Kind::UpstreamFailed));
        return Err(asks_again.into_up());
    }
    let ResponseMode::Error {
        status,
        retry_after,
        body,
    } = std::mem::replace(&mut call.reply.mode, ResponseMode::Over)
    else {
        return Err(asks_again.into_up());
    };
    if let Some(answer) = substitute_for_error(call, surface, status, &body) {
        drop(call.shared.take_idempotency());
        return Ok(answer);
    }
    let model = &call.model;
    let vendor = model.protocol();
    let failure = failure::from_vendor_response(
        vendor,
        status,
        retry_after.as_deref(),
        &body,
        &model.upstream_model,
        &model.id,
    )
    .redact_secret(model.vendor.api_key.reveal());
    if upstream::handle_refusal(call, status, &failure, failure::refuses_key(status, &body)) {
        return Err(Error::explain(
            ErrorType::HTTPStatus(status),
            "the vendor answered with an error",
        )
        .into_up());
    }
    // A client that reads the end of the error must find its idempotency key free.
    drop(call.shared.take_idempotency());
    let rendered = failure.render(surface, request_id);
    let headers = rendered.headers.into_iter();
    let headers = headers
        .filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?)))
        .collect();
    call.shared.set_deferred_head(DeferredHead {
        status: Some(rendered.status),
        content_length: Some(rendered.body.len()),
        headers,
    });
    call.shared.set_completed();
    call.failure = Some(failure);
    Ok(rendered.body.into())
}

/// Returns the response for an error that is not one to a client of this surface: a token count
/// that the vendor does not offer, or an output limit too small for the model to generate anything.
fn substitute_for_error(
    call: &mut AdmittedRequest,
    surface: Protocol,
    status: u16,
    body: &[u8],
) -> Option<Bytes> {
    let mut headers = Vec::new();
    let answer = if let Some(tokens) = call
        .reply
        .count
        .filter(|_| matches!(status, 404 | 405 | 501))
    {
        headers.push((
            local_api::ESTIMATED_HEADER,
            HeaderValue::from_static("true"),
        ));
        local_api::count_body(surface, tokens)
    } else {
        let recall = call
            .reply
            .recall
            .as_ref()
            .filter(|_| status == 400 && translate::is_limit_reached_error(body))?;
        if call.stream {
            headers.push((
                "content-type",
                HeaderValue::from_static("text/event-stream; charset=utf-8"),
            ));
        }
        translate::empty_response_at_limit(
            call.model.protocol(),
            surface,
            recall.clone(),
            call.stream,
        )
        .into()
    };
    call.shared.set_deferred_head(DeferredHead {
        status: Some(200),
        content_length: Some(answer.len()),
        headers,
    });
    call.shared.set_completed();
    Some(answer)
}
