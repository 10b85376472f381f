//! Holds the places where requests are recorded: the access log, the traces, and the refused
//! requests that account holders see.
//!
//! This file must not decide what is recorded: `edge/finish.rs` does.

use crate::refused_requests::RefusedRequests;
use base::telemetry::access::AccessLog;
use base::telemetry::traces::TraceExporter;

/// Records the outcome of each request, in addition to the metrics.
#[derive(Clone)]
pub struct Recorders {
    pub access: AccessLog,
    pub traces: TraceExporter,
    pub refused: RefusedRequests,
}
