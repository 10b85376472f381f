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

mod answers;
mod billing_examples;
mod billing_text;
mod conversation;
mod failures;
mod features;
mod legal;
mod legal_responses;
mod payloads;
mod prices;
mod requests;
mod responses;
mod responses_vendor;
mod streams;
mod translation;
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
