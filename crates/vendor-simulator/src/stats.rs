//! Records the requests that reached the vendors: counters, and the last requests in full.
//!
//! Memory must not grow with traffic, so every table has a limit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::http_message::SimRequest;
use super::usage::SimUsage;

const MAX_REQUESTS_KEPT: usize = 256;
const MAX_BODY_BYTES_KEPT: usize = 64 * 1024;
const MAX_NAMES: usize = 256;

/// Counters of one simulator, which `/_sim/stats` returns.
#[derive(Debug, Default)]
pub struct Stats {
    connections: AtomicU64,
    over_http1: AtomicU64,
    over_http2: AtomicU64,
    open: AtomicU64,
    requests: AtomicU64,
    in_flight: AtomicU64,
    completed: AtomicU64,
    client_gone: AtomicU64,
    tables: Mutex<StatTables>,
}

#[derive(Debug, Default)]
struct StatTables {
    paths: BTreeMap<String, u64>,
    models: BTreeMap<String, u64>,
    statuses: BTreeMap<u16, u64>,
    last: VecDeque<Arc<SimRequestRecord>>,
}

#[derive(Debug)]
pub(super) struct SimRequestRecord {
    number: u64,
    version: &'static str,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body_length: usize,
    body_sha256: String,
    body: Option<Bytes>,
    pub answer: SimAnswerStats,
}

/// Statistics of an answer, both during and after sending.
#[derive(Debug, Default)]
pub(super) struct SimAnswerStats {
    usage: OnceLock<SimUsage>,
    events: AtomicU64,
    shown_bytes: AtomicU64,
    end: OnceLock<&'static str>,
}

impl SimAnswerStats {
    /// Sets the usage of the complete answer; `None` if the answer is not a model's.
    pub fn set_usage(&self, usage: Option<SimUsage>) {
        if let Some(usage) = usage {
            // A request gets only one answer, so the cell is still empty.
            let _ = self.usage.set(usage);
        }
    }

    /// Counts one event with this number of output bytes.
    pub fn record_event(&self, shown_bytes: usize) {
        self.events.fetch_add(1, Relaxed);
        self.shown_bytes
            .fetch_add(u64::try_from(shown_bytes).unwrap_or(u64::MAX), Relaxed);
    }

    fn to_json(&self) -> Value {
        let usage = self.usage.get().map(|usage| {
            let SimUsage { input, cache_read, write_5m, write_1h, output, .. } = usage;
            json!({"input": input, "cache_read": cache_read, "write_5m": write_5m, "write_1h": write_1h, "output": output})
        });
        json!({
            "usage": usage,
            "events": self.events.load(Relaxed),
            "shown_bytes": self.shown_bytes.load(Relaxed),
            "end": self.end.get().unwrap_or(&"running"),
        })
    }
}

impl Stats {
    pub(super) fn connection_opened(&self) {
        self.connections.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
    }

    pub(super) fn record_http_version(&self, version: &str) {
        let counter = if version == "2" {
            &self.over_http2
        } else {
            &self.over_http1
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn connection_closed(&self) {
        self.open.fetch_sub(1, Relaxed);
    }

    /// Records a complete request, whose answer starts now.
    pub(super) fn record_start(&self, request: &SimRequest) -> Arc<SimRequestRecord> {
        let number = self.requests.fetch_add(1, Relaxed) + 1;
        self.in_flight.fetch_add(1, Relaxed);
        let keeps_body = request.body.len() <= MAX_BODY_BYTES_KEPT;
        let record = Arc::new(SimRequestRecord {
            number,
            version: request.version,
            method: request.method.clone(),
            target: request.target.clone(),
            headers: request.headers.clone(),
            body_length: request.body.len(),
            body_sha256: hex(&Sha256::digest(&request.body)),
            // The bytes are copied, because a slice would keep the whole read buffer alive.
            body: keeps_body.then(|| Bytes::copy_from_slice(&request.body)),
            answer: SimAnswerStats::default(),
        });
        let mut tables = self.tables();
        count(
            &mut tables.paths,
            &format!("{} {}", request.method, request.path()),
        );
        if tables.last.len() == MAX_REQUESTS_KEPT {
            tables.last.pop_front();
        }
        tables.last.push_back(Arc::clone(&record));
        record
    }

    pub(super) fn count_model(&self, model: &str) {
        count(&mut self.tables().models, model);
    }

    pub(super) fn count_status(&self, status: u16) {
        *self.tables().statuses.entry(status).or_default() += 1;
    }

    /// Records the end of an answer that was sent as planned, including its faults.
    pub(super) fn record_completed(&self, record: &SimRequestRecord) {
        let _ = record.answer.end.set("sent");
        self.completed.fetch_add(1, Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Records the end of an answer whose client disconnected.
    pub(super) fn record_client_gone(&self, record: &SimRequestRecord) {
        let _ = record.answer.end.set("gone");
        self.client_gone.fetch_add(1, Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Resets the counters, except those of open connections and running requests.
    pub(super) fn reset(&self) {
        *self.tables() = StatTables::default();
        let Self {
            connections,
            over_http1,
            over_http2,
            requests,
            completed,
            client_gone,
            ..
        } = self;
        for counter in [
            connections,
            over_http1,
            over_http2,
            requests,
            completed,
            client_gone,
        ] {
            counter.store(0, Relaxed);
        }
    }

    pub(super) fn summary(&self) -> Value {
        let tables = self.tables();
        let last = tables.last.back().map(|record| record.to_json(false));
        json!({
            "connections": self.connections.load(Relaxed),
            "connections_by_http": {
                "1.1": self.over_http1.load(Relaxed),
                "2": self.over_http2.load(Relaxed),
            },
            "open_connections": self.open.load(Relaxed),
            "requests": self.requests.load(Relaxed),
            "in_flight": self.in_flight.load(Relaxed),
            "completed": self.completed.load(Relaxed),
            "client_gone": self.client_gone.load(Relaxed),
            "paths": tables.paths,
            "models": tables.models,
            "statuses": tables.statuses,
            "last": last,
        })
    }

    /// Returns the last `count` requests, oldest first.
    pub(super) fn last(&self, count: usize) -> Value {
        let tables = self.tables();
        let skipped = tables.last.len().saturating_sub(count);
        let records: Vec<_> = tables.last.iter().skip(skipped).cloned().collect();
        drop(tables);
        records.iter().map(|record| record.to_json(true)).collect()
    }

    fn tables(&self) -> MutexGuard<'_, StatTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimRequestRecord {
    fn to_json(&self, with_body: bool) -> Value {
        let mut shown = json!({
            "number": self.number,
            "http": self.version,
            "method": self.method,
            "target": self.target,
            "path": self.target.split('?').next(),
            "headers": self.headers,
            "body_length": self.body_length,
            "body_sha256": self.body_sha256,
            "answer": self.answer.to_json(),
        });
        if with_body {
            shown["body"] = match &self.body {
                Some(body) => String::from_utf8_lossy(body).into(),
                None => Value::Null,
            };
        }
        shown
    }
}

fn count(table: &mut BTreeMap<String, u64>, name: &str) {
    if let Some(number) = table.get_mut(name) {
        *number += 1;
    } else if table.len() < MAX_NAMES {
        table.insert(name.to_owned(), 1);
    } else {
        *table.entry("(others)".to_owned()).or_default() += 1;
    }
}

/// Encodes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
            // Writing to a string cannot fail.
            let _ = write!(out, "{byte:02x}");
            out
        })
}
