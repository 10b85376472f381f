//! What was billed: a row per response, and each one's receipt. One account never sees another's.

use super::App;
use super::page::{Frame, html, when};
use super::problem::Problem;
use super::session::Visitor;
use crate::billing::Receipt;
use crate::billing::pricing::{self, Unit};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use std::sync::Arc;

/// Rows of one page.
const ROWS: u32 = 50;

/// One response in a table.
pub struct Row {
    pub request_id: String,
    pub at: String,
    pub model: String,
    pub surface: &'static str,
    pub key: String,
    pub outcome: String,
    pub tokens_in: u64,
    pub tokens_out: u64,
    pub credits: String,
    pub estimated: bool,
}

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage {
    frame: Frame,
    rows: Vec<Row>,
    older: Option<i64>,
    first: bool,
}

/// One class on a receipt; its credits are exact.
struct Line {
    class: &'static str,
    count: u64,
    price: String,
    /// Of what the price is.
    per: &'static str,
    credits: String,
}

#[derive(Template)]
#[template(path = "receipt.html")]
struct ReceiptPage {
    frame: Frame,
    row: Row,
    lines: Vec<Line>,
    reasoning: u64,
    price_version: String,
    /// The long-context tier in force.
    above_input_tokens: Option<u64>,
    /// The service tier that was billed, and its multiple.
    service_tier: Option<(String, String)>,
    balance_after: String,
    /// The part that the account could not pay.
    writeoff: Option<String>,
}

#[derive(Deserialize)]
pub struct Page {
    /// The `seq` of the last row of the page before.
    before: Option<i64>,
}

pub fn rows(receipts: &[Receipt]) -> Vec<Row> {
    receipts.iter().map(row).collect()
}

fn row(receipt: &Receipt) -> Row {
    let detail = &receipt.detail;
    let usage = &detail.usage;
    Row {
        request_id: receipt.request_id.clone(),
        at: when(receipt.at_ms),
        model: detail.model.clone(),
        surface: detail.surface.as_str(),
        key: detail.key_shown.clone(),
        outcome: detail.outcome.as_str().replace('_', " "),
        tokens_in: usage.input_total(),
        tokens_out: usage.output_total(),
        credits: receipt.credits.to_string(),
        estimated: detail.estimated,
    }
}

pub async fn list(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Page { before }) = page.map_err(|_| Problem::NotFound)?;
    let account = &visitor.account.id;
    let receipts = app.billing.receipts(account, before, ROWS)?;
    let full = receipts.len() >= usize::try_from(ROWS).unwrap_or(usize::MAX);
    let older = receipts.last().filter(|_| full).map(|last| last.seq);
    let page =
        ActivityPage { frame: Frame::of("Activity", &visitor), rows: rows(&receipts), older, first: before.is_none() };
    Ok(html(StatusCode::OK, &page))
}

pub async fn receipt(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path(request_id): Path<String>,
) -> Result<Response, Problem> {
    let account = &visitor.account.id;
    let receipt = app.billing.receipt(account, &request_id)?.ok_or(Problem::NotFound)?;
    Ok(html(StatusCode::OK, &receipt_page(Frame::of("Activity", &visitor), &receipt)))
}

fn receipt_page(frame: Frame, receipt: &Receipt) -> ReceiptPage {
    let (usage, price) = (&receipt.detail.usage, &receipt.price);
    let lines = pricing::lines(usage, price)
        .into_iter()
        .filter(|line| line.count > 0 || matches!(line.class, "input" | "output"))
        .map(|line| Line {
            class: line.class,
            count: line.count,
            price: line.price.to_string(),
            per: match line.unit {
                Unit::Tokens => "1 000 000 tokens",
                Unit::Uses => "1 000 uses",
            },
            credits: line.credits(),
        })
        .collect();
    ReceiptPage {
        row: row(receipt),
        lines,
        reasoning: usage.reasoning,
        price_version: price.version.clone(),
        above_input_tokens: price.span_of(usage.input_total()).above_input_tokens,
        service_tier: usage.service_tier.map(|tier| (tier.to_string(), price.factor(Some(tier)).to_string())),
        balance_after: receipt.balance_after.to_string(),
        writeoff: receipt.writeoff.is_positive().then(|| receipt.writeoff.to_string()),
        frame,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Price;
    use crate::money::Micro;
    use crate::protocol::Protocol;
    use crate::store::ledger::{Detail, Outcome};
    use crate::usage::Usage;

    #[test]
    fn a_receipt_shows_every_class_and_escapes_what_it_is_given() {
        let price = Price::new([500, 50, 625, 1000, 2500].map(|credits| Micro::new(credits * 1_000_000)));
        let usage = Usage { input: 3, cache_read: 1_234, output: 17, reasoning: 5, ..Usage::default() };
        let detail = Detail {
            key_id: "key_1".into(),
            key_shown: "gw-sk-Ab12…wxyz".into(),
            model: "<script>alert(1)</script>".into(),
            surface: Protocol::Messages,
            vendor: "alpha".into(),
            outcome: Outcome::ClientLeft,
            usage,
            price_version: price.version.clone(),
            estimated: true,
            conversation: None,
            took_ms: None,
        };
        let receipt = Receipt {
            seq: 1,
            request_id: "req_1".into(),
            at_ms: 0,
            detail,
            credits: pricing::cost(&usage, &price),
            price,
            writeoff: Micro::ZERO,
            balance_after: Micro::new(299_894_300),
        };
        let text = receipt_page(Frame::public("Activity"), &receipt).render().unwrap();
        // 3·500 + 1234·50 + 17·2500 = 105 700 credits per million tokens' worth: 0.1057 credits.
        for part in ["0.0015", "0.0617", "0.0425", "0.1057", "cache_read", "1234", "client left", "299.8943"] {
            assert!(text.contains(part), "{part} is not on the receipt");
        }
        assert!(!text.contains("<script>alert"), "a model's name was not escaped");
        assert!(!text.contains("cache_write_1h"), "a class without tokens is left out");
    }
}
