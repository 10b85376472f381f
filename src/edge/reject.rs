//! The only place where a failure of the edge becomes a response, in the shape of the surface that
//! the client called.
//!
//! This file must not decide that something failed, or whether the gateway tries again.

use super::context::{AdmittedRequest, RequestContext, RouteLabel, Stage};
use super::recorders::Recorders;
use super::route::surface_for_path;
use super::{connections, finish, intake, response};
use crate::telemetry::METRICS;
use crate::telemetry::log_path::{loggable_method, loggable_path};
use crate::telemetry::refusals::{self, RefusalReason};
use bytes::Bytes;
use http::{HeaderValue, header};
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::keepalive;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorSource, ErrorType, Result};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long a short answer waits for the window of its HTTP/2 stream.
const WINDOW_TIMEOUT: Duration = Duration::from_secs(2);
/// How many short answers may wait for a window at one time, in the whole process. Each keeps the
/// state of its request.
const MAX_WINDOW_WAITS: usize = 256;

static WINDOW_WAITS: Semaphore = Semaphore::const_new(MAX_WINDOW_WAITS);

/// Sends a failure as the response. The connection stays usable if the body was read.
///
/// # Errors
/// Returns an error if a response has begun already, or if the write fails after it began.
pub async fn send_failure(
    session: &mut Session,
    ctx: &mut RequestContext,
    failure: &Failure,
) -> Result<()> {
    if session.response_written().is_some() {
        return Err(cannot_write("an answer has begun already"));
    }
    if note_reset(session, ctx) {
        return Ok(());
    }
    let (head, body) = render(ctx, failure)?;
    let sent = send_short_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

/// Refuses an ambiguous request. Only `gateway_malformed_total` counts it, under the reason that
/// the access log has too.
pub async fn answer_malformed(
    session: &mut Session,
    ctx: &mut RequestContext,
    reason: RefusalReason,
    failure: &Failure,
) -> Result<()> {
    ctx.route = RouteLabel::Malformed;
    ctx.reason = Some(reason.as_str());
    let (head, body) = build(ctx, failure)?;
    let sent = send_short_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

/// Reason in the access log if the client disconnected before it got a response.
const CLIENT_LEFT: &str = "client_left";

/// Records that the client disconnected before the gateway sent anything.
fn note_left(ctx: &mut RequestContext) {
    ctx.status = 0;
    ctx.reason.get_or_insert(CLIENT_LEFT);
}

/// Returns whether the HTTP/2 stream of this request has been reset, and records the reason. Either
/// the client reset it, or the gateway did for an HTTP/2 error and counted that then.
fn note_reset(session: &mut Session, ctx: &mut RequestContext) -> bool {
    if matches!(ctx.stage, Stage::Call(_)) {
        return false;
    }
    let Some(reset) = connections::reset_reason(session) else {
        return false;
    };
    if matches!(
        reset,
        h2::Reason::PROTOCOL_ERROR | h2::Reason::STREAM_CLOSED
    ) {
        ctx.route = RouteLabel::Malformed;
        ctx.status = 400;
        ctx.reason = Some(RefusalReason::Http2Stream.as_str());
    } else {
        note_left(ctx);
    }
    true
}

/// Ends the request if its response could not begin: the client has disconnected, which is not a
/// failure of the gateway. Returns all other errors.
fn note_unsent(session: &mut Session, ctx: &mut RequestContext, sent: Result<()>) -> Result<()> {
    let Err(error) = sent else { return Ok(()) };
    if matches!(ctx.stage, Stage::Call(_)) || session.response_written().is_some() {
        return Err(error);
    }
    log::debug!("cannot answer request {}: {error}", ctx.request_id);
    session.set_keepalive(None);
    if !note_reset(session, ctx) {
        note_left(ctx);
    }
    Ok(())
}

/// Answers a request for a page with a failure: as a page if the client accepts HTML, otherwise as
/// JSON.
pub async fn send_failure_page(
    session: &mut Session,
    ctx: &mut RequestContext,
    failure: &Failure,
) -> Result<()> {
    let accept = session
        .req_header()
        .headers
        .get(header::ACCEPT)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let wants_page = memchr::memmem::find(accept, b"text/html").is_some();
    if note_reset(session, ctx) {
        return Ok(());
    }
    let (mut head, mut body) = render(ctx, failure)?;
    head.insert_header(header::CACHE_CONTROL, "no-store")?;
    if wants_page {
        // The page contains only the gateway's own text and nothing that a client sent.
        body = failure_page(failure, &ctx.request_id).into();
        head.insert_header(header::CONTENT_TYPE, "text/html; charset=utf-8")?;
        head.insert_header(
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'",
        )?;
        head.insert_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")?;
        set_common_headers(&mut head, ctx, &body)?;
    }
    let sent = send_short_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

fn failure_page(failure: &Failure, request_id: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Not available</title></head>\n\
         <body><h1>Not available</h1><p>{}</p><p>Reference: {request_id}</p></body></html>\n",
        failure.message
    )
}

/// Renders a failure as a response, and counts it.
///
/// # Errors
/// Returns an error if a value does not fit into a header.
pub fn render(ctx: &mut RequestContext, failure: &Failure) -> Result<(ResponseHeader, Bytes)> {
    count(ctx, failure.reason());
    build(ctx, failure)
}

fn count(ctx: &mut RequestContext, reason: &'static str) {
    ctx.reason = Some(reason);
    METRICS.rejected.with_label_values(&[reason]).inc();
}

/// The reasons of what the sidecar refuses, by its status.
pub const SIDECAR_REASONS: [(u16, &str); 12] = [
    (400, "invalid_request"),
    (401, "bad_sign_in"),
    (403, "forbidden"),
    (404, "unknown_path"),
    (405, "wrong_method"),
    (408, "body_timeout"),
    (409, "conflict"),
    (413, "body_too_large"),
    (422, "invalid_request"),
    (429, "rate_limited"),
    (500, "internal"),
    (503, "overloaded"),
];

/// The sidecar's status is there: where it refuses, that is counted as if it were refused here.
pub fn note_sidecar_status(ctx: &mut RequestContext, status: u16) {
    ctx.status = status;
    if status < 400 {
        return;
    }
    let known = SIDECAR_REASONS.iter().find(|(known, _)| *known == status);
    let reason = match known {
        Some((_, reason)) => reason,
        None if status < 500 => "invalid_request",
        None => "internal",
    };
    count(ctx, reason);
}

/// A failure as an answer, not counted.
fn build(ctx: &mut RequestContext, failure: &Failure) -> Result<(ResponseHeader, Bytes)> {
    let rendered = failure.render(ctx.surface, &ctx.request_id);
    ctx.status = rendered.status;
    let mut head = ResponseHeader::build_no_case(rendered.status, Some(8))?;
    for (name, value) in rendered.headers {
        head.insert_header(name, value)?;
    }
    let body = Bytes::from(rendered.body);
    set_common_headers(&mut head, ctx, &body)?;
    Ok((head, body))
}

/// A response to bytes that Pingora did not accept as a request.
pub struct MalformedResponse {
    pub request_id: String,
    /// `None` where nothing is known of the request's path.
    pub surface: Option<Protocol>,
    pub status: u16,
    /// The whole response, as HTTP/1.1.
    pub bytes: Vec<u8>,
}

/// Builds the response to an HTTP/1 request that never had a context. The connection closes after
/// it.
pub fn build_malformed_response(failure: &Failure, path: &str, is_head: bool) -> MalformedResponse {
    let ctx = RequestContext::new();
    let request_id = &ctx.request_id;
    let surface = surface_for_path(path).unwrap_or(Protocol::Chat);
    let rendered = failure.render(surface, request_id);
    let status =
        http::StatusCode::from_u16(rendered.status).unwrap_or(http::StatusCode::BAD_REQUEST);
    let mut head = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in &rendered.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let length = rendered.body.len();
    head.push_str(&format!(
        "x-request-id: {request_id}\r\nrequest-id: {request_id}\r\n"
    ));
    head.push_str(&format!(
        "content-length: {length}\r\nconnection: close\r\n\r\n"
    ));
    let body = if is_head { Vec::new() } else { rendered.body };
    MalformedResponse {
        request_id: request_id.clone(),
        surface: Some(surface),
        status: rendered.status,
        bytes: [head.into_bytes(), body].concat(),
    }
}

impl MalformedResponse {
    /// An answer that the library for HTTP/2 made by itself: nothing but a status.
    pub fn bare(status: u16) -> Self {
        Self {
            request_id: RequestContext::new().request_id.clone(),
            surface: None,
            status,
            bytes: Vec::new(),
        }
    }
}

/// Refuses a request to open a tunnel, which Pingora would answer without a trace.
pub async fn refuse_connect(mut session: ServerSession, recorders: &Recorders) {
    let mut ctx = RequestContext::new();
    let head = session.req_header();
    let method = loggable_method(head.method.as_str().as_bytes());
    let path = loggable_path(head.raw_path());
    let address = session
        .client_addr()
        .and_then(|address| Some(address.as_inet()?.ip()));
    let failure = Failure::new(Kind::WrongMethod, NO_TUNNELS);
    let reason = RefusalReason::RequestLine;
    refusals::record(
        reason,
        address,
        format_args!(
            "{method} {path}: {} Request {}",
            failure.message, ctx.request_id
        ),
    );
    ctx.route = RouteLabel::Malformed;
    ctx.stage = Stage::Answered {
        what: finish::MALFORMED,
    };
    ctx.reason = Some(reason.as_str());
    let sent = async {
        let (head, body) = build(&mut ctx, &failure)?;
        session.write_response_header(Box::new(head)).await?;
        session.write_response_body(body, true).await?;
        session.finish_body().await
    };
    if let Err(error) = sent.await {
        log::debug!("cannot answer a CONNECT request: {error}");
    }
    ctx.target = Some(Box::new((method, path)));
    finish::record_at(recorders, &mut ctx, address);
}

/// The words for CONNECT.
pub const NO_TUNNELS: &str = "The gateway does not support CONNECT.";

/// The header fields that every answer of the gateway's own has.
fn set_common_headers(head: &mut ResponseHeader, ctx: &RequestContext, body: &Bytes) -> Result<()> {
    head.insert_header("x-request-id", &ctx.request_id)?;
    head.insert_header("request-id", &ctx.request_id)?;
    if let Some(cors) = &ctx.cors {
        cors.apply(head)?;
    }
    if head.status == http::StatusCode::NO_CONTENT {
        return Ok(());
    }
    head.insert_header("content-length", body.len())
}

/// Sends a whole response with this request's id.
pub async fn send_response(
    session: &mut Session,
    ctx: &mut RequestContext,
    mut head: ResponseHeader,
    body: Bytes,
) -> Result<()> {
    set_common_headers(&mut head, ctx, &body)?;
    let sent = send_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

/// Sends a short response that needs no key, with this request's id.
pub async fn send_short(
    session: &mut Session,
    ctx: &mut RequestContext,
    mut head: ResponseHeader,
    body: Bytes,
) -> Result<()> {
    set_common_headers(&mut head, ctx, &body)?;
    let sent = send_short_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

/// The client has `limits.client_write_seconds` for each write.
async fn send_rendered(session: &mut Session, head: ResponseHeader, body: Bytes) -> Result<()> {
    let Some(body) = send_head(session, head, body).await? else {
        return Ok(());
    };
    session.write_response_body(Some(body), true).await
}

/// Sends a small response. Over HTTP/2 it waits only briefly for the client's window, because a
/// client without a key can cause many such responses.
async fn send_short_rendered(
    session: &mut Session,
    head: ResponseHeader,
    body: Bytes,
) -> Result<()> {
    let is_http2 = session.is_http2();
    let Some(body) = send_head(session, head, body).await? else {
        return Ok(());
    };
    let write = session.write_response_body(Some(body), true);
    if is_http2 {
        within_window_timeout(write).await
    } else {
        write.await
    }
}

/// Sends the header of a response. Returns the body if one must follow.
async fn send_head(
    session: &mut Session,
    head: ResponseHeader,
    body: Bytes,
) -> Result<Option<Bytes>> {
    let bodiless = session.req_header().method == http::Method::HEAD || body.is_empty();
    session
        .write_response_header(Box::new(head), bodiless)
        .await?;
    Ok((!bodiless).then_some(body))
}

/// Writes a body to an HTTP/2 stream. If the client's window has no room, the write waits for
/// [`WINDOW_TIMEOUT`], or not at all while [`MAX_WINDOW_WAITS`] others wait.
///
/// # Errors
/// The write failed, or the window has no room. The stream is then reset behind its header.
async fn within_window_timeout(write: impl Future<Output = Result<()>>) -> Result<()> {
    let mut write = pin!(write);
    if let Poll::Ready(written) = poll_fn(|context| Poll::Ready(write.as_mut().poll(context))).await
    {
        return written;
    }
    let Ok(_permit) = WINDOW_WAITS.try_acquire() else {
        return Err(cannot_write("too many answers wait for an HTTP/2 window"));
    };
    tokio::time::timeout(WINDOW_TIMEOUT, write)
        .await
        .unwrap_or_else(|_| Err(cannot_write("the client did not open its HTTP/2 window")))
}

fn cannot_write(reason: &'static str) -> Box<Error> {
    Error::explain(ErrorType::WriteError, reason).into_down()
}

/// Sends the client what failed: as a response, or inside the stream that has begun.
pub async fn send_error(
    session: &mut Session,
    error: &Error,
    ctx: &mut RequestContext,
) -> Result<()> {
    let surface = ctx.surface;
    if let Some(call) = ctx.call()
        && !call.shared.progress().has_client_left()
        && let Some(end) = response::finish_complete_response(call, surface)
    {
        return session.write_response_body(Some(end), true).await;
    }
    if let Some(call) = ctx.call()
        && call.shared.has_idempotency()
    {
        // A client that reads the failure must find the outcome of its idempotency key decided.
        finish::settle_or_release(call);
        call.shared.wait_for_decision().await;
    }
    let (failure, unsent, began_stream) = match &mut ctx.stage {
        Stage::Call(call) => {
            let progress = call.shared.progress();
            if progress.has_client_left() || progress.completed {
                return Ok(());
            }
            let is_cut = progress.ended == Some(intake::AbortReason::Shutdown);
            let failure = call
                .failure
                .clone()
                .filter(|_| !is_cut)
                .unwrap_or_else(|| classify_failure(call, error));
            (
                failure,
                [
                    call.shared.take_opening(),
                    std::mem::take(&mut call.reply.unsent),
                ]
                .concat(),
                call.reply.is_stream(),
            )
        }
        Stage::Sidecar { account, .. } => {
            let is_page = account.is_none();
            let has_begun = session.response_written().is_some();
            if let Some(flaw) = connections::body_defect(session.digest()) {
                let client = ctx.caller.map(|caller| caller.address);
                refusals::record(flaw.reason, client, flaw.message);
                if has_begun {
                    return Ok(());
                }
                session.set_keepalive(None);
                return answer_malformed(session, ctx, flaw.reason, &flaw.into()).await;
            }
            if *error.esource() == ErrorSource::Downstream {
                if !has_begun && !note_reset(session, ctx) {
                    note_left(ctx);
                }
                return Ok(());
            }
            let failure = Failure::new(Kind::UpstreamUnreachable, "The dashboard does not answer.");
            if is_page && session.response_written().is_none() {
                session.set_keepalive(None);
                return send_failure_page(session, ctx, &failure).await;
            }
            (failure, Vec::new(), false)
        }
        Stage::New | Stage::Answered { .. } => {
            (Failure::from_kind(Kind::Internal), Vec::new(), false)
        }
    };
    if session.response_written().is_none() {
        if let Some(call) = ctx.call() {
            // Only the client's own session can announce that Pingora closes the connection after
            // this.
            intake::restore_session(session, &call.shared).await;
        }
        session.set_keepalive(None);
        return send_failure(session, ctx, &failure).await;
    }
    if began_stream {
        return end_stream(session, ctx, &failure, &unsent).await;
    }
    Ok(())
}

fn classify_failure(call: &AdmittedRequest, error: &Error) -> Failure {
    if call.shared.progress().ended == Some(intake::AbortReason::Shutdown) {
        return Failure::from_kind(Kind::Draining);
    }
    let timed_out = call.shared.progress().ended.is_some()
        || matches!(
            error.etype(),
            ErrorType::ReadTimedout | ErrorType::WriteTimedout | ErrorType::ConnectTimedout
        );
    Failure::from_kind(if timed_out {
        Kind::UpstreamTimeout
    } else if call.shared.progress().has_begun() {
        Kind::UpstreamClosed
    } else {
        Kind::UpstreamFailed
    })
}

/// Ends a stream that has begun with a failure that the client can read; a body that just ends
/// would look like a complete response. `unsent` are the bytes to send before.
async fn end_stream(
    session: &mut Session,
    ctx: &mut RequestContext,
    failure: &Failure,
    unsent: &[u8],
) -> Result<()> {
    let bytes = [unsent, &terminal_event(ctx, failure)].concat();
    session.write_response_body(Some(bytes.into()), true).await
}

/// Returns the event that ends a stream with a failure.
pub fn terminal_event(ctx: &mut RequestContext, failure: &Failure) -> Vec<u8> {
    ctx.reason = Some(failure.reason());
    let voice = ctx.call().and_then(|call| call.reply.sequencer().cloned());
    keepalive::encode_terminal_error(ctx.surface, voice.as_ref(), failure, &ctx.request_id)
}
