//! Reads the section `telemetry.traces`, with the collector of traces and the share of traced
//! requests.
//!
//! This file must not open a connection.

use super::base_url::parse_base_url;
use super::raw;
use super::validator::ConfigValidator;
use base::telemetry::traces::{SAMPLE_ALL, TraceExportConfig};

impl ConfigValidator {
    pub(super) fn traces(&mut self, traces: &raw::Traces) -> Option<TraceExportConfig> {
        let sample = self.parse_amount("telemetry.traces.sample_ratio", &traces.sample_ratio)?;
        let share = u32::try_from(sample.get())
            .ok()
            .filter(|share| *share <= SAMPLE_ALL);
        if share.is_none() {
            self.add_fault(
                "telemetry.traces.sample_ratio",
                "must be a number from 0 to 1",
            );
        }
        let endpoint = parse_base_url(&traces.endpoint).filter(|endpoint| !endpoint.tls);
        if endpoint.is_none() {
            let says = "must be an http:// URL: the gateway has no TLS for traces; send them to a local collector, which can forward them over TLS";
            self.add_fault("telemetry.traces.endpoint", says);
        }
        let endpoint = endpoint?;
        let path = if endpoint.path.is_empty() {
            "/".to_owned()
        } else {
            endpoint.path
        };
        let host = if endpoint.host.contains(':') {
            format!("[{}]", endpoint.host)
        } else {
            endpoint.host
        };
        let authority = format!("{host}:{}", endpoint.port);
        Some(TraceExportConfig {
            authority,
            path,
            share: share?,
            to_vendors: traces.to_vendors,
        })
    }
}
