//! Endpoints beyond the three protocols: one JSON request and one JSON answer, both passed on
//! byte for byte except for the model's name, and metered. Nothing is translated, repaired or
//! answered by another model: the vectors of two models do not mix.
//!
//! A new endpoint is a row of [`table`], and what its row says is all that differs between
//! endpoints. It must not know a price: `billing/quote_metered.rs` prices the units.
//!
//! Read next: `metered/table.rs` (the endpoints), `metered/request.rs` (what a body asks for),
//! `metered/answer.rs` (what an answer reports), `metered/terms.rs` (what is billed).

mod answer;
mod content;
mod request;
mod table;
mod terms;
#[cfg(test)]
mod tests;

pub use answer::MeteredAnswer;
pub use content::MeteredContent;
pub use request::MeteredRequest;
pub use table::{ENDPOINTS, MeteredEndpoint, ModelKind};
pub use terms::{BilledUnit, MeteredTerms};
