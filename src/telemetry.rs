//! Telemetry: sets up the log. Next: `telemetry/metrics.rs` (the metric families),
//! `telemetry/access.rs` (one line for each request).
//!
//! Must not hold secrets, bodies or prompts.

pub mod access;
mod family;
pub mod gen_ai;
pub mod log_path;
mod metrics;
pub mod model_labels;
pub mod private;
mod process;
mod refusal_reason;
pub mod refusals;
#[cfg(test)]
mod tests;
pub mod traces;

pub use metrics::METRICS;

/// Sets up logging to stderr. `RUST_LOG` sets the filter; the default is warnings, plus the
/// gateway's own messages from level info.
pub fn init_log() {
    let default = "warn,model_gateway=info,pingora_core::connectors=off,pingora_core::server=warn";
    let logger =
        env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(default))
            // Off at any log level: these modules print whole headers, including the client's key
            // and the gateway's vendor key, and bodies character by character.
            .filter_module("pingora_proxy", log::LevelFilter::Off)
            .filter_module(
                "pingora_core::protocols::http::v1::client",
                log::LevelFilter::Warn,
            )
            .filter_module(
                "pingora_core::protocols::http::v1::body",
                log::LevelFilter::Warn,
            )
            // `refusals` logs malformed connections, within its rate limit.
            .filter_module("pingora_core::apps", log::LevelFilter::Off)
            .filter_module(
                "pingora_core::protocols::http::v2::server",
                log::LevelFilter::Error,
            )
            .format_timestamp_millis()
            .build();
    let max_level = logger.filter();
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(max_level);
    }
}
