//! Connects to a sidecar in the same process, over an in-memory connection that Pingora treats as a
//! socket.
//!
//! This file must not depend on pages.

use crate::local_link::LocalConnector;
use async_trait::async_trait;
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora::{ErrorType, OrErr, Result};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// Opens in-memory connections to the sidecar.
#[derive(Debug, Clone)]
pub struct LocalSidecar(Arc<SidecarConnector>);

#[derive(Debug)]
struct SidecarConnector(LocalConnector);

impl LocalSidecar {
    pub fn new(connector: LocalConnector) -> Self {
        Self(Arc::new(SidecarConnector(connector)))
    }

    pub fn is_open(&self) -> bool {
        self.0.0.is_open()
    }

    /// Returns the connector in the form that Pingora expects.
    pub fn connect(&self) -> Arc<dyn L4Connect + Send + Sync> {
        Arc::clone(&self.0) as _
    }
}

#[async_trait]
impl L4Connect for SidecarConnector {
    async fn connect(&self, _address: &SocketAddr) -> Result<Stream> {
        let stream = self.0.connect().await.or_err(
            ErrorType::ConnectRefused,
            "cannot connect to the sidecar in this process",
        )?;
        Ok(VirtualSocketStream::new(Box::new(LocalSocket(stream))).into())
    }
}

#[derive(Debug)]
struct LocalSocket(DuplexStream);

impl VirtualSocket for LocalSocket {
    /// Succeeds without an effect: socket options have no meaning for an in-memory connection.
    fn set_socket_option(&self, _option: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for LocalSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for LocalSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
