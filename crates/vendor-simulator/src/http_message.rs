//! Defines requests, heads of answers and ends of exchanges for every HTTP version.
//!
//! This file must not read or write bytes, which `http.rs` and `http2_stream.rs` do.

use std::io;

use bytes::Bytes;

pub const MAX_HEAD_BYTES: usize = 64 * 1024;
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub struct SimRequest {
    /// HTTP version: `1.1` or `2`.
    pub version: &'static str,
    pub method: String,
    /// Path and query as received.
    pub target: String,
    /// Header fields in order, with repetitions. Names are in lower case.
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

/// Method by which the client finds the end of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFraming {
    /// A `content-length` header announces the size in bytes.
    Sized(usize),
    /// The last chunk ends the body; over HTTP/2, the end of the stream does.
    Chunked,
}

pub struct SimResponseHead {
    pub status: u16,
    /// Header lines in lower case, each with its line end, without connection headers.
    pub lines: String,
}

/// Action on the connection or the stream after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionAction {
    /// The answer ended properly, and the next request may follow.
    Next,
    /// The answer was cut off, so the connection is closed; over HTTP/2, the stream is reset.
    Close,
    /// The connection closes with all its streams.
    Disconnect,
    /// The connection closes with a TCP reset.
    Reset,
    /// Everything is already closed.
    Closed,
}

/// Reason why no request was read.
#[derive(Debug)]
pub enum ReadError {
    /// The connection was closed or broke.
    Closed,
    /// The request is unacceptable, and the response has this status.
    Refused(u16),
}

impl From<io::Error> for ReadError {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// Error for a client that has disconnected.
#[derive(Debug)]
pub struct ClientGone;

impl From<io::Error> for ClientGone {
    fn from(_: io::Error) -> Self {
        Self
    }
}
