//! Optional traces: one span per request and one per upstream attempt, exported as OTLP over HTTP.
//!
//! As with the access log, the end of a request only puts its spans into a bounded queue; a
//! separate thread sends them. If the collector is too slow, spans are dropped and counted. This
//! module must not hold a body, a header, a key or an account: every text in a span comes from this
//! code, from the config or from the gateway's own ids. Next: `traces/span.rs` (the content of a
//! span), `traces/otlp.rs` (the encoding of a batch).

mod otlp;
mod span;

use super::metrics::METRICS;
use crate::queue::{self, QueueReceiver, bounded_queue};
use span::hex;
pub use span::{AttributeValue, SpanId, SpanKind, TraceId, TraceSpan};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Maximum number of requests whose spans wait for the sender. Others are dropped and counted.
const MAX_QUEUED_REQUESTS: usize = 2_048;
/// Maximum number of spans per batch.
const MAX_BATCH_SPANS: usize = 512;
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of the collector's addresses to try for one batch.
const MAX_ADDRESSES: usize = 4;
/// Time limit of one connect, one write and one response.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes to read of a response. Only the status matters.
const MAX_RESPONSE_BYTES: usize = 64;
/// Sampling share that covers all requests.
pub const SAMPLE_ALL: u32 = 1_000_000;

/// Sampling and destination of traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceExportConfig {
    /// Host and port of the collector.
    pub authority: String,
    pub path: String,
    /// Number of sampled requests per million.
    pub share: u32,
    /// True if vendors receive a `traceparent` too.
    pub to_vendors: bool,
}

/// The `traceparent` that a client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    pub trace: TraceId,
    pub span: SpanId,
}

/// Handle of the span sender. Cloning it is cheap.
#[derive(Clone, Default)]
pub struct TraceExporter(Option<(Arc<TraceExportConfig>, queue::QueueSender<ExportCommand>)>);

enum ExportCommand {
    Spans(Vec<TraceSpan>),
    /// Sends all earlier spans, and then notifies the waiting thread.
    Flush(SyncSender<()>),
}

impl TraceExporter {
    /// Starts the sender, if traces are configured.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(config: Option<&TraceExportConfig>) -> io::Result<Self> {
        let Some(config) = config else {
            return Ok(Self::default());
        };
        let (commands, queue) = bounded_queue(MAX_QUEUED_REQUESTS);
        let config = Arc::new(config.clone());
        let sender = SpanSender {
            config: Arc::clone(&config),
            queue,
            is_failing: false,
        };
        std::thread::Builder::new()
            .name("traces".into())
            .spawn(move || sender.run())?;
        Ok(Self(Some((config, commands))))
    }

    pub fn config(&self) -> Option<&TraceExportConfig> {
        self.0.as_ref().map(|(config, _)| &**config)
    }

    pub fn export(&self, spans: Vec<TraceSpan>) {
        let Some((_, commands)) = &self.0 else { return };
        let count = spans.len();
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            commands.try_send(ExportCommand::Spans(spans))
        {
            METRICS.spans_dropped("full", count);
        }
    }

    /// Waits until all queued spans are sent or dropped, up to the time limit.
    pub fn flush(&self, limit: Duration) {
        let Some((_, commands)) = &self.0 else { return };
        let (done, all) = sync_channel(1);
        if commands.try_send(ExportCommand::Flush(done)).is_ok() {
            let _ = all.recv_timeout(limit);
        }
    }
}

struct SpanSender {
    config: Arc<TraceExportConfig>,
    queue: QueueReceiver<ExportCommand>,
    is_failing: bool,
}

impl SpanSender {
    fn run(mut self) {
        let mut batch = Vec::new();
        let mut due = Instant::now();
        loop {
            let wait = if batch.is_empty() {
                BATCH_INTERVAL
            } else {
                due.saturating_duration_since(Instant::now())
            };
            match self.queue.recv_timeout(wait) {
                Ok(ExportCommand::Spans(spans)) => {
                    if batch.is_empty() {
                        due = Instant::now() + BATCH_INTERVAL;
                    }
                    batch.extend(spans);
                    if batch.len() >= MAX_BATCH_SPANS {
                        self.send(&mut batch);
                    }
                }
                Ok(ExportCommand::Flush(done)) => {
                    self.send(&mut batch);
                    let _ = done.try_send(());
                }
                Err(RecvTimeoutError::Timeout) => self.send(&mut batch),
                Err(RecvTimeoutError::Disconnected) => return self.send(&mut batch),
            }
        }
    }

    /// Sends a batch once, without retries. An unreachable collector costs spans, but never memory.
    fn send(&mut self, batch: &mut Vec<TraceSpan>) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len();
        let outcome = self.post(&otlp::encode_document(batch));
        batch.clear();
        match outcome {
            Ok(()) if self.is_failing => {
                log::info!(
                    "the trace collector {} accepts traces again",
                    self.config.authority
                )
            }
            Ok(()) => {}
            Err(ref error) => {
                METRICS.spans_dropped("failed", count);
                if !self.is_failing {
                    log::warn!(
                        "cannot send traces to {}: {error}; the gateway drops them until the collector accepts them",
                        self.config.authority
                    );
                }
            }
        }
        self.is_failing = outcome.is_err();
    }

    fn post(&self, body: &str) -> io::Result<()> {
        let TraceExportConfig {
            authority, path, ..
        } = &*self.config;
        let mut stream = connect(authority.to_socket_addrs()?)?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\n"
        );
        let _ = write!(
            head,
            "content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut response = Vec::new();
        stream
            .take(MAX_RESPONSE_BYTES as u64)
            .read_to_end(&mut response)?;
        let response = String::from_utf8_lossy(&response);
        let status = response.split(' ').nth(1).unwrap_or_default();
        if response.starts_with("HTTP/1.") && status.starts_with('2') {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the collector answered with status {status:?}"
        )))
    }
}

/// Connects to the first address that accepts. A name may have an IPv4 and an IPv6 address, of
/// which only one has a listener.
fn connect(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut outcome = Err(io::Error::new(
        io::ErrorKind::NotFound,
        "the name has no address",
    ));
    for address in addresses.take(MAX_ADDRESSES) {
        outcome = TcpStream::connect_timeout(&address, IO_TIMEOUT);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Parses a `traceparent` of version 00, or of a later one that begins with the same fields.
pub fn parse_traceparent(text: &str) -> Option<TraceParent> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let more = parts.next().is_some();
    let [version] = parse_hex(version)?;
    let [_flags] = parse_hex(flags)?;
    if version == 0xff || version == 0 && more {
        return None;
    }
    let parent = TraceParent {
        trace: parse_hex(trace)?,
        span: parse_hex(span)?,
    };
    (parent.trace != [0; 16] && parent.span != [0; 8]).then_some(parent)
}

/// Formats the `traceparent` of a sampled span.
pub fn format_traceparent(trace: &TraceId, span: &SpanId) -> String {
    format!("00-{}-{}-01", hex(trace), hex(span))
}

/// Parses hexadecimal digits. Only lower case is accepted, as the standard requires.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let is_digit = |digit: &u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit);
    if digits.len() != N * 2 || !digits.iter().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_as_the_standard_has_it_or_not_at_all() {
        let read = parse_traceparent(TEXT).unwrap();
        assert_eq!(format_traceparent(&read.trace, &read.span), TEXT);
        assert!(
            parse_traceparent(&TEXT.replace("-01", "-00")).is_some(),
            "whether others trace it is not asked"
        );
        assert!(
            parse_traceparent(&format!("{}-more", TEXT.replacen("00", "42", 1))).is_some(),
            "a later version"
        );
        for bad in [
            "",
            "00",
            &TEXT.replacen("00", "ff", 1),
            &format!("{TEXT}-more"),
            &TEXT.to_uppercase(),
            &TEXT.replace('4', "g"),
            &TEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &TEXT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &TEXT.replace("-01", "-1"),
            &TEXT.replace("0ba9", "0ba"),
            &TEXT.replace("-01", ""),
        ] {
            assert_eq!(parse_traceparent(bad), None, "{bad}");
        }
    }

    #[test]
    fn each_address_of_a_name_is_tried_up_to_a_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Addresses of this machine without a listener.
        let nobody = (2..).map(|last| SocketAddr::from(([127, 0, 0, last], address.port())));
        let reached = |dead: usize| connect(nobody.clone().take(dead).chain([address])).is_ok();
        assert!(reached(0) && reached(1) && reached(MAX_ADDRESSES - 1));
        assert!(!reached(MAX_ADDRESSES), "one batch does not wait for ever");
        assert!(connect([].into_iter()).is_err());
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_holds_nobody_up() {
        let config = TraceExportConfig {
            authority: "127.0.0.1:1".into(),
            path: "/".into(),
            share: SAMPLE_ALL,
            to_vendors: false,
        };
        let (commands, _queue) = bounded_queue(MAX_QUEUED_REQUESTS);
        let traces = TraceExporter(Some((Arc::new(config), commands)));
        let dropped = METRICS.spans_dropped.with_label_values(&["full"]);
        let before = dropped.get();
        for _ in 0..MAX_QUEUED_REQUESTS {
            traces.export(Vec::new());
        }
        assert_eq!(dropped.get(), before);
        let span = || TraceSpan {
            name: "request",
            kind: SpanKind::Server,
            trace: [1; 16],
            id: [2; 8],
            parent: None,
            began: Duration::ZERO,
            ended: Duration::ZERO,
            is_failed: false,
            attributes: Vec::new(),
        };
        traces.export(vec![span(), span()]);
        assert_eq!(dropped.get(), before + 2);
        traces.flush(Duration::from_secs(60));
    }
}
