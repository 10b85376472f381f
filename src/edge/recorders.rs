//! Where requests are recorded: the access log and the traces.
//!
//! This file must not decide what is recorded: `edge/finish.rs` does.

use base::telemetry::access::AccessLog;
use base::telemetry::traces::TraceExporter;

/// Where the gateway records the outcome of each request, in addition to the metrics.
#[derive(Clone)]
pub struct Recorders {
    pub access: AccessLog,
    pub traces: TraceExporter,
}
