//! Writes the access log, with one line of JSON for each request, regardless of its outcome.
//!
//! At the end of a request the edge only puts a record into a bounded queue; a separate thread
//! writes it. If the disk or the reader is too slow, lines are lost and counted, but requests never
//! wait. This file must not hold a body, a header, a query or a secret. Every text in a record
//! comes from this code, from the config or from the gateway's own ids, except the method and the
//! path, which `telemetry/log_path.rs` sanitizes.

use super::metrics::METRICS;
use crate::queue::{QueueReceiver, QueueSender, bounded_queue};
use crate::{clock, file_owner};
use arc_swap::ArcSwapOption;
use credits::money::Micro;
use serde::Serialize;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Size of one write in bytes. It holds many lines, so that a busy log needs few writes.
const BATCH_BYTES: usize = 65_536;
/// Time that a batch waits for more lines. It keeps the number of wake-ups and writes low.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// Time between two attempts to reach a writer whose queue is full.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(10);
/// Mode of a new file, which restricts who may read the requests.
const FILE_MODE: u32 = 0o640;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LogDestination {
    #[default]
    Off,
    Stdout,
    /// A file to which the gateway appends, or a pipe. SIGHUP reopens it, for log rotation.
    File(PathBuf),
}

impl fmt::Display for LogDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The log record of one request. Times are in microseconds; fields that do not apply are omitted.
#[derive(Debug, Serialize)]
pub struct AccessRecord {
    /// Arrival time in ms since 1970. The log shows it as RFC 3339 in UTC.
    #[serde(rename = "at", serialize_with = "rfc3339")]
    pub at_ms: i64,
    pub request_id: String,
    /// Address of the peer from the view of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// Method, truncated to 16 bytes. The method and `path` are the only texts from the client.
    pub method: String,
    /// Path without the query, truncated to 128 bytes and escaped. Parts that look like a key are
    /// masked.
    pub path: String,
    /// `call`, `sidecar`, or the name of a local response. The values form a closed set.
    pub route: &'static str,
    /// `call`, `sidecar`, or the name of a response of the gateway itself. The values form a closed
    /// set.
    pub handler: &'static str,
    /// Surface of the request. The record leaves it out for a request without one.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub surface: &'static str,
    pub status: u16,
    /// Reason for the refusal or failure, from a closed set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "text")]
    pub account: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "text")]
    pub key_id: Option<Arc<str>>,
    #[serde(flatten)]
    pub call: Option<CallRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_us: Option<u64>,
    pub total_us: u64,
}

/// Fields of a request that was sent to a vendor.
#[derive(Debug, Serialize)]
pub struct CallRecord {
    pub model: String,
    pub stream: bool,
    pub vendor: String,
    pub endpoint: String,
    pub attempts: usize,
    pub body_bytes: u64,
    /// Billing outcome. `None` if the request is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "credits")]
    pub credits: Option<Micro>,
    /// Time that the gateway waited for the client's body.
    pub body_us: u64,
    /// Time from the end of the body until the request was sent upstream: translation, quote, hold.
    pub admit_us: u64,
    /// Time from the sending of the request to the vendor's header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor_us: Option<u64>,
    /// Time from the request's header to the first byte of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_us: Option<u64>,
}

fn text<S: serde::Serializer>(text: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_deref().serialize(serializer)
}

fn rfc3339<S: serde::Serializer>(at_ms: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&clock::rfc3339(*at_ms))
}

fn credits<S: serde::Serializer>(
    credits: &Option<Micro>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    credits
        .map(|credits| credits.to_string())
        .serialize(serializer)
}

/// Handle of the log writer, which can be replaced. Cloning it is cheap.
#[derive(Clone, Default)]
pub struct AccessLog(Arc<ArcSwapOption<QueueSender<LogCommand>>>);

/// A writer that no handle uses yet, or `None` if the log is off.
pub struct PendingAccessLog(Option<QueueSender<LogCommand>>);

enum LogCommand {
    Line(Box<AccessRecord>),
    /// Reopens the file, which was moved away.
    Reopen,
    /// Writes all earlier lines, and then notifies the waiting thread.
    Flush(SyncSender<()>),
}

impl AccessLog {
    /// Starts the writer. `lines` is the capacity of its queue.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn start(destination: &LogDestination, lines: u64) -> io::Result<Self> {
        let log = Self::default();
        log.replace_writer(Self::open(destination, lines)?);
        Ok(log)
    }

    /// Starts a writer for [`AccessLog::replace_writer`].
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(destination: &LogDestination, lines: u64) -> io::Result<PendingAccessLog> {
        let out = match destination {
            LogDestination::Off => return Ok(PendingAccessLog(None)),
            // The standard library's handle would buffer the lines.
            LogDestination::Stdout => LogOutput {
                file: io::stdout().as_fd().try_clone_to_owned()?.into(),
                path: None,
            },
            LogDestination::File(path) => LogOutput {
                file: open(path)?,
                path: Some(path.clone()),
            },
        };
        let (sender, receiver) = bounded_queue(usize::try_from(lines).unwrap_or(usize::MAX));
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || LogWriter::new(out).run(&receiver))?;
        Ok(PendingAccessLog(Some(sender)))
    }

    /// Sends all further records to this writer. The old writer ends once its queue is written.
    pub fn replace_writer(&self, opened: PendingAccessLog) {
        self.0.store(opened.0.map(Arc::new));
    }

    pub fn is_on(&self) -> bool {
        self.0.load().is_some()
    }

    /// Queues a record without blocking. If the queue is full, the record is dropped and counted.
    pub fn write(&self, record: AccessRecord) {
        let queue = self.0.load();
        let Some(sender) = queue.as_ref() else { return };
        match sender.try_send(LogCommand::Line(Box::new(record))) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => METRICS.access_log_dropped("full"),
            Err(TrySendError::Disconnected(_)) => METRICS.access_log_dropped("failed"),
        }
    }

    /// Reopens the file after the old one was moved away.
    pub fn reopen(&self) {
        if let Some(sender) = self.0.load().as_ref() {
            // If the queue is full, the writer is stuck, and reopening would not help.
            let _ = sender.try_send(LogCommand::Reopen);
        }
    }

    /// Waits until all queued records are written, up to the time limit.
    pub fn flush(&self, limit: Duration) {
        let queue = self.0.load();
        let Some(sender) = queue.as_ref() else { return };
        let end = Instant::now() + limit;
        let (done, is_done) = sync_channel(1);
        let mut command = LogCommand::Flush(done);
        while let Err(refused) = sender.try_send(command) {
            match refused {
                TrySendError::Full(again) if Instant::now() < end => command = again,
                _ => return,
            }
            std::thread::sleep(FULL_QUEUE_PAUSE);
        }
        let _ = is_done.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

struct LogOutput {
    file: File,
    /// Path under which to open the file again. `None` for stdout.
    path: Option<PathBuf>,
}

struct LogWriter {
    out: LogOutput,
    batch: Vec<u8>,
    lines: u64,
    /// True if the last write failed. The error is logged once, not for every batch.
    is_failing: bool,
}

impl LogWriter {
    fn new(out: LogOutput) -> Self {
        Self {
            out,
            batch: Vec::with_capacity(BATCH_BYTES),
            lines: 0,
            is_failing: false,
        }
    }

    /// Runs until all senders are dropped.
    fn run(mut self, commands: &QueueReceiver<LogCommand>) {
        while let Ok(first) = commands.recv() {
            // Sleep instead of waiting on the queue, where every line would wake this thread.
            if let LogCommand::Line(_) = first {
                std::thread::sleep(BATCH_DELAY);
            }
            self.handle(first);
            commands.try_iter().for_each(|more| self.handle(more));
            self.write_batch();
        }
    }

    fn handle(&mut self, command: LogCommand) {
        match command {
            LogCommand::Line(record) => {
                if serde_json::to_writer(&mut self.batch, &record).is_ok() {
                    self.batch.push(b'\n');
                    self.lines += 1;
                }
                if self.batch.len() >= BATCH_BYTES {
                    self.write_batch();
                }
            }
            LogCommand::Reopen => {
                self.write_batch();
                if let Some(path) = &self.out.path {
                    match open(path) {
                        Ok(new) => self.out.file = new,
                        Err(error) => {
                            log::error!("cannot reopen the access log {}: {error}", path.display())
                        }
                    }
                }
            }
            LogCommand::Flush(done) => {
                self.write_batch();
                let _ = done.try_send(());
            }
        }
    }

    /// Writes whole lines in one write, so that two processes can append to one file.
    fn write_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let written = self.out.file.write_all(&self.batch);
        if let Err(error) = &written {
            (0..self.lines).for_each(|_| METRICS.access_log_dropped("failed"));
            if !self.is_failing {
                log::error!(
                    "cannot write the access log: {error}; the gateway drops lines until it can"
                );
            }
        }
        self.is_failing = written.is_err();
        self.batch.clear();
        self.lines = 0;
    }
}

/// Opens or creates the file. A pipe is opened for reading too: opening it for writing alone would
/// wait until another process reads it, perhaps forever, and a reader that restarts would end the
/// pipe. rsyslog opens its pipes in the same way (`ompipe`).
fn open(path: &Path) -> io::Result<File> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
    let mut options = OpenOptions::new();
    let options = options.read(is_pipe).append(true).create(true);
    file_owner::open(options.mode(FILE_MODE), path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};

    fn record(request_id: &str) -> AccessRecord {
        AccessRecord {
            at_ms: 1_750_000_000_000,
            request_id: request_id.into(),
            client: Some([127, 0, 0, 1].into()),
            method: "GET".into(),
            path: "/v1/models".into(),
            route: "api",
            handler: "rejected",
            surface: "chat",
            status: 401,
            reason: Some("bad_key"),
            account: None,
            key_id: None,
            call: None,
            auth_us: None,
            total_us: 17,
        }
    }

    fn lines(path: &std::path::Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn what_did_not_happen_is_left_out() {
        let line = serde_json::to_value(record("req_1")).unwrap();
        let expected = serde_json::json!({
            "at": "2025-06-15T15:06:40.000Z", "request_id": "req_1", "client": "127.0.0.1", "method": "GET", "path": "/v1/models", "route": "api", "handler": "rejected",
            "surface": "chat", "status": 401, "reason": "bad_key", "total_us": 17
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (
            dir.path().join("access.log"),
            dir.path().join("access.log.1"),
        );
        let log = AccessLog::start(&LogDestination::File(path.clone()), 16).unwrap();
        log.write(record("req_1"));
        log.flush(Duration::from_secs(10));
        std::fs::rename(&path, &moved).unwrap();
        log.write(record("req_2"));
        log.reopen();
        log.write(record("req_3"));
        log.flush(Duration::from_secs(10));
        let ids = |path| {
            lines(path)
                .iter()
                .map(|line| line["request_id"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&moved), ["req_1", "req_2"]);
        assert_eq!(ids(&path), ["req_3"]);
    }

    #[test]
    fn a_reader_that_stands_still_holds_up_a_flush_up_to_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        let log = AccessLog::start(&LogDestination::File(pipe.clone()), 16_384).unwrap();
        // More than a pipe and a batch hold.
        for _ in 0..4_096 {
            log.write(record("req_1"));
        }
        let limit = Duration::from_millis(20);
        let (ended, end) = sync_channel(1);
        let flushed = log.clone();
        std::thread::spawn(move || {
            let began = Instant::now();
            flushed.flush(limit);
            ended.send(began.elapsed())
        });
        let took = end.recv_timeout(Duration::from_secs(60)).expect("an end");
        assert!(took >= limit, "nobody reads: {took:?}");
        // All lines come once somebody reads.
        let lines = BufReader::new(File::open(&pipe).unwrap()).lines();
        assert_eq!(lines.take(4_096).map(Result::unwrap).count(), 4_096);
    }

    #[test]
    fn a_flush_waits_for_room_in_the_queue_up_to_its_limit() {
        let (sender, _receiver) = bounded_queue(1);
        let log = AccessLog::default();
        log.replace_writer(PendingAccessLog(Some(sender)));
        log.write(record("req_1"));
        let (began, limit) = (Instant::now(), Duration::from_millis(20));
        log.flush(limit);
        assert!(began.elapsed() >= limit);
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_up_neither_the_start_nor_a_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        let log = AccessLog::start(&LogDestination::File(pipe.clone()), 16).unwrap();
        log.write(record("req_1"));
        log.reopen();
        log.write(record("req_2"));
        // The first to come gets what was written before it came.
        let mut lines = BufReader::new(File::open(&pipe).unwrap()).lines();
        let mut next = || lines.next().unwrap().unwrap();
        assert!(next().contains("req_1") && next().contains("req_2"));
    }

    #[test]
    fn past_its_limit_a_line_is_dropped_and_counted_and_nobody_waits() {
        let (sender, receiver) = bounded_queue(2);
        let log = AccessLog::default();
        log.replace_writer(PendingAccessLog(Some(sender)));
        let dropped = METRICS.access_log_dropped.with_label_values(&["full"]);
        let before = dropped.get();
        for id in ["req_1", "req_2", "req_3"] {
            log.write(record(id));
        }
        assert_eq!(dropped.get() - before, 1);
        drop(log);
        assert_eq!(receiver.try_iter().count(), 2);
    }
}
