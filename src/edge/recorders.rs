//! Where requests are recorded: the access log and the traces.
//!
//! This file must not decide what is recorded: `edge/finish.rs` does.

use crate::telemetry::access::AccessLog;
use crate::telemetry::traces::TraceExporter;

/// Where the gateway records the outcome of each request, in addition to the metrics.
#[derive(Clone)]
pub struct Recorders {
    pub access: AccessLog,
    pub traces: TraceExporter,
}
