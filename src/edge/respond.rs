//! Writes the gateway's own responses to the client: answers and failures in the surface's shape.
//!
//! This file must not decide that something failed. `edge/reject.rs` handles a failure once the
//! request is on its way to a vendor or the sidecar.

use super::client_pace;
use super::state::record::{RequestRecord, RouteLabel};
use super::state::{RequestContext, Stage};
use base::telemetry::METRICS;
use base::telemetry::refusals::RefusalReason;
use bytes::Bytes;
use http::{HeaderName, header};
use llm_protocol::failure::{Failure, Kind};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Time that a short answer waits for the window of its HTTP/2 stream.
const WINDOW_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of short answers in the process that wait for a window at a time. Each one keeps
/// the state of its request.
const MAX_WINDOW_WAITS: usize = 256;

static WINDOW_WAITS: Semaphore = Semaphore::const_new(MAX_WINDOW_WAITS);

/// Returns whether the response to this request has begun. An interim `100 Continue`, which the
/// gateway sends before it reads a body, does not count, although Pingora records it as a response.
#[expect(clippy::disallowed_methods, reason = "the one place that asks Pingora")]
pub fn has_begun(session: &ServerSession) -> bool {
    session
        .response_written()
        .is_some_and(|head| !head.status.is_informational())
}

/// Sends a failure as the response. The connection stays usable if the body was read.
///
/// # Errors
/// Returns an error if a response has begun already, or if the write fails.
pub async fn send_failure(
    session: &mut Session,
    ctx: &mut RequestContext,
    failure: &Failure,
) -> Result<()> {
    if has_begun(session) {
        return Err(cannot_write("an answer has begun already"));
    }
    if note_reset(session, ctx) {
        return Ok(());
    }
    let (head, body) = render(&mut ctx.record, failure)?;
    let sent = send_short_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

/// Refuses an ambiguous request. Only `gateway_malformed_total` counts the refusal, under the same
/// reason as in the access log.
pub async fn answer_malformed(
    session: &mut Session,
    ctx: &mut RequestContext,
    reason: RefusalReason,
    failure: &Failure,
) -> Result<()> {
    ctx.record.route = RouteLabel::Malformed;
    ctx.record.reason = Some(reason.as_str());
    let (mut head, mut body) = build(&mut ctx.record, failure)?;
    if session.req_header().uri.path().starts_with("/dashboard") && wants_page(session) {
        body = set_page(&mut head, &ctx.record, failure)?;
    }
    let sent = send_short_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

/// Reason in the access log for a client that disconnected before it got a response.
const CLIENT_LEFT: &str = "client_left";

pub fn note_left(record: &mut RequestRecord) {
    record.status = 0;
    record.reason.get_or_insert(CLIENT_LEFT);
}

/// Returns whether the HTTP/2 stream of this request was reset, and records the reason. The client
/// or the gateway may have reset the stream; a reset by the gateway has been counted already.
pub fn note_reset(session: &mut Session, ctx: &mut RequestContext) -> bool {
    if matches!(ctx.stage, Stage::Admitted(_)) {
        return false;
    }
    let Some(reset) = reset_reason(session) else {
        return false;
    };
    if matches!(
        reset,
        h2::Reason::PROTOCOL_ERROR | h2::Reason::STREAM_CLOSED
    ) {
        ctx.record.route = RouteLabel::Malformed;
        ctx.record.status = 400;
        ctx.record.reason = Some(RefusalReason::Http2Stream.as_str());
    } else {
        note_left(&mut ctx.record);
    }
    true
}

/// Returns the code with which this HTTP/2 request's stream was reset, or `None` without a reset.
fn reset_reason(session: &mut Session) -> Option<h2::Reason> {
    let ServerSession::H2(h2) = session.downstream_session.as_mut() else {
        return None;
    };
    let mut context = Context::from_waker(Waker::noop());
    match pin!(h2.idle()).poll(&mut context) {
        Poll::Ready(Ok(reason)) => Some(reason),
        // The connection has failed, which ends the stream like a CANCEL.
        Poll::Ready(Err(_)) => Some(h2::Reason::CANCEL),
        Poll::Pending => None,
    }
}

/// Ends the request if the client disconnected before the response began, which is not a failure of
/// the gateway. Returns all other errors.
fn note_unsent(session: &mut Session, ctx: &mut RequestContext, sent: Result<()>) -> Result<()> {
    let Err(error) = sent else { return Ok(()) };
    if matches!(ctx.stage, Stage::Admitted(_)) || has_begun(session) {
        return Err(error);
    }
    log::debug!("cannot answer request {}: {error}", ctx.record.request_id);
    session.set_keepalive(None);
    if !note_reset(session, ctx) {
        note_left(&mut ctx.record);
    }
    Ok(())
}

/// Answers a request for a page with a failure: as a page if the client accepts HTML, else as JSON.
pub async fn send_failure_page(
    session: &mut Session,
    ctx: &mut RequestContext,
    failure: &Failure,
) -> Result<()> {
    if note_reset(session, ctx) {
        return Ok(());
    }
    let (mut head, mut body) = render(&mut ctx.record, failure)?;
    head.insert_header(header::CACHE_CONTROL, "no-store")?;
    if wants_page(session) {
        body = set_page(&mut head, &ctx.record, failure)?;
    }
    let sent = send_short_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

fn wants_page(session: &Session) -> bool {
    let has = |name: HeaderName, text: &[u8]| {
        let value = session.req_header().headers.get(name);
        value.is_some_and(|value| memchr::memmem::find(value.as_bytes(), text).is_some())
    };
    // A form is sent by a page, whatever its sender accepts.
    has(header::ACCEPT, b"text/html")
        || has(header::CONTENT_TYPE, b"application/x-www-form-urlencoded")
}

/// Makes the header of a failure that of a page. Returns the page.
fn set_page(head: &mut ResponseHeader, record: &RequestRecord, failure: &Failure) -> Result<Bytes> {
    // The page contains only the gateway's own text and nothing that a client sent.
    let body = Bytes::from(failure_page(failure, &record.request_id));
    head.insert_header(header::CONTENT_TYPE, "text/html; charset=utf-8")?;
    head.insert_header(
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'",
    )?;
    head.insert_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")?;
    set_common_headers(head, record, &body)?;
    Ok(body)
}

fn failure_page(failure: &Failure, request_id: &str) -> String {
    let (title, advice) = match failure.kind {
        Kind::BodyTooLarge => ("Too large", " Shorten the form and send it again."),
        Kind::HeaderTooLarge => ("Too large", " Delete this site's cookies and try again."),
        _ => ("Not available", ""),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title></head>\n\
         <body><h1>{title}</h1><p>{}{advice}</p><p>Reference: {request_id}</p></body></html>\n",
        failure.message
    )
}

/// Renders a failure as a response, and counts it.
///
/// # Errors
/// Returns an error if a value does not fit into a header.
pub fn render(record: &mut RequestRecord, failure: &Failure) -> Result<(ResponseHeader, Bytes)> {
    count(record, failure.reason());
    build(record, failure)
}

pub fn count(record: &mut RequestRecord, reason: &'static str) {
    record.reason = Some(reason);
    METRICS.rejected.with_label_values(&[reason]).inc();
}

/// Builds the response for a failure, without counting it.
pub fn build(record: &mut RequestRecord, failure: &Failure) -> Result<(ResponseHeader, Bytes)> {
    let rendered = failure.render(record.surface, &record.request_id);
    record.status = rendered.status;
    if record.asks_model {
        record.failure = Some(Box::new((rendered.code, rendered.message)));
    }
    let mut head = ResponseHeader::build_no_case(rendered.status, Some(8))?;
    for (name, value) in rendered.headers {
        head.insert_header(name, value)?;
    }
    let body = Bytes::from(rendered.body);
    set_common_headers(&mut head, record, &body)?;
    Ok((head, body))
}

/// Sets the header fields that all responses of the gateway itself have.
fn set_common_headers(
    head: &mut ResponseHeader,
    record: &RequestRecord,
    body: &Bytes,
) -> Result<()> {
    head.insert_header("x-request-id", &record.request_id)?;
    head.insert_header("request-id", &record.request_id)?;
    if let Some(cors) = &record.cors {
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
    set_common_headers(&mut head, &ctx.record, &body)?;
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
    set_common_headers(&mut head, &ctx.record, &body)?;
    let sent = send_short_rendered(session, head, body).await;
    note_unsent(session, ctx, sent)
}

/// Sends a response. The client has `limits.client_write_seconds` for each piece.
async fn send_rendered(session: &mut Session, head: ResponseHeader, body: Bytes) -> Result<()> {
    let Some(body) = send_head(session, head, body).await? else {
        return Ok(());
    };
    for (piece, is_last) in client_pace::split(body) {
        session.write_response_body(Some(piece), is_last).await?;
    }
    Ok(())
}

/// Sends a small response. Over HTTP/2 the write waits only briefly for the client's window,
/// because a client without a key can cause many such responses.
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
/// Returns an error if the write fails or the window has no room. The stream is reset then.
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
