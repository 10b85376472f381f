//! A client's connection whose header has a deadline and a size.
//!
//! Hands everything on to the stream inside. Must not hold bytes back, nor know what they say.

use super::Connection;
use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType,
};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What may come in one read behind the end of a header: its body, and the next request.
const BEHIND_A_HEADER: u64 = 65_536;

pub struct Watched {
    inner: Stream,
    connection: Arc<Connection>,
    /// Bytes read of the present header, and of what came with it.
    header_bytes: u64,
    /// Made when a header is waited for; set anew where it fires too early.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    pub fn new(inner: Stream, connection: Arc<Connection>) -> Self {
        Self { inner, connection, header_bytes: 0, timer: None }
    }

    /// Ready once the header that is being read has taken too long.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let Some(deadline) = self.connection.header_deadline() else { return Poll::Pending };
            let deadline = deadline.into();
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            ready!(timer.as_mut().poll(context));
            if self.connection.header_deadline().is_some_and(|now| now == deadline.into_std()) {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "a request's header took too long"));
            }
        }
    }

    fn count(&mut self, bytes: usize) -> io::Result<()> {
        if self.connection.heard() {
            self.header_bytes = 0;
        }
        if self.connection.header_deadline().is_none() {
            return Ok(());
        }
        self.header_bytes = self.header_bytes.saturating_add(bytes as u64);
        // A header a little over the limit is told so; this one is not read to its end.
        if self.header_bytes > self.connection.header_bytes.saturating_mul(2).saturating_add(BEHIND_A_HEADER) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a request's header is too large"));
        }
        Ok(())
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.inner).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => Poll::Ready(this.count(buffer.filled().len().saturating_sub(before))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // As if the client had closed: Pingora then ends the connection without an error.
            Poll::Pending if this.connection.poll_closing(context.waker()) => Poll::Ready(Ok(())),
            Poll::Pending => this.poll_late(context).map(Err),
        }
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, pieces)
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[async_trait]
impl Peek for Watched {
    /// How Pingora looks for HTTP/2's opening words: it waits for all 24 bytes of them.
    async fn try_peek(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        match tokio::time::timeout(self.connection.header_read, self.inner.try_peek(buffer)).await {
            Ok(peeked) => peeked,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

#[async_trait]
impl Shutdown for Watched {
    async fn shutdown(&mut self) {
        self.inner.shutdown().await;
    }
}

impl UniqueID for Watched {
    fn id(&self) -> UniqueIDType {
        self.inner.id()
    }
}

impl Ssl for Watched {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.inner.get_ssl_digest()
    }
    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.inner.selected_alpn_proto()
    }
}

impl GetTimingDigest for Watched {
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

impl GetProxyDigest for Watched {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.inner.get_proxy_digest()
    }
}

impl GetSocketDigest for Watched {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_socket_digest()
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("inner", &self.inner).finish_non_exhaustive()
    }
}
