//! Represents a client's connection as a byte stream, with or without TLS.
//!
//! Unlike a plain stream, it can report whether a write is blocked, and close with a TCP reset.
//! This file must not depend on HTTP.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub struct Socket {
    transport: Transport,
    state: Arc<SocketState>,
}

/// State of a socket that a server library owns and does not expose.
#[derive(Debug, Default)]
pub struct SocketState {
    is_blocked: AtomicBool,
    resets: AtomicBool,
}

impl SocketState {
    /// Returns whether the last write or flush could not complete because the client does not read.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked.load(Relaxed)
    }

    /// Makes the socket close with a reset, so the client reads an error instead of an end of file.
    pub fn reset_on_close(&self) {
        self.resets.store(true, Relaxed);
    }

    fn record_blocking<T>(&self, written: Poll<T>) -> Poll<T> {
        self.is_blocked.store(written.is_pending(), Relaxed);
        written
    }
}

impl Socket {
    pub fn plain(stream: TcpStream) -> Self {
        Self::new(Transport::Plain(stream))
    }

    pub fn tls(stream: TlsStream<TcpStream>) -> Self {
        Self::new(Transport::Tls(Box::new(stream)))
    }

    fn new(transport: Transport) -> Self {
        Self {
            transport,
            state: Arc::default(),
        }
    }

    pub fn state(&self) -> Arc<SocketState> {
        Arc::clone(&self.state)
    }

    fn transport(self: Pin<&mut Self>) -> &mut Transport {
        &mut self.get_mut().transport
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.state.resets.load(Relaxed) {
            return;
        }
        let tcp = match &self.transport {
            Transport::Plain(tcp) => tcp,
            Transport::Tls(tls) => tls.get_ref().0,
        };
        // Without the option, the close is an ordinary one, which the test detects.
        let _ = tcp.set_zero_linger();
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.transport() {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let state = self.state();
        state.record_blocking(match self.transport() {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        })
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = self.state();
        state.record_blocking(match self.transport() {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        })
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.transport() {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
