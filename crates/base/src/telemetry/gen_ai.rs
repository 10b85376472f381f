//! Metrics with the names of the OpenTelemetry conventions for generative AI, in Prometheus format,
//! in addition to the gateway's own metrics.
//!
//! Labels come from the config. The series of a model are looked up once per request, not once per
//! label, and created with the first one. This file must not depend on a request.

use super::family::register_family;
use super::model_labels::ModelLabels;
use arc_swap::ArcSwap;
use prometheus::{Histogram, HistogramOpts, HistogramVec, Registry};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The value of `gen_ai.operation.name`, which is the same for all three surfaces.
const OPERATION: &str = "chat";
/// The conventions' buckets, and longer ones because complete responses of reasoning models take
/// many minutes.
const OPERATION_SECONDS_BUCKETS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
    327.68, 655.36, 3_600.0,
];
const FIRST_TOKEN_SECONDS_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 120.0, 600.0,
];
const TOKENS_BUCKETS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

pub struct GenAiMetrics {
    operation_duration: HistogramVec,
    token_usage: HistogramVec,
    time_to_first_token: HistogramVec,
    labels: Arc<ModelLabels>,
    /// Models by catalog id. Models of earlier configs are kept, because requests may still use
    /// them.
    models: ArcSwap<HashMap<String, Arc<ObservedModel>>>,
}

struct ObservedModel {
    provider: String,
    /// The series of the model. Set at the first use of the model.
    series: OnceLock<ModelSeries>,
}

/// The series of one model, or the common series of all models without their own.
struct ModelSeries {
    label: String,
    successful: Histogram,
    input_tokens: Histogram,
    output_tokens: Histogram,
    first_token: Histogram,
}

/// Values of the error label: the client disconnected, or the vendor or the gateway failed.
const OPERATION_ERRORS: [&str; 11] = [
    "client_left",
    "draining",
    "internal",
    "overloaded",
    "rate_limited",
    "upstream_closed",
    "upstream_event_too_large",
    "upstream_failed",
    "upstream_timeout",
    "upstream_unreachable",
    "vendor_refused_us",
];

impl GenAiMetrics {
    pub fn new(registry: &Registry, labels: Arc<ModelLabels>) -> Self {
        let family = |name: &str, help: &str, buckets: &[f64], label: &[&str]| {
            let labels = [
                &[
                    "gen_ai_operation_name",
                    "gen_ai_provider_name",
                    "gen_ai_request_model",
                ],
                label,
            ]
            .concat();
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            register_family(registry, HistogramVec::new(opts, &labels))
        };
        Self {
            operation_duration: family(
                "gen_ai_client_operation_duration_seconds",
                "Time from the admission of a request to the end of its response.",
                OPERATION_SECONDS_BUCKETS,
                &["error_type"],
            ),
            token_usage: family(
                "gen_ai_client_token_usage",
                "Tokens billed for one request.",
                TOKENS_BUCKETS,
                &["gen_ai_token_type"],
            ),
            time_to_first_token: family(
                "gen_ai_server_time_to_first_token_seconds",
                "Time from the admission of a streamed request to the first token of its response.",
                FIRST_TOKEN_SECONDS_BUCKETS,
                &[],
            ),
            labels,
            models: ArcSwap::default(),
        }
    }

    /// Adds models, as pairs of catalog id and provider.
    pub fn add_models<'a>(&self, models: impl Iterator<Item = (&'a str, &'a str)>) {
        let mut all = HashMap::clone(&self.models.load());
        for (model, provider) in models {
            if all
                .get(model)
                .is_none_or(|known| known.provider != provider)
            {
                let known = ObservedModel {
                    provider: provider.to_owned(),
                    series: OnceLock::new(),
                };
                all.insert(model.to_owned(), Arc::new(known));
            }
        }
        self.models.store(Arc::new(all));
    }

    /// Creates the series of a model that was added, with the label `model`, before its first use.
    pub fn create_series(&self, model: &str) {
        self.with_series(model, |_, _| ());
    }

    fn with_series(&self, model: &str, record: impl FnOnce(&ModelSeries, &str)) {
        if let Some(known) = self.models.load().get(model) {
            let create = || self.series(self.labels.label(model), &known.provider);
            record(known.series.get_or_init(create), &known.provider);
        }
    }

    fn series(&self, model: &str, provider: &str) -> ModelSeries {
        for error in OPERATION_ERRORS {
            self.operation_duration
                .with_label_values(&[OPERATION, provider, model, error]);
        }
        let tokens = |kind| {
            self.token_usage
                .with_label_values(&[OPERATION, provider, model, kind])
        };
        ModelSeries {
            label: model.to_owned(),
            // Prometheus treats an empty label as absent.
            successful: self
                .operation_duration
                .with_label_values(&[OPERATION, provider, model, ""]),
            input_tokens: tokens("input"),
            output_tokens: tokens("output"),
            first_token: self
                .time_to_first_token
                .with_label_values(&[OPERATION, provider, model]),
        }
    }

    /// Records the end of a request to the model's vendor. `error` is from a closed set, and `None`
    /// on success.
    pub fn observe_operation(&self, model: &str, duration: Duration, error: Option<&str>) {
        let seconds = duration.as_secs_f64();
        self.with_series(model, |series, provider| match error {
            None => series.successful.observe(seconds),
            Some(error) => {
                let labels = [OPERATION, provider, &series.label, error];
                self.operation_duration
                    .with_label_values(&labels)
                    .observe(seconds);
            }
        });
    }

    /// Records the tokens for which a request was billed.
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of tokens are far below 2^52"
    )]
    pub fn observe_tokens(&self, model: &str, input: u64, output: u64) {
        self.with_series(model, |series, _| {
            series.input_tokens.observe(input as f64);
            series.output_tokens.observe(output as f64);
        });
    }

    /// Records the time to the first token of a streamed response.
    pub fn observe_first_token(&self, model: &str, after: Duration) {
        self.with_series(model, |series, _| {
            series.first_token.observe(after.as_secs_f64());
        });
    }
}

/// Providers of the conventions, by the end of their hosts' names.
const PROVIDERS: [(&str, &str); 14] = [
    ("api.anthropic.com", "anthropic"),
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure.ai.openai"),
    (".services.ai.azure.com", "azure.ai.inference"),
    (".models.ai.azure.com", "azure.ai.inference"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("api.deepseek.com", "deepseek"),
    ("api.groq.com", "groq"),
    ("api.mistral.ai", "mistral_ai"),
    ("api.perplexity.ai", "perplexity"),
    ("api.x.ai", "x_ai"),
    ("api.cohere.com", "cohere"),
    ("api.cohere.ai", "cohere"),
];

/// Returns the value of `gen_ai.provider.name`. It is the name from the conventions if the vendor's
/// hosts are known, and otherwise the vendor's name in the config.
pub fn provider<'a>(vendor: &'a str, hosts: impl IntoIterator<Item = &'a str>) -> &'a str {
    let known = |host: &str| {
        let is_bedrock = host.starts_with("bedrock") && host.ends_with(".amazonaws.com");
        let named = PROVIDERS
            .iter()
            .find(|(end, _)| host.ends_with(end))
            .map(|(_, name)| *name);
        if is_bedrock {
            Some("aws.bedrock")
        } else {
            named
        }
    };
    hosts.into_iter().find_map(known).unwrap_or(vendor)
}

#[cfg(test)]
mod tests {
    use super::super::model_labels::MAX_MODELS;
    use super::*;

    #[test]
    fn a_known_host_has_the_name_of_the_conventions() {
        assert_eq!(provider("mine", ["api.anthropic.com"]), "anthropic");
        assert_eq!(
            provider("mine", ["bedrock-runtime.eu-west-1.amazonaws.com"]),
            "aws.bedrock"
        );
        assert_eq!(
            provider("mine", ["acme.openai.azure.com"]),
            "azure.ai.openai"
        );
        assert_eq!(provider("mine", ["127.0.0.1"]), "mine");
    }

    #[test]
    fn a_model_is_observed_once_it_is_known_and_its_series_begin_at_zero() {
        let registry = Registry::new();
        let metrics = GenAiMetrics::new(&registry, Arc::default());
        metrics.observe_tokens("m", 1, 1);
        metrics.add_models([("m", "p")].into_iter());
        assert!(
            registry.gather().is_empty(),
            "neither an unknown model nor an unused one makes series"
        );
        metrics.create_series("m");
        let count = || {
            let models = metrics.models.load();
            models["m"]
                .series
                .get()
                .unwrap()
                .successful
                .get_sample_count()
        };
        assert_eq!((registry.gather().len(), count()), (3, 0));
        metrics.observe_operation("m", Duration::from_secs(1), None);
        metrics.observe_operation("m", Duration::from_secs(1), Some("upstream_timeout"));
        metrics.add_models([("m", "p")].into_iter());
        assert_eq!(count(), 1, "a reload keeps what was counted");
        metrics.observe_tokens("m", 10, 3);
        let models = metrics.models.load();
        let series = models["m"].series.get().unwrap();
        assert_eq!(series.output_tokens.get_sample_sum(), 3.0);
    }

    #[test]
    fn thousands_of_models_make_no_more_series_than_the_first_hundred() {
        let registry = Registry::new();
        let metrics = GenAiMetrics::new(&registry, Arc::default());
        let names: Vec<_> = (0..3_000).map(|index| format!("m{index}")).collect();
        metrics.add_models(names.iter().map(|name| (name.as_str(), "p")));
        for name in &names {
            metrics.observe_tokens(name, 10, 3);
        }
        let families = registry.gather();
        let tokens = families
            .iter()
            .find(|family| family.name() == "gen_ai_client_token_usage");
        let series = tokens.unwrap().get_metric();
        assert_eq!(series.len(), 2 * (MAX_MODELS + 1));
        let counted: u64 = series
            .iter()
            .map(|one| one.get_histogram().get_sample_count())
            .sum();
        assert_eq!(counted, 2 * 3_000);
    }
}
