//! Listens on a private address: the admin routes, or the sidecar's pages.
//!
//! This file must not depend on the routes. An upgrade loses no connection: a successor receives
//! the listening socket together with the edge's, and the predecessor stops accepting some time
//! before it closes its connections.

use super::server_handle::ServerHandle;
use super::unread_body::read_to_end;
use crate::private_refusals::{self, is_for_private_host};
use anyhow::Context as _;
use async_trait::async_trait;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state, map_request};
use axum::response::{IntoResponse as _, Response};
use axum::serve::Listener;
use base::telemetry::refusals::RefusalReason;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Time between the last accepted connection and the close of those without a request. A
/// connection that was just accepted may be about to send one.
const CLOSE_DELAY: Duration = Duration::from_secs(1);

/// Serves a private address on a separate thread and runtime, so that a slow page delays neither
/// requests nor metrics.
pub struct PrivateListener {
    /// Name of the address under `listen` in the config.
    name: &'static str,
    address: SocketAddr,
    handle: ServerHandle,
    /// Socket and server, which the start of the service takes.
    start: Option<(std::net::TcpListener, Serve)>,
}

/// Serves a listener until this process has a successor.
type Serve = Box<dyn FnOnce(ListenerUntilSuccession) -> Serving + Send + Sync>;
type Serving = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

impl PrivateListener {
    pub fn new<F>(
        name: &'static str,
        (address, socket): (SocketAddr, std::net::TcpListener),
        handle: &ServerHandle,
        serve: impl FnOnce(ListenerUntilSuccession) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let serve: Serve = Box::new(|listener| Box::pin(serve(listener)));
        Self {
            name,
            address,
            handle: handle.clone(),
            start: Some((socket, serve)),
        }
    }

    async fn serve(&mut self, fds: Option<ListenFds>) -> anyhow::Result<()> {
        let (socket, serve) = self.start.take().context("it was started before")?;
        let fds = fds.context("the server has no table of sockets")?;
        // The descriptor remains valid until a successor has received the socket.
        fds.lock().add(self.address.to_string(), socket.as_raw_fd());
        let listener = ListenerUntilSuccession {
            tcp: TcpListener::from_std(socket)?,
            handle: self.handle.clone(),
        };
        Ok(serve(listener).await?)
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
        if let Err(error) = self.serve(fds).await {
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

/// Stops accepting connections once this process has a successor, which accepts them instead.
pub struct ListenerUntilSuccession {
    tcp: TcpListener,
    handle: ServerHandle,
}

impl ListenerUntilSuccession {
    /// Returns a future that ends when the connections must be closed.
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
            // axum's `accept` waits a second if no file descriptor is available, so this code uses
            // another one.
            accepted = <TcpListener as Listener>::accept(&mut self.tcp) => accepted,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Puts the checks of the admin listener in front of its routes. `names` is the value of
/// `listen.admin_names`.
pub fn guard_admin(routes: Router, names: &Arc<[String]>) -> Router {
    routes
        .layer(from_fn_with_state(Arc::clone(names), refuse_public_names))
        .layer(from_fn(observe_admin))
        .layer(map_request(async |request| read_to_end(request)))
}

const PUBLIC_NAME: &str = "This address answers only requests whose host is an address, localhost, a name without a dot, or one of listen.admin_names.\n";

/// Refuses a request that a browser sent to a public name. The owner of a name can let it point to
/// this machine, and scripts of the owner's page could then read the responses of this listener.
async fn refuse_public_names(
    State(names): State<Arc<[String]>>,
    request: Request,
    next: Next,
) -> Response {
    if is_for_private_host(&request, &names) {
        next.run(request).await
    } else {
        (StatusCode::MISDIRECTED_REQUEST, PUBLIC_NAME).into_response()
    }
}

/// Counts and logs requests that the admin listener refuses.
async fn observe_admin(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let client = peer.map(|peer| peer.0.ip());
    private_refusals::observe(RefusalReason::AdminListener, client, request, next).await
}
