//! Accepts connections to the pages: on the private address, and from the edge in this process.
//!
//! This file must not depend on the requests.

use crate::local_link::LocalAcceptor;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Address of the peer, which is loopback for an edge in this process.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

impl PeerAddress {
    /// Returns whether the peer is the edge of this process.
    pub fn is_own_edge(self) -> bool {
        self.0 == LOCAL_EDGE_ADDRESS
    }
}

const LOCAL_EDGE_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub struct PageListener<L> {
    tcp: L,
    edge: Option<LocalAcceptor>,
}

impl<L> PageListener<L> {
    pub fn new(tcp: L, edge: Option<LocalAcceptor>) -> Self {
        Self { tcp, edge }
    }

    /// Returns whether the edge runs in this process.
    pub fn has_own_edge(&self) -> bool {
        self.edge.is_some()
    }
}

/// A source of TCP connections. The listener of axum is not used, because it waits for a second
/// when no file descriptor is available.
pub trait TcpSource: Listener<Io = TcpStream, Addr = SocketAddr> {}

impl<L: Listener<Io = TcpStream, Addr = SocketAddr>> TcpSource for L {}

/// A TCP or in-process connection.
pub trait PageConnection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> PageConnection for T {}

impl<L: TcpSource> Listener for PageListener<L> {
    type Io = Box<dyn PageConnection>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let edge = async {
            match &mut self.edge {
                Some(edge) => edge.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            stream = edge => (Box::new(stream), LOCAL_EDGE_ADDRESS),
            (stream, address) = self.tcp.accept() => {
                if let Err(error) = stream.set_nodelay(true) {
                    log::debug!("sidecar: cannot set TCP_NODELAY: {error}");
                }
                (Box::new(stream), address)
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

impl<L: TcpSource> Connected<IncomingStream<'_, PageListener<L>>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, PageListener<L>>) -> Self {
        Self(*stream.remote_addr())
    }
}
