//! Client connections: how many there may be, and how long the header of a request may take on one.
//!
//! Pingora bounds neither: it accepts whoever comes, and its read time-out begins anew with every byte of a header. So a
//! layer of our own stands between its listener and its HTTP: [`Guarded`] counts each connection before anything is
//! read from it, and [`Watched`] gives up on one whose header does not end. What both know of a connection rides in the
//! connection's digest, the one thing that Pingora carries from the socket to the request. Must not read what the bytes
//! say. Next: `connections/watched.rs`.

mod watched;

use crate::address::{Caller, Trusted, one_client};
use crate::config::{Limits, Settings};
use crate::edge::intake::BodyBytes;
use crate::telemetry::METRICS;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::http::ResponseHeader;
use pingora::listeners::PreTlsProcess;
use pingora::protocols::l4::stream::Stream as TcpStream;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{Digest, GetProxyDigest, GetSocketDigest, SocketDigest, Stream};
use pingora::proxy::Session;
use pingora::server::ShutdownWatch;
use pingora::{Error, ErrorType, Result};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use watched::Watched;

/// All client connections of this process.
pub struct Connections {
    settings: Arc<ArcSwap<Settings>>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    all: u64,
    by_client: HashMap<IpAddr, u64>,
}

/// Why a connection is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Address,
    Total,
}

impl Open {
    /// Counts one more of `client`, where the limits allow it; 0 is no limit.
    fn enter(&mut self, client: IpAddr, per_address: u64, total: u64) -> Result<(), Refused> {
        if total > 0 && self.all >= total {
            return Err(Refused::Total);
        }
        let of_client = self.by_client.entry(client).or_default();
        if per_address > 0 && *of_client >= per_address {
            return Err(Refused::Address);
        }
        *of_client = of_client.saturating_add(1);
        self.all = self.all.saturating_add(1);
        Ok(())
    }

    fn leave(&mut self, client: IpAddr) {
        self.all = self.all.saturating_sub(1);
        if let Some(of_client) = self.by_client.get_mut(&client) {
            *of_client = of_client.saturating_sub(1);
            if *of_client == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

impl Connections {
    pub fn new(settings: Arc<ArcSwap<Settings>>) -> Arc<Self> {
        Arc::new(Self { settings, open: Mutex::default() })
    }

    /// Counts a connection. `None` where there are too many: it is closed without a word, for whoever floods reads none.
    fn enter(self: &Arc<Self>, socket: Option<Arc<SocketDigest>>) -> Option<Arc<Connection>> {
        let address = socket.and_then(|socket| Some(socket.peer_addr()?.as_inet()?.ip()));
        // Where the peer has left already there is no address: whatever that is, it counts together.
        let client = one_client(address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)));
        let settings = self.settings.load();
        let Limits { connections_per_address, connections, .. } = settings.limits;
        // A trusted proxy's connections are those of many clients; whose one is, is not known before its requests.
        let is_proxy = address.is_some_and(|address| settings.trust_proxy.has(address));
        let per_address = if is_proxy { 0 } else { connections_per_address };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let entered = open.enter(client, per_address, connections);
        METRICS.client_connections.set(i64::try_from(open.all).unwrap_or(i64::MAX));
        drop(open);
        if let Err(refused) = entered {
            METRICS.connection_refused(match refused {
                Refused::Address => "per_address",
                Refused::Total => "total",
            });
            return None;
        }
        Some(Arc::new(Connection {
            of: Arc::clone(self),
            client,
            is_proxy,
            body_bytes: BodyBytes::default(),
            opened: Instant::now(),
            header_read: Duration::from_secs(settings.limits.header_read_seconds),
            header_bytes: settings.limits.header_bytes,
            header_since: AtomicU64::new(0),
        }))
    }
}

/// Counts a connection before its TLS handshake, which costs more than all that comes before it.
pub struct BeforeTls(pub Arc<Connections>);

#[async_trait]
impl PreTlsProcess for BeforeTls {
    async fn process(&self, stream: &mut TcpStream) -> Result<()> {
        let Some(connection) = self.0.enter(stream.get_socket_digest()) else {
            return Error::e_explain(ErrorType::ConnectRefused, "too many client connections");
        };
        stream.set_proxy_digest(digest(connection)?);
        Ok(())
    }
}

/// As the digest of the connection, where the request finds it.
fn digest(connection: Arc<Connection>) -> Result<ProxyDigest> {
    Ok(ProxyDigest::new(Box::new(ResponseHeader::build_no_case(200, Some(0))?), Some(Box::new(connection))))
}

fn carried(digest: Option<&ProxyDigest>) -> Option<&Arc<Connection>> {
    digest?.user_data.as_ref()?.downcast_ref()
}

/// The proxy's HTTP, behind the count and the watch.
pub struct Guarded<A> {
    app: Arc<A>,
    connections: Arc<Connections>,
}

impl<A> Guarded<A> {
    pub fn new(app: A, connections: Arc<Connections>) -> Self {
        Self { app: Arc::new(app), connections }
    }
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> ServerApp for Guarded<A> {
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let counted = carried(stream.get_proxy_digest().as_deref()).map(Arc::clone);
        let connection = match counted {
            Some(connection) => connection,
            None => {
                let connection = self.connections.enter(stream.get_socket_digest())?;
                stream.set_proxy_digest(digest(Arc::clone(&connection)).ok()?);
                connection
            }
        };
        self.app.process_new(Box::new(Watched::new(stream, connection)), shutdown).await
    }

    async fn cleanup(&self) {
        self.app.cleanup().await;
    }
}

/// No header is being read: a request is under way.
const REQUEST: u64 = u64::MAX;
/// No header is being read: nothing has come since the last request.
const SILENT: u64 = u64::MAX - 1;

/// One client connection, counted until it is dropped.
pub struct Connection {
    of: Arc<Connections>,
    client: IpAddr,
    /// A trusted proxy's: it carries the requests of many clients.
    is_proxy: bool,
    /// What the requests over it hold of their bodies.
    body_bytes: BodyBytes,
    opened: Instant,
    header_read: Duration,
    header_bytes: u64,
    /// Milliseconds after `opened` at which the header began that is being read; or [`REQUEST`] or [`SILENT`]. A new
    /// connection begins with one, so that a client that never says anything goes too.
    header_since: AtomicU64,
}

impl Connection {
    /// When the header that is being read must be whole.
    fn header_deadline(&self) -> Option<Instant> {
        match self.header_since.load(Ordering::Relaxed) {
            REQUEST | SILENT => None,
            since => Some(self.opened + Duration::from_millis(since) + self.header_read),
        }
    }

    /// Bytes came. Where they are the first of a header, it begins now: true.
    fn heard(&self) -> bool {
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(SILENT - 1);
        self.header_since.compare_exchange(SILENT, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.of.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.leave(self.client);
        METRICS.client_connections.set(i64::try_from(open.all).unwrap_or(i64::MAX));
    }
}

/// From where a request comes: from its connection's peer, or whom that says it asks for where it is trusted.
pub fn caller(session: &Session, trusted: &Trusted) -> Option<Caller> {
    let peer = session.client_addr()?.as_inet()?.ip();
    let mut caller = trusted.caller(peer, &session.req_header().headers);
    caller.is_https |= session.digest().is_some_and(|digest| digest.ssl_digest.is_some());
    Some(caller)
}

/// The counter of what the requests over a client's connection hold of their bodies; `None` for a trusted proxy's.
pub fn body_bytes(digest: Option<&Digest>) -> Option<BodyBytes> {
    let connection = carried(digest?.proxy_digest.as_deref())?;
    (!connection.is_proxy).then(|| Arc::clone(&connection.body_bytes))
}

fn mark(digest: Option<&Digest>, state: u64) {
    if let Some(connection) = digest.and_then(|digest| carried(digest.proxy_digest.as_deref())) {
        connection.header_since.store(state, Ordering::Relaxed);
    }
}

/// A request's header is whole: what comes now is its body, which has a deadline of its own.
pub fn header_is_read(digest: Option<&Digest>) {
    mark(digest, REQUEST);
}

/// An HTTP/1 request is over: what comes now is the next one's header. Many HTTP/2 requests share a connection, whose
/// frames Pingora's own idle time watches.
pub fn request_is_over(digest: Option<&Digest>) {
    mark(digest, SILENT);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        one_client(text.parse().unwrap())
    }

    #[test]
    fn connections_are_counted_to_their_limits_and_forgotten_when_they_end() {
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let mut open = Open::default();
        assert_eq!(open.enter(one, 2, 3), Ok(()));
        assert_eq!(open.enter(one, 2, 3), Ok(()));
        assert_eq!(open.enter(one, 2, 3), Err(Refused::Address));
        assert_eq!(open.enter(other, 2, 3), Ok(()));
        assert_eq!(open.enter(other, 2, 3), Err(Refused::Total));
        open.leave(one);
        assert_eq!(open.enter(other, 2, 3), Ok(()));
        assert_eq!(open.enter(other, 0, 0), Ok(()), "0 is no limit");
        for _ in 0..3 {
            open.leave(other);
        }
        open.leave(one);
        assert_eq!((open.all, open.by_client.len()), (0, 0));
    }
}
