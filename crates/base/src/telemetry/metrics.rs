//! Defines the metric families of the gateway and their registry.
//!
//! Every label comes from the config or from a closed set in the code, never from client input.
//! This file must not hold secrets, bodies or prompts.

use super::family::{FamilyOptions, MetricFamily, register_family};
use super::gen_ai::GenAiMetrics;
use super::model_labels::ModelLabels;
use super::process::ProcessMetrics;
use super::refusal_reason::RefusalReason;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};
use std::sync::{Arc, LazyLock};

pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

const SECONDS_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 900.0, 3_600.0,
];
const OVERHEAD_SECONDS_BUCKETS: &[f64] = &[
    0.000_025, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25,
];

/// Declares the families. Each one is a field of [`Metrics`], and registered under its name.
macro_rules! families {
    ($($(#[$doc:meta])* $vis:vis $field:ident: $kind:ident { $($option:ident: $value:expr),* })*) => {
        pub struct Metrics {
            registry: Registry,
            $($(#[$doc])* $vis $field: $kind,)*
            pub gen_ai: GenAiMetrics,
            pub models: Arc<ModelLabels>,
            process: ProcessMetrics,
        }

        impl Metrics {
            /// Registers every family without any series.
            #[expect(clippy::needless_update, reason = "a row may give every option")]
            fn register() -> Self {
                let registry = Registry::new();
                let models = Arc::<ModelLabels>::default();
                Self {
                    $($field: register_family(
                        &registry,
                        $kind::build(FamilyOptions { $($option: $value,)* ..FamilyOptions::default() }),
                    ),)*
                    gen_ai: GenAiMetrics::new(&registry, Arc::clone(&models)),
                    models,
                    process: ProcessMetrics::new(&registry),
                    registry,
                }
            }
        }
    };
}

families! {
    pub requests: IntCounterVec { name: "gateway_requests_total", labels: &["route", "surface", "model", "status"],
        help: "Responses of the gateway: of the API, pages, health checks, and to malformed requests." }
    pub request_seconds: HistogramVec { name: "gateway_request_seconds", labels: &["surface", "model"], buckets: SECONDS_BUCKETS,
        help: "Time from a request's header to the end of its response." }
    pub time_to_first_byte_seconds: Histogram { name: "gateway_time_to_first_byte_seconds", buckets: SECONDS_BUCKETS,
        help: "Time from a request's header to the first byte of its response." }
    pub overhead_seconds: Histogram { name: "gateway_overhead_seconds", buckets: OVERHEAD_SECONDS_BUCKETS,
        help: "Time that the gateway spends on a request before it calls the vendor: key, checks, reservation." }
    pub upstream_requests: IntCounterVec { name: "gateway_upstream_requests_total", labels: &["vendor", "endpoint", "status"],
        help: "Requests to vendors, by response status (0: no response)." }
    pub upstream_healthy: IntGaugeVec { name: "gateway_upstream_healthy", labels: &["vendor", "endpoint"],
        help: "1 if the endpoint gets requests: its breaker is closed and its health check passes." }
    pub upstream_opened: IntCounterVec { name: "gateway_upstream_breaker_opened_total", labels: &["vendor", "endpoint"],
        help: "Times that an endpoint's breaker opened." }
    pub upstream_failovers: IntCounterVec { name: "gateway_upstream_failovers_total", labels: &["vendor", "endpoint", "reason"],
        help: "Requests that moved on to another address or endpoint, by the failure of the one before." }
    pub vendor_key_refused: IntCounterVec { name: "gateway_vendor_key_refused_total", labels: &["vendor", "reason"],
        help: "Requests that a vendor refused because of the gateway's key (`key`) or its credit at the vendor (`quota`)." }
    pub retry_budget_exhausted: IntCounterVec { name: "gateway_retry_budget_exhausted_total", labels: &["vendor"],
        help: "Requests that the gateway did not retry because the retry budget was exhausted." }
    pub learned: IntCounterVec { name: "gateway_learned_total", labels: &["vendor", "member"],
        help: "Requests repeated without a member that the vendor refused." }
    pub fallbacks: IntCounterVec { name: "gateway_fallbacks_total", labels: &["model", "fallback"],
        help: "Requests that the gateway sent to a fallback model." }
    pub tokens: IntCounterVec { name: "gateway_tokens_total", labels: &["model", "class"],
        help: "Tokens billed." }
    pub vendor_cut_tokens: IntCounterVec { name: "gateway_vendor_cut_tokens_total", labels: &["vendor", "class"],
        help: "Tokens of responses that a vendor cut off: the vendor charges the operator for them, and no account is billed." }
    pub web_searches: IntCounterVec { name: "gateway_web_searches_total", labels: &["model"],
        help: "Web searches billed." }
    pub server_tool_uses: IntCounterVec { name: "gateway_server_tool_uses_total", labels: &["model", "tool"],
        help: "Uses of server tools, which run at the vendor, including web searches; billed or free." }
    pub credits_micro: IntCounterVec { name: "gateway_credits_micro_total", labels: &["model"],
        help: "Micro-credits debited." }
    pub writeoff_micro: IntCounterVec { name: "gateway_writeoff_micro_total", labels: &["model"],
        help: "Micro-credits written off: the responses cost more than was reserved." }
    pub estimated: IntCounterVec { name: "gateway_estimated_total", labels: &["model"],
        help: "Debits with estimated usage, because the vendor reported none." }
    pub usage_implausible: IntCounterVec { name: "gateway_usage_implausible_total", labels: &["vendor", "counter"],
        help: "Responses for which the vendor reported more usage than the request can have; billed at that bound." }
    pub usage_unknown: IntCounterVec { name: "gateway_usage_unknown_total", labels: &["vendor", "counter"],
        help: "Responses whose usage counts something that the gateway does not know: a cache lifetime, billed as the longest one, or a type of iteration, not billed." }
    pub open_holds: IntGauge { name: "gateway_open_holds",
        help: "Requests with reserved credits." }
    pub streams_open: IntGauge { name: "gateway_streams_open",
        help: "Open response streams." }
    pub cpu_jobs_waiting: IntGauge { name: "gateway_cpu_jobs_waiting",
        help: "Jobs on large or coded bodies that are waiting for a thread." }
    pub journal_pending: IntGauge { name: "gateway_journal_pending",
        help: "Ended requests that are not in the ledger yet." }
    pub journal_bytes: IntGauge { name: "gateway_journal_bytes",
        help: "Bytes of the ended requests that an edge with a shared store keeps until the ledger has them." }
    pub journal_oldest_seconds: IntGauge { name: "gateway_journal_oldest_seconds",
        help: "Age of the oldest ended request that is not in the ledger yet." }
    pub withheld_endings: IntGauge { name: "gateway_withheld_endings",
        help: "Ended requests that are not entered until a missing segment of the ledger is back." }
    pub ledger_backlog_seconds: Gauge { name: "gateway_ledger_backlog_seconds",
        help: "Time that the ledger needs for the ended requests that wait for it, at the measured rate." }
    ledger_backlog: IntCounterVec { name: "gateway_ledger_backlog_total", labels: &["outcome"],
        help: "Requests that met a ledger that was behind: `delayed`, or refused because of their account's share, because too many were delayed, or because the backlog was full." }
    pub index_lag_entries: IntGauge { name: "gateway_index_lag_entries",
        help: "Entries of the ledger that index.db lacks. Pages have up to 131 072 of them from memory." }
    pub interrupted: IntCounterVec { name: "gateway_interrupted_total",
        help: "Requests that the death of a process interrupted, found at the next start." }
    pub damaged_files: IntCounterVec { name: "gateway_damaged_files_total", labels: &["file"],
        help: "Databases that were damaged at the start; the gateway set them aside and created new ones." }
    pub damaged_journal_lines: IntCounterVec { name: "gateway_damaged_journal_lines_total", labels: &["outcome"],
        help: "Lines of a dead process's journal that were damaged: `repaired` by their checksum, or `lost`." }
    pub store_up: IntGauge { name: "gateway_store_up",
        help: "1 if the store of keys, balances and reservations is available." }
    pub ledger_held: IntGauge { name: "gateway_ledger_held",
        help: "1 if this sidecar holds the ledger, 0 if it is a standby." }
    pub postgres_skew_ms: IntGauge { name: "gateway_postgres_clock_skew_milliseconds",
        help: "Clock of PostgreSQL minus that of this machine, in milliseconds." }
    pub store_skew_ms: IntGauge { name: "gateway_store_clock_skew_milliseconds",
        help: "Clock of the shared store minus that of this machine, in milliseconds." }
    /// Number of segments by state: `here`, `archived`, `missing`, `damaged`.
    pub ledger_segments: IntGaugeVec { name: "gateway_ledger_segments", labels: &["state"],
        help: "Segments of the ledger: `here`, `archived`, `missing` or `damaged`. Checked every ten minutes." }
    pub stuck_writes: IntGaugeVec { name: "gateway_stuck_writes", labels: &["file"],
        help: "Writes to `app.db` or `ledger.db` that have not ended for ten seconds. Requests and pages that read go on." }
    ledger_errors: IntCounterVec { name: "gateway_ledger_errors_total", labels: &["reason"],
        help: "Errors of the ledger, the journal and the shared store, by reason." }
    pub revocation_seconds: Histogram { name: "gateway_revocation_seconds", buckets: SECONDS_BUCKETS,
        help: "Time from a key's revocation in the shared store to its removal from this edge's cache." }
    pub rejected: IntCounterVec { name: "gateway_rejected_total", labels: &["reason"],
        help: "Requests that the gateway answered with an error of its own, by reason." }
    pub config_reloads: IntCounterVec { name: "gateway_config_reloads_total", labels: &["result"],
        help: "Reloads of the config file." }
    pub config_keys_waiting: IntGauge { name: "gateway_config_keys_waiting",
        help: "Changed keys of the config file that take effect only at the next start or upgrade." }
    pub(super) access_log_dropped: IntCounterVec { name: "gateway_access_log_dropped_total", labels: &["reason"],
        help: "Requests that are missing in the access log." }
    log_lines_dropped: IntCounterVec { name: "gateway_log_lines_dropped_total", labels: &["reason"],
        help: "Lines that are missing in the log, by reason." }
    pub(super) spans_dropped: IntCounterVec { name: "gateway_trace_spans_dropped_total", labels: &["reason"],
        help: "Spans that the gateway could not send to the trace collector." }
    pub client_connections: IntGauge { name: "gateway_client_connections",
        help: "Open client connections." }
    pub bodies_in_flight_bytes: IntGauge { name: "gateway_bodies_in_flight_bytes",
        help: "Memory of this process for request bodies, in bytes: received bytes and the copies made from them." }
    pub pages_open: IntGauge { name: "gateway_pages_open",
        help: "Pages being served." }
    pub live_streams_open: IntGauge { name: "gateway_live_streams_open",
        help: "Live balances shown by open dashboards." }
    mail: IntCounterVec { name: "gateway_mail_total", labels: &["result"],
        help: "Attempts to send mail to account holders: `sent`, `retried` later, `failed` for good, or `dropped` because the queue is full." }
    mail_queued: IntGauge { name: "gateway_mail_queued",
        help: "Mails that wait to be sent." }
    mail_oldest_seconds: IntGauge { name: "gateway_mail_oldest_seconds",
        help: "Age of the oldest mail that waits to be sent." }
    pub resident_bytes: IntGauge { name: "gateway_resident_bytes",
        help: "Resident memory of this process, in bytes." }
    pub open_files: IntGauge { name: "gateway_open_files",
        help: "Open files and sockets of this process." }
    connections_refused: IntCounterVec { name: "gateway_connections_refused_total", labels: &["limit"],
        help: "Connections refused because of a limit." }
    pub idle_connections_closed: IntCounter { name: "gateway_idle_connections_closed_total",
        help: "Idle client connections closed to make room for new ones." }
    malformed: IntCounterVec { name: "gateway_malformed_total", labels: &["reason"],
        help: "Malformed requests, bodies and handshakes, header timeouts, and requests refused by the private listeners." }
    pub panics: IntCounter { name: "gateway_panics_total",
        help: "Panics: faults of the gateway itself." }
    pub webhook_deliveries: IntCounterVec { name: "gateway_webhook_deliveries_total", labels: &["result"],
        help: "Attempts to deliver a webhook message: `delivered`, `retried` later, or `failed` for good." }
    pub webhook_pending: IntGauge { name: "gateway_webhook_pending",
        help: "Webhook messages that are due and wait for an attempt." }
}

/// Values of the label `reason` of `gateway_ledger_errors_total`.
pub const LEDGER_ERROR_REASONS: [&str; 46] = [
    "accounts",
    "anchor",
    "announce",
    "archive",
    "commit",
    "courier_queue",
    "courier_task",
    "dead_guests",
    "dead_journals",
    "edge_stopped",
    "find_partitions",
    "follow_events",
    "index",
    "journal_reserve",
    "journal_sync",
    "journal_write",
    "lapse",
    "mark",
    "mirror",
    "pages_stopped",
    "postgres",
    "push_entries",
    "push_keys",
    "seal",
    "seed_accounts",
    "segment",
    "settler_queue",
    "shared_store",
    "store_auth",
    "store_away",
    "store_busy",
    "store_cluster_down",
    "store_error",
    "store_forbidden",
    "store_loading",
    "store_misconf",
    "store_moving",
    "store_no_primary",
    "store_no_replicas",
    "store_out_of_memory",
    "store_read_only",
    "store_refused",
    "store_timeout",
    "store_unreachable",
    "strange_event",
    "sweep",
];

/// Values of the label `outcome` of `gateway_ledger_backlog_total`.
const LEDGER_BACKLOG_OUTCOMES: [&str; 4] = [
    "delayed",
    "refused_delayed",
    "refused_full",
    "refused_share",
];

impl Metrics {
    fn new() -> Self {
        let metrics = Self::register();
        // An embedded store is part of this process, so it is always up.
        metrics.store_up.set(1);
        set_build_info(&metrics.registry);
        metrics.create_constant_series();
        metrics
    }

    /// Creates the series whose labels do not depend on the config. If a series began at 1,
    /// `increase()` and `rate()` would miss its first event. `app/series.rs` creates the other
    /// series.
    fn create_constant_series(&self) {
        let create = |family: &IntCounterVec, values: &[&str]| {
            values
                .iter()
                .for_each(|value| drop(family.with_label_values(&[value])));
        };
        create(&self.ledger_errors, &LEDGER_ERROR_REASONS);
        create(&self.ledger_backlog, &LEDGER_BACKLOG_OUTCOMES);
        create(&self.access_log_dropped, &["full", "failed"]);
        create(&self.log_lines_dropped, &["full", "failed", "repeated"]);
        create(&self.spans_dropped, &["full", "failed"]);
        create(&self.connections_refused, &["per_address", "total"]);
        create(&self.config_reloads, &["ok", "refused"]);
        create(&self.mail, &["sent", "retried", "failed", "dropped"]);
        create(
            &self.webhook_deliveries,
            &["delivered", "retried", "failed"],
        );
        create(
            &self.damaged_files,
            &["holds.db", "idempotency.db", "refused.db"],
        );
        create(&self.damaged_journal_lines, &["repaired", "lost"]);
        self.interrupted.with_label_values::<&str>(&[]);
        for reason in RefusalReason::ALL {
            self.refusals(reason).with_label_values(&[reason.as_str()]);
        }
    }

    pub fn ledger_error(&self, reason: &'static str) {
        self.ledger_errors.with_label_values(&[reason]).inc();
    }

    /// Counts a request that was affected by the ledger's backlog.
    pub fn count_backlog(&self, outcome: &'static str) {
        self.ledger_backlog.with_label_values(&[outcome]).inc();
    }

    /// Counts a lost access log line. `reason` is `full` for the queue, or `failed` for the write.
    pub fn access_log_dropped(&self, reason: &'static str) {
        self.access_log_dropped.with_label_values(&[reason]).inc();
    }

    /// Counts a lost line of the log. `reason` is `full` for the queue, `failed` for the write, or
    /// `repeated` if the line occurred too often.
    pub fn count_dropped_log_line(&self, reason: &'static str) {
        self.log_lines_dropped.with_label_values(&[reason]).inc();
    }

    /// Counts lost spans. `reason` is `full` for the queue, or `failed` for the export.
    pub fn spans_dropped(&self, reason: &'static str, count: usize) {
        self.spans_dropped
            .with_label_values(&[reason])
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub fn count_mail(&self, result: &'static str) {
        self.mail.with_label_values(&[result]).inc();
    }

    /// Sets the number of queued mails, and the age of the oldest.
    pub fn set_mail_queue(&self, queued: u64, oldest_at_ms: Option<i64>, now_ms: i64) {
        self.mail_queued
            .set(i64::try_from(queued).unwrap_or(i64::MAX));
        let age_ms = oldest_at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms).max(0));
        self.mail_oldest_seconds.set(age_ms / 1_000);
    }

    /// Returns the family that counts refusals for this reason.
    fn refusals(&self, reason: RefusalReason) -> &IntCounterVec {
        if reason.is_limit() {
            &self.connections_refused
        } else {
            &self.malformed
        }
    }

    pub fn count_refusal(&self, reason: RefusalReason) {
        let family = self.refusals(reason);
        family.with_label_values(&[reason.as_str()]).inc();
    }

    /// Renders all families in Prometheus' text format.
    pub fn render(&self) -> Vec<u8> {
        self.process.update();
        let mut out = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut out) {
            log::error!("cannot write the metrics: {error}");
        }
        out
    }
}

/// Registers a gauge that is always 1. Its labels identify the program.
fn set_build_info(registry: &Registry) {
    let help = "The version of the program, its processor architecture, and its build profile.";
    let opts = Opts::new("gateway_build_info", help);
    let info = register_family(
        registry,
        IntGaugeVec::new(opts, &["version", "arch", "profile"]),
    );
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, profile])
        .set(1);
}
