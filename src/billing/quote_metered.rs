//! The maximum cost of a request to a metered endpoint: its bound in units, at the model's price.
//!
//! A request is held for exactly its bound, and billed at most that: there is no output to shorten.
//! Must not know accounts.

use config::catalog::CatalogModel;
use credits::money::Micro;
use credits::pricing::{Quote, WorstCase};
use llm_protocol::metered::{BilledUnit, MeteredTerms};

/// Quotes the maximum cost of a request.
pub fn quote(model: &CatalogModel, terms: &MeteredTerms) -> Quote {
    let input_tokens = match terms.unit {
        BilledUnit::InputTokens => terms.bound,
    };
    let reach = WorstCase {
        input_tokens,
        input_price: model.price.input,
        output_price: Micro::ZERO,
    };
    Quote::flat(reach, 1, 0, 0)
}
