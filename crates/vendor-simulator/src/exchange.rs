//! Sends one answer to the client, over HTTP/1.1 or over one HTTP/2 stream.
//!
//! This file must not depend on a vendor, or decide whether an answer is broken (`sender.rs` does).
//! Read next: `http.rs` and `http2_stream.rs`, which send it.

use tokio::time::Instant;

use super::http::SimConnection;
use super::http_message::{ClientGone, ConnectionAction, SimFraming, SimResponseHead};
use super::http2_stream::SimHttp2Stream;

pub enum Exchange<'a> {
    Http1(&'a mut SimConnection),
    Http2(SimHttp2Stream),
}

impl Exchange<'_> {
    /// Sends the head. Over HTTP/1.1, `closes` announces that the connection closes after this
    /// answer.
    pub async fn send_head(
        &mut self,
        head: &SimResponseHead,
        framing: SimFraming,
        closes: bool,
    ) -> Result<(), ClientGone> {
        match self {
            Self::Http1(connection) => connection.push_head(head, framing, closes).await,
            Self::Http2(stream) => stream.send_head(head, framing),
        }
    }

    /// Sends a piece of the body: one chunk, or one DATA frame if it fits.
    pub async fn send_piece(
        &mut self,
        bytes: &[u8],
        framing: SimFraming,
    ) -> Result<(), ClientGone> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Http1(connection) => connection.push_piece(bytes, framing).await,
            Self::Http2(stream) => stream.send_piece(bytes).await,
        }
    }

    pub async fn flush(&mut self) -> Result<(), ClientGone> {
        match self {
            Self::Http1(connection) => connection.flush().await,
            // The connection's own task writes the data, and already has all pieces.
            Self::Http2(_) => Ok(()),
        }
    }

    /// Ends the body as its framing requires.
    pub async fn end(&mut self, framing: SimFraming) -> Result<(), ClientGone> {
        match self {
            Self::Http1(connection) => connection.push_end(framing).await,
            Self::Http2(stream) => stream.end(),
        }
    }

    /// Sends an invalid chunk. HTTP/2 has no chunks, so its stream will be reset with
    /// `PROTOCOL_ERROR`.
    pub async fn break_framing(&mut self) -> Result<(), ClientGone> {
        match self {
            Self::Http1(connection) => connection.push_invalid_chunk().await,
            Self::Http2(stream) => {
                stream.set_protocol_error();
                Ok(())
            }
        }
    }

    /// Ends a body that is shorter than its `content-length`, by closing the connection or ending
    /// the stream.
    pub async fn end_short(&mut self) -> Result<ConnectionAction, ClientGone> {
        match self {
            Self::Http1(connection) => connection.flush().await.map(|()| ConnectionAction::Close),
            Self::Http2(stream) => stream.end().map(|()| ConnectionAction::Next),
        }
    }

    /// Waits until `deadline`, or until the client disconnects.
    pub async fn pause_until(&mut self, deadline: Instant) -> Result<(), ClientGone> {
        match self {
            Self::Http1(connection) => connection.pause_until(deadline).await,
            Self::Http2(stream) => stream.pause_until(deadline).await,
        }
    }

    /// Waits until the client disconnects, without a time limit.
    pub async fn wait_until_gone(&mut self) -> ClientGone {
        match self {
            Self::Http1(connection) => connection.wait_until_gone().await,
            Self::Http2(stream) => stream.wait_until_gone().await,
        }
    }
}
