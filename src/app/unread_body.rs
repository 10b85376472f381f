//! Reads the rest of a body whose request was answered before the body was read.
//!
//! If the server closed the connection while the client still sends, some clients would fail at a
//! write and never read the response. So the server reads and discards the rest for a bounded time.
//! This file must not keep what it reads.

use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::extract::Request;
use futures_util::{Stream, StreamExt as _};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;

/// Maximum time for which the rest of a body is read.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes a request's body one that is read to its end, even if no handler does.
pub fn read_to_end(request: Request) -> Request {
    request.map(|body| match body.is_end_stream() {
        true => body,
        false => Body::from_stream(ReadToEnd(Some(body.into_data_stream()))),
    })
}

/// A body whose rest is discarded when it is dropped. `None` once it has ended.
struct ReadToEnd(Option<BodyDataStream>);

impl Stream for ReadToEnd {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let next = body.poll_next_unpin(cx);
        if !matches!(next, Poll::Pending | Poll::Ready(Some(Ok(_)))) {
            self.0 = None;
        }
        next
    }
}

impl Drop for ReadToEnd {
    fn drop(&mut self) {
        let (Some(mut rest), Ok(runtime)) = (self.0.take(), Handle::try_current()) else {
            return;
        };
        runtime.spawn(tokio::time::timeout(DISCARD_TIMEOUT, async move {
            while let Some(Ok(_)) = rest.next().await {}
        }));
    }
}
