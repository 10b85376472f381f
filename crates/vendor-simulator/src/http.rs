//! Implements HTTP/1.1 on a bare socket: parses requests and writes bytes.
//!
//! The simulator has its own implementation, because a real server library refuses to send broken
//! framing, to hang or to reset. This file must not depend on a vendor. Read next: `exchange.rs`,
//! which uses it, and `http2_stream.rs`, its counterpart.

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until};

use super::http_message::{
    ClientGone, ConnectionAction, MAX_BODY_BYTES, MAX_HEAD_BYTES, ReadError, SimFraming,
    SimRequest, SimResponseHead,
};
use super::socket::Socket;

/// Maximum length of a chunk's size line or of a trailer.
const MAX_LINE_BYTES: usize = 4 * 1024;
/// Maximum number of bytes read ahead while an answer is being sent.
const MAX_READ_AHEAD_BYTES: usize = 256 * 1024;
/// Number of output bytes that are buffered before a write.
const WRITE_BUFFER_BYTES: usize = 32 * 1024;

pub struct SimConnection {
    stream: Socket,
    input: BytesMut,
    output: Vec<u8>,
}

impl SimConnection {
    pub fn new(stream: Socket) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            output: Vec::new(),
        }
    }

    pub async fn read_request(&mut self) -> Result<SimRequest, ReadError> {
        let head_length = loop {
            if let Some(at) = memmem::find(&self.input, b"\r\n\r\n") {
                break at + 4;
            }
            if self.input.len() > MAX_HEAD_BYTES {
                return Err(ReadError::Refused(431));
            }
            self.fill(4096).await?;
        };
        let head = self.input.split_to(head_length);
        let mut request = parse_head(&head).ok_or(ReadError::Refused(400))?;
        let chunked = request
            .header("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        let length = match request.header("content-length") {
            Some(value) => value.parse().map_err(|_| ReadError::Refused(400))?,
            None => 0,
        };
        let expects = request
            .header("expect")
            .is_some_and(|value| value.eq_ignore_ascii_case("100-continue"));
        if expects && self.input.is_empty() {
            self.stream
                .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                .await?;
            self.stream.flush().await?;
        }
        request.body = if chunked {
            self.read_chunked().await?
        } else {
            self.read_sized(length).await?
        };
        Ok(request)
    }

    async fn read_sized(&mut self, length: usize) -> Result<Bytes, ReadError> {
        if length > MAX_BODY_BYTES {
            return Err(ReadError::Refused(413));
        }
        while self.input.len() < length {
            self.fill(length - self.input.len()).await?;
        }
        Ok(self.input.split_to(length).freeze())
    }

    async fn read_chunked(&mut self) -> Result<Bytes, ReadError> {
        let mut body = BytesMut::new();
        loop {
            let line = self.read_line().await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| ReadError::Refused(400))?;
            if size == 0 {
                break;
            }
            if size > MAX_BODY_BYTES - body.len() {
                return Err(ReadError::Refused(413));
            }
            body.extend_from_slice(&self.read_sized(size).await?);
            if !self.read_line().await?.is_empty() {
                return Err(ReadError::Refused(400));
            }
        }
        while !self.read_line().await?.is_empty() {}
        Ok(body.freeze())
    }

    async fn read_line(&mut self) -> Result<String, ReadError> {
        loop {
            if let Some(at) = memmem::find(&self.input, b"\r\n") {
                let line = self.input.split_to(at);
                self.input.advance(2);
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if self.input.len() > MAX_LINE_BYTES {
                return Err(ReadError::Refused(400));
            }
            self.fill(4096).await?;
        }
    }

    async fn fill(&mut self, additional: usize) -> Result<(), ReadError> {
        self.input.reserve(additional);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(ReadError::Closed),
            _ => Ok(()),
        }
    }

    pub async fn push_head(
        &mut self,
        head: &SimResponseHead,
        framing: SimFraming,
        closes: bool,
    ) -> Result<(), ClientGone> {
        let SimResponseHead { status, lines } = head;
        let framing = match framing {
            SimFraming::Sized(length) => format!("content-length: {length}\r\n"),
            SimFraming::Chunked => "transfer-encoding: chunked\r\n".to_owned(),
        };
        let closes = if closes { "connection: close\r\n" } else { "" };
        let text = format!(
            "HTTP/1.1 {status} {}\r\n{lines}{framing}{closes}\r\n",
            reason(*status)
        );
        self.push(text.as_bytes()).await
    }

    pub async fn push_piece(
        &mut self,
        bytes: &[u8],
        framing: SimFraming,
    ) -> Result<(), ClientGone> {
        if framing != SimFraming::Chunked {
            return self.push(bytes).await;
        }
        self.push(format!("{:x}\r\n", bytes.len()).as_bytes())
            .await?;
        self.push(bytes).await?;
        self.push(b"\r\n").await
    }

    pub async fn push_end(&mut self, framing: SimFraming) -> Result<(), ClientGone> {
        if framing == SimFraming::Chunked {
            self.push(b"0\r\n\r\n").await?;
        }
        self.flush().await
    }

    /// Sends a chunk that no parser accepts.
    pub async fn push_invalid_chunk(&mut self) -> Result<(), ClientGone> {
        self.push(b"zz\r\nnot a chunk\r\n").await?;
        self.flush().await
    }

    /// Buffers bytes of an answer. They are sent once there are enough of them, or by
    /// [`Self::flush`].
    async fn push(&mut self, bytes: &[u8]) -> Result<(), ClientGone> {
        self.output.extend_from_slice(bytes);
        if self.output.len() >= WRITE_BUFFER_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    pub async fn flush(&mut self) -> Result<(), ClientGone> {
        let written = self.stream.write_all(&self.output).await;
        self.output.clear();
        self.output.shrink_to(WRITE_BUFFER_BYTES * 2);
        written?;
        // TLS may have buffered the last bytes, so they are flushed.
        Ok(self.stream.flush().await?)
    }

    /// Waits until `deadline`, or until the client disconnects.
    pub async fn pause_until(&mut self, deadline: Instant) -> Result<(), ClientGone> {
        let timer = sleep_until(deadline);
        tokio::pin!(timer);
        loop {
            let may_read_ahead = self.input.len() < MAX_READ_AHEAD_BYTES;
            tokio::select! {
                () = &mut timer => return Ok(()),
                read = self.stream.read_buf(&mut self.input), if may_read_ahead => {
                    if read? == 0 {
                        return Err(ClientGone);
                    }
                }
            }
        }
    }

    /// Waits until the client disconnects, without a time limit.
    pub async fn wait_until_gone(&mut self) -> ClientGone {
        loop {
            self.input.clear();
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return ClientGone,
                Ok(_) => {}
            }
        }
    }

    /// Responds to an unacceptable request in a format that belongs to no vendor.
    pub async fn refuse(&mut self, status: u16) -> ConnectionAction {
        let head =
            format!("HTTP/1.1 {status} Refused\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        match self.push(head.as_bytes()).await {
            Ok(()) if self.flush().await.is_ok() => ConnectionAction::Close,
            _ => ConnectionAction::Closed,
        }
    }

    /// Closes the connection normally, so that the client reads an end of file.
    pub async fn close(mut self) {
        // An error means that the client closed first, which is harmless.
        let _ = self.stream.shutdown().await;
    }

    /// Closes the connection with a reset, so that the client reads an error.
    pub fn reset(self) {
        self.stream.state().reset_on_close();
    }
}

fn parse_head(head: &[u8]) -> Option<SimRequest> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let mut parts = lines.next()?.split(' ');
    let (method, target, version) = (parts.next()?, parts.next()?, parts.next()?);
    let mut headers = Vec::with_capacity(16);
    for line in lines {
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = SimRequest {
        version: "1.1",
        method: method.to_owned(),
        target: target.to_owned(),
        headers,
        body: Bytes::new(),
        keeps_alive: version == "HTTP/1.1",
    };
    match request
        .header("connection")
        .map(str::to_ascii_lowercase)
        .as_deref()
    {
        Some("close") => request.keeps_alive = false,
        Some("keep-alive") => request.keeps_alive = true,
        _ => {}
    }
    Some(request)
}

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Simulated")
}
