//! Counts the outcomes of requests by model since this process started. Pages show these sums of
//! the counters in `/metrics`.
//!
//! This file must not change a counter.

use super::METRICS;
use prometheus::core::Collector;
use prometheus::proto::Metric;
use std::collections::BTreeMap;

/// The number of one model's requests since this process started, by outcome.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelRequests {
    /// Id of the model. Empty for requests that were refused before a model was chosen.
    pub model: String,
    pub requests: u64,
    /// Number of requests that ended with a status of 500 or above.
    pub failed: u64,
    /// Number of requests that ended with a status of 400 to 499.
    pub refused: u64,
    /// Upper bounds in seconds, ascending, each with the number of requests that took at most that
    /// long. Requests that were refused before a model was chosen are not measured.
    pub within_seconds: Vec<(f64, u64)>,
}

impl ModelRequests {
    /// Returns the lowest bound, in seconds, within which `percent` of the measured requests ended.
    /// Returns `None` if no request was measured, or if no bound is high enough.
    pub fn seconds_within(&self, percent: u64) -> Option<f64> {
        let timed = self.within_seconds.last().map_or(0, |(_, count)| *count);
        let wanted = timed.saturating_mul(percent).div_ceil(100).max(1);
        let mut bounds = self.within_seconds.iter();
        bounds
            .find(|(_, count)| *count >= wanted)
            .map(|(bound, _)| *bound)
    }
}

/// Returns the models with API requests, sorted by name.
pub fn model_requests() -> Vec<ModelRequests> {
    let mut models: BTreeMap<String, ModelRequests> = BTreeMap::new();
    for family in METRICS.requests.collect() {
        for metric in family.get_metric() {
            if label(metric, "surface").is_empty() {
                continue;
            }
            // The counter has a whole number.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a counter of requests is a whole number above zero"
            )]
            let count = metric.get_counter().get_value() as u64;
            let sum = models.entry(label(metric, "model").to_owned()).or_default();
            sum.requests += count;
            match label(metric, "status").parse::<u16>() {
                Ok(500..) => sum.failed += count,
                Ok(400..500) => sum.refused += count,
                _ => {}
            }
        }
    }
    for family in METRICS.request_seconds.collect() {
        for metric in family.get_metric() {
            let Some(sum) = models.get_mut(label(metric, "model")) else {
                continue;
            };
            let buckets = metric.get_histogram().get_bucket();
            let bounds = buckets
                .iter()
                .map(|it| (it.upper_bound(), it.cumulative_count()));
            if sum.within_seconds.is_empty() {
                sum.within_seconds = bounds.collect();
            } else {
                let rows = sum.within_seconds.iter_mut().zip(bounds);
                rows.for_each(|(row, (_, count))| row.1 += count);
            }
        }
    }
    let named = models.into_iter().filter(|(_, sum)| sum.requests > 0);
    named
        .map(|(model, sum)| ModelRequests { model, ..sum })
        .collect()
}

fn label<'m>(metric: &'m Metric, name: &str) -> &'m str {
    let mut labels = metric.get_label().iter();
    labels
        .find(|label| label.name() == name)
        .map_or("", |label| label.value())
}
