//! Makes one attempt to deliver a message: resolves the name, checks the address, connects, posts,
//! and reads the status.
//!
//! The name is resolved once, and the connection uses an address of that answer. A name thus cannot
//! resolve to a public address for the check and to a private one for the connection. Redirects are
//! not followed. Account holders see the errors, so errors must not contain the addresses of a
//! name, which would reveal names of the gateway's own network.

use super::address::{AddressPolicy, WebhookUrl};
use async_trait::async_trait;
use base::clock::{http_date_ms, now_ms};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Time limit of an attempt, from the lookup of the name to the receiver's header.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of opening one connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of a name's addresses to which an attempt connects.
const MAX_CONNECTIONS: usize = 4;
/// Maximum length of the receiver's header in bytes.
const MAX_HEADER_BYTES: usize = 8_192;
const MAX_HEADER_FIELDS: usize = 64;
/// Maximum number of bytes to read of a body. The status decides, and reading a little of the body
/// lets receivers end their answers.
const MAX_BODY_BYTES: usize = 1_024;
const BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of an error, in characters.
const MAX_ERROR_CHARS: usize = 200;

/// Resolves a name to addresses.
#[async_trait]
pub trait ReceiverResolver: Send + Sync {
    async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// Uses the machine's own resolver, on a thread that may block.
struct MachineResolver;

#[async_trait]
impl ReceiverResolver for MachineResolver {
    async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

/// A message that is ready to be sent.
#[derive(Debug, Clone)]
pub struct SignedMessage {
    pub id: String,
    /// Time of the signature in seconds since 1970.
    pub timestamp: i64,
    pub signature: String,
    pub body: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptResult {
    /// Status of the answer, if any.
    pub status: Option<StatusCode>,
    /// Error text. Empty if the message was delivered.
    pub error: String,
    /// Time in ms for which the receiver wants no further attempt.
    pub retry_after_ms: Option<i64>,
    pub took_ms: i64,
}

#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("the host has no public address")]
    NoAddress,
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    #[error("the receiver did not send a valid HTTP answer")]
    Http,
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

pub struct WebhookClient {
    resolver: Arc<dyn ReceiverResolver>,
    /// TLS settings. They are created for the first receiver with TLS, because reading the
    /// machine's certificates takes a while.
    tls: OnceLock<Arc<ClientConfig>>,
    timeout: Duration,
}

impl Default for WebhookClient {
    fn default() -> Self {
        Self {
            resolver: Arc::new(MachineResolver),
            tls: OnceLock::new(),
            timeout: ATTEMPT_TIMEOUT,
        }
    }
}

impl WebhookClient {
    /// Creates a client with a test's resolver, certificate authorities and time limit.
    #[cfg(test)]
    pub fn in_test(
        resolver: Arc<dyn ReceiverResolver>,
        roots: RootCertStore,
        timeout: Duration,
    ) -> Self {
        let tls = OnceLock::from(Arc::new(tls_config(roots).unwrap()));
        Self {
            resolver,
            tls,
            timeout,
        }
    }

    /// Makes one attempt, which takes at most [`ATTEMPT_TIMEOUT`].
    pub async fn post(
        &self,
        url: &WebhookUrl,
        policy: &AddressPolicy,
        message: &SignedMessage,
    ) -> AttemptResult {
        let began = Instant::now();
        let exchange = self.exchange(url, policy, message);
        let outcome = tokio::time::timeout(self.timeout, exchange)
            .await
            .unwrap_or(Err(AttemptError::Timeout(self.timeout)));
        let (status, error, retry_after_ms) = match outcome {
            Ok((status, _)) if status.is_success() => (Some(status), String::new(), None),
            Ok((status, header)) => {
                let hint = if status.is_redirection() {
                    "; the gateway follows no redirect"
                } else {
                    ""
                };
                let error = format!("the receiver answered {}{hint}", status.as_u16());
                (Some(status), error, retry_after_ms(&header, now_ms()))
            }
            Err(error) => {
                let text: String = error.to_string().chars().take(MAX_ERROR_CHARS).collect();
                (None, text, None)
            }
        };
        AttemptResult {
            status,
            error,
            retry_after_ms,
            took_ms: i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX),
        }
    }

    async fn exchange(
        &self,
        url: &WebhookUrl,
        policy: &AddressPolicy,
        message: &SignedMessage,
    ) -> Result<(StatusCode, HeaderMap), AttemptError> {
        let addresses = self.checked_addresses(url, policy).await?;
        let stream = connect(&addresses).await?;
        if !url.is_https {
            return send(stream, url, message).await;
        }
        let name = ServerName::try_from(url.host.clone())
            .map_err(|error| AttemptError::Tls(error.to_string()))?;
        let stream = TlsConnector::from(self.tls()?)
            .connect(name, stream)
            .await
            .map_err(|error| AttemptError::Tls(error.to_string()))?;
        send(stream, url, message).await
    }

    /// Returns the addresses of the host. A name with an address that is not allowed is refused as
    /// a whole, because its owner has no reason to mix such addresses.
    async fn checked_addresses(
        &self,
        url: &WebhookUrl,
        policy: &AddressPolicy,
    ) -> Result<Vec<SocketAddr>, AttemptError> {
        // The error is the same as for a name with private addresses: see the head of this file.
        let addresses = self
            .resolver
            .addresses(&url.host, url.port)
            .await
            .map_err(|_| AttemptError::NoAddress)?;
        let is_allowed = |address: &SocketAddr| policy.allows(address.ip(), url.is_https);
        if addresses.is_empty() || !addresses.iter().all(is_allowed) {
            return Err(AttemptError::NoAddress);
        }
        Ok(addresses)
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, AttemptError> {
        if let Some(config) = self.tls.get() {
            return Ok(Arc::clone(config));
        }
        let config = machine_tls_config().map_err(AttemptError::Tls)?;
        Ok(Arc::clone(self.tls.get_or_init(|| config)))
    }
}

/// Returns TLS settings for clients that trust this machine's certificate authorities. They are
/// created once, because reading the certificates takes a while.
///
/// # Errors
/// Returns an error if no TLS version is supported.
pub fn machine_tls_config() -> Result<Arc<ClientConfig>, String> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        log::warn!("cannot read a certificate authority of this machine: {error}");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    let config = Arc::new(tls_config(roots)?);
    Ok(Arc::clone(CONFIG.get_or_init(|| config)))
}

fn tls_config(roots: RootCertStore) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, AttemptError> {
    let mut last = AttemptError::NoAddress;
    for address in addresses.iter().take(MAX_CONNECTIONS) {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = AttemptError::Connect(error),
            Err(_) => last = AttemptError::Connect(io::ErrorKind::TimedOut.into()),
        }
    }
    Err(last)
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &WebhookUrl,
    message: &SignedMessage,
) -> Result<(StatusCode, HeaderMap), AttemptError> {
    let body = Full::new(Bytes::from(message.body.clone()));
    let request = Request::post(&url.target)
        .header(header::HOST, &url.authority)
        .header(
            header::USER_AGENT,
            concat!("model-gateway/", env!("CARGO_PKG_VERSION")),
        )
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .header("webhook-id", &message.id)
        .header("webhook-timestamp", message.timestamp)
        .header("webhook-signature", &message.signature)
        .body(body)
        .map_err(|_| AttemptError::Http)?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADER_FIELDS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| AttemptError::Http)?;
    // The driver ends with this function, whichever way it returns.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let response = sender
        .send_request(request)
        .await
        .map_err(|_| AttemptError::Http)?;
    let (head, body) = response.into_parts();
    // The end of the body does not matter.
    let _ = tokio::time::timeout(BODY_TIMEOUT, read_some(body)).await;
    Ok((head.status, head.headers))
}

/// Reads a body to its end, or until it has more than [`MAX_BODY_BYTES`].
async fn read_some(mut body: Incoming) {
    let mut read = 0;
    while read <= MAX_BODY_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// Returns the value of `retry-after` in ms, which is in seconds or a date. A number too large to
/// be parsed counts as a long time.
fn retry_after_ms(header: &HeaderMap, now_ms: i64) -> Option<i64> {
    let text = header.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let wait_ms = if is_number {
        i64::from(text.parse::<u32>().unwrap_or(u32::MAX)) * 1_000
    } else {
        http_date_ms(text)?.saturating_sub(now_ms)
    };
    (wait_ms > 0).then_some(wait_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_says_when_it_wants_the_next_attempt() {
        let wait = |text: &str| {
            let header = HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
            retry_after_ms(&header, 784_111_777_000)
        };
        assert_eq!(wait("120"), Some(120_000));
        let longest = Some(i64::from(u32::MAX) * 1_000);
        for long in ["4294967295", "4294967296", "99999999999", &"9".repeat(100)] {
            assert_eq!(wait(long), longest, "{long}");
        }
        assert_eq!(wait("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60_000));
        for none in [
            "",
            "0",
            "-1",
            "1.5",
            "soon",
            "Sun, 06 Nov 1994 08:49:36 GMT",
        ] {
            assert_eq!(wait(none), None, "{none}");
        }
        assert_eq!(retry_after_ms(&HeaderMap::new(), 0), None);
    }
}
