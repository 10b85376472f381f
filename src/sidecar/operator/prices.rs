//! Shows a price list by its id: the prices, and the models and periods to which they applied.
//!
//! The periods come from the audit log, in which the gateway records each price change of the
//! config file. This file must not change anything.

use super::super::authz::Operator;
use super::super::blocking::run_blocking;
use super::super::display::{Timestamp, group_amount, group_digits};
use super::super::error::PageError;
use super::super::page::{Frame, html};
use super::super::state::SidecarState;
use accounts::prices::PriceChange;
use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use credits::price_list::{PriceList, TokenPrices};
use llm_protocol::usage::{CountedUnit, ServerTool};
use std::sync::Arc;

/// Period in which a price list applied to a model.
struct PricePeriod {
    model: String,
    from: Timestamp,
    /// End of the period; `None` if the list is still in force.
    until: Option<Timestamp>,
}

struct PriceRow {
    name: String,
    price: String,
    unit: &'static str,
}

#[derive(Template)]
#[template(path = "operator_price.html")]
struct PricePage {
    frame: Frame,
    version: String,
    rows: Vec<PriceRow>,
    /// Periods in descending order of time.
    periods: Vec<PricePeriod>,
    /// Time at which the ledger stored the list.
    stored: Option<Timestamp>,
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    Path(version): Path<String>,
) -> Result<Response, PageError> {
    let (billing, id) = (app.billing.clone(), version.clone());
    let stored = run_blocking(move || billing.pages().price_list(&id)).await??;
    let accounts = app.accounts.clone();
    let changes = run_blocking(move || accounts.audit_log().price_changes()).await??;
    // If processes share a store, this process may not have stored the list yet.
    let settings = app.settings.load();
    let in_force = settings.catalog.prices().map(|(_, price)| price);
    let in_force = in_force.into_iter().find(|price| price.version == version);
    let (price, stored_at) = match (stored, in_force) {
        (Some((price, at_ms)), _) => (price, Some(at_ms)),
        (None, Some(price)) => (price.clone(), None),
        (None, None) => return Err(PageError::NotFound),
    };
    let page = PricePage {
        frame: Frame::new("Price list", &user),
        periods: periods(&changes, &version),
        rows: price_rows(&price),
        stored: stored_at.map(Timestamp),
        version,
    };
    Ok(html(StatusCode::OK, &page))
}

/// Returns the periods in which a model had the list, latest first.
fn periods(changes: &[PriceChange], version: &str) -> Vec<PricePeriod> {
    let is_it = |price: &Option<PriceList>| price.as_ref().is_some_and(|it| it.version == version);
    let mut periods: Vec<PricePeriod> = Vec::new();
    for change in changes {
        let open = periods
            .iter_mut()
            .find(|period| period.until.is_none() && period.model == change.model);
        match (is_it(&change.after), open) {
            (true, None) => periods.push(PricePeriod {
                model: change.model.clone(),
                from: Timestamp(change.at_ms),
                until: None,
            }),
            (false, Some(period)) => period.until = Some(Timestamp(change.at_ms)),
            _ => {}
        }
    }
    periods.reverse();
    periods
}

const PER_MILLION: &str = "per 1 000 000 tokens";
const PER_THOUSAND: &str = "per 1 000 uses";
const PER_THOUSAND_UNITS: &str = "per 1 000 units";

fn price_rows(price: &PriceList) -> Vec<PriceRow> {
    let row = |name: String, price: String, unit| PriceRow { name, price, unit };
    let tokens = |suffix: &str, rates: &TokenPrices| -> Vec<PriceRow> {
        token_prices(rates)
            .into_iter()
            .map(|(name, amount)| row(format!("{name}{suffix}"), amount, PER_MILLION))
            .collect()
    };
    let base = TokenPrices {
        input: price.input,
        cache_read: price.cache_read,
        cache_write_5m: price.cache_write_5m,
        cache_write_1h: price.cache_write_1h,
        output: price.output,
    };
    let mut rows = tokens("", &base);
    for tier in &price.tiers {
        let above = group_digits(tier.above_input_tokens);
        rows.extend(tokens(
            &format!(", input above {above} tokens"),
            &tier.rates,
        ));
    }
    let features = &price.features;
    let media = [
        ("audio input", features.audio_input),
        ("audio output", features.audio_output),
        ("image input", features.image_input),
        ("image output", features.image_output),
    ];
    for (name, amount) in media {
        let amount = amount.map(group_amount);
        rows.extend(amount.map(|amount| row(name.to_owned(), amount, PER_MILLION)));
    }
    for tool in ServerTool::ALL {
        let amount = features.tool_price(tool).map(group_amount);
        let name = tool.key().replace('_', " ");
        rows.extend(amount.map(|amount| row(name, amount, PER_THOUSAND)));
    }
    for unit in CountedUnit::ALL {
        let amount = features.unit_price(unit).map(|amount| amount.to_string());
        let name = unit.key().replace('_', " ");
        rows.extend(amount.map(|amount| row(name, amount, PER_THOUSAND_UNITS)));
    }
    for (key, factors) in features.factors() {
        let key = key.replace('_', " ");
        rows.extend(factors.iter().map(|(name, factor)| {
            let name = format!("{key} {name}");
            row(name, format!("× {factor}"), "of the token prices")
        }));
    }
    rows
}

/// Returns the token prices by kind of token, with the names that pages use.
pub fn token_prices(rates: &TokenPrices) -> [(&'static str, String); 5] {
    [
        ("input", rates.input),
        ("cache read", rates.cache_read),
        ("cache write 5 min", rates.cache_write_5m),
        ("cache write 1 h", rates.cache_write_1h),
        ("output", rates.output),
    ]
    .map(|(name, amount)| (name, group_amount(amount)))
}
