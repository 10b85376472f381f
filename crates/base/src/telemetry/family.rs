//! Registers metric families.
//!
//! Must not know which families there are.

use prometheus::Registry;

/// Registers a family. Names and labels are constants, so the first test run detects a mistake.
#[expect(
    clippy::expect_used,
    reason = "constants in the code; a wrong one fails every test"
)]
pub(super) fn register_family<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    family: prometheus::Result<C>,
) -> C {
    let family = family.expect("a well-formed metric family");
    registry
        .register(Box::new(family.clone()))
        .expect("a metric family of its own name");
    family
}
