//! The only place where a failure of the edge becomes an answer, in the shape of the surface that was called.
//!
//! Must not decide what failed.

use super::context::Context;
use crate::protocol::failure::Failure;
use crate::telemetry::METRICS;
use bytes::Bytes;
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

/// Answers with a failure, before anything else was sent. The connection stays usable where the body was read.
pub async fn answer(session: &mut Session, ctx: &mut Context, failure: &Failure) -> Result<()> {
    let rendered = failure.render(ctx.surface, &ctx.request_id);
    ctx.status = rendered.status;
    ctx.reason = Some(failure.reason());
    METRICS.rejected.with_label_values(&[failure.reason()]).inc();
    let mut head = ResponseHeader::build(rendered.status, Some(8))?;
    for (name, value) in rendered.headers {
        head.insert_header(name, value)?;
    }
    send(session, ctx, head, rendered.body.into()).await
}

/// Sends a whole answer with this request's id.
pub async fn send(session: &mut Session, ctx: &Context, mut head: ResponseHeader, body: Bytes) -> Result<()> {
    head.insert_header("x-request-id", &ctx.request_id)?;
    head.insert_header("request-id", &ctx.request_id)?;
    head.insert_header("content-length", body.len())?;
    let bodiless = session.req_header().method == http::Method::HEAD || body.is_empty();
    session.write_response_header(Box::new(head), bodiless).await?;
    if !bodiless {
        session.write_response_body(Some(body), true).await?;
    }
    Ok(())
}

/// Ends a stream that has begun with a failure the client can read; a body that just ended would pass for a whole
/// answer. `unsent` is what was still to go out before.
pub async fn end_stream(session: &mut Session, ctx: &mut Context, failure: &Failure, unsent: &[u8]) -> Result<()> {
    ctx.reason = Some(failure.reason());
    let mut bytes = unsent.to_vec();
    bytes.extend_from_slice(&failure.frame(ctx.surface, &ctx.request_id));
    session.write_response_body(Some(bytes.into()), true).await
}
