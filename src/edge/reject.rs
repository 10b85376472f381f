//! The only place where a failure of the edge becomes an answer, in the shape of the surface that
//! was called.
//!
//! Must not decide that something failed, nor whether it is tried again.

use super::context::{Call, Context, Stage};
use super::{admit, connections, intake, meter, reply};
use crate::protocol::Protocol;
use crate::protocol::aside;
use crate::protocol::failure::{Failure, Kind};
use crate::telemetry::{METRICS, refusals};
use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
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

/// Answers with a failure, before anything else was sent. The connection stays usable where the
/// body was read.
pub async fn answer(session: &mut Session, ctx: &mut Context, failure: &Failure) -> Result<()> {
    if session.response_written().is_some() {
        return Err(cannot_write("an answer has begun already"));
    }
    let (head, body) = render(ctx, failure)?;
    send_short_rendered(session, head, body).await
}

/// Answers a request for a page with a failure: as a page where the client asks for one, else in
/// JSON.
pub async fn answer_page(
    session: &mut Session,
    ctx: &mut Context,
    failure: &Failure,
) -> Result<()> {
    let accept = session
        .req_header()
        .headers
        .get(header::ACCEPT)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let wants_page = memchr::memmem::find(accept, b"text/html").is_some();
    let (mut head, mut body) = render(ctx, failure)?;
    head.insert_header(header::CACHE_CONTROL, "no-store")?;
    if wants_page {
        // All words are the gateway's own: nothing that a client sent is in them.
        body = failure_page(failure, &ctx.request_id).into();
        head.insert_header(header::CONTENT_TYPE, "text/html; charset=utf-8")?;
        head.insert_header(
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'",
        )?;
        head.insert_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")?;
        complete(&mut head, ctx, &body)?;
    }
    send_short_rendered(session, head, body).await
}

fn failure_page(failure: &Failure, request_id: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Not available</title></head>\n\
         <body><h1>Not available</h1><p>{}</p><p>Reference: {request_id}</p></body></html>\n",
        failure.message
    )
}

/// A failure as an answer, counted.
///
/// # Errors
/// A value does not fit into a header.
pub fn render(ctx: &mut Context, failure: &Failure) -> Result<(ResponseHeader, Bytes)> {
    let rendered = failure.render(ctx.surface, &ctx.request_id);
    ctx.status = rendered.status;
    ctx.reason = Some(failure.reason());
    METRICS
        .rejected
        .with_label_values(&[failure.reason()])
        .inc();
    let mut head = ResponseHeader::build_no_case(rendered.status, Some(8))?;
    for (name, value) in rendered.headers {
        head.insert_header(name, value)?;
    }
    let body = Bytes::from(rendered.body);
    complete(&mut head, ctx, &body)?;
    Ok((head, body))
}

/// An answer to what Pingora did not accept as a request.
pub struct MalformedAnswer {
    pub request_id: String,
    pub surface: Protocol,
    pub status: u16,
    /// The whole answer, as HTTP/1.1.
    pub bytes: Vec<u8>,
}

/// The answer to an HTTP/1 request that never had a context. The connection is closed behind it.
pub fn malformed(failure: &Failure, path: &str, is_head: bool) -> MalformedAnswer {
    let ctx = Context::new();
    let request_id = &ctx.request_id;
    let surface = admit::surface_of(path).unwrap_or(Protocol::Chat);
    let rendered = failure.render(surface, request_id);
    METRICS
        .rejected
        .with_label_values(&[failure.reason()])
        .inc();
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
    MalformedAnswer {
        request_id: request_id.clone(),
        surface,
        status: rendered.status,
        bytes: [head.into_bytes(), body].concat(),
    }
}

/// The header fields that every answer of the gateway's own has.
fn complete(head: &mut ResponseHeader, ctx: &Context, body: &Bytes) -> Result<()> {
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

/// Sends a whole answer with this request's id.
pub async fn send(
    session: &mut Session,
    ctx: &Context,
    mut head: ResponseHeader,
    body: Bytes,
) -> Result<()> {
    complete(&mut head, ctx, &body)?;
    send_rendered(session, head, body).await
}

/// Sends a short answer that anybody can ask for, with this request's id.
pub async fn send_short(
    session: &mut Session,
    ctx: &Context,
    mut head: ResponseHeader,
    body: Bytes,
) -> Result<()> {
    complete(&mut head, ctx, &body)?;
    send_short_rendered(session, head, body).await
}

/// The client has `limits.client_write_seconds` for each write.
async fn send_rendered(session: &mut Session, head: ResponseHeader, body: Bytes) -> Result<()> {
    let Some(body) = send_head(session, head, body).await? else {
        return Ok(());
    };
    session.write_response_body(Some(body), true).await
}

/// Sends an answer for which the gateway hardly waits: it is small, and a client without a key can
/// ask for many.
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

/// Sends the head of an answer; returns its body where one is to follow.
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

/// Writes a body to an HTTP/2 stream. Where the client's window has no room for it at once, the
/// write waits a little, and not at all while [`MAX_WINDOW_WAITS`] others wait.
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
        .unwrap_or_else(|_| Err(cannot_write("the client opens no HTTP/2 window")))
}

fn cannot_write(reason: &'static str) -> Box<Error> {
    Error::explain(ErrorType::WriteError, reason).into_down()
}

/// Tells the client what failed: as an answer, or inside the stream that has begun.
pub async fn tell(session: &mut Session, error: &Error, ctx: &mut Context) -> Result<()> {
    let surface = ctx.surface;
    if let Some(call) = ctx.call()
        && !call.shared.progress().client_left()
        && let Some(end) = reply::finish_late(call, surface)
    {
        return session.write_response_body(Some(end), true).await;
    }
    if let Some(call) = ctx.call()
        && call.shared.is_keyed()
    {
        // Whoever reads of the failure finds the key decided.
        meter::resolve(call);
        call.shared.decided().await;
    }
    let (failure, unsent, began_stream) = match &mut ctx.stage {
        Stage::Call(call) => {
            let progress = call.shared.progress();
            if progress.client_left() || progress.completed {
                return Ok(());
            }
            let is_cut = progress.ended == Some(intake::Ended::Shutdown);
            let failure = call
                .failure
                .clone()
                .filter(|_| !is_cut)
                .unwrap_or_else(|| what_failed(call, error));
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
            let failure = match connections::body_flaw(session.digest()) {
                Some(flaw) => {
                    refusals::record(
                        flaw.reason,
                        ctx.caller.map(|caller| caller.address),
                        flaw.message,
                    );
                    Failure::from(flaw)
                }
                None => Failure::new(Kind::UpstreamUnreachable, "The dashboard does not answer."),
            };
            if is_page && session.response_written().is_none() {
                session.set_keepalive(None);
                return answer_page(session, ctx, &failure).await;
            }
            (failure, Vec::new(), false)
        }
        Stage::New | Stage::Answered { .. } => (Failure::of(Kind::Internal), Vec::new(), false),
    };
    if session.response_written().is_none() {
        if let Some(call) = ctx.call() {
            // Only the client's own session can announce that Pingora closes the connection after
            // this.
            intake::restore(session, &call.shared).await;
        }
        session.set_keepalive(None);
        return answer(session, ctx, &failure).await;
    }
    if began_stream {
        return end_stream(session, ctx, &failure, &unsent).await;
    }
    Ok(())
}

fn what_failed(call: &Call, error: &Error) -> Failure {
    if call.shared.progress().ended == Some(intake::Ended::Shutdown) {
        return Failure::of(Kind::Draining);
    }
    let timed_out = call.shared.progress().ended.is_some()
        || matches!(
            error.etype(),
            ErrorType::ReadTimedout | ErrorType::WriteTimedout | ErrorType::ConnectTimedout
        );
    Failure::of(if timed_out {
        Kind::UpstreamTimeout
    } else if call.shared.progress().has_begun() {
        Kind::UpstreamClosed
    } else {
        Kind::UpstreamFailed
    })
}

/// Ends a stream that has begun with a failure the client can read; a body that just ended would
/// pass for a whole answer. `unsent` is what was still to go out before.
async fn end_stream(
    session: &mut Session,
    ctx: &mut Context,
    failure: &Failure,
    unsent: &[u8],
) -> Result<()> {
    let bytes = [unsent, &last_event(ctx, failure)].concat();
    session.write_response_body(Some(bytes.into()), true).await
}

/// The event that ends a stream by a failure.
pub fn last_event(ctx: &mut Context, failure: &Failure) -> Vec<u8> {
    ctx.reason = Some(failure.reason());
    let voice = ctx.call().and_then(|call| call.reply.voice().cloned());
    aside::last_words(ctx.surface, voice.as_ref(), failure, &ctx.request_id)
}
