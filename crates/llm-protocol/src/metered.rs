//! Endpoints beyond the three protocols: a request in JSON or as a form, and its answer, both
//! passed on byte for byte except for the model's name, and metered. Nothing is translated,
//! repaired or answered by another model: the vectors of two models do not mix.
//!
//! A new endpoint is a row of `metered/table.txt`, and what its row says is all that differs
//! between endpoints. It must not know a price: `billing/quote_metered.rs` prices the units.
//!
//! Read next: `metered/table.txt` (the endpoints), `metered/request.rs` (what a body asks for),
//! `metered/form.rs` (a body that is a form), `metered/answer.rs` (what an answer reports),
//! `metered/terms.rs` (what is billed).

mod answer;
mod audio;
mod content;
mod form;
mod request;
mod sample;
mod table;
mod terms;
#[cfg(test)]
mod tests;

pub use answer::MeteredAnswer;
pub use content::{MeteredContent, MeteredLimits};
pub use request::MeteredRequest;
pub use table::{ENDPOINTS, MeteredEndpoint, MeteredForm, ModelKind};
pub use terms::{BilledUnit, MeteredTerms};
