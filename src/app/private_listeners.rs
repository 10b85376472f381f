//! Listens on a private address: the admin routes, or the sidecar's pages.
//!
//! Must not know requests. An upgrade loses no connection: a successor receives the listening
//! socket together with the edge's, and the predecessor stops accepting some time before it closes
//! its connections.

use super::server_handle::ServerHandle;
use super::start_mode::StartMode;
use crate::telemetry::private;
use crate::telemetry::refusals::RefusalReason;
use anyhow::Context as _;
use async_trait::async_trait;
use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::serve::Listener;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Connections that may wait to be accepted.
const LISTEN_BACKLOG: i32 = 1_024;
/// Time between the last accepted connection and the close of those without a request. A
/// connection that was just accepted may be about to send one.
const CLOSE_DELAY: Duration = Duration::from_secs(1);

/// A private address and what is served on it, with a thread and a runtime of its own, so that a
/// slow page delays neither requests nor metrics.
pub struct PrivateListener {
    /// Name of the address under `listen` in the config.
    name: &'static str,
    address: SocketAddr,
    handle: ServerHandle,
    /// None in a successor, which receives it when the service starts.
    bound: Option<std::net::TcpListener>,
    /// Taken when the service starts.
    serve: Option<Serve>,
}

/// Serves a listener until this process has a successor.
type Serve = Box<dyn FnOnce(ListenerUntilSuccession) -> Serving + Send + Sync>;
type Serving = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

impl PrivateListener {
    /// # Errors
    /// Returns an error if a fresh start cannot listen on the address.
    pub fn new<F>(
        name: &'static str,
        address: SocketAddr,
        (start, handle): (StartMode, &ServerHandle),
        serve: impl FnOnce(ListenerUntilSuccession) -> F + Send + Sync + 'static,
    ) -> anyhow::Result<Self>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let bound = match start {
            StartMode::Fresh => Some(bind(name, address)?),
            StartMode::Upgrade => None,
        };
        Ok(Self {
            name,
            address,
            handle: handle.clone(),
            bound,
            serve: Some(Box::new(|listener| Box::pin(serve(listener)))),
        })
    }

    /// Returns the listener that this process bound at its start or its predecessor handed over.
    /// Otherwise the address is new, or the predecessor is of a version that kept it: binds it.
    fn listener(&mut self, fds: Option<ListenFds>) -> anyhow::Result<ListenerUntilSuccession> {
        let fds = fds.context("the server has no table of sockets")?;
        let mut fds = fds.lock();
        let entry = self.address.to_string();
        let listener = match (self.bound.take(), fds.get(&entry)) {
            (Some(bound), _) => bound,
            (None, Some(inherited)) => adopt(*inherited),
            (None, None) => bind(self.name, self.address)?,
        };
        listener.set_nonblocking(true)?;
        // The number stays valid until a successor has received the socket.
        fds.add(entry, listener.as_raw_fd());
        Ok(ListenerUntilSuccession {
            tcp: TcpListener::from_std(listener)?,
            handle: self.handle.clone(),
        })
    }
}

#[async_trait]
impl Service for PrivateListener {
    async fn start_service(
        &mut self,
        fds: Option<ListenFds>,
        _shutdown: ShutdownWatch,
        _listeners_per_fd: usize,
    ) {
        let served = match (self.listener(fds), self.serve.take()) {
            (Ok(listener), Some(serve)) => serve(listener).await.map_err(anyhow::Error::from),
            (Ok(_), None) => Ok(()),
            (Err(error), _) => Err(error),
        };
        if let Err(error) = served {
            log::error!(
                "cannot serve listen.{} {}: {error:#}",
                self.name,
                self.address
            );
        }
    }

    fn name(&self) -> &str {
        self.name
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        Some(vec![self.address.to_string()])
    }
}

/// Accepts no more connections once this process has a successor, which accepts them instead.
pub struct ListenerUntilSuccession {
    tcp: TcpListener,
    handle: ServerHandle,
}

impl ListenerUntilSuccession {
    /// Returns a future that ends when the connections are to be closed.
    pub fn close_time(&self) -> impl Future<Output = ()> + Send + use<> {
        let handle = self.handle.clone();
        async move {
            handle.wait_for_succession().await;
            tokio::time::sleep(CLOSE_DELAY).await;
        }
    }
}

impl Listener for ListenerUntilSuccession {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        tokio::select! {
            biased;
            () = self.handle.wait_for_succession() => std::future::pending().await,
            // axum's `accept` waits a second if no file descriptor is available.
            accepted = <TcpListener as Listener>::accept(&mut self.tcp) => accepted,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Takes a listening socket that the predecessor sent.
#[expect(
    unsafe_code,
    reason = "Pingora's table of the received sockets holds their numbers alone"
)]
fn adopt(socket: i32) -> std::net::TcpListener {
    // SAFETY: the number is in the table under an address that one service alone listens on, and
    // nothing else owns a received socket.
    unsafe { OwnedFd::from_raw_fd(socket) }.into()
}

/// Listens on a private address. A predecessor of a version that keeps its own socket shares the
/// address until it closes that.
pub fn bind(name: &'static str, address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let listen = || {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, LISTEN_BACKLOG)?;
        io::Result::Ok(socket.into())
    };
    listen().with_context(|| format!("cannot listen on listen.{name} {address}"))
}

/// Puts the checks of the admin listener in front of its routes.
pub fn guard_admin(routes: Router) -> Router {
    routes
        .layer(from_fn(refuse_public_names))
        .layer(from_fn(observe_admin))
}

const PUBLIC_NAME: &str = "This address answers only requests whose host is an address, localhost, or a name without a dot.\n";

/// Refuses a request that a browser sent to a public name. Whoever owns a name can let it point to
/// this machine, and the scripts of his page then read what this listener answers.
async fn refuse_public_names(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST);
    // A browser always sends it.
    if host.is_none_or(|host| is_private_host(host.as_bytes())) {
        next.run(request).await
    } else {
        (StatusCode::MISDIRECTED_REQUEST, PUBLIC_NAME).into_response()
    }
}

/// Whether a host field has an address, or a name that no stranger can own.
fn is_private_host(host: &[u8]) -> bool {
    Authority::try_from(host).is_ok_and(|authority| {
        let host = authority.host().trim_matches(['[', ']']);
        host.parse::<IpAddr>().is_ok() || !host.contains('.')
    })
}

/// Records what the admin listener refuses.
async fn observe_admin(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let client = peer.map(|peer| peer.0.ip());
    private::observe(RefusalReason::AdminListener, client, request, next).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_a_name_that_no_stranger_owns() {
        for host in [
            "127.0.0.1:9090",
            "10.1.2.3",
            "[::1]:9090",
            "[2001:db8::7]",
            "localhost:9090",
            "LOCALHOST",
            "sidecar:9090",
        ] {
            assert!(is_private_host(host.as_bytes()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9090",
            "localhost.evil.example",
            "localhost.",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "",
            "a b",
            "\u{e9}",
        ] {
            assert!(!is_private_host(host.as_bytes()), "{host}");
        }
    }
}
