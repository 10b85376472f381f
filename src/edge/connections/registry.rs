//! Tracks the client connections of this process: their number, their state, and which are idle.
//!
//! If there are too many, idle ones are closed. This file must not read or write a connection. It
//! counts and logs refusals that precede a request.

use super::inbound::InboundTracker;
use crate::client_counts::{ClientCounts, ExceededLimit};
use crate::edge::framing;
use crate::edge::intake::BodyBytes;
use crate::edge::malformed::{self, MalformedResponse, NO_TUNNELS};
use crate::edge::recorders::Recorders;
use crate::pulse::Pulse;
use arc_swap::ArcSwap;
use base::telemetry::METRICS;
use base::telemetry::log_path::{loggable_method, loggable_path};
use base::telemetry::refusals::{self, RefusalReason};
use config::address::client_prefix;
use config::{Limits, Settings};
use llm_protocol::failure::{Failure, Kind};
use pingora::protocols::SocketDigest;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub struct Connections {
    settings: Arc<ArcSwap<Settings>>,
    recorders: Recorders,
    /// Maximum number of connections that the limit on open files allows.
    descriptors: u64,
    pub pulse: Arc<Pulse>,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    counts: ClientCounts,
    /// Connections whose TLS handshake is complete, by number.
    watched: HashMap<u64, Weak<ClientConnection>>,
    next: u64,
    /// No connection counts as idle before this instant.
    all_busy_until: Option<Instant>,
}

impl OpenConnections {
    /// Returns up to `max_count` idle connections, first those of the address with the most
    /// connections, and of these the longest idle first. `examined` keeps every examined connection
    /// alive until the lock is free: dropping the last reference to a connection takes the same
    /// lock.
    fn select_idle(
        &mut self,
        max_count: usize,
        now: Instant,
        examined: &mut Vec<Arc<ClientConnection>>,
    ) -> Vec<Arc<ClientConnection>> {
        if self.all_busy_until.is_some_and(|until| now < until) {
            return Vec::new();
        }
        examined.extend(self.watched.values().filter_map(Weak::upgrade));
        let mut idle: Vec<_> = examined
            .iter()
            .filter_map(|found| Some((found.idle_since(now)?, found)))
            .collect();
        idle.sort_unstable_by_key(|(since, found)| {
            (Reverse(self.counts.count_for(&found.client)), *since)
        });
        self.all_busy_until = idle.is_empty().then(|| now + SEARCH_INTERVAL);
        idle.truncate(max_count);
        idle.into_iter()
            .map(|(_, found)| Arc::clone(found))
            .collect()
    }

    /// Closes these connections and removes them from the counts.
    fn close(&mut self, idle: &[Arc<ClientConnection>]) {
        for connection in idle {
            self.watched.remove(&connection.number);
            if connection.is_counted.swap(false, Ordering::Relaxed) {
                self.counts.leave(&connection.client);
            }
            connection.close();
        }
        METRICS.idle_connections_closed.inc_by(idle.len() as u64);
        METRICS
            .client_connections
            .set(i64::try_from(self.counts.total()).unwrap_or(i64::MAX));
    }
}

impl Connections {
    /// Creates the registry. `descriptors` is the number of connections that the limit on open
    /// files allows.
    pub fn new(
        settings: Arc<ArcSwap<Settings>>,
        recorders: Recorders,
        descriptors: u64,
        pulse: Pulse,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            recorders,
            descriptors,
            pulse: Arc::new(pulse),
            open: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self, limits: &Limits) -> u64 {
        if limits.connections == 0 {
            self.descriptors
        } else {
            limits.connections.min(self.descriptors)
        }
    }

    /// Counts a connection, and closes idle ones if there are too many. Returns `None` if none is
    /// idle; the new connection is then closed without a response, because a flooding client reads
    /// none.
    pub(super) fn enter(
        self: &Arc<Self>,
        socket: Option<Arc<SocketDigest>>,
    ) -> Option<Arc<ClientConnection>> {
        let address = socket.and_then(|socket| Some(socket.peer_addr()?.as_inet()?.ip()));
        // If the peer has disconnected already, there is no address. All such connections count
        // together.
        let client = client_prefix(address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)));
        let settings = self.settings.load();
        let limit = self.limit(&settings.limits);
        // A trusted proxy's connections carry the requests of many clients, and the gateway does
        // not know the client before the request.
        let is_proxy = address.is_some_and(|address| settings.trust_proxy.contains(address));
        let per_address = if is_proxy {
            0
        } else {
            settings.limits.connections_per_address
        };
        let mut examined = Vec::new();
        let mut open = self.lock();
        let mut entered = open.counts.enter(client, per_address, limit);
        if entered == Err(ExceededLimit::Total) {
            // Close several at a time, so that a flood of new connections does not cause a new
            // search for each.
            let max_count = usize::try_from(limit / EVICTION_DIVISOR + 1).unwrap_or(usize::MAX);
            let idle = open.select_idle(max_count, Instant::now(), &mut examined);
            open.close(&idle);
            entered = open.counts.enter(client, per_address, limit);
        }
        METRICS
            .client_connections
            .set(i64::try_from(open.counts.total()).unwrap_or(i64::MAX));
        open.next += 1;
        let number = open.next;
        drop(open);
        drop(examined);
        if let Err(exceeded) = entered {
            let reason = match exceeded {
                ExceededLimit::Address => RefusalReason::ConnectionsPerAddress,
                ExceededLimit::Total => RefusalReason::ConnectionsTotal,
            };
            refusals::record(reason, address, "too many connections");
            return None;
        }
        Some(Arc::new(ClientConnection {
            connections: Arc::clone(self),
            number,
            client,
            is_proxy,
            body_bytes: BodyBytes::default(),
            address,
            inbound: Mutex::new(InboundTracker::new()),
            opened: Instant::now(),
            header_read: Duration::from_secs(settings.limits.header_read_seconds),
            header_bytes: settings.limits.header_bytes,
            client_write: Duration::from_secs(settings.limits.client_write_seconds),
            header_since: AtomicU64::new(0),
            is_counted: AtomicBool::new(true),
            requests: AtomicU32::new(0),
            idle_since: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            reader: Mutex::default(),
        }))
    }

    /// Registers a connection, so that the gateway can close it when it is idle.
    pub(super) fn watch(&self, connection: &Arc<ClientConnection>) {
        self.lock()
            .watched
            .insert(connection.number, Arc::downgrade(connection));
    }

    /// Closes some of the idle connections, because this process runs out of file descriptors.
    pub fn close_idle(&self) {
        let mut examined = Vec::new();
        let mut open = self.lock();
        let max_count = open.watched.len() / 8 + 1;
        let idle = open.select_idle(max_count, Instant::now(), &mut examined);
        open.close(&idle);
        drop(open);
        drop(examined);
    }
}

/// Value of `header_since` while a request is in progress, so that no header is being read.
const REQUEST_IN_PROGRESS: u64 = u64::MAX;
/// Value of `header_since` if no byte has arrived since the last request.
const NO_HEADER_YET: u64 = u64::MAX - 1;
/// Time without a request after which a connection counts as idle: a client that has just
/// connected, or just got a response, is about to send a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time between two searches for idle connections, if the first one found none.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);
/// Divisor of the connection limit. The quotient is the number of idle connections that the gateway
/// closes at a time.
const EVICTION_DIVISOR: u64 = 32;

/// One client connection, counted until it is dropped or closed.
pub struct ClientConnection {
    connections: Arc<Connections>,
    number: u64,
    client: IpAddr,
    /// True if the connection belongs to a trusted proxy, which carries the requests of many
    /// clients.
    pub(super) is_proxy: bool,
    /// Number of body bytes that the requests on this connection hold.
    pub(super) body_bytes: BodyBytes,
    /// Address of the peer, for the log.
    address: Option<IpAddr>,
    /// Only an HTTP/1 connection uses the tracker.
    inbound: Mutex<InboundTracker>,
    pub(super) opened: Instant,
    pub(super) header_read: Duration,
    pub(super) header_bytes: u64,
    /// Time in which the client must take 64 KiB of a response. See `edge/client_pace.rs`.
    pub(super) client_write: Duration,
    /// Milliseconds after `opened` at which the current header began; or [`REQUEST_IN_PROGRESS`] or
    /// [`NO_HEADER_YET`]. On a new connection the header counts as begun, so that a client that
    /// never sends anything is closed too.
    header_since: AtomicU64,
    is_counted: AtomicBool,
    /// Number of requests in progress. HTTP/2 allows several.
    requests: AtomicU32,
    idle_since: AtomicU64,
    is_closing: AtomicBool,
    /// Waker of the task that waits for the client's next bytes.
    reader: Mutex<Option<Waker>>,
}

impl ClientConnection {
    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(NO_HEADER_YET - 1)
    }

    /// Returns when the current header must be complete.
    pub(super) fn header_deadline(&self) -> Option<Instant> {
        match self.header_since.load(Ordering::Relaxed) {
            REQUEST_IN_PROGRESS | NO_HEADER_YET => None,
            since => Some(self.opened + Duration::from_millis(since) + self.header_read),
        }
    }

    /// Records that bytes have arrived. Returns true if they are the first bytes of a header.
    pub(super) fn begin_header(&self) -> bool {
        self.header_since
            .compare_exchange(
                NO_HEADER_YET,
                self.now(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    pub(super) fn begin_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.header_since
            .store(REQUEST_IN_PROGRESS, Ordering::Relaxed);
    }

    /// Records the end of a request. An HTTP/2 connection carries several requests, and Pingora's
    /// own idle timeout watches its frames.
    pub(super) fn end_request(&self, is_h2: bool) {
        let less = |requests: u32| Some(requests.saturating_sub(1));
        let _ = self
            .requests
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.idle_since.store(self.now(), Ordering::Relaxed);
        if !is_h2 {
            self.header_since.store(NO_HEADER_YET, Ordering::Relaxed);
        }
    }

    /// Returns the instant since which there has been no request. Returns `None` during a request
    /// and shortly after the last one. An incomplete header does not count as a request.
    fn idle_since(&self, now: Instant) -> Option<Instant> {
        if self.requests.load(Ordering::Relaxed) > 0 || self.is_closing() {
            return None;
        }
        let since = match self.header_since.load(Ordering::Relaxed) {
            REQUEST_IN_PROGRESS | NO_HEADER_YET => self.idle_since.load(Ordering::Relaxed),
            header => header,
        };
        let since = self.opened + Duration::from_millis(since);
        (now.saturating_duration_since(since) >= IDLE_TIMEOUT).then_some(since)
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Closes the connection, and wakes the task that waits for the client's next bytes.
    fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        if let Some(reader) = self
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            reader.wake();
        }
    }

    /// Becomes ready once the connection must end instead of waiting for more bytes.
    pub(super) fn poll_closed(&self, context: &Context<'_>) -> Poll<()> {
        if self.poll_closing(context.waker()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Returns whether the connection must end instead of waiting for more bytes. If not, the
    /// connection keeps `waker` and wakes it once it must end. A request that has arrived meanwhile
    /// is answered first.
    pub(super) fn poll_closing(&self, waker: &Waker) -> bool {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_closing() && self.requests.load(Ordering::Relaxed) == 0 {
            return true;
        }
        match &mut *reader {
            Some(known) => known.clone_from(waker),
            None => *reader = Some(waker.clone()),
        }
        false
    }
}

impl ClientConnection {
    pub(super) fn is_serving(&self) -> bool {
        self.header_since.load(Ordering::Relaxed) == REQUEST_IN_PROGRESS
    }

    pub(super) fn inbound(&self) -> MutexGuard<'_, InboundTracker> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and logs a refusal on this connection.
    pub(super) fn record_refusal(&self, reason: RefusalReason, detail: &dyn fmt::Display) {
        refusals::record(reason, self.address, detail);
    }

    /// Records that the HTTP/2 library answered a request by itself, with this status alone.
    pub(super) fn record_bare_answer(&self, reason: RefusalReason, status: u16) {
        let response = MalformedResponse::bare(status);
        self.record_refusal(
            reason,
            &format_args!(
                "an HTTP/2 request, answered with {status}. Request {}",
                response.request_id
            ),
        );
        malformed::record_malformed(
            &self.connections.recorders,
            &response,
            reason,
            self.address,
            Default::default(),
            Duration::ZERO,
        );
    }

    /// Returns the answer to a malformed HTTP/1 request, and counts and logs the refusal.
    /// `by_pingora` is the response that Pingora was writing.
    pub(super) fn malformed_response(&self, by_pingora: &[u8]) -> Vec<u8> {
        let inbound = self.inbound();
        let (method, target, _) = framing::first_line_words(inbound.header());
        let (failure, reason) = if by_pingora
            .get(b"HTTP/1.1 ".len()..)
            .is_some_and(|rest| rest.starts_with(b"405"))
        {
            // The gateway does not support tunnels (the method CONNECT).
            let failure = Failure::new(Kind::WrongMethod, NO_TUNNELS);
            (failure, RefusalReason::RequestLine)
        } else {
            let defect = framing::header_defect(inbound.header());
            (Failure::from(defect), defect.reason)
        };
        let (is_head, method, path) = (
            method == b"HEAD",
            loggable_method(method),
            loggable_path(target),
        );
        drop(inbound);
        let response = malformed::build_malformed_response(&failure, &path, is_head);
        self.record_refusal(
            reason,
            &format_args!(
                "{method} {path}: {} Request {}",
                failure.message, response.request_id
            ),
        );
        malformed::record_malformed(
            &self.connections.recorders,
            &response,
            reason,
            self.address,
            (method, path),
            Duration::ZERO,
        );
        response.bytes
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.watched.remove(&self.number);
        if self.is_counted.swap(false, Ordering::Relaxed) {
            open.counts.leave(&self.client);
        }
        METRICS
            .client_connections
            .set(i64::try_from(open.counts.total()).unwrap_or(i64::MAX));
    }
}
