//! The vendor's answer: its status and header, then its bytes, until the last one may leave.
//!
//! The rule that a right bill rests on stands here: the usage is in the journal before the terminal event, or the
//! whole JSON body, is released to the client. The only file that touches response bytes. Must not await: Pingora's
//! body filters are synchronous.

use super::context::{Call, Context};
use super::intake::Late;
use super::{meter, upstream};
use crate::billing::{Billing, pricing};
use crate::catalog::Model;
use crate::clock;
use crate::protocol::Protocol;
use crate::protocol::failure::{self, Failure, Kind};
use crate::protocol::same::{self, StreamPass};
use crate::store::ledger::Outcome;
use crate::telemetry::METRICS;
use crate::usage::Usage;
use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};

/// The largest error body of a vendor that is read.
const ERROR_BODY_MAX: usize = 262_144;

/// What is being made of the vendor's answer.
pub struct Reply {
    hide_usage: bool,
    /// The vendor answered with a stream.
    streams: bool,
    mode: Mode,
    /// Events that stood before a failure in the same piece: still to go out before it is told.
    pub unsent: Vec<u8>,
}

enum Mode {
    /// No header yet.
    Waiting,
    Stream(Box<StreamPass>, OpenStream),
    /// A whole JSON answer, or one that is to be understood before its status is.
    Whole(Vec<u8>),
    Error {
        status: u16,
        retry_after: Option<String>,
        body: Vec<u8>,
    },
    /// Given out whole, or failed.
    Over,
}

/// Counts itself among the open streams.
struct OpenStream;

impl OpenStream {
    fn begin() -> Self {
        METRICS.streams_open.inc();
        Self
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        METRICS.streams_open.dec();
    }
}

impl Reply {
    /// `hide_usage`: a chat caller did not ask for the usage that the vendor is made to tell.
    pub fn new(hide_usage: bool) -> Self {
        Self { hide_usage, streams: false, mode: Mode::Waiting, unsent: Vec::new() }
    }

    /// The vendor answered with a stream: once it has begun, a failure must be told inside it.
    pub fn is_stream(&self) -> bool {
        self.streams
    }

    /// What a vendor's error means that came without a body, or whose body broke off.
    pub fn bare_error(&self, model: &Model) -> Option<Failure> {
        let Mode::Error { status, retry_after, .. } = &self.mode else { return None };
        let retry_after = retry_after.as_deref();
        let protocol = model.vendor.protocol;
        Some(failure::from_vendor(protocol, *status, retry_after, b"", &model.upstream_model, &model.id))
    }

    /// What has been learned of a stream that did not end: usage, and bytes generated.
    pub fn learned(&self) -> (Option<Usage>, Option<Usage>, u64) {
        match &self.mode {
            Mode::Stream(pass, _) => (pass.usage(), pass.input_learned(), pass.generated_bytes()),
            _ => (None, None, 0),
        }
    }
}

/// Judges the vendor's header and makes ours.
///
/// # Errors
/// The status calls for another attempt, and there is one.
pub fn head(ctx: &mut Context, header: &mut ResponseHeader) -> Result<()> {
    let request_id = ctx.request_id.clone();
    let surface = ctx.surface;
    let Some(call) = ctx.call() else { return Ok(()) };
    if header.status.is_informational() {
        return Ok(());
    }
    let status = header.status.as_u16();
    upstream::count_attempt(call, status);
    if matches!(status, 429 | 500..=599) && call.may_retry() {
        return Error::e_explain(ErrorType::HTTPStatus(status), "the vendor's status")
            .map_err(|error: Box<Error>| error.into_up());
    }
    let text = |name: &str| header.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let is_events = text("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    let reply = &mut call.reply;
    reply.mode = if !header.status.is_success() {
        Mode::Error { status, retry_after: text("retry-after"), body: Vec::new() }
    } else if call.stream && is_events {
        let event_bytes = size(call.settings.limits.event_bytes);
        let pass = StreamPass::new(surface, &call.model.id, reply.hide_usage, event_bytes);
        Mode::Stream(Box::new(pass), OpenStream::begin())
    } else {
        Mode::Whole(Vec::new())
    };
    let stream = matches!(reply.mode, Mode::Stream(..));
    reply.streams = stream;
    let theirs = text("request-id").or_else(|| text("x-request-id"));
    let mut ours = ResponseHeader::build(if header.status.is_success() { 200 } else { status }, Some(10))?;
    ours.insert_header(
        header::CONTENT_TYPE,
        if stream { "text/event-stream; charset=utf-8" } else { "application/json" },
    )?;
    ours.insert_header("x-request-id", &request_id)?;
    ours.insert_header("request-id", &request_id)?;
    if let Some(theirs) = theirs.and_then(|id| HeaderValue::from_str(&id).ok()) {
        ours.insert_header("x-upstream-request-id", theirs)?;
    }
    if stream {
        call.shared.set_epitaph(Failure::of(Kind::UpstreamClosed).frame(surface, &request_id));
        ours.insert_header(header::CACHE_CONTROL, "no-cache")?;
        ours.insert_header("x-accel-buffering", "no")?;
    }
    if !call.warnings.is_empty() {
        call.warnings.sort();
        ours.insert_header("x-gateway-warnings", call.warnings.join(", "))?;
    }
    ctx.status = ours.status.as_u16();
    *header = ours;
    Ok(())
}

/// Passes a piece of the vendor's body on, or keeps it until the whole is there.
///
/// # Errors
/// The answer cannot go on; `call.failure` says why.
pub fn body(billing: &Billing, ctx: &mut Context, body: &mut Option<Bytes>, end: bool) -> Result<()> {
    let surface = ctx.surface;
    let request_id = ctx.request_id.clone();
    let Some(call) = ctx.call() else { return Ok(()) };
    let piece = body.take().unwrap_or_default();
    let mut status = None;
    let outcome = match &mut call.reply.mode {
        Mode::Stream(..) => match stream(billing, call, surface, &piece, end) {
            Err(failure) if call.shared.progress().first_byte.is_some() => {
                Ok(Some(end_by_failure(billing, call, &failure, surface, &request_id)))
            }
            outcome => outcome,
        },
        Mode::Whole(kept) => {
            let limit = size(call.settings.limits.response_buffer_bytes);
            match keep(kept, &piece, limit) {
                Ok(()) if end => whole(billing, call, surface),
                Ok(()) => Ok(None),
                Err(failure) => Err(failure),
            }
        }
        Mode::Error { body: kept, .. } => {
            // What is past the limit is not worth reading: the start tells.
            let room = ERROR_BODY_MAX.saturating_sub(kept.len()).min(piece.len());
            kept.extend_from_slice(piece.get(..room).unwrap_or_default());
            let told = if end { error(call, surface, &request_id) } else { None };
            status = call.failure.as_ref().map(|failure| failure.status(surface));
            Ok(told)
        }
        Mode::Waiting | Mode::Over => Ok(None),
    };
    match outcome {
        Ok(bytes) => {
            *body = bytes;
            ctx.status = status.unwrap_or(ctx.status);
            Ok(())
        }
        Err(failure) => {
            call.failure = Some(failure);
            Error::e_explain(ErrorType::InvalidHTTPHeader, "the vendor's answer")
                .map_err(|error: Box<Error>| error.into_up())
        }
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn keep(kept: &mut Vec<u8>, piece: &[u8], limit: usize) -> Result<(), Failure> {
    if kept.len().saturating_add(piece.len()) > limit {
        return Err(Failure::new(Kind::UpstreamFailed, "The model's answer is larger than this gateway holds."));
    }
    kept.extend_from_slice(piece);
    Ok(())
}

fn stream(
    billing: &Billing,
    call: &mut Call,
    surface: Protocol,
    piece: &[u8],
    end: bool,
) -> Result<Option<Bytes>, Failure> {
    let Mode::Stream(pass, _) = &mut call.reply.mode else { return Ok(None) };
    if pass.completed() {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(piece.len().saturating_add(64));
    let mut outcome = pass.push(piece, &mut out);
    if outcome.is_ok() && end && !pass.completed() {
        outcome = pass.finish(&mut out);
    }
    if pass.generated_bytes() > 0 {
        call.shared.set_generated();
    }
    if let Err(fault) = outcome {
        call.reply.unsent = out;
        return Err(fault.failure(surface, &call.model.upstream_model, &call.model.id));
    }
    if pass.completed() {
        let (usage, generated, free) = (pass.usage(), pass.generated_bytes(), pass.refused_free());
        settle(billing, call, usage, generated, free)?;
        call.shared.set_completed();
    }
    Ok((!out.is_empty()).then(|| out.into()))
}

/// Ends a stream that has begun with a failure that the client can read. The connection stays in order.
fn end_by_failure(billing: &Billing, call: &mut Call, failure: &Failure, surface: Protocol, request_id: &str) -> Bytes {
    let mut last = std::mem::take(&mut call.reply.unsent);
    last.extend_from_slice(&failure.frame(surface, request_id));
    call.failure = Some(failure.clone());
    meter::resolve(billing, call);
    call.shared.set_completed();
    call.reply.mode = Mode::Over;
    last.into()
}

fn whole(billing: &Billing, call: &mut Call, surface: Protocol) -> Result<Option<Bytes>, Failure> {
    let Mode::Whole(kept) = std::mem::replace(&mut call.reply.mode, Mode::Over) else { return Ok(None) };
    let whole = same::whole(surface, &call.model.id, kept.into())
        .map_err(|fault| fault.failure(surface, &call.model.upstream_model, &call.model.id))?;
    let mut late = Late { content_length: Some(whole.body.len()), ..Late::default() };
    if let Some(credits) = settle(billing, call, whole.usage, whole.generated_bytes, whole.refused_free)? {
        let value = HeaderValue::from_str(&credits.to_string());
        late.headers.extend(value.ok().map(|value| ("x-gateway-credits", value)));
    }
    call.shared.set_late(late);
    call.shared.set_completed();
    Ok(Some(whole.body))
}

/// The debit, before the last byte leaves.
fn settle(
    billing: &Billing,
    call: &mut Call,
    usage: Option<Usage>,
    generated_bytes: u64,
    refused_free: bool,
) -> Result<Option<crate::money::Micro>, Failure> {
    let Some(hold) = call.hold.take() else { return Ok(None) };
    let outcome = match (refused_free, call.shared.progress().client_left()) {
        (true, _) => Outcome::RefusedFree,
        (false, true) => Outcome::ClientLeft,
        (false, false) => Outcome::Completed,
    };
    let estimated = usage.is_none() && !refused_free;
    let usage = usage.unwrap_or_else(|| pricing::estimate(call.body_bytes, generated_bytes));
    billing.settle(hold, usage, outcome, estimated, clock::now_ms()).map(Some).map_err(|error| {
        log::error!("journal a debit: {error}; the answer is withheld");
        Failure::of(Kind::LedgerUnavailable)
    })
}

/// A vendor's error, told in our words.
fn error(call: &mut Call, surface: Protocol, request_id: &str) -> Option<Bytes> {
    let Mode::Error { status, retry_after, body } = std::mem::replace(&mut call.reply.mode, Mode::Over) else {
        return None;
    };
    let model = &call.model;
    let failure =
        failure::from_vendor(surface, status, retry_after.as_deref(), &body, &model.upstream_model, &model.id);
    let rendered = failure.render(surface, request_id);
    let headers = rendered.headers.into_iter();
    let headers = headers.filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?))).collect();
    call.shared.set_late(Late { status: Some(rendered.status), content_length: Some(rendered.body.len()), headers });
    call.shared.set_completed();
    call.failure = Some(failure);
    Some(rendered.body.into())
}
