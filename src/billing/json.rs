//! Writes balances and receipts as JSON for account holders. Every process returns the same JSON.
//!
//! This file must not change stored data.

use super::balance::Balance;
use super::receipt::Receipt;
use base::clock;
use config::MAX_TOTAL_SECONDS;
use credits::money::Factor;
use credits::price_list::PriceBand;
use credits::pricing;
use ledger::StoreError;
use ledger::segment::request_time_ms;
use llm_protocol::ir::CacheMarkerOrigin;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum time that a client's query waits for a receipt.
const RECEIPT_TIMEOUT: Duration = Duration::from_secs(2);
const RECEIPT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Message for a receipt that may be in a missing segment.
pub const ARCHIVED_RECEIPT: &str =
    "The receipt of this request is archived and cannot be read at the moment.";
/// Message if [`wait_for_receipt`] finds no receipt.
pub const NO_RECEIPT: &str = "There is no receipt with this id, or not yet.";

/// Returns the receipt, after a short wait if necessary. A client may ask as soon as it has the
/// last byte, a few milliseconds before the ledger has the entry.
///
/// # Errors
/// Returns an error if the ledger cannot be read.
pub async fn wait_for_receipt<T, F: Future<Output = Result<Option<T>, StoreError>>>(
    find_receipt: impl Fn() -> F,
    request_id: &str,
) -> Result<Option<T>, StoreError> {
    let until = tokio::time::Instant::now() + RECEIPT_TIMEOUT;
    loop {
        let receipt = find_receipt().await?;
        // A receipt can only appear later if the request is still being answered or settled.
        if receipt.is_some() || tokio::time::Instant::now() >= until || !may_still_end(request_id) {
            return Ok(receipt);
        }
        tokio::time::sleep(RECEIPT_POLL_INTERVAL).await;
    }
}

/// Returns whether a request with this id may still be running, by the time in the id.
fn may_still_end(request_id: &str) -> bool {
    let longest_ms = i64::try_from(2_000 * MAX_TOTAL_SECONDS).unwrap_or(i64::MAX);
    request_time_ms(request_id)
        .is_some_and(|began_ms| clock::now_ms().saturating_sub(began_ms) <= longest_ms)
}

pub fn balance(balance: &Balance) -> Value {
    let trial = balance.trial.as_ref().map(|trial| {
        json!({
            "ends_at": clock::rfc3339(trial.ends_at_ms),
            "credits_left": trial.credits_left,
            "active": trial.active,
        })
    });
    json!({"balance": balance.balance, "held": balance.held, "available": balance.available, "trial": trial})
}

pub fn receipt(receipt: &Receipt) -> Value {
    let detail = &receipt.detail;
    let lines = pricing::cost_lines(&detail.usage, &receipt.price)
        .into_iter()
        .filter(|line| line.count > 0);
    let lines: Vec<_> = lines.map(line).collect();
    let mut value = json!({
        "request_id": receipt.request_id,
        "at": clock::rfc3339(receipt.at_ms),
        "model": detail.model,
        "surface": detail.surface,
        "key": detail.key_shown,
        "outcome": detail.outcome,
        "usage": detail.usage,
        "price": price_in_force(receipt),
        "lines": lines,
        "credits": receipt.credits,
        "cache": {
            "marks": detail.cache_marks.map_or("none", CacheMarkerOrigin::as_str),
            "saved": receipt.cache_savings(),
        },
        "estimated": detail.estimated,
        "balance_after": receipt.balance_after,
    });
    if detail.implausible {
        value["implausible"] = json!("implausible usage, capped");
    }
    for (name, ms) in [
        ("took_ms", detail.took_ms),
        ("first_token_ms", detail.first_token_ms),
    ] {
        if let Some(ms) = ms {
            value[name] = json!(ms);
        }
    }
    if let Some(person) = detail.person() {
        value["member"] = json!(person);
    }
    if receipt.writeoff.is_positive() {
        value["writeoff"] = json!(receipt.writeoff);
    }
    if !receipt.refunds.is_empty() {
        let refunds = receipt.refunds.iter().map(|refund| {
            json!({
                "at": clock::rfc3339(refund.at_ms),
                "credits": refund.credits,
                "reference": refund.reference,
            })
        });
        value["refunds"] = refunds.collect();
    }
    value
}

fn line(line: pricing::CostLine) -> Value {
    let mut value = json!({"class": line.class, "price": line.price, "credits": line.credits()});
    value[line.unit.as_str()] = json!(line.count);
    if let Some(pass) = line.pass {
        value["compaction"] = json!(pass);
    }
    if line.factor != Factor::ONE {
        value["factor"] = json!(line.factor);
    }
    value
}

/// Returns the prices of the price list that applied to the response.
fn price_in_force(receipt: &Receipt) -> Value {
    let (usage, price) = (&receipt.detail.usage, &receipt.price);
    let PriceBand {
        above_input_tokens,
        rates,
        ..
    } = price.band_for(usage.without_passes().input_total());
    let mut value = json!(rates);
    value["version"] = json!(price.version);
    if let Some(tokens) = above_input_tokens {
        value["above_input_tokens"] = json!(tokens);
    }
    for line in pricing::cost_lines(usage, price)
        .iter()
        .filter(|line| line.count > 0 && line.pass.is_none())
    {
        value[line.class] = json!(line.price);
    }
    let choices = [usage.service_tier, usage.inference_geo, usage.speed];
    for ((key, _), choice) in price.features.factors().into_iter().zip(choices) {
        if let Some(choice) = choice {
            value[key] = json!(choice);
            value["factor"] = json!(price.factor(usage));
        }
    }
    value
}
