//! The maximum cost of a request to a metered endpoint: its bound, at the model's price.
//!
//! A request is held for exactly its bound, and billed at most that: there is no output to shorten.
//! Must not know accounts.

use config::catalog::CatalogModel;
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::pricing::{Quote, WorstCase, cost};
use llm_protocol::metered::{BilledUnit, MeteredTerms};
use llm_protocol::usage::Usage;

/// Quotes the maximum cost of a request.
pub fn quote(model: &CatalogModel, terms: &MeteredTerms) -> Quote {
    let bound = &terms.bound;
    let (input_tokens, input_price, input_unit) = match terms.unit {
        BilledUnit::Tokens if bound.tokens_total() == bound.input => {
            (bound.input, model.price.input, "input tokens")
        }
        BilledUnit::Tokens => (
            bound.tokens_total(),
            mean_price(bound, &model.price),
            "tokens",
        ),
        BilledUnit::Counted(unit) => {
            // Per 1 000, where a token's price is per 1 000 000.
            let price = model.price.features.unit_price(unit).unwrap_or_default();
            let price = Micro::new(price.get().saturating_mul(1_000));
            (bound.units(unit), price, unit.plural())
        }
    };
    let reach = WorstCase {
        input_tokens,
        input_price,
        output_price: Micro::ZERO,
    };
    Quote {
        input_unit,
        ..Quote::flat(reach, 1, 0, 0)
    }
}

/// The price per 1 000 000 tokens at which tokens of several classes cost what they cost by their
/// own prices, rounded up.
fn mean_price(usage: &Usage, price: &PriceList) -> Micro {
    let cost = i128::from(cost(usage, price).get());
    let tokens = i128::from(usage.tokens_total().max(1));
    let mean = cost.saturating_mul(1_000_000).saturating_add(tokens - 1) / tokens;
    Micro::new(i64::try_from(mean).unwrap_or(i64::MAX))
}
