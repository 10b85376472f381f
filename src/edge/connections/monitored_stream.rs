//! Monitors a client's connection. It enforces a deadline and a maximum size for a header, closes a
//! connection whose client does not read, and records the requests that Pingora refuses by itself.
//!
//! It forwards everything to the stream inside, with one exception: it replaces the empty response
//! that Pingora writes to a malformed HTTP/1 request with the gateway's own. It must not withhold
//! bytes.

use super::http2_frames::{FrameObserver, RefusedFrame};
use super::registry::ClientConnection;
use crate::edge::client_pace::PaceCheck;
use crate::edge::silence_timer::{SilenceTimer, wait_until};
use async_trait::async_trait;
use base::telemetry::refusals::RefusalReason;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

/// Maximum number of bytes that one read may return after the end of a header. They belong to the
/// body and the next request.
const MAX_BYTES_AFTER_HEADER: u64 = 65_536;

/// First bytes of an HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Protocol of a connection. The first bytes decide it.
enum ConnectionProtocol {
    Http1,
    Http2 {
        /// Number of preface bytes that have arrived.
        preface: usize,
        frames: FrameObserver,
    },
}

pub struct MonitoredStream {
    inner: Stream,
    connection: Arc<ClientConnection>,
    protocol: ConnectionProtocol,
    /// Bytes that were read to detect the protocol and that Pingora has not read yet.
    peeked: Vec<u8>,
    /// Unsent part of the response that replaces Pingora's.
    response: Vec<u8>,
    /// Number of bytes read since the current header began.
    header_bytes: u64,
    /// Timer for the current header. The stream creates it when it waits for a header, and resets
    /// it if it fires too early.
    timer: Option<SilenceTimer>,
    /// Timer for a blocked write, and the measurement of what the client acknowledges meanwhile.
    blocked: Option<(SilenceTimer, PaceCheck)>,
}

impl MonitoredStream {
    pub fn new(inner: Stream, connection: Arc<ClientConnection>) -> Self {
        let protocol = match inner.selected_alpn_proto() {
            Some(ALPN::H2) => ConnectionProtocol::Http2 {
                preface: 0,
                frames: FrameObserver::default(),
            },
            _ => ConnectionProtocol::Http1,
        };
        let (peeked, response) = (Vec::new(), Vec::new());
        Self {
            inner,
            connection,
            protocol,
            peeked,
            response,
            header_bytes: 0,
            timer: None,
            blocked: None,
        }
    }

    /// Turns a write into an error if neither the write nor the client makes progress at the
    /// minimum pace. Pingora's own timeout covers a whole write regardless of progress, and does
    /// not cover a flush, the end of a body or a shutdown.
    fn limit_write<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let limit = self.connection.client_write;
        loop {
            let (timer, pace) = self.blocked.get_or_insert_with(|| {
                let socket = self.inner.get_socket_digest();
                let pace = PaceCheck::begin(socket.as_deref());
                (SilenceTimer::new(Instant::now() + limit), pace)
            });
            ready!(Pin::new(timer).poll(context));
            if !pace.is_kept(self.inner.get_socket_digest().as_deref(), limit) {
                let error = io::Error::new(io::ErrorKind::TimedOut, "the client does not read");
                return Poll::Ready(Err(error));
            }
            self.blocked = None;
        }
    }

    /// Becomes ready once the current header has taken too long.
    fn poll_header_timeout(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let Some(deadline) = self.connection.header_deadline() else {
                return Poll::Pending;
            };
            let deadline = deadline.into();
            let timer = self
                .timer
                .get_or_insert_with(|| SilenceTimer::new(deadline));
            if timer.deadline() != deadline {
                timer.reset(deadline);
            }
            ready!(Pin::new(timer).poll(context));
            if self
                .connection
                .header_deadline()
                .is_some_and(|now| now == deadline.into_std())
            {
                return Poll::Ready(self.header_timeout_error());
            }
        }
    }

    fn header_timeout_error(&self) -> io::Error {
        let (reason, detail) = match self.header_bytes {
            0 => (RefusalReason::Silent, "the client sent nothing in time"),
            _ => (
                RefusalReason::HeaderTimeout,
                "a request's header took too long",
            ),
        };
        self.connection.record_refusal(reason, &detail);
        io::Error::new(io::ErrorKind::TimedOut, detail)
    }

    /// Inspects bytes that were read. An empty slice means the end of the client's data.
    fn inspect_read(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            let is_http1 = matches!(self.protocol, ConnectionProtocol::Http1);
            if is_http1 && self.header_bytes > 0 && self.connection.header_deadline().is_some() {
                self.connection.record_refusal(
                    RefusalReason::HeaderIncomplete,
                    &"the client closed its connection in the middle of a header",
                );
            }
            return Ok(());
        }
        self.count_header_bytes(bytes.len())?;
        match &mut self.protocol {
            ConnectionProtocol::Http1 => self
                .connection
                .inbound()
                .read(bytes)
                .map_err(|defect| io::Error::new(io::ErrorKind::InvalidData, defect.message)),
            ConnectionProtocol::Http2 { preface, frames } => {
                let expected = &PREFACE[*preface..];
                let (begin, rest) = bytes.split_at(expected.len().min(bytes.len()));
                let (reason, detail) = if !expected.starts_with(begin) {
                    (
                        RefusalReason::Http2Preface,
                        "the connection does not begin with the HTTP/2 preface",
                    )
                } else if frames.observe_received(rest) {
                    (
                        RefusalReason::Http2Flood,
                        "too many bytes of HTTP/2 frames without content",
                    )
                } else {
                    *preface += begin.len();
                    return Ok(());
                };
                self.connection.record_refusal(reason, &detail);
                Err(io::Error::new(io::ErrorKind::InvalidData, detail))
            }
        }
    }

    fn count_header_bytes(&mut self, bytes: usize) -> io::Result<()> {
        if self.connection.begin_header() {
            self.header_bytes = 0;
        }
        if self.connection.header_deadline().is_none() {
            return Ok(());
        }
        self.header_bytes = self.header_bytes.saturating_add(bytes as u64);
        // A header slightly above the limit gets a response. This one is so long that it is not
        // read to its end.
        if self.header_bytes
            > self
                .connection
                .header_bytes
                .saturating_mul(2)
                .saturating_add(MAX_BYTES_AFTER_HEADER)
        {
            // The HTTP/2 library bounds headers by itself. So many bytes before the first request
            // can only be control frames.
            let (reason, detail) = match self.protocol {
                ConnectionProtocol::Http1 => (
                    RefusalReason::HeaderTooLarge,
                    "a request's header is too large",
                ),
                ConnectionProtocol::Http2 { .. } => (
                    RefusalReason::Http2Flood,
                    "too many bytes of HTTP/2 frames before a request",
                ),
            };
            self.connection.record_refusal(reason, &detail);
            return Err(io::Error::new(io::ErrorKind::InvalidData, detail));
        }
        Ok(())
    }

    /// Inspects bytes that Pingora writes. Returns true if they are its response to a malformed
    /// request, which the gateway replaces.
    fn inspect_write(&mut self, bytes: &[u8]) -> bool {
        match &mut self.protocol {
            ConnectionProtocol::Http1
                if self.connection.is_serving() || !bytes.starts_with(b"HTTP/1.") =>
            {
                false
            }
            ConnectionProtocol::Http1 => {
                self.response = self.connection.malformed_response(bytes);
                true
            }
            ConnectionProtocol::Http2 { frames, .. } => {
                let connection = &self.connection;
                frames.observe_sent(bytes, |refused| match refused {
                    RefusedFrame::Error(reason, code) => {
                        connection.record_refusal(reason, &format_args!("HTTP/2 error {code}"));
                    }
                    RefusedFrame::Answer(reason, status) => {
                        connection.record_bare_answer(reason, status);
                    }
                });
                false
            }
        }
    }

    /// Writes the gateway's own response instead of Pingora's.
    fn poll_write_response(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.response.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(context, &self.response))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.response.drain(..written);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the client until it is clear whether it speaks HTTP/2, and keeps the bytes.
    /// Returns false at the end of the client's data.
    async fn detect_preface(&mut self) -> io::Result<bool> {
        let mut buffer = [0; PREFACE.len()];
        while self.peeked.len() < PREFACE.len() && PREFACE.starts_with(&self.peeked) {
            let left = PREFACE.len() - self.peeked.len();
            let read = self.inner.read(&mut buffer[..left]).await?;
            if read == 0 {
                return Ok(!self.peeked.is_empty());
            }
            self.peeked.extend_from_slice(&buffer[..read]);
        }
        Ok(true)
    }
}

impl AsyncRead for MonitoredStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let from_peeked = this.peeked.len().min(buffer.remaining());
        if from_peeked > 0 {
            buffer.put_slice(&this.peeked[..from_peeked]);
            this.peeked.drain(..from_peeked);
            if this.peeked.is_empty() {
                this.peeked = Vec::new();
            }
        }
        if buffer.remaining() > 0 {
            match Pin::new(&mut this.inner).poll_read(context, buffer) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // Report an end of data, as if the client had closed the connection. Pingora then
                // ends the connection without an error.
                Poll::Pending
                    if from_peeked == 0 && this.connection.poll_closing(context.waker()) =>
                {
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending if from_peeked == 0 => {
                    return this.poll_header_timeout(context).map(Err);
                }
                Poll::Pending => {}
            }
        } else if from_peeked == 0 {
            return Poll::Ready(Ok(()));
        }
        let bytes = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(this.inspect_read(bytes))
    }
}

impl AsyncWrite for MonitoredStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let is_http1 = matches!(this.protocol, ConnectionProtocol::Http1);
        if is_http1 && this.inspect_write(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.inner).poll_write(context, bytes);
        let written = ready!(this.limit_write(context, written))?;
        if !is_http1 {
            this.inspect_write(bytes.get(..written).unwrap_or_default());
        }
        Poll::Ready(Ok(written))
    }
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match this.poll_write_response(context) {
            Poll::Ready(Ok(())) => Pin::new(&mut this.inner).poll_flush(context),
            unwritten => unwritten,
        };
        this.limit_write(context, flushed)
    }
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut_down = match this.poll_write_response(context) {
            Poll::Ready(Ok(())) => Pin::new(&mut this.inner).poll_shutdown(context),
            unwritten => unwritten,
        };
        this.limit_write(context, shut_down)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(context, pieces);
        let written = ready!(this.limit_write(context, written))?;
        if let ConnectionProtocol::Http2 { .. } = this.protocol {
            let mut left = written;
            for piece in pieces {
                let of_piece = left.min(piece.len());
                this.inspect_write(&piece[..of_piece]);
                left -= of_piece;
            }
        }
        Poll::Ready(Ok(written))
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[async_trait]
impl Peek for MonitoredStream {
    /// Pingora's check for the HTTP/2 preface. The check waits only for as many bytes as
    /// distinguish the protocols.
    async fn try_peek(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let connection = Arc::clone(&self.connection);
        let peeked = async {
            tokio::select! {
                biased;
                peeked = self.detect_preface() => peeked,
                // The gateway closes the connection to make room for others, although the client
                // has not sent a byte.
                () = poll_fn(|context| connection.poll_closed(context)) => Ok(false),
            }
        };
        match wait_until(Instant::now() + connection.header_read, peeked).await {
            Some(Ok(true)) => {}
            Some(Ok(false)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(Err(error)) => return Err(error),
            None => {
                self.header_bytes = self.peeked.len() as u64;
                return Err(self.header_timeout_error());
            }
        }
        let peeked = self.peeked.len().min(buffer.len());
        buffer[..peeked].copy_from_slice(&self.peeked[..peeked]);
        if self.peeked == PREFACE {
            self.protocol = ConnectionProtocol::Http2 {
                preface: 0,
                frames: FrameObserver::default(),
            };
        }
        Ok(true)
    }
}

#[async_trait]
impl Shutdown for MonitoredStream {
    async fn shutdown(&mut self) {
        // The rest cannot be delivered if the client has closed its connection or does not read.
        let _ = self.flush().await;
        let limit = self.connection.client_write;
        let _ = tokio::time::timeout(limit, Shutdown::shutdown(self.inner.as_mut())).await;
    }
}

impl UniqueID for MonitoredStream {
    fn id(&self) -> UniqueIDType {
        self.inner.id()
    }
}

impl Ssl for MonitoredStream {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.inner.get_ssl_digest()
    }
    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.inner.selected_alpn_proto()
    }
}

impl GetTimingDigest for MonitoredStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.inner.get_timing_digest()
    }
    fn get_read_pending_time(&self) -> Duration {
        self.inner.get_read_pending_time()
    }
    fn get_write_pending_time(&self) -> Duration {
        self.inner.get_write_pending_time()
    }
}

impl GetProxyDigest for MonitoredStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.inner.get_proxy_digest()
    }
}

impl GetSocketDigest for MonitoredStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_socket_digest()
    }
}

impl fmt::Debug for MonitoredStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
