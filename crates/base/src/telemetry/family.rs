//! Registers metric families.
//!
//! This file must not name a family.

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// A declaration of a metric family.
#[derive(Default)]
pub(super) struct FamilyOptions {
    pub name: &'static str,
    pub help: &'static str,
    /// Names of the labels. A family of one series has none.
    pub labels: &'static [&'static str],
    /// Upper bounds of a histogram's buckets. Empty for other kinds.
    pub buckets: &'static [f64],
}

/// A kind of metric that can be declared as a family.
pub(super) trait MetricFamily: Collector + Clone + Sized + 'static {
    fn build(options: FamilyOptions) -> prometheus::Result<Self>;
}

macro_rules! metric_family {
    ($($kind:ident, $options:ident => $build:expr;)*) => {$(
        impl MetricFamily for $kind {
            fn build($options: FamilyOptions) -> prometheus::Result<Self> {
                $build
            }
        }
    )*};
}

metric_family! {
    Gauge, family => Self::new(family.name, family.help);
    IntGauge, family => Self::new(family.name, family.help);
    IntGaugeVec, family => Self::new(Opts::new(family.name, family.help), family.labels);
    IntCounter, family => Self::new(family.name, family.help);
    IntCounterVec, family => Self::new(Opts::new(family.name, family.help), family.labels);
    Histogram, family => Self::with_opts(family.histogram());
    HistogramVec, family => Self::new(family.histogram(), family.labels);
}

impl FamilyOptions {
    fn histogram(&self) -> HistogramOpts {
        HistogramOpts::new(self.name, self.help).buckets(self.buckets.to_vec())
    }
}

/// Registers a family. Names and labels are constants, so the first test run detects a mistake.
#[expect(
    clippy::expect_used,
    reason = "constants in the code; a wrong one fails every test"
)]
pub(super) fn register_family<C: Collector + Clone + 'static>(
    registry: &Registry,
    family: prometheus::Result<C>,
) -> C {
    let family = family.expect("a well-formed metric family");
    registry
        .register(Box::new(family.clone()))
        .expect("a metric family of its own name");
    family
}
