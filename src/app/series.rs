//! Creates every metric series whose labels the config determines, before the first request.
//!
//! If a counter first appeared with the value 1, `increase()`, `rate()` and alerts would miss its
//! first event. In a large catalog, the series of a model appear at its first use instead: see
//! `crates/base/src/telemetry/model_labels.rs`. The series are created at the start and after each
//! reload. This file must not remove a series, because requests for the models of an earlier config
//! may still run.

use crate::edge;
use base::telemetry::model_labels::{MAX_MODELS, OTHER_MODELS};
use base::telemetry::{METRICS, gen_ai};
use config::Settings;
use config::catalog::CatalogVendor;
use llm_protocol::Protocol;
use llm_protocol::failure::Kind;
use llm_protocol::usage::{Excess, ServerTool, UnknownUsage, Usage};
use std::collections::BTreeSet;

const SURFACES: [Protocol; 3] = [Protocol::Chat, Protocol::Messages, Protocol::Responses];
/// Usual statuses of vendors' responses. 0 stands for a missing response.
const VENDOR_STATUSES: [&str; 16] = [
    "0", "200", "400", "401", "403", "404", "408", "409", "413", "422", "429", "500", "502", "503",
    "504", "529",
];
/// Statuses of health checks. 499 means that the client left before it got a status.
const HEALTH_STATUSES: &[&str] = &["200", "405", "499", "500"];
const PAGE_STATUSES: &[&str] = &[
    "200", "303", "304", "307", "400", "401", "403", "404", "405", "408", "409", "413", "422",
    "429", "499", "500", "502", "503",
];
const MALFORMED_STATUSES: [&str; 3] = ["400", "405", "431"];
/// Reasons why a request moves on to another address or endpoint.
const FAILOVER_REASONS: [&str; 12] = [
    "address",
    "name",
    "connect",
    "first_byte",
    "broken",
    "refused",
    "key",
    "model",
    "status_408",
    "status_429",
    "status_4xx",
    "status_5xx",
];

/// Creates the series of these settings. Existing series keep their values.
pub fn create(settings: &Settings) {
    let models = settings.catalog.models();
    let providers = models
        .iter()
        .map(|model| (model.id.as_str(), provider(&model.vendor)));
    METRICS.gen_ai.add_models(providers);
    if models.len() <= MAX_MODELS {
        let label = |model| METRICS.models.label(model);
        let labels: Vec<_> = models.iter().map(|model| label(&model.id)).collect();
        create_requests(&labels);
        labels.into_iter().for_each(create_model);
        for model in models {
            METRICS.gen_ai.create_series(&model.id);
            for fallback in &model.fallback {
                METRICS
                    .fallbacks
                    .with_label_values(&[label(&model.id), label(fallback)]);
            }
        }
    } else {
        create_requests(&[OTHER_MODELS]);
        create_model(OTHER_MODELS);
    }
    let mut seen = BTreeSet::new();
    for model in models
        .iter()
        .filter(|model| seen.insert(model.vendor.name.as_str()))
    {
        create_vendor(&model.vendor);
    }
}

fn provider(vendor: &CatalogVendor) -> &str {
    gen_ai::provider(
        &vendor.name,
        vendor
            .endpoints
            .iter()
            .map(|endpoint| endpoint.host.as_str()),
    )
}

fn create_requests(models: &[&str]) {
    for kind in Kind::ALL {
        METRICS.rejected.with_label_values(&[kind.reason()]);
    }
    for reason in edge::sidecar_reasons() {
        METRICS.rejected.with_label_values(&[reason]);
    }
    for (route, statuses) in [("health", HEALTH_STATUSES), ("page", PAGE_STATUSES)] {
        for status in statuses {
            METRICS.requests.with_label_values(&[route, "", "", status]);
        }
    }
    for status in MALFORMED_STATUSES {
        for surface in [""].into_iter().chain(SURFACES.map(Protocol::as_str)) {
            METRICS
                .requests
                .with_label_values(&["malformed", surface, "", status]);
        }
    }
    for surface in SURFACES {
        let refused = Kind::ALL.iter().map(|kind| kind.status(surface));
        // Status 499 means that the client disconnected before the response had a status.
        let statuses: BTreeSet<_> = refused.chain([200, 499]).collect();
        for status in statuses {
            let status = status.to_string();
            for model in [""].iter().chain(models) {
                METRICS
                    .requests
                    .with_label_values(&["api", surface.as_str(), model, &status]);
            }
        }
        for model in models {
            METRICS
                .request_seconds
                .with_label_values(&[surface.as_str(), model]);
        }
    }
}

fn create_model(model: &str) {
    for (class, _) in Usage::default().tokens() {
        METRICS.tokens.with_label_values(&[model, class]);
    }
    for tool in ServerTool::ALL {
        METRICS
            .server_tool_uses
            .with_label_values(&[model, tool.key()]);
    }
    for family in [
        &METRICS.web_searches,
        &METRICS.credits_micro,
        &METRICS.writeoff_micro,
        &METRICS.estimated,
    ] {
        family.with_label_values(&[model]);
    }
}

fn create_vendor(vendor: &CatalogVendor) {
    let name = vendor.name.as_str();
    for (class, _) in Usage::default().tokens() {
        METRICS.vendor_cut_tokens.with_label_values(&[name, class]);
    }
    for counter in Excess::all().counters() {
        METRICS
            .usage_implausible
            .with_label_values(&[name, counter]);
    }
    let unknown = UnknownUsage {
        cache_lifetime: true,
        iteration: true,
    };
    for counter in unknown.counters() {
        METRICS.usage_unknown.with_label_values(&[name, counter]);
    }
    for reason in ["key", "quota"] {
        METRICS
            .vendor_key_refused
            .with_label_values(&[name, reason]);
    }
    METRICS.retry_budget_exhausted.with_label_values(&[name]);
    for endpoint in &vendor.endpoints {
        let label = endpoint.label();
        METRICS.upstream_opened.with_label_values(&[name, &label]);
        for status in VENDOR_STATUSES {
            METRICS
                .upstream_requests
                .with_label_values(&[name, label.as_str(), status]);
        }
        for reason in FAILOVER_REASONS {
            METRICS
                .upstream_failovers
                .with_label_values(&[name, label.as_str(), reason]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn thousands_of_models_have_no_series_before_their_use() {
        let mut text = include_str!("../../conf/local.yaml").to_owned();
        let (before, after) = text.split_once("models:\n").unwrap();
        let mut models = String::new();
        for index in 0..3_000 {
            let _ = writeln!(
                models,
                "  - {{id: many-{index}, vendor: beta, upstream_model: m, context_tokens: 1000, \
                 max_output_tokens: 100, price: {{input: \"1\", cache_read: \"1\", output: \"1\"}}}}"
            );
        }
        text = format!("{before}models:\n{models}{after}");
        let settings = config::parse(&text, &|_| None).unwrap();
        create(&settings);
        let scrape = String::from_utf8(METRICS.render()).unwrap();
        assert!(!scrape.contains("many-"));
        assert!(scrape.contains("gateway_tokens_total{class=\"input\",model=\"other\"} 0"));
        assert!(scrape.len() < 2_000_000, "{} bytes", scrape.len());
    }
}
