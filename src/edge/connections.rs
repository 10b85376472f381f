//! Limits the number of client connections, and the time for a request's header.
//!
//! If there are too many connections, idle ones are closed. Pingora limits neither: it accepts
//! every client, and its read timeout restarts with every byte of a header. So the gateway adds a
//! layer between Pingora's listener and its HTTP code: [`ConnectionLimiter`] counts each connection
//! before anything is read from it, and [`MonitoredStream`] closes a connection whose header does
//! not end. Both share the state of a connection through the connection's digest, the only object
//! that Pingora carries from the socket to the request. Next: `connections/registry.rs` (the counts
//! and that state), `connections/monitored_stream.rs`.

mod chunked;
mod http2_frames;
mod inbound;
mod monitored_stream;
mod registry;

pub use registry::Connections;

use super::framing::RequestDefect;
use crate::edge::intake::BodyBytes;
use async_trait::async_trait;
use base::telemetry::refusals::RefusalReason;
use config::address::{ClientAddress, TrustedProxies};
use http::{Version, header};
use inbound::BodyFraming;
use monitored_stream::MonitoredStream;
use pingora::Result;
use pingora::apps::ServerApp;
use pingora::http::ResponseHeader;
use pingora::listeners::tls::Acceptor;
use pingora::protocols::http::ServerSession;
use pingora::protocols::l4::stream::Stream as TcpStream;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{Digest, Peek, Stream};
use pingora::proxy::Session;
use pingora::server::ShutdownWatch;
use registry::ClientConnection;
use std::future::poll_fn;
use std::sync::Arc;

/// Stores the connection as its digest, from which the request reads it.
fn connection_digest(connection: Arc<ClientConnection>) -> Result<ProxyDigest> {
    Ok(ProxyDigest::new(
        Box::new(ResponseHeader::build_no_case(200, Some(0))?),
        Some(Box::new(connection)),
    ))
}

fn connection_in_digest(digest: Option<&ProxyDigest>) -> Option<&Arc<ClientConnection>> {
    digest?.user_data.as_ref()?.downcast_ref()
}

/// Makes the TLS handshake. Returns `None` if the handshake fails, takes longer than a header may,
/// or must make room for other clients.
async fn handshake(
    tls: &Acceptor,
    stream: Stream,
    connection: &ClientConnection,
) -> Option<Stream> {
    let mut tcp = stream.into_any().downcast::<TcpStream>().ok()?;
    let mut has_begun = false;
    let accept = async {
        // Load balancers open a connection and close it at once to see whether the port is open.
        // Such a probe is not a failed handshake.
        tcp.try_peek(&mut [0; 1]).await.ok()?;
        has_begun = true;
        match tls.tls_handshake(*tcp).await {
            Ok(stream) => Some(Box::new(stream) as Stream),
            Err(error) => {
                connection.record_refusal(RefusalReason::TlsHandshake, &error);
                None
            }
        }
    };
    let accept_or_close = async {
        tokio::select! {
            biased;
            () = poll_fn(|context| connection.poll_closed(context)) => None,
            accepted = accept => accepted,
        }
    };
    let deadline = connection.opened + connection.header_read;
    if let Ok(accepted) = tokio::time::timeout_at(deadline.into(), accept_or_close).await {
        return accepted;
    }
    let (reason, detail) = if has_begun {
        (
            RefusalReason::TlsHandshake,
            "the TLS handshake took too long",
        )
    } else {
        (RefusalReason::Silent, "the client sent nothing in time")
    };
    connection.record_refusal(reason, &detail);
    None
}

/// The proxy's HTTP application, behind the connection count, the TLS handshake and the stream
/// monitor.
pub struct ConnectionLimiter<A> {
    app: Arc<A>,
    connections: Arc<Connections>,
    tls: Option<Acceptor>,
}

impl<A> ConnectionLimiter<A> {
    /// Wraps `app`. If `tls` is set, every connection begins with a TLS handshake.
    pub fn new(app: A, connections: Arc<Connections>, tls: Option<Acceptor>) -> Self {
        Self {
            app: Arc::new(app),
            connections,
            tls,
        }
    }
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> ServerApp for ConnectionLimiter<A> {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        self.connections.pulse.start();
        let connection = self.connections.enter(stream.get_socket_digest())?;
        stream.set_proxy_digest(connection_digest(Arc::clone(&connection)).ok()?);
        self.connections.watch(&connection);
        if let Some(tls) = &self.tls {
            // The handshake is boxed: its 14 KB of state would stay allocated for as long as the
            // connection is open.
            stream = Box::pin(handshake(tls, stream, &connection)).await?;
        }
        self.app
            .process_new(Box::new(MonitoredStream::new(stream, connection)), shutdown)
            .await
    }

    async fn cleanup(&self) {
        self.app.cleanup().await;
    }
}

/// Returns the origin of a request: the peer of its connection or, if the peer is a trusted proxy,
/// the client that it names.
pub fn client_address(session: &Session, trusted: &TrustedProxies) -> Option<ClientAddress> {
    let peer = session.client_addr()?.as_inet()?.ip();
    let mut caller = trusted.resolve_client(peer, &session.req_header().headers);
    caller.is_https |= session
        .digest()
        .is_some_and(|digest| digest.ssl_digest.is_some());
    Some(caller)
}

/// Returns the counter of the body bytes that the requests on a client's connection hold. `None`
/// for a trusted proxy's connection.
pub fn body_byte_counter(digest: Option<&Digest>) -> Option<BodyBytes> {
    let connection = connection(digest)?;
    (!connection.is_proxy).then(|| Arc::clone(&connection.body_bytes))
}

fn connection(digest: Option<&Digest>) -> Option<&Arc<ClientConnection>> {
    connection_in_digest(digest?.proxy_digest.as_deref())
}

/// Records that a request's header is complete. The bytes that follow are the body, which has a
/// deadline of its own.
pub fn begin_request(session: &Session) {
    let Some(connection) = connection(session.digest()) else {
        return;
    };
    connection.begin_request();
    if let ServerSession::H1(h1) = session.downstream_session.as_ref() {
        let head = h1.req_header();
        let length = head
            .headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let framing = match length {
            _ if head.headers.contains_key(header::TRANSFER_ENCODING) => BodyFraming::Chunked,
            Some(bytes) if head.version >= Version::HTTP_10 => BodyFraming::Length(bytes),
            _ => BodyFraming::Length(0),
        };
        // The defect is stored here. The request is refused later, once its surface is known.
        let _ = connection
            .inbound()
            .begin_body(&h1.get_headers_raw_bytes(), framing);
    }
}

/// Returns how the body of the current HTTP/1 request is malformed, as far as it has arrived.
pub fn body_defect(digest: Option<&Digest>) -> Option<RequestDefect> {
    connection(digest)?.inbound().defect()
}

/// Records that a request has ended. On an HTTP/1 connection, the next bytes are the header of the
/// next request.
pub fn finish_request(digest: Option<&Digest>, is_h2: bool) {
    if let Some(connection) = connection(digest) {
        connection.end_request(is_h2);
    }
}
