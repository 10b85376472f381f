//! Requests, heads of answers and ends of exchanges, the same for every HTTP version.
//!
//! This file must not read or write bytes: `http.rs` and `http2_stream.rs` do.

use std::io;

use bytes::Bytes;

pub const MAX_HEAD_BYTES: usize = 64 * 1024;
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// A complete request.
#[derive(Debug)]
pub struct SimRequest {
    /// `1.1` or `2`.
    pub version: &'static str,
    pub method: String,
    /// Path and query, as received.
    pub target: String,
    /// Header fields in order, with repetitions; names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    pub keeps_alive: bool,
}

impl SimRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

/// How the client finds the end of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFraming {
    /// `content-length`.
    Sized(usize),
    /// The last chunk; over HTTP/2, the end of the stream.
    Chunked,
}

/// The head of an answer.
pub struct SimResponseHead {
    pub status: u16,
    /// Header lines in lower case, each with its line end, without connection headers.
    pub lines: String,
}

/// What happens to the connection or the stream after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionAction {
    /// The answer ended properly in its framing; the next request may follow.
    Next,
    /// The answer breaks off: the connection closes; over HTTP/2 the stream is reset.
    Close,
    /// The connection closes, and with it all other streams.
    Disconnect,
    /// The connection closes with a TCP reset.
    Reset,
    /// Everything is already closed.
    Closed,
}

/// Reason why there is no request.
#[derive(Debug)]
pub enum ReadError {
    /// The client closed the connection, or it broke.
    Closed,
    /// The request is not acceptable; holds the status of the response.
    Refused(u16),
}

impl From<io::Error> for ReadError {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// The client has disconnected.
#[derive(Debug)]
pub struct ClientGone;

impl From<io::Error> for ClientGone {
    fn from(_: io::Error) -> Self {
        Self
    }
}
