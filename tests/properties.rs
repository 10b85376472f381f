//! Properties of the pure protocol core, its tables, and price arithmetic, tested through public
//! functions only.
//!
//! The tests must not need a server or a clock. Streams: the output is the same wherever the bytes
//! are cut. Requests: a rewrite makes the requested changes and changes no other byte. Failures:
//! every kind, on both surfaces.
//!
//! Read next: `properties/payloads.rs`, the real payloads from which the tests start.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

#[path = "properties/answers.rs"]
mod answers;
#[path = "properties/billing_examples.rs"]
mod billing_examples;
#[path = "properties/billing_text.rs"]
mod billing_text;
#[path = "properties/conversation.rs"]
mod conversation;
#[path = "properties/failures.rs"]
mod failures;
#[path = "properties/features.rs"]
mod features;
#[path = "properties/legal.rs"]
mod legal;
#[path = "properties/legal_responses.rs"]
mod legal_responses;
#[path = "properties/payloads.rs"]
mod payloads;
#[path = "properties/prices.rs"]
mod prices;
#[path = "properties/requests.rs"]
mod requests;
#[path = "properties/responses.rs"]
mod responses;
#[path = "properties/responses_vendor.rs"]
mod responses_vendor;
#[path = "properties/streams.rs"]
mod streams;
#[path = "properties/translation.rs"]
mod translation;
#[path = "properties/usage.rs"]
mod usage;

/// Prints failing seeds and does not store them: a failure becomes a test of its own.
/// `PROPTEST_CASES` raises the number of cases.
fn cases(cases: u32) -> proptest::prelude::ProptestConfig {
    let usual = proptest::prelude::ProptestConfig::default();
    proptest::prelude::ProptestConfig {
        cases: cases.max(usual.cases),
        failure_persistence: None,
        ..usual
    }
}
