//! Where requests are recorded: the access log, the traces, and what account holders see of refused
//! ones.
//!
//! This file must not decide what is recorded: `edge/finish.rs` does.

use crate::refused_requests::RefusedRequests;
use base::telemetry::access::AccessLog;
use base::telemetry::traces::TraceExporter;

/// Where the gateway records the outcome of each request, in addition to the metrics.
#[derive(Clone)]
pub struct Recorders {
    pub access: AccessLog,
    pub traces: TraceExporter,
    pub refused: RefusedRequests,
}
