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
    let (input_price, input_unit) = match terms.unit {
        BilledUnit::InputTokens => (model.price.input, "input tokens"),
        BilledUnit::Counted(unit) => {
            // Per 1 000, where a token's price is per 1 000 000.
            let price = model.price.features.unit_price(unit).unwrap_or_default();
            (Micro::new(price.get().saturating_mul(1_000)), "units")
        }
    };
    let reach = WorstCase {
        input_tokens: terms.bound,
        input_price,
        output_price: Micro::ZERO,
    };
    Quote {
        input_unit,
        ..Quote::flat(reach, 1, 0, 0)
    }
}
