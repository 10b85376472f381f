//! Counts the failures of one vendor by cause and status, so that the log has one line per minute
//! for each kind, however many requests fail.
//!
//! The first line follows [`FIRST_LINE_DELAY`] after the first failure, so that a burst is one line
//! and the line knows whether another attempt answered. This file must not decide what a failure
//! is: `edge/upstream/vendor_failure.rs` does. Successful requests do not use this file.

use super::lock::lock;
use config::Limits;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between the first failure of a kind and its log line.
const FIRST_LINE_DELAY: Duration = Duration::from_secs(2);
/// Minimum time between two log lines of a kind.
const LINE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of kinds of one vendor that are counted by status; further ones are counted by
/// cause alone. The number must be bounded because a vendor chooses its statuses.
const MAX_KINDS: usize = 32;
/// Maximum number of models that a log line names.
const MAX_MODELS: usize = 3;
/// Maximum length of the vendor's message in a log line, in characters.
pub const MAX_WORDS_CHARS: usize = 160;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VendorFailureCause {
    NameResolution,
    Connect,
    ConnectTimeout,
    Tls,
    FirstByteTimeout,
    Silence,
    Broken,
    KeyRefused,
    NoCredit,
    ModelMissing,
    PathRefused,
    RateLimited,
    Overloaded,
    RequestTimeout,
    ServerError,
    Unreadable,
}

impl VendorFailureCause {
    /// Returns the cause with the limit that was exceeded, as its account holder sees it.
    pub fn describe(self, limits: &Limits) -> String {
        match self {
            Self::ConnectTimeout => format!("no connection within {} s", limits.connect_seconds),
            Self::FirstByteTimeout => format!("no answer within {} s", limits.first_byte_seconds),
            Self::Silence => format!("silent within an answer for {} s", limits.idle_seconds),
            cause => cause.as_str().to_owned(),
        }
    }

    /// Whether it is about the operator's own account or network, so that only operators see what
    /// was said of it.
    pub fn is_private(self) -> bool {
        matches!(
            self,
            Self::NameResolution | Self::KeyRefused | Self::NoCredit
        )
    }

    /// Returns the cause in words, for the log and the pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NameResolution => "its name does not resolve",
            Self::Connect => "no connection",
            Self::ConnectTimeout => "no connection within limits.connect_seconds",
            Self::Tls => "the TLS handshake failed",
            Self::FirstByteTimeout => "no answer within limits.first_byte_seconds",
            Self::Silence => "silent within an answer for limits.idle_seconds",
            Self::Broken => "the answer broke off",
            Self::KeyRefused => "it refuses the gateway's key",
            Self::NoCredit => "the gateway's account there has no credit",
            Self::ModelMissing => "it does not know the model",
            Self::PathRefused => "it does not serve this path or method",
            Self::RateLimited => "rate limit",
            Self::Overloaded => "overloaded",
            Self::RequestTimeout => "it did not receive the request in time",
            Self::ServerError => "server error",
            Self::Unreadable => "the answer cannot be read",
        }
    }
}

#[derive(Debug, Clone)]
pub struct VendorFailure<'a> {
    pub cause: VendorFailureCause,
    /// HTTP status. `None` if no response arrived.
    pub status: Option<u16>,
    /// Message of the vendor, scrubbed and shortened, or of the operating system. Empty without a
    /// message.
    pub words: String,
    /// Public id of the model.
    pub model: &'a str,
    pub request_id: &'a str,
}

/// The last failure of an endpoint, for an operator.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LastFailure {
    /// Unix time of the failure in milliseconds.
    pub at_ms: i64,
    pub status: Option<u16>,
    pub cause: &'static str,
    pub words: String,
    pub model: String,
    pub request_id: String,
}

impl VendorFailure<'_> {
    pub(super) fn to_last(&self, at_ms: i64) -> LastFailure {
        LastFailure {
            at_ms,
            status: self.status,
            cause: self.cause.as_str(),
            words: self.words.clone(),
            model: self.model.to_owned(),
            request_id: self.request_id.to_owned(),
        }
    }
}

/// The kind of a failure. Failures of one kind share a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailureKind {
    cause: VendorFailureCause,
    status: Option<u16>,
}

/// The failures of a kind since its last log line.
struct Batch {
    /// Time at which the next line may be written.
    due: Instant,
    began: Instant,
    count: u64,
    /// Number of these failures after which another attempt answered the request.
    answered: u64,
    words: String,
    models: Vec<String>,
    other_models: bool,
    endpoint: String,
    request_id: String,
}

#[derive(Default)]
pub struct FailureLog(Mutex<BTreeMap<FailureKind, Batch>>);

impl FailureLog {
    pub fn add(&self, endpoint: &str, failure: &VendorFailure<'_>, now: Instant) -> FailureKind {
        let mut batches = lock(&self.0);
        let mut kind = FailureKind {
            cause: failure.cause,
            status: failure.status,
        };
        if batches.len() >= MAX_KINDS && !batches.contains_key(&kind) {
            kind.status = None;
        }
        let batch = batches
            .entry(kind)
            .or_insert_with(|| Batch::new(now + FIRST_LINE_DELAY, now));
        batch.add(endpoint, failure, now);
        kind
    }

    /// Counts that another attempt answered a request after a failure of this kind.
    pub fn count_answered(&self, kind: FailureKind) {
        if let Some(batch) = lock(&self.0).get_mut(&kind) {
            batch.answered = (batch.answered + 1).min(batch.count);
        }
    }

    /// Returns the lines that are due, without the vendor's name. With `all`, returns the other
    /// lines too.
    pub fn take_lines(&self, now: Instant, all: bool) -> Vec<String> {
        let mut batches = lock(&self.0);
        let mut lines = Vec::new();
        batches.retain(|kind, batch| {
            if now < batch.due && !all {
                return true;
            }
            let is_quiet = batch.count == 0;
            if !is_quiet {
                lines.push(batch.line(*kind, now));
                *batch = Batch::new(now + LINE_INTERVAL, now);
            }
            !is_quiet
        });
        lines
    }
}

impl Batch {
    fn new(due: Instant, now: Instant) -> Self {
        Self {
            due,
            began: now,
            count: 0,
            answered: 0,
            words: String::new(),
            models: Vec::new(),
            other_models: false,
            endpoint: String::new(),
            request_id: String::new(),
        }
    }

    fn add(&mut self, endpoint: &str, failure: &VendorFailure<'_>, now: Instant) {
        if self.count == 0 {
            self.began = now;
            endpoint.clone_into(&mut self.endpoint);
            failure.request_id.clone_into(&mut self.request_id);
        }
        self.count += 1;
        if self.words.is_empty() {
            self.words.clone_from(&failure.words);
        }
        if !self.models.iter().any(|model| model == failure.model) {
            match self.models.len() < MAX_MODELS {
                true => self.models.push(failure.model.to_owned()),
                false => self.other_models = true,
            }
        }
    }

    fn line(&self, kind: FailureKind, now: Instant) -> String {
        let seconds = now
            .saturating_duration_since(self.began)
            .as_millis()
            .div_ceil(1_000)
            .max(1);
        let noun = if self.count == 1 {
            "failure"
        } else {
            "failures"
        };
        let mut line = format!("{} {noun} in {seconds} s: ", self.count);
        // Writing to a `String` cannot fail.
        if let Some(status) = kind.status {
            let _ = write!(line, "status {status}, ");
        }
        line.push_str(kind.cause.as_str());
        if !self.words.is_empty() {
            let _ = write!(line, " (\"{}\")", self.words);
        }
        let models = self.models.join(", ");
        let more = if self.other_models { ", …" } else { "" };
        let answered = match self.answered {
            0 => "none answered by another attempt".to_owned(),
            all if all == self.count => "all answered by another attempt".to_owned(),
            some => format!("{some} answered by another attempt"),
        };
        let _ = write!(
            line,
            "; model {models}{more}; {answered}; for example request {} at {}",
            self.request_id, self.endpoint
        );
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(cause: VendorFailureCause, status: Option<u16>, id: &str) -> VendorFailure<'_> {
        VendorFailure {
            cause,
            status,
            words: String::new(),
            model: "opus",
            request_id: id,
        }
    }

    #[test]
    fn each_cause_and_status_has_one_line_a_minute_with_the_number_of_its_failures() {
        let (log, start) = (FailureLog::default(), Instant::now());
        let seconds = |seconds| start + Duration::from_secs(seconds);
        let overloaded = VendorFailure {
            words: "try later".into(),
            ..failure(VendorFailureCause::Overloaded, Some(503), "req_1")
        };
        let kind = log.add("a:443", &overloaded, start);
        log.add(
            "b:443",
            &failure(VendorFailureCause::Overloaded, Some(503), "req_2"),
            start,
        );
        log.add(
            "b:443",
            &failure(VendorFailureCause::Connect, None, "req_3"),
            start,
        );
        log.count_answered(kind);
        assert!(
            log.take_lines(seconds(1), false).is_empty(),
            "a burst is one line"
        );
        let lines = log.take_lines(seconds(2), false);
        assert_eq!(
            lines,
            [
                "1 failure in 2 s: no connection; model opus; none answered by another attempt; \
                 for example request req_3 at b:443",
                "2 failures in 2 s: status 503, overloaded (\"try later\"); model opus; \
                 1 answered by another attempt; for example request req_1 at a:443",
            ]
        );
        for _ in 0..500 {
            log.add("a:443", &overloaded, seconds(30));
        }
        assert!(
            log.take_lines(seconds(61), false).is_empty(),
            "one line a minute"
        );
        let lines = log.take_lines(seconds(62), false);
        assert_eq!(lines.len(), 1, "the connections work again: {lines:?}");
        assert!(
            lines[0].starts_with("500 failures in 32 s: status 503"),
            "{lines:?}"
        );
        // After a quiet minute the next failure is the first again.
        assert!(log.take_lines(seconds(122), false).is_empty());
        log.add("a:443", &overloaded, seconds(200));
        assert_eq!(log.take_lines(seconds(202), false).len(), 1);
        log.add("a:443", &overloaded, seconds(203));
        assert_eq!(
            log.take_lines(seconds(203), true).len(),
            1,
            "the process ends"
        );
    }

    #[test]
    fn a_vendor_with_many_statuses_and_models_has_a_bounded_number_of_kinds() {
        let (log, now) = (FailureLog::default(), Instant::now());
        for status in 400..600 {
            log.add(
                "a",
                &failure(VendorFailureCause::ServerError, Some(status), "r"),
                now,
            );
        }
        let lines = log.take_lines(now, true);
        assert_eq!(lines.len(), MAX_KINDS + 1);
        let rest = 200 - MAX_KINDS;
        assert!(
            lines[0].starts_with(&format!("{rest} failures in 1 s: server error")),
            "{lines:?}"
        );
        for model in ["a", "b", "c", "d", "a"] {
            let failure = VendorFailure {
                model,
                ..failure(VendorFailureCause::Broken, None, "r")
            };
            log.add("a", &failure, now);
        }
        let lines = log.take_lines(now, true);
        assert!(lines[0].contains("model a, b, c, …;"), "{lines:?}");
    }
}
