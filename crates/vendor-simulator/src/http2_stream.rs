//! Implements the response side of one HTTP/2 stream.
//!
//! A library implements the protocol. This file must not depend on a vendor. Read next:
//! `exchange.rs`, which uses a stream, and `http2.rs`, which serves the connection.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tokio::time::{Instant, sleep_until};

use super::http_message::{ClientGone, SimFraming, SimResponseHead};

/// Maximum number of bytes per send: the default size of one DATA frame.
const MAX_PIECE_BYTES: usize = 16 * 1024;

pub struct SimHttp2Stream {
    responder: SendResponse<Bytes>,
    /// The sending half of the stream, once the head has been sent.
    body: Option<SendStream<Bytes>>,
    /// Error code of a reset.
    reason: Reason,
}

impl SimHttp2Stream {
    pub fn new(responder: SendResponse<Bytes>) -> Self {
        Self {
            responder,
            body: None,
            reason: Reason::INTERNAL_ERROR,
        }
    }

    pub fn send_head(
        &mut self,
        head: &SimResponseHead,
        framing: SimFraming,
    ) -> Result<(), ClientGone> {
        let mut response = Response::new(());
        *response.status_mut() =
            StatusCode::from_u16(head.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        for line in head.lines.lines() {
            let Some((name, value)) = line.split_once(": ") else {
                continue;
            };
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                headers.append(name, value);
            }
        }
        if let SimFraming::Sized(length) = framing {
            headers.insert(http::header::CONTENT_LENGTH, length.into());
        }
        self.body = Some(
            self.responder
                .send_response(response, false)
                .map_err(|_| ClientGone)?,
        );
        Ok(())
    }

    /// Sends bytes within the client's flow control window.
    pub async fn send_piece(&mut self, mut bytes: &[u8]) -> Result<(), ClientGone> {
        let body = self.body.as_mut().ok_or(ClientGone)?;
        while !bytes.is_empty() {
            body.reserve_capacity(bytes.len().min(MAX_PIECE_BYTES));
            // The library wakes this task only for additional capacity, not for existing capacity.
            while body.capacity() == 0 {
                match poll_fn(|cx| body.poll_capacity(cx)).await {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Err(ClientGone),
                }
            }
            let (piece, rest) =
                bytes.split_at(body.capacity().min(bytes.len()).min(MAX_PIECE_BYTES));
            body.send_data(Bytes::copy_from_slice(piece), false)
                .map_err(|_| ClientGone)?;
            bytes = rest;
        }
        Ok(())
    }

    pub fn end(&mut self) -> Result<(), ClientGone> {
        self.body
            .as_mut()
            .ok_or(ClientGone)?
            .send_data(Bytes::new(), true)
            .map_err(|_| ClientGone)
    }

    /// Makes a later reset report a protocol error instead of an internal error.
    pub fn set_protocol_error(&mut self) {
        self.reason = Reason::PROTOCOL_ERROR;
    }

    pub async fn pause_until(&mut self, deadline: Instant) -> Result<(), ClientGone> {
        let mut timer = pin!(sleep_until(deadline));
        poll_fn(|cx| match self.poll_reset(cx) {
            Poll::Ready(gone) => Poll::Ready(Err(gone)),
            Poll::Pending => timer.as_mut().poll(cx).map(Ok),
        })
        .await
    }

    pub async fn wait_until_gone(&mut self) -> ClientGone {
        poll_fn(|cx| self.poll_reset(cx)).await
    }

    /// Polls until the client has reset the stream, or the connection has ended.
    fn poll_reset(&mut self, cx: &mut std::task::Context<'_>) -> Poll<ClientGone> {
        let reset = match &mut self.body {
            Some(body) => body.poll_reset(cx),
            None => self.responder.poll_reset(cx),
        };
        reset.map(|_| ClientGone)
    }

    /// Discards all unsent data, and ends the stream with an error.
    pub fn reset(&mut self) {
        match &mut self.body {
            Some(body) => body.send_reset(self.reason),
            None => self.responder.send_reset(self.reason),
        }
    }
}
