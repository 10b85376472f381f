//! Telemetry: logs, metrics and traces. Next: `telemetry/logger.rs` (the log),
//! `telemetry/metrics.rs` (the metric families), `telemetry/access.rs` (one line for each request).
//!
//! This module must not hold secrets, bodies or prompts.

pub mod access;
mod family;
pub mod gen_ai;
mod log_limiter;
pub mod log_path;
mod log_queue;
mod logger;
mod metrics;
pub mod model_labels;
pub mod model_requests;
mod process;
mod refusal_reason;
pub mod refusals;
#[cfg(test)]
mod tests;
pub mod traces;

pub use logger::{flush_log, init_log, print_line};
pub use metrics::METRICS;
