//! One answer on its way to the client: over HTTP/1.1, or over one stream of HTTP/2.
//!
//! It must not know the vendors, nor why an answer is broken (`play.rs` does). Read next: `http.rs`
//! and `http2.rs`, which send it.

use tokio::time::Instant;

use super::http::{Connection, Gone};
use super::http2::Stream;

/// How the body's end is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By `content-length`.
    Sized(usize),
    /// By the last chunk; over HTTP/2 by the end of the stream.
    Chunked,
}

/// The head of an answer.
pub struct Head {
    pub status: u16,
    /// Header lines in lower case, each with its line end; none that is about the connection.
    pub lines: String,
}

/// What becomes of the connection after an answer, or of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The answer has ended as its framing wants it.
    Next,
    /// The answer breaks off: the connection closes; over HTTP/2 the stream is reset.
    Close,
    /// The connection closes, and with it all other streams.
    Disconnect,
    /// The connection closes with a TCP reset.
    Reset,
    /// Nothing is left to close.
    Closed,
}

pub enum Exchange<'a> {
    Http1(&'a mut Connection),
    Http2(Stream),
}

impl Exchange<'_> {
    /// Begins the answer. `closes` says over HTTP/1.1 that no other request is answered.
    pub async fn send_head(
        &mut self,
        head: &Head,
        framing: Framing,
        closes: bool,
    ) -> Result<(), Gone> {
        match self {
            Self::Http1(connection) => connection.push_head(head, framing, closes).await,
            Self::Http2(stream) => stream.send_head(head, framing),
        }
    }

    /// Sends a piece of the body: one chunk, or one DATA frame where it fits into one.
    pub async fn send_piece(&mut self, bytes: &[u8], framing: Framing) -> Result<(), Gone> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Http1(connection) => connection.push_piece(bytes, framing).await,
            Self::Http2(stream) => stream.send_piece(bytes).await,
        }
    }

    /// Writes everything that was gathered.
    pub async fn flush(&mut self) -> Result<(), Gone> {
        match self {
            Self::Http1(connection) => connection.flush().await,
            // The connection's own task writes, and knows of every piece already.
            Self::Http2(_) => Ok(()),
        }
    }

    /// Ends the body as its framing wants it.
    pub async fn end(&mut self, framing: Framing) -> Result<(), Gone> {
        match self {
            Self::Http1(connection) => connection.push_end(framing).await,
            Self::Http2(stream) => stream.end(),
        }
    }

    /// Sends what no parser of chunks accepts; over HTTP/2, where there are none, the stream will
    /// be reset with `PROTOCOL_ERROR`.
    pub async fn break_framing(&mut self) -> Result<(), Gone> {
        match self {
            Self::Http1(connection) => connection.push_invalid_chunk().await,
            Self::Http2(stream) => {
                stream.blame_protocol();
                Ok(())
            }
        }
    }

    /// Ends a body that is shorter than its `content-length`: by a close, or by the stream's end.
    pub async fn end_short(&mut self) -> Result<After, Gone> {
        match self {
            Self::Http1(connection) => connection.flush().await.map(|()| After::Close),
            Self::Http2(stream) => stream.end().map(|()| After::Next),
        }
    }

    /// Waits, but notices if the client leaves.
    pub async fn pause_until(&mut self, deadline: Instant) -> Result<(), Gone> {
        match self {
            Self::Http1(connection) => connection.pause_until(deadline).await,
            Self::Http2(stream) => stream.pause_until(deadline).await,
        }
    }

    /// Waits for the client to leave, however long that takes.
    pub async fn gone(&mut self) -> Gone {
        match self {
            Self::Http1(connection) => connection.gone().await,
            Self::Http2(stream) => stream.gone().await,
        }
    }
}
