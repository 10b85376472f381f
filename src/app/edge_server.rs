//! Builds the Pingora server of the edge: its public addresses, TLS, HTTP/2 and keep-alive.
//!
//! This file must not decide when the process stops. The hooks that handle requests are in
//! `edge.rs`.

use super::certificate::ReloadableCertificate;
use super::listening_sockets::ListeningSockets;
use crate::edge::connections::{ConnectionLimiter, Connections};
use crate::edge::descriptors::DescriptorShares;
use crate::edge::panics::{self, PanicGuard};
use crate::edge::{Gateway, max_retries};
use async_trait::async_trait;
use config::{Limits, MAX_DRAIN_SECONDS, MAX_TOTAL_SECONDS, Settings};
use pingora::apps::{HttpServerOptions, ServerApp};
use pingora::listeners::tls::{Acceptor, TlsSettings};
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora::server::configuration::{Opt, ServerConf};
use pingora::server::{ListenFds, Server, ShutdownWatch};
use pingora::services::{self, listening::Service};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum grace period, in seconds. It is longer than any shutdown can take.
const MAX_GRACE_SECONDS: u64 = MAX_TOTAL_SECONDS + MAX_DRAIN_SECONDS;
/// Maximum number of idle connections to vendors that are kept for reuse.
const MAX_POOLED_UPSTREAM_CONNECTIONS: usize = 1_024;
/// Size of the write buffer of a client's connection, in bytes. The header and body of a response
/// are sent together if they fit; Pingora's default of 1 460 bytes holds hardly more than the
/// header. The header of a stream is never held back.
const CLIENT_WRITE_BUFFER_BYTES: usize = 8_192;
/// Number of bytes that TLS reads ahead on a client's connection. Plain HTTP has separate buffers
/// for its reads.
const CLIENT_READ_BUFFER_BYTES: usize = 16_384;
/// Maximum number of open streams on a client's HTTP/2 connection.
const MAX_H2_STREAMS: u32 = 100;
/// Number of bytes that a client may send before the gateway reads them, per stream.
const H2_STREAM_WINDOW_BYTES: u32 = 65_536;
const H2_CONNECTION_WINDOW_BYTES: u32 = 1_048_576;
/// Maximum number of bytes of a response that wait for the client of one stream.
const H2_SEND_BUFFER_BYTES: usize = 65_536;

/// Builds the Pingora server with one proxy service on all public addresses.
pub(super) fn build_edge_server(
    settings: &Settings,
    gateway: Gateway,
    (connections, shares): (Arc<Connections>, DescriptorShares),
    certificate: Option<&Arc<ReloadableCertificate>>,
    (upgrade_socket, sockets): (&Path, &mut ListeningSockets),
) -> anyhow::Result<Server> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let conf = ServerConf {
        threads,
        upgrade_sock: upgrade_socket.display().to_string(),
        upstream_keepalive_pool_size: MAX_POOLED_UPSTREAM_CONNECTIONS
            .min(usize::try_from(shares.upstream / 2).unwrap_or(MAX_POOLED_UPSTREAM_CONNECTIONS)),
        // The shutdown watch exits the process earlier. Pingora would drop running requests.
        grace_period_seconds: Some(MAX_GRACE_SECONDS),
        graceful_shutdown_timeout_seconds: Some(1),
        max_retries: max_retries(),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(Opt::default(), conf);
    server.bootstrap();
    let recorders = gateway.recorders.clone();
    let mut proxy = pingora::proxy::http_proxy(&server.configuration, gateway);
    let mut options = HttpServerOptions::default();
    options.h2c = settings.tls.is_none();
    options.h2_idle_timeout = Some(Duration::from_secs(settings.limits.keepalive_seconds));
    // Pingora does not count the first request of a connection.
    options.keepalive_request_limit =
        u32::try_from(settings.limits.keepalive_requests.saturating_sub(1)).ok();
    proxy.server_options = Some(options);
    proxy.h2_options = Some(h2_options(&settings.limits));
    panics::install_hook();
    let tls = certificate.map(tls_acceptor).transpose()?;
    let app = ConnectionLimiter::new(PanicGuard::new(proxy, recorders), connections, tls);
    let mut service = Service::new("edge".to_owned(), app);
    let reads = if certificate.is_some() {
        CLIENT_READ_BUFFER_BYTES
    } else {
        0
    };
    for address in &settings.edge {
        let buffers = L4BufferSettings::new(reads, CLIENT_WRITE_BUFFER_BYTES);
        service.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(buffers));
    }
    let sockets = settings.edge.iter().map(|address| {
        let socket = sockets.take(*address)?;
        Ok((*address, socket))
    });
    server.add_service(EdgeService {
        sockets: sockets.collect::<anyhow::Result<_>>()?,
        service,
    });
    Ok(server)
}

/// The service of the public addresses, on sockets that are bound already.
struct EdgeService<A> {
    sockets: Vec<(SocketAddr, TcpListener)>,
    service: Service<A>,
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> services::Service for EdgeService<A> {
    async fn start_service(
        &mut self,
        fds: Option<ListenFds>,
        shutdown: ShutdownWatch,
        listeners_per_fd: usize,
    ) {
        if let Some(fds) = &fds {
            let mut fds = fds.lock();
            for (address, socket) in self.sockets.drain(..) {
                fds.add(address.to_string(), socket.into_raw_fd());
            }
        }
        services::Service::start_service(&mut self.service, fds, shutdown, listeners_per_fd).await;
    }

    fn name(&self) -> &str {
        services::Service::name(&self.service)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        services::Service::listen_addresses(&self.service)
    }
}

fn tls_acceptor(certificate: &Arc<ReloadableCertificate>) -> anyhow::Result<Acceptor> {
    let mut tls = TlsSettings::intermediate("", "")
        .map_err(|error| anyhow::anyhow!("cannot set up TLS on listen.edge: {error}"))?;
    tls.set_cert_resolver(Arc::clone(certificate) as _);
    tls.enable_h2();
    Ok(tls.build())
}

/// Returns the limits for one HTTP/2 connection.
fn h2_options(limits: &Limits) -> H2Options {
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(MAX_H2_STREAMS)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .initial_window_size(H2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(H2_CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(H2_SEND_BUFFER_BYTES);
    options
}
