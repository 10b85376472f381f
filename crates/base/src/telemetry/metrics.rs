//! The metric families of the gateway and their registry.
//!
//! Every label comes from the config or from a closed set in the code, never from client input.
//! Must not hold secrets, bodies or prompts.

use super::family::register_family;
use super::gen_ai::GenAiMetrics;
use super::model_labels::ModelLabels;
use super::process::ProcessMetrics;
use super::refusal_reason::RefusalReason;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::sync::{Arc, LazyLock};

/// The only metric registry.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

const SECONDS_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 900.0, 3_600.0,
];
const OVERHEAD_SECONDS_BUCKETS: &[f64] = &[
    0.000_025, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25,
];

pub struct Metrics {
    registry: Registry,
    pub requests: IntCounterVec,
    pub request_seconds: HistogramVec,
    pub time_to_first_byte_seconds: Histogram,
    pub overhead_seconds: Histogram,
    pub upstream_requests: IntCounterVec,
    pub upstream_healthy: IntGaugeVec,
    pub upstream_opened: IntCounterVec,
    pub upstream_failovers: IntCounterVec,
    pub vendor_key_refused: IntCounterVec,
    pub retry_budget_exhausted: IntCounterVec,
    pub learned: IntCounterVec,
    pub fallbacks: IntCounterVec,
    pub tokens: IntCounterVec,
    pub vendor_cut_tokens: IntCounterVec,
    pub web_searches: IntCounterVec,
    pub server_tool_uses: IntCounterVec,
    pub credits_micro: IntCounterVec,
    pub writeoff_micro: IntCounterVec,
    pub estimated: IntCounterVec,
    pub usage_implausible: IntCounterVec,
    pub usage_unknown: IntCounterVec,
    pub open_holds: IntGauge,
    pub streams_open: IntGauge,
    pub cpu_jobs_waiting: IntGauge,
    pub journal_pending: IntGauge,
    pub journal_bytes: IntGauge,
    pub journal_oldest_seconds: IntGauge,
    pub withheld_endings: IntGauge,
    pub ledger_backlog_seconds: Gauge,
    ledger_backlog: IntCounterVec,
    pub index_lag_entries: IntGauge,
    pub interrupted: IntCounterVec,
    pub damaged_files: IntCounterVec,
    pub damaged_journal_lines: IntCounterVec,
    pub store_up: IntGauge,
    pub ledger_held: IntGauge,
    pub postgres_skew_ms: IntGauge,
    pub store_skew_ms: IntGauge,
    /// Segments by state: `here`, `archived`, `missing`, `damaged`.
    pub ledger_segments: IntGaugeVec,
    ledger_errors: IntCounterVec,
    pub revocation_seconds: Histogram,
    pub rejected: IntCounterVec,
    pub config_reloads: IntCounterVec,
    pub config_keys_waiting: IntGauge,
    pub(super) access_log_dropped: IntCounterVec,
    log_lines_dropped: IntCounterVec,
    pub(super) spans_dropped: IntCounterVec,
    pub client_connections: IntGauge,
    pub bodies_in_flight_bytes: IntGauge,
    pub pages_open: IntGauge,
    pub live_streams_open: IntGauge,
    mail: IntCounterVec,
    mail_queued: IntGauge,
    mail_oldest_seconds: IntGauge,
    pub resident_bytes: IntGauge,
    pub open_files: IntGauge,
    connections_refused: IntCounterVec,
    pub idle_connections_closed: IntCounter,
    malformed: IntCounterVec,
    pub panics: IntCounter,
    pub webhook_deliveries: IntCounterVec,
    pub webhook_pending: IntGauge,
    pub gen_ai: GenAiMetrics,
    /// Every label `model` comes from here.
    pub models: Arc<ModelLabels>,
    process: ProcessMetrics,
}

/// Values of the label `reason` of `gateway_ledger_errors_total`.
pub const LEDGER_ERROR_REASONS: [&str; 45] = [
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
    #[expect(clippy::too_many_lines, reason = "one entry for each family")]
    fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register_family(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauge = |name: &str, help: &str| register_family(&registry, IntGauge::new(name, help));
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            register_family(
                &registry,
                Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())),
            )
        };
        let store_up = gauge(
            "gateway_store_up",
            "1 if the store of keys, balances and reservations is available.",
        );
        // An embedded store is part of this process, so it is always up.
        store_up.set(1);
        let ledger_held = gauge(
            "gateway_ledger_held",
            "1 if this sidecar holds the ledger, 0 if it is a standby.",
        );
        let postgres_skew_ms = gauge(
            "gateway_postgres_clock_skew_milliseconds",
            "Clock of PostgreSQL minus that of this machine, in milliseconds.",
        );
        let store_skew_ms = gauge(
            "gateway_store_clock_skew_milliseconds",
            "Clock of the shared store minus that of this machine, in milliseconds.",
        );
        let ledger_segments = register_family(
            &registry,
            IntGaugeVec::new(
                Opts::new(
                    "gateway_ledger_segments",
                    "Segments of the ledger: `here`, `archived`, `missing` or `damaged`. Checked every ten minutes.",
                ),
                &["state"],
            ),
        );
        let [connections_refused, malformed] = refusal_families(&registry);
        let [
            upstream_opened,
            upstream_failovers,
            vendor_key_refused,
            retry_budget_exhausted,
            learned,
        ] = upstream_failure_counters(&registry);
        set_build_info(&registry);
        let models = Arc::<ModelLabels>::default();
        let metrics = Self {
            store_up,
            ledger_held,
            postgres_skew_ms,
            store_skew_ms,
            ledger_segments,
            requests: counter(
                "gateway_requests_total",
                "Responses of the gateway: of the API, pages, health checks, and to malformed requests.",
                &["route", "surface", "model", "status"],
            ),
            request_seconds: register_family(
                &registry,
                HistogramVec::new(
                    HistogramOpts::new(
                        "gateway_request_seconds",
                        "Time from a request's header to the end of its response.",
                    )
                    .buckets(SECONDS_BUCKETS.to_vec()),
                    &["surface", "model"],
                ),
            ),
            time_to_first_byte_seconds: histogram(
                "gateway_time_to_first_byte_seconds",
                "Time from a request's header to the first byte of its response.",
                SECONDS_BUCKETS,
            ),
            overhead_seconds: histogram(
                "gateway_overhead_seconds",
                "Time that the gateway spends on a request before it calls the vendor: key, checks, reservation.",
                OVERHEAD_SECONDS_BUCKETS,
            ),
            upstream_requests: counter(
                "gateway_upstream_requests_total",
                "Requests to vendors, by response status (0: no response).",
                &["vendor", "endpoint", "status"],
            ),
            upstream_healthy: register_family(
                &registry,
                IntGaugeVec::new(
                    Opts::new(
                        "gateway_upstream_healthy",
                        "1 if the endpoint gets requests: its breaker is closed and its health check passes.",
                    ),
                    &["vendor", "endpoint"],
                ),
            ),
            upstream_opened,
            upstream_failovers,
            vendor_key_refused,
            retry_budget_exhausted,
            learned,
            fallbacks: counter(
                "gateway_fallbacks_total",
                "Requests that the gateway sent to a fallback model.",
                &["model", "fallback"],
            ),
            tokens: counter(
                "gateway_tokens_total",
                "Tokens billed.",
                &["model", "class"],
            ),
            vendor_cut_tokens: counter(
                "gateway_vendor_cut_tokens_total",
                "Tokens of responses that a vendor cut off: the vendor charges the operator for them, and no account is billed.",
                &["vendor", "class"],
            ),
            web_searches: counter(
                "gateway_web_searches_total",
                "Web searches billed.",
                &["model"],
            ),
            server_tool_uses: counter(
                "gateway_server_tool_uses_total",
                "Uses of server tools, which run at the vendor, including web searches; billed or free.",
                &["model", "tool"],
            ),
            credits_micro: counter(
                "gateway_credits_micro_total",
                "Micro-credits debited.",
                &["model"],
            ),
            writeoff_micro: counter(
                "gateway_writeoff_micro_total",
                "Micro-credits written off: the responses cost more than was reserved.",
                &["model"],
            ),
            estimated: counter(
                "gateway_estimated_total",
                "Debits with estimated usage, because the vendor reported none.",
                &["model"],
            ),
            usage_implausible: counter(
                "gateway_usage_implausible_total",
                "Responses for which the vendor reported more usage than the request can have; billed at that bound.",
                &["vendor", "counter"],
            ),
            usage_unknown: counter(
                "gateway_usage_unknown_total",
                "Responses whose usage counts something that the gateway does not know: a cache lifetime, billed as the longest one, or a type of iteration, not billed.",
                &["vendor", "counter"],
            ),
            open_holds: gauge("gateway_open_holds", "Requests with reserved credits."),
            streams_open: gauge("gateway_streams_open", "Open response streams."),
            cpu_jobs_waiting: gauge(
                "gateway_cpu_jobs_waiting",
                "Jobs on large or coded bodies that are waiting for a thread.",
            ),
            journal_pending: gauge(
                "gateway_journal_pending",
                "Ended requests that are not in the ledger yet.",
            ),
            journal_bytes: gauge(
                "gateway_journal_bytes",
                "Bytes of the ended requests that an edge with a shared store keeps until the ledger has them.",
            ),
            journal_oldest_seconds: gauge(
                "gateway_journal_oldest_seconds",
                "Age of the oldest ended request that is not in the ledger yet.",
            ),
            withheld_endings: gauge(
                "gateway_withheld_endings",
                "Ended requests that are not entered until a missing segment of the ledger is back.",
            ),
            ledger_backlog_seconds: register_family(
                &registry,
                Gauge::new(
                    "gateway_ledger_backlog_seconds",
                    "Time that the ledger needs for the ended requests that wait for it, at the measured rate.",
                ),
            ),
            ledger_backlog: counter(
                "gateway_ledger_backlog_total",
                "Requests that met a ledger that was behind: `delayed`, or refused because of their account's share, because too many were delayed, or because the backlog was full.",
                &["outcome"],
            ),
            index_lag_entries: gauge(
                "gateway_index_lag_entries",
                "Entries of the ledger that index.db lacks. Pages have up to 131 072 of them from memory.",
            ),
            interrupted: counter(
                "gateway_interrupted_total",
                "Requests that the death of a process interrupted, found at the next start.",
                &[],
            ),
            damaged_files: counter(
                "gateway_damaged_files_total",
                "Databases that were damaged at the start; the gateway set them aside and created new ones.",
                &["file"],
            ),
            damaged_journal_lines: counter(
                "gateway_damaged_journal_lines_total",
                "Lines of a dead process's journal that were damaged: `repaired` by their checksum, or `lost`.",
                &["outcome"],
            ),
            ledger_errors: counter(
                "gateway_ledger_errors_total",
                "Errors of the ledger, the journal and the shared store, by reason.",
                &["reason"],
            ),
            revocation_seconds: histogram(
                "gateway_revocation_seconds",
                "Time from a key's revocation in the shared store to its removal from this edge's cache.",
                SECONDS_BUCKETS,
            ),
            rejected: counter(
                "gateway_rejected_total",
                "Requests that the gateway answered with an error of its own, by reason.",
                &["reason"],
            ),
            access_log_dropped: counter(
                "gateway_access_log_dropped_total",
                "Requests that are missing in the access log.",
                &["reason"],
            ),
            log_lines_dropped: counter(
                "gateway_log_lines_dropped_total",
                "Lines that are missing in the log, by reason.",
                &["reason"],
            ),
            spans_dropped: counter(
                "gateway_trace_spans_dropped_total",
                "Spans that the gateway could not send to the trace collector.",
                &["reason"],
            ),
            bodies_in_flight_bytes: gauge(
                "gateway_bodies_in_flight_bytes",
                "Memory of this process for request bodies, in bytes: received bytes and the copies made from them.",
            ),
            pages_open: gauge("gateway_pages_open", "Pages being served."),
            live_streams_open: gauge(
                "gateway_live_streams_open",
                "Live balances shown by open dashboards.",
            ),
            mail: counter(
                "gateway_mail_total",
                "Attempts to send mail to account holders: `sent`, `retried` later, `failed` for good, or `dropped` because the queue is full.",
                &["result"],
            ),
            mail_queued: gauge("gateway_mail_queued", "Mails that wait to be sent."),
            mail_oldest_seconds: gauge(
                "gateway_mail_oldest_seconds",
                "Age of the oldest mail that waits to be sent.",
            ),
            client_connections: gauge("gateway_client_connections", "Open client connections."),
            resident_bytes: gauge(
                "gateway_resident_bytes",
                "Resident memory of this process, in bytes.",
            ),
            open_files: gauge(
                "gateway_open_files",
                "Open files and sockets of this process.",
            ),
            connections_refused,
            malformed,
            idle_connections_closed: register_family(
                &registry,
                IntCounter::new(
                    "gateway_idle_connections_closed_total",
                    "Idle client connections closed to make room for new ones.",
                ),
            ),
            config_reloads: counter(
                "gateway_config_reloads_total",
                "Reloads of the config file.",
                &["result"],
            ),
            config_keys_waiting: gauge(
                "gateway_config_keys_waiting",
                "Changed keys of the config file that take effect only at the next start or upgrade.",
            ),
            panics: register_family(
                &registry,
                IntCounter::new(
                    "gateway_panics_total",
                    "Panics: faults of the gateway itself.",
                ),
            ),
            webhook_deliveries: counter(
                "gateway_webhook_deliveries_total",
                "Attempts to deliver a webhook message: `delivered`, `retried` later, or `failed` for good.",
                &["result"],
            ),
            webhook_pending: gauge(
                "gateway_webhook_pending",
                "Webhook messages that are due and wait for an attempt.",
            ),
            gen_ai: GenAiMetrics::new(&registry, Arc::clone(&models)),
            models,
            process: ProcessMetrics::new(&registry),
            registry,
        };
        metrics.create_constant_series();
        metrics
    }

    /// Creates the series whose labels do not depend on the config: if a series begins at 1,
    /// `increase()` and `rate()` miss its first event. `app/series.rs` creates the others.
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
    }

    pub fn ledger_error(&self, reason: &'static str) {
        self.ledger_errors.with_label_values(&[reason]).inc();
    }

    /// Counts a request that met a ledger that was behind.
    pub fn count_backlog(&self, outcome: &'static str) {
        self.ledger_backlog.with_label_values(&[outcome]).inc();
    }

    /// Counts a lost access log line: the queue was `full`, or the write `failed`.
    pub fn access_log_dropped(&self, reason: &'static str) {
        self.access_log_dropped.with_label_values(&[reason]).inc();
    }

    /// Counts a lost line of the log: the queue was `full`, the write `failed`, or the line was
    /// `repeated` too often.
    pub fn count_dropped_log_line(&self, reason: &'static str) {
        self.log_lines_dropped.with_label_values(&[reason]).inc();
    }

    /// Counts lost spans: the queue was `full`, or the export `failed`.
    pub fn spans_dropped(&self, reason: &'static str, count: usize) {
        self.spans_dropped
            .with_label_values(&[reason])
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Counts an attempt to send a mail.
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

    /// Counts a refusal in the metric family of its reason.
    pub fn count_refusal(&self, reason: RefusalReason) {
        let family = if reason.is_limit() {
            &self.connections_refused
        } else {
            &self.malformed
        };
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

/// Registers a gauge that is always 1; its labels identify the program.
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

/// Families for refusals below the level of a request. All label values are known, so every series
/// begins at 0.
fn refusal_families(registry: &Registry) -> [IntCounterVec; 2] {
    let families = [
        (
            "gateway_connections_refused_total",
            "Connections refused because of a limit.",
            "limit",
            true,
        ),
        (
            "gateway_malformed_total",
            "Malformed requests, bodies and handshakes, header timeouts, and requests refused by the private listeners.",
            "reason",
            false,
        ),
    ];
    families.map(|(name, help, label, is_limit)| {
        let family = register_family(
            registry,
            IntCounterVec::new(Opts::new(name, help), &[label]),
        );
        for reason in RefusalReason::ALL
            .into_iter()
            .filter(|reason| reason.is_limit() == is_limit)
        {
            family.with_label_values(&[reason.as_str()]);
        }
        family
    })
}

/// Counters of upstream failures: why endpoints were paused, and why requests moved on.
fn upstream_failure_counters(registry: &Registry) -> [IntCounterVec; 5] {
    [
        (
            "gateway_upstream_breaker_opened_total",
            "Times that an endpoint's breaker opened.",
            &["vendor", "endpoint"][..],
        ),
        (
            "gateway_upstream_failovers_total",
            "Requests that moved on to another address or endpoint, by the failure of the one before.",
            &["vendor", "endpoint", "reason"],
        ),
        (
            "gateway_vendor_key_refused_total",
            "Requests that a vendor refused because of the gateway's key (`key`) or its credit at the vendor (`quota`).",
            &["vendor", "reason"],
        ),
        (
            "gateway_retry_budget_exhausted_total",
            "Requests that the gateway did not retry because the retry budget was exhausted.",
            &["vendor"],
        ),
        (
            "gateway_learned_total",
            "Requests repeated without a member that the vendor refused.",
            &["vendor", "member"],
        ),
    ]
    .map(|(name, help, labels)| register_family(registry, IntCounterVec::new(Opts::new(name, help), labels)))
}
